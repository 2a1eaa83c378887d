//go:build unix

package executor

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
	"github.com/drover-dev/drover/worker"
)

func TestMain(m *testing.M) {
	if os.Getenv("EXECUTOR_TEST_WORKER") != "" {
		beAWorker()
	}
	goleak.VerifyTestMain(m)
}

var taskA = drover.TaskID(drover.MakeID(1767225600000, [10]byte{9: 1}))

// peer hands out one lease and keeps what comes back.
type peer struct {
	leases  chan drover.Lease
	settled chan drover.Outcome

	mu       sync.Mutex
	lines    []drover.LogLine
	beats    []string // details of heartbeats
	onBeat   func(n int) error
	progress []drover.Progress
	stored   map[drover.ArtifactID]drover.Artifact
	content  map[drover.ArtifactID]string
	cancel   []drover.Held
	leaseFor time.Duration
}

func newPeer() *peer {
	return &peer{leases: make(chan drover.Lease, 1), settled: make(chan drover.Outcome, 1), stored: map[drover.ArtifactID]drover.Artifact{}, content: map[drover.ArtifactID]string{}, leaseFor: 300 * time.Millisecond}
}

func (p *peer) OpenSession(context.Context, drover.NewSession) (drover.Session, error) {
	return drover.Session{ID: 1, LeaseFor: drover.Duration(p.leaseFor)}, nil
}

func (p *peer) Renew(context.Context, drover.SessionID, drover.Renewal) (drover.Renewed, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return drover.Renewed{LeaseFor: drover.Duration(10 * time.Second), Cancelled: p.cancel}, nil
}

func (p *peer) CloseSession(context.Context, drover.SessionID) error { return nil }

func (p *peer) Acquire(ctx context.Context, _ drover.Acquire) ([]drover.Lease, error) {
	select {
	case l := <-p.leases:
		return []drover.Lease{l}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *peer) Settle(_ context.Context, r protocol.SettleRequest) (protocol.SettleResponse, error) {
	out := protocol.SettleResponse{}
	for _, o := range r.Outcomes {
		p.settled <- o
		out.Results = append(out.Results, protocol.SettleResult{TaskID: o.TaskID, Status: drover.Succeeded})
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

func (p *peer) Lock(context.Context, drover.Held, drover.NewLock) (drover.Lock, error) {
	return drover.Lock{}, errors.New("no executor takes locks")
}

func (p *peer) Unlock(context.Context, drover.Held, drover.NewUnlock) error { return nil }

func (p *peer) Meet(context.Context, drover.Held, drover.NewMeeting) (drover.Meeting, error) {
	return drover.Meeting{}, errors.New("no executor comes to barriers")
}

func (p *peer) AppendLogs(_ context.Context, _ drover.Held, lines []drover.LogLine) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines = append(p.lines, lines...)
	return nil
}

func (p *peer) PutArtifact(_ context.Context, _ drover.Held, a drover.Artifact, r io.Reader) (drover.Artifact, error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return a, err
	}
	return p.store(a, string(b)), nil
}

func (p *peer) store(a drover.Artifact, content string) drover.Artifact {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.stored) + 1
	a.ID = drover.ArtifactID(drover.MakeID(1767225600000, [10]byte{8: byte(n >> 8), 9: byte(n)}))
	a.URI = drover.URIOf(a.ID)
	p.stored[a.ID], p.content[a.ID] = a, content
	return a
}

func (p *peer) OpenArtifact(_ context.Context, id drover.ArtifactID) (io.ReadCloser, drover.Artifact, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, ok := p.content[id]
	if !ok {
		return nil, drover.Artifact{}, drover.Errorf(drover.CodeNotFound, "there is no artifact %s", id)
	}
	return io.NopCloser(strings.NewReader(c)), p.stored[id], nil
}

// text returns the lines of a level, one below the other.
func (p *peer) text(level string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b strings.Builder
	for _, l := range p.lines {
		if l.Level == level {
			b.WriteString(l.Text + "\n")
		}
	}
	return b.String()
}

// do runs one task and returns its outcome.
func (p *peer) do(t *testing.T, h worker.Handler, l drover.Lease) drover.Outcome {
	t.Helper()
	w := worker.New(p, worker.Config{Slots: 1, Name: "test", CancelGrace: 20 * time.Second})
	w.HandleFunc("it", h)
	l.TaskID, l.LeaseVersion, l.Kind = taskA, 3, "it"
	if l.IdempotencyKey == "" {
		l.IdempotencyKey = taskA.String() + ".1"
	}
	p.leases <- l
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	var o drover.Outcome
	select {
	case o = <-p.settled:
	case <-time.After(30 * time.Second):
		t.Error("the task did not end within 30 s")
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	return o
}

func inputOf(t *testing.T, v any) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
