package engine_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

// perCustomer is a limit of one task for each concurrency key.
func (w *world) perCustomer() {
	w.limit("per-customer", drover.NewLimit{Scope: drover.ScopeKey, Max: 1})
}

// named are the names and indexes of leases, in order.
func named(list []drover.Lease) string {
	var out []string
	for _, l := range list {
		out = append(out, fmt.Sprintf("%s[%d]", l.Name, l.Index))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestTasksOfPipelinesHaveConcurrencyKeys: by the job's input, by an output above, and by
// the element; who has the same key waits, and is told so.
func TestTasksOfPipelinesHaveConcurrencyKeys(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.perCustomer()
		w.apply(`pipeline: sync
tasks:
  first: {run: x, concurrency_key: input.customer}
  list: {run: x, needs: [first]}
  each: {run: x, for_each: "${{ tasks.list.output }}", concurrency_key: "'element-' + string(item.of)"}
  last: {run: x, needs: [each], concurrency_key: "tasks.list.output[0].name"}
`)
		var ids []drover.JobID
		for _, c := range []string{"a", "a", "b"} {
			ids = append(ids, w.submit(drover.NewJob{Pipeline: "sync", Input: json.RawMessage(`{"customer": "` + c + `"}`)}))
		}
		l := w.get(10)
		if got := named(l); got != "first[0] first[0]" {
			t.Fatalf("%s run, want one of each customer", got)
		}
		x := w.why(ids[1], "first")
		if len(x.Blockers) != 1 || x.Blockers[0].Code != drover.BlockerConcurrencyKey || !strings.Contains(x.Blockers[0].Message, "per-customer (a)") {
			t.Errorf("explained as %+v", x.Blockers)
		}
		list := `[{"of": 1, "name": "n"}, {"of": 1, "name": "m"}, {"of": 2, "name": "o"}]`
		// The job of the first customer goes its way to the elements.
		of := func(list []drover.Lease, job drover.JobID) drover.Lease {
			return list[slices.IndexFunc(list, func(l drover.Lease) bool { return l.JobID == job })]
		}
		w.settle(ok(of(l, ids[0]), "1"))
		l = w.get(10)
		if got := named(l); got != "first[0] list[0]" {
			t.Fatalf("then %s run", got)
		}
		w.settle(ok(of(l, ids[0]), list))
		l = w.get(10)
		if got := named(l); got != "each[0] each[2]" {
			t.Fatalf("of the elements %s run, want one for each key", got)
		}
		// One that is tried again, and one that waits while its job is paused, keep their key.
		w.settle(failed(l[0], drover.ClassRetryable, "later"), ok(l[1], "1"))
		l = w.get(10)
		if got := named(l); got != "each[1]" {
			t.Fatalf("after the failure %s run", got)
		}
		w.clock.add += 5 * time.Second
		w.step("timers", w.TimersOnce)
		if _, err := w.Pause(t.Context(), w.c, ids[0], engine.Request{}); err != nil {
			t.Fatal(err)
		}
		w.admit()
		w.step("sweep", w.SweepOnce)
		if _, err := w.Resume(t.Context(), w.c, ids[0], engine.Request{}); err != nil {
			t.Fatal(err)
		}
		w.step("sweep", w.SweepOnce)
		if got := named(w.get(10)); got != "" {
			t.Fatalf("%s run beside one of their key", got)
		}
		if r := w.settle(ok(l[0], "1")); r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
		l = w.get(10)
		if got := named(l); got != "each[0]" {
			t.Fatalf("then %s run: %+v", got, w.why(ids[0], "each"))
		}
		w.settle(ok(l[0], "1"))
		if l = w.get(10); named(l) != "last[0]" || w.used("per-customer") == 0 {
			t.Fatalf("at the end %s run, %d permits are held", named(l), w.used("per-customer"))
		}
		w.audit()
		w.settle(ok(l[0], "1"))
		w.want(ids[0], drover.Succeeded)
	})
}

// TestAKeyExpressionThatFailsEndsTheTask for good, with its place and the reason; what
// stands below it goes by its rule.
func TestAKeyExpressionThatFailsEndsTheTask(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(`pipeline: p
tasks:
  a: {run: x}
  b: {run: x, concurrency_key: tasks.a.output.customer.id, on_failure: continue}
  c: {run: x, needs: [b], when: one_failed}
  m: {run: x, for_each: "${{ tasks.a.output.list }}", concurrency_key: item, min_success: 1}
`)
		id := w.submit(drover.NewJob{Pipeline: "p"})
		w.settle(ok(w.get(10)[0], `{"customer": 7, "list": ["x", 1.5]}`))
		if got := named(w.get(10)); got != "c[0] m[0]" {
			t.Fatalf("%s run", got)
		}
		b := w.taskOf(id, "b")
		const want = "tasks.b.concurrency_key: tasks.a.output.customer.id: ${{ tasks.a.output.customer.id }}: tasks.a.output.customer is a number and has no member \"id\""
		if b.Status != drover.Failed || b.Error == nil || b.Error.Message != want || b.Error.Class != drover.ClassInput {
			t.Errorf("it is %s, %+v", b.Status, b.Error)
		}
		if n := len(w.letters(engine.LetterQuery{})); n != 2 {
			t.Errorf("%d dead letters, want those of b and m[1]", n)
		}
		// At the submission, too: the job is there, and has failed.
		w.apply("pipeline: q\ntasks:\n  a: {run: x, concurrency_key: input.customer}\n")
		id = w.submit(drover.NewJob{Pipeline: "q", Input: json.RawMessage(`{}`)})
		w.want(id, drover.Failed)
		w.nothingHeldBut(0)
	})
}

