package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

// worker is a process that takes tasks and runs them, as package worker does:
// numbered acquires, renewals that name what it holds, reports repeated until
// they are answered. Some do not look at their own clock and go on as zombies.
type worker struct {
	w      *world
	n      int
	life   int
	alive  bool
	paused time.Time // it stands still until then
	rude   bool      // it reports after its lease has run out by its own clock
	drift  float64   // of its monotonic clock
	caller engine.Caller
	slots  int
	rng    source

	session  drover.SessionID
	until    time.Time // of its lease, by its own clock
	number   int64     // of its acquires
	acquired int64
	asking   bool
	sending  bool
	closing  bool
	idle     time.Duration
	next     int64 // the poll that counts
	runs     []*attempt
	outbox   []*report
	inFlight []*report
}

// attempt is a handler that runs.
type attempt struct {
	lease     drover.Lease
	session   drover.SessionID
	cancelled bool
	over      bool
	begun     time.Time // when its worker got the lease
	beats     int       // heartbeats it has sent
	staged    []drover.ArtifactID
}

// report is an outcome on its way.
type report struct {
	session drover.SessionID
	o       drover.Outcome
}

func newWorker(w *world, n int) *worker {
	k := &worker{w: w, n: n, rng: newSource(w.plan.seed, 200, uint64(n))}
	k.rude, k.drift, k.slots = k.rng.often(0.4), 1+(k.rng.Float64()-0.5)/50, 1+k.rng.IntN(6)
	k.caller = w.db.callers[2]
	if n > 1 && k.rng.often(0.3) { // two serve every tenant, so that all work has somebody
		k.caller = w.db.callers[k.rng.IntN(2)]
	}
	return k
}

// later runs f in this life of the worker; while it stands still nothing runs.
func (k *worker) later(d time.Duration, f func()) {
	life := k.life
	var g func()
	g = func() {
		switch {
		case k.life != life || !k.alive:
		case k.paused.After(k.w.clock):
			k.w.after(k.paused.Sub(k.w.clock), g)
		default:
			f()
		}
	}
	k.w.after(d, g)
}

// ask sends a request; what comes of it waits while the worker stands still.
func (k *worker) ask(what string, run func(s *server) any, done func(answer any)) {
	k.w.send(request{from: k.n, what: fmt.Sprintf("%s of worker %d", what, k.n), timeout: k.w.plan.lease / 3, run: run,
		done: func(a any) { k.later(0, func() { done(a) }) }})
}

func (k *worker) call(s *server, kind string) *call {
	return &call{kind: kind, s: s, who: fmt.Sprintf("worker %d", k.n), caller: k.caller, session: int64(k.session)}
}

func (k *worker) start() {
	if k.alive {
		return
	}
	k.life++
	k.alive, k.paused = true, time.Time{}
	k.open()
}

func (k *worker) crash(pause time.Duration) {
	k.alive = false
	k.life++
	k.session, k.runs, k.outbox, k.inFlight, k.asking, k.sending = 0, nil, nil, nil, false, false
	k.w.after(pause, k.start)
}

// open opens a session, until it has one.
func (k *worker) open() {
	if k.session != 0 {
		return
	}
	sent := k.w.clock
	type opened struct {
		s   drover.Session
		err error
	}
	k.ask("open", func(s *server) any {
		c := k.call(s, "open")
		var o opened
		k.w.do(c, func(ctx context.Context) error {
			o.s, o.err = s.e.OpenSession(ctx, k.caller, drover.NewSession{Worker: fmt.Sprintf("w%d", k.n), Queues: queues, Slots: k.slots})
			return o.err
		})
		return o
	}, func(a any) {
		o, ok := a.(opened)
		if !ok || o.err != nil {
			k.later(k.rng.between(100*time.Millisecond, time.Second), k.open)
			return
		}
		if k.session != 0 {
			return
		}
		k.session, k.number, k.acquired, k.asking, k.sending, k.closing = o.s.ID, 0, 0, false, false, false
		k.w.tracef("worker %d has session %d", k.n, k.session)
		k.extend(sent)
		k.idle = 100 * time.Millisecond
		k.renewLater(k.session, k.w.plan.lease/3)
		k.poll()
		k.flush()
		if k.rng.often(0.1) {
			id := k.session
			k.later(k.rng.between(k.w.plan.lease, 6*k.w.plan.lease), func() { k.close(id) })
		}
	})
}

