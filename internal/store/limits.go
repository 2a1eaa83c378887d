package store

import (
	"context"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store/driver"
)

// LimitRow is a row of limits.
type LimitRow struct {
	ID, Tenant int32
	Name       string
	Scope      int16
	Queue      int32
	Kind       string
	Permits    int64
	Period     int64 // nanoseconds; 0 is no rate
	Burst      int64
	Arrival    int64 // nanoseconds
	Until      instant
	Written    bool
	Auto       bool // a lock that a handler named
	Wanted     bool // tasks wait for it, so the admitter says what handlers get of it
	Version    int32
	CreatedAt  instant
	UpdatedAt  instant
	Actor      string
}

const limitCols = "id, tenant, name, scope, queue, kind, permits, period, burst, arrival, until, written, auto, wanted, version, created_at, updated_at, actor"

var (
	readLimits  = driver.New("read limits", "", "SELECT "+limitCols+" FROM limits WHERE auto = 0 ORDER BY id")
	lockLimit   = driver.New("lock a limit", "", "SELECT "+limitCols+" FROM limits WHERE tenant = $1 AND name = $2 {for update}")
	insertLimit = driver.New("insert limit", "",
		"INSERT INTO limits ("+limitCols+") SELECT coalesce(max(id), 0) + 1, $1, $2, $3, $4, $5, $6, $7, $8, 0, 0, 0, 0, 0, 1, $9, $9, $10 FROM limits")
	// A limit's number is used again only when it was the highest and nothing of it is left.
	updateLimit = driver.New("update limit", "",
		"UPDATE limits SET permits = $3, period = $4, burst = $5, version = version + 1, updated_at = $6, actor = $7 WHERE tenant = $1 AND name = $2")
	deleteLimit   = driver.New("delete limit", "", "DELETE FROM limits WHERE tenant = $1 AND name = $2")
	limitWritten  = driver.New("permits of a limit are written", "id int", "UPDATE limits SET written = 1 {from} WHERE limits.id = {id}")
	useRates      = driver.New("use rates", "id int, arrival bigint", "UPDATE limits SET arrival = {arrival} {from} WHERE limits.id = {id}")
	waitRates     = driver.New("leave downstreams alone", "id int, until bigint", "UPDATE limits SET until = {until} {from} WHERE limits.id = {id} AND limits.until < {until}")
	dropLimitsOf  = driver.New("delete permits of a limit", "", "DELETE FROM permits WHERE limit_id = $1")
	permitUsage   = driver.New("sum permits", "", "SELECT limit_id, key, CAST(sum(weight) AS BIGINT), count(*) FROM permits WHERE weight > 0 GROUP BY limit_id, key ORDER BY limit_id, key")
	insertPermits = driver.Insert("insert permits", "permits", "task_id uuid, limit_id int, key text, weight bigint, at bigint")
	// What is admitted before a limit is there gets its permit later, and may have it.
	addPermits = driver.New("add permits", "task_id uuid, limit_id int, key text, weight bigint, at bigint",
		"INSERT INTO permits (task_id, limit_id, key, weight, at) SELECT {task_id}, {limit_id}, {key}, {weight}, {at} {from} {lite:WHERE true }ON CONFLICT DO NOTHING")
	deletePermits = driver.New("delete permits", "task_id uuid", "DELETE FROM permits {using} WHERE permits.task_id = {task_id}")
	holders       = driver.New("holders of a limit", "", "SELECT p.task_id, t.job_id, t.tenant, p.key, p.weight, p.at, p.token FROM permits p JOIN tasks t ON t.id = p.task_id WHERE p.limit_id = $1 AND p.weight > 0 ORDER BY p.limit_id, p.key, p.at, p.task_id LIMIT $2")
	holdersOf     = driver.New("holders of a limit's key", "", "SELECT p.task_id, t.job_id, t.tenant, p.key, p.weight, p.at, p.token FROM permits p JOIN tasks t ON t.id = p.task_id WHERE p.limit_id = $1 AND p.key = $2 AND p.weight > 0 ORDER BY p.limit_id, p.key, p.at, p.task_id LIMIT $3")
	lostPermits   = driver.New("delete permits that nobody holds", "", "DELETE FROM permits WHERE "+heldByNobody)
	countLost     = driver.New("count permits that nobody holds", "", "SELECT count(*) FROM permits WHERE "+heldByNobody)

	heldByNobody = "(permits.number > 0 OR NOT EXISTS (SELECT 1 FROM task_queued q JOIN lanes l ON l.id = q.lane AND l.stage = 1 JOIN tasks t ON t.id = q.task_id WHERE t.id = permits.task_id AND q.job_id = t.job_id AND q.node = t.node AND q.idx = t.idx)) " +
		"AND NOT EXISTS (SELECT 1 FROM task_running r JOIN lanes l ON l.id = r.lane AND l.stage = 1 WHERE r.task_id = permits.task_id)"

	insertChange = driver.New("insert limit change", "", "INSERT INTO limit_changes (tenant, name, action, actor, reason, at, was, becomes) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)")
	listChanges  = driver.New("list limit changes", "", "SELECT id, name, action, actor, reason, at, was, becomes FROM limit_changes WHERE tenant = $1 AND name = $2 ORDER BY tenant, name, id DESC LIMIT $3")

	readGate = driver.New("read gate", "", "SELECT epoch, changed_at FROM gates WHERE id = 1")
	liftGate = driver.New("raise the epoch of the gate", "", "UPDATE gates SET epoch = epoch + 1, changed_at = CASE WHEN $1 > changed_at THEN $1 ELSE changed_at END WHERE id = 1")

	particularQueues = driver.New("queues with particular tasks", "", "SELECT DISTINCT queue FROM lanes WHERE stage = 1 AND needs <> '' ORDER BY queue")
	queueStates      = driver.New("read queue states", "", "SELECT id, name, paused, draining, changed_at, actor, reason, reserves FROM queues WHERE paused <> 0 OR draining <> 0 OR reserves <> '' ORDER BY id")
	queueState       = driver.New("lock a queue", "", "SELECT id, name, paused, draining, changed_at, actor, reason, reserves FROM queues WHERE name = $1 {for update}")
	setQueue         = driver.New("store queue state", "", "UPDATE queues SET paused = $2, draining = $3, changed_at = $4, actor = $5, reason = $6, reserves = $7 WHERE id = $1")
	tenantWeights    = driver.New("read tenants' weights", "", "SELECT id, weight FROM tenants WHERE weight <> 1 ORDER BY id")
	listTenants      = driver.New("list tenants", "", "SELECT id, name, weight FROM tenants WHERE id <> 0 ORDER BY name")
	lockTenant       = driver.New("lock a tenant", "", "SELECT id, name, weight FROM tenants WHERE name = $1 {for update}")
	setTenant        = driver.New("store tenant's share", "", "UPDATE tenants SET weight = $2 WHERE id = $1")
)

