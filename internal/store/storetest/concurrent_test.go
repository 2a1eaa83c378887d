package storetest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/storetest"
)

const (
	clients    = 8
	shortLease = 150 * time.Millisecond
	kindTries  = 3
)

// never is when an operation returned whose answer was lost.
const never = math.MaxInt64

// ---- what is known of one task, seen from outside

// phase is where a task is, as far as it matters who may do what with it.
type phase int

const (
	idle phase = iota
	leased
	ended
)

// taskState is a task in the checker's eyes. It is compared with ==.
type taskState struct {
	phase           phase
	version         int32
	session         drover.SessionID
	acquire         int64
	attempt, losses int
	cancelling      bool
	final           drover.Status
	ends            string // how attempts ended: "version session outcome STATUS;"
}

type verb int

const (
	grant verb = iota
	maybeGrant
	settle
	renew
	closing
	reap
	cancel
	read
)

// taskOp is an operation, as far as it is about one task.
type taskOp struct {
	verb    verb
	session drover.SessionID
	version int32  // the lease that is settled, named or granted; 0 is none
	number  int64  // of the acquire; for renew, the last that the worker has seen
	word    string // of the outcome
	class   drover.ErrorClass
	tries   int
	silent  []drover.SessionID // for reap: sessions whose lease may have run out
}

// taskAnswer is what the client was told.
type taskAnswer struct {
	unknown    bool
	status     drover.Status
	lost       bool
	cancelling bool
	code       drover.Code
}

func (s taskState) end(outcome string, status drover.Status) taskState {
	s.ends += fmt.Sprintf("%d %d %s %s;", s.version, s.session, outcome, status)
	switch {
	case status.Final():
		s.phase, s.final = ended, status
	default:
		s.phase = idle
	}
	s.session, s.acquire = 0, 0
	return s
}

// back is s given back: by its worker, or because nobody heard of it.
func (s taskState) back(outcome string, lost bool) taskState {
	if s.cancelling {
		if lost {
			outcome = "forced"
		} else {
			outcome = drover.OutcomeCancelled
		}
		s = s.end(outcome, drover.Cancelled)
		if lost {
			s.version++
		}
		return s
	}
	status := drover.Ready
	if lost {
		s.losses++
		if s.losses > maxLosses {
			status = drover.DeadLetter
		}
	}
	s = s.end(outcome, status)
	s.version++
	if status != drover.DeadLetter {
		s.attempt--
	}
	return s
}

func (s taskState) granted(o taskOp) taskState {
	s.phase, s.version, s.session, s.acquire = leased, s.version+1, o.session, o.number
	s.attempt++
	return s
}

// settled is s after its worker's word, and what the worker is told.
func (s taskState) settled(o taskOp) (taskState, taskAnswer) {
	if s.phase != leased || s.session != o.session || s.version != o.version {
		for e := range strings.SplitSeq(s.ends, ";") {
			var version, session int64
			var outcome, status string
			if n, _ := fmt.Sscan(e, &version, &session, &outcome, &status); n == 4 && version == int64(o.version) && session == int64(o.session) &&
				(outcome == o.word || outcome == drover.OutcomeCancelled && o.word != drover.OutcomeSucceeded && o.word != drover.OutcomeFailed) {
				first, _ := drover.ParseStatus(status)
				return s, taskAnswer{status: first}
			}
		}
		return s, taskAnswer{lost: true}
	}
	var status drover.Status
	switch {
	case o.word == drover.OutcomeSucceeded:
		status = drover.Succeeded
	case s.cancelling:
		if o.word != drover.OutcomeFailed {
			o.word = drover.OutcomeCancelled
		}
		status = drover.Cancelled
	case o.word == drover.OutcomeFailed && o.class == drover.ClassPermanent:
		status = drover.Failed
	case o.word == drover.OutcomeFailed && s.attempt >= o.tries:
		status = drover.DeadLetter
	case o.word == drover.OutcomeFailed:
		status = drover.RetryWait
	case o.word == drover.OutcomeSnoozed:
		s.attempt--
		status = drover.RetryWait
	default:
		return s.back(o.word, false), taskAnswer{status: drover.Ready}
	}
	return s.end(o.word, status), taskAnswer{status: status}
}

