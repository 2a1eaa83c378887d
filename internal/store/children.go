package store

import (
	"fmt"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store/driver"
)

// Want is what a job asks of the job that one of its tasks runs; it is stored, never
// renumber.
type Want int16

// The wants.
const (
	WantNothing Want = 0
	WantPause   Want = 1
	WantResume  Want = 2
	WantCancel  Want = 3
	WasStopped  Want = 4 // the cancel has been passed on
)

// ChildRow is a row of job_children.
type ChildRow struct {
	Task       drover.TaskID
	Generation int32
	Job        drover.JobID // of the task
	Child      drover.JobID
	Abandon    bool
	Want       Want
	Depth      int32
	Error      []byte
}

// noParent is what stands for the parent of a job that nobody runs.
const noParent = "coalesce(j.parent_task, " + wholeJob + ")"

const childCols = "c.task_id, c.generation, c.job_id, c.child, c.abandon, c.want, c.depth, c.error"

var (
	insertChildJobs = driver.Insert("insert jobs of tasks", "jobs", "id uuid, tenant int, pipeline int, kind text, class smallint, creator text, labels bytea, input bytea, trace text, due_at bigint, expires_at bigint, created_at bigint, fingerprint bytea, parent_task uuid")
	insertChildren  = driver.Insert("insert children", "job_children", "task_id uuid, generation int, job_id uuid, child uuid, abandon smallint, want smallint, depth int, error bytea")
	readChildren    = driver.New("read children", "task_id uuid, generation int", "SELECT "+childCols+" FROM {rows} JOIN job_children c ON c.task_id = {task_id} AND c.generation = {generation}")
	readParents     = driver.New("read parents of jobs", "id uuid", "SELECT "+childCols+" FROM {rows} JOIN job_children c ON c.child = {id}")
	childrenOf      = driver.New("read children of a job", "", "SELECT "+childCols+" FROM job_children c WHERE c.job_id = $1 AND c.child <> "+wholeJob+" ORDER BY c.child LIMIT $2")
	askChildren     = driver.New("ask something of children", "", fmt.Sprintf("UPDATE job_children SET want = $2 WHERE job_id = $1 AND abandon = 0 AND want < %d AND want <> $2 AND EXISTS (SELECT 1 FROM job_live l WHERE l.job_id = job_children.child LIMIT 1 OFFSET 0)", WantCancel))
	stopChild       = driver.New("ask a child to stop", "", fmt.Sprintf("UPDATE job_children SET want = %d WHERE task_id = $1 AND generation = $2 AND abandon = 0 AND want < %[1]d AND child <> ", WantCancel)+wholeJob)
	wanted          = driver.New("read what is asked of children", "", fmt.Sprintf("SELECT "+childCols+" FROM job_children c WHERE c.want BETWEEN %d AND %d ORDER BY c.task_id, c.generation LIMIT $1", WantPause, WantCancel))
	passedOn        = driver.New("note what was passed on to a child", "", "UPDATE job_children SET want = $4 WHERE task_id = $1 AND generation = $2 AND want = $3")
	takeWaiting     = driver.New("take waiting", "job_id uuid, node int, idx int, generation int",
		fmt.Sprintf("DELETE FROM task_delayed {using} WHERE task_delayed.job_id = {job_id} AND task_delayed.node = {node} AND task_delayed.idx = {idx} AND task_delayed.generation = {generation} AND task_delayed.status = %d RETURNING %s", drover.Waiting, qualify("task_delayed", delayedCols)))
	wakeWaiting = driver.New("wake tasks that have no job yet", "",
		fmt.Sprintf("UPDATE task_delayed SET due_at = $2 WHERE job_id = $1 AND status = %d AND due_at > $2 AND NOT EXISTS (SELECT 1 FROM job_children c WHERE c.task_id = task_delayed.task_id AND c.generation = task_delayed.generation)", drover.Waiting))
	readWaiting = driver.New("read waiting", "job_id uuid, node int, idx int",
		fmt.Sprintf("SELECT %s FROM {rows} JOIN task_delayed q ON q.job_id = {job_id} AND q.node = {node} AND q.idx = {idx} AND q.status = %d", qualify("q", delayedCols), drover.Waiting))
)

func scanChild(r driver.Row) (c ChildRow, err error) {
	var abandon int16
	err = r.Scan((*[16]byte)(&c.Task), &c.Generation, (*[16]byte)(&c.Job), (*[16]byte)(&c.Child), &abandon, (*int16)(&c.Want), &c.Depth, &c.Error)
	c.Abandon = abandon != 0
	return c, err
}

