package store

import (
	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store/driver"
)

// Asked is a row of permits that the handler of a running task asked for.
type Asked struct {
	Task   drover.TaskID
	Limit  int32 // 0: it was given back
	Number int32 // of the handler's request
	Weight int64 // that is held; 0 while it is waited for
	Wants  int64
	At     instant // since when it is held or waited for
	Until  instant // the handler must ask again before, while it waits
	Token  int64   // fences what the handler does while it holds it
}

// Held tells if the handler has what it asked for.
func (a *Asked) Held() bool { return a.Weight > 0 }

// Waits tells if it waits for it.
func (a *Asked) Waits() bool { return a.Weight == 0 && a.Limit > 0 }

const (
	askedCols = "p.task_id, p.limit_id, p.number, p.weight, p.wants, p.at, p.until, p.token"
	askedKeys = "task_id uuid, limit_id int, number int"
	isAsked   = "permits.task_id = {task_id} AND permits.limit_id = {limit_id} AND permits.number = {number}"
)

var (
	lockTokens  = driver.New("lock leader and read the last token", "", "SELECT token FROM leaders WHERE name = $1 {for update}")
	setToken    = driver.New("store the last token", "", "UPDATE leaders SET token = $2 WHERE name = $1")
	lockLeases  = driver.New("lock leases", "id uuid", "SELECT r.task_id, r.job_id, r.lease_version, r.generation, r.lane, t.tenant, t.pipeline FROM {rows} JOIN task_running r ON r.task_id = {id} JOIN tasks t ON t.id = r.task_id ORDER BY {id} {for update of r}")
	standIn     = driver.New("stand running in lanes", "id uuid, lane int", "UPDATE task_running SET lane = {lane} {from} WHERE task_running.task_id = {id}")
	limitsNamed = driver.New("find limits by name", "tenant int, name text", "SELECT "+qualify("l", limitCols)+" FROM {rows} JOIN limits l ON l.name = {name} AND l.tenant IN ({tenant}, 0) ORDER BY l.id")
	limitsByID  = driver.New("find limits by number", "id int", "SELECT "+qualify("l", limitCols)+" FROM {rows} JOIN limits l ON l.id = {id} ORDER BY l.id")
	limitUsage  = driver.New("sum permits of limits", "id int", "SELECT p.limit_id, CAST(sum(p.weight) AS BIGINT) FROM {rows} JOIN permits p ON p.limit_id = {id} AND p.weight > 0 GROUP BY p.limit_id")
	insertLock  = driver.New("make a lock", "", "INSERT INTO limits (id, tenant, name, scope, queue, kind, permits, period, burst, arrival, until, written, auto, version, created_at, updated_at, actor) "+
		"SELECT coalesce(max(id), 0) + 1, $1, $2, $3, 0, '', 1, 0, 0, 0, 0, 1, 1, 1, $4, $4, '' FROM limits")
	deleteLocks = driver.New("delete locks that nobody has or wants", "", "DELETE FROM limits WHERE auto = 1 AND NOT EXISTS (SELECT 1 FROM permits p WHERE p.limit_id = limits.id)")
	adoptLock   = driver.New("make a limit of a lock", "", "UPDATE limits SET auto = 0, written = 0, permits = $3, updated_at = $4, created_at = $4, actor = $5 WHERE tenant = $1 AND name = $2 AND auto = 1")

	// The one who asks for what nobody has and nobody waits for costs none of these a row.
	askedWaits = driver.New("what handlers wait for", "", "SELECT "+askedCols+" FROM permits p WHERE p.number > 0 AND p.limit_id > 0 AND p.weight = 0 ORDER BY p.limit_id, p.at, p.task_id, p.number")
	askedOf    = driver.New("what handlers of tasks asked for", "id uuid", "SELECT "+askedCols+" FROM {rows} JOIN permits p ON p.task_id = {id} AND p.number > 0 ORDER BY p.task_id, p.number")
	askedAt    = driver.New("what handlers asked for by number", "id uuid, number int", "SELECT "+askedCols+" FROM {rows} JOIN permits p ON p.task_id = {id} AND p.number = {number} ORDER BY p.task_id, p.number")
	askedIn    = driver.New("what handlers asked for of limits", "", "SELECT "+askedCols+" FROM permits p JOIN limits l ON l.id = p.limit_id AND l.auto = 0 WHERE p.number > 0 AND p.limit_id > 0 ORDER BY p.limit_id, p.at, p.task_id, p.number")
	admittedOf = driver.New("what tasks were admitted with", "id uuid", "SELECT p.task_id, p.limit_id, p.weight FROM {rows} JOIN permits p ON p.task_id = {id} AND p.number = 0 ORDER BY p.task_id, p.limit_id")

	lockAsked   = driver.New("lock what handlers asked for", askedKeys, "SELECT p.number FROM {rows} JOIN permits p ON p.task_id = {task_id} AND p.limit_id = {limit_id} AND p.number = {number} ORDER BY p.task_id, p.limit_id, p.number {for update of p}")
	insertAsked = driver.New("insert what handlers ask for", askedKeys+", weight bigint, at bigint, wants bigint, token bigint, until bigint",
		"INSERT INTO permits (task_id, limit_id, number, key, weight, at, wants, token, until) SELECT {task_id}, {limit_id}, {number}, '', {weight}, {at}, {wants}, {token}, {until} {from}")
	grantAsked  = driver.New("give handlers what they wait for", askedKeys+", at bigint, token bigint", "UPDATE permits SET weight = wants, at = {at}, token = {token} {from} WHERE "+isAsked+" AND permits.weight = 0")
	extendAsked = driver.New("keep handlers in line", askedKeys+", until bigint", "UPDATE permits SET until = {until} {from} WHERE "+isAsked)
	deleteAsked = driver.New("delete what handlers asked for", askedKeys, "DELETE FROM permits {using} WHERE "+isAsked)

	waitersOf = driver.New("handlers that wait for a limit", "", "SELECT p.task_id, t.job_id, t.tenant, p.key, p.wants, p.at, p.token FROM permits p JOIN tasks t ON t.id = p.task_id "+
		"WHERE p.number > 0 AND p.limit_id = $1 AND p.weight = 0 ORDER BY p.limit_id, p.at, p.task_id, p.number LIMIT $2")
	wantLimits = driver.New("note which limits tasks wait for", "id int, wanted smallint", "UPDATE limits SET wanted = {wanted} {from} WHERE limits.id = {id}")
)

