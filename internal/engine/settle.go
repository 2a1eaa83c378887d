package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// MaxSettle bounds the outcomes of one settlement.
const MaxSettle = 1000

// outcomeLost is how the reaper reports an attempt whose lease ran out.
const outcomeLost = "lease_lost"

// outcomeForced is an attempt whose worker did not acknowledge a cancel in time.
const outcomeForced = "forced"

// outcomeMarked is an attempt whose task somebody said has ended.
const outcomeMarked = "marked"

// outcomeCut is an attempt that the server ended because its worker did not.
const outcomeCut = "timed_out"

// Types of failures of class timeout that the server ends an attempt or a task with.
const (
	typeStartToClose    = "start_to_close"
	typeScheduleToClose = "schedule_to_close"
	typeHeartbeat       = "heartbeat"
)

// report is one attempt's end on its way to be stored.
type report struct {
	lease store.Lease
	drover.Outcome
	answer *drover.Settled    // where the worker waits for it; nil inside the engine
	task   lifecycle.Task     // the running row, once taken
	closed bool               // its schedule_to_close has passed
	closes lifecycle.Instant  // schedule_to_close, once read; 0 is none
	jitter float64            // of the delay before the next attempt
	stop   store.Stop         // how far the cancel of its job has come
	first  *store.FoundResult // whose result it got, as that was first
	mark   *marking           // somebody says how it has ended
}

// Settle stores a batch of outcomes of many callers in one transaction, each
// fenced by its lease_version, with what follows from them: retries, released
// children, expanded maps, finished jobs. A settlement's acquire is served in
// the same transaction. A repeat of an outcome gets the first answer.
func (e *Engine) Settle(ctx context.Context, batch []Settlement) []SettleResult {
	out := make([]SettleResult, len(batch))
	var live []int
	for i, s := range batch {
		if err := checkSettlement(&s); err != nil {
			out[i].Err = err
			continue
		}
		live = append(live, i)
	}
	var x *changes
	var broken []unfit
	var turns *rotation
	err := e.db.Write(ctx, func(tx store.Tx) error {
		x, broken, turns = e.changes(e.now()), nil, e.lanes.rotation()
		return e.settleBatch(ctx, tx, x, batch, live, turns, out, &broken)
	})
	if err != nil {
		for _, i := range live {
			if out[i].Err == nil {
				out[i] = SettleResult{Err: fmt.Errorf("settle: %w", err)}
			}
		}
		return out
	}
	turns.keep()
	e.after(ctx, x)
	x.done()
	e.giveBack(ctx, broken)
	return out
}

func checkSettlement(s *Settlement) error {
	if len(s.Outcomes) > MaxSettle {
		return &drover.Error{Code: drover.CodeValidation, Detail: "the settlement is not valid",
			Fields: []drover.FieldError{{Field: "outcomes", Message: fmt.Sprintf("at most %d", MaxSettle)}}}
	}
	if s.Acquire != nil {
		return checkAcquire(s.Acquire)
	}
	return nil
}

