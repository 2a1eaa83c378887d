package store

import (
	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store/driver"
)

// LastID comes after every id; lists that go down start from it.
var LastID = drover.ID{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}

// viewCols are the columns of jobs without the input, which may be long.
const viewCols = "j.id, j.tenant, j.pipeline, j.kind, j.class, j.creator, j.labels, j.trace, j.due_at, j.expires_at, j.created_at"

var (
	viewJobs   = driver.New("read jobs", "id uuid", "SELECT "+viewCols+" FROM {rows} JOIN jobs j ON j.id = {id}")
	tenantJobs = driver.New("jobs of a tenant, newest first", "",
		"SELECT "+viewCols+" FROM jobs j WHERE j.tenant = $1 AND j.id < $2 AND j.id >= $3 ORDER BY j.id DESC LIMIT $4")
	viewJobLive = driver.New("read job_live", "id uuid",
		"SELECT j.job_id, j.tenant, j.run, j.graph, j.events, j.total, j.open, j.succeeded, j.failed, j.cancelled, j.skipped, j.paused, j.cancelling FROM {rows} JOIN job_live j ON j.job_id = {id}")
	viewJobFinal = driver.New("read last runs", "id uuid",
		"SELECT f.job_id, f.run, f.tenant, f.status, f.events, f.total, f.succeeded, f.failed, f.cancelled, f.skipped, f.finished_at FROM {rows} JOIN {pg:LATERAL} "+
			"(SELECT x.* FROM job_final x WHERE x.job_id = {id} ORDER BY x.run DESC LIMIT 1) f ON 1 = 1")

	// How many rows of each job stand where; every table has an index on job_id.
	liveCounts = driver.New("count live tasks of jobs", "id uuid",
		"SELECT q.job_id, 1, count(*), max(q.lease_version), max(q.events) FROM {rows} JOIN task_pending q ON q.job_id = {id} GROUP BY q.job_id"+
			" UNION ALL SELECT q.job_id, 2, count(*), max(q.lease_version), max(q.events) FROM {rows} JOIN task_ready q ON q.job_id = {id} GROUP BY q.job_id"+
			" UNION ALL SELECT q.job_id, 4, count(*), max(q.lease_version), max(q.events) FROM {rows} JOIN task_queued q ON q.job_id = {id} GROUP BY q.job_id"+
			" UNION ALL SELECT q.job_id, 5, count(*), max(q.lease_version), max(q.events) FROM {rows} JOIN task_running q ON q.job_id = {id} GROUP BY q.job_id"+
			" UNION ALL SELECT q.job_id, q.status, count(*), max(q.lease_version), max(q.events) FROM {rows} JOIN task_delayed q ON q.job_id = {id} GROUP BY q.job_id, q.status")

	// The failure that came first; of a task that was replayed only the last generation counts.
	firstFailures = driver.New("first failures of jobs", "id uuid",
		"SELECT f.job_id, t.pipeline, t.node, t.kind, f.error FROM {rows} JOIN {pg:LATERAL} (SELECT x.job_id, x.task_id, x.error FROM task_final x WHERE x.job_id = {id} AND x.status IN (9, 12)"+
			" AND NOT EXISTS (SELECT 1 FROM task_final y WHERE y.task_id = x.task_id AND y.generation > x.generation) ORDER BY x.finished_at, x.task_id LIMIT 1) f ON 1 = 1 JOIN tasks t ON t.id = f.task_id")
	soloProgress = driver.New("progress of jobs of one task", "id uuid",
		"SELECT r.job_id, p.ratio, p.message FROM {rows} JOIN task_running r ON r.job_id = {id} JOIN task_progress p ON p.task_id = r.task_id AND p.lease_version = r.lease_version")

	badJobs = driver.New("jobs that ended badly, newest first", "",
		"SELECT f.job_id FROM job_final f WHERE f.tenant = $1 AND f.status = $2 AND f.status <> 8 AND f.job_id < $3 AND f.job_id >= $4 ORDER BY f.job_id DESC LIMIT $5")
	ownRowJobs = driver.New("jobs with a live row, newest first", "",
		"SELECT l.job_id FROM job_live l WHERE l.job_id < $1 AND l.job_id >= $2 ORDER BY l.job_id DESC LIMIT $3")

	nodeTotals = driver.New("count a job's tasks by node", "", "SELECT t.node, count(*) FROM tasks t WHERE t.job_id = $1 AND t.idx >= 0 GROUP BY t.node")
	nodeLive   = driver.New("count a job's live tasks by node", "",
		"SELECT q.node, 0, count(*) FROM task_pending q WHERE q.job_id = $1 AND q.idx >= 0 GROUP BY q.node"+
			" UNION ALL SELECT q.node, 0, count(*) FROM task_ready q WHERE q.job_id = $1 AND q.idx >= 0 GROUP BY q.node"+
			" UNION ALL SELECT q.node, 0, count(*) FROM task_queued q WHERE q.job_id = $1 AND q.idx >= 0 GROUP BY q.node"+
			" UNION ALL SELECT q.node, 1, count(*) FROM task_running q WHERE q.job_id = $1 AND q.idx >= 0 GROUP BY q.node"+
			" UNION ALL SELECT q.node, 0, count(*) FROM task_delayed q WHERE q.job_id = $1 AND q.idx >= 0 GROUP BY q.node")
	firstClaims = driver.New("first claims of nodes", "job_id uuid, node int",
		"SELECT f.claimed_at FROM {rows} JOIN {pg:LATERAL} (SELECT x.id FROM tasks x WHERE x.job_id = {job_id} AND x.node = {node} AND x.idx >= 0 ORDER BY x.idx LIMIT 1) t ON 1 = 1"+
			" JOIN task_final f ON f.task_id = t.id WHERE f.claimed_at > 0")

	resultSizes = driver.New("sizes of nodes' outputs", "job_id uuid, node int",
		"SELECT coalesce(sum(length(f.output)), 0) FROM {rows} JOIN tasks t ON t.job_id = {job_id} AND t.node = {node} AND t.idx >= 0 JOIN task_final f ON f.task_id = t.id AND f.status = 8")
	results = driver.New("outputs of nodes", "job_id uuid, node int",
		"SELECT t.node, t.idx, f.generation, f.status, f.output FROM {rows} JOIN tasks t ON t.job_id = {job_id} AND t.node = {node} AND t.idx >= 0 JOIN task_final f ON f.task_id = t.id ORDER BY t.node, t.idx, f.generation")
	soloInput = driver.New("input of a job of one task", "", "SELECT t.input FROM tasks t WHERE t.job_id = $1 AND t.node = 0 AND t.idx = 0")
)

