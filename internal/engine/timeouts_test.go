package engine_test

import (
	"encoding/json"
	"errors"
	"fmt"
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
		if r := func() drover.Renewed {
			w.passing(10*time.Second, l)
			w.clock.add += 10 * time.Second
			return w.renew(l)
		}(); len(r.Lost) != 1 || len(r.Cancelled) != 0 {
			t.Errorf("the renewal that ends it says %+v; it is lost, there is nothing to cancel", r)
		}
		w.want(id, drover.Cancelled)
		w.audit()
	})
}

func (w *world) beat(l drover.Lease, details string) error {
	w.t.Helper()
	return w.Heartbeat(w.t.Context(), w.c, drover.Held{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion}, json.RawMessage(details))
}

const bounded = `pipeline: bounded
defaults: {schedule_to_close: 2m, retry: {max_attempts: 100, backoff: {initial: 10s, factor: 1}}}
tasks: {a: {run: a}, b: {run: b, needs: [a], schedule_to_close: 5m}}
`

func boundedJobs() []drover.NewJob {
	return []drover.NewJob{{Pipeline: "bounded"}, {Kind: "a", ScheduleToClose: drover.Duration(2 * time.Minute),
		Retry: &drover.Retry{MaxAttempts: 100, Initial: drover.Duration(10 * time.Second), Factor: 1}}}
}

// cause-kept: several handler errors, then the overall deadline: the record says
// timed out and carries the last handler error as its cause.
func TestAllAttemptsTogetherAreBoundedByScheduleToClose(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(bounded)
		for _, job := range boundedJobs() {
			id := w.submit(job)
			closes := w.taskOf(id, "a").ClosesAt
			if d := closes.Sub(w.Now()); d > 2*time.Minute || d < 119*time.Second {
				t.Fatalf("closes in %v", d)
			}
			n, last := 0, ""
			for ; n < 50; n++ {
				w.step("timers", w.TimersOnce)
				if w.taskOf(id, "a").Status.Final() {
					break
				}
				got := w.acquire(10)
				if len(got) == 0 { // due, but too late to begin
					continue
				}
				l := got[0]
				if left := closes.Sub(w.Now()); l.Timeout.Std() > left+time.Second || l.Timeout.Std() < left-time.Second {
					t.Fatalf("attempt %d may take %v; %v are left", l.Attempt, l.Timeout, left)
				}
				if got := w.taskOf(id, "a").ClosesAt; !got.Equal(closes) {
					t.Fatalf("the bound has moved from %v to %v", closes, got)
				}
				o := failed(l, drover.ClassRetryable, fmt.Sprint("no answer ", l.Attempt))
				if n == 3 {
					o = drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeReleased}
				}
				if o.Error != nil {
					last = o.Error.Message
				}
				w.settle(o)
				w.step("admit", w.AdmitOnce)
				w.passing(8 * time.Second)
			}
			x := w.taskOf(id, "a")
			if x.Status != drover.Failed || x.Error.Class != drover.ClassTimeout || x.Error.Type != "schedule_to_close" || x.Error.Cause == nil || n < 10 ||
				x.Error.Cause.Class != drover.ClassRetryable || x.Error.Cause.Message != last || !strings.Contains(x.Error.Message, x.Error.Cause.Message) {
				t.Errorf("after %d attempts: %+v, %+v", n, x, x.Error)
			}
			if d := x.FinishedAt.Sub(closes); d > 8*time.Second {
				t.Errorf("ended at %v, its bound was %v", x.FinishedAt, closes)
			}
			w.step("sweep", w.SweepOnce)
			w.want(id, drover.Failed)
		}
		w.audit()
		checkInvariants(t, w)
	})
}

