package api

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

const twoSteps = `pipeline: two-steps
input: {type: object, required: [object_id], properties: {object_id: {type: string}}}
tasks:
  first: {run: load, with: {id: "${{ input.object_id }}"}}
  second: {run: check, needs: [first], retry: {max_attempts: 1}, with: {n: "${{ tasks.first.output.n }}"}}
`

// TestEveryOperationAnswersAsDescribed goes through the life of a job and every
// route on its way; each answer is held to the document.
func TestEveryOperationAnswersAsDescribed(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.T
		// A pipeline, registered twice.
		yaml := "Content-Type: " + protocol.MediaYAML
		var pipe drover.Pipeline
		r := w.do("POST", "/v1/pipelines?file=two.yaml", w.admin, []byte(twoSteps), "Content-Type: -", yaml).is(201, &pipe)
		if !pipe.Created || pipe.Version != 1 || r.header.Get("Location") != "/v1/pipelines/two-steps?version=1" {
			t.Errorf("registered %+v at %q", pipe, r.header.Get("Location"))
		}
		w.do("POST", "/v1/pipelines", w.admin, []byte(twoSteps), "Content-Type: -", yaml).is(200, &pipe)
		w.do("GET", "/v1/pipelines/two-steps", w.admin, nil).is(200, &pipe)
		if pipe.Source != twoSteps {
			t.Errorf("source = %q", pipe.Source)
		}
		w.do("GET", "/v1/pipelines/two-steps?version=1", w.admin, nil).is(200)
		w.do("GET", "/v1/pipelines", w.admin, nil).is(200)
		w.do("GET", "/v1/pipelines/two-steps/versions", w.admin, nil).is(200)

		// A job of it.
		var sub protocol.SubmitResponse
		trace := "0af7651916cd43dd8448eb211c80319c"
		r = w.do("POST", "/v1/jobs", w.admin, drover.NewJob{
			Pipeline: "two-steps@1", Input: json.RawMessage(`{"object_id":"<o&1>"}`), Labels: map[string]string{"team": "vision"},
		}, `Idempotency-Key: "k \"1\""`, "Traceparent: 00-"+trace+"-b7ad6b7169203331-01").is(202, &sub)
		if r.header.Get("Location") != sub.Links.Self || r.header.Get("Retry-After") == "" || r.header.Get("Idempotency-Replayed") != "" || sub.Status != drover.Pending {
			t.Errorf("submitted %+v with %v", sub, r.header)
		}
		self := sub.Links.Self
		var again protocol.SubmitResponse
		r = w.do("POST", "/v1/jobs", w.admin, drover.NewJob{
			Pipeline: "two-steps@1", Input: json.RawMessage(`{"object_id":"<o&1>"}`), Labels: map[string]string{"team": "vision"}, IdempotencyKey: `k "1"`,
		}).is(202, &again)
		if r.header.Get("Idempotency-Replayed") != "true" || again.JobID != sub.JobID || !again.Replayed {
			t.Errorf("the repeat got %+v with %v", again, r.header)
		}
		var job drover.Job
		r = w.do("GET", self, w.admin, nil).is(200, &job)
		if job.TraceID != trace || string(job.Input) != `{"object_id":"<o&1>"}` {
			t.Errorf("job = %s", r.body)
		}
		tag := r.header.Get("ETag")
		if len(w.do("GET", self, w.admin, nil, "If-None-Match: W/\"x\", "+tag).is(304).body) != 0 {
			t.Error("304 has a body")
		}
		w.do("GET", "/v1/jobs?status=PENDING,RUNNING&pipeline=two-steps&label=team:vision&created_after=2020-01-01T00:00:00Z&limit=5", w.admin, nil).is(200)

		// Pause it and let it go on.
		w.do("POST", self+"/pause", w.admin, protocol.ActionRequest{Reason: "lunch", RequestID: "p1"}).is(200, &job)
		if !job.Paused {
			t.Error("paused = false")
		}
		w.do("POST", self+"/resume", w.admin, nil, "Idempotency-Key: r1").is(200, &job)
		for range 10 {
			if _, err := w.engine.SweepOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := w.engine.AdmitOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
		}

		// A worker runs its first task.
		run := w.token("default", "workers:run")
		s := w.worker(run)
		w.do("GET", "/v1/workers", run, nil).is(200)
		leases := w.acquire(run, s, 5, 1, 5*time.Second)
		if len(leases) != 1 || string(leases[0].Input) != `{"id":"<o&1>"}` {
			t.Fatalf("leases = %+v", leases)
		}
		l := leases[0]
		var renewed drover.Renewed
		w.do("POST", "/v1/workers/"+s.ID.String()+"/renew", run, drover.Renewal{Held: []drover.Held{{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion}}, Acquired: 1}).is(200, &renewed)
		if len(renewed.Lost)+len(renewed.Cancelled) != 0 {
			t.Errorf("renewed = %+v", renewed)
		}
		lease := "/v1/leases/" + l.TaskID.String()
		w.do("PUT", "/v1/circuits/vendor", w.admin, drover.CircuitPolicy{Failures: 3, Pause: drover.Duration(time.Minute)}).is(200)
		w.do("GET", "/v1/circuits", w.admin, nil).is(200)
		var rule drover.IntakeRule
		w.do("PUT", "/v1/intake/backlog", w.admin, drover.NewIntakeRule{Queue: "cpu", MaxWaiting: 10, Then: "cry"}).refused(400, drover.CodeValidation)
		w.do("PUT", "/v1/intake/backlog?dry_run=true", w.admin, drover.NewIntakeRule{Queue: "cpu", MaxWaiting: 10, Then: drover.IntakeThrottle}).is(200, &rule)
		w.do("GET", "/v1/intake/backlog", w.admin, nil).refused(404, drover.CodeNotFound)
		w.do("PUT", "/v1/intake/backlog", w.admin, drover.NewIntakeRule{Queue: "cpu", MaxWaiting: 10, MaxAge: drover.Duration(time.Hour), Then: drover.IntakeShed}, "If-None-Match: *").is(200, &rule)
		if rule.Version != 1 || rule.Class != drover.Batch {
			t.Errorf("the rule is %+v", rule)
		}
		w.do("PUT", "/v1/intake/backlog", w.admin, drover.NewIntakeRule{Queue: "cpu", MaxWaiting: 11, Then: drover.IntakeShed}, `If-Match: "7"`).refused(412, drover.CodePreconditionFailed)
		w.do("GET", "/v1/intake/backlog", w.admin, nil).is(200, &rule)
		w.do("GET", "/v1/intake", w.admin, nil).is(200)
		w.do("DELETE", "/v1/intake/backlog?dry_run=true", w.admin, nil).is(200, &rule)
		w.do("DELETE", "/v1/intake/backlog", w.admin, nil).is(204)
		w.do("PUT", "/v1/limits/vendor", w.admin, drover.NewLimit{Max: 3}).is(200)
		w.do("PUT", "/v1/limits/vendor?dry_run=true", w.admin, drover.NewLimit{Max: 1}).is(200)
		w.do("PUT", "/v1/limits/vendor", w.admin, drover.NewLimit{Max: 1, Rate: 2}).is(400)
		w.do("PUT", "/v1/limits/vendor", w.admin, drover.NewLimit{Rate: 2}).is(409)
		w.do("POST", "/v1/jobs", w.admin, drover.NewJob{Kind: "k", Limits: map[string]int64{"vendor": 4}}).is(422)
		w.do("GET", "/v1/limits", w.admin, nil).is(200)
		w.do("GET", "/v1/limits/vendor", w.admin, nil).is(200)
		w.do("GET", "/v1/limits/none", w.admin, nil).is(404)
		w.do("DELETE", "/v1/limits/vendor?dry_run=true", w.admin, nil).is(200)
		w.do("DELETE", "/v1/limits/vendor", w.admin, nil).is(204)
		w.do("DELETE", "/v1/limits/vendor", w.admin, nil).is(404)
		system := w.token("system", "admin")
		w.do("POST", "/v1/queues/default/pause", system, protocol.QueueRequest{Reason: "test"}).is(200)
		w.do("POST", "/v1/queues/default/resume", system, nil).is(200)
		w.do("POST", "/v1/queues/default/drain", system, nil).is(200)
		w.do("POST", "/v1/queues/default/reserve", system, protocol.ReserveRequest{Reserves: []drover.Reserve{{Class: drover.Urgent, Percent: 91}}}).is(400)
		w.do("POST", "/v1/queues/nowhere/reserve", system, protocol.ReserveRequest{Reserves: []drover.Reserve{}}).is(404)
		w.do("POST", "/v1/queues/default/reserve", system, protocol.ReserveRequest{Reserves: []drover.Reserve{{Class: drover.Urgent, Percent: 50}}}).is(200)
		w.do("POST", "/v1/jobs", w.admin, drover.NewJob{Kind: "k"}).refused(409, drover.CodeDraining)
		var queue drover.Queue
		w.do("GET", "/v1/queues/default", w.admin, nil).is(200, &queue)
		if len(queue.Changes) != 4 || queue.Changes[3].Reason != "test" || len(queue.Reserves) != 1 {
			t.Errorf("queue = %+v", queue)
		}
		w.do("POST", "/v1/queues/default/reserve", system, protocol.ReserveRequest{Reserves: []drover.Reserve{}}).is(200)
		w.do("GET", "/v1/tenants", system, nil).is(200)
		w.do("PATCH", "/v1/tenants/default", system, protocol.TenantRequest{Weight: new(2.5)}).is(200)
		w.do("PATCH", "/v1/tenants/none", system, protocol.TenantRequest{Weight: new(2.5)}).is(404)
		w.do("PATCH", "/v1/tenants/default", system, protocol.TenantRequest{Weight: new(0.0)}).is(400)
		w.do("POST", "/v1/queues/default/resume", system, nil).is(200)
		w.do("POST", "/v1/queues/none/pause", system, nil).is(404)
		w.do("GET", "/v1/circuits/vendor", w.admin, nil).is(200)
		w.do("GET", "/v1/circuits/none", w.admin, nil).is(404)
		w.do("POST", "/v1/circuits/vendor/open", w.admin, protocol.CircuitRequest{Reason: "test"}).is(200)
		w.do("POST", "/v1/circuits/vendor/close", w.admin, nil).is(200)
		w.do("POST", lease+"/heartbeat", run, protocol.HeartbeatRequest{LeaseVersion: l.LeaseVersion, Details: json.RawMessage(`{"a": 1}`)}).is(204)
		w.do("POST", lease+"/heartbeat", run, protocol.HeartbeatRequest{LeaseVersion: l.LeaseVersion}).is(503)
		var lock drover.Lock
		w.do("POST", lease+"/locks", run, protocol.LockRequest{LeaseVersion: l.LeaseVersion, Number: 1, Name: "numbers", Exclusive: true, Wait: protocol.MaxWait}).is(200, &lock)
		if !lock.Granted || lock.Token == 0 || lock.Name != "numbers" {
			t.Errorf("lock = %+v", lock)
		}
		w.do("POST", lease+"/locks", run, protocol.LockRequest{LeaseVersion: l.LeaseVersion, Number: 2, Name: "numbers", Exclusive: true}).is(409)
		w.do("POST", lease+"/locks/release", run, protocol.UnlockRequest{LeaseVersion: l.LeaseVersion, Number: 1}).is(204)
		var meeting drover.Meeting
		w.do("POST", lease+"/barriers", run, protocol.MeetingRequest{LeaseVersion: l.LeaseVersion, Number: 3, Name: "step", Parties: 1, Round: 1}).is(200, &meeting)
		if !meeting.Met || meeting.Arrived != 1 {
			t.Errorf("meeting = %+v", meeting)
		}
		w.do("POST", lease+"/progress", run, protocol.ProgressRequest{LeaseVersion: l.LeaseVersion, Ratio: 0.5, Message: "half\x00way"}).is(204)
		var logged protocol.LogsResponse
		w.do("POST", lease+"/logs", run, fmt.Sprintf(`{"lease_version":%d,"lines":[{"text":"hello\u0000"},{"text":"x","level":"stderr","at":"2026-01-01T00:00:00Z"}]}`, l.LeaseVersion)).is(200, &logged)
		if logged.Accepted != 2 {
			t.Errorf("accepted = %d", logged.Accepted)
		}
		var art drover.Artifact
		r = w.do("POST", lease+"/artifacts?name=frames/a%20%C3%A9.png&kind=frame&lease_version="+itoa(int(l.LeaseVersion)), run, []byte("not really"),
			"Content-Type: -", "Content-Type: image/png", `Drover-Artifact-Metadata: {"w":1e400}`).is(201, &art)
		if art.MediaType != "image/png" || art.Size != 10 || string(art.Metadata) != `{"w":1e400}` || r.header.Get("Location") != "/v1/artifacts/"+art.ID.String() {
			t.Errorf("artifact = %s", r.body)
		}
		got := w.settle(run, s, drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeSucceeded, Output: json.RawMessage(`{"n":9007199254740993}`), Artifacts: []drover.ArtifactID{art.ID}})
		if len(got) != 1 || got[0].Status != drover.Succeeded {
			t.Fatalf("settled = %+v", got)
		}
		got = w.settle(run, s, drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion + 7, Status: drover.OutcomeFailed})
		if got[0].Error == nil || got[0].Error.Code != drover.CodeLeaseLost || got[0].Error.TraceID == "" {
			t.Errorf("a stale outcome got %+v", got[0])
		}

		// The second fails for good.
		l = w.acquire(run, s, 1, 2, 5*time.Second)[0]
		if string(l.Input) != `{"n":9007199254740993}` {
			t.Errorf("input = %s", l.Input)
		}
		w.settle(run, s, drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeFailed, Error: &drover.Failure{Message: "<b>\u0000 bad"}})
		w.do("GET", self, w.admin, nil, "Prefer: wait=5").is(200, &job)
		if job.Status != drover.Failed {
			t.Fatalf("job = %+v", job)
		}
		var tasks protocol.Page[drover.Task]
		w.do("GET", self+"/tasks", w.admin, nil).is(200, &tasks)
		if len(tasks.Items) != 2 {
			t.Errorf("tasks = %+v", tasks)
		}
		w.do("GET", self+"/tasks?status=DEAD_LETTER&name=second", w.admin, nil).is(200, &tasks)
		task := tasks.Items[0]
		w.do("GET", "/v1/tasks/"+task.ID.String(), w.admin, nil).is(200, &task)
		w.do("GET", "/v1/tasks/"+task.ID.String()+"/attempts", w.admin, nil).is(200)
		w.do("GET", "/v1/tasks/"+task.ID.String()+"/explain", w.admin, nil).is(200)
		w.do("GET", "/v1/jobs/"+task.JobID.String()+"/explain", w.admin, nil).is(200)
		var lines protocol.Page[drover.LogLine]
		w.do("GET", "/v1/tasks/"+task.ID.String()+"/logs", w.admin, nil).is(200, &lines)
		w.do("GET", self+"/logs?limit=1", w.admin, nil).is(200, &lines)
		if len(lines.Items) != 1 || lines.NextCursor == "" {
			t.Errorf("lines = %+v", lines)
		}
		w.do("GET", self+"/logs?limit=1&cursor="+lines.NextCursor, w.admin, nil).is(200, &lines)
		if len(lines.Items) != 1 || lines.Items[0].Level != "stderr" {
			t.Errorf("second page of lines = %+v", lines)
		}
		w.deadLetters(self, task.ID)
		w.do("GET", self+"/events", w.admin, nil).is(200)

		// Its artifact.
		w.do("GET", self+"/artifacts", w.admin, nil).is(200)
		w.do("GET", "/v1/artifacts?kind=frame&job_id="+sub.JobID.String(), run, nil).is(200)
		w.do("GET", "/v1/artifacts/"+art.ID.String(), run, nil).is(200, &art)
		var lineage drover.Lineage
		w.do("GET", "/v1/artifacts/"+art.ID.String()+"/trace", w.admin, nil).is(200, &lineage)
		if lineage.Artifact.ID != art.ID || lineage.Up == nil || lineage.Down == nil {
			t.Errorf("lineage = %+v", lineage)
		}
		content := "/v1/artifacts/" + art.ID.String() + "/content"
		r = w.do("GET", content, run, nil).is(200)
		if string(r.body) != "not really" || r.header.Get("Content-Type") != "image/png" || r.header.Get("Content-Disposition") != "attachment; filename*=utf-8''a%20%C3%A9.png" ||
			r.header.Get(protocol.HeaderArtifactSHA256) != art.SHA256 || !strings.Contains(r.header.Get("Content-Security-Policy"), "sandbox") {
			t.Errorf("content %q with %v", r.body, r.header)
		}
		if r = w.do("GET", content, run, nil, "Range: bytes=4-5").is(206); string(r.body) != "re" {
			t.Errorf("range = %q", r.body)
		}
		w.do("GET", content, run, nil, "Range: bytes=100-200").refused(416, drover.CodeValidation)
		w.do("GET", content, run, nil, "If-None-Match: "+r.header.Get("ETag")).is(304)

		// Once more, and then no more.
		w.do("POST", "/v1/tasks/"+task.ID.String()+"/replay", w.admin, protocol.ReplayRequest{Reason: "again", Input: json.RawMessage(`{"n":1}`), Reopen: true}).is(200, &task)
		if task.Generation != 2 {
			t.Errorf("generation = %d", task.Generation)
		}
		w.do("DELETE", self, w.admin, nil).refused(409, drover.CodeInvalidTransition)
		w.replayedLetter(task.ID)
		w.do("POST", self+"/cancel", w.admin, protocol.ActionRequest{RequestID: "c1"}).is(200, &job)
		var preview drover.Rerun
		w.do("POST", self+"/rerun?dry_run=perhaps", w.admin, protocol.RerunRequest{Whole: true}).refused(400, drover.CodeValidation)
		w.do("POST", self+"/rerun?dry_run=true", w.admin, protocol.RerunRequest{Whole: true}).is(200, &preview)
		if !preview.DryRun || preview.Run != 3 || len(preview.Tasks) != 2 || preview.Tasks[0].Does != drover.RerunRuns {
			t.Errorf("preview = %+v", preview)
		}
		w.do("POST", "/v1/tasks/"+task.ID.String()+"/mark", w.admin, protocol.MarkRequest{Status: drover.Succeeded}).refused(400, drover.CodeValidation)
		w.do("POST", "/v1/tasks/"+task.ID.String()+"/mark", w.admin, protocol.MarkRequest{Status: drover.Succeeded, Reason: "by hand"}).is(200, &task)
		if task.Status != drover.Succeeded || !task.Marked {
			t.Errorf("marked = %+v", task)
		}
		w.do("DELETE", self, w.admin, nil).is(204)
		w.do("GET", self, w.admin, nil).refused(404, drover.CodeNotFound)
		var gone protocol.SubmitResponse
		r = w.do("POST", "/v1/jobs", w.admin, drover.NewJob{
			Pipeline: "two-steps@1", Input: json.RawMessage(`{"object_id":"<o&1>"}`), Labels: map[string]string{"team": "vision"}, IdempotencyKey: `k "1"`,
		}, "Prefer: wait=5").is(202, &gone)
		if gone.JobID != sub.JobID || !gone.Replayed || !gone.Deleted || r.header.Get("Location") != "" {
			t.Errorf("the repeat of a job that was deleted got %s with %v", r.body, r.header)
		}
		w.do("POST", "/v1/jobs?dry_run=perhaps", w.admin, drover.NewJob{Kind: "k"}).refused(400, drover.CodeValidation)
		w.do("POST", "/v1/jobs/batch?dry_run=true", w.admin, protocol.BatchRequest{Jobs: []drover.NewJob{{Kind: "k"}}}).refused(400, drover.CodeValidation)
		w.do("POST", "/processing-jobs?dry_run=true", w.admin, protocol.ProcessingRequest{ObjectID: "o", Pipeline: "two-steps"}, "Idempotency-Key: o").refused(400, drover.CodeValidation)
		w.do("POST", "/v1/jobs?dry_run=true", w.admin, drover.NewJob{Pipeline: "none"}).refused(404, drover.CodeNotFound)
		var would drover.Job
		if r := w.do("POST", "/v1/jobs?dry_run=true", w.admin, drover.NewJob{Kind: "k", IdempotencyKey: "dry"}, "Prefer: wait=5").is(200, &would); would.Status != drover.Pending || r.header.Get("Location") != "" {
			t.Errorf("a dry run: %s with %v", r.body, r.header)
		}
		w.do("GET", "/v1/jobs/"+would.ID.String(), w.admin, nil).refused(404, drover.CodeNotFound)
		w.do("GET", "/v1/tasks/"+task.ID.String(), w.admin, nil).refused(404, drover.CodeNotFound)
		w.do("GET", "/v1/artifacts/"+art.ID.String(), run, nil).refused(404, drover.CodeNotFound)

		// How long jobs are kept.
		var keep drover.Retention
		w.do("GET", "/v1/retention", w.admin, nil).is(200, &keep)
		w.do("PATCH", "/v1/retention", w.admin, `{"failed":"0s","succeeded":"1h"}`).is(200, &keep)
		if keep != (drover.Retention{Succeeded: drover.Duration(time.Hour), Cancelled: drover.DefaultRetention.Cancelled}) {
			t.Errorf("retention = %+v", keep)
		}
		w.do("PATCH", "/v1/retention", w.admin, `{"failed":"1s"}`).refused(400, drover.CodeValidation)
		w.do("PATCH", "/v1/retention", run, `{"failed":"1h"}`).refused(403, drover.CodeForbidden)

		// Jobs in other ways.
		var many protocol.BatchResponse
		w.do("POST", "/v1/jobs/batch", w.admin, `{"jobs":[{"kind":"a"},{"kind":"a","labels":{"":"x"}},{"pipeline":"nowhere"}]}`).is(200, &many)
		if len(many.Items) != 3 || many.Items[0].Error != nil || many.Items[1].Error == nil || many.Items[2].Error == nil || many.Items[2].Error.TraceID == "" {
			t.Errorf("batch = %+v", many)
		}
		r = w.do("POST", "/processing-jobs", w.admin, `{"object_id":"o1","pipeline":"two-steps-v1","idempotency_key":"o1"}`).is(202)
		var exact map[string]string
		if json.Unmarshal(r.body, &exact) != nil || len(exact) != 2 || exact["status"] != "PENDING" || !strings.HasPrefix(exact["job_id"], "job_") {
			t.Errorf("processing job = %s", r.body)
		}
		w.do("POST", "/processing-jobs", w.admin, `{"object_id":"o1","pipeline":"two-steps@1","idempotency_key":"o1"}`).is(202)

		// The rest.
		w.do("GET", "/v1/waits?group_by=reason,tenant&group_by=queue", w.admin, nil).is(200)
		w.do("GET", "/v1/capacity", w.admin, nil).is(200)
		w.do("GET", "/v1/queues", w.admin, nil).is(200)
		w.do("GET", "/v1/queues/default", w.admin, nil).is(200)
		var made drover.Token
		w.do("POST", "/v1/tokens", w.admin, protocol.NewToken{Name: "ci", Scopes: []string{"jobs:read"}}).is(201, &made)
		w.do("GET", "/v1/tokens", w.admin, nil).is(200)
		w.do("GET", "/v1/whoami", made.Secret, nil).is(200)
		w.do("DELETE", "/v1/tokens/"+made.ID.String(), w.admin, nil).is(204)
		w.do("GET", "/v1/whoami", made.Secret, nil).refused(401, drover.CodeUnauthenticated)
		w.do("DELETE", "/v1/workers/"+s.ID.String(), run, nil).is(204)
		for _, p := range []string{"/livez", "/readyz", "/healthz", "/livez?verbose", "/readyz?verbose&exclude=database", "/version", "/openapi.json", "/openapi.yaml", "/docs"} {
			w.do("GET", p, "", nil).is(200)
		}
		for _, r := range table() {
			if !w.covered[r.id] {
				t.Errorf("%s was not tried", r.id)
			}
		}
	})
}

