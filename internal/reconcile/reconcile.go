// Package reconcile compares what the records of a job say with the rows that
// stand for it in the live tables, and says what they should be. It does no I/O.
//
// Every move of a task is one transaction, so that a divergence comes from
// outside: a restore, lost pages, a hand in the database, or a fault of ours.
package reconcile

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
)

// Code names a kind of divergence.
type Code string

// The divergences.
const (
	// TaskNowhere is a task that has not ended and stands in no live table.
	TaskNowhere Code = "task_nowhere"
	// TaskTwice is a task that stands in several live tables.
	TaskTwice Code = "task_twice"
	// TaskAlive is a task that has ended and stands in a live table all the same.
	TaskAlive Code = "task_alive_after_end"
	// Miscounted is a PENDING task whose count of parents it waits for is wrong.
	Miscounted Code = "dependencies_miscounted"
	// NobodyLooks is a task that stands where nothing will ever look at it.
	NobodyLooks Code = "nobody_looks"
	// MapCounts is a map with max_parallel or min_success whose counters are not those of
	// its elements, or that keeps one waiting though there is room.
	MapCounts Code = "map_counts"
	// JobCounts is a job whose counters are not those of its tasks.
	JobCounts Code = "job_counts"
	// JobUnrecorded is a live job of several tasks without its row.
	JobUnrecorded Code = "job_unrecorded"
	// JobNotEnded is a job that has not ended though all its tasks have.
	JobNotEnded Code = "job_not_ended"
	// HoldLost is a pause or cancel whose hold or flag is missing.
	HoldLost Code = "hold_lost"
)

// Codes are all divergences, in the order they are told.
var Codes = []Code{TaskNowhere, TaskTwice, TaskAlive, Miscounted, NobodyLooks, MapCounts, JobCounts, JobUnrecorded, JobNotEnded, HoldLost}

// Finding is one divergence.
type Finding struct {
	Code Code          `json:"code"`
	Task drover.TaskID `json:"task_id,omitzero"` // zero where it is the job's
	Text string        `json:"text"`
}

// Row is a row of a live table.
type Row struct {
	lifecycle.Task
	// Delayed says that a PENDING row is in task_delayed: it waits for its start time.
	Delayed bool
}

// Try is an ended attempt on record.
type Try struct {
	Generation, N, LeaseVersion int32
	Outcome                     string
}

// Task is everything on record about a task.
type Task struct {
	// Record is the immutable row: place, queue, lane, class; Since is when it was
	// made and DueAt the job's start time.
	Record lifecycle.Task
	// Rows are those in the live tables: one, or none when it has ended.
	Rows []Row
	// Final is the end of its last finished generation; nil when none has ended.
	Final *lifecycle.Task
	// Replayed is the newest generation that an event opened, and At when; 0 is none.
	Replayed int32
	At       lifecycle.Instant
	// Expanded says that elements have taken the place of this map.
	Expanded bool
	Tries    []Try
}

// Counts are a live job's counters.
type Counts struct {
	Total, Open, Succeeded, Failed, Cancelled, Skipped int32
	Handled                                            int32 // failures made good
}

// Job is everything on record about a job.
type Job struct {
	Tasks []Task
	// Plan is nil for a job of one task.
	Plan *dag.Plan
	// Live is its row in job_live; nil when it has none.
	Live *Counts
	// Ended says that a run of it has ended, and that it has not been reopened
	// since as far as job_live knows.
	Ended bool
	// What the flags of its live row say, and which holds there are.
	Paused, Cancelling            bool
	PauseHold, ResumeHold, Cancel bool
	// Maps are what is counted of its maps with bounds. While the job stops, and from
	// then on, nobody counts.
	Maps    map[int32]dag.Map
	Counted bool
}

// Mend is what a job's rows should be.
type Mend struct {
	// Findings are empty when nothing is wrong; then nothing else counts.
	Findings []Finding
	// Drop are running rows to be removed.
	Drop []lifecycle.Task
	// Rows are what should stand in the live tables beside task_running, in the
	// order of their places; a PENDING one with no parent to wait for moves on.
	Rows []lifecycle.Task
	// Maps are how the maps with bounds stand then.
	Maps map[int32]dag.Map
	Counts
}

// leap is how far the fence of a rebuilt row is ahead of the last attempt on
// record: a claim and a loss may have gone unrecorded.
const leap = 3

