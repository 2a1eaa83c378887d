//go:build unix

package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/worker"
)

type in map[string]any

// bench is a place to run exec tasks in.
type bench struct {
	*peer
	t    *testing.T
	o    Options
	temp string
}

func newBench(t *testing.T, change ...func(*Options)) *bench {
	t.Helper()
	b := &bench{peer: newPeer(), t: t, temp: t.TempDir()}
	o := Options{Workdir: t.TempDir(), Temp: b.temp, KillAfter: 500 * time.Millisecond}
	for _, f := range change {
		f(&o)
	}
	o, err := o.filled()
	if err != nil {
		t.Fatal(err)
	}
	b.o = o
	return b
}

// run runs a task and checks that it left nothing behind.
func (b *bench) run(input any, more ...func(*drover.Lease)) drover.Outcome {
	b.t.Helper()
	l := drover.Lease{Name: "step", Index: 7, Attempt: 2, Timeout: drover.Duration(20 * time.Second)}
	if raw, ok := input.(json.RawMessage); ok {
		l.Input = raw
	} else {
		l.Input = inputOf(b.t, input)
	}
	for _, f := range more {
		f(&l)
	}
	o := b.do(b.t, newProgram(b.o).run, l)
	left, err := os.ReadDir(b.temp)
	if err != nil || len(left) > 0 {
		b.t.Errorf("left behind: %v, %v", left, err)
	}
	return o
}

// sh is the input for a script.
func sh(script string) in { return in{"command": []string{"sh", "-c", script}} }

func wantFailure(t *testing.T, o drover.Outcome, class drover.ErrorClass, kind, text string) {
	t.Helper()
	if o.Status != drover.OutcomeFailed || o.Error.Class != class || o.Error.Type != kind || !strings.Contains(o.Error.Message, text) {
		t.Errorf("got %s %+v, want class %s, type %s and %q", o.Status, o.Error, class, kind, text)
	}
}

func TestArgumentsReachTheProgramAsTheyAre(t *testing.T) {
	t.Parallel()
	args := []string{"printf", `[%s]\n`, "two words", "$(touch /tmp/pwned)", "`id`", "$HOME", "*", "'\"", "-n", "", "漢\n🙂", ";&|><"}
	b := newBench(t)
	o := b.run(in{"command": args})
	if o.Status != drover.OutcomeSucceeded || string(o.Output) != "{}" {
		t.Fatalf("got %+v", o.Error)
	}
	want := ""
	for _, a := range args[2:] {
		want += "[" + a + "]\n"
	}
	if got := b.text("stdout"); got != want {
		t.Errorf("the program saw\n%s", got)
	}
	b = newBench(t)
	b.run(json.RawMessage(`{"command":["printf","%s|",2,1.50,9007199254740993,true,{"a": [1]},"2"]}`))
	if got := b.text("stdout"); got != "2|1.50|9007199254740993|true|{\"a\":[1]}|2|\n" {
		t.Errorf("other values: %q", got)
	}
}

func TestEnvironmentIsCleanAndHasTheTasksFacts(t *testing.T) {
	t.Parallel()
	os.Setenv("EXECUTOR_TEST_SECRET", "canary")
	b := newBench(t)
	trace := "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	o := b.run(in{"command": []string{"sh", "-c", `env; echo "pwd=$(pwd)"; cat "$DROVER_INPUT"`}, "env": in{"SPEED": 2.5, "WORD": "a b", "LANG": "de"}},
		func(l *drover.Lease) { l.Traceparent = trace })
	if o.Status != drover.OutcomeSucceeded {
		t.Fatal(o.Error.Message)
	}
	got := b.text("stdout")
	for _, want := range []string{
		"SPEED=2.5\n", "WORD=a b\n", "LANG=de\n", "TRACEPARENT=" + trace, "DROVER_TASK_ID=" + taskA.String(), "DROVER_TASK_NAME=step\n", "DROVER_TASK_INDEX=7\n",
		"DROVER_ATTEMPT=2\n", "DROVER_LEASE_VERSION=3\n", "DROVER_IDEMPOTENCY_KEY=" + taskA.String() + ".1\n", "DROVER_WORKDIR=" + b.o.Workdir, "PATH=" + os.Getenv("PATH"),
		`"command":["sh"`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if strings.Contains(got, "canary") || strings.Contains(got, "GOPATH") {
		t.Errorf("this process's environment got in:\n%s", got)
	}
	home, pwd := between(got, "HOME=", "\n"), between(got, "pwd=", "\n")
	if home != pwd || !strings.HasPrefix(home, b.temp) {
		t.Errorf("HOME is %s, the folder %s", home, pwd)
	}
}

