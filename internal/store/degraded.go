package store

import (
	"fmt"
	"math"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store/driver"
)

// failuresShown is how many failures of one node are read, to tell why something is
// degraded; jobFailures how many of one job.
const (
	failuresShown = 20
	jobFailures   = 1000
)

var (
	nodeFailures = driver.New("read failures of nodes", "job_id uuid, node int, first int, last int",
		fmt.Sprintf("SELECT x.job_id, x.node, x.idx, x.error FROM {rows} JOIN {pg:LATERAL} (SELECT t.job_id, t.node, t.idx, f.error FROM tasks t JOIN task_final f ON f.task_id = t.id AND f.status IN (9, 12) AND "+notLast+
			" WHERE t.job_id = {job_id} AND t.node = {node} AND t.idx BETWEEN {first} AND {last} ORDER BY t.idx LIMIT %d) x ON 1 = 1", failuresShown))
	failuresOf = driver.New("read failures of jobs", "id uuid",
		fmt.Sprintf("SELECT x.job_id, x.node, x.idx, e.error FROM {rows} JOIN {pg:LATERAL} (SELECT n.job_id, n.node, n.idx, n.task_id, n.generation FROM "+
			"(SELECT t.job_id, t.node, t.idx, f.task_id, f.generation, row_number() OVER (PARTITION BY t.node ORDER BY t.idx) AS nth FROM task_final f JOIN tasks t ON t.id = f.task_id WHERE f.job_id = {id} AND f.status IN (9, 12) AND "+notLast+
			") n WHERE n.nth <= %d ORDER BY n.node, n.idx LIMIT %d) x ON 1 = 1 JOIN task_final e ON e.task_id = x.task_id AND e.generation = x.generation", failuresShown, jobFailures))
	howEnded = driver.New("read how tasks have ended", "job_id uuid, node int, idx int",
		"SELECT t.job_id, t.node, t.idx, f.status FROM {rows} JOIN tasks t ON t.job_id = {job_id} AND t.node = {node} AND t.idx = {idx} JOIN task_final f ON f.task_id = t.id AND "+notLast)
	countEnds = driver.New("count how elements have ended", "job_id uuid, node int",
		fmt.Sprintf("SELECT t.job_id, t.node, count(*), sum(CASE WHEN f.status = %d THEN 1 ELSE 0 END), sum(CASE WHEN f.status = %d AND f.how <> %d THEN 1 ELSE 0 END) FROM {rows} JOIN tasks t ON t.job_id = {job_id} AND t.node = {node} AND t.idx >= 0 "+
			"JOIN task_final f ON f.task_id = t.id AND f.how <> %d AND "+notLast+" GROUP BY t.job_id, t.node", drover.Succeeded, drover.Skipped, lifecycle.HowBlocked, lifecycle.HowGone))
	degradedJobs = driver.New("jobs that ended degraded, newest first", "",
		"SELECT j.id, (SELECT count(*) FROM job_final f WHERE f.job_id = j.id AND f.handled > 0) FROM jobs j WHERE j.tenant = $1 AND j.id < $2 AND j.id >= $3 ORDER BY j.id DESC LIMIT $4")
	degradedLive = driver.New("live jobs that are degraded, newest first", "",
		"SELECT l.job_id, CASE WHEN l.handled > 0 THEN 1 ELSE 0 END FROM job_live l WHERE l.job_id < $1 AND l.job_id >= $2 ORDER BY l.job_id DESC LIMIT $3")
)

// FailedRow is a task that has failed for good, and why.
type FailedRow struct {
	Key
	Error []byte
}

func scanFailed(r driver.Row) (f FailedRow, err error) {
	err = r.Scan((*[16]byte)(&f.Job), &f.Node, &f.Index, &f.Error)
	return f, err
}

// NodeFailures reads the first failures at places of jobs' graphs; a key with the index
// dag.Every is every row of its node.
func NodeFailures(keys []Key, rows *[]FailedRow) Stmt {
	cols := append(keyCols(keys), col(keys, func(k *Key) int32 { return k.Index }))
	for i, k := range keys {
		if k.Index == dag.Every {
			cols[2].([]int32)[i], cols[3].([]int32)[i] = math.MinInt32, math.MaxInt32
		}
	}
	return Stmt{Text: nodeFailures, Cols: cols, Scan: into(rows, scanFailed)}
}

// JobFailures reads the first failures at each place of jobs' graphs, in no order.
func JobFailures(jobs []drover.JobID, rows *[]FailedRow) Stmt {
	return Stmt{Text: failuresOf, Cols: []any{jobIDs(jobs)}, Scan: into(rows, scanFailed)}
}

// HowEnded reads how tasks at places of jobs' graphs have ended the last time.
func HowEnded(keys []Key, out map[Key]drover.Status) Stmt {
	return Stmt{Text: howEnded, Cols: keyCols(keys), Scan: func(r driver.Row) error {
		var k Key
		var status int16
		err := r.Scan((*[16]byte)(&k.Job), &k.Node, &k.Index, &status)
		out[k] = drover.Status(status)
		return err
	}}
}

// EndsOf is how many elements of a map of a job have ended, how many of these have
// succeeded, and how many were skipped but for those that a failure kept from running.
type EndsOf struct {
	Job                       drover.JobID
	Node                      int32
	Ended, Succeeded, Skipped int32
}

// CountEnds counts how the elements of maps have ended; of each it takes the job and the
// node.
func CountEnds(of []EndsOf, rows *[]EndsOf) Stmt {
	return Stmt{Text: countEnds, Cols: []any{col(of, func(x *EndsOf) [16]byte { return [16]byte(x.Job) }), col(of, func(x *EndsOf) int32 { return x.Node })},
		Scan: into(rows, func(r driver.Row) (x EndsOf, err error) {
			err = r.Scan((*[16]byte)(&x.Job), &x.Node, &x.Ended, &x.Succeeded, &x.Skipped)
			return x, err
		})}
}

// DegradedJobs looks for jobs that are degraded: of the tenant those that have ended,
// of any tenant those that are live. It returns lists as JobsWith does.
func DegradedJobs(tenant int32, s Span) (lists []*Found, stmts []Stmt) {
	below, from := [16]byte(s.Below), [16]byte(s.From)
	ended, live := &Found{}, &Found{}
	many := 20 * s.N // of which few may match
	return []*Found{ended, live}, []Stmt{ended.by(degradedJobs, many, tenant, below, from, int64(many)), live.by(degradedLive, s.N, below, from, int64(s.N))}
}
