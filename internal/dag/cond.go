package dag

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/checker"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	types "cel.dev/cel-go/common/types/ref"

	"github.com/drover-dev/drover"
)

const (
	// condCap is the longest condition, in bytes.
	condCap = 4096
	// condCost bounds what a condition may cost: about one for each step of its
	// evaluation, more for long texts and lists.
	condCost = 100_000
)

// condition is `if` of a task, or its `concurrency_key`: an expression in CEL. What it says of input, item,
// index and tasks is cut out of it and becomes a variable, with the type that a
// schema declares, so that only that is read and the rest is checked by type.
type condition struct {
	field   string // of the task
	src     string
	program cel.Program
	vars    []condVar
	// element says that it is about an element of a map, not about the map.
	element bool
}

// condVar is a value that a condition looks at.
type condVar struct {
	name    string
	e       *expr
	outcome bool // how the task ended, rather than its output
	float   bool // a number that is declared as one
}

// baseEnv is what all conditions are read in.
var baseEnv = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(cel.CrossTypeNumericComparisons(true), cel.ParserExpressionSizeLimit(condCap), cel.ParserRecursionLimit(64),
		cel.Variable("input", cel.DynType), cel.Variable("item", cel.DynType), cel.Variable("index", cel.IntType), cel.Variable("tasks", cel.DynType))
})

// condition compiles `if` of a node.
func (c *compiler) condition(i int32, src need) (*condition, []Ref) {
	x, refs := c.cel(i, src, "if", "the condition", func(t *cel.Type) string {
		if t.IsExactType(cel.BoolType) {
			return ""
		}
		return "a condition is true or false"
	})
	if x != nil {
		x.element = x.element || c.plan.Nodes[i].Over >= 0
	}
	return x, refs
}

// cel compiles an expression of a node's; wrong tells what it should be that is none of
// a type, which is known.
func (c *compiler) cel(i int32, src need, field, what string, wrong func(*cel.Type) string) (*condition, []Ref) {
	v, at := src.v, src.at
	bad := func(format string, args ...any) {
		c.at(v, at, "%q: %s", clip(v.text, 80), fmt.Sprintf(format, args...))
	}
	if len(v.text) > condCap {
		bad("%s is %d bytes long; at most %d", what, len(v.text), condCap)
		return nil, nil
	}
	env, err := baseEnv()
	if err != nil {
		panic("dag: " + err.Error()) // it is the same every time
	}
	tree, issues := env.Parse(v.text)
	if issues.Err() != nil {
		bad("%s", celProblem(issues))
		return nil, nil
	}
	cut := cutter{c: c, node: i, v: v, at: at, cond: &condition{field: field, src: v.text}}
	root := tree.NativeRep().Expr()
	cut.expr(root, nil)
	if cut.broken {
		return nil, nil
	}
	options := make([]cel.EnvOption, len(cut.cond.vars))
	for k, x := range cut.cond.vars {
		options[k] = cel.Variable(x.name, cut.types[k])
	}
	if env, err = env.Extend(options...); err != nil {
		bad("%s", err)
		return nil, nil
	}
	checked, issues := env.Check(tree)
	if issues.Err() != nil {
		bad("%s", cut.spell(celProblem(issues)))
		return nil, nil
	}
	if t := checked.OutputType(); !t.IsExactType(cel.DynType) {
		if should := wrong(t); should != "" {
			bad("%s; this is %s", should, t)
			return nil, nil
		}
	}
	if cost, err := env.EstimateCost(checked, noSizes{}); err == nil && cost.Min > condCost {
		bad("it costs at least %d steps to evaluate; at most %d", cost.Min, condCost)
		return nil, nil
	}
	if cut.cond.program, err = env.Program(checked, cel.CostLimit(condCost)); err != nil {
		bad("%s", cut.spell(err.Error()))
		return nil, nil
	}
	cut.cond.element = cut.element
	return cut.cond, cut.refs.sorted()
}

