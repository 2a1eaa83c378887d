package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/reconcile"
)

// listOf writes a list of n elements.
func listOf(n int) string { return "[" + strings.TrimSuffix(strings.Repeat("0, ", n), ", ") + "]" }

// indexes are those of leases, in order.
func indexes(list []drover.Lease) (out []int) {
	for _, l := range list {
		out = append(out, l.Index)
	}
	slices.Sort(out)
	return out
}

// TestMaxParallelBoundsWhatRuns: no more elements are claimable or run than it says; with
// the end of one the next starts, in its commit and in order. Retries, lost leases and a
// pause keep the place.
func TestMaxParallelBoundsWhatRuns(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  m: {run: x, for_each: " + listOf(8) + ", max_parallel: 3}\n  end: {run: x, needs: [m]}\n")
		id := w.submit(drover.NewJob{Pipeline: "p"})
		w.audit()
		held := w.acquire(100)
		if got := fmt.Sprint(indexes(held)); got != "[0 1 2]" {
			t.Fatalf("%s run", got)
		}
		w.clock.add += 10 * time.Second
		list, err := w.Tasks(t.Context(), w.c, engine.TaskQuery{Job: id, Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range list {
			waits := x.Name == "m" && x.Index > 2
			if waits != (x.Status == drover.Ready) || waits != (len(x.Blockers) == 1 && x.Blockers[0].Code == drover.BlockerMapParallel && x.Blockers[0].Subject.Name == "m") {
				t.Errorf("%s[%d] is %s, blockers %+v", x.Name, x.Index, x.Status, x.Blockers)
			}
			if waits && (x.Waits["map_parallel"].Std() < 10*time.Second || !x.ReadyAt.IsZero()) {
				t.Errorf("%s[%d] waits %v, ready at %v", x.Name, x.Index, x.Waits, x.ReadyAt)
			}
		}
		x, err := w.Explain(t.Context(), w.c, list[4].ID)
		if err != nil || len(x.Blockers) != 1 || x.Blockers[0].Code != drover.BlockerMapParallel || x.Blockers[0].Subject.Limit != 3 {
			t.Errorf("explained as %+v, %v", x, err)
		}
		groups, err := w.Waits(t.Context(), w.c, nil)
		if i := slices.IndexFunc(groups, func(g drover.WaitGroup) bool { return g.Reason == drover.BlockerMapParallel }); err != nil || i < 0 || groups[i].Waiting != 5 {
			t.Errorf("waits %+v, %v", groups, err)
		}
		if n := w.step("admit", w.AdmitOnce); n != 0 {
			t.Errorf("%d admitted", n)
		}
		if l := diverge(w); len(l) != 0 {
			t.Errorf("found %+v", l)
		}

		// One ends: one starts. A failure that is tried again keeps its place.
		w.settle(ok(held[0], "1"), failed(held[1], drover.ClassRetryable, "again"))
		next := w.acquire(100)
		if got := fmt.Sprint(indexes(next)); got != "[3]" {
			t.Fatalf("then %s start", got)
		}
		w.audit()
		w.clock.add += 2 * time.Second
		w.step("timers", w.TimersOnce)
		again := w.acquire(100)
		if got := fmt.Sprint(indexes(again)); got != "[1]" {
			t.Fatalf("after the delay %s start", got)
		}
		// Released, its place is its own.
		w.settle(drover.Outcome{TaskID: again[0].TaskID, LeaseVersion: again[0].LeaseVersion, Status: drover.OutcomeReleased})
		w.audit()
		w.step("admit", w.AdmitOnce)

		// Paused, nothing starts; resumed, no more than there is room for.
		if _, err := w.Pause(t.Context(), w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		w.settle(ok(next[0], "1"))
		if got := w.acquire(100); len(got) != 0 {
			t.Fatalf("paused, %d start", len(got))
		}
		w.audit()
		if _, err := w.Resume(t.Context(), w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		w.step("sweep", w.SweepOnce)
		both := w.acquire(100)
		if got := fmt.Sprint(indexes(both)); got != "[1 4]" {
			t.Fatalf("resumed, %s start", got)
		}
		w.audit()

		// Two at once make room for two.
		w.settle(ok(both[0], "1"), ok(both[1], "1"))
		if got := fmt.Sprint(indexes(w.acquire(100))); got != "[5 6]" {
			t.Fatalf("then %s start", got)
		}
		// Their worker is lost: they keep their places.
		w.pass(2 * time.Minute)
		w.step("reap", w.ReapOnce)
		w.audit()
		w.open()
		for range 8 {
			w.pass(time.Minute)
			w.step("admit", w.AdmitOnce)
			w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		}
		w.want(id, drover.Succeeded)
		w.audit()
		if n := w.count("SELECT count(*) FROM map_live"); n != 0 {
			t.Errorf("%d maps are counted after the end of their job", n)
		}
	})
}

func diverge(w *world) []engine.Divergence { return w.diverging(false) }

// TestMaxParallelElementByElement: an element takes a place once what it goes over has
// ended, whatever its number; each map of a family has its own bound. What stands in for
// an element has its place.
func TestMaxParallelElementByElement(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\non_failure: continue\ntasks:\n  a: {run: x, for_each: " + listOf(6) + "}\n  b: {run: x, for_each: a, max_parallel: 2, fallback: f}\n  f: {run: x}\n  c: {run: x, for_each: b, max_parallel: 1}\n")
		id := w.submit(drover.NewJob{Pipeline: "p"})
		a := w.acquire(100)
		slices.SortFunc(a, func(x, y drover.Lease) int { return y.Index - x.Index })
		w.settle(ok(a[0], "1"), ok(a[1], "1"), ok(a[2], "1"), ok(a[3], "1"))
		b := w.acquire(100)
		if got := fmt.Sprint(indexes(b)); got != "[2 3]" {
			t.Fatalf("of b %s run", got)
		}
		w.audit()
		w.settle(failed(b[0], drover.ClassPermanent, "no"))
		f := w.acquire(100)
		if len(f) != 1 || f[0].Name != "f" {
			t.Fatalf("then run %+v", f)
		}
		w.audit()
		w.settle(ok(f[0], "1"), ok(b[1], "1"))
		got := w.acquire(100)
		names := map[string]int{}
		for _, l := range got {
			names[l.Name]++
		}
		if names["b"] != 2 || names["c"] != 1 {
			t.Fatalf("then run %v", names)
		}
		w.settle(ok(a[4], "1"), ok(a[5], "1"))
		for _, l := range got {
			w.settle(ok(l, "1"))
			w.audit()
		}
		for range 12 {
			w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		}
		w.want(id, drover.Succeeded)
		w.audit()

		// A replayed element waits for a place as any other, and a cancel ends what waits.
		id = w.submit(drover.NewJob{Pipeline: "p"})
		w.work(func(l drover.Lease) drover.Outcome {
			if l.Name != "a" && l.Index < 3 {
				return failed(l, drover.ClassPermanent, "no")
			}
			return ok(l, "1")
		})
		for range 12 {
			w.work(func(l drover.Lease) drover.Outcome {
				if l.Name == "f" {
					return failed(l, drover.ClassPermanent, "no")
				}
				return ok(l, "1")
			})
		}
		w.want(id, drover.Failed)
		for i := range 3 {
			if err := w.replay(id, "b", i); err != nil {
				t.Fatal(err)
			}
			w.audit()
		}
		if got := w.acquire(100); len(got) != 2 {
			t.Fatalf("%d replayed elements run, at most 2 may", len(got))
		}
		if _, err := w.Cancel(t.Context(), w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		w.pass(10 * time.Minute)
		w.step("sweep", w.SweepOnce)
		w.want(id, drover.Cancelled)
		w.audit()
	})
}

// TestAMapWaitsForItsStartTime: elements of a job that starts later take their places
// and wait for that.
func TestAMapWaitsForItsStartTime(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  m: {run: x, for_each: " + listOf(4) + ", max_parallel: 2}\n")
		id := w.submit(drover.NewJob{Pipeline: "p", DueAt: w.Now().Add(time.Hour)})
		w.audit()
		if l := w.diverging(false); len(l) != 0 {
			t.Errorf("found %+v", l)
		}
		w.clock.add += 2 * time.Hour
		w.open()
		w.step("timers", w.TimersOnce)
		if got := fmt.Sprint(indexes(w.acquire(100))); got != "[0 1]" {
			t.Fatalf("%s run", got)
		}
		w.audit()
		if _, err := w.Cancel(t.Context(), w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
	})
}

