package dag

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// degrade is the policy of a task whose failure leaves the job degraded.
const degrade = "degrade"

// use is an output that a dormant task uses.
type use struct {
	by int32
	edge
}

// dormants finds the tasks that run only when they are called: fallbacks, the
// rescue, what undoes other tasks, and what runs finally.
func (c *compiler) dormants() {
	nodes := c.plan.Nodes
	c.plan.Rescue, c.plan.closes = -1, make([]bool, len(nodes))
	c.plan.lent = make([]bool, len(nodes))
	find := func(by string, nd need) (int32, bool) {
		i, ok := c.index[nd.name]
		switch {
		case !ok:
			c.at(nd.v, nd.at, "there is no task %q%s", clip(nd.name, 80), c.hint(nd.name, maps.Keys(c.index)))
		case c.dormant[i] != "":
			c.at(nd.v, nd.at, "task %q is called already, as %s; it can be called in one place only", nd.name, c.dormant[i])
		default:
			c.dormant[i] = by
			nodes[i].Dormant = true
			return i, true
		}
		return 0, false
	}
	for i := range c.p.tasks {
		nd := c.p.tasks[i].fallback
		if nd.v == nil || nd.v.kind != text {
			continue
		}
		if nd.name == c.p.tasks[i].name {
			c.at(nd.v, nd.at, "task %q cannot stand in for itself; name another task", nd.name)
			continue
		}
		if f, ok := find(fmt.Sprintf("the fallback of %q", c.p.tasks[i].name), nd); ok {
			nodes[i].Fallback, nodes[f].Primary = f, int32(i)
		}
	}
	if nd := c.p.rescue; nd.v != nil && nd.v.kind == text {
		if i, ok := find("the rescue", nd); ok {
			c.plan.Rescue, c.plan.closes[i] = i, true
		}
	}
	for _, nd := range c.p.finally {
		if i, ok := find("one that runs finally", nd); ok {
			c.plan.Finally, c.plan.closes[i] = append(c.plan.Finally, i), true
		}
	}
	c.fallbackRings()
	c.plan.standing()
	c.backups(find)
	c.compensations(find)
	helps := func(i int) bool { return nodes[i].Undoes >= 0 || nodes[i].Backs >= 0 }
	for i := range c.p.tasks {
		t := &c.p.tasks[i]
		if c.dormant[i] == "" {
			for _, nd := range t.needs {
				c.need(int32(i), nd)
			}
			continue
		}
		for _, x := range []struct {
			key string
			set bool
		}{{"needs", len(t.needs) > 0}, {"for_each", t.each != nil || t.over.name != ""}, {"when", t.whenAt.v != nil}, {"if", t.cond.v != nil}, {"concurrency_key", t.key.v != nil},
			{"fallback", helps(i)}, {"backup", helps(i) && t.backup.v != nil}, {"compensate", helps(i)}, {"on_failure", helps(i)}, {"cache", helps(i) && t.cache}, {"output", nodes[i].Backs >= 0 && t.output != nil}} {
			if v := t.v.get(x.key); x.set && v != nil {
				c.at(v, t.at.member(x.key), "task %q runs when it is called, as %s; remove %s", t.name, c.dormant[i], x.key)
			}
		}
	}
	if len(c.p.tasks) > 0 && !slices.Contains(c.dormant, "") {
		c.at(c.p.root, nil, "every task runs only when it is called; there must be one that a job begins with")
	}
}

// backups finds what runs beside what. A ring goes over a task, what it backs and what
// that stands in for, as whoever is called is called in one place.
func (c *compiler) backups(find func(by string, nd need) (int32, bool)) {
	nodes := c.plan.Nodes
	for i := range c.p.tasks {
		t := &c.p.tasks[i]
		nd := t.backup
		if nd.v == nil || nd.v.kind != text || t.sub.v != nil {
			continue
		}
		b, there := c.index[nd.name]
		if nd.name == t.name {
			c.at(nd.v, nd.at, "task %q cannot run beside itself; name another task", t.name)
			continue
		}
		if way := c.calledBy(int32(i), b); there && way != nil {
			c.ringed = true
			c.at(nd.v, nd.at, "these tasks call each other: %s; remove one of the calls", strings.Join(way, " → "))
			c.p.tasks[i].backup = need{}
			continue
		}
		if nodes[i].Backs >= 0 {
			continue // complained about as what is called and calls another
		}
		if f, ok := find(fmt.Sprintf("the backup of %q", t.name), nd); ok {
			nodes[i].Backup, nodes[f].Backs = f, int32(i)
		}
	}
}

// calledBy returns the way from task b, through fallbacks and backups, to the task i that
// would call it, and to b again; nil where there is none.
func (c *compiler) calledBy(i, b int32) (way []string) {
	nodes := c.plan.Nodes
	first, at := c.plan.Stands(i)
	if q := nodes[first].Backs; q >= 0 && q == b {
		way = append(way, nodes[b].Name)
	} else if f, before := c.plan.Stands(b); f != first || before > at {
		return nil
	}
	for k := i; k >= 0; k = nodes[k].Primary {
		if len(way) < ringShown {
			way = append(way, nodes[k].Name)
		}
		if k == b {
			break
		}
	}
	if nodes[b].Name == way[0] { // over a backup: b, then what it calls, down to i
		slices.Reverse(way[1:])
	} else {
		slices.Reverse(way)
	}
	return append(way, nodes[b].Name)
}

