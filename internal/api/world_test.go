package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.uber.org/goleak"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/gateway"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/storetest"
	"github.com/drover-dev/drover/protocol"
)

func TestMain(m *testing.M) {
	code := m.Run()
	http.DefaultClient.CloseIdleConnections()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// world is a server on a database of its own, and the tokens of two tenants.
type world struct {
	*testing.T
	db     *store.DB
	engine *engine.Engine
	gate   *gateway.Gateway
	api    *API
	url    string
	http   *http.Client
	admin  string // token of the tenant "default"
	log    *journal

	mu      sync.Mutex
	covered map[string]bool // operations that succeeded once
}

// journal keeps what the server logged.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// onEach runs f against a server on each database.
func onEach(t *testing.T, f func(w *world), tune ...func(*Config)) {
	t.Helper()
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) { f(newWorld(t, db, tune...)) })
}

func newWorld(t *testing.T, db *store.DB, tune ...func(*Config)) *world {
	t.Helper()
	w := &world{T: t, db: db, log: &journal{}, covered: map[string]bool{}}
	w.engine = engine.New(db, engine.Options{Artifacts: t.TempDir()})
	w.gate = gateway.New(w.engine)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.gate.Run(ctx) }()
	cfg := Config{
		Engine: w.engine, Gateway: w.gate, Ready: w.engine.Ping, Version: "1.2.3", Database: "sqlite",
		Logger: slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, f := range tune {
		f(&cfg)
	}
	w.api = New(cfg).(*API)
	srv := httptest.NewUnstartedServer(w.api)
	srv.Config = Server("", w.api)
	srv.Config.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(w.log, nil), slog.LevelError)
	srv.Start()
	w.url, w.http = srv.URL, srv.Client()
	w.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	w.Cleanup(func() {
		cancel()
		srv.Close()
		if err := <-ended; err != nil {
			t.Errorf("gateway: %v", err)
		}
		if strings.Contains(w.log.String(), "drover_") {
			t.Error("a token is in the log")
		}
	})
	if err := w.gate.Started(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.admin = w.token("default", "admin")
	return w
}

// token makes a token of a tenant.
func (w *world) token(tenant string, scopes ...string) string {
	w.Helper()
	c, err := w.engine.EnsureTenant(w.Context(), tenant)
	if err != nil {
		w.Fatal(err)
	}
	t, err := w.engine.CreateToken(w.Context(), c, drover.Token{Name: "test", Scopes: scopes})
	if err != nil {
		w.Fatal(err)
	}
	return t.Secret
}

// reply is an answer, read to its end.
type reply struct {
	w      *world
	what   string
	status int
	header http.Header
	body   []byte
}

// do sends a request and holds the answer to the OpenAPI document. A body that
// is no string and no []byte is sent as JSON. Headers are "Name: value".
func (w *world) do(method, to, token string, body any, headers ...string) *reply {
	w.Helper()
	req := w.request(method, to, token, body, headers...)
	res, err := w.http.Do(req)
	if err != nil {
		w.Fatalf("%s %s: %v", method, to, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		w.Fatalf("%s %s: read the answer: %v", method, to, err)
	}
	r := &reply{w, method + " " + to, res.StatusCode, res.Header, text}
	w.conforms(req, r)
	return r
}

func (w *world) request(method, to, token string, body any, headers ...string) *http.Request {
	w.Helper()
	var in io.Reader
	media := ""
	switch b := body.(type) {
	case nil:
	case string:
		in, media = strings.NewReader(b), protocol.MediaJSON
	case []byte:
		in, media = bytes.NewReader(b), protocol.MediaJSON
	default:
		text, err := asJSON(b)
		if err != nil {
			w.Fatal(err)
		}
		in, media = bytes.NewReader(text), protocol.MediaJSON
	}
	req, err := http.NewRequestWithContext(w.Context(), method, w.url+to, in)
	if err != nil {
		w.Fatal(err)
	}
	if media != "" {
		req.Header.Set("Content-Type", media)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if value == "-" {
			req.Header.Del(name)
			continue
		}
		req.Header.Add(name, value)
	}
	return req
}

var compiled = sync.OnceValue(func() (out struct {
	doc      map[string]any
	compiler *jsonschema.Compiler
}) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(describe(table(), "").json))
	if err != nil {
		panic(err)
	}
	out.doc = doc.(map[string]any)
	out.compiler = jsonschema.NewCompiler()
	if err := out.compiler.AddResource("drover:openapi", doc); err != nil {
		panic(err)
	}
	return out
})

var compileLock sync.Mutex

func schemaAt(pointer string) (*jsonschema.Schema, error) {
	compileLock.Lock()
	defer compileLock.Unlock()
	return compiled().compiler.Compile("drover:openapi#" + pointer)
}

var timeInJSON = regexp.MustCompile(`"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?([^"\\]*)\\?"`)

