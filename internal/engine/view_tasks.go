package engine

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/explain"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

const (
	// maxAttemptsShown bounds the attempts of a task that are shown: the last ones.
	maxAttemptsShown = 1000
	// leastStep is how many rows are read at least where some may not count.
	leastStep = 100
)

// taskState is a task with how it stands: live, or as its last generation ended.
type taskState struct {
	store.TaskRow
	live  *lifecycle.Task
	final *store.FinalRow
}

// hidden reports whether the task is a map's placeholder that its elements replaced.
func (s *taskState) hidden() bool { return s.live == nil && s.final == nil }

func (s *taskState) status() drover.Status {
	switch {
	case s.live != nil:
		return s.live.Status
	case s.final != nil:
		return s.final.Task.Status
	}
	return 0
}

// states reads how tasks stand, in their order, in a constant number of statements.
func states(ctx context.Context, tx store.Tx, rows []store.TaskRow) ([]taskState, error) {
	ids := make([]drover.TaskID, len(rows))
	at := make(map[drover.TaskID]*taskState, len(rows))
	out := make([]taskState, len(rows))
	for i, r := range rows {
		ids[i] = r.ID
		out[i].TaskRow = r
		at[r.ID] = &out[i]
	}
	finals := make(map[drover.TaskID]store.FinalRow, len(rows))
	if err := tx.Pipe(ctx, store.LastFinals(ids, finals)); err != nil {
		return nil, err
	}
	sought := make([]store.Sought, len(rows))
	for i, r := range rows {
		s := store.Sought{Job: r.Job, Place: store.Place{Task: r.ID, Node: r.Node, Index: r.Index}, Generation: 1}
		if f, ok := finals[r.ID]; ok {
			at[r.ID].final = &f
			s.Generation = f.Task.Generation + 1 // only a replay can be live
		}
		sought[i] = s
	}
	slices.SortFunc(sought, func(a, b store.Sought) int { return compareIDs(a.Job, b.Job) })
	var live []lifecycle.Task
	if err := tx.Pipe(ctx, store.LiveRows(sought, &live)...); err != nil {
		return nil, err
	}
	if err := readLineWaits(ctx, tx, pointers(live)); err != nil {
		return nil, err
	}
	for i := range live {
		if s := at[live[i].ID]; s != nil {
			s.live = &live[i]
		}
	}
	return out, nil
}

