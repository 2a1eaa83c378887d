package store

import (
	"fmt"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store/driver"
)

// taskCols are the columns of tasks without the input, which may be long.
const taskCols = "t.id, t.job_id, t.tenant, t.node, t.idx, t.pipeline, t.queue, " + homeLane + ", t.class, t.kind, t.policy, t.trace, t.created_at"

// inReach limits a statement on the tasks of the job $1 to those after the place
// ($2, $3) and before ($4, $5).
func inReach(alias string) string {
	return fmt.Sprintf("%[1]s.job_id = $1 AND (%[1]s.node, %[1]s.idx) > ($2, $3) AND (%[1]s.node, %[1]s.idx) < ($4, $5)", alias)
}

// newestItem is what a task's row holds, or what its map gave it when it expanded again.
const newestItem = "coalesce((SELECT i.item FROM task_items i WHERE i.task_id = t.id ORDER BY i.generation DESC LIMIT 1), t.input)"

const notLast = "NOT EXISTS (SELECT 1 FROM task_final y WHERE y.task_id = f.task_id AND y.generation > f.generation)"

var (
	viewTasks  = driver.New("read tasks", "id uuid", "SELECT "+taskCols+" FROM {rows} JOIN tasks t ON t.id = {id} JOIN jobs j ON j.id = t.job_id") // not of a job that is being purged
	taskInput  = driver.New("read a task's input", "", "SELECT "+newestItem+" FROM tasks t WHERE t.id = $1")
	taskInputs = driver.New("read tasks' inputs", "id uuid", "SELECT t.id, "+newestItem+" FROM {rows} JOIN tasks t ON t.id = {id}")
	jobTasks   = driver.New("tasks of a job", "", "SELECT "+taskCols+" FROM tasks t WHERE "+inReach("t")+" ORDER BY t.node, t.idx LIMIT $6")
	tasksAt    = driver.New("tasks at places of a job", "job_id uuid, node int, idx int", "SELECT "+taskCols+" FROM {rows} JOIN tasks t ON t.job_id = {job_id} AND t.node = {node} AND t.idx = {idx}")
	finalTasks = driver.New("finished tasks of a job", "",
		"SELECT t.id, t.node, t.idx FROM tasks t JOIN task_final f ON f.task_id = t.id WHERE "+inReach("t")+" AND ((CAST($7 AS INT) >> f.status) & 1) = 1 AND "+notLast+" ORDER BY t.node, t.idx LIMIT $6")
	placedTasks = func() map[drover.Status]*driver.Text {
		m := map[drover.Status]*driver.Text{}
		for table, s := range map[string]drover.Status{"task_ready": drover.Ready, "task_queued": drover.Queued, "task_running": drover.Running, "task_pending": drover.Pending} {
			m[s] = driver.New("tasks of a job in "+table, "", "SELECT q.task_id, q.node, q.idx FROM "+table+" q WHERE "+inReach("q")+" ORDER BY q.node, q.idx LIMIT $6")
		}
		return m
	}()
	delayedTasks = driver.New("delayed tasks of a job", "", "SELECT q.task_id, q.node, q.idx FROM task_delayed q WHERE "+inReach("q")+" AND q.status = $7 ORDER BY q.node, q.idx LIMIT $6")
)

const finalCols = "f.task_id, f.generation, f.status, f.attempt, f.losses, f.lease_version, f.session_id, f.ready_at, f.queued_at, f.claimed_at, f.finished_at, f.waits, f.error, f.how"

func lastFinal(name, cols string) *driver.Text {
	return driver.New(name, "id uuid", "SELECT "+cols+" FROM {rows} JOIN {pg:LATERAL} (SELECT x.* FROM task_final x WHERE x.task_id = {id} ORDER BY x.generation DESC LIMIT 1) f ON 1 = 1")
}

// spanned reads the rows of a live table that are within a range of places of a
// job: these tables are keyed by queue, and have a job's rows together.
func spanned(table, cols string) *driver.Text {
	return driver.New("rows of "+table, "job_id uuid, node int, idx int, node2 int, idx2 int, generation int",
		"SELECT "+qualify("q", cols)+" FROM {rows} JOIN "+table+" q ON q.job_id = {job_id} AND (q.node, q.idx) >= ({node}, {idx}) AND (q.node, q.idx) <= ({node2}, {idx2}) AND q.generation >= {generation}")
}

