package engine_test

import (
	"math"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

// Tenants who wait in the same queue get slots by their weights, from the next decision on.
func TestTenantsHaveSlotsByTheirWeights(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx, system := t.Context(), w.system()
		beta, err := w.EnsureTenant(ctx, "beta")
		if err != nil {
			t.Fatal(err)
		}
		h := w.opened(system, drover.NewSession{Worker: "all", Slots: 8})
		w.limit("most", drover.NewLimit{Scope: drover.ScopeQueue, Queue: "default", Max: 8})
		set := func(c engine.Caller, name string, weight float64) (drover.Tenant, error) {
			return w.SetTenant(ctx, c, name, func(t *drover.Tenant) { t.Weight = weight })
		}
		if x, err := set(system, "beta", 3); err != nil || x != (drover.Tenant{Name: "beta", Weight: 3}) {
			t.Fatal(x, err)
		}
		if list, err := w.Tenants(ctx, system); err != nil || len(list) != 2 || list[0].Weight != 1 || list[1].Weight != 3 {
			t.Errorf("tenants are %+v, %v", list, err)
		}
		for _, bad := range []float64{0, -1, 1001, math.NaN(), math.Inf(1)} {
			if _, err := set(system, "beta", bad); drover.CodeOf(err) != drover.CodeValidation {
				t.Errorf("weight %v: %v", bad, err)
			}
		}
		for name, c := range map[string]engine.Caller{"nobody": system, "system": system} {
			if _, err := set(c, name, 2); drover.CodeOf(err) != drover.CodeNotFound {
				t.Errorf("tenant %s: %v", name, err)
			}
		}
		if _, err := set(w.c, w.c.TenantName, 1000); drover.CodeOf(err) != drover.CodeForbidden {
			t.Errorf("a tenant's admin sets its weight: %v", err)
		}
		if _, err := w.Tenants(ctx, w.c); drover.CodeOf(err) != drover.CodeForbidden {
			t.Errorf("a tenant's admin sees the others: %v", err)
		}
		for _, c := range []engine.Caller{w.c, beta} {
			if _, err := w.Submit(ctx, c, make200(drover.NewJob{Kind: "k"})); err != nil {
				t.Fatal(err)
			}
		}
		ran := map[string]int{}
		for range 20 {
			w.admit()
			l, err := h.acquire(8)
			if err != nil || len(l) != 8 {
				t.Fatalf("%d run, %v", len(l), err)
			}
			w.clock.add += time.Second
			var out []drover.Outcome
			for _, x := range l {
				ran[x.Tenant]++
				out = append(out, ok(x, "1"))
			}
			if _, _, err := h.settle(0, out...); err != nil {
				t.Fatal(err)
			}
		}
		if n := ran["beta"]; n < 112 || n > 128 {
			t.Errorf("of 160 that ran %d are of the tenant with three times the weight, want 120: %v", n, ran)
		}
		w.audit()
	})
}

func make200(n drover.NewJob) []drover.NewJob {
	list := make([]drover.NewJob, 200)
	for i := range list {
		list[i] = n
	}
	return list
}

// A preview of a limit by key counts each key by itself, and of a queue that nobody
// has used none is made.
func TestAPreviewCountsKeysAndMakesNothing(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		w.submitMany(3, drover.NewJob{Kind: "k", ConcurrencyKey: "x"})
		w.submitMany(2, drover.NewJob{Kind: "k", ConcurrencyKey: "y"})
		w.submitMany(2, drover.NewJob{Kind: "k", ConcurrencyKey: "x"})
		w.admit()
		if l := w.acquire(5); len(l) != 5 {
			t.Fatalf("%d run", len(l))
		}
		n := drover.NewLimit{Scope: drover.ScopeKey, Max: 2}
		l, err := w.SetLimit(ctx, w.c, "each", n, engine.Precondition{}, true)
		if err != nil || l.Preview == nil || l.Preview.Applies < 5 || l.Preview.Over < 1 {
			t.Errorf("a new limit by key: %+v, %v", l.Preview, err)
		}
		w.limit("each", n)
		w.admit()
		held := w.used("each")
		n.Max = 1
		if l, err = w.SetLimit(ctx, w.c, "each", n, engine.Precondition{}, true); err != nil || l.Preview.Applies != held || l.Preview.Over != held-2 {
			t.Errorf("a lower one, of which %d are held: %+v, %v", held, l.Preview, err)
		}
		queues := w.count("SELECT count(*) FROM queues")
		l, err = w.SetLimit(ctx, w.system(), "far", drover.NewLimit{Scope: drover.ScopeQueue, Queue: "far", Max: 2}, engine.Precondition{}, true)
		if err != nil || l.Queue != "far" || l.Preview.Applies != 0 {
			t.Errorf("of a queue that is not there: %+v, %v", l, err)
		}
		if n := w.count("SELECT count(*) FROM queues"); n != queues {
			t.Errorf("a preview made %d queues", n-queues)
		}
	})
}

// What a request needs to know of limits and workers is read once for all its jobs.
func TestASubmitThatNamesLimitsTakesAConstantNumberOfStatements(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		c := &counting{Driver: w.db.Driver}
		w.db.Driver = c
		w.limit("a", drover.NewLimit{Max: 3})
		w.opened(w.c, drover.NewSession{Worker: "gpu", Slots: 2, Resources: map[string]int64{"gpu": 2}})
		job := drover.NewJob{Kind: "k", Limits: map[string]int64{"a": 1}, Resources: map[string]int64{"gpu": 1}}
		w.submitMany(1, job)
		var took [2]int64
		for i, n := range []int{1, 50} {
			c.statements.Store(0)
			w.submitMany(n, job)
			took[i] = c.statements.Load()
		}
		if took[0] != took[1] {
			t.Errorf("a job takes %d statements, 50 in a request %d", took[0], took[1])
		}
	})
}

// A queue that is drained costs those who claim from it nothing.
func TestClaimsFromADrainedQueueAreAsBefore(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		c := &counting{Driver: w.db.Driver}
		w.db.Driver = c
		h := w.opened(w.system(), drover.NewSession{Worker: "all", Slots: 8})
		claims := func() int64 {
			t.Helper()
			w.admit()
			c.statements.Store(0)
			if l, err := h.acquire(1); err != nil || len(l) != 1 {
				t.Fatalf("%d run, %v", len(l), err)
			}
			return c.statements.Load()
		}
		w.submitMany(4, drover.NewJob{Kind: "k"})
		claims()
		before := claims()
		if _, err := w.DrainQueue(t.Context(), w.system(), "default", engine.Request{}); err != nil {
			t.Fatal(err)
		}
		if after := claims(); after != before {
			t.Errorf("a claim takes %d statements, from a queue that is drained %d", before, after)
		}
	})
}
