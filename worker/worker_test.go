package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, f)
}

func TestWorkerRunsTasksAndReportsResults(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(lease(1, "add", `{"a":1,"b":2}`), lease(2, "add", `{"a":9007199254740992,"b":1}`))
		w := New(p, Config{Queues: []string{"cpu"}, Slots: 2, Labels: map[string]string{"zone": "a"}, Resources: map[string]int64{"gpu": 2}, Name: "w1", Version: "7"})
		type in struct{ A, B int64 }
		Handle(w, "add", func(_ context.Context, task *Task, in in) (map[string]int64, error) {
			if task.Key("") != task.IdempotencyKey || task.Key("mail") != task.IdempotencyKey+"/mail" {
				t.Errorf("keys are %q and %q", task.Key(""), task.Key("mail"))
			}
			return map[string]int64{"sum": in.A + in.B}, nil
		})
		r := run1(t, w)
		synctest.Wait()
		if o := p.outcome(t, 1); o.Status != drover.OutcomeSucceeded || string(o.Output) != `{"sum":3}` || o.LeaseVersion != 1 {
			t.Errorf("got %+v", o)
		}
		if o := p.outcome(t, 2); string(o.Output) != `{"sum":9007199254740993}` {
			t.Errorf("got %s", o.Output)
		}
		r.wait(t)
		o := p.opened[0]
		if o.Worker != "w1" || !slices.Equal(o.Queues, []string{"cpu"}) || !slices.Equal(o.Kinds, []string{"add"}) || o.Slots != 2 || o.Labels["zone"] != "a" || o.Resources["gpu"] != 2 || o.Version != "7" {
			t.Errorf("session was opened as %+v", o)
		}
		if !slices.Equal(p.closed, []drover.SessionID{1}) {
			t.Errorf("sessions closed: %v", p.closed)
		}
	})
}

func TestBusyWorkerAcquiresInItsReports(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const n = 60
		p := newPeer()
		for i := range n {
			p.add(lease(i, "work", ""))
		}
		w := New(p, Config{Slots: 4})
		w.HandleFunc("work", func(context.Context, *Task) (any, error) { time.Sleep(time.Second); return nil, nil })
		r := run1(t, w)
		rest(n*time.Second/4 + 500*time.Millisecond)
		synctest.Wait()
		if len(p.outcomes) != n {
			t.Fatalf("%d of %d tasks have ended", len(p.outcomes), n)
		}
		if len(p.acquires) > 4 {
			t.Errorf("%d acquires were sent beside the reports", len(p.acquires))
		}
		r.wait(t)
		last := int64(0)
		for _, b := range p.batches {
			if b.Acquire != nil {
				if b.Acquire.Number <= last {
					t.Errorf("acquire %d follows %d", b.Acquire.Number, last)
				}
				last = b.Acquire.Number
			}
		}
	})
}

func TestOutcomesGatherWhileAReportIsUnderWay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer()
		for i := range 50 {
			p.add(lease(i, "work", ""))
		}
		p.onSettle = func(int, protocol.SettleRequest) error { time.Sleep(time.Second); return nil }
		w := New(p, Config{Slots: 50})
		w.HandleFunc("work", func(context.Context, *Task) (any, error) { return nil, nil })
		r := run1(t, w)
		rest(5 * time.Second)
		r.wait(t)
		if len(p.outcomes) != 50 || len(p.batches) > 3 {
			t.Errorf("%d outcomes went in %d batches", len(p.outcomes), len(p.batches))
		}
	})
}

func TestErrorsSayTheirClass(t *testing.T) {
	plain := errors.New("boom")
	for _, c := range []struct {
		name   string
		err    error
		status string
		class  drover.ErrorClass
		after  time.Duration
		kind   string
	}{
		{"plain", plain, "failed", drover.ClassRetryable, 0, ""},
		{"permanent", Permanent(plain), "failed", drover.ClassPermanent, 0, ""},
		{"permanent inside", fmt.Errorf("read: %w", fmt.Errorf("parse: %w", Permanent(plain))), "failed", drover.ClassPermanent, 0, ""},
		{"permanent joined", errors.Join(plain, Permanent(plain)), "failed", drover.ClassPermanent, 0, ""},
		{"throttled", fmt.Errorf("label: %w", Throttled(plain, time.Minute)), "failed", drover.ClassThrottled, time.Minute, ""},
		{"throttled to the past", Throttled(plain, -time.Minute), "failed", drover.ClassThrottled, 0, ""},
		{"snooze", fmt.Errorf("not yet: %w", Snooze(time.Hour)), "snoozed", "", time.Hour, ""},
		{"typed", Permanent(TypedError("exit_65", plain)), "failed", drover.ClassPermanent, 0, "exit_65"},
		{"typed outside", TypedError("exit_65", Permanent(plain)), "failed", drover.ClassPermanent, 0, "exit_65"},
		{"refusal", fmt.Errorf("submit: %w", drover.ErrNotFound), "failed", drover.ClassRetryable, 0, "not-found"},
		{"own deadline", context.DeadlineExceeded, "failed", drover.ClassRetryable, 0, ""},
		{"outermost wins", Permanent(fmt.Errorf("x: %w", Throttled(plain, 1))), "failed", drover.ClassPermanent, 0, ""},
	} {
		o := outcomeOf(c.err, nil, 0)
		if o.Status != c.status || o.RetryAfter.Std() != c.after {
			t.Errorf("%s: got %+v", c.name, o)
		}
		if c.status == "failed" && (o.Error.Class != c.class || o.Error.Type != c.kind || !strings.Contains(o.Error.Message+"boom", "boom")) {
			t.Errorf("%s: got %+v", c.name, o.Error)
		}
	}
	if Permanent(nil) != nil || Throttled(nil, 1) != nil || TypedError("x", nil) != nil {
		t.Error("no error became one")
	}
}

func TestFailuresOfHandlersAreToldAndBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		handlers := map[string]Handler{
			"panic":     func(context.Context, *Task) (any, error) { panic("no such frame") },
			"nil":       func(context.Context, *Task) (any, error) { return len(*nothing()), nil },
			"goexit":    func(context.Context, *Task) (any, error) { runtime.Goexit(); return nil, nil },
			"long":      func(context.Context, *Task) (any, error) { return nil, errors.New(strings.Repeat("é", 5<<20)) },
			"binary":    func(context.Context, *Task) (any, error) { return nil, errors.New("a\x00b\xffc") },
			"rude":      func(context.Context, *Task) (any, error) { return nil, rude{} },
			"nan":       func(context.Context, *Task) (any, error) { return math.NaN(), nil },
			"cycle":     func(context.Context, *Task) (any, error) { type c struct{ C any }; v := &c{}; v.C = v; return v, nil },
			"channel":   func(context.Context, *Task) (any, error) { return make(chan int), nil },
			"not utf-8": func(context.Context, *Task) (any, error) { return map[string]any{"a": []string{"\xff"}}, nil },
			"bad json":  func(context.Context, *Task) (any, error) { return json.RawMessage(`{"a":`), nil },
			"deep":      func(context.Context, *Task) (any, error) { return nil, recurse(errors.New("bottom"), 20_000) },
		}
		p := newPeer()
		w := New(p, Config{Slots: 4})
		var names []string
		for name, h := range handlers {
			w.HandleFunc(name, h)
			names = append(names, name)
			p.add(lease(len(names), name, ""))
		}
		Handle(w, "typed", func(context.Context, *Task, struct{ N int }) (int, error) { return 1, nil })
		p.add(lease(100, "typed", `{"N":"three"}`), lease(101, "typed", ""), lease(102, "nobody", ""))
		r := run1(t, w)
		synctest.Wait()
		r.wait(t)
		for i, name := range names {
			o := p.outcome(t, i+1)
			f := o.Error
			if o.Status != drover.OutcomeFailed || f == nil || f.Message == "" {
				t.Errorf("%s: got %+v", name, o)
				continue
			}
			if len(f.Message) > maxMessage+100 || len(f.Stack) > maxStack+100 {
				t.Errorf("%s: the message has %d bytes, the stack %d", name, len(f.Message), len(f.Stack))
			}
			if b, err := json.Marshal(o); err != nil || bytes.Contains(b, []byte(`\u0000`)) {
				t.Errorf("%s: the outcome reads %.200s, %v", name, b, err)
			}
			want := map[string]drover.ErrorClass{
				"panic": drover.ClassPanic, "nil": drover.ClassPanic, "goexit": drover.ClassPanic,
				"nan": drover.ClassPermanent, "cycle": drover.ClassPermanent, "channel": drover.ClassPermanent, "not utf-8": drover.ClassPermanent, "bad json": drover.ClassPermanent,
			}[name]
			if want == "" {
				want = drover.ClassRetryable
			}
			if f.Class != want {
				t.Errorf("%s: class is %s, want %s (%s)", name, f.Class, want, f.Message)
			}
			switch name {
			case "panic":
				if f.Message != "panic: no such frame" || !strings.Contains(f.Stack, "worker_test.go") {
					t.Errorf("panic is told as %q with the stack\n%s", f.Message, f.Stack)
				}
			case "long":
				if !strings.HasSuffix(f.Message, "é… (cut; 10485760 bytes in all)") {
					t.Errorf("a long message ends with %q", f.Message[len(f.Message)-60:])
				}
			}
		}
		if f := p.outcome(t, 100).Error; f.Class != drover.ClassPermanent || f.Type != "bad_input" {
			t.Errorf("an input that does not fit: %+v", f)
		}
		if o := p.outcome(t, 101); o.Status != drover.OutcomeSucceeded || string(o.Output) != "1" {
			t.Errorf("no input: %+v", o)
		}
		if f := p.outcome(t, 102).Error; f.Class != drover.ClassRetryable || f.Type != "no_handler" || !strings.Contains(f.Message, `no handler for kind "nobody"`) || !strings.Contains(f.Message, "typed") {
			t.Errorf("an unknown kind: %+v", f)
		}
	})
}

func nothing() *string { return nil }

type rude struct{}

func (rude) Error() string { panic("not today") }

func recurse(err error, n int) error {
	for range n {
		err = fmt.Errorf("%w", err)
	}
	return err
}

func TestResultsKeepTheirBytes(t *testing.T) {
	for _, c := range []struct {
		in   any
		want string
	}{
		{nil, ""}, {json.RawMessage(nil), ""}, {json.RawMessage(`{"n": 9007199254740993}`), `{"n": 9007199254740993}`},
		{map[string]string{"a": "<b>&\ufffd"}, `{"a":"<b>&` + "\ufffd" + `"}`},
		{map[string]any{"a": json.RawMessage(`"\ufffd"`)}, `{"a":"\ufffd"}`},
		{[]byte{0xff}, `"/w=="`}, {"", `""`},
	} {
		got, err := encode(c.in)
		if err != nil || string(got) != c.want {
			t.Errorf("%#v became %s, %v; want %s", c.in, got, err, c.want)
		}
	}
}

func TestCancellationReachesTheHandlerAndIsAcknowledged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(lease(1, "swallow", ""), lease(2, "obey", ""))
		w := New(p, Config{Slots: 2})
		var cleaned atomic.Bool
		w.HandleFunc("swallow", func(ctx context.Context, _ *Task) (any, error) {
			<-ctx.Done()
			if context.Cause(ctx) != ErrCancelled {
				t.Errorf("the cause is %v", context.Cause(ctx))
			}
			time.Sleep(3 * time.Second) // cleaning up
			cleaned.Store(true)
			return "done", nil
		})
		w.HandleFunc("obey", obey)
		r := run1(t, w)
		rest(time.Second)
		p.mu.Lock()
		p.cancel = []drover.Held{held(1), held(2)}
		p.mu.Unlock()
		rest(20 * time.Second)
		r.wait(t)
		for i := 1; i <= 2; i++ {
			if o := p.outcome(t, i); o.Status != drover.OutcomeCancelled || o.Output != nil {
				t.Errorf("task %d: got %+v", i, o)
			}
		}
		if !cleaned.Load() {
			t.Error("the handler had no time to clean up")
		}
		// The server hears of it at once, while the handler cleans up.
		p.mu.Lock()
		defer p.mu.Unlock()
		said := slices.IndexFunc(p.renewals, func(r drover.Renewal) bool { return slices.Contains(r.Stopping, held(1)) })
		if said < 1 || len(p.renewals[said-1].Stopping) > 0 {
			t.Errorf("the renewals say %+v", p.renewals)
		}
	})
}

