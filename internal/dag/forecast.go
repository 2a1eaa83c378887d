package dag

import (
	"cmp"
	"slices"
	"time"
)

// Measure is what is known of a task from jobs that have run.
type Measure struct {
	Tasks    int           `json:"tasks"`              // how many it is taken from
	Run      time.Duration `json:"-"`                  // the median of their last attempts
	Handoff  time.Duration `json:"-"`                  // the median time from queued to started
	Elements int           `json:"elements,omitempty"` // of a map: the median of the jobs
}

// Measures are by the name of the task.
type Measures map[string]Measure

// Where an expected duration or a number of elements comes from.
const (
	BasisHistory  = "history"
	BasisDeclared = "declared"
	BasisAssumed  = "assumed"
)

// Assumed is what a forecast takes where nothing is known.
type Assumed struct {
	Run      time.Duration // of a task
	Elements int           // of a map
	// Declared are times that the definition tells, by the name of the task.
	Declared map[string]time.Duration
}

// Forecast is what a plan costs: its levels, its longest way, and what hangs on
// each node. It is for enough workers: nobody waits for a slot.
type Forecast struct {
	Nodes []NodeForecast
	// Levels group the nodes by the longest way to them.
	Levels [][]int32
	// Critical is the way through the graph that takes longest, Length its time.
	Critical []int32
	Length   time.Duration
	// Work is the time of all tasks one after the other, Tasks their number.
	Work  time.Duration
	Tasks int
	// Width is the most tasks that may run at one time, as one level after the
	// other shows it, and WidestLevel that level.
	Width, WidestLevel int
}

// NodeForecast is what is expected of one node.
type NodeForecast struct {
	Level int
	// Run is the expected time of one task, Time that of the node from its start to its end.
	Run, Time time.Duration
	RunBasis  string
	// Elements is 1 but for maps.
	Elements      int
	ElementsBasis string
	// Start is when the node can begin at the earliest, Slack how much later it
	// may without making the job longer.
	Start, Slack time.Duration
	Critical     bool
	// Standby says that the node runs only when it is called: it counts neither in the
	// time nor in the work.
	Standby bool
	// Blast is how many other nodes cannot start when this one fails for good, and
	// BlastTasks how many tasks those are.
	Blast, BlastTasks int
}

// Forecast works out what the plan costs, by what was measured and, for the
// rest, by what is declared or assumed.
func (p *Plan) Forecast(m Measures, a Assumed) Forecast {
	f := Forecast{Nodes: make([]NodeForecast, len(p.Nodes)), Levels: p.Levels()}
	for l, level := range f.Levels {
		for _, n := range level {
			f.Nodes[n].Level = l
		}
	}
	end := make([]time.Duration, len(p.Nodes))
	before := make([]int32, len(p.Nodes)) // the parent that ends last, or -1
	last := int32(-1)
	for _, n := range p.order {
		x := &f.Nodes[n]
		p.expect(n, &f, m, a)
		if x.Standby = p.Nodes[n].Dormant; x.Standby {
			continue
		}
		f.Work += x.Run * time.Duration(x.Elements)
		f.Tasks += x.Elements
		before[n] = -1
		for _, q := range p.Nodes[n].Parents {
			if before[n] < 0 || end[q] > end[before[n]] {
				before[n] = q
			}
		}
		if before[n] >= 0 {
			x.Start = end[before[n]]
		}
		end[n] = x.Start + x.Time
		if last < 0 || end[n] > end[last] {
			last = n
		}
	}
	if last >= 0 {
		f.Length = end[last]
	}
	for n := last; n >= 0; n = before[n] {
		f.Critical = append(f.Critical, n)
		f.Nodes[n].Critical = true
	}
	slices.Reverse(f.Critical)
	p.slack(&f)
	p.blast(&f)
	for l, level := range f.Levels {
		width := 0
		for _, n := range level {
			if x := &f.Nodes[n]; !x.Standby {
				width += atOnce(&p.Nodes[n], x.Elements)
			}
		}
		if width > f.Width {
			f.Width, f.WidestLevel = width, l
		}
	}
	return f
}

