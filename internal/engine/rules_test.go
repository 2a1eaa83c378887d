package engine_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

// story runs a job whose tasks end as ends says by name: ok unless it says fail.
// It returns how every task ended: "a:ok b:fail c:skip", and blocked for a task that
// counts as failed below it though it was skipped.
func (w *world) story(id drover.JobID, ends map[string]string) string {
	w.t.Helper()
	for range 50 {
		w.work(func(l drover.Lease) drover.Outcome {
			switch {
			case ends[l.Name] == "fail", ends[fmt.Sprintf("%s[%d]", l.Name, l.Index)] == "fail":
				return failed(l, drover.ClassPermanent, "no")
			case strings.HasPrefix(ends[l.Name], "["):
				return ok(l, ends[l.Name])
			}
			return ok(l, "1")
		})
		w.quieten()
		if w.job(id).Status.Final() {
			break
		}
	}
	w.audit()
	return w.told(id)
}

// told is how the tasks of a job stand, in order.
func (w *world) told(id drover.JobID) string {
	w.t.Helper()
	list, err := w.Tasks(w.t.Context(), w.c, engine.TaskQuery{Job: id, Limit: 1000})
	if err != nil {
		w.t.Fatal(err)
	}
	short := map[drover.Status]string{drover.Succeeded: "ok", drover.Failed: "fail", drover.DeadLetter: "fail", drover.Skipped: "skip", drover.Cancelled: "cancelled"}
	var out []string
	for _, t := range list {
		if t.Gone {
			continue
		}
		name := t.Name
		if t.Mapped {
			name = fmt.Sprintf("%s[%d]", t.Name, t.Index)
		}
		s := short[t.Status]
		if s == "" {
			s = t.Status.String()
		}
		out = append(out, name+":"+s)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestEveryRuleIsKept in a job that goes on after failures: a succeeds, b fails, s is
// skipped, and below each pair of them a task of each rule does what docs/joins.md says.
func TestEveryRuleIsKept(t *testing.T) {
	// What runs below two tasks: aa below two that succeeded, and so on.
	want := map[string]string{
		"all_success": "aa", "all_done": "aa ab as bb bs ss", "all_failed": "bb", "one_success": "aa ab as", "one_failed": "ab bb bs",
		"one_done": "aa ab as bb bs", "none_failed": "aa as ss", "none_failed_min_one_success": "aa as", "none_skipped": "aa ab bb",
		"all_skipped": "ss", "always": "aa ab as bb bs ss", "quorum(2)": "aa",
	}
	each(t, func(t *testing.T, w *world) {
		src := "pipeline: rules\non_failure: continue\ntasks:\n  a1: {run: x}\n  a2: {run: x}\n  b1: {run: x}\n  b2: {run: x}\n"
		src += "  s1: {run: x, needs: [a1], when: all_failed}\n  s2: {run: x, needs: [a1], when: one_failed}\n"
		for i, rule := range slices.Sorted(maps.Keys(want)) {
			for _, pair := range []string{"aa", "ab", "as", "bb", "bs", "ss"} {
				one, two := pair[:1]+"1", pair[1:]+"2"
				src += fmt.Sprintf("  r%d-%s: {run: x, needs: [%s, %s], when: %s}\n", i, pair, one, two, rule)
			}
		}
		w.apply(src)
		id := w.submit(drover.NewJob{Pipeline: "rules"})
		got := w.story(id, map[string]string{"b1": "fail", "b2": "fail"})
		for i, rule := range slices.Sorted(maps.Keys(want)) {
			var ran []string
			for _, pair := range []string{"aa", "ab", "as", "bb", "bs", "ss"} {
				if strings.Contains(got+" ", fmt.Sprintf("r%d-%s:ok ", i, pair)) {
					ran = append(ran, pair)
				} else if !strings.Contains(got+" ", fmt.Sprintf("r%d-%s:skip ", i, pair)) {
					t.Errorf("%s of %s neither ran nor was skipped: %s", rule, pair, got)
				}
			}
			if s := strings.Join(ran, " "); s != want[rule] {
				t.Errorf("%s runs below %s, want %s", rule, s, want[rule])
			}
		}
		w.want(id, drover.Failed)
	})
}

// TestRulesThatNeedNotWait let a task run while others above it are running.
func TestRulesThatNeedNotWait(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(`pipeline: early
on_failure: continue
tasks:
  fast: {run: x}
  slow: {run: x}
  bad: {run: x}
  now: {run: x, needs: [slow], when: always}
  one: {run: x, needs: [fast, slow], when: one_success}
  two: {run: x, needs: [fast, slow], when: one_done}
  three: {run: x, needs: [bad, slow], when: one_failed}
  half: {run: x, needs: [fast, slow], when: quorum(1)}
  late: {run: x, needs: [fast, slow]}
`)
		id := w.submit(drover.NewJob{Pipeline: "early"})
		l := leasesByName(w.acquire(10))
		if names := slices.Sorted(maps.Keys(l)); !slices.Equal(names, []string{"bad", "fast", "now", "slow"}) {
			t.Fatalf("first came %v", names)
		}
		w.settle(ok(l["fast"][0], "1"), failed(l["bad"][0], drover.ClassPermanent, "no"))
		next := leasesByName(w.acquire(10))
		if names := slices.Sorted(maps.Keys(next)); !slices.Equal(names, []string{"half", "one", "three", "two"}) {
			t.Fatalf("then came %v", names)
		}
		for _, x := range next {
			w.settle(ok(x[0], "1"))
		}
		w.audit()
		w.settle(ok(l["slow"][0], "1"), ok(l["now"][0], "1"))
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		if got := w.told(id); !strings.Contains(got, "late:ok") {
			t.Error(got)
		}
		w.audit()
	})
}

