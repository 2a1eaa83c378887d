package engine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/storetest"
)

// crowd is an engine with 100,000 tasks that wait: of 3 tenants in 10 queues, of four
// classes and 20 kinds; some in pipelines, some paused, some for later, some for a
// circuit. A worker of every queue is full. It returns tasks of the first tenant.
func crowd(b *testing.B, driver string) (*Engine, Caller, []drover.TaskID) {
	b.Helper()
	const tasks = 100_000
	ctx := b.Context()
	e := New(storetest.Open(b, driver, func(*store.Options) {}), Options{})
	var callers []Caller
	for _, name := range []string{"acme", "beta", "gamma"} {
		c, err := e.EnsureTenant(ctx, name)
		if err != nil {
			b.Fatal(err)
		}
		callers = append(callers, c)
		if _, err := e.RegisterPipeline(ctx, c, "p.yaml", []byte("pipeline: p\ntasks:\n  a: {run: k1, queue: q1}\n  b: {run: k2, queue: q2, needs: [a]}\n  c: {run: k3, queue: q3, needs: [b]}\n")); err != nil {
			b.Fatal(err)
		}
	}
	system, err := e.EnsureTenant(ctx, "system")
	if err != nil {
		b.Fatal(err)
	}
	classes := []drover.Class{drover.Interactive, drover.Urgent, drover.Normal, drover.Batch}
	var ids []drover.TaskID
	for n := 0; n < tasks; {
		c := callers[n/5000%3]
		var list []drover.NewJob
		for len(list) < 5000 && n < tasks {
			j := drover.NewJob{Kind: fmt.Sprintf("k%d", n%20), Queue: fmt.Sprintf("q%d", n%10), Class: classes[n/100%4]}
			n++
			switch {
			case n%50 == 0:
				j.DueAt = time.Now().Add(time.Hour)
			case n%51 == 0:
				j.Circuit = "vendor"
			case n%52 == 0:
				j = drover.NewJob{Pipeline: "p"}
				n += 2
			}
			list = append(list, j)
		}
		out, err := e.Submit(ctx, c, list)
		if err != nil {
			b.Fatal(err)
		}
		for i := 0; i < len(out) && c.Tenant == callers[0].Tenant; i += 50 {
			t, err := e.Tasks(ctx, c, TaskQuery{Job: out[i].JobID})
			if err != nil {
				b.Fatal(err)
			}
			ids = append(ids, t[len(t)-1].ID)
		}
		if _, err := e.Pause(ctx, c, out[0].JobID, Request{}); err != nil {
			b.Fatal(err)
		}
	}
	for q := range 10 {
		s, err := e.OpenSession(ctx, system, drover.NewSession{Worker: "w", Queues: []string{fmt.Sprintf("q%d", q)}, Slots: 50})
		if err != nil {
			b.Fatal(err)
		}
		for n := range 2 {
			leases, err := e.Acquire(ctx, system, drover.Acquire{Session: s.ID, Max: 50, Number: int64(n + 1)})
			if err != nil {
				b.Fatal(err)
			}
			if n == 1 {
				continue // these fill it; those of the first are over, so that something is known of them
			}
			var outcomes []drover.Outcome
			for _, l := range leases {
				outcomes = append(outcomes, drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeSucceeded})
			}
			if r := e.Settle(ctx, []Settlement{{Caller: system, Session: s.ID, Outcomes: outcomes}}); r[0].Err != nil {
				b.Fatal(r[0].Err)
			}
		}
	}
	return e, callers[0], ids
}

func onBoth(b *testing.B, f func(b *testing.B, driver string)) {
	for _, d := range storetest.Drivers(b) {
		b.Run(d, func(b *testing.B) { f(b, d) })
	}
}

// percentiles reports what a call takes.
func percentiles(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}

// BenchmarkExplain explains tasks among 100,000 that wait.
func BenchmarkExplain(b *testing.B) {
	onBoth(b, func(b *testing.B, driver string) {
		e, c, ids := crowd(b, driver)
		took := make([]time.Duration, 0, b.N)
		for i := 0; b.Loop(); i++ {
			began := time.Now()
			if _, err := e.Explain(b.Context(), c, ids[i*7919%len(ids)]); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(began))
		}
		percentiles(b, took)
	})
}

// BenchmarkWaits groups 100,000 that wait.
func BenchmarkWaits(b *testing.B) {
	onBoth(b, func(b *testing.B, driver string) {
		e, _, _ := crowd(b, driver)
		system, err := e.EnsureTenant(b.Context(), "system")
		if err != nil {
			b.Fatal(err)
		}
		took := make([]time.Duration, 0, b.N)
		for b.Loop() {
			began := time.Now()
			groups, err := e.Waits(b.Context(), system, WaitsBy)
			if err != nil || len(groups) < 10 {
				b.Fatal(groups, err)
			}
			took = append(took, time.Since(began))
		}
		percentiles(b, took)
	})
}
