package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "drover_s3cr3tCanary"

var (
	jobA = drover.JobID(drover.MakeID(1767225600000, [10]byte{9: 1}))
	task = drover.TaskID(drover.MakeID(1767225600000, [10]byte{9: 2}))
	art  = drover.ArtifactID(drover.MakeID(1767225600000, [10]byte{9: 3}))
)

// serve starts a server and a client of it.
func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c, err := New(Config{URL: s.URL + "/", Token: secret})
	if err != nil {
		t.Fatal(err)
	}
	c.backoff = backoff{time.Millisecond, 5 * time.Millisecond}
	t.Cleanup(c.Close)
	return c
}

func answerJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", protocol.MediaJSON)
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, err *drover.Error) {
	p := protocol.FromError(err)
	w.Header().Set("Content-Type", protocol.MediaProblem)
	w.WriteHeader(p.Status)
	json.NewEncoder(w).Encode(p)
}

func TestConfigIsChecked(t *testing.T) {
	for u, want := range map[string]string{
		"": "empty", "127.0.0.1:8420": "not the address", "ftp://a": "not the address", "http://": "not the address", "http://u:hunter2@a": "user",
		"http://a?b=c": "query", "http://a/%zz": "not the address",
	} {
		if _, err := New(Config{URL: u}); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", u, err)
		}
	}
	if _, err := New(Config{URL: "http://a", Token: "drover_x\n"}); err == nil || strings.Contains(err.Error(), "drover_x") {
		t.Errorf("a token with a line end: %v", err)
	}
	if _, err := New(Config{URL: "http://a", Timeout: -1}); err == nil {
		t.Error("a negative timeout was taken")
	}
}

func TestTokenIsNeverPrinted(t *testing.T) {
	cfg := Config{URL: "http://127.0.0.1:1", Token: secret}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.tries = 1
	var log bytes.Buffer
	l := slog.New(slog.NewJSONHandler(&log, nil))
	l.Info("x", "config", cfg, "client", c)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "config", cfg, "client", c)
	for _, f := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		fmt.Fprintf(&log, f, cfg)
		fmt.Fprintf(&log, f, &cfg)
		fmt.Fprintf(&log, f, c)
		fmt.Fprintf(&log, f, *c)
		fmt.Fprintf(&log, f, struct{ c *Client }{c})
		fmt.Fprintf(&log, f, struct{ c Client }{*c})
	}
	_, err = c.Job(t.Context(), jobA)
	fmt.Fprintf(&log, "%v %+v %#v", err, err, err)
	if err == nil || strings.Contains(log.String(), secret) || strings.Contains(log.String(), "s3cr3t") {
		t.Errorf("%v, and the log reads\n%s", err, log.String())
	}
}

func TestRequestsCarryTokenAndName(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+secret || !strings.HasSuffix(r.Header.Get("User-Agent"), "drover-go") {
			t.Errorf("headers are %v", r.Header)
		}
		answerJSON(w, 200, protocol.WhoAmI{Tenant: "acme"})
	})
	if who, err := c.WhoAmI(t.Context()); err != nil || who.Tenant != "acme" {
		t.Errorf("got %+v, %v", who, err)
	}
}