func TestTimeoutEndsAnAttempt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b := lease(1, "obey", ""), lease(2, "late", "")
		a.Timeout, b.Timeout = drover.Duration(5*time.Second), drover.Duration(5*time.Second)
		p := newPeer(a, b)
		w := New(p, Config{Slots: 2})
		w.HandleFunc("obey", func(ctx context.Context, t *Task) (any, error) {
			if end, ok := ctx.Deadline(); !ok || time.Until(end) != 5*time.Second {
				return nil, Permanent(errors.New("the deadline is not visible"))
			}
			return obey(ctx, t)
		})
		w.HandleFunc("late", func(ctx context.Context, _ *Task) (any, error) { <-ctx.Done(); return "finished after all", nil })
		r := run1(t, w)
		rest(6 * time.Second)
		r.wait(t)
		o := p.outcome(t, 1)
		if o.Error == nil || o.Error.Class != drover.ClassTimeout || !strings.HasPrefix(o.Error.Message, "took longer than 5s: stopped") {
			t.Errorf("got %+v", o.Error)
		}
		if o := p.outcome(t, 2); o.Status != drover.OutcomeSucceeded {
			t.Errorf("a result in the grace was not taken: %+v", o.Error)
		}
	})
}

func TestHandlerThatIgnoresItsContextKeepsItsSlotOnly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := lease(1, "deaf", "")
		a.Timeout = drover.Duration(time.Second)
		p := newPeer(a, lease(2, "quick", ""), lease(3, "quick", ""))
		w := New(p, Config{Slots: 1, CancelGrace: 2 * time.Second})
		wakeUp := make(chan struct{})
		w.HandleFunc("deaf", func(context.Context, *Task) (any, error) { <-wakeUp; return "too late", nil })
		w.HandleFunc("quick", func(context.Context, *Task) (any, error) { return nil, nil })
		r := run1(t, w)
		rest(time.Minute)
		if o := p.outcome(t, 1); o.Error == nil || o.Error.Class != drover.ClassTimeout {
			t.Fatalf("got %+v", o)
		}
		if p.outcomesOf(2) != 0 {
			t.Error("a task ran in a slot that is taken")
		}
		for _, n := range p.renewals[len(p.renewals)-1].Held {
			t.Errorf("%v is renewed still", n)
		}
		close(wakeUp)
		rest(time.Second)
		if p.outcomesOf(1) != 1 || p.outcomesOf(2) != 1 || p.outcomesOf(3) != 1 {
			t.Errorf("outcomes: %+v", p.outcomes)
		}
		r.wait(t)
	})
}

func TestLeaseEndsBeforeTheServerTakesItBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(lease(1, "obey", ""))
		var stopped time.Time
		start := time.Now()
		w := New(p, Config{Slots: 1})
		w.HandleFunc("obey", func(ctx context.Context, t *Task) (any, error) {
			<-ctx.Done()
			stopped = time.Now()
			if cause := context.Cause(ctx); cause != ErrLeaseLost {
				return nil, Permanent(fmt.Errorf("the cause is %w", cause))
			}
			return "finished", nil
		})
		// Answers are late: the lease counts from when the request left.
		p.onRenew = func(ctx context.Context, n int) error {
			if n == 1 {
				time.Sleep(8 * time.Second)
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}
		r := run1(t, w)
		rest(2 * time.Minute)
		sent := start.Add(10 * time.Second) // at the latest, less some jitter
		if lasted := stopped.Sub(sent); lasted > 27*time.Second || lasted < 25*time.Second {
			t.Errorf("the handler was stopped %s after the last good renewal was sent", lasted)
		}
		if p.outcomesOf(1) != 0 {
			t.Error("the outcome of a lost lease was reported")
		}
		if p.sessions < 2 {
			t.Error("no new session was opened")
		}
		p.mu.Lock()
		p.onRenew = nil
		p.ready = append(p.ready, lease(2, "quick", ""))
		p.mu.Unlock()
		r.wait(t)
	})
}

func TestRenewalsThatFailAreRepeated(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(lease(1, "slow", ""))
		p.onRenew = func(_ context.Context, n int) error {
			if n%4 != 0 {
				return errGone
			}
			return nil
		}
		w := New(p, Config{Slots: 1})
		w.HandleFunc("slow", func(ctx context.Context, _ *Task) (any, error) {
			select {
			case <-time.After(5 * time.Minute):
				return nil, nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		})
		r := run1(t, w)
		rest(6 * time.Minute)
		if o := p.outcome(t, 1); o.Status != drover.OutcomeSucceeded {
			t.Errorf("got %+v", o)
		}
		if p.sessions != 1 {
			t.Errorf("%d sessions were opened", p.sessions)
		}
		r.wait(t)
	})
}

func TestLostSessionCancelsAndOpensAnother(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(lease(1, "obey", ""))
		p.onRenew = func(_ context.Context, n int) error {
			if n == 1 {
				return drover.Errorf(drover.CodeNotFound, "there is no worker wrk_1")
			}
			return nil
		}
		w := New(p, Config{Slots: 1})
		causes := make(chan error, 1)
		w.HandleFunc("obey", func(ctx context.Context, t *Task) (any, error) {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil, nil
		})
		w.HandleFunc("quick", func(context.Context, *Task) (any, error) { return nil, nil })
		r := run1(t, w)
		if cause := <-causes; cause != ErrLeaseLost {
			t.Errorf("the cause is %v", cause)
		}
		p.add(lease(2, "quick", ""))
		rest(time.Second)
		if p.outcomesOf(1) != 0 || p.outcomesOf(2) != 1 {
			t.Errorf("outcomes: %+v", p.outcomes)
		}
		if last := p.batches[len(p.batches)-1]; last.Session != 2 {
			t.Errorf("the outcome went under session %d", last.Session)
		}
		r.wait(t)
	})
}

func TestLostLeaseStopsOneTaskOnly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(lease(1, "obey", ""), lease(2, "slow", ""))
		p.lost = []drover.Held{held(1)}
		w := New(p, Config{Slots: 2})
		w.HandleFunc("obey", obey)
		w.HandleFunc("slow", func(ctx context.Context, _ *Task) (any, error) {
			time.Sleep(time.Minute)
			return nil, ctx.Err()
		})
		r := run1(t, w)
		rest(2 * time.Minute)
		if p.outcomesOf(1) != 0 || p.outcome(t, 2).Status != drover.OutcomeSucceeded {
			t.Errorf("outcomes: %+v", p.outcomes)
		}
		r.wait(t)
	})
}

