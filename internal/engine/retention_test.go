package engine_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/driver"
)

// ofJobs are the tables whose rows belong to jobs or their tasks, and how.
var ofJobs = map[string]string{"jobs": "id", "job_live": "job_id", "job_final": "job_id", "job_holds": "job_id", "tasks": "job_id", "task_final": "job_id", "attempts": "job_id",
	"events": "job_id", "logs": "job_id", "artifacts": "job_id", "task_pending": "job_id", "task_queued": "job_id", "task_inputs": "", "log_sizes": "", "task_watches": "job_id", "job_purges": "job_id"}

func (w *world) count(sql string) (n int64) {
	w.t.Helper()
	w.read(sql, &n)
	return n
}

// read reads the one row that a statement returns.
func (w *world) read(sql string, to ...any) {
	w.t.Helper()
	text := driver.New("test: "+sql, "", sql)
	if err := w.db.Read(w.t.Context(), func(tx store.Tx) error {
		return tx.Pipe(w.t.Context(), store.Stmt{Text: text, Scan: func(r driver.Row) error { return r.Scan(to...) }})
	}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) purge() {
	w.t.Helper()
	for range 1000 {
		n, err := w.PurgeOnce(w.t.Context())
		if err != nil {
			w.t.Fatal(err)
		}
		if n == 0 {
			return
		}
	}
	w.t.Fatal("the purge does not come to an end")
}

// TestFinishedJobsLeaveWholly: after its time nothing of a job is left, in any
// table, and of a job that is kept nothing is missing.
func TestFinishedJobsLeaveWholly(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: a, retry: {max_attempts: 1}}\n  b: {needs: [a], run: b}\n")
		run := func(end string) drover.JobID {
			n := drover.NewJob{Pipeline: "p"}
			if end == "solo" {
				n = drover.NewJob{Kind: "k"}
			}
			id := w.submit(n)
			if end == "cancelled" {
				if _, err := w.Cancel(t.Context(), w.c, id, engine.Request{}); err != nil {
					t.Fatal(err)
				}
				return id
			}
			for {
				got := w.acquire(10)
				if len(got) == 0 {
					return id
				}
				for _, l := range got {
					if _, err := w.AppendLogs(t.Context(), w.c, drover.Held{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion}, []drover.LogLine{{Text: "hello"}}); err != nil {
						t.Fatal(err)
					}
					if err := w.beat(l, "1"); err != nil {
						t.Fatal(err)
					}
					if end == "failed" {
						w.settle(failed(l, drover.ClassPermanent, "no"))
					} else {
						w.settle(ok(l, "1"))
					}
				}
			}
		}
		day := 24 * time.Hour
		ends := []string{"succeeded", "failed", "cancelled", "solo"}
		old := map[string]drover.JobID{}
		for _, e := range ends {
			old[e] = run(e)
		}
		live := w.submit(drover.NewJob{Kind: "slow", Queue: "later"})
		w.clock.add += 8 * day
		w.open()
		for _, e := range ends {
			run(e)
		}
		before := map[string]int64{}
		for table, key := range ofJobs {
			if key == "job_id" {
				before[table] = w.count(fmt.Sprintf("SELECT count(*) FROM %s", table))
			}
		}
		w.purge()
		gone := func(e string, want bool) {
			t.Helper()
			_, err := w.Job(t.Context(), w.c, old[e])
			if is := drover.CodeOf(err) == drover.CodeNotFound; is != want || err != nil && !is {
				t.Errorf("%s: gone %v, want %v: %v", e, is, want, err)
			}
		}
		gone("succeeded", true)
		gone("solo", true)
		gone("failed", false)
		gone("cancelled", false)
		for table, key := range ofJobs {
			if key == "" {
				continue
			}
			for _, e := range []string{"succeeded", "solo"} {
				if n := w.count(fmt.Sprintf("SELECT count(*) FROM %s WHERE %s = %s", table, key, w.literal(old[e]))); n != 0 {
					t.Errorf("%d rows of the %s job are left in %s", n, e, table)
				}
			}
		}
		w.clock.add += 23 * day
		w.purge()
		gone("failed", true)
		gone("cancelled", true)
		if j := w.job(live); j.Status.Final() {
			t.Errorf("the live job is %s", j.Status)
		}
		// All that is left belongs to the live job; the newer ones were kept 23 days.
		if n := w.count("SELECT count(*) FROM tasks WHERE job_id NOT IN (SELECT id FROM jobs)"); n != 0 {
			t.Errorf("%d tasks have no job", n)
		}
		for _, table := range []string{"task_final", "attempts", "log_sizes", "task_inputs", "task_watches"} {
			if n := w.count("SELECT count(*) FROM " + table + " WHERE task_id NOT IN (SELECT id FROM tasks)"); n != 0 {
				t.Errorf("%d rows of %s have no task", n, table)
			}
		}
		w.audit()
	})
}

// literal is an id in SQL.
func (w *world) literal(id drover.JobID) string {
	if w.db.Dialect() == driver.SQLite {
		return fmt.Sprintf("x'%x'", id[:])
	}
	return fmt.Sprintf("'%x'::uuid", id[:])
}

