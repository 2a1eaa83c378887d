package gateway

import (
	"context"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

// jobHub knows who waits for news of which jobs.
type jobHub struct {
	mu    sync.Mutex
	waits map[drover.JobID]map[chan struct{}]struct{}
}

// join returns a channel that receives a sign when the job has news, and what
// ends that.
func (h *jobHub) join(id drover.JobID) (news <-chan struct{}, leave func()) {
	c := make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waits == nil {
		h.waits = map[drover.JobID]map[chan struct{}]struct{}{}
	}
	if h.waits[id] == nil {
		h.waits[id] = map[chan struct{}]struct{}{}
	}
	h.waits[id][c] = struct{}{}
	return c, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.waits[id], c)
		if len(h.waits[id]) == 0 {
			delete(h.waits, id)
		}
	}
}

func (h *jobHub) stirred(jobs []drover.JobID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range jobs {
		for c := range h.waits[id] {
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}
}

// all tells everybody that there may be news.
func (h *jobHub) all() {
	h.mu.Lock()
	jobs := slices.Collect(maps.Keys(h.waits))
	h.mu.Unlock()
	h.stirred(jobs)
}

// nextLook returns how long to wait for a sign before looking anyway: about a
// second, spread so that waiters do not look in step.
func (g *Gateway) nextLook() time.Duration {
	return g.pollEvery - g.pollEvery/10 + rand.N(g.pollEvery/5)
}

// WaitJob waits until the job is final. When ctx ends before that, or the
// gateway stops, it returns the job as it was last seen together with an error.
func (g *Gateway) WaitJob(ctx context.Context, c engine.Caller, id drover.JobID) (drover.Job, error) {
	if !g.running() {
		return drover.Job{}, errNotRunning()
	}
	news, leave := g.jobs.join(id)
	defer leave()
	job, err := g.look(ctx, c, id)
	if err != nil || job.Status.Final() {
		return job, err
	}
	// Looks at a busy job keep a distance that grows.
	for gap := time.Millisecond; ; gap = min(2*gap, 20*time.Millisecond) {
		stop := g.pause(ctx, gap, nil)
		if stop == nil {
			stop = g.pause(ctx, g.nextLook(), news)
		}
		if stop == nil {
			if ended, err := g.ended(ctx, id); err != nil || !ended {
				if err != nil {
					return job, err
				}
				continue
			}
		}
		// The caller's context ends the waiting, not a look under way: a database
		// connection that is cut off in a query is lost.
		job, err = g.look(ctx, c, id)
		if err != nil || job.Status.Final() {
			return job, err
		}
		if stop != nil {
			return job, stop
		}
	}
}

// ended reports whether a job has come to an end, at less cost than a look.
func (g *Gateway) ended(ctx context.Context, id drover.JobID) (bool, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readLimit)
	defer cancel()
	return g.engine.Ended(ctx, id)
}

func (g *Gateway) look(ctx context.Context, c engine.Caller, id drover.JobID) (drover.Job, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readLimit)
	defer cancel()
	return g.engine.Job(ctx, c, id)
}

// pause waits for d or a sign, whichever comes first; an error says that the
// caller or the gateway has ended.
func (g *Gateway) pause(ctx context.Context, d time.Duration, sign <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-sign:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-g.stopping:
		return errNotRunning()
	}
}

// Feed reads the events of a job one after the other, as they happen.
type Feed struct {
	g      *Gateway
	caller engine.Caller
	id     drover.JobID
	after  int64
	ended  bool
	news   <-chan struct{}
	leave  func()
}

// Follow starts reading the events of a job after the one numbered after, 0
// being before the first. The caller closes the feed.
func (g *Gateway) Follow(ctx context.Context, c engine.Caller, id drover.JobID, after int64) (*Feed, error) {
	if !g.running() {
		return nil, errNotRunning()
	}
	job, err := g.look(ctx, c, id)
	if err != nil {
		return nil, err
	}
	if after < 0 || after > job.Events {
		return nil, &drover.Error{Code: drover.CodeValidation, Detail: "there is no such event", Fields: []drover.FieldError{{
			Field: "after", Message: "the newest event of the job has the number " + itoa(job.Events) + "; start after one that exists, or after 0",
		}}}
	}
	f := &Feed{g: g, caller: c, id: id, after: after, ended: job.Status.Final() && after == job.Events}
	f.news, f.leave = g.jobs.join(id)
	return f, nil
}

// Close ends the feed.
func (f *Feed) Close() { f.leave() }

// Ended reports whether the job is final and every event of it was read.
func (f *Feed) Ended() bool { return f.ended }

// Next returns the next events, waiting for one at most idle; none means that
// nothing happened for so long. After the job's final event it returns io.EOF.
func (f *Feed) Next(ctx context.Context, idle time.Duration) ([]drover.Event, error) {
	if f.ended {
		return nil, io.EOF
	}
	until := time.Now().Add(idle)
	for {
		events, err := f.read(ctx)
		if err != nil {
			return nil, err
		}
		if n := len(events); n > 0 {
			last := events[n-1]
			f.after = last.Seq
			f.ended = n < feedPage && isFinal(last.Type)
			return events, nil
		}
		rest := time.Until(until)
		if rest <= 0 {
			return nil, nil
		}
		if err := f.g.pause(ctx, min(rest, f.g.nextLook()), f.news); err != nil {
			return nil, err
		}
	}
}

func (f *Feed) read(ctx context.Context) ([]drover.Event, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readLimit)
	defer cancel()
	return f.g.engine.Events(ctx, f.caller, f.id, f.after, feedPage)
}

// isFinal reports whether no event follows one of type t, unless the job is
// opened again.
func isFinal(t drover.EventType) bool {
	return t == drover.JobSucceeded || t == drover.JobFailed || t == drover.JobCancelled
}
