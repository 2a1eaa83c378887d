package dag

import (
	"cmp"
	"slices"
)

// UndoAtOnce is how many elements of one map are undone at the same time at most.
const UndoAtOnce = 1000

// Done is a task that has succeeded and that nothing has been called to undo.
type Done struct {
	Key
	// Seq is the number of the event that tells its success: the order of completion.
	Seq int64
}

// Undoes reports whether a task of the plan has a compensation.
func (p *Plan) Undoes() bool { return p.undoes }

// Undo returns the compensations to be called next, given all that is to be undone
// still: that of the task which succeeded last, and of those elements of the same map
// that come next, which do not depend on each other.
func (p *Plan) Undo(done []Done) []Key {
	slices.SortFunc(done, func(a, b Done) int {
		return cmp.Or(cmp.Compare(b.Seq, a.Seq), cmp.Compare(b.Node, a.Node), cmp.Compare(b.Index, a.Index))
	})
	var out []Key
	for _, d := range done {
		if d.Node != done[0].Node || len(out) == UndoAtOnce {
			break
		}
		out = append(out, Key{p.Nodes[d.Node].Compensation, d.Index})
	}
	return out
}

// Lent reports whether a task undoes or backs another and is given what that was given.
func (p *Plan) Lent(node int32) bool { return p.lent[node] }

// Lender is the task that a task undoes or backs, or -1.
func (p *Plan) Lender(node int32) int32 { return max(p.Nodes[node].Undoes, p.Nodes[node].Backs) }
