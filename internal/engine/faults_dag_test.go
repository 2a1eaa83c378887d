package engine_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store/driver"
)

// What has gone wrong with graphs in other systems, and does not here. Beside the
// tests of this file:
//
//   - a graph of which few are ready and all are looked at: TestASettleTakesAConstantNumberOfStatements;
//   - descendants of a failed task that stay blocked after it was mended:
//     TestAReplayUnblocksWhatIsBelow;
//   - exit handlers that do not run, run twice, or run on after a stop:
//     TestWhatRunsAtTheEnd;
//   - results of a fan-in in the order of their ends: TestAFallbackStandsIn, whose list
//     is in the order of the elements though some were replaced;
//   - a fan-out that is expanded again with another list: does not apply, because a map
//     that has expanded does not expand again; its elements are replayed.

// TestChainedFanOutsOverNothing end after what they wait for, the job goes on, and the
// rule of the join decides the rest.
func TestChainedFanOutsOverNothing(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(`pipeline: p
tasks:
  list: {run: x}
  slow: {run: x}
  one: {run: x, for_each: "${{ tasks.list.output }}"}
  two: {run: x, for_each: one, needs: [slow]}
  three: {run: x, for_each: "${{ tasks.two.output }}"}
  join: {run: x, needs: [three], with: "${{ tasks.three.output }}"}
  none: {run: x, needs: [three], when: all_skipped}
`)
		id := w.submit(drover.NewJob{Pipeline: "p"})
		l := leasesByName(w.acquire(10))
		w.settle(ok(l["list"][0], "[]"))
		if more := w.acquire(10); len(more) != 0 {
			t.Fatalf("%s started before slow had ended, which a map over nothing waits for", more[0].Name)
		}
		w.settle(ok(l["slow"][0], "1"))
		join := w.one()
		if join.Name != "join" || string(join.Input) != "[]" {
			t.Fatalf("%s with %s", join.Name, join.Input)
		}
		w.settle(ok(join, "1"))
		w.want(id, drover.Succeeded)
		if got := w.told(id); got != "join:ok list:ok none:skip slow:ok" {
			t.Error(got)
		}
		w.audit()
	})
}

// TestAFanOutWhoseElementsAreAllSkipped: what joins it by all_done runs, with a list
// and not with null, and the job does not fail.
func TestAFanOutWhoseElementsAreAllSkipped(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(`pipeline: p
tasks:
  m: {run: x, for_each: [1, 2, 3], if: "item > 5"}
  all: {run: x, when: all_done, with: {got: "${{ tasks.m.output }}"}}
  some: {run: x, needs: [m], when: one_success}
  none: {run: x, needs: [m], when: all_skipped}
`)
		id := w.submit(drover.NewJob{Pipeline: "p"})
		input := ""
		w.work(func(l drover.Lease) drover.Outcome {
			if l.Name == "all" {
				input = string(l.Input)
			}
			return ok(l, "1")
		})
		w.want(id, drover.Succeeded)
		if got := w.told(id); input != `{"got":[]}` || got != "all:ok m[0]:skip m[1]:skip m[2]:skip none:ok some:skip" {
			t.Errorf("%s, with %s", got, input)
		}
		w.audit()
	})
}

// TestAFanInWhoseMemberIsAChain that fails at its first step: what is for failures runs
// once, the join ends, and nothing waits for ever.
func TestAFanInWhoseMemberIsAChain(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(`pipeline: p
tasks:
  a1: {run: x}
  a2: {run: x, needs: [a1]}
  a3: {run: x, needs: [a2]}
  b: {run: x}
  join: {run: x, needs: [a3, b]}
  error: {run: x, needs: [a3, b], when: one_failed}
`)
		id := w.submit(drover.NewJob{Pipeline: "p"})
		if got := w.story(id, map[string]string{"a1": "fail"}); got != "a1:fail a2:skip a3:skip b:ok error:ok join:skip" {
			t.Error(got)
		}
		w.want(id, drover.Failed)
		for task, n := range w.entered {
			if n != 1 {
				t.Errorf("%s ran %d times", task, n)
			}
		}
	})
}