func scanAsked(r driver.Row) (a Asked, err error) {
	err = r.Scan((*[16]byte)(&a.Task), &a.Limit, &a.Number, &a.Weight, &a.Wants, (*int64)(&a.At), (*int64)(&a.Until), &a.Token)
	return a, err
}

// LockTokens keeps whoever leads from what a leader does, until the transaction ends,
// and reads the last token that a handler got. A process that stops in the middle loses
// its transaction after two seconds.
func LockTokens(name string, token *int64) []Stmt {
	return []Stmt{{Text: waitLead}, {Text: lockTokens, Args: []any{name}, Scan: func(r driver.Row) error { return r.Scan(token) }}}
}

// SetToken stores the last token that a handler got.
func SetToken(name string, token int64) Stmt {
	return Stmt{Text: setToken, Args: []any{name, token}}
}

// LeaseRow is the lease of a running task.
type LeaseRow struct {
	Task         drover.TaskID
	Job          drover.JobID
	LeaseVersion int32
	Generation   int32
	Lane         int32
	Tenant       int32
	Pipeline     int32
}

// LockLeases locks and reads the leases of tasks, in the order of their ids.
func LockLeases(tasks []drover.TaskID, rows *[]LeaseRow) Stmt {
	return Stmt{Text: lockLeases, Cols: taskIDs(tasks), Scan: into(rows, func(r driver.Row) (l LeaseRow, err error) {
		err = r.Scan((*[16]byte)(&l.Task), (*[16]byte)(&l.Job), &l.LeaseVersion, &l.Generation, &l.Lane, &l.Tenant, &l.Pipeline)
		return l, err
	})}
}

// StandIn stands running tasks in other lanes.
func StandIn(tasks []drover.TaskID, lanes []int32) Stmt {
	return Stmt{Text: standIn, Cols: append(taskIDs(tasks), lanes)}
}

// LimitsNamed reads the limits of these names, of tenants and of all; made by handlers or not.
func LimitsNamed(tenants []int32, names []string, rows *[]LimitRow) Stmt {
	return Stmt{Text: limitsNamed, Cols: []any{tenants, names}, Scan: into(rows, scanLimit)}
}

// LimitsByID reads limits by their numbers.
func LimitsByID(ids []int32, rows *[]LimitRow) Stmt {
	return Stmt{Text: limitsByID, Cols: []any{ids}, Scan: into(rows, scanLimit)}
}

