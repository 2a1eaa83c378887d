package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// readMaps reads how the maps with bounds of the graphs' jobs stand. It comes after the
// statement that locks those jobs' rows, and is none where no map has bounds.
func readMaps(list []*graph) store.Stmt {
	var keys []store.MapRow
	at := map[drover.JobID]*graph{}
	for _, g := range list {
		if g.plan == nil {
			continue
		}
		for _, m := range g.plan.Bounded() {
			keys = append(keys, store.MapRow{Job: g.job, Node: m})
			at[g.job] = g
		}
	}
	return store.ReadMaps(keys, func(m store.MapRow) { at[m.Job].putMap(m.Node, m.Map) })
}

// putMap tells the graph how a map stands that has expanded before.
func (g *graph) putMap(node int32, m dag.Map) {
	if g.maps == nil {
		g.maps = map[int32]dag.Map{}
	}
	g.maps[node] = m
	g.board.PutMap(node, m)
}

// leaves notes that an element has ended which had a place among its map's
// max_parallel. What stands in for it takes the place over.
func (g *graph) leaves(t *lifecycle.Task, as dag.Outcome) {
	m, ok := g.plan.Bounds(keyOf(t))
	if !ok || !t.Started() {
		return
	}
	if _, _, called := g.plan.Below(keyOf(t), as); called {
		return
	}
	if g.freed == nil {
		g.freed = map[int32]int32{}
	}
	g.freed[m]++
}

// enters gives a row that may run a place among its map's max_parallel, or a place in
// line. What stands in for another has that one's place, or takes one.
func (g *graph) enters(s *seat) bool {
	if g.plan == nil {
		return true
	}
	m, ok := g.plan.Bounds(s.Key)
	if !ok {
		return true
	}
	x, most := g.board.Maps()[m], g.plan.Nodes[m].MaxParallel
	in := most == 0 || x.Running < most || s.Node != m
	if in {
		x.Running++
	} else {
		x.Waiting++
	}
	g.board.PutMap(m, x)
	return in
}

// collect gives the places that have become free to those in line, and collects what
// the graphs have come to, of jobs that go on.
func (x *changes) collect(ctx context.Context, tx store.Tx, list []*graph) error {
	list = slices.DeleteFunc(slices.Clone(list), func(g *graph) bool { return x.loaded[g.job].Cancelling != 0 || x.failed[g.job].task != "" })
	if err := x.turns(ctx, tx, list); err != nil {
		return err
	}
	for _, g := range list {
		g.collect(x, x.loaded[g.job])
	}
	return nil
}

// turns starts elements that wait for a place, where there is one: the first of the
// map first.
func (x *changes) turns(ctx context.Context, tx store.Tx, list []*graph) error {
	var next []store.InLine
	at := map[drover.JobID]*graph{}
	want := 0
	for _, g := range list {
		if g.plan == nil {
			continue
		}
		for _, m := range g.plan.Bounded() {
			most := g.plan.Nodes[m].MaxParallel
			s, ok := g.board.Maps()[m]
			if !ok {
				continue
			}
			s.Running -= g.freed[m]
			if n := min(most-s.Running, s.Waiting); n > 0 {
				next = append(next, store.InLine{Job: g.job, Node: m, N: n})
				want += int(n)
				s.Running, s.Waiting = s.Running+n, s.Waiting-n
				at[g.job] = g
			}
			g.board.PutMap(m, s)
		}
		g.freed = nil
	}
	if len(next) == 0 {
		return nil
	}
	var rows []lifecycle.Task
	if err := tx.Pipe(ctx, store.TakeInLine(next, &rows)); err != nil {
		return err
	}
	if len(rows) != want {
		return store.ErrRetry // somebody has the others: they are looked for again
	}
	slices.SortFunc(rows, func(a, b lifecycle.Task) int {
		return cmp.Or(compareIDs(a.Job, b.Job), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Index, b.Index))
	})
	homes := map[drover.TaskID]int32{} // of those that have concurrency keys
	if err := tx.Pipe(ctx, store.TaskLanes(slices.DeleteFunc(slices.Clone(rows), func(t lifecycle.Task) bool { return !at[t.Job].plan.Keyed(keyOf(&t)) }), homes)); err != nil {
		return err
	}
	for _, t := range rows {
		g := at[t.Job]
		to, err := x.e.placeIn(ctx, tx, g.plan, t.Node)
		if err != nil {
			return err
		}
		if lane, ok := homes[t.ID]; ok {
			to.lane = lane
		}
		if g.plan.Nodes[t.Node].Sub == "" {
			t = lifecycle.TurnCame(t, to.lane, lifecycle.Hold{Paused: x.job(t.Job).Paused}, x.now)
		} else if t = lifecycle.Parked(t, to.lane, x.now); t.Status == drover.Waiting {
			x.look = append(x.look, t.ID)
		}
		x.place(t)
		x.watch(t, g.terms(t.Node).closes)
	}
	return nil
}

// job returns a job's live row in hand.
func (x *changes) job(id drover.JobID) *store.JobLive {
	if j := x.loaded[id]; j != nil {
		return j
	}
	for _, j := range x.fresh {
		if j.Job == id {
			return j
		}
	}
	return nil
}

// keepMaps stores how the maps with bounds stand, and lets the job know of failures that
// they have made good, and of one that cannot come to its min_success.
func (g *graph) keepMaps(x *changes, live *store.JobLive) {
	if g.plan == nil || len(g.plan.Bounded()) == 0 {
		return
	}
	now := g.board.Maps()
	for _, k := range g.called {
		// What is called for an element that could not begin has no place to take over.
		if s := g.board.At(dag.Key{Node: g.plan.Nodes[k.Node].Primary, Index: k.Index}); s != nil && s.Fate == dag.IsBroken {
			m, _ := g.plan.Bounds(k)
			x := now[m]
			x.Running++
			g.board.PutMap(m, x)
		}
	}
	for _, m := range g.plan.Bounded() {
		if s, ok := now[m]; ok && g.maps[m] != s {
			x.maps = append(x.maps, store.MapRow{Job: g.job, Node: m, Most: g.plan.Nodes[m].MaxParallel, Map: s})
		}
	}
	if d := g.plan.Forgiven(now) - g.plan.Forgiven(g.maps); d != 0 {
		live.Handled += d
		x.touched[g.job] = true
	}
	if m := g.board.Fails(); m >= 0 && x.failed[g.job].task == "" {
		n := &g.plan.Nodes[m]
		f := failing{fmt.Sprintf("%s (of its elements too many failed for min_success: %s)", n.Name, n.MinSuccess), store.CauseFailFast}
		if n.OnFailure == dag.FinishRunning {
			f.cause = store.CauseFinish
		}
		x.failed[g.job] = f
	}
}

// past is a task as its records have it.
func past(t *lifecycle.Task, live bool) dag.Past {
	p := dag.Past{Key: keyOf(t), Live: live, Waits: live && t.Status == drover.Pending && !t.Started()}
	switch {
	case !live:
		p.As = outcomeOf(t.Status, t.How)
	case t.Status.Final(): // it comes back
	default:
		p.Started, p.InLine = t.Started(), t.InLine()
	}
	return p
}
