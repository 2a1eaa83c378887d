package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/drover-dev/drover/test/chaos/journal"
)

// verdict is what became of one invariant.
type verdict struct {
	ID    string   `json:"id"`
	Says  string   `json:"says"`
	Cases int      `json:"cases"` // how often it was put to the test
	Bad   []string `json:"bad,omitempty"`
}

// evidence is everything that is known of a run.
type evidence struct {
	list []journal.Record
	db   *database

	ops     map[string]*op
	order   []*op
	begun   map[string][]journal.Record // by task
	ended   map[lease][]journal.Record
	settled map[lease][]journal.Record
	graphs  map[string]journal.Record
	seen    map[string][]journal.Record // by watch
	faults  []journal.Record
	names   map[string]string // task → its name in the pipeline
	jobsOf  map[string]*op    // job → the submit that made it
}

type lease struct {
	task string
	n    int64
}

// op is a call of a client with all its tries.
type op struct {
	journal.Record
	tries, lost       int
	oks, fails        []journal.Record
	first, lastAnswer int64
}

func gather(list []journal.Record, db *database) *evidence {
	e := &evidence{list: list, db: db, ops: map[string]*op{}, begun: map[string][]journal.Record{}, ended: map[lease][]journal.Record{}, settled: map[lease][]journal.Record{},
		graphs: map[string]journal.Record{}, seen: map[string][]journal.Record{}, names: map[string]string{}, jobsOf: map[string]*op{}}
	for _, r := range list {
		at := lease{r.Task, int64(r.Lease)}
		switch r.Is {
		case journal.Invoke:
			o := e.ops[r.Op]
			if o == nil {
				o = &op{Record: r, first: r.Mono}
				e.ops[r.Op] = o
				e.order = append(e.order, o)
			}
			o.tries++
			o.lost++ // until its answer
		case journal.OK, journal.Fail, journal.Unknown:
			o := e.ops[r.Op]
			if o == nil {
				continue
			}
			o.lastAnswer = r.Mono
			switch r.Is {
			case journal.OK:
				o.lost--
				o.oks = append(o.oks, r)
			case journal.Fail:
				o.lost--
				o.fails = append(o.fails, r)
			}
		case journal.Begin:
			e.begun[r.Task] = append(e.begun[r.Task], r)
			e.names[r.Task] = r.Name
		case journal.End:
			e.ended[at] = append(e.ended[at], r)
		case journal.Settle:
			e.settled[at] = append(e.settled[at], r)
		case journal.Graph:
			e.graphs[r.Pipeline] = r
		case journal.Seen:
			e.seen[r.Op] = append(e.seen[r.Op], r)
		case journal.Fault:
			e.faults = append(e.faults, r)
		}
	}
	for _, o := range e.order {
		for _, r := range o.oks {
			for _, id := range made(r) {
				if o.Verb == "submit" || o.Verb == "batch" {
					e.jobsOf[id] = o
				}
			}
		}
	}
	return e
}

// check judges every invariant.
func check(e *evidence) []verdict {
	var all []verdict
	for _, i := range []struct {
		id, says string
		judge    func(*evidence, *verdict)
	}{
		{"I01", "every task of an accepted job comes to its end", (*evidence).noLoss},
		{"I02", "a task has one success in a generation", (*evidence).oneSuccess},
		{"I03", "a report under a lease that is over is refused, and one that is accepted is the holder's", (*evidence).fenced},
		{"I04", "the fence rises by one at each claim, loss, release and forced end", (*evidence).fenceRises},
		{"I05", "a task has one owner at a time, and a handler is entered once for each attempt on record", (*evidence).oneOwner},
		{"I07", "attempts are numbered without gaps and bounded", (*evidence).attemptsBounded},
		{"I10", "a report that was acknowledged is on record", (*evidence).acknowledged},
		{"I11", "a call whose answer was lost gets the answer of its first execution", (*evidence).sameAnswer},
		{"I13", "a job is final exactly when its tasks are, and counts them", (*evidence).finalJobs},
		{"I14", "nothing starts before what it needs has succeeded", (*evidence).noEarlyChild},
		{"I17", "a map has as many elements as its list", (*evidence).expanded},
		{"I18", "after the answer to a cancel nothing of the job is claimed, and it ends", (*evidence).cancels},
		{"I18p", "between the answers to a pause and a resume nothing of the job is claimed", (*evidence).pauses},
		{"I21", "events tell what the rows tell", (*evidence).eventsMatch},
		{"I23", "a job's events are 1, 2, 3, …, also to who watches", (*evidence).eventsInOrder},
		{"I24", "what a watcher sees is on record", (*evidence).noPhantom},
		{"I27", "a key stands for one job; another body under it is refused", (*evidence).keys},
		{"I28", "an accepted job exists", (*evidence).accepted},
		{"I37", "nothing starts before it is due", (*evidence).neverEarly},
		{"I52", "a task stands in one place; one whose attempts are used up is a dead letter once", (*evidence).onePlace},
		{"I53", "a replay that is asked for twice is one", (*evidence).replays},
	} {
		v := verdict{ID: i.id, Says: i.says}
		i.judge(e, &v)
		all = append(all, v)
	}
	return all
}

