package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/admit"
	"github.com/drover-dev/drover/internal/explain"
	"github.com/drover-dev/drover/internal/forecast"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// decided is a decision of the admitter's about what waits now: the same policy, on
// the same view, but for what the leader alone remembers of shares.
type decided struct {
	*waiting
	admit.Decision
	verdicts map[store.LineKey]*admit.Verdict
}

// decide reads what waits, the lines after one first, and decides.
func (x *explainer) decide(ctx context.Context, after store.Line) (*decided, error) {
	w, err := x.e.readWaiting(ctx, x.tx, x.now, after, nil)
	if err != nil {
		return nil, err
	}
	d := &decided{waiting: w, Decision: admit.Decide(w.View), verdicts: map[store.LineKey]*admit.Verdict{}}
	for i := range d.Waiting {
		l := &w.Lines[d.Waiting[i].Line]
		d.verdicts[store.LineKey{Lane: l.Lane, Class: l.Class}] = &d.Waiting[i]
	}
	return d, nil
}

// admission is why a READY task is not admitted, from the decision itself.
func (x *explainer) admission(ctx context.Context, s *taskState, t *drover.Task, staff *crew, list []drover.Blocker) (_ []drover.Blocker, start forecast.Wait, known bool, err error) {
	d, err := x.decide(ctx, store.Line{Queue: s.live.Queue, Class: s.live.Class, Lane: s.live.Lane - 1})
	if err != nil {
		return nil, start, false, err
	}
	var at store.Beside
	p := store.LinePlace{Queue: s.live.Queue, Lane: s.live.Lane, Class: s.live.Class, Due: s.live.DueAt, Task: s.ID}
	if err := x.tx.Pipe(ctx, store.ReadLine(drover.Ready, p, &at)...); err != nil {
		return nil, start, false, err
	}
	open := len(list) == 0
	since := cmp.Or(t.ReadyAt, s.live.Since.Time())
	v := d.verdicts[lineOfTask(s.live)]
	if v == nil || int(at.Before) < v.First {
		// It is to be admitted: with the next decision, or in the queue it was made for.
		more, w, ok, err := x.inLine(ctx, s, t, staff, open)
		return append(list, more...), w, ok && open, err
	}
	known = true
	for _, b := range v.Blockers {
		said, w, ok, err := x.admitBlocker(ctx, d, v, b, s, t, staff, int(at.Before))
		if err != nil {
			return nil, start, false, err
		}
		if slices.ContainsFunc(list, func(o drover.Blocker) bool { return o.Code == said.Code }) {
			known = false
			continue // told with more: its circuit, its workers, its queue
		}
		said.Since = since
		if ok {
			if said.ETA == nil {
				said.ETA = x.eta(w, nil)
			}
			if w.P50 >= start.P50 {
				start = w
			}
		}
		known = known && ok
		list = append(list, said)
	}
	return list, start, known && open, nil
}

// placeIn is a task's place among those that wait for the same, by the decision.
func (d *decided) placeIn(b admit.Blocker, v *admit.Verdict, before int) explain.Place {
	total := 0
	for _, o := range d.Waiting {
		for _, c := range o.Blockers {
			if c.Code == b.Code && c.Subject.ID == b.Subject.ID && c.Subject.Name == b.Subject.Name && c.Subject.Key == b.Subject.Key {
				total += len(d.Lines[o.Line].Heads) - o.First
			}
		}
	}
	n := b.Subject.Position + before - v.First
	p := explain.Place{Position: n, Of: max(total, n), MoreBehind: total >= headsAtOnce/2 || n > total}
	if n > store.MaxPlace {
		p = explain.Place{Position: store.MaxPlace, Of: n, MoreAhead: true}
	}
	return p
}

