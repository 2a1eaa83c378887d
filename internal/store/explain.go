package store

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store/driver"
)

const (
	// MaxPlace is up to where a place in a line is told.
	MaxPlace = 1000
	// MaxAhead is up to where those ahead are counted for a forecast.
	MaxAhead = 10_000
)

// LinePlace is a row's place in task_queued or task_ready.
type LinePlace struct {
	Queue, Lane int32
	Class       drover.Class
	Due         instant
	Task        drover.TaskID
}

// lineTexts are the statements about one of the tables that lines stand in.
type lineTexts struct{ above, lanes, before, behind, lines, count *driver.Text }

func textsOf(table string) lineTexts {
	const line = "x.class * 4294967296 + x.lane" // one number, as a recursion that ends has one column
	nextLine := func(after string) string {
		return "(SELECT " + line + " FROM " + table + " x WHERE x.queue = $1 AND x.lane <> 0" + after + " ORDER BY x.queue, x.class, x.lane LIMIT 1)"
	}
	return lineTexts{
		above: driver.New("count of classes above in "+table, "",
			"SELECT coalesce(min(q.class), 0), count(*) FROM (SELECT x.class FROM "+table+" x WHERE x.queue = $1 AND x.class < $2 AND x.lane <> 0 ORDER BY x.queue, x.class LIMIT $3) q"),
		lanes: driver.New("lanes of a class in "+table, "",
			"WITH RECURSIVE c(lane, k) AS (SELECT (SELECT q.lane FROM "+table+" q WHERE q.queue = $1 AND q.class = $2 AND q.lane > 0 ORDER BY q.queue, q.class, q.lane LIMIT 1), 1 "+
				"UNION ALL SELECT (SELECT q.lane FROM "+table+" q WHERE q.queue = $1 AND q.class = $2 AND q.lane > c.lane ORDER BY q.queue, q.class, q.lane LIMIT 1), c.k + 1 FROM c WHERE c.lane IS NOT NULL AND c.k < $3) "+
				"SELECT lane FROM c WHERE lane IS NOT NULL"),
		before: driver.New("count before a place in "+table, "",
			"SELECT count(*) FROM (SELECT 1 FROM "+table+" x WHERE x.queue = $1 AND x.class = $2 AND x.lane = $3 AND (x.due_at, x.task_id) < ($4, $5) ORDER BY x.due_at, x.task_id LIMIT $6) q"),
		behind: driver.New("count of lanes in "+table, "lane int, n int",
			"SELECT {lane}, count(*) FROM {rows} JOIN {pg:LATERAL} (SELECT 1 FROM "+table+" x WHERE x.queue = $1 AND x.class = $2 AND x.lane = {lane} LIMIT {n}) q ON 1 = 1 GROUP BY 1"),
		lines: driver.New("lines of a queue in "+table, "",
			"WITH RECURSIVE c(line, k) AS (SELECT "+nextLine("")+", 1 UNION ALL SELECT "+nextLine(" AND (x.class, x.lane) > (c.line / 4294967296, c.line % 4294967296)")+", c.k + 1 FROM c WHERE c.line IS NOT NULL AND c.k < $2) "+
				"SELECT line FROM c WHERE line IS NOT NULL"),
		count: driver.New("count of lines of "+table, "queue int, class smallint, lane int, n int",
			"SELECT {queue}, {class}, {lane}, count(*), min(q.ready_at) FROM {rows} JOIN {pg:LATERAL} (SELECT x.ready_at FROM "+table+" x WHERE x.lane <> 0 AND x.queue = {queue} AND x.class = {class} AND x.lane = {lane} "+
				"ORDER BY x.queue, x.class, x.lane, x.due_at, x.task_id LIMIT {n}) q ON 1 = 1 GROUP BY 1, 2, 3"),
	}
}

var (
	readyTexts  = textsOf("task_ready")
	queuedTexts = textsOf("task_queued")
)

func lineOf(s drover.Status) lineTexts {
	if s == drover.Ready {
		return readyTexts
	}
	return queuedTexts
}

