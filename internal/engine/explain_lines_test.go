package engine_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
)

// known lets tasks of a kind run for a time, so that something is known of such.
func (w *world) known(kind, queue string, n int, run time.Duration) {
	w.t.Helper()
	for range n {
		w.submit(drover.NewJob{Kind: kind, Queue: queue})
		l := w.one()
		w.passing(run, l)
		w.settle(ok(l, "1"))
	}
}

// TestALimitsLineIsThatOfAllQueuesClassesAndLanes: whoever goes first for a semaphore
// is ahead of a task, in whatever queue, class or lane.
func TestALimitsLineIsThatOfAllQueuesClassesAndLanes(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.limit("shared", drover.NewLimit{Max: 1})
		job := func(kind, queue string, class drover.Class) drover.JobID {
			return w.submit(drover.NewJob{Kind: kind, Queue: queue, Class: class, Limits: map[string]int64{"shared": 1}})
		}
		job("k", "cpu", drover.Normal)
		if got := w.get(1); len(got) != 1 {
			t.Fatalf("%d leases", len(got))
		}
		job("k", "cpu", drover.Urgent)
		job("k", "cpu", drover.Urgent)
		job("k", "cpu", drover.Normal)
		job("other", "default", drover.Normal)
		last := job("another", "default", drover.Normal)
		w.admit()
		x := w.why(last, "another")
		if b := x.Blockers[0]; blockerCodes(x) != "lock_held" || b.Subject.Position != 5 || b.Subject.Queued != 5 || b.Subject.MoreAhead {
			t.Errorf("%s: %+v", blockerCodes(x), b)
		}
	})
}

// TestAHigherClassIsSeenBeforeIt: a task of a lower class waits for it, though its own
// line comes after that.
func TestAHigherClassIsSeenBeforeIt(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		one := must(w.OpenSession(ctx, w.c, drover.NewSession{Worker: "v", Queues: []string{"one"}, Slots: 1}))
		w.limit("wide", drover.NewLimit{Max: 100})
		job := func(class drover.Class) drover.JobID {
			return w.submit(drover.NewJob{Kind: "k", Queue: "one", Class: class, Limits: map[string]int64{"wide": 1}})
		}
		job(drover.Normal)
		w.admit()
		if l := must(w.Acquire(ctx, w.c, drover.Acquire{Session: one.ID, Max: 1, Number: 1})); len(l) != 1 {
			t.Fatalf("%d leases", len(l))
		}
		job(drover.Urgent)
		x := w.why(job(drover.Normal), "k")
		if b := x.Blockers[0]; blockerCodes(x) != "priority" || !strings.Contains(b.Message, "of class urgent") {
			t.Errorf("%s: %+v", blockerCodes(x), x.Blockers)
		}
	})
}

// TestAPlaceCountsThoseBehindIt of its own lane too.
func TestAPlaceCountsThoseBehindIt(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		one := must(w.OpenSession(ctx, w.c, drover.NewSession{Worker: "v", Queues: []string{"one"}, Slots: 1}))
		ids := w.submitMany(5, drover.NewJob{Kind: "k", Queue: "one"})
		if l := must(w.Acquire(ctx, w.c, drover.Acquire{Session: one.ID, Max: 1, Number: 1})); len(l) != 1 {
			t.Fatalf("%d leases", len(l))
		}
		var said []string
		for _, id := range ids {
			if x := w.why(id, "k"); x.Status == drover.Queued {
				b := x.Blockers[0]
				said = append(said, fmt.Sprintf("%d/%d", b.Subject.Position, b.Subject.Queued))
				if strings.Contains(b.Message, "more than") {
					t.Errorf("%s", b.Message)
				}
			}
		}
		if got := strings.Join(said, " "); got != "1/4 2/4 3/4 4/4" {
			t.Errorf("places %s", got)
		}
	})
}

