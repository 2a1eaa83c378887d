package main

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/drover-dev/drover"
)

// Several servers may be named at once: whoever answers is asked, by commands and
// by workers; doctor looks at each.
func TestSeveralServersAreNamedAtOnce(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.dev()
	alive, err := readDevFile(filepath.Join(f.path, defaultState))
	if err != nil {
		t.Fatal(err)
	}
	server, token := "http://"+freeAddress(t)+","+alive.URL, alive.Token
	job := f.must(0, "job", "submit", "--kind", "exec", "--queue", "far", "--input", `{"command":["true"]}`, "-o", "name", "--url", server, "--token", token)
	w := f.start("worker", "run", "--exec", "--queue", "far", "--url", server, "--token", token)
	f.must(0, "job", "wait", job, "--timeout", "30s", "--url", server, "--token", token)
	w.signal(syscall.SIGTERM)
	if code := w.wait(t); code != 0 {
		t.Errorf("the worker ended with %d, want 0", code)
	}

	out, _, code := f.try("doctor", "-o", "json", "--url", server, "--token", token)
	if code != exitError || strings.Count(out, `"server"`) != 2 || !strings.Contains(out, `"token"`) {
		t.Errorf("doctor ended with %d: %s; want 1, a line for each server, and what the living one says", code, out)
	}

	f.must(0, "context", "set", "both", "--url", server)
	if got := get[[]drover.Job](f, "job", "list", "--context", "both", "--token", token); len(got) != 1 {
		t.Errorf("%d jobs are listed, want 1", len(got))
	}
}
