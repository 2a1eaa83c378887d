package protocol

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
)

var update = flag.Bool("update", false, "write testdata anew from the samples")

func id(n byte) drover.ID {
	return drover.MakeID(1767225600123, [10]byte{0xd0, 0x0e, 0, 0, 0, 0, 0, 0, 0, n})
}

var (
	job1  = drover.JobID(id(1))
	task1 = drover.TaskID(id(2))
	task2 = drover.TaskID(id(3))
	art1  = drover.ArtifactID(id(4))
	tok1  = drover.TokenID(id(5))
	at    = time.Date(2026, 1, 1, 0, 0, 0, 123_000_000, time.UTC)
)

func raw(s string) json.RawMessage { return json.RawMessage(s) }

var sampleJob = drover.Job{
	ID: job1, Tenant: "default", Status: drover.Running, Pipeline: "dataset-ingestion", PipelineVersion: 3, Creator: "ci",
	Labels: map[string]string{"team": "vision"}, Class: drover.Normal, Paused: true, Run: 1,
	Tasks:    drover.Counts{Total: 4, Pending: 1, Running: 1, Succeeded: 2},
	Progress: &drover.Progress{Ratio: 0.5, Message: "features: 2 of 4", ETA: drover.Duration(90 * time.Second)},
	Input:    raw(`{"object_uri":"s3://bucket/clip.mp4"}`), TraceID: "0af7651916cd43dd8448eb211c80319c", CreatedAt: at, Events: 7,
}

var sampleTask = drover.Task{
	ID: task1, JobID: job1, Name: "features", Index: 2, Mapped: true, Kind: "features", Queue: "cpu", Class: drover.Urgent,
	Status: drover.DeadLetter, Generation: 2, Attempt: 4, MaxAttempts: 4, LeaseVersion: 9, Worker: "gpu-3/4711", CreatedAt: at,
	ReadyAt: at.Add(time.Second), QueuedAt: at.Add(time.Second), ClaimedAt: at.Add(2 * time.Second), FinishedAt: at.Add(3 * time.Second),
	Input: raw(`{"segment":2}`), Error: &drover.Failure{Class: drover.ClassRetryable, Message: "model server answered 500", Type: "http_500"},
	Waits: map[string]drover.Duration{"handoff": drover.Duration(time.Second)},

	ClosesAt: at.Add(time.Hour), HeartbeatAt: at, Checkpoint: raw(`{"segment":8}`), Circuit: "model-server",
	Blockers: []drover.Blocker{{Code: drover.BlockerCircuit, Layer: drover.LayerBusiness, Primary: true, Subject: drover.Subject{Kind: "circuit", Name: "model-server"}, Since: at, Until: at.Add(time.Minute), Message: "circuit model-server is open"}},
}

var sampleLease = drover.Lease{
	TaskID: task1, JobID: job1, LeaseVersion: 3, Tenant: "default", Name: "features", Index: 2, Kind: "features", Queue: "cpu",
	Generation: 1, Attempt: 2, MaxAttempts: 4, Timeout: drover.Duration(10 * time.Minute), Input: raw(`{"n":9007199254740993}`), Heartbeat: drover.Duration(30 * time.Second), Checkpoint: raw(`{"segment":8}`),
	Pipeline: "dataset-ingestion", PipelineVersion: 3, IdempotencyKey: task1.String() + ".1",
	DegradedBy:  []drover.Degradation{{Task: "infer", Index: 2, Reason: "fallback infer-small", Error: &drover.Failure{Class: drover.ClassTimeout, Message: "took longer than 600s"}}},
	Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}

var sampleArtifact = drover.Artifact{
	ID: art1, JobID: job1, TaskID: task1, Generation: 1, Name: "frames/0001.jpg", Kind: "frame", URI: drover.URIOf(art1),
	SHA256: strings.Repeat("0123456789abcdef", 4), Size: 48213, MediaType: "image/jpeg", Metadata: raw(`{"width":640}`), CreatedAt: at,
}

