package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/driver"
)

// invariants are statements that find nothing on a sound database.
var invariants = map[string]*driver.Text{
	"a task stands in two places": driver.New("twice", "", `SELECT task_id, count(*) FROM (
		SELECT task_id FROM task_pending UNION ALL SELECT task_id FROM task_ready UNION ALL SELECT task_id FROM task_queued
		UNION ALL SELECT task_id FROM task_running UNION ALL SELECT task_id FROM task_delayed) z GROUP BY task_id HAVING count(*) > 1`),
	"a live task has a final row of its generation": driver.New("live and final", "", `SELECT z.task_id, 1 FROM (
		SELECT task_id, generation FROM task_pending UNION ALL SELECT task_id, generation FROM task_ready UNION ALL SELECT task_id, generation FROM task_queued
		UNION ALL SELECT task_id, generation FROM task_running UNION ALL SELECT task_id, generation FROM task_delayed) z
		JOIN task_final f ON f.task_id = z.task_id AND f.generation >= z.generation`),
	"a task stands nowhere": driver.New("nowhere", "", `SELECT t.id, 0 FROM tasks t WHERE t.idx >= 0
		AND NOT EXISTS (SELECT 1 FROM task_pending x WHERE x.task_id = t.id) AND NOT EXISTS (SELECT 1 FROM task_ready x WHERE x.task_id = t.id)
		AND NOT EXISTS (SELECT 1 FROM task_queued x WHERE x.task_id = t.id) AND NOT EXISTS (SELECT 1 FROM task_running x WHERE x.task_id = t.id)
		AND NOT EXISTS (SELECT 1 FROM task_delayed x WHERE x.task_id = t.id) AND NOT EXISTS (SELECT 1 FROM task_final x WHERE x.task_id = t.id)`),
	"a job's open count is not its live rows": driver.New("open", "", `SELECT j.job_id, j.open FROM job_live j WHERE j.open <> (
		SELECT count(*) FROM (SELECT job_id FROM task_pending UNION ALL SELECT job_id FROM task_ready UNION ALL SELECT job_id FROM task_queued
		UNION ALL SELECT job_id FROM task_running UNION ALL SELECT job_id FROM task_delayed) z WHERE z.job_id = j.job_id)`),
	"an ended job has a live task": driver.New("ended, live", "", `SELECT z.job_id, 1 FROM (SELECT job_id FROM task_pending UNION ALL SELECT job_id FROM task_ready
		UNION ALL SELECT job_id FROM task_queued UNION ALL SELECT job_id FROM task_running UNION ALL SELECT job_id FROM task_delayed) z
		JOIN job_final f ON f.job_id = z.job_id WHERE NOT EXISTS (SELECT 1 FROM job_live l WHERE l.job_id = z.job_id)`),
	"a live job has nothing live": driver.New("nothing live", "", `SELECT job_id, open FROM job_live WHERE open <= 0`),
	"events have a gap":           driver.New("gap", "", `SELECT job_id, count(*) FROM events GROUP BY job_id HAVING max(seq) <> count(*) OR min(seq) <> 1`),
	"a job ended twice in a run":  driver.New("ended twice", "", `SELECT job_id, count(*) FROM events WHERE type IN ('job.succeeded', 'job.failed', 'job.cancelled') GROUP BY job_id HAVING count(*) > (SELECT count(*) FROM job_final f WHERE f.job_id = events.job_id)`),
	"an end counts other tasks":   driver.New("counts", "", `SELECT job_id, total FROM job_final WHERE succeeded + failed + cancelled + skipped <> total`),
	"a hold of an ended job":      driver.New("hold", "", `SELECT h.job_id, 1 FROM job_holds h JOIN job_final f ON f.job_id = h.job_id WHERE NOT EXISTS (SELECT 1 FROM job_live l WHERE l.job_id = h.job_id)`),
	"a held lane without a hold":  driver.New("held lane", "", `SELECT r.job_id, 1 FROM task_ready r WHERE r.lane = 0 AND NOT EXISTS (SELECT 1 FROM job_holds h WHERE h.job_id = r.job_id)`),
}

// waitsOf gives for each final task its age and its encoded waits.
var waitsOf = driver.New("waits", "", `SELECT f.task_id, f.finished_at - t.created_at, f.waits FROM task_final f JOIN tasks t ON t.id = f.task_id WHERE f.generation = 1`)

