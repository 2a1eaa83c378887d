package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	jsonv1 "github.com/go-json-experiment/json/v1"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

// call is one request and how to treat it.
type call struct {
	method string
	path   string // escaped, from the root
	query  url.Values
	header http.Header
	body   []byte
	media  string // content type of body
	// repeat says that sending it again does no harm. Otherwise it is sent again
	// only if it never reached the server or the server said so.
	repeat bool
	// wait is how long the server may take before it answers, above the timeout.
	wait time.Duration
	// vital calls have connections of their own.
	vital bool
}

// backoff draws the delay before the nth repeat evenly from zero to a ceiling
// that doubles.
type backoff struct{ first, most time.Duration }

func (b backoff) delay(n int) time.Duration {
	ceiling := b.most
	if n < 30 && b.first<<n < b.most {
		ceiling = b.first << n
	}
	return time.Duration(rand.Int64N(int64(ceiling) + 1))
}

// longestRetryAfter is how long a client waits because a server says so; beyond
// it the refusal goes to the caller, who can read the time in it.
const longestRetryAfter = 30 * time.Second

// answer is a response whose status is 2xx, read to its end.
type answer struct {
	status int
	header http.Header
}

// do sends a call until it is answered and decodes the answer into out, unless
// that is nil.
func (c *Client) do(ctx context.Context, k call, out any) (answer, error) {
	for n := 0; ; n++ {
		from := c.at.Load()
		a, err := c.once(ctx, k, out)
		if err == nil {
			return a, nil
		}
		delay, again := c.again(k, n, err)
		if n+1 < len(c.bases) && c.at.Load() != from { // the other server may be well
			delay = min(delay, 50*time.Millisecond)
		}
		if !again || ctx.Err() != nil {
			return a, err
		}
		if end, ok := ctx.Deadline(); ok && time.Until(end) <= delay {
			return a, err
		}
		if err := sleep(ctx, delay); err != nil {
			return a, err
		}
	}
}

// again decides whether a failed call is sent once more, and when.
func (c *Client) again(k call, n int, err error) (time.Duration, bool) {
	if n+1 >= c.tries {
		return 0, false
	}
	var r *refusal
	if errors.As(err, &r) {
		undone := r.status == http.StatusTooManyRequests || r.status == http.StatusServiceUnavailable && r.ours
		passing := r.status == http.StatusBadGateway || r.status == http.StatusServiceUnavailable || r.status == http.StatusGatewayTimeout ||
			r.reason.Code == drover.CodeIdempotencyInUse
		if !undone && !(passing && k.repeat) || r.reason.RetryAfter > longestRetryAfter {
			return 0, false
		}
		return max(r.reason.RetryAfter, c.backoff.delay(n)), true
	}
	if k.repeat && !errors.As(err, new(*answerError)) || neverSent(err) {
		return c.backoff.delay(n), true
	}
	return 0, false
}

// neverSent reports whether err is of making the connection.
func neverSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" || errors.Is(err, syscall.ECONNREFUSED)
}

// sleep waits for d or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// refusal is a reason with what HTTP said about it.
type refusal struct {
	reason *drover.Error
	status int
	ours   bool // a problem of Drover's, not of something in between
}

// Error returns the reason.
func (r *refusal) Error() string { return r.reason.Error() }

// Unwrap returns the reason.
func (r *refusal) Unwrap() error { return r.reason }

// answerError is an answer that cannot be understood; asking again gives the same.
type answerError struct{ err error }

// Error says what is wrong with the answer.
func (e *answerError) Error() string { return e.err.Error() }

// Unwrap returns the reason.
func (e *answerError) Unwrap() error { return e.err }

func (c *Client) once(ctx context.Context, k call, out any) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout+k.wait)
	defer cancel()
	var body io.Reader
	if k.body != nil {
		body = bytes.NewReader(k.body)
	}
	res, err := c.send(ctx, k, body)
	if err != nil {
		return answer{}, err
	}
	defer drain(res.Body)
	a := answer{res.StatusCode, res.Header}
	if out == nil {
		return a, nil
	}
	text, err := readAll(res.Body, protocol.MaxAnswer)
	if err != nil {
		return a, wrapped(k, err)
	}
	return a, decodeAnswer(k, text, out)
}

