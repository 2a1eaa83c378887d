package dag

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/drover-dev/drover"
)

// RenderCap is the longest input Render makes, in bytes.
const RenderCap = 16 << 20

// root is what an expression begins with.
type root uint8

const (
	rootInput root = iota
	rootOutput
	rootItem
	rootIndex
)

// expr is one ${{ }}: a root and the steps into it.
type expr struct {
	root  root
	task  string // of rootOutput
	node  int32  // of rootOutput, once resolved
	steps []step
}

// step is a member's name or, when that is empty, an element's index.
type step struct {
	name   string
	index  int
	isName bool
}

// String writes the expression as it is best written.
func (e *expr) String() string { return e.upTo(len(e.steps)) }

// upTo writes the expression with only its first n steps.
func (e *expr) upTo(n int) string {
	var b strings.Builder
	switch e.root {
	case rootInput:
		b.WriteString("input")
	case rootOutput:
		b.WriteString("tasks." + e.task + ".output")
	case rootItem:
		b.WriteString("item")
	case rootIndex:
		b.WriteString("index")
	}
	for _, s := range e.steps[:n] {
		if s.isName {
			b.WriteString(Step(s.name))
		} else {
			fmt.Fprintf(&b, "[%d]", s.index)
		}
	}
	return b.String()
}

// Step writes the step of an expression into a member: .name, or ["the name"]
// where the name has other characters than letters, digits, _ and -.
func Step(name string) string {
	if plainName(name) {
		return "." + name
	}
	return "[" + string(appendString(nil, name)) + "]"
}

// parseExpr reads what stands between ${{ and }}.
func parseExpr(src string) (*expr, string) {
	s := scanner{src: src}
	s.space()
	first := s.name()
	e := &expr{}
	switch first {
	case "input":
		e.root = rootInput
	case "item":
		e.root = rootItem
	case "index":
		e.root = rootIndex
	case "tasks":
		e.root = rootOutput
		if !s.take('.') {
			return nil, "after tasks comes a dot and the task's name, as in tasks.decode.output"
		}
		if e.task = s.name(); e.task == "" {
			return nil, "after tasks. comes the task's name, as in tasks.decode.output"
		}
		if !s.take('.') || s.name() != "output" {
			return nil, fmt.Sprintf("of a task only the output can be used; write tasks.%s.output", e.task)
		}
	case "":
		if s.end() {
			return nil, "the expression is empty; write for example ${{ input.name }}"
		}
		return nil, fmt.Sprintf("%q does not begin an expression; begin with input, item, index or tasks.NAME.output", clip(src[s.i:], 20))
	default:
		return nil, fmt.Sprintf("there is nothing called %q; an expression begins with input, item, index or tasks.NAME.output", clip(first, 40))
	}
	for {
		switch {
		case s.take('.'):
			n := s.name()
			if n == "" {
				return nil, fmt.Sprintf("after %s. comes a name; a name with other characters than letters, digits, _ and - is written [\"like this\"]", e)
			}
			e.steps = append(e.steps, step{name: n, isName: true})
		case s.take('['):
			st, ok := s.index()
			if !ok {
				return nil, fmt.Sprintf("after %s[ comes an index from 0 to 999999999 or a name in double quotes, and then ]", e)
			}
			e.steps = append(e.steps, st)
		default:
			s.space()
			if !s.end() {
				return nil, fmt.Sprintf("%q cannot follow %s; an expression only goes into a value, with .name and [0]", clip(src[s.i:], 20), e)
			}
			if e.root == rootIndex && len(e.steps) > 0 {
				return nil, "index is a number; nothing can follow it"
			}
			return e, ""
		}
	}
}

type scanner struct {
	src string
	i   int
}

func (s *scanner) end() bool { return s.i >= len(s.src) }

func (s *scanner) space() {
	for !s.end() && strings.IndexByte(" \t\r\n", s.src[s.i]) >= 0 {
		s.i++
	}
}

func (s *scanner) take(c byte) bool {
	if s.end() || s.src[s.i] != c {
		return false
	}
	s.i++
	return true
}

