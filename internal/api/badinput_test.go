package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

// TestBadInputIsRefusedWithPlaceAndRemedy sends what a server gets to see, and
// looks afterwards that nothing came of it.
func TestBadInputIsRefusedWithPlaceAndRemedy(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.T
		w.do("POST", "/v1/pipelines", w.admin, []byte(twoSteps), "Content-Type: -", "Content-Type: application/yaml").is(201)
		yaml := func(s string) string { return "yaml:" + s }
		big := strings.Repeat("x", 10<<20)
		const jobs, pipelines = "POST /v1/jobs", "POST /v1/pipelines"
		for _, c := range []struct {
			what, body string
			status     int
			code       drover.Code
			field      string // of one of the errors; "" is not looked at
		}{
			{jobs, `{"kind":"a","colour":"red"}`, 400, drover.CodeValidation, "colour"},
			{jobs, `{"kind":["a"]}`, 400, drover.CodeValidation, "kind"},
			{jobs, `{"kind":"a\u0000"}`, 400, drover.CodeValidation, "kind"},
			{jobs, `{"kind":"a","idempotency_key":"\u0000"}`, 400, drover.CodeValidation, "idempotency_key"},
			{jobs, "{\"kind\":\"\xc3\x28\"}", 400, drover.CodeValidation, "body"},
			{jobs, `{"kind":"a","input":"` + big + `"}`, 413, drover.CodePayloadTooLarge, "body"},
			{jobs, `{"kind":"a","input":"` + big[:300<<10] + `"}`, 413, drover.CodePayloadTooLarge, ""},
			{jobs, `{"kind":"a","input":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `}`, 400, drover.CodeValidation, ""},
			{jobs, `{"kind":"a","input":` + strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000) + `}`, 400, drover.CodeValidation, ""},
			{jobs, `{"kind":"a"} {"kind":"b"}`, 400, drover.CodeValidation, "body"},
			{jobs, `{"kind":"a","kind":"b"}`, 400, drover.CodeValidation, "kind"},
			{jobs, `{"kind":"a","timeout":"-5s"}`, 400, drover.CodeValidation, "timeout"},
			{jobs, `{"kind":"a","retry":{"initial":"-5s"}}`, 400, drover.CodeValidation, "retry.initial"},
			{jobs, `{"kind":"a","retry":{"max_attempts":0}}`, 400, drover.CodeValidation, "retry.max_attempts"},
			{jobs, `{"kind":"a","retry":{"max_attempts":-1}}`, 400, drover.CodeValidation, "retry.max_attempts"},
			{jobs, `{"kind":"a","retry":{"max_attempts":1000000}}`, 400, drover.CodeValidation, "retry.max_attempts"},
			{jobs, `{"kind":"a","retry":{"factor":0.5}}`, 400, drover.CodeValidation, "retry.factor"},
			{jobs, `{}`, 400, drover.CodeValidation, "pipeline"},
			{jobs, `{"kind":"a","pipeline":"two-steps"}`, 400, drover.CodeValidation, "kind"},
			{jobs, `{"kind":"exec"}`, 400, drover.CodeValidation, "input"},
			{jobs, `{"kind":"exec","input":{"command":[]}}`, 400, drover.CodeValidation, "input.command"},
			{jobs, `{"kind":"exec","input":{"comand":["true"]}}`, 400, drover.CodeValidation, "input.comand"},
			{jobs, `{"kind":"exec","input":["true"]}`, 400, drover.CodeValidation, "input"},
			{jobs, `{"kind":"exec","input":{"command":["true"],"env":{"DROVER_X":"1"}}}`, 400, drover.CodeValidation, "input.env.DROVER_X"},
			{jobs, `{"kind":"http","input":{"url":"ftp://example.org"}}`, 400, drover.CodeValidation, "input.url"},
			{jobs, `{"kind":"http","input":{"url":"http://example.org","expect":[200,7]}}`, 400, drover.CodeValidation, "input.expect[1]"},
			{jobs, `{"kind":"simulate","input":{"sleep":"soon"}}`, 400, drover.CodeValidation, "input.sleep"},
			{jobs, `{"kind":""}`, 400, drover.CodeValidation, "pipeline"},
			{jobs, `{"kind":"   "}`, 400, drover.CodeValidation, "kind"},
			{jobs, `{"kind":"` + big[:1000] + `"}`, 400, drover.CodeValidation, "kind"},
			{jobs, `{"kind":"a","idempotency_key":"` + big[:256] + `"}`, 400, drover.CodeValidation, "idempotency_key"},
			{jobs, `{"kind":"a","labels":{"":"x"}}`, 400, drover.CodeValidation, "labels"},
			{jobs, `{"kind":"a","class":"0"}`, 400, drover.CodeValidation, "class"},
			{jobs, `{"kind":"a","expires_at":"2001-01-01T00:00:00Z"}`, 400, drover.CodeValidation, "expires_at"},
			{jobs, `{"pipeline":"nowhere"}`, 404, drover.CodeNotFound, ""},
			{jobs, `{"pipeline":"two-steps@9","input":{"object_id":"x"}}`, 404, drover.CodeNotFound, ""},
			{jobs, `{"pipeline":"two-steps@x","input":{"object_id":"x"}}`, 400, drover.CodeValidation, "pipeline"},
			{jobs, `{"pipeline":"two-steps@0","input":{"object_id":"x"}}`, 400, drover.CodeValidation, "pipeline"},
			{jobs, `{"pipeline":"two-steps","input":{}}`, 422, drover.CodeSchemaMismatch, "input.object_id"},
			{jobs, `{"pipeline":"two-steps","input":{"object_id":5}}`, 422, drover.CodeSchemaMismatch, "input.object_id"},
			{jobs, `{"pipeline":"two-steps"}`, 422, drover.CodeSchemaMismatch, ""},
			{jobs, ``, 400, drover.CodeValidation, "body"},
			{jobs, `kind=a`, 400, drover.CodeValidation, "body"},
			{"POST /v1/jobs/batch", `{"jobs":[]}`, 400, drover.CodeValidation, "jobs"},
			{"POST /v1/jobs/batch", `{"jobs":[{}` + strings.Repeat(",{}", 10_000) + `]}`, 400, drover.CodeValidation, "jobs"},
			{"POST /v1/jobs/batch", `{"jobs":[{"kind":"a"},{"kind":1}]}`, 400, drover.CodeValidation, "jobs[1].kind"},
			{"POST /v1/jobs/batch", `{"jobs":"` + big + big[:7<<20] + `"}`, 413, drover.CodePayloadTooLarge, "body"},
			{"POST /processing-jobs", `{"object_id":"x"}`, 400, drover.CodeValidation, "pipeline"},
			{"POST /processing-jobs", `{"object_id":"","pipeline":"two-steps"}`, 400, drover.CodeValidation, "object_id"},
			{"POST /processing-jobs", `{"object_id":"x","pipeline":"two-steps-v9"}`, 404, drover.CodeNotFound, ""},
			{"POST /processing-jobs", `{"object_id":"x","pipeline":"nowhere-v3"}`, 404, drover.CodeNotFound, ""},

			{pipelines, yaml("pipeline: p\ntasks:\n  a: &x {run: k}\n  b: *x\n"), 400, drover.CodeValidation, ""},
			{pipelines, yaml("a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n"), 400, drover.CodeValidation, ""},
			{pipelines, yaml("pipeline: p\ntasks:\n  a: {run: k, timeout: -5s}\n"), 400, drover.CodeValidation, "tasks.a.timeout"},
			{pipelines, yaml("pipeline: p\ntasks:\n  a: {run: k, retry: {max_attempts: 0}}\n"), 400, drover.CodeValidation, "tasks.a.retry.max_attempts"},
			{pipelines, yaml("pipeline: p\ntasks:\n  a: {runs: k}\n"), 400, drover.CodeValidation, "tasks.a.runs"},
			{pipelines, yaml("pipeline: p\ntasks:\n  a: {run: k, needs: [b]}\n  b: {run: k, needs: [a]}\n"), 422, drover.CodeCycle, ""},
			{pipelines, yaml("pipeline: p\ntasks:\n  a: {run: k, needs: [z]}\n"), 400, drover.CodeValidation, "tasks.a.needs[0]"},
			{pipelines, yaml("pipeline: p\ntasks:\n  a: {run: \"k\\0\"}\n"), 400, drover.CodeValidation, ""},
			{pipelines, yaml("pipeline: \xff\n"), 400, drover.CodeValidation, ""},
			{pipelines, yaml(strings.Repeat("[", 10_000)), 400, drover.CodeValidation, ""},
			{pipelines, yaml(strings.Repeat("{a: ", 10_000)), 400, drover.CodeValidation, ""},
			{pipelines, yaml(""), 400, drover.CodeValidation, ""},
			{pipelines, yaml("\t"), 400, drover.CodeValidation, ""},
			{pipelines, yaml("pipeline: p\ndescription: " + big + big), 413, drover.CodePayloadTooLarge, "body"},
			{pipelines, `{"pipeline":"p","pipeline":"q","tasks":{"a":{"run":"k"}}}`, 400, drover.CodeValidation, ""},

			{"POST /v1/workers", `{"queues":[],"slots":1,"worker":"w"}`, 400, drover.CodeValidation, "queues"},
			{"POST /v1/workers", `{"queues":["q"],"slots":0,"worker":"w"}`, 400, drover.CodeValidation, "slots"},
			{"POST /v1/workers", `{"queues":["q\u0000"],"slots":1,"worker":"w"}`, 400, drover.CodeValidation, "queues[0]"},
			{"POST /v1/workers", `{"queues":["q"],"slots":1}`, 400, drover.CodeValidation, "worker"},
			{"POST /v1/leases/acquire", `{"worker_id":"wrk_999","max":1}`, 404, drover.CodeNotFound, ""},
			{"POST /v1/leases/acquire", `{"worker_id":"wrk_0","max":1}`, 400, drover.CodeValidation, "worker_id"},
			{"POST /v1/leases/acquire", `{"worker_id":"wrk_1","max":0}`, 400, drover.CodeValidation, "max"},
			{"POST /v1/leases/acquire", `{"worker_id":"wrk_1","max":1,"wait":"1h"}`, 400, drover.CodeValidation, "wait"},
			{"POST /v1/leases/acquire", `{"max":1}`, 400, drover.CodeValidation, "worker_id"},
			{"POST /v1/leases/settle", `{"worker_id":"wrk_999","outcomes":[]}`, 404, drover.CodeNotFound, ""},
			{"POST /v1/leases/settle", `{"worker_id":"wrk_1"}`, 400, drover.CodeValidation, "outcomes"},
			{"POST /v1/leases/settle", `{"worker_id":"wrk_1","outcomes":[{"task_id":"task_x","lease_version":1,"status":"failed"}]}`, 400, drover.CodeValidation, "outcomes[0].task_id"},
			{"POST /v1/leases/" + exampleTaskID.String() + "/progress", `{"lease_version":1,"ratio":1e999}`, 400, drover.CodeValidation, "ratio"},
			{"POST /v1/leases/" + exampleTaskID.String() + "/heartbeat", `{"lease_version":1,"details":NaN}`, 400, drover.CodeValidation, "details"},
			{"POST /v1/leases/" + exampleTaskID.String() + "/heartbeat", `{"lease_version":1,"details":"` + strings.Repeat("x", protocol.MaxCheckpoint) + `"}`, 413, drover.CodePayloadTooLarge, ""},
			{"POST /v1/leases/" + exampleTaskID.String() + "/heartbeat", `{"lease_version":1}`, 409, drover.CodeLeaseLost, ""},
			{"POST /v1/leases/" + exampleTaskID.String() + "/progress", `{"lease_version":1,"ratio":0.5}`, 409, drover.CodeLeaseLost, ""},
			{"POST /v1/leases/" + exampleTaskID.String() + "/locks", `{"lease_version":1,"number":1,"name":"a","exclusive":true}`, 409, drover.CodeLeaseLost, ""},
			{"POST /v1/leases/" + exampleTaskID.String() + "/locks", `{"lease_version":1,"number":1,"name":"A","permits":-1,"wait":"1h"}`, 400, drover.CodeValidation, "name"},
			{"POST /v1/leases/" + exampleTaskID.String() + "/locks/release", `{"lease_version":1}`, 400, drover.CodeValidation, "number"},
			{"POST /v1/leases/" + exampleTaskID.String() + "/barriers", `{"lease_version":1,"number":1,"name":"a","parties":0,"round":1}`, 400, drover.CodeValidation, "parties"},
			{"POST /v1/leases/" + exampleTaskID.String() + "/barriers", `{"lease_version":1,"number":1,"name":"a","parties":2,"round":1}`, 409, drover.CodeLeaseLost, ""},
			{"POST /v1/leases/" + exampleTaskID.String() + "/logs", `{"lease_version":1,"lines":[{"level":"info"}]}`, 400, drover.CodeValidation, "lines[0].text"},
			{"POST /v1/leases/nonsense/logs", `{"lease_version":1,"lines":[]}`, 400, drover.CodeValidation, "task_id"},
			{"POST /v1/leases/" + exampleTaskID.String() + "/artifacts?lease_version=1", `x`, 400, drover.CodeValidation, "name"},
			{"POST /v1/leases/" + exampleTaskID.String() + "/artifacts?lease_version=1&name=../../etc/passwd", `x`, 400, drover.CodeValidation, "name"},
			{"POST /v1/leases/" + exampleTaskID.String() + "/artifacts?lease_version=-1&name=a", `x`, 400, drover.CodeValidation, "lease_version"},
			{"POST /v1/tokens", `{"name":"t","scopes":["root"]}`, 400, drover.CodeValidation, "scopes[0]"},
			{"POST /v1/tokens", `{"name":"","scopes":["jobs:read"]}`, 400, drover.CodeValidation, "name"},
			{"POST /v1/tasks/" + exampleTaskID.String() + "/replay", `{"input":nope}`, 400, drover.CodeValidation, "input"},
			{"POST /v1/jobs/" + exampleJobID.String() + "/cancel", `[]`, 400, drover.CodeValidation, "body"},
			{"POST /v1/jobs/" + exampleJobID.String() + "/cancel", ``, 404, drover.CodeNotFound, ""},

			{"GET /v1/jobs?stauts=RUNNING", "", 400, drover.CodeValidation, "stauts"},
			{"GET /v1/jobs?status=running", "", 400, drover.CodeValidation, "status"},
			{"GET /v1/jobs?limit=0", "", 400, drover.CodeValidation, "limit"},
			{"GET /v1/jobs?limit=1001", "", 400, drover.CodeValidation, "limit"},
			{"GET /v1/jobs?limit=x&limit=y", "", 400, drover.CodeValidation, "limit"},
			{"GET /v1/jobs?label=team", "", 400, drover.CodeValidation, "label"},
			{"GET /v1/jobs?label=a:1&label=a:2", "", 400, drover.CodeValidation, "label"},
			{"GET /v1/jobs?degraded=maybe", "", 400, drover.CodeValidation, "degraded"},
			{"GET /v1/jobs?created_after=today", "", 400, drover.CodeValidation, "created_after"},
			{"GET /v1/jobs?cursor=xyz", "", 400, drover.CodeValidation, "cursor"},
			{"GET /v1/jobs?kind=%00", "", 400, drover.CodeValidation, "kind"},
			{"GET /v1/jobs?kind=%ff", "", 400, drover.CodeValidation, "kind"},
			{"GET /v1/jobs?kind=%zz", "", 400, drover.CodeValidation, "query"},
			{"GET /v1/jobs/job_x", "", 400, drover.CodeValidation, "job_id"},
			{"GET /v1/jobs/" + exampleJobID.String() + "/events?after=-1", "", 400, drover.CodeValidation, "after"},
			{"GET /v1/tasks/..", "", 404, drover.CodeNotFound, ""},
			{"GET /v1/artifacts/%2e%2e/content", "", 404, drover.CodeNotFound, ""},
			{"GET /v1/artifacts/..%2f..%2fetc/content", "", 404, drover.CodeNotFound, ""},
			{"GET /v1/artifacts/etc%2fpasswd/content", "", 400, drover.CodeValidation, "artifact_id"},
			{"GET /v1/pipelines/two-steps?version=0", "", 400, drover.CodeValidation, "version"},
			{"GET /v1/pipelines/two-steps?version=7", "", 404, drover.CodeNotFound, ""},
			{"GET /v1/pipelines/%00", "", 404, drover.CodeNotFound, ""},
			{"GET /v1/queues/nowhere", "", 404, drover.CodeNotFound, ""},
			{"GET /v1/queues?x=1", "", 400, drover.CodeValidation, "x"},
			{"GET /v1/waits?group_by=colour", "", 400, drover.CodeValidation, "group_by"},
			{"GET /v1/waits?group_by=", "", 400, drover.CodeValidation, "group_by"},
			{"GET /v1/tasks/task_x/explain", "", 400, drover.CodeValidation, "task_id"},
			{"GET /v1/jobs/nowhere/explain", "", 400, drover.CodeValidation, "job_id"},
		} {
			method, path, _ := strings.Cut(c.what, " ")
			var r *reply
			switch text, isYAML := strings.CutPrefix(c.body, "yaml:"); {
			case method == "GET":
				r = w.do(method, path, w.admin, nil)
			case isYAML:
				r = w.do(method, path, w.admin, []byte(text), "Content-Type: -", "Content-Type: application/yaml")
			default:
				r = w.do(method, path, w.admin, c.body)
			}
			p := r.refused(c.status, c.code)
			found := c.field == ""
			for _, f := range p.Errors {
				found = found || f.Field == c.field
				if f.Message == "" {
					t.Errorf("%s %.60s: no message for %s", c.what, c.body, f.Field)
				}
			}
			if !found {
				t.Errorf("%s %.60s: errors are %+v, want one of %s", c.what, c.body, p.Errors, c.field)
			}
		}
		var left protocol.Page[drover.Job]
		w.do("GET", "/v1/jobs", w.admin, nil).is(200, &left)
		var pipes protocol.Page[drover.Pipeline]
		w.do("GET", "/v1/pipelines", w.admin, nil).is(200, &pipes)
		if len(left.Items) != 0 || len(pipes.Items) != 1 {
			t.Errorf("of bad input came %+v and %+v", left.Items, pipes.Items)
		}
		// The server still works.
		w.submit("a")
	})
}

func TestBodyOfAnotherTypeIsRefused(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.T
		for _, media := range []string{"", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin1", "application/yaml", "application/problem+json", "nonsense", "a/b/c"} {
			headers := []string{"Content-Type: -"}
			if media != "" {
				headers = append(headers, "Content-Type: "+media)
			}
			p := w.do("POST", "/v1/jobs", w.admin, `{"kind":"a"}`, headers...).refused(415, drover.CodeValidation)
			if len(p.Errors) != 1 || p.Errors[0].Field != "Content-Type" || !strings.Contains(p.Errors[0].Message, "application/json") {
				t.Errorf("%q: errors = %+v", media, p.Errors)
			}
		}
		for _, media := range []string{"application/json; charset=UTF-8", "Application/JSON"} {
			w.do("POST", "/v1/jobs", w.admin, `{"kind":"a"}`, "Content-Type: -", "Content-Type: "+media).is(202)
		}
		w.do("POST", "/v1/pipelines", w.admin, []byte(twoSteps), "Content-Type: -", "Content-Type: text/plain").refused(415, drover.CodeValidation)
	})
}

func TestMapOverTheCapFailsTheJobAndNothingElse(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.T
		w.do("POST", "/v1/pipelines", w.admin, []byte("pipeline: wide\ntasks:\n  m: {run: k, for_each: \"${{ input.items }}\"}\n"), "Content-Type: -", "Content-Type: application/yaml").is(201)
		var sub protocol.SubmitResponse
		r := w.do("POST", "/v1/jobs", w.admin, `{"pipeline":"wide","input":{"items":[1`+strings.Repeat(",1", 99_999)+`]}}`)
		if r.status == 202 {
			r.is(202, &sub)
			var job drover.Job
			w.do("GET", sub.Links.Self, w.admin, nil, "Prefer: wait=5").is(200, &job)
			if job.Status != drover.Failed || job.Error == nil || !strings.Contains(job.Error.Message, "10000") && !strings.Contains(job.Error.Message, "10,000") {
				t.Errorf("job = %+v, error %+v", job, job.Error)
			}
			return
		}
		if p := r.problem(); r.status != 422 && r.status != 413 {
			t.Errorf("answered %+v", p)
		}
	})
}

// TestBodyThatBreaksOffIsNoFaultOfTheServer ends a request in the middle.
func TestBodyThatBreaksOffIsNoFaultOfTheServer(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.T
		u, err := url.Parse(w.url)
		if err != nil {
			t.Fatal(err)
		}
		var d net.Dialer
		c, err := d.DialContext(t.Context(), "tcp", u.Host)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"kind\":", w.admin)
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(c)
		if err != nil || !bytes.Contains(text, []byte("400 Bad Request")) || !bytes.Contains(text, []byte("did not arrive whole")) {
			t.Errorf("answered %q, %v", text, err)
		}
		if strings.Contains(w.log.String(), "request failed") {
			t.Errorf("the log takes it for a fault of the server: %s", w.log)
		}
	})
}

func TestIdempotencyKeyHeader(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		headers []string
		body    string
		want    string // "!" and a part of the refusal
	}{
		{nil, "b", "b"},
		{nil, "", ""},
		{[]string{"abc"}, "", "abc"},
		{[]string{`"abc"`}, "", "abc"},
		{[]string{` "a b" `}, "a b", "a b"},
		{[]string{`"a\"b\\c"`}, "", `a"b\c`},
		{[]string{"8e03978e-40d5-43dd-bc93-6894a57f9324"}, "", "8e03978e-40d5-43dd-bc93-6894a57f9324"},
		{[]string{""}, "b", "!is empty"},
		{[]string{`""`}, "", "!is empty"},
		{[]string{`"abc`}, "", "!is not a string"},
		{[]string{`"a"b"`}, "", "!is not a string"},
		{[]string{`"a\x"`}, "", "!is not a string"},
		{[]string{`"ä"`}, "", "!is not a string"},
		{[]string{"a", "a"}, "", "!is there twice"},
		{[]string{"a"}, "b", "!differs from idempotency_key"},
		{[]string{"a\tb"}, "", "!control character"},
		{[]string{"\xff"}, "", "!control character"},
		{[]string{strings.Repeat("x", 255)}, "", strings.Repeat("x", 255)},
		{[]string{strings.Repeat("x", 256)}, "", "!longer than 255"},
	} {
		r := &request{Request: httptest.NewRequest("POST", "/", nil)}
		r.Header[http.CanonicalHeaderKey(protocol.HeaderIdempotencyKey)] = c.headers
		got, err := requestKey(r, "idempotency_key", c.body)
		if want, refused := strings.CutPrefix(c.want, "!"); refused {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q, %q: %q, %v; want a refusal with %q", c.headers, c.body, got, err, want)
			}
		} else if err != nil || got != c.want {
			t.Errorf("%q, %q: %q, %v; want %q", c.headers, c.body, got, err, c.want)
		}
	}
}

