package engine_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

// why writes what something is degraded by.
func why(list []drover.Degradation) (out []string) {
	for _, d := range list {
		out = append(out, fmt.Sprintf("%s[%d] %s %s", d.Task, d.Index, d.Reason, d.Error.Message))
	}
	return out
}

// TestDegradedTravelsDown: a task is told which failures above it were made good, of a
// map its own element's, and what runs finally all of them; so is whoever looks at the
// job, and can choose such jobs.
func TestDegradedTravelsDown(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(`pipeline: p
on_failure: continue
finally: end
tasks:
  m: {run: x, for_each: [1, 2, 3], fallback: f}
  f: {run: x, fallback: g}
  g: {run: x}
  n: {run: x, for_each: m, with: "${{ item }}"}
  sum: {run: x, needs: [n]}
  weather: {run: x, on_failure: degrade, default: 0}
  report: {run: x, with: "${{ tasks.weather.output }}"}
  alone: {run: x}
  end: {run: x}
`)
		good := w.submit(drover.NewJob{Pipeline: "p"})
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		id := w.submit(drover.NewJob{Pipeline: "p"})
		told := map[string][]string{}
		fails := []string{"m[0]", "m[2]", "f[2]", "weather[0]"}
		for range 10 {
			w.work(func(l drover.Lease) drover.Outcome {
				name := fmt.Sprintf("%s[%d]", l.Name, l.Index)
				if told[name] = why(l.DegradedBy); slices.Contains(fails, name) {
					return failed(l, drover.ClassPermanent, "no "+name)
				}
				return ok(l, "1")
			})
		}
		const m0, m2, weather = "m[0] fallback f no m[0]", "m[2] fallback g no m[2]", "weather[0] on_failure: degrade no weather[0]"
		for name, want := range map[string][]string{"n[0]": {m0}, "n[1]": nil, "n[2]": {m2}, "sum[0]": {m0, m2}, "report[0]": {weather}, "alone[0]": nil, "m[0]": nil, "f[0]": nil, "end[0]": {m0, m2, weather}} {
			if !slices.Equal(told[name], want) {
				t.Errorf("%s is told %q, want %q", name, told[name], want)
			}
		}
		j := w.want(id, drover.Succeeded)
		if got := why(j.DegradedBy); !j.Degraded || !slices.Equal(got, []string{m0, m2, weather}) {
			t.Errorf("the job is told to be degraded by %q", got)
		}
		yes, no := true, false
		for _, c := range []struct {
			q    engine.JobQuery
			want []drover.JobID
		}{{engine.JobQuery{}, []drover.JobID{id, good}}, {engine.JobQuery{Degraded: &yes}, []drover.JobID{id}}, {engine.JobQuery{Degraded: &no}, []drover.JobID{good}},
			{engine.JobQuery{Degraded: &yes, Status: []drover.Status{drover.Failed}}, nil}, {engine.JobQuery{Degraded: &yes, Pipeline: "p"}, []drover.JobID{id}}} {
			list, err := w.Jobs(t.Context(), w.c, c.q)
			if err != nil {
				t.Fatal(err)
			}
			var got []drover.JobID
			for _, j := range list {
				if got = append(got, j.ID); j.Degraded != (len(j.DegradedBy) > 0) {
					t.Errorf("%s is degraded %v, by %q", j.ID, j.Degraded, why(j.DegradedBy))
				}
			}
			if !slices.Equal(got, c.want) {
				q, _ := json.Marshal(c.q)
				t.Errorf("jobs %s: %v, want %v", q, got, c.want)
			}
		}
	})
}

// TestALiveJobIsFoundDegraded, and a rescue is a reason.
func TestALiveJobIsFoundDegraded(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\nrescue: r\ntasks:\n  a: {run: x, on_failure: degrade}\n  b: {run: x, needs: [a]}\n  r: {run: x}\n")
		id := w.submit(drover.NewJob{Pipeline: "p"})
		w.settle(failed(w.one(), drover.ClassPermanent, "no"))
		yes := true
		list, err := w.Jobs(t.Context(), w.c, engine.JobQuery{Degraded: &yes})
		if err != nil || len(list) != 1 || list[0].ID != id || !slices.Equal(why(list[0].DegradedBy), []string{"a[0] on_failure: degrade no"}) {
			t.Errorf("%+v, %v", list, err)
		}
		w.settle(failed(w.one(), drover.ClassPermanent, "neither"))
		w.settle(ok(w.one(), "1"))
		if j := w.want(id, drover.Succeeded); !slices.Equal(why(j.DegradedBy), []string{"a[0] on_failure: degrade no", "b[0] rescue r neither"}) {
			t.Errorf("%q", why(j.DegradedBy))
		}
	})
}

