package engine_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

func heldBy(l drover.Lease) drover.Held {
	return drover.Held{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion}
}

const aWhile = drover.Duration(20 * time.Second)

// ask carries out one request of a handler.
func (w *world) ask(a engine.LockAsk) engine.LockAnswer {
	w.t.Helper()
	a.Caller = w.c
	out, err := w.Locks(w.t.Context(), []engine.LockAsk{a})
	if err != nil {
		w.t.Fatal(err)
	}
	return out[0]
}

func (w *world) lock(l drover.Lease, n drover.NewLock) (drover.Lock, error) {
	w.t.Helper()
	n.Wait = cmp.Or(n.Wait, aWhile)
	a := w.ask(engine.LockAsk{Held: heldBy(l), Lock: &n})
	return a.Lock, a.Err
}

// has locks and must be granted it.
func (w *world) has(l drover.Lease, number int32, name string) drover.Lock {
	w.t.Helper()
	got, err := w.lock(l, drover.NewLock{Number: number, Name: name, Exclusive: true})
	if err != nil || !got.Granted {
		w.t.Fatalf("lock %s = %+v, %v; want it granted", name, got, err)
	}
	return got
}

// waits locks and must be put in line.
func (w *world) waits(l drover.Lease, number int32, name string, position int) {
	w.t.Helper()
	got, err := w.lock(l, drover.NewLock{Number: number, Name: name, Exclusive: true})
	if err != nil || got.Granted || got.Position != position {
		w.t.Fatalf("lock %s = %+v, %v; want place %d in line", name, got, err, position)
	}
}

func (w *world) unlock(l drover.Lease, number int32) error {
	w.t.Helper()
	return w.ask(engine.LockAsk{Held: heldBy(l), Unlock: &drover.NewUnlock{Number: number}}).Err
}

// look is how a request stands that was put in line.
func (w *world) look(l drover.Lease, number int32, name string) (drover.Lock, bool) {
	w.t.Helper()
	out, gone, err := w.LookLocks(w.t.Context(), []engine.LockAsk{{Caller: w.c, Held: heldBy(l), Lock: &drover.NewLock{Number: number, Name: name}}})
	if err != nil {
		w.t.Fatal(err)
	}
	return out[0].Lock, gone[0]
}

func (w *world) refused(err error, code drover.Code, says string) {
	w.t.Helper()
	if drover.CodeOf(err) != code || !strings.Contains(fmt.Sprint(err), says) {
		w.t.Errorf("error = %v (%s), want %s and %q", err, drover.CodeOf(err), code, says)
	}
}

func (w *world) running(n int) []drover.Lease {
	w.t.Helper()
	w.submitMany(n, drover.NewJob{Kind: "k"})
	l := w.acquire(n)
	if len(l) != n {
		w.t.Fatalf("%d leases, want %d", len(l), n)
	}
	return l
}

