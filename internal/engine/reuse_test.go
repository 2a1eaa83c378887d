package engine_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

const cached = `pipeline: cached
tasks:
  list: {run: list, with: {from: "${{ input.from }}"}, cache: true}
  score:
    run: score
    for_each: "${{ tasks.list.output.files }}"
    with: {file: "${{ item }}"}
    cache: {version: "1"}
  rank: {run: rank, for_each: score, cache: true}
  sum: {run: sum, with: "${{ tasks.rank.output }}", artifact: {kind: report}, cache: true}
  tell: {run: tell, with: "${{ tasks.sum.output }}"}
`

// play answers as handlers that always give the same for the same.
func play(l drover.Lease) drover.Outcome {
	switch l.Name {
	case "list":
		return ok(l, `{"files": ["a", "b", "c"]}`)
	case "score":
		return ok(l, fmt.Sprintf(`{"of": %s}`, l.Input))
	default:
		return ok(l, fmt.Sprintf(`{"%s": %s}`, l.Name, l.Input))
	}
}

func (w *world) tasksOf(id drover.JobID) []drover.Task {
	w.t.Helper()
	list, err := w.Tasks(w.t.Context(), w.c, engine.TaskQuery{Job: id, Limit: 100})
	if err != nil {
		w.t.Fatal(err)
	}
	return list
}

func TestResultsOfOneIdentityAreUsedAgain(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(cached)
		first := w.submit(drover.NewJob{Pipeline: "cached", Input: []byte(`{"from": "x"}`)})
		if ran := w.work(play); len(ran) != 9 {
			t.Fatalf("ran %v", ran)
		}
		one := w.want(first, drover.Succeeded)
		for _, x := range w.tasksOf(first) {
			if x.Reused != nil {
				t.Errorf("%s[%d] is reused", x.Name, x.Index)
			}
		}
		again := w.submit(drover.NewJob{Pipeline: "cached", Input: []byte(`{"from":"x","more":[1]}`)})
		if ran := w.work(play); len(ran) != 1 || ran[0] != "tell[0]" {
			t.Errorf("the second job ran %v, want only what has no cache", ran)
		}
		two := w.want(again, drover.Succeeded)
		if string(one.Result) != string(two.Result) {
			t.Errorf("results differ: %s, %s", one.Result, two.Result)
		}
		firsts := map[string]drover.Task{}
		for _, x := range w.tasksOf(first) {
			firsts[fmt.Sprint(x.Name, x.Index)] = x
		}
		for _, x := range w.tasksOf(again) {
			f := firsts[fmt.Sprint(x.Name, x.Index)]
			if x.Name == "tell" {
				if x.Reused != nil {
					t.Errorf("tell is reused: %+v", x.Reused)
				}
				continue
			}
			if x.Reused == nil || x.Reused.TaskID != f.ID || x.Reused.JobID != first || len(x.Reused.Identity) != 64 || x.Attempt != 0 || !x.ClaimedAt.IsZero() || x.Status != drover.Succeeded {
				t.Errorf("%s[%d] = %+v, %+v", x.Name, x.Index, x, x.Reused)
			}
		}
		other := w.submit(drover.NewJob{Pipeline: "cached", Input: []byte(`{"from": "y"}`)})
		ran := w.work(play)
		if len(ran) != 2 || ran[0] != "list[0]" || ran[1] != "tell[0]" {
			t.Errorf("with another input ran %v: want list, whose input changed, and nothing whose input did not", ran)
		}
		w.want(other, drover.Succeeded)
		w.audit()
	})
}

