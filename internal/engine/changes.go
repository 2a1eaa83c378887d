package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// changes is everything one transaction writes. Rows, wait accounting, events
// and counters are added together and saved in one place, so that nobody can
// forget one of them.
type changes struct {
	e   *Engine
	now lifecycle.Instant

	jobs     []store.JobRow
	kids     []store.JobRow   // that tasks run
	children []store.ChildRow // which tasks run them
	timers   []store.JobRow
	tasks    []store.TaskRow
	live     []lifecycle.Task // rows to stand in a live table
	unmet    []lifecycle.Task // pending rows whose counter changes
	told     []lifecycle.Task // pending rows that keep how their parents have ended, when that changes
	met      []lifecycle.Task // pending rows that leave
	finals   []store.FinalRow
	expanded []drover.TaskID // maps that ended before and have expanded now: their elements stand for them
	attempts []store.AttemptRow
	events   []store.EventRow
	ended    []store.JobFinal // runs that end
	holds    []store.Hold
	publish  []store.Publish
	reuses   []store.ReuseRow   // tasks that end with the results of others
	uses     []store.UseRow     // artifacts that inputs of new jobs name
	watches  []store.Watch      // that begin
	unwatch  []drover.TaskID    // tasks whose watch ends
	circuits []store.CircuitRow // whose state has changed
	letters  []store.LetterRow  // of tasks that end badly
	maps     []store.MapRow     // how maps with bounds stand
	inputs   []store.InputRow   // that replays give
	items    []store.GivenRow   // that maps give which expand again
	reusable []store.Generation // of a rerun, which may end with a result that is there
	homes    []store.HomeRow    // lanes of tasks whose concurrency key has become known
	replayed []store.LetterKey  // dead letters that a replay takes up, locked
	replay   store.LetterMove   // by whom

	fresh   []*store.JobLive                // to be inserted
	loaded  map[drover.JobID]*store.JobLive // locked; to be updated or deleted
	touched map[drover.JobID]bool           // of loaded, those that changed
	queues  map[int32]bool                  // with new claimable tasks
	plans   map[drover.JobID]*compiled      // of jobs a task of which has ended
	calls   []call                          // tasks that are to run now
	parents map[drover.JobID]drover.TaskID  // of jobs that tasks run: which
	look    []drover.TaskID                 // tasks that want a job of their own: they are due, and looked at after the commit
	over    []drover.TaskID                 // tasks whose jobs end here
	races   []store.Key                     // tasks that end here, or whose backups do
	asked   int64                           // jobs of which something is asked that is to be passed on
	undo    []*store.JobLive                // jobs whose tasks have all ended and that undo what they did
	unhold  []drover.JobID                  // jobs whose cancel is over: what runs finally begins
	failed  map[drover.JobID]failing        // jobs that stop because a task of theirs failed
	sweep   []drover.JobID                  // jobs whose other tasks are to be ended after the commit
	last    []store.Stmt                    // what is to be read once all is written

	admitting bool                                // the rows of live were admitted here
	permits   []store.Permit                      // of those
	freed     []drover.TaskID                     // tasks that give back what they hold
	slow      map[drover.TaskID]lifecycle.Instant // tasks that were told when to come back
	slowed    map[int32]int64                     // rates that let nothing start before
	gate      *gate                               // known once this is committed
	lent      bool                                // the transaction is somebody else's, and cannot begin again

	room *room // where most of it stands; nil where it is little
}

// room is where the rows of a large batch stand until they are stored. There is one
// batch after the other of about the same size, and what each had is used again.
type room struct {
	jobs    []store.JobRow
	tasks   []store.TaskRow
	live    []lifecycle.Task
	finals  []store.FinalRow
	events  []store.EventRow
	reports []report
	taken   []lifecycle.Task
}

// roomMost bounds what is kept, in rows.
const roomMost = 4096

// roomOf returns room for n rows of a batch.
func (e *Engine) roomOf(n int) *room {
	if n < 32 || n > roomMost {
		return nil
	}
	return e.rooms.Get().(*room)
}

