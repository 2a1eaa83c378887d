package engine_test

import (
	"cmp"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/driver"
)

func (w *world) limit(name string, n drover.NewLimit) drover.Limit {
	w.t.Helper()
	l, err := w.SetLimit(w.t.Context(), w.who(n), name, n, engine.Precondition{}, false)
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

// system administers the installation.
func (w *world) system() engine.Caller {
	w.t.Helper()
	c, err := w.EnsureTenant(w.t.Context(), "system")
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// who may make a limit.
func (w *world) who(n drover.NewLimit) engine.Caller {
	w.t.Helper()
	if n.Shared || n.Scope == drover.ScopeGlobal || n.Scope == drover.ScopeQueue {
		return w.system()
	}
	return w.c
}

// used is what is held of a limit.
func (w *world) used(name string) int64 {
	w.t.Helper()
	l, err := w.Limit(w.t.Context(), w.c, name)
	if err != nil {
		w.t.Fatal(err)
	}
	return l.Used
}

// admit lets the admitter step until nothing moves.
func (w *world) admit() {
	w.t.Helper()
	for range 100 {
		if w.step("admit", w.AdmitOnce) == 0 {
			return
		}
	}
	w.t.Fatal("the admitter finds no end")
}

// get admits and acquires.
func (w *world) get(n int) []drover.Lease {
	w.t.Helper()
	w.admit()
	return w.acquire(n)
}

// nothingHeld wants no permit in the database, and a clean audit.
func (w *world) nothingHeld() {
	w.t.Helper()
	if n := w.count("SELECT count(*) FROM permits"); n != 0 {
		w.t.Errorf("%d permits are held when all is quiet", n)
	}
	w.audit()
}

// kill-one-start-one, holder-killed, limit-raised-live, permit-leak-kill: whatever ends
// a holder's attempt gives its permit to the next one, once.
func TestWhateverEndsAnAttemptGivesItsPermitBack(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		w.limit("vendor", drover.NewLimit{Max: 2})
		job := drover.NewJob{Kind: "call", Limits: map[string]int64{"vendor": 1}, Retry: &drover.Retry{MaxAttempts: 3, Initial: drover.Duration(time.Hour), Max: drover.Duration(time.Hour)}}
		w.submitMany(20, job)
		if l := w.acquire(10); len(l) != 0 {
			t.Fatalf("%d run that nobody admitted", len(l))
		}
		took := func(why string) []drover.Lease {
			t.Helper()
			l := w.get(10)
			if len(l) != 2 || w.used("vendor") != 2 {
				t.Fatalf("%s: %d run and %d permits are held, want 2", why, len(l), w.used("vendor"))
			}
			if more := w.get(10); len(more) != 0 {
				t.Fatalf("%s: %d more run", why, len(more))
			}
			return l
		}
		l := took("first")
		w.settle(ok(l[0], "1"))
		if l = append(l[1:], w.get(10)...); len(l) != 2 {
			t.Fatalf("after a success %d run", len(l))
		}
		w.settle(ok(l[0], "1"), failed(l[1], drover.ClassRetryable, "later")) // RETRY_WAIT holds nothing
		l = took("after a success and a failure")
		w.settle(drover.Outcome{TaskID: l[0].TaskID, LeaseVersion: l[0].LeaseVersion, Status: drover.OutcomeReleased}, drover.Outcome{TaskID: l[1].TaskID, LeaseVersion: l[1].LeaseVersion, Status: drover.OutcomeSnoozed, RetryAfter: drover.Duration(time.Hour)})
		took("after a release and a snooze")
		w.pass(40 * time.Second) // its worker is lost
		w.step("reap", w.ReapOnce)
		if n := w.used("vendor"); n != 0 {
			t.Fatalf("a lost worker's tasks hold %d", n)
		}
		l = took("after a loss")
		if _, err := w.Cancel(ctx, w.c, l[0].JobID, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		w.settle(drover.Outcome{TaskID: l[0].TaskID, LeaseVersion: l[0].LeaseVersion, Status: drover.OutcomeCancelled}, failed(l[1], drover.ClassPermanent, "no"))
		w.admit() // they are QUEUED, and hold permits
		if n := w.used("vendor"); n != 2 {
			t.Fatalf("%d are held by those that are admitted", n)
		}
		paused, cancelled := w.queuedJobs(), 0
		for i, id := range paused { // pause-holds, kill one queued
			if i == 0 {
				if _, err := w.Pause(ctx, w.c, id, engine.Request{}); err != nil {
					t.Fatal(err)
				}
			} else if _, err := w.Cancel(ctx, w.c, id, engine.Request{}); err != nil {
				t.Fatal(err)
			} else {
				cancelled++
			}
		}
		w.step("sweep", w.SweepOnce)
		if n := w.used("vendor"); n != 0 || cancelled != 1 {
			t.Fatalf("a paused and a cancelled task hold %d", n)
		}
		took("after a pause and a cancel")
		if _, err := w.Resume(ctx, w.c, paused[0], engine.Request{}); err != nil {
			t.Fatal(err)
		}
		w.limit("vendor", drover.NewLimit{Max: 4})
		if l := w.get(10); len(l) != 2 {
			t.Fatalf("raised by two: %d more run", len(l))
		}
		w.limit("vendor", drover.NewLimit{Max: 1})
		w.clock.add += 2 * time.Hour
		w.pass(0)
		for range 50 {
			w.step("reap", w.ReapOnce)
			w.step("timers", w.TimersOnce)
			w.step("sweep", w.SweepOnce)
			for _, l := range w.get(10) {
				if n := w.used("vendor"); n > 1 {
					t.Fatalf("lowered to one: %d are held", n)
				}
				w.settle(ok(l, "1"))
			}
			w.clock.add += time.Minute
			w.pass(0)
		}
		w.nothingHeld()
	})
}

// queuedJobs are the jobs that have a QUEUED task.
func (w *world) queuedJobs() (ids []drover.JobID) {
	w.t.Helper()
	for _, j := range w.jobs() {
		for _, x := range w.tasksOf(j.ID) {
			if x.Status == drover.Queued {
				ids = append(ids, j.ID)
			}
		}
	}
	return ids
}

// Permits without a holder and holders without a permit are seen by the audit, and mended.
func TestPermitsAreMended(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.limit("a", drover.NewLimit{Max: 3})
		w.submitMany(3, drover.NewJob{Kind: "k", Limits: map[string]int64{"a": 1}})
		l := w.get(2)
		for _, c := range []struct{ sql, want string }{
			{"DELETE FROM permits", "holds no permit of limit a"},
			{"UPDATE permits SET weight = 2", "holds 2 of limit a"},
			{"INSERT INTO permits (task_id, limit_id, key, weight, at) SELECT id, 77, '', 1, 1 FROM tasks", "takes nothing of it"},
		} {
			w.exec(c.sql)
			list, err := w.Audit(t.Context(), time.Time{})
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(list, func(a engine.Audited) bool { return a.ID == "I33" })
			if a := list[i]; a.Violations != 3 || !strings.Contains(a.Examples[0].Says, c.want) {
				t.Errorf("after %s the audit says %+v", c.sql, a)
			}
			w.exec("DELETE FROM permits WHERE weight <> 1 OR limit_id = 77")
			w.clock.add += 20 * time.Second
			w.renew(l...)
			w.clock.add += 20 * time.Second
			w.renew(l...)
			w.admit()
			w.audit()
		}
		w.settle(ok(l[0], "1"), ok(l[1], "1"))
		w.settle(ok(w.one(), "1"))
		w.nothingHeld()
	})
}