func TestRenewalNamesWhatIsHeldUntilItIsReported(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(lease(1, "quick", ""), lease(2, "obey", ""))
		p.onSettle = func(n int, _ protocol.SettleRequest) error {
			if n < 5 {
				time.Sleep(5 * time.Second)
				return errGone
			}
			return nil
		}
		w := New(p, Config{Slots: 2})
		w.HandleFunc("quick", func(context.Context, *Task) (any, error) { return nil, nil })
		w.HandleFunc("obey", obey)
		r := run1(t, w)
		rest(15 * time.Second)
		p.mu.Lock()
		first := p.renewals[0]
		p.mu.Unlock()
		if len(first.Held) != 2 || first.Acquired < 1 {
			t.Errorf("the first renewal says %+v", first)
		}
		rest(45 * time.Second)
		if p.outcomesOf(1) != 1 {
			t.Errorf("outcomes: %+v", p.outcomes)
		}
		if last := p.renewals[len(p.renewals)-1]; len(last.Held) != 1 || last.Held[0] != held(2) {
			t.Errorf("the last renewal says %+v", last)
		}
		p.mu.Lock()
		p.cancel = []drover.Held{held(2)}
		p.mu.Unlock()
		r.wait(t)
	})
}

func TestRenewalDoesNotTakeBackLeasesOnTheirWay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer()
		p.onAcquire = func(ctx context.Context, n int) error {
			if n == 1 {
				time.Sleep(15 * time.Second) // the answer takes longer than a renewal
				p.mu.Lock()
				p.ready = append(p.ready, lease(1, "obey", ""))
				p.mu.Unlock()
			}
			if n == 2 {
				return errGone // its answer is lost
			}
			return nil
		}
		w := New(p, Config{Slots: 2})
		w.HandleFunc("obey", obey)
		r := run1(t, w)
		rest(12 * time.Second)
		p.mu.Lock()
		a := p.renewals[0].Acquired
		p.mu.Unlock()
		if a != 0 {
			t.Errorf("before the first answer the renewal says acquired %d", a)
		}
		rest(20 * time.Second)
		last := p.renewals[len(p.renewals)-1]
		if last.Acquired < 2 || !slices.Contains(last.Held, held(1)) {
			t.Errorf("the renewal says %+v", last)
		}
		r.wait(t)
	})
}

func TestServerAwayHandlersGoOnAndOutcomesAreKept(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(lease(1, "ten", ""), lease(2, "obey", ""))
		var away atomic.Bool
		fail := func() error {
			if away.Load() {
				return errGone
			}
			return nil
		}
		p.onOpen = func(int) error { return fail() }
		p.onRenew = func(context.Context, int) error { return fail() }
		p.onAcquire = func(context.Context, int) error { return fail() }
		p.onSettle = func(int, protocol.SettleRequest) error { return fail() }
		w := New(p, Config{Slots: 2})
		w.HandleFunc("ten", func(ctx context.Context, _ *Task) (any, error) {
			time.Sleep(10 * time.Second)
			return "kept", ctx.Err()
		})
		w.HandleFunc("obey", obey)
		w.HandleFunc("quick", func(context.Context, *Task) (any, error) { return nil, nil })
		r := run1(t, w)
		rest(time.Second)
		away.Store(true)
		rest(10 * time.Minute)
		calls := len(p.batches) + len(p.renewals) + len(p.acquires) + len(p.opened)
		if calls > 1000 {
			t.Errorf("%d calls in ten minutes: that is a hot loop", calls)
		}
		if len(p.outcomes) != 0 {
			t.Fatalf("outcomes: %+v", p.outcomes)
		}
		away.Store(false)
		p.add(lease(3, "quick", ""))
		rest(15 * time.Second)
		if o := p.outcome(t, 1); string(o.Output) != `"kept"` {
			t.Errorf("got %+v", o)
		}
		if p.outcomesOf(2) != 0 || p.outcomesOf(3) != 1 {
			t.Errorf("outcomes: %+v", p.outcomes)
		}
		r.wait(t)
	})
}

func TestRefusedOutcomeIsToldInItsPlace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer()
		for i := range 9 {
			p.add(lease(i, "work", fmt.Sprint(i)))
		}
		w := New(p, Config{Slots: 9})
		Handle(w, "work", func(_ context.Context, _ *Task, n int) (string, error) {
			if n == 3 || n == 5 {
				return "too large", nil
			}
			return "fine", nil
		})
		// The batch as a whole is refused for one of them, the other one by itself.
		p.onSettle = func(_ int, r protocol.SettleRequest) error {
			for _, o := range r.Outcomes {
				if o.TaskID == taskID(3) && o.Output != nil {
					return drover.Errorf(drover.CodePayloadTooLarge, "the body is too large")
				}
			}
			return nil
		}
		p.onItem = func(o drover.Outcome) *drover.Error {
			if o.TaskID == taskID(5) && o.Output != nil {
				return drover.Errorf(drover.CodePayloadTooLarge, "the output is larger than 256 KiB")
			}
			return nil
		}
		r := run1(t, w)
		rest(time.Second)
		for i := range 9 {
			o := p.outcome(t, i)
			if i == 3 || i == 5 {
				if o.Status != drover.OutcomeFailed || o.Error.Class != drover.ClassPermanent || o.Error.Type != "payload-too-large" {
					t.Errorf("task %d: %+v", i, o)
				}
			} else if o.Status != drover.OutcomeSucceeded {
				t.Errorf("task %d: %+v", i, o)
			}
		}
		r.wait(t)
	})
}

func TestOutcomeOfALostLeaseIsNotRepeated(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(lease(1, "quick", ""), lease(2, "quick", ""))
		var tries int
		p.onItem = func(o drover.Outcome) *drover.Error {
			if o.TaskID == taskID(1) {
				return drover.Errorf(drover.CodeLeaseLost, "the lease has moved on")
			}
			if tries++; tries < 3 {
				return drover.Errorf(drover.CodeOverloaded, "busy")
			}
			return nil
		}
		w := New(p, Config{Slots: 2})
		w.HandleFunc("quick", func(context.Context, *Task) (any, error) { return nil, nil })
		r := run1(t, w)
		rest(10 * time.Second)
		seen := 0
		for _, b := range p.batches {
			for _, o := range b.Outcomes {
				if o.TaskID == taskID(1) {
					seen++
				}
			}
		}
		if seen != 1 || p.outcomesOf(2) != 1 || tries != 3 {
			t.Errorf("task 1 was reported %d times, task 2 tried %d times", seen, tries)
		}
		r.wait(t)
	})
}

