// Package api serves Drover over HTTP: it decodes a request strictly, calls the
// engine or its gateway, and encodes the answer. One table (routes.go) says
// what there is, who may call it, and what the OpenAPI document tells about it.
package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/gateway"
	"github.com/drover-dev/drover/protocol"
)

// Config is what the API serves and within which bounds.
type Config struct {
	Engine  *engine.Engine
	Gateway *gateway.Gateway
	// Logger takes faults of the server and, at debug level, each request; nil drops them.
	Logger *slog.Logger
	// Version and Commit are what GET /version tells; Database is "sqlite" or "postgres".
	Version, Commit, Database string
	// Ready says whether the server can work; nil is always. The error is logged
	// and not shown, as /readyz is public.
	Ready func(context.Context) error

	// MaxBody bounds a request body in bytes; 0 is 4 MiB.
	MaxBody int64
	// MaxBatchBody bounds the bodies of batches, settles and logs; 0 is 16 MiB.
	MaxBatchBody int64
	// MaxArtifact bounds an upload; 0 is 5 GiB.
	MaxArtifact int64
	// Heartbeat is how long a stream of events may be silent; 0 is 15 s.
	Heartbeat time.Duration
	// MaxWait bounds Prefer: wait; 0 is 60 s.
	MaxWait time.Duration
}

// API is the handler of every route.
type API struct {
	Config
	log    *slog.Logger
	engine *engine.Engine
	gate   *gateway.Gateway
	mux    *http.ServeMux
	routes map[string]*route // by pattern
	serve  http.Handler
	spec   func() document
}

// New makes the handler. It panics when the table of routes is broken: when one
// declares no policy, say.
func New(cfg Config) http.Handler {
	a, err := build(cfg, table())
	if err != nil {
		panic("api: " + err.Error())
	}
	return a
}

func build(cfg Config, routes []route) (*API, error) {
	a := &API{Config: cfg, log: cfg.Logger, engine: cfg.Engine, gate: cfg.Gateway, mux: http.NewServeMux(), routes: map[string]*route{}}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	a.MaxBody = or(a.MaxBody, 4<<20)
	a.MaxBatchBody = or(a.MaxBatchBody, protocol.MaxSettleBody)
	a.MaxArtifact = or(a.MaxArtifact, 5<<30)
	a.Heartbeat = or(a.Heartbeat, 15*time.Second)
	a.MaxWait = or(a.MaxWait, time.Minute)
	for i := range routes {
		t := &routes[i]
		pattern := t.method + " " + t.path
		if !t.policy.declared() {
			return nil, fmt.Errorf("route %s declares no policy", pattern)
		}
		a.routes[pattern] = t
		a.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { a.handle(t, w, r) })
	}
	a.spec = sync.OnceValue(func() document { return describe(routes, cfg.Version) })
	cross := http.NewCrossOriginProtection()
	cross.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.refuse(w, r, drover.Errorf(drover.CodeForbidden, "the request comes from a page of another site"))
	}))
	a.serve = cross.Handler(http.HandlerFunc(a.dispatch))
	return a, nil
}

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// Server returns an HTTP server for h whose bounds suit long polls and streams:
// headers must come within 10 s; bodies and answers have deadlines of their own,
// set by the routes.
func Server(addr string, h http.Handler) *http.Server {
	return &http.Server{
		Addr:              addr,
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
}

// answerTime bounds how long an answer may take that does not wait for anything.
const answerTime = time.Minute

// ServeHTTP answers a request.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	trace := traceID(r.Header.Get("Traceparent"))
	r = r.WithContext(context.WithValue(r.Context(), traceKey{}, trace))
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; sandbox")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("X-Frame-Options", "DENY")
	if id := r.Header.Get("X-Request-Id"); requestID.MatchString(id) {
		h.Set("X-Request-Id", id)
	} else {
		h.Set("X-Request-Id", trace)
	}
	out := &response{ResponseWriter: w}
	extend(out, answerTime)
	start := time.Now()
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler { //nolint:errorlint // the value of a panic, as net/http compares it
				panic(p)
			}
			a.recovered(out, r, p, debug.Stack())
		}
		a.log.DebugContext(r.Context(), "request answered", "method", r.Method, "path", r.URL.Path, "status", out.status, "took", time.Since(start), "trace_id", trace)
	}()
	a.serve.ServeHTTP(out, r)
}

// response notes whether an answer has begun.
type response struct {
	http.ResponseWriter
	status int
}

// WriteHeader begins the answer.
func (w *response) WriteHeader(status int) {
	if status >= 200 && w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write begins the answer if need be and writes to it.
func (w *response) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController through.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// extend gives the answer until d from now. A transport without deadlines has
// no slow peer either.
func extend(w http.ResponseWriter, d time.Duration) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d))
}

