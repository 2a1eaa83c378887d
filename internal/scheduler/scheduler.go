// Package scheduler runs the engine's recurring steps: each loop is a goroutine
// that calls one step at its cadence. The steps decide and store everything;
// they are safe to run in every server at once.
package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-dev/drover/internal/engine"
)

// Loop is one recurring step.
type Loop struct {
	// Name is how logs and counters call it.
	Name string
	// Step does one bounded piece of work and returns how much it did.
	Step func(context.Context) (int, error)
	// Every is the pause between steps; each pause is drawn from ±20 % around it.
	Every time.Duration
	// Timeout bounds one step; zero is one minute.
	Timeout time.Duration
	// Wake, when set, ends a pause early.
	Wake <-chan struct{}
	// Greedy steps run again at once when they did something, up to burst times.
	Greedy bool
	// Patience is how long the loop leaves things as they are when it begins, and when
	// the others find what was away: who could not be heard meanwhile comes first.
	Patience time.Duration
}

// Loops returns the loops of an engine.
func Loops(e *engine.Engine) []Loop {
	return []Loop{
		{Name: "clock", Step: e.ClockOnce, Every: 5 * time.Second},                                                // the database's clock, carried forward by ours
		{Name: "reaper", Step: e.ReapOnce, Every: time.Second, Greedy: true, Patience: e.Patience()},              // takes back leases of silent workers
		{Name: "admitter", Step: e.AdmitOnce, Every: 50 * time.Millisecond, Greedy: true, Wake: e.AdmitterWake()}, // READY to QUEUED
		{Name: "gate", Step: e.GateOnce, Every: time.Second},                                                      // limits that another server has changed
		{Name: "intake", Step: e.IntakeOnce, Every: 2 * time.Second},                                              // which rules of intake fire
		{Name: "timer", Step: e.TimersOnce, Every: 200 * time.Millisecond, Greedy: true},                          // due retries, snoozes and start times
		{Name: "sweeper", Step: e.SweepOnce, Every: 500 * time.Millisecond, Greedy: true},                         // cancelled and paused jobs' rows
		{Name: "children", Step: e.ChildrenOnce, Every: time.Second, Greedy: true},                                // what parents ask of the jobs that their tasks run
		{Name: "watcher", Step: e.WatchOnce, Every: 500 * time.Millisecond, Greedy: true, Patience: e.Patience()}, // out of time, or silent
		{Name: "batches", Step: e.BatchesOnce, Every: 200 * time.Millisecond, Greedy: true},                       // replays and closes of many dead letters
		{Name: "filer", Step: e.FileOnce, Every: 5 * time.Second, Greedy: true},                                   // dead letters of servers of an older schema
		{Name: "expirer", Step: e.ExpireOnce, Every: time.Second, Greedy: true},                                   // jobs past their expires_at
		{Name: "janitor", Step: e.CleanOnce, Every: 30 * time.Second, Greedy: true, Timeout: 5 * time.Minute},     // what nobody needs any more
		{Name: "purger", Step: e.PurgeOnce, Every: time.Second, Greedy: true, Timeout: 5 * time.Minute},           // finished jobs that were kept long enough
		{Name: "reconciler", Step: e.ReconcileOnce, Every: 2 * time.Second, Timeout: 5 * time.Minute},             // rows that do not agree with the records
		{Name: "observer", Step: e.ObserveOnce, Every: 5 * time.Second},                                           // how long tasks ran, for forecasts
		{Name: "artifacts", Step: e.CleanArtifactsOnce, Every: 10 * time.Minute, Timeout: time.Hour},              // files that no artifact has
		{Name: "vacuum", Step: e.VacuumOnce, Every: 2 * time.Second, Timeout: 10 * time.Minute},                   // the churning tables
	}
}

const (
	burst      = 100              // greedy steps in a row before the loop pauses all the same
	maxBackoff = 30 * time.Second // ceiling of the pause after failures
)

// Stats are one loop's counters since it started.
type Stats struct {
	Steps  int64 // steps that ended well
	Did    int64 // what those steps did, added up
	Errors int64 // steps that returned an error, panics among them
	Panics int64
}

