package explain

import (
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// every is a blocker of each reason that has words of its own here.
func every() []drover.Blocker {
	w := Workers{Queue: "gpu", Kind: "infer", Serve: 3, Kinds: 3, Matching: 0, Draining: 1, Lacks: []string{"2 lack gpu"}}
	list := []drover.Blocker{
		Dependency([]Parent{{Name: "decode", Total: 20, Ended: 5}}, nil), DependencyFailed("task decode failed"), Schedule(now.Add(time.Hour), now), Retry(now.Add(time.Minute), now, 2, 4, &drover.Failure{Class: drover.ClassRetryable, Message: "no answer"}),
		JobPaused(drover.JobID{1}, "ann", "", now), QueuePaused("gpu"), Circuit("api", drover.CircuitOpen, "no answer", drover.TaskID{}, now, now), NoWorker(w), NoMatch(w), Draining(w),
		WorkersFull("gpu", 2, 2, Place{Position: 4, Of: 17}), Ahead(drover.BlockerPriority, "gpu", drover.Urgent, 3, false, Place{Position: 4, Of: 17}), Ahead(drover.BlockerFairShare, "gpu", drover.Normal, 0, false, Place{Position: 4, Of: 17}),
		ChildJob(drover.JobID{1}), Handoff("gpu"), Resources("gpu", "mem_mb", 100, 200), ResourcesFull("gpu", "gpu", 2, 2, 1, Place{Position: 4, Of: 17}),
	}
	for code := range nouns {
		list = append(list, Limit(code, drover.Limit{Name: "x", Scope: drover.ScopeNamed, Max: 5, Used: 5}, "", 1, time.Time{}, Place{Position: 4, Of: 17}))
	}
	for _, code := range []drover.Reason{drover.BlockerLock, drover.BlockerRate} {
		list = append(list, Limit(code, drover.Limit{Name: "x", Scope: drover.ScopeNamed, Max: 1, Used: 1}, "", 1, time.Time{}, Place{Position: 4, Of: 17}))
	}
	list = append(list, MapParallel("m", 4, now))
	return list
}

// TestEveryReasonIsInTheListAndSaysWhatHelps: a code of the closed list, a sentence,
// what is waited for; and a remedy wherever something can be done.
func TestEveryReasonIsInTheListAndSaysWhatHelps(t *testing.T) {
	t.Parallel()
	known := map[drover.Reason]bool{}
	for _, r := range drover.Reasons() {
		if known[r] {
			t.Errorf("%s is listed twice", r)
		}
		known[r] = true
	}
	for _, b := range every() {
		if !known[b.Code] || b.Message == "" || b.Subject.Kind == "" || strings.Contains(b.Message, "%!") {
			t.Errorf("blocker %+v", b)
		}
		timed := b.Code == drover.BlockerSchedule || b.Code == drover.BlockerRetry || b.Code == drover.BlockerHandoff || b.Code == drover.BlockerDependency
		if len(b.Remedies) == 0 && !timed {
			t.Errorf("%s: nothing helps", b.Code)
		}
	}
}

// TestOneBlockerIsPrimary whatever their order: being paused before being full, and
// a handoff last.
func TestOneBlockerIsPrimary(t *testing.T) {
	t.Parallel()
	for n := 1; n <= len(every()); n++ {
		list := Order(every()[:n], now)
		for i, b := range list {
			if b.Primary != (i == 0) || b.Layer != b.Code.Layer() {
				t.Fatalf("the %s of %d: %s, primary %t", Nth(i+1), n, b.Code, b.Primary)
			}
		}
	}
	list := Order([]drover.Blocker{Handoff("a"), Ahead(drover.BlockerPriority, "a", 1, 1, false, Place{}), WorkersFull("a", 1, 1, Place{}), JobPaused(drover.JobID{}, "", "", now.Add(-time.Minute)), QueuePaused("a")}, now)
	var order []string
	for _, b := range list {
		order = append(order, string(b.Code))
	}
	if got := strings.Join(order, " "); got != "job_paused queue_paused workers_full priority handoff" {
		t.Errorf("order: %s", got)
	}
	if list[0].Waited.Std() != time.Minute {
		t.Errorf("paused for %s, want 1m", list[0].Waited)
	}
}

// TestWordsArePlain.
func TestWordsArePlain(t *testing.T) {
	t.Parallel()
	w := Workers{Queue: "gpu", Kind: "infer", Serve: 3, Draining: 1, Lacks: []string{"2 lack gpu"}}
	for got, want := range map[string]string{
		NoMatch(w).Message: "0 of 3 workers of queue gpu match: 2 lack gpu, 1 draining.",
		Limit(drover.BlockerSemaphore, drover.Limit{Name: "vendor-x", Scope: drover.ScopeNamed, Max: 5, Used: 5}, "", 1, time.Time{}, Place{Position: 4, Of: 17}).Message: "Waiting for semaphore vendor-x: 5 of 5 in use; it is 4th of 17.",
		Dependency([]Parent{{Name: "a", Total: 1, Running: 1}, {Name: "b", Unexpanded: true}}, nil).Message:                                                               "Waiting for a (runs) and b (a map that has not expanded).",
		Place{MoreAhead: true}.String():                 "behind more than 1,000 others",
		Nth(11) + Nth(22) + Nth(103):                    "11th22nd103rd",
		Thousands(1234567) + Thousands(12):              "1,234,56712",
		Long(90*time.Second) + " " + Long(53*time.Hour): "1m30s 2d5h",
		Long(time.Hour) + " " + Long(2*time.Minute):     "1h 2m",
		Short("a\n b " + strings.Repeat("é", 100))[:5]:  "a b é"[:5],
	} {
		if got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}
