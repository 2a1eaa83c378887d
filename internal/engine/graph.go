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
// locks what ended tasks may change, has a dag.Board decide what becomes of it,
// answers the Board's questions, and collects what must be written.
type graph struct {
	plan  *compiled // nil for a Kind job
	kind  terms     // of a Kind job
	job   drover.JobID
	total int32 // tasks the job had when this began
	input json.RawMessage
	have  bool // input is loaded
	trace string

	board  *dag.Board[lifecycle.Task]
	reach  *dag.Reach
	whole  map[int32]bool              // nodes of which every row is loaded
	want   []dag.Key                   // to load
	out    map[dag.Key]json.RawMessage // outputs of this transaction, not stored yet
	as     map[dag.Key]dag.Outcome     // how tasks have ended in this transaction
	scope  *scope                      // what expressions see; once it is asked for
	x      []store.TaskRow             // new elements
	items  map[dag.Key]json.RawMessage // theirs, of maps over a list
	fail   map[dag.Key]*drover.Failure // of rows that broke
	called []dag.Key                   // tasks that stand in for such as failed
	why    map[dag.Key]string          // rows were skipped, where their rule does not tell
	grown  map[int32]int               // new elements, of each map
	gone   map[dag.Key]store.GoneRow   // elements of maps that expand again
	back   []back                      // those that have come back

	maps  map[int32]dag.Map // those with bounds, as they are stored
	freed map[int32]int32   // places among max_parallel that have become free

	asked  map[dag.Key]bool              // of rows with cache: whether their result is there
	reused map[dag.Key]store.FoundResult // those whose is

	reusable map[store.Generation]bool // of what begins anew, what may end with a result that is there

	homes map[drover.TaskID]store.HomeRow // lanes of the tasks whose concurrency key has become known
	lent  bool                            // the transaction is somebody else's, and cannot begin again
}

// alone is the plan of a Kind job as far as its graph goes.
var alone = dag.Single("alone", "", 0, drover.Retry{})