// settleBatch settles those of the batch that are live. It takes the running
// rows with the trip that reads the sessions; if one of those is refused it
// leaves that one out and begins anew.
func (e *Engine) settleBatch(ctx context.Context, tx store.Tx, x *changes, batch []Settlement, live []int, turns *rotation, out []SettleResult, broken *[]unfit) error {
	var reports []*report
	var asks []*ask
	var by [3][]int64 // sessions by how they are locked
	live = slices.DeleteFunc(slices.Clone(live), func(i int) bool { return out[i].Err != nil })
	outcomes := 0
	for _, i := range live {
		outcomes += len(batch[i].Outcomes)
	}
	rows, taken := x.expectReports(outcomes)
	for _, i := range live {
		s := &batch[i]
		out[i] = SettleResult{Settled: make([]drover.Settled, len(s.Outcomes))}
		// One that acquires is locked as by any claim, so that the reaper waits for
		// it; and before all other rows, as by a renewal, which changes it.
		lock := store.Unlocked
		if s.Acquire != nil {
			lock = e.endowed.lock(int64(s.Session))
		}
		by[lock] = append(by[lock], int64(s.Session))
		var all []report
		all, rows = rows[:len(s.Outcomes)], rows[len(s.Outcomes):]
		for k, o := range s.Outcomes {
			a := &out[i].Settled[k]
			a.TaskID = o.TaskID
			all[k] = report{lease: store.Lease{Task: o.TaskID, Version: o.LeaseVersion, Session: int64(s.Session)}, Outcome: o, answer: a}
			if bad := checkOutcome(&all[k].Outcome); bad != nil {
				a.Err = bad
				continue
			}
			reports = append(reports, &all[k])
		}
	}
	sessions := map[int64]store.SessionRow{}
	leases, byLease := leasesOf(reports)
	if err := tx.Pipe(ctx, store.ReadSessions(sortedUnique(by[store.Shared]), store.Shared, sessions), store.ReadSessions(sortedUnique(by[store.Locked]), store.Locked, sessions),
		store.ReadSessions(sortedUnique(by[store.Unlocked]), store.Unlocked, sessions), store.TakeRunning(leases, &taken)); err != nil {
		return err
	}
	var refused *drover.Error
	for _, i := range live {
		s, err := sessionOf(sessions, batch[i].Caller, batch[i].Session)
		if errors.As(err, &refused) {
			out[i] = SettleResult{Err: refused}
			continue
		} else if err != nil {
			return err
		}
		if a := batch[i].Acquire; a != nil && !s.Draining && !e.expired(s) {
			if err := e.endowed.learn(s); err != nil {
				return err
			}
			asks = append(asks, &ask{session: s, acquire: *a, out: &out[i], turns: turns})
		}
	}
	if refused != nil {
		return store.ErrRetry
	}
	for _, a := range asks {
		x.last = append(x.last, e.askFor(a, x.now)...)
	}
	if err := e.settleTaken(ctx, tx, x, reports, byLease, taken); err != nil {
		return err
	}
	var got []drover.Lease
	for _, a := range asks {
		if len(x.circuits) > 0 { // which lanes are stopped was read before that
			if err := tx.Pipe(ctx, e.askFor(a, x.now)...); err != nil {
				return err
			}
		}
		leases, bad, err := e.claim(ctx, tx, a)
		if err != nil {
			return err
		}
		a.out.Leases = leases
		got = append(got, leases...)
		*broken = append(*broken, bad...)
	}
	if len(x.circuits) == 0 {
		x.gone(got)
	}
	return nil
}

func sortedUnique(ids []int64) []int64 {
	slices.Sort(ids)
	return slices.Compact(ids)
}

// checkOutcome validates an outcome. What a handler returned but cannot be kept
// becomes a permanent failure that says so.
func checkOutcome(o *drover.Outcome) *drover.Error {
	fail := func(format string, args ...any) {
		o.Status, o.Output = drover.OutcomeFailed, nil
		o.Error = &drover.Failure{Class: drover.ClassPermanent, Message: fmt.Sprintf(format, args...)}
	}
	switch o.Status {
	case drover.OutcomeSucceeded:
		if len(o.Output) > MaxPayload {
			fail("the output has %d bytes; at most %d: save it as an artifact and return its URI", len(o.Output), MaxPayload)
		} else if len(o.Output) > 0 && !json.Valid(o.Output) {
			fail("the output is not valid JSON")
		}
	case drover.OutcomeFailed:
		if o.Error == nil {
			o.Error = &drover.Failure{}
		}
		f := *o.Error
		switch f.Class {
		case drover.ClassRetryable, drover.ClassPermanent, drover.ClassThrottled, drover.ClassTimeout, drover.ClassPanic:
		case "":
			f.Class = drover.ClassRetryable
		default:
			return &drover.Error{Code: drover.CodeValidation, Detail: "the outcome is not valid",
				Fields: []drover.FieldError{{Field: "error.class", Message: fmt.Sprintf("%q is not retryable, permanent, throttled, timeout or panic", cut(string(f.Class)))}}}
		}
		if f.Message == "" {
			f.Message = "the handler gave no message"
		}
		o.Error = &f
	case drover.OutcomeSnoozed, drover.OutcomeReleased, drover.OutcomeCancelled:
	default:
		return &drover.Error{Code: drover.CodeValidation, Detail: "the outcome is not valid",
			Fields: []drover.FieldError{{Field: "status", Message: fmt.Sprintf("%q is not succeeded, failed, snoozed, released or cancelled", cut(o.Status))}}}
	}
	if o.RetryAfter < 0 || o.RetryAfter.Std() > farFuture {
		return &drover.Error{Code: drover.CodeValidation, Detail: "the outcome is not valid",
			Fields: []drover.FieldError{{Field: "retry_after", Message: "must be from 0 to ten years"}}}
	}
	return nil
}

