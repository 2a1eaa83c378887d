// Package dagtest is a naive model of what becomes of a job's tasks: random graphs,
// and how every task of one must end, told from its definition without counters,
// batches or an order of events. Tests hold the Board and the engine to it.
package dagtest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// Count is how a row that has ended counts below.
type Count int

// The counts.
const (
	OK Count = iota + 1
	Bad
	Not // skipped
)

// Node is a task of the model.
type Node struct {
	Name  string
	Needs []int
	Rule  string
	N     int // of quorum
	Size  int // elements of a map over a list; -1: no such map
	Over  int // the map it goes over; -1: none
	// Cond is its condition: none, "no" (false), "yes", "odd" (true for elements 1, 3, …)
	// or "bad" (it cannot be told).
	Cond string
	// Backups is how many fallbacks it has, one for the other; Degrades says that the
	// job goes on degraded when the last of them fails, or it itself if there is none.
	Backups  int
	Degrades bool
	// Spare says that it has a backup: a row whose attempt fails succeeds if that does.
	Spare bool
	// Undone says that it has a compensation.
	Undone bool
	// Share is the min_success of a map: none, a number, or a part such as "50%".
	Share string
	// Parallel is its max_parallel; 0 is none.
	Parallel int
}

// whole is how a map with a share counts outside its family.
func (g *Graph) whole(i int, r Result) Count {
	ok, there := 0, 0
	for k, e := range r.Elements {
		switch g.Counted(i, k, e) {
		case OK:
			ok++
			there++
		case Bad:
			there++
		}
	}
	need := there
	if part, is := strings.CutSuffix(g.Nodes[i].Share, "%"); is {
		for p := atoi(part); need > 0 && 100*(need-1) >= p*there; {
			need--
		}
	} else {
		need = min(need, atoi(part))
	}
	switch {
	case there == 0:
		return Not
	case ok >= need:
		return OK
	}
	return Bad
}

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}

// forgiven reports whether enough elements of a map succeeded, and of those that go
// over it and ask for some.
func (g *Graph) forgiven(i int, results []Result) bool {
	if g.Nodes[i].Share == "" || g.whole(i, results[i]) != OK {
		return false
	}
	below := map[int]bool{i: true}
	for d := i + 1; d < len(g.Nodes); d++ {
		if !slices.ContainsFunc(g.parents(d), func(p int) bool { return below[p] }) {
			continue
		}
		below[d] = true
		if g.Root(d) == g.Root(i) && g.Nodes[d].Share != "" && results[d].One == "" && g.whole(d, results[d]) == Bad {
			return false
		}
	}
	return true
}

// Counted is how a row of task i that ended so counts below, once what stands in for
// it has ended too.
func (g *Graph) Counted(i, index int, e End) Count {
	n := &g.Nodes[i]
	if e != "fail" && e != "broke" {
		return e.Counts()
	}
	if index >= 0 {
		for level := 1; level <= n.Backups; level++ {
			if !g.Fails(i+1000*level, index) {
				return OK
			}
		}
	}
	if n.Degrades && (n.Backups == 0 || index >= 0) {
		return OK
	}
	return Bad
}

// Input is the job's input that the conditions look at.
const Input = `{"no": false, "list": [1, 2]}`

var conds = map[string]string{"no": "input.no", "yes": "input.list.size() < 100", "odd": "index % 2 == 1", "bad": "input.no.such > 1"}

// allows is what a condition makes of a row that the rule lets run: "run", or how it
// ends.
func (n *Node) allows(element int) End {
	switch n.Cond {
	case "no":
		return "skip"
	case "bad":
		return "broke"
	case "odd":
		if element%2 == 0 {
			return "skip"
		}
	}
	return "run"
}

// End is how a row of the model ended: ok fail skip block broke empty.
type End string

// Counts is how such an end counts, unless something makes it good.
func (e End) Counts() Count {
	switch e {
	case "ok", "empty":
		return OK
	case "skip":
		return Not
	}
	return Bad
}

// Result is how a task of the model ended: as one row, or as elements.
type Result struct {
	One      End // of a map: as it ended without elements
	Elements []End
}

// Graph is a job of the model. Fails tells how a row would end that runs; a node
// from 1000 on is a fallback of one 1000 below.
type Graph struct {
	Nodes []Node
	Fails func(node, index int) bool
	// Marked are tasks that are no maps, by their rows, of which somebody says how they end
	// before they run.
	Marked map[Row]End
}

