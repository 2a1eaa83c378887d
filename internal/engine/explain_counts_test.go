package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store"
)

// hintOf is what the capacity says of a queue.
func (w *world) hintOf(queue string) drover.QueueHint {
	w.t.Helper()
	c := must(w.Capacity(w.t.Context(), w.c))
	i := slices.IndexFunc(c.Queues, func(h drover.QueueHint) bool { return h.Queue == queue })
	if i < 0 {
		w.t.Fatalf("no hint about queue %s", queue)
	}
	return c.Queues[i]
}

// TestMuchThatWaitsHidesNobody: where there is too much to count, every queue and every
// tenant is still told of, and the answer says that there is more.
func TestMuchThatWaitsHidesNobody(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		beta := must(w.EnsureTenant(ctx, "beta"))
		w.CountUpTo(400)
		paused := w.submitMany(5, drover.NewJob{Kind: "k", Queue: "held"})
		w.submitMany(500, drover.NewJob{Kind: "k", Queue: "long"})
		must(w.Submit(ctx, beta, []drover.NewJob{{Kind: "k", Queue: "long"}, {Kind: "k", Queue: "late"}}))
		w.submitMany(3, drover.NewJob{Kind: "k", Queue: "late"})
		for _, id := range paused {
			must(w.Pause(ctx, w.c, id, engine.Request{}))
		}
		w.step("sweep", w.SweepOnce)
		system := must(w.EnsureTenant(ctx, "system"))
		groups := must(w.Waits(ctx, system, []string{"tenant", "queue"}))
		said := map[string]string{}
		for _, g := range groups {
			said[g.Tenant+" "+g.Queue] = fmt.Sprintf("%d %t", g.Waiting, g.Approximate)
			if g.Approximate != strings.HasPrefix(g.Message, "At least ") {
				t.Errorf("%s of %s: %s", g.Tenant, g.Queue, g.Message)
			}
		}
		for key, want := range map[string]string{"acme late": "3 false", "beta late": "1 false", "beta long": "1 false", "acme held": "5 false"} {
			if said[key] != want {
				t.Errorf("%s: %q, want %q; of all %v", key, said[key], want, said)
			}
		}
		if n := said["acme long"]; !strings.HasSuffix(n, " true") || strings.HasPrefix(n, "0") {
			t.Errorf("acme long: %q", n)
		}
		if h := w.hintOf("late"); h.Waiting != 4 || h.Approximate {
			t.Errorf("hint of the queue behind it: %+v", h)
		}
		if h := w.hintOf("long"); h.Waiting < 300 || !h.Approximate {
			t.Errorf("hint of the long queue: %+v", h)
		}
		w.CountUpTo(1000)
		if g := must(w.Waits(ctx, system, []string{"tenant", "queue"})); g[0].Waiting != 500 || g[0].Approximate {
			t.Errorf("counted whole: %+v", g[0])
		}
	})
}

// TestMoreThatIsHeldThanIsCounted is said too.
func TestMoreThatIsHeldThanIsCounted(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.CountUpTo(10)
		for _, id := range w.submitMany(12, drover.NewJob{Kind: "k", Queue: "q"}) {
			must(w.Pause(t.Context(), w.c, id, engine.Request{}))
		}
		w.step("sweep", w.SweepOnce)
		if g := must(w.Waits(t.Context(), w.c, nil)); len(g) != 1 || g[0].Reason != drover.BlockerJobPaused || !g[0].Approximate || g[0].Waiting < 10 {
			t.Errorf("%+v", g)
		}
	})
}

// TestEveryLineIsDecided: of many lines the last have their reason from the decision, too.
func TestEveryLineIsDecided(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.limit("s", drover.NewLimit{Max: 1})
		var list []drover.NewJob
		for i := range 560 {
			list = append(list, drover.NewJob{Kind: fmt.Sprintf("k%d", i), Queue: "cpu", Limits: map[string]int64{"s": 1}})
		}
		must(w.Submit(t.Context(), w.c, list))
		if got := w.get(1); len(got) != 1 {
			t.Fatalf("%d leases", len(got))
		}
		g := must(w.Waits(t.Context(), w.c, nil))
		if len(g) != 1 || g[0].Reason != drover.BlockerLock || g[0].Waiting != 559 || g[0].Approximate {
			t.Errorf("%+v", g)
		}
		if h := w.hintOf("cpu"); h.Startable != 0 || h.Waiting != 559 {
			t.Errorf("%+v", h)
		}
	})
}

