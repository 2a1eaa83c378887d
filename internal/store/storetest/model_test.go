package storetest_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/drover-dev/drover"
)

// This file is what a job queue has to do, said once more and without a
// database: small, slow, all in one place. It knows nothing of the engine's
// tables, counters and locks; it looks at the whole job instead.

const (
	leaseFor    = 30 * time.Second
	cancelGrace = 30 * time.Second
	jitter      = 0.5
	maxLosses   = 5
)

// shape is a pipeline as the model sees it.
type shape struct {
	name   string
	source string
	nodes  []node
	tries  int
}

type node struct {
	name  string
	kind  string
	needs []string
	each  string // a map over the output of that task
	over  string // a map element by element over that map
}

func (n *node) mapped() bool { return n.each != "" || n.over != "" }

var shapes = []*shape{
	{name: "diamond", tries: 2, source: `pipeline: diamond
defaults: {retry: {max_attempts: 2}}
tasks:
  a: {run: k}
  b: {run: k, needs: [a]}
  c: {run: l, needs: [a]}
  d: {run: k, needs: [b, c]}
`, nodes: []node{{name: "a", kind: "k"}, {name: "b", kind: "k", needs: []string{"a"}}, {name: "c", kind: "l", needs: []string{"a"}}, {name: "d", kind: "k", needs: []string{"b", "c"}}}},
	{name: "grow", tries: 3, source: `pipeline: grow
defaults: {retry: {max_attempts: 3}}
tasks:
  list: {run: k}
  other: {run: l}
  one: {run: k, for_each: "${{ tasks.list.output }}"}
  two: {run: l, for_each: one, needs: [other]}
  end: {run: k, needs: [two, one]}
`, nodes: []node{{name: "list", kind: "k"}, {name: "other", kind: "l"}, {name: "one", kind: "k", each: "list"},
		{name: "two", kind: "l", over: "one", needs: []string{"other"}}, {name: "end", kind: "k", needs: []string{"two", "one"}}}},
}

// single is the shape of a job of one task.
func single(kind string, tries int) *shape {
	return &shape{nodes: []node{{name: kind, kind: kind}}, tries: tries}
}

func (s *shape) node(name string) *node {
	return &s.nodes[slices.IndexFunc(s.nodes, func(n node) bool { return n.name == name })]
}

// parents are the nodes that a node waits for: those it names, and what a map
// waits for that it names. With elements that changes nothing; without any, the
// map is done at once, and what follows would overtake a task it waits for.
func (s *shape) parents(name string) []string {
	list := s.named(name)
	for i := 0; i < len(list); i++ {
		p := list[i]
		if s.node(p).over == "" || s.family(p, name) {
			continue
		}
		for _, q := range s.named(p) {
			if !slices.Contains(list, q) {
				list = append(list, q)
			}
		}
	}
	return list
}

