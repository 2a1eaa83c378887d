package lifecycle

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drover-dev/drover"
)

var update = flag.Bool("update", false, "write docs/states.md anew from the table")

// TestDocsStates holds docs/states.md to the table.
func TestDocsStates(t *testing.T) {
	t.Parallel()
	const path = "../../docs/states.md"
	want := statesPage()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/states.md is not what the table says; run make docs")
	}
}

func statesPage() string {
	var b strings.Builder
	b.WriteString("# The states of a task\n\nPrinted from the table in `internal/lifecycle` by `make docs`. Every move a task can make is here; any other is refused.\n" +
		"`DISPATCH_PENDING` is for queues that a broker carries, `WAITING` for tasks that wait for the outside world: nothing of this version moves a task there.\n\n")
	b.WriteString("| event | from | to | when, and what else |\n|---|---|---|---|\n")
	names := func(list []drover.Status) string {
		var out []string
		for _, s := range list {
			out = append(out, s.String())
		}
		return strings.Join(out, " ")
	}
	for _, tr := range Table() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", tr.Event, names(tr.From), names(tr.To), tr.Doc)
	}
	b.WriteString("\nFinal are SUCCEEDED, FAILED, CANCELLED, SKIPPED and DEAD_LETTER: no event changes them but an explicit replay, which opens a new generation and keeps the old record.\n\n" +
		"A job is PENDING until one of its tasks was claimed, then RUNNING, and final in the commit that ends its last task: FAILED when a task ended FAILED or\nDEAD_LETTER, else CANCELLED when one was cancelled, else SUCCEEDED. SKIPPED never fails a job.\n\n```mermaid\nstateDiagram-v2\n")
	seen := map[string]bool{}
	for _, tr := range Table() {
		if tr.Event == EventCancel || tr.Event == EventSkip || tr.Event == EventExpire || tr.Event == EventReplay {
			continue // from nearly everywhere: the table says it better
		}
		for _, f := range tr.From {
			for _, to := range tr.To {
				line := fmt.Sprintf("  %s --> %s: %s\n", f, to, tr.Event)
				if !seen[line] {
					b.WriteString(line)
				}
				seen[line] = true
			}
		}
	}
	b.WriteString("```\n")
	return b.String()
}

func TestOnlyTheTableMovesATask(t *testing.T) {
	t.Parallel()
	reached := map[drover.Status]bool{drover.Pending: true}
	for _, tr := range Table() {
		for _, from := range drover.Statuses() {
			for _, to := range drover.Statuses() {
				want := slices.Contains(tr.From, from) && slices.Contains(tr.To, to)
				err := Check(tr.Event, from, to)
				if (err == nil) != want {
					t.Errorf("%s from %s to %s: %v, want allowed %v", tr.Event, from, to, err, want)
				}
				if err != nil && !errors.Is(err, drover.ErrNotAllowed) {
					t.Errorf("%v is not ErrNotAllowed", err)
				}
				reached[to] = reached[to] || want
			}
		}
		for _, from := range tr.From {
			if from.Final() && tr.Event != EventReplay {
				t.Errorf("%s leaves the final %s", tr.Event, from)
			}
		}
	}
	for _, s := range drover.Statuses() {
		if !reached[s] {
			t.Errorf("no event leads to %s", s)
		}
	}
	if Check("an event of no kind", drover.Queued, drover.Running) == nil {
		t.Error("an unknown event is allowed")
	}
}

