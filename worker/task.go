package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

// Task is one attempt of a task in the hands of a handler. A Task made by hand,
// in a test of a handler, logs nowhere and has no artifacts.
type Task struct {
	drover.Lease
	run *run
}

// Bind reads the task's input into v, which is a pointer. An input that does not
// fit is a permanent error: it will not fit the next time either.
func (t *Task) Bind(v any) error {
	if err := decode(t.Input, v); err != nil {
		return Permanent(TypedError("bad_input", fmt.Errorf("read the input of %s: %w", t.Kind, err)))
	}
	return nil
}

// Progress says how far the attempt is: ratio from 0 to 1, and a message such as
// "8 of 20". It may be called as often as is handy; what is sent is the newest,
// at most once a second or once a percent. It never blocks.
func (t *Task) Progress(ratio float64, message string) {
	if t.run != nil && ratio == ratio { // NaN says nothing
		t.run.reporter.progressed(drover.Progress{Ratio: min(max(ratio, 0), 1), Message: cut(message, 1<<10)})
	}
}

// Heartbeat says that the attempt lives, and keeps details, which is anything
// that can be written as JSON in 64 KiB, for the attempt after this one: Resume
// reads them. nil is a sign of life alone. It may be called as often as is handy;
// what is sent is the newest, at most once a second, and the last before the
// attempt ends. It never blocks. A task with a heartbeat (Lease.Heartbeat) must
// call it at least that often, or the attempt is ended and tried again.
func (t *Task) Heartbeat(details any) error {
	var b json.RawMessage
	if details != nil {
		var err error
		if b, err = encode(details); err != nil {
			return fmt.Errorf("heartbeat: %w", err)
		}
		if len(b) > protocol.MaxCheckpoint {
			return fmt.Errorf("heartbeat: the details have %d bytes; at most %d: save an artifact and keep its URI", len(b), protocol.MaxCheckpoint)
		}
	}
	if t.run != nil {
		t.run.reporter.beats(b)
	}
	return nil
}

// Resume reads into v, which is a pointer, what the last heartbeat of the attempts
// before this one kept, and reports if there is any.
func (t *Task) Resume(v any) (bool, error) {
	if len(t.Checkpoint) == 0 {
		return false, nil
	}
	if err := decode(t.Checkpoint, v); err != nil {
		return false, fmt.Errorf("read the checkpoint of %s: %w", t.Kind, err)
	}
	return true, nil
}

// Log returns the attempt's logger. Its lines can be read with the task; they
// are sent once a second. Lines beyond what can be sent are dropped and counted.
func (t *Task) Log() *slog.Logger {
	if t.run == nil {
		return slog.New(slog.DiscardHandler)
	}
	return t.run.logger()
}

// LogLine adds a line of text to the attempt's log. Level is one of debug, info,
// warn, error, stdout and stderr. Unlike Log it waits a moment when lines come
// faster than they can be sent, so that a program's output is kept.
func (t *Task) LogLine(level, text string) {
	if t.run != nil {
		t.run.reporter.line(t.run.ctx, level, text, nil, true)
	}
}

// Key returns the idempotency key of one step of the task: the same in every
// attempt, another one after a replay. Hand it to outside systems, so that a
// repeat does nothing twice. The empty step is the task itself.
func (t *Task) Key(step string) string {
	if step == "" {
		return t.IdempotencyKey
	}
	return t.IdempotencyKey + "/" + step
}

// ArtifactOption says more about an artifact.
type ArtifactOption func(*drover.Artifact) error

// WithKind says what an artifact is for, such as "dataset-manifest".
func WithKind(kind string) ArtifactOption {
	return func(a *drover.Artifact) error { a.Kind = kind; return nil }
}

// WithMediaType says of which MIME type an artifact is; "application/octet-stream" when nobody does.
func WithMediaType(media string) ArtifactOption {
	return func(a *drover.Artifact) error { a.MediaType = media; return nil }
}

// WithMetadata keeps a JSON value beside an artifact.
func WithMetadata(v any) ArtifactOption {
	return func(a *drover.Artifact) (err error) {
		a.Metadata, err = encode(v)
		return err
	}
}

// SaveArtifact uploads an output. It becomes visible when the attempt succeeds,
// and goes away with an attempt that does not. The answer has its URI, by which
// other tasks open it. A reader that is an io.Seeker is sent again when the
// connection fails. The reader is not closed.
func (t *Task) SaveArtifact(ctx context.Context, name string, r io.Reader, opts ...ArtifactOption) (drover.Artifact, error) {
	if t.run == nil {
		return drover.Artifact{}, errors.New("save artifact: the task is not run by a worker")
	}
	a := drover.Artifact{Name: name}
	for _, opt := range opts {
		if err := opt(&a); err != nil {
			return drover.Artifact{}, Permanent(fmt.Errorf("save artifact %q: %w", name, err))
		}
	}
	saved, err := t.run.w.conn.PutArtifact(ctx, t.run.held, a, r)
	if errors.Is(err, drover.ErrInvalid) || errors.Is(err, drover.ErrTooLarge) {
		err = Permanent(err)
	}
	if err != nil {
		return drover.Artifact{}, fmt.Errorf("save artifact %q: %w", name, err)
	}
	t.run.saved(saved.ID)
	return saved, nil
}

// OpenArtifact reads an artifact by its URI, "artifact://art_…". The caller closes it.
func (t *Task) OpenArtifact(ctx context.Context, uri string) (io.ReadCloser, error) {
	if t.run == nil {
		return nil, errors.New("open artifact: the task is not run by a worker")
	}
	rest, ok := strings.CutPrefix(uri, "artifact://")
	id, err := drover.ParseArtifactID(rest)
	if !ok || err != nil {
		return nil, Permanent(fmt.Errorf("open artifact: %q is not a URI of the form artifact://art_01J…", cut(uri, 80)))
	}
	r, _, err := t.run.w.conn.OpenArtifact(ctx, id)
	if errors.Is(err, drover.ErrNotFound) {
		return nil, Permanent(fmt.Errorf("open %s: %w", uri, err))
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", uri, err)
	}
	return r, nil
}

// Handler runs one task. Its result is written as JSON: a json.RawMessage as it
// is, nil as no result. Package errors of this package (Permanent, Throttled,
// Snooze) say what a failure means; any other error is tried again. A handler
// returns soon after its context ends.
type Handler func(ctx context.Context, t *Task) (any, error)

// Handle has tasks of a kind run by fn, which gets the input as an In and
// returns an Out, both by JSON.
func Handle[In, Out any](w *Worker, kind string, fn func(ctx context.Context, t *Task, in In) (Out, error)) {
	if fn == nil {
		w.HandleFunc(kind, nil)
		return
	}
	w.HandleFunc(kind, func(ctx context.Context, t *Task) (any, error) {
		var in In
		if err := t.Bind(&in); err != nil {
			return nil, err
		}
		out, err := fn(ctx, t, in)
		if raw, ok := any(out).(json.RawMessage); ok {
			return raw, err
		}
		return out, err
	})
}
