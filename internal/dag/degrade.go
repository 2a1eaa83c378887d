package dag

import "slices"

// MaxSpoils is how many tasks at most are looked at above one for failures that were
// made good: the nearest.
const MaxSpoils = 64

// Degradable reports whether a failure of a task of node can be made good: something
// stands in for it, or it degrades.
func (p *Plan) Degradable(node int32) bool {
	n := &p.Nodes[node]
	return !p.closes[node] && n.Primary < 0 && (n.Fallback >= 0 || n.Degrades)
}

// spoil notes of each node which above it are degradable.
func (p *Plan) spoil() {
	if !slices.ContainsFunc(p.order, p.Degradable) {
		return
	}
	p.spoils = make([][]Ref, len(p.Nodes))
	for _, i := range p.order {
		var refs []Ref
		add := func(r Ref) {
			if k := slices.IndexFunc(refs, func(o Ref) bool { return o.Node == r.Node }); k >= 0 {
				refs[k].Same = refs[k].Same && r.Same
			} else if len(refs) < MaxSpoils {
				refs = append(refs, r)
			}
		}
		if p.closes[i] { // it sees the whole job
			for k := range p.Nodes {
				if p.Degradable(int32(k)) {
					add(Ref{Node: int32(k)})
				}
			}
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

// MadeGood returns what makes good the failure of a row, given the rows that have
// failed: the node that stands in for it, or -1 with degrades where the job goes on
// degraded. ok is false when nothing does.
func (p *Plan) MadeGood(k Key, failed func(Key) bool) (by int32, degrades, ok bool) {
	n := k.Node
	for p.Nodes[n].Fallback >= 0 && k.Index != Unexpanded {
		if n = p.Nodes[n].Fallback; !failed(Key{n, k.Index}) {
			return n, false, true
		}
	}
	return -1, p.Nodes[n].Degrades, p.Nodes[n].Degrades
}