func scanLimit(r driver.Row) (l LimitRow, err error) {
	var written, auto, wanted int16
	err = r.Scan(&l.ID, &l.Tenant, &l.Name, &l.Scope, &l.Queue, &l.Kind, &l.Permits, &l.Period, &l.Burst, &l.Arrival, (*int64)(&l.Until), &written, &auto, &wanted, &l.Version, (*int64)(&l.CreatedAt), (*int64)(&l.UpdatedAt), &l.Actor)
	l.Written, l.Auto, l.Wanted = written != 0, auto != 0, wanted != 0
	return l, err
}

// ReadLimits reads every limit, by number.
func ReadLimits(rows *[]LimitRow) Stmt {
	return Stmt{Text: readLimits, Scan: into(rows, scanLimit)}
}

// LockLimit locks and reads a limit, if there is one.
func LockLimit(tenant int32, name string, rows *[]LimitRow) Stmt {
	return Stmt{Text: lockLimit, Args: []any{tenant, name}, Scan: into(rows, scanLimit)}
}

// InsertLimit stores a new limit; its number is made here.
func InsertLimit(l LimitRow) Stmt {
	return Stmt{Text: insertLimit, Args: []any{l.Tenant, l.Name, l.Scope, l.Queue, l.Kind, l.Permits, l.Period, l.Burst, int64(l.UpdatedAt), l.Actor}}
}

// UpdateLimit stores how much a limit has.
func UpdateLimit(l LimitRow) Stmt {
	return Stmt{Text: updateLimit, Args: []any{l.Tenant, l.Name, l.Permits, l.Period, l.Burst, int64(l.UpdatedAt), l.Actor}}
}

