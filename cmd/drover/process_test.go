package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/storetest"
)

// program builds this command once and returns its path.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "drover-test-")
	if err != nil {
		return "", err
	}
	programDir = dir
	path := filepath.Join(dir, "drover")
	if out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return path, nil
})

// programDir holds the program, once a test has needed it.
var programDir string

// folder is a working folder in which the program is run, as a user would.
type folder struct {
	t    *testing.T
	path string
	env  []string
}

// newFolder returns an empty folder with an empty home.
func newFolder(t *testing.T) *folder {
	t.Helper()
	home := t.TempDir()
	return &folder{t: t, path: t.TempDir(), env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + t.TempDir()}}
}

func (f *folder) command(ctx context.Context, words ...string) *exec.Cmd {
	f.t.Helper()
	bin, err := program()
	if err != nil {
		f.t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, bin, words...)
	cmd.Dir, cmd.Env = f.path, f.env
	return cmd
}

// try runs the program to its end.
func (f *folder) try(words ...string) (stdout, stderr string, code int) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
	defer cancel()
	cmd := f.command(ctx, words...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		f.t.Fatalf("drover %s: %v", strings.Join(words, " "), err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// must runs the program, which must return code, and returns what it printed.
func (f *folder) must(code int, words ...string) string {
	f.t.Helper()
	out, errs, got := f.try(words...)
	if got != code {
		f.t.Fatalf("drover %s: code %d, want %d\n%s%s", strings.Join(words, " "), got, code, out, errs)
	}
	return strings.TrimSuffix(out, "\n")
}

// get reads what a command prints as JSON.
func get[T any](f *folder, words ...string) (v T) {
	f.t.Helper()
	out := f.must(0, append(words, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		f.t.Fatalf("drover %s: %v\n%s", strings.Join(words, " "), err, out)
	}
	return v
}

// process is a program that runs beside the test.
type process struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner // of stdout
	errs  *syncBuffer
	ended chan struct{}
}

// syncBuffer is a buffer that is written and read at once.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// start runs the program until stop, kill or the end of the test.
func (f *folder) start(words ...string) *process {
	f.t.Helper()
	return f.run(f.command(context.Background(), words...))
}

// run starts a command that runs beside the test.
func (f *folder) run(cmd *exec.Cmd) *process {
	f.t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	p := &process{cmd: cmd, lines: bufio.NewScanner(out), errs: &syncBuffer{}, ended: make(chan struct{})}
	cmd.Stderr = p.errs
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		p.wait(f.t)
		if f.t.Failed() {
			f.t.Logf("%s:\n%s", strings.Join(cmd.Args, " "), p.errs)
		}
	})
	return p
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) } // it may have ended

// wait returns the exit code.
func (p *process) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-p.ended:
	default:
		for p.lines.Scan() { // so that it can end
		}
		_ = p.cmd.Wait() // the code is what counts
		close(p.ended)
	}
	return p.cmd.ProcessState.ExitCode()
}

// dev starts "drover dev" on a free port and returns when it is ready.
func (f *folder) dev(words ...string) *process {
	f.t.Helper()
	p := f.start(append([]string{"dev", "--addr", "127.0.0.1:0"}, words...)...)
	for range 3 {
		if !p.lines.Scan() {
			p.wait(f.t)
			f.t.Fatalf("dev ended before it was ready:\n%s", p.errs)
		}
	}
	return p
}

// eventually waits for ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("after 30 s: %s", what)
}

func submitExec(f *folder, script string, words ...string) string {
	f.t.Helper()
	input, err := json.Marshal(map[string]any{"command": []string{"sh", "-c", script}})
	if err != nil {
		f.t.Fatal(err)
	}
	return f.must(0, append([]string{"job", "submit", "--kind", "exec", "--input", string(input), "-o", "name"}, words...)...)
}