// TestALongLineIsForecastWhole: beyond the places that are told the forecast still is
// that of the task, and where nobody counts any more there is none.
func TestALongLineIsForecastWhole(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.known("k", "cpu", 5, 10*time.Second)
		w.limit("s", drover.NewLimit{Max: 1})
		limited := drover.NewJob{Kind: "k", Queue: "cpu", Limits: map[string]int64{"s": 1}}
		w.submit(limited)
		if got := w.get(1); len(got) != 1 {
			t.Fatalf("%d leases", len(got))
		}
		w.submitMany(700, limited)
		other := limited
		other.Class = drover.Urgent
		w.submitMany(900, other)
		last := w.submit(limited)
		// 1,600 ahead of it, 10 s each.
		x := w.why(last, "k")
		if b := x.Blockers[0]; blockerCodes(x) != "lock_held" || !b.Subject.MoreAhead || b.Subject.Position != 1000 || x.Start == nil || x.Start.P50.Std() < 15_000*time.Second || x.Start.P50.Std() > 17_000*time.Second {
			t.Errorf("behind a limit: %s %+v, start %+v", blockerCodes(x), x.Blockers, x.Start)
		}
		ctx := t.Context()
		one := must(w.OpenSession(ctx, w.c, drover.NewSession{Worker: "v", Queues: []string{"one"}, Slots: 1}))
		w.submit(drover.NewJob{Kind: "k", Queue: "one"})
		l := must(w.Acquire(ctx, w.c, drover.Acquire{Session: one.ID, Max: 1, Number: 1}))
		if len(l) != 1 {
			t.Fatalf("%d leases", len(l))
		}
		w.clock.add += 10 * time.Second
		if r, err := w.settleBy(one.ID, ok(l[0], "1")); err != nil || r[0].Err != nil {
			t.Fatal(r, err)
		}
		w.submit(drover.NewJob{Kind: "k", Queue: "one"})
		if l := must(w.Acquire(ctx, w.c, drover.Acquire{Session: one.ID, Max: 1, Number: 2})); len(l) != 1 {
			t.Fatalf("%d leases", len(l))
		}
		w.submitMany(1500, drover.NewJob{Kind: "k", Queue: "one"})
		last = w.submit(drover.NewJob{Kind: "k", Queue: "one"})
		if x := w.why(last, "k"); !x.Blockers[0].Subject.MoreAhead || x.Start == nil || x.Start.P50.Std() < 14_500*time.Second || x.Start.P50.Std() > 16_000*time.Second {
			t.Errorf("behind a full queue: %+v, start %+v", x.Blockers, x.Start)
		}
		for range 9 {
			w.submitMany(1000, drover.NewJob{Kind: "k", Queue: "one"})
		}
		last = w.submit(drover.NewJob{Kind: "k", Queue: "one"})
		if x := w.why(last, "k"); !x.Blockers[0].Subject.MoreAhead || x.Start != nil || x.End != nil || x.Blockers[0].ETA != nil {
			t.Errorf("where it is not counted: %+v, start %+v", x.Blockers, x.Start)
		}
	})
}

// TestAMapAboveIsForecastOnItsOwnWorkers: as many of its elements run at a time as its
// queue has slots, or as it lets run.
func TestAMapAboveIsForecastOnItsOwnWorkers(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.known("x", "cpu", 5, 10*time.Second)
		w.apply("pipeline: p\ntasks:\n  m: {run: x, queue: cpu, for_each: " + listOf(100) + "}\n  end: {run: y, queue: elsewhere, needs: [m]}\n")
		if x := w.why(w.submit(drover.NewJob{Pipeline: "p"}), "end"); x.Blockers[0].ETA == nil || x.Blockers[0].ETA.P50.Std() < 9*time.Second || x.Blockers[0].ETA.P50.Std() > 12*time.Second {
			t.Errorf("100 elements on 1,000 slots: %+v", x.Blockers[0])
		}
		w.apply("pipeline: q\ntasks:\n  m: {run: x, queue: cpu, max_parallel: 10, for_each: " + listOf(100) + "}\n  end: {run: y, queue: elsewhere, needs: [m]}\n")
		if x := w.why(w.submit(drover.NewJob{Pipeline: "q"}), "end"); x.Blockers[0].ETA == nil || x.Blockers[0].ETA.P50.Std() < 90*time.Second || x.Blockers[0].ETA.P50.Std() > 120*time.Second {
			t.Errorf("100 elements, 10 at a time: %+v", x.Blockers[0])
		}
	})
}

