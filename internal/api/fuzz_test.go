package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http/httptest"
	"net/url"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/gateway"
	"github.com/drover-dev/drover/internal/store/storetest"
	"github.com/drover-dev/drover/protocol"
)

// sentHeaders are the headers a request of FuzzRoutes may have, by a letter.
var sentHeaders = map[string]string{
	"k": protocol.HeaderIdempotencyKey, "p": protocol.HeaderPrefer, "l": protocol.HeaderLastEventID, "a": "Accept", "c": "Content-Type",
	"r": "Range", "e": "If-None-Match", "t": "Traceparent", "n": "Content-Encoding",
}

// FuzzRoutes sends anything to every route. Nothing makes the server panic, fail
// or hang, and every refusal is a problem with a code.
func FuzzRoutes(f *testing.F) {
	ctx := f.Context()
	e := engine.New(storetest.Open(f, "sqlite"), engine.Options{Artifacts: f.TempDir()})
	g := gateway.New(e)
	run, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(run) }()
	f.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			f.Error(err)
		}
	})
	if err := g.Started(ctx); err != nil {
		f.Fatal(err)
	}
	var faults journal
	h := New(Config{Engine: e, Gateway: g, Ready: e.Ping, MaxWait: 10 * time.Millisecond, Heartbeat: 10 * time.Millisecond, MaxBody: 64 << 10, MaxBatchBody: 128 << 10, MaxArtifact: 64 << 10,
		Logger: slog.New(slog.NewTextHandler(&faults, &slog.HandlerOptions{Level: slog.LevelError}))})
	c, err := e.EnsureTenant(ctx, "default")
	if err != nil {
		f.Fatal(err)
	}
	made := func(name string) drover.Token {
		t, err := e.CreateToken(ctx, c, drover.Token{Name: name, Scopes: []string{"admin"}})
		if err != nil {
			f.Fatal(err)
		}
		return t
	}
	mine, spare := made("mine"), made("spare")
	if _, err := e.RegisterPipeline(ctx, c, "p.yaml", []byte(twoSteps)); err != nil {
		f.Fatal(err)
	}
	out, err := e.Submit(ctx, c, []drover.NewJob{{Kind: "k"}, {Pipeline: "two-steps", Input: json.RawMessage(`{"object_id":"x"}`)}})
	if err != nil || out[1].Err != nil {
		f.Fatal(err, out)
	}
	who, err := e.Authenticate(ctx, mine.Secret)
	if err != nil {
		f.Fatal(err)
	}
	s, err := e.OpenSession(ctx, who, drover.NewSession{Worker: "w", Queues: []string{"default"}, Slots: 9})
	if err != nil {
		f.Fatal(err)
	}
	leases, err := e.Acquire(ctx, who, drover.Acquire{Session: s.ID, Max: 1, Number: 1})
	if err != nil || len(leases) != 1 {
		f.Fatal(err, leases)
	}
	// What stands in a path that names nothing of its own.
	there := map[string]string{"job_id": out[1].JobID.String(), "task_id": leases[0].TaskID.String(), "worker_id": s.ID.String(), "token_id": spare.ID.String(),
		"artifact_id": exampleArtifact.ID.String(), "pipeline": "two-steps", "queue": "default"}
	routes := table()
	for i, r := range routes {
		body := []byte("x")
		if r.body.example != nil {
			if body, err = asJSON(r.body.example); err != nil {
				f.Fatal(err)
			}
		}
		f.Add(uint8(i), "", "", "", body)
		f.Add(uint8(i), "x", "limit=1&cursor=x&status=RUNNING&label=a:b&after=1&created_after=2026-01-01T00:00:00Z&attempt=1&name=a&lease_version=1", "k:\"a\"\np:wait=1\nl:1\na:text/event-stream\nr:bytes=0-1\ne:*", body)
		f.Add(uint8(i), "", "limit=0&name=../x&lease_version=1", "c:application/yaml\na:*/*", []byte(twoSteps))
	}
	param := regexp.MustCompile(`\{[a-z_]+\.*\}`)
	f.Fuzz(func(t *testing.T, route uint8, path, query, headers string, body []byte) {
		r := routes[int(route)%len(routes)]
		to := param.ReplaceAllStringFunc(r.path, func(p string) string {
			if path != "" {
				return url.PathEscape(path)
			}
			return there[strings.Trim(p, "{.}")]
		})
		u, err := url.ParseRequestURI(to + "?" + query)
		if err != nil || len(body) > 256<<10 {
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		req := httptest.NewRequestWithContext(ctx, r.method, "/", bytes.NewReader(body))
		req.URL, req.RequestURI = u, u.RequestURI()
		req.Header.Set("Content-Type", protocol.MediaJSON)
		for line := range strings.SplitSeq(headers, "\n") {
			k, v, _ := strings.Cut(line, ":")
			if name := sentHeaders[k]; name != "" && !strings.ContainsFunc(v, func(c rune) bool { return c < ' ' || c == 0x7f }) {
				req.Header.Add(name, v)
			}
		}
		req.Header.Set("Authorization", "Bearer "+mine.Secret)
		rec := httptest.NewRecorder()
		before := len(faults.String())
		start := time.Now()
		h.ServeHTTP(rec, req)
		took := time.Since(start)
		what := r.method + " " + u.String()
		if took > 10*time.Second {
			t.Errorf("%s took %v", what, took)
		}
		if ctx.Err() != nil {
			return // it waits for news, or the machine is busy: the client is gone
		}
		res := rec.Result()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode >= 500 {
			t.Fatalf("%s: %d %s\n%s", what, res.StatusCode, text, faults.String()[before:])
		}
		if res.StatusCode >= 400 {
			var p protocol.Problem
			if err := json.Unmarshal(text, &p); err != nil || p.Code == "" || p.Status != res.StatusCode {
				t.Errorf("%s: %d without a problem: %v %s", what, res.StatusCode, err, text)
			}
		}
	})
}

