package store

import (
	"fmt"
	"math"
	"sync"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store/driver"
)

// The tables a live task stands in share their first columns; each statement
// below moves whole rows.
const (
	liveCols  = "task_id, job_id, node, idx, queue, lane, class, generation, attempt, losses, lease_version, events, due_at, waits"
	liveDecl  = "task_id uuid, job_id uuid, node int, idx int, queue int, lane int, class smallint, generation int, attempt int, losses int, lease_version int, events int, due_at bigint, waits bytea"
	liveWords = "{task_id}, {job_id}, {node}, {idx}, {queue}, {lane}, {class}, {generation}, {attempt}, {losses}, {lease_version}, {events}, {due_at}, {waits}"
)

var (
	insertPending = driver.Insert("insert pending", "task_pending", liveDecl+", unmet int, since bigint")
	insertTold    = driver.Insert("insert pending that was told", "task_pending", liveDecl+", unmet int, since bigint, parents_succeeded int, parents_failed int, parents_skipped int")
	insertReady   = driver.Insert("insert ready", "task_ready", liveDecl+", ready_at bigint, since bigint")
	insertQueued  = driver.Insert("insert queued", "task_queued", liveDecl+", ready_at bigint, queued_at bigint")
	insertDelayed = driver.Insert("insert delayed", "task_delayed", liveDecl+", status smallint, since bigint")
	insertRunning = driver.Insert("insert running", "task_running", liveDecl+", ready_at bigint, queued_at bigint, claimed_at bigint, session_id bigint, acquire_no bigint")
)

// InsertLive stores live tasks, each in the table of its status.
func InsertLive(tasks []lifecycle.Task) []Stmt {
	in := func(table int) []lifecycle.Task {
		return those(tasks, func(t *lifecycle.Task) bool { return liveTable(t) == table })
	}
	pending, told, ready, queued, delayed := in(livePending), in(liveTold), in(liveReady), in(liveQueued), in(liveDelayed)
	return []Stmt{
		{Text: insertPending, Cols: append(columns(pending), col(pending, func(t *lifecycle.Task) int32 { return t.Unmet }), since(pending))},
		{Text: insertTold, Cols: append(append(columns(told), col(told, func(t *lifecycle.Task) int32 { return t.Unmet }), since(told)), parents(told)...)},
		{Text: insertDelayed, Cols: append(columns(delayed), col(delayed, func(t *lifecycle.Task) int16 { return int16(t.Status) }), since(delayed))},
		{Text: insertReady, Cols: append(columns(ready), col(ready, func(t *lifecycle.Task) int64 { return int64(t.ReadyAt) }), since(ready))},
		{Text: insertQueued, Cols: append(columns(queued), col(queued, func(t *lifecycle.Task) int64 { return int64(t.ReadyAt) }),
			col(queued, func(t *lifecycle.Task) int64 { return int64(t.QueuedAt) }))},
	}
}

// The ways in which InsertLive stores a task.
const (
	livePending = iota
	liveTold    // PENDING, and knows how some of its parents have ended
	liveReady
	liveQueued
	liveDelayed
)

func liveTable(t *lifecycle.Task) int {
	switch {
	case t.Status == drover.Ready:
		return liveReady
	case t.Status == drover.Queued:
		return liveQueued
	case t.Status == drover.RetryWait, t.Status == drover.Waiting, t.Status == drover.Pending && t.Unmet == 0 && t.DueAt > 0 && t.Index >= 0:
		return liveDelayed
	case t.Status == drover.Pending && t.ParentsSucceeded|t.ParentsFailed|t.ParentsSkipped != 0:
		return liveTold
	case t.Status == drover.Pending:
		return livePending
	}
	panic("no live table for a task that is " + t.Status.String())
}

// those returns the rows that are meant: all of them, mostly, which are not copied then.
func those[R any](rows []R, meant func(*R) bool) []R {
	n := 0
	for i := range rows {
		if meant(&rows[i]) {
			n++
		}
	}
	if n == len(rows) || n == 0 {
		return rows[:n]
	}
	some := make([]R, 0, n)
	for i := range rows {
		if meant(&rows[i]) {
			some = append(some, rows[i])
		}
	}
	return some
}