var (
	viewFinal  = lastFinal("read last ends of tasks", finalCols)
	firstFinal = driver.New("read first ends of tasks", "id uuid", "SELECT "+finalCols+" FROM {rows} JOIN task_final f ON f.task_id = {id} AND f.generation = 1")
	taskOutput = lastFinal("read a task's output", "f.output")

	viewRunning = driver.New("read running tasks", "id uuid", "SELECT "+qualify("q", runningCols)+" FROM {rows} JOIN task_running q ON q.task_id = {id}")
	viewPending = driver.New("read pending tasks", "job_id uuid, node int, idx int",
		"SELECT "+qualify("q", pendingCols)+" FROM {rows} JOIN task_pending q ON q.job_id = {job_id} AND q.node = {node} AND q.idx = {idx}")
	viewReady   = spanned("task_ready", readyCols)
	viewQueued  = spanned("task_queued", queuedCols)
	viewDelayed = spanned("task_delayed", delayedCols)

	viewProgress = driver.New("read progress", "id uuid", "SELECT p.task_id, p.lease_version, p.ratio, p.message FROM {rows} JOIN task_progress p ON p.task_id = {id}")
	viewWorkers  = driver.New("read workers of tasks", "id bigint", "SELECT s.id, s.worker, s.expires_at FROM {rows} JOIN sessions s ON s.id = {id}")

	newestFailures = driver.New("read newest failures of tasks", "id uuid, generation int",
		"SELECT a.task_id, a.error FROM {rows} JOIN {pg:LATERAL} (SELECT x.* FROM attempts x WHERE x.task_id = {id} AND x.generation = {generation} AND x.outcome IN ('failed', 'timed_out') ORDER BY x.lease_version DESC LIMIT 1) a ON 1 = 1")

	viewAttempts = driver.New("attempts of a task", "",
		"SELECT a.generation, a.n, a.lease_version, a.session_id, a.outcome, a.ready_at, a.queued_at, a.claimed_at, a.ended_at, a.error FROM attempts a WHERE a.task_id = $1 ORDER BY a.lease_version DESC LIMIT $2")
	firstTries = driver.New("first-try successes of a task", "",
		"SELECT f.generation, f.attempt, f.lease_version, f.session_id, 'succeeded', f.ready_at, f.queued_at, f.claimed_at, f.finished_at, f.error FROM task_final f WHERE f.task_id = $1 AND f.status = 8 AND f.how NOT IN (3, 4)"+ // nobody ran what somebody marked, or what was the end of a job
			" AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.task_id = f.task_id AND a.lease_version = f.lease_version) ORDER BY f.lease_version DESC LIMIT $2")
	runningTry = driver.New("running attempt of a task", "",
		"SELECT r.generation, r.attempt, r.lease_version, r.session_id, r.ready_at, r.queued_at, r.claimed_at FROM task_running r WHERE r.task_id = $1")

	viewEvents = driver.New("events of a job", "",
		"SELECT e.seq, e.type, e.at, e.task_id, e.data FROM events e WHERE e.job_id = $1 AND e.seq > $2 ORDER BY e.seq LIMIT $3")
)

func scanTask(r driver.Row) (t TaskRow, err error) {
	err = r.Scan((*[16]byte)(&t.ID), (*[16]byte)(&t.Job), &t.Tenant, &t.Node, &t.Index, &t.Pipeline, &t.Queue, &t.Lane, (*int16)(&t.Class), &t.Kind, &t.Policy, &t.Trace, (*int64)(&t.CreatedAt))
	return t, err
}

func taskIDs(ids []drover.TaskID) []any {
	return []any{col(ids, func(id *drover.TaskID) [16]byte { return [16]byte(*id) })}
}

// ReadTasks reads the immutable rows of tasks, without their inputs.
func ReadTasks(ids []drover.TaskID, rows *[]TaskRow) Stmt {
	return Stmt{Text: viewTasks, Cols: taskIDs(ids), Scan: into(rows, scanTask)}
}

// TaskInput reads the input of a kind job's task, or the item of a map's element.
func TaskInput(id drover.TaskID, input *[]byte) Stmt {
	return Stmt{Text: taskInput, Args: []any{[16]byte(id)}, Scan: func(r driver.Row) error { return r.Scan(input) }}
}

// TaskInputs is TaskInput for many.
func TaskInputs(ids []drover.TaskID, inputs map[drover.TaskID][]byte) Stmt {
	return Stmt{Text: taskInputs, Cols: taskIDs(ids), Scan: func(r driver.Row) error {
		var id drover.TaskID
		var in []byte
		err := r.Scan((*[16]byte)(&id), &in)
		inputs[id] = in
		return err
	}}
}

// TaskOutput reads the output of a task's last generation.
func TaskOutput(id drover.TaskID, output *[]byte) Stmt {
	return Stmt{Text: taskOutput, Cols: taskIDs([]drover.TaskID{id}), Scan: func(r driver.Row) error { return r.Scan(output) }}
}

// Place is where a task stands in its job.
type Place struct {
	Task        drover.TaskID
	Node, Index int32
}