// request is a request on its way through a route.
type request struct {
	*http.Request
	route  *route
	caller engine.Caller
	query  url.Values
}

type callerKey struct{}

type inProcessKey struct{}

// As returns a context whose requests are the caller's, without a token. It is
// for programs that hold the handler in their own process: a context does not
// come over a wire.
func As(ctx context.Context, c engine.Caller) context.Context {
	return context.WithValue(ctx, inProcessKey{}, c)
}

// dispatch lets nobody past who does not say who he is, whatever he asks for,
// but for the public routes by exact match.
func (a *API) dispatch(w http.ResponseWriter, r *http.Request) {
	pattern, other := "", http.Handler(nil)
	if p := r.URL.Path; strings.HasPrefix(p, "/") && (p == "/" || p == path.Clean(p)) {
		other, pattern = a.mux.Handler(r)
	}
	t := a.routes[pattern]
	front := r.URL.Path == "/" && (r.Method == http.MethodGet || r.Method == http.MethodHead) // somebody with a browser
	if !front && (t == nil || !t.policy.public) {
		c, err := a.authenticate(r)
		if err != nil {
			if drover.CodeOf(err) == drover.CodeUnauthenticated {
				w.Header().Set("WWW-Authenticate", challenge(r))
			}
			a.refuse(w, r, err)
			return
		}
		r = r.WithContext(context.WithValue(r.Context(), callerKey{}, c))
	}
	switch {
	case t != nil:
		a.mux.ServeHTTP(w, r)
	case front:
		http.Redirect(w, r, "/docs", http.StatusFound)
	case other != nil && pattern == "":
		a.refuseUnrouted(w, r, other)
	default:
		a.refuse(w, r, errNoPath(r))
	}
}

func errNoPath(r *http.Request) error {
	return drover.Errorf(drover.CodeNotFound, "there is nothing at %s; /openapi.json lists what there is", clip(r.URL.Path, 200))
}

// refuseUnrouted tells an unknown path from a method that a path does not have:
// the mux knows, and says so in the answer it would give.
func (a *API) refuseUnrouted(w http.ResponseWriter, r *http.Request, fallback http.Handler) {
	told := unsent{header: http.Header{}}
	fallback.ServeHTTP(&told, r)
	if told.status != http.StatusMethodNotAllowed {
		a.refuse(w, r, errNoPath(r))
		return
	}
	allow := told.header.Get("Allow")
	w.Header().Set("Allow", allow)
	p := protocol.FromError(drover.Errorf(drover.CodeValidation, "%s is not possible here; possible are %s", clip(r.Method, 20), allow))
	p.Status, p.Title = http.StatusMethodNotAllowed, statusTitles[http.StatusMethodNotAllowed]
	p.Instance, p.TraceID = r.URL.EscapedPath(), traceOf(r.Context())
	writeProblem(w, r, p)
}

// unsent is an answer that is only looked at.
type unsent struct {
	header http.Header
	status int
}

// Header returns the answer's headers.
func (u *unsent) Header() http.Header { return u.header }

// WriteHeader keeps the status.
func (u *unsent) WriteHeader(status int) { u.status = status }

// Write drops the text.
func (u *unsent) Write(b []byte) (int, error) { return len(b), nil }

// challenge is the WWW-Authenticate header, as RFC 6750 has it.
func challenge(r *http.Request) string {
	if r.Header.Get("Authorization") == "" {
		return `Bearer realm="drover"`
	}
	return `Bearer realm="drover", error="invalid_token"`
}

// authenticate finds out who asks: the bearer of a token. Nothing else in a
// request says so.
func (a *API) authenticate(r *http.Request) (engine.Caller, error) {
	if c, ok := r.Context().Value(inProcessKey{}).(engine.Caller); ok {
		return c, nil
	}
	given := r.Header.Values("Authorization")
	if len(given) == 0 {
		return engine.Caller{}, drover.Errorf(drover.CodeUnauthenticated, "send the header Authorization: Bearer drover_…; `drover token create` makes a token")
	}
	scheme, secret, _ := strings.Cut(given[0], " ")
	if len(given) > 1 || !strings.EqualFold(scheme, "Bearer") || !strings.HasPrefix(secret, "drover_") || len(secret) > 512 {
		return engine.Caller{}, drover.Errorf(drover.CodeUnauthenticated, "the Authorization header is not one of the form Bearer drover_…")
	}
	return a.engine.Authenticate(r.Context(), secret)
}

// handle serves a route to a caller who is known, if he may.
func (a *API) handle(t *route, w http.ResponseWriter, r *http.Request) {
	c, _ := r.Context().Value(callerKey{}).(engine.Caller)
	q := &request{Request: r, route: t, caller: c}
	err := t.policy.permit(c)
	if err == nil {
		q.query, err = t.checkQuery(r)
	}
	if err == nil {
		err = t.handle(a, w, q)
	}
	if err != nil {
		a.refuse(w, r, err)
	}
}