// step is every state that may follow.
func (s taskState) step(o taskOp, a taskAnswer) []taskState {
	either := func(next taskState, ok bool) []taskState {
		switch {
		case a.unknown:
			return []taskState{s, next}
		case ok:
			return []taskState{next}
		}
		return nil
	}
	switch o.verb {
	case grant:
		if s.phase != idle || s.cancelling || o.version != s.version+1 {
			return nil
		}
		return []taskState{s.granted(o)}
	case maybeGrant:
		if s.phase != idle || s.cancelling {
			return []taskState{s}
		}
		return []taskState{s, s.granted(o)}
	case settle:
		next, want := s.settled(o)
		return either(next, a.lost == want.lost && a.status == want.status)
	case renew:
		mine := s.phase == leased && s.session == o.session
		switch {
		case mine && o.version == s.version:
			return either(s, !a.lost && a.cancelling == s.cancelling)
		case mine && s.acquire <= o.number:
			return either(s.back(drover.OutcomeReleased, false), o.version == 0 || a.lost)
		}
		return either(s, o.version == 0 || a.lost)
	case closing:
		if s.phase != leased || s.session != o.session {
			return []taskState{s}
		}
		return either(s.back(drover.OutcomeReleased, false), true)
	case reap:
		if s.phase != leased || !slices.Contains(o.silent, s.session) {
			return []taskState{s}
		}
		return []taskState{s, s.back("lease_lost", true)}
	case cancel:
		next := s
		next.cancelling = true
		switch {
		case s.phase != ended:
			return either(next, a.code == "")
		case s.final == drover.Cancelled:
			return either(s, a.code == "")
		}
		return either(s, a.code == drover.CodeInvalidTransition)
	case read:
		switch {
		case s.phase == ended:
			return either(s, a.status == s.final || s.final == drover.DeadLetter && a.status == drover.Failed) // a job has no dead letter
		case s.phase == idle && s.cancelling:
			return either(s, a.status == drover.Cancelled || !a.status.Final())
		}
		return either(s, !a.status.Final())
	}
	return nil
}

var taskModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{taskState{}} },
	Step: func(state, input, output any) []any {
		var out []any
		for _, s := range state.(taskState).step(input.(taskOp), output.(taskAnswer)) {
			out = append(out, s)
		}
		return out
	},
	Equal:             func(a, b any) bool { return a == b },
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
}).ToModel()

// ---- what is known of one idempotency key

type keyState struct {
	taken bool
	job   drover.JobID // zero: nobody was told yet
	body  int
}

type keyOp struct{ body int }

type keyAnswer struct {
	unknown bool
	job     drover.JobID
	old     bool
	code    drover.Code
}

func (s keyState) step(o keyOp, a keyAnswer) []keyState {
	switch {
	case a.unknown && s.taken:
		return []keyState{s}
	case a.unknown:
		return []keyState{s, {taken: true, body: o.body}}
	case a.code == drover.CodeIdempotencyInUse:
		return []keyState{s}
	case !s.taken && a.code == "" && !a.old:
		return []keyState{{true, a.job, o.body}}
	case s.taken && s.body == o.body && a.code == "" && a.old && (s.job.IsZero() || s.job == a.job):
		return []keyState{{true, a.job, o.body}}
	case s.taken && s.body != o.body && a.code == drover.CodeIdempotencyReused:
		return []keyState{s}
	}
	return nil
}

var keyModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{keyState{}} },
	Step: func(state, input, output any) []any {
		var out []any
		for _, s := range state.(keyState).step(input.(keyOp), output.(keyAnswer)) {
			out = append(out, s)
		}
		return out
	},
	Equal:             func(a, b any) bool { return a == b },
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
}).ToModel()

