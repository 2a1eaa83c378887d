package engine_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

const besides = `pipeline: p
on_failure: continue
tasks:
  a: {run: x, backup: b, retry: {max_attempts: 3, backoff: {initial: 10s}}}
  b: {run: y, retry: {max_attempts: 2, backoff: {initial: 10s}}}
  z: {run: z, needs: [a], with: "${{ tasks.a.output }}"}
`

// besides submits a job of a definition and has the first attempt of a fail: it returns the
// job, and the lease of the backup.
func (w *world) besides(src string) (drover.JobID, drover.Lease) {
	w.t.Helper()
	w.apply(src)
	id := w.submit(drover.NewJob{Pipeline: "p"})
	l := w.one()
	if l.Name != "a" {
		w.t.Fatalf("%s began", l.Name)
	}
	w.settle(failed(l, drover.ClassRetryable, "no"))
	b := w.one()
	if b.Name != "b" {
		w.t.Fatalf("%s runs after a has failed once", b.Name)
	}
	if s := w.taskOf(id, "a").Status; s != drover.RetryWait {
		w.t.Fatalf("a is %s", s)
	}
	return id, b
}

// TestABackupThatIsFirst gives its task its result, and what the task still runs is
// refused.
func TestABackupThatIsFirst(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		id, b := w.besides(besides)
		w.passing(20*time.Second, b)
		w.step("timers", w.TimersOnce)
		a := w.one()
		w.settle(ok(b, `"by b"`))
		if x := w.taskOf(id, "a"); x.Status != drover.Succeeded || !x.BackedUp || x.LeaseVersion <= a.LeaseVersion {
			t.Errorf("a: %s, backed up %v, lease_version %d after %d", x.Status, x.BackedUp, x.LeaseVersion, a.LeaseVersion)
		}
		if s := w.settle(ok(a, `"by a"`)); drover.CodeOf(s[0].Err) != drover.CodeLeaseLost {
			t.Errorf("a late result of a: %+v", s[0])
		}
		z := w.one()
		if string(z.Input) != `"by b"` || len(z.DegradedBy) > 0 {
			t.Errorf("z is given %s, degraded by %v", z.Input, z.DegradedBy)
		}
		w.settle(ok(z, "1"))
		if j := w.want(id, drover.Succeeded); j.Degraded {
			t.Error("the job is degraded")
		}
		if got := w.told(id); got != "a:ok b:ok z:ok" {
			t.Error(got)
		}
		w.audit()
	})
}

// TestATaskThatIsFirst ends its backup, wherever that stands, and its late result is
// refused.
func TestATaskThatIsFirst(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		id, b := w.besides(besides)
		w.passing(20*time.Second, b)
		w.step("timers", w.TimersOnce)
		w.settle(ok(w.one(), `"by a"`))
		if s := w.settle(ok(b, `"by b"`)); drover.CodeOf(s[0].Err) != drover.CodeLeaseLost {
			t.Errorf("a late result of b: %+v", s[0])
		}
		if x := w.taskOf(id, "b"); x.Status != drover.Skipped || !x.Gone {
			t.Errorf("b: %s, gone %v", x.Status, x.Gone)
		}
		z := w.one()
		if string(z.Input) != `"by a"` {
			t.Errorf("z is given %s", z.Input)
		}
		w.settle(ok(z, "1"))
		w.want(id, drover.Succeeded)
		w.audit()
	})
}

// TestATaskLeftToItsBackup waits for it once it has failed for good, holds no worker, and
// has its result or ends as it would have without one.
func TestATaskLeftToItsBackup(t *testing.T) {
	for _, tc := range []struct {
		name  string
		class drover.ErrorClass
		well  bool
		want  string
		job   drover.Status
	}{
		{"the backup succeeds", drover.ClassPermanent, true, "a:ok b:ok z:ok", drover.Succeeded},
		{"both fail", drover.ClassPermanent, false, "a:fail b:fail z:skip", drover.Failed},
		{"both use up their attempts", drover.ClassRetryable, false, "a:fail b:fail z:skip", drover.Failed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			each(t, func(t *testing.T, w *world) {
				w.apply(strings.Replace(besides, "max_attempts: 3", "max_attempts: 1", 1))
				id := w.submit(drover.NewJob{Pipeline: "p"})
				w.settle(failed(w.one(), tc.class, "the vendor is down"))
				x := w.taskOf(id, "a")
				if x.Status != drover.Waiting || len(x.Blockers) != 1 || x.Blockers[0].Code != drover.BlockerDependency {
					t.Fatalf("a: %s, %+v", x.Status, x.Blockers)
				}
				w.why(id, "a")
				w.audit()
				b := w.one()
				for range 20 { // it is looked at meanwhile
					w.passing(30*time.Second, b)
					w.step("timers", w.TimersOnce)
				}
				if tc.well {
					w.settle(ok(b, `"by b"`))
				} else {
					w.settle(failed(b, tc.class, "so is the other"))
					w.passing(20 * time.Second)
					w.step("timers", w.TimersOnce)
				}
				ends := map[string]string{}
				if !tc.well {
					ends["b"] = "fail"
				}
				if got := w.story(id, ends); got != tc.want {
					t.Errorf("%s, want %s", got, tc.want)
				}
				w.want(id, tc.job)
				switch x := w.taskOf(id, "a"); {
				case tc.well:
				case x.Error == nil || x.Error.Message != "the vendor is down" || x.Attempt != 1:
					t.Errorf("a: attempt %d, %+v", x.Attempt, x.Error)
				case (x.Status == drover.DeadLetter) != (tc.class == drover.ClassRetryable):
					t.Errorf("a: %s", x.Status)
				}
			})
		})
	}
}

