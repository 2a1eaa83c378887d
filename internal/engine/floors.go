package engine

import (
	"slices"
	"sync"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// claimMarks remembers where the claims of each queue ended: the place of the last
// task taken of each lane, its floor. A claim that begins at the floors does not
// step over the rows that were taken before it, which PostgreSQL keeps until they
// are vacuumed: while somebody's old snapshot is open, all of them. There are floors
// only where the look at the whole queue came to every lane.
//
// What comes to stand below a floor, in another class or in a lane without one
// makes the floors void. That is noticed where it happens here, by the news of
// other servers, and at the latest after floorsFor, when a claim looks at the
// whole queue anyway.
type claimMarks struct {
	mu     sync.Mutex
	queues map[int32]*queueMarks
}

type queueMarks struct {
	version int64 // rises when the floors become void
	scopes  map[string]*floors
}

// floors are those of one scope: the lanes that a kind of session serves.
type floors struct {
	at    lifecycle.Instant // when the whole queue was looked at
	class drover.Class
	lanes []store.Floor
	fresh bool // by this claim
}

const (
	// floorsFor is how long floors serve before the whole queue is looked at again.
	floorsFor = time.Second
	// recheckWithin is how soon it is looked at after another server's news of work.
	recheckWithin = floorsFor / 10
	// maxScopes bounds the kinds of sessions whose floors of a queue are remembered.
	maxScopes = 100
)

// scopeOf names a set of lanes.
func scopeOf(lanes []int32) string {
	if lanes == nil {
		return "all"
	}
	b := make([]byte, 0, 4*len(lanes))
	for _, l := range lanes {
		b = append(b, byte(l), byte(l>>8), byte(l>>16), byte(l>>24))
	}
	return string(b)
}

// of returns the version of a queue and the floors of a scope, if there are any.
func (m *claimMarks) of(queue int32, lanes []int32, now lifecycle.Instant) (version int64, f floors) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.queues[queue]
	if q == nil {
		return 0, f
	}
	if s := q.scopes[scopeOf(lanes)]; s != nil && now < s.at.Add(floorsFor) {
		f = floors{at: s.at, class: s.class, lanes: slices.Clone(s.lanes)}
	}
	return q.version, f
}

// moved notes where a claim has ended, once it is committed. f are floors of the
// whole queue's last look, or of one that this claim took.
func (m *claimMarks) moved(queue int32, lanes []int32, version int64, f floors) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.queue(queue)
	if q.version != version {
		return // something came in between
	}
	k := scopeOf(lanes)
	if len(f.lanes) == 0 {
		delete(q.scopes, k)
		return
	}
	if q.scopes[k] == nil && len(q.scopes) >= maxScopes {
		clear(q.scopes)
	}
	if old := q.scopes[k]; old != nil && old.class == f.class && old.at <= f.at { // of two claims abreast the one that came farther counts
		if !f.fresh {
			f.at = old.at
		}
		for i := range f.lanes {
			for _, l := range old.lanes {
				if l.Lane == f.lanes[i].Lane && f.lanes[i].Before(l) {
					f.lanes[i] = l
				}
			}
		}
	}
	q.scopes[k] = &f
}

func (m *claimMarks) queue(id int32) *queueMarks {
	if m.queues == nil {
		m.queues = map[int32]*queueMarks{}
	}
	q := m.queues[id]
	if q == nil {
		q = &queueMarks{scopes: map[string]*floors{}}
		m.queues[id] = q
	}
	return q
}

// placed makes void what tasks that have come to be QUEUED contradict.
func (m *claimMarks) placed(tasks []lifecycle.Task) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range tasks {
		t := &tasks[i]
		if t.Status != drover.Queued {
			continue
		}
		q := m.queue(t.Queue)
		for _, f := range q.scopes {
			if !f.covers(t) {
				q.void()
				break
			}
		}
		if len(q.scopes) == 0 {
			q.version++ // a claim under way may be about to set some
		}
	}
}

// covers reports whether a claim that begins at the floors finds t in its turn.
func (f *floors) covers(t *lifecycle.Task) bool {
	if t.Class != f.class {
		return t.Class > f.class
	}
	for _, l := range f.lanes {
		if l.Lane == t.Lane {
			return l.Before(store.Floor{Due: t.DueAt, Task: t.ID})
		}
	}
	return false
}

func (q *queueMarks) void() {
	q.version++
	clear(q.scopes)
}

// Recheck has claims look at whole queues again soon: there is news of work that
// this server has not seen come.
func (e *Engine) Recheck(queues []string) {
	m, soon := &e.marks, e.now().Add(recheckWithin-floorsFor)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range queues {
		id, ok := e.names.queueID.Load(name)
		if !ok {
			continue
		}
		if q := m.queues[id.(int32)]; q != nil {
			for _, f := range q.scopes {
				f.at = min(f.at, soon)
			}
		}
	}
}

// next returns the floors after a claim of n that began at f. When f has none, the
// whole queue was looked at at now, and so many lanes were found in its class.
func (f floors) next(got []store.Claimed, n int, found int64, now lifecycle.Instant) floors {
	if len(got) < n || len(got) == 0 {
		return floors{}
	}
	class := got[0].Class
	last := map[int32]store.Floor{}
	for i := range got {
		x := &got[i]
		if x.Class != class {
			return floors{}
		}
		if at := (store.Floor{Lane: x.Lane, Due: x.DueAt, Task: x.ID}); last[x.Lane].Lane == 0 || last[x.Lane].Before(at) {
			last[x.Lane] = at
		}
	}
	out := floors{at: f.at, class: class}
	if len(f.lanes) == 0 {
		// Only when every lane had its turn are all known that have something: the claim
		// may have been full before it came to the last ones, and others may hold the
		// rows it came to.
		if len(last) >= store.MaxLanes || int64(len(last)) < found {
			return floors{}
		}
		out.at, out.fresh = now, true
	}
	for _, l := range f.lanes {
		if _, ok := last[l.Lane]; !ok {
			out.lanes = append(out.lanes, l)
		}
	}
	for _, l := range last {
		out.lanes = append(out.lanes, l)
	}
	slices.SortFunc(out.lanes, func(a, b store.Floor) int { return int(a.Lane) - int(b.Lane) })
	return out
}
