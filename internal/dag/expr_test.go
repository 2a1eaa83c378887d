package dag

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drover-dev/drover"
)

// scope answers from a map of "name[index]" to output.
func scope(plan *Plan, input string, outputs map[string]string) Scope {
	count := map[int32]int{}
	byKey := map[Key]string{}
	for i, n := range plan.Nodes {
		for e := range 10 {
			if out, ok := outputs[fmt.Sprintf("%s[%d]", n.Name, e)]; ok {
				byKey[Key{int32(i), int32(e)}] = out
				count[int32(i)]++
			}
		}
	}
	return Scope{
		Input:  json.RawMessage(input),
		Output: func(k Key) (json.RawMessage, bool) { out, ok := byKey[k]; return json.RawMessage(out), ok },
		Len:    func(n int32) int { return count[n] },
	}
}

func TestRenderFillsInExpressions(t *testing.T) {
	t.Parallel()
	const src = `pipeline: p
tasks:
  plain: {run: x}
  list: {run: x, for_each: [a, b]}
  chain: {run: x, for_each: list}
  sub: {run: x, for_each: chain, with: %s}
  flat: {run: x, with: %s}
`
	in := `{"a": {"b": [10, {"c d": "x\"y\u0000é"}]}, "n": 9007199254740993, "big": 1e400, "s": "it's \\ \"q\"", "nul": null, "e": "", "dup": 1, "dup": 2}`
	outputs := map[string]string{
		"plain[0]": ` {"x" : [1 , 2] , "y": {"z": true}} `,
		"list[0]":  `{"k": "l0"}`, "list[1]": `{"k": "l1"}`,
		"chain[0]": `["c0"]`, "chain[1]": `["c1"]`,
	}
	for _, tc := range []struct{ task, with, want string }{
		{"flat", `1.50`, `1.50`},
		{"flat", `{b: 1, a: [null, true, "t"]}`, `{"a":[null,true,"t"],"b":1}`},
		{"flat", `"${{ input.n }}"`, `9007199254740993`},
		{"flat", `"${{input.big}}"`, `1e400`},
		{"flat", `"n=${{ input.n }}!"`, `"n=9007199254740993!"`},
		{"flat", `" ${{ input.n }}"`, `" 9007199254740993"`},
		{"flat", `"${{ input.a.b[0] }}${{ input.a.b[0] }}"`, `"1010"`},
		{"flat", `'${{ input.a.b[1]["c d"] }}'`, `"x\"y\u0000é"`},
		{"flat", `'<${{ input.a.b[1]["c d"] }}>'`, `"<x\"y\u0000é>"`},
		{"flat", `'<${{ input.s }}>'`, `"<it's \\ \"q\">"`},
		{"flat", `'<${{ input.e }}>'`, `"<>"`},
		{"flat", `'<${{ input.nul }}>'`, `"<null>"`},
		{"flat", `"${{ input.nul }}"`, `null`},
		{"flat", `"${{ input.dup }}"`, `2`},
		{"flat", `"as text: ${{ tasks.plain.output.y }}"`, `"as text: {\"z\": true}"`},
		{"flat", `"${{ tasks.plain.output }}"`, `{"x" : [1 , 2] , "y": {"z": true}}`},
		{"flat", `"${{ tasks.plain.output.x[1] }}"`, `2`},
		{"flat", `"$${{ input.n }}"`, `"${{ input.n }}"`},
		{"flat", `"$$${{ input.n }} costs $5 {{ x }}"`, `"$${{ input.n }} costs $5 {{ x }}"`},
		{"flat", `"$${{ a }} ${{ input.n }}"`, `"${{ a }} 9007199254740993"`},
		{"flat", `"${{ tasks.list.output }}"`, `[{"k": "l0"},{"k": "l1"}]`},
		{"flat", `"${{ tasks.chain.output[1][0] }}"`, `"c1"`},
		{"flat", `{deep: [{er: "${{ tasks.list.output[0].k }}"}]}`, `{"deep":[{"er":"l0"}]}`},
		{"sub", `"${{ item }}"`, `["c1"]`},
		{"sub", `"${{ item[0] }}-${{ index }}"`, `"c1-1"`},
		{"sub", `"${{ index }}"`, `1`},
		{"sub", `"${{ tasks.list.output.k }}"`, `"l1"`},
		{"sub", `"${{ tasks.chain.output }}"`, `["c1"]`},
		{"sub", `"${{ tasks.plain.output.x }}"`, `[1 , 2]`},
	} {
		flat, sub := "1", "1"
		if tc.task == "flat" {
			flat = tc.with
		} else {
			sub = tc.with
		}
		plan := compile(t, fmt.Sprintf(src, sub, flat))
		s := scope(plan, in, outputs)
		node := slices.IndexFunc(plan.Nodes, func(n Node) bool { return n.Name == tc.task })
		s.Index = 1
		got, err := plan.Render(int32(node), s)
		if err != nil || string(got) != tc.want {
			t.Errorf("%s: with %s\ngot  %s, %v\nwant %s", tc.task, tc.with, got, err, tc.want)
		}
		if !json.Valid(got) {
			t.Errorf("with %s gives %s, which is no JSON", tc.with, got)
		}
	}
}