func TestHandlersThatLockTheSameTakeTurns(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		l := w.running(3)
		first := w.has(l[0], 1, "numbers")
		if again := w.has(l[0], 1, "numbers"); again != first {
			t.Errorf("the repeat = %+v, want %+v", again, first)
		}
		w.waits(l[1], 1, "numbers", 1)
		w.waits(l[2], 1, "numbers", 2)
		w.waits(l[1], 1, "numbers", 1) // again, at its place
		w.audit()
		if got, gone := w.look(l[2], 1, "numbers"); got.Granted || gone || got.Position != 2 {
			t.Errorf("who waits stands as %+v, gone: %v", got, gone)
		}
		shown, err := w.Limit(t.Context(), w.c, "numbers")
		if err != nil || !shown.Lock || len(shown.Holders) != 1 || shown.Holders[0].TaskID != l[0].TaskID || shown.Holders[0].Token != first.Token ||
			len(shown.Waiters) != 2 || shown.Waiters[0].TaskID != l[1].TaskID || shown.Waiters[0].Weight != 1 {
			t.Errorf("shown as %+v, %v", shown, err)
		}
		other, err := w.EnsureTenant(t.Context(), "beta")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Limit(t.Context(), other, "numbers"); drover.CodeOf(err) != drover.CodeNotFound {
			t.Errorf("another tenant sees it: %v", err)
		}
		if err := w.unlock(l[0], 1); err != nil {
			t.Fatal(err)
		}
		second, _ := w.look(l[1], 1, "numbers")
		if !second.Granted || second.Token <= first.Token {
			t.Errorf("the next has %+v after %+v", second, first)
		}
		if err := w.unlock(l[0], 1); err != nil {
			t.Errorf("giving back twice: %v", err)
		}
		w.settle(ok(l[1], "1"))
		third, _ := w.look(l[2], 1, "numbers")
		if !third.Granted || third.Token <= second.Token {
			t.Errorf("the last has %+v after %+v", third, second)
		}
		w.audit()
		w.settle(ok(l[0], "1"), ok(l[2], "1"))
		w.admit()
		w.audit()
		for _, what := range []string{"permits", "limits"} {
			w.clock.add += 31 * time.Second
			w.admit()
			if n := w.count("SELECT count(*) FROM " + what); n != 0 {
				t.Errorf("%d rows of %s are left", n, what)
			}
		}
		w.open()
		l = w.running(1)
		if got := w.has(l[0], 1, "numbers"); got.Token <= third.Token {
			t.Errorf("made anew, it has %d after %d", got.Token, third.Token)
		}
	})
}

// TestALockGoesWithTheAttempt however that ends, what is waited for too.
func TestALockGoesWithTheAttempt(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		outcome := func(o drover.Outcome) func(drover.Lease) {
			return func(l drover.Lease) {
				o.TaskID, o.LeaseVersion = l.TaskID, l.LeaseVersion
				w.settle(o)
			}
		}
		for name, end := range map[string]func(l drover.Lease){
			"success":  outcome(drover.Outcome{Status: drover.OutcomeSucceeded}),
			"failure":  outcome(drover.Outcome{Status: drover.OutcomeFailed, Error: &drover.Failure{Class: drover.ClassPermanent}}),
			"a retry":  outcome(drover.Outcome{Status: drover.OutcomeFailed, Error: &drover.Failure{Class: drover.ClassRetryable}}),
			"a snooze": outcome(drover.Outcome{Status: drover.OutcomeSnoozed, RetryAfter: drover.Duration(time.Hour)}),
			"release":  outcome(drover.Outcome{Status: drover.OutcomeReleased}),
			"cancel": func(l drover.Lease) {
				if _, err := w.Cancel(t.Context(), w.c, l.JobID, engine.Request{}); err != nil {
					t.Fatal(err)
				}
				w.settle(drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeCancelled})
			},
			"a mark": func(l drover.Lease) {
				if _, err := w.Mark(t.Context(), w.c, l.TaskID, engine.MarkRequest{Status: drover.Skipped, Request: engine.Request{Reason: "no"}}); err != nil {
					t.Fatal(err)
				}
			},
			"the end of the session": func(drover.Lease) {
				if err := w.CloseSession(t.Context(), w.c, w.session); err != nil {
					t.Fatal(err)
				}
				w.open()
			},
			"a lost lease": func(drover.Lease) {
				w.clock.add += time.Minute
				w.step("reap", w.ReapOnce)
				w.open()
			},
		} {
			holder := w.running(1)[0]
			for i := range int32(3) {
				w.has(holder, i+1, fmt.Sprintf("lock-%d", i))
			}
			if n := w.count("SELECT count(*) FROM permits WHERE weight > 0"); n != 3 {
				t.Errorf("%s: %d are held before, want 3", name, n)
			}
			end(holder)
			if n := w.count("SELECT count(*) FROM permits"); n != 0 {
				t.Errorf("%d rows are left after %s", n, name)
			}
			_, err := w.lock(holder, drover.NewLock{Number: 9, Name: "lock-0", Exclusive: true})
			w.refused(err, drover.CodeLeaseLost, "")
			w.refused(w.unlock(holder, 1), drover.CodeLeaseLost, "")
			w.audit()
			for _, l := range w.acquire(10) { // what came back
				w.settle(ok(l, "1"))
			}
		}
	})
}

