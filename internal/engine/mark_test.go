package engine_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

func (w *world) mark(id drover.JobID, name string, s drover.Status, output string) (drover.Task, error) {
	w.t.Helper()
	return w.Mark(w.t.Context(), w.c, w.taskOf(id, name).ID, engine.MarkRequest{Request: engine.Request{Reason: "by hand"}, Status: s, Output: json.RawMessage(output)})
}

// TestAMarkFencesTheWorker: a running task ends as it is marked, its job goes on, and
// what the worker reports is refused.
func TestAMarkFencesTheWorker(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: k, output: {type: object, required: [n], properties: {n: {type: integer}}}}\n  b: {run: k, with: {v: \"${{ tasks.a.output.n }}\"}}\n")
		id := w.submit(drover.NewJob{Pipeline: "p"})
		l := w.one()
		if _, err := w.mark(id, "a", drover.Succeeded, `{"n": "many"}`); drover.CodeOf(err) != drover.CodeValidation {
			t.Errorf("an output that does not fit its schema: %v", err)
		}
		x, err := w.mark(id, "a", drover.Succeeded, `{"n": 7}`)
		if err != nil || x.Status != drover.Succeeded || !x.Marked || string(x.Output) != `{"n": 7}` {
			t.Fatalf("task = %+v, %v", x, err)
		}
		if s := w.settle(ok(l, `{"n": 1}`))[0]; drover.CodeOf(s.Err) != drover.CodeLeaseLost {
			t.Errorf("settle of a task that was marked: %+v", s)
		}
		b := w.one()
		if string(b.Input) != `{"v":7}` {
			t.Errorf("input = %s", b.Input)
		}
		w.settle(ok(b, "1"))
		w.want(id, drover.Succeeded)
		attempts, err := w.Attempts(t.Context(), w.c, x.ID)
		if err != nil || len(attempts) != 1 || attempts[0].Outcome != "marked" {
			t.Errorf("attempts = %+v, %v", attempts, err)
		}
		told := false
		for _, e := range w.gapless(id) {
			told = told || e.Type == drover.TaskMarked && strings.Contains(string(e.Data), "by hand")
		}
		if !told {
			t.Error("no event tells of the mark")
		}
		w.audit()
	})
}

// TestAMarkUnblocksWhatStandsBelow: a failed task that is marked as succeeded lets go on
// what its failure had cut off, each without a word of its own.
func TestAMarkUnblocksWhatStandsBelow(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: k}\n  b: {run: k, needs: [a]}\n  c: {run: k, needs: [b]}\n  d: {run: k, needs: [a]}\n  e: {run: k, needs: [d]}\n")
		id := w.submit(drover.NewJob{Pipeline: "p"})
		w.work(func(l drover.Lease) drover.Outcome {
			if l.Name == "b" {
				return failed(l, drover.ClassPermanent, "no")
			}
			return ok(l, "1")
		})
		w.quieten()
		w.want(id, drover.Failed)
		if _, err := w.mark(id, "b", drover.Succeeded, `2`); err != nil {
			t.Fatal(err)
		}
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		w.quieten()
		if j := w.want(id, drover.Succeeded); j.Run != 2 {
			t.Errorf("run = %d", j.Run)
		}
		if dead := w.letters(engine.LetterQuery{}); len(dead) != 0 {
			t.Errorf("dead letters: %+v", dead)
		}
		// And back: a task that has succeeded is marked as failed. What has run stays.
		if _, err := w.mark(id, "b", drover.Failed, ""); err != nil {
			t.Fatal(err)
		}
		w.quieten()
		w.want(id, drover.Failed)
		if x := w.taskOf(id, "c"); x.Status != drover.Succeeded || x.Generation != 2 {
			t.Errorf("c = %+v", x)
		}
		if x := w.taskOf(id, "b"); x.Error == nil || x.Error.Type != "marked" || !strings.Contains(x.Error.Message, "by hand") {
			t.Errorf("b = %+v", x.Error)
		}
		w.audit()
		w.gapless(id)
	})
}

// TestMarksOfWhatHasNotStarted: wherever a task stands, it ends, and what waits for it is
// told, also where no definition lets it be skipped.
func TestMarksOfWhatHasNotStarted(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: k}\n  b: {run: k, needs: [a]}\n  c: {run: k, needs: [a, b]}\n  d: {run: k, needs: [c]}\n  e: {run: k, needs: [d], when: all_done}\n")
		id := w.submit(drover.NewJob{Pipeline: "p"})
		if _, err := w.Pause(t.Context(), w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		w.quieten()
		if _, err := w.mark(id, "b", drover.Skipped, ""); err != nil { // PENDING
			t.Fatal(err)
		}
		if _, err := w.mark(id, "a", drover.Succeeded, "1"); err != nil { // held
			t.Fatal(err)
		}
		if _, err := w.Resume(t.Context(), w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		w.quieten()
		if got := w.told(id); got != "a:ok b:skip c:skip d:skip e:QUEUED" {
			t.Errorf("told = %s", got)
		}
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		w.want(id, drover.Succeeded)
		w.audit()
	})
}

