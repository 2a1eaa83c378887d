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
				dead, err := w.Tasks(t.Context(), w.c, engine.TaskQuery{DeadLetters: true})
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