// chained-limits, multi-lock-release, multi-slot: all it needs or nothing, in weights.
func TestATaskTakesAllItNeedsOrNothing(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.limit("a", drover.NewLimit{Max: 3})
		w.limit("b", drover.NewLimit{Max: 1})
		first := w.submit(drover.NewJob{Kind: "k", Limits: map[string]int64{"a": 2, "b": 1}})
		second := w.submit(drover.NewJob{Kind: "k", Limits: map[string]int64{"a": 1, "b": 1}})
		third := w.submit(drover.NewJob{Kind: "k", Limits: map[string]int64{"a": 1}})
		l := w.get(10)
		if len(l) != 2 || w.used("a") != 3 || w.used("b") != 1 {
			t.Fatalf("%d run, a %d, b %d", len(l), w.used("a"), w.used("b"))
		}
		for _, x := range l {
			if x.JobID == second {
				t.Error("the second took b though the first has it")
			}
		}
		i := slices.IndexFunc(l, func(x drover.Lease) bool { return x.JobID == first })
		w.settle(ok(l[i], "1"))
		if w.used("a") != 1 || w.used("b") != 0 {
			t.Errorf("after the first a %d, b %d are held", w.used("a"), w.used("b"))
		}
		if x := w.get(10); len(x) != 1 || x[0].JobID != second {
			t.Fatalf("then %+v", x)
		}
		_ = third
		for _, bad := range []drover.NewJob{
			{Kind: "k", Limits: map[string]int64{"a": 4}}, {Kind: "k", Limits: map[string]int64{"nobody": 1}}, {Kind: "k", Limits: map[string]int64{"a": 0}}, {Kind: "k", Limits: map[string]int64{"a": -1}},
		} {
			out, err := w.Submit(t.Context(), w.c, []drover.NewJob{bad})
			if err != nil {
				t.Fatal(err)
			}
			want := drover.CodeValidation
			if bad.Limits["a"] == 4 {
				want = drover.CodeExceedsLimit
			}
			if drover.CodeOf(out[0].Err) != want {
				t.Errorf("limits %v: %v, want %s", bad.Limits, out[0].Err, want)
			}
		}
	})
}

// Every scope bounds what it names and nothing else, and a change reaches tasks that
// are QUEUED and that run already, on every server.
func TestALimitAppliesToWhatItNamesFromItsCommitOn(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		other := w.server() // that has heard of nothing
		for _, c := range []struct {
			n          drover.NewLimit
			job, free  drover.NewJob
			everything bool
		}{
			{n: drover.NewLimit{Scope: drover.ScopeKind, Kind: "x"}, job: drover.NewJob{Kind: "x"}, free: drover.NewJob{Kind: "y"}},
			{n: drover.NewLimit{Scope: drover.ScopeQueue, Queue: "gpu"}, job: drover.NewJob{Kind: "x", Queue: "gpu"}, free: drover.NewJob{Kind: "x"}},
			{n: drover.NewLimit{Scope: drover.ScopeTenant}, job: drover.NewJob{Kind: "x"}, everything: true},
			{n: drover.NewLimit{Scope: drover.ScopeGlobal}, job: drover.NewJob{Kind: "x"}, everything: true},
		} {
			name := "l-" + c.n.Scope
			ran := w.claimableOf(w.submitMany(2, c.job)) // they run before there is a limit
			w.submitMany(6, c.job)                       // and these are QUEUED
			c.n.Max = 4
			if p, err := w.SetLimit(t.Context(), w.who(c.n), name, c.n, engine.Precondition{}, true); err != nil || p.Preview == nil || p.Preview.Applies != 2 || p.Preview.Over != 0 {
				t.Fatalf("%s: a preview says %+v, %v", name, p.Preview, err)
			}
			w.limit(name, c.n)
			h := w.hand(other)
			if l, err := h.acquire(10); err != nil || len(l) > 0 {
				t.Fatalf("%s: another server gives %d that nobody admitted, %v", name, len(l), err)
			}
			if _, err := other.Submit(t.Context(), w.c, []drover.NewJob{c.job}); err != nil {
				t.Fatal(err)
			}
			if !c.everything {
				if out, err := other.Submit(t.Context(), w.c, []drover.NewJob{c.free}); err != nil || out[0].Err != nil {
					t.Fatal(out, err)
				}
				if l, err := h.acquire(10); err != nil || len(l) != 1 || l[0].Kind != c.free.Kind {
					t.Fatalf("%s: the one that is free: %+v, %v", name, l, err)
				} else if s, _, err := h.settle(0, ok(l[0], "1")); err != nil || s[0].Err != nil {
					t.Fatal(s, err)
				}
			}
			l := w.get(20)
			if len(l) != 2 || w.used(name) != 4 {
				t.Fatalf("%s: with 2 running %d more run, %d are held", name, len(l), w.used(name))
			}
			for range 4 { // two at a time: those before the limit hold permits, too
				for _, x := range append(ran, l...) {
					w.settle(ok(x, "1"))
				}
				ran, l = nil, w.get(20)
				if len(l) > 4 || w.used(name) > 4 {
					t.Fatalf("%s: %d run, %d are held", name, len(l), w.used(name))
				}
			}
			if len(l) != 0 {
				t.Fatalf("%s: %d are left", name, len(l))
			}
			if _, err := w.DeleteLimit(t.Context(), w.who(c.n), name, "done", engine.Precondition{}, false); err != nil {
				t.Fatal(err)
			}
			w.nothingHeld()
		}
	})
}

