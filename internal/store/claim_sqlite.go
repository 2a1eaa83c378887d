package store

import (
	"context"
	"slices"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"

	"github.com/drover-dev/drover/internal/store/driver"
)

// The claim in turns: one writer needs no row locks, so the heads of the lanes
// are read, and each is moved by its key.
var (
	firstClass = driver.New("first class", "", "SELECT class FROM task_queued WHERE queue = $1 AND class > $2 ORDER BY queue, class LIMIT 1")
	nextLane   = driver.New("next lane", "", "SELECT lane FROM task_queued WHERE queue = $1 AND class = $2 AND lane > $3 ORDER BY queue, class, lane LIMIT 1")
	laneHeads  = driver.New("heads of a lane", "", "SELECT "+qualify("q", queuedCols)+", "+qualify("t", claimedCols)+
		" FROM task_queued q JOIN tasks t ON t.id = q.task_id WHERE q.queue = $1 AND q.class = $2 AND q.lane = $3 AND NOT EXISTS (SELECT 1 FROM job_holds h WHERE h.job_id = q.job_id AND h.kind < 3) ORDER BY q.due_at, q.task_id LIMIT $4")
	deleteQueued = driver.New("delete queued", "queue int, class smallint, lane int, due_at bigint, task_id uuid",
		"DELETE FROM task_queued {using} WHERE queue = {queue} AND class = {class} AND lane = {lane} AND due_at = {due_at} AND task_id = {task_id}")
)

func claimSQLite(ctx context.Context, tx Tx, c Claim) ([]Claimed, error) {
	list, err := claimInTurns(ctx, tx, c)
	if err == nil && c.Classes != nil && len(list) < c.Max {
		*c.Classes = nil
		err = tx.Pipe(ctx, queuedClassesOf(c.Queue, c.AfterClass, c.Classes))
	}
	return list, err
}

func claimInTurns(ctx context.Context, tx Tx, c Claim) ([]Claimed, error) {
	class, ok, err := one[int16](ctx, tx, firstClass, c.Queue, c.AfterClass)
	if err != nil || !ok {
		return nil, err
	}
	lanes, err := lanesOf(ctx, tx, c, class)
	if err != nil || len(lanes) == 0 {
		return nil, err
	}
	each := (c.Max + len(lanes) - 1) / len(lanes)
	var list []Claimed
	for _, lane := range lanes {
		err := tx.Pipe(ctx, Stmt{Text: laneHeads, Args: []any{c.Queue, class, lane, int64(min(each, c.Max-len(list)))}, Scan: into(&list, func(r driver.Row) (Claimed, error) {
			return scanLive(r, 0, func(x *taking, to []any) []any {
				return append(to, (*int64)(&x.ReadyAt), (*int64)(&x.QueuedAt), &x.Tenant, &x.Pipeline, &x.Kind, &x.Input, &x.Policy, &x.Trace)
			}, func(x *taking) Claimed { return x.Claimed })
		})})
		if err != nil {
			return nil, err
		}
		if len(list) >= c.Max {
			break
		}
	}
	type q = Claimed
	var gone int64
	remove := Stmt{Text: deleteQueued, Affected: &gone, Cols: []any{
		col(list, func(x *q) int32 { return x.Queue }), col(list, func(x *q) int16 { return int16(x.Class) }), col(list, func(x *q) int32 { return x.Lane }),
		col(list, func(x *q) int64 { return int64(x.DueAt) }), col(list, func(x *q) [16]byte { return [16]byte(x.ID) }),
	}}
	for i := range list {
		x := &list[i]
		x.Attempt++
		x.LeaseVersion++
		x.ClaimedAt = max(c.Now, x.QueuedAt) // another may have queued it since c.Now was read
		x.Since, x.Session, x.Task.Acquire, x.Status = x.ClaimedAt, c.Session, c.Acquire, drover.Running
	}
	add := Stmt{Text: insertRunning, Cols: append(columns(col(list, func(x *q) lifecycle.Task { return x.Task })),
		col(list, func(x *q) int64 { return int64(x.ReadyAt) }), col(list, func(x *q) int64 { return int64(x.QueuedAt) }), col(list, func(x *q) int64 { return int64(x.ClaimedAt) }),
		col(list, func(x *q) int64 { return x.Session }), col(list, func(x *q) int64 { return x.Task.Acquire }))}
	if err := tx.Pipe(ctx, remove, add); err != nil {
		return nil, err
	}
	if gone != int64(len(list)) {
		return nil, ErrRetry
	}
	return list, nil
}

// lanesOf returns the lanes of a class that have rows, in rotation from the cursor.
func lanesOf(ctx context.Context, tx Tx, c Claim, class int16) (lanes []int32, err error) {
	for _, part := range [][2]int32{{c.Cursor, 1<<31 - 1}, {-1, c.Cursor}} {
		for at := part[0]; len(lanes) < MaxLanes; {
			lane, ok, err := one[int32](ctx, tx, nextLane, c.Queue, class, at)
			if err != nil {
				return nil, err
			}
			if !ok || lane > part[1] {
				break
			}
			at = lane
			if c.Lanes == nil || slices.Contains(c.Lanes, lane) {
				lanes = append(lanes, lane)
			}
		}
	}
	return lanes, nil
}
