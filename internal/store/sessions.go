package store

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store/driver"
)

// SessionRow is a row of sessions.
type SessionRow struct {
	ID        int64
	Tenant    int32 // 0 serves every tenant
	Actor     string
	Worker    string
	Queues    []string
	Kinds     []string
	Labels    map[string]string
	Resources map[string]int64
	Slots     int32
	Version   string
	Draining  bool
	StartedAt instant
	ExpiresAt instant
	Ended     bool
}

var (
	insertSession = driver.New("insert session", "",
		"INSERT INTO sessions (tenant, actor, worker, queues, kinds, labels, slots, version, draining, started_at, expires_at, ended, resources) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 0, $9, $10, 0, $11) RETURNING id")
	sessionCols  = "id, tenant, actor, worker, queues, kinds, labels, slots, version, draining, started_at, expires_at, ended, resources"
	readSessions = driver.New("read sessions", "id bigint", "SELECT "+qualify("s", sessionCols)+" FROM {rows} JOIN sessions s ON s.id = {id}")
	// A claim shares the session's row, so that the reaper, which takes it whole, waits for it.
	shareSessions = driver.New("share sessions", "id bigint", "SELECT "+qualify("s", sessionCols)+" FROM {rows} JOIN sessions s ON s.id = {id} {for share of s}")
	// Two claims of a worker that has resources must not both give the same of them out.
	lockSessions = driver.New("lock sessions", "id bigint", "SELECT "+qualify("s", sessionCols)+" FROM {rows} JOIN sessions s ON s.id = {id} {for update of s}")
	renewSession = driver.New("renew session", "", "UPDATE sessions SET expires_at = $2, draining = $3 WHERE id = $1 AND ended = 0 AND expires_at > $4 RETURNING "+sessionCols)
	endSession   = driver.New("end session", "", "UPDATE sessions SET ended = 1, expires_at = $2 WHERE id = $1 AND ended = 0")
	reapSessions = driver.New("end expired sessions", "",
		"UPDATE sessions SET ended = 1 WHERE ended = 0 AND {pg:ctid = ANY(ARRAY(SELECT ctid FROM sessions WHERE ended = 0 AND expires_at <= $1 ORDER BY expires_at, id LIMIT $2 FOR UPDATE SKIP LOCKED))}"+
			"{lite:id IN (SELECT id FROM sessions WHERE ended = 0 AND expires_at <= $1 ORDER BY expires_at, id LIMIT $2)} RETURNING id")
	liveSessions   = driver.New("read live sessions", "", "SELECT "+sessionCols+" FROM sessions WHERE ended = 0 ORDER BY id")
	endingSessions = driver.New("sessions to clear", "", "SELECT id FROM sessions WHERE ended = 1 ORDER BY id LIMIT $1")
	// A row whose session is gone or holds nothing is nobody's: a restore, or a hand
	// in the database. The sessions that run tasks are few; it skips from one to the next.
	lostSessions = driver.New("sessions that are gone and run tasks", "",
		"WITH RECURSIVE r(id) AS (SELECT (SELECT session_id FROM task_running ORDER BY session_id LIMIT 1) "+
			"UNION ALL SELECT (SELECT t.session_id FROM task_running t WHERE t.session_id > r.id ORDER BY t.session_id LIMIT 1) FROM r WHERE r.id IS NOT NULL) "+
			"SELECT r.id FROM r WHERE r.id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = r.id AND s.ended < 2) ORDER BY r.id LIMIT $1")
	clearedSession = driver.New("mark session cleared", "", "UPDATE sessions SET ended = 2 WHERE id = $1 AND NOT EXISTS (SELECT 1 FROM task_running WHERE session_id = $1)")
	cancelledHeld  = driver.New("a session's cancelled leases", "",
		"SELECT r.task_id, r.lease_version FROM task_running r JOIN job_holds h ON h.job_id = r.job_id AND h.kind = 2 AND h.cause <> 4 WHERE r.session_id = $1 ORDER BY r.task_id")
	queueNumbers = driver.New("find queues", "name text", "SELECT q.id, q.name FROM {rows} JOIN queues q ON q.name = {name}")
)

func scanSession(r driver.Row) (s SessionRow, err error) {
	var queues, kinds, labels, resources string
	var draining, ended int16
	if err = r.Scan(&s.ID, &s.Tenant, &s.Actor, &s.Worker, &queues, &kinds, &labels, &s.Slots, &s.Version, &draining, (*int64)(&s.StartedAt), (*int64)(&s.ExpiresAt), &ended, &resources); err != nil {
		return s, err
	}
	s.Draining, s.Ended = draining != 0, ended != 0
	return s, errors.Join(json.Unmarshal([]byte(queues), &s.Queues), json.Unmarshal([]byte(kinds), &s.Kinds), json.Unmarshal([]byte(labels), &s.Labels), json.Unmarshal([]byte(resources), &s.Resources))
}

func toJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings only
	}
	return string(b)
}

// InsertSession stores a new session and sets its ID.
func InsertSession(ctx context.Context, tx Tx, s *SessionRow) error {
	return tx.Pipe(ctx, Stmt{Text: insertSession, Args: []any{s.Tenant, s.Actor, s.Worker, toJSON(s.Queues), toJSON(s.Kinds), toJSON(s.Labels), s.Slots, s.Version, int64(s.StartedAt), int64(s.ExpiresAt), toJSON(s.Resources)},
		Scan: func(r driver.Row) error { return r.Scan(&s.ID) }})
}

// How ReadSessions locks the rows, until the transaction ends.
const (
	Unlocked = iota
	Shared   // nobody ends them
	Locked   // and nobody else claims for them
)

