package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

const (
	maxLetterMessage = 500 // bytes of the message a dead letter keeps; its task has the whole
	maxLetterLogs    = 50  // lines that are shown with one
	maxLetterTries   = 50  // attempts
	maxLineage       = 100 // generations
	maxParents       = 100 // tasks of each node its input is made of
)

// LetterQuery selects dead letters, newest first; what is empty does not matter.
type LetterQuery struct {
	// State is open, replayed or closed; empty is open, and "all" any of them.
	State       string
	Fingerprint string
	Kind        string
	Pipeline    string
	Queue       string
	ErrorClass  drover.ErrorClass
	// Status is FAILED or DEAD_LETTER; zero is both.
	Status drover.Status
	Job    drover.JobID
	// Since and Until bound when it ended; Until itself is not in it.
	Since, Until time.Time
	// After is where the previous page ended; zero starts.
	After LetterMark
	// Limit is how many at most; 0 is 50.
	Limit int
}

// LetterMark is a place in a list of dead letters.
type LetterMark struct {
	At         time.Time
	Task       drover.TaskID
	Generation int
}

// GroupMark is a place in a list of groups.
type GroupMark struct {
	Count       int
	Fingerprint string
}

var letterStates = map[string]store.LetterState{drover.LetterOpen: store.LetterOpen, drover.LetterReplayed: store.LetterReplayed, drover.LetterClosed: store.LetterClosed}

func letterState(s store.LetterState) string {
	for name, v := range letterStates {
		if v == s {
			return name
		}
	}
	return ""
}

// filters makes a filter for each state that is asked for.
func (e *Engine) filters(ctx context.Context, tx store.Tx, c Caller, q LetterQuery) ([]store.LetterFilter, error) {
	f := store.LetterFilter{Tenant: c.Tenant, Since: lifecycle.At(q.Since), Until: lifecycle.At(q.Until), Kind: q.Kind, Pipeline: q.Pipeline,
		ErrorClass: q.ErrorClass, Status: q.Status, Fingerprint: q.Fingerprint, Job: q.Job}
	invalid := func(field, message string) ([]store.LetterFilter, error) {
		return nil, &drover.Error{Code: drover.CodeValidation, Detail: "the filter is not valid", Fields: []drover.FieldError{{Field: field, Message: message}}}
	}
	for field, text := range map[string]string{"fingerprint": q.Fingerprint, "kind": q.Kind, "pipeline": q.Pipeline, "queue": q.Queue, "error_class": string(q.ErrorClass)} {
		if !clean(text) {
			return invalid(field, "must be valid UTF-8 without control characters")
		}
	}
	if q.Status != 0 && q.Status != drover.Failed && q.Status != drover.DeadLetter {
		return invalid("status", "must be FAILED or DEAD_LETTER: nothing else is a dead letter")
	}
	if !q.Job.IsZero() {
		if _, err := head(ctx, tx, c, q.Job); err != nil {
			return nil, err
		}
	}
	if q.Queue != "" {
		all, err := store.QueueNames(ctx, tx)
		if err != nil {
			return nil, err
		}
		f.Queue = -1 // there is none
		for id, name := range all {
			if name == q.Queue {
				f.Queue = id
			}
		}
	}
	var out []store.LetterFilter
	for _, s := range []string{drover.LetterOpen, drover.LetterClosed, drover.LetterReplayed} {
		if q.State == s || q.State == "all" || q.State == "" && s == drover.LetterOpen {
			f.State = letterStates[s]
			out = append(out, f)
		}
	}
	if out == nil {
		return invalid("state", "must be open, replayed, closed or all")
	}
	return out, nil
}

// letterOf is the dead letter of a task that ended badly.
func letterOf(tenant int32, t lifecycle.Task, at lifecycle.Instant, pipeline, node, kind string, f *drover.Failure) store.LetterRow {
	if f == nil {
		f = &drover.Failure{}
	}
	typ, message := cutAt(f.Type, maxName), cutAt(f.Message, maxMessage)
	return store.LetterRow{LetterKey: store.LetterKey{Task: t.ID, Generation: t.Generation}, Tenant: tenant, Job: t.Job, Status: t.Status, Pipeline: pipeline, Node: node, Index: t.Index, Kind: kind, Queue: t.Queue,
		Fingerprint: lifecycle.Fingerprint(lifecycle.Flaw{Pipeline: pipeline, Node: node, Class: f.Class, Type: typ, Message: message}),
		ErrorClass:  f.Class, ErrorType: typ, Message: cutAt(message, maxLetterMessage), Attempt: t.Attempt, Losses: t.Losses, Session: t.Session, At: at, State: store.LetterOpen}
}

