//go:build unix

package executor

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
)

// request runs one http task.
func request(t *testing.T, o Options, input any) (drover.Outcome, *peer) {
	t.Helper()
	o, err := o.filled()
	if err != nil {
		t.Fatal(err)
	}
	r := newRequester(o)
	defer r.client.CloseIdleConnections()
	l := drover.Lease{Timeout: drover.Duration(20 * time.Second), Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	if raw, ok := input.(json.RawMessage); ok {
		l.Input = raw
	} else {
		l.Input = inputOf(t, input)
	}
	p := newPeer()
	return p.do(t, r.run, l), p
}

var private = Options{AllowPrivate: true}

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func TestRequestAndAnswerAreCarried(t *testing.T) {
	t.Parallel()
	var got *http.Request
	var body string
	u := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got, body = r, string(b)
		w.Header().Set("Content-Type", "application/problem+json; charset=utf-8")
		w.Header().Set("X-Two", "a")
		w.Header().Add("X-Two", "b")
		w.Header().Set("Set-Cookie", "session=secret")
		w.WriteHeader(201)
		io.WriteString(w, `{"n": 9007199254740993, "h": "<&>"}`)
	})
	o, _ := request(t, private, json.RawMessage(fmt.Sprintf(`{"url":%q,"headers":{"x-count":2,"Host":"api.example"},"body":{"price": 1.10}}`, u+"/a?token=s3cret")))
	if o.Status != drover.OutcomeSucceeded {
		t.Fatalf("got %+v", o.Error)
	}
	if got.Method != "POST" || got.URL.String() != "/a?token=s3cret" || got.Host != "api.example" || body != `{"price": 1.10}` {
		t.Errorf("the server saw %s %s of %s: %s", got.Method, got.URL, got.Host, body)
	}
	for name, want := range map[string]string{"Content-Type": "application/json", "X-Count": "2", "Idempotency-Key": `"` + taskA.String() + `.1"`, "Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "User-Agent": "drover-http"} {
		if got.Header.Get(name) != want {
			t.Errorf("%s is %q, want %q", name, got.Header.Get(name), want)
		}
	}
	var out struct {
		Status  int
		Headers map[string]string
		Body    json.RawMessage
	}
	if err := json.Unmarshal(o.Output, &out); err != nil {
		t.Fatal(err)
	}
	if out.Status != 201 || out.Headers["X-Two"] != "a, b" || string(out.Body) != `{"n":9007199254740993,"h":"<&>"}` || out.Headers["Set-Cookie"] != "" {
		t.Errorf("the result is %s", o.Output)
	}
}

func TestAnswersThatAreNotJSON(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"":         `"body":`,
		"<p>hi":    `"body":"<p>hi"`,
		"a\xffb":   `"body_base64":"Yf9i"`,
		`{"cut":`:  `"body":"{\"cut\":"`,
		"[1, 2.0]": `"body":[1,2.0]`,
	} {
		u := serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, content)
		})
		o, _ := request(t, private, in{"url": u})
		if has := strings.Contains(string(o.Output), want); o.Status != drover.OutcomeSucceeded || has != (content != "") {
			t.Errorf("%q became %s, %+v", content, o.Output, o.Error)
		}
	}
}

