package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/drover-dev/drover"
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
		if err := tx.Pipe(ctx, store.QueueCounts(ids, counts, &capped)...); err != nil {
			return err
		}
		sessions, err := e.liveSessions(ctx, tx, c)
		if err != nil {
			return err
		}
		now := e.now()
		out = make([]drover.Queue, len(ids))
		at := make(map[string]*drover.Queue, len(ids))
		for i, id := range ids {
			q := &out[i]
			q.Name = names[id]
			if n := counts[id]; n != nil {
				q.Ready, q.Queued, q.Running, q.Delayed = upTo(n.Ready), upTo(n.Queued), upTo(n.Running), upTo(n.Delayed)
				q.Approximate = max(n.Ready, n.Queued) > store.MaxCount
				if n.OldestAt > 0 {
					q.OldestAge = drover.Duration(max(now.Sub(n.OldestAt), 0))
				}
			}
			q.Approximate = q.Approximate || capped
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
