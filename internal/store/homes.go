package store

import "github.com/drover-dev/drover/internal/store/driver"

// homeLane is the lane that a task t waits in: that of its concurrency key, where it
// became known once the task could run.
const homeLane = "coalesce((SELECT h.lane FROM task_lanes h WHERE h.task_id = t.id ORDER BY h.generation DESC LIMIT 1), t.lane)"

// HomeRow is a row of task_lanes.
type HomeRow struct {
	Generation
	Lane int32
}

var (
	insertHomes = driver.New("insert task_lanes", "task_id uuid, generation int, lane int",
		"INSERT INTO task_lanes (task_id, generation, lane) SELECT {task_id}, {generation}, {lane} {from} WHERE true ON CONFLICT (task_id, generation) DO UPDATE SET lane = excluded.lane")
	findLanes = driver.New("find lanes", "queue int, tenant int, kind text, circuit text, stage smallint, needs text",
		"SELECT l.id, l.queue, l.tenant, l.kind, l.circuit, l.stage, l.needs FROM {rows} JOIN lanes l ON l.queue = {queue} AND l.tenant = {tenant} AND l.kind = {kind} AND l.circuit = {circuit} AND l.stage = {stage} AND l.needs = {needs}")
)

// InsertHomes stores in which lanes generations wait.
func InsertHomes(rows []HomeRow) Stmt {
	type r = HomeRow
	return Stmt{Text: insertHomes, Cols: []any{col(rows, func(x *r) [16]byte { return [16]byte(x.Task) }), col(rows, func(x *r) int32 { return x.N }), col(rows, func(x *r) int32 { return x.Lane })}}
}

// FindLanes reads the numbers of lanes, those that there are.
func FindLanes(keys []LaneKey, found map[LaneKey]int32) Stmt {
	type k = LaneKey
	return Stmt{Text: findLanes, Cols: []any{col(keys, func(x *k) int32 { return x.Queue }), col(keys, func(x *k) int32 { return x.Tenant }), col(keys, func(x *k) string { return x.Kind }),
		col(keys, func(x *k) string { return x.Circuit }), col(keys, func(x *k) int16 { return x.Stage }), col(keys, func(x *k) string { return x.Needs })},
		Scan: func(r driver.Row) error {
			var id int32
			var key LaneKey
			err := r.Scan(&id, &key.Queue, &key.Tenant, &key.Kind, &key.Circuit, &key.Stage, &key.Needs)
			found[key] = id
			return err
		}}
}
