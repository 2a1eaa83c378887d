package store

import (
	"fmt"
	"strings"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store/driver"
)

// Invariant is something that holds in every committed state of the database,
// also while it is busy, as a statement that finds what breaks it.
type Invariant struct {
	// ID is the number in the list of invariants; several may stand for one.
	ID   string
	Name string
	// Means says in a sentence what holds.
	Means string
	find  *driver.Text
}

// Broken is one place where an invariant does not hold: what is Says, and by the
// rows it is Found and should be Want.
type Broken struct {
	Job         drover.JobID
	Task        drover.TaskID // zero where the job as a whole is meant
	Says        string
	Found, Want int64
}

// AuditExamples bounds the places that Find reads of each invariant.
const AuditExamples = 5

// Find counts what breaks the invariant among the jobs from an id on, and reads
// the first few places.
func (i *Invariant) Find(from drover.JobID, total *int64, examples *[]Broken) Stmt {
	return Stmt{Text: i.find, Args: []any{[16]byte(from)}, Scan: into(examples, func(r driver.Row) (b Broken, err error) {
		err = r.Scan((*[16]byte)(&b.Job), (*[16]byte)(&b.Task), &b.Says, &b.Found, &b.Want, total)
		return b, err
	})}
}

// AuditPlans lets the plans of the statements that follow in this transaction be
// those for whole tables, however long they take.
func AuditPlans() Stmt { return Stmt{Text: auditPlans} }

var auditPlans = driver.New("plans for an audit", "", "{lite:SELECT 1}{pg:SELECT set_config(s.name, s.value, true) FROM (VALUES ('enable_seqscan', 'on'), ('enable_bitmapscan', 'on'), "+
	"('enable_hashjoin', 'on'), ('enable_mergejoin', 'on'), ('plan_cache_mode', 'force_custom_plan'), ('work_mem', '64MB'), ('statement_timeout', '0'), ('idle_in_transaction_session_timeout', '0')) AS s(name, value)}")

// Invariants are those that SQL can check. They are true of what one transaction
// sees, at any moment.
func Invariants() []Invariant { return invariants }

// of limits a statement to the rows of jobs from the id $1 on; what is left of
// jobs that are being purged is told nothing of.
func of(alias string) string {
	return fmt.Sprintf("%[1]s.job_id >= $1 AND NOT EXISTS (SELECT 1 FROM job_purges p WHERE p.job_id = %[1]s.job_id)", alias)
}

// The tables that statements begin with.
var (
	// every row of a live task
	liveCTE = func() string {
		var parts []string
		for _, t := range []struct {
			name          string
			place         drover.Status
			unmet, holder string
		}{{"pending", drover.Pending, "unmet, parents_succeeded, parents_failed, parents_skipped", "0"}, {"ready", drover.Ready, "", "0"}, {"queued", drover.Queued, "", "0"}, {"running", drover.Running, "", "1"}, {"delayed", drover.RetryWait, "", "0"}} {
			if t.unmet == "" {
				t.unmet = "0 AS unmet, 0 AS parents_succeeded, 0 AS parents_failed, 0 AS parents_skipped"
			}
			parts = append(parts, fmt.Sprintf("SELECT task_id, job_id, node, idx, generation, lease_version, events, %d AS place, %s, %s AS held, %s AS in_line FROM task_%s WHERE job_id >= $1", t.place, t.unmet, t.holder,
				map[bool]string{true: "CASE WHEN lane = 0 AND ready_at = 0 THEN 1 ELSE 0 END", false: "0"}[t.place == drover.Ready], t.name))
		}
		return "live AS (" + strings.Join(parts, " UNION ALL ") + ")"
	}()
	// how each task ended last that is not live
	newestCTE = "newest AS (SELECT f.task_id, f.job_id, f.generation, f.lease_version, f.status FROM task_final f LEFT JOIN live l ON l.task_id = f.task_id WHERE " + of("f") +
		" AND l.task_id IS NULL AND NOT EXISTS (SELECT 1 FROM task_final y WHERE y.task_id = f.task_id AND y.generation > f.generation))"
	// how each job ended last
	ranCTE = "ran AS (SELECT f.job_id, f.run, f.events, f.total, f.succeeded, f.failed, f.cancelled, f.skipped FROM job_final f WHERE " + of("f") +
		" AND NOT EXISTS (SELECT 1 FROM job_final y WHERE y.job_id = f.job_id AND y.run > f.run))"
	// every attempt that has ended: a first-try success has no row of its own.
	// back says that it was given back, rise that its end moved the fence.
	triesCTE = fmt.Sprintf("tries AS (SELECT a.job_id, a.task_id, a.generation, a.lease_version, a.n, "+
		"CASE WHEN a.status = %[1]d OR a.outcome = 'snoozed' AND a.status = %[2]d OR a.outcome = 'lease_lost' AND a.status < %[3]d THEN 1 ELSE 0 END AS back, "+
		"CASE WHEN a.status = %[1]d OR a.outcome IN ('lease_lost', 'forced', 'timed_out', 'marked', 'beaten') OR {pg:convert_from(a.error, 'UTF8')}{lite:CAST(a.error AS TEXT)} LIKE '%%\"class\":\"expired\"%%' THEN 1 ELSE 0 END AS rise "+
		"FROM attempts a WHERE "+of("a")+" UNION ALL SELECT f.job_id, f.task_id, f.generation, f.lease_version, f.attempt, 0, 0 FROM task_final f WHERE "+of("f")+
		" AND f.status = %[3]d AND f.attempt = 1 AND f.losses = 0 AND f.how NOT IN (%[4]d, %[5]d))", drover.Ready, drover.RetryWait, drover.Succeeded, lifecycle.HowMarked, lifecycle.HowBacked)
)

