package dag

import "slices"

// Past is a row of a job as the records have it.
type Past struct {
	Key
	// Live says that it has not ended; As is how it did, if it has. A map that its
	// elements have taken the place of has neither.
	Live bool
	As   Outcome
	// Started says that a live row may run or has run: it does not wait for those above
	// it. InLine says that it waits for a place among its map's max_parallel instead.
	Started, InLine bool
	// Waits says, of a live row, that it waits for others.
	Waits bool

	judged bool // its tally is wanted though it has ended
}

// Waits reports whether a row with this tally has to wait still.
func (p *Plan) Waits(k Key, t Tally) bool {
	n := &p.Nodes[k.Node]
	if k.Index == Unexpanded && n.Over >= 0 {
		return t.Unmet > 0
	}
	return n.When.Verdict(t) == Wait
}

// SameTally reports whether a and b are the same as far as the rule of a node looks.
func (p *Plan) SameTally(node int32, a, b Tally) bool {
	if !p.Nodes[node].When.CountsSuccess() {
		a.Succeeded, b.Succeeded = 0, 0
	}
	return a == b
}

// Recount counts for every live row, from how all rows of its job stand, what its
// tally must be: the same that a Board comes to, told of one end after another.
func (p *Plan) Recount(rows []Past) map[Key]Tally {
	elements := make([]int32, len(p.Nodes)) // of each map
	byNode := map[int32][]Key{}             // live rows
	out := map[Key]Tally{}
	for _, r := range rows {
		if r.Index >= 0 && r.As != Gone {
			elements[r.Node]++
		}
		if r.Live || r.judged {
			out[r.Key] = Tally{}
			byNode[r.Node] = append(byNode[r.Node], r.Key)
		}
	}
	add := func(c Key, change func(*Tally)) {
		keys := []Key{c}
		if c.Index == Every {
			keys = byNode[c.Node]
		}
		for _, k := range keys {
			if t, ok := out[k]; ok {
				change(&t)
				out[k] = t
			}
		}
	}
	ends := map[Key]Past{}
	for _, r := range rows {
		if r.As != Gone {
			ends[r.Key] = r
		}
	}
	for _, r := range rows {
		if r.As == Gone {
			continue
		}
		if q := p.Nodes[r.Node].Primary; q >= 0 && ends[Key{q, r.Index}].As != Failed {
			continue // it stood in for a task that was replayed
		}
		switch {
		case r.Live:
			for _, c := range p.below(r.Key) {
				add(c, func(t *Tally) { t.Unmet++ })
			}
		case r.As != 0:
			below, as, called := p.Below(r.Key, r.As)
			if called {
				if _, there := ends[Key{p.Nodes[r.Node].Fallback, r.Index}]; there {
					continue
				}
				below, as = p.below(r.Key), r.As // the job had stopped when it failed
			}
			for _, c := range below {
				add(c, func(t *Tally) { t.Unmet++; t.count(as, 1) })
			}
		case elements[r.Node] == 0: // it has expanded into nothing
			for _, c := range p.Children(r.Key) {
				add(c, func(t *Tally) { t.Unmet++; t.count(Succeeded, 1) })
			}
		}
	}
	for m, x := range p.Maps(rows) {
		s := p.Nodes[m].MinSuccess
		if s.IsZero() {
			continue
		}
		for _, c := range p.Children(Key{m, Unexpanded}) {
			add(c, func(t *Tally) {
				if t.Unmet++; x.Outcome(s) != 0 {
					t.count(x.Outcome(s), 1)
				}
			})
		}
	}
	return out
}

// HandledAll counts the failures of a job that have been made good, from how all its
// rows stand: the same that Handled adds up to.
func (p *Plan) HandledAll(rows []Past) (n int32) {
	ends := map[Key]Past{}
	for _, r := range rows {
		if r.As != Gone {
			ends[r.Key] = r
		}
	}
	rescued := p.Rescue >= 0 && ends[Key{p.Rescue, 0}].As == Succeeded
	for _, r := range rows {
		if r.Live || r.As == Gone {
			continue
		}
		if rescued && p.Nodes[r.Node].Undoes < 0 && !slices.Contains(p.Finally, r.Node) {
			if r.As == Failed {
				n++
			}
			continue
		}
		if q := p.Nodes[r.Node].Primary; q >= 0 && ends[Key{q, r.Index}].As != Failed {
			if r.As == Failed {
				n++ // of a task that stood in for one that was replayed
			}
			continue
		}
		n += p.Handled(r.Key, r.As)
	}
	if !rescued {
		n += p.Forgiven(p.Maps(rows))
	}
	return n
}
