package engine_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

// ghost-readd: a job has left the database while its worker's session, which ran
// it, has yet to be found dead. Nothing of it comes back.
func TestNothingComesBackOfAJobThatWasDeleted(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		id := w.submit(drover.NewJob{Kind: "a"})
		w.settle(ok(w.acquire(1)[0], "1"))
		if err := w.DeleteJob(t.Context(), w.c, id); err != nil {
			t.Fatal(err)
		}
		w.purge()
		w.clock.add += time.Hour // the session has run out
		w.quieten()
		w.open()
		if l := w.acquire(10); len(l) != 0 {
			t.Fatalf("a ghost: %+v", l)
		}
		for _, table := range []string{"task_pending", "task_ready", "task_queued", "task_running", "task_delayed", "task_final", "tasks"} {
			if n := w.count("SELECT count(*) FROM " + table); n != 0 {
				t.Errorf("%d rows in %s", n, table)
			}
		}
	})
}

// rescue-page: many old workers that live and run long tasks, and one that is
// dead. It is found at once, whatever page of them it is on.
func TestADeadWorkerAmongManyOldOnesIsFound(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		n := w.scaled(250, 120)
		w.submitMany(n+1, drover.NewJob{Kind: "long"})
		var live []drover.SessionID
		held := map[drover.SessionID]drover.Held{}
		for range n {
			w.number = 0
			w.open()
			l := w.acquire(1)[0]
			live, held[w.session] = append(live, w.session), drover.Held{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion}
		}
		w.number = 0
		w.open()
		dead := w.acquire(1)[0]
		for range 3 { // the others have renewed for long
			w.clock.add += 20 * time.Second
			for _, s := range live {
				if _, err := w.Renew(t.Context(), w.c, s, drover.Renewal{Held: []drover.Held{held[s]}, Acquired: 1}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if took := w.step("reap", w.ReapOnce); took != 1 {
			t.Fatalf("the reaper took back %d tasks, want the one", took)
		}
		w.step("admit", w.AdmitOnce)
		w.number = 0
		w.open()
		if l := w.acquire(10); len(l) != 1 || l[0].TaskID != dead.TaskID || l[0].LeaseVersion != dead.LeaseVersion+2 {
			t.Fatalf("leases = %+v", l)
		}
	})
}

// timer-earlier: one that is due sooner is added while a later one waits.
func TestATimerThatIsDueSoonerIsNotHeldUpByALaterOne(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		now := w.Now()
		w.submit(drover.NewJob{Kind: "late", DueAt: now.Add(time.Minute)})
		w.submit(drover.NewJob{Kind: "soon", DueAt: now.Add(time.Second)})
		if w.step("timers", w.TimersOnce) != 0 {
			t.Fatal("a timer came early")
		}
		w.clock.add += 2 * time.Second
		w.step("timers", w.TimersOnce)
		if l := w.one(); l.Kind != "soon" {
			t.Fatalf("got %s", l.Kind)
		}
		w.clock.add += 50 * time.Second
		if w.step("timers", w.TimersOnce) != 0 {
			t.Fatal("a timer came early")
		}
		w.pass(10 * time.Second)
		w.step("timers", w.TimersOnce)
		if l := w.one(); l.Kind != "late" {
			t.Fatalf("got %s", l.Kind)
		}
	})
}

// timer-cancel-race: a retry is due at the moment its job is cancelled, in either order.
func TestARetryThatIsDueAtACancelIsCancelled(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for _, first := range []string{"cancel", "timer"} {
			id := w.submit(drover.NewJob{Kind: "a", Retry: &drover.Retry{MaxAttempts: 9}})
			w.settle(failed(w.one(), drover.ClassRetryable, "again"))
			w.pass(time.Minute)
			steps := map[string]func(){
				"cancel": func() {
					if _, err := w.Cancel(t.Context(), w.c, id, engine.Request{}); err != nil {
						t.Fatal(err)
					}
				},
				"timer": func() { w.step("timers", w.TimersOnce) },
			}
			steps[first]()
			delete(steps, first)
			for _, f := range steps {
				f()
			}
			w.quieten()
			w.want(id, drover.Cancelled)
			if l := w.acquire(10); len(l) != 0 {
				t.Fatalf("%s first: %+v", first, l)
			}
		}
	})
}

