package executor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/builtin"
	"github.com/drover-dev/drover/worker"
)

// httpInput is the input of an http task.
type httpInput struct {
	// Method is GET, or POST where there is a body, unless said.
	Method  string          `json:"method"`
	URL     string          `json:"url"`
	Headers map[string]text `json:"headers"`
	// Body is sent as text when it is a string, else as JSON.
	Body json.RawMessage `json:"body"`
	// Timeout bounds the request; default 1 min, and never beyond the attempt's own.
	Timeout drover.Duration `json:"timeout"`
	// Expect are the statuses that mean success; default all 2xx.
	Expect []int `json:"expect"`
}

// httpOutput is the result of an http task.
type httpOutput struct {
	Status  int               `json:"status"`
	Headers map[string]string `json:"headers"`
	// Body is the answer's JSON, or its text as a string.
	Body json.RawMessage `json:"body,omitempty"`
	// BodyBase64 stands for Body where the answer is neither.
	BodyBase64 []byte `json:"body_base64,omitempty"`
}

const maxRedirects = 3

// maxHeader bounds the checkpoint in a header, in bytes.
const maxHeader = 4 << 10

// requester runs http tasks.
type requester struct {
	o      Options
	client *http.Client
	judge  func(address string) error // of every address before it is dialled
}

func newRequester(o Options) *requester {
	r := &requester{o: o, judge: o.judge}
	// The address is judged after it is resolved and as it is dialled, so that
	// neither a second answer of the DNS nor a redirect gets past.
	dial := net.Dialer{Timeout: 10 * time.Second, Control: func(_, address string, _ syscall.RawConn) error { return r.judge(address) }}
	r.client = &http.Client{
		Transport: &http.Transport{ // no proxy: it would do the dialling
			DialContext: dial.DialContext, TLSHandshakeTimeout: 10 * time.Second, ForceAttemptHTTP2: true,
			MaxIdleConns: 32, MaxIdleConnsPerHost: 4, IdleConnTimeout: 30 * time.Second, MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(next *http.Request, via []*http.Request) error {
			if len(via) > maxRedirects {
				return fmt.Errorf("more than %d redirects", maxRedirects)
			}
			if err := builtin.CheckURL(next.URL); err != nil {
				return fmt.Errorf("redirect: %w", err)
			}
			first := via[0].URL
			if first.Scheme == "https" && next.URL.Scheme == "http" {
				return errors.New("redirect from https to http")
			}
			if next.URL.Host != first.Host { // the task's headers are for the host it named
				for name := range next.Header {
					if name != "User-Agent" && name != "Traceparent" && name != "Content-Type" {
						next.Header.Del(name)
					}
				}
			}
			return nil
		},
	}
	return r
}

// notAllowed is a refusal to reach an address.
type notAllowed struct{ why string }

// Error says which address and why.
func (n *notAllowed) Error() string { return n.why }

// judge refuses addresses that a task has no business with.
func (o Options) judge(address string) error {
	if o.AllowPrivate {
		return nil
	}
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return &notAllowed{fmt.Sprintf("%s is not an address", address)}
	}
	if special(at.Addr()) {
		return &notAllowed{fmt.Sprintf("%s is a private or special address, which http tasks may not reach here", at.Addr())}
	}
	if !slices.Contains(o.AllowPorts, int(at.Port())) {
		return &notAllowed{fmt.Sprintf("port %d is none of %v, which http tasks may reach here", at.Port(), o.AllowPorts)}
	}
	return nil
}

// specials are the ranges that are not of the public Internet, or lead into
// others (IANA special-purpose registries; carrier NAT, NAT64, 6to4, Teredo and
// cloud metadata among them).
var specials = func() (list []netip.Prefix) {
	for _, s := range []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24",
		"192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
		"::/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/63", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16",
		"fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
	} {
		list = append(list, netip.MustParsePrefix(s))
	}
	return list
}()

func special(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return !a.IsValid() || slices.ContainsFunc(specials, func(p netip.Prefix) bool { return p.Contains(a) })
}