// leasesOf sorts the reports and returns their leases. Of two reports of one lease
// the first counts.
func leasesOf(reports []*report) ([]store.Lease, map[store.Lease]*report) {
	slices.SortStableFunc(reports, func(a, b *report) int {
		return cmp.Or(compareIDs(a.lease.Task, b.lease.Task), cmp.Compare(a.lease.Version, b.lease.Version))
	})
	byLease := make(map[store.Lease]*report, len(reports))
	leases := make([]store.Lease, 0, len(reports))
	for _, r := range reports {
		if byLease[r.lease] == nil {
			byLease[r.lease] = r
			leases = append(leases, r.lease)
		}
	}
	return leases, byLease
}

// settle takes the running rows of the reports, decides, and stores.
func (e *Engine) settle(ctx context.Context, tx store.Tx, x *changes, reports []*report) error {
	leases, byLease := leasesOf(reports)
	taken := make([]lifecycle.Task, 0, len(leases))
	if err := tx.Pipe(ctx, store.TakeRunning(leases, &taken)); err != nil {
		return err
	}
	return e.settleTaken(ctx, tx, x, reports, byLease, taken)
}

// settleTaken decides and stores what becomes of the rows that were taken.
func (e *Engine) settleTaken(ctx context.Context, tx store.Tx, x *changes, reports []*report, byLease map[store.Lease]*report, taken []lifecycle.Task) error {
	accepted := make([]*report, 0, len(taken))
	for _, t := range taken {
		r := byLease[store.Lease{Task: t.ID, Version: t.LeaseVersion, Session: t.Session}]
		r.task = t
		accepted = append(accepted, r)
	}
	sortReports(accepted)
	if err := e.decide(ctx, tx, x, accepted); err != nil {
		return err
	}
	return e.answerRepeats(ctx, tx, reports)
}

// answerRepeats answers the reports whose lease is not held any more: with the
// first answer when they were accepted before, else with lease-lost.
func (e *Engine) answerRepeats(ctx context.Context, tx store.Tx, reports []*report) error {
	var open []*report
	var leases []store.Lease
	for _, r := range reports {
		if r.answer != nil && r.answer.Status == 0 && r.answer.Err == nil {
			open = append(open, r)
			leases = append(leases, r.lease)
		}
	}
	if len(open) == 0 {
		return nil
	}
	ends := map[store.Lease]store.End{}
	if err := tx.Pipe(ctx, store.ReadEnds(leases, ends)...); err != nil {
		return err
	}
	for _, r := range open {
		// Only the same word is a repeat: an attempt may have been ended without it.
		// What a cancelled job's worker gave back was stored as an acknowledgement, and a
		// success whose output did not fit its schema as a failure.
		end, ok := ends[r.lease]
		if ok && (end.Outcome == r.Status || end.Outcome == drover.OutcomeCancelled && gaveBack(r.Status) ||
			r.Status == drover.OutcomeSucceeded && unfitOutput(end)) {
			r.answer.Status = end.Status
			continue
		}
		r.answer.Err = drover.Errorf(drover.CodeLeaseLost, "task %s is not leased to this worker under lease_version %d any more; drop its outcome", r.lease.Task, r.lease.Version)
	}
	return nil
}

