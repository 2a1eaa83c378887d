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
}

const artifactCols = "a.id, a.tenant, a.job_id, a.task_id, a.generation, a.lease_version, a.name, a.kind, a.media_type, a.sha256, a.size, a.metadata, a.created_at"

var (
	// A running attempt's uploads are younger than its claim: the index on
	// created_at finds them.
	replaceArtifact = driver.New("drop a staged artifact of this name", "",
		"DELETE FROM artifacts WHERE visible = 0 AND created_at >= $1 AND task_id = $2 AND lease_version = $3 AND name = $4")
	stageArtifact = driver.New("stage artifact", "",
		"INSERT INTO artifacts (id, tenant, job_id, task_id, generation, lease_version, visible, name, kind, media_type, sha256, size, metadata, created_at) VALUES ($1, $2, $3, $4, $5, $6, 0, $7, $8, $9, $10, $11, $12, $13)")
	oneArtifact     = driver.New("read artifact", "", "SELECT "+artifactCols+" FROM artifacts a WHERE a.id = $1 AND a.visible = 1")
	tenantArtifacts = driver.New("artifacts of a tenant, newest first", "",
		"SELECT "+artifactCols+" FROM artifacts a WHERE a.tenant = $1 AND a.visible = 1 AND a.id < $2 AND ($3 = '' OR a.kind = $3) ORDER BY a.id DESC LIMIT $4")
	jobArtifacts = driver.New("artifacts of a job, newest first", "",
		"SELECT "+artifactCols+" FROM artifacts a WHERE a.job_id = $1 AND a.visible = 1 AND a.id < $2 AND ($3 = '' OR a.kind = $3) AND ($5 = 1 OR a.task_id = $6) ORDER BY a.id DESC LIMIT $4")
	bytesInUse = driver.New("find artifacts by their bytes", "sha bytea", "SELECT {sha} FROM {rows} WHERE EXISTS (SELECT 1 FROM artifacts a WHERE a.sha256 = {sha})")
)

func scanArtifact(r driver.Row) (a ArtifactRow, err error) {
	err = r.Scan((*[16]byte)(&a.ID), &a.Tenant, (*[16]byte)(&a.Job), (*[16]byte)(&a.Task), &a.Generation, &a.LeaseVersion, &a.Name, &a.Kind, &a.MediaType, &a.SHA256, &a.Size, &a.Metadata, (*int64)(&a.CreatedAt))
	return a, err
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