// decide says what becomes of a task, from how all above it have ended.
func (n *Node) decide(above []Count) End {
	count := func(o Count) (c int) {
		for _, x := range above {
			if x == o {
				c++
			}
		}
		return c
	}
	ok, bad, not := count(OK), count(Bad), count(Not)
	choose := func(run bool, otherwise End) End {
		if run {
			return "run"
		}
		return otherwise
	}
	blockOrSkip := End("skip")
	if bad > 0 {
		blockOrSkip = "block"
	}
	switch n.Rule {
	case "all_success":
		return choose(bad == 0 && not == 0, blockOrSkip)
	case "all_done", "always":
		return "run"
	case "all_failed":
		return choose(bad == len(above), "skip")
	case "one_success":
		return choose(ok > 0, blockOrSkip)
	case "one_failed":
		return choose(bad > 0, "skip")
	case "one_done":
		return choose(ok+bad > 0, "skip")
	case "none_failed":
		return choose(bad == 0, "block")
	case "none_failed_min_one_success":
		return choose(bad == 0 && ok > 0, blockOrSkip)
	case "none_skipped":
		return choose(not == 0, "skip")
	case "all_skipped":
		return choose(not == len(above), "skip")
	case "quorum":
		return choose(ok >= n.N, blockOrSkip)
	}
	panic(n.Rule)
}

// Root is the map over a list whose elements task i shares, or -1.
func (g *Graph) Root(i int) int {
	for g.Nodes[i].Over >= 0 {
		i = g.Nodes[i].Over
	}
	if g.Nodes[i].Size < 0 {
		return -1
	}
	return i
}

