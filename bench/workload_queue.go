package main

import (
	"context"
	"errors"
	"time"
)

// queueRun submits N jobs of one task in bulk, then starts the workers, and
// waits until the database says that all have finished. What that cost is read
// before and after.
func queueRun(ctx context.Context, r *run) (err error) {
	m, err := newMeter(ctx, r.Postgres)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	before, err := m.read(ctx)
	if err != nil {
		return err
	}
	own, err := r.cpu()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := r.submitMany(ctx, r.N); err != nil {
		return err
	}
	submitted := time.Now()
	if err := r.work(ctx); err != nil {
		return err
	}
	end, err := ended(ctx, r, r.before.Finished+r.N, 5*time.Minute)
	if err != nil {
		r.void = err.Error()
		return nil
	}
	used, err := r.cpu()
	if err != nil {
		return err
	}
	after, err := m.read(ctx)
	if err != nil {
		return err
	}
	if err := r.audit(ctx, r.N); err != nil {
		return err
	}
	per := func(total float64) float64 { return total / float64(r.N) }
	r.values["tasks/s"] = float64(r.N) / end.Sub(began).Seconds()
	r.values["submitted/s"] = float64(r.N) / submitted.Sub(began).Seconds()
	r.values["worked/s"] = float64(r.N) / end.Sub(submitted).Seconds()
	r.values["client CPU µs/task"] = per(float64((used - own).Microseconds()))
	if !systems[r.System].metered {
		return nil
	}
	r.values["WAL bytes/task"] = per(float64(after.wal - before.wal))
	r.values["commits/task"] = per(float64(after.commits - before.commits))
	r.values["database CPU µs/task"] = per(float64((after.cpu - before.cpu).Microseconds()))
	r.values["stored bytes/task"] = per(float64(after.bytes - before.bytes))
	time.Sleep(time.Second) // PostgreSQL counts dead rows when its sessions are idle
	dead, err := m.dead(ctx)
	r.values["dead rows/task"] = per(float64(dead))
	return err
}

// queue: many jobs of one task each, side by side. DBOS gets fewer: it does
// some hundred a second, and more of them would only make it slower.
func (b *bench) queue() error {
	return b.rounds("queue", forEach(spec{N: 100_000}, []string{"drover", "river", "drover-http", "dbos", "drover-sqlite"}, func(s *spec) {
		if s.System == "dbos" {
			s.N = 10_000
		}
	})...)
}