// celProblem is the first problem that CEL finds, with its column where there are
// several lines to it.
func celProblem(issues *cel.Issues) string {
	list := issues.Errors()
	if len(list) == 0 {
		return issues.Err().Error()
	}
	msg := strings.TrimPrefix(list[0].Message, "Syntax error: ")
	return fmt.Sprintf("%s (at character %d)", clip(msg, 200), list[0].Location.Column()+1)
}

// noSizes knows nothing of the sizes of values.
type noSizes struct{}

func (noSizes) EstimateSize(checker.AstNode) *checker.SizeEstimate { return nil }
func (noSizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}

// cutter puts variables where an expression speaks of input, item, index and tasks.
type cutter struct {
	c       *compiler
	node    int32
	v       *value
	at      *path
	cond    *condition
	types   []*cel.Type
	refs    refSet
	element bool
	broken  bool
}

func (k *cutter) bad(format string, args ...any) {
	k.broken = true
	k.c.at(k.v, k.at, "%q: %s", clip(k.v.text, 80), fmt.Sprintf(format, args...))
}

// expr walks e; local are the names that macros have introduced around it.
func (k *cutter) expr(e ast.Expr, local []string) {
	if k.broken {
		return
	}
	if k.chain(e, local) {
		return
	}
	switch e.Kind() {
	case ast.SelectKind:
		k.expr(e.AsSelect().Operand(), local)
	case ast.CallKind:
		call := e.AsCall()
		if call.IsMemberFunction() {
			k.expr(call.Target(), local)
		}
		for _, a := range call.Args() {
			k.expr(a, local)
		}
	case ast.ListKind:
		for _, x := range e.AsList().Elements() {
			k.expr(x, local)
		}
	case ast.MapKind:
		for _, x := range e.AsMap().Entries() {
			k.expr(x.AsMapEntry().Key(), local)
			k.expr(x.AsMapEntry().Value(), local)
		}
	case ast.ComprehensionKind:
		x := e.AsComprehension()
		k.expr(x.IterRange(), local)
		inner := append(slices.Clip(local), x.IterVar(), x.IterVar2(), x.AccuVar())
		for _, name := range []string{x.IterVar(), x.IterVar2()} {
			if slices.Contains([]string{"input", "item", "index", "tasks"}, name) {
				k.bad("%s has a meaning of its own here; call the variable something else", name)
			}
		}
		for _, y := range []ast.Expr{x.AccuInit(), x.LoopCondition(), x.LoopStep(), x.Result()} {
			k.expr(y, inner)
		}
	default: // a literal, or a name
	}
}

// chain replaces e by a variable if it is one of the names with the steps into it.
func (k *cutter) chain(e ast.Expr, local []string) bool {
	var steps []step
	at := e
	for {
		switch {
		case at.Kind() == ast.SelectKind && !at.AsSelect().IsTestOnly():
			steps = append(steps, step{name: at.AsSelect().FieldName(), isName: true})
			at = at.AsSelect().Operand()
			continue
		case at.Kind() == ast.CallKind && at.AsCall().FunctionName() == operators.Index && at.AsCall().Args()[1].Kind() == ast.LiteralKind:
			switch x := at.AsCall().Args()[1].AsLiteral().Value().(type) {
			case string:
				steps = append(steps, step{name: x, isName: true})
			case int64:
				if x < 0 || x > 999_999_999 {
					return false
				}
				steps = append(steps, step{index: int(x)})
			default:
				return false
			}
			at = at.AsCall().Args()[0]
			continue
		case at.Kind() != ast.IdentKind || slices.Contains(local, at.AsIdent()):
			return false
		}
		break
	}
	slices.Reverse(steps)
	x := condVar{e: &expr{steps: steps}}
	switch at.AsIdent() {
	case "input":
		x.e.root = rootInput
	case "item":
		x.e.root = rootItem
		k.element = true
	case "index":
		x.e.root = rootIndex
		if k.element = true; len(steps) > 0 {
			k.bad("index is a number; nothing can follow it")
			return true
		}
	case "tasks":
		if len(steps) < 2 || !steps[0].isName || !steps[1].isName || steps[1].name != "output" && steps[1].name != "outcome" {
			k.bad("after tasks comes a task's name, and then output or outcome, as in tasks.decode.output")
			return true
		}
		x.e.root, x.e.task, x.e.steps = rootOutput, steps[0].name, steps[2:]
		x.outcome = steps[1].name == "outcome"
	default:
		return false
	}
	k.variable(e, x)
	return true
}

