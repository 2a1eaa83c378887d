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
		"`DISPATCH_PENDING` is for queues that a broker carries: nothing of this version moves a task there. `WAITING` is a task whose own job runs (`pipeline:`).\n\n")
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
		if tr.Event == EventCancel || tr.Event == EventSkip || tr.Event == EventExpire || tr.Event == EventClose || tr.Event == EventReplay || tr.Event == EventMark {
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

// move is a function of this package that a task can be given to.
type move struct {
	event Event
	rise  int32 // of lease_version
	do    func(t Task, h Hold, p drover.Retry, d *draws, now Instant) Task
}

// draws are the random choices of a move, so that a property and a table of
// cases can both make it.
type draws struct {
	class  drover.ErrorClass
	typ    string
	after  time.Duration
	jitter float64
}

// moves are all ways to move a task but Replayed, which begins a new life.
var moves = []move{
	{EventMet, 0, func(t Task, h Hold, _ drover.Retry, _ *draws, now Instant) Task { return Met(t, h, now) }},
	{EventDue, 0, func(t Task, h Hold, _ drover.Retry, _ *draws, now Instant) Task { return Due(t, h, now) }},
	{EventAdmit, 0, func(t Task, _ Hold, _ drover.Retry, _ *draws, now Instant) Task { return Admitted(t, 3, now) }},
	{EventAdmit, 0, func(t Task, _ Hold, _ drover.Retry, _ *draws, now Instant) Task {
		if t.DueAt = 0; t.Status == drover.Pending {
			panic("that is EventMet")
		}
		return Parked(t, 3, now)
	}},
	{EventMet, 0, func(t Task, _ Hold, _ drover.Retry, _ *draws, now Instant) Task {
		if t.DueAt = 0; t.Status == drover.Ready {
			panic("that is EventAdmit")
		}
		return Parked(t, 3, now)
	}},
	{EventDefer, 0, func(t Task, _ Hold, _ drover.Retry, _ *draws, now Instant) Task {
		if t.DueAt = now + 1; t.Status == drover.Pending {
			panic("that is no move")
		}
		return Parked(t, 3, now)
	}},
	{EventJoin, 0, func(t Task, _ Hold, _ drover.Retry, _ *draws, now Instant) Task { return Joined(t, true, now) }},
	{EventJoin, 0, func(t Task, _ Hold, _ drover.Retry, _ *draws, now Instant) Task { return Joined(t, false, now) }},
	{EventUnadmit, 0, func(t Task, _ Hold, _ drover.Retry, _ *draws, now Instant) Task { return Held(t, now) }},
	{EventClaim, 1, func(t Task, _ Hold, _ drover.Retry, _ *draws, now Instant) Task { return Claimed(t, 7, 1, now) }},
	{EventSucceed, 0, func(t Task, _ Hold, _ drover.Retry, _ *draws, now Instant) Task { return Succeeded(t, now) }},
	{EventReuse, 0, func(t Task, _ Hold, _ drover.Retry, _ *draws, now Instant) Task { return Reused(t, now) }},
	{EventFail, 0, func(t Task, _ Hold, p drover.Retry, d *draws, now Instant) Task {
		return Failed(t, Fault{Class: d.class, Type: d.typ, After: d.after}, p, d.jitter, now)
	}},
	{EventCut, 1, func(t Task, _ Hold, p drover.Retry, d *draws, now Instant) Task {
		return CutOff(t, d.typ, p, d.jitter, now)
	}},
	{EventSnooze, 0, func(t Task, _ Hold, _ drover.Retry, d *draws, now Instant) Task { return Snoozed(t, d.after, now) }},
	{EventRelease, 1, func(t Task, h Hold, _ drover.Retry, _ *draws, now Instant) Task { return Released(t, h, now) }},
	{EventLose, 1, func(t Task, h Hold, p drover.Retry, d *draws, now Instant) Task {
		return LeaseLost(t, h, p, d.jitter, now)
	}},
	{EventCancel, 0, func(t Task, _ Hold, _ drover.Retry, _ *draws, now Instant) Task { return Cancelled(t, false, now) }},
	{EventAck, 1, func(t Task, _ Hold, _ drover.Retry, _ *draws, now Instant) Task { return Cancelled(t, true, now) }},
	{EventSkip, 0, func(t Task, _ Hold, _ drover.Retry, _ *draws, now Instant) Task { return Skipped(t, now) }},
	{EventExpire, 0, func(t Task, _ Hold, _ drover.Retry, _ *draws, now Instant) Task { return Expired(t, now) }},
	{EventClose, 0, func(t Task, _ Hold, _ drover.Retry, _ *draws, now Instant) Task { return Closed(t, now) }},
	{EventMet, 0, func(t Task, _ Hold, _ drover.Retry, _ *draws, now Instant) Task { return LinedUp(t, now) }},
	{EventDefer, 0, func(t Task, h Hold, _ drover.Retry, _ *draws, now Instant) Task {
		t.DueAt = now + 1
		return TurnCame(t, 4, h, now)
	}},
	{EventMark, 0, func(t Task, _ Hold, _ drover.Retry, _ *draws, now Instant) Task {
		return Marked(t, drover.Succeeded, now)
	}},
	{EventMark, 0, func(t Task, _ Hold, _ drover.Retry, _ *draws, now Instant) Task { return Marked(t, drover.Failed, now) }},
	{EventMark, 0, func(t Task, _ Hold, _ drover.Retry, _ *draws, now Instant) Task {
		return Marked(t, drover.Skipped, now)
	}},
	{EventAwait, 0, func(t Task, _ Hold, _ drover.Retry, _ *draws, now Instant) Task { return Awaiting(t, t, now) }},
	{EventBackUp, 0, func(t Task, _ Hold, _ drover.Retry, _ *draws, now Instant) Task { return BackedUp(t, now) }},
	{EventGiveUp, 0, func(t Task, _ Hold, _ drover.Retry, _ *draws, now Instant) Task { return GivenUp(t, true, now) }},
	{EventGiveUp, 0, func(t Task, _ Hold, _ drover.Retry, _ *draws, now Instant) Task { return GivenUp(t, false, now) }},
	{EventBeat, 0, func(t Task, _ Hold, _ drover.Retry, _ *draws, now Instant) Task { return Beaten(t, now) }},
	{EventNoExpand, 0, func(t Task, _ Hold, _ drover.Retry, _ *draws, now Instant) Task { return NotExpanded(t, now) }},
}

// tried makes a move; refused says that it panicked.
func (m move) tried(t Task, h Hold, p drover.Retry, d *draws, now Instant) (after Task, refused bool) {
	defer func() {
		if recover() != nil {
			after, refused = t, true
		}
	}()
	return m.do(t, h, p, d, now), false
}

// rises tells by how much the move raises the fence of a task that is s.
func (m move) rises(s drover.Status) int32 {
	if slices.Contains([]Event{EventExpire, EventClose, EventMark, EventBackUp, EventBeat}, m.event) && s == drover.Running { // ended by force
		return 1
	}
	if m.event == EventAck && s != drover.Running {
		return 0
	}
	return m.rise
}

// leaves reports whether the table lets the move take a task out of s.
func (m move) leaves(s drover.Status) bool {
	if (m.event == EventCancel || m.event == EventAck) && slices.Contains(table[EventCancel].From, s) != slices.Contains(table[EventAck].From, s) {
		return true // Cancelled is one function for both
	}
	return slices.Contains(table[m.event].From, s)
}

// TestFunctionsRefuseWhatTheTableDoes gives every function a task of every
// status: it moves it as the table says or panics, and every line of the table
// is walked.
func TestFunctionsRefuseWhatTheTableDoes(t *testing.T) {
	t.Parallel()
	p := Filled(drover.Retry{})
	walked := map[string]bool{}
	try := func(m move, before Task, h Hold, class drover.ErrorClass) {
		after, refused := m.tried(before, h, p, &draws{class: class}, 10)
		if refused == m.leaves(before.Status) {
			t.Errorf("a task that is %s, %s: refused = %v, but the table says %v", before.Status, m.event, refused, !m.leaves(before.Status))
		}
		if refused {
			return
		}
		ev := m.event
		if ev == EventAck || ev == EventCancel {
			ev = pick(before.Status == drover.Running, EventAck, EventCancel)
		}
		if err := Check(ev, before.Status, after.Status); err != nil {
			t.Error(err)
		}
		walked[fmt.Sprint(ev, before.Status, after.Status)] = true
		if got := after.LeaseVersion - before.LeaseVersion; got != m.rises(before.Status) {
			t.Errorf("a task that is %s, %s: lease_version rose by %d, want %d", before.Status, m.event, got, m.rises(before.Status))
		}
	}
	for _, m := range moves {
		for _, s := range drover.Statuses() {
			for _, class := range []drover.ErrorClass{drover.ClassPermanent, drover.ClassRetryable} {
				for _, attempt := range []int32{1, int32(p.MaxAttempts)} {
					for _, losses := range []int32{0, 1, MaxLeaseLosses} {
						for _, paused := range []bool{false, true} {
							try(m, Task{Status: s, Attempt: attempt, Losses: losses, LeaseVersion: 9, Lane: 4, Generation: 1, Since: 5}, Hold{paused}, class)
						}
					}
				}
			}
		}
	}
	for _, tr := range Table() {
		for _, from := range tr.From {
			for _, to := range tr.To {
				if !walked[fmt.Sprint(tr.Event, from, to)] && !unmade(tr.Event, from, to) && tr.Event != EventReplay {
					t.Errorf("no function takes a task that is %s, %s to %s", from, tr.Event, to)
				}
			}
		}
	}
	if after := Met(Task{Status: drover.Pending, DueAt: 11}, Hold{}, 10); after.Status != drover.Pending {
		t.Errorf("before its start time a task became %s", after.Status)
	}
	for _, s := range drover.Statuses() {
		refused := func() (r bool) {
			defer func() { r = recover() != nil }()
			Replayed(Task{Status: s}, 0, 1)
			return false
		}()
		if refused == s.Final() {
			t.Errorf("replay of a task that is %s: refused = %v", s, refused)
		}
	}
}

func pick[T any](cond bool, a, b T) T {
	if cond {
		return a
	}
	return b
}

// unmade are lines of the table that no function of this version makes: they
// are for brokers and for tasks that park.
func unmade(_ Event, from, to drover.Status) bool {
	later := []drover.Status{drover.DispatchPending, drover.Waiting}
	return slices.Contains(later, from) || slices.Contains(later, to)
}

// TestALifeKeepsItsPromises drives tasks with random events and checks after
// each what always holds.
func TestALifeKeepsItsPromises(t *testing.T) {
	t.Parallel()
	rapid.Check(t, life)
}

// FuzzALife is the same property for the coverage-guided fuzzer.
func FuzzALife(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(life))
}

