package engine_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/storetest"
)

// layers is a definition of layers of tasks, each of which waits for two of the layer
// before.
func layers(deep, wide int) string {
	var b strings.Builder
	b.WriteString("pipeline: layers\ntasks:\n")
	for l := range deep {
		for i := range wide {
			fmt.Fprintf(&b, "  l%d-t%d: {run: x", l, i)
			if l > 0 {
				fmt.Fprintf(&b, ", needs: [l%d-t%d, l%d-t%d]", l-1, i, l-1, (i+1)%wide)
			}
			b.WriteString("}\n")
		}
	}
	return b.String()
}

// TestASettleCostsTheSameInALargeDefinition: what it runs and reads goes by what ends, and
// not by how many other tasks the definition has, or are open.
func TestASettleCostsTheSameInALargeDefinition(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		c := &counting{Driver: w.db.Driver}
		w.db.Driver = c
		var of []string
		for _, wide := range []int{20, 2000} {
			w.apply(layers(3, wide))
			id := w.submit(drover.NewJob{Pipeline: "layers"})
			w.settle(ok(w.acquire(1)[0], "1")) // what a server reads once
			var out []drover.Outcome
			for _, l := range w.acquire(10) {
				out = append(out, ok(l, "1"))
			}
			c.statements.Store(0)
			c.trips.Store(0)
			c.rows.Store(0)
			w.settle(out...)
			of = append(of, fmt.Sprintf("%d statements, %d trips, %d rows", c.statements.Load(), c.trips.Load(), c.rows.Load()))
			if _, err := w.Cancel(t.Context(), w.c, id, engine.Request{}); err != nil {
				t.Fatal(err)
			}
			for range 10 {
				w.step("sweep", w.SweepOnce)
			}
			if !w.job(id).Status.Final() {
				t.Fatalf("the job of %d tasks has not ended", 3*wide)
			}
		}
		if t.Log(of[0]); of[0] != of[1] {
			t.Errorf("a settle of ten takes %s beside 50 tasks, and %s beside 6,000", of[0], of[1])
		}
	})
}

// TestADefinitionTooLargeIsRefused with the limit.
func TestADefinitionTooLargeIsRefused(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for _, tc := range []struct {
			src  string
			code drover.Code
			says string
		}{
			{"pipeline: p\ntasks: {a: {run: x}}\n#" + strings.Repeat("x", engine.MaxSource), drover.CodePayloadTooLarge, fmt.Sprint(engine.MaxSource)},
			{layers(dag.TaskCap/10+1, 10), drover.CodeTooManyTasks, fmt.Sprint(dag.TaskCap)},
		} {
			_, err := w.RegisterPipeline(t.Context(), w.c, "p.yaml", []byte(tc.src))
			var e *drover.Error
			if !errors.As(err, &e) || e.Code != tc.code || !strings.Contains(e.Detail, tc.says) {
				t.Errorf("%d bytes: %v, want %s and %s", len(tc.src), err, tc.code, tc.says)
			}
		}
	})
}

// BenchmarkLargestJob registers a definition of 100,000 tasks in ten layers, submits a job
// of it and has all its tasks run, a thousand a settle.
func BenchmarkLargestJob(b *testing.B) {
	for _, driver := range storetest.Drivers(b) {
		b.Run(driver, func(b *testing.B) {
			src := []byte(layers(10, dag.TaskCap/10))
			for b.Loop() {
				largestJob(b, engine.New(storetest.Open(b, driver, func(*store.Options) {}), engine.Options{}), src)
			}
		})
	}
}

func largestJob(b *testing.B, e *engine.Engine, src []byte) {
	ctx := b.Context()
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	start := time.Now()
	took := func(what string) {
		b.ReportMetric(time.Since(start).Seconds(), "s/"+what)
		start = time.Now()
	}
	c, err := e.EnsureTenant(ctx, "acme")
	must(err)
	_, err = e.RegisterPipeline(ctx, c, "layers.yaml", src)
	must(err)
	took("register")
	out, err := e.Submit(ctx, c, []drover.NewJob{{Pipeline: "layers"}})
	must(err)
	took("submit")
	s, err := e.OpenSession(ctx, c, drover.NewSession{Worker: "w", Queues: []string{"default"}, Slots: 1000})
	must(err)
	leases, err := e.Acquire(ctx, c, drover.Acquire{Session: s.ID, Max: 1000, Number: 1})
	must(err)
	for n := int64(2); len(leases) > 0; n++ {
		done := make([]drover.Outcome, len(leases))
		for i, l := range leases {
			done[i] = ok(l, "1")
		}
		r := e.Settle(ctx, []engine.Settlement{{Caller: c, Session: s.ID, Outcomes: done, Acquire: &drover.Acquire{Session: s.ID, Max: 1000, Number: n}}})
		must(r[0].Err)
		leases = r[0].Leases
	}
	took("run")
	j, err := e.Job(ctx, c, out[0].JobID)
	must(err)
	if j.Status != drover.Succeeded || j.Tasks.Total != dag.TaskCap {
		b.Fatalf("%s, %+v", j.Status, j.Tasks)
	}
}