// TestATaskThatTwoWaitFor runs once, and they after it.
func TestATaskThatTwoWaitFor(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: x}\n  b: {run: x, needs: [a]}\n  c: {run: x, needs: [a]}\n")
		id := w.submit(drover.NewJob{Pipeline: "p"})
		names := w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		if got := strings.Join(names, " "); got != "a[0] b[0] c[0]" && got != "a[0] c[0] b[0]" {
			t.Error(got)
		}
		w.want(id, drover.Succeeded)
	})
}

// TestAParameterWithBlanksAndSigns is the same in the first attempt, in the next, and
// after a replay.
func TestAParameterWithBlanksAndSigns(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		const value = `a = "b c"  --flag='x y' $HOME ${{ input.no }} \\ ` + "\\t" + `é`
		quoted, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		w.apply("pipeline: p\ntasks:\n  a: {run: x, with: {whole: \"${{ input.v }}\", part: \"v=${{ input.v }};\"}}\n  b: {run: x, for_each: [\"${{ input.v }}\"], needs: [a]}\n")
		id := w.submit(drover.NewJob{Pipeline: "p", Input: json.RawMessage(`{"v": ` + string(quoted) + `}`)})
		var got []string
		see := func(l drover.Lease) {
			var in struct{ Whole, Part string }
			if json.Unmarshal(l.Input, &in) != nil {
				in.Part = "v=" + value + ";"
				if err := json.Unmarshal(l.Input, &in.Whole); err != nil {
					t.Fatal(err)
				}
			}
			if in.Whole != value || in.Part != "v="+value+";" {
				t.Errorf("%s, attempt %d, generation %d was given %s", l.Name, l.Attempt, l.Generation, l.Input)
			}
			got = append(got, fmt.Sprintf("%s.%d.%d", l.Name, l.Generation, l.Attempt))
		}
		first := w.one()
		see(first)
		w.settle(failed(first, drover.ClassRetryable, "again"))
		w.clock.add += 2 * time.Second
		w.step("timers", w.TimersOnce)
		w.work(func(l drover.Lease) drover.Outcome {
			see(l)
			if l.Name == "b" {
				return failed(l, drover.ClassPermanent, "no")
			}
			return ok(l, "1")
		})
		w.want(id, drover.Failed)
		if err := w.replay(id, "b", 0); err != nil {
			t.Fatal(err)
		}
		w.work(func(l drover.Lease) drover.Outcome { see(l); return ok(l, "1") })
		w.want(id, drover.Succeeded)
		if s := strings.Join(got, " "); s != "a.1.1 a.1.2 b.1.1 b.2.1" {
			t.Errorf("ran %s", s)
		}
	})
}

// TestAGraphIsSubmittedWholeOrNotAtAll: a submission that breaks off anywhere leaves no
// job, no task and nothing that waits; where only the answer is lost, all of it is there.
func TestAGraphIsSubmittedWholeOrNotAtAll(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: x}\n  m: {run: x, for_each: [1, 2, 3], max_parallel: 2}\n  o: {run: x, for_each: m, needs: [a]}\n  end: {run: x, needs: [o]}\n")
		w.submit(drover.NewJob{Pipeline: "p"}) // what is read once
		rows := func() (n int64) {
			for _, table := range []string{"jobs", "job_live", "map_live", "tasks", "task_pending", "task_ready", "task_queued", "events"} {
				n += w.count("SELECT count(*) FROM " + table)
			}
			return n
		}
		c := &crash{Driver: w.db.Driver}
		w.db.Driver = c
		for _, lose := range []bool{false, true} {
			for at := 1; ; at++ {
				c.at, c.lose, c.fired = 0, lose, false
				before, jobs := rows(), w.count("SELECT count(*) FROM jobs")
				c.at = at
				_, err := w.Submit(t.Context(), w.c, []drover.NewJob{{Pipeline: "p"}})
				if !c.fired {
					if err != nil || at == 1 {
						t.Fatalf("broken off %d times: %v", at-1, err)
					}
					break
				}
				c.at = 0
				switch is, after := w.count("SELECT count(*) FROM jobs"), rows(); {
				case !lose && (is != jobs || after != before):
					t.Errorf("broken off at trip %d: %d jobs more, and %d rows", at, is-jobs, after-before)
				case lose && is != jobs+1:
					t.Errorf("with the answer lost: %d jobs more", is-jobs)
				}
			}
		}
		w.db.Driver = c.Driver
		w.audit()
		for range 8 {
			w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		}
		for _, j := range w.jobs() {
			if j.Status != drover.Succeeded {
				t.Errorf("job %s is %s", j.ID, j.Status)
			}
		}
	})
}

