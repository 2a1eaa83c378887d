package drover

import (
	"encoding/json"
	"time"
)

// Task is one task as the API shows it.
type Task struct {
	ID    TaskID `json:"task_id"`
	JobID JobID  `json:"job_id"`
	// Name is the node's name in the pipeline; of a Kind job, its kind.
	Name string `json:"name"`
	// Index is the element of a mapped task, from 0; -1 is a map that has not expanded; plain tasks have 0.
	Index  int    `json:"index"`
	Mapped bool   `json:"mapped,omitempty"`
	Kind   string `json:"kind"`
	Queue  string `json:"queue"`
	Class  Class  `json:"class"`
	Status Status `json:"status"`
	// Generation counts replays, from 1.
	Generation   int   `json:"generation"`
	Attempt      int   `json:"attempt"`
	MaxAttempts  int   `json:"max_attempts"`
	LeaseVersion int32 `json:"lease_version"`
	// Unmet is how many parents a PENDING task still waits for.
	Unmet    int       `json:"unmet,omitempty"`
	Worker   string    `json:"worker,omitempty"`
	Progress *Progress `json:"progress,omitempty"`
	// Cancellation is how far the cancel of a running task has come.
	Cancellation *Cancellation `json:"cancellation,omitempty"`
	CreatedAt    time.Time     `json:"created_at"`
	// DueAt is when a RETRY_WAIT or future task starts.
	DueAt          time.Time `json:"due_at,omitzero"`
	ReadyAt        time.Time `json:"ready_at,omitzero"`
	QueuedAt       time.Time `json:"queued_at,omitzero"`
	ClaimedAt      time.Time `json:"claimed_at,omitzero"`
	FinishedAt     time.Time `json:"finished_at,omitzero"`
	LeaseExpiresAt time.Time `json:"lease_expires_at,omitzero"`
	// ClosesAt is when schedule_to_close ends the task.
	ClosesAt time.Time `json:"closes_at,omitzero"`
	// HeartbeatAt is when an attempt of this generation was heard last.
	HeartbeatAt time.Time `json:"heartbeat_at,omitzero"`
	// Checkpoint is what the last heartbeat of this generation kept for the next
	// attempt; lists leave it out.
	Checkpoint json.RawMessage `json:"checkpoint,omitempty"`
	Input      json.RawMessage `json:"input,omitempty"`
	Output     json.RawMessage `json:"output,omitempty"`
	Error      *Failure        `json:"error,omitempty"`
	// LastError is why the newest failed attempt of a task that has not ended failed.
	LastError *Failure `json:"last_error,omitempty"`
	// Circuit is the one that the task names.
	Circuit string `json:"circuit,omitempty"`
	// Blockers are what a task that could run waits for.
	Blockers []Blocker `json:"blockers,omitempty"`
	// Waits are seconds waited by reason, in this generation; with the runs they add up to its age.
	Waits map[string]Duration `json:"waits,omitempty"`
	// ChildJobID is the job that the task runs, if it runs a pipeline: that of its
	// newest generation that has one.
	ChildJobID JobID `json:"child_job_id,omitzero"`
	// Reused says that the result is that of another task.
	Reused *Reuse `json:"reused,omitempty"`
	// Gone says, of a task that is SKIPPED, that it counts no more since a rerun: its map
	// expands again, or what called it runs again.
	Gone bool `json:"gone,omitempty"`
	// BackedUp says, of a task that is SUCCEEDED, that its output is the result of its backup.
	BackedUp bool `json:"backed_up,omitempty"`
	// Marked says that somebody said how it has ended.
	Marked bool `json:"marked,omitempty"`
}

// Reuse says with whose result a task ended: that of the first task of the same
// identity.
type Reuse struct {
	// Identity is the SHA-256 of everything that the result depends on, 64 hexadecimal digits.
	Identity   string `json:"identity"`
	JobID      JobID  `json:"job_id"`
	TaskID     TaskID `json:"task_id"`
	Generation int    `json:"generation"`
}

// Cancellation is a cancel on its way: requested, then acknowledged by the worker,
// whose handler cleans up; with the handler's end, or when its grace is over, the
// task is CANCELLED and its attempt's outcome says which: cancelled or forced.
type Cancellation struct {
	RequestedAt time.Time `json:"requested_at"`
	// AcknowledgedAt is when the worker said that it had told the handler to stop;
	// zero while it has not.
	AcknowledgedAt time.Time `json:"acknowledged_at,omitzero"`
}

