package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store/driver"
)

const inner = "pipeline: inner\ninput: {type: object, required: [n]}\ntasks:\n  a: {run: x, with: {n: \"${{ input.n }}\"}}\n  m: {run: x, for_each: \"${{ tasks.a.output }}\", with: \"${{ item }}\"}\n"

// childOf is the job that a task runs.
func (w *world) childOf(id drover.JobID, name string, index int) drover.JobID {
	w.t.Helper()
	for _, t := range w.tasksOf(id) {
		if t.Name == name && t.Index == index {
			return t.ChildJobID
		}
	}
	return drover.JobID{}
}

// TestATaskRunsAPipeline as a job of its own: with its input, of one trace, and its
// result is the task's output. Meanwhile the task waits and holds nothing.
func TestATaskRunsAPipeline(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(inner)
		w.apply("pipeline: outer\ntasks:\n  list: {run: x}\n  sub: {pipeline: inner, for_each: \"${{ tasks.list.output }}\", with: {n: \"${{ item }}\"}}\n  one: {pipeline: inner@1, needs: [sub], with: {n: 7}}\n  end: {run: x, with: {all: \"${{ tasks.sub.output }}\", one: \"${{ tasks.one.output[0] }}\"}}\n")
		id := w.submit(drover.NewJob{Pipeline: "outer", Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
		w.settle(ok(w.one(), "[1, 2, 3]"))
		child := w.childOf(id, "sub", 1)
		j := w.job(child)
		if j.ParentJobID != id || j.TraceID != w.job(id).TraceID || j.Pipeline != "inner" || string(j.Input) != `{"n":2}` {
			t.Fatalf("the child is %+v", j)
		}
		if p := w.job(id); p.Tasks.Waiting != 3 || len(p.Children) != 3 {
			t.Errorf("the parent is %+v", p)
		}
		sub := w.tasksOf(id)[1]
		if sub.Status != drover.Waiting || len(sub.Blockers) != 1 || sub.Blockers[0].Code != drover.BlockerChildJob || sub.Blockers[0].Subject.Name != w.childOf(id, "sub", 0).String() {
			t.Errorf("the task is %+v", sub)
		}
		w.audit()
		var last string
		for range 10 {
			w.work(func(l drover.Lease) drover.Outcome {
				switch l.Name {
				case "a":
					var in struct{ N int }
					_ = json.Unmarshal(l.Input, &in)
					return ok(l, fmt.Sprintf("[%d, %d]", in.N*10, in.N*10+1))
				case "m":
					return ok(l, string(l.Input))
				}
				last = string(l.Input)
				return ok(l, "1")
			})
		}
		w.want(id, drover.Succeeded)
		if want := `{"all":[[10,11],[20,21],[30,31]],"one":70}`; last != want {
			t.Errorf("the last task was given %s, want %s", last, want)
		}
		w.want(child, drover.Succeeded)
		w.audit()
		if list := w.diverging(false); len(list) > 0 {
			t.Errorf("reconciliation: %v", list)
		}
	})
}

// TestAChildWhoseRowIsLostIsFoundAgain: its task makes no second one, and learns of its end,
// also when that has come meanwhile; a pause of the parent reaches it.
func TestAChildWhoseRowIsLostIsFoundAgain(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: inner\ntasks: {a: {run: x}}\n")
		w.apply("pipeline: outer\ntasks:\n  sub: {pipeline: inner, for_each: [1, 2, 3]}\n")
		for _, when := range []string{"while it runs", "after its end", "while its parent is paused"} {
			id := w.submit(drover.NewJob{Pipeline: "outer"})
			children := map[drover.JobID]bool{}
			for i := range 3 {
				children[w.childOf(id, "sub", i)] = true
			}
			w.exec("DELETE FROM job_children WHERE job_id = " + w.literal(id))
			switch when {
			case "after its end":
				w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
			case "while its parent is paused":
				if _, err := w.Pause(t.Context(), w.c, id, engine.Request{}); err != nil {
					t.Fatal(err)
				}
			}
			for range 4 {
				w.pass(lookLate)
				w.step("timers", w.TimersOnce)
				w.step("children", w.ChildrenOnce)
				w.step("sweep", w.SweepOnce)
			}
			w.open()
			if when == "while its parent is paused" {
				for c := range children {
					if !w.job(c).Paused {
						t.Errorf("%s: the child is not paused", when)
					}
				}
				if _, err := w.Resume(t.Context(), w.c, id, engine.Request{}); err != nil {
					t.Fatal(err)
				}
				w.step("children", w.ChildrenOnce)
			}
			w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
			w.quieten()
			w.want(id, drover.Succeeded)
			for i := range 3 {
				if c := w.childOf(id, "sub", i); !children[c] {
					t.Errorf("%s: %s is no child of the first", when, c)
				}
			}
			if n := w.count("SELECT count(*) FROM jobs WHERE parent_task IN (SELECT id FROM tasks WHERE job_id = " + w.literal(id) + ")"); n != 3 {
				t.Errorf("%s: %d children were made", when, n)
			}
		}
		w.audit()
	})
}