func TestATaskThatIsOutOfTimeEndsWhereverItIs(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(bounded)
		late := func(l drover.Lease) drover.Outcome {
			return drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeSnoozed, RetryAfter: drover.Duration(time.Minute)}
		}
		for _, c := range []struct {
			name string
			do   func(id drover.JobID)
			runs bool
			over bool // ended before the bound
		}{
			{"queued", func(drover.JobID) {}, false, false},
			{"paused", func(id drover.JobID) {
				if _, err := w.Pause(t.Context(), w.c, id, engine.Request{}); err != nil {
					t.Fatal(err)
				}
			}, false, false},
			{"waiting for a retry", func(drover.JobID) { w.settle(late(w.one())) }, false, false},
			{"snoozed beyond it", func(drover.JobID) {
				w.clock.add += time.Minute
				w.open()
				w.settle(late(w.one()))
			}, false, true},
			{"running", func(drover.JobID) {}, true, false},
		} {
			for _, job := range boundedJobs() {
				id := w.submit(job)
				c.do(id)
				if got := w.taskOf(id, "a"); got.Status.Final() != c.over {
					t.Fatalf("%s: %+v", c.name, got)
				}
				var held []drover.Lease
				if c.runs {
					held = w.acquire(1)
				}
				w.passing(118*time.Second, held...)
				w.step("watch", w.WatchOnce)
				if got := w.taskOf(id, "a"); got.Status.Final() != c.over {
					t.Fatalf("%s: before its time: %+v", c.name, got)
				}
				w.passing(4*time.Second, held...)
				w.step("watch", w.WatchOnce)
				x := w.taskOf(id, "a")
				if x.Status != drover.Failed || x.Error.Class != drover.ClassTimeout || x.Error.Type != "schedule_to_close" {
					t.Errorf("%s: %+v, %+v", c.name, x, x.Error)
				}
				if c.runs {
					if s := w.settle(ok(held[0], "1"))[0]; drover.CodeOf(s.Err) != drover.CodeLeaseLost || x.LeaseVersion != 2 {
						t.Errorf("%s: a result after the end: %+v, lease_version %d", c.name, s, x.LeaseVersion)
					}
				}
				w.step("sweep", w.SweepOnce)
				w.want(id, drover.Failed)
			}
		}
		w.audit()
		checkInvariants(t, w)
		if n := w.count("SELECT count(*) FROM task_watches"); n > 0 {
			t.Errorf("%d watches of tasks that have ended", n)
		}
	})
}

// The bound begins when a task is first able to run: with the last of its
// parents, or at its start time; and anew with a replay.
func TestScheduleToCloseBeginsWhenATaskCanRun(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(bounded)
		id := w.submit(drover.NewJob{Pipeline: "bounded"})
		w.passing(time.Minute)
		if at := w.taskOf(id, "b").ClosesAt; !at.IsZero() {
			t.Errorf("a task that waits for its parents closes at %v", at)
		}
		w.settle(ok(w.one(), "1"))
		if d := w.taskOf(id, "b").ClosesAt.Sub(w.Now()); d < 299*time.Second || d > 5*time.Minute {
			t.Errorf("after its parent it closes in %v", d)
		}
		w.settle(failed(w.one(), drover.ClassPermanent, "no"))
		w.want(id, drover.Failed)
		w.passing(10 * time.Minute)
		if err := w.replay(id, "b", 0); err != nil {
			t.Fatal(err)
		}
		if d := w.taskOf(id, "b").ClosesAt.Sub(w.Now()); d < 299*time.Second || d > 5*time.Minute {
			t.Errorf("replayed, it closes in %v", d)
		}
		w.settle(ok(w.one(), "1"))
		w.want(id, drover.Succeeded)

		due := w.Now().Add(time.Hour)
		id = w.submit(drover.NewJob{Kind: "a", ScheduleToClose: drover.Duration(time.Minute), DueAt: due})
		if at := w.taskOf(id, "a").ClosesAt; at.Sub(due).Round(time.Second) != time.Minute {
			t.Errorf("due at %v, it closes at %v", due, at)
		}
		w.passing(59 * time.Minute)
		w.step("watch", w.WatchOnce)
		w.want(id, drover.Pending)
		w.clock.add += time.Hour // nobody was there to start it
		w.step("watch", w.WatchOnce)
		w.want(id, drover.Failed)
		w.audit()
	})
}

