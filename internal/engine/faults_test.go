package engine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/driver"
)

// Each test here is a fault that users of another system met.

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	text := driver.New("test", "", sql)
	if err := w.db.Write(w.t.Context(), func(tx store.Tx) error { return tx.Pipe(w.t.Context(), store.Stmt{Text: text, Args: args}) }); err != nil {
		w.t.Fatal(err)
	}
}

// pass lets time go by; the worker is a new one afterwards.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	w.clock.add += d
	w.open()
}

func (w *world) taskOf(id drover.JobID, name string) drover.Task {
	w.t.Helper()
	list, err := w.Tasks(w.t.Context(), w.c, engine.TaskQuery{Job: id, Name: name, Limit: 100})
	if err != nil || len(list) != 1 {
		w.t.Fatalf("tasks %q = %+v, %v", name, list, err)
	}
	x, err := w.Task(w.t.Context(), w.c, list[0].ID)
	if err != nil {
		w.t.Fatal(err)
	}
	return x
}

func (w *world) one() drover.Lease {
	w.t.Helper()
	l := w.acquire(10)
	if len(l) != 1 {
		w.t.Fatalf("want one lease, got %+v", l)
	}
	return l[0]
}

// lost-lease-record: the record of who runs a task is gone (a restore, a hand in
// the database); recovery takes the task back under its normal policy.
func TestATaskWhoseSessionIsGoneIsTakenBack(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for name, sql := range map[string]string{"deleted": "DELETE FROM sessions WHERE id = $1", "cleared": "UPDATE sessions SET ended = 2 WHERE id = $1"} {
			id := w.submit(drover.NewJob{Kind: "a"})
			l := w.one()
			other := w.session
			w.open()
			id2 := w.submit(drover.NewJob{Kind: "a"})
			l2 := w.one() // of a worker that is well
			w.exec(sql, int64(other))
			if n := w.step("reap", w.ReapOnce); n != 1 {
				t.Fatalf("%s: took back %d, want 1", name, n)
			}
			w.want(id2, drover.Running)
			w.settle(ok(l2, "1"))
			w.step("admit", w.AdmitOnce)
			again := w.one()
			if again.TaskID != l.TaskID || again.Attempt != 1 || again.LeaseVersion != l.LeaseVersion+2 {
				t.Fatalf("%s: %+v after %+v", name, again, l)
			}
			w.settle(ok(again, "1"))
			w.want(id, drover.Succeeded)
			checkInvariants(t, w)
		}
	})
}

func TestAFailingHandlerIsEnteredMaxAttemptsTimes(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for _, n := range []int{1, 10, 0} {
			want := n
			if n == 0 {
				want = lifecycle.DefaultMaxAttempts
			}
			for _, after := range []time.Duration{0, time.Second} { // plain, and "ask again in 1 s" for ever
				id := w.submit(drover.NewJob{Kind: "a", Retry: &drover.Retry{MaxAttempts: n}})
				entered := 0
				for range want + 1 { // once more than it may be entered
					w.pass(2 * time.Minute)
					w.step("timers", w.TimersOnce)
					for _, l := range w.acquire(10) {
						if entered++; l.Attempt != entered || l.MaxAttempts != want {
							t.Fatalf("entry %d: %+v", entered, l)
						}
						o := failed(l, drover.ClassRetryable, "always")
						if after > 0 {
							o.Error.Class, o.RetryAfter = drover.ClassThrottled, drover.Duration(after)
						}
						w.settle(o)
						if x, err := w.Task(t.Context(), w.c, l.TaskID); err != nil || after > 0 && x.Status == drover.RetryWait && x.DueAt.Sub(w.Now()).Round(time.Second) != after {
							t.Fatalf("task %+v, %v", x, err)
						}
					}
				}
				if j := w.want(id, drover.Failed); entered != want || w.taskOf(id, "a").Status != drover.DeadLetter {
					t.Errorf("max_attempts %d: entered %d times, job %+v", n, entered, j)
				}
			}
		}
		if out, err := w.Submit(t.Context(), w.c, []drover.NewJob{{Kind: "a", Retry: &drover.Retry{MaxAttempts: -1}}}); err != nil || drover.CodeOf(out[0].Err) != drover.CodeValidation {
			t.Errorf("max_attempts -1: %+v, %v", out, err)
		}
		checkInvariants(t, w)
	})
}

