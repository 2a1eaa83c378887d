package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/storetest"
)

// world is an engine on a database, a tenant, and one worker session.
type world struct {
	*engine.Engine
	t       *testing.T
	db      *store.DB
	c       engine.Caller
	session drover.SessionID
	number  int64
	clock   *clock
	// entered counts handler entries by task.
	entered map[drover.TaskID]int
}

// clock is a store clock that a test moves. By itself it goes at a twentieth of the
// pace, so that a machine with much to do lets no lease run out.
type clock struct {
	start time.Time
	add   time.Duration
}

func (c *clock) now() time.Time { return c.start.Add(time.Since(c.start)/20 + c.add) }

func each(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	t.Parallel()
	clk := &clock{start: time.Now()}
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		clk.add = 0
		w := &world{Engine: engine.New(db, engine.Options{Jitter: func() float64 { return 0.5 }}), t: t, db: db, clock: clk, entered: map[drover.TaskID]int{}}
		var err error
		if w.c, err = w.EnsureTenant(t.Context(), "acme"); err != nil {
			t.Fatal(err)
		}
		w.open()
		f(t, w)
	}, func(o *store.Options) { o.Now = clk.now })
}

func (w *world) open() {
	w.t.Helper()
	s, err := w.OpenSession(w.t.Context(), w.c, drover.NewSession{Worker: "w", Queues: []string{"default", "cpu", "gpu"}, Slots: 1000})
	if err != nil {
		w.t.Fatal(err)
	}
	w.session = s.ID
}

func (w *world) apply(src string) {
	w.t.Helper()
	if _, err := w.RegisterPipeline(w.t.Context(), w.c, "p.yaml", []byte(src)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) submit(n drover.NewJob) drover.JobID {
	w.t.Helper()
	out, err := w.Submit(w.t.Context(), w.c, []drover.NewJob{n})
	if err != nil {
		w.t.Fatal(err)
	}
	if out[0].Err != nil {
		w.t.Fatal(out[0].Err)
	}
	return out[0].JobID
}

func (w *world) acquire(n int) []drover.Lease {
	w.t.Helper()
	w.number++
	l, err := w.Acquire(w.t.Context(), w.c, drover.Acquire{Session: w.session, Max: n, Number: w.number})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, x := range l {
		w.entered[x.TaskID]++
	}
	return l
}

func (w *world) settle(o ...drover.Outcome) []drover.Settled {
	w.t.Helper()
	r := w.Settle(w.t.Context(), []engine.Settlement{{Caller: w.c, Session: w.session, Outcomes: o}})
	if r[0].Err != nil {
		w.t.Fatal(r[0].Err)
	}
	return r[0].Settled
}

func ok(l drover.Lease, output string) drover.Outcome {
	return drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeSucceeded, Output: json.RawMessage(output)}
}

func failed(l drover.Lease, class drover.ErrorClass, msg string) drover.Outcome {
	return drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeFailed, Error: &drover.Failure{Class: class, Message: msg}}
}

// work runs everything until nothing is left to claim.
func (w *world) work(handle func(l drover.Lease) drover.Outcome) (names []string) {
	w.t.Helper()
	for {
		got := w.acquire(500)
		if len(got) == 0 {
			return names
		}
		var out []drover.Outcome
		for _, l := range got {
			names = append(names, fmt.Sprintf("%s[%d]", l.Name, l.Index))
			out = append(out, handle(l))
		}
		for _, s := range w.settle(out...) {
			if s.Err != nil {
				w.t.Fatalf("settle %s: %v", s.TaskID, s.Err)
			}
		}
	}
}

func (w *world) job(id drover.JobID) drover.Job {
	w.t.Helper()
	j, err := w.Job(w.t.Context(), w.c, id)
	if err != nil {
		w.t.Fatal(err)
	}
	return j
}

func (w *world) want(id drover.JobID, s drover.Status) drover.Job {
	w.t.Helper()
	j := w.job(id)
	if j.Status != s {
		w.t.Fatalf("job is %s, want %s: %+v", j.Status, s, j)
	}
	w.gapless(id)
	return j
}

