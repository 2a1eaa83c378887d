package engine_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/driver"
	"github.com/drover-dev/drover/internal/store/storetest"
)

// lockOrder ranks the statements that wait for rows, as ARCHITECTURE.md does: a
// transaction goes up, never down. Two that go different ways wait for each other
// until the database ends one of them, a second later.
var lockOrder = map[string]int{
	"lead": 0, "lock leader": 0, "lock leader and read the last token": 0,

	"insert limit": 1, "update limit": 1, "delete limit": 1, "lock a queue": 1, "lock a tenant": 1,
	"insert rule of intake": 1, "update rule of intake": 1, "delete rule of intake": 1, "rule of intake fires or ceases to": 1,

	"insert idempotency keys": 1,
	"lock batch operation":    1, "try to lock batch operation": 1,

	"share sessions": 2, "lock sessions": 2, "renew session": 2, "end session": 2, "end expired sessions": 2, "mark session cleared": 2,

	"take running": 3, "take a session's running": 3, "take a job's running": 3, "take watched running": 3, "take one running": 3,

	"lock leases": 3, "make a lock": 3, // which only who has the lead does

	"insert results": 3, // one that another settle is about to take is waited for

	"lock pending": 4, "take a job's pending": 4, "take one of task_pending": 4,

	"take a job's ready": 5, "take a job's ready that are not held": 5, "take a job's held": 5, "take ready": 5, "take watched ready": 5, "take one of task_ready": 5,
	"take waiting": 6, "take a job's delayed": 6, "take a job's delayed that are stopped": 6, "take a job's delayed that have not begun": 6, "take due": 6, "take watched delayed": 6, "take one of task_delayed": 6,
	"take a job's queued": 7, "lock a job's queued": 7, "take watched queued": 7, "take one of task_queued": 7,

	"lock job_live": 8,

	"take those in line": 8, // steps over rows that are locked

	"lock dead letters": 9,

	"lock what handlers asked for": 9, "delete permits": 9, "store parties of barriers": 9,

	"ask something of children": 10, "ask a child to stop": 10, "note what was passed on to a child": 10,

	"insert holds": 10, "share holds": 10, "lock hold": 10, "delete hold": 10, "delete holds": 10,

	"insert watches": 10, "delete watches": 10,

	"lock circuits": 9,

	// A claim never waits (it steps over rows that are locked), but others wait
	// for it: nothing that waits may follow. By turns on SQLite.
	"claim": 11, "claim of a tenant": 11, "claim from floors": 11, "delete queued": 11,

	"use rates": 11, "leave downstreams alone": 11,

	"note which limits tasks wait for": 11, "delete locks that nobody has or wants": 11,

	"raise the epoch of the gate": 12,

	"start heartbeats": 12, // waits for a heartbeat at most, and that for nobody
}

// onlyOn names statements that one database alone has.
var onlyOn = map[string]driver.Dialect{"claim": driver.PostgreSQL, "claim of a tenant": driver.PostgreSQL, "claim from floors": driver.PostgreSQL, "delete queued": driver.SQLite}

// lockOnce names statements that sort what they lock: twice in a transaction they
// would not have.
var lockOnce = []string{"insert idempotency keys", "take running", "insert results", "lock pending", "lock job_live", "lock dead letters"}

// lockWatch is a driver that watches the order in which transactions lock rows.
type lockWatch struct {
	driver.Driver
	mu   sync.Mutex
	seen map[string]bool
	bad  map[string]int
}

func (l *lockWatch) Write(ctx context.Context, fn func(driver.Tx) error) error {
	return l.Driver.Write(ctx, func(tx driver.Tx) error { return fn(&watchedTx{Tx: tx, watch: l}) })
}

type watchedTx struct {
	driver.Tx
	watch *lockWatch
	at    int
	last  string // the statement that took it there
	done  []string
}

// Pipe counts the rows each statement locks, and complains of those that come too late.
func (x *watchedTx) Pipe(ctx context.Context, list ...driver.Stmt) error {
	counted := slices.Clone(list)
	rows := make([]int64, len(list))
	for i, s := range list {
		if s.Scan != nil {
			counted[i].Scan = func(r driver.Row) error { rows[i]++; return s.Scan(r) }
		} else if s.Affected == nil {
			counted[i].Affected = &rows[i]
		}
	}
	err := x.Tx.Pipe(ctx, counted...)
	x.watch.mu.Lock()
	defer x.watch.mu.Unlock()
	for i, s := range list {
		if s.Text == nil {
			continue
		}
		rank, locks := lockOrder[s.Text.Name]
		if s.Affected != nil {
			rows[i] = *s.Affected
		}
		if !locks || rows[i] == 0 {
			continue
		}
		x.watch.seen[s.Text.Name] = true
		if slices.Contains(lockOnce, s.Text.Name) && slices.Contains(x.done, s.Text.Name) {
			x.watch.bad[fmt.Sprintf("%q locks a second time", s.Text.Name)]++
		}
		x.done = append(x.done, s.Text.Name)
		if rank < x.at {
			x.watch.bad[fmt.Sprintf("%q comes after %q", s.Text.Name, x.last)]++
		} else {
			x.at, x.last = rank, s.Text.Name
		}
		if s.Text.Name != "lock pending" && s.Text.Name != "delete queued" && !sortedKeys(s.Cols) { // one sorts by itself, one runs alone
			x.watch.bad[fmt.Sprintf("the keys of %q are not sorted", s.Text.Name)]++
		}
	}
	return err
}

