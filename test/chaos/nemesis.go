package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/drover-dev/drover/test/chaos/journal"
	"github.com/drover-dev/drover/test/chaos/proxy"
)

// rates are how often the nemesis strikes: the mean time between two faults of a
// kind. Zero is never.
type rates struct {
	killWorker, pauseWorker, killServer, pauseServer, killDatabase, network time.Duration
}

// nemesis does harm, and notes it.
type nemesis struct {
	c *cluster
	j *journal.Writer
	rates

	struck int // times the network was disturbed

	mu  sync.Mutex
	err error
}

// run does harm until ctx ends, and then mends everything.
func (n *nemesis) run(ctx context.Context) error {
	var all sync.WaitGroup
	loop := func(mean time.Duration, strike func(context.Context)) {
		if mean == 0 {
			return
		}
		all.Go(func() {
			for sleep(ctx, mean/2+time.Duration(rand.Int64N(int64(mean)))) {
				strike(ctx)
			}
		})
	}
	one := func(list []*slot) *slot { return list[rand.IntN(len(list))] }
	var servers []*slot
	for _, s := range n.c.servers {
		servers = append(servers, s.slot)
	}
	loop(n.killWorker, func(ctx context.Context) { n.kill(ctx, one(n.c.workers), 300*time.Millisecond) })
	loop(n.killServer, func(ctx context.Context) { n.kill(ctx, one(servers), 500*time.Millisecond) })
	loop(n.pauseServer, func(ctx context.Context) { n.pause(ctx, one(servers)) })
	loop(n.network, n.disturb)
	for range 3 { // several may be paused at a time
		loop(3*n.pauseWorker, func(ctx context.Context) { n.pause(ctx, one(n.c.workers)) })
	}
	if n.c.pg != nil {
		loop(n.killDatabase, n.killPostgres)
	}
	<-ctx.Done()
	all.Wait()
	return n.heal(context.WithoutCancel(ctx))
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (n *nemesis) note(what, whom string, pid int, from int64) {
	n.failed(n.j.Write(journal.Record{Is: journal.Fault, What: what, Whom: whom, Of: pid, From: from, To: journal.Mono()}))
}

func (n *nemesis) failed(err error) {
	if err != nil {
		n.mu.Lock()
		n.err = err
		n.mu.Unlock()
	}
}

// kill ends a process, and starts it again a little later.
func (n *nemesis) kill(ctx context.Context, s *slot, down time.Duration) {
	s.mu.Lock()
	p := s.p
	if p == nil || !p.alive() {
		s.mu.Unlock()
		n.died(s)
		n.failed(s.startIfDown())
		return
	}
	from := journal.Mono()
	p.kill()
	n.note("kill", s.name, p.pid(), from)
	s.mu.Unlock()
	sleep(ctx, time.Duration(rand.Int64N(int64(down))))
	n.failed(s.startIfDown())
}

// died says that a process has ended that nobody ended.
func (n *nemesis) died(s *slot) {
	if s.p != nil {
		n.failed(fmt.Errorf("%s ended by itself with %s; its log tells why", s.name, s.p.cmd.ProcessState))
	}
}

// pause stops a process for 0.3 to 2 leases, and lets it go on: then it is a zombie.
func (n *nemesis) pause(ctx context.Context, s *slot) {
	s.mu.Lock()
	defer s.mu.Unlock() // nobody kills it meanwhile
	p := s.p
	if p == nil || !p.alive() {
		return
	}
	from := journal.Mono()
	p.signal(syscall.SIGSTOP)
	sleep(ctx, time.Duration((0.3+1.7*rand.Float64())*float64(n.c.lease)))
	p.signal(syscall.SIGCONT)
	n.note("pause", s.name, p.pid(), from)
}

// killPostgres ends the database at once and starts it again.
func (n *nemesis) killPostgres(ctx context.Context) {
	from := journal.Mono()
	pid := n.c.pg.server.pid()
	n.c.pg.kill()
	n.note("kill", "postgres", pid, from)
	sleep(ctx, time.Duration(rand.Int64N(int64(time.Second))))
	n.failed(n.c.pg.start(context.WithoutCancel(ctx)))
}

// disturb makes one of the proxies misbehave for a moment.
func (n *nemesis) disturb(ctx context.Context) {
	s := n.c.servers[rand.IntN(len(n.c.servers))]
	how := rand.IntN(8)
	if n.struck++; n.struck == 1 {
		how = 7 // an answer is lost for certain
	}
	p, whom := s.front, s.name+"/front"
	if s.back != nil && n.struck > 1 && rand.IntN(2) == 0 {
		p, whom = s.back, s.name+"/database"
	}
	from := journal.Mono()
	var what string
	for_ := func(most time.Duration) { sleep(ctx, most/10+time.Duration(rand.Int64N(int64(most)))) }
	switch how {
	case 0:
		what = "slow"
		p.Set(proxy.Slow, time.Duration(5+rand.IntN(150))*time.Millisecond)
		for_(2 * time.Second)
	case 1:
		what = "cut"
		p.Cut(false)
	case 2:
		what = "reset"
		p.Cut(true)
	case 3:
		what = "hole"
		p.Set(proxy.Hole, 0)
		for_(n.c.lease)
	case 4:
		what = "half-open"
		p.Kill()
		for_(2 * n.c.lease)
		p.Cut(false)
	case 5:
		what = "refuse"
		p.Set(proxy.Refuse, 0)
		p.Cut(true)
		for_(n.c.lease / 2)
	case 6:
		what = "budget"
		p.CutAfter(rand.Int64N(8 << 10))
		for_(time.Second)
	default:
		before := p.Swallowed()
		what = "unused swallow"
		p.Set(proxy.Swallow, 0)
		for end := time.Now().Add(time.Second); time.Now().Before(end) && p.Swallowed() == before; {
			time.Sleep(5 * time.Millisecond)
		}
		if p.Swallowed() > before {
			what = "swallow"
		}
	}
	p.Set(proxy.Pass, 0)
	n.note(what, whom, 0, from)
}

// heal mends the network and starts what is down.
func (n *nemesis) heal(ctx context.Context) error {
	for _, s := range n.c.servers {
		for _, p := range []*proxy.Proxy{s.front, s.back} {
			if p != nil {
				p.Set(proxy.Pass, 0)
				p.CutAfter(-1)
				p.Cut(true)
			}
		}
	}
	if n.c.pg != nil && !n.c.pg.server.alive() {
		n.failed(n.c.pg.start(ctx))
	}
	for _, s := range n.c.servers {
		n.failed(s.startIfDown())
		n.failed(s.ready(30 * time.Second))
	}
	for _, s := range n.c.workers {
		n.failed(s.startIfDown())
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err != nil {
		return n.err
	}
	return n.j.Write(journal.Record{Is: journal.Heal})
}
