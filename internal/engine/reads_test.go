package engine_test

import (
	"fmt"
	"testing"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

// TestEveryServerReadsWhatAnyHasWritten: two servers with caches of their own; what one
// of them answered is what the other one tells next.
func TestEveryServerReadsWhatAnyHasWritten(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		servers := [2]*engine.Engine{w.Engine, w.server()}
		for n := range 6 {
			a, b := servers[n%2], servers[1-n%2]
			p, err := a.RegisterPipeline(ctx, w.c, "p.yaml", fmt.Appendf(nil, "pipeline: p\ntasks: {a: {run: k%d}, b: {run: b, needs: [a]}}\n", n))
			if err != nil {
				t.Fatal(err)
			}
			out, err := b.Submit(ctx, w.c, []drover.NewJob{{Pipeline: "p"}})
			if err != nil || out[0].Err != nil {
				t.Fatalf("%+v, %v", out, err)
			}
			id := out[0].JobID
			seen := func(by *engine.Engine) drover.Job {
				j, err := by.Job(ctx, w.c, id)
				if err != nil {
					t.Fatal(err)
				}
				list, err := by.Jobs(ctx, w.c, engine.JobQuery{Status: []drover.Status{j.Status}, Limit: 1})
				if err != nil || len(list) != 1 || list[0].ID != id {
					t.Fatalf("job %d is not the first of those that are %s: %+v, %v", n, j.Status, list, err)
				}
				return j
			}
			if j := seen(a); j.PipelineVersion != p.Version {
				t.Fatalf("job %d is of version %d, the newest is %d", n, j.PipelineVersion, p.Version)
			}
			if _, err := a.Pause(ctx, w.c, id, engine.Request{}); err != nil {
				t.Fatal(err)
			}
			if j := seen(b); !j.Paused {
				t.Fatalf("job %d is not paused: %+v", n, j)
			}
			if h := w.hand(b); n > 2 {
				if l, err := h.acquire(1); err != nil || len(l) != 0 {
					t.Fatalf("of a paused job: %+v, %v", l, err)
				}
			}
			if _, err := b.Cancel(ctx, w.c, id, engine.Request{}); err != nil {
				t.Fatal(err)
			}
			if j := seen(a); j.Status != drover.Cancelled && !j.Cancelling {
				t.Fatalf("job %d is not being cancelled: %+v", n, j)
			}
			w.quieten()
			if j := seen(b); j.Status != drover.Cancelled {
				t.Fatalf("job %d has not ended: %+v", n, j)
			}
			if err := a.DeleteJob(ctx, w.c, id); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Job(ctx, w.c, id); drover.CodeOf(err) != drover.CodeNotFound {
				t.Fatalf("job %d was deleted: %v", n, err)
			}
		}
	})
}

// TestPagesMissNothingThatStays: while somebody goes through a list page by page, jobs
// are made, end and leave. Each that was there all along comes once.
func TestPagesMissNothingThatStays(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		const n = 24
		ids := w.submitMany(n, drover.NewJob{Kind: "a"})
		stays := map[drover.JobID]bool{}
		for i, id := range ids {
			stays[id] = i%4 != 1 // the others end on the way, and some of them leave
		}
		for _, q := range []engine.JobQuery{{Limit: 3}, {Limit: 3, Status: []drover.Status{drover.Pending}}, {Limit: 3, Kind: "a"}} {
			times := map[drover.JobID]int{}
			for page := 0; ; page++ {
				list, err := w.Jobs(ctx, w.c, q)
				if err != nil {
					t.Fatal(err)
				}
				for _, j := range list {
					times[j.ID]++
				}
				if len(list) < q.Limit {
					break
				}
				q.After = list[len(list)-1].ID
				w.submit(drover.NewJob{Kind: "a"}) // before the first
				if i := n - 3 - 4*page; i > 0 && len(q.Status) > 0 {
					if _, err := w.Cancel(ctx, w.c, ids[i], engine.Request{}); err != nil {
						t.Fatal(err)
					}
					if page%2 == 0 {
						if err := w.DeleteJob(ctx, w.c, ids[i]); err != nil {
							t.Fatal(err)
						}
						w.purge()
					}
				}
			}
			for id, must := range stays {
				if must && times[id] != 1 || times[id] > 1 {
					t.Errorf("%+v: %s came %d times", q, id, times[id])
				}
			}
		}
	})
}