func TestDevRunsJobs(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	began := time.Now()
	f.dev()
	t.Logf("ready after %v", time.Since(began))

	for _, name := range []string{"dev.json", "token", "drover.db", "drover.db-wal", "lock"} {
		if st, err := os.Stat(filepath.Join(f.path, ".drover", name)); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, mode %v; want 0600", name, err, st.Mode())
		}
	}
	if st, err := os.Stat(filepath.Join(f.path, ".drover")); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the state folder: %v, mode %v; want 0700", err, st.Mode())
	}

	// A job that succeeds, watched line by line.
	out := f.must(0, "job", "submit", "--kind", "exec", "--input", `{"command":["echo","hello"]}`, "--watch", "--label", "team=vision")
	for _, want := range []string{"job.accepted", "task.succeeded        exec  ran=", "job.succeeded"} {
		if !strings.Contains(out, want) {
			t.Errorf("watch lacks %q:\n%s", want, out)
		}
	}
	ok := f.must(0, "job", "list", "--label", "team=vision", "-o", "name")
	if jobs := get[[]drover.Job](f, "job", "list", "--status", "succeeded"); len(jobs) != 1 || jobs[0].ID.String() != ok {
		t.Errorf("succeeded jobs = %v, want %s", jobs, ok)
	}
	if events := strings.Split(f.must(0, "job", "watch", ok, "-o", "jsonl"), "\n"); len(events) != 3 || !strings.Contains(events[2], `"type":"job.succeeded"`) {
		t.Errorf("watch of an ended job in jsonl: %q", events)
	}
	if out := f.must(0, "job", "logs", ok); out != "exec#1  hello" {
		t.Errorf("logs = %q", out)
	}
	if j := get[drover.Job](f, "job", "get", "@latest"); j.ID.String() != ok || j.Status != drover.Succeeded {
		t.Errorf("@latest is %s %s, want %s SUCCEEDED", j.ID, j.Status, ok)
	}
	if events := get[[]drover.Event](f, "job", "events", ok); len(events) != 3 || events[2].Seq != 3 {
		t.Errorf("%d events, want 3", len(events))
	}
	if tasks := get[[]drover.Task](f, "task", "list", "--job", ok); len(tasks) != 1 || tasks[0].Status != drover.Succeeded {
		t.Errorf("tasks = %v", tasks)
	}

	// Ways to end, each with its code.
	out, errs, code := f.try("job", "submit", "--kind", "exec", "--input", `{"command":["sh","-c","echo no such clip >&2; exit 65"]}`, "--wait")
	if code != exitFailed || !strings.Contains(out, "STATUS") || !strings.Contains(errs, "FAILED: task exec: no such clip") {
		t.Errorf("a job that fails: code %d, want 6\n%s%s", code, out, errs)
	}
	slow := submitExec(f, "sleep 60")
	f.must(exitPending, "job", "wait", slow, "--timeout", "0")
	f.must(exitTimeout, "job", "wait", slow, "--timeout", "100ms")
	eventually(t, "the task does not run", func() bool {
		return len(get[[]drover.Task](f, "task", "list", slow, "--status", "RUNNING")) == 1
	})
	f.must(0, "job", "cancel", slow, "--reason", "too slow")
	f.must(exitCancelled, "job", "wait", slow, "--timeout", "30s")
	f.must(exitCancelled, "job", "watch", slow)
	f.must(0, "job", "wait", slow, "--for=status=CANCELLED")
	f.must(exitNotFound, "job", "get", "job_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C")
	f.must(exitAuth, "job", "list", "--token", "drover_wrong")
	f.must(exitError, "job", "submit", "--pipeline", "ingest@99999999999")

	// The same key.
	first := submitExec(f, "true", "--idempotency-key", "k1")
	if again := submitExec(f, "true", "--idempotency-key", "k1"); again != first {
		t.Errorf("the same key gave %s, then %s", first, again)
	}
	f.must(exitConflict, "job", "submit", "--kind", "exec", "--input", `{"command":["false"]}`, "--idempotency-key", "k1")

	// What nobody does is said.
	f.must(0, "job", "submit", "--kind", "mail", "--queue", "mail")
	if out := f.must(0, "doctor"); !strings.Contains(out, "queue mail") || !strings.Contains(out, `handles "mail"`) {
		t.Errorf("doctor does not tell that nobody serves the queue mail:\n%s", out)
	}
	f.must(0, "healthcheck")
	if out := f.must(0, "version", "--server"); !strings.Contains(out, "sqlite") {
		t.Errorf("version --server:\n%s", out)
	}
}

func TestDeadLetterIsReplayedWithAnotherInput(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.dev()
	var jobs []string
	for range 2 { // one after the other: the list is by when they ended
		job := submitExec(f, "exit 1", "--max-attempts", "1")
		f.must(exitFailed, "job", "wait", job, "--timeout", "30s")
		jobs = append(jobs, job)
	}
	dead := get[[]drover.Letter](f, "dlq", "list", "--status", "DEAD_LETTER")
	if len(dead) != 2 || dead[0].JobID.String() != jobs[1] {
		t.Fatalf("dead letters = %v, want 2, the newest first", dead)
	}
	if out := f.must(0, "dlq", "list", "--job", jobs[0], "-o", "name"); out != dead[1].TaskID.String() {
		t.Errorf("dead letters of the first job = %q, want %s", out, dead[1].TaskID)
	}
	groups := get[[]drover.LetterGroup](f, "dlq", "groups", "--since", "1h")
	if len(groups) != 1 || groups[0].Count != 2 || groups[0].Fingerprint != dead[0].Fingerprint {
		t.Errorf("groups = %+v", groups)
	}
	if out, errs, _ := f.try("dlq", "replay", "--all", "--kind", "exec", "--dry-run", "-o", "name"); strings.Count(out, "\n") != 2 || !strings.Contains(errs, "would replay 2") {
		t.Errorf("dry run: %q %q", out, errs)
	}
	f.must(0, "dlq", "replay", dead[0].TaskID.String(), "--input", `{"command":["echo","mended"]}`)
	f.must(0, "job", "wait", jobs[1], "--timeout", "30s")
	task := get[drover.Task](f, "task", "get", dead[0].TaskID.String())
	if task.Generation != 2 || task.Status != drover.Succeeded {
		t.Errorf("the replayed task is %s in generation %d, want SUCCEEDED in 2", task.Status, task.Generation)
	}
	if attempts := get[[]drover.Attempt](f, "task", "attempts", task.ID.String()); len(attempts) != 2 {
		t.Errorf("%d attempts, want 2", len(attempts))
	}
	shown := get[drover.Letter](f, "dlq", "show", task.ID.String())
	if shown.State != drover.LetterReplayed || shown.Context == nil || len(shown.Context.Lineage) != 2 || !shown.Context.Lineage[1].NewInput {
		t.Errorf("shown: %+v", shown)
	}
	if out := f.must(0, "dlq", "show", dead[1].TaskID.String()); !strings.Contains(out, "FINGERPRINT") || !strings.Contains(out, "ATTEMPT 1.1") {
		t.Errorf("shown:\n%s", out)
	}
	f.must(exitConflict, "dlq", "replay", task.ID.String())
	f.must(exitNotFound, "dlq", "replay", "task_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C")
	f.must(exitNotFound, "dlq", "show", "task_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C")
	f.must(0, "dlq", "close", "--fingerprint", groups[0].Fingerprint, "--reason", "let it be")
	if out := f.must(0, "dlq", "list", "-o", "name"); out != "" {
		t.Errorf("still listed: %q", out)
	}
	f.must(exitConflict, "dlq", "replay", dead[1].TaskID.String())
	if out := f.must(0, "dlq", "replay", "--all", "--reopen", "-o", "name"); out != dead[1].TaskID.String() {
		t.Errorf("replayed %q, want the other", out)
	}
	f.must(exitFailed, "job", "wait", jobs[0], "--timeout", "30s")
}

