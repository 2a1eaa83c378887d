package lifecycle

import (
	"time"

	"github.com/drover-dev/drover"
)

// MaxLeaseLosses is how many lost leases a task survives: the next one ends it
// as a dead letter, so that a task that kills its workers does not go round for ever.
const MaxLeaseLosses = 5

// Hold is what keeps tasks of a job from starting.
type Hold struct {
	Paused bool
}

// Met returns t after its last parent ended well. A due time in the future
// leaves it PENDING until then; a paused job's task becomes READY and is held.
func Met(t Task, h Hold, now Instant) Task {
	t.Unmet, t.ParentsSucceeded, t.ParentsFailed, t.ParentsSkipped = 0, 0, 0, 0
	if t.Status == drover.Pending && t.DueAt > now {
		t = t.moved(drover.Pending, now) // closes the wait for dependencies
		return t
	}
	return started(EventMet, t, h, now)
}

// LinedUp returns t, whose parents let it run, as one that waits for a place among
// its map's max_parallel.
func LinedUp(t Task, now Instant) Task {
	t.Unmet, t.ParentsSucceeded, t.ParentsFailed, t.ParentsSkipped = 0, 0, 0, 0
	t = must(EventMet, t, drover.Ready, now)
	t.Lane, t.ReadyAt, t.QueuedAt = HeldLane, 0, 0 // its start time stays: by another server's clock now may be to come
	return t
}

// TurnCame returns a task that was in line and has a place now, in the lane given.
// Before its start time it goes on waiting for that.
func TurnCame(t Task, lane int32, h Hold, now Instant) Task {
	switch {
	case t.DueAt > now:
		t = must(EventDefer, t, drover.Pending, now)
		t.Lane = lane
		return t
	case h.Paused:
		t.Waits, t.Since = t.TotalAt(now), max(t.Since, now)
		t.DueAt, t.ReadyAt = now, t.Since
		return t
	}
	t = Admitted(t, lane, now)
	t.DueAt, t.ReadyAt = now, t.Since
	return t
}

// Parked returns a task that runs a pipeline after its last parent ended well, once it
// has a place among its map's max_parallel, or once its start time has come: WAITING for
// that job, to be looked at at once, in the lane given. A due time in the future leaves
// it PENDING until then.
func Parked(t Task, lane int32, now Instant) Task {
	t.Unmet, t.ParentsSucceeded, t.ParentsFailed, t.ParentsSkipped = 0, 0, 0, 0
	switch came := t.Status != drover.Pending; { // it was in line
	case t.DueAt > now && came:
		t = must(EventDefer, t, drover.Pending, now)
	case t.DueAt > now:
		t = t.moved(drover.Pending, now)
	case came:
		t = must(EventAdmit, t, drover.Waiting, now)
		t.DueAt = now
	default:
		t = must(EventMet, t, drover.Waiting, now)
		t.DueAt = now
	}
	t.Lane = lane
	return t
}

// Joined returns a task whose job has ended, well or not.
func Joined(t Task, well bool, now Instant) Task {
	if well {
		t = must(EventJoin, t, drover.Succeeded, now)
		t.How = HowJoined
		return t
	}
	return must(EventJoin, t, drover.Failed, now)
}

// Awaiting returns the running task t, which has failed for good as end says, while its
// backup may give its result yet: WAITING, to be looked at at once.
func Awaiting(t, end Task, now Instant) Task {
	t = must(EventAwait, t, drover.Waiting, now)
	t.LeaseVersion, t.Losses, t.DueAt = end.LeaseVersion, end.Losses, now
	return t
}

// BackedUp returns t ended with the result of its backup. A worker that has it holds
// nothing any more.
func BackedUp(t Task, now Instant) Task {
	if t.Status == drover.Running {
		t.LeaseVersion++
	}
	t = must(EventBackUp, t, drover.Succeeded, now)
	t.How = HowBacked
	return t
}

// GivenUp returns t, whose attempts have failed for good and whose backup has not succeeded
// either. permanent says that its last failure was.
func GivenUp(t Task, permanent bool, now Instant) Task {
	if permanent {
		return must(EventGiveUp, t, drover.Failed, now)
	}
	return must(EventGiveUp, t, drover.DeadLetter, now)
}

// Beaten returns a backup ended because the task it runs beside has ended: it counts no
// more until it is called again.
func Beaten(t Task, now Instant) Task {
	if t.Status == drover.Running {
		t.LeaseVersion++
	}
	t = must(EventBeat, t, drover.Skipped, now)
	t.How = HowGone
	return t
}

// Due returns a delayed task whose time has come.
func Due(t Task, h Hold, now Instant) Task { return started(EventDue, t, h, now) }

// started is the express lane: QUEUED at once, unless the job is paused.
func started(ev Event, t Task, h Hold, now Instant) Task {
	to := drover.Queued
	if h.Paused {
		to = drover.Ready
	}
	t = must(ev, t, to, now)
	t.DueAt, t.ReadyAt, t.QueuedAt = now, now, 0
	if h.Paused {
		t.Lane = HeldLane
	} else {
		t.QueuedAt = t.Since // not before what it waited for: its row keeps this alone
	}
	return t
}