func parents(tasks []lifecycle.Task) []any {
	return []any{
		col(tasks, func(t *lifecycle.Task) int32 { return t.ParentsSucceeded }),
		col(tasks, func(t *lifecycle.Task) int32 { return t.ParentsFailed }),
		col(tasks, func(t *lifecycle.Task) int32 { return t.ParentsSkipped }),
	}
}

func since(tasks []lifecycle.Task) any {
	return col(tasks, func(t *lifecycle.Task) int64 { return int64(t.Since) })
}

// col makes a column of a batch.
func col[R, V any](rows []R, get func(*R) V) []V {
	c := make([]V, len(rows))
	for i := range rows {
		c[i] = get(&rows[i])
	}
	return c
}

func columns(tasks []lifecycle.Task) []any {
	type t = lifecycle.Task
	return []any{
		col(tasks, func(x *t) [16]byte { return [16]byte(x.ID) }),
		col(tasks, func(x *t) [16]byte { return [16]byte(x.Job) }),
		col(tasks, func(x *t) int32 { return x.Node }),
		col(tasks, func(x *t) int32 { return x.Index }),
		col(tasks, func(x *t) int32 { return x.Queue }),
		col(tasks, func(x *t) int32 { return x.Lane }),
		col(tasks, func(x *t) int16 { return int16(x.Class) }),
		col(tasks, func(x *t) int32 { return x.Generation }),
		col(tasks, func(x *t) int32 { return x.Attempt }),
		col(tasks, func(x *t) int32 { return x.Losses }),
		col(tasks, func(x *t) int32 { return x.LeaseVersion }),
		col(tasks, func(x *t) int32 { return x.Events }),
		col(tasks, func(x *t) int64 { return int64(x.DueAt) }),
		col(tasks, func(x *t) []byte { return x.Waits.Encode() }),
	}
}

// taking is where a row is read into before it is copied: what is read into by its
// address would be made for each row.
type taking struct {
	Claimed
	status int16
	waits  []byte
	places []any
}

var takings = sync.Pool{New: func() any { return new(taking) }}

// scanLive reads the shared columns and what follows them, and ends with what is made of it.
func scanLive[T any](r driver.Row, status drover.Status, more func(x *taking, to []any) []any, made func(x *taking) T) (row T, err error) {
	x := takings.Get().(*taking)
	defer func() {
		x.Claimed = Claimed{} // it keeps nobody's input
		takings.Put(x)
	}()
	t := &x.Task
	t.Status = status
	x.places = more(x, append(x.places[:0], (*[16]byte)(&t.ID), (*[16]byte)(&t.Job), &t.Node, &t.Index, &t.Queue, &t.Lane, (*int16)(&t.Class),
		&t.Generation, &t.Attempt, &t.Losses, &t.LeaseVersion, &t.Events, (*int64)(&t.DueAt), &x.waits))
	if err := r.Scan(x.places...); err != nil {
		return row, err
	}
	t.Waits = lifecycle.DecodeWaits(x.waits)
	return made(x), nil
}

func theTask(x *taking) lifecycle.Task { return x.Task }

func scanPending(r driver.Row) (lifecycle.Task, error) {
	return scanLive(r, drover.Pending, func(x *taking, to []any) []any {
		return append(to, &x.Unmet, (*int64)(&x.Since), &x.ParentsSucceeded, &x.ParentsFailed, &x.ParentsSkipped)
	}, theTask)
}

func scanReady(r driver.Row) (lifecycle.Task, error) {
	return scanLive(r, drover.Ready, func(x *taking, to []any) []any {
		return append(to, (*int64)(&x.ReadyAt), (*int64)(&x.Since))
	}, theTask)
}

func scanQueued(r driver.Row) (lifecycle.Task, error) {
	return scanLive(r, drover.Queued, func(x *taking, to []any) []any {
		return append(to, (*int64)(&x.ReadyAt), (*int64)(&x.QueuedAt))
	}, func(x *taking) lifecycle.Task {
		x.Since = x.QueuedAt
		return x.Task
	})
}