const wholeJob = "{pg:'00000000-0000-0000-0000-000000000000'::uuid}{lite:x'00000000000000000000000000000000'}"

// invariant writes one. Each of finds gives job, task, says, found, want for
// every place where it does not hold.
func invariant(id, name, means string, with []string, finds ...string) Invariant {
	src := "SELECT v.job_id, v.task_id, v.says, v.found, v.want, count(*) OVER () FROM (" + strings.Join(finds, " UNION ALL ") + ") v ORDER BY v.job_id, v.task_id, v.says, v.found, v.want LIMIT " + fmt.Sprint(AuditExamples)
	if len(with) > 0 {
		src = "WITH " + strings.Join(with, ", ") + " " + src
	}
	return Invariant{ID: id, Name: name, Means: means, find: driver.New("invariant "+id+" "+name, "", src)}
}

// found writes the columns of a place.
func found(job, task, says, found, want string) string {
	return fmt.Sprintf("SELECT %s AS job_id, %s AS task_id, %s AS says, CAST(%s AS BIGINT) AS found, CAST(%s AS BIGINT) AS want", job, task, says, found, want)
}

// differ keeps the places of a statement where found is not want.
func differ(s string) string { return "SELECT d.* FROM (" + s + ") d WHERE d.found <> d.want" }

// leap passes over fences that rose by more than one where a row was rebuilt,
// which the job's events tell.
func leap(s string) string {
	return "SELECT r.* FROM (" + s + ") r WHERE r.found < r.want OR NOT EXISTS (SELECT 1 FROM events e WHERE e.job_id = r.job_id AND e.type = 'job.reconciled')"
}

