// Package explain puts into words why tasks wait: for each reason the sentence a
// person reads, what is waited for, and what can be done. It decides nothing: what
// keeps a task from running is known before (package admit, the task's own row).
// It does no I/O.
package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drover-dev/drover"
)

// first is the order in which reasons are primary: what no other remedy can make up
// for comes first.
var first = func() map[drover.Reason]int {
	m := map[drover.Reason]int{}
	for i, r := range drover.Reasons() {
		m[r] = i
	}
	// Others being ahead matters only where there is somebody to be ahead for.
	m[drover.BlockerPriority], m[drover.BlockerFairShare] = m[drover.BlockerWorkersFull]*2, m[drover.BlockerWorkersFull]*2+1
	m[drover.BlockerHandoff] = len(m) * 3
	return m
}()

// Order puts blockers in their order, marks the first as the primary one, and fills
// in what follows from others of their fields.
func Order(list []drover.Blocker, now time.Time) []drover.Blocker {
	slices.SortStableFunc(list, func(a, b drover.Blocker) int { return cmp.Compare(first[a.Code], first[b.Code]) })
	for i := range list {
		b := &list[i]
		b.Layer, b.Primary = b.Code.Layer(), i == 0
		if !b.Since.IsZero() {
			b.Waited = Span(now.Sub(b.Since))
		}
	}
	return list
}

// Span is a time as it is told: to the millisecond, and not negative.
func Span(d time.Duration) drover.Duration {
	return drover.Duration(max(d, 0).Truncate(time.Millisecond))
}

// Parent is a node of the graph that a task waits for.
type Parent struct {
	Name string
	Task drover.TaskID // of a node of one task
	// Total counts its tasks, Ended those that have ended; the others wait.
	Total, Ended, Running int
	Progress              *drover.Progress // of a single running one
	Unexpanded            bool             // how many tasks it has is not known yet
}

func (p Parent) text() string {
	state := "waits"
	if p.Running > 0 {
		state = "runs"
	}
	switch {
	case p.Unexpanded:
		return p.Name + " (a map that has not expanded)"
	case p.Total > 1:
		return fmt.Sprintf("%s (%d of %d done)", p.Name, p.Ended, p.Total)
	case p.Progress != nil && p.Progress.Ratio > 0:
		return fmt.Sprintf("%s (runs, %.0f %%)", p.Name, 100*p.Progress.Ratio)
	}
	return p.Name + " (" + state + ")"
}

// listed joins words, and counts those that are too many to read.
func listed(words []string) string {
	const most = 5
	if n := len(words); n > most {
		words = append(slices.Clone(words[:most]), fmt.Sprintf("%d more", n-most))
	}
	if n := len(words); n > 1 {
		return strings.Join(words[:n-1], ", ") + " and " + words[n-1]
	}
	return strings.Join(words, "")
}

// Dependency is the wait for tasks above; on is the one that it takes longest to.
func Dependency(parents []Parent, on *Parent) drover.Blocker {
	b := drover.Blocker{Code: drover.BlockerDependency, Subject: drover.Subject{Kind: "task"}}
	words := make([]string, len(parents))
	for i, p := range parents {
		words[i] = p.text()
	}
	b.Message = "Waiting for " + listed(words) + "."
	if len(parents) == 0 {
		b.Message = "Waiting for tasks above it."
	}
	if on != nil {
		b.Subject = drover.Subject{Kind: "task", Name: on.Name, Limit: int64(on.Total), Used: int64(on.Ended)}
		if !on.Task.IsZero() {
			b.Remedies = append(b.Remedies, drover.Remedy{Action: "explain_dependency", Command: "drover explain " + on.Task.String(), Message: "See what task " + on.Name + " waits for."})
		}
	}
	return b
}

// StandsBy is the wait of a task that runs only when it is called for.
func StandsBy(what string) drover.Blocker {
	return drover.Blocker{Code: drover.BlockerDependency, Subject: drover.Subject{Kind: "task"}, Message: "Standing by: " + what + "."}
}

