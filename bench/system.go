package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// system runs jobs: Drover in one of its forms, or a peer. Every job is a no-op
// of one task whose payload says when it was due, so that what is measured is
// the system. A system is opened on a database of its own, by public API only
// and with the settings its makers recommend for throughput.
type system interface {
	// submitMany hands over n jobs in bulk, the fastest way that is durable.
	submitMany(ctx context.Context, n int) error
	// submit hands over one job. When it returns without an error the job is
	// committed. due is when it should have been sent, zero where that is not measured.
	submit(ctx context.Context, due time.Time) error
	// work starts the workers.
	work(ctx context.Context) error
	// rest stops them; what they were running ends first.
	rest(ctx context.Context) error
	// entered counts the handler's entries.
	entered() *entries
	// count asks the database what has become of the jobs.
	count(ctx context.Context) (counts, error)
	// cpu is the processor time used so far by what a user of the system runs:
	// clients, workers, and a server if it has one, without the database.
	cpu() (time.Duration, error)
	close() error
}

// grapher is a system that runs jobs of many tasks that depend on each other.
type grapher interface {
	system
	// prepare makes a shape known, once.
	prepare(ctx context.Context, s shape) error
	// graph runs one job of that shape and returns when it has ended.
	graph(ctx context.Context, s shape) error
	// steps asks the database how many tasks of graphs have finished.
	steps(ctx context.Context) (int, error)
}

// shape names a graph: one task, then as many at once as it is wide, then one;
// or a chain; or layers whose tasks each need one of the layer before.
type shape struct {
	Name  string
	Width int // tasks at once
	Depth int // tasks in a row, without the first and the last of a fan
}

// tasks is how many tasks such a job has.
func (s shape) tasks() int {
	if s.Name == "fan" {
		return s.Width*s.Depth + 2
	}
	return s.Width * s.Depth
}

// counts is what a database holds.
type counts struct{ Waiting, Finished int }

// settings of an opened system.
type settings struct {
	Postgres string // URL of its database
	Bin      string // folder of drover's binary
	Dir      string // for what it keeps
	Slots    int    // handlers at a time; 0 is the system's best
	Conns    int    // connections to PostgreSQL; 0 is the system's best
}

// kind is a system that can be measured beside others.
type kind struct {
	title string // for people
	open  func(context.Context, settings) (system, error)
	// metered says that it keeps all it has in PostgreSQL, so that what that costs can be told.
	metered bool
}

// systems are all of them.
var systems = map[string]kind{
	"drover":        {"Drover, in process", openDrover, true},
	"drover-http":   {"Drover, server and worker processes over HTTP", openDroverHTTP, true},
	"drover-sqlite": {"Drover, in process on SQLite (FULL)", openDroverSQLite, false},
	"river":         {"River " + version("github.com/riverqueue/river") + ", in process", openRiver, true},
	"dbos":          {"DBOS Go " + version("github.com/dbos-inc/dbos-transact-golang") + ", in process", openDBOS, true},
	"asynq":         {"Asynq " + version("github.com/hibiken/asynq") + ", Redis that may lose seconds", openAsynq, false},
	"temporal":      {"Temporal, server on PostgreSQL", openTemporal, true},
	"asynq-durable": {"Asynq " + version("github.com/hibiken/asynq") + ", Redis that syncs every write", openAsynqDurable, false},
}

// payload is the input of every job.
type payload struct {
	Due int64 `json:"due"` // Unix nanoseconds, zero where the latency is not measured
}

func dueAt(t time.Time) payload {
	if t.IsZero() {
		return payload{}
	}
	return payload{t.UnixNano()}
}

// entries counts how often the handler was entered, and how late.
type entries struct {
	n    atomic.Int64
	mu   sync.Mutex
	late []time.Duration // from when a job should have been sent to its handler's entry
}

func (e *entries) enter(p payload) {
	e.n.Add(1)
	if p.Due == 0 {
		return
	}
	late := time.Duration(time.Now().UnixNano() - p.Due)
	e.mu.Lock()
	e.late = append(e.late, late)
	e.mu.Unlock()
}

// latencies are those seen so far, sorted.
func (e *entries) latencies() []time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(slices.Values(e.late))
}

// ended waits until the database says that n jobs have finished, and returns
// when that was. It asks only once the handler has been entered as often as it takes.
func ended(ctx context.Context, r *run, n int, limit time.Duration) (time.Time, error) {
	deadline := time.Now().Add(limit)
	for {
		if r.before.Finished+int(r.entered().n.Load()) >= n {
			c, err := r.count(ctx)
			now := time.Now()
			if err != nil {
				return now, err
			}
			if c.Finished >= n {
				return now, nil
			}
		}
		if time.Now().After(deadline) {
			c, err := r.count(ctx)
			return time.Now(), errors.Join(fmt.Errorf("after %s: %d entries, %d of %d finished", limit, r.entered().n.Load(), c.Finished, n), err)
		}
		select {
		case <-ctx.Done():
			return time.Now(), ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// fromMany submits n jobs from many goroutines at once, for systems that have no
// call for many.
func fromMany(ctx context.Context, s system, n int) error {
	const parts = 50
	var all errgroup.Group
	for k := range parts {
		all.Go(func() error {
			for range n*(k+1)/parts - n*k/parts {
				if err := s.submit(ctx, time.Time{}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return all.Wait()
}

// silent is a log that nobody reads.
var silent = slog.New(slog.DiscardHandler)