// claimableOf acquires the tasks of jobs.
func (w *world) claimableOf(ids []drover.JobID) []drover.Lease {
	w.t.Helper()
	l := w.get(len(ids))
	if len(l) != len(ids) {
		w.t.Fatalf("%d of %d run", len(l), len(ids))
	}
	return l
}

// A limit by key counts every key by itself; tasks without one are not bounded.
func TestEveryConcurrencyKeyIsCountedByItself(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for i := range 12 {
			w.submit(drover.NewJob{Kind: "mail", ConcurrencyKey: fmt.Sprintf("customer-%d", i%3)})
		}
		w.submit(drover.NewJob{Kind: "mail"})
		w.limit("per-customer", drover.NewLimit{Scope: drover.ScopeKey, Kind: "mail", Max: 1})
		l := w.get(20)
		if len(l) != 4 {
			t.Fatalf("%d run, want one of each of three keys and the one without", len(l))
		}
		if x, err := w.Limit(t.Context(), w.c, "per-customer"); err != nil || x.Keys != 3 || x.Used != 3 || len(x.Holders) != 3 || x.Holders[0].Key == "" {
			t.Errorf("it is %+v, %v", x, err)
		}
		seen := 0
		for len(l) > 0 {
			seen += len(l)
			for _, x := range l {
				w.settle(ok(x, "1"))
			}
			if l = w.get(20); len(l) > 3 {
				t.Fatalf("%d run", len(l))
			}
		}
		if seen != 13 {
			t.Errorf("%d ran", seen)
		}
		w.nothingHeld()
	})
}

// token-per-item, local-token-batches, key-limited-head: a rate is kept by store time,
// and what a throttled task was told holds for all.
func TestARateIsKeptAndADownstreamIsLeftAlone(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.limit("api", drover.NewLimit{Rate: 2, Burst: 3})
		w.submitMany(40, drover.NewJob{Kind: "k", Limits: map[string]int64{"api": 1}, Class: drover.Interactive, Retry: &drover.Retry{MaxAttempts: 5}})
		free := w.submit(drover.NewJob{Kind: "k", Class: drover.Batch})
		l := w.get(50)
		if len(l) != 4 {
			t.Fatalf("at once %d run, want a burst of 3 and the one that is free", len(l))
		}
		if !slices.ContainsFunc(l, func(x drover.Lease) bool { return x.JobID == free }) {
			t.Error("the one that is free waits behind those that are not")
		}
		started := 0
		for range 5 {
			w.clock.add += time.Second
			w.renew(l...)
			got := w.get(50)
			started += len(got)
			l = append(l, got...)
		}
		if started < 10 || started > 11 {
			t.Errorf("in 5 s %d started, at a rate of 2", started)
		}
		throttled := failed(l[0], drover.ClassThrottled, "slow down")
		if l[0].JobID == free {
			throttled = failed(l[1], drover.ClassThrottled, "slow down")
		}
		throttled.RetryAfter = drover.Duration(20 * time.Second)
		w.settle(throttled)
		l = slices.DeleteFunc(l, func(x drover.Lease) bool { return x.TaskID == throttled.TaskID })
		for range 3 {
			w.clock.add += 5 * time.Second
			w.renew(l...)
			if got := w.get(50); len(got) > 0 {
				t.Fatalf("%d started though it was told to come back in 20 s", len(got))
			}
		}
		w.clock.add += 6 * time.Second
		w.renew(l...)
		if got := w.get(50); len(got) != 3 {
			t.Errorf("after 21 s %d started, want the burst", len(got))
		}
		w.audit()
	})
}