func TestDrainFinishesThenCancelsThenGivesBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(lease(1, "short", ""), lease(2, "obey", ""), lease(3, "late", ""), lease(4, "broken", ""), lease(5, "deaf", ""))
		w := New(p, Config{Slots: 6, Grace: 20 * time.Second, CancelGrace: 5 * time.Second})
		sleeper := func(d time.Duration) Handler {
			return func(ctx context.Context, _ *Task) (any, error) { time.Sleep(d); return "ok", ctx.Err() }
		}
		w.HandleFunc("short", sleeper(10*time.Second))
		w.HandleFunc("obey", obey)
		w.HandleFunc("late", func(ctx context.Context, _ *Task) (any, error) {
			<-ctx.Done()
			if context.Cause(ctx) != ErrShutdown {
				return nil, context.Cause(ctx)
			}
			return "saved in time", nil
		})
		w.HandleFunc("broken", func(ctx context.Context, t *Task) (any, error) {
			<-ctx.Done()
			return nil, Permanent(errors.New("bad input after all"))
		})
		w.HandleFunc("deaf", sleeper(2*time.Minute))
		r := run1(t, w)
		rest(time.Second)
		asked := len(p.acquires)
		p.mu.Lock() // it comes with an answer to an acquire that was sent before
		p.ready = append(p.ready, lease(6, "short", ""))
		p.mu.Unlock()
		r.stop()
		began := time.Now()
		err := <-r.done
		took := time.Since(began)
		if err == nil || !strings.Contains(err.Error(), "1 handlers") {
			t.Errorf("Run returned %v", err)
		}
		if took < 25*time.Second || took > 26*time.Second {
			t.Errorf("the drain took %s", took)
		}
		want := map[int]string{1: drover.OutcomeSucceeded, 2: drover.OutcomeReleased, 3: drover.OutcomeSucceeded, 4: drover.OutcomeFailed, 5: drover.OutcomeReleased}
		for n, status := range want {
			if o := p.outcome(t, n); o.Status != status {
				t.Errorf("task %d: %+v, want %s", n, o, status)
			}
		}
		if len(p.acquires) != asked {
			t.Error("a draining worker acquires")
		}
		renewals := 0
		for _, n := range p.renewals {
			if n.Draining {
				renewals++
			}
		}
		if renewals < 3 {
			t.Errorf("%d renewals say that it drains", renewals)
		}
		if len(p.closed) != 1 {
			t.Errorf("sessions closed: %v", p.closed)
		}
		rest(3 * time.Minute) // the deaf one returns
		if p.outcomesOf(5) != 1 {
			t.Error("the outcome of a handler that was given up was reported")
		}
	})
}

func TestDrainDoesNotWaitLongForAServerThatIsAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(lease(1, "obey", ""))
		w := New(p, Config{Slots: 1, Grace: time.Second})
		w.HandleFunc("obey", obey)
		r := run1(t, w)
		rest(time.Second)
		gone := func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }
		p.mu.Lock()
		p.onRenew, p.onAcquire = gone, gone
		p.onSettle = func(int, protocol.SettleRequest) error { return errGone }
		p.mu.Unlock()
		began := time.Now()
		r.wait(t)
		if took := time.Since(began); took > 13*time.Second {
			t.Errorf("the drain took %s", took)
		}
		if len(p.batches) < 3 || p.batches[0].Outcomes[0].Status != drover.OutcomeReleased {
			t.Errorf("it tried %d times", len(p.batches))
		}
	})
}

func TestLeasesThatArriveWhileDrainingAreGivenBackAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer()
		polling := make(chan struct{})
		p.onAcquire = func(ctx context.Context, n int) error {
			close(polling)
			<-ctx.Done() // the answer had left before the worker hung up
			p.mu.Lock()
			p.ready = []drover.Lease{lease(1, "quick", ""), lease(2, "quick", "")}
			p.mu.Unlock()
			return nil
		}
		w := New(p, Config{Slots: 2})
		w.HandleFunc("quick", func(context.Context, *Task) (any, error) { t.Error("it ran"); return nil, nil })
		r := run1(t, w)
		<-polling
		r.wait(t)
		for n := 1; n <= 2; n++ {
			if o := p.outcome(t, n); o.Status != drover.OutcomeReleased {
				t.Errorf("task %d: %+v", n, o)
			}
		}
	})
}

// A worker gives its open poll up when it drains, and with it perhaps an answer: a
// renewal that says so follows at once, and others for what the server had not
// claimed by then. Tasks do not wait for the drain's end, or a lease's.
func TestLeasesOfAPollThatIsGivenUpAreGivenBackByARenewal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(lease(1, "long", ""))
		p.onAcquire = func(ctx context.Context, n int) error {
			if n == 1 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}
		w := New(p, Config{Slots: 10, Grace: time.Minute})
		w.HandleFunc("long", func(context.Context, *Task) (any, error) { time.Sleep(8 * time.Second); return nil, nil })
		r := run1(t, w)
		rest(time.Second)
		p.mu.Lock()
		before := len(p.renewals)
		p.mu.Unlock()
		r.stop()
		rest(0)
		p.mu.Lock()
		list := p.renewals[before:]
		if n := len(list); n == 0 || !list[n-1].Draining || list[n-1].Acquired != 2 || len(list[n-1].Held) != 1 {
			t.Errorf("right after the stop it renews %+v; want acquire 2 given up and the running task held", list)
		}
		p.mu.Unlock()
		rest(3 * time.Second)
		p.mu.Lock()
		n := len(p.renewals) - before
		p.mu.Unlock()
		if n < 3 {
			t.Errorf("in the 3 s after it there are %d renewals; a claim that was late is not given back", n)
		}
		r.wait(t)
	})
}

// The answer to an acquire is lost: what it handed out is not kept until the next
// renewal is due.
func TestLostAnswerOfAnAcquireIsFollowedByARenewal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer()
		p.onAcquire = func(_ context.Context, n int) error {
			if n == 1 {
				return errGone
			}
			return nil
		}
		w := New(p, Config{})
		w.HandleFunc("quick", func(context.Context, *Task) (any, error) { return nil, nil })
		r := run1(t, w)
		rest(time.Millisecond)
		p.mu.Lock()
		if len(p.renewals) != 1 || p.renewals[0].Acquired != 1 {
			t.Errorf("renewals right after it: %+v", p.renewals)
		}
		p.mu.Unlock()
		r.wait(t)
	})
}

func TestLostAnswerOfAReportThatAcquiresIsFollowedByARenewal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(lease(1, "quick", ""))
		again := make(chan struct{})
		p.onSettle = func(n int, _ protocol.SettleRequest) error {
			if n == 1 {
				return errGone
			}
			<-again // the report is sent again before the renewal, or after it
			return nil
		}
		w := New(p, Config{Slots: 1})
		w.HandleFunc("quick", func(context.Context, *Task) (any, error) { return nil, nil })
		r := run1(t, w)
		synctest.Wait()
		p.mu.Lock()
		if a := p.batches[0].Acquire; a == nil || len(p.renewals) != 1 || p.renewals[0].Acquired != a.Number {
			t.Errorf("after a report that acquires under %+v was lost, it renews %+v", a, p.renewals)
		}
		p.mu.Unlock()
		close(again)
		r.wait(t)
	})
}

