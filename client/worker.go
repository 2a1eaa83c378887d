package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

// OpenSession registers a worker.
func (c *Client) OpenSession(ctx context.Context, s drover.NewSession) (drover.Session, error) {
	return post[drover.Session](ctx, c, call{path: "/v1/workers", vital: true}, s)
}

// Renew extends a session.
func (c *Client) Renew(ctx context.Context, id drover.SessionID, r drover.Renewal) (drover.Renewed, error) {
	if r.Held == nil {
		r.Held = []drover.Held{}
	}
	return post[drover.Renewed](ctx, c, call{path: "/v1/workers/" + id.String() + "/renew", repeat: true, vital: true}, r)
}

// CloseSession ends a session. One that has ended before is no error.
func (c *Client) CloseSession(ctx context.Context, id drover.SessionID) error {
	_, err := c.do(ctx, call{method: http.MethodDelete, path: "/v1/workers/" + id.String(), repeat: true, vital: true}, nil)
	if drover.CodeOf(err) == drover.CodeNotFound {
		return nil
	}
	return err
}

// Acquire takes leases. It is sent once: its number belongs to one answer.
func (c *Client) Acquire(ctx context.Context, a drover.Acquire) ([]drover.Lease, error) {
	r, err := post[protocol.AcquireResponse](ctx, c, call{path: "/v1/leases/acquire", wait: a.Wait.Std()}, a)
	return r.Leases, err
}

// Settle reports outcomes. It is repeated over a failing connection, unless it
// acquires.
func (c *Client) Settle(ctx context.Context, r protocol.SettleRequest) (protocol.SettleResponse, error) {
	if r.Outcomes == nil {
		r.Outcomes = []drover.Outcome{}
	}
	return post[protocol.SettleResponse](ctx, c, call{path: "/v1/leases/settle", repeat: r.Acquire == nil}, r)
}

// SetProgress says how far a task is. It is sent once: the next one says more.
func (c *Client) SetProgress(ctx context.Context, h drover.Held, p drover.Progress) error {
	return c.tell(ctx, leasePath(h)+"/progress", protocol.ProgressRequest{LeaseVersion: h.LeaseVersion, Ratio: p.Ratio, Message: p.Message, ETA: p.ETA})
}

// Heartbeat says that an attempt lives, and keeps details for the next one. It is
// sent once: the next one says the same.
func (c *Client) Heartbeat(ctx context.Context, h drover.Held, details json.RawMessage) error {
	return c.tell(ctx, leasePath(h)+"/heartbeat", protocol.HeartbeatRequest{LeaseVersion: h.LeaseVersion, Details: details})
}

// Lock takes permits of a limit for the handler of a running attempt. It is repeated over
// a failing connection: its number belongs to one answer.
func (c *Client) Lock(ctx context.Context, h drover.Held, n drover.NewLock) (drover.Lock, error) {
	return post[drover.Lock](ctx, c, call{path: leasePath(h) + "/locks", wait: n.Wait.Std(), repeat: true},
		protocol.LockRequest{LeaseVersion: h.LeaseVersion, Number: n.Number, Name: n.Name, Permits: n.Permits, Exclusive: n.Exclusive, Wait: n.Wait})
}

// Unlock gives back what a handler has taken, or waits for. It is repeated over a failing
// connection.
func (c *Client) Unlock(ctx context.Context, h drover.Held, n drover.NewUnlock) error {
	body, err := encode(protocol.UnlockRequest{LeaseVersion: h.LeaseVersion, Number: n.Number})
	if err != nil {
		return err
	}
	_, err = c.do(ctx, call{method: http.MethodPost, path: leasePath(h) + "/locks/release", body: body, media: protocol.MediaJSON, repeat: true}, nil)
	return err
}

// Meet waits at a barrier for other tasks of the job. It is repeated over a failing
// connection.
func (c *Client) Meet(ctx context.Context, h drover.Held, n drover.NewMeeting) (drover.Meeting, error) {
	return post[drover.Meeting](ctx, c, call{path: leasePath(h) + "/barriers", wait: n.Wait.Std(), repeat: true},
		protocol.MeetingRequest{LeaseVersion: h.LeaseVersion, Number: n.Number, Name: n.Name, Parties: n.Parties, Round: n.Round, Wait: n.Wait, Leave: n.Leave})
}