// DeleteLimit removes a limit and the permits of it.
func DeleteLimit(l LimitRow) []Stmt {
	return []Stmt{{Text: dropLimitsOf, Args: []any{l.ID}}, {Text: deleteLimit, Args: []any{l.Tenant, l.Name}}}
}

// LimitsWritten records that everybody who stands in a lane of stage 1 has a permit of the limits.
func LimitsWritten(ids []int32) Stmt { return Stmt{Text: limitWritten, Cols: []any{ids}} }

// UseRates stores until when rates are used up.
func UseRates(ids []int32, arrivals []int64) Stmt {
	return Stmt{Text: useRates, Cols: []any{ids, arrivals}}
}

// WaitRates lets nothing of rates start before a time.
func WaitRates(ids []int32, until []int64) Stmt {
	return Stmt{Text: waitRates, Cols: []any{ids, until}}
}

// Usage is what is held of a limit, of one key where it counts by key.
type Usage struct {
	Limit   int32
	Key     string
	Weight  int64
	Holders int64
}

// PermitUsage sums what is held of every limit.
func PermitUsage(rows *[]Usage) Stmt {
	return Stmt{Text: permitUsage, Scan: into(rows, func(r driver.Row) (u Usage, err error) {
		err = r.Scan(&u.Limit, &u.Key, &u.Weight, &u.Holders)
		return u, err
	})}
}

// Permit is a row of permits.
type Permit struct {
	Task   drover.TaskID
	Limit  int32
	Key    string
	Weight int64
	At     instant
}

func permitCols(list []Permit) []any {
	return []any{
		col(list, func(p *Permit) [16]byte { return p.Task }), col(list, func(p *Permit) int32 { return p.Limit }), col(list, func(p *Permit) string { return p.Key }),
		col(list, func(p *Permit) int64 { return p.Weight }), col(list, func(p *Permit) int64 { return int64(p.At) }),
	}
}

// InsertPermits stores the permits of tasks that are being admitted.
func InsertPermits(list []Permit) Stmt { return Stmt{Text: insertPermits, Cols: permitCols(list)} }

// AddPermits stores the permits of tasks that were admitted before; those that are there stay.
func AddPermits(list []Permit) Stmt { return Stmt{Text: addPermits, Cols: permitCols(list)} }

// DeletePermits gives back all that tasks hold.
func DeletePermits(tasks []drover.TaskID) Stmt {
	return Stmt{Text: deletePermits, Cols: []any{col(tasks, func(id *drover.TaskID) [16]byte { return *id })}}
}

// LostPermits deletes the permits of tasks that do not stand in a lane of stage 1.
func LostPermits(n *int64) Stmt { return Stmt{Text: lostPermits, Affected: n} }

// CountLostPermits counts what LostPermits would delete.
func CountLostPermits(n *int64) Stmt {
	return Stmt{Text: countLost, Scan: func(r driver.Row) error { return r.Scan(n) }}
}

// PermitHolder is a task that holds permits of a limit.
type PermitHolder struct {
	Task   drover.TaskID
	Job    drover.JobID
	Tenant int32
	Key    string
	Weight int64
	At     instant
	Token  int64 // of what its handler took; 0 is what it was admitted with
}

// Holders reads who holds permits of a limit, by key and the longest first.
func Holders(limit int32, n int, rows *[]PermitHolder) Stmt {
	return Stmt{Text: holders, Args: []any{limit, int64(n)}, Scan: into(rows, scanHolder)}
}

// HoldersOf reads who holds permits of a limit that are counted by a key, which is
// empty where there is none; the longest first.
func HoldersOf(limit int32, key string, n int, rows *[]PermitHolder) Stmt {
	return Stmt{Text: holdersOf, Args: []any{limit, key, int64(n)}, Scan: into(rows, scanHolder)}
}

func scanHolder(r driver.Row) (h PermitHolder, err error) {
	err = r.Scan((*[16]byte)(&h.Task), (*[16]byte)(&h.Job), &h.Tenant, &h.Key, &h.Weight, (*int64)(&h.At), &h.Token)
	return h, err
}

// LimitChange is a row of limit_changes.
type LimitChange struct {
	ID                          int64
	Tenant                      int32
	Name, Action, Actor, Reason string
	At                          instant
	Was, Becomes                string // JSON, or empty
}

// InsertLimitChange stores who changed what.
func InsertLimitChange(c LimitChange) Stmt {
	return Stmt{Text: insertChange, Args: []any{c.Tenant, c.Name, c.Action, c.Actor, c.Reason, int64(c.At), c.Was, c.Becomes}}
}