// Reach is the part of a job's tasks a list looks at: after a place and before
// another, N of them at most, in order.
type Reach struct {
	Job           drover.JobID
	After, Before Place // without tasks
	N             int
}

func (r *Reach) args(more ...any) []any {
	return append([]any{[16]byte(r.Job), r.After.Node, r.After.Index, r.Before.Node, r.Before.Index, int64(r.N)}, more...)
}

// JobTaskRows reads tasks of a job in order, maps that have expanded too.
func JobTaskRows(r Reach, rows *[]TaskRow) Stmt {
	return Stmt{Text: jobTasks, Args: r.args(), Scan: into(rows, scanTask)}
}

// TasksAt reads the tasks at places of a job, those that are there.
func TasksAt(job drover.JobID, places []Place, rows *[]TaskRow) Stmt {
	return Stmt{Text: tasksAt, Cols: []any{col(places, func(*Place) [16]byte { return job }), col(places, func(p *Place) int32 { return p.Node }), col(places, func(p *Place) int32 { return p.Index })}, Scan: into(rows, scanTask)}
}

func scanPlace(r driver.Row) (p Place, err error) {
	err = r.Scan((*[16]byte)(&p.Task), &p.Node, &p.Index)
	return p, err
}

// TasksWith names the tasks of a job that have one of the statuses: a list for
// each place such tasks stand in, and what fills it in. A finished task may have
// been replayed and be live again.
func TasksWith(r Reach, statuses []drover.Status) (lists []*[]Place, stmts []Stmt) {
	add := func(text *driver.Text, args []any) {
		places := new([]Place)
		lists = append(lists, places)
		stmts = append(stmts, Stmt{Text: text, Args: args, Scan: into(places, scanPlace)})
	}
	var final int32
	seen := map[drover.Status]bool{}
	for _, s := range statuses {
		if seen[s] {
			continue
		}
		seen[s] = true
		if s.Final() {
			final |= 1 << s
		}
		if text := placedTasks[s]; text != nil {
			add(text, r.args())
		}
		if s == drover.Pending || s == drover.RetryWait {
			add(delayedTasks, r.args(int16(s)))
		}
	}
	if final != 0 {
		add(finalTasks, r.args(final))
	}
	return lists, stmts
}

// LastFinals reads how the last generations of tasks ended, without outputs.
func LastFinals(ids []drover.TaskID, finals map[drover.TaskID]FinalRow) Stmt {
	return endsOf(viewFinal, ids, finals)
}

// FirstFinals reads how the first generations of tasks ended, without outputs.
func FirstFinals(ids []drover.TaskID, finals map[drover.TaskID]FinalRow) Stmt {
	return endsOf(firstFinal, ids, finals)
}

func endsOf(text *driver.Text, ids []drover.TaskID, finals map[drover.TaskID]FinalRow) Stmt {
	return Stmt{Text: text, Cols: taskIDs(ids), Scan: func(r driver.Row) error {
		var f FinalRow
		var status int16
		var waits []byte
		t := &f.Task
		err := r.Scan((*[16]byte)(&t.ID), &t.Generation, &status, &t.Attempt, &t.Losses, &t.LeaseVersion, &t.Session,
			(*int64)(&t.ReadyAt), (*int64)(&t.QueuedAt), (*int64)(&t.ClaimedAt), (*int64)(&f.At), &waits, &f.Error, (*int16)(&t.How))
		t.Status, t.Waits = drover.Status(status), lifecycle.DecodeWaits(waits)
		finals[t.ID] = f
		return err
	}}
}

// NewestFailures reads why the newest failed attempts of tasks failed, each in the
// task's generation.
func NewestFailures(tasks []lifecycle.Task, failures map[drover.TaskID][]byte) Stmt {
	return Stmt{Text: newestFailures, Cols: []any{
		col(tasks, func(t *lifecycle.Task) [16]byte { return [16]byte(t.ID) }),
		col(tasks, func(t *lifecycle.Task) int32 { return t.Generation }),
	}, Scan: func(r driver.Row) error {
		var id drover.TaskID
		var failure []byte
		err := r.Scan((*[16]byte)(&id), &failure)
		failures[id] = failure
		return err
	}}
}

// Sought is a live row that is looked for.
type Sought struct {
	Job drover.JobID
	Place
	// Generation is the lowest it can have.
	Generation int32
}

