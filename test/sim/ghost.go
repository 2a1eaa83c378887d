package sim

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/drover-dev/drover"
)

// ghost knows what must be true. It follows the rows that transactions commit
// and works out by rules of its own what each may change: from what was asked,
// from the shapes, and from its own counts of grants, attempts and losses. It
// never believes an answer of the engine.
type ghost struct {
	w            *world
	jobs         []*gjob
	byID         map[drover.JobID]*gjob
	tasks        map[drover.TaskID]*gtask
	sessions     map[int64]*gsession
	keys         map[gkey]*gjob
	known        map[int]*gjob // by tag: accepted, and told
	ends         map[gend]*gended
	carried      map[string]bool // actions with a request id that were carried out
	arts         map[drover.ArtifactID]*gart
	deleted      map[*gjob]bool // by a client
	open         int            // jobs that have not ended
	permitRows   map[permitKey]permitRow
	permitsMoved bool
	heldOf       map[int32]int64 // of limits
	tokens       map[int32]int64 // the last of each limit
	held         int             // tasks that are queued or running and take of the limit
	busy         int             // tasks that are ready, queued or running
	latest       int64           // time that a server's clock has shown
}

type gkey struct {
	tenant int
	key    string
}

type gend struct {
	task    drover.TaskID
	version int32
	session int64
}

// gended is how an attempt ended.
type gended struct {
	call   *call
	said   string // what its worker reported, when that ended it
	stored string // what its record must say
	status drover.Status
	apart  bool // the server ended it before its session ran out: its worker may not know
}

// gwatch is a task's row in task_watches.
type gwatch struct {
	generation, lease int32
	closes, beatBy    int64
	checkpoint        string
}

// gart is an artifact.
type gart struct {
	task          *gtask
	lease         int32
	visible, gone bool
}

type gsession struct {
	tenant  int64
	expires int64
	ended   int64
	leaves  bool // takes nothing any more
}

type gjob struct {
	id       drover.JobID
	tag      int
	tenant   int
	shape    *shape
	body     string
	max      int
	timeout  time.Duration
	closes   time.Duration
	beats    time.Duration
	limited  bool // its task takes of the limit
	purged   bool // its row in jobs is gone
	retry    drover.Retry
	due      int64
	tasks    []*gtask
	at       map[[2]int]*gtask
	events   int64
	runs     int
	live     bool // has a row in job_live
	status   drover.Status
	paused   bool
	cause    int64 // of the cancel; 0 is none
	stopped  int64 // when it began
	openRows int
	ended    bool
	undoers  []*gtask // tasks that undo others, in the order in which they were called
}

func (j *gjob) String() string { return fmt.Sprintf("job %d", j.tag) }

// place is the table a task's row is in.
type place int

const (
	nowhere place = iota
	pending
	ready
	queued
	running
	delayed
	final
)

var placeNames = [...]string{"nowhere", "pending", "ready", "queued", "running", "delayed", "final"}

func (p place) String() string { return placeNames[p] }

var places = map[string]place{"task_pending": pending, "task_ready": ready, "task_queued": queued, "task_running": running, "task_delayed": delayed}

// grow is a task's row.
type grow struct {
	place                              place
	generation, attempt, losses, lease int32
	lane, unmet                        int32
	line                               bool // READY, and waiting for a place among its map's max_parallel
	due, session, acquire, claimed     int64
	status                             drover.Status
}

type gtask struct {
	id        drover.TaskID
	job       *gjob
	node, idx int
	name      string
	row       grow // as committed
	hand      grow // taken in the transaction that is being looked at
	finals    []grow
	gone      bool // a map that has expanded
	watch     gwatch

	// The ghost's own counts.
	generation, attempt, losses, fence int32
	due                                int64 // not before
	told                               int64 // number of the event of its last success
	edits                              map[int32]json.RawMessage
}

func (t *gtask) String() string {
	if t.job.shape == nil {
		return t.job.String()
	}
	return fmt.Sprintf("%s.%s[%d]", t.job, t.name, t.idx)
}

// succeeded says that the newest generation of t ended well.
func (t *gtask) succeeded() bool {
	return t.row.place == final && t.finals[len(t.finals)-1].status == drover.Succeeded
}

// ever says that some generation did.
func (t *gtask) ever() bool {
	return slices.ContainsFunc(t.finals, func(f grow) bool { return f.status == drover.Succeeded })
}

func newGhost(w *world) *ghost {
	return &ghost{w: w, byID: map[drover.JobID]*gjob{}, tasks: map[drover.TaskID]*gtask{}, sessions: map[int64]*gsession{}, keys: map[gkey]*gjob{}, known: map[int]*gjob{},
		ends: map[gend]*gended{}, carried: map[string]bool{}, arts: map[drover.ArtifactID]*gart{}, deleted: map[*gjob]bool{},
		permitRows: map[permitKey]permitRow{}, heldOf: map[int32]int64{}, tokens: map[int32]int64{}}
}

// commit is one transaction as the checks see it.
type commit struct {
	c         *call
	from, to  int64 // the server's clock: when the operation began, and now
	moves     []move
	touched   []*gjob
	before    map[*gjob]gbefore
	events    map[gevent]int // of tasks
	wanted    map[gevent]int
	attempts  map[grantKey]row
	jobEnds   map[*gjob]drover.Status
	reopened  map[*gjob]bool
	fresh     []*gjob
	expanded  []*gtask
	unwatched []*gtask
	shown     []*gart
}

type gbefore struct {
	cause  int64
	paused bool
}

type gevent struct {
	task drover.TaskID
	typ  drover.EventType
}

type move struct {
	t        *gtask
	from, to grow
}

func (g *ghost) fail(c *call, invariant, format string, args ...any) {
	g.w.violate(invariant, "%s of %s on server %d: %s", c.kind, c.who, c.s.n, fmt.Sprintf(format, args...))
}

// commit looks at what a transaction changed.
func (g *ghost) commit(c *call, changes []change) {
	w := g.w
	w.stats.Commits++
	w.stats.Rows += len(changes)
	if len(changes) == 0 {
		return
	}
	if w.depth > 1 {
		w.stats.Nested++
	}
	m := &commit{c: c, from: c.from.UnixMicro(), to: c.s.now().UnixMicro(), before: map[*gjob]gbefore{}, events: map[gevent]int{}, wanted: map[gevent]int{}, attempts: map[grantKey]row{}, jobEnds: map[*gjob]drover.Status{}, reopened: map[*gjob]bool{}}
	g.latest = max(g.latest, m.to)
	if c.renew != nil && c.tx == 0 {
		c.renew.stops = g.holds(c, func(t *gtask) bool { return t.job.cause != 0 })
	}
	for _, ch := range changes {
		g.apply(m, ch)
		if w.stop != nil {
			return
		}
	}
	if c.renew != nil && c.tx == 0 {
		c.renew.keeps = g.holds(c, func(*gtask) bool { return true })
	}
	g.vanished(m)
	for _, mv := range m.moves {
		g.moved(m, mv)
	}
	g.checkPermits(c)
	if g.held > limitMax {
		g.fail(c, "I31", "%d tasks hold of a limit of %d", g.held, limitMax)
	}
	g.looseEnds(m)
	for _, j := range m.touched {
		g.checkJob(m, j)
	}
	for _, j := range m.fresh {
		g.checkFresh(m, j)
	}
}