func TestRenderWithoutWith(t *testing.T) {
	t.Parallel()
	plan := compile(t, `pipeline: p
input: {properties: {b: {default: [1.0]}, a: {default: x}}}
tasks:
  plain: {run: x}
  list: {run: x, for_each: ["${{ input.a }}", 2]}
  chain: {run: x, for_each: list}
`)
	s := scope(plan, ` {"b":3}  `, map[string]string{"list[0]": `"out"`})
	s.Item = json.RawMessage(` {"i": 1} `)
	for node, want := range []string{`{"b":3,"a":"x"}`, `{"i": 1}`, `{"i": 1}`} {
		if got, err := plan.Render(int32(node), s); err != nil || string(got) != want {
			t.Errorf("%s: got %s, %v; want %s", plan.Nodes[node].Name, got, err, want)
		}
	}
	s.Item = nil // a chain finds its item itself
	if got, err := plan.Render(2, s); err != nil || string(got) != `"out"` {
		t.Errorf("chain: got %s, %v", got, err)
	}
	items, err := plan.Elements(1, s)
	if err != nil || len(items) != 2 || string(items[0]) != `"x"` || string(items[1]) != `2` {
		t.Errorf("elements = %s, %v", items, err)
	}
	for in, want := range map[string]string{
		``:                  `{"a":"x","b":[1.0]}`,
		`{}`:                `{"a":"x","b":[1.0]}`,
		`{"a":1,"b":2}`:     `{"a":1,"b":2}`,
		`{ "\u0061": 1 }`:   `{ "\u0061": 1,"b":[1.0]}`,
		`{ "c" : 1, "b":0}`: `{ "c" : 1, "b":0,"a":"x"}`,
		`[1]`:               `[1]`,
		`null`:              `null`,
	} {
		s.Input = json.RawMessage(in)
		before := string(s.Input)
		if got, err := plan.Render(0, s); err != nil || string(got) != want {
			t.Errorf("input %s: got %s, %v; want %s", in, got, err, want)
		}
		if string(s.Input) != before {
			t.Errorf("the input was changed to %s", s.Input)
		}
	}
}