// lookLate is longer than a task goes without being looked at that waits for a job.
const lookLate = 6 * time.Minute

// TestAChildThatDoesNotEndWell fails its task, which says which job and why; a replay of
// the task runs another job.
func TestAChildThatDoesNotEndWell(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(inner)
		w.apply("pipeline: outer\ntasks:\n  sub: {pipeline: inner, with: {n: 1}}\n  end: {run: x, needs: [sub]}\n")
		id := w.submit(drover.NewJob{Pipeline: "outer"})
		first := w.childOf(id, "sub", 0)
		w.settle(failed(w.one(), drover.ClassPermanent, "broken"))
		w.quieten()
		w.want(first, drover.Failed)
		w.want(id, drover.Failed)
		sub := w.taskOf(id, "sub")
		if e := sub.Error; sub.Status != drover.Failed || e.Type != "child_failed" || e.Message != "job "+first.String()+" (inner@1) FAILED: task a: broken" {
			t.Errorf("%+v %+v", sub, sub.Error)
		}
		if err := w.replay(id, "sub", 0); err != nil {
			t.Fatal(err)
		}
		second := w.childOf(id, "sub", 0)
		if second == first || second.IsZero() {
			t.Fatalf("the replay runs %s again", second)
		}
		w.audit()
		if _, err := w.Cancel(t.Context(), w.c, second, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		w.quieten()
		w.want(id, drover.Failed)
		if e := w.taskOf(id, "sub").Error; e.Type != "child_cancelled" || e.Class != drover.ClassPermanent {
			t.Errorf("%+v", e)
		}
		if err := w.replay(id, "sub", 0); err != nil {
			t.Fatal(err)
		}
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "[]") })
		w.want(id, drover.Succeeded)
		w.audit()
	})
}

// TestAnInputThatDoesNotFitTheChild fails the task, and no job is made.
func TestAnInputThatDoesNotFitTheChild(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(inner)
		w.apply("pipeline: outer\ntasks:\n  sub: {pipeline: inner, with: {m: 1}}\n")
		id := w.submit(drover.NewJob{Pipeline: "outer"})
		w.want(id, drover.Failed)
		if e := w.taskOf(id, "sub").Error; e.Class != drover.ClassInput || !strings.Contains(e.Message, "pipeline inner was not run") {
			t.Errorf("%+v", e)
		}
		if n := len(w.jobs()); n != 1 {
			t.Errorf("%d jobs", n)
		}
		w.audit()
	})
}

// TestCancelAndPauseReachTheChildren, two levels down; what is abandoned goes on.
func TestCancelAndPauseReachTheChildren(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: leaf\ntasks: {a: {run: x}, b: {run: x, needs: [a]}}\n")
		w.apply("pipeline: mid\ntasks: {sub: {pipeline: leaf}}\n")
		w.apply("pipeline: top\non_failure: continue\ntasks: {sub: {pipeline: mid}, other: {pipeline: leaf, parent_close: abandon}}\n")
		id := w.submit(drover.NewJob{Pipeline: "top"})
		mid, other := w.childOf(id, "sub", 0), w.childOf(id, "other", 0)
		leaf := w.childOf(mid, "sub", 0)
		if _, err := w.Pause(t.Context(), w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		if !w.job(mid).Paused || !w.job(leaf).Paused || w.job(other).Paused {
			t.Errorf("paused: %v %v, abandoned %v", w.job(mid).Paused, w.job(leaf).Paused, w.job(other).Paused)
		}
		got := w.acquire(5)
		if len(got) != 1 || got[0].JobID != other {
			t.Fatalf("claimed of paused jobs: %+v", got)
		}
		if _, err := w.Resume(t.Context(), w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		w.quieten()
		if w.job(mid).Paused || w.job(leaf).Paused {
			t.Error("a child stays paused")
		}
		l := w.one()
		if _, err := w.Cancel(t.Context(), w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		if j := w.job(leaf); !j.Cancelling {
			t.Errorf("the leaf is %+v", j)
		}
		if j := w.job(id); j.Status.Final() {
			t.Error("the job has ended before what it runs")
		}
		w.settle(drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeCancelled})
		w.quieten()
		for _, j := range []drover.JobID{leaf, mid, id} {
			w.want(j, drover.Cancelled)
		}
		w.settle(ok(got[0], "1"))
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		w.want(other, drover.Succeeded)
		w.audit()
	})
}