func TestFailuresAreTriedAgainByTheirClassAndType(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ndefaults: {retry: {max_attempts: 3, on: {timeout: {max_attempts: 1}}}}\ntasks: {a: {run: a, retry: {on: {panic: {max_attempts: 2}, exit_65: {max_attempts: 1}}}}}\n")
		retry := &drover.Retry{MaxAttempts: 3, On: map[string]drover.RetryRule{"timeout": {MaxAttempts: 1}, "panic": {MaxAttempts: 2}, "exit_65": {MaxAttempts: 1}}}
		for _, job := range []drover.NewJob{{Kind: "a", Retry: retry}, {Pipeline: "p"}} {
			for _, c := range []struct {
				class drover.ErrorClass
				typ   string
				want  int // attempts
			}{{drover.ClassRetryable, "", 3}, {drover.ClassTimeout, "", 1}, {drover.ClassPanic, "", 2}, {drover.ClassRetryable, "exit_65", 1}, {drover.ClassThrottled, "", 3}} {
				id := w.submit(job)
				entered := 0
				for range 4 {
					for _, l := range w.acquire(10) {
						entered++
						o := failed(l, c.class, "always")
						o.Error.Type, o.RetryAfter = c.typ, drover.Duration(time.Second)
						w.settle(o)
					}
					w.pass(2 * time.Minute)
					w.step("timers", w.TimersOnce)
				}
				if x := w.taskOf(id, "a"); entered != c.want || x.Status != drover.DeadLetter || x.Error.Class != c.class || x.MaxAttempts != 3 {
					t.Errorf("%s %s: entered %d times, then %+v; want %d", c.class, c.typ, entered, x, c.want)
				}
			}
		}
		for field, r := range map[string]drover.Retry{
			"retry.on.permanent":            {On: map[string]drover.RetryRule{"permanent": {}}},
			"retry.on.timout":               {On: map[string]drover.RetryRule{"timout": {}}},
			"retry.on.timeout.max_attempts": {On: map[string]drover.RetryRule{"timeout": {MaxAttempts: 5}}},
			"retry.on.exit_1.factor":        {On: map[string]drover.RetryRule{"exit_1": {Factor: 0.5}}},
			"retry.on.exit_1":               {On: map[string]drover.RetryRule{"exit_1": {Max: -1}}},
		} {
			out, err := w.Submit(t.Context(), w.c, []drover.NewJob{{Kind: "a", Retry: &r}})
			if err != nil || drover.CodeOf(out[0].Err) != drover.CodeValidation || out[0].Err.Fields[0].Field != field {
				t.Errorf("%s: %+v, %v", field, out, err)
			}
		}
		checkInvariants(t, w)
	})
}

func TestALaterAttemptHasTheOptionsOfTheFirst(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		due, expires := w.Now().Add(time.Minute), w.Now().Add(time.Hour)
		trace := "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		id := w.submit(drover.NewJob{Kind: "a", Queue: "gpu", Class: drover.Urgent, Labels: map[string]string{"k": "v"}, DueAt: due, ExpiresAt: expires, Traceparent: trace,
			Timeout: drover.Duration(7 * time.Minute), Retry: &drover.Retry{MaxAttempts: 3, Initial: drover.Duration(10 * time.Second)}, Input: json.RawMessage(`{"n": 1}`)})
		var first drover.Lease
		check := func(what string, attempt int) drover.Lease {
			t.Helper()
			w.step("timers", w.TimersOnce)
			w.step("admit", w.AdmitOnce)
			l := w.one()
			x, err := w.Task(t.Context(), w.c, l.TaskID)
			if err != nil {
				t.Fatal(err)
			}
			if first.TaskID.IsZero() {
				first = l
			}
			same := first
			same.LeaseVersion, same.Attempt, same.Traceparent = l.LeaseVersion, attempt, l.Traceparent
			if fmt.Sprintf("%+v", l) != fmt.Sprintf("%+v", same) || l.Queue != "gpu" || l.Timeout.Std() != 7*time.Minute || l.MaxAttempts != 3 || l.Tenant != "acme" || l.Traceparent[:36] != trace[:36] {
				t.Errorf("%s:\n got %+v\nwant %+v", what, l, same)
			}
			if x.Class != drover.Urgent || x.Queue != "gpu" {
				t.Errorf("%s: %+v", what, x)
			}
			if j := w.job(id); j.Labels["k"] != "v" || j.Class != drover.Urgent || !j.ExpiresAt.Equal(expires.Truncate(time.Millisecond)) {
				t.Errorf("%s: %+v", what, j)
			}
			return l
		}
		w.pass(time.Minute)
		l := check("the first", 1)
		w.settle(failed(l, drover.ClassRetryable, "x"))
		w.pass(time.Minute)
		check("after a failure", 2)
		w.pass(31 * time.Second)
		w.step("reap", w.ReapOnce)
		l = check("after a lost lease", 2)
		w.settle(drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeReleased})
		for _, f := range []func() (drover.Job, error){
			func() (drover.Job, error) { return w.Pause(t.Context(), w.c, id, engine.Request{}) },
			func() (drover.Job, error) { return w.Resume(t.Context(), w.c, id, engine.Request{}) }} {
			if _, err := f(); err != nil {
				t.Fatal(err)
			}
		}
		l = check("after a pause", 2)
		w.settle(failed(l, drover.ClassPermanent, "x"))
		if _, err := w.Replay(t.Context(), w.c, l.TaskID, engine.ReplayRequest{}); err != nil {
			t.Fatal(err)
		}
		first.Generation, first.IdempotencyKey = 2, strings.TrimSuffix(first.IdempotencyKey, "1")+"2"
		l = check("after a replay", 1)
		w.settle(ok(l, "1"))
		w.want(id, drover.Succeeded)
		checkInvariants(t, w)
	})
}

