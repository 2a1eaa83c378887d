package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// The variants of the backlog.
const (
	empty   = "empty"
	crowded = "500,000 waiting and 1,000,000 finished"
)

// seedRun fills a database: Finished jobs that have ended, and N that wait.
func seedRun(ctx context.Context, r *run) error {
	if err := r.submitMany(ctx, r.N+r.Finished); err != nil {
		return err
	}
	return r.worked(ctx, r.Finished, r.N+r.Finished)
}

// steadyRun submits N jobs in bulk and works as many, the oldest first, whatever
// else waits in the queue.
func steadyRun(ctx context.Context, r *run) error {
	began := time.Now()
	if err := r.submitMany(ctx, r.N); err != nil {
		return err
	}
	if err := r.worked(ctx, r.N, r.N); err != nil {
		return err
	}
	r.values["tasks/s"] = float64(r.N) / r.reached.Sub(began).Seconds()
	return nil
}

// worked starts the workers, stops them once the handler has been entered n
// times, and audits.
func (r *run) worked(ctx context.Context, n, submitted int) error {
	if err := r.work(ctx); err != nil {
		return err
	}
	deadline := time.Now().Add(10 * time.Minute)
	for int(r.entered().n.Load()) < n {
		if time.Now().After(deadline) {
			r.void = fmt.Sprintf("%d of %d entries after 10 minutes", r.entered().n.Load(), n)
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	r.reached = time.Now()
	return errors.Join(r.rest(ctx), r.audit(ctx, submitted))
}

// backlog: the same work on an empty database and on one in which 500,000 jobs
// wait in the queue and 1,000,000 have finished.
func (b *bench) backlog() (err error) {
	const system = "drover"
	full, err := b.pg.database(b.ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.pg.drop(b.ctx, full)) }()
	seed := spec{System: system, Workload: "seed", N: 500_000, Finished: 1_000_000}
	if b.n > 0 { // a short run for those who try the bench
		seed.Finished = 2 * b.n
	}
	r, err := b.on(full, seed)
	if err == nil && r.Void != "" {
		err = errors.New(r.Void)
	}
	if err != nil {
		return err
	}
	clean := spec{System: system, Variant: empty, N: 100_000}
	among := clean
	among.Variant, among.Postgres = crowded, full
	return b.rounds("backlog", clean, among)
}
