package store

import (
	"context"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store/driver"
)

// Claim says what a session takes.
type Claim struct {
	Queue   int32
	Max     int
	Session int64
	Acquire int64
	// AfterClass: only classes above this number; −1 takes the first class present.
	AfterClass int16
	// Cursor is the lane the last claim ended at: lanes are served in rotation from there.
	Cursor int32
	// Lanes, when not nil, are the only lanes to take from (a worker of one tenant).
	Lanes []int32
	Now   instant
}

// Claimed is a claimed task and what its worker must know.
type Claimed struct {
	lifecycle.Task
	Tenant   int32
	Pipeline int32
	Kind     string
	Input    []byte
	Policy   []byte
	Trace    string
	// Held says that the job was held while the claim ran. The claim did not see
	// it, and the task must be given back instead of handed out.
	Held bool
}

// maxLanes bounds the lanes one claim serves.
const maxLanes = 64

// ClaimTasks moves up to Max tasks of one class from task_queued to
// task_running, rotating over its lanes, and returns them. It steps over jobs
// that are held and rows that another claim has locked. Fewer than Max does not
// mean that the queue is empty; none of a class means that there is none to take.
func ClaimTasks(ctx context.Context, tx Tx, d driver.Dialect, c Claim) ([]Claimed, error) {
	if d == driver.SQLite {
		return claimSQLite(ctx, tx, c)
	}
	return claimPostgres(ctx, tx, c)
}

// claimedCols follow runningCols in a claim's answer.
const claimedCols = "tenant, pipeline, kind, input, policy, trace"

func scanClaimed(r driver.Row) (c Claimed, err error) {
	c.Status = drover.Running
	err = scanLive(r, &c.Task, (*int64)(&c.ReadyAt), (*int64)(&c.QueuedAt), (*int64)(&c.ClaimedAt), &c.Session, &c.Acquire,
		&c.Tenant, &c.Pipeline, &c.Kind, &c.Input, &c.Policy, &c.Trace)
	c.Since = c.ClaimedAt
	return c, err
}

var queuedClasses = driver.New("classes of a queue", "",
	"WITH RECURSIVE c(class) AS (SELECT (SELECT q.class FROM task_queued q WHERE q.queue = $1 AND q.class > $2 ORDER BY q.queue, q.class LIMIT 1) "+
		"UNION ALL SELECT (SELECT q.class FROM task_queued q WHERE q.queue = $1 AND q.class > c.class ORDER BY q.queue, q.class LIMIT 1) FROM c WHERE c.class IS NOT NULL) "+
		"SELECT class FROM c WHERE class IS NOT NULL")

// QueuedClasses returns the classes above after that have rows in the queue, first ones first.
func QueuedClasses(ctx context.Context, tx Tx, queue int32, after int16) (classes []int16, err error) {
	err = tx.Pipe(ctx, Stmt{Text: queuedClasses, Args: []any{queue, after}, Scan: into(&classes, func(r driver.Row) (c int16, err error) { err = r.Scan(&c); return c, err })})
	return classes, err
}

// What a claimed task's input is filled in from.
var (
	selectOutputs = driver.New("read a node's outputs", "",
		"SELECT t.idx, f.status, f.output FROM tasks t JOIN task_final f ON f.task_id = t.id WHERE t.job_id = $1 AND t.node = $2 AND ($3 < -1 OR t.idx = $3) AND t.idx >= 0 ORDER BY t.idx, f.generation")
	countElements = driver.New("count a map's elements", "", "SELECT count(*) FROM tasks WHERE job_id = $1 AND node = $2 AND idx >= 0")
	selectInput   = driver.New("read a job's input", "", "SELECT input FROM jobs WHERE id = $1")
	selectEdited  = driver.New("read an edited input", "", "SELECT input FROM task_inputs WHERE task_id = $1 AND generation <= $2 ORDER BY generation DESC LIMIT 1")
)

// Output is the result of a task of a node.
type Output struct {
	Index int32
	Data  []byte
}

// ReadOutputs reads what succeeded of a node, in order; index −2 is all of it.
// Of several generations the last counts.
func ReadOutputs(ctx context.Context, tx Tx, job drover.JobID, node, index int32) (list []Output, err error) {
	err = tx.Pipe(ctx, Stmt{Text: selectOutputs, Args: []any{[16]byte(job), node, index}, Scan: func(r driver.Row) error {
		var o Output
		var status int16
		if err := r.Scan(&o.Index, &status, &o.Data); err != nil {
			return err
		}
		if n := len(list); n > 0 && list[n-1].Index == o.Index {
			list = list[:n-1]
		}
		if drover.Status(status) == drover.Succeeded {
			list = append(list, o)
		}
		return nil
	}})
	return list, err
}

// CountElements returns how many elements a map has.
func CountElements(ctx context.Context, tx Tx, job drover.JobID, node int32) (int, error) {
	n, _, err := one[int64](ctx, tx, countElements, [16]byte(job), node)
	return int(n), err
}

// JobInput reads the input of a pipeline job.
func JobInput(ctx context.Context, tx Tx, job drover.JobID) ([]byte, error) {
	b, _, err := one[[]byte](ctx, tx, selectInput, [16]byte(job))
	return b, err
}

// EditedInput reads the input a replay gave the task; nil when none did.
func EditedInput(ctx context.Context, tx Tx, task drover.TaskID, generation int32) ([]byte, error) {
	b, ok, err := one[[]byte](ctx, tx, selectEdited, [16]byte(task), generation)
	if !ok {
		return nil, err
	}
	return b, err
}