func (v *verdict) bad(format string, args ...any) {
	v.Bad = append(v.Bad, fmt.Sprintf(format, args...))
}

func (e *evidence) noLoss(v *verdict) {
	for _, id := range slices.Sorted(maps.Keys(e.jobsOf)) {
		j := e.db.jobs[id]
		if j == nil {
			continue // I28 tells
		}
		for _, t := range j.tasks {
			if t.elements {
				continue
			}
			v.Cases++
			if len(t.live) > 0 {
				v.bad("task %s of job %s stands in %s when all is quiet", t.id, id, strings.Join(t.live, ", "))
			} else if len(t.finals) == 0 {
				v.bad("task %s of job %s is nowhere", t.id, id)
			}
		}
	}
}

func (e *evidence) oneSuccess(v *verdict) {
	for _, t := range e.sorted() {
		wins := map[int64][]int64{}
		for _, a := range t.attempts {
			if a.outcome == "succeeded" {
				wins[a.generation] = append(wins[a.generation], a.lease)
			}
		}
		for at, list := range e.settled {
			if at.task != t.id {
				continue
			}
			for _, r := range list {
				if r.Verb != journal.OK || r.Outcome != "succeeded" || r.Status != "SUCCEEDED" {
					continue
				}
				g := int64(0)
				for _, b := range e.begun[t.id] {
					if int64(b.Lease) == at.n {
						g = int64(b.Generation)
					}
				}
				if g > 0 && !slices.Contains(wins[g], at.n) {
					wins[g] = append(wins[g], at.n)
				}
			}
		}
		for g, list := range wins {
			v.Cases++
			if len(list) > 1 {
				v.bad("task %s succeeded %d times in generation %d, under leases %v", t.id, len(list), g, list)
			}
		}
		n := 0
		for _, ev := range t.job.events {
			if ev.task == t.id && ev.typ == "task.succeeded" {
				n++
			}
		}
		if n > len(wins) {
			v.bad("task %s has %d events of success in %d generations that succeeded", t.id, n, len(wins))
		}
	}
}

func (e *evidence) sorted() []*task {
	list := slices.Collect(maps.Values(e.db.tasks))
	slices.SortFunc(list, func(a, b *task) int { return strings.Compare(a.id, b.id) })
	return list
}

// fenced counts the stale reports that were refused.
func (e *evidence) fenced(v *verdict) {
	for at, list := range e.settled {
		t := e.db.tasks[at.task]
		if t == nil {
			continue // I05 tells
		}
		a := t.at(at.n)
		refused, taken := false, false
		for _, r := range list {
			refused = refused || r.Verb == journal.Fail && r.Code == "lease-lost"
			taken = taken || r.Verb == journal.OK
		}
		if refused {
			v.Cases++
			if a != nil && a.outcome == "succeeded" && list[0].Outcome == "succeeded" {
				v.bad("task %s: a report under lease %d was refused, and is on record", at.task, at.n)
			}
		}
		if taken && a != nil && (a.outcome == "lease_lost" || a.outcome == "forced") {
			v.bad("task %s: a report under lease %d was accepted, and that lease is on record as %s", at.task, at.n, a.outcome)
		}
		if taken && a == nil {
			v.bad("task %s: a report under lease %d was accepted, and there was no such lease", at.task, at.n)
		}
	}
}

func (e *evidence) fenceRises(v *verdict) {
	for _, t := range e.sorted() {
		fence := int64(0)
		for _, a := range t.attempts {
			v.Cases++
			if a.lease != fence+1 {
				v.bad("task %s: the lease after %d is %d", t.id, fence, a.lease)
			}
			if fence = a.lease; a.rises() {
				fence++
			}
		}
		if n := len(t.finals); n > 0 && len(t.attempts) > 0 && (t.finals[n-1].lease < t.attempts[len(t.attempts)-1].lease) {
			v.bad("task %s ended under lease %d, below its last attempt's", t.id, t.finals[n-1].lease)
		}
	}
}