// extend counts the lease down from before the request was sent.
func (k *worker) extend(sent time.Time) {
	margin := k.w.plan.lease / 10
	k.until = sent.Add(time.Duration(float64(k.w.plan.lease-margin) * k.drift))
	id, until := k.session, k.until
	k.later(until.Sub(k.w.clock), func() {
		if k.session == id && k.until.Equal(until) {
			k.lose("not renewed in time")
		}
	})
}

// lose gives a session up. A rude worker's handlers go on all the same.
func (k *worker) lose(why string) {
	k.w.tracef("worker %d gives session %d up: %s", k.n, k.session, why)
	if !k.rude {
		for _, r := range k.runs {
			r.over = true
		}
		k.runs = nil
	}
	k.session = 0
	k.asking = false
	k.open()
}

func (k *worker) renewLater(id drover.SessionID, d time.Duration) {
	k.later(time.Duration(float64(d)*(0.85+0.15*k.rng.Float64())), func() { k.renew(id) })
}

// held names every lease that must be kept.
func (k *worker) held(id drover.SessionID) (list []drover.Held) {
	for _, r := range k.runs {
		if r.session == id {
			list = append(list, drover.Held{TaskID: r.lease.TaskID, LeaseVersion: r.lease.LeaseVersion})
		}
	}
	for _, box := range [][]*report{k.inFlight, k.outbox} {
		for _, r := range box {
			if r.session == id {
				list = append(list, drover.Held{TaskID: r.o.TaskID, LeaseVersion: r.o.LeaseVersion})
			}
		}
	}
	return list
}

type renewCall struct {
	renewal drover.Renewal
	answer  drover.Renewed
	err     error
	stops   map[drover.Held]bool // held, and to be cancelled, when it was carried out
	keeps   map[drover.Held]bool // held after it
}

func (k *worker) renew(id drover.SessionID) {
	if k.session != id {
		return
	}
	sent := k.w.clock
	r := drover.Renewal{Held: k.held(id), Acquired: k.acquired, Draining: k.closing}
	k.ask("renew", func(s *server) any {
		c := k.call(s, "renew")
		c.session = int64(id)
		c.renew = &renewCall{renewal: r}
		k.w.do(c, func(ctx context.Context) error {
			c.renew.answer, c.renew.err = s.e.Renew(ctx, k.caller, id, r)
			return c.renew.err
		})
		return c.renew
	}, func(a any) {
		got, ok := a.(*renewCall)
		if k.session != id {
			return
		}
		switch {
		case !ok || got.err != nil && drover.CodeOf(got.err) != drover.CodeLeaseLost && drover.CodeOf(got.err) != drover.CodeNotFound:
			k.renewLater(id, min(k.w.plan.lease/3, time.Second))
			return
		case got.err != nil:
			k.lose(got.err.Error())
			return
		}
		k.extend(sent)
		for _, h := range got.answer.Lost {
			for _, r := range k.runs {
				if r.lease.TaskID == h.TaskID && r.lease.LeaseVersion == h.LeaseVersion && r.session == id {
					r.over = true
				}
			}
		}
		k.tidy()
		for _, h := range got.answer.Cancelled {
			for _, r := range k.runs {
				if r.lease.TaskID == h.TaskID && r.lease.LeaseVersion == h.LeaseVersion && !r.cancelled {
					r.cancelled = true
					k.clean(r)
				}
			}
		}
		k.renewLater(id, k.w.plan.lease/3)
	})
}

// tidy forgets the attempts that are over.
func (k *worker) tidy() {
	var list []*attempt
	for _, r := range k.runs {
		if !r.over {
			list = append(list, r)
		}
	}
	k.runs = list
}

// clean is what a handler does that is told to stop: it may take too long, or not listen.
func (k *worker) clean(r *attempt) {
	switch p := k.rng.Float64(); {
	case p < 0.15: // does not listen
	case p < 0.3:
		k.later(k.rng.between(k.w.plan.grace, 2*k.w.plan.grace), func() { k.end(r, drover.Outcome{Status: drover.OutcomeCancelled}) })
	default:
		k.later(k.rng.between(0, k.w.plan.grace/2), func() { k.end(r, drover.Outcome{Status: drover.OutcomeCancelled}) })
	}
}