// LimitChanges reads the changes of a limit, newest first.
func LimitChanges(tenant int32, name string, n int, rows *[]LimitChange) Stmt {
	return Stmt{Text: listChanges, Args: []any{tenant, name, int64(n)}, Scan: into(rows, func(r driver.Row) (c LimitChange, err error) {
		c.Tenant = tenant
		err = r.Scan(&c.ID, &c.Name, &c.Action, &c.Actor, &c.Reason, (*int64)(&c.At), &c.Was, &c.Becomes)
		return c, err
	})}
}

// Gate is the row of gates.
type Gate struct {
	Epoch     int64
	ChangedAt instant
}

// ReadGate reads the epoch of what has to be admitted.
func ReadGate(g *Gate) Stmt {
	return Stmt{Text: readGate, Scan: func(r driver.Row) error { return r.Scan(&g.Epoch, (*int64)(&g.ChangedAt)) }}
}

// LiftGate raises the epoch: what has to be admitted changes with this transaction.
func LiftGate(now instant) Stmt { return Stmt{Text: liftGate, Args: []any{int64(now)}} }

// ParticularQueues reads the queues of which not every worker runs every admitted task.
func ParticularQueues(ids *[]int32) Stmt {
	return Stmt{Text: particularQueues, Scan: into(ids, scanInt32)}
}

// QueueState is what is set of a queue.
type QueueState struct {
	ID               int32
	Name             string
	Paused, Draining bool
	ChangedAt        instant
	Actor, Reason    string
	Reserves         string // JSON of what is kept for classes; empty is nothing
}

func scanQueueState(r driver.Row) (q QueueState, err error) {
	var paused, draining int16
	err = r.Scan(&q.ID, &q.Name, &paused, &draining, (*int64)(&q.ChangedAt), &q.Actor, &q.Reason, &q.Reserves)
	q.Paused, q.Draining = paused != 0, draining != 0
	return q, err
}

// QueueStates reads the queues of which something is set.
func QueueStates(rows *[]QueueState) Stmt {
	return Stmt{Text: queueStates, Scan: into(rows, scanQueueState)}
}

// LockQueue locks and reads a queue, if there is one.
func LockQueue(name string, rows *[]QueueState) Stmt {
	return Stmt{Text: queueState, Args: []any{name}, Scan: into(rows, scanQueueState)}
}

// SetQueue stores what is set of a queue.
func SetQueue(q QueueState) Stmt {
	return Stmt{Text: setQueue, Args: []any{q.ID, flag(q.Paused), flag(q.Draining), int64(q.ChangedAt), q.Actor, q.Reason, q.Reserves}}
}

// TenantShare is what is set of a tenant.
type TenantShare struct {
	ID     int32
	Weight float64
}

// TenantShares reads the tenants of which something is set.
func TenantShares(rows *[]TenantShare) Stmt {
	return Stmt{Text: tenantWeights, Scan: into(rows, func(r driver.Row) (t TenantShare, err error) {
		err = r.Scan(&t.ID, &t.Weight)
		return t, err
	})}
}

// TenantRow is a tenant with what is set of it.
type TenantRow struct {
	TenantShare
	Name string
}

func scanTenant(r driver.Row) (t TenantRow, err error) {
	err = r.Scan(&t.ID, &t.Name, &t.Weight)
	return t, err
}

// ListTenants reads every tenant but that of the installation, by name.
func ListTenants(rows *[]TenantRow) Stmt {
	return Stmt{Text: listTenants, Scan: into(rows, scanTenant)}
}

// LockTenant locks and reads a tenant, if there is one.
func LockTenant(name string, rows *[]TenantRow) Stmt {
	return Stmt{Text: lockTenant, Args: []any{name}, Scan: into(rows, scanTenant)}
}

// SetTenant stores what is set of a tenant.
func SetTenant(t TenantShare) Stmt {
	return Stmt{Text: setTenant, Args: []any{t.ID, t.Weight}}
}

