package engine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// A task with `cache` has an identity: what its result depends on, see dag.Making.
// The first success of an identity is kept; a task of the same identity that comes
// later ends with that result without a worker, in the transaction that would have
// made it claimable, and of two that run at the same time the one that settles
// first is kept and the other gets its result.

// made is a task whose identity is to be known.
type made struct {
	task   *lifecycle.Task
	tenant int32
	plan   *compiled
	scope  *scope
	item   json.RawMessage
	view   func(item []byte, index int32) dag.Scope
	run    string // of a deliberate repetition

	identity store.Identity
	known    bool // identity is set
}

// identify works out the identities of tasks from their inputs, in two round trips
// for all. One whose input cannot be filled in has none: its claim will say why.
func identify(ctx context.Context, tx store.Tx, list []*made) error {
	wants := make([]want, len(list))
	for i, m := range list {
		wants[i] = want{m.scope, m.plan.InputRefs(m.task.Node), m.task.Index}
	}
	if err := loadScopes(ctx, tx, wants); err != nil {
		return err
	}
	inputs := make([]json.RawMessage, len(list))
	var named []drover.ArtifactID
	for i, m := range list {
		in, err := m.plan.Render(m.task.Node, m.view(m.item, m.task.Index))
		if err != nil {
			continue
		}
		inputs[i] = in
		named = append(named, dag.ArtifactsIn(in)...)
	}
	heads := map[drover.ArtifactID]store.ArtifactHead{}
	if len(named) > 0 {
		if err := tx.Pipe(ctx, store.ArtifactHeads(named, heads)); err != nil {
			return err
		}
	}
	content := map[int32]map[drover.ArtifactID]string{} // of each tenant
	for id, h := range heads {
		if content[h.Tenant] == nil {
			content[h.Tenant] = map[drover.ArtifactID]string{}
		}
		content[h.Tenant][id] = hex.EncodeToString(h.SHA256)
	}
	for i, m := range list {
		if inputs[i] == nil {
			continue
		}
		sum, err := m.plan.Making(m.task.Node, inputs[i], m.run).Identity(content[m.tenant])
		if err != nil {
			return err
		}
		m.identity, m.known = sum, true
	}
	return nil
}

// itemsOf reads the elements that tasks stand for.
func itemsOf(ctx context.Context, tx store.Tx, tasks []drover.TaskID) (map[drover.TaskID][]byte, error) {
	items := make(map[drover.TaskID][]byte, len(tasks))
	if len(tasks) == 0 {
		return items, nil
	}
	return items, tx.Pipe(ctx, store.TaskInputs(tasks, items))
}

// reuse ends rows that may run and whose result is there already, and reports
// whether there were any. A row that was replayed, or that a rerun was asked for, runs:
// somebody wants that.
func reuse(ctx context.Context, tx store.Tx, now lifecycle.Instant, graphs []*graph) (bool, error) {
	var list []*made
	var seats []question
	var stored []drover.TaskID
	if err := readReusable(ctx, tx, graphs); err != nil {
		return false, err
	}
	for _, g := range graphs {
		if g.plan == nil || !g.plan.caches {
			continue
		}
		for s := range g.board.Seats {
			if s.Fate != dag.Runs || !g.plan.Nodes[s.Node].Cache || g.asked[s.Key] || s.Task.Generation > 1 && !g.reusable[generationOf(&s.Task)] || s.Task.DueAt > now {
				continue
			}
			if g.asked == nil {
				g.asked = map[dag.Key]bool{}
			}
			g.asked[s.Key] = true
			g.scoped()
			m := &made{task: &s.Task, tenant: g.plan.Tenant, plan: g.plan, scope: g.scope, item: g.items[s.Key], view: g.view}
			if s.Stored && g.plan.Nodes[s.Node].Mapped && g.plan.Nodes[s.Node].Over < 0 {
				stored = append(stored, s.Task.ID)
			}
			list, seats = append(list, m), append(seats, question{g, s})
		}
	}
	if len(list) == 0 {
		return false, nil
	}
	items, err := itemsOf(ctx, tx, stored)
	if err != nil {
		return false, err
	}
	for _, m := range list {
		if item, ok := items[m.task.ID]; ok {
			m.item = item
		}
	}
	if err := identify(ctx, tx, list); err != nil {
		return false, err
	}
	found, err := findResults(ctx, tx, list)
	if err != nil {
		return false, err
	}
	any := false
	for i, m := range list {
		f, ok := found[store.ResultKey{Tenant: m.tenant, Identity: m.identity}]
		if !m.known || !ok {
			continue
		}
		a := seats[i]
		a.board.Reuse(a.seat)
		a.out[a.seat.Key], a.as[a.seat.Key] = f.Output, dag.Succeeded
		if a.reused == nil {
			a.reused = map[dag.Key]store.FoundResult{}
		}
		a.reused[a.seat.Key] = f
		any = true
	}
	return any, nil
}

