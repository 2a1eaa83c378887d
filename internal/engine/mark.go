package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// MarkRequest says how a task has ended. Its reason must be there.
type MarkRequest struct {
	Request
	// Status is SUCCEEDED, FAILED or SKIPPED.
	Status drover.Status
	// Output is that of a success.
	Output json.RawMessage
}

// typeMarked is the type of the failure of a task that somebody said has failed.
const typeMarked = "marked"

func checkMark(r *MarkRequest) error {
	if err := checkRequest(&r.Request); err != nil {
		return err
	}
	bad := func(field, format string, args ...any) error {
		return &drover.Error{Code: drover.CodeValidation, Detail: "the mark is not valid", Fields: []drover.FieldError{{Field: field, Message: fmt.Sprintf(format, args...)}}}
	}
	switch {
	case r.Status != drover.Succeeded && r.Status != drover.Failed && r.Status != drover.Skipped:
		return bad("status", "must be SUCCEEDED, FAILED or SKIPPED")
	case r.Reason == "":
		return bad("reason", "is empty; say why, for the record")
	case len(r.Output) > MaxPayload:
		return drover.Errorf(drover.CodePayloadTooLarge, "output has %d bytes; at most %d", len(r.Output), MaxPayload)
	case len(r.Output) > 0 && r.Status != drover.Succeeded:
		return bad("output", "is that of a task that has succeeded; leave it out")
	case len(r.Output) > 0 && !json.Valid(r.Output):
		return bad("output", "is not valid JSON")
	}
	return nil
}

// marking is how somebody says that a task has ended.
type marking struct {
	c      Caller
	r      MarkRequest
	status drover.Status
	key    dag.Key
	lane   int32 // of the task when it is not held

	race  *race            // nobody said so: it is a task with a backup, or one
	taken []lifecycle.Task // the row of a live task that does not run
	again lifecycle.Task   // the new generation of a finished task
}

func (m *marking) outcome() dag.Outcome { return dag.OutcomeOf(m.status, false) }

// stops reports whether the job stops at this end.
func (m *marking) stops(p *compiled) bool {
	return p != nil && (m.status == drover.Failed || m.status == drover.DeadLetter) && p.Stops(m.key)
}

// after is the task as it ends.
func (m *marking) after(t lifecycle.Task, now lifecycle.Instant) lifecycle.Task {
	if m.race != nil {
		return m.race.after(t, now)
	}
	return lifecycle.Marked(t, m.status, now)
}

// stopping refuses it while the job stops.
func (m *marking) stopping(j *store.JobLive) error {
	switch {
	case j == nil || j.Cancelling == 0 || m.race != nil && j.Cancelling == store.CauseFinish:
		return nil
	case m.race != nil:
		return errOvertaken
	}
	return drover.Errorf(drover.CodeInvalidTransition, "job %s is stopping (%s); mark when it has ended", j.Job, causeText(j.Cancelling))
}

func (m *marking) fill(how *ending) {
	if m.race != nil {
		how.output, how.reason, how.failure = m.race.output, m.race.reason, m.race.failure
		return
	}
	how.output, how.reason = m.r.Output, m.r.Reason
	if m.status == drover.Failed {
		how.failure = &drover.Failure{Class: drover.ClassPermanent, Type: typeMarked, Message: "marked as failed by " + somebody(m.c.Actor) + ": " + m.r.Reason}
	}
}

// data is what the event of a mark says.
func (m *marking) data(was drover.Status, generation int32, with, gone []cameBackWith) []byte {
	b, err := json.Marshal(struct {
		Actor      string         `json:"actor,omitempty"`
		Reason     string         `json:"reason"`
		Was        drover.Status  `json:"was"`
		Status     drover.Status  `json:"status"`
		Generation int32          `json:"generation"`
		With       []cameBackWith `json:"with,omitempty"`
		Gone       []cameBackWith `json:"gone,omitempty"`
	}{m.c.Actor, m.r.Reason, was, m.status, generation, with, gone})
	if err != nil {
		return nil
	}
	return b
}

// end ends the new generation of a finished task.
func (m *marking) end(a *rerunning, j *store.JobLive, g *graph, with, gone []cameBackWith) {
	after := lifecycle.Marked(m.again, m.status, a.x.now)
	a.x.event(j, drover.TaskMarked, after.ID, m.data(a.at[m.key].Status, after.Generation, with, gone))
	var how ending
	how.at(a.plan, m.key.Node, m.key.Index, a.kind)
	m.fill(&how)
	a.x.end(j, j.Tenant, after, how)
	if a.plan != nil && !m.stops(a.plan) {
		g.ended(&m.again, m.outcome(), m.r.Output)
		g.want = nil // all that waits below is in hand
	}
}