// TestWhatNoWorkerFitsIsNotStartable: more workers like those that there are would not
// take it; and workers of another tenant do not count.
func TestWhatNoWorkerFitsIsNotStartable(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		beta := must(w.EnsureTenant(ctx, "beta"))
		must(w.OpenSession(ctx, beta, drover.NewSession{Worker: "theirs", Queues: []string{"q"}, Slots: 50}))
		must(w.OpenSession(ctx, w.c, drover.NewSession{Worker: "mine", Queues: []string{"q"}, Kinds: []string{"k"}, Slots: 4}))
		w.submit(drover.NewJob{Kind: "other", Queue: "q"})
		w.submit(drover.NewJob{Kind: "k", Queue: "q", WorkerLabels: map[string]string{"zone": "a"}})
		w.admit()
		h := w.hintOf("q")
		if h.Workers != 1 || h.Slots != 4 || h.Waiting != 2 || h.Startable != 0 || h.Desired != 1 || !strings.Contains(h.Reason, "2 wait for a worker of another sort: no_worker") || !strings.HasPrefix(h.TwoMoreWorkers, "Nothing") {
			t.Errorf("%+v", h)
		}
		w.submit(drover.NewJob{Kind: "k", Queue: "q"})
		w.submit(drover.NewJob{Kind: "any", Queue: "new"})
		if h := w.hintOf("q"); h.Startable != 1 || h.Waiting != 3 {
			t.Errorf("with one that fits: %+v", h)
		}
		if h := w.hintOf("new"); h.Startable != 1 || h.Desired != 1 {
			t.Errorf("of a queue without workers: %+v", h)
		}
	})
}

// TestFreeSlotsOfOthersDoNotCount: a worker that has another handler is free, and takes
// nothing of what waits.
func TestFreeSlotsOfOthersDoNotCount(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		must(w.OpenSession(ctx, w.c, drover.NewSession{Worker: "other", Queues: []string{"q"}, Kinds: []string{"other"}, Slots: 4}))
		one := must(w.OpenSession(ctx, w.c, drover.NewSession{Worker: "mine", Queues: []string{"q"}, Kinds: []string{"k"}, Slots: 1}))
		w.submitMany(3, drover.NewJob{Kind: "k", Queue: "q"})
		if l := must(w.Acquire(ctx, w.c, drover.Acquire{Session: one.ID, Max: 1, Number: 1})); len(l) != 1 {
			t.Fatalf("%d leases", len(l))
		}
		if h := w.hintOf("q"); h.Startable != 2 || h.Free != 4 || strings.Contains(h.Reason, "free for them") || strings.Contains(h.TwoMoreWorkers, "free slot for each") {
			t.Errorf("%+v", h)
		}
	})
}

// TestTimesOfManyLinesAreAddedUp: however long they are and however many.
func TestTimesOfManyLinesAreAddedUp(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		var list []drover.NewJob
		for i := range 8 {
			kind := fmt.Sprintf("k%d", i)
			w.submit(drover.NewJob{Kind: kind, Queue: "cpu"})
			one := must(w.OpenSession(t.Context(), w.c, drover.NewSession{Worker: "v", Queues: []string{"cpu"}, Slots: 1})).ID
			l := must(w.Acquire(t.Context(), w.c, drover.Acquire{Session: one, Max: 1, Number: 1}))
			w.clock.add += 30 * 24 * time.Hour // nobody has looked for lost leases meanwhile
			if r, err := w.settleBy(one, ok(l[0], "1")); err != nil || r[0].Err != nil {
				t.Fatal(r, err)
			}
			for range 600 {
				list = append(list, drover.NewJob{Kind: kind, Queue: "cpu"})
			}
		}
		must(w.Submit(t.Context(), w.c, list))
		must(w.OpenSession(t.Context(), w.c, drover.NewSession{Worker: "v", Queues: []string{"cpu"}, Slots: 1}))
		h := w.hintOf("cpu")
		if h.Startable != 4800 || h.DrainsIn == nil || h.DrainsIn.Std() < 90*24*time.Hour {
			t.Errorf("%+v, drains in %v", h, h.DrainsIn)
		}
	})
}

// TestAJobsTasksAreExplainedByOneDecision: what waits is read and decided about once for
// all tasks of a job that are explained, and all that are counted in lines are few.
func TestAJobsTasksAreExplainedByOneDecision(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		c := &counting{Driver: w.db.Driver}
		w.db.Driver = c
		w.limit("s", drover.NewLimit{Max: 1})
		var list []drover.NewJob
		for i := range 600 {
			for range 2 {
				list = append(list, drover.NewJob{Kind: fmt.Sprintf("k%d", i), Queue: "cpu", Limits: map[string]int64{"s": 1}})
			}
		}
		must(w.Submit(t.Context(), w.c, list))
		if got := w.get(1); len(got) != 1 {
			t.Fatalf("%d leases", len(got))
		}
		w.apply("pipeline: p\ntasks:\n  a: {run: x, queue: cpu, limits: {s: 1}, for_each: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]}\n  b: {run: y, queue: cpu, limits: {s: 1}, for_each: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]}\n")
		id := w.submit(drover.NewJob{Pipeline: "p"})
		for range 4 { // looks at all lines, a part at a time
			w.step("admit", w.AdmitOnce)
		}
		c.listen()
		x := must(w.ExplainJob(t.Context(), w.c, id))
		if len(x.Tasks) != 20 {
			t.Fatalf("%d tasks are explained", len(x.Tasks))
		}
		for i, one := range x.Tasks {
			if len(one.Blockers) != 1 || one.Blockers[0].Code != drover.BlockerLock || one.Blockers[0].Subject.Position < 600 {
				t.Errorf("task %d: %+v", i, one.Blockers)
			}
		}
		if n := c.named["sum permits"]; n == 0 || n > 3 {
			t.Errorf("what waits was read %d times: %v", n, c.named)
		}
		if n := c.asked; n == 0 || n > 2*store.MaxAhead { // the first time a part, then what that left
			t.Errorf("up to %d rows of lines are counted", n)
		}
	})
}