// A map over what the elements of another map gave, when those are all there already.
func TestAMapOverReusedElementsExpands(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: a, for_each: [1, 2, 3], cache: true}\n  b: {run: b, for_each: \"${{ tasks.a.output }}\", cache: true}\n  c: {run: c, with: \"${{ tasks.b.output }}\"}\n")
		first := w.submit(drover.NewJob{Pipeline: "p"})
		w.work(play)
		one := w.want(first, drover.Succeeded)
		second := w.submit(drover.NewJob{Pipeline: "p"})
		if ran := w.work(play); len(ran) != 1 {
			t.Errorf("ran %v", ran)
		}
		if two := w.want(second, drover.Succeeded); string(two.Result) != string(one.Result) || two.Tasks.Total != 7 {
			t.Errorf("second = %s of %d tasks, want %s", two.Result, two.Tasks.Total, one.Result)
		}
		w.audit()
	})
}

func TestAJobOfWhichEverythingIsThereEndsAtOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: a, cache: true}\n  b: {run: b, with: [\"${{ tasks.a.output }}\"], cache: true}\n")
		w.submit(drover.NewJob{Pipeline: "p"})
		w.work(play)
		id := w.submit(drover.NewJob{Pipeline: "p"})
		j := w.want(id, drover.Succeeded)
		if string(j.Result) == "" || j.Tasks.Succeeded != 2 {
			t.Errorf("job = %+v", j)
		}
		later := w.submit(drover.NewJob{Pipeline: "p", DueAt: w.clock.now().Add(time.Hour)})
		if j := w.job(later); j.Status.Final() {
			t.Errorf("a job that is not due yet is %s", j.Status)
		}
		w.audit()
	})
}

// Two that run at the same time: the first to settle is kept, and the other gets its
// result, in one batch or in two.
func TestOfTwoThatMakeTheSameOneWins(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: a, artifact: {kind: k}, cache: true}\n  b: {run: b, with: \"${{ tasks.a.output }}\"}\n")
		var jobs []drover.JobID
		for range 3 {
			jobs = append(jobs, w.submit(drover.NewJob{Pipeline: "p"}))
		}
		ls := w.acquire(10)
		if len(ls) != 3 {
			t.Fatalf("%d leases", len(ls))
		}
		w.settle(ok(ls[0], `{"n": 0}`))
		loser := ok(ls[1], `{"n": 1}`)
		for _, s := range w.settle(loser, ok(ls[2], `{"n": 2}`)) {
			if s.Err != nil || s.Status != drover.Succeeded {
				t.Errorf("settled = %+v", s)
			}
		}
		if s := w.settle(loser); s[0].Err != nil || s[0].Status != drover.Succeeded {
			t.Errorf("a repeat is answered with %+v", s[0])
		}
		seen := 0
		for _, l := range w.acquire(10) {
			if string(l.Input) != `{"n": 0}` {
				t.Errorf("what waits for %s gets %s", l.JobID, l.Input)
			}
			seen++
			w.settle(ok(l, `1`))
		}
		if seen != 3 {
			t.Errorf("%d followers", seen)
		}
		winners := 0
		for _, id := range jobs {
			w.want(id, drover.Succeeded)
			for _, x := range w.tasksOf(id) {
				if x.Name == "a" && x.Reused == nil {
					winners++
				} else if x.Name == "a" && (x.Reused.TaskID != ls[0].TaskID || x.Attempt != 1) {
					t.Errorf("a = %+v, %+v", x, x.Reused)
				}
			}
		}
		if winners != 1 {
			t.Errorf("%d winners", winners)
		}
		w.audit()
	})
}

func TestManyWritersOfOneIdentityAtOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: a, with: \"${{ input.k }}\", cache: true}\n")
		const n = 24
		var jobs []drover.JobID
		for i := range n {
			jobs = append(jobs, w.submit(drover.NewJob{Pipeline: "p", Input: fmt.Appendf(nil, `{"k": %d}`, i%3)}))
		}
		ls := w.acquire(n)
		var wg sync.WaitGroup
		for i := 0; i < n; i += 4 { // batches with several identities each, in any order
			wg.Go(func() {
				var out []drover.Outcome
				for k := range 4 {
					out = append(out, ok(ls[i+k], fmt.Sprintf(`"%d"`, i+k)))
				}
				r := w.Settle(context.WithoutCancel(t.Context()), []engine.Settlement{{Caller: w.c, Session: w.session, Outcomes: out}})
				if r[0].Err != nil {
					t.Error(r[0].Err)
				}
			})
		}
		wg.Wait()
		winners, results := 0, map[string]map[string]bool{}
		for _, id := range jobs {
			j := w.want(id, drover.Succeeded)
			x := w.tasksOf(id)[0]
			if x.Reused == nil {
				winners++
			}
			if results[string(j.Input)] == nil {
				results[string(j.Input)] = map[string]bool{}
			}
			results[string(j.Input)][string(j.Result)] = true
		}
		if winners != 3 {
			t.Errorf("%d winners of three identities", winners)
		}
		for in, r := range results {
			if len(r) != 1 {
				t.Errorf("%s has the results %v", in, r)
			}
		}
		w.audit()
	})
}

func TestAReplayRunsAndIsKeptApart(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: a, cache: true, retry: {max_attempts: 1}}\n")
		failing := w.submit(drover.NewJob{Pipeline: "p"})
		w.work(func(l drover.Lease) drover.Outcome { return failed(l, drover.ClassPermanent, "no") })
		w.want(failing, drover.Failed)
		w.submit(drover.NewJob{Pipeline: "p"})
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, `1`) })
		task := w.tasksOf(failing)[0]
		if _, err := w.Replay(t.Context(), w.c, task.ID, engine.ReplayRequest{}); err != nil {
			t.Fatal(err)
		}
		if ran := w.work(func(l drover.Lease) drover.Outcome { return ok(l, `2`) }); len(ran) != 1 {
			t.Errorf("the replay ran %v", ran)
		}
		if j := w.want(failing, drover.Succeeded); string(j.Result) != `2` {
			t.Errorf("the replay's result is %s", j.Result)
		}
		if j := w.want(w.submit(drover.NewJob{Pipeline: "p"}), drover.Succeeded); string(j.Result) != `1` {
			t.Errorf("a third job has %s, want the first result", j.Result)
		}
		w.audit()
	})
}

func TestAJobStaysWhileAnotherUsesItsResults(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: a, cache: true}\n")
		first := w.submit(drover.NewJob{Pipeline: "p"})
		w.work(play)
		second := w.submit(drover.NewJob{Pipeline: "p"})
		w.want(second, drover.Succeeded)
		if err := w.DeleteJob(t.Context(), w.c, first); drover.CodeOf(err) != drover.CodeInvalidTransition {
			t.Errorf("delete of a job whose result is used: %v", err)
		}
		if err := w.DeleteJob(t.Context(), w.c, second); err != nil {
			t.Fatal(err)
		}
		if err := w.DeleteJob(t.Context(), w.c, first); err != nil {
			t.Fatal(err)
		}
		third := w.submit(drover.NewJob{Pipeline: "p"})
		if ran := w.work(play); len(ran) != 1 {
			t.Errorf("after the result has left ran %v", ran)
		}
		w.want(third, drover.Succeeded)
		w.audit()
	})
}

func TestMapsThatExpandTogetherSeeTheInputAll(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(`pipeline: p
tasks:
  first: {run: f}
  other: {run: f}
  a: {run: a, needs: [first], for_each: "${{ input.x }}"}
  b: {run: b, needs: [first], for_each: "${{ input.y }}"}
  c: {run: c, needs: [other], for_each: "${{ tasks.first.output }}"}
  d: {run: d, needs: [first], for_each: "${{ tasks.other.output }}"}
`)
		id := w.submit(drover.NewJob{Pipeline: "p", Input: []byte(`{"x":[1,2],"y":[3]}`)})
		ran := w.work(func(l drover.Lease) drover.Outcome { return ok(l, `[1,2,3]`) })
		w.want(id, drover.Succeeded)
		if len(ran) != 2+2+1+3+3 {
			t.Errorf("ran %v", ran)
		}
	})
}