var sampleProblem = FromError(&drover.Error{
	Code: drover.CodeValidation, Detail: "the job is not valid",
	Fields: []drover.FieldError{{Field: "class", Message: `"soon" is not a class`}},
})

// samples are the messages, one file each. A file is named after the message.
var samples = map[string]any{
	"new_job": drover.NewJob{
		ID: job1, Kind: "mail", Queue: "mail", Input: raw(`{"to":"a@example.com","big":9007199254740993,"price":1.10}`),
		Labels: map[string]string{"team": "vision"}, Class: drover.Urgent, DueAt: at, ExpiresAt: at.Add(time.Hour), IdempotencyKey: "order-17",
		Retry: &drover.Retry{MaxAttempts: 3, Initial: drover.Duration(500 * time.Millisecond), Factor: 1.5, Max: drover.Duration(time.Minute),
			On: map[string]drover.RetryRule{"timeout": {MaxAttempts: 1}, "exit_75": {Initial: drover.Duration(time.Minute), Factor: 2, Max: drover.Duration(time.Hour)}}},
		Timeout: drover.Duration(90 * time.Minute), ScheduleToClose: drover.Duration(24 * time.Hour), Heartbeat: drover.Duration(30 * time.Second), Circuit: "mail-api",
	},
	"new_job_pipeline":     drover.NewJob{Pipeline: "dataset-ingestion@3", Input: raw(`{"object_uri":"s3://bucket/clip.mp4"}`)},
	"submit_response":      SubmitResponse{JobID: job1, Status: drover.Pending, Replayed: true, Links: LinksOf(job1)},
	"batch_request":        BatchRequest{Jobs: []drover.NewJob{{Kind: "mail"}, {Pipeline: "p"}}},
	"batch_response":       BatchResponse{Items: []BatchItem{{JobID: job1, Status: drover.Pending}, {Error: sampleProblem}}},
	"processing_request":   ProcessingRequest{ObjectID: "obj-1", Pipeline: "dataset-ingestion-v3", IdempotencyKey: "obj-1-v3"},
	"processing_response":  ProcessingResponse{JobID: job1, Status: drover.Pending},
	"action_request":       ActionRequest{Reason: "wrong bucket", RequestID: "cancel-17"},
	"replay_request":       ReplayRequest{Input: raw(`{"segment":2}`), Reason: "model fixed", RequestID: "replay-17"},
	"rerun_request":        RerunRequest{From: []string{"features[3]"}, Fresh: true, Input: raw(`{"segment":2}`), Reason: "model fixed", RequestID: "rerun-17"},
	"rerun_failed_request": RerunRequest{Failed: true, Reason: "model fixed"},
	"mark_request":         MarkRequest{Status: drover.Succeeded, Output: raw(`{"passed":true}`), Reason: "checked by hand", RequestID: "mark-17"},
	"rerun": drover.Rerun{JobID: job1, Run: 2, Tasks: []drover.RerunTask{
		{Task: "cut", Was: drover.Succeeded, Does: drover.RerunStays, Why: "nothing that it waits for runs again"},
		{Task: "features", First: 3, Last: 3, Was: drover.Failed, Does: drover.RerunRuns, Why: "it was asked for"}}},
	"replay_letters_request": ReplayLettersRequest{Filter: &LetterFilter{Fingerprint: "66e20544dcb9e2cc", ErrorClass: drover.ClassRetryable, Status: drover.DeadLetter, Since: at}, Rate: 2.5, Canary: 5,
		Patch: raw(`{"segment":null}`), Reason: "model fixed", RequestID: "replay-18"},
	"close_letters_request": CloseLettersRequest{TaskIDs: []drover.TaskID{task1}, Reason: "the customer is gone", RequestID: "close-1"},
	"letters_page": Page[drover.Letter]{Items: []drover.Letter{{
		TaskID: task1, Generation: 1, JobID: job1, Status: drover.DeadLetter, Pipeline: "dataset-ingestion", Name: "features", Index: 2, Kind: "features", Queue: "gpu", Fingerprint: "66e20544dcb9e2cc",
		Attempt: 4, Losses: 1, Worker: "gpu-3/4711", Error: &drover.Failure{Class: drover.ClassRetryable, Type: "http_500", Message: "model server answered 500"}, FinishedAt: at,
		State: drover.LetterReplayed, StateAt: at.Add(time.Hour), Actor: "ci", Reason: "model fixed", OperationID: drover.OperationID(art1),
		Context: &drover.FailureContext{Input: raw(`{"segment":2}`), InputGeneration: 1, Parents: []drover.TaskRef{{TaskID: task1, Name: "extract", Index: 2, Status: drover.Succeeded, Generation: 1}},
			Lineage: []drover.Generation{{Generation: 1, Status: drover.DeadLetter, FinishedAt: at, ReplayedAt: at.Add(time.Hour), ReplayedBy: "ci"}, {Generation: 2, Status: drover.Running, NewInput: true}}},
	}}, NextCursor: "opaque"},
	"letter_groups_page": Page[drover.LetterGroup]{Items: []drover.LetterGroup{{Fingerprint: "66e20544dcb9e2cc", Count: 17, FirstAt: at, LastAt: at.Add(time.Hour), Name: "features", Kind: "features",
		Error: &drover.Failure{Class: drover.ClassRetryable, Message: "model server answered 500"}, TaskID: task1}}},
	"batch_operation": drover.BatchOperation{ID: drover.OperationID(art1), Action: drover.ActionReplay, State: drover.BatchStopped, Why: "cancelled by ci", Actor: "ci", Reason: "model fixed", RequestID: "replay-18",
		Total: 17, Done: 5, Refused: 1, Waiting: 11, Rate: 2.5, Canary: 5, CreatedAt: at, EndedAt: at.Add(time.Minute),
		Items: []drover.OperationItem{{Number: 3, TaskID: task1, Generation: 1, State: drover.ItemRefused, Code: drover.CodeInvalidTransition, Detail: "job job_… is stopping"}}},
	"job": sampleJob,
	"job_failed": drover.Job{
		ID: job1, Tenant: "default", Status: drover.Failed, Kind: "mail", Class: drover.Normal, Run: 1, Tasks: drover.Counts{Total: 1, Failed: 1},
		Error: &drover.Failure{Class: drover.ClassPanic, Message: "index out of range", Stack: "goroutine 1 [running]:", Task: "mail"},
		Compensation: &drover.Compensation{Status: drover.Failed, Total: 1, Failed: 1, Tasks: []drover.Compensated{
			{Task: "charge", By: "refund", TaskID: task2, Status: drover.DeadLetter, Error: &drover.Failure{Class: drover.ClassThrottled, Message: "too many requests"}}}},
		TraceID: "0af7651916cd43dd8448eb211c80319c", CreatedAt: at, FinishedAt: at.Add(time.Minute), Events: 3,
	},
	"jobs_page":  Page[drover.Job]{Items: []drover.Job{sampleJob}, NextCursor: "opaque"},
	"empty_page": Page[drover.Job]{Items: []drover.Job{}},
	"task":       sampleTask,
	"tasks_page": Page[drover.Task]{Items: []drover.Task{sampleTask}},
	"attempts_page": Page[drover.Attempt]{Items: []drover.Attempt{{
		TaskID: task1, Generation: 1, Attempt: 1, LeaseVersion: 2, Worker: "gpu-3/4711", Outcome: "failed", ReadyAt: at, QueuedAt: at, ClaimedAt: at.Add(time.Second),
		EndedAt: at.Add(2 * time.Second), Error: &drover.Failure{Class: drover.ClassTimeout, Message: "took longer than 600s"},
	}}},
	"event": drover.Event{JobID: job1, Seq: 4, Type: drover.TaskSucceeded, At: at, TaskID: task1, Data: raw(`{"name":"features","index":2}`)},
	"events_page": Page[drover.Event]{Items: []drover.Event{
		{JobID: job1, Seq: 1, Type: drover.JobAccepted, At: at}, {JobID: job1, Seq: 2, Type: drover.JobSucceeded, At: at.Add(time.Second)}}},
	"log_lines_page": Page[drover.LogLine]{Items: []drover.LogLine{{At: at, Level: "info", Text: "frame read", Attrs: raw(`{"n":1}`), TaskID: task1, Attempt: 2}}, NextCursor: "opaque"},
	"pipeline": drover.Pipeline{
		Name: "p", Version: 3, Hash: strings.Repeat("0123456789abcdef", 4), Creator: "ci", CreatedAt: at,
		Definition: raw(`{"pipeline":"p","tasks":{"a":{"run":"exec"}}}`), Source: "pipeline: p\ntasks:\n  a: {run: exec}\n", Created: true,
	},
	"queues_page":      Page[drover.Queue]{Items: []drover.Queue{{Name: "cpu", Ready: 1, Queued: 2, Running: 3, Delayed: 4, OldestAge: drover.Duration(1500 * time.Millisecond), Workers: 1, Slots: 8, Approximate: true}}},
	"new_token":        NewToken{Name: "ci", Scopes: []string{"jobs:read", "jobs:write"}, Tenant: "default", ExpiresAt: at},
	"token":            drover.Token{ID: tok1, Tenant: "default", Name: "ci", Scopes: []string{"jobs:read"}, CreatedAt: at, ExpiresAt: at.Add(time.Hour), LastUsedAt: at, RevokedAt: at, Secret: "drover_example"},
	"who_am_i":         WhoAmI{Tenant: "default", Name: "ci", Scopes: []string{"admin"}, System: true},
	"version":          Version{Version: "0.1.0", Commit: "c0ffee", Go: "go1.26", Database: "sqlite"},
	"health":           Health{Status: "failing", Checks: []Check{{Name: "database", OK: true}, {Name: "migrations", Detail: "version 2 is missing; run drover migrate up"}}},
	"problem":          sampleProblem,
	"problem_busy":     &Problem{Type: TypeOf(drover.CodeOverloaded), Title: "The server is overloaded", Status: 503, Detail: "queue mail is full", Instance: "/v1/jobs", Code: drover.CodeOverloaded, TraceID: "0af7651916cd43dd8448eb211c80319c", Retryable: true, RetryAfter: drover.Duration(2 * time.Second)},
	"new_session":      drover.NewSession{Worker: "gpu-3/4711", Queues: []string{"cpu", "gpu"}, Kinds: []string{"features"}, Slots: 4, Labels: map[string]string{"zone": "a"}, Version: "1.4.0"},
	"session":          drover.Session{ID: 42, Worker: "gpu-3/4711", Queues: []string{"cpu"}, Kinds: []string{"features"}, Slots: 4, Running: 1, Labels: map[string]string{"zone": "a"}, Version: "1.4.0", Draining: true, StartedAt: at, ExpiresAt: at.Add(30 * time.Second), LeaseFor: drover.Duration(30 * time.Second), RenewEvery: drover.Duration(10 * time.Second)},
	"sessions_page":    Page[drover.Session]{Items: []drover.Session{{ID: 42, Worker: "w", Queues: []string{"cpu"}, Slots: 1, StartedAt: at, ExpiresAt: at, LeaseFor: drover.Duration(30 * time.Second), RenewEvery: drover.Duration(10 * time.Second)}}},
	"renewal":          drover.Renewal{Held: []drover.Held{{TaskID: task1, LeaseVersion: 3}}, Acquired: 17, Draining: true},
	"renewed":          drover.Renewed{ExpiresAt: at, LeaseFor: drover.Duration(30 * time.Second), Cancelled: []drover.Held{{TaskID: task1, LeaseVersion: 3}}, Lost: []drover.Held{{TaskID: task2, LeaseVersion: 1}}},
	"acquire":          drover.Acquire{Session: 42, Queues: []string{"cpu"}, Max: 4, Wait: drover.Duration(20 * time.Second), Number: 18},
	"lease":            sampleLease,
	"acquire_response": AcquireResponse{Leases: []drover.Lease{sampleLease}},
	"settle_request": SettleRequest{Session: 42, Outcomes: []drover.Outcome{
		{TaskID: task1, LeaseVersion: 3, Status: drover.OutcomeSucceeded, Output: raw(`{"frames":240}`), Artifacts: []drover.ArtifactID{art1}},
		{TaskID: task2, LeaseVersion: 1, Status: drover.OutcomeFailed, Error: &drover.Failure{Class: drover.ClassThrottled, Message: "the labeler asks for a pause", Type: "http_429"}, RetryAfter: drover.Duration(30 * time.Second)},
		{TaskID: task2, LeaseVersion: 2, Status: drover.OutcomeSnoozed, RetryAfter: drover.Duration(time.Minute)},
		{TaskID: task2, LeaseVersion: 3, Status: drover.OutcomeReleased},
		{TaskID: task2, LeaseVersion: 4, Status: drover.OutcomeCancelled},
	}, Acquire: &drover.Acquire{Session: 42, Max: 1, Number: 19}},
	"settle_response": SettleResponse{Results: []SettleResult{
		{TaskID: task1, Status: drover.Succeeded}, {TaskID: task2, Error: FromError(drover.Errorf(drover.CodeLeaseLost, "the lease of %s has moved on", task2))},
	}, Leases: []drover.Lease{sampleLease}},
	"circuit": drover.Circuit{Name: "mail-api", State: drover.CircuitOpen, Since: at, NextProbeAt: at.Add(time.Minute), ByHand: true, Failures: 1, Openings: 2, Reason: "no answer", Probe: task1,
		Policy: drover.CircuitPolicy{Failures: 5, Window: drover.Duration(time.Minute), Pause: drover.Duration(10 * time.Second), MaxPause: drover.Duration(5 * time.Minute)}},
	"circuit_request":   CircuitRequest{Reason: "maintenance"},
	"lock_request":      LockRequest{LeaseVersion: 3, Number: 1, Name: "vendor-model", Permits: 2, Wait: drover.Duration(20 * time.Second)},
	"lock_exclusive":    LockRequest{LeaseVersion: 3, Number: 2, Name: "invoice-numbers", Exclusive: true},
	"lock":              drover.Lock{Number: 1, Name: "vendor-model", Permits: 2, Granted: true, Token: 1767225600000001, Since: at},
	"lock_waiting":      drover.Lock{Number: 1, Name: "vendor-model", Permits: 2, Since: at, Position: 4},
	"unlock_request":    UnlockRequest{LeaseVersion: 3, Number: 1},
	"meeting_request":   MeetingRequest{LeaseVersion: 3, Number: 3, Name: "epoch", Parties: 4, Round: 1, Wait: drover.Duration(20 * time.Second)},
	"meeting":           drover.Meeting{Number: 3, Name: "epoch", Round: 1, Parties: 4, Arrived: 2},
	"heartbeat_request": HeartbeatRequest{LeaseVersion: 3, Details: json.RawMessage(`{"segment":8}`)},
	"progress_request":  ProgressRequest{LeaseVersion: 3, Ratio: 0.4, Message: "8 of 20", ETA: drover.Duration(time.Minute)},
	"logs_request":      LogsRequest{LeaseVersion: 3, Lines: []drover.LogLine{{At: at, Level: "stderr", Text: "warming up"}}},
	"logs_response":     LogsResponse{Accepted: 1},
	"artifact":          sampleArtifact,
	"artifacts_page":    Page[drover.Artifact]{Items: []drover.Artifact{sampleArtifact}},
}