func TestAnAttemptThatMissesItsHeartbeatIsTriedAgain(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks: {a: {run: a, heartbeat: 30s, retry: {max_attempts: 3, on: {heartbeat: {max_attempts: 2}}}}}\n")
		kind := drover.NewJob{Kind: "a", Heartbeat: drover.Duration(30 * time.Second), Retry: &drover.Retry{MaxAttempts: 3, On: map[string]drover.RetryRule{"heartbeat": {MaxAttempts: 2}}}}
		for _, job := range []drover.NewJob{kind, {Pipeline: "p"}} {
			id := w.submit(job)
			l := w.one()
			if l.Heartbeat.Std() != 30*time.Second || l.Checkpoint != nil {
				t.Fatalf("lease %+v", l)
			}
			for i := range 5 { // more than the heartbeat in all
				w.passing(20*time.Second, l)
				if err := w.beat(l, fmt.Sprintf(`{"done": %d}`, i)); err != nil {
					t.Fatal(err)
				}
				if n := w.step("watch", w.WatchOnce); n > 0 {
					t.Fatal("an attempt that beats was ended")
				}
			}
			w.passing(20*time.Second, l)
			if err := w.beat(l, ""); err != nil { // a sign of life leaves what is kept
				t.Fatal(err)
			}
			if x := w.taskOf(id, "a"); string(x.Checkpoint) != `{"done": 4}` || w.Now().Sub(x.HeartbeatAt) > time.Second {
				t.Errorf("task %+v", x)
			}
			w.passing(29*time.Second, l)
			if n := w.step("watch", w.WatchOnce); n > 0 {
				t.Fatal("ended before its heartbeat was due")
			}
			w.passing(2*time.Second, l)
			if n := w.step("watch", w.WatchOnce); n != 1 {
				t.Fatal("silent, and not ended")
			}
			if err := w.beat(l, `"late"`); drover.CodeOf(err) != drover.CodeLeaseLost {
				t.Errorf("a late heartbeat: %v", err)
			}
			if lost := w.renew(l).Lost; len(lost) != 1 {
				t.Errorf("the worker is not told: %+v", lost)
			}
			x := w.taskOf(id, "a")
			if x.Status != drover.RetryWait || x.Attempt != 1 {
				t.Fatalf("task %+v", x)
			}
			w.passing(time.Minute)
			w.step("timers", w.TimersOnce)
			again := w.one()
			if string(again.Checkpoint) != `{"done": 4}` || again.Attempt != 2 {
				t.Fatalf("the next attempt: %+v", again)
			}
			w.passing(31*time.Second, again)
			w.step("watch", w.WatchOnce)
			if x = w.taskOf(id, "a"); x.Status != drover.DeadLetter || x.Error.Class != drover.ClassTimeout || x.Error.Type != "heartbeat" || !strings.Contains(x.Error.Message, "it has sent none") {
				t.Errorf("the end: %+v, %+v", x, x.Error)
			}
			if list, err := w.Attempts(t.Context(), w.c, x.ID); err != nil || !strings.Contains(list[0].Error.Message, "the last came 31") {
				t.Errorf("attempts %+v, %v", list, err)
			}
		}
		w.audit()
		checkInvariants(t, w)
	})
}

