package store

import (
	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store/driver"
)

// Identity is the SHA-256 of everything that a result is made of.
type Identity [32]byte

// ResultRow is a row of results: a task whose result may be used again.
type ResultRow struct {
	Tenant     int32
	Identity   Identity
	Task       drover.TaskID
	Generation int32
	Job        drover.JobID
	At         instant
}

// FoundResult is a result with its output.
type FoundResult struct {
	ResultRow
	Output []byte
}

// ReuseRow is a row of reuses: a task that ended with the result of another.
type ReuseRow struct {
	Task         drover.TaskID
	Generation   int32
	Job          drover.JobID
	Identity     Identity
	OfTask       drover.TaskID
	OfGeneration int32
	OfJob        drover.JobID
}

var (
	insertResults = driver.New("insert results", "tenant int, identity bytea, task_id uuid, generation int, job_id uuid, at bigint",
		"INSERT INTO results (tenant, identity, task_id, generation, job_id, at) SELECT {tenant}, {identity}, {task_id}, {generation}, {job_id}, {at} {from} WHERE true ON CONFLICT DO NOTHING RETURNING task_id")
	findResults = driver.New("find results", "tenant int, identity bytea",
		"SELECT r.tenant, r.identity, r.task_id, r.generation, r.job_id, r.at, f.output FROM {rows} JOIN results r ON r.tenant = {tenant} AND r.identity = {identity} "+
			"JOIN task_final f ON f.task_id = r.task_id AND f.generation = r.generation AND f.status = 8")
	resultsOf = driver.New("results of tasks", "task_id uuid, generation int",
		"SELECT r.tenant, r.identity, r.task_id, r.generation, r.job_id, r.at FROM {rows} JOIN results r ON r.task_id = {task_id} AND r.generation = {generation}")
	insertReuses = driver.Insert("insert reuses", "reuses", "task_id uuid, generation int, job_id uuid, identity bytea, of_task uuid, of_generation int, of_job uuid")
	readReuses   = driver.New("read reuses", "task_id uuid, generation int",
		"SELECT u.task_id, u.generation, u.job_id, u.identity, u.of_task, u.of_generation, u.of_job FROM {rows} JOIN reuses u ON u.task_id = {task_id} AND u.generation = {generation}")
	artifactHeads = driver.New("read what artifacts are", "id uuid", "SELECT a.id, a.tenant, a.job_id, a.sha256, a.visible FROM {rows} JOIN artifacts a ON a.id = {id}")
	insertUses    = driver.Insert("insert uses of artifacts", "artifact_uses", "artifact uuid, job_id uuid, of_job uuid")
	usedJobs      = driver.New("jobs whose results others use", "id uuid",
		"SELECT j.id FROM {rows} JOIN jobs j ON j.id = {id} WHERE EXISTS (SELECT 1 FROM reuses u JOIN jobs o ON o.id = u.job_id WHERE u.of_job = j.id AND u.job_id <> j.id) "+
			"OR EXISTS (SELECT 1 FROM artifact_uses u JOIN jobs o ON o.id = u.job_id WHERE u.of_job = j.id AND u.job_id <> j.id)")
	purgeResults = driver.New("purge results", "id uuid", "DELETE FROM results {using} WHERE job_id = {id}")
	purgeReuses  = driver.New("purge reuses", "id uuid", "DELETE FROM reuses {using} WHERE job_id = {id}")
	purgeUses    = driver.New("purge uses of artifacts", "id uuid", "DELETE FROM artifact_uses {using} WHERE job_id = {id}")
)

// InsertResults takes identities for results; won receives the tasks whose it was
// free for. The rows must be sorted by tenant and identity. One that another
// transaction is about to take is waited for.
func InsertResults(rows []ResultRow, won map[drover.TaskID]bool) Stmt {
	type r = ResultRow
	return Stmt{Text: insertResults, Cols: []any{
		col(rows, func(x *r) int32 { return x.Tenant }), col(rows, func(x *r) []byte { return x.Identity[:] }), col(rows, func(x *r) [16]byte { return [16]byte(x.Task) }),
		col(rows, func(x *r) int32 { return x.Generation }), col(rows, func(x *r) [16]byte { return [16]byte(x.Job) }), col(rows, func(x *r) int64 { return int64(x.At) }),
	}, Scan: func(row driver.Row) error {
		var id drover.TaskID
		err := row.Scan((*[16]byte)(&id))
		won[id] = true
		return err
	}}
}

func scanResult(row driver.Row, r *ResultRow, more ...any) error {
	var sum []byte
	err := row.Scan(append([]any{&r.Tenant, &sum, (*[16]byte)(&r.Task), &r.Generation, (*[16]byte)(&r.Job), (*int64)(&r.At)}, more...)...)
	copy(r.Identity[:], sum)
	return err
}