// conforms holds an answer to what the document says of its operation.
func (w *world) conforms(req *http.Request, r *reply) {
	w.Helper()
	if r.header.Get("X-Content-Type-Options") != "nosniff" || !strings.Contains(r.header.Get("Content-Security-Policy"), "default-src 'none'") || r.header.Get("X-Request-Id") == "" {
		w.Errorf("%s: security headers are missing: %v", r.what, r.header)
	}
	if r.status >= 500 && r.status != http.StatusServiceUnavailable {
		w.Errorf("%s answered %d: %s\nlog: %s", r.what, r.status, r.body, w.log)
	}
	media, _, _ := strings.Cut(r.header.Get("Content-Type"), ";")
	if r.status >= 400 && req.Method != http.MethodHead && r.status != http.StatusServiceUnavailable {
		if media != protocol.MediaProblem {
			w.Errorf("%s answered %d in %q: %s", r.what, r.status, media, r.body)
			return
		}
		p := r.problem()
		if p.Status != r.status || p.Code == "" || p.Detail == "" || p.Title == "" || len(p.TraceID) != 32 || p.Type != protocol.TypeOf(p.Code) {
			w.Errorf("%s: the problem is not whole: %s", r.what, r.body)
		}
	}
	for _, m := range timeInJSON.FindAllSubmatch(r.body, -1) {
		if len(m[1]) > len(".000") || string(m[2]) != "Z" {
			w.Errorf("%s: %s is not a time in UTC to the millisecond", r.what, m[0])
		}
	}
	_, pattern := w.api.mux.Handler(req)
	t := w.api.routes[pattern]
	if t == nil || req.URL.Path != path.Clean(req.URL.Path) || req.Method == http.MethodHead {
		return
	}
	method, status := strings.ToLower(t.method), fmt.Sprint(r.status)
	op := at(any(compiled().doc), "paths", t.path, method)
	described := at(op, "responses", status)
	if described == nil {
		w.Errorf("%s answered %s, which the document does not know: %s", r.what, status, r.body)
		return
	}
	if r.status >= 400 {
		codes := asList(at(described, "x-problem-codes"))
		if media != protocol.MediaProblem {
			return
		}
		if p := r.problem(); !containsAny(codes, string(p.Code)) {
			w.Errorf("%s answered %s with code %s; the document knows %v", r.what, status, p.Code, codes)
		}
	} else {
		w.mu.Lock()
		w.covered[t.id] = true
		w.mu.Unlock()
	}
	if media != protocol.MediaJSON && media != protocol.MediaProblem || r.status < 400 && at(described, "content", media) == nil {
		if r.status < 300 && len(r.body) > 0 && at(described, "content", media) == nil && at(described, "content", "*/*") == nil {
			w.Errorf("%s answered in %q, which the document does not know", r.what, media)
		}
		return
	}
	if at(described, "content", media, "schema") == nil {
		return
	}
	escape := strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D", "+", "%2B")
	schema, err := schemaAt("/paths/" + escape.Replace(t.path) + "/" + method + "/responses/" + status + "/content/" + escape.Replace(media) + "/schema")
	if err != nil {
		w.Fatalf("%s: %v", r.what, err)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(r.body))
	if err != nil {
		w.Errorf("%s: not JSON: %v: %s", r.what, err, r.body)
		return
	}
	if err := schema.Validate(v); err != nil {
		w.Errorf("%s: the answer is not as described: %v\n%s", r.what, err, r.body)
	}
}

func containsAny(list []any, s string) bool {
	for _, v := range list {
		if v == s {
			return true
		}
	}
	return false
}

// is fails the test unless the answer has the status, and decodes it into to.
func (r *reply) is(status int, to ...any) *reply {
	r.w.Helper()
	if r.status != status {
		r.w.Fatalf("%s answered %d, want %d: %s\nlog: %s", r.what, r.status, status, r.body, r.w.log)
	}
	for _, v := range to {
		if err := json.Unmarshal(r.body, v); err != nil {
			r.w.Fatalf("%s: %v: %s", r.what, err, r.body)
		}
	}
	return r
}

func (r *reply) problem() protocol.Problem {
	var p protocol.Problem
	if err := json.Unmarshal(r.body, &p); err != nil {
		r.w.Errorf("%s: no problem: %s", r.what, r.body)
	}
	return p
}

// refused fails the test unless the answer is a problem of that code.
func (r *reply) refused(status int, code drover.Code) protocol.Problem {
	r.w.Helper()
	p := r.problem()
	if r.status != status || p.Code != code {
		r.w.Errorf("%s answered %d %s, want %d %s: %s", r.what, r.status, p.Code, status, code, r.body)
	}
	return p
}

// submit submits a job of one task.
func (w *world) submit(kind string) drover.JobID {
	w.Helper()
	var out protocol.SubmitResponse
	w.do("POST", "/v1/jobs", w.admin, drover.NewJob{Kind: kind, Input: json.RawMessage(`{"n":9007199254740993}`)}).is(202, &out)
	return out.JobID
}

// worker opens a session.
func (w *world) worker(token string) drover.Session {
	w.Helper()
	var s drover.Session
	w.do("POST", "/v1/workers", token, drover.NewSession{Worker: "w1", Queues: []string{"default"}, Slots: 10}).is(201, &s)
	return s
}

// acquire takes up to max leases.
func (w *world) acquire(token string, s drover.Session, max int, number int64, wait time.Duration) []drover.Lease {
	w.Helper()
	var out protocol.AcquireResponse
	w.do("POST", "/v1/leases/acquire", token, drover.Acquire{Session: s.ID, Max: max, Number: number, Wait: drover.Duration(wait)}).is(200, &out)
	return out.Leases
}

func (w *world) settle(token string, s drover.Session, outcomes ...drover.Outcome) []protocol.SettleResult {
	w.Helper()
	var out protocol.SettleResponse
	w.do("POST", "/v1/leases/settle", token, protocol.SettleRequest{Session: s.ID, Outcomes: outcomes}).is(200, &out)
	return out.Results
}
