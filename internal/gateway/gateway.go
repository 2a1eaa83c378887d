// Package gateway is the engine's front door for many callers at once. Single
// submits and settles that arrive together share a transaction; acquires and
// readers of events wait here, without a transaction, until there is something
// for them.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/protocol"
)

const (
	// maxBatch bounds how many jobs or outcomes share a transaction.
	maxBatch = 500
	// maxWaiting bounds the calls that wait for a batch; more are refused as overload.
	maxWaiting = 20_000
	// submitters is how many batches of submits run at once, each of another caller;
	// settlers, how many batches of settles.
	submitters = 4
	settlers   = 2
	// writeLimit bounds a batch or an acquire, readLimit a look at a job.
	writeLimit = 30 * time.Second
	readLimit  = 10 * time.Second
	// contendedFor is how long a submit waits for an earlier one with its
	// idempotency key before it is refused.
	contendedFor = 5 * time.Second
	// pollEvery is how often those who wait look without a sign.
	pollEvery = time.Second
	// maxWait bounds the wait of an acquire.
	maxWait = 20 * time.Second
	// feedPage is how many events a feed reads at once.
	feedPage = 500
	// announceGap is the least time between two messages to other servers, lookGap
	// that between two looks of everybody because of one.
	announceGap = 5 * time.Millisecond
	lookGap     = 200 * time.Millisecond
	// knownSessions bounds the memory of which session serves which queues.
	knownSessions = 10_000
)

// Gateway serves many callers at once. Its methods may be called concurrently,
// and only while Run runs; before and after they refuse as overload.
type Gateway struct {
	engine  *engine.Engine
	submits *batcher[callerKey, submission, drover.Submitted]
	settles *batcher[struct{}, engine.Settlement, engine.SettleResult]
	asks    *batcher[struct{}, engine.LockAsk, engine.LockAnswer]
	queues  queueHub
	jobs    jobHub
	locks   lockHub

	serving  chan struct{} // closed when Run begins to serve
	stopping chan struct{} // closed when Run's context ends
	mu       sync.Mutex
	started  bool                       // of mu
	sessions map[drover.SessionID]known // of mu: the queues of sessions seen here

	name        string        // of this server among others, for the news of jobs
	pollEvery   time.Duration // how often those who wait look without a sign
	unannounced unannounced   // of mu
	toAnnounce  chan struct{} // holds one sign that there is something
	looked      time.Time     // of mu: when everybody looked last because of another server
}

// unannounced is what other servers have not been told of.
type unannounced struct {
	queues map[string]struct{}
	jobs   map[drover.JobID]struct{} // at most one more than a message names
	locks  bool                      // handlers have got what they waited for
}

// callerKey says whose submits may share a transaction.
type callerKey struct {
	tenant int32
	actor  string
	system bool
}

type submission struct {
	caller engine.Caller
	job    drover.NewJob
}

// New makes the gateway of an engine and sets the engine's hooks.
func New(e *engine.Engine) *Gateway {
	g := &Gateway{engine: e, serving: make(chan struct{}), stopping: make(chan struct{}), sessions: map[drover.SessionID]known{},
		name: strconv.FormatUint(rand.Uint64(), 36), pollEvery: pollEvery, toAnnounce: make(chan struct{}, 1),
		unannounced: unannounced{queues: map[string]struct{}{}, jobs: map[drover.JobID]struct{}{}}}
	g.submits = newBatcher(maxBatch, maxWaiting, 1, writeLimit,
		func(s submission) callerKey { return callerKey{s.caller.Tenant, s.caller.Actor, s.caller.System} },
		func(submission) int { return 1 },
		func(s submission) bool { return !s.job.ID.IsZero() || s.job.IdempotencyKey != "" },
		g.submitBatch)
	g.settles = newBatcher(maxBatch, maxWaiting, settlers, writeLimit,
		func(engine.Settlement) struct{} { return struct{}{} },
		func(s engine.Settlement) int { return max(1, len(s.Outcomes)) },
		func(engine.Settlement) bool { return true }, // a repeat is answered as the first was
		g.settleBatch)
	g.locks = lockHub{waiting: map[*lockWaiter]struct{}{}, sign: make(chan struct{}, 1)}
	g.asks = newBatcher(maxBatch, maxWaiting, 1, writeLimit,
		func(engine.LockAsk) struct{} { return struct{}{} },
		func(engine.LockAsk) int { return 1 },
		func(engine.LockAsk) bool { return true }, // a repeat has the number of the first
		func(ctx context.Context, batch []engine.LockAsk) ([]engine.LockAnswer, error) {
			return e.Locks(ctx, batch)
		})
	e.OnQueued = g.queued
	e.OnEvents = g.stirred
	e.OnGranted = g.granted
	e.OnFreed = g.locks.woken
	return g
}