var invariants = []Invariant{
	invariant("I01", "place", "Every task of an accepted job stands in exactly one live table or has ended; a map that has expanded stands nowhere, its elements do.", []string{liveCTE},
		found("t.job_id", "t.id", "'stands nowhere: it is neither live nor has it ended; rows'", "0", "1")+
			" FROM tasks t LEFT JOIN live l ON l.task_id = t.id LEFT JOIN task_final f ON f.task_id = t.id AND f.generation = 1 WHERE "+of("t")+" AND t.idx >= 0 AND l.task_id IS NULL AND f.task_id IS NULL",
		found("l.job_id", "l.task_id", "'stands in several live tables; rows'", "count(*)", "1")+" FROM live l GROUP BY l.job_id, l.task_id HAVING count(*) > 1",
		found("t.job_id", "t.id", "'is a map that stands beside its elements; rows'", "1", "0")+" FROM tasks t JOIN tasks e ON e.job_id = t.job_id AND e.node = t.node AND e.idx = 0 "+
			"LEFT JOIN live l ON l.task_id = t.id LEFT JOIN task_final f ON f.task_id = t.id AND f.generation = 1 WHERE "+of("t")+" AND t.idx = -1 AND (l.task_id IS NOT NULL OR f.task_id IS NOT NULL) "+
			// While a map is to expand again, its elements have made room.
			fmt.Sprintf("AND (EXISTS (SELECT 1 FROM live x WHERE x.task_id = e.id) OR NOT EXISTS (SELECT 1 FROM task_final g WHERE g.task_id = e.id AND g.how = %d AND g.generation = (SELECT max(y.generation) FROM task_final y WHERE y.task_id = e.id)))", lifecycle.HowGone),
		found("l.job_id", "l.task_id", "'is live and not where its task is; rows'", "1", "0")+" FROM live l LEFT JOIN tasks t ON t.id = l.task_id WHERE t.id IS NULL OR t.job_id <> l.job_id OR t.node <> l.node OR t.idx <> l.idx",
		found("f.job_id", "f.task_id", "'has ended and its task is not there or another job''s; rows'", "1", "0")+" FROM task_final f LEFT JOIN tasks t ON t.id = f.task_id WHERE "+of("f")+" AND (t.id IS NULL OR t.job_id <> f.job_id OR t.tenant <> f.tenant)",
		found("a.job_id", "a.task_id", "'has attempts and its task is not there or another job''s; rows'", "1", "0")+" FROM attempts a LEFT JOIN tasks t ON t.id = a.task_id WHERE "+of("a")+" AND (t.id IS NULL OR t.job_id <> a.job_id)"),

	invariant("I02", "one-success", "A task has one success for each generation that succeeded, never two.", nil,
		found("q.job_id", "q.task_id", "'successes by its events, against generations that succeeded'", "sum(q.e)", "sum(q.f)")+" FROM (SELECT e.job_id, e.task_id, 1 AS e, 0 AS f FROM events e WHERE "+of("e")+" AND e.type = 'task.succeeded' "+
			fmt.Sprintf("UNION ALL SELECT f.job_id, f.task_id, 0, 1 FROM task_final f WHERE "+of("f")+" AND f.status = %d) q GROUP BY q.job_id, q.task_id HAVING sum(q.e) <> sum(q.f)", drover.Succeeded)),

	invariant("I04", "fence", "lease_version rises by one at each claim, loss, release and forced end, by more where a job was mended, and never falls.", []string{liveCTE, newestCTE, triesCTE},
		leap(differ(found("t.job_id", "t.task_id", "'lease_version of an attempt, after those before it'", "t.lease_version", "1 + lag(t.lease_version + t.rise, 1, 0) OVER (PARTITION BY t.task_id ORDER BY t.lease_version)")+" FROM tries t")),
		leap(differ(found("s.job_id", "s.task_id", "'lease_version of the task, after its attempts'", "s.lease_version", "coalesce(t.fence, 0) + s.held")+
			" FROM (SELECT job_id, task_id, lease_version, held FROM live UNION ALL SELECT job_id, task_id, lease_version, 0 FROM newest) s "+
			"LEFT JOIN (SELECT task_id, max(lease_version + rise) AS fence FROM tries GROUP BY task_id) t ON t.task_id = s.task_id"))),

	invariant("I05", "owner", "A running task is held by a session that has not been cleared.", nil,
		found("r.job_id", "r.task_id", "'runs in a session that holds nothing any more; number of the session'", "r.session_id", "0")+" FROM task_running r LEFT JOIN sessions s ON s.id = r.session_id WHERE r.job_id >= $1 AND coalesce(s.ended, 2) = 2"),

	invariant("I07", "attempts", "Attempts of a generation are numbered 1, 2, 3, … without those given back; every attempt but a first-try success has its row.", []string{triesCTE},
		differ(found("t.job_id", "t.task_id", "'number of an attempt, after those that were used up'", "t.n", "1 + lag(t.n - t.back, 1, 0) OVER (PARTITION BY t.task_id, t.generation ORDER BY t.lease_version)")+" FROM tries t"),
		found("f.job_id", "f.task_id", "'succeeded at a later attempt, of which there is no row; attempt'", "f.attempt", "1")+" FROM task_final f LEFT JOIN attempts a ON a.task_id = f.task_id AND a.lease_version = f.lease_version WHERE "+of("f")+
			fmt.Sprintf(" AND f.status = %d AND (f.attempt <> 1 OR f.losses <> 0) AND NOT (f.attempt = 0 AND f.how IN (%d, %d)) AND f.how NOT IN (%d, %d) AND a.task_id IS NULL", drover.Succeeded, lifecycle.HowReused, lifecycle.HowJoined, lifecycle.HowMarked, lifecycle.HowBacked),
		found("f.job_id", "f.task_id", "'lost its lease, of at most'", "f.losses", fmt.Sprint(lifecycle.MaxLeaseLosses+1))+" FROM task_final f WHERE "+of("f")+fmt.Sprintf(" AND f.losses > %d", lifecycle.MaxLeaseLosses+1)),

	invariant("I08", "generations", "A final row never changes: each generation has one, in order, and what is live is the next.", []string{liveCTE},
		differ(found("l.job_id", "l.task_id", "'generation that is live, after those that ended'", "l.generation", "1 + (SELECT count(*) FROM task_final f WHERE f.task_id = l.task_id)")+" FROM live l JOIN tasks t ON t.id = l.task_id WHERE t.idx >= 0"), // a map that has expanded leaves no row
		found("f.job_id", "f.task_id", "'generation that ended without the one before it'", "f.generation", "f.generation - 1")+" FROM task_final f LEFT JOIN task_final y ON y.task_id = f.task_id AND y.generation = f.generation - 1 JOIN tasks t ON t.id = f.task_id WHERE "+of("f")+" AND f.generation > 1 AND t.idx >= 0 AND y.task_id IS NULL",
		found("f.job_id", "f.task_id", "'status of a final row, which is not final'", "f.status", fmt.Sprint(int(drover.Succeeded)))+" FROM task_final f WHERE "+of("f")+fmt.Sprintf(" AND (f.status < %d OR f.status > %d)", drover.Succeeded, drover.DeadLetter)),

	invariant("I09", "told", "Each end of an attempt, of a task and of a map's wait for its elements is told by one event.", []string{liveCTE},
		found("q.job_id", "q.task_id", "q.type || ': events, against what its rows tell'", "q.e", "q.f")+" FROM (SELECT job_id, task_id, type, sum(e) AS e, sum(f) AS f FROM ("+
			"SELECT e.job_id, e.task_id, e.type, 1 AS e, 0 AS f FROM events e WHERE "+of("e")+" AND e.type IN ('task.failed', 'task.dead_lettered', 'task.cancelled', 'task.skipped', 'task.retry_scheduled', 'task.snoozed', 'task.lease_expired', 'task.released', 'task.backup_awaited') "+
			fmt.Sprintf("UNION ALL SELECT f.job_id, f.task_id, CASE f.status WHEN %d THEN 'task.failed' WHEN %d THEN 'task.dead_lettered' WHEN %d THEN 'task.cancelled' ELSE 'task.skipped' END, 0, 1 FROM task_final f WHERE "+of("f")+" AND f.status <> %d AND f.how <> %d ", // a rerun tells of those that are gone
				drover.Failed, drover.DeadLetter, drover.Cancelled, drover.Succeeded, lifecycle.HowGone)+
			fmt.Sprintf("UNION ALL SELECT a.job_id, a.task_id, CASE WHEN a.status = %[2]d THEN 'task.backup_awaited' WHEN a.outcome IN ('failed', 'timed_out') THEN 'task.retry_scheduled' WHEN a.outcome = 'snoozed' THEN 'task.snoozed' WHEN a.outcome = 'lease_lost' THEN 'task.lease_expired' ELSE 'task.released' END, 0, 1 FROM attempts a WHERE "+of("a")+" AND a.status < %[1]d", drover.Succeeded, drover.Waiting)+
			") u GROUP BY job_id, task_id, type HAVING sum(e) <> sum(f)) q JOIN tasks t ON t.id = q.task_id LEFT JOIN live l ON l.task_id = q.task_id "+
			// Of a map that failed to expand, was replayed and has expanded, nothing but its events is left.
			"WHERE t.idx >= 0 OR l.task_id IS NOT NULL OR EXISTS (SELECT 1 FROM task_final f WHERE f.task_id = q.task_id)",
		// Jobs of the time before this event have expanded maps without it, empty ones among them.
		differ(found("t.job_id", "t.id", "'task.expanded: events, against what its rows tell'", "coalesce(x.n, 0)",
			"CASE WHEN r.job_id IS NOT NULL THEN coalesce(x.n, 0) WHEN l.task_id IS NOT NULL OR f.task_id IS NOT NULL THEN 0 WHEN e.id IS NULL AND v.job_id IS NOT NULL OR x.n > 1 THEN 1 ELSE coalesce(x.n, 0) END")+ // a rerun has maps expand again
			" FROM tasks t LEFT JOIN live l ON l.task_id = t.id LEFT JOIN task_final f ON f.task_id = t.id AND f.generation = 1 LEFT JOIN tasks e ON e.job_id = t.job_id AND e.node = t.node AND e.idx = 0 LEFT JOIN job_live v ON v.job_id = t.job_id "+
			"LEFT JOIN (SELECT e.task_id, count(*) AS n FROM events e WHERE "+of("e")+" AND e.type = 'task.expanded' GROUP BY e.task_id) x ON x.task_id = t.id "+
			"LEFT JOIN (SELECT DISTINCT e.job_id FROM events e WHERE "+of("e")+" AND e.type = 'job.rerun') r ON r.job_id = t.job_id WHERE "+of("t")+" AND t.idx = -1")),

	invariant("I10", "artifacts", "An artifact that can be seen is of a success that was recorded.", nil,
		found("a.job_id", "a.task_id", "'is said to have made an artifact, and has no success of that generation'", "a.generation", "0")+" FROM artifacts a LEFT JOIN jobs j ON j.id = a.job_id "+
			fmt.Sprintf("LEFT JOIN task_final f ON f.task_id = a.task_id AND f.generation = a.generation AND f.status = %d WHERE a.job_id >= $1 AND a.visible = 1 AND (j.id IS NULL OR f.task_id IS NULL)", drover.Succeeded)),

	invariant("I10", "reuse", "A task that ended with the result of another names it, and that one has succeeded.", nil,
		found("f.job_id", "f.task_id", "'ended with the result of another, which is not there; how it ended'", "f.how", "0")+" FROM task_final f LEFT JOIN reuses u ON u.task_id = f.task_id AND u.generation = f.generation "+
			"LEFT JOIN task_final o ON o.task_id = u.of_task AND o.generation = u.of_generation AND o.status = 8 WHERE "+of("f")+fmt.Sprintf(" AND f.how = %d AND o.task_id IS NULL", lifecycle.HowReused)),

	invariant("I10", "backups", "A task that ended with the result of its backup has one that succeeded.", nil,
		found("f.job_id", "f.task_id", "'ended with the result of a backup, and no other task of its job has its output; how it ended'", "f.how", "0")+
			fmt.Sprintf(" FROM task_final f WHERE "+of("f")+" AND f.how = %[1]d AND NOT EXISTS (SELECT 1 FROM task_final o JOIN tasks b ON b.id = o.task_id JOIN tasks t ON t.id = f.task_id WHERE o.job_id = f.job_id AND o.task_id <> f.task_id AND b.idx = t.idx AND o.status = %[2]d AND o.output = f.output)", lifecycle.HowBacked, drover.Succeeded)),

	invariant("I10", "children", "A task that ended with the result of a job has run it, and a job that a task runs is the one that the task knows.", nil,
		found("f.job_id", "f.task_id", "'ended with the result of a job that it has not run; how it ended'", "f.how", "0")+" FROM task_final f LEFT JOIN job_children c ON c.task_id = f.task_id AND c.generation = f.generation AND length(c.error) = 0 "+
			"WHERE "+of("f")+fmt.Sprintf(" AND f.how = %d AND c.task_id IS NULL", lifecycle.HowJoined),
		found("j.id", "j.parent_task", "'is run by a task that does not know it; jobs that it knows'", "0", "1")+" FROM jobs j LEFT JOIN job_children c ON c.child = j.id AND c.task_id = j.parent_task "+
			"WHERE j.id >= $1 AND j.parent_task IS NOT NULL AND c.task_id IS NULL AND EXISTS (SELECT 1 FROM tasks t WHERE t.id = j.parent_task)"),

	invariant("I13", "counts", "A job's counters are what its tasks are.", []string{liveCTE, newestCTE, ranCTE,
		"told AS (SELECT job_id, total, open, succeeded, failed, cancelled, skipped FROM job_live WHERE job_id >= $1 UNION ALL SELECT r.job_id, r.total, 0, r.succeeded, r.failed, r.cancelled, r.skipped FROM ran r LEFT JOIN job_live v ON v.job_id = r.job_id WHERE v.job_id IS NULL)",
		fmt.Sprintf("are AS (SELECT job_id, count(*) AS total, count(CASE WHEN status = 0 THEN 1 END) AS open, count(CASE WHEN status = %d THEN 1 END) AS succeeded, count(CASE WHEN status IN (%d, %d) THEN 1 END) AS failed, "+
			"count(CASE WHEN status = %d THEN 1 END) AS cancelled, count(CASE WHEN status = %d THEN 1 END) AS skipped FROM (SELECT job_id, 0 AS status FROM live UNION ALL SELECT job_id, status FROM newest) s GROUP BY job_id)",
			drover.Succeeded, drover.Failed, drover.DeadLetter, drover.Cancelled, drover.Skipped),
		// Few rows come this far; each column of those is then told of by itself.
		"off AS (SELECT t.job_id, t.total, t.open, t.succeeded, t.failed, t.cancelled, t.skipped, coalesce(a.total, 0) AS are_total, coalesce(a.open, 0) AS are_open, coalesce(a.succeeded, 0) AS are_succeeded, coalesce(a.failed, 0) AS are_failed, " +
			"coalesce(a.cancelled, 0) AS are_cancelled, coalesce(a.skipped, 0) AS are_skipped FROM told t LEFT JOIN are a ON a.job_id = t.job_id WHERE a.job_id IS NULL OR t.total <> a.total OR t.open <> a.open OR t.succeeded <> a.succeeded OR t.failed <> a.failed OR t.cancelled <> a.cancelled OR t.skipped <> a.skipped)"},
		counted("total", "open", "succeeded", "failed", "cancelled", "skipped")...),

	invariant("I13", "ends", "A job is final exactly when all its tasks are, in the same commit; its runs follow each other, and each ended as its tasks did.", []string{liveCTE, ranCTE},
		found("q.job_id", wholeJob, "'has no live task and has not ended; runs that ended'", "q.ended", "q.ended + 1")+" FROM (SELECT j.id AS job_id, coalesce(r.run, 0) AS ended FROM jobs j LEFT JOIN (SELECT DISTINCT job_id FROM live) l ON l.job_id = j.id "+
			"LEFT JOIN ran r ON r.job_id = j.id LEFT JOIN job_live v ON v.job_id = j.id WHERE j.id >= $1 AND l.job_id IS NULL AND (r.job_id IS NULL OR v.job_id IS NOT NULL)) q",
		found("l.job_id", wholeJob, "'has ended and has live tasks'", "count(*)", "0")+" FROM live l JOIN ran r ON r.job_id = l.job_id LEFT JOIN job_live v ON v.job_id = l.job_id WHERE v.job_id IS NULL GROUP BY l.job_id",
		differ(found("v.job_id", wholeJob, "'run that is live, after those that ended'", "v.run", "coalesce(r.run, 0) + 1")+" FROM job_live v LEFT JOIN ran r ON r.job_id = v.job_id WHERE v.job_id >= $1"),
		found("f.job_id", wholeJob, "'run that ended without the one before it'", "f.run", "f.run - 1")+" FROM job_final f LEFT JOIN job_final y ON y.job_id = f.job_id AND y.run = f.run - 1 WHERE "+of("f")+" AND f.run > 1 AND y.job_id IS NULL",
		differ(found("f.job_id", wholeJob, "'tasks that ended, of all of a run'", "f.succeeded + f.failed + f.cancelled + f.skipped", "f.total")+" FROM job_final f WHERE "+of("f")),
		differ(found("f.job_id", wholeJob, "'status of a run, after its tasks'", "f.status", fmt.Sprintf("CASE WHEN f.failed > f.handled THEN %d WHEN f.cancelled > 0 THEN %d ELSE %d END", drover.Failed, drover.Cancelled, drover.Succeeded))+" FROM job_final f WHERE "+of("f"))),

	invariant("I16", "pending", "A task that is PENDING waits for at least one parent.", nil,
		found("q.job_id", "q.task_id", "'is PENDING; parents it waits for'", "q.unmet", "1")+" FROM task_pending q WHERE q.job_id >= $1 AND q.unmet <= 0"),

	invariant("I18", "holds", "What is paused or being cancelled has its hold, and a hold has its job.", nil,
		found("h.job_id", wholeJob, "'has ended and is held; kind of the hold'", "h.kind", "0")+" FROM job_holds h JOIN job_final f ON f.job_id = h.job_id AND f.run = 1 LEFT JOIN job_live v ON v.job_id = h.job_id WHERE h.job_id >= $1 AND v.job_id IS NULL",
		found("r.job_id", "r.task_id", "'stands in the lane of what is held; holds of its job'", "0", "1")+fmt.Sprintf(" FROM task_ready r WHERE r.job_id >= $1 AND r.lane = %d AND r.ready_at > 0 AND NOT EXISTS (SELECT 1 FROM job_holds h WHERE h.job_id = r.job_id)", lifecycle.HeldLane),
		differ(found("v.job_id", wholeJob, "'is paused, against its hold'", "v.paused", "CASE WHEN h.job_id IS NULL THEN 0 ELSE 1 END")+fmt.Sprintf(" FROM job_live v LEFT JOIN job_holds h ON h.job_id = v.job_id AND h.kind = %d WHERE v.job_id >= $1", HoldPause)),
		differ(found("v.job_id", wholeJob, "'is being cancelled, against the cause of its hold'", "v.cancelling", "coalesce(h.cause, 0)")+fmt.Sprintf(" FROM job_live v LEFT JOIN job_holds h ON h.job_id = v.job_id AND h.kind = %d WHERE v.job_id >= $1", HoldCancel))),

	invariant("I21", "counter", "A job's events are numbered by one row: its own, or that of its one task.", []string{liveCTE},
		differ(found("q.job_id", wholeJob, "'rows that number its events'", "q.solo + q.own", "1")+" FROM (SELECT l.job_id, sum(CASE WHEN l.events > 0 THEN 1 ELSE 0 END) AS solo, max(CASE WHEN v.job_id IS NULL THEN 0 ELSE 1 END) AS own FROM live l LEFT JOIN job_live v ON v.job_id = l.job_id GROUP BY l.job_id) q"),
		found("l.job_id", "l.task_id", "'stands for its whole job, which has other tasks'", "count(*)", "0")+" FROM live l JOIN tasks t ON t.job_id = l.job_id AND t.id <> l.task_id WHERE l.events > 0 GROUP BY l.job_id, l.task_id",
		found("l.job_id", "l.task_id", "'stands for its whole job, which has ended; runs'", "f.run", "0")+" FROM live l JOIN job_final f ON f.job_id = l.job_id WHERE l.events > 0",
		found("l.job_id", "l.task_id", "'stands for its whole job, which is held; kind of the hold'", "h.kind", "0")+" FROM live l JOIN job_holds h ON h.job_id = l.job_id WHERE l.events > 0"),

	invariant("I23", "events", "A job's events are numbered 1, 2, 3, … without gaps and tell of its acceptance, its ends and its reopenings.", []string{liveCTE, ranCTE,
		"numbered AS (SELECT e.job_id, min(e.seq) AS least, max(e.seq) AS most, count(*) AS n, count(CASE WHEN e.type = 'job.accepted' THEN 1 END) AS accepted, coalesce(min(CASE WHEN e.type = 'job.accepted' THEN e.seq END), 0) AS first, " +
			"count(CASE WHEN e.type IN ('job.succeeded', 'job.failed', 'job.cancelled') THEN 1 END) AS ends, count(CASE WHEN e.type = 'job.reopened' THEN 1 END) AS reopened FROM events e WHERE " + of("e") + " GROUP BY e.job_id)",
		"story AS (SELECT j.id AS job_id, n.least, n.most, n.n, n.accepted, n.first, n.ends, n.reopened, coalesce(r.run, 0) AS runs, coalesce(v.run, r.run, 1) AS run, coalesce(v.events, s.events, r.events, 0) AS counted " +
			"FROM jobs j LEFT JOIN numbered n ON n.job_id = j.id LEFT JOIN ran r ON r.job_id = j.id LEFT JOIN job_live v ON v.job_id = j.id LEFT JOIN live s ON s.job_id = j.id AND s.events > 0 WHERE j.id >= $1)",
		// Few rows come this far.
		"off AS (SELECT * FROM story s WHERE s.n IS NULL OR s.least <> 1 OR s.most <> s.n OR s.most <> s.counted OR s.accepted <> 1 OR s.first <> 1 OR s.ends <> s.runs OR s.reopened <> s.run - 1)"},
		found("s.job_id", wholeJob, "'has no event'", "0", "1")+" FROM off s WHERE s.n IS NULL",
		differ(found("s.job_id", wholeJob, "'number of the first event'", "s.least", "1")+" FROM off s"),
		differ(found("s.job_id", wholeJob, "'number of the newest event, of so many'", "s.most", "s.n")+" FROM off s"),
		differ(found("s.job_id", wholeJob, "'number of the newest event, against the row that counts'", "s.most", "s.counted")+" FROM off s"),
		differ(found("s.job_id", wholeJob, "'times it was accepted'", "s.accepted", "1")+" FROM off s"),
		differ(found("s.job_id", wholeJob, "'number of the event of its acceptance'", "s.first", "1")+" FROM off s"),
		differ(found("s.job_id", wholeJob, "'ends by its events, against runs that ended'", "s.ends", "s.runs")+" FROM off s"),
		differ(found("s.job_id", wholeJob, "'reopenings by its events, against its runs'", "s.reopened", "s.run - 1")+" FROM off s")),

	invariant("I27", "keys", "An idempotency key stands for the job of its tenant that was made of the same request.", nil,
		found("i.job_id", wholeJob, "'is what a key of another request or tenant stands for; tenant of the key'", "i.tenant", "j.tenant")+" FROM idempotency i JOIN jobs j ON j.id = i.job_id WHERE i.job_id >= $1 AND (j.tenant <> i.tenant OR j.fingerprint <> i.fingerprint)"),

	invariant("I37", "not-early", "No task that was made with its job starts before the job's due_at, but for a second in which the clocks of servers may differ. (What is called later, as by a cancel, starts at once.)", nil,
		found("f.job_id", "f.task_id", "'started at, before it was due'", "f.claimed_at", "j.due_at")+" FROM jobs j JOIN tasks t ON t.job_id = j.id JOIN task_final f ON f.task_id = t.id AND f.generation = 1 WHERE j.id >= $1 AND j.due_at > 0 AND f.claimed_at > 0 AND f.claimed_at < j.due_at - 1000000 AND t.created_at = j.created_at",
		found("r.job_id", "r.task_id", "'started at, before it was due'", "r.claimed_at", "j.due_at")+" FROM task_running r JOIN jobs j ON j.id = r.job_id JOIN tasks t ON t.id = r.task_id WHERE r.job_id >= $1 AND r.generation = 1 AND j.due_at > 0 AND r.claimed_at < j.due_at - 1000000 AND t.created_at = j.created_at"),

	invariant("I52", "dead-letters", "What ended FAILED or as DEAD_LETTER is a dead letter, once; it is open until its task goes on.", []string{liveCTE},
		found("f.job_id", "f.task_id", "'ended badly and is no dead letter; generation'", "f.generation", "0")+" FROM task_final f LEFT JOIN dead_letters d ON d.task_id = f.task_id AND d.generation = f.generation AND d.status = f.status AND d.job_id = f.job_id WHERE "+of("f")+
			// What ended before that table was there has no row in it.
			fmt.Sprintf(" AND f.status IN (%d, %d) AND d.task_id IS NULL AND f.finished_at > (SELECT applied_at FROM schema_migrations WHERE version = 2)", drover.Failed, drover.DeadLetter),
		// Of a map that could not expand, was replayed and has expanded, no final row is left.
		found("d.job_id", "d.task_id", "'is a dead letter of a generation that has not ended'", "d.generation", "0")+" FROM dead_letters d JOIN tasks t ON t.id = d.task_id LEFT JOIN task_final f ON f.task_id = d.task_id AND f.generation = d.generation WHERE "+of("d")+
			" AND f.task_id IS NULL AND NOT (d.state = 2 AND t.idx = -1)",
		differ(found("d.job_id", "d.task_id", "'is a dead letter that was replayed, against its task that goes on'", "CASE WHEN d.state = 2 THEN 1 ELSE 0 END", "CASE WHEN l.task_id IS NOT NULL OR f.task_id IS NOT NULL THEN 1 ELSE 0 END")+
			" FROM dead_letters d JOIN tasks t ON t.id = d.task_id LEFT JOIN live l ON l.task_id = d.task_id LEFT JOIN task_final f ON f.task_id = d.task_id AND f.generation = d.generation + 1 WHERE "+of("d")+" AND t.idx >= 0")),

	invariant("I54", "whole", "A job leaves wholly or not at all: what is not being purged has its job.", []string{liveCTE},
		append(append(orphans("tasks", "task_final", "attempts", "events", "job_live", "job_final", "job_holds", "dead_letters"),
			found("m.job_id", wholeJob, "'has ended, and its maps are counted still'", "count(*)", "0")+" FROM map_live m LEFT JOIN job_live v ON v.job_id = m.job_id WHERE m.job_id >= $1 AND v.job_id IS NULL GROUP BY m.job_id"),
			found("l.job_id", wholeJob, "'is not there, and has live tasks'", "count(*)", "0")+" FROM live l LEFT JOIN jobs j ON j.id = l.job_id WHERE j.id IS NULL GROUP BY l.job_id")...),
}

