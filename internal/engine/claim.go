package engine

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// MaxAcquire bounds the leases of one acquire.
const MaxAcquire = 1000

// Acquire takes up to a.Max tasks for a session and returns their leases. It
// makes one try and does not wait.
func (e *Engine) Acquire(ctx context.Context, c Caller, a drover.Acquire) ([]drover.Lease, error) {
	if err := checkAcquire(&a); err != nil {
		return nil, err
	}
	var leases []drover.Lease
	var broken []unfit
	var turns *rotation
	err := e.db.Write(ctx, func(tx store.Tx) (err error) {
		s, err := e.session(ctx, tx, c, a.Session, true)
		if err != nil {
			return err
		}
		if e.expired(s) {
			return expiredSession(a.Session)
		}
		turns = e.lanes.rotation()
		ask := &ask{session: s, acquire: a, turns: turns}
		if err := tx.Pipe(ctx, e.askFor(ask, e.now())...); err != nil {
			return err
		}
		leases, broken, err = e.claim(ctx, tx, ask)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("acquire: %w", err)
	}
	turns.keep()
	e.giveBack(ctx, broken)
	return leases, nil
}

// ask is an acquire on its way, with what was read for it.
type ask struct {
	session store.SessionRow
	acquire drover.Acquire
	out     *SettleResult // that it rides on
	turns   *rotation     // of the transaction
	now     lifecycle.Instant
	stopped []store.StoppedLane // mostly none
	lanes   map[int32][]int32   // of each queue; nil is every lane
	epoch   int64               // of the gate
	// particular are the lanes whose tasks ask for more of a worker than a slot.
	particular map[int32]string
}

// queues names the queues to take from, in that order.
func (a *ask) queues() []string {
	if len(a.acquire.Queues) > 0 {
		return a.acquire.Queues
	}
	return a.session.Queues
}

// askFor reads what a claim must know, so that it can go with other statements:
// which lanes are stopped, and which of the queues' lanes the session serves.
func (e *Engine) askFor(a *ask, now lifecycle.Instant) []store.Stmt {
	a.now, a.stopped, a.lanes, a.particular = now, nil, map[int32][]int32{}, map[int32]string{}
	list := []store.Stmt{store.StoppedLanes(now, &a.stopped, &a.epoch)}
	for _, name := range a.queues() {
		if id, ok := e.names.queueID.Load(name); ok {
			list = append(list, a.lanesOf(id.(int32)))
		}
	}
	return list
}

func (a *ask) lanesOf(queue int32) store.Stmt {
	return store.LanesFor(queue, a.session.Tenant, a.session.Kinds, a.lanes, a.particular)
}

func checkAcquire(a *drover.Acquire) error {
	if a.Max < 1 || a.Max > MaxAcquire {
		return &drover.Error{Code: drover.CodeValidation, Detail: "the acquire is not valid",
			Fields: []drover.FieldError{{Field: "max", Message: fmt.Sprintf("must be 1 to %d", MaxAcquire)}}}
	}
	if len(a.Queues) > 100 {
		return &drover.Error{Code: drover.CodeValidation, Detail: "the acquire is not valid",
			Fields: []drover.FieldError{{Field: "queues", Message: "at most 100"}}}
	}
	return nil
}

// claim moves tasks to RUNNING inside tx and fills their inputs in. What askFor
// reads has been read.
func (e *Engine) claim(ctx context.Context, tx store.Tx, a *ask) ([]drover.Lease, []unfit, error) {
	var got []store.Claimed
	for _, name := range a.queues() {
		if len(got) >= a.acquire.Max {
			break
		}
		queue, err := e.knownQueue(ctx, tx, name)
		if err != nil {
			return nil, nil, err
		}
		if queue == 0 {
			continue // nobody has submitted to it
		}
		if _, ok := a.lanes[queue]; !ok {
			if err := tx.Pipe(ctx, a.lanesOf(queue)); err != nil {
				return nil, nil, err
			}
		}
		list, err := e.claimQueue(ctx, tx, a, queue, a.acquire.Max-len(got))
		if err != nil {
			return nil, nil, err
		}
		got = join(got, list)
	}
	return e.leases(ctx, tx, got)
}

// join appends more to got without a copy where there was nothing.
func join(got, more []store.Claimed) []store.Claimed {
	if len(got) == 0 {
		return more
	}
	return append(got, more...)
}

// claimQueue takes up to n tasks of a queue, higher classes first, rotating
// over the lanes within a class. Lanes of circuits that are not closed are
// stepped over; first, those of them that may let somebody go do.
func (e *Engine) claimQueue(ctx context.Context, tx store.Tx, a *ask, queue int32, n int) ([]store.Claimed, error) {
	c := store.Claim{Queue: queue, Max: n, Session: a.session.ID, Acquire: a.acquire.Number, AfterClass: -1, Cursor: a.turns.get(queue), Now: a.now, Lanes: a.lanes[queue]}
	first, err := e.throughGate(ctx, tx, a, &c, n)
	if err != nil || len(first) == n || c.Lanes != nil && len(c.Lanes) == 0 {
		return first, err
	}
	rest, err := e.claimOpen(ctx, tx, a, &c, n-len(first))
	return join(first, rest), err
}

// claimOpen is claimQueue of the lanes of c, which are open to the session.
func (e *Engine) claimOpen(ctx context.Context, tx store.Tx, a *ask, of *store.Claim, n int) ([]store.Claimed, error) {
	c, queue := *of, of.Queue
	version, from := e.marks.of(queue, c.Lanes, a.now)
	if slices.ContainsFunc(a.stopped, func(l store.StoppedLane) bool { return l.Queue == queue }) {
		got, err := e.throughCircuits(ctx, tx, a.turns, &c, n, a.stopped)
		if err != nil || len(got) == n || len(c.Lanes) == 0 {
			return got, err
		}
		more, err := e.claimLanes(ctx, tx, a.turns, &c, n-len(got))
		return join(got, more), err
	}
	var got []store.Claimed
	if len(from.lanes) > 0 {
		at := c
		at.Floors, at.Class = from.lanes, from.class
		list, err := store.ClaimTasks(ctx, tx, e.db.Dialect(), at)
		if err != nil {
			return nil, err
		}
		if len(list) > 0 {
			c.Cursor = farthest(list, c.Cursor)
			a.turns.set(queue, c.Cursor)
		}
		if len(list) == n {
			a.turns.then(func() { e.marks.moved(queue, c.Lanes, version, from.next(list, n, 0, a.now)) })
			return list, nil
		}
		got = list
	}
	var found int64
	c.Found = &found
	more, err := e.claimLanes(ctx, tx, a.turns, &c, n-len(got))
	if err != nil {
		return nil, err
	}
	var next floors
	if e.db.LeavesDeadRows() {
		next = next.next(more, n-len(got), found, a.now)
	}
	a.turns.then(func() { e.marks.moved(queue, c.Lanes, version, next) })
	return join(got, more), nil
}

// claimLanes takes up to n tasks of the lanes of c, of all there are when it
// names none.
func (e *Engine) claimLanes(ctx context.Context, tx store.Tx, turns *rotation, c *store.Claim, n int) ([]store.Claimed, error) {
	var got []store.Claimed
	var classes []int16 // that are left after the first take
	take := func() (int, error) {
		c.Max = n - len(got)
		list, err := store.ClaimTasks(ctx, tx, e.db.Dialect(), *c)
		if err != nil || len(list) == 0 {
			return 0, err
		}
		got = join(got, list)
		c.Cursor = farthest(list, c.Cursor)
		turns.set(c.Queue, c.Cursor)
		return len(list), nil
	}
	c.Classes = &classes
	if _, err := take(); err != nil || len(got) == n {
		return got, err
	}
	c.Classes = nil
	// Its lanes were uneven, or the first class is used up, held or empty: class by class.
	for _, class := range classes {
		c.AfterClass = class - 1
		for len(got) < n {
			k, err := take()
			if err != nil {
				return nil, err
			}
			if k == 0 || got[len(got)-1].Class != drover.Class(class) {
				break
			}
		}
	}
	return got, nil
}

// farthest returns the lane of list that comes last in rotation from cursor.
func farthest(list []store.Claimed, cursor int32) int32 {
	order := func(lane int32) int64 {
		if lane > cursor {
			return int64(lane)
		}
		return int64(lane) + 1<<32
	}
	best := list[0].Lane
	for _, x := range list[1:] {
		if order(x.Lane) > order(best) {
			best = x.Lane
		}
	}
	return best
}

// maxAnswer bounds the inputs of one acquire's answer, in bytes.
const maxAnswer = 16 << 20

// unfit is a claimed task that is not handed out: its input cannot be filled in,
// or, without a failure, the answer was full or its job has just been held.
type unfit struct {
	lease   store.Lease
	failure *drover.Failure
	closed  bool // its schedule_to_close has passed
}

// leases makes the leases of claimed tasks, their inputs filled in.
func (e *Engine) leases(ctx context.Context, tx store.Tx, got []store.Claimed) ([]drover.Lease, []unfit, error) {
	out := make([]drover.Lease, 0, len(got))
	var broken []unfit
	scopes := map[drover.JobID]*scope{}
	edited := map[drover.TaskID][]byte{}
	ons, watches, err := e.watchClaims(ctx, tx, got)
	if err != nil {
		return nil, nil, err
	}
	spoilt, err := e.degraded(ctx, tx, got)
	if err != nil {
		return nil, nil, err
	}
	now := e.now()
	size := 0
	for i := range got {
		if i%fillAtOnce == 0 && size <= maxAnswer {
			if err := e.fill(ctx, tx, got[i:min(i+fillAtOnce, len(got))], scopes, edited); err != nil {
				return nil, nil, err
			}
		}
		x := &got[i]
		lease := store.Lease{Task: x.ID, Version: x.LeaseVersion, Session: x.Session}
		if size > maxAnswer || x.Held {
			broken = append(broken, unfit{lease: lease})
			continue
		}
		on, w := ons[i], watches[x.ID]
		if w.Generation != x.Generation {
			w = store.Watch{}
		}
		if w.ClosesAt > 0 && w.ClosesAt <= now {
			broken = append(broken, unfit{lease: lease, closed: true})
			continue
		}
		tenant, err := e.tenantNameOf(ctx, tx, x.Tenant)
		if err != nil {
			return nil, nil, err
		}
		queue, err := e.queueNameOf(ctx, tx, x.Queue)
		if err != nil {
			return nil, nil, err
		}
		l := drover.Lease{TaskID: x.ID, JobID: x.Job, LeaseVersion: x.LeaseVersion, Tenant: tenant, Name: x.Kind, Index: int(x.Index), Kind: x.Kind,
			Queue: queue, Generation: int(x.Generation), Attempt: int(x.Attempt), Input: x.Input,
			IdempotencyKey: x.ID.String() + "-" + strconv.Itoa(int(x.Generation)), Traceparent: attemptTrace(x),
			MaxAttempts: on.retry.MaxAttempts, Timeout: drover.Duration(on.timeout), Heartbeat: drover.Duration(on.beats), Checkpoint: nilIfEmpty(w.Checkpoint)}
		if w.ClosesAt > 0 {
			l.Timeout = min(l.Timeout, drover.Duration(w.ClosesAt.Sub(now)))
		}
		size += len(l.Checkpoint)
		if x.Pipeline == 0 {
			if in := edited[x.ID]; in != nil {
				l.Input = in
			}
			out = append(out, l)
			size += len(l.Input)
			continue
		}
		plan, err := e.plan(ctx, tx, x.Pipeline)
		if err != nil {
			return nil, nil, err
		}
		n := &plan.Nodes[x.Node]
		l.Name, l.Pipeline, l.PipelineVersion, l.DegradedBy = n.Name, plan.Name, int(plan.Version), spoilt[x.ID]
		l.Input, err = edited[x.ID], nil
		if l.Input == nil {
			l.Input, err = scopes[x.Job].render(&x.Task, x.Input)
		}
		var refused *drover.Error
		switch {
		case errors.As(err, &refused):
			broken = append(broken, unfit{lease: lease, failure: &drover.Failure{Class: drover.ClassInput, Message: refused.Error()}})
			continue
		case err != nil:
			return nil, nil, err
		}
		out = append(out, l)
		size += len(l.Input)
	}
	return out, broken, nil
}

// fillAtOnce is how many claimed tasks' inputs are read in one round trip.
const fillAtOnce = 100

// fill reads what the inputs of claimed tasks are made of.
func (e *Engine) fill(ctx context.Context, tx store.Tx, got []store.Claimed, scopes map[drover.JobID]*scope, edited map[drover.TaskID][]byte) error {
	var replayed []store.Generation
	for i := range got {
		x := &got[i]
		given := x.Generation > 1
		if !given && x.Pipeline != 0 {
			plan, err := e.plan(ctx, tx, x.Pipeline)
			if err != nil {
				return err
			}
			given = plan.Lent(x.Node)
		}
		if given {
			replayed = append(replayed, store.Generation{Task: x.ID, N: x.Generation})
		}
	}
	items := map[drover.TaskID][]byte{}
	if err := tx.Pipe(ctx, store.EditedInputs(replayed, edited), store.TaskInputs(tasksOf(replayed), items)); err != nil {
		return err
	}
	for i := range got {
		if item, ok := items[got[i].ID]; ok {
			got[i].Input = item
		}
	}
	var wants []want
	for i := range got {
		x := &got[i]
		if x.Pipeline == 0 || edited[x.ID] != nil {
			continue
		}
		plan, err := e.plan(ctx, tx, x.Pipeline)
		if err != nil {
			return err
		}
		s := scopes[x.Job]
		if s == nil {
			s = newScope(x.Job, plan)
			scopes[x.Job] = s
		}
		wants = append(wants, want{s, plan.InputRefs(x.Node), x.Index})
	}
	return loadScopes(ctx, tx, wants)
}

// render fills in the input of a task; the *drover.Error is the user's to mend.
func (s *scope) render(t *lifecycle.Task, item []byte) (json.RawMessage, error) {
	in, err := s.plan.Render(t.Node, s.dag(item, t.Index))
	if err != nil {
		return nil, drover.Errorf(drover.CodeExpression, "input of task %q: %s", s.plan.Nodes[t.Node].Name, err.Error())
	}
	if len(in) > 8*MaxPayload {
		return nil, drover.Errorf(drover.CodePayloadTooLarge, "input of task %q has %d bytes once filled in; at most %d: pass references instead", s.plan.Nodes[t.Node].Name, len(in), 8*MaxPayload)
	}
	return in, nil
}

// attemptTrace is the W3C trace context of an attempt: the job's trace, and a
// span id that is the same whenever it is asked for.
func attemptTrace(x *store.Claimed) string {
	var span [8]byte
	copy(span[:], x.ID[8:])
	span[0] ^= byte(x.LeaseVersion)
	span[1] ^= byte(x.LeaseVersion >> 8)
	b := append(make([]byte, 0, 55), "00-"...)
	b = append(appendTraceID(b, x.Job, x.Trace), '-')
	return string(append(hex.AppendEncode(b, span[:]), "-01"...))
}

// scope is what the expressions of a job's tasks see.
type scope struct {
	job   drover.JobID
	plan  *compiled
	input json.RawMessage
	have  bool                        // input is loaded
	out   map[dag.Key]json.RawMessage // outputs, by task
	// Of the tasks looked at, how those ended that have, and which were blocked.
	ended   map[dag.Key]drover.Status
	blocked map[dag.Key]bool
	asked   map[dag.Key]bool // single tasks that have been looked for
	nodes   map[int32]bool   // nodes whose outputs are all loaded
	sizes   map[int32]int
	grown   map[int32]int // sizes of maps that this transaction has expanded
}

func newScope(job drover.JobID, plan *compiled) *scope {
	return &scope{job: job, plan: plan, out: map[dag.Key]json.RawMessage{}, ended: map[dag.Key]drover.Status{}, blocked: map[dag.Key]bool{}, asked: map[dag.Key]bool{}, nodes: map[int32]bool{}, sizes: map[int32]int{}}
}

// want is what a task's expressions refer to; a reference to the same element
// means index.
type want struct {
	*scope
	refs  []dag.Ref
	index int32
}

// loadScopes reads the jobs' inputs and the outputs that are wanted, those at hand
// excepted, in one round trip.
func loadScopes(ctx context.Context, tx store.Tx, wants []want) error {
	scopes := map[drover.JobID]*scope{}
	var jobs []drover.JobID
	var single, whole []store.Element
	asked := map[store.Element]bool{}
	ask := func(list *[]store.Element, p store.Element) {
		if !asked[p] {
			asked[p] = true
			*list = append(*list, p)
		}
	}
	for _, w := range wants {
		if !w.have && scopes[w.job] == nil {
			jobs = append(jobs, w.job)
		}
		scopes[w.job] = w.scope
		for _, r := range w.refs {
			p := store.Element{Job: w.job, Node: r.Node, Index: w.index}
			k := dag.Key{Node: r.Node, Index: w.index}
			if _, ok := w.out[k]; w.nodes[r.Node] || r.Same && (ok || w.asked[k]) {
				continue
			} else if r.Same {
				w.asked[k] = true
				ask(&single, p)
			} else {
				p.Index = -2
				ask(&whole, p)
			}
		}
	}
	inputs, counts := map[drover.JobID][]byte{}, map[store.Element]int{}
	var outputs []store.Output
	if err := tx.Pipe(ctx, store.JobInputs(jobs, inputs), store.ElementOutputs(single, &outputs), store.NodeOutputs(whole, &outputs), store.CountElements(whole, counts)); err != nil {
		return err
	}
	for _, id := range jobs {
		scopes[id].input, scopes[id].have = inputs[id], true
	}
	var gone []store.Element
	newest := map[store.Element]int32{}
	for _, o := range outputs {
		s, k := scopes[o.Job], dag.Key{Node: o.Node, Index: o.Index}
		if _, ok := s.out[k]; ok && newest[o.Element] == 0 {
			continue // one of this transaction is newer
		}
		if newest[o.Element] > o.Generation {
			continue
		}
		newest[o.Element] = o.Generation
		s.ended[k], s.blocked[k] = o.Status, o.How == lifecycle.HowBlocked
		if delete(s.out, k); o.Status == drover.Succeeded { // of several generations the last counts
			s.out[k] = o.Data
		}
		if o.How == lifecycle.HowGone {
			delete(s.ended, k)
			gone = append(gone, o.Element)
		}
	}
	for _, p := range whole {
		scopes[p.Job].nodes[p.Node] = true
		scopes[p.Job].sizes[p.Node] = counts[store.Element{Job: p.Job, Node: p.Node}]
	}
	return uncountGone(ctx, tx, scopes, gone)
}

// uncountGone takes from the sizes of maps the elements that made room when the map
// expanded again and have not come back.
func uncountGone(ctx context.Context, tx store.Tx, scopes map[drover.JobID]*scope, gone []store.Element) error {
	var jobs []drover.JobID
	for _, p := range gone {
		if k := (dag.Key{Node: p.Node, Index: p.Index}); scopes[p.Job].nodes[p.Node] && scopes[p.Job].ended[k] == 0 {
			jobs = append(jobs, p.Job)
		}
	}
	if len(jobs) == 0 {
		return nil
	}
	live := map[store.Element]bool{}
	err := tx.Pipe(ctx, store.LiveTasks(uniqueSorted(jobs), func(t lifecycle.Task) { live[store.Element{Job: t.Job, Node: t.Node, Index: t.Index}] = true }))
	counted := map[store.Element]bool{}
	for _, p := range gone {
		s := scopes[p.Job]
		if s.nodes[p.Node] && s.ended[dag.Key{Node: p.Node, Index: p.Index}] == 0 && !live[p] && !counted[p] {
			counted[p] = true
			s.sizes[p.Node]--
		}
	}
	return err
}

func tasksOf(list []store.Generation) []drover.TaskID {
	ids := make([]drover.TaskID, len(list))
	for i, g := range list {
		ids[i] = g.Task
	}
	return ids
}

// dag gives the expressions their view.
func (s *scope) dag(item json.RawMessage, index int32) dag.Scope {
	if len(item) == 0 {
		item = nil
	}
	return dag.Scope{Input: s.input, Item: item, Index: index,
		Output: func(k dag.Key) (json.RawMessage, bool) {
			v, ok := s.out[k]
			if ok && len(v) == 0 {
				v = json.RawMessage("null")
			}
			return v, ok
		},
		Len: func(node int32) int {
			if n, ok := s.grown[node]; ok {
				return n
			}
			return s.sizes[node]
		},
	}
}

// nilIfEmpty makes JSON that is not there nil.
func nilIfEmpty(b []byte) json.RawMessage {
	if len(b) == 0 {
		return nil
	}
	return b
}