func (s *shape) named(name string) []string {
	n := s.node(name)
	list := slices.Clone(n.needs)
	for _, p := range []string{n.each, n.over} {
		if p != "" && !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	return list
}

// root is the map that says how many elements a map has.
func (s *shape) root(name string) string {
	for s.node(name).over != "" {
		name = s.node(name).over
	}
	return name
}

// family reports whether element i of a and element i of b belong together.
func (s *shape) family(a, b string) bool {
	return s.node(a).mapped() && s.node(b).mapped() && s.root(a) == s.root(b)
}

// below are the nodes that wait for one, directly or not.
func (s *shape) below(name string) map[string]bool {
	out := map[string]bool{}
	for range s.nodes {
		for _, n := range s.nodes {
			for _, p := range s.parents(n.name) {
				if p == name || out[p] {
					out[n.name] = true
				}
			}
		}
	}
	return out
}

// task is a row of a job.
type task struct {
	job    *job
	order  int // tasks are in the order in which they came to be
	name   string
	index  int
	status drover.Status

	generation, attempt, losses int
	version                     int32
	// timed says that a PENDING task waits for its time alone.
	timed    bool
	due      time.Time // of a timed or RETRY_WAIT task; else its place in line
	held     bool      // READY, and its job was paused
	session  int
	acquire  int64
	ends     []end
	elements int // of a list that it gave
}

func (t *task) String() string { return fmt.Sprintf("job %d %s[%d]", t.job.number, t.name, t.index) }

// end is how an attempt ended.
type end struct {
	version int32
	session int
	outcome string
	status  drover.Status // of the task after it
}

type job struct {
	number  int
	shape   *shape
	class   drover.Class
	paused  bool
	stop    cause
	stopped time.Time
	failed  bool          // one of its tasks has just failed
	final   drover.Status // 0 while it runs
	run     int
	tasks   []*task
	events  map[drover.EventType]int
	created time.Time
}

type cause int

const (
	running cause = iota
	byUser
	byFailure
)

func (j *job) event(t drover.EventType) { j.events[t]++ }

func (j *job) rows(name string) []*task {
	var out []*task
	for _, t := range j.tasks {
		if t.name == name {
			out = append(out, t)
		}
	}
	return out
}

func (j *job) row(name string, index int) *task {
	for _, t := range j.rows(name) {
		if t.index == index {
			return t
		}
	}
	return nil
}

func (j *job) open() bool {
	return slices.ContainsFunc(j.tasks, func(t *task) bool { return !t.status.Final() })
}

func (j *job) status() drover.Status {
	if j.final != 0 {
		return j.final
	}
	if j.run > 1 || slices.ContainsFunc(j.tasks, func(t *task) bool { return t.version > 0 || t.status.Final() }) {
		return drover.Running
	}
	return drover.Pending
}

// model is the whole of it.
type model struct {
	now      time.Time
	jobs     []*job
	keys     map[string]known
	sessions []*session
	order    int
}

// known is a job by its idempotency key, and the body it came with.
type known struct {
	job  *job
	body string
}

type session struct {
	expires time.Time
	ended   bool
}

func newModel(now time.Time) *model { return &model{now: now, keys: map[string]known{}} }

// newJob is a request for a job.
type newJob struct {
	shape *shape
	class drover.Class
	due   time.Time
	key   string
}

func (n *newJob) body() string {
	return fmt.Sprint(n.shape.name, n.shape.nodes[0].kind, n.shape.tries, n.class, n.due.UnixMicro())
}

// submitted is the answer: a job that is new or known, or none.
type submitted struct {
	job *job
	old bool
	err drover.Code
}

// submit is told which the requests are, in their order. Jobs without a key come
// to be first, then those with one in the order of the keys.
func (m *model) submit(list []newJob) []submitted {
	out := make([]submitted, len(list))
	var fresh []int
	for i, n := range list {
		if n.key == "" {
			fresh = append(fresh, i)
		} else if _, ok := m.keys[n.key]; !ok {
			m.keys[n.key] = known{&job{}, n.body()}
			fresh = append(fresh, i)
		} else if k := m.keys[n.key]; k.body != n.body() {
			out[i].err = drover.CodeIdempotencyReused
		} else {
			out[i] = submitted{job: k.job, old: true}
		}
	}
	for _, i := range fresh {
		j := &job{}
		if k := list[i].key; k != "" {
			j = m.keys[k].job
		}
		m.start(j, list[i])
		out[i] = submitted{job: j}
	}
	return out
}

func (m *model) start(j *job, n newJob) {
	*j = job{number: len(m.jobs), shape: n.shape, class: n.class, run: 1, events: map[drover.EventType]int{}, created: m.now}
	m.jobs = append(m.jobs, j)
	j.event(drover.JobAccepted)
	for _, x := range n.shape.nodes {
		index := 0
		if x.mapped() {
			index = -1
		}
		m.add(&task{job: j, name: x.name, index: index, status: drover.Pending, generation: 1, due: n.due})
	}
	m.advance(j)
}

func (m *model) add(t *task) {
	m.order++
	t.order = m.order
	t.job.tasks = append(t.job.tasks, t)
}

// advance lets every task go on that waits for nothing any more, and expands maps.
func (m *model) advance(j *job) {
	for moved := true; moved; {
		moved = false
		for _, t := range slices.Clone(j.tasks) {
			if t.status != drover.Pending || t.timed || !m.free(t) {
				continue
			}
			moved = true
			if t.index == -1 {
				m.expand(t)
				break
			}
			if t.due.After(m.now) {
				t.timed = true
			} else {
				m.ready(t)
			}
		}
	}
}

// free reports whether everything that t waits for has succeeded.
func (m *model) free(t *task) bool {
	for _, p := range t.job.shape.parents(t.name) {
		if t.job.shape.family(p, t.name) {
			r := t.job.row(p, t.index)
			if r == nil && t.index == -1 && len(t.job.rows(p)) == 0 {
				continue // it has expanded into nothing; t does so once all else is there
			}
			if r == nil || r.status != drover.Succeeded {
				return false
			}
			continue
		}
		for _, r := range t.job.rows(p) {
			if r.index == -1 || r.status != drover.Succeeded {
				return false
			}
		}
	}
	return true
}

// ready stands a task in line, or aside when its job is paused.
func (m *model) ready(t *task) {
	t.timed, t.due = false, m.now
	t.status, t.held = drover.Queued, false
	if t.job.paused {
		t.status, t.held = drover.Ready, true
	}
}

// expand replaces a map and those over it by their elements. Into nothing each
// expands by itself, when all that it needs is there.
func (m *model) expand(t *task) {
	j, s := t.job, t.job.shape
	n := 0
	if s.root(t.name) == t.name {
		n = j.row(s.node(t.name).each, 0).elements
	}
	for _, x := range s.nodes {
		if !x.mapped() || s.root(x.name) != s.root(t.name) || n == 0 && x.name != t.name {
			continue
		}
		old := j.row(x.name, -1)
		j.tasks = slices.DeleteFunc(j.tasks, func(r *task) bool { return r == old })
		for i := range n {
			m.add(&task{job: j, name: x.name, index: i, status: drover.Pending, generation: 1, due: old.due, version: old.version})
		}
		j.event(drover.TaskExpanded)
	}
}

var endEvents = map[drover.Status]drover.EventType{
	drover.Succeeded: drover.TaskSucceeded, drover.Failed: drover.TaskFailed, drover.DeadLetter: drover.TaskDeadLettered,
	drover.Cancelled: drover.TaskCancelled, drover.Skipped: drover.TaskSkipped,
}

// finish ends a task.
func (m *model) finish(t *task, s drover.Status) {
	t.status, t.timed, t.held = s, false, false
	t.job.event(endEvents[s])
	t.job.failed = t.job.failed || s == drover.Failed || s == drover.DeadLetter
}

// follow does what follows when tasks of a job have ended: it goes on, ends, or
// stops because one of them failed.
func (m *model) follow(j *job) {
	failed := j.failed
	j.failed = false
	if j.stop == running && !failed {
		m.advance(j)
	}
	switch {
	case !j.open():
		m.close(j)
	case failed && j.stop == running:
		j.stop, j.stopped = byFailure, m.now
		m.sweep(j)
	}
}

func (m *model) close(j *job) {
	j.final = drover.Succeeded
	for _, t := range j.tasks {
		switch {
		case t.status == drover.Failed || t.status == drover.DeadLetter:
			j.final = drover.Failed
		case t.status == drover.Cancelled && j.final != drover.Failed:
			j.final = drover.Cancelled
		}
	}
	j.paused, j.stop, j.failed = false, running, false
	j.event(map[drover.Status]drover.EventType{drover.Succeeded: drover.JobSucceeded, drover.Failed: drover.JobFailed, drover.Cancelled: drover.JobCancelled}[j.final])
}

// sweep ends or moves the waiting tasks of a job that is stopped, paused or
// resumed, and by force those that run on after the grace.
func (m *model) sweep(j *job) {
	if j.final != 0 {
		return
	}
	moved := false
	for _, t := range j.tasks {
		switch {
		case t.status.Final():
		case j.stop != running && t.status == drover.Running:
			if m.now.After(j.stopped.Add(cancelGrace)) {
				m.endAttempt(t, "forced", drover.Cancelled)
				t.version++
				m.finish(t, drover.Cancelled)
				moved = true
			}
		case j.stop == byUser:
			m.finish(t, drover.Cancelled)
			moved = true
		case j.stop == byFailure:
			m.finish(t, drover.Skipped)
			moved = true
		case j.paused && (t.status == drover.Queued || t.status == drover.Ready):
			t.status, t.held = drover.Ready, true
		case !j.paused && t.held:
			t.status, t.held = drover.Queued, false
		}
	}
	if moved && !j.open() {
		m.close(j)
	}
}

func (m *model) sweepAll() {
	for _, j := range m.jobs {
		m.sweep(j)
	}
}

// claimable are the tasks that an acquire may take, in the order of their lanes'
// lines: of a lane, the first comes first.
func (m *model) claimable() []*task {
	var out []*task
	for _, j := range m.jobs {
		for _, t := range j.tasks {
			if t.status == drover.Queued && !j.paused && j.stop == running {
				out = append(out, t)
			}
		}
	}
	slices.SortFunc(out, func(a, b *task) int {
		return cmp.Or(cmp.Compare(a.job.class, b.job.class), a.due.Compare(b.due), cmp.Compare(a.order, b.order))
	})
	return out
}

// claim checks what an acquire took and takes it. Which lane's turn it is, is the
// engine's business; the rest is not.
func (m *model) claim(s, most int, number int64, took []*task) error {
	can := m.claimable()
	if want := min(most, len(can)); len(took) != want {
		return fmt.Errorf("%d tasks were taken; %d can be, %d are asked for", len(took), len(can), most)
	}
	mine := map[*task]bool{}
	for _, t := range took {
		if !slices.Contains(can, t) || mine[t] {
			return fmt.Errorf("%s was taken; it is %s", t, t.status)
		}
		mine[t] = true
	}
	for i, t := range can {
		if mine[t] {
			continue
		}
		for _, later := range can[i+1:] {
			sameLane := t.job.shape.node(t.name).kind == later.job.shape.node(later.name).kind
			if mine[later] && (later.job.class != t.job.class || sameLane) {
				return fmt.Errorf("%s was taken before %s, which is ahead of it", later, t)
			}
		}
	}
	for _, t := range took {
		t.status = drover.Running
		t.attempt++
		t.version++
		t.session, t.acquire = s, number
	}
	return nil
}

func (m *model) alive(s int) bool {
	x := m.sessions[s]
	return !x.ended && x.expires.After(m.now)
}

// outcome is what a worker says of an attempt.
type outcome struct {
	task    *task
	version int32
	status  string
	class   drover.ErrorClass
	after   time.Duration
	list    int // elements of the list it gives
}

// answer is what it is told.
type answer struct {
	status drover.Status
	lost   bool
}

func (m *model) endAttempt(t *task, outcome string, after drover.Status) {
	t.ends = append(t.ends, end{t.version, t.session, outcome, after})
}

// settle takes outcomes of a session.
func (m *model) settle(s int, list []outcome) []answer {
	out := make([]answer, len(list))
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(list[a].task.order, list[b].task.order), cmp.Compare(list[a].version, list[b].version))
	})
	var late []int
	var touched []*job
	for _, i := range order {
		o, t := list[i], list[i].task
		if t.status != drover.Running || t.session != s || t.version != o.version {
			late = append(late, i)
			continue
		}
		out[i].status = m.ended(o)
		if !slices.Contains(touched, t.job) {
			touched = append(touched, t.job)
		}
	}
	for _, i := range late { // one that was said before gets the first answer
		o := list[i]
		out[i].lost = true
		for _, e := range o.task.ends {
			if e.version == o.version && e.session == s && (e.outcome == o.status || e.outcome == drover.OutcomeCancelled && o.status != drover.OutcomeSucceeded && o.status != drover.OutcomeFailed) {
				out[i] = answer{status: e.status}
			}
		}
	}
	for _, j := range touched {
		m.follow(j)
	}
	return out
}

