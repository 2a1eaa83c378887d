package main

import (
	"context"
	"flag"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/internal/store/storetest"
	"github.com/drover-dev/drover/test/chaos/journal"
	"github.com/drover-dev/drover/test/chaos/proxy"
)

// away is how long the database is gone in a test; a minute is what is promised.
var away = flag.Duration("chaos.away", 8*time.Second, "how long the database is gone")

// started is a cluster with a load, which ends with the test.
func started(t *testing.T, database string, servers int, lease time.Duration) (*cluster, *load) {
	t.Helper()
	c, err := newCluster(t.Context(), droverBin, filepath.Join(repo, "tools"), place(t), database, servers, lease)
	if c != nil {
		t.Cleanup(c.close)
	}
	if err == nil {
		err = c.up(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	l, err := newLoad(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.j.Close() })
	return c, l
}

// patient is a client as programs have one: it knows every server, and tries again.
func (c *cluster) patient(t *testing.T) *client.Client {
	t.Helper()
	x, err := client.New(client.Config{URL: c.urls(0), Token: c.token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.Close)
	return x
}

func (c *cluster) worker(t *testing.T, slots int) *slot {
	t.Helper()
	if err := c.addWorker(0, slots, false); err != nil {
		t.Fatal(err)
	}
	return c.workers[len(c.workers)-1]
}

// records reads what was written down so far.
func (c *cluster) records(t *testing.T) []journal.Record {
	t.Helper()
	list, err := journal.Read(c.journals())
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// begun returns the entries of handlers of a worker, or of all.
func (c *cluster) begun(t *testing.T, by string) []journal.Record {
	t.Helper()
	return slices.DeleteFunc(c.records(t), func(r journal.Record) bool { return r.Is != journal.Begin || by != "" && r.Whom != by })
}

func until(t *testing.T, limit time.Duration, otherwise string, ok func() bool) {
	t.Helper()
	if !eventually(limit, ok) {
		t.Fatalf("after %v: %s", limit, otherwise)
	}
}

func submit(t *testing.T, c *client.Client, e effort) drover.JobID {
	t.Helper()
	s, err := c.Submit(t.Context(), work(e))
	if err != nil {
		t.Fatal(err)
	}
	return s.JobID
}

func succeeded(t *testing.T, c *client.Client, limit time.Duration, jobs ...drover.JobID) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for _, id := range jobs {
		if j, err := c.WaitJob(ctx, id); err != nil || j.Status != drover.Succeeded {
			t.Fatalf("job %s is %s, %v", id, j.Status, err)
		}
	}
}

// attempts returns those of the one task of a job.
func attempts(t *testing.T, c *client.Client, id drover.JobID) (drover.Task, []drover.Attempt) {
	t.Helper()
	page, err := c.Tasks(t.Context(), id, client.TasksFilter{})
	if err != nil || len(page.Items) != 1 {
		t.Fatalf("tasks of %s: %+v, %v", id, page.Items, err)
	}
	list, err := c.Attempts(t.Context(), page.Items[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	return page.Items[0], list
}

// Two servers are replaced one after the other, under load: nothing is lost, no
// call of a client that knows both fails, and none is delayed by more than a second;
// nor is the start of a task.
func TestRollingRestartOfTwoServersDelaysNothingBySeconds(t *testing.T) {
	if !slices.Contains(storetest.Drivers(t), "postgres") {
		return // a SQLite file belongs to one server
	}
	t.Parallel()
	c, _ := started(t, "postgres", 2, 30*time.Second)
	for range 2 {
		c.worker(t, 4)
	}
	x := c.patient(t)
	var mu sync.Mutex
	var jobs []drover.JobID
	var restarts bool
	var slowest, usual time.Duration // answers, during the restarts and before
	asked := map[string]int64{}      // job → when it was accepted
	calm := map[string]bool{}        // jobs accepted before the restarts
	load, over := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for n := range 3 {
		all.Go(func() {
			for sleep(load, 15*time.Millisecond) {
				began := time.Now()
				s, err := x.Submit(t.Context(), work(effort{N: n, Ms: 5}))
				mu.Lock()
				if restarts {
					slowest = max(slowest, time.Since(began))
				} else {
					usual = max(usual, time.Since(began))
				}
				if err != nil {
					t.Errorf("submit: %v", err)
				} else {
					jobs = append(jobs, s.JobID)
					asked[hexOf(s.JobID)], calm[hexOf(s.JobID)] = journal.Mono(), !restarts
				}
				mu.Unlock()
			}
		})
	}
	sleep(t.Context(), 2*time.Second)
	mu.Lock()
	restarts = true
	mu.Unlock()
	for range 2 {
		for _, s := range c.servers {
			sleep(t.Context(), 700*time.Millisecond)
			began := time.Now()
			if code, willing := s.p.stop(20 * time.Second); code != 0 || !willing {
				t.Errorf("%s ended with %d, by itself: %v", s.name, code, willing)
			}
			t.Logf("%s drained in %v", s.name, time.Since(began).Round(time.Millisecond))
			if err := s.startIfDown(); err != nil {
				t.Fatal(err)
			}
			if err := s.ready(20 * time.Second); err != nil {
				t.Fatal(err)
			}
		}
	}
	sleep(t.Context(), 500*time.Millisecond)
	over()
	all.Wait()
	succeeded(t, x, time.Minute, jobs...)
	var late, usually time.Duration // starts
	first := map[string]bool{}
	for _, b := range c.begun(t, "") {
		took := time.Duration(b.Mono - asked[b.Job])
		switch {
		case first[b.Job]:
			t.Errorf("task %s ran twice", b.Task)
		case calm[b.Job]:
			usually = max(usually, took)
		default:
			late = max(late, took)
		}
		first[b.Job] = true
	}
	t.Logf("%d jobs; the slowest answer took %v (before the restarts %v), the latest start came %v after the answer (%v)", len(jobs), slowest, usual, late, usually)
	if slowest > usual+time.Second || late > usually+time.Second || len(jobs) < 50 {
		t.Error("the restarts delayed something by more than a second")
	}
}

// A worker that is told to stop while it runs one task and holds nine that it has
// not started: the nine start elsewhere at once, and no attempt is used up; the
// one may finish.
func TestStoppedWorkerGivesBackWhatItHasNotStarted(t *testing.T) {
	t.Parallel()
	for _, database := range storetest.Drivers(t) {
		t.Run(database, func(t *testing.T) {
			t.Parallel()
			c, _ := started(t, database, 1, 30*time.Second)
			x := c.patient(t)
			// The worker holds no more than it runs: the answer is held back on its way, so
			// that it stops while nine leases are on theirs.
			w := c.worker(t, 10)
			running := submit(t, x, effort{N: 1, Ms: 3000})
			until(t, 10*time.Second, "the first task does not begin", func() bool { return len(c.begun(t, w.name)) == 1 })
			jobs := make([]drover.NewJob, 9)
			for i := range jobs {
				jobs[i] = work(effort{N: i})
			}
			c.servers[0].front.Set(proxy.Mute, 0)
			direct, err := client.New(client.Config{URL: "http://" + c.servers[0].addr, Token: c.token})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(direct.Close)
			list, err := direct.SubmitMany(t.Context(), jobs)
			if err != nil {
				t.Fatal(err)
			}
			held := func() bool {
				q, err := direct.Queue(t.Context(), "chaos")
				return err == nil && q.Running == 10
			}
			until(t, 10*time.Second, "the nine are not claimed", held)
			w.p.signal(syscall.SIGTERM)
			sleep(t.Context(), 100*time.Millisecond) // it has heard
			began := journal.Mono()
			c.servers[0].front.Set(proxy.Pass, 0)
			other := c.worker(t, 10)
			for _, s := range list {
				succeeded(t, x, 15*time.Second, s.JobID)
			}
			succeeded(t, x, 15*time.Second, running)
			first := c.begun(t, other.name)
			if len(first) != 9 {
				t.Fatalf("the other worker ran %d tasks, want 9", len(first))
			}
			if took := time.Duration(first[8].Mono - began); took > 3*time.Second {
				t.Errorf("the nine started elsewhere after %v", took)
			}
			for _, s := range list {
				if task, tries := attempts(t, x, s.JobID); task.Attempt != 1 || len(tries) != 2 || tries[0].Outcome != "released" {
					t.Errorf("task %s is at attempt %d after %+v; want one given back, not used up", task.ID, task.Attempt, tries)
				}
			}
			if task, tries := attempts(t, x, running); len(tries) != 1 {
				t.Errorf("the running task %s was not left to finish: %+v", task.ID, tries)
			}
			<-w.p.ended
			if code := w.p.cmd.ProcessState.ExitCode(); code != 0 {
				t.Errorf("the worker ended with %d", code)
			}
		})
	}
}

// A worker that drains for longer than its lease goes on renewing: its task is not
// started elsewhere.
func TestDrainThatIsLongerThanTheLeaseKeepsIt(t *testing.T) {
	t.Parallel()
	for _, database := range storetest.Drivers(t) {
		t.Run(database, func(t *testing.T) {
			t.Parallel()
			c, _ := started(t, database, 1, 2*time.Second)
			x := c.patient(t)
			w := c.worker(t, 1)
			id := submit(t, x, effort{N: 1, Ms: 7000})
			until(t, 10*time.Second, "the task does not begin", func() bool { return len(c.begun(t, w.name)) == 1 })
			w.p.signal(syscall.SIGTERM)
			c.worker(t, 1) // would take it
			succeeded(t, x, 20*time.Second, id)
			if task, tries := attempts(t, x, id); len(tries) != 1 || task.LeaseVersion != 1 {
				t.Errorf("the task has lease_version %d and attempts %+v; want one", task.LeaseVersion, tries)
			}
			<-w.p.ended
		})
	}
}

// A worker is told to stop while its poll is open; a task is there in the same
// moment. It starts elsewhere without waiting for a lease to run out.
func TestTaskThatMeetsAStoppingPollStartsElsewhere(t *testing.T) {
	t.Parallel()
	c, _ := started(t, "sqlite", 1, 30*time.Second)
	x := c.patient(t)
	other := c.worker(t, 8)
	for n := range 12 {
		w := c.worker(t, 1)
		until(t, 10*time.Second, "the worker does not come", func() bool {
			list, err := x.Workers(t.Context())
			return err == nil && slices.ContainsFunc(list, func(s drover.Session) bool { return s.Worker == w.name })
		})
		// Its poll is open; so is the other's, or that is stopped: then only this one is there.
		other.p.signal(syscall.SIGSTOP)
		var both sync.WaitGroup
		both.Go(func() {
			time.Sleep(time.Duration(n) * time.Millisecond)
			w.p.signal(syscall.SIGTERM)
		})
		id := submit(t, x, effort{N: n})
		both.Wait()
		other.p.signal(syscall.SIGCONT)
		succeeded(t, x, 10*time.Second, id)
		select {
		case <-w.p.ended:
		case <-time.After(20 * time.Second):
			t.Fatal("the worker does not stop")
		}
	}
}

// When the grace of a stopping worker is over, what it still runs is given back:
// it starts elsewhere at once, as an attempt that was not used up, and is no
// cancelled task.
func TestWorkerWhoseGraceIsOverGivesBackAtOnce(t *testing.T) {
	t.Parallel()
	for _, database := range storetest.Drivers(t) {
		t.Run(database, func(t *testing.T) {
			t.Parallel()
			c, _ := started(t, database, 1, 30*time.Second)
			x := c.patient(t)
			w := c.worker(t, 1)
			begin := w.begin
			w.begin = func(env ...string) (*process, error) { return begin(append(env, "GRACE=200ms")...) }
			w.p.stop(20 * time.Second)
			if err := w.startIfDown(); err != nil {
				t.Fatal(err)
			}
			id := submit(t, x, effort{N: 1, Ms: 4000})
			until(t, 10*time.Second, "the task does not begin", func() bool { return len(c.begun(t, w.name)) == 1 })
			w.p.signal(syscall.SIGTERM)
			told := journal.Mono()
			other := c.worker(t, 1)
			until(t, 10*time.Second, "nobody goes on", func() bool { return len(c.begun(t, other.name)) == 1 })
			if took := time.Duration(c.begun(t, other.name)[0].Mono - told); took > 3*time.Second {
				t.Errorf("it started elsewhere after %v", took)
			}
			succeeded(t, x, 15*time.Second, id)
			if task, tries := attempts(t, x, id); task.Attempt != 1 || len(tries) != 2 || tries[0].Outcome != "released" {
				t.Errorf("the task is at attempt %d after %+v; want one given back, not used up", task.Attempt, tries)
			}
		})
	}
}

// The tasks of a killed worker start elsewhere within a lease and a moment.
func TestTasksOfAKilledWorkerStartElsewhereWithinALease(t *testing.T) {
	t.Parallel()
	for _, database := range storetest.Drivers(t) {
		t.Run(database, func(t *testing.T) {
			t.Parallel()
			const lease = 3 * time.Second
			c, _ := started(t, database, 1, lease)
			x := c.patient(t)
			w := c.worker(t, 50)
			var jobs []drover.JobID
			list := make([]drover.NewJob, 50)
			for i := range list {
				list[i] = work(effort{N: i, Ms: 60_000})
			}
			got, err := x.SubmitMany(t.Context(), list)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range got {
				jobs = append(jobs, s.JobID)
			}
			until(t, 20*time.Second, "they do not begin", func() bool { return len(c.begun(t, w.name)) == 50 })
			other := c.worker(t, 50)
			at := journal.Mono()
			w.p.kill()
			until(t, 20*time.Second, "they do not begin elsewhere", func() bool { return len(c.begun(t, other.name)) == 50 })
			b := c.begun(t, other.name)
			t.Logf("the first after %v, the last after %v", time.Duration(b[0].Mono-at), time.Duration(b[49].Mono-at))
			if took := time.Duration(b[49].Mono - at); took > lease+2500*time.Millisecond {
				t.Errorf("the last of 50 started %v after the kill; the lease is %v", took, lease)
			}
			for _, id := range jobs {
				if _, err := x.Cancel(t.Context(), id, client.Action{}); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// The database is gone for a while. Nothing ends, nothing is started in a circle;
// calls wait or say that it is away; and when it is back all goes on by itself.
func TestEverythingWaitsForADatabaseThatIsAway(t *testing.T) {
	if !slices.Contains(storetest.Drivers(t), "postgres") {
		return // SQLite is a file
	}
	t.Parallel()
	c, l := started(t, "postgres", 2, 4*time.Second)
	for range 2 {
		c.worker(t, 4)
	}
	x := c.patient(t)
	load, over := context.WithCancel(t.Context())
	defer over()
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() { l.run(load, 60*time.Millisecond) })
	}
	sleep(t.Context(), 2*time.Second)
	pids := []int{c.servers[0].p.pid(), c.servers[1].p.pid(), c.workers[0].p.pid(), c.workers[1].p.pid()}
	c.pg.kill()
	down := time.Now()
	// One that is started now waits for it.
	c.servers[1].p.kill()
	if err := c.servers[1].startIfDown(); err != nil {
		t.Fatal(err)
	}
	pids[1] = c.servers[1].p.pid()
	quick, err := client.New(client.Config{URL: "http://" + c.servers[0].addr, Token: c.token, Tries: 1, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(quick.Close)
	if _, err := quick.Submit(t.Context(), work(effort{N: 1})); drover.CodeOf(err) != drover.CodeOverloaded {
		t.Errorf("a submit without a database is answered with %v, want overloaded", err)
	}
	sleep(t.Context(), *away-time.Since(down))
	if err := c.pg.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	succeeded(t, x, 30*time.Second, submit(t, x, effort{N: 2}))
	t.Logf("the database was gone for %v; %v after it came back a new job has ended", back.Sub(down).Round(time.Second), time.Since(back).Round(time.Millisecond))
	if took := time.Since(back); took > 15*time.Second {
		t.Errorf("after the database came back it took %v until a new job ended", took)
	}
	sleep(t.Context(), time.Second)
	over()
	all.Wait()
	calm, done := context.WithTimeout(t.Context(), time.Minute)
	defer done()
	l.settleUnknown(calm)
	if left, err := ended(calm, x); err != nil || left > 0 {
		t.Fatalf("%d jobs are left: %v", left, err)
	}
	for i, p := range []*process{c.servers[0].p, c.servers[1].p, c.workers[0].p, c.workers[1].p} {
		if !p.alive() || p.pid() != pids[i] {
			t.Errorf("%s has ended", p.name)
		}
	}
	for _, w := range c.workers {
		w.p.stop(20 * time.Second)
	}
	content(t, c)
}

// content lets the checker judge what there is.
func content(t *testing.T, c *cluster) {
	t.Helper()
	out, err := c.judge(t.Context(), checkerBin, "-few")
	if err != nil {
		t.Errorf("the checker is not content: %v\n%s", err, out)
	}
}

// A query that the database accepts and never answers holds nobody up for ever:
// the calls that wait are bounded, and asked again over a connection that works.
func TestDatabaseThatNeverAnswersHoldsNobodyUp(t *testing.T) {
	if !slices.Contains(storetest.Drivers(t), "postgres") {
		return // SQLite is a file
	}
	t.Parallel()
	c, _ := started(t, "postgres", 1, 30*time.Second)
	c.worker(t, 2)
	x := c.patient(t)
	succeeded(t, x, 20*time.Second, submit(t, x, effort{N: 1}))
	// Every connection there is becomes half open; new ones are well.
	if n := c.servers[0].back.Kill(); n == 0 {
		t.Fatal("the server has no connection")
	}
	began := time.Now()
	succeeded(t, x, 2*time.Minute, submit(t, x, effort{N: 2}))
	t.Logf("a job ended %v after every connection to the database had died", time.Since(began).Round(time.Millisecond))
	if took := time.Since(began); took > 100*time.Second {
		t.Errorf("it took %v until a job ended after every connection to the database had died", took)
	}
}
