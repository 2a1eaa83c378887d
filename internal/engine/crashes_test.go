package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/driver"
)

var errCrash = errors.New("the database went away")

// crash is a driver that fails once: before the at-th trip to the database, or
// after the at-th commit, whose answer is lost.
type crash struct {
	driver.Driver
	at    int
	lose  bool // a commit's answer
	fired bool
}

func (c *crash) Write(ctx context.Context, fn func(driver.Tx) error) error {
	err := c.Driver.Write(ctx, func(tx driver.Tx) error { return fn(crashTx{tx, c}) })
	if err == nil && c.lose && c.next() {
		return fmt.Errorf("commit: %w: %w", driver.ErrUnknown, errCrash)
	}
	return err
}

func (c *crash) next() bool {
	c.at--
	if c.at == 0 {
		c.fired = true
	}
	return c.at == 0
}

type crashTx struct {
	driver.Tx
	c *crash
}

func (x crashTx) Pipe(ctx context.Context, list ...driver.Stmt) error {
	if !x.c.lose && x.c.next() {
		return errCrash
	}
	return x.Tx.Pipe(ctx, list...)
}

// TestAnOperationThatFailsAnywhereIsDoneByTheNextTry breaks each operation off
// at every trip to the database, and loses the answer of every commit. Nothing
// half done stays, and the same request once more has the right outcome, once.
func TestAnOperationThatFailsAnywhereIsDoneByTheNextTry(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		if raceDetector && w.db.Dialect() == driver.SQLite {
			return // slow, and the same without
		}
		ctx := t.Context()
		c := &crash{Driver: w.db.Driver}
		w.db.Driver = c
		w.apply(ingest)
		graph := drover.NewJob{Pipeline: "ingest", Input: json.RawMessage(`{"n": 2}`)}
		n := 0
		unique := func(what string) string { n++; return fmt.Sprintf("%s %d", what, n) }
		settle := func(o ...drover.Outcome) error {
			r := w.Settle(ctx, []engine.Settlement{{Caller: w.c, Session: w.session, Outcomes: o}})
			for _, s := range r[0].Settled {
				if s.Err != nil {
					return s.Err
				}
			}
			return r[0].Err
		}
		fail := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		// lease takes one task of a new job, past whatever else there is to claim.
		lease := func(j drover.NewJob) drover.Lease {
			t.Helper()
			j.Class = 1
			id := w.submit(j)
			for range 100 {
				for _, l := range w.acquire(1) {
					if l.JobID == id {
						return l
					}
				}
			}
			t.Fatal("its task is not claimed")
			return drover.Lease{}
		}
		// Each prepares what the operation needs and returns it, and what must be so
		// in the end.
		for _, op := range []struct {
			name    string
			prepare func() (act func() error, after func())
		}{
			{"submit", func() (func() error, func()) {
				jobs := []drover.NewJob{graph, {Kind: "k"}, graph}
				for i := range jobs {
					jobs[i].IdempotencyKey = unique("key")
				}
				var ids [3]drover.JobID
				return func() error {
						out, err := w.Submit(ctx, w.c, jobs)
						for i, o := range out {
							if err = errors.Join(err, asError(o.Err)); o.Err == nil && err == nil {
								ids[i] = o.JobID
							}
						}
						return err
					}, func() {
						out, err := w.Submit(ctx, w.c, jobs)
						fail(err)
						for i, o := range out {
							if !o.Replayed || o.JobID != ids[i] {
								t.Errorf("job %d: %+v, want %s again", i, o, ids[i])
							}
							w.gapless(o.JobID)
						}
					}
			}},
			{"acquire", func() (func() error, func()) {
				id := w.submit(drover.NewJob{Kind: "k", Class: 1})
				var got []drover.Lease
				return func() error {
						w.number++
						l, err := w.Acquire(ctx, w.c, drover.Acquire{Session: w.session, Max: 1, Number: w.number})
						got = append(got, l...)
						return err
					}, func() {
						// The renewal takes back what an answer that was lost handed out.
						var held []drover.Held
						for _, l := range got {
							held = append(held, drover.Held{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion})
						}
						_, err := w.Renew(ctx, w.c, w.session, drover.Renewal{Held: held, Acquired: w.number})
						fail(err)
						w.quieten()
						if len(got) == 0 || got[0].JobID != id {
							got = w.acquire(1)
						}
						if len(got) != 1 || got[0].JobID != id {
							t.Fatalf("leases = %+v", got)
						}
						fail(settle(ok(got[0], "1")))
						w.want(id, drover.Succeeded)
					}
			}},
			{"settle a parent whose map expands", func() (func() error, func()) {
				l := lease(graph)
				return func() error { return settle(ok(l, `{"segments": [1, 2]}`)) }, func() {
					if j := w.want(l.JobID, drover.Running); j.Tasks.Total != 7 || j.Tasks.Queued != 2 {
						t.Errorf("job = %+v", j.Tasks)
					}
				}
			}},
			{"settle a failure that ends the job", func() (func() error, func()) {
				l := lease(graph)
				return func() error { return settle(failed(l, drover.ClassPermanent, "no")) }, func() {
					w.quieten()
					w.want(l.JobID, drover.Failed)
				}
			}},
			{"settle a retry", func() (func() error, func()) {
				l := lease(drover.NewJob{Kind: "k"})
				return func() error { return settle(failed(l, drover.ClassRetryable, "again")) }, func() {
					if j := w.job(l.JobID); j.Tasks.RetryWait != 1 {
						t.Errorf("job = %+v", j.Tasks)
					}
				}
			}},
			{"cancel", func() (func() error, func()) {
				id, r := w.submit(graph), engine.Request{ID: unique("cancel")}
				return func() error { _, err := w.Cancel(ctx, w.c, id, r); return err }, func() {
					w.quieten()
					w.want(id, drover.Cancelled)
				}
			}},
			{"cancel a job of one task", func() (func() error, func()) {
				id, r := w.submit(drover.NewJob{Kind: "k"}), engine.Request{ID: unique("cancel")}
				return func() error { _, err := w.Cancel(ctx, w.c, id, r); return err }, func() {
					w.quieten()
					w.want(id, drover.Cancelled)
				}
			}},
			{"pause", func() (func() error, func()) {
				id, r := w.submit(drover.NewJob{Kind: "k"}), engine.Request{ID: unique("pause")}
				return func() error { _, err := w.Pause(ctx, w.c, id, r); return err }, func() {
					w.quieten()
					if j := w.want(id, drover.Pending); !j.Paused || j.Tasks.Ready != 1 {
						t.Errorf("job = %+v", j)
					}
				}
			}},
			{"resume", func() (func() error, func()) {
				id, r := w.submit(drover.NewJob{Kind: "k"}), engine.Request{ID: unique("resume")}
				_, err := w.Pause(ctx, w.c, id, engine.Request{})
				fail(err)
				return func() error { _, err := w.Resume(ctx, w.c, id, r); return err }, func() {
					w.quieten()
					if j := w.want(id, drover.Pending); j.Paused || j.Tasks.Queued != 1 {
						t.Errorf("job = %+v", j)
					}
				}
			}},
			{"replay", func() (func() error, func()) {
				l := lease(graph)
				fail(settle(failed(l, drover.ClassPermanent, "no")))
				w.quieten()
				r := engine.ReplayRequest{Request: engine.Request{ID: unique("replay")}}
				return func() error { _, err := w.Replay(ctx, w.c, l.TaskID, r); return err }, func() {
					x, err := w.Task(ctx, w.c, l.TaskID)
					fail(err)
					if j := w.want(l.JobID, drover.Running); x.Generation != 2 || j.Run != 2 {
						t.Errorf("task %+v of run %d", x, j.Run)
					}
				}
			}},
			{"close a session", func() (func() error, func()) {
				l := lease(graph)
				s := w.session
				w.open()
				return func() error { return w.CloseSession(ctx, w.c, s) }, func() {
					w.quieten()
					if j := w.job(l.JobID); j.Tasks.Queued != 1 || j.Tasks.Running != 0 {
						t.Errorf("job = %+v", j.Tasks)
					}
				}
			}},
			{"reap", func() (func() error, func()) {
				l := lease(graph)
				w.clock.add += time.Minute
				w.open()
				return func() error { _, err := w.ReapOnce(ctx); return err }, func() {
					w.quieten()
					if j := w.job(l.JobID); j.Tasks.Queued != 1 || j.Tasks.Running != 0 {
						t.Errorf("job = %+v", j.Tasks)
					}
				}
			}},
			{"timers", func() (func() error, func()) {
				id := w.submit(drover.NewJob{Kind: "k", DueAt: w.Now().Add(time.Second)})
				w.clock.add += 2 * time.Second
				return func() error { _, err := w.TimersOnce(ctx); return err }, func() {
					w.quieten()
					if j := w.job(id); j.Tasks.Queued != 1 {
						t.Errorf("job = %+v", j.Tasks)
					}
				}
			}},
			{"expire", func() (func() error, func()) {
				n := graph
				n.ExpiresAt = w.Now().Add(time.Second)
				id := w.submit(n)
				w.clock.add += 2 * time.Second
				return func() error { _, err := w.ExpireOnce(ctx); return err }, func() {
					w.quieten()
					w.want(id, drover.Failed)
				}
			}},
		} {
			for _, lose := range []bool{false, true} {
				for at := 1; ; at++ {
					act, after := op.prepare()
					c.at, c.lose, c.fired = at, lose, false
					err := act()
					c.at = 0
					if err != nil {
						if !errors.Is(err, errCrash) {
							t.Fatalf("%s, broken at %d: %v", op.name, at, err)
						}
						if lose != store.IsUnknown(err) {
							t.Errorf("%s, broken at %d, answer lost %v: %v", op.name, at, lose, err)
						}
						if err := act(); err != nil {
							t.Fatalf("%s, once more after it broke at %d (answer lost %v): %v", op.name, at, lose, err)
						}
					}
					after()
					if t.Failed() {
						t.Fatalf("%s, broken at %d (answer lost %v)", op.name, at, lose)
					}
					if !c.fired {
						break
					}
					if at > 100 {
						t.Fatalf("%s has no end", op.name)
					}
				}
			}
		}
		w.quieten()
		w.audit()
	})
}

