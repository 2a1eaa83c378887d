package sim

import (
	"context"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/rings"
)

// What handlers of a world lock: three names, and the limit that tasks take of too.
var lockNames = []string{"red", "green", "blue", limitName}

// vendorLimit is the number of the limit in the database, which has no other.
const vendorLimit = 1

// lockCall is a request of a running handler.
type lockCall struct {
	ask    engine.LockAsk
	answer drover.Lock
}

// useLocks has the handler of an attempt ask for some locks at some times. It gives
// most of them back; its end does not depend on what it gets.
func (k *worker) useLocks(r *attempt, d time.Duration, draw func(uint64) float64) {
	if draw(10) >= 0.3 {
		return
	}
	for i := range 1 + int(draw(11)*3) {
		n := uint64(12 + 3*i)
		name := lockNames[int(draw(n)*float64(len(lockNames)))]
		back := time.Duration(draw(n+1) * 3 * float64(d))
		k.later(time.Duration(draw(n+2)*float64(d)), func() { k.lock(r, int32(i+1), name, back) })
	}
}

func (k *worker) askLock(r *attempt, ask engine.LockAsk, done func(answer drover.Lock, ok bool, err error)) {
	ask.Caller, ask.Held = k.caller, drover.Held{TaskID: r.lease.TaskID, LeaseVersion: r.lease.LeaseVersion}
	type got struct {
		lock drover.Lock
		err  error
	}
	k.ask("lock", func(s *server) any {
		c := k.call(s, "lock")
		c.lock = &lockCall{ask: ask}
		var err error
		k.w.do(c, func(ctx context.Context) error {
			var out []engine.LockAnswer
			if out, err = s.e.Locks(ctx, []engine.LockAsk{ask}); err == nil {
				c.lock.answer, err = out[0].Lock, out[0].Err
			}
			return err
		})
		return got{c.lock.answer, err}
	}, func(a any) {
		x, ok := a.(got)
		done(x.lock, ok, x.err)
	})
}

// lock asks until it has the lock or is refused, and gives it back later.
func (k *worker) lock(r *attempt, number int32, name string, back time.Duration) {
	if r.over {
		return
	}
	n := drover.NewLock{Number: number, Name: name, Exclusive: name != limitName, Wait: drover.Duration(time.Second)}
	k.askLock(r, engine.LockAsk{Lock: &n}, func(got drover.Lock, ok bool, err error) {
		switch {
		case r.over:
		case !ok || err != nil && drover.CodeOf(err) == "" || err == nil && !got.Granted:
			k.later(k.rng.between(500*time.Millisecond, 3*time.Second), func() { k.lock(r, number, name, back) })
		case err == nil:
			k.later(back, func() { k.unlock(r, number) })
		case drover.CodeOf(err) == drover.CodeDeadlock:
			k.w.stats.Rings++
		}
	})
}

func (k *worker) unlock(r *attempt, number int32) {
	if r.over {
		return
	}
	k.askLock(r, engine.LockAsk{Unlock: &drover.NewUnlock{Number: number}}, func(_ drover.Lock, ok bool, err error) {
		if !ok || err != nil && drover.CodeOf(err) == "" {
			k.later(k.rng.between(500*time.Millisecond, 2*time.Second), func() { k.unlock(r, number) })
		}
	})
}

// permitKey is a row of permits.
type permitKey struct {
	task   drover.TaskID
	limit  int32
	number int32
}

// permitRow is what the ghost keeps of it.
type permitRow struct {
	weight, wants, at int64
}

// permit follows a row of permits: what is held of a limit, and that tokens rise.
func (g *ghost) permit(c *call, ch change, was, is row) {
	read := func(x row) (permitKey, permitRow) {
		return permitKey{x.id("task_id"), x.i32("limit_id"), x.i32("number")}, permitRow{x.num("weight"), x.num("wants"), x.num("at")}
	}
	before := int64(0)
	if ch.old != nil {
		k, r := read(was)
		before = r.weight
		g.heldOf[k.limit] -= r.weight
		delete(g.permitRows, k)
	}
	if ch.new != nil {
		k, r := read(is)
		g.heldOf[k.limit] += r.weight
		g.permitRows[k] = r
		if k.number > 0 && before == 0 && r.weight > 0 {
			if token := is.num("token"); token <= g.tokens[k.limit] {
				g.fail(c, "I35", "the token %d of limit %d follows %d", token, k.limit, g.tokens[k.limit])
			} else {
				g.tokens[k.limit] = token
			}
			g.w.stats.Locks++
		}
	}
	g.permitsMoved = true
}

// asks says that the handler of a running task waits for something.
func (g *ghost) asks(id drover.TaskID) bool {
	for k, r := range g.permitRows {
		if k.task == id && k.number > 0 && k.limit > 0 && r.weight == 0 {
			return true
		}
	}
	return false
}

// checkPermits looks after a commit that no more is held of a limit than it has, that
// what handlers hold and wait for is of running tasks, and that none of them wait for
// each other in a ring.
func (g *ghost) checkPermits(c *call) {
	for limit, n := range g.heldOf {
		most := int64(1)
		if limit == vendorLimit {
			most = limitMax
		}
		if n > most {
			g.fail(c, "I31", "%d are held of limit %d, which has %d", n, limit, most)
		}
	}
	for k := range g.permitRows {
		if t := g.tasks[k.task]; k.number > 0 && (t == nil || t.row.place != running) {
			g.fail(c, "I35", "%v asked for limit %d by request %d, and does not run", t, k.limit, k.number)
		}
	}
	if !g.permitsMoved {
		return
	}
	g.permitsMoved = false
	lines, held, waits := map[int32]*rings.Line{}, []rings.Hold(nil), map[int32][]permitKey{}
	for k, r := range g.permitRows {
		switch {
		case k.limit == 0:
		case r.weight > 0:
			held = append(held, rings.Hold{Task: k.task, Limit: k.limit, Weight: r.weight})
		default:
			waits[k.limit] = append(waits[k.limit], k)
		}
	}
	for limit, list := range waits {
		l := &rings.Line{Max: 1, Used: g.heldOf[limit]}
		if limit == vendorLimit {
			l.Max = limitMax
		}
		for len(list) > 0 { // in their turn
			first := 0
			for i := range list {
				if g.permitRows[list[i]].at < g.permitRows[list[first]].at {
					first = i
				}
			}
			l.Waits = append(l.Waits, rings.Wait{Task: list[first].task, Weight: g.permitRows[list[first]].wants})
			list = append(list[:first:first], list[first+1:]...)
		}
		lines[limit] = l
	}
	for _, l := range lines {
		for _, w := range l.Waits {
			if ring := rings.Find(w.Task, lines, held); len(ring) > 0 {
				g.fail(c, "I35", "these wait for each other for ever: %v", ring)
			}
		}
	}
}
