package engine_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

func errorOf[T any](_ T, err error) error { return err }

func (w *world) circuit(name string) drover.Circuit {
	w.t.Helper()
	c, err := w.Circuit(w.t.Context(), w.c, name)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func TestAnOpenCircuitStopsItsTasksAndNoOthers(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		w.apply("pipeline: pay\ntasks: {charge: {run: charge, circuit: payment-api, retry: {max_attempts: 10, backoff: {initial: 1h}}}, mail: {run: mail, needs: [charge]}}\n")
		other := w.server() // another server on the same database
		job := drover.NewJob{Kind: "refund", Circuit: "payment-api", Retry: &drover.Retry{MaxAttempts: 10, Initial: drover.Duration(time.Hour), Max: drover.Duration(time.Hour)}}
		for i := range 5 { // the fifth in a row opens it
			w.submit([]drover.NewJob{job, {Pipeline: "pay"}}[i%2])
			w.settle(failed(w.one(), []drover.ErrorClass{drover.ClassRetryable, drover.ClassTimeout, drover.ClassThrottled}[i%3], fmt.Sprint("no answer ", i)))
			if c := w.circuit("payment-api"); (c.State == drover.CircuitOpen) != (i == 4) {
				t.Fatalf("after %d failures: %+v", i+1, c)
			}
		}
		waiting := []drover.JobID{w.submit(job), w.submit(drover.NewJob{Pipeline: "pay"}), w.submit(job)}
		free := w.submit(drover.NewJob{Kind: "refund"}) // the same kind, without the circuit
		if l := w.one(); l.JobID != free {
			t.Fatalf("leases %+v", l)
		} else {
			w.settle(ok(l, "1"))
		}
		if s, err := other.OpenSession(ctx, w.c, drover.NewSession{Worker: "o", Queues: []string{"default"}, Kinds: []string{"charge", "refund"}, Slots: 10}); err != nil {
			t.Fatal(err)
		} else if l, err := other.Acquire(ctx, w.c, drover.Acquire{Session: s.ID, Max: 10, Number: 1}); err != nil || len(l) > 0 {
			t.Errorf("the other server gives %+v, %v", l, err)
		}
		x := w.taskOf(waiting[1], "charge")
		if x.Status != drover.Queued || x.Attempt != 0 || x.Circuit != "payment-api" || len(x.Blockers) != 1 {
			t.Fatalf("a waiter is %+v", x)
		}
		if b := x.Blockers[0]; b.Code != "circuit_open" || b.Subject.Name != "payment-api" || b.Since.IsZero() || b.Until.Sub(w.Now()).Round(time.Second) != 10*time.Second || !strings.Contains(b.Message, "no answer 4") {
			t.Errorf("it waits for %+v", b)
		}

		// After the pause exactly one tries. It fails, and the next pause is longer.
		w.passing(11 * time.Second)
		probe := w.one()
		if c := w.circuit("payment-api"); c.State != drover.CircuitProbing || c.Probe != probe.TaskID {
			t.Errorf("while one tries: %+v", c)
		}
		w.settle(failed(probe, drover.ClassRetryable, "still no answer"))
		if c := w.circuit("payment-api"); c.State != drover.CircuitOpen || c.Openings != 2 || c.NextProbeAt.Sub(w.Now()).Round(time.Second) != 20*time.Second {
			t.Errorf("after the failure of the probe: %+v", c)
		}
		// A probe that is lost is replaced: released, and with its worker.
		w.passing(21 * time.Second)
		probe = w.one()
		w.settle(drover.Outcome{TaskID: probe.TaskID, LeaseVersion: probe.LeaseVersion, Status: drover.OutcomeReleased})
		w.step("admit", w.AdmitOnce)
		probe = w.one()
		w.pass(40 * time.Second)
		w.step("reap", w.ReapOnce)
		w.step("admit", w.AdmitOnce)
		// One that fails for a reason of its own says nothing: the next one tries.
		w.settle(failed(w.one(), drover.ClassPermanent, "bad card"))
		probe = w.one()
		w.settle(ok(probe, "1"))
		if c := w.circuit("payment-api"); c.State != drover.CircuitRecovering {
			t.Errorf("after the success of the probe: %+v", c)
		}
		w.audit()
		checkInvariants(t, w)
	})
}

