package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drover-dev/drover/client"
)

// droverHTTP is Drover as an installation: "drover server" as a process, a
// worker in a process of its own, and this process as the client, over HTTP.
type droverHTTP struct {
	droverJobs
	entries
	*installation
	house  *house
	rows   *droverTables
	slots  int
	worker *workerProcess
}

func openDroverHTTP(ctx context.Context, o settings) (_ system, err error) {
	s := &droverHTTP{house: &house{ctx: ctx, drover: filepath.Join(o.Bin, "drover"), dir: o.Dir}, slots: cmp.Or(o.Slots, droverSlots)}
	if s.installation, err = s.house.install(o.Postgres); err != nil {
		return nil, err
	}
	s.droverJobs = newDroverJobs(s.Client, s.Client)
	if s.rows, err = openTables(ctx, o.Postgres); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

func (s *droverHTTP) work(context.Context) (err error) {
	s.worker, err = s.house.work(s.installation, benchQueue, s.slots, 1, &s.entries)
	return err
}

func (s *droverHTTP) rest(context.Context) error {
	w := s.worker
	s.worker = nil
	return w.stop()
}

func (s *droverHTTP) entered() *entries { return &s.entries }

func (s *droverHTTP) count(ctx context.Context) (counts, error) { return s.rows.count(ctx) }

func (s *droverHTTP) steps(ctx context.Context) (int, error) {
	c, err := s.count(ctx)
	return c.Finished, err
}

func (s *droverHTTP) cpu() (time.Duration, error) {
	pids := []int{s.cmd.Process.Pid}
	if s.worker != nil {
		pids = append(pids, s.worker.cmd.Process.Pid)
	}
	return cpuOf(pids...)
}

func (s *droverHTTP) close() error {
	var err error
	if s.worker != nil {
		err = s.rest(context.Background())
	}
	return errors.Join(err, s.rows.close(), s.stop())
}

// workerProcess is a worker that the bench has started. It tells its entries by
// a pipe: their number as they come, and at its end the latencies.
type workerProcess struct {
	*process
	read chan error
}

// work starts a process with so many workers of so many slots.
func (h *house) work(i *installation, queue string, slots, workers int, e *entries) (*workerProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	r, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p, err := h.spawn([]string{"BENCH_URL=" + i.url, "BENCH_TOKEN=" + i.token, "BENCH_QUEUE=" + queue, "BENCH_SLOTS=" + strconv.Itoa(slots), "BENCH_WORKERS=" + strconv.Itoa(workers)},
		func(c *exec.Cmd) { c.ExtraFiles = []*os.File{out} }, self, "-worker")
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	w := &workerProcess{process: p, read: make(chan error, 1)}
	go func() { w.read <- errors.Join(e.follow(r), r.Close()) }()
	return w, nil
}

func (w *workerProcess) stop() error {
	err := w.process.stop()
	return errors.Join(err, <-w.read)
}

// follow takes over what a worker process tells.
func (e *entries) follow(r io.Reader) error {
	before := e.n.Load()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "[") {
			var late []time.Duration
			if err := json.Unmarshal(lines.Bytes(), &late); err != nil {
				return err
			}
			e.mu.Lock()
			e.late = append(e.late, late...)
			e.mu.Unlock()
			continue
		}
		n, err := strconv.ParseInt(lines.Text(), 10, 64)
		if err != nil {
			return err
		}
		e.n.Store(before + n)
	}
	return lines.Err()
}

// workerMain is the worker process. Each of its workers has connections of its own.
func workerMain(ctx context.Context) error {
	slots, err := strconv.Atoi(os.Getenv("BENCH_SLOTS"))
	if err != nil {
		return fmt.Errorf("BENCH_SLOTS: %w", err)
	}
	n, err := strconv.Atoi(os.Getenv("BENCH_WORKERS"))
	if err != nil {
		return fmt.Errorf("BENCH_WORKERS: %w", err)
	}
	out := os.NewFile(3, "entries")
	var e entries
	ended, told := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(told)
		e.tell(out, ended)
	}()
	var all errgroup.Group
	for range n {
		c, err := client.New(client.Config{URL: os.Getenv("BENCH_URL"), Token: os.Getenv("BENCH_TOKEN"), UserAgent: "bench-worker"})
		if err != nil {
			return err
		}
		all.Go(func() error { return handlers(c, os.Getenv("BENCH_QUEUE"), slots, &e).Run(ctx) })
	}
	err = all.Wait()
	close(ended)
	<-told
	if late := e.latencies(); len(late) > 0 {
		_, writeErr := fmt.Fprintf(out, "%s\n", encode(late))
		err = errors.Join(err, writeErr)
	}
	return errors.Join(err, out.Close())
}

// tell writes the number of entries whenever it has changed, until it has ended.
func (e *entries) tell(out io.Writer, ended <-chan struct{}) {
	last := int64(0)
	for done := false; !done; {
		select {
		case <-ended:
			done = true
		case <-time.After(2 * time.Millisecond):
		}
		if n := e.n.Load(); n != last {
			last = n
			fmt.Fprintln(out, n)
		}
	}
}