// sortedKeys reports whether the rows of a batch ascend by their first column
// that tells them apart.
func sortedKeys(cols []any) bool {
	for i := 1; i < driver.Len(cols); i++ {
		c := 0
		for _, col := range cols {
			switch v := col.(type) {
			case [][16]byte:
				c = bytes.Compare(v[i-1][:], v[i][:])
			case [][]byte:
				c = bytes.Compare(v[i-1], v[i])
			case []string:
				c = cmp.Compare(v[i-1], v[i])
			case []int32:
				c = cmp.Compare(v[i-1], v[i])
			}
			if c != 0 {
				break
			}
		}
		if c > 0 {
			return false
		}
	}
	return true
}

// TestLocksAreTakenInOneOrder goes through everything the engine does and looks
// at the order in which it locks. No race is needed to see a wrong one.
func TestLocksAreTakenInOneOrder(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		if raceDetector && w.db.Dialect() == driver.SQLite {
			return // slow, and the same without
		}
		ctx := t.Context()
		watch := &lockWatch{Driver: w.db.Driver, seen: map[string]bool{}, bad: map[string]int{}}
		w.db.Driver = watch
		w.apply(ingest)
		w.apply(`pipeline: grow
input: {type: object}
tasks:
  list: {run: k}
  other: {run: k}
  third: {run: k}
  one: {run: k, for_each: "${{ tasks.list.output }}"}
  two: {run: k, for_each: one, needs: [other]}
  more: {run: k, for_each: "${{ tasks.two.output }}", needs: [one]}
  three: {run: k, for_each: two, needs: [third, list]}
  end: {run: k, needs: [three, more]}
`)
		w.apply("pipeline: bounded\ntasks:\n  m: {run: k, for_each: [1, 2, 3, 4, 5], max_parallel: 2}\n  n: {run: k, for_each: m, max_parallel: 1, min_success: 1}\n  end: {run: k, needs: [n]}\n")
		loops := func() {
			t.Helper()
			for range 3 {
				w.step("reap", w.ReapOnce)
				w.step("timers", w.TimersOnce)
				w.step("admit", w.AdmitOnce)
				w.step("sweep", w.SweepOnce)
				w.step("expire", w.ExpireOnce)
				w.step("watch", w.WatchOnce)
			}
		}
		must := func(_ any, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		handle := func(l drover.Lease) drover.Outcome {
			switch l.Name {
			case "decode":
				return ok(l, `{"segments": [1, 2, 3]}`)
			case "extract":
				return ok(l, `{"frames": 1}`)
			case "list":
				return ok(l, []string{"[]", "[1]", "[1, 2, 3]"}[l.TaskID[15]%3])
			}
			return ok(l, "1")
		}
		// A batch of many jobs, keys in no order; every settle acquires as well.
		var jobs []drover.NewJob
		for i := range 24 {
			jobs = append(jobs, drover.NewJob{Pipeline: "grow", IdempotencyKey: fmt.Sprint("key ", (i*7)%24)})
			jobs = append(jobs, drover.NewJob{Pipeline: "ingest", Input: json.RawMessage(`{"n": 3}`), IdempotencyKey: fmt.Sprint("other key ", (i*5)%24)})
		}
		must(w.Submit(ctx, w.c, jobs))
		must(w.Submit(ctx, w.c, jobs[:5]))
		held := w.acquire(30)
		for round := 0; len(held) > 0 && round < 300; round++ {
			n := min(13, len(held))
			var out []drover.Outcome
			for _, l := range held[:n] {
				out = append(out, handle(l))
			}
			slices.Reverse(out)
			w.number++
			half := len(out) / 2
			r := w.Settle(ctx, []engine.Settlement{
				{Caller: w.c, Session: w.session, Outcomes: out[:half]},
				{Caller: w.c, Session: w.session, Outcomes: out[half:], Acquire: &drover.Acquire{Session: w.session, Max: 10, Number: w.number}},
			})
			for _, x := range r {
				if x.Err != nil {
					t.Fatal(x.Err)
				}
			}
			held = append(held[n:], r[1].Leases...)
			if len(held) < 20 {
				held = append(held, w.acquire(10)...)
			}
		}
		// Results that several make at once.
		w.apply("pipeline: cached\ntasks:\n  a: {run: k, for_each: [1, 2, 3], cache: true}\n  b: {run: k, for_each: a}\n  c: {run: k, with: \"${{ tasks.b.output }}\", cache: true}\n")
		for range 3 {
			w.submit(drover.NewJob{Pipeline: "cached"})
			w.submit(drover.NewJob{Pipeline: "bounded"})
		}
		w.work(handle)
		// Jobs of one task and of several in every state, with every action on them.
		act := func(n drover.NewJob, with func(id drover.JobID, l []drover.Lease)) {
			t.Helper()
			id := w.submit(n)
			l := w.acquire(2)
			with(id, l)
			loops()
			w.clock.add += 35 * time.Second // leases, graces and delays run out
			loops()
			w.open()
			w.work(handle)
			loops()
			w.work(handle)
		}
		for _, n := range []drover.NewJob{{Kind: "k"}, {Pipeline: "grow"}, {Pipeline: "bounded"}, {Pipeline: "ingest", Input: json.RawMessage(`{"n": 2}`)}} {
			act(n, func(id drover.JobID, l []drover.Lease) { // a worker that does not acknowledge, and goes on
				must(w.Cancel(ctx, w.c, id, engine.Request{}))
				w.clock.add += 20 * time.Second
				must(w.Renew(ctx, w.c, w.session, drover.Renewal{Held: []drover.Held{{TaskID: l[0].TaskID, LeaseVersion: l[0].LeaseVersion}}, Acquired: w.number}))
				w.clock.add += 20 * time.Second
				loops()
			})
			act(n, func(id drover.JobID, l []drover.Lease) {
				w.settle(failed(l[0], drover.ClassRetryable, "again"))
				must(w.Cancel(ctx, w.c, id, engine.Request{}))
			})
			act(n, func(id drover.JobID, l []drover.Lease) {
				w.settle(drover.Outcome{TaskID: l[0].TaskID, LeaseVersion: l[0].LeaseVersion, Status: drover.OutcomeReleased})
				must(w.Pause(ctx, w.c, id, engine.Request{}))
				must(w.Cancel(ctx, w.c, id, engine.Request{}))
			})
			act(n, func(drover.JobID, []drover.Lease) {})
			act(n, func(_ drover.JobID, l []drover.Lease) { w.settle(failed(l[0], drover.ClassRetryable, "again")) })
			act(n, func(id drover.JobID, l []drover.Lease) {
				w.settle(failed(l[0], drover.ClassRetryable, "again"))
				must(w.Pause(ctx, w.c, id, engine.Request{}))
				w.clock.add += 3 * time.Second
				loops()
				must(w.Resume(ctx, w.c, id, engine.Request{}))
			})
			act(n, func(id drover.JobID, l []drover.Lease) {
				w.settle(drover.Outcome{TaskID: l[0].TaskID, LeaseVersion: l[0].LeaseVersion, Status: drover.OutcomeReleased})
				must(w.Pause(ctx, w.c, id, engine.Request{}))
				must(w.Resume(ctx, w.c, id, engine.Request{}))
				must(w.Cancel(ctx, w.c, id, engine.Request{}))
			})
			act(n, func(id drover.JobID, l []drover.Lease) {
				w.settle(failed(l[0], drover.ClassPermanent, "no"))
				for range 2 {
					for _, l := range w.acquire(5) {
						w.settle(handle(l))
					}
				}
				loops()
				for _, l := range l[1:] {
					w.settle(drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeCancelled})
				}
				must(w.Replay(ctx, w.c, l[0].TaskID, engine.ReplayRequest{}))
			})
			act(n, func(_ drover.JobID, l []drover.Lease) { // an answer that was lost
				must(w.Renew(ctx, w.c, w.session, drover.Renewal{Acquired: w.number}))
			})
			act(n, func(drover.JobID, []drover.Lease) { must(0, w.CloseSession(ctx, w.c, w.session)) })
			n.ExpiresAt = w.Now().Add(10 * time.Second)
			act(n, func(drover.JobID, []drover.Lease) {})
			n.ExpiresAt = w.Now().Add(20 * time.Second)
			n.DueAt = w.Now().Add(10 * time.Second)
			act(n, func(drover.JobID, []drover.Lease) {})
		}
		// Tasks that are watched: they run out of time where they are, or are silent.
		w.apply(`pipeline: watched
defaults: {schedule_to_close: 1m, heartbeat: 5s, retry: {backoff: {initial: 2s}}}
tasks: {a: {run: k}, b: {run: k}, c: {run: k, needs: [a]}}
`)
		kind := drover.NewJob{Kind: "k", ScheduleToClose: drover.Duration(time.Minute), Heartbeat: drover.Duration(5 * time.Second)}
		for _, n := range []drover.NewJob{kind, {Pipeline: "watched"}} {
			act(n, func(drover.JobID, []drover.Lease) {})
			act(n, func(_ drover.JobID, l []drover.Lease) {
				must(0, w.Heartbeat(ctx, w.c, drover.Held{TaskID: l[0].TaskID, LeaseVersion: l[0].LeaseVersion}, json.RawMessage("1")))
				w.settle(ok(l[0], "1"))
			})
			act(n, func(id drover.JobID, l []drover.Lease) { // closed while running, paused, waiting for a retry and queued
				w.settle(drover.Outcome{TaskID: l[0].TaskID, LeaseVersion: l[0].LeaseVersion, Status: drover.OutcomeSnoozed, RetryAfter: drover.Duration(55 * time.Second)})
				w.clock.add += 58 * time.Second
				loops()
			})
			act(n, func(id drover.JobID, l []drover.Lease) {
				w.settle(drover.Outcome{TaskID: l[0].TaskID, LeaseVersion: l[0].LeaseVersion, Status: drover.OutcomeSnoozed, RetryAfter: drover.Duration(50 * time.Second)})
				w.clock.add += 70 * time.Second
				w.step("watch", w.WatchOnce)
			})
			act(n, func(id drover.JobID, l []drover.Lease) {
				w.settle(drover.Outcome{TaskID: l[0].TaskID, LeaseVersion: l[0].LeaseVersion, Status: drover.OutcomeReleased})
				w.step("admit", w.AdmitOnce)
				w.clock.add += 70 * time.Second
				w.step("watch", w.WatchOnce)
			})
			act(n, func(id drover.JobID, l []drover.Lease) {
				w.settle(drover.Outcome{TaskID: l[0].TaskID, LeaseVersion: l[0].LeaseVersion, Status: drover.OutcomeReleased})
				must(w.Pause(ctx, w.c, id, engine.Request{}))
				w.clock.add += 70 * time.Second
				w.step("watch", w.WatchOnce)
			})
		}
		// Whatever has failed by now comes back, or is closed.
		op, err := w.ReplayLetters(ctx, w.c, engine.BatchRequest{Filter: &engine.LetterQuery{}, Canary: 3})
		must(op, err)
		for range 5 {
			w.step("batches", w.BatchesOnce)
			w.work(handle)
			loops()
			w.clock.add += time.Second
		}
		must(w.CancelOperation(ctx, w.c, op.ID, engine.Request{}))
		must(w.ReplayLetters(ctx, w.c, engine.BatchRequest{Filter: &engine.LetterQuery{}}))
		w.step("batches", w.BatchesOnce)
		if l := w.acquire(1); len(l) == 1 {
			w.settle(failed(l[0], drover.ClassPermanent, "no"))
		}
		must(w.CloseLetters(ctx, w.c, engine.BatchRequest{Filter: &engine.LetterQuery{}, Request: engine.Request{Reason: "enough"}}))
		must(w.CancelOperation(ctx, w.c, first(w.ReplayLetters(ctx, w.c, engine.BatchRequest{Filter: &engine.LetterQuery{}, Reopen: true, Canary: 1})).ID, engine.Request{}))
		w.step("file", w.FileOnce)
		// Pipelines that run each other, stopped, paused, marked, and by force.
		w.apply("pipeline: leaf\ntasks: {a: {run: k}}\n")
		w.apply("pipeline: top\non_failure: finish_running\ntasks: {y: {run: k}, z: {run: k}, sub: {pipeline: leaf, for_each: [1, 2, 3]}}\n")
		for range 2 {
			n := drover.NewJob{Pipeline: "top"}
			act(n, func(drover.JobID, []drover.Lease) {})
			act(n, func(id drover.JobID, l []drover.Lease) {
				w.step("children", w.ChildrenOnce)
				must(w.Pause(ctx, w.c, id, engine.Request{}))
				must(w.Resume(ctx, w.c, id, engine.Request{}))
				must(w.Mark(ctx, w.c, w.tasksOf(id)[3].ID, engine.MarkRequest{Status: drover.Skipped, Request: engine.Request{Reason: "no"}}))
				must(w.Cancel(ctx, w.c, id, engine.Request{}))
				w.clock.add += time.Minute
				loops()
			})
			act(n, func(drover.JobID, []drover.Lease) {
				w.exec("DELETE FROM task_delayed WHERE task_id = (SELECT task_id FROM task_delayed ORDER BY task_id LIMIT 1)")
				w.diverging(true)
			})
			act(n, func(_ drover.JobID, l []drover.Lease) {
				w.settle(failed(l[0], drover.ClassRetryable, "again"))
				w.settle(failed(l[1], drover.ClassPermanent, "no"))
				loops()
			})
		}
		// Limits, rates, queues, tenants and rules of intake, and what is admitted by them.
		set := func(name string, n drover.NewLimit) {
			must(w.SetLimit(ctx, w.c, name, n, engine.Precondition{}, false))
		}
		set("two", drover.NewLimit{Max: 2})
		set("rate", drover.NewLimit{Rate: 1000, Burst: 100})
		must(w.SetIntake(ctx, w.c, "full", drover.NewIntakeRule{MaxWaiting: 1, Then: drover.IntakeShed}, engine.Precondition{}, false))
		must(w.SetIntake(ctx, w.c, "full", drover.NewIntakeRule{MaxWaiting: 2, Then: drover.IntakeShed}, engine.Precondition{}, false))
		for range 2 {
			for range 6 {
				w.submit(drover.NewJob{Kind: "k", Limits: map[string]int64{"two": 1, "rate": 1}})
			}
			w.step("intake", w.IntakeOnce)
			for _, l := range w.get(2) {
				o := failed(l, drover.ClassThrottled, "later")
				o.RetryAfter = drover.Duration(time.Second)
				w.settle(o)
			}
			set("two", drover.NewLimit{Max: 3})
			must(w.PauseQueue(ctx, w.system(), "default", engine.Request{}))
			must(w.ResumeQueue(ctx, w.system(), "default", engine.Request{}))
			must(w.SetTenant(ctx, w.system(), w.c.TenantName, func(t *drover.Tenant) { t.Weight++ }))
			w.clock.add += 2 * time.Second
			w.work(handle)
			w.step("intake", w.IntakeOnce)
		}
		must(w.ReconcilePermits(ctx, true))
		must(w.DeleteIntake(ctx, w.c, "full", "", engine.Precondition{}, false))
		for _, name := range []string{"two", "rate"} {
			must(w.DeleteLimit(ctx, w.c, name, "", engine.Precondition{}, false))
		}
		// What handlers take and wait for, beside tasks that want the same, and barriers.
		set("both", drover.NewLimit{Max: 2})
		w.apply("pipeline: parts\ntasks: {part: {run: k, for_each: [1, 2, 3, 4, 5, 6]}}\n")
		w.submit(drover.NewJob{Pipeline: "parts"})
		parts := w.acquire(6)
		ask := func(asks ...engine.LockAsk) {
			t.Helper()
			for i := range asks {
				asks[i].Caller = w.c
			}
			out, err := w.Locks(ctx, asks)
			must(out, err)
			for _, a := range out {
				must(a, a.Err)
			}
			_, _, err = w.LookLocks(ctx, []engine.LockAsk{{Caller: w.c, Held: heldBy(parts[0]), Lock: &drover.NewLock{Number: 1, Name: "both"}}})
			must(nil, err)
		}
		take := func(i int, number int32, name string) engine.LockAsk {
			return engine.LockAsk{Held: heldBy(parts[i]), Lock: &drover.NewLock{Number: number, Name: name, Exclusive: name != "both", Wait: aWhile}}
		}
		back := func(i int, number int32) engine.LockAsk {
			return engine.LockAsk{Held: heldBy(parts[i]), Unlock: &drover.NewUnlock{Number: number}}
		}
		for i := range parts {
			ask(take(5-i, 1, "both"), take(5-i, 2, "single"))
		}
		ask(back(5, 1), back(5, 2), take(3, 1, "both"))
		w.submitMany(2, drover.NewJob{Kind: "k", Limits: map[string]int64{"both": 1}})
		for _, i := range []int{4, 3} {
			w.step("admit", w.AdmitOnce)
			ask(back(i, 1), back(i, 2))
		}
		for i := range parts {
			ask(engine.LockAsk{Held: heldBy(parts[5-i]), Meet: &drover.NewMeeting{Number: 9, Name: "step", Parties: 6, Round: 1}})
		}
		var ends []drover.Outcome
		for _, l := range parts {
			ends = append(ends, ok(l, "1"))
		}
		w.settle(ends...)
		w.work(handle)
		w.clock.add += 20 * time.Second
		w.renew()
		w.clock.add += 20 * time.Second
		w.step("admit", w.AdmitOnce)
		w.open()
		w.admit()
		w.work(handle)
		must(w.DeleteLimit(ctx, w.c, "both", "", engine.Precondition{}, false))
		// Marks of tasks wherever they stand, with others below them.
		w.apply("pipeline: marked\ntasks: {z: {run: k}, b: {run: k, needs: [z]}, a: {run: k, needs: [z, b]}, c: {run: k, needs: [a, b, z]}}\n")
		mark := func(id drover.JobID, name string, was drover.Status) {
			t.Helper()
			if now := w.taskOf(id, name).Status; now != was {
				t.Fatalf("task %s is %s, not %s", name, now, was)
			}
			must(w.mark(id, name, drover.Succeeded, "1"))
		}
		for _, first := range []drover.Status{drover.Queued, drover.Ready, drover.RetryWait, drover.Running} {
			n := drover.NewJob{Pipeline: "marked"}
			act(n, func(id drover.JobID, l []drover.Lease) {
				switch first {
				case drover.Queued:
					w.settle(drover.Outcome{TaskID: l[0].TaskID, LeaseVersion: l[0].LeaseVersion, Status: drover.OutcomeReleased})
					w.step("timers", w.TimersOnce)
					w.step("admit", w.AdmitOnce)
				case drover.Ready:
					w.settle(drover.Outcome{TaskID: l[0].TaskID, LeaseVersion: l[0].LeaseVersion, Status: drover.OutcomeReleased})
					must(w.Pause(ctx, w.c, id, engine.Request{}))
					w.step("sweep", w.SweepOnce)
				case drover.RetryWait:
					w.settle(failed(l[0], drover.ClassRetryable, "again"))
				}
				mark(id, "b", drover.Pending)
				mark(id, "z", first)
				if first == drover.Ready {
					must(w.Resume(ctx, w.c, id, engine.Request{}))
				}
			})
		}
		// Circuits, several in a batch.
		for i := range 12 {
			w.submit(drover.NewJob{Kind: "k", Circuit: string(rune('a' + (i*5)%12))})
		}
		var failures []drover.Outcome
		for _, l := range w.acquire(12) {
			failures = append(failures, failed(l, drover.ClassRetryable, "no"))
		}
		w.settle(failures...)
		// A worker of every tenant takes another way.
		c := w.c
		c.System = true
		s, err := w.OpenSession(ctx, c, drover.NewSession{Worker: "system", Queues: []string{"default"}, Slots: 1})
		must(s, err)
		w.submit(drover.NewJob{Kind: "k"})
		must(w.Acquire(ctx, c, drover.Acquire{Session: s.ID, Max: 1, Number: 1}))

		// A worker that has resources: its claims take turns.
		gpu := w.opened(w.c, drover.NewSession{Worker: "gpu", Slots: 2, Resources: map[string]int64{"gpu": 2}})
		w.submitMany(3, drover.NewJob{Kind: "k", Resources: map[string]int64{"gpu": 1}})
		loops()
		l, err := gpu.acquire(1)
		if err != nil || len(l) != 1 {
			t.Fatal(l, err)
		}
		if _, more, err := gpu.settle(2, ok(l[0], "1")); err != nil || len(more) == 0 {
			t.Fatal(more, err)
		}

		for what, n := range watch.bad {
			t.Errorf("%s, %d times", what, n)
		}
		for name := range lockOrder {
			if d, one := onlyOn[name]; (!one || d == w.db.Dialect()) && !watch.seen[name] {
				t.Errorf("%q locked nothing in this test; is it called so?", name)
			}
		}
	})
}