// expect sets the duration and the number of elements of a node; those of its
// parents are set.
func (p *Plan) expect(n int32, f *Forecast, m Measures, a Assumed) {
	x, node := &f.Nodes[n], &p.Nodes[n]
	known, ran := m[node.Name]
	ran = ran && known.Tasks > 0
	x.Run, x.RunBasis = a.Run, BasisAssumed
	if d, ok := a.Declared[node.Name]; ok {
		x.Run, x.RunBasis = d, BasisDeclared
	}
	if ran {
		x.Run, x.RunBasis = known.Run, BasisHistory
	}
	x.Elements, x.ElementsBasis = 1, BasisDeclared
	if node.Mapped {
		switch {
		case node.root >= 0 && node.root != n:
			first := &f.Nodes[node.root]
			x.Elements, x.ElementsBasis = first.Elements, first.ElementsBasis
		case node.listed >= 0:
			x.Elements = node.listed
		case ran && known.Elements > 0:
			x.Elements, x.ElementsBasis = known.Elements, BasisHistory
		default:
			x.Elements, x.ElementsBasis = a.Elements, BasisAssumed
		}
	}
	x.Time = x.Run
	if x.Elements == 0 {
		x.Time = 0
	}
	if k := atOnce(node, x.Elements); k < x.Elements { // in turns
		x.Time = x.Run * time.Duration((x.Elements+k-1)/k)
	}
}

// atOnce is how many elements of a node may run at one time.
func atOnce(n *Node, elements int) int {
	if n.MaxParallel > 0 {
		return min(elements, int(n.MaxParallel))
	}
	return elements
}

// slack works out how much later each node may start.
func (p *Plan) slack(f *Forecast) {
	latest := make([]time.Duration, len(p.Nodes)) // when the node must have ended
	for i := range latest {
		latest[i] = f.Length
	}
	for _, n := range slices.Backward(p.order) {
		x := &f.Nodes[n]
		x.Slack = latest[n] - x.Time - x.Start
		for _, q := range p.Nodes[n].Parents {
			latest[q] = min(latest[q], latest[n]-x.Time)
		}
	}
}

// blast counts what a failure of each node keeps from starting, directly or not: a task
// whose rule lets it run after a failure is kept from nothing, and where the job goes on
// degraded none is. It goes over the nodes
// in blocks of 64, one bit for each, and counts them in bits too, so that 100,000 nodes
// take a second.
func (p *Plan) blast(f *Forecast) {
	// Those that a failure can keep from starting, in order, and what they wait for.
	type waiting struct{ node, from, to int32 }
	var list []waiting
	var parents []int32
	at := make([]int, len(p.Nodes)) // where the first of the list is that may stand below a node
	for _, n := range p.order {
		at[n] = len(list)
		if from := len(parents); p.blocks(n) && len(p.Nodes[n].Parents) > 0 {
			parents = append(parents, p.Nodes[n].Parents...)
			list = append(list, waiting{n, int32(from), int32(len(parents))})
		}
	}
	reached := make([]uint64, len(p.Nodes)) // by which nodes of the block
	own := make([]uint64, len(p.Nodes))     // the bit of a node of the block that fails
	for from := 0; from < len(p.Nodes); from += 64 {
		first, block := len(list), min(64, len(p.Nodes)-from)
		for k := range block {
			if n := &p.Nodes[from+k]; len(n.ChildrenNodes) > 0 && !n.Degrades {
				own[from+k] = 1 << k
				first = min(first, at[from+k])
			}
		}
		clear(reached)
		var nodes, tasks tally64
		for _, w := range list[first:] {
			var bits uint64
			for _, q := range parents[w.from:w.to] {
				bits |= reached[q] | own[q]
			}
			if bits != 0 {
				reached[w.node] = bits
				nodes.add(bits, 1)
				tasks.add(bits, f.Nodes[w.node].Elements)
			}
		}
		clear(own[from : from+block])
		for k := range block {
			f.Nodes[from+k].Blast, f.Nodes[from+k].BlastTasks = nodes.of(k), tasks.of(k)
		}
	}
}

// tally64 is 64 numbers: bit k of the word i is bit i of the number k.
type tally64 [48]uint64

// add adds n to the numbers whose bits are set.
func (t *tally64) add(bits uint64, n int) {
	for i := 0; n > 0; i, n = i+1, n>>1 {
		if n&1 == 0 {
			continue
		}
		for j, carry := i, bits; carry != 0; j++ {
			t[j], carry = t[j]^carry, t[j]&carry
		}
	}
}

// of is the number k.
func (t *tally64) of(k int) (n int) {
	for i, word := range t {
		n |= int(word>>k&1) << i
	}
	return n
}

// ByBlast returns the nodes on which most hangs first; those on which nothing
// hangs are left out.
func (f *Forecast) ByBlast() []int32 {
	var out []int32
	for i := range f.Nodes {
		if f.Nodes[i].Blast > 0 {
			out = append(out, int32(i))
		}
	}
	slices.SortStableFunc(out, func(a, b int32) int { return cmp.Compare(f.Nodes[b].Blast, f.Nodes[a].Blast) })
	return out
}