// variable puts a variable in the place of e.
func (k *cutter) variable(e ast.Expr, x condVar) {
	var typ *cel.Type
	switch {
	case x.outcome:
		parent, ok := k.c.need(k.node, need{x.e.task, k.v, k.at})
		if !ok {
			k.broken = true
			return
		}
		x.e.node = parent
		same := k.c.plan.family(k.node, parent)
		switch {
		case len(x.e.steps) > 0:
			k.bad("an outcome is a text: succeeded, failed, skipped, or nothing while the task has not ended")
		case k.c.plan.Nodes[parent].Mapped && !same:
			k.bad("task %q is a map; its elements have outcomes, it has none", x.e.task)
		}
		k.element = k.element || same
		k.refs.add(Ref{parent, same})
		typ = cel.StringType
	default:
		before := len(k.c.list)
		k.c.expression(k.node, x.e, k.v, k.at, true, &k.refs)
		k.broken = k.broken || len(k.c.list) > before
		if x.e.root == rootOutput && !k.broken && k.c.plan.family(k.node, x.e.node) {
			k.element = true
		}
		typ, x.float = k.typeOf(x.e)
	}
	for n, y := range k.cond.vars {
		if y.e.String() == x.e.String() && y.outcome == x.outcome {
			e.SetKindCase(ast.NewExprFactory().NewIdent(e.ID(), k.cond.vars[n].name))
			return
		}
	}
	x.name = fmt.Sprintf("v%d", len(k.cond.vars))
	k.cond.vars, k.types = append(k.cond.vars, x), append(k.types, typ)
	e.SetKindCase(ast.NewExprFactory().NewIdent(e.ID(), x.name))
}

// spell writes the variables of a message as the user wrote them.
func (k *cutter) spell(msg string) string {
	for n := len(k.cond.vars) - 1; n >= 0; n-- {
		msg = strings.ReplaceAll(msg, "'"+k.cond.vars[n].name+"'", "'"+k.cond.vars[n].e.String()+"'")
	}
	return msg
}

// typeOf is the type that a schema declares for what e leads to; float says that it
// is a number.
func (k *cutter) typeOf(e *expr) (t *cel.Type, float bool) {
	if e.root == rootIndex {
		return cel.IntType, false
	}
	s, steps := k.c.p.input, e.steps
	switch e.root {
	case rootInput:
	case rootOutput:
		s = nil
		if !k.broken {
			s = k.c.p.tasks[e.node].output
			if k.c.plan.Nodes[e.node].Mapped && !k.c.plan.family(k.node, e.node) {
				if len(steps) == 0 {
					return cel.ListType(cel.DynType), false
				}
				steps = steps[1:]
			}
		}
	default:
		return cel.DynType, false
	}
	for _, st := range steps {
		if s == nil || s.kind != object || open(s) {
			return cel.DynType, false
		}
		if st.isName {
			s = s.get("properties").member(st.name)
		} else {
			s = s.get("items")
		}
	}
	return schemaType(s, 0)
}

// member is get of an object, or nil.
func (v *value) member(name string) *value {
	if v == nil || v.kind != object {
		return nil
	}
	return v.get(name)
}

