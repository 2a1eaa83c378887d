package gateway

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/drover-dev/drover"
)

// batcher hands on together what arrived while the previous batch was under
// way. There is no timer: at low load a call is a batch of its own, at high
// load batches grow up to max. Of one key at most abreast batches are under way
// at a time; those of different keys run beside each other on the batcher's workers.
type batcher[K comparable, In, Out any] struct {
	// do carries out a batch and answers each item in its place, or fails whole.
	do func(ctx context.Context, in []In) ([]Out, error)
	// key says which calls may share a batch.
	key func(In) K
	// weigh says how much of max an item takes up; a heavier one goes alone.
	weigh func(In) int
	// again says which items may be carried out once more after a failure that
	// leaves open what became of them.
	again func(In) bool
	// max bounds the weight of a batch, room the calls that wait for one, abreast
	// the batches of one key that are under way at a time.
	max, room, abreast int
	// limit bounds how long a batch may take.
	limit time.Duration

	mu    sync.Mutex
	cond  *sync.Cond // of mu: work arrived, a line became free, or the end came
	open  bool
	waits int                  // calls in all lines
	lines map[K]*line[In, Out] // keys with calls that wait or a batch under way
	ready []K                  // keys with calls that wait and may have another batch under way, the longest first
}

type line[In, Out any] struct {
	calls []*call[In, Out]
	busy  int  // batches of it that are under way
	ready bool // its key is in batcher.ready
}

type call[In, Out any] struct {
	in    In
	out   Out
	err   error
	taken bool          // of batcher.mu
	done  chan struct{} // closed when out and err are set
}

func newBatcher[K comparable, In, Out any](max, room, abreast int, limit time.Duration, key func(In) K, weigh func(In) int, again func(In) bool, do func(context.Context, []In) ([]Out, error)) *batcher[K, In, Out] {
	b := &batcher[K, In, Out]{do: do, key: key, weigh: weigh, again: again, max: max, room: room, abreast: abreast, limit: limit, lines: map[K]*line[In, Out]{}}
	b.cond = sync.NewCond(&b.mu)
	return b
}

// Do adds in to the next batch and waits for its answer. When ctx ends first, a
// call that no batch has taken yet is withdrawn and has no effect; one that was
// taken goes on without its caller.
func (b *batcher[K, In, Out]) Do(ctx context.Context, in In) (Out, error) {
	var none Out
	if err := ctx.Err(); err != nil {
		return none, context.Cause(ctx)
	}
	c := &call[In, Out]{in: in, done: make(chan struct{})}
	if err := b.enter(c); err != nil {
		return none, err
	}
	select {
	case <-c.done:
		return c.out, c.err
	case <-ctx.Done():
		b.withdraw(c)
		return none, context.Cause(ctx)
	}
}

func (b *batcher[K, In, Out]) enter(c *call[In, Out]) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open {
		return errNotRunning()
	}
	if b.waits >= b.room {
		e := drover.Errorf(drover.CodeOverloaded, "%d calls wait already; ask again", b.waits)
		e.RetryAfter = time.Second
		return e
	}
	k := b.key(c.in)
	l := b.lines[k]
	if l == nil {
		l = &line[In, Out]{}
		b.lines[k] = l
	}
	l.calls = append(l.calls, c)
	b.waits++
	b.call(k, l)
	return nil
}

// call puts a line whose turn may come into the list of those. It needs mu.
func (b *batcher[K, In, Out]) call(k K, l *line[In, Out]) {
	if l.busy >= b.abreast || l.ready {
		return
	}
	l.ready = true
	b.ready = append(b.ready, k)
	b.cond.Signal()
}

// withdraw takes a call that no batch has taken out of its line.
func (b *batcher[K, In, Out]) withdraw(c *call[In, Out]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.taken {
		return
	}
	l := b.lines[b.key(c.in)]
	for i, other := range l.calls {
		if other == c {
			l.calls = append(l.calls[:i], l.calls[i+1:]...)
			b.waits--
			return // an empty line is dropped by the worker that comes to it
		}
	}
}

// Open lets calls in, which Run will carry out.
func (b *batcher[K, In, Out]) Open() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open = true
}

// Run carries out batches on the given number of workers until ctx ends, then
// what had been accepted by then, and returns. Calls after that are refused.
func (b *batcher[K, In, Out]) Run(ctx context.Context, workers int) {
	defer context.AfterFunc(ctx, b.shut)()
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				k, batch := b.take()
				if batch == nil {
					return
				}
				b.carryOut(context.WithoutCancel(ctx), batch)
				b.free(k)
			}
		})
	}
	wg.Wait()
}