// TestAcquiresAbreastAreNumberedUpToTheLastAnsweredBefore: a renewal names the number up to
// which all were answered; a lease of one that is still under way must not be taken back.
func TestAcquiresAbreastAreNumberedUpToTheLastAnsweredBefore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := New(newPeer(), Config{Slots: 10})
		s := &session{ctx: t.Context(), asking: map[int64]bool{}, leaseFor: 30 * time.Second, until: time.Now().Add(30 * time.Second)}
		w.session = s
		ask := func(most int) *drover.Acquire {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.ask(most)
		}
		upTo := func(want int64) {
			t.Helper()
			if got := w.renewal(s).Acquired; got != want {
				t.Errorf("all are answered up to %d, want %d", got, want)
			}
		}
		a, b := ask(6), ask(6)
		if a.Number != 1 || a.Max != 6 || b.Number != 2 || b.Max != 4 || ask(6) != nil {
			t.Fatalf("asked %+v and %+v for ten slots", a, b)
		}
		upTo(0)
		w.answered(s, b, nil)
		upTo(0)
		c := ask(6)
		w.answered(s, a, nil)
		upTo(2)
		w.answered(s, c, nil)
		upTo(3)
		if w.asked != 0 || len(s.asking) != 0 {
			t.Errorf("%d slots are still asked for, by %v", w.asked, s.asking)
		}
	})
}

// A stopped process wakes up, and reads the answer before any timer of it fires.
func TestLeasesThatArriveAfterTheirEndAreNotStarted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := New(newPeer(), Config{Slots: 2})
		w.HandleFunc("work", func(context.Context, *Task) (any, error) {
			t.Error("a handler runs under a lease that is over")
			return nil, nil
		})
		s := &session{ctx: t.Context(), asking: map[int64]bool{}, leaseFor: 30 * time.Second, until: time.Now().Add(30 * time.Second)}
		w.session = s
		w.mu.Lock()
		a := w.ask(2)
		w.mu.Unlock()
		time.Sleep(27 * time.Second) // into the margin
		w.answered(s, a, []drover.Lease{lease(1, "work", "")})
		synctest.Wait()
		if len(w.queue) != 1 || w.queue[0].o.Status != drover.OutcomeReleased || w.live != 0 {
			t.Errorf("%d handlers run, to report: %+v; want the lease given back", w.live, w.queue)
		}
	})
}

func TestMoreLeasesThanAskedForAreGivenBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := &generous{newPeer()}
		w := New(p, Config{Slots: 1})
		w.HandleFunc("obey", obey)
		r := run1(t, w)
		rest(time.Second)
		if p.outcomesOf(1) != 0 || p.outcome(t, 2).Status != drover.OutcomeReleased {
			t.Errorf("outcomes: %+v", p.outcomes)
		}
		p.mu.Lock()
		p.cancel = []drover.Held{held(1)}
		p.mu.Unlock()
		rest(30 * time.Second)
		r.wait(t)
	})
}

type generous struct{ *peer }

func (g *generous) Acquire(ctx context.Context, a drover.Acquire) ([]drover.Lease, error) {
	if a.Number > 1 {
		return g.peer.Acquire(ctx, a)
	}
	return []drover.Lease{lease(1, "obey", ""), lease(1, "obey", ""), lease(2, "obey", "")}, nil
}

func TestServerThatDoesNotWaitIsNotAskedInACircle(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer()
		p.noWait = true
		w := New(p, Config{Slots: 1})
		w.HandleFunc("quick", func(context.Context, *Task) (any, error) { return nil, nil })
		r := run1(t, w)
		rest(time.Minute)
		if n := len(p.acquires); n > 130 {
			t.Errorf("%d acquires in a minute", n)
		}
		r.wait(t)
	})
}

func TestWorkerSaysWhyItCannotStart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		quick := func(context.Context, *Task) (any, error) { return nil, nil }
		ended, end := context.WithCancel(t.Context())
		end()
		p := newPeer()
		w := New(p, Config{})
		w.HandleFunc("a", quick)
		if err := w.Run(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("stopped before it started: %v", err)
		}
		if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "has run before") {
			t.Errorf("second run: %v", err)
		}
		if len(p.opened) != 0 {
			t.Error("it opened a session")
		}

		w = New(p, Config{Slots: -1, Grace: -1})
		w.HandleFunc("a", quick)
		w.HandleFunc("a", quick)
		w.HandleFunc("", quick)
		w.HandleFunc("b", nil)
		Handle[int, int](w, "c", nil)
		err := w.Run(t.Context())
		for _, want := range []string{`kind "a" has two handlers`, `kind ""`, `kind "b"`, `kind "c"`, "Config.Slots is -1", "Config.Grace"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q is not in %v", want, err)
			}
		}
		if err := New(p, Config{}).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "no handler") {
			t.Errorf("without a handler: %v", err)
		}
		if err := New(nil, Config{}).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "no connection") {
			t.Errorf("without a connection: %v", err)
		}

		p.onOpen = func(int) error { return drover.Errorf(drover.CodeUnauthenticated, "the token is not known") }
		w = New(p, Config{})
		w.HandleFunc("a", quick)
		if err := w.Run(t.Context()); !errors.Is(err, drover.ErrUnauthenticated) {
			t.Errorf("with a bad token: %v", err)
		}

		p.onOpen = func(n int) error {
			if n < 6 {
				return errGone
			}
			return nil
		}
		p.add(lease(1, "a", ""))
		w = New(p, Config{})
		w.HandleFunc("a", quick)
		r := run1(t, w)
		rest(time.Minute)
		if p.outcomesOf(1) != 1 {
			t.Error("a worker that started before its server does not work")
		}
		r.wait(t)
	})
}