// admitBlocker puts a blocker of the decision into words, with who holds what is
// waited for and how long that still takes.
func (x *explainer) admitBlocker(ctx context.Context, d *decided, v *admit.Verdict, b admit.Blocker, s *taskState, t *drover.Task, staff *crew, before int) (out drover.Blocker, w forecast.Wait, known bool, err error) {
	place := d.placeIn(b, v, before)
	switch b.Code {
	case admit.QueuePaused:
		return x.queuePaused(b.Subject.Name), w, false, nil
	case admit.CircuitOpen:
		return drover.Blocker{Code: drover.BlockerCircuit, Subject: drover.Subject{Kind: "circuit", Name: b.Subject.Name}, Until: b.Subject.Until.Time(), Message: fmt.Sprintf("circuit %s is open", b.Subject.Name)}, w, false, nil
	case admit.NoWorker, admit.NoLabels, admit.Draining:
		if said := staff.unfit(t); said != nil {
			return *said, w, false, nil
		}
		return explain.NoWorker(staff.words), w, false, nil
	case admit.LackOfResources:
		if b.Subject.Asks > 0 {
			return explain.Resources(t.Queue, b.Subject.Name, b.Subject.Limit, b.Subject.Asks), w, false, nil
		}
		name, limit, used, asks := d.lacks(v)
		out = explain.ResourcesFull(t.Queue, name, limit, used, asks, place)
		if w, known, err = x.slotWait(ctx, s, staff, place.Position-1, 0); err != nil {
			return out, w, false, err
		}
		out.Holders, out.MoreHolders, err = x.holders(ctx, staff)
		return out, w, known, err
	case admit.Handoff, admit.JobPaused:
		return explain.Handoff(t.Queue), forecast.Wait{From: 1000}, true, nil
	case admit.Priority, admit.FairShare, admit.WorkersFull:
		ahead := place.Position - 1
		for _, l := range d.queued {
			if l.Queue == s.live.Queue {
				ahead += int(l.Count)
			}
		}
		if w, known, err = x.slotWait(ctx, s, staff, ahead, staff.free); err != nil {
			return out, w, false, err
		}
		if b.Code == admit.WorkersFull {
			out = explain.WorkersFull(t.Queue, staff.slots, staff.used, place)
			out.Holders, out.MoreHolders, err = x.holders(ctx, staff)
			return out, w, known, err
		}
		class := s.live.Class
		if b.Code == admit.Priority {
			if class, err = drover.ParseClass(b.Subject.Name); err != nil {
				class = s.live.Class
			}
		}
		return explain.Ahead(drover.Reason(b.Code), t.Queue, class, max(place.Position-1, 1), place.MoreAhead, place), w, known, nil
	}
	// A limit.
	out = explain.Limit(drover.Reason(b.Code), b.Subject.Name, b.Subject.Key, b.Subject.Limit, b.Subject.Used, b.Subject.Asks, b.Subject.Until.Time(), place)
	i := slices.IndexFunc(d.Limits, func(l admit.Limit) bool { return l.ID == b.Subject.ID && l.Key == b.Subject.Key })
	if i < 0 {
		return out, w, false, nil
	}
	if l := &d.Limits[i]; l.Period > 0 {
		at := l.When(max(b.Subject.Asks, 1), x.now)
		if at == 0 {
			return out, w, false, nil
		}
		left := max(at.Sub(x.now), 0) + time.Duration(place.Position-1)*time.Duration(max(b.Subject.Asks, 1))*l.Period
		out.ETA = &drover.ETA{P50: explain.Span(left), P90: explain.Span(left), Basis: "the rate", Confidence: "high"}
		return out, forecast.Wait{P50: left, P90: left, From: 1000}, true, nil
	}
	w, known, err = x.limitHolders(ctx, &out, b, place)
	return out, w, known, err
}

// lacks names what no worker has enough of free for a line's head, how much of it
// there is and is in use, and how much the head asks for.
func (d *decided) lacks(v *admit.Verdict) (name string, limit, used, asks int64) {
	line := &d.Lines[v.Line]
	for _, resource := range append(slices.Sorted(maps.Keys(line.Requests)), "slots") {
		var total, taken, most int64
		for i := range d.Workers {
			w := &d.Workers[i]
			if w.Draining || !line.Needs.Serves(w) {
				continue
			}
			has, has2 := w.Resources[resource], w.Taken[resource]
			if resource == "slots" {
				has, has2 = int64(w.Slots), int64(w.Busy)
			}
			total, taken, most = total+has, taken+has2, max(most, has-has2)
		}
		if wants := max(line.Requests[resource], 1); most < wants || resource == "slots" {
			return resource, total, taken, wants
		}
	}
	return "", 0, 0, 0
}

// slotWait is when one of a crew's slots comes to the task, after those ahead of it.
func (x *explainer) slotWait(ctx context.Context, s *taskState, staff *crew, ahead, free int) (forecast.Wait, bool, error) {
	own, err := x.ofLane(ctx, s.Lane)
	if err != nil {
		return forecast.Wait{}, false, err
	}
	busy, more, err := x.busy(ctx, staff)
	if err != nil {
		return forecast.Wait{}, false, err
	}
	w, known := forecast.Line{Free: max(free, 0), Busy: busy, MoreBusy: more, Ahead: []forecast.Ahead{{N: max(ahead, 0), Of: own}}}.Forecast()
	return w, known, nil
}

