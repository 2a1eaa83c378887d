package store

import (
	"context"

	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store/driver"
)

// The lines in turns, as SQLite has no LATERAL: each is found by its key.
func nextLineOf(table, where string) *driver.Text {
	return driver.New("next line of "+table, "", "SELECT queue, class, lane FROM "+table+" WHERE "+where+"(queue, class, lane) > ($1, $2, $3) ORDER BY queue, class, lane LIMIT 1")
}

var (
	nextReadyLine  = nextLineOf("task_ready", "lane <> 0 AND ")
	nextQueuedLine = nextLineOf("task_queued", "")
	readyLine      = driver.New("heads of a ready line", "", "SELECT "+readyCols+" FROM task_ready WHERE lane <> 0 AND queue = $1 AND class = $2 AND lane = $3 ORDER BY due_at, task_id LIMIT $4")
	countLine      = driver.New("count a queued line", "",
		"SELECT count(*) FROM (SELECT 1 FROM task_queued WHERE queue = $1 AND class = $2 AND lane = $3 LIMIT CASE WHEN (SELECT stage FROM lanes WHERE id = $3) = 1 THEN CAST($4 AS BIGINT) ELSE CAST($5 AS BIGINT) END) z")
)

// linesInTurns goes from one line to the next.
func linesInTurns(ctx context.Context, tx Tx, next *driver.Text, after Line, n int) (lines []Line, err error) {
	for len(lines) < n {
		at := after
		found := false
		err := tx.Pipe(ctx, Stmt{Text: next, Args: []any{at.Queue, int16(at.Class), at.Lane}, Scan: func(r driver.Row) error {
			found = true
			return r.Scan(&after.Queue, (*int16)(&after.Class), &after.Lane)
		}})
		if err != nil || !found {
			return lines, err
		}
		lines = append(lines, Line{Queue: after.Queue, Class: after.Class, Lane: after.Lane})
	}
	return lines, nil
}

func readyHeadsInTurns(ctx context.Context, tx Tx, after Line, n, heads int, rows *[]lifecycle.Task) (int, error) {
	lines, err := linesInTurns(ctx, tx, nextReadyLine, after, n)
	if err != nil || len(lines) == 0 {
		return 0, err
	}
	each := int64(max(1, heads/len(lines)))
	var list []Stmt
	for _, l := range lines {
		list = append(list, Stmt{Text: readyLine, Args: []any{l.Queue, int16(l.Class), l.Lane, each}, Scan: into(rows, scanReady)})
	}
	return len(lines), tx.Pipe(ctx, list...)
}

func queuedLinesInTurns(ctx context.Context, tx Tx, after Line, n, most, open int) ([]Line, error) {
	lines, err := linesInTurns(ctx, tx, nextQueuedLine, after, n)
	if err != nil {
		return nil, err
	}
	var list []Stmt
	for i := range lines {
		l := &lines[i]
		list = append(list, Stmt{Text: countLine, Args: []any{l.Queue, int16(l.Class), l.Lane, int64(most), int64(open)}, Scan: func(r driver.Row) error { return r.Scan(&l.Count) }})
	}
	return lines, tx.Pipe(ctx, list...)
}
