package store

import (
	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store/driver"
)

// ArtifactRow is a row of artifacts.
type ArtifactRow struct {
	ID           drover.ArtifactID
	Tenant       int32
	Job          drover.JobID
	Task         drover.TaskID
	Generation   int32
	LeaseVersion int32
	Name         string
	Kind         string
	MediaType    string
	SHA256       []byte
	Size         int64
	Metadata     []byte
	CreatedAt    instant

	// Not stored in the row:
	Owner    string // who created its job
	Identity []byte // of the result that it belongs to; empty where it has none
	Node     int32  // of its task
	Index    int32
}

const artifactCols = "a.id, a.tenant, a.job_id, a.task_id, a.generation, a.lease_version, a.name, a.kind, a.media_type, a.sha256, a.size, a.metadata, a.created_at, " +
	"coalesce((SELECT j.creator FROM jobs j WHERE j.id = a.job_id), ''), coalesce((SELECT r.identity FROM results r WHERE r.task_id = a.task_id AND r.generation = a.generation), {pg:''::bytea}{lite:x''})"

var (
	// A running attempt's uploads are younger than its claim: the index on
	// created_at finds them.
	replaceArtifact = driver.New("drop a staged artifact of this name", "",
		"DELETE FROM artifacts WHERE visible = 0 AND created_at >= $1 AND task_id = $2 AND lease_version = $3 AND name = $4")
	stagedArtifact = driver.New("read a staged artifact of this name", "",
		"SELECT "+artifactCols+" FROM artifacts a WHERE a.visible = 0 AND a.created_at >= $1 AND a.task_id = $2 AND a.lease_version = $3 AND a.name = $4")
	stageArtifact = driver.New("stage artifact", "",
		"INSERT INTO artifacts (id, tenant, job_id, task_id, generation, lease_version, visible, name, kind, media_type, sha256, size, metadata, created_at) VALUES ($1, $2, $3, $4, $5, $6, 0, $7, $8, $9, $10, $11, $12, $13)")
	oneArtifact     = driver.New("read artifact", "", "SELECT "+artifactCols+" FROM artifacts a WHERE a.id = $1 AND a.visible = 1")
	tenantArtifacts = driver.New("artifacts of a tenant, newest first", "",
		"SELECT "+artifactCols+" FROM artifacts a WHERE a.tenant = $1 AND a.visible = 1 AND a.id < $2 AND ($3 = '' OR a.kind = $3) ORDER BY a.id DESC LIMIT $4")
	jobArtifacts = driver.New("artifacts of a job, newest first", "",
		"SELECT "+artifactCols+" FROM artifacts a WHERE a.job_id = $1 AND a.visible = 1 AND a.id < $2 AND ($3 = '' OR a.kind = $3) AND ($5 = 1 OR a.task_id = $6) ORDER BY a.id DESC LIMIT $4")
	placedArtifacts = driver.New("artifacts of jobs with their places", "id uuid",
		"SELECT "+artifactCols+", t.node, t.idx FROM {rows} JOIN artifacts a ON a.job_id = {id} AND a.visible = 1 JOIN tasks t ON t.id = a.task_id ORDER BY a.id LIMIT $1")
	bytesInUse = driver.New("find artifacts by their bytes", "sha bytea", "SELECT {sha} FROM {rows} WHERE EXISTS (SELECT 1 FROM artifacts a WHERE a.sha256 = {sha})")
)

func scanArtifact(r driver.Row) (a ArtifactRow, err error) {
	err = r.Scan((*[16]byte)(&a.ID), &a.Tenant, (*[16]byte)(&a.Job), (*[16]byte)(&a.Task), &a.Generation, &a.LeaseVersion, &a.Name, &a.Kind, &a.MediaType, &a.SHA256, &a.Size, &a.Metadata, (*int64)(&a.CreatedAt), &a.Owner, &a.Identity)
	return a, err
}

// StagedArtifact reads what an attempt claimed at since has uploaded under a name.
func StagedArtifact(a ArtifactRow, since instant, rows *[]ArtifactRow) Stmt {
	return Stmt{Text: stagedArtifact, Args: []any{int64(since), [16]byte(a.Task), a.LeaseVersion, a.Name}, Scan: into(rows, scanArtifact)}
}

// StageArtifact stores an upload of an attempt claimed at since, in the place of
// an earlier one of the same name. It is not visible yet.
func StageArtifact(a ArtifactRow, since instant) []Stmt {
	return []Stmt{
		{Text: replaceArtifact, Args: []any{int64(since), [16]byte(a.Task), a.LeaseVersion, a.Name}},
		{Text: stageArtifact, Args: []any{[16]byte(a.ID), a.Tenant, [16]byte(a.Job), [16]byte(a.Task), a.Generation, a.LeaseVersion, a.Name, a.Kind, a.MediaType, a.SHA256, a.Size, some(a.Metadata), int64(a.CreatedAt)}},
	}
}

// OneArtifact reads a visible artifact; none leaves rows as it is.
func OneArtifact(id drover.ArtifactID, rows *[]ArtifactRow) Stmt {
	return Stmt{Text: oneArtifact, Args: []any{[16]byte(id)}, Scan: into(rows, scanArtifact)}
}