// Beside is what stands in a queue beside a task.
type Beside struct {
	// Above counts those of classes that go first, of which First is the first.
	Above int64
	First drover.Class
	// Before counts those of the task's own lane that go first.
	Before int64
	// Lanes are those of the class that have rows, up to MaxLanes.
	Lanes []int32
}

// ReadLine reads what goes before a READY or QUEUED task. Counts end at n.
func ReadLine(status drover.Status, p LinePlace, n int, line *Beside) []Stmt {
	t := lineOf(status)
	return []Stmt{
		{Text: t.above, Args: []any{p.Queue, int16(p.Class), int64(n)}, Scan: func(r driver.Row) error { return r.Scan((*int16)(&line.First), &line.Above) }},
		{Text: t.before, Args: []any{p.Queue, int16(p.Class), p.Lane, int64(p.Due), [16]byte(p.Task), int64(n)}, Scan: func(r driver.Row) error { return r.Scan(&line.Before) }},
		{Text: t.lanes, Args: []any{p.Queue, int16(p.Class), int32(MaxLanes)}, Scan: into(&line.Lanes, scanInt32)},
	}
}

// CountLanes counts the rows of a class by lane, each up to n.
func CountLanes(status drover.Status, queue int32, class drover.Class, lanes []int32, n int32, counts map[int32]int64) Stmt {
	ns := make([]int32, len(lanes))
	for i := range ns {
		ns[i] = n
	}
	return Stmt{Text: lineOf(status).behind, Args: []any{queue, int16(class)}, Cols: []any{lanes, ns}, Scan: func(r driver.Row) error {
		var lane int32
		var k int64
		err := r.Scan(&lane, &k)
		counts[lane] = k
		return err
	}}
}

// linesOfQueue reads up to n of the lines of a queue that are not held.
func linesOfQueue(t lineTexts, queue int32, n int, lines *[]Line) Stmt {
	return Stmt{Text: t.lines, Args: []any{queue, int32(n)}, Scan: func(r driver.Row) error {
		var line int64
		err := r.Scan(&line)
		*lines = append(*lines, Line{Queue: queue, Class: drover.Class(line >> 32), Lane: int32(line)})
		return err
	}}
}

// countLines counts the rows of lines, each up to n, and tells since when the first of
// these are ready.
func countLines(t lineTexts, lines []Line, n int32, scan func(Line, instant)) Stmt {
	return Stmt{Text: t.count, Cols: []any{
		col(lines, func(l *Line) int32 { return l.Queue }), col(lines, func(l *Line) int16 { return int16(l.Class) }), col(lines, func(l *Line) int32 { return l.Lane }), col(lines, func(*Line) int32 { return n }),
	}, Scan: func(r driver.Row) error {
		var l Line
		var since instant
		err := r.Scan(&l.Queue, (*int16)(&l.Class), &l.Lane, &l.Count, (*int64)(&since))
		scan(l, since)
		return err
	}}
}

// CountReady counts the rows of lines of task_ready, each up to n.
func CountReady(lines []Line, n int32, counts map[LineKey]int64) Stmt {
	return countLines(lineOf(drover.Ready), lines, n, func(l Line, _ instant) { counts[LineKey{Lane: l.Lane, Class: l.Class}] = l.Count })
}

var sessionHolders = driver.New("what sessions run", "id bigint",
	fmt.Sprintf("SELECT q.session_id, q.task_id, q.job_id, q.lane, q.claimed_at FROM {rows} JOIN {pg:LATERAL} (SELECT r.session_id, r.task_id, r.job_id, r.lane, r.claimed_at FROM task_running r WHERE r.session_id = {id} ORDER BY r.session_id, r.task_id LIMIT %d) q ON 1 = 1", MaxHolders))

// MaxHolders is how many of what a session runs are looked at.
const MaxHolders = 256

// RunningOf is a running task of a session.
type RunningOf struct {
	Session   int64
	Task      drover.TaskID
	Job       drover.JobID
	Lane      int32
	ClaimedAt instant
}