// TestCanariesStopAReplay: two go first; as one of them fails again, the others stay.
func TestCanariesStopAReplay(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.dev()
	var jobs []string
	for i := range 4 {
		jobs = append(jobs, submitExec(f, "exit "+strconv.Itoa(i+1), "--max-attempts", "1"))
	}
	for _, job := range jobs {
		f.must(exitFailed, "job", "wait", job, "--timeout", "30s")
	}
	_, errs, code := f.try("dlq", "replay", "--all", "--canary", "2")
	if code != exitFailed || !strings.Contains(errs, "canary task") || !strings.Contains(errs, "replayed 2 of 4") {
		t.Errorf("code %d, stderr %q", code, errs)
	}
	ops := get[[]drover.BatchOperation](f, "dlq", "operations")
	if len(ops) != 1 || ops[0].State != drover.BatchStopped || ops[0].Waiting != 2 {
		t.Errorf("operations %+v", ops)
	}
}

// TestAKilledServerGoesOnWithAReplay: killed in the middle, the next server
// replays the rest, and none twice.
func TestAKilledServerGoesOnWithAReplay(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	d := f.dev()
	const n = 150
	at, err := readDevFile(filepath.Join(f.path, ".drover"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Config{URL: at.URL, Token: at.Token})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.SubmitMany(t.Context(), slices.Repeat([]drover.NewJob{{Kind: "exec", Input: json.RawMessage(`{"command":["false"]}`), Retry: &drover.Retry{MaxAttempts: 1}}}, n)); err != nil {
		t.Fatal(err)
	}
	dead := func(generation int) int {
		all := get[[]drover.Letter](f, "dlq", "list", "--state", "all", "--limit", "0")
		return len(slices.DeleteFunc(all, func(l drover.Letter) bool { return l.Generation != generation }))
	}
	eventually(t, "not all have failed", func() bool { return dead(1) == n })
	o := get[drover.BatchOperation](f, "dlq", "replay", "--all", "--rate", "50", "--no-wait", "--request-id", "killed")
	for until := time.Now().Add(20 * time.Second); ; {
		at := get[drover.BatchOperation](f, "dlq", "operation", o.ID.String())
		if at.Ended() || time.Now().After(until) {
			t.Fatalf("not killed in the middle: %+v", at)
		}
		if at.Done > 5 {
			break
		}
	}
	d.signal(syscall.SIGKILL)
	d.wait(t)
	f.dev()
	f.must(0, "dlq", "operation", o.ID.String(), "--wait")
	if at := get[drover.BatchOperation](f, "dlq", "replay", "--all", "--rate", "50", "--request-id", "killed"); at.ID != o.ID || at.Done != n || at.State != drover.BatchDone {
		t.Errorf("the operation: %+v", at)
	}
	eventually(t, "each has not failed twice", func() bool { return dead(2) == n })
	if dead(1) != n || dead(3) != 0 {
		t.Errorf("%d failed once and %d three times", dead(1), dead(3))
	}
}

const twoSteps = `
pipeline: two-steps
tasks:
  first: {run: exec, with: {command: [sh, -c, 'echo first >> "$0/ran"; echo "{\"n\": 1}" > "$DROVER_OUTPUT"', "${{ input.folder }}"]}}
  second:
    needs: [first]
    run: exec
    with: {command: [sh, -c, 'echo second >> "$0/ran"; while [ ! -e "$0/go" ]; do sleep 0.05; done', "${{ input.folder }}"]}
`

func TestKilledDevGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	dev := f.dev()
	write(t, filepath.Join(f.path, "two.yaml"), twoSteps)
	f.must(0, "pipeline", "apply", "two.yaml")
	work := t.TempDir()
	job := f.must(0, "job", "submit", "--pipeline", "two-steps", "--input", fmt.Sprintf(`{"folder":%q}`, work), "-o", "name")
	ran := func() string {
		b, err := os.ReadFile(filepath.Join(work, "ran"))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return string(b)
	}
	eventually(t, "the second step does not run", func() bool { return ran() == "first\nsecond\n" })
	token := f.token()
	dev.signal(syscall.SIGKILL)
	dev.wait(t)
	_, errs, code := f.try("job", "get", job)
	if code != exitError || !strings.Contains(errs, `start a server with "drover dev"`) {
		t.Errorf("without a server: code %d, %q", code, errs)
	}

	f.dev()
	if f.token() != token {
		t.Error("the second start made another token")
	}
	write(t, filepath.Join(work, "go"), "")
	f.must(0, "job", "wait", job, "--timeout", "30s")
	if got := ran(); got != "first\nsecond\nsecond\n" {
		t.Errorf("ran %q, want the finished step once and the one that was cut off twice", got)
	}
	for _, task := range get[[]drover.Task](f, "task", "list", job) {
		if task.Status != drover.Succeeded || task.Attempt != 1 {
			t.Errorf("%s is %s at attempt %d, want SUCCEEDED at 1: a lost worker uses up no attempt", task.Name, task.Status, task.Attempt)
		}
	}
}

