package engine

import (
	"cmp"
	"context"
	"slices"

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
	plans := map[drover.JobID]*compiled{}
	asked := map[store.Key]bool{}
	for i := range got {
		x := &got[i]
		if x.Pipeline == 0 {
			continue
		}
		plan, err := e.plan(ctx, tx, x.Pipeline)
		if err != nil {
			return nil, err
		}
		plans[x.Job] = plan
		for _, r := range plan.Spoils(x.Node) {
			if k := spoilKey(x, r); !asked[k] {
				asked[k] = true
				keys = append(keys, k)
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
	why := newReasons(plans)
	at := map[store.Key]*store.FailedRow{}
	whole := map[store.Key][]*store.FailedRow{} // by the key of all rows of their node
	for i := range rows {
		r := &rows[i]
		if at[r.Key] == nil {
			at[r.Key] = r
			all := store.Key{Job: r.Job, Node: r.Node, Index: dag.Every}
			whole[all] = append(whole[all], r)
			why.ask(r, true)
		}
	}
	if err := why.read(ctx, tx); err != nil {
		return nil, err
	}
	out := map[drover.TaskID][]drover.Degradation{}
	for i := range got {
		x := &got[i]
		if plans[x.Job] == nil {
			continue
		}
		for _, r := range plans[x.Job].Spoils(x.Node) {
			k := spoilKey(x, r)
			list := whole[k]
			if f := at[k]; f != nil {
				list = []*store.FailedRow{f}
			}
			for _, f := range list {
				// An element behind one that failed is told nothing of how many may.
				if d, ok := why.of(f, !r.Same); ok && len(out[x.ID]) < maxDegraded {
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

// reasons tells what made failures of jobs good. What it has to know of each it is asked
// for first, so that it reads all of it at once.
type reasons struct {
	plans map[drover.JobID]*compiled
	calls []store.Key    // what may have been called in their place
	live  []store.MapRow // maps with a min_success of jobs that are live
	final []store.EndsOf // and of such as are not, with what stands in for their elements
	asked map[store.Key]bool
	good  map[drover.JobID]bool // jobs that have succeeded by themselves: enough of every map did

	ends map[store.Key]drover.Status
	maps map[store.Key]dag.Map // at Index 0
}

func newReasons(plans map[drover.JobID]*compiled) *reasons {
	return &reasons{plans: plans, asked: map[store.Key]bool{}, good: map[drover.JobID]bool{}, ends: map[store.Key]drover.Status{}, maps: map[store.Key]dag.Map{}}
}

// ask notes what is to be known of a failure of a job that is live, or is not. Of one
// that is not, elements are counted where nothing else tells if enough succeeded.
func (w *reasons) ask(f *store.FailedRow, live bool) {
	plan := w.plans[f.Job]
	for _, n := range plan.StandIns(f.Node) {
		w.calls = append(w.calls, store.Key{Job: f.Job, Node: n, Index: f.Index})
	}
	k := store.Key{Job: f.Job, Node: f.Node}
	if !plan.Tolerates(f.Node) || w.asked[k] || w.good[f.Job] {
		return
	}
	w.asked[k] = true
	if live {
		w.live = append(w.live, store.MapRow{Job: f.Job, Node: f.Node})
		return
	}
	for _, n := range append([]int32{f.Node}, plan.StandIns(f.Node)...) {
		w.final = append(w.final, store.EndsOf{Job: f.Job, Node: n})
	}
}

func (w *reasons) read(ctx context.Context, tx store.Tx) error {
	var counts []store.EndsOf
	err := tx.Pipe(ctx, store.HowEnded(w.calls, w.ends), store.ReadMaps(w.live, func(m store.MapRow) { w.maps[store.Key{Job: m.Job, Node: m.Node}] = m.Map }), store.CountEnds(w.final, &counts))
	for _, c := range counts {
		first, _ := w.plans[c.Job].Stands(c.Node)
		k := store.Key{Job: c.Job, Node: first}
		m := w.maps[k]
		if m.Succeeded += c.Succeeded; c.Node == first {
			m.Size, m.Ended, m.Skipped = c.Ended, c.Ended, c.Skipped
		}
		w.maps[k] = m
	}
	return err
}

// of tells what made a failure good, if something did: also that enough of its map
// succeeded, if that counts.
func (w *reasons) of(f *store.FailedRow, enough bool) (d drover.Degradation, ok bool) {
	plan := w.plans[f.Job]
	d = drover.Degradation{Task: plan.Nodes[f.Node].Name, Index: int(f.Index), Error: decodeFailure(f.Error)}
	d.Reason = plan.MadeGood(dag.Key{Node: f.Node, Index: f.Index},
		func(k dag.Key) dag.Outcome {
			return dag.OutcomeOf(w.ends[store.Key{Job: f.Job, Node: k.Node, Index: k.Index}], false)
		},
		func(m int32) bool {
			return enough && (w.good[f.Job] || w.maps[store.Key{Job: f.Job, Node: m}].Outcome(plan.Nodes[m].MinSuccess) == dag.Succeeded)
		})
	return d, d.Reason != ""
}

// showDegraded tells of degraded jobs why they are. In a list what would have to be
// counted for that is left out.
func (e *Engine) showDegraded(ctx context.Context, tx store.Tx, rows []store.JobRow, jobs []drover.Job, list bool) error {
	var ids []drover.JobID
	plans := map[drover.JobID]*compiled{}
	at := map[drover.JobID]*drover.Job{}
	for i := range jobs {
		if !jobs[i].Degraded || rows[i].Pipeline == 0 {
			continue
		}
		p, err := e.plan(ctx, tx, rows[i].Pipeline)
		if err != nil {
			return err
		}
		ids, plans[jobs[i].ID], at[jobs[i].ID] = append(ids, jobs[i].ID), p, &jobs[i]
	}
	if len(ids) == 0 {
		return nil
	}
	var failed []store.FailedRow
	if err := tx.Pipe(ctx, store.JobFailures(ids, &failed)); err != nil {
		return err
	}
	slices.SortFunc(failed, func(a, b store.FailedRow) int {
		return cmp.Or(compareIDs(a.Job, b.Job), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Index, b.Index))
	})
	rescued := func(j *drover.Job) bool { return j.Status == drover.Succeeded && plans[j.ID].Rescue >= 0 }
	why, many := newReasons(plans), map[drover.JobID]int{}
	failed = slices.DeleteFunc(failed, func(f store.FailedRow) bool {
		j, plan := at[f.Job], plans[f.Job]
		if plan.Nodes[f.Node].Primary >= 0 || plan.Nodes[f.Node].Undoes >= 0 || !plan.Degradable(f.Node) && !rescued(j) || many[f.Job] == 5*maxDegraded {
			return true // it stood in for one of the others, or nothing made it good
		}
		many[f.Job]++
		why.good[f.Job] = j.Status == drover.Succeeded && plan.Rescue < 0
		if list && j.Status.Final() && !why.good[f.Job] && plan.Tolerates(f.Node) {
			return true
		}
		why.ask(&f, !j.Status.Final())
		return false
	})
	if err := why.read(ctx, tx); err != nil {
		return err
	}
	for i := range failed {
		f := &failed[i]
		j := at[f.Job]
		d, ok := why.of(f, true)
		if !ok && rescued(j) {
			d.Reason, ok = "rescue "+plans[j.ID].Nodes[plans[j.ID].Rescue].Name, true
		}
		if ok && len(j.DegradedBy) < maxDegraded {
			j.DegradedBy = append(j.DegradedBy, d)
		}
	}
	return nil
}
