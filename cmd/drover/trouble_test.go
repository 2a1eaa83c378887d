package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drover-dev/drover"
)

// A task of a kind that no worker of its queue has is said to be one, wherever a
// person looks, with what would help.
func TestTaskThatNoWorkerTakesIsTold(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.dev("--no-http")
	const told = `no live worker of queue "cpu" runs tasks of kind "resize" (no_worker_for_kind)`
	job := f.must(0, "job", "submit", "--kind", "resize", "--queue", "cpu", "-o", "name")
	if out := f.must(0, "job", "get", job); !strings.Contains(out, "WAITING TASK   resize  task_") || !strings.Contains(out, told) {
		t.Errorf("job get does not say why nothing happens:\n%s", out)
	}
	tasks := get[[]drover.Task](f, "task", "list", job)
	if len(tasks) != 1 || len(tasks[0].Blockers) != 1 || tasks[0].Blockers[0].Code != "no_worker_for_kind" {
		t.Fatalf("tasks = %+v, want one that is blocked", tasks)
	}
	if out := f.must(0, "task", "get", tasks[0].ID.String()); !regexp.MustCompile(`BLOCKED BY +no live worker of queue "cpu" runs tasks of kind "resize"`).MatchString(out) {
		t.Errorf("task get does not say why nothing happens:\n%s", out)
	}
	if out := f.must(0, "queue", "list"); !regexp.MustCompile(`(?m)^cpu .* resize$`).MatchString(out) {
		t.Errorf("queue list does not name the kind:\n%s", out)
	}
	if out := f.must(0, "doctor"); !strings.Contains(out, "tasks of kind resize wait and none of its 1 worker has a handler for that") || !strings.Contains(out, `a program of yours that handles "resize"`) {
		t.Errorf("doctor does not name the kind:\n%s", out)
	}

	waiting := f.start("job", "submit", "--kind", "resize", "--queue", "cpu", "--wait")
	eventually(t, "submit --wait does not say that nobody runs the job", func() bool { return strings.Contains(waiting.errs.String(), told) })
	waiting.signal(syscall.SIGINT)
	waiting.wait(t)

	// A queue that nobody serves: the command that doctor prints serves it.
	web := f.must(0, "job", "submit", "--kind", "exec", "--input", `{"command":["true"]}`, "--queue", "it's mine", "-o", "name")
	if out := f.must(0, "job", "get", web); !strings.Contains(out, `no live worker serves queue "it's mine"`) {
		t.Errorf("job get does not say that nobody serves the queue:\n%s", out)
	}
	command := regexp.MustCompile(`drover (worker run .*)`).FindStringSubmatch(f.must(0, "doctor"))
	if command == nil {
		t.Fatalf("doctor prints no command:\n%s", f.must(0, "doctor"))
	}
	f.startShell(command[1])
	f.must(0, "job", "wait", web, "--timeout", "30s")
	if task := get[[]drover.Task](f, "task", "list", web)[0]; len(task.Blockers) != 0 {
		t.Errorf("a task that ran is blocked: %+v", task.Blockers)
	}
}

// A SQLite file belongs to one server, of whatever kind; commands that work at the
// database do beside it.
func TestOneServerToASQLiteFile(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	dev := f.dev()
	refused := fmt.Sprintf("process %d is a server on ", dev.cmd.Process.Pid)
	if err := os.Symlink(".drover/drover.db", filepath.Join(f.path, "link.db")); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{"sqlite:.drover/drover.db", "sqlite:link.db"} {
		if _, errs, code := f.try("server", "--database-url", url, "--http-addr", "127.0.0.1:0"); code != exitConflict || !strings.Contains(errs, refused) {
			t.Errorf("a second server on %s ended with %d: %s", url, code, errs)
		}
	}
	f.must(0, "migrate", "status", "--database-url", "sqlite:.drover/drover.db")
	f.must(0, "token", "create", "--database-url", "sqlite:.drover/drover.db", "--tenant", "acme", "--name", "a", "--scope", "admin")
	f.must(0, "doctor", "--database-url", "sqlite:.drover/drover.db")
	dev.signal(syscall.SIGKILL)
	dev.wait(t)
	f.dev() // the lock has gone with its holder
}

