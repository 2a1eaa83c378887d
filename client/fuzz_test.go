package client

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

// FuzzStream reads anything as a stream of events, whole and in small pieces.
func FuzzStream(f *testing.F) {
	f.Add([]byte("\ufeffid: 1\r\nevent: job.accepted\rdata: {\ndata: }\n\n: hello\n\nretry: 10\ndata\n\n"))
	f.Add([]byte("id: 1\x00\ndata:x\n\ndata: cut off"))
	f.Fuzz(func(t *testing.T, b []byte) {
		whole, pieces := newSSE(bytes.NewReader(b)), newSSE(&trickle{b})
		for n := 0; ; n++ {
			m, err := whole.next()
			again, err2 := pieces.next()
			if (err == nil) != (err2 == nil) || m.id != again.id || m.name != again.name || !bytes.Equal(m.data, again.data) {
				t.Fatalf("%+v, %v; in pieces %+v, %v", m, err, again, err2)
			}
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, errTooLong) {
					t.Fatal(err)
				}
				return
			}
			if n > len(b) || bytes.ContainsAny(m.data, "\r") || len(m.data) > len(b) {
				t.Fatalf("message %d of %d bytes: %+v", n, len(b), m)
			}
		}
	})
}

// trickle gives a byte at a time.
type trickle struct{ b []byte }

func (r *trickle) Read(p []byte) (int, error) {
	if len(r.b) == 0 {
		return 0, io.EOF
	}
	if len(p) == 0 {
		return 0, nil
	}
	p[0], r.b = r.b[0], r.b[1:]
	return 1, nil
}

// FuzzRefusal reads anything as a refusal: the error has a code and a text, and
// a time to wait that can be waited.
func FuzzRefusal(f *testing.F) {
	f.Add(429, "application/problem+json", "5", []byte(`{"status":429,"code":"overloaded","detail":"busy","retry_after":"1s"}`))
	f.Add(502, "text/html", "Fri, 31 Dec 9999 23:59:59 GMT", []byte(`<html>`))
	f.Add(301, "", "-1", []byte(`null`))
	f.Add(400, "application/json; charset=x", "99999999999999999999", []byte(`{"code":"validation","errors":[{"field":"a","message":"b"}],"status":-1}`))
	f.Fuzz(func(t *testing.T, status int, media, after string, b []byte) {
		c, server := &Client{}, &url.URL{Scheme: "http", Host: "h"}
		res := &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {media}, "Retry-After": {after}, "Location": {after}}, Body: io.NopCloser(bytes.NewReader(b))}
		err := c.refused(call{method: "GET", path: "/"}, server, res)
		var e *drover.Error
		if !errors.As(err, &e) || e.Code == "" || err.Error() == "" {
			t.Fatalf("%d %q: %#v", status, b, err)
		}
		if e.RetryAfter < 0 {
			t.Errorf("%d %q, Retry-After %q: wait %v", status, b, after, e.RetryAfter)
		}
		if d := retryAfter(after, time.Unix(0, 0)); d < 0 || d > 24*time.Hour {
			t.Errorf("Retry-After %q: %v", after, d)
		}
	})
}

// FuzzAnswers reads anything as an answer.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte(`{"items":[{"job_id":"job_01ARZ3NDEKTSV4RRFFQ69G5FAV"}],"next_cursor":"x"}`))
	f.Add([]byte(`{"leases":[{"task_id":"task_01ARZ3NDEKTSV4RRFFQ69G5FAV","lease_version":1}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, out := range []any{new(protocol.Page[drover.Job]), new(protocol.AcquireResponse), new(protocol.SettleResponse), new(protocol.BatchResponse), new(drover.Renewed), new(drover.Job)} {
			if err := decodeAnswer(call{}, b, out); err != nil && err.Error() == "" {
				t.Errorf("%q: an error without words", b)
			}
		}
	})
}