// DependencyFailed is of a task that a failure elsewhere is about to end.
func DependencyFailed(reason string) drover.Blocker {
	return drover.Blocker{Code: drover.BlockerDependencyFailed, Subject: drover.Subject{Kind: "job"}, Message: "It will not start: " + cmp.Or(reason, "a task of the job failed") + ", and the pipeline says that the rest stops then.",
		Remedies: []drover.Remedy{{Action: "replay_failed", Message: "Replay the task that failed when its cause is gone."}}}
}

// ChildJob is the wait of a task for the job that it runs; a zero one has not been made.
func ChildJob(job drover.JobID) drover.Blocker {
	b := drover.Blocker{Code: drover.BlockerChildJob, Subject: drover.Subject{Kind: "job"}, Message: "The job that it runs has not been made yet."}
	if !job.IsZero() {
		b.Subject.Name, b.Message = job.String(), "The job that it runs has not ended."
		b.Remedies = []drover.Remedy{{Action: "explain_child", Command: "drover explain " + job.String(), Message: "See what that job waits for."}}
	}
	return b
}

// Schedule is the wait for a start time.
func Schedule(due, now time.Time) drover.Blocker {
	return drover.Blocker{Code: drover.BlockerSchedule, Subject: drover.Subject{Kind: "time"}, Until: due, ETA: exactly(due.Sub(now), "its start time"),
		Message: fmt.Sprintf("Not due before %s, in %s.", Clock(due), Long(due.Sub(now)))}
}

// exactly is a forecast of what is known.
func exactly(d time.Duration, basis string) *drover.ETA {
	return &drover.ETA{P50: Span(d), P90: Span(d), Basis: basis, Confidence: "high"}
}

// Retry is the wait before the next attempt. failure is why the last one failed,
// nil when it snoozed.
func Retry(due, now time.Time, attempt, most int, failure *drover.Failure) drover.Blocker {
	b := drover.Blocker{Code: drover.BlockerRetry, Subject: drover.Subject{Kind: "time"}, Until: due, ETA: exactly(due.Sub(now), "the time of its next attempt")}
	if failure == nil {
		b.Message = fmt.Sprintf("Runs again at %s, in %s, by its own wish.", Clock(due), Long(due.Sub(now)))
		return b
	}
	b.Subject.Limit, b.Subject.Used = int64(most), int64(attempt)
	b.Message = fmt.Sprintf("Attempt %d of %d failed (%s: %s); the next is at %s, in %s.", attempt, most, failure.Class, Short(failure.Message), Clock(due), Long(due.Sub(now)))
	return b
}

// JobPaused is the wait for a job's resume.
func JobPaused(job drover.JobID, actor, reason string, since time.Time) drover.Blocker {
	by := ""
	if actor != "" {
		by = " by " + actor
	}
	if reason != "" {
		by += " (" + Short(reason) + ")"
	}
	return drover.Blocker{Code: drover.BlockerJobPaused, Subject: drover.Subject{Kind: "job", Name: job.String()}, Since: since,
		Message:  fmt.Sprintf("Its job was paused%s at %s.", by, Clock(since)),
		Remedies: []drover.Remedy{{Action: "resume_job", Command: "drover job resume " + job.String(), Message: "Resume the job."}}}
}

// QueuePaused is the wait for a queue's resume.
func QueuePaused(queue string) drover.Blocker {
	return drover.Blocker{Code: drover.BlockerQueuePaused, Subject: drover.Subject{Kind: "queue", Name: queue},
		Message:  fmt.Sprintf("Queue %s is paused: nothing of it starts.", queue),
		Remedies: []drover.Remedy{{Action: "resume_queue", Requires: operator, Command: "drover queue resume " + positional(queue), Message: "Resume the queue."}}}
}