// TestHalfASubmittedGraphIsNone: the client is gone in the middle of submitting.
// The graph exists whole, or not at all, and the same request once more makes it.
func TestHalfASubmittedGraphIsNone(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(ingest)
		made := 0
		for i := range 24 {
			jobs := []drover.NewJob{{Pipeline: "ingest", Input: json.RawMessage(`{"n": 2}`), ID: drover.JobID(w.db.NewID())}, {Pipeline: "ingest", Input: json.RawMessage(`{"n": 2}`), ID: drover.JobID(w.db.NewID())}}
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*i*20)*time.Microsecond)
			_, err := w.Submit(ctx, w.c, jobs)
			cancel()
			there := 0
			for _, j := range jobs {
				if _, err := w.Job(t.Context(), w.c, j.ID); err == nil {
					there++
				} else if drover.CodeOf(err) != drover.CodeNotFound {
					t.Fatal(err)
				}
			}
			if there == 1 || err == nil && there == 0 {
				t.Fatalf("%d of 2 jobs exist after %v", there, err)
			}
			made += there / 2
			out, err := w.Submit(t.Context(), w.c, jobs)
			if err != nil || out[0].JobID != jobs[0].ID || out[1].JobID != jobs[1].ID || out[0].Replayed != (there == 2) {
				t.Fatalf("once more: %+v, %v", out, err)
			}
		}
		t.Logf("%d of 24 were stored before the client was gone", made)
		w.audit()
	})
}

