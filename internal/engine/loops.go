package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// Sizes of one step of a loop.
const (
	reapAtOnce   = 100  // sessions
	takeAtOnce   = 1000 // tasks
	expireAtOnce = 100  // jobs
	cleanAtOnce  = 1000 // rows
)

// How long what is kept for a time only is kept.
const (
	keepIdempotency = 7 * 24 * time.Hour // and as long as the job is there
	keepOperations  = 24 * time.Hour
	keepStaged      = 24 * time.Hour
	keepProgress    = time.Hour
)

// Patience is how long the server waits with what it holds against workers, after a time
// in which they could not be heard: it has started, or the database was away. Who has
// something to report tries every five seconds at least.
func (e *Engine) Patience() time.Duration { return min(e.opts.LeaseFor/3, 10*time.Second) }

// ReapOnce ends sessions whose lease ran out and takes their tasks back. It
// returns how many tasks it took.
func (e *Engine) ReapOnce(ctx context.Context) (int, error) {
	var ended, holding []int64
	err := e.db.Write(ctx, func(tx store.Tx) error {
		ended, holding = nil, nil
		return tx.Pipe(ctx, append([]store.Stmt{store.ReapSessions(e.now(), reapAtOnce, &ended)}, store.SessionsToClear(reapAtOnce, &holding)...)...)
	})
	if err != nil {
		return 0, fmt.Errorf("reap: %w", err)
	}
	for _, id := range ended {
		e.log.WarnContext(ctx, "worker lost: its lease ran out", "worker_id", drover.SessionID(id).String())
	}
	total := 0
	var errs []error
	for _, id := range holding {
		n, err := e.clearSession(ctx, id, false)
		total += n
		errs = append(errs, err)
	}
	return total, errors.Join(errs...)
}

// clearSession takes back every task of a session that has ended. released says
// that its worker gave them back; otherwise they count as lost.
func (e *Engine) clearSession(ctx context.Context, id int64, released bool) (int, error) {
	total := 0
	for {
		var x *changes
		n := 0
		err := e.db.Write(ctx, func(tx store.Tx) error {
			x = e.changes(e.now())
			var rows []lifecycle.Task
			if err := tx.Pipe(ctx, store.TakeSession(id, takeAtOnce, &rows)); err != nil {
				return err
			}
			var reports []*report
			for _, t := range rows {
				r := &report{task: t, Outcome: drover.Outcome{TaskID: t.ID, LeaseVersion: t.LeaseVersion, Status: outcomeLost}}
				if released {
					r.Status = drover.OutcomeReleased
				}
				reports = append(reports, r)
			}
			if n = len(rows); n == 0 {
				return nil
			}
			sortReports(reports)
			return e.decide(ctx, tx, x, reports)
		})
		if err != nil {
			return total, fmt.Errorf("take back the tasks of worker %s: %w", drover.SessionID(id), err)
		}
		e.after(ctx, x)
		if total += n; n < takeAtOnce {
			break
		}
	}
	// By itself: a transaction that has taken tasks does not touch their session,
	// which others lock first.
	if err := e.db.Write(ctx, func(tx store.Tx) error { return tx.Pipe(ctx, store.ClearedSession(id)) }); err != nil {
		return total, fmt.Errorf("clear worker %s: %w", drover.SessionID(id), err)
	}
	return total, nil
}

// EndInProcessSessions ends the sessions of workers that lived inside a server
// process which is gone: their names start with "dev/". Only a server that is
// alone on its database may call it.
func (e *Engine) EndInProcessSessions(ctx context.Context) (int, error) {
	var rows []store.SessionRow
	if err := e.db.Read(ctx, func(tx store.Tx) error { rows = nil; return tx.Pipe(ctx, store.LiveSessions(&rows)) }); err != nil {
		return 0, err
	}
	total := 0
	for _, s := range rows {
		if !strings.HasPrefix(s.Worker, "dev/") {
			continue
		}
		if err := e.db.Write(ctx, func(tx store.Tx) error { return tx.Pipe(ctx, store.EndSession(s.ID, e.now())) }); err != nil {
			return total, err
		}
		n, err := e.clearSession(ctx, s.ID, false)
		if total += n; err != nil {
			return total, err
		}
	}
	return total, nil
}