// TestOnlyChildrenThatLiveAreAsked: what has ended, or was never made, has nothing to be
// told, and takes no place among the children that are shown.
func TestOnlyChildrenThatLiveAreAsked(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: leaf\ninput: {type: integer}\ntasks: {a: {run: x}}\n")
		w.apply("pipeline: top\non_failure: continue\ntasks: {sub: {pipeline: leaf, for_each: [" + strings.Repeat(`"", `, 110) + "1, 2]}}\n")
		id := w.submit(drover.NewJob{Pipeline: "top"})
		w.quieten()
		w.settle(ok(w.acquire(1)[0], "1"))
		w.quieten()
		if n := len(w.job(id).Children); n != 2 {
			t.Errorf("%d children are shown, want 2", n)
		}
		asked := map[string]int64{}
		w.db.Driver = &affects{w.db.Driver, asked}
		if _, err := w.Pause(t.Context(), w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		if n := asked["ask something of children"]; n != 1 {
			t.Errorf("%d children were asked to pause, 1 lives", n)
		}
		if _, err := w.Cancel(t.Context(), w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		w.quieten()
		w.audit()
	})
}

// affects is a driver that counts how many rows statements change.
type affects struct {
	driver.Driver
	rows map[string]int64
}

func (a *affects) Write(ctx context.Context, fn func(driver.Tx) error) error {
	return a.Driver.Write(ctx, func(tx driver.Tx) error { return fn(affectsTx{tx, a.rows}) })
}

type affectsTx struct {
	driver.Tx
	rows map[string]int64
}

func (x affectsTx) Pipe(ctx context.Context, list ...driver.Stmt) error {
	err := x.Tx.Pipe(ctx, list...)
	for _, s := range list {
		if s.Affected != nil {
			x.rows[s.Text.Name] += *s.Affected
		}
	}
	return err
}

// TestAFailureStopsWhatTheOthersRun, unless what runs may end.
func TestAFailureStopsWhatTheOthersRun(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: leaf\ntasks: {a: {run: slow}}\n")
		for policy, want := range map[string]string{"fail_fast": "sub:cancelled z:fail", "finish_running": "sub:ok z:fail", "continue": "sub:ok z:fail"} {
			w.apply("pipeline: top\non_failure: " + policy + "\ntasks: {sub: {pipeline: leaf}, z: {run: x}}\n")
			id := w.submit(drover.NewJob{Pipeline: "top"})
			held := w.acquire(5)
			slices.SortFunc(held, func(a, b drover.Lease) int { return strings.Compare(a.Kind, b.Kind) })
			w.settle(failed(held[1], drover.ClassPermanent, "no"))
			w.quieten()
			if policy == "fail_fast" {
				w.settle(drover.Outcome{TaskID: held[0].TaskID, LeaseVersion: held[0].LeaseVersion, Status: drover.OutcomeCancelled})
			} else {
				w.settle(ok(held[0], "1"))
			}
			w.quieten()
			if got := w.told(id); got != want {
				t.Errorf("%s: %s, want %s", policy, got, want)
			}
			w.want(id, drover.Failed)
			w.audit()
		}
	})
}

