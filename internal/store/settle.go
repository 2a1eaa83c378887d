package store

import (
	"context"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store/driver"
)

// JobHead is what a settle must know of a job.
type JobHead struct {
	Job      drover.JobID
	Tenant   int32
	Pipeline int32
	Trace    string
	Parent   drover.TaskID // the task that runs the job; zero is nobody
}

var (
	readHeads    = driver.New("read job heads", "id uuid", "SELECT j.id, j.tenant, j.pipeline, j.trace, "+noParent+" FROM {rows} JOIN jobs j ON j.id = {id}")
	readPolicies = driver.New("read policies", "id uuid", "SELECT t.id, t.policy FROM {rows} JOIN tasks t ON t.id = {id}")
	readEnds     = driver.New("read ends of attempts", "task_id uuid, lease_version int",
		"SELECT a.task_id, a.lease_version, a.session_id, a.status, a.outcome, a.error FROM {rows} JOIN attempts a ON a.task_id = {task_id} AND a.lease_version = {lease_version}")
	readFinals = driver.New("read ends of tasks", "task_id uuid, lease_version int",
		"SELECT f.task_id, f.lease_version, f.session_id, f.status, 'succeeded', f.error FROM {rows} JOIN task_final f ON f.task_id = {task_id} AND f.lease_version = {lease_version} AND f.status = 8")
	laneByID = driver.New("read lane", "", "SELECT queue, tenant, kind, circuit, stage, needs FROM lanes WHERE id = $1")
)

// ReadJobHeads reads the heads of jobs.
func ReadJobHeads(jobs []drover.JobID, heads map[drover.JobID]JobHead) Stmt {
	return Stmt{Text: readHeads, Cols: []any{jobIDs(jobs)}, Scan: func(r driver.Row) error {
		var h JobHead
		err := r.Scan((*[16]byte)(&h.Job), &h.Tenant, &h.Pipeline, &h.Trace, (*[16]byte)(&h.Parent))
		heads[h.Job] = h
		return err
	}}
}

// ReadPolicies reads the policies of tasks of Kind jobs.
func ReadPolicies(tasks []drover.TaskID, policies map[drover.TaskID][]byte) Stmt {
	return Stmt{Text: readPolicies, Cols: []any{col(tasks, func(id *drover.TaskID) [16]byte { return [16]byte(*id) })}, Scan: func(r driver.Row) error {
		var id drover.TaskID
		var p []byte
		err := r.Scan((*[16]byte)(&id), &p)
		policies[id] = p
		return err
	}}
}

// End is how an attempt ended.
type End struct {
	Status  drover.Status // of the task after it
	Outcome string
	Error   []byte // JSON of its failure, or empty
}

// ReadEnds reads how attempts ended that no longer run: a repeat of a settle is
// answered by it.
func ReadEnds(leases []Lease, ends map[Lease]End) []Stmt {
	cols := []any{col(leases, func(l *Lease) [16]byte { return [16]byte(l.Task) }), col(leases, func(l *Lease) int32 { return l.Version })}
	scan := func(r driver.Row) error {
		var l Lease
		var status int16
		var e End
		err := r.Scan((*[16]byte)(&l.Task), &l.Version, &l.Session, &status, &e.Outcome, &e.Error)
		e.Status = drover.Status(status)
		ends[l] = e
		return err
	}
	return []Stmt{{Text: readEnds, Cols: cols, Scan: scan}, {Text: readFinals, Cols: cols, Scan: scan}}
}

// LaneByID reads a lane's selector.
func LaneByID(ctx context.Context, tx Tx, id int32) (k LaneKey, err error) {
	err = tx.Pipe(ctx, Stmt{Text: laneByID, Args: []any{id}, Scan: func(r driver.Row) error { return r.Scan(&k.Queue, &k.Tenant, &k.Kind, &k.Circuit, &k.Stage, &k.Needs) }})
	return k, err
}
