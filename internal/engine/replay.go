package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// Replay opens a new generation of a finished task; the old record stays. With
// it come back the tasks that were cut off when the job failed, so that the job
// goes on from there, except those below another failed task, and maps over which
// such a one goes. A finished job is reopened as its next run.
func (e *Engine) Replay(ctx context.Context, c Caller, id drover.TaskID, r ReplayRequest) (drover.Task, error) {
	if err := checkRequest(&r.Request); err != nil {
		return drover.Task{}, err
	}
	if len(r.Input) > MaxPayload {
		return drover.Task{}, drover.Errorf(drover.CodePayloadTooLarge, "input has %d bytes; at most %d", len(r.Input), MaxPayload)
	}
	if len(r.Input) > 0 && !json.Valid(r.Input) {
		return drover.Task{}, &drover.Error{Code: drover.CodeValidation, Detail: "the replay is not valid", Fields: []drover.FieldError{{Field: "input", Message: "is not valid JSON"}}}
	}
	var x *changes
	write := func() error {
		return e.db.Write(ctx, func(tx store.Tx) error {
			x = e.changes(e.now())
			return e.replay(ctx, tx, x, c, id, r)
		})
	}
	err := write()
	for try := 0; errors.Is(err, store.ErrUnique) && try < 3; try++ { // another replay reopened the job at the same moment
		err = write()
	}
	if err != nil {
		return drover.Task{}, fmt.Errorf("replay task: %w", err)
	}
	e.after(ctx, x)
	t, err := e.Task(ctx, c, id)
	if drover.CodeOf(err) == drover.CodeNotFound {
		return e.expandedMap(ctx, c, id)
	}
	return t, err
}

// expandedMap is a replayed map that has expanded at once, as its generation
// began: its elements stand for it now.
func (e *Engine) expandedMap(ctx context.Context, c Caller, id drover.TaskID) (out drover.Task, err error) {
	err = e.db.Read(ctx, func(tx store.Tx) error {
		var rows []store.TaskRow
		if err := tx.Pipe(ctx, store.ReadTasks([]drover.TaskID{id}, &rows)); err != nil {
			return err
		}
		if len(rows) == 0 || rows[0].Tenant != c.Tenant {
			return notFound("task", id)
		}
		live := &lifecycle.Task{Status: drover.Pending, Class: rows[0].Class, Generation: 2, Since: e.now()}
		list, err := e.showTasks(ctx, tx, []taskState{{TaskRow: rows[0], live: live}})
		if err == nil {
			out = list[0]
		}
		return err
	})
	if err != nil {
		return drover.Task{}, fmt.Errorf("read task: %w", err)
	}
	return out, nil
}