// The leader of the admitter.
var (
	lead      = driver.New("lead", "", "UPDATE leaders SET holder = $2, term = term + CASE WHEN holder = $2 THEN 0 ELSE 1 END, expires_at = $3 WHERE name = $1 AND (holder = $2 OR expires_at <= $4) RETURNING term")
	leaderNow = driver.New("read leader", "", "SELECT holder, term, expires_at FROM leaders WHERE name = $1")
	lockLead  = driver.New("lock leader", "", "SELECT term FROM leaders WHERE name = $1 {for update}")
	waitLead  = driver.New("do not hold a lead for long", "", "{pg:SELECT set_config('idle_in_transaction_session_timeout', '2s', true)}{lite:SELECT 1}")
)

// Leader is a row of leaders.
type Leader struct {
	Holder    string
	Term      int64
	ExpiresAt instant
}

// ReadLeader reads who leads.
func ReadLeader(name string, l *Leader) Stmt {
	return Stmt{Text: leaderNow, Args: []any{name}, Scan: func(r driver.Row) error { return r.Scan(&l.Holder, &l.Term, (*int64)(&l.ExpiresAt)) }}
}

// LockLeader keeps whoever leads from what a leader does, until the transaction ends.
func LockLeader(name string) Stmt { return Stmt{Text: lockLead, Args: []any{name}} }

// Lead takes or keeps the lead until a time, and locks it until the transaction ends:
// nobody else leads meanwhile. The term is 0 when somebody else does. A process that
// stops in the middle loses its transaction after two seconds.
func Lead(ctx context.Context, tx Tx, name, holder string, now, until instant) (term int64, err error) {
	err = tx.Pipe(ctx, Stmt{Text: waitLead}, Stmt{Text: lead, Args: []any{name, holder, int64(until), int64(now)}, Scan: func(r driver.Row) error { return r.Scan(&term) }})
	return term, err
}

// What stands where.
var (
	countRunning = driver.New("count running by session, lane and class", "", "SELECT session_id, lane, class, queue, count(*) FROM task_running GROUP BY session_id, lane, class, queue ORDER BY session_id, lane, class, queue")
	readyKeys    = "queue int, class smallint, lane int, due_at bigint, task_id uuid"
	takeReadies  = driver.New("take these ready", readyKeys,
		"DELETE FROM task_ready {using} WHERE task_ready.queue = {queue} AND task_ready.class = {class} AND task_ready.lane = {lane} AND task_ready.due_at = {due_at} AND task_ready.task_id = {task_id} RETURNING "+qualify("task_ready", readyCols))
	takeLane = driver.New("take a lane's queued", "", take("task_queued", "queue, class, lane, due_at, task_id", "queue = $1 AND class = $2 AND lane = $3", "queue, class, lane, due_at, task_id", "$4", "FOR UPDATE", queuedCols))
	// Rows of task_running that somebody has locked are leaving it. They are not waited
	// for: whoever has them may wait for a queued row.
	adoptLane = driver.New("stand a lane's running in another", "", "UPDATE task_running SET lane = $2 WHERE {pg:ctid = ANY(ARRAY(SELECT ctid FROM task_running WHERE lane = $1 FOR UPDATE SKIP LOCKED))}{lite:lane = $1} RETURNING "+runningCols)
	lanesIn   = driver.New("lock who stands in lanes", "lane int",
		"SELECT r.task_id, "+homeLane+" FROM {rows} JOIN task_running r ON r.lane = {lane} JOIN tasks t ON t.id = r.task_id ORDER BY r.task_id {pg:FOR UPDATE OF r SKIP LOCKED}")
	queuedIn = driver.New("lock who is queued in lanes", "queue int, class smallint, lane int",
		"SELECT q.task_id, "+homeLane+" FROM {rows} JOIN task_queued q ON q.queue = {queue} AND q.class = {class} AND q.lane = {lane} JOIN tasks t ON t.id = q.task_id ORDER BY q.task_id {for update of q}")
	permitsOf = "min((SELECT count(*) FROM permits p WHERE p.task_id = x.task_id AND p.number = 0))"
	leastRun  = driver.New("least permits in lanes", "lane int", "SELECT 0, 0, {lane}, "+homeLane+", count(*), "+permitsOf+" FROM {rows} JOIN task_running x ON x.lane = {lane} JOIN tasks t ON t.id = x.task_id GROUP BY 3, 4")
	leastLine = driver.New("least permits in queued lines", "queue int, class smallint, lane int",
		"SELECT {queue}, {class}, {lane}, "+homeLane+", count(x.node), "+permitsOf+" FROM {rows} JOIN task_queued x ON x.queue = {queue} AND x.class = {class} AND x.lane = {lane} JOIN tasks t ON t.id = x.task_id GROUP BY 1, 2, 3, 4")
	sessionLanes = driver.New("count a session's running by lane", "", "SELECT lane, count(*) FROM task_running WHERE session_id = $1 GROUP BY lane ORDER BY lane")
	heldAmong    = driver.New("which jobs are held", "id uuid", "SELECT DISTINCT h.job_id FROM {rows} JOIN job_holds h ON h.job_id = {id} AND h.kind < 3")
	anyReady     = driver.New("is anything ready", "", "SELECT (SELECT count(*) FROM (SELECT 1 FROM task_ready WHERE lane <> 0 ORDER BY queue LIMIT 1) r), (SELECT count(*) FROM (SELECT 1 FROM permits LIMIT 1) p) + (SELECT count(*) FROM (SELECT 1 FROM limits WHERE auto = 1 LIMIT 1) l), "+
		"(SELECT count(*) FROM (SELECT 1 FROM permits p JOIN limits l ON l.id = p.limit_id AND l.wanted = 1 WHERE p.number > 0 AND p.limit_id > 0 AND p.weight = 0 LIMIT 1) a)")
)

