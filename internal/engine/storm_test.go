package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store/driver"
)

// scaled picks a size: SQLite has one writer, so rounds of a race find little
// there; under the race detector it is slow as well, and everything costs more.
func (w *world) scaled(postgres, sqlite int) int {
	n := postgres
	if w.db.Dialect() == driver.SQLite {
		n = sqlite
	}
	if raceDetector {
		n = max(n/3, 2)
	}
	return n
}

// server is another server process: an engine with caches of its own.
func (w *world) server() *engine.Engine {
	return engine.New(w.db, engine.Options{Jitter: func() float64 { return 0.5 }})
}

// hand is a worker with a session of its own, for one goroutine.
type hand struct {
	*engine.Engine
	c       engine.Caller
	session drover.SessionID
	number  int64
}

func (w *world) hand(e *engine.Engine) *hand {
	w.t.Helper()
	s, err := e.OpenSession(w.t.Context(), w.c, drover.NewSession{Worker: "hand", Queues: []string{"default", "cpu", "gpu"}, Slots: 1000})
	if err != nil {
		w.t.Fatal(err)
	}
	return &hand{Engine: e, c: w.c, session: s.ID}
}

func (h *hand) acquire(n int) ([]drover.Lease, error) {
	h.number++
	return h.Acquire(context.Background(), h.c, drover.Acquire{Session: h.session, Max: n, Number: h.number})
}

// settle reports outcomes, and acquires n in the same call.
func (h *hand) settle(n int, o ...drover.Outcome) ([]drover.Settled, []drover.Lease, error) {
	s := engine.Settlement{Caller: h.c, Session: h.session, Outcomes: o}
	if n > 0 {
		h.number++
		s.Acquire = &drover.Acquire{Session: h.session, Max: n, Number: h.number}
	}
	r := h.Settle(context.Background(), []engine.Settlement{s})[0]
	return r.Settled, r.Leases, r.Err
}

// all settles every lease as it says, in batches of random size and order.
func (h *hand) all(leases []drover.Lease, outcome func(l drover.Lease) drover.Outcome) error {
	leases = slices.Clone(leases)
	rand.Shuffle(len(leases), func(i, j int) { leases[i], leases[j] = leases[j], leases[i] })
	for len(leases) > 0 {
		n := min(1+rand.IntN(12), len(leases))
		var out []drover.Outcome
		for _, l := range leases[:n] {
			out = append(out, outcome(l))
		}
		leases = leases[n:]
		s, _, err := h.settle(0, out...)
		if err != nil {
			return err
		}
		for _, a := range s {
			if a.Err != nil {
				return a.Err
			}
		}
	}
	return nil
}

func (w *world) submitCopies(n int, job drover.NewJob) []drover.JobID {
	w.t.Helper()
	out, err := w.Submit(w.t.Context(), w.c, slices.Repeat([]drover.NewJob{job}, n))
	if err != nil {
		w.t.Fatal(err)
	}
	var ids []drover.JobID
	for _, o := range out {
		if o.Err != nil {
			w.t.Fatal(o.Err)
		}
		ids = append(ids, o.JobID)
	}
	return ids
}

// leasesByName sorts leases by their task's name.
func leasesByName(leases []drover.Lease) map[string][]drover.Lease {
	m := map[string][]drover.Lease{}
	for _, l := range leases {
		m[l.Name] = append(m[l.Name], l)
	}
	return m
}

// refused is nil for an error that says no to a request, as races make it.
func refused(err error, codes ...drover.Code) error {
	if err != nil && slices.Contains(codes, drover.CodeOf(err)) {
		return nil
	}
	return err
}

func TestSeveralServersReleaseAJoinOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: join\ntasks:\n  a: {run: k}\n  b: {run: k}\n  c: {run: k}\n  d: {run: k, needs: [a, b, c]}\n")
		n := w.scaled(200, 40)
		w.submitCopies(n, drover.NewJob{Pipeline: "join"})
		l := leasesByName(w.acquire(3 * n))
		h := []*hand{w.hand(w.Engine), w.hand(w.server()), w.hand(w.server())}
		for i := range h { // the leases are of one session
			h[i].session = w.session
		}
		err := together(3, func(i int) error {
			return h[i].all(l[[]string{"a", "b", "c"}[i]], func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		})
		if err != nil {
			t.Fatal(err)
		}
		w.audit()
		d := w.acquire(1000)
		if len(d) != n || len(leasesByName(d)["d"]) != n {
			t.Fatalf("%d children of %d joins can be claimed", len(d), n)
		}
		if err := h[0].all(d, func(l drover.Lease) drover.Outcome { return ok(l, "1") }); err != nil {
			t.Fatal(err)
		}
		w.audit()
		if c := w.statuses(); c[drover.Succeeded] != n {
			t.Fatalf("jobs = %v", c)
		}
	})
}

