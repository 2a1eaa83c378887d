package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/driver"
)

// audit fails the test for whatever in the database cannot be.
func (w *world) audit() {
	w.t.Helper()
	checkInvariants(w.t, w)
}

// checkInvariants is audit for a part of a test, or for a goroutine beside it.
func checkInvariants(t *testing.T, w *world) {
	t.Helper()
	list, err := w.Audit(context.Background(), time.Time{}) // also at the end of a test
	if err != nil {
		t.Error(err)
	}
	for _, line := range violations(list) {
		t.Error(line)
	}
}

// violations tells what an audit found, a line for each example.
func violations(list []engine.Audited) (lines []string) {
	for _, a := range list {
		for _, v := range a.Examples {
			lines = append(lines, fmt.Sprintf("%s %s, broken in %d places: job %s task %s: %s", a.ID, a.Name, a.Violations, v.JobID, v.TaskID, v.Says))
		}
		if a.Violations > 0 && len(a.Examples) == 0 {
			lines = append(lines, fmt.Sprintf("%s %s is broken in %d places, and no example is given", a.ID, a.Name, a.Violations))
		}
	}
	return lines
}

// errUndo rolls a transaction back.
var errUndo = errors.New("undo")

// TestTheAuditSeesWhatIsBroken breaks a sound database in every way the
// audit looks for: an audit that finds nothing proves nothing.
func TestTheAuditSeesWhatIsBroken(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.mixed()
		w.audit()
		seen := map[string]bool{}
		const live = "task_id, job_id, node, idx, queue, lane, class, generation, attempt, losses, lease_version"
		for _, c := range []struct{ sql, want string }{
			{"INSERT INTO task_ready (" + live + ", events, due_at, waits, ready_at, since) SELECT " + live + ", 0, due_at, waits, 1, 1 FROM task_running", "I01 place: stands in several live tables; rows: 2"},
			{"DELETE FROM task_queued", "I01 place: stands nowhere"},
			{"UPDATE task_running SET node = node + 7", "I01 place: is live and not where its task is"},
			{"DELETE FROM tasks WHERE id IN (SELECT task_id FROM task_running)", "I01 place: is live and not where its task is"},
			{"DELETE FROM tasks WHERE id IN (SELECT task_id FROM task_final)", "I01 place: has ended and its task is not there"},
			{"UPDATE task_final SET tenant = tenant + 1", "I01 place: has ended and its task is not there or another"},
			{"DELETE FROM tasks WHERE id IN (SELECT task_id FROM attempts)", "I01 place: has attempts and its task is not there"},
			{"INSERT INTO task_delayed (" + live + ", events, due_at, waits, status, since) SELECT t.id, t.job_id, t.node, t.idx, t.queue, t.lane, t.class, 1, 0, 0, 0, 0, 1, t.policy, 6, 1 FROM tasks t WHERE t.idx = -1 AND t.id NOT IN (SELECT task_id FROM task_pending)",
				"I01 place: is a map that stands beside its elements"},
			{"DELETE FROM task_final WHERE status = 8", "I02 one-success: successes by its events, against generations that succeeded: 1, must be 0"},
			{"UPDATE events SET type = 'task.succeeded' WHERE type = 'task.failed'", "I02 one-success: successes by its events"},
			{"UPDATE task_running SET lease_version = lease_version + 1", "I04 fence: lease_version of the task, after its attempts"},
			{"UPDATE task_queued SET lease_version = lease_version + 1", "I04 fence: lease_version of the task, after its attempts: 1, must be 0"},
			{"UPDATE task_final SET lease_version = lease_version + 1 WHERE status = 12", "I04 fence: lease_version of the task"},
			{"DELETE FROM attempts WHERE n = 1", "I04 fence: lease_version of an attempt, after those before it: 2, must be 1"},
			{"UPDATE attempts SET lease_version = lease_version + 1 WHERE n > 1", "I04 fence: lease_version of an attempt"},
			{"UPDATE task_running SET session_id = 77", "I05 owner: runs in a session that holds nothing any more; number of the session: 77"},
			{"UPDATE sessions SET ended = 2", "I05 owner: runs in a session"},
			{"UPDATE attempts SET n = n + 1", "I07 attempts: number of an attempt"},
			{"UPDATE task_final SET attempt = 2 WHERE status = 8", "I07 attempts: succeeded at a later attempt"},
			{"UPDATE task_final SET losses = 7 WHERE status = 12", "I07 attempts: lost its lease, of at most: 7, must be 6"},
			{"UPDATE task_final SET how = 7 WHERE status = 8", "I10 reuse: ended with the result of another, which is not there; how it ended: 7, must be 0"},
			{"UPDATE task_final SET how = 8 WHERE status = 8", "I10 backups: ended with the result of a backup, and no other task of its job has its output; how it ended: 8, must be 0"},
			{"UPDATE attempts SET n = n + 4 WHERE n > 1", "I07 bound: attempts: 6, of at most 2"},
			{"DELETE FROM job_children", "I10 children: ended with the result of a job that it has not run; how it ended: 4, must be 0"},
			{"UPDATE jobs SET parent_task = (SELECT task_id FROM task_running LIMIT 1) WHERE parent_task IS NOT NULL", "I10 children: is run by a task that does not know it; jobs that it knows: 0, must be 1"},
			{"UPDATE task_running SET generation = 3", "I08 generations: generation that is live, after those that ended: 3, must be 1"},
			{"INSERT INTO task_final SELECT task_id, 3, job_id, tenant, status, attempt, losses, lease_version, session_id, ready_at, queued_at, claimed_at, finished_at, waits, output, error, how FROM task_final WHERE status = 12",
				"I08 generations: generation that ended without the one before it: 3, must be 2"},
			{"UPDATE task_final SET status = 6 WHERE status = 12", "I08 generations: status of a final row"},
			{"UPDATE task_final SET status = 9 WHERE status = 12", "I09 told: task.failed: events, against what its rows tell: 0, must be 1"},
			{"UPDATE events SET type = 'task.snoozed' WHERE type = 'task.retry_scheduled'", "I09 told: task.retry_scheduled: events, against what its rows tell: 0, must be 1"},
			{"UPDATE attempts SET outcome = 'released' WHERE status = 6", "I09 told: task.released"},
			{"UPDATE events SET type = 'task.expanded', task_id = (SELECT t.id FROM tasks t JOIN tasks e ON e.job_id = t.job_id AND e.node = t.node AND e.idx = 0 WHERE t.idx = -1 ORDER BY t.id LIMIT 1) WHERE type = 'task.succeeded'",
				"I09 told: task.expanded: events, against what its rows tell"},
			{"DELETE FROM task_pending WHERE idx = -1", "I09 told: task.expanded: events, against what its rows tell: 0, must be 1"},
			{"UPDATE events SET type = 'task.expanded', task_id = (SELECT task_id FROM task_pending WHERE idx = -1 ORDER BY task_id LIMIT 1) WHERE type = 'job.accepted'", "I09 told: task.expanded: events, against what its rows tell"},
			{"INSERT INTO artifacts SELECT t.id, t.tenant, t.job_id, t.id, 1, 1, 1, 'a', '', '', t.input, 1, t.input, 1 FROM tasks t JOIN task_running r ON r.task_id = t.id", "I10 artifacts: is said to have made an artifact"},
			{"DELETE FROM task_pending", "I13 counts: counts tasks: open"},
			{"UPDATE job_live SET open = open + 1, total = total + 1", "I13 counts: counts tasks: total"},
			{"UPDATE job_live SET succeeded = succeeded + 1, failed = failed - 1", "I13 counts: counts tasks: succeeded"},
			{"UPDATE job_final SET skipped = skipped + 1, total = total + 1", "I13 counts: counts tasks: skipped"},
			{"DELETE FROM job_final", "I13 ends: has no live task and has not ended"},
			{"INSERT INTO job_final SELECT job_id, 1, 1, 8, 1, 1, 1, 0, 0, 0, 1, 0 FROM task_running WHERE events > 0", "I13 ends: has ended and has live tasks: 1, must be 0"},
			{"UPDATE job_live SET run = run + 1", "I13 ends: run that is live, after those that ended: 2, must be 1"},
			{"UPDATE job_final SET run = 2", "I13 ends: run that ended without the one before it: 2, must be 1"},
			{"UPDATE job_final SET total = total + 1", "I13 ends: tasks that ended, of all of a run"},
			{"UPDATE job_final SET status = 8 WHERE status = 9", "I13 ends: status of a run, after its tasks: 8, must be 9"},
			{"INSERT INTO permits (task_id, limit_id, key, weight, at) SELECT task_id, 77, '', 1, 1 FROM task_final WHERE status = 12", "I33 permits: holds 1 of limit number 77, and takes nothing of it where it stands"},
			{"UPDATE task_pending SET unmet = unmet + 1", "I14 graph: infer[1] waits for 2 parents; 1 have not ended"},
			{"UPDATE map_live SET running = 0", "I14 graph: map \"m\" counts {"},
			{"DELETE FROM map_live", "I14 graph: map \"m\" counts {"},
			{"UPDATE task_ready SET ready_at = 1 WHERE ready_at = 0", "I18 holds: stands in the lane of what is held"},
			{"INSERT INTO map_live SELECT job_id, 0, 1, 1, 0, 0, 0, 0, 0, 0 FROM job_final", "I54 whole: has ended, and its maps are counted still"},
			{"UPDATE task_final SET status = 11 WHERE status = 8", "1 were skipped"},
			{"UPDATE task_pending SET unmet = 0", "I16 pending: is PENDING; parents it waits for: 0"},
			{"INSERT INTO job_holds SELECT job_id, 1, 1, 1, '', '', 1 FROM job_final", "I18 holds: has ended and is held"},
			{"DELETE FROM job_holds", "I18 holds: stands in the lane of what is held"},
			{"UPDATE job_live SET paused = 1 - paused", "I18 holds: is paused, against its hold: 0, must be 1"},
			{"UPDATE job_live SET cancelling = 2", "I18 holds: is being cancelled, against the cause of its hold: 2, must be 0"},
			{"DELETE FROM job_live", "I21 counter: rows that number its events: 0, must be 1"},
			{"UPDATE task_running SET events = 0", "I21 counter: rows that number its events"},
			{"INSERT INTO tasks SELECT (SELECT job_id FROM job_live ORDER BY job_id LIMIT 1), t.job_id, t.tenant, 1, 0, 0, t.queue, t.lane, t.class, t.kind, t.input, t.policy, t.trace, t.created_at FROM tasks t JOIN task_running r ON r.task_id = t.id AND r.events > 0",
				"I21 counter: stands for its whole job, which has other tasks"},
			{"INSERT INTO job_final SELECT job_id, 1, 1, 8, 1, 1, 1, 0, 0, 0, 1, 0 FROM task_queued WHERE events > 0", "I21 counter: stands for its whole job, which has ended"},
			{"INSERT INTO job_holds SELECT job_id, 3, 1, 1, '', '', 1 FROM task_queued WHERE events > 0", "I21 counter: stands for its whole job, which is held"},
			{"DELETE FROM events", "I23 events: has no event"},
			{"UPDATE events SET seq = seq + 1000", "I23 events: number of the first event"},
			{"DELETE FROM events WHERE seq = 2", "I23 events: number of the newest event, of so many"},
			{"UPDATE job_live SET events = events + 1", "I23 events: number of the newest event, against the row that counts"},
			{"UPDATE task_running SET events = events + 1 WHERE events > 0", "I23 events: number of the newest event, against the row that counts"},
			{"UPDATE events SET type = 'job.resumed' WHERE type = 'job.accepted'", "I23 events: times it was accepted: 0, must be 1"},
			{"UPDATE events SET type = CASE seq WHEN 1 THEN 'task.snoozed' ELSE 'job.accepted' END WHERE seq < 3", "I23 events: number of the event of its acceptance: 2, must be 1"},
			{"UPDATE events SET type = 'job.resumed' WHERE type = 'job.failed'", "I23 events: ends by its events, against runs that ended: 0, must be 1"},
			{"UPDATE events SET type = 'job.reopened' WHERE type = 'job.paused'", "I23 events: reopenings by its events, against its runs: 1, must be 0"},
			{"UPDATE idempotency SET tenant = tenant + 1", "I27 keys: is what a key of another request or tenant stands for"},
			{"UPDATE idempotency SET fingerprint = (SELECT input FROM tasks LIMIT 1)", "I27 keys: is what a key of another request"},
			{"UPDATE jobs SET due_at = 4000000000000000", "I37 not-early: started at, before it was due"},
			{"UPDATE jobs SET due_at = 4000000000000000 WHERE id IN (SELECT job_id FROM task_running)", "I37 not-early: started at, before it was due"},
			{"DELETE FROM dead_letters", "I52 dead-letters: ended badly and is no dead letter; generation: 1"},
			{"UPDATE dead_letters SET generation = 2", "I52 dead-letters: is a dead letter of a generation that has not ended: 2"},
			{"UPDATE dead_letters SET state = 2", "I52 dead-letters: is a dead letter that was replayed, against its task that goes on: 1, must be 0"},
			{"DELETE FROM jobs WHERE id IN (SELECT job_id FROM job_final)", "I54 whole: is not there, and has rows in task_final"},
			{"DELETE FROM jobs", "I54 whole: is not there, and has live tasks"},
			{"DELETE FROM tasks WHERE kind = 'undo'", "undone compensation: a[0] succeeded, and nothing was called to undo it"},
			{"UPDATE task_final SET finished_at = finished_at + 60000000", "waits accounting: generation 1: waits and runs are"},
			{"UPDATE tasks SET created_at = created_at - 60000000", "waits accounting: generation 1"},
		} {
			err := w.db.Write(t.Context(), func(tx store.Tx) error {
				var n int64
				if err := tx.Pipe(t.Context(), store.Stmt{Text: driver.New("break", "", c.sql), Affected: &n}); err != nil {
					return err
				}
				if n == 0 {
					t.Errorf("%s: changes nothing", c.sql)
				}
				list, err := w.AuditIn(t.Context(), tx)
				if err != nil {
					return err
				}
				var got []string
				for _, a := range list {
					for _, v := range a.Examples {
						got = append(got, fmt.Sprintf("%s %s: %s", a.ID, a.Name, v.Says))
					}
					if a.Violations > 0 {
						seen[a.ID+" "+a.Name] = true
					}
					if int64(len(a.Examples)) != min(a.Violations, store.AuditExamples) {
						t.Errorf("%s: %s has %d violations and %d examples", c.sql, a.ID, a.Violations, len(a.Examples))
					}
				}
				if !strings.Contains(strings.Join(got, "\n"), c.want) {
					t.Errorf("%s:\n got %s\nwant %q", c.sql, strings.Join(got, "\n     "), c.want)
				}
				return errUndo
			})
			if !errors.Is(err, errUndo) {
				t.Errorf("%s: %v", c.sql, err)
			}
		}
		list, err := w.Audit(t.Context(), time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range list {
			if !seen[a.ID+" "+a.Name] {
				t.Errorf("%s %s is broken by none of these", a.ID, a.Name)
			}
			if a.Violations != 0 || a.Means == "" {
				t.Errorf("on a sound database: %+v", a)
			}
		}
		if !slices.IsSortedFunc(list, func(a, b engine.Audited) int { return strings.Compare(a.ID, b.ID) }) {
			t.Errorf("the invariants are not in order: %+v", list)
		}
	})
}