type acquireCall struct {
	a      drover.Acquire
	leases []drover.Lease
	err    error
}

// want numbers an acquire for the slots that are free.
func (k *worker) want() *drover.Acquire {
	free := k.slots - len(k.runs)
	if k.session == 0 || k.asking || k.closing || free <= 0 {
		return nil
	}
	k.number++
	k.asking = true
	return &drover.Acquire{Session: k.session, Max: free, Number: k.number}
}

// poll asks for tasks. It comes again by itself: a wake-up only makes it sooner.
func (k *worker) poll() {
	if !k.alive || k.paused.After(k.w.clock) {
		return
	}
	k.next++
	a := k.want()
	if a == nil {
		if k.session != 0 {
			k.pollLater(time.Second)
		}
		return
	}
	k.ask("acquire", func(s *server) any {
		c := k.call(s, "acquire")
		c.session = int64(a.Session)
		c.acquire = &acquireCall{a: *a}
		k.w.do(c, func(ctx context.Context) error {
			c.acquire.leases, c.acquire.err = s.e.Acquire(ctx, k.caller, *a)
			return c.acquire.err
		})
		return c.acquire
	}, func(got any) {
		c, ok := got.(*acquireCall)
		n := 0
		if ok && c.err == nil {
			n = len(c.leases)
			k.took(a, c.leases)
		} else {
			k.took(a, nil)
		}
		if k.session != a.Session {
			return
		}
		k.rest(n)
	})
}

// rest waits for the next poll, longer while there is nothing to do.
func (k *worker) rest(got int) {
	if got > 0 {
		k.idle = 400 * time.Millisecond
	} else {
		k.idle = min(k.idle*3, 6*time.Second)
	}
	k.pollLater(k.idle)
}

func (k *worker) pollLater(d time.Duration) {
	n := k.next
	k.later(time.Duration(float64(d)*(0.5+k.rng.Float64())), func() {
		if k.next == n {
			k.poll()
		}
	})
}

// took ends an acquire and starts what it brought.
func (k *worker) took(a *drover.Acquire, leases []drover.Lease) {
	if k.session != a.Session {
		return // of a session that is given up: its leases run out
	}
	k.asking = false
	k.acquired = a.Number // of a lost answer too
	for _, l := range leases {
		r := &attempt{begun: k.w.clock, lease: l, session: a.Session}
		if k.closing {
			k.put(r, drover.Outcome{Status: drover.OutcomeReleased})
			continue
		}
		k.run(r)
	}
}

// run starts a handler.
func (k *worker) run(r *attempt) {
	w := k.w
	k.runs = append(k.runs, r)
	t := w.ghost.tasks[r.lease.TaskID]
	if t == nil {
		w.violate("I24", "worker %d was given task %s, which does not exist", k.n, r.lease.TaskID)
		return
	}
	w.ghost.enters(k, r, t)
	draw := func(n uint64) float64 {
		return chance(w.plan.seed, uint64(t.job.tag), uint64(t.node), uint64(t.idx+1), uint64(r.lease.Generation), uint64(r.lease.LeaseVersion), n)
	}
	if f := w.poison[t.job.tag]; f != nil && t.node == 0 && t.idx == 0 {
		k.later(100*time.Millisecond, func() {
			if !r.over {
				w.strike(f, nil, fmt.Sprintf("%s kills worker %d", t, k.n))
				k.crash(k.rng.between(0, time.Second))
			}
		})
		return
	}
	d := time.Duration(draw(1) * float64(1500*time.Millisecond))
	if draw(2) < 0.1 {
		d = time.Duration(draw(1) * 2 * float64(w.plan.lease))
	}
	if every := r.lease.Heartbeat.Std(); every > 0 {
		silent := 1000
		if draw(5) < 0.2 {
			silent = int(draw(6) * 3)
			d += time.Duration(draw(9) * 2 * float64(every))
		}
		k.beatLater(r, every, silent)
	}
	k.useLocks(r, d, draw)
	if draw(7) < 0.15 {
		k.later(d/2, func() { k.stage(r, int(draw(8)*3)) })
	}
	k.later(d, func() {
		o := outcome(w.plan.seed, t, r.lease, draw)
		if o.Artifacts = r.staged; o.Status != drover.OutcomeSucceeded {
			o.Artifacts = nil
		}
		k.end(r, o)
	})
}

