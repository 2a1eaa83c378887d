package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/protocol"
)

// connect returns a client for the server the flags, the environment and the
// files name.
func (a *app) connect() (*client.Client, error) {
	t, err := a.target()
	if err != nil {
		return nil, err
	}
	cfg := client.Config{URL: t.url, Token: t.token, UserAgent: "drover-cli/" + version}
	if a.curl {
		cfg.HTTP = &http.Client{Transport: &curlPrinter{a, tokenWord(t)}}
	}
	if env, _ := a.lookup("DROVER_TOKEN"); env != "" && env != t.token && filepath.Base(t.urlFrom) == devJSON && t.tokenFrom == t.urlFrom {
		a.note("drover: DROVER_TOKEN is left out: the server is the one that %s names, and the token too; name another with DROVER_URL", t.urlFrom)
	}
	c, err := client.New(cfg)
	if err != nil {
		return nil, usagef("%v", err)
	}
	return c, nil
}

// ask is the body of most commands: connect, then do.
func (a *app) ask(do func(ctx context.Context, c *client.Client, words []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, words []string) error {
		c, err := a.connect()
		if err != nil {
			return err
		}
		defer c.Close()
		return do(cmd.Context(), c, words)
	}
}

// curlPrinter stands in for the network: it prints the first request as a curl
// command and refuses it, which ends the command.
type curlPrinter struct {
	*app
	token string // as a shell finds it
}

// lookup is the key of a context whose requests find out what the command is
// about, such as which job is the latest: --curl makes them.
type lookup struct{}

// tokenWord is where a shell finds the token of a target.
func tokenWord(t target) string {
	if filepath.Base(t.tokenFrom) == devJSON {
		return "$(cat " + quote(filepath.Join(filepath.Dir(t.tokenFrom), "token")) + ")"
	}
	return "$DROVER_TOKEN"
}

// RoundTrip prints r.
func (p *curlPrinter) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Context().Value(lookup{}) != nil {
		return http.DefaultTransport.RoundTrip(r)
	}
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		r.Body.Close()
	}
	if !p.printed {
		p.printed = true
		fmt.Fprintln(p.out, curlCommand(r, p.token, cmp.Or(p.curlBody, string(body))))
	}
	return &http.Response{
		StatusCode: http.StatusTeapot, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(nil)), Request: r,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}, nil
}

