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
	// full are the lines of which more may wait than their heads, counts how many do.
	full   map[store.LineKey]bool
	counts map[store.LineKey]counted
	left   int                    // rows that are counted still
	part   bool                   // there are lines that the view does not have
	end    store.Line             // from which on it does not
	asked  map[store.LineKey]bool // from which on it was looked besides
	likes  map[store.KindKey]*admit.Verdict
}

// counted is how many tasks of a line wait: more than n, or n.
type counted struct {
	n    int
	more bool
}

// decide reads what waits, from the first line on and from the one of a task, and
// decides. What was read and decided for one task is there for the next.
func (x *explainer) decide(ctx context.Context, own store.Line) (*decided, error) {
	d, key := x.decided, store.LineKey{Lane: own.Lane, Class: own.Class}
	if d == nil {
		var err error
		if d, err = x.look(ctx); err != nil {
			return nil, err
		}
	}
	if d.part && !d.asked[key] && !slices.ContainsFunc(d.Lines, func(l admit.Line) bool { return lineKeyOf(&l) == key }) {
		if err := x.lookOn(ctx, d, store.Line{Queue: own.Queue, Class: own.Class, Lane: own.Lane - 1}); err != nil {
			return nil, err
		}
		d.asked[key], x.decided = true, nil
	}
	if x.decided == nil {
		d.decide()
	}
	x.decided = d
	return d, nil
}

// decidedMost is about how many lines are read for a decision about all of them.
const decidedMost = 4096

// decideAll decides about all that waits, as far as it is read.
func (x *explainer) decideAll(ctx context.Context) (*decided, error) {
	d, err := x.look(ctx)
	for n := linesAtOnce; err == nil && d.part && n < decidedMost; n += linesAtOnce {
		err = x.lookOn(ctx, d, d.end)
	}
	if err != nil {
		return nil, err
	}
	d.decide()
	return d, nil
}

// look reads what waits, from the first line on.
func (x *explainer) look(ctx context.Context) (*decided, error) {
	w, err := x.e.readWaiting(ctx, x.tx, x.now, store.Line{}, nil)
	if err != nil {
		return nil, err
	}
	d := &decided{waiting: w, verdicts: map[store.LineKey]*admit.Verdict{}, full: map[store.LineKey]bool{}, counts: map[store.LineKey]counted{}, left: store.MaxAhead, asked: map[store.LineKey]bool{}, part: w.next != (store.Line{}), end: w.next}
	d.filled(w)
	return d, nil
}

// lookOn reads the lines after one besides.
func (x *explainer) lookOn(ctx context.Context, d *decided, after store.Line) error {
	w, err := x.e.readView(ctx, x.tx, x.now, after, nil, 0)
	if err != nil {
		return err
	}
	d.filled(w)
	d.waiting.merge(w)
	if after == d.end {
		d.end, d.part = w.next, w.next != (store.Line{})
	}
	return nil
}

// decide fills the verdicts in.
func (d *decided) decide() {
	d.Decision, d.likes = admit.Decide(d.View), nil
	clear(d.verdicts)
	for i := range d.Waiting {
		d.verdicts[lineKeyOf(&d.Lines[d.Waiting[i].Line])] = &d.Waiting[i]
	}
}

// unseen reports whether a line comes after all that were read.
func (d *decided) unseen(l *store.WaitLine) bool {
	return d.part && cmp.Or(cmp.Compare(l.Queue, d.end.Queue), cmp.Compare(l.Class, d.end.Class), cmp.Compare(l.Lane, d.end.Lane)) > 0
}

// alike is the verdict of a line whose tasks are of the same kind; nil when there is none.
func (d *decided) alike(lane store.LaneKey) *admit.Verdict {
	if d.likes == nil {
		d.likes = map[store.KindKey]*admit.Verdict{}
		for i := range d.Waiting {
			l := &d.Lines[d.Waiting[i].Line]
			d.likes[store.KindKey{Queue: l.Queue, Tenant: l.Tenant, Kind: l.Kind}] = &d.Waiting[i]
		}
	}
	return d.likes[kindOf(lane)]
}