// SessionHolders reads what sessions run, up to MaxHolders of each.
func SessionHolders(sessions []int64, rows *[]RunningOf) Stmt {
	return Stmt{Text: sessionHolders, Cols: []any{sessions}, Scan: into(rows, func(r driver.Row) (h RunningOf, err error) {
		err = r.Scan(&h.Session, (*[16]byte)(&h.Task), (*[16]byte)(&h.Job), &h.Lane, (*int64)(&h.ClaimedAt))
		return h, err
	})}
}

// RunningAmong reads those of tasks that run.
func RunningAmong(ids []drover.TaskID, rows *[]lifecycle.Task) Stmt {
	return Stmt{Text: viewRunning, Cols: taskIDs(ids), Scan: into(rows, scanRunning)}
}

// What waits, counted by line, up to so many rows.
func countWaiting(table, key, cols, since string) *driver.Text {
	return driver.New("count "+table+" by lane", "",
		"SELECT q.queue, q.class, q.lane, q.status, count(*), min(q.since) FROM (SELECT "+cols+", "+since+" AS since FROM "+table+" x ORDER BY "+qualify("x", key)+" LIMIT $1) q GROUP BY q.queue, q.class, q.lane, q.status")
}

var waitTexts = []*driver.Text{
	countWaiting("task_pending", "job_id, node, idx", "x.queue, x.class, x.lane, CASE WHEN x.due_at > 0 AND x.unmet = 0 THEN 2 ELSE 1 END AS status", "x.since"),
	countWaiting("task_ready", "queue, class, lane, due_at, task_id", "x.queue, x.class, x.lane, 3 AS status", "CASE WHEN x.lane = 0 THEN x.since ELSE x.ready_at END"),
	countWaiting("task_queued", "queue, class, lane, due_at, task_id", "x.queue, x.class, x.lane, 4 AS status", "x.ready_at"),
	countWaiting("task_delayed", "due_at, task_id", "x.queue, x.class, x.lane, CASE x.status WHEN 1 THEN 2 WHEN 7 THEN 8 ELSE 5 END AS status", "x.since"),
}

// heldLines has the rows of paused jobs, and of elements that wait for a place in their
// map, which stand in a lane of their own, by the tenant that their job tells.
var heldLines = driver.New("count held tasks by tenant", "",
	"SELECT q.kind, q.queue, j.tenant, count(*), min(q.since) FROM (SELECT CASE WHEN x.ready_at = 0 THEN 7 ELSE 6 END AS kind, x.queue, x.job_id, x.since FROM task_ready x WHERE x.lane = 0 LIMIT $1) q JOIN jobs j ON j.id = q.job_id GROUP BY q.kind, q.queue, j.tenant")

// WaitKind is what a line's tasks stand as.
type WaitKind int16

// The kinds.
const (
	WaitsForParents WaitKind = 1
	WaitsForTime    WaitKind = 2
	WaitsReady      WaitKind = 3
	WaitsQueued     WaitKind = 4
	WaitsForRetry   WaitKind = 5
	WaitsHeld       WaitKind = 6 // READY, of a job that is paused; Tenant is set instead of Lane
	WaitsForChild   WaitKind = 8
	WaitsInLine     WaitKind = 7 // READY, for a place among its map's max_parallel; Tenant is set instead of Lane
)

// WaitLine is how many tasks of a lane and class wait in the same way.
type WaitLine struct {
	Kind        WaitKind
	Queue, Lane int32
	Tenant      int32 // of WaitsHeld, WaitsInLine
	Class       drover.Class
	N           int64
	More        bool    // there are more than N, or others beside it that are not counted
	Since       instant // of the first
}

// linesCounted are how many lines are counted one by one, when there is too much to
// count it all.
const linesCounted = 4096

