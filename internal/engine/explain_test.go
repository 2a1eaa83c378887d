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

// why explains a task and holds the explanation to what is true of every one: one
// primary blocker exactly while it waits, and times that add up.
func (w *world) why(id drover.JobID, name string) drover.Explanation {
	w.t.Helper()
	x := must(w.Explain(w.t.Context(), w.c, w.taskOf(id, name).ID))
	primary := 0
	for i, b := range x.Blockers {
		if b.Primary {
			primary++
		}
		if b.Primary != (i == 0) || b.Layer != b.Code.Layer() || b.Message == "" || !slices.Contains(drover.Reasons(), b.Code) {
			w.t.Errorf("%s: blocker %+v", name, b)
		}
	}
	waits := !x.Status.Final() && x.Status != drover.Running && !strings.HasPrefix(x.Message, "Being cancelled")
	if waits != (primary == 1) || primary > 1 || waits == x.WaitingSince.IsZero() {
		w.t.Errorf("%s is %s and has %d primary blockers: %+v", name, x.Status, primary, x)
	}
	var told, spent time.Duration
	for i, s := range x.History {
		if told += s.Duration.Std(); s.Duration.Std() != s.To.Sub(s.From) || i > 0 && !s.From.Equal(x.History[i-1].To) || s.Duration <= 0 {
			w.t.Errorf("%s: history %+v", name, x.History)
		}
	}
	for _, d := range x.TotalsByReason {
		spent += d.Std()
	}
	if (told - spent).Abs() > 5*time.Millisecond {
		w.t.Errorf("%s (%s): its history is %s long, its totals %s: %+v %v", name, x.Status, told, spent, x.History, x.TotalsByReason)
	}
	if x.Executor.Message == "" || x.Message == "" || x.Status.Final() != (x.Next.Failure == "") {
		w.t.Errorf("%s: %+v", name, x)
	}
	return x
}

func blockerCodes(x drover.Explanation) string {
	var out []string
	for _, b := range x.Blockers {
		out = append(out, string(b.Code))
	}
	return strings.Join(out, " ")
}

