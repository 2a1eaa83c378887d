package dag

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drover-dev/drover"
)

// run plays the engine's part: it keeps a job's rows and ends them one by one.
type run struct {
	t     rapid.TB
	plan  *Plan
	size  func(node int32) int // elements of a map over a list
	board *Board[struct{}]
	rows  map[Key]int32 // not ended → unmet
	maps  map[Key]*Seat[struct{}]
	ended map[Key]bool
	count map[int32]int // rows of an expanded map
}

func newRun(t rapid.TB, plan *Plan, size func(node int32) int) *run {
	r := &run{t: t, plan: plan, size: size, board: NewBoard[struct{}](plan), maps: map[Key]*Seat[struct{}]{}, ended: map[Key]bool{}, count: map[int32]int{}}
	for _, row := range plan.Start() {
		r.board.Put(row.Key, Tally{Unmet: row.Unmet}, struct{}{}, false)
	}
	r.settle()
	return r
}

// settle lets the board come to rest and notes which rows there are.
func (r *run) settle() {
	for _, s := range r.board.Settle() {
		r.maps[s.Key] = s
	}
	r.rows = map[Key]int32{}
	for s := range r.board.Seats {
		if (s.Fate == Waits || s.Fate == Runs) && !r.ended[s.Key] {
			if r.rows[s.Key] = s.Unmet; s.Unmet < 0 {
				r.t.Fatalf("%s waits for %d", r.name(s.Key), s.Unmet)
			}
		}
		if s.Fate == HasExpanded {
			r.count[s.Node] = s.Size
		}
	}
}

func (r *run) key(name string, index int32) Key {
	for i, n := range r.plan.Nodes {
		if n.Name == name {
			return Key{int32(i), index}
		}
	}
	r.t.Fatalf("no task %q", name)
	return Key{}
}

func (r *run) name(k Key) string {
	n := r.plan.Nodes[k.Node]
	switch {
	case !n.Mapped:
		return n.Name
	case k.Index == Unexpanded:
		return n.Name + "[?]"
	default:
		return fmt.Sprintf("%s[%d]", n.Name, k.Index)
	}
}

