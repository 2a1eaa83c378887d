package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// clients is how many submit at the same time, one job after the other.
const clients = 50

// singleRun submits N jobs one by one from many clients at once, and works them
// afterwards, to see that all are there.
func singleRun(ctx context.Context, r *run) error {
	var (
		mu   sync.Mutex
		took []time.Duration
		all  errgroup.Group
	)
	began := time.Now()
	for range clients {
		all.Go(func() error {
			var mine []time.Duration
			for range r.N / clients {
				began := time.Now()
				if err := r.submit(ctx, time.Time{}); err != nil {
					return err
				}
				mine = append(mine, time.Since(began))
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, mine...)
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		r.void = fmt.Sprintf("a submit was refused: %v", err)
		return nil
	}
	n := len(took)
	r.values["jobs/s"] = float64(n) / time.Since(began).Seconds()
	r.values["p50 ms"] = milliseconds(quantile(took, 0.5))
	r.values["p99 ms"] = milliseconds(quantile(took, 0.99))
	return r.drained(ctx, n)
}

// single: submits one by one.
func (b *bench) single() error {
	return b.rounds("single", forEach(spec{N: 10_000}, []string{"drover", "river", "drover-http", "dbos"}, func(s *spec) {
		if s.System == "dbos" {
			s.N = 2_500
		}
	})...)
}