// counted compares columns of off.
func counted(cols ...string) (list []string) {
	for _, c := range cols {
		list = append(list, differ(found("o.job_id", wholeJob, "'counts tasks: "+c+"'", "o."+c, "o.are_"+c)+" FROM off o"))
	}
	return list
}

// orphans finds rows whose job does not exist.
func orphans(tables ...string) (list []string) {
	for _, t := range tables {
		list = append(list, found("x.job_id", wholeJob, "'is not there, and has rows in "+t+"'", "count(*)", "0")+" FROM "+t+" x LEFT JOIN jobs j ON j.id = x.job_id WHERE "+of("x")+" AND j.id IS NULL GROUP BY x.job_id")
	}
	return list
}

var (
	auditWaits = driver.New("audit of waits", "",
		"SELECT f.job_id, f.task_id, f.generation, f.finished_at, f.waits, t.created_at FROM task_final f JOIN tasks t ON t.id = f.task_id WHERE "+of("f")+" AND f.generation = 1 "+
			// A later generation began with a replay, of this task or of one that brought it back.
			"UNION ALL SELECT f.job_id, f.task_id, f.generation, f.finished_at, f.waits, e.at FROM task_final f JOIN events e ON e.job_id = f.job_id AND e.type IN ('task.replayed', 'job.reopened', 'job.rerun', 'task.marked', 'task.expanded') WHERE "+of("f")+" AND f.generation > 1 ORDER BY 1, 2, 3, 6")
	auditPlaces = driver.New("audit of graphs", "",
		"WITH "+liveCTE+" SELECT t.job_id, t.id, t.pipeline, t.node, t.idx, coalesce(l.place, 0), coalesce(l.unmet, 0), coalesce(l.generation, f.generation, 0), coalesce(f.status, 0), coalesce(f.how, 0), coalesce(l.parents_failed, 0), coalesce(l.parents_skipped, 0), coalesce(l.parents_succeeded, 0), coalesce(l.in_line, 0), v.phase "+
			"FROM job_live v JOIN tasks t ON t.job_id = v.job_id LEFT JOIN live l ON l.task_id = t.id LEFT JOIN task_final f ON f.task_id = t.id AND "+notLast+
			" WHERE v.job_id >= $1 AND v.cancelling = 0 AND t.pipeline <> 0 ORDER BY t.job_id, t.node, t.idx")
	auditMaps      = driver.New("audit of maps", "", "SELECT "+qualify("m", mapCols)+" FROM map_live m WHERE m.job_id >= $1 ORDER BY m.job_id, m.node")
	auditPipelines = driver.New("audit of pipelines", "", "SELECT DISTINCT j.pipeline FROM job_live v JOIN jobs j ON j.id = v.job_id WHERE v.job_id >= $1 AND j.pipeline <> 0 ORDER BY j.pipeline")
	auditTries     = driver.New("audit of attempts", "",
		"SELECT a.job_id, a.task_id, t.pipeline, t.node, t.policy, max(a.n) FROM attempts a JOIN tasks t ON t.id = a.task_id WHERE "+of("a")+" GROUP BY a.job_id, a.task_id, t.pipeline, t.node, t.policy HAVING max(a.n) > 1")
)

