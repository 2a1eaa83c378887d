package api

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

// The examples of the OpenAPI document.

func exampleID(n byte) drover.ID {
	return drover.MakeID(1767225600123, [10]byte{0xd0, 0x0e, 0x42, 0x11, 0x9c, 0x07, 0x5a, 0xe3, 0x18, n})
}

func exampleJSON(s string) json.RawMessage { return json.RawMessage(s) }

var (
	exampleJobID      = drover.JobID(exampleID(1))
	exampleTaskID     = drover.TaskID(exampleID(2))
	exampleRingTask   = drover.TaskID(exampleID(9))
	exampleArtifactID = drover.ArtifactID(exampleID(3))
	exampleTokenID    = drover.TokenID(exampleID(4))
	exampleTime       = time.Date(2026, 1, 1, 0, 0, 0, 123_000_000, time.UTC)
)

const (
	exampleDefinition = "pipeline: thumbnails\ntasks:\n  scale: {run: exec, with: {command: [./scale.sh, \"${{ input.object_uri }}\"]}}\n  pack:  {needs: [scale], run: exec, with: {command: [./pack.sh]}}\n"
	exampleStream     = "id: 1\nevent: job.accepted\ndata: {\"job_id\":\"job_01KDVDNSZVT03H448WW1TE8RR1\",\"sequence\":1,\"type\":\"job.accepted\",\"at\":\"2026-01-01T00:00:00.123Z\"}\n\n"
)

