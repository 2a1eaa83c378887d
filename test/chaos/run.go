package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/test/chaos/journal"
)

// plan is one chaos run.
type plan struct {
	dir      string
	database string // "postgres" or "sqlite"
	bin      string // the drover program
	checker  string // the checker program
	tools    string
	length   time.Duration // of the faults
	lease    time.Duration
	workers  int
	slots    int
	rude     int
	clients  int
	pace     time.Duration // between two calls of a client
	rates    rates
	quiet    time.Duration // at most, until all work has ended after the faults
	figures  string        // file for the figures; empty is none
}

// run carries a plan out and lets the checker judge. What it prints is the report.
func (p plan) run(ctx context.Context, say func(format string, args ...any)) error {
	began := time.Now()
	servers := 2
	c, err := newCluster(ctx, p.bin, p.tools, p.dir, p.database, servers, p.lease)
	if c != nil {
		defer c.close()
	}
	if err != nil {
		return err
	}
	if err := c.up(ctx); err != nil {
		return err
	}
	l, err := newLoad(ctx, c)
	if err != nil {
		return err
	}
	defer func() { _ = l.j.Close() }()
	for i := range p.workers + p.rude {
		if err := c.addWorker(i, p.slots, i >= p.workers); err != nil {
			return err
		}
	}
	j, err := journal.Open(c.journals() + "/nemesis.jsonl")
	if err != nil {
		return err
	}
	defer func() { _ = j.Close() }()
	say("%s: %d servers, %d workers, %d of them rude; lease %s; up after %s", p.database, len(c.servers), len(c.workers), p.rude, p.lease, time.Since(began).Round(time.Millisecond))

	storm, over := context.WithTimeout(ctx, p.length)
	defer over()
	var all sync.WaitGroup
	for range p.clients {
		all.Go(func() { l.run(storm, p.pace) })
	}
	n := &nemesis{c: c, j: j, rates: p.rates}
	if err := n.run(storm); err != nil {
		return err
	}
	all.Wait()
	calm, done := context.WithTimeout(ctx, p.quiet)
	defer done()
	asked := l.settleUnknown(calm)
	left, err := ended(calm, l.via[0])
	if err != nil {
		say("after %s: %v", p.quiet, err)
	}
	say("the faults took %s, the rest %s; %d calls were asked again; %d jobs are left", p.length, time.Since(began).Round(time.Second)-p.length, asked, left)
	if l.err != nil {
		return l.err
	}
	if err := j.Write(journal.Record{Is: journal.Quiet}); err != nil {
		return err
	}
	for _, s := range c.workers {
		if _, willing := s.p.stop(40 * time.Second); !willing {
			say("%s did not stop", s.name)
		}
	}
	var words []string
	if p.figures != "" {
		if err := os.MkdirAll(filepath.Dir(p.figures), 0o755); err != nil {
			return err
		}
		words = append(words, "-figures", p.figures)
	}
	out, err := c.judge(ctx, p.checker, words...)
	say("%s", out)
	return err
}

// judge runs the checker and returns what it prints.
func (c *cluster) judge(ctx context.Context, checker string, words ...string) ([]byte, error) {
	words = append([]string{"-journals", c.journals(), "-database", c.database}, words...)
	out, err := exec.CommandContext(ctx, checker, words...).CombinedOutput()
	if err != nil {
		return out, fmt.Errorf("the checker is not content: %w", err)
	}
	return out, nil
}

// ended waits until no job is under way but those that start later, and returns
// how many are.
func ended(ctx context.Context, c *client.Client) (int, error) {
	for {
		left := 0
		f := client.JobsFilter{Status: []drover.Status{drover.Pending, drover.Running}, List: client.List{Limit: 1000}}
		for {
			page, err := c.Jobs(ctx, f)
			if err != nil {
				return left, err
			}
			left += len(page.Items)
			if f.Cursor = page.NextCursor; f.Cursor == "" {
				break
			}
		}
		if left == 0 {
			return 0, nil
		}
		select {
		case <-ctx.Done():
			return left, fmt.Errorf("%d jobs have not ended: %w", left, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}