func scanRunning(r driver.Row) (lifecycle.Task, error) {
	return scanLive(r, drover.Running, func(x *taking, to []any) []any {
		return append(to, (*int64)(&x.ReadyAt), (*int64)(&x.QueuedAt), (*int64)(&x.ClaimedAt), &x.Session, &x.Acquire)
	}, func(x *taking) lifecycle.Task {
		// The bulk claim moves the row in SQL and folds nothing: the wait in the queue is folded here.
		x.Since = x.ClaimedAt
		if x.ClaimedAt > x.QueuedAt {
			x.Waits[lifecycle.WaitHandoff] += int64(x.ClaimedAt - x.QueuedAt)
		}
		return x.Task
	})
}

func scanDelayed(r driver.Row) (lifecycle.Task, error) {
	return scanLive(r, 0, func(x *taking, to []any) []any {
		return append(to, &x.status, (*int64)(&x.Since))
	}, func(x *taking) lifecycle.Task {
		x.Status = drover.Status(x.status)
		return x.Task
	})
}

const (
	pendingCols = liveCols + ", unmet, since, parents_succeeded, parents_failed, parents_skipped"
	readyCols   = liveCols + ", ready_at, since"
	queuedCols  = liveCols + ", ready_at, queued_at"
	runningCols = liveCols + ", ready_at, queued_at, claimed_at, session_id, acquire_no"
	delayedCols = liveCols + ", status, since"
)

// into appends each row a statement returns.
func into[T any](to *[]T, scan func(driver.Row) (T, error)) func(driver.Row) error {
	return func(r driver.Row) error {
		v, err := scan(r)
		if err == nil {
			*to = append(*to, v)
		}
		return err
	}
}

var takeRunning = driver.New("take running", "task_id uuid, lease_version int, session_id bigint",
	"DELETE FROM task_running {using} WHERE task_id = {task_id} AND lease_version = {lease_version} AND session_id = {session_id} RETURNING "+runningCols)

// Lease names a row of task_running by its fence.
type Lease struct {
	Task    drover.TaskID
	Version int32
	Session int64
}

// TakeRunning removes the rows whose fence holds and returns them in taken. The
// leases must be sorted by task: unsorted ones deadlock.
func TakeRunning(leases []Lease, taken *[]lifecycle.Task) Stmt {
	return Stmt{Text: takeRunning, Cols: []any{
		col(leases, func(l *Lease) [16]byte { return [16]byte(l.Task) }),
		col(leases, func(l *Lease) int32 { return l.Version }),
		col(leases, func(l *Lease) int64 { return l.Session }),
	}, Scan: into(taken, scanRunning)}
}

// Key names a row of task_pending, or with Index −2 every row of a node.
type Key struct {
	Job         drover.JobID
	Node, Index int32
}

var (
	// One statement for rows and whole nodes, so that all are locked in one order.
	lockPending = driver.New("lock pending", "job_id uuid, node int, first int, last int",
		"SELECT "+qualify("p", pendingCols)+" FROM {rows} JOIN task_pending p ON p.job_id = {job_id} AND p.node = {node} AND p.idx BETWEEN {first} AND {last} ORDER BY {job_id}, {node}, p.idx {for update of p}")
	updateUnmet = driver.New("update unmet", "job_id uuid, node int, idx int, unmet int",
		"UPDATE task_pending SET unmet = {unmet} {from} WHERE task_pending.job_id = {job_id} AND task_pending.node = {node} AND task_pending.idx = {idx}")
	updateTold = driver.New("update what pending were told", "job_id uuid, node int, idx int, unmet int, parents_succeeded int, parents_failed int, parents_skipped int",
		"UPDATE task_pending SET unmet = {unmet}, parents_succeeded = {parents_succeeded}, parents_failed = {parents_failed}, parents_skipped = {parents_skipped} {from} WHERE task_pending.job_id = {job_id} AND task_pending.node = {node} AND task_pending.idx = {idx}")
	deletePending = driver.New("delete pending", "job_id uuid, node int, idx int",
		"DELETE FROM task_pending {using} WHERE task_pending.job_id = {job_id} AND task_pending.node = {node} AND task_pending.idx = {idx}")
)

func keyCols(keys []Key) []any {
	return []any{
		col(keys, func(k *Key) [16]byte { return [16]byte(k.Job) }),
		col(keys, func(k *Key) int32 { return k.Node }),
		col(keys, func(k *Key) int32 { return k.Index }),
	}
}