// TestALifeKeepsItsPromises drives a task with random events and checks after
// each: the fence rises by one at every claim, loss, release and forced end and
// never falls; attempts stay within their bound; time spent adds up to age; a
// final task stays final until it is replayed.
func TestALifeKeepsItsPromises(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		now := Instant(1_000_000)
		policy := Filled(drover.Retry{MaxAttempts: rapid.IntRange(1, 5).Draw(rt, "max attempts")})
		hold := Hold{}
		task := Task{Lane: 1, Class: drover.Normal, Status: drover.Pending, Generation: 1, Unmet: 1, Since: now}
		born := now
		claims := 0
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			now += Instant(rapid.Int64Range(0, 5_000_000).Draw(rt, "time passes"))
			before := task
			rise := int32(0)
			jitter := rapid.Float64Range(0, 0.999).Draw(rt, "jitter")
			switch task.Status {
			case drover.Pending:
				if task.Unmet > 0 {
					task = Met(task, hold, now)
				} else {
					task = Due(task, hold, now)
				}
			case drover.Ready:
				task = Admitted(task, 1, now)
			case drover.Queued:
				switch rapid.IntRange(0, 3).Draw(rt, "queued") {
				case 0:
					task = Held(task, now)
				case 1:
					task = Cancelled(task, false, now)
				default:
					task, rise = Claimed(task, 7, 1, now), 1
					claims++
				}
			case drover.Running:
				switch rapid.IntRange(0, 7).Draw(rt, "running") {
				case 0:
					task = Succeeded(task, now)
				case 1, 2:
					class := rapid.SampledFrom([]drover.ErrorClass{drover.ClassRetryable, drover.ClassPermanent, drover.ClassThrottled, drover.ClassTimeout}).Draw(rt, "class")
					task = Failed(task, class, time.Duration(rapid.Int64().Draw(rt, "after")), policy, jitter, now)
				case 3:
					task = Snoozed(task, time.Duration(rapid.Int64().Draw(rt, "after")), now)
				case 4:
					task, rise = Released(task, hold, now), 1
				case 5:
					task, rise = LeaseLost(task, hold, policy, jitter, now), 1
				case 6:
					task, rise = Cancelled(task, true, now), 1
				case 7:
					task, rise = Expired(task, now), 1
				}
			case drover.RetryWait:
				if task.DueAt < now-1 && before.Since > now {
					rt.Fatalf("due at %d before it was decided", task.DueAt)
				}
				now = max(now, task.DueAt)
				task = Due(task, hold, now)
			default: // final
				task = Replayed(task, 1, now)
				born, claims = now, 0
				if task.Generation != before.Generation+1 || task.Attempt != 0 || task.Losses != 0 {
					rt.Fatalf("replayed: %+v", task)
				}
			}
			if task.LeaseVersion != before.LeaseVersion+rise {
				rt.Fatalf("%s to %s: lease_version %d to %d, want a rise of %d", before.Status, task.Status, before.LeaseVersion, task.LeaseVersion, rise)
			}
			if task.Attempt < 0 || int(task.Attempt) > policy.MaxAttempts {
				rt.Fatalf("attempt %d of %d", task.Attempt, policy.MaxAttempts)
			}
			if task.Losses > MaxLeaseLosses+1 || (task.Losses > MaxLeaseLosses) != (task.Status == drover.DeadLetter && task.Losses > MaxLeaseLosses) {
				rt.Fatalf("losses %d in %s", task.Losses, task.Status)
			}
			var sum int64
			for _, us := range task.TotalAt(now) {
				sum += us
			}
			if sum != int64(now-born) {
				rt.Fatalf("waits and runs are %d µs, the age is %d µs: %+v", sum, now-born, task)
			}
			if DecodeWaits(task.Waits.Encode()) != task.Waits {
				rt.Fatalf("waits do not survive their encoding: %v", task.Waits)
			}
			if task.Status == drover.RetryWait && task.DueAt < now {
				rt.Fatalf("a retry is due at %d, before %d", task.DueAt, now)
			}
		}
	})
}

func TestHandlerIsEnteredExactlyMaxAttemptsTimes(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 10} {
		p := drover.Retry{MaxAttempts: n}
		task := Task{Status: drover.Queued, Generation: 1}
		entered := 0
		for task.Status == drover.Queued {
			task = Claimed(task, 1, 1, 1)
			entered++
			if task = Failed(task, drover.ClassThrottled, time.Second, p, 0.5, 2); task.Status == drover.RetryWait {
				task = Due(task, Hold{}, task.DueAt)
			}
		}
		if entered != n || task.Status != drover.DeadLetter {
			t.Errorf("max_attempts %d: entered %d times, then %s", n, entered, task.Status)
		}
	}
}

