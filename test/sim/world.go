package sim

import (
	"container/heap"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"slices"
	"time"
)

// event is something that happens at a time.
type event struct {
	at  time.Time
	seq int64
	f   func()
}

type events []event

func (h events) Len() int { return len(h) }
func (h events) Less(i, j int) bool {
	if h[i].at.Equal(h[j].at) {
		return h[i].seq < h[j].seq
	}
	return h[i].at.Before(h[j].at)
}
func (h events) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push is heap.Interface's.
func (h *events) Push(v any) { *h = append(*h, v.(event)) } //nolint:forcetypeassert // only events are pushed

// Pop is heap.Interface's.
func (h *events) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}

// world is one seed being run: a thread, a heap of events, and a clock that
// jumps from one to the next.
type world struct {
	plan  *plan
	db    *database
	rand  source
	clock time.Time
	heap  events
	seq   int64
	depth int // of operations that stand still while others run

	servers []*server
	workers []*worker
	clients []*client
	ghost   *ghost
	stats   Stats
	stop    *Violation
	struck  map[Kind]bool

	net      map[int][]*fault // armed, by worker and client
	deafTill time.Time        // wake-ups are lost until then
	leader   int
	second   int // leads besides, −1 is nobody
	healed   bool
	deadline time.Time // when all must have ended
	poison   map[int]*fault

	hash  hash.Hash
	lines []string // of the trace, when it is kept
	keep  bool
}

// Violation is an invariant that did not hold.
type Violation struct {
	// Invariant is its number in the list of invariants.
	Invariant string
	Text      string
	At        time.Duration
}

// Error tells it in a line.
func (v *Violation) Error() string {
	return fmt.Sprintf("%s at %.3fs: %s", v.Invariant, v.At.Seconds(), v.Text)
}

func (w *world) now() time.Time { return w.clock }

func (w *world) since() time.Duration { return w.clock.Sub(epoch) }

// after runs f in a while.
func (w *world) after(d time.Duration, f func()) {
	w.seq++
	heap.Push(&w.heap, event{w.clock.Add(max(d, 0)), w.seq, f})
}

// step runs the next event.
func (w *world) step() bool {
	if len(w.heap) == 0 || w.stop != nil {
		return false
	}
	e := heap.Pop(&w.heap).(event) //nolint:forcetypeassert // only events are pushed
	if e.at.After(w.clock) {
		w.clock = e.at
	}
	e.f()
	return true
}

// runOthers runs events in the middle of an operation.
func (w *world) runOthers(n int) {
	if w.depth > 3 {
		return
	}
	for range n {
		if !w.step() {
			return
		}
	}
}

// tracef writes a line of the trace. Every line counts for its hash.
func (w *world) tracef(format string, args ...any) {
	line := fmt.Sprintf("%10.4f ", w.since().Seconds()) + fmt.Sprintf(format, args...)
	w.hash.Write([]byte(line))
	w.hash.Write([]byte{'\n'})
	if w.keep {
		w.lines = append(w.lines, line)
	}
}

// violate ends the world: the first violation counts.
func (w *world) violate(invariant, format string, args ...any) {
	v := &Violation{Invariant: invariant, Text: fmt.Sprintf(format, args...), At: w.since()}
	w.tracef("VIOLATION %s", v.Error())
	if w.stop == nil {
		w.stop = v
	}
}

// strike counts a fault that struck.
func (w *world) strike(f *fault, c *call, what string) {
	w.stats.Faults[f.kind.String()]++
	w.struck[f.kind] = true
	if c != nil {
		w.tracef("FAULT %s: %s of %s on server %d %s", f.kind, c.kind, c.who, c.s.n, what)
	} else {
		w.tracef("FAULT %s: %s", f.kind, what)
	}
}

// lead settles who runs the loops: the first server that is up, and for a while
// a second one besides.
func (w *world) lead() {
	w.leader = -1
	for _, s := range w.servers {
		if s.leads = false; !s.down && w.leader < 0 {
			w.leader = s.n
			s.leads = true
		}
	}
	if w.second >= 0 && !w.servers[w.second].down {
		w.servers[w.second].leads = true
	}
}

// wake tells the workers of new work.
func (w *world) wake(s *server, queues []string) {
	if w.clock.Before(w.deafTill) {
		w.stats.LostWakeUps++
		return
	}
	w.tracef("server %d tells of %v", s.n, queues)
	// One hears of it, if it waits: there is no more work than that, mostly, and
	// others poll by themselves.
	k := w.workers[w.rand.IntN(len(w.workers))]
	w.after(w.rand.between(time.Millisecond, 20*time.Millisecond), k.poll)
}