// A process that is killed leaves the folders of the tasks it ran; the next
// worker that starts here removes them, and never those of one that lives.
func TestFoldersOfAKilledWorkerAreSwept(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	var killed, living, next = newFolder(t), newFolder(t), newFolder(t)
	for _, f := range []*folder{killed, living, next} {
		f.env = append(f.env, "TMPDIR="+temp) // the last one counts
	}
	// run submits a task that writes where it is and waits for a file.
	run := func(f *folder) (job, home string) {
		job = submitExec(f, fmt.Sprintf(`pwd > %[1]s/home.new; mv %[1]s/home.new %[1]s/home; dd if=/dev/zero of=big bs=1024 count=64 2>/dev/null; while [ ! -e %[1]s/go ]; do sleep 0.05; done; test -s big`, f.path))
		eventually(t, "the task does not run", func() bool {
			b, err := os.ReadFile(filepath.Join(f.path, "home"))
			home = strings.TrimSpace(string(b))
			return err == nil
		})
		if !strings.HasPrefix(home, temp+"/") {
			t.Fatalf("the task runs in %s, not below %s", home, temp)
		}
		return job, home
	}
	there := func(path string) bool { _, err := os.Stat(path); return err == nil }

	dev := killed.dev()
	_, lost := run(killed)
	living.dev()
	job, kept := run(living)
	dev.signal(syscall.SIGKILL)
	dev.wait(t)
	if !there(lost) {
		t.Fatalf("%s went with the process that was killed; the test shows nothing", lost)
	}
	last := next.dev()
	if there(lost) {
		t.Errorf("%s is still there after the next start", lost)
	}
	if !there(kept) {
		t.Errorf("%s of a worker that lives is gone", kept)
	}
	write(t, filepath.Join(living.path, "go"), "")
	living.must(0, "job", "wait", job, "--timeout", "30s")
	last.signal(syscall.SIGTERM)
	last.wait(t)
	eventually(t, "something is left behind", func() bool {
		left, err := os.ReadDir(temp)
		return err == nil && len(left) == 0
	})
}

func (f *folder) token() string {
	f.t.Helper()
	d, err := readDevFile(filepath.Join(f.path, ".drover"))
	if err != nil {
		f.t.Fatal(err)
	}
	return d.Token
}

// The token of dev sets what holds for the whole installation: it is one person's.
func TestDevAdministersItsInstallation(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.dev("--no-exec", "--no-http")
	f.must(0, "limit", "set", "everything", "--scope", "global", "--max", "3")
	f.must(0, "limit", "set", "one-queue", "--scope", "queue", "--queue", "default", "--max", "2")
	f.must(0, "limit", "set", "vendor", "--shared", "--max", "1")
	for _, verb := range []string{"pause", "resume", "drain", "resume"} {
		f.must(0, "queue", verb, "default")
	}
	f.must(0, "limit", "delete", "everything")
	if x := get[drover.Tenant](f, "tenant", "set", "dev", "--weight", "2.5"); x.Weight != 2.5 {
		t.Errorf("tenant = %+v", x)
	}
	f.must(2, "tenant", "set", "dev")
	if text := f.must(0, "tenant", "list"); !strings.Contains(text, "2.5") {
		t.Errorf("tenants:\n%s", text)
	}
}