// ended moves a running task as its worker's word says.
func (m *model) ended(o outcome) drover.Status {
	t := o.task
	word := o.status
	switch {
	case word == drover.OutcomeSucceeded:
		t.elements = o.list
		m.endAttempt(t, word, drover.Succeeded)
		m.finish(t, drover.Succeeded)
		return t.status
	case t.job.stop != running:
		if word != drover.OutcomeFailed {
			word = drover.OutcomeCancelled
		}
		m.endAttempt(t, word, drover.Cancelled)
		m.finish(t, drover.Cancelled)
		return t.status
	case word == drover.OutcomeFailed && o.class == drover.ClassPermanent:
		m.endAttempt(t, word, drover.Failed)
		m.finish(t, drover.Failed)
		return t.status
	case word == drover.OutcomeFailed && t.attempt >= t.job.shape.tries:
		m.endAttempt(t, word, drover.DeadLetter)
		m.finish(t, drover.DeadLetter)
		return t.status
	case word == drover.OutcomeFailed:
		d := backoff(t.attempt)
		if o.class == drover.ClassThrottled && o.after > 0 {
			d = o.after
		}
		m.endAttempt(t, word, drover.RetryWait)
		t.status, t.due = drover.RetryWait, m.now.Add(d)
		t.job.event(drover.TaskRetryScheduled)
		return t.status
	case word == drover.OutcomeSnoozed:
		m.endAttempt(t, word, drover.RetryWait)
		t.status, t.due = drover.RetryWait, m.now.Add(o.after)
		t.attempt--
		t.job.event(drover.TaskSnoozed)
		return t.status
	}
	m.endAttempt(t, word, drover.Ready) // released, or a cancel acknowledged that nobody asked for
	m.giveBack(t)
	t.job.event(drover.TaskReleased)
	return t.status
}