// FuzzHeaders reads what clients say in headers.
func FuzzHeaders(f *testing.F) {
	for _, s := range []string{`"a"`, `a`, `"a\"b"`, `"`, `"\`, `wait=5, respond-async; x=y`, `wait="5"`, `wait=99999999999`, ",,;=", "\xff", "18446744073709551616"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, header, body string) {
		req := httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)
		req.Header.Set(protocol.HeaderIdempotencyKey, header)
		req.Header.Set(protocol.HeaderPrefer, header)
		r := &request{Request: req}
		key, err := requestKey(r, "idempotency_key", body)
		if e := new(drover.Error); err != nil && (!errors.As(err, &e) || len(e.Fields) == 0) {
			t.Errorf("%q: a refusal without a place: %v", header, err)
		}
		if err == nil && (key == "" || len(key) > maxKey || strings.ContainsFunc(key, func(c rune) bool { return c < ' ' })) {
			t.Errorf("%q gives the key %q", header, key)
		}
		if err == nil { // what a client writes for the key is read as the key
			quoted := strconv.QuoteToASCII(key)
			if again, ok := unquoted(quoted); !strings.Contains(strings.ReplaceAll(strings.ReplaceAll(quoted, `\\`, ""), `\"`, ""), `\`) && (!ok || again != key) {
				t.Errorf("%q is read as %q", quoted, again)
			}
		}
		if p := r.prefer(); p.wait < 0 || p.wait > 0 && !p.waits {
			t.Errorf("%q prefers %+v", header, p)
		}
	})
}

// FuzzBodies decodes anything as each body there is: what is taken is JSON, and
// written down again it is taken as the same.
func FuzzBodies(f *testing.F) {
	var kinds []route
	for _, r := range table() {
		if r.body.of != nil {
			kinds = append(kinds, r)
		}
	}
	for i, r := range kinds {
		b, err := asJSON(r.body.example)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), b)
		f.Add(uint8(i), []byte("{}"))
	}
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		r := kinds[int(kind)%len(kinds)]
		in := reflect.New(reflect.TypeOf(r.body.of)).Interface()
		if err := decode(b, in, r.body.mild); err != nil {
			if e := new(drover.Error); !errors.As(err, &e) || len(e.Fields) == 0 {
				t.Errorf("%q: a refusal without a place: %v", b, err)
			}
			return
		}
		text, err := json.Marshal(in)
		if err != nil {
			t.Fatalf("%s took %q and cannot write it: %v", r.id, b, err)
		}
		again := reflect.New(reflect.TypeOf(r.body.of)).Interface()
		if err := decode(text, again, r.body.mild); err != nil {
			t.Fatalf("%s took %q, wrote %s and refuses that: %v", r.id, b, text, err)
		}
		if third, err := json.Marshal(again); err != nil || !bytes.Equal(text, third) {
			t.Errorf("%s: %s became %s, %v", r.id, text, third, err)
		}
	})
}