// Circuit is the wait for a circuit. state says how it stands.
func Circuit(name, state, reason string, probe drover.TaskID, since, until time.Time) drover.Blocker {
	b := drover.Blocker{Code: drover.BlockerCircuit, Subject: drover.Subject{Kind: "circuit", Name: name}, Since: since, Until: until}
	switch {
	case state == drover.CircuitProbing:
		b.Message = fmt.Sprintf("circuit %s is open; task %s tries if it works again", name, probe)
	case state == drover.CircuitRecovering:
		b.Message = fmt.Sprintf("circuit %s recovers: tasks are let go little by little until %s", name, Clock(until))
	case until.IsZero():
		b.Message = fmt.Sprintf("circuit %s was opened by hand: %s", name, reason)
	default:
		b.Message = fmt.Sprintf("circuit %s is open: %s; one task tries at %s", name, reason, Clock(until))
	}
	b.Remedies = []drover.Remedy{{Action: "close_circuit", Command: "drover circuit close " + name, Message: "Close the circuit, if what it guards works again."}}
	return b
}

// Workers are those that a task could be run by.
type Workers struct {
	Queue, Kind string
	// Serve counts the live workers of the queue, Kinds those of them that have a
	// handler for the kind, Matching those of these that have the labels and
	// resources, Draining those of all that take no more.
	Serve, Kinds, Matching, Draining int
	Lacks                            []string // "2 lack gpu", of those that do not match
}

// NoWorker is of a task whose kind nobody runs.
func NoWorker(w Workers) drover.Blocker {
	b := drover.Blocker{Code: drover.BlockerNoWorker, Subject: drover.Subject{Kind: "kind", Name: w.Kind, Limit: int64(w.Serve)}}
	b.Message = fmt.Sprintf("no live worker of queue %q runs tasks of kind %q", w.Queue, w.Kind)
	if w.Serve == 0 {
		b.Message = fmt.Sprintf("no live worker serves queue %q", w.Queue)
	}
	b.Remedies = []drover.Remedy{{Action: "start_worker", Message: fmt.Sprintf("Start a worker that serves queue %s and has a handler for %s.", w.Queue, w.Kind)}}
	return b
}

// NoMatch is of a task that asks for what no worker has: "0 of 3 workers match: 2
// lack gpu, 1 draining".
func NoMatch(w Workers) drover.Blocker {
	why := slices.Clone(w.Lacks)
	if w.Draining > 0 {
		why = append(why, fmt.Sprintf("%d draining", w.Draining))
	}
	return drover.Blocker{Code: drover.BlockerNoMatch, Subject: drover.Subject{Kind: "worker", Name: w.Queue, Limit: int64(w.Serve), Used: int64(w.Matching)},
		Message: fmt.Sprintf("%d of %s of queue %s match: %s.", w.Matching, Count(w.Serve, "worker", "workers"), w.Queue, strings.Join(why, ", ")),
		Remedies: []drover.Remedy{{Action: "start_worker", Message: "Start a worker that has what it asks for."},
			{Action: "change_request", Message: "Submit it again with other labels or resources, if it does not need them."}}}
}

// Draining is of a task whose workers all take no more.
func Draining(w Workers) drover.Blocker {
	return drover.Blocker{Code: drover.BlockerDraining, Subject: drover.Subject{Kind: "worker", Name: w.Queue, Limit: int64(w.Serve)},
		Message:  fmt.Sprintf("Every worker of queue %s that could run it is draining (%d of %d): they finish what they have and take no more.", w.Queue, w.Draining, w.Serve),
		Remedies: []drover.Remedy{{Action: "start_worker", Message: "Start another worker for the queue."}}}
}

// Place is a task's place in a line: the first has 1. It is exact up to 1,000.
type Place struct {
	Position, Of int
	MoreAhead    bool // it is further behind
	MoreBehind   bool // there are more than Of
}

// String reads "4th of 17" or "behind more than 1,000 others".
func (p Place) String() string {
	switch {
	case p.MoreAhead:
		return "behind more than 1,000 others"
	case p.Position <= 0:
		return "in line"
	case p.MoreBehind:
		return fmt.Sprintf("%s of more than %s", Nth(p.Position), Thousands(p.Of))
	}
	return fmt.Sprintf("%s of %s", Nth(p.Position), Thousands(p.Of))
}

func (p Place) subject(s drover.Subject) drover.Subject {
	s.Position, s.MoreAhead, s.Queued = p.Position, p.MoreAhead, p.Of
	if p.MoreAhead {
		s.Position = 1000
	}
	return s
}