func (s *scanner) name() string {
	from := s.i
	for !s.end() && nameByte(s.src[s.i], s.i == from) {
		s.i++
	}
	return s.src[from:s.i]
}

// index reads 12] or "a name"] after a bracket.
func (s *scanner) index() (step, bool) {
	from := s.i
	if s.take('"') {
		s.i = skipString(s.src, from)
		n := ""
		if json.Unmarshal([]byte(s.src[from:s.i]), &n) != nil {
			return step{}, false
		}
		return step{name: n, isName: true}, s.take(']')
	}
	for !s.end() && '0' <= s.src[s.i] && s.src[s.i] <= '9' {
		s.i++
	}
	digits := s.src[from:s.i]
	if digits == "" || len(digits) > 9 {
		return step{}, false
	}
	n, err := strconv.Atoi(digits)
	return step{index: n}, err == nil && s.take(']')
}

// template is JSON with expressions in it: pieces written one after the other.
type template []piece

// piece is either literal bytes or an expression.
type piece struct {
	lit []byte
	e   *expr
	// inText says that e stands within a JSON string.
	inText bool
}

func (t *template) literal(b ...byte) {
	if n := len(*t); n > 0 && (*t)[n-1].e == nil {
		(*t)[n-1].lit = append((*t)[n-1].lit, b...)
		return
	}
	*t = append(*t, piece{lit: append([]byte(nil), b...)})
}

// compileTemplate turns v into a template. It calls use for every expression.
func compileTemplate(v *value, at *path, ps *problems, use func(e *expr, v *value, at *path)) template {
	t := template{} // not nil: an empty template is one too
	var walk func(v *value, at *path)
	walk = func(v *value, at *path) {
		switch v.kind {
		case list:
			t.literal('[')
			for i, e := range v.items {
				if i > 0 {
					t.literal(',')
				}
				walk(e, at.at(i))
			}
			t.literal(']')
		case object:
			t.literal('{')
			for n, i := range v.sorted() {
				k := v.keys[i]
				if strings.Contains(k.name, "${{") {
					ps.add(k.line, k.col, at.member(k.name), "a key cannot hold an expression; only values can")
				}
				if n > 0 {
					t.literal(',')
				}
				t.literal(append(appendString(nil, k.name), ':')...)
				walk(v.items[i], at.member(k.name))
			}
			t.literal('}')
		case text:
			t.text(v, at, ps, use)
		default:
			t.literal(v.appendJSON(nil)...)
		}
	}
	walk(v, at)
	return t
}

// text adds a string with the expressions in it.
func (t *template) text(v *value, at *path, ps *problems, use func(e *expr, v *value, at *path)) {
	s := v.text
	if !strings.Contains(s, "${{") {
		t.literal(appendString(nil, s)...)
		return
	}
	var parts template
	whole := false
	for s != "" {
		i := strings.Index(s, "${{")
		if i < 0 {
			break
		}
		if i > 0 && s[i-1] == '$' { // $${{ is a literal ${{
			parts.literal(appendEscaped(nil, s[:i-1]+"${{")...)
			s = s[i+3:]
			continue
		}
		end := exprEnd(s[i+3:])
		if end < 0 {
			ps.at(v, at, "the expression %q is not closed; write }} after it, or $${{ for the characters themselves", clip(s[i:], 40))
			return
		}
		inner, rest := s[i+3:i+3+end], s[i+3+end+2:]
		e, complaint := parseExpr(inner)
		if complaint != "" {
			ps.at(v, at, "${{%s}}: %s", clip(inner, 80), complaint)
		} else {
			use(e, v, at)
			if i > 0 {
				parts.literal(appendEscaped(nil, s[:i])...)
			}
			whole = len(parts) == 0 && rest == ""
			parts = append(parts, piece{e: e, inText: !whole})
		}
		s = rest
	}
	if whole {
		*t = append(*t, parts[0])
		return
	}
	t.literal('"')
	for _, p := range parts {
		if p.e == nil {
			t.literal(p.lit...)
		} else {
			*t = append(*t, p)
		}
	}
	t.literal(appendEscaped(nil, s)...)
	t.literal('"')
}