func first[T any](v T, _ error) T { return v }

// gate is a driver that does something before a statement, or before the commit
// of a transaction that ran it, once.
type gate struct {
	driver.Driver
	before, commit map[string]func()
}

func (g *gate) Write(ctx context.Context, fn func(driver.Tx) error) error {
	return g.Driver.Write(ctx, func(tx driver.Tx) error {
		x := gateTx{tx, g, map[string]bool{}}
		if err := fn(x); err != nil {
			return err
		}
		for name := range x.ran {
			once(g.commit, name)
		}
		return nil
	})
}

func once(m map[string]func(), name string) {
	if f := m[name]; f != nil {
		delete(m, name)
		f()
	}
}

type gateTx struct {
	driver.Tx
	g   *gate
	ran map[string]bool
}

func (x gateTx) Pipe(ctx context.Context, list ...driver.Stmt) error {
	for _, s := range list {
		if s.Text != nil && (s.Text.Batch() == 0 || driver.Len(s.Cols) > 0) {
			x.ran[s.Text.Name] = true
			once(x.g.before, s.Text.Name)
		}
	}
	return x.Tx.Pipe(ctx, list...)
}

// eachGated gives a world whose own engine passes a gate, and another server that
// does not. On SQLite nothing can come in between.
func eachGated(t *testing.T, f func(t *testing.T, w *world, g *gate, other *engine.Engine)) {
	t.Helper()
	each(t, func(t *testing.T, w *world) {
		if w.db.Dialect() == driver.SQLite {
			return
		}
		other := engine.New(w.another(), engine.Options{Jitter: func() float64 { return 0.5 }})
		g := &gate{w.db.Driver, map[string]func(){}, map[string]func(){}}
		w.db.Driver = g
		f(t, w, g, other)
		w.audit()
	})
}

