package drover

import (
	"encoding/json"
	"time"
)

// NewJob is what a client submits. Exactly one of Pipeline and Kind is set.
type NewJob struct {
	// ID may be made by the client, so that a repeat of the request names the
	// same job; zero lets the server make it.
	ID JobID `json:"job_id,omitzero"`
	// Pipeline is "name" (its newest version) or "name@3".
	Pipeline string `json:"pipeline,omitempty"`
	// Kind is a handler's name: a job of one task.
	Kind string `json:"kind,omitempty"`
	// Queue the one task of a Kind job waits in; empty is "default".
	Queue string `json:"queue,omitempty"`
	// Input is the job's input: any JSON. It is stored byte for byte.
	Input json.RawMessage `json:"input,omitempty"`
	// Labels are free pairs to filter by; at most 32, keys up to 63 bytes, values up to 255.
	Labels map[string]string `json:"labels,omitempty"`
	// Class is the priority class; zero is Normal.
	Class Class `json:"class,omitzero"`
	// DueAt, when set, is the earliest start.
	DueAt time.Time `json:"due_at,omitzero"`
	// ExpiresAt, when set, ends whatever of the job has not finished by then.
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	// IdempotencyKey makes a repeat return the first job; up to 255 bytes, kept 7 days.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	// Traceparent is the W3C trace context the job belongs to; empty starts a trace of its own.
	Traceparent string `json:"traceparent,omitempty"`
	// Retry and what follows apply to the one task of a Kind job; pipelines declare
	// their own. Timeout bounds each attempt; zero is the default, 1 h.
	Retry   *Retry   `json:"retry,omitempty"`
	Timeout Duration `json:"timeout,omitzero"`
	// ScheduleToClose bounds all attempts and waits, from when the task is first
	// able to run; zero is no bound.
	ScheduleToClose Duration `json:"schedule_to_close,omitzero"`
	// Heartbeat is how long an attempt may be silent: without a heartbeat in that
	// time it is ended and tried again. At least 1 s; zero asks for none.
	Heartbeat Duration `json:"heartbeat,omitzero"`
	// Circuit names what the task uses and others too, such as "payment-api": while
	// that circuit is open none of its tasks starts.
	Circuit string `json:"circuit,omitempty"`
	// Limits are the named limits that the task takes, and how much of each; it starts
	// when all of them have it.
	Limits map[string]int64 `json:"limits,omitempty"`
	// ConcurrencyKey groups tasks for the limits of scope key, such as "customer-7"; up
	// to 255 bytes.
	ConcurrencyKey string `json:"concurrency_key,omitempty"`
	// Resources are what the task takes of its worker beside a slot, such as {"gpu": 1};
	// WorkerLabels what labels the worker must have.
	Resources    map[string]int64  `json:"resources,omitempty"`
	WorkerLabels map[string]string `json:"worker_labels,omitempty"`
}

// Retry says how often and when a task is tried again.
type Retry struct {
	// MaxAttempts counts the first attempt too; 1 to 1000. Zero is the default, 4.
	MaxAttempts int `json:"max_attempts,omitempty"`
	// Initial is the ceiling of the first delay (default 1 s), Factor its growth
	// (default 2, at least 1), Max its cap (default 1 min). Delays are drawn
	// evenly from zero to the ceiling ("full jitter").
	Initial Duration `json:"initial,omitzero"`
	Factor  float64  `json:"factor,omitempty"`
	Max     Duration `json:"max,omitzero"`
	// On says what differs for attempts that fail in one way. Its keys are the
	// classes retryable, throttled, timeout and panic, and error types such as
	// "exit_75"; a type counts before a class. At most 32.
	On map[string]RetryRule `json:"on,omitempty"`
}