// curlCommand writes a request as a curl command, with what a shell replaces by
// the token.
func curlCommand(r *http.Request, token, body string) string {
	words := []string{"curl", "-sS"}
	if strings.Contains(r.Header.Get("Accept"), protocol.MediaEvents) {
		words = append(words, "-N")
	}
	if r.Method != http.MethodGet && !(r.Method == http.MethodPost && body != "") {
		words = append(words, "-X", r.Method)
	}
	if r.Header.Get("Authorization") != "" {
		words = append(words, "-H", `"Authorization: Bearer `+token+`"`)
	}
	names := make([]string, 0, len(r.Header))
	for name := range r.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		v := r.Header.Get(name)
		switch {
		case name == "Authorization" || name == "User-Agent" || name == "Accept" && v != protocol.MediaEvents:
		default:
			words = append(words, "-H", quote(name+": "+v))
		}
	}
	if body != "" {
		words = append(words, "--data-binary", quote(body))
	}
	return strings.Join(append(words, quote(r.URL.String())), " ")
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// quote makes one word of s for a POSIX shell.
func quote(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// maxPage is the most items that one page can have.
const maxPage = 1000

// collect follows the pages of a list until it has limit items; zero is all. It
// reports whether there are more.
func collect[T any](limit int, page func(client.List) (protocol.Page[T], error)) (items []T, more bool, err error) {
	l := client.List{}
	for {
		l.Limit = maxPage
		if limit > 0 {
			l.Limit = min(limit-len(items), maxPage)
		}
		p, err := page(l)
		if err != nil {
			return nil, false, err
		}
		items = append(items, p.Items...)
		if p.NextCursor == "" || p.NextCursor == l.Cursor {
			return items, false, nil
		}
		if limit > 0 && len(items) >= limit {
			return items, true, nil
		}
		l.Cursor = p.NextCursor
	}
}

// limitFlag gives a list command --limit.
func limitFlag(cmd *cobra.Command, to *int) {
	cmd.Flags().IntVar(to, "limit", 50, "show at most so many; 0 is all")
}

// list prints what pages of a list hold.
func list[T any](a *app, c columns[T], limit int, page func(client.List) (protocol.Page[T], error)) error {
	if limit < 0 {
		return usagef("--limit %d: must not be negative", limit)
	}
	items, more, err := collect(limit, page)
	if err != nil {
		return err
	}
	if err := printList(a.printer(), c, items); err != nil {
		return err
	}
	if more {
		a.note("drover: there are more than the %d shown; --limit 0 shows all", len(items))
	}
	return nil
}

// latest is a word in place of a job's id: the newest job that no task of another runs.
const latest = "@latest"

// jobID reads a job's id, or finds the newest job.
func jobID(ctx context.Context, c *client.Client, word string) (drover.JobID, error) {
	if word != latest {
		return parsed(drover.ParseJobID(word))
	}
	p, err := c.Jobs(context.WithValue(ctx, lookup{}, true), client.JobsFilter{Top: new(true), List: client.List{Limit: 1}})
	if err != nil {
		return drover.JobID{}, err
	}
	if len(p.Items) == 0 {
		return drover.JobID{}, exitf(exitNotFound, "%s: there is no job yet", latest)
	}
	return p.Items[0].ID, nil
}

// parsed makes a usage error of what reading a word of the command line found.
func parsed[T any](v T, err error) (T, error) {
	if err != nil {
		return v, usagef("%v", err)
	}
	return v, nil
}

// parseStatuses reads names separated by commas, in either case.
func parseStatuses(words []string) ([]drover.Status, error) {
	var out []drover.Status
	for _, w := range words {
		s, err := drover.ParseStatus(strings.ToUpper(strings.TrimSpace(w)))
		if err != nil {
			return nil, usagef("--status: %v", err)
		}
		out = append(out, s)
	}
	return out, nil
}

// parsePairs reads the key=value words of a flag.
func parsePairs(flag string, words []string) (map[string]string, error) {
	if len(words) == 0 {
		return nil, nil
	}
	out := map[string]string{}
	for _, w := range words {
		k, v, ok := strings.Cut(w, "=")
		if !ok || k == "" {
			return nil, usagef("--%s %s: must be of the form key=value", flag, w)
		}
		if _, twice := out[k]; twice {
			return nil, usagef("--%s %s: the key is there twice", flag, w)
		}
		out[k] = v
	}
	return out, nil
}

// parseAmounts reads the name=N words of a flag.
func parseAmounts(flag string, words []string) (map[string]int64, error) {
	if len(words) == 0 {
		return nil, nil
	}
	out := map[string]int64{}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		n, err := strconv.ParseInt(v, 10, 64)
		if k == "" || err != nil || n < 1 {
			return nil, usagef("--%s %s: must be of the form name=N, with a whole number of at least 1", flag, w)
		}
		if _, twice := out[k]; twice {
			return nil, usagef("--%s %s: the name is there twice", flag, w)
		}
		out[k] = n
	}
	return out, nil
}

// parseTime reads a moment: RFC 3339, a day, or a duration, which counts from now
// into the past or, with future, ahead.
func (a *app) parseTime(flag, s string, future bool) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			return t, nil
		}
	}
	d, err := drover.ParseDuration(strings.TrimPrefix(s, "+"))
	if err != nil {
		return time.Time{}, usagef("--%s %s: must be a time such as 2026-01-31T09:00:00Z or a length such as 90m", flag, s)
	}
	if future {
		return a.now().Add(d.Std()), nil
	}
	return a.now().Add(-d.Std()), nil
}

// maxInput bounds what is read of an input; the server's bound is lower.
const maxInput = 64 << 20

// readInput reads JSON as --input gives it: itself, @FILE, or - for stdin.
func (a *app) readInput(flag, value string) ([]byte, error) {
	if value == "" {
		return nil, nil
	}
	from := "--" + flag
	b := []byte(value)
	if path, isFile := strings.CutPrefix(value, "@"); isFile || value == "-" {
		var err error
		if value == "-" {
			path, from = "-", "standard input"
		} else {
			from = path
		}
		if b, err = a.readFile(path); err != nil {
			return nil, usagef("--%s: %v", flag, err)
		}
	}
	if err := checkJSON(b); err != nil {
		return nil, usagef("%s is not JSON: %v", from, err)
	}
	return b, nil
}
