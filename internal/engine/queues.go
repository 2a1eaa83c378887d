package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// serves reports whether a session's worker takes tasks of the caller's tenant,
// or is the installation's to see.
func serves(s *store.SessionRow, c Caller) bool {
	return s.Tenant == 0 || s.Tenant == c.Tenant || c.System
}

// liveSessions reads the sessions that have not ended and serve the caller.
func (e *Engine) liveSessions(ctx context.Context, tx store.Tx, c Caller) ([]store.SessionRow, error) {
	var rows []store.SessionRow
	if err := tx.Pipe(ctx, store.LiveSessions(&rows)); err != nil {
		return nil, err
	}
	now := e.now()
	return slices.DeleteFunc(rows, func(s store.SessionRow) bool { return s.ExpiresAt <= now || !serves(&s, c) }), nil
}

// Queues returns every queue with what stands in it, by name. Queues belong to
// the installation: the counts are of all tenants.
func (e *Engine) Queues(ctx context.Context, c Caller) (out []drover.Queue, err error) {
	err = e.db.Read(ctx, func(tx store.Tx) error {
		names, err := store.QueueNames(ctx, tx)
		if err != nil {
			return err
		}
		ids := make([]int32, 0, len(names))
		for id := range names {
			ids = append(ids, id)
		}
		slices.Sort(ids)
		counts := map[int32]*store.QueueCount{}
		capped := false
		var set []store.QueueState
		if err := tx.Pipe(ctx, store.QueueStates(&set)); err != nil {
			return err
		}
		if err := tx.Pipe(ctx, store.QueueCounts(ids, counts, &capped)...); err != nil {
			return err
		}
		sessions, err := e.liveSessions(ctx, tx, c)
		if err != nil {
			return err
		}
		unserved, err := noWorkerFor(ctx, tx, c, counts, names, sessions)
		if err != nil {
			return err
		}
		now := e.now()
		out = make([]drover.Queue, len(ids))
		at := make(map[string]*drover.Queue, len(ids))
		for i, id := range ids {
			q := &out[i]
			q.Name = names[id]
			for _, s := range set {
				if s.ID == id {
					q.Paused, q.Draining, q.Reason, q.Reserves = s.Paused, s.Draining, s.Reason, reservesOf(s.Reserves)
				}
			}
			if n := counts[id]; n != nil {
				q.Ready, q.Queued, q.Running, q.Delayed = upTo(n.Ready), upTo(n.Queued), upTo(n.Running), upTo(n.Delayed)
				q.Approximate = max(n.Ready, n.Queued) > store.MaxCount
				if n.OldestAt > 0 {
					q.OldestAge = drover.Duration(max(now.Sub(n.OldestAt), 0))
				}
			}
			q.Approximate = q.Approximate || capped
			q.NoWorkerFor = unserved[id]
		}
		slices.SortFunc(out, func(a, b drover.Queue) int { return cmp.Compare(a.Name, b.Name) })
		for i := range out {
			at[out[i].Name] = &out[i]
		}
		for _, s := range sessions {
			for _, name := range s.Queues {
				if q := at[name]; q != nil {
					q.Workers++
					if !s.Draining {
						q.Slots += int(s.Slots)
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list queues: %w", err)
	}
	return out, nil
}

// takes reports whether a session's worker takes tasks of a queue, a tenant and
// a kind.
func takes(s *store.SessionRow, queue string, tenant int32, kind string) bool {
	return !s.Draining && (s.Tenant == 0 || s.Tenant == tenant) && slices.Contains(s.Queues, queue) &&
		(len(s.Kinds) == 0 || slices.Contains(s.Kinds, kind))
}

// noWorkerFor names, for each queue, the kinds of the caller's waiting tasks that
// no live worker takes.
func noWorkerFor(ctx context.Context, tx store.Tx, c Caller, counts map[int32]*store.QueueCount, names map[int32]string, sessions []store.SessionRow) (map[int32][]string, error) {
	var lanes []int32
	for _, n := range counts {
		lanes = append(lanes, n.Lanes...)
	}
	slices.Sort(lanes)
	keys := map[int32]store.LaneKey{}
	if err := tx.Pipe(ctx, store.LaneKeys(slices.Compact(lanes), keys)); err != nil {
		return nil, err
	}
	out := map[int32][]string{}
	for _, k := range keys {
		mine := c.System || k.Tenant == c.Tenant
		if mine && !slices.ContainsFunc(sessions, func(s store.SessionRow) bool { return takes(&s, names[k.Queue], k.Tenant, k.Kind) }) {
			out[k.Queue] = append(out[k.Queue], k.Kind)
		}
	}
	for queue, kinds := range out {
		slices.Sort(kinds)
		out[queue] = slices.Compact(kinds)
	}
	return out, nil
}

// blockers says which of the tasks that may run no live worker takes.
func (e *Engine) blockers(ctx context.Context, tx store.Tx, list []taskState, shown []drover.Task) error {
	var waiting []int
	for i := range list {
		if l := list[i].live; l != nil && l.Lane != lifecycle.HeldLane && (l.Status == drover.Ready || l.Status == drover.Queued) {
			waiting = append(waiting, i)
		}
	}
	if len(waiting) == 0 {
		return nil
	}
	sessions, err := e.liveSessions(ctx, tx, Caller{System: true})
	if err != nil {
		return err
	}
	for _, i := range waiting {
		t := &shown[i]
		if len(t.Blockers) > 0 || slices.ContainsFunc(sessions, func(s store.SessionRow) bool { return takes(&s, t.Queue, list[i].Tenant, t.Kind) }) {
			continue
		}
		said := fmt.Sprintf("no live worker serves queue %q", t.Queue)
		if slices.ContainsFunc(sessions, func(s store.SessionRow) bool {
			return (s.Tenant == 0 || s.Tenant == list[i].Tenant) && slices.Contains(s.Queues, t.Queue)
		}) {
			said = fmt.Sprintf("no live worker of queue %q runs tasks of kind %q", t.Queue, t.Kind)
		}
		t.Blockers = append(t.Blockers, drover.Blocker{Code: drover.BlockerNoWorker, Subject: drover.Subject{Kind: "kind", Name: t.Kind}, Since: t.ReadyAt, Message: said})
	}
	return nil
}

func upTo(n int64) int { return int(min(n, store.MaxCount)) }

// Sessions returns the live worker sessions that serve the caller's tenant.
func (e *Engine) Sessions(ctx context.Context, c Caller) (out []drover.Session, err error) {
	err = e.db.Read(ctx, func(tx store.Tx) error {
		rows, err := e.liveSessions(ctx, tx, c)
		if err != nil {
			return err
		}
		ids := make([]int64, len(rows))
		for i, s := range rows {
			ids[i] = s.ID
		}
		loads := map[int64]int64{}
		if err := tx.Pipe(ctx, store.SessionLoads(ids, loads)); err != nil {
			return err
		}
		out = make([]drover.Session, len(rows))
		for i, s := range rows {
			out[i] = e.showSession(s)
			out[i].Running = int(loads[s.ID])
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list workers: %w", err)
	}
	return out, nil
}
