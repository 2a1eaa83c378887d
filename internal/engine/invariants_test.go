package engine_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/driver"
)

// with begins a statement about the whole database: live is every live row,
// newest the final row of each task that is not live, ran the last run of a job.
const with = `WITH live AS (
	SELECT task_id, job_id, generation, events FROM task_pending UNION ALL SELECT task_id, job_id, generation, events FROM task_ready
	UNION ALL SELECT task_id, job_id, generation, events FROM task_queued UNION ALL SELECT task_id, job_id, generation, events FROM task_running
	UNION ALL SELECT task_id, job_id, generation, events FROM task_delayed),
newest AS (SELECT f.* FROM task_final f JOIN (SELECT task_id, max(generation) AS generation FROM task_final GROUP BY task_id) m
	ON m.task_id = f.task_id AND m.generation = f.generation WHERE f.task_id NOT IN (SELECT task_id FROM live)),
opens AS (SELECT job_id, count(*) AS n FROM live GROUP BY job_id),
counts AS (SELECT job_id, count(*) AS n, count(CASE WHEN status = 8 THEN 1 END) AS ok, count(CASE WHEN status IN (9, 12) THEN 1 END) AS bad,
	count(CASE WHEN status = 10 THEN 1 END) AS cancelled, count(CASE WHEN status = 11 THEN 1 END) AS skipped FROM newest GROUP BY job_id),
ran AS (SELECT f.* FROM job_final f JOIN (SELECT job_id, max(run) AS run FROM job_final GROUP BY job_id) m ON m.job_id = f.job_id AND m.run = f.run),
numbered AS (SELECT job_id, min(seq) AS least, max(seq) AS most, count(*) AS n FROM events GROUP BY job_id) `