// LimitUsage sums what is held of limits.
func LimitUsage(ids []int32, used map[int32]int64) Stmt {
	return Stmt{Text: limitUsage, Cols: []any{ids}, Scan: func(r driver.Row) error {
		var id int32
		var n int64
		err := r.Scan(&id, &n)
		used[id] = n
		return err
	}}
}

// InsertLock makes a limit of one permit that no tasks ask for, as a handler named it.
func InsertLock(tenant int32, name string, scope int16, now instant) Stmt {
	return Stmt{Text: insertLock, Args: []any{tenant, name, scope, int64(now)}}
}

// AdoptLock makes an ordinary limit of a lock that a handler named.
func AdoptLock(l LimitRow, made *int64) Stmt {
	return Stmt{Text: adoptLock, Args: []any{l.Tenant, l.Name, l.Permits, int64(l.UpdatedAt), l.Actor}, Affected: made}
}

// DeleteLocks removes the locks that handlers named and nobody has or wants any more.
func DeleteLocks() Stmt { return Stmt{Text: deleteLocks} }

// AskedWaits reads what handlers wait for, by limit and in their turn.
func AskedWaits(rows *[]Asked) Stmt { return Stmt{Text: askedWaits, Scan: into(rows, scanAsked)} }

// AskedOf reads all that the handlers of tasks asked for, by task and number.
func AskedOf(tasks []drover.TaskID, rows *[]Asked) Stmt {
	return Stmt{Text: askedOf, Cols: taskIDs(tasks), Scan: into(rows, scanAsked)}
}

// AskedAt reads single requests.
func AskedAt(tasks []drover.TaskID, numbers []int32, rows *[]Asked) Stmt {
	return Stmt{Text: askedAt, Cols: append(taskIDs(tasks), numbers), Scan: into(rows, scanAsked)}
}

// AskedIn reads what handlers hold and wait for of limits that somebody has set, by
// limit and in their turn.
func AskedIn(rows *[]Asked) Stmt { return Stmt{Text: askedIn, Scan: into(rows, scanAsked)} }

// Waiters reads whose handlers wait for permits of a limit, the next first; Weight is
// what they ask for.
func Waiters(limit int32, n int, rows *[]PermitHolder) Stmt {
	return Stmt{Text: waitersOf, Args: []any{limit, int64(n)}, Scan: into(rows, scanHolder)}
}

// AdmittedOf reads what tasks hold since their admission.
func AdmittedOf(tasks []drover.TaskID, rows *[]Permit) Stmt {
	return Stmt{Text: admittedOf, Cols: taskIDs(tasks), Scan: into(rows, func(r driver.Row) (p Permit, err error) {
		err = r.Scan((*[16]byte)(&p.Task), &p.Limit, &p.Weight)
		return p, err
	})}
}

func askedKeyCols(list []Asked) []any {
	return []any{col(list, func(a *Asked) [16]byte { return a.Task }), col(list, func(a *Asked) int32 { return a.Limit }), col(list, func(a *Asked) int32 { return a.Number })}
}

// InsertAsked stores new requests, granted or waiting.
func InsertAsked(list []Asked) Stmt {
	return Stmt{Text: insertAsked, Cols: append(askedKeyCols(list), col(list, func(a *Asked) int64 { return a.Weight }), col(list, func(a *Asked) int64 { return int64(a.At) }),
		col(list, func(a *Asked) int64 { return a.Wants }), col(list, func(a *Asked) int64 { return a.Token }), col(list, func(a *Asked) int64 { return int64(a.Until) }))}
}

// LockAsked locks requests in the order of their keys; n counts those that are there.
func LockAsked(list []Asked, n *int64) Stmt {
	return Stmt{Text: lockAsked, Cols: askedKeyCols(list), Scan: func(r driver.Row) error {
		*n++
		return r.Scan(new(int32))
	}}
}

// GrantAsked gives handlers what they wait for; see LockAsked.
func GrantAsked(list []Asked) Stmt {
	return Stmt{Text: grantAsked, Cols: append(askedKeyCols(list), col(list, func(a *Asked) int64 { return int64(a.At) }), col(list, func(a *Asked) int64 { return a.Token }))}
}

// ExtendAsked puts off when handlers that wait must ask again.
func ExtendAsked(list []Asked) Stmt {
	return Stmt{Text: extendAsked, Cols: append(askedKeyCols(list), col(list, func(a *Asked) int64 { return int64(a.Until) }))}
}

// DeleteAsked removes requests.
func DeleteAsked(list []Asked) Stmt { return Stmt{Text: deleteAsked, Cols: askedKeyCols(list)} }

