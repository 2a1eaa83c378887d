package protocol

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/drover-dev/drover"
)

// Header names.
const (
	HeaderIdempotencyKey      = "Idempotency-Key"
	HeaderIdempotencyReplayed = "Idempotency-Replayed"     // "true" on a repeat's answer
	HeaderPrefer              = "Prefer"                   // "wait=30" or "respond-async"
	HeaderPreferenceApplied   = "Preference-Applied"       // what of Prefer was done
	HeaderLastEventID         = "Last-Event-ID"            // resume a stream of events after this number
	HeaderArtifactMetadata    = "Drover-Artifact-Metadata" // JSON, on an upload
	HeaderArtifactSHA256      = "Drover-Artifact-Sha256"   // 64 hexadecimal digits, on a download
)

// Media types.
const (
	MediaJSON    = "application/json"
	MediaProblem = "application/problem+json"
	MediaYAML    = "application/yaml"
	MediaEvents  = "text/event-stream"
)

// Page is one page of a list. An empty list is [], never null.
type Page[T any] struct {
	Items []T `json:"items"`
	// NextCursor, when set, asks for the next page as ?cursor=.
	NextCursor string `json:"next_cursor,omitempty"`
}

// MarshalJSON writes an empty list as [].
func (p Page[T]) MarshalJSON() ([]byte, error) {
	type plain Page[T]
	if p.Items == nil {
		p.Items = []T{}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // payloads inside stay as they were written
	err := e.Encode(plain(p))
	return b.Bytes(), err
}

// Links are paths that belong to a job.
type Links struct {
	Self   string `json:"self"`
	Tasks  string `json:"tasks"`
	Events string `json:"events"`
	Cancel string `json:"cancel"`
}

// LinksOf returns the paths of a job.
func LinksOf(id drover.JobID) Links {
	self := "/v1/jobs/" + id.String()
	return Links{Self: self, Tasks: self + "/tasks", Events: self + "/events", Cancel: self + "/cancel"}
}

// SubmitResponse answers POST /v1/jobs, whose body is a drover.NewJob.
type SubmitResponse struct {
	JobID    drover.JobID  `json:"job_id"`
	Status   drover.Status `json:"status"`
	Replayed bool          `json:"replayed,omitempty"`
	// Deleted says that the job of the earlier request has ended and has been
	// deleted since: it does not run again. Status is what the first answer said.
	Deleted bool  `json:"deleted,omitempty"`
	Links   Links `json:"links"`
}

// BatchRequest is the body of POST /v1/jobs/batch.
type BatchRequest struct {
	Jobs []drover.NewJob `json:"jobs"`
}

// BatchResponse answers a BatchRequest, one item for each job in their order.
type BatchResponse struct {
	Items []BatchItem `json:"items"`
}

// BatchItem is a job of a batch, or why there is none.
type BatchItem struct {
	JobID    drover.JobID  `json:"job_id,omitzero"`
	Status   drover.Status `json:"status,omitzero"`
	Replayed bool          `json:"replayed,omitempty"`
	// Deleted says that the job of the earlier request has ended and has been
	// deleted since: it does not run again. Status is what the first answer said.
	Deleted bool     `json:"deleted,omitempty"`
	Error   *Problem `json:"error,omitempty"`
}

// ProcessingRequest is the body of POST /processing-jobs. The job's input
// becomes {"object_id": …}.
type ProcessingRequest struct {
	ObjectID string `json:"object_id"`
	// Pipeline is "name", "name@3" or "name-v3".
	Pipeline       string `json:"pipeline"`
	IdempotencyKey string `json:"idempotency_key"`
}

// ProcessingResponse answers a ProcessingRequest.
type ProcessingResponse struct {
	JobID  drover.JobID  `json:"job_id"`
	Status drover.Status `json:"status"`
}

// ActionRequest is the body of POST /v1/jobs/{id}/cancel, pause and resume. It
// may be empty.
type ActionRequest struct {
	Reason string `json:"reason,omitempty"`
	// RequestID makes a repeat within 24 hours give the same answer.
	RequestID string `json:"request_id,omitempty"`
}

// RetentionRequest is the body of PATCH /v1/retention: how long finished jobs are
// kept. What is left out stays as it is; 0 is for ever.
type RetentionRequest struct {
	Succeeded *drover.Duration `json:"succeeded,omitempty"`
	Failed    *drover.Duration `json:"failed,omitempty"`
	Cancelled *drover.Duration `json:"cancelled,omitempty"`
}

// TenantRequest is the body of PATCH /v1/tenants/{tenant}. What is left out stays as
// it is.
type TenantRequest struct {
	Weight *float64 `json:"weight,omitempty"`
}

// CircuitRequest is the body of POST /v1/circuits/{name}/open. It may be empty.
type CircuitRequest struct {
	Reason string `json:"reason,omitempty"`
}

// QueueRequest is the body of POST /v1/queues/{name}/pause, resume and drain. It may be empty.
type QueueRequest struct {
	Reason string `json:"reason,omitempty"`
}

// ReserveRequest is the body of POST /v1/queues/{name}/reserve.
type ReserveRequest struct {
	// Reserves are all that hold from then on; none keeps nothing.
	Reserves []drover.Reserve `json:"reserves"`
	Reason   string           `json:"reason,omitempty"`
}

// ReplayRequest is the body of POST /v1/tasks/{id}/replay. It may be empty.
type ReplayRequest struct {
	// Input, when set, takes the place of the task's input.
	Input json.RawMessage `json:"input,omitempty"`
	// Reopen replays it though its dead letter was closed.
	Reopen    bool   `json:"reopen,omitempty"`
	Reason    string `json:"reason,omitempty"`
	RequestID string `json:"request_id,omitempty"`
}

// RerunRequest is the body of POST /v1/jobs/{id}/rerun. Exactly one of From, Failed and
// Whole is set.
type RerunRequest struct {
	// From are tasks that run again with whatever stands below them: a name, a name with
	// an index, such as "infer[3]", or an id. The name of a map is all of it.
	From []string `json:"from,omitempty"`
	// Failed runs the tasks whose failure nothing has made good, and those that a cancel
	// ended.
	Failed bool `json:"failed,omitempty"`
	// Whole runs everything.
	Whole bool `json:"whole,omitempty"`
	// Fresh runs tasks with a cache though their result is there.
	Fresh bool `json:"fresh,omitempty"`
	// Input takes the place of the input of the one task that From names.
	Input     json.RawMessage `json:"input,omitempty"`
	Reason    string          `json:"reason,omitempty"`
	RequestID string          `json:"request_id,omitempty"`
}

// MarkRequest is the body of POST /v1/tasks/{id}/mark.
type MarkRequest struct {
	// Status is SUCCEEDED, FAILED or SKIPPED.
	Status drover.Status `json:"status"`
	// Output is that of a task which has succeeded.
	Output json.RawMessage `json:"output,omitempty"`
	// Reason says why, for the record.
	Reason    string `json:"reason"`
	RequestID string `json:"request_id,omitempty"`
}

// LetterFilter selects dead letters; what is left out does not matter.
type LetterFilter struct {
	// State is open when it is left out; closed goes with reopen.
	State       string `json:"state,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
	Kind        string `json:"kind,omitempty"`
	// Pipeline is a name, without a version.
	Pipeline   string            `json:"pipeline,omitempty"`
	Queue      string            `json:"queue,omitempty"`
	ErrorClass drover.ErrorClass `json:"error_class,omitempty"`
	// Status is FAILED or DEAD_LETTER.
	Status drover.Status `json:"status,omitzero"`
	JobID  drover.JobID  `json:"job_id,omitzero"`
	// Since and Until bound when the task ended; Until itself is not in it.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
}

// ReplayLettersRequest is the body of POST /v1/dead-letters/replay. Exactly one
// of TaskIDs and Filter is set; an empty Filter selects every open dead letter.
type ReplayLettersRequest struct {
	// TaskIDs are at most 1000 tasks.
	TaskIDs []drover.TaskID `json:"task_ids,omitempty"`
	Filter  *LetterFilter   `json:"filter,omitempty"`
	// DryRun tells what would be done and does nothing.
	DryRun bool `json:"dry_run,omitempty"`
	// Rate is how many a second at most; zero is no limit.
	Rate float64 `json:"rate,omitempty"`
	// Canary is how many are replayed first: the others follow when these have succeeded, and only then.
	Canary int `json:"canary,omitempty"`
	// Input takes the place of each task's input.
	Input json.RawMessage `json:"input,omitempty"`
	// Patch is a JSON merge patch (RFC 7396), applied to each task's input.
	Patch json.RawMessage `json:"patch,omitempty"`
	// Reopen replays also those that were closed.
	Reopen bool   `json:"reopen,omitempty"`
	Reason string `json:"reason,omitempty"`
	// RequestID makes a repeat within 24 hours return the same operation.
	RequestID string `json:"request_id,omitempty"`
}

// CloseLettersRequest is the body of POST /v1/dead-letters/close. Exactly one of
// TaskIDs and Filter is set; an empty Filter selects every open dead letter.
type CloseLettersRequest struct {
	// TaskIDs are at most 1000 tasks.
	TaskIDs []drover.TaskID `json:"task_ids,omitempty"`
	Filter  *LetterFilter   `json:"filter,omitempty"`
	// DryRun tells what would be done and does nothing.
	DryRun bool `json:"dry_run,omitempty"`
	// Reason is required.
	Reason string `json:"reason"`
	// RequestID makes a repeat within 24 hours return the same operation.
	RequestID string `json:"request_id,omitempty"`
}

// NewToken is the body of POST /v1/tokens. The answer is a drover.Token with
// its Secret, which is shown this once.
type NewToken struct {
	Name   string   `json:"name"`
	Scopes []string `json:"scopes"`
	// Tenant is the tenant the token is for; empty is the caller's.
	Tenant    string    `json:"tenant,omitempty"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
}

// WhoAmI answers GET /v1/whoami.
type WhoAmI struct {
	Tenant string   `json:"tenant"`
	Name   string   `json:"name"`
	Scopes []string `json:"scopes"`
	// System says that the token serves every tenant.
	System bool `json:"system,omitempty"`
}

// Version answers GET /version.
type Version struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Go      string `json:"go"`
	// Database is "sqlite" or "postgres".
	Database string `json:"database,omitempty"`
}

// Health answers GET /healthz, and /livez and /readyz with ?verbose.
type Health struct {
	// Status is "ok" or "failing".
	Status string  `json:"status"`
	Checks []Check `json:"checks,omitempty"`
}

// Check is one thing that health depends on.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"`
}