// TestWhatRunsItselfIsRefused, and what is not there, with its place.
func TestWhatRunsItselfIsRefused(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: a\ntasks: {x: {run: x}}\n")
		w.apply("pipeline: b\ntasks: {x: {pipeline: a}}\n")
		for i := range 12 {
			sub := "b"
			if i > 0 {
				sub = fmt.Sprintf("d%d", i-1)
			}
			_, err := w.RegisterPipeline(t.Context(), w.c, "p.yaml", fmt.Appendf(nil, "pipeline: d%d\ntasks: {x: {pipeline: %s}}\n", i, sub))
			if deep := i > 5; (err != nil) != deep {
				t.Errorf("d%d: %v", i, err)
			}
			if err != nil {
				break
			}
		}
		for src, want := range map[string]string{
			"pipeline: a\ntasks:\n  x: {pipeline: b}\n":                           `tasks.x.pipeline: the pipeline would run itself: a → b → a`,
			"pipeline: a\ntasks:\n  x: {pipeline: a}\n":                           `tasks.x.pipeline: the pipeline would run itself: a → a`,
			"pipeline: c\ntasks:\n  x: {pipeline: b@3}\n":                         `tasks.x.pipeline: there is no pipeline b@3; register it first`,
			"pipeline: c\ntasks:\n  x: {pipeline: nowhere}\n":                     `there is no pipeline nowhere`,
			"pipeline: c\ntasks:\n  x: {pipeline: b, run: x}\n":                   `tasks.x.run: task "x" runs a pipeline, whose own tasks have run; remove it`,
			"pipeline: c\ntasks:\n  x: {run: x, parent_close: c}\n":               `parent_close is for a task that runs a pipeline`,
			"pipeline: c\ntasks:\n  x: {pipeline: b, retry: {max_attempts: 2}}\n": `whose own tasks have retry`,
		} {
			_, err := w.RegisterPipeline(t.Context(), w.c, "p.yaml", []byte(src))
			var refused *drover.Error
			if !errors.As(err, &refused) || len(refused.Fields) != 1 || refused.Fields[0].Line != 3 || !strings.Contains(refused.Fields[0].Field+": "+refused.Fields[0].Message, want) {
				t.Errorf("%s: %v %+v", src, err, refused)
			}
		}
	})
}

// TestAChildIsMadeOnce whoever looks, and however often; a row that was lost comes back
// to the same job.
func TestAChildIsMadeOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(inner)
		w.apply("pipeline: outer\ntasks:\n  sub: {pipeline: inner, with: {n: 1}}\n  z: {run: x}\n")
		id := w.submit(drover.NewJob{Pipeline: "outer", DueAt: w.clock.now().Add(time.Minute)})
		if n := len(w.jobs()); n != 1 {
			t.Fatalf("%d jobs before the start time", n)
		}
		w.passing(70 * time.Second)
		w.quieten()
		child := w.childOf(id, "sub", 0)
		for range 3 {
			w.passing(30 * time.Second)
			w.quieten()
		}
		w.exec("DELETE FROM task_delayed")
		if list := w.diverging(true); len(list) != 1 {
			t.Errorf("found %v", list)
		}
		w.quieten()
		if n := len(w.jobs()); n != 2 || w.childOf(id, "sub", 0) != child {
			t.Errorf("%d jobs", n)
		}
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "[]") })
		w.passing(30 * time.Second)
		w.quieten()
		w.want(id, drover.Succeeded)
		w.audit()
	})
}

// TestFewElementsOfAMapRunTheirJobsAtOneTime: max_parallel holds for jobs, too, and a
// job that is paused makes none.
func TestFewElementsOfAMapRunTheirJobsAtOneTime(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: leaf\ntasks: {a: {run: x}}\n")
		w.apply("pipeline: top\ntasks: {sub: {pipeline: leaf, for_each: [1, 2, 3, 4, 5], max_parallel: 2}}\n")
		id := w.submit(drover.NewJob{Pipeline: "top"})
		for left := 5; left > 0; left-- {
			w.quieten()
			if n, want := w.job(id).Tasks, min(left, 2); n.Waiting != want || n.Ready != left-want {
				t.Fatalf("with %d to go %+v", left, n)
			}
			if left == 4 { // its turn comes while the job is paused
				if _, err := w.Pause(t.Context(), w.c, id, engine.Request{}); err != nil {
					t.Fatal(err)
				}
				before := len(w.jobs())
				if _, err := w.Resume(t.Context(), w.c, w.childOf(id, "sub", 1), engine.Request{}); err != nil {
					t.Fatal(err)
				}
				w.settle(ok(w.one(), "1"))
				w.quieten()
				if after := len(w.jobs()); after != before {
					t.Fatalf("%d jobs more while paused", after-before)
				}
				if _, err := w.Resume(t.Context(), w.c, id, engine.Request{}); err != nil {
					t.Fatal(err)
				}
				w.quieten()
				continue
			}
			w.settle(ok(w.acquire(1)[0], "1"))
			w.audit()
		}
		w.want(id, drover.Succeeded)
		if n := len(w.jobs()); n != 6 {
			t.Errorf("%d jobs", n)
		}
		w.audit()
	})
}

