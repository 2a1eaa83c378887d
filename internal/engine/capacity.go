package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/explain"
	"github.com/drover-dev/drover/internal/forecast"
	"github.com/drover-dev/drover/internal/store"
)

// Capacity says who could run tasks, and what more workers would change. Queues and
// workers belong to the installation: the counts are of all tenants. Workers that
// serve another tenant only are left out.
func (e *Engine) Capacity(ctx context.Context, c Caller) (out drover.Capacity, err error) {
	err = e.db.Read(ctx, func(tx store.Tx) error {
		x := e.explainer(tx, c)
		if err := x.workers(ctx); err != nil {
			return err
		}
		out.Groups = x.groups()
		out.Queues, err = x.hints(ctx)
		return err
	})
	if err != nil {
		return drover.Capacity{}, fmt.Errorf("read capacity: %w", err)
	}
	return out, nil
}

// groups puts workers that are alike together.
func (x *explainer) groups() []drover.WorkerGroup {
	byKey := map[string]*drover.WorkerGroup{}
	for i := range x.sessions {
		s := &x.sessions[i]
		if !serves(s, x.c) {
			continue
		}
		queues, kinds := slices.Sorted(slices.Values(s.Queues)), slices.Sorted(slices.Values(s.Kinds))
		key := fmt.Sprintf("%q %q", queues, kinds)
		for _, k := range slices.Sorted(maps.Keys(s.Labels)) {
			key += fmt.Sprintf(" %q=%q", k, s.Labels[k])
		}
		g := byKey[key]
		if g == nil {
			g = &drover.WorkerGroup{Queues: queues, Kinds: kinds, Labels: s.Labels}
			byKey[key] = g
		}
		g.Workers++
		g.Used += int(x.loads[s.ID])
		if s.Draining {
			g.Draining++
			continue
		}
		g.Slots += int(s.Slots)
		g.Free += max(int(s.Slots)-int(x.loads[s.ID]), 0)
	}
	out := make([]drover.WorkerGroup, 0, len(byKey))
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		g := byKey[key]
		g.Utilisation = share(g.Slots-g.Free, g.Slots)
		out = append(out, *g)
	}
	return out
}

// share is a part of a whole, to the thousandth.
func share(part, whole int) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part*1000/whole) / 1000
}

// hints says of each queue how many workers it wants.
func (x *explainer) hints(ctx context.Context) ([]drover.QueueHint, error) {
	all := *x
	all.c.System = true // the counts of a queue are of all tenants
	lines, err := all.lines(ctx)
	if err != nil {
		return nil, err
	}
	names, err := store.QueueNames(ctx, x.tx)
	if err != nil {
		return nil, err
	}
	type load struct {
		forecast.Load
		more    bool // than were counted
		blocked map[drover.Reason]int64
		top     *waitLine
		unfit   map[drover.Reason]int64
		total   float64 // of the times of those of which they are known, in seconds
		known   int64
		fits    map[int64]bool // sessions that could run something of what is startable
	}
	loads := map[int32]*load{}
	for id := range names {
		loads[id] = &load{blocked: map[drover.Reason]int64{}, unfit: map[drover.Reason]int64{}, fits: map[int64]bool{}}
	}
	for i := range lines {
		l := &lines[i]
		q := loads[l.Queue]
		if q == nil || l.Kind != store.WaitsReady && l.Kind != store.WaitsQueued && l.Kind != store.WaitsHeld && l.Kind != store.WaitsInLine {
			continue
		}
		q.more = q.more || l.More
		switch code := l.blocker.Code; {
		case code.Layer() == drover.LayerExecution || code == drover.BlockerPriority || code == drover.BlockerFairShare:
			lane, err := x.e.laneOf(ctx, x.tx, l.Lane)
			if err != nil {
				return nil, err
			}
			staff, err := x.crew(ctx, crewKey{queue: names[l.Queue], tenant: lane.Tenant, kind: lane.Kind, needs: lane.Needs})
			if err != nil {
				return nil, err
			}
			if staff.words.Serve > 0 && len(staff.take) == 0 && staff.drains == nil {
				q.Unfit += int(l.N)
				q.unfit[code] += l.N
				continue
			}
			q.Startable += int(l.N)
			for _, s := range staff.take {
				q.fits[s.ID] = true
			}
			s, err := x.ofLane(ctx, l.Lane)
			if err != nil {
				return nil, err
			}
			if s.N() > 0 {
				q.total += float64(l.N) * s.Mean().Seconds()
				q.known += l.N
			}
			continue
		}
		q.Blocked += int(l.N)
		if q.blocked[l.blocker.Code] += l.N; q.top == nil || q.blocked[l.blocker.Code] > q.blocked[q.top.blocker.Code] {
			q.top = l
		}
	}
	out := make([]drover.QueueHint, 0, len(names))
	for id, name := range names {
		q := loads[id]
		h := drover.QueueHint{Queue: name, Waiting: q.Startable + q.Unfit + q.Blocked, Startable: q.Startable, Approximate: q.more}
		for i := range x.sessions {
			s := &x.sessions[i]
			if s.Draining || !slices.Contains(s.Queues, name) || !serves(s, x.c) {
				continue
			}
			free := max(int(s.Slots)-int(x.loads[s.ID]), 0)
			h.Workers++
			h.Slots += int(s.Slots)
			h.Free += free
			if q.fits[s.ID] {
				q.Free += free
			}
		}
		h.Used = h.Slots - h.Free
		h.Utilisation = share(h.Used, h.Slots)
		q.Workers, q.Slots, q.Used = h.Workers, h.Slots, h.Used
		if q.known > 0 {
			q.Mean = time.Duration(q.total / float64(q.known) * float64(time.Second))
		}
		q.UnfitWhy = string(most(q.unfit))
		if q.top != nil {
			code := q.top.blocker.Code
			q.Why = fmt.Sprintf("%s for %s", explain.Count(int(q.blocked[code]), "waits", "wait"), code)
			// What a limit or a circuit is called is its tenant's to know.
			if s := q.top.blocker.Subject; s.Name != "" && (q.top.tenant == x.c.Tenant || x.c.System) {
				q.Why += " " + s.Name
			}
		}
		hint := q.Hint()
		h.Desired, h.Reason, h.TwoMoreWorkers = hint.Desired, hint.Reason, hint.TwoMore
		if hint.Drains >= 0 {
			d := explain.Span(hint.Drains)
			h.DrainsIn = &d
		}
		if hint.DrainsPlus2 >= 0 {
			d := explain.Span(hint.DrainsPlus2)
			h.DrainsInPlus2 = &d
		}
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b drover.QueueHint) int { return cmp.Compare(a.Queue, b.Queue) })
	return out, nil
}