// invariants are statements that find nothing on a sound database.
var invariants = []struct {
	text *driver.Text
	what string
}{
	{driver.New("inv twice", "", with+"SELECT task_id, count(*) FROM live GROUP BY task_id HAVING count(*) > 1"), "a task stands in several live tables"},
	{driver.New("inv live and final", "", with+"SELECT l.task_id, l.generation FROM live l JOIN task_final f ON f.task_id = l.task_id AND f.generation >= l.generation"),
		"a live task has a final row of its generation"},
	{driver.New("inv nowhere", "", with+"SELECT t.id, t.idx FROM tasks t WHERE t.idx >= 0 AND t.id NOT IN (SELECT task_id FROM live) AND t.id NOT IN (SELECT task_id FROM task_final)"),
		"a task stands nowhere"},
	{driver.New("inv placeholder", "", with+"SELECT t.id, t.node FROM tasks t JOIN tasks e ON e.job_id = t.job_id AND e.node = t.node AND e.idx = 0 "+
		"WHERE t.idx = -1 AND (t.id IN (SELECT task_id FROM live) OR t.id IN (SELECT task_id FROM task_final))"), "a map that has expanded counts besides its elements"},
	{driver.New("inv no task", "", with+"SELECT l.task_id, 0 FROM live l WHERE l.task_id NOT IN (SELECT id FROM tasks)"), "a live row has no task"},

	{driver.New("inv open", "", with+"SELECT j.job_id, j.open - coalesce(o.n, 0) FROM job_live j LEFT JOIN opens o ON o.job_id = j.job_id WHERE j.open <> coalesce(o.n, 0)"),
		"a job's open count is not its live rows"},
	{driver.New("inv counts", "", with+"SELECT j.job_id, j.total FROM job_live j LEFT JOIN counts c ON c.job_id = j.job_id WHERE j.succeeded <> coalesce(c.ok, 0) OR j.failed <> coalesce(c.bad, 0) "+
		"OR j.cancelled <> coalesce(c.cancelled, 0) OR j.skipped <> coalesce(c.skipped, 0) OR j.total <> j.open + coalesce(c.n, 0)"), "a live job's counters are not its finals of newest generation"},
	{driver.New("inv end counts", "", with+"SELECT r.job_id, r.total FROM ran r LEFT JOIN counts c ON c.job_id = r.job_id WHERE r.job_id NOT IN (SELECT job_id FROM job_live) AND (r.succeeded <> coalesce(c.ok, 0) "+
		"OR r.failed <> coalesce(c.bad, 0) OR r.cancelled <> coalesce(c.cancelled, 0) OR r.skipped <> coalesce(c.skipped, 0) OR r.total <> coalesce(c.n, 0))"), "an ended job's counters are not its finals of newest generation"},
	{driver.New("inv not ended", "", with+"SELECT j.id, 0 FROM jobs j WHERE j.id NOT IN (SELECT job_id FROM live) AND (j.id NOT IN (SELECT job_id FROM job_final) OR j.id IN (SELECT job_id FROM job_live))"),
		"a job with nothing live has not ended"},
	{driver.New("inv ended", "", with+"SELECT DISTINCT l.job_id, 0 FROM live l JOIN job_final f ON f.job_id = l.job_id WHERE l.job_id NOT IN (SELECT job_id FROM job_live)"),
		"an ended job has a live task"},
	{driver.New("inv run", "", with+"SELECT j.job_id, j.run FROM job_live j LEFT JOIN ran r ON r.job_id = j.job_id WHERE j.run <> coalesce(r.run, 0) + 1"), "a live job's run does not follow its last"},
	{driver.New("inv no counter", "", with+"SELECT l.job_id, l.events FROM live l WHERE (l.events > 0) = (l.job_id IN (SELECT job_id FROM job_live))"), "a job's events are numbered by no row, or by two"},

	{driver.New("inv gap", "", with+"SELECT job_id, n FROM numbered WHERE least <> 1 OR most <> n"), "a job's events are not 1 to n"},
	{driver.New("inv silent", "", with+"SELECT id, 0 FROM jobs WHERE id NOT IN (SELECT job_id FROM numbered)"), "a job has no event"},
	{driver.New("inv counter", "", with+"SELECT n.job_id, n.most FROM numbered n LEFT JOIN job_live j ON j.job_id = n.job_id LEFT JOIN live l ON l.job_id = n.job_id AND l.events > 0 "+
		"LEFT JOIN ran r ON r.job_id = n.job_id WHERE coalesce(j.events, l.events, r.events, 0) <> n.most"), "a job's counter is not its newest event"},
	{driver.New("inv ends", "", with+"SELECT e.job_id, e.n FROM (SELECT job_id, count(*) AS n FROM events WHERE type IN ('job.succeeded', 'job.failed', 'job.cancelled') GROUP BY job_id) e "+
		"WHERE e.n <> (SELECT count(*) FROM job_final f WHERE f.job_id = e.job_id)"), "a job has not one end for each run"},
	{driver.New("inv successes", "", "SELECT e.task_id, e.n FROM (SELECT task_id, count(*) AS n FROM events WHERE type = 'task.succeeded' GROUP BY task_id) e "+
		"WHERE e.n <> (SELECT count(*) FROM task_final f WHERE f.task_id = e.task_id AND f.status = 8)"), "a task has not one success for each generation that has one"},
	{driver.New("inv one success", "", "SELECT task_id, generation FROM task_final WHERE status = 8 GROUP BY task_id, generation HAVING count(*) > 1"), "a generation succeeded twice"},

	{driver.New("inv letter", "", "SELECT f.task_id, f.generation FROM task_final f WHERE f.status IN (9, 12) AND NOT EXISTS (SELECT 1 FROM dead_letters d WHERE d.task_id = f.task_id AND d.generation = f.generation AND d.status = f.status AND d.job_id = f.job_id)"),
		"a task ended badly and is no dead letter"},
	{driver.New("inv letter of nothing", "", "SELECT d.task_id, d.generation FROM dead_letters d JOIN tasks t ON t.id = d.task_id WHERE NOT (d.state = 2 AND t.idx = -1) AND NOT EXISTS (SELECT 1 FROM task_final f WHERE f.task_id = d.task_id AND f.generation = d.generation)"),
		"a dead letter did not end"},
	{driver.New("inv letter state", "", with+"SELECT d.task_id, d.state FROM dead_letters d JOIN tasks t ON t.id = d.task_id WHERE t.idx >= 0 AND (d.state = 2) <> (EXISTS (SELECT 1 FROM task_final f WHERE f.task_id = d.task_id AND f.generation > d.generation) "+
		"OR EXISTS (SELECT 1 FROM live l WHERE l.task_id = d.task_id))"), "a dead letter is open though its task goes on, or replayed though it does not"},

	{driver.New("inv cleared", "", "SELECT r.task_id, r.session_id FROM task_running r LEFT JOIN sessions s ON s.id = r.session_id WHERE coalesce(s.ended, 2) = 2"), "a task is run by a session that holds nothing"},
	{driver.New("inv hold", "", "SELECT h.job_id, h.kind FROM job_holds h JOIN job_final f ON f.job_id = h.job_id WHERE h.job_id NOT IN (SELECT job_id FROM job_live)"), "an ended job is held"},
	{driver.New("inv held lane", "", "SELECT r.job_id, r.lane FROM task_ready r WHERE r.lane = 0 AND r.job_id NOT IN (SELECT job_id FROM job_holds)"), "a task is held and its job is not"},
	{driver.New("inv paused", "", "SELECT j.job_id, j.paused FROM job_live j WHERE (j.paused = 1) <> (j.job_id IN (SELECT job_id FROM job_holds WHERE kind = 1))"), "a job is paused without its hold, or held without being paused"},
}

// waitsOf gives for each final task its age and its encoded waits.
var waitsOf = driver.New("waits", "", "SELECT f.task_id, f.finished_at - t.created_at, f.waits FROM task_final f JOIN tasks t ON t.id = f.task_id WHERE f.generation = 1")

// checkInvariants looks for what must never be found, in the whole database.
func checkInvariants(t *testing.T, w *world) {
	t.Helper()
	ctx := context.Background()
	err := w.db.Read(ctx, func(tx store.Tx) error {
		for _, inv := range invariants {
			err := tx.Pipe(ctx, store.Stmt{Text: inv.text, Scan: func(r driver.Row) error {
				var id [16]byte
				var n int64
				if err := r.Scan(&id, &n); err != nil {
					return err
				}
				t.Errorf("%s: %s (%d)", inv.what, drover.ID(id), n)
				return nil
			}})
			if err != nil {
				return fmt.Errorf("%s: %w", inv.what, err)
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
			for _, us := range lifecycle.DecodeWaits(waits) {
				sum += us
			}
			if d := sum - age; d > 1000 || d < -1000 {
				t.Errorf("task %s: waits and runs are %d µs, its age is %d µs", drover.ID(id), sum, age)
			}
			return nil
		}})
	})
	if err != nil {
		t.Error(err)
	}
}
