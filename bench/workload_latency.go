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
	loadBulk  = 200                   // jobs of the load beside them that are submitted at once
	loadTick  = 10 * time.Millisecond // how often it is looked whether so many are owed
	warmUp    = 2 * time.Second
)

// latencyRun submits single jobs at a fixed rate that does not slow down with
// the system, beside a load, submitted in small bulks, of a share of what the
// system did just before. A latency counts from when the job should have been
// sent to its handler's entry.
func latencyRun(ctx context.Context, r *run) error {
	if err := r.work(ctx); err != nil {
		return err
	}
	var (
		mu        sync.Mutex
		rate      float64 // of the load
		submitted int
		refused   error
		all       sync.WaitGroup
	)
	if r.Share > 0 {
		capacity, n, err := r.capable(ctx)
		if err != nil {
			return err
		}
		rate, submitted = r.Share*capacity, n
		r.values["load/s"] = rate
	}
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
	if rate > 0 {
		all.Go(func() {
			owed := 0.0
			for due := began; due.Before(end) && ctx.Err() == nil; due = due.Add(loadTick) {
				time.Sleep(time.Until(due))
				for owed += rate * loadTick.Seconds(); owed >= loadBulk; owed -= loadBulk {
					sent(loadBulk, r.submitMany(ctx, loadBulk))
				}
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
	r.values["p50 ms"] = quantile(r.late, 0.5)
	r.values["p99 ms"] = quantile(r.late, 0.99)
	return nil
}

// capable measures how many jobs a second the system takes in small bulks and
// works at the same time, and returns when it has worked them all.
func (r *run) capable(ctx context.Context) (rate float64, submitted int, err error) {
	const long = 3 * time.Second
	began := time.Now()
	var at time.Time // when the warm-up was over
	var n int64      // entries until then
	for time.Since(began) < warmUp+long {
		if at.IsZero() && time.Since(began) > warmUp {
			at, n = time.Now(), r.entered().n.Load()
		}
		if submitted-int(r.entered().n.Load()) > 10*loadBulk {
			time.Sleep(time.Millisecond)
			continue
		}
		if err := r.submitMany(ctx, loadBulk); err != nil {
			return 0, submitted, err
		}
		submitted += loadBulk
	}
	rate = float64(r.entered().n.Load()-n) / time.Since(at).Seconds()
	_, err = ended(ctx, r, r.before.Finished+submitted, time.Minute)
	return rate, submitted, err
}

// latency: from submit to the handler's entry, at a low rate alone and beside a
// load of 70 % of what each system can do.
func (b *bench) latency() error {
	names := []string{"drover", "river", "drover-http"}
	if err := b.rounds("latency", forEach(spec{For: 15 * time.Second}, names, nil)...); err != nil {
		return err
	}
	return b.rounds("latency under load", forEach(spec{For: 10 * time.Second, Share: 0.7}, names, nil)...)
}
