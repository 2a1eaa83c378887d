package engine

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// undoNext calls the next compensations of jobs that ended badly, in the reverse order
// in which what they undo was completed: the job's events have it. A job that has none
// left goes on to its end.
func (x *changes) undoNext(ctx context.Context, tx store.Tx) error {
	jobs := x.undo
	x.undo = nil
	counts, err := x.toUndo(ctx, tx, jobs)
	if err != nil {
		return err
	}
	newest, err := x.newestDone(ctx, tx, slices.DeleteFunc(slices.Clone(jobs), func(j *store.JobLive) bool { return j.Phase != phaseUndo && counts[j.Job] == 0 }))
	if err != nil {
		return err
	}
	for _, j := range jobs {
		plan := x.plans[j.Job]
		var next []dag.Key
		if s := newest[j.Job]; s != nil {
			next = plan.Undo(s.found)
		}
		if len(next) == 0 {
			if !x.closeFinally(j, plan) {
				x.finished(j)
			}
			continue
		}
		j.Undone = newest[j.Job].found[len(next)-1].Seq
		if j.Phase != phaseUndo {
			j.Phase = phaseUndo
			x.event(j, drover.JobCompensating, drover.TaskID{}, fmt.Appendf(nil, `{"tasks":%d}`, counts[j.Job]))
		}
		for _, k := range next {
			x.callAtEnd(j, plan, k)
		}
	}
	return nil
}

// toUndo counts what is to be undone of the jobs that begin with it: what the store has,
// brought up to the ends of this transaction.
func (x *changes) toUndo(ctx context.Context, tx store.Tx, jobs []*store.JobLive) (map[drover.JobID]int, error) {
	var whole, here []store.UndoablePart
	begins := map[drover.JobID]bool{}
	for _, j := range jobs {
		if j.Phase == phaseUndo {
			continue
		}
		j.Undone, begins[j.Job] = 0, true
		for i, n := range x.plans[j.Job].Nodes {
			if n.Compensation >= 0 {
				whole = append(whole, store.UndoablePart{Undoable: store.Undoable{Job: j.Job, Node: int32(i), By: n.Compensation}, First: math.MinInt32, Last: math.MaxInt32})
			}
		}
	}
	succeeded := map[store.Key]bool{} // of those that end here
	for i := range x.finals {
		t := &x.finals[i].Task
		if !begins[t.Job] || x.plans[t.Job].Nodes[t.Node].Compensation < 0 {
			continue
		}
		k := store.Key{Job: t.Job, Node: t.Node, Index: t.Index}
		if _, ok := succeeded[k]; !ok {
			here = append(here, store.UndoablePart{Undoable: store.Undoable{Job: t.Job, Node: t.Node, By: x.plans[t.Job].Nodes[t.Node].Compensation}, First: t.Index, Last: t.Index})
		}
		succeeded[k] = t.Status == drover.Succeeded
	}
	counts, were := map[drover.JobID]int{}, map[drover.JobID]int{}
	if err := tx.Pipe(ctx, store.CountUndoable(whole, counts), store.CountUndoable(here, were)); err != nil {
		return nil, err
	}
	for id, n := range were {
		counts[id] -= n
	}
	for k, yes := range succeeded {
		if yes {
			counts[k.Job]++
		}
	}
	return counts, nil
}

// How many successes of a job are read at a time to find what is undone next: few at
// first, for mostly the second is another task's, and more from page to page.
const (
	firstSuccesses = 16
	mostSuccesses  = 5 * dag.UndoAtOnce
)

// lookback is how far the newest successes of a job have been looked at.
type lookback struct {
	plan  *compiled
	below int64                  // of those before this event
	all   bool                   // there are no more
	seen  map[drover.TaskID]bool // of which a newer success was met
	found []dag.Done             // that are to be undone
}

// newestDone finds of each job the newest successes that are to be undone still: those
// that are undone next, and mostly some more. It reads on from what was undone last.
func (x *changes) newestDone(ctx context.Context, tx store.Tx, jobs []*store.JobLive) (map[drover.JobID]*lookback, error) {
	of := map[drover.JobID]*lookback{}
	for _, j := range jobs {
		s := &lookback{plan: x.plans[j.Job], below: j.Undone, seen: map[drover.TaskID]bool{}}
		if s.below == 0 {
			s.below = math.MaxInt64
		}
		of[j.Job] = s
	}
	ended := map[drover.TaskID]*lifecycle.Task{}
	for i := range x.finals {
		ended[x.finals[i].Task.ID] = &x.finals[i].Task
	}
	var page []store.Success // of this transaction, at first
	for i := range x.events {
		if e := &x.events[i]; e.Type == drover.TaskSucceeded && of[e.Job] != nil {
			t := ended[e.Task]
			page = append(page, store.Success{Key: store.Key{Job: e.Job, Node: t.Node, Index: t.Index}, Seq: e.Seq, Task: e.Task})
		}
	}
	for many := firstSuccesses; ; many = min(8*many, mostSuccesses) {
		for i := range page {
			if t := ended[page[i].Task]; t != nil {
				page[i].Stands = t.Status == drover.Succeeded
			}
		}
		if err := keepUndoable(ctx, tx, of, page); err != nil {
			return nil, err
		}
		var ask []store.SuccessesOf
		for _, j := range jobs {
			if s := of[j.Job]; !s.all && len(s.found) < dag.UndoAtOnce && len(s.plan.Undo(s.found)) == len(s.found) {
				ask = append(ask, store.SuccessesOf{Job: j.Job, Below: s.below, Many: int32(many)})
			}
		}
		if len(ask) == 0 {
			return of, nil
		}
		page = nil
		if err := tx.Pipe(ctx, store.ReadSuccesses(ask, &page)); err != nil {
			return nil, err
		}
		read := map[drover.JobID]int{}
		for _, p := range page {
			read[p.Job]++
			of[p.Job].below = min(of[p.Job].below, p.Seq)
		}
		for _, a := range ask {
			of[a.Job].all = read[a.Job] < many
		}
	}
}

