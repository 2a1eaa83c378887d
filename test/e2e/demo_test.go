package e2e

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A pipeline in place of the example's, which needs ffmpeg and its time.
const smallPipeline = `pipeline: dataset-ingestion
input: {type: object, required: [object_uri], properties: {object_uri: {type: string}}}
tasks:
  manifest:
    run: exec
    artifact: {kind: dataset-manifest}
    with: {command: [./steps/manifest.sh, "${{ input.object_uri }}"]}
`

// newDemo returns a folder with tools/demo.sh in it and what it needs, made
// small: a clip of one line, a pipeline of one task, a worker that does nothing.
func newDemo(t *testing.T) *folder {
	t.Helper()
	f := newFolder(t)
	for _, dir := range []string{"tools", "bin", "examples/dataset-ingestion/steps"} {
		if err := os.MkdirAll(f.file(dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	script, err := os.ReadFile(filepath.Join(repo, "tools", "demo.sh"))
	if err != nil {
		t.Fatal(err)
	}
	f.program("tools/demo.sh", string(script))
	f.program("tools/needs.sh", "#!/bin/sh\n")
	f.program("tools/demo-clip.sh", "#!/bin/sh\necho clip >\"$1\"\n")
	f.program("bin/dataset-worker", "#!/bin/sh\nexec sleep 1000\n")
	f.write("examples/dataset-ingestion/pipeline.yaml", smallPipeline)
	f.manifest("sleep 0.1")
	if err := os.Symlink(filepath.Join(bin, "drover"), f.file("bin/drover")); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *folder) program(name, text string) {
	f.t.Helper()
	if err := os.WriteFile(f.file(name), []byte(text), 0o700); err != nil { //nolint:gosec // it is run
		f.t.Fatal(err)
	}
}

// manifest makes the only step of the small pipeline do something first.
func (f *folder) manifest(first string) {
	f.t.Helper()
	f.program("examples/dataset-ingestion/steps/manifest.sh", "#!/bin/sh\n"+first+`
printf '{\n "counts": {\n  "samples": 1\n }\n}\n' >"$DROVER_ARTIFACTS/manifest.json"
`)
}

// demo runs the demo to its end; settings are such as VIDEO=clip.mp4.
func (f *folder) demo(settings ...string) (output string, code int) {
	f.t.Helper()
	out, errs, code := f.run("env", append(settings, "tools/demo.sh")...)
	return out + errs, code
}

var anyJob = regexp.MustCompile(`job_[0-9A-Z]{26}`)

// The demo has state and a server of its own: it does what it says beside a
// Drover that listens where it would, and FRESH=1 leaves that one's jobs alone.
func TestDemoLeavesOtherJobsAlone(t *testing.T) {
	t.Parallel()
	f := newDemo(t)
	addr := "127.0.0.1:8420" // the demo's own choice, if this machine has it to give
	if ln, err := net.Listen("tcp", addr); err != nil {
		addr = "127.0.0.1:0"
	} else {
		ln.Close()
	}
	own := f.dev(addr, "--workdir", ".")
	job := f.drover("job", "submit", "--kind", "exec", "--input", `{"command":["true"]}`, "--wait", "-o", "name")

	out, code := f.demo("DROVER_URL=http://127.0.0.1:1", "DROVER_TOKEN=other")
	if code != 0 || !strings.Contains(out, "Counted: samples 1\nDataset manifest: "+f.file(".drover/demo/manifest.json")) {
		t.Fatalf("the demo beside a Drover ended with %d:\n%s", code, out)
	}
	if again, code := f.demo(); code != 0 || !strings.Contains(again, "this is the same job") || anyJob.FindString(again) != anyJob.FindString(out) {
		t.Errorf("the second demo ended with %d, and not with the first one's job:\n%s", code, again)
	}
	fresh, code := f.demo("FRESH=1")
	if code != 0 || strings.Contains(fresh, anyJob.FindString(out)) {
		t.Errorf("the fresh demo ended with %d, and is to have another job:\n%s", code, fresh)
	}
	own.interrupt()
	own.wait()
	fresh, code = f.demo("FRESH=1")
	if code != 0 {
		t.Errorf("the fresh demo ended with %d:\n%s", code, fresh)
	}
	f.dev("127.0.0.1:0")
	if list := f.drover("job", "list", "-o", "name"); list != job {
		t.Errorf("afterwards the jobs of ./.drover are %q, want %s", list, job)
	}
}

// A demo whose job failed says what to do, and what it says is right; the next
// one runs another job.
func TestDemoAfterAFailure(t *testing.T) {
	t.Parallel()
	f := newDemo(t)
	f.manifest(`echo "no video stream in it" >&2; exit 65`)
	out, code := f.demo("ADDR=127.0.0.1:0")
	if code != exitFailed || !strings.Contains(out, "FAILED: task manifest: no video stream in it") {
		t.Fatalf("the demo ended with %d:\n%s", code, out)
	}
	job := anyJob.FindString(out)
	log := ".drover/demo/" + job + ".log"
	if !strings.Contains(out, log) || !strings.Contains(f.read(log), "no video stream") {
		t.Errorf("the log it names says %q:\n%s", f.read(log), out)
	}
	// What it says about looking at the tasks.
	advice := regexp.MustCompile(`(?m)^  (bin/drover dev --state \S+ --workdir \S+) `).FindStringSubmatch(out)
	list := regexp.MustCompile(`(?m)^  (bin/drover task list .*)$`).FindStringSubmatch(out)
	if advice == nil || list == nil {
		t.Fatalf("it gives no advice:\n%s", out)
	}
	dev := f.start(nil, "sh", "-c", "exec "+advice[1]+" --addr 127.0.0.1:0")
	<-dev.line
	if out := f.sh("the advice", list[1]); !strings.Contains(out, "FAILED") {
		t.Errorf("%s: %s", list[1], out)
	}
	// A Drover on the demo's state is not used, as nobody knows how it was started.
	if out, code := f.demo("ADDR=127.0.0.1:0"); code != 1 || !strings.Contains(out, fmt.Sprintf("process %d", dev.cmd.Process.Pid)) || !strings.Contains(out, "stop it first") {
		t.Errorf("the demo on a state in use ended with %d:\n%s", code, out)
	}
	dev.interrupt()
	dev.wait()

	// The steps are not part of the state: as if the cause were a full disk.
	f.manifest(`[ -e "$DROVER_WORKDIR/mended" ] || { echo "disk full" >&2; exit 65; }`)
	if out, code := f.demo("ADDR=127.0.0.1:0"); code != exitFailed {
		t.Fatalf("the demo ended with %d:\n%s", code, out)
	}
	f.write("examples/dataset-ingestion/mended", "")
	if out, code := f.demo("ADDR=127.0.0.1:0"); code != 0 || !strings.Contains(out, "submitted anew") {
		t.Errorf("the demo after the cause was mended ended with %d:\n%s", code, out)
	}
}

func TestDemoRefusesWhatIsNoVideoFile(t *testing.T) {
	t.Parallel()
	f := newDemo(t)
	if err := os.MkdirAll(f.file(".drover/demo"), 0o700); err != nil {
		t.Fatal(err)
	}
	f.write(".drover/demo/clip.mp4", "clip")
	for _, test := range []struct{ settings, says string }{
		{"VIDEO=none.mp4", "there is no file none.mp4"},
		{"VIDEO=tools", "tools is not a file"},
		{"FRESH=1 VIDEO=.drover/demo/clip.mp4", "FRESH=1 throws away"},
	} {
		if out, code := f.demo(strings.Fields(test.settings)...); code != 1 || !strings.Contains(out, test.says) || strings.Contains(out, "ready at") {
			t.Errorf("%s: ended with %d:\n%s", test.settings, code, out)
		}
	}
}

// Whenever Ctrl-C comes, nothing that the demo has started is left.
func TestDemoStopsWhatItStarted(t *testing.T) {
	t.Parallel()
	f := newDemo(t)
	f.manifest("sleep 30")
	f.program("bin/dataset-worker", "#!/bin/sh\necho $$ >>workers\nexec sleep 1000\n")
	moments := []string{
		"Making a clip", "$ bin/drover dev", "ready at", "$ bin/dataset-worker", "worker.log", "$ bin/drover pipeline apply",
		"dataset-ingestion@1", "$ bin/drover job submit", "$ bin/drover job watch", "job.accepted",
	}
	for _, moment := range moments {
		if err := os.RemoveAll(f.file(".drover")); err != nil {
			t.Fatal(err)
		}
		p := f.start([]string{"ADDR=127.0.0.1:0"}, "tools/demo.sh")
		for !strings.Contains(p.errs.String(), moment) && p.alive() {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(rand.N(20 * time.Millisecond)) //nolint:gosec // a moment
		p.interrupt()
		if code := p.wait(); code != 130 {
			t.Errorf("Ctrl-C after %q: the demo ended with %d, want 130:\n%s", moment, code, p.errs)
		}
		if out := p.errs.String(); strings.Contains(out, "demo: ") || strings.Contains(out, "job_") && strings.Contains(out, " goes on;") {
			t.Errorf("Ctrl-C after %q: it says more than that it stopped:\n%s", moment, out)
		}
		if lock, err := os.Open(f.file(".drover/demo/lock")); err == nil {
			if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
				t.Errorf("Ctrl-C after %q: process %s, its Drover, is left", moment, f.read(".drover/demo/lock"))
			}
			lock.Close()
		}
		for _, word := range strings.Fields(f.read("workers")) {
			if pid, err := strconv.Atoi(word); err != nil || syscall.Kill(pid, 0) == nil {
				t.Errorf("Ctrl-C after %q: the worker %s is left", moment, word)
			}
		}
		if t.Failed() { // what is left ends with the test
			for _, word := range strings.Fields(f.read("workers") + " " + f.read(".drover/demo/lock")) {
				if pid, err := strconv.Atoi(word); err == nil {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
			return
		}
	}
}
