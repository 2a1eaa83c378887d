package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// OpenSession registers a worker process. Its leases live as long as it does.
func (e *Engine) OpenSession(ctx context.Context, c Caller, n drover.NewSession) (drover.Session, error) {
	var bad []drover.FieldError
	say := func(field, format string, args ...any) {
		bad = append(bad, drover.FieldError{Field: field, Message: fmt.Sprintf(format, args...)})
	}
	checkName(say, "worker", n.Worker)
	if len(n.Queues) == 0 || len(n.Queues) > 100 {
		say("queues", "name 1 to 100 queues")
	}
	for i, q := range n.Queues {
		checkName(say, fmt.Sprintf("queues[%d]", i), q)
	}
	if len(n.Kinds) > 1000 {
		say("kinds", "at most 1000")
	}
	for i, k := range n.Kinds {
		checkName(say, fmt.Sprintf("kinds[%d]", i), k)
	}
	if n.Slots < 1 || n.Slots > 100_000 {
		say("slots", "%d is outside 1 to 100000", n.Slots)
	}
	if len(n.Labels) > maxLabels {
		say("labels", "%d labels; at most %d", len(n.Labels), maxLabels)
	}
	for k, v := range n.Labels {
		if k == "" || len(k) > 63 || len(v) > 255 || !clean(k) || !clean(v) {
			say("labels", "key %q or its value is too long or has control characters", cut(k))
		}
	}
	checkAsks(say, &dag.Asks{Resources: n.Resources})
	if len(n.Version) > maxName || !clean(n.Version) {
		say("version", "at most %d bytes", maxName)
	}
	if len(bad) > 0 {
		return drover.Session{}, &drover.Error{Code: drover.CodeValidation, Detail: "the session is not valid", Fields: bad}
	}
	for _, q := range n.Queues { // a queue exists from the first worker on, too
		if _, err := e.queue(ctx, q); err != nil {
			return drover.Session{}, err
		}
	}
	now := e.now()
	s := store.SessionRow{Tenant: c.Tenant, Actor: c.Actor, Worker: n.Worker, Queues: n.Queues, Kinds: n.Kinds, Labels: n.Labels, Resources: n.Resources, Slots: int32(n.Slots),
		Version: n.Version, StartedAt: now, ExpiresAt: now.Add(e.opts.LeaseFor)}
	if c.System {
		s.Tenant = 0
	}
	if err := e.db.Write(ctx, func(tx store.Tx) error { return store.InsertSession(ctx, tx, &s) }); err != nil {
		return drover.Session{}, fmt.Errorf("open session: %w", err)
	}
	_ = e.endowed.learn(s) // its claims begin as they should
	return e.showSession(s), nil
}

// showSession is what the API shows of a session.
func (e *Engine) showSession(s store.SessionRow) drover.Session {
	return drover.Session{ID: drover.SessionID(s.ID), Worker: s.Worker, Queues: s.Queues, Kinds: s.Kinds, Slots: int(s.Slots), Labels: s.Labels, Resources: s.Resources, Version: s.Version,
		Draining: s.Draining, StartedAt: s.StartedAt.Time(), ExpiresAt: s.ExpiresAt.Time(),
		LeaseFor: drover.Duration(e.opts.LeaseFor), RenewEvery: drover.Duration(e.opts.LeaseFor / 3)}
}

// session reads a session of the caller's, locked as its claims do where it claims.
func (e *Engine) session(ctx context.Context, tx store.Tx, c Caller, id drover.SessionID, claims bool) (store.SessionRow, error) {
	rows := map[int64]store.SessionRow{}
	lock := store.Unlocked
	if claims {
		lock = e.endowed.lock(int64(id))
	}
	if err := tx.Pipe(ctx, store.ReadSessions([]int64{int64(id)}, lock, rows)); err != nil {
		return store.SessionRow{}, err
	}
	s, err := sessionOf(rows, c, id)
	if err == nil && claims {
		err = e.endowed.learn(s)
	}
	return s, err
}

// endowed remembers which sessions have resources. Of two claims of such a one at once
// each would count what it runs without the other, so they take turns.
type endowed struct {
	mu  sync.RWMutex
	ids map[int64]bool
}

const maxEndowed = 10_000

// lock is how a claim locks its session's row.
func (m *endowed) lock(id int64) int {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.ids[id] {
		return store.Locked
	}
	return store.Shared
}