// What an attempt kept reaches the next, however it ended: failed, given back,
// lost with its worker; also without a heartbeat policy. A replay begins anew.
func TestTheNextAttemptGetsTheCheckpoint(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for _, beats := range []time.Duration{0, 20 * time.Second} {
			id := w.submit(drover.NewJob{Kind: "a", Heartbeat: drover.Duration(beats)})
			l := w.one()
			end := []func(){
				func() { w.settle(failed(l, drover.ClassRetryable, "no")) },
				func() {
					w.settle(drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeReleased})
				},
				func() { // its worker was killed
					w.pass(40 * time.Second)
					w.step("reap", w.ReapOnce)
				},
				func() { w.settle(failed(l, drover.ClassPermanent, "enough")) },
			}
			for i, f := range end {
				details := fmt.Sprintf(`{"segment": %d, "of": "é"}`, i)
				w.clock.add += time.Second
				if err := w.beat(l, details); err != nil {
					t.Fatal(err)
				}
				if f(); i == len(end)-1 {
					break
				}
				if i == 0 {
					w.pass(time.Minute)
				}
				w.step("timers", w.TimersOnce)
				w.step("admit", w.AdmitOnce)
				if l = w.one(); string(l.Checkpoint) != details {
					t.Fatalf("after end %d the next attempt has %s, want %s", i, l.Checkpoint, details)
				}
			}
			w.want(id, drover.Failed)
			if err := w.replay(id, "a", 0); err != nil {
				t.Fatal(err)
			}
			if l = w.one(); l.Checkpoint != nil || l.Generation != 2 {
				t.Errorf("a replay begins with %s: %+v", l.Checkpoint, l)
			}
			w.clock.add += time.Second
			if err := w.beat(l, ""); err != nil {
				t.Fatal(err)
			}
			w.settle(drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeReleased})
			w.step("admit", w.AdmitOnce)
			if l = w.one(); l.Checkpoint != nil {
				t.Errorf("the replay's second attempt has %s of the generation before", l.Checkpoint)
			}
			w.settle(ok(l, "1"))
			w.want(id, drover.Succeeded)
		}
		w.passing(11 * time.Minute)
		w.step("watch", w.WatchOnce)
		if n := w.count("SELECT count(*) FROM task_watches"); n > 0 {
			t.Errorf("%d watches of tasks that have ended", n)
		}
		w.audit()
	})
}

func TestHeartbeatsAreFencedBoundedAndThrottled(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.submit(drover.NewJob{Kind: "a"})
		l := w.one()
		if err := w.beat(l, "{"); drover.CodeOf(err) != drover.CodeValidation {
			t.Errorf("no JSON: %v", err)
		}
		if err := w.beat(l, `"`+strings.Repeat("x", engine.MaxCheckpoint)+`"`); drover.CodeOf(err) != drover.CodePayloadTooLarge {
			t.Errorf("too long: %v", err)
		}
		stale, other := l, w.c
		stale.LeaseVersion, other.Tenant = 7, w.c.Tenant+1
		if err := w.beat(stale, "1"); drover.CodeOf(err) != drover.CodeLeaseLost {
			t.Errorf("stale: %v", err)
		}
		if err := w.Heartbeat(t.Context(), other, drover.Held{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion}, nil); drover.CodeOf(err) != drover.CodeLeaseLost {
			t.Errorf("of another tenant: %v", err)
		}
		if err := w.beat(l, "1"); err != nil {
			t.Fatal(err)
		}
		err := w.beat(l, "2")
		var refused *drover.Error
		if !errors.As(err, &refused) || refused.Code != drover.CodeOverloaded || refused.RetryAfter <= 0 {
			t.Errorf("at once again: %v", err)
		}
		w.clock.add += 150 * time.Millisecond
		if err := w.beat(l, "3"); err != nil {
			t.Error(err)
		}
		if out, err := w.Submit(t.Context(), w.c, []drover.NewJob{{Kind: "a", Heartbeat: drover.Duration(time.Millisecond)}, {Kind: "a", ScheduleToClose: -1}, {Pipeline: "p", Heartbeat: drover.Duration(time.Minute)}}); err != nil ||
			out[0].Err.Fields[0].Field != "heartbeat" || out[1].Err.Fields[0].Field != "schedule_to_close" || out[2].Err.Fields[0].Field != "heartbeat" {
			t.Errorf("odd policies: %+v, %v", out, err)
		}
	})
}
