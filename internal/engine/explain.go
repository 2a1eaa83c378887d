package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/admit"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/explain"
	"github.com/drover-dev/drover/internal/forecast"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

const (
	holdersShown     = 10   // of a blocker
	explainedOfAJob  = 20   // tasks
	totalledOfAJob   = 1000 // tasks whose times are added up
	anotherTenant    = "another tenant"
	runCode          = "run"
	chainNodesAtMost = 2000 // of a pipeline whose longest way is forecast
)

// Explain says of a task why it does not run, or who runs it, or how its time was spent.
func (e *Engine) Explain(ctx context.Context, c Caller, id drover.TaskID) (out drover.Explanation, err error) {
	err = e.db.Read(ctx, func(tx store.Tx) error {
		s, err := oneTask(ctx, tx, c, id)
		if err != nil {
			return err
		}
		x := e.explainer(tx, c)
		if err := x.of(ctx, s.Job); err != nil {
			return err
		}
		list, err := x.tasks(ctx, []taskState{s}, true)
		if err != nil {
			return err
		}
		out = list[0]
		return nil
	})
	if err != nil {
		return drover.Explanation{}, fmt.Errorf("explain task: %w", err)
	}
	return out, nil
}

// explainer gathers what explanations of one job's tasks are made of.
type explainer struct {
	e   *Engine
	tx  store.Tx
	c   Caller
	now lifecycle.Instant

	row   store.JobRow
	job   drover.Job
	holds []store.Hold
	plan  *compiled // nil of a Kind job
	nodes map[int32]*store.NodeCount

	crews    map[crewKey]*crew
	circuits map[store.CircuitKey]*drover.Blocker // nil of one that is closed
	// services is how long tasks of the kinds asked for take; seen are the lanes of each
	// kind of which something is not shared yet.
	services map[store.KindKey]*forecast.Service
	seen     map[store.KindKey][]int32

	slots    map[int32]int // on which a node's tasks run at one time
	waysLeft map[int32]forecast.Wait

	queues []store.QueueState // that are paused or draining

	decided *decided      // the last decision; nil until there is one
	waits   *handlerWaits // nil until they are read

	sessions []store.SessionRow
	loads    map[int64]int64 // what they run; nil until they are read
}

func (e *Engine) explainer(tx store.Tx, c Caller) *explainer {
	return &explainer{e: e, tx: tx, c: c, now: e.now(), crews: map[crewKey]*crew{}, circuits: map[store.CircuitKey]*drover.Blocker{}}
}

// of reads the job that is explained.
func (x *explainer) of(ctx context.Context, id drover.JobID) error {
	var rows []store.JobRow
	if err := x.tx.Pipe(ctx, store.ReadJobs([]drover.JobID{id}, &rows), store.ReadHolds(id, &x.holds)); err != nil {
		return err
	}
	if len(rows) == 0 || rows[0].Tenant != x.c.Tenant {
		return notFound("job", id)
	}
	x.row = rows[0]
	jobs, err := x.e.showJobs(ctx, x.tx, x.c, rows)
	if err != nil {
		return err
	}
	if x.job = jobs[0]; x.row.Pipeline != 0 {
		x.plan, err = x.e.plan(ctx, x.tx, x.row.Pipeline)
	}
	return err
}

// service is how long tasks of a kind take; nil when nothing is known of them.
func (x *explainer) service(ctx context.Context, k store.KindKey) (*forecast.Service, error) {
	if x.services == nil {
		seen := map[store.KindKey][]int32{}
		for _, lane := range x.e.seen.seenLanes() {
			l, err := x.e.laneOf(ctx, x.tx, lane)
			if err != nil {
				return nil, err
			}
			seen[kindOf(l)] = append(seen[kindOf(l)], lane)
		}
		x.services, x.seen = map[store.KindKey]*forecast.Service{}, seen
	}
	if s, ok := x.services[k]; ok {
		return s, nil
	}
	s := x.e.seen.of(k, x.seen[k])
	x.services[k] = s
	return s, nil
}

// ofLane is how long tasks of a lane take.
func (x *explainer) ofLane(ctx context.Context, lane int32) (*forecast.Service, error) {
	l, err := x.e.laneOf(ctx, x.tx, lane)
	if err != nil {
		return nil, err
	}
	return x.service(ctx, kindOf(l))
}

// hold returns the hold of a kind that keeps the job's tasks from starting.
func (x *explainer) hold(kind store.HoldKind) *store.Hold {
	for i := range x.holds {
		if x.holds[i].Kind == kind {
			return &x.holds[i]
		}
	}
	return nil
}