// TestFiftyRequestsWithOneKeyMakeOneJob is the burst of one key at one moment,
// on three servers.
func TestFiftyRequestsWithOneKeyMakeOneJob(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.T
		const n = 50
		servers := []*world{w, newWorld(t, w.db), newWorld(t, w.db)}
		var wg sync.WaitGroup
		answers := make([]protocol.SubmitResponse, n)
		fresh := make([]bool, n)
		start := make(chan struct{})
		for i := range n {
			wg.Go(func() {
				<-start
				headers := []string{"Idempotency-Key: burst"}
				body := `{"kind":"a","input":{"n":1}}`
				if i%2 == 0 { // half of them say it in the body
					headers, body = nil, `{"kind":"a","input":{"n":1},"idempotency_key":"burst"}`
				}
				r := servers[i%len(servers)].do("POST", "/v1/jobs", w.admin, body, headers...)
				if r.status != 202 || json.Unmarshal(r.body, &answers[i]) != nil {
					t.Errorf("answered %d: %s", r.status, r.body)
				}
				fresh[i] = r.header.Get("Idempotency-Replayed") == ""
			})
		}
		close(start)
		wg.Wait()
		firsts := 0
		for i, a := range answers {
			if a.JobID != answers[0].JobID || a.Status != drover.Pending {
				t.Errorf("answer %d = %+v, want that of the others: %+v", i, a, answers[0])
			}
			if fresh[i] {
				firsts++
			}
		}
		if firsts != 1 {
			t.Errorf("%d answers are the first, want one", firsts)
		}
		var jobs protocol.Page[drover.Job]
		w.do("GET", "/v1/jobs", w.admin, nil).is(200, &jobs)
		if len(jobs.Items) != 1 {
			t.Errorf("%d jobs, want one", len(jobs.Items))
		}
		w.do("POST", "/v1/jobs", w.admin, `{"kind":"a","input":{"n":2},"idempotency_key":"burst"}`).refused(422, drover.CodeIdempotencyReused)
		w.do("POST", "/v1/jobs", w.admin, `{"kind":"a","input":{"n":1},"idempotency_key":"other"}`, "Idempotency-Key: burst").refused(400, drover.CodeValidation)
		var other protocol.SubmitResponse // the key is the tenant's
		w.do("POST", "/v1/jobs", w.token("other", "jobs:write"), `{"kind":"a","input":{"n":2},"idempotency_key":"burst"}`).is(202, &other)
		if other.JobID == answers[0].JobID || other.Replayed {
			t.Error("two tenants share a key")
		}
	})
}