func between(s, a, b string) string {
	_, s, _ = strings.Cut(s, a)
	s, _, _ = strings.Cut(s, b)
	return s
}

// Not parallel: a program that is started while a script is open for writing
// holds it for a moment, and the kernel does not start what is being written.
func TestScriptsAreRelativeToTheWorkingFolder(t *testing.T) {
	b := newBench(t)
	script := filepath.Join(b.o.Workdir, "steps", "x.sh")
	os.Mkdir(filepath.Dir(script), 0o755)
	os.WriteFile(script, []byte("#!/bin/sh\necho \"$0 $1\"\nread line\necho \"$line\"\n"), 0o755)
	if o := b.run(in{"command": []string{"./steps/x.sh", "a"}, "stdin": "from stdin\n"}); o.Status != drover.OutcomeSucceeded {
		t.Fatal(o.Error.Message)
	}
	if got := b.text("stdout"); !strings.HasSuffix(got, "steps/x.sh a\nfrom stdin\n") {
		t.Errorf("got %q", got)
	}
	os.Chmod(script, 0o644)
	wantFailure(t, b.run(in{"command": []string{"./steps/x.sh"}}), drover.ClassPermanent, "exit_126", "start ./steps/x.sh: permission denied")
	wantFailure(t, b.run(in{"command": []string{"./steps/none.sh"}}), drover.ClassPermanent, "exit_127", "start ./steps/none.sh: no such file")
	wantFailure(t, b.run(in{"command": []string{"no-such-program"}}), drover.ClassPermanent, "exit_127", "not found")
	wantFailure(t, b.run(in{"command": []string{"no-such-program"}, "exit_codes": in{"retryable": []int{127}}}), drover.ClassRetryable, "exit_127", "not found")
	os.WriteFile(script, []byte("not a program"), 0o755)
	os.Chmod(script, 0o755)
	wantFailure(t, b.run(in{"command": []string{"./steps/x.sh"}}), drover.ClassPermanent, "exit_126", "exec format error")
}

func TestExitStatusesHaveTheirClass(t *testing.T) {
	t.Parallel()
	for code, class := range map[int]drover.ErrorClass{
		1: drover.ClassRetryable, 2: drover.ClassRetryable, 75: drover.ClassRetryable, 255: drover.ClassRetryable,
		64: drover.ClassPermanent, 65: drover.ClassPermanent, 78: drover.ClassPermanent, 126: drover.ClassPermanent, 127: drover.ClassPermanent,
	} {
		o := newBench(t).run(sh(fmt.Sprintf("echo progress; echo 'no video stream' >&2; echo >&2; exit %d", code)))
		wantFailure(t, o, class, "exit_"+strconv.Itoa(code), fmt.Sprintf("no video stream (exit status %d)", code))
	}
	o := newBench(t).run(in{"command": []string{"sh", "-c", "exit 65"}, "exit_codes": in{"retryable": []int{65}, "permanent": []int{1}}})
	wantFailure(t, o, drover.ClassRetryable, "exit_65", "exit status 65")
	o = newBench(t).run(in{"command": []string{"sh", "-c", "exit 1"}, "exit_codes": in{"permanent": []int{1}}})
	wantFailure(t, o, drover.ClassPermanent, "exit_1", "exit status 1")
	o = newBench(t).run(sh("kill -SEGV $$"))
	wantFailure(t, o, drover.ClassRetryable, "signal_11", "killed by signal segmentation fault")
}