// gapless checks that the job's events are numbered 1, 2, 3, … and that there
// are as many as the job says.
func (w *world) gapless(id drover.JobID) []drover.Event {
	w.t.Helper()
	ev, err := w.Events(w.t.Context(), w.c, id, 0, 100_000)
	if err != nil {
		w.t.Fatal(err)
	}
	for i, e := range ev {
		if e.Seq != int64(i+1) {
			w.t.Fatalf("event %d has number %d: %+v", i+1, e.Seq, ev)
		}
	}
	if j := w.job(id); j.Events != int64(len(ev)) {
		w.t.Fatalf("job counts %d events, there are %d", j.Events, len(ev))
	}
	return ev
}

func (w *world) step(name string, f func(context.Context) (int, error)) int {
	w.t.Helper()
	n, err := f(w.t.Context())
	if err != nil {
		w.t.Fatalf("%s: %v", name, err)
	}
	return n
}

func TestKindJobRunsOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		id := w.submit(drover.NewJob{Kind: "mail", Input: json.RawMessage(`{"to": "a"}`)})
		w.want(id, drover.Pending)
		l := w.acquire(10)
		if len(l) != 1 || l[0].Kind != "mail" || string(l[0].Input) != `{"to": "a"}` || l[0].Attempt != 1 || l[0].LeaseVersion != 1 || l[0].Tenant != "acme" {
			t.Fatalf("leases = %+v", l)
		}
		w.want(id, drover.Running)
		s := w.settle(ok(l[0], `{"sent": 1}`))
		if s[0].Status != drover.Succeeded || s[0].Err != nil {
			t.Fatalf("settled = %+v", s)
		}
		if s := w.settle(ok(l[0], `{"sent": 1}`)); s[0].Status != drover.Succeeded || s[0].Err != nil {
			t.Fatalf("the repeat = %+v, want the first answer", s)
		}
		j := w.want(id, drover.Succeeded)
		if string(j.Result) != `{"sent": 1}` {
			t.Fatalf("result = %s", j.Result)
		}
		stale := l[0]
		stale.LeaseVersion = 7
		if s := w.settle(ok(stale, `1`)); drover.CodeOf(s[0].Err) != drover.CodeLeaseLost {
			t.Fatalf("a stale settle = %+v", s)
		}
	})
}

func TestRetryThenDeadLetterThenReplay(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		id := w.submit(drover.NewJob{Kind: "flaky", Retry: &drover.Retry{MaxAttempts: 3}})
		var task drover.TaskID
		for n := 1; n <= 3; n++ {
			l := w.acquire(1)
			if len(l) != 1 || l[0].Attempt != n {
				t.Fatalf("attempt %d: leases %+v", n, l)
			}
			task = l[0].TaskID
			w.settle(failed(l[0], drover.ClassRetryable, fmt.Sprintf("boom %d", n)))
			if n < 3 {
				if got := w.acquire(1); len(got) != 0 {
					t.Fatalf("claimed during backoff: %+v", got)
				}
				w.clock.add += 2 * time.Minute
				w.open() // the old session has expired meanwhile
				if k := w.step("timers", w.TimersOnce); k != 1 {
					t.Fatalf("timers took %d, want 1", k)
				}
			}
		}
		j := w.want(id, drover.Failed)
		if j.Error == nil || j.Error.Message != "boom 3" {
			t.Fatalf("error = %+v", j.Error)
		}
		if x, err := w.Task(t.Context(), w.c, task); err != nil || x.Status != drover.DeadLetter || x.Attempt != 3 {
			t.Fatalf("task = %+v, %v", x, err)
		}
		a, err := w.Attempts(t.Context(), w.c, task)
		if err != nil || len(a) != 3 {
			t.Fatalf("attempts = %+v, %v", a, err)
		}
		if _, err := w.Replay(t.Context(), w.c, task, engine.ReplayRequest{Request: engine.Request{ID: "r1"}, Input: json.RawMessage(`{"fixed":true}`)}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Replay(t.Context(), w.c, task, engine.ReplayRequest{Request: engine.Request{ID: "r1"}, Input: json.RawMessage(`{"fixed":true}`)}); err != nil {
			t.Fatalf("the same request again: %v", err)
		}
		l := w.acquire(10)
		if len(l) != 1 || l[0].Generation != 2 || l[0].Attempt != 1 || string(l[0].Input) != `{"fixed":true}` {
			t.Fatalf("after the replay: %+v", l)
		}
		w.settle(ok(l[0], `1`))
		if j := w.want(id, drover.Succeeded); j.Run != 2 {
			t.Fatalf("run = %d, want 2", j.Run)
		}
	})
}

