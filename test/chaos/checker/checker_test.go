package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover/test/chaos/journal"
)

// run is a small chaos run made by hand, in which all is well.
type run struct {
	list []journal.Record
	db   *database
	now  int64 // seconds
}

// say appends a record a second after the last one.
func (r *run) say(x journal.Record) {
	r.now++
	x.Mono, x.Wall = r.now*1e9, r.now*1e9
	r.list = append(r.list, x)
}

// call is a client's call that is answered at once.
func (r *run) call(x, answer journal.Record) {
	x.Is = journal.Invoke
	r.say(x)
	x.Is, x.Job, x.Status, x.Code = answer.Is, answer.Job, answer.Status, answer.Code
	r.say(x)
}

func (r *run) job(id string, pipeline int64) *job {
	j := &job{id: id, pipeline: pipeline}
	r.db.jobs[id] = j
	return j
}

func (r *run) task(j *job, id string, node, index int64) *task {
	t := &task{id: id, job: j, node: node, index: index}
	j.tasks = append(j.tasks, t)
	r.db.tasks[id] = t
	return t
}

// event appends to a job's events.
func (j *job) event(typ, task string) {
	j.events = append(j.events, event{seq: int64(len(j.events) + 1), typ: typ, task: task})
}

// entered writes down that a handler ran a task under a lease, and how that went:
// "" is that it was killed.
func (r *run) entered(t *task, name string, lease int32, generation, n int, pid int, how string) {
	x := journal.Record{Is: journal.Begin, Task: t.id, Job: t.job.id, Lease: lease, Generation: generation, Attempt: n, Most: 2, Name: name, Index: int(t.index), Pid: pid}
	r.say(x)
	if how == "" {
		return
	}
	x.Is, x.Outcome = journal.End, how
	r.say(x)
	x.Is, x.Verb, x.Status = journal.Settle, journal.OK, strings.ToUpper(how)
	r.say(x)
}

// done is a task that succeeds at its first try, at r's now.
func (r *run) done(t *task, name string) {
	at := r.now * 1e6
	r.entered(t, name, 1, 1, 1, 7, "succeeded")
	t.finals = append(t.finals, taskFinal{generation: 1, status: succeeded, attempt: 1, lease: 1, claimed: at, finished: at + 2e6})
	t.job.event("task.succeeded", t.id)
}

func (j *job) end(status int64, typ string) {
	f := jobFinal{run: int64(len(j.finals) + 1), status: status}
	for _, t := range j.tasks {
		if n := len(t.finals); n > 0 {
			f.total++
			switch t.finals[n-1].status {
			case succeeded:
				f.succeeded++
			case failed, deadLetter:
				f.failed++
			case cancelled:
				f.cancelled++
			}
		}
	}
	j.finals = append(j.finals, f)
	j.event(typ, "")
}

