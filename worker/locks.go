package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

// unlockFor is how long giving a lock back may take; after that it comes back with the
// end of the attempt.
const unlockFor = 10 * time.Second

// Lock is what a handler holds of a limit, until it gives it back or the attempt ends,
// however it ends: also when the worker is killed, once its lease has run out.
type Lock struct {
	// Token is a fencing token: higher than that of whoever had this lock, or permits of
	// this limit, before. A lease can run out while the handler does not notice; so what
	// must not be changed by two at once keeps the highest token that it has seen, and
	// refuses a lower one.
	Token int64

	t      *Task
	number int32
}

// Unlock gives it back. Doing so again, or after the attempt has lost its lease, is no
// error. It takes no context, so that it can be deferred and works while the handler is
// told to stop; it takes ten seconds at most.
func (l *Lock) Unlock() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.t.run.ctx), unlockFor)
	defer cancel()
	err := l.t.run.w.conn.Unlock(ctx, l.t.run.held, drover.NewUnlock{Number: l.number})
	if err != nil && !errors.Is(err, drover.ErrLeaseLost) {
		return fmt.Errorf("unlock: %w", err)
	}
	return nil
}

// Lock waits until the handler alone holds the lock of a name, which needs no
// preparation: tasks of the tenant that lock the same name take turns, in the order in
// which they asked. If there is a limit of that name it must be one of one permit, and
// tasks that are admitted by it take turns with the handlers.
//
// It waits as long as ctx does. Waiting that would never end, because who holds the lock
// waits for something that this task holds, is refused at once with drover.ErrDeadlock,
// and the error names the ring. A task that waits keeps its slot and what it holds.
func (t *Task) Lock(ctx context.Context, name string) (*Lock, error) {
	return t.take(ctx, drover.NewLock{Name: name, Permits: 1, Exclusive: true})
}

// Acquire waits until the handler holds n permits of a limit of scope named, beside
// whatever the task was admitted with; otherwise it is as Lock. A task holds permits of a
// limit by one Acquire at a time.
func (t *Task) Acquire(ctx context.Context, limit string, n int64) (*Lock, error) {
	if n < 1 {
		return nil, Permanent(fmt.Errorf("lock %s: %d permits are asked for; at least 1", limit, n))
	}
	return t.take(ctx, drover.NewLock{Name: limit, Permits: n})
}

func (t *Task) take(ctx context.Context, n drover.NewLock) (*Lock, error) {
	if t.run == nil {
		return nil, fmt.Errorf("lock %s: the task is not run by a worker", n.Name)
	}
	n.Number = t.run.asks.Add(1)
	var last drover.Lock
	err := t.wait(ctx, func(ctx context.Context, wait drover.Duration) (bool, error) {
		n.Wait = wait
		got, err := t.run.w.conn.Lock(ctx, t.run.held, n)
		if err == nil {
			last = got
		}
		return got.Granted, err
	})
	if err == nil {
		return &Lock{Token: last.Token, t: t, number: n.Number}, nil
	}
	if drover.CodeOf(err) == "" && t.run.ctx.Err() == nil { // it may stand in line, or have it and not know
		_ = (&Lock{t: t, number: n.Number}).Unlock() // what fails comes back with the attempt's end
	}
	if last.Position > 0 {
		return nil, fmt.Errorf("lock %s: number %d in line: %w", n.Name, last.Position, err)
	}
	return nil, fmt.Errorf("lock %s: %w", n.Name, err)
}

// Barrier waits until so many tasks of the job, this one among them, have called Barrier
// with the name; with the last one all go on. Called again it is about the next meeting:
// the tasks go on round by round.
//
// It waits as long as ctx does; give it a timeout, as nobody knows if the others will
// come: they need as many free slots as there are parties. A task that ends or loses its
// worker while it waits does not count any more, and counts again when its next attempt
// comes. An attempt that follows one that has met goes on at once; a replay is a party of
// its own, so replay those together that are to meet.
func (t *Task) Barrier(ctx context.Context, name string, parties int) error {
	if t.run == nil {
		return fmt.Errorf("barrier %s: the task is not run by a worker", name)
	}
	if parties < 1 || parties > 1<<30 {
		return Permanent(fmt.Errorf("barrier %s: %d parties; at least 1", name, parties))
	}
	n := drover.NewMeeting{Number: t.run.asks.Add(1), Name: name, Parties: int32(parties), Round: t.run.round(name)}
	var last drover.Meeting
	err := t.wait(ctx, func(ctx context.Context, wait drover.Duration) (bool, error) {
		n.Wait = wait
		got, err := t.run.w.conn.Meet(ctx, t.run.held, n)
		if err == nil {
			last = got
		}
		return got.Met, err
	})
	if err == nil {
		t.run.met(name, n.Round)
		return nil
	}
	if drover.CodeOf(err) == "" && t.run.ctx.Err() == nil {
		n.Leave, n.Wait = true, 0
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.run.ctx), unlockFor)
		defer cancel()
		if m, left := t.run.w.conn.Meet(ctx, t.run.held, n); left == nil && m.Met { // all came in this moment
			t.run.met(name, n.Round)
			return nil
		}
	}
	if last.Parties > 0 {
		return fmt.Errorf("barrier %s, round %d: %d of %d came: %w", name, n.Round, last.Arrived, parties, err)
	}
	return fmt.Errorf("barrier %s: %w", name, err)
}

// wait repeats a call that waits until it is done, refused, or ctx or the attempt ends.
func (t *Task) wait(ctx context.Context, call func(context.Context, drover.Duration) (bool, error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(t.run.ctx, func() { cancel(context.Cause(t.run.ctx)) })()
	for {
		wait := protocol.MaxWait
		if end, ok := ctx.Deadline(); ok { // it answers before, with how things stand
			wait = drover.Duration(min(wait.Std(), max(time.Until(end)-time.Until(end)/10, time.Millisecond)))
		}
		done, err := call(ctx, wait)
		switch code := drover.CodeOf(err); {
		case ctx.Err() != nil && !done:
			return context.Cause(ctx)
		case err == nil && done:
			return nil
		case err == nil:
			continue
		case code == drover.CodeValidation || code == drover.CodeExceedsLimit:
			return Permanent(err)
		case code != "" && code != drover.CodeOverloaded:
			return err
		}
		if !sleep(ctx, 500*time.Millisecond, nil) { // the connection fails, or the server is busy
			return context.Cause(ctx)
		}
	}
}

// round is the meeting at a barrier that comes next for the attempt.
func (r *run) round(name string) int32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rounds[name] + 1
}

func (r *run) met(name string, round int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rounds == nil {
		r.rounds = map[string]int32{}
	}
	r.rounds[name] = round
}