// Resources and labels: who asks for them runs where they are, and no worker has more
// of it than it has.
func TestTasksRunWhereTheirResourcesAre(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		open := func(name string, n drover.NewSession) *hand {
			n.Worker, n.Queues = name, []string{"default"}
			s, err := w.OpenSession(ctx, w.c, n)
			if err != nil {
				t.Fatal(err)
			}
			return &hand{Engine: w.Engine, c: w.c, session: s.ID}
		}
		a := open("a", drover.NewSession{Slots: 10, Resources: map[string]int64{"gpu": 2}, Labels: map[string]string{"zone": "a"}})
		b := open("b", drover.NewSession{Slots: 10, Resources: map[string]int64{"gpu": 1}, Labels: map[string]string{"zone": "b"}})
		gpu := drover.NewJob{Kind: "infer", Resources: map[string]int64{"gpu": 1}}
		w.submitMany(6, gpu)
		zoned := w.submit(drover.NewJob{Kind: "infer", WorkerLabels: map[string]string{"zone": "b"}})
		out, err := w.Submit(ctx, w.c, []drover.NewJob{{Kind: "infer", Resources: map[string]int64{"gpu": 3}}})
		if err != nil || drover.CodeOf(out[0].Err) != drover.CodeExceedsLimit {
			t.Errorf("3 gpus, which nobody has: %v %v", out, err)
		}
		w.admit()
		if l := w.acquire(10); len(l) != 0 {
			t.Fatalf("a worker without a gpu or label got %+v", l)
		}
		la, err := a.acquire(10)
		if err != nil || len(la) != 2 {
			t.Fatalf("a runs %d, %v", len(la), err)
		}
		lb, err := b.acquire(10)
		if err != nil || len(lb) != 2 || !slices.ContainsFunc(lb, func(x drover.Lease) bool { return x.JobID == zoned }) {
			t.Fatalf("b runs %+v, %v", lb, err)
		}
		w.admit()
		if more, err := a.acquire(10); err != nil || len(more) > 0 {
			t.Fatalf("a got %d more, %v", len(more), err)
		}
		if _, _, err := a.settle(0, ok(la[0], "1")); err != nil {
			t.Fatal(err)
		}
		w.admit()
		if more, err := a.acquire(10); err != nil || len(more) != 1 {
			t.Fatalf("for the gpu that is free a got %d, %v", len(more), err)
		}
		w.audit()
	})
}

// A paused queue starts nothing from the commit on, on every server; what runs goes on.
func TestAPausedQueueStartsNothing(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx, other := t.Context(), w.server()
		w.submitMany(5, drover.NewJob{Kind: "k"})
		run := w.acquire(1)
		if q, err := w.PauseQueue(ctx, w.system(), "default", engine.Request{Reason: "repairs"}); err != nil || !q.Paused {
			t.Fatalf("%+v, %v", q, err)
		}
		h := w.hand(other)
		if l, err := h.acquire(10); err != nil || len(l) > 0 {
			t.Fatalf("another server gives %d, %v", len(l), err)
		}
		if _, err := other.Submit(ctx, w.c, []drover.NewJob{{Kind: "k"}}); err != nil {
			t.Fatal(err)
		}
		if l := w.get(10); len(l) > 0 {
			t.Fatalf("%d run", len(l))
		}
		w.settle(ok(run[0], "1"))
		if _, err := w.ResumeQueue(ctx, w.system(), "default", engine.Request{}); err != nil {
			t.Fatal(err)
		}
		if l := w.get(10); len(l) != 5 {
			t.Fatalf("after it was resumed %d run", len(l))
		}
		if _, err := w.DrainQueue(ctx, w.system(), "default", engine.Request{}); err != nil {
			t.Fatal(err)
		}
		if q, err := w.Queue(ctx, w.c, "default"); err != nil || !q.Draining || len(q.Changes) != 3 || q.Changes[0].Action != "drained" || q.Changes[2].Reason != "repairs" || q.Changes[2].Actor == "" {
			t.Errorf("its changes are %+v, %v", q.Changes, err)
		}
		if out, err := w.Submit(ctx, w.c, []drover.NewJob{{Kind: "k"}}); err != nil || drover.CodeOf(out[0].Err) != drover.CodeDraining {
			t.Errorf("a draining queue takes a job: %v %v", out, err)
		}
		w.audit()
	})
}

// restart-holders, admitter not fenced: of several servers one decides; when it is
// silent another does, who counts what the first has let run.
func TestOneServerDecidesAndAnotherTakesOver(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx, other := t.Context(), w.server()
		w.limit("one", drover.NewLimit{Max: 3})
		w.submitMany(10, drover.NewJob{Kind: "k", Limits: map[string]int64{"one": 1}})
		l := w.get(2)
		if len(l) != 2 {
			t.Fatalf("%d run", len(l))
		}
		w.settle(ok(l[0], "1"))
		for range 5 { // it knows at the first what there is to decide
			if n, err := other.AdmitOnce(ctx); err != nil || n != 0 {
				t.Fatalf("beside the leader another admits %d, %v", n, err)
			}
		}
		w.clock.add += 4 * time.Second
		n := 0
		for range 5 {
			k, err := other.AdmitOnce(ctx)
			if err != nil {
				t.Fatal(err)
			}
			n += k
		}
		if n == 0 || w.used("one") != 3 {
			t.Fatalf("4 s later it admits %d; %d are held", n, w.used("one"))
		}
		if n := w.step("admit", w.AdmitOnce); n != 0 {
			t.Fatalf("the one that led admits %d", n)
		}
		if n := w.count("SELECT term FROM leaders WHERE name = 'admitter'"); n != 2 {
			t.Errorf("term %d", n)
		}
	})
}

// Of two servers that have seen at once that nobody leads, one does.
func TestOfTwoServersThatSeeNobodyLeadOneDoes(t *testing.T) {
	eachGated(t, func(t *testing.T, w *world, g *gate, other *engine.Engine) {
		ctx := t.Context()
		w.limit("one", drover.NewLimit{Max: 3})
		w.submitMany(10, drover.NewJob{Kind: "k", Limits: map[string]int64{"one": 1}})
		n := 0
		g.before["lead"] = func() {
			for range 5 {
				k, err := other.AdmitOnce(ctx)
				if err != nil {
					t.Error(err)
				}
				n += k
			}
		}
		if k, err := w.AdmitOnce(ctx); err != nil || k != 0 {
			t.Errorf("the later one admits %d, %v", k, err)
		}
		if term := w.count("SELECT term FROM leaders WHERE name = 'admitter'"); n == 0 || term != 1 || w.used("one") != 3 {
			t.Errorf("the first admits %d, %d are held, term %d", n, w.used("one"), term)
		}
	})
}

