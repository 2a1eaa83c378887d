package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// graph advances the pending rows of one job within a transaction: it loads and
// locks what ended tasks release, expands maps whose parents have ended, and
// collects what must be written.
type graph struct {
	plan  *compiled // nil for a Kind job
	kind  terms     // of a Kind job
	job   drover.JobID
	total int32 // tasks the job had when this began
	grown int32 // tasks that expansions add
	input json.RawMessage
	have  bool // input is loaded
	trace string

	rows  map[dag.Key]*prow
	whole map[int32]bool              // nodes of which every row is loaded
	want  []dag.Key                   // to load
	minus []dag.Delta                 // changes of counters, to apply when loaded
	out   map[dag.Key]json.RawMessage // outputs of this transaction, not stored yet
	maps  []dag.Key                   // maps that may expand
	again []drover.TaskID             // maps that ended before, were replayed and expand
	grew  bool                        // rows were added or replaced
	x     []store.TaskRow             // new elements
	split []splitMap
	fail  []failedMap
}

// prow is a pending row in hand.
type prow struct {
	task    lifecycle.Task
	stored  bool // it is in the database
	changed bool
	gone    bool // it moved on or was replaced
}

// splitMap is a map whose elements have taken its place.
type splitMap struct {
	task  drover.TaskID
	node  int32
	count int
}

type failedMap struct {
	task    lifecycle.Task
	failure *drover.Failure
}

func newGraph(p *compiled, job drover.JobID, total int32) *graph {
	return &graph{plan: p, job: job, total: total, rows: map[dag.Key]*prow{}, whole: map[int32]bool{}, out: map[dag.Key]json.RawMessage{}}
}

func (g *graph) terms(node int32) terms {
	if g.plan == nil {
		return g.kind
	}
	return g.plan.terms(node)
}

func keyOf(t *lifecycle.Task) dag.Key { return dag.Key{Node: t.Node, Index: t.Index} }

// record is the immutable row of a task of this job.
func (g *graph) record(t lifecycle.Task, item json.RawMessage) store.TaskRow {
	return store.TaskRow{ID: t.ID, Job: t.Job, Tenant: g.plan.Tenant, Node: t.Node, Index: t.Index, Pipeline: g.plan.ID, Queue: t.Queue, Lane: t.Lane,
		Class: t.Class, Kind: g.plan.Nodes[t.Node].Kind, Input: item, Trace: g.trace, CreatedAt: t.Since}
}

// add puts a new row in hand: one of a job that is being submitted, or an element.
func (g *graph) add(t lifecycle.Task) {
	g.rows[keyOf(&t)] = &prow{task: t, changed: true}
	if t.Unmet == 0 && t.Index == dag.Unexpanded {
		g.maps = append(g.maps, keyOf(&t))
	}
}

// succeeded tells the graph of a task that ended well.
func (g *graph) succeeded(k dag.Key, output json.RawMessage) {
	g.out[k] = output
	seen := map[int32]bool{}
	for _, c := range g.plan.Children(k) {
		g.minus = append(g.minus, dag.Delta{Key: c, By: -1})
		g.want = append(g.want, c)
		g.mayExpand(c, seen)
	}
}

// mayExpand wants what an expansion changes of a map that this transaction may
// expand, and so on from its joins. Every row is locked by the first load, in
// one order with all others: a settle that locked the map's rows after its joins
// deadlocked with one that came from the other side.
func (g *graph) mayExpand(k dag.Key, seen map[int32]bool) {
	n := &g.plan.Nodes[k.Node]
	if !n.Mapped || n.Over >= 0 || seen[k.Node] {
		return
	}
	seen[k.Node] = true
	exp := g.plan.Expand(k.Node, 2)
	for _, m := range exp.Maps {
		g.want = append(g.want, dag.Key{Node: m, Index: dag.Unexpanded})
	}
	for _, j := range exp.Joins {
		g.want = append(g.want, j.Key)
		g.mayExpand(j.Key, seen)
	}
}

// around is what is read with the rows that a resolve loads: before the first of
// them, and after the last.
type around struct{ before, after []store.Stmt }

