package ingestion_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"image/jpeg"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A step's run, as the exec executor does it: a folder of its own, the facts in
// the environment, the result in a file.
type run struct {
	exit      int
	message   string // the last line on stderr
	stdout    string
	output    []byte
	artifacts string
}

func step(t *testing.T, files map[string]string, command ...string) run {
	t.Helper()
	script, err := filepath.Abs(command[0])
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, from := range files {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := run{artifacts: t.TempDir()}
	output := filepath.Join(t.TempDir(), "output.json")
	cmd := exec.CommandContext(t.Context(), script, command[1:]...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LANG=C.UTF-8", "TMPDIR=" + dir,
		"DROVER_OUTPUT=" + output, "DROVER_ARTIFACTS=" + r.artifacts}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); errors.As(err, &exit) {
		r.exit = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	r.stdout = stdout.String()
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	r.message = lines[len(lines)-1]
	if r.exit == 0 {
		if r.output, err = os.ReadFile(output); err != nil {
			t.Fatalf("%s ended with status 0 and no result: %v", command[0], err)
		}
		if !json.Valid(r.output) {
			t.Fatalf("%s wrote a result that is no JSON: %s", command[0], r.output)
		}
	}
	return r
}

func (r run) decode(t *testing.T, v any) {
	t.Helper()
	if r.exit != 0 {
		t.Fatalf("exit status %d: %s", r.exit, r.message)
	}
	if err := json.Unmarshal(r.output, v); err != nil {
		t.Fatalf("%v in %s", err, r.output)
	}
}

// ffmpeg makes test input.
func ffmpeg(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "ffmpeg", append([]string{"-nostdin", "-v", "error", "-y"}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("ffmpeg (make test installs it): %v\n%s", err, out)
	}
}

// clip makes a video of 160 × 90 at 25 frames/s with a key frame every gop frames.
func clip(t *testing.T, path string, seconds float64, gop int, more ...string) string {
	t.Helper()
	args := []string{"-f", "lavfi", "-i", fmt.Sprintf("testsrc2=s=160x90:r=25:d=%g", seconds),
		"-f", "lavfi", "-i", fmt.Sprintf("sine=d=%g", seconds), "-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p",
		"-g", fmt.Sprint(gop), "-sc_threshold", "0", "-bf", "2", "-c:a", "aac"}
	ffmpeg(t, append(append(args, more...), path)...)
	return path
}

type validated struct {
	URI       string  `json:"uri"`
	Path      string  `json:"path"`
	SHA256    string  `json:"sha256"`
	Size      int64   `json:"size_bytes"`
	Stamp     string  `json:"stamp"`
	Duration  float64 `json:"duration_seconds"`
	Audio     *string `json:"audio"`
	Processor string  `json:"processor"`
	Video     struct {
		Codec         string
		Width, Height int
		Rate          string `json:"frame_rate"`
	}
}

type cut struct {
	Mode     string
	Count    int
	Segments []struct {
		Index   int
		Start   int64 `json:"start_ms"`
		End     int64 `json:"end_ms"`
		URI     string
		SHA256  string
		Comment string
	}
}

type extracted struct {
	Segment int
	Frames  []struct {
		MS  int64
		URI string
	}
}

func TestValidateDescribesAWholeVideo(t *testing.T) {
	t.Parallel()
	path := clip(t, filepath.Join(t.TempDir(), `a "fine" clip, 100%.mp4`), 3, 25)
	var plain, uri validated
	step(t, nil, "steps/validate.sh", path, "sha256=").decode(t, &plain)
	if plain.Path != path || plain.URI != path || len(plain.SHA256) != 64 || math.Abs(plain.Duration-3) > 0.1 {
		t.Errorf("result = %+v, want the path, its SHA-256 and 3 s", plain)
	}
	if v := plain.Video; v.Codec != "h264" || v.Width != 160 || v.Height != 90 || v.Rate != "25/1" || plain.Audio == nil || *plain.Audio != "aac" {
		t.Errorf("result = %+v, want h264 of 160 × 90 at 25/1 with aac", plain)
	}
	if !strings.HasPrefix(plain.Processor, "ffmpeg ") {
		t.Errorf("processor = %q, want ffmpeg and its version", plain.Processor)
	}
	escaped := "file://" + strings.NewReplacer(" ", "%20", "%", "%25", `"`, "%22").Replace(path)
	step(t, nil, "steps/validate.sh", escaped, "sha256="+plain.SHA256).decode(t, &uri)
	if uri.Path != path || uri.URI != escaped || uri.SHA256 != plain.SHA256 {
		t.Errorf("result for %s = %+v, want the same file", escaped, uri)
	}
}

func TestValidateTakesOtherContainersAndSilentVideos(t *testing.T) {
	t.Parallel()
	for _, ext := range []string{"mkv", "mov", "avi", "ts"} {
		var v validated
		step(t, nil, "steps/validate.sh", clip(t, filepath.Join(t.TempDir(), "clip."+ext), 2, 25, "-an"), "sha256=").decode(t, &v)
		if math.Abs(v.Duration-2) > 0.2 || v.Audio != nil {
			t.Errorf("%s: duration %g and audio %v, want 2 s and none", ext, v.Duration, v.Audio)
		}
	}
}

func TestValidateRefusesWhatIsNoWholeVideoForGood(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	whole, err := os.ReadFile(clip(t, filepath.Join(dir, "whole.mp4"), 4, 25))
	if err != nil {
		t.Fatal(err)
	}
	fast, err := os.ReadFile(clip(t, filepath.Join(dir, "fast.mp4"), 4, 25, "-movflags", "+faststart"))
	if err != nil {
		t.Fatal(err)
	}
	mkv, err := os.ReadFile(clip(t, filepath.Join(dir, "whole.mkv"), 4, 25))
	if err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, 50_000)
	for i := range noise {
		noise[i] = byte(i * i >> 3)
	}
	file := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ffmpeg(t, "-f", "lavfi", "-i", "sine=d=2", filepath.Join(dir, "sound.m4a"))
	ffmpeg(t, "-f", "lavfi", "-i", "testsrc2=s=160x90", "-frames:v", "1", filepath.Join(dir, "picture.png"))

	for _, c := range []struct{ name, uri, sha256, want string }{
		{"text named .mp4", file("text.mp4", []byte("Dear reader,\nthis is no video.\n")), "", "text.mp4 is not a video: its content is text."},
		{"noise named .mp4", file("noise.mp4", noise), "", "noise.mp4 is not a video, or not in a format that ffmpeg knows."},
		{"zero bytes", file("empty.mp4", nil), "", "empty.mp4 is empty (0 bytes)."},
		{"missing", filepath.Join(dir, "gone.mp4"), "", "There is no file " + filepath.Join(dir, "gone.mp4")},
		{"a folder", dir, "", dir + " is not a file."},
		{"a web address", "https://example.com/a.mp4", "", `object_uri must be file:///… or an absolute path, not "https://example.com/a.mp4".`},
		{"a relative path", "a.mp4", "", `object_uri must be file:///… or an absolute path, not "a.mp4".`},
		{"cut off before the index", file("head.mp4", whole[:len(whole)/2]), "", "head.mp4 is cut off: its index (the moov box) is missing."},
		{"cut off after the index", file("tail.mp4", fast[:len(fast)/2]), "", "tail.mp4 is cut off: it says it is 4.0 s long and ends after "},
		{"Matroska cut off", file("half.mkv", mkv[:len(mkv)/2]), "", "half.mkv is cut off: it says it is 4.0 s long and ends after "},
		{"sound only", filepath.Join(dir, "sound.m4a"), "", "sound.m4a has no video stream in it"},
		{"a picture", filepath.Join(dir, "picture.png"), "", "picture.png is not a video: it holds a text or a still picture"},
		{"another checksum", filepath.Join(dir, "whole.mp4"), strings.Repeat("0", 64), "whole.mp4 is not the file that was sent: its SHA-256 is "},
	} {
		r := step(t, nil, "steps/validate.sh", c.uri, "sha256="+c.sha256)
		if r.exit != 65 || !strings.Contains(r.message, c.want) {
			t.Errorf("%s: exit status %d, message %q; want 65 (permanent) and %q", c.name, r.exit, r.message, c.want)
		}
	}
}