// exprEnd returns the offset of the }} that ends an expression, or -1. Braces
// in a quoted name do not count.
func exprEnd(s string) int {
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '"':
			i = skipString(s, i) - 1
		case strings.HasPrefix(s[i:], "}}"):
			return i
		}
	}
	return -1
}

// fill writes t with every expression replaced by its value.
func (p *Plan) fill(node int32, t template, s Scope) (json.RawMessage, error) {
	var b []byte
	for _, pc := range t {
		if pc.e == nil {
			b = append(b, pc.lit...)
		} else {
			v, err := p.eval(node, pc.e, s)
			if err != nil {
				return nil, err
			}
			switch {
			case !pc.inText:
				b = append(b, v...)
			case kindOf(v) == text && len(v) >= 2:
				b = append(b, v[1:len(v)-1]...)
			default:
				b = appendEscaped(b, v)
			}
		}
		if len(b) > RenderCap {
			return nil, drover.Errorf(drover.CodeExpression,
				"the input of task %q is longer than %d MiB; pass an artifact's URI instead of the data", p.Nodes[node].Name, RenderCap>>20)
		}
	}
	return b, nil
}

// eval returns the value of e for a row of node, without white space around it.
func (p *Plan) eval(node int32, e *expr, s Scope) (json.RawMessage, error) {
	var v json.RawMessage
	steps := 0 // taken
	switch e.root {
	case rootIndex:
		return strconv.AppendInt(nil, int64(s.Index), 10), nil
	case rootInput:
		v, steps = p.schema.value(s.Input, e.steps)
	case rootItem:
		item, err := p.item(node, s)
		if err != nil {
			return nil, err
		}
		v = item
	case rootOutput:
		k := Key{e.node, 0}
		switch {
		case p.family(node, e.node):
			k.Index = s.Index
		case p.Nodes[e.node].Mapped && len(e.steps) == 0:
			return p.outputs(e.node, s)
		case p.Nodes[e.node].Mapped: // the first step is an index: Compile saw to it
			k.Index = int32(e.steps[0].index)
			steps = 1
			if n := s.Len(e.node); e.steps[0].index >= n {
				return nil, failed(e, "task %q has %d elements", e.task, n)
			}
		}
		out, ok := p.output(k, s)
		if !ok {
			return nil, failed(e, "there is no output of task %q", e.task)
		}
		v = out
	}
	v = trim(v)
	for ; steps < len(e.steps); steps++ {
		st := e.steps[steps]
		var next json.RawMessage
		var ok bool
		switch k := kindOf(v); {
		case st.isName && k != object:
			return nil, failed(e, "%s is %s and has no member %q", e.upTo(steps), article(k), st.name)
		case st.isName:
			if next, ok = member(v, st.name); !ok {
				return nil, failed(e, "%s has no member %q; it has %s", e.upTo(steps), st.name, namesIn(v))
			}
		case k != list:
			return nil, failed(e, "%s is %s and has no element %d", e.upTo(steps), article(k), st.index)
		default:
			n := 0
			for el := range elements(v) {
				if n == st.index {
					next, ok = el, true
					break
				}
				n++
			}
			if !ok {
				return nil, failed(e, "%s has %d elements and none with index %d", e.upTo(steps), n, st.index)
			}
		}
		v = next
	}
	return v, nil
}

// article names a kind of JSON value in a run-time complaint.
func article(k kind) string {
	return [...]string{"null", "true or false", "a number", "a text", "a list", "an object"}[k]
}

func failed(e *expr, format string, args ...any) error {
	return drover.Errorf(drover.CodeExpression, "${{ %s }}: %s", e, fmt.Sprintf(format, args...))
}

// namesIn lists the members of v for a complaint.
func namesIn(v json.RawMessage) string {
	var names []string
	for n := range membersOf(v) {
		names = append(names, unquote(n))
	}
	if len(names) == 0 {
		return "none"
	}
	return quoted(names)
}