// due returns the rows that wait for nothing, in order.
func (r *run) due() []Key {
	var out []Key
	for k, unmet := range r.rows {
		if unmet == 0 {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, func(a, b Key) int { return int(a.Node-b.Node)*1000 + int(a.Index-b.Index) })
	return out
}

// names writes the due rows as "a b[0] b[1]".
func (r *run) names() string {
	var out []string
	for _, k := range r.due() {
		out = append(out, r.name(k))
	}
	return strings.Join(out, " ")
}

// end lets a row succeed, or expands it.
func (r *run) end(k Key) {
	if unmet, ok := r.rows[k]; !ok || unmet != 0 {
		r.t.Fatalf("%s ends while it waits for %d (there: %t)", r.name(k), unmet, ok)
	}
	if k.Index == Unexpanded {
		r.board.Expand(r.maps[k], r.size(k.Node), func(*Seat[struct{}], int32) struct{} { return struct{}{} })
	} else {
		r.ended[k] = true
		r.board.End(k, Succeeded)
	}
	r.settle()
}

// The graph of the design document: decode, two extracts, two inferences, a
// join, a manifest.
const diamond = `pipeline: picture
tasks:
  decode: {run: x}
  extract-a: {run: x, needs: [decode]}
  extract-b: {run: x, needs: [decode]}
  inference-a: {run: x, needs: [extract-a]}
  inference-b: {run: x, with: {from: "${{ tasks.extract-b.output }}"}}
  quality-check: {run: x, needs: [inference-a, inference-b]}
  dataset-manifest: {run: x, needs: [quality-check]}
`

func TestDiamondBecomesReadyStepByStep(t *testing.T) {
	t.Parallel()
	plan := compile(t, diamond)
	if want := "decode|extract-a extract-b|inference-a inference-b|quality-check|dataset-manifest"; levels(plan) != want {
		t.Errorf("levels = %s, want %s", levels(plan), want)
	}
	r := newRun(t, plan, nil)
	var got []string
	for _, next := range []string{"decode", "extract-b", "inference-b", "extract-a", "inference-a", "quality-check", "dataset-manifest"} {
		got = append(got, r.names())
		r.end(r.key(next, 0))
	}
	want := []string{
		"decode",
		"extract-a extract-b",
		"extract-a inference-b",
		"extract-a",
		"inference-a",
		"quality-check",
		"dataset-manifest",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if len(r.rows) != 0 {
		t.Errorf("left over: %v", r.rows)
	}
	if got := plan.Sinks(); !slices.Equal(got, []int32{6}) {
		t.Errorf("sinks = %v", got)
	}
	if got := plan.Descendants(2); !slices.Equal(got, []int32{4, 5, 6}) {
		t.Errorf("what waits for extract-b = %v", got)
	}
}

func levels(p *Plan) string {
	var out []string
	for _, l := range p.Levels() {
		var names []string
		for _, n := range l {
			names = append(names, p.Nodes[n].Name)
		}
		out = append(out, strings.Join(names, " "))
	}
	return strings.Join(out, "|")
}

const video = `pipeline: dataset
tasks:
  decode: {run: x}
  extract: {run: x, for_each: "${{ tasks.decode.output.segments }}"}
  feature: {run: x, for_each: extract}
  score: {run: x, for_each: feature, needs: [model], with: {raw: "${{ tasks.extract.output }}", f: "${{ item }}"}}
  model: {run: x}
  pack: {run: x, for_each: ["a", "b"], needs: [score]}
  quality: {run: x, needs: [score, extract]}
`

func TestElementsOfAChainGoTheirOwnWay(t *testing.T) {
	t.Parallel()
	r := newRun(t, compile(t, video), func(node int32) int { return 3 - int(node%3) }) // extract 2, pack 1
	steps := []struct{ ready, end string }{
		{"decode model", "decode 0"},
		{"extract[?] model", "extract -1"},
		{"extract[0] extract[1] model", "extract 1"},
		{"extract[0] feature[1] model", "feature 1"},
		{"extract[0] model", "model 0"},
		{"extract[0] score[1]", "score 1"},
		{"extract[0]", "extract 0"},
		{"feature[0]", "feature 0"},
		{"score[0]", "score 0"},
		{"pack[?] quality", "quality 0"},
		{"pack[?]", "pack -1"},
		{"pack[0]", "pack 0"},
	}
	for _, s := range steps {
		if got := r.names(); got != s.ready {
			t.Fatalf("before %s: ready = %q, want %q", s.end, got, s.ready)
		}
		var name string
		var index int32
		fmt.Sscan(s.end, &name, &index)
		r.end(r.key(name, index))
	}
	if len(r.rows) != 0 {
		t.Errorf("left over: %v", r.rows)
	}
}

func TestMapsExpandWithTheirFamily(t *testing.T) {
	t.Parallel()
	plan := compile(t, video)
	if got, want := plan.Family(1), []int32{1, 2, 3}; !slices.Equal(got, want) {
		t.Errorf("maps = %v, want %v", got, want)
	}
	if got := plan.Children(Key{1, 7}); !slices.Equal(got, []Key{{2, 7}, {3, 7}, {6, 0}}) {
		t.Errorf("children of extract[7] = %v", got)
	}
	if got := plan.Children(Key{4, 0}); !slices.Contains(got, Key{3, Every}) {
		t.Errorf("children of model = %v, want every score among them", got)
	}
}

func TestEmptyMapsComplete(t *testing.T) {
	t.Parallel()
	r := newRun(t, compile(t, video), func(int32) int { return 0 })
	r.end(r.key("decode", 0))
	r.end(r.key("extract", Unexpanded))
	// score would have waited for model, and so does what waits for score.
	if got := r.names(); got != "model" {
		t.Fatalf("ready = %q, want only model", got)
	}
	r.end(r.key("model", 0))
	if got := r.names(); got != "pack[?] quality" {
		t.Fatalf("ready = %q, want pack[?] quality", got)
	}
	r.end(r.key("pack", Unexpanded))
	r.end(r.key("quality", 0))
	if len(r.rows) != 0 {
		t.Errorf("left over: %v", r.rows)
	}
}

func TestSinglePlanIsOneNode(t *testing.T) {
	t.Parallel()
	p := Single("mail.send", "", 0, drover.Retry{MaxAttempts: 2})
	if rows := p.Start(); !slices.Equal(rows, []Row{{Key{0, 0}, 0}}) {
		t.Errorf("start = %v", rows)
	}
	n := p.Nodes[0]
	if n.Name != "mail.send" || n.Kind != "mail.send" || n.Queue != DefaultQueue || n.Timeout != DefaultTimeout || n.Over != -1 ||
		n.Retry.MaxAttempts != 2 || n.Retry.Factor != 2 {
		t.Errorf("node = %+v", n)
	}
	if p.Children(Key{0, 0}) != nil || len(p.InputRefs(0)) != 0 || len(p.ForEachRefs(0)) != 0 || !slices.Equal(p.Sinks(), []int32{0}) {
		t.Error("a single node has children or needs outputs")
	}
	for in, want := range map[string]string{`{"to": "x"}`: `{"to": "x"}`, `[1]`: `[1]`, ``: `{}`} {
		got, err := p.Render(0, Scope{Input: json.RawMessage(in)})
		if err != nil || string(got) != want {
			t.Errorf("render %q = %q, %v", in, got, err)
		}
	}
	if err := p.CheckInput(nil); err != nil {
		t.Errorf("check: %v", err)
	}
}

// model is a random pipeline as the test understands it.
type model struct {
	yaml  string
	deps  [][]int // as written, not transitive
	root  []int   // of maps: whose length they share; else -1
	sizes []int
}

func drawModel(t *rapid.T) model {
	n := rapid.IntRange(1, 9).Draw(t, "tasks")
	m := model{deps: make([][]int, n), root: make([]int, n), sizes: make([]int, n)}
	var b strings.Builder
	b.WriteString("pipeline: p\ntasks:\n")
	// Tasks are written in another order than they depend on each other.
	lines := make([]string, n)
	for i := range n {
		need := func(j int) { m.deps[i] = append(m.deps[i], j) }
		m.root[i] = -1
		m.sizes[i] = rapid.SampledFrom([]int{0, 0, 1, 2, 3}).Draw(t, "size")
		line := fmt.Sprintf("  t%d: {run: x", i)
		var earlier, maps []int
		for j := range i {
			earlier = append(earlier, j)
			if m.root[j] >= 0 {
				maps = append(maps, j)
			}
		}
		switch form := rapid.SampledFrom([]string{"plain", "list", "output", "over", "over"}).Draw(t, "form"); {
		case form == "list":
			m.root[i] = i
			line += ", for_each: [1, 2]"
		case form == "output" && i > 0:
			j := rapid.SampledFrom(earlier).Draw(t, "of")
			need(j)
			m.root[i] = i
			line += fmt.Sprintf(", for_each: '${{ tasks.t%d.output }}'", j)
		case form == "over" && len(maps) > 0:
			j := rapid.SampledFrom(maps).Draw(t, "over")
			need(j)
			m.root[i] = m.root[j]
			line += fmt.Sprintf(", for_each: t%d", j)
		}
		if i > 0 {
			var names []string
			for _, j := range rapid.SliceOfNDistinct(rapid.SampledFrom(earlier), 0, 2, rapid.ID).Draw(t, "needs") {
				need(j)
				names = append(names, fmt.Sprintf("t%d", j))
			}
			line += ", needs: [" + strings.Join(names, ", ") + "]"
			if rapid.Bool().Draw(t, "data") {
				j := rapid.SampledFrom(earlier).Draw(t, "from")
				need(j)
				line += fmt.Sprintf(", with: '${{ tasks.t%d.output }}'", j)
			}
		}
		lines[i] = line + "}\n"
	}
	for _, l := range rapid.Permutation(lines).Draw(t, "order") {
		b.WriteString(l)
	}
	m.yaml = b.String()
	return m
}

// ancestors returns, for every task, all it waits for, directly or not.
func (m model) ancestors() [][]int {
	out := make([][]int, len(m.deps))
	for i, deps := range m.deps { // deps point backwards
		set := map[int]bool{}
		for _, d := range deps {
			set[d] = true
			for _, a := range out[d] {
				set[a] = true
			}
		}
		for a := range set {
			out[i] = append(out[i], a)
		}
	}
	return out
}

// Whatever the graph, the sizes and the order in which rows end: a row is ready
// exactly when everything before it has ended, nothing is counted below zero,
// and every row ends.
func TestRowsBecomeReadyExactlyWhenAllBeforeThemEnded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := drawModel(t)
		p, err := Parse("random.yaml", []byte(m.yaml))
		if err != nil {
			t.Fatalf("%v\n%s", err, m.yaml)
		}
		plan, err := p.Compile()
		if err != nil {
			t.Fatal(err)
		}
		task := make([]int, len(plan.Nodes)) // node → number in the model
		node := make([]int32, len(plan.Nodes))
		for i, n := range plan.Nodes {
			fmt.Sscanf(n.Name, "t%d", &task[i])
			node[task[i]] = int32(i)
		}
		r := newRun(t, plan, func(node int32) int { return m.sizes[task[node]] })
		ancestors := m.ancestors()
		done := func(k Key) bool { // everything before k has ended
			i := task[k.Node]
			for _, a := range ancestors[i] {
				if m.root[a] >= 0 && m.root[a] == m.root[i] {
					if k.Index >= 0 && !r.ended[Key{node[a], k.Index}] {
						return false
					}
					continue
				}
				for other := range r.rows {
					if other.Node == node[a] {
						return false
					}
				}
			}
			return true
		}
		for len(r.rows) > 0 {
			for k, unmet := range r.rows {
				if k.Index == Unexpanded && plan.Nodes[k.Node].Over >= 0 {
					if unmet == 0 {
						t.Fatalf("%s has nothing to wait for and stays\n%s", r.name(k), m.yaml)
					}
					continue
				}
				if ready := unmet == 0; ready != done(k) {
					t.Fatalf("%s: unmet = %d, but all before it ended = %t; ended %v\n%s", r.name(k), unmet, done(k), r.ended, m.yaml)
				}
			}
			due := r.due()
			if len(due) == 0 {
				t.Fatalf("nothing is ready and %d rows wait\n%s", len(r.rows), m.yaml)
			}
			r.end(rapid.SampledFrom(due).Draw(t, "end"))
		}
		for i, n := range plan.Nodes {
			want := 1
			if n.Mapped {
				want = m.sizes[m.root[task[i]]]
			}
			got := 0
			for k := range r.ended {
				if k.Node == int32(i) {
					got++
				}
			}
			if got != want {
				t.Fatalf("%s ended %d times, want %d\n%s", n.Name, got, want, m.yaml)
			}
		}
	})
}

