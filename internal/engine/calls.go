package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// call is a dormant task that is to run now: a fallback, because the task it stands
// in for has failed; a rescue, what undoes another, or what runs finally, because the
// others have ended.
type call struct {
	job  *store.JobLive
	plan *compiled
	key  dag.Key
}

// The phases of a job's end, in their order, as job_live has them.
const (
	phaseRescue  = 1
	phaseUndo    = 3
	phaseFinally = 2
)

// close reports whether a job whose tasks have all ended goes on before its own end:
// with the rescue, with what undoes what it did (undoNext finds out), and with what
// runs finally. A hold does not keep that.
func (x *changes) close(j *store.JobLive) bool {
	plan := x.plans[j.Job]
	if plan == nil {
		return false
	}
	if j.Phase == 0 {
		j.Phase = phaseRescue
		stopped := j.Cancelling == store.CauseUser || j.Cancelling == store.CauseExpired
		if plan.Rescue >= 0 && j.Failed > j.Handled && !stopped {
			x.callAtEnd(j, plan, dag.Key{Node: plan.Rescue})
			return true
		}
	}
	if j.Phase == phaseUndo || j.Phase == phaseRescue && plan.Undoes() && lifecycle.JobStatus(j.Failed-j.Handled, j.Cancelled) != drover.Succeeded {
		x.undo = append(x.undo, j)
		return true
	}
	return x.closeFinally(j, plan)
}

// closeFinally reports whether a job goes on with what runs finally.
func (x *changes) closeFinally(j *store.JobLive, plan *compiled) bool {
	if j.Phase == phaseFinally {
		return false
	}
	j.Phase = phaseFinally
	for _, node := range plan.Finally {
		x.callAtEnd(j, plan, dag.Key{Node: node})
	}
	return len(plan.Finally) > 0
}

// phaseOf is the phase of a job's end that these live tasks of it belong to.
func phaseOf(plan *compiled, live []lifecycle.Task) int16 {
	for _, t := range live {
		switch {
		case plan.Nodes[t.Node].Undoes >= 0:
			return phaseUndo
		case t.Node == plan.Rescue:
			return phaseRescue
		case plan.Closes(t.Node):
			return phaseFinally
		}
	}
	return 0
}

// callAtEnd calls a task of a job that has no other to run. If the job was being
// stopped, that is over.
func (x *changes) callAtEnd(j *store.JobLive, plan *compiled, k dag.Key) {
	x.calls = append(x.calls, call{j, plan, k})
	if j.Cancelling != 0 {
		j.Cancelling = 0
		j.Graph++
		x.unhold = append(x.unhold, j.Job)
	}
}

