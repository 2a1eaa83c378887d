package engine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

func (w *world) rule(name string, n drover.NewIntakeRule) drover.IntakeRule {
	w.t.Helper()
	r, err := w.SetIntake(w.t.Context(), w.c, name, n, engine.Precondition{}, false)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// takes says how a submit of a job ends: "ok", or the code of its refusal.
func (w *world) takes(n drover.NewJob) (drover.Code, *drover.Error) {
	w.t.Helper()
	out, err := w.Submit(w.t.Context(), w.c, []drover.NewJob{n})
	if err != nil {
		w.t.Fatal(err)
	}
	if out[0].Err != nil {
		return out[0].Err.Code, out[0].Err
	}
	return "ok", nil
}

// TestAQueueInWhichTooMuchWaitsTakesNoJobs, until less does; it says why and when to come
// back, and what was accepted before is answered as ever.
func TestAQueueInWhichTooMuchWaitsTakesNoJobs(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks: {a: {run: x}, b: {run: x, queue: slow, needs: [a]}}\n")
		w.open()
		w.rule("backlog", drover.NewIntakeRule{Queue: "slow", MaxWaiting: 5, Then: drover.IntakeThrottle, Reason: "for tests"})
		look := func() { w.step("intake", w.IntakeOnce) }
		job := drover.NewJob{Kind: "k", Queue: "slow"}
		keyed := job
		keyed.IdempotencyKey = "k"
		first := w.submit(keyed)
		w.submitMany(4, job)
		look()
		if code, _ := w.takes(job); code != "ok" {
			t.Fatalf("with five: %s", code)
		}
		look()
		code, err := w.takes(job)
		if code != drover.CodeRateLimited || err.RetryAfter <= 0 || !strings.Contains(err.Detail, "rule backlog") || !strings.Contains(err.Detail, "6 tasks wait") {
			t.Fatalf("with six: %s %v", code, err)
		}
		if code, _ := w.takes(drover.NewJob{Pipeline: "p"}); code != drover.CodeRateLimited {
			t.Errorf("a pipeline with a task in it: %s", code)
		}
		if code, _ := w.takes(drover.NewJob{Kind: "k"}); code != "ok" {
			t.Errorf("another queue: %s", code)
		}
		if out, err := w.Submit(t.Context(), w.c, []drover.NewJob{keyed}); err != nil || out[0].JobID != first || !out[0].Replayed {
			t.Errorf("a repeat: %+v %v", out, err)
		}
		if _, _, err := w.Preview(t.Context(), w.c, job); drover.CodeOf(err) != drover.CodeRateLimited {
			t.Errorf("a dry run: %v", err)
		}
		r, gerr := w.IntakeRule(t.Context(), w.c, "backlog")
		if gerr != nil || !r.Firing || r.Since.IsZero() || r.Why == "" || r.Measured.Waiting != 6 || len(r.Changes) != 2 || r.Changes[0].Action != "fired" || r.Changes[1].Action != "set" || r.Changes[1].Reason != "for tests" {
			t.Errorf("the rule: %+v %v", r, gerr)
		}
		s, serr := w.OpenSession(t.Context(), w.c, drover.NewSession{Worker: "w", Queues: []string{"slow"}, Slots: 10})
		if serr != nil {
			t.Fatal(serr)
		}
		h := &hand{Engine: w.Engine, c: w.c, session: s.ID}
		if _, err := h.acquire(1); err != nil {
			t.Fatal(err)
		}
		look()
		if code, _ := w.takes(job); code != drover.CodeRateLimited {
			t.Errorf("with five, which is more than four fifths: %s", code)
		}
		if _, err := h.acquire(1); err != nil {
			t.Fatal(err)
		}
		look()
		if code, _ := w.takes(job); code != "ok" {
			t.Errorf("with four: %s", code)
		}
		if r, err := w.IntakeRule(t.Context(), w.c, "backlog"); err != nil || r.Firing || r.Changes[0].Action != "cleared" {
			t.Errorf("the rule: %+v %v", r, err)
		}
	})
}