// tasks explains tasks of the job, in their order; whole tells their history too.
func (x *explainer) tasks(ctx context.Context, list []taskState, whole bool) ([]drover.Explanation, error) {
	shown, err := x.e.showTasks(ctx, x.tx, list)
	if err != nil {
		return nil, err
	}
	out := make([]drover.Explanation, len(list))
	for i := range list {
		if err := x.task(ctx, &list[i], &shown[i], &out[i]); err != nil {
			return nil, err
		}
		out[i].History = []drover.Spent{}
		if whole {
			if err := x.history(ctx, &list[i], &shown[i], &out[i]); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// task explains one.
func (x *explainer) task(ctx context.Context, s *taskState, t *drover.Task, out *drover.Explanation) error {
	*out = drover.Explanation{TaskID: t.ID, JobID: t.JobID, Name: t.Name, Index: t.Index, Mapped: t.Mapped, Status: t.Status, Generation: t.Generation, LastError: cmp.Or(t.Error, t.LastError), Blockers: []drover.Blocker{}}
	totals, _ := s.totals(x.now) // as the history has it
	if out.TotalsByReason = totals.Map(); out.TotalsByReason == nil {
		out.TotalsByReason = map[string]drover.Duration{}
	}
	lane, err := x.e.laneOf(ctx, x.tx, s.Lane)
	if err != nil {
		return err
	}
	staff, err := x.crew(ctx, crewKey{queue: t.Queue, tenant: s.Tenant, kind: t.Kind, needs: lane.Needs})
	if err != nil {
		return err
	}
	out.Executor = staff.executor(t)
	if s.live == nil {
		out.Message = endedMessage(t)
		return nil
	}
	if out.Next, err = x.next(s, t); err != nil {
		return err
	}
	service, err := x.service(ctx, kindOf(lane))
	if err != nil {
		return err
	}
	var start forecast.Wait // of when it starts
	started, known := false, false
	switch cancel := x.hold(store.HoldCancel); {
	case t.Status == drover.Running:
		started, known = true, true
		out.Running = &drover.RunningNow{Worker: t.Worker, Since: t.ClaimedAt, For: explain.Span(x.now.Sub(s.live.ClaimedAt)), Attempt: t.Attempt, MaxAttempts: t.MaxAttempts, LeaseExpiresAt: t.LeaseExpiresAt, Progress: t.Progress}
		out.Message = runningMessage(out.Running)
		if t.Cancellation == nil {
			if out.Blockers, err = x.handlerBlockers(ctx, s); err != nil {
				return err
			}
			for i := range out.Blockers[:min(len(out.Blockers), 1)] {
				b := &out.Blockers[i]
				out.Layer, out.WaitingSince, out.Waited = b.Layer, b.Since, b.Waited
				out.Message += " " + b.Message
			}
		} else {
			out.Message = "Being cancelled: its worker was asked to stop, and has not said yet that it did."
			if !t.Cancellation.AcknowledgedAt.IsZero() {
				out.Message = "Being cancelled: its handler was told to stop and cleans up."
			}
		}
		if w, ok := service.Of(x.now.Sub(s.live.ClaimedAt)); ok {
			out.End = x.eta(w, service)
		}
	case cancel != nil && cancel.Cause != store.CauseFailFast && cancel.Cause != store.CauseFinish:
		out.Message = "Being cancelled: " + causeText(cancel.Cause) + "; it ends without having started."
	default:
		out.WaitingSince, out.Waited = s.live.Since.Time(), explain.Span(x.now.Sub(s.live.Since))
		var list []drover.Blocker
		if cancel != nil {
			list = append(list, explain.DependencyFailed(cancel.Reason))
		}
		if list, start, known, err = x.blockers(ctx, s, t, lane, staff, list); err != nil {
			return err
		}
		out.Blockers = explain.Order(list, x.now.Time())
		out.Layer, out.Message = out.Blockers[0].Layer, out.Blockers[0].Message
		if known {
			out.Start = x.eta(start, service)
			if e := out.Blockers[0].ETA; e != nil && e.P50 == out.Start.P50 {
				out.Start.Basis = e.Basis
			}
		}
	}
	if known && !started {
		if w, ok := service.Of(0); ok {
			out.End = x.eta(start.Plus(w), service)
		}
	}
	out.Deadline = x.deadline(t, out.Start, out.End)
	return nil
}

// eta tells a forecast.
func (x *explainer) eta(w forecast.Wait, s *forecast.Service) *drover.ETA {
	n := s.Ends(x.now.Time())
	basis := fmt.Sprintf("%s in the last %dm", explain.Count(n, "end", "ends"), forecast.Minutes)
	if n == 0 {
		basis = fmt.Sprintf("%s so far", explain.Count(w.From, "run", "runs"))
	}
	return &drover.ETA{P50: explain.Span(w.P50), P90: explain.Span(w.P90), Basis: basis, Confidence: w.Confidence()}
}

// deadline is the nearer of the job's and the task's.
func (x *explainer) deadline(t *drover.Task, start, end *drover.ETA) *drover.Deadline {
	d := &drover.Deadline{At: x.job.ExpiresAt, Kind: "expires_at"}
	if !t.ClosesAt.IsZero() && (d.At.IsZero() || t.ClosesAt.Before(d.At)) {
		d.At, d.Kind = t.ClosesAt, "schedule_to_close"
	}
	if d.At.IsZero() {
		return nil
	}
	finishDeadline(d, x.now.Time(), cmp.Or(end, start))
	return d
}

// finishDeadline says whether the forecast is behind it.
func finishDeadline(d *drover.Deadline, now time.Time, eta *drover.ETA) {
	left := d.At.Sub(now)
	d.In = explain.Span(left)
	switch {
	case eta == nil:
		d.Message = fmt.Sprintf("It must have ended by %s, in %s (%s).", explain.Clock(d.At), explain.Long(left), d.Kind)
	case eta.P50.Std() > left:
		d.WillMiss = true
		d.Message = fmt.Sprintf("It will miss its deadline: %s is in %s, and half of such tasks take %s from now on (%s).", explain.Clock(d.At), explain.Long(left), explain.Long(eta.P50.Std()), d.Kind)
	default:
		d.Message = fmt.Sprintf("It must have ended by %s, in %s (%s); half of such tasks have in %s.", explain.Clock(d.At), explain.Long(left), d.Kind, explain.Long(eta.P50.Std()))
	}
}

func endedMessage(t *drover.Task) string {
	took := ""
	if !t.ClaimedAt.IsZero() && !t.FinishedAt.IsZero() && t.Status != drover.Skipped {
		took = ", its last attempt after " + explain.Long(t.FinishedAt.Sub(t.ClaimedAt))
	}
	age := explain.Long(sum(t.Waits))
	switch t.Status {
	case drover.Succeeded:
		return fmt.Sprintf("Succeeded at %s after %s%s.", explain.Clock(t.FinishedAt), age, took)
	case drover.Skipped:
		return fmt.Sprintf("Skipped at %s by its rule or condition, after %s.", explain.Clock(t.FinishedAt), age)
	case drover.Cancelled:
		return fmt.Sprintf("Cancelled at %s after %s.", explain.Clock(t.FinishedAt), age)
	default: // FAILED, DEAD_LETTER
		why := ""
		if t.Error != nil {
			why = ": " + string(t.Error.Class) + ": " + explain.Short(t.Error.Message)
		}
		return fmt.Sprintf("%s at %s after %s%s%s.", t.Status, explain.Clock(t.FinishedAt), age, took, why)
	}
}

func sum(waits map[string]drover.Duration) (total time.Duration) {
	for _, d := range waits {
		total += d.Std()
	}
	return total
}

func runningMessage(r *drover.RunningNow) string {
	said := fmt.Sprintf("Runs on %s for %s, attempt %d of %d", cmp.Or(r.Worker, "a worker"), explain.Long(r.For.Std()), r.Attempt, r.MaxAttempts)
	if p := r.Progress; p != nil && (p.Ratio > 0 || p.Message != "") {
		said += fmt.Sprintf(", %.0f %%", 100*p.Ratio)
		if p.Message != "" {
			said += ": " + explain.Short(p.Message)
		}
	}
	return said + "."
}

// next says what follows when something goes wrong.
func (x *explainer) next(s *taskState, t *drover.Task) (drover.Next, error) {
	on := termsOf(s.Policy)
	if x.plan != nil {
		on = x.plan.terms(s.Node)
	}
	n := drover.Next{
		Failure:    fmt.Sprintf("A failed attempt is tried again, up to %d attempts, after %s to %s; then it is a dead letter.", on.retry.MaxAttempts, explain.Long(on.retry.Initial.Std()), explain.Long(on.retry.Max.Std())),
		Timeout:    fmt.Sprintf("An attempt that takes longer than %s is ended, and counts as failed.", explain.Long(on.timeout)),
		LostWorker: fmt.Sprintf("A worker that is silent for %s loses it: it starts again elsewhere, up to %d times, and no attempt is used up.", explain.Long(x.e.opts.LeaseFor), lifecycle.MaxLeaseLosses),
		Repeat:     fmt.Sprintf("A report under another lease_version than the current one (%d) changes nothing.", t.LeaseVersion),
	}
	if t.Kind == dag.SubKind {
		n = drover.Next{Failure: "It fails when the job that it runs does not end well, and is not tried again by itself; a replay of it runs another job."}
	} else if on.retry.MaxAttempts == 1 {
		n.Failure = "A failed attempt is not tried again: it is a dead letter then."
	}
	if x.plan != nil {
		node := &x.plan.Nodes[s.Node]
		if node.Backup >= 0 {
			n.Failure = "Once an attempt has failed, task " + x.plan.Nodes[node.Backup].Name + " runs beside it: the first result of the two counts. " + n.Failure
		}
		switch {
		case node.Backs >= 0:
			n.Failure += " Then task " + x.plan.Nodes[node.Backs].Name + " goes on alone."
		case node.Fallback >= 0:
			n.Failure += " Task " + x.plan.Nodes[node.Fallback].Name + " then runs in its place."
		case node.Degrades:
			n.Failure += " The job goes on without it, degraded."
		case x.plan.Stops(dag.Key{Node: s.Node, Index: s.Index}):
			n.Failure += " The rest of the job stops then."
		}
	}
	return n, nil
}

// blockers are all reasons why a task that is not held by a cancel does not run;
// start is when it does, as far as that is known.
func (x *explainer) blockers(ctx context.Context, s *taskState, t *drover.Task, lane store.LaneKey, staff *crew, list []drover.Blocker) (_ []drover.Blocker, start forecast.Wait, known bool, err error) {
	if h := x.hold(store.HoldPause); h != nil {
		list = append(list, explain.JobPaused(x.row.ID, h.Actor, h.Reason, h.At.Time()))
	}
	admitted := t.Status != drover.Ready || s.live.Lane == lifecycle.HeldLane
	if t.Kind != dag.SubKind { // no worker runs such a task
		circuit, err := x.circuit(ctx, lane)
		if err != nil {
			return nil, start, false, err
		}
		if circuit != nil {
			list = append(list, *circuit)
		}
		for _, q := range x.queues {
			if q.ID == s.Queue && q.Paused {
				b := x.queuePaused(t.Queue)
				b.Since = q.ChangedAt.Time()
				list = append(list, b)
			}
		}
		if b := staff.unfit(); b != nil && admitted { // of others the decision says it
			b.Since = cmp.Or(t.ReadyAt, s.live.Since.Time())
			list = append(list, *b)
		}
	}
	open := len(list) == 0
	switch t.Status {
	case drover.Pending:
		if t.Unmet == 0 && !t.DueAt.IsZero() {
			b := explain.Schedule(s.live.DueAt.Time(), x.now.Time())
			b.Since = s.live.Since.Time()
			return append(list, b), until(s.live.DueAt, x.now), open, nil
		}
		b, w, ok, err := x.dependency(ctx, s, t)
		b.Since = s.live.Since.Time()
		if ok {
			b.ETA = x.chainETA(w)
		}
		return append(list, b), w, ok && open, err
	case drover.RetryWait:
		b := explain.Retry(s.live.DueAt.Time(), x.now.Time(), t.Attempt, t.MaxAttempts, t.LastError)
		b.Since = s.live.Since.Time()
		return append(list, b), until(s.live.DueAt, x.now), open, nil
	case drover.Ready, drover.Queued:
		if s.live.InLine() {
			n := &x.plan.Nodes[s.Node]
			return append(list, explain.MapParallel(n.Name, int(n.MaxParallel), s.live.Since.Time())), start, false, nil
		}
		if !admitted {
			return x.admission(ctx, s, t, staff, list)
		}
		more, w, ok, err := x.inLine(ctx, s, t, staff, open)
		return append(list, more...), w, ok && open, err
	case drover.Waiting:
		return append(list, t.Blockers...), start, false, nil // the job that it runs
	}
	b := drover.Blocker{Code: drover.BlockerSignal, Subject: drover.Subject{Kind: "task"}, Since: s.live.Since.Time(), Message: "Waiting for a signal."}
	if t.Status == drover.DispatchPending {
		b.Code, b.Message = drover.BlockerDispatch, "The broker has not confirmed its message yet."
	}
	return append(list, b), start, false, nil
}

// until is a forecast of what is known: a time.
func until(at, now lifecycle.Instant) forecast.Wait {
	d := max(at.Sub(now), 0)
	return forecast.Wait{P50: d, P90: d, From: 1000}
}

// circuit is the wait for the circuit of a lane; nil when it is closed.
func (x *explainer) circuit(ctx context.Context, lane store.LaneKey) (*drover.Blocker, error) {
	if lane.Circuit == "" {
		return nil, nil
	}
	k := store.CircuitKey{Tenant: lane.Tenant, Name: lane.Circuit}
	if b, ok := x.circuits[k]; ok {
		return b, nil
	}
	rows := map[store.CircuitKey]store.CircuitRow{}
	if err := x.tx.Pipe(ctx, store.ReadCircuits([]store.CircuitKey{k}, rows)); err != nil {
		return nil, err
	}
	x.circuits[k] = nil
	if list := circuitBlockers(rows[k], x.now); len(list) > 0 {
		x.circuits[k] = &list[0]
	}
	return x.circuits[k], nil
}

// line is where a READY or QUEUED task stands.
type line struct {
	place explain.Place
	// above are those of classes that go first, the first of which is class; turns are
	// those of other lanes of its class whose turn comes first, before those of its own.
	above, turns, before int
	class                drover.Class
	ahead                []forecast.Ahead
	counted              bool // all of them; otherwise there are more
}

// inLine is the wait for a worker.
func (x *explainer) inLine(ctx context.Context, s *taskState, t *drover.Task, staff *crew, open bool) (list []drover.Blocker, start forecast.Wait, known bool, err error) {
	if len(staff.take) == 0 {
		if staff = staff.drains; staff == nil {
			return nil, start, false, nil // said already
		}
	}
	l, err := x.lineOf(ctx, s)
	if err != nil {
		return nil, start, false, err
	}
	since := cmp.Or(t.ReadyAt, s.live.Since.Time())
	ahead := l.above + l.turns + l.before
	switch {
	case staff.free <= 0:
		b := explain.WorkersFull(t.Queue, staff.slots, staff.used, l.place)
		if b.Holders, b.MoreHolders, err = x.holders(ctx, staff); err != nil {
			return nil, start, false, err
		}
		list = append(list, b)
		if l.above > 0 {
			list = append(list, explain.Ahead(drover.BlockerPriority, t.Queue, l.class, min(l.above, store.MaxPlace), l.above > store.MaxPlace, l.place))
		}
		if l.turns+l.before > 0 {
			list = append(list, explain.Ahead(drover.BlockerFairShare, t.Queue, s.live.Class, 0, false, l.place))
		}
	case l.above >= staff.free:
		list = append(list, explain.Ahead(drover.BlockerPriority, t.Queue, l.class, min(l.above, store.MaxPlace), l.above > store.MaxPlace, l.place))
		if l.turns+l.before > 0 {
			list = append(list, explain.Ahead(drover.BlockerFairShare, t.Queue, s.live.Class, 0, false, l.place))
		}
	case ahead >= staff.free:
		list = append(list, explain.Ahead(drover.BlockerFairShare, t.Queue, s.live.Class, 0, false, l.place))
		if l.above > 0 {
			list = append(list, explain.Ahead(drover.BlockerPriority, t.Queue, l.class, min(l.above, store.MaxPlace), l.above > store.MaxPlace, l.place))
		}
	case open:
		list = append(list, explain.Handoff(t.Queue))
	}
	for i := range list {
		list[i].Since = since
	}
	if len(list) == 0 {
		return nil, start, false, nil
	}
	busy, more, err := x.busy(ctx, staff)
	if err != nil {
		return nil, start, false, err
	}
	w, ok := forecast.Line{Free: staff.free, Busy: busy, MoreBusy: more, Ahead: l.ahead}.Forecast()
	ok = ok && l.counted
	if ok && ahead < staff.free {
		w = forecast.Wait{From: 1000} // at once
	}
	if ok {
		eta := x.eta(w, nil)
		if n := x.ends(l.ahead, busy); n > 0 {
			eta.Basis = fmt.Sprintf("%s in the last %dm", explain.Count(n, "end", "ends"), forecast.Minutes)
		}
		for i := range list {
			list[i].ETA = eta
		}
	}
	return list, w, ok, nil
}

// ends counts what ended of late of those that a forecast is made from.
func (x *explainer) ends(ahead []forecast.Ahead, busy []forecast.Busy) (n int) {
	seen := map[*forecast.Service]bool{nil: true}
	for _, a := range ahead {
		if !seen[a.Of] {
			seen[a.Of] = true
			n += a.Of.Ends(x.now.Time())
		}
	}
	for _, b := range busy {
		if !seen[b.Of] {
			seen[b.Of] = true
			n += b.Of.Ends(x.now.Time())
		}
	}
	return n
}

// lineOf finds a task's place: classes above go first, then the lanes of its class
// in turn.
func (x *explainer) lineOf(ctx context.Context, s *taskState) (l line, err error) {
	p := store.LinePlace{Queue: s.live.Queue, Lane: s.live.Lane, Class: s.live.Class, Due: s.live.DueAt, Task: s.ID}
	status := s.live.Status
	if p.Lane == lifecycle.HeldLane {
		p.Lane, status = s.Lane, drover.Queued // where it stands again when its job goes on
	}
	at, counted, err := x.beside(ctx, status, p)
	if err != nil {
		return l, err
	}
	l.counted = counted
	counts := map[int32]int64{}
	others := slices.DeleteFunc(slices.Clone(at.Lanes), func(id int32) bool { return id == p.Lane })
	mine := at.Before
	if err := x.tx.Pipe(ctx, store.CountLanes(status, p.Queue, p.Class, others, int32(mine)+1, counts), store.CountLanes(status, p.Queue, p.Class, []int32{p.Lane}, store.MaxPlace+1, counts)); err != nil {
		return l, err
	}
	l.above, l.class, l.before = int(at.Above), at.First, int(at.Before)
	own, err := x.ofLane(ctx, s.Lane)
	if err != nil {
		return l, err
	}
	if l.before > 0 {
		l.ahead = append(l.ahead, forecast.Ahead{N: l.before, Of: own})
	}
	behind := int64(0)
	for _, lane := range others {
		n := min(counts[lane], mine)
		behind += counts[lane] - n
		l.turns += int(n)
		if n > 0 {
			its, err := x.ofLane(ctx, lane)
			if err != nil {
				return l, err
			}
			l.ahead = append(l.ahead, forecast.Ahead{N: int(n), Of: its})
		}
	}
	if l.above > 0 {
		l.ahead = append(l.ahead, forecast.Ahead{N: l.above, Of: own})
	}
	place := l.above + l.turns + l.before + 1
	more := len(at.Lanes) == store.MaxLanes || behind > 0 || counts[p.Lane] > store.MaxPlace
	after := counts[p.Lane] - at.Before // in its own lane, in which it stands itself unless it is held
	if s.live.Lane != lifecycle.HeldLane {
		after--
	}
	l.place = explain.Place{Position: place, Of: place + int(behind+max(after, 0)), MoreBehind: more}
	if place > store.MaxPlace {
		l.place = explain.Place{Position: store.MaxPlace, Of: place, MoreAhead: true, MoreBehind: more}
	}
	return l, nil
}

// beside reads what goes before a task, and counts on for the forecast where the place
// is not told any more. counted says that it came to the end.
func (x *explainer) beside(ctx context.Context, status drover.Status, p store.LinePlace) (at store.Beside, counted bool, err error) {
	for _, n := range []int{store.MaxPlace, store.MaxAhead} {
		at = store.Beside{}
		if err := x.tx.Pipe(ctx, store.ReadLine(status, p, n+1, &at)...); err != nil {
			return at, false, err
		}
		if counted = max(at.Above, at.Before) <= int64(n); counted {
			break
		}
	}
	return at, counted, nil
}

// crewKey is what workers are chosen by.
type crewKey struct {
	queue  string
	tenant int32
	kind   string
	needs  string // of a lane
}

// crew is the live workers of a queue, and those of them that could run a task.
type crew struct {
	words explain.Workers
	take  []store.SessionRow // that do not drain
	slots int
	used  int
	free  int
	rows  []store.RunningOf // of take; read once
	read  bool

	drains *crew // those that take no more
}

// crew finds the workers that could run tasks of a kind.
func (x *explainer) crew(ctx context.Context, k crewKey) (*crew, error) {
	if c := x.crews[k]; c != nil {
		return c, nil
	}
	if err := x.workers(ctx); err != nil {
		return nil, err
	}
	c := &crew{words: explain.Workers{Queue: k.queue, Kind: k.kind}}
	x.crews[k] = c
	asks := needsOf(k.needs)
	needs := admit.Needs{Labels: asks.WorkerLabels, Requests: asks.Resources}
	var unfit []*admit.Worker
	defer func() { c.words.Lacks = lacking(&needs, unfit) }()
	for i := range x.sessions {
		s := &x.sessions[i]
		if s.Tenant != 0 && s.Tenant != k.tenant || !slices.Contains(s.Queues, k.queue) {
			continue
		}
		c.words.Serve++
		if len(s.Kinds) > 0 && !slices.Contains(s.Kinds, k.kind) {
			continue
		}
		c.words.Kinds++
		if w := (&admit.Worker{Queues: []int32{0}, Labels: s.Labels, Resources: s.Resources, Slots: int(s.Slots)}); !needs.Serves(w) {
			if s.Draining {
				c.words.Draining++
			} else {
				unfit = append(unfit, w)
			}
			continue
		}
		of := c
		if s.Draining {
			c.words.Draining++
			if c.drains == nil {
				c.drains = &crew{words: c.words}
			}
			of = c.drains
		} else {
			c.words.Matching++
		}
		of.take = append(of.take, *s)
		of.slots += int(s.Slots)
		of.used += int(x.loads[s.ID])
		of.free += max(int(s.Slots)-int(x.loads[s.ID]), 0)
	}
	return c, nil
}

// workers reads the live sessions, of every tenant, and how much each runs.
func (x *explainer) workers(ctx context.Context) (err error) {
	if x.loads != nil {
		return nil
	}
	if x.sessions, err = x.e.liveSessions(ctx, x.tx, Caller{System: true}); err != nil {
		return err
	}
	x.loads = map[int64]int64{}
	ids := make([]int64, len(x.sessions))
	for i, s := range x.sessions {
		ids[i] = s.ID
	}
	return x.tx.Pipe(ctx, store.SessionLoads(ids, x.loads), store.QueueStates(&x.queues))
}

// unfit is why none of the workers could run the task, were it free.
func (c *crew) unfit() *drover.Blocker {
	switch {
	case len(c.take) > 0:
		return nil
	case c.words.Kinds == 0:
		b := explain.NoWorker(c.words)
		return &b
	case len(c.words.Lacks) > 0:
		b := explain.NoMatch(c.words)
		return &b
	}
	b := explain.Draining(c.words)
	return &b
}

func (c *crew) executor(t *drover.Task) drover.Executor {
	if t.Kind == dag.SubKind {
		return drover.Executor{Queue: t.Queue, Kind: t.Kind, Message: "No worker: it runs a pipeline, as a job of its own."}
	}
	x := drover.Executor{Queue: t.Queue, Kind: t.Kind, Workers: c.words.Serve, Matching: len(c.take), Slots: c.slots, Free: c.free}
	x.Message = fmt.Sprintf("A worker of queue %s that runs %s: %d of %s match, %d of %d slots free.", t.Queue, t.Kind, x.Matching, explain.Count(x.Workers, "worker", "workers"), x.Free, x.Slots)
	if c.words.Draining > 0 {
		x.Message = fmt.Sprintf("A worker of queue %s that runs %s: %d of %s match (%d draining), %d of %d slots free.", t.Queue, t.Kind, x.Matching, explain.Count(x.Workers, "worker", "workers"), c.words.Draining, x.Free, x.Slots)
	}
	return x
}

// running reads what the workers run.
func (x *explainer) running(ctx context.Context, c *crew) error {
	if c.read {
		return nil
	}
	c.read = true
	ids := make([]int64, 0, len(c.take))
	for _, s := range c.take {
		if len(ids) < store.MaxHolders {
			ids = append(ids, s.ID)
		}
	}
	if err := x.tx.Pipe(ctx, store.SessionHolders(ids, &c.rows)); err != nil {
		return err
	}
	slices.SortFunc(c.rows, func(a, b store.RunningOf) int {
		return cmp.Or(cmp.Compare(a.ClaimedAt, b.ClaimedAt), compareIDs(a.Task, b.Task))
	})
	return nil
}

// busy is the slots in use, for a forecast.
func (x *explainer) busy(ctx context.Context, c *crew) (list []forecast.Busy, more int, err error) {
	if err := x.running(ctx, c); err != nil {
		return nil, 0, err
	}
	for _, r := range c.rows {
		if len(list) == store.MaxHolders {
			break
		}
		its, err := x.ofLane(ctx, r.Lane)
		if err != nil {
			return nil, 0, err
		}
		list = append(list, forecast.Busy{For: max(x.now.Sub(r.ClaimedAt), 0), Of: its})
	}
	return list, max(c.used-len(list), 0), nil
}

// holders are those who have the slots, the first to give one back first.
func (x *explainer) holders(ctx context.Context, c *crew) (list []drover.Holder, more int, err error) {
	if err := x.running(ctx, c); err != nil {
		return nil, 0, err
	}
	for _, r := range c.rows {
		h, err := x.holder(ctx, r)
		if err != nil {
			return nil, 0, err
		}
		list = append(list, h)
	}
	slices.SortStableFunc(list, func(a, b drover.Holder) int {
		switch {
		case a.ExpectedReleaseIn == nil || b.ExpectedReleaseIn == nil:
			return 0
		default:
			return cmp.Compare(*a.ExpectedReleaseIn, *b.ExpectedReleaseIn)
		}
	})
	shown := min(len(list), holdersShown)
	return list[:shown], max(c.used-shown, 0), nil
}

// holder shows who has something; of another tenant no more than that.
func (x *explainer) holder(ctx context.Context, r store.RunningOf) (h drover.Holder, err error) {
	lane, err := x.e.laneOf(ctx, x.tx, r.Lane)
	if err != nil {
		return h, err
	}
	h = drover.Holder{Tenant: anotherTenant, HeldFor: explain.Span(x.now.Sub(r.ClaimedAt))}
	if lane.Tenant == x.c.Tenant {
		h.TaskID, h.JobID, h.Tenant = r.Task, r.Job, x.c.TenantName
		for i := range x.sessions {
			if x.sessions[i].ID == r.Session {
				h.Worker = x.sessions[i].Worker
			}
		}
	}
	its, err := x.service(ctx, kindOf(lane))
	if err != nil {
		return h, err
	}
	if w, ok := its.Of(x.now.Sub(r.ClaimedAt)); ok {
		d := explain.Span(w.P50)
		h.ExpectedReleaseIn = &d
	}
	return h, nil
}

// dependency is the wait for tasks above, and how long the longest way through them
// still takes.
func (x *explainer) dependency(ctx context.Context, s *taskState, t *drover.Task) (b drover.Blocker, w forecast.Wait, known bool, err error) {
	if x.plan == nil {
		return explain.Dependency(nil, nil), w, false, nil
	}
	node := &x.plan.Nodes[s.Node]
	switch {
	case node.Backs >= 0:
		return explain.StandsBy("it runs beside task " + x.plan.Nodes[node.Backs].Name + ", once an attempt of that has failed"), w, false, nil
	case node.Primary >= 0:
		return explain.StandsBy("it runs in the place of task " + x.plan.Nodes[node.Primary].Name + ", if that fails for good"), w, false, nil
	case x.plan.Rescue == s.Node:
		return explain.StandsBy("it is the rescue, and runs if a failure is not made good"), w, false, nil
	case slices.Contains(x.plan.Finally, s.Node):
		return explain.StandsBy("it runs finally, when the other tasks have ended"), w, false, nil
	}
	if err := x.count(ctx); err != nil {
		return b, w, false, err
	}
	ways := x.ways()
	above := slices.DeleteFunc(slices.Clone(node.Parents), x.over)
	all, err := x.parents(ctx, s, above)
	if err != nil {
		return b, w, false, err
	}
	var parents []explain.Parent
	at := -1
	var longest forecast.Wait
	for i, p := range above {
		if all[i].Total > 0 && all[i].Ended == all[i].Total && !all[i].Unexpanded {
			continue // the element that it waits for has ended
		}
		if way := ways[p]; at < 0 || way.P50 > longest.P50 {
			at, longest = len(parents), way
		}
		parents = append(parents, all[i])
	}
	var on *explain.Parent
	if at >= 0 {
		on = &parents[at]
	}
	w, known = longest, longest.From > 0
	return explain.Dependency(parents, on), w, known, nil
}

// over reports whether all of a node has ended.
func (x *explainer) over(node int32) bool {
	n := x.nodes[node]
	return n != nil && n.Total > 0 && n.Live == 0
}

// parents are nodes above, or the one element of each that the task waits for.
func (x *explainer) parents(ctx context.Context, s *taskState, nodes []int32) ([]explain.Parent, error) {
	same := map[int32]bool{}
	for _, e := range x.plan.Edges {
		if e.Child == s.Node && e.Same && s.Index >= 0 {
			same[e.Parent] = true
		}
	}
	out := make([]explain.Parent, len(nodes))
	at := map[store.Place]*explain.Parent{}
	var places []store.Place
	for i, node := range nodes {
		n, p := &x.plan.Nodes[node], &out[i]
		p.Name = n.Name
		if c := x.nodes[node]; c != nil {
			p.Total, p.Ended, p.Running = int(c.Total), int(c.Total-c.Live), int(c.Running)
		}
		p.Unexpanded = n.Mapped && p.Total == 0
		if n.Mapped && !same[node] {
			continue
		}
		place := store.Place{Node: node}
		if same[node] {
			place.Index = s.Index
		}
		places, at[place] = append(places, place), p
	}
	var rows []store.TaskRow
	if err := x.tx.Pipe(ctx, store.TasksAt(s.Job, places, &rows)); err != nil {
		return nil, err
	}
	list, err := states(ctx, x.tx, rows)
	if err != nil {
		return nil, err
	}
	var leases []store.Lease
	for i := range list {
		l := &list[i]
		p := at[store.Place{Node: l.Node, Index: l.Index}]
		p.Task, p.Total, p.Ended, p.Running, p.Unexpanded = l.ID, 1, 0, 0, false
		if same[l.Node] {
			p.Name = fmt.Sprintf("%s[%d]", p.Name, l.Index)
		}
		switch status := l.status(); {
		case status.Final():
			p.Ended = 1
		case status == drover.Running:
			p.Running = 1
			leases = append(leases, store.Lease{Task: l.ID, Version: l.live.LeaseVersion, Session: l.live.Session})
		}
	}
	progress := map[drover.TaskID]drover.Progress{}
	if err := x.tx.Pipe(ctx, store.ReadProgress(leases, progress)); err != nil {
		return nil, err
	}
	for i := range out {
		if got, ok := progress[out[i].Task]; ok {
			out[i].Progress = &got
		}
	}
	return out, nil
}

// count reads how far each node is, and how long the tasks of each take.
func (x *explainer) count(ctx context.Context) error {
	if x.nodes != nil {
		return nil
	}
	x.nodes, x.slots = map[int32]*store.NodeCount{}, map[int32]int{}
	for i := range x.plan.Nodes {
		n := &x.plan.Nodes[i]
		id, err := x.e.knownQueue(ctx, x.tx, n.Queue)
		if err != nil {
			return err
		}
		if _, err := x.service(ctx, store.KindKey{Queue: id, Tenant: x.row.Tenant, Kind: n.Kind}); err != nil {
			return err
		}
		staff, err := x.crew(ctx, crewKey{queue: n.Queue, tenant: x.row.Tenant, kind: n.Kind, needs: laneKeyOf(x.plan, n, id).Needs})
		if err != nil {
			return err
		}
		x.slots[int32(i)] = max(staff.slots, 1)
		if n.MaxParallel > 0 {
			x.slots[int32(i)] = min(x.slots[int32(i)], int(n.MaxParallel))
		}
	}
	return x.tx.Pipe(ctx, store.NodeCounts(x.row.ID, x.nodes)...)
}

// ways says of each node how long the longest way through what has not ended still
// takes until it has. Nodes of which nothing is known take no time.
func (x *explainer) ways() map[int32]forecast.Wait {
	if x.waysLeft != nil {
		return x.waysLeft
	}
	ways := map[int32]forecast.Wait{}
	x.waysLeft = ways
	if len(x.plan.Nodes) > chainNodesAtMost {
		return ways
	}
	for _, level := range x.plan.Levels() {
		for _, n := range level {
			if x.over(n) {
				continue
			}
			node := &x.plan.Nodes[n]
			if node.Dormant && x.nodes[n] == nil {
				continue
			}
			var before forecast.Wait
			for _, p := range node.Parents {
				if w := ways[p]; w.P50 > before.P50 {
					before = w
				}
			}
			ways[n] = before.Plus(x.rest(n))
		}
	}
	return ways
}

// rest is how long what is left of a node takes by itself.
func (x *explainer) rest(n int32) (w forecast.Wait) {
	node := &x.plan.Nodes[n]
	id, ok := x.e.names.queueID.Load(node.Queue)
	if !ok {
		return w
	}
	one, ok := x.services[store.KindKey{Queue: id.(int32), Tenant: x.row.Tenant, Kind: node.Kind}].Of(0)
	if !ok {
		return w
	}
	left := 1
	if c := x.nodes[n]; c != nil && c.Live > 0 {
		left = int(c.Live)
	}
	slots := max(x.slots[n], 1)
	turns := forecast.Times((left+slots-1)/slots, one.P50)
	return forecast.Wait{P50: turns, P90: turns + (one.P90 - one.P50), From: one.From}
}

// chainETA tells the forecast of a way through the graph.
func (x *explainer) chainETA(w forecast.Wait) *drover.ETA {
	return &drover.ETA{P50: explain.Span(w.P50), P90: explain.Span(w.P90), Basis: "the longest way through the tasks above it, by how long such tasks took", Confidence: w.Confidence()}
}
