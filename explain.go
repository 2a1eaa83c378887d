package drover

import "time"

// Reason is a code of the closed list of what a task waits for.
type Reason string

// The reasons, in the three layers: should it run, who runs it, and where.
const (
	BlockerDependency       Reason = "dependency"               // tasks above it have not ended
	BlockerDependencyFailed Reason = "dependency_failed_policy" // a failure stops the job, and it with it
	BlockerSchedule         Reason = "schedule_not_due"         // its start time is in the future
	BlockerRetry            Reason = "retry_backoff"            // it failed, or snoozed, and is tried again later
	BlockerDispatch         Reason = "dispatch_pending"         // the broker has not confirmed its message
	BlockerNoWorker         Reason = "no_worker_for_kind"       // no live worker of its queue runs its kind
	BlockerNoMatch          Reason = "no_worker_matches_labels" // none of them has what it asks for
	BlockerWorkersFull      Reason = "workers_full"             // every slot that it could have is in use
	BlockerDraining         Reason = "workers_draining"         // those that could run it take no more
	BlockerTenantQuota      Reason = "tenant_quota"             // the tenant's limit is reached
	BlockerConcurrencyKey   Reason = "concurrency_key"          // the limit of its key is reached
	BlockerSemaphore        Reason = "semaphore_full"           // a semaphore has no slot left
	BlockerLock             Reason = "lock_held"                // somebody has the lock
	BlockerRate             Reason = "rate_limited"             // a rate limit lets it go later
	BlockerCircuit          Reason = "circuit_open"             // its circuit is not closed
	BlockerFairShare        Reason = "fair_share"               // others of its class are ahead
	BlockerPriority         Reason = "priority"                 // tasks of a higher class are ahead
	BlockerQueuePaused      Reason = "queue_paused"             // its queue is paused
	BlockerJobPaused        Reason = "job_paused"               // its job is paused
	BlockerApproval         Reason = "approval"                 // a person must decide
	BlockerSignal           Reason = "signal"                   // it waits for a signal
	BlockerTimer            Reason = "timer"                    // it waits for a time it set itself
	BlockerChildJob         Reason = "child_job"                // it waits for a job that it started
	BlockerExternalJob      Reason = "external_job"             // it waits for a pod or an external run
	BlockerBatchFilling     Reason = "batch_filling"            // its batch is not full
	BlockerBudget           Reason = "budget_exhausted"         // the budget is used up
	BlockerMaintenance      Reason = "maintenance"              // nothing starts, by an operator's word
	BlockerGlobalLimit      Reason = "global_limit"             // the limit of the installation is reached
	BlockerQueueLimit       Reason = "queue_limit"              // the limit of its queue is reached
	BlockerKindLimit        Reason = "kind_limit"               // the limit of its kind is reached
	BlockerResources        Reason = "resources"                // no worker has enough of what it asks for free
	BlockerMapParallel      Reason = "map_parallel"             // as many elements of its map run as may
	BlockerBarrier          Reason = "barrier"                  // others have not come to the barrier
	BlockerHandoff          Reason = "handoff"                  // a worker is free, and has not taken it yet
)

// Layer groups reasons by the question that they answer.
type Layer string

// The layers.
const (
	LayerBusiness       Layer = "business"       // should it run now?
	LayerExecution      Layer = "execution"      // who runs it?
	LayerInfrastructure Layer = "infrastructure" // where?
)

// reasons is the closed list, in the order in which documents have it.
var reasons = []Reason{
	BlockerDependency, BlockerDependencyFailed, BlockerSchedule, BlockerRetry, BlockerJobPaused, BlockerQueuePaused, BlockerMaintenance, BlockerMapParallel,
	BlockerGlobalLimit, BlockerTenantQuota, BlockerQueueLimit, BlockerKindLimit, BlockerConcurrencyKey, BlockerSemaphore, BlockerLock, BlockerRate, BlockerBudget,
	BlockerCircuit, BlockerPriority, BlockerFairShare, BlockerApproval, BlockerSignal, BlockerTimer, BlockerChildJob, BlockerBatchFilling, BlockerBarrier,
	BlockerNoWorker, BlockerNoMatch, BlockerResources, BlockerDraining, BlockerWorkersFull, BlockerHandoff,
	BlockerDispatch, BlockerExternalJob,
}

