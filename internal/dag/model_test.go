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

	"github.com/drover-dev/drover/internal/dag/dagtest"
)

var modelCases = flag.Int("cases", 10_000, "how many random graphs TestBoardAgreesWithTheModel runs")

// counts is how an end of the model counts here.
func counts(e dagtest.End) Outcome {
	switch {
	case e == "block":
		return Blocked
	case e.Counts() == dagtest.OK:
		return Succeeded
	case e.Counts() == dagtest.Not:
		return Skipped
	}
	return Failed
}

// ledger keeps the rows of a job between the batches, as a database does: a Board
// sees only what Reach names, and of a tally only what is written down.
type ledger struct {
	plan    *Plan
	waiting map[Key]Tally
	running map[Key]bool
	parked  map[Key]bool // left to their backups, which run
	ended   map[Key]dagtest.End
	sizes   map[int32]int
	handled int32 // failures made good
	order   []Key // of the successes, as they came
	undone  []Key // as they were called
	maps    map[int32]Map
}

// fails tells if a row fails, by the model.
func (l *ledger) fails(g *dagtest.Graph, k Key) bool {
	if q := l.plan.Nodes[k.Node].Backs; q >= 0 {
		return g.Fails(int(q)+dagtest.Spares, int(k.Index))
	}
	first, level := l.plan.Stands(k.Node)
	return g.Fails(int(first)+1000*int(level), int(k.Index))
}

