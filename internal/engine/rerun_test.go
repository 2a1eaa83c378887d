package engine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

// rerun runs a branch again and returns what becomes of each task: "name[0-2] does".
func (w *world) rerun(id drover.JobID, r engine.RerunRequest) []string {
	w.t.Helper()
	plan := r
	plan.DryRun, plan.ID = true, ""
	preview, err := w.Rerun(w.t.Context(), w.c, id, plan)
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := w.Rerun(w.t.Context(), w.c, id, r)
	if err != nil {
		w.t.Fatal(err)
	}
	told := func(list []drover.RerunTask) (words []string) {
		for _, t := range list {
			if t.Why == "" {
				w.t.Errorf("%s %s, and nothing says why", t.Task, t.Does)
			}
			if t.First == t.Last {
				words = append(words, fmt.Sprintf("%s[%d] %s", t.Task, t.First, t.Does))
			} else {
				words = append(words, fmt.Sprintf("%s[%d-%d] %s", t.Task, t.First, t.Last, t.Does))
			}
		}
		return words
	}
	if a, b := told(preview.Tasks), told(out.Tasks); !slices.Equal(a, b) || preview.Run != out.Run || !preview.DryRun || out.DryRun {
		w.t.Errorf("the preview says\n%v, run %d\nand was done\n%v, run %d", a, preview.Run, b, out.Run)
	}
	return told(out.Tasks)
}

func (w *world) refusesRerun(id drover.JobID, r engine.RerunRequest, code drover.Code, says string) {
	w.t.Helper()
	for _, dry := range []bool{true, false} {
		r.DryRun = dry
		_, err := w.Rerun(w.t.Context(), w.c, id, r)
		text := fmt.Sprint(err)
		if e := (*drover.Error)(nil); errors.As(err, &e) {
			for _, f := range e.Fields {
				text += " " + f.Field + " " + f.Message
			}
		}
		if drover.CodeOf(err) != code || !strings.Contains(text, says) {
			w.t.Errorf("rerun %v (dry %v): %s, want %s with %q", r.From, dry, text, code, says)
		}
	}
}

