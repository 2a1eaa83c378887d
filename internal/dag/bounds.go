package dag

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Share is how many of a map's elements must succeed: a number, or a part of them.
// The zero value is all, each by itself.
type Share struct {
	N     int32
	Parts int32 // of 10,000
}

// IsZero reports whether nothing is said.
func (s Share) IsZero() bool { return s == Share{} }

// String writes the share as a definition does.
func (s Share) String() string {
	if s.Parts > 0 {
		return strconv.FormatFloat(float64(s.Parts)/100, 'f', -1, 64) + "%"
	}
	return strconv.Itoa(int(s.N))
}

// of is how many of n elements that is: all of them where there are fewer than asked for.
func (s Share) of(n int32) int32 {
	if s.Parts > 0 {
		return int32((int64(n)*int64(s.Parts) + 9_999) / 10_000)
	}
	return min(s.N, n)
}

// parseShare reads a share, or says what is wrong with it.
func parseShare(v *value) (Share, string) {
	const form = "min_success is how many elements must succeed: a whole number from 1, or a part of them such as 95%"
	switch v.kind {
	case number:
		if n, err := strconv.Atoi(v.text); err == nil && n >= 1 && n <= ElementCap {
			v.text = strconv.Itoa(n)
			return Share{N: int32(n)}, ""
		}
	case text:
		digits, ok := strings.CutSuffix(v.text, "%")
		if whole, part, _ := strings.Cut(digits, "."); ok && whole != "" && strings.Trim(whole+part, "0123456789") == "" && len(whole) <= 3 && len(part) <= 2 {
			n, err := strconv.Atoi(whole + (part + "00")[:2])
			if err == nil && n >= 1 && n <= 10_000 {
				s := Share{Parts: int32(n)}
				v.text = s.String()
				return s, ""
			}
			if err == nil && n == 0 {
				return Share{}, "0% lets every element fail; for that write on_failure: degrade"
			}
		}
	default:
	}
	return Share{}, fmt.Sprintf("%s; this is %s", form, v.shown())
}

// Map is how a map stands that bounds its elements, with max_parallel or min_success,
// once it has expanded.
type Map struct {
	Size int32
	// Of a map with min_success, the elements that have ended, as they count below; those that neither succeeded nor were skipped
	// have failed. An element has ended when what stands in for it has, too.
	Ended, Succeeded, Skipped int32
	// Failures are those of its tasks and of what stood in for them that nothing has
	// made good but, if it comes to that, min_success.
	Failures int32
	// Running are the elements that have a place among max_parallel, Waiting those that
	// wait for one.
	Running, Waiting int32
}

// Outcome is how a map of that share counts for the tasks below it, or 0 while an
// element has not ended. Elements that were skipped are not asked for.
func (m Map) Outcome(s Share) Outcome {
	switch {
	case m.Ended < m.Size:
		return 0
	case m.Skipped == m.Size:
		return Skipped
	case m.Succeeded >= s.of(m.Size-m.Skipped):
		return Succeeded
	}
	return Failed
}

// Hopeless reports whether so many elements have failed that the share cannot be
// reached, whatever becomes of the others.
func (m Map) Hopeless(s Share) bool {
	there := m.Size - m.Skipped
	return there-(m.Ended-m.Succeeded-m.Skipped) < s.of(there)
}

// note counts an element that has ended as o, after failures of it and of what stood
// in for it.
func (m *Map) note(o Outcome, failures int32) {
	m.Ended++
	switch o {
	case Succeeded:
		m.Succeeded++
	case Skipped:
		m.Skipped++
	case Failed:
		m.Failures += failures
	case Blocked: // it failed without a failure of its own
	}
}

// Bounded returns the maps that bound their elements.
func (p *Plan) Bounded() []int32 { return p.bounded }

// Bounds returns the map with bounds among whose elements a row counts: its own, or
// that of the task it stands in for.
func (p *Plan) Bounds(k Key) (int32, bool) {
	if len(p.bounded) == 0 || k.Index < 0 {
		return 0, false
	}
	return p.BoundedBy(k.Node)
}

// BoundedBy returns the map with bounds that a task is or stands in for.
func (p *Plan) BoundedBy(node int32) (int32, bool) {
	first, _ := p.Stands(node)
	n := &p.Nodes[first]
	return first, n.MaxParallel > 0 || !n.MinSuccess.IsZero()
}

// Fails returns a map that cannot come to its min_success any more, when the job is to
// stop at that, or -1.
func (p *Plan) Fails(maps map[int32]Map) int32 {
	for _, m := range p.bounded {
		if x, ok := maps[m]; ok && x.Hopeless(p.Nodes[m].MinSuccess) && p.stops(m) {
			return m
		}
	}
	return -1
}

// tolerant reports whether a row is an element of a map that has a min_success, or
// stands in for one: for the tasks outside its family the map counts as a whole.
func (p *Plan) tolerant(k Key) (int32, bool) {
	m, ok := p.Bounds(k)
	return m, ok && !p.Nodes[m].MinSuccess.IsZero()
}