// Load is how many tasks of a lane and class a session runs.
type Load struct {
	Session int64
	Lane    int32
	Class   drover.Class
	Queue   int32
	Count   int64
}

// RunningLoads counts what every session runs, by lane and class.
func RunningLoads(rows *[]Load) Stmt {
	return Stmt{Text: countRunning, Scan: into(rows, func(r driver.Row) (l Load, err error) {
		err = r.Scan(&l.Session, &l.Lane, (*int16)(&l.Class), &l.Queue, &l.Count)
		return l, err
	})}
}

// SessionLanes counts what a session runs, by lane.
func SessionLanes(session int64, counts map[int32]int64) Stmt {
	return Stmt{Text: sessionLanes, Args: []any{session}, Scan: func(r driver.Row) error {
		var lane int32
		var n int64
		err := r.Scan(&lane, &n)
		counts[lane] = n
		return err
	}}
}

// HeldAmong reads which of the jobs must not start anything.
func HeldAmong(jobs []drover.JobID, held map[drover.JobID]bool) Stmt {
	return Stmt{Text: heldAmong, Cols: []any{jobIDs(jobs)}, Scan: func(r driver.Row) error {
		var id drover.JobID
		err := r.Scan((*[16]byte)(&id))
		held[id] = true
		return err
	}}
}

// AnyReady tells if a READY task stands in a line, if there are permits or locks of
// handlers at all, and if a handler waits for a limit that tasks wait for too.
func AnyReady(ready, permits, asked *bool) Stmt {
	return Stmt{Text: anyReady, Scan: func(r driver.Row) error {
		var lined, held, waits int64
		err := r.Scan(&lined, &held, &waits)
		*ready, *permits, *asked = lined > 0, held > 0, waits > 0
		return err
	}}
}

// TakeReadies removes READY rows by their keys, those that are still there.
func TakeReadies(tasks []lifecycle.Task, taken *[]lifecycle.Task) Stmt {
	type t = lifecycle.Task
	return Stmt{Text: takeReadies, Cols: []any{
		col(tasks, func(x *t) int32 { return x.Queue }), col(tasks, func(x *t) int16 { return int16(x.Class) }), col(tasks, func(x *t) int32 { return x.Lane }),
		col(tasks, func(x *t) int64 { return int64(x.DueAt) }), col(tasks, func(x *t) [16]byte { return x.ID }),
	}, Scan: into(taken, scanReady)}
}

// TakeLaneQueued removes up to n of the QUEUED rows of a line; it waits for claims in flight.
func TakeLaneQueued(l Line, n int, rows *[]lifecycle.Task) Stmt {
	return Stmt{Text: takeLane, Args: []any{l.Queue, int16(l.Class), l.Lane, int64(n)}, Scan: into(rows, scanQueued)}
}

// AdoptLane stands what runs of one lane in another.
func AdoptLane(from, to int32, rows *[]lifecycle.Task) Stmt {
	return Stmt{Text: adoptLane, Args: []any{from, to}, Scan: into(rows, scanRunning)}
}

// Standing is a task that stands in a lane of stage 1, and the lane it waited in.
type Standing struct {
	Task drover.TaskID
	Home int32
}

