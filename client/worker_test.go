package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

func TestWorkerCallsGoWhereTheyBelong(t *testing.T) {
	var method, path, body string
	answer := `{}`
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		method, path, body = r.Method, r.URL.Path, string(b)
		io.WriteString(w, answer)
	})
	ctx, h := t.Context(), drover.Held{TaskID: task, LeaseVersion: 3}
	check := func(what string, err error, m, p, b string) {
		t.Helper()
		if err != nil || method != m || path != p || b != "*" && body != b {
			t.Errorf("%s: %s %s %s, %v", what, method, path, body, err)
		}
	}
	answer = `{"worker_id":"wrk_42","lease_for":"30s","renew_every":"10s"}`
	s, err := c.OpenSession(ctx, drover.NewSession{Worker: "w", Queues: []string{"cpu"}, Slots: 1})
	check("open", err, "POST", "/v1/workers", `{"worker":"w","queues":["cpu"],"slots":1}`)
	if s.ID != 42 || s.LeaseFor.Std() != 30*time.Second {
		t.Errorf("session is %+v", s)
	}
	answer = `{}`
	_, err = c.Renew(ctx, 42, drover.Renewal{Acquired: 3})
	check("renew", err, "POST", "/v1/workers/wrk_42/renew", `{"held":[],"acquired":3}`)
	check("close", c.CloseSession(ctx, 42), "DELETE", "/v1/workers/wrk_42", "")
	_, err = c.Acquire(ctx, drover.Acquire{Session: 42, Max: 1, Number: 1})
	check("acquire", err, "POST", "/v1/leases/acquire", `{"worker_id":"wrk_42","max":1,"number":1}`)
	_, err = c.Settle(ctx, protocol.SettleRequest{Session: 42})
	check("settle", err, "POST", "/v1/leases/settle", `{"worker_id":"wrk_42","outcomes":[]}`)
	check("progress", c.SetProgress(ctx, h, drover.Progress{Ratio: 0.5, Message: "m"}), "POST", "/v1/leases/"+task.String()+"/progress", `{"lease_version":3,"ratio":0.5,"message":"m"}`)
	check("heartbeat", c.Heartbeat(ctx, h, json.RawMessage(`{"<": 1}`)), "POST", "/v1/leases/"+task.String()+"/heartbeat", `{"lease_version":3,"details":{"<":1}}`)
	check("logs", c.AppendLogs(ctx, h, []drover.LogLine{{Level: "info", Text: "<a>"}}), "POST", "/v1/leases/"+task.String()+"/logs",
		`{"lease_version":3,"lines":[{"at":"0001-01-01T00:00:00Z","level":"info","text":"<a>"}]}`)
}

func TestClosingAClosedSessionIsNoError(t *testing.T) {
	c, _ := scripted(t, drover.ErrNotFound)
	if err := c.CloseSession(t.Context(), 1); err != nil {
		t.Error(err)
	}
}

func TestUploadCarriesWhatIsKnown(t *testing.T) {
	var tries atomic.Int32
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if tries.Add(1) == 1 {
			panic(http.ErrAbortHandler)
		}
		q := r.URL.Query()
		var meta struct{ Title string }
		if err := json.Unmarshal([]byte(r.Header.Get(protocol.HeaderArtifactMetadata)), &meta); err != nil || meta.Title != "漢🙂\n" {
			t.Errorf("metadata is %q, %v", r.Header.Get(protocol.HeaderArtifactMetadata), err)
		}
		if err != nil || string(b) != "hello" || q.Get("name") != "a b/c.txt" || q.Get("kind") != "text" || q.Get("lease_version") != "3" || r.Header.Get("Content-Type") != "text/plain" {
			t.Errorf("got %q %s %v, %v", b, r.URL, r.Header, err)
		}
		answerJSON(w, 201, drover.Artifact{ID: art, URI: drover.URIOf(art)})
	})
	file := strings.NewReader("xxhello")
	file.Seek(2, io.SeekStart)
	a, err := c.PutArtifact(t.Context(), drover.Held{TaskID: task, LeaseVersion: 3}, drover.Artifact{Name: "a b/c.txt", Kind: "text", MediaType: "text/plain", Metadata: json.RawMessage("{\n\t\"title\":\"漢🙂\\n\"\n}")}, file)
	if err != nil || a.ID != art || tries.Load() != 2 {
		t.Errorf("got %+v, %v after %d tries", a, err, tries.Load())
	}
	tries.Store(0)
	_, err = c.PutArtifact(t.Context(), drover.Held{TaskID: task, LeaseVersion: 3}, drover.Artifact{Name: "a"}, io.MultiReader(strings.NewReader("hello")))
	if err == nil || tries.Load() != 1 {
		t.Errorf("a reader that cannot seek was sent %d times, %v", tries.Load(), err)
	}
}

