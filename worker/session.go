package worker

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/drover-dev/drover"
)

// session is the server's word that this worker lives, and until when. All its
// leases end with it.
type session struct {
	ctx        context.Context // ends when the session is lost or left
	cancel     context.CancelFunc
	id         drover.SessionID
	renewEvery time.Duration

	// By Worker.mu. until is counted by this machine's monotonic clock from
	// before the request that earned it was sent, so it is never late.
	leaseFor time.Duration
	until    time.Time
	expiry   *time.Timer
	lost     bool
	number   int64          // of the last acquire sent
	asking   map[int64]bool // the numbers of those under way
	acquired int64          // up to which all have been answered or given up
}

// margin is how long before the end of a lease its handlers are stopped.
func margin(leaseFor time.Duration) time.Duration { return min(leaseFor/10, 5*time.Second) }

// keepSession opens a session, renews it, and opens another when it is lost,
// until ctx ends. Once taking ends it opens none any more. A refusal of the
// first session is sent to refused.
func (w *Worker) keepSession(ctx, taking context.Context, refused chan<- error) {
	open := &trouble{log: w.log, what: "open session"}
	first := true
	for taking.Err() == nil {
		w.mu.Lock()
		asks := drover.NewSession{Worker: w.cfg.Name, Queues: w.cfg.Queues, Kinds: w.kinds(), Slots: w.cfg.Slots, Labels: w.cfg.Labels, Resources: w.cfg.Resources, Version: w.cfg.Version}
		w.mu.Unlock()
		sent := time.Now()
		try, done := context.WithTimeout(taking, 30*time.Second)
		got, err := w.conn.OpenSession(try, asks)
		done()
		if err != nil {
			var refusal *drover.Error
			if first && errors.As(err, &refusal) && refusal.Code != drover.CodeOverloaded && refusal.Code != drover.CodeInternal {
				refused <- err
				return
			}
			if taking.Err() == nil {
				open.failed(err)
				sleep(taking, pause(open.n-1, err), nil)
			}
			continue
		}
		open.over()
		first = false
		s := w.enter(ctx, got, sent)
		w.log.Info("session opened", "worker", s.id, "queues", w.cfg.Queues, "slots", w.cfg.Slots, "lease", s.leaseFor)
		w.renew(s)
		s.cancel()
	}
}

// enter makes a session the current one.
func (w *Worker) enter(ctx context.Context, got drover.Session, sent time.Time) *session {
	s := &session{id: got.ID, asking: map[int64]bool{}, leaseFor: got.LeaseFor.Std(), renewEvery: got.RenewEvery.Std()}
	if s.leaseFor <= 0 {
		s.leaseFor = 30 * time.Second
	}
	if s.renewEvery <= 0 || s.renewEvery > s.leaseFor/2 {
		s.renewEvery = s.leaseFor / 3
	}
	s.ctx, s.cancel = context.WithCancel(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	s.until = sent.Add(s.leaseFor)
	// A timer of its own: a renewal that hangs does not keep it from firing.
	s.expiry = time.AfterFunc(time.Until(s.until)-margin(s.leaseFor), func() { w.expire(s) })
	w.session = s
	wake(w.acquireWake)
	return s
}

// expire ends a session that was not renewed in time.
func (w *Worker) expire(s *session) {
	w.mu.Lock()
	left := time.Until(s.until) - margin(s.leaseFor)
	if left > 0 && !s.lost { // renewed in the meantime
		s.expiry.Reset(left)
	}
	w.mu.Unlock()
	if left <= 0 {
		w.lose(s, "not renewed in time")
	}
}

// lose ends a session: its handlers are stopped, and what they return is not
// reported. Outcomes decided before are still offered to the server.
func (w *Worker) lose(s *session, why string) {
	w.mu.Lock()
	if s.lost {
		w.mu.Unlock()
		return
	}
	s.lost = true
	s.expiry.Stop()
	if w.session == s {
		w.session = nil
	}
	n := 0
	for _, r := range w.runs {
		if r.s == s {
			w.loseRun(r)
			n++
		}
	}
	w.mu.Unlock()
	s.cancel()
	w.log.Warn("session lost", "worker", s.id, "why", why, "tasks", n)
}

// loseRun stops a handler whose lease is lost. The lock is held.
func (w *Worker) loseRun(r *run) {
	delete(w.runs, r.held)
	r.over = true
	r.cancel(ErrLeaseLost)
}

// renew extends a session until it is lost or its context ends.
func (w *Worker) renew(s *session) {
	row := &trouble{log: w.log, what: "renew session"}
	for {
		next := s.renewEvery - time.Duration(rand.Int64N(int64(s.renewEvery/10)+1))
		if row.n > 0 {
			next = min(next, pause(row.n-1, nil))
		}
		if w.isDraining() { // a claim that was under way when the poll was given up is not kept for long
			next = min(next, time.Second)
		}
		if !sleep(s.ctx, next, w.renewWake) {
			return
		}
		sent := time.Now()
		try, done := context.WithTimeout(s.ctx, max(s.leaseFor/3, 100*time.Millisecond))
		got, err := w.conn.Renew(try, s.id, w.renewal(s))
		done()
		var refusal *drover.Error
		switch {
		case s.ctx.Err() != nil:
			return
		case err == nil:
			row.over()
			w.renewed(s, got, sent)
		case errors.As(err, &refusal) && (refusal.Code == drover.CodeNotFound || refusal.Code == drover.CodeLeaseLost || refusal.Code == drover.CodeInvalidTransition):
			w.lose(s, err.Error())
			return
		default:
			row.failed(err)
		}
	}
}

func (w *Worker) isDraining() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.draining
}