// ReadSessions reads sessions; ids must be sorted.
func ReadSessions(ids []int64, lock int, rows map[int64]SessionRow) Stmt {
	text := [...]*driver.Text{readSessions, shareSessions, lockSessions}[lock]
	return Stmt{Text: text, Cols: []any{ids}, Scan: func(r driver.Row) error {
		s, err := scanSession(r)
		rows[s.ID] = s
		return err
	}}
}

// RenewSession extends a session that has not expired; its ID is 0 when it has.
func RenewSession(ctx context.Context, tx Tx, id int64, until instant, draining bool, now instant) (s SessionRow, err error) {
	err = tx.Pipe(ctx, Stmt{Text: renewSession, Args: []any{id, int64(until), flag(draining), int64(now)}, Scan: func(r driver.Row) (err error) { s, err = scanSession(r); return err }})
	return s, err
}

// EndSession ends a session at once.
func EndSession(id int64, now instant) Stmt {
	return Stmt{Text: endSession, Args: []any{id, int64(now)}}
}

// ReapSessions ends up to n sessions that have expired.
func ReapSessions(now instant, n int, ids *[]int64) Stmt {
	return Stmt{Text: reapSessions, Args: []any{int64(now), int64(n)}, Scan: into(ids, scanInt)}
}

// SessionsToClear names sessions whose tasks must be taken back: those that have
// ended, and those of which there is no record.
func SessionsToClear(n int, ids *[]int64) []Stmt {
	return []Stmt{
		{Text: endingSessions, Args: []any{int64(n)}, Scan: into(ids, scanInt)},
		{Text: lostSessions, Args: []any{int64(n)}, Scan: into(ids, scanInt)},
	}
}

// ClearedSession records that an ended session holds nothing any more, if so: a
// take that found nothing may have missed a row that changed meanwhile.
func ClearedSession(id int64) Stmt { return Stmt{Text: clearedSession, Args: []any{id}} }

func scanInt(r driver.Row) (v int64, err error) { err = r.Scan(&v); return v, err }

// LiveSessions reads every session that has not ended.
func LiveSessions(rows *[]SessionRow) Stmt {
	return Stmt{Text: liveSessions, Scan: into(rows, scanSession)}
}

// CancelledLeases reads the leases of a session whose jobs are being cancelled.
func CancelledLeases(session int64, rows *[]drover.Held) Stmt {
	return Stmt{Text: cancelledHeld, Args: []any{session}, Scan: into(rows, func(r driver.Row) (h drover.Held, err error) {
		err = r.Scan((*[16]byte)(&h.TaskID), &h.LeaseVersion)
		return h, err
	})}
}

// QueueNumbers returns the numbers of the queues that exist, in the order named.
// What else is to be read goes with it.
func QueueNumbers(ctx context.Context, tx Tx, names []string, more ...Stmt) ([]int32, error) {
	at := map[string]int32{}
	err := tx.Pipe(ctx, append(more, Stmt{Text: queueNumbers, Cols: []any{names}, Scan: func(r driver.Row) error {
		var id int32
		var name string
		err := r.Scan(&id, &name)
		at[name] = id
		return err
	}})...)
	var ids []int32
	for _, n := range names {
		if id, ok := at[n]; ok {
			ids = append(ids, id)
			delete(at, n)
		}
	}
	return ids, err
}

var (
	stopping = driver.New("note that tasks are being stopped", "task_id uuid, lease_version int", "INSERT INTO task_stops (task_id, lease_version, at) SELECT {task_id}, {lease_version}, $1 {from} WHERE true "+
		"ON CONFLICT (task_id) DO UPDATE SET lease_version = excluded.lease_version, at = excluded.at WHERE task_stops.lease_version <> excluded.lease_version")
	readStops = driver.New("how far cancels of tasks have come", "task_id uuid, lease_version int, job_id uuid",
		"SELECT {task_id}, h.at, coalesce(s.at, 0) FROM {rows} JOIN job_holds h ON h.job_id = {job_id} AND h.kind = 2 AND h.cause <> 4 LEFT JOIN task_stops s ON s.task_id = {task_id} AND s.lease_version = {lease_version}")
)

// Stop is how far the cancel of a running task has come; Acknowledged is zero
// while its worker has not said that it stops.
type Stop struct{ Requested, Acknowledged instant }

// Stopping notes when workers said that they stop tasks: the first time of each
// lease counts. The leases must be sorted by task.
func Stopping(leases []drover.Held, at instant) Stmt {
	return Stmt{Text: stopping, Cols: []any{col(leases, func(h *drover.Held) [16]byte { return [16]byte(h.TaskID) }), col(leases, func(h *drover.Held) int32 { return h.LeaseVersion })}, Args: []any{int64(at)}}
}

// ReadStops reads how far the cancels of running tasks have come; tasks whose job
// is not being cancelled are left out.
func ReadStops(tasks []lifecycle.Task, stops map[drover.TaskID]Stop) Stmt {
	type t = lifecycle.Task
	return Stmt{Text: readStops, Cols: []any{col(tasks, func(x *t) [16]byte { return [16]byte(x.ID) }), col(tasks, func(x *t) int32 { return x.LeaseVersion }), col(tasks, func(x *t) [16]byte { return [16]byte(x.Job) })},
		Scan: func(r driver.Row) error {
			var id drover.TaskID
			var s Stop
			err := r.Scan((*[16]byte)(&id), (*int64)(&s.Requested), (*int64)(&s.Acknowledged))
			stops[id] = s
			return err
		}}
}
