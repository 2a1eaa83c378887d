package store

import (
	"context"

	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store/driver"
)

// skipLines goes from one line of a table to the next, from after $1 $2 $3 on, to $4 of them.
func skipLines(table, where string) string {
	next := func(key string) string {
		return "SELECT r.queue, r.class, r.lane FROM " + table + " r WHERE " + where + "(r.queue, r.class, r.lane) > (" + key + ") ORDER BY r.queue, r.class, r.lane LIMIT 1"
	}
	return "WITH RECURSIVE ln(queue, class, lane, k) AS (SELECT x.queue, x.class, x.lane, 1 FROM (" + next("$1::int, $2::smallint, $3::int") + ") x " +
		"UNION ALL SELECT n.queue, n.class, n.lane, ln.k + 1 FROM ln, LATERAL (" + next("ln.queue, ln.class, ln.lane") + ") n WHERE ln.k < $4::int) "
}

var (
	readyHeads = driver.New("heads of ready lines", "", skipLines("task_ready", "r.lane <> 0 AND ")+
		"SELECT "+qualify("h", readyCols)+" FROM ln, LATERAL (SELECT * FROM task_ready r WHERE r.lane <> 0 AND r.queue = ln.queue AND r.class = ln.class AND r.lane = ln.lane "+
		"ORDER BY r.queue, r.class, r.lane, r.due_at, r.task_id LIMIT greatest(1, $5::bigint / (SELECT count(*) FROM ln))) h ORDER BY h.queue, h.class, h.lane, h.due_at, h.task_id")
	queuedLines = driver.New("lines of queued", "", skipLines("task_queued", "")+
		"SELECT ln.queue, ln.class, ln.lane, (SELECT count(*) FROM (SELECT 1 FROM task_queued q WHERE q.queue = ln.queue AND q.class = ln.class AND q.lane = ln.lane ORDER BY q.queue, q.class, q.lane, q.due_at, q.task_id "+
		"LIMIT CASE WHEN l.stage = 1 THEN $5::bigint ELSE $6::bigint END) z) FROM ln LEFT JOIN lanes l ON l.id = ln.lane ORDER BY 1, 2, 3")
)

// ReadyHeads reads the first rows of up to lines lines of task_ready that follow after
// one: about heads in all, at least one of each. It tells how many lines it saw.
func ReadyHeads(ctx context.Context, tx Tx, d driver.Dialect, after Line, lines, heads int, rows *[]lifecycle.Task) (int, error) {
	if d == driver.SQLite {
		return readyHeadsInTurns(ctx, tx, after, lines, heads, rows)
	}
	if err := tx.Pipe(ctx, Stmt{Text: readyHeads, Args: []any{after.Queue, int16(after.Class), after.Lane, int32(lines), int64(heads)}, Scan: into(rows, scanReady)}); err != nil {
		return 0, err
	}
	seen := map[Line]bool{}
	for i := range *rows {
		t := &(*rows)[i]
		seen[Line{Queue: t.Queue, Class: t.Class, Lane: t.Lane}] = true
	}
	return len(seen), nil
}

// linesAtOnce bounds the lines that QueuedLines reads by a statement.
const linesAtOnce = 4096

// QueuedLines reads every line of task_queued, and how many stand in each: up to most
// in lanes of stage 1, up to open in others, of which there may be a whole backlog.
func QueuedLines(ctx context.Context, tx Tx, d driver.Dialect, most, open int, lines *[]Line) error {
	after := Line{Queue: -1, Class: -1, Lane: -1}
	for {
		var page []Line
		var err error
		if d == driver.SQLite {
			page, err = queuedLinesInTurns(ctx, tx, after, linesAtOnce, most, open)
		} else {
			err = tx.Pipe(ctx, Stmt{Text: queuedLines, Args: []any{after.Queue, int16(after.Class), after.Lane, int32(linesAtOnce), int64(most), int64(open)}, Scan: into(&page, func(r driver.Row) (l Line, err error) {
				err = r.Scan(&l.Queue, (*int16)(&l.Class), &l.Lane, &l.Count)
				return l, err
			})})
		}
		if err != nil {
			return err
		}
		if *lines = append(*lines, page...); len(page) < linesAtOnce {
			return nil
		}
		after = page[len(page)-1]
	}
}
