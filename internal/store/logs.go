package store

import (
	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store/driver"
)

// Holder is the running row of a lease, as those who write under it need it.
type Holder struct {
	Job        drover.JobID
	Tenant     int32
	Generation int32
	Attempt    int32
	ClaimedAt  instant
}

var (
	leaseHolder = driver.New("find a lease", "",
		"SELECT r.job_id, t.tenant, r.generation, r.attempt, r.claimed_at FROM task_running r JOIN tasks t ON t.id = r.task_id WHERE r.task_id = $1 AND r.lease_version = $2")

	setProgress = driver.New("store progress", "",
		"INSERT INTO task_progress (task_id, lease_version, ratio, message, at) SELECT r.task_id, r.lease_version, $3, $4, $5 FROM task_running r JOIN tasks t ON t.id = r.task_id"+
			" WHERE r.task_id = $1 AND r.lease_version = $2 AND (t.tenant = $6 OR $7 = 1)"+
			" ON CONFLICT (task_id) DO UPDATE SET lease_version = excluded.lease_version, ratio = excluded.ratio, message = excluded.message, at = excluded.at")

	// The row is made first and read under its lock: two calls for one attempt take turns.
	startLogSize = driver.New("start an attempt's log", "", "INSERT INTO log_sizes (task_id, lease_version, bytes) VALUES ($1, $2, 0) ON CONFLICT DO NOTHING")
	lockLogSize  = driver.New("lock an attempt's log", "", "SELECT bytes FROM log_sizes WHERE task_id = $1 AND lease_version = $2 {for update}")
	addLogSize   = driver.New("grow an attempt's log", "", "UPDATE log_sizes SET bytes = bytes + $3 WHERE task_id = $1 AND lease_version = $2")
	insertLogs   = driver.New("insert log lines", "job_id uuid, id uuid, task_id uuid, attempt int, level text, at bigint, text text, attrs bytea",
		"INSERT INTO logs (job_id, id, task_id, attempt, level, at, text, attrs) SELECT {job_id}, {id}, {task_id}, {attempt}, {level}, {at}, {text}, {attrs} {from}")

	jobLogs = driver.New("log of a job", "",
		"SELECT l.id, l.task_id, l.attempt, l.level, l.at, l.text, l.attrs FROM logs l WHERE l.job_id = $1 AND l.id > $2 AND ($3 = 0 OR l.attempt = $3) ORDER BY l.id LIMIT $4")
	taskLogs = driver.New("log of a task", "",
		"SELECT l.id, l.task_id, l.attempt, l.level, l.at, l.text, l.attrs FROM logs l WHERE l.task_id = $1 AND l.id > $2 AND ($3 = 0 OR l.attempt = $3) ORDER BY l.id LIMIT $4")
	lastLogs = driver.New("last lines of a task", "",
		"SELECT l.id, l.task_id, l.attempt, l.level, l.at, l.text, l.attrs FROM logs l WHERE l.task_id = $1 AND l.id < $2 ORDER BY l.id DESC LIMIT $3")
)

// LeaseHolder reads whose lease it is; none leaves rows as it is.
func LeaseHolder(task drover.TaskID, version int32, rows *[]Holder) Stmt {
	return Stmt{Text: leaseHolder, Args: []any{[16]byte(task), version}, Scan: into(rows, func(r driver.Row) (h Holder, err error) {
		err = r.Scan((*[16]byte)(&h.Job), &h.Tenant, &h.Generation, &h.Attempt, (*int64)(&h.ClaimedAt))
		return h, err
	})}
}

// SetProgress stores what an attempt reports while its lease holds, for a task
// of the tenant or of any.
func SetProgress(task drover.TaskID, version int32, p drover.Progress, now instant, tenant int32, all bool, stored *int64) Stmt {
	return Stmt{Text: setProgress, Args: []any{[16]byte(task), version, p.Ratio, p.Message, int64(now), tenant, int32(flag(all))}, Affected: stored}
}

// LockLogSize reads how many bytes of an attempt's log are stored, and keeps
// others from adding to it.
func LockLogSize(task drover.TaskID, version int32, bytes *int64) []Stmt {
	args := []any{[16]byte(task), version}
	return []Stmt{
		{Text: startLogSize, Args: args},
		{Text: lockLogSize, Args: args, Scan: func(r driver.Row) error { return r.Scan(bytes) }},
	}
}

// LogRow is a row of logs.
type LogRow struct {
	Job     drover.JobID
	ID      drover.ID
	Task    drover.TaskID
	Attempt int32
	Level   string
	At      instant
	Text    string
	Attrs   []byte
}

// InsertLogs stores lines and adds their size to that of the attempt's log.
func InsertLogs(task drover.TaskID, version int32, size int64, rows []LogRow) []Stmt {
	type l = LogRow
	return []Stmt{
		{Text: insertLogs, Cols: []any{
			col(rows, func(x *l) [16]byte { return [16]byte(x.Job) }), col(rows, func(x *l) [16]byte { return [16]byte(x.ID) }), col(rows, func(x *l) [16]byte { return [16]byte(x.Task) }),
			col(rows, func(x *l) int32 { return x.Attempt }), col(rows, func(x *l) string { return x.Level }), col(rows, func(x *l) int64 { return int64(x.At) }),
			col(rows, func(x *l) string { return x.Text }), col(rows, func(x *l) []byte { return some(x.Attrs) }),
		}},
		{Text: addLogSize, Args: []any{[16]byte(task), version, size}},
	}
}

// Logs reads lines of a task, or of a job when task is zero, after the one
// named, oldest first. attempt 0 is all.
func Logs(job drover.JobID, task drover.TaskID, attempt int32, after drover.ID, n int, rows *[]LogRow) Stmt {
	text, of := jobLogs, [16]byte(job)
	if !task.IsZero() {
		text, of = taskLogs, [16]byte(task)
	}
	return Stmt{Text: text, Args: []any{of, [16]byte(after), attempt, int64(n)}, Scan: into(rows, scanLog)}
}

// LastLogs reads the last lines of a task before an id, newest first.
func LastLogs(task drover.TaskID, before drover.ID, n int, rows *[]LogRow) Stmt {
	return Stmt{Text: lastLogs, Args: []any{[16]byte(task), [16]byte(before), int64(n)}, Scan: into(rows, scanLog)}
}

func scanLog(r driver.Row) (l LogRow, err error) {
	err = r.Scan((*[16]byte)(&l.ID), (*[16]byte)(&l.Task), &l.Attempt, &l.Level, (*int64)(&l.At), &l.Text, &l.Attrs)
	return l, err
}