// TestMarksThatCannotBe are refused and change nothing; a job of one task can be marked.
func TestMarksThatCannotBe(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		id := w.submit(drover.NewJob{Kind: "k"})
		x := w.taskOf(id, "k").ID
		for _, r := range []engine.MarkRequest{
			{Status: drover.Succeeded}, {Status: drover.Running, Request: engine.Request{Reason: "x"}},
			{Status: drover.Failed, Request: engine.Request{Reason: "x"}, Output: json.RawMessage("1")},
			{Status: drover.Succeeded, Request: engine.Request{Reason: "x"}, Output: json.RawMessage("{")},
		} {
			if _, err := w.Mark(t.Context(), w.c, x, r); drover.CodeOf(err) != drover.CodeValidation {
				t.Errorf("%+v: %v", r, err)
			}
		}
		r := engine.MarkRequest{Request: engine.Request{ID: "one", Reason: "by hand"}, Status: drover.Failed}
		for range 2 {
			if y, err := w.Mark(t.Context(), w.c, x, r); err != nil || y.Status != drover.Failed || y.Generation != 1 {
				t.Fatalf("mark = %+v, %v", y, err)
			}
		}
		w.want(id, drover.Failed)
		r.ID, r.Status = "two", drover.Succeeded
		if y, err := w.Mark(t.Context(), w.c, x, r); err != nil || y.Status != drover.Succeeded || y.Generation != 2 {
			t.Fatalf("mark = %+v, %v", y, err)
		}
		w.want(id, drover.Succeeded)
		w.audit()
		w.gapless(id)

		w.apply("pipeline: p\ntasks:\n  a: {run: k}\n  m: {run: k, for_each: \"${{ tasks.a.output }}\"}\n")
		id = w.submit(drover.NewJob{Pipeline: "p"})
		if _, err := w.mark(id, "m", drover.Succeeded, ""); drover.CodeOf(err) != drover.CodeInvalidTransition {
			t.Errorf("a map as a whole: %v", err)
		}
		if _, err := w.mark(id, "m", drover.Skipped, ""); err != nil {
			t.Error(err)
		}
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "[1]") })
		w.want(id, drover.Succeeded)
		w.audit()
	})
}

// TestAMarkGivesPermitsBack: whether it runs or was admitted only, a task that is marked
// holds nothing any more.
func TestAMarkGivesPermitsBack(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.limit("vendor", drover.NewLimit{Max: 2})
		w.submitMany(3, drover.NewJob{Kind: "call", Limits: map[string]int64{"vendor": 1}})
		w.admit()
		running := w.acquire(1)
		queued := w.queuedJobs()
		if len(running) != 1 || len(queued) != 1 || w.used("vendor") != 2 {
			t.Fatalf("%d run, %d are admitted, %d is held", len(running), len(queued), w.used("vendor"))
		}
		for i, job := range []drover.JobID{running[0].JobID, queued[0]} {
			list, err := w.Tasks(t.Context(), w.c, engine.TaskQuery{Job: job, Limit: 1})
			if err != nil || len(list) != 1 {
				t.Fatalf("tasks = %+v, %v", list, err)
			}
			if _, err := w.Mark(t.Context(), w.c, list[0].ID, engine.MarkRequest{Request: engine.Request{Reason: "by hand"}, Status: drover.Succeeded}); err != nil {
				t.Fatal(err)
			}
			if n := w.used("vendor"); n != int64(1-i) {
				t.Errorf("after %d marks %d are held", i+1, n)
			}
		}
		last := w.get(10)
		if len(last) != 1 {
			t.Fatalf("%d run", len(last))
		}
		w.settle(ok(last[0], "1"))
		w.nothingHeld()
	})
}

// TestAMarkLeavesWhatRunsBelow alone: it was let start by how the task had ended before,
// and the audit knows.
func TestAMarkLeavesWhatRunsBelow(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks: {a: {run: x}, b: {run: x, needs: [a], retry: {max_attempts: 3}}}\n")
		for _, status := range []drover.Status{drover.Skipped, drover.Failed} {
			id := w.submit(drover.NewJob{Pipeline: "p"})
			w.settle(ok(w.get(1)[0], "1"))
			b := w.get(1)[0]
			must(w.mark(id, "a", status, ""))
			w.audit()
			w.settle(failed(b, drover.ClassRetryable, "again"))
			w.audit()
			w.clock.add += time.Hour
			w.open()
			w.quieten()
			w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
			if s := w.taskOf(id, "b").Status; s != drover.Succeeded && s != drover.Cancelled {
				t.Errorf("a is marked as %s, b is %s", status, s)
			}
			w.audit()
		}
	})
}