// policy says who may call a route. The zero value is none at all.
type policy struct {
	public bool
	token  bool     // any valid token
	scopes []string // any one of these
	// operator says that the engine refuses who is no administrator of the installation.
	operator bool
}

func public() policy               { return policy{public: true} }
func anyToken() policy             { return policy{token: true} }
func scope(anyOf ...string) policy { return policy{scopes: anyOf} }
func operator() policy             { return policy{scopes: []string{"admin"}, operator: true} }
func (p policy) declared() bool    { return p.public || p.token || len(p.scopes) > 0 }
func (p policy) String() string    { return strings.Join(p.scopes, " or ") }
func (p policy) permit(c engine.Caller) error {
	if p.public || p.token || slices.ContainsFunc(p.scopes, c.Has) {
		return nil
	}
	return drover.Errorf(drover.CodeForbidden, "the token lacks the scope %s; make one with `drover token create --name NAME --scope %s`", p, p.scopes[0])
}

// checkQuery refuses parameters that the route does not have, has once and got
// twice, or needs and did not get.
func (t *route) checkQuery(r *http.Request) (url.Values, error) {
	if r.URL.RawQuery == "" && !slices.ContainsFunc(t.params, func(p param) bool { return p.required && p.in == inQuery }) {
		return nil, nil
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, invalidQuery("query", "is not a well-formed query; escape % as %25")
	}
	e := &drover.Error{Code: drover.CodeValidation, Detail: "a parameter of the request is not valid"}
	add := func(name, format string, args ...any) {
		if len(e.Fields) < maxComplaints {
			e.Fields = append(e.Fields, drover.FieldError{Field: clip(strings.ToValidUTF8(name, "\uFFFD"), 80), Message: fmt.Sprintf(format, args...)})
		}
	}
	var known []string
	for _, p := range t.params {
		if p.in != inQuery {
			continue
		}
		known = append(known, p.name)
		v := q[p.name]
		switch {
		case len(v) == 0 && p.required:
			add(p.name, "is required")
		case len(v) > 1 && !p.repeat:
			add(p.name, "is there %d times; give it once", len(v))
		}
		for _, s := range v {
			if strings.ContainsRune(s, 0) || strings.ToValidUTF8(s, "") != s {
				add(p.name, "has U+0000 or bytes in it that are not UTF-8")
			}
		}
	}
	var unknown []string
	for name := range q {
		if !slices.Contains(known, name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	for _, name := range unknown {
		switch near := nearest(name, known); {
		case near != "":
			add(name, "is not a parameter here; did you mean %q?", near)
		case len(known) == 0:
			add(name, "is not a parameter here; there are none")
		default:
			add(name, "is not a parameter here; there are %s", strings.Join(known, ", "))
		}
	}
	if len(e.Fields) > 0 {
		return nil, e
	}
	return q, nil
}

func (a *API) limitOf(t *route) int64 {
	if t.body.batch {
		return a.MaxBatchBody
	}
	return a.MaxBody
}

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// reply answers with v as JSON. Payloads in it go out as they came in.
func (a *API) reply(w http.ResponseWriter, r *request, status int, v any) error {
	return a.write(w, r, status, v, false)
}

// replyTagged answers with v and its ETag, or with 304 when the client has it.
func (a *API) replyTagged(w http.ResponseWriter, r *request, v any) error {
	return a.write(w, r, http.StatusOK, v, true)
}

func (a *API) write(w http.ResponseWriter, r *request, status int, v any, tagged bool) error {
	b := buffers.Get().(*bytes.Buffer)
	defer func() {
		if b.Cap() <= 1<<20 {
			b.Reset()
			buffers.Put(b)
		}
	}()
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	if tagged {
		sum := sha256.Sum256(b.Bytes())
		tag := `"` + hex.EncodeToString(sum[:12]) + `"`
		h.Set("ETag", tag)
		h.Set("Cache-Control", "private, no-cache")
		if matches(r.Header.Values("If-None-Match"), tag) {
			w.WriteHeader(http.StatusNotModified)
			return nil
		}
	}
	h.Set("Content-Type", protocol.MediaJSON)
	h.Set("Content-Length", strconv.Itoa(b.Len()))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = io.Copy(w, bytes.NewReader(b.Bytes())) // a client that left gets nothing
	}
	return nil
}

// matches compares an If-None-Match header weakly, as RFC 9110 wants it.
func matches(header []string, tag string) bool {
	for _, line := range header {
		for t := range strings.SplitSeq(line, ",") {
			if t = strings.TrimSpace(t); t == "*" || strings.TrimPrefix(t, "W/") == tag {
				return true
			}
		}
	}
	return false
}
