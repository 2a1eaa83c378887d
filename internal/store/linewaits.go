package store

import (
	"fmt"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store/driver"
)

// MaxSpans is how many changes of a line are looked back at.
const MaxSpans = 1000

var (
	readLineWaits = driver.New("read what lines waited for", "lane int, class smallint",
		fmt.Sprintf("SELECT {lane}, {class}, q.since, q.why FROM {rows} JOIN {pg:LATERAL} (SELECT w.since, w.why FROM line_waits w WHERE w.lane = {lane} AND w.class = {class} ORDER BY w.since DESC LIMIT %d) q ON 1 = 1 ORDER BY 1, 2, 3", MaxSpans))
	addLineWaits = driver.New("note what lines wait for", "lane int, class smallint, since bigint, why smallint",
		"INSERT INTO line_waits (lane, class, since, why) SELECT {lane}, {class}, {since}, {why} {from} WHERE true ON CONFLICT (lane, class, since) DO UPDATE SET why = excluded.why")
)

// LineKey names a line.
type LineKey struct {
	Lane  int32
	Class drover.Class
}

// LineWait is a row of line_waits.
type LineWait struct {
	LineKey
	lifecycle.Span
}

func lineKeys[T any](rows []T, key func(*T) LineKey) []any {
	return []any{col(rows, func(x *T) int32 { return key(x).Lane }), col(rows, func(x *T) int16 { return int16(key(x).Class) })}
}

// ReadLineWaits reads the last changes of lines, in order; a line without any is left out.
func ReadLineWaits(lines []LineKey, spans map[LineKey]lifecycle.Spans) Stmt {
	return Stmt{Text: readLineWaits, Cols: lineKeys(lines, func(k *LineKey) LineKey { return *k }), Scan: func(r driver.Row) error {
		var w LineWait
		var why int16
		err := r.Scan(&w.Lane, (*int16)(&w.Class), (*int64)(&w.From), &why)
		w.Why = lifecycle.Reason(why)
		spans[w.LineKey] = append(spans[w.LineKey], w.Span)
		return err
	}}
}

// AddLineWaits notes what lines wait for from now on.
func AddLineWaits(rows []LineWait) Stmt {
	return Stmt{Text: addLineWaits, Cols: append(lineKeys(rows, func(w *LineWait) LineKey { return w.LineKey }),
		col(rows, func(w *LineWait) int64 { return int64(w.From) }), col(rows, func(w *LineWait) int16 { return int16(w.Why) }))}
}