// learn begins a transaction anew that claims for a session and only shared its row as
// this process had not met it.
func (m *endowed) learn(s store.SessionRow) error {
	if len(s.Resources) == 0 || m.lock(s.ID) == store.Locked {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ids == nil || len(m.ids) >= maxEndowed {
		m.ids = map[int64]bool{} // rare: start anew rather than hear of every session's end
	}
	m.ids[s.ID] = true
	return store.ErrRetry
}

// sessionOf finds a session of the caller's among those that were read.
func sessionOf(rows map[int64]store.SessionRow, c Caller, id drover.SessionID) (store.SessionRow, error) {
	s := rows[int64(id)]
	if s.ID == 0 || s.Tenant != callerTenant(c) || s.Actor != c.Actor {
		return s, notFound("worker", id)
	}
	return s, nil
}

// expired says that nothing can be claimed for a session any more.
func (e *Engine) expired(s store.SessionRow) bool { return s.Ended || s.ExpiresAt <= e.now() }

// callerTenant is the tenant a caller's sessions serve; 0 is all.
func callerTenant(c Caller) int32 {
	if c.System {
		return 0
	}
	return c.Tenant
}

func expiredSession(id drover.SessionID) error {
	return drover.Errorf(drover.CodeLeaseLost, "the lease of worker %s has run out; open a new session", id)
}

// Renew extends a session and with it every lease it holds. It answers which of
// the held leases are to be cancelled and which are lost, takes back leases
// whose acquire's answer never arrived, and ends attempts that have run past
// their timeout: those of a worker that does not renew are taken back anyway.
func (e *Engine) Renew(ctx context.Context, c Caller, id drover.SessionID, r drover.Renewal) (drover.Renewed, error) {
	if len(r.Held) > 100_000 {
		return drover.Renewed{}, &drover.Error{Code: drover.CodeValidation, Detail: "the renewal is not valid", Fields: []drover.FieldError{{Field: "held", Message: "at most 100000"}}}
	}
	var out drover.Renewed
	var x *changes
	now := e.now()
	err := e.db.Write(ctx, func(tx store.Tx) error {
		out, x = drover.Renewed{}, e.changes(now)
		if _, err := e.session(ctx, tx, c, id, false); err != nil {
			return err
		}
		s, err := store.RenewSession(ctx, tx, int64(id), now.Add(e.opts.LeaseFor), r.Draining, now)
		if err != nil {
			return err
		}
		if s.ID == 0 {
			return expiredSession(id)
		}
		out.ExpiresAt, out.LeaseFor = s.ExpiresAt.Time(), drover.Duration(e.opts.LeaseFor)
		var have []store.SessionLease
		var old []store.OldLease
		if err := tx.Pipe(ctx, store.SessionLeases(int64(id), &have), store.CancelledLeases(int64(id), &out.Cancelled),
			store.OldLeases(int64(id), now.Add(-e.overrunGrace()), &old)); err != nil {
			return err
		}
		reports, err := e.overruns(ctx, tx, old, now)
		if err != nil {
			return err
		}
		over := make(map[store.Lease]bool, len(reports))
		for _, r := range reports {
			over[r.lease] = true
		}
		held := make(map[drover.Held]bool, len(r.Held))
		for _, h := range r.Held {
			held[h] = true
		}
		granted := make(map[drover.Held]bool, len(have))
		for _, l := range have {
			if over[l.Lease] {
				continue
			}
			h := drover.Held{TaskID: l.Task, LeaseVersion: l.Version}
			granted[h] = true
			if !held[h] && l.Acquire <= r.Acquired {
				reports = append(reports, &report{lease: l.Lease, Outcome: drover.Outcome{Status: drover.OutcomeReleased}})
			}
		}
		for _, h := range r.Held {
			if !granted[h] {
				out.Lost = append(out.Lost, h)
			}
		}
		out.Cancelled = slices.DeleteFunc(out.Cancelled, func(h drover.Held) bool { return !held[h] || !granted[h] }) // one that ends here is lost
		stopping := slices.DeleteFunc(slices.Clone(out.Cancelled), func(h drover.Held) bool { return !slices.Contains(r.Stopping, h) })
		if err := tx.Pipe(ctx, store.Stopping(stopping, now)); err != nil {
			return err
		}
		if len(reports) == 0 {
			return nil
		}
		return e.settle(ctx, tx, x, reports)
	})
	if err != nil {
		return drover.Renewed{}, fmt.Errorf("renew: %w", err)
	}
	e.after(ctx, x)
	return out, nil
}

// overrunGrace is how long a worker may take to end an attempt whose timeout has
// passed, and to report it, before the server does.
func (e *Engine) overrunGrace() time.Duration { return e.opts.LeaseFor / 2 }

// overruns are the attempts among old ones that have run past their timeout and the grace.
func (e *Engine) overruns(ctx context.Context, tx store.Tx, old []store.OldLease, now lifecycle.Instant) (reports []*report, err error) {
	for _, l := range old {
		on := termsOf(l.Policy)
		if l.Pipeline != 0 {
			plan, err := e.plan(ctx, tx, l.Pipeline)
			if err != nil {
				return nil, err
			}
			on = plan.terms(l.Node)
		}
		if lifecycle.Overrun(l.ClaimedAt, on.timeout, e.overrunGrace(), now) {
			reports = append(reports, &report{lease: l.Lease, Outcome: drover.Outcome{Status: outcomeCut, Error: &drover.Failure{Class: drover.ClassTimeout, Type: typeStartToClose,
				Message: fmt.Sprintf("the attempt took longer than its timeout of %s and its worker did not end it: the server did, after %s", drover.Duration(on.timeout), drover.Duration(now.Sub(l.ClaimedAt)))}}})
		}
	}
	return reports, nil
}

// CloseSession ends a session and gives back what it still holds.
func (e *Engine) CloseSession(ctx context.Context, c Caller, id drover.SessionID) error {
	now := e.now()
	err := e.db.Write(ctx, func(tx store.Tx) error {
		if _, err := e.session(ctx, tx, c, id, false); err != nil {
			return err
		}
		return tx.Pipe(ctx, store.EndSession(int64(id), now))
	})
	if err != nil {
		return fmt.Errorf("close session: %w", err)
	}
	_, err = e.clearSession(ctx, int64(id), true)
	return err
}
