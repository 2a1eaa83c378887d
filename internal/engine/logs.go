package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// Limits of logs and progress.
const (
	MaxLog          = 10 << 20 // bytes of an attempt's log
	maxLogLine      = 64 << 10
	maxLogAttrs     = 16 << 10
	maxLogLines     = 10_000  // in one call
	logLineCost     = 64      // bytes a line counts besides what it says
	logPage         = 4 << 20 // bytes of a page of lines
	maxProgressText = 500
)

var logLevels = []string{"debug", "info", "warn", "error", "stdout", "stderr"}

// SetProgress stores how far a running attempt is.
func (e *Engine) SetProgress(ctx context.Context, c Caller, h drover.Held, p drover.Progress) error {
	if !(p.Ratio >= 0 && p.Ratio <= 1) { // NaN is neither
		return &drover.Error{Code: drover.CodeValidation, Detail: "the progress is not valid",
			Fields: []drover.FieldError{{Field: "ratio", Message: "must be from 0 to 1"}}}
	}
	p.Message = shorten(p.Message, maxProgressText)
	var stored int64
	err := e.db.Write(ctx, func(tx store.Tx) error {
		return tx.Pipe(ctx, store.SetProgress(h.TaskID, h.LeaseVersion, p, e.now(), c.Tenant, c.System, &stored))
	})
	if err == nil && stored == 0 {
		err = leaseLost(h)
	}
	if err != nil {
		return fmt.Errorf("store progress: %w", err)
	}
	return nil
}

// shorten makes text storable and cuts it at n bytes, between characters.
func shorten(s string, n int) string {
	s = clearText(s)
	if len(s) <= n {
		return s
	}
	const mark = "…"
	end := n - len(mark)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + mark
}

// AppendLogs adds lines to the log of a running attempt and returns how many
// were kept. When the log is full, a line says so and the rest is dropped.
func (e *Engine) AppendLogs(ctx context.Context, c Caller, h drover.Held, lines []drover.LogLine) (int, error) {
	if len(lines) > maxLogLines {
		return 0, &drover.Error{Code: drover.CodeValidation, Detail: "the log is not valid",
			Fields: []drover.FieldError{{Field: "lines", Message: fmt.Sprintf("%d lines in one call; at most %d", len(lines), maxLogLines)}}}
	}
	now := e.now()
	rows := make([]store.LogRow, len(lines))
	for i, l := range lines {
		rows[i] = logRow(l, now)
	}
	kept := 0
	err := e.db.Write(ctx, func(tx store.Tx) error {
		lease, err := holder(ctx, tx, c, h)
		if err != nil || len(rows) == 0 {
			return err
		}
		var size, added int64
		if err := tx.Pipe(ctx, store.LockLogSize(h.TaskID, h.LeaseVersion, &size)...); err != nil {
			return err
		}
		keep := make([]store.LogRow, 0, len(rows)+1)
		kept = 0
		for _, l := range rows {
			cost := int64(len(l.Text)+len(l.Attrs)) + logLineCost
			if size+added >= MaxLog {
				break
			}
			if size+added+cost > MaxLog {
				added = MaxLog - size
				keep = append(keep, store.LogRow{Level: "warn", At: now, Text: fmt.Sprintf("the log of this attempt has reached %d MiB; the rest is dropped", MaxLog>>20)})
				break
			}
			added += cost
			kept++
			keep = append(keep, l)
		}
		for i := range keep {
			l := &keep[i]
			l.Job, l.Task, l.Attempt, l.ID = lease.Job, h.TaskID, lease.Attempt, e.db.NewID()
		}
		if len(keep) == 0 {
			return nil
		}
		return tx.Pipe(ctx, store.InsertLogs(h.TaskID, h.LeaseVersion, added, keep)...)
	})
	if err != nil {
		return 0, fmt.Errorf("append to log: %w", err)
	}
	return kept, nil
}

// logRow makes a line storable.
func logRow(l drover.LogLine, now lifecycle.Instant) store.LogRow {
	row := store.LogRow{Level: l.Level, At: lifecycle.At(l.At), Text: shorten(l.Text, maxLogLine)}
	if !slices.Contains(logLevels, row.Level) {
		row.Level = "info"
	}
	if row.At <= 0 || row.At > now.Add(24*time.Hour) { // never, or by a clock that is far off
		row.At = now
	}
	switch {
	case len(l.Attrs) == 0:
	case len(l.Attrs) > maxLogAttrs || !json.Valid(l.Attrs):
		row.Attrs = []byte(`{"dropped":"attrs were no JSON, or too long"}`)
	default:
		row.Attrs = l.Attrs
	}
	return row
}

// Logs returns lines of a job or a task, oldest first, and where the next page
// starts; empty when there is none yet.
func (e *Engine) Logs(ctx context.Context, c Caller, q LogQuery) (out []drover.LogLine, next string, err error) {
	var after drover.ID
	if q.After != "" {
		id, err := drover.ParseTaskID("task_" + q.After) // ids of lines have no prefix of their own
		if err != nil {
			return nil, "", &drover.Error{Code: drover.CodeValidation, Detail: "the list cannot go on there",
				Fields: []drover.FieldError{{Field: "after", Message: "is not where a page ended"}}}
		}
		after = drover.ID(id)
	}
	if q.Attempt < 0 || q.Attempt > math.MaxInt32 {
		return []drover.LogLine{}, "", nil
	}
	n := pageSize(q.Limit)
	var rows []store.LogRow
	err = e.db.Read(ctx, func(tx store.Tx) error {
		rows = nil
		if !q.Task.IsZero() {
			s, err := oneTask(ctx, tx, c, q.Task)
			if err != nil {
				return err
			}
			if !q.Job.IsZero() && s.Job != q.Job {
				return notFound("task", q.Task)
			}
		} else if _, err := head(ctx, tx, c, q.Job); err != nil {
			return err
		}
		return tx.Pipe(ctx, store.Logs(q.Job, q.Task, int32(q.Attempt), after, n+1, &rows))
	})
	if err != nil {
		return nil, "", fmt.Errorf("read log: %w", err)
	}
	out = []drover.LogLine{}
	size := 0
	for i, r := range rows {
		if size += len(r.Text) + len(r.Attrs); i == n || (size > logPage && i > 0) {
			return out, rows[i-1].ID.String(), nil
		}
		out = append(out, lineOf(r))
	}
	return out, "", nil
}

func lineOf(r store.LogRow) drover.LogLine {
	l := drover.LogLine{At: r.At.Time(), Level: r.Level, Text: r.Text, TaskID: r.Task, Attempt: int(r.Attempt)}
	if len(r.Attrs) > 0 {
		l.Attrs = r.Attrs
	}
	return l
}
