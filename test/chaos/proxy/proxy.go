// Package proxy is a TCP proxy that misbehaves on order: it delays, cuts, resets,
// swallows everything as a half-open connection does, and lets the answer of a
// COMMIT, or of an HTTP request, get lost after it was carried out.
package proxy

import (
	"bytes"
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Mode is how connections are treated.
type Mode int

// The modes.
const (
	Pass    Mode = iota
	Slow         // each chunk waits for the delay
	Hole         // a partition: nothing comes through until the mode changes; nobody is told
	Mute         // what the target says is held back until the mode changes
	Refuse       // new connections are closed at once
	Swallow      // the answer of the next COMMIT, or of the next POST, is lost and the connection cut
)

// Proxy listens on an address of its own and passes on to a target.
type Proxy struct {
	ln     net.Listener
	target string
	done   chan struct{}
	all    sync.WaitGroup

	mode      atomic.Int32
	delay     atomic.Int64
	swallowed atomic.Int64

	mu    sync.Mutex
	conns map[*pair]bool
	limit int64 // bytes of answers until the next cut; negative is none
}

// pair is one connection: the client's side and the target's. What goes into a
// dead one is lost, and nobody is told.
type pair struct {
	client, target *net.TCPConn
	dead           atomic.Bool
}

// New listens at addr ("127.0.0.1:0" takes a free port).
func New(addr, target string) (*Proxy, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, err
	}
	p := &Proxy{ln: ln, target: target, done: make(chan struct{}), conns: map[*pair]bool{}, limit: -1}
	p.all.Go(p.accept)
	return p, nil
}

// Addr is where it listens.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Set changes how connections are treated, those that are open too. delay is of Slow.
func (p *Proxy) Set(m Mode, delay time.Duration) {
	p.delay.Store(int64(delay))
	p.mode.Store(int32(m))
}

// Swallowed counts the answers that were lost in mode Swallow.
func (p *Proxy) Swallowed() int64 { return p.swallowed.Load() }

// CutAfter cuts the connection over which the n-th byte of answers from now on
// comes, in the middle of that answer. Zero cuts at the first.
func (p *Proxy) CutAfter(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = n
}

// Cut closes every open connection: with reset, abortively.
func (p *Proxy) Cut(reset bool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.close(reset)
	}
	return len(p.conns)
}

// Kill makes every open connection half open for good: what is sent is lost, and
// neither side is told. New ones are not touched. It returns how many there were.
func (p *Proxy) Kill() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.dead.Store(true)
	}
	return len(p.conns)
}

func (c *pair) close(reset bool) {
	for _, x := range []*net.TCPConn{c.client, c.target} {
		if reset {
			_ = x.SetLinger(0) // the connection may be gone already
		}
		_ = x.Close()
	}
}

// Close ends it, and every connection.
func (p *Proxy) Close() error {
	close(p.done)
	err := p.ln.Close()
	p.Cut(false)
	p.all.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		c, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.all.Go(func() { p.serve(c.(*net.TCPConn)) })
	}
}

func (p *Proxy) serve(c *net.TCPConn) {
	if Mode(p.mode.Load()) == Refuse {
		_ = c.Close()
		return
	}
	d := net.Dialer{Timeout: 5 * time.Second}
	t, err := d.Dial("tcp", p.target)
	if err != nil {
		_ = c.Close()
		return
	}
	x := &pair{client: c, target: t.(*net.TCPConn)}
	p.mu.Lock()
	p.conns[x] = true
	p.mu.Unlock()
	var lose atomic.Bool // the answer under way is to be lost
	var both sync.WaitGroup
	both.Go(func() { p.copy(x, x.target, x.client, func(b []byte) bool { p.watch(b, &lose); return true }) })
	both.Go(func() {
		p.copy(x, x.client, x.target, func(b []byte) bool {
			if lose.Load() {
				p.swallowed.Add(1)
				return false
			}
			return p.spend(len(b))
		})
	})
	both.Wait()
	p.mu.Lock()
	delete(p.conns, x)
	p.mu.Unlock()
}

// commit is the message that ends a transaction of PostgreSQL's simple protocol,
// without its length and type.
var commit = []byte("commit\x00")

// watch arms the loss of the answer of what is being sent.
func (p *Proxy) watch(b []byte, lose *atomic.Bool) {
	if Mode(p.mode.Load()) != Swallow || lose.Load() {
		return
	}
	if bytes.Contains(b, commit) || bytes.HasPrefix(b, []byte("POST /")) {
		lose.Store(true)
		p.mode.CompareAndSwap(int32(Swallow), int32(Pass)) // one at a time
	}
}

// spend takes n bytes off the budget; false cuts.
func (p *Proxy) spend(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.limit < 0 {
		return true
	}
	if p.limit -= int64(n); p.limit > 0 {
		return true
	}
	p.limit = -1
	return false
}

// copy moves bytes until one side ends. may is asked before each chunk is passed on.
func (p *Proxy) copy(x *pair, to, from *net.TCPConn, may func([]byte) bool) {
	defer func() {
		if !x.dead.Load() {
			x.close(false)
		}
	}()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if Mode(p.mode.Load()) == Slow {
			p.sleep(time.Duration(p.delay.Load()))
		}
		for p.holds(from == x.target) && p.sleep(10*time.Millisecond) {
		}
		if x.dead.Load() {
			if err != nil {
				return
			}
			continue
		}
		if n > 0 {
			if !may(buf[:n]) {
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// holds reports whether what comes is kept back for now.
func (p *Proxy) holds(answer bool) bool {
	m := Mode(p.mode.Load())
	return m == Hole || m == Mute && answer
}

func (p *Proxy) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.done:
		return false
	}
}
