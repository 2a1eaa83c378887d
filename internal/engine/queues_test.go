package engine

import (
	"testing"
	"time"

	"github.com/drover-dev/drover"
)

func TestQueuesAreCounted(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		ids := s.submit(t, s.c, drover.NewJob{Kind: "a", Queue: "cpu"}, drover.NewJob{Kind: "a", Queue: "cpu"}, drover.NewJob{Kind: "a", Queue: "cpu"},
			drover.NewJob{Kind: "a", Queue: "cpu", DueAt: s.now.Add(time.Hour)}, drover.NewJob{Kind: "b"})
		must[drover.Job](t)(s.Pause(ctx, s.c, ids[4], Request{}))
		s.now = s.now.Add(7 * time.Second)
		w := s.worker(t, s.c, "cpu", "gpu")
		beta := s.tenant(t, "beta")
		s.worker(t, beta, "cpu")
		s.worker(t, s.tenant(t, "system"), "cpu")
		l := w.acquire(1)[0]
		got := must[[]drover.Queue](t)(s.Queues(ctx, s.c))
		want := []drover.Queue{
			{Name: "cpu", Queued: 2, Running: 1, Delayed: 1, OldestAge: drover.Duration(7 * time.Second), Workers: 2, Slots: 16},
			{Name: "default", Ready: 1}, // its one task is paused, which says nothing of the queue's age
			{Name: "gpu", Workers: 1, Slots: 8},
		}
		if len(got) != len(want) {
			t.Fatalf("queues = %+v", got)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("queue = %+v\nwant    %+v", got[i], want[i])
			}
		}
		must[drover.Renewed](t)(s.Renew(ctx, s.c, w.id, drover.Renewal{Held: []drover.Held{held(l)}, Draining: true}))
		if q := must[[]drover.Queue](t)(s.Queues(ctx, s.c))[0]; q.Workers != 2 || q.Slots != 8 {
			t.Errorf("while one drains: %+v", q)
		}
	})
}

func TestSessionsAreListedWithWhatTheyRun(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		s.submit(t, s.c, drover.NewJob{Kind: "a"}, drover.NewJob{Kind: "a"}, drover.NewJob{Kind: "a"})
		w := s.worker(t, s.c)
		w.acquire(2)
		idle := s.worker(t, s.tenant(t, "system"))
		s.worker(t, s.tenant(t, "beta"))
		list := must[[]drover.Session](t)(s.Sessions(ctx, s.c))
		if len(list) != 2 || list[0].ID != w.id || list[0].Running != 2 || list[0].Slots != 8 || list[0].LeaseFor.Std() != 30*time.Second || list[0].RenewEvery.Std() != 10*time.Second ||
			list[1].ID != idle.id || list[1].Running != 0 {
			t.Errorf("sessions = %+v", list)
		}
		if list := must[[]drover.Session](t)(s.Sessions(ctx, s.tenant(t, "system"))); len(list) != 3 {
			t.Errorf("the installation sees %d sessions, want 3", len(list))
		}
		s.now = s.now.Add(31 * time.Second)
		if list := must[[]drover.Session](t)(s.Sessions(ctx, s.c)); len(list) != 0 {
			t.Errorf("expired ones are listed: %+v", list)
		}
	})
}