// statuses counts the tenant's jobs.
func (w *world) statuses() map[drover.Status]int {
	w.t.Helper()
	c := map[drover.Status]int{}
	q := engine.JobQuery{Limit: 500}
	for {
		jobs, err := w.Jobs(w.t.Context(), w.c, q)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, j := range jobs {
			c[j.Status]++
			q.After = j.ID
		}
		if len(jobs) < q.Limit {
			return c
		}
	}
}

func TestSeveralServersGrowAMapOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(`pipeline: grow
tasks:
  list: {run: k}
  other: {run: k}
  third: {run: k}
  one: {run: k, for_each: "${{ tasks.list.output }}"}
  two: {run: k, for_each: one, needs: [other]}
  three: {run: k, for_each: two, needs: [third, list]}
  end: {run: k, needs: [three, one]}
`)
		n := w.scaled(80, 15)
		w.submitCopies(n, drover.NewJob{Pipeline: "grow"})
		l := leasesByName(w.acquire(3 * n))
		var hands []*hand
		for range 4 {
			h := w.hand(w.server())
			h.session = w.session
			hands = append(hands, h)
		}
		err := together(4, func(i int) error {
			if i == 3 { // one that pauses and resumes, which raises the graph's version too
				for k := range w.scaled(40, 5) {
					id := l["list"][k%len(l["list"])].JobID
					for _, f := range []func(context.Context, engine.Caller, drover.JobID, engine.Request) (drover.Job, error){hands[3].Pause, hands[3].Resume} {
						if _, err := f(context.Background(), w.c, id, engine.Request{}); err != nil {
							return err
						}
					}
				}
				return nil
			}
			return hands[i].all(l[[]string{"list", "other", "third"}[i]], func(x drover.Lease) drover.Outcome {
				if x.Name == "list" {
					return ok(x, []string{"[]", "[1]", "[1,2,3]"}[int(x.TaskID[15])%3])
				}
				return ok(x, "1")
			})
		})
		if err != nil {
			t.Fatal(err)
		}
		w.audit()
		// What is left is done by several at once, too.
		if err := w.drive(hands, func(l drover.Lease) drover.Outcome { return ok(l, "1") }); err != nil {
			t.Fatal(err)
		}
		w.audit()
		if c := w.statuses(); c[drover.Succeeded] != n {
			t.Fatalf("jobs = %v", c)
		}
	})
}

// drive lets the hands work at once until nothing is left to claim.
func (w *world) drive(hands []*hand, handle func(l drover.Lease) drover.Outcome) error {
	for round := 0; ; round++ {
		var n atomic.Int64
		err := together(len(hands), func(i int) error {
			for {
				l, err := hands[i].acquire(7)
				if err != nil || len(l) == 0 {
					return err
				}
				n.Add(int64(len(l)))
				if err := hands[i].all(l, handle); err != nil {
					return err
				}
			}
		})
		if err != nil || n.Load() == 0 {
			return err
		}
	}
}