// TestAMarkEndsATaskThatRunsAJob, whose job is stopped; a rerun runs another.
func TestAMarkEndsATaskThatRunsAJob(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: leaf\ntasks: {a: {run: x}}\n")
		w.apply("pipeline: top\ntasks: {sub: {pipeline: leaf}, end: {run: y, needs: [sub]}}\n")
		id := w.submit(drover.NewJob{Pipeline: "top"})
		first := w.childOf(id, "sub", 0)
		w.refusesRerun(id, engine.RerunRequest{From: []string{"sub"}}, drover.CodeInvalidTransition, "is WAITING")
		if _, err := w.mark(id, "sub", drover.Succeeded, `{"by":"hand"}`); err != nil {
			t.Fatal(err)
		}
		w.quieten()
		w.want(first, drover.Cancelled)
		l := w.one()
		w.settle(ok(l, string(l.Input)))
		w.want(id, drover.Succeeded)
		w.audit()
		w.rerun(id, engine.RerunRequest{From: []string{"sub"}})
		second := w.childOf(id, "sub", 0)
		if second == first || second.IsZero() {
			t.Fatalf("the rerun runs %s", second)
		}
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "2") })
		w.want(second, drover.Succeeded)
		w.want(id, drover.Succeeded)
		if got := w.job(id).Children; len(got) != 2 {
			t.Errorf("children: %+v", got)
		}
		if a, err := w.Attempts(t.Context(), w.c, w.taskOf(id, "sub").ID); err != nil || len(a) != 0 {
			t.Errorf("attempts of a task that no worker had: %+v, %v", a, err)
		}
		w.audit()
		if list := w.diverging(false); len(list) > 0 {
			t.Errorf("reconciliation: %v", list)
		}
	})
}

// TestAParentAndItsChildLeaveByThemselves: each is kept as long as its own time says,
// and what is left of the other is told.
func TestAParentAndItsChildLeaveByThemselves(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for _, which := range []string{"parent", "child"} {
			w.apply("pipeline: leaf\ntasks: {a: {run: x}}\n")
			w.apply("pipeline: top\ntasks: {sub: {pipeline: leaf}}\n")
			id := w.submit(drover.NewJob{Pipeline: "top"})
			child := w.childOf(id, "sub", 0)
			w.settle(ok(w.one(), "1"))
			w.want(id, drover.Succeeded)
			gone, left := id, child
			if which == "child" {
				gone, left = child, id
			}
			if err := w.DeleteJob(t.Context(), w.c, gone); err != nil {
				t.Fatal(err)
			}
			w.purge()
			w.want(left, drover.Succeeded)
			switch which {
			case "parent":
				if j := w.job(child); j.ParentTaskID.IsZero() || !j.ParentJobID.IsZero() {
					t.Errorf("the child says %s %s", j.ParentJobID, j.ParentTaskID)
				}
				if n := w.count("SELECT count(*) FROM job_children"); n != 0 {
					t.Errorf("%d rows are left", n)
				}
			case "child":
				if got := string(w.job(id).Result); got != "1" {
					t.Errorf("result %s", got)
				}
			}
			w.audit()
		}
	})
}

// TestATaskThatRunsAJobIsExplained by that job, with who is to be asked next.
func TestATaskThatRunsAJobIsExplained(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: leaf\ntasks: {a: {run: x}}\n")
		w.apply("pipeline: top\ntasks: {sub: {pipeline: leaf}}\n")
		id := w.submit(drover.NewJob{Pipeline: "top"})
		child := w.childOf(id, "sub", 0)
		w.clock.add += 7 * time.Second
		e := w.why(id, "sub")
		if len(e.Blockers) != 1 {
			t.Fatalf("%+v", e)
		}
		b := e.Blockers[0]
		if b.Code != drover.BlockerChildJob || !b.Primary || b.Subject.Name != child.String() || b.Layer != drover.LayerBusiness || len(b.Remedies) == 0 || !strings.Contains(b.Remedies[0].Command, "drover explain "+child.String()) || b.Waited < drover.Duration(7*time.Second) {
			t.Errorf("%+v", b)
		}
		w.settle(ok(w.acquire(1)[0], "1"))
		if e := w.why(id, "sub"); len(e.Blockers) != 0 || e.TotalsByReason["child_job"] < drover.Duration(7*time.Second) {
			t.Errorf("%+v", e)
		}
	})
}