// holds tells of the leases that a renewal names which its session has, and of
// which also is true.
func (g *ghost) holds(c *call, also func(*gtask) bool) map[drover.Held]bool {
	list := map[drover.Held]bool{}
	for _, h := range c.renew.renewal.Held {
		t := g.tasks[h.TaskID]
		list[h] = t.row.place == running && t.row.lease == h.LeaseVersion && t.row.session == c.session && also(t)
	}
	return list
}

func (g *ghost) touch(m *commit, j *gjob) {
	if _, ok := m.before[j]; !ok {
		m.before[j] = gbefore{j.cause, j.paused}
		m.touched = append(m.touched, j)
	}
}

// apply follows one row.
func (g *ghost) apply(m *commit, ch change) {
	c := m.c
	cols := g.w.db.columns[ch.table]
	was, is := row{cols, ch.old}, row{cols, ch.new}
	any := is
	if ch.new == nil {
		any = was
	}
	insertOnly := func(invariant string) bool {
		if ch.old != nil {
			g.fail(c, invariant, "changed a row of %s, which is insert only: %v → %v", ch.table, ch.old, ch.new)
			return false
		}
		return true
	}
	if ch.new == nil && c.kind == "purge" && g.hasLeft(ch.table, was) {
		return
	}
	switch ch.table {
	case "jobs":
		if ch.new == nil {
			g.leaves(m, was)
		} else if insertOnly("I54") {
			g.newJob(m, is)
		}
	case "task_watches":
		g.watched(m, ch, was, is)
	case "artifacts":
		g.artifact(m, ch, was, is)
	case "permits":
		g.permit(c, ch, was, is)
	case "tasks":
		if insertOnly("I54") {
			g.newTask(m, is)
		}
	case "task_pending", "task_ready", "task_queued", "task_running", "task_delayed":
		t := g.tasks[any.id("task_id")]
		if t == nil {
			g.fail(c, "I13", "a row of %s is of a task that does not exist", ch.table)
			return
		}
		g.touch(m, t.job)
		r := grow{place: places[ch.table]}
		read := func(x row) grow {
			r.generation, r.attempt, r.losses, r.lease, r.lane, r.due = x.i32("generation"), x.i32("attempt"), x.i32("losses"), x.i32("lease_version"), x.i32("lane"), x.num("due_at")
			switch r.place {
			case pending:
				r.unmet = x.i32("unmet")
			case ready:
				r.line = r.lane == 0 && x.num("ready_at") == 0
			case running:
				r.session, r.acquire, r.claimed = x.num("session_id"), x.num("acquire_no"), x.num("claimed_at")
			case delayed:
				r.status = drover.Status(x.num("status"))
			}
			return r
		}
		switch {
		case ch.new == nil:
			if t.row.place != r.place {
				g.fail(c, "I13", "%s left %s, and it stood in %s", t, r.place, t.row.place)
			}
			t.hand = read(was)
			t.row.place = nowhere
			t.job.openRows--
			g.count(t.hand.place, -1)
			g.permits(t, t.hand.place, -1)
		case ch.old == nil:
			from := t.hand
			if t.row.place != nowhere && t.row.place != final {
				g.fail(c, "I13", "%s came to %s while it stands in %s", t, r.place, t.row.place)
			}
			if from.place == nowhere && t.row.place == final {
				from = t.row
			}
			t.hand = grow{}
			t.row = read(is)
			t.job.openRows++
			g.count(r.place, 1)
			g.permits(t, r.place, 1)
			m.moves = append(m.moves, move{t, from, t.row})
		default:
			old := read(was)
			now := read(is)
			if now.place == pending {
				old.unmet = now.unmet
			}
			if now.place == running && c.kind == "lock" { // to where it is seen that it holds permits
				old.lane = now.lane
			}
			if old != now {
				g.fail(c, "I08", "%s was changed in place: %+v → %+v", t, old, now)
			}
			t.row = now
		}
	case "task_final":
		t := g.tasks[any.id("task_id")]
		if t == nil {
			g.fail(c, "I13", "a final row is of a task that does not exist")
			return
		}
		g.touch(m, t.job)
		if ch.new == nil && t.idx < 0 { // a map that had ended and expands now
			t.finals = t.finals[:len(t.finals)-1]
			t.row, t.hand = grow{}, grow{}
			return
		}
		if !insertOnly("I08") {
			return
		}
		r := grow{place: final, generation: is.i32("generation"), attempt: is.i32("attempt"), losses: is.i32("losses"), lease: is.i32("lease_version"), status: drover.Status(is.num("status")), session: is.num("session_id")}
		from := t.hand
		switch {
		case t.row.place == final && t.idx < 0 && c.kind == "replay": // a map that fails to expand once more
			from = t.row
		case t.row.place != nowhere:
			g.fail(c, "I08", "%s ended (%s) while it stands in %s", t, r.status, t.row.place)
		}
		t.hand, t.row = grow{}, r
		t.finals = append(t.finals, r)
		m.moves = append(m.moves, move{t, from, r})
	case "attempts":
		if insertOnly("I09") {
			m.attempts[grantKey{is.id("task_id"), is.i32("lease_version")}] = is
		}
	case "events":
		if insertOnly("I23") {
			g.event(m, is)
		}
	case "job_live":
		j := g.byID[any.id("job_id")]
		if j == nil {
			g.fail(c, "I13", "a row of job_live is of no job")
			return
		}
		g.touch(m, j)
		j.live = ch.new != nil
	case "job_final":
		if j := g.byID[any.id("job_id")]; insertOnly("I08") && j != nil {
			g.touch(m, j)
			j.runs++
			j.status = drover.Status(is.num("status"))
			m.jobEnds[j] = j.status
			if int(is.num("run")) != j.runs {
				g.fail(c, "I13", "%s ended in run %d; it has ended %d times", j, is.num("run"), j.runs)
			}
		}
	case "job_holds":
		g.hold(m, ch, was, is)
	case "sessions":
		g.session(m, ch, was, is)
	case "idempotency":
		switch {
		case ch.new == nil && c.kind != "clean":
			g.fail(c, "I27", "took an idempotency key away")
		case ch.old != nil && ch.new != nil:
			g.fail(c, "I27", "changed an idempotency key")
		}
	case "operations":
		if ch.old == nil && c.job != nil {
			g.carried[g.request(c)] = true
		}
	}
}

func (g *ghost) count(p place, by int) {
	if p == ready || p == queued || p == running {
		g.busy += by
	}
}

// permits counts the tasks that hold of the limit: a row that is queued or running is
// a holder, whatever the database has written of it.
func (g *ghost) permits(t *gtask, p place, by int) {
	if t.job.limited && (p == queued || p == running) {
		g.held += by
	}
}

func (g *ghost) newJob(m *commit, r row) {
	j := &gjob{id: r.id("id"), tag: -1, due: r.num("due_at"), at: map[[2]int]*gtask{}, max: 4, retry: shapeRetry}
	for i, c := range g.w.db.callers[:2] {
		if int64(c.Tenant) == r.num("tenant") {
			j.tenant = i
		}
	}
	if m.c.submit == nil || j.tenant != m.c.submit.tenant {
		g.fail(m.c, "I17", "made a job that nobody submitted")
		return
	}
	if old := g.byID[j.id]; old != nil && !old.purged {
		g.fail(m.c, "I27", "made %s twice", old)
	}
	g.byID[j.id] = j
	g.jobs = append(g.jobs, j)
	g.open++
	g.touch(m, j)
	m.fresh = append(m.fresh, j)
	g.w.stats.Jobs++
	if r.num("pipeline") != 0 {
		g.bind(m, j, r.text("input"))
	}
}