// renewal names every lease of s that must be kept: of running attempts, and of
// those whose outcome the server does not have yet.
func (w *Worker) renewal(s *session) drover.Renewal {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := drover.Renewal{Held: make([]drover.Held, 0, len(w.runs)+len(w.queue)+w.flying()), Acquired: s.acquired, Draining: w.draining}
	for h, run := range w.runs {
		if run.s == s {
			r.Held = append(r.Held, h)
			if run.stopping {
				r.Stopping = append(r.Stopping, h)
			}
		}
	}
	for _, list := range append(w.inFlight[:], w.queue) {
		for _, p := range list {
			if p.s == s {
				r.Held = append(r.Held, drover.Held{TaskID: p.o.TaskID, LeaseVersion: p.o.LeaseVersion})
			}
		}
	}
	return r
}

// renewed takes a renewal's answer. A renewal that was sent before a later one
// was answered cannot shorten the lease.
func (w *Worker) renewed(s *session, got drover.Renewed, sent time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.lost {
		return
	}
	if d := got.LeaseFor.Std(); d > 0 {
		s.leaseFor = d
	}
	s.until = sent.Add(s.leaseFor)
	s.expiry.Reset(time.Until(s.until) - margin(s.leaseFor))
	for _, h := range got.Lost {
		if r, ok := w.runs[h]; ok {
			w.log.Warn("lease lost", "task", h.TaskID, "lease_version", h.LeaseVersion)
			w.loseRun(r)
		}
	}
	for _, h := range got.Cancelled {
		if r, ok := w.runs[h]; ok {
			r.cancel(ErrCancelled)
			if !r.stopping {
				w.log.Debug("task cancelled", "task", h.TaskID)
				r.stopping = true
				wake(w.renewWake) // tells the server so
			}
		}
	}
}

// closeSession gives back the session and whatever it still holds.
func (w *Worker) closeSession(ctx context.Context) {
	w.mu.Lock()
	s := w.session
	w.session = nil
	if s != nil {
		s.lost = true
		s.expiry.Stop()
	}
	w.mu.Unlock()
	if s == nil {
		return
	}
	ctx, done := context.WithTimeout(ctx, 5*time.Second)
	defer done()
	if err := w.conn.CloseSession(ctx, s.id); err != nil {
		w.log.Warn("session not closed; it will expire", "worker", s.id, "err", err)
		return
	}
	w.log.Info("session closed", "worker", s.id)
}
