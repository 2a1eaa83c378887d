package engine

import (
	"context"
	"fmt"
	"math"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store"
)

// Bounds of a tenant's weight.
const (
	minWeight = 0.01
	maxWeight = 1000
)

// Tenants returns every tenant, by name, to who administers the installation.
func (e *Engine) Tenants(ctx context.Context, c Caller) ([]drover.Tenant, error) {
	if err := c.operates("tenants"); err != nil {
		return nil, err
	}
	var rows []store.TenantRow
	if err := e.db.Read(ctx, func(tx store.Tx) error {
		rows = nil
		return tx.Pipe(ctx, store.ListTenants(&rows))
	}); err != nil {
		return nil, fmt.Errorf("list tenants: %w", err)
	}
	out := make([]drover.Tenant, 0, len(rows))
	for _, t := range rows {
		out = append(out, drover.Tenant{Name: t.Name, Weight: t.Weight})
	}
	return out, nil
}

// SetTenant changes what change makes of a tenant. The next decision goes by it.
func (e *Engine) SetTenant(ctx context.Context, c Caller, name string, change func(*drover.Tenant)) (drover.Tenant, error) {
	if err := c.operates("tenants"); err != nil {
		return drover.Tenant{}, err
	}
	var out drover.Tenant
	err := e.db.Write(ctx, func(tx store.Tx) error {
		if err := tx.Pipe(ctx, store.LockLeader(leadName)); err != nil { // no decision is under way meanwhile
			return err
		}
		var rows []store.TenantRow
		if err := tx.Pipe(ctx, store.LockTenant(name, &rows)); err != nil {
			return err
		}
		if len(rows) == 0 || rows[0].ID == 0 {
			return notFound("tenant", cut(name))
		}
		t := rows[0]
		out = drover.Tenant{Name: t.Name, Weight: t.Weight}
		if change(&out); out.Weight == t.Weight {
			return nil
		}
		if math.IsNaN(out.Weight) || out.Weight < minWeight || out.Weight > maxWeight {
			return &drover.Error{Code: drover.CodeValidation, Detail: "the tenant is not valid",
				Fields: []drover.FieldError{{Field: "weight", Message: fmt.Sprintf("%v is outside %v to %v", out.Weight, minWeight, maxWeight)}}}
		}
		t.Weight = out.Weight
		return tx.Pipe(ctx, store.SetTenant(t.TenantShare), store.LiftGate(e.now()))
	})
	if err != nil {
		return drover.Tenant{}, fmt.Errorf("tenant %s: %w", cut(name), err)
	}
	e.gateChanged(ctx)
	e.log.InfoContext(ctx, "tenant changed", "tenant", out.Name, "weight", out.Weight, "actor", c.Actor)
	return out, nil
}