func TestCutMakesAsManySegmentsAsTheVideoIsLong(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		seconds float64
		gop     int
		each    string
		mode    string
		count   int
	}{
		{"key frames where wanted", 7, 25, "2", "copy", 4},
		{"key frames too far apart", 7, 250, "2", "encode", 4},
		{"shorter than a segment", 1, 250, "2", "copy", 1},
		{"exactly two", 4, 50, "2", "copy", 2},
		{"half seconds", 2, 250, "0.5", "encode", 4},
	} {
		path := clip(t, filepath.Join(t.TempDir(), "clip.mp4"), c.seconds, c.gop)
		var v validated
		step(t, nil, "steps/validate.sh", path, "sha256=").decode(t, &v)
		r := step(t, nil, "steps/cut.sh", v.Path, "segment_seconds="+c.each, "stamp="+v.Stamp)
		var got cut
		r.decode(t, &got)
		if got.Mode != c.mode || got.Count != c.count || len(got.Segments) != c.count {
			t.Errorf("%s: %s, %d segments, want %s, %d", c.name, got.Mode, len(got.Segments), c.mode, c.count)
			continue
		}
		var at int64
		for i, s := range got.Segments {
			if s.Index != i || abs(s.Start-at) > 40 || s.End <= s.Start {
				t.Errorf("%s: segment %d is %+v, want it to begin at %d ms", c.name, i, s, at)
			}
			at = s.End
			if _, err := os.Stat(filepath.Join(r.artifacts, strings.TrimPrefix(s.URI, "artifact:"))); err != nil {
				t.Errorf("%s: segment %d is not among the artifacts: %v", c.name, i, err)
			}
		}
		if abs(at-int64(c.seconds*1000)) > 60 {
			t.Errorf("%s: the last segment ends at %d ms, want %g s", c.name, at, c.seconds)
		}
	}
}