// Attempt is one execution of a task.
type Attempt struct {
	TaskID       TaskID    `json:"task_id"`
	Generation   int       `json:"generation"`
	Attempt      int       `json:"attempt"`
	LeaseVersion int32     `json:"lease_version"`
	Worker       string    `json:"worker,omitempty"`
	Outcome      string    `json:"outcome"` // succeeded failed timed_out snoozed released lease_lost cancelled forced running
	ReadyAt      time.Time `json:"ready_at,omitzero"`
	QueuedAt     time.Time `json:"queued_at,omitzero"`
	ClaimedAt    time.Time `json:"claimed_at"`
	EndedAt      time.Time `json:"ended_at,omitzero"`
	Error        *Failure  `json:"error,omitempty"`
}

// Lease is a task as a worker receives it: the right to run it until the
// session's lease runs out or it is told otherwise.
type Lease struct {
	TaskID       TaskID `json:"task_id"`
	JobID        JobID  `json:"job_id"`
	LeaseVersion int32  `json:"lease_version"`
	Tenant       string `json:"tenant"`
	Name         string `json:"name"`
	Index        int    `json:"index"`
	Kind         string `json:"kind"`
	Queue        string `json:"queue"`
	Generation   int    `json:"generation"`
	Attempt      int    `json:"attempt"`
	MaxAttempts  int    `json:"max_attempts"`
	// Timeout bounds this attempt: its timeout (start-to-close), or what is left of
	// schedule_to_close if that is less. The worker ends it; when it does not, the
	// server does, half a lease later.
	Timeout Duration `json:"timeout"`
	// Heartbeat is how long the attempt may be silent; zero asks for no heartbeats.
	Heartbeat Duration `json:"heartbeat,omitzero"`
	// Checkpoint is what the last heartbeat of the attempts before this one kept.
	Checkpoint json.RawMessage `json:"checkpoint,omitempty"`
	// Input has every ${{ }} filled in.
	Input           json.RawMessage `json:"input,omitempty"`
	Pipeline        string          `json:"pipeline,omitempty"`
	PipelineVersion int             `json:"pipeline_version,omitempty"`
	// DegradedBy are failures that were made good above this task: what it is given may
	// be less than it would have been. At most 20.
	DegradedBy []Degradation `json:"degraded_by,omitempty"`
	// IdempotencyKey is the same for every attempt of a generation; pass it on to outside systems.
	IdempotencyKey string `json:"idempotency_key"`
	// Traceparent is the W3C trace context of this attempt.
	Traceparent string `json:"traceparent"`
}

// Outcome statuses a worker reports.
const (
	OutcomeSucceeded = "succeeded"
	OutcomeFailed    = "failed"
	OutcomeSnoozed   = "snoozed"   // run again after RetryAfter; uses up no attempt
	OutcomeReleased  = "released"  // given back unstarted or while draining; uses up no attempt
	OutcomeCancelled = "cancelled" // acknowledges a cancellation, after cleaning up
)

// Outcome is how an attempt ended, as its worker reports it.
type Outcome struct {
	TaskID       TaskID `json:"task_id"`
	LeaseVersion int32  `json:"lease_version"`
	// Status is one of the Outcome constants.
	Status string `json:"status"`
	// Output is the result of a succeeded attempt: any JSON.
	Output json.RawMessage `json:"output,omitempty"`
	// Error says why a failed attempt failed.
	Error *Failure `json:"error,omitempty"`
	// RetryAfter is the delay of a snooze or of a throttled failure.
	RetryAfter Duration `json:"retry_after,omitzero"`
	// Artifacts names the uploads that become visible with this outcome.
	Artifacts []ArtifactID `json:"artifacts,omitempty"`
}

// Settled answers one Outcome.
type Settled struct {
	TaskID TaskID `json:"task_id"`
	// Status is the task's status after the outcome; zero when it was refused.
	Status Status `json:"status,omitzero"`
	Err    *Error `json:"-"`
}

// NewSession opens a worker session.
type NewSession struct {
	// Worker is a name people recognise, such as "gpu-3/4711".
	Worker string   `json:"worker"`
	Queues []string `json:"queues"`
	// Kinds are the handlers it has: it is given no other tasks. Empty takes every kind.
	Kinds  []string          `json:"kinds,omitempty"`
	Slots  int               `json:"slots"`
	Labels map[string]string `json:"labels,omitempty"`
	// Resources are what it has for its tasks beside slots, such as {"gpu": 2, "mem_mb":
	// 65536}: names of its own choice, whole units.
	Resources map[string]int64 `json:"resources,omitempty"`
	// Version is the worker program's version, for people.
	Version string `json:"version,omitempty"`
}