// heldJobs reads which of the tasks' jobs must not start anything.
func heldJobs(ctx context.Context, tx store.Tx, tasks []lifecycle.Task) (map[drover.JobID]bool, error) {
	var jobs []drover.JobID
	for _, t := range tasks {
		jobs = append(jobs, t.Job)
	}
	var holds []store.Hold
	if err := tx.Pipe(ctx, store.ShareHolds(uniqueSorted(jobs), &holds)); err != nil {
		return nil, err
	}
	held := map[drover.JobID]bool{}
	for _, h := range holds {
		if h.Kind != store.HoldResume {
			held[h.Job] = true
		}
	}
	return held, nil
}

// TimersOnce starts what is due: retries, snoozes and start times; and looks at tasks
// that wait for jobs of their own.
func (e *Engine) TimersOnce(ctx context.Context) (int, error) {
	var look []drover.TaskID
	n, err := e.moveOnce(ctx, "timers", func(ctx context.Context, tx store.Tx, x *changes) (int, error) {
		var rows []lifecycle.Task
		if err := tx.Pipe(ctx, store.TakeDue(x.now, takeAtOnce, &rows)); err != nil || len(rows) == 0 {
			return 0, err
		}
		held, err := heldJobs(ctx, tx, rows)
		if err != nil {
			return 0, err
		}
		look = nil
		for _, t := range rows {
			lane, err := e.laneOf(ctx, tx, t.Lane)
			if err != nil {
				return 0, err
			}
			switch {
			case t.Status == drover.Waiting:
				t.DueAt = lookAgain(&t, x.now)
			case lane.Kind == dag.SubKind:
				t = lifecycle.Parked(t, t.Lane, x.now)
			default:
				x.place(lifecycle.Due(t, lifecycle.Hold{Paused: held[t.Job]}, x.now))
				continue
			}
			x.place(t)
			look = append(look, t.ID)
		}
		return len(rows), nil
	})
	if err == nil {
		e.goOn(ctx, following{look: look}, len(look)+lookAtOnce)
	}
	return n, err
}