// terminate-oversized: a job whose input, labels and outputs are as large as can
// be is listed, shown, cancelled, replayed and deleted like any other.
func TestTheLargestJobIsOneLikeAnyOther(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		big := func(n int) json.RawMessage { return json.RawMessage(`"` + strings.Repeat("é", (n-2)/2) + `"`) }
		labels := map[string]string{}
		for i := range 32 {
			labels[fmt.Sprintf("%063d", i)] = strings.Repeat("x", 255)
		}
		w.apply("pipeline: big\ntasks:\n  a: {run: a}\n  b: {needs: [a], run: b, with: {x: \"${{ tasks.a.output }}\"}}\n")
		id := w.submit(drover.NewJob{Pipeline: "big", Input: big(engine.MaxPayload), Labels: labels})
		w.settle(drover.Outcome{TaskID: w.one().TaskID, LeaseVersion: 1, Status: drover.OutcomeSucceeded, Output: big(engine.MaxPayload)})
		l := w.one()
		if len(l.Input) < engine.MaxPayload {
			t.Fatalf("the input of b has %d bytes", len(l.Input))
		}
		w.settle(failed(l, drover.ClassPermanent, strings.Repeat("é", 5<<20)))
		if j := w.want(id, drover.Failed); len(j.Input) != engine.MaxPayload || len(j.Error.Message) > 20_000 || !strings.HasSuffix(j.Error.Message, "[cut]") {
			t.Errorf("input of %d bytes, error of %d: …%s", len(j.Input), len(j.Error.Message), j.Error.Message[max(0, len(j.Error.Message)-20):])
		}
		if list, err := w.Jobs(t.Context(), w.c, engine.JobQuery{}); err != nil || len(list) != 1 {
			t.Fatalf("listed: %d, %v", len(list), err)
		}
		if _, err := w.Replay(t.Context(), w.c, l.TaskID, engine.ReplayRequest{}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Cancel(t.Context(), w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		w.want(id, drover.Cancelled)
		if err := w.DeleteJob(t.Context(), w.c, id); err != nil {
			t.Fatal(err)
		}
		w.purge()
		// One byte more is refused with its size and the remedy.
		out, err := w.Submit(t.Context(), w.c, []drover.NewJob{{Kind: "a", Input: append(big(engine.MaxPayload), ' ')}})
		if err != nil || drover.CodeOf(out[0].Err) != drover.CodePayloadTooLarge {
			t.Errorf("%+v, %v", out, err)
		}
	})
}

// unicode-id: names of multi-byte characters, as long as they may be, are kept
// whole; the limit counts bytes, as the message says.
func TestNamesOfMultiByteCharactersAreKeptWhole(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		kind, queue, key := strings.Repeat("漢", 42)+"ab", strings.Repeat("é", 64), strings.Repeat("😀", 63)+"abc"
		n := drover.NewJob{Kind: kind, Queue: queue, IdempotencyKey: key, Labels: map[string]string{strings.Repeat("ß", 31) + "x": strings.Repeat("漢", 85)}}
		id := w.submit(n)
		if again := w.submit(n); again != id {
			t.Errorf("the repeat made %s", again)
		}
		s, err := w.OpenSession(t.Context(), w.c, drover.NewSession{Worker: strings.Repeat("漢", 42), Queues: []string{queue}, Kinds: []string{kind}, Slots: 1})
		if err != nil {
			t.Fatal(err)
		}
		w.session, w.number = s.ID, 0
		l := w.one()
		if l.Kind != kind || l.Queue != queue {
			t.Errorf("lease of %q in %q", l.Kind, l.Queue)
		}
		w.settle(ok(l, "1"))
		if j := w.want(id, drover.Succeeded); j.Kind != kind || len(j.Labels) != 1 {
			t.Errorf("job = %+v", j)
		}
		n.Kind, n.IdempotencyKey = kind+"é", ""
		out, err := w.Submit(t.Context(), w.c, []drover.NewJob{n})
		if err != nil || out[0].Err == nil || !strings.Contains(fmt.Sprint(out[0].Err.Fields), "128 bytes") {
			t.Errorf("129 bytes: %+v, %v", out, err)
		}
	})
}

// id-derivation-change: what tells a repeat from another request is the same in
// every version: a key used before an upgrade is the same after it.
func TestARequestHasTheSameFingerprintInEveryVersion(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for _, c := range []struct {
			job  drover.NewJob
			want string
		}{
			{drover.NewJob{Kind: "a"}, "219739695e78f7deb20bb7852c0900a1"},
			{drover.NewJob{Kind: "a", Queue: "q", Input: json.RawMessage(` {"x" : [1, 2.50]} `), Labels: map[string]string{"b": "2", "a": "1"}, Class: drover.Urgent,
				Retry: &drover.Retry{MaxAttempts: 3, Initial: drover.Duration(time.Second), Factor: 1.5, Max: drover.Duration(time.Minute)}, Timeout: drover.Duration(time.Hour)}, "111e42de61907b09cda9df89b1db5a4d"},
		} {
			id := w.submit(c.job)
			var got []byte
			w.read("SELECT fingerprint FROM jobs WHERE id = "+w.literal(id), &got)
			if h := hex.EncodeToString(got); h != c.want {
				t.Errorf("%+v: fingerprint %s, was %s", c.job, h, c.want)
			}
		}
	})
}

// claim-batch-poison: of five tasks that are claimed together one cannot have its
// input filled in. It fails and says so; the other four run.
func TestATaskWhoseInputCannotBeFilledInFailsAlone(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: a}\n  b: {run: b, with: {x: \"${{ tasks.a.output.x }}\"}}\n")
		ids := w.submitMany(5, drover.NewJob{Pipeline: "p"})
		var outcomes []drover.Outcome
		for _, l := range w.acquire(5) {
			out := `{"x": 1}`
			if l.JobID == ids[2] {
				out = `{"y": 1}`
			}
			outcomes = append(outcomes, ok(l, out))
		}
		w.settle(outcomes...)
		got := w.acquire(5)
		if len(got) != 4 {
			t.Fatalf("%d leases, want the four that are whole", len(got))
		}
		for _, l := range got {
			w.settle(ok(l, "1"))
		}
		for i, id := range ids {
			if i != 2 {
				w.want(id, drover.Succeeded)
				continue
			}
			if j := w.want(id, drover.Failed); j.Error == nil || j.Error.Class != drover.ClassInput || j.Error.Task != "b" || !strings.Contains(j.Error.Message, "x") {
				t.Errorf("error = %+v", j.Error)
			}
		}
		if l := w.acquire(5); len(l) != 0 {
			t.Errorf("left: %+v", l)
		}
		w.audit()
	})
}