func TestRefsNameWhatIsNeeded(t *testing.T) {
	t.Parallel()
	plan := compile(t, `pipeline: p
tasks:
  a: {run: x}
  m: {run: x, for_each: "${{ tasks.a.output.list }}"}
  n: {run: x, for_each: m, with: ["${{ tasks.m.output }}", "${{ tasks.a.output }}", "${{ tasks.a.output.b }}", "${{ index }}"]}
  o: {run: x, for_each: n}
  q: {run: x, for_each: o, with: "${{ index }}"}
  r: {run: x, for_each: ["${{ tasks.m.output[0] }}", "${{ tasks.a.output }}"], with: ["${{ item }}", "${{ tasks.n.output }}"]}
  s: {run: x, needs: [r]}
  u: {run: x, for_each: m, needs: [n], with: "${{ tasks.n.output }}"}
`)
	for node, want := range []struct{ input, each string }{
		{"[]", "[]"},
		{"[]", "[{0 false}]"},
		{"[{0 false} {1 true}]", "[]"},
		{"[{2 true}]", "[]"},
		{"[]", "[]"},
		{"[{2 false}]", "[{0 false} {1 false}]"},
		{"[]", "[]"},
		{"[{2 true}]", "[]"}, // m and n are of one family
	} {
		if got := fmt.Sprint(plan.InputRefs(int32(node))); got != want.input {
			t.Errorf("%s: input needs %s, want %s", plan.Nodes[node].Name, got, want.input)
		}
		if got := fmt.Sprint(plan.ForEachRefs(int32(node))); got != want.each {
			t.Errorf("%s: for_each needs %s, want %s", plan.Nodes[node].Name, got, want.each)
		}
	}
}

func TestRunTimeComplaintsNameTheExpression(t *testing.T) {
	t.Parallel()
	const src = `pipeline: p
tasks:
  a: {run: x}
  m: {run: x, for_each: %[1]s}
  f: {run: x, with: %[1]s}
  g: {run: x, for_each: [1], with: ["${{ item }}"]}
`
	outputs := map[string]string{"a[0]": `{"list": [1, 2], "text": "t", "none": null, "num": 1, "flag": true, "obj": {}}`}
	for _, tc := range []struct{ expr, render, elements string }{
		{"tasks.a.output.lst", `${{ tasks.a.output.lst }}: tasks.a.output has no member "lst"; it has "list", "text", "none", "num", "flag" and "obj"`, ``},
		{"tasks.a.output.list.x", `${{ tasks.a.output.list.x }}: tasks.a.output.list is a list and has no member "x"`, ``},
		{"tasks.a.output.list[2]", `${{ tasks.a.output.list[2] }}: tasks.a.output.list has 2 elements and none with index 2`, ``},
		{"tasks.a.output[0]", `${{ tasks.a.output[0] }}: tasks.a.output is an object and has no element 0`, ``},
		{"tasks.a.output.none.x", `${{ tasks.a.output.none.x }}: tasks.a.output.none is null and has no member "x"`, ``},
		{"tasks.a.output.obj.x", `${{ tasks.a.output.obj.x }}: tasks.a.output.obj has no member "x"; it has none`, ``},
		{"input.x", `${{ input.x }}: input has no member "x"; it has none`, ``},
		{"tasks.a.output.text", ``, `for_each of task "m" needs a list; ${{ tasks.a.output.text }} is a text`},
		{"tasks.a.output.none", ``, `for_each of task "m" needs a list; ${{ tasks.a.output.none }} is null`},
		{"tasks.a.output.num", ``, `for_each of task "m" needs a list; ${{ tasks.a.output.num }} is a number`},
		{"tasks.a.output.flag", ``, `for_each of task "m" needs a list; ${{ tasks.a.output.flag }} is true or false`},
		{"tasks.a.output.obj", ``, `for_each of task "m" needs a list; ${{ tasks.a.output.obj }} is an object`},
	} {
		plan := compile(t, fmt.Sprintf(src, "'${{ "+tc.expr+" }}'"))
		s := scope(plan, "", outputs)
		if tc.render != "" {
			_, err := plan.Render(2, s)
			if err == nil || err.Error() != tc.render || drover.CodeOf(err) != drover.CodeExpression {
				t.Errorf("render: got %v (%s)\nwant %s", err, drover.CodeOf(err), tc.render)
			}
			tc.elements = tc.render
		}
		if _, err := plan.Elements(1, s); err == nil || err.Error() != tc.elements {
			t.Errorf("elements: got %v\nwant %s", err, tc.elements)
		}
	}
	plan := compile(t, `pipeline: p
tasks:
  m: {run: x, for_each: [1]}
  c: {run: x, for_each: m}
  f: {run: x, with: "${{ tasks.m.output[1] }}"}
  g: {run: x, with: "${{ tasks.m.output }}"}
`)
	s := scope(plan, "", map[string]string{"m[0]": "1"})
	if _, err := plan.Render(2, s); err == nil || err.Error() != `${{ tasks.m.output[1] }}: task "m" has 1 elements` {
		t.Errorf("element beyond the end: %v", err)
	}
	s.Index = 5
	if _, err := plan.Render(1, s); err == nil || err.Error() != `element 5 of task "m" has no output` {
		t.Errorf("no output: %v", err)
	}
	s.Len = func(int32) int { return 2 }
	if v, err := plan.Render(3, s); err != nil || string(v) != "[1]" {
		t.Errorf("the list of a map one of whose elements has no output: %s, %v", v, err)
	}
}

