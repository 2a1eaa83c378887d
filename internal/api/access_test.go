package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/gateway"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/driver"
	"github.com/drover-dev/drover/internal/store/storetest"
	"github.com/drover-dev/drover/protocol"
)

// things are what one tenant has.
type things struct {
	job      drover.JobID
	task     drover.TaskID
	artifact drover.ArtifactID
	token    drover.TokenID
	worker   drover.SessionID
	lease    drover.Lease
	replay   string // a task that can be replayed
	op       drover.OperationID
}

// things makes one of each for the tenant that owns the token.
func (w *world) things(token, canary string) things {
	w.Helper()
	var x things
	w.do("POST", "/v1/pipelines", token, []byte("pipeline: "+canary+"\ntasks:\n  a: {run: "+canary+"}\n"), "Content-Type: -", "Content-Type: application/yaml").is(201)
	var s drover.Session
	w.do("POST", "/v1/workers", token, drover.NewSession{Worker: canary, Queues: []string{"q"}, Slots: 1, Labels: map[string]string{"a": canary}}).is(201, &s)
	x.worker = s.ID
	job := func() (l drover.Lease) {
		var sub protocol.SubmitResponse
		w.do("POST", "/v1/jobs", token, drover.NewJob{Kind: canary, Queue: "q", Input: json.RawMessage(`"` + canary + `"`), Labels: map[string]string{"a": canary}, Retry: &drover.Retry{MaxAttempts: 1}}).is(202, &sub)
		x.job = sub.JobID
		var got protocol.AcquireResponse
		w.do("POST", "/v1/leases/acquire", token, drover.Acquire{Session: s.ID, Max: 1, Number: int64(time.Now().UnixNano())}).is(200, &got)
		if len(got.Leases) != 1 || got.Leases[0].JobID != sub.JobID {
			w.Fatalf("leases = %+v, want the one of %s", got.Leases, sub.JobID)
		}
		return got.Leases[0]
	}
	dead := job()
	w.settle(token, s, drover.Outcome{TaskID: dead.TaskID, LeaseVersion: dead.LeaseVersion, Status: drover.OutcomeFailed, Error: &drover.Failure{Message: canary}})
	x.replay = dead.TaskID.String()
	var op drover.BatchOperation
	w.do("POST", "/v1/dead-letters/close", token, protocol.CloseLettersRequest{TaskIDs: []drover.TaskID{drover.TaskID(exampleID(9))}, Reason: canary}).is(200, &op)
	x.op = op.ID
	x.lease = job()
	x.task = x.lease.TaskID
	lease := "/v1/leases/" + x.task.String()
	version := itoa(int(x.lease.LeaseVersion))
	w.do("POST", lease+"/logs", token, `{"lease_version":`+version+`,"lines":[{"text":"`+canary+`"}]}`).is(200)
	var art drover.Artifact
	w.do("POST", lease+"/artifacts?name="+canary+"&kind="+canary+"&lease_version="+version, token, []byte(canary), "Content-Type: text/"+canary).is(201, &art)
	x.artifact = art.ID
	var made drover.Token
	w.do("POST", "/v1/tokens", token, protocol.NewToken{Name: canary, Scopes: []string{"jobs:read"}}).is(201, &made)
	x.token = made.ID
	return x
}

// asking is a request that would do something, were it permitted.
type asking struct {
	route route
	path  string
	body  any
}