func TestATaskIsExplainedInEveryState(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n" +
			"  a: {run: a, retry: {max_attempts: 3, backoff: {initial: 10s}}, fallback: f}\n" +
			"  b: {run: b, needs: [a]}\n  c: {run: c, needs: [b]}\n  f: {run: f}\n")
		due := w.submit(drover.NewJob{Kind: "later", DueAt: w.Now().Add(time.Hour), ExpiresAt: w.Now().Add(2 * time.Hour)})
		id := w.submit(drover.NewJob{Pipeline: "p"})
		if x := w.why(due, "later"); blockerCodes(x) != "schedule_not_due" || x.Start.P50.Std().Round(time.Minute) != time.Hour || x.Deadline.Kind != "expires_at" || x.Deadline.WillMiss {
			t.Errorf("before its time: %+v", x)
		}
		if x := w.why(id, "a"); blockerCodes(x) != "handoff" || x.Layer != drover.LayerExecution || x.Executor.Matching != 1 || x.Executor.Free != 1000 || x.Start == nil || x.Start.P90 != 0 {
			t.Errorf("with a free worker: %+v", x)
		}
		if x := w.why(id, "c"); blockerCodes(x) != "dependency" || x.Blockers[0].Message != "Waiting for b (waits)." || x.Blockers[0].Subject.Name != "b" {
			t.Errorf("below others: %+v", x)
		}
		l := w.one()
		w.passing(3*time.Second, l)
		if x := w.why(id, "a"); blockerCodes(x) != "" || x.Running == nil || x.Running.Worker != "w" || x.Running.For.Std() < 3*time.Second || !strings.Contains(x.Message, "Runs on w for 3s, attempt 1 of 3") || !strings.Contains(x.Next.Failure, "Task f then runs in its place") {
			t.Errorf("running: %+v", x)
		}
		if x := w.why(id, "b"); x.Blockers[0].Message != "Waiting for a (runs)." || len(x.Blockers[0].Remedies) != 1 {
			t.Errorf("below what runs: %+v", x.Blockers)
		}
		w.settle(failed(l, drover.ClassRetryable, "no answer"))
		if x := w.why(id, "a"); blockerCodes(x) != "retry_backoff" || !strings.Contains(x.Message, "Attempt 1 of 3 failed (retryable: no answer)") || x.Blockers[0].Until.IsZero() || x.LastError == nil {
			t.Errorf("between attempts: %+v", x)
		}
		must(w.Pause(t.Context(), w.c, id, engine.Request{Reason: "lunch"}))
		w.passing(20 * time.Second)
		w.step("timers", w.TimersOnce)
		if x := w.why(id, "a"); blockerCodes(x) != "job_paused" || !strings.Contains(x.Message, "lunch") || x.Blockers[0].Remedies[0].Command != "drover job resume "+id.String() {
			t.Errorf("paused: %+v", x)
		}
		if x := w.why(id, "b"); blockerCodes(x) != "dependency job_paused" {
			t.Errorf("below others, paused: %+v", x)
		}
		w.passing(7 * time.Second)
		must(w.Resume(t.Context(), w.c, id, engine.Request{}))
		w.step("sweep", w.SweepOnce)
		w.step("admit", w.AdmitOnce)
		w.passing(time.Second)
		l = w.one()
		w.passing(5*time.Second, l)
		w.settle(ok(l, "1"))
		x := w.why(id, "a")
		var story []string
		for _, s := range x.History {
			story = append(story, s.Code)
		}
		if got := strings.Join(slices.Compact(story), " "); x.Status != drover.Succeeded || !strings.Contains(got, "run retry_backoff job_paused handoff run") || x.TotalsByReason["job_paused"] == 0 {
			t.Errorf("at the end: %s: %+v", got, x)
		}
		if last := x.History[len(x.History)-1]; last.Worker != "w" || last.Outcome != "succeeded" || last.Duration.Std().Round(time.Second) != 5*time.Second {
			t.Errorf("its last run: %+v", last)
		}
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		w.why(id, "b")
		w.why(id, "c")
		if _, err := w.Explain(t.Context(), w.c, drover.TaskID{}); drover.CodeOf(err) != drover.CodeNotFound {
			t.Errorf("a task that is not there: %v", err)
		}
	})
}

