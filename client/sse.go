package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

// Bounds of a stream.
const (
	maxLine  = 1 << 20
	maxEvent = 4 << 20
)

var errTooLong = &answerError{errors.New("read the stream of events: a line or an event is too long")}

// sse reads a text/event-stream, as the HTML standard defines it.
type sse struct {
	r      *bufio.Reader
	skipLF bool
	begun  bool
	retry  time.Duration // what the server asks for; zero when it does not
}

// message is one event of a stream.
type message struct {
	id   string // of this event only; empty when it has none
	name string
	data []byte
}

func newSSE(r io.Reader) *sse { return &sse{r: bufio.NewReaderSize(r, 16<<10)} }

// next returns the next event that has data. An event cut off by the end of the
// stream is not returned.
func (s *sse) next() (message, error) {
	var m message
	var any bool
	for {
		line, err := s.line()
		if err != nil {
			return message{}, err
		}
		if len(line) == 0 {
			if any {
				m.data = bytes.TrimSuffix(m.data, []byte("\n"))
				return m, nil
			}
			m = message{}
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "data":
			if len(m.data)+len(value) > maxEvent {
				return message{}, errTooLong
			}
			m.data = append(append(m.data, value...), '\n')
			any = true
		case "event":
			m.name = string(value)
		case "id":
			if bytes.IndexByte(value, 0) < 0 {
				m.id = string(value)
			}
		case "retry":
			if n, err := strconv.ParseUint(string(value), 10, 31); err == nil {
				s.retry = time.Duration(n) * time.Millisecond
			}
		} // a comment has an empty name
	}
}

// line reads to the next CR, LF or CRLF.
func (s *sse) line() ([]byte, error) {
	var line []byte
	for {
		c, err := s.r.ReadByte()
		if err != nil {
			return nil, err
		}
		if s.skipLF {
			s.skipLF = false
			if c == '\n' {
				continue
			}
		}
		if c == '\n' || c == '\r' {
			s.skipLF = c == '\r'
			if !s.begun {
				s.begun = true
				line = bytes.TrimPrefix(line, []byte("\ufeff"))
			}
			return line, nil
		}
		if len(line) >= maxLine {
			return nil, errTooLong
		}
		line = append(line, c)
	}
}

// Watch calls fn for every event of a job numbered above after, in order, each
// once, and returns nil after the one that made the job final, when no other
// follows. It goes on through lost connections and restarts of the server, for
// as long as ctx allows. An event whose Seq is zero is live news that is not
// recorded. An error of fn ends it and is returned.
func (c *Client) Watch(ctx context.Context, id drover.JobID, after int64, fn func(drover.Event) error) error {
	var final bool
	for failed := 0; ; failed++ {
		before := after
		retry, err := c.stream(ctx, id, &after, &final, fn)
		var stop *stopped
		switch {
		case errors.As(err, &stop):
			return stop.err
		case ctx.Err() != nil:
			return fmt.Errorf("watch %s: %w", id, ctx.Err())
		case final:
			return nil
		case err != nil && !transient(err):
			return fmt.Errorf("watch %s: %w", id, err)
		}
		if after > before {
			failed = 0
		} else if j, err := c.Job(ctx, id); err == nil && j.Status.Final() && j.Events <= after {
			return nil // it was final before we asked
		} else if err != nil && !transient(err) {
			return fmt.Errorf("watch %s: %w", id, err)
		}
		if err := sleep(ctx, max(min(retry, longestRetryAfter), c.backoff.delay(failed))); err != nil {
			return fmt.Errorf("watch %s: %w", id, err)
		}
	}
}

// stopped is fn's wish to end.
type stopped struct{ err error }

// Error returns fn's error.
func (s *stopped) Error() string { return s.err.Error() }

// stream reads one connection to its end. It moves after and final along.
func (c *Client) stream(ctx context.Context, id drover.JobID, after *int64, final *bool, fn func(drover.Event) error) (retry time.Duration, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := watch(c.idle, cancel)
	defer w.stop()
	k := call{method: http.MethodGet, path: jobPath(id) + "/events", header: http.Header{"Accept": {protocol.MediaEvents}}}
	if *after > 0 {
		k.header.Set(protocol.HeaderLastEventID, strconv.FormatInt(*after, 10))
	}
	res, err := c.send(ctx, k, nil)
	if err != nil {
		var refusal *drover.Error
		if errors.As(err, &refusal) {
			retry = refusal.RetryAfter
		}
		return retry, stalled(ctx, err)
	}
	defer res.Body.Close() // not drained: a stream may have no end
	if res.StatusCode == http.StatusNoContent {
		*final = true // nothing follows what we have seen
		return 0, nil
	}
	s := newSSE(reading{res.Body, w.moved})
	for {
		m, err := s.next()
		if errors.Is(err, io.EOF) {
			return s.retry, nil
		}
		if err != nil {
			return s.retry, wrapped(k, stalled(ctx, err))
		}
		var e drover.Event
		if err := json.Unmarshal(m.data, &e); err != nil {
			return 0, wrapped(k, &answerError{fmt.Errorf("read an event: %w", err)})
		}
		if e.Seq == 0 && m.id != "" {
			e.Seq, _ = strconv.ParseInt(m.id, 10, 64)
		}
		if e.Seq > 0 {
			if e.Seq <= *after {
				continue // sent again
			}
			*after = e.Seq
			*final = e.Type == drover.JobSucceeded || e.Type == drover.JobFailed || e.Type == drover.JobCancelled
		}
		if err := fn(e); err != nil {
			return 0, &stopped{err}
		}
	}
}

// reading tells when bytes come.
type reading struct {
	io.Reader
	moved func()
}

// Read reads and tells.
func (r reading) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.moved()
	return n, err
}
