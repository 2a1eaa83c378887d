package engine

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/admit"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// lineLog is what the one that leads knows of what lines waited for. It is stored
// where it changes; whoever takes up a READY task otherwise reads it.
type lineLog struct {
	mu    sync.Mutex
	term  int64 // of the lead; another one begins anew
	lines map[store.LineKey]lifecycle.Spans
}

const (
	// lineSteady is for how long a reason is told at least: lines that wait now for one
	// and now for another thing are not written with every decision.
	lineSteady = time.Second
	linesKept  = 10_000
	// keepLineWaits is how long what is over is kept.
	keepLineWaits = 7 * 24 * time.Hour
)

func lineOfTask(t *lifecycle.Task) store.LineKey { return store.LineKey{Lane: t.Lane, Class: t.Class} }

func compareLineKeys(a, b store.LineKey) int {
	return cmp.Or(cmp.Compare(a.Lane, b.Lane), cmp.Compare(a.Class, b.Class))
}

// readLineWaits reads what the lines of READY tasks waited for, and tells the tasks.
func readLineWaits(ctx context.Context, tx store.Tx, rows []*lifecycle.Task) error {
	var keys []store.LineKey
	for _, t := range rows {
		if t.Status == drover.Ready && t.Lane != lifecycle.HeldLane {
			keys = append(keys, lineOfTask(t))
		}
	}
	if len(keys) == 0 {
		return nil
	}
	slices.SortFunc(keys, compareLineKeys)
	spans := map[store.LineKey]lifecycle.Spans{}
	if err := tx.Pipe(ctx, store.ReadLineWaits(slices.Compact(keys), spans)); err != nil {
		return err
	}
	for _, t := range rows {
		if s, ok := spans[lineOfTask(t)]; ok && t.Status == drover.Ready && t.Lane != lifecycle.HeldLane {
			t.Line = &s
		}
	}
	return nil
}

func pointers(rows []lifecycle.Task) []*lifecycle.Task {
	out := make([]*lifecycle.Task, len(rows))
	for i := range rows {
		out[i] = &rows[i]
	}
	return out
}

// know reads what lines waited for, of those that are not known yet.
func (l *lineLog) know(ctx context.Context, tx store.Tx, term int64, lines []store.LineKey) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term != term || len(l.lines) > linesKept {
		l.term, l.lines = term, map[store.LineKey]lifecycle.Spans{}
	}
	missing := slices.DeleteFunc(slices.Clone(lines), func(k store.LineKey) bool { return l.lines[k] != nil })
	if len(missing) == 0 {
		return nil
	}
	slices.SortFunc(missing, compareLineKeys)
	missing = slices.Compact(missing)
	read := map[store.LineKey]lifecycle.Spans{}
	if err := tx.Pipe(ctx, store.ReadLineWaits(missing, read)); err != nil {
		return err
	}
	for _, k := range missing {
		l.lines[k] = append(lifecycle.Spans{}, read[k]...)
	}
	return nil
}

// tell tells READY tasks what their lines waited for, as far as that is known.
func (l *lineLog) tell(rows []lifecycle.Task) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range rows {
		if s := l.lines[lineOfTask(&rows[i])]; len(s) > 0 {
			rows[i].Line = &s
		}
	}
}

// changed says what a decision changes about what lines wait for. whole says that
// it was about all lines: of those that are not in it nobody waits any more.
func (l *lineLog) changed(v *admit.View, d *admit.Decision, whole bool) (rows []store.LineWait) {
	l.mu.Lock()
	defer l.mu.Unlock()
	why := make(map[store.LineKey]lifecycle.Reason, len(v.Lines))
	for i := range v.Lines {
		why[store.LineKey{Lane: v.Lines[i].Lane, Class: v.Lines[i].Class}] = lifecycle.WaitHandoff
	}
	for _, w := range d.Waiting {
		line := &v.Lines[w.Line]
		why[store.LineKey{Lane: line.Lane, Class: line.Class}] = lifecycle.ReasonOf(string(w.Blockers[0].Code))
	}
	if whole {
		for k, s := range l.lines {
			if _, there := why[k]; !there && len(s) > 0 {
				why[k] = lifecycle.WaitHandoff
			}
		}
	}
	for k, r := range why {
		s := l.lines[k]
		last := lifecycle.Span{Why: lifecycle.WaitHandoff}
		if len(s) > 0 {
			last = s[len(s)-1]
		}
		if last.Why == r || last.Why != lifecycle.WaitHandoff && r != lifecycle.WaitHandoff && v.Now < last.From.Add(lineSteady) {
			continue
		}
		rows = append(rows, store.LineWait{LineKey: k, Span: lifecycle.Span{From: max(v.Now, last.From), Why: r}})
	}
	slices.SortFunc(rows, func(a, b store.LineWait) int { return compareLineKeys(a.LineKey, b.LineKey) })
	return rows
}

// keep remembers what was stored.
func (l *lineLog) keep(rows []store.LineWait) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range rows {
		s := l.lines[r.LineKey]
		if n := len(s); n >= store.MaxSpans {
			s = append(lifecycle.Spans{}, s[n/2:]...)
		}
		// A copy: tasks of a decision look at what there was.
		l.lines[r.LineKey] = append(slices.Clip(s), r.Span)
	}
}
