package engine_test

import (
	"fmt"
	"testing"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

// TestASettleThatOpensACircuitTakesNothingThroughIt: what rides on the settle
// knows of the circuit's end.
func TestASettleThatOpensACircuitTakesNothingThroughIt(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		if _, err := w.SetCircuit(t.Context(), w.c, "vendor", drover.CircuitPolicy{Failures: 3}); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			w.submit(drover.NewJob{Kind: "a", Circuit: "vendor"})
		}
		var out []drover.Outcome
		for _, l := range w.acquire(3) {
			out = append(out, failed(l, drover.ClassThrottled, "429"))
		}
		free := w.submit(drover.NewJob{Kind: "a"})
		w.number++
		r := w.Settle(t.Context(), []engine.Settlement{{Caller: w.c, Session: w.session, Outcomes: out, Acquire: &drover.Acquire{Session: w.session, Max: 10, Number: w.number}}})[0]
		if c := w.circuit("vendor"); r.Err != nil || c.State != drover.CircuitOpen {
			t.Fatalf("%+v, %v", c, r.Err)
		}
		if len(r.Leases) != 1 || r.Leases[0].JobID != free {
			t.Errorf("the settle that opened the circuit took %d tasks along, want the one that does not need it", len(r.Leases))
		}
	})
}

// TestAnIDThatIsUsedAgainIsNotTakenForTheJobThatHadIt, which another server has
// deleted.
func TestAnIDThatIsUsedAgainIsNotTakenForTheJobThatHadIt(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: old\ntasks:\n  a: {run: a}\n  b: {needs: [a], run: b}\n")
		w.apply("pipeline: new\ntasks:\n  x: {run: x}\n  y: {run: y}\n  z: {needs: [x, y], run: z}\n")
		id := drover.JobID(w.db.NewID())
		w.submit(drover.NewJob{Pipeline: "old", ID: id})
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		w.want(id, drover.Succeeded)
		other := w.server()
		if err := other.DeleteJob(t.Context(), w.c, id); err != nil {
			t.Fatal(err)
		}
		for n := 1; n > 0; {
			var err error
			if n, err = other.PurgeOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if out, err := other.Submit(t.Context(), w.c, []drover.NewJob{{Pipeline: "new", ID: id}}); err != nil || out[0].Err != nil {
			t.Fatal(err, out)
		}
		if names := w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") }); fmt.Sprint(names) != "[x[0] y[0] z[0]]" && fmt.Sprint(names) != "[y[0] x[0] z[0]]" {
			t.Errorf("ran %v", names)
		}
		w.want(id, drover.Succeeded)
		w.audit()
	})
}

// TestNobodyIsToldOfWhatIsTaken: tasks that a settle releases and claims in one go
// are no news for others; one that is left is.
func TestNobodyIsToldOfWhatIsTaken(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: k}\n  b: {run: k, needs: [a]}\n  c: {run: k, needs: [b]}\n  d: {run: k, needs: [b]}\n")
		w.submit(drover.NewJob{Pipeline: "p"})
		var told []string
		w.OnQueued = func(queues []string) { told = append(told, queues...) }
		ride := func(l drover.Lease, want int) []drover.Lease {
			t.Helper()
			w.number++
			r := w.Settle(t.Context(), []engine.Settlement{{Caller: w.c, Session: w.session, Outcomes: []drover.Outcome{ok(l, "1")},
				Acquire: &drover.Acquire{Session: w.session, Max: 1, Number: w.number}}})[0]
			if r.Err != nil || len(r.Leases) != want {
				t.Fatalf("%d leases, want %d, %v", len(r.Leases), want, r.Err)
			}
			return r.Leases
		}
		l := ride(w.acquire(1)[0], 1)
		if len(told) > 0 {
			t.Errorf("told of %v, and the one new task is taken", told)
		}
		ride(l[0], 1)
		if len(told) != 1 || told[0] != "default" {
			t.Errorf("told of %v, want the queue in which one of two is left", told)
		}
	})
}
