package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/driver"
)

// together runs f n times at once and returns the first error.
func together(n int, f func(i int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, n)
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = f(i)
		})
	}
	close(start)
	wg.Wait()
	return errors.Join(errs...)
}

// rounds is how often a race is tried. On SQLite transactions take turns, and
// there is less to find: fewer where they are slow.
func (w *world) rounds(n int) int {
	if raceDetector && w.db.Dialect() == driver.SQLite {
		return max(n/8, 1)
	}
	return n
}

func (w *world) submitMany(n int, j drover.NewJob) (ids []drover.JobID) {
	w.t.Helper()
	out, err := w.Submit(w.t.Context(), w.c, slices.Repeat([]drover.NewJob{j}, n))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, s := range out {
		if s.Err != nil {
			w.t.Fatal(s.Err)
		}
		ids = append(ids, s.JobID)
	}
	return ids
}

// settleBy settles for a session, also outside the test's goroutine.
func (w *world) settleBy(s drover.SessionID, o ...drover.Outcome) ([]drover.Settled, error) {
	r := w.Settle(context.Background(), []engine.Settlement{{Caller: w.c, Session: s, Outcomes: o}})
	return r[0].Settled, r[0].Err
}

// accepted settles and wants every outcome accepted.
func (w *world) accepted(o ...drover.Outcome) error {
	s, err := w.settleBy(w.session, o...)
	for _, a := range s {
		if a.Err != nil {
			return a.Err
		}
	}
	return err
}

// finish runs the loops and the tasks until nothing is left to do.
func (w *world) finish(handle func(l drover.Lease) drover.Outcome) (names []string) {
	w.t.Helper()
	for {
		n := 0
		for _, l := range []struct {
			name string
			f    func(context.Context) (int, error)
		}{{"reap", w.ReapOnce}, {"expire", w.ExpireOnce}, {"sweep", w.SweepOnce}, {"timers", w.TimersOnce}, {"admit", w.AdmitOnce}} {
			n += w.step(l.name, l.f)
		}
		ran := w.work(handle)
		names = append(names, ran...)
		if n+len(ran) == 0 {
			return names
		}
	}
}

func succeed(l drover.Lease) drover.Outcome { return ok(l, "1") }

func byJob(leases []drover.Lease) map[drover.JobID][]drover.Lease {
	m := map[drover.JobID][]drover.Lease{}
	for _, l := range leases {
		m[l.JobID] = append(m[l.JobID], l)
	}
	return m
}

// all claims until nothing is left.
func (w *world) all() (list []drover.Lease) {
	w.t.Helper()
	for {
		l := w.acquire(1000)
		if list = append(list, l...); len(l) == 0 {
			return list
		}
	}
}

func TestNoTaskIsClaimedTwiceAndNoneIsLost(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		n := w.rounds(2000)
		w.submitMany(n, drover.NewJob{Kind: "a"})
		var mu sync.Mutex
		var left atomic.Int64
		left.Store(int64(n))
		seen := map[drover.TaskID]int{}
		err := together(8, func(i int) error {
			for number := int64(1); left.Load() > 0; number++ {
				l, err := w.Acquire(context.Background(), w.c, drover.Acquire{Session: w.session, Max: 5 + 5*i, Number: number})
				if err != nil {
					return err
				}
				left.Add(-int64(len(l)))
				var out []drover.Outcome
				mu.Lock()
				for _, x := range l {
					seen[x.TaskID]++
					out = append(out, ok(x, "1"))
				}
				mu.Unlock()
				if err := w.accepted(out...); err != nil {
					return err
				}
				if number > 10_000 {
					return fmt.Errorf("%d tasks are never handed out", left.Load())
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for id, k := range seen {
			if k != 1 {
				t.Errorf("task %s was claimed %d times", id, k)
			}
		}
		if l := w.acquire(10); len(seen) != n || len(l) != 0 {
			t.Errorf("%d of %d tasks were claimed; %d are left", len(seen), n, len(l))
		}
		checkInvariants(t, w)
	})
}

func TestParentsThatEndTogetherReleaseTheirChildOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: join\ntasks:\n  a: {run: k}\n  b: {run: k}\n  c: {run: k, needs: [a, b]}\n")
		ids := w.submitMany(w.rounds(200), drover.NewJob{Pipeline: "join"})
		parents := byJob(w.all())
		for _, id := range ids {
			l := parents[id]
			if len(l) != 2 {
				t.Fatalf("leases = %+v", l)
			}
			if err := together(2, func(i int) error { return w.accepted(ok(l[i], "1")) }); err != nil {
				t.Fatal(err)
			}
		}
		children := w.all()
		of := byJob(children)
		for _, id := range ids {
			if c := of[id]; len(c) != 1 || c[0].Name != "c" {
				t.Fatalf("after both parents: %+v", c)
			}
		}
		for c := range slices.Chunk(children, 500) {
			var out []drover.Outcome
			for _, l := range c {
				out = append(out, ok(l, "1"))
			}
			if err := w.accepted(out...); err != nil {
				t.Fatal(err)
			}
		}
		for _, id := range ids {
			w.want(id, drover.Succeeded)
		}
		checkInvariants(t, w)
	})
}