// ---- the clients

// history is what the clients did to one thing, or to all of them.
type history struct {
	mu    sync.Mutex
	start time.Time
	tasks map[drover.TaskID][]porcupine.Operation
	all   []porcupine.Operation // may concern every task
	jobs  map[drover.JobID][]porcupine.Operation
	keys  map[string][]porcupine.Operation
	of    map[drover.TaskID]drover.JobID // of a task that is its whole job
	life  map[drover.SessionID]life
	n     rounds
}

// life is what is known of a session's lease: it was renewed by a call that began
// at since, or later; or somebody has closed it.
type life struct {
	since  int64
	closed bool
}

func (h *history) now() int64 { return time.Since(h.start).Nanoseconds() }

// add records an operation on a task; a nil task is every one.
func (h *history) add(client int, call int64, task *drover.TaskID, o taskOp, a taskAnswer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	op := porcupine.Operation{ClientId: client, Call: call, Return: h.now(), Input: o, Output: a}
	// What a whole session asked for and got no answer to is over before the client
	// goes on: the driver loses the answer after the commit. Otherwise it might be
	// anything of any task for ever, and nothing could be told of it.
	if a.unknown && task != nil {
		op.Return = never
	}
	h.n.Operations++
	if a.unknown {
		h.n.Unknown++
	}
	if task == nil {
		h.all = append(h.all, op)
	} else {
		h.tasks[*task] = append(h.tasks[*task], op)
	}
}

func (h *history) addJob(client int, call int64, job drover.JobID, o taskOp, a taskAnswer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	op := porcupine.Operation{ClientId: client, Call: call, Return: h.now(), Input: o, Output: a}
	h.n.Operations++
	if a.unknown {
		op.Return = never
		h.n.Unknown++
	}
	h.jobs[job] = append(h.jobs[job], op)
}

// client is a worker, a user and a server in one.
type client struct {
	*engine.Engine
	id      int
	c       engine.Caller
	h       *history
	rnd     *rand.Rand
	session drover.SessionID
	number  int64
	held    []drover.Lease
	done    []drover.Outcome // that were reported, of any session
	by      []drover.SessionID
	jobs    []drover.JobID // of one task
	err     error
}

// fault reports whether an operation did not take place, or may have; any other
// error is not to be.
func (c *client) fault(err error) (refused, unknown bool) {
	switch {
	case err == nil:
	case errors.Is(err, storetest.ErrRefused):
		return true, false
	case engine.IsUnknown(err):
		return false, true
	case drover.CodeOf(err) == "":
		c.err = errors.Join(c.err, err)
	}
	return false, false
}

func (c *client) open() {
	for {
		call := c.h.now()
		s, err := c.OpenSession(context.Background(), c.c, drover.NewSession{Worker: fmt.Sprint("client-", c.id), Queues: []string{"default"}, Slots: 100})
		if err == nil {
			c.session, c.number, c.held = s.ID, 0, nil
			c.h.mu.Lock()
			c.h.life[s.ID] = life{since: call}
			c.h.mu.Unlock()
			return
		}
		if refused, unknown := c.fault(err); !refused && !unknown {
			c.err = errors.Join(c.err, err)
			return
		}
	}
}

// leases records what an acquire handed out.
func (c *client) leases(call int64, number int64, list []drover.Lease) {
	for _, l := range list {
		if l.Pipeline == "" {
			c.h.mu.Lock()
			c.h.of[l.TaskID] = l.JobID
			c.h.mu.Unlock()
		}
		c.h.add(c.id, call, &l.TaskID, taskOp{verb: grant, session: c.session, version: l.LeaseVersion, number: number}, taskAnswer{})
		c.held = append(c.held, l)
	}
}