// commit runs one batch: what is told to the board, then what comes of it.
func (l *ledger) commit(board *Board[struct{}], size func(node int32) int) error {
	for m, x := range l.maps {
		board.PutMap(m, x)
	}
	defer func() { l.maps = maps.Clone(board.Maps()) }()
	good := l.plan.Forgiven(l.maps)
	for asks := board.Settle(); len(asks) > 0; asks = board.Settle() {
		for _, s := range asks {
			if l.plan.Conditional(s.Key) {
				yes, err := l.plan.If(s.Node, Scope{Input: json.RawMessage(dagtest.Input), Index: s.Index})
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
	l.handled += l.plan.Forgiven(board.Maps()) - good
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
	return l.check(board.Maps())
}

// check holds what is written down to a count of everything anew.
func (l *ledger) check(kept map[int32]Map) error {
	var past []Past
	for k := range l.waiting {
		past = append(past, Past{Key: k, Live: true})
	}
	for _, live := range []map[Key]bool{l.running, l.parked} {
		for k := range live {
			past = append(past, Past{Key: k, Live: true})
		}
	}
	for k, e := range l.ended {
		past = append(past, Past{Key: k, As: counts(e)})
	}
	for node := range l.sizes {
		past = append(past, Past{Key: Key{node, Unexpanded}})
	}
	if n := l.plan.HandledAll(past); n != l.handled {
		return fmt.Errorf("%d failures are made good; %d were counted", n, l.handled)
	}
	if m := l.plan.Maps(past); !maps.Equal(m, kept) && len(m)+len(kept) > 0 {
		return fmt.Errorf("the maps stand as %+v; they were counted as %+v", m, kept)
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
func play(g *dagtest.Graph, r *rand.Rand, plan *Plan) (*ledger, error) {
	l := &ledger{plan: plan, waiting: map[Key]Tally{}, running: map[Key]bool{}, parked: map[Key]bool{}, ended: map[Key]dagtest.End{}, sizes: map[int32]int{}, maps: map[int32]Map{}}
	size := func(node int32) int { return g.Nodes[node].Size }
	board := NewBoard[struct{}](plan)
	for _, row := range plan.Start() {
		board.Put(row.Key, Tally{Unmet: row.Unmet}, struct{}{}, false)
	}
	if err := l.commit(board, size); err != nil {
		return l, err
	}
	return l, l.run(g, r, size)
}

// run has what runs end until nothing does.
func (l *ledger) run(g *dagtest.Graph, r *rand.Rand, size func(node int32) int) error {
	plan := l.plan
	for len(l.running) > 0 {
		board, reach := NewBoard[struct{}](plan), NewReach(plan)
		order := slices.SortedFunc(maps.Keys(l.running), compareKeys)
		r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, k := range order[:1+r.IntN(min(4, len(order)))] {
			end := dagtest.End("ok")
			if l.fails(g, k) {
				end = "fail"
			}
			if b := plan.Nodes[k.Node].Backup; b >= 0 && end == "fail" {
				delete(l.running, k)
				l.parked[k], l.running[Key{b, k.Index}] = true, true
				continue
			}
			if q := plan.Nodes[k.Node].Backs; q >= 0 { // the other ends as this does
				l.handled += plan.Handled(k, counts(end))
				delete(l.running, k)
				l.ended[k] = end
				k.Node = q
				delete(l.parked, k)
			}
			l.handled += plan.Handled(k, counts(end))
			delete(l.running, k)
			if l.ended[k] = end; end == "ok" {
				l.order = append(l.order, k)
			}
			board.End(k, counts(end))
			reach.Of(k, counts(end), func(want Key) {
				for w, t := range l.waiting {
					if w.Node == want.Node && (want.Index == Every || want.Index == w.Index) && board.At(w) == nil {
						board.Put(w, t, struct{}{}, true)
					}
				}
			})
		}
		if err := l.commit(board, size); err != nil {
			return err
		}
	}
	if len(l.waiting) > 0 {
		return fmt.Errorf("%d rows wait for ever: %v", len(l.waiting), l.waiting)
	}
	return l.undo(g, r)
}

// undo undoes what a job did that has failed, step by step.
func (l *ledger) undo(g *dagtest.Graph, r *rand.Rand) error {
	if !g.Undoes() {
		return nil
	}
	failed := int32(0)
	for _, e := range l.ended {
		if e == "fail" || e == "broke" {
			failed++
		}
	}
	if broken := failed > l.handled; broken != g.Broken() {
		return fmt.Errorf("the job is broken: %v, by the model %v", broken, !broken)
	} else if !broken {
		return nil
	}
	var left []Done
	for seq, k := range l.order {
		if l.plan.Nodes[k.Node].Compensation >= 0 {
			left = append(left, Done{k, int64(seq)})
		}
	}
	for len(left) > 0 {
		r.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })
		next := l.plan.Undo(left)
		for _, k := range next {
			of := Key{l.plan.Nodes[k.Node].Undoes, k.Index}
			l.undone = append(l.undone, of)
			left = slices.DeleteFunc(left, func(d Done) bool { return d.Key == of })
			l.ended[k] = "ok"
			if g.Fails(int(of.Node)+dagtest.Undoes, int(k.Index)) {
				l.ended[k] = "fail"
			}
			l.handled += l.plan.Handled(k, counts(l.ended[k]))
		}
		if err := l.check(l.maps); err != nil {
			return err
		}
	}
	return nil
}

// rows are all rows as they stand.
func (l *ledger) rows() (rows []Past) {
	for k := range l.waiting {
		rows = append(rows, Past{Key: k, Live: true, Waits: true})
	}
	for k := range l.running {
		rows = append(rows, Past{Key: k, Live: true})
	}
	for k, e := range l.ended {
		rows = append(rows, Past{Key: k, As: counts(e)})
	}
	slices.SortFunc(rows, func(a, b Past) int { return compareRows(a.Key, b.Key) })
	return rows
}

// rerun runs rows again, drawn at random, and returns what began anew by the model. It
// returns nil where that cannot be.
func (l *ledger) rerun(g *dagtest.Graph, r *rand.Rand, results []dagtest.Result) (*dagtest.Anew, error) {
	if g.Undoes() {
		return nil, nil // a job that has undone what it did does not run again
	}
	var asked []Key
	for _, p := range l.rows() {
		if !l.plan.Nodes[p.Node].Dormant && r.IntN(6) == 0 {
			asked = append(asked, p.Key)
		}
	}
	if len(asked) == 0 {
		return nil, nil
	}
	rows := map[dagtest.Row]bool{}
	for _, k := range asked {
		rows[dagtest.Row{Node: int(k.Node), Index: int(k.Index)}] = true
	}
	a := g.Rerun(results, rows)
	b := l.plan.Branch(l.rows(), asked, Reaching{Down: true})
	if a.Parted != (len(b.Parted) > 0) {
		return nil, fmt.Errorf("rerun %v: parted %v, by the model %v", asked, b.Parted, a.Parted)
	}
	if a.Parted {
		return nil, nil
	}
	if a.Bounded(g) != (len(b.Bounded) > 0) {
		return nil, fmt.Errorf("rerun %v: it reaches the maps with bounds %v, by the model %v", asked, b.Bounded, a.Bounded(g))
	}
	if a.Bounded(g) {
		return nil, nil
	}
	if !maps.Equal(b.Maps, l.maps) && len(b.Maps)+len(l.maps) > 0 {
		return nil, fmt.Errorf("rerun %v: the maps stand as %+v; they were counted as %+v", asked, b.Maps, l.maps)
	}
	if len(b.Busy)+len(b.Waiting) > 0 {
		return nil, fmt.Errorf("rerun %v: in the way are %v, waiting %v; all had ended", asked, b.Busy, b.Waiting)
	}
	// The rows that there were and that begin anew, or make room, are those of the model.
	got := map[dagtest.Row]bool{}
	for _, k := range append(slices.Clone(b.Again), b.Gone...) {
		if _, there := l.ended[k]; there && !l.plan.Nodes[k.Node].Dormant {
			got[dagtest.Row{Node: int(k.Node), Index: int(k.Index)}] = true
		}
	}
	if !maps.Equal(got, a.Rows) {
		return nil, fmt.Errorf("rerun %v: rows %v, by the model %v", asked, got, a.Rows)
	}
	for _, k := range b.Gone {
		delete(l.ended, k)
	}
	board := NewBoard[struct{}](l.plan)
	for _, k := range b.Again {
		delete(l.ended, k)
		if k.Index == Unexpanded {
			delete(l.sizes, k.Node)
		}
		board.Put(k, b.Tallies[k], struct{}{}, false)
	}
	l.handled = b.Handled
	g.Fails = a.FailsAfter(g.Fails, dagtest.DrawFails(r))
	size := func(node int32) int { return g.Nodes[node].Size }
	if err := l.commit(board, size); err != nil {
		return a, err
	}
	return a, l.run(g, r, size)
}

func compareKeys(a, b Key) int { return int(a.Node-b.Node)*1_000_000 + int(a.Index-b.Index) }

// differences tells where what was played differs from the model.
func differences(g *dagtest.Graph, l *ledger, results []dagtest.Result) (out []string) {
	for i, want := range results {
		k := Key{int32(i), 0}
		got := map[Key]dagtest.End{}
		for k, e := range l.ended {
			if k.Node == int32(i) {
				got[k] = e
			}
		}
		should := map[Key]dagtest.End{}
		switch {
		case want.One == "empty":
		case want.One != "" && l.plan.Nodes[i].Mapped:
			should[Key{int32(i), Unexpanded}] = want.One
		case want.One != "":
			should[k] = want.One
		default:
			for e, end := range want.Elements {
				should[Key{int32(i), int32(e)}] = end
			}
		}
		if !maps.Equal(got, should) {
			out = append(out, fmt.Sprintf("%s: %v, by the model %v", g.Nodes[i].Name, got, should))
		}
		// What stands in for it, and what ran beside it.
		for k, e := range should {
			if b := l.plan.Nodes[i].Backup; b >= 0 {
				if got, want := l.ended[Key{b, k.Index}], g.Spared(i, int(k.Index), e); got != want {
					out = append(out, fmt.Sprintf("%s[%d], backup: %q, by the model %q", g.Nodes[i].Name, k.Index, got, want))
				}
			}
			bad := e == "fail" || e == "broke" && k.Index >= 0
			f := l.plan.Nodes[i].Fallback
			for level := 1; level <= g.Nodes[i].Backups; level++ {
				want := dagtest.End("")
				if bad {
					want = "ok"
					if bad = g.Fails(i+1000*level, int(k.Index)); bad {
						want = "fail"
					}
				}
				if got := l.ended[Key{f, k.Index}]; got != want {
					out = append(out, fmt.Sprintf("%s[%d], fallback %d: %q, by the model %q", g.Nodes[i].Name, k.Index, level, got, want))
				}
				f = l.plan.Nodes[f].Fallback
			}
		}
	}
	return out
}

// undoDifferences tells where what was undone differs from the model: all of that, and
// nothing before what came after it, but for elements of one map.
func undoDifferences(g *dagtest.Graph, l *ledger) (out []string) {
	want := map[Key]bool{}
	for _, w := range g.ToUndo() {
		want[Key{int32(w.Node), int32(w.Index)}] = true
	}
	got := map[Key]bool{}
	at := map[Key]int{}
	for i, k := range l.order {
		at[k] = i
	}
	for i, k := range l.undone {
		got[k] = true
		if i > 0 && l.undone[i-1].Node != k.Node && at[l.undone[i-1]] < at[k] {
			out = append(out, fmt.Sprintf("%v was undone before %v, which ended after it", l.undone[i-1], k))
		}
	}
	if !maps.Equal(got, want) {
		out = append(out, fmt.Sprintf("undone: %v, by the model %v", got, want))
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
		g := dagtest.Draw(r)
		p, err := Parse("", []byte(g.YAML()))
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, g.YAML())
		}
		plan, err := p.Compile()
		if err != nil {
			t.Fatal(err)
		}
		l, err := play(g, r, plan)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, g.YAML())
		}
		results := g.Results()
		if diff := append(differences(g, l, results), undoDifferences(g, l)...); len(diff) > 0 {
			t.Fatalf("seed %d:\n%s\n%s", seed, strings.Join(diff, "\n"), g.YAML())
		}
		mixed(g, mix, l)
		for range r.IntN(3) {
			a, err := l.rerun(g, r, results)
			if err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, g.YAML())
			}
			if a == nil {
				continue
			}
			results = g.After(results, a)
			if diff := differences(g, l, results); len(diff) > 0 {
				t.Fatalf("seed %d: after a rerun of %v:\n%s\n%s", seed, a, strings.Join(diff, "\n"), g.YAML())
			}
			mix["reruns"]++
			mix["rows that began anew"] += len(a.Rows)
			for i := range a.Whole {
				if g.Nodes[i].Size >= 0 {
					mix["maps that expanded again"]++
				}
				mix["reruns through rule "+g.Nodes[i].Rule]++
			}
		}
	}
	for _, rule := range dagtest.Rules {
		if mix["rule "+rule] == 0 {
			t.Errorf("no task had the rule %s", rule)
		}
		if mix["reruns through rule "+rule] == 0 {
			t.Errorf("no rerun went through the rule %s", rule)
		}
	}
	for _, what := range []string{"backups that ended ok", "backups that ended fail"} {
		if mix[what] == 0 {
			t.Errorf("there were no %s", what)
		}
	}
	for _, what := range []string{"undone", "undone one after another", "could not be undone"} {
		if mix[what] == 0 {
			t.Errorf("nothing was %s", what)
		}
	}
	for _, what := range slices.Sorted(maps.Keys(mix)) {
		t.Logf("%-40s %d", what, mix[what])
	}
}

