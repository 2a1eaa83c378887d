package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/store"
)

// Bounds of one look at a lineage.
const (
	lineageSteps = 1000
	lineageJobs  = 50
	lineageRows  = 5000 // artifacts and links read of a job
	shownOfStep  = 100  // artifacts of one step
)

// Ways in which a step of a lineage hangs together with the one before.
const (
	viaData  = "data"
	viaReuse = "reuse"
	viaInput = "input"
)

// Trace returns where a visible artifact comes from and what was made of it: along
// the data edges of its pipeline, and through results that were used again and
// inputs that name artifacts, from job to job.
func (e *Engine) Trace(ctx context.Context, c Caller, id drover.ArtifactID) (drover.Lineage, error) {
	row, err := e.artifactRow(ctx, c, id)
	if err != nil {
		return drover.Lineage{}, err
	}
	var out drover.Lineage
	err = e.db.Read(ctx, func(tx store.Tx) error {
		out = drover.Lineage{Artifact: showArtifact(row), Up: []drover.LineageStep{}, Down: []drover.LineageStep{}}
		l := lineage{e: e, tx: tx, tenant: row.Tenant, jobs: map[drover.JobID]*linked{}}
		var tasks []store.TaskRow
		if err := tx.Pipe(ctx, store.ReadTasks([]drover.TaskID{row.Task}, &tasks)); err != nil || len(tasks) == 0 {
			return err
		}
		from := spot{row.Job, dag.Key{Node: tasks[0].Node, Index: tasks[0].Index}}
		var err error
		if out.Up, err = l.walk(ctx, from, l.above); err != nil {
			return err
		}
		out.Down, err = l.walk(ctx, from, l.below)
		out.Truncated = l.truncated
		return err
	})
	if err != nil {
		return drover.Lineage{}, fmt.Errorf("trace artifact: %w", err)
	}
	return out, nil
}

// spot is a task of a job, or with the index Every all tasks of a node.
type spot struct {
	job drover.JobID
	key dag.Key
}

// linked is what is known of a job on the way.
type linked struct {
	plan      *compiled // nil for a Kind job
	kind      string
	artifacts map[dag.Key][]drover.Artifact
	from, to  []store.Link
}

type lineage struct {
	e         *Engine
	tx        store.Tx
	tenant    int32
	jobs      map[drover.JobID]*linked
	truncated bool
}

// job reads what is known of a job, once; nil is one that has left.
func (l *lineage) job(ctx context.Context, id drover.JobID) (*linked, error) {
	if j, ok := l.jobs[id]; ok {
		return j, nil
	}
	if len(l.jobs) == lineageJobs {
		l.truncated = true
		return nil, nil
	}
	heads := map[drover.JobID]store.JobHead{}
	j := &linked{artifacts: map[dag.Key][]drover.Artifact{}}
	var rows []store.ArtifactRow
	stmts := append(store.Links(id, lineageRows, &j.from, &j.to), store.ReadJobHeads([]drover.JobID{id}, heads), store.PlacedArtifacts([]drover.JobID{id}, lineageRows, &rows))
	if err := l.tx.Pipe(ctx, stmts...); err != nil {
		return nil, err
	}
	h, ok := heads[id]
	if !ok || h.Tenant != l.tenant {
		l.jobs[id] = nil
		return nil, nil
	}
	l.truncated = l.truncated || len(rows) == lineageRows || len(j.from) >= lineageRows || len(j.to) >= lineageRows
	for _, r := range rows {
		k := dag.Key{Node: r.Node, Index: r.Index}
		j.artifacts[k] = append(j.artifacts[k], showArtifact(r))
	}
	if h.Pipeline != 0 {
		p, err := l.e.plan(ctx, l.tx, h.Pipeline)
		if err != nil {
			return nil, err
		}
		j.plan = p
	}
	l.jobs[id] = j
	return j, nil
}

// next is a spot to go to, and how it hangs together with the one before.
type next struct {
	spot
	via string
}

// walk goes breadth first from a spot, which is not among the steps.
func (l *lineage) walk(ctx context.Context, from spot, further func(context.Context, spot) ([]next, error)) ([]drover.LineageStep, error) {
	out := []drover.LineageStep{}
	seen := map[spot]bool{from: true}
	level := []spot{from}
	for depth := 1; len(level) > 0; depth++ {
		var after []spot
		for _, at := range level {
			list, err := further(ctx, at)
			if err != nil {
				return nil, err
			}
			for _, n := range list {
				if seen[n.spot] || seen[spot{n.job, dag.Key{Node: n.key.Node, Index: dag.Every}}] {
					continue
				}
				if len(out) == lineageSteps {
					l.truncated = true
					return out, nil
				}
				seen[n.spot] = true
				step, err := l.step(ctx, n, at, depth)
				if err != nil {
					return nil, err
				}
				if step == nil {
					continue
				}
				out = append(out, *step)
				after = append(after, n.spot)
			}
		}
		level = after
	}
	return out, nil
}