// liveTables are the tables a live task stands in.
var liveTables = []string{"task_pending", "task_ready", "task_queued", "task_running", "task_delayed"}

// liveJobs names the jobs that have a row in a table, newest first. A job may
// have thousands there: the scan skips from job to job.
var liveJobs = func() (texts []*driver.Text) {
	for _, table := range liveTables {
		next := "(SELECT q.job_id FROM " + table + " q WHERE q.job_id < "
		tail := " ORDER BY q.job_id DESC LIMIT 1)"
		texts = append(texts, driver.New("jobs in "+table+", newest first", "",
			"WITH RECURSIVE d(id, n) AS (SELECT "+next+"$1"+tail+", 1 UNION ALL SELECT "+next+"d.id"+tail+", d.n + 1 FROM d WHERE d.id >= $2 AND d.n < $3)"+
				" SELECT d.id FROM d WHERE d.id >= $2 ORDER BY d.id DESC"))
	}
	return texts
}()

func scanJob(r driver.Row) (j JobRow, err error) {
	err = r.Scan((*[16]byte)(&j.ID), &j.Tenant, &j.Pipeline, &j.Kind, (*int16)(&j.Class), &j.Creator, &j.Labels, &j.Trace, (*int64)(&j.DueAt), (*int64)(&j.ExpiresAt), (*int64)(&j.CreatedAt))
	return j, err
}

