package store

import (
	"fmt"

	"github.com/drover-dev/drover/internal/store/driver"
)

// MaxCount is where counts of tasks stop.
const MaxCount = 100_000

var oneMore = fmt.Sprintf(" LIMIT %d", MaxCount+1)

// countQueue counts by lane and reads one row more than is counted. Rows of lane 0
// stand there because their job is paused: their age says nothing of the queue.
func countQueue(table string) *driver.Text {
	return driver.New("count "+table+" by queue", "id int",
		"SELECT {id}, q.lane, count(*), coalesce(min(CASE WHEN q.lane <> 0 THEN q.ready_at END), 0) FROM {rows} JOIN {pg:LATERAL} "+
			"(SELECT x.lane, x.ready_at FROM "+table+" x WHERE x.queue = {id} ORDER BY x.queue, x.class, x.lane, x.due_at, x.task_id"+oneMore+") q ON 1 = 1 GROUP BY 1, 2")
}

var (
	queueReady   = countQueue("task_ready")
	queueQueued  = countQueue("task_queued")
	queueRunning = driver.New("count task_running by queue", "", "SELECT q.queue, count(*) FROM (SELECT x.queue FROM task_running x ORDER BY x.task_id"+oneMore+") q GROUP BY q.queue")
	queueDelayed = driver.New("count task_delayed by queue", "", "SELECT q.queue, count(*) FROM (SELECT x.queue FROM task_delayed x ORDER BY x.due_at, x.task_id"+oneMore+") q GROUP BY q.queue")
	sessionLoads = driver.New("count a session's running", "id bigint", "SELECT {id}, count(r.queue) FROM {rows} JOIN task_running r ON r.session_id = {id} GROUP BY 1")
)

// QueueCount is what stands in a queue. Counts above MaxCount stop there.
type QueueCount struct {
	Ready, Queued, Running, Delayed int64
	// OldestAt is since when the first of the READY and QUEUED ones waits; 0 is none.
	OldestAt instant
	// Lanes are those in which READY and QUEUED ones wait, but of paused jobs; they may be there twice.
	Lanes []int32
}

// QueueCounts counts the tasks of queues, of all tenants. Running and delayed
// ones are counted together up to MaxCount: capped says that there are more.
func QueueCounts(queues []int32, counts map[int32]*QueueCount, capped *bool) []Stmt {
	at := func(queue int32) *QueueCount {
		if counts[queue] == nil {
			counts[queue] = &QueueCount{}
		}
		return counts[queue]
	}
	waiting := func(field func(*QueueCount) *int64) func(driver.Row) error {
		return func(r driver.Row) error {
			var queue, lane int32
			var n int64
			var oldest instant
			if err := r.Scan(&queue, &lane, &n, (*int64)(&oldest)); err != nil {
				return err
			}
			q := at(queue)
			*field(q) += n
			if lane != 0 {
				q.Lanes = append(q.Lanes, lane)
			}
			if oldest > 0 && (q.OldestAt == 0 || oldest < q.OldestAt) {
				q.OldestAt = oldest
			}
			return nil
		}
	}
	all := func(field func(*QueueCount) *int64) func(driver.Row) error {
		var total int64
		return func(r driver.Row) error {
			var queue int32
			var n int64
			err := r.Scan(&queue, &n)
			*field(at(queue)) = n
			if total += n; total > MaxCount {
				*capped = true
			}
			return err
		}
	}
	return []Stmt{
		{Text: queueReady, Cols: []any{queues}, Scan: waiting(func(q *QueueCount) *int64 { return &q.Ready })},
		{Text: queueQueued, Cols: []any{queues}, Scan: waiting(func(q *QueueCount) *int64 { return &q.Queued })},
		{Text: queueRunning, Scan: all(func(q *QueueCount) *int64 { return &q.Running })},
		{Text: queueDelayed, Scan: all(func(q *QueueCount) *int64 { return &q.Delayed })},
	}
}

// SessionLoads counts what sessions run.
func SessionLoads(sessions []int64, loads map[int64]int64) Stmt {
	return Stmt{Text: sessionLoads, Cols: []any{sessions}, Scan: func(r driver.Row) error {
		var id, n int64
		err := r.Scan(&id, &n)
		loads[id] = n
		return err
	}}
}