var (
	exampleNewJob = drover.NewJob{
		Pipeline: "dataset-ingestion@3", Input: exampleJSON(`{"object_uri":"s3://bucket/clip.mp4"}`),
		Labels: map[string]string{"team": "vision"}, IdempotencyKey: "upload-4711",
	}
	exampleSubmitted = protocol.SubmitResponse{JobID: exampleJobID, Status: drover.Pending, Links: protocol.LinksOf(exampleJobID)}
	exampleJob       = drover.Job{
		ID: exampleJobID, Tenant: "default", Status: drover.Succeeded, Pipeline: "dataset-ingestion", PipelineVersion: 3, Creator: "ci",
		Labels: map[string]string{"team": "vision"}, Class: drover.Normal, Run: 1, Tasks: drover.Counts{Total: 4, Succeeded: 4},
		Input: exampleNewJob.Input, Result: exampleJSON(`{"manifest":"artifact://art_01KDVDNSZVT03H448WW1TE8RR3"}`),
		TraceID: "0af7651916cd43dd8448eb211c80319c", CreatedAt: exampleTime, FinishedAt: exampleTime.Add(41 * time.Second), Events: 6,
	}
	exampleBatch       = protocol.BatchRequest{Jobs: []drover.NewJob{{Kind: "resize", Queue: "cpu", Input: exampleJSON(`{"width":640}`)}, {Kind: "resize", Queue: "cpu", Labels: map[string]string{"": "no key"}}}}
	exampleBatchAnswer = protocol.BatchResponse{Items: []protocol.BatchItem{
		{JobID: exampleJobID, Status: drover.Pending},
		{Error: protocol.FromError(&drover.Error{Code: drover.CodeValidation, Detail: "the job is not valid", Fields: []drover.FieldError{{Field: "labels", Message: "a key is empty"}}})},
	}}
	exampleProcessing = protocol.ProcessingRequest{ObjectID: "obj-4711", Pipeline: "dataset-ingestion-v3", IdempotencyKey: "obj-4711-1"}
	exampleProcessed  = protocol.ProcessingResponse{JobID: exampleJobID, Status: drover.Pending}
	exampleAction     = protocol.ActionRequest{Reason: "wrong input", RequestID: "cancel-1"}
	exampleReplay     = protocol.ReplayRequest{Reason: "the model server is back", RequestID: "replay-1"}
	exampleRerun      = protocol.RerunRequest{From: []string{"features"}, Reason: "the model was mended", RequestID: "rerun-1"}
	exampleReran      = drover.Rerun{JobID: exampleJobID, Run: 2, Tasks: []drover.RerunTask{
		{Task: "cut", Was: drover.Succeeded, Does: drover.RerunStays, Why: "nothing that it waits for runs again"},
		{Task: "features", Last: 19, Was: drover.Succeeded, Does: drover.RerunRuns, Why: "it was asked for"},
		{Task: "manifest", Was: drover.Succeeded, Does: drover.RerunMayReuse, Why: "it waits for features; if its input comes to the same as before, its result is used again"},
	}}
	exampleMark = protocol.MarkRequest{Status: drover.Succeeded, Output: exampleJSON(`{"passed":true}`), Reason: "checked by hand", RequestID: "mark-1"}
	exampleTask = drover.Task{
		ID: exampleTaskID, JobID: exampleJobID, Name: "features", Index: 2, Mapped: true, Kind: "features", Queue: "cpu", Class: drover.Normal,
		Status: drover.DeadLetter, Generation: 1, Attempt: 4, MaxAttempts: 4, LeaseVersion: 8, CreatedAt: exampleTime, ReadyAt: exampleTime.Add(time.Second),
		QueuedAt: exampleTime.Add(time.Second), ClaimedAt: exampleTime.Add(2 * time.Second), FinishedAt: exampleTime.Add(9 * time.Second),
		Input: exampleJSON(`{"segment":2}`), Error: &drover.Failure{Class: drover.ClassRetryable, Message: "model server answered 500", Type: "http_500"},
	}
	exampleBlocker = drover.Blocker{
		Code: drover.BlockerWorkersFull, Layer: drover.LayerExecution, Primary: true, Subject: drover.Subject{Kind: "queue", Name: "cpu", Limit: 4, Used: 4, Queued: 17, Position: 4},
		Since: exampleTime.Add(time.Second), Waited: drover.Duration(4 * time.Minute), ETA: exampleETA,
		Holders: []drover.Holder{{Tenant: "another tenant", HeldFor: drover.Duration(71 * time.Second)}}, MoreHolders: 3,
		Message:  "All workers of queue cpu that can run it are busy (4 of 4 slots in use); it is 4th of 17.",
		Remedies: []drover.Remedy{{Action: "add_workers", Message: "Start more workers, or more slots, for queue cpu."}},
	}
	exampleETA         = &drover.ETA{P50: drover.Duration(95 * time.Second), P90: drover.Duration(210 * time.Second), Basis: "42 ends in the last 15m", Confidence: "medium"}
	exampleExplanation = drover.Explanation{
		TaskID: exampleTaskID, JobID: exampleJobID, Name: "features", Index: 2, Mapped: true, Status: drover.Queued, Generation: 1, WaitingSince: exampleBlocker.Since, Waited: exampleBlocker.Waited,
		Layer: exampleBlocker.Layer, Message: exampleBlocker.Message, Blockers: []drover.Blocker{exampleBlocker}, Start: exampleETA,
		Executor:       drover.Executor{Queue: "cpu", Kind: "features", Workers: 1, Matching: 1, Slots: 4, Message: "A worker of queue cpu that runs features: 1 of 1 worker match, 0 of 4 slots free."},
		History:        []drover.Spent{{Code: "dependency", From: exampleTime, To: exampleTime.Add(time.Second), Duration: drover.Duration(time.Second)}},
		TotalsByReason: map[string]drover.Duration{"dependency": drover.Duration(time.Second), "handoff": drover.Duration(4 * time.Minute)},
	}
	exampleJobExplanation = drover.JobExplanation{
		JobID: exampleJobID, Status: drover.Running, WaitingSince: exampleBlocker.Since, Waited: exampleBlocker.Waited, Layer: exampleBlocker.Layer,
		Message: "Task features[2] (QUEUED): " + exampleBlocker.Message, Blockers: exampleExplanation.Blockers, On: &exampleTaskID, Counts: drover.Counts{Total: 4, Queued: 1, Pending: 2, Succeeded: 1},
		Tasks: []drover.Explanation{exampleExplanation}, MoreTasks: 2, TotalsByReason: exampleExplanation.TotalsByReason,
	}
	exampleWaits = drover.WaitGroup{Reason: drover.BlockerWorkersFull, Layer: drover.LayerExecution, Waiting: 17, OldestSince: exampleTime, OldestAge: drover.Duration(5 * time.Minute), Top: drover.BlockerWorkersFull,
		Subject: drover.Subject{Kind: "queue", Name: "cpu", Limit: 4, Used: 4}, Message: "17 tasks wait, the oldest for 5m; 17 wait for workers_full cpu."}
	exampleCapacity = drover.Capacity{
		Groups: []drover.WorkerGroup{{Queues: []string{"cpu"}, Labels: map[string]string{"zone": "a"}, Workers: 1, Slots: 4, Used: 4, Utilisation: 1}},
		Queues: []drover.QueueHint{{Queue: "cpu", Waiting: 17, Startable: 17, Workers: 1, Slots: 4, Used: 4, Utilisation: 1, Desired: 2,
			Reason: "17 wait only for a worker; with 2 workers they have started within 1m0s", TwoMoreWorkers: "8 start at once instead of 0; all have started in 28s instead of 1m25s."}},
	}
	exampleOperationID = drover.OperationID(exampleID(5))
	exampleLetter      = drover.Letter{
		TaskID: exampleTaskID, Generation: 1, JobID: exampleJobID, Status: drover.DeadLetter, Pipeline: "dataset-ingestion", Name: "features", Index: 2, Kind: "features", Queue: "cpu",
		Fingerprint: "0f54f6d3a98eb1d4", Attempt: 4, Worker: "gpu-3/4711", Error: exampleTask.Error, FinishedAt: exampleTask.FinishedAt, State: drover.LetterOpen,
	}
	exampleWholeLetter = func() drover.Letter {
		l := exampleLetter
		l.Context = &drover.FailureContext{Input: exampleTask.Input, InputGeneration: 1, Parents: []drover.TaskRef{{TaskID: exampleTaskID, Name: "extract", Index: 2, Status: drover.Succeeded, Generation: 1}},
			Attempts: []drover.Attempt{exampleAttempt}, Logs: []drover.LogLine{exampleLine}, Lineage: []drover.Generation{{Generation: 1, Status: drover.DeadLetter, FinishedAt: exampleTask.FinishedAt}}}
		return l
	}()
	exampleGroup = drover.LetterGroup{Fingerprint: exampleLetter.Fingerprint, Count: 17, FirstAt: exampleTime, LastAt: exampleTask.FinishedAt, Pipeline: "dataset-ingestion", Name: "features", Kind: "features",
		Error: exampleTask.Error, TaskID: exampleTaskID}
	exampleReplayLetters = protocol.ReplayLettersRequest{Filter: &protocol.LetterFilter{Fingerprint: exampleLetter.Fingerprint}, Canary: 5, Rate: 10, Reason: "the model server is back", RequestID: "replay-2"}
	exampleCloseLetters  = protocol.CloseLettersRequest{TaskIDs: []drover.TaskID{exampleTaskID}, Reason: "the customer is gone", RequestID: "close-1"}
	exampleOperation     = drover.BatchOperation{ID: exampleOperationID, Action: drover.ActionReplay, State: drover.BatchDone, Actor: "ci", Reason: "the model server is back", RequestID: "replay-2",
		Total: 2, Done: 1, Refused: 1, CreatedAt: exampleTime, EndedAt: exampleTime.Add(time.Second),
		Items: []drover.OperationItem{{Number: 1, TaskID: exampleTaskID, Generation: 1, State: drover.ItemDone, NextGeneration: 2},
			{Number: 2, TaskID: drover.TaskID(exampleID(6)), Generation: 1, State: drover.ItemRefused, Code: drover.CodeInvalidTransition, Detail: "job " + exampleJobID.String() + " is stopping (it was cancelled); replay when it has ended"}}}
	exampleRunning = func() drover.BatchOperation {
		o := exampleOperation
		o.State, o.Total, o.Done, o.Refused, o.Waiting, o.Rate, o.Canary, o.EndedAt, o.Items = drover.BatchWaitingCanary, 17, 5, 0, 12, 10, 5, time.Time{}, nil
		return o
	}()
	exampleAttempt = drover.Attempt{
		TaskID: exampleTaskID, Generation: 1, Attempt: 4, LeaseVersion: 7, Worker: "gpu-3/4711", Outcome: drover.OutcomeFailed,
		ClaimedAt: exampleTime.Add(2 * time.Second), EndedAt: exampleTime.Add(9 * time.Second), Error: exampleTask.Error,
	}
	exampleEvent = drover.Event{JobID: exampleJobID, Seq: 1, Type: drover.JobAccepted, At: exampleTime, Data: exampleJSON(`{"actor":"ci"}`)}
	exampleLine  = drover.LogLine{At: exampleTime.Add(3 * time.Second), Level: "info", Text: "42 frames", TaskID: exampleTaskID, Attempt: 1}

	exampleArtifact = drover.Artifact{
		ID: exampleArtifactID, JobID: exampleJobID, TaskID: exampleTaskID, Generation: 1, Name: "manifest.json", Kind: "dataset-manifest",
		URI: drover.URIOf(exampleArtifactID), SHA256: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", Size: 4, MediaType: "application/json", CreatedAt: exampleTime,
	}
	exampleLineage = drover.Lineage{Artifact: exampleArtifact, Down: []drover.LineageStep{}, Up: []drover.LineageStep{
		{Depth: 1, JobID: exampleJobID, Pipeline: "dataset-ingestion", Version: 3, Task: "features", Index: -1, Via: "data", Of: "manifest"},
	}}
	examplePipeline = drover.Pipeline{
		Name: "thumbnails", Version: 1, Hash: "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae", Creator: "ci", CreatedAt: exampleTime, Created: true,
	}
	exampleCircuit = drover.Circuit{Name: "payment-api", State: drover.CircuitOpen, Since: exampleTime, NextProbeAt: exampleTime.Add(10 * time.Second), Openings: 1, Reason: "http_503: no answer",
		Policy: drover.CircuitPolicy{Failures: 5, Window: drover.Duration(time.Minute), Pause: drover.Duration(10 * time.Second), MaxPause: drover.Duration(5 * time.Minute)}}
	exampleNewLimit  = drover.NewLimit{Max: 5, Reason: "what the contract allows"}
	exampleLimit     = drover.Limit{Name: "vendor-model", Scope: drover.ScopeNamed, Max: 5, Used: 3, Version: 2, CreatedAt: exampleTime, UpdatedAt: exampleTime, Actor: "ops"}
	exampleNewIntake = drover.NewIntakeRule{Queue: "gpu", MaxWaiting: 10000, MaxWait: drover.Duration(30 * time.Minute), Then: drover.IntakeShed, Class: drover.Batch}
	exampleIntake    = drover.IntakeRule{Name: "gpu-backlog", Queue: "gpu", MaxWaiting: 10000, MaxWait: drover.Duration(30 * time.Minute), Then: drover.IntakeShed, Class: drover.Batch, Firing: true, Since: exampleTime,
		Why: "10412 tasks wait, more than 10000", Measured: &drover.IntakeMeasure{Waiting: 10412, Age: drover.Duration(4 * time.Minute)}, Version: 1, CreatedAt: exampleTime, UpdatedAt: exampleTime, Actor: "ops"}
	exampleQueue      = drover.Queue{Name: "cpu", Queued: 12, Running: 4, OldestAge: drover.Duration(3 * time.Second), Workers: 1, Slots: 4}
	exampleNewSession = drover.NewSession{Worker: "gpu-3/4711", Queues: []string{"cpu"}, Slots: 4, Version: "1.4.0"}
	exampleSession    = drover.Session{
		ID: 42, Worker: "gpu-3/4711", Queues: []string{"cpu"}, Slots: 4, Version: "1.4.0", StartedAt: exampleTime, ExpiresAt: exampleTime.Add(30 * time.Second),
		LeaseFor: drover.Duration(30 * time.Second), RenewEvery: drover.Duration(10 * time.Second),
	}
	exampleRenewal  = drover.Renewal{Held: []drover.Held{{TaskID: exampleTaskID, LeaseVersion: 7}}, Acquired: 3}
	exampleRenewed  = drover.Renewed{ExpiresAt: exampleTime.Add(40 * time.Second), LeaseFor: drover.Duration(30 * time.Second), Cancelled: exampleRenewal.Held}
	exampleAcquire  = drover.Acquire{Session: 42, Max: 4, Wait: drover.Duration(20 * time.Second), Number: 3}
	exampleAcquired = protocol.AcquireResponse{Leases: []drover.Lease{{
		TaskID: exampleTaskID, JobID: exampleJobID, LeaseVersion: 7, Tenant: "default", Name: "features", Index: 2, Kind: "features", Queue: "cpu",
		Generation: 1, Attempt: 4, MaxAttempts: 4, Timeout: drover.Duration(10 * time.Minute), Input: exampleTask.Input, Pipeline: "dataset-ingestion",
		PipelineVersion: 3, IdempotencyKey: exampleTaskID.String() + ".1", Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}}}
	exampleSettle = protocol.SettleRequest{Session: 42, Outcomes: []drover.Outcome{
		{TaskID: exampleTaskID, LeaseVersion: 7, Status: drover.OutcomeFailed, Error: exampleTask.Error},
	}}
	exampleSettled        = protocol.SettleResponse{Results: []protocol.SettleResult{{TaskID: exampleTaskID, Status: drover.RetryWait}}}
	exampleProgress       = protocol.ProgressRequest{LeaseVersion: 7, Ratio: 0.4, Message: "features: 8 of 20"}
	exampleHeartbeat      = protocol.HeartbeatRequest{LeaseVersion: 7, Details: json.RawMessage(`{"segment":8}`)}
	exampleLockRequest    = protocol.LockRequest{LeaseVersion: 7, Number: 1, Name: "invoice-numbers", Exclusive: true, Wait: drover.Duration(20 * time.Second)}
	exampleLock           = drover.Lock{Number: 1, Name: "invoice-numbers", Permits: 1, Granted: true, Token: 1767225600000001, Since: exampleTime}
	exampleMeetingRequest = protocol.MeetingRequest{LeaseVersion: 7, Number: 2, Name: "epoch", Parties: 4, Round: 1, Wait: drover.Duration(20 * time.Second)}
	exampleMeeting        = drover.Meeting{Number: 2, Name: "epoch", Round: 1, Parties: 4, Arrived: 4, Met: true}
	exampleLogs           = protocol.LogsRequest{LeaseVersion: 7, Lines: []drover.LogLine{{At: exampleLine.At, Level: "info", Text: "42 frames"}}}
	exampleNewToken       = protocol.NewToken{Name: "ci", Scopes: []string{"jobs:read", "jobs:write"}}
	exampleToken          = drover.Token{ID: exampleTokenID, Tenant: "default", Name: "ci", Scopes: exampleNewToken.Scopes, CreatedAt: exampleTime}
	exampleMadeToken      = func() drover.Token { t := exampleToken; t.Secret = "drover_…"; return t }()
	exampleTenant         = drover.Tenant{Name: "acme", Weight: 2}
	exampleTenantRequest  = protocol.TenantRequest{Weight: new(2.0)}
	exampleRetention      = protocol.RetentionRequest{Failed: new(drover.Duration(90 * 24 * time.Hour))}
	exampleWho            = protocol.WhoAmI{Tenant: "default", Name: "ci", Scopes: exampleNewToken.Scopes}
	exampleHealth         = protocol.Health{Status: "ok", Checks: []protocol.Check{{Name: checkDatabase, OK: true}}}
	exampleUnready        = protocol.Health{Status: "failing", Checks: []protocol.Check{{Name: checkDatabase, Detail: "does not answer as it should; see the server's log"}}}
	exampleVersion        = protocol.Version{Version: "0.1.0", Go: "go1.26", Database: "sqlite"}
)

