package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/protocol"
	"github.com/drover-dev/drover/test/chaos/journal"
	"github.com/drover-dev/drover/worker"
)

// workerEnv makes this program a worker. It holds the folder of the journals.
const workerEnv = "DROVER_CHAOS_WORKER"

// effort is the input of the handlers.
type effort struct {
	N int `json:"n"`
	// Ms is how long it takes; Fail how many attempts fail first; Poison says that
	// all do, until somebody replays it with another input.
	Ms     int  `json:"ms,omitempty"`
	Fail   int  `json:"fail,omitempty"`
	Poison bool `json:"poison,omitempty"`
	// Deaf says that the handler does not heed its context's end; Save that it
	// uploads what it did.
	Deaf bool `json:"deaf,omitempty"`
	Save bool `json:"save,omitempty"`
}

func hexOf[T ~[16]byte](id T) string { return hex.EncodeToString(id[:]) }

// workerMain runs handlers until SIGTERM.
func workerMain() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	name := os.Getenv("NAME")
	j, err := journal.Open(filepath.Join(os.Getenv(workerEnv), fmt.Sprintf("effect-%s-%d.jsonl", name, os.Getpid())))
	if err != nil {
		return err
	}
	slots, err := strconv.Atoi(os.Getenv("SLOTS"))
	if err != nil {
		return err
	}
	c, err := client.New(client.Config{URL: os.Getenv("DROVER_URL"), Token: os.Getenv("DROVER_TOKEN"), UserAgent: "chaos-worker"})
	if err != nil {
		return err
	}
	grace := 20 * time.Second
	if g := os.Getenv("GRACE"); g != "" {
		if grace, err = time.ParseDuration(g); err != nil {
			return err
		}
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	conn := noted{c, j}
	if os.Getenv("RUDE") != "" {
		return rude(ctx, conn, j, name, slots, log)
	}
	w := worker.New(conn, worker.Config{Queues: []string{cmp.Or(os.Getenv("QUEUE"), "chaos")}, Slots: slots, Name: name, Logger: log, Grace: grace, CancelGrace: 5 * time.Second})
	for _, kind := range []string{"work", "poison", "split", "piece", "join"} {
		w.HandleFunc(kind, func(ctx context.Context, t *worker.Task) (any, error) { return handle(ctx, j, t) })
	}
	return w.Run(ctx)
}

// handle is every handler: it notes around what it does.
func handle(ctx context.Context, j *journal.Writer, t *worker.Task) (out any, err error) {
	if err := j.Write(entry(journal.Begin, &t.Lease, name())); err != nil {
		return nil, err
	}
	defer func() {
		r := entry(journal.End, &t.Lease, name())
		switch {
		case err == nil:
			r.Outcome = drover.OutcomeSucceeded
		case ctx.Err() != nil:
			r.Outcome = "stopped"
		default:
			r.Outcome = drover.OutcomeFailed
		}
		if jerr := j.Write(r); jerr != nil && err == nil {
			err = jerr
		}
	}()
	return act(ctx, t)
}

func name() string { return os.Getenv("NAME") }

func entry(is string, l *drover.Lease, by string) journal.Record {
	return journal.Record{Is: is, Task: hexOf(l.TaskID), Job: hexOf(l.JobID), Lease: l.LeaseVersion, Generation: l.Generation, Attempt: l.Attempt, Most: l.MaxAttempts,
		Name: l.Name, Index: l.Index, Whom: by}
}

func act(ctx context.Context, t *worker.Task) (any, error) {
	switch t.Kind {
	case "join":
		var parts []int
		if err := t.Bind(&parts); err != nil {
			return nil, err
		}
		sum := 0
		for _, n := range parts {
			sum += n
		}
		return sum, nil
	case "split":
		var in effort
		if err := t.Bind(&in); err != nil {
			return nil, err
		}
		list := make([]effort, in.N)
		for i := range list {
			list[i] = effort{N: i, Ms: rand.IntN(150)}
			if rand.IntN(8) == 0 {
				list[i].Fail = 1
			}
		}
		return list, nil
	}
	var in effort
	if err := t.Bind(&in); err != nil {
		return nil, err
	}
	pass := time.NewTimer(time.Duration(in.Ms) * time.Millisecond)
	defer pass.Stop()
	done := ctx.Done()
	if in.Deaf {
		done = nil
	}
	select {
	case <-pass.C:
	case <-done:
		return nil, context.Cause(ctx)
	}
	t.Progress(0.5, "half")
	switch {
	case in.Poison:
		return nil, errors.New("poison")
	case t.Attempt <= in.Fail:
		t.Log().Info("it fails", "attempt", t.Attempt)
		return nil, errors.New("not yet")
	}
	if in.Save {
		if _, err := t.SaveArtifact(ctx, "n.txt", strings.NewReader(strconv.Itoa(in.N)), worker.WithKind("number")); err != nil {
			return nil, err
		}
	}
	return in.N, nil
}