// Tasks of a pipeline say what they take in its definition.
func TestTasksOfAPipelineTakeWhatTheySay(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.limit("vendor", drover.NewLimit{Max: 2})
		w.apply("pipeline: p\ntasks:\n  split: {run: split}\n  infer: {needs: [split], run: infer, for_each: [1, 2, 3, 4, 5], limits: {vendor: 1}}\n  join: {needs: [infer], run: join}\n")
		id := w.submit(drover.NewJob{Pipeline: "p"})
		w.settle(ok(w.one(), "1"))
		n := 0
		for l := w.get(10); len(l) > 0 && l[0].Name == "infer"; l = w.get(10) {
			if n += len(l); len(l) > 2 || w.used("vendor") > 2 {
				t.Fatalf("%d run at once, %d are held", len(l), w.used("vendor"))
			}
			for _, x := range l {
				w.settle(ok(x, "1"))
			}
			if n == 5 {
				break
			}
		}
		if n != 5 {
			t.Fatalf("%d elements ran", n)
		}
		w.settle(ok(w.one(), "1"))
		w.want(id, drover.Succeeded)
		w.nothingHeld()
		w.apply("pipeline: q\ntasks: {a: {run: a, limits: {vendor: 3}}}\n")
		if out, err := w.Submit(t.Context(), w.c, []drover.NewJob{{Pipeline: "q"}}); err != nil || drover.CodeOf(out[0].Err) != drover.CodeExceedsLimit || !strings.Contains(out[0].Err.Detail, `task "a"`) {
			t.Errorf("3 of 2: %+v, %v", out, err)
		}
		for _, bad := range []string{"limits: [vendor]", "limits: {vendor: 0}", "limits: {V: 1}", "resources: {gpu: 1.5}", "worker_labels: {zone: 1}"} {
			if _, err := w.RegisterPipeline(t.Context(), w.c, "p.yaml", []byte("pipeline: r\ntasks: {a: {run: a, "+bad+"}}\n")); err == nil || !strings.Contains(fmt.Sprintf("%+v", err), "tasks.a") {
				t.Errorf("%s: %v", bad, err)
			}
		}
	})
}

// TestWhatTasksAskForIsBoundedAtBothDoors: what is too much to be a lane's key is refused
// of a pipeline when it is registered as of a Kind job, with the same words; what is just
// let in can be submitted.
func TestWhatTasksAskForIsBoundedAtBothDoors(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		labels := map[string]string{}
		for i := range 16 { // of bytes that cannot be packed
			sum := sha512.Sum512([]byte{byte(i)})
			labels[fmt.Sprintf("zone-%02d", i)] = hex.EncodeToString(sum[:])[:76]
		}
		send := func() (asKind, asTask string) {
			job := drover.NewJob{Kind: "k", WorkerLabels: labels}
			out := must(w.Submit(t.Context(), w.c, []drover.NewJob{job}))
			if e := out[0].Err; e != nil {
				asKind = fmt.Sprintf("%s: %s", e.Fields[0].Field, e.Fields[0].Message)
			}
			var e *drover.Error
			b := must(json.Marshal(map[string]any{"pipeline": "p", "tasks": map[string]any{"a": map[string]any{"run": "k", "worker_labels": labels}}}))
			if _, err := w.RegisterPipeline(t.Context(), w.c, "p.json", b); errors.As(err, &e) && len(e.Fields) == 1 {
				return asKind, e.Fields[0].Field + ": " + e.Fields[0].Message
			} else if err != nil {
				t.Fatal(err)
			}
			if out, err := w.Submit(t.Context(), w.c, []drover.NewJob{{Pipeline: "p"}}); err != nil || out[0].Err != nil {
				t.Errorf("a pipeline that was let in: %+v, %v", out, err)
			}
			return asKind, ""
		}
		if asKind, asTask := send(); asKind != "" || asTask != "" {
			t.Errorf("what just fits is refused: %q, %q", asKind, asTask)
		}
		labels["zone-00"] += strings.Repeat("x", 100)
		asKind, asTask := send()
		if want := "worker_labels: limits, resources, worker_labels and the concurrency key take "; !strings.HasPrefix(asKind, want) || asTask != "tasks.a."+asKind {
			t.Errorf("of a Kind job %q, of a pipeline %q; want %s…", asKind, asTask, want)
		}
	})
}