// gaveBack says that a worker had no result to tell.
func gaveBack(outcome string) bool {
	return outcome != drover.OutcomeSucceeded && outcome != drover.OutcomeFailed
}

// decide moves tasks that were running, and all that follows from them. Their
// rows have been taken; those of tasks that do not run were read, and are taken here.
// Reports are sorted by task.
func (e *Engine) decide(ctx context.Context, tx store.Tx, x *changes, reports []*report) error {
	var jobs []drover.JobID // that have a row of their own
	var kindTasks []drover.TaskID
	for _, r := range reports {
		if !r.task.Solo() {
			jobs = append(jobs, r.task.Job)
		}
		switch r.Status {
		case drover.OutcomeFailed, drover.OutcomeSnoozed, outcomeLost, outcomeCut, outcomeMarked:
			kindTasks = append(kindTasks, r.task.ID)
		}
	}
	jobs = uniqueSorted(jobs)
	heads, err := e.heads(ctx, tx, jobs)
	if err != nil {
		return err
	}
	graphs, policies := map[drover.JobID]int32{}, map[drover.TaskID][]byte{}
	plans := map[drover.JobID]*compiled{}
	for id, h := range heads {
		if h.Pipeline == 0 {
			continue
		}
		p, err := e.plan(ctx, tx, h.Pipeline)
		if err != nil {
			return err
		}
		plans[id] = p
	}
	x.belongs(heads)
	for _, r := range reports {
		if p := plans[r.task.Job]; p != nil && int(r.task.Node) >= len(p.Nodes) {
			e.jobHeads.forget(r.task.Job)
			return store.ErrRetry
		}
	}
	checkOutputs(plans, reports)
	if err := e.keepResults(ctx, tx, x, plans, reports); err != nil {
		return err
	}
	ons := make([]terms, len(reports))
	for i, r := range reports {
		if p := plans[r.task.Job]; p != nil {
			ons[i] = p.terms(r.task.Node)
		}
		switch r.Status {
		case drover.OutcomeFailed, outcomeLost, outcomeCut:
			r.jitter = e.opts.Jitter()
		}
	}
	if err := readCloses(ctx, tx, reports, ons); err != nil {
		return err
	}
	advancing := map[drover.JobID]*graph{}
	var list []*graph
	for i, r := range reports {
		p := plans[r.task.Job]
		if p == nil {
			continue
		}
		as := dag.Succeeded
		if r.mark != nil {
			if as = r.mark.outcome(); r.mark.stops(p) {
				continue
			}
		} else if r.Status != drover.OutcomeSucceeded {
			// Unless the job is being stopped, which is known once its row is locked:
			// what hangs on this is then left to the sweeps.
			after, _ := r.next(ons[i], lifecycle.Hold{}, x.now)
			if !after.Status.Final() || p.Stops(keyOf(&r.task)) {
				continue
			}
			as = dag.Failed
		}
		g := advancing[r.task.Job]
		if g == nil {
			g = newGraph(p, r.task.Job, 0)
			g.trace = heads[r.task.Job].Trace
			advancing[r.task.Job] = g
			list = append(list, g)
		}
		g.ended(&r.task, as, r.Output)
	}
	var waiting, woken []lifecycle.Task // for jobs that have ended
	var standing []*report              // those of marks
	for _, r := range reports {
		switch {
		case r.task.Status == drover.Running:
		case r.mark != nil:
			standing = append(standing, r)
		case r.task.Status == drover.Waiting:
			waiting = append(waiting, r.task)
		}
	}
	slices.SortFunc(waiting, func(a, b lifecycle.Task) int {
		return cmp.Or(compareIDs(a.Job, b.Job), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Index, b.Index))
	})
	// In one trip the versions of the graphs are read, every row that these ends may
	// change is locked, rows that do not run are taken, and the jobs' rows locked last.
	var live []store.JobLive
	now := map[drover.JobID]store.JobHead{}
	with := around{
		before: []store.Stmt{store.ReadGraphs(jobs, graphs, now), store.ReadPolicies(kindTasks, policies)},
		after:  append(make([]store.Stmt, 0, 5), store.TakeWaiting(waiting, &woken)),
		then: func() error {
			if len(woken) != len(waiting) {
				return store.ErrRetry // somebody was faster
			}
			for _, r := range standing {
				if err := r.mark.took(ctx, tx, &r.task); err != nil {
					return err
				}
			}
			for id, h := range now {
				if h != heads[id] {
					e.jobHeads.forget(id)
					return store.ErrRetry
				}
			}
			for i := range live {
				if g := advancing[live[i].Job]; g != nil {
					g.total = live[i].Total
				}
			}
			return nil
		},
	}
	for _, r := range standing {
		r.mark.takes(&with, &r.task)
	}
	with.after = append(with.after, store.LockJobLive(jobs, &live), readMaps(list))
	if err := resolve(ctx, tx, e, x.now, list, false, with); err != nil {
		return err
	}
	for i := range live {
		x.loaded[live[i].Job] = &live[i]
	}
	for _, id := range jobs {
		j := x.loaded[id]
		if j == nil {
			return store.ErrRetry // its row was being made or removed
		}
		if g := advancing[id]; g != nil && graphs[id] != j.Graph {
			return store.ErrRetry // the graph grew or was held meanwhile: read the children again
		}
	}
	if err := readStops(ctx, tx, x, reports); err != nil {
		return err
	}
	for i, r := range reports {
		if plans[r.task.Job] == nil {
			ons[i] = termsOf(policies[r.task.ID])
		}
	}
	if err := readCloses(ctx, tx, reports, ons); err != nil {
		return err
	}
	x.expectEnds(len(reports))
	for i, r := range reports {
		if err := e.decideOne(ctx, tx, x, r, plans[r.task.Job], ons[i]); err != nil {
			return err
		}
	}
	if err := x.collect(ctx, tx, list); err != nil {
		return err
	}
	if err := x.save(ctx, tx); err != nil {
		return err
	}
	return e.noteCircuits(ctx, tx, x, reports)
}