// TestALargeJobLeavesInPieces: out of sight at once, and none of its rows stays.
func TestALargeJobLeavesInPieces(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: m\ninput: {type: object}\ntasks:\n  a: {for_each: '${{ input.list }}', run: a}\n")
		id := w.submit(drover.NewJob{Pipeline: "m", Input: json.RawMessage(`{"list":[` + strings.Repeat("0,", w.scaled(6000, 2500)) + `0]}`)})
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		if j := w.job(id); j.Status != drover.Succeeded {
			t.Fatalf("the job is %s", j.Status)
		}
		tasks, err := w.Tasks(t.Context(), w.c, engine.TaskQuery{Job: id, Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.DeleteJob(t.Context(), w.c, id); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Job(t.Context(), w.c, id); drover.CodeOf(err) != drover.CodeNotFound {
			t.Errorf("the deleted job: %v", err)
		}
		if _, err := w.Task(t.Context(), w.c, tasks[0].ID); drover.CodeOf(err) != drover.CodeNotFound {
			t.Errorf("a task of the deleted job: %v", err)
		}
		if _, err := w.Replay(t.Context(), w.c, tasks[0].ID, engine.ReplayRequest{}); drover.CodeOf(err) != drover.CodeNotFound {
			t.Errorf("a replay in the deleted job: %v", err)
		}
		if err := w.DeleteJob(t.Context(), w.c, id); drover.CodeOf(err) != drover.CodeNotFound {
			t.Errorf("deleted again: %v", err)
		}
		w.purge()
		for table, key := range ofJobs {
			if key != "" {
				if n := w.count("SELECT count(*) FROM " + table); n != 0 {
					t.Errorf("%d rows are left in %s", n, table)
				}
			}
		}
	})
}

// TestALiveJobIsNeverDeleted, whatever the retention says, however often it has
// ended before.
func TestALiveJobIsNeverDeleted(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		id := w.submit(drover.NewJob{Kind: "k"})
		refuse := func(when string) {
			t.Helper()
			if err := w.DeleteJob(t.Context(), w.c, id); drover.CodeOf(err) != drover.CodeInvalidTransition {
				t.Errorf("%s: %v", when, err)
			}
		}
		refuse("queued")
		l := w.acquire(1)[0]
		refuse("running")
		w.settle(failed(l, drover.ClassPermanent, "no"))
		if _, err := w.Replay(t.Context(), w.c, l.TaskID, engine.ReplayRequest{}); err != nil {
			t.Fatal(err)
		}
		refuse("reopened")
		w.clock.add += 1000 * time.Hour
		w.purge()
		w.open()
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		w.want(id, drover.Succeeded)
	})
}

// TestTheKeyOfADeletedJobSaysSo: its repeat runs nothing, whether or not the rows
// are gone yet.
func TestTheKeyOfADeletedJobSaysSo(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		n := drover.NewJob{Kind: "k", IdempotencyKey: "mine"}
		id := w.submit(n)
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		again := func(n drover.NewJob) drover.Submitted {
			t.Helper()
			out, err := w.Submit(t.Context(), w.c, []drover.NewJob{n})
			if err != nil {
				t.Fatal(err)
			}
			return out[0]
		}
		if s := again(n); s.JobID != id || !s.Replayed || s.Deleted {
			t.Errorf("while it is there: %+v", s)
		}
		if err := w.DeleteJob(t.Context(), w.c, id); err != nil {
			t.Fatal(err)
		}
		for _, when := range []string{"deleted", "purged"} {
			if s := again(n); s.JobID != id || !s.Replayed || !s.Deleted || s.Err != nil {
				t.Errorf("%s: %+v", when, s)
			}
			if s := again(drover.NewJob{Kind: "other", IdempotencyKey: "mine"}); s.Err == nil || s.Err.Code != drover.CodeIdempotencyReused {
				t.Errorf("%s, with another body: %+v", when, s)
			}
			w.purge()
		}
		if l := w.all(); len(l) != 0 {
			t.Errorf("it runs again: %+v", l)
		}
	})
}

// TestAnIDIsFreeOnceAllOfItsJobIsGone, and not before: the rows that are being
// deleted would go with the new job's.
func TestAnIDIsFreeOnceAllOfItsJobIsGone(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		n := drover.NewJob{Kind: "k", ID: drover.JobID(w.db.NewID())}
		w.submit(n)
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		if err := w.DeleteJob(t.Context(), w.c, n.ID); err != nil {
			t.Fatal(err)
		}
		out, err := w.Submit(t.Context(), w.c, []drover.NewJob{n})
		if err != nil || out[0].Err == nil || out[0].Err.Code != drover.CodeConflict {
			t.Errorf("while its rows are being deleted: %+v, %v", out, err)
		}
		w.purge()
		w.submit(n)
		w.purge()
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		w.want(n.ID, drover.Succeeded)
		w.audit()
	})
}