// Limits that make no sense are refused with the place and what would be right.
func TestLimitsThatAreNone(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		for _, c := range []struct {
			name string
			n    drover.NewLimit
			want string
		}{
			{"a", drover.NewLimit{}, "max"}, {"a", drover.NewLimit{Max: -1}, "max"}, {"a", drover.NewLimit{Max: 1, Rate: 1}, "rate"}, {"a", drover.NewLimit{Rate: 1e-7}, "rate"}, {"a", drover.NewLimit{Rate: 2e6}, "rate"},
			{"a", drover.NewLimit{Rate: -1}, "rate"}, {"a", drover.NewLimit{Rate: 1, Burst: -2}, "burst"}, {"a", drover.NewLimit{Rate: 1e-6, Burst: 1000}, "burst"}, {"A b", drover.NewLimit{Max: 1}, "name"},
			{"a", drover.NewLimit{Scope: "planet", Max: 1}, "scope"}, {"a", drover.NewLimit{Scope: drover.ScopeQueue, Max: 1}, "queue"}, {"a", drover.NewLimit{Scope: drover.ScopeKind, Max: 1}, "kind"},
			{"a", drover.NewLimit{Scope: drover.ScopeTenant, Kind: "k", Max: 1}, "scope"}, {"a", drover.NewLimit{Scope: drover.ScopeKey, Rate: 1}, "rate"},
		} {
			_, err := w.SetLimit(ctx, w.who(c.n), c.name, c.n, engine.Precondition{}, false)
			var bad *drover.Error
			if !errors.As(err, &bad) || bad.Code != drover.CodeValidation || len(bad.Fields) == 0 || bad.Fields[0].Field != c.want {
				t.Errorf("%s %+v: %v, want a complaint about %s", c.name, c.n, err, c.want)
			}
		}
		for _, rate := range []float64{1e-6, 1e6, 0.1, 3} {
			name := "r" + strings.ReplaceAll(strings.ReplaceAll(fmt.Sprint(rate), ".", "-"), "+", "")
			if l := w.limit(name, drover.NewLimit{Rate: rate}); l.Rate != rate {
				t.Errorf("rate %v is shown as %v", rate, l.Rate)
			}
		}
		made := w.limit("m", drover.NewLimit{Max: 2, Reason: "so"})
		if _, err := w.SetLimit(ctx, w.c, "m", drover.NewLimit{Max: 3}, engine.Precondition{New: true}, false); drover.CodeOf(err) != drover.CodePreconditionFailed {
			t.Errorf("made twice: %v", err)
		}
		if _, err := w.SetLimit(ctx, w.c, "m", drover.NewLimit{Max: 3}, engine.Precondition{Version: made.Version}, false); err != nil {
			t.Error(err)
		}
		if _, err := w.SetLimit(ctx, w.c, "m", drover.NewLimit{Max: 4}, engine.Precondition{Version: made.Version}, false); drover.CodeOf(err) != drover.CodePreconditionFailed {
			t.Errorf("with an old version: %v", err)
		}
		if _, err := w.SetLimit(ctx, w.c, "m", drover.NewLimit{Rate: 4}, engine.Precondition{}, false); drover.CodeOf(err) != drover.CodeConflict {
			t.Errorf("made a rate of: %v", err)
		}
		if l, err := w.Limit(ctx, w.c, "m"); err != nil || l.Max != 3 || l.Version != 2 || len(l.Changes) != 2 || l.Changes[1].Reason != "so" || l.Changes[0].Was.Max != 2 || l.Changes[0].Is.Max != 3 {
			t.Errorf("it is %+v, %v", l, err)
		}
		b, err := w.EnsureTenant(ctx, "b")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Limit(ctx, b, "m"); drover.CodeOf(err) != drover.CodeNotFound {
			t.Errorf("another tenant sees it: %v", err)
		}
		b.Scopes = []string{"limits:admin"}
		if _, err := w.SetLimit(ctx, b, "all", drover.NewLimit{Scope: drover.ScopeGlobal, Max: 1}, engine.Precondition{}, false); drover.CodeOf(err) != drover.CodeForbidden {
			t.Errorf("without admin a limit for all: %v", err)
		}
	})
}

// opened opens sessions and returns who acquires for them.
func (w *world) opened(c engine.Caller, n drover.NewSession) *hand {
	w.t.Helper()
	n.Queues = []string{"default"}
	s, err := w.OpenSession(w.t.Context(), c, n)
	if err != nil {
		w.t.Fatal(err)
	}
	return &hand{Engine: w.Engine, c: c, session: s.ID}
}

// What waits for workers of one kind, or of one tenant, has no part in the room of
// others: it holds no permits for their slots, and they do not wait behind it.
func TestALineThatCannotStartBlocksNobodyElse(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		if err := w.CloseSession(ctx, w.c, w.session); err != nil {
			t.Fatal(err)
		}
		other, err := w.EnsureTenant(ctx, "beta")
		if err != nil {
			t.Fatal(err)
		}
		x := w.opened(w.c, drover.NewSession{Worker: "x", Slots: 10, Kinds: []string{"x"}})
		y := w.opened(w.c, drover.NewSession{Worker: "y", Slots: 1, Kinds: []string{"y"}})
		z := w.opened(other, drover.NewSession{Worker: "z", Slots: 1})
		w.limit("all", drover.NewLimit{Scope: drover.ScopeQueue, Queue: "default", Max: 100})
		submit := func(c engine.Caller, kind string, n int) {
			t.Helper()
			for range n {
				if out, err := w.Submit(ctx, c, []drover.NewJob{{Kind: kind}}); err != nil || out[0].Err != nil {
					t.Fatal(out, err)
				}
			}
		}
		take := func(h *hand, want int) {
			t.Helper()
			w.admit()
			if l, err := h.acquire(10); err != nil || len(l) != want {
				t.Fatalf("a worker got %d, want %d, %v", len(l), want, err)
			}
		}
		submit(w.c, "y", 1)
		submit(other, "z", 1)
		take(y, 1) // both are busy now
		take(z, 1)
		submit(w.c, "y", 30)
		submit(other, "z", 30)
		w.admit()
		if n := w.used("all"); n > 2+2 {
			t.Errorf("%d hold permits: two run, and one for each of the two that are busy may be ahead", n)
		}
		submit(w.c, "x", 10)
		take(x, 10)
		w.audit()
	})
}

