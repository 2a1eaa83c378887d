package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// A map that stands below what is run again expands again, as its list may be another
// one: its elements make room (lifecycle.Gone), and those that there are in the new
// list come back, each as a new generation of the task with its index.

// back is an element that comes back, with what its map gives it.
type back struct {
	lifecycle.Task
	item  []store.GivenRow
	input []store.InputRow
	may   bool // it may end with a result that is there
}

// readGone reads the elements that maps had which are to expand again, and whether they
// may end with results that are there.
func readGone(ctx context.Context, tx store.Tx, asks []question) error {
	var nodes []store.Element
	var placeholders []store.Generation
	at := map[drover.JobID]*graph{}
	for _, a := range asks {
		if a.seat.Index != dag.Unexpanded || a.seat.Task.Generation == 1 || a.plan.Nodes[a.seat.Node].Over >= 0 {
			continue
		}
		at[a.job] = a.graph
		placeholders = append(placeholders, generationOf(&a.seat.Task))
		for _, m := range a.plan.Family(a.seat.Node) {
			nodes = append(nodes, store.Element{Job: a.job, Node: m})
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	var rows []store.GoneRow
	reusable := map[store.Generation]bool{}
	if err := tx.Pipe(ctx, store.GoneElements(nodes, &rows), store.ReadReusable(placeholders, reusable)); err != nil {
		return err
	}
	for _, r := range rows {
		g := at[r.Job]
		if g.gone == nil {
			g.gone = map[dag.Key]store.GoneRow{}
		}
		g.gone[keyOf(&r.Task)] = r
	}
	for _, g := range at {
		for k := range maps.Keys(reusable) {
			g.mayReuse(k)
		}
	}
	return nil
}

// comesBack returns the element of a map that expands again, if it had one with the
// index.
func (g *graph) comesBack(old *seat, index int32, now lifecycle.Instant, listed bool, items []json.RawMessage) (lifecycle.Task, bool) {
	k := dag.Key{Node: old.Node, Index: index}
	was, there := g.gone[k]
	if !there {
		return lifecycle.Task{}, false
	}
	b := back{Task: lifecycle.Replayed(was.Task, 0, now)}
	if listed {
		item := items[index]
		if g.items[k] = item; !bytes.Equal(item, was.Item) {
			b.item = []store.GivenRow{{Generation: generationOf(&b.Task), Item: item}}
		}
	}
	if was.Edited {
		b.input = []store.InputRow{{LetterKey: store.LetterKey{Task: b.ID, Generation: b.Generation}}}
	}
	if b.may = g.reusable[generationOf(&old.Task)]; b.may {
		g.mayReuse(generationOf(&b.Task))
	}
	g.back = append(g.back, b)
	g.grown[old.Node]++
	return b.Task, true
}

// dropGone leaves out tasks that count no more.
func dropGone(tasks map[drover.TaskID]lifecycle.Task) {
	maps.DeleteFunc(tasks, func(_ drover.TaskID, t lifecycle.Task) bool { return t.Status.Final() && t.How == lifecycle.HowGone })
}

// outcomeOf is how a task that has ended counts.
func outcomeOf(s drover.Status, how lifecycle.How) dag.Outcome {
	if how == lifecycle.HowGone {
		return dag.Gone
	}
	return dag.OutcomeOf(s, how == lifecycle.HowBlocked)
}
