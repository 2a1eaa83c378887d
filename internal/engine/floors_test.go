package engine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

// TestWhatComesBeforeTheLastClaimsPlaceIsFound: claims go on where the last one
// ended. A more urgent task, one of another kind, or one that was given back
// stands before that place.
func TestWhatComesBeforeTheLastClaimsPlaceIsFound(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		for range 200 {
			w.submit(drover.NewJob{Kind: "k"})
		}
		next := func(what string, kind string, class drover.Class) drover.Lease {
			t.Helper()
			l := w.acquire(1)
			if len(l) != 1 {
				t.Fatalf("%s: %d leases", what, len(l))
			}
			job, err := w.Job(ctx, w.c, l[0].JobID)
			if err != nil || l[0].Kind != kind || job.Class != class {
				t.Fatalf("%s: a task of kind %s and class %v, %v; want %s, %v", what, l[0].Kind, job.Class, err, kind, class)
			}
			return l[0]
		}
		for range 5 { // the place is known, and goes on being
			w.acquire(3)
			w.acquire(100 / 5)
		}
		held := next("the line goes on", "k", drover.Normal)

		w.submit(drover.NewJob{Kind: "k", Class: drover.Urgent})
		next("an urgent one", "k", drover.Urgent)
		if l := next("the line goes on", "k", drover.Normal); l.TaskID == held.TaskID {
			t.Fatal("one task twice")
		}

		w.settle(drover.Outcome{TaskID: held.TaskID, LeaseVersion: held.LeaseVersion, Status: drover.OutcomeReleased})
		w.step("admit", w.AdmitOnce)
		if l := next("one that was given back", "k", drover.Normal); l.TaskID != held.TaskID {
			t.Fatalf("%s came, want %s, which had waited longest", l.TaskID, held.TaskID)
		}

		w.acquire(10)
		w.submit(drover.NewJob{Kind: "other"})
		found := false
		for range 2 { // lanes take turns
			found = found || w.acquire(1)[0].Kind == "other"
		}
		if !found {
			t.Fatal("a task of another kind was not found in two claims")
		}

		// Another server's: found with its news, or within a second.
		other := engine.New(w.db, engine.Options{})
		for _, heard := range []bool{true, false} {
			w.acquire(5)
			w.clock.add += time.Second
			w.acquire(5)
			if out, err := other.Submit(ctx, w.c, []drover.NewJob{{Kind: "k", Class: drover.Urgent}}); err != nil || out[0].Err != nil {
				t.Fatal(err, out)
			}
			if heard {
				w.Recheck([]string{"default", "nowhere"})
				w.clock.add += 110 * time.Millisecond
			} else {
				w.clock.add += 1010 * time.Millisecond
			}
			next("an urgent one of another server", "k", drover.Urgent)
		}

		// What a claim that was undone had taken is not lost: all are worked.
		for len(w.acquire(50)) > 0 {
		}
		if len(w.entered) != 204 {
			t.Errorf("%d of 204 tasks were handed out", len(w.entered))
		}
	})
}

// TestNoLaneIsLeftOutByTheFloors: a claim that was full before it had come to all
// lanes does not know them all, and the next ones must not stay with those it saw.
func TestNoLaneIsLeftOutByTheFloors(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for _, x := range []struct{ lanes, n int }{{40, 64}, {60, 500}, {5, 64}} {
			for k := range x.lanes {
				w.submitCopies(3*x.n/x.lanes+20, drover.NewJob{Kind: fmt.Sprintf("k%d-%d", x.n, k)})
			}
			w.clock.add += 2 * time.Second
			seen := map[string]bool{}
			for range 3 {
				for _, l := range w.acquire(x.n) {
					seen[l.Kind] = true
				}
			}
			if len(seen) != x.lanes {
				t.Errorf("three claims of %d served %d of %d lanes", x.n, len(seen), x.lanes)
			}
			for len(w.acquire(1000)) > 0 {
			}
		}
	})
}