// What a worker of the command line says it has is what tasks are given of it.
func TestWorkersSayWhatTheyHave(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.dev("--slots", "4", "--resource", "gpu=1", "--label", "zone=a")
	f.start("worker", "run", "--exec", "--queue", "far", "--name", "far", "--resource", "gpu=2,mem_mb=64000", "--label", "zone=b")
	eventually(t, "the workers are not there", func() bool { return len(get[[]drover.Session](f, "worker", "list")) == 2 })
	if out := f.must(0, "worker", "list", "-o", "wide"); !strings.Contains(out, "RESOURCES") || !strings.Contains(out, "gpu=2,mem_mb=64000") {
		t.Errorf("the list of workers lacks what they have:\n%s", out)
	}
	f.must(0, "limit", "set", "license", "--max", "2")
	if out, errs, code := f.try("job", "submit", "--kind", "exec", "--input", `{"command":["true"]}`, "--idempotency-key", "k", "--dry-run"); code != 0 || !strings.Contains(errs, "nothing was submitted") || !strings.Contains(out, "PENDING") {
		t.Errorf("a dry run: %d %s %s", code, out, errs)
	}
	if _, errs, code := f.try("job", "submit", "--kind", "exec", "--dry-run"); code == 0 || !strings.Contains(errs, "command") {
		t.Errorf("a dry run of what is wrong: %d %s", code, errs)
	}
	if out := f.must(0, "job", "list", "-o", "name"); out != "" {
		t.Errorf("a dry run made %s", out)
	}
	for _, q := range []struct {
		queue, zone string
		gpus        int64
	}{{"default", "a", 1}, {"far", "b", 2}} {
		words := []string{"job", "submit", "--kind", "exec", "--queue", q.queue, "--input", `{"command":["true"]}`, "--worker-label", "zone=" + q.zone, "--limit", "license=2", "--concurrency-key", "k", "-o", "name", "--resource"}
		f.must(0, "job", "wait", f.must(0, append(words, fmt.Sprintf("gpu=%d", q.gpus))...), "--timeout", "60s")
		if _, errs, code := f.try(append(words, fmt.Sprintf("gpu=%d", q.gpus+1))...); code == 0 || !strings.Contains(errs, "gpu") {
			t.Errorf("in queue %s %d gpus, one more than there are: %d %s", q.queue, q.gpus+1, code, errs)
		}
	}
	for _, words := range [][]string{{"--limit", "license"}, {"--limit", "license=0"}, {"--resource", "gpu=1,gpu=2"}, {"--worker-label", "zone"}} {
		if _, errs, code := f.try(append([]string{"job", "submit", "--kind", "exec"}, words...)...); code != exitUsage || !strings.Contains(errs, words[0]) {
			t.Errorf("%v: %d %s", words, code, errs)
		}
	}
}

// TestTheCommandLineBoundsWhatIsTakenIn.
func TestTheCommandLineBoundsWhatIsTakenIn(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.dev()
	f.must(0, "intake", "set", "backlog", "--queue", "nobody", "--max-waiting", "1", "--max-age", "1h", "--then", "throttle", "--reason", "a test")
	submit := []string{"job", "submit", "--kind", "k", "--queue", "nobody", "-o", "name"}
	f.must(0, submit...)
	f.must(0, submit...)
	eventually(t, "the rule does not fire", func() bool { return get[drover.IntakeRule](f, "intake", "show", "backlog").Firing })
	if _, errs, code := f.try(append(submit, "--dry-run")...); code == 0 || !strings.Contains(errs, "rule backlog: too much waits (2 tasks wait, more than 1)") {
		t.Errorf("over the bound: %d %s", code, errs)
	}
	if out := f.must(0, "intake", "list", "-o", "table"); !strings.Contains(out, "2 waiting") || !strings.Contains(out, "throttle") || !strings.Contains(out, "for ") {
		t.Errorf("the list:\n%s", out)
	}
	if out := f.must(0, "intake", "show", "backlog", "-o", "table"); !strings.Contains(out, "fired") || !strings.Contains(out, "a test") {
		t.Errorf("the rule:\n%s", out)
	}
	if _, errs, code := f.try("intake", "set", "x", "--max-waiting", "1", "--then", "divert"); code == 0 || !strings.Contains(errs, "divert_to") {
		t.Errorf("a rule that is none: %d %s", code, errs)
	}
	f.must(0, "intake", "delete", "backlog")
	f.must(0, submit...)
}

func TestDevDrains(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	dev := f.dev()
	work := t.TempDir()
	job := submitExec(f, fmt.Sprintf("touch %s/began; while [ ! -e %s/go ]; do sleep 0.05; done", work, work))
	eventually(t, "the task does not run", func() bool { _, err := os.Stat(filepath.Join(work, "began")); return err == nil })
	dev.signal(syscall.SIGTERM)
	eventually(t, "dev does not say that it stops", func() bool { return strings.Contains(dev.errs.String(), "stopping") })
	write(t, filepath.Join(work, "go"), "")
	if code := dev.wait(t); code != 0 {
		t.Errorf("dev ended with %d, want 0", code)
	}
	f.dev()
	j := get[drover.Job](f, "job", "get", job)
	if j.Status != drover.Succeeded {
		t.Errorf("the job that ran at SIGTERM is %s, want SUCCEEDED", j.Status)
	}
}