func TestUploadGivesTheReaderBack(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) { refuse(w, drover.Errorf(drover.CodeLeaseLost, "gone")) })
	for range 20 {
		r := &busyReader{}
		_, err := c.PutArtifact(t.Context(), drover.Held{TaskID: task}, drover.Artifact{Name: "a"}, r)
		before := r.reads // no lock: the race detector says whether it is still read
		if !errors.Is(err, drover.ErrLeaseLost) {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
		if r.reads != before {
			t.Fatal("the reader is read after the upload returned")
		}
	}
}

type busyReader struct{ reads int }

func (b *busyReader) Read(p []byte) (int, error) { b.reads++; return len(p), nil }

func TestStalledUploadIsGivenUp(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body); <-r.Context().Done() })
	c.timeout, c.idle, c.tries = 20*time.Millisecond, 20*time.Millisecond, 1
	_, err := c.PutArtifact(t.Context(), drover.Held{TaskID: task}, drover.Artifact{Name: "a"}, strings.NewReader("x"))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "nothing moved") {
		t.Errorf("got %v", err)
	}
}

func TestDownloadIsCompared(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789"), 10_000)
	sum := sha256.Sum256(content)
	of := drover.Artifact{ID: art, URI: drover.URIOf(art), Size: int64(len(content)), SHA256: hex.EncodeToString(sum[:])}
	serveContent := func(w http.ResponseWriter, _ *http.Request) { w.Write(content) }
	var busy atomic.Int32
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/content") {
			answerJSON(w, 200, of)
			return
		}
		if busy.Add(1) == 1 {
			refuse(w, drover.Errorf(drover.CodeOverloaded, "full"))
			return
		}
		serveContent(w, r)
	})
	read := func() ([]byte, error) {
		r, a, err := c.OpenArtifact(t.Context(), art)
		if err != nil {
			return nil, err
		}
		defer r.Close()
		if a.SHA256 != of.SHA256 {
			t.Errorf("artifact is %+v", a)
		}
		return io.ReadAll(r)
	}
	if b, err := read(); err != nil || !bytes.Equal(b, content) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	serveContent = func(w http.ResponseWriter, _ *http.Request) { w.Write(append([]byte("x"), content[1:]...)) }
	if _, err := read(); err == nil || !strings.Contains(err.Error(), "are not the artifact's") {
		t.Errorf("other content: %v", err)
	}
	serveContent = func(w http.ResponseWriter, _ *http.Request) { w.Write(content[:100]) }
	if _, err := read(); err == nil {
		t.Error("half the content was taken")
	}
	serveContent = func(w http.ResponseWriter, r *http.Request) {
		w.Write(content[:100])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
	c.idle = 50 * time.Millisecond
	if _, err := read(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a stalled download: %v", err)
	}
	serveContent = func(w http.ResponseWriter, _ *http.Request) { refuse(w, drover.Errorf(drover.CodeNotFound, "deleted")) }
	if _, err := read(); !errors.Is(err, drover.ErrNotFound) {
		t.Errorf("a missing one: %v", err)
	}
}
