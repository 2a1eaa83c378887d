package dag

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

var modelCases = flag.Int("cases", 10_000, "how many random graphs TestBoardAgreesWithTheModel runs")

// The model: what must become of a job, told from its definition and from how each
// task would end, without counters, batches or an order of events.

// mNode is a task of the model.
type mNode struct {
	name  string
	needs []int
	rule  string
	n     int // of quorum
	size  int // elements of a map over a list; -1: no such map
	over  int // the map it goes over; -1: none
	// cond is its condition: none, "no" (false), "yes", "odd" (true for elements 1, 3, …)
	// or "bad" (it cannot be told).
	cond string
	// backups is how many fallbacks it has, one for the other; degrades says that the
	// job goes on degraded when the last of them fails, or it itself if there is none.
	backups  int
	degrades bool
}

// counted is how a row of task i that ended so counts below, once what stands in for
// it has ended too.
func (g *mGraph) counted(i, index int, e mEnd) Outcome {
	n := &g.nodes[i]
	if e != "fail" && e != "broke" {
		return e.counts()
	}
	if index >= 0 {
		for level := 1; level <= n.backups; level++ {
			if !g.fails(i+1000*level, index) {
				return Succeeded
			}
		}
	}
	if n.degrades && (n.backups == 0 || index >= 0) {
		return Succeeded
	}
	return Failed
}

// conds are how conditions are written.
var mConds = map[string]string{"no": "input.no", "yes": "input.list.size() < 100", "odd": "index % 2 == 1", "bad": "input.no.such > 1"}

// allows is what a condition makes of a row that the rule lets run: "run", or how it
// ends.
func (n *mNode) allows(element int) mEnd {
	switch n.cond {
	case "no":
		return "skip"
	case "bad":
		return "broke"
	case "odd":
		if element%2 == 0 {
			return "skip"
		}
	}
	return "run"
}

// mEnd is how a row of the model ended: ok fail skip block broke empty.
type mEnd string

func (e mEnd) counts() Outcome {
	switch e {
	case "ok", "empty":
		return Succeeded
	case "skip":
		return Skipped
	case "block":
		return Blocked
	}
	return Failed
}

// mResult is how a task of the model ended: as one row, or as elements.
type mResult struct {
	one      mEnd // of a map: as it ended without elements
	elements []mEnd
}

type mGraph struct {
	nodes []mNode
	fails func(node, index int) bool
}

// rule says what becomes of a task, from how all above it have ended.
func (n *mNode) decide(above []Outcome) mEnd {
	count := func(o Outcome) (c int) {
		for _, x := range above {
			if x == o {
				c++
			}
		}
		return c
	}
	ok, bad, not := count(Succeeded), count(Failed)+count(Blocked), count(Skipped)
	choose := func(run bool, otherwise mEnd) mEnd {
		if run {
			return "run"
		}
		return otherwise
	}
	blockOrSkip := mEnd("skip")
	if bad > 0 {
		blockOrSkip = "block"
	}
	switch n.rule {
	case "all_success":
		return choose(bad == 0 && not == 0, blockOrSkip)
	case "all_done", "always":
		return "run"
	case "all_failed":
		return choose(bad == len(above), "skip")
	case "one_success":
		return choose(ok > 0, blockOrSkip)
	case "one_failed":
		return choose(bad > 0, "skip")
	case "one_done":
		return choose(ok+bad > 0, "skip")
	case "none_failed":
		return choose(bad == 0, "block")
	case "none_failed_min_one_success":
		return choose(bad == 0 && ok > 0, blockOrSkip)
	case "none_skipped":
		return choose(not == 0, "skip")
	case "all_skipped":
		return choose(not == len(above), "skip")
	case "quorum":
		return choose(ok >= n.n, blockOrSkip)
	}
	panic(n.rule)
}

func (g *mGraph) root(i int) int {
	for g.nodes[i].over >= 0 {
		i = g.nodes[i].over
	}
	if g.nodes[i].size < 0 {
		return -1
	}
	return i
}