func TestAWaitGoesWithTheAttempt(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		l := w.running(3)
		w.has(l[0], 1, "a")
		w.waits(l[1], 1, "a", 1)
		w.waits(l[2], 1, "a", 2)
		w.settle(failed(l[1], drover.ClassPermanent, "no"))
		if got, _ := w.look(l[2], 1, "a"); got.Position != 1 {
			t.Errorf("behind one that has ended: %+v", got)
		}
		if _, gone := w.look(l[1], 1, "a"); !gone {
			t.Error("who has ended still waits")
		}
		// Who does not ask again is out of the line, and may come back behind others.
		w.clock.add += 25 * time.Second
		w.renew(l[0], l[2])
		w.waits(l[2], 1, "a", 1)
		w.clock.add += 25 * time.Second
		w.renew(l[0], l[2])
		if got, gone := w.look(l[2], 1, "a"); gone || got.Position != 1 {
			t.Errorf("who has asked again: %+v, gone: %v", got, gone)
		}
		w.clock.add += 26 * time.Second
		w.renew(l[0], l[2])
		if _, gone := w.look(l[2], 1, "a"); !gone {
			t.Error("who has not asked again for a minute still waits")
		}
		late := w.running(1)[0]
		w.waits(late, 1, "a", 1)
		w.waits(l[2], 1, "a", 2)
		w.audit()
	})
}

func TestALateRepeatOfWhatWasGivenBackGetsNothing(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		l := w.running(1)[0]
		w.has(l, 1, "a")
		if err := w.unlock(l, 1); err != nil {
			t.Fatal(err)
		}
		_, err := w.lock(l, drover.NewLock{Number: 1, Name: "a", Exclusive: true})
		w.refused(err, drover.CodeInvalidTransition, "given back before")
		if err := w.unlock(l, 2); err != nil { // it arrives before what it takes back
			t.Fatal(err)
		}
		_, err = w.lock(l, drover.NewLock{Number: 2, Name: "a", Exclusive: true})
		w.refused(err, drover.CodeInvalidTransition, "given back before")
		for i := int32(3); i < 200; i++ {
			w.has(l, i, "a")
			if err := w.unlock(l, i); err != nil {
				t.Fatal(err)
			}
		}
		if n := w.count("SELECT count(*) FROM permits"); n > 64 {
			t.Errorf("%d rows remember what was given back", n)
		}
		w.audit()
		w.settle(ok(l, "1"))
		if n := w.count("SELECT count(*) FROM permits"); n != 0 {
			t.Errorf("%d rows are left", n)
		}
	})
}