// WorkersFull is the wait for a slot.
func WorkersFull(queue string, slots, used int, p Place) drover.Blocker {
	return drover.Blocker{Code: drover.BlockerWorkersFull, Subject: p.subject(drover.Subject{Kind: "queue", Name: queue, Limit: int64(slots), Used: int64(used)}),
		Message: fmt.Sprintf("All workers of queue %s that can run it are busy (%d of %d slots in use); it is %s.", queue, used, slots, p),
		Remedies: []drover.Remedy{{Action: "add_workers", Message: "Start more workers, or more slots, for queue " + queue + "."},
			{Action: "cancel_holder", Message: "Cancel something that runs and matters less."}}}
}

// Ahead is the wait for those who go first, of a higher class or of others' turns.
func Ahead(code drover.Reason, queue string, class drover.Class, n int, more bool, p Place) drover.Blocker {
	many := Thousands(n)
	if more {
		many = "more than " + many
	}
	b := drover.Blocker{Code: code, Subject: p.subject(drover.Subject{Kind: "queue", Name: queue})}
	b.Message = fmt.Sprintf("Others of queue %s have their turn first: it is %s.", queue, p)
	if code == drover.BlockerPriority {
		b.Subject.Kind, b.Subject.Name = "class", class.String()
		b.Message = fmt.Sprintf("%s of class %s in queue %s go first; it is %s.", many, class, queue, p)
	}
	b.Remedies = []drover.Remedy{{Action: "add_workers", Message: "Start more workers for queue " + queue + "."},
		{Action: "submit_higher_class", Message: "Submit it with a higher class, if it is more urgent than those."}}
	return b
}

// Reserved is the wait for a slot that is not kept for a class before the task's own.
func Reserved(queue, class string, kept, used int64, p Place) drover.Blocker {
	return drover.Blocker{Code: drover.BlockerPriority, Subject: p.subject(drover.Subject{Kind: "reserve", Name: class, Limit: kept, Used: used}),
		Message: fmt.Sprintf("%s of queue %s %s kept for class %s and those before it, which use %d of them; it is %s.", Count(int(kept), "slot", "slots"), queue, be(kept), class, used, p),
		Remedies: []drover.Remedy{{Action: "change_reserve", Message: "Keep less of queue " + queue + " for class " + class + ".", Command: "drover queue reserve --none " + positional(queue), Requires: operator},
			{Action: "add_workers", Message: "Start more workers for queue " + queue + "."},
			{Action: "submit_higher_class", Message: "Submit it with a higher class, if it is more urgent than others."}}}
}

func be(n int64) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// Handoff is of a task that a free worker has not taken yet.
func Handoff(queue string) drover.Blocker {
	return drover.Blocker{Code: drover.BlockerHandoff, Subject: drover.Subject{Kind: "queue", Name: queue},
		Message: fmt.Sprintf("A worker of queue %s is free and takes it with its next request.", queue)}
}

// nouns are what limits are called, by the code of the wait for them.
var nouns = map[drover.Reason]string{
	drover.BlockerGlobalLimit: "limit of the installation", drover.BlockerTenantQuota: "quota of the tenant", drover.BlockerQueueLimit: "limit of the queue",
	drover.BlockerKindLimit: "limit of the kind", drover.BlockerConcurrencyKey: "limit per key", drover.BlockerSemaphore: "semaphore",
}