func (c *client) acquire() {
	c.number++
	call := c.h.now()
	list, err := c.Acquire(context.Background(), c.c, drover.Acquire{Session: c.session, Max: 1 + c.rnd.IntN(3), Number: c.number})
	if _, unknown := c.fault(err); unknown {
		c.h.add(c.id, call, nil, taskOp{verb: maybeGrant, session: c.session, number: c.number}, taskAnswer{unknown: true})
	}
	c.leases(call, c.number, list)
	if drover.CodeOf(err) == drover.CodeLeaseLost {
		c.open()
	}
}

// outcome is a word on a lease: of a task of a pipeline only such that its job
// can still succeed.
func (c *client) outcome(l drover.Lease) drover.Outcome {
	o := drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeSucceeded}
	switch k := c.rnd.IntN(10); {
	case k == 0:
		o.Status, o.RetryAfter = drover.OutcomeSnoozed, drover.Duration(time.Millisecond)
	case k == 1:
		o.Status = drover.OutcomeReleased
	case k < 4:
		o.Status, o.Error = drover.OutcomeFailed, &drover.Failure{Class: drover.ClassRetryable, Message: "again"}
	case k == 4 && l.Pipeline == "":
		o.Status, o.Error = drover.OutcomeFailed, &drover.Failure{Class: drover.ClassPermanent, Message: "no"}
	case k == 5 && l.Pipeline == "":
		o.Status = drover.OutcomeCancelled
	case l.Name == "list":
		o.Output = json.RawMessage([]string{"[]", "[1]", "[1,2,3]"}[c.rnd.IntN(3)])
	}
	return o
}

// report settles outcomes for a session, and records each. Those whose answer
// was lost are kept to be said again.
func (c *client) report(s drover.SessionID, list []drover.Outcome, more bool) {
	x := engine.Settlement{Caller: c.c, Session: s, Outcomes: list}
	if more {
		c.number++
		x.Acquire = &drover.Acquire{Session: s, Max: 1, Number: c.number}
	}
	call := c.h.now()
	r := c.Settle(context.Background(), []engine.Settlement{x})[0]
	refused, unknown := c.fault(r.Err)
	if refused {
		return
	}
	for i, o := range list {
		a := taskAnswer{unknown: unknown}
		if !unknown {
			if r.Err != nil {
				c.err = errors.Join(c.err, r.Err)
				return
			}
			a.status, a.lost = r.Settled[i].Status, r.Settled[i].Err != nil
			if a.lost && r.Settled[i].Err.Code != drover.CodeLeaseLost {
				c.err = errors.Join(c.err, r.Settled[i].Err)
			}
		}
		class := drover.ErrorClass("")
		if o.Error != nil {
			class = o.Error.Class
		}
		tries := 1000
		c.h.mu.Lock()
		if _, single := c.h.of[o.TaskID]; single {
			tries = kindTries
		}
		c.h.mu.Unlock()
		c.h.add(c.id, call, &o.TaskID, taskOp{verb: settle, session: s, version: o.LeaseVersion, word: o.Status, class: class, tries: tries}, a)
		c.done, c.by = append(c.done, o), append(c.by, s)
	}
	if more && unknown {
		c.h.add(c.id, call, nil, taskOp{verb: maybeGrant, session: s, number: c.number}, taskAnswer{unknown: true})
	}
	c.leases(call, c.number, r.Leases)
}

func (c *client) settle() {
	n := min(len(c.held), 1+c.rnd.IntN(3))
	var list []drover.Outcome
	for _, l := range c.held[:n] {
		list = append(list, c.outcome(l))
	}
	if n == 0 {
		return
	}
	if c.rnd.IntN(6) > 0 { // else they are still thought to be held, and said again
		c.held = c.held[n:]
	}
	c.report(c.session, list, c.rnd.IntN(3) == 0)
}

// again says something once more: the same, or another word on the same lease.
func (c *client) again() {
	if len(c.done) == 0 {
		return
	}
	k := c.rnd.IntN(len(c.done))
	o := c.done[k]
	if c.rnd.IntN(3) == 0 {
		o.Status, o.Error = drover.OutcomeReleased, nil
	}
	c.report(c.by[k], []drover.Outcome{o}, false)
}

