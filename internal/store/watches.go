package store

import (
	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store/driver"
)

// Watch is a row of task_watches.
type Watch struct {
	Task         drover.TaskID
	Job          drover.JobID
	Node, Index  int32
	Generation   int32
	ClosesAt     instant // schedule_to_close; 0 is never
	LeaseVersion int32   // of the attempt that beats
	BeatBy       instant // when its next heartbeat must have come; 0 is never
	BeatAt       instant // of the last heartbeat
	LookAt       instant
	Checkpoint   []byte // read by ReadCheckpoints alone
}

const (
	watchCols = "task_id, job_id, node, idx, generation, closes_at, lease_version, beat_by, beat_at, look_at"
	watchDecl = "task_id uuid, job_id uuid, node int, idx int, generation int, closes_at bigint, lease_version int, beat_by bigint, look_at bigint, checkpoint bytea"
	insertsIt = "INSERT INTO task_watches (task_id, job_id, node, idx, generation, closes_at, lease_version, beat_by, beat_at, look_at, checkpoint) " +
		"SELECT {task_id}, {job_id}, {node}, {idx}, {generation}, {closes_at}, {lease_version}, {beat_by}, 0, {look_at}, {checkpoint} {from} WHERE true ON CONFLICT (task_id) DO UPDATE SET "
	sameLife = "task_watches.generation = excluded.generation"
)

var (
	insertWatches = driver.New("insert watches", watchDecl, insertsIt+
		"generation = excluded.generation, closes_at = excluded.closes_at, beat_by = 0, look_at = excluded.look_at, checkpoint = excluded.checkpoint")
	// Of one generation a claim keeps what the attempt before it left.
	startBeats = driver.New("start heartbeats", watchDecl, insertsIt+
		"generation = excluded.generation, lease_version = excluded.lease_version, beat_by = excluded.beat_by, "+
		"closes_at = CASE WHEN "+sameLife+" THEN task_watches.closes_at ELSE 0 END, checkpoint = CASE WHEN "+sameLife+" THEN task_watches.checkpoint ELSE excluded.checkpoint END, "+
		"look_at = CASE WHEN "+sameLife+" AND task_watches.look_at < excluded.look_at THEN task_watches.look_at ELSE excluded.look_at END")
	// The fence is read in the statement and compared again where the row is known:
	// an attempt that has ended overwrites nothing of the next.
	beat = driver.New("store heartbeat", "",
		"INSERT INTO task_watches (task_id, job_id, node, idx, generation, closes_at, lease_version, beat_by, beat_at, look_at, checkpoint) "+
			"SELECT r.task_id, r.job_id, r.node, r.idx, r.generation, 0, r.lease_version, $3, $4, $5, $6 FROM task_running r WHERE r.task_id = $1 AND r.lease_version = $2 "+
			"ON CONFLICT (task_id) DO UPDATE SET generation = excluded.generation, lease_version = excluded.lease_version, beat_by = excluded.beat_by, beat_at = excluded.beat_at, "+
			"closes_at = CASE WHEN "+sameLife+" THEN task_watches.closes_at ELSE 0 END, checkpoint = CASE WHEN $7 = 1 OR NOT "+sameLife+" THEN excluded.checkpoint ELSE task_watches.checkpoint END "+
			"WHERE task_watches.lease_version < excluded.lease_version OR task_watches.lease_version = excluded.lease_version AND task_watches.beat_at <= $8")
	dueWatches      = driver.New("watches to look at", "", "SELECT "+watchCols+" FROM task_watches WHERE look_at <= $1 ORDER BY look_at, task_id LIMIT $2")
	readWatches     = driver.New("read watches", "id uuid", "SELECT "+qualify("w", watchCols)+" FROM {rows} JOIN task_watches w ON w.task_id = {id}")
	readCheckpoints = driver.New("read watches with checkpoints", "id uuid", "SELECT "+qualify("w", watchCols)+", w.checkpoint FROM {rows} JOIN task_watches w ON w.task_id = {id}")
	deleteWatches   = driver.New("delete watches", "id uuid", "DELETE FROM task_watches {using} WHERE task_id = {id}")
	// Whoever looks at watches waits for nobody: a row that is locked is looked at again.
	lookAgain = driver.New("look at a watch again", "",
		"UPDATE task_watches SET look_at = $3, beat_by = $4 WHERE {pg:ctid = (SELECT ctid FROM task_watches WHERE task_id = $1 AND lease_version = $2 AND beat_by = $5 AND generation = $6 FOR UPDATE SKIP LOCKED)}"+
			"{lite:task_id = $1 AND lease_version = $2 AND beat_by = $5 AND generation = $6}")
	dropWatch = driver.New("drop a watch", "",
		"DELETE FROM task_watches WHERE {pg:ctid = (SELECT ctid FROM task_watches WHERE task_id = $1 AND generation = $2 FOR UPDATE SKIP LOCKED)}{lite:task_id = $1 AND generation = $2}")
	watchedEnded = driver.New("which tasks have ended", "id uuid, generation int",
		"SELECT t.id, CASE WHEN EXISTS (SELECT 1 FROM task_final f WHERE f.task_id = t.id AND f.generation >= {generation}) THEN 1 ELSE 0 END FROM {rows} JOIN tasks t ON t.id = {id}")
	lastFailures = driver.New("last failures of a task", "",
		"SELECT error FROM attempts WHERE task_id = $1 AND generation = $2 AND outcome IN ('failed', 'timed_out') ORDER BY task_id DESC, lease_version DESC LIMIT $3")

	takeWatchedRunning = driver.New("take watched running", "task_id uuid, generation int, lease_version int",
		"DELETE FROM task_running {using} WHERE task_id = {task_id} AND generation = {generation} AND ({lease_version} = 0 OR lease_version = {lease_version}) RETURNING "+runningCols)
	takeWatchedReady   = takeWatched("ready", readyCols)
	takeWatchedDelayed = takeWatched("delayed", delayedCols)
	takeWatchedQueued  = takeWatched("queued", queuedCols)
)

