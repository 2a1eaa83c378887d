package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// peer is the other side of the protocol, scripted: it hands out the leases it
// is given, keeps every outcome, and does wrong what a test tells it to.
type peer struct {
	mu       sync.Mutex
	sessions int64
	opened   []drover.NewSession
	closed   []drover.SessionID
	ready    []drover.Lease
	arrived  chan struct{} // a lease came; holds one
	outcomes []drover.Outcome
	batches  []protocol.SettleRequest
	acquires []drover.Acquire
	renewals []drover.Renewal
	beats    []string // details of heartbeats
	onBeat   func(n int) error
	onLock   func(n drover.NewLock) (drover.Lock, error)
	onMeet   func(n drover.NewMeeting) (drover.Meeting, error)
	unlocked []int32
	refusals []string
	progress []drover.Progress
	lines    []drover.LogLine
	appends  int
	stored   map[drover.ArtifactID]string
	cancel   []drover.Held // told with the next renewals
	lost     []drover.Held

	leaseFor time.Duration
	// Each may fail a call; nil does not.
	onOpen    func(n int) error
	onRenew   func(ctx context.Context, n int) error
	onAcquire func(ctx context.Context, n int) error
	onSettle  func(n int, r protocol.SettleRequest) error
	onItem    func(o drover.Outcome) *drover.Error
	onLogs    func(n int) error
	noWait    bool // acquires do not wait
}

func newPeer(leases ...drover.Lease) *peer {
	p := &peer{arrived: make(chan struct{}, 1), leaseFor: 30 * time.Second, stored: map[drover.ArtifactID]string{}}
	p.add(leases...)
	return p
}

func taskID(n int) drover.TaskID {
	return drover.TaskID(drover.MakeID(1767225600000, [10]byte{8: byte(n >> 8), 9: byte(n)}))
}

// lease makes the nth lease of a test.
func lease(n int, kind, input string) drover.Lease {
	l := drover.Lease{TaskID: taskID(n), LeaseVersion: 1, Kind: kind, Name: kind, Queue: "default", Generation: 1, Attempt: 1, MaxAttempts: 4, IdempotencyKey: taskID(n).String() + ".1"}
	if input != "" {
		l.Input = []byte(input)
	}
	return l
}

func held(n int) drover.Held { return drover.Held{TaskID: taskID(n), LeaseVersion: 1} }

func (p *peer) add(leases ...drover.Lease) {
	p.mu.Lock()
	p.ready = append(p.ready, leases...)
	p.mu.Unlock()
	wake(p.arrived)
}

func (p *peer) OpenSession(_ context.Context, s drover.NewSession) (drover.Session, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opened = append(p.opened, s)
	if p.onOpen != nil {
		if err := p.onOpen(len(p.opened)); err != nil {
			return drover.Session{}, err
		}
	}
	p.sessions++
	return drover.Session{ID: drover.SessionID(p.sessions), LeaseFor: drover.Duration(p.leaseFor), RenewEvery: drover.Duration(p.leaseFor / 3)}, nil
}