func TestStatusesHaveTheirClass(t *testing.T) {
	t.Parallel()
	after := ""
	status := 0
	u := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if after != "" {
			w.Header().Set("Retry-After", after)
		}
		w.WriteHeader(status)
		io.WriteString(w, "because\xff")
	})
	for _, c := range []struct {
		status int
		after  string
		class  drover.ErrorClass
	}{
		{408, "", drover.ClassRetryable}, {425, "", drover.ClassRetryable}, {429, "", drover.ClassRetryable}, {500, "", drover.ClassRetryable}, {503, "", drover.ClassRetryable},
		{429, "7", drover.ClassThrottled}, {503, time.Now().Add(time.Hour).UTC().Format(http.TimeFormat), drover.ClassThrottled}, {503, "whenever", drover.ClassRetryable},
		{400, "", drover.ClassPermanent}, {401, "", drover.ClassPermanent}, {404, "7", drover.ClassPermanent}, {422, "", drover.ClassPermanent},
	} {
		status, after = c.status, c.after
		o, _ := request(t, private, in{"url": u + "/x?token=s3cret"})
		wantFailure(t, o, c.class, fmt.Sprintf("http_%d", c.status), fmt.Sprintf("/x: %d %s: because\ufffd", c.status, http.StatusText(c.status)))
		if strings.Contains(o.Error.Message, "s3cret") {
			t.Errorf("the query is in %q", o.Error.Message)
		}
		if c.after == "7" && c.class == drover.ClassThrottled && o.RetryAfter.Std() != 7*time.Second {
			t.Errorf("retry after %s", o.RetryAfter)
		}
	}
	status, after = 404, ""
	if o, _ := request(t, private, in{"url": u, "expect": []int{200, 404}}); o.Status != drover.OutcomeSucceeded || !strings.Contains(string(o.Output), `"status":404`) {
		t.Errorf("an expected 404: %+v", o)
	}
	status = 200
	o, _ := request(t, private, in{"url": u, "expect": []int{202}})
	wantFailure(t, o, drover.ClassPermanent, "http_200", "200 OK")
}

func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	o := Options{AllowPrivate: true, MaxOutput: 1000}
	u := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip") // small on the wire, endless inside
		z := gzip.NewWriter(w)
		for range 100 {
			z.Write(make([]byte, 1<<20))
		}
		z.Close()
	})
	got, _ := request(t, o, in{"url": u})
	wantFailure(t, got, drover.ClassPermanent, "answer_too_large", "more than 1000 bytes")
}

func TestRequestsAreBoundedInTime(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	u := serve(t, func(w http.ResponseWriter, r *http.Request) { <-release })
	defer close(release)
	o, _ := request(t, private, in{"url": u, "timeout": "50ms"})
	wantFailure(t, o, drover.ClassRetryable, "timeout", "no answer within 50ms")

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	o, _ = request(t, private, in{"url": "http://" + l.Addr().String() + "/?token=s3cret"})
	wantFailure(t, o, drover.ClassRetryable, "no_answer", "connection refused")
	if strings.Contains(o.Error.Message, "s3cret") {
		t.Errorf("the query is in %q", o.Error.Message)
	}
}

func TestBadRequestsAreToldClearly(t *testing.T) {
	t.Parallel()
	for input, text := range map[string]string{
		`{}`:                                                   "url is missing",
		`{"url":"gopher://a/"}`:                                "not an http or https address",
		`{"url":"file:///etc/passwd"}`:                         "not an http or https address",
		`{"url":"http:///x"}`:                                  "has no host",
		`{"url":"http://u:hunter2@a/"}`:                        "has a user in it",
		`{"url":"http://a/%zz"}`:                               "url: this is not an address",
		`{"url":"http://a/","verb":"x"}`:                       `has no key "verb"; the keys are method, url,`,
		`{"url":"http://a/","method":"G ET"}`:                  "is not a method",
		`{"url":"http://a/","method":"CONNECT"}`:               "not for tasks",
		`{"url":"http://a/","headers":{"a b":"c"}}`:            "has a character",
		`{"url":"http://a/","headers":{"a":"b\r\nX: y"}}`:      "has a character",
		`{"url":"http://a/","headers":{"content-length":"5"}}`: "Content-Length is set by Drover",
		`{"url":"http://a/","timeout":"-5s"}`:                  "is negative",
		`{"url":"http://a/","timeout":"soon"}`:                 "is not a duration",
	} {
		o, _ := request(t, Options{}, json.RawMessage(input))
		wantFailure(t, o, drover.ClassPermanent, "bad_input", text)
		if strings.Contains(o.Error.Message, "hunter2") {
			t.Errorf("the password is in %q", o.Error.Message)
		}
	}
}

func TestSpecialAddressesAreKnown(t *testing.T) {
	for _, a := range []string{
		"0.0.0.0", "0.1.2.3", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.168.1.1",
		"192.0.0.8", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
		"::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "2001::1", "2001:db8::1",
		"fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1",
	} {
		if !special(netip.MustParseAddr(a)) {
			t.Errorf("%s passes", a)
		}
	}
	for _, a := range []string{"1.1.1.1", "8.8.8.8", "100.128.0.1", "172.32.0.1", "192.167.0.1", "2606:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8"} {
		if special(netip.MustParseAddr(a)) {
			t.Errorf("%s is refused", a)
		}
	}
	if !special(netip.Addr{}) {
		t.Error("no address passes")
	}
}

