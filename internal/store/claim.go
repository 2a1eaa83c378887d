package store

import (
	"bytes"
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
	// Floors, when there are some, are the only lanes to take from, of class Class,
	// each from a place on. Only PostgreSQL looks at them.
	Floors []Floor
	Class  drover.Class
	// Classes, when set, receives the classes that have rows in the queue after the
	// claim, where that came up short.
	Classes *[]int16
	// Found, when set, is raised to how many lanes the class had, of which some may
	// not have had their turn. Only PostgreSQL tells, of claims without floors.
	Found *int64
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

// MaxLanes bounds the lanes one claim serves.
const MaxLanes = 64

// Floor is a place in a lane of a queue's class.
type Floor struct {
	Lane int32
	Due  instant
	Task drover.TaskID
}

// Before reports whether f is before g in a lane.
func (f Floor) Before(g Floor) bool {
	if f.Due != g.Due {
		return f.Due < g.Due
	}
	return bytes.Compare(f.Task[:], g.Task[:]) < 0
}

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

func scanClaimed(r driver.Row, found *int64) (Claimed, error) {
	return scanLive(r, drover.Running, func(x *taking, to []any) []any {
		return append(to, (*int64)(&x.ReadyAt), (*int64)(&x.QueuedAt), (*int64)(&x.ClaimedAt), &x.Session, &x.Acquire,
			&x.Tenant, &x.Pipeline, &x.Kind, &x.Input, &x.Policy, &x.Trace, found)
	}, func(x *taking) Claimed {
		x.Since = x.ClaimedAt
		return x.Claimed
	})
}

var queuedClasses = driver.New("classes of a queue", "",
	"WITH RECURSIVE c(class) AS (SELECT (SELECT q.class FROM task_queued q WHERE q.queue = $1 AND q.class > $2 ORDER BY q.queue, q.class LIMIT 1) "+
		"UNION ALL SELECT (SELECT q.class FROM task_queued q WHERE q.queue = $1 AND q.class > c.class ORDER BY q.queue, q.class LIMIT 1) FROM c WHERE c.class IS NOT NULL) "+
		"SELECT class FROM c WHERE class IS NOT NULL")

// queuedClassesOf reads the classes above after that have rows in the queue, first ones first.
func queuedClassesOf(queue int32, after int16, classes *[]int16) Stmt {
	return Stmt{Text: queuedClasses, Args: []any{queue, after}, Scan: into(classes, func(r driver.Row) (c int16, err error) { err = r.Scan(&c); return c, err })}
}

// What claimed tasks' inputs are filled in from.
var (
	elementOutputs = driver.New("read elements' outputs", "job_id uuid, node int, idx int",
		"SELECT t.job_id, t.node, t.idx, f.generation, f.status, f.how, f.output FROM {rows} JOIN tasks t ON t.job_id = {job_id} AND t.node = {node} AND t.idx = {idx} JOIN task_final f ON f.task_id = t.id")
	nodeOutputs = driver.New("read nodes' outputs", "job_id uuid, node int",
		"SELECT t.job_id, t.node, t.idx, f.generation, f.status, f.how, f.output FROM {rows} JOIN tasks t ON t.job_id = {job_id} AND t.node = {node} AND t.idx >= 0 JOIN task_final f ON f.task_id = t.id")
	countElements = driver.New("count maps' elements", "job_id uuid, node int",
		"SELECT t.job_id, t.node, count(*) FROM {rows} JOIN tasks t ON t.job_id = {job_id} AND t.node = {node} AND t.idx >= 0 GROUP BY t.job_id, t.node")
	selectInputs = driver.New("read jobs' inputs", "id uuid", "SELECT j.id, j.input FROM {rows} JOIN jobs j ON j.id = {id}")
	selectEdited = driver.New("read edited inputs", "task_id uuid, generation int",
		"SELECT n.task_id, n.generation, n.input FROM {rows} JOIN task_inputs n ON n.task_id = {task_id} AND n.generation <= {generation}")
)

// Element is a place in a job's graph; of a whole node, Index is not looked at.
type Element struct {
	Job         drover.JobID
	Node, Index int32
}

// Output is how a task of a node ended in one generation.
type Output struct {
	Element
	Generation int32
	Status     drover.Status
	How        lifecycle.How
	Data       []byte
}

func elements(rows []Element) []any {
	return []any{col(rows, func(p *Element) [16]byte { return [16]byte(p.Job) }), col(rows, func(p *Element) int32 { return p.Node })}
}

func scanOutput(r driver.Row) (o Output, err error) {
	var status int16
	err = r.Scan((*[16]byte)(&o.Job), &o.Node, &o.Index, &o.Generation, &status, (*int16)(&o.How), &o.Data)
	o.Status = drover.Status(status)
	return o, err
}

// ElementOutputs reads how single tasks ended, every generation of them.
func ElementOutputs(rows []Element, list *[]Output) Stmt {
	return Stmt{Text: elementOutputs, Cols: append(elements(rows), col(rows, func(p *Element) int32 { return p.Index })), Scan: into(list, scanOutput)}
}

// NodeOutputs reads how the tasks of whole nodes ended, every generation of them.
func NodeOutputs(rows []Element, list *[]Output) Stmt {
	return Stmt{Text: nodeOutputs, Cols: elements(rows), Scan: into(list, scanOutput)}
}

// CountElements reads how many elements maps have; one that has none is left out.
func CountElements(rows []Element, counts map[Element]int) Stmt {
	return Stmt{Text: countElements, Cols: elements(rows), Scan: func(r driver.Row) error {
		var p Element
		var n int64
		err := r.Scan((*[16]byte)(&p.Job), &p.Node, &n)
		counts[p] = int(n)
		return err
	}}
}

// JobInputs reads the inputs of pipeline jobs.
func JobInputs(jobs []drover.JobID, inputs map[drover.JobID][]byte) Stmt {
	return Stmt{Text: selectInputs, Cols: []any{jobIDs(jobs)}, Scan: func(r driver.Row) error {
		var id drover.JobID
		var b []byte
		err := r.Scan((*[16]byte)(&id), &b)
		inputs[id] = b
		return err
	}}
}

// Generation names one generation of a task.
type Generation struct {
	Task drover.TaskID
	N    int32
}

// EditedInputs reads the inputs that replays gave tasks; of each task the last
// one up to the generation. A task that was given none is left out.
func EditedInputs(rows []Generation, inputs map[drover.TaskID][]byte) Stmt {
	newest := map[drover.TaskID]int32{}
	return Stmt{Text: selectEdited, Cols: []any{col(rows, func(g *Generation) [16]byte { return [16]byte(g.Task) }), col(rows, func(g *Generation) int32 { return g.N })}, Scan: func(r driver.Row) error {
		var id drover.TaskID
		var n int32
		var b []byte
		err := r.Scan((*[16]byte)(&id), &n, &b)
		if n > newest[id] {
			newest[id], inputs[id] = n, b
			if len(b) == 0 { // its map has expanded again since
				delete(inputs, id)
			}
		}
		return err
	}}
}