// resolve loads and expands until the counters are settled, several jobs
// together, so that a batch costs a constant number of round trips: one, where
// no map may expand. fresh says that the jobs are being submitted: nothing of
// theirs is stored. It stops short of job_live, which is locked last.
func resolve(ctx context.Context, tx store.Tx, e *Engine, now lifecycle.Instant, graphs []*graph, fresh bool, with around) error {
	for {
		var after []store.Stmt
		if !slices.ContainsFunc(graphs, (*graph).mayLoadMore) {
			after, with.after = with.after, nil
		}
		if err := load(ctx, tx, graphs, fresh, with.before, after); err != nil {
			return err
		}
		with.before = nil
		busy := false
		for _, g := range graphs {
			g.apply()
			for len(g.maps) > 0 {
				k := g.maps[0]
				g.maps = g.maps[1:]
				if r := g.rows[k]; r == nil || r.gone || r.task.Unmet > 0 {
					continue
				}
				if err := g.expand(ctx, tx, e, now, k, fresh); err != nil {
					return err
				}
				busy = true
			}
			busy = busy || len(g.want) > 0 || len(g.minus) > 0
		}
		if !busy {
			return tx.Pipe(ctx, with.after...)
		}
	}
}

// mayLoadMore reports whether rows beyond those wanted now may have to be locked:
// a map among them may expand.
func (g *graph) mayLoadMore() bool {
	return len(g.maps) > 0 || slices.ContainsFunc(g.want, func(k dag.Key) bool { return k.Index < 0 })
}

// load locks the rows wanted that are not in hand, of all jobs in one go.
func load(ctx context.Context, tx store.Tx, graphs []*graph, fresh bool, before, after []store.Stmt) error {
	var keys []store.Key
	at := map[drover.JobID]*graph{}
	for _, g := range graphs {
		at[g.job] = g
		for _, k := range g.want {
			switch {
			case fresh || g.whole[k.Node]:
				continue
			case k.Index == dag.Every:
				g.whole[k.Node] = true
			case g.rows[k] != nil:
				continue
			}
			keys = append(keys, store.Key{Job: g.job, Node: k.Node, Index: k.Index})
		}
		g.want = nil
	}
	slices.SortFunc(keys, func(a, b store.Key) int {
		return cmp.Or(compareIDs(a.Job, b.Job), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Index, b.Index))
	})
	var rows []lifecycle.Task
	list := append(append(slices.Clip(before), store.LockPending(slices.Compact(keys), &rows)), after...)
	if err := tx.Pipe(ctx, list...); err != nil {
		return err
	}
	for _, t := range rows {
		if g := at[t.Job]; g.rows[keyOf(&t)] == nil {
			g.rows[keyOf(&t)] = &prow{task: t, stored: true}
		}
	}
	return nil
}

// apply changes the counters of rows in hand.
func (g *graph) apply() {
	change := func(k dag.Key, by int32) {
		r := g.rows[k]
		if r == nil || r.gone {
			return // swept by a cancel, or replaced by elements that count by themselves
		}
		r.task.Unmet += by
		r.changed = true
		if r.task.Unmet == 0 && k.Index == dag.Unexpanded {
			g.maps = append(g.maps, k)
		}
	}
	for _, d := range g.minus {
		if d.Key.Index != dag.Every {
			change(d.Key, d.By)
			continue
		}
		for k := range g.rows {
			if k.Node == d.Key.Node {
				change(k, d.By)
			}
		}
	}
	g.minus = nil
}