func TestRefusalsAreErrorsOfDrover(t *testing.T) {
	var answer func(w http.ResponseWriter)
	c := serve(t, func(w http.ResponseWriter, r *http.Request) { answer(w) })
	get := func() error { _, err := c.Job(t.Context(), jobA); return err }

	answer = func(w http.ResponseWriter) {
		refuse(w, &drover.Error{Code: drover.CodeNotFound, Detail: "there is no job", Fields: []drover.FieldError{{Field: "id", Message: "m"}}})
	}
	err := get()
	var e *drover.Error
	if !errors.Is(err, drover.ErrNotFound) || !errors.As(err, &e) || e.Detail != "there is no job" || len(e.Fields) != 1 || !strings.HasPrefix(err.Error(), "there is no job") {
		t.Errorf("got %v", err)
	}

	answer = func(w http.ResponseWriter) { http.Error(w, "<html>nginx</html>", 404) }
	if err := get(); !errors.Is(err, drover.ErrNotFound) || !strings.Contains(err.Error(), "answered 404") || strings.Contains(err.Error(), "nginx") {
		t.Errorf("a proxy's 404: %v", err)
	}
	answer = func(w http.ResponseWriter) {
		w.Header().Set("Location", "https://elsewhere.example/")
		w.WriteHeader(308)
	}
	if err := get(); err == nil || !strings.Contains(err.Error(), "redirect to https://elsewhere.example/") {
		t.Errorf("a redirect: %v", err)
	}
	answer = func(w http.ResponseWriter) { w.Write([]byte("<html>login</html>")) }
	if err := get(); err == nil || !strings.Contains(err.Error(), "read the answer") {
		t.Errorf("a page: %v", err)
	}
	answer = func(w http.ResponseWriter) { w.Write([]byte(`{"job_id":"job_1"}`)) }
	if err := get(); err == nil || !strings.Contains(err.Error(), "is not an id") {
		t.Errorf("a bad id: %v", err)
	}
	answer = func(w http.ResponseWriter) {
		w.Write([]byte(`{"job_id":"`))
		for range protocol.MaxAnswer>>20 + 1 {
			w.Write(bytes.Repeat([]byte("x"), 1<<20))
		}
	}
	if err := get(); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("an endless answer: %v", err)
	}
	answer = func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", protocol.MediaProblem)
		w.WriteHeader(400)
		w.Write(bytes.Repeat([]byte("x"), 3<<20))
	}
	if err := get(); !errors.Is(err, drover.ErrInvalid) || len(err.Error()) > 500 {
		t.Errorf("an endless problem: %.300v", err)
	}
	answer = func(w http.ResponseWriter) {
		w.Write([]byte(`{"job_id":"` + jobA.String() + `","status":"RUNNING","of_tomorrow":{"a":1}}`))
	}
	if err := get(); err != nil {
		t.Errorf("a member that is not known yet: %v", err)
	}
}

func TestSubmitNamesItsJobSoThatARepeatMakesOne(t *testing.T) {
	var ids []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var j drover.NewJob
		if err := json.NewDecoder(r.Body).Decode(&j); err != nil {
			t.Error(err)
		}
		ids = append(ids, j.ID.String()+"/"+j.IdempotencyKey+"/"+string(j.Input))
		if len(ids) == 1 {
			panic(http.ErrAbortHandler) // done, but the answer is lost
		}
		answerJSON(w, 202, protocol.SubmitResponse{JobID: jobA, Status: drover.Pending, Replayed: len(ids) == 2})
	})
	s, err := c.Submit(t.Context(), drover.NewJob{Kind: "mail", Input: json.RawMessage(`{"n":9007199254740993,"h":"<&>"}`)})
	if err != nil || s.JobID != jobA || s.Status != drover.Pending || !s.Replayed {
		t.Errorf("got %+v, %v", s, err)
	}
	if len(ids) != 2 || ids[0] != ids[1] || !strings.HasPrefix(ids[0], "job_") || !strings.HasSuffix(ids[0], `{"n":9007199254740993,"h":"<&>"}`) {
		t.Errorf("the server saw %q", ids)
	}
	if _, err := c.Submit(t.Context(), drover.NewJob{Kind: "mail", IdempotencyKey: "k"}); err != nil || !strings.HasPrefix(ids[2], "/k/") {
		t.Errorf("with a key the server saw %q, %v", ids[2], err)
	}
	if _, err := c.Submit(t.Context(), drover.NewJob{Kind: "mail", Input: json.RawMessage(`{"a":`)}); !errors.Is(err, drover.ErrInvalid) {
		t.Errorf("an input that is not JSON: %v", err)
	}
}

