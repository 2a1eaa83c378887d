package store

import (
	"fmt"
	"strings"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store/driver"
)

// LastID comes after every id; lists that go down start from it.
var LastID = drover.ID{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}

// viewCols are the columns of jobs without the input, which may be long.
const viewCols = "j.id, j.tenant, j.pipeline, j.kind, j.class, j.creator, j.labels, j.trace, j.due_at, j.expires_at, j.created_at, " + noParent

var (
	viewJobs   = driver.New("read jobs", "id uuid", "SELECT "+viewCols+" FROM {rows} JOIN jobs j ON j.id = {id}")
	tenantJobs = driver.New("jobs of a tenant, newest first", "",
		"SELECT "+viewCols+" FROM jobs j WHERE j.tenant = $1 AND j.id < $2 AND j.id >= $3 ORDER BY j.id DESC LIMIT $4")
	viewJobLive = driver.New("read job_live", "id uuid",
		"SELECT j.job_id, j.tenant, j.run, j.graph, j.events, j.total, j.open, j.succeeded, j.failed, j.cancelled, j.skipped, j.paused, j.cancelling, j.handled, j.phase, j.undone FROM {rows} JOIN job_live j ON j.job_id = {id}")
	viewJobFinal = driver.New("read last runs", "id uuid",
		"SELECT f.job_id, f.run, f.tenant, f.status, f.events, f.total, f.succeeded, f.failed, f.cancelled, f.skipped, f.finished_at, f.handled FROM {rows} JOIN {pg:LATERAL} "+
			"(SELECT x.* FROM job_final x WHERE x.job_id = {id} ORDER BY x.run DESC LIMIT 1) f ON 1 = 1")

	// How many rows of each job stand where; every table has an index on job_id,
	// which is all that is read.
	liveCounts = driver.New("count live tasks of jobs", "id uuid",
		"SELECT {id}, 1, count(q.queue) FROM {rows} JOIN task_pending q ON q.job_id = {id} GROUP BY 1"+
			" UNION ALL SELECT {id}, 2, count(q.queue) FROM {rows} JOIN task_ready q ON q.job_id = {id} GROUP BY 1"+
			" UNION ALL SELECT {id}, 4, count(q.queue) FROM {rows} JOIN task_queued q ON q.job_id = {id} GROUP BY 1"+
			" UNION ALL SELECT {id}, 5, count(q.queue) FROM {rows} JOIN task_running q ON q.job_id = {id} GROUP BY 1"+
			" UNION ALL SELECT {id}, q.status, count(q.queue) FROM {rows} JOIN task_delayed q ON q.job_id = {id} GROUP BY 1, 2")
	liveMarks = func() *driver.Text {
		var parts []string
		for _, table := range liveTables {
			parts = append(parts, "SELECT {id}, max(q.lease_version), max(q.events) FROM {rows} JOIN "+table+" q ON q.job_id = {id} GROUP BY 1")
		}
		return driver.New("marks of jobs' live tasks", "id uuid", strings.Join(parts, " UNION ALL "))
	}()

	// The failure that came first; of a task that was replayed only the last generation counts.
	firstFailures = driver.New("first failures of jobs", "id uuid",
		"SELECT f.job_id, t.pipeline, t.node, t.kind, f.error FROM {rows} JOIN {pg:LATERAL} (SELECT x.job_id, x.task_id, x.error FROM task_final x WHERE x.job_id = {id} AND x.status IN (9, 12)"+
			" AND NOT EXISTS (SELECT 1 FROM task_final y WHERE y.task_id = x.task_id AND y.generation > x.generation) ORDER BY x.finished_at, x.task_id LIMIT 1) f ON 1 = 1 JOIN tasks t ON t.id = f.task_id")
	soloProgress = driver.New("progress of jobs of one task", "id uuid",
		"SELECT r.job_id, p.ratio, p.message FROM {rows} JOIN task_running r ON r.job_id = {id} JOIN task_progress p ON p.task_id = {pg:ANY(ARRAY[}r.task_id{pg:])} AND p.lease_version = r.lease_version")

	badJobs = driver.New("jobs that ended badly, newest first", "",
		"SELECT f.job_id, 1 FROM job_final f WHERE f.tenant = $1 AND f.status = $5 AND f.status <> 8 AND f.job_id < $2 AND f.job_id >= $3 ORDER BY f.job_id DESC LIMIT $4")
	goodJobs = driver.New("jobs that succeeded, newest first", "",
		"SELECT j.id, (SELECT count(*) FROM job_final f WHERE f.job_id = j.id AND f.status = 8) FROM jobs j WHERE j.tenant = $1 AND j.id < $2 AND j.id >= $3 ORDER BY j.id DESC LIMIT $4")
	ownRowJobs = driver.New("jobs with a live row, newest first", "",
		"SELECT l.job_id, 1 FROM job_live l WHERE l.job_id < $1 AND l.job_id >= $2 ORDER BY l.job_id DESC LIMIT $3")

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
var liveJobs = liveTexts("jobs in %s, newest first", func(table string) string {
	next := "(SELECT q.job_id FROM " + table + " q WHERE q.job_id < "
	tail := " ORDER BY q.job_id DESC LIMIT 1)"
	return "WITH RECURSIVE d(id, n) AS (SELECT " + next + "$1" + tail + ", 1 UNION ALL SELECT " + next + "d.id" + tail + ", d.n + 1 FROM d WHERE d.id >= $2 AND d.n < $3)" +
		" SELECT d.id, 1 FROM d WHERE d.id >= $2 ORDER BY d.id DESC"
})

// claimedJobs tells of rows, newest jobs first, which stand for a whole job that
// was claimed once.
var claimedJobs = liveTexts("claimed jobs of one task in %s, newest first", func(table string) string {
	return "SELECT q.job_id, CASE WHEN q.lease_version > 0 AND q.events > 0 THEN 1 ELSE 0 END FROM " + table + " q WHERE q.job_id < $1 AND q.job_id >= $2 ORDER BY q.job_id DESC LIMIT $3"
})

func liveTexts(name string, text func(table string) string) (texts []*driver.Text) {
	for _, table := range liveTables {
		texts = append(texts, driver.New(fmt.Sprintf(name, table), "", text(table)))
	}
	return texts
}

func scanJob(r driver.Row) (j JobRow, err error) {
	err = r.Scan((*[16]byte)(&j.ID), &j.Tenant, &j.Pipeline, &j.Kind, (*int16)(&j.Class), &j.Creator, &j.Labels, &j.Trace, (*int64)(&j.DueAt), (*int64)(&j.ExpiresAt), (*int64)(&j.CreatedAt), (*[16]byte)(&j.Parent))
	return j, err
}

var jobEnded = driver.New("has a job ended", "", "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM job_live l WHERE l.job_id = $1) AND "+
	"(EXISTS (SELECT 1 FROM job_final f WHERE f.job_id = $1) OR NOT EXISTS (SELECT 1 FROM jobs j WHERE j.id = $1))")

// JobEnded reads whether the last run of a job has ended, or the job is gone.
func JobEnded(id drover.JobID, ended *bool) Stmt {
	*ended = false
	return Stmt{Text: jobEnded, Args: []any{[16]byte(id)}, Scan: func(r driver.Row) error {
		var yes int32
		*ended = true
		return r.Scan(&yes)
	}}
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

// Found is what a look down a list of jobs found: those that may match, newest
// first. Of jobs below Last it says nothing where it is full.
type Found struct {
	IDs  []drover.JobID
	Last drover.JobID // that was looked at
	Seen int          // how many rows were
	Full bool         // there may be more
}

func (f *Found) by(text *driver.Text, n int, args ...any) Stmt {
	return Stmt{Text: text, Args: args, Scan: func(r driver.Row) error {
		var id drover.JobID
		var hits int64
		if err := r.Scan((*[16]byte)(&id), &hits); err != nil {
			return err
		}
		if f.Last, f.Seen = id, f.Seen+1; hits > 0 {
			f.IDs = append(f.IDs, id)
		}
		f.Full = f.Seen >= n
		return nil
	}}
}

// JobsWith looks for jobs that may have one of the statuses: of the tenant those
// that have ended, of any tenant those that are live. It returns a list for each
// place they are found in, and what fills it in.
func JobsWith(tenant int32, statuses []drover.Status, s Span) (lists []*Found, stmts []Stmt) {
	has := map[drover.Status]bool{}
	for _, st := range statuses {
		has[st] = true
	}
	add := func(text *driver.Text, n int, args ...any) {
		f := &Found{}
		lists = append(lists, f)
		stmts = append(stmts, f.by(text, n, args...))
	}
	below, from := [16]byte(s.Below), [16]byte(s.From)
	for _, st := range []drover.Status{drover.Failed, drover.Cancelled} {
		if has[st] {
			add(badJobs, s.N, tenant, below, from, int64(s.N), int16(st))
		}
	}
	// Cheap looks at many rows of which few may match.
	many := 20 * s.N
	if has[drover.Succeeded] {
		add(goodJobs, many, tenant, below, from, int64(many))
	}
	if !has[drover.Pending] && !has[drover.Running] {
		return lists, stmts
	}
	add(ownRowJobs, s.N, below, from, int64(s.N))
	texts, n := liveJobs, s.N
	if !has[drover.Pending] {
		texts, n = claimedJobs, many
	}
	for _, text := range texts {
		add(text, n, below, from, int64(n))
	}
	return lists, stmts
}

// LiveCount is how many tasks of a job stand in one status.
type LiveCount struct {
	Job    drover.JobID
	Status drover.Status
	N      int64
}

// LiveMark is what the live rows of a job tell besides their number.
type LiveMark struct {
	Job drover.JobID
	// Lease is the highest lease_version: above 0 one of them was claimed once.
	Lease int32
	// Events is the counter of a job its task's row stands for.
	Events int32
}

// LiveMarks reads the marks of jobs, for each table their rows stand in. It
// reads every row.
func LiveMarks(ids []drover.JobID, marks *[]LiveMark) Stmt {
	return Stmt{Text: liveMarks, Cols: []any{jobIDs(ids)}, Scan: into(marks, func(r driver.Row) (m LiveMark, err error) {
		err = r.Scan((*[16]byte)(&m.Job), &m.Lease, &m.Events)
		return m, err
	})}
}

// JobStates reads what says how jobs stand: live rows, last runs, counts.
func JobStates(ids []drover.JobID, live *[]JobLive, final *[]JobFinal, counts *[]LiveCount) []Stmt {
	cols := []any{jobIDs(ids)}
	return []Stmt{
		{Text: viewJobLive, Cols: cols, Scan: into(live, scanJobLive)},
		{Text: viewJobFinal, Cols: cols, Scan: into(final, scanJobFinal)},
		{Text: liveCounts, Cols: cols, Scan: into(counts, func(r driver.Row) (c LiveCount, err error) {
			var status int32
			err = r.Scan((*[16]byte)(&c.Job), &status, &c.N)
			c.Status = drover.Status(status)
			return c, err
		})},
	}
}

func scanJobFinal(r driver.Row) (f JobFinal, err error) {
	var status int16
	err = r.Scan((*[16]byte)(&f.Job), &f.Run, &f.Tenant, &status, &f.Events, &f.Total, &f.Succeeded, &f.Failed, &f.Cancelled, &f.Skipped, (*int64)(&f.FinishedAt), &f.Handled)
	f.Status = drover.Status(status)
	return f, err
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
