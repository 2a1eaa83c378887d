package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
)

// exitFailed is the command's exit status for a job that failed.
const exitFailed = 6

// A file that is no whole video ends the example's pipeline at its first task,
// for good, with a sentence that a person understands.
func TestWrongVideosFailAtValidation(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("ffmpeg"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("ffmpeg is missing; make test installs it")
		}
		t.Log("without ffmpeg there is nothing to try; make test installs it")
		return
	}
	f := newFolder(t)
	whole := f.file("whole.mp4")
	if out, err := exec.CommandContext(t.Context(), "ffmpeg", "-nostdin", "-v", "error", "-f", "lavfi", "-i", "testsrc2=s=160x90:r=25:d=4",
		"-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-movflags", "+faststart", whole).CombinedOutput(); err != nil {
		t.Fatalf("ffmpeg: %v\n%s", err, out)
	}
	b, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	f.write("cut-off.mp4", string(b[:len(b)*2/3]))
	f.write("text.mp4", strings.Repeat("This is a text, not a video.\n", 100))
	f.write("empty.mp4", "")

	example := filepath.Join(repo, "examples", "dataset-ingestion")
	f.dev("127.0.0.1:0", "--workdir", example)
	c := f.connect()
	f.drover("pipeline", "apply", filepath.Join(example, "pipeline.yaml"))
	for _, test := range []struct{ file, says string }{
		{"text.mp4", "text.mp4 is not a video: its content is text."},
		{"cut-off.mp4", "cut-off.mp4 is cut off: it says it is 4.0 s long and ends after "},
		{"empty.mp4", "empty.mp4 is empty (0 bytes)."},
		{"missing.mp4", "There is no file " + f.file("missing.mp4")},
	} {
		id := f.drover("job", "submit", "--pipeline", "dataset-ingestion", "--input", string(encode(t, map[string]string{"object_uri": f.file(test.file)})), "-o", "name")
		out, errs, code := f.run("drover", "job", "watch", id)
		if code != exitFailed || !strings.Contains(errs, "FAILED: task validate: "+test.says) {
			t.Errorf("watch of %s: status %d, want %d, and stderr with %q:\n%s%s", test.file, code, exitFailed, test.says, out, errs)
		}
		job, err := drover.ParseJobID(id)
		if err != nil {
			t.Fatal(err)
		}
		j := wait(t, c, job, 10*time.Second)
		if j.Status != drover.Failed || j.Error == nil || j.Error.Task != "validate" || j.Error.Class != drover.ClassPermanent {
			t.Errorf("%s: the job is %s with %+v, want FAILED by the task validate, permanently", test.file, j.Status, j.Error)
		}
		for _, task := range tasks(t, c, job) {
			switch {
			case task.Name != "validate" && (task.Status != drover.Skipped || task.Attempt != 0):
				t.Errorf("%s: %s is %s at attempt %d, want SKIPPED before its first", test.file, task.Name, task.Status, task.Attempt)
			case task.Name == "validate" && (task.Status != drover.Failed || task.Attempt != 1):
				t.Errorf("%s: validate is %s at attempt %d, want FAILED at the first", test.file, task.Status, task.Attempt)
			}
		}
	}
}
