package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if programDir != "" {
		os.RemoveAll(programDir)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// testTime is "now" for commands under test.
var testTime = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

// shell runs command lines in this process, in an environment of its own.
type shell struct {
	env      map[string]string
	stdin    string
	terminal bool
}

// newShell returns a shell whose home and working folder are empty.
func newShell(t *testing.T) *shell {
	t.Helper()
	t.Chdir(t.TempDir())
	return &shell{env: map[string]string{"HOME": t.TempDir()}}
}

// run runs a command line and returns what it printed and its exit code.
func (s *shell) run(words ...string) (stdout, stderr string, code int) {
	var out, err bytes.Buffer
	a := &app{
		in: strings.NewReader(s.stdin), out: &out, err: &err, env: func(name string) string { return s.env[name] },
		now: func() time.Time { return testTime }, terminal: s.terminal, size: func() (int, int) { return 100, 24 },
	}
	code = a.run(words)
	return out.String(), err.String(), code
}

// fakeServer answers "METHOD /path?query" with JSON; a value that begins with a
// digit is a status and a problem code.
func fakeServer(t *testing.T, answers map[string]string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Method + " " + r.URL.RequestURI()
		answer, ok := answers[key]
		if !ok {
			t.Errorf("unexpected request %s", key)
			answer = "404 not-found"
		}
		if answer[0] >= '0' && answer[0] <= '9' {
			code := answer[4:]
			w.Header().Set("Content-Type", "application/problem+json")
			status := 0
			for _, d := range answer[:3] {
				status = status*10 + int(d-'0')
			}
			w.WriteHeader(status)
			b, err := json.Marshal(map[string]any{"type": "urn:drover:problem:" + code, "title": "Refused", "status": status, "code": code, "detail": "said the server"})
			if err != nil {
				t.Error(err)
			}
			w.Write(b)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(answer))
	}))
	t.Cleanup(s.Close)
	return s
}