// undone is a driver whose next transaction is rolled back at its end.
type undone struct {
	driver.Driver
	next bool
}

func (u *undone) Write(ctx context.Context, fn func(driver.Tx) error) error {
	return u.Driver.Write(ctx, func(tx driver.Tx) error {
		err := fn(tx)
		if u.next && err == nil {
			u.next, err = false, errCrash
		}
		return err
	})
}

// TestAClaimThatIsRolledBackTakesNobodysTurn: lanes take turns by what was
// claimed, not by what was tried.
func TestAClaimThatIsRolledBackTakesNobodysTurn(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		u := &undone{Driver: w.db.Driver}
		w.db.Driver = u
		for range 4 {
			w.submit(drover.NewJob{Kind: "a"})
			w.submit(drover.NewJob{Kind: "b"})
		}
		first := w.acquire(1)[0]
		u.next = true
		w.number++
		if got, err := w.Acquire(t.Context(), w.c, drover.Acquire{Session: w.session, Max: 1, Number: w.number}); !errors.Is(err, errCrash) {
			t.Fatalf("%v, %v", got, err)
		}
		second := w.acquire(1)[0]
		if second.Kind == first.Kind {
			t.Errorf("after %s and a claim that was rolled back comes %s again", first.Kind, second.Kind)
		}
		u.next = true
		w.number++
		r := w.Settle(t.Context(), []engine.Settlement{{Caller: w.c, Session: w.session, Outcomes: []drover.Outcome{ok(first, "1")}, Acquire: &drover.Acquire{Session: w.session, Max: 1, Number: w.number}}})
		if !errors.Is(r[0].Err, errCrash) {
			t.Fatalf("%+v", r)
		}
		if third := w.acquire(1)[0]; third.Kind != first.Kind {
			t.Errorf("after %s and a settle that was rolled back comes %s again", second.Kind, third.Kind)
		}
	})
}