func TestResultAndArtifactsComeFromFiles(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	o := b.run(sh(`
		mkdir -p "$DROVER_ARTIFACTS/frames"
		printf one > "$DROVER_ARTIFACTS/frames/1.json"; printf two > "$DROVER_ARTIFACTS/b c.txt"
		ln -s /etc/passwd "$DROVER_ARTIFACTS/link"; mkfifo "$DROVER_ARTIFACTS/fifo"
		printf '{ "a": "artifact:frames/1.json", "l": ["artifact:b c.txt", "artifact:none", "x\\"artifact:y"], "artifact:b c.txt" : 9007199254740993, "e": "artifact:link", "n": 1.10 }' > "$DROVER_OUTPUT"`))
	if o.Status != drover.OutcomeSucceeded {
		t.Fatal(o.Error.Message)
	}
	uris := map[string]string{}
	for id, a := range b.stored {
		uris[a.Name] = a.URI
		if !slices.Contains(o.Artifacts, id) {
			t.Errorf("%s is not in the outcome", a.Name)
		}
		if want := map[string]string{"frames/1.json": "one", "b c.txt": "two"}[a.Name]; b.content[id] != want {
			t.Errorf("%s holds %q", a.Name, b.content[id])
		}
	}
	if len(uris) != 2 || b.stored[o.Artifacts[1]].MediaType != "application/json" {
		t.Errorf("artifacts are %v", b.stored)
	}
	want := fmt.Sprintf(`{ "a": %q, "l": [%q, "artifact:none", "x\"artifact:y"], "artifact:b c.txt" : 9007199254740993, "e": "artifact:link", "n": 1.10 }`, uris["frames/1.json"], uris["b c.txt"])
	if string(o.Output) != want {
		t.Errorf("the result is\n%s, want\n%s", o.Output, want)
	}
	if got := b.text("warn"); strings.Count(got, "not a regular file") != 2 {
		t.Errorf("warnings: %q", got)
	}
}

func TestBadResultsAreToldClearly(t *testing.T) {
	t.Parallel()
	small := func(o *Options) { o.MaxOutput = 100 }
	for script, text := range map[string]string{
		`echo '{"a":' > "$DROVER_OUTPUT"`:        "it is not JSON",
		`echo '{"a":1} {}' > "$DROVER_OUTPUT"`:   "it is not JSON",
		`printf '"\377"' > "$DROVER_OUTPUT"`:     "it is not UTF-8",
		`printf '"%0200d"' 1 > "$DROVER_OUTPUT"`: "more than 100 bytes",
		`ln -s /etc/passwd "$DROVER_OUTPUT"`:     "not a regular file",
		`mkfifo "$DROVER_OUTPUT"`:                "not a regular file",
		`mkdir "$DROVER_OUTPUT"`:                 "not a regular file",
	} {
		wantFailure(t, newBench(t, small).run(sh(script)), drover.ClassPermanent, "bad_output", text)
	}
	for _, script := range []string{`true`, `: > "$DROVER_OUTPUT"`, `rm -rf "$DROVER_ARTIFACTS"`, `mkdir d; chmod 0 d; chmod 0 .`} {
		if o := newBench(t).run(sh(script)); o.Status != drover.OutcomeSucceeded || string(o.Output) != "{}" {
			t.Errorf("%s: %+v %s", script, o.Error, o.Output)
		}
	}
}