func TestPreferHeader(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		headers []string
		want    preference
	}{
		{nil, preference{}},
		{[]string{"wait=30"}, preference{wait: 30 * time.Second, waits: true}},
		{[]string{`foo; bar="x", Wait = "7" ;q=1`}, preference{wait: 7 * time.Second, waits: true}},
		{[]string{"respond-async", "wait=5", "wait=9"}, preference{wait: 5 * time.Second, waits: true, async: true}},
		{[]string{"wait=-1"}, preference{}},
		{[]string{"wait=99999999999999999999"}, preference{}},
		{[]string{"wait"}, preference{}},
	} {
		r := &request{Request: httptest.NewRequest("GET", "/", nil)}
		r.Header["Prefer"] = c.headers
		if got := r.prefer(); got != c.want {
			t.Errorf("%q: %+v, want %+v", c.headers, got, c.want)
		}
	}
}

func TestTraceparent(t *testing.T) {
	t.Parallel()
	const id = "0af7651916cd43dd8448eb211c80319c"
	for header, want := range map[string]bool{
		"00-" + id + "-b7ad6b7169203331-01":                        true,
		"cc-" + id + "-b7ad6b7169203331-01-what-the-future-brings": true,
		"00-" + id + "-b7ad6b7169203331-01-x":                      false,
		"ff-" + id + "-b7ad6b7169203331-01":                        false,
		"00-" + strings.Repeat("0", 32) + "-b7ad6b7169203331-01":   false,
		"00-" + id + "-0000000000000000-01":                        false,
		"00-" + strings.ToUpper(id) + "-b7ad6b7169203331-01":       false,
		"": false, "x": false, "00-" + id: false,
	} {
		got := traceID(header)
		if (got == id) != want || len(got) != 32 {
			t.Errorf("%q: %s", header, got)
		}
		if parent := parentOf(header); (parent != "") != (want && header[:2] == "00") {
			t.Errorf("%q: parent %q", header, parent)
		}
	}
}

