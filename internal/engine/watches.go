package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// Bounds of watches.
const (
	// MaxCheckpoint bounds what a heartbeat keeps for the next attempt, in bytes.
	MaxCheckpoint = 64 << 10
	// beatEvery is how often an attempt's heartbeat is stored at most.
	beatEvery = 100 * time.Millisecond
	// lookEvery is how often a watch is looked at in any case: one whose task has ended goes.
	lookEvery = 10 * time.Minute
	// lookSoon is when a watch is looked at again whose task was on the move.
	lookSoon    = time.Second
	watchAtOnce = 200
)

// watchOf is the beginning of a watch over t.
func watchOf(t *lifecycle.Task) store.Watch {
	return store.Watch{Task: t.ID, Job: t.Job, Node: t.Node, Index: t.Index, Generation: t.Generation}
}

// nextLook is when a watch must be looked at after now.
func nextLook(closes, beatBy, now lifecycle.Instant) lifecycle.Instant {
	at := now.Add(lookEvery)
	for _, t := range []lifecycle.Instant{closes, beatBy} {
		if t > 0 {
			at = min(at, max(t, now.Add(lookSoon)))
		}
	}
	return at
}

// watchClaims returns the terms of claimed tasks, what is known of those that
// have been watched before, and begins the heartbeats of those that must beat.
func (e *Engine) watchClaims(ctx context.Context, tx store.Tx, got []store.Claimed) ([]terms, map[drover.TaskID]store.Watch, error) {
	ons := make([]terms, len(got))
	var known []drover.TaskID
	var beats []store.Watch
	for i := range got {
		x := &got[i]
		if x.Pipeline == 0 {
			ons[i] = termsOf(x.Policy)
		} else {
			plan, err := e.plan(ctx, tx, x.Pipeline)
			if err != nil {
				return nil, nil, err
			}
			ons[i] = plan.terms(x.Node)
		}
		if on := &ons[i]; on.beats > 0 {
			w := watchOf(&x.Task)
			w.LeaseVersion, w.BeatBy = x.LeaseVersion, x.ClaimedAt.Add(on.beats)
			w.LookAt = nextLook(0, w.BeatBy, x.ClaimedAt)
			beats = append(beats, w)
		}
		if ons[i].closes > 0 || x.LeaseVersion > 1 { // a first attempt finds no checkpoint
			known = append(known, x.ID)
		}
	}
	watches := map[drover.TaskID]store.Watch{}
	if len(known)+len(beats) == 0 {
		return ons, watches, nil
	}
	slices.SortFunc(beats, func(a, b store.Watch) int { return compareIDs(a.Task, b.Task) })
	return ons, watches, tx.Pipe(ctx, store.ReadCheckpoints(known, watches), store.StartBeats(beats))
}

