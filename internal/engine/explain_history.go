package engine

import (
	"context"
	"slices"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/explain"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// history puts the time of a task's generation in order: the totals of its row tell
// what it was spent on, its attempts and the job's pauses tell when.
func (x *explainer) history(ctx context.Context, s *taskState, t *drover.Task, out *drover.Explanation) error {
	var rows []store.AttemptView
	if err := x.tx.Pipe(ctx, store.Attempts(s.ID, maxAttemptsShown, &rows)...); err != nil {
		return err
	}
	totals, end := s.totals(x.now)
	begin := end
	for _, us := range totals {
		begin -= lifecycle.Instant(us)
	}
	rows = slices.DeleteFunc(rows, func(a store.AttemptView) bool { return int(a.Generation) != t.Generation })
	slices.SortFunc(rows, func(a, b store.AttemptView) int { return int(a.LeaseVersion - b.LeaseVersion) })
	var sessions []int64
	for _, a := range rows {
		sessions = append(sessions, a.Session)
	}
	slices.Sort(sessions)
	workers := map[int64]store.WorkerView{}
	if err := x.tx.Pipe(ctx, store.Workers(slices.Compact(sessions), workers)); err != nil {
		return err
	}
	var pauses []store.Pause
	if totals[lifecycle.WaitPaused] > 0 {
		if err := x.tx.Pipe(ctx, store.JobPauses(s.Job, &pauses)); err != nil {
			return err
		}
	}
	h := explain.From(begin.Time())
	// Before it could run it waited for others, then for its start time.
	h.Until((begin + lifecycle.Instant(totals[lifecycle.WaitDependency])).Time(), lifecycle.WaitDependency.String())
	at := begin + lifecycle.Instant(totals[lifecycle.WaitDependency]+totals[lifecycle.WaitSchedule])
	h.Until(at.Time(), lifecycle.WaitSchedule.String())
	for _, a := range rows {
		h.Until(a.ReadyAt.Time(), lifecycle.WaitRetry.String())
		inLine(h, a.ReadyAt, a.ClaimedAt, pauses)
		last := a.EndedAt
		if last == 0 {
			last = end
		}
		if p := h.Until(last.Time(), runCode); p != nil {
			p.Worker, p.Outcome = workers[a.Session].Name, a.Outcome
		}
		at = last
	}
	// What has passed since the last attempt, or since it could run.
	var ready lifecycle.Instant
	switch {
	case s.live == nil:
		ready = s.final.Task.ReadyAt
	case s.live.Status != drover.RetryWait && s.live.Status != drover.Pending:
		ready = s.live.ReadyAt
	}
	if len(rows) > 0 && ready < at {
		h.Until(end.Time(), lifecycle.WaitRetry.String())
	} else {
		if len(rows) > 0 {
			h.Until(ready.Time(), lifecycle.WaitRetry.String())
		}
		inLine(h, max(ready, at), end, pauses)
	}
	out.History = h.List()
	return nil
}

// totals are the times of the newest generation, and up to when they go.
func (s *taskState) totals(now lifecycle.Instant) (lifecycle.Waits, lifecycle.Instant) {
	if s.live != nil {
		return s.live.TotalAt(now), max(now, s.live.Since)
	}
	return s.final.Task.Waits, s.final.At
}

// inLine is the time from ready to claimed: the job may have been paused in it.
func inLine(h *explain.Spend, from, to lifecycle.Instant, pauses []store.Pause) {
	paused := false
	for _, p := range pauses {
		if p.At >= to {
			break
		}
		if p.At > from {
			code := lifecycle.WaitHandoff
			if paused {
				code = lifecycle.WaitPaused
			}
			h.Until(p.At.Time(), code.String())
		}
		paused = p.Paused
	}
	code := lifecycle.WaitHandoff
	if paused {
		code = lifecycle.WaitPaused
	}
	h.Until(to.Time(), code.String())
}
