package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

const saga = `pipeline: refund
finally: tidy
tasks:
  check: {run: x}
  restock: {run: x, needs: [check], with: {item: "${{ input.item }}"}, compensate: unstock}
  pay: {run: x, needs: [restock], with: {to: "${{ tasks.check.output.to }}"}, compensate: take-back}
  notify: {run: x, needs: [pay]}
  unstock: {run: x}
  take-back: {run: x, with: {payment: "${{ tasks.pay.output.id }}", to: "${{ tasks.check.output.to }}"}, retry: {max_attempts: 2}}
  tidy: {run: x}
`

// saga runs the tasks of a job one after the other until none is left, and tells which
// ran with what. Those that end names fail for good.
func (w *world) saga(ends map[string]drover.ErrorClass) (ran []string) {
	w.t.Helper()
	for range 40 {
		w.quieten()
		for _, l := range w.acquire(1) {
			ran = append(ran, l.Name+string(l.Input))
			if class, bad := ends[l.Name]; bad {
				w.settle(failed(l, class, "no"))
			} else {
				w.settle(ok(l, `{"id":"`+l.Name+`-1","to":"card"}`))
			}
		}
		w.passing(5 * time.Second)
	}
	return ran
}

// TestAFailedJobUndoesWhatItDid: what succeeded last first, each with what its task was
// given and gave, before what runs finally.
func TestAFailedJobUndoesWhatItDid(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(saga)
		id := w.submit(drover.NewJob{Pipeline: "refund", Input: []byte(`{"item":7}`)})
		ran := w.saga(map[string]drover.ErrorClass{"notify": drover.ClassPermanent})
		want := []string{`check{"item":7}`, `restock{"item":7}`, `pay{"to":"card"}`, `notify{"item":7}`,
			`take-back{"payment":"pay-1","to":"card"}`, `unstock{"item":7}`, `tidy{"item":7}`}
		if !slices.Equal(ran, want) {
			t.Errorf("ran\n%q, want\n%q", ran, want)
		}
		j := w.want(id, drover.Failed)
		if c := j.Compensation; c == nil || c.Status != drover.Succeeded || len(c.Tasks) != 2 || c.Tasks[0].Task != "pay" || c.Tasks[0].By != "take-back" || c.Tasks[1].Task != "restock" {
			t.Errorf("compensation: %+v", j.Compensation)
		}
		if j.Error == nil || j.Error.Task != "notify" {
			t.Errorf("error: %+v", j.Error)
		}
		var told []string
		for _, e := range w.gapless(id) {
			if e.Type == drover.JobCompensating {
				told = append(told, string(e.Data))
			}
		}
		if !slices.Equal(told, []string{`{"tasks":2}`}) {
			t.Errorf("told: %q", told)
		}
		if err := w.replay(id, "notify", 0); drover.CodeOf(err) != drover.CodeInvalidTransition || !strings.Contains(err.Error(), "has undone what its tasks did; submit it again") {
			t.Errorf("replay of a task of a job that was undone: %v", err)
		}
		w.audit()
	})
}

// TestAJobThatEndsWellUndoesNothing, nor does one whose failure a rescue makes good.
func TestAJobThatEndsWellUndoesNothing(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\nrescue: r\ntasks:\n  a: {run: x, compensate: b}\n  c: {run: x, needs: [a]}\n  b: {run: x}\n  r: {run: x}\n")
		id := w.submit(drover.NewJob{Pipeline: "p"})
		w.saga(nil)
		if j := w.want(id, drover.Succeeded); j.Compensation != nil || j.Tasks.Total != 2 {
			t.Errorf("%+v", j)
		}
		id = w.submit(drover.NewJob{Pipeline: "p"})
		w.saga(map[string]drover.ErrorClass{"c": drover.ClassPermanent})
		if got := w.told(id); got != "a:ok c:fail r:ok" {
			t.Error(got)
		}
		w.want(id, drover.Succeeded)
		id = w.submit(drover.NewJob{Pipeline: "p"})
		w.saga(map[string]drover.ErrorClass{"c": drover.ClassPermanent, "r": drover.ClassPermanent})
		if got := w.told(id); got != "a:ok b:ok c:fail r:fail" {
			t.Error(got)
		}
		w.audit()
	})
}

