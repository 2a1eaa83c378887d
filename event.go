package drover

import (
	"encoding/json"
	"time"
)

// EventType names a recorded fact; on the wire "job.accepted".
type EventType string

// The durable events, numbered per job without gaps.
const (
	JobAccepted        EventType = "job.accepted"
	JobPaused          EventType = "job.paused"
	JobResumed         EventType = "job.resumed"
	JobCancelRequested EventType = "job.cancel_requested"
	JobReopened        EventType = "job.reopened"
	JobSucceeded       EventType = "job.succeeded"
	JobFailed          EventType = "job.failed"
	JobCancelled       EventType = "job.cancelled"
	JobCompensating    EventType = "job.compensating" // it ended badly and undoes what it did: tasks
	JobReconciled      EventType = "job.reconciled"   // its rows did not agree with its records and were mended: findings
	TaskExpanded       EventType = "task.expanded"    // a map's elements took its place: name, count
	TaskSucceeded      EventType = "task.succeeded"
	TaskFailed         EventType = "task.failed"
	TaskDeadLettered   EventType = "task.dead_lettered"
	TaskRetryScheduled EventType = "task.retry_scheduled"
	TaskSnoozed        EventType = "task.snoozed"
	TaskReleased       EventType = "task.released"
	TaskLeaseExpired   EventType = "task.lease_expired"
	TaskSkipped        EventType = "task.skipped"
	TaskCancelled      EventType = "task.cancelled"
	TaskReplayed       EventType = "task.replayed"
	JobRerun           EventType = "job.rerun"           // tasks of it run again: with names them, gone those that count no more until then
	TaskMarked         EventType = "task.marked"         // somebody said how it has ended: actor, reason, was, status
	TaskBackupAwaited  EventType = "task.backup_awaited" // it has failed for good, and its backup may give its result yet
	TaskBeaten         EventType = "task.beaten"         // it was a backup, and the task it ran beside has ended
	TaskChildStarted   EventType = "task.child_started"  // its job has been made: name, child_job_id
)

// Event is one recorded fact about a job.
type Event struct {
	JobID JobID `json:"job_id"`
	// Seq numbers the job's events 1, 2, 3, … without gaps.
	Seq    int64     `json:"sequence"`
	Type   EventType `json:"type"`
	At     time.Time `json:"at"`
	TaskID TaskID    `json:"task_id,omitzero"`
	// Data holds facts of the event: name, index, attempt, reason, actor …
	Data json.RawMessage `json:"data,omitempty"`
}