// TestDefaultsAreNotForTasksThatRunJobs: no time of theirs runs out, and no circuit counts
// them.
func TestDefaultsAreNotForTasksThatRunJobs(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: leaf\ntasks: {a: {run: x}}\n")
		w.apply("pipeline: top\ndefaults: {schedule_to_close: 1m, heartbeat: 5s, circuit: pay, queue: other, class: batch}\ntasks: {sub: {pipeline: leaf}}\n")
		id := w.submit(drover.NewJob{Pipeline: "top"})
		for range 4 {
			w.passing(20 * time.Second)
			w.quieten()
			w.step("watch", w.WatchOnce)
		}
		if x := w.taskOf(id, "sub"); x.Status != drover.Waiting || x.Queue != engine.DefaultQueue || x.Class != drover.Batch {
			t.Errorf("the task is %+v, %+v", x, x.Error)
		}
		if n := w.count("SELECT count(*) FROM task_watches"); n != 0 {
			t.Errorf("%d watches", n)
		}
		w.settle(failed(w.one(), drover.ClassPermanent, "no"))
		w.quieten()
		w.want(id, drover.Failed)
		if n := w.count("SELECT count(*) FROM circuits"); n != 0 {
			t.Errorf("%d circuits", n)
		}
	})
}

// TestAJobThatEndsIsSeenAtOnce however it does: as it is made, or by a watch.
func TestAJobThatEndsIsSeenAtOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: empty\ntasks: {a: {run: x, for_each: []}}\n")
		w.apply("pipeline: broken\ntasks: {a: {run: x, for_each: \"${{ input.of }}\"}}\n")
		w.apply("pipeline: late\ntasks: {a: {run: x, schedule_to_close: 1s}}\n")
		w.apply("pipeline: top\non_failure: continue\ntasks:\n  a: {pipeline: empty}\n  b: {pipeline: broken, with: {of: 7}}\n  c: {pipeline: late}\n  d: {pipeline: empty, needs: [a]}\n")
		id := w.submit(drover.NewJob{Pipeline: "top"})
		if got := w.told(id); got != "a:ok b:fail c:WAITING d:ok" {
			t.Errorf("after the submit: %s", got)
		}
		w.clock.add += 2 * time.Second
		w.step("watch", w.WatchOnce)
		if got := w.told(id); got != "a:ok b:fail c:fail d:ok" {
			t.Errorf("after the watch: %s", got)
		}
		w.want(id, drover.Failed)
		w.audit()
	})
}

// between runs something after the next read.
type between struct {
	driver.Driver
	then func()
}

func (b *between) Read(ctx context.Context, fn func(driver.Tx) error) error {
	err := b.Driver.Read(ctx, fn)
	if then := b.then; then != nil {
		b.then = nil
		then()
	}
	return err
}

// TestAPauseThatComesLateIsNotPassedOn: another server has passed on it, and the resume
// that followed.
func TestAPauseThatComesLateIsNotPassedOn(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		b := &between{Driver: w.db.Driver}
		w.db.Driver = b
		w.apply("pipeline: leaf\ntasks: {a: {run: x}}\n")
		w.apply("pipeline: top\ntasks: {sub: {pipeline: leaf}}\n")
		id := w.submit(drover.NewJob{Pipeline: "top"})
		child := w.childOf(id, "sub", 0)
		if _, err := w.Pause(t.Context(), w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Resume(t.Context(), w.c, child, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		w.exec("UPDATE job_children SET want = 1") // as before that pause was passed on
		b.then = func() {
			w.step("children", w.ChildrenOnce)
			if _, err := w.Resume(t.Context(), w.c, id, engine.Request{}); err != nil {
				t.Error(err)
			}
			if w.job(child).Paused {
				t.Error("the resume was not passed on")
			}
		}
		w.step("children", w.ChildrenOnce)
		w.quieten()
		if w.job(id).Paused || w.job(child).Paused {
			t.Error("the child is paused, and its parent is not")
		}
		w.audit()
	})
}

