// Package client speaks to a Drover server over HTTP: submit jobs, watch and
// wait for them, cancel, page through what there is; and it is the transport
// of package worker.
//
// A refusal of the server is a *drover.Error, so that
// errors.Is(err, drover.ErrNotFound) holds on this side too. Calls that can be
// repeated without harm are repeated when the connection fails or the server is
// busy; Submit is one of them, as it names its job itself.
package client

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

// Config says where the server is and who asks.
type Config struct {
	// URL is the server's address, such as "http://127.0.0.1:8420"; or the addresses
	// of several servers of one database, separated by commas. The client stays
	// with one, the first to begin with, until that fails, and goes on to the next.
	URL string
	// Token is an API token, "drover_…". It is sent with every request and
	// shown nowhere: Config prints itself without it.
	Token string
	// HTTP, when set, makes the requests; its own Timeout must be zero or longer
	// than a long poll. The default keeps a pool of connections.
	HTTP *http.Client
	// UserAgent goes before the client's own; empty is fine.
	UserAgent string
	// Timeout bounds one try of a request that does not wait for anything; default 30 s.
	Timeout time.Duration
	// Tries bounds how often a repeatable request is sent; default 4.
	Tries int
}

// String returns the configuration without the token.
func (c Config) String() string {
	return fmt.Sprintf("client.Config{URL: %q, Token: %s, UserAgent: %q}", withoutUser(c.URL), hidden(c.Token), c.UserAgent)
}

// GoString is String.
func (c Config) GoString() string { return c.String() }

// LogValue returns the configuration without the token.
func (c Config) LogValue() slog.Value {
	return slog.GroupValue(slog.String("url", withoutUser(c.URL)), slog.String("token", hidden(c.Token)), slog.String("user_agent", c.UserAgent))
}

func hidden(token string) string {
	if token == "" {
		return "none"
	}
	return "***"
}

// withoutUser drops what stands before the host, where some people put passwords.
func withoutUser(raw string) string {
	if i := strings.LastIndexByte(raw, '@'); i >= 0 {
		return "***" + raw[i:]
	}
	return raw
}

// Client speaks to one server, or to one of several. It may be used from many
// goroutines.
type Client struct {
	bases     []*url.URL
	at        *atomic.Uint32 // which of bases is used
	token     func() string  // a func, so that no printer reaches the token
	userAgent string
	http      *http.Client
	vital     *http.Client // renewals: connections of their own, which no upload fills
	timeout   time.Duration
	tries     int
	backoff   backoff
	idle      time.Duration // a stream is given up after so long without a byte
}

var _ protocol.Worker = (*Client)(nil)

// New makes a client. It does not connect.
func New(cfg Config) (*Client, error) {
	var bases []*url.URL
	for raw := range strings.SplitSeq(cfg.URL, ",") {
		base, err := parseBase(strings.TrimSpace(raw))
		if err != nil {
			return nil, err
		}
		bases = append(bases, base)
	}
	switch {
	case strings.ContainsFunc(cfg.Token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return nil, errors.New("client: Config.Token has a character that no token has; is there a line end in it?")
	case cfg.Timeout < 0 || cfg.Tries < 0:
		return nil, errors.New("client: Config.Timeout and Config.Tries must not be negative")
	}
	token := cfg.Token
	c := &Client{
		bases: bases, at: new(atomic.Uint32), token: func() string { return token },
		userAgent: strings.TrimSpace(cfg.UserAgent + " drover-go"), timeout: cfg.Timeout, tries: cfg.Tries,
		backoff: backoff{first: 100 * time.Millisecond, most: 5 * time.Second}, idle: 45 * time.Second,
	}
	if c.timeout == 0 {
		c.timeout = 30 * time.Second
	}
	if c.tries == 0 {
		c.tries = 4
	}
	if cfg.HTTP != nil {
		c.http = noRedirects(cfg.HTTP)
		c.vital = c.http
	} else {
		c.http, c.vital = noRedirects(&http.Client{Transport: transport()}), noRedirects(&http.Client{Transport: transport()})
	}
	return c, nil
}

func parseBase(raw string) (*url.URL, error) {
	base, err := url.Parse(raw)
	switch {
	case raw == "":
		return nil, errors.New("client: Config.URL is empty; write for example http://127.0.0.1:8420")
	case err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https":
		return nil, fmt.Errorf("client: Config.URL %q is not the address of a server; write for example http://127.0.0.1:8420", withoutUser(raw))
	case base.User != nil:
		return nil, errors.New("client: Config.URL has a user in it; put the token into Config.Token")
	case base.RawQuery != "" || base.Fragment != "":
		return nil, fmt.Errorf("client: Config.URL %q has a query or a fragment, which the address of a server has not", raw)
	}
	base.Path = strings.TrimRight(base.Path, "/")
	base.RawPath = ""
	return base, nil
}

// base is the server in use, and its number.
func (c *Client) base() (*url.URL, uint32) {
	at := c.at.Load()
	return c.bases[at], at
}

// leave goes on to the next server, unless somebody has done so since at was read.
func (c *Client) leave(at uint32) { c.at.CompareAndSwap(at, (at+1)%uint32(len(c.bases))) }

// String names the server, without the token.
func (c *Client) String() string { return "client of " + c.URL() }

// GoString is String.
func (c *Client) GoString() string { return c.String() }

// LogValue names the server, without the token.
func (c *Client) LogValue() slog.Value { return slog.StringValue(c.String()) }

// URL returns the server's address; of several that of the one in use.
func (c *Client) URL() string {
	base, _ := c.base()
	return base.String()
}

// Close closes idle connections. The client can still be used.
func (c *Client) Close() {
	c.http.CloseIdleConnections()
	c.vital.CloseIdleConnections()
}

func transport() *http.Transport {
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:    10 * time.Second,
		MaxIdleConns:           256,
		MaxIdleConnsPerHost:    64,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		ForceAttemptHTTP2:      true,
		// Without pings a dead HTTP/2 connection is used until TCP gives up, many minutes later.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second},
	}
}

// noRedirects returns h as a client that takes a redirect for an answer: a
// token is not carried to another place, and a POST does not become a GET.
func noRedirects(h *http.Client) *http.Client {
	if h.CheckRedirect != nil {
		return h
	}
	copied := *h
	copied.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &copied
}

// newID makes a time-ordered id.
func newID() drover.ID {
	var entropy [10]byte
	rand.Read(entropy[:]) // never fails
	return drover.MakeID(time.Now().UnixMilli(), entropy)
}
