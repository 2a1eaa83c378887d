package protocol

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"github.com/drover-dev/drover"
)

// Worker is what a worker needs of the server: over HTTP it is client.Client,
// inside one process embedded's. A refusal is a *drover.Error; any other error
// leaves open whether the server did what was asked.
type Worker interface {
	// OpenSession registers a worker process. Its leases live until the session
	// expires, which Renew puts off.
	OpenSession(ctx context.Context, s drover.NewSession) (drover.Session, error)
	// Renew extends the session and every lease it holds. After drover.ErrLeaseLost
	// (it has expired) or drover.ErrNotFound (there is none) open a new one.
	Renew(ctx context.Context, id drover.SessionID, r drover.Renewal) (drover.Renewed, error)
	// CloseSession ends the session and gives back what it still holds.
	CloseSession(ctx context.Context, id drover.SessionID) error
	// Acquire takes leases, waiting up to a.Wait for the first one. None is not an error.
	Acquire(ctx context.Context, a drover.Acquire) ([]drover.Lease, error)
	// Settle reports outcomes, and may acquire in the same call. It can be
	// repeated: an outcome that was recorded before is answered as then.
	Settle(ctx context.Context, r SettleRequest) (SettleResponse, error)
	// SetProgress says how far a running task is.
	SetProgress(ctx context.Context, h drover.Held, p drover.Progress) error
	// Heartbeat says that a running attempt lives, and keeps details, any JSON, for
	// the attempt after it; nil leaves what was kept before.
	Heartbeat(ctx context.Context, h drover.Held, details json.RawMessage) error
	// Lock takes permits of a limit for the handler of a running attempt, waiting up to
	// n.Wait. Repeat it with the same number when the answer was lost, or says that it
	// waits still; a refusal with drover.ErrDeadlock names the ring that waiting would close.
	Lock(ctx context.Context, h drover.Held, n drover.NewLock) (drover.Lock, error)
	// Unlock gives back what a Lock of this number has brought, or withdraws it.
	Unlock(ctx context.Context, h drover.Held, n drover.NewUnlock) error
	// Meet waits up to n.Wait at a barrier until as many tasks of the job have come as it
	// is for. Repeat it with the same number, as Lock.
	Meet(ctx context.Context, h drover.Held, n drover.NewMeeting) (drover.Meeting, error)
	// AppendLogs adds lines to the log of a running attempt.
	AppendLogs(ctx context.Context, h drover.Held, lines []drover.LogLine) error
	// PutArtifact uploads an output of a running attempt. It becomes visible
	// when an outcome that names its id is accepted. Of a, only Name, Kind,
	// MediaType and Metadata are read.
	PutArtifact(ctx context.Context, h drover.Held, a drover.Artifact, r io.Reader) (drover.Artifact, error)
	// OpenArtifact reads an artifact. The caller closes the reader.
	OpenArtifact(ctx context.Context, id drover.ArtifactID) (io.ReadCloser, drover.Artifact, error)
}

// Bounds of one call; the server refuses more.
const (
	MaxJobs     = 10_000                            // jobs in a BatchRequest
	MaxLeases   = 1_000                             // drover.Acquire.Max
	MaxOutcomes = 1_000                             // outcomes in a SettleRequest
	MaxHeld     = 10_000                            // leases named in a drover.Renewal
	MaxLogLines = 1_000                             // lines in a LogsRequest
	MaxWait     = drover.Duration(20 * time.Second) // drover.Acquire.Wait
	// MaxCheckpoint is how many bytes the details of a HeartbeatRequest may have.
	MaxCheckpoint = 64 << 10
	// MaxSettleBody is how many bytes a SettleRequest may have. A worker sends
	// several rather than one that is larger.
	MaxSettleBody = 16 << 20
	// MaxAnswer is how many bytes of a JSON answer a client reads. A server
	// hands out fewer leases rather than pass it.
	MaxAnswer = 64 << 20
)

