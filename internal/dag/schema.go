package dag

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	jskind "github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/drover-dev/drover"
)

const (
	// SchemaCap is the longest input schema, in bytes of canonical JSON.
	SchemaCap = 64 << 10
	// schemaCost bounds how many subschemas a check can visit at one place of
	// the input; references that double at every step pass it at once.
	schemaCost = 100_000
	// Numbers beyond these make exact arithmetic dear. They are bounds for
	// checked input only; nothing else looks at a number's value.
	digitCap, exponentCap = 1000, 1000
)

// schema is a compiled JSON Schema and the defaults of its properties.
type schema struct {
	compiled *jsonschema.Schema
	defaults []property // sorted by name
}

type property struct {
	name string
	json json.RawMessage
}

const schemaURL = "drover:///input"

// noLoader refuses every schema that is not in the definition.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("a schema cannot refer to another document")
}

// schema compiles the schema in v, or returns nil.
func (c *compiler) schema(v *value, at *path) *schema {
	if v == nil {
		return nil
	}
	src := v.appendJSON(nil)
	if len(src) > SchemaCap {
		c.at(v, at, "the schema is %d bytes long; the limit is %d", len(src), SchemaCap)
		return nil
	}
	if bad := badNumber(v, at, c.problems); bad {
		return nil
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(src))
	if err != nil {
		c.at(v, at, "the schema cannot be read: %s", err)
		return nil
	}
	jc := jsonschema.NewCompiler()
	jc.DefaultDraft(jsonschema.Draft2020)
	jc.UseLoader(noLoader{})
	if err := jc.AddResource(schemaURL, doc); err != nil {
		c.at(v, at, "the schema cannot be read: %s", err)
		return nil
	}
	s := &schema{}
	if s.compiled, err = jc.Compile(schemaURL); err != nil {
		c.brokenSchema(err, v, at)
		return nil
	}
	if cost(s.compiled, map[*jsonschema.Schema]int{}) > schemaCost {
		c.at(v, at, "the schema refers to itself so often that a check would visit more than %d subschemas; simplify it", schemaCost)
		return nil
	}
	if explodes(s.compiled) {
		c.at(v, at, "the schema refers to itself in several branches for the same part of the input, so that a check would take twice as long for each level of it; let one branch refer to it")
		return nil
	}
	props := v.get("properties")
	if props == nil || props.kind != object {
		return s
	}
	for _, i := range props.sorted() {
		name := props.keys[i].name
		d := props.items[i].get("default")
		if d == nil {
			continue
		}
		s.defaults = append(s.defaults, property{name, d.appendJSON(nil)})
		if sub := s.compiled.Properties[name]; sub != nil {
			dv, err := jsonschema.UnmarshalJSON(bytes.NewReader(d.appendJSON(nil)))
			if err == nil {
				err = sub.Validate(dv)
			}
			if err != nil {
				c.at(d, at.member("properties").member(name).member("default"), "the default does not fit its own schema: %s", reason(err))
			}
		}
	}
	return s
}

// badNumber complains about numbers the schema compiler had better not see.
func badNumber(v *value, at *path, ps *problems) bool {
	bad := false
	if v.kind == number && !tame(v.text) {
		ps.at(v, at, "the number is too long; a schema's numbers have at most %d characters and an exponent up to %d", digitCap, exponentCap)
		bad = true
	}
	for i, e := range v.items {
		sub := at.at(i)
		if v.kind == object {
			sub = at.member(v.keys[i].name)
		}
		bad = badNumber(e, sub, ps) || bad
	}
	return bad
}

// tame reports whether exact arithmetic with the number s is cheap.
func tame(s string) bool {
	if len(s) > digitCap {
		return false
	}
	_, exp, has := strings.Cut(strings.ToLower(s), "e")
	if !has {
		return true
	}
	n, err := strconv.Atoi(exp)
	return err == nil && -exponentCap <= n && n <= exponentCap
}

// brokenSchema complains about a schema that does not compile, at its place.
func (c *compiler) brokenSchema(err error, v *value, at *path) {
	var invalid *jsonschema.SchemaValidationError
	var ve *jsonschema.ValidationError
	if errors.As(err, &invalid) && errors.As(invalid.Err, &ve) {
		seen := map[string]bool{}
		for _, leaf := range leaves(ve, nil) {
			where, p := v.find(leaf.InstanceLocation, at)
			msg := "this is not JSON Schema: " + leafText(leaf)
			if !seen[p.String()] {
				seen[p.String()] = true
				c.at(where, p, "%s", msg)
			}
		}
		return
	}
	var (
		ref    *jsonschema.JSONPointerNotFoundError
		anchor *jsonschema.AnchorNotFoundError
		load   *jsonschema.LoadURLError
	)
	switch {
	case errors.As(err, &load):
		c.badRef(load.URL, v, at, "is another document, and a schema can refer only into itself; copy what you need under $defs")
	case errors.As(err, &ref):
		c.badRef(ref.URL, v, at, "leads nowhere: the schema has no such place")
	case errors.As(err, &anchor):
		c.badRef(anchor.Reference, v, at, "leads nowhere: the schema has no such place")
	default:
		c.at(v, at, "this is not JSON Schema: %s", clip(strings.ReplaceAll(err.Error(), schemaURL, ""), 300))
	}
}