// keepUndoable adds to each lookback those of a page of successes that are to be undone
// and that nothing has been called to undo.
func keepUndoable(ctx context.Context, tx store.Tx, of map[drover.JobID]*lookback, page []store.Success) error {
	slices.SortFunc(page, func(a, b store.Success) int { return cmp.Compare(b.Seq, a.Seq) })
	undoer := func(p *store.Success) store.Key {
		return store.Key{Job: p.Job, Node: of[p.Job].plan.Nodes[p.Node].Compensation, Index: p.Index}
	}
	var keys []store.Key
	page = slices.DeleteFunc(page, func(p store.Success) bool {
		s, k := of[p.Job], undoer(&p)
		if k.Node < 0 || s.seen[p.Task] {
			return true
		}
		if s.seen[p.Task] = true; p.Stands {
			keys = append(keys, k)
		}
		return !p.Stands
	})
	called := map[store.Key]store.Called{}
	if err := tx.Pipe(ctx, store.ReadCalled(keys, called)); err != nil {
		return err
	}
	for i := range page {
		p := &page[i]
		if _, ok := called[undoer(p)]; !ok {
			s := of[p.Job]
			s.found = append(s.found, dag.Done{Key: dag.Key{Node: p.Node, Index: p.Index}, Seq: p.Seq})
		}
	}
	return nil
}

// lentInputs reads the inputs that replays gave tasks which are undone, or backed, now by
// such as are given the same.
func lentInputs(ctx context.Context, tx store.Tx, calls []call, was map[store.Key]store.Called) (map[drover.TaskID][]byte, error) {
	var of []store.Generation
	for _, c := range calls {
		if !c.plan.Lent(c.key.Node) {
			continue
		}
		t := was[store.Key{Job: c.job.Job, Node: c.plan.Lender(c.key.Node), Index: c.key.Index}]
		if c.plan.Nodes[c.key.Node].Backs >= 0 {
			t.Generation++ // it lives, in the one after the last that has ended
		}
		if t.Generation > 1 {
			of = append(of, store.Generation{Task: t.ID, N: t.Generation})
		}
	}
	if len(of) == 0 {
		return nil, nil
	}
	edited := map[drover.TaskID][]byte{}
	return edited, tx.Pipe(ctx, store.EditedInputs(of, edited))
}

// maxCompensated bounds the tasks that are shown of what undoes a job's work.
const maxCompensated = 1000

// fillCompensation tells of the tasks that undo what a job did, if it has some.
func (e *Engine) fillCompensation(ctx context.Context, tx store.Tx, r store.JobRow, j *drover.Job) error {
	plan, err := e.plan(ctx, tx, r.Pipeline)
	if err != nil || !plan.Undoes() {
		return err
	}
	var nodes []int32
	for i := range plan.Nodes {
		if plan.Nodes[i].Undoes >= 0 {
			nodes = append(nodes, int32(i))
		}
	}
	var rows []store.Undoer
	if err := tx.Pipe(ctx, store.ReadUndoers(r.ID, nodes, &rows)); err != nil || len(rows) == 0 {
		return err
	}
	live := map[drover.TaskID]drover.Status{}
	if !j.Status.Final() { // one that was replayed runs anew
		if err := tx.Pipe(ctx, store.LiveStatuses(r.ID, live)); err != nil {
			return err
		}
	}
	c := &drover.Compensation{Status: drover.Succeeded, Total: len(rows)}
	for i := range rows {
		u := &rows[i]
		if s, ok := live[u.Task]; ok {
			u.Status, u.Error = s, nil
		}
		switch {
		case !u.Status.Final():
			c.Status = drover.Running
		case u.Status != drover.Succeeded && c.Status != drover.Running:
			c.Status = drover.Failed
		}
		if failedForGood(u.Status) {
			c.Failed++
		}
	}
	slices.SortFunc(rows, func(a, b store.Undoer) int {
		if x := failedForGood(a.Status); x != failedForGood(b.Status) {
			return map[bool]int{true: -1, false: 1}[x]
		}
		return cmp.Or(cmp.Compare(a.CreatedAt, b.CreatedAt), compareIDs(a.Task, b.Task))
	})
	for _, u := range rows[:min(len(rows), maxCompensated)] {
		n := &plan.Nodes[u.Node]
		c.Tasks = append(c.Tasks, drover.Compensated{Task: plan.Nodes[n.Undoes].Name, Index: int(u.Index), By: n.Name, TaskID: u.Task, Status: u.Status, Error: decodeFailure(u.Error)})
	}
	j.Compensation = c
	return nil
}

func failedForGood(s drover.Status) bool { return s == drover.Failed || s == drover.DeadLetter }
