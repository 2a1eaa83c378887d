package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/forecast"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// observed is how long attempts ran of late, by queue, tenant and kind: what
// forecasts are made from. A settle adds to it in memory, by lane, as that is what a
// row has; ObserveOnce shares it with other servers. It is bounded by maxObserved.
type observed struct {
	mu     sync.Mutex
	own    map[int32]*forecast.Service         // by lane: seen here since it was shared
	shared map[store.KindKey]*forecast.Service // as it was read last
	from   lifecycle.Instant                   // when the newest of it was stored
}

const (
	maxObserved     = 10_000
	observeAtOnce   = 500
	observeOverlaps = 10 * time.Second // a transaction may commit after one that began later
	keepStats       = 30 * 24 * time.Hour
)

// note adds the attempts that a transaction has ended.
func (o *observed) note(x *changes) {
	if len(x.finals)+len(x.attempts) == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range x.finals {
		if t := &x.finals[i].Task; t.Status == drover.Succeeded && t.How == lifecycle.HowPlain && t.ClaimedAt > 0 {
			if s := o.lane(t.Lane); s != nil {
				s.Add(t.Since.Sub(t.ClaimedAt), t.Since.Time())
			}
		}
	}
	for i := range x.attempts {
		a := &x.attempts[i]
		if a.Status == drover.Succeeded {
			continue // counted above
		}
		if s := o.lane(a.Task.Lane); s != nil {
			if a.Outcome == drover.OutcomeFailed || a.Outcome == outcomeCut {
				s.Add(a.At.Sub(a.Task.ClaimedAt), a.At.Time())
			} else {
				s.Ended(a.At.Time())
			}
		}
	}
}

func (o *observed) lane(id int32) *forecast.Service {
	s := o.own[id]
	if s == nil {
		if len(o.own) >= maxObserved {
			return nil
		}
		if o.own == nil {
			o.own = map[int32]*forecast.Service{}
		}
		s = &forecast.Service{}
		o.own[id] = s
	}
	return s
}

// seenLanes are the lanes of which something was seen here and not shared yet.
func (o *observed) seenLanes() []int32 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Keys(o.own))
}

// of is what is known of a kind, whose lanes seen here are these; nil when that is nothing.
func (o *observed) of(k store.KindKey, lanes []int32) *forecast.Service {
	o.mu.Lock()
	defer o.mu.Unlock()
	shared := o.shared[k] // replaced, never changed
	var all *forecast.Service
	for _, lane := range lanes {
		own := o.own[lane]
		if own == nil {
			continue // shared meanwhile
		}
		if all == nil {
			all = &forecast.Service{}
			if shared != nil {
				*all = *shared
			}
		}
		all.Merge(own)
	}
	if all == nil {
		return shared
	}
	return all
}

// take hands out what was seen of some lanes since it was shared.
func (o *observed) take(n int) map[int32]*forecast.Service {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := map[int32]*forecast.Service{}
	for _, lane := range slices.Sorted(maps.Keys(o.own)) {
		if len(out) == n {
			break
		}
		out[lane] = o.own[lane]
		delete(o.own, lane)
	}
	return out
}

// giveBack takes it again, when it could not be shared.
func (o *observed) giveBack(list map[int32]*forecast.Service) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for lane, s := range list {
		if own := o.lane(lane); own != nil {
			own.Merge(s)
		}
	}
}

// put keeps what is shared.
func (o *observed) put(rows []store.KindStats) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.shared == nil {
		o.shared = map[store.KindKey]*forecast.Service{}
	}
	for _, r := range rows {
		if o.shared[r.KindKey] != nil || len(o.shared) < maxObserved {
			o.shared[r.KindKey] = forecast.Decode(r.Data)
		}
		o.from = max(o.from, r.At)
	}
}

// sharedFrom is the time after which what was stored is to be read: a little before
// the newest that was.
func (o *observed) sharedFrom() lifecycle.Instant {
	o.mu.Lock()
	defer o.mu.Unlock()
	return max(0, o.from.Add(-observeOverlaps))
}

// kindOf names what a lane's tasks are.
func kindOf(k store.LaneKey) store.KindKey {
	return store.KindKey{Queue: k.Queue, Tenant: k.Tenant, Kind: k.Kind}
}

func compareKinds(a, b store.KindKey) int {
	return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Kind, b.Kind))
}

// byKind adds what was seen of lanes up by kind.
func (e *Engine) byKind(ctx context.Context, tx store.Tx, own map[int32]*forecast.Service) (map[store.KindKey]*forecast.Service, error) {
	out := map[store.KindKey]*forecast.Service{}
	for lane, s := range own {
		l, err := e.laneOf(ctx, tx, lane)
		if err != nil {
			return nil, err
		}
		k := kindOf(l)
		if out[k] == nil {
			out[k] = &forecast.Service{}
		}
		out[k].Merge(s)
	}
	return out, nil
}

// ObserveOnce shares how long tasks ran with other servers, and reads what they have
// seen. It returns of how many lanes.
func (e *Engine) ObserveOnce(ctx context.Context) (int, error) {
	own := e.seen.take(observeAtOnce)
	if len(own) > 0 {
		var rows []store.KindStats
		err := e.db.Write(ctx, func(tx store.Tx) error {
			kinds, err := e.byKind(ctx, tx, own)
			if err != nil {
				return err
			}
			keys := slices.SortedFunc(maps.Keys(kinds), compareKinds)
			rows = nil
			if err := tx.Pipe(ctx, store.LockStats(keys, &rows)...); err != nil {
				return err
			}
			stored := map[store.KindKey][]byte{}
			for _, r := range rows {
				stored[r.KindKey] = r.Data
			}
			rows = rows[:0]
			for _, k := range keys {
				s := forecast.Decode(stored[k])
				s.Merge(kinds[k])
				rows = append(rows, store.KindStats{KindKey: k, At: e.now(), Data: s.Encode()})
			}
			return tx.Pipe(ctx, store.SetStats(rows))
		})
		if err != nil {
			if !IsUnknown(err) { // then it may be stored already
				e.seen.giveBack(own)
			}
			return 0, fmt.Errorf("share statistics: %w", err)
		}
		e.seen.put(rows)
	}
	from := e.seen.sharedFrom()
	var others []store.KindStats
	if err := e.db.Read(ctx, func(tx store.Tx) error {
		others = nil
		return tx.Pipe(ctx, store.ReadStats(from, maxObserved, &others))
	}); err != nil {
		return 0, fmt.Errorf("read statistics: %w", err)
	}
	e.seen.put(others)
	return len(own), nil
}