func TestProgressIsThrottled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(lease(1, "steps", ""))
		w := New(p, Config{Slots: 1})
		w.HandleFunc("steps", func(_ context.Context, task *Task) (any, error) {
			task.Progress(math.NaN(), "nothing")
			task.Progress(-3, "start")
			synctest.Wait()
			for i := range 10_000 {
				task.Progress(float64(i)/10_000, fmt.Sprintf("%d of 10000", i))
				time.Sleep(time.Millisecond)
			}
			task.Progress(0.9999, "almost")
			time.Sleep(2 * time.Second)
			task.Progress(7, strings.Repeat("x", 1<<20))
			time.Sleep(2 * time.Second)
			return nil, nil
		})
		r := run1(t, w)
		rest(30 * time.Second)
		r.wait(t)
		if n := len(p.progress); n < 10 || n > 105 {
			t.Errorf("%d of 10,000 steps were sent", n)
		}
		if first := p.progress[0]; first.Ratio != 0 || first.Message != "start" {
			t.Errorf("the first is %+v", first)
		}
		last := p.progress[len(p.progress)-1]
		if last.Ratio != 1 || len(last.Message) > 1100 {
			t.Errorf("the last is %v with %d bytes", last.Ratio, len(last.Message))
		}
	})
}

func TestLogsGoToTheTaskAndToTheWorkersLog(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var own lockedBuffer
		p := newPeer(lease(1, "talk", ""), lease(2, "quiet", ""))
		w := New(p, Config{Slots: 2, Logger: slog.New(slog.NewTextHandler(&own, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		w.HandleFunc("talk", func(_ context.Context, task *Task) (any, error) {
			log := task.Log().With("stage", "read").WithGroup("frame")
			log.Info("frame read", "n", 1, "level", "mine", "bad", math.Inf(1))
			task.Log().Debug("plain")
			task.Log().Error("big", "a", strings.Repeat("x", 1<<20))
			task.LogLine("stdout", "a\x00b\xff")
			time.Sleep(1100 * time.Millisecond)
			p.mu.Lock()
			n := len(p.lines)
			p.mu.Unlock()
			if n != 4 {
				return nil, fmt.Errorf("%d lines were sent after a second", n)
			}
			task.Log().Warn("last", "msg", "m", "time", "t")
			return nil, nil
		})
		w.HandleFunc("quiet", func(context.Context, *Task) (any, error) { return nil, nil })
		r := run1(t, w)
		rest(5 * time.Second)
		r.wait(t)
		if o := p.outcome(t, 1); o.Status != drover.OutcomeSucceeded {
			t.Fatal(o.Error.Message)
		}
		want := []struct{ level, text, attrs string }{
			{"info", "frame read", `{"stage":"read","frame":{"n":1,"level":"mine","bad":"!ERROR:json: unsupported value: +Inf"}}`},
			{"debug", "plain", ""},
			{"error", "big", `{"cut":"attributes of 1048584 bytes"}`},
			{"stdout", "a\ufffdb\ufffd", ""},
			{"warn", "last", `{"msg":"m","time":"t"}`},
		}
		for i, l := range p.lines {
			if l.Level != want[i].level || l.Text != want[i].text || string(l.Attrs) != want[i].attrs {
				t.Errorf("line %d is %s %q %s", i, l.Level, l.Text, l.Attrs)
			}
		}
		for _, want := range []string{`level=DEBUG msg="frame read"`, "stage=read frame.n=1", "task=" + taskID(1).String()} {
			if !strings.Contains(own.String(), want) {
				t.Errorf("%q is not in the worker's log", want)
			}
		}
	})
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}
func (l *lockedBuffer) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

func TestLogsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(lease(1, "flood", ""))
		w := New(p, Config{Slots: 1})
		p.onLogs = func(n int) error {
			if n == 1 {
				return errGone
			}
			return nil
		}
		w.HandleFunc("flood", func(_ context.Context, task *Task) (any, error) {
			for i := range 50_000 {
				task.Log().Info(fmt.Sprintf("line %d", i))
			}
			return nil, nil
		})
		r := run1(t, w)
		rest(30 * time.Second)
		r.wait(t)
		var dropped string
		n := 0
		for _, l := range p.lines {
			if strings.Contains(l.Text, "were dropped here") {
				dropped = l.Text
			} else {
				n++
			}
		}
		if n >= 50_000 || n < 1000 || !strings.HasPrefix(dropped, fmt.Sprintf("%d lines", 50_000-n)) {
			t.Errorf("%d lines arrived; %q", n, dropped)
		}
	})
}

func TestOutputOfAProgramIsKeptWhenItComesFast(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(lease(1, "flood", ""))
		w := New(p, Config{Slots: 1})
		p.onLogs = func(int) error { time.Sleep(10 * time.Millisecond); return nil }
		w.HandleFunc("flood", func(_ context.Context, task *Task) (any, error) {
			for i := range 20_000 {
				task.LogLine("stdout", fmt.Sprintf("line %d", i))
			}
			return nil, nil
		})
		r := run1(t, w)
		rest(30 * time.Second)
		r.wait(t)
		if len(p.lines) != 20_000 || p.lines[19_999].Text != "line 19999" {
			t.Errorf("%d lines arrived", len(p.lines))
		}
	})
}

func TestLogsTheServerDoesNotTakeHoldNothingUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(lease(1, "flood", ""))
		w := New(p, Config{Slots: 1})
		p.onLogs = func(int) error { return errGone }
		w.HandleFunc("flood", func(_ context.Context, task *Task) (any, error) {
			for i := range 20_000 {
				task.LogLine("stdout", fmt.Sprintf("line %d", i))
			}
			return nil, nil
		})
		r := run1(t, w)
		rest(15 * time.Second)
		if p.outcomesOf(1) != 1 {
			t.Error("the task has not ended")
		}
		r.wait(t)
	})
}

func TestArtifactsComeWithSuccess(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(lease(1, "make", ""), lease(2, "fail", ""), lease(3, "read", ""))
		w := New(p, Config{Slots: 1})
		var uri string
		w.HandleFunc("make", func(ctx context.Context, task *Task) (any, error) {
			a, err := task.SaveArtifact(ctx, "a.txt", strings.NewReader("hello"), WithKind("text"), WithMediaType("text/plain"), WithMetadata(map[string]int{"n": 1}))
			uri = a.URI
			if a.Kind != "text" || a.MediaType != "text/plain" || string(a.Metadata) != `{"n":1}` {
				return nil, fmt.Errorf("saved as %+v", a)
			}
			return a.URI, err
		})
		w.HandleFunc("fail", func(ctx context.Context, task *Task) (any, error) {
			if _, err := task.SaveArtifact(ctx, "b", strings.NewReader(""), WithMetadata(math.NaN())); err == nil {
				t.Error("metadata NaN was taken")
			}
			task.SaveArtifact(ctx, "b", strings.NewReader("x"))
			return nil, errors.New("no")
		})
		w.HandleFunc("read", func(ctx context.Context, task *Task) (any, error) {
			if _, err := task.OpenArtifact(ctx, "s3://bucket/x"); err == nil {
				t.Error("a foreign URI was opened")
			}
			if _, err := task.OpenArtifact(ctx, drover.URIOf(drover.ArtifactID{1})); !errors.Is(err, drover.ErrNotFound) {
				t.Errorf("a missing artifact: %v", err)
			}
			r, err := task.OpenArtifact(ctx, uri)
			if err != nil {
				return nil, err
			}
			defer r.Close()
			b, err := io.ReadAll(r)
			return string(b), err
		})
		r := run1(t, w)
		rest(time.Second)
		r.wait(t)
		if o := p.outcome(t, 1); len(o.Artifacts) != 1 || drover.URIOf(o.Artifacts[0]) != uri {
			t.Errorf("got %+v", o)
		}
		if o := p.outcome(t, 2); len(o.Artifacts) != 0 {
			t.Errorf("got %+v", o)
		}
		if o := p.outcome(t, 3); string(o.Output) != `"hello"` {
			t.Errorf("got %+v", o)
		}
	})
}