func (c *client) renew() {
	r := drover.Renewal{Acquired: c.number}
	named := map[drover.TaskID]int32{}
	for _, l := range c.held {
		if c.rnd.IntN(8) > 0 {
			r.Held = append(r.Held, drover.Held{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion})
			named[l.TaskID] = max(named[l.TaskID], l.LeaseVersion)
		}
	}
	r.Held = slices.DeleteFunc(r.Held, func(h drover.Held) bool { return named[h.TaskID] != h.LeaseVersion })
	call := c.h.now()
	out, err := c.Renew(context.Background(), c.c, c.session, r)
	refused, unknown := c.fault(err)
	switch {
	case refused:
		return
	case drover.CodeOf(err) == drover.CodeLeaseLost:
		c.open()
		return
	case err != nil && !unknown:
		c.err = errors.Join(c.err, err)
		return
	case err == nil:
		c.h.mu.Lock()
		c.h.life[c.session] = life{since: call}
		c.h.mu.Unlock()
	}
	for _, h := range r.Held {
		c.h.add(c.id, call, &h.TaskID, taskOp{verb: renew, session: c.session, version: h.LeaseVersion, number: c.number},
			taskAnswer{unknown: unknown, lost: slices.Contains(out.Lost, h), cancelling: slices.Contains(out.Cancelled, h)})
	}
	// Of what it does not name, the worker holds nothing.
	c.h.mu.Lock()
	op := porcupine.Operation{ClientId: c.id, Call: call, Return: c.h.now(), Input: unnamed{taskOp{verb: renew, session: c.session, number: c.number}, named}, Output: taskAnswer{unknown: unknown}}
	c.h.all = append(c.h.all, op)
	c.h.mu.Unlock()
	c.held = slices.DeleteFunc(c.held, func(l drover.Lease) bool { return named[l.TaskID] != l.LeaseVersion })
}

// unnamed is an operation on every task but those named.
type unnamed struct {
	taskOp
	named map[drover.TaskID]int32
}

func (c *client) close() {
	c.h.mu.Lock()
	l := c.h.life[c.session]
	l.closed = true
	c.h.life[c.session] = l
	c.h.mu.Unlock()
	call := c.h.now()
	err := c.CloseSession(context.Background(), c.c, c.session)
	c.fault(err) // refused: the end of the session or the giving back may have been; the reaper does the rest
	c.h.add(c.id, call, nil, taskOp{verb: closing, session: c.session}, taskAnswer{unknown: err != nil})
	c.open()
}

func (c *client) loop() {
	ctx := context.Background()
	switch c.rnd.IntN(4) {
	case 0:
		call := c.h.now()
		c.h.mu.Lock()
		before := map[drover.SessionID]life{}
		for s, l := range c.h.life {
			before[s] = l
		}
		c.h.mu.Unlock()
		_, err := c.ReapOnce(ctx)
		c.fault(err)
		over := c.h.now()
		o := taskOp{verb: reap}
		c.h.mu.Lock()
		for s, l := range c.h.life {
			if b, ok := before[s]; ok {
				l.since = b.since // renewed meanwhile does not matter: it may have come too late
			}
			if l.closed || l.since+shortLease.Nanoseconds() <= over {
				o.silent = append(o.silent, s)
			}
		}
		c.h.mu.Unlock()
		c.h.add(c.id, call, nil, o, taskAnswer{unknown: err != nil})
	case 1:
		_, err := c.AdmitOnce(ctx)
		c.fault(err)
	case 2:
		_, err := c.TimersOnce(ctx)
		c.fault(err)
	case 3:
		_, err := c.SweepOnce(ctx)
		c.fault(err)
	}
}

func (c *client) cancel() {
	id := c.jobs[c.rnd.IntN(len(c.jobs))]
	call := c.h.now()
	_, err := c.Cancel(context.Background(), c.c, id, engine.Request{})
	refused, unknown := c.fault(err)
	if refused { // the job's cancel, or reading the job that is shown after it
		unknown = true
	}
	c.h.addJob(c.id, call, id, taskOp{verb: cancel}, taskAnswer{unknown: unknown, code: drover.CodeOf(err)})
}

