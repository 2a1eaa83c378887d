package engine

import (
	"context"
	"encoding/json"
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

// maxReserves bounds the classes for which something of a queue is kept.
const maxReserves = 8

// ReserveQueue keeps shares of a queue's slots for classes, in place of what was kept
// before. What runs goes on.
func (e *Engine) ReserveQueue(ctx context.Context, c Caller, name string, list []drover.Reserve, r Request) (drover.Queue, error) {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b drover.Reserve) int { return int(a.Class) - int(b.Class) })
	var bad []drover.FieldError
	for i, x := range list {
		field := fmt.Sprintf("reserves[%d]", i)
		switch {
		case x.Class < 1 || x.Class > 98:
			bad = append(bad, drover.FieldError{Field: field + ".class", Message: "must be interactive, urgent, normal, batch or a number from 1 to 98: one that others come after"})
		case i > 0 && x.Class == list[i-1].Class:
			bad = append(bad, drover.FieldError{Field: field + ".class", Message: fmt.Sprintf("%s is there twice", x.Class)})
		case x.Percent < 1 || x.Percent > 90:
			bad = append(bad, drover.FieldError{Field: field + ".percent", Message: fmt.Sprintf("must be 1 to 90, and is %d", x.Percent)})
		case i > 0 && x.Percent <= list[i-1].Percent:
			bad = append(bad, drover.FieldError{Field: field + ".percent", Message: fmt.Sprintf("what is kept for %s counts the %d %% for %s before it, so it must be more than that", x.Class, list[i-1].Percent, list[i-1].Class)})
		}
	}
	if len(list) > maxReserves {
		bad = append(bad, drover.FieldError{Field: "reserves", Message: fmt.Sprintf("%d classes; at most %d", len(list), maxReserves)})
	}
	if len(bad) > 0 {
		return drover.Queue{}, &drover.Error{Code: drover.CodeValidation, Detail: "the reserves are not valid", Fields: bad}
	}
	text := ""
	if len(list) > 0 {
		b, err := json.Marshal(list)
		if err != nil {
			return drover.Queue{}, err
		}
		text = string(b)
	}
	return e.setQueue(ctx, c, name, "reserved", r, func(q *store.QueueState) { q.Reserves = text })
}

// reservesOf reads what is kept of a queue.
func reservesOf(text string) (list []drover.Reserve) {
	if text != "" {
		_ = json.Unmarshal([]byte(text), &list) // written by ReserveQueue
	}
	return list
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