func TestSubmitManyAnswersForEach(t *testing.T) {
	short := false
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var b protocol.BatchRequest
		json.NewDecoder(r.Body).Decode(&b)
		out := protocol.BatchResponse{}
		for _, j := range b.Jobs {
			it := protocol.BatchItem{JobID: j.ID, Status: drover.Pending}
			if j.Kind == "bad" {
				it = protocol.BatchItem{Error: protocol.FromError(drover.Errorf(drover.CodeValidation, "no"))}
			}
			out.Items = append(out.Items, it)
		}
		if short {
			out.Items = out.Items[1:]
		}
		answerJSON(w, 200, out)
	})
	jobs := []drover.NewJob{{Kind: "a"}, {Kind: "bad"}}
	got, err := c.SubmitMany(t.Context(), jobs)
	if err != nil || len(got) != 2 || got[0].JobID.IsZero() || got[0].Err != nil || !errors.Is(got[1].Err, drover.ErrInvalid) {
		t.Errorf("got %+v, %v", got, err)
	}
	if !jobs[0].ID.IsZero() {
		t.Error("the caller's jobs were changed")
	}
	short = true
	if _, err := c.SubmitMany(t.Context(), jobs); err == nil {
		t.Error("an answer too few was taken")
	}
	if got, err := c.SubmitMany(t.Context(), nil); got != nil || err != nil {
		t.Errorf("no jobs: %v, %v", got, err)
	}
	if _, err := c.SubmitMany(t.Context(), make([]drover.NewJob, protocol.MaxJobs+1)); !errors.Is(err, drover.ErrInvalid) {
		t.Errorf("too many jobs: %v", err)
	}
}

// script answers each request with the next of its steps, without a network.
type script struct {
	mu    sync.Mutex
	steps []any // an error, a *drover.Error (a problem), an int (a bare status) or what is answered as JSON
	at    []time.Time
	seen  []*http.Request
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Body != nil {
		io.Copy(io.Discard, r.Body)
		r.Body.Close()
	}
	s.at = append(s.at, time.Now())
	s.seen = append(s.seen, r)
	step := s.steps[0]
	if len(s.steps) > 1 {
		s.steps = s.steps[1:]
	}
	w := httptest.NewRecorder()
	switch v := step.(type) {
	case *drover.Error:
		refuse(w, v)
	case error:
		return nil, v
	case int:
		w.WriteHeader(v)
	case http.HandlerFunc:
		v(w, r)
	default:
		answerJSON(w, 200, v)
	}
	return w.Result(), nil
}

func scripted(t *testing.T, steps ...any) (*Client, *script) {
	t.Helper()
	s := &script{steps: steps}
	c, err := New(Config{URL: "http://drover.local", HTTP: &http.Client{Transport: s}})
	if err != nil {
		t.Fatal(err)
	}
	return c, s
}

// servers answers for several hosts, without a network.
type servers map[string]func() (*http.Response, error)

func (s servers) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		r.Body.Close()
	}
	return s[r.URL.Host]()
}

func TestClientGoesOnToTheNextServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []string
		s := servers{}
		down := func(err error) func() (*http.Response, error) {
			return func() (*http.Response, error) { return nil, err }
		}
		up := func() (*http.Response, error) {
			w := httptest.NewRecorder()
			answerJSON(w, 200, struct{}{})
			return w.Result(), nil
		}
		stopping := func() (*http.Response, error) {
			w := httptest.NewRecorder()
			w.Header().Set("Retry-After", "1")
			refuse(w, drover.Errorf(drover.CodeOverloaded, "stopping"))
			return w.Result(), nil
		}
		set := func(host string, do func() (*http.Response, error)) {
			s[host] = func() (*http.Response, error) { asked = append(asked, host); return do() }
		}
		c, err := New(Config{URL: "http://a, http://b/x,http://c", HTTP: &http.Client{Transport: s}})
		if err != nil {
			t.Fatal(err)
		}
		refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		for _, step := range []struct {
			a, b, c func() (*http.Response, error)
			call    func() error
			asked   string
			fails   bool
			within  time.Duration
		}{
			{a: up, asked: "a"},
			{a: down(refused), b: up, asked: "a b", within: 50 * time.Millisecond},
			{b: up, asked: "b"}, // it stays there
			{b: stopping, c: up, asked: "b c", within: 50 * time.Millisecond},
			{c: down(io.ErrUnexpectedEOF), a: stopping, b: up, asked: "c a b", within: 100 * time.Millisecond},
			{b: down(io.ErrUnexpectedEOF), asked: "b", fails: true, call: func() error { _, err := c.CreateToken(t.Context(), protocol.NewToken{}); return err }}, // it may have been carried out
			{c: up, asked: "c"}, // the next call goes elsewhere all the same
			{c: down(context.Canceled), asked: "c", fails: true, call: func() error { _, err := c.CreateToken(t.Context(), protocol.NewToken{}); return err }},
			{c: up, asked: "c"}, // that was our caller's doing
		} {
			asked = nil
			for host, do := range map[string]func() (*http.Response, error){"a": step.a, "b": step.b, "c": step.c} {
				if do == nil {
					do = func() (*http.Response, error) { t.Errorf("%s is asked", host); return up() }
				}
				set(host, do)
			}
			if step.call == nil {
				step.call = func() error { _, err := c.Job(t.Context(), jobA); return err }
			}
			began := time.Now()
			if err := step.call(); (err != nil) != step.fails {
				t.Errorf("want asked %s: %v", step.asked, err)
			}
			if got := strings.Join(asked, " "); got != step.asked || time.Since(began) > step.within {
				t.Errorf("asked %s in %v, want %s in %v", got, time.Since(began), step.asked, step.within)
			}
		}
		if c.URL() != "http://c" {
			t.Errorf("it uses %s, want http://c", c.URL())
		}
	})
	if _, err := New(Config{URL: "http://a,"}); err == nil {
		t.Error("an empty address among others is taken")
	}
}

func TestOnlyHarmlessRequestsAreRepeated(t *testing.T) {
	reset := errors.New("connection reset by peer")
	busy := drover.Errorf(drover.CodeOverloaded, "full")
	ok := struct{}{}
	calls := map[string]func(ctx context.Context, c *Client) error{
		"get":    func(ctx context.Context, c *Client) error { _, err := c.Job(ctx, jobA); return err },
		"cancel": func(ctx context.Context, c *Client) error { _, err := c.Cancel(ctx, jobA, Action{}); return err },
		"replay": func(ctx context.Context, c *Client) error { _, err := c.Replay(ctx, task, Replay{}); return err },
		"rerun": func(ctx context.Context, c *Client) error {
			_, err := c.Rerun(ctx, jobA, Rerun{Whole: true})
			return err
		},
		"mark": func(ctx context.Context, c *Client) error {
			_, err := c.Mark(ctx, task, Mark{Status: drover.Failed, Reason: "x"})
			return err
		},
		"settle": func(ctx context.Context, c *Client) error {
			_, err := c.Settle(ctx, protocol.SettleRequest{Session: 1})
			return err
		},
		"renew": func(ctx context.Context, c *Client) error { _, err := c.Renew(ctx, 1, drover.Renewal{}); return err },
		"token": func(ctx context.Context, c *Client) error {
			_, err := c.CreateToken(ctx, protocol.NewToken{})
			return err
		},
		"acquire": func(ctx context.Context, c *Client) error {
			_, err := c.Acquire(ctx, drover.Acquire{Session: 1})
			return err
		},
		"both": func(ctx context.Context, c *Client) error {
			_, err := c.Settle(ctx, protocol.SettleRequest{Session: 1, Acquire: &drover.Acquire{Session: 1}})
			return err
		},
		"logs": func(ctx context.Context, c *Client) error {
			return c.AppendLogs(ctx, drover.Held{TaskID: task}, make([]drover.LogLine, 1))
		},
	}
	harmless := []string{"get", "cancel", "replay", "rerun", "mark", "settle", "renew"}
	for name, call := range calls {
		for _, s := range []struct {
			what   string
			step   any
			always bool // the server did nothing
			never  bool
		}{
			{"reset", reset, false, false}, {"busy", busy, true, false}, {"a proxy's 503", 503, false, false}, {"429", 429, true, false}, {"504", 504, false, false},
			{"not found", drover.ErrNotFound, false, true}, {"internal", drover.Errorf(drover.CodeInternal, "x"), false, true},
			{"a page", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("<html>")) }), false, true},
		} {
			synctest.Test(t, func(t *testing.T) {
				c, script := scripted(t, s.step, ok)
				err := call(t.Context(), c)
				want := 1
				if !s.never && (s.always || slices.Contains(harmless, name)) {
					want = 2
				}
				if got := len(script.seen); got != want && !(name == "logs" && s.what == "a page") {
					t.Errorf("%s after %s: sent %d times, want %d (%v)", name, s.what, got, want, err)
				}
				if (err == nil) != (want == 2) && !(name == "logs" && s.what == "a page") {
					t.Errorf("%s after %s: %v", name, s.what, err)
				}
			})
		}
	}
}

