package engine_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/driver"
)

// dump is everything a database says about jobs and tasks.
type dump struct {
	jobs     map[drover.JobID]*jobDump
	tasks    map[drover.TaskID]*taskDump
	sessions map[int64]int16 // ended
	idem     []drover.JobID
}

type jobDump struct {
	id       drover.JobID
	pipeline int32
	live     *liveJob
	finals   []finalJob // by run
	events   []eventDump
	holds    map[int16]bool
	tasks    []*taskDump // by node and index
}

type liveJob struct{ run, graph, events, total, open, succeeded, failed, cancelled, skipped, paused, cancelling int64 }

type finalJob struct{ run, status, events, total, succeeded, failed, cancelled, skipped, finished int64 }

type eventDump struct {
	seq, at int64
	typ     drover.EventType
	task    drover.TaskID
	data    string
}

type taskDump struct {
	id        drover.TaskID
	job       *jobDump
	node, idx int32
	created   int64
	policy    []byte
	live      []liveTask
	finals    []finalTask  // by generation
	attempts  []attemptRow // by lease_version
	elements  bool         // a map whose elements exist
}

type liveTask struct {
	table                                      string
	generation, attempt, losses, lease, events int32
	lane, unmet                                int32
	session                                    int64
}

type finalTask struct {
	generation, attempt, losses, lease int32
	status                             drover.Status
	session, finished                  int64
	waits                              []byte
}

type attemptRow struct {
	lease, generation, n int32
	outcome              string
	status               drover.Status
	failure              string
	first                bool // a first-try success, which has no row of its own
}

// The reads of a dump. Columns that differ by table are filled in.
var (
	dumpJobs   = driver.New("dump jobs", "", "SELECT id, pipeline FROM jobs")
	dumpTasks  = driver.New("dump tasks", "", "SELECT id, job_id, node, idx, created_at, policy FROM tasks ORDER BY job_id, node, idx")
	dumpLive   = driver.New("dump live", "", dumpTables())
	dumpFinal  = driver.New("dump finals", "", "SELECT task_id, generation, attempt, losses, lease_version, status, session_id, finished_at, waits FROM task_final ORDER BY task_id, generation")
	dumpTries  = driver.New("dump attempts", "", "SELECT task_id, lease_version, generation, n, outcome, status, error FROM attempts ORDER BY task_id, lease_version")
	dumpEvents = driver.New("dump events", "", "SELECT job_id, seq, at, type, task_id, data FROM events ORDER BY job_id, seq")
	dumpJLive  = driver.New("dump job_live", "", "SELECT job_id, run, graph, events, total, open, succeeded, failed, cancelled, skipped, paused, cancelling FROM job_live")
	dumpJFinal = driver.New("dump job_final", "", "SELECT job_id, run, status, events, total, succeeded, failed, cancelled, skipped, finished_at FROM job_final ORDER BY job_id, run")
	dumpHolds  = driver.New("dump holds", "", "SELECT job_id, kind FROM job_holds")
	dumpSess   = driver.New("dump sessions", "", "SELECT id, ended FROM sessions")
	dumpIdem   = driver.New("dump keys", "", "SELECT job_id FROM idempotency")
	dumpPlans  = driver.New("dump pipelines", "", "SELECT id, definition FROM pipelines")
)

func dumpTables() string {
	var parts []string
	for _, t := range []string{"pending", "ready", "queued", "running", "delayed"} {
		unmet, session := "0", "0"
		switch t {
		case "pending":
			unmet = "unmet"
		case "running":
			session = "session_id"
		}
		parts = append(parts, "SELECT '"+t+"' AS place, task_id, generation, attempt, losses, lease_version, events, lane, "+unmet+" AS unmet, "+session+" AS session_id FROM task_"+t)
	}
	return strings.Join(parts, " UNION ALL ")
}

