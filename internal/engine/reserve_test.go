package engine_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

// keep sets what is kept of the queue default.
func (w *world) keep(list ...drover.Reserve) drover.Queue {
	w.t.Helper()
	q, err := w.ReserveQueue(w.t.Context(), w.system(), "default", list, engine.Request{Reason: "test"})
	if err != nil {
		w.t.Fatal(err)
	}
	return q
}

// TestSlotsAreKeptForAClass: a flood of batch leaves them free, from the commit of the
// reserve on and with what runs already; who waits for them is told so, and has them once
// nothing is kept any more.
func TestSlotsAreKeptForAClass(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		if err := w.CloseSession(ctx, w.c, w.session); err != nil {
			t.Fatal(err)
		}
		h := w.opened(w.c, drover.NewSession{Worker: "small", Slots: 4})
		take := func(n int, want string) (list []drover.Lease) {
			t.Helper()
			w.admit()
			list, err := h.acquire(n)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, l := range list {
				got = append(got, l.Kind)
			}
			if strings.Join(got, " ") != want {
				t.Fatalf("%q start, want %q", got, want)
			}
			return list
		}
		settle := func(l ...drover.Lease) {
			t.Helper()
			for _, l := range l {
				if s, _, err := h.settle(0, ok(l, "1")); err != nil || s[0].Err != nil {
					t.Fatal(s, err)
				}
			}
		}
		first := func() drover.JobID { return w.submit(drover.NewJob{Kind: "i", Class: drover.Interactive}) }
		ids := w.submitMany(20, drover.NewJob{Kind: "b", Class: drover.Batch})
		batch := take(4, "b b b b")
		q := w.keep(drover.Reserve{Class: drover.Interactive, Percent: 50})
		if len(q.Reserves) != 1 || q.Reserves[0].Percent != 50 || len(q.Changes) != 1 || q.Changes[0].Action != "reserved" || q.Changes[0].Reason != "test" {
			t.Errorf("the queue is %+v", q)
		}
		first()
		settle(batch[0])
		i := take(1, "i")
		settle(batch[1])
		take(1, "") // it is kept
		x := w.why(ids[10], "b")
		if len(x.Blockers) != 1 || x.Blockers[0].Code != drover.BlockerPriority || x.Blockers[0].Subject.Kind != "reserve" ||
			!strings.Contains(x.Blockers[0].Message, "2 slots of queue default are kept for class interactive and those before it, which use 1 of them") {
			t.Errorf("explained as %+v", x.Blockers)
		}
		first()
		i = append(i, take(1, "i")...)
		settle(batch[2])
		batch = append(batch, take(1, "b")...) // what is kept is used
		w.audit()
		settle(i...)
		take(2, "")
		w.keep()
		batch = append(batch, take(2, "b b")...)
		settle(batch[3:]...)
		take(4, "b b b b")
		w.audit()
	})
}

// TestReservesThatAreNotValidAreRefused: each with its field.
func TestReservesThatAreNotValidAreRefused(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for _, c := range []struct{ list, want string }{
			{`[{"class": "interactive", "percent": 0}]`, "reserves[0].percent must be 1 to 90, and is 0"},
			{`[{"class": "interactive", "percent": 91}]`, "must be 1 to 90"},
			{`[{"class": "99", "percent": 10}]`, "reserves[0].class must be"},
			{`[{"percent": 10}]`, "reserves[0].class must be"},
			{`[{"class": "urgent", "percent": 10}, {"class": "urgent", "percent": 20}]`, "reserves[1].class urgent is there twice"},
			{`[{"class": "urgent", "percent": 20}, {"class": "interactive", "percent": 30}]`, "reserves[1].percent what is kept for urgent counts the 30 % for interactive before it, so it must be more than that"},
		} {
			var list []drover.Reserve
			if err := json.Unmarshal([]byte(c.list), &list); err != nil {
				t.Fatal(err)
			}
			_, err := w.ReserveQueue(t.Context(), w.system(), "default", list, engine.Request{})
			var e *drover.Error
			if !errors.As(err, &e) || e.Code != drover.CodeValidation || len(e.Fields) == 0 || !strings.Contains(e.Fields[0].Field+" "+e.Fields[0].Message, c.want) {
				t.Errorf("%s: %v, want %s", c.list, err, c.want)
			}
		}
		if _, err := w.ReserveQueue(t.Context(), w.c, "default", nil, engine.Request{}); drover.CodeOf(err) != drover.CodeForbidden {
			t.Errorf("another tenant's: %v", err)
		}
		if _, err := w.ReserveQueue(t.Context(), w.system(), "nowhere", nil, engine.Request{}); drover.CodeOf(err) != drover.CodeNotFound {
			t.Errorf("of no queue: %v", err)
		}
	})
}
