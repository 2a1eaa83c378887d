package dag

import (
	"maps"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// uses are the subschemas of a schema, by what of a value a check holds against
// them.
type uses struct {
	here []*jsonschema.Schema // the value itself
	// A member or element of the value. Those of one list exclude each other: no
	// member is held against two of them.
	members, elements [][]*jsonschema.Schema
}

func usesOf(s *jsonschema.Schema) (u uses) {
	one := func(to *[][]*jsonschema.Schema, subs ...*jsonschema.Schema) {
		if subs = slices.DeleteFunc(subs, func(s *jsonschema.Schema) bool { return s == nil }); len(subs) > 0 {
			*to = append(*to, subs)
		}
	}
	u.here = append(u.here, s.Ref, s.RecursiveRef, s.Not, s.If, s.Then, s.Else)
	if s.DynamicRef != nil {
		u.here = append(u.here, s.DynamicRef.Ref)
	}
	u.here = slices.Concat(u.here, s.AllOf, s.AnyOf, s.OneOf, slices.Collect(maps.Values(s.DependentSchemas)))
	props := slices.Collect(maps.Values(s.Properties))
	items := append(slices.Clone(s.PrefixItems), s.Items2020)
	for i, v := range []any{s.AdditionalProperties, s.AdditionalItems, s.Items} {
		var subs []*jsonschema.Schema
		switch v := v.(type) {
		case *jsonschema.Schema:
			subs = []*jsonschema.Schema{v}
		case []*jsonschema.Schema:
			subs = v
		}
		if i == 0 {
			props = append(props, subs...)
		} else {
			items = append(items, subs...)
		}
	}
	for _, v := range s.Dependencies {
		if sub, ok := v.(*jsonschema.Schema); ok {
			u.here = append(u.here, sub)
		}
	}
	one(&u.members, props...)
	for _, p := range s.PatternProperties { // several patterns may fit one name
		one(&u.members, p)
	}
	one(&u.members, s.UnevaluatedProperties)
	one(&u.elements, items...)
	one(&u.elements, s.Contains)
	one(&u.elements, s.UnevaluatedItems)
	u.here = slices.DeleteFunc(u.here, func(s *jsonschema.Schema) bool { return s == nil })
	return u
}

func (u *uses) all() []*jsonschema.Schema {
	return slices.Concat(append(append([][]*jsonschema.Schema{u.here}, u.members...), u.elements...)...)
}

// explodes reports whether a check may take time that is exponential in the depth
// of the input: a schema that leads back to itself and holds a member, or an
// element, against itself in more than one way. Each level of the input then
// multiplies the work.
func explodes(root *jsonschema.Schema) bool {
	ring := rings(root)
	for s, r := range ring {
		if r == 0 {
			continue
		}
		for _, of := range []func(*uses) [][]*jsonschema.Schema{func(u *uses) [][]*jsonschema.Schema { return u.members }, func(u *uses) [][]*jsonschema.Schema { return u.elements }} {
			if ways(s, r, ring, of, map[*jsonschema.Schema]bool{}) > 1 {
				return true
			}
		}
	}
	return false
}

// ways counts, up to two, in how many ways a part of a value is held against
// schemas of the ring, whether by s or by what s holds the value itself against.
func ways(s *jsonschema.Schema, r int, ring map[*jsonschema.Schema]int, of func(*uses) [][]*jsonschema.Schema, open map[*jsonschema.Schema]bool) int {
	if open[s] {
		return 0
	}
	open[s] = true
	defer delete(open, s)
	u := usesOf(s)
	n := 0
	for _, list := range of(&u) {
		if slices.ContainsFunc(list, func(x *jsonschema.Schema) bool { return ring[x] == r }) {
			n++
		}
	}
	for _, x := range u.here {
		if n < 2 && ring[x] == r {
			n += ways(x, r, ring, of, open)
		}
	}
	return min(n, 2)
}

// rings numbers the schemas that lead back to themselves, those of one ring alike
// and from 1; others have 0 (Tarjan 1972).
func rings(root *jsonschema.Schema) map[*jsonschema.Schema]int {
	ring, at, low := map[*jsonschema.Schema]int{}, map[*jsonschema.Schema]int{}, map[*jsonschema.Schema]int{}
	var stack []*jsonschema.Schema
	on := map[*jsonschema.Schema]bool{}
	found := 0
	var visit func(s *jsonschema.Schema)
	visit = func(s *jsonschema.Schema) {
		at[s] = len(at) + 1
		low[s] = at[s]
		stack, on[s] = append(stack, s), true
		self := false
		u := usesOf(s)
		for _, x := range u.all() {
			self = self || x == s
			if at[x] == 0 {
				visit(x)
				low[s] = min(low[s], low[x])
			} else if on[x] {
				low[s] = min(low[s], at[x])
			}
		}
		if low[s] != at[s] {
			return
		}
		found++
		for alone := stack[len(stack)-1] == s && !self; ; {
			x := stack[len(stack)-1]
			stack, on[x] = stack[:len(stack)-1], false
			if ring[x] = found; alone {
				ring[x] = 0
			}
			if x == s {
				return
			}
		}
	}
	visit(root)
	return ring
}