// lockJobs locks the live rows of jobs, last of all locks, and loads them into x.
func (e *Engine) lockJobs(ctx context.Context, tx store.Tx, x *changes, jobs []drover.JobID) error {
	if len(jobs) == 0 {
		return nil
	}
	var rows []store.JobLive
	if err := tx.Pipe(ctx, store.LockJobLive(jobs, &rows)); err != nil {
		return err
	}
	for i := range rows {
		x.loaded[rows[i].Job] = &rows[i]
	}
	return nil
}

// readStops looks how far the cancels of reports' jobs have come.
func readStops(ctx context.Context, tx store.Tx, x *changes, reports []*report) error {
	var of []lifecycle.Task
	for _, r := range reports {
		if j := x.loaded[r.task.Job]; j != nil && j.Cancelling != 0 {
			of = append(of, r.task)
		}
	}
	if len(of) == 0 {
		return nil
	}
	stops := map[drover.TaskID]store.Stop{}
	if err := tx.Pipe(ctx, store.ReadStops(of, stops)); err != nil {
		return err
	}
	for _, r := range reports {
		r.stop = stops[r.task.ID]
	}
	return nil
}

// next is what becomes of the task of a report, unless its job is being stopped.
// closed says that it ends because its schedule_to_close would pass before it runs
// again.
func (r *report) next(on terms, hold lifecycle.Hold, now lifecycle.Instant) (after lifecycle.Task, closed bool) {
	t := r.task
	switch {
	case r.mark != nil:
		return r.mark.after(t, now), false
	case t.Status == drover.Waiting:
		after = lifecycle.Joined(t, r.Status == drover.OutcomeSucceeded, now)
	case r.Status == drover.OutcomeSucceeded:
		if after = lifecycle.Succeeded(t, now); r.first != nil {
			after.How = lifecycle.HowReused
		}
	case r.Status == drover.OutcomeFailed:
		after = lifecycle.Failed(t, lifecycle.Fault{Class: r.Error.Class, Type: r.Error.Type, After: r.RetryAfter.Std()}, on.retry, r.jitter, now)
	case r.closed:
		after = lifecycle.Closed(t, now)
	case r.Status == outcomeCut:
		after = lifecycle.CutOff(t, r.Error.Type, on.retry, r.jitter, now)
	case r.Status == drover.OutcomeSnoozed:
		after = lifecycle.Snoozed(t, r.RetryAfter.Std(), now)
	case r.Status == outcomeLost:
		after = lifecycle.LeaseLost(t, hold, on.retry, r.jitter, now)
	default:
		after = lifecycle.Released(t, hold, now)
	}
	after, closed = lifecycle.Bounded(t, after, r.closes, now)
	if on.backed && t.Status == drover.Running && after.Status.Final() && after.Status != drover.Succeeded && !r.closed {
		return lifecycle.Awaiting(t, after, now), false
	}
	return after, closed
}