func readDump(ctx context.Context, tx store.Tx) (*dump, error) {
	d := &dump{jobs: map[drover.JobID]*jobDump{}, tasks: map[drover.TaskID]*taskDump{}, sessions: map[int64]int16{}}
	nobody := &jobDump{}
	job := func(id drover.JobID) *jobDump {
		if j := d.jobs[id]; j != nil {
			return j
		}
		return nobody
	}
	var lost []string
	task := func(id drover.TaskID, where string) *taskDump {
		if t := d.tasks[id]; t != nil {
			return t
		}
		lost = append(lost, fmt.Sprintf("a row of %s is of task %s, which does not exist", where, id))
		return &taskDump{}
	}
	err := tx.Pipe(ctx,
		store.Stmt{Text: dumpJobs, Scan: func(r driver.Row) error {
			j := &jobDump{holds: map[int16]bool{}}
			err := r.Scan((*[16]byte)(&j.id), &j.pipeline)
			d.jobs[j.id] = j
			return err
		}},
		store.Stmt{Text: dumpTasks, Scan: func(r driver.Row) error {
			t := &taskDump{}
			var of drover.JobID
			err := r.Scan((*[16]byte)(&t.id), (*[16]byte)(&of), &t.node, &t.idx, &t.created, &t.policy)
			t.job = job(of)
			t.job.tasks = append(t.job.tasks, t)
			d.tasks[t.id] = t
			return err
		}},
		store.Stmt{Text: dumpLive, Scan: func(r driver.Row) error {
			var l liveTask
			var id drover.TaskID
			err := r.Scan(&l.table, (*[16]byte)(&id), &l.generation, &l.attempt, &l.losses, &l.lease, &l.events, &l.lane, &l.unmet, &l.session)
			t := task(id, "task_"+l.table)
			t.live = append(t.live, l)
			return err
		}},
		store.Stmt{Text: dumpFinal, Scan: func(r driver.Row) error {
			var f finalTask
			var id drover.TaskID
			var status int16
			err := r.Scan((*[16]byte)(&id), &f.generation, &f.attempt, &f.losses, &f.lease, &status, &f.session, &f.finished, &f.waits)
			f.status = drover.Status(status)
			t := task(id, "task_final")
			t.finals = append(t.finals, f)
			return err
		}},
		store.Stmt{Text: dumpTries, Scan: func(r driver.Row) error {
			var a attemptRow
			var id drover.TaskID
			var status int16
			var failure []byte
			err := r.Scan((*[16]byte)(&id), &a.lease, &a.generation, &a.n, &a.outcome, &status, &failure)
			a.status, a.failure = drover.Status(status), string(failure)
			t := task(id, "attempts")
			t.attempts = append(t.attempts, a)
			return err
		}},
		store.Stmt{Text: dumpEvents, Scan: func(r driver.Row) error {
			var e eventDump
			var id drover.JobID
			var typ string
			var data []byte
			err := r.Scan((*[16]byte)(&id), &e.seq, &e.at, &typ, (*[16]byte)(&e.task), &data)
			e.typ, e.data = drover.EventType(typ), string(data)
			job(id).events = append(job(id).events, e)
			return err
		}},
		store.Stmt{Text: dumpJLive, Scan: func(r driver.Row) error {
			var l liveJob
			var id drover.JobID
			err := r.Scan((*[16]byte)(&id), &l.run, &l.graph, &l.events, &l.total, &l.open, &l.succeeded, &l.failed, &l.cancelled, &l.skipped, &l.paused, &l.cancelling)
			job(id).live = &l
			return err
		}},
		store.Stmt{Text: dumpJFinal, Scan: func(r driver.Row) error {
			var f finalJob
			var id drover.JobID
			err := r.Scan((*[16]byte)(&id), &f.run, &f.status, &f.events, &f.total, &f.succeeded, &f.failed, &f.cancelled, &f.skipped, &f.finished)
			job(id).finals = append(job(id).finals, f)
			return err
		}},
		store.Stmt{Text: dumpHolds, Scan: func(r driver.Row) error {
			var id drover.JobID
			var kind int16
			err := r.Scan((*[16]byte)(&id), &kind)
			if job(id).holds != nil {
				job(id).holds[kind] = true
			}
			return err
		}},
		store.Stmt{Text: dumpSess, Scan: func(r driver.Row) error {
			var id int64
			var ended int16
			err := r.Scan(&id, &ended)
			d.sessions[id] = ended
			return err
		}},
		store.Stmt{Text: dumpIdem, Scan: func(r driver.Row) error {
			var id drover.JobID
			err := r.Scan((*[16]byte)(&id))
			d.idem = append(d.idem, id)
			return err
		}})
	if err != nil {
		return nil, err
	}
	if len(nobody.tasks) > 0 || len(nobody.events) > 0 || len(nobody.finals) > 0 || nobody.live != nil {
		lost = append(lost, fmt.Sprintf("rows of a job that does not exist: %d tasks, %d events, %d ends", len(nobody.tasks), len(nobody.events), len(nobody.finals)))
	}
	if len(lost) > 0 {
		return nil, errors.New(strings.Join(lost, "; "))
	}
	return d, nil
}

