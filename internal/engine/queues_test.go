package engine

import (
	"reflect"
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
			if !reflect.DeepEqual(got[i], want[i]) {
				t.Errorf("queue = %+v\nwant    %+v", got[i], want[i])
			}
		}
		must[drover.Renewed](t)(s.Renew(ctx, s.c, w.id, drover.Renewal{Held: []drover.Held{held(l)}, Draining: true}))
		if q := must[[]drover.Queue](t)(s.Queues(ctx, s.c))[0]; q.Workers != 2 || q.Slots != 8 {
			t.Errorf("while one drains: %+v", q)
		}
	})
}

// What waits for a handler that no live worker of its queue has is told, of a
// caller's own tasks, by the queue and by the task; what failed before it waits
// again tells with what.
func TestTasksThatNoWorkerTakesAreTold(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		beta := s.tenant(t, "beta")
		ids := s.submit(t, s.c, drover.NewJob{Kind: "a", Queue: "cpu"}, drover.NewJob{Kind: "b", Queue: "cpu"}, drover.NewJob{Kind: "b", Queue: "gpu"}, drover.NewJob{Kind: "b", Queue: "cpu"})
		s.submit(t, beta, drover.NewJob{Kind: "c", Queue: "cpu"})
		must[drover.Job](t)(s.Pause(ctx, s.c, ids[3], Request{}))
		_, err := s.OpenSession(ctx, s.c, drover.NewSession{Worker: "w", Queues: []string{"cpu"}, Kinds: []string{"a"}, Slots: 1})
		if err != nil {
			t.Fatal(err)
		}
		told := map[string][]string{}
		for _, q := range must[[]drover.Queue](t)(s.Queues(ctx, s.c)) {
			told[q.Name] = q.NoWorkerFor
		}
		if want := map[string][]string{"cpu": {"b"}, "gpu": {"b"}}; !reflect.DeepEqual(told, want) {
			t.Errorf("no worker for %v, want %v", told, want)
		}
		var blockers []string
		for _, id := range ids {
			for _, task := range must[[]drover.Task](t)(s.Tasks(ctx, s.c, TaskQuery{Job: id, Limit: 10})) {
				said := ""
				for _, b := range task.Blockers {
					said += string(b.Code) + ": " + b.Message
				}
				blockers = append(blockers, said)
			}
		}
		want := []string{"", `no_worker_for_kind: no live worker of queue "cpu" runs tasks of kind "b"`, `no_worker_for_kind: no live worker serves queue "gpu"`, ""}
		if !reflect.DeepEqual(blockers, want) {
			t.Errorf("blockers %q, want %q", blockers, want)
		}
		s.now = s.now.Add(31 * time.Second) // the worker is silent
		task := must[[]drover.Task](t)(s.Tasks(ctx, s.c, TaskQuery{Job: ids[0], Limit: 10}))[0]
		if len(task.Blockers) != 1 {
			t.Errorf("when its only worker has gone: %+v", task)
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
