package store

import (
	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store/driver"
)

type instant = lifecycle.Instant

// JobRow is a row of jobs.
type JobRow struct {
	ID          drover.JobID
	Tenant      int32
	Pipeline    int32
	Kind        string
	Class       drover.Class
	Creator     string
	Labels      []byte
	Input       []byte
	Trace       string
	DueAt       instant
	ExpiresAt   instant
	CreatedAt   instant
	Fingerprint []byte
	Parent      drover.TaskID // the task that runs the job; zero is nobody
}

// TaskRow is a row of tasks.
type TaskRow struct {
	ID          drover.TaskID
	Job         drover.JobID
	Tenant      int32
	Node, Index int32
	Pipeline    int32
	Queue, Lane int32
	Class       drover.Class
	Kind        string
	Input       []byte
	Policy      []byte
	Trace       string
	CreatedAt   instant
}

// JobLive is a row of job_live.
type JobLive struct {
	Job        drover.JobID
	Tenant     int32
	Run        int32
	Graph      int32
	Events     int64
	Total      int32
	Open       int32
	Succeeded  int32
	Failed     int32
	Cancelled  int32
	Skipped    int32
	Paused     bool
	Cancelling Cause
	// Handled counts failures that have been made good.
	Handled int32
	// Phase is how far the end of the job has come: 0 while its tasks run, 1 with its
	// rescue, if it needs one, 3 with what undoes its work, and 2 with those that run finally.
	Phase int16
	// Undone is the number of the event that tells the success undone last; 0 is none.
	Undone int64
}

// Cause says why a job's tasks are being ended; it is stored, never renumber.
type Cause int16

// The causes.
const (
	CauseUser     Cause = 1 // somebody cancelled the job
	CauseFailFast Cause = 2 // a task failed
	CauseExpired  Cause = 3 // expires_at passed
	CauseFinish   Cause = 4 // a task failed; what runs may end, but nothing starts
)

// JobFinal is a row of job_final.
type JobFinal struct {
	Job                                   drover.JobID
	Run                                   int32
	Tenant                                int32
	Status                                drover.Status
	Events                                int64
	Total                                 int32
	Succeeded, Failed, Cancelled, Skipped int32
	FinishedAt                            instant
	Handled                               int32 // of the failures, those that were made good
}

// FinalRow is a row of task_final.
type FinalRow struct {
	Task   lifecycle.Task
	Tenant int32
	At     instant
	Output []byte
	Error  []byte
}

// AttemptRow is a row of attempts.
type AttemptRow struct {
	Task    lifecycle.Task // as it was while running
	At      instant
	Outcome string
	Status  drover.Status // of the task after it
	Error   []byte
}

// EventRow is a row of events.
type EventRow struct {
	Job  drover.JobID
	Seq  int64
	Type drover.EventType
	At   instant
	Task drover.TaskID
	Data []byte
}