func TestRepeatsOfAnActionHaveOneRequestID(t *testing.T) {
	var ids []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var a protocol.ActionRequest
		json.NewDecoder(r.Body).Decode(&a)
		ids = append(ids, a.RequestID)
		if len(ids) == 1 {
			refuse(w, drover.Errorf(drover.CodeOverloaded, "full"))
			return
		}
		answerJSON(w, 200, drover.Job{ID: jobA, Status: drover.Cancelled})
	})
	if _, err := c.Cancel(t.Context(), jobA, Action{Reason: "r"}); err != nil {
		t.Fatal(err)
	}
	if len(ids) != 2 || ids[0] == "" || ids[0] != ids[1] {
		t.Errorf("ids are %q", ids)
	}
}

func TestRepeatsWaitAsTheServerSays(t *testing.T) {
	busy := func(after time.Duration) *drover.Error {
		return &drover.Error{Code: drover.CodeOverloaded, RetryAfter: after}
	}
	header := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Retry-After", "7"); w.WriteHeader(429) })
	synctest.Test(t, func(t *testing.T) {
		c, s := scripted(t, busy(3*time.Second), header, errors.New("reset"), drover.Job{})
		if _, err := c.Job(t.Context(), jobA); err != nil {
			t.Fatal(err)
		}
		if a, b, d := s.at[1].Sub(s.at[0]), s.at[2].Sub(s.at[1]), s.at[3].Sub(s.at[2]); a != 3*time.Second || b != 7*time.Second || d > 400*time.Millisecond {
			t.Errorf("it waited %s, %s and %s", a, b, d)
		}
	})
	synctest.Test(t, func(t *testing.T) { // too long: the caller decides
		c, s := scripted(t, busy(time.Hour))
		_, err := c.Job(t.Context(), jobA)
		var e *drover.Error
		if !errors.As(err, &e) || e.RetryAfter != time.Hour || len(s.seen) != 1 {
			t.Errorf("got %v after %d requests", err, len(s.seen))
		}
	})
	synctest.Test(t, func(t *testing.T) { // the context would end first: the reason is more use than the deadline
		c, _ := scripted(t, busy(10*time.Second))
		ctx, done := context.WithTimeout(t.Context(), 5*time.Second)
		defer done()
		began := time.Now()
		if _, err := c.Job(ctx, jobA); !errors.Is(err, drover.ErrOverloaded) || time.Since(began) > 0 {
			t.Errorf("got %v after %s", err, time.Since(began))
		}
	})
	synctest.Test(t, func(t *testing.T) { // it gives up
		c, s := scripted(t, errors.New("reset"))
		if _, err := c.Job(t.Context(), jobA); err == nil || len(s.seen) != 4 {
			t.Errorf("got %v after %d requests", err, len(s.seen))
		}
	})
}