// compensations finds what undoes what.
func (c *compiler) compensations(find func(by string, nd need) (int32, bool)) {
	nodes := c.plan.Nodes
	for i := range c.p.tasks {
		t := &c.p.tasks[i]
		nd := t.compensate
		if nd.v == nil || nd.v.kind != text {
			continue
		}
		switch first, _ := c.plan.Stands(int32(i)); {
		case nd.name == t.name:
			c.at(nd.v, nd.at, "task %q cannot undo itself; name another task", t.name)
		case c.plan.closes[first]:
			c.at(nd.v, nd.at, "task %q runs at the end of the job, and what it does is not undone; remove compensate", t.name)
		case t.cache:
			c.at(nd.v, nd.at, "the result of task %q is used again (cache), and may be that of another job, where it must not be undone; remove cache or compensate", t.name)
		default:
			if f, ok := find(fmt.Sprintf("the compensation of %q", t.name), nd); ok {
				nodes[i].Compensation, nodes[f].Undoes = f, int32(i)
				c.plan.undoes = true
			}
		}
	}
}

// CalledFor returns the task in whose place or after which node runs, whoever called
// it, and whose parents it sees: node itself if it is not called.
func (p *Plan) CalledFor(node int32) int32 {
	if u := p.Lender(node); u >= 0 {
		node = u
	}
	first, _ := p.Stands(node)
	return first
}

// fallbackRings complains about tasks that stand in for each other, and cuts the ring.
func (c *compiler) fallbackRings() {
	nodes := c.plan.Nodes
	seen := make([]bool, len(nodes)) // a task is called in one place only: from each there is one way
	for i := range nodes {
		if seen[i] {
			continue
		}
		var way []string
		for k := int32(i); k >= 0; k = nodes[k].Fallback {
			if len(way) < ringShown {
				way = append(way, nodes[k].Name)
			}
			if seen[k] {
				if k != int32(i) {
					break
				}
				if len(way) == ringShown {
					way = append(way[:ringShown-1], "…", nodes[i].Name)
				}
				c.ringed = true
				nd := c.p.tasks[i].fallback
				c.at(nd.v, nd.at, "these tasks stand in for each other: %s; remove one fallback", strings.Join(way, " → "))
				nodes[nodes[i].Fallback].Primary, nodes[i].Fallback = -1, -1
				break
			}
			seen[k] = true
		}
	}
}

// shapes makes fallbacks, backups and compensations of maps maps of the same family.
func (c *compiler) shapes() {
	nodes := c.plan.Nodes
	for i := range nodes {
		if first := c.plan.CalledFor(int32(i)); first != int32(i) {
			nodes[i].Mapped, nodes[i].Over, nodes[i].root = nodes[first].Mapped, nodes[first].Over, nodes[first].root
		}
	}
}

// refer adds an output that is needed, and those that may stand in for it.
func (p *Plan) refer(refs *refSet, node int32, same bool) {
	for ; node >= 0; node = p.Nodes[node].Fallback {
		refs.add(Ref{node, same})
	}
}

// standIns gives fallbacks, backups and compensations what they take over from the task they
// are called for, and checks what dormant tasks use.
func (c *compiler) standIns() {
	nodes := c.plan.Nodes
	inherit := func(i int, from int32) {
		if c.p.tasks[i].with == nil {
			c.plan.with[i], c.plan.inputRefs[i] = c.plan.with[from], c.plan.inputRefs[from]
		}
	}
	for i := range nodes {
		if nodes[i].Primary >= 0 {
			inherit(i, c.plan.CalledFor(int32(i)))
		}
	}
	for i := range nodes {
		if u := c.plan.Lender(int32(i)); u >= 0 { // which has its own by now
			inherit(i, u)
			c.plan.lent[i] = c.p.tasks[i].with == nil
		}
	}
	seen := map[int32]map[int32]bool{} // of each task that one is called for, what it waits for
	sees := func(first, parent int32) bool {
		if seen[first] == nil {
			seen[first] = make(map[int32]bool, len(c.edges[first]))
			for _, e := range c.edges[first] {
				seen[first][e.parent] = true
			}
		}
		return seen[first][parent]
	}
	for _, u := range c.uses {
		first := c.plan.CalledFor(u.by)
		switch {
		case c.plan.closes[u.by]:
		case sees(first, u.parent):
		case nodes[u.by].Backs >= 0:
			c.at(u.v, u.at, "task %q runs beside %q and sees what that sees; let %[2]q need %[3]q too", nodes[u.by].Name, nodes[first].Name, nodes[u.parent].Name)
		case nodes[u.by].Undoes >= 0:
			c.at(u.v, u.at, "task %q undoes %q and sees its output and what that sees; let %[3]q need %[4]q too", nodes[u.by].Name, nodes[nodes[u.by].Undoes].Name, nodes[first].Name, nodes[u.parent].Name)
		default:
			c.at(u.v, u.at, "task %q stands in for %q and sees what that sees; let %[2]q need %[3]q too", nodes[u.by].Name, nodes[first].Name, nodes[u.parent].Name)
		}
	}
}
