package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/drover-dev/drover"
)

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("disk is full"), 1},
		{drover.Errorf(drover.CodeValidation, "x"), 1},
		{drover.Errorf(drover.CodeInternal, "x"), 1},
		{drover.Errorf(drover.CodeOverloaded, "x"), 1},
		{usagef("x"), 2},
		{errors.New(`unknown command "x" for "drover"`), 2},
		{errors.New(`required flag(s) "url" not set`), 2},
		{drover.Errorf(drover.CodeNotFound, "x"), 3},
		{fmt.Errorf("get: %w", drover.ErrNotFound), 3},
		{drover.Errorf(drover.CodeUnauthenticated, "x"), 4},
		{drover.Errorf(drover.CodeForbidden, "x"), 4},
		{drover.Errorf(drover.CodeConflict, "x"), 5},
		{drover.Errorf(drover.CodeInvalidTransition, "x"), 5},
		{drover.Errorf(drover.CodeIdempotencyReused, "x"), 5},
		{drover.Errorf(drover.CodeIdempotencyInUse, "x"), 5},
		{drover.Errorf(drover.CodePreconditionFailed, "x"), 5},
		{exitf(exitFailed, "x"), 6},
		{exitf(exitCancelled, "x"), 7},
		{exitf(exitPending, "x"), 8},
		{fmt.Errorf("wait: %w", context.DeadlineExceeded), 124},
		{fmt.Errorf("wait: %w", context.Canceled), 130},
		{&exit{code: exitTerminated}, 143},
	} {
		if got := exitCode(c.err); got != c.want {
			t.Errorf("exit code of %v = %d, want %d", c.err, got, c.want)
		}
	}
}

func TestAnswersOfTheServerBecomeExitCodes(t *testing.T) {
	s := newShell(t)
	const job = "job_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C"
	for answer, want := range map[string]int{
		"404 not-found": 3, "401 unauthenticated": 4, "403 forbidden": 4, "409 invalid-transition": 5, "422 idempotency-key-reused": 5, "400 validation-failed": 1,
	} {
		srv := fakeServer(t, map[string]string{"GET /v1/jobs/" + job: answer})
		out, errs, code := s.run("job", "get", job, "--url", srv.URL)
		if code != want || out != "" || !strings.HasPrefix(errs, "drover: said the server") || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: code %d, want %d; stdout %q, stderr %q, want one line", answer, code, want, out, errs)
		}
	}
}

func TestWaitedJobDecidesTheExitCode(t *testing.T) {
	s := newShell(t)
	const job = "job_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C"
	for _, c := range []struct {
		status string
		words  []string
		want   int
	}{
		{"SUCCEEDED", nil, 0},
		{"FAILED", nil, 6},
		{"CANCELLED", nil, 7},
		{"RUNNING", []string{"--timeout", "0"}, 8},
		{"PENDING", []string{"--timeout", "0"}, 8},
		{"RUNNING", []string{"--timeout", "50ms"}, 124},
		{"FAILED", []string{"--for=status=FAILED"}, 0},
		{"CANCELLED", []string{"--for=status=failed"}, 7},
		{"SUCCEEDED", []string{"--for=status=FAILED"}, 1},
		{"FAILED", []string{"--for=ended"}, 0},
		{"SUCCEEDED", []string{"--for=status=RUNNING"}, 0},
		{"RUNNING", []string{"--for=status=RUNNING"}, 0},
		{"RUNNING", []string{"--for=status=SKIPPED"}, 2},
		{"RUNNING", []string{"--timeout", "-1s"}, 2},
	} {
		srv := fakeServer(t, map[string]string{"GET /v1/jobs/" + job: fmt.Sprintf(`{"job_id":%q,"status":%q,"kind":"x","class":"normal","error":{"class":"permanent","message":"m"},"created_at":"2026-01-31T11:00:00Z"}`, job, c.status)})
		_, errs, code := s.run(append([]string{"job", "wait", job, "--url", srv.URL}, c.words...)...)
		if code != c.want {
			t.Errorf("wait %v for a job that is %s: code %d, want %d; %s", c.words, c.status, code, c.want, errs)
		}
	}
}