// stream is an open stream of events.
type stream struct {
	res *http.Response
	r   *bufio.Reader
}

func (w *world) stream(path, token string, headers ...string) *stream {
	w.Helper()
	req := w.request("GET", path, token, nil, append(headers, "Accept: text/event-stream")...)
	res, err := w.http.Do(req)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { res.Body.Close() })
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != protocol.MediaEvents || res.Header.Get("Cache-Control") != "no-store" {
		w.Fatalf("stream answered %d with %v", res.StatusCode, res.Header)
	}
	return &stream{res, bufio.NewReader(res.Body)}
}

// next returns the next block of lines; nil at the end of the stream.
func (s *stream) next() []string {
	var lines []string
	for {
		line, err := s.r.ReadString('\n')
		if err != nil {
			return nil
		}
		if line = strings.TrimSuffix(line, "\n"); line == "" {
			return lines
		}
		lines = append(lines, line)
	}
}

// events reads to the end and returns the events, heartbeats left out.
func (s *stream) events(t *testing.T) (out []drover.Event) {
	t.Helper()
	for block := s.next(); block != nil; block = s.next() {
		if len(block) != 3 {
			continue
		}
		var e drover.Event
		if err := json.Unmarshal([]byte(strings.TrimPrefix(block[2], "data: ")), &e); err != nil {
			t.Fatalf("%q: %v", block, err)
		}
		if block[0] != "id: "+strconv.FormatInt(e.Seq, 10) || block[1] != "event: "+string(e.Type) {
			t.Errorf("block %q does not fit its event", block)
		}
		out = append(out, e)
	}
	return out
}