// done gives room back after a commit: nothing points to the rows any more.
func (x *changes) done() {
	if r := x.room; r != nil {
		x.room = nil
		r.jobs, r.tasks, r.live, r.finals, r.events = emptied(x.jobs), emptied(x.tasks), emptied(x.live), emptied(x.finals), emptied(x.events)
		r.reports, r.taken = emptied(r.reports), emptied(r.taken)
		x.e.rooms.Put(r)
	}
}

// emptied is a list without its rows, and without what they point to.
func emptied[T any](list []T) []T {
	if cap(list) > 2*roomMost {
		return nil
	}
	clear(list)
	return list[:0]
}

func (e *Engine) changes(now lifecycle.Instant) *changes {
	return &changes{e: e, now: now, loaded: map[drover.JobID]*store.JobLive{}, touched: map[drover.JobID]bool{}, queues: map[int32]bool{}, failed: map[drover.JobID]failing{}, plans: map[drover.JobID]*compiled{}}
}

// expect makes room for the rows of so many jobs of one task.
func (x *changes) expect(n int) {
	if x.room == nil {
		x.room = x.e.roomOf(n)
	}
	x.enter()
	x.jobs, x.tasks, x.live, x.events = slices.Grow(x.jobs, n), slices.Grow(x.tasks, n), slices.Grow(x.live, n), slices.Grow(x.events, n)
}

// expectEnds makes room for the ends of so many tasks.
func (x *changes) expectEnds(n int) {
	x.enter()
	x.finals, x.events = slices.Grow(x.finals, n), slices.Grow(x.events, 2*n)
}

// enter moves what there is into the room, if there is one.
func (x *changes) enter() {
	if r := x.room; r != nil {
		x.jobs, x.tasks, x.live, x.finals, x.events = append(r.jobs, x.jobs...), append(r.tasks, x.tasks...), append(r.live, x.live...), append(r.finals, x.finals...), append(r.events, x.events...)
	}
}

// expectReports makes room for so many reports, and for the rows of their tasks.
func (x *changes) expectReports(n int) (reports []report, taken []lifecycle.Task) {
	r := x.e.roomOf(n)
	if r == nil {
		return make([]report, n), make([]lifecycle.Task, 0, n)
	}
	x.room = r
	r.reports, r.taken = slices.Grow(r.reports, n)[:n], slices.Grow(r.taken, n)[:n]
	return r.reports, r.taken[:0]
}

// newJob adds a live row to insert.
func (x *changes) newJob(j *store.JobLive) { x.fresh = append(x.fresh, j) }

// place stands a task in the live table of its status.
func (x *changes) place(t lifecycle.Task) {
	x.live = append(x.live, t)
	if t.Status == drover.Queued {
		x.queues[t.Queue] = true
	}
}

// gone tells that tasks were claimed in the same transaction. Nobody needs to hear
// of a queue all of whose new tasks are among them.
func (x *changes) gone(got []drover.Lease) {
	if len(got) == 0 || len(x.queues) == 0 {
		return
	}
	mine := make(map[drover.TaskID]bool, len(got))
	for i := range got {
		mine[got[i].TaskID] = true
	}
	left := map[int32]bool{}
	for i := range x.live {
		if t := &x.live[i]; t.Status == drover.Queued && !mine[t.ID] {
			left[t.Queue] = true
		}
	}
	for i := range x.live {
		if q := x.live[i].Queue; !left[q] {
			delete(x.queues, q)
		}
	}
}

// watch has a task that has become able to run looked at when its time is up.
func (x *changes) watch(t lifecycle.Task, scheduleToClose time.Duration) {
	if at := lifecycle.ClosesAt(t, scheduleToClose, x.now); at > 0 {
		w := watchOf(&t)
		w.ClosesAt, w.LookAt = at, min(at, x.now.Add(lookEvery))
		x.watches = append(x.watches, w)
	}
}