// WaitLines counts everything that waits, up to most rows of each table. Where there
// are more that are READY or QUEUED, each line of each queue is counted by itself up to
// its part of that: none is hidden by others before it, unless a queue has more lines than
// its part of linesCounted. Of the others only the first rows are counted.
func WaitLines(ctx context.Context, tx Tx, most int, rows *[]WaitLine) error {
	var kept [5][]WaitLine // of waitTexts and heldLines
	var sums [5]int64
	var list []Stmt
	for i, text := range waitTexts {
		list = append(list, Stmt{Text: text, Args: []any{int64(most) + 1}, Scan: func(r driver.Row) error {
			var w WaitLine
			var kind int32
			if err := r.Scan(&w.Queue, (*int16)(&w.Class), &w.Lane, &kind, &w.N, (*int64)(&w.Since)); err != nil {
				return err
			}
			w.Kind = WaitKind(kind)
			if sums[i] += w.N; w.Kind != WaitsReady || w.Lane != lifecycle.HeldLane { // heldLines has them
				kept[i] = append(kept[i], w)
			}
			return nil
		}})
	}
	const held = 4
	list = append(list, Stmt{Text: heldLines, Args: []any{int64(most) + 1}, Scan: func(r driver.Row) error {
		var w WaitLine
		err := r.Scan((*int16)(&w.Kind), &w.Queue, &w.Tenant, &w.N, (*int64)(&w.Since))
		sums[held] += w.N
		kept[held] = append(kept[held], w)
		return err
	}})
	if err := tx.Pipe(ctx, list...); err != nil {
		return err
	}
	for i := range kept {
		if sums[i] <= int64(most) {
			continue
		}
		var err error
		switch i {
		case 1:
			kept[i], err = lineByLine(ctx, tx, lineOf(drover.Ready), WaitsReady, most)
		case 2:
			kept[i], err = lineByLine(ctx, tx, lineOf(drover.Queued), WaitsQueued, most)
		default:
			for k := range kept[i] {
				kept[i][k].More = true
			}
		}
		if err != nil {
			return err
		}
	}
	*rows = slices.Concat(kept[:]...)
	return nil
}

// lineByLine counts the lines of a table, queue by queue: each up to its part of so many
// rows, and those that have more again with what the others left.
func lineByLine(ctx context.Context, tx Tx, t lineTexts, kind WaitKind, rows int) ([]WaitLine, error) {
	queues, err := QueueNames(ctx, tx)
	if err != nil || len(queues) == 0 {
		return nil, err
	}
	ids := slices.Sorted(maps.Keys(queues))
	most := max(64, linesCounted/len(ids))
	found := make([][]Line, len(ids))
	var list []Stmt
	for i, id := range ids {
		list = append(list, linesOfQueue(t, id, most+1, &found[i]))
	}
	if err := tx.Pipe(ctx, list...); err != nil {
		return nil, err
	}
	counted := map[LineKey]WaitLine{}
	var lines []Line
	others := map[int32]bool{} // queues of which not every line is counted
	for i, id := range ids {
		others[id] = len(found[i]) > most
		lines = append(lines, found[i][:min(len(found[i]), most)]...)
	}
	left := int64(rows) / 2
	for round := 0; round < 2 && len(lines) > 0; round++ {
		n := max(1, left/int64(len(lines)))
		left = int64(rows)
		err := tx.Pipe(ctx, countLines(t, lines, int32(n)+1, func(l Line, since instant) {
			counted[LineKey{Lane: l.Lane, Class: l.Class}] = WaitLine{Kind: kind, Queue: l.Queue, Lane: l.Lane, Class: l.Class, N: min(l.Count, n), More: l.Count > n, Since: since}
		}))
		if err != nil {
			return nil, err
		}
		for _, w := range counted {
			if !w.More {
				left -= w.N
			}
		}
		lines = slices.DeleteFunc(lines, func(l Line) bool { return !counted[LineKey{Lane: l.Lane, Class: l.Class}].More })
	}
	out := make([]WaitLine, 0, len(counted))
	for _, w := range counted {
		w.More = w.More || others[w.Queue]
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b WaitLine) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Class, b.Class), cmp.Compare(a.Lane, b.Lane))
	})
	return out, nil
}