// FindResults reads the results that tenants have of identities: only tenant and
// identity of the rows count. found is by both.
func FindResults(rows []ResultRow, found map[ResultKey]FoundResult) Stmt {
	return Stmt{Text: findResults, Cols: []any{col(rows, func(x *ResultRow) int32 { return x.Tenant }), col(rows, func(x *ResultRow) []byte { return x.Identity[:] })},
		Scan: func(row driver.Row) error {
			var f FoundResult
			err := scanResult(row, &f.ResultRow, &f.Output)
			found[ResultKey{f.Tenant, f.Identity}] = f
			return err
		}}
}

// ResultKey is the key of results.
type ResultKey struct {
	Tenant   int32
	Identity Identity
}

// ResultsOf reads the identities of tasks' results.
func ResultsOf(tasks []Generation, found map[Generation]ResultRow) Stmt {
	return Stmt{Text: resultsOf, Cols: generations(tasks), Scan: func(row driver.Row) error {
		var r ResultRow
		err := scanResult(row, &r)
		found[Generation{Task: r.Task, N: r.Generation}] = r
		return err
	}}
}

func generations(tasks []Generation) []any {
	return []any{col(tasks, func(g *Generation) [16]byte { return [16]byte(g.Task) }), col(tasks, func(g *Generation) int32 { return g.N })}
}

// InsertReuses stores which tasks ended with the results of others.
func InsertReuses(rows []ReuseRow) Stmt {
	type r = ReuseRow
	return Stmt{Text: insertReuses, Cols: []any{
		col(rows, func(x *r) [16]byte { return [16]byte(x.Task) }), col(rows, func(x *r) int32 { return x.Generation }), col(rows, func(x *r) [16]byte { return [16]byte(x.Job) }),
		col(rows, func(x *r) []byte { return x.Identity[:] }), col(rows, func(x *r) [16]byte { return [16]byte(x.OfTask) }), col(rows, func(x *r) int32 { return x.OfGeneration }),
		col(rows, func(x *r) [16]byte { return [16]byte(x.OfJob) }),
	}}
}

// ReadReuses reads with whose results tasks ended.
func ReadReuses(tasks []Generation, found map[Generation]ReuseRow) Stmt {
	return Stmt{Text: readReuses, Cols: generations(tasks), Scan: func(row driver.Row) error {
		var r ReuseRow
		var sum []byte
		err := row.Scan((*[16]byte)(&r.Task), &r.Generation, (*[16]byte)(&r.Job), &sum, (*[16]byte)(&r.OfTask), &r.OfGeneration, (*[16]byte)(&r.OfJob))
		copy(r.Identity[:], sum)
		found[Generation{Task: r.Task, N: r.Generation}] = r
		return err
	}}
}

// ArtifactHead is what tells an artifact from others.
type ArtifactHead struct {
	ID     drover.ArtifactID
	Tenant int32
	Job    drover.JobID
	SHA256 []byte
}

// ArtifactHeads reads what visible artifacts are, of every tenant.
func ArtifactHeads(ids []drover.ArtifactID, heads map[drover.ArtifactID]ArtifactHead) Stmt {
	return Stmt{Text: artifactHeads, Cols: []any{col(ids, func(id *drover.ArtifactID) [16]byte { return [16]byte(*id) })}, Scan: func(row driver.Row) error {
		var h ArtifactHead
		var visible int16
		err := row.Scan((*[16]byte)(&h.ID), &h.Tenant, (*[16]byte)(&h.Job), &h.SHA256, &visible)
		if visible == 1 {
			heads[h.ID] = h
		}
		return err
	}}
}

// UseRow is a row of artifact_uses: a job whose input names an artifact.
type UseRow struct {
	Artifact drover.ArtifactID
	Job      drover.JobID
	OfJob    drover.JobID
}

// InsertUses stores which jobs' inputs name artifacts.
func InsertUses(rows []UseRow) Stmt {
	return Stmt{Text: insertUses, Cols: []any{col(rows, func(u *UseRow) [16]byte { return [16]byte(u.Artifact) }), col(rows, func(u *UseRow) [16]byte { return [16]byte(u.Job) }),
		col(rows, func(u *UseRow) [16]byte { return [16]byte(u.OfJob) })}}
}

// UsedJobs reads which of the jobs made what other jobs use that are still there.
func UsedJobs(jobs []drover.JobID, used *[]drover.JobID) Stmt {
	return Stmt{Text: usedJobs, Cols: []any{jobIDs(jobs)}, Scan: scanJobID(used)}
}