// Mark ends a task as somebody says it has ended, and its job goes on as after any such
// end. A live task ends as it stands: what its worker reports later is refused. A
// finished one gets a new generation, and a finished job is reopened; what has run below
// stays as it is, what was kept from running there goes on.
func (e *Engine) Mark(ctx context.Context, c Caller, id drover.TaskID, r MarkRequest) (drover.Task, error) {
	if err := checkMark(&r); err != nil {
		return drover.Task{}, err
	}
	var x *changes
	err := e.reopening(ctx, func(tx store.Tx) error {
		x = e.changes(e.now())
		row, err := ownTask(ctx, tx, c, id)
		if err != nil {
			return err
		}
		if done, err := e.once(ctx, tx, c, r.Request, "mark", id.String(), x.now); err != nil || done {
			return err
		}
		m := &marking{c: c, r: r, status: r.Status, key: dag.Key{Node: row.Node, Index: row.Index}, lane: row.Lane}
		if err := e.fits(ctx, tx, m, row); err != nil {
			return err
		}
		t, err := liveRow(ctx, tx, row)
		if err != nil {
			return err
		}
		if t != nil {
			how := &report{task: *t, mark: m, Outcome: drover.Outcome{TaskID: id, Status: outcomeMarked, Output: r.Output}}
			if err := e.decide(ctx, tx, x, []*report{how}); err != nil || how.task.Status != drover.Waiting {
				return err
			}
			return tx.Pipe(ctx, store.StopChild(id, how.task.Generation, &x.asked))
		}
		h, err := head(ctx, tx, c, row.Job)
		if err != nil {
			return err
		}
		a := &rerunning{e: e, tx: tx, x: x, job: row.Job, head: h, c: c, r: RerunRequest{Request: r.Request}, mark: m}
		if err := a.prepare(ctx); err != nil {
			return err
		}
		if err := a.begin(ctx); err != nil {
			return err
		}
		return x.save(ctx, tx)
	})
	if err != nil {
		return drover.Task{}, fmt.Errorf("mark task: %w", err)
	}
	e.after(ctx, x)
	return e.Task(ctx, c, id)
}

// liveRow takes the row of a task that runs, or reads that of one that is live
// otherwise: it is taken in its turn, after the rows that wait for it.
func liveRow(ctx context.Context, tx store.Tx, row store.TaskRow) (*lifecycle.Task, error) {
	var taken []lifecycle.Task
	if err := tx.Pipe(ctx, store.TakeOneRunning(row.ID, &taken)); err != nil {
		return nil, err
	}
	if len(taken) > 0 {
		return &taken[0], nil
	}
	now, err := states(ctx, tx, []store.TaskRow{row})
	if err != nil {
		return nil, err
	}
	t := now[0].live
	if t != nil && t.Status == drover.Running {
		return nil, store.ErrRetry // it was claimed meanwhile
	}
	return t, nil
}

// takes adds how the row of a task that does not run is taken. One that is PENDING is
// locked in one go with those below, as others lock them.
func (m *marking) takes(with *around, t *lifecycle.Task) {
	if t.Status == drover.Pending {
		with.locked = append(with.locked, store.Key{Job: t.Job, Node: t.Node, Index: t.Index})
	}
	with.after = append(with.after, store.TakeOne(t, &m.taken)...)
}

// took looks at the row that was taken, which may have changed since it was read.
func (m *marking) took(ctx context.Context, tx store.Tx, t *lifecycle.Task) error {
	if len(m.taken) != 1 || m.taken[0].Generation != t.Generation || m.taken[0].Solo() != t.Solo() {
		return store.ErrRetry // somebody was faster
	}
	*t = m.taken[0]
	if err := readLineWaits(ctx, tx, []*lifecycle.Task{t}); err != nil {
		return err
	}
	if t.Lane == lifecycle.HeldLane {
		t.Lane = m.lane
	}
	return nil
}

// fits refuses tasks of maps with bounds, an output that the definition does not allow,
// and a success of a map as a whole.
func (e *Engine) fits(ctx context.Context, tx store.Tx, m *marking, row store.TaskRow) error {
	var p *compiled
	if row.Pipeline != 0 {
		var err error
		if p, err = e.plan(ctx, tx, row.Pipeline); err != nil {
			return err
		}
		if at, ok := p.BoundedBy(row.Node); ok {
			return bounded(p, at, "mark")
		}
	}
	if m.status != drover.Succeeded {
		return nil
	}
	if row.Index == dag.Unexpanded {
		return drover.Errorf(drover.CodeInvalidTransition, "task %s is a map that has not expanded; mark what its list comes from, or mark it SKIPPED", row.ID)
	}
	if p == nil || !p.HasOutputSchema(row.Node) {
		return nil
	}
	var bad *drover.Error
	if err := p.CheckOutput(row.Node, m.r.Output); errors.As(err, &bad) {
		return &drover.Error{Code: drover.CodeValidation, Detail: "the output is not what the definition says: " + bad.Detail, Fields: bad.Fields}
	} else if err != nil {
		return &drover.Error{Code: drover.CodeValidation, Detail: "the output is not what the definition says", Fields: []drover.FieldError{{Field: "output", Message: err.Error()}}}
	}
	return nil
}