func TestEachTaskOfABatchShowsItsOwnError(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: three\ntasks:\n  m: {run: k, for_each: \"${{ input.list }}\", retry: {max_attempts: 1}}\n")
		ids := w.submitMany(3, drover.NewJob{Kind: "a", Retry: &drover.Retry{MaxAttempts: 1}})
		id := w.submit(drover.NewJob{Pipeline: "three", Input: json.RawMessage(`{"list":[1,2,3]}`)})
		var out []drover.Outcome
		leases := w.all()
		for _, l := range leases {
			out = append(out, failed(l, drover.ClassRetryable, "message of "+l.TaskID.String()))
		}
		dup := out[1]
		dup.Error = &drover.Failure{Class: drover.ClassPermanent, Message: "a second report"}
		out = append(out, dup, out[2])
		slices.Reverse(leases)
		for k, s := range w.settle(out...) {
			if s.Err != nil || s.TaskID != out[k].TaskID || s.Status != drover.DeadLetter {
				t.Errorf("answer %d = %+v", k, s)
			}
		}
		for _, l := range leases {
			x, err := w.Task(t.Context(), w.c, l.TaskID)
			if err != nil || x.Error == nil || x.Error.Message != "message of "+l.TaskID.String() {
				t.Errorf("task %s: %+v, %v", l.TaskID, x.Error, err)
			}
			a, err := w.Attempts(t.Context(), w.c, l.TaskID)
			if err != nil || len(a) != 1 || a[0].Error.Message != x.Error.Message {
				t.Errorf("attempts %+v, %v", a, err)
			}
		}
		for _, id := range append(ids, id) {
			w.want(id, drover.Failed)
		}
		checkInvariants(t, w)
	})
}

func TestACancelNeedsNoWorker(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: line\ntasks:\n  a: {run: k}\n  b: {run: k, needs: [a]}\n")
		if err := w.CloseSession(t.Context(), w.c, w.session); err != nil {
			t.Fatal(err)
		}
		ids := []drover.JobID{w.submit(drover.NewJob{Kind: "a"}), w.submit(drover.NewJob{Kind: "a", DueAt: w.Now().Add(time.Hour)}), w.submit(drover.NewJob{Pipeline: "line"}),
			w.submit(drover.NewJob{Pipeline: "line", DueAt: w.Now().Add(time.Hour)})}
		paused := w.submit(drover.NewJob{Kind: "a"})
		if _, err := w.Pause(t.Context(), w.c, paused, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		for _, id := range append(ids, paused) {
			if j, err := w.Cancel(t.Context(), w.c, id, engine.Request{}); err != nil || j.Status != drover.Cancelled {
				t.Errorf("cancel: %+v, %v", j, err)
			}
			w.want(id, drover.Cancelled)
		}
		w.pass(2 * time.Hour)
		if ran := w.finish(succeed); len(ran) > 0 {
			t.Errorf("ran %v", ran)
		}
		checkInvariants(t, w)
	})
}

func TestACancelBetweenAttemptsEndsTheTask(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: line\ntasks:\n  a: {run: k}\n  b: {run: k, needs: [a]}\n")
		ids := []drover.JobID{w.submit(drover.NewJob{Kind: "a"}), w.submit(drover.NewJob{Kind: "a"}), w.submit(drover.NewJob{Pipeline: "line"})}
		for i, l := range w.all() {
			if i == 1 {
				w.settle(drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeSnoozed, RetryAfter: drover.Duration(time.Minute)})
			} else {
				w.settle(failed(l, drover.ClassRetryable, "x"))
			}
		}
		for _, id := range ids {
			if j, err := w.Cancel(t.Context(), w.c, id, engine.Request{}); err != nil || j.Status != drover.Cancelled {
				t.Errorf("cancel: %+v, %v", j, err)
			}
		}
		w.pass(time.Hour)
		if ran := w.finish(succeed); len(ran) > 0 {
			t.Errorf("ran %v", ran)
		}
		for _, id := range ids {
			w.want(id, drover.Cancelled)
		}
		checkInvariants(t, w)
	})
}