// TestWhatFollowsWhenBothFail is what the definition says of the task: its fallback, or
// that the job stops; before that nothing stops.
func TestWhatFollowsWhenBothFail(t *testing.T) {
	for _, tc := range []struct{ name, src, want string }{
		{"a fallback", "tasks:\n  a: {run: x, backup: b, fallback: f}\n  b: {run: y}\n  f: {run: z}\n  z: {run: z, needs: [a]}\n  o: {run: z}\n", "a:fail z:ok o:ok b:fail f:ok"},
		{"fail_fast", "tasks:\n  a: {run: x, backup: b}\n  b: {run: y}\n  z: {run: z, needs: [a]}\n  o: {run: z, for_each: [1, 2], max_parallel: 1}\n", "a:fail z:skip o[0]:ok o[1]:ok b:fail"},
		{"degrade", "tasks:\n  a: {run: x, backup: b, on_failure: degrade, default: 0}\n  b: {run: y}\n  z: {run: z, needs: [a]}\n", "a:fail z:ok b:fail"},
		{"elements", "on_failure: continue\ntasks:\n  a: {run: x, for_each: [1, 2, 3], backup: b, max_parallel: 2}\n  b: {run: y, with: {is: \"${{ item }}\"}}\n  z: {run: z, needs: [a], when: one_success}\n", "a[0]:ok a[1]:fail a[2]:ok z:ok b[0]:ok b[1]:fail b[2]:ok"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			each(t, func(t *testing.T, w *world) {
				w.apply("pipeline: p\n" + tc.src)
				id := w.submit(drover.NewJob{Pipeline: "p"})
				ends := map[string]string{"a": "fail", "b": "fail"}
				if tc.name == "elements" {
					ends = map[string]string{"a": "fail", "b[1]": "fail"}
				}
				got := strings.Fields(w.story(id, ends))
				want := strings.Fields(tc.want)
				slices.Sort(got)
				slices.Sort(want)
				if tc.name == "fail_fast" { // what runs beside goes on until both have failed
					got = slices.DeleteFunc(got, func(s string) bool { return strings.HasPrefix(s, "o[") })
					want = slices.DeleteFunc(want, func(s string) bool { return strings.HasPrefix(s, "o[") })
				}
				if !slices.Equal(got, want) {
					t.Errorf("%v, want %v", got, want)
				}
			})
		})
	}
}

// TestABackupOfAJobThatIsStopped: a cancel ends both, and a pause keeps what is called
// until the resume.
func TestABackupOfAJobThatIsStopped(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		id, b := w.besides(besides)
		if _, err := w.Cancel(t.Context(), w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		w.settle(drover.Outcome{TaskID: b.TaskID, LeaseVersion: b.LeaseVersion, Status: drover.OutcomeCancelled})
		w.quieten()
		w.want(id, drover.Cancelled)

		id = w.submit(drover.NewJob{Pipeline: "p"})
		a := w.one()
		if _, err := w.Pause(t.Context(), w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		w.settle(failed(a, drover.ClassPermanent, "no"))
		if got := w.acquire(10); len(got) > 0 {
			t.Fatalf("a paused job runs %+v", got)
		}
		if _, err := w.Resume(t.Context(), w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		if got := w.story(id, nil); got != "a:ok b:ok z:ok" {
			t.Error(got)
		}
		w.audit()
	})
}

// TestRunningAgainWithABackup: a replay and a rerun call it anew, with the input that they
// give; by itself it is neither replayed nor run again.
func TestRunningAgainWithABackup(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(besides)
		id := w.submit(drover.NewJob{Pipeline: "p"})
		if got := w.story(id, map[string]string{"a": "fail", "b": "fail"}); got != "a:fail b:fail z:skip" {
			t.Fatal(got)
		}
		if err := w.replay(id, "b", 0); drover.CodeOf(err) != drover.CodeInvalidTransition || !strings.Contains(err.Error(), `replay that`) {
			t.Errorf("replay of a backup: %v", err)
		}
		w.refusesRerun(id, engine.RerunRequest{From: []string{"b"}}, drover.CodeInvalidTransition, `as the backup of task "a"`)
		if _, err := w.mark(id, "b", drover.Succeeded, "1"); drover.CodeOf(err) != drover.CodeInvalidTransition {
			t.Errorf("mark of a backup that has ended: %v", err)
		}
		if _, err := w.Replay(t.Context(), w.c, w.taskOf(id, "a").ID, engine.ReplayRequest{Input: []byte(`{"new":1}`)}); err != nil {
			t.Fatal(err)
		}
		a := w.one()
		w.settle(failed(a, drover.ClassPermanent, "no"))
		b := w.one()
		if string(b.Input) != `{"new":1}` || b.Generation != 2 {
			t.Errorf("the backup of generation %d is given %s", b.Generation, b.Input)
		}
		w.settle(ok(b, "2"))
		if got := w.story(id, nil); got != "a:ok b:ok z:ok" {
			t.Error(got)
		}
		w.want(id, drover.Succeeded)
		if _, err := w.Rerun(t.Context(), w.c, id, engine.RerunRequest{From: []string{"a"}}); err != nil {
			t.Fatal(err)
		}
		if x := w.taskOf(id, "b"); !x.Gone {
			t.Errorf("after a rerun b is %s, gone %v", x.Status, x.Gone)
		}
		if got := w.story(id, map[string]string{"a": "fail"}); got != "a:ok b:ok z:ok" {
			t.Error(got)
		}
		w.audit()
		if list := w.diverging(false); len(list) > 0 {
			t.Errorf("rows and records differ: %+v", list)
		}
	})
}

