// Package admit decides who may run next, and why the others may not. It does
// no I/O.
//
// A View is what the store knows at a moment: the heads of the waiting lines, how
// far each limit is used, which workers are there and what is admitted for them
// already. Decide turns it into a Decision: who is admitted, and for everybody
// else every reason why not. Explanations come from the decision itself; there is
// no second logic.
package admit

import (
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
)

// Code is why a task waits; one of the closed list of the API.
type Code string

// The codes that an admission can give, in the order in which they are primary:
// of several reasons the first is told first.
const (
	JobPaused       Code = "job_paused"
	QueuePaused     Code = "queue_paused"
	CircuitOpen     Code = "circuit_open"
	NoWorker        Code = "no_worker_for_kind"
	NoLabels        Code = "no_worker_matches_labels"
	Draining        Code = "workers_draining"
	GlobalLimit     Code = "global_limit"
	TenantQuota     Code = "tenant_quota"
	QueueLimit      Code = "queue_limit"
	KindLimit       Code = "kind_limit"
	ConcurrencyKey  Code = "concurrency_key"
	SemaphoreFull   Code = "semaphore_full"
	LockHeld        Code = "lock_held"
	RateLimited     Code = "rate_limited"
	LackOfResources Code = "resources"
	Priority        Code = "priority"
	FairShare       Code = "fair_share"
	WorkersFull     Code = "workers_full"
	Handoff         Code = "handoff"
)

// Scope is to whom a limit applies; stored, never renumber.
type Scope int16

// The scopes, in the order in which limits are told.
const (
	Global Scope = 1 // every task
	Tenant Scope = 2 // the tasks of a tenant
	InLine Scope = 3 // the tasks of a queue
	OfKind Scope = 4 // the tasks of a kind
	PerKey Scope = 5 // the tasks of one concurrency key; each key is counted by itself
	Named  Scope = 6 // the tasks that ask for it by name: a semaphore, and with one permit a lock
)

// Limit is a bound and how far it is used. A limit with a Period bounds a rate,
// any other how many permits are held at once.
type Limit struct {
	ID    int32
	Name  string
	Key   string // of which it is counted here; only of a limit per key
	Scope Scope

	Max  int64 // permits
	Used int64 // that are held

	Period time.Duration // of one unit of a rate; 0 is no rate
	Burst  int64         // units that may come at once
	// Arrival is when a rate is all used up to, in nanoseconds since the epoch: the
	// theoretical arrival time of GCRA.
	Arrival int64
	// Until is until when a downstream asked to be left alone; 0 is not.
	Until lifecycle.Instant

	// Asked is what the handlers of running tasks wait for, in their turn. First says
	// that they go before the tasks this time: those and these have what comes free by turns.
	Asked []int64
	First bool
}

// Take is what a task takes of a limit: its place in View.Limits, and how much.
type Take struct {
	Limit  int
	Weight int64
}

// Needs is which workers can run a task, and what it takes of one.
type Needs struct {
	Queue, Tenant int32
	Kind          string
	Labels        map[string]string // the worker must have them
	Requests      map[string]int64  // units of the resources that the worker declares
}

// Line is a waiting line: the READY tasks of one lane and class, which take the
// same limits and ask the same of a worker.
type Line struct {
	Lane  int32
	Class drover.Class
	Needs
	Takes []Take
	// Circuit is the name of the circuit that stops the line; empty is none.
	Circuit      string
	CircuitUntil lifecycle.Instant
	Heads        []Head // in the order of their turn
}

// Head is a waiting task near the front of its line.
type Head struct {
	Task    drover.TaskID
	Job     drover.JobID
	ReadyAt lifecycle.Instant
	DueAt   lifecycle.Instant // its turn in the line
}

// Queue is where the tasks of lines go when they are admitted.
type Queue struct {
	ID     int32
	Name   string
	Paused bool
	// Ahead is how many tasks may be admitted beyond the free slots of those workers
	// that can run them: about what these claim before the next decision.
	Ahead int
	// Reserves are what is kept for classes, in their order; each is of those before it,
	// too. Runs is how many tasks of each class run or are admitted.
	Reserves []Reserve
	Runs     map[drover.Class]int
}

// Worker is a session, or several that are alike.
type Worker struct {
	Name      string
	Queues    []int32
	Tenant    int32    // 0 serves every tenant
	Kinds     []string // empty is every kind
	Labels    map[string]string
	Resources map[string]int64 // that it declares
	Slots     int
	Busy      int              // slots in use
	Taken     map[string]int64 // resources in use
	Draining  bool
}