func (e *Engine) decideOne(ctx context.Context, tx store.Tx, x *changes, r *report, plan *compiled, on terms) error {
	t := r.task
	lane, err := e.laneOf(ctx, tx, t.Lane)
	if err != nil {
		return err
	}
	var j *store.JobLive
	if !t.Solo() {
		j = x.loaded[t.Job]
	}
	how := ending{was: &r.task, outcome: r.Status, failure: r.Error, stop: r.stop}
	if t.Status == drover.Waiting {
		how.was = nil // no worker had it
	}
	how.at(plan, t.Node, t.Index, lane.Kind)
	hold := lifecycle.Hold{Paused: j != nil && j.Paused}
	cancelling := j != nil && j.Cancelling != 0 && j.Cancelling != store.CauseFinish
	after, closed := r.next(on, hold, x.now)
	if r.Status == drover.OutcomeFailed && r.Error.Class == drover.ClassThrottled && r.RetryAfter > 0 {
		x.throttled(t.ID, r.RetryAfter.Std())
	}
	event := drover.EventType("")
	switch {
	case r.mark != nil:
		if err := r.mark.stopping(j); err != nil {
			return err
		}
		r.mark.fill(&how)
		if t.Status != drover.Running {
			how.was = nil
		}
		if r.mark.race == nil {
			x.took(j, &after, drover.TaskMarked, r.mark.data(t.Status, after.Generation, nil, nil))
		}
	case r.Status == drover.OutcomeSucceeded:
		how.output = r.Output
		for _, a := range r.Artifacts {
			p := store.Publish{Artifact: a, Task: t.ID, Version: t.LeaseVersion}
			if plan != nil {
				p.Kind = plan.Nodes[t.Node].Artifact
			}
			x.publish = append(x.publish, p)
		}
	case cancelling:
		closed = false
		after = ended(&how, t, j.Cancelling, r.Status == outcomeLost || r.Status == outcomeCut, x.now)
	case r.Status == drover.OutcomeFailed:
		how.failure = clamped(r.Error, r.RetryAfter.Std())
		event = drover.TaskRetryScheduled
	case r.closed:
		if how.failure, err = e.outOfTime(ctx, tx, &t, on, nil); err != nil {
			return err
		}
	case r.Status == outcomeCut:
		event = drover.TaskRetryScheduled
	case r.Status == drover.OutcomeSnoozed:
		event = drover.TaskSnoozed
		if r.RetryAfter.Std() > lifecycle.MaxDelay {
			how.failure = clamped(&drover.Failure{Class: drover.ClassSnoozed, Message: "snoozed"}, r.RetryAfter.Std())
		}
	case r.Status == outcomeLost:
		event = drover.TaskLeaseExpired
		how.failure = &drover.Failure{Class: drover.ClassLeaseLost, Message: "the worker's lease ran out" + times(int(after.Losses)) + " without a word from the attempt"}
	default: // released, or a cancellation acknowledged that nobody asked for
		event = drover.TaskReleased
	}
	if closed {
		if how.failure, err = e.outOfTime(ctx, tx, &t, on, how.failure); err != nil {
			return err
		}
	}
	if on.backed && after.Status == drover.Waiting {
		event = drover.TaskBackupAwaited
		x.look = append(x.look, t.ID)
	}
	if on.backed && callsBackup(r, &after) && j.Cancelling == 0 {
		x.calls = append(x.calls, call{j, plan, dag.Key{Node: plan.Nodes[t.Node].Backup, Index: t.Index}})
	}
	if after.Status.Final() {
		x.end(j, lane.Tenant, after, how)
		if on.watched() {
			x.unwatch = append(x.unwatch, t.ID)
		}
	} else {
		x.between(j, after, event, how)
		if j != nil && j.Cancelling == store.CauseFinish {
			x.sweep = append(x.sweep, j.Job) // it runs no more, and does not start again
		}
	}
	if r.answer != nil {
		r.answer.Status = after.Status
	}
	return nil
}