const ingest = `
pipeline: ingest
input: {type: object, required: [n], properties: {n: {type: integer}}}
tasks:
  decode: {run: decode}
  extract: {needs: [decode], for_each: "${{ tasks.decode.output.segments }}", run: extract, with: {segment: "${{ item }}"}}
  infer: {for_each: extract, run: infer, queue: gpu, with: {frames: "${{ item.frames }}", i: "${{ index }}"}}
  quality: {needs: [infer], run: quality, with: {all: "${{ tasks.infer.output }}"}}
  manifest: {needs: [quality, decode], run: manifest}
`

func ingestHandler(t *testing.T, segments int, inputs map[string]string) func(l drover.Lease) drover.Outcome {
	return func(l drover.Lease) drover.Outcome {
		inputs[fmt.Sprintf("%s[%d]", l.Name, l.Index)] = string(l.Input)
		switch l.Name {
		case "decode":
			list := make([]int, segments)
			for i := range list {
				list[i] = i * 10
			}
			b, err := json.Marshal(map[string]any{"segments": list})
			if err != nil {
				t.Fatal(err)
			}
			return ok(l, string(b))
		case "extract":
			return ok(l, fmt.Sprintf(`{"frames": %d}`, l.Index+100))
		case "infer":
			return ok(l, fmt.Sprintf(`%d`, l.Index*2))
		}
		return ok(l, `{}`)
	}
}

func TestPipelineExpandsAndJoins(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(ingest)
		for _, n := range []int{3, 1, 0, 50} {
			id := w.submit(drover.NewJob{Pipeline: "ingest", Input: json.RawMessage(fmt.Sprintf(`{"n": %d}`, n))})
			in := map[string]string{}
			names := w.work(ingestHandler(t, n, in))
			j := w.want(id, drover.Succeeded)
			if want := 3 + 2*n; len(names) != want || j.Tasks.Succeeded != want || j.Tasks.Total != want {
				t.Fatalf("n=%d: ran %v, counts %+v, want %d tasks", n, names, j.Tasks, want)
			}
			if names[len(names)-1] != "manifest[0]" {
				t.Fatalf("last = %v", names)
			}
			if n == 3 {
				if in["extract[1]"] != `{"segment":10}` || in["infer[2]"] != `{"frames":102,"i":2}` || in["quality[0]"] != `{"all":[0,2,4]}` {
					t.Fatalf("inputs = %v", in)
				}
			}
			if n == 0 && in["quality[0]"] != `{"all":[]}` {
				t.Fatalf("inputs = %v", in)
			}
			for id, k := range w.entered {
				if k != 1 {
					t.Fatalf("task %s entered %d times", id, k)
				}
			}
		}
	})
}

func TestElementGoesOnBeforeItsSiblings(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(ingest)
		w.submit(drover.NewJob{Pipeline: "ingest", Input: json.RawMessage(`{"n": 2}`)})
		h := ingestHandler(t, 2, map[string]string{})
		w.settle(h(w.acquire(1)[0]))
		first := w.acquire(1)
		w.settle(h(first[0]))
		var names []string
		for _, l := range w.acquire(10) {
			names = append(names, fmt.Sprintf("%s[%d]", l.Name, l.Index))
		}
		if !slices.Contains(names, fmt.Sprintf("infer[%d]", first[0].Index)) {
			t.Fatalf("after extract[%d] alone: %v", first[0].Index, names)
		}
	})
}