// What was admitted for workers that are gone gives its permits back and waits again,
// and those that somebody can run get them.
func TestWhatNobodyIsLeftToRunIsTakenBack(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		x := w.opened(w.c, drover.NewSession{Worker: "x", Slots: 10, Kinds: []string{"x"}})
		if err := w.CloseSession(t.Context(), w.c, w.session); err != nil {
			t.Fatal(err)
		}
		w.limit("all", drover.NewLimit{Scope: drover.ScopeQueue, Queue: "default", Max: 5})
		w.submitMany(8, drover.NewJob{Kind: "x"})
		w.admit()
		if n := w.used("all"); n != 5 {
			t.Fatalf("%d are admitted", n)
		}
		if err := w.CloseSession(t.Context(), w.c, x.session); err != nil {
			t.Fatal(err)
		}
		y := w.opened(w.c, drover.NewSession{Worker: "y", Slots: 10, Kinds: []string{"y"}})
		w.submitMany(5, drover.NewJob{Kind: "y"})
		w.admit()
		if l, err := y.acquire(10); err != nil || len(l) != 0 {
			t.Fatalf("%d run beside those that hold all permits, %v", len(l), err)
		}
		w.clock.add += 20 * time.Second // y renews meanwhile
		if _, err := w.Renew(t.Context(), w.c, y.session, drover.Renewal{}); err != nil {
			t.Fatal(err)
		}
		w.clock.add += 15 * time.Second
		w.admit()
		if l, err := y.acquire(10); err != nil || len(l) != 5 {
			t.Fatalf("half a minute later %d run, %v", len(l), err)
		}
		w.audit()
		x = w.opened(w.c, drover.NewSession{Worker: "x", Slots: 10, Kinds: []string{"x"}})
		w.limit("all", drover.NewLimit{Max: 13, Scope: drover.ScopeQueue, Queue: "default"})
		w.admit()
		if l, err := x.acquire(10); err != nil || len(l) != 8 {
			t.Fatalf("when somebody is there for them %d run, %v", len(l), err)
		}
		w.audit()
	})
}

// What holds for every tenant is set by administrators of the installation: those of
// the tenant system, and of the tenant that a server of one person is for.
func TestTheAdminOfATenantSetsNothingForAll(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		set := func(e *engine.Engine, c engine.Caller, n drover.NewLimit) drover.Code {
			n.Max = 1
			_, err := e.SetLimit(ctx, c, "l-"+cmp.Or(n.Scope, "named"), n, engine.Precondition{}, false)
			return drover.CodeOf(err)
		}
		w.submit(drover.NewJob{Kind: "k"})
		all := []drover.NewLimit{{Scope: drover.ScopeGlobal}, {Scope: drover.ScopeQueue, Queue: "default"}, {Shared: true}}
		verbs := []func(*engine.Engine) func(context.Context, engine.Caller, string, engine.Request) (drover.Queue, error){
			func(e *engine.Engine) func(context.Context, engine.Caller, string, engine.Request) (drover.Queue, error) {
				return e.PauseQueue
			},
			func(e *engine.Engine) func(context.Context, engine.Caller, string, engine.Request) (drover.Queue, error) {
				return e.DrainQueue
			},
			func(e *engine.Engine) func(context.Context, engine.Caller, string, engine.Request) (drover.Queue, error) {
				return e.ResumeQueue
			},
		}
		tenants, system := w.c, w.system()
		weak := system
		weak.Scopes = []string{"limits:admin"}
		for _, c := range []engine.Caller{tenants, weak} {
			for _, n := range all {
				if code := set(w.Engine, c, n); code != drover.CodeForbidden {
					t.Errorf("%s with %v sets %+v: %q, want forbidden", c.TenantName, c.Scopes, n, code)
				}
			}
			for i, verb := range verbs {
				if _, err := verb(w.Engine)(ctx, c, "default", engine.Request{}); drover.CodeOf(err) != drover.CodeForbidden || !strings.Contains(err.Error(), "--tenant system") {
					t.Errorf("%s with %v does %d with a queue: %v, want forbidden and what would do", c.TenantName, c.Scopes, i, err)
				}
			}
		}
		// 0, the number of the tenant system, is every tenant in a limit.
		if code := set(w.Engine, weak, drover.NewLimit{}); code != drover.CodeForbidden {
			t.Errorf("a named limit of the tenant system without admin: %q", code)
		}
		for _, n := range []drover.NewLimit{{Scope: drover.ScopeTenant}, {Scope: drover.ScopeKind, Kind: "k"}, {Scope: drover.ScopeKey}} {
			for _, c := range []engine.Caller{weak, system} {
				if code := set(w.Engine, c, n); code != drover.CodeValidation {
					t.Errorf("the tenant system sets %+v: %q, want it refused", n, code)
				}
			}
		}
		if n := w.count("SELECT count(*) FROM limits"); n != 0 {
			t.Fatalf("%d limits were made", n)
		}
		// A server that is one person's.
		mine := engine.New(w.db, engine.Options{Operator: "acme"})
		other := engine.New(w.db, engine.Options{Operator: "somebody"})
		token, err := mine.CreateToken(ctx, w.c, drover.Token{Name: "t", Scopes: []string{"admin"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range all {
			c, err := other.Authenticate(ctx, token.Secret)
			if err != nil {
				t.Fatal(err)
			}
			if code := set(other, c, n); code != drover.CodeForbidden {
				t.Errorf("%+v on a server of somebody else's: %q", n, code)
			}
			if c, err = mine.Authenticate(ctx, token.Secret); err != nil {
				t.Fatal(err)
			}
			if code := set(mine, c, n); code != "" {
				t.Errorf("%+v on a server of one's own: %q", n, code)
			}
			if _, err := w.DeleteLimit(ctx, w.c, "l-"+cmp.Or(n.Scope, "named"), "", engine.Precondition{}, false); drover.CodeOf(err) != drover.CodeForbidden {
				t.Errorf("a tenant's admin deletes %+v: %v", n, err)
			}
			if _, err := w.DeleteLimit(ctx, system, "l-"+cmp.Or(n.Scope, "named"), "", engine.Precondition{}, false); err != nil {
				t.Error(err)
			}
		}
		for i, verb := range verbs {
			c, err := mine.Authenticate(ctx, token.Secret)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := verb(mine)(ctx, c, "default", engine.Request{}); err != nil {
				t.Errorf("%d on a server of one's own: %v", i, err)
			}
		}
	})
}

// However many lines are queued, what stands in the last of them is seen; of lines that
// need no admission it is not counted how long they are.
func TestEveryQueuedLineIsLookedAt(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		w.limit("a", drover.NewLimit{Max: 5})
		w.submitMany(3, drover.NewJob{Kind: "open", Queue: "other"})
		w.submitMany(2, drover.NewJob{Kind: "k", Limits: map[string]int64{"a": 1}})
		w.admit()
		id := "lpad(to_hex(n), 32, '0')::uuid"
		if w.db.Dialect() == driver.SQLite {
			id = "CAST(printf('%016d', n) AS BLOB)"
		}
		// Lines of a class that is told before.
		w.exec("WITH RECURSIVE g(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM g WHERE n < 4200) " +
			"INSERT INTO task_queued SELECT " + id + ", " + id + ", 0, 0, q.queue, 100000 + n, 0, 1, 0, 0, 0, 0, 1, q.waits, 1, 1 FROM g, (SELECT * FROM task_queued ORDER BY queue LIMIT 1) q")
		var lines []store.Line
		if err := w.db.Read(ctx, func(tx store.Tx) error {
			lines = nil
			return store.QueuedLines(ctx, tx, w.db.Dialect(), 10, 1, &lines)
		}); err != nil {
			t.Fatal(err)
		}
		var counts []int64
		for _, l := range lines {
			if l.Lane < 100000 {
				counts = append(counts, l.Count)
			}
		}
		if slices.Sort(counts); len(lines) != 4202 || !slices.Equal(counts, []int64{1, 2}) {
			t.Errorf("%d lines, of ours %d stand there, want 4202, and 1 of 3 that are open and 2 that are admitted", len(lines), counts)
		}
		w.limit("b", drover.NewLimit{Scope: drover.ScopeKind, Kind: "k", Max: 5})
		w.step("admit", w.AdmitOnce)
		if n := w.used("b"); n != 2 {
			t.Errorf("%d permits of a new limit are held by the two that were admitted", n)
		}
		w.exec("DELETE FROM task_queued WHERE lane > 100000")
		if l := w.acquire(5); len(l) != 2 {
			t.Errorf("%d run", len(l))
		}
		w.audit()
	})
}