// TestLostLinesAreMended: what waits in line starts again after the counters of its map
// were lost, or say that there is room.
func TestLostLinesAreMended(t *testing.T) {
	for name, harm := range map[string]string{
		"lost":        "DELETE FROM map_live",
		"too high":    "UPDATE map_live SET running = running + 1",
		"with room":   "UPDATE map_live SET running = 0",
		"not there":   "UPDATE map_live SET waiting = 0",
		"nobody runs": "DELETE FROM task_queued",
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, w *world) {
				w.apply("pipeline: p\ntasks:\n  m: {run: x, for_each: " + listOf(5) + ", max_parallel: 2}\n  end: {run: x, needs: [m]}\n")
				id := w.submit(drover.NewJob{Pipeline: "p"})
				w.exec(harm)
				found := codes(w.diverging(true))
				if found[reconcile.MapCounts]+found[reconcile.TaskNowhere] == 0 {
					t.Fatalf("found %v", found)
				}
				w.audit()
				if got := w.acquire(100); len(got) != 2 {
					t.Fatalf("%d run", len(got))
				} else {
					w.settle(ok(got[0], "1"), ok(got[1], "1"))
				}
				for range 5 {
					w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
				}
				w.want(id, drover.Succeeded)
				w.audit()
			})
		})
	}
}

