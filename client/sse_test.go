package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-dev/drover"
)

func TestStreamIsReadAsTheStandardSays(t *testing.T) {
	in := "\ufeff: hello\r\n\r\nid: 1\nevent: a\ndata: x\ndata:y\ndata\n\n" + // two values and an empty one
		"data: z\rid: 2\r\r" + "id: 3\n\n" + "retry: 1500\nretry: x\ndata:  two spaces\nunknown: 1\n\n" + "id: 4\x00\ndata: 5\n\n" + "data: cut off"
	s := newSSE(iotestOneByte{strings.NewReader(in)})
	for i, want := range []message{{"1", "a", []byte("x\ny\n")}, {"2", "", []byte("z")}, {"", "", []byte(" two spaces")}, {"", "", []byte("5")}} {
		got, err := s.next()
		if err != nil || got.id != want.id || got.name != want.name || string(got.data) != string(want.data) {
			t.Errorf("event %d is %q %q %q, %v", i, got.id, got.name, got.data, err)
		}
	}
	if _, err := s.next(); err != io.EOF {
		t.Errorf("the end is %v", err)
	}
	if s.retry != 1500*time.Millisecond {
		t.Errorf("retry is %s", s.retry)
	}
}

type iotestOneByte struct{ r io.Reader }

func (o iotestOneByte) Read(p []byte) (int, error) { return o.r.Read(p[:1]) }

func TestEndlessLinesAreRefused(t *testing.T) {
	if _, err := newSSE(endless("x")).next(); err != errTooLong {
		t.Errorf("an endless line: %v", err)
	}
	if _, err := newSSE(endless("data: " + strings.Repeat("x", 1000) + "\n")).next(); err != errTooLong {
		t.Errorf("an endless event: %v", err)
	}
}

func endless(s string) io.Reader { return &repeater{s: s} }

type repeater struct {
	s  string
	at int
}

func (r *repeater) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = r.s[r.at%len(r.s)]
		r.at++
	}
	return len(p), nil
}

func event(n int64, typ drover.EventType) string {
	return fmt.Sprintf("id: %d\nevent: %s\ndata: {\"job_id\":%q,\"sequence\":%d,\"type\":%q,\"at\":\"2026-01-01T00:00:00Z\"}\n\n", n, typ, jobA, n, typ)
}

// stream answers with text and then ends as err says.
func stream(after string, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Last-Event-ID"); got != after {
			panic("Last-Event-ID is " + got + ", want " + after)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, text)
	}
}

func TestWatchSeesEveryEventOnceAcrossConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("connection refused")
		running := drover.Job{ID: jobA, Status: drover.Running, Events: 2}
		c, _ := scripted(t,
			down,    // the server is not up
			running, // is it final? no
			stream("", event(1, drover.JobAccepted)+": heartbeat\n\n"+event(2, drover.TaskRetryScheduled)+"id: 3\ndata: {\"job"), // cut
			stream("2", event(2, drover.TaskRetryScheduled)+event(3, drover.JobFailed)+event(4, drover.JobReopened)),             // one again; not the end
			drover.Errorf(drover.CodeOverloaded, "starting"),
			running,
			stream("4", "event: progress\ndata: {\"type\":\"task.progressed\"}\n\n"+event(5, drover.TaskSucceeded)+event(6, drover.JobSucceeded)),
		)
		var seen []int64
		err := c.Watch(t.Context(), jobA, 0, func(e drover.Event) error { seen = append(seen, e.Seq); return nil })
		if err != nil || !slices.Equal(seen, []int64{1, 2, 3, 4, 0, 5, 6}) {
			t.Errorf("saw %v, %v", seen, err)
		}
	})
}

func TestWatchEndsWhereNothingFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := scripted(t, stream("6", ""), drover.Job{ID: jobA, Status: drover.Succeeded, Events: 6})
		if err := c.Watch(t.Context(), jobA, 6, func(drover.Event) error { t.Error("an event came"); return nil }); err != nil {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		c, s := scripted(t, 204)
		if err := c.Watch(t.Context(), jobA, 6, func(drover.Event) error { t.Error("an event came"); return nil }); err != nil || len(s.seen) != 1 {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		c, _ := scripted(t, drover.ErrNotFound)
		if err := c.Watch(t.Context(), jobA, 0, func(drover.Event) error { return nil }); !errors.Is(err, drover.ErrNotFound) {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		stop := errors.New("enough")
		c, _ := scripted(t, stream("", event(1, drover.JobAccepted)+event(2, drover.JobFailed)))
		if err := c.Watch(t.Context(), jobA, 0, func(drover.Event) error { return stop }); err != stop {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		c, _ := scripted(t, stream("", "data: not json\n\n"))
		if err := c.Watch(t.Context(), jobA, 0, func(drover.Event) error { return nil }); err == nil {
			t.Error("nonsense was taken")
		}
	})
}

func TestWatchLeavesASilentStream(t *testing.T) {
	n := 0
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") != "text/event-stream" {
			answerJSON(w, 200, drover.Job{ID: jobA, Status: drover.Running})
			return
		}
		n++
		if n == 1 {
			io.WriteString(w, event(1, drover.JobAccepted))
			w.(http.Flusher).Flush()
			<-r.Context().Done() // never says anything again
			return
		}
		io.WriteString(w, event(2, drover.JobSucceeded))
	})
	c.idle = 50 * time.Millisecond
	var seen []int64
	err := c.Watch(t.Context(), jobA, 0, func(e drover.Event) error { seen = append(seen, e.Seq); return nil })
	if err != nil || !slices.Equal(seen, []int64{1, 2}) || n != 2 {
		t.Errorf("saw %v, %v", seen, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	n = 0
	if err := c.Watch(ctx, jobA, 0, func(drover.Event) error { cancel(); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("after its context ended: %v", err)
	}
}