// SettleRequest is the body of POST /v1/leases/settle.
type SettleRequest struct {
	Session  drover.SessionID `json:"worker_id"`
	Outcomes []drover.Outcome `json:"outcomes"`
	// Acquire asks for leases in the same call; its Wait is not honoured.
	Acquire *drover.Acquire `json:"acquire,omitempty"`
}

// SettleResponse answers a SettleRequest.
type SettleResponse struct {
	// Results has one answer for each outcome, in their order.
	Results []SettleResult `json:"results"`
	// Leases are what Acquire got. An acquire that is refused gets none; the
	// outcomes count all the same.
	Leases []drover.Lease `json:"leases,omitempty"`
}

// SettleResult answers one outcome: the task's status after it, or why it was
// refused. With code lease-lost the outcome was not recorded and must not be
// reported again.
type SettleResult struct {
	TaskID drover.TaskID `json:"task_id"`
	Status drover.Status `json:"status,omitzero"`
	Error  *Problem      `json:"error,omitempty"`
}

// AcquireResponse answers POST /v1/leases/acquire.
type AcquireResponse struct {
	Leases []drover.Lease `json:"leases"`
}

// ProgressRequest is the body of POST /v1/leases/{task_id}/progress.
type ProgressRequest struct {
	LeaseVersion int32           `json:"lease_version"`
	Ratio        float64         `json:"ratio"`
	Message      string          `json:"message,omitempty"`
	ETA          drover.Duration `json:"eta,omitzero"`
}

// HeartbeatRequest is the body of POST /v1/leases/{task_id}/heartbeat.
type HeartbeatRequest struct {
	LeaseVersion int32 `json:"lease_version"`
	// Details are any JSON of at most 64 KiB. The next attempt's lease has them as
	// its checkpoint; left out, what was kept before stays.
	Details json.RawMessage `json:"details,omitempty"`
}

// LockRequest is the body of POST /v1/leases/{task_id}/locks.
type LockRequest struct {
	LeaseVersion int32 `json:"lease_version"`
	// Number counts what the attempt asks for, from 1. A repeat has the number of the first.
	Number int32 `json:"number"`
	// Name is that of the limit.
	Name string `json:"name"`
	// Permits is how many; default 1.
	Permits int64 `json:"permits,omitempty"`
	// Exclusive says that it is a lock: the limit has one permit, and is made when there is
	// none of that name.
	Exclusive bool `json:"exclusive,omitempty"`
	// Wait is how long to wait for it in this call, at most 20 s. Zero asks for it at once
	// or not at all.
	Wait drover.Duration `json:"wait,omitzero"`
}

// UnlockRequest is the body of POST /v1/leases/{task_id}/locks/release.
type UnlockRequest struct {
	LeaseVersion int32 `json:"lease_version"`
	// Number is that of the request that brought what is given back, or waits for it.
	Number int32 `json:"number"`
}

// MeetingRequest is the body of POST /v1/leases/{task_id}/barriers.
type MeetingRequest struct {
	LeaseVersion int32 `json:"lease_version"`
	// Number counts what the attempt asks for, from 1, locks and barriers together.
	Number int32 `json:"number"`
	// Name is that of the barrier, in the job.
	Name string `json:"name"`
	// Parties is how many tasks of the job meet.
	Parties int32 `json:"parties"`
	// Round is the how-manieth meeting at this barrier it is for the attempt, from 1.
	Round int32 `json:"round"`
	// Wait is how long to wait for the others in this call, at most 20 s.
	Wait drover.Duration `json:"wait,omitzero"`
	// Leave says that the handler waits there no longer.
	Leave bool `json:"leave,omitempty"`
}

// LogsRequest is the body of POST /v1/leases/{task_id}/logs.
type LogsRequest struct {
	LeaseVersion int32            `json:"lease_version"`
	Lines        []drover.LogLine `json:"lines"`
}

// LogsResponse answers a LogsRequest. Accepted is smaller than the number of
// lines when the attempt's log is full.
type LogsResponse struct {
	Accepted int `json:"accepted"`
}
