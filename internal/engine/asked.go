package engine

import (
	"context"
	"maps"
	"slices"

	"github.com/drover-dev/drover/internal/admit"
	"github.com/drover-dev/drover/internal/store"
)

// inTurn is what handlers wait for of a limit, in their turn, those who may get it: who
// has not asked again in time is out of the line, and who asks for more than the limit
// has by now is told so when it asks again.
func (w *waiting) inTurn(limit int32) (list []store.Asked) {
	at := slices.IndexFunc(w.limits, func(l store.LimitRow) bool { return l.ID == limit })
	for _, r := range w.asked {
		if r.Limit == limit && r.Waits() && r.Until >= w.Now && at >= 0 && r.Wants <= w.limits[at].Permits {
			list = append(list, r)
		}
	}
	return list
}

// handled is what a decision of the admitter's did for handlers.
type handled struct {
	wanted map[int32]bool // limits that tasks wait for, as far as this round of looks has come
	look   bool           // who waits may have got something, or may get it now
}

// grantAsked carries out what was decided for the handlers that wait for limits for
// which tasks wait too, and notes of which limits that is so: of those nobody else
// grants anything. Where handlers have nothing and want nothing it runs no statement.
func (e *Engine) grantAsked(ctx context.Context, tx store.Tx, w *waiting, d *admit.Decision) (*handled, error) {
	h := &handled{wanted: map[int32]bool{}}
	if len(w.asked) == 0 {
		return h, nil
	}
	maps.Copy(h.wanted, e.admitter.wanted)
	for _, v := range d.Waiting {
		for _, b := range v.Blockers {
			if b.Code == admit.SemaphoreFull || b.Code == admit.LockHeld {
				h.wanted[b.Subject.ID] = true
			}
		}
	}
	var ids []int32
	var wanted []bool
	for i := range w.limits {
		l := &w.limits[i]
		if yes := h.wanted[l.ID]; yes != l.Wanted && (yes || w.next == (store.Line{})) {
			ids, wanted = append(ids, l.ID), append(wanted, yes)
			h.look = h.look || !yes
		}
	}
	var late, grant []store.Asked
	for _, r := range w.asked {
		if r.Waits() && r.Until < w.Now {
			late = append(late, r)
		}
	}
	for _, i := range slices.Sorted(maps.Keys(d.Granted)) {
		grant = append(grant, w.inTurn(w.Limits[i].ID)[:d.Granted[i]]...)
	}
	if err := lockAsked(ctx, tx, late, grant); err != nil {
		return nil, err
	}
	list := []store.Stmt{store.DeleteAsked(late)}
	if len(grant) > 0 {
		var token int64
		if err := tx.Pipe(ctx, store.LockTokens(leadName, &token)...); err != nil {
			return nil, err
		}
		for i := range grant {
			token = max(token+1, int64(w.Now))
			grant[i].Token, grant[i].At = token, w.Now
		}
		slices.SortFunc(grant, compareAsked)
		list = append(list, store.GrantAsked(grant), store.SetToken(leadName, token))
		h.look = true
	}
	return h, tx.Pipe(ctx, append(list, store.WantLimits(ids, wanted))...)
}

// toldAsked remembers after the commit what the next decision must know of handlers, and
// tells those who wait. The admitter's lock is held.
func (e *Engine) toldAsked(w *waiting, d *admit.Decision, h *handled) {
	a := &e.admitter
	if a.wanted = h.wanted; w.next == (store.Line{}) {
		a.wanted = map[int32]bool{}
	}
	for i := range w.Limits {
		if l := &w.Limits[i]; len(l.Asked) > 0 {
			a.first[l.ID] = d.First[i]
		}
	}
	if h.look && e.OnGranted != nil {
		e.OnGranted()
	}
}