// Check compares.
func Check(j Job) (m Mend) {
	say := func(code Code, t *Task, format string, args ...any) {
		f := Finding{Code: code, Text: fmt.Sprintf(format, args...)}
		if t != nil {
			f.Task = t.Record.ID
		}
		m.Findings = append(m.Findings, f)
	}
	live := make([]*Row, len(j.Tasks)) // the row that counts
	for i := range j.Tasks {
		t := &j.Tasks[i]
		ended := int32(0)
		if t.Final != nil {
			ended = t.Final.Generation
		}
		rows := slices.Clone(t.Rows)
		slices.SortStableFunc(rows, func(a, b Row) int { // the one that has come farthest first
			return cmp.Or(cmp.Compare(b.Generation, a.Generation), cmp.Compare(b.LeaseVersion, a.LeaseVersion), cmp.Compare(b.Status, a.Status))
		})
		for k := range rows {
			r := &rows[k]
			switch {
			case r.Generation <= ended:
				say(TaskAlive, t, "generation %d has ended as %s and stands as %s all the same", r.Generation, t.Final.Status, r.Status)
			case live[i] != nil:
				say(TaskTwice, t, "it stands as %s and as %s", live[i].Status, r.Status)
			default:
				live[i] = r
				continue
			}
			if r.Status == drover.Running {
				m.Drop = append(m.Drop, r.Task)
			}
		}
		if live[i] == nil && !t.Expanded && !j.Ended && (t.Final == nil || t.Replayed > ended) {
			r := rebuilt(t)
			say(TaskNowhere, t, "it has not ended and stands in no table; it is put back, generation %d", r.Generation)
			live[i] = &Row{Task: r}
		}
	}
	tallies := j.tallies(live, &m)
	for i := range j.Tasks {
		t, r := &j.Tasks[i], live[i]
		if r == nil {
			if t.Final != nil && !t.Expanded {
				m.count(t.Final.Status)
			}
			continue
		}
		m.Total++
		m.Open++
		row := r.Task
		switch {
		case row.Status == drover.Running:
			continue
		case row.Status == drover.Pending && !r.Delayed:
			k := dag.Key{Node: row.Node, Index: row.Index}
			n, has := tallies[k], dag.Tally{Unmet: row.Unmet, Succeeded: row.ParentsSucceeded, Failed: row.ParentsFailed, Skipped: row.ParentsSkipped}
			same, waits := n.Unmet == has.Unmet, n.Unmet > 0
			if j.Plan != nil {
				same, waits = j.Plan.SameTally(k.Node, n, has), j.Plan.Waits(k, n)
			}
			if !same && len(t.Rows) > 0 {
				say(Miscounted, t, "its parents are %+v and it counts %+v", n, has)
			} else if !waits && len(t.Rows) > 0 {
				say(NobodyLooks, t, "it is PENDING and waits for nothing")
			}
			row.Unmet, row.ParentsSucceeded, row.ParentsFailed, row.ParentsSkipped = n.Unmet, n.Succeeded, n.Failed, n.Skipped
			if j.Plan != nil && !j.Plan.Nodes[k.Node].When.CountsSuccess() {
				row.ParentsSucceeded = 0
			}
		case row.InLine():
		case row.Status == drover.Ready && row.Lane == lifecycle.HeldLane && !j.Paused && !j.PauseHold && !j.ResumeHold && !j.Cancel && !j.Cancelling:
			say(NobodyLooks, t, "it stands among the held and its job is not paused")
			row.Lane = t.Record.Lane
		case (row.Status == drover.Queued || row.Status == drover.Ready && row.Lane != lifecycle.HeldLane) && (row.Lane != t.Record.Lane || row.Queue != t.Record.Queue):
			say(NobodyLooks, t, "it stands in queue %d, lane %d, and belongs in %d, %d", row.Queue, row.Lane, t.Record.Queue, t.Record.Lane)
			row.Queue, row.Lane = t.Record.Queue, t.Record.Lane
		}
		m.Rows = append(m.Rows, row)
	}
	if j.Plan != nil && j.Live != nil && j.Counted && m.Open > 0 {
		for _, n := range j.Plan.Bounded() {
			is, has := m.Maps[n], j.Maps[n]
			switch name, most := j.Plan.Nodes[n].Name, j.Plan.Nodes[n].MaxParallel; {
			case is != has:
				say(MapCounts, nil, "map %q counts %+v, its elements are %+v", name, has, is)
			case is.Waiting > 0 && is.Running < most:
				say(MapCounts, nil, "%d elements of map %q wait and %d of at most %d run", is.Waiting, name, is.Running, most)
			}
		}
	}
	solo := len(j.Tasks) == 1 && live[0] != nil && live[0].Solo()
	switch {
	case j.Live != nil && m.Open == 0:
		say(JobNotEnded, nil, "all %d tasks have ended", m.Total)
	case j.Live == nil && m.Open == 0 && !j.Ended:
		say(JobNotEnded, nil, "all %d tasks have ended and the job has no end on record", m.Total)
	case j.Live == nil && m.Open > 0 && !solo && len(m.Findings) == 0:
		say(JobUnrecorded, nil, "%d of its tasks are live and its row is missing", m.Open)
	case j.Live != nil && *j.Live != m.Counts:
		say(JobCounts, nil, "it counts %+v, its tasks are %+v", *j.Live, m.Counts)
	}
	if j.Live != nil && m.Open > 0 && (j.Paused != j.PauseHold || j.Cancelling != j.Cancel) {
		say(HoldLost, nil, "paused %v with a hold %v, cancelling %v with a hold %v", j.Paused, j.PauseHold, j.Cancelling, j.Cancel)
	}
	return m
}

