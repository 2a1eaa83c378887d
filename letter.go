package drover

import (
	"encoding/json"
	"time"
)

// States of a dead letter.
const (
	LetterOpen     = "open"     // waits for a person
	LetterReplayed = "replayed" // runs, or ran, as the next generation
	LetterClosed   = "closed"   // a person has decided that it stays as it is
)

// Letter is a dead letter: a generation of a task that ended FAILED or as DEAD_LETTER.
type Letter struct {
	TaskID TaskID `json:"task_id"`
	// Generation is the one that ended; a replay opens the next.
	Generation int   `json:"generation"`
	JobID      JobID `json:"job_id"`
	// Status is DEAD_LETTER (attempts used up) or FAILED (permanent error).
	Status Status `json:"status"`
	// Pipeline is the name of the job's pipeline; of a Kind job empty.
	Pipeline string `json:"pipeline,omitempty"`
	// Name is the node's name in the pipeline; of a Kind job, its kind.
	Name  string `json:"name"`
	Index int    `json:"index"`
	Kind  string `json:"kind"`
	Queue string `json:"queue"`
	// Fingerprint is the same for failures of one kind: 16 hexadecimal digits.
	Fingerprint string `json:"fingerprint"`
	// Attempt is how many attempts the generation used, Losses how many leases it lost.
	Attempt int      `json:"attempt"`
	Losses  int      `json:"losses,omitempty"`
	Worker  string   `json:"worker,omitempty"`
	Error   *Failure `json:"error,omitempty"`
	// FinishedAt is when the generation ended.
	FinishedAt time.Time `json:"finished_at"`
	// State is open, replayed or closed; StateAt, Actor and Reason say since when, by whom and why.
	State   string    `json:"state"`
	StateAt time.Time `json:"state_at,omitzero"`
	Actor   string    `json:"actor,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	// OperationID is the operation that replayed or closed it.
	OperationID OperationID `json:"operation_id,omitzero"`
	// Context is what a person needs to judge the failure; only when one dead letter is asked for.
	Context *FailureContext `json:"context,omitempty"`
}

// FailureContext is what surrounds a failure.
type FailureContext struct {
	// Input is what the generation was given; it is missing where it could not be filled in.
	Input json.RawMessage `json:"input,omitempty"`
	// InputGeneration is the generation whose replay gave this input; 1 is the input of the job itself.
	InputGeneration int `json:"input_generation"`
	// Parents are the tasks whose outputs the input is made of.
	Parents []TaskRef `json:"parents,omitempty"`
	// Attempts are the last attempts, of all generations, oldest first.
	Attempts []Attempt `json:"attempts,omitempty"`
	// Logs are the last lines of the task's handler, oldest first.
	Logs []LogLine `json:"logs,omitempty"`
	// Waits are seconds waited by reason in this generation.
	Waits map[string]Duration `json:"waits,omitempty"`
	// Lineage are the generations of the task, oldest first.
	Lineage []Generation `json:"lineage"`
}

// TaskRef names a task and says how it stands.
type TaskRef struct {
	TaskID     TaskID `json:"task_id"`
	Name       string `json:"name"`
	Index      int    `json:"index"`
	Status     Status `json:"status"`
	Generation int    `json:"generation"`
}

// Generation is one life of a task: the first, or one that a replay opened.
type Generation struct {
	Generation int    `json:"generation"`
	Status     Status `json:"status"`
	// NewInput says that the replay which opened it gave another input.
	NewInput   bool      `json:"new_input,omitempty"`
	FinishedAt time.Time `json:"finished_at,omitzero"`
	// ReplayedAt, ReplayedBy, Reason and OperationID tell of the replay that ended it being the last.
	ReplayedAt  time.Time   `json:"replayed_at,omitzero"`
	ReplayedBy  string      `json:"replayed_by,omitempty"`
	Reason      string      `json:"reason,omitempty"`
	OperationID OperationID `json:"operation_id,omitzero"`
}

// LetterGroup is dead letters of one fingerprint.
type LetterGroup struct {
	Fingerprint string    `json:"fingerprint"`
	Count       int       `json:"count"`
	FirstAt     time.Time `json:"first_at"`
	LastAt      time.Time `json:"last_at"`
	// Pipeline, Name, Kind and Error are those of the newest one.
	Pipeline string   `json:"pipeline,omitempty"`
	Name     string   `json:"name"`
	Kind     string   `json:"kind"`
	Error    *Failure `json:"error,omitempty"`
	// TaskID is the newest one.
	TaskID TaskID `json:"task_id"`
}

// States of a batch operation.
const (
	BatchRunning       = "running"
	BatchWaitingCanary = "waiting_canary" // the first ones run; the others wait for how they end
	BatchDone          = "done"
	BatchStopped       = "stopped" // before its end; Why says the reason
	BatchDryRun        = "dry_run" // nothing was done
)

// What a batch operation does with dead letters.
const (
	ActionReplay = "replay"
	ActionClose  = "close"
)

// BatchOperation is the replay or closing of many dead letters.
type BatchOperation struct {
	// ID is zero for a dry run.
	ID OperationID `json:"operation_id,omitzero"`
	// Action is replay or close.
	Action string `json:"action"`
	// State is running, waiting_canary, done, stopped or dry_run.
	State string `json:"state"`
	// Why says why it stopped.
	Why       string `json:"why,omitempty"`
	Actor     string `json:"actor,omitempty"`
	Reason    string `json:"reason,omitempty"`
	RequestID string `json:"request_id,omitempty"`
	// Total is how many dead letters it is about: those done, refused, and still waiting.
	Total   int `json:"total"`
	Done    int `json:"done"`
	Refused int `json:"refused"`
	Waiting int `json:"waiting"`
	// Rate is how many a second at most; zero is no limit.
	Rate float64 `json:"rate,omitempty"`
	// Canary is how many go first.
	Canary    int       `json:"canary,omitempty"`
	CreatedAt time.Time `json:"created_at,omitzero"`
	EndedAt   time.Time `json:"ended_at,omitzero"`
	// Items are the first hundred, or where there are more of them, the first hundred that were refused.
	Items []OperationItem `json:"items,omitempty"`
}

// Ended reports whether nothing more happens to the operation.
func (b *BatchOperation) Ended() bool {
	return b.State == BatchDone || b.State == BatchStopped || b.State == BatchDryRun
}

// States of an item of a batch operation.
const (
	ItemWaiting = "waiting"
	ItemDone    = "done"
	ItemRefused = "refused"
)

// OperationItem is one dead letter of a batch operation.
type OperationItem struct {
	// Number counts from 1; the oldest dead letter comes first.
	Number int    `json:"number"`
	TaskID TaskID `json:"task_id"`
	// Generation is that of the dead letter.
	Generation int `json:"generation,omitempty"`
	// State is waiting, done or refused.
	State string `json:"state"`
	// NextGeneration is the one its replay opened.
	NextGeneration int `json:"next_generation,omitempty"`
	// Code and Detail say why it was refused.
	Code   Code   `json:"code,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// OperationID names a batch operation; on the wire "op_" and a ULID.
type OperationID ID

// ParseOperationID reads "op_01J…".
func ParseOperationID(s string) (OperationID, error) {
	id, err := parseID("op_", s)
	return OperationID(id), err
}

// String returns the wire form; the zero id is the empty string.
func (id OperationID) String() string { return wire("op_", ID(id)) }

// IsZero reports whether id names nothing.
func (id OperationID) IsZero() bool { return ID(id).IsZero() }

// MarshalText writes the wire form.
func (id OperationID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads the wire form; the empty string is the zero id.
func (id *OperationID) UnmarshalText(b []byte) error { return unwire("op_", b, (*ID)(id)) }