// showTasks makes the views of tasks, without inputs and outputs.
func (e *Engine) showTasks(ctx context.Context, tx store.Tx, list []taskState) ([]drover.Task, error) {
	var sessions []int64
	var leases []store.Lease
	var running []lifecycle.Task
	var live []drover.TaskID
	var tried []lifecycle.Task
	for i := range list {
		if l := list[i].live; l != nil {
			live = append(live, list[i].ID)
			if l.Attempt > 0 {
				tried = append(tried, *l)
			}
		}
		switch s := &list[i]; {
		case s.live != nil && s.live.Status == drover.Running:
			sessions = append(sessions, s.live.Session)
			running = append(running, *s.live)
			leases = append(leases, store.Lease{Task: s.ID, Version: s.live.LeaseVersion, Session: s.live.Session})
		case s.live == nil && s.final != nil && s.final.Task.Session != 0:
			sessions = append(sessions, s.final.Task.Session)
		}
	}
	slices.Sort(sessions)
	sessions = slices.Compact(sessions)
	workers := map[int64]store.WorkerView{}
	progress := map[drover.TaskID]drover.Progress{}
	stops := map[drover.TaskID]store.Stop{}
	failures := map[drover.TaskID][]byte{}
	watches := map[drover.TaskID]store.Watch{}
	if err := tx.Pipe(ctx, store.Workers(sessions, workers), store.ReadProgress(leases, progress), store.ReadStops(running, stops), store.ReadWatches(live, watches), store.NewestFailures(tried, failures)); err != nil {
		return nil, err
	}
	reuses, err := reusesOf(ctx, tx, list)
	if err != nil {
		return nil, err
	}
	now := e.now()
	circuits, err := e.circuitsOf(ctx, tx, list)
	if err != nil {
		return nil, err
	}
	out := make([]drover.Task, len(list))
	for i := range list {
		s := &list[i]
		t := &out[i]
		*t = drover.Task{ID: s.ID, JobID: s.Job, Name: s.Kind, Index: int(s.Index), Kind: s.Kind, Class: s.Class, CreatedAt: s.CreatedAt.Time()}
		var err error
		if t.Queue, err = e.queueNameOf(ctx, tx, s.Queue); err != nil {
			return nil, err
		}
		if s.Pipeline == 0 {
			t.MaxAttempts = termsOf(s.Policy).retry.MaxAttempts
		} else {
			p, err := e.plan(ctx, tx, s.Pipeline)
			if err != nil {
				return nil, err
			}
			n := &p.Nodes[s.Node]
			t.Name, t.Mapped = n.Name, n.Mapped
			if n.Sub == "" {
				t.MaxAttempts = n.Retry.MaxAttempts
			}
			if s.live != nil && s.live.Status == drover.Waiting && n.Backup >= 0 {
				b := explain.StandsBy("its attempts have failed, and its backup " + p.Nodes[n.Backup].Name + " may give its result yet")
				b.Since = s.live.Since.Time()
				t.Blockers = append(t.Blockers, b)
			}
			if s.live != nil && s.live.InLine() {
				t.Blockers = append(t.Blockers, explain.MapParallel(n.Name, int(n.MaxParallel), s.live.Since.Time()))
			}
		}
		lane, err := e.laneOf(ctx, tx, s.Lane)
		if err != nil {
			return nil, err
		}
		if t.Circuit = lane.Circuit; lane.Circuit != "" && s.status() == drover.Queued {
			t.Blockers = circuitBlockers(circuits[store.CircuitKey{Tenant: lane.Tenant, Name: lane.Circuit}], now)
		}
		if s.live != nil {
			showLive(t, s.live, now)
			t.LastError = decodeFailure(failures[s.ID])
			if w, ok := workers[s.live.Session]; ok && t.Status == drover.Running {
				t.Worker, t.LeaseExpiresAt = w.Name, w.ExpiresAt.Time()
			}
			if p, ok := progress[s.ID]; ok {
				t.Progress = &p
			}
			if c, ok := stops[s.ID]; ok {
				t.Cancellation = &drover.Cancellation{RequestedAt: c.Requested.Time(), AcknowledgedAt: c.Acknowledged.Time()}
			}
			if w := watches[s.ID]; w.Generation == s.live.Generation {
				t.ClosesAt, t.HeartbeatAt = w.ClosesAt.Time(), w.BeatAt.Time()
			}
		} else if s.final != nil {
			showFinal(t, s.final)
			if r, ok := reuses[store.Generation{Task: s.ID, N: s.final.Task.Generation}]; ok {
				t.Reused = shownReuse(r)
			}
			t.Worker = workers[s.final.Task.Session].Name
		}
	}
	if err := showChildren(ctx, tx, list, out); err != nil {
		return nil, err
	}
	return out, e.blockers(ctx, tx, list, out)
}

func showLive(t *drover.Task, l *lifecycle.Task, now lifecycle.Instant) {
	t.Status, t.Class = l.Status, l.Class
	t.Generation, t.Attempt, t.LeaseVersion, t.Unmet = int(l.Generation), int(l.Attempt), l.LeaseVersion, int(l.Unmet)
	t.ReadyAt, t.QueuedAt, t.ClaimedAt = l.ReadyAt.Time(), l.QueuedAt.Time(), l.ClaimedAt.Time()
	if l.Status == drover.Pending || l.Status == drover.RetryWait {
		t.DueAt = l.DueAt.Time() // elsewhere it is the order within the queue
	}
	w := l.TotalAt(now)
	t.Waits = w.Map()
}

func showFinal(t *drover.Task, f *store.FinalRow) {
	l := &f.Task
	t.Status = l.Status
	t.Generation, t.Attempt, t.LeaseVersion = int(l.Generation), int(l.Attempt), l.LeaseVersion
	t.ReadyAt, t.QueuedAt, t.ClaimedAt, t.FinishedAt = l.ReadyAt.Time(), l.QueuedAt.Time(), l.ClaimedAt.Time(), f.At.Time()
	t.Waits = l.Waits.Map()
	t.Error = decodeFailure(f.Error)
	t.Gone, t.Marked, t.BackedUp = l.How == lifecycle.HowGone, l.How == lifecycle.HowMarked, l.How == lifecycle.HowBacked
}