func (m *Mend) count(s drover.Status) {
	m.Total++
	switch s {
	case drover.Succeeded:
		m.Succeeded++
	case drover.Failed, drover.DeadLetter:
		m.Failed++
	case drover.Cancelled:
		m.Cancelled++
	case drover.Skipped:
		m.Skipped++
	default: // one that is not final counts as open
	}
}

// tallies counts for each live row how the rows it waits for stand, and for m the
// failures that have been made good, and how maps stand.
func (j *Job) tallies(live []*Row, m *Mend) map[dag.Key]dag.Tally {
	if j.Plan == nil {
		return nil
	}
	past := make([]dag.Past, len(j.Tasks))
	for i := range j.Tasks {
		t := &j.Tasks[i]
		past[i] = dag.Past{Key: dag.Key{Node: t.Record.Node, Index: t.Record.Index}}
		switch {
		case live[i] != nil:
			past[i].Live = true
			past[i].InLine = live[i].InLine()
			past[i].Started = !past[i].InLine && (live[i].Delayed || live[i].Status != drover.Pending)
		case t.Expanded: // its elements stand for it
		case t.Final != nil:
			if past[i].As = dag.OutcomeOf(t.Final.Status, t.Final.How == lifecycle.HowBlocked); t.Final.How == lifecycle.HowGone {
				past[i].As = dag.Gone
			}
		default:
			past[i].Live = true
		}
	}
	m.Handled, m.Maps = j.Plan.HandledAll(past), j.Plan.Maps(past)
	return j.Plan.Recount(past)
}

// rebuilt makes the row of a task that has lost it, from what is on record: its
// attempts so far count, and no lease it may have had holds any more.
func rebuilt(t *Task) lifecycle.Task {
	r := lifecycle.Task{ID: t.Record.ID, Job: t.Record.Job, Node: t.Record.Node, Index: t.Record.Index, Queue: t.Record.Queue, Lane: t.Record.Lane, Class: t.Record.Class,
		Status: drover.Pending, DueAt: t.Record.DueAt, Generation: max(1, t.Replayed), Since: t.Record.Since}
	if t.Final != nil {
		r.LeaseVersion, r.DueAt, r.Since = t.Final.LeaseVersion, 0, t.At
	}
	for _, y := range t.Tries {
		r.LeaseVersion = max(r.LeaseVersion, y.LeaseVersion)
		if y.Generation != r.Generation {
			continue
		}
		switch y.Outcome {
		case drover.OutcomeFailed, "timed_out":
			r.Attempt = max(r.Attempt, y.N)
		case "lease_lost":
			r.Losses++
		}
	}
	r.LeaseVersion += leap
	return r
}

// Summary is what a first look at a job shows.
type Summary struct {
	Pipeline                                       bool
	Pending, Ready, Held, Queued, Running, Delayed int64 // rows; Held are among Ready
	Strayed                                        int64 // rows in a lane that does not exist
	Live                                           *Counts
	Run                                            int32 // last ended
	Since                                          int64 // events after the end of that run
	Paused, Cancelling                             bool
	PauseHold, ResumeHold, Cancel                  bool
	// InLine are READY rows, not among Held, that wait for a place among max_parallel;
	// Counted is how many its maps count, and Room says that one of those has room, or counts
	// more that run than there are.
	InLine, Counted int64
	Room            bool
}

// Suspect reports whether all of a job must be looked at.
func (s *Summary) Suspect() bool {
	rows := s.Pending + s.Ready + s.Queued + s.Running + s.Delayed
	if s.Live == nil {
		return rows == 0 && (s.Run == 0 || s.Since != 0) || rows > 0 && (s.Pipeline || s.Run > 0) || rows > 1 || s.Strayed > 0 || s.Held > 0 || s.Pending > 0
	}
	c := s.Live
	return int64(c.Open) != rows || rows == 0 || c.Total != c.Open+c.Succeeded+c.Failed+c.Cancelled+c.Skipped ||
		s.Strayed > 0 || s.Paused != s.PauseHold || s.Cancelling != s.Cancel || s.Held > 0 && !s.Paused && !s.ResumeHold && !s.Cancel || rows == s.Pending+s.InLine && !s.Cancel ||
		!s.Cancelling && (s.InLine != s.Counted || s.Room)
}
