package engine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

// renew renews the session with the leases its worker believes it holds.
func (w *world) renew(held ...drover.Lease) drover.Renewed {
	w.t.Helper()
	r := drover.Renewal{Acquired: w.number}
	for _, l := range held {
		r.Held = append(r.Held, drover.Held{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion})
	}
	got, err := w.Renew(w.t.Context(), w.c, w.session, r)
	if err != nil {
		w.t.Fatal(err)
	}
	return got
}

// passing lets time go by in steps that a renewing worker survives.
func (w *world) passing(d time.Duration, held ...drover.Lease) (lost []drover.Held) {
	w.t.Helper()
	for ; d > 0; d -= 10 * time.Second {
		w.clock.add += min(d, 10*time.Second)
		lost = append(lost, w.renew(held...).Lost...)
	}
	return lost
}

// timeout-retried: three attempts in all, and the end says why.
func TestTheServerEndsAnAttemptWhoseWorkerIgnoresItsTimeout(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks: {a: {run: a, timeout: 40s, retry: {max_attempts: 3}}, b: {run: b, needs: [a]}}\n")
		for _, job := range []drover.NewJob{{Kind: "a", Timeout: drover.Duration(40 * time.Second), Retry: &drover.Retry{MaxAttempts: 3}}, {Pipeline: "p"}} {
			id := w.submit(job)
			for n := 1; n <= 3; n++ {
				l := w.one()
				if l.Attempt != n || l.Timeout.Std() != 40*time.Second {
					t.Fatalf("attempt %d: %+v", n, l)
				}
				if lost := w.passing(50*time.Second, l); len(lost) > 0 { // the worker still has time to end it itself
					t.Fatalf("attempt %d was cut off within the grace", n)
				}
				lost := w.passing(10*time.Second, l)
				if len(lost) != 1 || lost[0].TaskID != l.TaskID || lost[0].LeaseVersion != l.LeaseVersion {
					t.Fatalf("attempt %d: lost %+v", n, lost)
				}
				if s := w.settle(ok(l, "1"))[0]; drover.CodeOf(s.Err) != drover.CodeLeaseLost {
					t.Fatalf("a result after it was cut off: %+v", s)
				}
				if s := w.settle(failed(l, drover.ClassTimeout, "late"))[0]; drover.CodeOf(s.Err) != drover.CodeLeaseLost {
					t.Fatalf("a late word: %+v", s)
				}
				x := w.taskOf(id, "a")
				if want := l.LeaseVersion + 1; x.LeaseVersion != want {
					t.Errorf("lease_version is %d, want %d", x.LeaseVersion, want)
				}
				if n < 3 {
					if x.Status != drover.RetryWait {
						t.Fatalf("after attempt %d: %+v", n, x)
					}
					w.passing(time.Minute)
					w.step("timers", w.TimersOnce)
				}
			}
			x := w.taskOf(id, "a")
			if x.Status != drover.DeadLetter || x.Error.Class != drover.ClassTimeout || x.Error.Type != "start_to_close" || !strings.Contains(x.Error.Message, "longer than its timeout of 40s") {
				t.Errorf("the end is %+v, %+v", x, x.Error)
			}
			list, err := w.Attempts(t.Context(), w.c, x.ID)
			if err != nil || len(list) != 3 || list[2].Outcome != "timed_out" {
				t.Errorf("attempts %+v, %v", list, err)
			}
			w.step("sweep", w.SweepOnce)
			w.want(id, drover.Failed)
		}
		w.audit()
		checkInvariants(t, w)
	})
}

func TestAnAttemptOfACancelledJobThatRunsOverIsCancelled(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		id := w.submit(drover.NewJob{Kind: "a", Timeout: drover.Duration(time.Second)})
		l := w.one()
		if _, err := w.Cancel(t.Context(), w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		if lost := w.passing(20*time.Second, l); len(lost) != 1 {
			t.Errorf("lost %+v", lost)
		}
		w.want(id, drover.Cancelled)
		w.audit()
	})
}