func (c *client) look(id drover.JobID) {
	call := c.h.now()
	j, err := c.Job(context.Background(), c.c, id)
	if err != nil {
		c.err = errors.Join(c.err, err)
		return
	}
	c.h.addJob(c.id, call, id, taskOp{verb: read}, taskAnswer{status: j.Status})
}

func (c *client) submit() {
	key, body := fmt.Sprint("key-", c.rnd.IntN(6)), c.rnd.IntN(2)
	call := c.h.now()
	out, err := c.Submit(context.Background(), c.c, []drover.NewJob{{Kind: "k", IdempotencyKey: key, Input: json.RawMessage(fmt.Sprint(body)), Retry: quick(kindTries)}})
	refused, unknown := c.fault(err)
	if refused {
		return
	}
	a := keyAnswer{unknown: unknown}
	if err == nil {
		a.job, a.old = out[0].JobID, out[0].Replayed
		if out[0].Err != nil {
			a.job, a.code = drover.JobID{}, out[0].Err.Code
		}
	}
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	op := porcupine.Operation{ClientId: c.id, Call: call, Return: c.h.now(), Input: keyOp{body}, Output: a}
	c.h.n.Operations++
	if unknown {
		op.Return = never
		c.h.n.Unknown++
	}
	c.h.keys[key] = append(c.h.keys[key], op)
}

func quick(tries int) *drover.Retry {
	return &drover.Retry{MaxAttempts: tries, Initial: drover.Duration(time.Millisecond), Max: drover.Duration(time.Millisecond)}
}

func (c *client) act() {
	switch k := c.rnd.IntN(100); {
	case k < 28:
		c.acquire()
	case k < 58:
		c.settle()
	case k < 66:
		c.again()
	case k < 74:
		c.renew()
	case k < 75:
		c.close()
	case k < 88:
		c.loop()
	case k < 91:
		c.cancel()
	case k < 94:
		c.look(c.jobs[c.rnd.IntN(len(c.jobs))])
	default:
		c.submit()
	}
}

const (
	joins = "pipeline: join\ndefaults: {retry: {max_attempts: 1000, backoff: {initial: 1ms, max: 1ms}}}\ntasks:\n  a: {run: k}\n  b: {run: k}\n  c: {run: k, needs: [a, b]}\n  d: {run: k, needs: [a, b]}\n  e: {run: k, needs: [c, d]}\n"
	grows = "pipeline: grows\ndefaults: {retry: {max_attempts: 1000, backoff: {initial: 1ms, max: 1ms}}}\ntasks:\n  list: {run: k}\n  other: {run: k}\n  one: {run: k, for_each: \"${{ tasks.list.output }}\"}\n  two: {run: k, for_each: one, needs: [other]}\n  end: {run: k, needs: [two, other]}\n"
)

// TestWhatClientsAtOnceAreToldFitsOneOrder lets clients do everything at once
// while transactions fail and answers are lost, and asks for each task and each
// key whether there is an order of what was done in which every answer is right:
// a lease has one owner, an outcome counts once and under its fence, a repeat
// gets the first answer, one of a cancel and an outcome wins, and a key gives one
// job. Then all work can be brought to its end: no child of a join is stranded.
func TestWhatClientsAtOnceAreToldFitsOneOrder(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		kind := t.Name()[strings.LastIndex(t.Name(), "/")+1:]
		faults := storetest.WithFaults(db.Driver, uint64(time.Now().UnixNano()))
		db.Driver = faults
		var sum rounds
		for since := time.Now(); goOn(t, since, faults); {
			round(t, db, faults, kind, &sum)
		}
		figures.concurrent(kind, sum, faults)
		t.Logf("%+v, faults %v", sum, faults.Counts())
		if sum.Undecided > sum.Histories/50 {
			t.Errorf("%d of %d histories were not decided: too many to say that they are right", sum.Undecided, sum.Histories)
		}
		if sum.Unknown == 0 {
			t.Error("no client was left without an answer: the test tests less than it says")
		}
	}, func(o *store.Options) { o.Now = time.Now })
}