func TestThoseWhoWaitForACircuitDoNotComeAllAtOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		if _, err := w.SetCircuit(ctx, w.c, "vendor", drover.CircuitPolicy{Failures: 1}); err != nil {
			t.Fatal(err)
		}
		for range 300 {
			w.submit(drover.NewJob{Kind: "a", Circuit: "vendor"})
		}
		first := w.acquire(1)[0]
		o := failed(first, drover.ClassThrottled, "429")
		o.RetryAfter = drover.Duration(time.Minute)
		w.settle(o)
		if c := w.circuit("vendor"); c.State != drover.CircuitOpen || c.NextProbeAt.Sub(w.Now()).Round(time.Second) != time.Minute {
			t.Fatalf("after an answer that names a time: %+v", c)
		}
		if l := w.acquire(100); len(l) > 0 {
			t.Fatalf("%d start while it is open", len(l))
		}
		w.passing(61 * time.Second)
		w.settle(ok(w.one(), "1"))
		var started []int
		total := 0
		for range 11 {
			l := w.acquire(500)
			total += len(l)
			started = append(started, total)
			for _, x := range l {
				w.settle(ok(x, "1"))
			}
			w.passing(time.Second)
		}
		if started[0] != 1 || started[5] > 60 || started[6] == 298 || started[10] != 298 {
			t.Errorf("started within each second: %v", started)
		}
		if c := w.circuit("vendor"); c.State != drover.CircuitClosed || c.Failures != 0 {
			t.Errorf("at last: %+v", c)
		}
		w.audit()
	})
}

func TestACircuitIsOpenedAndClosedByHand(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		id := w.submit(drover.NewJob{Kind: "a", Circuit: "vendor"})
		c, err := w.OpenCircuit(ctx, w.c, "vendor", "maintenance")
		if err != nil || c.State != drover.CircuitOpen || !c.ByHand || c.Reason != "maintenance" {
			t.Fatalf("opened: %+v, %v", c, err)
		}
		w.passing(time.Hour)
		if l := w.acquire(1); len(l) > 0 {
			t.Error("one opened by hand lets somebody try")
		}
		if b := w.taskOf(id, "a").Blockers; len(b) != 1 || !strings.Contains(b[0].Message, "opened by hand: maintenance") {
			t.Errorf("it waits for %+v", b)
		}
		if c, err = w.CloseCircuit(ctx, w.c, "vendor"); err != nil || c.State != drover.CircuitRecovering {
			t.Errorf("closed: %+v, %v", c, err)
		}
		w.settle(ok(w.one(), "1"))
		w.want(id, drover.Succeeded)
		if list, err := w.Circuits(ctx, w.c, "", 10); err != nil || len(list) != 1 || list[0].Name != "vendor" {
			t.Errorf("list %+v, %v", list, err)
		}
		foreign := w.c
		foreign.Tenant++
		for _, err := range []error{
			errorOf(w.Circuit(ctx, foreign, "vendor")), errorOf(w.OpenCircuit(ctx, foreign, "vendor", "")), errorOf(w.Circuit(ctx, w.c, "No name")), errorOf(w.CloseCircuit(ctx, w.c, "unknown")),
		} {
			if drover.CodeOf(err) != drover.CodeNotFound {
				t.Errorf("a circuit that is not there: %v", err)
			}
		}
		for field, p := range map[string]drover.CircuitPolicy{"failures": {Failures: -1}, "window": {Window: 1}, "pause": {Pause: drover.Duration(40 * 24 * time.Hour)}, "max_pause": {Pause: drover.Duration(time.Minute), MaxPause: drover.Duration(time.Second)}} {
			if _, err := w.SetCircuit(ctx, w.c, "vendor", p); drover.CodeOf(err) != drover.CodeValidation || !strings.Contains(err.Error(), field) {
				t.Errorf("%s: %v", field, err)
			}
		}
		if out, err := w.Submit(ctx, w.c, []drover.NewJob{{Kind: "a", Circuit: "No name"}, {Pipeline: "p", Circuit: "vendor"}}); err != nil || out[0].Err.Fields[0].Field != "circuit" || out[1].Err.Fields[0].Field != "circuit" {
			t.Errorf("odd circuits: %+v, %v", out, err)
		}
	})
}

// Of many servers that claim at the same moment one gets the probe.
func TestOneOfManyGetsTheProbe(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		if _, err := w.SetCircuit(ctx, w.c, "vendor", drover.CircuitPolicy{Failures: 1}); err != nil {
			t.Fatal(err)
		}
		for range 40 {
			w.submit(drover.NewJob{Kind: "a", Circuit: "vendor"})
		}
		w.settle(failed(w.acquire(1)[0], drover.ClassRetryable, "no"))
		var servers []*engine.Engine
		for range 6 {
			servers = append(servers, w.server())
		}
		for round := range 5 {
			w.passing(6 * time.Minute)
			var hands []*hand
			for _, e := range servers {
				hands = append(hands, w.hand(e))
			}
			got := make([][]drover.Lease, len(hands))
			if err := together(len(hands), func(i int) (err error) {
				got[i], err = hands[i].acquire(10)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			var probes []drover.Lease
			var by *hand
			for i, l := range got {
				if probes = append(probes, l...); len(l) > 0 {
					by = hands[i]
				}
			}
			if len(probes) != 1 {
				t.Fatalf("round %d: %d probes", round, len(probes))
			}
			if _, _, err := by.settle(0, failed(probes[0], drover.ClassRetryable, "no")); err != nil {
				t.Fatal(err)
			}
		}
	})
}
