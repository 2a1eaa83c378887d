package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/test/chaos/journal"
)

// takeover is what measure finds.
type takeover struct {
	Tasks  int       `json:"tasks"`
	Lease  string    `json:"lease"`
	P99    []float64 `json:"p99_seconds"` // of each kill: until 99 % had begun elsewhere
	Median float64   `json:"median_seconds"`
}

// measure kills, with settings as they are by default, a worker that holds so many
// tasks, kills times, and measures from the kill until 99 % of them have begun
// elsewhere.
func (p plan) measure(ctx context.Context, tasks, kills int, say func(format string, args ...any)) error {
	c, err := newCluster(ctx, p.bin, p.tools, p.dir, p.database, 2, 30*time.Second)
	if c != nil {
		defer c.close()
	}
	if err != nil {
		return err
	}
	if err := c.up(ctx); err != nil {
		return err
	}
	x, err := c.client(0)
	if err != nil {
		return err
	}
	out := takeover{Tasks: tasks, Lease: c.lease.String()}
	for round := range kills {
		queue := fmt.Sprintf("round-%d", round)
		list := make([]drover.NewJob, tasks)
		for i := range list {
			list[i] = work(effort{N: i, Ms: int(time.Hour.Milliseconds())})
			list[i].Queue = queue
		}
		if _, err := x.SubmitMany(ctx, list); err != nil {
			return err
		}
		add := func() (*slot, error) {
			err := c.addWorker(round, tasks, false, "QUEUE="+queue)
			return c.workers[len(c.workers)-1], err
		}
		begun := func(s *slot, n int) ([]journal.Record, error) {
			var list []journal.Record
			var err error
			if !eventually(2*time.Minute, func() bool {
				list, err = journal.Read(c.journals())
				list = slices.DeleteFunc(list, func(r journal.Record) bool { return r.Is != journal.Begin || r.Whom != s.name })
				time.Sleep(100 * time.Millisecond)
				return len(list) >= n
			}) {
				return nil, fmt.Errorf("%s began %d of %d tasks: %w", s.name, len(list), n, err)
			}
			return list, nil
		}
		first, err := add()
		if err != nil {
			return err
		}
		if _, err := begun(first, tasks); err != nil {
			return err
		}
		second, err := add()
		if err != nil {
			return err
		}
		sleep(ctx, time.Second) // it polls
		at := journal.Mono()
		first.p.kill()
		got, err := begun(second, tasks*99/100)
		if err != nil {
			return err
		}
		took := float64(got[tasks*99/100-1].Mono-at) / 1e9
		out.P99 = append(out.P99, took)
		say("kill %d: of %d tasks the first began elsewhere after %.1f s, 99 %% after %.1f s", round+1, tasks, float64(got[0].Mono-at)/1e9, took)
		second.p.kill()
	}
	sorted := slices.Sorted(slices.Values(out.P99))
	out.Median = sorted[len(sorted)/2]
	say("median of %d kills: %.1f s (lease %s)", kills, out.Median, out.Lease)
	if p.figures != "" {
		if err := os.MkdirAll(filepath.Dir(p.figures), 0o755); err != nil {
			return err
		}
		b, err := json.MarshalIndent(out, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(p.figures, append(b, '\n'), 0o644); err != nil {
			return err
		}
	}
	if out.Median > 35 {
		return fmt.Errorf("the median is %.1f s; with default settings it should be 35 s at most", out.Median)
	}
	return nil
}
