package store

import (
	"github.com/drover-dev/drover/internal/store/driver"
)

// PipelineVersion is a row of pipelines as it is listed; Definition and Source
// are set where they are asked for.
type PipelineVersion struct {
	ID         int32
	Tenant     int32
	Name       string
	Version    int32
	Hash       []byte
	Definition []byte
	Source     string
	Creator    string
	CreatedAt  instant
}

const pipelineCols = "p.id, p.tenant, p.name, p.version, p.hash, p.creator, p.created_at"

var (
	newestPipeline = driver.New("newest version of a pipeline", "",
		"SELECT "+pipelineCols+" FROM pipelines p WHERE p.tenant = $1 AND p.name = $2 ORDER BY p.version DESC LIMIT 1")
	onePipeline = driver.New("read a pipeline version", "",
		"SELECT "+pipelineCols+", p.definition, p.source FROM pipelines p WHERE p.tenant = $1 AND p.name = $2 AND ($3 = 0 OR p.version = $3) ORDER BY p.version DESC LIMIT 1")
	pipelineVersions = driver.New("versions of a pipeline", "",
		"SELECT "+pipelineCols+" FROM pipelines p WHERE p.tenant = $1 AND p.name = $2 AND ($3 = 0 OR p.version < $3) ORDER BY p.version DESC LIMIT $4")
	// Versions are numbered without gaps: the newest is the one that has none after it.
	newestPipelines = driver.New("newest versions of pipelines", "",
		"SELECT "+pipelineCols+" FROM pipelines p WHERE p.tenant = $1 AND p.name > $2"+
			" AND NOT EXISTS (SELECT 1 FROM pipelines q WHERE q.tenant = p.tenant AND q.name = p.name AND q.version = p.version + 1) ORDER BY p.name LIMIT $3")
	pipelineIDs = driver.New("numbers of a pipeline's versions", "", "SELECT id FROM pipelines WHERE tenant = $1 AND name = $2")

	insertPipeline = driver.New("insert pipeline", "",
		"INSERT INTO pipelines (id, tenant, name, version, hash, definition, source, creator, created_at) SELECT coalesce(max(id), 0) + 1, $1, $2, $3, $4, $5, $6, $7, $8 FROM pipelines")
)

func scanPipeline(r driver.Row) (p PipelineVersion, err error) {
	err = r.Scan(&p.ID, &p.Tenant, &p.Name, &p.Version, &p.Hash, &p.Creator, (*int64)(&p.CreatedAt))
	return p, err
}

// NewestPipeline reads the newest version of a name; none leaves rows as it is.
func NewestPipeline(tenant int32, name string, rows *[]PipelineVersion) Stmt {
	return Stmt{Text: newestPipeline, Args: []any{tenant, name}, Scan: into(rows, scanPipeline)}
}

// OnePipeline reads a version with its definition, the newest when version is 0.
func OnePipeline(tenant int32, name string, version int32, rows *[]PipelineVersion) Stmt {
	return Stmt{Text: onePipeline, Args: []any{tenant, name, version}, Scan: into(rows, func(r driver.Row) (p PipelineVersion, err error) {
		err = r.Scan(&p.ID, &p.Tenant, &p.Name, &p.Version, &p.Hash, &p.Creator, (*int64)(&p.CreatedAt), &p.Definition, &p.Source)
		return p, err
	})}
}

// PipelineVersions lists versions of a name below before (0: all), newest first.
func PipelineVersions(tenant int32, name string, before int32, limit int, rows *[]PipelineVersion) Stmt {
	return Stmt{Text: pipelineVersions, Args: []any{tenant, name, before, int64(limit)}, Scan: into(rows, scanPipeline)}
}

// NewestPipelines lists the newest version of each name after the one given, by name.
func NewestPipelines(tenant int32, after string, limit int, rows *[]PipelineVersion) Stmt {
	return Stmt{Text: newestPipelines, Args: []any{tenant, after, int64(limit)}, Scan: into(rows, scanPipeline)}
}

// PipelineIDs reads the numbers of all versions of a name.
func PipelineIDs(tenant int32, name string, ids *[]int32) Stmt {
	return Stmt{Text: pipelineIDs, Args: []any{tenant, name}, Scan: into(ids, func(r driver.Row) (id int32, err error) { err = r.Scan(&id); return id, err })}
}

// InsertPipeline stores a new version under a new number; ErrUnique says that
// somebody else just took the number or the version.
func InsertPipeline(p PipelineVersion) Stmt {
	return Stmt{Text: insertPipeline, Args: []any{p.Tenant, p.Name, p.Version, p.Hash, p.Definition, p.Source, p.Creator, int64(p.CreatedAt)}}
}
