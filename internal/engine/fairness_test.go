package engine_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

// TestATenantWithMuchToDoDoesNotKeepOthersWaiting: a worker of every tenant, and
// one tenant with thousands of older tasks in front. Each claim serves the others.
func TestATenantWithMuchToDoDoesNotKeepOthersWaiting(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		callers := map[string]engine.Caller{}
		submit := func(tenant string, n int) {
			t.Helper()
			c, err := w.EnsureTenant(ctx, tenant)
			if err != nil {
				t.Fatal(err)
			}
			callers[tenant] = c
			for chunk := range slices.Chunk(slices.Repeat([]drover.NewJob{{Kind: "k"}}, n), 5000) {
				out, err := w.Submit(ctx, c, chunk)
				if err != nil || out[0].Err != nil {
					t.Fatal(err, out[0].Err)
				}
			}
		}
		submit("much", w.scaled(10_000, 1500))
		for i := range 3 {
			submit(fmt.Sprintf("little-%d", i), 12)
		}
		system := w.c
		system.System = true
		s, err := w.OpenSession(ctx, system, drover.NewSession{Worker: "every tenant's", Queues: []string{"default"}, Slots: 100})
		if err != nil {
			t.Fatal(err)
		}
		number := int64(0)
		claim := func(n int) map[string]int {
			t.Helper()
			number++
			l, err := w.Acquire(ctx, system, drover.Acquire{Session: s.ID, Max: n, Number: number})
			if err != nil || len(l) != n {
				t.Fatalf("%d leases, %v", len(l), err)
			}
			by := map[string]int{}
			for _, x := range l {
				by[x.Tenant]++
			}
			return by
		}
		for range 3 {
			by := claim(8)
			for name := range callers {
				if by[name] != 2 {
					t.Fatalf("a claim of 8 for four tenants: %v", by)
				}
			}
		}
		// One at a time they take turns, too.
		by := map[string]int{}
		for range 12 {
			for name, n := range claim(1) {
				by[name] += n
			}
		}
		for name := range callers {
			if by[name] != 3 {
				t.Fatalf("12 claims of one: %v", by)
			}
		}
		// When the others are done, it gets everything, within one claim.
		for range 3 {
			claim(8)
		}
		if by := claim(40); by["much"] < 37 {
			t.Fatalf("the last claim: %v", by)
		}
	})
}