// sound makes the run.
func sound() *run {
	r := &run{db: &database{jobs: map[string]*job{}, tasks: map[string]*task{}, keys: map[string][]string{}}}
	ok := func(job string) journal.Record { return journal.Record{Is: journal.OK, Job: job} }
	r.say(journal.Record{Is: journal.Graph, Pipeline: "fan", Needs: map[string][]string{"split": {}, "piece": {"split"}, "then": {"piece[]"}, "join": {"then"}}})

	// A job of one task; the answer to its submit is lost, and to a repeat given. The
	// first worker is killed, and another one, whom nobody told, is late.
	x := journal.Record{Op: "1", Verb: "submit", Key: "k1", Body: "b"}
	r.call(x, journal.Record{Is: journal.Unknown})
	r.call(x, ok("j1"))
	r.call(journal.Record{Op: "2", Verb: "submit", Key: "k1", Body: "other"}, journal.Record{Is: journal.Fail, Code: "idempotency-key-reused"})
	r.db.keys["k1"] = []string{"j1"}
	j1 := r.job("j1", 0)
	t1 := r.task(j1, "t1", 0, 0)
	j1.event("job.accepted", "")
	at := r.now * 1e6
	r.entered(t1, "work", 1, 1, 1, 5, "")
	r.say(journal.Record{Is: journal.Fault, What: "kill", Whom: "worker-1", Of: 5, From: r.now * 1e9, To: r.now*1e9 + 1})
	t1.attempts = append(t1.attempts, attempt{lease: 1, generation: 1, n: 1, claimed: at, ended: at + 2e6, outcome: "lease_lost", status: 2})
	j1.event("task.lease_expired", "t1")
	r.say(journal.Record{Is: journal.Settle, Task: "t1", Lease: 1, Outcome: "succeeded", Verb: journal.Fail, Code: "lease-lost"})
	at = r.now * 1e6
	r.entered(t1, "work", 3, 1, 1, 6, "succeeded")
	t1.attempts = append(t1.attempts, attempt{lease: 3, generation: 1, n: 1, claimed: at, ended: at + 2e6, outcome: "succeeded", status: succeeded})
	t1.finals = append(t1.finals, taskFinal{generation: 1, status: succeeded, attempt: 1, losses: 1, lease: 3, claimed: at, finished: at + 2e6})
	j1.event("task.succeeded", "t1")
	j1.end(succeeded, "job.succeeded")

	// A pipeline with a map of two, watched.
	r.call(journal.Record{Op: "3", Verb: "submit", Key: "k2", Body: "b", Pipeline: "fan", Elements: map[string]int{"piece": 2, "then": 2}}, ok("j2"))
	r.db.keys["k2"] = []string{"j2"}
	j2 := r.job("j2", 1)
	j2.event("job.accepted", "")
	r.done(r.task(j2, "split", 0, 0), "split")
	r.task(j2, "map", 1, -1)
	r.task(j2, "map2", 2, -1)
	for i := range int64(2) {
		r.done(r.task(j2, fmt.Sprintf("piece%d", i), 1, i), "piece")
		r.done(r.task(j2, fmt.Sprintf("then%d", i), 2, i), "then")
	}
	r.done(r.task(j2, "join", 3, 0), "join")
	j2.end(succeeded, "job.succeeded")
	for _, e := range j2.events {
		r.say(journal.Record{Is: journal.Seen, Op: "w1", Job: "j2", Seq: e.seq, Type: e.typ})
	}

	// One that is cancelled before it starts.
	r.call(journal.Record{Op: "4", Verb: "submit", Key: "k3", Body: "b"}, ok("j3"))
	r.db.keys["k3"] = []string{"j3"}
	j3 := r.job("j3", 0)
	t3 := r.task(j3, "t3", 0, 0)
	j3.event("job.accepted", "")
	r.call(journal.Record{Op: "5", Verb: "cancel", Job: "j3", Request: "c"}, journal.Record{Is: journal.OK, Job: "j3", Status: "CANCELLED"})
	t3.finals = append(t3.finals, taskFinal{generation: 1, status: cancelled, finished: r.now * 1e6})
	j3.event("task.cancelled", "t3")
	j3.end(cancelled, "job.cancelled")

	// One that fails twice, is replayed by a request that is sent twice, and succeeds.
	r.call(journal.Record{Op: "6", Verb: "submit", Key: "k4", Body: "b"}, ok("j4"))
	r.db.keys["k4"] = []string{"j4"}
	j4 := r.job("j4", 0)
	t4 := r.task(j4, "t4", 0, 0)
	j4.event("job.accepted", "")
	for n := int64(1); n <= 2; n++ {
		at := r.now * 1e6
		r.entered(t4, "work", int32(n), 1, int(n), 6, "failed")
		a := attempt{lease: n, generation: 1, n: n, claimed: at, ended: at + 2e6, outcome: "failed", status: 6}
		if n == 2 {
			a.status = deadLetter
			j4.event("task.dead_lettered", "t4")
		} else {
			j4.event("task.retry_scheduled", "t4")
		}
		t4.attempts = append(t4.attempts, a)
	}
	t4.finals = append(t4.finals, taskFinal{generation: 1, status: deadLetter, attempt: 2, lease: 2, claimed: r.now * 1e6, finished: r.now * 1e6})
	j4.end(failed, "job.failed")
	for _, op := range []string{"7", "8"} {
		r.call(journal.Record{Op: op, Verb: "replay", Job: "j4", Task: "t4", Request: "r"}, ok("j4"))
	}
	j4.event("job.reopened", "")
	j4.event("task.replayed", "t4")
	at = r.now * 1e6
	r.entered(t4, "work", 3, 2, 1, 6, "succeeded")
	t4.finals = append(t4.finals, taskFinal{generation: 2, status: succeeded, attempt: 1, lease: 3, claimed: at, finished: at + 2e6})
	j4.event("task.succeeded", "t4")
	j4.end(succeeded, "job.succeeded")

	// One that starts later, and is paused before that.
	r.call(journal.Record{Op: "9", Verb: "submit", Key: "k5", Body: "b", Due: (r.now + 8) * 1e9}, ok("j5"))
	r.db.keys["k5"] = []string{"j5"}
	j5 := r.job("j5", 0)
	j5.event("job.accepted", "")
	r.call(journal.Record{Op: "10", Verb: "pause", Job: "j5"}, journal.Record{Is: journal.OK, Job: "j5", Status: "PENDING"})
	r.call(journal.Record{Op: "11", Verb: "resume", Job: "j5"}, journal.Record{Is: journal.OK, Job: "j5", Status: "PENDING"})
	r.now += 3
	r.done(r.task(j5, "t5", 0, 0), "work")
	j5.end(succeeded, "job.succeeded")
	r.say(journal.Record{Is: journal.Heal})
	return r
}