// asks makes one request for each route about the things of a tenant.
func asks(x things, canary string) []asking {
	ids := strings.NewReplacer("{job_id}", x.job.String(), "{task_id}", x.task.String(), "{artifact_id}", x.artifact.String(), "{token_id}", x.token.String(),
		"{worker_id}", x.worker.String(), "{operation_id}", x.op.String(), "{pipeline}", canary, "{queue}", "q", "{circuit}", "payment-api", "{limit}", "vendor", "{rule}", "backlog", "{tenant}", canary)
	held := drover.Held{TaskID: x.task, LeaseVersion: x.lease.LeaseVersion}
	bodies := map[string]any{
		"setTenant": protocol.TenantRequest{}, "reserveQueue": protocol.ReserveRequest{Reserves: []drover.Reserve{}}, "submitJob": drover.NewJob{Pipeline: canary}, "submitJobs": protocol.BatchRequest{Jobs: []drover.NewJob{{Pipeline: canary}}},
		"submitProcessingJob": protocol.ProcessingRequest{ObjectID: "o", Pipeline: canary}, "cancelJob": protocol.ActionRequest{}, "pauseJob": protocol.ActionRequest{}, "resumeJob": protocol.ActionRequest{},
		"replayTask": protocol.ReplayRequest{}, "rerunJob": protocol.RerunRequest{Whole: true}, "markTask": protocol.MarkRequest{Status: drover.Failed, Reason: "x"}, "openWorker": drover.NewSession{Worker: "w", Queues: []string{"q"}, Slots: 1},
		"renewWorker": drover.Renewal{Held: []drover.Held{held}}, "acquireLeases": drover.Acquire{Session: x.worker, Max: 1, Number: 9},
		"settleLeases": protocol.SettleRequest{Session: x.worker, Outcomes: []drover.Outcome{{TaskID: x.task, LeaseVersion: held.LeaseVersion, Status: drover.OutcomeSucceeded}}},
		"setCircuit":   drover.CircuitPolicy{Failures: 3}, "openCircuit": protocol.CircuitRequest{},
		"setProgress": protocol.ProgressRequest{LeaseVersion: held.LeaseVersion, Ratio: 0.5}, "sendHeartbeat": protocol.HeartbeatRequest{LeaseVersion: held.LeaseVersion}, "appendLogs": protocol.LogsRequest{LeaseVersion: held.LeaseVersion, Lines: []drover.LogLine{{Text: "x", Level: "info"}}},
		"lock": protocol.LockRequest{LeaseVersion: held.LeaseVersion, Number: 1, Name: "numbers", Exclusive: true}, "unlock": protocol.UnlockRequest{LeaseVersion: held.LeaseVersion, Number: 1},
		"meet":        protocol.MeetingRequest{LeaseVersion: held.LeaseVersion, Number: 2, Name: "step", Parties: 1, Round: 1},
		"putArtifact": []byte("x"), "createToken": protocol.NewToken{Name: "t", Scopes: []string{"jobs:read"}},
	}
	if id, err := drover.ParseTaskID(x.replay); err == nil {
		bodies["replayDeadLetters"] = protocol.ReplayLettersRequest{TaskIDs: []drover.TaskID{id}}
		bodies["closeDeadLetters"] = protocol.CloseLettersRequest{TaskIDs: []drover.TaskID{id}, Reason: "r"}
	}
	queries := map[string]string{
		"listDeadLetters":  "?job_id=" + x.job.String(),
		"groupDeadLetters": "?job_id=" + x.job.String(),
		"putArtifact":      "?name=x&lease_version=" + itoa(int(held.LeaseVersion)),
		"listArtifacts":    "?job_id=" + x.job.String(),
	}
	var out []asking
	for _, r := range table() {
		path := ids.Replace(r.path)
		if r.id == "replayTask" {
			path = "/v1/tasks/" + x.replay + "/replay"
		}
		out = append(out, asking{r, path + queries[r.id], bodies[r.id]})
	}
	return out
}

func (w *world) ask(a asking, token string) *reply {
	w.Helper()
	if a.route.id == "registerPipeline" {
		return w.do(a.route.method, a.path, token, []byte("pipeline: p\ntasks:\n  a: {run: k}\n"), "Content-Type: -", "Content-Type: application/yaml")
	}
	return w.do(a.route.method, a.path, token, a.body)
}