// The element-wise child waits for its element and for another task. That one
// ends while the map expands, or while the first elements end.
func TestAMapThatGrowsMissesNoParent(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: grow\ntasks:\n  list: {run: k}\n  other: {run: k}\n  one: {run: k, for_each: \"${{ tasks.list.output }}\"}\n" +
			"  two: {run: k, for_each: one, needs: [other]}\n  three: {run: k, for_each: two}\n  end: {run: k, needs: [three, one]}\n")
		lists := []string{"[1,2,3]", "[]", "[1]", "[1,2]"}
		ids := w.submitMany(w.rounds(104), drover.NewJob{Pipeline: "grow"})
		first := byJob(w.all())
		var late []drover.Lease // the other parent of every second job
		for n, id := range ids {
			l := first[id]
			slices.SortFunc(l, func(a, b drover.Lease) int { return len(a.Name) - len(b.Name) })
			var err error
			if n%2 == 0 {
				err = together(2, func(i int) error { return w.accepted(ok(l[i], []string{lists[n/2%4], "1"}[i])) })
			} else {
				late = append(late, l[1])
				err = w.accepted(ok(l[0], lists[n/2%4]))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		elements := byJob(w.all())
		for _, other := range late {
			l := append(elements[other.JobID], other)
			delete(elements, other.JobID)
			if err := together(len(l), func(i int) error { return w.accepted(ok(l[i], "1")) }); err != nil {
				t.Fatal(err)
			}
		}
		for _, l := range elements {
			for _, x := range l {
				if err := w.accepted(ok(x, "1")); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.finish(succeed)
		for n, id := range ids {
			elements := []int{3, 0, 1, 2}[n/2%4]
			if j := w.want(id, drover.Succeeded); j.Tasks.Succeeded != 3+3*elements {
				t.Fatalf("tasks of job %d = %+v", n, j.Tasks)
			}
		}
		for id, n := range w.entered {
			if n != 1 {
				t.Errorf("task %s was entered %d times", id, n)
			}
		}
		checkInvariants(t, w)
	})
}

// A job that is being cancelled ends what its workers give back; a worker that
// missed the answer asks again in its own words.
func TestARepeatInACancelledJobGetsTheFirstAnswer(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: pair\ntasks:\n  a: {run: k}\n  b: {run: k}\n")
		for _, status := range []string{drover.OutcomeSnoozed, drover.OutcomeReleased, drover.OutcomeCancelled, drover.OutcomeFailed, drover.OutcomeSucceeded} {
			for _, j := range []drover.NewJob{{Kind: "k"}, {Pipeline: "pair"}} {
				id := w.submit(j)
				var out []drover.Outcome
				for _, l := range w.all() {
					out = append(out, drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: status})
				}
				if _, err := w.Cancel(t.Context(), w.c, id, engine.Request{}); err != nil {
					t.Fatal(err)
				}
				first := w.settle(out...)
				again := w.settle(out...)
				for i, s := range first {
					if s.Err != nil || !s.Status.Final() || again[i].Err != nil || again[i].Status != s.Status {
						t.Errorf("%s: first %+v, then %+v", status, s, again[i])
					}
				}
				other := out[0]
				if other.Status = drover.OutcomeSucceeded; status == drover.OutcomeSucceeded {
					other.Status = drover.OutcomeSnoozed
				}
				if s := w.settle(other); drover.CodeOf(s[0].Err) != drover.CodeLeaseLost {
					t.Errorf("%s after %s: %+v", other.Status, status, s[0])
				}
			}
		}
		checkInvariants(t, w)
	})
}