func TestTaskMadeByHandDoesNothingOutside(t *testing.T) {
	task := &Task{Lease: drover.Lease{Input: json.RawMessage(`{"n":1}`)}}
	task.Progress(0.5, "half")
	task.Log().Info("nowhere")
	task.LogLine("stdout", "nowhere")
	var in struct{ N int }
	if err := task.Bind(&in); err != nil || in.N != 1 {
		t.Errorf("Bind gives %v, %v", in, err)
	}
	if _, err := task.SaveArtifact(t.Context(), "a", nil); err == nil {
		t.Error("an artifact was saved")
	}
	if _, err := task.OpenArtifact(t.Context(), "artifact://"); err == nil {
		t.Error("an artifact was opened")
	}
}

func TestCutNeverHalvesACharacter(t *testing.T) {
	for n := range 12 {
		s := cut("aé漢🙂", n)
		if !json.Valid([]byte(`"`+s+`"`)) || strings.ContainsRune(s, '\ufffd') {
			t.Errorf("cut at %d gives %q", n, s)
		}
	}
	if s := cut("\xff\xfe", 10); s != "\ufffd" {
		t.Errorf("got %q", s)
	}
}

func TestHeartbeatsAreThrottledAndTheLastArrives(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := lease(1, "it", "null")
		l.Heartbeat = drover.Duration(30 * time.Second)
		l.Checkpoint = json.RawMessage(`{"done":41}`)
		p := newPeer(l)
		w := New(p, Config{Slots: 1})
		w.HandleFunc("it", func(_ context.Context, task *Task) (any, error) {
			var at struct{ Done int }
			if ok, err := task.Resume(&at); !ok || err != nil || at.Done != 41 {
				t.Errorf("resumes at %+v, %v, %v", at, ok, err)
			}
			if err := task.Heartbeat(math.NaN()); err == nil {
				t.Error("details that are no JSON are taken")
			}
			if err := task.Heartbeat(strings.Repeat("x", protocol.MaxCheckpoint)); err == nil {
				t.Error("details that are too long are taken")
			}
			for i := range 1001 {
				if err := task.Heartbeat(map[string]int{"done": i}); err != nil {
					t.Error(err)
				}
				rest(10 * time.Millisecond)
			}
			if err := task.Heartbeat(nil); err != nil {
				t.Error(err)
			}
			return nil, errors.New("broken off")
		})
		r := run1(t, w)
		rest(12 * time.Second)
		if n := len(p.beats); n < 9 || n > 12 {
			t.Errorf("%d heartbeats sent of 1001 in 10 s", n)
		}
		if first, last := p.beats[0], p.beats[len(p.beats)-1]; first != `{"done":0}` || last != `{"done":1000}` {
			t.Errorf("the first kept %s, the last %s", first, last)
		}
		if o := p.outcome(t, 1); o.Status != drover.OutcomeFailed {
			t.Errorf("outcome %+v", o)
		}
		r.wait(t)
	})
}

func TestAHeartbeatThatIsRefusedIsSentAgainOrEndsTheAttempt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(lease(1, "it", "null"), lease(2, "it", "null"))
		busy := drover.Errorf(drover.CodeOverloaded, "busy")
		p.onBeat = func(n int) error {
			if n == 0 && len(p.refusals) < 2 {
				p.refusals = append(p.refusals, "busy")
				return busy
			}
			return nil
		}
		w := New(p, Config{Slots: 1})
		first := true
		w.HandleFunc("it", func(ctx context.Context, task *Task) (any, error) {
			if !first { // the server has ended it
				p.mu.Lock()
				p.onBeat = func(int) error { return drover.Errorf(drover.CodeLeaseLost, "gone") }
				p.mu.Unlock()
				if err := task.Heartbeat(1); err != nil {
					t.Error(err)
				}
				<-ctx.Done()
				if cause := context.Cause(ctx); !errors.Is(cause, ErrLeaseLost) {
					t.Errorf("ended by %v", cause)
				}
				return nil, nil
			}
			first = false
			if err := task.Heartbeat("kept"); err != nil {
				t.Error(err)
			}
			rest(5 * time.Second)
			return nil, nil
		})
		r := run1(t, w)
		rest(20 * time.Second)
		if !slices.Equal(p.beats, []string{`"kept"`}) || len(p.refusals) != 2 {
			t.Errorf("heartbeats %q after %d refusals", p.beats, len(p.refusals))
		}
		if n := p.outcomesOf(2); n != 0 {
			t.Errorf("%d outcomes of an attempt whose lease is lost", n)
		}
		r.wait(t)
	})
}

func TestHandlerThatHasReturnedIsNotGivenUpWhileItsLinesAreSent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for range 3000 { // both come when the lines are sent: which is first is chance
			a := lease(1, "slow", "")
			a.Timeout = drover.Duration(time.Second)
			p := newPeer(a)
			p.onLogs = func(int) error { time.Sleep(3 * time.Second); return nil }
			w := New(p, Config{Slots: 1, CancelGrace: 2 * time.Second})
			w.HandleFunc("slow", func(ctx context.Context, task *Task) (any, error) {
				<-ctx.Done()
				time.Sleep(time.Second)
				task.Log().Info("done all the same")
				return "done", nil
			})
			r := run1(t, w)
			rest(time.Minute)
			if o := p.outcome(t, 1); o.Status != drover.OutcomeSucceeded {
				t.Fatalf("its result became %+v", o.Error)
			}
			r.wait(t)
		}
	})
}