// TestAWorkerThatDiesAfterItsResult was stored and before it had the answer: the task does
// not run again, and what follows starts once.
func TestAWorkerThatDiesAfterItsResult(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\nfinally: [after]\ntasks:\n  a: {run: x}\n  b: {run: x, needs: [a]}\n  after: {run: x}\n")
		id := w.submit(drover.NewJob{Pipeline: "p"})
		a := w.one()
		c := &crash{Driver: w.db.Driver, at: 1, lose: true}
		w.db.Driver = c
		if r := w.Settle(t.Context(), []engine.Settlement{{Caller: w.c, Session: w.session, Outcomes: []drover.Outcome{ok(a, "1")}}}); r[0].Err == nil || !c.fired {
			t.Fatalf("the answer was not lost: %+v", r)
		}
		for range 3 { // it is told again, by the same worker and after its end
			if s := w.settle(ok(a, "1")); s[0].Err != nil || s[0].Status != drover.Succeeded {
				t.Fatalf("told again: %+v", s[0])
			}
			w.step("reap", w.ReapOnce)
		}
		w.pass(10 * time.Minute)
		w.step("reap", w.ReapOnce)
		for range 4 {
			w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		}
		w.want(id, drover.Succeeded)
		for _, name := range []string{"a", "b", "after"} {
			if n := w.entered[w.taskOf(id, name).ID]; n != 1 {
				t.Errorf("%s ran %d times", name, n)
			}
		}
		w.audit()
	})
}

// TestAMapOfAHundredThousandElements expands, few of them at a time, counts them as they
// end, and is stopped; a list that is longer than the map may be says so.
func TestAMapOfAHundredThousandElements(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		if raceDetector && w.db.Dialect() == driver.SQLite {
			return // slow, and the same without
		}
		const n = 100_000
		list := json.RawMessage(`{"list": [` + strings.TrimSuffix(strings.Repeat("0,", n), ",") + `]}`)
		src := "tasks:\n  m: {run: x, for_each: \"${{ input.list }}\", max_parallel: 50, min_success: 99%%, max_elements: %d}\n  end: {run: x, needs: [m]}\n"
		w.apply("pipeline: p\n" + fmt.Sprintf(src, n))
		id := w.submit(drover.NewJob{Pipeline: "p", Input: list})
		if j := w.job(id); j.Tasks.Total != n+1 {
			t.Fatalf("the job has %d tasks", j.Tasks.Total)
		}
		for from := 0; from < 150; from += 50 {
			held := w.acquire(500)
			if got := indexes(held); len(got) != 50 || got[0] != from || got[49] != from+49 {
				t.Fatalf("%d run: %v", len(got), got)
			}
			var out []drover.Outcome
			for _, l := range held {
				out = append(out, ok(l, "1"))
			}
			w.settle(out...)
		}
		if ended, waiting := w.count("SELECT ended FROM map_live"), w.count("SELECT waiting FROM map_live"); ended != 150 || waiting != n-200 {
			t.Errorf("%d have ended and %d wait", ended, waiting)
		}
		if _, err := w.Cancel(t.Context(), w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		if j := w.job(id); j.Status != drover.Cancelled || j.Tasks.Cancelled != n+1-150 || j.Tasks.Succeeded != 150 {
			t.Errorf("%s, %+v", j.Status, j.Tasks)
		}

		w.apply("pipeline: p\n" + fmt.Sprintf(src, n-1))
		id = w.submit(drover.NewJob{Pipeline: "p", Input: list})
		w.step("sweep", w.SweepOnce)
		w.want(id, drover.Failed)
		if f := w.taskOf(id, "m").Error; f == nil || f.Class != drover.ClassExpand ||
			f.Message != `for_each of task "m" gives 100000 elements, and the map may have 99999: raise max_elements, which may be up to 100000, or give each task several with batch_size` {
			t.Errorf("failed with %+v", f)
		}
	})
}