func round(t *testing.T, db *store.DB, faults *storetest.Faults, kind string, sum *rounds) {
	ctx := t.Context()
	faults.SetRates(nil)
	seed := uint64(time.Now().UnixNano())
	server := func(rnd *rand.Rand) *engine.Engine {
		return engine.New(db, engine.Options{LeaseFor: shortLease, Jitter: rnd.Float64})
	}
	first := server(rand.New(rand.NewPCG(seed, 99)))
	caller, err := first.EnsureTenant(ctx, fmt.Sprint("round-", seed))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{joins, grows} {
		if _, err := first.RegisterPipeline(ctx, caller, "p.yaml", []byte(p)); err != nil {
			t.Fatal(err)
		}
	}
	request := slices.Repeat([]drover.NewJob{{Kind: "k", Retry: quick(kindTries)}}, 10)
	request = append(request, drover.NewJob{Pipeline: "join"}, drover.NewJob{Pipeline: "join"}, drover.NewJob{Pipeline: "grows"}, drover.NewJob{Pipeline: "grows"})
	out, err := first.Submit(ctx, caller, request)
	if err != nil {
		t.Fatal(err)
	}
	h := &history{start: time.Now(), tasks: map[drover.TaskID][]porcupine.Operation{}, jobs: map[drover.JobID][]porcupine.Operation{}, keys: map[string][]porcupine.Operation{},
		of: map[drover.TaskID]drover.JobID{}, life: map[drover.SessionID]life{}}
	var all []*client
	for i := range clients {
		rnd := rand.New(rand.NewPCG(seed, uint64(i)))
		c := &client{Engine: server(rnd), id: i, c: caller, h: h, rnd: rnd}
		for _, o := range out[:10] {
			c.jobs = append(c.jobs, o.JobID)
		}
		all = append(all, c)
	}
	faults.SetRates(map[storetest.Fault]float64{storetest.Conflict: 0.05, storetest.Deadlock: 0.05, storetest.LostAnswer: 0.04, storetest.Refused: 0.04})
	var wg sync.WaitGroup
	stop := time.Now().Add(700 * time.Millisecond)
	for _, c := range all {
		wg.Go(func() {
			c.open()
			for c.err == nil && (time.Now().Before(stop) || len(c.done) < 3 && time.Now().Before(stop.Add(5*time.Second))) {
				c.act()
			}
		})
	}
	wg.Wait()
	faults.SetRates(nil)
	for _, c := range all {
		if c.err != nil {
			t.Errorf("seed %d, client %d: %v", seed, c.id, c.err)
		}
	}
	finish(t, all[0], out, seed)
	sum.Rounds++
	sum.Operations += h.n.Operations
	sum.Unknown += h.n.Unknown
	h.check(t, sum, kind, seed)
}

