package store

import (
	"fmt"
	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store/driver"
)

// Undoable is a node of a job's graph whose tasks another node's undo.
type Undoable struct {
	Job      drover.JobID
	Node, By int32
}

// UndoablePart is some elements of such a node.
type UndoablePart struct {
	Undoable
	First, Last int32
}

// Undone is a task that has succeeded and that nothing has been called to undo.
type Undone struct {
	Key
	Task drover.TaskID
}

var (
	readUndoable = driver.New("read what is to be undone", "job_id uuid, node int, undoer int",
		fmt.Sprintf("SELECT t.job_id, t.node, t.idx, t.id FROM {rows} JOIN tasks t ON t.job_id = {job_id} AND t.node = {node} JOIN task_final f ON f.task_id = t.id AND f.status = %d AND "+notLast+
			" WHERE NOT EXISTS (SELECT 1 FROM tasks c WHERE c.job_id = t.job_id AND c.node = {undoer} AND c.idx = t.idx)", drover.Succeeded))
	countUndoable = driver.New("count what is to be undone", "job_id uuid, node int, undoer int, first int, last int",
		fmt.Sprintf("SELECT t.job_id, count(*) FROM {rows} JOIN tasks t ON t.job_id = {job_id} AND t.node = {node} AND t.idx BETWEEN {first} AND {last} JOIN task_final f ON f.task_id = t.id AND f.status = %d AND "+notLast+
			" WHERE NOT EXISTS (SELECT 1 FROM tasks c WHERE c.job_id = t.job_id AND c.node = {undoer} AND c.idx = t.idx) GROUP BY t.job_id", drover.Succeeded))
	readUndoers = driver.New("read what undoes a job's work", "job_id uuid, node int",
		"SELECT t.id, t.node, t.idx, t.created_at, coalesce(f.status, 0), coalesce(f.error, {pg:''::bytea}{lite:x''}) FROM {rows} JOIN tasks t ON t.job_id = {job_id} AND t.node = {node} LEFT JOIN task_final f ON f.task_id = t.id AND "+notLast)
	readUndoing = driver.New("read which jobs have undone what they did", "job_id uuid, node int",
		"SELECT t.job_id FROM {rows} JOIN tasks t ON t.job_id = {job_id} AND t.node = {node}")
	auditEnded = driver.New("audit of jobs that ended badly", "", fmt.Sprintf("SELECT f.job_id, j.pipeline FROM job_final f JOIN jobs j ON j.id = f.job_id WHERE f.job_id >= $1 AND f.status <> %d AND j.pipeline <> 0"+
		" AND NOT EXISTS (SELECT 1 FROM job_live l WHERE l.job_id = f.job_id) AND NOT EXISTS (SELECT 1 FROM job_final y WHERE y.job_id = f.job_id AND y.run > f.run) ORDER BY f.job_id", drover.Succeeded))
	readSuccesses = driver.New("read a job's newest successes", "job_id uuid, below bigint, many int",
		fmt.Sprintf("SELECT e.job_id, e.seq, e.task_id, t.node, t.idx, (SELECT count(*) FROM task_final f WHERE f.task_id = t.id AND f.status = %d AND "+notLast+") FROM {rows} JOIN {pg:LATERAL} (SELECT v.job_id, v.seq, v.task_id FROM events v WHERE v.job_id = {job_id} AND v.seq < {below} AND v.type = 'task.succeeded' ORDER BY v.seq DESC LIMIT {many}) e ON 1 = 1"+
			" JOIN tasks t ON t.id = e.task_id", drover.Succeeded))
)

// ReadUndoable reads the tasks of nodes that are to be undone.
func ReadUndoable(nodes []Undoable, found func(Undone)) Stmt {
	return Stmt{Text: readUndoable, Cols: []any{
		col(nodes, func(u *Undoable) [16]byte { return [16]byte(u.Job) }),
		col(nodes, func(u *Undoable) int32 { return u.Node }),
		col(nodes, func(u *Undoable) int32 { return u.By }),
	}, Scan: func(r driver.Row) error {
		var u Undone
		err := r.Scan((*[16]byte)(&u.Job), &u.Node, &u.Index, (*[16]byte)(&u.Task))
		found(u)
		return err
	}}
}