// beatCall is a heartbeat.
type beatCall struct {
	held    drover.Held
	details json.RawMessage
}

// beatLater sends heartbeats while the handler runs, until it falls silent.
func (k *worker) beatLater(r *attempt, every time.Duration, silent int) {
	k.later(time.Duration(float64(every)*(0.2+0.4*k.rng.Float64())), func() {
		if r.over || r.beats >= silent {
			return
		}
		r.beats++
		b := &beatCall{held: drover.Held{TaskID: r.lease.TaskID, LeaseVersion: r.lease.LeaseVersion}}
		if r.beats%3 != 0 { // some keep nothing
			b.details = json.RawMessage(fmt.Sprintf(`{"lease":%d,"beat":%d}`, r.lease.LeaseVersion, r.beats))
		}
		k.ask("beat", func(s *server) any {
			c := k.call(s, "beat")
			c.beat = b
			var err error
			k.w.do(c, func(ctx context.Context) error {
				err = s.e.Heartbeat(ctx, k.caller, b.held, b.details)
				return err
			})
			return err
		}, func(a any) {
			if err, ok := a.(error); ok && drover.CodeOf(err) == drover.CodeLeaseLost && !k.rude {
				r.over = true
				k.tidy()
			}
		})
		k.beatLater(r, every, silent)
	})
}

// stageCall is the upload of an artifact.
type stageCall struct {
	held drover.Held
	name string
	got  drover.Artifact
	err  error
}

// stage uploads an artifact. What it holds is one of a few texts.
func (k *worker) stage(r *attempt, which int) {
	if r.over {
		return
	}
	st := stageCall{held: drover.Held{TaskID: r.lease.TaskID, LeaseVersion: r.lease.LeaseVersion}, name: fmt.Sprintf("part-%d", which)}
	k.ask("stage", func(s *server) any {
		c, x := k.call(s, "stage"), st
		c.stage = &x
		k.w.do(c, func(ctx context.Context) error {
			x.got, x.err = s.e.StageArtifact(ctx, k.caller, x.held, drover.Artifact{Name: x.name}, strings.NewReader(x.name))
			return x.err
		})
		return c.stage
	}, func(a any) {
		if x, ok := a.(*stageCall); ok && x.err == nil && !r.over {
			r.staged = append(r.staged, x.got.ID)
		}
	})
}

// outcome is what a handler returns. It depends on the task and its lease alone.
func outcome(seed uint64, t *gtask, l drover.Lease, draw func(uint64) float64) drover.Outcome {
	fail := func(class drover.ErrorClass) drover.Outcome {
		return drover.Outcome{Status: drover.OutcomeFailed, Error: &drover.Failure{Class: class, Message: string(class)}}
	}
	after := drover.Duration(time.Duration(draw(4) * float64(5*time.Second)).Truncate(time.Microsecond))
	p := draw(3)
	if l.LeaseVersion > 14 {
		p = 1 // handlers that give back and snooze without end are none of ours
	}
	switch {
	case p < 0.08:
		return fail(drover.ClassRetryable)
	case p < 0.11:
		return fail(drover.ClassPermanent)
	case p < 0.14:
		o := fail(drover.ClassThrottled)
		o.RetryAfter = after
		return o
	case p < 0.18:
		return drover.Outcome{Status: drover.OutcomeSnoozed, RetryAfter: after}
	case p < 0.21:
		return drover.Outcome{Status: drover.OutcomeReleased}
	case p < 0.23:
		return fail(drover.ClassTimeout)
	case p < 0.24:
		return fail(drover.ClassPanic)
	case p < 0.25:
		return fail("nonsense")
	case p < 0.26:
		return drover.Outcome{Status: drover.OutcomeCancelled}
	case p < 0.27:
		return drover.Outcome{Status: drover.OutcomeSucceeded, Output: json.RawMessage("{")}
	}
	return drover.Outcome{Status: drover.OutcomeSucceeded, Output: output(seed, t.job.tag, t.name, t.idx)}
}

