package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/reconcile"
)

// diverging returns what a whole round finds.
func (w *world) diverging(mend bool) (list []engine.Divergence) {
	w.t.Helper()
	for after := (drover.JobID{}); ; {
		found, next, err := w.ReconcileFrom(w.t.Context(), after, mend)
		if err != nil {
			w.t.Fatal(err)
		}
		list = append(list, found...)
		if after = next; after.IsZero() {
			return list
		}
	}
}

func codes(list []engine.Divergence) map[reconcile.Code]int {
	m := map[reconcile.Code]int{}
	for _, d := range list {
		for _, f := range d.Findings {
			m[f.Code]++
		}
	}
	return m
}

// TestLiveRowsAreRebuiltFromTheRecords: every table a live task stands in is
// emptied in the middle of the work. Then all jobs end as they would have, and
// nothing that had succeeded runs again.
func TestLiveRowsAreRebuiltFromTheRecords(t *testing.T) {
	for _, lost := range [][]string{{"task_queued"}, {"task_running"}, {"task_pending"}, {"task_delayed"}, {"task_queued", "task_ready", "task_pending", "task_delayed", "task_running"}, {"job_live"},
		{"task_queued", "task_ready", "task_pending", "task_delayed", "task_running", "job_live"}} {
		t.Run(fmt.Sprint(lost), func(t *testing.T) {
			each(t, func(t *testing.T, w *world) {
				w.mixed()
				replayed := w.submit(drover.NewJob{Kind: "again", Class: drover.Interactive})
				l := w.acquire(1)[0]
				w.settle(failed(l, drover.ClassPermanent, "no"))
				if _, err := w.Replay(t.Context(), w.c, l.TaskID, engine.ReplayRequest{}); err != nil {
					t.Fatal(err)
				}
				late := w.acquire(1) // leased over the loss
				done := map[drover.TaskID]bool{}
				succeeded := func(mark bool) {
					for _, j := range w.jobs() {
						tasks, err := w.Tasks(t.Context(), w.c, engine.TaskQuery{Job: j.ID, Status: []drover.Status{drover.Succeeded}, Limit: 500})
						if err != nil {
							t.Fatal(err)
						}
						for _, x := range tasks {
							if mark {
								done[x.ID] = true
							}
						}
					}
				}
				succeeded(true)
				clear(w.entered)
				for _, table := range lost {
					w.exec("DELETE FROM " + table)
				}
				if list := w.diverging(false); len(list) == 0 {
					t.Fatal("nothing is found")
				} else if before := codes(list); len(w.diverging(false)) != len(list) {
					t.Errorf("looking changed something: %v", before)
				}
				found := w.diverging(true)
				t.Log(codes(found))
				for _, d := range found {
					if !d.Mended {
						t.Errorf("not mended: %+v", d)
					}
				}
				if again := w.diverging(true); len(again) > 0 {
					t.Errorf("found again: %+v", again)
				}
				w.audit()
				// What was leased before is refused where its row was lost.
				for _, o := range w.settle(ok(late[0], "1")) {
					if kept := !slices.Contains(lost, "task_running"); (o.Err == nil) != kept {
						t.Errorf("the lease from before: %+v", o)
					}
				}
				w.clock.add += 2 * time.Hour
				w.open()
				h := ingestHandler(t, 3, map[string]string{})
				for _, j := range w.jobs() {
					if j.Paused {
						if _, err := w.Resume(t.Context(), w.c, j.ID, engine.Request{}); err != nil {
							t.Fatal(err)
						}
					}
				}
				w.finish(func(l drover.Lease) drover.Outcome {
					if l.Pipeline == "" {
						return ok(l, "1")
					}
					return h(l)
				})
				for id := range w.entered {
					if done[id] {
						t.Errorf("task %s had succeeded and ran again", id)
					}
				}
				want := map[drover.Status]int{drover.Failed: 3}
				for _, j := range w.jobs() {
					if want[j.Status]--; !j.Status.Final() {
						t.Errorf("%s is %s", j.ID, j.Status)
					}
				}
				if want[drover.Failed] != 0 {
					t.Errorf("failed jobs: %d of 3 are missing", want[drover.Failed])
				}
				w.want(replayed, drover.Succeeded)
				w.audit()
			})
		})
	}
}