// clamped returns f with a word on a delay that was cut.
func clamped(f *drover.Failure, after time.Duration) *drover.Failure {
	if after <= lifecycle.MaxDelay {
		return f
	}
	c := *f
	c.Message = fmt.Sprintf("%s (asked to wait %s; the longest wait is %s)", cutAt(c.Message, maxMessage-200), drover.Duration(after), drover.Duration(lifecycle.MaxDelay))
	return &c
}

// ended is a task stopped by its job's cancel, and why.
func ended(how *ending, t lifecycle.Task, cause store.Cause, forced bool, now lifecycle.Instant) lifecycle.Task {
	how.output = nil
	switch {
	case cause == store.CauseExpired:
		if how.was != nil && forced {
			how.outcome = outcomeForced
		}
		how.failure = &drover.Failure{Class: drover.ClassExpired, Message: "the job's expires_at passed before the task ended"}
		return lifecycle.Expired(t, now)
	case cause == store.CauseFinish:
		how.reason = "finish_running"
		return lifecycle.Blocked(t, now)
	case cause == store.CauseFailFast && t.Status != drover.Running && t.Status != drover.Waiting:
		how.reason = "fail_fast"
		return lifecycle.Skipped(t, now)
	case cause == store.CauseFailFast:
		how.reason = "fail_fast"
	}
	if how.was != nil && forced {
		how.outcome = outcomeForced
	} else if how.was != nil && how.outcome != drover.OutcomeFailed {
		how.outcome = drover.OutcomeCancelled
	}
	return lifecycle.Cancelled(t, forced, now)
}

// laneOf returns the selector of a lane.
func (e *Engine) laneOf(ctx context.Context, tx store.Tx, id int32) (store.LaneKey, error) {
	if k, ok := e.names.laneKey.Load(id); ok {
		return k.(store.LaneKey), nil
	}
	k, err := store.LaneByID(ctx, tx, id)
	if err == nil && k.Queue != 0 {
		e.names.laneKey.Store(id, k)
	}
	return k, err
}