// Reasons returns the closed list of reasons.
func Reasons() []Reason { return append([]Reason(nil), reasons...) }

// Layer returns the layer that a reason belongs to.
func (r Reason) Layer() Layer {
	switch r {
	case BlockerNoWorker, BlockerNoMatch, BlockerResources, BlockerDraining, BlockerWorkersFull, BlockerHandoff:
		return LayerExecution
	case BlockerDispatch, BlockerExternalJob:
		return LayerInfrastructure
	}
	return LayerBusiness
}

// Blocker is a reason why a task does not run.
type Blocker struct {
	Code  Reason `json:"code"`
	Layer Layer  `json:"layer,omitempty"`
	// Primary marks the one to look at first: of the blockers of a task one is.
	Primary bool `json:"primary,omitempty"`
	// Subject is what is waited for, such as the circuit.
	Subject Subject   `json:"subject,omitzero"`
	Since   time.Time `json:"since,omitzero"`
	Waited  Duration  `json:"waited,omitzero"`
	// Until is when it is looked at again; zero when that is not known.
	Until time.Time `json:"until,omitzero"`
	// Holders are those who have what is waited for, the first to give it back
	// first; MoreHolders says how many are not listed.
	Holders     []Holder `json:"holders,omitempty"`
	MoreHolders int      `json:"more_holders,omitempty"`
	// ETA is how long it still takes; nothing when nothing is known to judge by.
	ETA      *ETA     `json:"eta,omitempty"`
	Message  string   `json:"message"`
	Remedies []Remedy `json:"remedies,omitempty"`
}

// Subject is what a task waits for.
type Subject struct {
	// Kind is task, circuit, kind, queue, job, semaphore, lock and so on.
	Kind string `json:"kind"`
	Name string `json:"name,omitempty"`
	// Limit is how much there is, Used how much of it is taken.
	Limit int64 `json:"limit,omitempty"`
	Used  int64 `json:"used,omitempty"`
	// Queued is how many wait for it, Position the task's place among them from 1. It
	// is exact up to 1,000; MoreAhead says that it is further behind.
	Queued    int  `json:"queued,omitempty"`
	Position  int  `json:"position,omitempty"`
	MoreAhead bool `json:"more_ahead,omitempty"`
}

// Holder has a part of what others wait for. Those of other tenants are shown
// without their names.
type Holder struct {
	TaskID TaskID `json:"task_id,omitzero"`
	JobID  JobID  `json:"job_id,omitzero"`
	// Tenant is the caller's own, or "another tenant".
	Tenant  string   `json:"tenant,omitempty"`
	Worker  string   `json:"worker,omitempty"`
	HeldFor Duration `json:"held_for"`
	// ExpectedReleaseIn is half likely to be over by then; nothing when it is not known.
	ExpectedReleaseIn *Duration `json:"expected_release_in,omitempty"`
}

// ETA is a forecast: half of such waits end before P50, nine of ten before P90.
type ETA struct {
	P50 Duration `json:"p50"`
	P90 Duration `json:"p90"`
	// Basis says what it is taken from, in words.
	Basis string `json:"basis"`
	// Confidence is low, medium or high, by how much there is to judge from.
	Confidence string `json:"confidence"`
}

// Remedy is something that can be done about a wait.
type Remedy struct {
	// Action is a word of a closed list, such as resume_job.
	Action string `json:"action"`
	// Requires is who may do it; nothing is whoever may change the job.
	Requires string `json:"requires,omitempty"`
	// Command does it, where one command does.
	Command string `json:"command,omitempty"`
	Message string `json:"message"`
}