// Admitted returns a READY task that has become claimable, in the lane given.
func Admitted(t Task, lane int32, now Instant) Task {
	t = must(EventAdmit, t, drover.Queued, now)
	t.Lane, t.QueuedAt = lane, t.Since
	return t
}

// Unadmitted returns a task that has become QUEUED in this instant as READY instead:
// it needs an admission.
func Unadmitted(t Task) Task {
	t.Status, t.QueuedAt = drover.Ready, 0
	return t
}

// Returned returns a QUEUED task that must be admitted anew: its queue was paused, a
// limit came to apply to it, or nobody is left to run it.
func Returned(t Task, now Instant) Task {
	t = must(EventUnadmit, t, drover.Ready, now)
	t.QueuedAt = 0
	return t
}

// Held returns a QUEUED task of a job that was paused: READY, in the lane nobody scans.
func Held(t Task, now Instant) Task {
	t = must(EventUnadmit, t, drover.Ready, now)
	t.Lane, t.QueuedAt = HeldLane, 0
	return t
}

// Claimed returns t as the bulk claim's SQL makes it; a test holds the two equal.
func Claimed(t Task, session, acquire int64, now Instant) Task {
	t = must(EventClaim, t, drover.Running, now)
	t.Attempt++
	t.LeaseVersion++
	t.Session, t.Acquire, t.ClaimedAt = session, acquire, t.Since
	return t
}

// Reused returns a READY task ended with a result that is there already: nobody
// runs it.
func Reused(t Task, now Instant) Task {
	t = must(EventReuse, t, drover.Succeeded, now)
	t.How = HowReused
	return t
}

// Succeeded returns t with its one success.
func Succeeded(t Task, now Instant) Task { return must(EventSucceed, t, drover.Succeeded, now) }

// Fault is how an attempt failed.
type Fault struct {
	Class drover.ErrorClass
	Type  string
	// After is the delay that a throttled failure names; 0 is none.
	After time.Duration
}

// Failed returns t after a failed attempt: FAILED, DEAD_LETTER or RETRY_WAIT
// with its next start in DueAt. jitter is drawn from [0, 1).
func Failed(t Task, f Fault, p drover.Retry, jitter float64, now Instant) Task {
	if f.Class == drover.ClassPermanent || f.Class == drover.ClassInput {
		return must(EventFail, t, drover.Failed, now)
	}
	return again(EventFail, t, f, p, jitter, now)
}

// again tries t again, or not when the attempts are used up.
func again(ev Event, t Task, f Fault, p drover.Retry, jitter float64, now Instant) Task {
	p = p.For(f.Class, f.Type)
	if int(t.Attempt) >= p.MaxAttempts {
		return must(ev, t, drover.DeadLetter, now)
	}
	t = must(ev, t, drover.RetryWait, now)
	d := Backoff(int(t.Attempt), p, jitter)
	if f.Class == drover.ClassThrottled && f.After > 0 {
		d = min(f.After, MaxDelay)
	}
	t.DueAt = now.Add(d)
	return t
}

// Overrun tells if an attempt that began at claimed has run past its timeout for
// so long that its worker will not stop it.
func Overrun(claimed Instant, timeout, grace time.Duration, now Instant) bool {
	return timeout > 0 && now > claimed.Add(timeout).Add(grace)
}

// CutOff returns t whose attempt the server ends because its worker does not: as
// Failed, with a lease_version that nothing of the attempt holds.
func CutOff(t Task, typ string, p drover.Retry, jitter float64, now Instant) Task {
	t = again(EventCut, t, Fault{Class: drover.ClassTimeout, Type: typ}, p, jitter, now)
	t.LeaseVersion++
	return t
}

// ClosesAt returns when schedule_to_close ends a task that has just become able to
// run for the first time in its generation, or will at its due time. Zero is
// never. It is asked once: attempts and waits do not put it off.
func ClosesAt(t Task, scheduleToClose time.Duration, now Instant) Instant {
	if scheduleToClose <= 0 {
		return 0
	}
	return max(now, t.DueAt).Add(scheduleToClose)
}

// Closed returns t ended because its schedule_to_close has passed.
func Closed(t Task, now Instant) Task {
	if t.Status == drover.Running {
		t.LeaseVersion++
	}
	return must(EventClose, t, drover.Failed, now)
}

// Bounded holds a decision about the running task t to schedule_to_close: a task
// that would not start again before closes ends at once, and Bounded says so.
func Bounded(t, after Task, closes, now Instant) (Task, bool) {
	if closes == 0 || after.Status != drover.RetryWait || after.DueAt < closes {
		return after, false
	}
	end := must(EventClose, t, drover.Failed, now)
	end.LeaseVersion, end.Losses = after.LeaseVersion, after.Losses
	return end, true
}