// Admitted is what was admitted before and is not yet claimed.
type Admitted struct {
	Needs
	Count int
}

// View is what a decision is made from.
type View struct {
	Now     lifecycle.Instant
	Limits  []Limit
	Queues  map[int32]Queue
	Workers []Worker
	Claims  []Admitted // not yet claimed, of those that may be
	Lines   []Line
	// Held are the jobs whose tasks must not start.
	Held map[drover.JobID]bool
	// Shares are what tenants have had; nil treats all alike.
	Shares *Shares
	// Most bounds how many are admitted; 0 is no bound.
	Most int
}

// Subject is what a blocked task waits for.
type Subject struct {
	Kind  string // limit, queue, worker, circuit, job, tenant, class, reserve
	Name  string // of the limit, queue, circuit or resource
	Key   string // of a limit per key
	ID    int32  // of the limit or the queue
	Scope Scope  // of the limit
	Limit int64  // how many there are
	Used  int64  // of them, held at the time of the decision, by those admitted in it too
	Asks  int64  // how many the task takes
	// Kept says that some is free, and kept: for a task that asks for several and has
	// waited for long, or for a class.
	Kept bool
	// Position is the place of the line's first waiting task among those of the view
	// that wait for the same, from 1; the next of the line has the next.
	Position int
	// Until is when a rate lets the task go, or when a circuit is tried; 0 is not known.
	Until lifecycle.Instant
	// Of workers: how many serve the queue, how many of them take the kind, have the
	// labels and ever have the resources, and how many are draining.
	Workers, Kinds, Labels, Fits, Draining int
}

// Blocker is a reason why a task was not admitted, and what it waits for.
type Blocker struct {
	Code    Code
	Subject Subject
}

// Admission is a task that may run.
type Admission struct {
	Line int // its place in View.Lines
	Head int // its place in the line's heads
}

// Verdict is why the rest of a line waits.
type Verdict struct {
	Line  int
	First int // the first of the line's heads that waits
	// After counts the admissions that were made before its turn came: Blockers are
	// what stood in its way then.
	After int
	// Blockers are all that keep it from running, the primary one first: without them
	// it would run.
	Blockers []Blocker
}

// Decision is the answer to a view.
type Decision struct {
	// Admitted are the tasks that may run, in the order of their turn.
	Admitted []Admission
	// Held are heads whose job is held: they leave the line until it is resumed.
	Held []Admission
	// Waiting has a verdict for every line of which somebody waits, in the order of
	// their turn.
	Waiting []Verdict
	// Arrivals are the limits of View whose rate was used, with what Arrival is now.
	Arrivals map[int]int64
	// Granted tells, by limit of View, how many of those of Asked get what they wait for,
	// the first ones. First tells of the limits that somebody of Asked was left at whether
	// they go before the tasks the next time.
	Granted map[int]int
	First   map[int]bool
}

// codeOf is the code of a limit that is full.
func (l *Limit) code() Code {
	if l.Period > 0 {
		return RateLimited
	}
	switch l.Scope {
	case Global:
		return GlobalLimit
	case Tenant:
		return TenantQuota
	case InLine:
		return QueueLimit
	case OfKind:
		return KindLimit
	case PerKey:
		return ConcurrencyKey
	default:
		if l.Max == 1 {
			return LockHeld
		}
		return SemaphoreFull
	}
}

// Free tells how many units of l there are at now; it is negative while more are
// held than a lowered limit has.
func (l *Limit) Free(now lifecycle.Instant) int64 {
	if l.Period == 0 {
		return l.Max - l.Used
	}
	if l.Until > now {
		return 0
	}
	at := int64(now) * 1000
	return (at + l.Burst*int64(l.Period) - max(l.Arrival, at)) / int64(l.Period)
}

// When is when a rate has so many units; 0 says that no time is known.
func (l *Limit) When(units int64, now lifecycle.Instant) lifecycle.Instant {
	if l.Period == 0 || units > l.Burst {
		return 0
	}
	at := max(l.Arrival, int64(now)*1000) + (units-l.Burst)*int64(l.Period)
	return max(lifecycle.Instant((at+999)/1000), l.Until, now)
}

// take uses units of l.
func (l *Limit) take(units int64, now lifecycle.Instant) {
	if l.Period == 0 {
		l.Used += units
		return
	}
	l.Arrival = max(l.Arrival, int64(now)*1000) + units*int64(l.Period)
}