// TenantArtifacts reads visible artifacts of a tenant below an id, newest first.
// An empty kind is any.
func TenantArtifacts(tenant int32, kind string, below drover.ArtifactID, n int, rows *[]ArtifactRow) Stmt {
	return Stmt{Text: tenantArtifacts, Args: []any{tenant, [16]byte(below), kind, int64(n)}, Scan: into(rows, scanArtifact)}
}

// JobArtifacts is TenantArtifacts for a job; a zero task is any.
func JobArtifacts(job drover.JobID, task drover.TaskID, kind string, below drover.ArtifactID, n int, rows *[]ArtifactRow) Stmt {
	return Stmt{Text: jobArtifacts, Args: []any{[16]byte(job), [16]byte(below), kind, int64(n), int32(flag(task.IsZero())), [16]byte(task)}, Scan: into(rows, scanArtifact)}
}

// BytesInUse names those of the SHA-256 sums that an artifact has, staged ones too.
func BytesInUse(sums [][]byte, used map[string]bool) Stmt {
	return Stmt{Text: bytesInUse, Cols: []any{sums}, Scan: func(r driver.Row) error {
		var sum []byte
		err := r.Scan(&sum)
		used[string(sum)] = true
		return err
	}}
}

// PlacedArtifacts reads up to n visible artifacts of jobs, oldest first, with the
// places of their tasks.
func PlacedArtifacts(jobs []drover.JobID, n int, rows *[]ArtifactRow) Stmt {
	return Stmt{Text: placedArtifacts, Cols: []any{jobIDs(jobs)}, Args: []any{int64(n)}, Scan: into(rows, func(r driver.Row) (a ArtifactRow, err error) {
		err = r.Scan((*[16]byte)(&a.ID), &a.Tenant, (*[16]byte)(&a.Job), (*[16]byte)(&a.Task), &a.Generation, &a.LeaseVersion, &a.Name, &a.Kind, &a.MediaType, &a.SHA256, &a.Size, &a.Metadata, (*int64)(&a.CreatedAt), &a.Owner, &a.Identity, &a.Node, &a.Index)
		return a, err
	})}
}

// Link says that a place of a job has to do with another: of a reuse, whose result
// it has; of a use, what its job's input names.
type Link struct {
	Job      drover.JobID
	Node     int32 // of a use: -1
	Index    int32
	OfJob    drover.JobID
	OfNode   int32
	OfIndex  int32
	Artifact drover.ArtifactID // of a use
}

var (
	linkCols = "u.job_id, t.node, t.idx, u.of_job, o.node, o.idx"
	reusesIn = driver.New("reuses of a job's tasks", "id uuid",
		"SELECT "+linkCols+" FROM {rows} JOIN reuses u ON u.job_id = {id} JOIN tasks t ON t.id = u.task_id JOIN tasks o ON o.id = u.of_task ORDER BY u.task_id, u.generation LIMIT $1")
	reusesOfJob = driver.New("reuses of what a job made", "id uuid",
		"SELECT "+linkCols+" FROM {rows} JOIN reuses u ON u.of_job = {id} JOIN tasks t ON t.id = u.task_id JOIN tasks o ON o.id = u.of_task ORDER BY u.task_id, u.generation LIMIT $1")
	usesIn = driver.New("artifacts that a job's input names", "id uuid",
		"SELECT u.job_id, -1, 0, u.of_job, o.node, o.idx, u.artifact FROM {rows} JOIN artifact_uses u ON u.job_id = {id} JOIN artifacts a ON a.id = u.artifact JOIN tasks o ON o.id = a.task_id ORDER BY u.artifact, u.job_id LIMIT $1")
	usesOfJob = driver.New("jobs whose input names what a job made", "id uuid",
		"SELECT u.job_id, -1, 0, u.of_job, o.node, o.idx, u.artifact FROM {rows} JOIN artifact_uses u ON u.of_job = {id} JOIN jobs j ON j.id = u.job_id JOIN artifacts a ON a.id = u.artifact JOIN tasks o ON o.id = a.task_id ORDER BY u.artifact, u.job_id LIMIT $1")
)

// Links reads up to n of each kind of link that a job has with others: where it has
// things from, and where its things went.
func Links(job drover.JobID, n int, from, to *[]Link) []Stmt {
	ids := []any{jobIDs([]drover.JobID{job})}
	scan := func(list *[]Link, use bool) func(driver.Row) error {
		return into(list, func(r driver.Row) (l Link, err error) {
			dest := []any{(*[16]byte)(&l.Job), &l.Node, &l.Index, (*[16]byte)(&l.OfJob), &l.OfNode, &l.OfIndex}
			if use {
				dest = append(dest, (*[16]byte)(&l.Artifact))
			}
			err = r.Scan(dest...)
			return l, err
		})
	}
	args := []any{int64(n)}
	return []Stmt{{Text: reusesIn, Cols: ids, Args: args, Scan: scan(from, false)}, {Text: usesIn, Cols: ids, Args: args, Scan: scan(from, true)},
		{Text: reusesOfJob, Cols: ids, Args: args, Scan: scan(to, false)}, {Text: usesOfJob, Cols: ids, Args: args, Scan: scan(to, true)}}
}