// schemaType is the type of values that fit a schema, as far as it is plain.
func schemaType(s *value, depth int) (t *cel.Type, float bool) {
	if s == nil || s.kind != object || open(s) || depth > 8 {
		return cel.DynType, false
	}
	switch typ := s.member("type"); {
	case typ == nil || typ.kind != text:
	case typ.text == "string":
		return cel.StringType, false
	case typ.text == "integer":
		return cel.IntType, false
	case typ.text == "number":
		return cel.DoubleType, true
	case typ.text == "boolean":
		return cel.BoolType, false
	case typ.text == "array":
		return cel.ListType(cel.DynType), false
	case typ.text == "object":
		return cel.MapType(cel.StringType, cel.DynType), false
	}
	return cel.DynType, false
}

// Conditional reports whether a condition decides over a row that its rule lets run.
func (p *Plan) Conditional(k Key) bool {
	c := p.conds[k.Node]
	if c == nil || !p.Nodes[k.Node].Mapped {
		return c != nil
	}
	return c.element == (k.Index != Unexpanded)
}

// CondRefs returns the outputs that the condition of node needs. The caller must
// not change the slice.
func (p *Plan) CondRefs(node int32) []Ref { return p.condRefs[node] }

// CondSource returns the condition of node as it was written; empty is none.
func (p *Plan) CondSource(node int32) string {
	if c := p.conds[node]; c != nil {
		return c.src
	}
	return ""
}

// If evaluates the condition of a row. The error is for the user.
func (p *Plan) If(node int32, s Scope) (bool, error) {
	c := p.conds[node]
	out, err := p.value(node, c, s)
	if err != nil {
		return false, err
	}
	holds, ok := out.Value().(bool)
	if !ok {
		return false, p.wrong(node, c, "it is no true or false, but a %s", out.Type().TypeName())
	}
	return holds, nil
}

// wrong is what an expression of a node came to in place of a value.
func (p *Plan) wrong(node int32, c *condition, format string, args ...any) error {
	return drover.Errorf(drover.CodeExpression, "tasks.%s.%s: %s: %s", p.Nodes[node].Name, c.field, clip(c.src, 200), fmt.Sprintf(format, args...))
}

// value evaluates an expression in CEL for a row of node.
func (p *Plan) value(node int32, c *condition, s Scope) (types.Val, error) {
	fail := func(format string, args ...any) (types.Val, error) { return nil, p.wrong(node, c, format, args...) }
	vars := make(map[string]any, len(c.vars))
	for _, x := range c.vars {
		if x.outcome {
			k := Key{x.e.node, 0}
			if p.family(node, x.e.node) {
				k.Index = s.Index
			}
			vars[x.name] = s.Outcome(k).String()
			continue
		}
		raw, err := p.eval(node, x.e, s)
		if err != nil {
			return fail("%s", err)
		}
		if vars[x.name], err = native(raw, x.float); err != nil {
			return fail("%s is %s", x.e, err)
		}
	}
	out, _, err := c.program.Eval(vars)
	if err != nil {
		msg := err.Error()
		for n := len(c.vars) - 1; n >= 0; n-- {
			msg = strings.ReplaceAll(msg, "'"+c.vars[n].name+"'", "'"+c.vars[n].e.String()+"'")
		}
		if strings.Contains(msg, "cost limit exceeded") {
			msg = fmt.Sprintf("it takes more than %d steps to evaluate", condCost)
		}
		return fail("%s", msg)
	}
	return out, nil
}

// native makes of JSON what CEL works with. Whole numbers that fit are integers,
// unless the number is declared to be any.
func native(raw json.RawMessage, float bool) (any, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("no JSON: %w", err)
	}
	if n, ok := v.(json.Number); ok && float {
		return n.Float64()
	}
	return numbers(v)
}

func numbers(v any) (any, error) {
	var err error
	switch x := v.(type) {
	case json.Number:
		if n, bad := x.Int64(); bad == nil {
			return n, nil
		}
		return x.Float64()
	case []any:
		for i := range x {
			if x[i], err = numbers(x[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for k := range x {
			if x[k], err = numbers(x[k]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}
