package engine_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

// places lists the job's tasks as the API does.
func (w *world) places(id drover.JobID) (list []string) {
	w.t.Helper()
	tasks, err := w.Tasks(w.t.Context(), w.c, engine.TaskQuery{Job: id, Limit: 100})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, x := range tasks {
		list = append(list, fmt.Sprintf("%s[%d] %s %d", x.Name, x.Index, x.Status, x.Generation))
	}
	return list
}

func (w *world) replay(id drover.JobID, name string, index int) error {
	w.t.Helper()
	tasks, err := w.Tasks(w.t.Context(), w.c, engine.TaskQuery{Job: id, Name: name, Limit: 100})
	if err != nil {
		w.t.Fatal(err)
	}
	i := slices.IndexFunc(tasks, func(x drover.Task) bool { return x.Index == index })
	if i < 0 {
		w.t.Fatalf("there is no task %s[%d]", name, index)
	}
	_, err = w.Replay(w.t.Context(), w.c, tasks[i].ID, engine.ReplayRequest{})
	return err
}

// TestAMapThatWasReplayedIsItsElements: a map that ended before it could expand
// comes back, expands, and its elements stand for it from then on, as for any
// other map; whatever is replayed later, it does not come back beside them.
func TestAMapThatWasReplayedIsItsElements(t *testing.T) {
	for i, c := range []struct{ name, first, then string }{
		{"the map failed", `"no list"`, `[1, 2]`},
		{"the map was skipped", ``, `[1, 2]`},
		{"the map was skipped, then it is empty", ``, `[]`},
		{"the map failed, then it is empty", `7`, `[]`},
	} {
		if raceDetector && i > 1 {
			break // slow, and the same without
		}
		t.Run(c.name, func(t *testing.T) {
			each(t, func(t *testing.T, w *world) {
				w.apply("pipeline: p\ntasks:\n  a: {run: x}\n  m: {run: x, for_each: \"${{ tasks.a.output }}\"}\n  n: {run: x, for_each: m}\n  y: {run: x, needs: [n]}\n  z: {run: x, needs: [y]}\n")
				id := w.submit(drover.NewJob{Pipeline: "p"})
				l := w.acquire(1)[0]
				var map1 drover.TaskID
				if c.first == "" {
					w.settle(failed(l, drover.ClassPermanent, "no"))
				} else {
					w.settle(ok(l, c.first))
				}
				w.quieten()
				w.want(id, drover.Failed)
				tasks, err := w.Tasks(t.Context(), w.c, engine.TaskQuery{Job: id, Name: "m"})
				if err != nil || len(tasks) != 1 || tasks[0].Index != -1 {
					t.Fatalf("tasks = %+v, %v", tasks, err)
				}
				map1 = tasks[0].ID
				broken := "z" // fails once more, last of all
				run := func() {
					t.Helper()
					w.quieten()
					w.work(func(l drover.Lease) drover.Outcome {
						if l.Name == "a" {
							return ok(l, c.then)
						}
						if l.Name == broken {
							return failed(l, drover.ClassPermanent, "no")
						}
						return ok(l, "1")
					})
					w.quieten()
					if !raceDetector {
						w.audit()
					}
				}
				if err := w.replay(id, "a", 0); err != nil {
					t.Fatal(err)
				}
				run()
				if c.first != "" { // it failed by itself, and waits for a replay of its own
					w.want(id, drover.Failed)
					for range 2 { // the second is the first again
						x, err := w.Replay(t.Context(), w.c, map1, engine.ReplayRequest{Request: engine.Request{ID: "one"}})
						if err != nil || x.ID != map1 || x.Name != "m" || x.Status != drover.Pending {
							t.Fatalf("replay of the map: %+v, %v", x, err)
						}
					}
					run()
				}
				w.want(id, drover.Failed) // z
				for range 2 {
					if err := w.replay(id, "z", 0); err != nil {
						t.Fatal(err)
					}
					broken = ""
					run()
					w.want(id, drover.Succeeded)
				}
				want := []string{"a[0] SUCCEEDED 2", "m[0] SUCCEEDED 1", "m[1] SUCCEEDED 1", "n[0] SUCCEEDED 1", "n[1] SUCCEEDED 1", "y[0] SUCCEEDED 2", "z[0] SUCCEEDED 4"}
				if c.then == "[]" {
					want = slices.Delete(want, 1, 5)
				}
				if got := w.places(id); !slices.Equal(got, want) {
					t.Errorf("tasks:\n got %v\nwant %v", got, want)
				}
				if j := w.job(id); j.Tasks.Total != len(want) || j.Tasks.Succeeded != len(want) {
					t.Errorf("counts = %+v, want %d tasks", j.Tasks, len(want))
				}
				dead, err := w.Letters(t.Context(), w.c, engine.LetterQuery{})
				if err != nil || len(dead) != 0 {
					t.Errorf("dead letters of a job that succeeded: %+v, %v", dead, err)
				}
				if _, err := w.Replay(t.Context(), w.c, map1, engine.ReplayRequest{}); drover.CodeOf(err) != drover.CodeInvalidTransition {
					t.Errorf("replay of a map that has expanded: %v", err)
				}
				w.audit()
			})
		})
	}
}

