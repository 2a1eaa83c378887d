package engine_test

import (
	"strings"
	"testing"

	"github.com/drover-dev/drover"
)

const typed = `pipeline: typed
tasks:
  score:
    run: score
    for_each: "${{ input.list }}"
    retry: {max_attempts: 5}
    output:
      type: object
      required: [value]
      properties: {value: {type: number, minimum: 0}, notes: {type: array, items: {type: string}}}
  sum: {run: sum, with: "${{ tasks.score.output }}"}
`

func TestOutputsThatDoNotFitTheirSchemaFailForGood(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(typed)
		id := w.submit(drover.NewJob{Pipeline: "typed", Input: []byte(`{"list": [1, 2]}`)})
		ls := w.acquire(10)
		if len(ls) != 2 {
			t.Fatalf("%d leases", len(ls))
		}
		bad := ok(ls[1], `{"value": -1, "notes": ["a", 2]}`)
		out := w.settle(ok(ls[0], `{"value": 1}`), bad)
		if out[0].Status != drover.Succeeded || out[1].Status != drover.Failed {
			t.Fatalf("settled = %+v", out)
		}
		if again := w.settle(bad); again[0].Err != nil || again[0].Status != drover.Failed {
			t.Errorf("a repeat is answered with %+v", again[0])
		}
		task, err := w.Task(t.Context(), w.c, ls[1].TaskID)
		if err != nil {
			t.Fatal(err)
		}
		if f := task.Error; f == nil || f.Class != drover.ClassPermanent || f.Type != "output_schema" || !strings.Contains(f.Message, "output.notes[1]: ") || !strings.Contains(f.Message, "output.value: ") {
			t.Errorf("error = %+v", f)
		}
		if task.Attempt != 1 || len(task.Output) != 0 {
			t.Errorf("task = %+v: want one attempt and no output", task)
		}
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, `{}`) })
		w.want(id, drover.Failed)
	})
}

func TestAnOutputThatIsNotThereIsNull(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: a, output: {type: object}}\n  b: {run: b, output: {type: 'null'}}\n")
		id := w.submit(drover.NewJob{Pipeline: "p"})
		for _, l := range w.acquire(10) {
			s := w.settle(ok(l, ""))
			if want := map[string]drover.Status{"a": drover.Failed, "b": drover.Succeeded}[l.Name]; s[0].Status != want {
				t.Errorf("%s = %+v, want %s", l.Name, s[0], want)
			}
		}
		w.want(id, drover.Failed)
	})
}