// TestAJoinIsExplainedInAFewTrips however many tasks it joins, and says how far they are.
func TestAJoinIsExplainedInAFewTrips(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		join := func(n int) (trips int64) {
			src := "pipeline: p\ntasks:\n"
			var names []string
			for i := range n {
				names = append(names, fmt.Sprintf("t%d", i))
				src += fmt.Sprintf("  t%d: {run: x}\n", i)
			}
			w.apply(src + "  end: {run: x, needs: [" + strings.Join(names, ", ") + "]}\n")
			id := w.submit(drover.NewJob{Pipeline: "p"})
			l := w.acquire(2)
			w.settle(ok(l[0], "1"))
			task := w.taskOf(id, "end").ID
			c := &counting{Driver: w.db.Driver}
			w.db.Driver = c
			x := must(w.Explain(t.Context(), w.c, task))
			w.db.Driver = c.Driver
			if b := x.Blockers[0]; blockerCodes(x) != "dependency" || !strings.Contains(b.Message, " (runs)") || !strings.Contains(b.Message, fmt.Sprintf("and %d more.", n-1-5)) {
				t.Errorf("%d tasks: %+v", n, b)
			}
			for _, l := range append(l[1:], w.acquire(n)...) {
				w.settle(ok(l, "1"))
			}
			w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
			return c.trips.Load()
		}
		if few, many := join(10), join(60); few == 0 || many > few+1 {
			t.Errorf("%d trips for 10 tasks, %d for 60", few, many)
		}
	})
}

// TestWhatNoWorkerHasIsOneBlocker: the resource that it asks for, not labels too.
func TestWhatNoWorkerHasIsOneBlocker(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		id := w.submit(drover.NewJob{Kind: "k", Queue: "q", Resources: map[string]int64{"gpu": 2}})
		labelled := w.submit(drover.NewJob{Kind: "k", Queue: "q", WorkerLabels: map[string]string{"zone": "a"}})
		nobody := w.submit(drover.NewJob{Kind: "k", Queue: "nobody", Resources: map[string]int64{"gpu": 2}})
		must(w.OpenSession(t.Context(), w.c, drover.NewSession{Worker: "v", Queues: []string{"q"}, Slots: 1, Resources: map[string]int64{"gpu": 1}}))
		w.admit()
		if x := w.why(id, "k"); blockerCodes(x) != "resources" || !strings.Contains(x.Message, "It asks for 2 gpu") {
			t.Errorf("%s: %+v", blockerCodes(x), x.Blockers)
		}
		if x := w.why(labelled, "k"); blockerCodes(x) != "no_worker_matches_labels" {
			t.Errorf("with a label that none has: %s", blockerCodes(x))
		}
		if x := w.why(nobody, "k"); blockerCodes(x) != "no_worker_for_kind" {
			t.Errorf("without a worker: %s", blockerCodes(x))
		}
	})
}

// TestHoldersAreThoseOfTheKey, however many others hold permits of the limit; those that
// are not shown are counted.
func TestHoldersAreThoseOfTheKey(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.limit("each", drover.NewLimit{Scope: drover.ScopeKey, Max: 1})
		w.limit("many", drover.NewLimit{Max: 300})
		job := func(key string) drover.JobID {
			return w.submit(drover.NewJob{Kind: "k", Queue: "cpu", ConcurrencyKey: key, Limits: map[string]int64{"many": 1}})
		}
		var holder drover.JobID
		for i := range 300 {
			holder = job(fmt.Sprintf("key-%03d", i))
		}
		w.admit()
		if got := w.acquire(300); len(got) != 300 {
			t.Fatalf("%d leases", len(got))
		}
		x := w.why(job("key-299"), "k")
		for _, b := range x.Blockers {
			switch b.Code {
			case drover.BlockerConcurrencyKey:
				if len(b.Holders) != 1 || b.Holders[0].JobID != holder || b.MoreHolders != 0 {
					t.Errorf("holders of the key: %+v and %d more", b.Holders, b.MoreHolders)
				}
			case drover.BlockerSemaphore:
				if len(b.Holders) != 10 || b.MoreHolders != 290 {
					t.Errorf("%d holders of the semaphore and %d more", len(b.Holders), b.MoreHolders)
				}
			default:
				t.Errorf("%s", b.Code)
			}
		}
		if len(x.Blockers) != 2 {
			t.Errorf("%s", blockerCodes(x))
		}
	})
}