// moveOnce runs a step in a transaction, saves and tells.
func (e *Engine) moveOnce(ctx context.Context, name string, step func(context.Context, store.Tx, *changes) (int, error)) (n int, err error) {
	var x *changes
	err = e.db.Write(ctx, func(tx store.Tx) error {
		x = e.changes(e.now())
		var err error
		if n, err = step(ctx, tx, x); err != nil || n == 0 {
			return err
		}
		return x.save(ctx, tx)
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	e.tell(x)
	return n, nil
}

// SweepOnce goes on with what cancels, pauses and resumes have begun.
func (e *Engine) SweepOnce(ctx context.Context) (int, error) {
	var holds []store.Hold
	if err := e.db.Read(ctx, func(tx store.Tx) error { holds = nil; return tx.Pipe(ctx, store.HoldsToSweep(takeAtOnce, &holds)) }); err != nil {
		return 0, fmt.Errorf("sweep: %w", err)
	}
	total := 0
	var errs []error
	for _, h := range holds {
		n, f, err := e.sweepJob(ctx, h.Job)
		total += n
		errs = append(errs, err)
		e.goOn(ctx, f, lookAtOnce)
	}
	return total, errors.Join(errs...)
}

// ExpireOnce stops jobs whose expires_at has passed.
func (e *Engine) ExpireOnce(ctx context.Context) (int, error) {
	total := 0
	for range expireAtOnce {
		var x *changes
		n := 0
		err := e.db.Write(ctx, func(tx store.Tx) error {
			x = e.changes(e.now())
			var jobs []drover.JobID
			if err := tx.Pipe(ctx, store.TakeJobTimers(x.now, 1, &jobs)); err != nil {
				return err
			}
			if n = len(jobs); n == 0 {
				return nil
			}
			var rows []store.JobRow
			if err := tx.Pipe(ctx, store.ReadJobs(jobs, &rows)); err != nil {
				return err
			}
			if len(rows) == 0 || rows[0].ExpiresAt == 0 || rows[0].ExpiresAt > x.now {
				return nil // it has been deleted, and its id may be another job's by now
			}
			j, _, err := e.ownRow(ctx, tx, x, jobs[0], rows[0].Tenant)
			if err != nil || j == nil || j.Phase == phaseUndo || j.Cancelling != 0 && j.Cancelling != store.CauseFinish {
				return err
			}
			if j.Cancelling == store.CauseFinish {
				if err := tx.Pipe(ctx, store.DeleteHold(j.Job, store.HoldCancel)); err != nil {
					return err
				}
			}
			x.cancel(j, store.CauseExpired, "", "expires_at passed")
			return x.save(ctx, tx)
		})
		if err != nil {
			return total, fmt.Errorf("expire: %w", err)
		}
		if n == 0 {
			break
		}
		total++
		e.after(ctx, x)
	}
	return total, nil
}

// CleanOnce deletes what is kept for a time only.
func (e *Engine) CleanOnce(ctx context.Context) (int, error) {
	now := e.now()
	var lines, ops, arts, progress, stops, stats int64
	err := e.db.Write(ctx, func(tx store.Tx) error {
		return tx.Pipe(ctx,
			store.Clean("line waits", now.Add(-keepLineWaits), cleanAtOnce, &lines),
			store.Clean("statistics", now.Add(-keepStats), cleanAtOnce, &stats),
			store.Clean("operations", now.Add(-keepOperations), cleanAtOnce, &ops),
			store.Clean("artifacts", now.Add(-keepStaged), cleanAtOnce, &arts),
			store.Clean("stops", now.Add(-keepProgress), cleanAtOnce, &stops),
			store.Clean("progress", now.Add(-keepProgress), cleanAtOnce, &progress))
	})
	if err != nil {
		return 0, fmt.Errorf("clean: %w", err)
	}
	keys, err := e.cleanKeys(ctx, now.Add(-keepIdempotency))
	return int(lines+ops+arts+progress+stops+stats) + keys, err
}

// cleanKeys deletes idempotency keys that are older than before and whose job is
// gone. It looks at cleanAtOnce of them at a time and goes round: keys of jobs
// that are kept for long are not looked at again and again.
func (e *Engine) cleanKeys(ctx context.Context, before lifecycle.Instant) (int, error) {
	from := lifecycle.Instant(e.keysFrom.Load())
	var rows []store.OldKey
	err := e.db.Read(ctx, func(tx store.Tx) error { return tx.Pipe(ctx, store.OldKeys(from, before, cleanAtOnce, &rows)) })
	if err != nil {
		return 0, fmt.Errorf("clean idempotency keys: %w", err)
	}
	next := lifecycle.Instant(0)
	if n := len(rows); n == cleanAtOnce {
		if next = rows[n-1].At; next == from {
			next++ // more keys of one microsecond than are looked at; the next round takes the rest
		}
	}
	e.keysFrom.Store(int64(next))
	gone := slices.DeleteFunc(rows, func(k store.OldKey) bool { return k.Job })
	var n int64
	if err := e.db.Write(ctx, func(tx store.Tx) error { return tx.Pipe(ctx, store.DropKeys(gone, &n)) }); err != nil {
		return 0, fmt.Errorf("clean idempotency keys: %w", err)
	}
	return int(n), nil
}

// VacuumOnce frees the dead rows of the tables that churn. A job queue makes
// them faster than the database's own vacuum looks.
func (e *Engine) VacuumOnce(ctx context.Context) (int, error) {
	if err := e.db.Vacuum(ctx, store.Churn...); err != nil {
		return 0, fmt.Errorf("vacuum: %w", err)
	}
	return 0, nil
}