// finish brings everything that is left to its end, and looks at it.
func finish(t *testing.T, c *client, out []drover.Submitted, seed uint64) {
	ctx := context.Background()
	for until := time.Now().Add(20 * time.Second); ; {
		open := 0
		for _, o := range out {
			j, err := c.Job(ctx, c.c, o.JobID)
			if err != nil {
				t.Fatal(err)
			}
			if !j.Status.Final() {
				open++
			} else if j.Pipeline != "" && j.Status != drover.Succeeded {
				t.Errorf("seed %d: job %s of %s is %s: %+v", seed, j.ID, j.Pipeline, j.Status, j.Tasks)
			}
		}
		if open == 0 {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("seed %d: %d jobs are not brought to their end", seed, open)
		}
		c.acquire()
		c.settle()
		c.renew()
		for range 4 {
			c.loop()
		}
		if c.err != nil {
			t.Fatal(c.err)
		}
	}
	for _, id := range c.jobs {
		c.look(id)
	}
	for _, o := range out {
		succeeded := map[string]int{}
		events, err := c.Events(ctx, c.c, o.JobID, 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range events {
			if e.Seq != int64(i+1) {
				t.Errorf("seed %d: event %d of job %s has number %d", seed, i+1, o.JobID, e.Seq)
			}
			if e.Type == drover.TaskSucceeded {
				succeeded[e.TaskID.String()]++
			}
		}
		for id, n := range succeeded {
			if n > 1 {
				t.Errorf("seed %d: task %s succeeded %d times", seed, id, n)
			}
		}
	}
	// Nothing but a settle that was cut off by a lost answer may have left work to do.
	var from drover.JobID
	for {
		list, next, err := c.ReconcileFrom(ctx, from, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range list {
			t.Errorf("seed %d: job %s does not agree with its records: %+v", seed, d.Job, d.Findings)
		}
		if from = next; next.IsZero() {
			return
		}
	}
}

// check looks for an order of each task's and each key's operations.
func (h *history) check(t *testing.T, sum *rounds, kind string, seed uint64) {
	try := func(what string, m porcupine.Model, ops []porcupine.Operation) {
		sum.Histories++
		switch porcupine.CheckOperationsTimeout(m, ops, 30*time.Second) {
		case porcupine.Ok:
		case porcupine.Unknown:
			sum.Undecided++
			t.Logf("%s, seed %d: no verdict on %s after 30 s", kind, seed, what)
		default:
			sum.Illegal++
			slices.SortFunc(ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
			var b strings.Builder
			for _, o := range ops {
				over := fmt.Sprint(o.Return / 1000)
				if o.Return == never {
					over = "…"
				}
				fmt.Fprintf(&b, "%8d-%s µs client %d: %s\n", o.Call/1000, over, o.ClientId, m.DescribeOperation(o.Input, o.Output))
			}
			t.Errorf("%s, seed %d: there is no order in which all answers on %s are right:\n%s", kind, seed, what, b.String())
		}
	}
	for id, ops := range h.tasks {
		list := append(slices.Clone(ops), h.about(id, ops)...)
		if job, ok := h.of[id]; ok {
			list = append(list, h.jobs[job]...)
		}
		try("task "+id.String(), taskModel, list)
	}
	for key, ops := range h.keys {
		try(key, keyModel, ops)
	}
}

// about picks the operations on all tasks that may have changed this one: those
// of sessions that have held it. A grant that nobody was told of shows in a gap
// between the lease_versions of those that somebody was.
func (h *history) about(id drover.TaskID, ops []porcupine.Operation) (list []porcupine.Operation) {
	holders := map[drover.SessionID]bool{}
	versions := []int32{0}
	for _, o := range ops {
		if g := o.Input.(taskOp); g.verb == grant {
			holders[g.session] = true
			versions = append(versions, g.version)
		}
	}
	slices.Sort(versions)
	gap := false
	for i := 1; i < len(versions); i++ {
		gap = gap || versions[i]-versions[i-1] > 2
	}
	for _, o := range h.all {
		if g, ok := o.Input.(taskOp); ok && g.verb == maybeGrant && gap {
			holders[g.session] = true
			list = append(list, o)
		}
	}
	for _, o := range h.all {
		g, ok := o.Input.(taskOp)
		if u, is := o.Input.(unnamed); is {
			if _, named := u.named[id]; named {
				continue
			}
			g, ok = u.taskOp, true
		}
		switch {
		case !ok || g.verb == maybeGrant:
			continue
		case g.verb == reap:
			g.silent = slices.DeleteFunc(slices.Clone(g.silent), func(s drover.SessionID) bool { return !holders[s] })
			if len(g.silent) == 0 {
				continue
			}
		case !holders[g.session]:
			continue
		}
		o.Input = g
		list = append(list, o)
	}
	return list
}
