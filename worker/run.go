package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-dev/drover"
)

// run is one attempt under way.
type run struct {
	w        *Worker
	s        *session
	held     drover.Held
	task     *Task
	timeout  time.Duration
	ctx      context.Context // the handler's; its cause says why it ended
	cancel   context.CancelCauseFunc
	reporter reporter

	// By Worker.mu.
	stopping bool        // its task is cancelled and the handler was told
	over     bool        // the outcome is decided, or not ours to tell any more
	returned bool        // the handler has
	stuck    bool        // the handler did not return in time, and holds its slot
	patience *time.Timer // runs once the context has ended, until the handler is given up

	asks atomic.Int32 // numbers locks and meetings

	mu        sync.Mutex
	artifacts []drover.ArtifactID
	log       *slog.Logger
	rounds    map[string]int32 // the last meeting at each barrier
}

// start makes an attempt of a lease, for launch. The lock is held.
func (w *Worker) start(s *session, l drover.Lease) *run {
	r := &run{w: w, s: s, held: drover.Held{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion}, timeout: l.Timeout.Std()}
	// The handler outlives the session's context: losing it cancels with a cause.
	r.ctx, r.cancel = context.WithCancelCause(context.WithoutCancel(s.ctx))
	r.task = &Task{Lease: l, run: r}
	r.reporter.w, r.reporter.r = w, r
	w.runs[r.held] = r
	w.live++
	return r
}

// launch runs attempts. After a few it lets those go first: what takes next to no time
// is over by then, and its goroutine has the next, with the stack it has grown.
func (w *Worker) launch(runs []*run) {
	for i, r := range runs {
		select {
		case w.hands <- r:
		default:
			go w.hand(r)
		}
		if i%16 == 15 {
			runtime.Gosched()
		}
	}
}

// keptHands is how many goroutines wait for attempts: few, so that each has one often,
// and the collector does not shrink its stack before.
const keptHands = 64

// hand runs one attempt after the other, until Run ends or enough others wait: a
// goroutine whose stack has grown to what handlers need is worth keeping.
func (w *Worker) hand(r *run) {
	for {
		w.supervise(r, w.handlers[r.task.Kind])
		if w.waiting.Add(1) > keptHands {
			w.waiting.Add(-1)
			return
		}
		select {
		case r = <-w.hands:
			w.waiting.Add(-1)
		case <-w.over:
			return
		}
	}
}

// supervise runs the handler to its end. One that does not come to it after its
// context has is given up meanwhile.
func (w *Worker) supervise(r *run, h Handler) {
	if r.timeout > 0 {
		ctx, done := context.WithTimeout(r.ctx, r.timeout)
		defer done()
		r.ctx = ctx
	}
	defer r.cancel(nil)
	ended := context.AfterFunc(r.ctx, func() { w.lookAfter(r) })
	var o drover.Outcome
	defer func() { // also when the handler ends its goroutine
		ended()
		if o.Status == "" {
			o = drover.Outcome{Status: drover.OutcomeFailed, Error: &drover.Failure{Class: drover.ClassPanic, Message: "the handler ended its goroutine with runtime.Goexit"}}
		}
		w.finish(r, o)
	}()
	o = r.handle(h)
}

// lookAfter gives the handler of a context that has ended some time to return.
func (w *Worker) lookAfter(r *run) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !r.returned {
		r.patience = time.AfterFunc(w.cfg.CancelGrace, func() { w.giveUp(r) })
	}
}

// logger returns the attempt's logger, made when it is first asked for.
func (r *run) logger() *slog.Logger {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.log == nil {
		r.log = slog.New(r.reporter.handler())
	}
	return r.log
}

// handle calls the handler and says how it went.
func (r *run) handle(h Handler) (o drover.Outcome) {
	defer func() {
		if p := recover(); p != nil {
			stack := debug.Stack()
			o = drover.Outcome{Status: drover.OutcomeFailed, Error: &drover.Failure{
				Class: drover.ClassPanic, Message: cut("panic: "+describe(p), maxMessage), Stack: cut(string(stack), maxStack),
			}}
			r.w.log.Error("handler panicked", "task", r.held.TaskID, "kind", r.task.Kind, "panic", o.Error.Message)
		}
		if errors.Is(context.Cause(r.ctx), ErrCancelled) { // whatever the handler says: it may just have stopped
			o = drover.Outcome{Status: drover.OutcomeCancelled}
		}
	}()
	if h == nil {
		return outcomeOf(TypedError("no_handler", fmt.Errorf("%s", r.w.unknownKind(r.task.Kind))), nil, 0)
	}
	result, err := h(r.ctx, r.task)
	if err != nil {
		return outcomeOf(err, context.Cause(r.ctx), r.timeout)
	}
	out, err := encode(result)
	if err != nil {
		return outcomeOf(Permanent(TypedError("bad_result", err)), nil, 0)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return drover.Outcome{Status: drover.OutcomeSucceeded, Output: out, Artifacts: r.artifacts}
}

// describe writes what a handler panicked with; printing it may panic too.
func describe(p any) (s string) {
	defer func() {
		if recover() != nil {
			s = fmt.Sprintf("a %T that cannot be printed", p)
		}
	}()
	return fmt.Sprint(p)
}

func (r *run) saved(id drover.ArtifactID) {
	r.mu.Lock()
	r.artifacts = append(r.artifacts, id)
	r.mu.Unlock()
}

// finish frees the slot and queues the outcome, unless the lease is lost or the
// handler was given up.
func (w *Worker) finish(r *run, o drover.Outcome) {
	w.mu.Lock()
	r.returned = true // from here on it is not given up, however long its last lines take
	if r.patience != nil {
		r.patience.Stop()
	}
	w.mu.Unlock()
	r.reporter.close()
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.stuck {
		w.stuck--
		wake(w.acquireWake)
		w.log.Warn("handler returned after its task was given up", "task", r.held.TaskID, "kind", r.task.Kind, "outcome", o.Status)
		return
	}
	w.live--
	w.decide(r, o)
}

// decide queues the one outcome of an attempt. The lock is held.
func (w *Worker) decide(r *run, o drover.Outcome) {
	if !r.over {
		r.over = true
		delete(w.runs, r.held)
		w.put(r.s, r.held, o)
	} else {
		wake(w.acquireWake)
	}
	wake(w.idleWake)
}

// giveUp reports an attempt whose handler does not return. The handler keeps
// its slot.
func (w *Worker) giveUp(r *run) {
	cause := context.Cause(r.ctx)
	o := outcomeOf(fmt.Errorf("the handler did not return within %s of its context's end (%w)", w.cfg.CancelGrace, cause), cause, r.timeout)
	if errors.Is(cause, ErrCancelled) {
		o = drover.Outcome{Status: drover.OutcomeCancelled}
	}
	r.reporter.close()
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.returned {
		return
	}
	w.log.Error("handler ignores that its context has ended; its slot stays taken", "task", r.held.TaskID, "kind", r.task.Kind, "cause", cause)
	r.stuck = true
	w.live--
	w.stuck++
	w.decide(r, o)
}
