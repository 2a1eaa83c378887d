package engine_test

import (
	"strings"
	"testing"

	"github.com/drover-dev/drover"
)

// What has gone wrong with graphs in other systems, and does not here. Beside the
// tests of this file:
//
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
