package api

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

const (
	defaultPage = 50
	maxPage     = 1000
	maxKey      = 255 // bytes of an idempotency key or request id
)

// jobID reads the {job_id} of the path.
func (r *request) jobID() (drover.JobID, error) { return pathID(r, "job_id", drover.ParseJobID) }

// taskID reads the {task_id} of the path.
func (r *request) taskID() (drover.TaskID, error) { return pathID(r, "task_id", drover.ParseTaskID) }

func pathID[T any](r *request, name string, parse func(string) (T, error)) (T, error) {
	id, err := parse(r.PathValue(name))
	if err != nil {
		return id, invalidQuery(name, err.Error())
	}
	return id, nil
}

// queryID reads an optional id of the query.
func queryID[T any](r *request, name string, parse func(string) (T, error)) (T, error) {
	var id T
	if r.query.Get(name) == "" {
		return id, nil
	}
	id, err := parse(r.query.Get(name))
	if err != nil {
		return id, invalidQuery(name, err.Error())
	}
	return id, nil
}

// whole reads a whole number of the query between least and most.
func (r *request) whole(name string, otherwise, least, most int64) (int64, error) {
	if !r.query.Has(name) {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(r.query.Get(name), 10, 64)
	if err != nil || n < least || n > most {
		return 0, invalidQuery(name, strconv.Quote(clip(r.query.Get(name), 40))+" is not a whole number from "+strconv.FormatInt(least, 10)+" to "+strconv.FormatInt(most, 10))
	}
	return n, nil
}

func (r *request) limit() (int, error) {
	n, err := r.whole("limit", defaultPage, 1, maxPage)
	return int(n), err
}

func (r *request) time(name string) (time.Time, error) {
	s := r.query.Get(name)
	if s == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, invalidQuery(name, strconv.Quote(clip(s, 40))+" is not a time; write it as RFC 3339 does, for example 2026-01-31T15:04:05Z (a + in it is written %2B)")
	}
	return t.UTC(), nil
}

// flag reads ?name=true or false; nil is neither.
func (r *request) flag(name string) (*bool, error) {
	s := r.query.Get(name)
	if s == "" {
		return nil, nil
	}
	if s != "true" && s != "false" {
		return nil, invalidQuery(name, strconv.Quote(clip(s, 40))+" is neither true nor false")
	}
	yes := s == "true"
	return &yes, nil
}

// statuses reads ?status=RUNNING,QUEUED, which may be repeated.
func (r *request) statuses() ([]drover.Status, error) {
	var out []drover.Status
	for _, v := range r.query["status"] {
		for name := range strings.SplitSeq(v, ",") {
			s, err := drover.ParseStatus(strings.TrimSpace(name))
			if err != nil {
				return nil, invalidQuery("status", err.Error())
			}
			out = append(out, s)
		}
	}
	return out, nil
}

// labels reads ?label=team:vision, which may be repeated.
func (r *request) labels() (map[string]string, error) {
	var out map[string]string
	for _, v := range r.query["label"] {
		k, value, ok := strings.Cut(v, ":")
		if _, twice := out[k]; !ok || k == "" || twice {
			return nil, invalidQuery("label", strconv.Quote(clip(v, 80))+" is not of the form key:value with a key of its own")
		}
		if out == nil {
			out = map[string]string{}
		}
		out[k] = value
	}
	return out, nil
}

// page is what a list asks for.
type page struct {
	limit int
	after []byte // where it starts; nil at the beginning
}

// page reads limit and cursor. A cursor of this list holds size bytes, any
// number if size is negative.
func (a *API) page(r *request, size int) (page, error) {
	limit, err := r.limit()
	if err != nil {
		return page{}, err
	}
	after, err := readCursor(r.cursorOp(), r.query, time.Now())
	if err == nil && after != nil && size >= 0 && len(after) != size {
		err = invalidQuery("cursor", "is not a cursor of this list")
	}
	return page{limit, after}, err
}

// cursorOp names the list: the operation, and where it is in the path.
func (r *request) cursorOp() string { return r.route.id + " " + r.URL.Path }

// idOf returns the id a cursor holds, zero at the beginning.
func (p page) idOf() (id drover.ID) {
	copy(id[:], p.after)
	return id
}