// event numbers and adds an event of a job that has a row of its own.
func (x *changes) event(j *store.JobLive, typ drover.EventType, task drover.TaskID, data []byte) {
	j.Events++
	x.touched[j.Job] = true
	x.events = append(x.events, store.EventRow{Job: j.Job, Seq: j.Events, Type: typ, At: x.now, Task: task, Data: data})
}

// soloEvent numbers and adds an event of a job its task's row stands for.
func (x *changes) soloEvent(t *lifecycle.Task, typ drover.EventType, data []byte) {
	t.Events++
	x.events = append(x.events, store.EventRow{Job: t.Job, Seq: int64(t.Events), Type: typ, At: x.now, Task: t.ID, Data: data})
}

// took is an event of a task, by whichever counter its job has.
func (x *changes) took(j *store.JobLive, t *lifecycle.Task, typ drover.EventType, data []byte) {
	if j == nil {
		x.soloEvent(t, typ, data)
		return
	}
	x.event(j, typ, t.ID, data)
}

// ending is how a task came to its end, or an attempt to its.
type ending struct {
	was     *lifecycle.Task // the running row, when a worker had it
	outcome string          // of the attempt
	output  []byte
	failure *drover.Failure
	reason  string // why it was skipped or cancelled
	stop    store.Stop
	// Where the task stands: see at.
	name, kind, pipeline string
	plan                 *compiled // nil for a Kind job
	// goesOn says that a failure does not stop the job; finishes that, if it does,
	// what runs may end.
	goesOn, finishes bool
}

// failing is the task whose failure stops a job, and how.
type failing struct {
	task  string
	cause store.Cause
}

// at says where the task stands: at a node of a plan, or in a job of its kind.
func (how *ending) at(plan *compiled, node, index int32, kind string) {
	how.name, how.kind = kind, kind
	if plan != nil {
		n := &plan.Nodes[node]
		how.name, how.kind, how.pipeline = n.Name, n.Kind, plan.Name
		how.plan, how.goesOn, how.finishes = plan, !plan.Stops(dag.Key{Node: node, Index: index}), n.OnFailure == dag.FinishRunning
	}
}

var endEvents = map[drover.Status]drover.EventType{
	drover.Succeeded: drover.TaskSucceeded, drover.Failed: drover.TaskFailed, drover.DeadLetter: drover.TaskDeadLettered,
	drover.Cancelled: drover.TaskCancelled, drover.Skipped: drover.TaskSkipped,
}

// end stores a task that has become final, and with the last one its job. j is
// nil for a job its task's row stands for.
func (x *changes) end(j *store.JobLive, tenant int32, t lifecycle.Task, how ending) {
	errorJSON := encodeFailure(how.failure)
	var data []byte
	if !how.toldByFinal(&t) {
		data = how.data(&t)
	}
	typ := endEvents[t.Status]
	if t.How == lifecycle.HowGone {
		typ = drover.TaskBeaten // one that a rerun does away with is told by that
	}
	x.took(j, &t, typ, data)
	x.finals = append(x.finals, store.FinalRow{Task: t, Tenant: tenant, At: t.Since, Output: how.output, Error: errorJSON})
	if t.Status == drover.Failed || t.Status == drover.DeadLetter {
		x.letters = append(x.letters, letterOf(tenant, t, t.Since, how.pipeline, how.name, how.kind, how.failure))
	}
	if how.was != nil && !(t.Status == drover.Succeeded && how.was.Attempt == 1 && how.was.Losses == 0 && t.How != lifecycle.HowMarked) {
		x.attempts = append(x.attempts, store.AttemptRow{Task: *how.was, At: t.Since, Outcome: how.outcome, Status: t.Status, Error: errorJSON})
	}
	if j == nil {
		f := store.JobFinal{Job: t.Job, Run: 1, Tenant: tenant, Total: 1, FinishedAt: x.now}
		count(&f.Succeeded, &f.Failed, &f.Cancelled, &f.Skipped, t.Status)
		f.Status = lifecycle.JobStatus(f.Failed, f.Cancelled)
		x.soloEvent(&t, jobEndEvent(f.Status), nil)
		f.Events = int64(t.Events)
		x.ended = append(x.ended, f)
		return
	}
	j.Open--
	count(&j.Succeeded, &j.Failed, &j.Cancelled, &j.Skipped, t.Status)
	x.touched[j.Job] = true
	if how.plan != nil {
		x.plans[j.Job] = how.plan
		j.Handled += how.plan.Handled(keyOf(&t), outcomeOf(t.Status, t.How))
		if j.Cancelling == 0 || j.Cancelling == store.CauseFinish {
			x.races = append(x.races, raceOf(how.plan, &t, how.was)...)
		}
		if t.Node == how.plan.Rescue && t.Status == drover.Succeeded {
			j.Handled = j.Failed
		}
	}
	if (t.Status == drover.Failed || t.Status == drover.DeadLetter) && !how.goesOn {
		f := failing{how.name, store.CauseFailFast}
		if how.finishes {
			f.cause = store.CauseFinish
		}
		x.failed[j.Job] = f
	}
}

