package gateway

import (
	"container/list"
	"sync"
	"sync/atomic"
)

// everyTenant is the tenant of a waiter that serves the whole installation.
const everyTenant int32 = -1

// scope is which tasks a waiter may take. Waiters of one scope can stand in for
// each other; of each scope one is woken.
type scope struct {
	tenant int32
	kinds  string // sorted, a line each; empty is every kind
}

// spot is where an acquire waits: a queue, and which tasks it may take there.
type spot struct {
	queue string
	scope scope
}

// queueHub knows which acquires wait on which queues, and wakes as few of them
// as will do: one of each scope for each sign of work, and two more by each that
// found some.
// So a thousand idle workers cost one look per queue and second.
type queueHub struct {
	signs atomic.Uint64 // of work, so far
	mu    sync.Mutex
	lines map[string]map[scope]*list.List // of *waiter, the longest not woken first
}

// waiter is an acquire that waits.
type waiter struct {
	spots []spot
	at    []*list.Element // its places, as spots; of queueHub.mu
	wake  chan struct{}   // holds one sign
}

// join makes the waiter known. It must be left again.
func (h *queueHub) join(queues []string, as scope) *waiter {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := &waiter{wake: make(chan struct{}, 1)}
	for _, q := range queues {
		if h.lines == nil {
			h.lines = map[string]map[scope]*list.List{}
		}
		if h.lines[q] == nil {
			h.lines[q] = map[scope]*list.List{}
		}
		l := h.lines[q][as]
		if l == nil {
			l = list.New()
			h.lines[q][as] = l
		}
		w.spots = append(w.spots, spot{q, as})
		w.at = append(w.at, l.PushBack(w))
	}
	return w
}

// leave takes the waiter out. A sign it has not followed goes to the next.
func (h *queueHub) leave(w *waiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, s := range w.spots {
		l := h.lines[s.queue][s.scope]
		l.Remove(w.at[i])
		if l.Len() > 0 {
			continue
		}
		delete(h.lines[s.queue], s.scope)
		if len(h.lines[s.queue]) == 0 {
			delete(h.lines, s.queue)
		}
	}
	select {
	case <-w.wake:
		for _, s := range w.spots {
			h.sign(h.lines[s.queue][s.scope])
		}
	default:
	}
}

// woken wakes, for each queue, n waiters of every scope.
func (h *queueHub) woken(queues []string, n int) {
	h.signs.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, q := range queues {
		for _, l := range h.lines[q] {
			for range n {
				h.sign(l)
			}
		}
	}
}

// all wakes one waiter of every line.
func (h *queueHub) all() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, scopes := range h.lines {
		for _, l := range scopes {
			h.sign(l)
		}
	}
}

// sign wakes the waiter that was not woken for the longest and puts it last. It
// needs mu.
func (h *queueHub) sign(l *list.List) {
	if l == nil || l.Len() == 0 {
		return
	}
	e := l.Front()
	l.MoveToBack(e)
	select {
	case e.Value.(*waiter).wake <- struct{}{}:
	default: // it is about to look anyway
	}
}