// InsertChildren stores the jobs of tasks.
func InsertChildren(rows []ChildRow) Stmt {
	return Stmt{Text: insertChildren, Cols: []any{
		col(rows, func(c *ChildRow) [16]byte { return [16]byte(c.Task) }), col(rows, func(c *ChildRow) int32 { return c.Generation }),
		col(rows, func(c *ChildRow) [16]byte { return [16]byte(c.Job) }), col(rows, func(c *ChildRow) [16]byte { return [16]byte(c.Child) }),
		col(rows, func(c *ChildRow) int16 { return flag(c.Abandon) }), col(rows, func(c *ChildRow) int16 { return int16(c.Want) }),
		col(rows, func(c *ChildRow) int32 { return c.Depth }), col(rows, func(c *ChildRow) []byte { return c.Error }),
	}}
}

// InsertChildJobs stores new jobs that tasks run.
func InsertChildJobs(rows []JobRow) Stmt {
	s := InsertJobs(rows)
	return Stmt{Text: insertChildJobs, Cols: append(s.Cols, col(rows, func(x *JobRow) [16]byte { return [16]byte(x.Parent) }))}
}

// ReadChildren reads the jobs that generations of tasks run.
func ReadChildren(of []Generation, rows map[Generation]ChildRow) Stmt {
	return Stmt{Text: readChildren, Cols: []any{col(of, func(g *Generation) [16]byte { return [16]byte(g.Task) }), col(of, func(g *Generation) int32 { return g.N })},
		Scan: func(r driver.Row) error {
			c, err := scanChild(r)
			rows[Generation{Task: c.Task, N: c.Generation}] = c
			return err
		}}
}

// ReadParents reads, of jobs that tasks run, which.
func ReadParents(jobs []drover.JobID, rows map[drover.JobID]ChildRow) Stmt {
	return Stmt{Text: readParents, Cols: []any{jobIDs(jobs)}, Scan: func(r driver.Row) error {
		c, err := scanChild(r)
		rows[c.Child] = c
		return err
	}}
}

// ChildrenOf reads up to n of the jobs that the tasks of a job run; where none was made,
// there is nothing to read.
func ChildrenOf(job drover.JobID, n int, rows *[]ChildRow) Stmt {
	return Stmt{Text: childrenOf, Args: []any{[16]byte(job), int64(n)}, Scan: into(rows, scanChild)}
}

// AskChildren asks something of the jobs that the tasks of a job run and that live, those
// that are abandoned or were stopped excepted.
func AskChildren(job drover.JobID, w Want, asked *int64) Stmt {
	return Stmt{Text: askChildren, Args: []any{[16]byte(job), int16(w)}, Affected: asked}
}

// StopChild asks the job that a generation of a task runs to stop, unless it is abandoned.
func StopChild(task drover.TaskID, generation int32, asked *int64) Stmt {
	return Stmt{Text: stopChild, Args: []any{[16]byte(task), generation}, Affected: asked}
}

// Wanted reads up to n jobs of which something is asked.
func Wanted(n int, rows *[]ChildRow) Stmt {
	return Stmt{Text: wanted, Args: []any{int64(n)}, Scan: into(rows, scanChild)}
}

// PassedOn notes that what was asked of a child has been passed on; noted is 0 when
// that is not asked any more.
func PassedOn(c ChildRow, now Want, noted *int64) Stmt {
	return Stmt{Text: passedOn, Args: []any{[16]byte(c.Task), c.Generation, int16(c.Want), int16(now)}, Affected: noted}
}

// WakeWaiting has the tasks of a job looked at that wait for jobs which have not been
// made.
func WakeWaiting(job drover.JobID, now instant) Stmt {
	return Stmt{Text: wakeWaiting, Args: []any{[16]byte(job), int64(now)}}
}

// TakeWaiting removes the rows of WAITING tasks in their generation. Sorted by job.
func TakeWaiting(list []lifecycle.Task, rows *[]lifecycle.Task) Stmt {
	return Stmt{Text: takeWaiting, Cols: append(keyCols(keysOf(list)), col(list, func(t *lifecycle.Task) int32 { return t.Generation })), Scan: into(rows, scanDelayed)}
}

// ReadWaiting reads the rows of WAITING tasks.
func ReadWaiting(keys []Key, rows *[]lifecycle.Task) Stmt {
	return Stmt{Text: readWaiting, Cols: keyCols(keys), Scan: into(rows, scanDelayed)}
}