// WantLimits notes of limits whether tasks wait for them.
func WantLimits(ids []int32, wanted []bool) Stmt {
	return Stmt{Text: wantLimits, Cols: []any{ids, col(wanted, func(b *bool) int16 { return flag(*b) })}}
}

// Who has come to a barrier.
var (
	readParties = driver.New("read parties of barriers", "job_id uuid, name text, round int",
		"SELECT b.job_id, b.name, b.round, b.task_id, b.generation, b.lease_version, b.number, b.parties, b.at, b.until, b.met, CASE WHEN r.task_id IS NULL THEN 0 ELSE 1 END "+
			"FROM {rows} JOIN barrier_parties b ON b.job_id = {job_id} AND b.name = {name} AND b.round = {round} LEFT JOIN task_running r ON r.task_id = b.task_id AND r.lease_version = b.lease_version "+
			"ORDER BY b.job_id, b.name, b.round, b.task_id")
	partiesOfJob = driver.New("read parties of a job's barriers", "",
		"SELECT b.job_id, b.name, b.round, b.task_id, b.generation, b.lease_version, b.number, b.parties, b.at, b.until, b.met, 1 "+
			"FROM barrier_parties b JOIN task_running r ON r.task_id = {pg:ANY(ARRAY[}b.task_id{pg:])} AND r.lease_version = b.lease_version WHERE b.job_id = $1 AND b.met = 0 AND b.until > 0 ORDER BY b.name, b.round, b.task_id")
	saveParties = driver.New("store parties of barriers", "job_id uuid, name text, round int, task_id uuid, generation int, lease_version int, number int, parties int, at bigint, until bigint, met bigint",
		"INSERT INTO barrier_parties (job_id, name, round, task_id, generation, lease_version, number, parties, at, until, met) "+
			"SELECT {job_id}, {name}, {round}, {task_id}, {generation}, {lease_version}, {number}, {parties}, {at}, {until}, {met} {from} {lite:WHERE true }"+
			"ON CONFLICT (job_id, name, round, task_id) DO UPDATE SET generation = excluded.generation, lease_version = excluded.lease_version, number = excluded.number, "+
			"parties = excluded.parties, at = excluded.at, until = excluded.until, met = excluded.met")
)

// Party is a task that has come to a barrier: a row of barrier_parties.
type Party struct {
	Job                      drover.JobID
	Name                     string
	Round                    int32
	Task                     drover.TaskID
	Generation, LeaseVersion int32
	Number, Parties          int32
	At, Until                instant
	Met                      instant
	Leased                   bool // the lease is there under which it came; not stored
}

func scanParty(r driver.Row) (p Party, err error) {
	var leased int16
	err = r.Scan((*[16]byte)(&p.Job), &p.Name, &p.Round, (*[16]byte)(&p.Task), &p.Generation, &p.LeaseVersion, &p.Number, &p.Parties, (*int64)(&p.At), (*int64)(&p.Until), (*int64)(&p.Met), &leased)
	p.Leased = leased != 0
	return p, err
}

// PartiesAt reads who has come to barriers.
func PartiesAt(jobs []drover.JobID, names []string, rounds []int32, rows *[]Party) Stmt {
	return Stmt{Text: readParties, Cols: []any{jobIDs(jobs), names, rounds}, Scan: into(rows, scanParty)}
}

// PartiesOf reads who waits at a job's barriers.
func PartiesOf(job drover.JobID, rows *[]Party) Stmt {
	return Stmt{Text: partiesOfJob, Args: []any{[16]byte(job)}, Scan: into(rows, scanParty)}
}

// SaveParties stores who has come to barriers, has left or has met.
func SaveParties(list []Party) Stmt {
	type p = Party
	return Stmt{Text: saveParties, Cols: []any{
		col(list, func(x *p) [16]byte { return x.Job }), col(list, func(x *p) string { return x.Name }), col(list, func(x *p) int32 { return x.Round }), col(list, func(x *p) [16]byte { return x.Task }),
		col(list, func(x *p) int32 { return x.Generation }), col(list, func(x *p) int32 { return x.LeaseVersion }), col(list, func(x *p) int32 { return x.Number }), col(list, func(x *p) int32 { return x.Parties }),
		col(list, func(x *p) int64 { return int64(x.At) }), col(list, func(x *p) int64 { return int64(x.Until) }), col(list, func(x *p) int64 { return int64(x.Met) }),
	}}
}
