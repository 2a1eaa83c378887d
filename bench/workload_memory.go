package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/drover-dev/drover"
)

const (
	manyRunning = 10_000
	manyWaiting = 1_000
)

// memoryRun reads the resident memory of server and worker processes: idle, with
// 10,000 running tasks, and with 1,000 workers that wait for tasks.
func memoryRun(ctx context.Context, r *run) error {
	s, ok := r.system.(*droverHTTP)
	if !ok {
		return errors.New("it has no processes of its own")
	}
	if err := r.work(ctx); err != nil {
		return err
	}
	read := func(what string, server, worker bool) error {
		time.Sleep(5 * time.Second)
		for name, pid := range map[string]int{"server": s.cmd.Process.Pid, "worker": s.worker.cmd.Process.Pid} {
			if name == "server" && !server || name == "worker" && !worker {
				continue
			}
			mb, err := memory(pid, "VmRSS")
			if err != nil {
				return err
			}
			r.values[name+" MB "+what] = mb
		}
		return nil
	}
	if err := read("idle", true, true); err != nil {
		return err
	}

	until := time.Now().Add(30 * time.Second)
	jobs := make([]drover.NewJob, manyRunning)
	for i := range jobs {
		jobs[i] = noop(dueAt(until))
		jobs[i].Kind = "hold"
	}
	if err := refused(s.droverJobs.SubmitMany(ctx, jobs)); err != nil {
		return err
	}
	for r.entered().n.Load() < manyRunning && time.Now().Before(until) {
		time.Sleep(10 * time.Millisecond)
	}
	if err := read("with 10,000 running tasks", true, true); err != nil {
		return err
	}
	if c, err := r.count(ctx); err != nil || c.Waiting != manyRunning {
		r.void = fmt.Sprintf("%d of %d were running (%v)", c.Waiting, manyRunning, err)
		return nil
	}
	if err := errors.Join(r.drained(ctx, manyRunning), r.rest(ctx)); err != nil {
		return err
	}

	crowd, err := s.house.work(s.installation, benchQueue, 1, manyWaiting, &entries{})
	if err != nil {
		return err
	}
	s.worker = crowd
	for {
		q, err := s.Queue(ctx, benchQueue)
		if err != nil {
			return err
		}
		if q.Workers == manyWaiting {
			break
		}
		if time.Since(until) > 2*time.Minute {
			r.void = fmt.Sprintf("%d of %d workers", q.Workers, manyWaiting)
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return read("with 1,000 waiting workers", true, false)
}

// memory of Drover's processes.
func (b *bench) memory() error {
	return b.rounds("memory", spec{System: "drover-http", settings: settings{Slots: manyRunning}})
}