func TestATaskThatKillsItsWorkersEndsAsDeadLetter(t *testing.T) {
	t.Parallel()
	task := Task{Status: drover.Queued, Generation: 1, Lane: 1}
	losses := 0
	for task.Status != drover.DeadLetter {
		task = Claimed(task, 1, 1, 1)
		task = LeaseLost(task, Hold{}, drover.Retry{}, 0.5, 2)
		losses++
		switch task.Status {
		case drover.Ready:
			task = Admitted(task, 1, 3)
		case drover.RetryWait:
			task = Due(task, Hold{}, task.DueAt)
		}
		if losses > 20 {
			t.Fatal("it goes round for ever")
		}
	}
	if losses != MaxLeaseLosses+1 || task.Attempt != 1 {
		t.Errorf("ended after %d losses at attempt %d", losses, task.Attempt)
	}
}

func TestBackoffIsMonotoneAndBounded(t *testing.T) {
	t.Parallel()
	for _, factor := range []float64{1, 1.5, 2, 10, 1000} {
		for _, most := range []time.Duration{time.Second, time.Minute, 10 * 365 * 24 * time.Hour} {
			p := drover.Retry{Initial: drover.Duration(time.Second), Factor: factor, Max: drover.Duration(most)}
			last := time.Duration(0)
			for _, n := range []int{1, 2, 3, 35, 63, 64, 310, 1100, 1_000_000, math.MaxInt32} {
				c := Ceiling(n, p)
				if c <= 0 || c > most || c < last {
					t.Errorf("factor %v, max %v, attempt %d: ceiling %v after %v", factor, most, n, c, last)
				}
				last = c
				for _, j := range []float64{0, 0.5, math.Nextafter(1, 0)} {
					if d := Backoff(n, p, j); d < 0 || d > c {
						t.Errorf("attempt %d, jitter %v: %v is outside 0 to %v", n, j, d, c)
					}
				}
			}
		}
	}
	if d := Ceiling(1, drover.Retry{}); d != DefaultInitial {
		t.Errorf("the first default ceiling is %v", d)
	}
}

func TestADelayAHandlerAsksForIsBounded(t *testing.T) {
	t.Parallel()
	running := Task{Status: drover.Running, Attempt: 1, Generation: 1}
	for _, d := range []time.Duration{-time.Hour, 0, math.MinInt64, math.MaxInt64} {
		s := Snoozed(running, d, 1000)
		if s.DueAt < 1000 || s.DueAt > Instant(1000).Add(maxDelay) {
			t.Errorf("snoozed for %v: due at %d", d, s.DueAt)
		}
		f := Failed(running, drover.ClassThrottled, d, drover.Retry{MaxAttempts: 3}, 0.5, 1000)
		if f.DueAt < 1000 || f.DueAt > Instant(1000).Add(maxDelay) {
			t.Errorf("throttled for %v: due at %d", d, f.DueAt)
		}
	}
}

func TestPausedJobsTaskIsHeldWhereverItBecomesReady(t *testing.T) {
	t.Parallel()
	h := Hold{Paused: true}
	for name, task := range map[string]Task{
		"met":      Met(Task{Status: drover.Pending, Unmet: 1, Lane: 4}, h, 9),
		"due":      Due(Task{Status: drover.RetryWait, Lane: 4}, h, 9),
		"released": Released(Task{Status: drover.Running, Lane: 4, Attempt: 1}, h, 9),
		"lost":     LeaseLost(Task{Status: drover.Running, Lane: 4, Attempt: 1}, h, drover.Retry{}, 0, 9),
		"held":     Held(Task{Status: drover.Queued, Lane: 4}, 9),
	} {
		if task.Status != drover.Ready || task.Lane != HeldLane {
			t.Errorf("%s: %s in lane %d, want READY in the lane nobody scans", name, task.Status, task.Lane)
		}
		if w := task.TotalAt(19); w[WaitPaused] != 10 {
			t.Errorf("%s: waits %v, want 10 µs of job_paused", name, w)
		}
	}
}

func TestJobStatus(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		failed, cancelled int32
		want              drover.Status
	}{{0, 0, drover.Succeeded}, {1, 0, drover.Failed}, {0, 2, drover.Cancelled}, {1, 5, drover.Failed}} {
		if got := JobStatus(c.failed, c.cancelled); got != c.want {
			t.Errorf("%d failed, %d cancelled: %s, want %s", c.failed, c.cancelled, got, c.want)
		}
	}
}