// LiveRows reads the live rows of tasks. Others of the same jobs may be among
// them. The tasks must be sorted by job.
func LiveRows(sought []Sought, rows *[]lifecycle.Task) []Stmt {
	type span struct{ from, to Sought }
	var spans []span
	for _, s := range sought {
		k := len(spans) - 1
		if k < 0 || spans[k].from.Job != s.Job {
			spans = append(spans, span{s, s})
			continue
		}
		if p := &spans[k].from; s.Node < p.Node || (s.Node == p.Node && s.Index < p.Index) {
			p.Node, p.Index = s.Node, s.Index
		}
		if p := &spans[k].to; s.Node > p.Node || (s.Node == p.Node && s.Index > p.Index) {
			p.Node, p.Index = s.Node, s.Index
		}
		spans[k].from.Generation = min(spans[k].from.Generation, s.Generation)
	}
	cols := []any{
		col(spans, func(s *span) [16]byte { return [16]byte(s.from.Job) }),
		col(spans, func(s *span) int32 { return s.from.Node }), col(spans, func(s *span) int32 { return s.from.Index }),
		col(spans, func(s *span) int32 { return s.to.Node }), col(spans, func(s *span) int32 { return s.to.Index }),
		col(spans, func(s *span) int32 { return s.from.Generation }),
	}
	return []Stmt{
		{Text: viewRunning, Cols: []any{col(sought, func(s *Sought) [16]byte { return [16]byte(s.Task) })}, Scan: into(rows, scanRunning)},
		{Text: viewPending, Cols: keyCols(col(sought, func(s *Sought) Key { return Key{s.Job, s.Node, s.Index} })), Scan: into(rows, scanPending)},
		{Text: viewReady, Cols: cols, Scan: into(rows, scanReady)},
		{Text: viewQueued, Cols: cols, Scan: into(rows, scanQueued)},
		{Text: viewDelayed, Cols: cols, Scan: into(rows, scanDelayed)},
	}
}

// ReadProgress reads what running tasks report, under the lease given.
func ReadProgress(leases []Lease, into map[drover.TaskID]drover.Progress) Stmt {
	of := make(map[drover.TaskID]int32, len(leases))
	for _, l := range leases {
		of[l.Task] = l.Version
	}
	return Stmt{Text: viewProgress, Cols: []any{col(leases, func(l *Lease) [16]byte { return [16]byte(l.Task) })}, Scan: func(r driver.Row) error {
		var id drover.TaskID
		var version int32
		var p drover.Progress
		err := r.Scan((*[16]byte)(&id), &version, &p.Ratio, &p.Message)
		if of[id] == version {
			into[id] = p
		}
		return err
	}}
}

// WorkerView is what a task tells of its worker.
type WorkerView struct {
	Name      string
	ExpiresAt instant
}

// Workers reads the sessions that are not forgotten yet.
func Workers(sessions []int64, workers map[int64]WorkerView) Stmt {
	return Stmt{Text: viewWorkers, Cols: []any{sessions}, Scan: func(r driver.Row) error {
		var id int64
		var w WorkerView
		err := r.Scan(&id, &w.Name, (*int64)(&w.ExpiresAt))
		workers[id] = w
		return err
	}}
}

// AttemptView is an attempt, wherever it is recorded.
type AttemptView struct {
	Generation, N, LeaseVersion           int32
	Session                               int64
	Outcome                               string
	ReadyAt, QueuedAt, ClaimedAt, EndedAt instant
	Error                                 []byte
}

// Attempts reads the last n attempts of a task of each kind: those recorded by
// themselves, first-try successes, and the running one.
func Attempts(id drover.TaskID, n int, rows *[]AttemptView) []Stmt {
	scan := into(rows, func(r driver.Row) (a AttemptView, err error) {
		err = r.Scan(&a.Generation, &a.N, &a.LeaseVersion, &a.Session, &a.Outcome, (*int64)(&a.ReadyAt), (*int64)(&a.QueuedAt), (*int64)(&a.ClaimedAt), (*int64)(&a.EndedAt), &a.Error)
		return a, err
	})
	return []Stmt{
		{Text: viewAttempts, Args: []any{[16]byte(id), int64(n)}, Scan: scan},
		{Text: firstTries, Args: []any{[16]byte(id), int64(n)}, Scan: scan},
		{Text: runningTry, Args: []any{[16]byte(id)}, Scan: into(rows, func(r driver.Row) (a AttemptView, err error) {
			a.Outcome = "running"
			err = r.Scan(&a.Generation, &a.N, &a.LeaseVersion, &a.Session, (*int64)(&a.ReadyAt), (*int64)(&a.QueuedAt), (*int64)(&a.ClaimedAt))
			return a, err
		})},
	}
}

// Events reads the events of a job after the one numbered after, in order.
func Events(job drover.JobID, after int64, n int, rows *[]EventRow) Stmt {
	return Stmt{Text: viewEvents, Args: []any{[16]byte(job), after, int64(n)}, Scan: into(rows, func(r driver.Row) (e EventRow, err error) {
		var typ string
		err = r.Scan(&e.Seq, &typ, (*int64)(&e.At), (*[16]byte)(&e.Task), &e.Data)
		e.Job, e.Type = job, drover.EventType(typ)
		return e, err
	})}
}