func TestTheSameCancelRequestAgainIsAnsweredAndDoesNothing(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		id := w.submit(drover.NewJob{Kind: "a"})
		r := engine.Request{ID: "c1", Reason: "stop"}
		if _, err := w.Cancel(ctx, w.c, id, r); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Cancel(ctx, w.c, id, r); err != nil {
			t.Fatalf("again, after it closed: %v", err)
		}
		task := w.taskOf(id, "a")
		if _, err := w.Replay(ctx, w.c, task.ID, engine.ReplayRequest{Request: engine.Request{ID: "r1"}}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Cancel(ctx, w.c, id, r); err != nil { // of the first run
			t.Fatalf("again, after it was opened: %v", err)
		}
		other := w.submit(drover.NewJob{Kind: "a"})
		if _, err := w.Cancel(ctx, w.c, other, r); drover.CodeOf(err) != drover.CodeIdempotencyReused {
			t.Fatalf("the request of another job: %v", err)
		}
		if _, err := w.Pause(ctx, w.c, id, r); drover.CodeOf(err) != drover.CodeIdempotencyReused {
			t.Fatalf("the request of another action: %v", err)
		}
		if ran := w.finish(succeed); len(ran) != 2 {
			t.Fatalf("ran %v", ran)
		}
		if _, err := w.Cancel(ctx, w.c, id, r); err != nil {
			t.Fatalf("again, after the second run: %v", err)
		}
		if j := w.want(id, drover.Succeeded); j.Run != 2 {
			t.Errorf("run %d", j.Run)
		}
		n := 0
		for _, e := range w.gapless(id) {
			if e.Type == drover.JobCancelRequested {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d cancel requests are on record", n)
		}
		checkInvariants(t, w)
	})
}

func TestAKeyedJobIsNoDuplicateOfItself(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		delayed := drover.NewJob{Kind: "a", IdempotencyKey: "delayed", DueAt: w.Now().Add(time.Minute).Truncate(time.Second)}
		failing := drover.NewJob{Kind: "a", IdempotencyKey: "failing"}
		one, two := w.submit(delayed), w.submit(failing)
		w.settle(failed(w.one(), drover.ClassRetryable, "x"))
		if a, b := w.submit(delayed), w.submit(failing); a != one || b != two {
			t.Fatalf("while they wait: %s %s, want %s %s", a, b, one, two)
		}
		w.pass(time.Hour)
		if ran := w.finish(succeed); len(ran) != 2 {
			t.Errorf("ran %v", ran)
		}
		for _, id := range []drover.JobID{one, two} {
			w.want(id, drover.Succeeded)
		}
		if a, b := w.submit(delayed), w.submit(failing); a != one || b != two {
			t.Fatalf("when they have ended: %s %s, want %s %s", a, b, one, two)
		}
		if ran := w.finish(succeed); len(ran) != 0 {
			t.Errorf("ran %v", ran)
		}
		checkInvariants(t, w)
	})
}

func TestEmptyBlankAndLongNamesAreRefused(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		long := strings.Repeat("é", 300)
		id := w.submit(drover.NewJob{Kind: "a"})
		for _, s := range []string{" ", "\t\n", "  ", "a\x00b", "\xff", long} {
			for field, n := range map[string]drover.NewJob{"kind": {Kind: s}, "queue": {Kind: "a", Queue: s}, "idempotency_key": {Kind: "a", IdempotencyKey: s}} {
				out, err := w.Submit(ctx, w.c, []drover.NewJob{n})
				if err != nil || out[0].Err == nil || out[0].Err.Code != drover.CodeValidation || len(out[0].Err.Fields) != 1 || out[0].Err.Fields[0].Field != field || !utf8.ValidString(out[0].Err.Error()) {
					t.Errorf("%s %.10q: %+v, %v", field, s, out, err)
				}
			}
			if _, err := w.Pause(ctx, w.c, id, engine.Request{ID: s}); drover.CodeOf(err) != drover.CodeValidation {
				t.Errorf("request_id %.10q: %v", s, err)
			}
			if _, err := w.OpenSession(ctx, w.c, drover.NewSession{Worker: s, Queues: []string{"default"}, Slots: 1}); drover.CodeOf(err) != drover.CodeValidation {
				t.Errorf("worker %.10q: %v", s, err)
			}
		}
		if out, err := w.Submit(ctx, w.c, []drover.NewJob{{}}); err != nil || drover.CodeOf(out[0].Err) != drover.CodeValidation {
			t.Errorf("no kind: %+v, %v", out, err)
		}
		if _, err := w.Job(ctx, w.c, drover.JobID{}); drover.CodeOf(err) != drover.CodeNotFound {
			t.Errorf("the empty job id: %v", err)
		}
		if s, err := w.settleBy(w.session, drover.Outcome{Status: drover.OutcomeSucceeded}); err != nil || drover.CodeOf(s[0].Err) != drover.CodeLeaseLost {
			t.Errorf("the empty task id: %+v, %v", s, err)
		}
		if ran := w.finish(succeed); len(ran) != 1 {
			t.Errorf("ran %v", ran)
		}
		checkInvariants(t, w)
	})
}