func TestFailFastSkipsTheRestAndReplayGoesOn(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(ingest)
		id := w.submit(drover.NewJob{Pipeline: "ingest", Input: json.RawMessage(`{"n": 3}`)})
		in := map[string]string{}
		good := ingestHandler(t, 3, in)
		broken := true
		handle := func(l drover.Lease) drover.Outcome {
			if broken && l.Name == "extract" && l.Index == 1 {
				return failed(l, drover.ClassPermanent, "segment is corrupt")
			}
			return good(l)
		}
		w.settle(handle(w.acquire(1)[0]))
		var out []drover.Outcome
		for _, l := range w.acquire(10) {
			out = append(out, handle(l))
		}
		w.settle(out...)
		w.work(handle)
		j := w.want(id, drover.Failed)
		if j.Error == nil || j.Error.Task != "extract" || j.Error.Message != "segment is corrupt" || j.Tasks.Failed != 1 || j.Tasks.Skipped == 0 {
			t.Fatalf("job = %+v, error %+v", j, j.Error)
		}
		tasks, err := w.Tasks(t.Context(), w.c, engine.TaskQuery{Job: id, Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(tasks, func(x drover.Task) bool { return x.Status == drover.Failed })
		broken = false
		if _, err := w.Replay(t.Context(), w.c, tasks[i].ID, engine.ReplayRequest{}); err != nil {
			t.Fatal(err)
		}
		w.work(handle)
		if j := w.want(id, drover.Succeeded); j.Tasks.Succeeded != 9 || j.Tasks.Total != 9 {
			t.Fatalf("after the replay: %+v", j.Tasks)
		}
		for id, n := range w.entered {
			if n > 1 && id != tasks[i].ID {
				t.Fatalf("task %s entered %d times", id, n)
			}
		}
	})
}

func TestCancelPauseResume(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		// queued, no worker needed
		id := w.submit(drover.NewJob{Kind: "a"})
		if _, err := w.Cancel(ctx, w.c, id, engine.Request{Reason: "not needed"}); err != nil {
			t.Fatal(err)
		}
		w.want(id, drover.Cancelled)
		if _, err := w.Cancel(ctx, w.c, id, engine.Request{}); err != nil {
			t.Fatalf("again: %v", err)
		}
		if l := w.acquire(10); len(l) != 0 {
			t.Fatalf("a cancelled task was claimed: %+v", l)
		}
		// running: told at the renewal, ends when acknowledged
		id = w.submit(drover.NewJob{Kind: "a"})
		l := w.acquire(1)
		if _, err := w.Cancel(ctx, w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		if j := w.want(id, drover.Running); !j.Cancelling {
			t.Fatalf("job = %+v", j)
		}
		held := drover.Held{TaskID: l[0].TaskID, LeaseVersion: l[0].LeaseVersion}
		r, err := w.Renew(ctx, w.c, w.session, drover.Renewal{Held: []drover.Held{held}, Acquired: w.number})
		if err != nil || !slices.Contains(r.Cancelled, held) {
			t.Fatalf("renewed = %+v, %v", r, err)
		}
		w.settle(drover.Outcome{TaskID: held.TaskID, LeaseVersion: held.LeaseVersion, Status: drover.OutcomeCancelled})
		w.want(id, drover.Cancelled)
		// a worker that does not acknowledge: by force after the grace
		id = w.submit(drover.NewJob{Kind: "a"})
		l = w.acquire(1)
		if _, err := w.Cancel(ctx, w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		w.step("sweep", w.SweepOnce)
		w.want(id, drover.Running)
		w.clock.add += 31 * time.Second
		w.step("sweep", w.SweepOnce)
		w.want(id, drover.Cancelled)
		if s := w.settle(ok(l[0], "1")); drover.CodeOf(s[0].Err) != drover.CodeLeaseLost {
			t.Fatalf("settle after the forced end = %+v", s)
		}
		w.open()
		// pause and resume
		id = w.submit(drover.NewJob{Kind: "a"})
		if j, err := w.Pause(ctx, w.c, id, engine.Request{}); err != nil || !j.Paused {
			t.Fatalf("pause: %+v, %v", j, err)
		}
		w.step("admit", w.AdmitOnce)
		w.step("sweep", w.SweepOnce)
		if l := w.acquire(10); len(l) != 0 {
			t.Fatalf("claimed while paused: %+v", l)
		}
		if _, err := w.Resume(ctx, w.c, id, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		w.want(id, drover.Succeeded)
	})
}

func TestLostLeaseRunsElsewhere(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		id := w.submit(drover.NewJob{Kind: "a"})
		l := w.acquire(1)
		w.clock.add += 31 * time.Second
		old := w.session
		w.open()
		if n := w.step("reap", w.ReapOnce); n != 1 {
			t.Fatalf("reaped %d, want 1", n)
		}
		w.step("admit", w.AdmitOnce)
		again := w.acquire(1)
		if len(again) != 1 || again[0].TaskID != l[0].TaskID || again[0].LeaseVersion != l[0].LeaseVersion+2 || again[0].Attempt != 1 {
			t.Fatalf("after the loss: %+v (first lease_version %d)", again, l[0].LeaseVersion)
		}
		r := w.Settle(t.Context(), []engine.Settlement{{Caller: w.c, Session: old, Outcomes: []drover.Outcome{ok(l[0], "1")}}})
		if r[0].Err != nil || drover.CodeOf(r[0].Settled[0].Err) != drover.CodeLeaseLost {
			t.Fatalf("the zombie's settle = %+v", r[0])
		}
		w.settle(ok(again[0], "2"))
		if j := w.want(id, drover.Succeeded); string(j.Result) != "2" {
			t.Fatalf("result %s", j.Result)
		}
	})
}

