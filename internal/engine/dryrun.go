package engine

import (
	"context"
	"fmt"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// Preview tells what Submit would do with a job now, and does nothing: it refuses what
// that would refuse. repeated says that the job is the one of an earlier request with
// the same key or id, as it stands; another is as it would begin.
func (e *Engine) Preview(ctx context.Context, c Caller, n drover.NewJob) (j drover.Job, repeated bool, err error) {
	now := e.now()
	d := &draft{NewJob: n, dry: true}
	if err := e.check(ctx, c, d, &offer{}, now); err != nil {
		return j, false, err
	}
	ids, keys := map[drover.JobID]store.KnownJob{}, map[string]store.KnownJob{}
	leaving := map[drover.JobID]bool{}
	err = e.db.Read(ctx, func(tx store.Tx) error {
		if !d.ID.IsZero() {
			if err := tx.Pipe(ctx, store.SelectJobs([]drover.JobID{d.ID}, ids), store.SelectLeaving([]drover.JobID{d.ID}, leaving)); err != nil {
				return err
			}
		}
		return knownKeys(ctx, tx, c, []*draft{d}, keys)
	})
	if err != nil {
		return j, false, fmt.Errorf("preview: %w", err)
	}
	known, ok := ids[d.ID]
	if !ok && d.IdempotencyKey != "" {
		known, ok = keys[d.IdempotencyKey]
	}
	switch {
	case ok:
		s := repeat(c, d, known)
		switch {
		case s.Err != nil:
			return j, false, s.Err
		case s.Deleted:
			return j, false, drover.Errorf(drover.CodeNotFound, "an earlier request with this key made job %s, which has ended and has been deleted since: it would not run again; use a new key", s.JobID)
		}
		j, err = e.Job(ctx, c, s.JobID)
		return j, true, err
	case leaving[d.ID]:
		return j, false, beingDeleted(d.ID)
	case d.late != nil:
		return j, false, d.late
	}
	if d.ID.IsZero() {
		d.ID = drover.JobID(e.db.NewID())
	}
	j = drover.Job{ID: d.ID, Tenant: c.TenantName, Status: drover.Pending, Kind: d.Kind, Creator: c.Actor, Labels: d.Labels, Class: d.Class, Run: 1, Tasks: drover.Counts{Total: 1},
		Input: d.Input, TraceID: traceID(d.ID, d.trace), CreatedAt: now.Time(), DueAt: lifecycle.At(d.DueAt).Time(), ExpiresAt: lifecycle.At(d.ExpiresAt).Time()}
	if d.plan != nil {
		j.Pipeline, j.PipelineVersion, j.Tasks.Total = d.plan.Name, int(d.plan.Version), len(d.plan.Start())
	}
	j.Tasks.Pending = j.Tasks.Total
	return j, false, nil
}
