package e2e

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

// story goes through the built-in executor and a worker process: list, then for
// each element prepare[i] and, as soon as that is done, square[i]; then total.
const story = `
pipeline: story
tasks:
  list: {run: exec, with: {command: [./step.sh, list]}}
  prepare:
    run: exec
    for_each: "${{ tasks.list.output }}"
    with: {command: [./step.sh, prepare, "${{ item }}"]}
  square: {run: work, queue: work, for_each: prepare}
  total: {run: sum, queue: work, with: "${{ tasks.square.output }}"}
`

// step keeps notes as the worker's handlers do. The first elements go through,
// the others wait to be let go.
const step = `#!/bin/sh
note() { echo "$1 $DROVER_TASK_ID $DROVER_LEASE_VERSION" >>"$DROVER_WORKDIR/notes"; }
note begin
until=
case $1 in
list) echo '[0, 1, 2, 3, 4, 5, 6, 7]' >"$DROVER_OUTPUT" ;;
prepare)
	[ "$2" -lt 3 ] || while [ ! -e "$DROVER_WORKDIR/go" ]; do sleep 0.05; done
	[ "$2" -ne 2 ] || until=worker-go
	echo "{\"n\": $2, \"until\": \"$until\"}" >"$DROVER_OUTPUT"
	;;
esac
note end
`

// A server that is killed in the middle of a job and started again finishes it,
// and enters no handler again whose task was done.
func TestKilledServerFinishesTheSameJob(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.write("story.yaml", story)
	if err := os.Chmod(f.write("step.sh", step), 0o700); err != nil {
		t.Fatal(err)
	}
	addr := freeAddress(t)
	dev := f.dev(addr, "--slots", "2")
	c := f.connect()
	token := strings.TrimSpace(f.read(".drover/token"))
	w := f.worker("w", c.URL(), token, 2, time.Minute)
	f.drover("pipeline", "apply", "story.yaml")
	id, err := drover.ParseJobID(f.drover("job", "submit", "--pipeline", "story", "--idempotency-key", "once", "-o", "name"))
	if err != nil {
		t.Fatal(err)
	}

	// In the middle: list, prepare 0 to 2 and square 0 and 1 are done, prepare 3
	// and 4 run in the server's process, square 2 in the worker's.
	var before []drover.Task
	eventually(t, 30*time.Second, "the job does not get to its middle", func() bool {
		before = tasks(t, c, id)
		done, running := 0, 0
		for _, task := range before {
			switch task.Status {
			case drover.Succeeded:
				done++
			case drover.Running:
				running++
			}
		}
		begun, _ := f.notes()
		return done == 6 && running == 3 && len(begun) == 9
	})
	dev.kill()

	// Nobody is there when the worker's task ends.
	held := named(t, before, "square", 2)
	f.write("worker-go", "")
	eventually(t, 10*time.Second, "the worker's handler does not go on without a server", func() bool {
		_, ended := f.notes()
		return entered(ended, held.ID) == 1
	})
	f.write("go", "")
	dev = f.dev(addr, "--slots", "2")
	job := wait(t, c, id, 25*time.Second) // shorter than a lease: nothing had to run out
	if string(job.Result) != "140" {
		t.Errorf("result = %s, want 140, the sum of 0² to 7²", job.Result)
	}

	begun, _ := f.notes()
	for _, task := range before {
		if n := entered(begun, task.ID); task.Status == drover.Succeeded && n != 1 {
			t.Errorf("%s[%d] was done before the kill and was entered %d times", task.Name, task.Index, n)
		}
	}
	if n := entered(begun, held.ID); n != 1 {
		t.Errorf("the task whose worker outlived the server was entered %d times, want once", n)
	}
	for i := 3; i <= 4; i++ {
		if n := entered(begun, named(t, before, "prepare", i).ID); n != 2 {
			t.Errorf("prepare[%d], which ran in the killed process, was entered %d times, want twice", i, n)
		}
	}
	for _, task := range f.audit(c, id) {
		if task.Attempt != 1 {
			t.Errorf("%s[%d] ended at attempt %d; a killed server uses up none", task.Name, task.Index, task.Attempt)
		}
	}
	if again := f.drover("job", "submit", "--pipeline", "story", "--idempotency-key", "once", "-o", "name"); again != id.String() {
		t.Errorf("after the kill the same key gives %s, not %s", again, id)
	}
	if !w.alive() {
		t.Error("the worker process did not outlive the server")
	}
	w.signal(syscall.SIGTERM)
	if code := w.wait(); code != 0 {
		t.Errorf("the worker ended with %d, want 0", code)
	}
	dev.signal(syscall.SIGTERM)
	if code := dev.wait(); code != 0 {
		t.Errorf("the server ended with %d, want 0", code)
	}
}