// TestNobodyWaitsForManyJobs: of many jobs of tasks a request makes some, or tells some,
// each in the same number of trips however many there are, and loops do the rest.
func TestNobodyWaitsForManyJobs(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		c := &counting{Driver: w.db.Driver}
		w.db.Driver = c
		w.apply("pipeline: leaf\ninput: {type: object, required: [n]}\ntasks: {a: {run: x}}\n")
		w.apply("pipeline: mid\ntasks: {sub: {pipeline: leaf, with: {n: 1}}}\n")
		of := func(n int) string { return strings.TrimSuffix(strings.Repeat("0, ", n), ", ") }
		var trips []int64
		for _, n := range []int{10, 40} {
			w.apply("pipeline: top\ntasks: {sub: {pipeline: mid, for_each: [" + of(n) + "]}}\n")
			id := w.submit(drover.NewJob{Pipeline: "top"})
			w.quieten()
			c.trips.Store(0)
			if _, err := w.Pause(t.Context(), w.c, id, engine.Request{}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Cancel(t.Context(), w.c, id, engine.Request{}); err != nil {
				t.Fatal(err)
			}
			for range 5 {
				w.quieten()
				w.step("children", w.ChildrenOnce)
			}
			w.want(id, drover.Cancelled)
			trips = append(trips, c.trips.Load()/int64(n))
		}
		if t.Logf("%d trips to stop a child of a few, and of many", trips); trips[1] > trips[0]*5/4 {
			t.Errorf("to stop one of 10 children takes %d trips, one of 40 %d", trips[0], trips[1])
		}
		made := func() int64 { return w.count("SELECT count(*) FROM job_children") }
		before := made()
		w.apply("pipeline: top\ntasks: {sub: {pipeline: leaf, for_each: [" + of(250) + "], with: {n: 1}}}\n")
		w.submit(drover.NewJob{Pipeline: "top"})
		if n := made() - before; n == 0 || n > 100 {
			t.Errorf("the submit made %d jobs", n)
		}
		w.quieten()
		if n := made() - before; n != 250 {
			t.Errorf("%d jobs", n)
		}
		before = made()
		w.apply("pipeline: top\non_failure: continue\ntasks: {sub: {pipeline: leaf, for_each: [" + of(150) + "], max_parallel: 1}}\n")
		id := w.submit(drover.NewJob{Pipeline: "top"})
		if n := made() - before; n == 0 || n > 50 {
			t.Errorf("the submit came to %d jobs that are refused", n)
		}
		w.quieten()
		w.want(id, drover.Failed)
		w.audit()
	})
}

// TestPipelinesThatRunEachOtherAreReadOnce at a registration, however many ways there
// are between them; one that was registered below the others is found too deep as it
// runs.
func TestPipelinesThatRunEachOtherAreReadOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		c := &counting{Driver: w.db.Driver}
		w.db.Driver = c
		w.apply("pipeline: p0\ntasks: {a: {run: x}}\n")
		for i := 1; i < 8; i++ {
			src := fmt.Sprintf("pipeline: p%d\ntasks:\n", i)
			for k := range 20 {
				src += fmt.Sprintf("  t%d: {pipeline: p%d, for_each: [%s]}\n", k, i-1, map[bool]string{true: "1"}[k == 0])
			}
			c.statements.Store(0)
			w.apply(src)
			if n := c.statements.Load(); n > 12 {
				t.Errorf("p%d took %d statements", i, n)
			}
		}
		w.apply("pipeline: z\ntasks: {a: {run: x}}\n")
		w.apply("pipeline: p0\ntasks: {a: {pipeline: z}}\n")
		id := w.submit(drover.NewJob{Pipeline: "p7"})
		w.quieten()
		if n := len(w.jobs()); n != 8 {
			t.Errorf("%d jobs", n)
		}
		w.want(id, drover.Failed)
		var deepest drover.Job
		for _, j := range w.jobs() {
			if j.Pipeline == "p0" {
				deepest = j
			}
		}
		if e := w.taskOf(deepest.ID, "a").Error; e == nil || !strings.Contains(e.Message, "more than 8 deep") {
			t.Errorf("%+v", e)
		}
		w.audit()
	})
}

