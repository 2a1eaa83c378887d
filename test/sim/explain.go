package sim

import (
	"context"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store"
)

// explain asks of some jobs what becomes of them, past every fault, and holds the
// answers to what is true of every one: a task that waits has one primary blocker, one
// that runs, has ended or is being cancelled has none; and its history, one piece after
// the other, is as long as its waits and runs, which add up to its age.
func (w *world) explain(most int) {
	ctx := context.Background()
	e := engine.New(store.New(w.db.drv, store.Options{Now: func() time.Time { return w.clock }}), engine.Options{})
	for i := len(w.ghost.jobs) - 1; i >= 0 && most > 0 && w.stop == nil; i-- {
		j := w.ghost.jobs[i]
		if j.purged {
			continue
		}
		most--
		c := w.db.callers[j.tenant]
		tasks, err := e.Tasks(ctx, c, engine.TaskQuery{Job: j.id, Limit: 20})
		if err != nil {
			w.violate("EXPLAIN", "tasks of %s: %v", j, err)
			return
		}
		for _, t := range tasks {
			w.explained(ctx, e, c, t.ID)
		}
		if x, err := e.ExplainJob(ctx, c, j.id); err != nil || x.Message == "" {
			w.violate("EXPLAIN", "%s: %v", j, err)
		}
		w.stats.Explained += len(tasks)
	}
}

func (w *world) explained(ctx context.Context, e *engine.Engine, c engine.Caller, id drover.TaskID) {
	x, err := e.Explain(ctx, c, id)
	if err != nil {
		w.violate("EXPLAIN", "%s: %v", id, err)
		return
	}
	primary := 0
	for i, b := range x.Blockers {
		if b.Primary {
			primary++
		}
		if b.Primary != (i == 0) || b.Message == "" {
			w.violate("EXPLAIN", "%s: blocker %+v", id, b)
		}
	}
	if waits := !x.WaitingSince.IsZero(); waits != (primary == 1) || primary > 1 || (x.Status.Final() || x.Status == drover.Running && !w.ghost.asks(id)) && waits {
		w.violate("EXPLAIN", "%s is %s, waits since %s and has %d primary blockers", id, x.Status, x.WaitingSince, primary)
	}
	var told, spent time.Duration
	for i, s := range x.History {
		if told += s.Duration.Std(); i > 0 && !s.From.Equal(x.History[i-1].To) || s.Duration <= 0 {
			w.violate("EXPLAIN", "%s: its history has a gap: %+v", id, x.History)
		}
	}
	for _, d := range x.TotalsByReason {
		spent += d.Std()
	}
	// Times are told to the millisecond.
	if (told - spent).Abs() > time.Millisecond {
		w.violate("EXPLAIN", "%s (%s): its history is %s long, its waits and runs %s: %+v", id, x.Status, told, spent, x.History)
	}
}
