package gateway

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

const (
	// lookEvery is how often it is looked, while handlers wait here, if there is
	// something for them without a sign.
	lookEvery = 100 * time.Millisecond
	// signGap is the least time between two looks.
	signGap = 5 * time.Millisecond
)

// lockHub knows which handlers wait here for locks and at barriers. One look serves all
// of them; none holds a connection of the database meanwhile.
type lockHub struct {
	mu      sync.Mutex
	waiting map[*lockWaiter]struct{} // of mu
	sign    chan struct{}            // holds one
}

// lockWaiter is a handler's call that waits.
type lockWaiter struct {
	ask  engine.LockAsk
	last engine.LockAnswer // of lockHub.mu
	done chan struct{}     // closed when last is the answer, or the request must be made again
	gone bool              // of lockHub.mu: it must
}

func (h *lockHub) join(w *lockWaiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting[w] = struct{}{}
	h.signal()
}

// leave takes the waiter out and returns what is known of its request.
func (h *lockHub) leave(w *lockWaiter) (last engine.LockAnswer, gone bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.waiting, w)
	return w.last, w.gone
}

// signal has the hub look soon. It needs mu.
func (h *lockHub) signal() {
	if len(h.waiting) == 0 {
		return
	}
	select {
	case h.sign <- struct{}{}:
	default:
	}
}

// woken says that there may be something for who waits here.
func (h *lockHub) woken() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.signal()
}

func (h *lockHub) all() []*lockWaiter {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]*lockWaiter, 0, len(h.waiting))
	for w := range h.waiting {
		list = append(list, w)
	}
	return list
}

// answer passes on what a look found.
func (h *lockHub) answer(w *lockWaiter, a engine.LockAnswer, gone bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.waiting[w]; !ok {
		return
	}
	if w.gone = gone; !gone {
		w.last = a
	}
	if gone || a.Done() {
		delete(h.waiting, w)
		close(w.done)
	}
}

// lookLocks looks how those stand who wait here, at a sign and now and then.
func (g *Gateway) lookLocks(ctx context.Context) {
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.locks.sign:
		case <-t.C:
		}
		g.lookOnce(ctx)
		if g.pause(ctx, signGap, nil) != nil {
			return
		}
	}
}

func (g *Gateway) lookOnce(ctx context.Context) {
	list := g.locks.all()
	if len(list) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readLimit)
	defer cancel()
	asks := make([]engine.LockAsk, len(list))
	for i, w := range list {
		asks[i] = w.ask
	}
	got, gone, err := g.engine.LookLocks(ctx, asks)
	if err != nil {
		return // with the next look; who has waited long enough asks again
	}
	for i, w := range list {
		g.locks.answer(w, got[i], gone[i])
	}
}

// granted passes on that handlers have got what they waited for, here and elsewhere.
func (g *Gateway) granted() {
	g.locks.woken()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unannounced.locks = true
	g.announceSoon()
}

// ask carries out a handler's request, and waits where it is put in line. What has not
// come by then is answered as it stands.
func (g *Gateway) ask(ctx context.Context, a engine.LockAsk, wait time.Duration) (engine.LockAnswer, error) {
	for until := time.Now().Add(wait); ; {
		out, err := g.asks.Do(ctx, a)
		rest := time.Until(until)
		if err != nil || out.Err != nil {
			return out, cmp.Or(err, out.Err)
		}
		if out.Done() || rest <= 0 || a.Unlock != nil || a.Meet != nil && a.Meet.Leave {
			return out, nil
		}
		w := &lockWaiter{ask: a, last: out, done: make(chan struct{})}
		g.locks.join(w)
		t := time.NewTimer(rest)
		select {
		case <-w.done:
		case <-t.C:
		case <-g.stopping:
		case <-ctx.Done():
		}
		t.Stop()
		last, gone := g.locks.leave(w)
		if ctx.Err() != nil {
			return last, context.Cause(ctx)
		}
		if !gone || !g.running() {
			return last, last.Err
		}
	}
}

// Lock takes permits of a limit for the handler of a running task, waiting up to n.Wait,
// at most 20 s.
func (g *Gateway) Lock(ctx context.Context, c engine.Caller, h drover.Held, n drover.NewLock) (drover.Lock, error) {
	out, err := g.ask(ctx, engine.LockAsk{Caller: c, Held: h, Lock: &n}, n.Wait.Std())
	return out.Lock, err
}

// Unlock gives back what a handler has taken, or waits for.
func (g *Gateway) Unlock(ctx context.Context, c engine.Caller, h drover.Held, n drover.NewUnlock) error {
	_, err := g.ask(ctx, engine.LockAsk{Caller: c, Held: h, Unlock: &n}, 0)
	return err
}

// Meet brings the handler of a running task to a barrier, waiting up to n.Wait, at most
// 20 s, for the others.
func (g *Gateway) Meet(ctx context.Context, c engine.Caller, h drover.Held, n drover.NewMeeting) (drover.Meeting, error) {
	out, err := g.ask(ctx, engine.LockAsk{Caller: c, Held: h, Meet: &n}, n.Wait.Std())
	return out.Meeting, err
}
