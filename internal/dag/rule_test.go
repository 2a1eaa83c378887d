package dag

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write docs/joins.md anew from the rules")

// parent is a state that a parent of a task can be in, as Airflow calls it, and how
// it counts here.
type parent struct {
	name string
	as   Outcome // 0: it has not ended
}

var parentStates = []parent{{"success", Succeeded}, {"failed", Failed}, {"upstream_failed", Failed}, {"skipped", Skipped}, {"running", 0}}

// pairs are two parents in every two states, and what becomes of a task below them.
func pairs(r Rule, see func(a, b parent, v Verdict)) {
	for i, a := range parentStates {
		for _, b := range parentStates[i:] {
			t := Tally{Unmet: 2}
			for _, p := range []parent{a, b} {
				if p.as != 0 {
					t.count(p.as, 1)
				}
			}
			see(a, b, r.Verdict(t))
		}
	}
}

// differing says why a rule differs from Airflow's of the same name, for the pairs
// of parents that it does for.
var differing = []struct {
	rule, pair, why string
}{
	{"all_success", "skipped running", "A task that may still turn out blocked waits until it is known which it is, so that an outcome never depends on which parent ends first. Airflow skips it at once."},
	{"one_done", "upstream_failed upstream_failed", "A task that was kept from running by a failure counts as failed for every rule. In Airflow it counts for all but this one."},
	{"one_done", "upstream_failed skipped", "As above."},
	{"one_done", "upstream_failed running", "As above."},
}

// TestRulesAreThoseOfAirflow where they have the same name, and each difference has
// its reason.
func TestRulesAreThoseOfAirflow(t *testing.T) {
	t.Parallel()
	differences := airflow(t)
	for _, d := range differing {
		if !slices.Contains(differences, d.rule+": "+d.pair) {
			t.Errorf("%s: %s is no difference any more", d.rule, d.pair)
		}
	}
	for _, d := range differences {
		if !slices.ContainsFunc(differing, func(w struct{ rule, pair, why string }) bool { return w.rule+": "+w.pair == d }) {
			t.Errorf("%s differs from Airflow for no reason that is told", d)
		}
	}
}

// airflow returns where the rules differ from the fixture.
func airflow(t *testing.T) (out []string) {
	t.Helper()
	src, err := os.ReadFile("testdata/airflow-trigger-rules.json")
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Source string
		Rules  map[string]map[string]string
	}
	if err := json.Unmarshal(src, &f); err != nil {
		t.Fatal(err)
	}
	if len(f.Rules) != 11 || !strings.Contains(f.Source, "trigger_rule_dep.py") {
		t.Fatalf("the fixture has %d rules of %q", len(f.Rules), f.Source)
	}
	words := map[string]Verdict{"runs": Run, "waits": Wait, "skipped": Skip, "upstream_failed": Block}
	for _, name := range slices.Sorted(maps.Keys(f.Rules)) {
		r, complaint := parseRule(name)
		if complaint != "" {
			t.Fatal(complaint)
		}
		n := 0
		pairs(r, func(a, b parent, v Verdict) {
			want, ok := f.Rules[name][a.name+" "+b.name]
			if !ok {
				t.Errorf("%s: the fixture does not tell of %s and %s", name, a.name, b.name)
			}
			if n++; words[want] != v {
				out = append(out, name+": "+a.name+" "+b.name)
			}
		})
		if n != 15 {
			t.Errorf("%s: %d pairs", name, n)
		}
	}
	return out
}

// TestDocsJoins holds docs/joins.md to the rules.
func TestDocsJoins(t *testing.T) {
	t.Parallel()
	const path = "../../docs/joins.md"
	want := joinsPage()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/joins.md is not what the rules say; run make docs")
	}
}