// TestWhatAReplayBroughtBackIsRebuilt: tasks that came back with another one's
// replay, without an event of their own, and lost their rows then.
func TestWhatAReplayBroughtBackIsRebuilt(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		if _, err := w.RegisterPipeline(t.Context(), w.c, "", []byte("pipeline: back\ntasks:\n  a: {run: a}\n  m: {run: m, needs: [a], for_each: '${{ input.list }}'}\n  z: {run: z, needs: [m]}\n  y: {run: y, needs: [a]}\n")); err != nil {
			t.Fatal(err)
		}
		id := w.submit(drover.NewJob{Pipeline: "back", Input: json.RawMessage(`{"list":[1,2,3,4]}`)})
		a := w.one()
		w.settle(failed(a, drover.ClassPermanent, "no"))
		w.want(id, drover.Failed)
		again := func(task drover.TaskID) {
			t.Helper()
			if _, err := w.Replay(t.Context(), w.c, task, engine.ReplayRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		lose := func(where string, want int) {
			t.Helper()
			w.exec("DELETE FROM " + where)
			if found := codes(w.diverging(true)); found[reconcile.TaskNowhere] != want {
				t.Errorf("%s: found %v, want %d tasks nowhere", where, found, want)
			}
			if more := w.diverging(true); len(more) > 0 {
				t.Errorf("%s: found again: %+v", where, more)
			}
			w.audit()
		}
		again(a.TaskID)
		lose("task_pending", 3) // m, which has not expanded, z and y
		w.settle(ok(w.one(), "1"))
		failing := drover.TaskID{}
		for _, l := range w.all() {
			if l.Name == "m" && l.Index == 1 {
				failing = l.TaskID
				w.settle(failed(l, drover.ClassPermanent, "no"))
			} else if l.Name == "m" {
				w.settle(drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeReleased})
			} else {
				w.settle(ok(l, "1"))
			}
		}
		w.finish(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		w.want(id, drover.Failed)
		again(failing)
		lose("task_pending", 1) // z, for the third time
		lose("task_queued", 4)  // three elements that were cut off, and the one that was replayed
		w.finish(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		w.want(id, drover.Succeeded)
		w.audit()
	})
}

func (w *world) jobs() []drover.Job {
	w.t.Helper()
	jobs, err := w.Jobs(w.t.Context(), w.c, engine.JobQuery{Limit: 500})
	if err != nil {
		w.t.Fatal(err)
	}
	return jobs
}

// TestEveryDivergenceIsFoundAndMended, each by itself.
func TestEveryDivergenceIsFoundAndMended(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: a}\n  b: {needs: [a], run: b}\n  c: {needs: [a, b], run: c}\n")
		w.apply("pipeline: bounded\ntasks:\n  m: {run: x, for_each: [1, 2, 3], max_parallel: 1}\n")
		told := map[reconcile.Code]bool{}
		var bounded drover.JobID // of the case that has a map
		for _, c := range []struct {
			name  string
			want  reconcile.Code
			spoil func(job drover.JobID, l drover.Lease)
		}{
			{"row lost", reconcile.TaskNowhere, func(id drover.JobID, _ drover.Lease) {
				w.exec("DELETE FROM task_pending WHERE job_id = " + w.literal(id) + " AND node = 1")
			}},
			{"row doubled", reconcile.TaskTwice, func(id drover.JobID, _ drover.Lease) {
				w.exec("INSERT INTO task_queued (task_id, job_id, node, idx, queue, lane, class, generation, attempt, losses, lease_version, events, due_at, waits, ready_at, queued_at) " +
					"SELECT task_id, job_id, node, idx, queue, lane, class, generation, attempt, losses, lease_version, events, due_at, waits, ready_at, queued_at FROM task_running WHERE job_id = " + w.literal(id))
			}},
			{"row after its end", reconcile.TaskAlive, func(id drover.JobID, l drover.Lease) {
				w.exec("UPDATE task_running SET session_id = -session_id WHERE job_id = " + w.literal(id))
				copied := "task_id, job_id, node, idx, queue, lane, class, generation, attempt, losses, lease_version, events, due_at, waits, ready_at, queued_at"
				w.exec("INSERT INTO task_queued (" + copied + ") SELECT " + copied + " FROM task_running WHERE job_id = " + w.literal(id))
				w.exec("UPDATE task_running SET session_id = -session_id WHERE job_id = " + w.literal(id))
				w.settle(ok(l, "1"))
			}},
			{"count too high", reconcile.Miscounted, func(id drover.JobID, l drover.Lease) {
				w.exec("UPDATE task_pending SET unmet = unmet + 1 WHERE job_id = " + w.literal(id))
				w.settle(ok(l, "1")) // now nothing of it runs or waits to
			}},
			{"held by nothing", reconcile.NobodyLooks, func(id drover.JobID, l drover.Lease) {
				if _, err := w.Pause(t.Context(), w.c, id, engine.Request{}); err != nil {
					t.Fatal(err)
				}
				w.settle(ok(l, "1"))
				w.exec("DELETE FROM job_holds WHERE job_id = " + w.literal(id))
				w.exec("UPDATE job_live SET paused = 0 WHERE job_id = " + w.literal(id))
			}},
			{"lane that is none", reconcile.NobodyLooks, func(id drover.JobID, l drover.Lease) {
				w.settle(ok(l, "1"))
				w.exec("UPDATE task_queued SET lane = 31337 WHERE job_id = " + w.literal(id))
			}},
			{"places of a map", reconcile.MapCounts, func(drover.JobID, drover.Lease) {
				bounded = w.submit(drover.NewJob{Pipeline: "bounded"})
				w.exec("UPDATE map_live SET running = running - 1")
			}},
			{"counters", reconcile.JobCounts, func(id drover.JobID, _ drover.Lease) {
				w.exec("UPDATE job_live SET open = 7, total = 9 WHERE job_id = " + w.literal(id))
			}},
			{"row of the job", reconcile.JobUnrecorded, func(id drover.JobID, _ drover.Lease) { w.exec("DELETE FROM job_live WHERE job_id = " + w.literal(id)) }},
			{"hold of a pause", reconcile.HoldLost, func(id drover.JobID, _ drover.Lease) {
				if _, err := w.Pause(t.Context(), w.c, id, engine.Request{}); err != nil {
					t.Fatal(err)
				}
				w.exec("DELETE FROM job_holds WHERE job_id = " + w.literal(id))
			}},
			{"hold of a cancel", reconcile.HoldLost, func(id drover.JobID, _ drover.Lease) {
				if _, err := w.Cancel(t.Context(), w.c, id, engine.Request{}); err != nil {
					t.Fatal(err)
				}
				w.exec("DELETE FROM job_holds WHERE job_id = " + w.literal(id))
			}},
			{"end of the job", reconcile.JobNotEnded, func(id drover.JobID, l drover.Lease) {
				w.settle(ok(l, "1"))
				w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
				w.want(id, drover.Succeeded)
				w.exec("DELETE FROM job_final WHERE job_id = " + w.literal(id))
				w.exec("DELETE FROM events WHERE job_id = " + w.literal(id) + " AND type = 'job.succeeded'")
			}},
		} {
			id := w.submit(drover.NewJob{Pipeline: "p"})
			l := w.acquire(1)[0]
			if found := w.diverging(false); len(found) > 0 {
				t.Fatalf("%s: before anything is wrong: %+v", c.name, found)
			}
			c.spoil(id, l)
			found := w.diverging(true)
			if !bounded.IsZero() {
				id, bounded = bounded, drover.JobID{}
			}
			if len(found) != 1 || found[0].Job != id || codes(found)[c.want] == 0 || !found[0].Mended {
				t.Errorf("%s: found %+v, want %s", c.name, found, c.want)
			}
			told[c.want] = true
			if again := w.diverging(true); len(again) > 0 {
				t.Errorf("%s: found again: %+v", c.name, again)
			}
			if !slices.ContainsFunc(w.gapless(id), func(e drover.Event) bool { return e.Type == drover.JobReconciled }) {
				t.Errorf("%s: its events do not tell", c.name)
			}
			w.settle(ok(l, "1"))
			if j := w.job(id); j.Paused {
				if _, err := w.Resume(t.Context(), w.c, id, engine.Request{}); err != nil {
					t.Fatal(err)
				}
			}
			w.finish(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
			if j := w.job(id); j.Status != drover.Succeeded && (c.name != "hold of a cancel" || j.Status != drover.Cancelled) {
				t.Errorf("%s: the job is %s", c.name, j.Status)
			}
			w.audit()
		}
		for _, c := range reconcile.Codes {
			if !told[c] {
				t.Errorf("%s is not among the cases", c)
			}
		}
	})
}

