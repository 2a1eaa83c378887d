package engine_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

func (w *world) meet(l drover.Lease, n drover.NewMeeting) (drover.Meeting, error) {
	w.t.Helper()
	if n.Wait == 0 && !n.Leave {
		n.Wait = aWhile
	}
	a := w.ask(engine.LockAsk{Held: heldBy(l), Meet: &n})
	return a.Meeting, a.Err
}

// parts are the running tasks of a job of so many.
func (w *world) parts(n int) []drover.Lease {
	w.t.Helper()
	w.apply(fmt.Sprintf("pipeline: parts-%d\ntasks: {part: {run: k, for_each: {range: %[1]d}}}\n", n))
	w.submit(drover.NewJob{Pipeline: fmt.Sprintf("parts-%d", n)})
	l := w.acquire(n)
	if len(l) != n {
		w.t.Fatalf("%d leases, want %d", len(l), n)
	}
	slices.SortFunc(l, func(a, b drover.Lease) int { return cmp.Compare(a.Index, b.Index) })
	return l
}

func TestAllGoOnWhenTheLastHasCome(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		l, others := w.parts(3), w.parts(2)
		step := drover.NewMeeting{Number: 1, Name: "step", Parties: 3, Round: 1}
		came := func(l drover.Lease, n drover.NewMeeting, arrived int32) {
			t.Helper()
			if m, err := w.meet(l, n); err != nil || m.Arrived != arrived || m.Met != (arrived == n.Parties) {
				t.Errorf("task %d: %+v, %v; want %d of %d", l.Index, m, err, arrived, n.Parties)
			}
		}
		came(l[0], step, 1)
		came(l[0], step, 1) // again
		came(l[1], step, 2)
		came(others[0], drover.NewMeeting{Number: 1, Name: "step", Parties: 2, Round: 1}, 1) // of another job
		came(l[1], drover.NewMeeting{Number: 2, Name: "else", Parties: 3, Round: 1}, 1)
		if out, gone, err := w.LookLocks(t.Context(), []engine.LockAsk{{Caller: w.c, Held: heldBy(l[0]), Meet: &step}}); err != nil || gone[0] || out[0].Meeting.Arrived != 2 {
			t.Errorf("while they wait: %+v, %v, %v", out, gone, err)
		}
		x, err := w.Explain(t.Context(), w.c, l[0].TaskID)
		if err != nil || len(x.Blockers) != 1 || x.Blockers[0].Code != drover.BlockerBarrier || !strings.Contains(x.Message, "Its handler is waiting at barrier step, round 1: 2 of 3 have come.") {
			t.Errorf("explained as %+v, %v", x, err)
		}
		_, err = w.meet(l[2], drover.NewMeeting{Number: 1, Name: "step", Parties: 4, Round: 1})
		w.refused(err, drover.CodeValidation, "others wait there for 3 parties, and this one for 4")
		came(l[2], step, 3)
		for _, x := range l[:2] {
			if out, gone, err := w.LookLocks(t.Context(), []engine.LockAsk{{Caller: w.c, Held: heldBy(x), Meet: &step}}); err != nil || gone[0] || !out[0].Meeting.Met {
				t.Errorf("after the last has come: %+v, %v, %v", out, gone, err)
			}
		}
		next := drover.NewMeeting{Number: 3, Name: "step", Parties: 3, Round: 2}
		came(l[0], next, 1)
		w.audit()
		w.settle(ok(l[0], "1"), ok(l[1], "1"), ok(l[2], "1"), ok(others[0], "1"), ok(others[1], "1"))
		w.audit()
	})
}

