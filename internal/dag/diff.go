package dag

import (
	"encoding/json"
	"maps"
	"slices"
)

// Difference is what changed from one definition to another.
type Difference struct {
	// Fields are those of the pipeline itself, such as defaults.timeout.
	Fields []FieldChange `json:"fields,omitempty"`
	// Added, Removed and Changed are tasks.
	Added   []string     `json:"added,omitempty"`
	Removed []string     `json:"removed,omitempty"`
	Changed []TaskChange `json:"changed,omitempty"`
	// EdgesAdded and EdgesRemoved are dependencies; one that only changed its kind
	// is among both.
	EdgesAdded   []NamedEdge `json:"edges_added,omitempty"`
	EdgesRemoved []NamedEdge `json:"edges_removed,omitempty"`
	// Reordered says that the tasks that both have stand in another order.
	Reordered bool `json:"reordered,omitempty"`
}

// TaskChange is a task that both definitions have and that differs.
type TaskChange struct {
	Task   string        `json:"task"`
	Fields []FieldChange `json:"fields"`
}

// FieldChange is a field with its values; nil is not there.
type FieldChange struct {
	Field  string          `json:"field"`
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
}

// NamedEdge is a dependency by the names of its tasks.
type NamedEdge struct {
	From string `json:"from"`
	To   string `json:"to"`
	Kind string `json:"kind"` // control, data, elementwise
}

// Empty reports whether nothing changed.
func (d Difference) Empty() bool {
	return len(d.Fields)+len(d.Added)+len(d.Removed)+len(d.Changed)+len(d.EdgesAdded)+len(d.EdgesRemoved) == 0 && !d.Reordered
}

// Diff compares two definitions. Both must compile.
func Diff(before, after *Pipeline) (Difference, error) {
	var d Difference
	was, err := before.Compile()
	if err != nil {
		return d, err
	}
	is, err := after.Compile()
	if err != nil {
		return d, err
	}
	d.Fields = changes(nil, "", without(before.root, "tasks"), without(after.root, "tasks"))
	old := map[string]*task{}
	for i := range before.tasks {
		old[before.tasks[i].name] = &before.tasks[i]
	}
	var both []string // in the order of after
	for i := range after.tasks {
		t := &after.tasks[i]
		o := old[t.name]
		if o == nil {
			d.Added = append(d.Added, t.name)
			continue
		}
		both = append(both, t.name)
		if f := changes(nil, "", o.v, t.v); len(f) > 0 {
			d.Changed = append(d.Changed, TaskChange{t.name, f})
		}
	}
	k := 0
	for i := range before.tasks {
		name := before.tasks[i].name
		if !slices.Contains(both, name) {
			d.Removed = append(d.Removed, name)
			continue
		}
		d.Reordered = d.Reordered || both[k] != name
		k++
	}
	oldEdges, newEdges := was.namedEdges(), is.namedEdges()
	d.EdgesAdded, d.EdgesRemoved = notIn(newEdges, oldEdges), notIn(oldEdges, newEdges)
	return d, nil
}

// without returns an object without a member.
func without(v *value, name string) *value {
	out := &value{kind: object}
	for i, k := range v.keys {
		if k.name != name {
			out.keys, out.items = append(out.keys, k), append(out.items, v.items[i])
		}
	}
	return out
}

// changes adds the fields in which a and b differ, going into objects.
func changes(out []FieldChange, at string, a, b *value) []FieldChange {
	if a != nil && b != nil && a.kind == object && b.kind == object {
		names := map[string]bool{}
		for _, v := range []*value{a, b} {
			for _, k := range v.keys {
				names[k.name] = true
			}
		}
		for _, n := range slices.Sorted(maps.Keys(names)) {
			step := Step(n)
			if at == "" && step[0] == '.' {
				step = step[1:]
			}
			out = changes(out, at+step, a.get(n), b.get(n))
		}
		return out
	}
	c := FieldChange{Field: at}
	if a != nil {
		c.Before = a.appendJSON(nil)
	}
	if b != nil {
		c.After = b.appendJSON(nil)
	}
	if string(c.Before) == string(c.After) {
		return out
	}
	return append(out, c)
}

func (p *Plan) namedEdges() []NamedEdge {
	out := make([]NamedEdge, len(p.Edges))
	for i, e := range p.Edges {
		out[i] = NamedEdge{p.Nodes[e.Parent].Name, p.Nodes[e.Child].Name, e.Kind()}
	}
	return out
}

// Kind names what an edge is for.
func (e Edge) Kind() string {
	switch {
	case e.Same:
		return "elementwise"
	case e.Data:
		return "data"
	default:
		return "control"
	}
}

func notIn(list, other []NamedEdge) []NamedEdge {
	has := make(map[NamedEdge]bool, len(other))
	for _, e := range other {
		has[e] = true
	}
	var out []NamedEdge
	for _, e := range list {
		if !has[e] {
			out = append(out, e)
		}
	}
	return out
}