// Waited is how long a generation of a task waited and ran, and since when.
type Waited struct {
	Job        drover.JobID
	Task       drover.TaskID
	Generation int32
	Finished   instant
	Waits      []byte
	// Began is when the task was made; of a later generation, when its job was replayed: there is a row for each time.
	Began instant
}

// AuditWaits hands on the waits of every generation that has ended.
func AuditWaits(from drover.JobID, see func(Waited)) Stmt {
	return Stmt{Text: auditWaits, Args: []any{[16]byte(from)}, Scan: func(r driver.Row) error {
		var w Waited
		err := r.Scan((*[16]byte)(&w.Job), (*[16]byte)(&w.Task), &w.Generation, (*int64)(&w.Finished), &w.Waits, (*int64)(&w.Began))
		if err == nil {
			see(w)
		}
		return err
	}}
}

// Placed is where a task of a live pipeline job stands.
type Placed struct {
	Job         drover.JobID
	Task        drover.TaskID
	Pipeline    int32
	Node, Index int32
	Status      drover.Status // of its live row, or as it ended last; none of a map that has expanded
	Live        bool
	Unmet       int32
	Generation  int32
	How         lifecycle.How
	// How the parents of a PENDING one count.
	Succeeded, Failed, Skipped int32
	InLine                     bool  // it waits for a place among its map's max_parallel
	Phase                      int16 // of its job
}