// TestAnExpiryOfADeletedJobIsForgotten: a job that was deleted before its
// expires_at keeps no other from expiring.
func TestAnExpiryOfADeletedJobIsForgotten(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		at := w.Now().Add(time.Hour)
		gone := w.submit(drover.NewJob{Kind: "k", ExpiresAt: at})
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		if err := w.DeleteJob(t.Context(), w.c, gone); err != nil {
			t.Fatal(err)
		}
		w.purge()
		late := w.submit(drover.NewJob{Kind: "k", ExpiresAt: at.Add(time.Minute)})
		w.clock.add += 2 * time.Hour
		w.step("expire", w.ExpireOnce)
		w.step("sweep", w.SweepOnce)
		w.want(late, drover.Failed)
	})
}

// TestRetentionIsTheTenantsOwn, and one that is never set is the default.
func TestRetentionIsTheTenantsOwn(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		other, err := w.EnsureTenant(t.Context(), "other")
		if err != nil {
			t.Fatal(err)
		}
		if r, err := w.Retention(t.Context(), w.c); err != nil || r != drover.DefaultRetention {
			t.Fatalf("%+v, %v", r, err)
		}
		set := func(d time.Duration) error {
			_, err := w.SetRetention(t.Context(), w.c, func(r *drover.Retention) { r.Succeeded = drover.Duration(d) })
			return err
		}
		for _, d := range []time.Duration{-1, time.Second, 200 * 365 * 24 * time.Hour} {
			if drover.CodeOf(set(d)) != drover.CodeValidation {
				t.Errorf("%s is taken", d)
			}
		}
		mine := w.submit(drover.NewJob{Kind: "k"})
		out, err := w.Submit(t.Context(), other, []drover.NewJob{{Kind: "k"}})
		if err != nil {
			t.Fatal(err)
		}
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		my := w.c
		w.c, w.number = other, 0
		w.open()
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		w.c = my
		if err := set(time.Hour); err != nil {
			t.Fatal(err)
		}
		w.clock.add += 2 * time.Hour
		w.purge()
		if _, err := w.Job(t.Context(), w.c, mine); drover.CodeOf(err) != drover.CodeNotFound {
			t.Errorf("my job: %v", err)
		}
		if _, err := w.Job(t.Context(), other, out[0].JobID); err != nil {
			t.Errorf("the other tenant's job: %v", err)
		}
		if err := set(0); err != nil {
			t.Fatal(err)
		}
	})
}

// TestAReplayAndAPurgeAtOnce: one of the two wins wholly.
func TestAReplayAndAPurgeAtOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for range w.scaled(40, 10) {
			id := w.submit(drover.NewJob{Kind: "k"})
			l := w.acquire(1)[0]
			w.settle(failed(l, drover.ClassPermanent, "no"))
			var replayed, deleted error
			var wg sync.WaitGroup
			wg.Go(func() { _, replayed = w.Replay(t.Context(), w.c, l.TaskID, engine.ReplayRequest{}) })
			wg.Go(func() { deleted = w.DeleteJob(t.Context(), w.c, id) })
			wg.Wait()
			_, err := w.Job(t.Context(), w.c, id)
			switch {
			case replayed == nil && drover.CodeOf(deleted) == drover.CodeInvalidTransition && err == nil:
				w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
				w.want(id, drover.Succeeded)
			case deleted == nil && drover.CodeOf(replayed) == drover.CodeNotFound && drover.CodeOf(err) == drover.CodeNotFound:
			default:
				t.Fatalf("replayed: %v; deleted: %v; then: %v", replayed, deleted, err)
			}
		}
		w.purge()
		w.audit()
	})
}

// TestAnIDThatIsUsedAgainHasAnExpiryOfItsOwn: the timer of the job that had the id
// before is there until it is due.
func TestAnIDThatIsUsedAgainHasAnExpiryOfItsOwn(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		id := drover.JobID(w.db.NewID())
		soon := w.Now().Add(10 * time.Minute)
		submit := func(expires time.Time) {
			t.Helper()
			out, err := w.Submit(ctx, w.c, []drover.NewJob{{ID: id, Kind: "k", ExpiresAt: expires}})
			if err != nil || out[0].Err != nil || out[0].Replayed {
				t.Fatalf("%+v, %v", out, err)
			}
		}
		leave := func() {
			t.Helper()
			w.work(func(l drover.Lease) drover.Outcome { return ok(l, `1`) })
			if err := w.DeleteJob(ctx, w.c, id); err != nil {
				t.Fatal(err)
			}
			for w.step("purge", w.PurgeOnce) > 0 {
			}
		}
		submit(soon)
		leave()
		submit(soon) // the same moment
		leave()
		submit(soon.Add(time.Hour))
		w.clock.add += 11 * time.Minute
		w.step("expire", w.ExpireOnce)
		if job, err := w.Job(ctx, w.c, id); err != nil || job.Status.Final() || job.Cancelling {
			t.Fatalf("at the time of the job before: %v, cancelling %v, %v", job.Status, job.Cancelling, err)
		}
		w.clock.add += time.Hour
		w.step("expire", w.ExpireOnce)
		w.step("sweep", w.SweepOnce)
		if job, err := w.Job(ctx, w.c, id); err != nil || job.Status != drover.Failed {
			t.Fatalf("at its own time: %v, %v", job.Status, err)
		}
	})
}