func scanStanding(r driver.Row) (s Standing, err error) {
	err = r.Scan((*[16]byte)(&s.Task), &s.Home)
	return s, err
}

// LockStanding locks and reads who stands in lanes: QUEUED rows first, which waits for
// claims in flight.
func LockStanding(queued []Line, lanes []int32, rows *[]Standing) []Stmt {
	return []Stmt{
		{Text: queuedIn, Cols: lineCols(queued), Scan: into(rows, scanStanding)},
		{Text: lanesIn, Cols: []any{lanes}, Scan: into(rows, scanStanding)},
	}
}

func lineCols(list []Line) []any {
	return []any{col(list, func(l *Line) int32 { return l.Queue }), col(list, func(l *Line) int16 { return int16(l.Class) }), col(list, func(l *Line) int32 { return l.Lane })}
}

// LeastPermits is how many permits the one has that has the fewest of those who stand
// in a lane and waited in another. Line counts them, and has a queue where they are QUEUED.
type LeastPermits struct {
	Line
	Home    int32
	Permits int64
}

// LeastPermitsIn reads how many permits those have who stand in lanes. It locks nothing.
func LeastPermitsIn(queued []Line, lanes []int32, rows *[]LeastPermits) []Stmt {
	scan := into(rows, func(r driver.Row) (l LeastPermits, err error) {
		err = r.Scan(&l.Queue, (*int16)(&l.Class), &l.Lane, &l.Home, &l.Count, &l.Permits)
		return l, err
	})
	return []Stmt{{Text: leastLine, Cols: lineCols(queued), Scan: scan}, {Text: leastRun, Cols: []any{lanes}, Scan: scan}}
}

// Line is a class of a lane in a queue; in task_queued with how many stand there.
type Line struct {
	Queue int32
	Class drover.Class
	Lane  int32
	Count int64
}

var (
	auditStanding = driver.New("audit of who is admitted", "",
		"SELECT x.task_id, x.job_id, coalesce("+homeLane+", 0) FROM (SELECT task_id, job_id, lane FROM task_queued WHERE job_id >= $1 UNION ALL SELECT task_id, job_id, lane FROM task_running WHERE job_id >= $1) x "+
			"JOIN lanes l ON l.id = x.lane AND l.stage = 1 LEFT JOIN tasks t ON t.id = x.task_id ORDER BY 1, 2")
	auditPermit = driver.New("audit of permits", "", "SELECT p.task_id, t.job_id, p.limit_id, p.key, p.weight, p.number, p.wants, p.token, CASE WHEN r.task_id IS NULL THEN 0 ELSE 1 END FROM permits p LEFT JOIN task_running r ON r.task_id = p.task_id JOIN tasks t ON t.id = p.task_id WHERE t.job_id >= $1 ORDER BY 1, 3")
)

// AuditStanding is a task in a lane of stage 1.
type AuditStanding struct {
	Task drover.TaskID
	Job  drover.JobID
	Home int32 // the lane it waited in
}

// AuditStandings reads who stands in lanes of stage 1.
func AuditStandings(from drover.JobID, rows *[]AuditStanding) Stmt {
	return Stmt{Text: auditStanding, Args: []any{[16]byte(from)}, Scan: into(rows, func(r driver.Row) (s AuditStanding, err error) {
		err = r.Scan((*[16]byte)(&s.Task), (*[16]byte)(&s.Job), &s.Home)
		return s, err
	})}
}

// AuditPermit is a permit with its holder's job.
type AuditPermit struct {
	Task   drover.TaskID
	Job    drover.JobID
	Limit  int32
	Key    string
	Weight int64
	// Of what the handler of a running task asked for; see Asked.
	Number       int32
	Wants, Token int64
	Runs         bool // the task runs
}

// AuditPermits hands on every permit.
func AuditPermits(from drover.JobID, see func(AuditPermit)) Stmt {
	return Stmt{Text: auditPermit, Args: []any{[16]byte(from)}, Scan: func(r driver.Row) error {
		var p AuditPermit
		var runs int16
		err := r.Scan((*[16]byte)(&p.Task), (*[16]byte)(&p.Job), &p.Limit, &p.Key, &p.Weight, &p.Number, &p.Wants, &p.Token, &runs)
		p.Runs = runs != 0
		if err == nil {
			see(p)
		}
		return err
	}}
}
