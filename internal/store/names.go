package store

import (
	"context"

	"github.com/drover-dev/drover/internal/store/driver"
)

// LaneKey is the selector of a lane.
type LaneKey struct {
	Queue, Tenant int32
	Kind          string
	Circuit       string // empty is none
	// Stage is what its tasks are to admission: see the schema. Needs is JSON of what
	// they ask for, empty when that is nothing.
	Stage int16
	Needs string
}

var (
	selectQueue  = driver.New("find queue", "", "SELECT id FROM queues WHERE name = $1")
	insertQueue  = driver.New("insert queue", "", "INSERT INTO queues (id, name, created_at) SELECT coalesce(max(id), 0) + 1, $1, $2 FROM queues")
	selectLane   = driver.New("find lane", "", "SELECT id FROM lanes WHERE queue = $1 AND tenant = $2 AND kind = $3 AND circuit = $4 AND stage = $5 AND needs = $6")
	insertLane   = driver.New("insert lane", "", "INSERT INTO lanes (id, queue, tenant, kind, circuit, stage, needs) SELECT coalesce(max(id), 0) + 1, $1, $2, $3, $4, $5, $6 FROM lanes")
	queueNames   = driver.New("read queues", "", "SELECT id, name FROM queues ORDER BY id")
	tenantNames  = driver.New("read tenants", "", "SELECT id, name FROM tenants ORDER BY id")
	tenantLanes  = driver.New("lanes of a tenant", "", "SELECT id, needs FROM lanes WHERE queue = $1 AND tenant = $2 AND stage < 2 ORDER BY id")
	kindLanes    = driver.New("lanes of kinds", "kind text", "SELECT l.id, l.needs FROM {rows} JOIN lanes l ON l.queue = $1 AND l.tenant = $2 AND l.kind = {kind} AND l.stage < 2")
	anyKindLanes = driver.New("lanes of kinds of every tenant", "kind text", "SELECT l.id, l.needs FROM {rows} JOIN lanes l ON l.queue = $1 AND l.kind = {kind} AND l.stage < 2")
	laneKeys     = driver.New("read lanes", "id int", "SELECT l.id, l.queue, l.tenant, l.kind, l.circuit, l.stage, l.needs FROM {rows} JOIN lanes l ON l.id = {id}")
	pipelineNum  = driver.New("find pipeline", "", "SELECT id FROM pipelines WHERE tenant = $1 AND name = $2 AND ($3 = 0 OR version = $3) ORDER BY version DESC LIMIT 1")
	pipelineByID = driver.New("read pipeline", "", "SELECT tenant, name, version, definition FROM pipelines WHERE id = $1")
)

func one[T any](ctx context.Context, tx Tx, text *driver.Text, args ...any) (v T, found bool, err error) {
	err = tx.Pipe(ctx, Stmt{Text: text, Args: args, Scan: func(r driver.Row) error { found = true; return r.Scan(&v) }})
	return v, found, err
}

// numbered finds a number, or makes it; ErrUnique says that somebody else just did.
func numbered(ctx context.Context, tx Tx, find *driver.Text, key []any, insert *driver.Text, args []any) (int32, error) {
	id, ok, err := one[int32](ctx, tx, find, key...)
	if err != nil || ok {
		return id, err
	}
	if err := tx.Pipe(ctx, Stmt{Text: insert, Args: args}); err != nil {
		return 0, err
	}
	id, _, err = one[int32](ctx, tx, find, key...)
	return id, err
}

// QueueNumber returns the number of a queue; a new name gets one.
func QueueNumber(ctx context.Context, tx Tx, name string, now instant) (int32, error) {
	return numbered(ctx, tx, selectQueue, []any{name}, insertQueue, []any{name, int64(now)})
}