func TestFilesAreFetchedAndStayInside(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.store(drover.Artifact{Name: "clip.mp4"}, "moving pictures")
	if o := b.run(in{"command": []string{"cat", "clip.mp4", "deep/er/x"}, "files": in{"clip.mp4": a.URI, "deep/er/x": a.URI}}); o.Status != drover.OutcomeSucceeded {
		t.Fatal(o.Error.Message)
	}
	if got := b.text("stdout"); got != "moving picturesmoving pictures\n" {
		t.Errorf("got %q", got)
	}
	for _, name := range []string{"../x", "/etc/x", "a/../../x", "", ".", "..", "a//b", "a/", "./a"} {
		o := b.run(in{"command": []string{"true"}, "files": in{name: a.URI}})
		wantFailure(t, o, drover.ClassPermanent, "bad_input", "does not name a file inside")
	}
	wantFailure(t, b.run(in{"command": []string{"true"}, "files": in{"a": "file:///etc/passwd"}}), drover.ClassPermanent, "bad_input", "is not a URI")
	wantFailure(t, b.run(in{"command": []string{"true"}, "files": in{"a": drover.URIOf(drover.ArtifactID{1})}}), drover.ClassPermanent, "not-found", "there is no artifact")
	if o := b.run(in{"command": []string{"true"}, "files": in{"a": a.URI, "a/b": a.URI}}); o.Error == nil || o.Error.Class != drover.ClassPermanent {
		t.Errorf("a file that is a folder too: %+v", o)
	}
}

func TestBadInputsAreToldClearly(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for input, text := range map[string]string{
		``:                                    "command is missing",
		`{"command":[]}`:                      "command is empty",
		`{"command":[""]}`:                    "command is empty",
		`{"command":"ls -l"}`:                 `command: this must be a list of the program and its arguments, such as ["./step.sh", "one"]`,
		`{"command":["ls"],"exit_codes":[3]}`: "exec: exit_codes: exit_codes is a mapping with the keys permanent, retryable; this is a list",
		`{"command":["ls"],"stdin":null,"files":{"a":1}}`: "exec: files.a: this must be text and is a number",
		`{"comand":["ls"]}`:                                                 `exec: comand: the input of exec has no key "comand"; the keys are command, env,`,
		`{"command":["ls",null]}`:                                           "exec: command[1]: there must be a text here, and it is empty",
		`{"command":["ls","a\u0000b"]}`:                                     "NUL",
		`{"command":["ls"],"env":{"A B":"x"}}`:                              `"A B" is not the name of a variable`,
		`{"command":["ls"],"env":{"A=B":"x"}}`:                              "is not the name of a variable",
		`{"command":["ls"],"env":{"DROVER_TASK_ID":"x"}}`:                   "is set by Drover",
		`{"command":["ls"],"exit_codes":{"permanent":[1],"retryable":[1]}}`: "both permanent and retryable",
		`{"command":["ls"],"exit_codes":{"permanent":[0]}}`:                 "exec: exit_codes.permanent[0]: 0 is not a whole number from 1 to 255",
		`{"command":["ls"]} x`:                                              "something follows",
	} {
		wantFailure(t, b.run(json.RawMessage(input)), drover.ClassPermanent, "bad_input", text)
	}
}

func TestOutputIsValidAndBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	o := b.run(sh(`printf 'a\r\nb\377c\n\nlast'; printf 'err\n' >&2; head -c 1000000 /dev/zero | tr '\0' x; echo; echo after`))
	if o.Status != drover.OutcomeSucceeded {
		t.Fatal(o.Error.Message)
	}
	got := b.text("stdout")
	if !strings.HasPrefix(got, "a\nb\ufffdc\n\nlast") || !strings.HasSuffix(got, "x… (cut; 1000004 bytes in all)\nafter\n") || len(got) > maxLine+200 {
		t.Errorf("got %d bytes: %.40q … %q", len(got), got, got[max(0, len(got)-60):])
	}
	if got := b.text("stderr"); got != "err\n" {
		t.Errorf("stderr is %q", got)
	}

	b = newBench(t, func(o *Options) { o.MaxLog = 10_000 })
	o = b.run(sh(`i=0; while [ $i -lt 5000 ]; do echo "line $i"; i=$((i+1)); done; echo "the reason" >&2; exit 3`))
	wantFailure(t, o, drover.ClassRetryable, "exit_3", "the reason (exit status 3)")
	if n := len(b.text("stdout")); n > 10_000 || n < 9_900 {
		t.Errorf("%d bytes were kept", n)
	}
	if got := b.text("warn"); got != "the program wrote more than 10000 bytes; the rest is not kept\n" {
		t.Errorf("the mark is %q", got)
	}
}

