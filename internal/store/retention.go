package store

import (
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store/driver"
)

var (
	readRetention = driver.New("read retention", "", "SELECT tenant, succeeded, failed, cancelled FROM retention WHERE $1 < 0 OR tenant = $1")
	setRetention  = driver.New("set retention", "", "INSERT INTO retention (tenant, succeeded, failed, cancelled) VALUES ($1, $2, $3, $4) "+
		"ON CONFLICT (tenant) DO UPDATE SET succeeded = excluded.succeeded, failed = excluded.failed, cancelled = excluded.cancelled")
	endedRuns = driver.New("ended runs, oldest jobs first", "",
		"SELECT f.job_id, f.run, f.tenant, f.status, f.finished_at FROM job_final f WHERE f.job_id > $1 AND f.job_id < $2 ORDER BY f.job_id, f.run LIMIT $3")
	lockJobs  = driver.New("lock jobs that nobody uses", "id uuid", "SELECT j.id FROM {rows} JOIN jobs j ON j.id = {id} ORDER BY j.id {for update of j skip locked}")
	keepJobs  = driver.New("keep jobs from leaving", "id uuid", "SELECT j.id FROM {rows} JOIN jobs j ON j.id = {id} {for key share of j}")
	jobsAlive = driver.New("jobs that live", "id uuid", "SELECT j.id FROM {rows} JOIN jobs j ON j.id = {id} WHERE EXISTS (SELECT 1 FROM job_live l WHERE l.job_id = j.id LIMIT 1 OFFSET 0) "+
		"OR EXISTS (SELECT 1 FROM task_pending q WHERE q.job_id = j.id LIMIT 1 OFFSET 0) OR EXISTS (SELECT 1 FROM task_ready q WHERE q.job_id = j.id LIMIT 1 OFFSET 0) OR EXISTS (SELECT 1 FROM task_queued q WHERE q.job_id = j.id LIMIT 1 OFFSET 0) "+
		"OR EXISTS (SELECT 1 FROM task_running q WHERE q.job_id = j.id LIMIT 1 OFFSET 0) OR EXISTS (SELECT 1 FROM task_delayed q WHERE q.job_id = j.id LIMIT 1 OFFSET 0)")

	// What makes a job seen leaves first, in one transaction.
	insertPurges   = driver.New("begin to purge jobs", "job_id uuid, at bigint", "INSERT INTO job_purges (job_id, at) SELECT {job_id}, {at} {from} WHERE true ON CONFLICT DO NOTHING")
	purgeJobs      = driver.New("purge jobs", "id uuid", "DELETE FROM jobs {using} WHERE id = {id}")
	purgeArtifacts = driver.New("purge artifacts", "id uuid", "DELETE FROM artifacts WHERE visible = 1 AND job_id = {pg:ANY(ARRAY(SELECT }{id} {from}{pg:))}")
	purgeLetters   = driver.New("purge dead letters", "id uuid", "DELETE FROM dead_letters {using} WHERE job_id = {id}")

	// The rest follows in pieces.
	purging     = driver.New("jobs being purged", "", "SELECT job_id FROM job_purges ORDER BY job_id LIMIT $1 {for update skip locked}")
	purgeTasks  = driver.New("tasks to purge", "id uuid", "SELECT t.id FROM {rows} JOIN tasks t ON t.job_id = {id} LIMIT $1")
	purgeByTask = func() (list []*driver.Text) {
		for _, table := range []string{"task_final", "attempts", "task_inputs", "task_items", "task_lanes", "task_reusable", "log_sizes", "task_progress", "task_stops", "task_watches", "job_children"} {
			list = append(list, driver.New("purge "+table, "id uuid", "DELETE FROM "+table+" {using} WHERE task_id = {id}"))
		}
		return append(list, driver.New("purge tasks", "id uuid", "DELETE FROM tasks {using} WHERE tasks.id = {id}"))
	}()
	purgeByJob = func() (list []*driver.Text) {
		for _, t := range [][2]string{{"events", "seq"}, {"logs", "id"}, {"barrier_parties", "task_id"}} {
			table, key := t[0], t[1]
			list = append(list, driver.New("purge "+table, "id uuid", "DELETE FROM "+table+" WHERE {pg:ctid = ANY(ARRAY}{lite:(job_id, "+key+") IN }(SELECT {pg:e.ctid}{lite:e.job_id, e."+key+"} FROM {rows} JOIN "+table+" e ON e.job_id = {id} LIMIT $1){pg:)}"))
		}
		return list
	}()
	purgeEnds = []*driver.Text{
		purgeLetters, // one that was filed as the job left
		driver.New("purge job_final", "id uuid", "DELETE FROM job_final {using} WHERE job_id = {id}"),
		driver.New("end to purge jobs", "id uuid", "DELETE FROM job_purges {using} WHERE job_id = {id}"),
	}
)