// TestARerunExpandsMapsAgain: what waits for the list runs over the new list alone; the
// old elements do not count, their history stays, and a longer list brings them back.
func TestARerunExpandsMapsAgain(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(`pipeline: p
tasks:
  list: {run: k}
  work: {run: k, for_each: "${{ tasks.list.output }}", with: {n: "${{ item }}"}}
  after: {run: k, for_each: work, with: {n: "${{ item }}"}}
  join: {run: k, with: {all: "${{ tasks.after.output }}"}}
`)
		id := w.submit(drover.NewJob{Pipeline: "p"})
		list, bad := "[1, 2, 3, 4, 5]", "work[1]"
		var inputs []string
		run := func() {
			t.Helper()
			w.quieten()
			inputs = nil
			w.work(func(l drover.Lease) drover.Outcome {
				if l.Name == "list" {
					return ok(l, list)
				}
				inputs = append(inputs, fmt.Sprintf("%s[%d] %s", l.Name, l.Index, l.Input))
				if fmt.Sprintf("%s[%d]", l.Name, l.Index) == bad {
					return failed(l, drover.ClassPermanent, "no")
				}
				var in struct{ N int }
				_ = json.Unmarshal(l.Input, &in)
				return ok(l, fmt.Sprint(in.N*10))
			})
			w.quieten()
			w.audit()
			if d := w.diverging(false); len(d) > 0 {
				t.Errorf("rows and records differ: %+v", d)
			}
		}
		run()
		w.want(id, drover.Failed)

		list, bad = "[7, 2, 9]", ""
		got := w.rerun(id, engine.RerunRequest{From: []string{"list"}})
		want := []string{"list[0] runs", "work[-1] expands", "work[0] gone", "work[1] gone", "work[2-4] gone"}
		if len(got) < 5 || !slices.Equal(got[:2], want[:2]) {
			t.Errorf("rerun of the list: %v", got)
		}
		if j := w.job(id); j.Run != 2 || j.Status.Final() {
			t.Errorf("job = %+v", j)
		}
		run()
		w.want(id, drover.Succeeded)
		slices.Sort(inputs)
		if s := strings.Join(inputs, ", "); s != `after[0] {"n":70}, after[1] {"n":20}, after[2] {"n":90}, join[0] {"all":[700,200,900]}, work[0] {"n":7}, work[1] {"n":2}, work[2] {"n":9}` {
			t.Errorf("inputs of the second run: %s", s)
		}
		gone := 0
		for _, x := range w.tasksOf(id) {
			if x.Gone {
				gone++
			}
		}
		if gone < 2 {
			t.Errorf("%d elements are gone, of five there are three", gone)
		}

		list = "[1, 2, 3, 4, 5, 6]"
		w.rerun(id, engine.RerunRequest{From: []string{"list"}})
		run()
		w.want(id, drover.Succeeded)
		slices.Sort(inputs)
		if s := inputs[len(inputs)-7]; len(inputs) != 13 || s != `join[0] {"all":[100,200,300,400,500,600]}` {
			t.Errorf("inputs of the third run: %v", inputs)
		}
		if j := w.job(id); j.Tasks.Total != 14 || j.Tasks.Skipped != 0 || j.Tasks.Succeeded != 14 {
			t.Errorf("counts = %+v", j.Tasks)
		}
		list = "[]"
		w.rerun(id, engine.RerunRequest{From: []string{"list"}})
		run()
		w.want(id, drover.Succeeded)
		if s := strings.Join(inputs, ", "); s != `join[0] {"all":[]}` {
			t.Errorf("inputs over an empty list: %s", s)
		}
		list = "[4]"
		w.rerun(id, engine.RerunRequest{Whole: true})
		run()
		w.want(id, drover.Succeeded)
		if s := strings.Join(inputs, ", "); !strings.Contains(s, `join[0] {"all":[400]}`) {
			t.Errorf("inputs of the whole job: %s", s)
		}
	})
}

// TestARerunReusesWhatIsUnchanged: a task with cache below what runs again ends with its
// result if its input comes to the same; the preview says so.
func TestARerunReusesWhatIsUnchanged(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(`pipeline: p
tasks:
  a: {run: k}
  b: {run: k, cache: true, with: {v: "${{ tasks.a.output }}"}}
  c: {run: k, cache: true, needs: [a]}
  d: {run: k, needs: [b, c, e]}
  e: {run: k}
`)
		id := w.submit(drover.NewJob{Pipeline: "p"})
		value := "1"
		run := func() string {
			t.Helper()
			names := w.work(func(l drover.Lease) drover.Outcome {
				if l.Name == "a" {
					return ok(l, value)
				}
				return ok(l, `"x"`)
			})
			w.want(id, drover.Succeeded)
			w.audit()
			slices.Sort(names)
			return strings.Join(names, " ")
		}
		run()
		for _, c := range []struct {
			value     string
			r         engine.RerunRequest
			does, ran string
		}{
			{"1", engine.RerunRequest{From: []string{"a"}}, "a[0] runs b[0] may_reuse c[0] reused d[0] runs e[0] stays", "a[0] d[0]"},
			{"2", engine.RerunRequest{From: []string{"a"}}, "a[0] runs b[0] may_reuse c[0] reused d[0] runs e[0] stays", "a[0] b[0] d[0]"},
			{"2", engine.RerunRequest{From: []string{"a"}, Fresh: true}, "a[0] runs b[0] runs c[0] runs d[0] runs e[0] stays", "a[0] b[0] c[0] d[0]"},
			{"2", engine.RerunRequest{From: []string{"b"}}, "a[0] stays b[0] runs c[0] stays d[0] runs e[0] stays", "b[0] d[0]"},
			{"2", engine.RerunRequest{Whole: true}, "a[0] runs b[0] may_reuse c[0] reused d[0] runs e[0] runs", "a[0] d[0] e[0]"},
		} {
			value = c.value
			if does := strings.Join(w.rerun(id, c.r), " "); does != c.does {
				t.Errorf("%+v: %s, want %s", c.r, does, c.does)
			}
			if ran := run(); ran != c.ran {
				t.Errorf("%+v: %s ran, want %s", c.r, ran, c.ran)
			}
		}
	})
}

