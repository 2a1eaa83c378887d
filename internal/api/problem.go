package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/protocol"
)

// refuse answers with the problem that tells err. Faults of the server are
// logged under the trace id that the problem carries, and their text stays here.
func (a *API) refuse(w http.ResponseWriter, r *http.Request, err error) {
	status := 0 // where it is not that of the code
	switch {
	case drover.CodeOf(err) != "" || gone(r.Context(), err):
	case engine.IsAway(err):
		a.log.WarnContext(r.Context(), "request refused: the database is away", "method", r.Method, "path", r.URL.Path, "trace_id", traceOf(r.Context()), "err", err)
		err = drover.Errorf(drover.CodeOverloaded, "the database cannot be reached; nothing was done: ask again")
	case engine.IsUnknown(err): // not 503, which says that nothing was done
		a.log.WarnContext(r.Context(), "request without an outcome", "method", r.Method, "path", r.URL.Path, "trace_id", traceOf(r.Context()), "err", err)
		err = drover.Errorf(drover.CodeOverloaded, "the database did not answer in time; the request may have been carried out: ask again with the same key or id")
		status = http.StatusGatewayTimeout
	}
	p := protocol.FromError(err)
	if status != 0 {
		p.Status, p.Title = status, statusTitles[status]
	}
	var media errMedia
	if errors.As(err, &media) {
		p.Status, p.Title = http.StatusUnsupportedMediaType, statusTitles[http.StatusUnsupportedMediaType]
	}
	p.Instance = r.URL.EscapedPath()
	p.TraceID = traceOf(r.Context())
	if p.RetryAfter == 0 && (p.Code == drover.CodeOverloaded || p.Code == drover.CodeIdempotencyInUse) {
		p.RetryAfter = drover.Duration(time.Second)
	}
	if p.Status >= 500 && drover.CodeOf(err) == "" && !gone(r.Context(), err) {
		a.log.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", r.URL.Path, "status", p.Status, "trace_id", p.TraceID, "err", err)
	}
	writeProblem(w, r, p)
}

// gone reports whether err is only that the client left.
func gone(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, context.Canceled)
}

func writeProblem(w http.ResponseWriter, r *http.Request, p *protocol.Problem) {
	h := w.Header()
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(p.RetryAfter.Std().Seconds()))))
	}
	if p.Policy != "" && p.Quota > 0 { // draft-ietf-httpapi-ratelimit-headers
		h.Set("RateLimit-Policy", fmt.Sprintf("%q;q=%d", p.Policy, p.Quota))
		h.Set("RateLimit", fmt.Sprintf("%q;r=0;t=%d", p.Policy, int(math.Ceil(p.RetryAfter.Std().Seconds()))))
	}
	h.Del("ETag")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Type", protocol.MediaProblem)
	body, err := json.Marshal(p)
	if err != nil { // a problem is made of strings and numbers
		panic(err)
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // a client that left gets nothing
	}
}

// recovered turns a panic into a problem and a line in the log.
func (a *API) recovered(w *response, r *http.Request, value any, stack []byte) {
	a.log.LogAttrs(r.Context(), slog.LevelError, "request panicked",
		slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.String("trace_id", traceOf(r.Context())),
		slog.Any("panic", value), slog.String("stack", string(stack)))
	if w.status != 0 {
		panic(http.ErrAbortHandler) // the answer has begun: cut it off, so that nobody takes it for whole
	}
	p := protocol.FromError(errors.New("panic"))
	p.Instance, p.TraceID = r.URL.EscapedPath(), traceOf(r.Context())
	writeProblem(w, r, p)
}
