package engine_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/drover-dev/drover"
)

// TestConditionsDecide over tasks, maps and elements, from outputs that were stored
// before and from such as have just come.
func TestConditionsDecide(t *testing.T) {
	const src = `pipeline: judged
on_failure: continue
input: {type: object, properties: {publish: {type: boolean, default: true}}}
tasks:
  list: {run: x}
  quality: {run: x, needs: [list]}
  manifest: {run: x, if: "tasks.quality.output.passed && input.publish"}
  alarm: {run: x, if: "!tasks.quality.output.passed"}
  after: {run: x, needs: [alarm]}
  report: {run: x, needs: [alarm, manifest], when: none_failed}
  whole: {run: x, for_each: "${{ tasks.list.output }}", if: "tasks.quality.output.passed"}
  each: {run: x, default: 0, for_each: "${{ tasks.list.output }}", if: "item > 1 && index < 2"}
  next: {run: x, for_each: each, when: all_done, if: "tasks.each.outcome == 'skipped'", with: "${{ index }}"}
  sum: {run: x, when: all_done, needs: [each], with: "${{ tasks.each.output }}"}
  broken: {run: x, if: "tasks.quality.output.nothing > 1"}
  below: {run: x, needs: [broken], when: one_failed}
`
	each(t, func(t *testing.T, w *world) {
		w.apply(src)
		id := w.submit(drover.NewJob{Pipeline: "judged"})
		sum := ""
		w.work(func(l drover.Lease) drover.Outcome {
			switch l.Name {
			case "list":
				return ok(l, "[1, 2, 3]")
			case "quality":
				return ok(l, `{"passed": true}`)
			case "sum":
				sum = string(l.Input)
			}
			return ok(l, "7")
		})
		w.want(id, drover.Failed) // broken
		want := "after:skip alarm:skip below:ok broken:fail each[0]:skip each[1]:ok each[2]:skip list:ok manifest:ok next[0]:ok next[1]:skip next[2]:ok quality:ok report:ok sum:ok whole[0]:ok whole[1]:ok whole[2]:ok"
		if got := w.told(id); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
		if sum != "[0,7,0]" {
			t.Errorf("the list of a map some of whose elements were skipped, and which has a default: %s", sum)
		}
		x := w.taskOf(id, "broken")
		if x.Status != drover.Failed || x.Error.Class != drover.ClassInput || !strings.Contains(x.Error.Message, `tasks.broken.if: tasks.quality.output.nothing > 1: ${{ tasks.quality.output.nothing }}: tasks.quality.output has no member "nothing"; it has "passed"`) {
			t.Errorf("broken: %s %+v", x.Status, x.Error)
		}
		told := false
		for _, e := range w.gapless(id) {
			told = told || e.Type == drover.TaskSkipped && strings.Contains(string(e.Data), `"reason":"if: !tasks.quality.output.passed"`)
		}
		if !told {
			t.Error("no event says which condition was false")
		}
		w.audit()
	})
}

// TestConditionsOfTheInputAreTold at once, when the job is submitted.
func TestConditionsOfTheInputAreTold(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: x, if: 'input.go'}\n  b: {run: x, needs: [a]}\n  c: {run: x, for_each: [1, 2], if: 'input.go'}\n  d: {run: x, for_each: c}\n")
		id := w.submit(drover.NewJob{Pipeline: "p", Input: json.RawMessage(`{"go": false}`)})
		w.want(id, drover.Succeeded)
		if got := w.told(id); got != "a:skip b:skip c[-1]:skip d[-1]:skip" {
			t.Error(got)
		}
		w.audit()
		id = w.submit(drover.NewJob{Pipeline: "p", Input: json.RawMessage(`{"go": true}`)})
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		w.want(id, drover.Succeeded)
		if got := w.told(id); got != "a:ok b:ok c[0]:ok c[1]:ok d[0]:ok d[1]:ok" {
			t.Error(got)
		}
		w.audit()
	})
}