// noted is a transport that notes how the server answered for each outcome.
type noted struct {
	*client.Client
	j *journal.Writer
}

var _ protocol.Worker = noted{}

// Settle reports, and notes.
func (n noted) Settle(ctx context.Context, r protocol.SettleRequest) (protocol.SettleResponse, error) {
	got, err := n.Client.Settle(ctx, r)
	list := make([]journal.Record, len(r.Outcomes))
	for i, o := range r.Outcomes {
		list[i] = journal.Record{Is: journal.Settle, Task: hexOf(o.TaskID), Lease: o.LeaseVersion, Outcome: o.Status, Whom: name()}
		switch {
		case err != nil && drover.CodeOf(err) == "":
			list[i].Verb = journal.Unknown
		case err != nil:
			list[i].Verb, list[i].Code = journal.Fail, string(drover.CodeOf(err))
		case i < len(got.Results) && got.Results[i].Error != nil:
			list[i].Verb, list[i].Code = journal.Fail, string(got.Results[i].Error.Code)
		case i < len(got.Results):
			list[i].Verb, list[i].Status = journal.OK, got.Results[i].Status.String()
		}
	}
	if jerr := n.j.Write(list...); jerr != nil {
		return got, jerr
	}
	return got, err
}

// rude is a worker that minds no lease: it renews when it likes to, works as long
// as it likes, and reports what it did under whatever session it has.
func rude(ctx context.Context, conn noted, j *journal.Writer, name string, slots int, log *slog.Logger) error {
	for ctx.Err() == nil {
		if err := rudeSession(ctx, conn, j, name, slots); err != nil && ctx.Err() == nil {
			log.Info("session ended", "err", err)
			time.Sleep(100 * time.Millisecond)
		}
	}
	return nil
}

func rudeSession(ctx context.Context, conn noted, j *journal.Writer, name string, slots int) error {
	s, err := conn.OpenSession(ctx, drover.NewSession{Worker: name, Queues: []string{"chaos"}, Kinds: []string{"work"}, Slots: slots})
	if err != nil {
		return err
	}
	late := true // the first time, and now and then
	for number := int64(1); ctx.Err() == nil; number++ {
		leases, err := conn.Acquire(ctx, drover.Acquire{Session: s.ID, Max: slots, Number: number, Wait: drover.Duration(2 * time.Second)})
		if err != nil {
			return err
		}
		if len(leases) == 0 {
			continue
		}
		begun := make([]journal.Record, len(leases))
		for i := range leases {
			begun[i] = entry(journal.Begin, &leases[i], name)
		}
		if err := j.Write(begun...); err != nil {
			return err
		}
		nap := time.Duration(rand.Int64N(int64(s.LeaseFor.Std() / 4)))
		if late {
			nap = s.LeaseFor.Std()*3/2 + time.Duration(rand.Int64N(int64(2*s.LeaseFor.Std())))
		}
		late = rand.IntN(4) == 0
		time.Sleep(nap)
		outcomes := make([]drover.Outcome, len(leases))
		for i, l := range leases {
			outcomes[i] = drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeSucceeded, Output: json.RawMessage(`"rude"`)}
			begun[i].Is, begun[i].Outcome = journal.End, drover.OutcomeSucceeded
		}
		if err := j.Write(begun...); err != nil {
			return err
		}
		for try := 0; ; try++ { // an outcome whose answer is lost is asked for again
			got, err := conn.Settle(ctx, protocol.SettleRequest{Session: s.ID, Outcomes: outcomes})
			if err == nil {
				for _, r := range got.Results {
					if r.Error != nil { // the session may be over
						return errors.New(string(r.Error.Code))
					}
				}
				break
			}
			if code := drover.CodeOf(err); try > 20 || code != "" && code != drover.CodeOverloaded && code != drover.CodeInternal {
				return err
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	return conn.CloseSession(context.WithoutCancel(ctx), s.ID)
}