func (e *evidence) oneOwner(v *verdict) {
	for _, t := range e.sorted() {
		for i, a := range t.attempts {
			if i > 0 && a.claimed < t.attempts[i-1].ended-slack.Microseconds() {
				v.bad("task %s was claimed under lease %d while lease %d still ran", t.id, a.lease, t.attempts[i-1].lease)
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(e.begun)) {
		t := e.db.tasks[id]
		if t == nil {
			v.bad("a handler was entered for task %s, which does not exist", id)
			continue
		}
		entered := map[int64]int{}
		for _, b := range e.begun[id] {
			v.Cases++
			entered[int64(b.Lease)]++
			a := t.at(int64(b.Lease))
			switch {
			case entered[int64(b.Lease)] > 1:
				v.bad("task %s: a handler was entered twice under lease %d", id, b.Lease)
			case a == nil:
				v.bad("task %s: a handler was entered under lease %d, of which there is no record", id, b.Lease)
			}
		}
		// Two that ran at once: the older one had lost its lease.
		for i, b := range e.begun[id] {
			for _, o := range e.begun[id][:i] {
				// o began first. Its lease may be the later one: then b is a zombie that was
				// stopped between its claim and its first word.
				old, both := o, false
				if o.Lease > b.Lease {
					old, both = b, true
				} else if ends := e.ended[lease{id, int64(o.Lease)}]; len(ends) > 0 && ends[0].Mono > b.Mono {
					both = true
				}
				if a := t.at(int64(old.Lease)); both && a != nil && (a.outcome == "succeeded" || a.outcome == "failed") {
					v.bad("task %s ran twice at once, under leases %d and %d, and lease %d %s", id, o.Lease, b.Lease, old.Lease, a.outcome)
				}
			}
		}
	}
}

// slack is by how much the clocks of two servers, each carried forward from the
// database's, may differ.
const slack = 250 * time.Millisecond

func (e *evidence) attemptsBounded(v *verdict) {
	for _, t := range e.sorted() {
		most := int64(0)
		for _, b := range e.begun[t.id] {
			most = int64(b.Most)
		}
		used, gen := int64(0), int64(1)
		for _, a := range t.attempts {
			if a.generation != gen {
				used, gen = 0, a.generation
			}
			v.Cases++
			if a.n != used+1 {
				v.bad("task %s: attempt %d follows %d that were used up", t.id, a.n, used)
			}
			if most > 0 && a.n > most {
				v.bad("task %s: attempt %d of at most %d", t.id, a.n, most)
			}
			if !a.free() {
				used = a.n
			}
		}
	}
}

func (e *evidence) acknowledged(v *verdict) {
	for at, list := range e.settled {
		for _, r := range list {
			if r.Verb != journal.OK {
				continue
			}
			v.Cases++
			t := e.db.tasks[at.task]
			if t == nil {
				v.bad("a report on task %s was acknowledged; there is no such task", at.task)
				continue
			}
			a := t.at(at.n)
			// A job that is cancelled ends its tasks whatever they report.
			if a == nil || a.outcome != r.Outcome && a.outcome != "cancelled" && a.outcome != "forced" && a.status != cancelled {
				v.bad("task %s: %q under lease %d was acknowledged as %s; on record is %+v", at.task, r.Outcome, at.n, r.Status, a)
			}
			break
		}
	}
}

func (e *evidence) sameAnswer(v *verdict) {
	for _, o := range e.order {
		if o.lost == 0 || len(o.oks) == 0 {
			continue
		}
		v.Cases++
		for _, r := range o.oks[1:] {
			if !slices.Equal(made(r), made(o.oks[0])) {
				v.bad("%s %s answered %v, then %v", o.Verb, o.Op, made(o.oks[0]), made(r))
			}
		}
		if o.Verb == "submit" && o.Key != "" {
			if jobs := e.db.keys[o.Key]; len(jobs) != 1 || jobs[0] != o.oks[0].Job {
				v.bad("submit %s under key %s answered %s; the key stands for %v", o.Op, o.Key, o.oks[0].Job, jobs)
			}
		}
	}
}

func (e *evidence) finalJobs(v *verdict) {
	for _, id := range slices.Sorted(maps.Keys(e.db.jobs)) {
		j := e.db.jobs[id]
		v.Cases++
		var live int
		count := map[int64]int64{}
		total := int64(0)
		for _, t := range j.tasks {
			switch {
			case t.elements:
			case len(t.live) > 0:
				live++
			case len(t.finals) > 0:
				count[t.finals[len(t.finals)-1].status]++
				total++
			}
		}
		switch n := len(j.finals); {
		case live == 0 && (n == 0 || j.live):
			v.bad("job %s has no live task and is not final", id)
		case live > 0 && n > 0 && !j.live:
			v.bad("job %s is final and has %d live tasks", id, live)
		case live == 0:
			f := j.finals[n-1]
			if f.total != total || f.succeeded != count[succeeded] || f.failed != count[failed]+count[deadLetter] || f.cancelled != count[cancelled] || f.skipped != count[skipped] {
				v.bad("job %s counts %+v; its tasks are %v", id, f, count)
			}
		}
	}
}

func (e *evidence) noEarlyChild(v *verdict) {
	for _, id := range slices.Sorted(maps.Keys(e.begun)) {
		t := e.db.tasks[id]
		if t == nil || e.jobsOf[t.job.id] == nil {
			continue
		}
		g, ok := e.graphs[e.jobsOf[t.job.id].Pipeline]
		if !ok {
			continue
		}
		for _, b := range e.begun[id] {
			for _, need := range g.Needs[b.Name] {
				parent, same := strings.CutSuffix(need, "[]")
				for _, p := range t.job.tasks {
					if p.elements || e.nameOf(p, g.Pipeline) != parent || same && p.index != t.index {
						continue
					}
					v.Cases++
					done := false
					for _, a := range p.attempts {
						for _, r := range e.ended[lease{p.id, a.lease}] {
							done = done || r.Outcome == "succeeded" && r.Mono < b.Mono
						}
					}
					if !done {
						v.bad("task %s (%s[%d]) of job %s began before %s[%d] had succeeded", id, b.Name, b.Index, t.job.id, parent, p.index)
					}
				}
			}
		}
	}
}

// nameOf is a task's name in its pipeline, told by the handlers of any job of it.
func (e *evidence) nameOf(t *task, pipeline string) string {
	if n := e.names[t.id]; n != "" {
		return n
	}
	for _, o := range e.db.tasks {
		if o.node == t.node && o.job.pipeline == t.job.pipeline && e.names[o.id] != "" && e.jobsOf[o.job.id] != nil && e.jobsOf[o.job.id].Pipeline == pipeline {
			return e.names[o.id]
		}
	}
	return ""
}

func (e *evidence) expanded(v *verdict) {
	for _, id := range slices.Sorted(maps.Keys(e.jobsOf)) {
		o, j := e.jobsOf[id], e.db.jobs[id]
		if j == nil || len(o.Elements) == 0 || len(j.finals) == 0 || j.finals[len(j.finals)-1].status != succeeded {
			continue
		}
		count := map[string]int{}
		places := map[string]bool{}
		for _, t := range j.tasks {
			place := fmt.Sprint(t.node, "/", t.index)
			if places[place] {
				v.bad("job %s has two tasks at node %d, index %d", id, t.node, t.index)
			}
			if places[place] = true; t.index >= 0 {
				count[e.nameOf(t, o.Pipeline)]++
			}
		}
		for name, want := range o.Elements {
			v.Cases++
			if count[name] != want {
				v.bad("map %s of job %s has %d elements, of a list of %d", name, id, count[name], want)
			}
		}
	}
}

func (e *evidence) cancels(v *verdict) {
	for _, o := range e.order {
		if o.Verb != "cancel" || len(o.oks) == 0 {
			continue
		}
		v.Cases++
		j := e.db.jobs[o.Job]
		if j == nil {
			v.bad("job %s was cancelled and does not exist", o.Job)
			continue
		}
		if len(j.finals) == 0 {
			v.bad("job %s was cancelled and has no end", o.Job)
		}
		e.notClaimed(v, j, o.oks[0].Wall, 1<<62, "cancelled")
	}
}

// notClaimed looks for claims of a job between two moments of the wall clock.
func (e *evidence) notClaimed(v *verdict, j *job, from, to int64, what string) {
	for _, t := range j.tasks {
		for _, a := range t.attempts {
			entered := slices.ContainsFunc(e.begun[t.id], func(b journal.Record) bool { return int64(b.Lease) == a.lease })
			if at := a.claimed * 1000; entered && at > from+slack.Nanoseconds() && at < to-slack.Nanoseconds() {
				v.bad("task %s of job %s was claimed under lease %d, %s after the job was %s", t.id, j.id, a.lease, time.Duration(at-from), what)
			}
		}
	}
}

func (e *evidence) pauses(v *verdict) {
	for _, o := range e.order {
		if o.Verb != "pause" || len(o.oks) == 0 || o.oks[0].Status != "RUNNING" && o.oks[0].Status != "PENDING" {
			continue
		}
		resumed := int64(1 << 62)
		for _, r := range e.list {
			if r.Is == journal.Invoke && r.Verb == "resume" && r.Job == o.Job && r.Mono > o.oks[0].Mono {
				resumed = r.Wall
				break
			}
		}
		if j := e.db.jobs[o.Job]; j != nil {
			v.Cases++
			e.notClaimed(v, j, o.oks[0].Wall, resumed, "paused")
		}
	}
}

func (e *evidence) eventsMatch(v *verdict) {
	ends := map[string]int64{"task.succeeded": succeeded, "task.failed": failed, "task.dead_lettered": deadLetter, "task.cancelled": cancelled, "task.skipped": skipped}
	for _, id := range slices.Sorted(maps.Keys(e.db.jobs)) {
		j := e.db.jobs[id]
		told := map[string]map[string]int{}
		byType := map[string]int{}
		for _, ev := range j.events {
			byType[ev.typ]++
			if told[ev.task] == nil {
				told[ev.task] = map[string]int{}
			}
			told[ev.task][ev.typ]++
		}
		if n := byType["job.succeeded"] + byType["job.failed"] + byType["job.cancelled"]; n != len(j.finals) {
			v.bad("job %s ended %d times by its events, %d by its rows", id, n, len(j.finals))
		}
		if byType["job.accepted"] != 1 {
			v.bad("job %s was accepted %d times", id, byType["job.accepted"])
		}
		for _, t := range j.tasks {
			if t.elements {
				continue
			}
			v.Cases++
			for typ, status := range ends {
				n := 0
				for _, f := range t.finals {
					if f.status == status {
						n++
					}
				}
				if told[t.id][typ] != n {
					v.bad("task %s has %d events %s and %d such ends", t.id, told[t.id][typ], typ, n)
				}
			}
			back := 0
			for _, a := range t.attempts {
				if a.status < succeeded {
					back++
				}
			}
			if n := told[t.id]["task.retry_scheduled"] + told[t.id]["task.lease_expired"] + told[t.id]["task.released"] + told[t.id]["task.snoozed"]; n != back {
				v.bad("task %s came back %d times by its events, %d by its attempts", t.id, n, back)
			}
		}
	}
}

func (e *evidence) eventsInOrder(v *verdict) {
	for _, id := range slices.Sorted(maps.Keys(e.db.jobs)) {
		for i, ev := range e.db.jobs[id].events {
			if ev.seq != int64(i+1) {
				v.bad("event %d of job %s has number %d", i+1, id, ev.seq)
				break
			}
		}
	}
	for _, op := range slices.Sorted(maps.Keys(e.seen)) {
		for i, r := range e.seen[op] {
			v.Cases++
			if r.Seq != int64(i+1) {
				v.bad("%s of job %s saw event %d where %d was due", op, r.Job, r.Seq, i+1)
				break
			}
		}
	}
}

func (e *evidence) noPhantom(v *verdict) {
	for _, op := range slices.Sorted(maps.Keys(e.seen)) {
		for _, r := range e.seen[op] {
			v.Cases++
			j := e.db.jobs[r.Job]
			if j == nil || !slices.ContainsFunc(j.events, func(ev event) bool { return ev.seq == r.Seq && ev.typ == r.Type }) {
				v.bad("event %d (%s) of job %s was seen and is not on record", r.Seq, r.Type, r.Job)
			}
		}
	}
}

func (e *evidence) keys(v *verdict) {
	type use struct {
		jobs, bodies map[string]bool
		asked        int
	}
	uses := map[string]*use{}
	for _, o := range e.order {
		if o.Verb != "submit" || o.Key == "" {
			continue
		}
		u := uses[o.Key]
		if u == nil {
			u = &use{jobs: map[string]bool{}, bodies: map[string]bool{}}
			uses[o.Key] = u
		}
		u.asked += o.tries
		for _, r := range o.oks {
			u.jobs[r.Job] = true
			u.bodies[o.Body] = true
		}
		for _, r := range o.fails {
			if r.Code == "idempotency-key-reused" && len(u.bodies) == 1 && u.bodies[o.Body] {
				v.bad("key %s was refused for the body it stands for", o.Key)
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(uses)) {
		u := uses[key]
		if u.asked > 1 {
			v.Cases++
		}
		if len(u.jobs) > 1 {
			v.bad("key %s was answered with %d jobs", key, len(u.jobs))
		}
		if len(u.bodies) > 1 {
			v.bad("key %s was accepted with two bodies", key)
		}
		if n := len(e.db.keys[key]); n > 1 {
			v.bad("key %s stands for %d jobs", key, n)
		}
	}
}

func (e *evidence) accepted(v *verdict) {
	for _, id := range slices.Sorted(maps.Keys(e.jobsOf)) {
		v.Cases++
		if e.db.jobs[id] == nil {
			v.bad("job %s was accepted (%s) and does not exist", id, e.jobsOf[id].Op)
		}
	}
}

func (e *evidence) neverEarly(v *verdict) {
	for id, o := range e.jobsOf {
		j := e.db.jobs[id]
		if o.Due == 0 || j == nil {
			continue
		}
		for _, t := range j.tasks {
			for _, b := range e.begun[t.id] {
				v.Cases++
				if b.Wall < o.Due {
					v.bad("task %s began %s before it was due", t.id, time.Duration(o.Due-b.Wall))
				}
			}
		}
	}
}

func (e *evidence) onePlace(v *verdict) {
	for _, t := range e.sorted() {
		n := len(t.finals)
		switch {
		case t.elements:
			if len(t.live) > 0 {
				v.bad("map %s stands beside its elements", t.id)
			}
			continue
		case len(t.live) > 1:
			v.bad("task %s stands in %s", t.id, strings.Join(t.live, " and "))
		}
		for i, f := range t.finals {
			if f.generation != int64(i+1) {
				v.bad("task %s has ends of generations %+v", t.id, t.finals)
				break
			}
		}
		if n == 0 || len(t.live) > 0 {
			continue
		}
		f := t.finals[n-1]
		most := int64(0)
		for _, b := range e.begun[t.id] {
			most = int64(b.Most)
		}
		last := attempt{}
		if k := len(t.attempts); k > 0 {
			last = t.attempts[k-1]
		}
		for _, g := range t.finals {
			if g.status != deadLetter {
				continue
			}
			v.Cases++
			if a := t.at(g.lease); a != nil && a.outcome == "failed" && most > 0 && a.n < most {
				v.bad("task %s is a dead letter after %d attempts of %d", t.id, a.n, most)
			}
		}
		if f.status != deadLetter && f.status != cancelled && f.status != failed && last.outcome == "failed" && most > 0 && last.n >= most && last.generation == f.generation {
			v.bad("task %s has used up its attempts and is no dead letter", t.id)
		}
	}
}

func (e *evidence) replays(v *verdict) {
	asked := map[string]map[string]bool{} // task → requests that were answered
	open := map[string]bool{}
	for _, o := range e.order {
		if o.Verb != "replay" {
			continue
		}
		if len(o.oks) == 0 {
			open[o.Task] = open[o.Task] || len(o.fails) == 0
			continue
		}
		if asked[o.Task] == nil {
			asked[o.Task] = map[string]bool{}
		}
		asked[o.Task][o.Request] = true
	}
	for _, id := range slices.Sorted(maps.Keys(asked)) {
		t := e.db.tasks[id]
		if t == nil {
			v.bad("task %s was replayed and does not exist", id)
			continue
		}
		v.Cases++
		generations := len(t.finals) + min(len(t.live), 1)
		if !open[id] && generations != 1+len(asked[id]) {
			v.bad("task %s was replayed by %d requests and is in generation %d", id, len(asked[id]), generations)
		}
	}
}

func sortAttempts(list []attempt) {
	slices.SortFunc(list, func(a, b attempt) int { return cmp.Compare(a.lease, b.lease) })
}

// made returns the jobs that an answer names.
func made(r journal.Record) []string {
	if len(r.Jobs) > 0 {
		return r.Jobs
	}
	if r.Job == "" {
		return nil
	}
	return []string{r.Job}
}
