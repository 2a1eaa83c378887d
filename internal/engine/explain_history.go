package engine

import (
	"cmp"
	"context"
	"slices"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
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
	// The line that it waited in is the one that it was made for.
	line := store.LineKey{Lane: s.Lane, Class: cmp.Or(t.Class, s.Class)}
	spans := map[store.LineKey]lifecycle.Spans{}
	if err := x.tx.Pipe(ctx, store.ReadLineWaits([]store.LineKey{line}, spans)); err != nil {
		return err
	}
	h := explain.From(begin.Time())
	// Before it could run it waited for others, then for its start time.
	h.Until((begin + lifecycle.Instant(totals[lifecycle.WaitDependency])).Time(), lifecycle.WaitDependency.String())
	at := begin + lifecycle.Instant(totals[lifecycle.WaitDependency]+totals[lifecycle.WaitSchedule])
	h.Until(at.Time(), lifecycle.WaitSchedule.String())
	at += lifecycle.Instant(totals[lifecycle.WaitParallel]) // once it has begun, an element keeps its place
	h.Until(at.Time(), lifecycle.WaitParallel.String())
	if t.Kind == dag.SubKind { // no worker has it: all that is left is the time of its job
		h.Until(end.Time(), lifecycle.WaitChild.String())
		out.History = h.List()
		return nil
	}
	for _, a := range rows {
		h.Until(a.ReadyAt.Time(), lifecycle.WaitRetry.String())
		inLine(h, a.ReadyAt, a.QueuedAt, a.ClaimedAt, pauses, spans[line])
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
	var ready, queued lifecycle.Instant
	switch {
	case s.live == nil:
		ready, queued = s.final.Task.ReadyAt, s.final.Task.QueuedAt
	case s.live.Status != drover.RetryWait && s.live.Status != drover.Pending:
		ready, queued = s.live.ReadyAt, s.live.QueuedAt
	}
	if len(rows) > 0 && ready < at {
		h.Until(end.Time(), lifecycle.WaitRetry.String())
	} else {
		if len(rows) > 0 {
			h.Until(ready.Time(), lifecycle.WaitRetry.String())
		}
		inLine(h, max(ready, at), queued, end, pauses, spans[line])
		h.Until(end.Time(), lifecycle.WaitHandoff.String()) // where another server's clock is ahead
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

// inLine is the time from when a task was ready until it was claimed: the job may have
// been paused in it, and its line have waited for this and that until it was queued.
func inLine(h *explain.Spend, ready, queued, to lifecycle.Instant, pauses []store.Pause, line lifecycle.Spans) {
	if queued == 0 {
		queued = to
	}
	from, paused := ready, false
	until := func(end lifecycle.Instant) {
		switch {
		case end <= from:
			return
		case paused:
			h.Until(end.Time(), lifecycle.WaitPaused.String())
		default:
			line.Each(from, min(end, max(queued, from)), func(at lifecycle.Instant, why lifecycle.Reason) { h.Until(at.Time(), why.String()) })
			h.Until(end.Time(), lifecycle.WaitHandoff.String())
		}
		from = end
	}
	for _, p := range pauses {
		if p.At >= to {
			break
		}
		until(p.At)
		paused = p.Paused
	}
	until(to)
}
