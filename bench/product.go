package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
)

// start: from the start of the process to the first 200 of /readyz.
func (b *bench) start() error {
	const n = 10
	times := func(name, bound string, start func(k int) (*server, error)) error {
		var all []time.Duration
		for k := range n {
			s, err := start(k)
			if err != nil {
				return err
			}
			all = append(all, s.ready)
			if err := s.stop(); err != nil {
				return err
			}
		}
		slices.Sort(all)
		b.report.add(figure{
			Name: name + ", slowest of 10 starts", Value: all[n-1].Seconds(), Unit: "s", Goal: 0.5,
			Note: fmt.Sprintf("median %.2f s", all[n/2].Seconds()), Bound: bound,
		})
		return nil
	}
	state := func(k int) string { return filepath.Join(b.dir, fmt.Sprint("state", k)) }
	if err := times("`drover dev` ready, new folder", "creating the schema, synced to disk", func(k int) (*server, error) { return b.dev(state(k)) }); err != nil {
		return err
	}
	if err := times("`drover dev` ready, existing folder", "start of the process", func(k int) (*server, error) { return b.dev(state(k)) }); err != nil {
		return err
	}
	var dbs []string
	for range n {
		db, err := b.pg.database(b.ctx)
		if err != nil {
			return err
		}
		dbs = append(dbs, db)
	}
	if err := times("`drover server --auto-migrate` ready, empty PostgreSQL", "creating the schema", func(k int) (*server, error) { return b.serve(dbs[k], "--auto-migrate") }); err != nil {
		return err
	}
	return times("`drover server` ready, migrated PostgreSQL", "start of the process", func(k int) (*server, error) { return b.serve(dbs[k]) })
}

// databases are the kinds of one.
var databases = []string{"SQLite", "PostgreSQL"}

// installOn starts a server on an empty database of a kind.
func (b *bench) installOn(kind string) (*installation, error) {
	if kind == "SQLite" {
		return b.install("sqlite:" + filepath.Join(b.dir, fmt.Sprintf("bench_%d.db", time.Now().UnixNano())))
	}
	db, err := b.pg.database(b.ctx)
	if err != nil {
		return nil, err
	}
	return b.install(db)
}

// idle: resident memory of a server that does nothing.
func (b *bench) idle() error {
	dev, err := b.dev(filepath.Join(b.dir, "idle"))
	if err != nil {
		return err
	}
	db, err := b.pg.database(b.ctx)
	if err != nil {
		return errors.Join(err, dev.stop())
	}
	server, err := b.serve(db, "--auto-migrate")
	if err != nil {
		return errors.Join(err, dev.stop())
	}
	time.Sleep(10 * time.Second)
	for _, s := range []struct {
		name string
		pid  int
	}{{"`drover dev`", dev.cmd.Process.Pid}, {"`drover server` on PostgreSQL", server.cmd.Process.Pid}} {
		now, err1 := memory(s.pid, "VmRSS")
		files, err2 := memory(s.pid, "RssFile")
		if err := errors.Join(err1, err2); err != nil {
			return errors.Join(err, dev.stop(), server.stop())
		}
		b.report.add(figure{
			Name: s.name + " idle, resident after 10 s", Value: now, Unit: "MB", Goal: 60,
			Note: fmt.Sprintf("%.0f MB of it the program's own file", files), Bound: "the program's code, then the Go heap left by the start",
		})
	}
	return errors.Join(dev.stop(), server.stop())
}

