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
