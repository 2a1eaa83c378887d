// Package rings decides what running handlers get of limits: in the order in which
// they asked, and never so that some wait for each other in a ring. It does no I/O.
package rings

import (
	"maps"
	"slices"

	"github.com/drover-dev/drover"
)

// Line is a limit with what is held of it and who waits for it.
type Line struct {
	// Max is how many permits there are, Used how many of them are held, by whomever.
	Max, Used int64
	// Waits are the handlers that wait, in the order in which they asked.
	Waits []Wait
}

// Wait is what the handler of a running task waits for.
type Wait struct {
	Task   drover.TaskID
	Weight int64
}

// Free tells if a handler that asks now gets so many permits at once: nobody waits before it.
func (l *Line) Free(weight int64) bool { return len(l.Waits) == 0 && l.Used+weight <= l.Max }

// Grants tells how many of those who wait, from the first on, get what they ask for now.
// One that asks for more than there is keeps those behind it waiting, so that it comes
// to its turn.
func (l *Line) Grants() int {
	used := l.Used
	for i, w := range l.Waits {
		if used += w.Weight; used > l.Max {
			return i
		}
	}
	return len(l.Waits)
}

// Hold is what a task holds of a limit.
type Hold struct {
	Task   drover.TaskID
	Limit  int32
	Weight int64
}

// Step is a link of a ring: a task waits for a limit that the task of the next step
// holds, or waits for before it; that of the last step for the first.
type Step struct {
	Task  drover.TaskID
	Limit int32
	// Ahead says that the next one does not hold the limit but stands before in its line.
	Ahead bool
}

// Find tells if a task could never go on, were it to wait as the lines say, because
// others that it waits for wait for it; the ring that they make begins with it. The
// lines are by the number of their limit, and have the wait of the task; held is what
// those hold who wait for something. Whoever waits for nothing is taken to end and to
// give back what it has.
func Find(task drover.TaskID, lines map[int32]*Line, held []Hold) []Step {
	g := graph{lines: lines, holds: map[int32][]Hold{}, stuck: map[drover.TaskID][]place{}}
	for _, limit := range slices.Sorted(maps.Keys(lines)) {
		for i, w := range lines[limit].Waits {
			if g.stuck[w.Task] == nil {
				g.order = append(g.order, w.Task)
			}
			g.stuck[w.Task] = append(g.stuck[w.Task], place{limit, i})
		}
	}
	for _, h := range held {
		if len(g.stuck[h.Task]) > 0 {
			g.holds[h.Limit] = append(g.holds[h.Limit], h)
		}
	}
	g.reduce()
	if len(g.stuck[task]) == 0 {
		return nil
	}
	return g.ring(task)
}

type graph struct {
	lines map[int32]*Line
	holds map[int32][]Hold          // of those who wait
	stuck map[drover.TaskID][]place // who cannot go on, and where each waits
	order []drover.TaskID           // of who waits, as they stand in the lines
}

// place is where a task waits: a limit, and how many stand before it.
type place struct {
	limit int32
	at    int
}

// reduce takes out, one after the other, those who get all that they wait for once
// everybody taken out before has ended. Who is left waits for ever. As nobody's end
// takes anything from another, the order does not matter.
func (g *graph) reduce() {
	for again := true; again; {
		again = false
		g.order = slices.DeleteFunc(g.order, func(task drover.TaskID) bool {
			if slices.ContainsFunc(g.stuck[task], func(p place) bool { return !g.fits(p) }) {
				return false
			}
			delete(g.stuck, task)
			again = true
			return true
		})
	}
}

// fits tells if who waits at p gets it beside those who are stuck: what they hold, and
// what those before it in the line are to get first.
func (g *graph) fits(p place) bool {
	l := g.lines[p.limit]
	sum := l.Waits[p.at].Weight
	for _, h := range g.holds[p.limit] {
		if len(g.stuck[h.Task]) > 0 {
			sum += h.Weight
		}
	}
	for _, w := range l.Waits[:p.at] {
		if len(g.stuck[w.Task]) > 0 {
			sum += w.Weight
		}
	}
	return sum <= l.Max
}

// ring finds the shortest ring of those who are stuck that begins with a task.
func (g *graph) ring(task drover.TaskID) []Step {
	type link struct {
		from drover.TaskID
		step Step
	}
	came := map[drover.TaskID]link{}
	for queue := []drover.TaskID{task}; len(queue) > 0; {
		at := queue[0]
		queue = queue[1:]
		for _, p := range g.stuck[at] {
			if g.fits(p) {
				continue
			}
			visit := func(to drover.TaskID, ahead bool) bool {
				if _, seen := came[to]; seen || len(g.stuck[to]) == 0 {
					return false
				}
				came[to] = link{at, Step{Task: at, Limit: p.limit, Ahead: ahead}}
				queue = append(queue, to)
				return to == task
			}
			found := slices.ContainsFunc(g.holds[p.limit], func(h Hold) bool { return visit(h.Task, false) }) ||
				slices.ContainsFunc(g.lines[p.limit].Waits[:p.at], func(w Wait) bool { return visit(w.Task, true) })
			if !found {
				continue
			}
			var steps []Step
			for to := task; ; {
				l := came[to]
				steps = append(steps, l.step)
				if to = l.from; to == task {
					break
				}
			}
			slices.Reverse(steps)
			return steps
		}
	}
	// It waits behind a ring that it is no part of, which a lowered limit can make.
	for _, p := range g.stuck[task] {
		if !g.fits(p) {
			return []Step{{Task: task, Limit: p.limit}}
		}
	}
	return nil
}