func (e *Engine) replay(ctx context.Context, tx store.Tx, x *changes, c Caller, id drover.TaskID, r ReplayRequest) error {
	job, err := store.TaskJob(ctx, tx, id)
	if err != nil {
		return err
	}
	heads := map[drover.JobID]store.JobHead{}
	var kept []drover.JobID
	if err := tx.Pipe(ctx, store.KeepJob(job, &kept), store.ReadJobHeads([]drover.JobID{job}, heads)); err != nil {
		return err
	}
	head, ok := heads[job]
	if !ok || head.Tenant != c.Tenant {
		return notFound("task", id)
	}
	if done, err := e.once(ctx, tx, c, r.Request, "replay", id.String(), x.now); err != nil || done {
		return err
	}
	// The job's row is locked first here; nothing that others lock is taken after it.
	if err := e.lockJobs(ctx, tx, x, []drover.JobID{job}); err != nil {
		return err
	}
	j, cut := x.loaded[job], false
	if j == nil {
		last, err := store.LastRun(ctx, tx, job)
		if err != nil {
			return err
		}
		if last.Run == 0 {
			return drover.Errorf(drover.CodeInvalidTransition, "task %s has not ended; only a finished task can be replayed", id)
		}
		cut = last.Status == drover.Failed
		j = &store.JobLive{Job: job, Tenant: last.Tenant, Run: last.Run + 1, Events: last.Events, Total: last.Total,
			Succeeded: last.Succeeded, Failed: last.Failed, Cancelled: last.Cancelled, Skipped: last.Skipped}
		x.newJob(j)
		x.event(j, drover.JobReopened, drover.TaskID{}, actionData(c, r.Request))
	}
	if j.Cancelling != 0 {
		return drover.Errorf(drover.CodeInvalidTransition, "job %s is stopping (%s); replay when it has ended", job, causeText(j.Cancelling))
	}
	tasks, err := store.JobTasks(ctx, tx, job)
	if err != nil {
		return err
	}
	target, ok := tasks[id]
	if !ok || !target.Status.Final() {
		return drover.Errorf(drover.CodeInvalidTransition, "task %s has not ended; only a finished task can be replayed", id)
	}
	if len(r.Input) > 0 {
		if target.Index == dag.Unexpanded {
			return drover.Errorf(drover.CodeInvalidTransition, "task %s is a map that did not expand; it has no input to replace", id)
		}
		if err := tx.Pipe(ctx, store.InsertTaskInput(id, target.Generation+1, r.Input)); err != nil {
			return err
		}
	}
	j.Graph++ // a settle that has looked for its children looks again
	x.event(j, drover.TaskReplayed, id, replayData(c, r, target))
	var plan *compiled
	if head.Pipeline != 0 {
		if plan, err = e.plan(ctx, tx, head.Pipeline); err != nil {
			return err
		}
	}
	if plan != nil && target.Status == drover.Succeeded {
		if err := childrenEnded(plan, tasks, target); err != nil {
			return err
		}
	}
	back := together(plan, tasks, target)
	if plan != nil && cut {
		back = revived(plan, tasks, back)
	}
	lanes := map[drover.TaskID]int32{}
	if err := tx.Pipe(ctx, store.TaskLanes(back, lanes)); err != nil {
		return err
	}
	g := newGraph(plan, job, j.Total)
	g.trace = head.Trace
	if plan == nil {
		policies := map[drover.TaskID][]byte{}
		if err := tx.Pipe(ctx, store.ReadPolicies([]drover.TaskID{id}, policies)); err != nil {
			return err
		}
		g.kind = termsOf(policies[id])
	}
	unmet, err := unmetOf(plan, tasks, back)
	if err != nil {
		return err
	}
	for _, t := range back {
		uncount(j, t.Status)
		j.Open++
		t.Lane = lanes[t.ID]
		g.add(lifecycle.Replayed(t, unmet[t.ID], x.now))
	}
	if err := resolve(ctx, tx, e, x.now, []*graph{g}, false); err != nil {
		return err
	}
	g.collect(x, j)
	return x.save(ctx, tx)
}

func replayData(c Caller, r ReplayRequest, t lifecycle.Task) []byte {
	b, err := json.Marshal(struct {
		Actor      string        `json:"actor,omitempty"`
		Reason     string        `json:"reason,omitempty"`
		Was        drover.Status `json:"was"`
		Generation int32         `json:"generation"`
		NewInput   bool          `json:"new_input,omitempty"`
	}{c.Actor, r.Reason, t.Status, t.Generation + 1, len(r.Input) > 0})
	if err != nil {
		return nil
	}
	return b
}

func uncount(j *store.JobLive, s drover.Status) {
	switch s {
	case drover.Succeeded:
		j.Succeeded--
	case drover.Failed, drover.DeadLetter:
		j.Failed--
	case drover.Cancelled:
		j.Cancelled--
	case drover.Skipped:
		j.Skipped--
	}
}

// together returns the target and, of a map that has not expanded, those that go
// over it element by element: they expand at one moment.
func together(plan *compiled, tasks map[drover.TaskID]lifecycle.Task, target lifecycle.Task) []lifecycle.Task {
	back := []lifecycle.Task{target}
	if plan == nil || target.Index != dag.Unexpanded || plan.Nodes[target.Node].Over >= 0 {
		return back
	}
	family := plan.Expand(target.Node, 1).Maps
	for _, id := range inOrder(tasks) {
		if t := tasks[id]; t.ID != target.ID && t.Status.Final() && t.Index == dag.Unexpanded && slices.Contains(family, t.Node) {
			back = append(back, t)
		}
	}
	return back
}

