package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// sweepRows bounds the rows one transaction of a sweep moves.
const sweepRows = 5000

// Cancel stops a job. From the commit on nothing of it starts; what waits ends
// as CANCELLED at once, what runs is told with its worker's next renewal and
// ends when the worker acknowledges, or by force after the grace. It needs no
// live worker. Cancelling a job that is being cancelled changes nothing.
func (e *Engine) Cancel(ctx context.Context, c Caller, id drover.JobID, r Request) (drover.Job, error) {
	return e.hold(ctx, c, id, r, "cancel", cancelRow)
}

func cancelRow(ctx context.Context, tx store.Tx, x *changes, j *store.JobLive, c Caller, r Request) error {
	if j.Cancelling == store.CauseUser || j.Phase == phaseUndo {
		return nil // what undoes the job's work is not stopped
	}
	if j.Cancelling != 0 && j.Cancelling != store.CauseFinish {
		return drover.Errorf(drover.CodeInvalidTransition, "job %s is stopping already: %s", j.Job, causeText(j.Cancelling))
	}
	if j.Cancelling == store.CauseFinish {
		if err := tx.Pipe(ctx, store.DeleteHold(j.Job, store.HoldCancel)); err != nil {
			return err
		}
	}
	x.cancel(j, store.CauseUser, c.Actor, r.Reason)
	x.event(j, drover.JobCancelRequested, drover.TaskID{}, actionData(c, r))
	return nil
}

func causeText(cause store.Cause) string {
	switch cause {
	case store.CauseFailFast, store.CauseFinish:
		return "one of its tasks failed"
	case store.CauseExpired:
		return "its expires_at passed"
	default: // store.CauseUser
		return "it was cancelled"
	}
}

// Pause keeps tasks of a job from starting, and those of the jobs that they run; what
// runs goes on. Pausing a paused job changes nothing.
func (e *Engine) Pause(ctx context.Context, c Caller, id drover.JobID, r Request) (drover.Job, error) {
	return e.hold(ctx, c, id, r, "pause", pauseRow)
}

func pauseRow(ctx context.Context, tx store.Tx, x *changes, j *store.JobLive, c Caller, r Request) error {
	if j.Paused {
		return nil
	}
	if j.Cancelling != 0 {
		return drover.Errorf(drover.CodeInvalidTransition, "job %s is stopping: %s", j.Job, causeText(j.Cancelling))
	}
	j.Paused = true
	j.Graph++
	x.holds = append(x.holds, store.Hold{Job: j.Job, Kind: store.HoldPause, Cause: store.CauseUser, At: x.now, Actor: c.Actor, Reason: r.Reason})
	x.event(j, drover.JobPaused, drover.TaskID{}, actionData(c, r))
	x.sweep = append(x.sweep, j.Job)
	return tx.Pipe(ctx, store.DeleteHold(j.Job, store.HoldResume), store.AskChildren(j.Job, store.WantPause, &x.asked))
}

// Resume lets a paused job go on, and the jobs that its tasks run.
func (e *Engine) Resume(ctx context.Context, c Caller, id drover.JobID, r Request) (drover.Job, error) {
	return e.hold(ctx, c, id, r, "resume", resumeRow)
}

func resumeRow(ctx context.Context, tx store.Tx, x *changes, j *store.JobLive, c Caller, r Request) error {
	if !j.Paused {
		return nil
	}
	j.Paused = false
	j.Graph++
	x.holds = append(x.holds, store.Hold{Job: j.Job, Kind: store.HoldResume, Cause: store.CauseUser, At: x.now, Actor: c.Actor})
	x.event(j, drover.JobResumed, drover.TaskID{}, actionData(c, r))
	x.sweep = append(x.sweep, j.Job)
	return tx.Pipe(ctx, store.DeleteHold(j.Job, store.HoldPause), store.AskChildren(j.Job, store.WantResume, &x.asked))
}

