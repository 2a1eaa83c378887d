package lifecycle

import (
	"fmt"
	"slices"

	"github.com/drover-dev/drover"
)

// Event is something that happens to a task.
type Event string

// The events of a task.
const (
	EventMet      Event = "dependencies met"
	EventAdmit    Event = "admitted"
	EventPublish  Event = "published"
	EventUnadmit  Event = "un-admitted"
	EventDefer    Event = "its turn came early"
	EventClaim    Event = "claimed"
	EventSucceed  Event = "succeeded"
	EventFail     Event = "failed"
	EventCut      Event = "cut off"
	EventSnooze   Event = "snoozed"
	EventRelease  Event = "released"
	EventLose     Event = "lease lost"
	EventPark     Event = "parked"
	EventWake     Event = "woken"
	EventJoin     Event = "its job ended"
	EventAwait    Event = "left to its backup"
	EventBackUp   Event = "backed up"
	EventGiveUp   Event = "its backup failed too"
	EventBeat     Event = "beaten"
	EventDue      Event = "due"
	EventReuse    Event = "reused"
	EventNoExpand Event = "expansion failed"
	EventCancel   Event = "cancelled"
	EventAck      Event = "cancellation acknowledged or its grace run out"
	EventSkip     Event = "skipped"
	EventExpire   Event = "expired"
	EventClose    Event = "out of time"
	EventMark     Event = "marked"
	EventReplay   Event = "replayed"
)

// Transition is one line of the table.
type Transition struct {
	Event Event
	From  []drover.Status
	To    []drover.Status
	// Doc says when it happens and what it does besides.
	Doc string
}

var (
	waitingStates = []drover.Status{drover.Pending, drover.Ready, drover.DispatchPending, drover.Queued, drover.RetryWait, drover.Waiting}
	finalStates   = []drover.Status{drover.Succeeded, drover.Failed, drover.Cancelled, drover.Skipped, drover.DeadLetter}
)

// Table returns every transition a task can make. Code, docs/states.md and
// tests come from it; a move that is not in it is refused.
func Table() []Transition {
	return []Transition{
		{EventMet, s(drover.Pending), s(drover.Ready, drover.Queued, drover.Waiting), "the last parent ended well; at once QUEUED when no limit applies, the queue is not paused, the job is not held and its map's max_parallel has room; WAITING when it runs a pipeline, once its start time has come"},
		{EventAdmit, s(drover.Ready), s(drover.Queued, drover.DispatchPending, drover.Waiting), "its turn came; DISPATCH_PENDING where a broker carries the queue; WAITING when it runs a pipeline"},
		{EventPublish, s(drover.DispatchPending), s(drover.Queued), "the broker confirmed the message"},
		{EventUnadmit, s(drover.Queued, drover.DispatchPending), s(drover.Ready), "its job or queue was paused, a limit came to apply to it, or no worker is left that runs it"},
		{EventDefer, s(drover.Ready), s(drover.Pending), "it has a place among its map's max_parallel before its start time came"},
		{EventClaim, s(drover.Queued), s(drover.Running), "a worker took the lease; attempt and lease_version rise by one"},
		{EventSucceed, s(drover.Running), s(drover.Succeeded), "its worker reported success under the current lease_version"},
		{EventFail, s(drover.Running), s(drover.RetryWait, drover.Failed, drover.DeadLetter), "FAILED for a permanent error, DEAD_LETTER when the attempts that its class and type have are used up, else RETRY_WAIT with full jitter, or until the time that a throttled answer names"},
		{EventCut, s(drover.Running), s(drover.RetryWait, drover.DeadLetter), "it ran past its timeout and nobody stopped it, or missed a heartbeat; lease_version rises; then as any failure of class timeout"},
		{EventSnooze, s(drover.Running), s(drover.RetryWait), "not now; the attempt is given back"},
		{EventRelease, s(drover.Running), s(drover.Ready), "given back by its worker; the attempt too; lease_version rises"},
		{EventLose, s(drover.Running), s(drover.Ready, drover.RetryWait, drover.DeadLetter), "its session's lease ran out; lease_version rises; backoff from the second loss, DEAD_LETTER at the sixth: five are survived"},
		{EventPark, s(drover.Running), s(drover.Waiting), "it waits for a signal, a timer, a callback or a person, and holds nothing"},
		{EventWake, s(drover.Waiting), s(drover.Ready), "what it waited for came"},
		{EventJoin, s(drover.Waiting), s(drover.Succeeded, drover.Failed), "the job that it ran has ended"},
		{EventAwait, s(drover.Running), s(drover.Waiting), "it has failed for good and has a backup, which may give its result yet"},
		{EventBackUp, append(slices.Clone(waitingStates), drover.Running), s(drover.Succeeded), "its backup gave a result first; lease_version rises when a worker had it"},
		{EventGiveUp, s(drover.Waiting), s(drover.Failed, drover.DeadLetter), "its backup has not succeeded either: it ends as it would have without one"},
		{EventBeat, append(slices.Clone(waitingStates), drover.Running), s(drover.Skipped), "it is a backup, and the task it runs beside has ended; lease_version rises when a worker had it"},
		{EventDue, s(drover.Pending, drover.RetryWait), s(drover.Ready, drover.Queued), "its start or retry time came"},
		{EventReuse, s(drover.Ready), s(drover.Succeeded), "an artifact of the same identity exists"},
		{EventNoExpand, s(drover.Pending), s(drover.Failed), "a map over something that is no list, or over too long a list"},
		{EventCancel, waitingStates, s(drover.Cancelled), "a cancel won before a worker had it"},
		{EventAck, s(drover.Running), s(drover.Cancelled), "its worker stopped, or did not within the grace; lease_version rises when forced"},
		{EventSkip, waitingStates, s(drover.Skipped), "policy decided that it does not run"},
		{EventExpire, append(slices.Clone(waitingStates), drover.Running), s(drover.Failed), "expires_at passed; error class expired"},
		{EventClose, append(slices.Clone(waitingStates), drover.Running), s(drover.Failed), "schedule_to_close passed, or would pass before the next attempt; class timeout, with the last failure as its cause; lease_version rises when a worker had it"},
		{EventMark, append(slices.Clone(waitingStates), drover.Running), s(drover.Succeeded, drover.Failed, drover.Skipped), "somebody said how it has ended; lease_version rises when a worker had it"},
		{EventReplay, finalStates, s(drover.Pending, drover.Ready, drover.Queued), "explicit; opens generation + 1, the old record stays"},
	}
}

func s(list ...drover.Status) []drover.Status { return list }

var table = func() map[Event]Transition {
	m := map[Event]Transition{}
	for _, t := range Table() {
		m[t.Event] = t
	}
	return m
}()

// Check returns nil when ev may take a task from one status to the other, and
// otherwise an error that is drover.ErrNotAllowed.
func Check(ev Event, from, to drover.Status) error {
	t, ok := table[ev]
	if ok && slices.Contains(t.From, from) && slices.Contains(t.To, to) {
		return nil
	}
	return drover.Errorf(drover.CodeInvalidTransition, "a task that is %s cannot be %s and become %s", from, ev, to)
}

// must moves t and panics when the table has no such line: the caller has read
// the row in that state, so the invariant is broken.
func must(ev Event, t Task, to drover.Status, now Instant) Task {
	if err := Check(ev, t.Status, to); err != nil {
		panic(fmt.Sprintf("task %s: %v", t.ID, err))
	}
	return t.moved(to, now)
}