// likely lists the moves to draw from: each once, and those that a task in s can
// make and live on ten times, so that lives are long.
func likely(s drover.Status) []move {
	list := slices.Clone(moves)
	for _, m := range moves {
		if m.leaves(s) && slices.ContainsFunc(table[m.event].To, func(to drover.Status) bool { return !to.Final() }) {
			list = append(list, slices.Repeat([]move{m}, 10)...)
		}
	}
	return list
}

var classes = []drover.ErrorClass{drover.ClassRetryable, drover.ClassPermanent, drover.ClassThrottled, drover.ClassTimeout, drover.ClassPanic}

// life is the property: the fence rises by one at every claim, loss, release
// and forced end and never falls; attempts are numbered without gaps and stay
// within their bound; time spent adds up to age; a final task is final until it
// is replayed; what the table does not name is refused.
func life(rt *rapid.T) {
	now := Instant(1_000_000)
	policy := Filled(drover.Retry{MaxAttempts: rapid.IntRange(1, 5).Draw(rt, "max attempts")})
	if rapid.Bool().Draw(rt, "has rules") {
		n := rapid.IntRange(1, policy.MaxAttempts)
		policy.On = map[string]drover.RetryRule{"timeout": {MaxAttempts: n.Draw(rt, "timeouts")}, "exit_75": {MaxAttempts: n.Draw(rt, "exits"), Factor: 1e300}}
	}
	task := Task{Lane: 1, Class: drover.Normal, Status: drover.Pending, Generation: 1, Unmet: 1, Since: now}
	if rapid.Bool().Draw(rt, "starts later") {
		task.DueAt = now + 3_000_000
	}
	born, used, claimed := now, int32(0), int32(0)
	for range rapid.IntRange(1, 60).Draw(rt, "steps") {
		// The clock of another server may be a little behind.
		now = max(now+Instant(rapid.Int64Range(-1000, 5_000_000).Draw(rt, "time passes")), task.Since-1000)
		hold := Hold{Paused: rapid.IntRange(0, 4).Draw(rt, "paused") == 0}
		d := &draws{class: rapid.SampledFrom(classes).Draw(rt, "class"), typ: rapid.SampledFrom([]string{"", "exit_75", "other"}).Draw(rt, "type"), after: time.Duration(rapid.Int64().Draw(rt, "after")), jitter: rapid.Float64Range(0, 0.999).Draw(rt, "jitter")}
		before := task
		if task.Status.Final() {
			for _, m := range moves {
				if _, refused := m.tried(task, hold, policy, d, now); !refused {
					rt.Fatalf("a task that is %s can be %s", task.Status, m.event)
				}
			}
			now = max(now, task.Since)
			task = Replayed(task, 1, now)
			born, used, claimed = now, 0, 0
			if task.Generation != before.Generation+1 || task.Attempt != 0 || task.Losses != 0 || task.LeaseVersion != before.LeaseVersion || task.ID != before.ID {
				rt.Fatalf("replayed: %+v", task)
			}
			continue
		}
		m := rapid.SampledFrom(likely(task.Status)).Draw(rt, "event")
		after, refused := m.tried(task, hold, policy, d, now)
		if refused {
			if m.leaves(task.Status) {
				rt.Fatalf("a task that is %s cannot be %s", task.Status, m.event)
			}
			continue
		}
		task = after
		now = max(now, before.Since) // a move is never earlier than the one before it
		ev := m.event
		if ev == EventAck || ev == EventCancel {
			ev = pick(before.Status == drover.Running, EventAck, EventCancel)
		}
		if want := before.LeaseVersion + m.rises(before.Status); task.LeaseVersion != want {
			rt.Fatalf("%s, %s: lease_version %d to %d, want %d", before.Status, m.event, before.LeaseVersion, task.LeaseVersion, want)
		}
		switch { // used counts attempts that were used up
		case ev == EventClaim:
			if claimed = used + 1; task.Attempt != claimed {
				rt.Fatalf("claimed as attempt %d after %d were used up", task.Attempt, used)
			}
		case before.Status != drover.Running:
		case ev == EventSnooze, ev == EventRelease, ev == EventLose && task.Status != drover.DeadLetter:
		default:
			used = claimed
		}
		if task.Status != drover.Running && task.Status != drover.DeadLetter && task.Attempt != used {
			rt.Fatalf("%s, %s: attempt is %d, %d were used up", before.Status, m.event, task.Attempt, used)
		}
		if task.Attempt < 0 || int(task.Attempt) > policy.MaxAttempts {
			rt.Fatalf("attempt %d of %d", task.Attempt, policy.MaxAttempts)
		}
		if task.Losses < before.Losses || task.Losses > MaxLeaseLosses+1 || task.Losses == MaxLeaseLosses+1 && task.Status != drover.DeadLetter {
			rt.Fatalf("%d losses, %s", task.Losses, task.Status)
		}
		var sum int64
		for _, us := range task.TotalAt(now) {
			sum += us
		}
		if sum != int64(now-born) {
			rt.Fatalf("%s, %s: waits and runs are %d µs, the age is %d µs: %+v", before.Status, m.event, sum, now-born, task)
		}
		if DecodeWaits(task.Waits.Encode()) != task.Waits {
			rt.Fatalf("waits do not survive their encoding: %v", task.Waits)
		}
		if task.Status == drover.RetryWait && (task.DueAt < before.Since-1000 || task.DueAt > now.Add(MaxDelay)) {
			rt.Fatalf("a retry is due at %d; it was decided at %d", task.DueAt, now)
		}
		if task.Status == drover.Ready && (task.Lane == HeldLane) != (hold.Paused || ev == EventUnadmit || task.InLine()) && ev != EventCancel {
			rt.Fatalf("%s, %s: READY in lane %d, paused = %v", before.Status, m.event, task.Lane, hold.Paused)
		}
		if task.Status == drover.Ready && task.Lane == HeldLane {
			task = Admitted(task, 1, now) // its job is resumed, or its turn has come
		}
	}
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
			if task = Failed(task, Fault{Class: drover.ClassThrottled, After: time.Second}, p, 0.5, 2); task.Status == drover.RetryWait {
				task = Due(task, Hold{}, task.DueAt)
			}
		}
		if entered != n || task.Status != drover.DeadLetter {
			t.Errorf("max_attempts %d: entered %d times, then %s", n, entered, task.Status)
		}
	}
}