// TestARerunOfWhatFailed brings back what the failure cut off, and leaves the rest.
func TestARerunOfWhatFailed(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(`pipeline: p
finally: [clean]
tasks:
  a: {run: k}
  b: {run: k, needs: [a]}
  c: {run: k, needs: [b]}
  slow: {run: k, needs: [a]}
  later: {run: k, needs: [slow]}
  clean: {run: k}
`)
		id := w.submit(drover.NewJob{Pipeline: "p"})
		w.work(func(l drover.Lease) drover.Outcome {
			if l.Name == "b" {
				return failed(l, drover.ClassPermanent, "no")
			}
			return ok(l, "1")
		})
		w.quieten()
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		w.quieten()
		w.want(id, drover.Failed)
		got := strings.Join(w.rerun(id, engine.RerunRequest{Failed: true, Request: engine.Request{ID: "one"}}), " ")
		if !strings.Contains(got, "a[0] stays b[0] runs c[0] runs") || !strings.Contains(got, "later[0] runs") || !strings.Contains(got, "clean[0] dormant") {
			t.Errorf("rerun of what failed: %s", got)
		}
		again, err := w.Rerun(t.Context(), w.c, id, engine.RerunRequest{Failed: true, Request: engine.Request{ID: "one"}})
		if err != nil || !again.Repeated || len(again.Tasks) != 0 || again.Run != 2 {
			t.Errorf("repeat = %+v, %v", again, err)
		}
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "2") })
		w.quieten()
		w.want(id, drover.Succeeded)
		if w.entered[w.taskOf(id, "a").ID] != 1 || w.entered[w.taskOf(id, "clean").ID] != 2 {
			t.Errorf("a ran %d times, clean %d", w.entered[w.taskOf(id, "a").ID], w.entered[w.taskOf(id, "clean").ID])
		}
		w.audit()
		w.gapless(id)
		w.refusesRerun(id, engine.RerunRequest{Failed: true}, drover.CodeInvalidTransition, "nothing has made good")
	})
}

// TestWhatWasCalledIsDormantAgain: a fallback counts no more once its task runs again.
func TestWhatWasCalledIsDormantAgain(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: k, fallback: b}\n  b: {run: k}\n  c: {run: k, with: {v: \"${{ tasks.a.output }}\"}}\n")
		id := w.submit(drover.NewJob{Pipeline: "p"})
		bad := true
		input := ""
		run := func() {
			w.work(func(l drover.Lease) drover.Outcome {
				switch {
				case l.Name == "a" && bad:
					return failed(l, drover.ClassPermanent, "no")
				case l.Name == "c":
					input = string(l.Input)
				}
				return ok(l, `"`+l.Name+`"`)
			})
			w.audit()
		}
		run()
		if j := w.want(id, drover.Succeeded); !j.Degraded || input != `{"v":"b"}` {
			t.Errorf("degraded %v, input %s", j.Degraded, input)
		}
		w.refusesRerun(id, engine.RerunRequest{Failed: true}, drover.CodeInvalidTransition, "nothing has made good")
		bad = false
		w.rerun(id, engine.RerunRequest{From: []string{"a"}})
		w.refusesRerun(id, engine.RerunRequest{From: []string{"b"}}, drover.CodeValidation, "runs only when it is called")
		run()
		if j := w.want(id, drover.Succeeded); j.Degraded || input != `{"v":"a"}` {
			t.Errorf("degraded %v, input %s", j.Degraded, input)
		}
		bad = true
		w.rerun(id, engine.RerunRequest{From: []string{"a"}})
		run()
		if j := w.want(id, drover.Succeeded); !j.Degraded || input != `{"v":"b"}` {
			t.Errorf("degraded %v, input %s", j.Degraded, input)
		}
	})
}