func TestLintLooksAtBuiltInKinds(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	for with, says := range map[string]string{
		`{command: "ls -l"}`: `p.yaml:3:34: tasks.a.with.command: this must be a list of the program and its arguments, such as ["./step.sh", "one"]`,
		`{command: [ls, "${{ input.x }}"], enviroment: {}}`: `p.yaml:3:58: tasks.a.with.enviroment: the input of exec has no key "enviroment"; the keys are command, env, files`,
		`{command: "ls ${{ input.x }}"}`:                    `this must be a list`,
		`{command: "${{ input.x }}"}`:                       ``,
		`{command: [ls], stdin: "${{ input.x }}"}`:          ``,
		`{command: [ls, "${{ input.x }}"]}`:                 ``,
		`{command: [ls, ${{ input.x }}]}`:                   `put expressions in quotes, as in "${{ input.x }}"`,
		`{}`:                                                `command is missing; write for example command: [./step.sh, one, two]`,
	} {
		if err := os.WriteFile(filepath.Join(f.path, "p.yaml"), []byte("pipeline: p\ntasks:\n  a: {run: exec, with: "+with+"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, errs, code := f.try("pipeline", "lint", "p.yaml")
		if (code == 0) != (says == "") || !strings.Contains(errs, says) {
			t.Errorf("%s: code %d, %s", with, code, errs)
		}
	}
}

// What a newcomer runs into is told in the words of the command line.
func TestTokensAreToldOf(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.dev()
	d, err := readDevFile(filepath.Join(f.path, ".drover"))
	if err != nil {
		t.Fatal(err)
	}
	away := &folder{t: t, path: t.TempDir(), env: f.env}
	if _, errs, code := away.try("job", "list", "--url", d.URL); code != exitAuth || strings.Contains(errs, "header") || !strings.Contains(errs, "--token, DROVER_TOKEN") || !strings.Contains(errs, ".drover") {
		t.Errorf("without a token: code %d, %s", code, errs)
	}
	f.env = append(f.env, "DROVER_TOKEN=drover_other")
	if _, errs, code := f.try("job", "list"); code != 0 || !strings.Contains(errs, "DROVER_TOKEN is left out") {
		t.Errorf("with a token for another server: code %d, %s", code, errs)
	}
	f.must(exitUsage, "doctor", "--curl")
	f.must(exitUsage, "pipeline", "lint", "x.yaml", "--curl")

	res, err := http.Get(d.URL) // follows to /docs
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK || res.Request.URL.Path != "/docs" {
		t.Errorf("GET / ends with %s at %s, want the page of /docs", res.Status, res.Request.URL)
	}
}

func TestMistakesAreToldOnceAndInWords(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	for _, test := range []struct {
		words string
		code  int
		says  string
		not   string
	}{
		{"migrate status --database-url postgres://x@127.0.0.1:1/y", exitError, "the database postgres://x@127.0.0.1:1/y does not answer: dial tcp 127.0.0.1:1: connect: connection refused; is it running, and is --database-url", "drover dev"},
		{"dev --addr 127.0.0.1:99999", exitUsage, "is not an address such as 127.0.0.1:8420", ""},
		{"pipeline lint .", exitError, "read .: is a directory", "read .: read"},
		{"job list --status queued --url http://127.0.0.1:1", exitUsage, `a job is never "queued"; it is PENDING, RUNNING,`, "QUEUED"},
		{"--version", exitOK, "drover ", ""},
		{"", exitOK, "Usage:", ""},
	} {
		out, errs, code := f.try(strings.Fields(test.words)...)
		if said := out + errs; code != test.code || !strings.Contains(said, test.says) || test.not != "" && strings.Contains(said, test.not) || strings.Count(errs, "refused") > 1 {
			t.Errorf("drover %s: code %d, want %d\n%s", test.words, code, test.code, said)
		}
	}
	if out := f.must(0, "config", "print"); strings.Contains(out, "XDG") {
		t.Errorf("config print names a variable that is not set:\n%s", out)
	}
}

func TestLogIsReadable(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	a := &app{err: &b, logLevel: "info", logFormat: "json"}
	log, err := a.logger()
	if err != nil {
		t.Fatal(err)
	}
	log.Info("x", "took", 1500*time.Millisecond, "queues", []string{"default", "cpu"}, "n", 3)
	if !strings.Contains(b.String(), `"took":"1.5s","queues":"default,cpu","n":3`) {
		t.Error(b.String())
	}
}

// startShell starts the program with words as a shell reads them.
func (f *folder) startShell(words string) *process {
	f.t.Helper()
	bin, err := program()
	if err != nil {
		f.t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", "exec "+bin+" "+words)
	cmd.Dir, cmd.Env = f.path, f.env
	return f.run(cmd)
}

// What failed says which task it was, and how to run it again; a task that will be
// tried again says what it failed with.
func TestFailedTaskIsNamed(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.dev()
	if err := os.WriteFile(filepath.Join(f.path, "greet.yaml"), []byte(`
pipeline: greet
tasks:
  greet:
    for_each: "${{ input.names }}"
    run: exec
    with: {command: [sh, -c, '[ "$0" != Bob ] || [ -e mended ] || { echo "Bob is out" >&2; exit 65; }', "${{ item }}"]}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	f.must(0, "pipeline", "apply", "greet.yaml")
	job := f.must(0, "job", "submit", "--pipeline", "greet", "--input", `{"names":["Ada","Bob"]}`, "-o", "name")
	f.must(exitFailed, "job", "wait", job, "--timeout", "30s")
	task := get[[]drover.Task](f, "task", "list", job, "--status", "FAILED")[0].ID.String()
	if out := f.must(0, "job", "get", job); !strings.Contains(out, "greet[1]  "+task+": Bob is out") || !strings.Contains(out, "drover task replay "+task) {
		t.Errorf("job get does not name %s:\n%s", task, out)
	}
	if got := f.must(0, "task", "get", "greet[1]", "--job", job, "-o", "name"); got != task {
		t.Errorf("greet[1] is %s, want %s", got, task)
	}
	f.must(exitUsage, "task", "get", "greet", "--job", job)
	f.must(exitNotFound, "task", "attempts", "greet[2]", "--job", job)
	f.must(0, "task", "replay", "greet[1]", "--job", job)
	f.must(exitFailed, "job", "wait", job, "--timeout", "30s")

	again := submitExec(f, "echo no disk >&2; exit 1", "--max-attempts", "20")
	eventually(t, "the task does not wait for its next attempt", func() bool {
		return strings.Contains(f.must(0, "task", "get", "exec", "--job", again), "no disk (exit status 1) (retryable, exit_1)")
	})
	if out := f.must(0, "task", "list", again); !strings.Contains(out, "no disk") {
		t.Errorf("task list does not say why it is tried again:\n%s", out)
	}
	f.must(0, "job", "cancel", again)
}
