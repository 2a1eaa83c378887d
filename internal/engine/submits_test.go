package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

// TestJobsOfOneRequestAreAnsweredInTurn: ids and keys of a request may point at
// each other; the answers are those of the same jobs sent one by one.
func TestJobsOfOneRequestAreAnsweredInTurn(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for i, shape := range []string{"X/K X", "X X/K", "X/K X/K", "X/K X/L X", "X/K -/K X", "X/K X/L Y/L -/K X", "X/L X/K X Y/K", "X/L -/L X/M Y/M"} {
			type made struct {
				replayed bool
				job      string
				err      drover.Code
			}
			run := func(together bool) (list []made) {
				prefix := fmt.Sprint(i, together)
				ids := map[string]drover.JobID{"X": drover.JobID(w.db.NewID()), "Y": drover.JobID(w.db.NewID())}
				known := w.submit(drover.NewJob{Kind: "a", IdempotencyKey: prefix + "K"})
				names := map[drover.JobID]string{known: "known", ids["X"]: "X", ids["Y"]: "Y"}
				var jobs []drover.NewJob
				for _, s := range strings.Fields(shape) {
					id, key, _ := strings.Cut(s, "/")
					n := drover.NewJob{Kind: "a", ID: ids[id]}
					if key != "" {
						n.IdempotencyKey = prefix + key
					}
					jobs = append(jobs, n)
				}
				var out []drover.Submitted
				send := func(n ...drover.NewJob) {
					o, err := w.Submit(t.Context(), w.c, n)
					if err != nil {
						t.Fatal(err)
					}
					out = append(out, o...)
				}
				if together {
					send(jobs...)
				} else {
					for _, n := range jobs {
						send(n)
					}
				}
				for k, s := range out {
					m := made{replayed: s.Replayed, job: names[s.JobID]}
					if s.Err != nil {
						m.err = s.Err.Code
					} else if _, err := w.Job(t.Context(), w.c, s.JobID); err != nil {
						t.Errorf("%s: job %d was answered and is not there: %v", shape, k, err)
					}
					list = append(list, m)
				}
				return list
			}
			if one, all := run(false), run(true); fmt.Sprint(one) != fmt.Sprint(all) {
				t.Errorf("%s:\none by one %v\ntogether   %v", shape, one, all)
			}
		}
	})
}

// TestAKeyLivesAsLongAsItsJob: after seven days too a repeat gives the first job.
func TestAKeyLivesAsLongAsItsJob(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		n := drover.NewJob{Kind: "a", IdempotencyKey: "k"}
		first := w.submit(n)
		w.clock.add += 8 * 24 * time.Hour
		for range 3 {
			if _, err := w.CleanOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if again := w.submit(n); again != first {
			t.Fatalf("the repeat made job %s beside %s", again, first)
		}
	})
}

// TestARepeatOfWhatWasGivenBackDuringACancel: the answer to a release or snooze
// was lost while the job was being cancelled; its repeat is no lost lease.
func TestARepeatOfWhatWasGivenBackDuringACancel(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for _, status := range []string{drover.OutcomeReleased, drover.OutcomeSnoozed, drover.OutcomeCancelled, drover.OutcomeFailed} {
			id := w.submit(drover.NewJob{Kind: "a"})
			l := w.acquire(1)[0]
			if _, err := w.Cancel(t.Context(), w.c, id, engine.Request{}); err != nil {
				t.Fatal(err)
			}
			o := drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: status}
			for try := range 2 {
				if s := w.settle(o)[0]; s.Err != nil || s.Status != drover.Cancelled {
					t.Errorf("%s, time %d: %+v", status, try+1, s)
				}
			}
			o.Status = drover.OutcomeSucceeded
			if s := w.settle(o)[0]; drover.CodeOf(s.Err) != drover.CodeLeaseLost {
				t.Errorf("a success after %s: %+v", status, s)
			}
			w.want(id, drover.Cancelled)
		}
	})
}

// TestARepeatAfterItsTimeGetsTheFirstJob: the answer was lost and the client asks
// again when expires_at has passed, or its own id has become old.
func TestARepeatAfterItsTimeGetsTheFirstJob(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		keyed := drover.NewJob{Kind: "a", IdempotencyKey: "k", ExpiresAt: w.Now().Add(time.Hour)}
		named := drover.NewJob{Kind: "a", ID: drover.JobID(w.db.NewID()), ExpiresAt: w.Now().Add(time.Hour)}
		first, second := w.submit(keyed), w.submit(named)
		w.clock.add += 48 * time.Hour
		for range 2 {
			if again := w.submit(keyed); again != first {
				t.Errorf("by its key: %s, want %s", again, first)
			}
			if again := w.submit(named); again != second {
				t.Errorf("by its id: %s, want %s", again, second)
			}
		}
		// What was never accepted is refused, and takes no key.
		fresh := keyed
		fresh.IdempotencyKey = "other"
		old := named
		old.ID[7] ^= 0x55 // an id that nobody has made
		out, err := w.Submit(t.Context(), w.c, []drover.NewJob{fresh, old, fresh})
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range out {
			if drover.CodeOf(s.Err) != drover.CodeValidation {
				t.Errorf("job %d: %+v", i, s)
			}
		}
		fresh.ExpiresAt = time.Time{}
		w.submit(fresh)
	})
}

// TestPartsOfARequest can be stored beside each other, and run in the order of the request
// whichever is stored first.
func TestPartsOfARequest(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		const n = 4500
		jobs := make([]drover.NewJob, n)
		for i := range jobs {
			jobs[i] = drover.NewJob{Kind: "a", IdempotencyKey: fmt.Sprint("k", i), Input: fmt.Appendf(nil, "%d", i)}
		}
		parts, want := w.Parts(jobs), 1
		if w.db.WritesAbreast() {
			want = 3
		}
		if len(parts) != want {
			t.Fatalf("%d parts, want %d", len(parts), want)
		}
		for i, part := range slices.Backward(parts) {
			for k, s := range must(w.SubmitPart(t.Context(), w.c, part)) {
				if s.Err != nil {
					t.Fatalf("job %d of part %d: %v", k, i, s.Err)
				}
			}
		}
		for next := 0; next < n; {
			var done []drover.Outcome
			for _, l := range w.acquire(500) {
				if string(l.Input) != fmt.Sprint(next) {
					t.Fatalf("job %s comes as number %d", l.Input, next)
				}
				next++
				done = append(done, ok(l, "1"))
			}
			w.settle(done...)
		}
		// What could be a repeat is not stored beside the first.
		jobs[n-1].IdempotencyKey = jobs[0].IdempotencyKey
		if got := len(w.Parts(jobs)); got != 1 {
			t.Errorf("%d parts with a key that comes twice", got)
		}
		w.audit()
	})
}