// TestMarksOfATaskAndItsBackup: a mark of the task ends the backup, one of the backup that
// it succeeded gives the task its result.
func TestMarksOfATaskAndItsBackup(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		id, b := w.besides(besides)
		if _, err := w.mark(id, "a", drover.Succeeded, "5"); err != nil {
			t.Fatal(err)
		}
		if s := w.settle(ok(b, "6")); drover.CodeOf(s[0].Err) != drover.CodeLeaseLost {
			t.Errorf("a late result of b: %+v", s[0])
		}
		if z := w.one(); string(z.Input) != "5" {
			t.Errorf("z is given %s", z.Input)
		} else {
			w.settle(ok(z, "1"))
		}
		w.want(id, drover.Succeeded)
		id, _ = w.besides(besides)
		if _, err := w.mark(id, "b", drover.Succeeded, "7"); err != nil {
			t.Fatal(err)
		}
		if z := w.one(); string(z.Input) != "7" {
			t.Errorf("z is given %s", z.Input)
		} else {
			w.settle(ok(z, "1"))
		}
		w.want(id, drover.Succeeded)
		w.audit()
	})
}

// TestRacesOfTasksAndBackups: whichever ends first, however they stand, and in whatever
// order loops and reports come, the task has one result, both end, and the records agree.
func TestRacesOfTasksAndBackups(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(strings.Replace(besides, "a: {run: x,", "a: {run: x, for_each: [1, 2, 3, 4],", 1))
		won := map[string]int{}
		for seed := uint64(0); seed < uint64(w.rounds(40)) || len(won) < 3 && seed < 400; seed++ { // until each has won once, and both have failed
			w.open()
			r := rand.New(rand.NewPCG(seed, 3))
			id := w.submit(drover.NewJob{Pipeline: "p"})
			var held []drover.Lease
			for range 300 {
				held = append(held, w.acquire(1+r.IntN(4))...)
				if len(held) > 0 {
					i := r.IntN(len(held))
					l := held[i]
					held = slices.Delete(held, i, i+1)
					o := ok(l, fmt.Sprintf("%q", l.Name))
					if r.IntN(2) == 0 {
						o = failed(l, []drover.ErrorClass{drover.ClassRetryable, drover.ClassPermanent}[r.IntN(2)], "no")
					}
					if s := w.settle(o); s[0].Err != nil && drover.CodeOf(s[0].Err) != drover.CodeLeaseLost {
						t.Fatal(s[0].Err)
					}
				}
				if r.IntN(3) == 0 {
					w.passing(10*time.Second, held...)
				}
				if r.IntN(2) == 0 {
					w.step("timers", w.TimersOnce)
				}
				if w.job(id).Status.Final() {
					break
				}
			}
			if j := w.job(id); !j.Status.Final() {
				t.Fatalf("seed %d: the job is %s: %s", seed, j.Status, w.told(id))
			}
			for _, x := range w.tasksNamed(id, "a") {
				x, err := w.Task(t.Context(), w.c, x.ID)
				if err != nil {
					t.Fatal(err)
				}
				switch by := map[bool]string{true: `"b"`, false: `"a"`}[x.BackedUp]; {
				case x.Status == drover.Succeeded && string(x.Output) != by:
					t.Errorf("seed %d: a[%d], backed up %v, gave %s", seed, x.Index, x.BackedUp, x.Output)
				case x.Status == drover.Succeeded:
					won[by]++
				default:
					won[x.Status.String()]++
				}
			}
			w.gapless(id)
		}
		w.audit()
		if list := w.diverging(false); len(list) > 0 {
			t.Errorf("rows and records differ: %+v", list)
		}
		if t.Logf("%v", won); len(won) < 3 {
			t.Errorf("not all happened: %v", won)
		}
	})
}
