package store

import (
	"context"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/reconcile"
	"github.com/drover-dev/drover/internal/store/driver"
)

var (
	// By its words none of it can be looked up but by job: LIMIT 1 OFFSET 0, lane + 0 and
	// ANY keep the planner from reading tables in another order that it believes empty.
	summaries = driver.New("look at jobs in turn", "", "SELECT j.id, j.pipeline, (SELECT count(*) FROM task_pending q WHERE q.job_id = j.id), (SELECT count(*) FROM task_ready q WHERE q.job_id = j.id), "+
		"(SELECT count(*) FROM task_ready q WHERE q.job_id = j.id AND q.lane = 0 AND q.ready_at > 0), (SELECT count(*) FROM task_queued q WHERE q.job_id = j.id), (SELECT count(*) FROM task_running q WHERE q.job_id = j.id), "+
		"(SELECT count(*) FROM task_delayed q WHERE q.job_id = j.id), (SELECT count(*) FROM task_queued q WHERE q.job_id = j.id AND NOT EXISTS (SELECT 1 FROM lanes n WHERE n.id = q.lane AND n.queue = q.queue LIMIT 1 OFFSET 0)) + "+
		"(SELECT count(*) FROM task_ready q WHERE q.job_id = j.id AND q.lane + 0 <> 0 AND NOT EXISTS (SELECT 1 FROM lanes n WHERE n.id = q.lane AND n.queue = q.queue LIMIT 1 OFFSET 0)), "+
		"coalesce(l.total, -1), coalesce(l.open, 0), coalesce(l.succeeded, 0), coalesce(l.failed, 0), coalesce(l.cancelled, 0), coalesce(l.skipped, 0), coalesce(l.paused, 0), coalesce(l.cancelling, 0), "+
		"coalesce((SELECT max(f.run) FROM job_final f WHERE f.job_id = j.id), 0), coalesce((SELECT max(e.seq) FROM events e WHERE e.job_id = j.id), 0) - coalesce((SELECT max(f.events) FROM job_final f WHERE f.job_id = j.id), 0), coalesce((SELECT sum(CASE h.kind WHEN 1 THEN 1 WHEN 2 THEN 4 ELSE 2 END) FROM job_holds h WHERE h.job_id = j.id), 0), "+
		"(SELECT count(*) FROM task_ready q WHERE q.job_id = j.id AND q.lane = 0 AND q.ready_at = 0), coalesce((SELECT sum(m.waiting) FROM map_live m WHERE m.job_id = j.id), 0), "+
		"CASE WHEN EXISTS (SELECT 1 FROM map_live m WHERE m.job_id = j.id AND m.waiting > 0 AND (m.running < m.most OR m.running > (SELECT count(*) FROM task_queued q WHERE q.job_id = j.id AND q.node = m.node) + "+
		"(SELECT count(*) FROM task_running q WHERE q.job_id = j.id AND q.node = m.node) + (SELECT count(*) FROM task_delayed q WHERE q.job_id = j.id AND q.node = m.node) + "+
		"(SELECT count(*) FROM task_ready q WHERE q.job_id = j.id AND q.node = m.node AND NOT (q.lane = 0 AND q.ready_at = 0)))) THEN 1 ELSE 0 END "+
		"FROM (SELECT id, pipeline FROM jobs WHERE id > $1 ORDER BY id LIMIT $2) j LEFT JOIN job_live l ON l.job_id = {pg:ANY(ARRAY[}j.id{pg:])} ORDER BY j.id")

	recordTasks  = driver.New("records of a job: tasks", "", "SELECT t.id, t.node, t.idx, t.queue, "+homeLane+", t.class, t.created_at FROM tasks t WHERE t.job_id = $1 ORDER BY t.node, t.idx")
	recordTries  = driver.New("records of a job: attempts", "", "SELECT a.task_id, a.generation, a.n, a.lease_version, a.outcome FROM tasks t JOIN attempts a ON a.task_id = t.id WHERE t.job_id = $1")
	recordEvents = driver.New("records of a job: events", "", "SELECT e.type, e.at, e.task_id, e.data FROM events e WHERE e.job_id = $1 AND e.type IN ('task.replayed', 'task.expanded', 'job.reopened', 'job.rerun', 'task.marked') ORDER BY e.seq")
	newestEvent  = driver.New("number of a job's newest event", "", "SELECT coalesce(max(e.seq), 0) FROM events e WHERE e.job_id = $1")

	lockJobRunning = driver.New("lock a job's running", "", "SELECT "+runningCols+" FROM task_running WHERE job_id = $1 ORDER BY task_id {for update}")
	readJobRows    = map[string]*driver.Text{
		"task_running": driver.New("read a job's running", "", "SELECT "+runningCols+" FROM task_running WHERE job_id = $1"),
		"task_pending": driver.New("read a job's pending", "", "SELECT "+pendingCols+" FROM task_pending WHERE job_id = $1"),
		"task_ready":   driver.New("read a job's ready", "", "SELECT "+readyCols+" FROM task_ready WHERE job_id = $1"),
		"task_delayed": driver.New("read a job's delayed", "", "SELECT "+delayedCols+" FROM task_delayed WHERE job_id = $1"),
		"task_queued":  driver.New("read a job's queued", "", "SELECT "+queuedCols+" FROM task_queued WHERE job_id = $1"),
	}
	readJobLive = driver.New("read job_live", "id uuid",
		"SELECT j.job_id, j.tenant, j.run, j.graph, j.events, j.total, j.open, j.succeeded, j.failed, j.cancelled, j.skipped, j.paused, j.cancelling, j.handled, j.phase, j.undone FROM {rows} JOIN job_live j ON j.job_id = {id}")
)