// expand replaces a map, and the maps element-wise over it, by their elements.
func (g *graph) expand(ctx context.Context, tx store.Tx, e *Engine, now lifecycle.Instant, k dag.Key, fresh bool) error {
	r := g.rows[k]
	items, failure, err := g.elements(ctx, tx, k.Node)
	if err != nil {
		return err
	}
	n := len(items)
	var exp dag.Expansion
	if failure == nil {
		exp = g.plan.Expand(k.Node, n)
	}
	grown := int(g.total+g.grown) + len(exp.Maps)*(n-1)
	switch {
	case failure != nil:
	case n > MaxMap:
		failure = &drover.Failure{Class: drover.ClassExpand, Message: fmt.Sprintf("for_each gives %d elements; a map has at most %d", n, MaxMap)}
	case grown > MaxTasks:
		failure = &drover.Failure{Class: drover.ClassExpand, Message: fmt.Sprintf("with %d elements the job would have %d tasks; at most %d", n, grown, MaxTasks)}
	}
	if failure != nil {
		r.gone = true
		g.fail = append(g.fail, failedMap{r.task, failure})
		return nil
	}
	// The maps element-wise over this one expand with it; their rows are needed first.
	for _, m := range exp.Maps {
		g.want = append(g.want, dag.Key{Node: m, Index: dag.Unexpanded})
	}
	if err := load(ctx, tx, []*graph{g}, fresh, nil, nil); err != nil {
		return err
	}
	g.grew = true
	for i, m := range exp.Maps {
		old := g.rows[dag.Key{Node: m, Index: dag.Unexpanded}]
		if old == nil || old.gone {
			continue // swept, or it has expanded before
		}
		old.gone = true
		if old.task.Generation > 1 {
			g.again = append(g.again, old.task.ID)
		}
		g.grown += int32(n - 1)
		g.split = append(g.split, splitMap{old.task.ID, m, n})
		for idx := range n {
			t := old.task
			t.ID, t.Index = drover.TaskID(e.db.NewID()), int32(idx)
			t.Generation, t.Waits, t.Since = 1, lifecycle.Waits{}, now // an element is as old as the expansion
			row := g.record(t, nil)
			if i == 0 {
				row.Input = items[idx]
			}
			g.x = append(g.x, row)
			g.add(t)
		}
	}
	for _, j := range exp.Joins {
		g.minus = append(g.minus, j)
		g.want = append(g.want, j.Key)
	}
	return nil
}

// elements evaluates a map's for_each. A failure is the user's to mend.
func (g *graph) elements(ctx context.Context, tx store.Tx, node int32) ([]json.RawMessage, *drover.Failure, error) {
	if over := g.plan.Nodes[node].Over; over >= 0 { // in a database that an earlier build has left so
		return nil, &drover.Failure{Class: drover.ClassExpand, Message: fmt.Sprintf("its elements are those of %q, which has expanded without it; submit the job again", g.plan.Nodes[over].Name)}, nil
	}
	s := newScope(g.job, g.plan)
	s.out, s.input, s.have = g.out, g.input, g.have
	if err := loadScopes(ctx, tx, []want{{s, g.plan.ForEachRefs(node), 0}}); err != nil {
		return nil, nil, err
	}
	g.input, g.have = s.input, true
	items, err := g.plan.Elements(node, s.dag(nil, 0))
	if err != nil {
		return nil, &drover.Failure{Class: drover.ClassExpand, Message: err.Error()}, nil
	}
	return items, nil, nil
}

// collect adds what must be written to x. live is the job's row, locked.
func (g *graph) collect(x *changes, live *store.JobLive) {
	hold := lifecycle.Hold{Paused: live.Paused}
	keys := make([]dag.Key, 0, len(g.rows))
	for k := range g.rows {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b dag.Key) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Index, b.Index)) })
	for _, k := range keys {
		r := g.rows[k]
		switch {
		case r.gone:
			if r.stored {
				x.met = append(x.met, r.task)
			}
		case !r.changed:
		case r.task.Unmet == 0:
			if r.stored {
				x.met = append(x.met, r.task)
			}
			t := lifecycle.Met(r.task, hold, x.now)
			x.place(t)
			x.watch(t, g.terms(t.Node).closes)
		case r.stored:
			x.unmet = append(x.unmet, r.task)
		default:
			x.place(r.task)
		}
	}
	x.tasks = append(x.tasks, g.x...)
	x.expanded = append(x.expanded, g.again...)
	live.Total += g.grown
	live.Open += g.grown
	if g.grew {
		live.Graph++
		x.touched[g.job] = true
	}
	for _, m := range g.split {
		x.event(live, drover.TaskExpanded, m.task, expandedData(g.plan.Nodes[m.node].Name, m.count))
	}
	for _, f := range g.fail {
		how := ending{failure: f.failure}
		how.at(g.plan, f.task.Node, "")
		x.end(live, g.plan.Tenant, lifecycle.NotExpanded(f.task, x.now), how)
	}
}
