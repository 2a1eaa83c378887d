package engine_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

// TestAFallbackStandsIn for a task that has failed, and for elements of a map: those
// below see its output and count its end.
func TestAFallbackStandsIn(t *testing.T) {
	const src = `pipeline: p
tasks:
  list: {run: x}
  infer: {run: x, for_each: "${{ tasks.list.output }}", with: {of: "${{ item }}"}, fallback: infer-small}
  infer-small: {run: x, fallback: infer-none}
  infer-none: {run: x, with: {none: "${{ index }}"}}
  page: {run: x, for_each: infer, with: "${{ item }}"}
  book: {run: x, with: "${{ tasks.infer.output }}"}
  one: {run: x, needs: [list], with: {a: "${{ tasks.list.output[0] }}"}, fallback: other}
  other: {run: x}
  end: {run: x, with: "${{ tasks.one.output }}"}
`
	each(t, func(t *testing.T, w *world) {
		w.apply(src)
		id := w.submit(drover.NewJob{Pipeline: "p"})
		inputs := map[string]string{}
		fails := map[string]bool{"infer[1]": true, "infer[2]": true, "infer-small[2]": true, "one[0]": true}
		for range 10 {
			w.work(func(l drover.Lease) drover.Outcome {
				name := fmt.Sprintf("%s[%d]", l.Name, l.Index)
				inputs[name] = string(l.Input)
				switch {
				case l.Name == "list":
					return ok(l, `["a", "b", "c"]`)
				case fails[name]:
					return failed(l, drover.ClassPermanent, "no")
				}
				return ok(l, `"`+name+`"`)
			})
		}
		j := w.want(id, drover.Succeeded)
		if !j.Degraded || j.Tasks.Failed != 4 {
			t.Errorf("degraded %v, %d failed", j.Degraded, j.Tasks.Failed)
		}
		for name, want := range map[string]string{
			"infer-small[1]": `{"of":"b"}`, "infer-small[2]": `{"of":"c"}`, "infer-none[2]": `{"none":2}`,
			"page[0]": `"infer[0]"`, "page[1]": `"infer-small[1]"`, "page[2]": `"infer-none[2]"`,
			"book[0]":  `["infer[0]","infer-small[1]","infer-none[2]"]`,
			"other[0]": `{"a":"a"}`, "end[0]": `"other[0]"`,
		} {
			if inputs[name] != want {
				t.Errorf("%s was given %s, want %s", name, inputs[name], want)
			}
		}
		if _, ran := inputs["infer-small[0]"]; ran {
			t.Error("a fallback ran for a task that succeeded")
		}
		w.audit()

		// Replayed, the task counts again, and what stood in for it no more.
		if err := w.replay(id, "one", 0); err != nil {
			t.Fatal(err)
		}
		w.audit()
		delete(fails, "one[0]")
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		if j := w.want(id, drover.Succeeded); j.Tasks.Failed != 3 {
			t.Errorf("%d failed", j.Tasks.Failed)
		}
		w.audit()
	})
}

// TestAFallbackThatFailsToo fails the job, and one that is called again begins anew.
func TestAFallbackThatFailsToo(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: x, fallback: b}\n  b: {run: x}\n  c: {run: x, needs: [a]}\n")
		id := w.submit(drover.NewJob{Pipeline: "p"})
		w.settle(failed(w.one(), drover.ClassPermanent, "no"))
		b := w.one()
		if err := w.replay(id, "a", 0); drover.CodeOf(err) != drover.CodeInvalidTransition || !strings.Contains(err.Error(), `task "b" is running in the place of task "a"`) {
			t.Errorf("replay of a task whose fallback runs: %v", err)
		}
		w.settle(failed(b, drover.ClassPermanent, "no"))
		w.quieten()
		if j := w.want(id, drover.Failed); j.Degraded || j.Tasks.Failed != 2 {
			t.Errorf("%+v", j)
		}
		w.audit()
		if err := w.replay(id, "a", 0); err != nil {
			t.Fatal(err)
		}
		w.audit()
		w.settle(failed(w.one(), drover.ClassPermanent, "no"))
		l := w.one()
		if l.Name != "b" || l.Generation != 2 {
			t.Errorf("called again: %s, generation %d", l.Name, l.Generation)
		}
		w.settle(ok(l, "1"))
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		w.want(id, drover.Succeeded)
		if got := w.told(id); got != "a:fail b:ok c:ok" {
			t.Error(got)
		}
		w.audit()
	})
}