func TestPrivateAddressesAreRefusedHoweverTheyAreWritten(t *testing.T) {
	t.Parallel()
	hits := 0
	u := serve(t, func(w http.ResponseWriter, r *http.Request) { hits++ })
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(u, "http://"))
	for _, host := range []string{"127.0.0.1", "localhost", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "2130706433", "0x7f000001", "017700000001", "127.1", "[64:ff9b::7f00:1]", "100.100.100.200", "169.254.169.254", "[fd00:ec2::254]"} {
		o, _ := request(t, Options{}, in{"url": "http://" + host + ":" + port + "/", "timeout": "2s"})
		if o.Status != drover.OutcomeFailed || o.Error.Type != "address_not_allowed" && o.Error.Type != "no_answer" {
			t.Errorf("%s: %+v", host, o.Error)
		}
	}
	o, _ := request(t, Options{}, in{"url": "http://127.0.0.1/"})
	wantFailure(t, o, drover.ClassPermanent, "address_not_allowed", "127.0.0.1 is a private or special address")
	if hits > 0 {
		t.Errorf("%d requests came through", hits)
	}
	r := Options{AllowPorts: []int{80, 443}}
	var no *notAllowed
	if err := r.judge("1.1.1.1:22"); !errors.As(err, &no) || !strings.Contains(err.Error(), "port 22") {
		t.Errorf("port 22: %v", err)
	}
	if err := r.judge("1.1.1.1:443"); err != nil {
		t.Error(err)
	}
}

func TestRedirectsAreJudgedToo(t *testing.T) {
	t.Parallel()
	var seen http.Header
	other := serve(t, func(w http.ResponseWriter, r *http.Request) { seen = r.Header; io.WriteString(w, "there") })
	to := ""
	hops := 0
	u := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if to == "" {
			hops++
			http.Redirect(w, r, fmt.Sprint("/", hops), http.StatusFound)
			return
		}
		http.Redirect(w, r, to, http.StatusTemporaryRedirect)
	})
	run := func(input in) drover.Outcome { o, _ := request(t, private, input); return o }

	to = other
	if o := run(in{"url": u, "headers": in{"X-Api-Key": "s3cret", "Authorization": "Bearer s3cret"}}); o.Status != drover.OutcomeSucceeded {
		t.Errorf("got %+v", o.Error)
	}
	for name, values := range seen {
		if strings.Contains(strings.Join(values, ""), "s3cret") || name == "Idempotency-Key" {
			t.Errorf("%s went to another host", name)
		}
	}
	for _, bad := range []string{"gopher://a/", "file:///etc/passwd", "http://u:p@127.0.0.1/"} {
		to = bad
		if o := run(in{"url": u}); o.Status != drover.OutcomeFailed || !strings.Contains(o.Error.Message, "redirect") && !strings.Contains(o.Error.Message, "unsupported protocol") {
			t.Errorf("%s: %+v", bad, o)
		}
	}
	r := newRequester(private)
	defer r.client.CloseIdleConnections()
	r.judge = func(address string) error {
		if "http://"+address == u {
			return nil
		}
		return &notAllowed{address + " is private"}
	}
	to = other
	o := newPeer().do(t, r.run, drover.Lease{Input: inputOf(t, in{"url": u})})
	wantFailure(t, o, drover.ClassPermanent, "address_not_allowed", "is private")
	to = ""
	if o := run(in{"url": u}); o.Status != drover.OutcomeFailed || !strings.Contains(o.Error.Message, "more than 3 redirects") || hops != 4 {
		t.Errorf("a ring: %+v after %d hops", o.Error, hops)
	}
	to = other
	if o := run(in{"url": u, "expect": []int{307}}); o.Status != drover.OutcomeSucceeded || !strings.Contains(string(o.Output), `"Location":"`+other) {
		t.Errorf("a wanted redirect: %+v %s", o.Error, o.Output)
	}
}