// TestEnoughElementsSucceed: a map has succeeded when as many of its elements have as
// min_success says; the job is degraded then, and what waits for the map sees its list
// with null where an element failed.
func TestEnoughElementsSucceed(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  m: {run: x, for_each: " + listOf(4) + ", min_success: 75%}\n  o: {run: x, for_each: m, min_success: 2, default: none}\n" +
			"  end: {run: x, with: {m: \"${{ tasks.m.output }}\", o: \"${{ tasks.o.output }}\"}}\n  early: {run: x, needs: [m], when: one_success, default: 0}\n")
		id := w.submit(drover.NewJob{Pipeline: "p"})
		m := w.acquire(100)
		w.settle(ok(m[0], "0"), failed(m[1], drover.ClassPermanent, "no"), ok(m[2], "2"))
		w.audit()
		for _, l := range w.acquire(100) { // of those outside the family nothing starts before the map has ended
			if l.Name != "o" {
				t.Errorf("%s runs before the map has ended", l.Name)
			}
			w.settle(ok(l, fmt.Sprint(10+l.Index)))
		}
		w.settle(ok(m[3], "3"))
		input := ""
		for range 4 {
			w.work(func(l drover.Lease) drover.Outcome {
				if l.Name == "end" {
					input = string(l.Input)
				}
				return ok(l, fmt.Sprint(10+l.Index))
			})
		}
		if j := w.want(id, drover.Succeeded); !j.Degraded || j.Tasks.Failed != 1 || len(j.DegradedBy) != 1 || j.DegradedBy[0].Reason != "min_success: 75%" {
			t.Errorf("%+v", j)
		}
		if input != `{"m":[0,null,2,3],"o":[10,"none",12,13]}` {
			t.Errorf("end was given %s", input)
		}
		w.audit()

		// The failed element is replayed: the map counts anew, and nothing is degraded.
		if err := w.replay(id, "m", 1); err != nil {
			t.Fatal(err)
		}
		w.audit()
		for range 4 {
			w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		}
		if j := w.want(id, drover.Succeeded); j.Degraded {
			t.Errorf("%+v", j)
		}
		w.audit()
	})
}