// TestACancelledJobUndoesWhatItDid once what runs has stopped; a further cancel, an
// expires_at and the sweeps leave that alone, a pause holds it.
func TestACancelledJobUndoesWhatItDid(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(saga)
		id := w.submit(drover.NewJob{Pipeline: "refund", Input: []byte(`{"item":7}`), ExpiresAt: w.clock.now().Add(time.Minute)})
		w.settle(ok(w.one(), `{"to":"card"}`))
		w.settle(ok(w.one(), `1`))
		pay := w.one()
		if _, err := w.Cancel(t.Context(), w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		if got := w.acquire(5); len(got) != 0 {
			t.Fatalf("claimed while a task of the job stops: %v", got)
		}
		w.settle(drover.Outcome{TaskID: pay.TaskID, LeaseVersion: pay.LeaseVersion, Status: drover.OutcomeCancelled})
		if j := w.job(id); j.Status != drover.Running || j.Cancelling || j.Compensation == nil || j.Compensation.Status != drover.Running {
			t.Errorf("%+v %+v", j, j.Compensation)
		}
		if _, err := w.Pause(t.Context(), w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		w.step("sweep", w.SweepOnce)
		if got := w.acquire(5); len(got) != 0 {
			t.Errorf("claimed of a paused job: %v", got)
		}
		if _, err := w.Resume(t.Context(), w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		w.step("sweep", w.SweepOnce)
		undo := w.one()
		if undo.Name != "unstock" {
			t.Fatalf("undone by %s", undo.Name)
		}
		if _, err := w.Cancel(t.Context(), w.c, id, engine.Request{}); err != nil {
			t.Errorf("a further cancel: %v", err)
		}
		w.passing(2*time.Minute, undo)
		if n := w.step("expire", w.ExpireOnce); n != 1 {
			t.Errorf("%d jobs expired", n)
		}
		w.quieten()
		w.settle(ok(undo, `1`))
		w.saga(nil)
		if j := w.want(id, drover.Cancelled); j.Compensation == nil || j.Compensation.Status != drover.Succeeded {
			t.Errorf("%+v", j.Compensation)
		}
		if got := w.told(id); got != "check:ok notify:cancelled pay:cancelled restock:ok tidy:ok unstock:ok" {
			t.Error(got)
		}
		w.audit()
	})
}

// TestACompensationThatFails is tried again as its own retry says, then it is a dead
// letter; the others run, the job says so, and a replay makes it good.
func TestACompensationThatFails(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(saga)
		id := w.submit(drover.NewJob{Pipeline: "refund", Input: []byte(`{"item":7}`)})
		ran := w.saga(map[string]drover.ErrorClass{"notify": drover.ClassPermanent, "take-back": drover.ClassRetryable})
		if n := strings.Count(fmt.Sprint(ran), "take-back"); n != 2 {
			t.Errorf("take-back ran %d times: %q", n, ran)
		}
		j := w.want(id, drover.Failed)
		if c := j.Compensation; c.Status != drover.Failed || c.Tasks[0].Status != drover.DeadLetter || c.Tasks[0].Error == nil || c.Tasks[1].Status != drover.Succeeded {
			t.Errorf("%+v", c)
		}
		w.audit()
		if err := w.replay(id, "take-back", 0); err != nil {
			t.Fatal(err)
		}
		if j := w.job(id); j.Compensation.Status != drover.Running {
			t.Errorf("%+v", j.Compensation)
		}
		w.audit()
		if ran := w.saga(nil); !slices.Equal(ran, []string{`take-back{"payment":"pay-1","to":"card"}`}) {
			t.Errorf("after the replay ran %q", ran)
		}
		if j := w.want(id, drover.Failed); j.Compensation.Status != drover.Succeeded || j.Tasks.Failed != 1 {
			t.Errorf("%+v %+v", j.Tasks, j.Compensation)
		}
		if len(w.diverging(false)) != 0 {
			t.Error("reconciliation finds something to mend")
		}
		w.audit()
	})
}

// TestElementsOfAMapAreUndoneOneByOne: those that succeeded, what was done last first, each
// with its own item and output; an input that a replay gave is given on.
func TestElementsOfAMapAreUndoneOneByOne(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\non_failure: continue\ntasks:\n  m: {run: x, for_each: [a, b, c], with: {of: \"${{ item }}\"}, compensate: u}\n  n: {run: x, for_each: m, with: \"${{ item }}\", compensate: v}\n" +
			"  u: {run: x}\n  v: {run: x, with: {was: \"${{ tasks.n.output }}\", of: \"${{ item }}\"}}\n")
		id := w.submit(drover.NewJob{Pipeline: "p"})
		var done, undone []string
		for range 30 {
			for _, l := range w.acquire(1) {
				name := fmt.Sprintf("%s[%d]", l.Name, l.Index)
				switch {
				case name == "m[1]" && l.Generation == 1:
					w.settle(failed(l, drover.ClassPermanent, "no"))
					if _, err := w.Replay(t.Context(), w.c, l.TaskID, engine.ReplayRequest{Input: []byte(`"other"`)}); err != nil {
						t.Fatal(err)
					}
				case name == "n[2]":
					w.settle(failed(l, drover.ClassPermanent, "no"))
				case l.Name == "u" || l.Name == "v":
					undone = append(undone, name+string(l.Input))
					w.settle(ok(l, "1"))
				default:
					done = append(done, name)
					w.settle(ok(l, `"`+name+`"`))
				}
			}
		}
		if want := []string{"m[0]", "m[2]", "n[0]", "m[1]", "n[1]"}; !slices.Equal(done, want) {
			t.Errorf("done %q, want %q", done, want)
		}
		want := []string{`v[1]{"of":"m[1]","was":"n[1]"}`, `u[1]"other"`, `v[0]{"of":"m[0]","was":"n[0]"}`, `u[0]{"of":"a"}`, `u[2]{"of":"c"}`} // the last two at once
		if !slices.Equal(undone, want) {
			t.Errorf("undone\n%q, want\n%q", undone, want)
		}
		w.want(id, drover.Failed)
		w.audit()
	})
}