// submit: single submits at a fixed rate that does not slow down with the
// server. A latency counts from the moment the request should have been sent.
func (b *bench) submit() error {
	const (
		clients = 20
		rate    = 1000
		warm    = 2 * time.Second
		long    = 15 * time.Second
	)
	i, err := b.installOn("PostgreSQL")
	if err != nil {
		return err
	}
	var (
		mu        sync.Mutex
		latencies []time.Duration
		refused   error
		failed    int
		all       sync.WaitGroup
	)
	began := time.Now().Add(100 * time.Millisecond)
	each := time.Second * clients / rate
	total := int((warm + long) / each)
	for k := range clients {
		c, err := client.New(client.Config{URL: i.url, Token: i.token, Tries: 1})
		if err != nil {
			return errors.Join(err, i.stop())
		}
		defer c.Close()
		all.Go(func() {
			for n := range total {
				due := began.Add(each*time.Duration(n) + each*time.Duration(k)/clients)
				time.Sleep(time.Until(due))
				all.Go(func() {
					_, err := c.Submit(b.ctx, drover.NewJob{Kind: "add", Queue: "bench", Input: encode(number{n})})
					took := time.Since(due)
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						failed++
						refused = err
					} else if due.Sub(began) >= warm {
						latencies = append(latencies, took)
					}
				})
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	peak, err := memory(i.cmd.Process.Pid, "VmHWM")
	if err != nil {
		return errors.Join(err, i.stop())
	}
	void := ""
	if failed > 0 {
		void = fmt.Sprintf("%d of %d were refused: %v", failed, clients*total, refused)
	}
	// All that was accepted must end.
	drain, problem, err := b.drain(i, clients*total, time.Now())
	if err != nil {
		return errors.Join(err, i.stop())
	}
	if void == "" {
		void = problem
	}
	slices.Sort(latencies)
	name := fmt.Sprintf("submit over HTTP, %d/s open loop from %d clients, PostgreSQL", rate, clients)
	b.report.add(figure{Name: name + ": p50", Value: milliseconds(quantile(latencies, 0.5)), Unit: "ms", Void: void, Bound: "one commit that is synced to disk, shared by the submits that arrive during the one before"})
	b.report.add(figure{
		Name: name + ": p99", Value: milliseconds(quantile(latencies, 0.99)), Unit: "ms", Goal: 20, Void: void,
		Note:  fmt.Sprintf("p99.9 %.0f ms, %.0f/s answered, server's peak %.0f MB", milliseconds(quantile(latencies, 0.999)), float64(clients*total)/took.Seconds(), peak),
		Bound: "waiting for a processor: the load generator, the server and PostgreSQL share them, and an fsync is short beside it",
	})
	b.report.add(figure{Name: fmt.Sprintf("these %d jobs then worked by one worker process over HTTP", clients*total), Value: float64(clients*total) / drain.Seconds(), Unit: "tasks/s", Void: void,
		Bound: "the processors, shared by server, worker and database"})
	return i.stop()
}

// drain starts a worker and waits until nothing is left in the queue. It counts
// what succeeded; problem says what is wrong with that.
func (b *bench) drain(i *installation, want int, began time.Time) (took time.Duration, problem string, err error) {
	w, err := b.work(i, benchQueue, 200, 1, &entries{})
	if err != nil {
		return 0, "", err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	for {
		q, err := i.Queue(b.ctx, "bench")
		if err != nil {
			return 0, "", err
		}
		if q.Ready+q.Queued+q.Running+q.Delayed == 0 {
			break
		}
		if time.Since(began) > 3*time.Minute {
			problem = fmt.Sprintf("%d tasks left after 3 minutes", q.Ready+q.Queued+q.Running+q.Delayed)
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	took = time.Since(began)
	done, cursor := 0, ""
	for {
		page, err := i.Jobs(b.ctx, client.JobsFilter{Status: []drover.Status{drover.Succeeded}, List: client.List{Limit: 1000, Cursor: cursor}})
		if err != nil {
			return 0, "", err
		}
		done += len(page.Items)
		if cursor = page.NextCursor; cursor == "" {
			break
		}
	}
	if done != want && problem == "" {
		problem = fmt.Sprintf("%d of %d succeeded", done, want)
	}
	return took, problem, nil
}

// jobEnded waits for the end of a job and says what is wrong with it.
func (b *bench) jobEnded(i *installation, id drover.JobID, tasks int, result string) (string, error) {
	ctx, done := context.WithTimeout(b.ctx, 3*time.Minute)
	defer done()
	j, err := i.WaitJob(ctx, id)
	switch {
	case ctx.Err() != nil && b.ctx.Err() == nil:
		return fmt.Sprintf("%s after 3 minutes, %d of %d tasks", j.Status, j.Tasks.Succeeded, tasks), nil
	case err != nil:
		return "", err
	case j.Status != drover.Succeeded || j.Tasks.Succeeded != tasks || j.Tasks.Total != tasks:
		return fmt.Sprintf("%s, %d of %d tasks succeeded", j.Status, j.Tasks.Succeeded, tasks), nil
	case result != "" && string(j.Result) != result:
		return fmt.Sprintf("its result is %.100s, not %s", j.Result, result), nil
	}
	return "", nil
}

// pair is a job of two mapped tasks over the same list.
const pair = "pipeline: pair\ntasks:\n  left: {run: add, queue: bench, for_each: \"${{ input.of }}\"}\n  right: {run: add, queue: bench, for_each: \"${{ input.of }}\"}\n"

func list(n int) map[string][]number {
	of := make([]number, n)
	for k := range of {
		of[k].N = k
	}
	return map[string][]number{"of": of}
}

// tasks: the first page of a large job's tasks, while all wait and when all are done.
func (b *bench) tasks() error {
	for _, kind := range databases {
		if err := b.tasksOn(kind); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
	}
	return nil
}

func (b *bench) tasksOn(kind string) (err error) {
	i, err := b.installOn(kind)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, i.stop()) }()
	if _, err := i.ApplyPipeline(b.ctx, "bench.yaml", []byte(pair)); err != nil {
		return err
	}
	s, err := i.Submit(b.ctx, drover.NewJob{Pipeline: "pair", Input: encode(list(10_000))})
	if err != nil {
		return err
	}
	reads := func(state string) (figure, error) {
		var all []time.Duration
		size := 0
		for range 50 {
			began := time.Now()
			page, err := i.Tasks(b.ctx, s.JobID, client.TasksFilter{})
			if err != nil {
				return figure{}, err
			}
			if len(page.Items) == 0 || page.NextCursor == "" {
				return figure{}, fmt.Errorf("the first page has %d tasks", len(page.Items))
			}
			all = append(all, time.Since(began))
			size = len(page.Items)
		}
		slices.Sort(all)
		return figure{
			Name: "first page of tasks of a job of 20,000, " + state + ", " + kind + ": p99 of 50", Value: milliseconds(quantile(all, 0.99)), Unit: "ms", Goal: 100,
			Note: fmt.Sprintf("median %.1f ms, %d tasks", milliseconds(quantile(all, 0.5)), size),
		}, nil
	}
	waiting, err := reads("all waiting")
	if err != nil {
		return err
	}
	began := time.Now()
	w, err := b.work(i, benchQueue, 200, 1, &entries{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	problem, err := b.jobEnded(i, s.JobID, 20_000, "")
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "  20,000 tasks in %.1f s\n", time.Since(began).Seconds())
	done, err := reads("all done")
	if err != nil {
		return err
	}
	waiting.Void, done.Void = problem, problem
	waiting.Bound = "a few statements by key, and one range of an index in each table of live tasks"
	done.Bound = waiting.Bound
	b.report.add(waiting)
	b.report.add(done)
	return nil
}
