// Package lifecycle holds how a task and a job change: one table of events and
// states, and a function for each event. It does no I/O.
package lifecycle

import (
	"time"

	"github.com/drover-dev/drover"
)

// Instant is a time of the store's clock in microseconds since the Unix epoch;
// zero is never.
type Instant int64

// At converts a time; the zero time is never.
func At(t time.Time) Instant {
	if t.IsZero() {
		return 0
	}
	return Instant(t.UnixMicro())
}

// Time is the instant as people are told it: in UTC, to the millisecond. Instants
// themselves are compared and stored. Never is the zero time.
func (i Instant) Time() time.Time {
	if i == 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(i)).UTC().Truncate(time.Millisecond)
}

// Add returns the instant d later.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d.Microseconds()) }

// Sub returns the time from j to i.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i-j) * time.Microsecond }

// Task is a live task: everything its row holds, whichever table that is. The
// functions of this package take it as it is and return it as it becomes.
type Task struct {
	ID          drover.TaskID
	Job         drover.JobID
	Node, Index int32 // place in the graph; Index −1 is a map that has not expanded
	Queue, Lane int32
	Class       drover.Class
	Status      drover.Status
	Generation  int32 // counts replays, from 1
	Attempt     int32 // counts attempts that were used up or are under way
	Losses      int32 // counts lost leases, apart from attempts
	// LeaseVersion is the fence: it rises by one at every claim, loss, release
	// and forced end, and never falls.
	LeaseVersion int32
	Unmet        int32 // parents a PENDING task waits for
	// How those of its parents that have ended count, where its rule asks.
	ParentsSucceeded, ParentsFailed, ParentsSkipped int32
	// How a final task came to its end.
	How How
	// Events counts the job's events while the task's row stands for the whole
	// job; 0 or less when the job has a row of its own.
	Events    int32
	Since     Instant // when the status began
	DueAt     Instant // order within the queue; when a delayed task starts
	ReadyAt   Instant
	QueuedAt  Instant
	ClaimedAt Instant
	Session   int64 // the session that holds the lease
	Acquire   int64 // the session's acquire that took it
	Waits     Waits // time spent so far by reason, up to Since
	// Line says what the line of a READY task waited for, as far as it is known.
	Line *Spans
}

// How is how a task came to its end where its status does not tell; it is stored,
// never renumber.
type How int16

// The ways.
const (
	HowPlain   How = 0
	HowJoined  How = 4 // SUCCEEDED with the result of the job that it ran
	HowReused  How = 7 // SUCCEEDED with the result of another task
	HowBlocked How = 1 // SKIPPED because of a failure above it: those below count it as failed
	HowGone    How = 2 // SKIPPED and counted no more: its map expands again, or what called it runs again
	HowMarked  How = 3 // somebody said so
	HowBacked  How = 8 // SUCCEEDED with the result of its backup
)

// Solo reports whether the task's row stands for its whole job.
func (t *Task) Solo() bool { return t.Events > 0 }

// Reason is what a task spends time on.
type Reason uint8

// The reasons, numbered for storage; never renumber. Their names are the codes of the API.
const (
	WaitDependency Reason = 1 // parents have not ended
	WaitSchedule   Reason = 2 // its start time is in the future
	WaitHandoff    Reason = 3 // READY or QUEUED, and nothing but a free worker is wanted
	WaitRetry      Reason = 4 // backoff, snooze
	WaitPaused     Reason = 5 // its job is paused
	WaitPark       Reason = 6 // WAITING
	Run            Reason = 7 // being run
	WaitParallel   Reason = 8 // as many elements of its map run as may at one time

	// READY, and something keeps its line from being admitted.
	WaitQueuePaused    Reason = 9
	WaitCircuit        Reason = 10
	WaitNoWorker       Reason = 11
	WaitNoMatch        Reason = 12
	WaitDraining       Reason = 13
	WaitGlobalLimit    Reason = 14
	WaitTenantQuota    Reason = 15
	WaitQueueLimit     Reason = 16
	WaitKindLimit      Reason = 17
	WaitConcurrencyKey Reason = 18
	WaitSemaphore      Reason = 19
	WaitLock           Reason = 20
	WaitRate           Reason = 21
	WaitResources      Reason = 22
	WaitPriority       Reason = 23
	WaitFairShare      Reason = 24
	WaitWorkersFull    Reason = 25
	WaitChild          Reason = 26 // WAITING for the job that it runs
	reasons                   = 27
)

var reasonNames = [reasons]string{
	WaitDependency: "dependency", WaitSchedule: "schedule_not_due", WaitHandoff: "handoff", WaitRetry: "retry_backoff",
	WaitPaused: "job_paused", WaitPark: "signal", Run: "run", WaitParallel: "map_parallel",
	WaitQueuePaused: "queue_paused", WaitCircuit: "circuit_open", WaitNoWorker: "no_worker_for_kind", WaitNoMatch: "no_worker_matches_labels", WaitDraining: "workers_draining",
	WaitGlobalLimit: "global_limit", WaitTenantQuota: "tenant_quota", WaitQueueLimit: "queue_limit", WaitKindLimit: "kind_limit", WaitConcurrencyKey: "concurrency_key",
	WaitSemaphore: "semaphore_full", WaitLock: "lock_held", WaitRate: "rate_limited", WaitResources: "resources", WaitPriority: "priority", WaitFairShare: "fair_share",
	WaitWorkersFull: "workers_full", WaitChild: "child_job",
}