func (r *run) judge() map[string]verdict {
	r.db.complete()
	out := map[string]verdict{}
	for _, v := range check(gather(r.list, r.db)) {
		out[v.ID] = v
	}
	return out
}

func TestCheckerIsContentWithASoundRun(t *testing.T) {
	t.Parallel()
	for id, v := range sound().judge() {
		if v.Cases == 0 || len(v.Bad) > 0 {
			t.Errorf("%s: %d cases, %v", id, v.Cases, v.Bad)
		}
	}
}

// find returns the records that match.
func (r *run) find(is func(*journal.Record) bool) (list []*journal.Record) {
	for i := range r.list {
		if is(&r.list[i]) {
			list = append(list, &r.list[i])
		}
	}
	return list
}

// drop takes records out.
func (r *run) drop(is func(*journal.Record) bool) {
	r.list = slices.DeleteFunc(r.list, func(x journal.Record) bool { return is(&x) })
}

// TestCheckerSeesPlantedViolations plants violations of every invariant: a checker
// that finds nothing proves nothing.
func TestCheckerSeesPlantedViolations(t *testing.T) {
	t.Parallel()
	of := func(is, task string, lease int32) func(*journal.Record) bool {
		return func(x *journal.Record) bool { return x.Is == is && x.Task == task && x.Lease == lease }
	}
	planted := map[string]bool{}
	for _, c := range []struct {
		id, what string
		plant    func(r *run)
		says     string
	}{
		{"I01", "a task that waits for ever", func(r *run) { r.db.tasks["t1"].finals, r.db.tasks["t1"].live = nil, []string{"task_queued"} }, "stands in task_queued"},
		{"I01", "a task that is gone", func(r *run) { r.db.tasks["join"].finals = nil }, "is nowhere"},
		{"I02", "two attempts that succeeded", func(r *run) { r.db.tasks["t1"].attempts[0].outcome = "succeeded" }, "succeeded 2 times"},
		{"I02", "a second success that was acknowledged", func(r *run) {
			x := r.find(of(journal.Settle, "t1", 1))[0]
			x.Verb, x.Code, x.Status = journal.OK, "", "SUCCEEDED"
		}, "succeeded 2 times"},
		{"I02", "a second event of success", func(r *run) { r.db.jobs["j1"].event("task.succeeded", "t1") }, "2 events of success"},
		{"I03", "a stale report that was accepted", func(r *run) {
			x := r.find(of(journal.Settle, "t1", 1))[0]
			x.Verb, x.Code, x.Status = journal.OK, "", "SUCCEEDED"
		}, "on record as lease_lost"},
		{"I03", "a refused report that is on record", func(r *run) { r.db.tasks["t1"].attempts[0].outcome = "succeeded" }, "was refused, and is on record"},
		{"I03", "a report under a lease that there was not", func(r *run) { r.find(of(journal.Settle, "t1", 3))[0].Lease = 9 }, "there was no such lease"},
		{"I04", "a claim that did not raise the fence", func(r *run) { r.db.tasks["t1"].attempts[1].lease, r.db.tasks["t1"].finals[0].lease = 2, 2 }, "the lease after 2 is 2"},
		{"I04", "a fence that fell", func(r *run) { r.db.tasks["t1"].finals[0].lease = 1 }, "below its last attempt's"},
		{"I05", "two owners at once", func(r *run) { r.db.tasks["t1"].attempts[1].claimed -= 5e6 }, "still ran"},
		{"I05", "one lease in two hands", func(r *run) { r.list = append(r.list, *r.find(of(journal.Begin, "t1", 3))[0]) }, "entered twice"},
		{"I05", "a handler nobody was sent to", func(r *run) { r.find(of(journal.Begin, "t1", 3))[0].Lease = 8 }, "of which there is no record"},
		{"I05", "a task that does not exist", func(r *run) { r.find(of(journal.Begin, "t1", 3))[0].Task = "ghost" }, "does not exist"},
		{"I05", "two that ran at once, both with a say", func(r *run) {
			r.db.tasks["t4"].attempts[0].outcome = "failed"
			r.find(of(journal.End, "t4", 1))[0].Mono += 10e9
		}, "ran twice at once"},
		{"I07", "a gap between attempts", func(r *run) { r.db.tasks["t4"].attempts[1].n = 3 }, "attempt 3 follows 1"},
		{"I07", "an attempt too many", func(r *run) { r.find(of(journal.Begin, "t4", 3))[0].Most = 1 }, "attempt 2 of at most 1"},
		{"I10", "a report that is not on record", func(r *run) { r.db.tasks["t4"].attempts[0].outcome = "succeeded" }, `"failed" under lease 1 was acknowledged`},
		{"I11", "a repeat with another answer", func(r *run) {
			x := *r.find(func(x *journal.Record) bool { return x.Op == "1" && x.Is == journal.OK })[0]
			x.Job = "j2"
			asked := x
			asked.Is = journal.Invoke
			r.list = append(r.list, asked, x)
		}, "answered [j1], then [j2]"},
		{"I11", "a key that stands for another job", func(r *run) { r.db.keys["k1"] = []string{"j9"} }, "the key stands for [j9]"},
		{"I13", "a job without an end", func(r *run) { r.db.jobs["j1"].finals = nil }, "is not final"},
		{"I13", "an end before the last task's", func(r *run) { r.db.tasks["join"].finals, r.db.tasks["join"].live = nil, []string{"task_running"} }, "has 1 live tasks"},
		{"I13", "a wrong count", func(r *run) { r.db.jobs["j2"].finals[0].succeeded = 3 }, "counts"},
		{"I14", "a join that did not wait", func(r *run) { r.find(of(journal.Begin, "join", 1))[0].Mono = 8e9 }, "began before then[0]"},
		{"I14", "an element that did not wait for its own", func(r *run) { r.drop(of(journal.End, "piece1", 1)) }, "began before piece[1]"},
		{"I17", "an element too few", func(r *run) {
			j := r.db.jobs["j2"]
			j.tasks = slices.DeleteFunc(j.tasks, func(t *task) bool { return t.id == "then1" })
			delete(r.db.tasks, "then1")
		}, "map then of job j2 has 1 elements"},
		{"I17", "an element twice", func(r *run) { r.db.tasks["piece1"].index = 0 }, "two tasks at node 1"},
		{"I18", "a claim after the cancel", func(r *run) {
			r.entered(r.db.tasks["t3"], "work", 1, 1, 1, 6, "")
			r.db.tasks["t3"].attempts = []attempt{{lease: 1, generation: 1, n: 1, claimed: r.now * 1e6, ended: r.now * 1e6, outcome: "cancelled", status: cancelled}}
		}, "after the job was cancelled"},
		{"I18", "a cancelled job that has no end", func(r *run) { r.db.jobs["j3"].finals = nil }, "has no end"},
		{"I18p", "a claim during the pause", func(r *run) {
			f := r.db.tasks["t5"].finals
			x := r.find(func(x *journal.Record) bool { return x.Verb == "pause" && x.Is == journal.OK })[0]
			f[0].claimed = x.Wall/1000 + 500_000
		}, "after the job was paused"},
		{"I21", "an end nobody was told of", func(r *run) {
			j := r.db.jobs["j2"]
			j.events = slices.DeleteFunc(j.events, func(e event) bool { return e.task == "join" })
		}, "0 events task.succeeded and 1 such ends"},
		{"I21", "a retry nobody was told of", func(r *run) { r.db.jobs["j1"].events[1].typ = "task.succeeded" }, "came back 0 times by its events"},
		{"I21", "a job that ended twice by its events", func(r *run) { r.db.jobs["j1"].event("job.succeeded", "") }, "ended 2 times by its events"},
		{"I21", "a job that was never accepted", func(r *run) { r.db.jobs["j1"].events[0].typ = "job.resumed" }, "was accepted 0 times"},
		{"I23", "a gap in the numbers", func(r *run) { r.db.jobs["j1"].events[2].seq = 7 }, "has number 7"},
		{"I23", "a watcher that missed one", func(r *run) { r.drop(func(x *journal.Record) bool { return x.Is == journal.Seen && x.Seq == 2 }) }, "saw event 3 where 2 was due"},
		{"I24", "an event that never was", func(r *run) {
			r.find(func(x *journal.Record) bool { return x.Is == journal.Seen && x.Seq == 2 })[0].Type = "task.failed"
		}, "is not on record"},
		{"I27", "two jobs under one key", func(r *run) { r.db.keys["k1"] = []string{"j1", "j2"} }, "stands for 2 jobs"},
		{"I27", "another body that was accepted", func(r *run) {
			x := r.find(func(x *journal.Record) bool { return x.Op == "2" && x.Is == journal.Fail })[0]
			x.Is, x.Code, x.Job = journal.OK, "", "j1"
		}, "two bodies"},
		{"I27", "a second job for another body", func(r *run) {
			x := r.find(func(x *journal.Record) bool { return x.Op == "2" && x.Is == journal.Fail })[0]
			x.Is, x.Code, x.Job, x.Body = journal.OK, "", "j2", "b"
		}, "answered with 2 jobs"},
		{"I28", "an accepted job that is gone", func(r *run) { delete(r.db.jobs, "j3") }, "does not exist"},
		{"I37", "an early start", func(r *run) { r.find(of(journal.Begin, "t5", 1))[0].Wall -= 5e9 }, "before it was due"},
		{"I52", "a task in two places", func(r *run) { r.db.tasks["t1"].live = []string{"task_ready", "task_queued"} }, "task_ready and task_queued"},
		{"I52", "a map beside its elements", func(r *run) { r.db.tasks["map"].live = []string{"task_pending"} }, "beside its elements"},
		{"I52", "a dead letter too early", func(r *run) { r.find(of(journal.Begin, "t4", 3))[0].Most = 5 }, "dead letter after 2 attempts of 5"},
		{"I52", "generations that do not follow each other", func(r *run) { r.db.tasks["t4"].finals[1].generation = 3 }, "ends of generations"},
		{"I53", "a replay that ran twice", func(r *run) {
			t := r.db.tasks["t4"]
			t.finals = append(t.finals, taskFinal{generation: 3, status: succeeded, attempt: 1, lease: 4})
		}, "by 1 requests and is in generation 3"},
		{"I53", "a replay that never was", func(r *run) { r.db.tasks["t4"].finals = r.db.tasks["t4"].finals[:1] }, "is in generation 1"},
	} {
		planted[c.id] = true
		r := sound()
		c.plant(r)
		if v := r.judge()[c.id]; !strings.Contains(strings.Join(v.Bad, "\n"), c.says) {
			t.Errorf("%s, %s: the checker says %q, want %q", c.id, c.what, v.Bad, c.says)
		}
	}
	for id := range sound().judge() {
		if !planted[id] {
			t.Errorf("no violation of %s was planted", id)
		}
	}
}