// TestNobodyGetsPastWithoutRights tries every route with every kind of caller
// who must not.
func TestNobodyGetsPastWithoutRights(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64 // how far the store's clock runs before ours
	later := func(o *store.Options) {
		o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	}
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		ahead.Store(0)
		w := newWorld(t, db)
		a := w.things(w.admin, "canary-a")
		c, err := w.engine.EnsureTenant(t.Context(), "default")
		if err != nil {
			t.Fatal(err)
		}
		brief, err := w.engine.CreateToken(t.Context(), c, drover.Token{Name: "brief", Scopes: []string{"admin"}, ExpiresAt: w.engine.Now().Add(time.Minute)})
		if err != nil {
			t.Fatal(err)
		}
		gone, err := w.engine.CreateToken(t.Context(), c, drover.Token{Name: "gone", Scopes: []string{"admin"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.engine.RevokeToken(t.Context(), c, gone.ID); err != nil {
			t.Fatal(err)
		}
		w.do("GET", "/v1/whoami", brief.Secret, nil).is(200)
		ahead.Store(int64(2 * time.Minute))
		cells := 0
		for _, q := range asks(a, "canary-a") {
			if q.route.policy.public {
				w.ask(q, "").is(200)
				continue
			}
			for kind, token := range map[string]string{
				"none": "", "garbage": "nothing", "unknown": "drover_" + strings.Repeat("a", 52), "expired": brief.Secret, "revoked": gone.Secret, "half": w.admin[:len(w.admin)-1],
			} {
				cells++
				r := w.ask(q, token)
				if p := r.refused(401, drover.CodeUnauthenticated); strings.Contains(strings.ReplaceAll(string(r.body), q.path, ""), "canary") {
					t.Errorf("%s of %s tells %+v", q.route.id, kind, p)
				}
				if !strings.HasPrefix(r.header.Get("WWW-Authenticate"), `Bearer realm="drover"`) {
					t.Errorf("%s of %s: WWW-Authenticate = %q", q.route.id, kind, r.header.Get("WWW-Authenticate"))
				}
			}
			if q.route.policy.token {
				continue
			}
			var others []string // every scope that does not do
			for _, s := range scopes {
				if s != "admin" && !slices.Contains(q.route.policy.scopes, s) {
					others = append(others, s)
				}
			}
			cells++
			if p := w.ask(q, w.token("default", others...)).refused(403, drover.CodeForbidden); !strings.Contains(p.Detail, q.route.policy.scopes[0]) {
				t.Errorf("%s: %q does not name the scope", q.route.id, p.Detail)
			}
		}
		t.Logf("%d cells", cells)
		// Nothing of that had an effect, and each right does by itself.
		var job drover.Job
		w.do("GET", "/v1/jobs/"+a.job.String(), w.admin, nil).is(200, &job)
		if job.Status != drover.Running || job.Paused || job.Cancelling {
			t.Errorf("the job became %+v", job)
		}
		for _, q := range asks(a, "canary-a") {
			for _, s := range q.route.policy.scopes {
				tenant := "default"
				if q.route.policy.operator { // the admin of a tenant does not do
					w.ask(q, w.token(tenant, s)).refused(403, drover.CodeForbidden)
					tenant = "system"
				}
				r := w.ask(q, w.token(tenant, s))
				if r.status == 401 || r.status == 403 && !strings.Contains(string(r.body), "cannot give it") {
					t.Errorf("%s with the scope %s answered %d: %s", q.route.id, s, r.status, r.body)
				}
			}
		}
	}, later)
}

// TestOtherTenantsThingsAreNotThere asks for one tenant's things with the full
// rights of another: by every route the answer is that of a thing that never was.
func TestOtherTenantsThingsAreNotThere(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.T
		a := w.things(w.admin, "canary-a")
		eve := w.token("eve", "admin")
		b := w.things(eve, "canary-b")
		random := func(n byte) drover.ID {
			return drover.MakeID(time.Now().UnixMilli(), [10]byte{9, 9, 9, n})
		}
		never := things{
			job: drover.JobID(random(1)), task: drover.TaskID(random(2)), artifact: drover.ArtifactID(random(3)), token: drover.TokenID(random(4)), worker: 999_999,
			lease: a.lease, replay: drover.TaskID(random(5)).String(), op: drover.OperationID(random(6)),
		}
		foreign, unknown := asks(a, "canary-a"), asks(never, "canary-x")
		same := func(s string) string { // without what differs by the question
			for _, x := range []things{a, never} {
				for _, id := range []string{x.job.String(), x.task.String(), x.artifact.String(), x.token.String(), x.worker.String(), x.replay, x.op.String()} {
					s = strings.ReplaceAll(s, id, "ID")
				}
			}
			return strings.NewReplacer("canary-a", "canary", "canary-x", "canary").Replace(s)
		}
		for i, q := range foreign {
			if q.route.policy.public || q.route.id == "registerPipeline" {
				continue
			}
			r, n := w.ask(q, eve), w.ask(unknown[i], eve)
			if q.route.method == "GET" && r.status < 300 && strings.Contains(string(r.body), "canary-a") {
				t.Errorf("%s tells of another tenant: %s", q.route.id, r.body)
			}
			if strings.Contains(q.path, "{") {
				t.Errorf("%s has no id in its path", q.path)
			}
			if r.status != n.status {
				t.Errorf("%s answers %d of a foreign and %d of an unknown thing", q.route.id, r.status, n.status)
			}
			if r.status < 400 {
				continue
			}
			p, o := r.problem(), n.problem()
			p.TraceID, o.TraceID = "", ""
			left, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			right, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			if same(string(left)) != same(string(right)) {
				t.Errorf("%s tells a foreign thing from an unknown one:\n%s\n%s", q.route.id, left, right)
			}
			leased := strings.HasPrefix(q.path, "/v1/leases/") // of a task one does not hold, as of one that is not there
			if strings.Contains(q.route.path, "_id}") && r.status != 404 && !(leased && r.status == 409) {
				t.Errorf("%s of a foreign thing answers %d: %s", q.route.id, r.status, r.body)
			}
		}
		// Nested ids do not get past either: a session of one's own, a lease of somebody else's.
		s := drover.Session{ID: b.worker}
		if got := w.settle(eve, s, drover.Outcome{TaskID: a.task, LeaseVersion: a.lease.LeaseVersion, Status: drover.OutcomeSucceeded}); got[0].Error == nil {
			t.Errorf("a foreign lease was settled: %+v", got)
		}
		w.do("GET", "/v1/artifacts?job_id="+b.job.String()+"&task_id="+a.task.String(), eve, nil).refused(404, drover.CodeNotFound)
		w.do("POST", "/v1/tokens", eve, protocol.NewToken{Name: "t", Scopes: []string{"jobs:read"}, Tenant: "default"}).refused(403, drover.CodeForbidden)
		var job drover.Job
		w.do("GET", "/v1/jobs/"+a.job.String(), w.admin, nil).is(200, &job)
		if job.Status != drover.Running || job.Paused || job.Cancelling {
			t.Errorf("the job became %+v", job)
		}
		for _, path := range []string{"/v1/jobs", "/v1/dead-letters?state=all", "/v1/dead-letters/groups", "/v1/batch-operations", "/v1/pipelines", "/v1/artifacts", "/v1/workers", "/v1/tokens", "/v1/queues"} {
			r := w.do("GET", path, eve, nil).is(200)
			if strings.Contains(string(r.body), "canary-a") {
				t.Errorf("%s lists another tenant's: %s", path, r.body)
			}
		}
	})
}