// between stores an attempt that ended while its task goes on.
func (x *changes) between(j *store.JobLive, t lifecycle.Task, typ drover.EventType, how ending) {
	x.took(j, &t, typ, how.data(&t))
	x.attempts = append(x.attempts, store.AttemptRow{Task: *how.was, At: t.Since, Outcome: how.outcome, Status: t.Status, Error: encodeFailure(how.failure)})
	x.place(t)
}

// finish ends every job that has no open task left, and lets one that stops
// because a task failed start no more.
func (x *changes) finish() {
	for _, j := range x.all() {
		if j.Open > 0 {
			if f, ok := x.failed[j.Job]; ok && j.Cancelling == 0 {
				x.cancel(j, f.cause, "", "task "+f.task+" failed")
				if j.Open > sweepInline { // other settles wait for this one: the sweeper goes on with it
					x.sweep = x.sweep[:len(x.sweep)-1]
				}
			}
			continue
		}
		if x.touched[j.Job] && !x.close(j) {
			x.finished(j)
		}
	}
}

// finished ends a job.
func (x *changes) finished(j *store.JobLive) {
	f := store.JobFinal{Job: j.Job, Run: j.Run, Tenant: j.Tenant, Total: j.Total, Succeeded: j.Succeeded, Failed: j.Failed,
		Cancelled: j.Cancelled, Skipped: j.Skipped, FinishedAt: x.now, Handled: j.Handled, Status: lifecycle.JobStatus(j.Failed-j.Handled, j.Cancelled)}
	x.event(j, jobEndEvent(f.Status), drover.TaskID{}, nil)
	f.Events = j.Events
	x.ended = append(x.ended, f)
	if p, ok := x.parents[j.Job]; ok {
		x.over = append(x.over, p)
	}
}

// belongs notes of jobs that tasks run which.
func (x *changes) belongs(heads map[drover.JobID]store.JobHead) {
	for id, h := range heads {
		if h.Parent.IsZero() {
			continue
		}
		if x.parents == nil {
			x.parents = map[drover.JobID]drover.TaskID{}
		}
		x.parents[id] = h.Parent
	}
}

// begin places a task that may run: with a worker, or waiting for the job that it runs.
func (x *changes) begin(plan *compiled, t lifecycle.Task, hold lifecycle.Hold) lifecycle.Task {
	if plan == nil || plan.Nodes[t.Node].Sub == "" {
		t = lifecycle.Met(t, hold, x.now)
	} else if t = lifecycle.Parked(t, t.Lane, x.now); t.Status == drover.Waiting {
		x.look = append(x.look, t.ID)
	}
	x.place(t)
	return t
}

// sweepInline is how many open tasks a failed job may have for the settle that
// saw it fail to end them too.
const sweepInline = 1000