func examplePage[T any](item T) protocol.Page[T] { return protocol.Page[T]{Items: []T{item}} }

// exampleProblems are what refusals say.
var exampleProblems = map[drover.Code]*drover.Error{
	drover.CodeValidation:        {Code: drover.CodeValidation, Detail: "the request body is not valid", Fields: []drover.FieldError{{Field: "pipline", Message: `is not known here; did you mean "pipeline"?`}}},
	drover.CodeUnauthenticated:   drover.Errorf(drover.CodeUnauthenticated, "send the header Authorization: Bearer drover_…; `drover token create` makes a token"),
	drover.CodeForbidden:         drover.Errorf(drover.CodeForbidden, "the token lacks the scope jobs:write; make one with `drover token create --name NAME --scope jobs:write`"),
	drover.CodeNotFound:          drover.Errorf(drover.CodeNotFound, "there is no job %s", exampleJobID),
	drover.CodeInvalidTransition: drover.Errorf(drover.CodeInvalidTransition, "the job is SUCCEEDED, which is final"),
	drover.CodeDraining:          drover.Errorf(drover.CodeDraining, "queue gpu is draining: it takes no new jobs; `drover queue resume gpu` lets it"),
	drover.CodeLeaseLost:         drover.Errorf(drover.CodeLeaseLost, "the lease with version 7 is lost; the task is at version 9"),
	drover.CodeDeadlock: {Code: drover.CodeDeadlock, Detail: "waiting for lock b would never end", Fields: []drover.FieldError{
		{Field: "ring[0]", Message: exampleTaskID.String() + " (encode) waits for b, which " + exampleRingTask.String() + " (mix) holds"},
		{Field: "ring[1]", Message: exampleRingTask.String() + " (mix) waits for a, which " + exampleTaskID.String() + " (encode) holds"}}},
	drover.CodeIdempotencyInUse:   {Code: drover.CodeIdempotencyInUse, Detail: "the first request with this key has not ended", RetryAfter: time.Second},
	drover.CodeIdempotencyReused:  drover.Errorf(drover.CodeIdempotencyReused, "the key was used for a request with another body"),
	drover.CodePayloadTooLarge:    drover.Errorf(drover.CodePayloadTooLarge, "the request body is too large"),
	drover.CodeSchemaMismatch:     {Code: drover.CodeSchemaMismatch, Detail: "the input does not match the pipeline's schema", Fields: []drover.FieldError{{Field: "input.object_uri", Message: "is required"}}},
	drover.CodeCycle:              {Code: drover.CodeCycle, Detail: "the tasks wait for each other: a → b → a", Fields: []drover.FieldError{{Field: "tasks.a.needs", Line: 4, Column: 12, Message: "a waits for b, which waits for a"}}},
	drover.CodeTooManyTasks:       drover.Errorf(drover.CodeTooManyTasks, "the pipeline has 120,000 tasks; at most 100,000 are possible"),
	drover.CodeExceedsLimit:       drover.Errorf(drover.CodeExceedsLimit, "the task asks for 8 of limit vendor-model, which has 5: it would wait for ever"),
	drover.CodeQuota:              &drover.Error{Code: drover.CodeQuota, Detail: "rule mine: too much waits (1003 tasks wait, more than 1000), and new jobs are refused until less does", RetryAfter: 5 * time.Second, Policy: "mine", Quota: 1000},
	drover.CodeRateLimited:        &drover.Error{Code: drover.CodeRateLimited, Detail: "rule gpu-backlog: too much waits (10412 tasks wait, more than 10000), and new jobs are refused until less does", RetryAfter: 5 * time.Second, Policy: "gpu-backlog", Quota: 10000},
	drover.CodeBudget:             drover.Errorf(drover.CodeBudget, "there are 10000 limits; at most 10000"),
	drover.CodeConflict:           drover.Errorf(drover.CodeConflict, "limit vendor-model is another one: its scope, queue and kind stay; delete it first, or take another name"),
	drover.CodePreconditionFailed: drover.Errorf(drover.CodePreconditionFailed, "the limit has version 4 by now; look at it again"),
	drover.CodeExpression:         drover.Errorf(drover.CodeExpression, "an expression has no value"),
	drover.CodeCursorExpired:      drover.Errorf(drover.CodeCursorExpired, "the cursor has expired; ask for the first page again, without a cursor"),
	drover.CodeOverloaded:         {Code: drover.CodeOverloaded, Detail: "20000 calls wait already; ask again", RetryAfter: time.Second},
	drover.CodeInternal:           drover.Errorf(drover.CodeInternal, "a fault of the server; its log has more under the trace id"),
}