func actionData(c Caller, r Request) []byte {
	b, err := json.Marshal(struct {
		Actor  string `json:"actor,omitempty"`
		Reason string `json:"reason,omitempty"`
	}{c.Actor, cutAt(r.Reason, 1000)})
	if err != nil {
		return nil
	}
	return b
}

// checkRequest validates what actions have in common.
func checkRequest(r *Request) error {
	if len(r.ID) > maxKey || !clean(r.ID) || r.ID != "" && strings.TrimSpace(r.ID) == "" {
		return &drover.Error{Code: drover.CodeValidation, Detail: "the request is not valid",
			Fields: []drover.FieldError{{Field: "request_id", Message: fmt.Sprintf("must have at most %d bytes of valid UTF-8 without control characters, not only blanks", maxKey)}}}
	}
	if len(r.Reason) > 1000 {
		return &drover.Error{Code: drover.CodeValidation, Detail: "the request is not valid",
			Fields: []drover.FieldError{{Field: "reason", Message: "must have at most 1000 bytes"}}}
	}
	r.Reason = clearText(r.Reason)
	return nil
}

// once records a request id. done says that the request was carried out before.
func (e *Engine) once(ctx context.Context, tx store.Tx, c Caller, r Request, action, subject string, now lifecycle.Instant) (done bool, err error) {
	if r.ID == "" {
		return false, nil
	}
	was, on, err := store.Operation(ctx, tx, c.Tenant, r.ID, action, subject, now)
	switch {
	case err != nil:
		return false, err
	case was == "":
		return false, nil
	case was != action || on != subject:
		return false, drover.Errorf(drover.CodeIdempotencyReused, "request_id %q was used for %s of %s; use a new one", r.ID, was, on)
	}
	return true, nil
}

// hold changes a live job's row under its lock. A job of one task gets a row of
// its own first.
func (e *Engine) hold(ctx context.Context, c Caller, id drover.JobID, r Request, action string, change func(context.Context, store.Tx, *changes, *store.JobLive, Caller, Request) error) (drover.Job, error) {
	if err := checkRequest(&r); err != nil {
		return drover.Job{}, err
	}
	var x *changes
	err := e.db.Write(ctx, func(tx store.Tx) error {
		x = e.changes(e.now())
		heads := map[drover.JobID]store.JobHead{}
		if err := tx.Pipe(ctx, store.ReadJobHeads([]drover.JobID{id}, heads)); err != nil {
			return err
		}
		if h, ok := heads[id]; !ok || h.Tenant != c.Tenant {
			return notFound("job", id)
		}
		done, err := e.once(ctx, tx, c, r, action, id.String(), x.now)
		if err != nil || done {
			return err
		}
		j, last, err := e.ownRow(ctx, tx, x, id, c.Tenant)
		if err != nil {
			return err
		}
		if j == nil {
			if action == "cancel" && last.Status == drover.Cancelled {
				return nil
			}
			return drover.Errorf(drover.CodeInvalidTransition, "job %s is %s already; it cannot be %s", id, last.Status, map[string]string{"cancel": "cancelled", "pause": "paused", "resume": "resumed"}[action])
		}
		if err := change(ctx, tx, x, j, c, r); err != nil {
			return err
		}
		return x.save(ctx, tx)
	})
	if err != nil {
		return drover.Job{}, fmt.Errorf("%s job: %w", action, err)
	}
	e.after(ctx, x)
	return e.Job(ctx, c, id)
}

