package store

import (
	"context"
	"strings"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store/driver"
)

// The bulk claim is the one transition made in SQL; a test holds it equal to
// lifecycle.Claimed. c is the first class, a and b skip over its lanes from the
// cursor on and around, pick takes the head of each lane.
// $1 queue $2 max $3 session $4 after class $5 cursor $6 lanes at most $7 now $8 acquire $9 lanes
const claimText = `WITH RECURSIVE c AS MATERIALIZED (SELECT q.class FROM task_queued q WHERE q.queue = $1 AND q.class > $4 ORDER BY q.queue, q.class LIMIT 1),
LANES
pick AS (SELECT p.at FROM ln, LATERAL (SELECT q.ctid AS at FROM task_queued q
    WHERE q.queue = $1 AND q.class = (SELECT class FROM c) AND q.lane = ln.lane AND NOT EXISTS (SELECT 1 FROM job_holds h WHERE h.job_id = q.job_id AND h.kind < 3)
    ORDER BY q.queue, q.class, q.lane, q.due_at, q.task_id LIMIT (SELECT ($2::bigint + count(*) - 1) / greatest(count(*), 1) FROM ln) FOR UPDATE OF q SKIP LOCKED) p LIMIT $2::bigint),
` + claimMoves

// claimMoves moves what was picked.
const claimMoves = `d AS (DELETE FROM task_queued q WHERE q.ctid = ANY (ARRAY(SELECT at FROM pick)) RETURNING q.*),
r AS (INSERT INTO task_running (` + runningCols + `)
  SELECT d.task_id, d.job_id, d.node, d.idx, d.queue, d.lane, d.class, d.generation, d.attempt + 1, d.losses, d.lease_version + 1, d.events, d.due_at, d.waits, d.ready_at, d.queued_at, greatest($7, d.queued_at), $3, $8 FROM d
  RETURNING ` + runningCols + `)
SELECT RETURNED, FOUND FROM r JOIN tasks t ON t.id = ANY (ARRAY[r.task_id]) ORDER BY r.due_at, r.task_id`

const skipLanes = `a(lane, k) AS (
  SELECT (SELECT q.lane FROM task_queued q WHERE q.queue = $1 AND q.class = (SELECT class FROM c) AND q.lane > $5 ORDER BY q.queue, q.class, q.lane LIMIT 1), 1
  UNION ALL
  SELECT (SELECT q.lane FROM task_queued q WHERE q.queue = $1 AND q.class = (SELECT class FROM c) AND q.lane > a.lane ORDER BY q.queue, q.class, q.lane LIMIT 1), a.k + 1 FROM a WHERE a.lane IS NOT NULL AND a.k < $6),
b(lane, k) AS (
  SELECT (SELECT q.lane FROM task_queued q WHERE q.queue = $1 AND q.class = (SELECT class FROM c) AND q.lane <= $5 ORDER BY q.queue, q.class, q.lane LIMIT 1), 1
  UNION ALL
  SELECT (SELECT q.lane FROM task_queued q WHERE q.queue = $1 AND q.class = (SELECT class FROM c) AND q.lane > b.lane AND q.lane <= $5 ORDER BY q.queue, q.class, q.lane LIMIT 1), b.k + 1 FROM b WHERE b.lane IS NOT NULL AND b.k < $6),
ln AS MATERIALIZED (SELECT lane FROM (SELECT lane FROM a UNION ALL SELECT lane FROM b) z WHERE lane IS NOT NULL LIMIT $6),`

// givenLanes keeps of the lanes named those that have a row of the class.
const givenLanes = `ln AS MATERIALIZED (SELECT u.lane FROM unnest($9::int[]) WITH ORDINALITY u(lane, o)
  WHERE EXISTS (SELECT 1 FROM task_queued q WHERE q.queue = $1 AND q.class = (SELECT class FROM c) AND q.lane = u.lane)
  ORDER BY (u.lane <= $5), u.lane LIMIT $6),`

