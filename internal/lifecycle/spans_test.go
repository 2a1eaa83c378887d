package lifecycle

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/drover-dev/drover"
)

// TestATasksTimeIsSplitByItsLinesSpans: each part to what the line waited for then, and
// nothing is lost or counted twice, whatever the spans are.
func TestATasksTimeIsSplitByItsLinesSpans(t *testing.T) {
	t.Parallel()
	line := Spans{{10, WaitQueuePaused}, {20, WaitSemaphore}, {30, WaitHandoff}, {40, WaitRate}}
	task := Task{Status: drover.Ready, Lane: 1, ReadyAt: 5, Since: 5, Line: &line}
	want := Waits{WaitHandoff: 5 + 10, WaitQueuePaused: 10, WaitSemaphore: 10, WaitRate: 10}
	if got := task.TotalAt(50); got != want {
		t.Errorf("it waited %v, want %v", got.Map(), want.Map())
	}
	after := Admitted(task, 2, 50)
	if after.Waits != want || after.Line != nil {
		t.Errorf("after its admission %v, line %v", after.Waits.Map(), after.Line)
	}
	held := task
	held.Lane = HeldLane
	if got := held.TotalAt(50); got != (Waits{WaitPaused: 45}) {
		t.Errorf("in the lane of paused jobs %v", got.Map())
	}
	held.ReadyAt = 0 // an element over max_parallel
	if got := held.TotalAt(50); got != (Waits{WaitParallel: 45}) {
		t.Errorf("in line for a place in its map %v", got.Map())
	}
	rapid.Check(t, func(rt *rapid.T) {
		var line Spans
		at := Instant(0)
		for range rapid.IntRange(0, 8).Draw(rt, "spans") {
			at += Instant(rapid.Int64Range(0, 20).Draw(rt, "after"))
			line = append(line, Span{at, Reason(rapid.IntRange(int(WaitQueuePaused), reasons-1).Draw(rt, "why"))})
		}
		from := Instant(rapid.Int64Range(0, 100).Draw(rt, "from"))
		to := from + Instant(rapid.Int64Range(0, 100).Draw(rt, "for"))
		sum, last := int64(0), from
		line.Each(from, to, func(until Instant, why Reason) {
			if until <= last || until > to || why.String() == "unknown" {
				rt.Fatalf("from %d a piece until %d of %s", last, until, why)
			}
			last = until
		})
		for _, us := range (&Task{Status: drover.Ready, Lane: 1, Since: from, Line: &line}).sums(to) {
			sum += us
		}
		if sum != int64(to-from) {
			rt.Fatalf("%d µs of %d are accounted for by %v", sum, to-from, line)
		}
	})
}

func (t *Task) sums(now Instant) []int64 {
	w := t.TotalAt(now)
	return w[:]
}

// TestReasonsOfAdmissionsAreKnownByTheirCodes.
func TestReasonsOfAdmissionsAreKnownByTheirCodes(t *testing.T) {
	t.Parallel()
	for r := WaitQueuePaused; r <= WaitWorkersFull; r++ {
		if got := ReasonOf(r.String()); got != r || r.String() == "unknown" {
			t.Errorf("%d is %q, which is %d", r, r, got)
		}
	}
	for _, code := range []string{"", "handoff", "run", "dependency", "child_job", "unknown"} {
		if got := ReasonOf(code); got != WaitHandoff {
			t.Errorf("%q is %s", code, got)
		}
	}
}