// TestFailuresGoWhereTheRulesSay: a failure that a task below waits for does not stop
// the job, though its policy is to fail fast; one that nobody waits for does.
func TestFailuresGoWhereTheRulesSay(t *testing.T) {
	const src = `pipeline: p
on_failure: %s
tasks:
  watched: {run: x}
  mid: {run: x, needs: [watched]}
  handler: {run: x, needs: [mid], when: one_failed}
  plain: {run: x}
  after: {run: x, needs: [plain]}
  slow: {run: x}
  end: {run: x, needs: [slow]}
`
	for _, policy := range []string{"fail_fast", "finish_running", "continue"} {
		t.Run(policy, func(t *testing.T) {
			each(t, func(t *testing.T, w *world) {
				w.apply(fmt.Sprintf(src, policy))
				id := w.submit(drover.NewJob{Pipeline: "p"})
				l := leasesByName(w.acquire(10))
				w.settle(failed(l["watched"][0], drover.ClassPermanent, "no"), ok(l["plain"][0], "1"))
				w.audit()
				next := leasesByName(w.acquire(10))
				if names := slices.Sorted(maps.Keys(next)); !slices.Equal(names, []string{"after", "handler"}) {
					t.Fatalf("after a failure that is waited for came %v", names)
				}
				w.settle(ok(next["handler"][0], "1"), failed(next["after"][0], drover.ClassPermanent, "no"))
				w.quieten()
				renewed := w.renew(l["slow"][0])
				if stopped := len(renewed.Cancelled) > 0; stopped != (policy == "fail_fast") {
					t.Errorf("%s: what runs is stopped: %v", policy, stopped)
				}
				if j := w.job(id); j.Status.Final() {
					t.Errorf("%s: the job is %s while a task runs", policy, j.Status)
				}
				switch policy {
				case "fail_fast":
					w.settle(drover.Outcome{TaskID: l["slow"][0].TaskID, LeaseVersion: 1, Status: drover.OutcomeCancelled})
				default:
					w.settle(ok(l["slow"][0], "1"))
				}
				w.quieten()
				w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
				w.quieten()
				w.want(id, drover.Failed)
				rest := map[string]string{"fail_fast": "end:skip handler:ok mid:skip plain:ok slow:cancelled", "finish_running": "end:skip handler:ok mid:skip plain:ok slow:ok",
					"continue": "end:ok handler:ok mid:skip plain:ok slow:ok"}[policy]
				if got, want := w.told(id), "after:fail "+rest+" watched:fail"; got != want {
					t.Errorf("%s: %s\nwant %s", policy, got, want)
				}
				w.audit()
			})
		})
	}
}