// cancel holds a job, so that nothing of it starts any more; its live tasks are
// ended by sweeps after the commit.
func (x *changes) cancel(j *store.JobLive, cause store.Cause, actor, reason string) {
	j.Cancelling = cause
	j.Graph++
	x.touched[j.Job] = true
	x.holds = append(x.holds, store.Hold{Job: j.Job, Kind: store.HoldCancel, Cause: cause, At: x.now, Actor: actor, Reason: reason})
	x.sweep = append(x.sweep, j.Job)
}

func (x *changes) all() []*store.JobLive {
	list := slices.Clone(x.fresh)
	for _, j := range x.loaded {
		list = append(list, j)
	}
	slices.SortFunc(list, func(a, b *store.JobLive) int { return compareIDs(a.Job, b.Job) })
	return list
}

func count(ok, failed, cancelled, skipped *int32, s drover.Status) {
	switch s {
	case drover.Succeeded:
		*ok++
	case drover.Failed, drover.DeadLetter:
		*failed++
	case drover.Cancelled:
		*cancelled++
	case drover.Skipped:
		*skipped++
	default: // one that is not final counts as open
	}
}

func jobEndEvent(s drover.Status) drover.EventType {
	switch s {
	case drover.Failed:
		return drover.JobFailed
	case drover.Cancelled:
		return drover.JobCancelled
	default: // lifecycle.JobStatus gives no other
		return drover.JobSucceeded
	}
}

// rowsAtOnce bounds the rows of one statement.
const rowsAtOnce = 5000

// save writes everything, job rows last (the lock order of ARCHITECTURE.md).
func (x *changes) save(ctx context.Context, tx store.Tx) error {
	if len(x.calls) > 0 {
		if err := x.answerCalls(ctx, tx); err != nil {
			return err
		}
	}
	x.finish()
	if len(x.undo) > 0 {
		if err := x.undoNext(ctx, tx); err != nil {
			return err
		}
	}
	if len(x.calls) > 0 {
		if err := x.answerCalls(ctx, tx); err != nil {
			return err
		}
	}
	if err := x.pass(ctx, tx); err != nil {
		return err
	}
	var list []store.Stmt
	add := func(s ...store.Stmt) { list = append(list, s...) }
	var wrote, gone int64
	for c := range slices.Chunk(x.jobs, rowsAtOnce) {
		add(store.InsertJobs(c))
	}
	add(store.InsertChildJobs(x.kids), store.InsertChildren(x.children))
	for c := range slices.Chunk(x.tasks, rowsAtOnce) {
		add(store.InsertTasks(c))
	}
	for c := range slices.Chunk(x.unmet, 1<<20) { // one statement: its count is checked
		add(store.UpdateUnmet(c, &wrote))
	}
	var told int64
	for c := range slices.Chunk(x.told, 1<<20) {
		add(store.UpdateTold(c, &told))
	}
	for c := range slices.Chunk(x.met, 1<<20) {
		add(store.DeletePending(c, &gone))
	}
	for c := range slices.Chunk(x.live, rowsAtOnce) {
		add(store.InsertLive(c)...)
	}
	add(store.DeletePermits(x.freed), store.InsertPermits(x.permits), store.DeleteFinals(x.expanded))
	for c := range slices.Chunk(x.finals, rowsAtOnce) {
		add(store.InsertFinal(c)...)
	}
	for c := range slices.Chunk(x.letters, rowsAtOnce) {
		add(store.InsertLetters(c))
	}
	for _, id := range x.unhold {
		add(store.DeleteHold(id, store.HoldCancel))
	}
	add(store.InsertTaskInputs(x.inputs), store.InsertGiven(x.items), store.InsertReusable(x.reusable), store.InsertHomes(x.homes), store.MoveLetters(x.replay, x.replayed))
	for c := range slices.Chunk(x.attempts, rowsAtOnce) {
		add(store.InsertAttempts(c))
	}
	add(store.InsertReuses(x.reuses), store.InsertUses(x.uses))
	add(store.PublishArtifacts(x.publish), store.InsertJobTimers(x.timers), store.InsertHolds(x.holds))
	for c := range slices.Chunk(x.events, rowsAtOnce) {
		add(store.InsertEvents(c))
	}
	final := map[drover.JobID]bool{}
	for _, f := range x.ended {
		final[f.Job] = true
	}
	add(store.InsertJobFinal(x.ended))
	var insert, update []store.JobLive
	var remove []drover.JobID
	for _, j := range x.fresh {
		if !final[j.Job] {
			insert = append(insert, *j)
		}
	}
	for _, j := range x.all() {
		switch {
		case x.loaded[j.Job] == nil:
		case final[j.Job]:
			remove = append(remove, j.Job)
		case x.touched[j.Job]:
			update = append(update, *j)
		}
	}
	add(store.InsertJobLive(insert), store.UpdateJobLive(update), store.SaveMaps(slices.DeleteFunc(x.maps, func(m store.MapRow) bool { return final[m.Job] })))
	add(store.DeleteMaps(slices.DeleteFunc(slices.Clone(remove), func(id drover.JobID) bool { return x.plans[id] == nil || len(x.plans[id].Bounded()) == 0 })))
	add(store.DeleteJobLive(remove)...)
	slices.SortFunc(x.watches, func(a, b store.Watch) int { return compareIDs(a.Task, b.Task) })
	slices.SortFunc(x.unwatch, compareIDs)
	for c := range slices.Chunk(x.watches, rowsAtOnce) {
		add(store.InsertWatches(c))
	}
	add(store.DeleteWatches(x.unwatch))
	add(x.waitRates())
	add(x.last...)
	if err := tx.Pipe(ctx, list...); err != nil {
		return err
	}
	if wrote != int64(len(x.unmet)) || told != int64(len(x.told)) || gone != int64(len(x.met)) {
		return store.ErrRetry // rows that were locked are gone: never ignored
	}
	return nil
}