func TestTokenGivesNoMoreThanItHas(t *testing.T) {
	onEach(t, func(w *world) {
		keeper := w.token("default", "tokens:admin", "jobs:read")
		w.do("POST", "/v1/tokens", keeper, protocol.NewToken{Name: "t", Scopes: []string{"jobs:read"}}).is(201)
		for _, s := range []string{"admin", "jobs:write"} {
			w.do("POST", "/v1/tokens", keeper, protocol.NewToken{Name: "t", Scopes: []string{"jobs:read", s}}).refused(403, drover.CodeForbidden)
		}
		w.do("POST", "/v1/tokens", keeper, protocol.NewToken{Name: "t", Scopes: []string{"jobs:reed"}}).refused(400, drover.CodeValidation)
		w.do("POST", "/v1/tokens", keeper, protocol.NewToken{Name: "t", Scopes: []string{}}).refused(400, drover.CodeValidation)
		system := w.token("system", "admin")
		var made drover.Token
		w.do("POST", "/v1/tokens", system, protocol.NewToken{Name: "t", Scopes: []string{"jobs:read"}, Tenant: "default"}).is(201, &made)
		if made.Tenant != "default" {
			w.Errorf("tenant = %q", made.Tenant)
		}
	})
}

// TestPathsOutsideTheTable holds that what is not exactly a route is refused,
// first for want of a token and then as unknown.
func TestPathsOutsideTheTable(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.T
		for _, path := range []string{
			"/v1", "/v1/", "/v1/jobs/", "/v1/secret", "/v1/jobs/health", "/v1/livez", "/livez/", "/LIVEZ", "//livez", "/v1//jobs", "/v1/../livez", "/livez/../v1/jobs",
			"/v1/jobs/x/../../../livez", "/docs/x", "/debug/pprof/", "/metrics", "/%6civez/x", "/v1/jobs%00", "/v1/jobs/%2e%2e/%2e%2e/livez", "/.", "/%2e",
		} {
			w.do("GET", path, "", nil).refused(401, drover.CodeUnauthenticated)
			if r := w.do("GET", path, w.admin, nil); r.status != 404 && r.status != 400 {
				t.Errorf("%s answered %d: %s", path, r.status, r.body)
			}
		}
		w.do("DELETE", "/livez", "", nil).refused(401, drover.CodeUnauthenticated)
		if r := w.do("GET", "/", "", nil); r.status != 302 || r.header.Get("Location") != "/docs" {
			t.Errorf("GET / answered %d to %q, want 302 to /docs", r.status, r.header.Get("Location"))
		}
		w.do("POST", "/", "", nil).refused(401, drover.CodeUnauthenticated)
		for path, allow := range map[string]string{"/v1/jobs": "GET, HEAD, POST", "/livez": "GET, HEAD", "/v1/leases/settle": "POST", "/v1/tokens/" + exampleTokenID.String(): "DELETE"} {
			for _, m := range []string{"PUT", "PATCH", "OPTIONS", "TRACE", "QUERY"} {
				r := w.do(m, path, w.admin, nil)
				if r.refused(405, drover.CodeValidation); r.header.Get("Allow") != allow {
					t.Errorf("%s %s: Allow = %q, want %q", m, path, r.header.Get("Allow"), allow)
				}
			}
		}
		for _, path := range []string{"/v1/jobs", "/v1/queues", "/livez", "/openapi.json", "/docs", "/version"} {
			get, head := w.do("GET", path, w.admin, nil).is(200), w.do("HEAD", path, w.admin, nil).is(200)
			if len(head.body) != 0 || head.header.Get("Content-Type") != get.header.Get("Content-Type") || head.header.Get("ETag") != get.header.Get("ETag") {
				t.Errorf("HEAD %s: %q with %v", path, head.body, head.header)
			}
		}
		w.do("HEAD", "/v1/jobs/"+exampleJobID.String(), w.admin, nil).is(404)
	})
}