func TestARingIsRefusedWhenItWouldClose(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks: {mix: {run: k, for_each: [1, 2]}, encode: {run: k}}\n")
		w.submit(drover.NewJob{Pipeline: "p"})
		l := w.acquire(3)
		slices.SortFunc(l, func(a, b drover.Lease) int { return cmp.Or(cmp.Compare(a.Name, b.Name), a.Index-b.Index) })
		w.has(l[0], 1, "a")
		w.has(l[1], 1, "b")
		w.has(l[2], 1, "c")
		w.waits(l[0], 2, "b", 1)
		w.waits(l[1], 2, "c", 1)
		_, err := w.lock(l[2], drover.NewLock{Number: 2, Name: "a", Exclusive: true})
		w.refused(err, drover.CodeDeadlock, "waiting for lock a would never end")
		var e *drover.Error
		if !errors.As(err, &e) || !errors.Is(err, drover.ErrDeadlock) {
			t.Fatal(err)
		}
		var ring []string
		for _, f := range e.Fields {
			ring = append(ring, f.Field+": "+f.Message)
		}
		want := fmt.Sprintf("ring[0]: %s (mix[1]) waits for a, which %s (encode) holds\nring[1]: %[2]s (encode) waits for b, which %[3]s (mix[0]) holds\nring[2]: %[3]s (mix[0]) waits for c, which %[1]s (mix[1]) holds",
			l[2].TaskID, l[0].TaskID, l[1].TaskID)
		if got := strings.Join(ring, "\n"); got != want {
			t.Errorf("the ring is\n%s\nwant\n%s", got, want)
		}
		// It waits for nothing then, and gives back what the others wait for.
		if n := w.count("SELECT count(*) FROM permits WHERE weight = 0"); n != 2 {
			t.Errorf("%d wait, want 2", n)
		}
		_, err = w.lock(l[2], drover.NewLock{Number: 3, Name: "c", Exclusive: true})
		w.refused(err, drover.CodeInvalidTransition, "holds 1 of it already, by request 1")
		w.settle(failed(l[2], drover.ClassRetryable, "deadlock"))
		if got, _ := w.look(l[1], 2, "c"); !got.Granted {
			t.Errorf("after one has ended the next has %+v", got)
		}
		w.audit()
	})
}

// TestARingOfTwoTenantsTellsNeitherOfTheOther: they meet at a shared limit.
func TestARingOfTwoTenantsTellsNeitherOfTheOther(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for _, name := range []string{"x", "y"} {
			w.limit(name, drover.NewLimit{Max: 1, Shared: true})
		}
		beta, err := w.EnsureTenant(t.Context(), "beta")
		if err != nil {
			t.Fatal(err)
		}
		mine := w.running(1)[0]
		acme, session := w.c, w.session
		w.c = beta
		w.open()
		theirs := w.running(1)[0]
		w.has(theirs, 1, "x")
		w.c, w.session = acme, session
		w.has(mine, 1, "y")
		w.waits(mine, 2, "x", 1)
		w.c = beta
		_, err = w.lock(theirs, drover.NewLock{Number: 2, Name: "y", Exclusive: true})
		w.refused(err, drover.CodeDeadlock, "(k) waits for y, which a task of another tenant holds")
		if strings.Contains(fmt.Sprintf("%+v", err), mine.TaskID.String()) {
			t.Errorf("it names a task of another tenant: %+v", err)
		}
		_, err = w.lock(mine, drover.NewLock{Number: 3, Name: "z", Exclusive: true})
		w.refused(err, drover.CodeLeaseLost, "")
	})
}

// TestHandlersAndTasksShareALimit in turns, and no more is ever held than it has.
func TestHandlersAndTasksShareALimit(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.limit("vendor", drover.NewLimit{Max: 2})
		h := w.running(4)
		for i, l := range h[:2] {
			if got, err := w.lock(l, drover.NewLock{Number: 1, Name: "vendor"}); err != nil || !got.Granted {
				t.Fatalf("handler %d: %+v, %v", i, got, err)
			}
		}
		w.submitMany(4, drover.NewJob{Kind: "task", Limits: map[string]int64{"vendor": 1}})
		w.admit()
		for _, l := range h[2:] {
			if got, err := w.lock(l, drover.NewLock{Number: 1, Name: "vendor"}); err != nil || got.Granted {
				t.Fatalf("%+v, %v; want it in line", got, err)
			}
		}
		var order []string
		give := func(back func()) {
			t.Helper()
			back()
			w.admit()
			for _, l := range w.get(1) {
				order = append(order, "task")
				defer w.settle(ok(l, "1"))
			}
			for i, l := range h[2:] {
				if got, gone := w.look(l, 1, "vendor"); got.Granted && !gone && !slices.Contains(order, fmt.Sprint("handler ", i)) {
					order = append(order, fmt.Sprint("handler ", i))
				}
			}
			if n := w.used("vendor"); n > 2 {
				t.Fatalf("%d are held of 2", n)
			}
			w.audit()
		}
		give(func() { w.settle(ok(h[0], "1")) })
		give(func() {})
		give(func() { w.settle(ok(h[1], "1")) })
		for range 4 {
			give(func() {})
		}
		for _, l := range h[2:] {
			give(func() { w.settle(ok(l, "1")) })
		}
		for range 4 {
			give(func() {})
		}
		handlers := 0
		for i, who := range order {
			if strings.HasPrefix(who, "handler") {
				handlers++
				if i > 2*handlers { // at most every other goes to a task while one waits
					t.Errorf("the order is %v", order)
				}
			}
		}
		if handlers != 2 || len(order) != 6 {
			t.Errorf("the order is %v, want two handlers and four tasks", order)
		}
		if n := w.used("vendor"); n != 0 {
			t.Errorf("%d are held in the end", n)
		}
	})
}

