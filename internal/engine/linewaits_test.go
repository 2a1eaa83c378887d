package engine

import (
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/admit"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// TestWhatALineWaitsForIsNotedWhereItChanges: not with every decision, and not while it
// wavers; and it is over when nobody waits any more.
func TestWhatALineWaitsForIsNotedWhereItChanges(t *testing.T) {
	t.Parallel()
	l := &lineLog{lines: map[store.LineKey]lifecycle.Spans{}}
	line := store.LineKey{Lane: 7, Class: drover.Normal}
	now := lifecycle.Instant(1_000_000_000)
	decide := func(after time.Duration, code admit.Code, there bool) []store.LineWait {
		now = now.Add(after)
		v := &admit.View{Now: now}
		d := &admit.Decision{}
		if there {
			v.Lines = []admit.Line{{Lane: line.Lane, Class: line.Class}}
		}
		if code != "" {
			d.Waiting = []admit.Verdict{{Line: 0, Blockers: []admit.Blocker{{Code: code}}}}
		}
		rows := l.changed(v, d, true)
		l.keep(rows)
		return rows
	}
	for i, step := range []struct {
		after time.Duration
		code  admit.Code
		there bool
		why   lifecycle.Reason // that is noted; 0 is nothing
	}{
		{0, "", true, 0}, {time.Millisecond, admit.SemaphoreFull, true, lifecycle.WaitSemaphore}, {time.Second, admit.SemaphoreFull, true, 0},
		{time.Millisecond, admit.RateLimited, true, lifecycle.WaitRate}, {time.Millisecond, admit.SemaphoreFull, true, 0}, {lineSteady, admit.SemaphoreFull, true, lifecycle.WaitSemaphore},
		{time.Millisecond, "", true, lifecycle.WaitHandoff}, {time.Millisecond, admit.QueuePaused, true, lifecycle.WaitQueuePaused}, {time.Millisecond, "", false, lifecycle.WaitHandoff}, {time.Second, "", false, 0},
	} {
		rows := decide(step.after, step.code, step.there)
		if (step.why == 0) != (len(rows) == 0) || len(rows) == 1 && (rows[0].Why != step.why || rows[0].From != now || rows[0].LineKey != line) || len(rows) > 1 {
			t.Errorf("step %d, %q: noted %+v, want %s", i, step.code, rows, step.why)
		}
	}
	if s := l.lines[line]; len(s) != 6 {
		t.Errorf("its spans: %v", s)
	}
}