func TestSecondSignalStopsDevAtOnce(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	dev := f.dev("--drain-timeout", "1h")
	job := submitExec(f, "exec sleep 3600")
	eventually(t, "the task does not run", func() bool {
		return len(get[[]drover.Task](f, "task", "list", job, "--status", "RUNNING")) == 1
	})
	dev.signal(syscall.SIGINT)
	eventually(t, "dev does not say that it stops", func() bool { return strings.Contains(dev.errs.String(), "stopping") })
	dev.signal(syscall.SIGINT)
	if code := dev.wait(t); code != exitInterrupted {
		t.Errorf("dev ended with %d, want %d", code, exitInterrupted)
	}
}

// People who watch do not keep a server from stopping.
func TestWatchersDoNotHoldDevUp(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	dev := f.dev("--no-exec", "--no-http")
	job := submitExec(f, "true")
	w := f.start("job", "watch", job)
	if !w.lines.Scan() || !strings.Contains(w.lines.Text(), "job.accepted") {
		t.Fatalf("watch begins with %q", w.lines.Text())
	}
	began := time.Now()
	dev.signal(syscall.SIGTERM)
	if code := dev.wait(t); code != 0 || time.Since(began) > 5*time.Second {
		t.Errorf("dev ended with %d after %v, want 0 at once", code, time.Since(began))
	}
	w.signal(syscall.SIGINT)
	if code := w.wait(t); code != exitInterrupted || !strings.Contains(w.errs.String(), job+" goes on") {
		t.Errorf("watch ended with %d, %q; want 130", code, w.errs)
	}
}

func TestOneDevToAStateFolder(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	dev := f.dev()
	_, errs, code := f.try("dev", "--addr", "127.0.0.1:0")
	if want := fmt.Sprintf("process %d runs a \"drover dev\" on .drover", dev.cmd.Process.Pid); code != exitConflict || !strings.Contains(errs, want) || strings.Count(errs, "\n") != 1 {
		t.Errorf("the second dev: code %d, %q; want 5 and %q", code, errs, want)
	}
	f.must(0, "healthcheck") // the first goes on
}

func TestBusyPortIsNamed(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	f := newFolder(t)
	_, errs, code := f.try("dev", "--addr", ln.Addr().String())
	if want := "--addr " + ln.Addr().String() + ": the port is in use"; code != exitError || !strings.Contains(errs, want) || strings.Count(errs, "\n") != 1 {
		t.Errorf("code %d, %q; want 1 and one line with %q", code, errs, want)
	}
}

// The line that dev prints for people to try must work as it stands.
func TestGreetingWorks(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	p := f.start("dev", "--addr", "127.0.0.1:0")
	var try string
	for range 3 {
		p.lines.Scan()
		if line, ok := strings.CutPrefix(p.lines.Text(), "Try:   "); ok {
			try = line
		}
	}
	if strings.Contains(try, f.token()) {
		t.Error("the greeting has the token in it")
	}
	cmd := exec.Command("sh", "-c", try)
	cmd.Dir, cmd.Env = f.path, f.env
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), `"job_id":"job_`) {
		t.Fatalf("%s\n%v\n%s", try, err, out)
	}
	f.must(0, "job", "wait", "@latest", "--timeout", "30s")
	curl := f.must(0, "job", "get", "@latest", "--curl")
	cmd = exec.Command("sh", "-c", curl)
	cmd.Dir, cmd.Env = f.path, f.env
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), `"status":"SUCCEEDED"`) {
		t.Errorf("%s\n%v\n%s", curl, err, out)
	}
}

func TestArtifactsAreFetched(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.dev()
	job := submitExec(f, `printf 'one,two' > "$DROVER_ARTIFACTS/table.csv"; echo '{"table":"artifact:table.csv"}' > "$DROVER_OUTPUT"`)
	f.must(0, "job", "wait", job, "--timeout", "30s")
	id := f.must(0, "artifact", "list", "--job", job, "-o", "name")
	if got := f.must(0, "artifact", "get", id, "--to", "-"); got != "one,two" {
		t.Errorf("content = %q", got)
	}
	f.must(0, "artifact", "get", id, "--to", ".")
	if b, err := os.ReadFile(filepath.Join(f.path, "table.csv")); err != nil || string(b) != "one,two" {
		t.Errorf("file = %q, %v", b, err)
	}
	if a := get[drover.Artifact](f, "artifact", "get", id); a.Name != "table.csv" || a.Size != 7 {
		t.Errorf("artifact = %+v", a)
	}
	j := get[drover.Job](f, "job", "get", job)
	if want := `"artifact://` + id + `"`; !strings.Contains(string(j.Result), want) {
		t.Errorf("result %s lacks %s", j.Result, want)
	}
}