// Forgiven counts the failures that maps have made good: of those which have come to
// their min_success, unless a map that goes over them and has one too has been left
// with too few elements by that.
func (p *Plan) Forgiven(maps map[int32]Map) (n int32) {
	for _, m := range p.bounded {
		s := p.Nodes[m].MinSuccess
		if x, ok := maps[m]; !ok || s.IsZero() || x.Outcome(s) != Succeeded || slices.ContainsFunc(p.heirs[m], func(d int32) bool {
			y, ok := maps[d]
			return ok && y.Hopeless(p.Nodes[d].MinSuccess)
		}) {
			continue
		}
		n += maps[m].Failures
	}
	return n
}

// Maps counts how the maps with bounds stand, from how all rows of a job do: the same
// that a Board comes to. Those that have not expanded, or into nothing, are left out.
func (p *Plan) Maps(rows []Past) map[int32]Map {
	if len(p.bounded) == 0 {
		return nil
	}
	at := make(map[Key]Past, len(rows))
	for _, r := range rows {
		if r.As != Gone {
			at[r.Key] = r
		}
	}
	out := map[int32]Map{}
	for _, r := range rows {
		m, ok := p.Bounds(r.Key)
		if !ok || r.As == Gone {
			continue
		}
		x := out[m]
		switch {
		case r.InLine:
			x.Waiting++
		case r.Started:
			x.Running++
		}
		if r.Node == m {
			x.Size++
			if as, failures, ended := p.chain(r, at); ended && !p.Nodes[m].MinSuccess.IsZero() {
				x.note(as, failures)
			}
		}
		out[m] = x
	}
	return out
}

// chain is how an element counts, by its own row and those that stand in for it, and
// how many of them have failed.
func (p *Plan) chain(r Past, at map[Key]Past) (as Outcome, failures int32, ended bool) {
	for failures = 1; ; failures++ {
		if r.Live || r.As == 0 {
			return 0, 0, false
		}
		_, as, called := p.Below(r.Key, r.As)
		if !called {
			return as, failures, true
		}
		next, there := at[Key{p.Nodes[r.Node].Fallback, r.Index}]
		if !there { // the job had stopped when it failed
			return r.As, failures, true
		}
		r = next
	}
}

// bounds notes which maps have bounds, and which others live on their elements.
func (p *Plan) bounds() {
	p.heirs = make([][]int32, len(p.Nodes))
	for i := range p.Nodes {
		if n := &p.Nodes[i]; !n.Dormant && (n.MaxParallel > 0 || !n.MinSuccess.IsZero()) {
			p.bounded = append(p.bounded, int32(i))
		}
	}
	with := map[int32]int{} // of each family, the maps with a min_success
	for _, m := range p.bounded {
		if !p.Nodes[m].MinSuccess.IsZero() {
			with[p.Nodes[m].root]++
		}
	}
	for _, m := range p.bounded {
		if p.Nodes[m].MinSuccess.IsZero() || with[p.Nodes[m].root] < 2 {
			continue
		}
		for _, d := range p.Descendants(m) {
			if p.family(m, d) && !p.Nodes[d].MinSuccess.IsZero() {
				p.heirs[m] = append(p.heirs[m], d)
			}
		}
	}
}

// bound checks what a task says of the elements of its map.
func (c *compiler) bound(i int32) {
	t, n := &c.p.tasks[i], &c.plan.Nodes[i]
	for _, x := range []struct {
		nd   need
		what string
	}{{t.parallelAt, "max_parallel bounds how many elements of a map run at one time"}, {t.shareAt, "min_success says how many elements of a map must succeed"}, {t.elementsAt, "max_elements bounds the list that a map goes over"}} {
		if x.nd.v != nil && !n.Mapped {
			c.at(x.nd.v, x.nd.at, "%s, and task %q is none; remove it, or add for_each", x.what, t.name)
		}
	}
	if t.elementsAt.v != nil && n.Mapped && t.each == nil {
		c.at(t.elementsAt.v, t.elementsAt.at, "task %q has as many elements as the map that it goes over; say max_elements there", t.name)
	}
	if t.shareAt.v != nil && n.Degrades {
		c.at(t.shareAt.v, t.shareAt.at, "with on_failure: degrade any element of task %q may fail, so that min_success has nothing to say; remove one of the two", t.name)
	}
}

// leftBehind complains about maps whose elements wait for those of another, which may
// fail, and that have no word on how many of them they need.
func (c *compiler) leftBehind() {
	for i := range c.plan.Nodes {
		n := &c.plan.Nodes[i]
		if n.root < 0 || n.Dormant || !n.MinSuccess.IsZero() || !n.When.blocks() {
			continue
		}
		for _, e := range c.edges[i] {
			if q := &c.plan.Nodes[e.parent]; q.root == n.root && !q.MinSuccess.IsZero() {
				c.at(e.v, e.at, "some elements of %q may fail (min_success: %s), and those of %q do not run then; say how many of them must succeed, as in `min_success: %[2]s`", q.Name, q.MinSuccess, n.Name)
				break
			}
		}
	}
}