// nothingHeldBut wants so many permits, and a clean audit.
func (w *world) nothingHeldBut(n int64) {
	w.t.Helper()
	if has := w.count("SELECT count(*) FROM permits"); has != n {
		w.t.Errorf("%d permits are held, want %d", has, n)
	}
	w.audit()
}

// TestAKeyIsToldAnewWhenATaskRunsAgain: a rerun of what it is taken from gives another
// one; places among max_parallel and rows that are lost keep theirs.
func TestAKeyIsToldAnewWhenATaskRunsAgain(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.perCustomer()
		w.apply(`pipeline: p
tasks:
  a: {run: x}
  b: {run: x, needs: [a], concurrency_key: tasks.a.output}
`)
		w.apply("pipeline: one\ntasks:\n  a: {run: x, concurrency_key: input}\n")
		id := w.submit(drover.NewJob{Pipeline: "p"})
		w.settle(ok(w.get(10)[0], `"x"`))
		l := w.get(10)
		w.settle(failed(l[0], drover.ClassPermanent, "no"))
		w.want(id, drover.Failed)
		w.rerun(id, engine.RerunRequest{From: []string{"a"}})
		w.settle(ok(w.get(10)[0], `"y"`))
		if l = w.get(10); named(l) != "b[0]" {
			t.Fatalf("%s run", named(l))
		}
		// Its key is y now: one of x runs, one of y does not.
		w.submit(drover.NewJob{Pipeline: "one", Input: json.RawMessage(`"y"`)})
		w.submit(drover.NewJob{Pipeline: "one", Input: json.RawMessage(`"x"`)})
		other := w.get(10)
		if len(other) != 1 || string(other[0].Input) != `"x"` {
			t.Fatalf("%d run beside it: %+v", len(other), other)
		}
		w.settle(ok(l[0], "1"), ok(other[0], "1"))
		w.want(id, drover.Succeeded)
		w.audit()
	})
}

// TestTasksKeepTheirKeys: those that stand in line for a place among max_parallel, and those
// whose rows are lost.
func TestTasksKeepTheirKeys(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.perCustomer()
		w.apply("pipeline: p\ntasks:\n  a: {run: x}\n  m: {run: x, needs: [a], for_each: [1, 1, 2, 2], max_parallel: 3, concurrency_key: string(item)}\n")
		w.submit(drover.NewJob{Pipeline: "p"})
		w.settle(ok(w.get(10)[0], "1"))
		l := w.get(10)
		if named(l) != "m[0] m[2]" {
			t.Fatalf("%s run", named(l))
		}
		w.settle(ok(l[slices.IndexFunc(l, func(l drover.Lease) bool { return l.Index == 0 })], "1"))
		if got := named(w.get(10)); got != "m[1]" {
			t.Fatalf("after the first of three %s run", got)
		}
		w.exec("DELETE FROM task_ready")
		w.diverging(true)
		if l := w.diverging(false); len(l) != 0 {
			t.Errorf("found %+v", l)
		}
		if got := named(w.get(10)); got != "" {
			t.Fatalf("%s run beside one of their key", got)
		}
		w.audit()
	})
}

// TestManyNewKeysAtOnce: a batch whose keys nobody has met is stored at once.
func TestManyNewKeysAtOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.perCustomer()
		w.apply("pipeline: one\ntasks:\n  a: {run: x, concurrency_key: input}\n  m: {run: x, for_each: {range: 40}, concurrency_key: string(item)}\n")
		jobs := make([]drover.NewJob, 40)
		for i := range jobs {
			jobs[i] = drover.NewJob{Pipeline: "one", Input: json.RawMessage(fmt.Sprintf(`"new-%d"`, i))}
		}
		out, err := w.Submit(t.Context(), w.c, jobs)
		if err != nil || slices.ContainsFunc(out, func(s drover.Submitted) bool { return s.Err != nil }) {
			t.Fatalf("%v, %+v", err, out)
		}
		if n := len(w.get(1000)); n != 80 {
			t.Errorf("%d run, want 40 first tasks and one element of each of 40 keys", n)
		}
		if n := w.count("SELECT count(*) FROM task_lanes"); n != 0 {
			t.Errorf("%d lanes are noted of tasks whose own rows have them", n)
		}
	})
}