// sound checks the invariants on the whole database.
func (w *world) sound() {
	w.t.Helper()
	ctx := context.Background()
	err := w.db.Read(ctx, func(tx store.Tx) error {
		for name, text := range invariants {
			err := tx.Pipe(ctx, store.Stmt{Text: text, Scan: func(r driver.Row) error {
				var id [16]byte
				var n int64
				if err := r.Scan(&id, &n); err != nil {
					return err
				}
				w.t.Errorf("%s: %s (%d)", name, drover.ID(id), n)
				return nil
			}})
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return tx.Pipe(ctx, store.Stmt{Text: waitsOf, Scan: func(r driver.Row) error {
			var id [16]byte
			var age int64
			var waits []byte
			if err := r.Scan(&id, &age, &waits); err != nil {
				return err
			}
			var sum int64
			for ; len(waits) >= 9; waits = waits[9:] {
				var v int64
				for _, c := range waits[1:9] {
					v = v<<8 | int64(c)
				}
				sum += v
			}
			if d := sum - age; d > 1000 || d < -1000 {
				w.t.Errorf("task %s: waits and runs are %d µs, its age is %d µs", drover.ID(id), sum, age)
			}
			return nil
		}})
	})
	if err != nil {
		w.t.Error(err)
	}
}

// together runs f n times at once and returns the first error.
func together(n int, f func(i int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, n)
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = f(i)
		})
	}
	close(start)
	wg.Wait()
	return errors.Join(errs...)
}

func (w *world) settleErr(o ...drover.Outcome) ([]drover.Settled, error) {
	r := w.Settle(context.Background(), []engine.Settlement{{Caller: w.c, Session: w.session, Outcomes: o}})
	return r[0].Settled, r[0].Err
}

func TestNoTaskIsClaimedTwice(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		const n = 1500
		var jobs []drover.NewJob
		for range n {
			jobs = append(jobs, drover.NewJob{Kind: "a"})
		}
		if _, err := w.Submit(t.Context(), w.c, jobs); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		seen := map[drover.TaskID]int{}
		err := together(8, func(i int) error {
			for k := 0; ; {
				l, err := w.Acquire(context.Background(), w.c, drover.Acquire{Session: w.session, Max: 20, Number: int64(i*1000 + k + 1)})
				if err != nil {
					return err
				}
				if len(l) == 0 {
					if k++; k > 3 { // others may hold what is left for a moment
						return nil
					}
					continue
				}
				var out []drover.Outcome
				mu.Lock()
				for _, x := range l {
					seen[x.TaskID]++
					out = append(out, ok(x, "1"))
				}
				mu.Unlock()
				s, err := w.settleErr(out...)
				if err != nil {
					return err
				}
				for _, a := range s {
					if a.Err != nil {
						return a.Err
					}
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(seen) != n {
			t.Errorf("%d of %d tasks were claimed", len(seen), n)
		}
		for id, k := range seen {
			if k != 1 {
				t.Errorf("task %s was claimed %d times", id, k)
			}
		}
		w.sound()
	})
}

func TestParentsThatEndTogetherReleaseTheirChildOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: join\ntasks:\n  a: {run: k}\n  b: {run: k}\n  c: {run: k, needs: [a, b]}\n")
		for range 60 {
			id := w.submit(drover.NewJob{Pipeline: "join"})
			l := w.acquire(10)
			if len(l) != 2 {
				t.Fatalf("leases = %+v", l)
			}
			err := together(2, func(i int) error { _, err := w.settleErr(ok(l[i], "1")); return err })
			if err != nil {
				t.Fatal(err)
			}
			c := w.acquire(10)
			if len(c) != 1 || c[0].Name != "c" {
				t.Fatalf("after both parents: %+v", c)
			}
			w.settle(ok(c[0], "1"))
			w.want(id, drover.Succeeded)
		}
		w.sound()
	})
}

func TestAMapThatGrowsMissesNoParent(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: grow\ntasks:\n  list: {run: k}\n  other: {run: k}\n  one: {run: k, for_each: \"${{ tasks.list.output }}\"}\n  two: {run: k, for_each: one, needs: [other]}\n  end: {run: k, needs: [two]}\n")
		for range 40 {
			id := w.submit(drover.NewJob{Pipeline: "grow"})
			l := w.acquire(10)
			err := together(len(l), func(i int) error {
				out := "1"
				if l[i].Name == "list" {
					out = "[1,2,3]"
				}
				_, err := w.settleErr(ok(l[i], out))
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
			if j := w.want(id, drover.Succeeded); j.Tasks.Succeeded != 9 {
				t.Fatalf("tasks = %+v", j.Tasks)
			}
		}
		w.sound()
	})
}