// tell passes on after the commit what others wait for.
func (e *Engine) tell(x *changes) {
	e.marks.placed(x.live)
	if x.gate != nil {
		e.gate.Store(x.gate)
	}
	if x.wakes() {
		e.WakeAdmitter()
	}
	if len(x.freed) > 0 && e.OnFreed != nil {
		e.OnFreed()
	}
	if e.OnQueued != nil && len(x.queues) > 0 {
		var names []string
		for q := range x.queues {
			if n, ok := e.names.queueName.Load(q); ok {
				names = append(names, n.(string))
			}
		}
		if len(names) > 0 {
			slices.Sort(names) // the same for the same changes
			e.OnQueued(names)
		}
	}
	if e.OnEvents != nil && len(x.events) > 0 {
		var ids []drover.JobID
		for _, ev := range x.events {
			if n := len(ids); ev.Seq > 1 && (n == 0 || ev.Job != ids[n-1]) { // nobody waits for a job before there is one
				ids = append(ids, ev.Job)
			}
		}
		if len(ids) > 0 {
			e.OnEvents(ids)
		}
	}
}

// toldByFinal says that the row in task_final has all that the event would say: of the
// success of a first attempt, which is what most events are about. See Events.
func (how *ending) toldByFinal(t *lifecycle.Task) bool {
	return t.Status == drover.Succeeded && t.Generation == 1 && how.was != nil && how.was.Attempt == 1 && how.was.Losses == 0 && how.reason == "" && how.failure == nil
}