// TestEnoughElementsAreAReason for those below their map, once it has come to its
// min_success, and for whoever looks at the job, while it is live and however it ends;
// not for the elements behind one that failed.
func TestEnoughElementsAreAReason(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(`pipeline: p
on_failure: continue
finally: end
tasks:
  m: {run: x, for_each: [1, 2, 3, 4], min_success: 50%, fallback: f, default: 0}
  f: {run: x}
  n: {run: x, for_each: m, min_success: 1, when: all_done, with: 1}
  sum: {run: x, needs: [n], with: 1}
  few: {run: x, for_each: [1, 2], min_success: 2}
  all: {run: x, needs: [few], when: all_done}
  end: {run: x}
`)
		fails := []string{"m[1]", "f[1]", "m[2]", "few[0]"}
		const m1, m2 = "m[1] min_success: 50% no m[1]", "m[2] fallback f no m[2]"
		for _, rest := range [][]string{{"few[0]"}, {}} {
			id := w.submit(drover.NewJob{Pipeline: "p"})
			fails = append(fails[:3], rest...)
			told, live := map[string][]string{}, []string(nil)
			for range 10 {
				w.work(func(l drover.Lease) drover.Outcome {
					name := fmt.Sprintf("%s[%d]", l.Name, l.Index)
					if told[name] = why(l.DegradedBy); name == "end[0]" {
						live = why(w.job(id).DegradedBy)
					}
					if slices.Contains(fails, name) {
						return failed(l, drover.ClassPermanent, "no "+name)
					}
					return ok(l, "1")
				})
			}
			for name, want := range map[string][]string{"n[0]": nil, "n[1]": nil, "n[2]": {m2}, "sum[0]": {m1, m2}, "all[0]": nil, "end[0]": {m1, m2}} {
				if got, ran := told[name]; !ran || !slices.Equal(got, want) {
					t.Errorf("%v: %s is told %q, want %q", rest, name, got, want)
				}
			}
			j := w.want(id, map[bool]drover.Status{true: drover.Failed, false: drover.Succeeded}[len(rest) > 0])
			for _, got := range [][]string{live, why(j.DegradedBy)} {
				if !slices.Equal(got, []string{m1, m2}) {
					t.Errorf("%v: the job is told to be degraded by %q", rest, got)
				}
			}
		}
	})
}

// TestReasonsAreTrueOfManyFailures: what failed in the place of others is known however
// many failed before it, and a task behind hundreds of failures is found.
func TestReasonsAreTrueOfManyFailures(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		list := strings.TrimSuffix(strings.Repeat("0, ", 220), ", ")
		w.apply("pipeline: p\non_failure: continue\ntasks:\n  a: {run: x, for_each: [" + list + "]}\n  m: {run: x, for_each: [" + list + "], fallback: f}\n" +
			"  z: {run: x, on_failure: degrade}\n  f: {run: x, fallback: g}\n  g: {run: x}\n")
		id := w.submit(drover.NewJob{Pipeline: "p"})
		for range 5 {
			w.work(func(l drover.Lease) drover.Outcome {
				if l.Name == "g" || l.Name == "m" && l.Index >= 15 {
					return ok(l, "1")
				}
				return failed(l, drover.ClassPermanent, "no")
			})
		}
		var want []string
		for i := range 15 {
			want = append(want, fmt.Sprintf("m[%d] fallback g no", i))
		}
		if got := why(w.want(id, drover.Failed).DegradedBy); !slices.Equal(got, append(want, "z[0] on_failure: degrade no")) {
			t.Errorf("degraded by %q", got)
		}
	})
}

// TestAListCountsNoElements to tell why jobs are degraded: of one that has succeeded the
// reason is known, and whoever looks at one job is told of any.
func TestAListCountsNoElements(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		c := &counting{Driver: w.db.Driver}
		w.db.Driver = c
		w.apply("pipeline: p\non_failure: continue\ntasks:\n  m: {run: x, for_each: [1, 2], min_success: 1}\n  f: {run: x, on_failure: degrade}\n  z: {run: x}\n")
		run := func(fails ...string) drover.JobID {
			id := w.submit(drover.NewJob{Pipeline: "p"})
			for !w.job(id).Status.Final() {
				w.work(func(l drover.Lease) drover.Outcome {
					if name := fmt.Sprintf("%s[%d]", l.Name, l.Index); slices.Contains(fails, name) {
						return failed(l, drover.ClassPermanent, "no")
					}
					return ok(l, "1")
				})
			}
			return id
		}
		good, bad := run("m[1]"), run("m[1]", "f[0]", "z[0]")
		const m, f = "m[1] min_success: 1 no", "f[0] on_failure: degrade no"
		c.listen()
		list := must(w.Jobs(t.Context(), w.c, engine.JobQuery{}))
		for i, want := range [][]string{{f}, {m}} {
			if j := list[i]; !j.Degraded || !slices.Equal(why(j.DegradedBy), want) {
				t.Errorf("in a list %s is degraded %v, by %q; want %q", j.Status, j.Degraded, why(j.DegradedBy), want)
			}
		}
		if n := c.named["count how elements have ended"]; n != 0 || c.named["read failures of jobs"] == 0 {
			t.Errorf("a list counts elements %d times: %v", n, c.named)
		}
		for id, want := range map[drover.JobID][]string{good: {m}, bad: {f, m}} {
			c.listen()
			got := why(w.job(id).DegradedBy)
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("%s is degraded by %q, want %q", id, got, want)
			}
			if n := c.named["count how elements have ended"]; (n == 1) != (id == bad) {
				t.Errorf("elements are counted %d times", n)
			}
		}
	})
}