var (
	jobPauses = driver.New("when a job was paused", "",
		"SELECT e.type, e.at FROM events e WHERE e.job_id = $1 AND e.type IN ('"+string(drover.JobPaused)+"', '"+string(drover.JobResumed)+"') ORDER BY e.seq LIMIT 1000")
	readStats = driver.New("read statistics of kinds", "", "SELECT s.queue, s.tenant, s.kind, s.at, s.data FROM kind_stats s WHERE s.at > $1 ORDER BY s.at DESC LIMIT $2")
	makeStats = driver.New("make statistics of kinds", "queue int, tenant int, kind text",
		"INSERT INTO kind_stats (queue, tenant, kind, at, data) SELECT {queue}, {tenant}, {kind}, 0, {pg:''::bytea}{lite:x''} {from} WHERE true ON CONFLICT (queue, tenant, kind) DO NOTHING")
	lockStats = driver.New("lock statistics of kinds", "queue int, tenant int, kind text",
		"SELECT s.queue, s.tenant, s.kind, s.at, s.data FROM {rows} JOIN kind_stats s ON s.queue = {queue} AND s.tenant = {tenant} AND s.kind = {kind} ORDER BY s.queue, s.tenant, s.kind {for update of s}")
	setStats = driver.New("store statistics of kinds", "queue int, tenant int, kind text, at bigint, data bytea",
		"INSERT INTO kind_stats (queue, tenant, kind, at, data) SELECT {queue}, {tenant}, {kind}, {at}, {data} {from} WHERE true ON CONFLICT (queue, tenant, kind) DO UPDATE SET at = excluded.at, data = excluded.data")
)

// Pause is a time at which a job was paused or resumed.
type Pause struct {
	At     instant
	Paused bool
}

// JobPauses reads when a job was paused and resumed.
func JobPauses(job drover.JobID, rows *[]Pause) Stmt {
	return Stmt{Text: jobPauses, Args: []any{[16]byte(job)}, Scan: into(rows, func(r driver.Row) (p Pause, err error) {
		var typ string
		err = r.Scan(&typ, (*int64)(&p.At))
		p.Paused = typ == string(drover.JobPaused)
		return p, err
	})}
}

// KindKey names what the statistics are kept of.
type KindKey struct {
	Queue, Tenant int32
	Kind          string
}

// KindStats is a row of kind_stats.
type KindStats struct {
	KindKey
	At   instant
	Data []byte
}

func scanStats(r driver.Row) (s KindStats, err error) {
	err = r.Scan(&s.Queue, &s.Tenant, &s.Kind, (*int64)(&s.At), &s.Data)
	return s, err
}

func kindKeys[T any](rows []T, key func(*T) *KindKey) []any {
	return []any{col(rows, func(x *T) int32 { return key(x).Queue }), col(rows, func(x *T) int32 { return key(x).Tenant }), col(rows, func(x *T) string { return key(x).Kind })}
}

// ReadStats reads up to n of what was stored after a time, the newest first.
func ReadStats(after instant, n int, rows *[]KindStats) Stmt {
	return Stmt{Text: readStats, Args: []any{int64(after), int64(n)}, Scan: into(rows, scanStats)}
}

// LockStats makes those of the keys that are not there yet, then locks and reads all.
// The keys must be sorted: of two servers one waits for the other.
func LockStats(keys []KindKey, rows *[]KindStats) []Stmt {
	cols := kindKeys(keys, func(k *KindKey) *KindKey { return k })
	return []Stmt{{Text: makeStats, Cols: cols}, {Text: lockStats, Cols: cols, Scan: into(rows, scanStats)}}
}

// SetStats stores them.
func SetStats(rows []KindStats) Stmt {
	return Stmt{Text: setStats, Cols: append(kindKeys(rows, func(s *KindStats) *KindKey { return &s.KindKey }),
		col(rows, func(s *KindStats) int64 { return int64(s.At) }), col(rows, func(s *KindStats) []byte { return s.Data }))}
}