// TestAWaitForWorkersTellsPlaceHoldersAndForecast: who has the slots, in which turn,
// for how long still; of other tenants nothing but that there are some.
func TestAWaitForWorkersTellsPlaceHoldersAndForecast(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		beta := must(w.EnsureTenant(ctx, "beta"))
		system := must(w.EnsureTenant(ctx, "system"))
		two := must(w.OpenSession(ctx, system, drover.NewSession{Worker: "small", Queues: []string{"two"}, Slots: 2}))
		take := func(n int, number int64) []drover.Lease {
			return must(w.Acquire(ctx, system, drover.Acquire{Session: two.ID, Max: n, Number: number}))
		}
		settle := func(o ...drover.Outcome) {
			if r := w.Settle(ctx, []engine.Settlement{{Caller: system, Session: two.ID, Outcomes: o}}); r[0].Err != nil {
				t.Fatal(r[0].Err)
			}
		}
		for i := range 30 { // so that something is known of such tasks
			w.submit(drover.NewJob{Kind: "k", Queue: "two"})
			l := take(1, int64(i+1))
			w.pass(10 * time.Second)
			must(w.Renew(ctx, system, two.ID, drover.Renewal{Held: []drover.Held{{TaskID: l[0].TaskID, LeaseVersion: l[0].LeaseVersion}}, Acquired: int64(i + 1)}))
			settle(ok(l[0], "1"))
		}
		if n := w.step("observe", w.ObserveOnce); n != 1 {
			t.Errorf("%d lanes were observed, want 1", n)
		}
		mine := w.submit(drover.NewJob{Kind: "k", Queue: "two"})
		must(w.Submit(ctx, beta, []drover.NewJob{{Kind: "secret", Queue: "two"}}))
		if got := take(2, 31); len(got) != 2 {
			t.Fatalf("%d leases", len(got))
		}
		var last drover.JobID
		for range 4 {
			last = w.submit(drover.NewJob{Kind: "k", Queue: "two"})
		}
		urgent := w.submit(drover.NewJob{Kind: "k", Queue: "two", Class: drover.Urgent})
		must(w.Submit(ctx, beta, []drover.NewJob{{Kind: "secret", Queue: "two"}, {Kind: "secret", Queue: "two"}}))
		w.pass(4 * time.Second)
		x := w.why(last, "k")
		b := x.Blockers[0]
		if blockerCodes(x) != "workers_full priority fair_share" || b.Subject.Position != 7 || b.Subject.Used != 2 || b.Subject.Limit != 2 {
			t.Errorf("%s: %+v", blockerCodes(x), b)
		}
		if len(b.Holders) != 2 || b.MoreHolders != 0 {
			t.Fatalf("holders %+v", b.Holders)
		}
		foreign, own := b.Holders[0], b.Holders[1]
		if !own.JobID.IsZero() && own.JobID != mine || own.JobID.IsZero() {
			own, foreign = foreign, own
		}
		if own.JobID != mine || own.Worker != "small" || own.Tenant != "acme" || own.HeldFor.Std().Round(time.Second) != 4*time.Second || own.ExpectedReleaseIn == nil || own.ExpectedReleaseIn.Std().Round(time.Second) != 6*time.Second {
			t.Errorf("own holder %+v", own)
		}
		if !foreign.JobID.IsZero() || !foreign.TaskID.IsZero() || foreign.Worker != "" || foreign.Tenant != "another tenant" {
			t.Errorf("another tenant's holder %+v", foreign)
		}
		if said := fmt.Sprintf("%+v", x); strings.Contains(said, "beta") || strings.Contains(said, "secret") {
			t.Errorf("it tells of another tenant: %s", said)
		}
		// Six ahead of it for two slots, 10 s each, the first free in 6 s.
		if x.Start == nil || x.Start.P50.Std() < 25*time.Second || x.Start.P50.Std() > 40*time.Second || !strings.Contains(x.Start.Basis, "ends in the last 15m") || x.Start.Confidence != "medium" {
			t.Errorf("forecast %+v", x.Start)
		}
		if x := w.why(urgent, "k"); blockerCodes(x) != "workers_full" || x.Blockers[0].Subject.Position != 1 || x.Start.P50.Std() > 8*time.Second {
			t.Errorf("the urgent one: %s %+v", blockerCodes(x), x.Blockers[0].Subject)
		}
		j := must(w.ExplainJob(ctx, w.c, last))
		if j.Message != x.Message || *j.On != x.TaskID || len(j.Tasks) != 1 || j.TotalsByReason["handoff"] == 0 || j.End == nil {
			t.Errorf("its job: %+v", j)
		}
		// A deadline before the forecast is said to be missed before it is.
		late := w.submit(drover.NewJob{Kind: "k", Queue: "two", ExpiresAt: w.Now().Add(20 * time.Second)})
		if x := w.why(late, "k"); x.Deadline == nil || !x.Deadline.WillMiss || !strings.HasPrefix(x.Deadline.Message, "It will miss its deadline") {
			t.Errorf("deadline %+v", x.Deadline)
		}
		// Who waits for what, each tenant its own; the installation all.
		groups := must(w.Waits(ctx, w.c, []string{"reason", "tenant", "queue"}))
		if len(groups) != 1 || groups[0].Reason != drover.BlockerWorkersFull || groups[0].Tenant != "acme" || groups[0].Queue != "two" || groups[0].Waiting != 6 || groups[0].OldestAge.Std().Round(time.Second) != 4*time.Second {
			t.Errorf("waits %+v", groups)
		}
		if all := must(w.Waits(ctx, system, []string{"tenant"})); len(all) != 2 || all[0].Tenant != "acme" || all[1].Tenant != "beta" || all[1].Waiting != 2 || all[1].Top != drover.BlockerWorkersFull {
			t.Errorf("waits of all: %+v", all)
		}
		if _, err := w.Waits(ctx, w.c, []string{"colour"}); drover.CodeOf(err) != drover.CodeValidation {
			t.Errorf("grouped by what there is not: %v", err)
		}
		c := must(w.Capacity(ctx, w.c))
		i := slices.IndexFunc(c.Queues, func(h drover.QueueHint) bool { return h.Queue == "two" })
		h := c.Queues[i]
		if h.Waiting != 8 || h.Startable != 8 || h.Used != 2 || h.Slots != 2 || h.Utilisation != 1 || h.Desired != 2 || !strings.Contains(h.TwoMoreWorkers, "4 start at once instead of 0") {
			t.Errorf("hint %+v", h)
		}
		if len(c.Groups) != 2 || c.Groups[1].Workers != 1 || c.Groups[1].Free != 0 || c.Groups[1].Utilisation != 1 {
			t.Errorf("groups %+v", c.Groups)
		}
	})
}

