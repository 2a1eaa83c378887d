package embedded

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// transport carries requests to a handler in this process. The answer's body
// streams: the handler writes while the client reads.
type transport struct {
	handler http.Handler
	// as makes the request's context that of a known caller.
	as       func(context.Context) context.Context
	handlers sync.WaitGroup
}

// RoundTrip serves a request.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(t.as(req.Context()))
	in := req.Clone(ctx)
	in.RequestURI = req.URL.RequestURI()
	in.RemoteAddr = "in-process"
	in.Proto, in.ProtoMajor, in.ProtoMinor = "HTTP/1.1", 1, 1
	in.Header.Del("Authorization") // who asks is known
	if in.Body == nil {
		in.Body = http.NoBody
	}
	body, out := io.Pipe()
	w := &answer{head: req.Method == http.MethodHead, header: http.Header{}, begun: make(chan struct{}), body: out}
	unblock := context.AfterFunc(ctx, func() { _ = out.CloseWithError(context.Cause(ctx)) })
	t.handlers.Go(func() {
		defer unblock()
		defer func() { _ = in.Body.Close() }() // a transport closes what it sends
		w.end(t.serve(w, in))
	})
	select {
	case <-w.begun:
	case <-req.Context().Done():
		cancel()
		return nil, context.Cause(req.Context())
	}
	res := &http.Response{
		Status: strconv.Itoa(w.status) + " " + http.StatusText(w.status), StatusCode: w.status,
		Proto: in.Proto, ProtoMajor: 1, ProtoMinor: 1, Header: w.sent, Request: req, ContentLength: -1,
		Body: &answerBody{body, cancel},
	}
	if n, err := strconv.ParseInt(w.sent.Get("Content-Length"), 10, 64); err == nil {
		res.ContentLength = n
	}
	return res, nil
}

// serve calls the handler; an answer that is cut off is an error.
func (t *transport) serve(w *answer, r *http.Request) (err error) {
	defer func() {
		if p := recover(); p != nil {
			if p != http.ErrAbortHandler { //nolint:errorlint // the value of a panic, as net/http compares it
				panic(p) // the API recovers its own
			}
			err = io.ErrUnexpectedEOF
		}
	}()
	t.handler.ServeHTTP(w, r)
	return nil
}

// CloseIdleConnections does nothing: there are none.
func (t *transport) CloseIdleConnections() {}

// wait returns when no request is being served.
func (t *transport) wait() { t.handlers.Wait() }

// answer is the response writer of one request. Only its handler uses it, up to
// begun, behind which sent and status stand still.
type answer struct {
	head   bool
	header http.Header
	once   sync.Once
	begun  chan struct{}
	sent   http.Header
	status int
	body   *io.PipeWriter
}

// Header returns the headers; changing them has no effect once the answer has begun.
func (w *answer) Header() http.Header { return w.header }

// WriteHeader begins the answer.
func (w *answer) WriteHeader(status int) {
	if status < 200 { // an interim answer; nobody here waits for one
		return
	}
	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.begun)
	})
}

// Write passes b on and returns when the client has read it.
func (w *answer) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.head || w.status == http.StatusNoContent || w.status == http.StatusNotModified {
		return len(b), nil
	}
	return w.body.Write(b)
}

// Flush begins the answer; what is written does not wait.
func (w *answer) Flush() { w.WriteHeader(http.StatusOK) }

func (w *answer) end(err error) {
	if err != nil && w.status == 0 {
		w.header = http.Header{}
		w.WriteHeader(http.StatusInternalServerError)
	}
	w.WriteHeader(http.StatusOK)
	if err == nil {
		err = io.EOF
	}
	_ = w.body.CloseWithError(err) // it never fails
}

// answerBody is what the client reads.
type answerBody struct {
	*io.PipeReader
	cancel context.CancelFunc
}

// Close ends the handler, if it has not ended.
func (b *answerBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

// versionOf splits "name@3"; without a version it is 0, the newest.
func versionOf(pipeline string) (name string, version int) {
	name, v, ok := strings.Cut(pipeline, "@")
	if !ok {
		return name, 0
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		return pipeline, 0 // no name has an @ in it
	}
	return name, n
}