func TestIdempotentSubmit(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		n := drover.NewJob{Kind: "a", Input: json.RawMessage(`{"x": 1}`), IdempotencyKey: "k"}
		one := w.submit(n)
		n.Input = json.RawMessage(`{"x":1}`)
		out, err := w.Submit(t.Context(), w.c, []drover.NewJob{n, n, {Kind: "a", IdempotencyKey: "k"}, {Kind: "b"}})
		if err != nil {
			t.Fatal(err)
		}
		if out[0].JobID != one || !out[0].Replayed || out[1].JobID != one || drover.CodeOf(out[2].Err) != drover.CodeIdempotencyReused || out[3].JobID.IsZero() {
			t.Fatalf("out = %+v", out)
		}
	})
}

func TestWorkerGetsOnlyKindsItHas(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		id := w.submit(drover.NewJob{Kind: "mail"})
		s, err := w.OpenSession(t.Context(), w.c, drover.NewSession{Worker: "exec only", Queues: []string{"default"}, Kinds: []string{"exec", "http"}, Slots: 5})
		if err != nil {
			t.Fatal(err)
		}
		if l, err := w.Acquire(t.Context(), w.c, drover.Acquire{Session: s.ID, Max: 5, Number: 1}); err != nil || len(l) != 0 {
			t.Fatalf("a worker without the kind got %+v, %v", l, err)
		}
		w.submit(drover.NewJob{Kind: "exec", Input: json.RawMessage(`{"command":["true"]}`)})
		if l, err := w.Acquire(t.Context(), w.c, drover.Acquire{Session: s.ID, Max: 5, Number: 2}); err != nil || len(l) != 1 || l[0].Kind != "exec" {
			t.Fatalf("leases = %+v, %v", l, err)
		}
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		w.want(id, drover.Succeeded)
	})
}

// TestTheEventOfAFirstSuccessSaysWhatItsEndSays: it is stored with the task's end and
// read from there, also when the task has been replayed since.
func TestTheEventOfAFirstSuccessSaysWhatItsEndSays(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ninput: {type: object}\ntasks:\n  m: {run: k, for_each: \"${{ input.of }}\"}\n")
		ids := []drover.JobID{w.submit(drover.NewJob{Kind: "k"})}
		w.settle(drover.Outcome{TaskID: w.one().TaskID, LeaseVersion: 1, Status: drover.OutcomeSnoozed, RetryAfter: drover.Duration(time.Second)})
		ids = append(ids, w.submit(drover.NewJob{Pipeline: "p", Input: json.RawMessage(`{"of":[1,2]}`)}))
		w.pass(10 * time.Second)
		w.step("timers", w.TimersOnce)
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		said := func() (list []string) {
			t.Helper()
			for _, id := range ids {
				for _, ev := range must(w.Events(t.Context(), w.c, id, 0, 0)) {
					if ev.Type != drover.TaskSucceeded {
						continue
					}
					var d struct {
						Status, Name, Outcome        string
						WorkerID                     string `json:"worker_id"`
						Index, Generation, Attempt   int
						LeaseVersion                 int `json:"lease_version"`
						ReadyAt, QueuedAt, ClaimedAt time.Time
					}
					if err := json.Unmarshal(ev.Data, &d); err != nil || d.Status != "SUCCEEDED" || d.Outcome != "succeeded" || d.WorkerID != w.session.String() {
						t.Errorf("%s: %v", ev.Data, err)
					}
					list = append(list, fmt.Sprintf("%s[%d] generation %d attempt %d lease_version %d", d.Name, d.Index, d.Generation, d.Attempt, d.LeaseVersion))
					for _, at := range []string{"ready_at", "queued_at", "claimed_at"} {
						if !strings.Contains(string(ev.Data), `"`+at+`":"20`) {
							t.Errorf("%s says no %s", ev.Data, at)
						}
					}
				}
			}
			slices.Sort(list)
			return list
		}
		want := []string{"k[0] generation 1 attempt 1 lease_version 2", "m[0] generation 1 attempt 1 lease_version 1", "m[1] generation 1 attempt 1 lease_version 1"}
		if got := said(); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		if _, err := w.Replay(t.Context(), w.c, w.taskOf(ids[0], "k").ID, engine.ReplayRequest{}); err != nil {
			t.Fatal(err)
		}
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "2") })
		if got, want := said(), slices.Insert(slices.Clone(want), 1, "k[0] generation 2 attempt 1 lease_version 3"); !slices.Equal(got, want) {
			t.Errorf("after a replay %q, want %q", got, want)
		}
	})
}

