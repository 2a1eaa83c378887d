package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	probeRate = 100                   // submits a second whose latency counts
	loadTick  = 10 * time.Millisecond // between two bulk submits of the load beside them
	warmUp    = 2 * time.Second
)

// latencyRun submits single jobs at a fixed rate that does not slow down with
// the system, beside a load of Rate jobs a second submitted in small bulks. A
// latency counts from when the job should have been sent to its handler's entry.
func latencyRun(ctx context.Context, r *run) error {
	if err := r.work(ctx); err != nil {
		return err
	}
	var (
		mu        sync.Mutex
		submitted int
		refused   error
		all       sync.WaitGroup
	)
	sent := func(n int, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			refused = err
			return
		}
		submitted += n
	}
	began := time.Now()
	end := began.Add(warmUp + r.For)
	if r.Rate > 0 {
		all.Go(func() {
			owed := 0.0
			for due := began; due.Before(end) && ctx.Err() == nil; due = due.Add(loadTick) {
				time.Sleep(time.Until(due))
				owed += r.Rate * loadTick.Seconds()
				n := int(owed)
				owed -= float64(n)
				sent(n, r.submitMany(ctx, n))
			}
		})
	}
	for due := began; due.Before(end) && ctx.Err() == nil; due = due.Add(time.Second / probeRate) {
		time.Sleep(time.Until(due))
		at := due
		if due.Sub(began) < warmUp {
			at = time.Time{}
		}
		all.Go(func() { sent(1, r.submit(ctx, at)) })
	}
	all.Wait()
	late := time.Since(end)
	if refused != nil {
		r.void = fmt.Sprintf("a submit was refused: %v", refused)
		return nil
	}
	if late > time.Second {
		r.void = fmt.Sprintf("the load came %.1f s late: more than the system takes", late.Seconds())
	}
	if err := errors.Join(r.drained(ctx, submitted), r.rest(ctx)); err != nil { // a worker process tells its latencies at its end
		return err
	}
	for _, l := range r.entered().latencies() {
		r.late = append(r.late, milliseconds(l))
	}
	if want := int(r.For.Seconds() * probeRate); len(r.late) < want && r.void == "" {
		r.void = fmt.Sprintf("%d of %d latencies", len(r.late), want)
	}
	if r.Rate > 0 {
		r.values["load/s"] = r.Rate
	}
	r.values["p50 ms"] = quantile(r.late, 0.5)
	r.values["p99 ms"] = quantile(r.late, 0.99)
	return nil
}

// latency: from submit to the handler's entry, at a low rate alone and beside a
// load of 70 % of what each system was measured to do.
func (b *bench) latency() error {
	names := []string{"drover", "river", "drover-http"}
	if err := b.rounds("latency", forEach(spec{For: 15 * time.Second}, names, nil)...); err != nil {
		return err
	}
	var failed error
	loaded := forEach(spec{For: 10 * time.Second}, names, func(s *spec) {
		c, err := b.capacity(s.System)
		failed = errors.Join(failed, err)
		s.Rate = 0.7 * c
	})
	if failed != nil {
		return failed
	}
	return b.rounds("latency under load", loaded...)
}

// capacity is how many jobs a second a system was measured to submit and work.
func (b *bench) capacity(system string) (float64, error) {
	if c, ok := b.capacities[system]; ok {
		return c, nil
	}
	var all []float64
	for _, r := range b.report.Runs["queue"] {
		if r.System == system && r.Void == "" {
			all = append(all, r.Values["tasks/s"])
		}
	}
	if len(all) == 0 {
		r, err := b.one(spec{System: system, Workload: "queue", N: 50_000})
		if err != nil {
			return 0, err
		}
		if r.Void != "" {
			return 0, fmt.Errorf("what %s can do: %s", system, r.Void)
		}
		all = append(all, r.Values["tasks/s"])
	}
	b.capacities[system] = quantile(all, 0.5)
	return b.capacities[system], nil
}