func TestSeveralPermitsAreNotPassedBySingleOnes(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.limit("vendor", drover.NewLimit{Max: 3})
		l := w.running(5)
		take := func(i int, n int64, granted bool) {
			t.Helper()
			if got, err := w.lock(l[i], drover.NewLock{Number: 1, Name: "vendor", Permits: n}); err != nil || got.Granted != granted {
				t.Fatalf("handler %d: %+v, %v; want granted: %v", i, got, err, granted)
			}
		}
		take(0, 1, true)
		take(1, 3, false)
		take(2, 1, false) // there is room, and one before it
		if got, err := w.lock(l[3], drover.NewLock{Number: 1, Name: "vendor", Wait: -1}); drover.CodeOf(err) != drover.CodeValidation {
			t.Errorf("a negative wait: %+v, %v", got, err)
		}
		now := w.ask(engine.LockAsk{Held: heldBy(l[3]), Lock: &drover.NewLock{Number: 1, Name: "vendor"}})
		if now.Err != nil || now.Lock.Granted || now.Lock.Position != 3 {
			t.Errorf("at once or not at all: %+v", now)
		}
		if n := w.count("SELECT count(*) FROM permits WHERE number > 0"); n != 3 {
			t.Errorf("%d requests are kept, want 3", n)
		}
		w.settle(ok(l[0], "1"))
		if got, _ := w.look(l[1], 1, "vendor"); !got.Granted {
			t.Errorf("the one that asked for three has %+v", got)
		}
		if got, _ := w.look(l[2], 1, "vendor"); got.Granted || got.Position != 1 {
			t.Errorf("the one behind has %+v", got)
		}
		// A limit that is raised lets who waits go on, and one that is lowered below what
		// is asked for says so.
		w.limit("vendor", drover.NewLimit{Max: 4})
		if got, _ := w.look(l[2], 1, "vendor"); !got.Granted {
			t.Errorf("after it was raised: %+v", got)
		}
		take(3, 2, false)
		take(4, 1, false)
		w.limit("vendor", drover.NewLimit{Max: 1})
		_, err := w.lock(l[3], drover.NewLock{Number: 1, Name: "vendor", Permits: 2})
		w.refused(err, drover.CodeExceedsLimit, "it has 1 by now, and 2 are asked for")
		w.settle(ok(l[1], "1"), ok(l[2], "1"))
		if got, _ := w.look(l[4], 1, "vendor"); !got.Granted {
			t.Errorf("the last has %+v", got)
		}
		w.audit()
		_, err = w.DeleteLimit(t.Context(), w.c, "vendor", "", engine.Precondition{}, false)
		w.refused(err, drover.CodeConflict, "1 running handler holds or waits for some of it")
		w.settle(ok(l[4], "1"))
		if _, err = w.DeleteLimit(t.Context(), w.c, "vendor", "", engine.Precondition{}, false); err != nil {
			t.Error(err)
		}
	})
}