func TestNoCaseIsAFailure(t *testing.T) {
	t.Parallel()
	r := sound()
	r.drop(func(x *journal.Record) bool { return x.Is == journal.Seen })
	r.db.complete()
	e := gather(r.list, r.db)
	f := e.figures()
	f.Invariants = check(e)
	var out strings.Builder
	if f.print(&out, false) || !strings.Contains(out.String(), "I24  NONE       0 cases") {
		t.Errorf("a run in which nothing was watched passes:\n%s", out.String())
	}
	if out.Reset(); !f.print(&out, true) {
		t.Errorf("a scenario in which nothing was watched fails:\n%s", out.String())
	}
}

func TestFiguresOfARun(t *testing.T) {
	t.Parallel()
	r := sound()
	r.db.complete()
	f := gather(r.list, r.db).figures()
	if f.Kills["worker"] != 1 || f.Acknowledged != 5 || f.Found != 5 || f.StaleRejected != 1 || f.LeasesLost != 1 || f.DeadLetters != 1 || f.DoubleSuccesses != 0 {
		t.Errorf("figures = %+v", f)
	}
	// The killed worker's task began elsewhere three seconds after it.
	if f.Recoveries != 1 || time.Duration(f.RecoveryP50*1e9).Round(time.Second) != 3*time.Second {
		t.Errorf("%d recoveries, p50 %v", f.Recoveries, f.RecoveryP50)
	}
}

// A process that is killed while it writes leaves half a line; any other damage
// of a journal is told.
func TestJournalsOfKilledProcessesAreRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w, err := journal.Open(filepath.Join(dir, "a.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := w.Write(journal.Record{Is: journal.Begin, Task: fmt.Sprint(i)}, journal.Record{Is: journal.End, Task: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	half, err := json.Marshal(journal.Record{Is: journal.Begin})
	if err != nil {
		t.Fatal(err)
	}
	add := func(text string) {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(dir, "a.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	add(string(half[:10]))
	list, err := journal.Read(dir)
	if err != nil || len(list) != 6 || list[5].Task != "2" {
		t.Errorf("read %d records, %v; want 6", len(list), err)
	}
	add("\n")
	if _, err := journal.Read(dir); err == nil {
		t.Error("damage in the middle is not told")
	}
}