// AuditPlaces hands on the tasks of live pipeline jobs that are not being
// cancelled, job by job in the order of the graph.
func AuditPlaces(from drover.JobID, see func(Placed)) Stmt {
	return Stmt{Text: auditPlaces, Args: []any{[16]byte(from)}, Scan: func(r driver.Row) error {
		var p Placed
		var place, status int16
		var inLine int32
		if err := r.Scan((*[16]byte)(&p.Job), (*[16]byte)(&p.Task), &p.Pipeline, &p.Node, &p.Index, &place, &p.Unmet, &p.Generation, &status, (*int16)(&p.How), &p.Failed, &p.Skipped, &p.Succeeded, &inLine, &p.Phase); err != nil {
			return err
		}
		p.InLine = inLine == 1
		if p.Status, p.Live = drover.Status(status), place != 0; p.Live {
			p.Status = drover.Status(place)
		}
		see(p)
		return nil
	}}
}

// AuditMaps hands on what is counted of the maps of live jobs.
func AuditMaps(from drover.JobID, see func(MapRow)) Stmt {
	return Stmt{Text: auditMaps, Args: []any{[16]byte(from)}, Scan: func(r driver.Row) error {
		m, err := scanMap(r)
		if err == nil {
			see(m)
		}
		return err
	}}
}

// AuditPipelines reads the numbers of the pipelines of live jobs.
func AuditPipelines(from drover.JobID, numbers *[]int32) Stmt {
	return Stmt{Text: auditPipelines, Args: []any{[16]byte(from)}, Scan: into(numbers, func(r driver.Row) (n int32, err error) { err = r.Scan(&n); return n, err })}
}

// Tried is a task with several attempts, and what it may have.
type Tried struct {
	Job            drover.JobID
	Task           drover.TaskID
	Pipeline, Node int32
	Policy         []byte
	Attempts       int32 // the highest number
}

// AuditTries hands on the tasks that were tried more than once.
func AuditTries(from drover.JobID, see func(Tried)) Stmt {
	return Stmt{Text: auditTries, Args: []any{[16]byte(from)}, Scan: func(r driver.Row) error {
		var t Tried
		err := r.Scan((*[16]byte)(&t.Job), (*[16]byte)(&t.Task), &t.Pipeline, &t.Node, &t.Policy, &t.Attempts)
		if err == nil {
			see(t)
		}
		return err
	}}
}
