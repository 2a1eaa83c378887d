package dag

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/drover-dev/drover"
)

var definitions = []string{
	"pipeline: p\ntasks:\n  a: {run: k}\n",
	"pipeline: p\ninput: {type: object, required: [n], properties: {n: {type: integer, default: 3}, s: {type: string, pattern: '^a+$'}}}\ndefaults: {queue: cpu, timeout: 10m, retry: {max_attempts: 4, backoff: {initial: 1s, factor: 2, max: 1m, jitter: full}, on: {timeout: {max_attempts: 1}}}}\ntasks:\n  a: {run: exec, with: {command: [\"x-${{ input.n }}\"]}}\n  b: {needs: [a], for_each: \"${{ tasks.a.output.list }}\", run: k, with: {i: \"${{ item }} ${{ index }}\"}}\n  c: {for_each: b, run: k}\n  d: {needs: [c], run: k, class: urgent, artifact: {kind: x}}\non_failure: fail_fast\n",
	`{"pipeline":"p","tasks":[{"a":{"run":"k"}}]}`, `{"pipeline":"p","tasks":{"a":{"run":"k","needs":["b"]},"b":{"run":"k","needs":["a"]}}}`,
	"a: &a [x]\nb: *a\n", "pipeline: yes\ntasks: {no: {run: ~}}\n", "- 1\n", "---\n---\n", "pipeline: p\ntasks: {a: {run: k, with: 1e999, timeout: .5}}\n",
}

// FuzzDefinition reads anything as a pipeline. What is accepted is written down
// in one form, which is read as the same and gives the same plan.
func FuzzDefinition(f *testing.F) {
	for _, s := range definitions {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		start := time.Now()
		p, err := Parse("p.yaml", src)
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
		if err != nil {
			if e := new(drover.Error); !errors.As(err, &e) || e.Code == "" || e.Error() == "" {
				t.Fatalf("a refusal that says nothing: %v", err)
			}
			return
		}
		text := p.Canonical()
		if !json.Valid(text) {
			t.Fatalf("its canonical form is not JSON: %s", text)
		}
		again, err := Decode(text)
		if err != nil {
			t.Fatalf("its canonical form is refused: %v\n%s", err, text)
		}
		if third := again.Canonical(); !bytes.Equal(text, third) {
			t.Fatalf("%s\nbecame\n%s", text, third)
		}
		plan, err := p.Compile()
		if err != nil {
			t.Fatalf("it is accepted and does not compile: %v", err)
		}
		other, err := again.Compile()
		if err != nil || len(other.Nodes) != len(plan.Nodes) {
			t.Fatalf("its canonical form does not compile: %v", err)
		}
		for i := range plan.Nodes {
			if plan.Nodes[i].Name != other.Nodes[i].Name {
				t.Errorf("node %d is %q, then %q", i, plan.Nodes[i].Name, other.Nodes[i].Name)
			}
		}
	})
}

// FuzzExpression reads anything as a template and fills it in from anything.
func FuzzExpression(f *testing.F) {
	f.Add("${{ input.a[0].b }} and ${{ tasks.a.output }}", []byte(`{"a":[{"b":"x"}]}`))
	f.Add(`${{ input["a\"b"] }}${{ item }}${{ index }}`, []byte(`{"a\"b":1.10}`))
	f.Add("${{ input..a", []byte(`[`))
	f.Fuzz(func(t *testing.T, text string, doc []byte) {
		with, err := json.Marshal(text)
		if err != nil {
			return
		}
		src := []byte(`{"pipeline":"p","tasks":[{"a":{"run":"k"}},{"b":{"run":"k","needs":["a"],"for_each":"${{ tasks.a.output }}","with":{"x":` + string(with) + `}}}]}`)
		p, err := Parse("", src)
		if err != nil {
			return
		}
		plan, err := p.Compile()
		if err != nil {
			t.Fatal(err)
		}
		s := Scope{Input: doc, Item: doc, Index: 1, Output: func(Key) (json.RawMessage, bool) { return doc, true }, Len: func(int32) int { return 2 }}
		if out, err := plan.Render(1, s); err == nil && json.Valid(doc) && !json.Valid(out) {
			t.Errorf("%q over %s gives %s", text, doc, out)
		}
		items, err := plan.Elements(1, s)
		for _, item := range items {
			if json.Valid(doc) && !json.Valid(item) {
				t.Errorf("an element of %s is %s, %v", doc, item, err)
			}
		}
	})
}

// FuzzInput checks anything against any schema.
func FuzzInput(f *testing.F) {
	f.Add([]byte(`{"type":"object","properties":{"n":{"type":"integer","minimum":1,"default":3}},"required":["n"]}`), []byte(`{"n":1e400}`))
	f.Add([]byte(`{"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"}]}}}`), []byte(`1`))
	f.Add([]byte(`{"pattern":"(a+)+$","multipleOf":0.01}`), []byte(`"aaaaaaaaaaaaaaaaaaaaaaaa!"`))
	f.Fuzz(func(t *testing.T, schema, input []byte) {
		if !json.Valid(schema) || len(schema)+len(input) > 64<<10 {
			return
		}
		start := time.Now()
		p, err := Parse("", append(append([]byte(`{"pipeline":"p","tasks":[{"a":{"run":"k"}}],"input":`), schema...), '}'))
		if err != nil {
			return
		}
		plan, err := p.Compile()
		if err != nil {
			t.Fatal(err)
		}
		err = plan.CheckInput(input)
		if e := new(drover.Error); err != nil && !errors.As(err, &e) {
			t.Errorf("%s against %s: %v", input, schema, err)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("%s against %s took %v", input, schema, took)
		}
	})
}