func TestEveryMessageIsReadStrictlyAndWrittenBackEqual(t *testing.T) {
	seen := map[string]bool{}
	for name, sample := range samples {
		file := filepath.Join("testdata", name+".json")
		seen[name+".json"] = true
		if *update {
			b, err := json.MarshalIndent(sample, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, append(b, '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Errorf("%v (make it with -update)", err)
			continue
		}
		got := reflect.New(reflect.TypeOf(sample))
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(got.Interface()); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if _, err := d.Token(); err != io.EOF {
			t.Errorf("%s: something follows the message", file)
		}
		again, err := json.MarshalIndent(got.Interface(), "", "  ")
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if string(again)+"\n" != string(text) {
			t.Errorf("%s is written back as\n%s", file, again)
		}
		want, err := json.MarshalIndent(sample, "", "  ")
		if err != nil || string(want)+"\n" != string(text) {
			t.Errorf("%s does not hold its sample, which is\n%s", file, want)
		}
	}
	files, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !seen[f.Name()] {
			t.Errorf("testdata/%s has no sample", f.Name())
		}
	}
}

func TestEmptyPageIsAnEmptyList(t *testing.T) {
	b, err := json.Marshal(Page[drover.Job]{})
	if err != nil || string(b) != `{"items":[]}` {
		t.Fatalf("got %s, %v", b, err)
	}
}

func TestProblemKeepsTheKindOfAnError(t *testing.T) {
	for code, facts := range codes {
		err := fmt.Errorf("submit: %w", &drover.Error{Code: code, Detail: "why", RetryAfter: time.Second, Fields: []drover.FieldError{{Field: "a", Message: "b"}}})
		p := FromError(err)
		if p.Status != facts.status || p.Status != StatusOf(code) || p.Title == "" || p.Type != "urn:drover:problem:"+string(code) {
			t.Errorf("%s: %+v", code, p)
		}
		b, _ := json.Marshal(p)
		var q Problem
		if err := json.Unmarshal(b, &q); err != nil {
			t.Fatal(err)
		}
		e := q.ToError()
		if !errors.Is(e, &drover.Error{Code: code}) || e.Detail != "why" || e.RetryAfter != time.Second || len(e.Fields) != 1 {
			t.Errorf("%s came back as %#v", code, e)
		}
		if q.Status/100 == 4 && drover.CodeOf(&drover.Error{Code: CodeOfStatus(q.Status)}) == drover.CodeInternal {
			t.Errorf("status %d reads as internal", q.Status)
		}
	}
}

func TestProblemOfAnInnerFaultHidesIt(t *testing.T) {
	p := FromError(errors.New("pq: password of drover is hunter2"))
	b, _ := json.Marshal(p)
	if p.Code != drover.CodeInternal || p.Status != 500 || strings.Contains(string(b), "hunter2") {
		t.Fatalf("got %s", b)
	}
	p.TraceID = "0af7651916cd43dd8448eb211c80319c" // by which it is found
	if got := p.ToError().Error(); !strings.HasSuffix(got, "under the trace id "+p.TraceID) {
		t.Errorf("the caller is told %q", got)
	}
	if p := FromError(fmt.Errorf("claim: %w", context.DeadlineExceeded)); p.Status != 503 || !p.Retryable {
		t.Fatalf("a deadline became %+v", p)
	}
}

func TestProblemWithoutACodeGoesByItsStatus(t *testing.T) {
	if e := (&Problem{Status: 404}).ToError(); !errors.Is(e, drover.ErrNotFound) {
		t.Errorf("404 became %v", e)
	}
	if e := (&Problem{Status: 502, Title: "Bad Gateway"}).ToError(); e.Code != drover.CodeOverloaded || e.Detail != "Bad Gateway" {
		t.Errorf("502 became %#v", e)
	}
	if e := (*Problem)(nil).ToError(); e != nil {
		t.Errorf("nothing became %v", e)
	}
}
