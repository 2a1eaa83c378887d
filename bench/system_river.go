package main

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverSystem is River as its own benchmark ("river bench") sets it up: fetches
// every 2 ms and 1,000 workers, which its makers found the best number; inserts
// in batches of 5,000, by COPY.
type riverSystem struct {
	entries
	pool    *pgxpool.Pool
	client  *river.Client[pgx.Tx]
	working bool
}

// riverArgs is the job.
type riverArgs struct{ payload }

func (riverArgs) Kind() string { return "noop" }

// riverWorker is its handler.
type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	entries *entries
}

func (w *riverWorker) Work(_ context.Context, job *river.Job[riverArgs]) error {
	w.entries.enter(job.Args.payload)
	return nil
}

func openRiver(ctx context.Context, o settings) (_ system, err error) {
	cfg, err := pgxpool.ParseConfig(o.Postgres)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = int32(cmp.Or(o.Conns, 20))
	s := &riverSystem{}
	if s.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, err
	}
	migrator, err := rivermigrate.New(riverpgxv5.New(s.pool), nil)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, errors.Join(err, s.close())
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{entries: &s.entries})
	s.client, err = river.NewClient(riverpgxv5.New(s.pool), &river.Config{
		FetchCooldown:     2 * time.Millisecond,
		FetchPollInterval: 20 * time.Millisecond,
		Logger:            silent,
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: cmp.Or(o.Slots, 1000)}},
		Workers:           workers,
	})
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *riverSystem) submitMany(ctx context.Context, n int) error {
	const batch = 5000
	jobs := make([]river.InsertManyParams, min(n, batch))
	for i := range jobs {
		jobs[i].Args = riverArgs{}
	}
	for n > 0 {
		k := min(n, batch)
		if _, err := s.client.InsertManyFast(ctx, jobs[:k]); err != nil {
			return err
		}
		n -= k
	}
	return nil
}

func (s *riverSystem) submit(ctx context.Context, due time.Time) error {
	_, err := s.client.Insert(ctx, riverArgs{dueAt(due)}, nil)
	return err
}

func (s *riverSystem) work(ctx context.Context) error {
	s.working = true
	return s.client.Start(ctx)
}

func (s *riverSystem) rest(ctx context.Context) error {
	s.working = false
	return s.client.Stop(ctx)
}

func (s *riverSystem) entered() *entries { return &s.entries }

func (s *riverSystem) count(ctx context.Context) (c counts, err error) {
	err = s.pool.QueryRow(ctx, "SELECT count(*) FILTER (WHERE state <> 'completed'), count(*) FILTER (WHERE state = 'completed') FROM river_job").Scan(&c.Waiting, &c.Finished)
	return c, err
}

func (s *riverSystem) cpu() (time.Duration, error) { return cpuOf() }

func (s *riverSystem) close() error {
	var err error
	if s.working {
		err = s.rest(context.Background())
	}
	s.pool.Close()
	return err
}