// audit reports what a database says that cannot be. It is for moments
// when nothing is going on: no operation, and every ended session cleared.
func (w *world) audit() {
	w.t.Helper()
	audit(w.t, w.db)
}

func audit(t *testing.T, db *store.DB) {
	t.Helper()
	ctx := context.Background() // also at the end of a test
	err := db.Read(ctx, func(tx store.Tx) error {
		list, err := violations(ctx, tx)
		for i, v := range list {
			if i == 20 {
				t.Errorf("… and %d more", len(list)-i)
				break
			}
			t.Error(v)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// violations lists the invariants that do not hold; the numbers are those of
// the list of invariants in the design.
func violations(ctx context.Context, tx store.Tx) (list []string, err error) {
	d, err := readDump(ctx, tx)
	if err != nil {
		return []string{err.Error()}, nil //nolint:nilerr // what cannot be put together is a violation
	}
	plans := map[int32]*dag.Plan{}
	err = tx.Pipe(ctx, store.Stmt{Text: dumpPlans, Scan: func(r driver.Row) error {
		var id int32
		var def []byte
		if err := r.Scan(&id, &def); err != nil {
			return err
		}
		p, err := dag.Decode(def)
		if err == nil {
			plans[id], err = p.Compile()
		}
		return err
	}})
	if err != nil {
		return nil, err
	}
	say := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	for _, t := range d.tasks {
		t.check(d, func(format string, args ...any) {
			say("task %s [%d] of job %s: "+format, append([]any{t.id, t.idx, t.job.id}, args...)...)
		})
	}
	for _, id := range slices.SortedFunc(maps.Keys(d.jobs), func(a, b drover.JobID) int { return strings.Compare(a.String(), b.String()) }) {
		j := d.jobs[id]
		sayJob := func(format string, args ...any) { say("job %s: "+format, append([]any{id}, args...)...) }
		j.check(sayJob)
		if p := plans[j.pipeline]; p != nil {
			j.checkGraph(p, sayJob)
		}
	}
	for _, id := range d.idem {
		if d.jobs[id] == nil {
			say("an idempotency key stands for job %s, which does not exist", id)
		}
	}
	return list, nil
}

type sayer func(format string, args ...any)

// ends tells the statuses a task's end has an event for.
var endOf = map[drover.EventType]drover.Status{drover.TaskSucceeded: drover.Succeeded, drover.TaskFailed: drover.Failed, drover.TaskDeadLettered: drover.DeadLetter,
	drover.TaskCancelled: drover.Cancelled, drover.TaskSkipped: drover.Skipped}

// rises says that the end of the attempt moved the fence: it was given back,
// lost, or ended by force.
func (a *attemptRow) rises() bool {
	return a.outcome == "lease_lost" || a.outcome == "forced" || a.outcome == "timed_out" || a.status == drover.Ready || strings.Contains(a.failure, `"class":"expired"`)
}

// givenBack says that the attempt was not used up.
func (a *attemptRow) givenBack() bool {
	return a.outcome == "snoozed" && a.status == drover.RetryWait || a.outcome == "lease_lost" && !a.status.Final() || a.status == drover.Ready
}

func (t *taskDump) check(d *dump, say sayer) {
	// I13, I52: exactly one place.
	placeholder := t.idx == dag.Unexpanded
	for _, o := range t.job.tasks {
		t.elements = t.elements || placeholder && o.node == t.node && o.idx >= 0
	}
	generations := int32(0)
	for i, f := range t.finals {
		if generations = f.generation; f.generation != int32(i+1) {
			say("its final rows are of generations %v", t.finals)
		}
		if !f.status.Final() {
			say("its final row is %s", f.status)
		}
	}
	switch {
	case len(t.live) > 1:
		say("stands in %d places: %+v", len(t.live), t.live)
	case len(t.live) == 1 && t.live[0].generation != generations+1:
		say("is live in generation %d with %d ends", t.live[0].generation, generations)
	case t.elements && len(t.live)+len(t.finals) > 0:
		say("is a map that stands beside its elements")
	case len(t.live) == 0 && len(t.finals) == 0 && !placeholder:
		say("stands nowhere")
	}
	// First-try successes have no row of their own among the attempts.
	tries := slices.Clone(t.attempts)
	for _, f := range t.finals {
		if f.status == drover.Succeeded && !slices.ContainsFunc(tries, func(a attemptRow) bool { return a.lease == f.lease }) {
			tries = append(tries, attemptRow{lease: f.lease, generation: f.generation, n: f.attempt, outcome: "succeeded", status: f.status, first: true})
			if f.attempt != 1 || f.losses != 0 {
				say("succeeded at attempt %d after %d losses, and that attempt is not recorded", f.attempt, f.losses)
			}
		}
	}
	slices.SortStableFunc(tries, func(a, b attemptRow) int { return cmp.Compare(a.lease, b.lease) })
	// I04, I07: the fence rises by one at each claim, loss, release and forced
	// end; attempts are numbered without gaps in each generation.
	fence, used, gen, losses := int32(0), int32(0), int32(1), int32(0)
	most := int32(1 << 30)
	if t.job.pipeline == 0 {
		most = lifecycle.DefaultMaxAttempts
		var p struct{ Retry *drover.Retry }
		if len(t.policy) > 0 && json.Unmarshal(t.policy, &p) == nil && p.Retry != nil && p.Retry.MaxAttempts > 0 {
			most = int32(p.Retry.MaxAttempts)
		}
	}
	for _, a := range tries {
		if a.generation != gen {
			if a.generation < gen {
				say("attempts go back to generation %d: %+v", a.generation, tries)
			}
			gen, used, losses = a.generation, 0, 0
		}
		if a.lease != fence+1 {
			say("lease_version goes from %d to %d: %+v", fence, a.lease, tries)
		}
		if a.n != used+1 || a.n > most {
			say("attempt %d follows %d that were used up, of at most %d: %+v", a.n, used, most, tries)
		}
		if !a.givenBack() {
			used = a.n
		}
		if a.outcome == "lease_lost" {
			losses++
		}
		fence = a.lease
		if a.rises() {
			fence++
		}
	}
	if losses > lifecycle.MaxLeaseLosses+1 {
		say("lost its lease %d times", losses)
	}
	if n := len(t.finals); n > 0 && len(t.live) == 0 && t.finals[n-1].lease != fence {
		say("ended with lease_version %d; its attempts give %d: %+v", t.finals[n-1].lease, fence, tries)
	}
	for _, l := range t.live {
		want := fence
		if l.table == "running" {
			want++
			if ended, ok := d.sessions[l.session]; !ok || ended != 0 {
				say("runs in session %d, which has ended", l.session)
			}
		}
		if l.lease != want {
			say("is %s with lease_version %d; its attempts give %d: %+v", l.table, l.lease, want, tries)
		}
		if (l.table == "pending") != (l.unmet > 0) {
			say("is %s and waits for %d parents", l.table, l.unmet)
		}
	}
	// I21: one event for each end of an attempt, or of a task no worker had.
	ends := map[drover.EventType]int{}
	replays := map[int64]bool{}
	for _, e := range t.job.events {
		switch {
		case e.typ == drover.TaskReplayed || e.typ == drover.JobReopened:
			replays[e.at] = true
		case e.task == t.id && strings.HasPrefix(string(e.typ), "task."):
			ends[e.typ]++
		}
	}
	want := map[drover.EventType]int{}
	for _, a := range tries {
		switch {
		case a.status.Final():
		case a.outcome == "failed", a.outcome == "timed_out":
			want[drover.TaskRetryScheduled]++
		case a.outcome == "snoozed":
			want[drover.TaskSnoozed]++
		case a.outcome == "lease_lost":
			want[drover.TaskLeaseExpired]++
		default:
			want[drover.TaskReleased]++
		}
	}
	for _, f := range t.finals {
		for typ, s := range endOf {
			if s == f.status {
				want[typ]++
			}
		}
	}
	if placeholder && (t.elements || len(t.live)+len(t.finals) == 0) {
		clear(ends) // of generations that ended before it could expand
		clear(want)
	}
	if !maps.Equal(ends, want) {
		say("has the events %v; its attempts and ends give %v", ends, want)
	}
	// Waits and runs of an ended generation add up to its age.
	born := t.created
	for i, f := range t.finals {
		var sum int64
		for _, us := range lifecycle.DecodeWaits(f.waits) {
			sum += us
		}
		if i > 0 { // the generation began with a replay, of this task or of one that brought it back
			born = 0
			for at := range replays { // a transaction's time is that of its begin: a little before that of the end it replays
				if at >= t.finals[i-1].finished-1_000_000 && at <= f.finished && (born == 0 || abs(f.finished-at-sum) < abs(f.finished-born-sum)) {
					born = at
				}
			}
		}
		if abs(f.finished-born-sum) > 10_000 {
			say("waits and runs of generation %d are %d µs, its age is %d µs: %v", f.generation, sum, f.finished-born, lifecycle.DecodeWaits(f.waits))
		}
	}
}

func abs(v int64) int64 { return max(v, -v) }

func (j *jobDump) check(say sayer) {
	if len(j.tasks) == 0 {
		say("has no task")
		return
	}
	// I13, I16: counters equal rows, and the job is final exactly when its tasks are.
	var open, total int64
	var solo []liveTask
	byStatus := map[drover.Status]int64{}
	for _, t := range j.tasks {
		switch {
		case len(t.live) > 0:
			open++
			total++
			for _, l := range t.live {
				if l.events > 0 {
					solo = append(solo, l)
				}
				if l.lane == lifecycle.HeldLane && !j.holds[1] && !j.holds[2] && !j.holds[3] {
					say("task %s is held and there is no hold", t.id)
				}
			}
		case len(t.finals) == 0 || t.elements: // a map that has expanded; any other that stands nowhere is told of above
		default:
			total++
			byStatus[t.finals[len(t.finals)-1].status]++
		}
	}
	counts := func(what string, nTotal, nOpen, succeeded, failed, cancelled, skipped int64) {
		if succeeded+failed+cancelled+skipped+nOpen != nTotal {
			say("%s: %d succeeded, %d failed, %d cancelled, %d skipped and %d open are not %d", what, succeeded, failed, cancelled, skipped, nOpen, nTotal)
		}
		off := abs(succeeded-byStatus[drover.Succeeded]) + abs(failed-byStatus[drover.Failed]-byStatus[drover.DeadLetter]) + abs(cancelled-byStatus[drover.Cancelled]) + abs(skipped-byStatus[drover.Skipped])
		if nOpen != open || off > 0 || nTotal != total {
			say("%s: counts %d tasks, %d open, %d succeeded, %d failed, %d cancelled, %d skipped; there are %d, %d open, %v", what, nTotal, nOpen, succeeded, failed, cancelled, skipped, total, open, byStatus)
		}
	}
	newest := int64(0) // the event number the job's row gives
	runs := len(j.finals)
	for i, f := range j.finals {
		if f.run != int64(i+1) {
			say("its ends are of runs %+v", j.finals)
		}
		if want := lifecycle.JobStatus(int32(f.failed), int32(f.cancelled)); drover.Status(f.status) != want {
			say("run %d is %s; %d failed and %d cancelled tasks make %s", f.run, drover.Status(f.status), f.failed, f.cancelled, want)
		}
	}
	switch {
	case len(solo) > 0:
		if len(solo) > 1 || j.live != nil || runs > 0 || len(j.tasks) > 1 || len(j.holds) > 0 {
			say("its task's row stands for it, and it has rows of its own")
		}
		newest = int64(solo[0].events)
	case j.live != nil:
		if j.live.run != int64(runs+1) {
			say("is live in run %d with %d ends", j.live.run, runs)
		}
		if j.live.open <= 0 {
			say("is live with %d open tasks", j.live.open)
		}
		counts("live", j.live.total, j.live.open, j.live.succeeded, j.live.failed, j.live.cancelled, j.live.skipped)
		newest = j.live.events
		if (j.live.paused != 0) != j.holds[1] || (j.live.cancelling != 0) != j.holds[2] {
			say("paused %d, cancelling %d, and its holds are %v", j.live.paused, j.live.cancelling, j.holds)
		}
	case runs == 0:
		say("is nowhere: no task's row stands for it, and it has none")
	default:
		f := j.finals[runs-1]
		counts("ended", f.total, 0, f.succeeded, f.failed, f.cancelled, f.skipped)
		newest = f.events
		if len(j.holds) > 0 {
			say("has ended and is held: %v", j.holds)
		}
	}
	// I21, I23: events are numbered without gaps, and tell the same story.
	byType := map[drover.EventType]int{}
	for i, e := range j.events {
		byType[e.typ]++
		if e.seq != int64(i+1) {
			say("event %d has number %d", i+1, e.seq)
			break
		}
		if i > 0 && e.at < j.events[i-1].at-5_000_000 { // a transaction's time is that of its begin
			say("event %d (%s) is older than the one before it", e.seq, e.typ)
		}
		if e.data != "" && !json.Valid([]byte(e.data)) {
			say("event %d has data that is not JSON: %s", e.seq, e.data)
		}
	}
	if int64(len(j.events)) != newest {
		say("has %d events, its row counts %d", len(j.events), newest)
	}
	if len(j.events) == 0 || j.events[0].typ != drover.JobAccepted || byType[drover.JobAccepted] != 1 {
		say("does not begin with job.accepted: %v", byType)
	}
	if n := byType[drover.JobSucceeded] + byType[drover.JobFailed] + byType[drover.JobCancelled]; n != runs {
		say("ended %d times by its events, %d times by its rows", n, runs)
	}
	reopened := runs - 1
	if j.live != nil {
		reopened = int(j.live.run) - 1
	}
	if byType[drover.JobReopened] != max(reopened, 0) {
		say("was reopened %d times by its events, %d by its rows", byType[drover.JobReopened], reopened)
	}
}

// checkGraph: I14 to I16. A pending row waits for as many parents as have not
// succeeded; nothing runs before its parents have.
func (j *jobDump) checkGraph(p *dag.Plan, say sayer) {
	open := map[dag.Key]int32{} // parents of a row that have not succeeded
	replayed := false
	for _, t := range j.tasks {
		k := dag.Key{Node: t.node, Index: t.idx}
		n := len(t.finals)
		if len(t.live) == 0 && (n == 0 || t.finals[n-1].status == drover.Succeeded || t.elements) {
			continue // it succeeded, or is a map whose elements stand for it
		}
		replayed = replayed || len(t.live) > 0 && t.live[0].generation > 1
		for _, c := range p.Children(k) {
			if c.Index != dag.Every {
				open[c]++
				continue
			}
			for _, o := range j.tasks {
				if o.node == c.Node {
					open[dag.Key{Node: o.node, Index: o.idx}]++
				}
			}
		}
	}
	for _, t := range j.tasks {
		k := dag.Key{Node: t.node, Index: t.idx}
		for _, l := range t.live {
			name := p.Nodes[t.node].Name
			if l.table == "pending" && l.unmet != open[k] {
				say("task %s[%d] waits for %d parents; %d have not succeeded", name, t.idx, l.unmet, open[k])
			}
			if l.table != "pending" && open[k] > 0 && !replayed {
				say("task %s[%d] is %s; %d of its parents have not succeeded", name, t.idx, l.table, open[k])
			}
		}
	}
}

// errUndo rolls a transaction back.
var errUndo = errors.New("undo")

// TestTheAuditSeesWhatIsBroken breaks a sound database in every way the
// audit looks for: an audit that finds nothing proves nothing.
func TestTheAuditSeesWhatIsBroken(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.mixed()
		w.audit()
		for _, c := range []struct{ sql, want string }{
			{"INSERT INTO task_ready (task_id, job_id, node, idx, queue, lane, class, generation, attempt, losses, lease_version, events, due_at, waits, ready_at, since) " +
				"SELECT task_id, job_id, node, idx, queue, lane, class, generation, attempt, losses, lease_version, 0, due_at, waits, 1, 1 FROM task_running", "stands in 2 places"},
			{"DELETE FROM task_queued", "stands nowhere"},
			{"DELETE FROM task_pending", "open"},
			{"UPDATE task_running SET generation = 3", "is live in generation 3"},
			{"UPDATE task_running SET lease_version = lease_version + 1", "its attempts give"},
			{"UPDATE task_final SET lease_version = lease_version + 1 WHERE status = 12", "ended with lease_version"},
			{"UPDATE task_running SET session_id = 77", "which has ended"},
			{"UPDATE sessions SET ended = 2", "which has ended"},
			{"UPDATE task_pending SET unmet = unmet + 1", "parents; "},
			{"UPDATE task_pending SET unmet = 0", "waits for 0 parents"},
			{"UPDATE attempts SET n = n + 1", "follows"},
			{"DELETE FROM attempts", "its attempts give"},
			{"UPDATE task_final SET attempt = 2 WHERE status = 8", "that attempt is not recorded"},
			{"UPDATE task_final SET finished_at = finished_at + 60000000", "its age is"},
			{"UPDATE task_final SET status = 9 WHERE status = 12", "has the events"},
			{"DELETE FROM events WHERE seq = 2", "has number"},
			{"DELETE FROM events WHERE type LIKE 'job.%' AND seq > 1", "by its events"},
			{"UPDATE events SET type = 'task.snoozed' WHERE type = 'task.retry_scheduled'", "has the events"},
			{"UPDATE job_live SET events = events + 1", "its row counts"},
			{"UPDATE job_live SET open = open + 1, total = total + 1", "counts"},
			{"UPDATE job_live SET succeeded = succeeded + 1, failed = failed - 1", "counts"},
			{"UPDATE job_live SET paused = 1 - paused", "its holds are"},
			{"DELETE FROM job_live", "nowhere"},
			{"UPDATE job_final SET total = total + 1", "are not"},
			{"UPDATE job_final SET status = 8 WHERE status = 9", "tasks make FAILED"},
			{"UPDATE job_final SET run = 2", "its ends are of runs"},
			{"INSERT INTO job_holds SELECT job_id, 1, 1, 1, '', '', 1 FROM job_final", "is held"},
			{"DELETE FROM job_holds", "no hold"},
			{"DELETE FROM tasks", "does not exist"},
			{"UPDATE idempotency SET job_id = (SELECT id FROM tasks LIMIT 1)", "an idempotency key stands for"},
		} {
			err := w.db.Write(t.Context(), func(tx store.Tx) error {
				var n int64
				if err := tx.Pipe(t.Context(), store.Stmt{Text: driver.New("break", "", c.sql), Affected: &n}); err != nil {
					return err
				}
				if n == 0 {
					t.Errorf("%s: changes nothing", c.sql)
				}
				list, err := violations(t.Context(), tx)
				if err != nil {
					return err
				}
				if !strings.Contains(strings.Join(list, "\n"), c.want) {
					t.Errorf("%s:\n got %s\nwant %q", c.sql, strings.Join(list, "\n     "), c.want)
				}
				return errUndo
			})
			if !errors.Is(err, errUndo) {
				t.Errorf("%s: %v", c.sql, err)
			}
		}
		w.audit()
	})
}

// mixed makes jobs in about every state.
func (w *world) mixed() {
	w.t.Helper()
	ctx := w.t.Context()
	w.apply(ingest)
	// A pipeline in the middle, one that failed, one that is paused.
	w.submit(drover.NewJob{Pipeline: "ingest", Input: json.RawMessage(`{"n": 3}`)})
	h := ingestHandler(w.t, 3, map[string]string{})
	w.settle(h(w.acquire(1)[0]))
	l := w.acquire(3)
	w.settle(h(l[0]), failed(l[1], drover.ClassRetryable, "later"))
	bad := w.submit(drover.NewJob{Pipeline: "ingest", Input: json.RawMessage(`{"n": 1}`), Class: drover.Interactive})
	w.settle(failed(w.acquire(1)[0], drover.ClassPermanent, "no"))
	w.want(bad, drover.Failed)
	paused := w.submit(drover.NewJob{Pipeline: "ingest", Input: json.RawMessage(`{"n": 2}`)})
	if _, err := w.Pause(ctx, w.c, paused, engine.Request{}); err != nil {
		w.t.Fatal(err)
	}
	// Jobs of one task: a dead letter after two attempts, a success with a key, one
	// that waits, one that runs.
	w.submit(drover.NewJob{Kind: "dead", Class: drover.Interactive, Retry: &drover.Retry{MaxAttempts: 2}})
	w.settle(failed(w.acquire(1)[0], drover.ClassRetryable, "one"))
	w.clock.add += 2 * time.Second
	w.step("timers", w.TimersOnce)
	for _, l := range w.acquire(3) {
		if l.Kind == "dead" {
			w.settle(failed(l, drover.ClassRetryable, "two"))
		}
	}
	w.submit(drover.NewJob{Kind: "good", Class: drover.Interactive, IdempotencyKey: "k"})
	w.settle(ok(w.acquire(1)[0], "1"))
	w.submit(drover.NewJob{Kind: "runs", Class: drover.Interactive})
	w.acquire(1)
	w.submit(drover.NewJob{Kind: "waits"})
	w.submit(drover.NewJob{Kind: "starts later", DueAt: w.Now().Add(time.Hour)})
}