// JobSummary is what a first look at a job shows.
type JobSummary struct {
	Job drover.JobID
	reconcile.Summary
}

// Summaries looks at up to n jobs after one, in the order of their ids.
func Summaries(after drover.JobID, n int, rows *[]JobSummary) Stmt {
	return Stmt{Text: summaries, Args: []any{[16]byte(after), int64(n)}, Scan: into(rows, func(r driver.Row) (s JobSummary, err error) {
		var pipeline, total int32
		var c reconcile.Counts
		var paused, cancelling int16
		var holds, room int64
		err = r.Scan((*[16]byte)(&s.Job), &pipeline, &s.Pending, &s.Ready, &s.Held, &s.Queued, &s.Running, &s.Delayed, &s.Strayed,
			&total, &c.Open, &c.Succeeded, &c.Failed, &c.Cancelled, &c.Skipped, &paused, &cancelling, &s.Run, &s.Since, &holds, &s.InLine, &s.Counted, &room)
		s.Pipeline, s.Paused, s.Cancelling = pipeline != 0, paused != 0, cancelling != 0
		s.Room = room == 1
		if c.Total = total; total >= 0 {
			s.Live = &c
		}
		s.PauseHold, s.ResumeHold, s.Cancel = holds&1 != 0, holds&2 != 0, holds&4 != 0
		return s, err
	})}
}

// Records is everything on record about a job that its live rows must agree with.
type Records struct {
	Tasks   []lifecycle.Task // place, queue, lane and class; Since is when they were made
	Finals  map[drover.TaskID]lifecycle.Task
	Tries   map[drover.TaskID][]reconcile.Try
	Events  []EventRow // replays, expansions and reopenings
	Newest  int64      // number of the newest event
	Live    *JobLive
	Last    JobFinal
	Holds   []Hold
	Maps    []MapRow
	Rows    []lifecycle.Task // all but the delayed
	Delayed []lifecycle.Task
}