func takeWatched(table, returning string) *driver.Text {
	return driver.New("take watched "+table, "job_id uuid, node int, idx int, generation int",
		"DELETE FROM task_"+table+" {using} WHERE job_id = {job_id} AND node = {node} AND idx = {idx} AND generation = {generation} RETURNING "+returning)
}

func watchColumns(rows []Watch) []any {
	return []any{
		col(rows, func(w *Watch) [16]byte { return [16]byte(w.Task) }), col(rows, func(w *Watch) [16]byte { return [16]byte(w.Job) }),
		col(rows, func(w *Watch) int32 { return w.Node }), col(rows, func(w *Watch) int32 { return w.Index }), col(rows, func(w *Watch) int32 { return w.Generation }),
		col(rows, func(w *Watch) int64 { return int64(w.ClosesAt) }), col(rows, func(w *Watch) int32 { return w.LeaseVersion }),
		col(rows, func(w *Watch) int64 { return int64(w.BeatBy) }), col(rows, func(w *Watch) int64 { return int64(w.LookAt) }),
		col(rows, func(w *Watch) []byte { return some(w.Checkpoint) }),
	}
}

// InsertWatches begins the watch over tasks of a generation; sorted by task.
func InsertWatches(rows []Watch) Stmt {
	return Stmt{Text: insertWatches, Cols: watchColumns(rows)}
}

// StartBeats begins the heartbeats of attempts; sorted by task.
func StartBeats(rows []Watch) Stmt { return Stmt{Text: startBeats, Cols: watchColumns(rows)} }

// Beat stores a heartbeat of w.Task under w.LeaseVersion, and a checkpoint if
// there is one. Nothing is stored when the lease is not held, or when the last
// one is younger than since.
func Beat(w Watch, since instant, stored *int64) Stmt {
	return Stmt{Text: beat, Args: []any{[16]byte(w.Task), w.LeaseVersion, int64(w.BeatBy), int64(w.BeatAt), int64(w.LookAt), some(w.Checkpoint), int32(flag(w.Checkpoint != nil)), int64(since)}, Affected: stored}
}

func scanWatch(r driver.Row, more ...any) (w Watch, err error) {
	err = r.Scan(append([]any{(*[16]byte)(&w.Task), (*[16]byte)(&w.Job), &w.Node, &w.Index, &w.Generation, (*int64)(&w.ClosesAt), &w.LeaseVersion, (*int64)(&w.BeatBy), (*int64)(&w.BeatAt), (*int64)(&w.LookAt)}, more...)...)
	return w, err
}

