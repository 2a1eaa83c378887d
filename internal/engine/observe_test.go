package engine_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/forecast"
)

// TestServersThatSeeANewKindAtOnceBothCount: none of what either has seen is lost, and
// neither waits for the other for ever; what nobody has run for a month is forgotten.
func TestServersThatSeeANewKindAtOnceBothCount(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		const kinds, rounds = 5, 4
		hands := []*hand{w.hand(w.server()), w.hand(w.server())}
		for round := range rounds {
			for i, h := range hands {
				for k := range kinds { // in another order each
					n := k
					if i == 1 {
						n = kinds - 1 - k
					}
					w.submit(drover.NewJob{Kind: fmt.Sprintf("k%d-%d", round, n)})
					got, err := h.acquire(1)
					if err != nil || len(got) != 1 {
						t.Fatal(got, err)
					}
					if _, _, err := h.settle(0, ok(got[0], "1")); err != nil {
						t.Fatal(err)
					}
				}
			}
			var both sync.WaitGroup
			for _, h := range hands {
				both.Go(func() {
					if _, err := h.ObserveOnce(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			both.Wait()
		}
		for _, row := range w.stats() {
			if n := forecast.Decode(row).N(); n != 2 {
				t.Errorf("%d attempts of a kind are known, want 2", n)
			}
		}
		if n := w.count("SELECT count(*) FROM kind_stats"); n != kinds*rounds {
			t.Errorf("%d kinds are known, want %d", n, kinds*rounds)
		}
		w.clock.add += 31 * 24 * time.Hour
		w.step("clean", w.CleanOnce)
		if n := w.count("SELECT count(*) FROM kind_stats"); n != 0 {
			t.Errorf("%d kinds are known after a month", n)
		}
	})
}

// stats are the rows of kind_stats.
func (w *world) stats() (list [][]byte) {
	w.t.Helper()
	n := w.count("SELECT count(*) FROM kind_stats")
	for i := range n {
		var b []byte
		w.read(fmt.Sprintf("SELECT data FROM kind_stats ORDER BY queue, tenant, kind LIMIT 1 OFFSET %d", i), &b)
		list = append(list, b)
	}
	return list
}