// Who watches a job sees the number of its tasks jump at an expansion: an event
// says which map it was and how many elements it has, in the transaction that
// makes them.
func TestExpandingIsAnEventOfTheJob(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply(`
pipeline: grows
tasks:
  list:  {run: list}
  first: {for_each: "${{ input.items }}", run: first}
  each:  {for_each: "${{ tasks.list.output }}", run: each}
  then:  {for_each: each, run: then}
  last:  {needs: [then, first], run: last}
`)
		id := w.submit(drover.NewJob{Pipeline: "grows", Input: json.RawMessage(`{"items":[]}`)})
		expanded := func() (told []string) {
			events, err := w.Events(t.Context(), w.c, id, 0, 100)
			if err != nil {
				t.Fatal(err)
			}
			for i, e := range events {
				if e.Seq != int64(i+1) {
					t.Errorf("event %d has number %d", i+1, e.Seq)
				}
				if e.Type == drover.TaskExpanded {
					told = append(told, fmt.Sprintf("%d %s", e.Seq, e.Data))
				}
				if e.Type == drover.TaskExpanded && e.TaskID.IsZero() {
					t.Errorf("event %d does not say which map it was", e.Seq)
				}
			}
			return told
		}
		// Over the input: at the submit, behind job.accepted; an empty map too.
		want := []string{`2 {"name":"first","index":-1,"count":0}`}
		if got := expanded(); !slices.Equal(got, want) {
			t.Errorf("after the submit: %q, want %q", got, want)
		}
		l := w.acquire(10)
		if len(l) != 1 || l[0].Name != "list" {
			t.Fatalf("leases: %+v", l)
		}
		w.settle(ok(l[0], `["a","b","c"]`))
		// With its elements those of the map element-wise over it, behind the success that brought them.
		want = append(want, `4 {"name":"each","index":-1,"count":3}`, `5 {"name":"then","index":-1,"count":3}`)
		if got := expanded(); !slices.Equal(got, want) {
			t.Errorf("after the list: %q, want %q", got, want)
		}
		if j := w.job(id); j.Tasks.Total != 8 {
			t.Errorf("the job has %d tasks, want 8", j.Tasks.Total)
		}
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		w.want(id, drover.Succeeded)
		if got := expanded(); !slices.Equal(got, want) {
			t.Errorf("at the end: %q, want %q", got, want)
		}
	})
}

// TestTaskThatComesBackKeepsItsPlaceInLine: given back by a worker that drains, or
// lost with one that died, it has waited longest. Behind a long line it would wait
// as long again.
func TestTaskThatComesBackKeepsItsPlaceInLine(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		first := w.submit(drover.NewJob{Kind: "k"})
		l := w.acquire(1)
		for range 3 {
			w.clock.add += time.Second
			w.submit(drover.NewJob{Kind: "k"})
		}
		back := func(how string) {
			t.Helper()
			w.quieten()
			if l = w.acquire(1); len(l) != 1 || l[0].JobID != first {
				t.Fatalf("%s: the next lease is %+v, want one of the first job", how, l)
			}
		}
		w.settle(drover.Outcome{TaskID: l[0].TaskID, LeaseVersion: l[0].LeaseVersion, Status: drover.OutcomeReleased})
		back("given back")
		w.clock.add += time.Minute
		w.step("reap", w.ReapOnce)
		w.open()
		back("lost")
	})
}