func generationOf(t *lifecycle.Task) store.Generation {
	return store.Generation{Task: t.ID, N: t.Generation}
}

// readReusable reads which of the rows that begin anew may end with a result that is
// there.
func readReusable(ctx context.Context, tx store.Tx, graphs []*graph) error {
	found := map[store.Generation]bool{}
	var again []store.Generation
	for _, g := range graphs {
		if g.plan == nil || !g.plan.caches {
			continue
		}
		for s := range g.board.Seats {
			if s.Stored && s.Task.Generation > 1 && s.Fate == dag.Runs && !g.asked[s.Key] && g.plan.Nodes[s.Node].Cache {
				again = append(again, generationOf(&s.Task))
			}
		}
	}
	if len(again) == 0 {
		return nil
	}
	if err := tx.Pipe(ctx, store.ReadReusable(again, found)); err != nil {
		return err
	}
	for _, g := range graphs {
		for s := range g.board.Seats {
			if k := generationOf(&s.Task); found[k] {
				g.mayReuse(k)
			}
		}
	}
	return nil
}

// mayReuse notes that a row that begins anew may end with a result that is there.
func (g *graph) mayReuse(k store.Generation) {
	if g.reusable == nil {
		g.reusable = map[store.Generation]bool{}
	}
	g.reusable[k] = true
}

// findResults reads the results there are, and keeps their jobs from leaving until
// the transaction ends.
func findResults(ctx context.Context, tx store.Tx, list []*made) (map[store.ResultKey]store.FoundResult, error) {
	var keys []store.ResultRow
	for _, m := range list {
		if m.known {
			keys = append(keys, store.ResultRow{Tenant: m.tenant, Identity: m.identity})
		}
	}
	sortResults(keys)
	found := map[store.ResultKey]store.FoundResult{}
	if err := tx.Pipe(ctx, store.FindResults(keys, found)); err != nil || len(found) == 0 {
		return nil, err
	}
	var jobs, kept []drover.JobID
	for _, f := range found {
		jobs = append(jobs, f.Job)
	}
	if err := tx.Pipe(ctx, store.KeepJobs(uniqueSorted(jobs), &kept)); err != nil {
		return nil, err
	}
	for k, f := range found {
		if !slices.Contains(kept, f.Job) {
			delete(found, k)
		}
	}
	return found, nil
}

func sortResults(rows []store.ResultRow) {
	slices.SortFunc(rows, func(a, b store.ResultRow) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), bytes.Compare(a.Identity[:], b.Identity[:]), compareIDs(a.Task, b.Task))
	})
}