// arm makes a fault ready when its time has come.
func (w *world) arm(f *fault) {
	if w.healed {
		return
	}
	switch f.kind {
	case WorkerCrash:
		if k := w.workers[f.target]; k.alive {
			w.strike(f, nil, fmt.Sprintf("worker %d dies with %d tasks for %v", k.n, len(k.runs), f.for_))
			k.crash(f.for_)
		}
	case WorkerPause:
		if k := w.workers[f.target]; k.alive {
			w.strike(f, nil, fmt.Sprintf("worker %d stands still with %d tasks for %v", k.n, len(k.runs), f.for_))
			if until := w.clock.Add(f.for_); until.After(k.paused) { // one that stands still already is not woken by it
				k.paused = until
			}
		}
	case ServerCrash, ServerStall, ErrorBefore, UnknownCommit, Serialization:
		w.servers[f.target].armed = append(w.servers[f.target].armed, f)
	case TwoLeaders:
		if f.target != w.leader {
			w.strike(f, nil, fmt.Sprintf("server %d leads too for %v", f.target, f.for_))
			w.second = f.target
			w.lead()
			w.after(f.for_, func() { w.second = -1; w.lead() })
		}
	case RequestLost, AnswerLost, Duplicate, Delay:
		w.net[f.target] = append(w.net[f.target], f)
	case ClockStep:
		s := w.servers[f.target]
		w.strike(f, nil, fmt.Sprintf("the clock of server %d is off by %v", s.n, f.for_))
		s.offset = f.for_
	case WallStep:
		w.strike(f, nil, fmt.Sprintf("the clock of client %d is off by %v", f.target, f.for_))
		w.clients[f.target].wall = f.for_
	case LostWakeUp:
		w.strike(f, nil, fmt.Sprintf("nobody is told of new work for %v", f.for_))
		w.deafTill = w.clock.Add(f.for_)
	case Poison:
		w.poison[f.target] = f
	}
}

// request is what an actor asks of a server.
type request struct {
	from    int // whose network faults strike it
	what    string
	timeout time.Duration
	run     func(s *server) any // carries it out and returns the answer
	done    func(answer any)    // is called once; nil is no answer
}

// send carries a request to a server and its answer back.
func (w *world) send(r request) {
	over := false
	finish := func(answer any) {
		if !over {
			over = true
			r.done(answer)
		}
	}
	var f *fault
	if list := w.net[r.from]; len(list) > 0 && !w.healed {
		f = list[0]
		w.net[r.from] = list[1:]
	}
	latency := w.rand.between(time.Millisecond, 15*time.Millisecond)
	if w.rand.often(0.02) {
		latency = w.rand.between(50*time.Millisecond, 900*time.Millisecond)
	}
	lost := false
	if f != nil {
		switch f.kind {
		case Delay:
			w.strike(f, nil, fmt.Sprintf("%s is late by %v", r.what, f.for_))
			latency += f.for_
		case RequestLost:
			w.strike(f, nil, r.what+" is lost")
			w.after(r.timeout, func() { finish(nil) })
			return
		case AnswerLost:
			w.strike(f, nil, "the answer of "+r.what+" is lost")
			lost = true
		case Duplicate:
			w.strike(f, nil, fmt.Sprintf("%s arrives again after %v", r.what, f.for_))
			w.after(latency+f.for_, func() { w.deliver(r, func(any) {}) })
		}
	}
	w.after(latency, func() {
		w.deliver(r, func(answer any) {
			if !lost {
				w.after(w.rand.between(time.Millisecond, 15*time.Millisecond), func() { finish(answer) })
			}
		})
	})
	w.after(r.timeout, func() { finish(nil) })
}

// deliver carries a request out on a server that is up.
func (w *world) deliver(r request, answer func(any)) {
	var up []*server
	for _, s := range w.servers {
		if !s.down {
			up = append(up, s)
		}
	}
	if len(up) == 0 {
		answer(nil)
		return
	}
	s := up[w.rand.IntN(len(up))]
	if s.busy {
		w.after(20*time.Millisecond, func() { w.deliver(r, answer) })
		return
	}
	life := s.life
	a := r.run(s)
	if s.life == life && !s.down { // else whoever waits hears nothing
		answer(a)
	}
}

// Options of a run.
type Options struct {
	// Trace keeps the trace's lines.
	Trace bool
	// Without are the faults and actions, by their place in the plan, that are
	// left out: a failure is made smaller so.
	WithoutFaults, WithoutActions map[int]bool
}

// Result is what became of a seed.
type Result struct {
	Seed      uint64
	Violation *Violation
	Stats     Stats
	Hash      string
	Trace     []string
	Faults    []string // of the plan that were not left out
	Actions   []string
}