func TestManyLinesAreKept(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.run(sh(`seq 1 20000`))
	if got := b.text("stdout"); strings.Count(got, "\n") != 20000 || !strings.HasSuffix(got, "\n20000\n") {
		t.Errorf("%d lines arrived", strings.Count(got, "\n"))
	}
}

func TestProgressLinesAreProgress(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.run(sh(`echo "::progress 0.4 two of five"; sleep 0.3; echo "::progress soon"; echo "::progress 0.1" >&2`))
	if len(b.progress) != 1 || b.progress[0].Ratio != 0.4 || b.progress[0].Message != "two of five" {
		t.Errorf("progress is %+v", b.progress)
	}
	if b.text("stdout") != "::progress soon\n" || b.text("stderr") != "::progress 0.1\n" {
		t.Errorf("lines are %q and %q", b.text("stdout"), b.text("stderr"))
	}
}

// alive reports whether a process is there and no zombie.
func alive(pid string) bool {
	b, err := os.ReadFile("/proc/" + strings.TrimSpace(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func waitGone(t *testing.T, pid string) {
	t.Helper()
	for range 300 {
		if !alive(pid) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("process %s still runs", pid)
	if n, err := strconv.Atoi(strings.TrimSpace(pid)); err == nil {
		syscall.Kill(n, syscall.SIGKILL)
	}
}

func TestTimeoutKillsTheWholeGroup(t *testing.T) {
	t.Parallel()
	note := filepath.Join(t.TempDir(), "pids")
	b := newBench(t)
	began := time.Now()
	o := b.run(in{"command": []string{"sh", "-c", `trap '' TERM; sleep 60 & echo $! > "$NOTE"; (trap '' TERM; sleep 61 & echo $! >> "$NOTE"; wait; sleep 62) & wait; sleep 63; wait`}, "env": in{"NOTE": note}},
		func(l *drover.Lease) { l.Timeout = drover.Duration(500 * time.Millisecond) })
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	wantFailure(t, o, drover.ClassTimeout, "", "took longer than 500ms: sh was stopped")
	pids, err := os.ReadFile(note)
	if err != nil || strings.Count(string(pids), "\n") != 2 {
		t.Fatalf("pids are %q, %v", pids, err)
	}
	for pid := range strings.Lines(string(pids)) {
		waitGone(t, pid)
	}
}

func TestCancelLetsTheProgramCleanUp(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(o *Options) { o.KillAfter = 10 * time.Second })
	go func() {
		for range 1000 {
			if strings.Contains(b.text("stdout"), "ready") {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		b.mu.Lock()
		b.cancel = []drover.Held{{TaskID: taskA, LeaseVersion: 3}}
		b.mu.Unlock()
	}()
	b.leaseFor = 2 * time.Second
	o := b.run(sh(`trap 'echo cleaned; exit 0' TERM; echo ready; while :; do sleep 0.05; done`))
	if o.Status != drover.OutcomeCancelled {
		t.Errorf("got %+v", o)
	}
	if got := b.text("stdout"); got != "ready\ncleaned\n" {
		t.Errorf("the program said %q", got)
	}
}

func TestWhatTheProgramLeftRunningEndsWithIt(t *testing.T) {
	t.Parallel()
	note := filepath.Join(t.TempDir(), "pid")
	b := newBench(t)
	began := time.Now()
	o := b.run(in{"command": []string{"sh", "-c", `sleep 60 & echo $! > "$NOTE"; echo done`}, "env": in{"NOTE": note}})
	if o.Status != drover.OutcomeSucceeded || time.Since(began) > 5*time.Second {
		t.Errorf("got %+v after %s", o, time.Since(began))
	}
	pid, err := os.ReadFile(note)
	if err != nil {
		t.Fatal(err)
	}
	waitGone(t, string(pid))
}

func TestProcessThatLeftTheGroupDoesNotHoldTheTask(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Fatal("setsid (package util-linux) is needed")
	}
	note := filepath.Join(t.TempDir(), "pid")
	b := newBench(t)
	began := time.Now()
	o := b.run(in{"command": []string{"sh", "-c", `setsid sh -c 'echo $$ > "$NOTE"; exec sleep 60' & while [ ! -s "$NOTE" ]; do sleep 0.01; done`}, "env": in{"NOTE": note}, "stdin": strings.Repeat("x", 1<<20)})
	if o.Status != drover.OutcomeSucceeded || time.Since(began) > 15*time.Second {
		t.Errorf("got %+v after %s", o, time.Since(began))
	}
	pid, err := os.ReadFile(note)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(pid)))
	if err != nil {
		t.Fatal(err)
	}
	syscall.Kill(n, syscall.SIGKILL)
}

// beAWorker runs a program as a worker would, until it is killed.
func beAWorker() {
	cmd := exec.Command("sh", "-c", "echo $$; exec sleep 60")
	cmd.Stdout = os.Stdout
	if _, err := launch(cmd); err != nil {
		fmt.Println(err)
	}
	select {}
}

func TestProgramDiesWithItsWorker(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		return // the kernels there cannot
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w := exec.Command(self)
	w.Env = append(os.Environ(), "EXECUTOR_TEST_WORKER=1")
	out, err := w.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 32)
	n, err := out.Read(buf)
	pid := strings.TrimSpace(string(buf[:n]))
	if err != nil || !alive(pid) {
		t.Errorf("the program is %q, %v", pid, err)
	}
	w.Process.Kill()
	w.Wait()
	waitGone(t, pid)
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	w := worker.New(newPeer(), worker.Config{})
	if err := Register(w, Options{Workdir: "/no/such/folder"}); err == nil || !strings.Contains(err.Error(), "/no/such/folder") {
		t.Errorf("got %v", err)
	}
	if err := Register(w, Options{MaxLog: -1}); err == nil {
		t.Error("a negative bound was taken")
	}
	if err := Register(w, Options{}); err != nil {
		t.Error(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := w.Run(ended); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func FuzzLinkChangesOnlyWhatItShould(f *testing.F) {
	f.Add(`{"a":"artifact:x","artifact:x":["artifact:x",1.10,"\"artifact:x"]}`)
	f.Add(`"artifact:x"`)
	f.Fuzz(func(t *testing.T, s string) {
		if !json.Valid([]byte(s)) {
			return
		}
		if got := link([]byte(s), map[string]string{"none of these": "u"}); string(got) != s {
			t.Errorf("%q became %q", s, got)
		}
		if got := link([]byte(s), map[string]string{"x": "artifact://art_1"}); !json.Valid(got) {
			t.Errorf("%q became %q", s, got)
		}
	})
}

// TestAProgramIsToldWhyItsInputIsDegraded, when it is.
func TestAProgramIsToldWhyItsInputIsDegraded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.run(sh(`echo "${DROVER_DEGRADED-nothing}"`))
	b.run(sh(`echo "$DROVER_DEGRADED"`), func(l *drover.Lease) {
		l.DegradedBy = []drover.Degradation{{Task: "infer", Index: 2, Reason: "fallback infer-small"}}
	})
	if out := b.text("stdout"); out != "nothing\n"+`[{"task":"infer","index":2,"reason":"fallback infer-small"}]`+"\n" {
		t.Errorf("the program saw %q", out)
	}
}