// Tasks returns tasks of a job in the order of its graph. Inputs and outputs are
// left to Task.
func (e *Engine) Tasks(ctx context.Context, c Caller, q TaskQuery) (out []drover.Task, err error) {
	err = e.db.Read(ctx, func(tx store.Tx) error {
		list, err := e.jobTasks(ctx, tx, c, q)
		if err != nil {
			return err
		}
		out, err = e.showTasks(ctx, tx, list)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list tasks: %w", err)
	}
	return out, nil
}

// head returns what is known of a job of the caller's.
func head(ctx context.Context, tx store.Tx, c Caller, id drover.JobID) (store.JobHead, error) {
	heads := map[drover.JobID]store.JobHead{}
	if err := tx.Pipe(ctx, store.ReadJobHeads([]drover.JobID{id}, heads)); err != nil {
		return store.JobHead{}, err
	}
	h, ok := heads[id]
	if !ok || h.Tenant != c.Tenant {
		return h, notFound("job", id)
	}
	return h, nil
}

// jobTasks reads a page of a job's tasks.
func (e *Engine) jobTasks(ctx context.Context, tx store.Tx, c Caller, q TaskQuery) ([]taskState, error) {
	h, err := head(ctx, tx, c, q.Job)
	if err != nil {
		return nil, err
	}
	reach := store.Reach{Job: q.Job, After: store.Place{Node: 0, Index: dag.Every}, Before: store.Place{Node: math.MaxInt32}}
	if q.Name != "" && h.Pipeline != 0 {
		p, err := e.plan(ctx, tx, h.Pipeline)
		if err != nil {
			return nil, err
		}
		node := slices.IndexFunc(p.Nodes, func(n dag.Node) bool { return n.Name == q.Name })
		if node < 0 {
			return nil, nil
		}
		reach.After.Node, reach.Before = int32(node), store.Place{Node: int32(node) + 1, Index: dag.Every}
	}
	if !q.After.IsZero() {
		var rows []store.TaskRow
		if err := tx.Pipe(ctx, store.ReadTasks([]drover.TaskID{q.After}, &rows)); err != nil {
			return nil, err
		}
		if len(rows) == 0 || rows[0].Job != q.Job {
			return nil, &drover.Error{Code: drover.CodeValidation, Detail: "the list cannot go on there",
				Fields: []drover.FieldError{{Field: "after", Message: fmt.Sprintf("there is no task %s in job %s", q.After, q.Job)}}}
		}
		if p := (store.Place{Node: rows[0].Node, Index: rows[0].Index}); comparePlaces(p, reach.After) > 0 {
			reach.After = p
		}
	}
	want := pageSize(q.Limit)
	var out []taskState
	for {
		reach.N = max(want-len(out), leastStep)
		rows, last, err := pageOf(ctx, tx, &reach, q.Status)
		if err != nil {
			return nil, err
		}
		list, err := states(ctx, tx, rows)
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			if s.hidden() || (len(q.Status) > 0 && !slices.Contains(q.Status, s.status())) || (q.Name != "" && h.Pipeline == 0 && s.Kind != q.Name) {
				continue
			}
			out = append(out, s)
		}
		if last || len(out) >= want {
			return out[:min(len(out), want)], nil
		}
	}
}

func comparePlaces(a, b store.Place) int {
	return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Index, b.Index))
}