// item returns the element of a mapped row.
func (p *Plan) item(node int32, s Scope) (json.RawMessage, error) {
	over := p.Nodes[node].Over
	if over < 0 || s.Item != nil {
		return trim(s.Item), nil
	}
	out, ok := p.output(Key{over, s.Index}, s)
	if !ok {
		return nil, drover.Errorf(drover.CodeExpression, "element %d of task %q has no output", s.Index, p.Nodes[over].Name)
	}
	return trim(out), nil
}

// output returns the output of a row, or what stands in for it.
func (p *Plan) output(k Key, s Scope) (json.RawMessage, bool) {
	d := p.Nodes[k.Node].Default
	for ; k.Node >= 0; k.Node = p.Nodes[k.Node].Fallback {
		if out, ok := s.Output(k); ok {
			return out, true
		}
	}
	return d, d != nil
}

// outputs returns the list of the outputs of a map, in the order of its elements.
// Elements that have none are left out; in a map with min_success null has their place.
func (p *Plan) outputs(node int32, s Scope) (json.RawMessage, error) {
	n := s.Len(node)
	b := make([]byte, 0, 2+16*n)
	b = append(b, '[')
	for i := range n {
		out, ok := p.output(Key{node, int32(i)}, s)
		switch {
		case ok:
		case p.Nodes[node].MinSuccess.IsZero():
			continue // it was skipped, or failed
		default:
			out = json.RawMessage("null")
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(b, trim(out)...)
		if len(b) > RenderCap {
			return nil, drover.Errorf(drover.CodeExpression,
				"the outputs of task %q are together longer than %d MiB; let it give artifact URIs instead of the data", p.Nodes[node].Name, RenderCap>>20)
		}
	}
	return append(b, ']'), nil
}

// Render returns the input of a row of node: its `with`, every expression
// filled in. Without `with` a mapped row gets its item, a plain one the job's
// input. The error is for the user.
func (p *Plan) Render(node int32, s Scope) (json.RawMessage, error) {
	switch {
	case p.with[node] != nil:
		return p.fill(node, p.with[node], s)
	case p.Nodes[node].Mapped:
		return p.item(node, s)
	default:
		return p.schema.withDefaults(s.Input), nil
	}
}

// Elements evaluates for_each of a map over a list. The error is for the user.
func (p *Plan) Elements(node int32, s Scope) ([]json.RawMessage, error) {
	t := p.each[node]
	if t == nil {
		panic(fmt.Sprintf("dag: elements of %q, which is not a map over a list", p.Nodes[node].Name))
	}
	v, err := p.fill(node, t, s)
	if err != nil {
		return nil, err
	}
	if p.Nodes[node].ranged {
		n, err := p.rangeOf(node, v)
		if err != nil {
			return nil, err
		}
		return ranged(n, max(p.Nodes[node].Batch, 1), p.Nodes[node].Batch > 0), nil
	}
	if k := kindOf(v); k != list {
		return nil, drover.Errorf(drover.CodeExpression, "for_each of task %q needs a list; %s is %s",
			p.Nodes[node].Name, t.source(), article(k))
	}
	out := []json.RawMessage{}
	for e := range elements(v) {
		out = append(out, e)
	}
	if n := p.Nodes[node].Batch; n > 0 {
		out = batches(out, n)
	}
	return out, nil
}

// batches makes lists of n elements, the last of what is left.
func batches(items []json.RawMessage, n int) []json.RawMessage {
	out := make([]json.RawMessage, 0, len(items)/n+1)
	for part := range slices.Chunk(items, n) {
		b := []byte{'['}
		for i, e := range part {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, trim(e)...)
		}
		out = append(out, append(b, ']'))
	}
	return out
}

// source names what a template's value comes from.
func (t template) source() string {
	if len(t) == 1 && t[0].e != nil {
		return "${{ " + t[0].e.String() + " }}"
	}
	return "it"
}

// InputRefs returns the outputs Render of node needs. The caller must not
// change the slice.
func (p *Plan) InputRefs(node int32) []Ref { return p.inputRefs[node] }

// ForEachRefs returns the outputs Elements of node needs. The caller must not
// change the slice.
func (p *Plan) ForEachRefs(node int32) []Ref { return p.eachRefs[node] }