func lineKeyOf(l *admit.Line) store.LineKey { return store.LineKey{Lane: l.Lane, Class: l.Class} }

// filled notes the lines of which a look may not have had all: none has more heads.
func (d *decided) filled(w *waiting) {
	longest := 0
	for i := range w.Lines {
		longest = max(longest, len(w.Lines[i].Heads))
	}
	for i := range w.Lines {
		if l := &w.Lines[i]; len(l.Heads) == longest {
			d.full[lineKeyOf(l)] = true
		}
	}
}

// merge adds the lines of another look that w does not have.
func (w *waiting) merge(o *waiting) {
	has := map[store.LineKey]bool{}
	for i := range w.Lines {
		has[lineKeyOf(&w.Lines[i])] = true
	}
	at := map[usageKey]int{}
	for i, l := range w.Limits {
		at[usageKey{l.ID, l.Key}] = i
	}
	limits := make([]int, len(o.Limits)) // where they are in w
	for i, l := range o.Limits {
		k := usageKey{l.ID, l.Key}
		if _, ok := at[k]; !ok {
			at[k] = len(w.Limits)
			w.Limits = append(w.Limits, l)
		}
		limits[i] = at[k]
	}
	for _, l := range o.Lines {
		if has[lineKeyOf(&l)] {
			continue
		}
		l.Takes = slices.Clone(l.Takes)
		for k := range l.Takes {
			l.Takes[k].Limit = limits[l.Takes[k].Limit]
		}
		w.Lines = append(w.Lines, l)
	}
	maps.Copy(w.Queues, o.Queues)
	maps.Copy(w.Held, o.Held)
}

// count counts the lines that wait for something that v waits for too: of all lines that
// one decision explains no more than left rows. Each gets as much, those that are short
// first, and who is longer what these left.
func (d *decided) count(ctx context.Context, tx store.Tx, v *admit.Verdict) error {
	var lines []store.Line
	for i := range d.Waiting {
		o := &d.Waiting[i]
		l := &d.Lines[o.Line]
		key := lineKeyOf(l)
		if _, ok := d.counts[key]; !ok && d.full[key] && slices.ContainsFunc(v.Blockers, func(b admit.Blocker) bool { return waitsFor(o, b) }) {
			lines = append(lines, store.Line{Queue: l.Queue, Class: l.Class, Lane: l.Lane})
		}
	}
	part := 4 // of what is left, at first
	for len(lines) > 0 {
		if len(lines) == 1 {
			part = 1
		}
		n := d.left / part / len(lines)
		if n <= 1 {
			return nil
		}
		rows := map[store.LineKey]int64{}
		if err := tx.Pipe(ctx, store.CountReady(lines, int32(n), rows)); err != nil {
			return err
		}
		for key, k := range rows {
			d.left -= int(k)
			d.counts[key] = counted{min(int(k), n-1), int(k) == n}
		}
		if part == 1 {
			return nil
		}
		part = 1
		lines = slices.DeleteFunc(lines, func(l store.Line) bool { return !d.counts[store.LineKey{Lane: l.Lane, Class: l.Class}].more })
		if len(lines) > 0 && d.left/len(lines) <= n {
			return nil
		}
	}
	return nil
}

// waitsFor tells if b is among what a line waits for.
func waitsFor(v *admit.Verdict, b admit.Blocker) bool {
	return slices.ContainsFunc(v.Blockers, func(c admit.Blocker) bool {
		return c.Code == b.Code && c.Subject.ID == b.Subject.ID && c.Subject.Name == b.Subject.Name && c.Subject.Key == b.Subject.Key
	})
}