func TestOddErrorsAreStoredAsText(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		huge := strings.Repeat("€", 10<<20/3)
		for name, f := range map[string]*drover.Failure{
			"no error":   nil,
			"no message": {Class: drover.ClassPermanent},
			"10 MB":      {Class: drover.ClassPermanent, Message: huge, Stack: huge, Type: huge},
			"NUL":        {Class: drover.ClassPermanent, Message: "a\x00b", Stack: "\x00", Type: "t\x00"},
			"not UTF-8":  {Class: drover.ClassPermanent, Message: "a\xff\xfe", Stack: "\xc3\x28", Type: "\xff"},
			"script":     {Class: drover.ClassPermanent, Message: "<script>alert(1)</script> \u2028 \U0001F600"},
		} {
			id := w.submit(drover.NewJob{Kind: "a", Retry: &drover.Retry{MaxAttempts: 1}})
			l := w.one()
			if s := w.settle(drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeFailed, Error: f}); s[0].Err != nil || !s[0].Status.Final() {
				t.Fatalf("%s: %+v", name, s[0])
			}
			w.want(id, drover.Failed)
			x := w.taskOf(id, "a")
			if x.Error == nil || x.Error.Message == "" || len(x.Error.Message) > 8<<10 || len(x.Error.Stack) > 16<<10 || len(x.Error.Type) > 128 {
				t.Fatalf("%s: %.200v", name, x.Error)
			}
			for _, s := range []string{x.Error.Message, x.Error.Stack, x.Error.Type} {
				if !utf8.ValidString(s) || strings.ContainsRune(s, 0) || name == "10 MB" && !strings.HasSuffix(s, "[cut]") {
					t.Errorf("%s: %.100q … is stored", name, s)
				}
			}
			if name == "script" && x.Error.Message != f.Message {
				t.Errorf("%s: %q", name, x.Error.Message)
			}
			for _, e := range w.gapless(id) {
				if len(e.Data) > 4<<10 || len(e.Data) > 0 && !json.Valid(e.Data) {
					t.Errorf("%s: the event has %d bytes: %.200s", name, len(e.Data), e.Data)
				}
			}
		}
		checkInvariants(t, w)
	})
}

func TestNumbersAreKeptAsWritten(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: numbers\ntasks:\n  a: {run: k}\n  b: {needs: [a], run: k, with: {all: \"${{ tasks.a.output }}\", n: \"${{ tasks.a.output.big }}\", s: \"n=${{ tasks.a.output.neg }}\", in: \"${{ input.x }}\"}}\n" +
			"  m: {for_each: \"${{ tasks.a.output.list }}\", run: k}\n")
		id := w.submit(drover.NewJob{Pipeline: "numbers", Input: json.RawMessage(`{"x":12345678901234567890.10}`)})
		out := `{"big":9223372036854775808,"neg":-0,"list":[1e400,9007199254740993,0.1000000000000000055511151231257827]}`
		w.settle(ok(w.one(), out))
		got := map[string]string{}
		w.finish(func(l drover.Lease) drover.Outcome {
			got[fmt.Sprintf("%s[%d]", l.Name, l.Index)] = string(l.Input)
			return ok(l, string(l.Input))
		})
		want := map[string]string{"b[0]": `{"all":` + out + `,"n":9223372036854775808,"s":"n=-0","in":12345678901234567890.10}`,
			"m[0]": "1e400", "m[1]": "9007199254740993", "m[2]": "0.1000000000000000055511151231257827"}
		for k, v := range want {
			if got[k] != v && !sameFields(got[k], v) {
				t.Errorf("%s = %s, want %s", k, got[k], v)
			}
		}
		if j := w.want(id, drover.Succeeded); string(j.Input) != `{"x":12345678901234567890.10}` {
			t.Errorf("input %s", j.Input)
		}
		for _, bad := range []string{"NaN", "Infinity", "-Infinity", "+1", "01", "1.", "0x1", "{", `"\ud800`, "nul"} {
			id := w.submit(drover.NewJob{Kind: "a"})
			if s := w.settle(ok(w.one(), bad)); s[0].Err != nil || s[0].Status != drover.Failed {
				t.Errorf("output %s: %+v", bad, s[0])
			}
			if j := w.want(id, drover.Failed); !strings.Contains(j.Error.Message, "not valid JSON") {
				t.Errorf("output %s: %+v", bad, j.Error)
			}
			if out, err := w.Submit(t.Context(), w.c, []drover.NewJob{{Kind: "a", Input: json.RawMessage(bad)}}); err != nil || drover.CodeOf(out[0].Err) != drover.CodeValidation {
				t.Errorf("input %s: %+v, %v", bad, out, err)
			}
		}
		checkInvariants(t, w)
	})
}

// sameFields compares two objects field by field, each as written.
func sameFields(a, b string) bool {
	var x, y map[string]json.RawMessage
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil || len(x) != len(y) {
		return false
	}
	for k := range x {
		if string(x[k]) != string(y[k]) {
			return false
		}
	}
	return true
}

