package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// Sizes of one step of the purge: small, so that nobody waits for it.
const (
	purgeLook  = 2000 // ended runs looked at
	purgeJobs  = 200  // jobs taken out of sight
	purgeRows  = 2000 // rows of each kind deleted
	minKeep    = time.Minute
	maxKeep    = 100 * 365 * 24 * time.Hour
	purgeFloor = time.Hour // a round that found nothing is not begun again before
)

// Retention returns how long the caller's finished jobs are kept.
func (e *Engine) Retention(ctx context.Context, c Caller) (drover.Retention, error) {
	of := map[int32]drover.Retention{}
	if err := e.db.Read(ctx, func(tx store.Tx) error { return tx.Pipe(ctx, store.ReadRetention(c.Tenant, of)) }); err != nil {
		return drover.Retention{}, fmt.Errorf("read retention: %w", err)
	}
	if r, ok := of[c.Tenant]; ok {
		return r, nil
	}
	return drover.DefaultRetention, nil
}

// SetRetention changes how long the caller's finished jobs are kept: what change
// makes of what is set. Jobs that have outlived it leave within minutes.
func (e *Engine) SetRetention(ctx context.Context, c Caller, change func(*drover.Retention)) (drover.Retention, error) {
	var r drover.Retention
	err := e.db.Write(ctx, func(tx store.Tx) error {
		of := map[int32]drover.Retention{}
		if err := tx.Pipe(ctx, store.ReadRetention(c.Tenant, of)); err != nil {
			return err
		}
		var ok bool
		if r, ok = of[c.Tenant]; !ok {
			r = drover.DefaultRetention
		}
		change(&r)
		var bad []drover.FieldError
		for _, f := range []struct {
			name string
			d    drover.Duration
		}{{"succeeded", r.Succeeded}, {"failed", r.Failed}, {"cancelled", r.Cancelled}} {
			if f.d != 0 && (f.d.Std() < minKeep || f.d.Std() > maxKeep) {
				bad = append(bad, drover.FieldError{Field: f.name, Message: "must be from one minute to 100 years, or 0 for ever"})
			}
		}
		if len(bad) > 0 {
			return &drover.Error{Code: drover.CodeValidation, Detail: "the retention is not valid", Fields: bad}
		}
		return tx.Pipe(ctx, store.SetRetention(c.Tenant, r))
	})
	if err != nil {
		return drover.Retention{}, fmt.Errorf("set retention: %w", err)
	}
	e.purge.again()
	return r, nil
}

// purgeRound is how far this process's walk over ended jobs has come.
type purgeRound struct {
	mu    sync.Mutex
	after drover.JobID
	rest  lifecycle.Instant // no walk before
}

// again begins a walk at the next step.
func (p *purgeRound) again() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.after, p.rest = drover.JobID{}, 0
}

// PurgeOnce takes finished jobs that have outlived their tenant's retention out
// of sight, and deletes what such jobs had, a piece at a time. Ids are in order
// of time, so it walks over the ended jobs from the oldest, no further than to
// the youngest that could be due. Live jobs are never touched.
func (e *Engine) PurgeOnce(ctx context.Context) (int, error) {
	begun, err := e.beginPurges(ctx)
	if err != nil {
		return 0, fmt.Errorf("purge: %w", err)
	}
	done, err := e.purgePiece(ctx)
	if err != nil {
		return begun, fmt.Errorf("purge: %w", err)
	}
	return begun + done, nil
}