// bind finds the draft that a job came from, by the tag in its input.
func (g *ghost) bind(m *commit, j *gjob, input string) {
	var in struct{ Tag int }
	if json.Unmarshal([]byte(input), &in) != nil {
		g.fail(m.c, "I28", "a job has the input %q", input)
		return
	}
	for i, d := range m.c.submit.drafts {
		if d.tag != in.Tag {
			continue
		}
		j.tag, j.shape, j.body = d.tag, d.shape, bodyOf(&m.c.submit.jobs[i])
		if d.shape == nil {
			j.retry, j.timeout, j.closes, j.beats, j.limited = drover.Retry{}, d.timeout, d.closes, d.beats, d.limited
			if d.retry != nil {
				j.retry = *d.retry
				j.max = cmp.Or(d.retry.MaxAttempts, 4)
			}
		}
		if want := m.c.submit.jobs[i].DueAt; !want.IsZero() && want.UnixMicro() != j.due {
			g.fail(m.c, "I37", "%s is due at %d, not %d", j, j.due, want.UnixMicro())
		}
		return
	}
	g.fail(m.c, "I28", "made a job of nobody's request: input %q", input)
}

// bodyOf is what makes two requests ask for the same job.
func bodyOf(n *drover.NewJob) string {
	return fmt.Sprint(n.Pipeline, n.Kind, n.Queue, string(n.Input), n.Timeout, n.ScheduleToClose, n.Heartbeat, n.Class, n.DueAt, n.ExpiresAt, n.Retry != nil, n.Retry)
}

func (g *ghost) newTask(m *commit, r row) {
	j := g.byID[r.id("job_id")]
	if j == nil {
		g.fail(m.c, "I13", "a task of no job")
		return
	}
	if j.tag < 0 {
		g.bind(m, j, r.text("input"))
	}
	t := &gtask{id: r.id("id"), job: j, node: int(r.num("node")), idx: int(r.num("idx")), name: "solo", generation: 1, due: j.due, edits: map[int32]json.RawMessage{}}
	if j.shape != nil && t.node < len(j.shape.nodes) {
		t.name = j.shape.nodes[t.node].name
	}
	key := [2]int{t.node, t.idx}
	if j.at[key] != nil {
		g.fail(m.c, "I17", "made %s twice", t)
	}
	j.at[key] = t
	j.tasks = append(j.tasks, t)
	if t.undoes() >= 0 {
		t.due = 0 // it was called
		j.undoers = append(j.undoers, t)
		g.w.stats.Undone++
	}
	g.tasks[t.id] = t
	g.touch(m, j)
	g.w.stats.Tasks++
}

func (g *ghost) event(m *commit, r row) {
	j := g.byID[r.id("job_id")]
	if j == nil {
		g.fail(m.c, "I24", "an event of no job")
		return
	}
	g.touch(m, j)
	if j.events++; r.num("seq") != j.events {
		g.fail(m.c, "I23", "%s: event %d after %d", j, r.num("seq"), j.events-1)
	}
	typ := drover.EventType(r.text("type"))
	g.w.tracef("  %s #%d %s %s", j, j.events, typ, g.tasks[r.id("task_id")].nameOf())
	switch typ {
	case drover.JobReopened:
		g.w.stats.Reopened++
		m.reopened[j] = true
	case drover.TaskReplayed:
		if m.c.kind != "replay" || m.c.job.task.id != r.id("task_id") {
			g.fail(m.c, "I21", "%s: %s of another task", j, typ)
		}
	default:
		if t := g.tasks[r.id("task_id")]; t != nil && typ == drover.TaskSucceeded {
			t.told = j.events
		}
		if strings.HasPrefix(string(typ), "task.") {
			m.events[gevent{r.id("task_id"), typ}]++
		}
	}
}

func (t *gtask) nameOf() string {
	if t == nil {
		return ""
	}
	return t.String()
}

// The kinds of a hold, and the causes of a cancel.
const (
	holdPause, holdCancel, holdResume   = 1, 2, 3
	causeUser, causeFailFast, causeTime = 1, 2, 3
)

func (g *ghost) hold(m *commit, ch change, was, is row) {
	any := is
	if ch.new == nil {
		any = was
	}
	j := g.byID[any.id("job_id")]
	if j == nil {
		g.fail(m.c, "I13", "a hold of no job")
		return
	}
	g.touch(m, j)
	kind := any.num("kind")
	switch {
	case kind == holdCancel && ch.old == nil:
		j.cause, j.stopped = is.num("cause"), is.num("at")
		g.w.tracef("  %s is being cancelled, cause %d", j, j.cause)
		switch j.cause {
		case causeUser:
			g.w.stats.Cancels++
			if betweenAttempts(j) {
				g.w.stats.CancelsBetween++
			}
			if m.c.kind != "cancel" || m.c.job.job != j {
				g.fail(m.c, "I18", "%s is cancelled by nobody", j)
			}
		case causeTime:
			g.w.stats.Expired++
			if m.c.kind != "expire" {
				g.fail(m.c, "I18", "%s expired outside its loop", j)
			}
		}
	case kind == holdCancel && ch.new == nil:
		j.cause = 0
	case kind == holdPause && ch.old == nil:
		j.paused = true
		g.w.stats.Pauses++
		if m.c.kind != "pause" || m.c.job.job != j {
			g.fail(m.c, "I18", "%s is paused by nobody", j)
		}
	case kind == holdPause && ch.new == nil:
		if j.paused {
			g.w.stats.Resumes++
		}
		j.paused = false
	}
}

// hasLeft says that a row is one of a job that has left: the purge deletes it.
func (g *ghost) hasLeft(table string, was row) bool {
	var j *gjob
	switch table {
	case "tasks", "events", "job_final":
		j = g.byID[was.id("job_id")]
	case "task_final", "attempts", "task_watches", "artifacts":
		if t := g.tasks[was.id("task_id")]; t != nil {
			j = t.job
		}
	}
	return j != nil && j.purged
}

// leaves follows the first row of a job that leaves.
func (g *ghost) leaves(m *commit, was row) {
	c, j := m.c, g.byID[was.id("id")]
	switch {
	case j == nil || j.purged:
		g.fail(c, "I54", "a job leaves that is not there")
	case c.kind != "purge" && (c.kind != "delete" || c.job.job.id != j.id): // a delete names an id: sent again, it means whose id that is by then
		g.fail(c, "I54", "%s leaves, and nobody asked for it", j)
	case !j.ended || j.openRows > 0:
		g.fail(c, "I54", "%s leaves with %d open tasks", j, j.openRows)
	}
	if j != nil {
		j.purged = true
		g.deleted[j] = c.kind == "delete"
	}
	g.w.stats.Purged++
	g.w.tracef("  %s leaves", j)
}