// TestATaskMayFailDegraded: those below go on with what stands in.
func TestATaskMayFailDegraded(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: x, on_failure: degrade, default: {cached: true}}\n  b: {run: x, with: \"${{ tasks.a.output }}\"}\n")
		id := w.submit(drover.NewJob{Pipeline: "p"})
		w.settle(failed(w.one(), drover.ClassPermanent, "no"))
		l := w.one()
		if string(l.Input) != `{"cached":true}` {
			t.Errorf("input = %s", l.Input)
		}
		if j := w.job(id); !j.Degraded {
			t.Error("the job does not say that it is degraded")
		}
		w.settle(ok(l, "1"))
		if j := w.want(id, drover.Succeeded); !j.Degraded {
			t.Errorf("%+v", j)
		}
		w.audit()
		if err := w.replay(id, "a", 0); err != nil {
			t.Fatal(err)
		}
		w.audit()
		w.settle(ok(w.one(), "1"))
		if j := w.want(id, drover.Succeeded); j.Degraded {
			t.Errorf("degraded after a replay that went well: %+v", j)
		}
		w.audit()
	})
}

// TestWhatRunsAtTheEnd: the rescue when a failure was not made good, what is final
// whatever happened, once, and before the job is final.
func TestWhatRunsAtTheEnd(t *testing.T) {
	const src = `pipeline: p
rescue: mend
finally: [tidy, tell]
tasks:
  a: {run: x}
  b: {run: x, needs: [a]}
  mend: {run: x}
  tidy: {run: x}
  tell: {run: x}
`
	for _, tc := range []struct {
		name, end, told string
		fails           map[string]string
		status          drover.Status
		degraded        bool
	}{
		{"all went well", "", "a:ok b:ok tell:ok tidy:ok", nil, drover.Succeeded, false},
		{"a failure that is rescued", "", "a:fail b:skip mend:ok tell:ok tidy:ok", map[string]string{"a": "fail"}, drover.Succeeded, true},
		{"a failure that is not", "", "a:fail b:skip mend:fail tell:ok tidy:ok", map[string]string{"a": "fail", "mend": "fail"}, drover.Failed, false},
		{"the end fails", "", "a:ok b:ok tell:ok tidy:fail", map[string]string{"tidy": "fail"}, drover.Failed, false},
		{"rescued, and the end fails", "", "a:fail b:skip mend:ok tell:ok tidy:fail", map[string]string{"a": "fail", "tidy": "fail"}, drover.Failed, true},
		{"a cancel", "cancel", "a:cancelled b:cancelled tell:ok tidy:ok", nil, drover.Cancelled, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			each(t, func(t *testing.T, w *world) {
				w.apply(src)
				id := w.submit(drover.NewJob{Pipeline: "p"})
				if tc.end == "cancel" {
					l := w.one()
					if _, err := w.Cancel(t.Context(), w.c, id, engine.Request{}); err != nil {
						t.Fatal(err)
					}
					w.settle(drover.Outcome{TaskID: l.TaskID, LeaseVersion: 1, Status: drover.OutcomeCancelled})
					w.quieten()
					if j := w.job(id); j.Status.Final() {
						t.Fatalf("the job is %s before what runs at its end", j.Status)
					}
				}
				if got := w.story(id, tc.fails); got != tc.told {
					t.Errorf("%s\nwant %s", got, tc.told)
				}
				if j := w.want(id, tc.status); j.Degraded != tc.degraded {
					t.Errorf("degraded: %v", j.Degraded)
				}
				for task, n := range w.entered {
					if n != 1 {
						t.Errorf("%s ran %d times", task, n)
					}
				}
				w.audit()
				if tc.name == "a failure that is not" { // replayed, it comes to its end anew, and the rescue mends itself
					if err := w.replay(id, "a", 0); err != nil {
						t.Fatal(err)
					}
					if got := w.story(id, nil); got != "a:ok b:ok mend:ok tell:ok tidy:ok" {
						t.Error(got)
					}
				}
			})
		})
	}
}