func TestUsageErrorsNameTheRemedy(t *testing.T) {
	s := newShell(t)
	for _, c := range []struct {
		words []string
		want  string
	}{
		{[]string{"jb"}, `did you mean "job"?`},
		{[]string{"job", "lst"}, `did you mean "list"?`},
		{[]string{"job"}, "needs a command: cancel, delete, events"},
		{[]string{"job", "get"}, "usage: drover job get JOB"},
		{[]string{"job", "list", "--colour"}, "unknown flag: --colour"},
		{[]string{"job", "list", "-o", "xml"}, "must be one of table, wide, json, jsonl, yaml, name"},
		{[]string{"job", "list", "--time-format", "epoch"}, "must be one of relative, iso, raw"},
		{[]string{"job", "list", "--url", "localhost:8420"}, "is not an address such as"},
		{[]string{"job", "list", "--url", "http://h", "--status", "DONE"}, "it is PENDING"},
		{[]string{"job", "list", "--url", "http://h", "--limit", "-1"}, "must not be negative"},
		{[]string{"job", "list", "--url", "http://h", "--since", "yesterday"}, "a length such as 90m"},
		{[]string{"job", "list", "--context", "prod"}, `there is no context "prod"`},
		{[]string{"job", "get", "x", "--url", "http://h"}, "is not an id of the form job_"},
		{[]string{"job", "submit", "--url", "http://h"}, "either --pipeline NAME or --kind KIND"},
		{[]string{"job", "submit", "--url", "http://h", "--kind", "a", "--pipeline", "b"}, "either --pipeline NAME or --kind KIND"},
		{[]string{"job", "submit", "--url", "http://h", "--pipeline", "a", "--queue", "b"}, "a pipeline declares its own"},
		{[]string{"job", "submit", "--url", "http://h", "--kind", "a", "--input", `{"a":1,}`}, "--input is not JSON: line 1, column 8"},
		{[]string{"job", "submit", "--url", "http://h", "--kind", "a", "--input", "-"}, "standard input is not JSON: it is empty"},
		{[]string{"job", "submit", "--url", "http://h", "--kind", "a", "--input", "@none.json"}, "none.json: no such file"},
		{[]string{"job", "submit", "--url", "http://h", "--kind", "a", "--label", "x"}, "must be of the form key=value"},
		{[]string{"job", "submit", "--url", "http://h", "--kind", "a", "--class", "soon"}, "interactive, urgent, normal, batch"},
		{[]string{"job", "submit", "--url", "http://h", "--kind", "a", "--due-at", "soon"}, "2026-01-31T09:00:00Z"},
		{[]string{"dlq", "replay", "--url", "http://h"}, "drover dlq replay --all"},
		{[]string{"dlq", "replay", "--url", "http://h", "--all", "--input", "{}", "--patch", "{}"}, "either --input or --patch"},
		{[]string{"dlq", "replay", "--url", "http://h", "--canary", "-1", "--all"}, "must not be negative"},
		{[]string{"dlq", "replay", "--url", "http://h", "--all", "task_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C"}, "either TASK or --all"},
		{[]string{"dlq", "close", "--url", "http://h", "--all"}, "--reason is required"},
		{[]string{"dlq", "cancel", "--url", "http://h", "job_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C"}, "is not an id of the form op_"},
		{[]string{"token", "create", "--url", "http://h"}, "--scope with some of jobs:read"},
		{[]string{"token", "create", "--url", "http://h", "--scope", "root"}, "must be one of jobs:read"},
		{[]string{"worker", "run", "--url", "http://h"}, "--exec, --http, --simulate, or several of them"},
		{[]string{"worker", "run", "--exec", "--workdir", "nowhere"}, "is not a folder"},
		{[]string{"worker", "run", "--url", "http://h", "--http", "--resource", "gpu"}, "--resource gpu: must be of the form name=N"},
		{[]string{"worker", "run", "--url", "http://h", "--http", "--resource", "gpu=0"}, "--resource gpu=0: must be of the form name=N"},
		{[]string{"worker", "run", "--url", "http://h", "--http", "--resource", "gpu=1,gpu=2"}, "the name is there twice"},
		{[]string{"dev", "--addr", "127.0.0.1:0", "--resource", "gpu=1.5"}, "--resource gpu=1.5: must be of the form name=N"},
		{[]string{"dev", "--addr", "127.0.0.1:0", "--label", "zone"}, "--label zone: must be of the form key=value"},
		{[]string{"server"}, "DROVER_DATABASE_URL"},
		{[]string{"server", "--database-url", "sqlite:x", "--http-addr", "8420"}, "127.0.0.1:8420"},
		{[]string{"server", "--database-url", "sqlite:x", "--http-addr", "0.0.0.0:0"}, "--behind-proxy"},
		{[]string{"server", "--database-url", "sqlite:x", "--http-addr", ":0"}, "--behind-proxy"},
		{[]string{"server", "--database-url", "sqlite:x", "--http-addr", "0.0.0.0:0", "--insecure"}, "--insecure: only"},
		{[]string{"server", "--database-url", "sqlite:x", "--insecure", "--behind-proxy"}, "--insecure: only"},
		{[]string{"server", "--database-url", "sqlite:x", "--lease-for", "100ms"}, "--lease-for 100ms: must be 1s to 1h"},
		{[]string{"server", "--database-url", "sqlite:x", "--tls-cert", "c.pem"}, "go together"},
		{[]string{"server", "--database-url", "sqlite:x", "--log-level", "loud"}, "must be debug, info, warn or error"},
		{[]string{"server", "--config", "none.yaml"}, "none.yaml: no such file"},
		{[]string{"dev", "--addr", "0.0.0.0:0"}, "--behind-proxy"},
		{[]string{"migrate", "up"}, "DROVER_DATABASE_URL"},
		{[]string{"migrate", "sql", "--dialect", "mysql"}, "must be postgres or sqlite"},
	} {
		out, errs, code := s.run(c.words...)
		if code != exitUsage || !strings.Contains(errs, c.want) || strings.Count(errs, "\n") != 1 || out != "" {
			t.Errorf("drover %s: code %d, stdout %q, stderr %q; want code 2 and one line with %q", strings.Join(c.words, " "), code, out, errs, c.want)
		}
	}
}

func TestRefusalListsEveryPlace(t *testing.T) {
	t.Parallel()
	var errs strings.Builder
	a := &app{err: &errs}
	code := a.report(&drover.Error{Code: drover.CodeValidation, Detail: "pipeline.yaml: 2 problems", Fields: []drover.FieldError{
		{Field: "tasks.a.run", Line: 3, Column: 5, Message: "is missing"}, {Field: "input.x", Message: "is\x1b[2J no string"},
	}})
	want := "drover: pipeline.yaml: 2 problems\n  line 3:5: tasks.a.run: is missing\n  input.x: is·[2J no string\n"
	if code != 1 || errs.String() != want {
		t.Errorf("code %d, got %q, want %q", code, errs.String(), want)
	}
}