func newGraph(p *compiled, job drover.JobID, total int32) *graph {
	g := &graph{plan: p, job: job, total: total, whole: map[int32]bool{}, out: map[dag.Key]json.RawMessage{}, as: map[dag.Key]dag.Outcome{}, items: map[dag.Key]json.RawMessage{}, grown: map[int32]int{}, why: map[dag.Key]string{}, fail: map[dag.Key]*drover.Failure{}}
	on := alone
	if p != nil {
		on = p.Plan
	}
	g.board, g.reach = dag.NewBoard[lifecycle.Task](on), dag.NewReach(on)
	return g
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

// add puts a new row in hand: one of a job that is being submitted, or one that
// comes back.
func (g *graph) add(t lifecycle.Task) {
	g.board.Put(keyOf(&t), tallyOf(&t), t, false)
}

func tallyOf(t *lifecycle.Task) dag.Tally {
	return dag.Tally{Unmet: t.Unmet, Succeeded: t.ParentsSucceeded, Failed: t.ParentsFailed, Skipped: t.ParentsSkipped}
}

// ended tells the graph of a task that has ended, as it was before.
func (g *graph) ended(t *lifecycle.Task, as dag.Outcome, output json.RawMessage) {
	k := keyOf(t)
	g.leaves(t, as)
	if g.as[k] = as; as == dag.Succeeded {
		g.out[k] = output
	}
	g.board.End(k, as)
	g.reach.Of(k, as, func(c dag.Key) { g.want = append(g.want, c) })
}

// reopened tells the graph of a task that had ended and comes back.
func (g *graph) reopened(k dag.Key, was dag.Outcome) {
	g.board.Reopen(k, was)
	g.want = append(g.want, g.plan.Children(k)...)
}

// around is what is read with the rows that a resolve loads: before and after them; and
// rows that are locked with them, and no seats.
// then, when set, looks at it before anything is decided.
type around struct {
	before, after []store.Stmt
	locked        []store.Key
	then          func() error
}

// resolve loads what is wanted, lets the boards settle and answers their
// questions, several jobs together, so that a batch costs a constant number of
// round trips: one, where there is no question. fresh says that the jobs are being
// submitted: nothing of theirs is stored. It stops short of job_live, which is
// locked last.
func resolve(ctx context.Context, tx store.Tx, e *Engine, now lifecycle.Instant, graphs []*graph, fresh bool, with around) error {
	if err := load(ctx, tx, graphs, fresh, with); err != nil {
		return err
	}
	if with.then != nil {
		if err := with.then(); err != nil {
			return err
		}
	}
	for round := 1; ; round++ {
		var asks []question
		for _, g := range graphs {
			for _, s := range g.board.Settle() {
				asks = append(asks, question{g, s})
			}
			g.called = append(g.called, g.board.Called()...)
		}
		if len(asks) == 0 {
			if more, err := reuse(ctx, tx, now, graphs); err != nil || !more {
				return err
			}
			continue
		}
		var ahead []want
		if round == 2 { // a row of questions, each of which follows from the one before
			for _, g := range graphs {
				ahead = append(ahead, g.lookAhead()...)
			}
		}
		if err := answer(ctx, tx, e, now, asks, ahead); err != nil {
			return err
		}
	}
}

// lookAhead is all that the rows in hand may have to know still, so that it is read
// at once however many questions there are to come.
func (g *graph) lookAhead() (wants []want) {
	for s := range g.board.Seats {
		if s.Fate != dag.Waits {
			continue
		}
		if g.plan.Conditional(s.Key) {
			wants = append(wants, want{g.scoped(), g.plan.CondRefs(s.Node), s.Index})
		}
		if g.plan.Keyed(s.Key) {
			wants = append(wants, want{g.scoped(), g.plan.KeyRefs(s.Node), s.Index})
		}
		if n := &g.plan.Nodes[s.Node]; s.Index == dag.Unexpanded && n.Over < 0 {
			wants = append(wants, want{g.scoped(), g.plan.ForEachRefs(s.Node), 0})
		}
	}
	return wants
}

// scoped is what expressions see.
func (g *graph) scoped() *scope {
	if g.scope == nil {
		g.scope = newScope(g.job, g.plan)
		g.scope.out, g.scope.input, g.scope.have, g.scope.grown = g.out, g.input, g.have, g.grown
	}
	return g.scope
}

// question is a row about which a board wants to know more.
type question struct {
	*graph
	seat *seat
}

type seat = dag.Seat[lifecycle.Task]

// answer reads what the expressions of the rows refer to, in one round trip, and
// tells the boards what they come to.
func answer(ctx context.Context, tx store.Tx, e *Engine, now lifecycle.Instant, asks []question, wants []want) error {
	var overs []store.Key
	var ids []drover.TaskID // whose items are wanted
	for _, a := range asks {
		a.scoped()
		n, s := &a.plan.Nodes[a.seat.Node], a.seat
		if a.plan.Conditional(s.Key) {
			wants = append(wants, want{a.scope, a.plan.CondRefs(s.Node), s.Index})
		}
		if a.plan.Keyed(s.Key) {
			wants = append(wants, want{a.scope, a.plan.KeyRefs(s.Node), s.Index})
		}
		if n.Mapped && n.Over < 0 && s.Stored && (a.plan.Conditional(s.Key) || a.plan.Keyed(s.Key)) {
			ids = append(ids, s.Task.ID)
		}
		switch {
		case s.Index != dag.Unexpanded:
		case n.Over < 0:
			wants = append(wants, want{a.scope, a.plan.ForEachRefs(s.Node), 0})
		default:
			wants = append(wants, want{a.scope, []dag.Ref{{Node: n.Over, Same: true}, {Node: n.Over}}, dag.Unexpanded})
			overs = append(overs, store.Key{Job: a.job, Node: n.Over, Index: dag.Unexpanded})
		}
	}
	if err := loadScopes(ctx, tx, wants); err != nil {
		return err
	}
	var rows []lifecycle.Task
	items := map[drover.TaskID][]byte{}
	if len(overs)+len(ids) > 0 {
		if err := tx.Pipe(ctx, store.LockPending(overs, &rows), store.TaskInputs(ids, items)); err != nil {
			return err
		}
	}
	if err := readGone(ctx, tx, asks); err != nil {
		return err
	}
	waiting := map[store.Key]bool{}
	for _, t := range rows {
		waiting[store.Key{Job: t.Job, Node: t.Node, Index: t.Index}] = true
	}
	var keys []keyed
	for _, a := range asks {
		a.input, a.have = a.scope.input, true
		if a.plan.Conditional(a.seat.Key) && !a.holds(items[a.seat.Task.ID]) {
			continue
		}
		if a.plan.Keyed(a.seat.Key) {
			if k, ok := a.concurrencyKey(items[a.seat.Task.ID]); ok {
				keys = append(keys, k)
			}
		}
		if a.seat.Index != dag.Unexpanded {
			continue
		}
		if over := a.plan.Nodes[a.seat.Node].Over; over >= 0 {
			switch {
			case a.scope.ended[dag.Key{Node: over, Index: dag.Unexpanded}] != 0:
				a.why[a.seat.Key] = "the map it goes over has no elements"
				a.board.Holds(a.seat, false)
			case a.scope.sizes[over] == 0 && !waiting[store.Key{Job: a.job, Node: over, Index: dag.Unexpanded}]:
				a.board.Expand(a.seat, 0, nil)
			default: // in a database that an earlier build has left so
				a.broke(a.seat, drover.ClassExpand, "its elements are those of %q, and they have been parted; submit the job again", a.plan.Nodes[over].Name)
			}
			continue
		}
		items, err := a.plan.Elements(a.seat.Node, a.view(nil, 0))
		if err != nil {
			a.broke(a.seat, drover.ClassExpand, "%s", err.Error())
			continue
		}
		a.expand(e, now, a.seat, items)
	}
	return e.inKeyLanes(ctx, tx, keys)
}

// holds answers for the condition of a row.
func (a *question) holds(item []byte) bool {
	yes, err := a.plan.If(a.seat.Node, a.view(a.itemOr(item), a.seat.Index))
	if err != nil {
		a.broke(a.seat, drover.ClassInput, "%s", err.Error())
		return false
	}
	if !yes {
		a.why[a.seat.Key] = "if: " + cutAt(a.plan.CondSource(a.seat.Node), 200)
	}
	a.board.Holds(a.seat, yes)
	return yes
}

// itemOr is the element that the row stands for, where this transaction made it one.
func (a *question) itemOr(stored []byte) []byte {
	if item, ok := a.items[a.seat.Key]; ok {
		return item
	}
	return stored
}

// view is what expressions see, with what has happened in this transaction.
func (g *graph) view(item []byte, index int32) dag.Scope {
	s := g.scope.dag(item, index)
	s.Outcome = func(k dag.Key) dag.Outcome {
		if o, ok := g.as[k]; ok {
			return o
		}
		if seat := g.board.At(k); seat != nil && seat.Fate > dag.Runs && seat.Fate != dag.HasExpanded {
			return seat.Fate.Outcome()
		}
		if status, ok := g.scope.ended[k]; ok {
			return dag.OutcomeOf(status, g.scope.blocked[k])
		}
		return 0
	}
	return s
}

// broke ends a row whose condition or list cannot be told: the failure is the
// user's to mend.
func (g *graph) broke(s *seat, class drover.ErrorClass, format string, args ...any) {
	g.fail[s.Key] = &drover.Failure{Class: class, Message: fmt.Sprintf(format, args...)}
	g.board.Break(s)
}

// load locks the rows wanted that are not in hand, of all jobs in one go.
func load(ctx context.Context, tx store.Tx, graphs []*graph, fresh bool, with around) error {
	keys := slices.Clone(with.locked)
	at := map[drover.JobID]*graph{}
	for _, g := range graphs {
		at[g.job] = g
		for _, k := range g.want {
			if k.Index == dag.Every {
				g.whole[k.Node] = true
			}
		}
		for _, k := range g.want {
			if fresh || k.Index != dag.Every && (g.whole[k.Node] || g.board.At(k) != nil) {
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
	list := append(append(slices.Clip(with.before), store.LockPending(slices.Compact(keys), &rows)), with.after...)
	if err := tx.Pipe(ctx, list...); err != nil {
		return err
	}
	more := false
	for _, t := range rows {
		if slices.Contains(with.locked, store.Key{Job: t.Job, Node: t.Node, Index: t.Index}) {
			continue
		}
		g := at[t.Job]
		if g.board.At(keyOf(&t)) == nil {
			g.board.Put(keyOf(&t), tallyOf(&t), t, true)
		}
		if t.ParentsSkipped > 0 && !g.reach.Wary && !g.plan.Hears(t.Node) { // one above it was marked so
			g.reach = dag.NewReach(g.plan.Plan)
			g.reach.Wary, more = true, true
			for k, as := range g.as {
				g.reach.Of(k, as, func(c dag.Key) { g.want = append(g.want, c) })
			}
		}
	}
	if more {
		return load(ctx, tx, graphs, fresh, around{})
	}
	return nil
}

// expand replaces a map, and the maps element-wise over it, by their elements.
func (g *graph) expand(e *Engine, now lifecycle.Instant, s *seat, items []json.RawMessage) {
	n := len(items)
	family := g.plan.Family(s.Node)
	grown := int(g.total) + len(g.x) + len(family)*(n-1)
	for _, m := range family {
		for i := range n {
			if _, there := g.gone[dag.Key{Node: m, Index: int32(i)}]; there {
				grown-- // it is counted already
			}
		}
	}
	most := g.plan.Nodes[s.Node].MaxElements
	switch {
	case n > most:
		g.broke(s, drover.ClassExpand, "for_each of task %q gives %d elements, and the map may have %d: %s", g.plan.Nodes[s.Node].Name, n, most, dag.FewerElements(n, most))
		return
	case g.plan.MaxTasks > 0 && grown > g.plan.MaxTasks:
		g.broke(s, drover.ClassExpand, "with the %d elements that for_each of task %q gives the job would have %d tasks, and max_tasks of pipeline %q allows %d: give each task several elements with batch_size, or raise it in the next version", n, g.plan.Nodes[s.Node].Name, grown, g.plan.Name, g.plan.MaxTasks)
		g.fail[s.Key].Type = string(drover.CodeBudget)
		return
	case grown > MaxTasks:
		g.broke(s, drover.ClassExpand, "with the %d elements that for_each of task %q gives the job would have %d tasks; at most %d: give each task several elements with batch_size, or part the work among jobs", n, g.plan.Nodes[s.Node].Name, grown, MaxTasks)
		return
	}
	g.board.Expand(s, n, func(old *seat, index int32) lifecycle.Task {
		if t, again := g.comesBack(old, index, now, old == s, items); again {
			return t
		}
		t := old.Task
		t.ID, t.Index = drover.TaskID(e.db.NewID()), index
		t.Generation, t.Waits, t.Since = 1, lifecycle.Waits{}, now // an element is as old as the expansion
		row := g.record(t, nil)
		if old == s {
			row.Input = items[index]
			g.items[dag.Key{Node: s.Node, Index: index}] = items[index]
		}
		g.x = append(g.x, row)
		g.grown[old.Node]++
		return t
	})
}

// collect adds what must be written to x. live is the job's row, locked.
func (g *graph) collect(x *changes, live *store.JobLive) {
	hold := lifecycle.Hold{Paused: live.Paused}
	grew := int32(0)
	var split []*seat
	for _, s := range slices.SortedFunc(g.board.Seats, func(a, b *seat) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Index, b.Index)) }) {
		t := s.Task
		if s.Fate != dag.Waits && s.Stored {
			x.met = append(x.met, t)
		}
		switch s.Fate {
		case dag.Waits:
			if !s.Changed {
				continue
			}
			t.Unmet, t.ParentsFailed, t.ParentsSkipped = s.Unmet, s.Failed, s.Skipped
			told := t.ParentsFailed != s.Task.ParentsFailed || t.ParentsSkipped != s.Task.ParentsSkipped
			if g.plan != nil && g.plan.Nodes[s.Node].When.CountsSuccess() {
				t.ParentsSucceeded, told = s.Succeeded, true
			}
			switch {
			case !s.Stored:
				x.place(t)
			case told:
				x.told = append(x.told, t)
			default:
				x.unmet = append(x.unmet, t)
			}
		case dag.Runs:
			if !g.enters(s) {
				x.place(lifecycle.LinedUp(t, x.now))
				continue
			}
			t = x.begin(g.plan, t, hold)
			x.watch(t, g.terms(t.Node).closes)
		case dag.IsSkipped, dag.IsBlocked, dag.IsBroken:
			g.end(x, live, s)
		case dag.IsReused:
			f := g.reused[s.Key]
			how := ending{output: f.Output, reason: "the result of task " + f.Task.String() + " is used again"}
			how.at(g.plan, s.Node, s.Index, "")
			x.end(live, g.plan.Tenant, lifecycle.Reused(lifecycle.Met(t, lifecycle.Hold{Paused: true}, x.now), x.now), how)
			x.reuses = append(x.reuses, reuseOf(&t, f))
		case dag.HasExpanded: // its elements stand for it
			split = append(split, s)
			grew += int32(s.Size - 1)
		}
	}
	g.keepMaps(x, live)
	g.x = g.rehomed(g.x)
	x.homes = append(x.homes, g.newHomes()...)
	for _, k := range g.called {
		x.calls = append(x.calls, call{live, g.plan, k})
	}
	x.tasks = append(x.tasks, g.x...)
	live.Total += grew - int32(len(g.back))
	live.Open += grew
	live.Skipped -= int32(len(g.back))
	with := map[int32][]cameBackWith{}
	for _, b := range g.back {
		x.items = append(x.items, b.item...)
		x.inputs = append(x.inputs, b.input...)
		if b.may {
			x.reusable = append(x.reusable, generationOf(&b.Task))
		}
		with[b.Node] = extend(with[b.Node], g.plan.Nodes[b.Node].Name, b.Index, b.Generation)
	}
	if len(split) > 0 {
		live.Graph++
		x.touched[g.job] = true
	}
	for _, s := range split {
		if s.Task.Generation > 1 {
			x.expanded = append(x.expanded, s.Task.ID)
		}
		x.event(live, drover.TaskExpanded, s.Task.ID, expandedData(g.plan.Nodes[s.Node].Name, s.Size, with[s.Node]))
	}
}

// end ends a row that does not run.
func (g *graph) end(x *changes, live *store.JobLive, s *seat) {
	how := ending{failure: g.fail[s.Key]}
	how.at(g.plan, s.Node, s.Index, "")
	var t lifecycle.Task
	switch s.Fate {
	case dag.IsBroken:
		t = lifecycle.NotExpanded(s.Task, x.now)
	case dag.IsBlocked:
		t = lifecycle.Blocked(s.Task, x.now)
		how.reason = "a task above it failed (when: " + g.plan.Nodes[s.Node].When.String() + ")"
	default:
		t = lifecycle.Skipped(s.Task, x.now)
		if how.reason = g.why[s.Key]; how.reason == "" {
			how.reason = "when: " + g.plan.Nodes[s.Node].When.String()
		}
	}
	x.end(live, g.plan.Tenant, t, how)
}