// giveBack stands a task in line again, at the place it had.
func (m *model) giveBack(t *task) {
	t.status, t.held = drover.Ready, t.job.paused
	t.attempt--
	t.version++
}

// backoff is half of 1 s, 2 s, 4 s …, at most a minute.
func backoff(n int) time.Duration {
	return time.Duration(jitter * float64(time.Second) * min(math.Pow(2, float64(n-1)), 60))
}

// held are the tasks that a session runs.
func (m *model) held(s int) []*task {
	var out []*task
	for _, j := range m.jobs {
		for _, t := range j.tasks {
			if t.status == drover.Running && t.session == s {
				out = append(out, t)
			}
		}
	}
	return out
}

// lose takes the tasks of a session back that has fallen silent.
func (m *model) lose(s int) {
	var touched []*job
	for _, t := range m.held(s) {
		if !slices.Contains(touched, t.job) {
			touched = append(touched, t.job)
		}
		if t.job.stop != running {
			m.endAttempt(t, "forced", drover.Cancelled)
			t.version++
			m.finish(t, drover.Cancelled)
			continue
		}
		t.losses++
		m.endAttempt(t, "lease_lost", 0)
		switch {
		case t.losses > maxLosses:
			t.version++
			m.finish(t, drover.DeadLetter)
			continue
		case t.losses == 1:
			m.giveBack(t)
		default:
			t.status, t.due = drover.RetryWait, m.now.Add(backoff(t.losses-1))
			t.attempt--
			t.version++
		}
		t.job.event(drover.TaskLeaseExpired)
	}
	for _, j := range touched {
		m.follow(j)
	}
}