// Explanation says of a task why it does not run, or who runs it, or how its time
// was spent.
type Explanation struct {
	TaskID     TaskID `json:"task_id"`
	JobID      JobID  `json:"job_id"`
	Name       string `json:"name"`
	Index      int    `json:"index"`
	Mapped     bool   `json:"mapped,omitempty"`
	Status     Status `json:"status"`
	Generation int    `json:"generation"`
	// WaitingSince is when it began to wait as it does; zero of one that runs, unless its
	// handler waits, or has ended.
	WaitingSince time.Time `json:"waiting_since,omitzero"`
	Waited       Duration  `json:"waited,omitzero"`
	// Layer is that of the primary blocker.
	Layer Layer `json:"layer,omitempty"`
	// Message says it in one sentence.
	Message string `json:"message"`
	// Blockers are all that keeps it from running, the primary one first; of a task that
	// runs, what its handler waits for. One that has ended or is being cancelled has none.
	Blockers []Blocker `json:"blockers"`
	// Start is the forecast of when it starts, from now; End of when it ends.
	Start *ETA `json:"start,omitempty"`
	End   *ETA `json:"end,omitempty"`
	// Deadline is the time by which it must have ended.
	Deadline *Deadline `json:"deadline,omitempty"`
	// Executor says what kind of worker runs it.
	Executor Executor `json:"executor"`
	// Running is of a task that runs.
	Running *RunningNow `json:"running,omitempty"`
	// Next says what follows when something goes wrong.
	Next Next `json:"next,omitzero"`
	// LastError is why its newest failed attempt failed.
	LastError *Failure `json:"last_error,omitempty"`
	// History is the time of this generation so far, one piece after the other.
	History []Spent `json:"history"`
	// TotalsByReason are waits and runs of this generation; they add up to its age.
	TotalsByReason map[string]Duration `json:"totals_by_reason"`
}

// Spent is a piece of a task's time.
type Spent struct {
	// Code is what it was spent on: one of the reasons, or "run".
	Code     string    `json:"code"`
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	Duration Duration  `json:"duration"`
	// Worker and Outcome are those of a run.
	Worker  string `json:"worker,omitempty"`
	Outcome string `json:"outcome,omitempty"`
}

// Deadline is a time by which a task or a job must have ended.
type Deadline struct {
	At time.Time `json:"at"`
	In Duration  `json:"in"`
	// Kind is expires_at or schedule_to_close.
	Kind string `json:"kind"`
	// WillMiss says that the forecast is behind it: the deadline is nearer than the p50.
	WillMiss bool   `json:"will_miss,omitempty"`
	Message  string `json:"message"`
}

// Executor says what kind of worker runs a task, and how many there are.
type Executor struct {
	Queue string `json:"queue"`
	Kind  string `json:"kind"`
	// Workers are the live ones of the queue, Matching those of them that could run
	// it, with Slots slots of which Free are free.
	Workers  int    `json:"workers"`
	Matching int    `json:"matching"`
	Slots    int    `json:"slots"`
	Free     int    `json:"free"`
	Message  string `json:"message"`
}

// RunningNow says who runs a task.
type RunningNow struct {
	Worker         string    `json:"worker"`
	Since          time.Time `json:"since"`
	For            Duration  `json:"for"`
	Attempt        int       `json:"attempt"`
	MaxAttempts    int       `json:"max_attempts"`
	LeaseExpiresAt time.Time `json:"lease_expires_at,omitzero"`
	Progress       *Progress `json:"progress,omitempty"`
}

// Next says what follows on a failure, a timeout, a lost worker and a repeated report.
type Next struct {
	Failure    string `json:"failure"`
	Timeout    string `json:"timeout"`
	LostWorker string `json:"lost_worker"`
	Repeat     string `json:"repeat"`
}