// admission is why a READY task is not admitted, from the decision itself.
func (x *explainer) admission(ctx context.Context, s *taskState, t *drover.Task, staff *crew, list []drover.Blocker) (_ []drover.Blocker, start forecast.Wait, known bool, err error) {
	d, err := x.decide(ctx, store.Line{Queue: s.live.Queue, Class: s.live.Class, Lane: s.live.Lane})
	if err != nil {
		return nil, start, false, err
	}
	p := store.LinePlace{Queue: s.live.Queue, Lane: s.live.Lane, Class: s.live.Class, Due: s.live.DueAt, Task: s.ID}
	at, counted, err := x.beside(ctx, drover.Ready, p)
	if err != nil {
		return nil, start, false, err
	}
	since := cmp.Or(t.ReadyAt, s.live.Since.Time())
	v := d.verdicts[lineOfTask(s.live)]
	if v == nil || int(at.Before) < v.First {
		// It is to be admitted: with the next decision, or in the queue it was made for.
		if b := staff.unfit(); b != nil {
			b.Since = since
			list = append(list, *b)
		}
		open := len(list) == 0
		more, w, ok, err := x.inLine(ctx, s, t, staff, open)
		return append(list, more...), w, ok && open, err
	}
	if err := d.count(ctx, x.tx, v); err != nil {
		return nil, start, false, err
	}
	open := len(list) == 0
	known = true
	for _, b := range v.Blockers {
		place := d.placeIn(b, v, int(at.Before), counted)
		said, w, ok, err := x.admitBlocker(ctx, d, v, b, s, t, staff, place)
		if err != nil {
			return nil, start, false, err
		}
		if slices.ContainsFunc(list, func(o drover.Blocker) bool { return o.Code == said.Code }) {
			known = false
			continue // told with more: its circuit, its queue
		}
		said.Since = since
		if !place.counted {
			ok, said.ETA = false, nil
		}
		if ok {
			if d.part { // who is not in the view may go first
				w.From = min(w.From, 1)
			}
			if said.ETA == nil {
				said.ETA = x.eta(w, nil)
			}
			said.ETA.Confidence = w.Confidence()
			if w.P50 >= start.P50 {
				start = w
			}
		}
		known = known && ok
		list = append(list, said)
	}
	return list, start, known && open, nil
}

// standingAt is a task's place among those that wait for the same.
type standingAt struct {
	explain.Place
	ahead   int
	counted bool // all that are ahead of it; otherwise there are more
}

// placeIn is a task's place among those that wait for the same, by the decision.
func (d *decided) placeIn(b admit.Blocker, v *admit.Verdict, before int, counted bool) standingAt {
	total, cut := 0, false
	p := standingAt{counted: counted}
	for i := range d.Waiting {
		o := &d.Waiting[i]
		if !waitsFor(o, b) {
			continue
		}
		l := &d.Lines[o.Line]
		key := lineKeyOf(l)
		c, ok := d.counts[key]
		n := max(len(l.Heads), c.n)
		if o == v {
			p.ahead, p.counted = total+before-v.First, counted && !cut
		}
		cut = cut || c.more || !ok && d.full[key]
		total += n - o.First
	}
	n := p.ahead + 1
	p.Place = explain.Place{Position: n, Of: max(total, n), MoreBehind: cut || d.part || n > total}
	if n > store.MaxPlace {
		p.Place = explain.Place{Position: store.MaxPlace, Of: n, MoreAhead: true}
	}
	return p
}