// badRef complains about a reference where the schema makes it.
func (c *compiler) badRef(url string, v *value, at *path, complaint string) {
	url = strings.TrimPrefix(strings.TrimPrefix(url, schemaURL), "drover:///")
	where, p := v.mention(url, at)
	if where == nil {
		where, p = v, at
	}
	c.at(where, p, "%q %s", clip(url, 80), complaint)
}

// find follows tokens into v as far as they lead.
func (v *value) find(tokens []string, at *path) (*value, *path) {
	for _, t := range tokens {
		switch v.kind {
		case object:
			next := v.get(t)
			if next == nil {
				return v, at
			}
			v, at = next, at.member(t)
		case list:
			i, err := strconv.Atoi(t)
			if err != nil || i < 0 || i >= len(v.items) {
				return v, at
			}
			v, at = v.items[i], at.at(i)
		default:
			return v, at
		}
	}
	return v, at
}

// mention returns the text in v that names url, or nil.
func (v *value) mention(url string, at *path) (*value, *path) {
	if v.kind == text && v.text != "" && strings.TrimSuffix(v.text, "#") == url {
		return v, at
	}
	for i, e := range v.items {
		sub := at.at(i)
		if v.kind == object {
			sub = at.member(v.keys[i].name)
		}
		if where, p := e.mention(url, sub); where != nil {
			return where, p
		}
	}
	return nil, nil
}

// cost counts the subschemas that a check visits, a recursion counting once.
func cost(s *jsonschema.Schema, memo map[*jsonschema.Schema]int) int {
	if s == nil {
		return 0
	}
	if n, ok := memo[s]; ok {
		return n
	}
	memo[s] = 1
	n := 1
	add := func(subs ...*jsonschema.Schema) {
		for _, sub := range subs {
			n = min(n+cost(sub, memo), schemaCost+1)
		}
	}
	add(s.Ref, s.RecursiveRef, s.Not, s.If, s.Then, s.Else, s.PropertyNames, s.UnevaluatedProperties,
		s.Contains, s.Items2020, s.UnevaluatedItems)
	if s.DynamicRef != nil {
		add(s.DynamicRef.Ref)
	}
	add(s.AllOf...)
	add(s.AnyOf...)
	add(s.OneOf...)
	add(s.PrefixItems...)
	add(slices.Collect(maps.Values(s.Properties))...)
	add(slices.Collect(maps.Values(s.PatternProperties))...)
	add(slices.Collect(maps.Values(s.DependentSchemas))...)
	for _, v := range append(slices.Collect(maps.Values(s.Dependencies)), s.AdditionalProperties, s.AdditionalItems, s.Items) {
		switch v := v.(type) {
		case *jsonschema.Schema:
			add(v)
		case []*jsonschema.Schema:
			add(v...)
		}
	}
	memo[s] = n
	return n
}

// inputRef checks an expression into the input against the declared properties.
func (c *compiler) inputRef(e *expr, v *value, at *path) { c.declared(c.p.input, 0, e, v, at) }

// declared checks the steps of an expression, from one on, against the properties
// that a schema lists.
func (c *compiler) declared(s *value, from int, e *expr, v *value, at *path) {
	for i, st := range e.steps {
		if i < from {
			continue
		}
		if s == nil || s.kind != object || !st.isName {
			return
		}
		props := s.get("properties")
		if props == nil || props.kind != object || open(s) {
			return
		}
		next := props.get(st.name)
		if next == nil {
			c.at(v, at, "${{ %s }}: the schema of %s has no property %q%s", e, e.upTo(i), clip(st.name, 60),
				cmp.Or(c.hint(st.name, func(yield func(string) bool) {
					for _, k := range props.keys {
						if !yield(k.name) {
							return
						}
					}
				}), "; declare it, or set additionalProperties: true"))
			return
		}
		s = next
	}
}

// open reports whether a schema may allow properties it does not list.
func open(s *value) bool {
	if ap := s.get("additionalProperties"); ap != nil && ap.text != "false" {
		return true
	}
	for _, k := range []string{"patternProperties", "unevaluatedProperties", "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"} {
		if s.get(k) != nil {
			return true
		}
	}
	return false
}

// value returns the value in input that steps lead to first, and how many steps
// that took: one where a default fills in, otherwise none.
func (s *schema) value(input json.RawMessage, steps []step) (json.RawMessage, int) {
	if s == nil || len(s.defaults) == 0 {
		return orEmpty(input), 0
	}
	if len(steps) == 0 || !steps[0].isName {
		return s.withDefaults(input), 0
	}
	input = orEmpty(input)
	i, ok := slices.BinarySearchFunc(s.defaults, steps[0].name, func(p property, n string) int { return strings.Compare(p.name, n) })
	if ok && kindOf(input) == object {
		if _, set := member(input, steps[0].name); !set {
			return s.defaults[i].json, 1
		}
	}
	return input, 0
}

