package engine_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

// TestTheWayOfACancelIsVisible: requested, acknowledged by the worker, and
// cleaned up or cut off; in the task while it runs, in the events afterwards.
func TestTheWayOfACancelIsVisible(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for _, kind := range []string{"cleaned", "cut off", "never told"} {
			id := w.submit(drover.NewJob{Kind: "a"})
			l := w.acquire(1)[0]
			held := drover.Held{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion}
			see := func() *drover.Cancellation {
				t.Helper()
				v, err := w.Task(t.Context(), w.c, l.TaskID)
				if err != nil {
					t.Fatal(err)
				}
				return v.Cancellation
			}
			renew := func(stopping ...drover.Held) drover.Renewed {
				t.Helper()
				r, err := w.Renew(t.Context(), w.c, w.session, drover.Renewal{Held: []drover.Held{held}, Stopping: stopping, Acquired: w.number})
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
			// A worker cannot acknowledge what nobody asked for.
			if renew(held); see() != nil {
				t.Fatalf("%s: a cancel that nobody requested: %+v", kind, see())
			}
			requested := w.Now()
			if _, err := w.Cancel(t.Context(), w.c, id, engine.Request{}); err != nil {
				t.Fatal(err)
			}
			if c := see(); c == nil || c.RequestedAt.Before(requested.Truncate(time.Millisecond)) || !c.AcknowledgedAt.IsZero() {
				t.Fatalf("%s: requested at %s: %+v", kind, requested, c)
			}
			if r := renew(); len(r.Cancelled) != 1 || r.Cancelled[0] != held {
				t.Fatalf("%s: the worker is told %+v", kind, r)
			}
			if kind != "never told" {
				w.clock.add += time.Second
				renew(held)
				first := see()
				if first.AcknowledgedAt.Sub(first.RequestedAt) < time.Second {
					t.Errorf("%s: %+v", kind, first)
				}
				w.clock.add += time.Second
				if renew(held); *see() != *first {
					t.Errorf("%s: acknowledged again: %+v, was %+v", kind, see(), first)
				}
			}
			outcome := "cancelled"
			if kind == "cleaned" {
				w.settle(drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeCancelled})
			} else {
				for range 5 { // the worker goes on renewing
					w.clock.add += 10 * time.Second
					renew()
				}
				w.step("sweep", w.SweepOnce)
				outcome = "forced"
			}
			w.want(id, drover.Cancelled)
			if c := see(); c != nil {
				t.Errorf("%s: afterwards: %+v", kind, c)
			}
			var told struct {
				Outcome      string    `json:"outcome"`
				Requested    time.Time `json:"cancel_requested_at"`
				Acknowledged time.Time `json:"cancel_acknowledged_at"`
			}
			for _, ev := range w.gapless(id) {
				if ev.Type == drover.TaskCancelled {
					if err := json.Unmarshal(ev.Data, &told); err != nil {
						t.Fatal(err)
					}
				}
			}
			if told.Outcome != outcome || told.Requested.IsZero() || told.Acknowledged.IsZero() != (kind == "never told") {
				t.Errorf("%s: the event says %+v", kind, told)
			}
		}
	})
}