func TestWhatATaskWasAdmittedWithIsBesideWhatItsHandlerTakes(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.limit("vendor", drover.NewLimit{Max: 2})
		w.submit(drover.NewJob{Kind: "k", Limits: map[string]int64{"vendor": 1}})
		w.admit()
		l := w.get(1)[0]
		_, err := w.lock(l, drover.NewLock{Number: 1, Name: "vendor", Permits: 2})
		w.refused(err, drover.CodeDeadlock, "of which it holds too much itself")
		if got, err := w.lock(l, drover.NewLock{Number: 2, Name: "vendor"}); err != nil || !got.Granted || w.used("vendor") != 2 {
			t.Errorf("one more = %+v, %v, and %d are held", got, err, w.used("vendor"))
		}
		w.audit()
		if err := w.unlock(l, 2); err != nil || w.used("vendor") != 1 {
			t.Errorf("given back: %v, and %d are held", err, w.used("vendor"))
		}
		w.clock.add += 20 * time.Second
		w.renew(l)
		w.clock.add += 20 * time.Second
		w.renew(l)
		w.admit() // what is mended now and then finds nothing to mend
		w.audit()
		if w.used("vendor") != 1 {
			t.Errorf("%d are held", w.used("vendor"))
		}
		w.settle(failed(l, drover.ClassRetryable, "again"))
		if w.used("vendor") != 0 {
			t.Errorf("%d are held after the attempt", w.used("vendor"))
		}
	})
}

// TestALimitOfTheNameOfALockIsIt: whoever sets one does not make a second lock of the name.
func TestALimitOfTheNameOfALockIsIt(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		l := w.running(3)
		w.has(l[0], 1, "config")
		w.waits(l[1], 1, "config", 1)
		_, err := w.SetLimit(t.Context(), w.c, "config", drover.NewLimit{Scope: drover.ScopeKind, Kind: "k", Max: 3}, engine.Precondition{}, false)
		w.refused(err, drover.CodeConflict, "is a lock that handlers hold or wait for")
		if got := w.limit("config", drover.NewLimit{Max: 1}); got.Used != 0 || got.Lock {
			t.Errorf("made as %+v", got)
		}
		if n := w.used("config"); n != 1 {
			t.Errorf("%d are held of it, want the one that was", n)
		}
		w.waits(l[2], 1, "config", 2)
		w.submit(drover.NewJob{Kind: "k", Limits: map[string]int64{"config": 1}})
		w.admit()
		if got := w.get(1); len(got) != 0 {
			t.Fatalf("a task was admitted beside the handler: %+v", got)
		}
		w.settle(ok(l[0], "1"), ok(l[2], "1"))
		w.admit()
		task := w.get(1)
		got, _ := w.look(l[1], 1, "config")
		if got.Granted == (len(task) == 1) || w.used("config") != 1 {
			t.Errorf("the handler has %+v, %d tasks run, %d are held", got, len(task), w.used("config"))
		}
		w.audit()
	})
}

