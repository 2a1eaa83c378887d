package store

import (
	"context"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store/driver"
)

var (
	jobFinals = driver.New("read a job's finished tasks", "",
		"SELECT t.id, t.job_id, t.node, t.idx, t.queue, t.lane, t.class, f.generation, f.attempt, f.losses, f.lease_version, f.status FROM tasks t JOIN task_final f ON f.task_id = t.id WHERE t.job_id = $1 ORDER BY t.node, t.idx, f.generation")
	jobLiveKeys = driver.New("read a job's live tasks", "", "SELECT task_id, node, idx, 1 AS status FROM task_pending WHERE job_id = $1 UNION ALL SELECT task_id, node, idx, 2 FROM task_ready WHERE job_id = $1 "+
		"UNION ALL SELECT task_id, node, idx, 4 FROM task_queued WHERE job_id = $1 UNION ALL SELECT task_id, node, idx, 5 FROM task_running WHERE job_id = $1 UNION ALL SELECT task_id, node, idx, 6 FROM task_delayed WHERE job_id = $1")
	taskJob   = driver.New("find a task's job", "", "SELECT job_id FROM tasks WHERE id = $1")
	lastRun   = driver.New("read a job's last run", "", "SELECT run, tenant, status, events, total, succeeded, failed, cancelled, skipped, finished_at FROM job_final WHERE job_id = $1 ORDER BY run DESC LIMIT 1")
	taskLanes = driver.New("read lanes of tasks", "id uuid", "SELECT t.id, t.lane FROM {rows} JOIN tasks t ON t.id = {id}")
	// Of a map that ended before it could expand: once it has, it stands nowhere, as any map.
	deleteFinals = driver.New("delete ends of expanded maps", "id uuid", "DELETE FROM task_final {using} WHERE task_final.task_id = {id}")
	insertOp     = driver.New("insert operation", "", "INSERT INTO operations (tenant, request_id, action, subject, created_at) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING")
	readOp       = driver.New("read operation", "", "SELECT action, subject FROM operations WHERE tenant = $1 AND request_id = $2")
)

// JobTasks reads every task of a job as it stands: final ones in their last
// generation, live ones with their key and status only.
func JobTasks(ctx context.Context, tx Tx, job drover.JobID) (map[drover.TaskID]lifecycle.Task, error) {
	m := map[drover.TaskID]lifecycle.Task{}
	err := tx.Pipe(ctx,
		Stmt{Text: jobFinals, Args: []any{[16]byte(job)}, Scan: func(r driver.Row) error {
			var t lifecycle.Task
			var status int16
			err := r.Scan((*[16]byte)(&t.ID), (*[16]byte)(&t.Job), &t.Node, &t.Index, &t.Queue, &t.Lane, (*int16)(&t.Class), &t.Generation, &t.Attempt, &t.Losses, &t.LeaseVersion, &status)
			t.Status = drover.Status(status)
			m[t.ID] = t
			return err
		}},
		Stmt{Text: jobLiveKeys, Args: []any{[16]byte(job)}, Scan: func(r driver.Row) error {
			t := lifecycle.Task{Job: job}
			var status int16
			err := r.Scan((*[16]byte)(&t.ID), &t.Node, &t.Index, &status)
			t.Status = drover.Status(status)
			m[t.ID] = t
			return err
		}})
	return m, err
}

// TaskJob returns the job of a task; zero when there is no such task.
func TaskJob(ctx context.Context, tx Tx, id drover.TaskID) (job drover.JobID, err error) {
	err = tx.Pipe(ctx, Stmt{Text: taskJob, Args: []any{[16]byte(id)}, Scan: func(r driver.Row) error { return r.Scan((*[16]byte)(&job)) }})
	return job, err
}

// LastRun reads how a job's last finished run ended; its Run is 0 when none has.
func LastRun(ctx context.Context, tx Tx, job drover.JobID) (f JobFinal, err error) {
	var status int16
	err = tx.Pipe(ctx, Stmt{Text: lastRun, Args: []any{[16]byte(job)}, Scan: func(r driver.Row) error {
		return r.Scan(&f.Run, &f.Tenant, &status, &f.Events, &f.Total, &f.Succeeded, &f.Failed, &f.Cancelled, &f.Skipped, (*int64)(&f.FinishedAt))
	}})
	f.Job, f.Status = job, drover.Status(status)
	return f, err
}

// DeleteFinals removes the ends of maps that were replayed and have expanded; the
// job's events keep what became of them.
func DeleteFinals(tasks []drover.TaskID) Stmt {
	return Stmt{Text: deleteFinals, Cols: []any{col(tasks, func(id *drover.TaskID) [16]byte { return [16]byte(*id) })}}
}

// TaskLanes reads the lanes tasks belong to.
func TaskLanes(tasks []lifecycle.Task, lanes map[drover.TaskID]int32) Stmt {
	return Stmt{Text: taskLanes, Cols: []any{col(tasks, func(t *lifecycle.Task) [16]byte { return [16]byte(t.ID) })}, Scan: func(r driver.Row) error {
		var id drover.TaskID
		var lane int32
		err := r.Scan((*[16]byte)(&id), &lane)
		lanes[id] = lane
		return err
	}}
}

// Operation records a request that carried an id. It returns what the id was
// used for before; empty strings when this is its first use.
func Operation(ctx context.Context, tx Tx, tenant int32, request, action, subject string, now instant) (was, on string, err error) {
	var n int64
	if err := tx.Pipe(ctx, Stmt{Text: insertOp, Args: []any{tenant, request, action, subject, int64(now)}, Affected: &n}); err != nil || n == 1 {
		return "", "", err
	}
	err = tx.Pipe(ctx, Stmt{Text: readOp, Args: []any{tenant, request}, Scan: func(r driver.Row) error { return r.Scan(&was, &on) }})
	return was, on, err
}