var (
	insertJobs    = driver.Insert("insert jobs", "jobs", "id uuid, tenant int, pipeline int, kind text, class smallint, creator text, labels bytea, input bytea, trace text, due_at bigint, expires_at bigint, created_at bigint, fingerprint bytea")
	insertTasks   = driver.Insert("insert tasks", "tasks", "id uuid, job_id uuid, tenant int, node int, idx int, pipeline int, queue int, lane int, class smallint, kind text, input bytea, policy bytea, trace text, created_at bigint")
	insertJobLive = driver.Insert("insert job_live", "job_live", "job_id uuid, tenant int, run int, graph int, events bigint, total int, open int, succeeded int, failed int, cancelled int, skipped int, paused smallint, cancelling smallint, handled int, phase smallint, undone bigint")
	updateJobLive = driver.New("update job_live", "job_id uuid, tenant int, run int, graph int, events bigint, total int, open int, succeeded int, failed int, cancelled int, skipped int, paused smallint, cancelling smallint, handled int, phase smallint, undone bigint",
		"UPDATE job_live SET run = {run}, graph = {graph}, events = {events}, total = {total}, open = {open}, succeeded = {succeeded}, failed = {failed}, cancelled = {cancelled}, skipped = {skipped}, paused = {paused}, cancelling = {cancelling}, handled = {handled}, phase = {phase}, undone = {undone} {from} WHERE job_id = {job_id} AND tenant = {tenant}")
	lockJobLive = driver.New("lock job_live", "id uuid",
		"SELECT j.job_id, j.tenant, j.run, j.graph, j.events, j.total, j.open, j.succeeded, j.failed, j.cancelled, j.skipped, j.paused, j.cancelling, j.handled, j.phase, j.undone FROM {rows} JOIN job_live j ON j.job_id = {id} {for no key update of j}")
	readJobGraph   = driver.New("read graph versions", "id uuid", "SELECT l.job_id, l.graph, j.tenant, j.pipeline, j.trace, "+noParent+" FROM {rows} JOIN job_live l ON l.job_id = {id} JOIN jobs j ON j.id = {id}")
	deleteJobLive  = driver.New("delete job_live", "id uuid", "DELETE FROM job_live {using} WHERE job_id = {id}")
	deleteHolds    = driver.New("delete holds", "id uuid", "DELETE FROM job_holds {using} WHERE job_id = {id}")
	insertJobFinal = driver.Insert("insert job_final", "job_final", "job_id uuid, run int, tenant int, status smallint, events bigint, total int, succeeded int, failed int, cancelled int, skipped int, finished_at bigint, handled int")
	insertFinal    = driver.Insert("insert task_final", "task_final", "task_id uuid, generation int, job_id uuid, tenant int, status smallint, attempt int, losses int, lease_version int, session_id bigint, ready_at bigint, queued_at bigint, claimed_at bigint, finished_at bigint, waits bytea, output bytea, error bytea")
	insertFinalHow = driver.Insert("insert task_final that tells how", "task_final", "task_id uuid, generation int, job_id uuid, tenant int, status smallint, attempt int, losses int, lease_version int, session_id bigint, ready_at bigint, queued_at bigint, claimed_at bigint, finished_at bigint, waits bytea, output bytea, error bytea, how smallint")
	insertAttempts = driver.Insert("insert attempts", "attempts", "task_id uuid, lease_version int, generation int, n int, job_id uuid, session_id bigint, ready_at bigint, queued_at bigint, claimed_at bigint, ended_at bigint, outcome text, status smallint, error bytea")
	insertEvents   = driver.Insert("insert events", "events", "job_id uuid, seq bigint, type text, at bigint, task_id uuid, data bytea")
	// A deleted job's timer stays until it is due; the id may be used again before.
	insertTimers = driver.New("insert job timers", "at bigint, job_id uuid", "INSERT INTO job_timers (at, job_id) SELECT {at}, {job_id} {from} WHERE true ON CONFLICT DO NOTHING")
	insertInputs = driver.Insert("insert task_inputs", "task_inputs", "task_id uuid, generation int, input bytea")
)

// InsertJobs stores new jobs.
func InsertJobs(rows []JobRow) Stmt {
	type r = JobRow
	return Stmt{Text: insertJobs, Cols: []any{
		col(rows, func(x *r) [16]byte { return [16]byte(x.ID) }), col(rows, func(x *r) int32 { return x.Tenant }), col(rows, func(x *r) int32 { return x.Pipeline }),
		col(rows, func(x *r) string { return x.Kind }), col(rows, func(x *r) int16 { return int16(x.Class) }), col(rows, func(x *r) string { return x.Creator }),
		col(rows, func(x *r) []byte { return some(x.Labels) }), col(rows, func(x *r) []byte { return some(x.Input) }), col(rows, func(x *r) string { return x.Trace }),
		col(rows, func(x *r) int64 { return int64(x.DueAt) }), col(rows, func(x *r) int64 { return int64(x.ExpiresAt) }), col(rows, func(x *r) int64 { return int64(x.CreatedAt) }),
		col(rows, func(x *r) []byte { return some(x.Fingerprint) }),
	}}
}

