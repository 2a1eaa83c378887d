package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"time"

	"github.com/hibiken/asynq"
)

// asynqSystem is Asynq in this process, on a Redis of its own. It has no bulk
// enqueue, so that many are enqueued from many goroutines at once. Tasks are not
// kept when they have ended, which is its default and the fastest.
type asynqSystem struct {
	entries
	redis     *process
	client    *asynq.Client
	inspector *asynq.Inspector
	server    *asynq.Server
	addr      asynq.RedisClientOpt
	slots     int
}

const asynqQueue = "default"

// openAsynq has a Redis with its usual snapshots, which loses the last seconds
// or minutes when it stops hard.
func openAsynq(ctx context.Context, o settings) (system, error) { return openAsynqOn(ctx, o) }

// openAsynqDurable has one that syncs every write to disk, as PostgreSQL does.
func openAsynqDurable(ctx context.Context, o settings) (system, error) {
	return openAsynqOn(ctx, o, "--appendonly", "yes", "--appendfsync", "always")
}

func openAsynqOn(ctx context.Context, o settings, args ...string) (_ system, err error) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, err
	}
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	h := &house{ctx: ctx, dir: o.Dir}
	s := &asynqSystem{addr: asynq.RedisClientOpt{Addr: addr, PoolSize: o.Conns}, slots: o.Slots}
	if s.slots == 0 {
		s.slots = 100
	}
	if s.redis, err = h.spawn(nil, nil, program, append([]string{"--port", port, "--bind", "127.0.0.1", "--dir", o.Dir}, args...)...); err != nil {
		return nil, err
	}
	s.client, s.inspector = asynq.NewClient(s.addr), asynq.NewInspector(s.addr)
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		if err = s.client.Ping(); err == nil {
			return s, nil
		}
		if time.Since(began) > 10*time.Second {
			return nil, errors.Join(err, s.close())
		}
	}
}

func asynqTask(p payload) *asynq.Task { return asynq.NewTask("noop", encode(p)) }

func (s *asynqSystem) submitMany(ctx context.Context, n int) error {
	return fromMany(ctx, s, n)
}

func (s *asynqSystem) submit(ctx context.Context, due time.Time) error {
	_, err := s.client.EnqueueContext(ctx, asynqTask(dueAt(due)))
	return err
}

func (s *asynqSystem) work(context.Context) error {
	s.server = asynq.NewServer(s.addr, asynq.Config{Concurrency: s.slots, TaskCheckInterval: 5 * time.Millisecond, LogLevel: asynq.ErrorLevel})
	return s.server.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		var p payload
		if err := json.Unmarshal(t.Payload(), &p); err != nil {
			return err
		}
		s.enter(p)
		return nil
	}))
}

func (s *asynqSystem) rest(context.Context) error {
	s.server.Shutdown()
	s.server = nil
	return nil
}

func (s *asynqSystem) entered() *entries { return &s.entries }

func (s *asynqSystem) count(context.Context) (c counts, err error) {
	queues, err := s.inspector.Queues()
	if err != nil || !slices.Contains(queues, asynqQueue) { // it is made by the first task
		return c, err
	}
	q, err := s.inspector.GetQueueInfo(asynqQueue)
	if err != nil {
		return c, err
	}
	if q.FailedTotal > 0 {
		return c, fmt.Errorf("%d tasks have failed", q.FailedTotal)
	}
	return counts{Waiting: q.Pending + q.Active + q.Scheduled + q.Retry, Finished: q.ProcessedTotal}, nil
}

func (s *asynqSystem) cpu() (time.Duration, error) { return cpuOf() }

func (s *asynqSystem) close() error {
	if s.server != nil {
		s.server.Shutdown()
	}
	return errors.Join(s.client.Close(), s.inspector.Close(), s.redis.stop())
}
