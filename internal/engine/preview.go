package engine

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/store"
)

// predictAtMost bounds the tasks whose results a preview looks for.
const predictAtMost = 1000

// preview tells what becomes of every task of the job, and why, and in which run.
func (a *rerunning) preview(ctx context.Context) (int, []drover.RerunTask, error) {
	run := int(a.last.Run) + 1
	if a.live != nil {
		run = int(a.live.Run)
	}
	b := a.branch
	of := map[dag.Key]drover.RerunDoes{}
	put := func(keys []dag.Key, does drover.RerunDoes) {
		for _, k := range keys {
			of[k] = does
		}
	}
	put(b.Again, drover.RerunRuns)
	put(b.Waiting, drover.RerunWaits)
	put(b.Gone, drover.RerunGone)
	results, err := a.predict(ctx)
	if err != nil {
		return 0, nil, err
	}
	keys := make([]dag.Key, 0, len(a.at)+len(b.Again))
	for k := range a.at {
		keys = append(keys, k)
	}
	for _, k := range b.Again {
		if _, there := a.at[k]; !there {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(x, y dag.Key) int { return cmp.Or(cmp.Compare(x.Node, y.Node), cmp.Compare(x.Index, y.Index)) })
	asked := map[dag.Key]bool{}
	for _, k := range a.asked {
		asked[k] = true
	}
	out := []drover.RerunTask{}
	for _, k := range keys {
		t := drover.RerunTask{Task: a.kind, First: int(k.Index), Last: int(k.Index), Was: a.at[k].Status, Does: of[k]}
		by := ""
		if above, ok := b.Why[k]; ok && above != k {
			by = a.plan.Nodes[above.Node].Name
		}
		if a.plan != nil {
			t.Task, t.Mapped = a.plan.Nodes[k.Node].Name, a.plan.Nodes[k.Node].Mapped
		}
		switch {
		case t.Does == "":
			t.Does, t.Why = drover.RerunStays, "nothing that it waits for runs again"
			if !t.Was.Final() {
				t.Why = "it has not ended, and goes on"
			}
		case t.Does == drover.RerunWaits:
			t.Why = "it waits, for " + by + " too"
		case t.Does == drover.RerunGone && (a.plan.Closes(k.Node) || a.plan.Nodes[k.Node].Primary >= 0):
			t.Does, t.Why = drover.RerunDormant, "it runs when the others have ended, if it is called then"
			if by != "" {
				t.Why = "it runs once more if " + by + " fails again"
			}
		case t.Does == drover.RerunGone:
			t.Why = "its map expands again"
		case k.Index == dag.Unexpanded:
			t.Does, t.Why = drover.RerunExpands, "it waits for "+by+", which its list may come from"
			if asked[k] {
				t.Why = "it was asked for"
			}
		case asked[k] && a.r.Failed:
			t.Why = "it is " + t.Was.String()
		case asked[k] && a.r.Whole:
			t.Why = "the whole job runs again"
		case asked[k]:
			t.Why = "it was asked for"
		case b.Cut[k]:
			t.Why = "it was cut off when the job stopped"
		default:
			t.Why = "it waits for " + by
		}
		if p, ok := results[k]; ok && t.Does == drover.RerunRuns {
			t.Does = p.does
			t.Why += "; " + p.why
		}
		if n := len(out); n > 0 {
			if o := &out[n-1]; o.Task == t.Task && o.Does == t.Does && o.Why == t.Why && o.Was == t.Was && o.Last == t.First-1 && o.First >= 0 {
				o.Last = t.Last
				continue
			}
		}
		out = append(out, t)
	}
	return run, out, nil
}

// predicted is what may become of a task with cache.
type predicted struct {
	does drover.RerunDoes
	why  string
}

// predict tells which tasks that begin anew may end with results that are there: for
// sure those none of whose data begin anew.
func (a *rerunning) predict(ctx context.Context) (map[dag.Key]predicted, error) {
	out := map[dag.Key]predicted{}
	if a.plan == nil || !a.plan.caches || a.r.Fresh {
		return out, nil
	}
	moves, asked := map[int32]bool{}, map[dag.Key]bool{}
	for k := range a.branch.Why {
		moves[k.Node] = true
	}
	for _, k := range a.asked {
		asked[k] = true
	}
	s := newScope(a.job, a.plan)
	var list []*made
	var at []dag.Key
	var items []drover.TaskID
	for _, k := range a.branch.Again {
		n := &a.plan.Nodes[k.Node]
		t, there := a.at[k]
		switch {
		case !n.Cache || !there || k.Index == dag.Unexpanded:
		case asked[k] && !a.r.Whole:
			out[k] = predicted{drover.RerunRuns, "that is more than a result that is there"}
		case len(list) == predictAtMost || slices.ContainsFunc(a.plan.InputRefs(k.Node), func(r dag.Ref) bool { return moves[r.Node] }):
			out[k] = predicted{drover.RerunMayReuse, "if its input comes to the same as before, its result is used again"}
		default:
			list = append(list, &made{task: &t, tenant: a.plan.Tenant, plan: a.plan, scope: s, view: func(item []byte, index int32) dag.Scope { return s.dag(item, index) }})
			at = append(at, k)
			if n.Mapped && n.Over < 0 {
				items = append(items, t.ID)
			}
		}
	}
	if len(list) == 0 {
		return out, nil
	}
	item, err := itemsOf(ctx, a.tx, items)
	if err != nil {
		return nil, err
	}
	for _, m := range list {
		m.item = item[m.task.ID]
	}
	if err := identify(ctx, a.tx, list); err != nil {
		return nil, err
	}
	var rows []store.ResultRow
	for _, m := range list {
		if m.known {
			rows = append(rows, store.ResultRow{Tenant: m.tenant, Identity: m.identity})
		}
	}
	sortResults(rows)
	found := map[store.ResultKey]store.FoundResult{}
	if err := a.tx.Pipe(ctx, store.FindResults(rows, found)); err != nil {
		return nil, err
	}
	for i, m := range list {
		f, ok := found[store.ResultKey{Tenant: m.tenant, Identity: m.identity}]
		switch {
		case !m.known:
			out[at[i]] = predicted{drover.RerunRuns, "its input cannot be filled in now"}
		case ok:
			out[at[i]] = predicted{drover.RerunReused, fmt.Sprintf("its identity %s is unchanged, and task %s has the result", hex.EncodeToString(m.identity[:6]), f.Task)}
		default:
			out[at[i]] = predicted{drover.RerunRuns, "no result of its identity is there"}
		}
	}
	return out, nil
}

// stillThere refuses a mark of a task that stands nowhere, and has one that has just
// moved looked at again.
func (a *rerunning) stillThere() error {
	t, there := a.at[a.mark.key]
	switch {
	case !there:
		return drover.Errorf(drover.CodeInvalidTransition, "the task is a map whose elements stand for it, or counts no more since a rerun; it cannot be marked")
	case !t.Status.Final():
		return store.ErrRetry
	}
	return nil
}