// answerCalls makes the rows of the tasks that are called, or has those come back
// that were called before.
func (x *changes) answerCalls(ctx context.Context, tx store.Tx) error {
	calls := x.calls
	x.calls = nil
	var keys []store.Key
	var jobs []drover.JobID
	for _, c := range calls {
		keys = append(keys, store.Key{Job: c.job.Job, Node: c.key.Node, Index: c.key.Index})
		if first := c.plan.CalledFor(c.key.Node); first != c.key.Node && c.plan.Nodes[first].Mapped && c.plan.Nodes[first].Over < 0 {
			keys = append(keys, store.Key{Job: c.job.Job, Node: first, Index: c.key.Index}) // for its item
		}
		if c.plan.Lent(c.key.Node) {
			keys = append(keys, store.Key{Job: c.job.Job, Node: c.plan.Lender(c.key.Node), Index: c.key.Index}) // for what it was given
		}
		jobs = append(jobs, c.job.Job)
	}
	was := map[store.Key]store.Called{}
	var heads []store.JobRow
	if err := tx.Pipe(ctx, store.ReadCalled(keys, was), store.ReadJobs(uniqueSorted(jobs), &heads)); err != nil {
		return err
	}
	edited, err := lentInputs(ctx, tx, calls, was)
	if err != nil {
		return err
	}
	running := map[store.Key]bool{} // of those that have run before
	if slices.ContainsFunc(calls, func(c call) bool {
		return was[store.Key{Job: c.job.Job, Node: c.key.Node, Index: c.key.Index}].Status != 0
	}) {
		if err := tx.Pipe(ctx, store.LiveTasks(uniqueSorted(jobs), func(t lifecycle.Task) { running[store.Key{Job: t.Job, Node: t.Node, Index: t.Index}] = true })); err != nil {
			return err
		}
	}
	head := map[drover.JobID]store.JobRow{}
	for _, h := range slices.Concat(heads, x.jobs, x.kids) {
		head[h.ID] = h
	}
	slices.SortFunc(calls, func(a, b call) int {
		if a.job.Job != b.job.Job {
			return compareIDs(a.job.Job, b.job.Job)
		}
		return int(a.key.Node-b.key.Node)<<20 + int(a.key.Index-b.key.Index)
	})
	for _, c := range calls {
		at, err := x.e.placeIn(ctx, tx, c.plan, c.key.Node)
		if err != nil {
			return err
		}
		j, n, h := c.job, &c.plan.Nodes[c.key.Node], head[c.job.Job]
		t := lifecycle.Task{Job: j.Job, Node: c.key.Node, Index: c.key.Index, Queue: at.queue, Lane: at.lane, Class: pickClass(n.Class, h.Class),
			Status: drover.Pending, Generation: 1, Since: x.now}
		old, again := was[store.Key{Job: j.Job, Node: c.key.Node, Index: c.key.Index}]
		switch {
		case n.Backs >= 0 && again && (old.Status == 0 || running[store.Key{Job: j.Job, Node: c.key.Node, Index: c.key.Index}]):
			continue // it runs since a generation before
		case again && old.Status == 0:
			return store.ErrRetry // it is live: somebody was faster
		case running[store.Key{Job: j.Job, Node: c.key.Node, Index: c.key.Index}]:
			continue // it was replayed beside the task it stands in for: its end counts
		case again:
			t.ID, t.Status, t.Generation, t.LeaseVersion = old.ID, old.Status, old.Generation, old.LeaseVersion
			if t.Status == drover.Failed || t.Status == drover.DeadLetter {
				x.replayed = append(x.replayed, store.LetterKey{Task: t.ID, Generation: t.Generation})
				if x.replay.To == 0 {
					x.replay = store.LetterMove{To: store.LetterReplayed, At: x.now, Reason: "it was called again"}
				}
			}
			if uncount(j, t.Status); n.Backs >= 0 {
				j.Handled -= c.plan.Handled(keyOf(&t), outcomeOf(t.Status, 0))
			}
			t = lifecycle.Replayed(t, 0, x.now)
			if first := c.plan.CalledFor(t.Node); first != t.Node {
				item, there := was[store.Key{Job: j.Job, Node: first, Index: t.Index}]
				if there && !bytes.Equal(item.Input, old.Input) { // its map has expanded again
					x.items = append(x.items, store.GivenRow{Generation: generationOf(&t), Item: item.Input})
				}
			}
			if in := edited[was[store.Key{Job: j.Job, Node: n.Backs, Index: t.Index}].ID]; n.Backs >= 0 && len(in) > 0 && c.plan.Lent(t.Node) {
				x.inputs = append(x.inputs, store.InputRow{LetterKey: store.LetterKey{Task: t.ID, Generation: t.Generation}, Input: in})
			}
			x.event(j, drover.TaskReplayed, t.ID, calledData(t.Generation))
		default:
			t.ID = drover.TaskID(x.e.db.NewID())
			row := store.TaskRow{ID: t.ID, Job: t.Job, Tenant: c.plan.Tenant, Node: t.Node, Index: t.Index, Pipeline: c.plan.ID, Queue: t.Queue, Lane: t.Lane,
				Class: t.Class, Kind: n.Kind, Trace: h.Trace, CreatedAt: x.now}
			if first := c.plan.CalledFor(t.Node); first != t.Node {
				row.Input = was[store.Key{Job: j.Job, Node: first, Index: t.Index}].Input
			}
			if in := edited[was[store.Key{Job: j.Job, Node: c.plan.Lender(t.Node), Index: t.Index}].ID]; len(in) > 0 && c.plan.Lent(t.Node) {
				x.inputs = append(x.inputs, store.InputRow{LetterKey: store.LetterKey{Task: t.ID, Generation: t.Generation}, Input: in})
			}
			x.tasks = append(x.tasks, row)
			j.Total++
		}
		j.Open++
		x.touched[j.Job] = true
		t = x.begin(c.plan, t, lifecycle.Hold{Paused: j.Paused})
		x.watch(t, c.plan.terms(t.Node).closes)
	}
	slices.SortFunc(x.replayed, compareLetters)
	return nil
}

// calledData is what the event of a task says that is called once more.
func calledData(generation int32) []byte {
	b, err := json.Marshal(struct {
		Reason     string `json:"reason"`
		Generation int32  `json:"generation"`
	}{"called again", generation})
	if err != nil {
		return nil
	}
	return b
}

// placeIn finds the queue and lane of a node within a transaction. Whoever submitted
// the job has made them.
func (e *Engine) placeIn(ctx context.Context, tx store.Tx, p *compiled, node int32) (place, error) {
	p.placing.Lock()
	at := p.at
	p.placing.Unlock()
	if at != nil {
		return at[node], nil
	}
	n := &p.Nodes[node]
	q, err := store.QueueNumber(ctx, tx, n.Queue, e.now())
	if err != nil {
		return place{}, err
	}
	l, err := store.LaneNumber(ctx, tx, laneKeyOf(p, n, q))
	return place{q, l}, err
}