func TestStreamGoesOnWhereItWasCutOff(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.T
		id := w.submit("a")
		path := "/v1/jobs/" + id.String() + "/events"
		live := w.stream(path, w.admin)
		if b := live.next(); len(b) != 1 || !strings.HasPrefix(b[0], "retry: ") {
			t.Errorf("first block = %q", b)
		}
		if b := live.next(); len(b) != 3 || b[0] != "id: 1" || b[1] != "event: job.accepted" {
			t.Fatalf("second block = %q", b)
		}
		s := w.worker(w.admin)
		l := w.acquire(w.admin, s, 1, 1, 0)[0]
		w.settle(w.admin, s, drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeFailed, Error: &drover.Failure{Message: "a\r\nid: 9\n\ndata: x"}})
		if _, err := w.engine.TimersOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		for n := int64(2); ; n++ {
			if got := w.acquire(w.admin, s, 1, n, time.Second); len(got) == 1 {
				l = got[0]
				break
			}
			if _, err := w.engine.TimersOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		w.settle(w.admin, s, drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeSucceeded})
		rest := live.events(t) // ends behind the final one
		whole := w.stream(path, w.admin).events(t)
		resumed := w.stream(path, w.admin, "Last-Event-ID: 1").events(t)
		if len(whole) < 4 || whole[len(whole)-1].Type != drover.JobSucceeded {
			t.Fatalf("events = %+v", whole)
		}
		for i, e := range whole {
			if e.Seq != int64(i+1) {
				t.Errorf("event %d has the number %d", i, e.Seq)
			}
		}
		same := func(a, b drover.Event) bool { return a.Seq == b.Seq && a.Type == b.Type && bytes.Equal(a.Data, b.Data) }
		if !slices.EqualFunc(rest, whole[1:], same) || !slices.EqualFunc(resumed, whole[1:], same) {
			t.Errorf("live %+v\nresumed %+v\nwhole %+v", rest, resumed, whole)
		}
		var page protocol.Page[drover.Event]
		w.do("GET", path+"?after=1&limit=2", w.admin, nil).is(200, &page)
		w.do("GET", path+"?after=1&limit=2&cursor="+page.NextCursor, w.admin, nil).is(200, &page)
		if len(page.Items) == 0 || page.Items[0].Seq != 4 {
			t.Errorf("second page = %+v", page)
		}
		last := strconv.Itoa(len(whole))
		w.do("GET", path, w.admin, nil, "Accept: text/event-stream", "Last-Event-ID: "+last).is(204)
		w.do("GET", path, w.admin, nil, "Accept: text/event-stream", "Last-Event-ID: 999").refused(400, drover.CodeValidation)
		w.do("GET", path, w.admin, nil, "Accept: text/event-stream", "Last-Event-ID: x").refused(400, drover.CodeValidation)
		w.do("GET", path, w.token("other", "admin"), nil, "Accept: text/event-stream").refused(404, drover.CodeNotFound)
		if r := w.do("HEAD", path, w.admin, nil, "Accept: text/event-stream").is(200); len(r.body) != 0 {
			t.Errorf("HEAD of a stream has a body: %q", r.body)
		}
	})
}