// placeOf finds the place of a mark. Times are told to the millisecond and kept to
// the microsecond: many dead letters of one settle share both, so the mark's own
// row says when it was. Where that has left, the millisecond is looked at again
// rather than passed over.
func placeOf(ctx context.Context, tx store.Tx, m LetterMark) (store.LetterPlace, error) {
	at := store.LetterPlace{At: lifecycle.At(m.At).Add(time.Millisecond - time.Microsecond), LetterKey: store.LetterKey{Task: m.Task, Generation: int32(m.Generation)}}
	var rows []store.LetterRow
	err := tx.Pipe(ctx, store.LettersOfTasks([]drover.TaskID{m.Task}, &rows))
	for _, r := range rows {
		if r.LetterKey == at.LetterKey {
			at.At = r.At
		}
	}
	return at, err
}

// Letters returns dead letters, newest first.
func (e *Engine) Letters(ctx context.Context, c Caller, q LetterQuery) (out []drover.Letter, err error) {
	err = e.db.Read(ctx, func(tx store.Tx) error {
		filters, err := e.filters(ctx, tx, c, q)
		if err != nil {
			return err
		}
		before := store.LastLetter
		if !q.After.Task.IsZero() {
			if before, err = placeOf(ctx, tx, q.After); err != nil {
				return err
			}
		}
		n := pageSize(q.Limit)
		var rows []store.LetterRow
		var stmts []store.Stmt
		for _, f := range filters {
			stmts = append(stmts, store.Letters(f, before, n, &rows))
		}
		if err := tx.Pipe(ctx, stmts...); err != nil {
			return err
		}
		slices.SortFunc(rows, func(a, b store.LetterRow) int {
			return -cmp.Or(cmp.Compare(a.At, b.At), compareLetters(a.LetterKey, b.LetterKey))
		})
		out, err = e.showLetters(ctx, tx, rows[:min(len(rows), n)])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	return out, nil
}

func (e *Engine) showLetters(ctx context.Context, tx store.Tx, rows []store.LetterRow) ([]drover.Letter, error) {
	var sessions []int64
	for _, r := range rows {
		if r.Session != 0 {
			sessions = append(sessions, r.Session)
		}
	}
	slices.Sort(sessions)
	workers := map[int64]store.WorkerView{}
	if err := tx.Pipe(ctx, store.Workers(slices.Compact(sessions), workers)); err != nil {
		return nil, err
	}
	out := make([]drover.Letter, len(rows))
	for i, r := range rows {
		queue, err := e.queueNameOf(ctx, tx, r.Queue)
		if err != nil {
			return nil, err
		}
		out[i] = drover.Letter{TaskID: r.Task, Generation: int(r.Generation), JobID: r.Job, Status: r.Status, Pipeline: r.Pipeline, Name: r.Node, Index: int(r.Index), Kind: r.Kind, Queue: queue,
			Fingerprint: r.Fingerprint, Attempt: int(r.Attempt), Losses: int(r.Losses), Worker: workers[r.Session].Name, Error: letterError(&r), FinishedAt: r.At.Time(),
			State: letterState(r.State), StateAt: r.StateAt.Time(), Actor: r.Actor, Reason: r.Reason, OperationID: drover.OperationID(r.Operation)}
	}
	return out, nil
}

func letterError(r *store.LetterRow) *drover.Failure {
	return &drover.Failure{Class: r.ErrorClass, Type: r.ErrorType, Message: r.Message}
}

// LetterGroups returns groups of dead letters of one fingerprint, the largest
// first. State "all" is not for groups.
func (e *Engine) LetterGroups(ctx context.Context, c Caller, q LetterQuery, after GroupMark) (out []drover.LetterGroup, err error) {
	err = e.db.Read(ctx, func(tx store.Tx) error {
		out = []drover.LetterGroup{}
		filters, err := e.filters(ctx, tx, c, q)
		if err != nil {
			return err
		}
		if len(filters) > 1 {
			return &drover.Error{Code: drover.CodeValidation, Detail: "the filter is not valid", Fields: []drover.FieldError{{Field: "state", Message: "must be open, replayed or closed"}}}
		}
		from := store.LetterGroup{Count: 1<<63 - 1}
		if after.Fingerprint != "" {
			from = store.LetterGroup{Count: int64(after.Count), Fingerprint: after.Fingerprint}
		}
		var groups []store.LetterGroup
		if err := tx.Pipe(ctx, store.LetterGroups(filters[0], from, pageSize(q.Limit), &groups)); err != nil {
			return err
		}
		var names []string
		for _, g := range groups {
			names = append(names, g.Fingerprint)
		}
		var newest []store.LetterRow
		if err := tx.Pipe(ctx, store.NewestOfGroups(c.Tenant, filters[0].State, names, &newest)); err != nil {
			return err
		}
		of := make(map[string]store.LetterRow, len(newest))
		for _, l := range newest {
			of[l.Fingerprint] = l
		}
		for _, g := range groups {
			l := of[g.Fingerprint]
			out = append(out, drover.LetterGroup{Fingerprint: g.Fingerprint, Count: int(g.Count), FirstAt: g.First.Time(), LastAt: g.Last.Time(),
				Pipeline: l.Pipeline, Name: l.Node, Kind: l.Kind, Error: letterError(&l), TaskID: l.Task})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("group dead letters: %w", err)
	}
	return out, nil
}

// Letter returns the dead letter of a task with what surrounds it: that of the
// generation, or of the last one that ended badly when generation is 0.
func (e *Engine) Letter(ctx context.Context, c Caller, id drover.TaskID, generation int) (out drover.Letter, err error) {
	err = e.db.Read(ctx, func(tx store.Tx) error {
		var tasks []store.TaskRow
		var letters []store.LetterRow
		if err := tx.Pipe(ctx, store.ReadTasks([]drover.TaskID{id}, &tasks), store.LettersOfTasks([]drover.TaskID{id}, &letters)); err != nil {
			return err
		}
		if len(tasks) == 0 || tasks[0].Tenant != c.Tenant {
			return notFound("task", id)
		}
		at := len(letters) - 1
		if generation != 0 {
			at = slices.IndexFunc(letters, func(l store.LetterRow) bool { return int(l.Generation) == generation })
		}
		if at < 0 {
			return drover.Errorf(drover.CodeNotFound, "task %s is no dead letter: it did not end FAILED or as DEAD_LETTER", id)
		}
		list, err := e.showLetters(ctx, tx, letters[at:at+1])
		if err != nil {
			return err
		}
		out = list[0]
		out.Context, err = e.failureContext(ctx, tx, tasks[0], letters, &letters[at], &out)
		return err
	})
	if err != nil {
		return drover.Letter{}, fmt.Errorf("read dead letter: %w", err)
	}
	out.Context.Attempts, err = e.Attempts(ctx, c, id)
	if drover.CodeOf(err) == drover.CodeNotFound { // a map that has expanded since
		err = nil
	}
	if err != nil {
		return drover.Letter{}, err
	}
	out.Context.Attempts = out.Context.Attempts[max(0, len(out.Context.Attempts)-maxLetterTries):]
	return out, nil
}

// failureContext reads what surrounds a dead letter, and completes its error.
func (e *Engine) failureContext(ctx context.Context, tx store.Tx, row store.TaskRow, letters []store.LetterRow, l *store.LetterRow, shown *drover.Letter) (*drover.FailureContext, error) {
	var finals []store.FinalRow
	var edits []int32
	var lines []store.LogRow
	before := drover.ID(store.LastID)
	if l != &letters[len(letters)-1] { // lines of later generations are not its own
		before = drover.MakeID(l.At.Time().UnixMilli()+1, [10]byte{})
	}
	if err := tx.Pipe(ctx, store.FinalsOfTask(row.ID, maxLineage, &finals), store.InputGenerations(row.ID, maxLineage, &edits), store.LastLogs(row.ID, before, maxLetterLogs, &lines)); err != nil {
		return nil, err
	}
	slices.Reverse(finals)
	slices.Reverse(edits)
	slices.Reverse(lines)
	f := &drover.FailureContext{InputGeneration: 1, Lineage: []drover.Generation{}}
	for _, g := range edits {
		if g <= l.Generation {
			f.InputGeneration = int(g)
		}
	}
	for _, x := range lines {
		f.Logs = append(f.Logs, lineOf(x))
	}
	of := make(map[int32]*store.LetterRow, len(letters))
	for i := range letters {
		of[letters[i].Generation] = &letters[i]
	}
	add := func(g drover.Generation, n int32) {
		g.Generation, g.NewInput = int(n), slices.Contains(edits, n)
		if d := of[n]; d != nil && d.State == store.LetterReplayed {
			g.ReplayedAt, g.ReplayedBy, g.Reason, g.OperationID = d.StateAt.Time(), d.Actor, d.Reason, drover.OperationID(d.Operation)
		}
		f.Lineage = append(f.Lineage, g)
	}
	for _, x := range finals {
		add(drover.Generation{Status: x.Task.Status, FinishedAt: x.At.Time()}, x.Task.Generation)
		if x.Task.Generation == l.Generation {
			f.Waits = x.Task.Waits.Map()
			if whole := decodeFailure(x.Error); whole != nil {
				shown.Error = whole
			}
		}
	}
	now, err := states(ctx, tx, []store.TaskRow{row})
	if err != nil {
		return nil, err
	}
	if live := now[0].live; live != nil {
		add(drover.Generation{Status: live.Status}, live.Generation)
	}
	var plan *compiled
	if row.Pipeline != 0 {
		if plan, err = e.plan(ctx, tx, row.Pipeline); err != nil {
			return nil, err
		}
		if f.Parents, err = e.parentsOf(ctx, tx, row, plan); err != nil {
			return nil, err
		}
	}
	if row.Index == dag.Unexpanded {
		return f, nil
	}
	x := store.Claimed{Task: lifecycle.Task{ID: row.ID, Job: row.Job, Node: row.Node, Index: row.Index, Generation: l.Generation}, Pipeline: row.Pipeline}
	// It may have been cut off before its parents ended, or its expressions find nothing.
	in, _, err := e.inputsOf(ctx, tx, []store.Claimed{x})
	f.Input = in[row.ID]
	return f, err
}

// parentsOf names the tasks whose outputs a task's input is made of.
func (e *Engine) parentsOf(ctx context.Context, tx store.Tx, row store.TaskRow, plan *compiled) ([]drover.TaskRef, error) {
	refs := slices.Concat(plan.InputRefs(row.Node), plan.ForEachRefs(row.Node))
	slices.SortStableFunc(refs, func(a, b dag.Ref) int { return cmp.Compare(a.Node, b.Node) })
	var rows []store.TaskRow
	for i, r := range refs {
		if i > 0 && refs[i-1].Node == r.Node {
			continue
		}
		reach := store.Reach{Job: row.Job, After: store.Place{Node: r.Node, Index: dag.Every}, Before: store.Place{Node: r.Node + 1, Index: dag.Every}, N: maxParents}
		if r.Same {
			reach.After.Index, reach.Before = row.Index-1, store.Place{Node: r.Node, Index: row.Index + 1}
		}
		if err := tx.Pipe(ctx, store.JobTaskRows(reach, &rows)); err != nil {
			return nil, err
		}
	}
	list, err := states(ctx, tx, rows)
	if err != nil {
		return nil, err
	}
	var out []drover.TaskRef
	for _, s := range list {
		if s.hidden() {
			continue
		}
		t := drover.TaskRef{TaskID: s.ID, Name: plan.Nodes[s.Node].Name, Index: int(s.Index), Status: s.status()}
		if s.live != nil {
			t.Generation = int(s.live.Generation)
		} else {
			t.Generation = int(s.final.Task.Generation)
		}
		out = append(out, t)
	}
	return out, nil
}

// filing is how far the look for dead letters that are not filed right is. It is
// this process's own; every server looks at all of them.
type filing struct {
	mu     sync.Mutex
	rest   lifecycle.Instant // nothing before it
	moving bool              // the ends are looked through; now the open ones
	found  int               // in this look
	over   bool              // nobody is there any more who would make one
	ends   store.BadEnd
	open   store.LetterKey
}

const (
	// fileEvery is the pause between two looks at all dead letters.
	fileEvery = 10 * time.Minute
	// filesItself is the schema version from which servers file their dead letters
	// in the transaction that makes them.
	filesItself = 2
)

// FileOnce files dead letters that a server of an older schema made or replayed,
// and forgets batch operations that ended long ago. It returns how many it
// looked at; 0 is the end of a look at all of them. Where no such server can run
// any more, the first look that finds nothing is the last.
func (e *Engine) FileOnce(ctx context.Context) (int, error) {
	f := &e.filing
	f.mu.Lock()
	defer f.mu.Unlock()
	if e.now() < f.rest {
		return 0, nil
	}
	if f.over {
		f.rest = e.now().Add(fileEvery)
		return 0, e.forgetBatches(ctx)
	}
	next := filing{moving: f.moving, ends: f.ends, open: f.open}
	n := 0
	err := e.db.Write(ctx, func(tx store.Tx) (err error) {
		next.ends, next.open, next.found = f.ends, f.open, f.found
		if !f.moving {
			n, err = e.fileEnds(ctx, tx, &next)
		} else {
			n, err = e.fileReplays(ctx, tx, &next)
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("file dead letters: %w", err)
	}
	f.ends, f.open, f.found = next.ends, next.open, next.found
	if n == takeAtOnce {
		return n, nil
	}
	if f.moving = !f.moving; f.moving {
		f.open = store.LetterKey{}
		return n + 1, nil
	}
	if f.found == 0 {
		oldest, err := e.db.Oldest(ctx)
		if err != nil {
			return 0, fmt.Errorf("file dead letters: %w", err)
		}
		f.over = oldest >= filesItself
	}
	f.ends, f.rest, f.found = store.BadEnd{}, e.now().Add(fileEvery), 0
	return 0, e.forgetBatches(ctx)
}

// fileEnds files the next ends that have no dead letter.
func (e *Engine) fileEnds(ctx context.Context, tx store.Tx, f *filing) (int, error) {
	var ends []store.BadEnd
	if err := tx.Pipe(ctx, store.BadEnds(f.ends, takeAtOnce, &ends)); err != nil || len(ends) == 0 {
		return 0, err
	}
	// What comes next is told by the task: of the last one there may be more.
	last := ends[len(ends)-1]
	if i := slices.IndexFunc(ends, func(b store.BadEnd) bool {
		return b.Task.ID == last.Task.ID && b.Tenant == last.Tenant && b.Task.Status == last.Task.Status
	}); i > 0 && len(ends) == takeAtOnce {
		last = ends[i-1]
	}
	f.ends = last
	var ids []drover.TaskID
	for _, b := range ends {
		if !b.Filed {
			ids = append(ids, b.Task.ID)
		}
	}
	if len(ids) == 0 {
		return len(ends), nil
	}
	f.found += len(ids)
	var tasks []store.TaskRow
	if err := tx.Pipe(ctx, store.ReadTasks(ids, &tasks)); err != nil {
		return 0, err
	}
	of := make(map[drover.TaskID]store.TaskRow, len(tasks))
	for _, t := range tasks {
		of[t.ID] = t
	}
	var letters []store.LetterRow
	for _, b := range ends {
		row, ok := of[b.Task.ID]
		if b.Filed || !ok {
			continue
		}
		t, pipeline, node := b.Task, "", row.Kind
		t.Index, t.Queue = row.Index, row.Queue
		if row.Pipeline != 0 {
			p, err := e.plan(ctx, tx, row.Pipeline)
			if err != nil {
				return 0, err
			}
			pipeline, node = p.Name, p.Nodes[row.Node].Name
		}
		letters = append(letters, letterOf(b.Tenant, t, b.At, pipeline, node, row.Kind, decodeFailure(b.Error)))
	}
	return len(ends), tx.Pipe(ctx, store.InsertLetters(letters))
}

// fileReplays marks those of the next open dead letters whose task has gone on.
func (e *Engine) fileReplays(ctx context.Context, tx store.Tx, f *filing) (int, error) {
	var keys []store.LetterKey
	if err := tx.Pipe(ctx, store.OpenLetters(f.open, takeAtOnce, &keys)); err != nil || len(keys) == 0 {
		return 0, err
	}
	f.open = keys[len(keys)-1]
	ids := make([]drover.TaskID, len(keys))
	for i, k := range keys {
		ids[i] = k.Task
	}
	var rows []store.TaskRow
	if err := tx.Pipe(ctx, store.ReadTasks(slices.Compact(ids), &rows)); err != nil {
		return 0, err
	}
	list, err := states(ctx, tx, rows)
	if err != nil {
		return 0, err
	}
	last := make(map[drover.TaskID]int32, len(list)) // the generation it ended in; another is live when it is missing
	for _, s := range list {
		if s.live == nil && s.final != nil {
			last[s.ID] = s.final.Task.Generation
		}
	}
	var gone []store.LetterKey
	for _, k := range keys {
		if last[k.Task] != k.Generation {
			gone = append(gone, k)
		}
	}
	letters := map[store.LetterKey]store.LetterRow{}
	if err := tx.Pipe(ctx, store.LockLetters(gone, letters)); err != nil {
		return 0, err
	}
	gone = slices.DeleteFunc(gone, func(k store.LetterKey) bool { return letters[k].State == store.LetterReplayed })
	f.found += len(gone)
	return len(keys), tx.Pipe(ctx, store.MoveLetters(store.LetterMove{To: store.LetterReplayed, At: e.now(), Reason: "found replayed"}, gone))
}