// TestMapsOfOneListComeBackTogether: maps that go over each other element by
// element expand at one moment. A replay does not part them: the first does not
// come back, and expand, while one that goes over it has to stay behind.
func TestMapsOfOneListComeBackTogether(t *testing.T) {
	const src = "pipeline: grow\ntasks:\n  list: {run: k}\n  other: {run: k}\n  one: {run: k, for_each: \"${{ tasks.list.output }}\"}\n  two: {run: k, for_each: one, needs: [other]}\n  end: {run: k, needs: [two, one]}\n"
	finish := func(t *testing.T, w *world, id drover.JobID) {
		t.Helper()
		for range 5 {
			w.quieten()
			w.work(func(l drover.Lease) drover.Outcome { return ok(l, "[1, 2]") })
		}
		w.want(id, drover.Succeeded)
		if got, want := w.places(id), 7; len(got) != want {
			t.Errorf("places = %v, want %d", got, want)
		}
		w.audit()
	}
	t.Run("the job failed in two places", func(t *testing.T) {
		each(t, func(t *testing.T, w *world) {
			w.apply(src)
			id := w.submit(drover.NewJob{Pipeline: "grow"})
			l := leasesByName(w.acquire(2))
			w.settle(failed(l["list"][0], drover.ClassPermanent, "no"), failed(l["other"][0], drover.ClassPermanent, "no"))
			w.quieten()
			w.want(id, drover.Failed)
			if err := w.replay(id, "list", 0); err != nil {
				t.Fatal(err)
			}
			w.work(func(l drover.Lease) drover.Outcome { return ok(l, "[1, 2]") })
			w.quieten()
			w.want(id, drover.Failed) // other
			if err := w.replay(id, "other", 0); err != nil {
				t.Fatal(err)
			}
			finish(t, w, id)
		})
	})
	t.Run("the job was cancelled", func(t *testing.T) {
		each(t, func(t *testing.T, w *world) {
			w.apply(src)
			id := w.submit(drover.NewJob{Pipeline: "grow"})
			l := leasesByName(w.acquire(2))
			if _, err := w.Cancel(t.Context(), w.c, id, engine.Request{}); err != nil {
				t.Fatal(err)
			}
			w.settle(ok(l["list"][0], "[1, 2]"), ok(l["other"][0], "1"))
			w.quieten()
			w.want(id, drover.Cancelled)
			if err := w.replay(id, "two", -1); drover.CodeOf(err) != drover.CodeInvalidTransition {
				t.Errorf("replay of a map whose list is another map's, which is cancelled: %v", err)
			}
			if err := w.replay(id, "one", -1); err != nil { // and two with it
				t.Fatal(err)
			}
			w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
			w.quieten()
			w.want(id, drover.Cancelled) // end
			if err := w.replay(id, "end", 0); err != nil {
				t.Fatal(err)
			}
			finish(t, w, id)
		})
	})
	t.Run("what the second map waits for is cancelled", func(t *testing.T) {
		each(t, func(t *testing.T, w *world) {
			w.apply(src)
			id := w.submit(drover.NewJob{Pipeline: "grow"})
			l := leasesByName(w.acquire(2))
			if _, err := w.Cancel(t.Context(), w.c, id, engine.Request{}); err != nil {
				t.Fatal(err)
			}
			w.settle(ok(l["list"][0], "[1, 2]"), drover.Outcome{TaskID: l["other"][0].TaskID, LeaseVersion: 1, Status: drover.OutcomeCancelled})
			w.quieten()
			w.want(id, drover.Cancelled)
			if err := w.replay(id, "one", -1); drover.CodeOf(err) != drover.CodeInvalidTransition {
				t.Errorf("replay of a map over which another one goes that cannot come back: %v", err)
			}
			for _, x := range []struct {
				name  string
				index int
			}{{"other", 0}, {"one", -1}, {"end", 0}} {
				if err := w.replay(id, x.name, x.index); err != nil {
					t.Fatalf("replay %s: %v", x.name, err)
				}
				w.quieten()
				w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
				w.quieten()
			}
			finish(t, w, id)
		})
	})
}

// TestAMapThatWasPartedFailsItsJob: a map over the elements of another stands
// alone, as no operation leaves it. It ends with a message, and nobody panics.
func TestAMapThatWasPartedFailsItsJob(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: a}\n  list: {run: list}\n  one: {run: one, for_each: \"${{ tasks.list.output }}\"}\n  two: {run: two, for_each: one, needs: [a]}\n")
		id := w.submit(drover.NewJob{Pipeline: "p"})
		var a drover.Lease
		for _, l := range w.acquire(2) {
			if l.Name == "a" {
				a = l
			}
		}
		w.exec("UPDATE task_pending SET unmet = 1 WHERE job_id = " + w.literal(id) + " AND node = 3")
		if s := w.settle(ok(a, "1"))[0]; s.Err != nil {
			t.Fatal(s.Err)
		}
		w.step("sweep", w.SweepOnce)
		if x := w.taskOf(id, "two"); x.Status != drover.Failed || x.Error == nil || x.Error.Class != drover.ClassExpand {
			t.Errorf("two is %s: %+v", x.Status, x.Error)
		}
	})
}