// ownRow locks the live row of a job, made here for a job of one task. It is
// nil for a job that has ended; last says how.
func (e *Engine) ownRow(ctx context.Context, tx store.Tx, x *changes, id drover.JobID, tenant int32) (j *store.JobLive, last store.JobFinal, err error) {
	// Claims in flight hold rows of task_queued; locking them waits for those,
	// so that the hold holds from its commit on.
	var queued, solo []lifecycle.Task
	if err := tx.Pipe(ctx, append(store.Disown(id, &solo), store.LockJobQueued(id, sweepRows, &queued))...); err != nil {
		return nil, last, err
	}
	if len(solo) == 1 {
		x.newJob(&store.JobLive{Job: id, Tenant: tenant, Run: 1, Events: int64(-solo[0].Events), Total: 1, Open: 1})
		return x.fresh[0], last, nil
	}
	if err := e.lockJobs(ctx, tx, x, []drover.JobID{id}); err != nil {
		return nil, last, err
	}
	if j := x.loaded[id]; j != nil {
		return j, last, nil
	}
	if last, err = store.LastRun(ctx, tx, id); err != nil {
		return nil, last, err
	}
	if last.Run == 0 {
		return nil, last, store.ErrRetry // its one row was on the move
	}
	return nil, last, nil
}

// sweepJob moves what a job's holds say, in transactions of at most sweepRows
// rows of each table, until nothing moves. It returns how many rows moved.
func (e *Engine) sweepJob(ctx context.Context, id drover.JobID) (total int, f following, err error) {
	for {
		n, more, err := e.sweepPass(ctx, id)
		total += n
		f.add(more)
		if err != nil || n == 0 {
			return total, f, err
		}
	}
}

func (e *Engine) sweepPass(ctx context.Context, id drover.JobID) (n int, f following, err error) {
	var x *changes
	err = e.db.Write(ctx, func(tx store.Tx) error {
		x, n = e.changes(e.now()), 0
		var holds []store.Hold
		if err := tx.Pipe(ctx, store.ReadHolds(id, &holds)); err != nil {
			return err
		}
		byKind := map[store.HoldKind]store.Hold{}
		for _, h := range holds {
			byKind[h.Kind] = h
		}
		var err error
		switch {
		case byKind[store.HoldCancel].Kind != 0:
			n, err = e.sweepCancel(ctx, tx, x, byKind[store.HoldCancel])
		case byKind[store.HoldPause].Kind != 0 && !byKind[store.HoldPause].Swept:
			n, err = e.sweepPause(ctx, tx, x, byKind[store.HoldPause])
		case byKind[store.HoldResume].Kind != 0:
			n, err = e.sweepResume(ctx, tx, x, byKind[store.HoldResume])
		}
		return err
	})
	if err != nil {
		return 0, f, fmt.Errorf("sweep job %s: %w", id, err)
	}
	e.tell(x)
	f = x.follows()
	f.sweep = nil // this is that
	return n, f, nil
}

// stillHeld locks the hold that a sweep acts on, after the rows it has taken, so
// that the hold does not end before the sweep commits. One that has ended since it
// was read, or has made room for another, is looked at again.
func stillHeld(ctx context.Context, tx store.Tx, h store.Hold) error {
	var now []store.Hold
	if err := tx.Pipe(ctx, store.LockHold(h.Job, h.Kind, &now)); err != nil {
		return err
	}
	if len(now) == 0 || now[0].At != h.At || now[0].Cause != h.Cause {
		return store.ErrRetry
	}
	return nil
}