func TestTheSameSettleFromTwoPlacesIsAnsweredAlike(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		n := w.rounds(300)
		w.submitMany(n, drover.NewJob{Kind: "a"})
		var out []drover.Outcome
		want := map[drover.TaskID]drover.Status{}
		for i, l := range w.all() {
			held := drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion}
			switch i % 5 {
			case 0:
				held = failed(l, drover.ClassRetryable, "again")
				want[l.TaskID] = drover.RetryWait
			case 1:
				held = failed(l, drover.ClassPermanent, "no")
				want[l.TaskID] = drover.Failed
			case 2:
				held.Status, held.RetryAfter = drover.OutcomeSnoozed, drover.Duration(time.Hour)
				want[l.TaskID] = drover.RetryWait
			case 3:
				held.Status = drover.OutcomeReleased
				want[l.TaskID] = drover.Ready
			default:
				held = ok(l, "1")
				want[l.TaskID] = drover.Succeeded
			}
			out = append(out, held)
		}
		if len(out) != n {
			t.Fatalf("%d leases", len(out))
		}
		err := together(4, func(i int) error {
			list := slices.Clone(out)
			if i%2 == 1 {
				slices.Reverse(list)
			}
			for c := range slices.Chunk(list, []int{n, n, 37, 50}[i]) {
				s, err := w.settleBy(w.session, c...)
				if err != nil {
					return err
				}
				for k, a := range s {
					if a.Err != nil || a.TaskID != c[k].TaskID || a.Status != want[a.TaskID] {
						return fmt.Errorf("answer %+v, want %s", a, want[a.TaskID])
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for id := range want {
			a, err := w.Attempts(t.Context(), w.c, id)
			if err != nil || len(a) != 1 {
				t.Fatalf("attempts of a task settled four times = %+v, %v", a, err)
			}
		}
		checkInvariants(t, w)
	})
}

// A job is cancelled while its worker, whose session has expired, reports, and
// the reaper takes its tasks back.
func TestOneOfCancelSuccessAndLossWins(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: pair\ntasks:\n  a: {run: k}\n  b: {run: k}\n  c: {run: k, needs: [a, b]}\n")
		for range 3 {
			n := w.rounds(24)
			solo := w.submitMany(n, drover.NewJob{Kind: "a"})
			pairs := w.submitMany(n, drover.NewJob{Pipeline: "pair"})
			leases := w.all()
			gone := w.session
			w.clock.add += 31 * time.Second
			w.open()
			cancelled := map[drover.JobID]bool{}
			won := map[drover.TaskID]bool{}
			var again []drover.Lease
			err := together(4, func(i int) error {
				switch i {
				case 0, 1:
					for k, l := range leases {
						if k%2 != i {
							continue
						}
						s, err := w.settleBy(gone, ok(l, "1"))
						if err != nil {
							return err
						}
						switch {
						case s[0].Err == nil && s[0].Status == drover.Succeeded:
							if i == 0 {
								won[l.TaskID] = true
							}
						case drover.CodeOf(s[0].Err) != drover.CodeLeaseLost:
							return fmt.Errorf("answer %+v", s[0])
						}
					}
				case 2:
					for k := range solo {
						for _, id := range []drover.JobID{solo[k], pairs[len(pairs)-1-k]} {
							_, err := w.Cancel(context.Background(), w.c, id, engine.Request{})
							switch {
							case err == nil:
								cancelled[id] = true
							case !errors.Is(err, drover.ErrNotAllowed):
								return err
							}
						}
					}
				default:
					for range 5 {
						if _, err := w.ReapOnce(context.Background()); err != nil {
							return err
						}
						if _, err := w.AdmitOnce(context.Background()); err != nil {
							return err
						}
						l, err := w.Acquire(context.Background(), w.c, drover.Acquire{Session: w.session, Max: 20, Number: 1})
						if err != nil {
							return err
						}
						again = append(again, l...)
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range again { // it is theirs now, and late words of the first worker change nothing
				first := l
				first.LeaseVersion -= 2
				for _, o := range []drover.Outcome{failed(first, drover.ClassPermanent, "late"), ok(first, "1")} {
					if s, err := w.settleBy(gone, o); err != nil || drover.CodeOf(s[0].Err) != drover.CodeLeaseLost {
						t.Errorf("a late word: %+v, %v", s, err)
					}
				}
				if err := w.accepted(ok(l, "2")); err != nil {
					t.Errorf("task %s, given again: %v", l.TaskID, err)
				}
			}
			w.finish(func(l drover.Lease) drover.Outcome {
				if cancelled[l.JobID] {
					t.Errorf("task %s was claimed after its job was cancelled", l.TaskID)
				}
				return ok(l, "1")
			})
			for k, l := range leases {
				x, err := w.Task(t.Context(), w.c, l.TaskID)
				if err != nil {
					t.Fatal(err)
				}
				if k%2 == 0 && won[l.TaskID] != (x.Status == drover.Succeeded && x.LeaseVersion == l.LeaseVersion) {
					t.Errorf("its worker was told %v, the task is %+v", won[l.TaskID], x)
				}
			}
			for _, id := range append(solo, pairs...) {
				j := w.job(id)
				if j.Status != drover.Succeeded && (j.Status != drover.Cancelled || !cancelled[id]) {
					t.Errorf("job is %s, cancelled %v: %+v", j.Status, cancelled[id], j)
				}
				w.gapless(id)
			}
		}
		checkInvariants(t, w)
	})
}

func TestNothingOfAPausedJobIsClaimed(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: wide\ninput: {type: object}\ntasks:\n  m: {run: k, for_each: \"${{ input.list }}\"}\n  n: {run: k, for_each: m}\n")
		list, err := json.Marshal(map[string]any{"list": make([]int, w.rounds(300))})
		if err != nil {
			t.Fatal(err)
		}
		id := w.submit(drover.NewJob{Pipeline: "wide", Input: list})
		for range 3 {
			var paused atomic.Bool
			var mu sync.Mutex
			var late []drover.Lease
			err = together(5, func(i int) error {
				if i == 0 {
					_, err := w.Pause(context.Background(), w.c, id, engine.Request{})
					paused.Store(true)
					return err
				}
				for k, stop := 0, 3; k < stop; k++ {
					after := paused.Load()
					if !after {
						stop = k + 4
					}
					l, err := w.Acquire(context.Background(), w.c, drover.Acquire{Session: w.session, Max: 2, Number: int64(i*10000 + k)})
					if err != nil {
						return err
					}
					mu.Lock()
					if after {
						late = append(late, l...)
					}
					mu.Unlock()
					for _, x := range l {
						if err := w.accepted(ok(x, "1")); err != nil { // which releases the next, held or not
							return err
						}
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			w.step("sweep", w.SweepOnce)
			w.step("admit", w.AdmitOnce)
			if late = append(late, w.all()...); len(late) > 0 {
				t.Fatalf("%d tasks were claimed after Pause had returned", len(late))
			}
			checkInvariants(t, w)
			if _, err := w.Resume(t.Context(), w.c, id, engine.Request{}); err != nil {
				t.Fatal(err)
			}
		}
		w.finish(succeed)
		w.want(id, drover.Succeeded)
		checkInvariants(t, w)
	})
}

func TestTwoReplaysAtOnceOpenOneGeneration(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: line\ntasks:\n  a: {run: k, retry: {max_attempts: 1}}\n  b: {run: k, needs: [a]}\n")
		n := w.rounds(16)
		ids := append(w.submitMany(n, drover.NewJob{Kind: "a", Retry: &drover.Retry{MaxAttempts: 1}}), w.submitMany(n, drover.NewJob{Pipeline: "line"})...)
		dead := w.all()
		for _, l := range dead {
			w.settle(failed(l, drover.ClassRetryable, "no"))
		}
		var took atomic.Int64
		for _, l := range dead {
			err := together(2, func(int) error {
				_, err := w.Replay(context.Background(), w.c, l.TaskID, engine.ReplayRequest{})
				if errors.Is(err, drover.ErrNotAllowed) {
					return nil
				}
				took.Add(1)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if took.Load() != int64(len(dead)) {
			t.Errorf("%d replays of %d dead letters were accepted", took.Load(), len(dead))
		}
		for id, again := range byJob(w.all()) {
			if len(again) != 1 || again[0].Generation != 2 {
				t.Fatalf("after two replays of job %s: %+v", id, again)
			}
			w.settle(ok(again[0], "1"))
		}
		w.finish(succeed)
		for _, id := range ids {
			if j := w.want(id, drover.Succeeded); j.Run != 2 {
				t.Errorf("run %d", j.Run)
			}
		}
		checkInvariants(t, w)
	})
}

func TestManySubmitsOfOneKeyMakeOneJob(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		got := make([]drover.Submitted, 100)
		servers := []*engine.Engine{w.Engine, w.server(), w.server()}
		err := together(len(got), func(i int) error {
			out, err := servers[i%len(servers)].Submit(context.Background(), w.c, []drover.NewJob{{Kind: "a", Input: json.RawMessage(`{"x":1}`), IdempotencyKey: "one"}})
			if err == nil {
				got[i] = out[0]
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		made := 0
		for _, s := range got {
			if s.Err != nil || s.JobID != got[0].JobID || s.Status != drover.Pending {
				t.Fatalf("answers %+v and %+v for one key", got[0], s)
			}
			if !s.Replayed {
				made++
			}
		}
		if l := w.all(); made != 1 || len(l) != 1 {
			t.Errorf("%d answers say that they made the job; %d tasks", made, len(l))
		}
		checkInvariants(t, w)
	})
}

// Two workers settle while their sessions are renewed, forget leases, and are
// closed: whatever comes first, every task ends once, and nobody is told two things.
func TestSessionsAreRenewedAndClosedWhileTheySettle(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: line\ntasks:\n  a: {run: k}\n  b: {run: k, needs: [a]}\n")
		n := w.rounds(80)
		ids := append(w.submitMany(n, drover.NewJob{Kind: "a"}), w.submitMany(n, drover.NewJob{Pipeline: "line"})...)
		one := w.session
		mine := w.acquire(n)
		w.open()
		two := w.session
		theirs := w.acquire(n)
		var mu sync.Mutex
		won := map[drover.TaskID]int{}
		settle := func(s drover.SessionID, leases []drover.Lease) error {
			for c := range slices.Chunk(leases, 4) {
				var out []drover.Outcome
				for _, l := range c {
					out = append(out, ok(l, "1"))
				}
				answers, err := w.settleBy(s, out...)
				if err != nil {
					return err
				}
				for _, a := range answers {
					if a.Err != nil && a.Err.Code != drover.CodeLeaseLost {
						return a.Err
					}
					if a.Err == nil {
						mu.Lock()
						won[a.TaskID]++
						mu.Unlock()
					}
				}
			}
			return nil
		}
		held := func(leases []drover.Lease) (list []drover.Held) {
			for _, l := range leases {
				list = append(list, drover.Held{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion})
			}
			return list
		}
		renew := func(s drover.SessionID, acquired int64, leases []drover.Lease) error {
			_, err := w.Renew(context.Background(), w.c, s, drover.Renewal{Held: held(leases), Acquired: acquired})
			if drover.CodeOf(err) == drover.CodeLeaseLost {
				return nil // it was closed
			}
			return err
		}
		err := together(6, func(i int) error {
			switch i {
			case 0:
				return settle(one, mine[:3*n/4]) // it is closed with the rest
			case 1:
				return settle(two, theirs)
			case 2:
				for range 6 {
					if err := renew(one, 1, mine); err != nil {
						return err
					}
				}
			case 3: // it has forgotten the last third
				for range 6 {
					if err := renew(two, 2, theirs[:2*len(theirs)/3]); err != nil {
						return err
					}
				}
			case 4:
				for try, k := 0, 0; k < n/2 && try < 10_000; try++ { // until half of it has been settled
					time.Sleep(time.Millisecond)
					mu.Lock()
					k = len(won)
					mu.Unlock()
				}
				return w.CloseSession(context.Background(), w.c, one)
			default:
				for range 10 {
					if _, err := w.AdmitOnce(context.Background()); err != nil {
						return err
					}
					if _, err := w.ReapOnce(context.Background()); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		checkInvariants(t, w)
		ran := w.finish(func(l drover.Lease) drover.Outcome {
			if won[l.TaskID] > 0 {
				t.Errorf("task %s was given out again after its success", l.TaskID)
			}
			if l.Attempt != 1 {
				t.Errorf("a lease given back used up an attempt: %+v", l)
			}
			return ok(l, "1")
		})
		if len(ran)+len(won) != 3*n {
			t.Errorf("%d successes were reported for %d tasks", len(ran)+len(won), 3*n)
		}
		for _, id := range ids {
			w.want(id, drover.Succeeded)
		}
		checkInvariants(t, w)
	})
}

// TestNumbersAreMadeOneAtATime: every new queue and lane wants the next number,
// so that of many who want one at once all but one would have to try again, and
// some of them too often.
func TestNumbersAreMadeOneAtATime(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		var inside atomic.Int32
		err := together(8, func(int) error {
			_, err := w.Number(t.Context(), func(tx store.Tx) (int32, error) {
				n := inside.Add(1)
				defer inside.Add(-1)
				if _, err := store.QueueNames(t.Context(), tx); err != nil {
					return 0, err
				}
				if n > 1 {
					return 0, fmt.Errorf("%d make a number", n)
				}
				return n, nil
			})
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}
