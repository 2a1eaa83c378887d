package store

import (
	"context"
	"strings"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store/driver"
)

var (
	jobFinals = driver.New("read jobs' finished tasks", "id uuid",
		"SELECT t.id, t.job_id, t.node, t.idx, t.queue, "+homeLane+", t.class, f.generation, f.attempt, f.losses, f.lease_version, f.status, f.how FROM {rows} JOIN tasks t ON t.job_id = {id} JOIN task_final f ON f.task_id = t.id ORDER BY t.job_id, t.node, t.idx, f.generation")
	jobLiveKeys = func() *driver.Text {
		var parts []string
		for _, table := range liveTables {
			status := map[string]string{"task_pending": "1, 0, 0, 0", "task_ready": "2, q.lane, q.ready_at, 0", "task_queued": "4, 0, 0, 0", "task_running": "5, 0, 0, 0", "task_delayed": "q.status, 0, 0, q.due_at"}[table]
			parts = append(parts, "SELECT q.task_id, q.job_id, q.node, q.idx, q.generation, "+status+" FROM {rows} JOIN "+table+" q ON q.job_id = {id}")
		}
		return driver.New("read jobs' live tasks", "id uuid", strings.Join(parts, " UNION ALL "))
	}()
	lastRun   = driver.New("read a job's last run", "", "SELECT run, tenant, status, events, total, succeeded, failed, cancelled, skipped, finished_at, handled FROM job_final WHERE job_id = $1 ORDER BY run DESC LIMIT 1")
	taskLanes = driver.New("read lanes of tasks", "id uuid", "SELECT t.id, "+homeLane+" FROM {rows} JOIN tasks t ON t.id = {id}")
	// Of a map that ended before it could expand: once it has, it stands nowhere, as any map.
	deleteFinals = driver.New("delete ends of expanded maps", "id uuid", "DELETE FROM task_final {using} WHERE task_final.task_id = {id}")
	insertOp     = driver.New("insert operation", "", "INSERT INTO operations (tenant, request_id, action, subject, created_at) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING")
	readOp       = driver.New("read operation", "", "SELECT action, subject FROM operations WHERE tenant = $1 AND request_id = $2")
)

// JobTasks reads every task of jobs as it stands: final ones in their last
// generation, live ones with their key, generation and status only.
func JobTasks(ctx context.Context, tx Tx, jobs []drover.JobID) (map[drover.JobID]map[drover.TaskID]lifecycle.Task, error) {
	m := make(map[drover.JobID]map[drover.TaskID]lifecycle.Task, len(jobs))
	for _, j := range jobs {
		m[j] = map[drover.TaskID]lifecycle.Task{}
	}
	put := func(t lifecycle.Task) { m[t.Job][t.ID] = t }
	return m, tx.Pipe(ctx, finishedTasks(jobs, put), LiveTasks(jobs, put))
}

// finishedTasks reads the generations of jobs' tasks that have ended, in order.
func finishedTasks(jobs []drover.JobID, put func(lifecycle.Task)) Stmt {
	return Stmt{Text: jobFinals, Cols: []any{jobIDs(jobs)}, Scan: func(r driver.Row) error {
		var t lifecycle.Task
		var status int16
		err := r.Scan((*[16]byte)(&t.ID), (*[16]byte)(&t.Job), &t.Node, &t.Index, &t.Queue, &t.Lane, (*int16)(&t.Class), &t.Generation, &t.Attempt, &t.Losses, &t.LeaseVersion, &status, (*int16)(&t.How))
		t.Status = drover.Status(status)
		put(t)
		return err
	}}
}

// LiveTasks reads the keys, generations and statuses of jobs' live tasks, and what
// tells those that have started.
func LiveTasks(jobs []drover.JobID, put func(lifecycle.Task)) Stmt {
	return Stmt{Text: jobLiveKeys, Cols: []any{jobIDs(jobs)}, Scan: func(r driver.Row) error {
		var t lifecycle.Task
		var status int16
		err := r.Scan((*[16]byte)(&t.ID), (*[16]byte)(&t.Job), &t.Node, &t.Index, &t.Generation, &status, &t.Lane, (*int64)(&t.ReadyAt), (*int64)(&t.DueAt))
		t.Status = drover.Status(status)
		put(t)
		return err
	}}
}

// LastRuns reads how the last finished runs of jobs ended.
func LastRuns(jobs []drover.JobID, runs map[drover.JobID]JobFinal) Stmt {
	return Stmt{Text: viewJobFinal, Cols: []any{jobIDs(jobs)}, Scan: func(r driver.Row) error {
		f, err := scanJobFinal(r)
		runs[f.Job] = f
		return err
	}}
}

// LastRun reads how a job's last finished run ended; its Run is 0 when none has.
func LastRun(ctx context.Context, tx Tx, job drover.JobID) (f JobFinal, err error) {
	var status int16
	err = tx.Pipe(ctx, Stmt{Text: lastRun, Args: []any{[16]byte(job)}, Scan: func(r driver.Row) error {
		return r.Scan(&f.Run, &f.Tenant, &status, &f.Events, &f.Total, &f.Succeeded, &f.Failed, &f.Cancelled, &f.Skipped, (*int64)(&f.FinishedAt), &f.Handled)
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

// Called is a task at a place of a job's graph, and how its last generation ended.
type Called struct {
	ID           drover.TaskID
	Input        []byte
	Status       drover.Status // none while it has not ended
	Generation   int32
	LeaseVersion int32
}

var readCalled = driver.New("read tasks that are called", "job_id uuid, node int, idx int",
	"SELECT t.job_id, t.node, t.idx, t.id, "+newestItem+", coalesce(f.status, 0), coalesce(f.generation, 0), coalesce(f.lease_version, 0) FROM {rows} JOIN tasks t ON t.job_id = {job_id} AND t.node = {node} AND t.idx = {idx} "+
		"LEFT JOIN task_final f ON f.task_id = t.id AND "+notLast)

// ReadCalled reads the tasks at places that there are.
func ReadCalled(keys []Key, out map[Key]Called) Stmt {
	return Stmt{Text: readCalled, Cols: keyCols(keys), Scan: func(r driver.Row) error {
		var k Key
		var c Called
		var status int16
		err := r.Scan((*[16]byte)(&k.Job), &k.Node, &k.Index, (*[16]byte)(&c.ID), &c.Input, &status, &c.Generation, &c.LeaseVersion)
		c.Status = drover.Status(status)
		out[k] = c
		return err
	}}
}