// counted is a driver that counts trips to the database.
type counted struct {
	driver.Driver
	trips int
	names map[string]int // of statements
}

func (c *counted) Write(ctx context.Context, fn func(driver.Tx) error) error {
	return c.Driver.Write(ctx, func(tx driver.Tx) error { return fn(countedTx{tx, c}) })
}

type countedTx struct {
	driver.Tx
	c *counted
}

func (x countedTx) Pipe(ctx context.Context, list ...driver.Stmt) error {
	x.c.trips++
	for _, s := range list {
		if x.c.names != nil && s.Text != nil {
			x.c.names[s.Text.Name]++
		}
	}
	return x.Tx.Pipe(ctx, list...)
}

// TestManyJobsOfOneIDTakeAFewTrips: a request whose jobs share one id, each under
// a key that is known already, is answered as fast as any.
func TestManyJobsOfOneIDTakeAFewTrips(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		const n = 200
		jobs := make([]drover.NewJob, n)
		for i := range jobs {
			jobs[i] = drover.NewJob{Kind: "k", IdempotencyKey: fmt.Sprintf("key %d", i)}
		}
		known, err := w.Submit(t.Context(), w.c, jobs)
		if err != nil {
			t.Fatal(err)
		}
		c := &counted{Driver: w.db.Driver}
		w.db.Driver = c
		id := drover.JobID(w.db.NewID())
		for i := range jobs {
			jobs[i].ID = id
		}
		jobs = append(jobs, drover.NewJob{Kind: "k", ID: id, IdempotencyKey: "new"}, drover.NewJob{Kind: "k", ID: id, IdempotencyKey: "new"})
		out, err := w.Submit(t.Context(), w.c, jobs)
		if err != nil {
			t.Fatal(err)
		}
		for i := range known {
			if out[i].JobID != known[i].JobID || !out[i].Replayed {
				t.Fatalf("job %d: %+v, want %s again", i, out[i], known[i].JobID)
			}
		}
		if a, b := out[n], out[n+1]; a.JobID != id || a.Replayed || b.JobID != id || !b.Replayed {
			t.Errorf("under a new key: %+v, and again %+v", a, b)
		}
		if c.trips > 20 {
			t.Errorf("%d jobs took %d trips to the database", len(jobs), c.trips)
		}
	})
}