// JobRecords reads the records of a job. With take its rows are locked, in the
// order of all locks, and those that are not running are removed.
func JobRecords(ctx context.Context, tx Tx, job drover.JobID, take bool) (*Records, error) {
	c := &Records{Finals: map[drover.TaskID]lifecycle.Task{}, Tries: map[drover.TaskID][]reconcile.Try{}}
	a := []any{[16]byte(job)}
	all := []any{[16]byte(job), int64(1) << 40}
	list := []Stmt{
		{Text: readJobRows["task_running"], Args: a, Scan: into(&c.Rows, scanRunning)}, {Text: readJobRows["task_pending"], Args: a, Scan: into(&c.Rows, scanPending)},
		{Text: readJobRows["task_ready"], Args: a, Scan: into(&c.Rows, scanReady)}, {Text: readJobRows["task_delayed"], Args: a, Scan: into(&c.Delayed, scanDelayed)},
		{Text: readJobRows["task_queued"], Args: a, Scan: into(&c.Rows, scanQueued)},
	}
	live := readJobLive
	if take {
		list = []Stmt{
			{Text: lockJobRunning, Args: a, Scan: into(&c.Rows, scanRunning)}, {Text: takeJobPending, Args: all, Scan: into(&c.Rows, scanPending)},
			{Text: takeJobReady, Args: all, Scan: into(&c.Rows, scanReady)}, {Text: takeJobDelayed, Args: all, Scan: into(&c.Delayed, scanDelayed)},
			{Text: takeJobQueued, Args: all, Scan: into(&c.Rows, scanQueued)},
		}
		live = lockJobLive
	}
	var lives []JobLive
	list = append(list, Stmt{Text: live, Cols: []any{jobIDs([]drover.JobID{job})}, Scan: into(&lives, scanJobLive)})
	// By itself: what was committed before the locks were had must be seen.
	if err := tx.Pipe(ctx, list...); err != nil {
		return nil, err
	}
	if take { // a row that moved to a table looked at before was missed
		var left []lifecycle.Task
		if err := tx.Pipe(ctx, LiveTasks([]drover.JobID{job}, func(t lifecycle.Task) { left = append(left, t) })); err != nil {
			return nil, err
		}
		running := map[drover.TaskID]bool{}
		for _, t := range c.Rows {
			running[t.ID] = running[t.ID] || t.Status == drover.Running
		}
		for _, t := range left {
			if t.Status != drover.Running || !running[t.ID] {
				return nil, ErrRetry
			}
		}
	}
	err := tx.Pipe(ctx,
		Stmt{Text: recordTasks, Args: a, Scan: into(&c.Tasks, func(r driver.Row) (t lifecycle.Task, err error) {
			t.Job = job
			err = r.Scan((*[16]byte)(&t.ID), &t.Node, &t.Index, &t.Queue, &t.Lane, (*int16)(&t.Class), (*int64)(&t.Since))
			return t, err
		})},
		finishedTasks([]drover.JobID{job}, func(t lifecycle.Task) { c.Finals[t.ID] = t }),
		Stmt{Text: recordTries, Args: a, Scan: func(r driver.Row) error {
			var id drover.TaskID
			var y reconcile.Try
			err := r.Scan((*[16]byte)(&id), &y.Generation, &y.N, &y.LeaseVersion, &y.Outcome)
			c.Tries[id] = append(c.Tries[id], y)
			return err
		}},
		Stmt{Text: recordEvents, Args: a, Scan: into(&c.Events, func(r driver.Row) (e EventRow, err error) {
			var typ string
			err = r.Scan(&typ, (*int64)(&e.At), (*[16]byte)(&e.Task), &e.Data)
			e.Job, e.Type = job, drover.EventType(typ)
			return e, err
		})},
		Stmt{Text: newestEvent, Args: a, Scan: func(r driver.Row) error { return r.Scan(&c.Newest) }},
		ReadHolds(job, &c.Holds), jobMapsOf(job, &c.Maps))
	if err != nil {
		return nil, err
	}
	if len(lives) > 0 {
		c.Live = &lives[0]
	}
	c.Last, err = LastRun(ctx, tx, job)
	return c, err
}
