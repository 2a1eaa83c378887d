package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store"
)

// PauseQueue lets nothing of a queue start, of any tenant; what runs goes on. From the
// commit on nothing is claimed from it. Pausing a paused queue changes nothing.
func (e *Engine) PauseQueue(ctx context.Context, c Caller, name string, r Request) (drover.Queue, error) {
	return e.setQueue(ctx, c, name, "paused", r, func(q *store.QueueState) { q.Paused = true })
}

// ResumeQueue lets tasks of a paused queue start, and a draining one take jobs again.
func (e *Engine) ResumeQueue(ctx context.Context, c Caller, name string, r Request) (drover.Queue, error) {
	return e.setQueue(ctx, c, name, "resumed", r, func(q *store.QueueState) { q.Paused, q.Draining = false, false })
}

// DrainQueue lets a queue take no new jobs; what is in it runs.
func (e *Engine) DrainQueue(ctx context.Context, c Caller, name string, r Request) (drover.Queue, error) {
	return e.setQueue(ctx, c, name, "drained", r, func(q *store.QueueState) { q.Draining = true })
}

func (e *Engine) setQueue(ctx context.Context, c Caller, name, action string, r Request, change func(*store.QueueState)) (drover.Queue, error) {
	if err := checkRequest(&r); err != nil {
		return drover.Queue{}, err
	}
	if err := c.operates("a queue is that of all tenants"); err != nil {
		return drover.Queue{}, err
	}
	err := e.db.Write(ctx, func(tx store.Tx) error {
		now := e.now()
		if err := tx.Pipe(ctx, store.LockLeader(leadName)); err != nil { // no decision is under way meanwhile
			return err
		}
		var rows []store.QueueState
		if err := tx.Pipe(ctx, store.LockQueue(name, &rows)); err != nil {
			return err
		}
		if len(rows) == 0 {
			return notFound("queue", cut(name))
		}
		was := rows[0]
		is := was
		if change(&is); is == was {
			return nil
		}
		is.ChangedAt, is.Actor, is.Reason = now, c.Actor, r.Reason
		// Claims in flight are waited for, so that nothing is claimed after the commit.
		var standing []store.Standing
		var lines []store.Line
		if is.Paused && !was.Paused {
			if err := store.QueuedLines(ctx, tx, e.db.Dialect(), 1, 1, &lines); err != nil {
				return err
			}
			lines = slices.DeleteFunc(lines, func(l store.Line) bool { return l.Queue != is.ID })
		}
		list := []store.Stmt{store.SetQueue(is), store.LiftGate(now), store.InsertLimitChange(store.LimitChange{Name: "queue:" + name, Action: action, Actor: c.Actor, Reason: r.Reason, At: now})}
		return tx.Pipe(ctx, append(store.LockStanding(lines, nil, &standing), list...)...)
	})
	if err != nil {
		return drover.Queue{}, fmt.Errorf("queue %s: %w", cut(name), err)
	}
	e.gateChanged(ctx)
	if action == "resumed" && e.OnQueued != nil {
		e.OnQueued([]string{name})
	}
	return e.Queue(ctx, c, name)
}

// Queue returns a queue, with who changed its state.
func (e *Engine) Queue(ctx context.Context, c Caller, name string) (drover.Queue, error) {
	all, err := e.Queues(ctx, c)
	if err != nil {
		return drover.Queue{}, err
	}
	i := slices.IndexFunc(all, func(q drover.Queue) bool { return q.Name == name })
	if i < 0 {
		return drover.Queue{}, drover.Errorf(drover.CodeNotFound, "there is no queue %q; a queue begins to exist with its first task or worker", cut(name))
	}
	q := all[i]
	var changes []store.LimitChange
	if err := e.db.Read(ctx, func(tx store.Tx) error {
		changes = nil
		return tx.Pipe(ctx, store.LimitChanges(0, "queue:"+name, 20, &changes))
	}); err != nil {
		return q, fmt.Errorf("queue %s: %w", cut(name), err)
	}
	for _, x := range changes {
		q.Changes = append(q.Changes, drover.QueueChange{At: x.At.Time(), Action: x.Action, Actor: x.Actor, Reason: x.Reason})
	}
	return q, nil
}

// takesJobs refuses a job for a queue that is draining.
func (g *gate) takesJobs(queue int32) *drover.Error {
	if g == nil || !g.queues[queue].Draining {
		return nil
	}
	return drover.Errorf(drover.CodeDraining, "queue %[1]s is draining: it takes no new jobs; `drover queue resume %[1]s` lets it", g.queues[queue].Name)
}
