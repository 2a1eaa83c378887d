package engine

import (
	"context"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/store"
)

// maxDegraded bounds the failures that a task or a job is told to be degraded by.
const maxDegraded = 20

// degraded tells of claimed tasks which failures above them were made good. Tasks
// above which none can be cost nothing.
func (e *Engine) degraded(ctx context.Context, tx store.Tx, got []store.Claimed) (map[drover.TaskID][]drover.Degradation, error) {
	var keys []store.Key
	asked := map[store.Key]bool{}
	ask := func(k store.Key) {
		if !asked[k] {
			asked[k] = true
			keys = append(keys, k)
		}
	}
	for i := range got {
		x := &got[i]
		if x.Pipeline == 0 {
			continue
		}
		plan, err := e.plan(ctx, tx, x.Pipeline)
		if err != nil {
			return nil, err
		}
		for _, r := range plan.Spoils(x.Node) {
			for n := r.Node; n >= 0; n = plan.Nodes[n].Fallback {
				ask(spoilKey(x, dag.Ref{Node: n, Same: r.Same}))
			}
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}
	var rows []store.FailedRow
	if err := tx.Pipe(ctx, store.NodeFailures(keys, &rows)); err != nil || len(rows) == 0 {
		return nil, err
	}
	at := map[store.Key]*store.FailedRow{}
	whole := map[store.Key][]*store.FailedRow{} // by the key of all rows of their node
	for i := range rows {
		r := &rows[i]
		if at[r.Key] == nil {
			at[r.Key] = r
			all := store.Key{Job: r.Job, Node: r.Node, Index: dag.Every}
			whole[all] = append(whole[all], r)
		}
	}
	out := map[drover.TaskID][]drover.Degradation{}
	for i := range got {
		x := &got[i]
		if x.Pipeline == 0 {
			continue
		}
		plan, err := e.plan(ctx, tx, x.Pipeline)
		if err != nil {
			return nil, err
		}
		for _, r := range plan.Spoils(x.Node) {
			k := spoilKey(x, r)
			list := whole[k]
			if f := at[k]; f != nil {
				list = []*store.FailedRow{f}
			}
			for _, f := range list {
				if d, ok := degradation(plan, f, func(k dag.Key) bool { return at[store.Key{Job: x.Job, Node: k.Node, Index: k.Index}] != nil }); ok && len(out[x.ID]) < maxDegraded {
					out[x.ID] = append(out[x.ID], d)
				}
			}
		}
	}
	return out, nil
}

// spoilKey names the rows that a reference of a claimed task means.
func spoilKey(x *store.Claimed, r dag.Ref) store.Key {
	k := store.Key{Job: x.Job, Node: r.Node, Index: dag.Every}
	if r.Same {
		k.Index = x.Index
	}
	return k
}

// degradation tells what made a failure good, if something did.
func degradation(plan *compiled, f *store.FailedRow, failed func(dag.Key) bool) (d drover.Degradation, ok bool) {
	by, _, ok := plan.MadeGood(dag.Key{Node: f.Node, Index: f.Index}, failed)
	d = drover.Degradation{Task: plan.Nodes[f.Node].Name, Index: int(f.Index), Reason: "on_failure: degrade", Error: decodeFailure(f.Error)}
	if by >= 0 {
		d.Reason = "fallback " + plan.Nodes[by].Name
	}
	return d, ok
}

// showDegraded tells of degraded jobs why they are.
func (e *Engine) showDegraded(ctx context.Context, tx store.Tx, rows []store.JobRow, jobs []drover.Job) error {
	var ids []drover.JobID
	plans := map[drover.JobID]*compiled{}
	for i := range jobs {
		if !jobs[i].Degraded || rows[i].Pipeline == 0 {
			continue
		}
		p, err := e.plan(ctx, tx, rows[i].Pipeline)
		if err != nil {
			return err
		}
		ids, plans[jobs[i].ID] = append(ids, jobs[i].ID), p
	}
	if len(ids) == 0 {
		return nil
	}
	var failed []store.FailedRow
	if err := tx.Pipe(ctx, store.JobFailures(ids, &failed)); err != nil {
		return err
	}
	of := map[drover.JobID][]*store.FailedRow{}
	at := map[store.Key]bool{}
	for i := range failed {
		at[failed[i].Key] = true
		of[failed[i].Job] = append(of[failed[i].Job], &failed[i])
	}
	for i := range jobs {
		j := &jobs[i]
		plan := plans[j.ID]
		for _, f := range of[j.ID] {
			if len(j.DegradedBy) == maxDegraded {
				break
			}
			if plan.Nodes[f.Node].Primary >= 0 || plan.Nodes[f.Node].Undoes >= 0 {
				continue // it stood in for one of the others
			}
			d, ok := degradation(plan, f, func(k dag.Key) bool { return at[store.Key{Job: j.ID, Node: k.Node, Index: k.Index}] })
			if m, some := plan.Bounds(dag.Key{Node: f.Node, Index: f.Index}); !ok && j.Status == drover.Succeeded && some && !plan.Nodes[m].MinSuccess.IsZero() {
				d.Reason, ok = "min_success: "+plan.Nodes[m].MinSuccess.String(), true
			}
			if !ok && j.Status == drover.Succeeded && plan.Rescue >= 0 {
				d.Reason, ok = "rescue "+plan.Nodes[plan.Rescue].Name, true
			}
			if ok {
				j.DegradedBy = append(j.DegradedBy, d)
			}
		}
	}
	return nil
}