func TestServerFromNothing(t *testing.T) {
	t.Parallel()
	for _, kind := range storetest.Drivers(t) {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := newFolder(t)
			url, o := storetest.Place(t, kind)
			f.env = append(f.env, "DROVER_DATABASE_URL="+url)
			if o.Schema != "" {
				f.env = append(f.env, "DROVER_DATABASE_SCHEMA="+o.Schema)
			}
			addr := freeAddress(t)
			_, errs, code := f.try("server", "--http-addr", addr)
			if code != exitConflict || !strings.Contains(errs, "drover migrate up") {
				t.Fatalf("on an empty database: code %d, %q; want 5 and the remedy", code, errs)
			}
			f.must(exitConflict, "migrate", "status")
			f.must(0, "migrate", "up", "--dry-run")
			f.must(exitConflict, "migrate", "status")
			f.must(0, "migrate", "up")
			f.must(0, "migrate", "status")
			secret := f.must(0, "token", "create", "--database-url", url, "--tenant", "acme", "--name", "admin", "--scope", "admin")
			if !strings.HasPrefix(secret, "drover_") || strings.ContainsAny(secret, " \n") {
				t.Fatalf("the secret is %q, want one word", secret)
			}

			server := f.start("server", "--http-addr", addr, "--artifacts", t.TempDir())
			f.env = append(f.env, "DROVER_URL=http://"+addr)
			eventually(t, "the server is not ready", func() bool { _, _, code := f.try("healthcheck"); return code == 0 })
			f.must(exitAuth, "job", "list")
			f.env = append(f.env, "DROVER_TOKEN="+secret)

			// A worker with a token of its own.
			token := f.must(0, "token", "create", "--name", "worker", "--scope", "workers:run", "--expires-in", "1h")
			f.must(exitAuth, "job", "list", "--token", token)
			w := f.start("worker", "run", "--exec", "--queue", "default,cpu", "--token", token, "--name", "w1", "--slots", "2")
			job := submitExec(f, "echo done", "--queue", "cpu")
			f.must(0, "job", "wait", job, "--timeout", "30s")
			if out := f.must(0, "worker", "list"); !strings.Contains(out, "w1") || !strings.Contains(out, "0/2") {
				t.Errorf("workers:\n%s", out)
			}
			w.signal(syscall.SIGTERM)
			if code := w.wait(t); code != 0 {
				t.Errorf("the worker ended with %d, want 0", code)
			}
			if keep := get[drover.Retention](f, "retention", "set", "--failed", "forever", "--cancelled", "24h"); keep.Failed != 0 || keep.Cancelled.Std() != 24*time.Hour || keep.Succeeded != drover.DefaultRetention.Succeeded {
				t.Errorf("retention = %+v", keep)
			}
			if text := f.must(0, "retention", "show"); !strings.Contains(text, "FAILED      for ever") || !strings.Contains(text, "SUCCEEDED   7d0h") {
				t.Errorf("retention:\n%s", text)
			}
			f.must(2, "retention", "set")
			f.must(2, "retention", "set", "--failed", "0s")
			tokens := get[[]drover.Token](f, "token", "list")
			for _, tok := range tokens {
				if tok.Name == "worker" {
					f.must(0, "token", "revoke", tok.ID.String())
				}
			}
			f.must(exitAuth, "job", "list", "--token", token)
			server.signal(syscall.SIGTERM)
			if code := server.wait(t); code != 0 {
				t.Errorf("the server ended with %d, want 0", code)
			}
			if strings.Contains(server.errs.String(), secret) || strings.Contains(server.errs.String(), token) {
				t.Error("a token is in the server's log")
			}
		})
	}
}

// TestTheQueueIsRebuilt: the rows of a waiting task are gone from the database.
// doctor says so, mends it at the database, and the job runs.
func TestTheQueueIsRebuilt(t *testing.T) {
	t.Parallel()
	for _, kind := range storetest.Drivers(t) {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := newFolder(t)
			url, o := storetest.Place(t, kind)
			f.env = append(f.env, "DROVER_DATABASE_URL="+url)
			if o.Schema != "" {
				f.env = append(f.env, "DROVER_DATABASE_SCHEMA="+o.Schema)
			}
			f.must(0, "migrate", "up")
			addr := freeAddress(t)
			f.env = append(f.env, "DROVER_URL=http://"+addr, "DROVER_TOKEN="+f.must(0, "token", "create", "--database-url", url, "--name", "admin", "--scope", "admin"))
			// No server runs while the rows are lost: one would mend them by itself.
			server := f.start("server", "--http-addr", addr)
			eventually(t, "the server is not ready", func() bool { _, _, code := f.try("healthcheck"); return code == 0 })
			job := submitExec(f, "echo done")
			server.signal(syscall.SIGTERM)
			server.wait(t)
			db, err := store.Open(t.Context(), url, o)
			if err != nil {
				t.Fatal(err)
			}
			id := drover.TaskID(db.NewID())
			for _, sql := range []string{"DELETE FROM task_queued", fmt.Sprintf("INSERT INTO permits (task_id, limit_id, key, weight, at) VALUES (%s, 7, '', 1, 0)", literal(kind, id))} {
				if err := db.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			f.must(exitUsage, "doctor", "--mend", "--url", "http://"+addr, "--database-url", "")
			doctor := func(want string, more ...string) {
				t.Helper()
				out := f.must(exitError, append([]string{"doctor", "--database-url", url}, more...)...) // the server is down
				if !strings.Contains(out, want) {
					t.Errorf("doctor %v says:\n%s\nwant %q", more, out, want)
				}
			}
			doctor("1 job does not agree with its records: 1 task_nowhere")
			doctor("1 permit is held by no task")
			doctor("mended: 1 permit is held by no task", "--mend")
			doctor("every permit of a limit is held by a task that is admitted or runs")
			doctor("the rows of every job agree with its records")
			f.start("server", "--http-addr", addr)
			eventually(t, "the server is not ready", func() bool { _, _, code := f.try("healthcheck"); return code == 0 })
			f.start("worker", "run", "--exec")
			f.must(0, "job", "wait", job, "--timeout", "30s")
			if out := f.must(0, "job", "events", job); !strings.Contains(out, "job.reconciled") {
				t.Errorf("the events do not tell:\n%s", out)
			}
		})
	}
}

