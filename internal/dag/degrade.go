package dag

import "slices"

// MaxSpoils is how many tasks at most are looked at above one for failures that were
// made good: the nearest.
const MaxSpoils = 64

// Degradable reports whether a failure of a task of node can be made good: something
// stands in for it, it degrades, some elements of its map may fail, or it is a backup.
func (p *Plan) Degradable(node int32) bool {
	n := &p.Nodes[node]
	return !p.closes[node] && n.Primary < 0 && (n.Fallback >= 0 || n.Degrades || !n.MinSuccess.IsZero() || n.Backs >= 0)
}

// spoil notes of each node which above it are degradable.
func (p *Plan) spoil() {
	if !slices.ContainsFunc(p.order, p.Degradable) {
		return
	}
	p.spoils = make([][]Ref, len(p.Nodes))
	var all []Ref // what those see that run at the end
	for i := range p.Nodes {
		if len(all) < MaxSpoils && p.Degradable(int32(i)) {
			all = append(all, Ref{Node: int32(i)})
		}
	}
	for _, i := range p.order {
		var refs []Ref
		add := func(r Ref) {
			if k := slices.IndexFunc(refs, func(o Ref) bool { return o.Node == r.Node }); k >= 0 {
				refs[k].Same = refs[k].Same && r.Same
			} else if len(refs) < MaxSpoils {
				refs = append(refs, r)
			}
		}
		if p.closes[i] {
			refs = all
		}
		for _, q := range p.Nodes[i].Parents {
			if p.Degradable(q) {
				add(Ref{q, p.family(i, q)})
			}
		}
		for _, q := range p.Nodes[i].Parents {
			for _, r := range p.spoils[q] {
				add(Ref{r.Node, r.Same && p.family(i, q)})
			}
		}
		p.spoils[i] = refs
	}
	for i := range p.Nodes {
		if first := p.CalledFor(int32(i)); first != int32(i) {
			p.spoils[i] = p.spoils[first]
		}
	}
}

// Spoils returns the nodes above one whose failures may have been made good.
func (p *Plan) Spoils(node int32) []Ref {
	if p.spoils == nil {
		return nil
	}
	return p.spoils[node]
}

// MadeGood tells what makes good the failure of a row, in the words of its definition,
// given how what is called in its place has ended, and which maps have come to their
// min_success. It is empty when nothing does.
func (p *Plan) MadeGood(k Key, ended func(Key) Outcome, enough func(m int32) bool) string {
	if q := p.Nodes[k.Node].Backs; q >= 0 {
		return "it is the backup of " + p.Nodes[q].Name
	}
	as, n := Failed, k.Node
	for as == Failed && p.Nodes[n].Fallback >= 0 && k.Index != Unexpanded {
		n = p.Nodes[n].Fallback
		as = ended(Key{n, k.Index})
	}
	switch m, some := p.tolerant(k); {
	case as == Succeeded:
		return "fallback " + p.Nodes[n].Name
	case as == Failed && p.Nodes[n].Degrades:
		return "on_failure: degrade"
	case some && enough(m):
		return "min_success: " + p.Nodes[m].MinSuccess.String()
	}
	return ""
}

// StandIns returns the nodes that are called in the place of one, in their order.
func (p *Plan) StandIns(node int32) (nodes []int32) {
	for n := p.Nodes[node].Fallback; n >= 0; n = p.Nodes[n].Fallback {
		nodes = append(nodes, n)
	}
	return nodes
}

// Tolerates reports whether some elements of a map may fail.
func (p *Plan) Tolerates(node int32) bool { return !p.Nodes[node].MinSuccess.IsZero() }