// DueWatches reads up to n watches whose time to look has come.
func DueWatches(now instant, n int, rows *[]Watch) Stmt {
	return Stmt{Text: dueWatches, Args: []any{int64(now), int64(n)}, Scan: into(rows, func(r driver.Row) (Watch, error) { return scanWatch(r) })}
}

// ReadWatches reads the watches over tasks, without checkpoints.
func ReadWatches(tasks []drover.TaskID, rows map[drover.TaskID]Watch) Stmt {
	return Stmt{Text: readWatches, Cols: taskIDs(tasks), Scan: func(r driver.Row) error {
		w, err := scanWatch(r)
		rows[w.Task] = w
		return err
	}}
}

// ReadCheckpoints reads the watches over tasks with their checkpoints.
func ReadCheckpoints(tasks []drover.TaskID, rows map[drover.TaskID]Watch) Stmt {
	return Stmt{Text: readCheckpoints, Cols: taskIDs(tasks), Scan: func(r driver.Row) error {
		var checkpoint []byte
		w, err := scanWatch(r, &checkpoint)
		w.Checkpoint = checkpoint
		rows[w.Task] = w
		return err
	}}
}

// DeleteWatches ends the watch over tasks; sorted.
func DeleteWatches(tasks []drover.TaskID) Stmt {
	return Stmt{Text: deleteWatches, Cols: taskIDs(tasks)}
}

// LookAgain moves on a watch that is as w says, unless somebody has it.
func LookAgain(w Watch, at, beatBy instant) Stmt {
	return Stmt{Text: lookAgain, Args: []any{[16]byte(w.Task), w.LeaseVersion, int64(at), int64(beatBy), int64(w.BeatBy), w.Generation}}
}

// DropWatch ends a watch, unless somebody has it.
func DropWatch(w Watch) Stmt {
	return Stmt{Text: dropWatch, Args: []any{[16]byte(w.Task), w.Generation}}
}

// Ended reads which of the watched tasks have ended; one that is not in the
// answer is not known at all.
func Ended(list []Watch, ended map[drover.TaskID]bool) Stmt {
	return Stmt{Text: watchedEnded, Cols: []any{col(list, func(w *Watch) [16]byte { return [16]byte(w.Task) }), col(list, func(w *Watch) int32 { return w.Generation })}, Scan: func(r driver.Row) error {
		var id drover.TaskID
		var is int64
		err := r.Scan((*[16]byte)(&id), &is)
		ended[id] = is == 1
		return err
	}}
}

// LastFailures reads the errors of a generation's last attempts that failed, the
// last one first.
func LastFailures(task drover.TaskID, generation int32, n int, failures *[][]byte) Stmt {
	return Stmt{Text: lastFailures, Args: []any{[16]byte(task), generation, int64(n)}, Scan: into(failures, func(r driver.Row) (b []byte, err error) { err = r.Scan(&b); return b, err })}
}

// TakeWatchedRunning removes the running rows of watched tasks: those whose
// LeaseVersion is 0 whatever their lease. Sorted by task.
func TakeWatchedRunning(list []Watch, rows *[]lifecycle.Task) Stmt {
	return Stmt{Text: takeWatchedRunning, Cols: []any{
		col(list, func(w *Watch) [16]byte { return [16]byte(w.Task) }), col(list, func(w *Watch) int32 { return w.Generation }), col(list, func(w *Watch) int32 { return w.LeaseVersion }),
	}, Scan: into(rows, scanRunning)}
}

// TakeWatchedWaiting removes the rows of watched tasks that no worker has.
// Sorted by job.
func TakeWatchedWaiting(list []Watch, rows *[]lifecycle.Task) []Stmt {
	cols := append(keyCols(col(list, func(w *Watch) Key { return Key{w.Job, w.Node, w.Index} })), col(list, func(w *Watch) int32 { return w.Generation }))
	return []Stmt{
		{Text: takeWatchedReady, Cols: cols, Scan: into(rows, scanReady)},
		{Text: takeWatchedDelayed, Cols: cols, Scan: into(rows, scanDelayed)},
		{Text: takeWatchedQueued, Cols: cols, Scan: into(rows, scanQueued)},
	}
}