// TestWhatIsShedAndWhatIsDiverted: the least urgent class first, and single tasks to the
// queue that the rule names, which is on record.
func TestWhatIsShedAndWhatIsDiverted(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.open()
		w.rule("shed", drover.NewIntakeRule{Queue: "a", MaxAge: drover.Duration(time.Minute), Then: drover.IntakeShed})
		w.rule("divert", drover.NewIntakeRule{Queue: "b", MaxWaiting: 1, Then: drover.IntakeDivert, DivertTo: "c"})
		w.rule("c-full", drover.NewIntakeRule{Queue: "c", MaxWaiting: 1, Then: drover.IntakeThrottle})
		w.submit(drover.NewJob{Kind: "k", Queue: "a"})
		w.submitMany(2, drover.NewJob{Kind: "k", Queue: "b"})
		w.clock.add += 61 * time.Second
		w.step("intake", w.IntakeOnce)
		for class, want := range map[drover.Class]drover.Code{drover.Normal: "ok", drover.Interactive: "ok", drover.Batch: drover.CodeRateLimited, 99: drover.CodeRateLimited} {
			if code, err := w.takes(drover.NewJob{Kind: "k", Queue: "a", Class: class}); code != want {
				t.Errorf("class %s: %s %v", class, code, err)
			}
		}
		id := w.submit(drover.NewJob{Kind: "k", Queue: "b", IdempotencyKey: "x"})
		if q := w.tasksOf(id)[0].Queue; q != "c" {
			t.Errorf("the job is in queue %s", q)
		}
		var told struct {
			From string `json:"diverted_from"`
			Rule string
		}
		if e := w.gapless(id)[0]; json.Unmarshal(e.Data, &told) != nil || told.From != "b" || told.Rule != "divert" {
			t.Errorf("the first event says %s", e.Data)
		}
		if out, err := w.Submit(t.Context(), w.c, []drover.NewJob{{Kind: "k", Queue: "b", IdempotencyKey: "x"}}); err != nil || out[0].JobID != id {
			t.Errorf("a repeat of what was diverted: %+v %v", out, err)
		}
		w.submit(drover.NewJob{Kind: "k", Queue: "b"})
		w.step("intake", w.IntakeOnce)
		if code, err := w.takes(drover.NewJob{Kind: "k", Queue: "b"}); code != drover.CodeRateLimited {
			t.Errorf("where it is diverted to is full too: %s %v", code, err)
		}
		w.audit()
	})
}

// TestMuchOfOthersHidesNoBacklog: what counts for a rule is counted by itself, however
// much else waits, and a job of a pipeline goes by the classes of its tasks.
func TestMuchOfOthersHidesNoBacklog(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		w.CountUpTo(10)
		for n := range 12 {
			other, err := w.EnsureTenant(ctx, fmt.Sprintf("other%d", n))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Submit(ctx, other, slices.Repeat([]drover.NewJob{{Kind: "k", Class: drover.Interactive}}, 5)); err != nil {
				t.Fatal(err)
			}
		}
		w.rule("mine", drover.NewIntakeRule{Queue: "default", MaxWaiting: 20, Then: drover.IntakeShed, Class: drover.Batch})
		for n := range 21 {
			w.submit(drover.NewJob{Kind: fmt.Sprintf("k%d", n%4), Class: drover.Batch})
		}
		w.step("intake", w.IntakeOnce)
		if code, err := w.takes(drover.NewJob{Kind: "k", Class: drover.Batch}); code != drover.CodeRateLimited || !strings.Contains(err.Detail, "21 tasks wait") {
			t.Errorf("with 21: %s %v", code, err)
		}
		w.apply("pipeline: p\ntasks: {a: {run: x}, b: {run: x, class: batch}}\n")
		w.apply("pipeline: q\ntasks: {a: {run: x, class: normal}}\n")
		if code, _ := w.takes(drover.NewJob{Pipeline: "p"}); code != drover.CodeRateLimited {
			t.Errorf("a pipeline with a task of that class: %s", code)
		}
		if code, _ := w.takes(drover.NewJob{Pipeline: "q", Class: drover.Batch}); code != "ok" {
			t.Errorf("a pipeline without one: %s", code)
		}
	})
}