// TestOneOfSettleCancelAndReapWins lets a worker whose lease has run out report,
// while its job is cancelled and its session reaped.
func TestOneOfSettleCancelAndReapWins(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: pair\ntasks:\n  a: {run: k}\n  b: {run: k}\n  c: {run: k, needs: [a]}\n")
		short := engine.New(w.db, engine.Options{LeaseFor: 50 * time.Millisecond})
		won := map[string]int{}
		for round := range w.scaled(8, 3) {
			n := w.scaled(24, 8)
			jobs := append(w.submitCopies(n, drover.NewJob{Kind: "k"}), w.submitCopies(n/2, drover.NewJob{Pipeline: "pair"})...)
			var h *hand
			var l []drover.Lease
			for try := 0; len(l) == 0; try++ {
				h = w.hand(short) // its lease may run out before it acquires, on a busy machine
				var err error
				if l, err = h.acquire(2 * n); refused(err, drover.CodeLeaseLost) != nil || try > 20 {
					t.Fatal(err)
				}
			}
			time.Sleep(50 * time.Millisecond) // until the lease has run out
			accepted := map[drover.TaskID]bool{}
			var cancelled sync.Map
			others := []*engine.Engine{w.server(), w.server(), w.server()}
			err := together(4, func(i int) error {
				ctx := context.Background()
				switch i {
				case 0:
					for _, x := range l {
						s, _, err := h.settle(0, ok(x, "1"))
						if err != nil {
							return err
						}
						if err := refused(asError(s[0].Err), drover.CodeLeaseLost); err != nil {
							return err
						}
						accepted[x.TaskID] = s[0].Err == nil
					}
				case 1:
					for k := range jobs {
						id := jobs[len(jobs)-1-k]
						if round%2 == 0 && k%3 == 0 {
							continue
						}
						_, err := others[0].Cancel(ctx, w.c, id, engine.Request{})
						if refused(err, drover.CodeInvalidTransition) != nil {
							return err
						}
						if err == nil {
							cancelled.Store(id, true)
						}
					}
				case 2:
					for range 5 {
						if _, err := others[1].ReapOnce(ctx); err != nil {
							return err
						}
						time.Sleep(2 * time.Millisecond)
					}
				case 3:
					for range 5 {
						if _, err := others[2].SweepOnce(ctx); err != nil {
							return err
						}
						if _, err := others[2].AdmitOnce(ctx); err != nil {
							return err
						}
						time.Sleep(2 * time.Millisecond)
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			w.quieten()
			for id, ok := range accepted {
				x, err := w.Task(t.Context(), w.c, id)
				if err != nil {
					t.Fatal(err)
				}
				if ok && x.Status != drover.Succeeded {
					t.Errorf("task %s: its success was accepted, and it is %s", id, x.Status)
				}
				won[fmt.Sprintf("success accepted %v, then %s", ok, x.Status)]++
			}
			w.work(func(l drover.Lease) drover.Outcome {
				if _, was := cancelled.Load(l.JobID); was {
					t.Errorf("task %s of job %s was claimed after the cancel had returned", l.TaskID, l.JobID)
				}
				return ok(l, "1")
			})
			w.quieten()
			for _, id := range jobs {
				if j := w.job(id); !j.Status.Final() {
					t.Fatalf("job %s is %s: %+v", id, j.Status, j.Tasks)
				}
			}
			w.audit()
		}
		t.Log(won)
	})
}

// quieten runs the loops until they find nothing to do.
func (w *world) quieten() {
	w.t.Helper()
	for range 100 {
		n := w.step("reap", w.ReapOnce) + w.step("timers", w.TimersOnce) + w.step("admit", w.AdmitOnce) + w.step("sweep", w.SweepOnce) + w.step("expire", w.ExpireOnce)
		if n == 0 {
			return
		}
	}
	w.t.Fatal("the loops find something to do for ever")
}

func TestNothingOfAHeldJobIsClaimed(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: wide\ninput: {type: object}\ntasks:\n  m: {run: k, for_each: \"${{ input.list }}\"}\n")
		list, err := json.Marshal(map[string]any{"list": make([]int, w.scaled(60, 20))})
		if err != nil {
			t.Fatal(err)
		}
		n := w.scaled(16, 6)
		ids := append(w.submitCopies(n, drover.NewJob{Pipeline: "wide", Input: list}), w.submitCopies(3*n, drover.NewJob{Kind: "k"})...)
		rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		var held sync.Map
		var over atomic.Bool
		var mu sync.Mutex
		var got []drover.Lease
		var hands []*hand
		holder := w.server()
		for range 4 {
			h := w.hand(w.server())
			h.session = w.session
			hands = append(hands, h)
		}
		err = together(5, func(i int) error {
			if i == 4 {
				defer over.Store(true)
				for k, id := range ids {
					var err error
					if k%3 == 0 {
						_, err = holder.Cancel(context.Background(), w.c, id, engine.Request{})
					} else {
						_, err = holder.Pause(context.Background(), w.c, id, engine.Request{})
					}
					if err != nil {
						return err
					}
					held.Store(id, true)
				}
				return nil
			}
			for k := 0; ; k++ {
				before := map[drover.JobID]bool{}
				held.Range(func(id, _ any) bool { before[id.(drover.JobID)] = true; return true })
				ended := over.Load()
				l, err := hands[i].Acquire(context.Background(), w.c, drover.Acquire{Session: w.session, Max: 1 + i, Number: int64(i*100_000 + k)})
				if err != nil {
					return err
				}
				for _, x := range l {
					if before[x.JobID] {
						return fmt.Errorf("task %s of job %s was claimed after its hold had returned", x.TaskID, x.JobID)
					}
				}
				mu.Lock()
				got = append(got, l...)
				mu.Unlock()
				if ended {
					return nil
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		w.quieten()
		w.audit()
		if l := w.acquire(100); len(l) > 0 {
			t.Fatalf("%d tasks of held jobs can be claimed", len(l))
		}
		t.Logf("%d tasks of %d jobs were claimed before the holds", len(got), len(ids))
		if err := hands[0].all(got, func(l drover.Lease) drover.Outcome { return ok(l, "1") }); err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			if _, err := w.Resume(t.Context(), w.c, id, engine.Request{}); refused(err, drover.CodeInvalidTransition) != nil {
				t.Fatal(err)
			}
		}
		w.quieten()
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		if c := w.statuses(); c[drover.Succeeded]+c[drover.Cancelled] != len(ids) {
			t.Fatalf("jobs = %v", c)
		}
		w.audit()
	})
}

func TestOneReplayRequestAtOnceIsCarriedOutOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.submit(drover.NewJob{Kind: "k"})
		l := w.acquire(1)
		w.settle(ok(l[0], "1"))
		servers := []*engine.Engine{w.server(), w.server(), w.server()}
		err := together(3, func(k int) error {
			_, err := servers[k].Replay(context.Background(), w.c, l[0].TaskID, engine.ReplayRequest{Request: engine.Request{ID: "one"}})
			return err
		})
		if err != nil {
			t.Fatalf("the same request three times at once: %v", err)
		}
		if x, err := w.Task(t.Context(), w.c, l[0].TaskID); err != nil || x.Generation != 2 {
			t.Fatalf("task = %+v, %v", x, err)
		}
		w.audit()
	})
}