func (b *batcher[K, In, Out]) shut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open = false
	b.cond.Broadcast()
}

// take waits for calls and takes a batch of them; none when the end has come
// and nothing waits.
func (b *batcher[K, In, Out]) take() (K, []*call[In, Out]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		for len(b.ready) > 0 {
			k := b.ready[0]
			b.ready = b.ready[1:]
			l := b.lines[k]
			l.ready = false
			if len(l.calls) == 0 { // all withdrawn
				b.drop(k, l)
				continue
			}
			n, weight := 0, 0
			for n < len(l.calls) {
				w := b.weigh(l.calls[n].in)
				if n > 0 && weight+w > b.max {
					break
				}
				weight += w
				n++
			}
			batch := make([]*call[In, Out], n)
			copy(batch, l.calls)
			rest := copy(l.calls, l.calls[n:])
			clear(l.calls[rest:])
			l.calls = l.calls[:rest]
			for _, c := range batch {
				c.taken = true
			}
			l.busy++
			b.waits -= n
			if len(l.calls) > 0 {
				b.call(k, l)
			}
			return k, batch
		}
		if !b.open && b.waits == 0 {
			b.cond.Broadcast()
			var none K
			return none, nil
		}
		b.cond.Wait()
	}
}

// free lets the next batch of a key go.
func (b *batcher[K, In, Out]) free(k K) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.lines[k]
	l.busy--
	if len(l.calls) == 0 {
		b.drop(k, l)
		return
	}
	b.call(k, l)
}

// drop forgets a line of which nothing waits and nothing is under way. It needs mu.
func (b *batcher[K, In, Out]) drop(k K, l *line[In, Out]) {
	if l.busy == 0 && !l.ready {
		delete(b.lines, k)
	}
}

// carryOut does a batch. One that is refused whole is halved until the refusal
// meets the call it is about, so that nobody is refused for a neighbour. One
// that fails whole is tried again call by call, in case one of them is poison.
func (b *batcher[K, In, Out]) carryOut(ctx context.Context, batch []*call[In, Out]) {
	in := make([]In, len(batch))
	for i, c := range batch {
		in[i] = c.in
	}
	out, err := b.guarded(ctx, in)
	switch {
	case err == nil:
		for i, c := range batch {
			c.end(out[i], nil)
		}
	case len(batch) > 1 && isRefusal(err):
		half := len(batch) / 2
		b.carryOut(ctx, batch[:half])
		b.carryOut(ctx, batch[half:])
	case len(batch) > 1 && !isOverload(err):
		b.oneByOne(ctx, batch, err)
	default:
		for _, c := range batch {
			c.end(*new(Out), err)
		}
	}
}

// oneByOne carries out the calls of a batch that failed, those that may be
// repeated. Failures in a row are not poison but a server that cannot work;
// then the rest fail at once.
func (b *batcher[K, In, Out]) oneByOne(ctx context.Context, batch []*call[In, Out], failure error) {
	const enough = 3
	row := 0
	for _, c := range batch {
		if row >= enough || !b.again(c.in) {
			c.end(*new(Out), failure)
			continue
		}
		out, err := b.guarded(ctx, []In{c.in})
		if err != nil {
			if row++; isRefusal(err) {
				row = 0
			}
			c.end(*new(Out), err)
			continue
		}
		row = 0
		c.end(out[0], nil)
	}
}

func (c *call[In, Out]) end(out Out, err error) {
	c.out, c.err = out, err
	close(c.done)
}

// guarded calls do with its time limit. A panic there fails the batch, not the
// process: the worker has other callers to serve.
func (b *batcher[K, In, Out]) guarded(ctx context.Context, in []In) (out []Out, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.limit)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			out, err = nil, fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	out, err = b.do(ctx, in)
	if err == nil && len(out) != len(in) {
		err = fmt.Errorf("%d answers to a batch of %d", len(out), len(in))
	}
	return out, err
}

// isRefusal reports whether err says no to what was asked, rather than that the
// server is in no state to answer.
func isRefusal(err error) bool {
	var e *drover.Error
	return errors.As(err, &e) && e.Code != drover.CodeOverloaded && e.Code != drover.CodeInternal
}

// isOverload reports whether err says that the server is too busy, or took too long.
func isOverload(err error) bool {
	return errors.Is(err, drover.ErrOverloaded) || errors.Is(err, context.DeadlineExceeded)
}

func errNotRunning() error {
	e := drover.Errorf(drover.CodeOverloaded, "the server is starting or stopping; ask again")
	e.RetryAfter = time.Second
	return e
}