// claimFloorText is the claim of one class from a place on in each of the lanes named.
// $1 queue $2 max $3 session $4 class $5 cursor $6 each $7 now $8 acquire $9 lanes $10 due_at $11 task_id
const claimFloorText = `WITH pick AS (SELECT p.at FROM (SELECT * FROM unnest($9::int[], $10::bigint[], $11::uuid[]) u(lane, due_at, task_id) ORDER BY (u.lane <= $5), u.lane) ln, LATERAL (SELECT q.ctid AS at FROM task_queued q
    WHERE q.queue = $1 AND q.class = $4 AND q.lane = ln.lane AND (q.due_at, q.task_id) >= (ln.due_at, ln.task_id) AND NOT EXISTS (SELECT 1 FROM job_holds h WHERE h.job_id = q.job_id AND h.kind < 3)
    ORDER BY q.queue, q.class, q.lane, q.due_at, q.task_id LIMIT $6::bigint FOR UPDATE OF q SKIP LOCKED) p LIMIT $2::bigint),
` + claimMoves

const lanesFound = "(SELECT count(*) FROM ln)"

func claimSQL(text, lanes, found string) string {
	text = strings.Replace(strings.Replace(text, "LANES", lanes, 1), "FOUND", found, 1)
	return strings.Replace(text, "RETURNED", qualify("r", runningCols)+", "+qualify("t", claimedCols), 1)
}

var (
	claimAny   = driver.New("claim", "", claimSQL(claimText, skipLanes, lanesFound))
	claimGiven = driver.New("claim of a tenant", "", claimSQL(claimText, givenLanes, lanesFound))
	claimFloor = driver.New("claim from floors", "", claimSQL(claimFloorText, "", "0::bigint"))
	// A claim sees the holds there were when it began. One that was committed since,
	// before the claim came to the job's rows, is seen by the statement after it; one
	// that is not committed waits for the rows, which the claim has.
	heldMeanwhile = driver.New("claimed tasks that were held meanwhile", "",
		"WITH h AS MATERIALIZED (SELECT job_id FROM job_holds WHERE at > $1 AND kind < 3) "+ // few; a session may run thousands
			"SELECT r.task_id FROM h, LATERAL (SELECT x.task_id, x.session_id, x.acquire_no FROM task_running x WHERE x.job_id = h.job_id OFFSET 0) r WHERE r.session_id = $2 AND r.acquire_no = $3")
)

// holdTime is longer than a transaction that holds a job: a hold bears the time
// at which its began.
const holdTime = time.Minute

func claimPostgres(ctx context.Context, tx Tx, c Claim) (list []Claimed, err error) {
	args := []any{c.Queue, int64(c.Max), c.Session, c.AfterClass, c.Cursor, int32(MaxLanes), int64(c.Now), c.Acquire}
	text := claimAny
	switch n := int64(len(c.Floors)); {
	case n > 0:
		text = claimFloor
		list = make([]Claimed, 0, c.Max) // where there is a floor there are many, mostly
		args = []any{c.Queue, int64(c.Max), c.Session, int16(c.Class), c.Cursor, (int64(c.Max) + n - 1) / n, int64(c.Now), c.Acquire,
			col(c.Floors, func(f *Floor) int32 { return f.Lane }), col(c.Floors, func(f *Floor) int64 { return int64(f.Due) }), col(c.Floors, func(f *Floor) [16]byte { return f.Task })}
	case c.Lanes != nil:
		text, args = claimGiven, append(args, c.Lanes)
	}
	held := map[drover.TaskID]bool{}
	var found int64
	all := []Stmt{{Text: text, Args: args, Scan: into(&list, func(r driver.Row) (Claimed, error) { return scanClaimed(r, &found) })},
		{Text: heldMeanwhile, Args: []any{int64(c.Now.Add(-holdTime)), c.Session, c.Acquire}, Scan: func(r driver.Row) error {
			var id drover.TaskID
			err := r.Scan((*[16]byte)(&id))
			held[id] = true
			return err
		}}}
	if c.Classes != nil {
		*c.Classes = nil
		all = append(all, queuedClassesOf(c.Queue, c.AfterClass, c.Classes))
	}
	err = tx.Pipe(ctx, all...)
	if c.Found != nil {
		*c.Found = max(*c.Found, found)
	}
	for i := range list {
		list[i].Held = held[list[i].ID]
	}
	return list, err
}
