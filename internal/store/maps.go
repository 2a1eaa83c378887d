package store

import (
	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store/driver"
)

// MapRow is a row of map_live.
type MapRow struct {
	Job  drover.JobID
	Node int32
	Most int32 // max_parallel; 0 is no bound
	dag.Map
}

const mapCols = "job_id, node, most, size, ended, succeeded, skipped, failures, running, waiting"

var (
	readMaps = driver.New("read maps", "job_id uuid, node int",
		"SELECT "+qualify("m", mapCols)+" FROM {rows} JOIN map_live m ON m.job_id = {job_id} AND m.node = {node}")
	saveMaps = driver.New("save maps", "job_id uuid, node int, most int, size int, ended int, succeeded int, skipped int, failures int, running int, waiting int",
		"INSERT INTO map_live ("+mapCols+") SELECT {job_id}, {node}, {most}, {size}, {ended}, {succeeded}, {skipped}, {failures}, {running}, {waiting} {from} WHERE true "+
			"ON CONFLICT (job_id, node) DO UPDATE SET most = excluded.most, size = excluded.size, ended = excluded.ended, succeeded = excluded.succeeded, skipped = excluded.skipped, "+
			"failures = excluded.failures, running = excluded.running, waiting = excluded.waiting")
	deleteMaps = driver.New("delete maps", "id uuid", "DELETE FROM map_live {using} WHERE job_id = {id}")
	// Nobody else takes these rows but a sweep or a reconciliation of the job, and then the
	// number tells.
	takeInLine = driver.New("take those in line", "job_id uuid, node int, n int",
		"DELETE FROM task_ready WHERE {pg:ctid = ANY(ARRAY(SELECT q.at FROM}{lite:(queue, class, lane, due_at, task_id) IN (SELECT q.queue, q.class, q.lane, q.due_at, q.task_id FROM} "+
			"{rows} {pg:CROSS JOIN LATERAL}{lite:JOIN} (SELECT {pg:r.ctid AS at}{lite:r.queue, r.class, r.lane, r.due_at, r.task_id} FROM task_ready r WHERE r.job_id = {job_id} AND r.node = {node} AND r.lane = 0 AND r.ready_at = 0 "+
			"ORDER BY r.job_id, r.node, r.idx LIMIT {n} {for update skip locked}) q{pg:)}) RETURNING "+readyCols)
)

// ReadMaps reads how maps stand, of jobs whose rows are locked.
func ReadMaps(keys []MapRow, put func(MapRow)) Stmt {
	return Stmt{Text: readMaps, Cols: []any{col(keys, func(m *MapRow) [16]byte { return [16]byte(m.Job) }), col(keys, func(m *MapRow) int32 { return m.Node })},
		Scan: func(r driver.Row) error {
			m, err := scanMap(r)
			if err == nil {
				put(m)
			}
			return err
		}}
}

func scanMap(r driver.Row) (m MapRow, err error) {
	err = r.Scan((*[16]byte)(&m.Job), &m.Node, &m.Most, &m.Size, &m.Ended, &m.Succeeded, &m.Skipped, &m.Failures, &m.Running, &m.Waiting)
	return m, err
}

var jobMaps = driver.New("read a job's maps", "", "SELECT "+mapCols+" FROM map_live WHERE job_id = $1 ORDER BY node")

func jobMapsOf(job drover.JobID, rows *[]MapRow) Stmt {
	return Stmt{Text: jobMaps, Args: []any{[16]byte(job)}, Scan: into(rows, scanMap)}
}

// SaveMaps stores how maps stand.
func SaveMaps(rows []MapRow) Stmt {
	type r = MapRow
	num := func(get func(*r) int32) any { return col(rows, get) }
	return Stmt{Text: saveMaps, Cols: []any{col(rows, func(m *r) [16]byte { return [16]byte(m.Job) }), num(func(m *r) int32 { return m.Node }), num(func(m *r) int32 { return m.Most }),
		num(func(m *r) int32 { return m.Size }), num(func(m *r) int32 { return m.Ended }), num(func(m *r) int32 { return m.Succeeded }), num(func(m *r) int32 { return m.Skipped }),
		num(func(m *r) int32 { return m.Failures }), num(func(m *r) int32 { return m.Running }), num(func(m *r) int32 { return m.Waiting })}}
}

// DeleteMaps removes what is kept of the maps of jobs that have ended.
func DeleteMaps(jobs []drover.JobID) Stmt {
	return Stmt{Text: deleteMaps, Cols: []any{jobIDs(jobs)}}
}

// InLine asks for the first N elements of a map that wait for a place.
type InLine struct {
	Job     drover.JobID
	Node, N int32
}

// TakeInLine removes the first elements of maps that wait for a place.
func TakeInLine(of []InLine, rows *[]lifecycle.Task) Stmt {
	return Stmt{Text: takeInLine, Cols: []any{col(of, func(i *InLine) [16]byte { return [16]byte(i.Job) }), col(of, func(i *InLine) int32 { return i.Node }), col(of, func(i *InLine) int32 { return i.N })},
		Scan: into(rows, scanReady)}
}
