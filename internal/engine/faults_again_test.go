package engine_test

import (
	"testing"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

// TestACancelOfAJobThatIsGoneDoesNotReachTheNextOfItsID: a job was cancelled, has left, and
// another was made with its id. The same request once more, and its repeat by
// whoever retries, leaves the new one alone.
func TestACancelOfAJobThatIsGoneDoesNotReachTheNextOfItsID(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks: {a: {run: a}, b: {run: b, needs: [a]}}\n")
		for _, n := range []drover.NewJob{{Kind: "a"}, {Pipeline: "p"}} {
			n.ID = drover.JobID(w.db.NewID())
			r := engine.Request{ID: "stop " + n.ID.String()}
			w.submit(n)
			if _, err := w.Cancel(t.Context(), w.c, n.ID, r); err != nil {
				t.Fatal(err)
			}
			w.quieten()
			w.want(n.ID, drover.Cancelled)
			if err := w.DeleteJob(t.Context(), w.c, n.ID); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Cancel(t.Context(), w.c, n.ID, r); drover.CodeOf(err) != drover.CodeNotFound {
				t.Errorf("the request of a job that has left: %v", err)
			}
			w.purge()
			if again := w.submit(n); again != n.ID {
				t.Fatalf("the next job is %s, want %s", again, n.ID)
			}
			if _, err := w.Cancel(t.Context(), w.c, n.ID, r); err != nil {
				t.Errorf("the same request again: %v", err)
			}
			if j := w.job(n.ID); j.Cancelling || j.Status.Final() {
				t.Errorf("it has reached the next job: %+v", j)
			}
			w.work(succeed)
			w.want(n.ID, drover.Succeeded)
		}
		w.audit()
	})
}