// LockPending locks and reads the rows named, in the order of their keys,
// whatever the order of keys. A key with Index −2 reads every row of its node; a
// row that two keys name is read twice.
func LockPending(keys []Key, rows *[]lifecycle.Task) Stmt {
	cols := append(keyCols(keys), col(keys, func(k *Key) int32 { return k.Index }))
	for i, k := range keys {
		if k.Index == -2 {
			cols[2].([]int32)[i], cols[3].([]int32)[i] = math.MinInt32, math.MaxInt32
		}
	}
	return Stmt{Text: lockPending, Cols: cols, Scan: into(rows, scanPending)}
}

// UpdateUnmet stores the counters of rows that stay PENDING.
func UpdateUnmet(rows []lifecycle.Task, changed *int64) Stmt {
	return Stmt{Text: updateUnmet, Cols: append(keyCols(keysOf(rows)), col(rows, func(t *lifecycle.Task) int32 { return t.Unmet })), Affected: changed}
}

// UpdateTold is UpdateUnmet for rows that keep how their parents have ended.
func UpdateTold(rows []lifecycle.Task, changed *int64) Stmt {
	return Stmt{Text: updateTold, Cols: append(append(keyCols(keysOf(rows)), col(rows, func(t *lifecycle.Task) int32 { return t.Unmet })), parents(rows)...), Affected: changed}
}

// DeletePending removes rows that moved on.
func DeletePending(rows []lifecycle.Task, deleted *int64) Stmt {
	return Stmt{Text: deletePending, Cols: keyCols(keysOf(rows)), Affected: deleted}
}

func keysOf(rows []lifecycle.Task) []Key {
	return col(rows, func(t *lifecycle.Task) Key { return Key{t.Job, t.Node, t.Index} })
}

// take is a DELETE of a bounded number of rows. PostgreSQL finds them by ctid:
// an IN over a sub-select with LIMIT and a row lock may be planned as a join
// that runs the sub-select again and again.
func take(table, key, where, order, limit, lock, returning string) string {
	sel := func(what, lock string) string {
		return "SELECT " + what + " FROM " + table + " WHERE " + where + " ORDER BY " + order + " LIMIT " + limit + " " + lock
	}
	return "DELETE FROM " + table + " WHERE {pg:ctid = ANY(ARRAY(" + sel("ctid", lock) + "))}{lite:(" + key + ") IN (" + sel(key, "") + ")} RETURNING " + returning
}

// qualify puts a table's alias before each column of a list.
func qualify(alias, cols string) string {
	out := []byte(alias + ".")
	for i := range len(cols) {
		out = append(out, cols[i])
		if cols[i] == ' ' {
			out = append(out, alias+"."...)
		}
	}
	return string(out)
}

// The rows of one job in each live table, locked. One pass takes at most $2.
var (
	takeJobPending = driver.New("take a job's pending", "", take("task_pending", "job_id, node, idx", "job_id = $1", "node, idx", "$2", "FOR UPDATE", pendingCols))
	takeJobReady   = driver.New("take a job's ready", "", take("task_ready", "queue, class, lane, due_at, task_id", "job_id = $1", "task_id", "$2", "FOR UPDATE", readyCols))
	takeJobFree    = driver.New("take a job's ready that are not held", "", take("task_ready", "queue, class, lane, due_at, task_id", "job_id = $1 AND lane <> 0", "task_id", "$2", "FOR UPDATE", readyCols))
	takeJobHeld    = driver.New("take a job's held", "", take("task_ready", "queue, class, lane, due_at, task_id", "job_id = $1 AND lane = 0 AND ready_at > 0", "task_id", "$2", "FOR UPDATE", readyCols)) // not those in line
	takeJobQueued  = driver.New("take a job's queued", "", take("task_queued", "queue, class, lane, due_at, task_id", "job_id = $1", "task_id", "$2", "FOR UPDATE", queuedCols))
	takeJobDelayed = driver.New("take a job's delayed", "", take("task_delayed", "due_at, task_id", "job_id = $1", "task_id", "$2", "FOR UPDATE", delayedCols))
	// Of the WAITING, those whose job goes on are left: as what runs, they end when that
	// has, or by force. finish lets every job that a task runs go on.
	takeJobStopped = driver.New("take a job's delayed that are stopped", "", take("task_delayed", "due_at, task_id", "job_id = $1 AND "+noChild(" AND c.abandon = 0"), "task_id", "$2", "FOR UPDATE", delayedCols))
	takeJobUnbegun = driver.New("take a job's delayed that have not begun", "", take("task_delayed", "due_at, task_id", "job_id = $1 AND "+noChild(""), "task_id", "$2", "FOR UPDATE", delayedCols))
	takeJobRunning = driver.New("take a job's running", "", take("task_running", "task_id", "job_id = $1", "task_id", "$2", "FOR UPDATE", runningCols))
	lockJobQueued  = driver.New("lock a job's queued", "", "SELECT "+queuedCols+" FROM task_queued WHERE job_id = $1 ORDER BY task_id LIMIT $2 {for update}")
)