func TestARetryHasRulesByClassAndType(t *testing.T) {
	t.Parallel()
	p := Filled(drover.Retry{MaxAttempts: 5, On: map[string]drover.RetryRule{
		"timeout":   {MaxAttempts: 1},
		"panic":     {MaxAttempts: 2},
		"throttled": {Initial: drover.Duration(2 * time.Minute)},
		"exit_75":   {MaxAttempts: 3, Initial: drover.Duration(time.Minute), Factor: 1, Max: drover.Duration(time.Minute)},
		"exit_65":   {MaxAttempts: 1},
	}})
	for _, c := range []struct {
		name    string
		attempt int32
		fault   Fault
		want    drover.Status
		due     time.Duration // with half the jitter
	}{
		{"a class without a rule", 1, Fault{Class: drover.ClassRetryable}, drover.RetryWait, 500 * time.Millisecond},
		{"its bound is the retry's", 5, Fault{Class: drover.ClassRetryable}, drover.DeadLetter, 0},
		{"a class with a bound of one", 1, Fault{Class: drover.ClassTimeout}, drover.DeadLetter, 0},
		{"a class under its bound", 1, Fault{Class: drover.ClassPanic}, drover.RetryWait, 500 * time.Millisecond},
		{"a class at its bound", 2, Fault{Class: drover.ClassPanic}, drover.DeadLetter, 0},
		{"a type goes before its class", 1, Fault{Class: drover.ClassTimeout, Type: "exit_75"}, drover.RetryWait, 30 * time.Second},
		{"a type's bound", 3, Fault{Class: drover.ClassRetryable, Type: "exit_75"}, drover.DeadLetter, 0},
		{"a type that is never tried again", 1, Fault{Class: drover.ClassRetryable, Type: "exit_65"}, drover.DeadLetter, 0},
		{"a first delay over the cap raises it", 1, Fault{Class: drover.ClassThrottled}, drover.RetryWait, time.Minute},
		{"the time a throttled answer names", 1, Fault{Class: drover.ClassThrottled, After: 7 * time.Second}, drover.RetryWait, 7 * time.Second},
		{"and its bound stands", 5, Fault{Class: drover.ClassThrottled, After: 7 * time.Second}, drover.DeadLetter, 0},
		{"permanent", 1, Fault{Class: drover.ClassPermanent, Type: "exit_75"}, drover.Failed, 0},
	} {
		got := Failed(Task{Status: drover.Running, Attempt: c.attempt, Generation: 1}, c.fault, p, 0.5, 1000)
		if got.Status != c.want || c.due > 0 && got.DueAt != Instant(1000).Add(c.due) {
			t.Errorf("%s: %s, due after %v; want %s after %v", c.name, got.Status, got.DueAt.Sub(1000), c.want, c.due)
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

var someAttempts = []int{1, 2, 3, 35, 63, 64, 310, 1100, 1_000_000, math.MaxInt32}

func TestBackoffIsMonotoneAndBounded(t *testing.T) {
	t.Parallel()
	for _, factor := range []float64{1, 1.5, 2, 10, 1000} {
		for _, most := range []time.Duration{time.Second, time.Minute, 10 * 365 * 24 * time.Hour, math.MaxInt64} {
			p := drover.Retry{Initial: drover.Duration(time.Second), Factor: factor, Max: drover.Duration(most)}
			last := time.Duration(0)
			for _, n := range someAttempts {
				c := Ceiling(n, p)
				if c <= 0 || c > most || c < last {
					t.Errorf("factor %v, max %v, attempt %d: ceiling %v after %v", factor, most, n, c, last)
				}
				if n >= 1100 && factor > 1 && c != most {
					t.Errorf("factor %v, max %v, attempt %d: ceiling %v is not the cap", factor, most, n, c)
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
	if d := Ceiling(3, drover.Retry{Initial: drover.Duration(10 * time.Second), Factor: 1.5}); d != 22500*time.Millisecond {
		t.Errorf("10 s × 1.5² is %v", d)
	}
}

// TestBackoffOfOddPoliciesStaysInRange: requests are validated, but a policy
// that was stored by hand must not make a task start at once, or never.
func TestBackoffOfOddPoliciesStaysInRange(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		p := drover.Retry{
			Initial: drover.Duration(rapid.OneOf(rapid.Int64Range(1, math.MaxInt64), rapid.Just(int64(math.MaxInt64))).Draw(rt, "initial")),
			Factor:  rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1), -2, 0.5, math.MaxFloat64, math.SmallestNonzeroFloat64})).Draw(rt, "factor"),
			Max:     drover.Duration(rapid.OneOf(rapid.Int64Range(1, math.MaxInt64), rapid.Just(int64(math.MaxInt64))).Draw(rt, "max")),
		}
		last := time.Duration(0)
		for _, n := range someAttempts {
			c := Ceiling(n, p)
			if c <= 0 || c > p.Max.Std() || c < last {
				rt.Fatalf("%+v, attempt %d: ceiling %v after %v", p, n, c, last)
			}
			last = c
			if d := Backoff(n, p, rapid.Float64Range(0, math.Nextafter(1, 0)).Draw(rt, "jitter")); d < 0 || d > c {
				rt.Fatalf("%+v, attempt %d: a delay of %v under a ceiling of %v", p, n, d, c)
			}
		}
	})
}

func TestADelayAHandlerAsksForIsBounded(t *testing.T) {
	t.Parallel()
	running := Task{Status: drover.Running, Attempt: 1, Generation: 1}
	for _, d := range []time.Duration{-time.Hour, 0, math.MinInt64, math.MaxInt64} {
		s := Snoozed(running, d, 1000)
		if s.DueAt < 1000 || s.DueAt > Instant(1000).Add(MaxDelay) {
			t.Errorf("snoozed for %v: due at %d", d, s.DueAt)
		}
		f := Failed(running, Fault{Class: drover.ClassThrottled, After: d}, drover.Retry{MaxAttempts: 3}, 0.5, 1000)
		if f.DueAt < 1000 || f.DueAt > Instant(1000).Add(MaxDelay) {
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
		"held":     Held(Task{Status: drover.Queued, Lane: 4, ReadyAt: 3}, 9),
		"in line":  TurnCame(LinedUp(Task{Status: drover.Pending, Unmet: 1, Lane: 4}, 5), 4, h, 9),
	} {
		if task.Status != drover.Ready || task.Lane != HeldLane {
			t.Errorf("%s: %s in lane %d, want READY in the lane nobody scans", name, task.Status, task.Lane)
		}
		if w := task.TotalAt(19); w[WaitPaused] != 10 {
			t.Errorf("%s: waits %v, want 10 µs of job_paused", name, w)
		}
	}
}

// TestWhatWaitsInLineHasAReasonOfItsOwn: it stands with what is held, does not count as
// ready, and its wait is told apart.
func TestWhatWaitsInLineHasAReasonOfItsOwn(t *testing.T) {
	t.Parallel()
	in := LinedUp(Task{Status: drover.Pending, Unmet: 1, Lane: 4}, 5)
	if !in.InLine() || in.Started() || in.Lane != HeldLane || in.Unmet != 0 {
		t.Fatalf("in line: %+v", in)
	}
	out := TurnCame(in, 4, Hold{}, 9)
	if out.Status != drover.Queued || out.Lane != 4 || out.ReadyAt != 9 || out.QueuedAt != 9 || out.DueAt != 9 || !out.Started() || out.Waits[WaitParallel] != 4 {
		t.Errorf("its turn came: %+v", out)
	}
	in.DueAt = 20
	if early := TurnCame(in, 4, Hold{}, 9); early.Status != drover.Pending || early.DueAt != 20 || early.Lane != 4 || !early.Started() {
		t.Errorf("its turn came before its start time: %+v", early)
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

func TestAnAttemptIsCutOffOnceItsTimeoutAndTheGraceArePast(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		timeout, ran time.Duration
		want         bool
	}{
		{time.Minute, 59 * time.Second, false}, {time.Minute, time.Minute, false}, {time.Minute, 75 * time.Second, false},
		{time.Minute, 75*time.Second + time.Microsecond, true}, {time.Minute, math.MaxInt64 / 2, true}, {0, time.Hour, false},
	} {
		if got := Overrun(1000, c.timeout, 15*time.Second, Instant(1000).Add(c.ran)); got != c.want {
			t.Errorf("a timeout of %v, after %v: %v", c.timeout, c.ran, got)
		}
	}
	p := drover.Retry{MaxAttempts: 3, On: map[string]drover.RetryRule{"timeout": {MaxAttempts: 2}}}
	for attempt, want := range map[int32]drover.Status{1: drover.RetryWait, 2: drover.DeadLetter} {
		got := CutOff(Task{Status: drover.Running, Attempt: attempt, LeaseVersion: 4}, "start_to_close", p, 0.5, 9)
		if got.Status != want || got.LeaseVersion != 5 || got.Attempt != attempt {
			t.Errorf("attempt %d, cut off: %+v, want %s", attempt, got, want)
		}
	}
}

// TestScheduleToCloseBoundsAllAttempts: whatever happens to a task, no attempt
// begins after the bound, which is fixed once.
func TestScheduleToCloseBoundsAllAttempts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		now := Instant(1_000_000)
		first := now
		task := Task{Status: drover.Pending, Generation: 1, Lane: 1, Unmet: 1, Since: now}
		if rapid.Bool().Draw(rt, "starts later") {
			task.DueAt = now.Add(time.Duration(rapid.Int64Range(1, 1e9).Draw(rt, "in")))
			first = task.DueAt
		}
		bound := time.Duration(rapid.Int64Range(1e6, 1e11).Draw(rt, "schedule_to_close"))
		task = Met(task, Hold{}, now)
		closes := ClosesAt(task, bound, now)
		if closes != first.Add(bound) {
			rt.Fatalf("able to run from %d on, it closes at %d with a bound of %v", first, closes, bound)
		}
		p := Filled(drover.Retry{MaxAttempts: 1000})
		for !task.Status.Final() {
			jitter := rapid.Float64Range(0, 0.999).Draw(rt, "jitter")
			switch task.Status {
			case drover.Pending, drover.RetryWait:
				if task.DueAt >= closes && task.Status == drover.RetryWait {
					rt.Fatalf("it waits until %d, after its end at %d", task.DueAt, closes)
				}
				now = task.DueAt
				task = Due(task, Hold{}, now)
			case drover.Ready:
				task = Admitted(task, 1, now)
			case drover.Queued:
				task = Claimed(task, 1, 1, now)
			default:
				if now = now.Add(time.Duration(rapid.Int64Range(0, 1e10).Draw(rt, "runs"))); now >= closes {
					lv := task.LeaseVersion
					if task = Closed(task, now); task.LeaseVersion != lv+1 {
						rt.Fatal("its worker's lease goes on")
					}
					continue
				}
				was, closed := task, false
				switch rapid.IntRange(0, 2).Draw(rt, "end") {
				case 0:
					task = Failed(task, Fault{Class: drover.ClassRetryable}, p, jitter, now)
				case 1:
					task = Snoozed(task, time.Duration(rapid.Int64Range(0, 1e11).Draw(rt, "snooze")), now)
				case 2:
					task = LeaseLost(task, Hold{}, p, jitter, now)
				}
				want := task.Status == drover.RetryWait && task.DueAt >= closes
				after := task
				if task, closed = Bounded(was, task, closes, now); closed != want || closed && (task.Status != drover.Failed || task.LeaseVersion != after.LeaseVersion) {
					rt.Fatalf("bounded: %+v, was %+v", task, after)
				}
			}
		}
	})
	if got := ClosesAt(Task{}, 0, 5); got != 0 {
		t.Errorf("without a bound it closes at %d", got)
	}
}