// AppendLogs adds lines to an attempt's log. It is sent once, as a repeat would
// add them twice.
func (c *Client) AppendLogs(ctx context.Context, h drover.Held, lines []drover.LogLine) error {
	if len(lines) == 0 {
		return nil
	}
	return c.tell(ctx, leasePath(h)+"/logs", protocol.LogsRequest{LeaseVersion: h.LeaseVersion, Lines: lines})
}

func leasePath(h drover.Held) string { return "/v1/leases/" + h.TaskID.String() }

// tell posts what needs no answer.
func (c *Client) tell(ctx context.Context, path string, in any) error {
	body, err := encode(in)
	if err != nil {
		return err
	}
	_, err = c.do(ctx, call{method: http.MethodPost, path: path, body: body, media: protocol.MediaJSON}, nil)
	return err
}

// PutArtifact uploads an output of a running attempt. A reader that can seek is
// sent again when the connection fails. The reader is not used after it returns,
// and not closed.
func (c *Client) PutArtifact(ctx context.Context, h drover.Held, a drover.Artifact, r io.Reader) (drover.Artifact, error) {
	q := url.Values{"name": {a.Name}, "lease_version": {strconv.Itoa(int(h.LeaseVersion))}}
	set(q, "kind", a.Kind)
	k := call{method: http.MethodPost, path: leasePath(h) + "/artifacts", query: q, media: a.MediaType, header: http.Header{}}
	if k.media == "" {
		k.media = "application/octet-stream"
	}
	if len(a.Metadata) > 0 {
		m, err := compact(a.Metadata)
		if err != nil {
			return drover.Artifact{}, err
		}
		k.header.Set(protocol.HeaderArtifactMetadata, m)
	}
	start := int64(-1)
	seeker, ok := r.(io.Seeker)
	if ok {
		if at, err := seeker.Seek(0, io.SeekCurrent); err == nil {
			start, k.repeat = at, true
		}
	}
	for n := 0; ; n++ {
		out, sent, err := c.upload(ctx, k, r)
		if err == nil {
			return out, nil
		}
		delay, again := c.again(k, n, err)
		if !again || ctx.Err() != nil || sent && start < 0 {
			return out, err
		}
		if start >= 0 {
			if _, seekErr := seeker.Seek(start, io.SeekStart); seekErr != nil {
				return out, err
			}
		}
		if err := sleep(ctx, delay); err != nil {
			return out, err
		}
	}
}

// upload sends a body of unknown length. It ends when nothing has moved for a while.
func (c *Client) upload(ctx context.Context, k call, r io.Reader) (out drover.Artifact, sent bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := watch(c.timeout+c.idle, cancel)
	defer w.stop()
	body := &lent{r: r, moved: w.moved}
	defer body.end()
	res, err := c.send(ctx, k, body)
	if err != nil {
		return out, body.used(), stalled(ctx, err)
	}
	defer drain(res.Body)
	text, err := readAll(res.Body, 1<<20)
	if err != nil {
		return out, true, wrapped(k, stalled(ctx, err))
	}
	return out, true, decodeAnswer(k, text, &out)
}

// lent hands a reader to the transport and takes it back: after end no Read
// of it is under way, and none follows.
type lent struct {
	mu    sync.Mutex
	r     io.Reader
	moved func()
	begun bool
	ended bool
}

// Read reads from the reader until end.
func (u *lent) Read(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended {
		return 0, io.ErrClosedPipe
	}
	u.begun = true
	n, err := u.r.Read(p)
	u.moved()
	return n, err
}

func (u *lent) end() {
	u.mu.Lock()
	u.ended = true
	u.mu.Unlock()
}

func (u *lent) used() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.begun
}

// Artifact returns what is known about an artifact.
func (c *Client) Artifact(ctx context.Context, id drover.ArtifactID) (drover.Artifact, error) {
	return get[drover.Artifact](ctx, c, "/v1/artifacts/"+id.String(), nil)
}