func TestCursorBelongsToItsList(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	q := url.Values{"status": {"RUNNING"}, "limit": {"5"}}
	c := makeCursor("op", q, []byte("place"), now)
	with := func(c string, more ...string) url.Values {
		v := url.Values{"status": {"RUNNING"}, "limit": {"9"}, "cursor": {c}}
		for i := 0; i < len(more); i += 2 {
			v.Set(more[i], more[i+1])
		}
		return v
	}
	if got, err := readCursor("op", with(c), now.Add(23*time.Hour)); err != nil || string(got) != "place" {
		t.Errorf("the next day: %q, %v", got, err)
	}
	for name, f := range map[string]func() ([]byte, error){
		"other list":    func() ([]byte, error) { return readCursor("op2", with(c), now) },
		"other filters": func() ([]byte, error) { return readCursor("op", with(c, "kind", "a"), now) },
		"too old":       func() ([]byte, error) { return readCursor("op", with(c), now.Add(25*time.Hour)) },
		"changed":       func() ([]byte, error) { return readCursor("op", with("B"+c[1:]), now) },
		"cut off":       func() ([]byte, error) { return readCursor("op", with(c[:len(c)-2]), now) },
		"no base64":     func() ([]byte, error) { return readCursor("op", with("%%%"), now) },
	} {
		if got, err := f(); err == nil {
			t.Errorf("%s: %q was taken", name, got)
		}
	}
}

