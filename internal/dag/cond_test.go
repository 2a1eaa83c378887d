package dag

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/drover-dev/drover"
)

const judged = `pipeline: judged
input: {type: object, properties: {limit: {type: number}, name: {type: string}, tags: {type: array}, n: {type: integer}}}
tasks:
  quality:
    run: x
    output: {type: object, required: [passed], properties: {passed: {type: boolean}, score: {type: number}, notes: {type: array}}}
  free: {run: x}
  each: {run: x, for_each: "${{ tasks.free.output }}"}
  infer-small: {run: x}
  it:
    run: x
    needs: [each]
    if: IF
`

// TestConditionsAreTold for what tasks and the job's input say.
func TestConditionsAreTold(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ cond, want string }{
		{`tasks.quality.output.passed`, "true"},
		{`!tasks.quality.output.passed || input.n > 3`, "true"},
		{`tasks.quality.output.score >= 0.5 && input.limit > 2`, "true"},
		{`tasks.quality.output.score > input.limit`, "false"},
		{`input.name.startsWith("a") && input.name == 'abc'`, "true"},
		{`"x" in input.tags`, "true"},
		{`input.tags.exists(t, t == "y")`, "false"},
		{`tasks.free.output[1] == 2 && size(tasks.free.output) == 3`, "true"},
		{`tasks["infer-small"].output.list[0].ok`, "true"},
		{`has(tasks.free.output[2].name) ? false : true`, "true"},
		{`has(tasks.quality.output.notes)`, "false"},
		{`tasks.each.output.size() == 2 && tasks.each.output[1] == "b"`, "true"},
		{`tasks.quality.outcome == "succeeded" && tasks.free.outcome != "failed"`, "true"},
		{`{"a": 1}.a == 1 && [1, 2, 3].filter(x, x > 1).size() == 2`, "true"},
		{`tasks.free.output[2].name == "q"`, "!has no member"},
		{`tasks["infer-small"].output.list[0].ok + 1 == 2`, "!no such overload"},
		{`tasks["infer-small"].output`, "!it is no true or false, but a map"},
		{`[1,2,3,4,5,6,7,8,9,10].all(a, tasks.free.output.map(b, b).size() == 3 && [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, [1,2,3,4,5,6,7,8,9,10].all(f, a+c+d+e+f > 0)))))`, "!it takes more than 100000 steps"},
	} {
		q, _ := json.Marshal(tc.cond)
		p, err := Parse("", []byte(strings.Replace(judged, "IF", string(q), 1)))
		if err != nil {
			if !strings.HasPrefix(tc.want, "!it takes") || !strings.Contains(err.Error(), "1 problem") {
				t.Errorf("%s: %v", tc.cond, err)
			}
			continue
		}
		plan, err := p.Compile()
		if err != nil {
			t.Fatal(err)
		}
		s := scope(plan, `{"limit": 3, "name": "abc", "tags": ["x"], "n": 4}`, map[string]string{"quality[0]": `{"passed": true, "score": 1}`, "free[0]": `[1, 2, {}]`,
			"each[0]": `"a"`, "each[1]": `"b"`, "infer-small[0]": `{"list": [{"ok": true}]}`})
		s.Outcome = func(Key) Outcome { return Succeeded }
		got, err := plan.If(4, s)
		switch {
		case strings.HasPrefix(tc.want, "!"):
			if err == nil || !strings.Contains(err.Error(), tc.want[1:]) || !strings.HasPrefix(err.Error(), "tasks.it.if: ") || drover.CodeOf(err) != drover.CodeExpression {
				t.Errorf("%s: %v, %v, want %s", tc.cond, got, err, tc.want)
			}
		case err != nil || got != (tc.want == "true"):
			t.Errorf("%s: %v, %v, want %s", tc.cond, got, err, tc.want)
		}
	}
}