// TraceArtifact returns where an artifact comes from and what was made of it.
func (c *Client) TraceArtifact(ctx context.Context, id drover.ArtifactID) (drover.Lineage, error) {
	return get[drover.Lineage](ctx, c, "/v1/artifacts/"+id.String()+"/trace", nil)
}

// ArtifactsFilter chooses artifacts.
type ArtifactsFilter struct {
	Job  drover.JobID
	Task drover.TaskID
	Kind string
	List
}

// Artifacts returns a page of artifacts.
func (c *Client) Artifacts(ctx context.Context, f ArtifactsFilter) (protocol.Page[drover.Artifact], error) {
	q := f.query()
	set(q, "job_id", f.Job.String())
	set(q, "task_id", f.Task.String())
	set(q, "kind", f.Kind)
	return get[protocol.Page[drover.Artifact]](ctx, c, "/v1/artifacts", q)
}

// OpenArtifact reads an artifact. A reader that comes to the end has compared
// the SHA-256: content that is not what the artifact says ends in an error
// instead of io.EOF. The caller closes it.
func (c *Client) OpenArtifact(ctx context.Context, id drover.ArtifactID) (io.ReadCloser, drover.Artifact, error) {
	a, err := c.Artifact(ctx, id)
	if err != nil {
		return nil, a, err
	}
	k := call{method: http.MethodGet, path: "/v1/artifacts/" + id.String() + "/content", repeat: true, header: http.Header{"Accept": {"*/*"}}}
	ctx, cancel := context.WithCancelCause(ctx)
	w := watch(c.timeout, cancel)
	for n := 0; ; n++ {
		res, err := c.send(ctx, k, nil)
		if err == nil {
			w.set(c.idle)
			return &download{ctx: ctx, cancel: cancel, body: res.Body, idle: w, of: a, sum: sha256.New()}, a, nil
		}
		delay, again := c.again(k, n, err)
		if !again || ctx.Err() != nil || sleep(ctx, delay) != nil {
			w.stop()
			err = stalled(ctx, err)
			cancel(nil)
			return nil, a, err
		}
		w.moved()
	}
}

// download is the content of an artifact on its way.
type download struct {
	ctx    context.Context // of the request; only to tell why it ended
	cancel context.CancelCauseFunc
	body   io.ReadCloser
	idle   *watchdog
	of     drover.Artifact
	sum    hash.Hash
	size   int64
}

// Read reads the content, and at its end compares.
func (d *download) Read(p []byte) (int, error) {
	n, err := d.body.Read(p)
	d.idle.moved()
	d.sum.Write(p[:n])
	d.size += int64(n)
	switch {
	case err == io.EOF && (d.size != d.of.Size || hex.EncodeToString(d.sum.Sum(nil)) != d.of.SHA256):
		return n, fmt.Errorf("read %s: the %d bytes that came are not the artifact's %d with SHA-256 %s", d.of.URI, d.size, d.of.Size, d.of.SHA256)
	case err != nil && err != io.EOF:
		return n, fmt.Errorf("read %s: %w", d.of.URI, stalled(d.ctx, err))
	}
	return n, err
}

// Close ends the download.
func (d *download) Close() error {
	d.idle.stop()
	d.cancel(nil)
	return d.body.Close()
}

// watchdog cancels a request in which nothing has moved for a while.
type watchdog struct {
	mu    sync.Mutex
	timer *time.Timer
	limit time.Duration
	done  bool
}

func watch(limit time.Duration, cancel context.CancelCauseFunc) *watchdog {
	w := &watchdog{limit: limit}
	w.timer = time.AfterFunc(limit, func() { cancel(errStalled) })
	return w
}

var errStalled = fmt.Errorf("nothing moved for too long: %w", context.DeadlineExceeded)

func (w *watchdog) moved() { w.set(0) }

// set starts the wait anew, with another limit unless that is zero.
func (w *watchdog) set(limit time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if limit > 0 {
		w.limit = limit
	}
	if !w.done {
		w.timer.Reset(w.limit)
	}
}

func (w *watchdog) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = true
	w.timer.Stop()
}

// stalled returns the watchdog's reason where that ended ctx, and err otherwise.
func stalled(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		return errStalled
	}
	return err
}
