package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/driver"
)

// server is a process that carries out what workers and clients ask, and runs
// the loops while it leads.
type server struct {
	w      *world
	n      int
	e      *engine.Engine
	life   int // counts its starts
	down   bool
	busy   bool // an operation is under way
	leads  bool
	offset time.Duration // of its clock
	last   time.Time     // its clock does not step back within a life
	armed  []*fault      // strike its next transactions
	loops  []*loop
	call   *call // under way
}

// Errors of a transaction that is made to fail.
var (
	errBroken   = errors.New("the connection to the database broke")
	errGone     = errors.New("the server is gone")
	errConflict = errors.New("sim: roll back")
)

// start begins a life of the server: new caches, new ids.
func (s *server) start() {
	s.life++
	s.down, s.armed, s.last = false, nil, time.Time{}
	random := newSource(s.w.plan.seed, 100, uint64(s.n), uint64(s.life))
	jitter := newSource(s.w.plan.seed, 101, uint64(s.n), uint64(s.life))
	db := store.New(&link{Driver: s.w.db.drv, s: s}, store.Options{Now: s.now, Random: random})
	s.e = engine.New(db, engine.Options{LeaseFor: s.w.plan.lease, CancelGrace: s.w.plan.grace, Jitter: jitter.Float64, Artifacts: s.w.db.files})
	life := s.life
	s.e.OnQueued = func(queues []string) {
		if s.life == life {
			s.w.wake(s, queues)
		}
	}
	s.w.tracef("server %d starts, life %d", s.n, s.life)
	s.loops = newLoops(s.e)
	s.w.after(s.w.rand.between(0, loopMin), func() { s.turn(life) })
}

// now is the server's clock. It differs a little from others'.
func (s *server) now() time.Time {
	t := s.w.now().Add(s.offset)
	if t.Before(s.last) {
		t = s.last
	}
	s.last = t
	return t
}

// Pauses between two turns of a loop; longer while it moves nothing.
const (
	loopMin = 500 * time.Millisecond
	loopMax = 8 * time.Second
)

// loop is one of the steps that the leader takes again and again.
type loop struct {
	name  string
	f     func(context.Context) (int, error)
	most  time.Duration // between two turns
	quiet time.Duration // until the next, at most
	next  time.Time
}

// newLoops are those of a server's life.
func newLoops(e *engine.Engine) []*loop {
	list := []*loop{
		{name: "reap", f: e.ReapOnce, most: 2 * time.Second}, {name: "expire", f: e.ExpireOnce, most: loopMax}, {name: "sweep", f: e.SweepOnce, most: 4 * time.Second},
		{name: "timers", f: e.TimersOnce, most: 3 * time.Second}, {name: "watch", f: e.WatchOnce, most: loopMax}, {name: "admit", f: e.AdmitOnce, most: 3 * time.Second}, {name: "purge", f: e.PurgeOnce, most: loopMax},
		{name: "grant", f: func(ctx context.Context) (int, error) { _, _, err := e.LookLocks(ctx, nil); return 0, err }, most: 3 * time.Second},
		{name: "children", f: e.ChildrenOnce, most: 3 * time.Second},
	}
	for _, l := range list {
		l.quiet = loopMin
	}
	return list
}

// turn takes every step that is due, while the server leads, and comes again.
func (s *server) turn(life int) {
	if s.life != life || s.down {
		return
	}
	for i, l := range s.loops {
		if !s.leads || s.busy || l.next.After(s.w.clock) {
			continue
		}
		n := 0
		s.w.do(&call{kind: l.name, s: s}, func(ctx context.Context) error {
			var err error
			n, err = l.f(ctx)
			return err
		})
		if s.w.stop != nil {
			return
		}
		if l.quiet = min(l.quiet*3/2, l.most); n > 0 {
			l.quiet = loopMin
		}
		l.next = s.w.clock.Add(s.w.rand.between(l.quiet/2, l.quiet))
		if s.life != life || s.down {
			return
		}
		if i == 0 && s.w.rand.often(0.02) {
			s.w.do(&call{kind: "clean", s: s}, func(ctx context.Context) error { _, err := s.e.CleanOnce(ctx); return err })
			s.reconcile()
			s.w.explain(3)
		}
	}
	s.w.after(loopMin/2, func() { s.turn(life) })
}

// reconcile looks for rows that do not agree with the records. No fault of this
// world makes any, so there must be nothing to mend.
func (s *server) reconcile() {
	n := 0
	s.w.do(&call{kind: "reconcile", s: s}, func(ctx context.Context) error {
		var err error
		n, err = s.e.ReconcileOnce(ctx)
		return err
	})
	if n > 0 {
		s.w.violate("I52", "the reconciler on server %d mended %d jobs", s.n, n)
	}
}

// call is one operation of the engine and what the checks must know about it.
type call struct {
	kind string
	s    *server
	who  string
	from time.Time // the server's clock when it began
	tx   int       // transactions committed
	hit  bool      // a fault struck it: its error says nothing
	lost bool      // the server died in it

	caller  engine.Caller
	session int64
	settle  *settleCall
	acquire *acquireCall
	renew   *renewCall
	submit  *submitCall
	job     *jobCall
	beat    *beatCall
	stage   *stageCall
	lock    *lockCall

	granted []grant           // in this call
	back    map[grantKey]bool // of those, given back in it
}