func TestAPartyCountsAgainWithItsNextAttempt(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		l := w.parts(2)
		step := drover.NewMeeting{Number: 1, Name: "step", Parties: 2, Round: 1}
		if m, err := w.meet(l[0], step); err != nil || m.Arrived != 1 {
			t.Fatalf("%+v, %v", m, err)
		}
		w.settle(drover.Outcome{TaskID: l[0].TaskID, LeaseVersion: l[0].LeaseVersion, Status: drover.OutcomeReleased})
		if m, err := w.meet(l[1], step); err != nil || m.Arrived != 1 || m.Met {
			t.Errorf("one whose lease has gone counts: %+v, %v", m, err)
		}
		_, err := w.meet(l[0], step)
		w.refused(err, drover.CodeLeaseLost, "")
		w.step("admit", w.AdmitOnce)
		again := w.acquire(1)
		if len(again) != 1 {
			t.Fatal("it does not come back")
		}
		if m, err := w.meet(again[0], step); err != nil || !m.Met {
			t.Errorf("the next attempt: %+v, %v", m, err)
		}
		// They have met: who starts over does not wait for those who have gone on.
		w.settle(ok(l[1], "1"))
		w.settle(drover.Outcome{TaskID: again[0].TaskID, LeaseVersion: again[0].LeaseVersion, Status: drover.OutcomeReleased})
		w.step("admit", w.AdmitOnce)
		again = w.acquire(1)
		if m, err := w.meet(again[0], step); err != nil || !m.Met {
			t.Errorf("an attempt after the meeting: %+v, %v", m, err)
		}
		w.settle(failed(again[0], drover.ClassPermanent, "no"))
		// A replay is a party of its own.
		if _, err := w.Replay(t.Context(), w.c, again[0].TaskID, engine.ReplayRequest{}); err != nil {
			t.Fatal(err)
		}
		if again = w.acquire(1); len(again) != 1 {
			t.Fatal("it is not replayed")
		}
		if m, err := w.meet(again[0], step); err != nil || m.Met || m.Arrived != 1 {
			t.Errorf("a replay alone: %+v, %v", m, err)
		}
		w.audit()
	})
}

func TestWhoLeavesABarrierDoesNotCount(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		l := w.parts(2)
		step := drover.NewMeeting{Number: 1, Name: "step", Parties: 2, Round: 1}
		leave := step
		leave.Leave = true
		if m, err := w.meet(l[0], step); err != nil || m.Arrived != 1 {
			t.Fatalf("%+v, %v", m, err)
		}
		if m, err := w.meet(l[0], leave); err != nil || m.Arrived != 0 || m.Met {
			t.Errorf("left: %+v, %v", m, err)
		}
		_, err := w.meet(l[0], step)
		w.refused(err, drover.CodeInvalidTransition, "request 1 has left it before")
		if m, err := w.meet(l[1], step); err != nil || m.Arrived != 1 || m.Met {
			t.Errorf("beside one that has left: %+v, %v", m, err)
		}
		// Who does not ask again is not there any more.
		w.clock.add += 25 * time.Second
		w.renew(l...)
		w.clock.add += 26 * time.Second
		w.renew(l...)
		again := step
		again.Number = 2
		if m, err := w.meet(l[0], again); err != nil || m.Arrived != 1 || m.Met {
			t.Errorf("beside one that is silent: %+v, %v", m, err)
		}
		if m, err := w.meet(l[0], leave); err != nil || m.Arrived != 1 {
			t.Errorf("a late word that an earlier request is over: %+v, %v", m, err)
		}
		if m, err := w.meet(l[1], step); err != nil || !m.Met {
			t.Errorf("both: %+v, %v", m, err)
		}
		for _, c := range []struct {
			n    drover.NewMeeting
			says string
		}{
			{drover.NewMeeting{Number: 0, Name: "a", Parties: 2, Round: 1}, "number"},
			{drover.NewMeeting{Number: 1, Name: "", Parties: 2, Round: 1}, "is no name"},
			{drover.NewMeeting{Number: 1, Name: "a", Parties: 0, Round: 1}, "parties"},
			{drover.NewMeeting{Number: 1, Name: "a", Parties: 1 << 20, Round: 1}, "outside 1 to 10000"},
			{drover.NewMeeting{Number: 1, Name: "a", Parties: 2, Round: -1}, "round"},
		} {
			_, err := w.meet(l[0], c.n)
			w.refused(err, drover.CodeValidation, c.says)
		}
		single := w.running(1)[0]
		_, err = w.meet(single, step)
		w.refused(err, drover.CodeValidation, "the job has one task")
	})
}

// TestPartiesThatComeAtOnceMeetOnce: in one transaction, and in several at a time.
func TestPartiesThatComeAtOnceMeetOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		l := w.parts(6)
		step := drover.NewMeeting{Number: 1, Name: "step", Parties: 6, Round: 1, Wait: aWhile}
		got := make(chan error, 6)
		for i := range 3 {
			go func() {
				out, err := w.Locks(t.Context(), []engine.LockAsk{{Caller: w.c, Held: heldBy(l[2*i]), Meet: &step}, {Caller: w.c, Held: heldBy(l[2*i+1]), Meet: &step}})
				if err == nil && (out[0].Err != nil || out[1].Err != nil) {
					err = fmt.Errorf("%+v", out)
				}
				got <- err
			}()
		}
		for range 3 {
			if err := <-got; err != nil {
				t.Fatal(err)
			}
		}
		for _, x := range l {
			if m, err := w.meet(x, step); err != nil || !m.Met {
				t.Errorf("task %d: %+v, %v", x.Index, m, err)
			}
		}
	})
}