// revived returns the tasks that come back and those that a failure cut off, but
// for those that stand below a failed task which is not replayed, and maps over
// which such a one goes.
func revived(plan *compiled, tasks map[drover.TaskID]lifecycle.Task, back []lifecycle.Task) []lifecycle.Task {
	again := map[drover.TaskID]bool{}
	for _, t := range back {
		again[t.ID] = true
	}
	blocked := map[int32]bool{}
	for _, t := range tasks {
		if !again[t.ID] && (t.Status == drover.Failed || t.Status == drover.DeadLetter) {
			for _, d := range plan.Descendants(t.Node) {
				blocked[d] = true
			}
		}
	}
	for n := -1; n != len(blocked); { // one map that stays behind may keep another
		n = len(blocked)
		for _, t := range tasks {
			if t.Index != dag.Unexpanded || plan.Nodes[t.Node].Over >= 0 || blocked[t.Node] {
				continue
			}
			if slices.ContainsFunc(plan.Expand(t.Node, 1).Maps, func(m int32) bool { return blocked[m] }) {
				blocked[t.Node] = true
				for _, d := range plan.Descendants(t.Node) {
					blocked[d] = true
				}
			}
		}
	}
	for _, id := range inOrder(tasks) {
		if t := tasks[id]; !again[id] && (t.Status == drover.Skipped || t.Status == drover.Cancelled) && !blocked[t.Node] {
			back = append(back, t)
		}
	}
	slices.SortFunc(back, func(a, b lifecycle.Task) int { return compareIDs(a.ID, b.ID) })
	return back
}

// inOrder returns the ids of tasks, oldest first: of several reasons to refuse a
// replay, the same one is told whenever it is asked.
func inOrder(tasks map[drover.TaskID]lifecycle.Task) []drover.TaskID {
	return slices.SortedFunc(maps.Keys(tasks), compareIDs)
}

// childrenEnded refuses the replay of a task that succeeded while a task that
// counted its success still waits: it would be counted twice.
func childrenEnded(plan *compiled, tasks map[drover.TaskID]lifecycle.Task, target lifecycle.Task) error {
	for _, k := range plan.Children(keyOf(&target)) {
		for _, id := range inOrder(tasks) {
			t := tasks[id]
			if t.Status == drover.Pending && t.Node == k.Node && (k.Index == dag.Every || k.Index == t.Index) {
				return drover.Errorf(drover.CodeInvalidTransition, "task %q still waits and has counted the success of task %s; replay when it has ended", plan.Nodes[t.Node].Name, target.ID)
			}
		}
	}
	return nil
}

// unmetOf counts the parents each task that comes back waits for: those that
// have not succeeded, or come back themselves. It refuses when one of those has
// ended and does not come back: the task would wait for ever.
func unmetOf(plan *compiled, tasks map[drover.TaskID]lifecycle.Task, back []lifecycle.Task) (map[drover.TaskID]int32, error) {
	unmet := map[drover.TaskID]int32{}
	if plan == nil {
		return unmet, nil
	}
	again := map[drover.TaskID]bool{}
	byKey := map[dag.Key]drover.TaskID{}
	byNode := map[int32][]drover.TaskID{}
	for _, t := range back {
		again[t.ID] = true
		byKey[keyOf(&t)] = t.ID
		byNode[t.Node] = append(byNode[t.Node], t.ID)
	}
	for _, id := range inOrder(tasks) {
		t := tasks[id]
		if t.Status == drover.Succeeded && !again[t.ID] {
			continue
		}
		for _, k := range plan.Children(keyOf(&t)) {
			below := byNode[k.Node]
			if k.Index != dag.Every {
				below = nil
				if id, ok := byKey[k]; ok {
					below = []drover.TaskID{id}
				}
			}
			if len(below) > 0 && t.Status.Final() && !again[t.ID] {
				return nil, drover.Errorf(drover.CodeInvalidTransition, "task %q waits for task %q, which is %s; replay %s first",
					plan.Nodes[k.Node].Name, plan.Nodes[t.Node].Name, t.Status, t.ID)
			}
			for _, id := range below {
				unmet[id]++
			}
		}
	}
	return unmet, nil
}