// LaneNumber returns the number of a lane; a new selector gets one.
func LaneNumber(ctx context.Context, tx Tx, k LaneKey) (int32, error) {
	key := []any{k.Queue, k.Tenant, k.Kind, k.Circuit, k.Stage, k.Needs}
	if k.Circuit != "" {
		if err := tx.Pipe(ctx, MakeCircuit(CircuitKey{k.Tenant, k.Circuit})); err != nil {
			return 0, err
		}
	}
	if k.Stage == 1 && k.Needs != "" { // not every worker may take from it: claims must know
		if err := tx.Pipe(ctx, LiftGate(0)); err != nil {
			return 0, err
		}
	}
	return numbered(ctx, tx, selectLane, key, insertLane, key)
}

func nameMap(ctx context.Context, tx Tx, text *driver.Text) (map[int32]string, error) {
	m := map[int32]string{}
	err := tx.Pipe(ctx, Stmt{Text: text, Scan: func(r driver.Row) error {
		var id int32
		var name string
		if err := r.Scan(&id, &name); err != nil {
			return err
		}
		m[id] = name
		return nil
	}})
	return m, err
}

// QueueNames returns every queue's name by its number.
func QueueNames(ctx context.Context, tx Tx) (map[int32]string, error) {
	return nameMap(ctx, tx, queueNames)
}

// TenantNames returns every tenant's name by its number.
func TenantNames(ctx context.Context, tx Tx) (map[int32]string, error) {
	return nameMap(ctx, tx, tenantNames)
}

// LaneKeys reads the selectors of lanes.
func LaneKeys(ids []int32, keys map[int32]LaneKey) Stmt {
	return Stmt{Text: laneKeys, Cols: []any{ids}, Scan: func(r driver.Row) error {
		var id int32
		var k LaneKey
		err := r.Scan(&id, &k.Queue, &k.Tenant, &k.Kind, &k.Circuit, &k.Stage, &k.Needs)
		keys[id] = k
		return err
	}}
}

// LanesFor reads the lanes of a queue that a worker serves: those of its tenant,
// of every tenant when that is 0, and of the kinds it has handlers for, of every
// kind when it names none. nil is every lane. Those that ask something particular of
// a worker go to particular instead.
func LanesFor(queue, tenant int32, kinds []string, lanes map[int32][]int32, particular map[int32]string) Stmt {
	s := Stmt{Text: tenantLanes, Args: []any{queue, tenant}}
	switch {
	case len(kinds) == 0 && tenant == 0:
		lanes[queue] = nil
		return Stmt{}
	case len(kinds) > 0 && tenant == 0:
		s = Stmt{Text: anyKindLanes, Cols: []any{kinds}, Args: []any{queue}}
	case len(kinds) > 0:
		s = Stmt{Text: kindLanes, Cols: []any{kinds}, Args: []any{queue, tenant}}
	}
	lanes[queue] = []int32{}
	s.Scan = func(r driver.Row) error {
		var id int32
		var needs string
		err := r.Scan(&id, &needs)
		if needs != "" {
			particular[id] = needs
			return err
		}
		lanes[queue] = append(lanes[queue], id)
		return err
	}
	return s
}

// PipelineNumber returns the number of a pipeline version, the newest when
// version is 0; 0 when there is none.
func PipelineNumber(ctx context.Context, tx Tx, tenant int32, name string, version int32) (int32, error) {
	id, _, err := one[int32](ctx, tx, pipelineNum, tenant, name, version)
	return id, err
}

// PipelineRow is a row of pipelines.
type PipelineRow struct {
	ID, Tenant, Version int32
	Name                string
	Definition          []byte
}

// PipelineByID reads a pipeline version; its ID is 0 when there is none.
func PipelineByID(ctx context.Context, tx Tx, id int32) (p PipelineRow, err error) {
	err = tx.Pipe(ctx, Stmt{Text: pipelineByID, Args: []any{id}, Scan: func(r driver.Row) error {
		p.ID = id
		return r.Scan(&p.Tenant, &p.Name, &p.Version, &p.Definition)
	}})
	return p, err
}