// ReadJobs reads jobs without their inputs and fingerprints.
func ReadJobs(ids []drover.JobID, rows *[]JobRow) Stmt {
	return Stmt{Text: viewJobs, Cols: []any{jobIDs(ids)}, Scan: into(rows, scanJob)}
}

// Span is a range of ids, From included and Below not, of which at most N are read from the top.
type Span struct {
	Below, From drover.ID
	N           int
}

// TenantJobs reads jobs of a tenant, newest first, without their inputs.
func TenantJobs(tenant int32, s Span, rows *[]JobRow) Stmt {
	return Stmt{Text: tenantJobs, Args: []any{tenant, [16]byte(s.Below), [16]byte(s.From), int64(s.N)}, Scan: into(rows, scanJob)}
}

func scanJobID(r driver.Row) (id drover.JobID, err error) {
	err = r.Scan((*[16]byte)(&id))
	return id, err
}

// BadJobs names jobs of a tenant that have a run with this status, not
// SUCCEEDED, newest first; one with several such runs more than once.
func BadJobs(tenant int32, status drover.Status, s Span, ids *[]drover.JobID) Stmt {
	return Stmt{Text: badJobs, Args: []any{tenant, int16(status), [16]byte(s.Below), [16]byte(s.From), int64(s.N)}, Scan: into(ids, scanJobID)}
}

// LiveJobs names the live jobs of all tenants: a list for job_live and for each
// table of live tasks, newest first, and what fills them in.
func LiveJobs(s Span) (lists []*[]drover.JobID, stmts []Stmt) {
	args := []any{[16]byte(s.Below), [16]byte(s.From), int64(s.N)}
	add := func(text *driver.Text) {
		ids := new([]drover.JobID)
		lists = append(lists, ids)
		stmts = append(stmts, Stmt{Text: text, Args: args, Scan: into(ids, scanJobID)})
	}
	add(ownRowJobs)
	for _, text := range liveJobs {
		add(text)
	}
	return lists, stmts
}

// LiveCount is how many tasks of a job stand in one status.
type LiveCount struct {
	Job    drover.JobID
	Status drover.Status
	N      int64
	// Lease is the highest lease_version: above 0 one of them was claimed once.
	Lease int32
	// Events is the counter of a job its task's row stands for.
	Events int32
}

// JobStates reads what says how jobs stand: live rows, last runs, counts.
func JobStates(ids []drover.JobID, live *[]JobLive, final *[]JobFinal, counts *[]LiveCount) []Stmt {
	cols := []any{jobIDs(ids)}
	return []Stmt{
		{Text: viewJobLive, Cols: cols, Scan: into(live, scanJobLive)},
		{Text: viewJobFinal, Cols: cols, Scan: into(final, func(r driver.Row) (f JobFinal, err error) {
			var status int16
			err = r.Scan((*[16]byte)(&f.Job), &f.Run, &f.Tenant, &status, &f.Events, &f.Total, &f.Succeeded, &f.Failed, &f.Cancelled, &f.Skipped, (*int64)(&f.FinishedAt))
			f.Status = drover.Status(status)
			return f, err
		})},
		{Text: liveCounts, Cols: cols, Scan: into(counts, func(r driver.Row) (c LiveCount, err error) {
			var status int32
			err = r.Scan((*[16]byte)(&c.Job), &status, &c.N, &c.Lease, &c.Events)
			c.Status = drover.Status(status)
			return c, err
		})},
	}
}

// FirstFailure is the failure of a job that came first, and whose it was.
type FirstFailure struct {
	Job            drover.JobID
	Pipeline, Node int32
	Kind           string
	Error          []byte
}