// TestARetryUnderFinishRunningIsNotTried: what runs may end, but does not begin again.
func TestARetryUnderFinishRunningIsNotTried(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\non_failure: finish_running\ntasks:\n  a: {run: x}\n  b: {run: x}\n")
		id := w.submit(drover.NewJob{Pipeline: "p"})
		l := leasesByName(w.acquire(10))
		w.settle(failed(l["a"][0], drover.ClassPermanent, "no"))
		w.settle(failed(l["b"][0], drover.ClassRetryable, "later"))
		w.quieten()
		w.want(id, drover.Failed)
		if got := w.told(id); got != "a:fail b:skip" {
			t.Error(got)
		}
		w.audit()
	})
}

// TestASkippedTaskTellsWhy, and one that stands in for an output that is not there.
func TestASkippedTaskTellsWhy(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(`pipeline: p
on_failure: continue
tasks:
  bad: {run: x, default: {none: true}}
  below: {run: x, needs: [bad]}
  other: {run: x, needs: [bad], when: all_skipped}
  last: {run: x, when: all_done, with: {got: "${{ tasks.bad.output.none }}"}}
`)
		id := w.submit(drover.NewJob{Pipeline: "p"})
		input := ""
		w.work(func(l drover.Lease) drover.Outcome {
			if l.Name == "bad" {
				return failed(l, drover.ClassPermanent, "no")
			}
			input = string(l.Input)
			return ok(l, "1")
		})
		if input != `{"got":true}` {
			t.Errorf("the input of what runs below a failure: %s", input)
		}
		reasons := map[string]bool{}
		for _, e := range w.gapless(id) {
			if e.Type == drover.TaskSkipped {
				reasons[string(e.Data)] = true
			}
		}
		all := strings.Join(slices.Sorted(maps.Keys(reasons)), "\n")
		for _, want := range []string{`"name":"below"`, `a task above it failed (when: all_success)`, `"name":"other"`, `"reason":"when: all_skipped"`} {
			if !strings.Contains(all, want) {
				t.Errorf("the events of skipped tasks do not say %s:\n%s", want, all)
			}
		}
		w.audit()
	})
}

// TestAReplayUnblocksWhatIsBelow: what a failure kept from running comes back with the
// task that failed, in a job that runs still and in one that has ended.
func TestAReplayUnblocksWhatIsBelow(t *testing.T) {
	const src = `pipeline: p
on_failure: continue
tasks:
  a: {run: x}
  b: {run: x, needs: [a]}
  c: {run: x, needs: [b]}
  join: {run: x, needs: [c, slow], when: all_done}
  slow: {run: x}
`
	for _, ended := range []bool{false, true} {
		t.Run(fmt.Sprintf("ended=%v", ended), func(t *testing.T) {
			each(t, func(t *testing.T, w *world) {
				w.apply(src)
				id := w.submit(drover.NewJob{Pipeline: "p"})
				l := leasesByName(w.acquire(10))
				w.settle(failed(l["a"][0], drover.ClassPermanent, "no"))
				if ended {
					w.settle(ok(l["slow"][0], "1"))
					w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
					w.want(id, drover.Failed)
				}
				if err := w.replay(id, "a", 0); err != nil {
					t.Fatal(err)
				}
				w.audit() // join waits for c again
				if !ended {
					w.settle(ok(l["slow"][0], "1"))
				}
				w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
				w.quieten()
				w.want(id, drover.Succeeded)
				if got := w.told(id); got != "a:ok b:ok c:ok join:ok slow:ok" {
					t.Error(got)
				}
				w.audit()
			})
		})
	}
}
