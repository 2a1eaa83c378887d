package engine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

// scene is a task that does not run for some of these reasons.
type scene struct {
	*world
	queue  string
	task   drover.TaskID
	job    drover.JobID
	full   []drover.Lease
	worker drover.SessionID
	ahead  []drover.JobID // that go first
	number int64
}

const (
	paused = 1 << iota
	circuit
	draining
	full
	ahead
	scenes
)

// stage sets the scene for the reasons in the mask.
func (w *world) scene(mask int) *scene {
	s := &scene{world: w, queue: fmt.Sprintf("q%d", w.number)}
	w.number++
	ctx := w.t.Context()
	s.worker = must(w.OpenSession(ctx, w.c, drover.NewSession{Worker: "v", Queues: []string{s.queue}, Slots: 1})).ID
	if mask&full != 0 {
		w.submit(drover.NewJob{Kind: "holder", Queue: s.queue})
		s.full = s.take()
	}
	if mask&ahead != 0 {
		s.ahead = append(s.ahead, w.submit(drover.NewJob{Kind: "first", Queue: s.queue, Class: drover.Interactive}))
	}
	job := drover.NewJob{Kind: "k", Queue: s.queue}
	if mask&circuit != 0 {
		job.Circuit = "c-" + s.queue
	}
	s.job = w.submit(job)
	s.task = w.taskOf(s.job, "k").ID
	if mask&circuit != 0 {
		must(w.OpenCircuit(ctx, w.c, job.Circuit, "test"))
	}
	if mask&paused != 0 {
		must(w.Pause(ctx, w.c, s.job, engine.Request{}))
		w.step("sweep", w.SweepOnce)
	}
	if mask&draining != 0 {
		must(w.Renew(ctx, w.c, s.worker, drover.Renewal{Held: s.held(), Acquired: s.number, Draining: true}))
	}
	return s
}

func (s *scene) held() (list []drover.Held) {
	for _, l := range s.full {
		list = append(list, drover.Held{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion})
	}
	return list
}

func (s *scene) take() []drover.Lease {
	s.number++
	return must(s.Acquire(s.t.Context(), s.c, drover.Acquire{Session: s.worker, Max: 1, Number: s.number}))
}

// remove does away with a blocker.
func (s *scene) remove(code drover.Reason) {
	ctx := s.t.Context()
	switch code {
	case drover.BlockerJobPaused:
		must(s.Resume(ctx, s.c, s.job, engine.Request{}))
		s.step("sweep", s.SweepOnce)
		s.step("admit", s.AdmitOnce)
	case drover.BlockerCircuit:
		must(s.CloseCircuit(ctx, s.c, "c-"+s.queue))
		s.clock.add += 15 * time.Second // it lets tasks go little by little
	case drover.BlockerDraining:
		must(s.Renew(ctx, s.c, s.worker, drover.Renewal{Held: s.held(), Acquired: s.number}))
	case drover.BlockerWorkersFull:
		if r := s.Settle(ctx, []engine.Settlement{{Caller: s.c, Session: s.worker, Outcomes: []drover.Outcome{ok(s.full[0], "1")}}}); r[0].Err != nil || r[0].Settled[0].Err != nil {
			s.t.Fatal(r[0].Err, r[0].Settled)
		}
		s.full = nil
	case drover.BlockerPriority, drover.BlockerFairShare:
		for _, id := range s.ahead {
			must(s.Cancel(ctx, s.c, id, engine.Request{}))
		}
		s.step("sweep", s.SweepOnce)
		s.ahead = nil
	default:
		s.t.Fatalf("nothing removes %s", code)
	}
}

// starts reports whether the task is the next that the worker gets, if it asks as it would.
func (s *scene) starts(drains bool) bool {
	if drains || len(s.full) > 0 {
		return false // a worker that drains or has no slot does not ask
	}
	for _, l := range s.take() {
		if l.TaskID == s.task {
			return true
		}
	}
	return false
}

// TestExplanationsAreTrue: without all of its blockers a task starts; with any one of
// them it does not; and before, there are some. Every combination of them.
func TestExplanationsAreTrue(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for mask := range scenes {
			seen := w.scene(mask)
			x := must(w.Explain(t.Context(), w.c, seen.task))
			list := x.Blockers
			if mask == 0 {
				if blockerCodes(x) != "handoff" || !seen.starts(false) {
					t.Errorf("with nothing in its way: %s", blockerCodes(x))
				}
				continue
			}
			for keep := -1; keep < len(list); keep++ {
				s := w.scene(mask)
				drains := mask&draining != 0
				for i, b := range list {
					if i != keep {
						s.remove(b.Code)
						drains = drains && b.Code != drover.BlockerDraining
					}
				}
				switch got := s.starts(drains); {
				case keep < 0 && !got:
					t.Errorf("%05b: blocked by %s; without all of them it does not start: now %s", mask, blockerCodes(x), blockerCodes(must(w.Explain(t.Context(), w.c, s.task))))
				case keep >= 0 && got:
					t.Errorf("%05b: blocked by %s; with %s alone it starts", mask, blockerCodes(x), list[keep].Code)
				}
			}
		}
	})
}
