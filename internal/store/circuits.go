package store

import (
	"context"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store/driver"
)

// CircuitKey names a circuit.
type CircuitKey struct {
	Tenant int32
	Name   string
}

// CircuitRow is a row of circuits.
type CircuitRow struct {
	CircuitKey
	lifecycle.Circuit
}

// StoppedLane is a lane whose tasks do not start, as its circuit is not closed.
type StoppedLane struct {
	CircuitRow
	Lane, Queue int32
	Lost        bool // its probe does not run any more
}

const circuitCols = "tenant, name, state, failures, first_at, since, until, openings, started, probe, probe_version, reason, policy_failures, policy_window, policy_pause, policy_max_pause"

var (
	makeCircuit = driver.New("make circuit", "",
		"INSERT INTO circuits ("+circuitCols+") VALUES ($1, $2, 0, 0, 0, 0, 0, 0, 0, $3, 0, '', 0, 0, 0, 0) ON CONFLICT DO NOTHING")
	lostProbe    = "CASE WHEN c.state = 2 AND NOT EXISTS (SELECT 1 FROM task_running r WHERE r.task_id = c.probe AND r.lease_version = c.probe_version) THEN 1 ELSE 0 END"
	stoppedLanes = driver.New("lanes of circuits that are not closed", "",
		"SELECT "+qualify("c", circuitCols)+", l.id, l.queue, "+lostProbe+" FROM circuits c JOIN lanes l ON l.tenant = c.tenant AND l.circuit = c.name AND l.circuit <> '' "+
			"WHERE c.state <> 0 AND (c.state <> 3 OR c.until > $1) "+
			// The epoch of the gate comes along, as a circuit without a name.
			"UNION ALL SELECT 0, '', {pg:0::smallint}{lite:0}, 0, g.epoch, 0, 0, 0, 0, {pg:'00000000-0000-0000-0000-000000000000'::uuid}{lite:zeroblob(16)}, 0, '', 0, 0, 0, 0, 0, 0, 0 FROM gates g WHERE g.id = 1 ORDER BY 1, 2, 17")
	readCircuits = driver.New("read circuits", "tenant int, name text", "SELECT "+qualify("c", circuitCols)+" FROM {rows} JOIN circuits c ON c.tenant = {tenant} AND c.name = {name}")
	lockCircuits = driver.New("lock circuits", "tenant int, name text",
		"SELECT "+qualify("c", circuitCols)+" FROM {rows} JOIN circuits c ON c.tenant = {tenant} AND c.name = {name} ORDER BY c.tenant, c.name {for update of c}")
	// Whoever would let a task go waits for nobody who does, and asks for the probe
	// when the row is locked: in one statement it could be that of a moment before.
	tryCircuit = driver.New("try a circuit", "", "SELECT "+circuitCols+" FROM circuits WHERE tenant = $1 AND name = $2 {for update skip locked}")
	probeLost  = driver.New("is a probe lost", "", "SELECT "+lostProbe+" FROM circuits c WHERE c.tenant = $1 AND c.name = $2")
	setCircuit = driver.New("store circuit", "",
		"UPDATE circuits SET state = $3, failures = $4, first_at = $5, since = $6, until = $7, openings = $8, started = $9, probe = $10, probe_version = $11, reason = $12, "+
			"policy_failures = $13, policy_window = $14, policy_pause = $15, policy_max_pause = $16 WHERE tenant = $1 AND name = $2")
	listCircuits  = driver.New("list circuits", "", "SELECT "+circuitCols+" FROM circuits WHERE tenant = $1 AND name > $2 ORDER BY tenant, name LIMIT $3")
	circuitQueues = driver.New("queues of a circuit", "", "SELECT DISTINCT l.queue FROM lanes l WHERE l.tenant = $1 AND l.circuit = $2 AND l.circuit <> ''")
	queueLanes    = driver.New("lanes of a queue", "", "SELECT id, needs FROM lanes WHERE queue = $1 AND stage < 2 ORDER BY id")
)

func scanCircuit(r driver.Row, more ...any) (c CircuitRow, err error) {
	var state int16
	var window, pause, maxPause int64
	var failures int32
	err = r.Scan(append([]any{&c.Tenant, &c.Name, &state, &c.Failures, (*int64)(&c.FirstAt), (*int64)(&c.Since), (*int64)(&c.Until), &c.Openings, &c.Started, (*[16]byte)(&c.Probe), &c.ProbeVersion,
		&c.Reason, &failures, &window, &pause, &maxPause}, more...)...)
	c.State = lifecycle.CircuitState(state)
	c.Policy = drover.CircuitPolicy{Failures: int(failures), Window: fromMicros(window), Pause: fromMicros(pause), MaxPause: fromMicros(maxPause)}
	return c, err
}