// ReasonOf is the reason of a code of the API that an admission gives; WaitHandoff
// of any other.
func ReasonOf(code string) Reason {
	for r, name := range reasonNames {
		if name == code && (r >= int(WaitQueuePaused) && r <= int(WaitWorkersFull) || r == int(WaitPaused)) {
			return Reason(r)
		}
	}
	return WaitHandoff
}

// Span says what the READY tasks of a line wait for from a time on.
type Span struct {
	From Instant
	Why  Reason
}

// Spans are those of one line, one after the other.
type Spans []Span

// Each calls f for each piece of the time from one to another. Before the first span
// nothing is known: that is WaitHandoff.
func (s Spans) Each(from, to Instant, f func(until Instant, why Reason)) {
	why := WaitHandoff
	for _, x := range s {
		if x.From >= to {
			break
		}
		if x.From > from {
			f(x.From, why)
			from = x.From
		}
		why = x.Why
	}
	if to > from {
		f(to, why)
	}
}

// String returns the code of the API.
func (r Reason) String() string {
	if r < reasons && reasonNames[r] != "" {
		return reasonNames[r]
	}
	return "unknown"
}

// Waits is time by reason, in microseconds. Folded at every move, it adds up
// to the task's age.
type Waits [reasons]int64

// Encode packs the totals: a byte of reason and eight of microseconds for each
// that is not zero. No time spent is no bytes.
func (w *Waits) Encode() []byte {
	b := []byte{}
	for r, us := range w {
		if us != 0 {
			b = append(b, byte(r), byte(us>>56), byte(us>>48), byte(us>>40), byte(us>>32), byte(us>>24), byte(us>>16), byte(us>>8), byte(us))
		}
	}
	return b
}

// DecodeWaits unpacks what Encode packed; bytes it does not know are passed over.
func DecodeWaits(b []byte) (w Waits) {
	for ; len(b) >= 9; b = b[9:] {
		if b[0] < reasons {
			var us int64
			for _, c := range b[1:9] {
				us = us<<8 | int64(c)
			}
			w[b[0]] = us
		}
	}
	return w
}

// Map returns the totals by the codes of the API.
func (w *Waits) Map() map[string]drover.Duration {
	m := map[string]drover.Duration{}
	for r, us := range w {
		if us != 0 {
			m[Reason(r).String()] = drover.Duration(us) * drover.Duration(time.Microsecond)
		}
	}
	return m
}

// reason tells what t spends its time on while it stands where it is.
func (t *Task) reason() Reason {
	switch t.Status {
	case drover.Pending:
		if t.DueAt > 0 && t.Unmet == 0 {
			return WaitSchedule
		}
		return WaitDependency
	case drover.RetryWait:
		return WaitRetry
	case drover.Running:
		return Run
	case drover.Waiting:
		return WaitChild
	case drover.Ready:
		switch {
		case t.InLine():
			return WaitParallel
		case t.Lane == HeldLane:
			return WaitPaused
		}
		return WaitHandoff
	default: // DISPATCH_PENDING, QUEUED; a final task spends no time
		return WaitHandoff
	}
}

// HeldLane is the lane READY tasks of a paused job stand in, and those that wait for a
// place among their map's max_parallel: nobody scans it.
const HeldLane = 0

// InLine reports whether t waits for a place among its map's max_parallel: it has not
// been able to run yet.
func (t *Task) InLine() bool {
	return t.Status == drover.Ready && t.Lane == HeldLane && t.ReadyAt == 0
}

// Started reports whether a live t waits neither for its parents nor in line: an
// element that has started has a place among its map's max_parallel until it ends.
func (t *Task) Started() bool {
	return !t.InLine() && (t.Status != drover.Pending || t.Unmet == 0 && t.DueAt > 0)
}

// TotalAt returns the totals as they are at now, without moving the task.
func (t *Task) TotalAt(now Instant) Waits {
	w := t.Waits
	switch {
	case now <= t.Since:
	case t.Line != nil && t.Status == drover.Ready && t.Lane != HeldLane:
		from := t.Since
		t.Line.Each(from, now, func(until Instant, why Reason) {
			w[why] += int64(until - from)
			from = until
		})
	default:
		w[t.reason()] += int64(now - t.Since)
	}
	return w
}

// moved folds the time spent and starts the next status.
func (t Task) moved(to drover.Status, now Instant) Task {
	t.Waits = t.TotalAt(now)
	t.Status, t.Since, t.Line = to, max(now, t.Since), nil
	return t
}