// orEmpty returns input without white space around it; no input at all is {}.
func orEmpty(input json.RawMessage) json.RawMessage {
	if input = bytes.TrimSpace(input); len(input) == 0 {
		return json.RawMessage("{}")
	}
	return input
}

// withDefaults returns input with the declared defaults of top-level properties
// it does not have. An input that lacks none is returned byte for byte.
func (s *schema) withDefaults(input json.RawMessage) json.RawMessage {
	input = orEmpty(input)
	if s == nil || len(s.defaults) == 0 || kindOf(input) != object || input[len(input)-1] != '}' {
		return input
	}
	has := map[string]bool{}
	for n := range membersOf(input) {
		has[unquote(n)] = true
	}
	var out []byte // input without its closing brace, once something is added
	for _, d := range s.defaults {
		if has[d.name] {
			continue
		}
		if out == nil {
			out = bytes.TrimRight(bytes.Clone(input[:len(input)-1]), " \t\r\n")
		}
		if out[len(out)-1] != '{' {
			out = append(out, ',')
		}
		out = append(append(appendString(out, d.name), ':'), d.json...)
	}
	if out == nil {
		return input
	}
	return append(out, '}')
}

// CheckInput checks a job's input, defaults filled in, against the pipeline's
// schema. The error is a *drover.Error with code schema-mismatch.
func (p *Plan) CheckInput(input json.RawMessage) error {
	if p.schema == nil {
		return nil
	}
	input = orEmpty(input)
	var whole json.RawMessage
	if err := json.Unmarshal(input, &whole); err != nil {
		return drover.Errorf(drover.CodeValidation, "the input is not JSON: %s", clip(err.Error(), 200))
	}
	return p.schema.check(p.schema.withDefaults(input), "input", fmt.Sprintf("the input does not fit the schema of pipeline %q", p.Name))
}

// HasOutputSchema reports whether the definition says what a node's output looks like.
func (p *Plan) HasOutputSchema(node int32) bool { return p.gives[node] != nil }

// CheckOutput checks what a task of node gave, nothing being null, against the
// schema that the definition has for it, if any. The error is a *drover.Error with
// code schema-mismatch.
func (p *Plan) CheckOutput(node int32, output json.RawMessage) error {
	s := p.gives[node]
	if s == nil {
		return nil
	}
	return s.check(trim(output), "output", fmt.Sprintf("the output of task %q does not fit its schema", p.Nodes[node].Name))
}

// check checks doc, which is called root in complaints.
func (s *schema) check(src json.RawMessage, root, detail string) error {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(src))
	if err != nil {
		return drover.Errorf(drover.CodeValidation, "the %s is not JSON: %s", root, clip(err.Error(), 200))
	}
	mismatch := &drover.Error{Code: drover.CodeSchemaMismatch, Detail: detail}
	if at := wild(doc, (*path)(nil).member(root)); at != nil {
		mismatch.Fields = []drover.FieldError{{Field: at.String(), Message: fmt.Sprintf(
			"the number is too long; at most %d characters and an exponent up to %d", digitCap, exponentCap)}}
		return mismatch
	}
	if err = s.compiled.Validate(doc); err == nil {
		return nil
	}
	var ve *jsonschema.ValidationError
	if !errors.As(err, &ve) {
		return drover.Errorf(drover.CodeSchemaMismatch, "%s", err)
	}
	for _, leaf := range leaves(ve, nil) {
		if len(mismatch.Fields) >= collectCap {
			break
		}
		mismatch.Fields = append(mismatch.Fields, fieldErrors(leaf, root)...)
	}
	// The properties of an object are checked in no order.
	slices.SortStableFunc(mismatch.Fields, func(a, b drover.FieldError) int { return strings.Compare(a.Field, b.Field) })
	mismatch.Fields = mismatch.Fields[:min(len(mismatch.Fields), problemCap)]
	return mismatch
}

// wild returns the path of a number in v that is not tame, or nil.
func wild(v any, at *path) *path {
	switch v := v.(type) {
	case json.Number:
		if !tame(string(v)) {
			return at
		}
	case []any:
		for i, e := range v {
			if p := wild(e, at.at(i)); p != nil {
				return p
			}
		}
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if p := wild(v[k], at.member(k)); p != nil {
				return p
			}
		}
	}
	return nil
}

// leaves collects the errors at the ends of ve. What is one complaint for several
// reasons stays together: the alternatives of an anyOf or oneOf, the items of
// which none was the right one, the name of a property.
func leaves(ve *jsonschema.ValidationError, out []*jsonschema.ValidationError) []*jsonschema.ValidationError {
	switch ve.ErrorKind.(type) {
	case *jskind.AnyOf, *jskind.OneOf, *jskind.Contains, *jskind.MinContains, *jskind.PropertyNames:
		return append(out, ve)
	}
	if len(ve.Causes) == 0 {
		return append(out, ve)
	}
	for _, c := range ve.Causes {
		out = leaves(c, out)
	}
	return out
}