// pageOf reads the next tasks in reach and moves its beginning behind them.
func pageOf(ctx context.Context, tx store.Tx, r *store.Reach, statuses []drover.Status) (rows []store.TaskRow, last bool, err error) {
	if len(statuses) == 0 {
		if err := tx.Pipe(ctx, store.JobTaskRows(*r, &rows)); err != nil {
			return nil, false, err
		}
		if n := len(rows); n > 0 {
			r.After = store.Place{Node: rows[n-1].Node, Index: rows[n-1].Index}
		}
		return rows, len(rows) < r.N, nil
	}
	lists, stmts := store.TasksWith(*r, statuses)
	if err := tx.Pipe(ctx, stmts...); err != nil {
		return nil, false, err
	}
	var all []store.Place
	for _, l := range lists {
		all = append(all, *l...)
	}
	// The first N of all are known: what a list that is full holds back comes after its last.
	slices.SortFunc(all, comparePlaces)
	last = len(all) < r.N
	all = slices.Compact(all[:min(len(all), r.N)]) // one that was replayed is in two lists
	if n := len(all); n > 0 {
		r.After = all[n-1]
	}
	ids := make([]drover.TaskID, len(all))
	for i, p := range all {
		ids[i] = p.Task
	}
	if err := tx.Pipe(ctx, store.ReadTasks(ids, &rows)); err != nil {
		return nil, false, err
	}
	slices.SortFunc(rows, func(a, b store.TaskRow) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Index, b.Index))
	})
	return rows, last, nil
}

// ownTask reads the record of a task of the caller's.
func ownTask(ctx context.Context, tx store.Tx, c Caller, id drover.TaskID) (store.TaskRow, error) {
	var rows []store.TaskRow
	if err := tx.Pipe(ctx, store.ReadTasks([]drover.TaskID{id}, &rows)); err != nil {
		return store.TaskRow{}, err
	}
	if len(rows) == 0 || rows[0].Tenant != c.Tenant {
		return store.TaskRow{}, notFound("task", id)
	}
	return rows[0], nil
}

// oneTask reads a task of the caller's, and how it stands.
func oneTask(ctx context.Context, tx store.Tx, c Caller, id drover.TaskID) (taskState, error) {
	row, err := ownTask(ctx, tx, c, id)
	if err != nil {
		return taskState{}, err
	}
	list, err := states(ctx, tx, []store.TaskRow{row})
	if err != nil {
		return taskState{}, err
	}
	if list[0].hidden() {
		return taskState{}, notFound("task", id)
	}
	return list[0], nil
}

// Task returns a task with its input and output. The input of a pipeline's task
// is there once everything it is filled in from is.
func (e *Engine) Task(ctx context.Context, c Caller, id drover.TaskID) (out drover.Task, err error) {
	err = e.db.Read(ctx, func(tx store.Tx) error {
		s, err := oneTask(ctx, tx, c, id)
		if err != nil {
			return err
		}
		list, err := e.showTasks(ctx, tx, []taskState{s})
		if err != nil {
			return err
		}
		out = list[0]
		var input []byte
		if err := tx.Pipe(ctx, store.TaskInput(id, &input)); err != nil {
			return err
		}
		if s.live == nil {
			var output []byte
			if err := tx.Pipe(ctx, store.TaskOutput(id, &output)); err != nil {
				return err
			}
			out.Output = output
		} else if !out.HeartbeatAt.IsZero() {
			watches := map[drover.TaskID]store.Watch{}
			if err := tx.Pipe(ctx, store.ReadCheckpoints([]drover.TaskID{id}, watches)); err != nil {
				return err
			}
			out.Checkpoint = nilIfEmpty(watches[id].Checkpoint)
		}
		return e.fillInput(ctx, tx, &s, input, &out)
	})
	if err != nil {
		return drover.Task{}, fmt.Errorf("read task: %w", err)
	}
	return out, nil
}

func (e *Engine) fillInput(ctx context.Context, tx store.Tx, s *taskState, stored []byte, t *drover.Task) error {
	if s.Index == dag.Unexpanded || t.Unmet > 0 {
		return nil
	}
	x := store.Claimed{Task: lifecycle.Task{ID: s.ID, Job: s.Job, Node: s.Node, Index: s.Index, Generation: int32(t.Generation)}, Pipeline: s.Pipeline}
	scopes, edited := map[drover.JobID]*scope{}, map[drover.TaskID][]byte{}
	if err := e.fill(ctx, tx, []store.Claimed{x}, scopes, edited); err != nil {
		return err
	}
	switch in := edited[s.ID]; {
	case in != nil:
		t.Input = in
	case s.Pipeline == 0:
		t.Input = stored
	default:
		// It may have been cut off before its parents ended, or its expressions find nothing.
		if in, err := scopes[s.Job].render(&x.Task, stored); err == nil {
			t.Input = in
		}
	}
	return nil
}