// readCloses reads when the tasks of reports run out of time, where their terms
// bound that and the report does not end them by itself.
func readCloses(ctx context.Context, tx store.Tx, reports []*report, ons []terms) error {
	var ids []drover.TaskID
	for i, r := range reports {
		if ons[i].closes > 0 && r.Status != drover.OutcomeSucceeded && r.closes == 0 {
			ids = append(ids, r.task.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	watches := map[drover.TaskID]store.Watch{}
	if err := tx.Pipe(ctx, store.ReadWatches(ids, watches)); err != nil {
		return err
	}
	for _, r := range reports {
		if w := watches[r.task.ID]; w.Generation == r.task.Generation {
			r.closes = w.ClosesAt
		}
	}
	return nil
}

// outOfTime is why a task ends whose schedule_to_close has passed. Its cause is
// the failure at hand or, where that tells of time alone, the last of a handler
// that is stored.
func (e *Engine) outOfTime(ctx context.Context, tx store.Tx, t *lifecycle.Task, on terms, cause *drover.Failure) (*drover.Failure, error) {
	if cause == nil || slices.Contains([]drover.ErrorClass{drover.ClassSnoozed, drover.ClassLeaseLost, drover.ClassTimeout}, cause.Class) {
		var list [][]byte
		if err := tx.Pipe(ctx, store.LastFailures(t.ID, t.Generation, 10, &list)); err != nil {
			return nil, err
		}
		var last *drover.Failure
		for _, b := range list {
			f := decodeFailure(b)
			if last == nil || last.Class == drover.ClassTimeout && f.Class != drover.ClassTimeout {
				last = f
			}
		}
		if last != nil && (cause == nil || last.Class != drover.ClassTimeout) {
			cause = last
		}
	}
	f := &drover.Failure{Class: drover.ClassTimeout, Type: typeScheduleToClose, Cause: cause,
		Message: fmt.Sprintf("not done within its schedule_to_close of %s, in %s", drover.Duration(on.closes), attempts(int(t.Attempt)))}
	if cause != nil {
		f.Message += "; the last failure: " + cause.Message
	}
	return f, nil
}

// times says how often something happened, where once goes without saying.
func times(n int) string {
	if n == 1 {
		return ""
	}
	return fmt.Sprintf(" %d times", n)
}

func attempts(n int) string {
	if n == 1 {
		return "1 attempt"
	}
	return fmt.Sprintf("%d attempts", n)
}

// WatchOnce ends tasks whose schedule_to_close has passed, wherever they are, and
// attempts that have missed a heartbeat. It returns how many it ended.
func (e *Engine) WatchOnce(ctx context.Context) (int, error) {
	var due []store.Watch
	if err := e.db.Read(ctx, func(tx store.Tx) error { due = nil; return tx.Pipe(ctx, store.DueWatches(e.now(), watchAtOnce, &due)) }); err != nil {
		return 0, fmt.Errorf("watch: %w", err)
	}
	if len(due) == 0 {
		return 0, nil
	}
	var x *changes
	running := 0
	err := e.db.Write(ctx, func(tx store.Tx) (err error) {
		x = e.changes(e.now())
		running, err = e.watchRunning(ctx, tx, x, due)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("watch: %w", err)
	}
	e.after(ctx, x)
	waiting := 0
	err = e.db.Write(ctx, func(tx store.Tx) (err error) {
		x = e.changes(e.now())
		waiting, err = e.watchWaiting(ctx, tx, x, due)
		return err
	})
	if err != nil {
		return running, fmt.Errorf("watch: %w", err)
	}
	e.after(ctx, x)
	return running + waiting, nil
}

// watchRunning ends the attempts of watches that are due.
func (e *Engine) watchRunning(ctx context.Context, tx store.Tx, x *changes, due []store.Watch) (int, error) {
	var over []store.Watch
	at := map[drover.TaskID]store.Watch{}
	for _, w := range due {
		at[w.Task] = w
		switch {
		case w.ClosesAt > 0 && w.ClosesAt <= x.now:
			w.LeaseVersion = 0 // whoever has it
			over = append(over, w)
		case w.BeatBy > 0 && w.BeatBy <= x.now:
			over = append(over, w)
		}
	}
	slices.SortFunc(over, func(a, b store.Watch) int { return compareIDs(a.Task, b.Task) })
	// A heartbeat may have come since the watches were read.
	fresh := map[drover.TaskID]store.Watch{}
	if err := tx.Pipe(ctx, store.ReadWatches(watched(over), fresh)); err != nil {
		return 0, err
	}
	over = slices.DeleteFunc(over, func(w store.Watch) bool {
		return w.LeaseVersion > 0 && (fresh[w.Task].BeatBy > x.now || fresh[w.Task].LeaseVersion != w.LeaseVersion)
	})
	var taken []lifecycle.Task
	if err := tx.Pipe(ctx, store.TakeWatchedRunning(over, &taken)); err != nil || len(taken) == 0 {
		return 0, err
	}
	var reports []*report
	for _, t := range taken {
		w := at[t.ID]
		r := &report{task: t, Outcome: drover.Outcome{TaskID: t.ID, LeaseVersion: t.LeaseVersion, Status: outcomeCut}}
		if r.closed = w.ClosesAt > 0 && w.ClosesAt <= x.now; !r.closed {
			last := "it has sent none"
			if w.BeatAt >= t.ClaimedAt {
				last = fmt.Sprintf("the last came %s ago", drover.Duration(x.now.Sub(w.BeatAt)))
			}
			r.Error = &drover.Failure{Class: drover.ClassTimeout, Type: typeHeartbeat, Message: "the attempt missed its heartbeat: " + last}
		}
		reports = append(reports, r)
	}
	sortReports(reports)
	if err := e.decide(ctx, tx, x, reports); err != nil {
		return 0, err
	}
	return len(reports), nil
}

// watched are the tasks of watches.
func watched(list []store.Watch) []drover.TaskID {
	ids := make([]drover.TaskID, len(list))
	for i, w := range list {
		ids[i] = w.Task
	}
	return ids
}

// watchWaiting ends tasks that no worker has and whose time is up, and moves on
// the watches that are due.
func (e *Engine) watchWaiting(ctx context.Context, tx store.Tx, x *changes, due []store.Watch) (int, error) {
	var over []store.Watch
	for _, w := range due {
		if w.ClosesAt > 0 && w.ClosesAt <= x.now {
			over = append(over, w)
		}
	}
	slices.SortFunc(over, func(a, b store.Watch) int {
		return cmp.Or(compareIDs(a.Job, b.Job), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Index, b.Index))
	})
	below, err := e.below(ctx, tx, over)
	if err != nil {
		return 0, err
	}
	var taken []lifecycle.Task
	if err := tx.Pipe(ctx, store.TakeWatchedWaiting(over, &taken)...); err != nil {
		return 0, err
	}
	if err := readLineWaits(ctx, tx, pointers(taken)); err != nil {
		return 0, err
	}
	if err := e.closeTasks(ctx, tx, x, taken, below); err != nil {
		return 0, err
	}
	gone := map[drover.TaskID]bool{}
	for _, t := range taken {
		gone[t.ID] = true
	}
	rest := slices.DeleteFunc(slices.Clone(due), func(w store.Watch) bool { return gone[w.Task] })
	ended := map[drover.TaskID]bool{}
	if err := tx.Pipe(ctx, store.Ended(rest, ended)); err != nil {
		return 0, err
	}
	var list []store.Stmt
	for _, w := range rest {
		is, known := ended[w.Task]
		switch {
		case is || !known:
			list = append(list, store.DropWatch(w))
		case w.BeatBy > 0 && w.BeatBy <= x.now: // ended, or it is looked at again with its heartbeat
			list = append(list, store.LookAgain(w, nextLook(w.ClosesAt, 0, x.now), 0))
		default:
			list = append(list, store.LookAgain(w, nextLook(w.ClosesAt, w.BeatBy, x.now), w.BeatBy))
		}
	}
	if len(list) == 0 {
		return len(taken), nil
	}
	return len(taken), tx.Pipe(ctx, list...)
}

// advance is the graph of a job as it was when its rows were locked.
type advance struct {
	*graph
	version int32
}

// below locks what waits below tasks that may end, of jobs that go on after that:
// before the tasks themselves, as the order of locks has it.
func (e *Engine) below(ctx context.Context, tx store.Tx, over []store.Watch) (map[drover.JobID]advance, error) {
	var jobs []drover.JobID
	for _, w := range over {
		jobs = append(jobs, w.Job)
	}
	jobs = uniqueSorted(jobs)
	heads, versions := map[drover.JobID]store.JobHead{}, map[drover.JobID]int32{}
	if err := tx.Pipe(ctx, store.ReadJobHeads(jobs, heads), store.ReadGraphs(jobs, versions, heads)); err != nil {
		return nil, err
	}
	out := map[drover.JobID]advance{}
	var list []*graph
	for _, w := range over {
		h := heads[w.Job]
		if h.Pipeline == 0 {
			continue
		}
		plan, err := e.plan(ctx, tx, h.Pipeline)
		if err != nil {
			return nil, err
		}
		if plan.Stops(dag.Key{Node: w.Node, Index: w.Index}) {
			continue
		}
		a, ok := out[w.Job]
		if !ok {
			a = advance{newGraph(plan, w.Job, 0), versions[w.Job]}
			a.trace = h.Trace
			out[w.Job] = a
			list = append(list, a.graph)
		}
		a.reach.Of(dag.Key{Node: w.Node, Index: w.Index}, dag.Failed, func(k dag.Key) { a.want = append(a.want, k) })
	}
	return out, load(ctx, tx, list, false, around{})
}

// closeTasks ends tasks that were taken from where they waited: their time is up.
// below is what waits below them.
func (e *Engine) closeTasks(ctx context.Context, tx store.Tx, x *changes, taken []lifecycle.Task, below map[drover.JobID]advance) error {
	if len(taken) == 0 {
		return nil
	}
	var all, own []drover.JobID
	var ids []drover.TaskID
	for _, t := range taken {
		all = append(all, t.Job)
		ids = append(ids, t.ID)
		if !t.Solo() {
			own = append(own, t.Job)
		}
	}
	heads, policies, lanes := map[drover.JobID]store.JobHead{}, map[drover.TaskID][]byte{}, map[drover.TaskID]int32{}
	if err := tx.Pipe(ctx, store.ReadJobHeads(uniqueSorted(all), heads), store.ReadPolicies(ids, policies), store.TaskLanes(taken, lanes)); err != nil {
		return err
	}
	x.belongs(heads)
	var list []*graph
	for _, id := range uniqueSorted(own) {
		if a, ok := below[id]; ok {
			list = append(list, a.graph)
		}
	}
	for _, t := range taken {
		if a, ok := below[t.Job]; ok && !a.plan.Stops(keyOf(&t)) {
			a.ended(&t, dag.Failed, nil)
		}
	}
	var live []store.JobLive
	with := around{after: []store.Stmt{store.LockJobLive(uniqueSorted(own), &live), readMaps(list)}, then: func() error {
		for i := range live {
			if a, ok := below[live[i].Job]; ok {
				a.total = live[i].Total
			}
		}
		return nil
	}}
	if err := resolve(ctx, tx, e, x.now, list, false, with); err != nil {
		return err
	}
	for i := range live {
		x.loaded[live[i].Job] = &live[i]
	}
	for _, g := range list {
		if j := x.loaded[g.job]; j == nil || j.Graph != below[g.job].version {
			return store.ErrRetry // its row was being made or removed, or the graph grew or was held meanwhile
		}
	}
	for _, t := range taken {
		var j *store.JobLive
		if !t.Solo() {
			if j = x.loaded[t.Job]; j == nil {
				return store.ErrRetry // its row was being made or removed
			}
		}
		on, how := termsOf(policies[t.ID]), ending{}
		if p := heads[t.Job].Pipeline; p != 0 {
			plan, err := e.plan(ctx, tx, p)
			if err != nil {
				return err
			}
			on = plan.terms(t.Node)
			how.at(plan, t.Node, t.Index, "")
		} else {
			lane, err := e.laneOf(ctx, tx, lanes[t.ID])
			if err != nil {
				return err
			}
			how.at(nil, 0, 0, lane.Kind)
		}
		var after lifecycle.Task
		if j != nil && j.Cancelling != 0 {
			after = ended(&how, t, j.Cancelling, false, x.now)
		} else {
			after = lifecycle.Closed(t, x.now)
			var err error
			if how.failure, err = e.outOfTime(ctx, tx, &t, on, nil); err != nil {
				return err
			}
		}
		x.end(j, heads[t.Job].Tenant, after, how)
		x.unwatch = append(x.unwatch, t.ID)
	}
	if err := x.collect(ctx, tx, list); err != nil {
		return err
	}
	return x.save(ctx, tx)
}

// Heartbeat notes that an attempt lives, and keeps details, any JSON, for the
// attempt after it; none leaves what was kept before. A heartbeat that comes
// sooner than a tenth of a second after the last is refused as overloaded.
func (e *Engine) Heartbeat(ctx context.Context, c Caller, h drover.Held, details json.RawMessage) error {
	if len(details) > MaxCheckpoint {
		return drover.Errorf(drover.CodePayloadTooLarge, "the checkpoint has %d bytes; at most %d: save it as an artifact and keep its URI", len(details), MaxCheckpoint)
	}
	if len(details) > 0 && !json.Valid(details) {
		return &drover.Error{Code: drover.CodeValidation, Detail: "the heartbeat is not valid", Fields: []drover.FieldError{{Field: "details", Message: "is not valid JSON"}}}
	}
	if len(details) == 0 {
		details = nil
	}
	err := e.db.Write(ctx, func(tx store.Tx) error {
		if _, err := holder(ctx, tx, c, h); err != nil {
			return err
		}
		now := e.now()
		on, err := e.termsOfTask(ctx, tx, h.TaskID)
		if err != nil {
			return err
		}
		w := store.Watch{Task: h.TaskID, LeaseVersion: h.LeaseVersion, BeatAt: now, Checkpoint: details}
		if on.beats > 0 {
			w.BeatBy = now.Add(on.beats)
		}
		w.LookAt = nextLook(0, w.BeatBy, now)
		var stored int64
		if err := tx.Pipe(ctx, store.Beat(w, now.Add(-beatEvery), &stored)); err != nil {
			return err
		}
		if stored > 0 {
			return nil
		}
		if _, err := holder(ctx, tx, c, h); err != nil {
			return err
		}
		early := drover.Errorf(drover.CodeOverloaded, "the last heartbeat of this attempt is less than %s old", drover.Duration(beatEvery))
		early.RetryAfter = beatEvery
		return early
	})
	if err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	return nil
}

// termsOfTask reads a task's terms.
func (e *Engine) termsOfTask(ctx context.Context, tx store.Tx, id drover.TaskID) (terms, error) {
	var rows []store.TaskRow
	if err := tx.Pipe(ctx, store.ReadTasks([]drover.TaskID{id}, &rows)); err != nil || len(rows) == 0 {
		return terms{}, err
	}
	if rows[0].Pipeline == 0 {
		return termsOf(rows[0].Policy), nil
	}
	plan, err := e.plan(ctx, tx, rows[0].Pipeline)
	if err != nil {
		return terms{}, err
	}
	return plan.terms(rows[0].Node), nil
}
