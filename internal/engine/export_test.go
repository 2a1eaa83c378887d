package engine

import (
	"context"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store"
)

// AuditIn is Audit of what a transaction sees, its own changes too.
func (e *Engine) AuditIn(ctx context.Context, tx store.Tx) ([]Audited, error) {
	return e.audit(ctx, tx, drover.JobID{})
}

// Number makes the number of a queue or lane.
func (e *Engine) Number(ctx context.Context, find func(store.Tx) (int32, error)) (int32, error) {
	return e.number(ctx, find)
}

// CountUpTo sets up to how many rows of a table all that waits is counted.
func (e *Engine) CountUpTo(n int) { e.counts = n }
