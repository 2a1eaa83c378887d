package engine

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/store"
)

// MaxSource bounds the text of a pipeline in bytes.
const MaxSource = dag.TextCap

// maxPage bounds any list; a query that says nothing gets defaultPage.
const (
	defaultPage = 50
	maxPage     = 1001
)

// pageSize returns how many items a list has at most.
func pageSize(n int) int {
	if n <= 0 {
		return defaultPage
	}
	return min(n, maxPage)
}

// RegisterPipeline stores a definition as the next version of its name. One
// that means the same as the newest version is that version. file is for
// messages only.
func (e *Engine) RegisterPipeline(ctx context.Context, c Caller, file string, src []byte) (drover.Pipeline, error) {
	if len(src) > MaxSource {
		return drover.Pipeline{}, drover.Errorf(drover.CodePayloadTooLarge, "the definition has %d bytes; at most %d", len(src), MaxSource)
	}
	p, err := e.parse(file, src)
	if err != nil {
		return drover.Pipeline{}, err
	}
	if err := e.checkCalls(ctx, c, p); err != nil {
		return drover.Pipeline{}, err
	}
	hash := p.Hash()
	row := store.PipelineVersion{Tenant: c.Tenant, Name: p.Name, Hash: hash[:], Definition: p.Canonical(), Source: clearText(string(src)), Creator: c.Actor}
	var created bool
	for range 20 {
		err = e.db.Write(ctx, func(tx store.Tx) error {
			var newest []store.PipelineVersion
			if err := tx.Pipe(ctx, store.NewestPipeline(c.Tenant, p.Name, &newest)); err != nil {
				return err
			}
			row.Version, row.CreatedAt, created = 1, e.now(), true
			if len(newest) > 0 {
				if bytes.Equal(newest[0].Hash, hash[:]) {
					row, created = newest[0], false
					return nil
				}
				row.Version = newest[0].Version + 1
			}
			return tx.Pipe(ctx, store.InsertPipeline(row))
		})
		if !errors.Is(err, store.ErrUnique) { // else another registration took the version or the number
			break
		}
	}
	if err != nil {
		return drover.Pipeline{}, fmt.Errorf("register pipeline %q: %w", p.Name, err)
	}
	out := pipelineView(row)
	out.Definition, out.Source, out.Created = nil, "", created
	return out, nil
}

// smallSource is how long a definition may be that is read beside others.
const smallSource = 1 << 20

// parse reads a definition. Large ones are read one at a time, as each takes some
// hundred times of its size meanwhile.
func (e *Engine) parse(file string, src []byte) (*dag.Pipeline, error) {
	if len(src) > smallSource {
		e.plans.compiling.Lock()
		defer e.plans.compiling.Unlock()
	}
	return dag.Parse(file, src)
}

func pipelineView(r store.PipelineVersion) drover.Pipeline {
	return drover.Pipeline{Name: r.Name, Version: int(r.Version), Hash: hex.EncodeToString(r.Hash), Creator: r.Creator, CreatedAt: r.CreatedAt.Time(),
		Definition: r.Definition, Source: r.Source}
}

// Pipeline returns a version with its definition, the newest when version is 0.
func (e *Engine) Pipeline(ctx context.Context, c Caller, name string, version int) (drover.Pipeline, error) {
	what := func() error {
		if version == 0 {
			return notFound("pipeline", strconv.Quote(cut(name)))
		}
		return notFound("pipeline", fmt.Sprintf("%q with version %d", cut(name), version))
	}
	if !dag.ValidName(name) || version < 0 || version > math.MaxInt32 {
		return drover.Pipeline{}, what()
	}
	var rows []store.PipelineVersion
	if err := e.db.Read(ctx, func(tx store.Tx) error {
		rows = nil
		return tx.Pipe(ctx, store.OnePipeline(c.Tenant, name, int32(version), &rows))
	}); err != nil {
		return drover.Pipeline{}, fmt.Errorf("read pipeline %q: %w", name, err)
	}
	if len(rows) == 0 {
		return drover.Pipeline{}, what()
	}
	return pipelineView(rows[0]), nil
}

// Pipelines lists the newest version of each pipeline by name, after the name
// given; or every version of one name, newest first, after the version given.
func (e *Engine) Pipelines(ctx context.Context, c Caller, name, after string, limit int) ([]drover.Pipeline, error) {
	before := 0
	if name != "" && after != "" {
		var err error
		if before, err = strconv.Atoi(after); err != nil || before < 1 || before > math.MaxInt32 {
			return nil, drover.Errorf(drover.CodeValidation, "%q is not a version to go on after", cut(after))
		}
	}
	if (name != "" && !dag.ValidName(name)) || before == 1 || (name == "" && after != clearText(after)) {
		return []drover.Pipeline{}, nil
	}
	var rows []store.PipelineVersion
	if err := e.db.Read(ctx, func(tx store.Tx) error {
		rows = nil
		if name == "" {
			return tx.Pipe(ctx, store.NewestPipelines(c.Tenant, after, pageSize(limit), &rows))
		}
		return tx.Pipe(ctx, store.PipelineVersions(c.Tenant, name, int32(before), pageSize(limit), &rows))
	}); err != nil {
		return nil, fmt.Errorf("list pipelines: %w", err)
	}
	out := make([]drover.Pipeline, len(rows))
	for i, r := range rows {
		out[i] = pipelineView(r)
	}
	return out, nil
}