// watched follows a task's row in task_watches.
func (g *ghost) watched(m *commit, ch change, was, is row) {
	c := m.c
	any := is
	if ch.new == nil {
		any = was
	}
	t := g.tasks[any.id("task_id")]
	if t == nil {
		g.fail(c, "I13", "a watch over no task")
		return
	}
	if ch.new == nil {
		t.watch.checkpoint = "" // what else it said is needed for the moves of this transaction
		m.unwatched = append(m.unwatched, t)
		return
	}
	w := gwatch{generation: is.i32("generation"), lease: is.i32("lease_version"), closes: is.num("closes_at"), beatBy: is.num("beat_by"), checkpoint: is.text("checkpoint")}
	want, closes := "", int64(0) // of a new generation
	if ch.old != nil && t.watch.generation == w.generation {
		want, closes = t.watch.checkpoint, t.watch.closes
	}
	if b := c.beat; b != nil {
		g.w.stats.Beats++
		if b.held.TaskID != t.id || t.row.place != running || t.row.lease != b.held.LeaseVersion || w.lease != t.row.lease || w.generation != t.row.generation {
			g.fail(c, "I03", "a heartbeat under lease %d of %s, which is %s under lease %d, is stored", b.held.LeaseVersion, t, t.row.place, t.row.lease)
		}
		if b.details != nil {
			want = string(b.details)
		}
		if _, beats := g.terms(t); (w.beatBy > 0) != (beats > 0) || beats > 0 && (w.beatBy < m.from+beats.Microseconds() || w.beatBy > m.to+beats.Microseconds()) {
			g.fail(c, "I37", "%s must beat again by %d, at %d", t, w.beatBy, m.to)
		}
	}
	if w.checkpoint != want {
		g.fail(c, "I12", "the checkpoint of %s became %q, want %q", t, w.checkpoint, want)
	}
	if w.generation == t.watch.generation && ch.old != nil && w.closes != closes {
		g.fail(c, "I37", "the schedule_to_close of %s was put from %d to %d", t, closes, w.closes)
	}
	t.watch = w
}

// artifact follows an artifact's row.
func (g *ghost) artifact(m *commit, ch change, was, is row) {
	c := m.c
	switch {
	case ch.old == nil:
		t := g.tasks[is.id("task_id")]
		a := &gart{task: t, lease: is.i32("lease_version"), visible: is.num("visible") == 1}
		g.arts[is.id("id")] = a
		g.w.stats.Staged++
		if c.stage == nil || t == nil || a.visible || c.stage.held.TaskID != t.id || t.row.place != running || t.row.lease != a.lease || c.stage.held.LeaseVersion != a.lease {
			g.fail(c, "I03", "an artifact of %s lease %d is staged, visible %v, without that lease", t.nameOf(), a.lease, a.visible)
		}
	case ch.new == nil:
		a := g.arts[was.id("id")]
		a.gone = true
		switch {
		case a.visible && !a.task.job.purged:
			g.fail(c, "I10", "an artifact of %s is taken away", a.task)
		case !a.visible && c.kind != "clean" && (c.stage == nil || c.stage.held.TaskID != a.task.id || c.stage.held.LeaseVersion != a.lease):
			g.fail(c, "I10", "a staged artifact of %s is taken away", a.task)
		}
	default:
		a := g.arts[is.id("id")]
		if is.num("visible") == 1 && !a.visible {
			a.visible = true
			g.w.stats.Published++
			m.shown = append(m.shown, a)
		} else {
			g.fail(c, "I10", "an artifact of %s was changed", a.task)
		}
	}
}

func (g *ghost) session(m *commit, ch change, was, is row) {
	c := m.c
	id := is.num("id")
	switch {
	case ch.new == nil:
		g.fail(c, "I12", "took a session away")
	case ch.old == nil:
		g.sessions[id] = &gsession{tenant: is.num("tenant"), expires: is.num("expires_at")}
		if c.kind != "open" {
			g.fail(c, "I12", "made a session")
		}
	default:
		s := g.sessions[id]
		switch ended, expires := is.num("ended"), is.num("expires_at"); {
		case ended == s.ended && s.ended == 0 && c.kind == "renew" && c.session == id:
			if s.expires <= m.from {
				g.fail(c, "I12", "renewed session %d, which had expired %v ago", id, us(m.from-s.expires))
			}
			if expires > m.to+g.w.plan.lease.Microseconds() {
				g.fail(c, "I12", "session %d lives longer than a lease", id)
			}
		case s.ended == 0 && ended == 1 && c.kind == "reap":
			if s.expires > m.to {
				g.fail(c, "I06", "ended session %d, which lives for %v more", id, us(s.expires-m.to))
			}
			g.w.tracef("  session %d has expired", id)
		case s.ended == 0 && ended == 1 && c.kind == "close" && c.session == id:
			g.w.tracef("  session %d is closed", id)
		case s.ended == 1 && ended == 2 && (c.kind == "reap" || c.kind == "close"):
			for _, t := range g.tasks {
				if t.row.place == running && t.row.session == id {
					g.fail(c, "I33", "session %d is cleared and runs %s", id, t)
				}
			}
		case ended == s.ended && expires == s.expires:
		default:
			g.fail(c, "I12", "session %d: ended %d → %d, expires %d → %d", id, s.ended, ended, s.expires, expires)
		}
		s.expires, s.ended, s.leaves = is.num("expires_at"), is.num("ended"), is.num("draining") != 0
	}
}

// served tells if a worker is there that may run t.
func (g *ghost) served(t *gtask, now int64) bool {
	for _, s := range g.sessions { // all of them serve every queue and kind
		if s.ended == 0 && !s.leaves && s.expires > now && (s.tenant == 0 || int32(s.tenant) == g.w.db.callers[t.job.tenant].Tenant) {
			return true
		}
	}
	return false
}