// parents are those a task waits for: the ones it names and the map it goes over.
func (g *Graph) parents(i int) []int {
	out := slices.Clone(g.Nodes[i].Needs)
	if o := g.Nodes[i].Over; o >= 0 {
		out = append(out, o)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Results tells how every task ends. Nodes stand after those they wait for.
func (g *Graph) Results() []Result {
	out := make([]Result, len(g.Nodes))
	for i := range g.Nodes {
		g.one(i, out)
	}
	return out
}

// end is how a row ends that runs.
func (g *Graph) end(i, index int) End {
	if g.Fails(i, index) && (!g.Nodes[i].Spare || g.Fails(i+Spares, index)) {
		return "fail"
	}
	return "ok"
}

// Spares is added to the number of a task for its backup.
const Spares = 50_000

// Spared tells how the backup of a row ended that ended as e, once it ran: "" if it was
// not called.
func (g *Graph) Spared(i, index int, e End) End {
	_, marked := g.Marked[Row{i, index}]
	switch {
	case !g.Nodes[i].Spare || marked && g.Root(i) < 0 || !g.Fails(i, index) || e != "ok" && e != "fail":
		return ""
	case g.Fails(i+Spares, index):
		return "fail"
	}
	return "ok"
}

// above is how those count that a row waits for; element is -1 of a task that is no
// element.
func (g *Graph) above(i, element int, out []Result) (list []Count) {
	for _, p := range g.parents(i) {
		switch r := out[p]; {
		case r.One != "":
			index := 0
			if g.Root(p) >= 0 {
				index = -1
			}
			list = append(list, g.Counted(p, index, r.One))
		case element >= 0 && g.Root(i) >= 0 && g.Root(p) == g.Root(i):
			list = append(list, g.Counted(p, element, r.Elements[element]))
		case g.Nodes[p].Share != "":
			list = append(list, g.whole(p, r))
		default:
			for k, e := range r.Elements {
				list = append(list, g.Counted(p, k, e))
			}
		}
	}
	return list
}

// one tells how a task ends, from how those above it have.
func (g *Graph) one(i int, out []Result) {
	n := &g.Nodes[i]
	marked, ok := g.Marked[Row{i, 0}]
	switch {
	case ok && g.Root(i) < 0:
		out[i].One = marked
	case n.Over >= 0 && out[n.Over].One == "":
		for e := range out[n.Over].Elements {
			d := n.decide(g.above(i, e, out))
			if d == "run" {
				d = n.allows(e)
			}
			if d == "run" {
				d = g.end(i, e)
			}
			out[i].Elements = append(out[i].Elements, d)
		}
	case n.Over >= 0:
		out[i].One = n.decide(g.above(i, -1, out))
		if out[i].One == "run" {
			out[i].One = "skip" // there is nothing to go over
			if out[n.Over].One == "empty" {
				out[i].One = "empty"
			}
		}
	default:
		d := n.decide(g.above(i, -1, out))
		if d == "run" && n.Cond != "odd" {
			d = n.allows(-1)
		}
		switch {
		case d != "run":
			out[i].One = d
		case n.Size == 0:
			out[i].One = "empty"
		case n.Size > 0:
			for e := range n.Size {
				d := End("run")
				if n.Cond == "odd" {
					d = n.allows(e)
				}
				if d == "run" {
					d = g.end(i, e)
				}
				out[i].Elements = append(out[i].Elements, d)
			}
		default:
			out[i].One = g.end(i, 0)
		}
	}
}

// YAML writes the graph as a definition.
func (g *Graph) YAML() string {
	var b strings.Builder
	b.WriteString("pipeline: drawn\non_failure: continue\ntasks:\n")
	for i, n := range g.Nodes {
		fmt.Fprintf(&b, "  %s: {run: x, default: 0", n.Name)
		if len(n.Needs) > 0 {
			names := make([]string, len(n.Needs))
			for k, p := range n.Needs {
				names[k] = g.Nodes[p].Name
			}
			fmt.Fprintf(&b, ", needs: [%s]", strings.Join(names, ", "))
		}
		switch {
		case n.Over >= 0:
			fmt.Fprintf(&b, ", for_each: %s", g.Nodes[n.Over].Name)
		case n.Size >= 0 && n.Size%2 == 1:
			fmt.Fprintf(&b, ", for_each: {range: %d}", n.Size)
		case n.Size >= 0:
			fmt.Fprintf(&b, ", for_each: [%s]", strings.TrimSuffix(strings.Repeat("0, ", n.Size), ", "))
		}
		if n.Share != "" {
			fmt.Fprintf(&b, ", min_success: %s", n.Share)
		}
		if n.Parallel > 0 {
			fmt.Fprintf(&b, ", max_parallel: %d", n.Parallel)
		}
		if n.Backups > 0 {
			fmt.Fprintf(&b, ", fallback: %s-f1", n.Name)
		} else if n.Degrades {
			b.WriteString(", on_failure: degrade")
		}
		if n.Spare {
			fmt.Fprintf(&b, ", backup: %s-b", n.Name)
		}
		if n.Cond != "" {
			fmt.Fprintf(&b, ", if: %q", conds[n.Cond])
		}
		if n.Undone {
			fmt.Fprintf(&b, ", compensate: %s-c", n.Name)
		}
		if len(g.parents(i)) > 0 {
			rule := n.Rule
			if rule == "quorum" {
				rule = fmt.Sprintf("quorum(%d)", n.N)
			}
			fmt.Fprintf(&b, ", when: %s", rule)
		}
		b.WriteString("}\n")
	}
	for _, n := range g.Nodes {
		for level := 1; level <= n.Backups; level++ {
			fmt.Fprintf(&b, "  %s-f%d: {run: x", n.Name, level)
			if level < n.Backups {
				fmt.Fprintf(&b, ", fallback: %s-f%d", n.Name, level+1)
			} else if n.Degrades {
				b.WriteString(", on_failure: degrade")
			}
			b.WriteString("}\n")
		}
		if n.Spare {
			fmt.Fprintf(&b, "  %s-b: {run: x}\n", n.Name)
		}
		if n.Undone {
			fmt.Fprintf(&b, "  %s-c: {run: x}\n", n.Name)
		}
	}
	return b.String()
}

// Undoes is added to the number of a task for that which undoes it.
const Undoes = 100_000

// Undoes reports whether a task has a compensation.
func (g *Graph) Undoes() bool {
	return slices.ContainsFunc(g.Nodes, func(n Node) bool { return n.Undone })
}

// Broken tells if the job fails: a failure of it counts, and nothing makes it good.
func (g *Graph) Broken() bool { return g.Unhandled(g.Results()) }

// Unhandled is Broken of tasks that ended so.
func (g *Graph) Unhandled(results []Result) bool {
	bad := func(i, index int, e End) bool {
		return (e == "fail" || e == "broke") && g.Counted(i, index, e) == Bad && (index < 0 || !g.forgiven(i, results))
	}
	for i, r := range results {
		index := 0
		if g.Root(i) >= 0 {
			index = -1
		}
		if bad(i, index, r.One) {
			return true
		}
		for k, e := range r.Elements {
			if bad(i, k, e) {
				return true
			}
		}
	}
	return false
}

// Spoils are the failures above a row that were made good, as far as it is concerned: an
// element of a map stands or falls with those before it, whoever else may fail.
func (g *Graph) Spoils(i, element int) map[Row]bool {
	out, results := map[Row]bool{}, g.Results()
	var up func(i, element int)
	up = func(i, element int) {
		for _, p := range g.parents(i) {
			see := func(index int, e End) {
				if (e == "fail" || e == "broke") && g.Counted(p, index, e) == OK {
					out[Row{p, index}] = true
				}
			}
			r := results[p]
			same := element >= 0 && g.Root(i) >= 0 && g.Root(i) == g.Root(p)
			switch {
			case r.One != "" && g.Root(p) >= 0:
				see(Unexpanded, r.One)
			case r.One != "":
				see(0, r.One)
			}
			for k, e := range r.Elements {
				switch {
				case same && k != element:
				case !same && (e == "fail" || e == "broke") && g.Nodes[p].Share != "" && g.whole(p, r) == OK:
					out[Row{p, k}] = true
				default:
					see(k, e)
				}
			}
			if same {
				up(p, element)
			} else {
				up(p, Unexpanded)
			}
		}
	}
	up(i, element)
	return out
}

// Unexpanded is the index of a map that has no elements.
const Unexpanded = -1

// Patient reports whether a task, and every one above it, waits for the ends of all
// above it before it runs.
func (g *Graph) Patient(i int) bool {
	if slices.Contains([]string{"one_success", "one_failed", "one_done", "always", "quorum"}, g.Nodes[i].Rule) {
		return false
	}
	return !slices.ContainsFunc(g.parents(i), func(p int) bool { return !g.Patient(p) })
}

// Row is a task of the model, or an element of one.
type Row struct{ Node, Index int }

// ToUndo are the rows that are undone: of a job that fails, those that succeeded and
// have a compensation.
func (g *Graph) ToUndo() (rows []Row) {
	if !g.Broken() {
		return nil
	}
	for i, r := range g.Results() {
		if !g.Nodes[i].Undone {
			continue
		}
		if r.One == "ok" {
			rows = append(rows, Row{i, 0})
		}
		for k, e := range r.Elements {
			if e == "ok" {
				rows = append(rows, Row{i, k})
			}
		}
	}
	return rows
}

// bound draws the bounds of a map. One that goes over another which has a share needs one
// too, unless its rule lets elements run whatever becomes of those above.
func (g *Graph) bound(i int, r *rand.Rand) {
	n := &g.Nodes[i]
	if g.Root(i) < 0 {
		return
	}
	if r.IntN(3) == 0 {
		n.Parallel = 1 + r.IntN(3)
	}
	must := false
	for _, p := range g.parents(i) {
		must = must || g.Root(p) == g.Root(i) && g.Nodes[p].Share != "" && slices.Contains([]string{"all_success", "none_failed", "none_failed_min_one_success", "one_success", "quorum"}, n.Rule)
	}
	if must || r.IntN(3) == 0 {
		n.Share = []string{"1", "2", "3", "30%", "50%", "100%"}[r.IntN(6)]
		if n.Backups == 0 {
			n.Degrades = false
		}
	}
}

// Rules are the names of all rules.
var Rules = []string{"all_success", "all_done", "all_failed", "one_success", "one_failed", "one_done", "none_failed", "none_failed_min_one_success", "none_skipped", "all_skipped", "always", "quorum"}

// Draw draws a graph of 5 to 12 tasks and how they end.
func Draw(r *rand.Rand) *Graph {
	g := &Graph{}
	count := 5 + r.IntN(8)
	for i := range count {
		n := Node{Name: fmt.Sprintf("t%d", i), Rule: "all_success", Size: -1, Over: -1}
		for p := range i {
			if r.IntN(3) == 0 && len(n.Needs) < 4 {
				n.Needs = append(n.Needs, p)
			}
		}
		switch r.IntN(4) {
		case 0:
			n.Size = r.IntN(4)
		case 1:
			for p := range i {
				if g.Root(p) >= 0 && r.IntN(2) == 0 {
					n.Over = p
				}
			}
		}
		if len(n.Needs) > 0 || n.Over >= 0 {
			if r.IntN(3) > 0 {
				n.Rule = Rules[r.IntN(len(Rules))]
			}
			plain := 0
			for _, p := range n.Needs {
				if g.Nodes[p].Size < 0 && g.Nodes[p].Over < 0 {
					plain++
				}
			}
			n.N = 1 + r.IntN(3)
			if plain == len(n.Needs) && n.Over < 0 {
				n.N = min(n.N, plain)
			}
		}
		switch x := r.IntN(20); {
		case x < 3:
			n.Cond = []string{"no", "yes", "bad"}[x]
		case x < 6 && (n.Over >= 0 || n.Size >= 0):
			n.Cond = "odd"
		}
		switch r.IntN(6) {
		case 0:
			n.Backups = 1 + r.IntN(2)
		case 1:
			n.Degrades = true
		case 2:
			n.Backups, n.Degrades = 1, true
		}
		g.Nodes = append(g.Nodes, n)
		g.bound(i, r)
	}
	if r.IntN(2) == 0 {
		for i := range g.Nodes {
			g.Nodes[i].Undone = r.IntN(2) == 0
		}
	}
	for i := range g.Nodes {
		g.Nodes[i].Spare = r.IntN(4) == 0
	}
	g.Fails = DrawFails(r)
	return g
}

// DrawFails draws how rows end that run.
func DrawFails(r *rand.Rand) func(node, index int) bool {
	salt, rate := r.Uint64(), uint64(r.IntN(60))
	return func(node, index int) bool {
		x := rand.New(rand.NewPCG(salt, uint64(node)<<20|uint64(index)))
		return x.Uint64N(100) < rate
	}
}

// FailsAfter tells of rows that began anew how they end now, and of the others how they
// did.
func (a *Anew) FailsAfter(before, now func(node, index int) bool) func(node, index int) bool {
	return func(node, index int) bool {
		if a.Has(node%1000, index) {
			return now(node, index)
		}
		return before(node, index)
	}
}

// Anew is what a rerun does by the model: which rows begin anew, and, of maps over a
// list, which expand again.
type Anew struct {
	Rows  map[Row]bool // of maps that expand again, those that there were
	Whole map[int]bool
	// Parted says that a map would have to begin anew that did not expand with the one
	// it goes over.
	Parted bool
}

// Has reports whether a row that there is now began anew.
func (a *Anew) Has(i, index int) bool { return a.Whole[i] || a.Rows[Row{i, index}] }

// Bounded reports whether what begins anew is of a map with bounds.
func (a *Anew) Bounded(g *Graph) bool {
	for i, n := range g.Nodes {
		if (n.Share != "" || n.Parallel > 0) && a.any(i) {
			return true
		}
	}
	return false
}

// any reports whether a row of a task begins anew.
func (a *Anew) any(i int) bool {
	if a.Whole[i] {
		return true
	}
	for r := range a.Rows {
		if r.Node == i {
			return true
		}
	}
	return false
}

// Rerun tells what begins anew when rows of a job that ended as before are run again:
// they, and whatever waits for a row that begins anew.
func (g *Graph) Rerun(before []Result, asked map[Row]bool) *Anew {
	a := &Anew{Rows: map[Row]bool{}, Whole: map[int]bool{}}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		single := 0
		if g.Root(i) >= 0 {
			single = -1
		}
		below := func(element int) bool {
			for _, p := range g.parents(i) {
				one := element >= 0 && g.Root(i) >= 0 && g.Root(p) == g.Root(i) && before[p].One == ""
				if one && a.Has(p, element) || !one && a.any(p) {
					return true
				}
			}
			return false
		}
		switch {
		case n.Over < 0 && below(-1), n.Over >= 0 && a.Whole[g.Root(i)]:
			a.Whole[i] = true
			for e := range before[i].Elements {
				a.Rows[Row{i, e}] = true
			}
			if before[i].One != "" && before[i].One != "empty" {
				a.Rows[Row{i, single}] = true
			}
		case before[i].One == "empty":
		case before[i].One != "":
			if r := (Row{i, single}); asked[r] || below(-1) {
				a.Rows[r] = true
				a.Parted = a.Parted || n.Over >= 0 && before[n.Over].One == ""
			}
		default:
			for e := range before[i].Elements {
				if r := (Row{i, e}); asked[r] || below(e) {
					a.Rows[r] = true
				}
			}
		}
	}
	return a
}

// After tells how every task ends once what begins anew has ended. Fails tells of the
// rows that begin anew how they end now.
func (g *Graph) After(before []Result, a *Anew) []Result {
	out := make([]Result, len(g.Nodes))
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if a.Whole[i] || before[i].One != "" && a.any(i) {
			g.one(i, out)
			continue
		}
		out[i] = Result{One: before[i].One, Elements: slices.Clone(before[i].Elements)}
		for e := range out[i].Elements {
			if !a.Rows[Row{i, e}] {
				continue
			}
			d := n.decide(g.above(i, e, out))
			if d == "run" && (n.Over >= 0 || n.Cond == "odd") {
				d = n.allows(e)
			}
			if d == "run" {
				d = g.end(i, e)
			}
			out[i].Elements[e] = d
		}
	}
	return out
}