// FirstFailures reads the first failure of each job.
func FirstFailures(ids []drover.JobID, rows *[]FirstFailure) Stmt {
	return Stmt{Text: firstFailures, Cols: []any{jobIDs(ids)}, Scan: into(rows, func(r driver.Row) (f FirstFailure, err error) {
		err = r.Scan((*[16]byte)(&f.Job), &f.Pipeline, &f.Node, &f.Kind, &f.Error)
		return f, err
	})}
}

// SoloProgress reads what the running tasks of Kind jobs report.
func SoloProgress(ids []drover.JobID, into map[drover.JobID]drover.Progress) Stmt {
	return Stmt{Text: soloProgress, Cols: []any{jobIDs(ids)}, Scan: func(r driver.Row) error {
		var id drover.JobID
		var p drover.Progress
		err := r.Scan((*[16]byte)(&id), &p.Ratio, &p.Message)
		into[id] = p
		return err
	}}
}

// NodeCount is how many tasks a node of a job has, without a map that has not
// expanded.
type NodeCount struct{ Total, Live, Running int64 }

// NodeCounts counts the tasks of a job by node.
func NodeCounts(job drover.JobID, nodes map[int32]*NodeCount) []Stmt {
	at := func(node int32) *NodeCount {
		if nodes[node] == nil {
			nodes[node] = &NodeCount{}
		}
		return nodes[node]
	}
	return []Stmt{
		{Text: nodeTotals, Args: []any{[16]byte(job)}, Scan: func(r driver.Row) error {
			var node int32
			var n int64
			err := r.Scan(&node, &n)
			at(node).Total = n
			return err
		}},
		{Text: nodeLive, Args: []any{[16]byte(job)}, Scan: func(r driver.Row) error {
			var node, running int32
			var n int64
			err := r.Scan(&node, &running, &n)
			at(node).Live += n
			at(node).Running += int64(running) * n
			return err
		}},
	}
}

func nodeCols(job drover.JobID, nodes []int32) []any {
	jobs := make([][16]byte, len(nodes))
	for i := range jobs {
		jobs[i] = [16]byte(job)
	}
	return []any{jobs, nodes}
}

// FirstClaims reads when the first tasks of nodes that have ended were claimed.
func FirstClaims(job drover.JobID, nodes []int32, at *[]int64) Stmt {
	return Stmt{Text: firstClaims, Cols: nodeCols(job, nodes), Scan: into(at, scanInt)}
}

// ResultSizes reads how long the outputs of nodes are together, in bytes.
func ResultSizes(job drover.JobID, nodes []int32, sizes *[]int64) Stmt {
	return Stmt{Text: resultSizes, Cols: nodeCols(job, nodes), Scan: into(sizes, scanInt)}
}

// Result is the output of a task that succeeded.
type Result struct {
	Node, Index int32
	Output      []byte
}

// Results reads the outputs of nodes, in order. Of several generations the last counts.
func Results(job drover.JobID, nodes []int32, list *[]Result) Stmt {
	return Stmt{Text: results, Cols: nodeCols(job, nodes), Scan: func(r driver.Row) error {
		var x Result
		var generation int32
		var status int16
		if err := r.Scan(&x.Node, &x.Index, &generation, &status, &x.Output); err != nil {
			return err
		}
		if n := len(*list); n > 0 && (*list)[n-1].Node == x.Node && (*list)[n-1].Index == x.Index {
			*list = (*list)[:n-1]
		}
		if drover.Status(status) == drover.Succeeded {
			*list = append(*list, x)
		}
		return nil
	}}
}

// SoloInput reads the input of a Kind job.
func SoloInput(job drover.JobID, input *[]byte) Stmt {
	return Stmt{Text: soloInput, Args: []any{[16]byte(job)}, Scan: func(r driver.Row) error { return r.Scan(input) }}
}

var ping = driver.New("ping", "", "SELECT 1")

// Ping asks the database for an answer.
func Ping() Stmt {
	return Stmt{Text: ping, Scan: func(r driver.Row) error { var n int32; return r.Scan(&n) }}
}
