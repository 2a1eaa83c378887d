package dag

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/drover-dev/drover"
)

const keyedText = `pipeline: keyed
input: {type: object, properties: {customer: {type: string}, n: {type: integer}, part: {type: number}, vip: {type: boolean}}}
tasks:
  free: {run: x}
  each: {run: x, for_each: "${{ tasks.free.output }}", concurrency_key: EACH}
  it: {run: x, needs: [free], limits: {vendor: 1}, concurrency_key: KEY}
`

// TestConcurrencyKeysAreTold for what the job's input, tasks and elements say.
func TestConcurrencyKeysAreTold(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ key, want string }{
		{`input.customer`, "acme"},
		{`"c-" + input.customer + string(input.n)`, "c-acme7"},
		{`input.n`, "7"},
		{`input.vip`, "true"},
		{`input.vip ? "" : input.customer`, ""},
		{`tasks.free.output[0].region`, "eu"},
		{`tasks.free.output[0].count`, "3"},
		{`uint(input.n)`, "7"},
		{`tasks.free.outcome`, "succeeded"},
		{`tasks.free.output[0].share`, "!a concurrency key is a text, a whole number, or true or false; this is a double"},
		{`tasks.free.output[0]`, "!this is a map"},
		{`tasks.free.output[0].none`, `!has no member "none"; it has "region", "count", "share" and "long"`},
		{`tasks.free.output[0].long`, "!a concurrency key has at most 255 bytes of valid UTF-8 without control characters; this one has 300 bytes"},
		{`input.customer + "\n"`, "!without control characters"},
	} {
		q, _ := json.Marshal(tc.key)
		plan := compile(t, strings.NewReplacer("KEY", string(q), "EACH", `"item.region"`).Replace(keyedText))
		s := scope(plan, `{"customer": "acme", "n": 7, "vip": true}`, map[string]string{"free[0]": `[{"region": "eu", "count": 3, "share": 0.5, "long": "` + strings.Repeat("x", 300) + `"}]`})
		s.Outcome = func(Key) Outcome { return Succeeded }
		got, err := plan.ConcurrencyKey(2, s)
		switch {
		case strings.HasPrefix(tc.want, "!"):
			if err == nil || !strings.Contains(err.Error(), tc.want[1:]) || !strings.HasPrefix(err.Error(), "tasks.it.concurrency_key: ") || drover.CodeOf(err) != drover.CodeExpression {
				t.Errorf("%s: %q, %v, want %s", tc.key, got, err, tc.want)
			}
		case err != nil || got != tc.want:
			t.Errorf("%s: %q, %v, want %q", tc.key, got, err, tc.want)
		}
	}
	plan := compile(t, strings.NewReplacer("KEY", "input.n", "EACH", "item.region").Replace(keyedText))
	s := scope(plan, `{}`, nil)
	s.Item, s.Index = json.RawMessage(`{"region": "us"}`), 1
	if got, err := plan.ConcurrencyKey(1, s); got != "us" || err != nil {
		t.Errorf("of an element: %q, %v", got, err)
	}
	if plan.Keyed(Key{1, Unexpanded}) || !plan.Keyed(Key{1, 0}) || plan.Keyed(Key{0, 0}) || plan.Conditional(Key{2, 0}) {
		t.Error("a map has a key before it has elements, or a task that says nothing of one")
	}
}

// TestConcurrencyKeysAreCheckedWhenTheyAreRead, with their place.
func TestConcurrencyKeysAreCheckedWhenTheyAreRead(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ src, want string }{
		{`it: {run: x, concurrency_key: input.part}`, `tasks.it.concurrency_key: "input.part": a concurrency key is a text, a whole number, or true or false; this is double`},
		{`it: {run: x, concurrency_key: "[input.n]"}`, "this is list(int)"},
		{`it: {run: x, concurrency_key: input.custmer}`, `no property "custmer"; did you mean "customer"?`},
		{`it: {run: x, concurrency_key: item.id}`, `has no meaning here: task "it" has no for_each`},
		{`it: {run: x, concurrency_key: "input.n +"}`, "Syntax error"},
		{`it: {run: x, concurrency_key: ""}`, "the expression is empty; remove concurrency_key"},
		{`it: {run: x, concurrency_key: 7}`, "this must be text and is a number; put it in quotes"},
		{`it: {pipeline: other, concurrency_key: input.n}`, `task "it" runs a pipeline, whose own tasks have concurrency_key; remove it`},
		{`it: {run: x, fallback: spare}` + "\n  spare: {run: x, concurrency_key: input.n}", `task "spare" runs when it is called, as the fallback of "it"; remove concurrency_key`},
		{`it: {run: x, concurrency_key: "` + strings.Repeat("input.n + ", 500) + `1"}`, "the expression is 5001 bytes long; at most 4096"},
	} {
		_, got := complaints(t, "p.yaml", "pipeline: keyed\ninput: {type: object, properties: {customer: {type: string}, n: {type: integer}, part: {type: number}}}\ntasks:\n  "+tc.src+"\n")
		if len(got) != 1 || !strings.Contains(strings.Replace(got[0], "Syntax error: ", "", 1), strings.Replace(tc.want, "Syntax error", "", 1)) {
			t.Errorf("%s\ngot  %q\nwant %q", tc.src, got, tc.want)
		}
	}
}

// TestAnOutputThatAKeyUsesIsADependency as one that a condition uses.
func TestAnOutputThatAKeyUsesIsADependency(t *testing.T) {
	t.Parallel()
	plan := compile(t, "pipeline: p\ntasks:\n  a: {run: x}\n  b: {run: x, concurrency_key: tasks.a.output.customer}\n")
	if len(plan.Edges) != 1 || plan.Edges[0].Parent != 0 || len(plan.KeyRefs(1)) != 1 {
		t.Errorf("edges %+v, the key needs %+v", plan.Edges, plan.KeyRefs(1))
	}
}
