package embedded

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/gateway"
	"github.com/drover-dev/drover/protocol"
)

// clockEvery is how often the database's clock is read.
const clockEvery = 5 * time.Second

var _ protocol.Worker = (*Drover)(nil)

// OpenSession registers a worker.
func (d *Drover) OpenSession(ctx context.Context, s drover.NewSession) (drover.Session, error) {
	return d.gate.OpenSession(ctx, d.caller, s)
}

// Renew extends a session and every lease it holds.
func (d *Drover) Renew(ctx context.Context, id drover.SessionID, r drover.Renewal) (drover.Renewed, error) {
	return d.engine.Renew(ctx, d.caller, id, r)
}

// CloseSession ends a session. One that has ended before is no error.
func (d *Drover) CloseSession(ctx context.Context, id drover.SessionID) error {
	err := d.gate.CloseSession(ctx, d.caller, id)
	if drover.CodeOf(err) == drover.CodeNotFound {
		return nil
	}
	return err
}

// Acquire takes leases, waiting up to a.Wait for the first one.
func (d *Drover) Acquire(ctx context.Context, a drover.Acquire) ([]drover.Lease, error) {
	return d.gate.Acquire(ctx, d.caller, a)
}

// Settle reports outcomes. They share a transaction with those of other workers.
func (d *Drover) Settle(ctx context.Context, r protocol.SettleRequest) (protocol.SettleResponse, error) {
	settled, leases, err := d.gate.Settle(ctx, engine.Settlement{Caller: d.caller, Session: r.Session, Outcomes: r.Outcomes, Acquire: r.Acquire})
	if err != nil {
		return protocol.SettleResponse{}, err
	}
	return gateway.Answer(settled, leases, ""), nil
}

// SetProgress says how far a running task is.
func (d *Drover) SetProgress(ctx context.Context, h drover.Held, p drover.Progress) error {
	return d.engine.SetProgress(ctx, d.caller, h, p)
}

// Heartbeat says that a running attempt lives, and keeps details for the next one.
func (d *Drover) Heartbeat(ctx context.Context, h drover.Held, details json.RawMessage) error {
	return d.engine.Heartbeat(ctx, d.caller, h, details)
}

// Lock takes permits of a limit for the handler of a running attempt, waiting up to n.Wait.
func (d *Drover) Lock(ctx context.Context, h drover.Held, n drover.NewLock) (drover.Lock, error) {
	return d.gate.Lock(ctx, d.caller, h, n)
}

// Unlock gives back what a handler has taken, or waits for.
func (d *Drover) Unlock(ctx context.Context, h drover.Held, n drover.NewUnlock) error {
	return d.gate.Unlock(ctx, d.caller, h, n)
}

// Meet waits up to n.Wait at a barrier for other tasks of the job.
func (d *Drover) Meet(ctx context.Context, h drover.Held, n drover.NewMeeting) (drover.Meeting, error) {
	return d.gate.Meet(ctx, d.caller, h, n)
}

// AppendLogs adds lines to the log of a running attempt.
func (d *Drover) AppendLogs(ctx context.Context, h drover.Held, lines []drover.LogLine) error {
	if len(lines) == 0 {
		return nil
	}
	_, err := d.engine.AppendLogs(ctx, d.caller, h, lines)
	return err
}

// PutArtifact stores an output of a running attempt. It becomes visible when an
// outcome that names it is accepted.
func (d *Drover) PutArtifact(ctx context.Context, h drover.Held, a drover.Artifact, r io.Reader) (drover.Artifact, error) {
	a.MediaType = cmp.Or(a.MediaType, "application/octet-stream")
	return d.engine.StageArtifact(ctx, d.caller, h, a, r)
}

// OpenArtifact reads an artifact. The caller closes the reader.
func (d *Drover) OpenArtifact(ctx context.Context, id drover.ArtifactID) (io.ReadCloser, drover.Artifact, error) {
	blob, a, err := d.engine.OpenArtifact(ctx, d.caller, id)
	if err != nil {
		return nil, a, err
	}
	return blob, a, nil
}

// maxWoken bounds the queues that a transaction wakes with its commit; each is
// a message. Tasks in others are found by polling.
const maxWoken = 16

// queuesOf returns queues in which tasks of the jobs may wait.
func (d *Drover) queuesOf(ctx context.Context, jobs []drover.NewJob) ([]string, error) {
	var queues []string
	seen := map[string]bool{}
	add := func(q string) {
		if q = cmp.Or(q, engine.DefaultQueue); !seen[q] && len(queues) < maxWoken {
			queues = append(queues, q)
		}
		seen[q] = true
	}
	known := map[string]bool{}
	for _, j := range jobs {
		switch {
		case j.Kind != "":
			add(j.Queue)
		case !known[j.Pipeline]:
			known[j.Pipeline] = true
			if err := d.queuesIn(ctx, j.Pipeline, add); err != nil {
				return nil, err
			}
		}
	}
	return queues, nil
}

// queuesIn tells the queues of a pipeline, "name" or "name@3", to add. One that
// does not exist has none; submitting says so.
func (d *Drover) queuesIn(ctx context.Context, pipeline string, add func(string)) error {
	name, version := versionOf(pipeline)
	p, err := d.engine.Pipeline(ctx, d.caller, name, version)
	if drover.CodeOf(err) != "" {
		return nil
	}
	if err != nil {
		return err
	}
	var def struct {
		Defaults struct{ Queue string }
		Tasks    []struct{ Queue string }
	}
	if err := json.Unmarshal(p.Definition, &def); err != nil {
		return fmt.Errorf("read pipeline %q: %w", pipeline, err)
	}
	for _, t := range def.Tasks {
		add(cmp.Or(t.Queue, def.Defaults.Queue))
	}
	return nil
}