func named(t *testing.T, list []drover.Task, name string, index int) drover.Task {
	t.Helper()
	for _, task := range list {
		if task.Name == name && task.Index == index {
			return task
		}
	}
	t.Fatalf("there is no task %s[%d]", name, index)
	return drover.Task{}
}

// A lease that is not renewed runs out, whatever became of its worker: killed,
// hung, or one that does not care. What the former holder still says is refused.
func TestSilentWorkersLoseTheirTasks(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.dev("127.0.0.1:0", "--no-exec", "--no-http")
	c := f.connect()
	token := strings.TrimSpace(f.read(".drover/token"))
	begun := func(id drover.JobID) func() bool {
		return func() bool {
			b, _ := f.notes()
			return entered(b, only(t, tasks(t, c, id)).ID) > 0
		}
	}
	hold := func(n int, until string) drover.JobID {
		return submit(t, c, drover.NewJob{Kind: "work", Queue: "work", Input: encode(t, work{N: n, Until: until})})
	}

	killed := f.worker("killed", c.URL(), token, 1, time.Minute)
	first := hold(1, "go")
	eventually(t, 10*time.Second, "the first worker does not begin", begun(first))
	hung := f.worker("hung", c.URL(), token, 1, time.Minute)
	second := hold(2, "go")
	eventually(t, 10*time.Second, "the second worker does not begin", begun(second))
	third := hold(3, "go-third")
	rude, err := c.OpenSession(t.Context(), drover.NewSession{Worker: "rude", Queues: []string{"work"}, Slots: 1})
	if err != nil {
		t.Fatal(err)
	}
	leases, err := c.Acquire(t.Context(), drover.Acquire{Session: rude.ID, Max: 1, Number: 1, Wait: protocol.MaxWait})
	if err != nil || len(leases) != 1 || leases[0].JobID != third {
		t.Fatalf("acquire: %v, %v; want the third job's task", leases, err)
	}
	old := drover.Held{TaskID: leases[0].TaskID, LeaseVersion: leases[0].LeaseVersion}

	killed.kill()
	hung.signal(syscall.SIGSTOP)
	f.write("go", "")
	healthy := f.worker("healthy", c.URL(), token, 4, time.Minute)
	for _, id := range []drover.JobID{first, second} {
		j := wait(t, c, id, 45*time.Second)
		if !strings.Contains(string(j.Result), `"healthy"`) {
			t.Errorf("result = %s, want the healthy worker's", j.Result)
		}
	}
	eventually(t, 15*time.Second, "nobody takes the third task over", begun(third))

	// The former holder of the third speaks while its successor still works.
	answer, err := c.Settle(t.Context(), protocol.SettleRequest{Session: rude.ID, Outcomes: []drover.Outcome{
		{TaskID: old.TaskID, LeaseVersion: old.LeaseVersion, Status: drover.OutcomeSucceeded, Output: []byte(`"rude"`)},
	}})
	if err != nil || len(answer.Results) != 1 || answer.Results[0].Error == nil || answer.Results[0].Error.Code != drover.CodeLeaseLost {
		t.Errorf("a stale outcome is answered with %+v, %v; want lease-lost", answer.Results, err)
	}
	if err := c.SetProgress(t.Context(), old, drover.Progress{Ratio: 1}); !errors.Is(err, drover.ErrLeaseLost) {
		t.Errorf("stale progress: %v, want lease-lost", err)
	}
	if err := c.AppendLogs(t.Context(), old, []drover.LogLine{{Text: "rude", Level: "info", At: time.Now()}}); !errors.Is(err, drover.ErrLeaseLost) {
		t.Errorf("stale logs: %v, want lease-lost", err)
	}
	if _, err := c.PutArtifact(t.Context(), old, drover.Artifact{Name: "rude.txt"}, strings.NewReader("rude")); !errors.Is(err, drover.ErrLeaseLost) {
		t.Errorf("a stale upload: %v, want lease-lost", err)
	}
	if j, err := c.Job(t.Context(), third); err != nil || j.Status != drover.Running {
		t.Errorf("after all that the third job is %s, %v; want RUNNING", j.Status, err)
	}
	f.write("go-third", "")
	if j := wait(t, c, third, 10*time.Second); !strings.Contains(string(j.Result), `"healthy"`) {
		t.Errorf("result = %s, want the healthy worker's", j.Result)
	}
	for i, id := range []drover.JobID{first, second, third} {
		task := only(t, tasks(t, c, id))
		attempts, err := c.Attempts(t.Context(), task.ID)
		if err != nil || len(attempts) != 2 || attempts[0].Outcome != "lease_lost" || attempts[1].Outcome != "succeeded" || attempts[1].LeaseVersion <= attempts[0].LeaseVersion {
			t.Errorf("attempts of job %d = %+v, %v; want a lost one and, under a higher lease_version, a success", i+1, attempts, err)
		}
	}

	// The one that hung finds out, and is of use again.
	healthy.signal(syscall.SIGTERM)
	healthy.wait()
	hung.signal(syscall.SIGCONT)
	fourth := hold(4, "")
	if j := wait(t, c, fourth, 15*time.Second); !strings.Contains(string(j.Result), `"hung"`) {
		t.Errorf("result = %s, want that of the worker that hung", j.Result)
	}
	f.audit(c, first, second, third, fourth)
	hung.signal(syscall.SIGTERM)
	if code := hung.wait(); code != 0 {
		t.Errorf("the worker that hung ended with %d, want 0", code)
	}
}

