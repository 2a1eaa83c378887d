package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

// streamTime bounds how long a client may take to read what is sent to it.
const streamTime = 15 * time.Second

// wantsStream reports whether the client asks for server-sent events.
func wantsStream(r *request) bool {
	for _, line := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(line, ",") {
			m, params, err := mime.ParseMediaType(part)
			if err == nil && m == protocol.MediaEvents && params["q"] != "0" {
				return true
			}
		}
	}
	return false
}

// streamEvents sends the job's events after the one named by Last-Event-ID or
// ?after= as they happen, and ends behind the final one. A client that has seen
// that already gets 204, which tells a browser not to ask again. When the
// token loses its rights, the stream ends too.
func (a *API) streamEvents(w http.ResponseWriter, r *request, id drover.JobID, after int64) error {
	if last := r.Header.Get(protocol.HeaderLastEventID); last != "" {
		n, err := strconv.ParseInt(last, 10, 64)
		if err != nil || n < 0 {
			return invalidQuery(protocol.HeaderLastEventID, strconv.Quote(clip(last, 40))+" is not the id of an event of this stream; send the last id received, or leave the header out")
		}
		after = n
	}
	feed, err := a.gate.Follow(r.Context(), r.caller, id, after)
	if err != nil {
		return err
	}
	defer feed.Close()
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	if feed.Ended() {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	h.Set("Content-Type", protocol.MediaEvents)
	h.Set("X-Accel-Buffering", "no") // nginx would hold events back
	if r.Method == http.MethodHead {
		return nil
	}
	rc := http.NewResponseController(w)
	var b bytes.Buffer
	send := func() bool {
		extend(w, streamTime)
		if _, err := w.Write(b.Bytes()); err != nil {
			return false
		}
		b.Reset()
		return rc.Flush() == nil
	}
	b.WriteString("retry: 2000\n\n")
	if !send() {
		return nil
	}
	checked := time.Now()
	for {
		events, err := feed.Next(r.Context(), a.Heartbeat)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			if !gone(r.Context(), err) && !errors.Is(err, drover.ErrOverloaded) {
				a.log.WarnContext(r.Context(), "stream of events ended", "job", id, "trace_id", traceOf(r.Context()), "err", err)
			}
			return nil // the answer has begun; the client comes back with Last-Event-ID
		case len(events) == 0:
			b.WriteString(":\n\n")
		}
		for _, e := range events {
			if err := writeEvent(&b, e); err != nil {
				return fmt.Errorf("stream event %d of %s: %w", e.Seq, id, err)
			}
		}
		if !send() {
			return nil
		}
		if time.Since(checked) >= a.Heartbeat {
			if _, err := a.authenticate(r.Request); drover.CodeOf(err) == drover.CodeUnauthenticated {
				return nil
			}
			checked = time.Now()
		}
	}
}

// writeEvent writes one event in the format of the HTML standard. Its data is
// JSON on one line.
func writeEvent(b *bytes.Buffer, e drover.Event) error {
	fmt.Fprintf(b, "id: %d\nevent: %s\ndata: ", e.Seq, e.Type)
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(e); err != nil { // ends the line
		return err
	}
	b.WriteByte('\n')
	return nil
}
