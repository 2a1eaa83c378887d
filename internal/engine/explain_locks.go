package engine

import (
	"context"
	"slices"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/admit"
	"github.com/drover-dev/drover/internal/explain"
	"github.com/drover-dev/drover/internal/store"
)

// handlerWaits is what running tasks' handlers wait for, read once.
type handlerWaits struct {
	asked   []store.Asked // by limit, in their turn
	parties []store.Party // at the barriers of the job
	limits  map[int32]*store.LimitRow
	used    map[int32]int64
}

func (x *explainer) handlers(ctx context.Context) (*handlerWaits, error) {
	if x.waits != nil {
		return x.waits, nil
	}
	w := &handlerWaits{limits: map[int32]*store.LimitRow{}, used: map[int32]int64{}}
	if err := x.tx.Pipe(ctx, store.AskedWaits(&w.asked), store.PartiesOf(x.row.ID, &w.parties)); err != nil {
		return nil, err
	}
	var ids []int32
	for _, r := range w.asked {
		ids = append(ids, r.Limit)
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	var limits []store.LimitRow
	if err := x.tx.Pipe(ctx, store.LimitsByID(ids, &limits), store.LimitUsage(ids, w.used)); err != nil {
		return nil, err
	}
	for i := range limits {
		w.limits[limits[i].ID] = &limits[i]
	}
	w.asked = slices.DeleteFunc(w.asked, func(r store.Asked) bool { return w.limits[r.Limit] == nil || r.Until < x.now })
	x.waits = w
	return w, nil
}

// handlerBlockers are what the handler of a running task waits for: locks, permits, and
// others at a barrier.
func (x *explainer) handlerBlockers(ctx context.Context, s *taskState) ([]drover.Blocker, error) {
	list := []drover.Blocker{}
	w, err := x.handlers(ctx)
	if err != nil {
		return nil, err
	}
	for i, r := range w.asked {
		if r.Task != s.ID {
			continue
		}
		l := w.limits[r.Limit]
		p := explain.Place{Position: 1}
		for k, o := range w.asked {
			if o.Limit != r.Limit {
				continue
			}
			if p.Of++; k < i {
				p.Position++
			}
		}
		code := drover.BlockerSemaphore
		if l.Permits == 1 {
			code = drover.BlockerLock
		}
		b := explain.Handler(explain.Limit(code, drover.Limit{Name: l.Name, Scope: drover.ScopeNamed, Shared: l.Tenant == 0, Max: l.Permits, Used: w.used[l.ID], Lock: l.Auto}, "", r.Wants, time.Time{}, p), l.Auto)
		b.Since = r.At.Time()
		held := &decided{waiting: &waiting{}}
		if _, _, err := x.limitHolders(ctx, held, &b, admit.Blocker{Subject: admit.Subject{ID: l.ID}}, p.Position-1); err != nil {
			return nil, err
		}
		b.ETA = nil // when a handler gives a lock back is not known by how long its task runs
		for i := range b.Holders {
			b.Holders[i].ExpectedReleaseIn = nil
		}
		list = append(list, b)
	}
	for _, p := range w.parties {
		if p.Task != s.ID || p.Until < x.now {
			continue
		}
		there := 0
		for _, o := range w.parties {
			if o.Name == p.Name && o.Round == p.Round && o.Until >= x.now {
				there++
			}
		}
		b := explain.Barrier(p.Name, int(p.Round), there, int(p.Parties))
		b.Since = p.At.Time()
		list = append(list, b)
	}
	return explain.Order(list, x.now.Time()), nil
}