// giveBack settles leases that were taken and cannot be handed out: a task whose
// input could not be filled in fails, one that did not fit into the answer is released.
func (e *Engine) giveBack(ctx context.Context, list []unfit) {
	if len(list) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	var x *changes
	err := e.db.Write(ctx, func(tx store.Tx) error {
		x = e.changes(e.now())
		var reports []*report
		for _, u := range list {
			r := &report{lease: u.lease, Outcome: drover.Outcome{Status: drover.OutcomeReleased}}
			if u.failure != nil {
				r.Status, r.Error = drover.OutcomeFailed, u.failure
			} else if u.closed {
				r.Status, r.closed = outcomeCut, true
			}
			reports = append(reports, r)
		}
		return e.settle(ctx, tx, x, reports)
	})
	if err != nil { // their leases run out by themselves
		e.log.ErrorContext(ctx, "leases not given back; they will run out", "count", len(list), "err", err)
		return
	}
	e.after(ctx, x)
}

// after does what follows a commit: it tells those who wait, ends the tasks of jobs
// that were stopped, and goes on with jobs that tasks run. Loops do the same again, so
// that nothing depends on it.
func (e *Engine) after(ctx context.Context, x *changes) {
	e.told(ctx, x)
	e.goOn(context.WithoutCancel(ctx), x.follows(), lookAtOnce)
}

// told tells those who wait.
func (e *Engine) told(ctx context.Context, x *changes) {
	e.tell(x)
	e.seen.note(x)
	for _, c := range x.circuits {
		e.logCircuit(ctx, c)
	}
}

// following is what is to be done after a commit, by transactions of its own.
type following struct {
	sweep []drover.JobID  // to be swept
	asked bool            // something is asked of jobs that tasks run
	over  []drover.TaskID // whose jobs have ended
	races []store.Key     // tasks that have ended themselves, or their backups
	look  []drover.TaskID // that are to be looked at, and are due
}

// follows is what is to be done after the commit of x.
func (x *changes) follows() following {
	return following{x.sweep, x.asked > 0, x.over, x.races, x.look}
}

func (f *following) add(more following) {
	f.sweep, f.asked = append(f.sweep, more.sweep...), f.asked || more.asked
	f.over, f.races, f.look = append(f.over, more.over...), append(f.races, more.races...), append(f.look, more.look...)
}

// followRounds bounds how far one caller goes on: down through all levels of jobs that
// run each other, and up again.
const followRounds = 3 * dag.MaxDepth

// goOn does what follows, and what follows from that; of what is due anyway no more than
// most tasks, and what is asked of many jobs in part: nobody's caller makes ten thousand
// jobs. The loops have the rest.
func (e *Engine) goOn(ctx context.Context, f following, most int) {
	warn := func(err error) {
		if err != nil {
			e.log.WarnContext(ctx, "what follows a commit was not done; will try again", "err", err)
		}
	}
	asks := 0
	for range followRounds {
		var next following
		for _, id := range f.sweep {
			_, more, err := e.sweepJob(ctx, id)
			next.add(more)
			warn(err)
		}
		if (f.asked || next.asked) && asks < lookAtOnce {
			n, more, err := e.passOnce(ctx, lookAtOnce-asks)
			next.asked = false
			next.add(more)
			asks += n
			warn(err)
		}
		look := f.look[:min(len(f.look), most)]
		if most -= len(look); len(f.over)+len(look) > 0 {
			more, err := e.lookAtChildren(ctx, append(f.over, look...))
			next.add(more)
			warn(err)
		}
		more, err := e.lookAtRaces(ctx, f.races)
		next.add(more)
		warn(err)
		if f = next; len(f.sweep)+len(f.over)+len(f.races)+len(f.look) == 0 && !f.asked {
			return
		}
	}
}

func sortReports(reports []*report) {
	slices.SortFunc(reports, func(a, b *report) int { return compareIDs(a.task.ID, b.task.ID) })
}

func uniqueSorted[T ~[16]byte](ids []T) []T {
	slices.SortFunc(ids, compareIDs)
	return slices.Compact(ids)
}