// data is what the event of an attempt's or a task's end says.
func (how *ending) data(t *lifecycle.Task) []byte {
	b := append(make([]byte, 0, 400), `{"status":"`...)
	b = append(append(b, t.Status.String()...), '"')
	str := func(key, v string) {
		if v != "" {
			b = append(append(append(b, `,"`...), key...), `":`...)
			b = appendText(b, v)
		}
	}
	num := func(key string, v int64) {
		b = append(append(append(b, `,"`...), key...), `":`...)
		b = strconv.AppendInt(b, v, 10)
	}
	at := func(key string, i lifecycle.Instant) {
		if i > 0 {
			b = append(append(append(b, `,"`...), key...), `":"`...)
			b = append(i.Time().AppendFormat(b, timeFormat), '"')
		}
	}
	str("name", how.name)
	num("index", int64(t.Index))
	num("generation", int64(t.Generation))
	if w := how.was; w != nil {
		num("attempt", int64(w.Attempt))
		num("lease_version", int64(w.LeaseVersion))
		str("worker_id", drover.SessionID(w.Session).String())
		str("outcome", how.outcome)
		at("ready_at", w.ReadyAt)
		at("queued_at", w.QueuedAt)
		at("claimed_at", w.ClaimedAt)
	}
	if t.Status == drover.RetryWait {
		at("due_at", t.DueAt)
	}
	str("reason", how.reason)
	if t.Status == drover.Cancelled {
		at("cancel_requested_at", how.stop.Requested)
		at("cancel_acknowledged_at", how.stop.Acknowledged)
	}
	if f := how.failure; f != nil {
		str("error_class", string(f.Class))
		str("error_type", cutAt(f.Type, maxName))
		str("message", cutAt(f.Message, 500))
	}
	return append(b, '}')
}

// appendText appends a string as JSON.
func appendText(b []byte, v string) []byte {
	for i := range len(v) {
		if c := v[i]; c < 0x20 || c > 0x7e || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			q, _ := json.Marshal(v) // a string always encodes
			return append(b, q...)
		}
	}
	return append(append(append(b, '"'), v...), '"')
}

// expandedData is what the event of an expansion says: of which map, which has
// the index -1, and how many elements stand for it now.
func expandedData(name string, count int, with []cameBackWith) []byte {
	b := fmt.Appendf(nil, `{"name":%s,"index":-1,"count":%d`, appendText(nil, name), count)
	if len(with) > 0 {
		list, err := json.Marshal(with)
		if err != nil {
			return nil
		}
		b = append(append(b, `,"with":`...), list...)
	}
	return append(b, '}')
}

// timeFormat is RFC 3339 in UTC with milliseconds.
const timeFormat = "2006-01-02T15:04:05.000Z"

// Caps of what a failure keeps.
const (
	maxMessage = 8 << 10
	maxStack   = 16 << 10
)

// encodeFailure returns the stored form of a failure; nil is empty.
func encodeFailure(f *drover.Failure) []byte {
	if f == nil {
		return nil
	}
	c := *f
	c.Message, c.Stack, c.Type = cutAt(c.Message, maxMessage), cutAt(c.Stack, maxStack), cutAt(c.Type, maxName)
	c.Task = ""
	if f.Cause != nil { // of a cause only what it says is kept
		c.Cause = &drover.Failure{Class: f.Cause.Class, Type: cutAt(f.Cause.Type, maxName), Message: cutAt(f.Cause.Message, maxMessage)}
	}
	b, err := json.Marshal(c) // invalid UTF-8 is replaced
	if err != nil {
		return []byte(`{"class":"permanent","message":"an error that could not be stored"}`)
	}
	return b
}

// decodeFailure reads what encodeFailure wrote.
func decodeFailure(b []byte) *drover.Failure {
	if len(b) == 0 {
		return nil
	}
	var f drover.Failure
	if json.Unmarshal(b, &f) != nil {
		return &drover.Failure{Class: drover.ClassPermanent, Message: "the stored error cannot be read"}
	}
	return &f
}

// cutAt shortens text to n bytes with a marker, and drops NULs.
func cutAt(s string, n int) string {
	s = clearText(s)
	if len(s) <= n {
		return s
	}
	const mark = "… [cut]"
	return strings.ToValidUTF8(s[:n-len(mark)], "") + mark
}

func compareIDs[T ~[16]byte](a, b T) int {
	for i := range a {
		if a[i] != b[i] {
			return int(a[i]) - int(b[i])
		}
	}
	return 0
}