func TestRenderedInputIsBounded(t *testing.T) {
	t.Parallel()
	plan := compile(t, head+"  a: {run: x}\n  b: {run: x, with: '"+strings.Repeat("${{ tasks.a.output }}", 1000)+"'}\n  m: {run: x, for_each: [1]}\n  c: {run: x, with: '${{ tasks.m.output }}'}\n")
	big := json.RawMessage(`"` + strings.Repeat("x", 256<<10) + `"`)
	s := Scope{Output: func(Key) (json.RawMessage, bool) { return big, true }, Len: func(int32) int { return 1000 }}
	for node, want := range map[int32]string{1: `the input of task "b" is longer than 16 MiB`, 3: `the outputs of task "m" are together longer than 16 MiB`} {
		if _, err := plan.Render(node, s); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestLongListsAreLinear(t *testing.T) {
	t.Parallel()
	plan := compile(t, head+"  a: {run: x}\n  m: {run: x, for_each: '${{ tasks.a.output.l }}'}\n  j: {run: x, with: {all: '${{ tasks.m.output }}'}}\n")
	const n = 100_000
	var b bytes.Buffer
	b.WriteString(`{"l": [`)
	for i := range n {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, `{"i": %d}`, i)
	}
	b.WriteString("]}")
	item := json.RawMessage(`{"frames": ["a", "b"]}`)
	s := Scope{
		Output: func(k Key) (json.RawMessage, bool) {
			if k.Node == 0 {
				return b.Bytes(), true
			}
			return item, true
		},
		Len: func(int32) int { return n },
	}
	start := time.Now()
	items, err := plan.Elements(1, s)
	if err != nil || len(items) != n || string(items[n-1]) != fmt.Sprintf(`{"i": %d}`, n-1) {
		t.Fatalf("%d elements, %v", len(items), err)
	}
	out, err := plan.Render(2, s)
	if err != nil || !json.Valid(out) {
		t.Fatalf("render: %v", err)
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("took %s", d)
	}
}

// jsonValue draws any JSON, with white space in it.
func jsonValue(depth int) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		space := func() string { return rapid.SampledFrom([]string{"", "", " ", "\n\t"}).Draw(t, "space") }
		top := 6
		if depth == 0 {
			top = 4
		}
		switch rapid.IntRange(0, top).Draw(t, "kind") {
		case 0:
			return rapid.SampledFrom([]string{"null", "true", "false"}).Draw(t, "word")
		case 1:
			return rapid.SampledFrom([]string{"0", "-1.50", "1e400", "9007199254740993", "2E-7"}).Draw(t, "number")
		case 2, 3, 4:
			b, _ := json.Marshal(rapid.String().Draw(t, "text"))
			return string(b)
		case 5:
			var parts []string
			for range rapid.IntRange(0, 4).Draw(t, "len") {
				parts = append(parts, space()+jsonValue(depth-1).Draw(t, "element")+space())
			}
			return "[" + strings.Join(parts, ",") + space() + "]"
		default:
			var parts []string
			for range rapid.IntRange(0, 4).Draw(t, "len") {
				k, _ := json.Marshal(rapid.SampledFrom([]string{"a", "b", "c d", "\"", "é", ""}).Draw(t, "name"))
				parts = append(parts, space()+string(k)+space()+":"+space()+jsonValue(depth-1).Draw(t, "member")+space())
			}
			return "{" + strings.Join(parts, ",") + space() + "}"
		}
	})
}