// MakeCircuit makes a circuit's row if there is none.
func MakeCircuit(k CircuitKey) Stmt {
	return Stmt{Text: makeCircuit, Args: []any{k.Tenant, k.Name, [16]byte{}}}
}

// StoppedLanes reads the lanes of all circuits that are not closed, and the epoch of
// the gate: what every claim must know.
func StoppedLanes(now instant, rows *[]StoppedLane, epoch *int64) Stmt {
	return Stmt{Text: stoppedLanes, Args: []any{int64(now)}, Scan: func(r driver.Row) error {
		var s StoppedLane
		var lost int64
		var err error
		s.CircuitRow, err = scanCircuit(r, &s.Lane, &s.Queue, &lost)
		if s.Name == "" {
			*epoch = int64(s.FirstAt)
			return err
		}
		s.Lost = lost == 1
		*rows = append(*rows, s)
		return err
	}}
}

func circuitKeys(keys []CircuitKey) []any {
	return []any{col(keys, func(k *CircuitKey) int32 { return k.Tenant }), col(keys, func(k *CircuitKey) string { return k.Name })}
}

// ReadCircuits reads circuits.
func ReadCircuits(keys []CircuitKey, rows map[CircuitKey]CircuitRow) Stmt {
	return Stmt{Text: readCircuits, Cols: circuitKeys(keys), Scan: func(r driver.Row) error {
		c, err := scanCircuit(r)
		rows[c.CircuitKey] = c
		return err
	}}
}

// LockCircuits locks and reads circuits; sorted.
func LockCircuits(keys []CircuitKey, rows map[CircuitKey]CircuitRow) Stmt {
	return Stmt{Text: lockCircuits, Cols: circuitKeys(keys), Scan: func(r driver.Row) error {
		c, err := scanCircuit(r)
		rows[c.CircuitKey] = c
		return err
	}}
}

// TryCircuit locks a circuit unless somebody has it; then there is no row.
func TryCircuit(ctx context.Context, tx Tx, k CircuitKey) (c CircuitRow, lost, ok bool, err error) {
	var is int64
	err = tx.Pipe(ctx, Stmt{Text: tryCircuit, Args: []any{k.Tenant, k.Name}, Scan: func(r driver.Row) (err error) { ok = true; c, err = scanCircuit(r); return err }},
		Stmt{Text: probeLost, Args: []any{k.Tenant, k.Name}, Scan: func(r driver.Row) error { return r.Scan(&is) }})
	return c, is == 1, ok, err
}

// SetCircuit stores a circuit that is locked.
func SetCircuit(c CircuitRow) Stmt {
	return Stmt{Text: setCircuit, Args: []any{c.Tenant, c.Name, int16(c.State), c.Failures, int64(c.FirstAt), int64(c.Since), int64(c.Until), c.Openings, c.Started, [16]byte(c.Probe), c.ProbeVersion,
		c.Reason, int32(c.Policy.Failures), c.Policy.Window.Std().Microseconds(), c.Policy.Pause.Std().Microseconds(), c.Policy.MaxPause.Std().Microseconds()}}
}

// Circuits lists a tenant's circuits by name, after the one named.
func Circuits(tenant int32, after string, n int, rows *[]CircuitRow) Stmt {
	return Stmt{Text: listCircuits, Args: []any{tenant, after, int64(n)}, Scan: into(rows, func(r driver.Row) (CircuitRow, error) { return scanCircuit(r) })}
}

// CircuitQueues reads the queues in which tasks of a circuit wait.
func CircuitQueues(k CircuitKey, queues *[]int32) Stmt {
	return Stmt{Text: circuitQueues, Args: []any{k.Tenant, k.Name}, Scan: into(queues, scanInt32)}
}

// QueueLanes reads every lane of a queue in which QUEUED tasks may stand; those that
// ask something particular of a worker go to particular instead.
func QueueLanes(queue int32, lanes *[]int32, particular map[int32]string) Stmt {
	return Stmt{Text: queueLanes, Args: []any{queue}, Scan: func(r driver.Row) error {
		var id int32
		var needs string
		err := r.Scan(&id, &needs)
		if needs != "" {
			particular[id] = needs
			return err
		}
		*lanes = append(*lanes, id)
		return err
	}}
}

func scanInt32(r driver.Row) (v int32, err error) { err = r.Scan(&v); return v, err }