// some makes nil an empty value: no column of the schema is NULL.
func some(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// InsertTasks stores new tasks.
func InsertTasks(rows []TaskRow) Stmt {
	type r = TaskRow
	return Stmt{Text: insertTasks, Cols: []any{
		col(rows, func(x *r) [16]byte { return [16]byte(x.ID) }), col(rows, func(x *r) [16]byte { return [16]byte(x.Job) }), col(rows, func(x *r) int32 { return x.Tenant }),
		col(rows, func(x *r) int32 { return x.Node }), col(rows, func(x *r) int32 { return x.Index }), col(rows, func(x *r) int32 { return x.Pipeline }),
		col(rows, func(x *r) int32 { return x.Queue }), col(rows, func(x *r) int32 { return x.Lane }), col(rows, func(x *r) int16 { return int16(x.Class) }),
		col(rows, func(x *r) string { return x.Kind }), col(rows, func(x *r) []byte { return some(x.Input) }), col(rows, func(x *r) []byte { return some(x.Policy) }),
		col(rows, func(x *r) string { return x.Trace }), col(rows, func(x *r) int64 { return int64(x.CreatedAt) }),
	}}
}

func jobLiveCols(rows []JobLive) []any {
	type r = JobLive
	return []any{
		col(rows, func(x *r) [16]byte { return [16]byte(x.Job) }), col(rows, func(x *r) int32 { return x.Tenant }), col(rows, func(x *r) int32 { return x.Run }),
		col(rows, func(x *r) int32 { return x.Graph }), col(rows, func(x *r) int64 { return x.Events }), col(rows, func(x *r) int32 { return x.Total }),
		col(rows, func(x *r) int32 { return x.Open }), col(rows, func(x *r) int32 { return x.Succeeded }), col(rows, func(x *r) int32 { return x.Failed }),
		col(rows, func(x *r) int32 { return x.Cancelled }), col(rows, func(x *r) int32 { return x.Skipped }),
		col(rows, func(x *r) int16 { return flag(x.Paused) }), col(rows, func(x *r) int16 { return int16(x.Cancelling) }),
		col(rows, func(x *r) int32 { return x.Handled }), col(rows, func(x *r) int16 { return x.Phase }), col(rows, func(x *r) int64 { return x.Undone }),
	}
}

func flag(b bool) int16 {
	if b {
		return 1
	}
	return 0
}

// InsertJobLive stores the live rows of jobs.
func InsertJobLive(rows []JobLive) Stmt { return Stmt{Text: insertJobLive, Cols: jobLiveCols(rows)} }

// UpdateJobLive stores rows read with LockJobLive.
func UpdateJobLive(rows []JobLive) Stmt { return Stmt{Text: updateJobLive, Cols: jobLiveCols(rows)} }

// LockJobLive locks and reads the live rows of jobs; jobs must be sorted.
func LockJobLive(jobs []drover.JobID, rows *[]JobLive) Stmt {
	return Stmt{Text: lockJobLive, Cols: []any{jobIDs(jobs)}, Scan: into(rows, scanJobLive)}
}

func scanJobLive(r driver.Row) (j JobLive, err error) {
	var paused, cancelling int16
	err = r.Scan((*[16]byte)(&j.Job), &j.Tenant, &j.Run, &j.Graph, &j.Events, &j.Total, &j.Open, &j.Succeeded, &j.Failed, &j.Cancelled, &j.Skipped, &paused, &cancelling, &j.Handled, &j.Phase, &j.Undone)
	j.Paused, j.Cancelling = paused != 0, Cause(cancelling)
	return j, err
}

func jobIDs(jobs []drover.JobID) [][16]byte {
	return col(jobs, func(id *drover.JobID) [16]byte { return [16]byte(*id) })
}

// ReadGraphs reads graph versions without a lock, and with them the heads.
func ReadGraphs(jobs []drover.JobID, graphs map[drover.JobID]int32, heads map[drover.JobID]JobHead) Stmt {
	return Stmt{Text: readJobGraph, Cols: []any{jobIDs(jobs)}, Scan: func(r driver.Row) error {
		var h JobHead
		var g int32
		if err := r.Scan((*[16]byte)(&h.Job), &g, &h.Tenant, &h.Pipeline, &h.Trace, (*[16]byte)(&h.Parent)); err != nil {
			return err
		}
		graphs[h.Job], heads[h.Job] = g, h
		return nil
	}}
}

// DeleteJobLive removes the live rows and holds of jobs that are final.
func DeleteJobLive(jobs []drover.JobID) []Stmt {
	return []Stmt{{Text: deleteHolds, Cols: []any{jobIDs(jobs)}}, {Text: deleteJobLive, Cols: []any{jobIDs(jobs)}}}
}

// InsertJobFinal stores the ends of runs.
func InsertJobFinal(rows []JobFinal) Stmt {
	type r = JobFinal
	return Stmt{Text: insertJobFinal, Cols: []any{
		col(rows, func(x *r) [16]byte { return [16]byte(x.Job) }), col(rows, func(x *r) int32 { return x.Run }), col(rows, func(x *r) int32 { return x.Tenant }),
		col(rows, func(x *r) int16 { return int16(x.Status) }), col(rows, func(x *r) int64 { return x.Events }), col(rows, func(x *r) int32 { return x.Total }),
		col(rows, func(x *r) int32 { return x.Succeeded }), col(rows, func(x *r) int32 { return x.Failed }), col(rows, func(x *r) int32 { return x.Cancelled }),
		col(rows, func(x *r) int32 { return x.Skipped }), col(rows, func(x *r) int64 { return int64(x.FinishedAt) }),
		col(rows, func(x *r) int32 { return x.Handled }),
	}}
}

// InsertFinal stores finished tasks.
func InsertFinal(rows []FinalRow) []Stmt {
	plain := those(rows, func(r *FinalRow) bool { return r.Task.How == lifecycle.HowPlain })
	how := those(rows, func(r *FinalRow) bool { return r.Task.How != lifecycle.HowPlain })
	return []Stmt{
		{Text: insertFinal, Cols: finalColumns(plain)},
		{Text: insertFinalHow, Cols: append(finalColumns(how), col(how, func(x *FinalRow) int16 { return int16(x.Task.How) }))},
	}
}

func finalColumns(rows []FinalRow) []any {
	type r = FinalRow
	return []any{
		col(rows, func(x *r) [16]byte { return [16]byte(x.Task.ID) }), col(rows, func(x *r) int32 { return x.Task.Generation }), col(rows, func(x *r) [16]byte { return [16]byte(x.Task.Job) }),
		col(rows, func(x *r) int32 { return x.Tenant }), col(rows, func(x *r) int16 { return int16(x.Task.Status) }), col(rows, func(x *r) int32 { return x.Task.Attempt }),
		col(rows, func(x *r) int32 { return x.Task.Losses }), col(rows, func(x *r) int32 { return x.Task.LeaseVersion }), col(rows, func(x *r) int64 { return x.Task.Session }),
		col(rows, func(x *r) int64 { return int64(x.Task.ReadyAt) }), col(rows, func(x *r) int64 { return int64(x.Task.QueuedAt) }), col(rows, func(x *r) int64 { return int64(x.Task.ClaimedAt) }),
		col(rows, func(x *r) int64 { return int64(x.At) }), col(rows, func(x *r) []byte { return x.Task.Waits.Encode() }),
		col(rows, func(x *r) []byte { return some(x.Output) }), col(rows, func(x *r) []byte { return some(x.Error) }),
	}
}

// InsertAttempts stores ended attempts.
func InsertAttempts(rows []AttemptRow) Stmt {
	type r = AttemptRow
	return Stmt{Text: insertAttempts, Cols: []any{
		col(rows, func(x *r) [16]byte { return [16]byte(x.Task.ID) }), col(rows, func(x *r) int32 { return x.Task.LeaseVersion }), col(rows, func(x *r) int32 { return x.Task.Generation }),
		col(rows, func(x *r) int32 { return x.Task.Attempt }), col(rows, func(x *r) [16]byte { return [16]byte(x.Task.Job) }), col(rows, func(x *r) int64 { return x.Task.Session }),
		col(rows, func(x *r) int64 { return int64(x.Task.ReadyAt) }), col(rows, func(x *r) int64 { return int64(x.Task.QueuedAt) }), col(rows, func(x *r) int64 { return int64(x.Task.ClaimedAt) }),
		col(rows, func(x *r) int64 { return int64(x.At) }), col(rows, func(x *r) string { return x.Outcome }), col(rows, func(x *r) int16 { return int16(x.Status) }),
		col(rows, func(x *r) []byte { return some(x.Error) }),
	}}
}

// InsertEvents stores events.
func InsertEvents(rows []EventRow) Stmt {
	type r = EventRow
	return Stmt{Text: insertEvents, Cols: []any{
		col(rows, func(x *r) [16]byte { return [16]byte(x.Job) }), col(rows, func(x *r) int64 { return x.Seq }), col(rows, func(x *r) string { return string(x.Type) }),
		col(rows, func(x *r) int64 { return int64(x.At) }), col(rows, func(x *r) [16]byte { return [16]byte(x.Task) }), col(rows, func(x *r) []byte { return some(x.Data) }),
	}}
}

// InsertJobTimers stores when jobs expire.
func InsertJobTimers(rows []JobRow) Stmt {
	return Stmt{Text: insertTimers, Cols: []any{col(rows, func(x *JobRow) int64 { return int64(x.ExpiresAt) }), col(rows, func(x *JobRow) [16]byte { return [16]byte(x.ID) })}}
}

// InputRow is a row of task_inputs: what a task is given from a generation on.
type InputRow struct {
	LetterKey
	Input []byte
}

// InsertTaskInputs stores edited inputs.
func InsertTaskInputs(rows []InputRow) Stmt {
	type r = InputRow
	return Stmt{Text: insertInputs, Cols: []any{col(rows, func(x *r) [16]byte { return [16]byte(x.Task) }), col(rows, func(x *r) int32 { return x.Generation }), col(rows, func(x *r) []byte { return some(x.Input) })}}
}