// grant is a lease as its transaction made it.
type grant struct {
	grantKey
	attempt, generation int32
	checkpoint          string
}

type grantKey struct {
	task    [16]byte
	version int32
}

// do runs an operation of a server's engine and checks what it did.
func (w *world) do(c *call, f func(context.Context) error) {
	s := c.s
	c.from, c.back = s.now(), map[grantKey]bool{}
	outer := s.call
	s.busy, s.call = true, c
	w.depth++
	w.stats.Operations++
	err := w.guard(c, f)
	w.depth--
	s.busy, s.call = false, outer
	c.lost = s.down
	if w.stop != nil {
		return
	}
	if err != nil {
		w.tracef("%s on server %d: %v", c.kind, s.n, err)
		if w.ghost.unexpected(c, err) {
			w.violate("ERR", "%s on server %d failed although nothing struck it: %v", c.kind, s.n, err)
		}
	}
	w.ghost.answered(c, err)
}

// guard runs f; a panic of the engine is a violation.
func (w *world) guard(c *call, f func(context.Context) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			w.violate("PANIC", "%s: %v", c.kind, p)
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return f(context.Background())
}

// link is a server's connection to the database, where transactions are struck.
type link struct {
	driver.Driver
	s *server
}

// idle are the calls that most often find nothing to do; a fault waits for one
// that does.
var idle = map[string]bool{"reap": true, "expire": true, "sweep": true, "timers": true, "watch": true, "admit": true, "clean": true, "reconcile": true, "purge": true, "grant": true}

// take disarms the first armed fault of a kind.
func (s *server) take(k Kind) *fault {
	for i, f := range s.armed {
		if f.kind == k {
			s.armed = append(s.armed[:i:i], s.armed[i+1:]...)
			return f
		}
	}
	return nil
}

// Write runs a transaction, unless a fault strikes it.
func (l *link) Write(ctx context.Context, fn func(driver.Tx) error) error {
	s, w := l.s, l.s.w
	c := s.call
	if !idle[c.kind] || c.tx > 0 {
		if f := s.take(ServerStall); f != nil {
			w.strike(f, c, "stands still")
			w.runOthers(f.n)
		}
	}
	for {
		if s.down {
			c.hit = true
			return errGone
		}
		var struck *fault
		err := l.Driver.Write(ctx, func(tx driver.Tx) error {
			w.db.changes, struck = nil, nil
			if err := fn(tx); err != nil || len(w.db.changes) == 0 {
				return err
			}
			for _, k := range []Kind{ErrorBefore, Serialization} {
				if struck = s.take(k); struck != nil {
					return errConflict
				}
			}
			for _, f := range s.armed {
				if f.kind == ServerCrash && f.n <= 1 && c.tx%2 == 0 { // before the commit, or after it
					struck = s.take(ServerCrash)
					return errConflict
				}
			}
			return nil
		})
		switch {
		case struck == nil:
		case struck.kind == Serialization:
			w.strike(struck, c, "rolled back for a conflict")
			if struck.n--; struck.n > 0 {
				s.armed = append(s.armed, struck)
			}
			if s.w.plan.servers > 1 {
				w.runOthers(struck.n * 2)
			}
			continue
		case struck.kind == ErrorBefore:
			w.strike(struck, c, "failed before the commit")
			c.hit = true
			return errBroken
		default:
			w.strike(struck, c, "dies before the commit")
			c.hit = true
			s.crash(struck.for_)
			return errGone
		}
		if err != nil {
			return err
		}
		changes := w.db.changes
		w.db.changes = nil
		w.ghost.commit(c, changes)
		c.tx++
		if len(changes) == 0 {
			return nil
		}
		if f := s.take(UnknownCommit); f != nil {
			w.strike(f, c, "the commit's answer is lost")
			w.stats.Unknown++
			c.hit = true
			return store.ErrUnknown
		}
		for _, f := range s.armed {
			if f.kind != ServerCrash {
				continue
			}
			if f.n--; f.n < 1 {
				s.take(ServerCrash)
				w.strike(f, c, "dies after the commit")
				c.hit = true
				s.crash(f.for_)
				return errGone
			}
		}
		return nil
	}
}

// Read runs a read-only transaction.
func (l *link) Read(ctx context.Context, fn func(driver.Tx) error) error {
	if l.s.down {
		l.s.call.hit = true
		return errGone
	}
	return l.Driver.Read(ctx, fn)
}

// crash ends the server's life. It comes back after a while.
func (s *server) crash(pause time.Duration) {
	s.down = true
	s.w.tracef("server %d is dead for %v", s.n, pause)
	s.w.after(pause, func() {
		if s.busy { // the operation it died in has not returned yet
			s.w.after(time.Millisecond, func() { s.crash(0) })
			return
		}
		s.start()
		s.w.lead()
	})
	s.w.lead()
}