func TestBackoffStaysInItsBounds(t *testing.T) {
	b := backoff{100 * time.Millisecond, 5 * time.Second}
	for n := range 200 {
		if d := b.delay(n); d < 0 || d > b.most || n == 0 && d > b.first {
			t.Fatalf("delay %d is %s", n, d)
		}
	}
	b.delay(1 << 40)
}

func TestRetryAfterIsReadInBothForms(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for in, want := range map[string]time.Duration{
		"": 0, "5": 5 * time.Second, "-5": 0, "9999999999999": 24 * time.Hour, "soon": 0,
		"Thu, 01 Jan 2026 00:01:00 GMT": time.Minute, "Thu, 01 Jan 2015 00:01:00 GMT": 0,
	} {
		if got := retryAfter(in, now); got != want {
			t.Errorf("%q is %s, want %s", in, got, want)
		}
	}
}

func TestHangingServerIsGivenUp(t *testing.T) {
	release := make(chan struct{})
	c := serve(t, func(w http.ResponseWriter, r *http.Request) { <-release })
	defer close(release)
	c.timeout, c.tries = 50*time.Millisecond, 2
	began := time.Now()
	if _, err := c.Job(t.Context(), jobA); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 5*time.Second {
		t.Errorf("got %v", err)
	}
}

func TestConnectionsAreKept(t *testing.T) {
	var mu sync.Mutex
	ports := map[string]bool{}
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		ports[r.RemoteAddr] = true
		n := len(ports)
		mu.Unlock()
		if n%2 == 0 {
			refuse(w, drover.Errorf(drover.CodeNotFound, "no"))
			return
		}
		answerJSON(w, 200, drover.Job{ID: jobA, Status: drover.Running})
	})
	for range 20 {
		c.Job(t.Context(), jobA)
	}
	if len(ports) != 1 {
		t.Errorf("20 requests took %d connections", len(ports))
	}
}

func TestFiltersBecomeQueries(t *testing.T) {
	var got *url.URL
	c := serve(t, func(w http.ResponseWriter, r *http.Request) { got = r.URL; w.Write([]byte(`{"items":[]}`)) })
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("x", 3600))
	c.Jobs(t.Context(), JobsFilter{Status: []drover.Status{drover.Running, drover.Failed}, Pipeline: "p", Kind: "k", Labels: map[string]string{"team": "a b"}, CreatedAfter: at, List: List{Limit: 5, Cursor: "c+/="}})
	if want := "/v1/jobs?created_after=2026-01-02T02%3A04%3A05Z&cursor=c%2B%2F%3D&kind=k&label=team%3Aa+b&limit=5&pipeline=p&status=RUNNING%2CFAILED"; got.String() != want {
		t.Errorf("got %s, want %s", got, want)
	}
	c.Tasks(t.Context(), jobA, TasksFilter{Name: "a"})
	if want := "/v1/jobs/" + jobA.String() + "/tasks?name=a"; got.String() != want {
		t.Errorf("got %s, want %s", got, want)
	}
	c.Logs(t.Context(), LogsFilter{Task: task, Attempt: 2})
	if want := "/v1/tasks/" + task.String() + "/logs?attempt=2"; got.String() != want {
		t.Errorf("got %s, want %s", got, want)
	}
	c.Events(t.Context(), jobA, 7, 3)
	if want := "/v1/jobs/" + jobA.String() + "/events?after=7&limit=3"; got.String() != want {
		t.Errorf("got %s, want %s", got, want)
	}
	c.Pipeline(t.Context(), "../tokens?x=", 3)
	if want := "/v1/pipelines/..%2Ftokens%3Fx=?version=3"; got.String() != want {
		t.Errorf("got %s, want %s", got, want)
	}
	c.Artifacts(t.Context(), ArtifactsFilter{Job: jobA, Kind: "frame"})
	if want := "/v1/artifacts?job_id=" + jobA.String() + "&kind=frame"; got.String() != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestListsAreFollowedPageByPage(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		n := map[string]int{"": 0, "c1": 1, "c2": 2}[r.URL.Query().Get("cursor")]
		p := protocol.Page[drover.Queue]{Items: []drover.Queue{{Name: fmt.Sprint("q", n)}}}
		if n < 2 {
			p.NextCursor = fmt.Sprint("c", n+1)
		}
		answerJSON(w, 200, p)
	})
	qs, err := c.Queues(t.Context())
	if err != nil || len(qs) != 3 || qs[2].Name != "q2" {
		t.Errorf("got %v, %v", qs, err)
	}
	n := 0
	for _, err := range Items(func(cursor string) (protocol.Page[drover.Queue], error) {
		if cursor == "c2" {
			return protocol.Page[drover.Queue]{}, drover.ErrForbidden
		}
		return get[protocol.Page[drover.Queue]](t.Context(), c, "/v1/queues", List{Cursor: cursor}.query())
	}) {
		if n++; (err != nil) != (n == 3) {
			t.Errorf("item %d: %v", n, err)
		}
	}
	if n != 3 {
		t.Errorf("%d items came", n)
	}
}