func TestChainsOfMapsOverNothingEndWell(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: chain\ntasks:\n  a: {run: k}\n  one: {run: k, for_each: \"${{ tasks.a.output }}\"}\n  two: {run: k, for_each: one}\n  three: {run: k, for_each: two}\n" +
			"  fan: {run: k, needs: [three], for_each: \"${{ tasks.three.output }}\"}\n  join: {run: k, with: {all: \"${{ tasks.fan.output }}\"}}\n")
		w.apply("pipeline: bare\ntasks:\n  one: {run: k, for_each: \"${{ input.list }}\"}\n  two: {run: k, for_each: one}\n  three: {run: k, for_each: \"${{ tasks.two.output }}\"}\n")
		id := w.submit(drover.NewJob{Pipeline: "chain"})
		l := w.one()
		if j := w.job(id); j.Tasks.Succeeded+j.Tasks.Skipped != 0 || j.Tasks.Total != 6 {
			t.Errorf("before the list is known: %+v", j.Tasks)
		}
		w.settle(ok(l, "[]"))
		l = w.one()
		if l.Name != "join" || string(l.Input) != `{"all":[]}` {
			t.Errorf("then %+v", l)
		}
		w.settle(ok(l, "1"))
		if j := w.want(id, drover.Succeeded); j.Tasks.Total != 2 || j.Tasks.Succeeded != 2 {
			t.Errorf("tasks = %+v", j.Tasks)
		}
		id = w.submit(drover.NewJob{Pipeline: "bare", Input: json.RawMessage(`{"list":[]}`)})
		if j := w.want(id, drover.Succeeded); j.Tasks.Total != 0 {
			t.Errorf("a job of nothing: %+v", j.Tasks)
		}
		id = w.submit(drover.NewJob{Pipeline: "bare", Input: json.RawMessage(`{"list":[1,2]}`)})
		w.finish(succeed)
		if j := w.want(id, drover.Succeeded); j.Tasks.Total != 6 {
			t.Errorf("tasks = %+v", j.Tasks)
		}
		checkInvariants(t, w)
	})
}

func TestATaskTwoOthersNeedRunsOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: fork\ntasks:\n  x: {run: k, needs: [a]}\n  a: {run: k}\n  y: {run: k, needs: [a]}\n  z: {run: k, needs: [x, y, a]}\n")
		id := w.submit(drover.NewJob{Pipeline: "fork"})
		ran := w.finish(succeed)
		if len(ran) != 4 || ran[0] != "a[0]" || ran[3] != "z[0]" {
			t.Errorf("ran %v", ran)
		}
		w.want(id, drover.Succeeded)
		checkInvariants(t, w)
	})
}

func TestResultsAreInDeclarationOrder(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: order\ntasks:\n  a: {run: k}\n  m: {run: k, for_each: \"${{ tasks.a.output }}\"}\n  n: {run: k, for_each: m}\n  join: {run: k, with: {m: \"${{ tasks.m.output }}\", n: \"${{ tasks.n.output }}\"}}\n")
		const n = 23
		list := make([]int, n)
		for i := range list {
			list[i] = i * i
		}
		b, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		id := w.submit(drover.NewJob{Pipeline: "order"})
		w.settle(ok(w.one(), string(b)))
		out := func(l drover.Lease) drover.Outcome { return ok(l, fmt.Sprintf(`"%s%d"`, l.Name, l.Index)) }
		for range 2 {
			l := w.acquire(1000)
			if len(l) != n {
				t.Fatalf("%d leases", len(l))
			}
			for i := range l { // 7 is prime to 23: every one, in an odd order
				if x := l[i*7%n]; x.Index == 11 && x.Name == "m" { // one runs twice
					w.settle(drover.Outcome{TaskID: x.TaskID, LeaseVersion: x.LeaseVersion, Status: drover.OutcomeSnoozed})
					w.step("timers", w.TimersOnce)
					again := w.acquire(1000)
					j := slices.IndexFunc(again, func(y drover.Lease) bool { return y.TaskID == x.TaskID })
					if j < 0 {
						t.Fatalf("leases %+v", again)
					}
					w.settle(out(again[j]))
					again = slices.Delete(again, j, j+1)
					for _, y := range again {
						w.settle(drover.Outcome{TaskID: y.TaskID, LeaseVersion: y.LeaseVersion, Status: drover.OutcomeReleased})
					}
					continue
				} else {
					w.settle(out(x))
				}
			}
			w.step("admit", w.AdmitOnce)
		}
		join := w.one()
		var in map[string][]string
		if err := json.Unmarshal(join.Input, &in); err != nil {
			t.Fatal(err)
		}
		for name, got := range in {
			for i, s := range got {
				if s != fmt.Sprintf("%s%d", name, i) {
					t.Fatalf("%s = %v", name, got)
				}
			}
			if len(got) != n {
				t.Fatalf("%s = %v", name, got)
			}
		}
		w.settle(ok(join, "1"))
		w.want(id, drover.Succeeded)
		checkInvariants(t, w)
	})
}