// TestRulesThatAreChangedAtOnce: each is made, and a change of a version that has gone
// is refused, whoever was faster.
func TestRulesThatAreChangedAtOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		var all sync.WaitGroup
		for n := range 8 {
			all.Go(func() {
				if _, err := w.SetIntake(ctx, w.c, fmt.Sprintf("r%d", n), drover.NewIntakeRule{MaxWaiting: 5, Then: drover.IntakeThrottle}, engine.Precondition{New: true}, false); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		var gone atomic.Int32
		for range 6 {
			all.Go(func() {
				if _, err := w.DeleteIntake(ctx, w.c, "r0", "", engine.Precondition{Version: 1}, false); err == nil {
					gone.Add(1)
				} else if c := drover.CodeOf(err); c != drover.CodePreconditionFailed && c != drover.CodeNotFound {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if list, err := w.Intake(ctx, w.c); err != nil || len(list) != 7 || gone.Load() != 1 {
			t.Errorf("%d rules are left, %d deletes succeeded, %v", len(list), gone.Load(), err)
		}
	})
}

// TestATenantHasABacklogOfItsOwn: another's does not count, and a rule for all is set by
// the installation alone.
func TestATenantHasABacklogOfItsOwn(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		other, err := w.EnsureTenant(ctx, "beta")
		if err != nil {
			t.Fatal(err)
		}
		w.rule("mine", drover.NewIntakeRule{MaxWaiting: 2, Then: drover.IntakeThrottle})
		for range 5 {
			if _, err := w.Submit(ctx, other, []drover.NewJob{{Kind: "k"}}); err != nil {
				t.Fatal(err)
			}
		}
		w.step("intake", w.IntakeOnce)
		w.submitMany(3, drover.NewJob{Kind: "k"})
		w.step("intake", w.IntakeOnce)
		if code, _ := w.takes(drover.NewJob{Kind: "k", Queue: "any"}); code != drover.CodeQuota {
			t.Errorf("over the tenant's own: %s", code)
		}
		if out, err := w.Submit(ctx, other, []drover.NewJob{{Kind: "k"}}); err != nil || out[0].Err != nil {
			t.Errorf("the other tenant: %v %v", out, err)
		}
		if list, err := w.Intake(ctx, other); err != nil || len(list) != 0 {
			t.Errorf("the other sees %v %v", list, err)
		}
		if _, err := w.IntakeRule(ctx, other, "mine"); drover.CodeOf(err) != drover.CodeNotFound {
			t.Errorf("the other gets it: %v", err)
		}
		weak := w.c
		weak.Scopes, weak.System = []string{"limits:admin"}, false
		if _, err := engine.New(w.db, engine.Options{Operator: "somebody"}).SetIntake(ctx, weak, "all", drover.NewIntakeRule{Shared: true, MaxWaiting: 1, Then: drover.IntakeThrottle}, engine.Precondition{}, false); drover.CodeOf(err) != drover.CodeForbidden {
			t.Errorf("a rule for all by a tenant: %v", err)
		}
		if _, err := w.DeleteIntake(ctx, w.c, "mine", "", engine.Precondition{Version: 7}, false); drover.CodeOf(err) != drover.CodePreconditionFailed {
			t.Errorf("of another version: %v", err)
		}
		if _, err := w.DeleteIntake(ctx, w.c, "mine", "", engine.Precondition{}, false); err != nil {
			t.Error(err)
		}
		if code, _ := w.takes(drover.NewJob{Kind: "k"}); code != "ok" {
			t.Errorf("without the rule: %s", code)
		}
	})
}

// TestADryRunOfARuleTellsWhatItWouldDo and changes nothing.
func TestADryRunOfARuleTellsWhatItWouldDo(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		w.open()
		w.submitMany(3, drover.NewJob{Kind: "k"})
		r, err := w.SetIntake(ctx, w.c, "r", drover.NewIntakeRule{Queue: "default", MaxWaiting: 2, Then: drover.IntakeThrottle}, engine.Precondition{}, true)
		if err != nil || !r.Firing || r.Measured.Waiting != 3 || r.Version != 0 {
			t.Errorf("%+v %v", r, err)
		}
		if list, err := w.Intake(ctx, w.c); err != nil || len(list) != 0 {
			t.Errorf("%v %v", list, err)
		}
		r, err = w.SetIntake(ctx, w.c, "r", drover.NewIntakeRule{Queue: "never", MaxWaiting: 2, Then: drover.IntakeDivert, DivertTo: "either"}, engine.Precondition{}, true)
		if err != nil || r.Firing || r.Measured.Waiting != 0 || r.Queue != "never" || r.DivertTo != "either" || w.count("SELECT count(*) FROM queues WHERE name IN ('never', 'either')") != 0 {
			t.Errorf("of queues that are not there: %+v %v", r, err)
		}
		for field, n := range map[string]drover.NewIntakeRule{
			"max_waiting": {Then: drover.IntakeThrottle},
			"max_age":     {MaxAge: 1, Then: drover.IntakeThrottle},
			"max_wait":    {MaxWait: drover.Duration(time.Minute), Then: drover.IntakeThrottle},
			"then":        {MaxWaiting: 1, Then: "cry"},
			"class":       {MaxWaiting: 1, Then: drover.IntakeThrottle, Class: drover.Batch},
			"divert_to":   {MaxWaiting: 1, Then: drover.IntakeDivert, Queue: "q", DivertTo: "q"},
			"queue":       {MaxWaiting: 1, Then: drover.IntakeDivert, DivertTo: "q"},
		} {
			_, err := w.SetIntake(ctx, w.c, "r", n, engine.Precondition{}, false)
			var refused *drover.Error
			if !errors.As(err, &refused) || len(refused.Fields) == 0 || refused.Fields[0].Field != field {
				t.Errorf("%s: %v", field, err)
			}
		}
	})
}