// Run serves until ctx ends: from then on calls are refused, those that wait
// are sent away, and what had been accepted is carried out before Run returns.
// It may be called once.
func (g *Gateway) Run(ctx context.Context) error {
	g.mu.Lock()
	if g.started {
		g.mu.Unlock()
		return errors.New("run gateway: it was run before")
	}
	g.started = true
	g.mu.Unlock()
	g.submits.Open()
	g.settles.Open()
	g.asks.Open()
	close(g.serving)

	var wg sync.WaitGroup
	wg.Go(func() { g.submits.Run(ctx, submitters) })
	wg.Go(func() { g.settles.Run(ctx, settlers) })
	wg.Go(func() { g.asks.Run(ctx, 1) })
	wg.Go(func() { g.lookLocks(ctx) })
	wg.Go(func() { g.poll(ctx) })
	wg.Go(func() { g.announce(ctx) })
	var heard error
	wg.Go(func() { heard = g.engine.Hear(ctx, g.heard) })
	<-ctx.Done()
	close(g.stopping)
	wg.Wait()
	// What was carried out last is told too, or it waits until others look.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	g.tell(last)
	if heard != nil && !errors.Is(heard, context.Canceled) {
		return fmt.Errorf("hear other servers: %w", heard)
	}
	return nil
}

// queued passes on which queues have new tasks: here at once, and to other
// servers by the announcer.
func (g *Gateway) queued(queues []string) {
	g.Woken(queues)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, q := range queues {
		g.unannounced.queues[q] = struct{}{}
	}
	g.announceSoon()
}

// stirred passes on which jobs have new events, as queued does of queues.
func (g *Gateway) stirred(jobs []drover.JobID) {
	g.Stirred(jobs)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, id := range jobs {
		if len(g.unannounced.jobs) > engine.MaxNewsJobs {
			break // it will be said that there are many
		}
		g.unannounced.jobs[id] = struct{}{}
	}
	g.announceSoon()
}

func (g *Gateway) announceSoon() {
	select {
	case g.toAnnounce <- struct{}{}:
	default:
	}
}

// heard takes in what servers announce. What this one says of jobs it has told
// those who wait here already.
func (g *Gateway) heard(n engine.News) {
	own := n.From == g.name
	if !own {
		g.engine.Recheck(n.Queues)
	}
	g.Woken(n.Queues)
	if own {
		return
	}
	if n.Locks {
		g.locks.woken()
	}
	g.Stirred(n.Jobs)
	if !n.ManyJobs {
		return
	}
	g.mu.Lock()
	soon := time.Since(g.looked) < lookGap
	if !soon {
		g.looked = time.Now()
	}
	g.mu.Unlock()
	if !soon {
		g.jobs.all()
	}
}

// announce tells other servers, one message for all that came together: every
// one takes a lock of the whole database.
func (g *Gateway) announce(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.toAnnounce:
		}
		g.tell(ctx)
		if g.pause(ctx, announceGap, nil) != nil {
			return
		}
	}
}