func only(t *testing.T, list []drover.Task) drover.Task {
	t.Helper()
	if len(list) != 1 {
		t.Fatalf("%d tasks, want one", len(list))
	}
	return list[0]
}

// A worker that stops, and one that leaves, give back what they hold: others
// start it at once, and no attempt is used up.
func TestDrainGivesBackAtOnce(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.dev("127.0.0.1:0", "--no-exec", "--no-http")
	c := f.connect()
	token := strings.TrimSpace(f.read(".drover/token"))
	stopped := f.worker("stopped", c.URL(), token, 1, 100*time.Millisecond)
	var jobs []drover.JobID
	for n := range 2 {
		jobs = append(jobs, submit(t, c, drover.NewJob{Kind: "work", Queue: "work", Input: encode(t, work{N: n, Until: "go"})}))
	}
	eventually(t, 10*time.Second, "the worker does not begin", func() bool { b, _ := f.notes(); return len(b) == 1 })
	leaves, err := c.OpenSession(t.Context(), drover.NewSession{Worker: "leaves", Queues: []string{"work"}, Slots: 1})
	if err != nil {
		t.Fatal(err)
	}
	if leases, err := c.Acquire(t.Context(), drover.Acquire{Session: leaves.ID, Max: 1, Number: 1, Wait: protocol.MaxWait}); err != nil || len(leases) != 1 {
		t.Fatalf("acquire: %v, %v; want a lease", leases, err)
	}

	began := time.Now()
	if err := c.CloseSession(t.Context(), leaves.ID); err != nil {
		t.Fatal(err)
	}
	stopped.signal(syscall.SIGTERM)
	if code := stopped.wait(); code != 0 {
		t.Errorf("the worker ended with %d, want 0", code)
	}
	f.worker("next", c.URL(), token, 2, time.Minute)
	eventually(t, 10*time.Second, "the tasks do not begin again", func() bool { b, _ := f.notes(); return len(b) == 3 })
	t.Logf("both run again after %v", time.Since(began))
	f.write("go", "")
	for _, id := range jobs {
		if j := wait(t, c, id, 10*time.Second); !strings.Contains(string(j.Result), `"next"`) {
			t.Errorf("result = %s, want the next worker's", j.Result)
		}
		task := only(t, tasks(t, c, id))
		attempts, err := c.Attempts(t.Context(), task.ID)
		if err != nil || len(attempts) != 2 || attempts[0].Outcome != "released" || attempts[1].Outcome != "succeeded" || task.Attempt != 1 {
			t.Errorf("attempts = %s, %v, the task's own count %d; want a released one and a success, counted as one", outcomes(attempts), err, task.Attempt)
		}
	}
	f.audit(c, jobs...)
}

func outcomes(of []drover.Attempt) string {
	var b strings.Builder
	for _, a := range of {
		fmt.Fprintf(&b, "%d: %s under %d; ", a.Attempt, a.Outcome, a.LeaseVersion)
	}
	return b.String()
}