// step shows a spot; nil is one whose job has left.
func (l *lineage) step(ctx context.Context, n next, of spot, depth int) (*drover.LineageStep, error) {
	j, err := l.job(ctx, n.job)
	if err != nil || j == nil {
		return nil, err
	}
	s := &drover.LineageStep{Depth: depth, JobID: n.job, Via: n.via, Index: int(n.key.Index)}
	if s.Task, err = l.name(ctx, n.spot); err != nil {
		return nil, err
	}
	if s.Of, err = l.name(ctx, of); err != nil {
		return nil, err
	}
	if j.plan != nil {
		s.Pipeline, s.Version = j.plan.Name, int(j.plan.Version)
	}
	if n.key.Index == dag.Every {
		s.Index = -1
	}
	for k, list := range j.artifacts {
		if k.Node == n.key.Node && (k.Index == n.key.Index || n.key.Index == dag.Every) {
			s.Artifacts = append(s.Artifacts, list...)
		}
	}
	sortArtifacts(s.Artifacts)
	if len(s.Artifacts) > shownOfStep {
		s.Artifacts, l.truncated = s.Artifacts[:shownOfStep], true
	}
	return s, nil
}

// name is that of a spot's task.
func (l *lineage) name(ctx context.Context, at spot) (string, error) {
	j, err := l.job(ctx, at.job)
	if err != nil || j == nil {
		return "", err
	}
	if j.plan != nil {
		return j.plan.Nodes[at.key.Node].Name, nil
	}
	if j.kind == "" {
		var rows []store.TaskRow
		if err := l.tx.Pipe(ctx, store.JobTaskRows(store.Reach{Job: at.job, After: store.Place{Index: dag.Every}, Before: store.Place{Node: 1}, N: 1}, &rows)); err != nil {
			return "", err
		}
		if len(rows) > 0 {
			j.kind = rows[0].Kind
		}
	}
	return j.kind, nil
}

// above is what a spot has its data from.
func (l *lineage) above(ctx context.Context, at spot) ([]next, error) {
	j, err := l.job(ctx, at.job)
	if err != nil || j == nil {
		return nil, err
	}
	var out []next
	input := true
	if p := j.plan; p != nil {
		n := at.key.Node
		input = p.UsesInput(n)
		for _, r := range append(append([]dag.Ref{}, p.InputRefs(n)...), p.ForEachRefs(n)...) {
			k := dag.Key{Node: r.Node, Index: 0}
			switch {
			case r.Same:
				k.Index = at.key.Index
			case p.Nodes[r.Node].Mapped:
				k.Index = dag.Every
			}
			out = append(out, next{spot{at.job, k}, viaData})
		}
	}
	for _, f := range j.from {
		switch {
		case f.Node < 0:
			if input {
				out = append(out, next{spot{f.OfJob, dag.Key{Node: f.OfNode, Index: f.OfIndex}}, viaInput})
			}
		case f.Node == at.key.Node && (f.Index == at.key.Index || at.key.Index == dag.Every):
			out = append(out, next{spot{f.OfJob, dag.Key{Node: f.OfNode, Index: f.OfIndex}}, viaReuse})
		}
	}
	return out, nil
}

// below is what data of a spot went to.
func (l *lineage) below(ctx context.Context, at spot) ([]next, error) {
	j, err := l.job(ctx, at.job)
	if err != nil || j == nil {
		return nil, err
	}
	var out []next
	if p := j.plan; p != nil {
		for _, e := range p.Edges {
			if e.Parent != at.key.Node || !e.Data {
				continue
			}
			k := dag.Key{Node: e.Child, Index: 0}
			switch {
			case e.Same:
				k.Index = at.key.Index
			case p.Nodes[e.Child].Mapped:
				k.Index = dag.Every
			}
			out = append(out, next{spot{at.job, k}, viaData})
		}
	}
	for _, f := range j.to {
		if f.OfNode != at.key.Node || f.OfIndex != at.key.Index && at.key.Index != dag.Every {
			continue
		}
		if f.Node >= 0 {
			out = append(out, next{spot{f.Job, dag.Key{Node: f.Node, Index: f.Index}}, viaReuse})
			continue
		}
		user, err := l.job(ctx, f.Job)
		if err != nil {
			return nil, err
		}
		switch {
		case user == nil:
		case user.plan == nil:
			out = append(out, next{spot{f.Job, dag.Key{}}, viaInput})
		default:
			for n := range user.plan.Nodes {
				if user.plan.UsesInput(int32(n)) {
					k := dag.Key{Node: int32(n)}
					if user.plan.Nodes[n].Mapped {
						k.Index = dag.Every
					}
					out = append(out, next{spot{f.Job, k}, viaInput})
				}
			}
		}
	}
	return out, nil
}

func sortArtifacts(list []drover.Artifact) {
	slices.SortFunc(list, func(a, b drover.Artifact) int { return compareIDs(a.ID, b.ID) })
}
