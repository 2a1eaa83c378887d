package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/worker"
)

// workerEnv makes a process of this test binary a worker. It holds a folder: the
// handler notes there what it does, and waits there for what it needs.
const workerEnv = "DROVER_E2E_WORKER"

// work is the input of the handlers.
type work struct {
	N int `json:"n"`
	// Until, when set, names a file in the folder for which the handler waits.
	Until string `json:"until,omitempty"`
}

// workerMain runs handlers of the kinds "work" and "sum" until SIGTERM.
func workerMain() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	dir := os.Getenv(workerEnv)
	slots, err := strconv.Atoi(os.Getenv("SLOTS"))
	if err != nil {
		return err
	}
	grace, err := time.ParseDuration(os.Getenv("GRACE"))
	if err != nil {
		return err
	}
	w, err := worker.Connect(os.Getenv("DROVER_URL"), os.Getenv("DROVER_TOKEN"), worker.Config{
		Queues: []string{"work"}, Slots: slots, Name: os.Getenv("NAME"), Grace: grace, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	worker.Handle(w, "work", func(ctx context.Context, t *worker.Task, in work) (map[string]any, error) {
		if err := note(dir, "begin", t); err != nil {
			return nil, err
		}
		if in.Until != "" {
			if err := waitForFile(ctx, filepath.Join(dir, in.Until)); err != nil {
				return nil, err
			}
		}
		return map[string]any{"n": in.N * in.N, "by": os.Getenv("NAME")}, note(dir, "end", t)
	})
	worker.Handle(w, "guarded", func(ctx context.Context, t *worker.Task, in work) (int64, error) {
		l, err := t.Lock(ctx, "ledger")
		if err != nil {
			return 0, err
		}
		if err := os.WriteFile(filepath.Join(dir, "token-"+t.TaskID.String()), strconv.AppendInt(nil, l.Token, 10), 0o600); err != nil {
			return 0, err
		}
		if err := note(dir, "begin", t); err != nil {
			return 0, err
		}
		if err := waitForFile(ctx, filepath.Join(dir, in.Until)); err != nil {
			return 0, err
		}
		return l.Token, errors.Join(l.Unlock(), note(dir, "end", t))
	})
	worker.Handle(w, "sum", func(ctx context.Context, t *worker.Task, in []struct{ N int }) (int, error) {
		if err := note(dir, "begin", t); err != nil {
			return 0, err
		}
		sum := 0
		for _, v := range in {
			sum += v.N
		}
		return sum, note(dir, "end", t)
	})
	return w.Run(ctx)
}

// note adds one line to the folder's notes, which outlives this process.
func note(dir, what string, t *worker.Task) error {
	f, err := os.OpenFile(filepath.Join(dir, "notes"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s %s %d\n", what, t.TaskID, t.LeaseVersion)
	return errors.Join(err, f.Sync(), f.Close())
}

func waitForFile(ctx context.Context, path string) error {
	for {
		if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// worker starts a worker process for the server of c.
func (f *folder) worker(name, url, token string, slots int, grace time.Duration) *process {
	f.t.Helper()
	self, err := os.Executable()
	if err != nil {
		f.t.Fatal(err)
	}
	return f.start([]string{
		workerEnv + "=" + f.path, "DROVER_URL=" + url, "DROVER_TOKEN=" + token,
		"NAME=" + name, "SLOTS=" + strconv.Itoa(slots), "GRACE=" + grace.String(),
	}, self)
}

// tokenOf is the token that the handler of a task has got with its lock; 0 is none yet.
func (f *folder) tokenOf(id drover.TaskID) int64 {
	b, err := os.ReadFile(f.file("token-" + id.String()))
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(string(b), 10, 64)
	return n
}

// entry is a handler's run: a task under one lease.
type entry struct {
	task    string
	version int
}

// notes reads what handlers have noted: how often each was entered and left.
func (f *folder) notes() (begun, ended map[entry]int) {
	f.t.Helper()
	begun, ended = map[entry]int{}, map[entry]int{}
	for line := range strings.Lines(f.read("notes")) {
		var what string
		var e entry
		if n, err := fmt.Sscanf(line, "%s %s %d\n", &what, &e.task, &e.version); n != 3 || err != nil {
			f.t.Fatalf("note %q: %v", line, err)
		}
		switch what {
		case "begin":
			begun[e]++
		case "end":
			ended[e]++
		default:
			f.t.Fatalf("note %q", line)
		}
	}
	return begun, ended
}

// entered counts the runs of a task's handler.
func entered(of map[entry]int, task drover.TaskID) (n int) {
	for e, times := range of {
		if e.task == task.String() {
			n += times
		}
	}
	return n
}

// tasks returns all tasks of a job.
func tasks(t *testing.T, c *client.Client, job drover.JobID) (list []drover.Task) {
	t.Helper()
	var f client.TasksFilter
	for {
		page, err := c.Tasks(t.Context(), job, f)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, page.Items...)
		if page.NextCursor == "" {
			return list
		}
		f.Cursor = page.NextCursor
	}
}

// audit compares what handlers noted with what the product recorded about the
// jobs: each entry belongs to a recorded attempt and happened once, each task
// has one success, and its handler's notes agree. It returns the tasks.
func (f *folder) audit(c *client.Client, jobs ...drover.JobID) (all []drover.Task) {
	f.t.Helper()
	begun, ended := f.notes()
	for _, id := range jobs {
		job, err := c.Job(f.t.Context(), id)
		if err != nil {
			f.t.Fatal(err)
		}
		if job.Status != drover.Succeeded {
			f.t.Errorf("job %s is %s, want SUCCEEDED", id, job.Status)
		}
		list := tasks(f.t, c, id)
		if len(list) != job.Tasks.Total || job.Tasks.Succeeded != len(list) {
			f.t.Errorf("job %s counts %+v and lists %d tasks", id, job.Tasks, len(list))
		}
		for _, task := range list {
			f.auditTask(c, task, begun, ended)
		}
		f.auditEvents(c, job)
		all = append(all, list...)
	}
	f.sound()
	for e, n := range begun {
		f.t.Errorf("%v was entered %d times and no attempt of these jobs accounts for it", e, n)
	}
	return all
}

// sound has the product check its own database, which may be in use.
func (f *folder) sound() {
	f.t.Helper()
	words := []string{"audit"}
	if !slices.ContainsFunc(f.env, func(v string) bool { return strings.HasPrefix(v, "DROVER_DATABASE_URL=") }) {
		words = append(words, "--database-url", "sqlite:"+f.file(".drover/drover.db")) // that of dev
	}
	if out, errs, code := f.run("drover", words...); code != 0 {
		f.t.Errorf("drover audit: status %d\n%s%s", code, out, errs)
	}
}

// auditTask takes what belongs to the task out of begun.
func (f *folder) auditTask(c *client.Client, task drover.Task, begun, ended map[entry]int) {
	f.t.Helper()
	attempts, err := c.Attempts(f.t.Context(), task.ID)
	if err != nil {
		f.t.Fatal(err)
	}
	successes := 0
	for _, a := range attempts {
		e := entry{task.ID.String(), int(a.LeaseVersion)}
		switch n := begun[e]; {
		case n > 1:
			f.t.Errorf("%s[%d] was entered %d times under lease_version %d", task.Name, task.Index, n, a.LeaseVersion)
		case a.Outcome == "succeeded" && (n == 0 || ended[e] != 1):
			f.t.Errorf("%s[%d] has a success under lease_version %d, and its handler did not run to its end then", task.Name, task.Index, a.LeaseVersion)
		case a.Outcome == "running":
			f.t.Errorf("%s[%d] has an attempt that still runs, in a job that is final", task.Name, task.Index)
		}
		if a.Outcome == "succeeded" {
			successes++
		}
		delete(begun, e)
	}
	if successes != 1 || task.Status != drover.Succeeded {
		f.t.Errorf("%s[%d] is %s with %d successes among %d attempts, want one", task.Name, task.Index, task.Status, successes, len(attempts))
	}
}

// auditEvents checks that a job's events are 1, 2, 3, … and end with its end.
func (f *folder) auditEvents(c *client.Client, job drover.Job) {
	f.t.Helper()
	var last drover.Event
	for n := int64(0); n < job.Events; {
		page, err := c.Events(f.t.Context(), job.ID, n, 1000)
		if err != nil || len(page.Items) == 0 {
			f.t.Fatalf("job %s: nothing behind event %d of %d; %v", job.ID, n, job.Events, err)
		}
		for _, last = range page.Items {
			if n++; last.Seq != n {
				f.t.Fatalf("job %s: event %d where %d was due", job.ID, last.Seq, n)
			}
		}
	}
	if last.Type != drover.JobSucceeded {
		f.t.Errorf("job %s: the last of %d events is %s", job.ID, job.Events, last.Type)
	}
}

// submit hands a job over.
func submit(t *testing.T, c *client.Client, j drover.NewJob) drover.JobID {
	t.Helper()
	s, err := c.Submit(t.Context(), j)
	if err != nil {
		t.Fatal(err)
	}
	return s.JobID
}

// wait returns a job once it is final.
func wait(t *testing.T, c *client.Client, id drover.JobID, limit time.Duration) drover.Job {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	j, err := c.WaitJob(ctx, id)
	if err != nil {
		t.Fatalf("job %s after %v: %v", id, limit, err)
	}
	return j
}

func encode(t *testing.T, v any) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