func (p *peer) Renew(ctx context.Context, _ drover.SessionID, r drover.Renewal) (drover.Renewed, error) {
	p.mu.Lock()
	p.renewals = append(p.renewals, r)
	n, hook := len(p.renewals), p.onRenew
	p.mu.Unlock()
	if hook != nil {
		if err := hook(ctx, n); err != nil {
			return drover.Renewed{}, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return drover.Renewed{LeaseFor: drover.Duration(p.leaseFor), Cancelled: p.cancel, Lost: p.lost}, nil
}

func (p *peer) CloseSession(_ context.Context, id drover.SessionID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = append(p.closed, id)
	return nil
}

func (p *peer) grab(max int) []drover.Lease {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(max, len(p.ready))
	out := p.ready[:n:n]
	p.ready = p.ready[n:]
	return out
}

func (p *peer) Acquire(ctx context.Context, a drover.Acquire) ([]drover.Lease, error) {
	p.mu.Lock()
	p.acquires = append(p.acquires, a)
	n, hook, noWait := len(p.acquires), p.onAcquire, p.noWait
	p.mu.Unlock()
	if hook != nil {
		if err := hook(ctx, n); err != nil {
			return nil, err
		}
	}
	t := time.NewTimer(a.Wait.Std())
	defer t.Stop()
	for {
		if got := p.grab(a.Max); len(got) > 0 || noWait {
			return got, nil
		}
		select {
		case <-p.arrived:
		case <-t.C:
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (p *peer) Settle(_ context.Context, r protocol.SettleRequest) (protocol.SettleResponse, error) {
	p.mu.Lock()
	p.batches = append(p.batches, r)
	n, hook := len(p.batches), p.onSettle
	p.mu.Unlock()
	if hook != nil {
		if err := hook(n, r); err != nil {
			return protocol.SettleResponse{}, err
		}
	}
	out := protocol.SettleResponse{}
	p.mu.Lock()
	for _, o := range r.Outcomes {
		res := protocol.SettleResult{TaskID: o.TaskID, Status: drover.Succeeded}
		if p.onItem != nil {
			if e := p.onItem(o); e != nil {
				res.Error = protocol.FromError(e)
			}
		}
		if res.Error == nil {
			p.outcomes = append(p.outcomes, o)
		}
		out.Results = append(out.Results, res)
	}
	p.mu.Unlock()
	if r.Acquire != nil {
		out.Leases = p.grab(r.Acquire.Max)
	}
	return out, nil
}

func (p *peer) SetProgress(_ context.Context, _ drover.Held, g drover.Progress) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.progress = append(p.progress, g)
	return nil
}

func (p *peer) Heartbeat(_ context.Context, _ drover.Held, details json.RawMessage) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.onBeat != nil {
		if err := p.onBeat(len(p.beats)); err != nil {
			return err
		}
	}
	p.beats = append(p.beats, string(details))
	return nil
}

func (p *peer) Lock(_ context.Context, _ drover.Held, n drover.NewLock) (drover.Lock, error) {
	return p.onLock(n)
}

func (p *peer) Unlock(_ context.Context, _ drover.Held, n drover.NewUnlock) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unlocked = append(p.unlocked, n.Number)
	return nil
}

func (p *peer) Meet(_ context.Context, _ drover.Held, n drover.NewMeeting) (drover.Meeting, error) {
	return p.onMeet(n)
}

func (p *peer) AppendLogs(_ context.Context, _ drover.Held, lines []drover.LogLine) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.appends++
	if p.onLogs != nil {
		if err := p.onLogs(p.appends); err != nil {
			return err
		}
	}
	p.lines = append(p.lines, lines...)
	return nil
}

func (p *peer) PutArtifact(_ context.Context, h drover.Held, a drover.Artifact, r io.Reader) (drover.Artifact, error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return a, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	a.ID = drover.ArtifactID(drover.MakeID(1767225600000, [10]byte{9: byte(len(p.stored) + 1)}))
	a.TaskID, a.URI, a.Size = h.TaskID, drover.URIOf(a.ID), int64(len(b))
	p.stored[a.ID] = string(b)
	return a, nil
}

func (p *peer) OpenArtifact(_ context.Context, id drover.ArtifactID) (io.ReadCloser, drover.Artifact, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.stored[id]
	if !ok {
		return nil, drover.Artifact{}, drover.Errorf(drover.CodeNotFound, "there is no artifact %s", id)
	}
	return io.NopCloser(strings.NewReader(s)), drover.Artifact{ID: id}, nil
}

// outcome returns the one outcome recorded for the nth lease.
func (p *peer) outcome(t *testing.T, n int) drover.Outcome {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []drover.Outcome
	for _, o := range p.outcomes {
		if o.TaskID == taskID(n) {
			found = append(found, o)
		}
	}
	if len(found) != 1 {
		t.Fatalf("task %d has %d outcomes, want 1: %+v", n, len(found), found)
	}
	return found[0]
}

func (p *peer) outcomesOf(n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := 0
	for _, o := range p.outcomes {
		if o.TaskID == taskID(n) {
			c++
		}
	}
	return c
}

// running is a worker under test.
type running struct {
	*Worker
	stop func()
	done chan error
}

// run starts w; wait stops it and returns what Run returned.
func run1(t *testing.T, w *Worker) *running {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	r := &running{w, stop, make(chan error, 1)}
	go func() { r.done <- w.Run(ctx) }()
	return r
}

func (r *running) wait(t *testing.T) {
	t.Helper()
	r.stop()
	if err := <-r.done; err != nil {
		t.Errorf("Run returned %v", err)
	}
}

var errGone = errors.New("connection reset by peer")

// obey is a handler that works until its context ends and returns the cause.
func obey(ctx context.Context, _ *Task) (any, error) {
	<-ctx.Done()
	return nil, fmt.Errorf("stopped: %w", context.Cause(ctx))
}

// rest lets d go by and everybody come to rest.
func rest(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