func TestAMapOverNoListFailsItsJob(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: late\ntasks:\n  a: {run: k}\n  m: {run: k, for_each: \"${{ tasks.a.output.list }}\"}\n  n: {run: k, for_each: m}\n  join: {run: k, needs: [n]}\n")
		w.apply("pipeline: early\ntasks:\n  m: {run: k, for_each: \"${{ input.list }}\"}\n  b: {run: k}\n  join: {run: k, needs: [m, b]}\n")
		for _, list := range []string{"{}", `"abc"`, "3", "null", "true", `{"0":1,"length":1}`} {
			id := w.submit(drover.NewJob{Pipeline: "late"})
			w.settle(ok(w.one(), `{"list":`+list+`}`))
			w.finish(succeed)
			j := w.want(id, drover.Failed)
			if j.Error == nil || j.Error.Class != drover.ClassExpand || j.Error.Task != "m" || j.Tasks.Failed != 1 || j.Tasks.Skipped != 2 || j.Tasks.Succeeded != 1 {
				t.Errorf("late, %s: %+v, %+v", list, j.Tasks, j.Error)
			}
			id = w.submit(drover.NewJob{Pipeline: "early", Input: json.RawMessage(`{"list":` + list + `}`)})
			w.finish(succeed)
			if j := w.want(id, drover.Failed); j.Error == nil || j.Error.Class != drover.ClassExpand || j.Tasks.Failed != 1 || j.Tasks.Skipped != 2 {
				t.Errorf("early, %s: %+v, %+v", list, j.Tasks, j.Error)
			}
		}
		checkInvariants(t, w)
	})
}

func TestATaskThatKillsItsWorkersIsADeadLetter(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: poison\ntasks:\n  a: {run: k}\n  b: {run: k, needs: [a]}\n")
		ids := []drover.JobID{w.submit(drover.NewJob{Kind: "k"}), w.submit(drover.NewJob{Pipeline: "poison"})}
		entered := map[drover.TaskID]int{}
		for range 3 * lifecycle.MaxLeaseLosses { // a loss and its backoff each take a turn
			w.step("timers", w.TimersOnce)
			w.step("admit", w.AdmitOnce)
			for _, l := range w.acquire(10) {
				if entered[l.TaskID]++; l.Attempt != 1 {
					t.Errorf("a lost lease used up an attempt: %+v", l)
				}
			}
			w.pass(5 * time.Minute) // without a word
			w.step("reap", w.ReapOnce)
		}
		checkInvariants(t, w)
		for id, n := range entered {
			if n != lifecycle.MaxLeaseLosses+1 {
				t.Errorf("task %s killed %d workers", id, n)
			}
			a, err := w.Attempts(t.Context(), w.c, id)
			if err != nil || len(a) != n || a[n-1].Outcome != "lease_lost" {
				t.Errorf("attempts %+v, %v", a, err)
			}
		}
		dead, err := w.Letters(t.Context(), w.c, engine.LetterQuery{Limit: 10})
		if err != nil || len(dead) != 2 || len(entered) != 2 {
			t.Errorf("dead letters %+v, %v", dead, err)
		}
		for _, id := range ids {
			if j := w.want(id, drover.Failed); j.Error == nil || j.Error.Class != drover.ClassLeaseLost {
				t.Errorf("job %+v", j)
			}
		}
	})
}