func FuzzCursor(f *testing.F) {
	f.Add("")
	f.Add(makeCursor("op", nil, exampleJobID[:], time.Now()))
	f.Fuzz(func(t *testing.T, s string) {
		_, err := readCursor("op", url.Values{"cursor": {s}}, time.Now())
		if e := new(drover.Error); err != nil && !errors.As(err, &e) {
			t.Errorf("%q: %v", s, err)
		}
	})
}

func TestEventIsOneMessage(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	e := drover.Event{JobID: exampleJobID, Seq: 7, Type: drover.TaskFailed, At: exampleTime, Data: json.RawMessage("{\n\"reason\": \"<a>\\n\\ndata: x\\u2028\"\r\n}")}
	if err := writeEvent(&b, e); err != nil {
		t.Fatal(err)
	}
	want := "id: 7\nevent: task.failed\ndata: " + `{"job_id":"` + exampleJobID.String() + `","sequence":7,"type":"task.failed","at":"2026-01-01T00:00:00.123Z","data":{"reason":"<a>\n\ndata: x\u2028"}}` + "\n\n"
	if b.String() != want {
		t.Errorf("event = %q\nwant    %q", b.String(), want)
	}
}

func TestDocsPageLoadsNothing(t *testing.T) {
	t.Parallel()
	a, err := build(Config{}, table())
	if err != nil {
		t.Fatal(err)
	}
	rec := httptest.NewRecorder()
	a.ServeHTTP(rec, httptest.NewRequestWithContext(context.Background(), "GET", "/docs", nil))
	page := rec.Body.String()
	for _, bad := range []string{"<script", "src=", "http://cdn", "https://", "@import", "onload"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q in it", bad)
		}
	}
	if policy := rec.Header().Get("Content-Security-Policy"); !strings.Contains(policy, "style-src 'sha256-") || strings.Contains(policy, "unsafe") {
		t.Errorf("policy = %q", policy)
	}
	if style := page[strings.Index(page, "<style>")+7 : strings.Index(page, "</style>")]; style != docsStyle {
		t.Error("the style in the page is not the one whose hash the policy names")
	}
	for _, r := range table() {
		if !strings.Contains(page, `id="`+r.id+`"`) {
			t.Errorf("%s is not on the page", r.id)
		}
	}
}