func TestTheSameSettleTwiceAtOnceCountsOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		var jobs []drover.NewJob
		for range 200 {
			jobs = append(jobs, drover.NewJob{Kind: "a"})
		}
		if _, err := w.Submit(t.Context(), w.c, jobs); err != nil {
			t.Fatal(err)
		}
		var out []drover.Outcome
		for _, l := range w.acquire(200) {
			out = append(out, ok(l, "1"))
		}
		back := slices.Clone(out)
		slices.Reverse(back)
		err := together(4, func(i int) error {
			o := out
			if i%2 == 1 {
				o = back
			}
			s, err := w.settleErr(o...)
			for _, a := range s {
				if a.Err != nil || a.Status != drover.Succeeded {
					return fmt.Errorf("answer %+v", a)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		w.sound()
	})
}

func TestOneOfCancelSuccessAndLossWins(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for round := range 25 {
			id := w.submit(drover.NewJob{Kind: "a"})
			l := w.acquire(1)
			if len(l) != 1 {
				t.Fatal("nothing to claim")
			}
			err := together(3, func(i int) error {
				var err error
				switch i {
				case 0:
					_, err = w.settleErr(ok(l[0], "1"))
				case 1:
					_, err = w.Cancel(context.Background(), w.c, id, engine.Request{})
					if errors.Is(err, drover.ErrNotAllowed) {
						err = nil // it had succeeded
					}
				default:
					if round%5 == 0 {
						err = w.CloseSession(context.Background(), w.c, w.session)
					}
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if round%5 == 0 {
				w.open()
			}
			for range 3 {
				w.step("sweep", w.SweepOnce)
				w.step("reap", w.ReapOnce)
				w.step("admit", w.AdmitOnce)
				w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
			}
			if j := w.job(id); !j.Status.Final() {
				t.Fatalf("round %d: job is %s: %+v", round, j.Status, j)
			}
			w.gapless(id)
		}
		w.sound()
	})
}

func TestNothingOfAPausedJobIsClaimed(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: wide\ninput: {type: object}\ntasks:\n  m: {run: k, for_each: \"${{ input.list }}\"}\n")
		list, err := json.Marshal(map[string]any{"list": make([]int, 400)})
		if err != nil {
			t.Fatal(err)
		}
		id := w.submit(drover.NewJob{Pipeline: "wide", Input: list})
		paused := make(chan struct{})
		var late []drover.Lease
		var mu sync.Mutex
		var got []drover.Lease
		err = together(5, func(i int) error {
			if i == 0 {
				_, err := w.Pause(context.Background(), w.c, id, engine.Request{})
				close(paused)
				return err
			}
			for k := range 40 {
				after := false
				select {
				case <-paused:
					after = true
				default:
				}
				l, err := w.Acquire(context.Background(), w.c, drover.Acquire{Session: w.session, Max: 2, Number: int64(i*100 + k)})
				if err != nil {
					return err
				}
				mu.Lock()
				if got = append(got, l...); after {
					late = append(late, l...)
				}
				mu.Unlock()
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(late) > 0 {
			t.Fatalf("%d tasks were claimed after Pause had returned", len(late))
		}
		for _, l := range got {
			w.settle(ok(l, "1"))
		}
		w.step("sweep", w.SweepOnce)
		w.step("admit", w.AdmitOnce)
		if _, err := w.Resume(t.Context(), w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		w.want(id, drover.Succeeded)
		w.sound()
	})
}

func TestTwoReplaysAtOnceOpenOneGeneration(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for range 10 {
			id := w.submit(drover.NewJob{Kind: "a", Retry: &drover.Retry{MaxAttempts: 1}})
			l := w.acquire(1)
			w.settle(failed(l[0], drover.ClassPermanent, "no"))
			err := together(2, func(int) error {
				_, err := w.Replay(context.Background(), w.c, l[0].TaskID, engine.ReplayRequest{})
				if errors.Is(err, drover.ErrNotAllowed) {
					err = nil
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			again := w.acquire(10)
			if len(again) != 1 || again[0].Generation != 2 {
				t.Fatalf("after two replays: %+v", again)
			}
			w.settle(ok(again[0], "1"))
			w.want(id, drover.Succeeded)
		}
		w.sound()
	})
}

func TestManySubmitsOfOneKeyMakeOneJob(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ids := make([]drover.JobID, 40)
		err := together(len(ids), func(i int) error {
			for {
				out, err := w.Submit(context.Background(), w.c, []drover.NewJob{{Kind: "a", IdempotencyKey: "one"}, {Kind: "b"}})
				if err != nil {
					return err
				}
				if out[0].Err != nil && out[0].Err.Code == drover.CodeIdempotencyInUse {
					continue
				}
				if out[0].Err != nil {
					return out[0].Err
				}
				ids[i] = out[0].JobID
				return nil
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			if id != ids[0] {
				t.Fatalf("jobs %s and %s for one key", ids[0], id)
			}
		}
		w.sound()
	})
}