func TestStreamEndsWithTheRightsOfItsToken(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.T
		path := "/v1/jobs/" + w.submit("a").String() + "/events"
		var made drover.Token
		w.do("POST", "/v1/tokens", w.admin, protocol.NewToken{Name: "ci", Scopes: []string{"jobs:read"}}).is(201, &made)
		s := w.stream(path, made.Secret)
		s.next()
		s.next()
		if b := s.next(); len(b) != 1 || b[0] != ":" {
			t.Errorf("block = %q, want a heartbeat", b)
		}
		w.do("DELETE", "/v1/tokens/"+made.ID.String(), w.admin, nil).is(204)
		for b := s.next(); b != nil; b = s.next() {
			if len(b) != 1 || b[0] != ":" {
				t.Errorf("block = %q after the token ended", b)
			}
		}
	}, func(c *Config) { c.Heartbeat = 20 * time.Millisecond })
}

func TestPreferWaitAnswersWhenTheJobIsFinal(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.T
		s := w.worker(w.admin)
		work := make(chan struct{})
		go func() {
			defer close(work)
			l := w.acquire(w.admin, s, 1, 1, 10*time.Second)[0]
			w.settle(w.admin, s, drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeSucceeded, Output: json.RawMessage(`{"n": 1}`)})
		}()
		var job drover.Job
		r := w.do("POST", "/v1/jobs", w.admin, `{"kind":"a"}`, "Prefer: handling=strict, wait=\"30\"").is(200, &job)
		if job.Status != drover.Succeeded || string(job.Result) != `{"n":1}` || r.header.Get("Preference-Applied") != "wait=30" || r.header.Get("Location") == "" {
			t.Errorf("answered %s with %v", r.body, r.header)
		}
		<-work
		start := time.Now()
		var sub protocol.SubmitResponse
		r = w.do("POST", "/v1/jobs", w.admin, `{"kind":"a"}`, "Prefer: wait=1").is(202, &sub)
		if d := time.Since(start); d < time.Second || d > 10*time.Second || r.header.Get("Retry-After") == "" {
			t.Errorf("answered after %s with %v", d, r.header)
		}
		r = w.do("GET", sub.Links.Self, w.admin, nil, "Prefer: wait=0").is(200, &job)
		if job.Status.Final() || r.header.Get("Preference-Applied") != "wait=0" {
			t.Errorf("answered %s with %v", r.body, r.header)
		}
		r = w.do("POST", "/v1/jobs", w.admin, `{"kind":"a"}`, "Prefer: respond-async, wait=10").is(202)
		if r.header.Get("Preference-Applied") != "respond-async" {
			t.Errorf("applied %q", r.header.Get("Preference-Applied"))
		}
		w.do("GET", "/v1/jobs/"+exampleJobID.String(), w.admin, nil, "Prefer: wait=10").refused(404, drover.CodeNotFound)
	})
}