// mixed counts what a case was about.
func mixed(g *dagtest.Graph, mix map[string]int, l *ledger) {
	mix["cases"]++
	mix["tasks"] += len(g.Nodes)
	for _, n := range g.Nodes {
		mix["rule "+n.Rule]++
		if n.Cond != "" {
			mix["condition "+n.Cond]++
		}
		if n.Backups > 0 {
			mix[fmt.Sprintf("fallbacks %d", n.Backups)]++
		}
		if n.Spare {
			mix["backup"]++
		}
		if n.Degrades {
			mix["degrade"]++
		}
		if n.Undone {
			mix["compensate"]++
		}
		if n.Share != "" {
			mix["min_success "+n.Share]++
		}
		if n.Parallel > 0 {
			mix["max_parallel"]++
		}
		switch {
		case n.Over >= 0:
			mix["maps element-wise"]++
		case n.Size == 0:
			mix["maps over nothing"]++
		case n.Size > 0:
			mix["maps"]++
		}
	}
	for k, e := range l.ended {
		if l.plan.Nodes[k.Node].Backs >= 0 {
			mix["backups that ended "+string(e)]++
		}
		mix["ended "+string(e)]++
		if l.plan.Nodes[k.Node].Undoes >= 0 && e == "fail" {
			mix["could not be undone"]++
		}
	}
	if mix["undone"] += len(l.undone); len(l.undone) > 1 {
		mix["undone one after another"]++
	}
}