// tell tells other servers what is new.
func (g *Gateway) tell(ctx context.Context) {
	g.mu.Lock()
	n := engine.News{Queues: slices.Collect(maps.Keys(g.unannounced.queues)), Jobs: slices.Collect(maps.Keys(g.unannounced.jobs)), Locks: g.unannounced.locks, From: g.name}
	g.unannounced.locks = false
	clear(g.unannounced.queues)
	clear(g.unannounced.jobs)
	g.mu.Unlock()
	if len(n.Queues)+len(n.Jobs) > 0 || n.Locks {
		_ = g.engine.Announce(ctx, n) // one that is lost costs a second of waiting elsewhere
	}
}

// poll lets one acquire of every line look each second, so that no work waits
// for a sign that was lost.
func (g *Gateway) poll(ctx context.Context) {
	t := time.NewTicker(g.pollEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			g.queues.all()
		}
	}
}

// Started waits until Run serves.
func (g *Gateway) Started(ctx context.Context) error {
	select {
	case <-g.serving:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (g *Gateway) running() bool {
	select {
	case <-g.stopping:
		return false
	default:
	}
	select {
	case <-g.serving:
		return true
	default:
		return false
	}
}

// Woken tells the gateway that tasks became claimable in the queues. Run hears
// it from other servers too; whoever else knows may call it too. A sign too many
// costs a look, one that is missing a second.
func (g *Gateway) Woken(queues []string) { g.queues.woken(queues, 1) }

// Stirred tells the gateway that the jobs have new events, as Woken does of queues.
func (g *Gateway) Stirred(jobs []drover.JobID) { g.jobs.stirred(jobs) }

// Submit takes a job on. It shares a transaction with other submits of the same
// caller. When ctx ends first the outcome is unknown, unless the error says
// otherwise: repeat it with the same key or job id.
//
// A submit whose idempotency key another one holds at the moment waits for that
// one, outside the batch, and gets its job; after 5 s it is refused with
// drover.ErrIdempotencyInUse.
func (g *Gateway) Submit(ctx context.Context, c engine.Caller, j drover.NewJob) (drover.Submitted, error) {
	out, err := uncontended(ctx, func() (drover.Submitted, bool, error) {
		s, err := g.submits.Do(ctx, submission{c, j})
		return s, s.Err != nil && s.Err.Code == drover.CodeIdempotencyInUse, err
	})
	if err == nil && out.Err != nil {
		err = out.Err
	}
	return out, err
}

func (g *Gateway) submitBatch(ctx context.Context, batch []submission) ([]drover.Submitted, error) {
	jobs := make([]drover.NewJob, len(batch))
	for i, s := range batch {
		jobs[i] = s.job
	}
	return g.engine.Submit(ctx, batch[0].caller, jobs)
}

// SubmitMany takes many jobs on, with an answer for each in its place. Jobs with a
// contended idempotency key are tried again apart, as Submit does.
func (g *Gateway) SubmitMany(ctx context.Context, c engine.Caller, jobs []drover.NewJob) ([]drover.Submitted, error) {
	if !g.running() {
		return nil, errNotRunning()
	}
	out := make([]drover.Submitted, len(jobs))
	left := make([]int, len(jobs))
	for i := range left {
		left[i] = i
	}
	_, err := uncontended(ctx, func() (struct{}, bool, error) {
		some := jobs
		if len(left) < len(jobs) {
			some = make([]drover.NewJob, len(left))
			for i, at := range left {
				some[i] = jobs[at]
			}
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*writeLimit)
		defer cancel()
		got, err := g.submitParts(ctx, c, some)
		if err != nil {
			return struct{}{}, false, err
		}
		var again []int
		for i, s := range got {
			out[left[i]] = s
			if s.Err != nil && s.Err.Code == drover.CodeIdempotencyInUse {
				again = append(again, left[i])
			}
		}
		left = again
		return struct{}{}, len(again) > 0, nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// submitParts stores the parts of a request beside each other. When some could not be
// stored, the answers of their jobs say so; the error is for all of them.
func (g *Gateway) submitParts(ctx context.Context, c engine.Caller, jobs []drover.NewJob) ([]drover.Submitted, error) {
	parts := g.engine.Parts(jobs)
	if len(parts) == 1 {
		return g.engine.SubmitPart(ctx, c, parts[0])
	}
	answers, errs := make([][]drover.Submitted, len(parts)), make([]error, len(parts))
	var wg sync.WaitGroup
	for i, part := range parts {
		wg.Go(func() {
			defer func() {
				if r := recover(); r != nil { // fails its part, not the process
					errs[i] = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
				}
			}()
			answers[i], errs[i] = g.engine.SubmitPart(ctx, c, part)
		})
	}
	wg.Wait()
	if !slices.Contains(errs, nil) {
		return nil, errs[0]
	}
	out := make([]drover.Submitted, 0, len(jobs))
	for i, err := range errs {
		if err != nil {
			n := len(parts[i].Jobs)
			answers[i] = slices.Repeat([]drover.Submitted{{Err: g.engine.Unstored(ctx, n, err)}}, n)
		}
		out = append(out, answers[i]...)
	}
	return out, nil
}

// uncontended repeats try, with growing pauses, while it says that its key is
// held by another, for five seconds at most.
func uncontended[T any](ctx context.Context, try func() (out T, contended bool, err error)) (T, error) {
	until := time.Now().Add(contendedFor)
	for gap := 10 * time.Millisecond; ; gap = min(2*gap, 500*time.Millisecond) {
		out, contended, err := try()
		rest := time.Until(until)
		if err != nil || !contended || rest <= 0 {
			return out, err
		}
		t := time.NewTimer(min(rest, gap/2+rand.N(gap)))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return out, context.Cause(ctx)
		}
	}
}

// Settle records what a session reports, and takes leases in the same
// transaction where it asks for some; that acquire never waits. It shares the
// transaction with the settles of other sessions.
func (g *Gateway) Settle(ctx context.Context, s engine.Settlement) ([]drover.Settled, []drover.Lease, error) {
	if s.Acquire != nil {
		a := *s.Acquire
		a.Wait = 0
		s.Acquire = &a
	}
	signs := g.queues.signs.Load()
	r, err := g.settles.Do(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	if s.Acquire != nil && len(s.Acquire.Queues) == 0 && r.Err == nil {
		g.took(s.Session, len(r.Leases) < s.Acquire.Max, signs)
	}
	return r.Settled, r.Leases, r.Err
}

// took remembers of a session's last claim if it came up short, and how many signs
// of work there had been before it: until there is another, nothing is to be found.
func (g *Gateway) took(id drover.SessionID, short bool, signs uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s, ok := g.sessions[id]; ok {
		if s.emptyAt = 0; short {
			s.emptyAt = signs + 1
		}
		g.sessions[id] = s
	}
}

// Answer words what Settle returned as workers get to see it. trace goes into
// the refusals; it may be empty.
func Answer(settled []drover.Settled, leases []drover.Lease, trace string) protocol.SettleResponse {
	out := protocol.SettleResponse{Results: make([]protocol.SettleResult, len(settled)), Leases: leases}
	for i, s := range settled {
		out.Results[i] = protocol.SettleResult{TaskID: s.TaskID, Status: s.Status}
		if s.Err != nil {
			out.Results[i].Error = protocol.FromError(s.Err)
			out.Results[i].Error.TraceID = trace
		}
	}
	return out
}

// settleBatch settles a batch. Where a settlement failed, rather than being
// refused, the transaction did: then none of the batch counts.
func (g *Gateway) settleBatch(ctx context.Context, batch []engine.Settlement) ([]engine.SettleResult, error) {
	out := g.engine.Settle(ctx, batch)
	for _, r := range out {
		if r.Err != nil && drover.CodeOf(r.Err) == "" {
			return nil, r.Err
		}
	}
	return out, nil
}

// Acquire takes leases, waiting up to a.Wait, at most 20 s, for the first one.
// None is not an error.
func (g *Gateway) Acquire(ctx context.Context, c engine.Caller, a drover.Acquire) ([]drover.Lease, error) {
	if !g.running() {
		return nil, errNotRunning()
	}
	wait := min(a.Wait.Std(), maxWait)
	a.Wait = 0
	if wait <= 0 {
		return g.acquire(ctx, c, a)
	}
	s, err := g.sessionOf(ctx, c, a.Session)
	if err != nil {
		return nil, err
	}
	as := scope{c.Tenant, s.kinds}
	if c.System {
		as.tenant = everyTenant
	}
	queues := a.Queues
	if len(queues) == 0 {
		queues = s.queues
	}
	w := g.queues.join(queues, as)
	defer g.queues.leave(w)
	look := len(a.Queues) > 0 || s.emptyAt != g.queues.signs.Load()+1
	for until := time.Now().Add(wait); ; look = true {
		if look {
			leases, err := g.acquire(ctx, c, a)
			if err != nil || len(leases) > 0 {
				return leases, err
			}
		}
		rest := time.Until(until)
		if rest <= 0 || !g.running() {
			return nil, nil
		}
		t := time.NewTimer(rest)
		select {
		case <-w.wake:
		case <-t.C:
			return nil, nil
		case <-g.stopping:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		t.Stop()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
}

// acquire tries once, beyond the caller's end: an answer that is lost is taken
// back with the next renewal.
func (g *Gateway) acquire(ctx context.Context, c engine.Caller, a drover.Acquire) ([]drover.Lease, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeLimit)
	defer cancel()
	leases, err := g.engine.Acquire(ctx, c, a)
	if len(leases) > 0 {
		g.spread(leases)
	}
	return leases, err
}

// spread passes a find on: where there was work for one, two more may look.
func (g *Gateway) spread(found []drover.Lease) {
	var queues []string
	for _, l := range found {
		if !slices.Contains(queues, l.Queue) {
			queues = append(queues, l.Queue)
		}
	}
	g.queues.woken(queues, 2)
}

// OpenSession opens a worker's session.
func (g *Gateway) OpenSession(ctx context.Context, c engine.Caller, n drover.NewSession) (drover.Session, error) {
	s, err := g.engine.OpenSession(ctx, c, n)
	if err == nil {
		g.remember(s)
	}
	return s, err
}

// CloseSession ends a worker's session and gives back what it holds.
func (g *Gateway) CloseSession(ctx context.Context, c engine.Caller, id drover.SessionID) error {
	err := g.engine.CloseSession(ctx, c, id)
	if err == nil {
		g.mu.Lock()
		delete(g.sessions, id)
		g.mu.Unlock()
	}
	return err
}

func (g *Gateway) remember(sessions ...drover.Session) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.sessions)+len(sessions) > knownSessions {
		clear(g.sessions)
	}
	for _, s := range sessions {
		g.sessions[s.ID] = known{queues: s.Queues, kinds: strings.Join(slices.Sorted(slices.Values(s.Kinds)), "\n")}
	}
}

// known is what waiting must know of a session.
type known struct {
	queues  []string
	kinds   string // as in scope
	emptyAt uint64 // its last claim came up short after so many signs of work, less one; 0 is not
}

// sessionOf returns what is known of a session; the engine is asked when it was
// opened on another server.
func (g *Gateway) sessionOf(ctx context.Context, c engine.Caller, id drover.SessionID) (known, error) {
	find := func() (known, bool) {
		g.mu.Lock()
		defer g.mu.Unlock()
		s, ok := g.sessions[id]
		return s, ok
	}
	if s, ok := find(); ok {
		return s, nil
	}
	sessions, err := g.engine.Sessions(ctx, c)
	if err != nil {
		return known{}, err
	}
	g.remember(sessions...)
	s, _ := find() // one that does not exist waits nowhere; the engine will refuse it
	return s, nil
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