// another opens the world's PostgreSQL a second time, as another server does.
func (w *world) another() *store.DB {
	w.t.Helper()
	db, err := store.Open(w.t.Context(), os.Getenv(storetest.Env), store.Options{Schema: w.db.Schema, MaxConns: 8, Now: w.clock.now}) //nolint:forbidigo // a test
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = db.Close() })
	return db
}

// claimable runs the loops and wants n tasks to be claimable.
func (w *world) claimable(n int, why string) []drover.Lease {
	w.t.Helper()
	w.quieten()
	l := w.acquire(100)
	if len(l) != n {
		w.t.Errorf("%d tasks can be claimed, want %d: %s", len(l), n, why)
	}
	return l
}

func TestAHoldThatEndsMeanwhileStrandsNoTask(t *testing.T) {
	resume := func(t *testing.T, w *world, other *engine.Engine, id drover.JobID) func() {
		return func() {
			if _, err := other.Resume(t.Context(), w.c, id, engine.Request{}); err != nil {
				t.Error(err)
			}
		}
	}
	pause := func(t *testing.T, w *world, id drover.JobID) {
		t.Helper()
		if _, err := w.Pause(t.Context(), w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("the timers see the pause", func(t *testing.T) {
		eachGated(t, func(t *testing.T, w *world, g *gate, other *engine.Engine) {
			id := w.submit(drover.NewJob{Kind: "k"})
			w.settle(failed(w.acquire(1)[0], drover.ClassRetryable, "again"))
			pause(t, w, id)
			w.clock.add += time.Minute
			w.open()
			done := make(chan struct{})
			g.commit["take due"] = func() { // the resume waits for the timers, which act on the pause
				go func() { defer close(done); resume(t, w, other, id)() }()
				select { // one that does not wait is done by then, also on a busy machine
				case <-done:
				case <-time.After(300 * time.Millisecond):
				}
			}
			w.step("timers", w.TimersOnce)
			<-done
			w.claimable(1, "its job was resumed")
		})
	})
	t.Run("the pause's own sweep", func(t *testing.T) {
		eachGated(t, func(t *testing.T, w *world, g *gate, other *engine.Engine) {
			id := w.submit(drover.NewJob{Kind: "k"})
			g.before["take a job's queued"] = resume(t, w, other, id)
			pause(t, w, id)
			w.claimable(1, "its job was resumed")
		})
	})
	t.Run("a sweep of a run that has ended", func(t *testing.T) {
		eachGated(t, func(t *testing.T, w *world, g *gate, other *engine.Engine) {
			w.apply("pipeline: p\ntasks:\n  a: {run: x}\n  b: {run: x}\n")
			id := w.submit(drover.NewJob{Pipeline: "p"})
			l := w.acquire(1)
			g.before["take a job's pending"] = func() { // meanwhile the job ends, and goes on as its next run
				if _, err := other.SweepOnce(t.Context()); err != nil {
					t.Error(err)
				}
				r := other.Settle(t.Context(), []engine.Settlement{{Caller: w.c, Session: w.session, Outcomes: []drover.Outcome{{TaskID: l[0].TaskID, LeaseVersion: l[0].LeaseVersion, Status: drover.OutcomeCancelled}}}})
				if r[0].Err != nil {
					t.Error(r[0].Err)
				}
				if _, err := other.Replay(t.Context(), w.c, l[0].TaskID, engine.ReplayRequest{}); err != nil {
					t.Error(err)
				}
			}
			if _, err := w.Cancel(t.Context(), w.c, id, engine.Request{}); err != nil {
				t.Fatal(err)
			}
			w.claimable(1, "it was replayed")
			if j := w.job(id); j.Run != 2 || j.Status.Final() {
				t.Errorf("run %d is %s", j.Run, j.Status)
			}
		})
	})
}

// TestARenewalAndASettleDoNotWaitForEachOther: one takes back a lease that it
// does not name, the other acquires, both for one session.
func TestARenewalAndASettleDoNotWaitForEachOther(t *testing.T) {
	eachGated(t, func(t *testing.T, w *world, g *gate, other *engine.Engine) {
		w.apply("pipeline: p\ntasks:\n  a: {run: x}\n  b: {run: x}\n  c: {run: x}\n")
		w.submit(drover.NewJob{Pipeline: "p"})
		l := w.acquire(3)
		done := make(chan error, 1)
		g.commit["lock job_live"] = func() {
			go func() {
				_, err := other.Renew(context.Background(), w.c, w.session, drover.Renewal{Acquired: w.number, Held: []drover.Held{{TaskID: l[0].TaskID, LeaseVersion: l[0].LeaseVersion}, {TaskID: l[1].TaskID, LeaseVersion: l[1].LeaseVersion}}})
				done <- err
			}()
			time.Sleep(50 * time.Millisecond)
		}
		began := time.Now()
		w.number++
		r := w.Settle(t.Context(), []engine.Settlement{{Caller: w.c, Session: w.session, Outcomes: []drover.Outcome{ok(l[0], `1`)}, Acquire: &drover.Acquire{Session: w.session, Max: 1, Number: w.number}}})
		if err := <-done; err != nil || r[0].Err != nil {
			t.Fatal(err, r[0].Err)
		}
		if d := time.Since(began); d > 800*time.Millisecond { // a deadlock is ended after a second
			t.Errorf("settle and renewal took %v together", d)
		}
	})
}

// TestTwoClaimsAtOnceGiveNoResourceOutTwice: a worker has up to two settles under way,
// each with a claim of its own, perhaps on different servers.
func TestTwoClaimsAtOnceGiveNoResourceOutTwice(t *testing.T) {
	for _, by := range []string{"acquire", "settle"} {
		t.Run(by, func(t *testing.T) {
			eachGated(t, func(t *testing.T, w *world, g *gate, other *engine.Engine) {
				a := w.opened(w.c, drover.NewSession{Worker: "a", Slots: 10, Resources: map[string]int64{"gpu": 2}})
				w.opened(w.c, drover.NewSession{Worker: "b", Slots: 10, Resources: map[string]int64{"gpu": 2}})
				w.submit(drover.NewJob{Kind: "plain"})
				l, err := a.acquire(1)
				if err != nil || len(l) != 1 {
					t.Fatal(l, err)
				}
				w.submitMany(4, drover.NewJob{Kind: "k", Resources: map[string]int64{"gpu": 1}})
				w.admit()
				type got struct {
					n   int
					err error
				}
				second := make(chan got, 1)
				g.commit["count a session's running by lane"] = func() { // the first has claimed and not committed
					go func() {
						l, err := other.Acquire(context.Background(), w.c, drover.Acquire{Session: a.session, Max: 10, Number: 9})
						second <- got{len(l), err}
					}()
					time.Sleep(100 * time.Millisecond)
				}
				var n int
				if by == "acquire" {
					var more []drover.Lease
					more, err = a.acquire(10)
					n = len(more)
				} else {
					_, more, settled := a.settle(10, ok(l[0], "1"))
					n, err = len(more), settled
				}
				s := <-second
				if err != nil || s.err != nil || n+s.n != 2 {
					t.Fatalf("with 2 gpus it runs %d and %d at once, %v, %v", n, s.n, err, s.err)
				}
			})
		})
	}
}

// TestNothingIsHandedOutAfterTheCommitOfAHold: a claim that began before a cancel
// or pause does not see the hold, and reaches the job's rows after its commit.
func TestNothingIsHandedOutAfterTheCommitOfAHold(t *testing.T) {
	for _, action := range []string{"cancel", "pause"} {
		t.Run(action, func(t *testing.T) {
			eachGated(t, func(t *testing.T, w *world, g *gate, other *engine.Engine) {
				w.apply("pipeline: p\ntasks:\n  a: {run: x}\n  b: {run: x}\n")
				id := w.submit(drover.NewJob{Pipeline: "p"})
				// A claim is long in coming to them behind many tasks of a job that is held.
				w.exec("INSERT INTO job_holds SELECT '00000000000000000000000000000009', 1, 1, 1, '', '', 1")
				w.exec("INSERT INTO task_queued SELECT lpad(to_hex(g), 32, '0')::uuid, '00000000000000000000000000000009', 0, g, q.queue, q.lane, q.class, 1, 0, 0, 0, 0, 1, '', 1, 1 " +
					"FROM generate_series(1, 120000) g, (SELECT queue, lane, class FROM task_queued LIMIT 1) q")
				claimed := make(chan []drover.Lease, 1)
				var late []drover.Lease
				g.before["lock a job's queued"] = func() { // within the transaction of the hold
					go func() {
						l, err := other.Acquire(context.Background(), w.c, drover.Acquire{Session: w.session, Max: 2, Number: 1})
						if err != nil {
							t.Error(err)
						}
						claimed <- l
					}()
					time.Sleep(25 * time.Millisecond)
				}
				sweep := func() { late = <-claimed } // after its commit
				g.before["take a job's pending"], g.before["take a job's ready that are not held"] = sweep, sweep
				var err error
				if action == "cancel" {
					_, err = w.Cancel(t.Context(), w.c, id, engine.Request{})
				} else {
					_, err = w.Pause(t.Context(), w.c, id, engine.Request{})
				}
				if err != nil {
					t.Fatal(err)
				}
				if len(late) > 0 {
					t.Errorf("%d tasks were handed out after the %s", len(late), action)
				}
				w.exec("DELETE FROM task_queued WHERE job_id = '00000000000000000000000000000009'")
				w.exec("DELETE FROM job_holds WHERE job_id = '00000000000000000000000000000009'")
				w.quieten()
				if j := w.job(id); j.Tasks.Running > 0 || action == "cancel" && j.Status != drover.Cancelled || action == "pause" && j.Tasks.Ready != 2 {
					t.Errorf("job is %s: %+v", j.Status, j.Tasks)
				}
			})
		})
	}
}