// run runs the world of a seed in a database.
func run(ctx context.Context, db *database, seed uint64, o Options) (*Result, error) {
	if err := db.clear(ctx); err != nil {
		return nil, err
	}
	p := newPlan(seed)
	w := &world{plan: p, db: db, rand: newSource(seed, 10), clock: epoch, net: map[int][]*fault{}, second: -1, poison: map[int]*fault{}, hash: sha256.New(), keep: o.Trace,
		struck: map[Kind]bool{}, stats: newStats()}
	w.ghost = newGhost(w)
	r := &Result{Seed: seed}
	w.tracef("seed %#x: %d servers, %d workers, lease %v, grace %v, faults %v", seed, p.servers, p.workers, p.lease, p.grace, p.kinds)
	for i := range p.servers {
		w.servers = append(w.servers, &server{w: w, n: i, offset: w.rand.between(-3*time.Millisecond, 3*time.Millisecond)})
	}
	for i := range p.workers {
		w.workers = append(w.workers, newWorker(w, i))
	}
	for i := range p.clients {
		w.clients = append(w.clients, &client{w: w, n: i})
	}
	for i := range p.faults {
		if !o.WithoutFaults[i] {
			f := &p.faults[i]
			r.Faults = append(r.Faults, f.String())
			w.after(f.at, func() { w.arm(f) })
		}
	}
	for _, s := range w.servers {
		s.start()
	}
	w.lead()
	for _, k := range w.workers {
		w.after(w.rand.between(0, time.Second), k.start)
	}
	for i := range p.actions {
		if !o.WithoutActions[i] {
			a := &p.actions[i]
			r.Actions = append(r.Actions, a.String())
			w.after(a.at, func() { w.clients[a.client].begin(a) })
		}
	}
	if len(o.WithoutFaults) == 0 { // else it is to be seen what the others do alone
		w.after(p.chaos*9/10, func() { r.Faults = append(r.Faults, w.enough()...) })
	}
	w.after(p.chaos, w.heal)
	for w.step() && !w.over() {
	}
	if w.stop == nil {
		w.servers[0].reconcile()
		w.finish(ctx)
	}
	w.stats.Seeds = 1
	w.stats.VirtualHours = w.since().Hours()
	r.Violation, r.Stats, r.Trace = w.stop, w.stats, w.lines
	r.Hash = hex.EncodeToString(w.hash.Sum(nil)[:16])
	return r, nil
}

// enough lets faults strike that need nobody to do something, where few have struck when
// their time is almost over: what was drawn may have met nothing. It returns which.
func (w *world) enough() (list []string) {
	alive := max(0, slices.IndexFunc(w.workers, func(k *worker) bool { return k.alive }))
	for _, k := range []Kind{LostWakeUp, WorkerPause, WorkerCrash} {
		if len(w.struck) < leastKinds && !w.struck[k] {
			f := &fault{kind: k, at: w.since(), target: alive, for_: w.plan.lease}
			list = append(list, f.String())
			w.arm(f)
		}
	}
	return list
}

// heal ends all faults: from here on everything must come to its end.
func (w *world) heal() {
	w.tracef("HEAL")
	w.healed, w.deadline = true, w.clock.Add(patience)
	w.net, w.deafTill, w.second = map[int][]*fault{}, time.Time{}, -1
	for _, s := range w.servers {
		s.armed = nil
	}
	w.lead()
	w.after(w.plan.lease, w.resumeAll)
	w.after(time.Second, w.watch)
}

// patience is how much virtual time a healed world may take beyond the last
// start time that anything asked for.
const patience = 20 * time.Minute

// watch looks now and then whether all is done, and skips time in which nothing is due.
func (w *world) watch() {
	left, due := w.ghost.left()
	switch {
	case left == 0:
		return
	case w.clock.After(w.deadline):
		w.violate("I01", "%d jobs have not ended %v after the last fault: %s", left, w.since()-w.plan.chaos, w.ghost.firstLeft())
		return
	case !due.IsZero() && due.After(w.clock.Add(time.Minute)) && w.ghost.onlyDelayed():
		w.tracef("SKIP to %v", due.Sub(epoch))
		w.clock = due.Add(-time.Second) // leases run out in between
		w.deadline = due.Add(patience)
	}
	w.after(2*time.Second, w.watch)
}

func (w *world) over() bool {
	if !w.healed || w.stop != nil || w.depth > 0 {
		return w.stop != nil
	}
	for _, c := range w.clients {
		if c.open > 0 {
			return false
		}
	}
	if slices.ContainsFunc(w.servers, func(s *server) bool { return s.down }) {
		return false // what follows asks one of them
	}
	left, _ := w.ghost.left()
	return left == 0 && w.stats.Operations >= leastOperations // a small world goes on a while
}