// ReadRetention reads what tenants have set; a negative tenant is all of them.
func ReadRetention(tenant int32, of map[int32]drover.Retention) Stmt {
	return Stmt{Text: readRetention, Args: []any{tenant}, Scan: func(r driver.Row) error {
		var id int32
		var ok, failed, cancelled int64
		err := r.Scan(&id, &ok, &failed, &cancelled)
		of[id] = drover.Retention{Succeeded: fromMicros(ok), Failed: fromMicros(failed), Cancelled: fromMicros(cancelled)}
		return err
	}}
}

// SetRetention sets that of a tenant.
func SetRetention(tenant int32, r drover.Retention) Stmt {
	return Stmt{Text: setRetention, Args: []any{tenant, r.Succeeded.Std().Microseconds(), r.Failed.Std().Microseconds(), r.Cancelled.Std().Microseconds()}}
}

// EndedRuns reads up to n ended runs of the jobs between two ids, in order; a
// job that has been reopened is among them.
func EndedRuns(after, below drover.JobID, n int, rows *[]JobFinal) Stmt {
	return Stmt{Text: endedRuns, Args: []any{[16]byte(after), [16]byte(below), int64(n)}, Scan: into(rows, func(r driver.Row) (f JobFinal, err error) {
		var status int16
		err = r.Scan((*[16]byte)(&f.Job), &f.Run, &f.Tenant, &status, (*int64)(&f.FinishedAt))
		f.Status = drover.Status(status)
		return f, err
	})}
}

func scanJobID(list *[]drover.JobID) func(driver.Row) error {
	return into(list, func(r driver.Row) (id drover.JobID, err error) { err = r.Scan((*[16]byte)(&id)); return id, err })
}

// LockJobs locks the rows of jobs, but for those that KeepJobs holds.
func LockJobs(jobs []drover.JobID, locked *[]drover.JobID) Stmt {
	return Stmt{Text: lockJobs, Cols: []any{jobIDs(jobs)}, Scan: scanJobID(locked)}
}

// KeepJobs keeps jobs from being purged until the transaction ends; kept
// receives those that are there.
func KeepJobs(jobs []drover.JobID, kept *[]drover.JobID) Stmt {
	return Stmt{Text: keepJobs, Cols: []any{jobIDs(jobs)}, Scan: scanJobID(kept)}
}

// LiveJobs reads which of the jobs have anything in the live tables.
func LiveJobs(jobs []drover.JobID, live *[]drover.JobID) Stmt {
	return Stmt{Text: jobsAlive, Cols: []any{jobIDs(jobs)}, Scan: scanJobID(live)}
}

// BeginPurge takes jobs out of sight. Their other rows follow by Purge.
func BeginPurge(jobs []drover.JobID, at instant) []Stmt {
	ids := jobIDs(jobs)
	ats := make([]int64, len(ids))
	for i := range ats {
		ats[i] = int64(at)
	}
	return []Stmt{{Text: insertPurges, Cols: []any{ids, ats}}, {Text: purgeJobs, Cols: []any{ids}}, {Text: purgeArtifacts, Cols: []any{ids}}, {Text: purgeLetters, Cols: []any{ids}},
		{Text: purgeResults, Cols: []any{ids}}, {Text: purgeReuses, Cols: []any{ids}}, {Text: purgeUses, Cols: []any{ids}}}
}

// Purging locks up to n jobs that BeginPurge took out of sight.
func Purging(n int, jobs *[]drover.JobID) Stmt {
	return Stmt{Text: purging, Args: []any{int64(n)}, Scan: scanJobID(jobs)}
}

// PurgeTasks reads up to n tasks of the jobs (on SQLite up to n of each).
func PurgeTasks(jobs []drover.JobID, n int, tasks *[]drover.TaskID) Stmt {
	return Stmt{Text: purgeTasks, Cols: []any{jobIDs(jobs)}, Args: []any{int64(n)}, Scan: into(tasks, func(r driver.Row) (id drover.TaskID, err error) {
		err = r.Scan((*[16]byte)(&id))
		return id, err
	})}
}

// Purge deletes the tasks with all they had, and up to n events and log lines of
// the jobs; more receives the number of those for each kind.
func Purge(jobs []drover.JobID, tasks []drover.TaskID, n int, more *[3]int64) []Stmt {
	var list []Stmt
	for _, text := range purgeByTask {
		list = append(list, Stmt{Text: text, Cols: taskIDs(tasks)})
	}
	for i, text := range purgeByJob {
		list = append(list, Stmt{Text: text, Cols: []any{jobIDs(jobs)}, Args: []any{int64(n)}, Affected: &more[i]})
	}
	return list
}

// EndPurge deletes the last of jobs.
func EndPurge(jobs []drover.JobID) (list []Stmt) {
	for _, text := range purgeEnds {
		list = append(list, Stmt{Text: text, Cols: []any{jobIDs(jobs)}})
	}
	return list
}

func fromMicros(us int64) drover.Duration {
	return drover.Duration(time.Duration(us) * time.Microsecond)
}