func exampleProblem(code drover.Code) *protocol.Problem {
	p := protocol.FromError(exampleProblems[code])
	p.Instance, p.TraceID = "/v1/jobs", exampleJob.TraceID
	return p
}

// anywhere are the problems that any route with a token has.
var anywhere = []drover.Code{drover.CodeValidation, drover.CodeUnauthenticated, drover.CodeForbidden, drover.CodeOverloaded, drover.CodeInternal}

// problemsAt groups codes by their HTTP status.
func problemsAt(codes []drover.Code) map[int][]drover.Code {
	out := map[int][]drover.Code{}
	for _, c := range codes {
		out[protocol.StatusOf(c)] = append(out[protocol.StatusOf(c)], c)
	}
	return out
}

// statusNotes words a status of problems.
var statusNotes = map[int]string{
	http.StatusBadRequest:           "The request is malformed; `errors` says where.",
	http.StatusUnsupportedMediaType: "The content type is not taken here.",
}

// statusTitles are titles of problems whose status is not that of their code.
var statusTitles = map[int]string{
	http.StatusGatewayTimeout:               "The outcome is unknown",
	http.StatusMethodNotAllowed:             "The method is not allowed here",
	http.StatusUnsupportedMediaType:         "The content type is not taken here",
	http.StatusRequestedRangeNotSatisfiable: "The range is not satisfiable",
}