func joinsPage() string {
	var b strings.Builder
	b.WriteString(`# Joins: when a task runs

A task waits for others: those it needs, those whose output it uses, the map it goes over. Its rule, ` + "`when`" + `, says by how they have ended whether
it runs. This page is printed from the code (` + "`make docs`" + `).

| rule | the task runs once |
|---|---|
`)
	for _, r := range rules {
		fmt.Fprintf(&b, "| `%s` | %s |\n", r.name, r.doc)
	}
	b.WriteString(`
## How what has ended counts

| a task above has ended | it counts as |
|---|---|
| SUCCEEDED: it ran, or its result was reused | succeeded |
| FAILED or DEAD_LETTER | failed |
| CANCELLED | failed |
| SKIPPED, because its rule or its condition said so | skipped |
| SKIPPED, because a task above it failed (*blocked*) | failed, so that a failure reaches every rule below |
| a map | each of its elements counts by itself |
| a map with ` + "`min_success`" + `, outside its family | once, when all its elements have ended: as succeeded, if enough of them have; as skipped, if all were; otherwise as failed |
| a map over an empty list | once, as succeeded |
| a map that was skipped or failed before it could expand | once, as itself |

A map that goes over another one has the rule of each of its elements. When the other ends without expanding, there is nothing to go over, and the map is
skipped, unless its rule blocks it.

The outcome of a task depends on how the tasks above it end and never on the order in which they do: where a rule can say both *skipped* and *blocked*,
it waits until it is known which.

## Two tasks above

What becomes of a task when the two it waits for stand as the row says. *skipped* and *blocked* are how it ends without running.

`)
	b.WriteString("| the two |")
	columns := make([]Rule, 0, len(rules))
	for i := range rules {
		r := Rule{kind: ruleKind(i), n: 1}
		if r.kind == quorum {
			r.n = 2
		}
		columns = append(columns, r)
		fmt.Fprintf(&b, " `%s` |", r)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(columns)) + "\n")
	type pair struct{ a, b string }
	var order []pair
	cells := map[pair][]string{}
	for _, r := range columns {
		pairs(r, func(x, y parent, v Verdict) {
			p := pair{shownState(x), shownState(y)}
			if len(cells[p]) == 0 {
				order = append(order, p)
			}
			cells[p] = append(cells[p], v.String())
		})
	}
	for _, p := range order {
		fmt.Fprintf(&b, "| %s, %s | %s |\n", p.a, p.b, strings.Join(cells[p], " | "))
	}
	b.WriteString(`
## Beside Airflow

The rules that Apache Airflow has too mean the same here; a test holds them to a table of what Airflow does
(` + "`internal/dag/testdata/airflow-trigger-rules.json`" + `, which names its source). Where they differ, and why:

| rule | the two | Airflow | here | why |
|---|---|---|---|---|
`)
	for _, d := range differing {
		r, _ := parseRule(d.rule)
		pairs(r, func(x, y parent, v Verdict) {
			if x.name+" "+y.name == d.pair {
				there := map[string]string{"all_success": "skipped", "one_done": "waits"}[d.rule]
				if d.rule == "one_done" && !strings.Contains(d.pair, "running") {
					there = "skipped"
				}
				fmt.Fprintf(&b, "| `%s` | %s, %s | %s | %s | %s |\n", d.rule, shownState(x), shownState(y), there, v, d.why)
			}
		})
	}
	b.WriteString(`
Airflow knows neither ` + "`quorum(n)`" + ` nor a map over nothing that has succeeded: there such a map is skipped. Its ` + "`all_done_min_one_success`" + ` and
` + "`all_done_setup_success`" + ` have no counterpart here.
`)
	return b.String()
}

func shownState(p parent) string {
	return map[string]string{"success": "succeeded", "failed": "failed", "upstream_failed": "blocked", "skipped": "skipped", "running": "not ended"}[p.name]
}

// TestVerdictsDoNotDependOnTheOrder in which rows end: one that is given before all
// have ended is the one given at the end.
func TestVerdictsDoNotDependOnTheOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := Rule{kind: ruleKind(rapid.IntRange(0, len(rules)-1).Draw(t, "rule")), n: int32(rapid.IntRange(1, 5).Draw(t, "n"))}
		outcomes := rapid.SliceOfN(rapid.SampledFrom([]Outcome{Succeeded, Failed, Skipped}), 1, 6).Draw(t, "outcomes")
		at := Tally{Unmet: int32(len(outcomes))}
		var given []Verdict
		for i := 0; ; i++ {
			if v := r.Verdict(at); v != Wait {
				given = append(given, v)
			} else if at.Unmet == 0 {
				t.Fatalf("%s waits though all have ended: %+v", r, at)
			} else if len(given) > 0 {
				t.Fatalf("%s had said %s and waits: %+v", r, given[0], at)
			}
			if i == len(outcomes) {
				break
			}
			at.count(outcomes[i], 1)
		}
		for _, v := range given {
			if v != given[0] {
				t.Fatalf("%s says %v while rows end as %v", r, given, outcomes)
			}
		}
		// The same in another order.
		all := Tally{}
		for _, o := range outcomes {
			all.Unmet++
			all.count(o, 1)
		}
		if v := r.Verdict(all); v != given[0] {
			t.Fatalf("%s says %s at the end and %s on the way", r, v, given[0])
		}
		for o := Succeeded; o <= Blocked; o++ { // what ends says is not less than what may be
			before := Tally{Unmet: int32(rapid.IntRange(1, 3).Draw(t, "unmet")), Succeeded: int32(rapid.IntRange(0, 2).Draw(t, "ok")), Failed: int32(rapid.IntRange(0, 2).Draw(t, "bad")), Skipped: int32(rapid.IntRange(0, 2).Draw(t, "not"))}
			after := before
			after.count(o, 1)
			if r.Verdict(before) != Wait {
				continue
			}
			may := r.ends(o)
			switch v := r.Verdict(after); {
			case v == Skip && !slices.Contains(may, Skipped), v == Block && !slices.Contains(may, Blocked):
				t.Fatalf("%s: %+v becomes %+v, which ends it as %s; ends says %v", r, before, after, v, may)
			}
		}
	})
}