// TestARerunThatCannotBe is refused with place and remedy, and changes nothing.
func TestARerunThatCannotBe(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: k}\n  b: {run: k, needs: [a]}\n  x: {run: k}\n")
		id := w.submit(drover.NewJob{Pipeline: "p"})
		w.refusesRerun(id, engine.RerunRequest{Whole: true}, drover.CodeInvalidTransition, "is QUEUED")
		l := leasesByName(w.acquire(2))
		w.settle(ok(l["a"][0], "1"))
		b := w.one()
		w.refusesRerun(id, engine.RerunRequest{From: []string{"a"}}, drover.CodeInvalidTransition, `task "b" is RUNNING`)
		w.settle(ok(b, "1"))
		for _, c := range []struct {
			r    engine.RerunRequest
			code drover.Code
			says string
		}{
			{engine.RerunRequest{}, drover.CodeValidation, "exactly one of"},
			{engine.RerunRequest{Failed: true, Whole: true}, drover.CodeValidation, "exactly one of"},
			{engine.RerunRequest{From: []string{"nobody"}}, drover.CodeValidation, `from[0] job ` + id.String() + ` has no task "nobody"`},
			{engine.RerunRequest{From: []string{"a[3]"}}, drover.CodeValidation, "has no element 3"},
			{engine.RerunRequest{From: []string{"a", "b"}, Input: json.RawMessage("1")}, drover.CodeValidation, "input is that of one task"},
			{engine.RerunRequest{From: []string{"a"}, Input: json.RawMessage("{")}, drover.CodeValidation, "not valid JSON"},
			{engine.RerunRequest{From: []string{"x"}}, drover.CodeInvalidTransition, `task "x" is RUNNING`},
		} {
			w.refusesRerun(id, c.r, c.code, c.says)
		}
		// The other branch runs; this one runs again beside it.
		if got := strings.Join(w.rerun(id, engine.RerunRequest{From: []string{"b"}, Input: json.RawMessage(`{"edited":true}`)}), " "); got != "a[0] stays b[0] runs x[0] stays" {
			t.Errorf("rerun beside a running branch: %s", got)
		}
		if b = w.one(); string(b.Input) != `{"edited":true}` || b.Generation != 2 {
			t.Errorf("lease = %+v", b)
		}
		w.settle(ok(b, "1"), ok(l["x"][0], "1"))
		w.want(id, drover.Succeeded)
		if _, err := w.Rerun(t.Context(), engine.Caller{Tenant: 99}, id, engine.RerunRequest{Whole: true}); drover.CodeOf(err) != drover.CodeNotFound {
			t.Errorf("another tenant's: %v", err)
		}
		w.audit()
		w.gapless(id)
	})
}

// TestAKindJobRunsAgain: a job of one task is a branch of one.
func TestAKindJobRunsAgain(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		id := w.submit(drover.NewJob{Kind: "k", Input: json.RawMessage("1")})
		w.refusesRerun(id, engine.RerunRequest{Whole: true}, drover.CodeInvalidTransition, "has not ended")
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		w.refusesRerun(id, engine.RerunRequest{From: []string{"k[3]"}}, drover.CodeValidation, `task "k" has no element 3`)
		w.rerun(id, engine.RerunRequest{From: []string{"k"}, Input: json.RawMessage("2")})
		w.work(func(l drover.Lease) drover.Outcome {
			if string(l.Input) != "2" {
				t.Errorf("input = %s", l.Input)
			}
			return failed(l, drover.ClassPermanent, "no")
		})
		w.want(id, drover.Failed)
		w.rerun(id, engine.RerunRequest{Failed: true})
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "3") })
		if j := w.want(id, drover.Succeeded); j.Run != 3 {
			t.Errorf("run = %d", j.Run)
		}
		w.audit()
	})
}