// release gives tasks of a session back.
func (m *model) release(s int, list []*task) {
	var out []outcome
	for _, t := range list {
		out = append(out, outcome{task: t, version: t.version, status: drover.OutcomeReleased})
	}
	m.settle(s, out)
}

func (m *model) closeSession(s int) {
	m.sessions[s].ended = true
	m.release(s, m.held(s))
}

func (m *model) reap() {
	for i, s := range m.sessions {
		if !s.ended && !s.expires.After(m.now) {
			s.ended = true
			m.lose(i)
		}
	}
}

func (m *model) timers() {
	for _, j := range m.jobs {
		for _, t := range j.tasks {
			if (t.status == drover.RetryWait || t.timed) && !t.due.After(m.now) {
				m.ready(t)
			}
		}
	}
}

func (m *model) admit() {
	for _, j := range m.jobs {
		for _, t := range j.tasks {
			if t.status == drover.Ready && !t.held {
				t.status = drover.Queued
			}
		}
	}
}

// hold cancels, pauses or resumes a job; it reports whether that was allowed.
func (m *model) hold(j *job, verb string) bool {
	switch {
	case j.final != 0:
		return verb == "cancel" && j.final == drover.Cancelled
	case verb == "cancel" && j.stop == running:
		j.stop, j.stopped = byUser, m.now
		j.event(drover.JobCancelRequested)
	case verb == "cancel":
		return j.stop == byUser
	case verb == "pause" && !j.paused:
		if j.stop != running {
			return false
		}
		j.paused = true
		j.event(drover.JobPaused)
	case verb == "resume" && j.paused:
		j.paused = false
		j.event(drover.JobResumed)
	default:
		return true
	}
	m.sweep(j)
	return true
}