func TestRulesAreRead(t *testing.T) {
	t.Parallel()
	for _, name := range RuleNames() {
		name = strings.Replace(name, "(n)", "(3)", 1)
		if r, bad := parseRule(name); bad != "" || r.String() != name {
			t.Errorf("%s is read as %s: %s", name, r, bad)
		}
	}
	for src, want := range map[string]string{
		"all_succes":  `did you mean "all_success"?`,
		"quorum":      "quorum(n)",
		"quorum(0)":   "a whole number from 1",
		"quorum(two)": "a whole number from 1",
		"quorum(n)":   "a whole number from 1",
		"":            "the rules are all_success",
	} {
		if _, bad := parseRule(src); !strings.Contains(bad, want) {
			t.Errorf("%q: %q, want %q", src, bad, want)
		}
	}
}

// TestRulesMustFit: a rule that has nothing to look at, or a data edge from a task
// that may have no output, is refused with its place.
func TestRulesMustFit(t *testing.T) {
	t.Parallel()
	const head = "pipeline: p\ntasks:\n"
	for _, tc := range []struct{ src, want string }{
		{head + "  a: {run: x, when: all_done}\n", `3:21 tasks.a.when: task "a" waits for nothing, so that` + " `when` has nothing to look at"},
		{head + "  a: {run: x}\n  b: {run: x, needs: [a], when: quorum(2)}\n", `4:33 tasks.b.when: task "b" waits for 1 tasks; of those, 2 can never succeed`},
		{head + "  a: {run: x}\n  b: {run: x, needs: [a], when: 3}\n", `4:33 tasks.b.when: this must be text and is a number`},
		{head + "  a: {run: x}\n  b: {run: x, when: all_done, with: \"${{ tasks.a.output }}\"}\n", `4:37 tasks.b.with: task "a" may not have succeeded when "b" runs (when: all_done)`},
		{head + "  a: {run: x, for_each: [1]}\n  b: {run: x, for_each: a, when: one_done}\n", `4:25 tasks.b.for_each: task "a" may not have succeeded`},
	} {
		if _, got := complaints(t, "p.yaml", tc.src); len(got) != 1 || !strings.HasPrefix(got[0], tc.want) {
			t.Errorf("%s\ngot  %q\nwant %q", tc.src, got, tc.want)
		}
	}
	for _, src := range []string{
		head + "  a: {run: x, for_each: [1]}\n  b: {run: x, needs: [a], when: quorum(20)}\n",
		head + "  a: {run: x, default: null}\n  b: {run: x, when: all_done, with: \"${{ tasks.a.output }}\"}\n",
		head + "  a: {run: x, for_each: [1]}\n  b: {run: x, when: all_done, with: \"${{ tasks.a.output }}\"}\n", // a list of what there is
	} {
		if _, err := Parse("", []byte(src)); err != nil {
			t.Errorf("%s\n%v", src, err)
		}
	}
}

// TestHopelessIsWhatNoEndOfTheRestMends: against every way in which the open
// rows may end.
func TestHopelessIsWhatNoEndOfTheRestMends(t *testing.T) {
	t.Parallel()
	seen := map[bool]int{}
	for kind := range rules {
		r := Rule{kind: ruleKind(kind), n: 2}
		for ok := range int32(3) {
			for bad := range int32(3) {
				for skipped := range int32(3) {
					for unmet := range int32(4) {
						at := Tally{Unmet: unmet, Succeeded: ok, Failed: bad, Skipped: skipped}
						hope := false
						for a := range unmet + 1 {
							for b := range unmet - a + 1 {
								end := at
								end.count(Succeeded, a)
								end.count(Failed, b)
								end.count(Skipped, unmet-a-b)
								v := r.Verdict(end)
								hope = hope || v != Skip && v != Block
							}
						}
						if got := r.Hopeless(at); got == hope {
							t.Errorf("%s of %+v: hopeless %v, and it may run: %v", r, at, got, hope)
						}
						seen[hope]++
					}
				}
			}
		}
	}
	if seen[true] == 0 || seen[false] == 0 {
		t.Errorf("cases: %v", seen)
	}
}