// listed answers with a page. Items holds one more than the page where there
// is a next one; key writes down where that starts: at its last item.
func listed[T any](a *API, w http.ResponseWriter, r *request, p page, items []T, key func(T) []byte) error {
	out := protocol.Page[T]{Items: items}
	if len(items) > p.limit {
		out.Items = items[:p.limit]
		out.NextCursor = makeCursor(r.cursorOp(), r.query, key(out.Items[p.limit-1]), time.Now())
	}
	return a.replyPage(w, r, out.NextCursor, out)
}

func (a *API) replyPage(w http.ResponseWriter, r *request, next string, v any) error {
	if next != "" {
		q := url.Values{}
		for k, v := range r.query {
			q[k] = v
		}
		q.Set("cursor", next)
		w.Header().Set("Link", "<"+r.URL.EscapedPath()+"?"+q.Encode()+`>; rel="next"`)
	}
	return a.reply(w, r, http.StatusOK, v)
}

func seqBytes(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

func seqOf(b []byte) int64 {
	if len(b) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(b) & math.MaxInt64)
}

// requestKey joins the Idempotency-Key header and the member of the body that
// means the same.
func requestKey(r *request, field, inBody string) (string, error) {
	values := r.Header.Values(protocol.HeaderIdempotencyKey)
	if len(values) == 0 {
		return inBody, nil
	}
	bad := func(what string) (string, error) {
		return "", &drover.Error{Code: drover.CodeValidation, Detail: "the idempotency key is not valid", Fields: []drover.FieldError{{Field: protocol.HeaderIdempotencyKey, Message: what}}}
	}
	if len(values) > 1 {
		return bad("is there twice; send one")
	}
	key, ok := unquoted(values[0])
	switch {
	case !ok:
		return bad("is not a string as RFC 8941 has them; write it in double quotes, with \\\" and \\\\ inside, or without any quotes")
	case key == "":
		return bad("is empty; send a key or leave the header out")
	case len(key) > maxKey:
		return bad("is longer than 255 bytes")
	case strings.ContainsFunc(key, func(c rune) bool { return c < ' ' || c == unicode.ReplacementChar || c == 0x7f }):
		return bad("has a control character in it")
	case inBody != "" && inBody != key:
		return bad("differs from " + field + " in the body; send one of them, or the same in both")
	}
	return key, nil
}

// unquoted reads a structured-field string, or a bare word as it is.
func unquoted(s string) (string, bool) {
	s = strings.Trim(s, " \t")
	if !strings.HasPrefix(s, `"`) {
		return strings.ToValidUTF8(s, string(unicode.ReplacementChar)), true
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; c {
		case '"':
			return b.String(), i == len(s)-1
		case '\\':
			if i++; i >= len(s) || s[i] != '"' && s[i] != '\\' {
				return "", false
			}
			b.WriteByte(s[i])
		default:
			if c < ' ' || c > '~' {
				return "", false
			}
			b.WriteByte(c)
		}
	}
	return "", false
}

// preference is what a Prefer header asks for, as RFC 7240 has it.
type preference struct {
	wait  time.Duration
	waits bool
	async bool
}

// prefer reads the Prefer headers; what it does not know it passes over, and of
// two preferences of one name the first counts.
func (r *request) prefer() preference {
	var p preference
	seen := map[string]bool{}
	for _, line := range r.Header.Values(protocol.HeaderPrefer) {
		for part := range strings.SplitSeq(line, ",") {
			part, _, _ = strings.Cut(part, ";")
			name, value, _ := strings.Cut(part, "=")
			name = strings.ToLower(strings.TrimSpace(name))
			if seen[name] {
				continue
			}
			seen[name] = true
			switch name {
			case "respond-async":
				p.async = true
			case "wait":
				n, err := strconv.ParseUint(strings.Trim(strings.TrimSpace(value), `"`), 10, 31)
				if err == nil {
					p.wait, p.waits = time.Duration(n)*time.Second, true
				}
			}
		}
	}
	return p
}

// waitJob waits as preferred for the job to be final, and says in the answer's
// headers that it did. It returns the job as it was last seen.
func (a *API) waitJob(w http.ResponseWriter, r *request, p preference, id drover.JobID) (drover.Job, error) {
	wait := min(p.wait, a.MaxWait)
	extend(w, wait+answerTime)
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	job, err := a.gate.WaitJob(ctx, r.caller, id)
	if err != nil && job.ID.IsZero() {
		return job, err
	}
	if err != nil && r.Context().Err() != nil {
		return job, context.Cause(r.Context())
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, drover.ErrOverloaded) {
		return job, err
	}
	w.Header().Set(protocol.HeaderPreferenceApplied, "wait="+strconv.Itoa(int(wait.Seconds())))
	return job, nil
}