func TestPagesOfOtherSitesAreRefused(t *testing.T) {
	onEach(t, func(w *world) {
		w.do("POST", "/v1/jobs", w.admin, `{"kind":"a"}`, "Sec-Fetch-Site: cross-site").refused(403, drover.CodeForbidden)
		w.do("POST", "/v1/jobs", w.admin, `{"kind":"a"}`, "Origin: https://evil.example").refused(403, drover.CodeForbidden)
		w.do("POST", "/v1/jobs", w.admin, `{"kind":"a"}`, "Sec-Fetch-Site: same-origin").is(202)
		w.do("GET", "/v1/jobs", w.admin, nil, "Sec-Fetch-Site: cross-site").is(200)
	})
}

// TestPanicBecomesAProblem uses a route of its own; the table has none that panics.
func TestPanicBecomesAProblem(t *testing.T) {
	t.Parallel()
	log := &journal{}
	late := false
	routes := []route{{method: "GET", path: "/p", id: "p", policy: public(), handle: func(_ *API, rw http.ResponseWriter, _ *request) error {
		if late {
			rw.WriteHeader(200)
			_, _ = rw.Write([]byte("{")) // the test reads no more of it
		}
		panic("secret")
	}}}
	a, err := build(Config{Logger: slog.New(slog.NewTextHandler(log, nil))}, routes)
	if err != nil {
		t.Fatal(err)
	}
	rec := httptest.NewRecorder()
	req := httptest.NewRequest("GET", "/p", nil)
	req.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	a.ServeHTTP(rec, req)
	var p protocol.Problem
	if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil || rec.Code != 500 || p.Code != drover.CodeInternal || p.TraceID != "0af7651916cd43dd8448eb211c80319c" || strings.Contains(rec.Body.String(), "secret") {
		t.Errorf("answered %d: %s", rec.Code, rec.Body)
	}
	if s := log.String(); !strings.Contains(s, p.TraceID) || !strings.Contains(s, "secret") || !strings.Contains(s, "access_test.go") {
		t.Errorf("the log says %q", s)
	}
	late = true
	defer func() {
		if r := recover(); r != http.ErrAbortHandler {
			t.Errorf("a panic behind the start of the answer ends in %v, want the connection cut off", r)
		}
	}()
	a.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/p", nil))
}