// literal is an id as SQL writes it.
func literal(kind string, id drover.TaskID) string {
	if kind == "postgres" {
		return fmt.Sprintf("'%x'", id[:])
	}
	return fmt.Sprintf("x'%x'", id[:])
}

// TestAServerThatWaitsForItsDatabaseSaysSo: it lives, it is not ready, and it
// works as soon as its database is there.
func TestAServerThatWaitsForItsDatabaseSaysSo(t *testing.T) {
	t.Parallel()
	for _, kind := range storetest.Drivers(t) {
		if kind == "sqlite" { // a file is always there
			continue
		}
		f := newFolder(t)
		place, o := storetest.Place(t, kind)
		u, err := url.Parse(place)
		if err != nil {
			t.Fatal(err)
		}
		database := u.Host
		u.Host = freeAddress(t)
		addr := freeAddress(t)
		f.env = append(f.env, "DROVER_URL=http://"+addr, "DROVER_DATABASE_URL="+u.String(), "DROVER_DATABASE_SCHEMA="+o.Schema)
		f.start("server", "--http-addr", addr, "--auto-migrate", "--insecure")
		c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		ask := func(path string) (int, http.Header) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := c.Do(req)
			if err != nil {
				return 0, nil
			}
			defer res.Body.Close()
			return res.StatusCode, res.Header
		}
		eventually(t, "the server does not say that it lives", func() bool { code, _ := ask("/livez"); return code == http.StatusOK })
		for _, path := range []string{"/readyz", "/healthz", "/v1/jobs"} {
			if code, h := ask(path); code != http.StatusServiceUnavailable || path == "/v1/jobs" && h.Get("Retry-After") == "" {
				t.Errorf("%s: %d %v, want 503", path, code, h)
			}
		}
		forward(t, u.Host, database)
		eventually(t, "the server does not find its database", func() bool { code, _ := ask("/readyz"); return code == http.StatusOK })
		f.must(0, "job", "list")
	}
}

// forward lets connections to addr reach another address, until the test ends.
func forward(t *testing.T, addr, to string) {
	t.Helper()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); _ = ln.Close(); all.Wait() })
	all.Go(func() {
		for {
			a, err := ln.Accept()
			if err != nil {
				return
			}
			var d net.Dialer
			b, err := d.DialContext(ctx, "tcp", to)
			if err != nil {
				_ = a.Close()
				continue
			}
			stop := context.AfterFunc(ctx, func() { _ = errors.Join(a.Close(), b.Close()) })
			for _, p := range [][2]net.Conn{{a, b}, {b, a}} {
				all.Go(func() {
					_, _ = io.Copy(p[0], p[1])
					_ = errors.Join(a.Close(), b.Close())
					stop()
				})
			}
		}
	})
}

func TestInsecureServerAnswersThisMachineOnly(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	addr := freeAddress(t)
	f.start("server", "--http-addr", addr, "--database-url", "sqlite:drover.db", "--auto-migrate", "--insecure")
	f.env = append(f.env, "DROVER_URL=http://"+addr)
	eventually(t, "the server is not ready", func() bool { _, _, code := f.try("healthcheck"); return code == 0 })
	f.must(0, "job", "list")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/v1/jobs", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "evil.example.com"
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("a request that names another host: %d %s %v, want 421", res.StatusCode, b, err)
	}
}

func TestServerSpeaksTLS(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	write(t, filepath.Join(f.path, "cert.pem"), cert)
	write(t, filepath.Join(f.path, "key.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})))
	_, port, err := net.SplitHostPort(freeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	f.start("server", "--http-addr", ":"+port, "--database-url", "sqlite:drover.db", "--auto-migrate", "--tls-cert", "cert.pem", "--tls-key", "key.pem")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(cert))
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}}
	defer c.CloseIdleConnections()
	eventually(t, "the server does not answer over HTTP/2", func() bool {
		res, err := c.Get("https://127.0.0.1:" + port + "/readyz")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK && res.ProtoMajor == 2
	})
}

// freeAddress returns an address that nobody listens on at the moment.
func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}
