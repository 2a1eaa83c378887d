package store

import (
	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store/driver"
)

// HoldKind says what a hold does.
type HoldKind int16

// The kinds of hold.
const (
	HoldPause  HoldKind = 1
	HoldCancel HoldKind = 2
	HoldResume HoldKind = 3 // no hold any more: its READY rows are on their way back
)

// Hold is a row of job_holds: claims step over the job's tasks, unless it is a HoldResume.
type Hold struct {
	Job    drover.JobID
	Kind   HoldKind
	Cause  Cause
	At     instant
	Actor  string
	Reason string
	Swept  bool
}

// Publish makes a staged artifact visible with the outcome of its attempt.
type Publish struct {
	Artifact drover.ArtifactID
	Task     drover.TaskID
	Version  int32
	Kind     string // for one that was uploaded without
}

var (
	insertHolds = driver.New("insert holds", "job_id uuid, kind smallint, cause smallint, at bigint, actor text, reason text, swept smallint",
		"INSERT INTO job_holds (job_id, kind, cause, at, actor, reason, swept) SELECT {job_id}, {kind}, {cause}, {at}, {actor}, {reason}, {swept} {from} WHERE true ON CONFLICT DO NOTHING")
	holdCols    = "job_id, kind, cause, at, actor, reason, swept"
	readHolds   = driver.New("read holds", "", "SELECT "+holdCols+" FROM job_holds WHERE job_id = $1 ORDER BY kind")
	shareHolds  = driver.New("share holds", "id uuid", "SELECT "+qualify("h", holdCols)+" FROM {rows} JOIN job_holds h ON h.job_id = {id} ORDER BY h.job_id, h.kind {for share of h}")
	lockHold    = driver.New("lock hold", "", "SELECT "+holdCols+" FROM job_holds WHERE job_id = $1 AND kind = $2 {for update}")
	sweepHolds  = driver.New("read holds to sweep", "", "SELECT "+holdCols+" FROM job_holds WHERE kind = 2 OR swept = 0 ORDER BY job_id, kind LIMIT $1")
	sweptHold   = driver.New("mark hold swept", "", "UPDATE job_holds SET swept = 1 WHERE job_id = $1 AND kind = $2")
	deleteHold  = driver.New("delete hold", "", "DELETE FROM job_holds WHERE job_id = $1 AND kind = $2")
	publishArts = driver.New("publish artifacts", "id uuid, task_id uuid, lease_version int, kind text",
		"UPDATE artifacts SET visible = 1, kind = CASE WHEN artifacts.kind = '' THEN {kind} ELSE artifacts.kind END {from} WHERE artifacts.id = {id} AND artifacts.task_id = {task_id} AND artifacts.lease_version = {lease_version}")
	takeTimers = driver.New("take job timers", "", "DELETE FROM job_timers WHERE {pg:ctid = ANY(ARRAY(SELECT ctid FROM job_timers WHERE at <= $1 ORDER BY at, job_id LIMIT $2 FOR UPDATE SKIP LOCKED))}{lite:(at, job_id) IN (SELECT at, job_id FROM job_timers WHERE at <= $1 ORDER BY at, job_id LIMIT $2)} RETURNING job_id")
)

// InsertHolds stores holds; one that exists stays as it is.
func InsertHolds(rows []Hold) Stmt {
	type r = Hold
	return Stmt{Text: insertHolds, Cols: []any{
		col(rows, func(x *r) [16]byte { return [16]byte(x.Job) }), col(rows, func(x *r) int16 { return int16(x.Kind) }), col(rows, func(x *r) int16 { return int16(x.Cause) }),
		col(rows, func(x *r) int64 { return int64(x.At) }), col(rows, func(x *r) string { return x.Actor }), col(rows, func(x *r) string { return x.Reason }),
		col(rows, func(x *r) int16 { return flag(x.Swept) }),
	}}
}

func scanHold(r driver.Row) (h Hold, err error) {
	var swept int16
	err = r.Scan((*[16]byte)(&h.Job), (*int16)(&h.Kind), (*int16)(&h.Cause), (*int64)(&h.At), &h.Actor, &h.Reason, &swept)
	h.Swept = swept != 0
	return h, err
}

// ShareHolds reads the holds of jobs and keeps them until the transaction ends:
// whoever acts on a hold commits before it is gone, and the sweep that follows
// its end finds what was done.
func ShareHolds(jobs []drover.JobID, rows *[]Hold) Stmt {
	return Stmt{Text: shareHolds, Cols: []any{jobIDs(jobs)}, Scan: into(rows, scanHold)}
}

// ReadHolds reads the holds of a job. What it says may be over by the time it is
// acted on: LockHold tells.
func ReadHolds(job drover.JobID, rows *[]Hold) Stmt {
	return Stmt{Text: readHolds, Args: []any{[16]byte(job)}, Scan: into(rows, scanHold)}
}

// LockHold reads a hold for a sweep, which may change it; none when it is over.
// It comes after the job's other rows.
func LockHold(job drover.JobID, kind HoldKind, rows *[]Hold) Stmt {
	return Stmt{Text: lockHold, Args: []any{[16]byte(job), int16(kind)}, Scan: into(rows, scanHold)}
}

// HoldsToSweep reads holds whose jobs may still have rows to move.
func HoldsToSweep(n int, rows *[]Hold) Stmt {
	return Stmt{Text: sweepHolds, Args: []any{int64(n)}, Scan: into(rows, scanHold)}
}

// SweptHold records that a sweep found nothing more to move.
func SweptHold(job drover.JobID, kind HoldKind) Stmt {
	return Stmt{Text: sweptHold, Args: []any{[16]byte(job), int16(kind)}}
}

// DeleteHold removes a hold.
func DeleteHold(job drover.JobID, kind HoldKind) Stmt {
	return Stmt{Text: deleteHold, Args: []any{[16]byte(job), int16(kind)}}
}

// PublishArtifacts makes staged artifacts visible; one whose lease does not match stays hidden.
func PublishArtifacts(rows []Publish) Stmt {
	return Stmt{Text: publishArts, Cols: []any{
		col(rows, func(x *Publish) [16]byte { return [16]byte(x.Artifact) }), col(rows, func(x *Publish) [16]byte { return [16]byte(x.Task) }),
		col(rows, func(x *Publish) int32 { return x.Version }), col(rows, func(x *Publish) string { return x.Kind }),
	}}
}

// TakeJobTimers removes up to n timers that are due.
func TakeJobTimers(now instant, n int, jobs *[]drover.JobID) Stmt {
	return Stmt{Text: takeTimers, Args: []any{int64(now), int64(n)}, Scan: into(jobs, func(r driver.Row) (id drover.JobID, err error) {
		err = r.Scan((*[16]byte)(&id))
		return id, err
	})}
}