// noChild says that a delayed row has no job of its own that goes on.
func noChild(which string) string {
	return fmt.Sprintf("(status <> %d OR NOT EXISTS (SELECT 1 FROM job_children c WHERE c.task_id = task_delayed.task_id AND c.generation = task_delayed.generation AND length(c.error) = 0%s))", drover.Waiting, which)
}

// Spare says which of a job's tasks that wait for jobs of their own are left to wait.
type Spare int

// The ways to spare: none of them; those whose jobs would not be abandoned; all that
// have begun one.
const (
	SpareNone Spare = iota
	SpareOwned
	SpareBegun
)

var takeJobSparing = [...]*driver.Text{SpareNone: takeJobDelayed, SpareOwned: takeJobStopped, SpareBegun: takeJobUnbegun}

// TakeJobLive removes up to n rows of the job from each table but task_running, without
// those it spares.
func TakeJobLive(job drover.JobID, spare Spare, n int, rows *[]lifecycle.Task) []Stmt {
	a := []any{[16]byte(job), int64(n)}
	return []Stmt{
		{Text: takeJobPending, Args: a, Scan: into(rows, scanPending)},
		{Text: takeJobReady, Args: a, Scan: into(rows, scanReady)},
		{Text: takeJobSparing[spare], Args: a, Scan: into(rows, scanDelayed)},
		{Text: takeJobQueued, Args: a, Scan: into(rows, scanQueued)},
	}
}

// TakeJobQueued removes up to n of the job's queued rows.
func TakeJobQueued(job drover.JobID, n int, rows *[]lifecycle.Task) Stmt {
	return Stmt{Text: takeJobQueued, Args: []any{[16]byte(job), int64(n)}, Scan: into(rows, scanQueued)}
}

// TakeJobReady removes up to n of the job's READY rows: those that are held, or
// those that are not.
func TakeJobReady(job drover.JobID, held bool, n int, rows *[]lifecycle.Task) Stmt {
	text := takeJobFree
	if held {
		text = takeJobHeld
	}
	return Stmt{Text: text, Args: []any{[16]byte(job), int64(n)}, Scan: into(rows, scanReady)}
}

// TakeJobRunning removes up to n of the job's running rows.
func TakeJobRunning(job drover.JobID, n int, rows *[]lifecycle.Task) Stmt {
	return Stmt{Text: takeJobRunning, Args: []any{[16]byte(job), int64(n)}, Scan: into(rows, scanRunning)}
}

// LockJobQueued locks up to n of the job's queued rows, which waits for claims in flight.
func LockJobQueued(job drover.JobID, n int, rows *[]lifecycle.Task) Stmt {
	return Stmt{Text: lockJobQueued, Args: []any{[16]byte(job), int64(n)}, Scan: into(rows, scanQueued)}
}

// The row of a job of one task, wherever it stands. Its event counter passes to
// job_live when that is made.
var (
	disownPending = driver.New("disown pending", "", "UPDATE task_pending SET events = -events WHERE job_id = $1 AND events > 0 RETURNING "+pendingCols)
	disownReady   = driver.New("disown ready", "", "UPDATE task_ready SET events = -events WHERE job_id = $1 AND events > 0 RETURNING "+readyCols)
	disownQueued  = driver.New("disown queued", "", "UPDATE task_queued SET events = -events WHERE job_id = $1 AND events > 0 RETURNING "+queuedCols)
	disownDelayed = driver.New("disown delayed", "", "UPDATE task_delayed SET events = -events WHERE job_id = $1 AND events > 0 RETURNING "+delayedCols)
	disownRunning = driver.New("disown running", "", "UPDATE task_running SET events = -events WHERE job_id = $1 AND events > 0 RETURNING "+runningCols)
)