// Snoozed returns t waiting for after, its attempt given back.
func Snoozed(t Task, after time.Duration, now Instant) Task {
	t = must(EventSnooze, t, drover.RetryWait, now)
	t.Attempt--
	t.DueAt = now.Add(min(max(after, 0), MaxDelay))
	return t
}

// Released returns t given back by its worker, its attempt too.
func Released(t Task, h Hold, now Instant) Task {
	t = backToReady(EventRelease, t, h, now)
	t.Attempt--
	t.LeaseVersion++
	return t
}

// backToReady stands t in line again, at the place it had: what waits behind it has
// waited less. Or in the lane nobody scans.
func backToReady(ev Event, t Task, h Hold, now Instant) Task {
	t = must(ev, t, drover.Ready, now)
	t.ReadyAt, t.QueuedAt = now, 0
	if h.Paused {
		t.Lane = HeldLane
	}
	return t
}

// LeaseLost returns t after its session's lease ran out: READY at the first
// loss, RETRY_WAIT with backoff from the second, DEAD_LETTER past
// MaxLeaseLosses. The attempt is given back; losses are counted apart.
func LeaseLost(t Task, h Hold, p drover.Retry, jitter float64, now Instant) Task {
	t.Losses++
	switch {
	case t.Losses > MaxLeaseLosses:
		t = must(EventLose, t, drover.DeadLetter, now)
		t.LeaseVersion++
		return t
	case t.Losses == 1:
		t = backToReady(EventLose, t, h, now)
	default:
		t = must(EventLose, t, drover.RetryWait, now)
		t.DueAt = now.Add(Backoff(int(t.Losses)-1, p, jitter))
	}
	t.Attempt--
	t.LeaseVersion++
	return t
}

// Cancelled returns t ended by a cancel. forced says that a running task's
// worker did not acknowledge it; its lease_version rises, so that nothing it
// still reports counts.
func Cancelled(t Task, forced bool, now Instant) Task {
	if t.Status == drover.Running {
		if forced {
			t.LeaseVersion++
		}
		return must(EventAck, t, drover.Cancelled, now)
	}
	return must(EventCancel, t, drover.Cancelled, now)
}

// Blocked returns t ended before it ran because of a failure above it.
func Blocked(t Task, now Instant) Task {
	t = must(EventSkip, t, drover.Skipped, now)
	t.How = HowBlocked
	return t
}

// Skipped returns t ended by policy before it ran.
func Skipped(t Task, now Instant) Task { return must(EventSkip, t, drover.Skipped, now) }

// Expired returns t ended because its job's expires_at passed.
func Expired(t Task, now Instant) Task {
	if t.Status == drover.Running {
		t.LeaseVersion++
	}
	return must(EventExpire, t, drover.Failed, now)
}

// NotExpanded returns a map that could not expand, or a task whose condition
// cannot be told.
func NotExpanded(t Task, now Instant) Task { return must(EventNoExpand, t, drover.Failed, now) }

// Replayed returns a final task at the start of a new generation: PENDING, with
// the parents it waits for. Attempts and losses start anew; lease_version goes on.
func Replayed(t Task, unmet int32, now Instant) Task {
	if err := Check(EventReplay, t.Status, drover.Pending); err != nil {
		panic("task " + t.ID.String() + ": " + err.Error())
	}
	return Task{ID: t.ID, Job: t.Job, Node: t.Node, Index: t.Index, Queue: t.Queue, Lane: t.Lane, Class: t.Class, Status: drover.Pending,
		Generation: t.Generation + 1, LeaseVersion: t.LeaseVersion, Unmet: unmet, Since: now}
}

// Gone returns a task that counts no more until it is made or called again; one that
// has ended begins a generation that ends so.
func Gone(t Task, now Instant) Task {
	if t.Status.Final() {
		t = Replayed(t, 0, now)
	}
	t = must(EventSkip, t, drover.Skipped, now)
	t.How = HowGone
	return t
}

// Marked returns t ended as somebody says it has. A worker that has it holds nothing
// any more.
func Marked(t Task, to drover.Status, now Instant) Task {
	if t.Status == drover.Running {
		t.LeaseVersion++
	}
	t = must(EventMark, t, to, now)
	t.How = HowMarked
	return t
}

// JobStatus returns how a job ends whose tasks have all ended: FAILED when one
// failed, else CANCELLED when one was cancelled, else SUCCEEDED.
func JobStatus(failed, cancelled int32) drover.Status {
	switch {
	case failed > 0:
		return drover.Failed
	case cancelled > 0:
		return drover.Cancelled
	}
	return drover.Succeeded
}

// Outlived reports whether a job that ended with s has been kept as long as it
// is to be; a time of zero keeps it for ever.
func Outlived(s drover.Status, finished Instant, keep drover.Retention, now Instant) bool {
	d := keep.Of(s).Std()
	return d > 0 && finished.Add(d) <= now
}