// RetryRule is what differs for failures of one class or type; fields that are
// zero are the Retry's.
type RetryRule struct {
	// MaxAttempts is the number of the last attempt that such a failure may end:
	// from there on it is not tried again; 1 is never. At most the Retry's own.
	MaxAttempts int `json:"max_attempts,omitempty"`
	// Initial, Factor and Max are the delays after such a failure.
	Initial Duration `json:"initial,omitzero"`
	Factor  float64  `json:"factor,omitempty"`
	Max     Duration `json:"max,omitzero"`
}

// For returns what holds for a failure of a class and a type: r, changed by the
// rule for the type or else by that for the class.
func (r Retry) For(class ErrorClass, typ string) Retry {
	rule, ok := r.On[typ]
	if !ok || typ == "" {
		rule = r.On[string(class)]
	}
	r.On = nil
	if rule.MaxAttempts != 0 {
		r.MaxAttempts = rule.MaxAttempts
	}
	if rule.Factor != 0 {
		r.Factor = rule.Factor
	}
	if rule.Initial != 0 {
		r.Initial, r.Max = rule.Initial, max(r.Max, rule.Initial) // a longer first delay raises the cap
	}
	if rule.Max != 0 {
		r.Max = rule.Max
	}
	return r
}

// Counts are a job's tasks by where they are.
type Counts struct {
	Total     int `json:"total"`
	Pending   int `json:"pending,omitempty"`
	Ready     int `json:"ready,omitempty"`
	Queued    int `json:"queued,omitempty"`
	Running   int `json:"running,omitempty"`
	RetryWait int `json:"retry_wait,omitempty"`
	Waiting   int `json:"waiting,omitempty"`
	Succeeded int `json:"succeeded,omitempty"`
	Failed    int `json:"failed,omitempty"` // FAILED and DEAD_LETTER
	Cancelled int `json:"cancelled,omitempty"`
	Skipped   int `json:"skipped,omitempty"`
}