// Where nothing is limited, nobody leads once all those have been admitted who asked for
// it by what they take.
func TestNobodyLeadsWhereThereIsNothingToDecide(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		h := w.opened(w.c, drover.NewSession{Worker: "a", Slots: 2, Labels: map[string]string{"zone": "a"}})
		w.submitMany(1, drover.NewJob{Kind: "k", WorkerLabels: map[string]string{"zone": "a"}})
		w.admit()
		l, err := h.acquire(1)
		if err != nil || len(l) != 1 {
			t.Fatal(l, err)
		}
		if _, _, err := h.settle(0, ok(l[0], "1")); err != nil {
			t.Fatal(err)
		}
		w.clock.add += 2 * time.Minute
		w.admit()
		until := w.count("SELECT expires_at FROM leaders")
		w.clock.add += 5 * time.Second
		w.admit()
		if now := w.count("SELECT expires_at FROM leaders"); now != until {
			t.Errorf("somebody leads for %s more", time.Duration(now-until)*time.Microsecond)
		}
		h = w.opened(w.c, drover.NewSession{Worker: "b", Slots: 2, Labels: map[string]string{"zone": "a"}})
		w.submitMany(1, drover.NewJob{Kind: "k", WorkerLabels: map[string]string{"zone": "a"}})
		w.admit()
		if l, err := h.acquire(1); err != nil || len(l) != 1 {
			t.Errorf("then %d run, %v", len(l), err)
		}
		w.audit()
	})
}

// TestPermitsOfNobodyGoWhereNothingIsLimited: as after a restore of a database that has
// some, of limits that are gone; and others are let run meanwhile.
func TestPermitsOfNobodyGoWhereNothingIsLimited(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		lost := func(want int64) {
			t.Helper()
			if n := w.count("SELECT count(*) FROM permits"); n != want {
				t.Errorf("%d permits, want %d", n, want)
			}
		}
		w.submitMany(2, drover.NewJob{Kind: "k"})
		first := w.get(1)
		for range 2 {
			w.exec("INSERT INTO permits (task_id, limit_id, key, weight, at) SELECT id, 77, '', 1, 1 FROM tasks")
			w.admit()
			lost(0)
			w.exec("INSERT INTO permits (task_id, limit_id, key, weight, at) SELECT id, 77, '', 1, 1 FROM tasks")
			w.clock.add += 20 * time.Second
			w.renew(first...)
			w.admit()
			lost(2) // it has just been looked
			w.clock.add += 20 * time.Second
			w.renew(first...)
			w.admit()
			lost(0)
			w.clock.add += 20 * time.Second
			w.renew(first...)
			w.clock.add += 20 * time.Second
			w.renew(first...)
		}
		w.exec("UPDATE leaders SET holder = 'another', expires_at = $1", int64(w.clock.now().Add(time.Minute).UnixMicro()))
		w.exec("INSERT INTO permits (task_id, limit_id, key, weight, at) SELECT id, 77, '', 1, 1 FROM tasks")
		w.submit(drover.NewJob{Kind: "k"})
		w.admit()
		lost(2) // the one that leads gives them back
		w.settle(ok(first[0], "1"))
		if got := w.acquire(2); len(got) != 2 {
			t.Errorf("%d leases while another leads", len(got))
		}
	})
}