// keepResults stores the identities of tasks with `cache` that have succeeded. One
// that another was first with gets the other's result in place of its own. It
// costs nothing where no task has `cache`.
func (e *Engine) keepResults(ctx context.Context, tx store.Tx, x *changes, plans map[drover.JobID]*compiled, reports []*report) error {
	var list []*made
	of := map[drover.TaskID]*report{}
	scopes := map[drover.JobID]*scope{}
	for _, r := range reports {
		p := plans[r.task.Job]
		if r.Status != drover.OutcomeSucceeded || r.mark != nil || p == nil || !p.Nodes[r.task.Node].Cache {
			continue
		}
		s := scopes[r.task.Job]
		if s == nil {
			s = newScope(r.task.Job, p)
			scopes[r.task.Job] = s
		}
		m := &made{task: &r.task, tenant: p.Tenant, plan: p, scope: s, view: func(item []byte, index int32) dag.Scope { return s.dag(item, index) }}
		of[r.task.ID] = r
		list = append(list, m)
	}
	if len(list) == 0 {
		return nil
	}
	var again []store.Generation
	ids := make([]drover.TaskID, len(list))
	for i, m := range list {
		if ids[i] = m.task.ID; m.task.Generation > 1 {
			again = append(again, generationOf(m.task))
		}
	}
	reusable := map[store.Generation]bool{}
	if err := tx.Pipe(ctx, store.ReadReusable(again, reusable)); err != nil {
		return err
	}
	for _, m := range list {
		if m.task.Generation > 1 && !reusable[generationOf(m.task)] {
			m.run = fmt.Sprintf("%s.%d", m.task.ID, m.task.Generation)
		}
	}
	items, err := itemsOf(ctx, tx, ids)
	if err != nil {
		return err
	}
	for _, m := range list {
		m.item = items[m.task.ID]
	}
	if err := identify(ctx, tx, list); err != nil {
		return err
	}
	var rows []store.ResultRow
	for _, m := range list {
		if m.known {
			rows = append(rows, store.ResultRow{Tenant: m.tenant, Identity: m.identity, Task: m.task.ID, Generation: m.task.Generation, Job: m.task.Job, At: x.now})
		}
	}
	sortResults(rows)
	won := map[drover.TaskID]bool{}
	if err := tx.Pipe(ctx, store.InsertResults(rows, won)); err != nil {
		return err
	}
	first := map[store.ResultKey]store.FoundResult{} // of this batch
	var lost []*made
	for _, m := range list {
		switch {
		case won[m.task.ID]:
			first[store.ResultKey{Tenant: m.tenant, Identity: m.identity}] = store.FoundResult{Output: of[m.task.ID].Output,
				ResultRow: store.ResultRow{Tenant: m.tenant, Identity: m.identity, Task: m.task.ID, Generation: m.task.Generation, Job: m.task.Job}}
		case m.known:
			lost = append(lost, m)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	found, err := findResults(ctx, tx, lost)
	if err != nil {
		return err
	}
	for _, m := range lost {
		k := store.ResultKey{Tenant: m.tenant, Identity: m.identity}
		f, ok := first[k]
		if !ok {
			if f, ok = found[k]; !ok {
				continue // its job is leaving: this result stands for itself
			}
		}
		r := of[m.task.ID]
		r.Output, r.Artifacts, r.first = f.Output, nil, &f
		x.reuses = append(x.reuses, reuseOf(m.task, f))
	}
	return nil
}

func reuseOf(t *lifecycle.Task, f store.FoundResult) store.ReuseRow {
	return store.ReuseRow{Task: t.ID, Generation: t.Generation, Job: t.Job, Identity: f.Identity, OfTask: f.Task, OfGeneration: f.Generation, OfJob: f.Job}
}

// useArtifacts notes that a new job's input names artifacts, which stay then.
func (x *changes) useArtifacts(job drover.JobID, input json.RawMessage) {
	for _, id := range dag.ArtifactsIn(input) {
		x.uses = append(x.uses, store.UseRow{Artifact: id, Job: job})
	}
}

// findUses finds which jobs made the artifacts that are used, and forgets those
// that are not there or another tenant's.
func (x *changes) findUses(ctx context.Context, tx store.Tx, tenant int32) error {
	if len(x.uses) == 0 {
		return nil
	}
	ids := make([]drover.ArtifactID, len(x.uses))
	for i, u := range x.uses {
		ids[i] = u.Artifact
	}
	heads := map[drover.ArtifactID]store.ArtifactHead{}
	if err := tx.Pipe(ctx, store.ArtifactHeads(ids, heads)); err != nil {
		return err
	}
	found := x.uses[:0]
	for _, u := range x.uses {
		if h, ok := heads[u.Artifact]; ok && h.Tenant == tenant {
			u.OfJob = h.Job
			found = append(found, u)
		}
	}
	x.uses = found
	return nil
}

// reusesOf reads with whose results tasks ended; mostly there are none, and nothing is read.
func reusesOf(ctx context.Context, tx store.Tx, list []taskState) (map[store.Generation]store.ReuseRow, error) {
	var of []store.Generation
	for i := range list {
		if f := list[i].final; list[i].live == nil && f != nil && f.Task.How == lifecycle.HowReused {
			of = append(of, store.Generation{Task: list[i].ID, N: f.Task.Generation})
		}
	}
	if len(of) == 0 {
		return nil, nil
	}
	found := map[store.Generation]store.ReuseRow{}
	return found, tx.Pipe(ctx, store.ReadReuses(of, found))
}

// shownReuse tells with whose result a task ended.
func shownReuse(r store.ReuseRow) *drover.Reuse {
	return &drover.Reuse{Identity: hex.EncodeToString(r.Identity[:]), JobID: r.OfJob, TaskID: r.OfTask, Generation: int(r.OfGeneration)}
}