// replay opens a task's next generation; it reports whether that was allowed.
func (m *model) replay(t *task) bool {
	j, s := t.job, t.job.shape
	if !t.status.Final() || j.stop != running {
		return false
	}
	cut := j.final == drover.Failed
	failed := func(x *task) bool { return x.status == drover.Failed || x.status == drover.DeadLetter }
	back := map[*task]bool{t: true}
	// Maps of one list expand at one moment: they come back together, or not at all.
	for _, x := range j.tasks {
		if t.index == -1 && s.root(t.name) == t.name && x.index == -1 && s.family(t.name, x.name) && x.status.Final() {
			back[x] = true
		}
	}
	if cut {
		blocked := map[string]bool{}
		for _, x := range j.tasks {
			if !back[x] && failed(x) {
				maps.Copy(blocked, s.below(x.name))
			}
		}
		for range j.tasks {
			for _, x := range j.tasks {
				if r := s.root(x.name); x.index == -1 && blocked[x.name] && !blocked[r] {
					blocked[r] = true
					maps.Copy(blocked, s.below(r))
				}
			}
		}
		for _, x := range j.tasks {
			if (x.status == drover.Skipped || x.status == drover.Cancelled) && !blocked[x.name] {
				back[x] = true
			}
		}
	}
	waits := func(c, p *task) bool { // c counts p
		return slices.Contains(s.parents(c.name), p.name) && (!s.family(c.name, p.name) || c.index == p.index)
	}
	for _, c := range j.tasks {
		for _, p := range j.tasks {
			if back[c] && waits(c, p) && p.status.Final() && p.status != drover.Succeeded && !back[p] {
				return false // it would wait for ever
			}
		}
	}
	if j.final != 0 {
		j.final = 0
		j.run++
		j.event(drover.JobReopened)
	}
	j.event(drover.TaskReplayed)
	for x := range back {
		*x = task{job: j, order: x.order, name: x.name, index: x.index, status: drover.Pending, generation: x.generation + 1, version: x.version, ends: x.ends, elements: x.elements}
	}
	m.follow(j)
	return true
}