// admitBlocker puts a blocker of the decision into words, with who holds what is
// waited for and how long that still takes.
func (x *explainer) admitBlocker(ctx context.Context, d *decided, v *admit.Verdict, b admit.Blocker, s *taskState, t *drover.Task, staff *crew, place standingAt) (out drover.Blocker, w forecast.Wait, known bool, err error) {
	switch b.Code {
	case admit.QueuePaused:
		return x.queuePaused(b.Subject.Name), w, false, nil
	case admit.CircuitOpen:
		return drover.Blocker{Code: drover.BlockerCircuit, Subject: drover.Subject{Kind: "circuit", Name: b.Subject.Name}, Until: b.Subject.Until.Time(), Message: fmt.Sprintf("circuit %s is open", b.Subject.Name)}, w, false, nil
	case admit.NoWorker, admit.NoLabels, admit.Draining:
		if said := staff.unfit(); said != nil {
			return *said, w, false, nil
		}
		return explain.NoWorker(staff.words), w, false, nil
	case admit.LackOfResources:
		if b.Subject.Asks > 0 {
			return explain.Resources(t.Queue, b.Subject.Name, b.Subject.Limit, b.Subject.Asks), w, false, nil
		}
		name, limit, used, asks := d.lacks(v)
		out = explain.ResourcesFull(t.Queue, name, limit, used, asks, place.Place)
		if w, known, err = x.slotWait(ctx, s, staff, place.ahead, 0); err != nil {
			return out, w, false, err
		}
		out.Holders, out.MoreHolders, err = x.holders(ctx, staff)
		return out, w, known, err
	case admit.Handoff, admit.JobPaused:
		return explain.Handoff(t.Queue), forecast.Wait{From: 1000}, true, nil
	case admit.Priority, admit.FairShare, admit.WorkersFull:
		ahead := place.ahead
		for _, l := range d.queued {
			if l.Queue == s.live.Queue {
				ahead += int(l.Count)
			}
		}
		if w, known, err = x.slotWait(ctx, s, staff, ahead, staff.free); err != nil {
			return out, w, false, err
		}
		if b.Code == admit.WorkersFull {
			out = explain.WorkersFull(t.Queue, staff.slots, staff.used, place.Place)
			out.Holders, out.MoreHolders, err = x.holders(ctx, staff)
			return out, w, known, err
		}
		if b.Subject.Kind == "reserve" {
			return explain.Reserved(t.Queue, b.Subject.Name, b.Subject.Limit, b.Subject.Used, place.Place), w, known, nil
		}
		class := s.live.Class
		if b.Code == admit.Priority {
			if class, err = drover.ParseClass(b.Subject.Name); err != nil {
				class = s.live.Class
			}
		}
		return explain.Ahead(drover.Reason(b.Code), t.Queue, class, max(place.Position-1, 1), place.MoreAhead, place.Place), w, known, nil
	}
	// A limit.
	shown := drover.Limit{Name: b.Subject.Name, Scope: drover.ScopeNamed, Max: b.Subject.Limit}
	if k := slices.IndexFunc(d.gate.limits, func(l store.LimitRow) bool { return l.ID == b.Subject.ID }); k >= 0 {
		if shown, err = x.e.showLimit(ctx, x.tx, d.gate.limits[k], nil); err != nil {
			return out, w, false, err
		}
	}
	shown.Used = b.Subject.Used
	out = explain.Limit(drover.Reason(b.Code), shown, b.Subject.Key, b.Subject.Asks, b.Subject.Until.Time(), place.Place)
	i := slices.IndexFunc(d.Limits, func(l admit.Limit) bool { return l.ID == b.Subject.ID && l.Key == b.Subject.Key })
	if i < 0 {
		return out, w, false, nil
	}
	if l := &d.Limits[i]; l.Period > 0 {
		at := l.When(max(b.Subject.Asks, 1), x.now)
		if at == 0 {
			return out, w, false, nil
		}
		left := max(at.Sub(x.now), 0) + forecast.Times(place.ahead, forecast.Times(int(max(b.Subject.Asks, 1)), l.Period))
		out.ETA = &drover.ETA{P50: explain.Span(left), P90: explain.Span(left), Basis: "the rate", Confidence: "high"}
		return out, forecast.Wait{P50: left, P90: left, From: 1000}, true, nil
	}
	w, known, err = x.limitHolders(ctx, d, &out, b, place.ahead)
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
func (x *explainer) limitHolders(ctx context.Context, d *decided, out *drover.Blocker, b admit.Blocker, ahead int) (w forecast.Wait, known bool, err error) {
	var rows []store.PermitHolder
	if err := x.tx.Pipe(ctx, store.HoldersOf(b.Subject.ID, b.Subject.Key, store.MaxHolders, &rows)); err != nil {
		return w, false, err
	}
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
	held := len(rows)
	for _, u := range d.usage {
		if u.Limit == b.Subject.ID && u.Key == b.Subject.Key {
			held = max(held, int(u.Holders))
		}
	}
	line := forecast.Line{MoreBusy: held - len(rows)}
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
	out.Holders = out.Holders[:min(len(out.Holders), holdersShown)]
	out.MoreHolders = held - len(out.Holders)
	if len(line.Busy) == 0 {
		return w, false, nil
	}
	line.Ahead = []forecast.Ahead{{N: ahead, Of: line.Busy[0].Of}}
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