// TestParentsAndChildrenUnderFire: pauses, resumes, cancels, marks and reruns of parents
// and children at once, from several servers, while workers report and loops go on. Then
// all that is paused goes on, and everything ends, with nothing left over.
func TestParentsAndChildrenUnderFire(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: leaf\ntasks: {a: {run: x}, b: {run: x, needs: [a]}}\n")
		w.apply("pipeline: mid\non_failure: continue\ntasks: {sub: {pipeline: leaf, fallback: other}, other: {pipeline: leaf}, c: {run: x, compensate: undo}, undo: {pipeline: leaf}}\n")
		w.apply("pipeline: top\nfinally: [bye]\ntasks:\n  list: {run: x}\n  sub: {pipeline: mid, for_each: [1, 2], needs: [list]}\n  few: {pipeline: leaf, for_each: [1, 2, 3], max_parallel: 1, min_success: 1}\n  end: {run: x, needs: [sub, few], when: all_done}\n  bye: {pipeline: leaf}\n")
		for range 3 {
			w.submit(drover.NewJob{Pipeline: "top"})
		}
		ctx := context.Background()
		steps := w.scaled(25, 20)
		refused := func(err error) error {
			if drover.CodeOf(err) == drover.CodeInvalidTransition || drover.CodeOf(err) == drover.CodeNotFound || drover.CodeOf(err) == drover.CodeValidation {
				return nil
			}
			return err
		}
		err := together(4, func(i int) error {
			e, r := w.server(), rand.New(rand.NewPCG(7, uint64(i)))
			for step := range steps {
				jobs, err := e.Jobs(ctx, w.c, engine.JobQuery{Limit: 500})
				if err != nil {
					return err
				}
				id := jobs[r.IntN(len(jobs))].ID
				why := engine.Request{Reason: "fire"}
				switch i {
				case 0, 1:
					leases, err := e.Acquire(ctx, w.c, drover.Acquire{Session: w.session, Max: 3, Number: int64(1000*i + step + 1)})
					if err != nil {
						return err
					}
					for _, l := range leases {
						o := ok(l, "1")
						if r.IntN(5) == 0 {
							o = failed(l, drover.ClassPermanent, "no")
						}
						if res := e.Settle(ctx, []engine.Settlement{{Caller: w.c, Session: w.session, Outcomes: []drover.Outcome{o}}}); res[0].Err != nil {
							return res[0].Err
						}
					}
				case 2:
					for _, do := range []func(context.Context) (int, error){e.TimersOnce, e.SweepOnce, e.ChildrenOnce, e.ReconcileOnce} {
						if _, err := do(ctx); err != nil {
							return err
						}
					}
				}
				switch r.IntN(6) {
				case 0:
					_, err = e.Pause(ctx, w.c, id, why)
				case 1, 2:
					_, err = e.Resume(ctx, w.c, id, why)
				case 3:
					if step%8 == 0 {
						_, err = e.Cancel(ctx, w.c, id, why)
					}
				case 4:
					whole := r.IntN(2) == 0
					_, err = e.Rerun(ctx, w.c, id, engine.RerunRequest{Request: why, Failed: !whole, Whole: whole})
				default:
					tasks, err := e.Tasks(ctx, w.c, engine.TaskQuery{Job: id, Limit: 100})
					if err != nil {
						return err
					}
					if len(tasks) > 0 {
						x := tasks[r.IntN(len(tasks))]
						_, err = e.Mark(ctx, w.c, x.ID, engine.MarkRequest{Request: why, Status: []drover.Status{drover.Succeeded, drover.Failed, drover.Skipped}[r.IntN(3)]})
					}
					if refused(err) != nil {
						return err
					}
				}
				if refused(err) != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		w.audit()
		left := 0
		for range 60 {
			left = 0
			for _, j := range w.jobs() {
				if j.Paused && !j.Status.Final() {
					if _, err := w.Resume(ctx, w.c, j.ID, engine.Request{}); refused(err) != nil {
						t.Fatal(err)
					}
				}
				if !j.Status.Final() {
					left++
				}
			}
			if left == 0 {
				break
			}
			w.clock.add += 35 * time.Second // what no worker gave back is taken back, or ended by force
			w.step("reap", w.ReapOnce)
			w.open()
			w.quieten()
			w.step("children", w.ChildrenOnce)
			w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		}
		if left > 0 {
			for _, j := range w.jobs() {
				if !j.Status.Final() {
					t.Errorf("%s %s %s: %s", j.ID, j.Pipeline, j.Status, w.told(j.ID))
				}
			}
		}
		w.audit()
		if list := w.diverging(false); len(list) > 0 {
			t.Errorf("reconciliation: %+v", list)
		}
		for _, j := range w.jobs() {
			w.gapless(j.ID)
		}
		if n := w.count("SELECT count(*) FROM job_children WHERE want BETWEEN 1 AND 3"); n != 0 {
			t.Errorf("%d wishes are not passed on", n)
		}
	})
}