// TestWhatWaitsForItsTimeIsInTheWay of a rerun, and the preview says so, too.
func TestWhatWaitsForItsTimeIsInTheWay(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: k}\n  b: {run: k, needs: [a]}\n  c: {run: k, needs: [b]}\n")
		id := w.submit(drover.NewJob{Pipeline: "p", DueAt: w.clock.now().Add(time.Hour)})
		if _, err := w.mark(id, "a", drover.Succeeded, "1"); err != nil {
			t.Fatal(err)
		}
		w.refusesRerun(id, engine.RerunRequest{From: []string{"a"}}, drover.CodeInvalidTransition, `in the way: task "b" waits for its start time`)
		w.audit()
	})
}

// TestARerunSurvivesTheLossOfItsRows: the records tell what a rerun has opened.
func TestARerunSurvivesTheLossOfItsRows(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: k}\n  m: {run: k, for_each: \"${{ tasks.a.output }}\"}\n  z: {run: k, needs: [m]}\n")
		id := w.submit(drover.NewJob{Pipeline: "p"})
		all := func(l drover.Lease) drover.Outcome { return ok(l, "[1, 2]") }
		w.work(all)
		w.want(id, drover.Succeeded)
		w.rerun(id, engine.RerunRequest{From: []string{"a"}})
		w.exec("DELETE FROM task_pending WHERE job_id = " + w.literal(id))
		if d := w.diverging(true); len(d) != 1 {
			t.Fatalf("divergences = %+v", d)
		}
		if s := w.settle(all(w.one()))[0]; s.Err != nil { // a
			t.Fatal(s.Err)
		}
		w.exec("DELETE FROM task_queued WHERE job_id = " + w.literal(id))
		if d := w.diverging(true); len(d) != 1 {
			t.Fatalf("divergences = %+v", d)
		}
		w.quieten()
		w.work(all)
		w.quieten()
		w.want(id, drover.Succeeded)
		if got := strings.Join(w.places(id), ", "); got != "a[0] SUCCEEDED 2, m[0] SUCCEEDED 3, m[1] SUCCEEDED 3, z[0] SUCCEEDED 2" {
			t.Errorf("tasks = %s", got)
		}
		w.audit()
	})
}