func TestUnreadyServerSaysSoAndNotWhy(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.T
		for _, path := range []string{"/readyz", "/healthz"} {
			p := w.do("GET", path, "", nil).refused(503, drover.CodeOverloaded)
			if strings.Contains(p.Detail, "hunter2") {
				t.Errorf("%s tells %q", path, p.Detail)
			}
			if r := w.do("GET", path+"?verbose", "", nil).is(503); strings.Contains(string(r.body), "hunter2") || !strings.Contains(string(r.body), `"status":"failing"`) {
				t.Errorf("%s tells %s", path, r.body)
			}
			w.do("GET", path+"?exclude=database", "", nil).is(200)
			w.do("GET", path+"?exclude=x", "", nil).refused(400, drover.CodeValidation)
		}
		w.do("GET", "/livez", "", nil).is(200)
		if !strings.Contains(w.log.String(), "hunter2") {
			t.Error("the log does not say why")
		}
	}, func(c *Config) {
		c.Ready = func(context.Context) error { return errors.New("connect to db with password hunter2") }
	})
}

func TestCallersOfAStoppedGatewayAreToldToComeBack(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		e := engine.New(db, engine.Options{})
		c, err := e.EnsureTenant(t.Context(), "default")
		if err != nil {
			t.Fatal(err)
		}
		tok, err := e.CreateToken(t.Context(), c, drover.Token{Name: "t", Scopes: []string{"admin"}})
		if err != nil {
			t.Fatal(err)
		}
		h := New(Config{Engine: e, Gateway: gateway.New(e)})
		req := httptest.NewRequest("POST", "/v1/jobs", strings.NewReader(`{"kind":"a"}`))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+tok.Secret)
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, req)
		if rec.Code != 503 || rec.Header().Get("Retry-After") != "1" {
			t.Errorf("answered %d with %v: %s", rec.Code, rec.Header(), rec.Body)
		}
	})
}

// broken is a database whose transactions end in an error.
type broken struct {
	driver.Driver
	err error
}

func (b *broken) Write(ctx context.Context, fn func(driver.Tx) error) error {
	if b.err != nil {
		return fmt.Errorf("begin: %w", b.err)
	}
	return b.Driver.Write(ctx, fn)
}

// A database that is away is no fault of the server: nothing was done, and clients
// ask again by themselves. A commit whose answer is lost may have been carried out.
func TestDatabaseThatIsAwayIsToldApartFromAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t, "sqlite")
	e := engine.New(db, engine.Options{})
	c, err := e.EnsureTenant(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	tok, err := e.CreateToken(t.Context(), c, drover.Token{Name: "t", Scopes: []string{"admin"}})
	if err != nil {
		t.Fatal(err)
	}
	b := &broken{Driver: db.Driver}
	db.Driver = b
	h := New(Config{Engine: e, Gateway: gateway.New(e)})
	for _, c := range []struct {
		err    error
		status int
		after  string
	}{
		{&net.OpError{Op: "dial", Err: errors.New("connection refused")}, 503, "1"},
		{fmt.Errorf("commit: %w", driver.ErrUnknown), 504, "1"},
		{context.DeadlineExceeded, 504, "1"},
		{errors.New("syntax error"), 500, ""},
	} {
		b.err = c.err
		req := httptest.NewRequest("POST", "/v1/workers", strings.NewReader(`{"worker":"w","queues":["default"],"slots":1}`))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+tok.Secret)
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, req)
		if rec.Code != c.status || rec.Header().Get("Retry-After") != c.after {
			t.Errorf("after %v: answered %d with Retry-After %q: %s; want %d", c.err, rec.Code, rec.Header().Get("Retry-After"), rec.Body, c.status)
		}
	}
}