func TestWhatALockCannotBeIsRefused(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.limit("five", drover.NewLimit{Max: 5})
		w.limit("rate", drover.NewLimit{Rate: 5})
		w.limit("kind", drover.NewLimit{Scope: drover.ScopeKind, Kind: "other", Max: 5})
		l := w.running(2)
		for _, c := range []struct {
			n    drover.NewLock
			code drover.Code
			says string
		}{
			{drover.NewLock{Number: 0, Name: "a"}, drover.CodeValidation, "from 1"},
			{drover.NewLock{Number: -3, Name: "a"}, drover.CodeValidation, "number"},
			{drover.NewLock{Number: 1}, drover.CodeValidation, "is no name"},
			{drover.NewLock{Number: 1, Name: "No Name"}, drover.CodeValidation, "is no name"},
			{drover.NewLock{Number: 1, Name: "a", Permits: -1}, drover.CodeValidation, "outside 1 to"},
			{drover.NewLock{Number: 1, Name: "a", Permits: 1 << 40}, drover.CodeValidation, "outside 1 to"},
			{drover.NewLock{Number: 1, Name: "a", Permits: 2, Exclusive: true}, drover.CodeValidation, "a lock has one"},
			{drover.NewLock{Number: 1, Name: "a", Wait: drover.Duration(time.Hour)}, drover.CodeValidation, "from 0 to 20s"},
			{drover.NewLock{Number: 1, Name: "none"}, drover.CodeNotFound, "drover limit set none --max N"},
			{drover.NewLock{Number: 1, Name: "five", Permits: 6}, drover.CodeExceedsLimit, "it has 5, and 6 are asked for; raise it with \"drover limit set five --max 6\""},
			{drover.NewLock{Number: 1, Name: "five", Exclusive: true}, drover.CodeValidation, "with 5 permits"},
			{drover.NewLock{Number: 1, Name: "rate"}, drover.CodeValidation, "it is a rate"},
			{drover.NewLock{Number: 1, Name: "kind"}, drover.CodeValidation, "of scope kind"},
		} {
			_, err := w.lock(l[0], c.n)
			w.refused(err, c.code, c.says)
		}
		w.refused(w.unlock(l[0], 0), drover.CodeValidation, "number")
		for i := range int32(engine.MaxLocks) {
			w.has(l[0], i+1, fmt.Sprint("l", i))
		}
		_, err := w.lock(l[0], drover.NewLock{Number: 100, Name: "more", Exclusive: true})
		w.refused(err, drover.CodeBudget, "give some back")
		_, err = w.lock(l[0], drover.NewLock{Number: 1, Name: "l1", Exclusive: true})
		w.refused(err, drover.CodeInvalidTransition, "for something else")
		// Many requests share a transaction, and none fails for another's fault.
		out, err := w.Locks(t.Context(), []engine.LockAsk{
			{Caller: w.c, Held: heldBy(l[1]), Lock: &drover.NewLock{Number: 1, Name: "both", Exclusive: true, Wait: aWhile}},
			{Caller: w.c, Held: drover.Held{TaskID: l[1].TaskID, LeaseVersion: 99}, Lock: &drover.NewLock{Number: 1, Name: "both", Exclusive: true}},
			{Caller: w.c, Held: heldBy(l[1]), Lock: &drover.NewLock{Number: 1, Name: "both", Exclusive: true, Wait: aWhile}},
			{Caller: w.c, Held: heldBy(l[1]), Lock: &drover.NewLock{Number: 2, Name: "!"}},
			{Caller: w.c, Held: heldBy(l[1]), Unlock: &drover.NewUnlock{Number: 1}},
			{Caller: w.c, Held: heldBy(l[1]), Lock: &drover.NewLock{Number: 2, Name: "both", Exclusive: true, Wait: aWhile}},
		})
		if err != nil || !out[0].Lock.Granted || drover.CodeOf(out[1].Err) != drover.CodeLeaseLost || out[2].Lock != out[0].Lock || drover.CodeOf(out[3].Err) != drover.CodeValidation ||
			out[4].Err != nil || !out[5].Lock.Granted || out[5].Lock.Token <= out[0].Lock.Token {
			t.Errorf("answers = %+v, %v", out, err)
		}
		w.audit()
	})
}

// TestTheAuditSeesRequestsOfNobody, and doctor and the admitter take them away.
func TestTheAuditSeesRequestsOfNobody(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for sql, want := range map[string]string{
			"UPDATE task_running SET lane = (SELECT lane FROM tasks WHERE id = task_id)": "would not be given back where it stands",
			"UPDATE permits SET token = 0": "with the token 0",
			"INSERT INTO permits (task_id, limit_id, number, key, weight, at, wants, token, until) SELECT task_id, 7, 1, '', 0, 1, 1, 0, 9000000000000000 FROM task_final": "the task does not run",
		} {
			l := w.running(2)
			w.settle(ok(l[1], "1"))
			w.has(l[0], 1, "a")
			w.exec(sql)
			list, err := w.Audit(t.Context(), time.Time{})
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(list, func(a engine.Audited) bool { return a.ID == "I33" })
			if a := list[i]; a.Violations == 0 || !slices.ContainsFunc(a.Examples, func(f engine.Violation) bool { return strings.Contains(f.Says, want) }) {
				t.Errorf("after %s the audit says %+v", sql, a)
			}
			if n, err := w.ReconcilePermits(t.Context(), true); err != nil {
				t.Errorf("%d, %v", n, err)
			}
			w.exec("UPDATE permits SET token = 5")
			w.exec("UPDATE task_running SET lane = (SELECT a.id FROM lanes a JOIN lanes b ON a.queue = b.queue AND a.tenant = b.tenant AND a.kind = b.kind AND a.stage = 1 JOIN tasks t ON t.lane = b.id AND t.id = task_id)")
			w.settle(ok(l[0], "1"))
			w.exec("DELETE FROM permits")
			w.audit()
		}
	})
}

