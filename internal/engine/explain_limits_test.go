package engine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

// TestAWaitForALimitIsExplained by the admitter's own decision: which limit, how full,
// who holds it, the place in its line, how long still; and its time is accounted to it.
func TestAWaitForALimitIsExplained(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		w.limit("vendor-x", drover.NewLimit{Max: 2})
		job := func(kind string) drover.JobID {
			return w.submit(drover.NewJob{Kind: kind, Limits: map[string]int64{"vendor-x": 1}})
		}
		for range 5 { // so that something is known of such tasks
			job("k")
			l := w.get(1)[0]
			w.passing(10*time.Second, l)
			w.settle(ok(l, "1"))
		}
		first, second := job("k"), job("k")
		held := w.get(2)
		if len(held) != 2 {
			t.Fatalf("%d leases", len(held))
		}
		job("k")
		last := job("k")
		w.admit()
		w.passing(4*time.Second, held...)
		w.admit()
		x := w.why(last, "k")
		b := x.Blockers[0]
		if blockerCodes(x) != "semaphore_full" || x.Status != drover.Ready || x.Layer != drover.LayerBusiness || b.Subject.Name != "vendor-x" || b.Subject.Kind != "semaphore" ||
			b.Subject.Limit != 2 || b.Subject.Used != 2 || b.Subject.Position != 2 || b.Subject.Queued != 2 {
			t.Errorf("%s %s: %+v", x.Status, blockerCodes(x), b)
		}
		if b.Message != "Waiting for semaphore vendor-x: 2 of 2 in use; it is 2nd of 2." || b.Remedies[0].Command != "drover limit set vendor-x --max 3" || b.Remedies[0].Requires != "limits:admin" {
			t.Errorf("%q %+v", b.Message, b.Remedies)
		}
		if len(b.Holders) != 2 || b.Holders[0].JobID != first && b.Holders[0].JobID != second || b.Holders[0].Worker != "w" || b.Holders[0].ExpectedReleaseIn == nil || b.Holders[0].ExpectedReleaseIn.Std().Round(time.Second) != 6*time.Second {
			t.Errorf("holders %+v", b.Holders)
		}
		if x.Start == nil || x.Start.P50.Std() < 4*time.Second || x.Start.P50.Std() > 8*time.Second || x.Start.Basis != "5 ends in the last 15m" {
			t.Errorf("forecast %+v", x.Start)
		}
		if d := x.TotalsByReason["semaphore_full"].Std(); d < 3900*time.Millisecond {
			t.Errorf("it has waited %v", x.TotalsByReason)
		}
		// A queue that is paused, too: both are told, and the pause first.
		must(w.PauseQueue(ctx, w.system(), "default", engine.Request{Reason: "deploy"}))
		w.admit()
		w.passing(5*time.Second, held...)
		w.admit()
		if x := w.why(last, "k"); blockerCodes(x) != "queue_paused semaphore_full" || !strings.Contains(x.Message, "Queue default is paused (deploy)") {
			t.Errorf("%s: %s", blockerCodes(x), x.Message)
		}
		must(w.ResumeQueue(ctx, w.system(), "default", engine.Request{}))
		w.settle(ok(held[0], "1"), ok(held[1], "1"))
		for _, l := range w.get(2) {
			w.settle(ok(l, "1"))
		}
		x = w.why(last, "k")
		var story []string
		for _, s := range x.History {
			story = append(story, s.Code)
		}
		if got := strings.Join(story, " "); !strings.Contains(got, "semaphore_full queue_paused") || x.Status != drover.Succeeded || x.TotalsByReason["queue_paused"].Std() < 4900*time.Millisecond {
			t.Errorf("its story: %s, %v", got, x.TotalsByReason)
		}
		if groups := must(w.Waits(ctx, w.c, nil)); len(groups) != 0 {
			t.Errorf("waits when all is over: %+v", groups)
		}
		w.audit()
	})
}

// TestWhatNoWorkerMatchesIsCounted: "0 of 3 workers match: 2 lack gpu, 1 draining".
func TestWhatNoWorkerMatchesIsCounted(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		open := func(name string, n drover.NewSession) drover.SessionID {
			n.Worker, n.Queues, n.Slots = name, []string{"q"}, 1
			return must(w.OpenSession(ctx, w.c, n)).ID
		}
		open("a", drover.NewSession{})
		open("b", drover.NewSession{Resources: map[string]int64{"mem": 5}})
		gpu := open("c", drover.NewSession{Resources: map[string]int64{"gpu": 2}})
		id := w.submit(drover.NewJob{Kind: "k", Queue: "q", Resources: map[string]int64{"gpu": 1}})
		must(w.Renew(ctx, w.c, gpu, drover.Renewal{Draining: true}))
		w.admit()
		x := w.why(id, "k")
		if blockerCodes(x) != "no_worker_matches_labels" || x.Message != "0 of 3 workers of queue q match: 2 lack gpu, 1 draining." {
			t.Errorf("%s: %s", blockerCodes(x), x.Message)
		}
		if g := must(w.Waits(ctx, w.c, []string{"reason", "queue"})); len(g) != 1 || g[0].Waiting != 1 {
			t.Errorf("waits %+v", g)
		}
		must(w.Renew(ctx, w.c, gpu, drover.Renewal{}))
		w.admit()
		if x := w.why(id, "k"); blockerCodes(x) != "handoff" {
			t.Errorf("with a worker that has one: %s", blockerCodes(x))
		}
	})
}

// TestMoreWorkersDoNotHelpALimit: the hint of a queue says so, and what is in the way.
func TestMoreWorkersDoNotHelpALimit(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.limit("slow", drover.NewLimit{Rate: 0.1, Burst: 1})
		for range 4 {
			w.submit(drover.NewJob{Kind: "k", Queue: "cpu", Limits: map[string]int64{"slow": 1}})
		}
		if got := w.get(4); len(got) != 1 {
			t.Fatalf("%d leases, want 1", len(got))
		}
		last := must(w.Jobs(t.Context(), w.c, engine.JobQuery{}))[0].ID
		x := w.why(last, "k")
		if b := x.Blockers[0]; blockerCodes(x) != "rate_limited" || b.Subject.Name != "slow" || b.Subject.Position != 3 || b.Until.IsZero() || b.ETA == nil || b.ETA.P50.Std().Round(time.Second) != 30*time.Second || b.ETA.Basis != "the rate" {
			t.Errorf("%s: %+v", blockerCodes(x), x.Blockers)
		}
		g := must(w.Waits(t.Context(), w.c, []string{"queue"}))
		if len(g) != 1 || g[0].Top != drover.BlockerRate || g[0].Subject.Name != "slow" || g[0].Waiting != 3 {
			t.Errorf("waits %+v", g)
		}
		for _, h := range must(w.Capacity(t.Context(), w.c)).Queues {
			if h.Queue == "cpu" && (h.Startable != 0 || h.Waiting != 3 || h.Reason != "more workers won't help: 3 wait for rate_limited slow" || !strings.HasPrefix(h.TwoMoreWorkers, "Nothing")) {
				t.Errorf("hint %+v", h)
			}
		}
	})
}