func TestPipelinesAreSentAsTheyAre(t *testing.T) {
	status := 201
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if string(b) != "pipeline: p\n" || r.URL.Query().Get("file") != "p.yaml" || r.Header.Get("Content-Type") != protocol.MediaYAML {
			t.Errorf("got %q as %s for %s", b, r.Header.Get("Content-Type"), r.URL)
		}
		answerJSON(w, status, drover.Pipeline{Name: "p", Version: 1})
	})
	if p, err := c.ApplyPipeline(t.Context(), "p.yaml", []byte("pipeline: p\n")); err != nil || !p.Created {
		t.Errorf("got %+v, %v", p, err)
	}
	status = 200
	if p, err := c.ApplyPipeline(t.Context(), "p.yaml", []byte("pipeline: p\n")); err != nil || p.Created {
		t.Errorf("got %+v, %v", p, err)
	}
}

func TestWaitJobOutlivesLostConnectionsAndRestarts(t *testing.T) {
	running := drover.Job{ID: jobA, Status: drover.Running}
	waited := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Prefer") != "wait=20" {
			t.Errorf("Prefer is %q", r.Header.Get("Prefer"))
		}
		time.Sleep(20 * time.Second)
		w.Header().Set("Preference-Applied", "wait=20")
		answerJSON(w, 200, running)
	})
	down := errors.New("connection refused")
	synctest.Test(t, func(t *testing.T) {
		steps := []any{waited, running, down}
		for range 20 {
			steps = append(steps, down, 502)
		}
		c, s := scripted(t, append(steps, drover.Errorf(drover.CodeInternal, "starting"), waited, drover.Job{ID: jobA, Status: drover.Failed})...)
		j, err := c.WaitJob(t.Context(), jobA)
		if err != nil || j.Status != drover.Failed {
			t.Errorf("got %+v, %v", j, err)
		}
		if a := s.at[2].Sub(s.at[1]); a < 200*time.Millisecond {
			t.Errorf("a server that does not wait was asked again after %s", a)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		c, _ := scripted(t, drover.ErrNotFound)
		if _, err := c.WaitJob(t.Context(), jobA); !errors.Is(err, drover.ErrNotFound) {
			t.Errorf("got %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		c, _ := scripted(t, down)
		ctx, done := context.WithTimeout(t.Context(), time.Minute)
		defer done()
		if _, err := c.WaitJob(ctx, jobA); !errors.Is(err, context.DeadlineExceeded) && err == nil {
			t.Errorf("got %v", err)
		}
	})
}

func TestHealthyAsksOnce(t *testing.T) {
	c, s := scripted(t, 503)
	if err := c.Healthy(t.Context()); err == nil || len(s.seen) != 1 {
		t.Errorf("got %v after %d requests", err, len(s.seen))
	}
}