func us(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// moved checks one move of a task: it must be one that the table of states has,
// of somebody who may make it, and with the counts that the ghost keeps.
func (g *ghost) moved(m *commit, mv move) {
	c, t, from, to := m.c, mv.t, mv.from, mv.to
	j, before := t.job, m.before[t.job]
	g.w.stats.Checks++
	g.w.tracef("  %s gen %d lease %d attempt %d: %s → %s %s", t, to.generation, to.lease, to.attempt, from.place, to.place, endName(to))
	bad := func(invariant, format string, args ...any) {
		g.fail(c, invariant, "%s from %s to %s: %s", t, from.place, to.place, fmt.Sprintf(format, args...))
	}
	if j.purged {
		bad("I54", "its job has been deleted")
	}
	switch {
	case from.place == final: // a replay
		if c.kind != "replay" || c.job.job != j {
			bad("I08", "a final task moved without a replay")
		}
		if before.cause != 0 {
			bad("I18", "its job is being cancelled")
		}
		t.generation++
		t.attempt, t.losses, t.due = 0, 0, 0
		g.w.stats.Replays++
		if c.job != nil && c.job.task == t && c.job.input != nil {
			t.edits[t.generation] = c.job.input
		}
		if to.place == final {
			g.cutOff(m, mv, bad)
			break
		}
		g.started(m, mv, bad)
	case from.place == nowhere:
		if len(t.finals) > 0 && to.place != final {
			bad("I08", "it had ended")
		}
		if to.place == final {
			if t.idx >= 0 || to.status != drover.Failed {
				bad("I09", "it ended before it began")
			}
			m.wanted[gevent{t.id, drover.TaskFailed}]++
			return
		}
		if c.kind != "submit" && c.kind != "settle" && c.kind != "replay" && t.undoes() < 0 {
			bad("I17", "it was made here")
		}
		g.started(m, mv, bad)
	case to.place == running:
		g.granted(m, mv, bad)
	case from.place == running:
		g.ended(m, mv, bad)
	case to.place == final:
		g.cutOff(m, mv, bad)
	case from.place == pending:
		g.started(m, mv, bad)
		g.w.stats.Joins++
	case from.place == delayed && (to.place == queued || to.place == ready):
		if c.kind != "timers" {
			bad("I09", "not by the timers")
		}
		if from.due > m.to || t.due > m.to {
			bad("I37", "it starts %v early", us(max(from.due, t.due)-m.to))
		}
		if (to.place == ready) != (j.paused || j.cause != 0 || j.limited) { // a cancel may not have swept it yet
			bad("I18", "its job's pause is %v, cause %d", j.paused, j.cause)
		}
	case from.line && to.place == delayed:
		if t.due <= m.from || to.due != t.due {
			bad("I37", "it is to start at %d, and waits until %d", t.due, to.due)
		}
	case from.place == ready && to.place == queued:
		if j.paused {
			bad("I18", "its job is paused")
		}
		if to.lane == 0 {
			bad("I09", "in the lane of held tasks")
		}
	case from.place == ready && to.place == ready:
		if !j.paused && j.cause == 0 && !(j.limited && (c.kind == "sweep" || c.kind == "resume")) { // it is in line again
			bad("I09", "its job is not held")
		}
	case from.place == queued && to.place == ready:
		if !j.paused && !(j.limited && c.kind == "admit" && !g.served(t, m.to)) {
			bad("I09", "its job is not paused, and there are workers for it")
		}
	default:
		bad("I09", "there is no such move")
	}
	if to.generation != t.generation {
		bad("I02", "in generation %d, want %d", to.generation, t.generation)
	}
	if to.lease != t.fence {
		bad("I04", "with lease_version %d, want %d", to.lease, t.fence)
	}
	if to.attempt != t.attempt {
		bad("I07", "with attempt %d, want %d", to.attempt, t.attempt)
	}
	if to.losses != t.losses {
		bad("I07", "with %d lost leases, want %d", to.losses, t.losses)
	}
}

func endName(r grow) string {
	if r.place == final {
		return r.status.String()
	}
	return ""
}

// started checks a task that begins to wait or to stand in line.
func (g *ghost) started(m *commit, mv move, bad func(string, string, ...any)) {
	t, to := mv.t, mv.to
	open := g.unmet(t)
	switch to.place {
	case pending:
		if t.idx >= 0 && open == 0 && !(t.due > m.to && to.unmet == 0) {
			bad("I15", "every parent has succeeded")
		}
	case queued, ready:
		if open > 0 {
			bad("I14", "%d parents have not succeeded", open)
		}
		if to.line {
			break // that there is no room is seen with the whole job
		}
		if t.due > m.to {
			bad("I37", "it starts %v early", us(t.due-m.to))
		}
		if (to.place == ready) != (t.job.paused || t.job.limited) {
			bad("I18", "its job's pause is %v", t.job.paused)
		}
	case delayed:
		if open > 0 {
			bad("I14", "%d parents have not succeeded", open)
		}
		if to.due != t.due {
			bad("I37", "due at %d, want %d", to.due, t.due)
		}
	default:
		bad("I09", "there is no such move")
	}
	if closes, _ := g.terms(t); closes > 0 && to.place != pending && !to.line {
		w, first, last := t.watch, max(m.from, t.due)+closes.Microseconds(), max(m.to, t.due)+closes.Microseconds()
		if w.generation != to.generation || w.closes < first || w.closes > last {
			bad("I37", "it must be done by %d of generation %d; from %d to %d are right", w.closes, w.generation, first, last)
		}
	}
}

// terms are a task's schedule_to_close, and how long an attempt may be silent.
func (g *ghost) terms(t *gtask) (closes, beats time.Duration) {
	if t.job.shape != nil {
		n := &t.job.shape.nodes[t.node]
		return n.closes, n.beats
	}
	return t.job.closes, t.job.beats
}

// closes is when the task in the generation of r must be done; 0 is never.
func (t *gtask) closes(r grow) int64 {
	if t.watch.generation != r.generation {
		return 0
	}
	return t.watch.closes
}

// unmet counts the rows that a task waits for and that have not succeeded.
func (g *ghost) unmet(t *gtask) (n int) {
	j := t.job
	if j.shape == nil {
		return 0
	}
	for _, p := range j.shape.nodes[t.node].waits {
		n += j.openOf(p)
	}
	if along := j.shape.nodes[t.node].along; along != "" {
		p := j.shape.at[along]
		if t.idx >= 0 {
			if o := j.at[[2]int{p, t.idx}]; o == nil || !o.succeeded() {
				n++
			}
		} else {
			n += j.openOf(p)
		}
	}
	return n
}

// fallen reports whether a row that a task waits for has ended other than well.
func (g *ghost) fallen(t *gtask) bool {
	j := t.job
	if j.shape == nil {
		return false
	}
	bad := func(node, idx int) bool {
		return slices.ContainsFunc(j.tasks, func(o *gtask) bool {
			return o.node == node && (idx < 0 || o.idx == idx || o.idx < 0) && !o.gone && o.row.place == final && !o.succeeded()
		})
	}
	if along := j.shape.nodes[t.node].along; along != "" && bad(j.shape.at[along], t.idx) {
		return true
	}
	return slices.ContainsFunc(j.shape.nodes[t.node].waits, func(p int) bool { return bad(p, -1) })
}

// openOf counts the rows of a node that have not succeeded; a map that has not
// expanded is one.
func (j *gjob) openOf(node int) (n int) {
	for _, t := range j.tasks {
		if t.node == node && !t.gone && !t.succeeded() {
			n++
		}
	}
	return n
}

// granted checks a task that a worker is given.
func (g *ghost) granted(m *commit, mv move, bad func(string, string, ...any)) {
	c, t, to := m.c, mv.t, mv.to
	g.w.stats.Grants++
	t.fence++
	t.attempt++
	s := g.sessions[to.session]
	switch {
	case mv.from.place != queued:
		bad("I09", "not from the queue")
	case c.acquire == nil || to.session != c.session || to.acquire != c.acquire.a.Number:
		bad("I05", "to session %d, acquire %d, which did not ask", to.session, to.acquire)
	case s == nil || s.ended != 0 || s.expires <= m.from:
		bad("I05", "to session %d, which has expired", to.session)
	case s.tenant != 0 && int32(s.tenant) != g.w.db.callers[t.job.tenant].Tenant:
		bad("I30", "to a session of another tenant")
	}
	if t.job.paused || t.job.cause != 0 {
		bad("I18", "its job is held: paused %v, cancelled for cause %d", t.job.paused, t.job.cause)
	}
	if t.due > g.latest {
		bad("I37", "%v early", us(t.due-g.latest))
	}
	if int(t.attempt) > g.max(t) {
		bad("I07", "attempt %d of %d", t.attempt, g.max(t))
	}
	if t.job.shape != nil {
		for _, p := range t.job.shape.nodes[t.node].waits {
			for _, o := range t.job.tasks {
				if o.node == p && !o.gone && !o.ever() {
					bad("I14", "%s has not succeeded", o)
				}
			}
		}
		if along := t.job.shape.nodes[t.node].along; along != "" {
			if o := t.job.at[[2]int{t.job.shape.at[along], t.idx}]; o == nil || !o.ever() {
				bad("I14", "%s[%d] has not succeeded", along, t.idx)
			}
		}
	}
	x := grant{grantKey: grantKey{t.id, to.lease}, attempt: to.attempt, generation: to.generation}
	if t.watch.generation == to.generation {
		x.checkpoint = t.watch.checkpoint
	}
	if _, beats := g.terms(t); beats > 0 {
		if by := to.claimed + beats.Microseconds(); t.watch.generation != to.generation || t.watch.lease != to.lease || t.watch.beatBy != by {
			bad("I37", "its heartbeat is awaited by %d under lease %d, want %d", t.watch.beatBy, t.watch.lease, by)
		}
	}
	c.granted = append(c.granted, x)
}

func (g *ghost) max(t *gtask) int {
	if t.job.shape != nil {
		return cmp.Or(t.job.shape.nodes[t.node].max, 4)
	}
	return t.job.max
}

// ceiling is the longest backoff after the nth attempt or loss.
func (j *gjob) ceiling(n int32) time.Duration {
	first, factor, most := j.retry.Initial.Std(), j.retry.Factor, j.retry.Max.Std()
	if first == 0 {
		first = time.Second
	}
	if factor == 0 {
		factor = 2
	}
	if most == 0 {
		most = max(time.Minute, first)
	}
	d := float64(first) * math.Pow(factor, float64(n-1))
	return min(time.Duration(d), most)
}

// ended checks the end of an attempt.
func (g *ghost) ended(m *commit, mv move, bad func(string, string, ...any)) {
	c, t, from, to := m.c, mv.t, mv.from, mv.to
	before := m.before[t.job]
	key := grantKey{t.id, from.lease}
	s := g.sessions[from.session]
	closes := t.closes(from)
	var said *drover.Outcome
	if c.settle != nil && from.session == c.session {
		for i, o := range c.settle.outcomes {
			if o.TaskID == t.id && o.LeaseVersion == from.lease {
				said = &c.settle.outcomes[i]
				break
			}
		}
	}
	overdue := from.claimed + (t.job.timeout + g.w.plan.lease/2).Microseconds()
	word := ""
	switch {
	case said != nil:
		word = said.Status
	case slices.ContainsFunc(c.granted, func(x grant) bool { return x.grantKey == key }) && from.session == c.session:
		word = drover.OutcomeReleased
		if closes > 0 && closes <= m.to && to.lease == from.lease+1 && to.place == final {
			word = "closed"
		} else if to.place == final && to.status == drover.Failed && before.cause == 0 {
			word = "input"
			if !g.missing(t) {
				bad("I09", "its input can be filled in")
			}
		}
		c.back[key] = true
	case c.kind == "renew" && c.session == from.session && t.job.timeout > 0 && overdue < m.to && (overdue < m.from || to.place != ready): // it looked at its clock between the two
		word = "cut"
		g.w.stats.Cut++
	case c.kind == "renew" && c.session == from.session && from.acquire <= c.renew.renewal.Acquired && !slices.Contains(c.renew.renewal.Held, drover.Held{TaskID: t.id, LeaseVersion: from.lease}):
		word = drover.OutcomeReleased
		g.w.stats.TakenBack++
	case c.kind == "watch" && closes > 0 && closes <= m.to && (closes <= m.from || to.place == final && to.status == drover.Failed):
		word = "closed"
	case c.kind == "watch" && t.watch.generation == from.generation && t.watch.lease == from.lease && t.watch.beatBy > 0 && t.watch.beatBy <= m.to:
		word = "cut"
		g.w.stats.Silent++
	case c.kind == "close" && c.session == from.session:
		word = drover.OutcomeReleased
	case c.kind == "reap" && s != nil && s.ended != 0:
		word = "lost"
		g.w.stats.Losses++
	case before.cause != 0 && t.job.stopped+g.w.plan.grace.Microseconds() < m.to:
		word = "forced"
		g.w.stats.Forced++
	default:
		bad("I03", "lease %d of session %d was ended by somebody who does not hold it, job cause %d", from.lease, from.session, t.job.cause)
		return
	}
	end := &gended{call: c, status: to.status, stored: word, apart: c.kind == "watch"}
	if to.place == ready {
		end.status = drover.Ready
	}
	if said != nil {
		end.said = word
		if word == drover.OutcomeSucceeded && len(said.Output) > 0 && !json.Valid(said.Output) {
			word = drover.OutcomeFailed
			end.stored = word
		}
	}
	want, event := to, drover.EventType("")
	want.place = final
	// It waits before it runs again, unless that would be too late.
	later := func(typ drover.EventType, least, most int64) {
		if closes > 0 && to.place == final && to.status == drover.Failed {
			if m.to+most < closes {
				bad("I37", "ended for its schedule_to_close, %v before that and with %v to wait at most", us(closes-m.to), us(most))
			}
			want.status, t.attempt = drover.Failed, from.attempt
			g.w.stats.Closed++
			return
		}
		want.place, want.status, event = delayed, drover.RetryWait, typ
		if to.due < m.from+least || to.due > m.to+most {
			bad("I39", "its next attempt is due in %v; from %v to %v are right", us(to.due-m.to), us(least), us(most))
		}
		if closes > 0 && to.due >= closes {
			bad("I37", "its next attempt is due %v after its schedule_to_close", us(to.due-closes))
		}
		t.due = to.due
	}
	failure := drover.ClassPermanent
	if said != nil && said.Error != nil {
		failure = said.Error.Class
	}
	switch {
	case word == drover.OutcomeSucceeded:
		want.status = drover.Succeeded
		g.w.stats.Successes++
		for _, id := range said.Artifacts {
			if a := g.arts[id]; a != nil && a.task == t && a.lease == from.lease && !a.visible && !a.gone {
				bad("I10", "its artifact %s stays hidden", id)
			}
		}
	case before.cause != 0:
		want.status = drover.Cancelled
		if before.cause == causeTime {
			want.status = drover.Failed
			t.fence++
		} else if word == "lost" || word == "forced" || word == "cut" || word == "closed" {
			t.fence++
		}
		if word != drover.OutcomeFailed {
			end.stored = "cancelled"
		}
	case word == "closed":
		want.status = drover.Failed
		t.fence++
		g.w.stats.Closed++
	case word == "input" || word == drover.OutcomeFailed && failure == drover.ClassPermanent:
		want.status = drover.Failed
	case (word == drover.OutcomeFailed || word == "cut") && int(t.attempt) >= g.max(t):
		want.status = drover.DeadLetter
		if word == "cut" {
			t.fence++
		}
	case word == drover.OutcomeFailed || word == "cut":
		if word == "cut" {
			t.fence++
		}
		least, most := int64(0), t.job.ceiling(t.attempt).Microseconds()
		if said != nil && said.RetryAfter > 0 && failure == drover.ClassThrottled {
			least = said.RetryAfter.Std().Microseconds()
			most = least
		}
		later(drover.TaskRetryScheduled, least, most)
		g.w.stats.Retries++
	case word == drover.OutcomeSnoozed:
		t.attempt--
		after := said.RetryAfter.Std().Microseconds()
		later(drover.TaskSnoozed, after, after)
		g.w.stats.Snoozes++
	case word == drover.OutcomeReleased || word == drover.OutcomeCancelled:
		want.place, want.status, event = ready, 0, drover.TaskReleased
		t.attempt--
		t.fence++
		g.w.stats.Released++
	case word == "lost":
		t.losses++
		t.fence++
		switch {
		case t.losses > 5:
			want.status = drover.DeadLetter
		case t.losses == 1:
			want.place, want.status, event = ready, 0, drover.TaskLeaseExpired
			t.attempt--
		default:
			t.attempt--
			later(drover.TaskLeaseExpired, 0, t.job.ceiling(t.losses-1).Microseconds())
		}
	default:
		bad("I03", "ended by %q", word)
	}
	if to.place != want.place || to.status != want.status {
		bad("I09", "became %s %s; after %q it must be %s %s", to.place, to.status, word, want.place, want.status)
	}
	if want.place == ready && (to.lane == 0) != before.paused {
		bad("I18", "stands in lane %d; its job's pause is %v", to.lane, before.paused)
	}
	if want.place == final {
		event = endEvent[to.status]
		if to.status == drover.DeadLetter {
			g.w.stats.DeadLetters++
		}
	}
	m.wanted[gevent{t.id, event}]++
	g.ends[gend{t.id, from.lease, from.session}] = end
	// The record of the attempt: none for a success at the first try.
	a, ok := m.attempts[key]
	first := to.place == final && to.status == drover.Succeeded && from.attempt == 1 && from.losses == 0
	switch {
	case ok == first:
		bad("I07", "its attempt is recorded %v, at its first try %v", ok, first)
	case ok && (a.i32("n") != from.attempt || a.i32("generation") != from.generation || a.num("session_id") != from.session || drover.Status(a.num("status")) != end.status):
		bad("I07", "its attempt is recorded as number %d of generation %d, status %s", a.i32("n"), a.i32("generation"), drover.Status(a.num("status")))
	}
	delete(m.attempts, key)
}

// missing says that the input of a task cannot be filled in.
func (g *ghost) missing(t *gtask) bool {
	if t.job.shape == nil {
		return false
	}
	with := t.job.shape.nodes[t.node].with
	return with != "" && bytes.Contains(output(g.w.plan.seed, t.job.tag, with, 0), []byte(`"w"`))
}

var endEvent = map[drover.Status]drover.EventType{drover.Succeeded: drover.TaskSucceeded, drover.Failed: drover.TaskFailed, drover.DeadLetter: drover.TaskDeadLettered,
	drover.Cancelled: drover.TaskCancelled, drover.Skipped: drover.TaskSkipped}

// cutOff checks a task that ended without running.
func (g *ghost) cutOff(m *commit, mv move, bad func(string, string, ...any)) {
	t, to := mv.t, mv.to
	cause := cmp.Or(m.before[t.job].cause, t.job.cause) // the hold goes with the job's last task
	want := map[int64]drover.Status{causeUser: drover.Cancelled, causeFailFast: drover.Skipped, causeTime: drover.Failed}[cause]
	if t.idx < 0 && (mv.from.place == pending || mv.from.place == final) && t.job.shape.nodes[t.node].list == "list" && broken(g.w.plan.seed, t.job.tag) && to.status == drover.Failed {
		want = drover.Failed // a map over no list
	}
	if closes := t.closes(mv.from); m.before[t.job].cause == 0 && m.c.kind == "watch" && closes > 0 && closes <= m.to && mv.from.place > pending {
		want = drover.Failed
		g.w.stats.Closed++
	}
	if cause == 0 && (mv.from.place == pending || mv.from.place == final) && g.fallen(t) {
		want = drover.Skipped // what it needs has ended, and not well
	}
	if to.status != want {
		bad("I18", "became %s, want %s", to.status, want)
	}
	if to.status == drover.Skipped {
		g.w.stats.Skipped++
	}
	m.wanted[gevent{t.id, endEvent[to.status]}]++
}

// vanished finds tasks that a transaction left nowhere: maps that expanded, and
// no others.
func (g *ghost) vanished(m *commit) {
	for _, j := range m.touched {
		for _, t := range j.tasks {
			if t.row.place != nowhere || t.gone {
				continue
			}
			if t.idx >= 0 || t.hand.place > pending {
				g.fail(m.c, "I01", "%s stands nowhere", t)
				continue
			}
			t.gone, t.hand = true, grow{}
			m.expanded = append(m.expanded, t)
			m.wanted[gevent{t.id, drover.TaskExpanded}]++
		}
	}
}

// looseEnds checks what the transaction left over: events and attempts without a
// move, moves without an event; and the maps that expanded.
func (g *ghost) looseEnds(m *commit) {
	c := m.c
	for _, t := range m.expanded {
		g.expanded(m, t)
	}
	for _, t := range m.unwatched {
		if closes, _ := g.terms(t); closes > 0 && t.row.place > pending && t.row.place != final && t.row.generation == t.watch.generation {
			g.fail(c, "I37", "%s is %s, and nobody will end it at its schedule_to_close", t, t.row.place)
		}
	}
	for _, a := range m.shown {
		named := c.settle != nil && slices.ContainsFunc(c.settle.outcomes, func(o drover.Outcome) bool {
			return o.TaskID == a.task.id && o.LeaseVersion == a.lease && slices.ContainsFunc(o.Artifacts, func(id drover.ArtifactID) bool { return g.arts[id] == a })
		})
		if r := a.task.row; !named || r.place != final || r.status != drover.Succeeded || r.lease != a.lease {
			g.fail(c, "I03", "an artifact of %s lease %d counts; the task is %s %s under lease %d, named %v", a.task, a.lease, r.place, endName(r), r.lease, named)
		}
	}
	for e, n := range m.wanted {
		if m.events[e] != n {
			g.fail(c, "I21", "%s: %d events %s in its transaction, want %d", g.tasks[e.task].nameOf(), m.events[e], e.typ, n)
		}
	}
	for e, n := range m.events {
		if m.wanted[e] != n {
			g.fail(c, "I21", "%s: %d events %s, want %d", g.tasks[e.task].nameOf(), n, e.typ, m.wanted[e])
		}
	}
	for k := range m.attempts {
		g.fail(c, "I07", "an attempt of %s is recorded, lease %d, that did not end", g.tasks[k.task].nameOf(), k.version)
	}
}

// expanded checks the elements that a map was replaced by.
func (g *ghost) expanded(m *commit, t *gtask) {
	j := t.job
	g.w.stats.Expansions++
	if n := g.unmet(t); n > 0 && j.shape.nodes[t.node].along == "" {
		g.fail(m.c, "I17", "%s expanded while %d parents have not succeeded", t, n)
	}
	want := 0
	switch list := j.shape.nodes[j.shape.head(t.node)].list; {
	case list == "input":
		var in struct{ List []int }
		_ = json.Unmarshal([]byte(j.input()), &in) // written by a client here
		want = len(in.List)
	case list == "list" && broken(g.w.plan.seed, j.tag):
		g.fail(m.c, "I17", "%s expanded over no list", t)
	default:
		want = elements(g.w.plan.seed, j.tag, list)
	}
	got := 0
	for _, o := range j.tasks {
		if o.node == t.node && o.idx >= 0 {
			got++
		}
	}
	if got != want {
		g.fail(m.c, "I17", "%s expanded to %d elements, want %d", t, got, want)
	}
}

// input is the part of the body that holds it.
func (j *gjob) input() string {
	i, k := strings.Index(j.body, "{"), strings.LastIndex(j.body, "}")
	return j.body[i : k+1]
}

// places checks that of a map with max_parallel no more elements have started than that,
// and that none waits while there is room.
func (g *ghost) places(c *call, j *gjob) {
	if j.shape == nil || j.cause != 0 {
		return
	}
	started, inLine := make([]int, len(j.shape.nodes)), make([]int, len(j.shape.nodes))
	for _, t := range j.tasks {
		switch p := t.row.place; {
		case t.gone || t.idx < 0:
		case t.row.line && p == ready:
			inLine[t.node]++
		case p == ready || p == queued || p == running || p == delayed:
			started[t.node]++
		}
	}
	for i, n := range j.shape.nodes {
		if n.parallel == 0 && inLine[i] > 0 || n.parallel > 0 && (started[i] > n.parallel || inLine[i] > 0 && started[i] < n.parallel) {
			g.fail(c, "I14", "%s: of %s %d elements have started and %d wait in line, max_parallel is %d", j, n.name, started[i], inLine[i], n.parallel)
		}
		if inLine[i] > 0 {
			g.w.stats.InLine++
		}
	}
}

// checkJob checks a job whose rows a transaction touched.
func (g *ghost) checkJob(m *commit, j *gjob) {
	c := m.c
	g.w.stats.Checks++
	status := drover.Succeeded
	g.places(c, j)
	for _, t := range j.tasks {
		switch {
		case t.gone:
		case t.row.place == pending && j.cause == 0: // else it is about to end
			open := g.unmet(t)
			if t.row.unmet == 0 || open == 0 {
				g.fail(c, "I15", "%s still waits: for %d by its row, for %d in truth", t, t.row.unmet, open)
			}
			if t.idx >= 0 && int(t.row.unmet) != open {
				g.fail(c, "I16", "%s waits for %d parents; %d have not succeeded", t, t.row.unmet, open)
			}
		case t.row.place == final:
			switch s := t.row.status; {
			case s == drover.Failed || s == drover.DeadLetter:
				status = drover.Failed
			case s == drover.Cancelled && status != drover.Failed:
				status = s
			}
			ok := 0
			for _, f := range t.finals {
				if f.status == drover.Succeeded && f.generation == t.generation {
					ok++
				}
			}
			if ok > 1 {
				g.fail(c, "I02", "%s succeeded %d times in generation %d", t, ok, t.generation)
			}
		}
	}
	g.checkUndone(c, j)
	ended := j.openRows == 0
	_, now := m.jobEnds[j]
	switch {
	case ended && j.ended && now && !m.reopened[j]:
		g.fail(c, "I13", "%s ended again", j)
	case ended && !j.ended && !now:
		g.fail(c, "I13", "%s has no open task and has not ended", j)
	case !ended && now:
		g.fail(c, "I13", "%s ended with %d open tasks", j, j.openRows)
	case ended && j.status != status:
		g.fail(c, "I13", "%s is %s, its tasks make %s", j, j.status, status)
	case ended && (j.live || j.cause != 0 || j.paused):
		g.fail(c, "I13", "%s has ended: live row %v, cause %d, paused %v", j, j.live, j.cause, j.paused)
	}
	if ended != j.ended {
		if j.ended = ended; ended {
			g.open--
		} else {
			g.open++
		}
	}
}

// undoes is the node whose work the task undoes, or -1.
func (t *gtask) undoes() int {
	if t.job.shape == nil || t.job.shape.nodes[t.node].undoes == "" {
		return -1
	}
	return t.job.shape.at[t.job.shape.nodes[t.node].undoes]
}

// checkUndone checks that what a job did is undone, all of it, only when nothing else
// is left to do, and backwards.
func (g *ghost) checkUndone(c *call, j *gjob) {
	if j.shape == nil {
		return
	}
	var open *gtask
	for i, u := range j.undoers {
		of := j.at[[2]int{u.undoes(), u.idx}]
		if of == nil || !of.succeeded() {
			g.fail(c, "I17", "%s undoes what did not succeed", u)
			continue
		}
		if i > 0 {
			before := j.undoers[i-1]
			if b := j.at[[2]int{before.undoes(), before.idx}]; b != nil && b.node != of.node && b.told < of.told {
				g.fail(c, "I17", "%s was undone before %s, which ended after it", b, of)
			}
		}
		if u.row.place == final {
			continue
		}
		if u.generation > 1 { // somebody had it undone once more
			continue
		}
		if open != nil && open.node != u.node {
			g.fail(c, "I17", "%s and %s are called at the same time", open, u)
		}
		open = u
	}
	called := len(j.undoers) > 0
	for _, t := range j.tasks {
		switch {
		case t.gone || t.undoes() >= 0:
		case called && t.row.place != final:
			g.fail(c, "I17", "%s goes on while what the job did is undone", t)
		case j.openRows > 0 || !t.succeeded() || j.status == drover.Succeeded:
		case slices.ContainsFunc(j.shape.nodes, func(n node) bool { return n.undoes == t.name }) &&
			!slices.ContainsFunc(j.undoers, func(u *gtask) bool { return u.undoes() == t.node && u.idx == t.idx }):
			g.fail(c, "I17", "%s has not been undone, and its job is %s", t, j.status)
		}
	}
}

// checkFresh checks a new job against the keys there are.
func (g *ghost) checkFresh(m *commit, j *gjob) {
	s := m.c.submit
	for _, d := range s.drafts {
		if d.tag != j.tag {
			continue
		}
		if d.key != "" {
			k := gkey{j.tenant, d.key}
			if old := g.keys[k]; old != nil && old != j {
				g.fail(m.c, "I27", "key %s made %s, and now %s", d.key, old, j)
			}
			g.keys[k] = j
		}
		break
	}
	if !slices.ContainsFunc(s.jobs, func(n drover.NewJob) bool { return n.ID == j.id || n.ID.IsZero() }) {
		g.fail(m.c, "I27", "%s has an id of its own making", j)
	}
	if j.tag >= 0 && j.shape != nil {
		for i := range j.shape.nodes {
			if n := len(j.of(i)); n == 0 && !j.shape.nodes[i].mapped() && j.shape.nodes[i].undoes == "" {
				g.fail(m.c, "I28", "%s has no %s", j, j.shape.nodes[i].name)
			}
		}
	} else if len(j.tasks) != 1 {
		g.fail(m.c, "I28", "%s has %d tasks", j, len(j.tasks))
	}
	if j.events == 0 {
		g.fail(m.c, "I21", "%s has no event", j)
	}
}

func (j *gjob) of(node int) (list []*gtask) {
	for _, t := range j.tasks {
		if t.node == node {
			list = append(list, t)
		}
	}
	return list
}

// left tells how many jobs have not ended, and when the next delayed task is due.
func (g *ghost) left() (n int, due time.Time) {
	if g.open == 0 {
		return 0, due
	}
	first := int64(0)
	for _, j := range g.jobs {
		if j.ended {
			continue
		}
		for _, t := range j.tasks {
			if t.row.place == delayed && (first == 0 || t.row.due < first) {
				first = t.row.due
			}
		}
	}
	if first > 0 {
		due = time.UnixMicro(first).UTC()
	}
	return g.open, due
}

// onlyDelayed says that nothing will happen before something is due.
func (g *ghost) onlyDelayed() bool { return g.busy == 0 }

func (g *ghost) firstLeft() string {
	for _, j := range g.jobs {
		if j.ended {
			continue
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%s, paused %v, cause %d:", j, j.paused, j.cause)
		for _, t := range j.tasks {
			if t.row.place != final {
				fmt.Fprintf(&b, " %s in %s unmet %d due %d;", t, t.row.place, t.row.unmet, t.row.due)
			}
		}
		return b.String()
	}
	return ""
}