// CountUndoable counts, by job, the tasks of places that are to be undone; of each place
// it takes the elements from the first to the last.
func CountUndoable(places []UndoablePart, counts map[drover.JobID]int) Stmt {
	return Stmt{Text: countUndoable, Cols: []any{
		col(places, func(u *UndoablePart) [16]byte { return [16]byte(u.Job) }),
		col(places, func(u *UndoablePart) int32 { return u.Node }),
		col(places, func(u *UndoablePart) int32 { return u.By }),
		col(places, func(u *UndoablePart) int32 { return u.First }),
		col(places, func(u *UndoablePart) int32 { return u.Last }),
	}, Scan: func(r driver.Row) error {
		var job drover.JobID
		var n int
		err := r.Scan((*[16]byte)(&job), &n)
		counts[job] += n
		return err
	}}
}

// Success is a task that has succeeded, by the event that tells it.
type Success struct {
	Key
	Seq  int64
	Task drover.TaskID
	// Stands says that it has not ended otherwise since.
	Stands bool
}

// SuccessesOf names a job's newest successes, as many at most, before an event.
type SuccessesOf struct {
	Job   drover.JobID
	Below int64
	Many  int32
}

// ReadSuccesses reads newest successes of jobs, in no order.
func ReadSuccesses(of []SuccessesOf, out *[]Success) Stmt {
	return Stmt{Text: readSuccesses, Cols: []any{
		col(of, func(s *SuccessesOf) [16]byte { return [16]byte(s.Job) }),
		col(of, func(s *SuccessesOf) int64 { return s.Below }),
		col(of, func(s *SuccessesOf) int32 { return s.Many }),
	}, Scan: into(out, func(r driver.Row) (s Success, err error) {
		var stands int16
		err = r.Scan((*[16]byte)(&s.Job), &s.Seq, (*[16]byte)(&s.Task), &s.Node, &s.Index, &stands)
		s.Stands = stands == 1
		return s, err
	})}
}

// Undoer is a task that undoes the work of another.
type Undoer struct {
	Task        drover.TaskID
	Node, Index int32
	CreatedAt   lifecycle.Instant
	Status      drover.Status // of its last generation that has ended; none if none has
	Error       []byte
}

// ReadUndoers reads the tasks of nodes that undo the work of others.
func ReadUndoers(job drover.JobID, nodes []int32, rows *[]Undoer) Stmt {
	return Stmt{Text: readUndoers, Cols: nodeCols(job, nodes), Scan: into(rows, func(r driver.Row) (u Undoer, err error) {
		var status int16
		err = r.Scan((*[16]byte)(&u.Task), &u.Node, &u.Index, (*int64)(&u.CreatedAt), &status, &u.Error)
		u.Status = drover.Status(status)
		return u, err
	})}
}

// LiveStatuses reads how the live tasks of a job stand.
func LiveStatuses(job drover.JobID, out map[drover.TaskID]drover.Status) Stmt {
	return LiveTasks([]drover.JobID{job}, func(t lifecycle.Task) { out[t.ID] = t.Status })
}

// ReadUndoing reads which jobs have tasks of such nodes.
func ReadUndoing(nodes []Undoable, jobs map[drover.JobID]bool) Stmt {
	return Stmt{Text: readUndoing, Cols: []any{
		col(nodes, func(u *Undoable) [16]byte { return [16]byte(u.Job) }),
		col(nodes, func(u *Undoable) int32 { return u.Node }),
	}, Scan: func(r driver.Row) error {
		var id drover.JobID
		err := r.Scan((*[16]byte)(&id))
		jobs[id] = true
		return err
	}}
}

// EndedJob is a job of a pipeline that has ended.
type EndedJob struct {
	Job      drover.JobID
	Pipeline int32
}

// AuditEnded reads the jobs of pipelines that have ended badly.
func AuditEnded(from drover.JobID, jobs *[]EndedJob) Stmt {
	return Stmt{Text: auditEnded, Args: []any{[16]byte(from)}, Scan: into(jobs, func(r driver.Row) (j EndedJob, err error) {
		err = r.Scan((*[16]byte)(&j.Job), &j.Pipeline)
		return j, err
	})}
}
