package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/test/chaos/journal"
	"github.com/drover-dev/drover/test/chaos/points"
)

// breakage is a point and how the server breaks there.
type breakage struct {
	points.Point
	mode string
}

// breakages lists what a sweep goes through: of the points whose turn it is, each
// in one of its ways, or with every, in all of them.
func breakages(every bool, turn func(i int) bool) (list []breakage) {
	for i, p := range points.All {
		modes := p.Modes()
		if !every {
			if p.Slow || !turn(i/2) { // before and after one commit go together
				continue
			}
			modes = modes[i%len(modes):][:1]
		}
		for _, m := range modes {
			list = append(list, breakage{p, m})
		}
	}
	return list
}

// sweep lets one server break at one point after the other while everything that
// Drover does goes on, and starts it again. In the end all work must be done, and
// the checker content.
func (p plan) sweep(ctx context.Context, list []breakage, say func(format string, args ...any)) error {
	began := time.Now()
	c, err := newCluster(ctx, p.bin, p.tools, p.dir, p.database, 1, p.lease)
	if c != nil {
		defer c.close()
	}
	if err != nil {
		return err
	}
	fired := filepath.Join(p.dir, "fired")
	s := c.servers[0]
	begin := s.begin
	s.begin = func(env ...string) (*process, error) {
		return begin(append(env, points.FiredEnv+"="+fired, points.NapEnv+"="+(p.lease*3/2).String())...)
	}
	j, err := journal.Open(c.journals() + "/nemesis.jsonl")
	if err != nil {
		return err
	}
	defer func() { _ = j.Close() }()

	// Points of the first start come before anything else.
	for len(list) > 0 {
		i := slices.IndexFunc(list, func(b breakage) bool { return strings.HasSuffix(b.Name, " migrate") })
		if i < 0 {
			break
		}
		b := list[i]
		list = slices.Delete(list, i, i+1)
		if err := s.startIfDown(points.ArmEnv + "=" + b.Name + " " + b.mode); err != nil {
			return err
		}
		select {
		case <-s.p.ended:
		case <-time.After(20 * time.Second):
			return fmt.Errorf("%s: the server did not come to it", b.Name)
		}
		if _, err := passed(fired, b); err != nil {
			return err
		}
		for _, path := range []string{"drover.db", "drover.db-wal", "drover.db-shm"} { // the next one migrates anew
			if err := os.Remove(filepath.Join(c.dir, path)); err != nil && !os.IsNotExist(err) && i > 0 {
				return err
			}
		}
	}
	if err := c.up(ctx); err != nil {
		return err
	}
	l, err := newLoad(ctx, c)
	if err != nil {
		return err
	}
	defer func() { _ = l.j.Close() }()
	for i := range p.workers {
		if err := c.addWorker(i, p.slots, false); err != nil {
			return err
		}
	}
	storm, over := context.WithCancel(ctx)
	defer over()
	var all sync.WaitGroup
	for range p.clients {
		all.Go(func() { l.run(storm, p.pace) })
	}
	all.Go(func() { l.odd(storm) })
	all.Go(func() { restless(storm, c.workers[0]) })

	told := 0
	for _, b := range list {
		if err := arm(ctx, s, b); err != nil {
			return err
		}
		limit := time.Minute
		if b.Slow {
			limit = 2 * time.Minute
		}
		from := journal.Mono()
		var err error
		reached := eventually(limit, func() bool {
			var ok bool
			ok, err = passed(fired, b)
			return ok || err != nil
		})
		if err != nil {
			return err
		}
		if !reached {
			return fmt.Errorf("%q, %s: not reached in %s", b.Name, b.mode, limit)
		}
		told++
		if err := j.Write(journal.Record{Is: journal.Fault, What: "point: " + b.mode, Whom: "server-A/" + b.Name, From: from, To: journal.Mono()}); err != nil {
			return err
		}
		if b.mode == points.Exit {
			select {
			case <-s.p.ended:
			case <-time.After(10 * time.Second):
				return fmt.Errorf("%q: the server did not end", b.Name)
			}
			if err := s.startIfDown(); err != nil {
				return err
			}
		} else if !s.p.alive() {
			return fmt.Errorf("%q, %s: the server ended with %s", b.Name, b.mode, s.p.cmd.ProcessState)
		}
		if err := s.ready(time.Minute); err != nil {
			return fmt.Errorf("after %q, %s: %w", b.Name, b.mode, err)
		}
	}
	over()
	all.Wait()
	if err := s.startIfDown(); err != nil {
		return err
	}
	if err := c.workers[0].startIfDown(); err != nil {
		return err
	}
	calm, done := context.WithTimeout(ctx, p.quiet)
	defer done()
	l.settleUnknown(calm)
	left, err := ended(calm, l.via[0])
	if err != nil {
		say("after %s: %v", p.quiet, err)
	}
	say("%s: broken %d times at %d points in %s; %d jobs are left", p.database, told, count(list), time.Since(began).Round(time.Second), left)
	if l.err != nil {
		return l.err
	}
	for _, w := range c.workers {
		w.p.stop(20 * time.Second)
	}
	out, err := c.judge(ctx, p.checker, "-few")
	say("%s", out)
	return err
}

func count(list []breakage) int {
	names := map[string]bool{}
	for _, b := range list {
		names[b.Name] = true
	}
	return len(names)
}

// passed reports whether a point was the last one to fire.
func passed(path string, b breakage) (bool, error) {
	list, err := points.Fired(path)
	return err == nil && list[len(list)-1] == b.Name+" "+b.mode, err
}

// arm tells the server where to break next.
func arm(ctx context.Context, s *server, b breakage) error {
	q := url.Values{"point": {b.Name}, "mode": {b.mode}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.addr+points.ArmPath+"?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("arm %q: %w", b.Name, err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("arm %q, %s: %s", b.Name, b.mode, res.Status)
	}
	return nil
}

// restless is a worker that is stopped in order, and started again, all the time.
func restless(ctx context.Context, s *slot) {
	for sleep(ctx, 1500*time.Millisecond) {
		s.mu.Lock()
		s.p.stop(15 * time.Second)
		s.mu.Unlock()
		if err := s.startIfDown(); err != nil {
			return // what is left undone tells
		}
	}
}

// odd does what clients of the storm do seldom or never: files, jobs that expire, workers that take a
// task and are never heard of again, or leave without a word about it.
func (l *load) odd(ctx context.Context) {
	for n := 0; sleep(ctx, 300*time.Millisecond); n++ {
		j := work(effort{N: 1})
		j.Queue, j.ExpiresAt = "nobody", time.Now().Add(500*time.Millisecond).Truncate(time.Microsecond)
		l.submit(ctx, j, nil)
		save := work(effort{N: n, Save: true})
		save.Class = drover.Urgent // there may be a long line
		l.submit(ctx, save, nil)
		c := l.any()
		_, _ = c.ApplyPipeline(ctx, "odd.yaml", fmt.Appendf(nil, "pipeline: odd\ntasks:\n  a: {run: work, with: {n: %d}}\n", n)) // nobody starts one
		s, err := c.OpenSession(ctx, drover.NewSession{Worker: "gone", Queues: []string{"chaos"}, Kinds: []string{"work"}, Slots: 1})
		if err != nil { // the server has just broken
			continue
		}
		leases, err := c.Acquire(ctx, drover.Acquire{Session: s.ID, Max: 1, Number: 1, Wait: drover.Duration(300 * time.Millisecond)})
		if err == nil && len(leases) > 0 && n%2 == 0 {
			_ = c.CloseSession(ctx, s.ID) // without it the lease runs out
		}
	}
}