// TestMapsWithBoundsAreLeftAlone: a rerun or a mark that would reach the tasks of a map
// with max_parallel or min_success is refused by name; beside and below such a map both
// go on, and what is counted of it stays true.
func TestMapsWithBoundsAreLeftAlone(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(`pipeline: p
on_failure: continue
tasks:
  first: {run: k}
  work: {run: k, for_each: [1, 2, 3], needs: [first], max_parallel: 2, min_success: 2}
  join: {run: k, needs: [work]}
  beside: {run: k, needs: [first]}
  wide: {run: k, for_each: [1, 2], needs: [join]}
`)
		id := w.submit(drover.NewJob{Pipeline: "p"})
		w.settle(ok(w.one(), "1")) // first
		held := w.acquire(10)
		for _, x := range w.tasksNamed(id, "work") {
			_, err := w.Mark(t.Context(), w.c, x.ID, engine.MarkRequest{Request: engine.Request{Reason: "by hand"}, Status: drover.Succeeded})
			if drover.CodeOf(err) != drover.CodeInvalidTransition || !strings.Contains(err.Error(), `map "work" has max_parallel or min_success, and a mark`) {
				t.Errorf("mark of work[%d], %s: %v", x.Index, x.Status, err)
			}
		}
		w.refusesRerun(id, engine.RerunRequest{From: []string{"first"}}, drover.CodeInvalidTransition, `map "work" has max_parallel or min_success, and a rerun`)
		bad := 1
		end := func(l drover.Lease) drover.Outcome {
			if l.Name == "work" && l.Index == bad || l.Name == "beside" {
				return failed(l, drover.ClassPermanent, "no")
			}
			return ok(l, "1")
		}
		for _, l := range held {
			w.settle(end(l))
		}
		w.work(end)
		w.quieten()
		w.want(id, drover.Failed) // because of beside; the element is made good
		for _, from := range []string{"first", "work", "work[0]"} {
			w.refusesRerun(id, engine.RerunRequest{From: []string{from}}, drover.CodeInvalidTransition, `map "work" has max_parallel or min_success, and a rerun`)
		}
		w.refusesRerun(id, engine.RerunRequest{Whole: true}, drover.CodeInvalidTransition, `map "work" has max_parallel`)
		bad = -1
		w.rerun(id, engine.RerunRequest{From: []string{"join"}})
		w.audit()
		ran := map[string]int{}
		w.work(func(l drover.Lease) drover.Outcome { ran[l.Name]++; return ok(l, "2") })
		w.quieten()
		if len(ran) != 2 || ran["join"] != 1 || ran["wide"] != 2 {
			t.Errorf("a rerun from join ran %v", ran)
		}
		w.want(id, drover.Failed)
		if _, err := w.mark(id, "beside", drover.Succeeded, `3`); err != nil {
			t.Fatal(err)
		}
		w.want(id, drover.Succeeded)
		w.rerun(id, engine.RerunRequest{From: []string{"beside"}})
		w.work(func(l drover.Lease) drover.Outcome { return failed(l, drover.ClassPermanent, "no") })
		w.want(id, drover.Failed)
		w.rerun(id, engine.RerunRequest{Failed: true}) // the element has been made good
		w.audit()
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "2") })
		w.want(id, drover.Succeeded)
		w.audit()
		if list := w.diverging(false); len(list) > 0 {
			t.Errorf("rows and records differ: %+v", list)
		}
	})
}

// TestAJobThatAMapHasStopped: while a map cannot come to its min_success, nothing beside
// it runs again, as the job would stop at that at once; a replay of an element mends it.
func TestAJobThatAMapHasStopped(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(`pipeline: p
tasks:
  beside: {run: k}
  work: {run: k, for_each: [1, 2], needs: [beside], min_success: 2}
  other: {run: k}
`)
		id := w.submit(drover.NewJob{Pipeline: "p"})
		w.work(func(l drover.Lease) drover.Outcome {
			if l.Name == "work" && l.Index == 1 {
				return failed(l, drover.ClassPermanent, "no")
			}
			return ok(l, "1")
		})
		w.quieten()
		w.want(id, drover.Failed)
		w.refusesRerun(id, engine.RerunRequest{From: []string{"other"}}, drover.CodeInvalidTransition, `of the elements of map "work" too many failed for min_success: 2`)
		for _, x := range w.tasksNamed(id, "work") {
			if x.Status != drover.Failed {
				continue
			}
			if _, err := w.Replay(t.Context(), w.c, x.ID, engine.ReplayRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		w.quieten()
		w.want(id, drover.Succeeded)
		w.rerun(id, engine.RerunRequest{From: []string{"other"}})
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		w.want(id, drover.Succeeded)
		w.audit()
	})
}

// tasksNamed returns the tasks of a name.
func (w *world) tasksNamed(id drover.JobID, name string) []drover.Task {
	w.t.Helper()
	list, err := w.Tasks(w.t.Context(), w.c, engine.TaskQuery{Job: id, Limit: 1000})
	if err != nil {
		w.t.Fatal(err)
	}
	return slices.DeleteFunc(list, func(x drover.Task) bool { return x.Name != name })
}