func TestAcquireWaitsForWork(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.T
		s := w.worker(w.admin)
		if got := w.acquire(w.admin, s, 1, 1, 50*time.Millisecond); len(got) != 0 {
			t.Fatalf("leases = %+v of an empty queue", got)
		}
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if got := w.acquire(w.admin, w.worker(w.admin), 1, 1, 20*time.Second); len(got) != 1 {
					t.Errorf("leases = %+v", got)
				}
			})
		}
		time.Sleep(50 * time.Millisecond) // both wait, most likely; the test holds if they do not
		start := time.Now()
		w.do("POST", "/v1/jobs/batch", w.admin, `{"jobs":[{"kind":"a"},{"kind":"a"}]}`).is(200)
		wg.Wait()
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("two workers got their tasks after %s", d)
		}
	})
}

func TestPagesGoThroughEverythingOnce(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.T
		const n = 7
		want := map[drover.JobID]bool{}
		for range n {
			want[w.submit("a")] = true
		}
		path, pages := "/v1/jobs?kind=a&limit=3", 0
		for path != "" {
			var p protocol.Page[drover.Job]
			r := w.do("GET", path, w.admin, nil).is(200, &p)
			pages++
			for _, j := range p.Items {
				if !want[j.ID] {
					t.Errorf("%s comes twice or from nowhere", j.ID)
				}
				delete(want, j.ID)
			}
			link := r.header.Get("Link")
			if (p.NextCursor == "") != (link == "") {
				t.Errorf("next_cursor %q, Link %q", p.NextCursor, link)
			}
			path, _, _ = strings.Cut(strings.TrimPrefix(link, "<"), ">")
		}
		if len(want) != 0 || pages < 3 {
			t.Errorf("%d jobs were not listed in %d pages", len(want), pages)
		}
		var p protocol.Page[drover.Job]
		w.do("GET", "/v1/jobs?limit=3", w.admin, nil).is(200, &p)
		w.do("GET", "/v1/jobs?limit=3&kind=b&cursor="+p.NextCursor, w.admin, nil).refused(400, drover.CodeValidation)
		w.do("GET", "/v1/dead-letters?cursor="+p.NextCursor, w.admin, nil).refused(400, drover.CodeValidation)
		w.do("GET", "/v1/jobs?cursor="+p.NextCursor[:10], w.admin, nil).refused(400, drover.CodeValidation)
		old := makeCursor("listJobs /v1/jobs", nil, exampleJobID[:], time.Now().Add(-25*time.Hour))
		w.do("GET", "/v1/jobs?cursor="+old, w.admin, nil).refused(400, drover.CodeCursorExpired)
		if r := w.do("GET", "/v1/jobs?kind=none", w.admin, nil).is(200); string(r.body) != "{\"items\":[]}\n" {
			t.Errorf("an empty list is %q", r.body)
		}
	})
}