// sweepCancel ends what waits, and by force what still runs after the grace.
func (e *Engine) sweepCancel(ctx context.Context, tx store.Tx, x *changes, h store.Hold) (int, error) {
	id := h.Job
	var rows []lifecycle.Task
	var list []store.Stmt
	spare := store.SpareOwned
	switch {
	case h.Cause == store.CauseFinish:
		spare = store.SpareBegun
	case x.now > h.At.Add(e.opts.CancelGrace):
		spare = store.SpareNone
		list = append(list, store.TakeJobRunning(id, sweepRows, &rows))
	}
	heads := map[drover.JobID]store.JobHead{}
	list = append(append(list, store.TakeJobLive(id, spare, sweepRows, &rows)...), store.ReadJobHeads([]drover.JobID{id}, heads))
	if err := tx.Pipe(ctx, list...); err != nil {
		return 0, err
	}
	x.belongs(heads)
	var plan *compiled
	if p := heads[id].Pipeline; p != 0 {
		var err error
		if plan, err = e.plan(ctx, tx, p); err != nil {
			return 0, err
		}
	}
	if err := e.lockJobs(ctx, tx, x, []drover.JobID{id}); err != nil {
		return 0, err
	}
	j := x.loaded[id]
	if j == nil {
		if len(rows) > 0 {
			return 0, store.ErrRetry
		}
		return 0, tx.Pipe(ctx, store.DeleteHold(id, store.HoldCancel)) // of a job that has ended
	}
	if err := stillHeld(ctx, tx, h); err != nil {
		return 0, err
	}
	if plan != nil && plan.Calls() && h.Cause != store.CauseFinish {
		if err := tx.Pipe(ctx, store.AskChildren(id, store.WantCancel, &x.asked)); err != nil {
			return 0, err
		}
	}
	if len(rows) == 0 {
		return 0, nil
	}
	if err := readLineWaits(ctx, tx, pointers(rows)); err != nil {
		return 0, err
	}
	kind := ""
	if plan == nil {
		var only []store.TaskRow
		if err := tx.Pipe(ctx, store.ReadTasks([]drover.TaskID{rows[0].ID}, &only)); err != nil {
			return 0, err
		}
		kind = only[0].Kind
	}
	stops := map[drover.TaskID]store.Stop{}
	running := slices.DeleteFunc(slices.Clone(rows), func(t lifecycle.Task) bool { return t.Status != drover.Running })
	if err := tx.Pipe(ctx, store.ReadStops(running, stops)); err != nil {
		return 0, err
	}
	for i := range rows {
		t := rows[i]
		how := ending{reason: h.Reason, stop: stops[t.ID]}
		how.at(plan, t.Node, t.Index, kind)
		if t.Status == drover.Running {
			how.was = &rows[i]
		}
		after := ended(&how, t, h.Cause, true, x.now)
		x.end(j, j.Tenant, after, how)
	}
	return len(rows), x.save(ctx, tx)
}

// sweepPause puts claimable tasks of a paused job where nobody scans.
func (e *Engine) sweepPause(ctx context.Context, tx store.Tx, x *changes, h store.Hold) (int, error) {
	id := h.Job
	var queued, ready []lifecycle.Task
	if err := tx.Pipe(ctx, store.TakeJobReady(id, false, sweepRows, &ready), store.TakeJobQueued(id, sweepRows, &queued)); err != nil {
		return 0, err
	}
	if err := stillHeld(ctx, tx, h); err != nil {
		return 0, err
	}
	if len(queued)+len(ready) == 0 {
		return 0, tx.Pipe(ctx, store.SweptHold(id, store.HoldPause))
	}
	if err := readLineWaits(ctx, tx, pointers(ready)); err != nil {
		return 0, err
	}
	for _, t := range queued {
		x.place(lifecycle.Held(t, x.now))
	}
	for _, t := range ready {
		t.Waits, t.Since = t.TotalAt(x.now), max(t.Since, x.now)
		t.Lane = lifecycle.HeldLane
		x.place(t)
	}
	return len(queued) + len(ready), x.save(ctx, tx)
}

// sweepResume stands held tasks in line again.
func (e *Engine) sweepResume(ctx context.Context, tx store.Tx, x *changes, h store.Hold) (int, error) {
	id := h.Job
	var ready []lifecycle.Task
	if err := tx.Pipe(ctx, store.TakeJobReady(id, true, sweepRows, &ready), store.WakeWaiting(id, x.now)); err != nil {
		return 0, err
	}
	if err := stillHeld(ctx, tx, h); err != nil {
		return 0, err
	}
	if len(ready) == 0 {
		return 0, tx.Pipe(ctx, store.DeleteHold(id, store.HoldResume))
	}
	lanes := map[drover.TaskID]int32{}
	if err := tx.Pipe(ctx, store.TaskLanes(ready, lanes)); err != nil {
		return 0, err
	}
	for _, t := range ready {
		x.place(lifecycle.Admitted(t, lanes[t.ID], x.now))
	}
	return len(ready), x.save(ctx, tx)
}