func (e *Engine) beginPurges(ctx context.Context) (int, error) {
	now := e.now()
	e.purge.mu.Lock()
	after, rest := e.purge.after, e.purge.rest
	e.purge.mu.Unlock()
	if now < rest {
		return 0, nil
	}
	keeps := map[int32]drover.Retention{}
	var runs []store.JobFinal
	err := e.db.Read(ctx, func(tx store.Tx) error {
		if err := tx.Pipe(ctx, store.ReadRetention(-1, keeps)); err != nil {
			return err
		}
		least := shortest(drover.DefaultRetention, keeps)
		below := drover.JobID(drover.MakeID(now.Add(-least).Time().UnixMilli(), [10]byte{}))
		return tx.Pipe(ctx, store.EndedRuns(after, below, purgeLook, &runs))
	})
	if err != nil {
		return 0, err
	}
	last := map[drover.JobID]store.JobFinal{}
	var order []drover.JobID
	for _, r := range runs {
		if _, ok := last[r.Job]; !ok {
			order = append(order, r.Job)
		}
		last[r.Job] = r
	}
	var due []drover.JobID
	next := drover.JobID{}
	for i, id := range order {
		if i == len(order)-1 && len(runs) == purgeLook && i > 0 {
			break // its later runs may not have been read
		}
		r := last[id]
		keep, ok := keeps[r.Tenant]
		if !ok {
			keep = drover.DefaultRetention
		}
		if lifecycle.Outlived(r.Status, r.FinishedAt, keep, now) {
			due = append(due, id)
		}
		if next = id; len(due) == purgeJobs {
			break
		}
	}
	n, err := e.beginPurge(ctx, due)
	if err != nil {
		return 0, err
	}
	e.purge.mu.Lock()
	defer e.purge.mu.Unlock()
	if e.purge.after == after && e.purge.rest == rest { // nobody asked for a new walk meanwhile
		if e.purge.after = next; len(runs) < purgeLook && len(due) < purgeJobs {
			e.purge.after, e.purge.rest = drover.JobID{}, now.Add(purgeFloor)
		}
	}
	return max(n, min(len(due), 1)), nil
}

// beginPurge takes jobs out of sight, those that live excepted.
func (e *Engine) beginPurge(ctx context.Context, due []drover.JobID) (n int, err error) {
	if len(due) == 0 {
		return 0, nil
	}
	err = e.db.Write(ctx, func(tx store.Tx) error {
		var mine, live []drover.JobID
		// In two statements: what a replay did before it let go of the lock is seen.
		if err := tx.Pipe(ctx, store.LockJobs(due, &mine)); err != nil {
			return err
		}
		if err := tx.Pipe(ctx, store.LiveJobs(mine, &live)); err != nil {
			return err
		}
		if err := tx.Pipe(ctx, store.UsedJobs(mine, &live)); err != nil { // they leave when those that use them have left
			return err
		}
		mine = slices.DeleteFunc(mine, func(id drover.JobID) bool { return slices.Contains(live, id) })
		if n = len(mine); n == 0 {
			return nil
		}
		return tx.Pipe(ctx, store.BeginPurge(mine, e.now())...)
	})
	return n, err
}

// purgePiece deletes some of what jobs out of sight had.
func (e *Engine) purgePiece(ctx context.Context) (n int, err error) {
	err = e.db.Write(ctx, func(tx store.Tx) error {
		var jobs []drover.JobID
		var tasks []drover.TaskID
		if err := tx.Pipe(ctx, store.Purging(purgeJobs, &jobs)); err != nil || len(jobs) == 0 {
			n = 0
			return err
		}
		if err := tx.Pipe(ctx, store.PurgeTasks(jobs, purgeRows, &tasks)); err != nil {
			return err
		}
		tasks = tasks[:min(len(tasks), purgeRows)]
		var more [3]int64
		if err := tx.Pipe(ctx, store.Purge(jobs, tasks, purgeRows, &more)...); err != nil {
			return err
		}
		if n = len(jobs); len(tasks) == purgeRows || slices.Max(more[:]) >= purgeRows {
			return nil // there may be more
		}
		return tx.Pipe(ctx, store.EndPurge(jobs)...)
	})
	return n, err
}

// DeleteJob takes a finished job out of sight at once, whatever its retention;
// its rows are deleted soon after.
func (e *Engine) DeleteJob(ctx context.Context, c Caller, id drover.JobID) error {
	j, err := e.Job(ctx, c, id)
	if err != nil {
		return err
	}
	n, err := e.beginPurge(ctx, []drover.JobID{id})
	if err != nil {
		return fmt.Errorf("delete job: %w", err)
	}
	if n == 0 {
		if j, err = e.Job(ctx, c, id); err != nil {
			return err // somebody else has just deleted it
		}
		return drover.Errorf(drover.CodeInvalidTransition, "job %s is %s; only a finished job can be deleted: cancel it first", id, j.Status)
	}
	return nil
}

// shortest returns the shortest time any finished job is kept.
func shortest(def drover.Retention, all map[int32]drover.Retention) time.Duration {
	least := maxKeep
	for _, r := range append([]drover.Retention{def}, slices.Collect(maps.Values(all))...) {
		for _, d := range []drover.Duration{r.Succeeded, r.Failed, r.Cancelled} {
			if d > 0 {
				least = min(least, d.Std())
			}
		}
	}
	return least
}