// Job is one piece of work as the API shows it.
type Job struct {
	ID              JobID             `json:"job_id"`
	Tenant          string            `json:"tenant"`
	Status          Status            `json:"status"`
	Pipeline        string            `json:"pipeline,omitempty"`
	PipelineVersion int               `json:"pipeline_version,omitempty"`
	Kind            string            `json:"kind,omitempty"`
	Creator         string            `json:"creator,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	Class           Class             `json:"class"`
	Paused          bool              `json:"paused,omitempty"`
	Cancelling      bool              `json:"cancelling,omitempty"`
	Degraded        bool              `json:"degraded,omitempty"`
	// DegradedBy are the first failures that were made good, and by what.
	DegradedBy []Degradation `json:"degraded_by,omitempty"`
	// ParentJobID and ParentTaskID are the task that runs this job, and its job.
	ParentJobID  JobID  `json:"parent_job_id,omitzero"`
	ParentTaskID TaskID `json:"parent_task_id,omitzero"`
	// Children are the first hundred jobs that its tasks run or ran; lists leave them out.
	Children []Child `json:"children,omitempty"`
	// Run counts from 1; a replay of a finished job opens the next.
	Run        int             `json:"run"`
	Tasks      Counts          `json:"tasks"`
	Progress   *Progress       `json:"progress,omitempty"`
	Input      json.RawMessage `json:"input,omitempty"`
	Result     json.RawMessage `json:"result,omitempty"`
	Error      *Failure        `json:"error,omitempty"`
	TraceID    string          `json:"trace_id"`
	CreatedAt  time.Time       `json:"created_at"`
	DueAt      time.Time       `json:"due_at,omitzero"`
	ExpiresAt  time.Time       `json:"expires_at,omitzero"`
	FinishedAt time.Time       `json:"finished_at,omitzero"`
	// Compensation is how what the job did is undone, or was, because it failed or was
	// cancelled; lists leave it out.
	Compensation *Compensation `json:"compensation,omitempty"`
	// Events is the number of the job's newest event.
	Events int64 `json:"events"`
}

// Compensation tells of the tasks of a job that undo what others did.
type Compensation struct {
	// Status is RUNNING while they run, then SUCCEEDED, or FAILED when one of them has
	// failed for good: it is a dead letter and can be replayed.
	Status Status `json:"status"`
	// Total is how many there are, Failed how many of them have failed for good.
	Total  int `json:"total"`
	Failed int `json:"failed"`
	// Tasks are a thousand of them at most: those that have failed for good, then the
	// others, each in the order in which they were called.
	Tasks []Compensated `json:"tasks"`
}

// Compensated is a task whose work is undone, or was, by another.
type Compensated struct {
	// Task and Index say whose work it is.
	Task  string `json:"task"`
	Index int    `json:"index"`
	// By, TaskID, Status and Error are those of the task that undoes it.
	By     string   `json:"by"`
	TaskID TaskID   `json:"task_id"`
	Status Status   `json:"status"`
	Error  *Failure `json:"error,omitempty"`
}

// Child is a job that a task runs.
type Child struct {
	JobID      JobID  `json:"job_id"`
	TaskID     TaskID `json:"task_id"`
	Generation int    `json:"generation"`
}

// Degradation is a failure that was made good: why a job, or a task below, is degraded.
type Degradation struct {
	// Task and Index say which task failed.
	Task  string `json:"task"`
	Index int    `json:"index"`
	// Reason is what made it good: "fallback NAME", "rescue NAME", "on_failure: degrade" or
	// "min_success: SHARE".
	Reason string   `json:"reason"`
	Error  *Failure `json:"error,omitempty"`
}

// Progress says how far a job or a running task is.
type Progress struct {
	// Ratio is between 0 and 1.
	Ratio float64 `json:"ratio"`
	// Message reads like "features: 8 of 20".
	Message string `json:"message,omitempty"`
	// ETA is the expected rest; zero when there is nothing to judge by.
	ETA Duration `json:"eta,omitzero"`
}

// ErrorClass says what the engine does about a failed attempt.
type ErrorClass string

// The classes. A handler says the first three (and may snooze); the engine gives the rest.
const (
	ClassRetryable ErrorClass = "retryable" // the default: try again with backoff
	ClassPermanent ErrorClass = "permanent" // trying again cannot help
	ClassThrottled ErrorClass = "throttled" // try again at a named time
	ClassSnoozed   ErrorClass = "snoozed"   // not now; uses up no attempt
	ClassTimeout   ErrorClass = "timeout"   // the attempt took longer than its timeout; retried
	ClassPanic     ErrorClass = "panic"     // the handler panicked; retried
	ClassLeaseLost ErrorClass = "lease_lost"
	ClassExpired   ErrorClass = "expired"   // the job's expires_at has passed
	ClassExpand    ErrorClass = "expansion" // a map over something that is no list, or too long a list
	ClassInput     ErrorClass = "input"     // an expression of the task's input found nothing
)

// Failure is why an attempt, a task or a job ended badly.
type Failure struct {
	Class   ErrorClass `json:"class"`
	Message string     `json:"message"`
	// Type is a stable name of the kind of error, such as "exit_65".
	Type string `json:"type,omitempty"`
	// Stack is the stack of a panic, capped.
	Stack string `json:"stack,omitempty"`
	// Task is the name of the task, where a job's failure is told.
	Task string `json:"task,omitempty"`
	// Cause is the last failure of a handler, where something else ended the task.
	Cause *Failure `json:"cause,omitempty"`
}

// Submitted is the answer for one NewJob: a job, or why there is none.
type Submitted struct {
	JobID  JobID  `json:"job_id,omitzero"`
	Status Status `json:"status,omitzero"`
	// Replayed says that an earlier request with this key or id made the job.
	Replayed bool `json:"replayed,omitempty"`
	// Deleted says that the job of that earlier request was accepted, has ended and
	// has been deleted since: it does not run again, and how it ended is not known
	// any more. Status is then what the first answer said.
	Deleted bool   `json:"deleted,omitempty"`
	Err     *Error `json:"-"`
}
