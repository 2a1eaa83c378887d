package store

import (
	"strconv"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store/driver"
)

// GivenRow is a row of task_items.
type GivenRow struct {
	Generation
	Item []byte
}

// GoneRow is an element that made room when its map was to expand again.
type GoneRow struct {
	lifecycle.Task // as its last generation ended
	Item           []byte
	Edited         bool // somebody gave it another input once
}

var (
	insertGiven    = driver.Insert("insert task_items", "task_items", "task_id uuid, generation int, item bytea")
	insertReusable = driver.Insert("insert task_reusable", "task_reusable", "task_id uuid, generation int")
	readReusable   = driver.New("read which generations may be reused", "task_id uuid, generation int", "SELECT a.task_id, a.generation FROM {rows} JOIN task_reusable a ON a.task_id = {task_id} AND a.generation = {generation}")
	goneElements   = driver.New("read elements that made room", "job_id uuid, node int",
		"SELECT t.id, t.job_id, t.node, t.idx, t.queue, "+homeLane+", t.class, f.generation, f.lease_version, f.status, f.how, "+newestItem+", CASE WHEN EXISTS (SELECT 1 FROM task_inputs n WHERE n.task_id = t.id) THEN 1 ELSE 0 END "+
			"FROM {rows} JOIN tasks t ON t.job_id = {job_id} AND t.node = {node} AND t.idx >= 0 JOIN task_final f ON f.task_id = t.id AND f.how = "+strconv.Itoa(int(lifecycle.HowGone))+" AND "+notLast)
	placedRows = driver.New("read tasks at places", "job_id uuid, node int, idx int",
		"SELECT "+taskCols+" FROM {rows} JOIN tasks t ON t.job_id = {job_id} AND t.node = {node} AND t.idx = {idx}")
	reopenings = driver.New("what has opened generations", "", "SELECT e.seq, e.type, e.at, e.task_id, e.data FROM events e WHERE e.job_id = $1 AND e.type IN ('task.replayed', 'task.marked', 'job.rerun') ORDER BY e.seq")
)

// InsertGiven stores what maps that expanded again gave their elements.
func InsertGiven(rows []GivenRow) Stmt {
	type r = GivenRow
	return Stmt{Text: insertGiven, Cols: []any{col(rows, func(x *r) [16]byte { return [16]byte(x.Task) }), col(rows, func(x *r) int32 { return x.N }), col(rows, func(x *r) []byte { return some(x.Item) })}}
}

// InsertReusable notes which generations may end with a result that is there.
func InsertReusable(rows []Generation) Stmt {
	return Stmt{Text: insertReusable, Cols: generations(rows)}
}

// ReadReusable reads which of the generations may end with a result that is there.
func ReadReusable(rows []Generation, reusable map[Generation]bool) Stmt {
	return Stmt{Text: readReusable, Cols: generations(rows), Scan: func(r driver.Row) error {
		var g Generation
		err := r.Scan((*[16]byte)(&g.Task), &g.N)
		reusable[g] = true
		return err
	}}
}

// GoneElements reads the elements of whole nodes that made room and have not come back.
func GoneElements(nodes []Element, rows *[]GoneRow) Stmt {
	return Stmt{Text: goneElements, Cols: elements(nodes), Scan: into(rows, func(r driver.Row) (g GoneRow, err error) {
		var status, edited int16
		err = r.Scan((*[16]byte)(&g.ID), (*[16]byte)(&g.Job), &g.Node, &g.Index, &g.Queue, &g.Lane, (*int16)(&g.Class), &g.Generation, &g.LeaseVersion, &status, (*int16)(&g.How), &g.Item, &edited)
		g.Status, g.Edited = drover.Status(status), edited != 0
		return g, err
	})}
}

// PlacedRows reads the immutable rows of the tasks at places.
func PlacedRows(keys []Key, rows *[]TaskRow) Stmt {
	return Stmt{Text: placedRows, Cols: keyCols(keys), Scan: into(rows, scanTask)}
}

// Reopenings reads the events of a job that opened generations of its tasks.
func Reopenings(job drover.JobID, rows *[]EventRow) Stmt {
	return Stmt{Text: reopenings, Args: []any{[16]byte(job)}, Scan: into(rows, func(r driver.Row) (e EventRow, err error) {
		var typ string
		err = r.Scan(&e.Seq, &typ, (*int64)(&e.At), (*[16]byte)(&e.Task), &e.Data)
		e.Job, e.Type = job, drover.EventType(typ)
		return e, err
	})}
}

// One row, wherever it stands.
var (
	takeOneRunning = driver.New("take one running", "", "DELETE FROM task_running WHERE task_id = $1 RETURNING "+runningCols)
	takeOnePending = takeOne("task_pending", pendingCols)
	takeOneReady   = takeOne("task_ready", readyCols)
	takeOneDelayed = takeOne("task_delayed", delayedCols)
	takeOneQueued  = takeOne("task_queued", queuedCols)
)

func takeOne(table, cols string) *driver.Text {
	return driver.New("take one of "+table, "", "DELETE FROM "+table+" WHERE job_id = $1 AND node = $2 AND idx = $3 RETURNING "+cols)
}

// TakeOneRunning removes the row of a task that runs.
func TakeOneRunning(id drover.TaskID, taken *[]lifecycle.Task) Stmt {
	return Stmt{Text: takeOneRunning, Args: []any{[16]byte(id)}, Scan: into(taken, scanRunning)}
}

// TakeOne removes the row of a task that is live and does not run, from where one of its
// status stands.
func TakeOne(t *lifecycle.Task, taken *[]lifecycle.Task) []Stmt {
	at := []any{[16]byte(t.Job), t.Node, t.Index}
	delayed := Stmt{Text: takeOneDelayed, Args: at, Scan: into(taken, scanDelayed)}
	switch t.Status {
	case drover.Pending: // for its parents, or its start time
		return []Stmt{{Text: takeOnePending, Args: at, Scan: into(taken, scanPending)}, delayed}
	case drover.Ready:
		return []Stmt{{Text: takeOneReady, Args: at, Scan: into(taken, scanReady)}}
	case drover.Queued:
		return []Stmt{{Text: takeOneQueued, Args: at, Scan: into(taken, scanQueued)}}
	}
	return []Stmt{delayed}
}
