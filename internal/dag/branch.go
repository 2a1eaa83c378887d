package dag

import (
	"cmp"
	"slices"
)

// Branch is what becomes of the rows of a job when some of them begin anew. What
// waits for a row that begins anew does so too, and so on to the end; a map below it
// expands again, as its list may be another one.
type Branch struct {
	// Again are rows that begin anew: such as have ended, and Unexpanded rows of maps
	// that expand again, which stand nowhere while their elements stand for them.
	Again []Key
	// Waiting are rows that wait, and wait for what begins anew too.
	Waiting []Key
	// Gone are rows that count no more until they are made or called again: elements of
	// maps that expand again, and what was called by, or because of, what begins anew.
	Gone []Key
	// Busy are rows in the way: they have started, or are about to, and would have to
	// begin anew or be gone.
	Busy []Key
	// Parted are maps that did not expand with the map they go over, and cannot alone.
	Parted []Key
	// Bounded are maps with max_parallel or min_success some of whose rows are among the
	// ones above: how many of their elements run, wait and have ended is kept as they end,
	// and cannot be taken back for a branch.
	Bounded []int32
	// Why names the row above because of which a row begins anew, goes on waiting or is
	// gone; a row that was asked for names itself.
	Why map[Key]Key
	// Cut are rows of Again that a failure or a cancel had cut off, and nothing else.
	Cut map[Key]bool

	// Tallies are those of the rows that begin anew and of all that wait; Handled counts
	// the failures that stay made good.
	Tallies map[Key]Tally
	Handled int32
	// Maps are how the maps with bounds stand.
	Maps map[int32]Map
	// AtEnd says that only what runs when the others have ended begins anew.
	AtEnd bool
}

// Reaching says how far a Branch goes.
type Reaching struct {
	// Down says that what has run below begins anew; otherwise only what was kept from
	// running there.
	Down bool
	// Cut says that what was cut off when the job stopped begins anew, too, wherever it
	// stands.
	Cut bool
	// Only says that nothing else begins anew, as the job stops.
	Only bool
}

// branching is a Branch being made.
type branching struct {
	*Plan
	at     map[Key]Past
	of     map[int32][]Key // rows of each node
	hollow map[int32]bool  // maps that have expanded into nothing
	reset  map[int32]bool  // maps over a list that expand again, with those that go over them
	why    map[Key]Key
	any    map[int32]Key // of a node some of whose rows are marked, the first
	cut    map[Key]bool
	todo   []Key
}

// Branch finds what becomes of rows when those asked for begin anew. rows are all
// rows of the job as they stand.
func (p *Plan) Branch(rows []Past, asked []Key, how Reaching) *Branch {
	b := &branching{Plan: p, at: map[Key]Past{}, of: map[int32][]Key{}, hollow: map[int32]bool{}, reset: map[int32]bool{}, why: map[Key]Key{}, any: map[int32]Key{}, cut: map[Key]bool{}}
	for _, r := range rows {
		if r.As != Gone {
			b.at[r.Key] = r
			b.of[r.Node] = append(b.of[r.Node], r.Key)
		}
	}
	for i := range p.Nodes {
		if n := &p.Nodes[i]; n.Mapped && !n.Dormant && len(b.of[int32(i)]) == 0 {
			b.hollow[int32(i)] = true
		}
	}
	closing := true
	for _, k := range asked {
		b.mark(k, k)
		closing = closing && (p.closes[k.Node] || p.Nodes[k.Node].Undoes >= 0)
	}
	if how.Down {
		b.down()
	}
	b.todo = nil
	if !how.Only {
		b.revive(how.Cut && !closing)
	}
	return b.result(closing, how.Only)
}

func (b *branching) mark(k, by Key) {
	if _, seen := b.why[k]; !seen {
		b.set(k, by)
		b.todo = append(b.todo, k)
	}
}

func (b *branching) set(k, by Key) {
	b.why[k] = by
	if _, seen := b.any[k.Node]; !seen {
		b.any[k.Node] = k
	}
}

// down marks all that stands below what is marked.
func (b *branching) down() {
	for len(b.todo) > 0 {
		k := b.todo[len(b.todo)-1]
		b.todo = b.todo[:len(b.todo)-1]
		for _, c := range b.below(k) {
			_, there := b.at[c]
			switch {
			case there:
				b.mark(c, k)
			case c.Index == Every && b.Nodes[c.Node].root == c.Node:
				b.again(c.Node, k)
			case c.Index == Every:
				b.each(c.Node, k)
			case b.Nodes[c.Node].Mapped: // it has not expanded with the map it goes over
				b.each(c.Node, k)
			}
		}
	}
}

// each marks the rows of a node.
func (b *branching) each(node int32, by Key) {
	for _, k := range b.of[node] {
		b.mark(k, by)
	}
}

// again marks a map, and all that goes over it, to expand again.
func (b *branching) again(root int32, by Key) {
	if b.reset[root] {
		return
	}
	b.reset[root] = true
	for _, m := range b.Family(root) {
		for _, k := range b.of[m] {
			if _, seen := b.why[k]; !seen {
				b.set(k, by)
			}
		}
		k := Key{m, Unexpanded}
		b.any[m] = k
		delete(b.why, k) // so that what stands below is looked at
		b.mark(k, by)
		by = k
	}
}

// resets reports whether a row makes room for a map that expands again.
func (b *branching) resets(k Key) bool {
	root := b.Nodes[k.Node].root
	return k.Index >= 0 && root >= 0 && b.reset[root]
}