// Disown locks the one live row of a job of one task and takes the event counter
// from it: it is negative from then on, and counts no more.
func Disown(job drover.JobID, rows *[]lifecycle.Task) []Stmt {
	a := []any{[16]byte(job)}
	return []Stmt{
		{Text: disownQueued, Args: a, Scan: into(rows, scanQueued)},
		{Text: disownRunning, Args: a, Scan: into(rows, scanRunning)},
		{Text: disownDelayed, Args: a, Scan: into(rows, scanDelayed)},
		{Text: disownReady, Args: a, Scan: into(rows, scanReady)},
		{Text: disownPending, Args: a, Scan: into(rows, scanPending)},
	}
}

// What the loops take.
var (
	takeDue     = driver.New("take due", "", take("task_delayed", "due_at, task_id", "due_at <= $1", "due_at, task_id", "$2", "FOR UPDATE SKIP LOCKED", delayedCols))
	takeReady   = driver.New("take ready", "", take("task_ready", "queue, class, lane, due_at, task_id", "lane <> 0", "queue, class, lane, due_at, task_id", "$1", "FOR UPDATE SKIP LOCKED", readyCols))
	takeSession = driver.New("take a session's running", "", take("task_running", "task_id", "session_id = $1", "task_id", "$2", "FOR UPDATE", runningCols))
)

// TakeDue removes up to n delayed rows whose time has come.
func TakeDue(now lifecycle.Instant, n int, rows *[]lifecycle.Task) Stmt {
	return Stmt{Text: takeDue, Args: []any{int64(now), int64(n)}, Scan: into(rows, scanDelayed)}
}

// TakeReady removes up to n READY rows that are not held.
func TakeReady(n int, rows *[]lifecycle.Task) Stmt {
	return Stmt{Text: takeReady, Args: []any{int64(n)}, Scan: into(rows, scanReady)}
}

// TakeSession removes up to n running rows of a session.
func TakeSession(session int64, n int, rows *[]lifecycle.Task) Stmt {
	return Stmt{Text: takeSession, Args: []any{session, int64(n)}, Scan: into(rows, scanRunning)}
}

var sessionRunning = driver.New("a session's running", "", "SELECT task_id, lease_version, acquire_no FROM task_running WHERE session_id = $1 ORDER BY task_id")

// SessionLease is one lease of a session.
type SessionLease struct {
	Lease
	Acquire int64
}

// SessionLeases reads what a session holds.
func SessionLeases(session int64, rows *[]SessionLease) Stmt {
	return Stmt{Text: sessionRunning, Args: []any{session}, Scan: into(rows, func(r driver.Row) (l SessionLease, err error) {
		l.Session = session
		err = r.Scan((*[16]byte)(&l.Task), &l.Version, &l.Acquire)
		return l, err
	})}
}

var oldLeases = driver.New("a session's old leases", "",
	"SELECT r.task_id, r.lease_version, r.claimed_at, t.pipeline, t.node, t.policy FROM task_running r JOIN tasks t ON t.id = r.task_id WHERE r.session_id = $1 AND r.claimed_at < $2 ORDER BY r.task_id")

// OldLease is a lease that has run for a while, with what says for how long it may.
type OldLease struct {
	Lease
	ClaimedAt lifecycle.Instant
	Pipeline  int32 // 0: Policy has it
	Node      int32
	Policy    []byte
}

// OldLeases reads the leases of a session that began before a time.
func OldLeases(session int64, before lifecycle.Instant, rows *[]OldLease) Stmt {
	return Stmt{Text: oldLeases, Args: []any{session, int64(before)}, Scan: into(rows, func(r driver.Row) (l OldLease, err error) {
		l.Session = session
		err = r.Scan((*[16]byte)(&l.Task), &l.Version, (*int64)(&l.ClaimedAt), &l.Pipeline, &l.Node, &l.Policy)
		return l, err
	})}
}