// request makes the request a task asks for.
func (in *httpInput) request(ctx context.Context, t *worker.Task) (*http.Request, error) {
	u, err := url.Parse(in.URL)
	if err != nil {
		return nil, bad("http: url: this is not an address")
	}
	hasBody := len(in.Body) > 0 && string(in.Body) != "null"
	method := strings.ToUpper(in.Method)
	switch {
	case method == "" && hasBody:
		method = http.MethodPost
	case method == "":
		method = http.MethodGet
	}
	var body io.Reader
	media := ""
	if hasBody {
		body, media = bytes.NewReader(in.Body), "application/json"
		if in.Body[0] == '"' {
			var s string
			if err := json.Unmarshal(in.Body, &s); err != nil {
				return nil, bad("http: body: %w", err)
			}
			body, media = strings.NewReader(s), "text/plain; charset=utf-8"
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, bad("http: method %q is not a method", in.Method)
	}
	for name, value := range map[string]string{"User-Agent": "drover-http", "Content-Type": media, "Traceparent": t.Traceparent, "Idempotency-Key": strconv.Quote(t.IdempotencyKey)} {
		if value != "" && value != `""` {
			req.Header.Set(name, value)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(in.Headers)) {
		if strings.EqualFold(name, "Host") {
			req.Host = string(in.Headers[name])
			continue
		}
		req.Header.Set(name, string(in.Headers[name]))
	}
	if c := string(t.Checkpoint); c != "" && len(c) <= maxHeader && !strings.ContainsFunc(c, func(r rune) bool { return r < ' ' || r > '~' }) {
		req.Header.Set(builtin.HeaderCheckpoint, c)
	}
	return req, nil
}

// run is the handler.
func (r *requester) run(ctx context.Context, t *worker.Task) (any, error) {
	var in httpInput
	if err := decode(builtin.HTTP, t.Input, &in); err != nil {
		return nil, err
	}
	if in.Timeout == 0 {
		in.Timeout = drover.Duration(time.Minute)
	}
	bounded, done := context.WithTimeout(ctx, in.Timeout.Std())
	defer done()
	req, err := in.request(bounded, t)
	if err != nil {
		return nil, err
	}
	what := req.Method + " " + builtin.Place(req.URL)
	t.Log().Debug("request", "method", req.Method, "url", builtin.Place(req.URL))
	client := r.client
	if slices.ContainsFunc(in.Expect, func(code int) bool { return code/100 == 3 }) { // the redirect itself is wanted
		c := *r.client
		c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		client = &c
	}
	defer beat(t)() // the request's own timeout bounds how long the other side may be silent
	res, err := client.Do(req)
	if err != nil {
		return nil, r.failed(ctx, what, in.Timeout, err)
	}
	defer res.Body.Close()
	if c := res.Header.Get(builtin.HeaderCheckpoint); len(c) > 0 && len(c) <= maxHeader && json.Valid([]byte(c)) {
		if err := t.Heartbeat(json.RawMessage(c)); err != nil {
			t.Log().Warn("the checkpoint is not kept", "err", err)
		}
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, r.o.MaxOutput+1))
	if err != nil {
		return nil, r.failed(ctx, what, in.Timeout, err)
	}
	if err := in.verdict(res, what, body); err != nil {
		return nil, err
	}
	if int64(len(body)) > r.o.MaxOutput {
		return nil, worker.Permanent(worker.TypedError("answer_too_large", fmt.Errorf("%s: the answer has more than %d bytes", what, r.o.MaxOutput)))
	}
	out := httpOutput{Status: res.StatusCode, Headers: map[string]string{}}
	for name, values := range res.Header {
		if name != "Set-Cookie" { // a cookie is as good as a password
			out.Headers[name] = strings.ToValidUTF8(strings.Join(values, ", "), "\ufffd")
		}
	}
	media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	switch isJSON := media == "application/json" || strings.HasSuffix(media, "+json"); {
	case len(body) == 0:
	case !utf8.Valid(body):
		out.BodyBase64 = body
	case isJSON && json.Valid(body):
		out.Body = body
	default:
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(string(body)); err != nil {
			return nil, err
		}
		out.Body = bytes.TrimSpace(b.Bytes())
	}
	return out, nil
}

// beat sends heartbeats for a task that must, until what it returns is called.
func beat(t *worker.Task) (stop func()) {
	every := t.Lease.Heartbeat.Std() / 3
	if every <= 0 {
		return func() {}
	}
	quit := make(chan struct{})
	var beating sync.WaitGroup
	beating.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			_ = t.Heartbeat(nil) // without details nothing can be wrong
			select {
			case <-quit:
				return
			case <-tick.C:
			}
		}
	})
	return func() { close(quit); beating.Wait() }
}

// failed says what it means that there is no answer.
func (r *requester) failed(ctx context.Context, what string, timeout drover.Duration, err error) error {
	var outer *url.Error
	if errors.As(err, &outer) { // its text has the whole address
		err = outer.Err
	}
	var no *notAllowed
	switch {
	case errors.As(err, &no):
		return worker.Permanent(worker.TypedError("address_not_allowed", fmt.Errorf("%s: %w", what, no)))
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	case errors.Is(err, context.DeadlineExceeded):
		return worker.TypedError("timeout", fmt.Errorf("%s: no answer within %s", what, timeout.Std()))
	}
	return worker.TypedError("no_answer", fmt.Errorf("%s: %w", what, err))
}

// verdict says whether a status is a success, and what it means when not.
func (in *httpInput) verdict(res *http.Response, what string, body []byte) error {
	code := res.StatusCode
	if len(in.Expect) > 0 {
		if slices.Contains(in.Expect, code) {
			return nil
		}
	} else if code/100 == 2 {
		return nil
	}
	text := strings.TrimSpace(strings.ToValidUTF8(string(body[:min(len(body), 500)]), "\ufffd"))
	if text != "" {
		text = ": " + text
	}
	err := worker.TypedError("http_"+strconv.Itoa(code), fmt.Errorf("%s: %d %s%s", what, code, http.StatusText(code), text))
	switch {
	case code == http.StatusRequestTimeout || code == http.StatusTooEarly || code == http.StatusTooManyRequests || code >= 500:
		if after, ok := retryAfter(res.Header.Get("Retry-After"), time.Now()); ok {
			return worker.Throttled(err, after)
		}
		return err
	}
	return worker.Permanent(err)
}

// retryAfter reads the header, which holds seconds or a date; at most a day.
func retryAfter(s string, now time.Time) (time.Duration, bool) {
	const day = 24 * time.Hour
	if n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64); err == nil {
		return time.Duration(min(max(n, 0), int64(day/time.Second))) * time.Second, true
	}
	if t, err := http.ParseTime(s); err == nil {
		return min(max(t.Sub(now), 0), day), true
	}
	return 0, false
}