func TestCutRefusesAFileThatChanged(t *testing.T) {
	t.Parallel()
	path := clip(t, filepath.Join(t.TempDir(), "clip.mp4"), 1, 25)
	var v validated
	step(t, nil, "steps/validate.sh", path, "sha256=").decode(t, &v)
	if err := os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if r := step(t, nil, "steps/cut.sh", path, "segment_seconds=2", "stamp="+v.Stamp); r.exit != 65 || !strings.Contains(r.message, "has changed") {
		t.Errorf("exit status %d, message %q; want 65 and that the file has changed", r.exit, r.message)
	}
}

func TestExtractTakesFramesAtTheirOwnTimes(t *testing.T) {
	t.Parallel()
	path := clip(t, filepath.Join(t.TempDir(), "clip.mp4"), 5, 250) // the cut encodes: B-frames, other time base
	var v validated
	step(t, nil, "steps/validate.sh", path, "sha256=").decode(t, &v)
	r := step(t, nil, "steps/cut.sh", v.Path, "segment_seconds=2", "stamp="+v.Stamp)
	var segments cut
	r.decode(t, &segments)
	want := [][]int64{{0, 520, 1000, 1520}, {2000, 2520, 3000, 3520}, {4000, 4520}} // 25 frames/s: none at .5 s
	for i, s := range segments.Segments {
		x := step(t, map[string]string{"segment.mp4": filepath.Join(r.artifacts, strings.TrimPrefix(s.URI, "artifact:"))},
			"steps/extract.sh", fmt.Sprint("index=", i), fmt.Sprint("start_ms=", s.Start), "fps=2.0e0")
		var got extracted
		x.decode(t, &got)
		var times []int64
		for _, f := range got.Frames {
			times = append(times, f.MS)
			name := strings.TrimPrefix(f.URI, "artifact:")
			file, err := os.Open(filepath.Join(x.artifacts, name))
			if err != nil {
				t.Fatal(err)
			}
			img, err := jpeg.Decode(file)
			if err != nil || img.Bounds().Dx() != 160 || img.Bounds().Dy() != 90 {
				t.Errorf("segment %d: %s is no JPEG of 160 × 90: %v", i, name, err)
			}
			if err := file.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if got.Segment != i || fmt.Sprint(times) != fmt.Sprint(want[i]) {
			t.Errorf("segment %d: frames of segment %d at %v ms, want %v", i, got.Segment, times, want[i])
		}
	}
}

func TestExtractTakesEveryFrameAndFewerThanOneASecond(t *testing.T) {
	t.Parallel()
	path := clip(t, filepath.Join(t.TempDir(), "clip.mp4"), 2, 250)
	for fps, want := range map[string]int{"25": 50, "30": 50, "0.5": 1, "0.1": 1, "12.5": 25} {
		var got extracted
		step(t, map[string]string{"segment.mp4": path}, "steps/extract.sh", "index=0", "start_ms=0", "fps="+fps).decode(t, &got)
		if len(got.Frames) != want {
			t.Errorf("fps=%s: %d frames of 2 s at 25 frames/s, want %d", fps, len(got.Frames), want)
		}
	}
}

func TestExtractRefusesADamagedSegment(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.mp4")
	if err := os.WriteFile(path, []byte("no video"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := step(t, map[string]string{"segment.mp4": path}, "steps/extract.sh", "index=4", "start_ms=0", "fps=2")
	if r.exit != 65 || !strings.HasPrefix(r.message, "Segment 4 cannot be decoded: ") {
		t.Errorf("exit status %d, message %q; want 65 and which segment", r.exit, r.message)
	}
}

func TestStepsReportProgress(t *testing.T) {
	t.Parallel()
	r := step(t, nil, "steps/validate.sh", clip(t, filepath.Join(t.TempDir(), "clip.mp4"), 1, 25), "sha256=")
	if !strings.Contains(r.stdout, "::progress 1 a whole h264 video of 1.0 s\n") {
		t.Errorf("stdout = %q, want a line ::progress 1 …", r.stdout)
	}
}

func TestStepsNameAMissingTool(t *testing.T) {
	bin := t.TempDir() // a machine with the usual tools and without ffmpeg
	for _, tool := range []string{"bash", "env", "dirname", "uname"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(bin, tool)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin)
	r := step(t, nil, "steps/validate.sh", "/x.mp4", "sha256=")
	if r.exit != 78 || !strings.Contains(r.message, "ffmpeg is not installed on ") || !strings.Contains(r.message, "apt-get install ffmpeg") {
		t.Errorf("exit status %d, message %q; want 78 (permanent), the tool and how to get it", r.exit, r.message)
	}
}

func abs(v int64) int64 { return max(v, -v) }