func TestAJobThatExpiresEnds(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: line\ntasks:\n  a: {run: k}\n  b: {run: k, needs: [a]}\n")
		expired := func(what string, id drover.JobID) {
			t.Helper()
			if j := w.want(id, drover.Failed); j.Error == nil || j.Error.Class != drover.ClassExpired {
				t.Errorf("%s: %+v, error %+v", what, j, j.Error)
			}
		}
		soon := func() time.Time { return w.Now().Add(20 * time.Second) }
		// queued, delayed, between attempts: at once, whatever workers there are
		queued, line := w.submit(drover.NewJob{Kind: "a", ExpiresAt: soon()}), w.submit(drover.NewJob{Pipeline: "line", ExpiresAt: soon()})
		delayed := w.submit(drover.NewJob{Kind: "a", ExpiresAt: soon(), DueAt: w.Now().Add(10 * time.Second)})
		if n := w.step("expire", w.ExpireOnce); n != 0 {
			t.Errorf("%d expired early", n)
		}
		w.clock.add += 21 * time.Second
		if n := w.step("expire", w.ExpireOnce); n != 3 {
			t.Errorf("%d expired, want 3", n)
		}
		for what, id := range map[string]drover.JobID{"queued": queued, "pipeline": line, "delayed": delayed} {
			expired(what, id)
		}
		checkInvariants(t, w)
		w.open()
		waiting := w.submit(drover.NewJob{Kind: "a", ExpiresAt: soon()})
		w.settle(drover.Outcome{TaskID: w.one().TaskID, LeaseVersion: 1, Status: drover.OutcomeSnoozed, RetryAfter: drover.Duration(time.Hour)})
		w.clock.add += 21 * time.Second
		w.step("expire", w.ExpireOnce)
		expired("between attempts", waiting)
		// running: its worker is told, and may still succeed; else by force after the grace
		w.open()
		told, forced, quick := w.submit(drover.NewJob{Kind: "a", ExpiresAt: soon()}), w.submit(drover.NewJob{Pipeline: "line", ExpiresAt: soon()}), w.submit(drover.NewJob{Kind: "a", ExpiresAt: soon()})
		of := byJob(w.all())
		var held []drover.Held
		for _, l := range of {
			held = append(held, drover.Held{TaskID: l[0].TaskID, LeaseVersion: l[0].LeaseVersion})
		}
		w.clock.add += 21 * time.Second
		w.step("expire", w.ExpireOnce)
		r, err := w.Renew(t.Context(), w.c, w.session, drover.Renewal{Held: held, Acquired: w.number})
		if err != nil || len(r.Cancelled) != 3 {
			t.Fatalf("renewed %+v, %v", r, err)
		}
		w.settle(ok(of[quick][0], "1"))
		w.want(quick, drover.Succeeded)
		ack := drover.Outcome{TaskID: of[told][0].TaskID, LeaseVersion: of[told][0].LeaseVersion, Status: drover.OutcomeCancelled}
		for range 2 { // again: the same answer
			if s := w.settle(ack); s[0].Err != nil || s[0].Status != drover.Failed {
				t.Errorf("acknowledged: %+v", s[0])
			}
		}
		expired("acknowledged", told)
		w.step("sweep", w.SweepOnce)
		w.want(forced, drover.Running)
		w.clock.add += 31 * time.Second
		w.step("sweep", w.SweepOnce)
		expired("forced", forced)
		s, err := w.settleBy(w.session, ok(of[forced][0], "1"))
		if err != nil || drover.CodeOf(s[0].Err) != drover.CodeLeaseLost {
			t.Errorf("after the forced end: %+v, %v", s, err)
		}
		// paused: it expires all the same
		w.open()
		paused := w.submit(drover.NewJob{Kind: "a", ExpiresAt: soon()})
		if _, err := w.Pause(t.Context(), w.c, paused, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		w.clock.add += 21 * time.Second
		w.step("expire", w.ExpireOnce)
		expired("paused", paused)
		if _, err := w.Resume(t.Context(), w.c, paused, engine.Request{}); !errors.Is(err, drover.ErrNotAllowed) {
			t.Errorf("resume of an ended job: %v", err)
		}
		w.open()
		if ran := w.finish(succeed); len(ran) != 0 {
			t.Errorf("ran %v", ran)
		}
		checkInvariants(t, w)
	})
}

// bad-retry-delay: a delay that makes no sense is refused by name, one that is too
// long is cut, and the task can go on.
func TestAnOddRetryDelayLeavesTheTaskUsable(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		const month = 30 * 24 * time.Hour
		for _, status := range []string{drover.OutcomeSnoozed, drover.OutcomeFailed} {
			id := w.submit(drover.NewJob{Kind: "a", Retry: &drover.Retry{MaxAttempts: 3}})
			l := w.acquire(1)[0]
			o := drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: status}
			if status == drover.OutcomeFailed {
				o.Error = &drover.Failure{Class: drover.ClassThrottled, Message: "slow down"}
			}
			for _, d := range []time.Duration{-1, math.MinInt64, 11 * 365 * 24 * time.Hour, math.MaxInt64} {
				o.RetryAfter = drover.Duration(d)
				s := w.settle(o)[0]
				if drover.CodeOf(s.Err) != drover.CodeValidation || s.Err.Fields[0].Field != "retry_after" {
					t.Errorf("%s for %v: %+v", status, d, s)
				}
				if x := w.taskOf(id, "a"); x.Status != drover.Running {
					t.Fatalf("after a delay that was refused the task is %s", x.Status)
				}
			}
			o.RetryAfter = drover.Duration(5 * 365 * 24 * time.Hour)
			if s := w.settle(o)[0]; s.Err != nil || s.Status != drover.RetryWait {
				t.Fatalf("%s for five years: %+v", status, s)
			}
			if x := w.taskOf(id, "a"); x.DueAt.After(w.Now().Add(month)) || x.DueAt.Before(w.Now().Add(month-time.Hour)) {
				t.Errorf("%s for five years: due at %v, now is %v", status, x.DueAt, w.Now())
			}
			if list, err := w.Attempts(t.Context(), w.c, l.TaskID); err != nil || !strings.Contains(list[0].Error.Message, "asked to wait 157680000s; the longest wait is 2592000s") {
				t.Errorf("%s for five years: attempts %+v, %v", status, list, err)
			}
			w.pass(month + time.Minute)
			w.step("timers", w.TimersOnce)
			w.settle(ok(w.acquire(1)[0], "1"))
			w.want(id, drover.Succeeded)
		}
		checkInvariants(t, w)
	})
}