// revive adds rows that were kept from running by what begins anew, and with cut
// those that nothing but the end of the job kept from it.
func (b *branching) revive(cut bool) {
	var open []Key
	for k, r := range b.at {
		if _, again := b.why[k]; !again && !r.Live && (r.As == Skipped || r.As == Blocked) && !b.Nodes[k.Node].Dormant {
			open = append(open, k)
		}
	}
	rank := make([]int32, len(b.Nodes))
	for i, n := range b.order {
		rank[n] = int32(i)
	}
	slices.SortFunc(open, func(x, y Key) int {
		return cmp.Or(cmp.Compare(rank[x.Node], rank[y.Node]), cmp.Compare(x.Index, y.Index))
	})
	for more := true; more && len(open) > 0; {
		more = false
		tallies := b.Recount(b.after(open))
		left := open[:0]
		for _, k := range open {
			by, above := b.liveAbove(k)
			v := b.Nodes[k.Node].When.Verdict(tallies[k])
			if b.parted(k) || v == Skip || v == Block || !above && !cut {
				left = append(left, k)
				continue
			}
			if more = true; !above {
				by = k
				b.cut[k] = true
			}
			b.set(k, by)
		}
		open = left
	}
}

// liveAbove finds a row that begins anew and that another waits for.
func (b *branching) liveAbove(k Key) (Key, bool) {
	for _, q := range b.Nodes[k.Node].Parents {
		for ; q >= 0; q = b.Nodes[q].Fallback { // or what stands in for it
			r, again := b.any[q]
			if b.family(q, k.Node) {
				r = Key{q, k.Index}
				_, again = b.why[r]
			}
			if again && !b.resets(r) {
				return r, true
			}
		}
	}
	return Key{}, false
}

// parted reports whether a row is of a map that did not expand with the one it goes
// over.
func (b *branching) parted(k Key) bool {
	over := b.Nodes[k.Node].Over
	if k.Index != Unexpanded || over < 0 || b.reset[b.Nodes[k.Node].root] {
		return false
	}
	rows := b.of[over]
	return len(rows) > 0 && rows[0].Index >= 0
}

// after is how all rows stand once what is marked begins anew. Those of as count as if
// they waited.
func (b *branching) after(as []Key) []Past {
	out := make([]Past, 0, len(b.at)+len(b.hollow))
	for k, r := range b.at {
		if b.resets(k) {
			continue
		}
		if _, again := b.why[k]; again {
			r = Past{Key: k, Live: true}
		}
		out = append(out, r)
	}
	for root := range b.reset {
		for _, m := range b.Family(root) {
			if _, there := b.at[Key{m, Unexpanded}]; !there {
				out = append(out, Past{Key: Key{m, Unexpanded}, Live: true})
			}
		}
	}
	for m := range b.hollow {
		if root := b.Nodes[m].root; !b.reset[root] {
			out = append(out, Past{Key: Key{m, Unexpanded}})
		}
	}
	waits := map[Key]bool{}
	for _, k := range as {
		waits[k] = true
	}
	for i := range out {
		out[i].judged = waits[out[i].Key]
	}
	return out
}

// result sorts out what is marked.
func (b *branching) result(closing, only bool) *Branch {
	out := &Branch{Why: b.why, Cut: b.cut, AtEnd: closing}
	// What was called because of a row that begins anew is called again if need be.
	asleep := map[Key]bool{}
	for _, k := range slices.SortedFunc(keysOf(b.why), compareRows) {
		sleep := func(node int32) {
			if c := (Key{node, k.Index}); node >= 0 && !asleep[c] {
				asleep[c] = true
				b.why[c] = k
			}
		}
		sleep(b.Nodes[k.Node].Backup)
		for f := b.Nodes[k.Node].Fallback; f >= 0; f = b.Nodes[f].Fallback {
			sleep(f)
			sleep(b.Nodes[f].Backup)
		}
	}
	if !closing {
		for k := range b.at {
			if b.closes[k.Node] {
				asleep[k] = true
				b.why[k] = k
			}
		}
	}
	for k := range b.why {
		r, there := b.at[k]
		switch {
		case asleep[k] && !there:
			delete(b.why, k)
		case r.Live && !r.Waits:
			out.Busy = append(out.Busy, k)
		case asleep[k] || b.resets(k):
			out.Gone = append(out.Gone, k)
		case r.Live:
			out.Waiting = append(out.Waiting, k)
		default:
			if out.Again = append(out.Again, k); b.parted(k) {
				out.Parted = append(out.Parted, k)
			}
		}
	}
	for more := !only; more; { // below what was cut off, or is all that begins anew
		more = false
		for k, r := range b.at {
			if _, seen := b.why[k]; !seen && r.Live && r.Waits {
				if by, above := b.liveAbove(k); above {
					b.set(k, by)
					out.Waiting, more = append(out.Waiting, k), true
				}
			}
		}
	}
	for k := range asleep { // of after
		delete(b.at, k)
	}
	past := b.after(nil)
	out.Tallies, out.Handled, out.Maps = b.Recount(past), b.HandledAll(past), b.Plan.Maps(past)
	for _, list := range [][]Key{out.Again, out.Waiting, out.Gone, out.Busy, out.Parted} {
		slices.SortFunc(list, compareRows)
		for _, k := range list {
			if m, ok := b.BoundedBy(k.Node); ok {
				out.Bounded = append(out.Bounded, m)
			}
		}
	}
	slices.Sort(out.Bounded)
	out.Bounded = slices.Compact(out.Bounded)
	return out
}

func keysOf(m map[Key]Key) func(func(Key) bool) {
	return func(yield func(Key) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func compareRows(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Index, b.Index))
}
