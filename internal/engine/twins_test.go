package engine_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/storetest"
)

// TestBothDatabasesTellTheSameStory plays random scripts, without a race in
// them, on each database and compares every answer and everything that is stored
// in the end: places, generations, attempts, waits, events.
func TestBothDatabasesTellTheSameStory(t *testing.T) {
	t.Parallel()
	steps, seeds := 220, uint64(4)
	if raceDetector {
		steps, seeds = 60, 2
	}
	for seed := range seeds {
		var first []string
		for _, d := range storetest.Drivers(t) {
			log := story(t, d, seed, steps)
			if first == nil {
				first = log
				continue
			}
			for i := range max(len(first), len(log)) {
				a, b := "(nothing)", "(nothing)"
				if i < len(first) {
					a = first[i]
				}
				if i < len(log) {
					b = log[i]
				}
				if a != b {
					t.Errorf("seed %d, line %d, after\n%s\nsqlite:   %s\n%s: %s", seed, i, strings.Join(first[max(0, i-8):min(i, len(first))], "\n"), a, d, b)
					break
				}
			}
		}
	}
}

// story plays one script and returns what was said.
func story(t *testing.T, kind string, seed uint64, steps int) (log []string) {
	t.Helper()
	ctx := t.Context()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	db := storetest.Open(t, kind, func(o *store.Options) { o.Now = func() time.Time { return now } })
	rnd := rand.New(rand.NewPCG(seed, 7))
	w := &world{Engine: engine.New(db, engine.Options{Jitter: rand.New(rand.NewPCG(seed, 8)).Float64}), t: t, db: db, clock: &clock{start: time.Now()}, entered: map[drover.TaskID]int{}}
	var err error
	if w.c, err = w.EnsureTenant(ctx, "acme"); err != nil {
		t.Fatal(err)
	}
	w.apply(ingest)
	w.apply("pipeline: wide\ninput: {type: object}\ndefaults: {retry: {max_attempts: 2}}\ntasks:\n  m: {run: k, for_each: \"${{ input.list }}\"}\n  n: {run: k, for_each: m}\n  z: {run: k, needs: [n]}\n")
	w.open()
	var jobs []drover.JobID
	var held []drover.Lease
	tasks := map[drover.TaskID]string{} // by a name that both databases give them
	var order []drover.TaskID
	say := func(format string, args ...any) { log = append(log, fmt.Sprintf(format, args...)) }
	outcome := func(err error) string {
		if err == nil {
			return "done"
		}
		if code := drover.CodeOf(err); code != "" {
			return string(code)
		}
		return err.Error()
	}
	named := func(l drover.Lease) string {
		return fmt.Sprintf("job %d %s[%d]", slices.Index(jobs, l.JobID), l.Name, l.Index)
	}
	loops := []struct {
		name string
		f    func(context.Context) (int, error)
	}{{"reap", w.ReapOnce}, {"timers", w.TimersOnce}, {"admit", w.AdmitOnce}, {"sweep", w.SweepOnce}, {"expire", w.ExpireOnce}}
	for range steps {
		now = now.Add(time.Duration(rnd.IntN(900)) * time.Millisecond)
		job := drover.JobID{}
		at := -1
		if len(jobs) > 0 {
			at = rnd.IntN(len(jobs))
			job = jobs[at]
		}
		switch k := rnd.IntN(100); {
		case k < 12 || at < 0:
			n := drover.NewJob{Kind: "k", Class: []drover.Class{0, drover.Urgent}[rnd.IntN(2)], Retry: &drover.Retry{MaxAttempts: 1 + rnd.IntN(3)}}
			switch rnd.IntN(3) {
			case 0:
				n = drover.NewJob{Pipeline: "ingest", Input: json.RawMessage(`{"n": 2}`)}
			case 1:
				n = drover.NewJob{Pipeline: "wide", Input: json.RawMessage(fmt.Sprintf(`{"list": [%s]}`, strings.Join(slices.Repeat([]string{"1"}, rnd.IntN(4)), ",")))}
			}
			if rnd.IntN(6) == 0 {
				n.DueAt = now.Add(3 * time.Second)
			}
			if rnd.IntN(8) == 0 {
				n.ExpiresAt = now.Add(10 * time.Second)
			}
			if rnd.IntN(4) == 0 {
				n.IdempotencyKey = fmt.Sprint("key ", rnd.IntN(3))
			}
			out, err := w.Submit(ctx, w.c, []drover.NewJob{n})
			if err != nil {
				t.Fatal(err)
			}
			say("submit %s%s: %s replayed %v", n.Kind, n.Pipeline, outcome(asError(out[0].Err)), out[0].Replayed)
			if out[0].Err == nil && !out[0].Replayed {
				jobs = append(jobs, out[0].JobID)
			}
		case k < 40:
			w.number++
			l, err := w.Acquire(ctx, w.c, drover.Acquire{Session: w.session, Max: 1 + rnd.IntN(6), Number: w.number})
			slices.SortFunc(l, func(a, b drover.Lease) int {
				return cmp.Or(cmp.Compare(slices.Index(jobs, a.JobID), slices.Index(jobs, b.JobID)), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Index, b.Index))
			})
			for _, x := range l {
				say("  %s generation %d attempt %d lease_version %d of %s input %s class", named(x), x.Generation, x.Attempt, x.LeaseVersion, x.Queue, x.Input)
				if tasks[x.TaskID] == "" {
					tasks[x.TaskID] = named(x)
					order = append(order, x.TaskID)
				}
			}
			held = append(held, l...)
			say("acquire: %s", outcome(err))
			if drover.CodeOf(err) == drover.CodeLeaseLost {
				w.open()
				held = nil
			}
		case k < 70 && len(held) > 0:
			var out []drover.Outcome
			n := 1 + rnd.IntN(len(held))
			for _, l := range held[:n] {
				o := anyOutcome(rnd, l)
				if o.Status == drover.OutcomeSucceeded && l.Name == "decode" {
					o.Output = json.RawMessage(`{"segments": [1, 2]}`)
				} else if o.Status == drover.OutcomeSucceeded {
					o.Output = json.RawMessage(`{"frames": 1}`)
				}
				out = append(out, o)
			}
			for i, s := range w.settle(out...) {
				say("settle %s as %s: %s %s", named(held[i]), out[i].Status, s.Status, outcome(asError(s.Err)))
			}
			if rnd.IntN(5) > 0 {
				held = held[n:] // else they are reported again
			}
		case k < 74:
			_, err := w.Cancel(ctx, w.c, job, engine.Request{})
			say("cancel %d: %s", at, outcome(err))
		case k < 79:
			_, err := w.Pause(ctx, w.c, job, engine.Request{})
			say("pause %d: %s", at, outcome(err))
		case k < 84:
			_, err := w.Resume(ctx, w.c, job, engine.Request{})
			say("resume %d: %s", at, outcome(err))
		case k < 88 && len(order) > 0:
			id := order[rnd.IntN(len(order))]
			x, err := w.Replay(ctx, w.c, id, engine.ReplayRequest{})
			say("replay %s: %s %s %d", tasks[id], outcome(err), x.Status, x.Generation)
		case k < 90:
			r := drover.Renewal{Acquired: w.number}
			for _, l := range held {
				r.Held = append(r.Held, drover.Held{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion})
			}
			out, err := w.Renew(ctx, w.c, w.session, r)
			say("renew: %s, %d cancelled, %d lost", outcome(err), len(out.Cancelled), len(out.Lost))
		case k < 92:
			now = now.Add(40 * time.Second) // the lease runs out
		default:
			l := loops[rnd.IntN(len(loops))]
			n, err := l.f(ctx)
			say("%s: %d %s", l.name, n, outcome(err))
		}
	}
	for i, id := range jobs {
		j, err := w.Job(ctx, w.c, id)
		if err != nil {
			t.Fatal(err)
		}
		say("job %d: %s run %d paused %v cancelling %v %+v events %d finished %s result %s error %v", i, j.Status, j.Run, j.Paused, j.Cancelling, j.Tasks, j.Events, j.FinishedAt, j.Result, j.Error)
		list, err := w.Tasks(ctx, w.c, engine.TaskQuery{Job: id, Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range list {
			say("  %s[%d] %s generation %d attempt %d lease_version %d unmet %d ready %s queued %s claimed %s finished %s due %s waits %v error %v",
				x.Name, x.Index, x.Status, x.Generation, x.Attempt, x.LeaseVersion, x.Unmet, x.ReadyAt, x.QueuedAt, x.ClaimedAt, x.FinishedAt, x.DueAt, x.Waits, x.Error)
			tries, err := w.Attempts(ctx, w.c, x.ID)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range tries {
				say("    %d.%d lease_version %d %s %s %s", a.Generation, a.Attempt, a.LeaseVersion, a.Outcome, a.ClaimedAt, a.EndedAt)
			}
		}
		for _, e := range w.gapless(id) {
			say("  event %d %s %s", e.Seq, e.Type, e.At)
		}
	}
	w.step("reap", w.ReapOnce)
	w.audit()
	return log
}