// Session is a worker process as the server knows it.
type Session struct {
	ID        SessionID         `json:"worker_id"`
	Worker    string            `json:"worker"`
	Queues    []string          `json:"queues"`
	Kinds     []string          `json:"kinds,omitempty"`
	Slots     int               `json:"slots"`
	Running   int               `json:"running"`
	Labels    map[string]string `json:"labels,omitempty"`
	Resources map[string]int64  `json:"resources,omitempty"`
	Version   string            `json:"version,omitempty"`
	Draining  bool              `json:"draining,omitempty"`
	StartedAt time.Time         `json:"started_at"`
	ExpiresAt time.Time         `json:"expires_at"`
	// LeaseFor is how long the session lives from each renewal; RenewEvery how often to renew.
	LeaseFor   Duration `json:"lease_for"`
	RenewEvery Duration `json:"renew_every"`
}

// SessionID names a worker session; on the wire "wrk_" and a number.
type SessionID int64

// Held names a lease a worker believes it holds.
type Held struct {
	TaskID       TaskID `json:"task_id"`
	LeaseVersion int32  `json:"lease_version"`
}

// Renewal extends a session and with it every lease it holds.
type Renewal struct {
	// Held names the leases the worker holds. A lease of an acquire numbered up
	// to Acquired that is not named is taken back: its answer was lost.
	Held []Held `json:"held"`
	// Acquired is the number up to which every acquire was answered or given up.
	Acquired int64 `json:"acquired"`
	// Stopping are those of Held whose handlers have been told to stop because
	// their tasks are cancelled.
	Stopping []Held `json:"stopping,omitempty"`
	// Draining says that the worker takes no more.
	Draining bool `json:"draining,omitempty"`
}

// Renewed answers a Renewal.
type Renewed struct {
	ExpiresAt time.Time `json:"expires_at"`
	LeaseFor  Duration  `json:"lease_for"`
	// Cancelled are held leases whose tasks should stop and be settled as cancelled.
	Cancelled []Held `json:"cancelled,omitempty"`
	// Lost are leases named in Held that the server does not grant any more: stop, and report nothing.
	Lost []Held `json:"lost,omitempty"`
}

// Acquire asks for leases.
type Acquire struct {
	Session SessionID `json:"worker_id"`
	// Queues to take from; empty means those of the session.
	Queues []string `json:"queues,omitempty"`
	// Max is how many at most; 1 to 1000.
	Max int `json:"max"`
	// Wait is how long to wait for the first one; at most 20 s.
	Wait Duration `json:"wait,omitzero"`
	// Number counts the session's acquires from 1, so that a lost answer can be taken back.
	Number int64 `json:"number"`
}

// Queue is a named place tasks wait in.
type Queue struct {
	Name    string `json:"name"`
	Ready   int    `json:"ready"`
	Queued  int    `json:"queued"`
	Running int    `json:"running"`
	Delayed int    `json:"delayed"`
	// OldestAge is how long the oldest QUEUED or READY task has waited.
	OldestAge Duration `json:"oldest_age"`
	Workers   int      `json:"workers"`
	Slots     int      `json:"slots"`
	// NoWorkerFor are the kinds of tasks that wait in it and that none of its workers runs.
	NoWorkerFor []string `json:"no_worker_for,omitempty"`
	// Paused says that nothing of it starts, Draining that it takes no new jobs; Reason
	// is what was said of it.
	Paused   bool   `json:"paused,omitempty"`
	Draining bool   `json:"draining,omitempty"`
	Reason   string `json:"reason,omitempty"`
	// Reserves are the shares of its slots that are kept for classes.
	Reserves []Reserve `json:"reserves,omitempty"`
	// Changes are the last changes of that, newest first, where one queue is asked for.
	Changes []QueueChange `json:"changes,omitempty"`
	// Approximate says that a count stopped at its cap of 100,000.
	Approximate bool `json:"approximate,omitempty"`
}

// Reserve is a share of a queue's slots that is kept for tasks of a class and of those
// before it: others start only while as much is free for them, or used by them.
type Reserve struct {
	Class Class `json:"class"`
	// Percent is 1 to 90; a part of a slot is one, and one slot is left for everybody.
	Percent int `json:"percent"`
}

// QueueChange is a change of a queue's state.
type QueueChange struct {
	At     time.Time `json:"at"`
	Action string    `json:"action"` // paused, resumed, drained, reserved
	Actor  string    `json:"actor"`
	Reason string    `json:"reason,omitempty"`
}

// LogLine is one line a handler logged.
type LogLine struct {
	At    time.Time       `json:"at"`
	Level string          `json:"level"` // debug info warn error stdout stderr
	Text  string          `json:"text"`
	Attrs json.RawMessage `json:"attrs,omitempty"`
	// Attempt and TaskID are set when lines are read.
	TaskID  TaskID `json:"task_id,omitzero"`
	Attempt int    `json:"attempt,omitempty"`
}
