package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

// Bounds of one settle.
const (
	maxBatch      = 500
	maxBatchBytes = protocol.MaxSettleBody / 2
)

// senders is how many settles may be under way at a time. While one is, the next
// goes only once moreThan outcomes have gathered: few of them cost the server as
// much as many.
const (
	senders  = 2
	moreThan = 100
)

// report is an outcome on its way to the server.
type report struct {
	s *session // under which the lease was taken
	o drover.Outcome
	// instead says that the server refused the attempt's own outcome, and o
	// tells so.
	instead bool
}

func (r report) size() int {
	n := 256 + len(r.o.Output) + 32*len(r.o.Artifacts)
	if r.o.Error != nil {
		n += len(r.o.Error.Message) + len(r.o.Error.Stack)
	}
	return n
}

// put queues an outcome. The lock is held.
func (w *Worker) put(s *session, h drover.Held, o drover.Outcome) {
	o.TaskID, o.LeaseVersion = h.TaskID, h.LeaseVersion
	w.queue = append(w.queue, report{s: s, o: o})
	wake(w.settleWake)
}

// reportOutcomes sends whatever outcomes are queued, as one batch, until ctx
// ends. It waits for nothing: while a batch is under way the next one gathers.
// Each of the senders has a number.
func (w *Worker) reportOutcomes(ctx context.Context, sender int) {
	row := &trouble{log: w.log, what: "settle"}
	limit := maxBatch
	for ctx.Err() == nil {
		batch, s, a := w.take(sender, limit)
		if len(batch) == 0 {
			sleep(ctx, time.Hour, w.settleWake)
			continue
		}
		req := protocol.SettleRequest{Session: s.id, Outcomes: make([]drover.Outcome, len(batch)), Acquire: a}
		for i, r := range batch {
			req.Outcomes[i] = r.o
		}
		try, done := context.WithTimeout(ctx, 60*time.Second)
		got, err := w.conn.Settle(try, req)
		done()
		if err == nil && len(got.Results) != len(batch) {
			err = fmt.Errorf("the server answered for %d of %d outcomes", len(got.Results), len(batch))
		}
		var again []report
		var refusal *drover.Error
		switch {
		case err == nil:
			again, err = w.results(batch, got.Results)
			limit = min(limit*2, maxBatch)
		case errors.As(err, &refusal) && (refusal.Code == drover.CodeNotFound || refusal.Code == drover.CodeLeaseLost):
			w.log.Warn("outcomes refused: the session has ended", "worker", s.id, "outcomes", len(batch), "err", err)
			wake(w.renewWake)
			err = nil
		case refusal != nil && !passing(refusal.Code):
			if len(batch) > 1 { // find the one it does not like
				limit = len(batch) / 2
				again, err = batch, nil
				break
			}
			again, err = w.refused(batch[0], refusal), nil
			limit = min(limit*2, maxBatch)
		default:
			again = batch
		}
		w.settled(sender, again)
		if a != nil {
			w.answered(s, a, got.Leases)
			if err != nil {
				wake(w.renewWake) // it takes back what the lost answer handed out
			}
		}
		if err != nil {
			row.failed(err)
			sleep(ctx, pause(row.n-1, err), nil)
		} else {
			row.over()
		}
	}
}

// passing reports whether the same request may be accepted later. A token can
// be put right while the worker runs.
func passing(c drover.Code) bool {
	switch c {
	case drover.CodeOverloaded, drover.CodeInternal, drover.CodeConflict, drover.CodeUnauthenticated, drover.CodeForbidden:
		return true
	}
	return false
}

// take moves the front of the queue, all of one session, into flight, and asks
// for new leases with it where that is possible.
func (w *Worker) take(sender, limit int) ([]report, *session, *drover.Acquire) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 || w.flying() > 0 && len(w.queue) <= moreThan {
		return nil, nil, nil
	}
	s := w.queue[0].s
	n, size := 0, 0
	for n < len(w.queue) && n < limit && w.queue[n].s == s {
		if size += w.queue[n].size(); n > 0 && size > maxBatchBytes {
			break
		}
		n++
	}
	batch := append([]report(nil), w.queue[:n]...)
	w.inFlight[sender] = batch
	rest := copy(w.queue, w.queue[n:])
	clear(w.queue[rest:])
	w.queue = w.queue[:rest]
	if len(w.queue) > moreThan {
		wake(w.settleWake) // there is enough for the next one
	}
	var a *drover.Acquire
	if s == w.session && limit == maxBatch {
		a = w.ask(maxBatch)
	}
	return batch, s, a
}

// flying counts the outcomes that are being reported. The lock is held.
func (w *Worker) flying() (n int) {
	for _, batch := range w.inFlight {
		n += len(batch)
	}
	return n
}

// settled takes a batch out of flight; again goes back to the front of the queue.
func (w *Worker) settled(sender int, again []report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inFlight[sender] = nil
	if len(w.queue) > 0 {
		wake(w.settleWake)
	}
	if len(again) > 0 {
		w.queue = append(append([]report(nil), again...), w.queue...)
	}
	wake(w.acquireWake)
	wake(w.idleWake)
}

// results reads the answer for each outcome, and returns those to send again,
// with the reason of the first that is worth a pause.
func (w *Worker) results(batch []report, got []protocol.SettleResult) (again []report, pause error) {
	for i, g := range got {
		if g.Error == nil {
			continue
		}
		refusal := g.Error.ToError()
		switch {
		case refusal.Code == drover.CodeLeaseLost || refusal.Code == drover.CodeNotFound:
			w.log.Warn("outcome refused: the lease is lost", "task", batch[i].o.TaskID, "lease_version", batch[i].o.LeaseVersion, "outcome", batch[i].o.Status)
		case passing(refusal.Code):
			again = append(again, batch[i])
			pause = refusal
		default:
			again = append(again, w.refused(batch[i], refusal)...)
		}
	}
	return again, pause
}

// refused returns what is reported in place of an outcome that the server does
// not take, such as a result that is too large: a failure that says so.
func (w *Worker) refused(r report, why *drover.Error) []report {
	if r.instead || r.o.Status == drover.OutcomeReleased || r.o.Status == drover.OutcomeCancelled {
		w.log.Error("outcome refused", "task", r.o.TaskID, "outcome", r.o.Status, "err", why)
		return nil
	}
	return []report{{s: r.s, instead: true, o: drover.Outcome{
		TaskID: r.o.TaskID, LeaseVersion: r.o.LeaseVersion, Status: drover.OutcomeFailed,
		Error: &drover.Failure{Class: drover.ClassPermanent, Type: string(why.Code), Message: cut("the server refused the outcome "+r.o.Status+": "+why.Error(), maxMessage)},
	}}}
}