// JobExplanation says of a job what it waits for.
type JobExplanation struct {
	JobID  JobID  `json:"job_id"`
	Status Status `json:"status"`
	// WaitingSince is since when nothing of it runs; zero when something does or it has ended.
	WaitingSince time.Time `json:"waiting_since,omitzero"`
	Waited       Duration  `json:"waited,omitzero"`
	Layer        Layer     `json:"layer,omitempty"`
	Message      string    `json:"message"`
	// Blockers are those of the task that it waits for most; On names it.
	Blockers []Blocker `json:"blockers"`
	On       *TaskID   `json:"on,omitempty"`
	// End is the forecast of its end, along the longest way through what is left.
	End      *ETA      `json:"end,omitempty"`
	Deadline *Deadline `json:"deadline,omitempty"`
	Counts   Counts    `json:"tasks"`
	// Tasks are explanations of those that run or could go on next, at most 20;
	// MoreTasks says how many others have not ended.
	Tasks     []Explanation `json:"explanations"`
	MoreTasks int           `json:"more_tasks,omitempty"`
	// TotalsByReason are waits and runs of its tasks, added up; of a job of more than
	// 1,000 tasks it is left out.
	TotalsByReason map[string]Duration `json:"totals_by_reason,omitempty"`
}

// WaitGroup is how many tasks wait for one thing.
type WaitGroup struct {
	// Reason, Tenant and Queue are set as far as it is grouped by them.
	Reason Reason `json:"reason,omitempty"`
	Layer  Layer  `json:"layer,omitempty"`
	Tenant string `json:"tenant,omitempty"`
	Queue  string `json:"queue,omitempty"`
	// Waiting is how many; Approximate says that it is at least so many: so much waits
	// that not all is counted, or the reason of some is taken from others like them.
	Waiting     int  `json:"waiting"`
	Approximate bool `json:"approximate,omitempty"`
	// OldestSince is since when the first of them waits.
	OldestSince time.Time `json:"oldest_since,omitzero"`
	OldestAge   Duration  `json:"oldest_age"`
	// Top is the reason of most of them, Subject what most of these wait for.
	Top     Reason  `json:"top_blocker"`
	Subject Subject `json:"subject,omitzero"`
	Message string  `json:"message"`
}

// Capacity is who could run tasks, and what more of them would change.
type Capacity struct {
	Groups []WorkerGroup `json:"groups"`
	Queues []QueueHint   `json:"queues"`
}

// WorkerGroup is the live workers that serve the same queues and kinds with the
// same labels.
type WorkerGroup struct {
	Queues []string          `json:"queues"`
	Kinds  []string          `json:"kinds,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	// Workers are all of them, Draining those that take no more.
	Workers  int `json:"workers"`
	Draining int `json:"draining,omitempty"`
	// Slots are those of workers that do not drain; Used counts what runs, Free what is left.
	Slots       int     `json:"slots"`
	Used        int     `json:"used"`
	Free        int     `json:"free"`
	Utilisation float64 `json:"utilisation"`
}

// QueueHint says how many workers a queue wants, and why.
type QueueHint struct {
	Queue string `json:"queue"`
	// Waiting is how many tasks wait; Approximate says that it is at least so many: so
	// much waits that not all is counted.
	Waiting     int  `json:"waiting"`
	Approximate bool `json:"approximate,omitempty"`
	// Startable is how many of them wait for nothing but a worker like one that there is.
	Startable   int     `json:"startable"`
	Workers     int     `json:"workers"`
	Slots       int     `json:"slots"`
	Used        int     `json:"used"`
	Free        int     `json:"free"`
	Utilisation float64 `json:"utilisation"`
	// Desired is how many workers it should have, Reason why.
	Desired int    `json:"desired_workers"`
	Reason  string `json:"reason"`
	// DrainsIn is the forecast of when what is startable now has started, as it is
	// and with two workers more.
	DrainsIn       *Duration `json:"drains_in,omitempty"`
	DrainsInPlus2  *Duration `json:"drains_in_with_two_more,omitempty"`
	TwoMoreWorkers string    `json:"two_more_workers"`
}