// Attempts returns the last attempts of a task in all its generations, in order.
func (e *Engine) Attempts(ctx context.Context, c Caller, id drover.TaskID) (out []drover.Attempt, err error) {
	err = e.db.Read(ctx, func(tx store.Tx) error {
		if _, err := oneTask(ctx, tx, c, id); err != nil {
			return err
		}
		var rows []store.AttemptView
		if err := tx.Pipe(ctx, store.Attempts(id, maxAttemptsShown, &rows)...); err != nil {
			return err
		}
		slices.SortFunc(rows, func(a, b store.AttemptView) int { return cmp.Compare(a.LeaseVersion, b.LeaseVersion) })
		rows = rows[max(0, len(rows)-maxAttemptsShown):]
		var sessions []int64
		for _, a := range rows {
			sessions = append(sessions, a.Session)
		}
		slices.Sort(sessions)
		workers := map[int64]store.WorkerView{}
		if err := tx.Pipe(ctx, store.Workers(slices.Compact(sessions), workers)); err != nil {
			return err
		}
		out = make([]drover.Attempt, len(rows))
		for i, a := range rows {
			out[i] = drover.Attempt{TaskID: id, Generation: int(a.Generation), Attempt: int(a.N), LeaseVersion: a.LeaseVersion, Worker: workers[a.Session].Name, Outcome: a.Outcome,
				ReadyAt: a.ReadyAt.Time(), QueuedAt: a.QueuedAt.Time(), ClaimedAt: a.ClaimedAt.Time(), EndedAt: a.EndedAt.Time(), Error: decodeFailure(a.Error)}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list attempts: %w", err)
	}
	return out, nil
}

// Events returns the events of a job after the one numbered after, in order.
func (e *Engine) Events(ctx context.Context, c Caller, id drover.JobID, after int64, limit int) (out []drover.Event, err error) {
	err = e.db.Read(ctx, func(tx store.Tx) error {
		if _, err := head(ctx, tx, c, id); err != nil {
			return err
		}
		var rows []store.EventRow
		if err := tx.Pipe(ctx, store.Events(id, max(after, 0), pageSize(limit), &rows)); err != nil {
			return err
		}
		if err := e.firstSuccesses(ctx, tx, rows); err != nil {
			return err
		}
		out = make([]drover.Event, len(rows))
		for i, r := range rows {
			out[i] = drover.Event{JobID: r.Job, Seq: r.Seq, Type: r.Type, At: r.At.Time(), TaskID: r.Task}
			if len(r.Data) > 0 {
				out[i].Data = r.Data
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	return out, nil
}

// firstSuccesses gives events of first attempts that succeeded what they say, which
// stands in the rows of the tasks' ends: see ending.toldByFinal.
func (e *Engine) firstSuccesses(ctx context.Context, tx store.Tx, rows []store.EventRow) error {
	var ids []drover.TaskID
	for _, r := range rows {
		if r.Type == drover.TaskSucceeded && len(r.Data) == 0 {
			ids = append(ids, r.Task)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	finals := make(map[drover.TaskID]store.FinalRow, len(ids))
	var tasks []store.TaskRow
	if err := tx.Pipe(ctx, store.FirstFinals(ids, finals), store.ReadTasks(ids, &tasks)); err != nil {
		return err
	}
	told := make(map[drover.TaskID][]byte, len(tasks))
	for _, row := range tasks {
		f, ok := finals[row.ID]
		if !ok {
			continue
		}
		var plan *compiled
		if row.Pipeline != 0 {
			var err error
			if plan, err = e.plan(ctx, tx, row.Pipeline); err != nil {
				return err
			}
		}
		t := f.Task
		t.Index = row.Index
		how := ending{was: &t, outcome: drover.OutcomeSucceeded}
		how.at(plan, row.Node, row.Index, row.Kind)
		told[row.ID] = how.data(&t)
	}
	for i := range rows {
		if r := &rows[i]; r.Type == drover.TaskSucceeded && len(r.Data) == 0 {
			r.Data = told[r.Task]
		}
	}
	return nil
}