// queuePaused is the wait for a queue, with who paused it and why.
func (x *explainer) queuePaused(queue string) drover.Blocker {
	b := explain.QueuePaused(queue)
	for _, q := range x.queues {
		if q.Name == queue && q.Reason != "" {
			b.Message = fmt.Sprintf("Queue %s is paused (%s): nothing of it starts.", queue, explain.Short(q.Reason))
		}
	}
	return b
}

// limitHolders are those who hold permits of a limit, and when one of them comes to
// the task.
func (x *explainer) limitHolders(ctx context.Context, out *drover.Blocker, b admit.Blocker, place explain.Place) (w forecast.Wait, known bool, err error) {
	var rows []store.PermitHolder
	if err := x.tx.Pipe(ctx, store.Holders(b.Subject.ID, store.MaxHolders, &rows)); err != nil {
		return w, false, err
	}
	rows = slices.DeleteFunc(rows, func(h store.PermitHolder) bool { return h.Key != b.Subject.Key })
	ids := make([]drover.TaskID, len(rows))
	for i, h := range rows {
		ids[i] = h.Task
	}
	var tasks []store.TaskRow
	var running []lifecycle.Task
	if err := x.tx.Pipe(ctx, store.ReadTasks(ids, &tasks), store.RunningAmong(ids, &running)); err != nil {
		return w, false, err
	}
	lanes := map[drover.TaskID]int32{}
	for _, t := range tasks {
		lanes[t.ID] = t.Lane
	}
	byTask := map[drover.TaskID]*lifecycle.Task{}
	for i := range running {
		byTask[running[i].ID] = &running[i]
	}
	var line forecast.Line
	for _, h := range rows {
		r := store.RunningOf{Task: h.Task, Job: h.Job, Lane: lanes[h.Task], ClaimedAt: h.At}
		var ran time.Duration
		if t := byTask[h.Task]; t != nil {
			r.Session, ran = t.Session, max(x.now.Sub(t.ClaimedAt), 0)
		}
		said, err := x.holder(ctx, r)
		if err != nil {
			return w, false, err
		}
		its, err := x.ofLane(ctx, r.Lane)
		if err != nil {
			return w, false, err
		}
		if said.ExpectedReleaseIn = nil; its.N() > 0 {
			d := explain.Span(its.Left(0.5, ran))
			said.ExpectedReleaseIn = &d
		}
		out.Holders = append(out.Holders, said)
		line.Busy = append(line.Busy, forecast.Busy{For: ran, Of: its})
	}
	slices.SortStableFunc(out.Holders, func(a, b drover.Holder) int {
		if a.ExpectedReleaseIn == nil || b.ExpectedReleaseIn == nil {
			return 0
		}
		return cmp.Compare(*a.ExpectedReleaseIn, *b.ExpectedReleaseIn)
	})
	if n := len(out.Holders); n > holdersShown {
		out.Holders, out.MoreHolders = out.Holders[:holdersShown], n-holdersShown
	}
	if len(line.Busy) == 0 {
		return w, false, nil
	}
	line.Ahead = []forecast.Ahead{{N: place.Position - 1, Of: line.Busy[0].Of}}
	w, known = line.Forecast()
	if n := x.ends(line.Ahead, line.Busy); known && n > 0 {
		out.ETA = x.eta(w, nil)
		out.ETA.Basis = fmt.Sprintf("%s in the last %dm", explain.Count(n, "end", "ends"), forecast.Minutes)
	}
	return w, known, nil
}

// lacking says what workers lack of what is asked of them: "2 lack gpu".
func lacking(n *admit.Needs, workers []*admit.Worker) []string {
	counts := map[string]int{}
	for _, w := range workers {
		what := ""
		for _, k := range slices.Sorted(maps.Keys(n.Labels)) {
			if has, ok := w.Labels[k]; !ok {
				what = cmp.Or(what, k)
			} else if has != n.Labels[k] {
				what = cmp.Or(what, k+"="+n.Labels[k])
			}
		}
		for _, k := range slices.Sorted(maps.Keys(n.Requests)) {
			if w.Resources[k] < n.Requests[k] {
				what = cmp.Or(what, k)
			}
		}
		counts[cmp.Or(what, "what it asks for")]++
	}
	var out []string
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		out = append(out, fmt.Sprintf("%d lack %s", counts[what], what))
	}
	return out
}