// parents are those a task waits for: the ones it names and the map it goes over.
func (g *mGraph) parents(i int) []int {
	out := slices.Clone(g.nodes[i].needs)
	if o := g.nodes[i].over; o >= 0 {
		out = append(out, o)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// results tells how every task ends. Nodes stand after those they wait for.
func (g *mGraph) results() []mResult {
	out := make([]mResult, len(g.nodes))
	end := func(i, index int) mEnd {
		if g.fails(i, index) {
			return "fail"
		}
		return "ok"
	}
	for i := range g.nodes {
		n := &g.nodes[i]
		above := func(element int) (list []Outcome) {
			for _, p := range g.parents(i) {
				switch r := out[p]; {
				case r.one != "":
					index := 0
					if g.root(p) >= 0 {
						index = -1
					}
					list = append(list, g.counted(p, index, r.one))
				case element >= 0 && g.root(i) >= 0 && g.root(p) == g.root(i):
					list = append(list, g.counted(p, element, r.elements[element]))
				default:
					for k, e := range r.elements {
						list = append(list, g.counted(p, k, e))
					}
				}
			}
			return list
		}
		switch {
		case n.over >= 0 && out[n.over].one == "":
			for e := range out[n.over].elements {
				d := n.decide(above(e))
				if d == "run" {
					d = n.allows(e)
				}
				if d == "run" {
					d = end(i, e)
				}
				out[i].elements = append(out[i].elements, d)
			}
		case n.over >= 0:
			out[i].one = n.decide(above(-1))
			if out[i].one == "run" {
				out[i].one = "skip" // there is nothing to go over
				if out[n.over].one == "empty" {
					out[i].one = "empty"
				}
			}
		default:
			d := n.decide(above(-1))
			if d == "run" && n.cond != "odd" {
				d = n.allows(-1)
			}
			switch {
			case d != "run":
				out[i].one = d
			case n.size == 0:
				out[i].one = "empty"
			case n.size > 0:
				for e := range n.size {
					d := mEnd("run")
					if n.cond == "odd" {
						d = n.allows(e)
					}
					if d == "run" {
						d = end(i, e)
					}
					out[i].elements = append(out[i].elements, d)
				}
			default:
				out[i].one = end(i, 0)
			}
		}
	}
	return out
}

// yaml writes the graph as a definition.
func (g *mGraph) yaml() string {
	var b strings.Builder
	b.WriteString("pipeline: drawn\non_failure: continue\ntasks:\n")
	for i, n := range g.nodes {
		fmt.Fprintf(&b, "  %s: {run: x, default: 0", n.name)
		if len(n.needs) > 0 {
			names := make([]string, len(n.needs))
			for k, p := range n.needs {
				names[k] = g.nodes[p].name
			}
			fmt.Fprintf(&b, ", needs: [%s]", strings.Join(names, ", "))
		}
		switch {
		case n.over >= 0:
			fmt.Fprintf(&b, ", for_each: %s", g.nodes[n.over].name)
		case n.size >= 0:
			b.WriteString(`, for_each: "${{ input.list }}"`)
		}
		if n.backups > 0 {
			fmt.Fprintf(&b, ", fallback: %s-f1", n.name)
		} else if n.degrades {
			b.WriteString(", on_failure: degrade")
		}
		if n.cond != "" {
			fmt.Fprintf(&b, ", if: %q", mConds[n.cond])
		}
		if len(g.parents(i)) > 0 {
			rule := n.rule
			if rule == "quorum" {
				rule = fmt.Sprintf("quorum(%d)", n.n)
			}
			fmt.Fprintf(&b, ", when: %s", rule)
		}
		b.WriteString("}\n")
	}
	for _, n := range g.nodes {
		for level := 1; level <= n.backups; level++ {
			fmt.Fprintf(&b, "  %s-f%d: {run: x", n.name, level)
			if level < n.backups {
				fmt.Fprintf(&b, ", fallback: %s-f%d", n.name, level+1)
			} else if n.degrades {
				b.WriteString(", on_failure: degrade")
			}
			b.WriteString("}\n")
		}
	}
	return b.String()
}

var mRules = []string{"all_success", "all_done", "all_failed", "one_success", "one_failed", "one_done", "none_failed", "none_failed_min_one_success", "none_skipped", "all_skipped", "always", "quorum"}

// drawGraph draws a graph of 5 to 12 tasks and how they end.
func drawGraph(r *rand.Rand) *mGraph {
	g := &mGraph{}
	count := 5 + r.IntN(8)
	for i := range count {
		n := mNode{name: fmt.Sprintf("t%d", i), rule: "all_success", size: -1, over: -1}
		for p := range i {
			if r.IntN(3) == 0 && len(n.needs) < 4 {
				n.needs = append(n.needs, p)
			}
		}
		switch r.IntN(4) {
		case 0:
			n.size = r.IntN(4)
		case 1:
			for p := range i {
				if g.root(p) >= 0 && r.IntN(2) == 0 {
					n.over = p
				}
			}
		}
		if len(n.needs) > 0 || n.over >= 0 {
			if r.IntN(3) > 0 {
				n.rule = mRules[r.IntN(len(mRules))]
			}
			plain := 0
			for _, p := range n.needs {
				if g.nodes[p].size < 0 && g.nodes[p].over < 0 {
					plain++
				}
			}
			n.n = 1 + r.IntN(3)
			if plain == len(n.needs) && n.over < 0 {
				n.n = min(n.n, plain)
			}
		}
		switch x := r.IntN(20); {
		case x < 3:
			n.cond = []string{"no", "yes", "bad"}[x]
		case x < 6 && (n.over >= 0 || n.size >= 0):
			n.cond = "odd"
		}
		switch r.IntN(6) {
		case 0:
			n.backups = 1 + r.IntN(2)
		case 1:
			n.degrades = true
		case 2:
			n.backups, n.degrades = 1, true
		}
		g.nodes = append(g.nodes, n)
	}
	salt, rate := r.Uint64(), uint64(r.IntN(60))
	g.fails = func(node, index int) bool {
		x := rand.New(rand.NewPCG(salt, uint64(node)<<20|uint64(index)))
		return x.Uint64N(100) < rate
	}
	return g
}

// ledger keeps the rows of a job between the batches, as a database does: a Board
// sees only what Reach names, and of a tally only what is written down.
type ledger struct {
	plan    *Plan
	waiting map[Key]Tally
	running map[Key]bool
	ended   map[Key]mEnd
	sizes   map[int32]int
	handled int32 // failures made good
}

// fails tells if a row fails, by the model.
func (l *ledger) fails(g *mGraph, k Key) bool {
	first, level := l.plan.Stands(k.Node)
	return g.fails(int(first)+1000*int(level), int(k.Index))
}

// commit runs one batch: what is told to the board, then what comes of it.
func (l *ledger) commit(board *Board[struct{}], size func(node int32) int) error {
	for asks := board.Settle(); len(asks) > 0; asks = board.Settle() {
		for _, s := range asks {
			if l.plan.Conditional(s.Key) {
				yes, err := l.plan.If(s.Node, Scope{Input: json.RawMessage(`{"no": false, "list": [1, 2]}`), Index: s.Index})
				if err != nil {
					board.Break(s)
					continue
				}
				if board.Holds(s, yes); !yes || s.Index != Unexpanded {
					continue
				}
			}
			n := 0
			if over := l.plan.Nodes[s.Node].Over; over < 0 {
				n = size(s.Node)
			} else if was, ok := l.sizes[over]; !ok {
				board.Holds(s, false)
				continue
			} else if was != 0 {
				return fmt.Errorf("%v asks what to do, and the map it goes over has %d elements", s.Key, was)
			}
			board.Expand(s, n, func(*Seat[struct{}], int32) struct{} { return struct{}{} })
		}
	}
	for _, k := range board.Called() {
		l.running[k] = true
	}
	for s := range board.Seats {
		if s.Fate == IsBroken {
			l.handled += l.plan.Handled(s.Key, Failed)
		}
		if s.Stored && s.Fate != Waits {
			delete(l.waiting, s.Key)
		}
		switch s.Fate {
		case Waits:
			t := s.Tally
			if !l.plan.Nodes[s.Node].When.CountsSuccess() {
				t.Succeeded = 0
			}
			l.waiting[s.Key] = t
		case Runs:
			l.running[s.Key] = true
		case IsSkipped:
			l.ended[s.Key] = "skip"
		case IsBlocked:
			l.ended[s.Key] = "block"
		case HasExpanded:
			l.sizes[s.Node] = s.Size
		case IsBroken:
			l.ended[s.Key] = "broke"
		}
	}
	return l.check()
}

// check holds what is written down to a count of everything anew.
func (l *ledger) check() error {
	var past []Past
	for k := range l.waiting {
		past = append(past, Past{Key: k, Live: true})
	}
	for k := range l.running {
		past = append(past, Past{Key: k, Live: true})
	}
	for k, e := range l.ended {
		past = append(past, Past{Key: k, As: e.counts()})
	}
	for node := range l.sizes {
		past = append(past, Past{Key: Key{node, Unexpanded}})
	}
	if n := l.plan.HandledAll(past); n != l.handled {
		return fmt.Errorf("%d failures are made good; %d were counted", n, l.handled)
	}
	tallies := l.plan.Recount(past)
	for k, t := range l.waiting {
		if !l.plan.SameTally(k.Node, t, tallies[k]) {
			return fmt.Errorf("%s[%d] counts %+v; it is %+v", l.plan.Nodes[k.Node].Name, k.Index, t, tallies[k])
		}
		if !l.plan.Waits(k, tallies[k]) {
			return fmt.Errorf("%s[%d] waits for nothing: %+v", l.plan.Nodes[k.Node].Name, k.Index, t)
		}
	}
	return nil
}

// play runs the graph to its end in a random order, in random batches.
func (g *mGraph) play(r *rand.Rand, plan *Plan) (*ledger, error) {
	l := &ledger{plan: plan, waiting: map[Key]Tally{}, running: map[Key]bool{}, ended: map[Key]mEnd{}, sizes: map[int32]int{}}
	size := func(node int32) int { return g.nodes[node].size }
	board := NewBoard[struct{}](plan)
	for _, row := range plan.Start() {
		board.Put(row.Key, Tally{Unmet: row.Unmet}, struct{}{}, false)
	}
	if err := l.commit(board, size); err != nil {
		return l, err
	}
	for len(l.running) > 0 {
		board, reach := NewBoard[struct{}](plan), NewReach(plan)
		order := slices.SortedFunc(maps.Keys(l.running), compareKeys)
		r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, k := range order[:1+r.IntN(min(4, len(order)))] {
			end := mEnd("ok")
			if l.fails(g, k) {
				end = "fail"
			}
			l.handled += plan.Handled(k, end.counts())
			delete(l.running, k)
			l.ended[k] = end
			board.End(k, end.counts())
			reach.Of(k, end.counts(), func(want Key) {
				for w, t := range l.waiting {
					if w.Node == want.Node && (want.Index == Every || want.Index == w.Index) && board.At(w) == nil {
						board.Put(w, t, struct{}{}, true)
					}
				}
			})
		}
		if err := l.commit(board, size); err != nil {
			return l, err
		}
	}
	if len(l.waiting) > 0 {
		return l, fmt.Errorf("%d rows wait for ever: %v", len(l.waiting), l.waiting)
	}
	return l, nil
}

func compareKeys(a, b Key) int { return int(a.Node-b.Node)*1_000_000 + int(a.Index-b.Index) }

// differences tells where what was played differs from the model.
func (g *mGraph) differences(l *ledger) (out []string) {
	for i, want := range g.results() {
		k := Key{int32(i), 0}
		got := map[Key]mEnd{}
		for k, e := range l.ended {
			if k.Node == int32(i) {
				got[k] = e
			}
		}
		should := map[Key]mEnd{}
		switch {
		case want.one == "empty":
		case want.one != "" && l.plan.Nodes[i].Mapped:
			should[Key{int32(i), Unexpanded}] = want.one
		case want.one != "":
			should[k] = want.one
		default:
			for e, end := range want.elements {
				should[Key{int32(i), int32(e)}] = end
			}
		}
		if !maps.Equal(got, should) {
			out = append(out, fmt.Sprintf("%s: %v, by the model %v", g.nodes[i].name, got, should))
		}
		// What stands in for it.
		for k, e := range should {
			bad := e == "fail" || e == "broke" && k.Index >= 0
			f := l.plan.Nodes[i].Fallback
			for level := 1; level <= g.nodes[i].backups; level++ {
				want := mEnd("")
				if bad {
					want = "ok"
					if bad = g.fails(i+1000*level, int(k.Index)); bad {
						want = "fail"
					}
				}
				if got := l.ended[Key{f, k.Index}]; got != want {
					out = append(out, fmt.Sprintf("%s[%d], fallback %d: %q, by the model %q", g.nodes[i].name, k.Index, level, got, want))
				}
				f = l.plan.Nodes[f].Fallback
			}
		}
	}
	return out
}

// TestBoardAgreesWithTheModel: random graphs, random outcomes, in random order and
// random batches come to what the model says, and what is counted on the way is what
// a count of everything says. -cases for more of them.
func TestBoardAgreesWithTheModel(t *testing.T) {
	t.Parallel()
	mix := map[string]int{}
	for seed := range uint64(*modelCases) {
		r := rand.New(rand.NewPCG(seed, 7))
		g := drawGraph(r)
		p, err := Parse("", []byte(g.yaml()))
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, g.yaml())
		}
		plan, err := p.Compile()
		if err != nil {
			t.Fatal(err)
		}
		l, err := g.play(r, plan)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, g.yaml())
		}
		if diff := g.differences(l); len(diff) > 0 {
			t.Fatalf("seed %d:\n%s\n%s", seed, strings.Join(diff, "\n"), g.yaml())
		}
		g.mixed(mix, l)
	}
	for _, rule := range mRules {
		if mix["rule "+rule] == 0 {
			t.Errorf("no task had the rule %s", rule)
		}
	}
	for _, what := range slices.Sorted(maps.Keys(mix)) {
		t.Logf("%-40s %d", what, mix[what])
	}
}

// mixed counts what a case was about.
func (g *mGraph) mixed(mix map[string]int, l *ledger) {
	mix["cases"]++
	mix["tasks"] += len(g.nodes)
	for _, n := range g.nodes {
		mix["rule "+n.rule]++
		if n.cond != "" {
			mix["condition "+n.cond]++
		}
		if n.backups > 0 {
			mix[fmt.Sprintf("fallbacks %d", n.backups)]++
		}
		if n.degrades {
			mix["degrade"]++
		}
		switch {
		case n.over >= 0:
			mix["maps element-wise"]++
		case n.size == 0:
			mix["maps over nothing"]++
		case n.size > 0:
			mix["maps"]++
		}
	}
	for _, e := range l.ended {
		mix["ended "+string(e)]++
	}
}