// TestStorm lets several servers do everything at once: claims, outcomes of all
// kinds, cancels, pauses, resumes, replays and every loop. In the end each job
// can be brought to its end, and the database tells one story.
func TestStorm(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		w.apply(`pipeline: storm
defaults: {retry: {max_attempts: 3, backoff: {initial: 1ms, max: 2ms}}}
tasks:
  list: {run: k}
  other: {run: k}
  one: {run: k, for_each: "${{ tasks.list.output }}"}
  two: {run: k, for_each: one, needs: [other]}
  end: {run: k, needs: [two]}
`)
		short := engine.Options{LeaseFor: 150 * time.Millisecond, CancelGrace: 20 * time.Millisecond}
		jobs := append(w.submitCopies(w.scaled(14, 6), drover.NewJob{Pipeline: "storm"}), w.submitCopies(w.scaled(14, 6), drover.NewJob{Kind: "k", Retry: &drover.Retry{MaxAttempts: 2, Initial: drover.Duration(time.Millisecond)}})...)
		var tasks sync.Map // seen by somebody
		steps := w.scaled(120, 25)
		storm := func(i int) error {
			ctx := context.Background()
			rnd := rand.New(rand.NewPCG(seed, uint64(i)))
			e := engine.New(w.db, short)
			var h *hand
			var mine []drover.Lease
			open := func() error {
				s, err := e.OpenSession(ctx, w.c, drover.NewSession{Worker: fmt.Sprintf("storm-%d", i), Queues: []string{"default"}, Slots: 100})
				h, mine = &hand{Engine: e, c: w.c, session: s.ID}, nil
				return err
			}
			if err := open(); err != nil {
				return err
			}
			lost := func(err error) error { // the lease ran out: a new session, as a worker does
				if drover.CodeOf(err) == drover.CodeLeaseLost {
					return open()
				}
				return err
			}
			for range steps {
				id := jobs[rnd.IntN(len(jobs))]
				var err error
				switch k := rnd.IntN(100); {
				case k < 30:
					var l []drover.Lease
					l, err = h.acquire(1 + rnd.IntN(6))
					mine = append(mine, l...)
					for _, x := range l {
						tasks.Store(x.TaskID, true)
					}
					err = lost(err)
				case k < 60:
					n := min(len(mine), rnd.IntN(5))
					var out []drover.Outcome
					for _, l := range mine[:n] {
						out = append(out, anyOutcome(rnd, l))
					}
					if n > 0 && rnd.IntN(4) == 0 {
						out = append(out, out[0])
					}
					mine = mine[n:]
					var l []drover.Lease
					_, l, err = h.settle(rnd.IntN(3), out...)
					mine = append(mine, l...)
				case k < 64:
					r := drover.Renewal{Acquired: h.number}
					for _, l := range mine {
						if rnd.IntN(5) > 0 {
							r.Held = append(r.Held, drover.Held{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion})
						}
					}
					_, err = h.Renew(ctx, h.c, h.session, r)
					err = lost(err)
				case k < 66:
					if err = h.CloseSession(ctx, h.c, h.session); err == nil {
						err = open()
					}
				case k < 69:
					_, err = e.Cancel(ctx, w.c, id, engine.Request{})
				case k < 74:
					_, err = e.Pause(ctx, w.c, id, engine.Request{})
				case k < 79:
					_, err = e.Resume(ctx, w.c, id, engine.Request{})
				case k < 85:
					tasks.Range(func(x, _ any) bool {
						if rnd.IntN(3) > 0 {
							return true
						}
						_, err = e.Replay(ctx, w.c, x.(drover.TaskID), engine.ReplayRequest{})
						return false
					})
				case k < 89:
					_, err = e.ReapOnce(ctx)
				case k < 93:
					_, err = e.TimersOnce(ctx)
				case k < 97:
					_, err = e.AdmitOnce(ctx)
				default:
					_, err = e.SweepOnce(ctx)
				}
				if err := refused(err, drover.CodeInvalidTransition); err != nil {
					return err
				}
			}
			return nil
		}
		// What must hold does so at every moment, not only when it is quiet.
		over := make(chan struct{})
		var looked, auditing sync.WaitGroup
		looked.Add(1)
		auditing.Go(func() {
			for n := 0; ; n++ {
				checkInvariants(t, w)
				if n == 0 {
					looked.Done()
				}
				select {
				case <-over:
					return
				default:
				}
			}
		})
		err := together(6, storm)
		looked.Wait()
		close(over)
		auditing.Wait()
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond) // every lease runs out
		w.open()                           // on a busy machine this worker's own, too
		w.quieten()
		w.audit()
		// What is left can be brought to its end.
		for _, id := range jobs {
			if _, err := w.Resume(t.Context(), w.c, id, engine.Request{}); refused(err, drover.CodeInvalidTransition) != nil {
				t.Fatal(err)
			}
		}
		for range 30 {
			time.Sleep(3 * time.Millisecond)
			w.quieten()
			w.work(func(l drover.Lease) drover.Outcome { return ok(l, `[1, 2]`) })
		}
		w.clock.add += time.Minute // the grace of cancels, and the longest backoff
		w.open()
		for range 10 {
			w.quieten()
			w.work(func(l drover.Lease) drover.Outcome { return ok(l, `[1, 2]`) })
			w.clock.add += time.Second
		}
		w.audit()
		for _, id := range jobs {
			if j := w.job(id); !j.Status.Final() {
				t.Errorf("job %s is %s and nothing moves it: %+v paused %v cancelling %v", id, j.Status, j.Tasks, j.Paused, j.Cancelling)
			}
		}
		t.Logf("jobs: %v", w.statuses())
	})
}

// anyOutcome is how a handler may end, most of the time well.
func anyOutcome(rnd *rand.Rand, l drover.Lease) drover.Outcome {
	switch o := (drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion}); rnd.IntN(12) {
	case 0, 1:
		return failed(l, drover.ClassRetryable, "again")
	case 2:
		if rnd.IntN(3) == 0 {
			return failed(l, drover.ClassPermanent, "no")
		}
		return failed(l, drover.ClassThrottled, "slow down")
	case 3:
		o.Status, o.RetryAfter = drover.OutcomeSnoozed, drover.Duration(time.Millisecond)
		return o
	case 4:
		o.Status = drover.OutcomeReleased
		return o
	case 5:
		o.Status = drover.OutcomeCancelled
		return o
	}
	return ok(l, []string{"[]", "[1]", "[1, 2, 3]", "[1]"}[rnd.IntN(4)])
}

// asError makes a nil *drover.Error a nil error.
func asError(err *drover.Error) error {
	if err == nil {
		return nil
	}
	return err
}