// TestTooFewElementsFailTheMap as soon as that is certain, by the job's policy; where the
// job goes on, those below hear of it when all elements have ended.
func TestTooFewElementsFailTheMap(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		const src = "tasks:\n  m: {run: x, for_each: [1, 2, 3, 4], min_success: 75%}\n  end: {run: x, needs: [m]}\n  other: {run: x}\n"
		w.apply("pipeline: p\n" + src)
		id := w.submit(drover.NewJob{Pipeline: "p"})
		l := w.acquire(100)
		m := slices.DeleteFunc(slices.Clone(l), func(l drover.Lease) bool { return l.Name != "m" })
		w.settle(failed(m[0], drover.ClassPermanent, "no"))
		if j := w.job(id); j.Status != drover.Running || j.Cancelling {
			t.Fatalf("one of four failed, and the job is %+v", j)
		}
		w.settle(failed(m[1], drover.ClassPermanent, "no"))
		j := w.job(id)
		if !j.Cancelling {
			t.Fatalf("two of four failed, and the job goes on: %+v", j)
		}
		w.pass(10 * time.Minute)
		w.step("sweep", w.SweepOnce)
		w.want(id, drover.Failed)
		w.audit()
		// Replayed, everything that was cut off comes back.
		w.open()
		for i := range 2 {
			if err := w.replay(id, "m", i); err != nil {
				t.Fatal(err)
			}
			w.audit()
		}
		for range 4 {
			w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		}
		w.want(id, drover.Succeeded)
		w.audit()

		w.apply("pipeline: p\non_failure: continue\n" + src)
		id = w.submit(drover.NewJob{Pipeline: "p"})
		ran := []string{}
		for range 4 {
			ran = append(ran, w.work(func(l drover.Lease) drover.Outcome {
				if l.Name == "m" && l.Index < 2 {
					return failed(l, drover.ClassPermanent, "no")
				}
				return ok(l, "1")
			})...)
		}
		slices.Sort(ran)
		if got := strings.Join(ran, " "); got != "m[0] m[1] m[2] m[3] other[0]" {
			t.Errorf("ran %s", got)
		}
		if j := w.want(id, drover.Failed); j.Tasks.Skipped != 1 {
			t.Errorf("%+v", j)
		}
		w.audit()
	})
}

// TestAMapOverARange has a task for each number; how many is known when the task is that
// tells it, and what is no number or too many fails the map for good.
func TestAMapOverARange(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(`pipeline: p
on_failure: continue
tasks:
  count: {run: x}
  part: {run: x, for_each: {range: "${{ tasks.count.output.n }}"}, with: {part: "${{ item }}"}}
  all: {run: x, with: "${{ tasks.part.output }}"}
`)
		for _, c := range []struct{ n, want string }{
			{`3`, `part{"part":0} part{"part":1} part{"part":2} all[0,1,2]`},
			{`0`, `all[]`},
			{`20000`, `for_each of task "part" gives 20000 elements, and the map may have 10000: raise max_elements, which may be up to 100000, or give each task several with batch_size`},
			{`"many"`, `the range of task "part" needs a whole number from 0; ${{ tasks.count.output.n }} is "many"`},
		} {
			id := w.submit(drover.NewJob{Pipeline: "p"})
			var ran []string
			for range 5 {
				w.work(func(l drover.Lease) drover.Outcome {
					if l.Name == "count" {
						return ok(l, `{"n":`+c.n+`}`)
					}
					ran = append(ran, l.Name+string(l.Input))
					return ok(l, fmt.Sprint(l.Index))
				})
			}
			got := strings.Join(ran, " ")
			if j := w.job(id); j.Error != nil {
				got += j.Error.Message
			}
			if got != c.want {
				t.Errorf("of %s: %s, want %s", c.n, got, c.want)
			}
			w.audit()
		}
	})
}

// TestABudgetOfTasksIsKept: a map that would give the job more than max_tasks fails, for
// good and by name, with nothing of it started; one that just fits expands.
func TestABudgetOfTasksIsKept(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\nmax_tasks: 8\ntasks:\n  a: {run: x}\n  m: {run: x, for_each: \"${{ tasks.a.output }}\"}\n  n: {run: x, for_each: m}\n  spare: {run: x}\nfinally: spare\n")
		for _, c := range []struct {
			list string
			fits bool
		}{{listOf(3), true}, {listOf(4), false}} {
			id := w.submit(drover.NewJob{Pipeline: "p"})
			w.settle(ok(w.one(), c.list))
			got := w.acquire(100)
			if c.fits {
				if len(got) != 3 {
					t.Fatalf("%d elements start", len(got))
				}
				w.settle(ok(got[0], "1"), ok(got[1], "1"), ok(got[2], "1"))
				w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
				w.want(id, drover.Succeeded)
				continue
			}
			if len(got) != 1 || got[0].Name != "spare" {
				t.Fatalf("%+v start", got)
			}
			w.settle(ok(got[0], "1"))
			j := w.want(id, drover.Failed)
			m := w.taskOf(id, "m")
			if m.Status != drover.Failed || m.Error == nil || m.Error.Type != string(drover.CodeBudget) || m.Error.Class != drover.ClassExpand ||
				!strings.Contains(m.Error.Message, `with the 4 elements that for_each of task "m" gives the job would have 9 tasks, and max_tasks of pipeline "p" allows 8`) {
				t.Errorf("m is %s, %+v, of job %+v", m.Status, m.Error, j)
			}
		}
		w.audit()
	})
}
