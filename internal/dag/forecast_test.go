package dag

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func planOf(t testing.TB, src string) *Plan {
	t.Helper()
	p, err := Parse("p.yaml", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	plan, err := p.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

const forked = `
pipeline: forked
tasks:
  collect: {run: x}
  left: {run: x, needs: [collect]}
  right: {run: x, needs: [collect], for_each: [a, b, c]}
  each: {run: x, for_each: right}
  join: {run: x, needs: [left], with: "${{ tasks.each.output }}"}
  aside: {run: x}
`

func TestForecastFindsTheLongestWay(t *testing.T) {
	t.Parallel()
	plan := planOf(t, forked)
	f := plan.Forecast(Measures{"left": {Tasks: 3, Run: time.Hour}, "each": {Tasks: 9, Run: time.Minute, Elements: 50}},
		Assumed{Run: time.Second, Elements: 7})
	var names []string
	for _, n := range f.Critical {
		names = append(names, plan.Nodes[n].Name)
	}
	if got := strings.Join(names, " "); got != "collect left join" {
		t.Errorf("critical path = %s", got)
	}
	if want := time.Hour + 2*time.Second; f.Length != want {
		t.Errorf("length = %s, want %s", f.Length, want)
	}
	if want := time.Hour + 3*time.Minute + 6*time.Second; f.Work != want {
		t.Errorf("work = %s, want %s", f.Work, want)
	}
	if f.Tasks != 10 || f.Width != 4 || f.WidestLevel != 1 {
		t.Errorf("tasks = %d, width = %d at level %d; want 10, 4 at 1", f.Tasks, f.Width, f.WidestLevel)
	}
	for _, want := range []struct {
		node                     string
		level, blast, blastTasks int
		elements                 int
		slack                    time.Duration
		basis, elementsBasis     string
	}{
		{"collect", 0, 4, 8, 1, 0, BasisAssumed, BasisDeclared},
		{"left", 1, 1, 1, 1, 0, BasisHistory, BasisDeclared},
		{"right", 1, 2, 4, 3, time.Hour - time.Minute - time.Second, BasisAssumed, BasisDeclared},
		{"each", 2, 1, 1, 3, time.Hour - time.Minute - time.Second, BasisHistory, BasisDeclared},
		{"aside", 0, 0, 0, 1, time.Hour + time.Second, BasisAssumed, BasisDeclared},
	} {
		i := slices.IndexFunc(plan.Nodes, func(n Node) bool { return n.Name == want.node })
		x := f.Nodes[i]
		if x.Level != want.level || x.Blast != want.blast || x.BlastTasks != want.blastTasks || x.Elements != want.elements ||
			x.Slack != want.slack || x.RunBasis != want.basis || x.ElementsBasis != want.elementsBasis {
			t.Errorf("%s = %+v, want %+v", want.node, x, want)
		}
	}
	if by := f.ByBlast(); len(by) != 4 || plan.Nodes[by[0]].Name != "collect" {
		t.Errorf("by blast = %v", by)
	}
}

func TestForecastTakesWhatIsDeclaredWhereNothingHasRun(t *testing.T) {
	t.Parallel()
	plan := planOf(t, forked)
	f := plan.Forecast(Measures{"left": {Tasks: 3, Run: time.Hour}}, Assumed{Run: time.Second, Declared: map[string]time.Duration{"left": time.Minute, "join": 2 * time.Minute}})
	for i, want := range map[int]string{0: "1s assumed", 1: "1h0m0s history", 4: "2m0s declared"} {
		if got := f.Nodes[i].Run.String() + " " + f.Nodes[i].RunBasis; got != want {
			t.Errorf("%s = %s, want %s", plan.Nodes[i].Name, got, want)
		}
	}
}

func TestForecastTakesTheNumberOfElementsFromHistory(t *testing.T) {
	t.Parallel()
	plan := planOf(t, `{pipeline: p, tasks: {list: {run: x}, each: {run: x, for_each: "${{ tasks.list.output }}"}, other: {run: x, for_each: "${{ input.l }}"}, none: {run: x, for_each: []}}}`)
	f := plan.Forecast(Measures{"each": {Tasks: 80, Run: 2 * time.Second, Elements: 40}}, Assumed{Run: time.Second, Elements: 7})
	if f.Nodes[1].Elements != 40 || f.Nodes[1].ElementsBasis != BasisHistory || f.Nodes[2].Elements != 7 || f.Nodes[2].ElementsBasis != BasisAssumed {
		t.Errorf("elements = %+v, %+v", f.Nodes[1], f.Nodes[2])
	}
	if f.Nodes[3].Elements != 0 || f.Nodes[3].Time != 0 {
		t.Errorf("an empty map costs %+v", f.Nodes[3])
	}
}

// Against a model that follows every way by itself.
func TestForecastOfRandomGraphs(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(7, 7))
	for range 300 {
		n := 1 + rng.IntN(90)
		var b strings.Builder
		b.WriteString("pipeline: p\ntasks:\n")
		m := Measures{}
		for i := range n {
			var needs []string
			for j := range i {
				if rng.IntN(i+2) < 2 {
					needs = append(needs, fmt.Sprintf("t%d", j))
				}
			}
			fmt.Fprintf(&b, "  t%d: {run: x, needs: [%s]}\n", i, strings.Join(needs, ", "))
			m[fmt.Sprintf("t%d", i)] = Measure{Tasks: 1, Run: time.Duration(rng.IntN(50)) * time.Second}
		}
		plan := planOf(t, b.String())
		f := plan.Forecast(m, Assumed{})
		memo := make([]time.Duration, n)
		var longest time.Duration
		for i := range n { // parents have smaller numbers here
			for _, q := range plan.Nodes[i].Parents {
				memo[i] = max(memo[i], memo[q])
			}
			memo[i] += m[plan.Nodes[i].Name].Run
			longest = max(longest, memo[i])
		}
		if f.Length != longest {
			t.Fatalf("length = %s, want %s\n%s", f.Length, longest, b.String())
		}
		var along time.Duration
		for k, c := range f.Critical {
			along += f.Nodes[c].Time
			if k > 0 && !slices.Contains(plan.Nodes[c].Parents, f.Critical[k-1]) {
				t.Fatalf("critical path %v is no way through\n%s", f.Critical, b.String())
			}
			if f.Nodes[c].Slack != 0 {
				t.Fatalf("slack on the critical path\n%s", b.String())
			}
		}
		if along != longest {
			t.Fatalf("critical path takes %s, want %s", along, longest)
		}
		for i := range n {
			if want := len(plan.Descendants(int32(i))); f.Nodes[i].Blast != want {
				t.Fatalf("blast of %d = %d, want %d\n%s", i, f.Nodes[i].Blast, want, b.String())
			}
			if f.Nodes[i].Slack < 0 {
				t.Fatalf("negative slack of %d\n%s", i, b.String())
			}
		}
	}
}

func TestEdgesTellDataFromControl(t *testing.T) {
	t.Parallel()
	plan := planOf(t, `
pipeline: p
tasks:
  a: {run: x}
  b: {run: x, needs: [a], for_each: [1, 2]}
  c: {run: x, for_each: b}
  d: {run: x, needs: [a, b], with: "${{ tasks.a.output }}"}
  e: {run: x, needs: [c], for_each: b, with: 1}
  f: {run: x, needs: [c]}
`)
	var got []string
	for _, e := range plan.Edges {
		s := plan.Nodes[e.Parent].Name + plan.Nodes[e.Child].Name
		if e.Data {
			s += " data"
		}
		if e.Same {
			s += " same"
		}
		got = append(got, s)
	}
	want := "ab,bc data same,ad data,bd,be same,ce same,cf"
	if strings.Join(got, ",") != want {
		t.Errorf("edges = %s, want %s", strings.Join(got, ","), want)
	}
}