// TestConditionsAreCheckedWhenTheyAreRead, with their place.
func TestConditionsAreCheckedWhenTheyAreRead(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ cond, want string }{
		{`tasks.quality.output.pased`, `the schema of tasks.quality.output has no property "pased"; did you mean "passed"?`},
		{`tasks.quality.output.passed == "yes"`, `found no matching overload for '_==_' applied to '(bool, string)'`},
		{`tasks.quality.output.score.startsWith("a")`, `found no matching overload for 'startsWith'`},
		{`tasks.quality.output.score`, `a condition is true or false; this is double`},
		{`input.name && true`, `expected type 'bool' but found 'string'`},
		{`input.nam == ""`, `the schema of input has no property "nam"; did you mean "name"?`},
		{`tasks.nobody.output`, `there is no task "nobody"`},
		{`tasks.it.output`, `task "it" waits for itself`},
		{`tasks.free`, `after tasks comes a task's name, and then output or outcome`},
		{`tasks[input.name].output`, `after tasks comes a task's name, and then output or outcome`},
		{`tasks.each.outcome == "failed"`, `task "each" is a map; its elements have outcomes, it has none`},
		{`tasks.free.outcome.x`, `an outcome is a text`},
		{`item > 3`, `has no meaning here: task "it" has no for_each`},
		{`index == 3`, `has no meaning here: task "it" has no for_each`},
		{`input.n >`, `mismatched input '<EOF>'`},
		{`nothing == 1`, `undeclared reference to 'nothing'`},
		{`input.tags.exists(item, item == 1)`, `item has a meaning of its own here`},
		{`input.tags.exists(tasks, true)`, `tasks has a meaning of its own here`},
		{strings.Repeat("1 == 1 && ", 1000) + "true", `the condition is 10004 bytes long; at most 4096`},
	} {
		q, _ := json.Marshal(tc.cond)
		_, got := complaints(t, "p.yaml", strings.Replace(judged, "IF", string(q), 1))
		if len(got) != 1 || !strings.Contains(got[0], tc.want) || !strings.HasPrefix(got[0], "13:9 tasks.it.if: ") {
			t.Errorf("%s: %q\nwant %s", clip(tc.cond, 100), got, tc.want)
		}
	}
	if _, got := complaints(t, "p.yaml", "pipeline: p\ntasks:\n  a: {run: x, if: true}\n"); len(got) != 1 || !strings.Contains(got[0], "3:19 tasks.a.if: this must be text and is true or false; put it in quotes") {
		t.Errorf("%q", got)
	}
	// The loser of an expression is an edge like any other: it makes rings.
	if code, got := complaints(t, "p.yaml", "pipeline: p\ntasks:\n  a: {run: x, if: 'tasks.b.output'}\n  b: {run: x, needs: [a]}\n"); code != drover.CodeCycle {
		t.Errorf("%s %q", code, got)
	}
	// And an output that may not be there needs something that stands in.
	if _, got := complaints(t, "p.yaml", "pipeline: p\ntasks:\n  a: {run: x}\n  b: {run: x, when: all_done, if: 'tasks.a.output'}\n"); len(got) != 1 || !strings.Contains(got[0], "give \"a\" a default") {
		t.Errorf("%q", got)
	}
}

// TestConditionsOfMaps are about the map, or about each element if they speak of it.
func TestConditionsOfMaps(t *testing.T) {
	t.Parallel()
	plan := compile(t, `pipeline: p
tasks:
  whole: {run: x, for_each: [1, 2], if: "input.go"}
  each: {run: x, for_each: [1, 2], if: "item > 1"}
  next: {run: x, for_each: each, if: "input.go"}
  same: {run: x, for_each: next, if: "tasks.next.output == 3 && index == 1"}
`)
	for _, tc := range []struct {
		k    Key
		want bool
	}{{Key{0, Unexpanded}, true}, {Key{0, 1}, false}, {Key{1, Unexpanded}, false}, {Key{1, 0}, true}, {Key{2, Unexpanded}, false}, {Key{2, 0}, true}, {Key{3, 5}, true}} {
		if got := plan.Conditional(tc.k); got != tc.want {
			t.Errorf("%v is conditional: %v", tc.k, got)
		}
	}
	s := scope(plan, `{"go": true}`, map[string]string{"next[1]": "3"})
	s.Index, s.Item = 1, nil
	if ok, err := plan.If(3, s); err != nil || !ok {
		t.Errorf("element: %v, %v", ok, err)
	}
	s.Item = json.RawMessage("1")
	if ok, err := plan.If(1, s); err != nil || ok {
		t.Errorf("item 1: %v, %v", ok, err)
	}
}