// TestNothingDivergesWhileWorkGoesOn: a round that runs beside everything else
// finds nothing, since every move is whole.
func TestNothingDivergesWhileWorkGoesOn(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: g\ndefaults: {retry: {max_attempts: 3, backoff: {initial: 1ms, max: 2ms}}}\ntasks:\n  list: {run: k}\n  one: {run: k, for_each: \"${{ tasks.list.output }}\"}\n  two: {run: k, for_each: one}\n  end: {run: k, needs: [two]}\n")
		ids := append(w.submitCopies(w.scaled(30, 8), drover.NewJob{Pipeline: "g"}), w.submitCopies(w.scaled(60, 15), drover.NewJob{Kind: "k"})...)
		var over atomic.Bool
		looked := 0
		err := together(4, func(i int) error {
			ctx := context.Background()
			if i == 0 {
				for !over.Load() {
					for after := (drover.JobID{}); ; {
						found, next, err := w.ReconcileFrom(ctx, after, true)
						if err != nil {
							return err
						}
						if len(found) > 0 {
							return fmt.Errorf("found %+v", found)
						}
						looked++
						if after = next; after.IsZero() {
							break
						}
					}
				}
				return nil
			}
			defer over.Store(true)
			h := w.hand(w.server())
			s, err := h.OpenSession(ctx, w.c, drover.NewSession{Worker: "w", Queues: []string{"default"}, Slots: 100})
			if err != nil {
				return err
			}
			h.session = s.ID
			for k := range w.scaled(80, 20) {
				id := ids[(k*7+i)%len(ids)]
				switch k % 9 {
				case 3:
					_, err = h.Pause(ctx, w.c, id, engine.Request{})
				case 5, 6:
					_, err = h.Resume(ctx, w.c, id, engine.Request{})
				case 8:
					_, err = h.Cancel(ctx, w.c, id, engine.Request{})
				default:
					var l []drover.Lease
					if l, err = h.acquire(5); err == nil {
						var out []drover.Outcome
						for n, x := range l {
							o := ok(x, "[1,2]")
							if n == 4 {
								o = failed(x, drover.ClassRetryable, "again")
							}
							out = append(out, o)
						}
						_, _, err = h.settle(0, out...)
					}
				}
				if err != nil && drover.CodeOf(err) != drover.CodeInvalidTransition {
					return err
				}
				for _, step := range []func(context.Context) (int, error){h.TimersOnce, h.AdmitOnce, h.SweepOnce} {
					if _, err := step(ctx); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if looked < 3 {
			t.Errorf("it looked %d times only", looked)
		}
	})
}

// TestFinishedJobsAreSound: nothing is wrong with them, also for jobs that were replayed,
// expanded to nothing, or cut off.
func TestFinishedJobsAreSound(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: e\ninput: {type: object}\ntasks:\n  a: {for_each: '${{ input.list }}', run: a}\n  b: {for_each: a, run: b}\n  c: {needs: [b], run: c, retry: {max_attempts: 1}}\n")
		for _, in := range []string{`{"list":[]}`, `{"list":[1,2]}`, `{"list":3}`} {
			id := w.submit(drover.NewJob{Pipeline: "e", Input: json.RawMessage(in)})
			w.work(func(l drover.Lease) drover.Outcome {
				if l.Name == "c" && l.Generation == 1 {
					return failed(l, drover.ClassPermanent, "no")
				}
				return ok(l, "1")
			})
			if in == `{"list":3}` {
				continue
			}
			if err := w.replay(id, "c", 0); err != nil {
				t.Fatal(err)
			}
			if found := w.diverging(true); len(found) > 0 {
				t.Errorf("%s, reopened: %+v", in, found)
			}
			w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
			w.want(id, drover.Succeeded)
		}
		if found := w.diverging(true); len(found) > 0 {
			t.Errorf("found %+v", found)
		}
	})
}