// A bound leaves out the jobs that are older.
func TestAuditSinceATime(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		old := w.submit(drover.NewJob{Kind: "old"})
		w.clock.add += time.Hour
		since := w.Now()
		w.clock.add += time.Second
		young := w.submit(drover.NewJob{Kind: "young"})
		err := w.db.Write(t.Context(), func(tx store.Tx) error {
			return tx.Pipe(t.Context(), store.Stmt{Text: driver.New("break", "", "DELETE FROM task_queued")})
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			since time.Time
			want  []drover.JobID
		}{{time.Time{}, []drover.JobID{old, young}}, {since, []drover.JobID{young}}, {w.Now().Add(time.Minute), nil}} {
			list, err := w.Audit(t.Context(), c.since)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range list {
				var got []drover.JobID
				for _, v := range a.Examples {
					got = append(got, v.JobID)
				}
				if a.Name == "place" && (!slices.Equal(got, c.want) || a.Violations != int64(len(c.want))) {
					t.Errorf("since %s: %d violations in %s, want %s", c.since, a.Violations, got, c.want)
				}
			}
		}
	})
}

// mixed makes jobs in about every state.
func (w *world) mixed() {
	w.t.Helper()
	ctx := w.t.Context()
	w.apply(ingest)
	// A pipeline in the middle, one that failed, one that is paused.
	w.submit(drover.NewJob{Pipeline: "ingest", Input: json.RawMessage(`{"n": 3}`)})
	h := ingestHandler(w.t, 3, map[string]string{})
	w.settle(h(w.acquire(1)[0]))
	l := w.acquire(3)
	w.settle(h(l[0]), failed(l[1], drover.ClassRetryable, "later"))
	bad := w.submit(drover.NewJob{Pipeline: "ingest", Input: json.RawMessage(`{"n": 1}`), Class: drover.Interactive})
	w.settle(failed(w.acquire(1)[0], drover.ClassPermanent, "no"))
	w.want(bad, drover.Failed)
	paused := w.submit(drover.NewJob{Pipeline: "ingest", Input: json.RawMessage(`{"n": 2}`)})
	if _, err := w.Pause(ctx, w.c, paused, engine.Request{}); err != nil {
		w.t.Fatal(err)
	}
	// A map of which few elements run at one time.
	w.apply("pipeline: bounded\ntasks:\n  m: {run: bounded, for_each: [1, 2, 3], max_parallel: 1, min_success: 1}\n")
	w.submit(drover.NewJob{Pipeline: "bounded", Class: drover.Batch})
	// Jobs of one task: a dead letter after two attempts, a success with a key, one
	// that waits, one that runs.
	w.submit(drover.NewJob{Kind: "dead", Class: drover.Interactive, Retry: &drover.Retry{MaxAttempts: 2}})
	w.settle(failed(w.acquire(1)[0], drover.ClassRetryable, "one"))
	w.clock.add += 2 * time.Second
	w.step("timers", w.TimersOnce)
	for _, l := range w.acquire(3) {
		if l.Kind == "dead" {
			w.settle(failed(l, drover.ClassRetryable, "two"))
		}
	}
	w.submit(drover.NewJob{Kind: "good", Class: drover.Interactive, IdempotencyKey: "k"})
	w.settle(ok(w.acquire(1)[0], "1"))
	w.submit(drover.NewJob{Kind: "runs", Class: drover.Interactive})
	w.acquire(1)
	w.submit(drover.NewJob{Kind: "waits"})
	w.submit(drover.NewJob{Kind: "starts later", DueAt: w.Now().Add(time.Hour)})
	// One that has undone what it did.
	w.apply("pipeline: undone\ntasks:\n  a: {run: x, compensate: c}\n  b: {run: x, needs: [a]}\n  c: {run: undo}\n")
	undone := w.submit(drover.NewJob{Pipeline: "undone", Class: drover.Interactive})
	w.settle(ok(w.acquire(1)[0], "1"))
	w.settle(failed(w.acquire(1)[0], drover.ClassPermanent, "no"))
	w.settle(ok(w.acquire(1)[0], "1"))
	w.want(undone, drover.Failed)
	// One whose task has run a pipeline.
	w.apply("pipeline: inner\ntasks: {a: {run: x}}\n")
	w.apply("pipeline: outer\ntasks: {sub: {pipeline: inner}}\n")
	outer := w.submit(drover.NewJob{Pipeline: "outer", Class: drover.Interactive})
	w.settle(ok(w.acquire(1)[0], "1"))
	w.want(outer, drover.Succeeded)
}