// Scheduler runs loops.
type Scheduler struct {
	log   *slog.Logger
	loops []*running

	mu    sync.Mutex
	again chan struct{} // of mu: closed, and made anew, when a step succeeds that had failed
}

type running struct {
	Loop
	steps, did, errors, panics atomic.Int64
}

// New returns a scheduler of the given loops; a nil log discards.
func New(log *slog.Logger, loops ...Loop) *Scheduler {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Scheduler{log: log, again: make(chan struct{})}
	for _, l := range loops {
		if l.Timeout == 0 {
			l.Timeout = time.Minute
		}
		s.loops = append(s.loops, &running{Loop: l})
	}
	return s
}

// Run runs every loop until ctx ends, and returns when the last step has ended.
// It may be called once.
func (s *Scheduler) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, l := range s.loops {
		all.Go(func() { s.run(ctx, l) })
	}
	all.Wait()
	return nil
}

// Stats returns every loop's counters by name.
func (s *Scheduler) Stats() map[string]Stats {
	out := make(map[string]Stats, len(s.loops))
	for _, l := range s.loops {
		out[l.Name] = Stats{Steps: l.steps.Load(), Did: l.did.Load(), Errors: l.errors.Load(), Panics: l.panics.Load()}
	}
	return out
}

// recovery is closed when a step next succeeds that had failed.
func (s *Scheduler) recovery() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.again
}

// recovered ends the pauses of the others that have failed: mostly it is the
// database that was away, and is back for all.
func (s *Scheduler) recovered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.again)
	s.again = make(chan struct{})
}

func (s *Scheduler) run(ctx context.Context, l *running) {
	log := s.log.With("loop", l.Name)
	log.DebugContext(ctx, "loop started", "every", l.Every)
	// The first pause is a random part of the cadence, so that the loops of one
	// process, and of servers started together, do not step in time.
	pause := max(rand.N(l.Every), l.Patience)
	failures, inRow := 0, 0
	var again <-chan struct{} // while it fails
	for {
		back, ok := sleep(ctx, pause, l.Wake, again)
		switch {
		case !ok:
			return
		case back && l.Patience > 0:
			again, pause = nil, l.Patience
			continue
		}
		again = s.recovery() // from before the step: somebody may recover while it fails
		n, err := l.step(ctx, log)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			failures++
			inRow = 0
			pause = backoff(l.Every, failures)
			if l.Patience > 0 && failures > 3 { // the others find it first
				pause = 2 * maxBackoff
			}
			log.WarnContext(ctx, "step failed; will try again", "err", err, "failures", failures, "pause", pause)
		default:
			if failures > 0 {
				log.InfoContext(ctx, "step succeeded again", "failures", failures)
				s.recovered()
			}
			failures, again = 0, nil
			l.steps.Add(1)
			l.did.Add(int64(n))
			if inRow++; l.Greedy && n > 0 && inRow < burst {
				pause = 0
				continue
			}
			inRow = 0
			pause = jitter(l.Every)
		}
	}
}

// step takes one step; a panic in it becomes an error.
func (l *running) step(ctx context.Context, log *slog.Logger) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			l.panics.Add(1)
			log.ErrorContext(ctx, "step panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			n, err = 0, fmt.Errorf("panic: %v", p)
		}
		if err != nil {
			l.errors.Add(1)
		}
	}()
	return l.Step(ctx)
}

// sleep waits for d, or until wake or again receives. It reports whether it was
// again, and false when ctx ended.
func sleep(ctx context.Context, d time.Duration, wake, again <-chan struct{}) (back, ok bool) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-wake:
	case <-again:
		back = true
	case <-t.C:
	}
	return back, ctx.Err() == nil
}

// jitter draws from 80 % to 120 % of d.
func jitter(d time.Duration) time.Duration { return d*4/5 + rand.N(d*2/5+1) }

// backoff draws the pause after the given number of failures in a row: the
// cadence doubled each time up to maxBackoff (never below the cadence itself),
// of which at least half is kept.
func backoff(every time.Duration, failures int) time.Duration {
	limit := max(every, maxBackoff)
	d := every
	for ; failures > 0 && d < limit; failures-- {
		d = min(2*d, limit)
	}
	return d/2 + rand.N(d/2+1)
}
