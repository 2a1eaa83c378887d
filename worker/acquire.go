package worker

import (
	"context"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

// ask numbers an acquire for at most that many of the slots that are free; nil
// when none may be sent now. The lock is held.
func (w *Worker) ask(most int) *drover.Acquire {
	s := w.session
	free := w.cfg.Slots - w.live - w.stuck - w.asked
	if s == nil || s.lost || w.draining || len(s.asking) > senders || free <= 0 {
		return nil
	}
	s.number++
	a := &drover.Acquire{Session: s.id, Max: min(free, most), Number: s.number}
	s.asking[a.Number] = true
	w.asked += a.Max
	return a
}

// answered ends an acquire. Its leases are started, or given back at once where
// that is not possible any more.
func (w *Worker) answered(s *session, a *drover.Acquire, leases []drover.Lease) {
	w.launch(w.admit(s, a, leases))
}

// admit makes attempts of the leases of an acquire.
func (w *Worker) admit(s *session, a *drover.Acquire, leases []drover.Lease) []*run {
	w.mu.Lock()
	defer w.mu.Unlock()
	runs := make([]*run, 0, len(leases))
	w.asked -= a.Max
	delete(s.asking, a.Number)
	s.acquired = s.number // also of a lost answer: a renewal that does not name its leases gives them back
	for n := range s.asking {
		s.acquired = min(s.acquired, n-1)
	}
	free := w.cfg.Slots - w.live - w.stuck - w.asked
	// This process may have been stopped while the answer was on its way: its leases
	// are somebody else's by now, and no timer has had the time to say so.
	late := time.Until(s.until) <= margin(s.leaseFor)
	for _, l := range leases {
		h := drover.Held{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion}
		if _, twice := w.runs[h]; twice {
			continue
		}
		if w.draining || s.lost || late || free <= 0 {
			w.put(s, h, drover.Outcome{Status: drover.OutcomeReleased})
			continue
		}
		free--
		runs = append(runs, w.start(s, l))
	}
	if w.draining || late {
		wake(w.renewWake) // at once: leases whose answer was given up with the poll are taken back by a renewal
	}
	wake(w.acquireWake)
	wake(w.idleWake)
	return runs
}

// takeTasks waits for leases with a long poll whenever slots are free and no
// report is under way, which would ask by itself.
func (w *Worker) takeTasks(ctx context.Context) {
	row := &trouble{log: w.log, what: "acquire"}
	empty := 0
	for ctx.Err() == nil {
		w.mu.Lock()
		var a *drover.Acquire
		if len(w.queue)+w.flying()+w.asked == 0 {
			a = w.ask(protocol.MaxLeases)
		}
		s := w.session
		w.mu.Unlock()
		if a == nil {
			sleep(ctx, time.Hour, w.acquireWake)
			continue
		}
		a.Wait = protocol.MaxWait
		began := time.Now()
		leases, err := w.poll(ctx, s, *a)
		w.answered(s, a, leases)
		var delay time.Duration
		switch {
		case err == nil && len(leases) > 0:
			row.over()
			empty = 0
		case err == nil:
			row.over()
			empty++
			if time.Since(began) < time.Second { // a server that does not wait is not asked in a circle
				delay = min(pause(empty, nil), time.Second)
			}
		case ctx.Err() != nil || s.ctx.Err() != nil:
		default:
			wake(w.renewWake) // it takes back what an answer that was lost handed out, and finds out whether the session is
			row.failed(err)
			delay = pause(row.n-1, err)
		}
		if delay > 0 {
			sleep(ctx, delay, s.ctx.Done())
		}
	}
}

// poll acquires, until the session is lost or ctx ends.
func (w *Worker) poll(ctx context.Context, s *session, a drover.Acquire) ([]drover.Lease, error) {
	ctx, done := context.WithTimeout(ctx, a.Wait.Std()+15*time.Second)
	defer done()
	defer context.AfterFunc(s.ctx, done)()
	return w.conn.Acquire(ctx, a)
}
