package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// undoNext calls the next compensations of jobs that ended badly, in the reverse order
// in which what they undo was completed: the job's events have it. A job that has none
// left goes on to its end.
func (x *changes) undoNext(ctx context.Context, tx store.Tx) error {
	jobs := x.undo
	x.undo = nil
	var places []store.Undoable
	for _, j := range jobs {
		for i, n := range x.plans[j.Job].Nodes {
			if n.Compensation >= 0 {
				places = append(places, store.Undoable{Job: j.Job, Node: int32(i), By: n.Compensation})
			}
		}
	}
	done := map[drover.JobID]map[dag.Key]drover.TaskID{}
	err := tx.Pipe(ctx, store.ReadUndoable(places, func(t store.Undone) {
		if done[t.Job] == nil {
			done[t.Job] = map[dag.Key]drover.TaskID{}
		}
		done[t.Job][dag.Key{Node: t.Node, Index: t.Index}] = t.Task
	}))
	if err != nil {
		return err
	}
	x.endedHere(done)
	seqs, err := x.completion(ctx, tx, jobs, done)
	if err != nil {
		return err
	}
	for _, j := range jobs {
		plan := x.plans[j.Job]
		var list []dag.Done
		for k, id := range done[j.Job] {
			list = append(list, dag.Done{Key: k, Seq: seqs[id]})
		}
		next := plan.Undo(list)
		if len(next) == 0 {
			if !x.closeFinally(j, plan) {
				x.over(j)
			}
			continue
		}
		if j.Phase != phaseUndo {
			j.Phase = phaseUndo
			x.event(j, drover.JobCompensating, drover.TaskID{}, fmt.Appendf(nil, `{"tasks":%d}`, len(list)))
		}
		for _, k := range next {
			x.callAtEnd(j, plan, k)
		}
	}
	return nil
}

// endedHere brings done up to the ends of this transaction.
func (x *changes) endedHere(done map[drover.JobID]map[dag.Key]drover.TaskID) {
	for i := range x.finals {
		t := &x.finals[i].Task
		plan := x.plans[t.Job]
		switch {
		case plan == nil || plan.Nodes[t.Node].Compensation < 0:
		case t.Status != drover.Succeeded || t.How == lifecycle.HowReused:
			delete(done[t.Job], keyOf(t))
		default:
			if done[t.Job] == nil {
				done[t.Job] = map[dag.Key]drover.TaskID{}
			}
			done[t.Job][keyOf(t)] = t.ID
		}
	}
}

// completion returns the numbers of the events that tell the successes of tasks, of
// jobs in which tasks of several nodes are to be undone: others need no order.
func (x *changes) completion(ctx context.Context, tx store.Tx, jobs []*store.JobLive, done map[drover.JobID]map[dag.Key]drover.TaskID) (map[drover.TaskID]int64, error) {
	var ask []drover.JobID
	for _, j := range jobs {
		nodes := map[int32]bool{}
		for k := range done[j.Job] {
			nodes[k.Node] = true
		}
		if len(nodes) > 1 {
			ask = append(ask, j.Job)
		}
	}
	seqs := map[drover.TaskID]int64{}
	if err := tx.Pipe(ctx, store.ReadSuccesses(ask, seqs)); err != nil {
		return nil, err
	}
	for i := range x.events {
		if e := &x.events[i]; e.Type == drover.TaskSucceeded {
			seqs[e.Task] = e.Seq
		}
	}
	return seqs, nil
}

// lentInputs reads the inputs that replays gave tasks which are undone now by such as
// are given the same.
func lentInputs(ctx context.Context, tx store.Tx, calls []call, was map[store.Key]store.Called) (map[drover.TaskID][]byte, error) {
	var of []store.Generation
	for _, c := range calls {
		if !c.plan.Lent(c.key.Node) {
			continue
		}
		if t := was[store.Key{Job: c.job.Job, Node: c.plan.Nodes[c.key.Node].Undoes, Index: c.key.Index}]; t.Generation > 1 {
			of = append(of, store.Generation{Task: t.ID, N: t.Generation})
		}
	}
	if len(of) == 0 {
		return nil, nil
	}
	edited := map[drover.TaskID][]byte{}
	return edited, tx.Pipe(ctx, store.EditedInputs(of, edited))
}

// maxCompensated bounds the tasks that are shown of what undoes a job's work.
const maxCompensated = 1000

// fillCompensation tells of the tasks that undo what a job did, if it has some.
func (e *Engine) fillCompensation(ctx context.Context, tx store.Tx, r store.JobRow, j *drover.Job) error {
	plan, err := e.plan(ctx, tx, r.Pipeline)
	if err != nil || !plan.Undoes() {
		return err
	}
	var nodes []int32
	for i := range plan.Nodes {
		if plan.Nodes[i].Undoes >= 0 {
			nodes = append(nodes, int32(i))
		}
	}
	var rows []store.Undoer
	if err := tx.Pipe(ctx, store.ReadUndoers(r.ID, nodes, &rows)); err != nil || len(rows) == 0 {
		return err
	}
	live := map[drover.TaskID]drover.Status{}
	if !j.Status.Final() { // one that was replayed runs anew
		if err := tx.Pipe(ctx, store.LiveStatuses(r.ID, live)); err != nil {
			return err
		}
	}
	slices.SortFunc(rows, func(a, b store.Undoer) int {
		return cmp.Or(cmp.Compare(a.CreatedAt, b.CreatedAt), compareIDs(a.Task, b.Task))
	})
	c := &drover.Compensation{Status: drover.Succeeded}
	for _, u := range rows {
		if s, ok := live[u.Task]; ok {
			u.Status, u.Error = s, nil
		}
		switch {
		case !u.Status.Final():
			c.Status = drover.Running
		case u.Status != drover.Succeeded && c.Status != drover.Running:
			c.Status = drover.Failed
		}
		if n := &plan.Nodes[u.Node]; len(c.Tasks) < maxCompensated {
			c.Tasks = append(c.Tasks, drover.Compensated{Task: plan.Nodes[n.Undoes].Name, Index: int(u.Index), By: n.Name, TaskID: u.Task, Status: u.Status, Error: decodeFailure(u.Error)})
		}
	}
	j.Compensation = c
	return nil
}
