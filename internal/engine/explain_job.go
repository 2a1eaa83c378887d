package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/explain"
	"github.com/drover-dev/drover/internal/forecast"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// ExplainJob says of a job what it waits for.
func (e *Engine) ExplainJob(ctx context.Context, c Caller, id drover.JobID) (out drover.JobExplanation, err error) {
	err = e.db.Read(ctx, func(tx store.Tx) error {
		x := e.explainer(tx, c)
		if err := x.of(ctx, id); err != nil {
			return err
		}
		out = drover.JobExplanation{JobID: id, Status: x.job.Status, Counts: x.job.Tasks, Blockers: []drover.Blocker{}, Tasks: []drover.Explanation{}}
		if err := x.totalled(ctx, &out); err != nil {
			return err
		}
		if out.Status.Final() {
			out.Message = fmt.Sprintf("%s at %s, %s after it was accepted.", out.Status, explain.Clock(x.job.FinishedAt), explain.Long(x.job.FinishedAt.Sub(x.job.CreatedAt)))
			if f := x.job.Error; f != nil {
				out.Message = fmt.Sprintf("%s at %s: task %s failed: %s: %s.", out.Status, explain.Clock(x.job.FinishedAt), f.Task, f.Class, explain.Short(f.Message))
			}
			return nil
		}
		return x.wholeJob(ctx, &out)
	})
	if err != nil {
		return drover.JobExplanation{}, fmt.Errorf("explain job: %w", err)
	}
	return out, nil
}

// totalled adds up what the job's tasks spent their time on.
func (x *explainer) totalled(ctx context.Context, out *drover.JobExplanation) error {
	if out.Counts.Total > totalledOfAJob {
		return nil
	}
	list, err := x.e.jobTasks(ctx, x.tx, x.c, TaskQuery{Job: x.row.ID, Limit: totalledOfAJob})
	if err != nil {
		return err
	}
	var all lifecycle.Waits
	for i := range list {
		w, _ := list[i].totals(x.now)
		for r, us := range w {
			all[r] += us
		}
	}
	out.TotalsByReason = all.Map()
	return nil
}

// wholeJob explains a job that has not ended: by those of its tasks that run or could
// go on next.
func (x *explainer) wholeJob(ctx context.Context, out *drover.JobExplanation) error {
	front := TaskQuery{Job: x.row.ID, Status: []drover.Status{drover.Ready, drover.DispatchPending, drover.Queued, drover.Running, drover.RetryWait, drover.Waiting}, Limit: explainedOfAJob}
	list, err := x.e.jobTasks(ctx, x.tx, x.c, front)
	if err != nil {
		return err
	}
	if len(list) == 0 { // all wait for a time, or for what stands by
		front.Status, front.Limit = []drover.Status{drover.Pending}, 5
		if list, err = x.e.jobTasks(ctx, x.tx, x.c, front); err != nil {
			return err
		}
	}
	if out.Tasks, err = x.tasks(ctx, list, false); err != nil {
		return err
	}
	n := &x.job.Tasks
	out.MoreTasks = max(n.Total-n.Succeeded-n.Failed-n.Cancelled-n.Skipped-len(list), 0)
	if len(list) == 0 {
		out.Message = "Its last task is about to end." // one that has just been taken
		return nil
	}
	on := 0
	if x.plan != nil {
		if err := x.count(ctx); err != nil {
			return err
		}
		on = x.critical(list, out.Tasks)
		var longest forecast.Wait
		for _, w := range x.ways() {
			if w.P50 > longest.P50 {
				longest = w
			}
		}
		if s := out.Tasks[on].Start; s != nil && longest.From > 0 {
			longest = longest.Plus(forecast.Wait{P50: s.P50.Std(), P90: s.P90.Std(), From: longest.From})
		}
		if longest.From > 0 {
			out.End = x.chainETA(longest)
			out.End.Basis = "the longest way through the tasks that are left, by how long such tasks took"
		}
	} else {
		out.End = out.Tasks[on].End
	}
	t := &out.Tasks[on]
	out.On, out.Blockers, out.Layer = &t.TaskID, t.Blockers, t.Layer
	out.Message = t.Message
	if x.plan != nil {
		name := t.Name
		if t.Mapped {
			name = fmt.Sprintf("%s[%d]", t.Name, t.Index)
		}
		out.Message = fmt.Sprintf("Task %s (%s): %s", name, t.Status, t.Message)
	}
	if n.Running == 0 {
		out.WaitingSince, out.Waited = t.WaitingSince, t.Waited
	}
	if !x.job.ExpiresAt.IsZero() {
		out.Deadline = &drover.Deadline{At: x.job.ExpiresAt, Kind: "expires_at"}
		finishDeadline(out.Deadline, x.now.Time(), out.End)
	}
	return nil
}

// critical picks the task after which most still comes: the longest way below it, by
// time and, where times are not known, by steps; of equal ones, one that waits.
func (x *explainer) critical(list []taskState, shown []drover.Explanation) int {
	type tail struct {
		time  time.Duration
		steps int
	}
	tails := make([]tail, len(x.plan.Nodes))
	levels := x.plan.Levels()
	for _, level := range slices.Backward(levels) {
		for _, n := range level {
			var below tail
			for _, child := range x.plan.Nodes[n].ChildrenNodes {
				below.time, below.steps = max(below.time, tails[child].time), max(below.steps, tails[child].steps)
			}
			tails[n] = tail{below.time + x.rest(n).P50, below.steps + 1}
		}
	}
	best := 0
	for i := range list {
		a, b := tails[list[i].Node], tails[list[best].Node]
		if c := cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.steps, b.steps), cmp.Compare(waits(shown[i]), waits(shown[best]))); c > 0 {
			best = i
		}
	}
	return best
}

func waits(x drover.Explanation) int {
	if len(x.Blockers) > 0 {
		return 1
	}
	return 0
}