func TestStoredDefinitionGivesTheSamePlan(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := drawModel(t)
		p, err := Parse("random.yaml", []byte(m.yaml))
		if err != nil {
			t.Fatal(err)
		}
		q, err := Decode(p.Canonical())
		if err != nil {
			t.Fatal(err)
		}
		a, errA := p.Compile()
		b, errB := q.Compile()
		if errA != nil || errB != nil || !reflect.DeepEqual(a, b) {
			t.Fatalf("plans differ (%v, %v):\n%+v\n%+v", errA, errB, a, b)
		}
		if p.Hash() != q.Hash() {
			t.Fatal("hashes differ")
		}
	})
}

func TestLargeGraphsCompileQuickly(t *testing.T) {
	t.Parallel()
	const size = 5000
	chain := head + "  t0: {run: x, for_each: [1]}\n"
	wide := head + "  t0: {run: x}\n"
	ring := head + fmt.Sprintf("  t0: {run: x, needs: [t%d]}\n", size-1)
	for i := 1; i < size; i++ {
		chain += fmt.Sprintf("  t%d: {run: x, for_each: t%d}\n", i, i-1)
		wide += fmt.Sprintf("  t%d: {run: x, needs: [t%d], with: '${{ tasks.t%d.output }}'}\n", i, i/2, i/3)
		ring += fmt.Sprintf("  t%d: {run: x, needs: [t%d]}\n", i, i-1)
	}
	// Joins behind long chains of maps, each waiting for a task of its own.
	tangle := head + "  m0: {run: x, for_each: [1]}\n"
	for i := 1; i < size/3; i++ {
		tangle += fmt.Sprintf("  e%d: {run: x}\n  m%[1]d: {run: x, for_each: m%d, needs: [e%[1]d]}\n  j%[1]d: {run: x, needs: [m%[1]d]}\n", i, i-1)
	}
	for name, src := range map[string]string{"chain of maps": chain, "wide": wide, "tangle": tangle} {
		start := time.Now()
		plan := compile(t, src)
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("%s: took %s", name, d)
		}
		if name == "chain of maps" {
			if got := plan.Family(0); len(got) != size {
				t.Errorf("%d maps expand, want %d", len(got), size)
			}
		}
	}
	code, got := complaints(t, "", ring)
	if code != drover.CodeCycle || len(got) != 1 || len(got[0]) > 1000 {
		t.Errorf("ring of %d: %s, %d problems", size, code, len(got))
	}
}