// end reports an attempt.
func (k *worker) end(r *attempt, o drover.Outcome) {
	if r.over {
		return
	}
	r.over = true
	k.tidy()
	k.put(r, o)
}

func (k *worker) put(r *attempt, o drover.Outcome) {
	o.TaskID, o.LeaseVersion = r.lease.TaskID, r.lease.LeaseVersion
	k.outbox = append(k.outbox, &report{r.session, o})
	k.flush()
}

type settleCall struct {
	outcomes []drover.Outcome
	result   engine.SettleResult
	acquire  *drover.Acquire
}

// flush sends what the outbox holds of one session.
func (k *worker) flush() {
	if k.sending || len(k.outbox) == 0 {
		return
	}
	k.sending = true
	id := k.outbox[0].session
	n := 0
	for n < len(k.outbox) && k.outbox[n].session == id && n < 4 {
		n++
	}
	k.inFlight, k.outbox = k.outbox[:n:n], append([]*report(nil), k.outbox[n:]...)
	req := engine.Settlement{Caller: k.caller, Session: id}
	for _, r := range k.inFlight {
		req.Outcomes = append(req.Outcomes, r.o)
	}
	if id == k.session && k.rng.often(0.7) {
		req.Acquire = k.want()
	}
	batch := k.inFlight
	k.ask("settle", func(s *server) any {
		c := k.call(s, "settle")
		c.session = int64(id)
		c.settle = &settleCall{outcomes: req.Outcomes, acquire: req.Acquire}
		if req.Acquire != nil {
			c.acquire = &acquireCall{a: *req.Acquire}
		}
		k.w.do(c, func(ctx context.Context) error {
			c.settle.result = s.e.Settle(ctx, []engine.Settlement{req})[0]
			if c.acquire != nil {
				c.acquire.leases = c.settle.result.Leases
			}
			return c.settle.result.Err
		})
		return c.settle
	}, func(a any) {
		got, ok := a.(*settleCall)
		k.inFlight, k.sending = nil, false
		var again []*report
		switch {
		case !ok || got.result.Err != nil && drover.CodeOf(got.result.Err) == "":
			again = batch
		case got.result.Err != nil: // the session is not known
		default:
			for i, s := range got.result.Settled {
				if s.Err != nil && s.Err.Code == drover.CodeValidation {
					r := *batch[i]
					r.o.Status, r.o.Output, r.o.RetryAfter = drover.OutcomeFailed, nil, 0
					r.o.Error = &drover.Failure{Class: drover.ClassPermanent, Message: "the outcome was refused"}
					again = append(again, &r)
				}
			}
		}
		k.outbox = append(append([]*report(nil), again...), k.outbox...)
		if req.Acquire != nil {
			var leases []drover.Lease
			if ok && got.result.Err == nil {
				leases = got.result.Leases
			}
			k.took(req.Acquire, leases)
		}
		if len(again) > 0 {
			k.later(k.rng.between(100*time.Millisecond, time.Second), k.flush)
		} else {
			k.flush()
		}
		if req.Acquire == nil {
			k.poll()
		} else {
			k.rest(len(got.leases()))
		}
	})
}

// leases that a settle brought; it may have no answer.
func (c *settleCall) leases() []drover.Lease {
	if c == nil {
		return nil
	}
	return c.result.Leases
}

// close stops taking tasks, and after a while gives the session back with
// whatever it still holds.
func (k *worker) close(id drover.SessionID) {
	if k.session != id || k.w.healed {
		return
	}
	k.closing = true
	k.later(k.rng.between(0, k.w.plan.lease/2), func() {
		if k.session != id {
			return
		}
		for _, r := range k.runs {
			r.over = true
		}
		k.runs = nil
		k.ask("close", func(s *server) any {
			c := k.call(s, "close")
			c.session = int64(id)
			k.w.do(c, func(ctx context.Context) error { return s.e.CloseSession(ctx, k.caller, id) })
			return nil
		}, func(any) {
			if k.session == id {
				k.session, k.asking, k.closing = 0, false, false
				k.open()
			}
		})
	})
}