// The steps through raw JSON find what encoding/json finds.
func TestRawStepsAgreeWithEncodingJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		src := json.RawMessage(jsonValue(3).Draw(t, "json"))
		var want []json.RawMessage
		if json.Unmarshal(src, &want) == nil && kindOf(src) == list {
			n := 0
			for e := range elements(src) {
				if string(e) != string(want[n]) {
					t.Fatalf("element %d is %q, want %q", n, e, want[n])
				}
				n++
			}
			if n != len(want) {
				t.Fatalf("%d elements, want %d", n, len(want))
			}
		}
		var obj map[string]json.RawMessage
		if json.Unmarshal(src, &obj) == nil && obj != nil {
			for name, want := range obj {
				if got, ok := member(src, name); !ok || string(got) != string(want) {
					t.Fatalf("member %q is %q, want %q", name, got, want)
				}
			}
			if _, ok := member(src, "nosuch"); ok {
				t.Fatal("found a member that is not there")
			}
		}
		if end := skipValue(src, 0); end != len(src) {
			t.Fatalf("the value ends at %d, want %d: %s", end, len(src), src)
		}
	})
}

// Whatever the text around expressions and the values in them, the result is
// JSON, and reads as the same text put together by hand.
func TestInterpolationKeepsText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		before := strings.ToValidUTF8(rapid.String().Draw(t, "before"), "")
		after := strings.ToValidUTF8(rapid.String().Draw(t, "after"), "")
		before, after = strings.NewReplacer("\x00", "", "${{", "").Replace(before), strings.NewReplacer("\x00", "", "${{", "").Replace(after)
		if strings.HasSuffix(before, "$") {
			before += "."
		}
		val := jsonValue(2).Draw(t, "value")
		with, _ := json.Marshal(before + "${{ input.v }}" + after)
		p, err := Parse("x.json", fmt.Appendf(nil, `{"pipeline":"p","tasks":{"a":{"run":"x","with":%s}}}`, with))
		if err != nil {
			t.Fatal(err)
		}
		plan, err := p.Compile()
		if err != nil {
			t.Fatal(err)
		}
		out, err := plan.Render(0, Scope{Input: json.RawMessage(`{"v":` + val + `}`)})
		if err != nil {
			t.Fatal(err)
		}
		if before == "" && after == "" {
			if string(out) != val {
				t.Fatalf("got %s, want %s", out, val)
			}
			return
		}
		var got, text string
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		if json.Unmarshal([]byte(val), &text) != nil || kindOf(json.RawMessage(val)) == null {
			text = val
		}
		if got != before+text+after {
			t.Fatalf("got %q, want %q", got, before+text+after)
		}
	})
}

func FuzzRaw(f *testing.F) {
	for _, s := range []string{`{"a":[1,{"b":"c"}]}`, `[`, `{"`, `{"a"`, `{"a":`, `"\`, `]`, `[,]`, `{"a":}`, `[1 2]`, `""x`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		for range elements(b) {
			n++
		}
		for name := range membersOf(b) {
			unquote(name)
			n++
		}
		if n > len(b) {
			t.Fatalf("%d parts in %d bytes", n, len(b))
		}
		member(b, "a")
		plan := &Plan{
			Nodes:  []Node{{Name: "a", Over: -1, root: -1}},
			schema: &schema{defaults: []property{{"a", json.RawMessage("[1]")}}},
		}
		plan.schema.withDefaults(b)
		e := &expr{root: rootInput, steps: []step{{name: "a", isName: true}, {index: 1}}}
		_, _ = plan.fill(0, template{{e: e, inText: true}}, Scope{Input: b})
	})
}