// Limit is the wait for a limit, of which l.Used is in use. key is whose it is, of one
// that is counted by key; asks is how much the task takes of it.
func Limit(code drover.Reason, l drover.Limit, key string, asks int64, until time.Time, p Place) drover.Blocker {
	b := drover.Blocker{Code: code, Until: until, Subject: p.subject(drover.Subject{Kind: "limit", Name: l.Name, Limit: l.Max, Used: l.Used})}
	full := l.Name
	if key != "" {
		full += " (" + Short(key) + ")"
	}
	switch code {
	case drover.BlockerLock:
		b.Subject.Kind = "lock"
		b.Message = fmt.Sprintf("Waiting for lock %s, which is held; it is %s.", full, p)
	case drover.BlockerRate:
		b.Subject.Limit = l.Burst
		b.Message = fmt.Sprintf("Waiting for rate limit %s; it is %s.", full, p)
		if !until.IsZero() {
			b.Message = fmt.Sprintf("Waiting for rate limit %s, which lets the next go at %s; it is %s.", full, Clock(until), p)
		}
	default:
		if code == drover.BlockerSemaphore {
			b.Subject.Kind = "semaphore"
		}
		b.Message = fmt.Sprintf("Waiting for %s %s: %d of %d in use; it is %s.", nouns[code], full, l.Used, l.Max, p)
		if asks > 1 {
			b.Message = fmt.Sprintf("Waiting for %d of %s %s: %d of %d in use; it is %s.", asks, nouns[code], full, l.Used, l.Max, p)
		}
	}
	b.Remedies = []drover.Remedy{raise(l, asks)}
	if code != drover.BlockerRate {
		b.Remedies = append(b.Remedies, drover.Remedy{Action: "cancel_holder", Message: "Cancel a holder that matters less."})
	}
	return b
}

// operator is who may set what holds for every tenant.
const operator = "admin of the tenant system"

// raise is what sets a limit to as much as lets a task that asks for some of it start
// beside those that hold it; a rate to twice as many. Its scope, queue and kind stay.
func raise(l drover.Limit, asks int64) drover.Remedy {
	words := []string{"drover limit set", l.Name}
	if l.Scope != drover.ScopeNamed {
		words = append(words, "--scope", l.Scope)
	} else if l.Shared {
		words = append(words, "--shared")
	}
	if l.Queue != "" {
		words = append(words, "--queue", word(l.Queue))
	}
	if l.Kind != "" {
		words = append(words, "--kind", word(l.Kind))
	}
	if l.Rate > 0 {
		words = append(words, "--rate", strconv.FormatFloat(min(2*l.Rate, 1e6), 'g', -1, 64), "--burst", strconv.FormatInt(l.Burst, 10))
	} else {
		words = append(words, "--max", strconv.FormatInt(max(l.Max+1, l.Used+asks), 10))
	}
	r := drover.Remedy{Action: "raise_limit", Requires: "limits:admin", Command: strings.Join(words, " "), Message: "Raise it, if what it guards can bear more."}
	if l.Shared {
		r.Requires = operator
	}
	return r
}

// MapParallel is the wait of an element for a place among those of its map that run.
func MapParallel(name string, most int, since time.Time) drover.Blocker {
	return drover.Blocker{Code: drover.BlockerMapParallel, Subject: drover.Subject{Kind: "map", Name: name, Limit: int64(most), Used: int64(most)}, Since: since,
		Message:  fmt.Sprintf("as many elements of %q run as may at one time (max_parallel: %d); this one starts when others have ended, the first of those that wait first", name, most),
		Remedies: []drover.Remedy{{Action: "raise_max_parallel", Message: "Raise max_parallel in the pipeline's next version, if more may run side by side: a job keeps the one it began with."}}}
}

// Resources is of a task that asks for more of something than any worker has.
func Resources(queue, name string, has, asks int64) drover.Blocker {
	return drover.Blocker{Code: drover.BlockerResources, Subject: drover.Subject{Kind: "resource", Name: name, Limit: has},
		Message:  fmt.Sprintf("It asks for %d %s, and no worker of queue %s has more than %d.", asks, name, queue, has),
		Remedies: []drover.Remedy{{Action: "add_workers", Message: "Start a worker with more of it."}}}
}

// ResourcesFull is the wait for room at a worker: none has enough of it free.
func ResourcesFull(queue, name string, limit, used, asks int64, p Place) drover.Blocker {
	return drover.Blocker{Code: drover.BlockerResources, Subject: p.subject(drover.Subject{Kind: "resource", Name: name, Limit: limit, Used: used}),
		Message: fmt.Sprintf("No worker of queue %s has %d %s free (%d of %d in use); it is %s.", queue, asks, name, used, limit, p),
		Remedies: []drover.Remedy{{Action: "add_workers", Message: "Start a worker with more of it."},
			{Action: "cancel_holder", Message: "Cancel something that runs and matters less."}}}
}