// TestWhatUndoesIsNotMendedAway: job_live lost or miscounted while a job undoes what it
// did is rebuilt, and the rest is undone once.
func TestWhatUndoesIsNotMendedAway(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(saga)
		id := w.submit(drover.NewJob{Pipeline: "refund", Input: []byte(`{"item":7}`)})
		for range 3 {
			w.settle(ok(w.one(), `{"to":"card","id":1}`))
		}
		w.settle(failed(w.one(), drover.ClassPermanent, "no"))
		w.exec("DELETE FROM job_live")
		if list := w.diverging(true); len(list) != 1 {
			t.Errorf("found %v", list)
		}
		ran := w.saga(nil)
		var names []string
		for _, r := range ran {
			names = append(names, r[:strings.Index(r, "{")])
		}
		if !slices.Equal(names, []string{"take-back", "unstock", "tidy"}) {
			t.Errorf("ran %q: %s", names, w.told(id))
		}
		w.want(id, drover.Failed)
		w.audit()
	})
}

// TestWhatCouldNotBeUndoneIsShownFirst, however many others there are.
func TestWhatCouldNotBeUndoneIsShownFirst(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		const n = 1003
		w.apply("pipeline: p\ntasks:\n  m: {run: x, for_each: \"${{ input }}\", compensate: u}\n  z: {run: x, needs: [m], with: 1}\n  u: {run: x}\n")
		id := w.submit(drover.NewJob{Pipeline: "p", Input: []byte("[" + strings.TrimSuffix(strings.Repeat("0,", n), ",") + "]")})
		for range 8 {
			w.work(func(l drover.Lease) drover.Outcome {
				if l.Name == "z" || l.Name == "u" && l.Index%500 == 2 {
					return failed(l, drover.ClassPermanent, "no")
				}
				return ok(l, "1")
			})
		}
		c := w.job(id).Compensation
		if c.Status != drover.Failed || c.Total != n || c.Failed != 3 || len(c.Tasks) != 1000 {
			t.Fatalf("%s, %d in all, %d failed, %d shown", c.Status, c.Total, c.Failed, len(c.Tasks))
		}
		for i, want := range []struct {
			index  int
			status drover.Status
		}{{502, drover.Failed}, {1002, drover.Failed}, {2, drover.Failed}, {3, drover.Succeeded}} {
			if got := c.Tasks[i]; got.Index != want.index || got.Status != want.status {
				t.Errorf("place %d: %s[%d] %s, want [%d] %s", i, got.Task, got.Index, got.Status, want.index, want.status)
			}
		}
		w.audit()
	})
}

// TestWhatIsToBeUndoneIsCounted exactly, with what ends in the same transaction, and
// without reading it.
func TestWhatIsToBeUndoneIsCounted(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		c := &counting{Driver: w.db.Driver}
		w.db.Driver = c
		w.apply("pipeline: p\ntasks:\n  a: {run: x, for_each: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], compensate: ua}\n  ua: {run: x}\n  z: {run: x}\n")
		id := w.submit(drover.NewJob{Pipeline: "p"})
		var last, z drover.Lease
		for ran := 0; ran < 10 || z.Name == ""; {
			for _, l := range w.acquire(1) {
				switch ran++; {
				case l.Name == "z":
					z = l
					ran--
				case ran == 10:
					last = l
				default:
					w.settle(ok(l, "1"))
				}
			}
		}
		c.listen()
		w.settle(ok(last, "1"), failed(z, drover.ClassPermanent, "no"))
		if n := c.read["count what is to be undone"]; n != 1 {
			t.Errorf("%d rows are read to count what is to be undone: %v", n, c.named)
		}
		var told []string
		for _, e := range w.gapless(id) {
			if e.Type == drover.JobCompensating {
				told = append(told, string(e.Data))
			}
		}
		if !slices.Equal(told, []string{`{"tasks":10}`}) {
			t.Errorf("told: %q", told)
		}
		undone := 0
		for !w.job(id).Status.Final() {
			undone += len(w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") }))
		}
		if undone != 10 {
			t.Errorf("%d were undone", undone)
		}
		w.audit()
	})
}