func TestARunningTaskThatWaitsIsExplained(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.limit("vendor", drover.NewLimit{Max: 2})
		l := w.running(4)
		w.has(l[0], 1, "a")
		w.waits(l[1], 1, "a", 1)
		w.waits(l[2], 1, "a", 2)
		if got, err := w.lock(l[0], drover.NewLock{Number: 2, Name: "vendor", Permits: 2}); err != nil || !got.Granted {
			t.Fatalf("%+v, %v", got, err)
		}
		if got, err := w.lock(l[3], drover.NewLock{Number: 2, Name: "vendor", Permits: 2}); err != nil || got.Granted {
			t.Fatalf("%+v, %v", got, err)
		}
		w.clock.add += 10 * time.Second
		for i, want := range []string{1: "Its handler is waiting for lock a, which is held; it is 1st of 2.", 2: "it is 2nd of 2.", 3: "Its handler is waiting for 2 of semaphore vendor: 2 of 2 in use; it is 1st of 1."} {
			x, err := w.Explain(t.Context(), w.c, l[i].TaskID)
			if err != nil {
				t.Fatal(err)
			}
			if want == "" {
				if len(x.Blockers) != 0 {
					t.Errorf("who waits for nothing is explained by %+v", x.Blockers)
				}
				continue
			}
			if len(x.Blockers) != 1 || !strings.Contains(x.Message, want) || !x.Blockers[0].Primary || x.Blockers[0].Waited.Std() < 9*time.Second || x.WaitingSince.IsZero() || x.Running == nil {
				t.Fatalf("explained as %+v, want %q", x, want)
			}
			if b := x.Blockers[0]; len(b.Holders) != 1 || b.Holders[0].TaskID != l[0].TaskID || len(b.Remedies) == 0 || b.Remedies[len(b.Remedies)-1].Action != "cancel_holder" {
				t.Errorf("holders and remedies are %+v", b)
			}
		}
	})
}

// TestTasksThatNeverLockPayNothing: neither they nor the decision about them run a
// statement about what handlers ask for, but for the one that finds nothing.
func TestTasksThatNeverLockPayNothing(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		c := &counting{Driver: w.db.Driver}
		w.db.Driver = c
		w.limit("two", drover.NewLimit{Max: 2})
		c.listen()
		for _, j := range []drover.NewJob{{Kind: "free"}, {Kind: "limited", Limits: map[string]int64{"two": 1}}} {
			w.submitMany(5, j)
			w.admit()
			for {
				l := w.get(2)
				if len(l) == 0 {
					break
				}
				for _, x := range l {
					w.settle(ok(x, "1"))
				}
				w.admit()
			}
		}
		for name, n := range c.named {
			if name != "what handlers asked for of limits" && (strings.Contains(name, "handler") || strings.Contains(name, "leases") || strings.Contains(name, "parties") || strings.Contains(name, "which limits tasks wait for")) {
				t.Errorf("%q was run %d times", name, n)
			}
		}
		if c.read["what handlers asked for of limits"] != 0 || c.named["delete permits"] == 0 {
			t.Errorf("statements: %v", c.named)
		}
	})
}