// decodeAnswer reads an answer as encoding/json does, and faster:
// a worker's answers hold hundreds of leases.
func decodeAnswer(k call, text []byte, out any) error {
	if err := jsonv2.Unmarshal(text, out, jsonv1.DefaultOptionsV1()); err != nil {
		return wrapped(k, &answerError{fmt.Errorf("read the answer: %w", err)})
	}
	return nil
}

// send makes one request. An answer that is not 2xx becomes an error and its
// body is closed.
func (c *Client) send(ctx context.Context, k call, body io.Reader) (*http.Response, error) {
	base, at := c.base()
	to := base.String() + k.path
	if len(k.query) > 0 {
		to += "?" + k.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, k.method, to, body)
	if err != nil {
		return nil, wrapped(k, err)
	}
	for name, values := range k.header {
		req.Header[name] = values
	}
	if k.media != "" {
		req.Header.Set("Content-Type", k.media)
	}
	if req.Header.Get("Accept") == "" {
		req.Header.Set("Accept", protocol.MediaJSON+", "+protocol.MediaProblem)
	}
	req.Header.Set("User-Agent", c.userAgent)
	if token := c.token(); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	h := c.http
	if k.vital {
		h = c.vital
	}
	res, err := h.Do(req)
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			c.leave(at)
		}
		var e *url.Error
		if errors.As(err, &e) { // the method and the path are told by us
			err = e.Err
		}
		return nil, wrapped(k, err)
	}
	if res.StatusCode/100 != 2 {
		defer drain(res.Body)
		switch res.StatusCode {
		case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			c.leave(at)
		}
		return nil, c.refused(k, base, res)
	}
	return res, nil
}

func wrapped(k call, err error) error { return fmt.Errorf("%s %s: %w", k.method, k.path, err) }

// refused reads a problem, or makes one of what there is.
func (c *Client) refused(k call, base *url.URL, res *http.Response) error {
	text, err := readAll(res.Body, 1<<20)
	media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	var p protocol.Problem
	ours := err == nil && (media == protocol.MediaProblem || media == protocol.MediaJSON) && json.Unmarshal(text, &p) == nil && p.Code != ""
	if !ours {
		p = protocol.Problem{Status: res.StatusCode, Code: protocol.CodeOfStatus(res.StatusCode)}
		p.Detail = fmt.Sprintf("%s %s: %s answered %d %s", k.method, k.path, base.Host, res.StatusCode, http.StatusText(res.StatusCode))
		if to := res.Header.Get("Location"); to != "" && res.StatusCode/100 == 3 {
			p.Detail += fmt.Sprintf(", a redirect to %s; is that the server's address?", clip(to, 200))
		}
	}
	e := p.ToError()
	if after := retryAfter(res.Header.Get("Retry-After"), time.Now()); e.RetryAfter == 0 {
		e.RetryAfter = after
	}
	return &refusal{e, res.StatusCode, ours}
}

// retryAfter reads the header, which holds seconds or a date.
func retryAfter(s string, now time.Time) time.Duration {
	const day = 24 * time.Hour
	if s == "" {
		return 0
	}
	if n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64); err == nil {
		return time.Duration(min(max(n, 0), int64(day/time.Second))) * time.Second
	}
	if t, err := http.ParseTime(s); err == nil {
		return min(max(t.Sub(now), 0), day)
	}
	return 0
}

// readAll reads at most limit bytes; more is an error.
func readAll(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if int64(len(b)) > limit {
		return nil, &answerError{fmt.Errorf("read the answer: it is larger than %d bytes", limit)}
	}
	return b, nil
}

// drain reads a little of what is left, so that the connection can be kept.
func drain(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, 64<<10) // a failure here only costs the connection
	body.Close()
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "…"
}

// encode writes v as JSON. Characters such as < stay as they are.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, drover.Errorf(drover.CodeValidation, "the request cannot be written as JSON: %v", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// get asks for a value of type T.
func get[T any](ctx context.Context, c *Client, path string, query url.Values) (T, error) {
	var out T
	_, err := c.do(ctx, call{method: http.MethodGet, path: path, query: query, repeat: true}, &out)
	return out, err
}

// post sends in as JSON and returns a T.
func post[T any](ctx context.Context, c *Client, k call, in any) (T, error) {
	var out T
	body, err := encode(in)
	if err != nil {
		return out, err
	}
	k.method, k.body, k.media = http.MethodPost, body, protocol.MediaJSON
	_, err = c.do(ctx, k, &out)
	return out, err
}