// TestWhoCouldNotRunItIsSaid: nobody has the kind, all drain, its circuit is open;
// and the rest of a job that a failure stops.
func TestWhoCouldNotRunItIsSaid(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		id := w.submit(drover.NewJob{Kind: "k", Queue: "q", Circuit: "api"})
		if x := w.why(id, "k"); blockerCodes(x) != "no_worker_for_kind" || !strings.Contains(x.Message, `no live worker serves queue "q"`) {
			t.Errorf("without a worker: %+v", x)
		}
		s := must(w.OpenSession(ctx, w.c, drover.NewSession{Worker: "v", Queues: []string{"q"}, Kinds: []string{"other"}, Slots: 1}))
		if x := w.why(id, "k"); blockerCodes(x) != "no_worker_for_kind" || x.Executor.Workers != 1 || x.Executor.Matching != 0 {
			t.Errorf("without the kind: %+v", x)
		}
		s = must(w.OpenSession(ctx, w.c, drover.NewSession{Worker: "v", Queues: []string{"q"}, Slots: 1}))
		must(w.OpenCircuit(ctx, w.c, "api", "maintenance"))
		if x := w.why(id, "k"); blockerCodes(x) != "circuit_open" || !strings.Contains(x.Message, "opened by hand: maintenance") {
			t.Errorf("with an open circuit: %+v", x)
		}
		must(w.Renew(ctx, w.c, s.ID, drover.Renewal{Draining: true}))
		if x := w.why(id, "k"); blockerCodes(x) != "circuit_open workers_draining" {
			t.Errorf("with all draining too: %+v", x)
		}
		if g := must(w.Waits(ctx, w.c, nil)); len(g) != 1 || g[0].Top != drover.BlockerCircuit || g[0].Subject.Name != "api" {
			t.Errorf("waits %+v", g)
		}
		c := must(w.Capacity(ctx, w.c))
		i := slices.IndexFunc(c.Queues, func(h drover.QueueHint) bool { return h.Queue == "q" })
		if h := c.Queues[i]; h.Startable != 0 || h.Waiting != 1 || !strings.Contains(h.Reason, "more workers won't help: 1 waits for circuit_open api") {
			t.Errorf("hint %+v", h)
		}
	})
}

// TestOthersAreNotExplained: of another tenant nothing is found.
func TestOthersAreNotExplained(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		id := w.submit(drover.NewJob{Kind: "k"})
		beta := must(w.EnsureTenant(t.Context(), "beta"))
		if _, err := w.Explain(t.Context(), beta, w.taskOf(id, "k").ID); drover.CodeOf(err) != drover.CodeNotFound {
			t.Errorf("task: %v", err)
		}
		if _, err := w.ExplainJob(t.Context(), beta, id); drover.CodeOf(err) != drover.CodeNotFound {
			t.Errorf("job: %v", err)
		}
		if g := must(w.Waits(t.Context(), beta, nil)); len(g) != 0 {
			t.Errorf("waits: %+v", g)
		}
	})
}
