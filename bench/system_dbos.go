package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	"github.com/jackc/pgx/v5/pgxpool"
)

// dbosSystem is DBOS in this process: a job is a workflow on a queue, a task of
// a graph is a step. Many are enqueued in one transaction, which is the fastest
// way it has; the queue is polled often, and bounded so that a dequeue is.
type dbosSystem struct {
	entries
	pool     *pgxpool.Pool // of the client that enqueues, and of the count
	ctx      dbos.Context
	slots    int
	launched bool
}

const dbosQueue = "bench"

func openDBOS(ctx context.Context, o settings) (_ system, err error) {
	cfg, err := pgxpool.ParseConfig(o.Postgres)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 4
	s := &dbosSystem{slots: cmp.Or(o.Slots, 500)}
	if s.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, err
	}
	conns := cmp.Or(o.Conns, 20) // its own default
	s.ctx, err = dbos.NewContext(ctx, dbos.Config{
		AppName: "bench", DatabaseURL: fmt.Sprintf("%s&pool_max_conns=%d", o.Postgres, conns), Logger: silent, ApplicationVersion: "1",
	})
	if err != nil {
		s.pool.Close()
		return nil, err
	}
	dbos.RegisterWorkflow(s.ctx, func(_ dbos.Context, in payload) (string, error) {
		s.enter(in)
		return "", nil
	}, dbos.WithWorkflowName("noop"))
	dbos.RegisterWorkflow(s.ctx, s.run, dbos.WithWorkflowName("graph"))
	// It is launched by work, so that nothing is dequeued before.
	return s, nil
}

func (s *dbosSystem) submitMany(ctx context.Context, n int) error {
	const batch = 1000
	for n > 0 {
		k := min(n, batch)
		tx, err := s.pool.Begin(ctx)
		if err != nil {
			return err
		}
		for range k {
			if _, err := dbos.Enqueue[string](s.ctx, dbosQueue, "noop", payload{}, dbos.WithEnqueueTransaction(tx)); err != nil {
				return errors.Join(err, tx.Rollback(ctx))
			}
		}
		if err := tx.Commit(ctx); err != nil {
			return err
		}
		n -= k
	}
	return nil
}

func (s *dbosSystem) submit(_ context.Context, due time.Time) error {
	_, err := dbos.Enqueue[string](s.ctx, dbosQueue, "noop", dueAt(due))
	return err
}

func (s *dbosSystem) work(context.Context) error {
	_, err := dbos.RegisterQueue(s.ctx, dbosQueue, dbos.WithWorkerConcurrency(s.slots), dbos.WithQueueBasePollingInterval(5*time.Millisecond))
	if err != nil {
		return err
	}
	s.launched = true
	return dbos.Launch(s.ctx)
}

func (s *dbosSystem) rest(context.Context) error {
	s.launched = false
	return dbos.Shutdown(s.ctx, 10*time.Second)
}

// run is the workflow of a graph. Tasks at once are steps by dbos.Go.
func (s *dbosSystem) run(ctx dbos.Context, g shape) (int, error) {
	step := func(context.Context) (int, error) {
		s.enter(payload{})
		return 1, nil
	}
	if g.Name == "fan" {
		if _, err := dbos.RunAsStep(ctx, step); err != nil {
			return 0, err
		}
	}
	done := 0
	for range g.Depth {
		if g.Width == 1 {
			k, err := dbos.RunAsStep(ctx, step)
			if err != nil {
				return 0, err
			}
			done += k
			continue
		}
		layer := make([]<-chan dbos.StepOutcome[int], g.Width)
		for i := range layer {
			var err error
			if layer[i], err = dbos.Go(ctx, step); err != nil {
				return 0, err
			}
		}
		for _, outcome := range layer {
			o := <-outcome
			if o.Err != nil {
				return 0, o.Err
			}
			done += o.Result
		}
	}
	if g.Name == "fan" {
		if _, err := dbos.RunAsStep(ctx, step); err != nil {
			return 0, err
		}
		done += 2
	}
	return done, nil
}

func (s *dbosSystem) prepare(context.Context, shape) error { return nil }

func (s *dbosSystem) graph(_ context.Context, g shape) error {
	h, err := dbos.RunWorkflow(s.ctx, s.run, g)
	if err != nil {
		return err
	}
	done, err := h.GetResult(dbos.WithHandlePollingInterval(time.Millisecond))
	if err == nil && done != g.tasks() {
		err = fmt.Errorf("%d of %d steps", done, g.tasks())
	}
	return err
}

func (s *dbosSystem) entered() *entries { return &s.entries }

func (s *dbosSystem) count(ctx context.Context) (c counts, err error) {
	err = s.pool.QueryRow(ctx, "SELECT count(*) FILTER (WHERE status <> 'SUCCESS'), count(*) FILTER (WHERE status = 'SUCCESS') FROM dbos.workflow_status").Scan(&c.Waiting, &c.Finished)
	return c, err
}

func (s *dbosSystem) cpu() (time.Duration, error) { return cpuOf() }

func (s *dbosSystem) steps(ctx context.Context) (n int, err error) {
	err = s.pool.QueryRow(ctx, "SELECT count(*) FROM dbos.operation_outputs").Scan(&n)
	return n, err
}

func (s *dbosSystem) close() error {
	var err error
	if s.launched {
		err = s.rest(context.Background())
	}
	s.pool.Close()
	return err
}
