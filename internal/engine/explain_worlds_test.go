package engine_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

// stand is a queue of its own, with a task that is not admitted for some of these reasons.
type stand struct {
	*world
	queue   string
	task    drover.TaskID
	workers []drover.SessionID
	number  map[drover.SessionID]int64
	holders map[int]drover.Lease // by the reason that they are
}

const (
	queuePaused = 1 << iota
	lockHeld
	kindFull
	keyTaken
	noLabel
	noResource
	slotsKept
	stands
)

// byCode is the reason behind a blocker.
var byCode = map[drover.Reason]int{drover.BlockerQueuePaused: queuePaused, drover.BlockerLock: lockHeld, drover.BlockerKindLimit: kindFull, drover.BlockerConcurrencyKey: keyTaken,
	drover.BlockerNoMatch: noLabel, drover.BlockerResources: noResource, drover.BlockerPriority: slotsKept}

func (s *stand) worker(zone string, slots int) {
	s.t.Helper()
	x := must(s.OpenSession(s.t.Context(), s.c, drover.NewSession{Worker: zone, Queues: []string{s.queue}, Slots: slots, Labels: map[string]string{"zone": zone}, Resources: map[string]int64{"gpu": 1}}))
	s.workers = append(s.workers, x.ID)
}

// leases are what the workers get now.
func (s *stand) leases() (list []drover.Lease) {
	s.t.Helper()
	s.admit()
	for _, id := range s.workers {
		s.number[id]++
		list = append(list, must(s.Acquire(s.t.Context(), s.c, drover.Acquire{Session: id, Max: 10, Number: s.number[id]}))...)
	}
	return list
}

// stand makes one, the n-th, with the reasons of a mask.
func (w *world) stand(n, mask int) *stand {
	w.t.Helper()
	s := &stand{world: w, queue: fmt.Sprintf("s%d", n), number: map[drover.SessionID]int64{}, holders: map[int]drover.Lease{}}
	lock, kind, key := fmt.Sprintf("lock-%d", n), fmt.Sprintf("k-%d", n), fmt.Sprintf("key-%d", n)
	s.worker("eu", 20)
	job := drover.NewJob{Kind: kind, Queue: s.queue, Limits: map[string]int64{"free": 1}} // so that it is admitted in any case
	hold := func(reason int, h drover.NewJob) {
		if mask&reason == 0 {
			return
		}
		h.Queue = s.queue
		w.submit(h)
		l := s.leases()
		if len(l) != 1 {
			w.t.Fatalf("%d run, want the holder for %07b", len(l), reason)
		}
		s.holders[reason] = l[0]
	}
	if mask&lockHeld != 0 {
		w.limit(lock, drover.NewLimit{Max: 1})
		job.Limits[lock] = 1
	}
	if mask&keyTaken != 0 {
		job.ConcurrencyKey = key
	}
	if mask&noResource != 0 {
		job.Resources = map[string]int64{"gpu": 1}
	}
	if mask&noLabel != 0 {
		job.WorkerLabels = map[string]string{"zone": "us"}
	}
	for range 2 { // of 20 slots 18 are kept then
		hold(slotsKept, drover.NewJob{Kind: "h"})
	}
	hold(lockHeld, drover.NewJob{Kind: "h", Limits: map[string]int64{lock: 1}})
	hold(kindFull, drover.NewJob{Kind: kind})
	hold(keyTaken, drover.NewJob{Kind: "h", ConcurrencyKey: key})
	hold(noResource, drover.NewJob{Kind: "h", Resources: map[string]int64{"gpu": 1}})
	if mask&kindFull != 0 {
		w.limit(kind, drover.NewLimit{Scope: drover.ScopeKind, Kind: kind, Max: 1})
	}
	if mask&slotsKept != 0 {
		must(w.ReserveQueue(w.t.Context(), w.system(), s.queue, []drover.Reserve{{Class: drover.Urgent, Percent: 90}}, engine.Request{}))
	}
	if mask&queuePaused != 0 {
		must(w.PauseQueue(w.t.Context(), w.system(), s.queue, engine.Request{}))
	}
	s.task = w.taskOf(w.submit(job), kind).ID
	w.admit()
	return s
}

// remove does away with a reason.
func (s *stand) remove(n, reason int) {
	s.t.Helper()
	ctx := s.t.Context()
	switch reason {
	case queuePaused:
		must(s.ResumeQueue(ctx, s.system(), s.queue, engine.Request{}))
	case lockHeld, keyTaken, noResource:
		r := s.Settle(ctx, []engine.Settlement{{Caller: s.c, Session: s.workers[0], Outcomes: []drover.Outcome{ok(s.holders[reason], "1")}}})
		if r[0].Err != nil || r[0].Settled[0].Err != nil {
			s.t.Fatal(r[0].Err, r[0].Settled)
		}
	case kindFull:
		s.limit(fmt.Sprintf("k-%d", n), drover.NewLimit{Scope: drover.ScopeKind, Kind: fmt.Sprintf("k-%d", n), Max: 5})
	case noLabel:
		s.worker("us", 1)
	case slotsKept:
		must(s.ReserveQueue(ctx, s.system(), s.queue, nil, engine.Request{}))
	}
}

// TestExplanationsOfWhatIsAdmittedAreTrue: as TestExplanationsAreTrue, of tasks that wait
// for limits, keys, labels, resources, a paused queue and slots that are kept, in worlds
// drawn at random.
func TestExplanationsOfWhatIsAdmittedAreTrue(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.perCustomer()
		w.limit("free", drover.NewLimit{Max: 1000})
		draw := rand.New(rand.NewPCG(6, 6))
		masks := []int{0}
		for bit := 1; bit < stands; bit <<= 1 {
			masks = append(masks, bit)
		}
		for range 12 {
			masks = append(masks, draw.IntN(stands))
		}
		n := 0
		next := func(mask int) *stand { n++; return w.stand(n, mask) }
		starts := func(s *stand) bool {
			for _, l := range s.leases() {
				if l.TaskID == s.task {
					return true
				}
			}
			return false
		}
		for _, mask := range masks {
			s := next(mask)
			x := must(w.Explain(t.Context(), w.c, s.task))
			if mask == 0 {
				if !starts(s) {
					t.Errorf("with nothing in its way it does not start: %s", blockerCodes(x))
				}
				continue
			}
			var reasons []int
			for _, b := range x.Blockers {
				r := byCode[b.Code]
				if r == 0 || mask&r == 0 {
					t.Fatalf("%07b: %s is none of the reasons: %s", mask, b.Code, b.Message)
				}
				reasons = append(reasons, r)
			}
			for keep := -1; keep < len(reasons); keep++ {
				s := next(mask)
				for i, r := range reasons {
					if i != keep {
						s.remove(n, r)
					}
				}
				switch got := starts(s); {
				case keep < 0 && !got:
					t.Errorf("%07b: blocked by %s; without all of them it does not start: now %s", mask, blockerCodes(x), blockerCodes(must(w.Explain(t.Context(), w.c, s.task))))
				case keep >= 0 && got:
					t.Errorf("%07b: blocked by %s; with %s alone it starts", mask, blockerCodes(x), x.Blockers[keep].Code)
				}
			}
		}
		w.audit()
	})
}
