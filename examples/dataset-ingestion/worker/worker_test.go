package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/examples/dataset-ingestion/dataset"
	"github.com/drover-dev/drover/worker"
)

// shelf keeps artifacts in memory, for one test.
type shelf struct {
	bodies   map[string][]byte
	kinds    map[string]string
	progress []float64
}

func (s *shelf) OpenArtifact(_ context.Context, uri string) (io.ReadCloser, error) {
	b, ok := s.bodies[uri]
	if !ok {
		return nil, errors.New("there is no such artifact")
	}
	return io.NopCloser(bytes.NewReader(b)), nil
}

func (s *shelf) SaveArtifact(_ context.Context, name string, r io.Reader, opts ...worker.ArtifactOption) (drover.Artifact, error) {
	body, err := io.ReadAll(r)
	if err != nil {
		return drover.Artifact{}, err
	}
	a := drover.Artifact{Name: name, URI: "artifact://" + name, SHA256: digest(body), Size: int64(len(body))}
	for _, o := range opts {
		if err := o(&a); err != nil {
			return a, err
		}
	}
	s.bodies[a.URI], s.kinds[a.URI] = body, a.Kind
	return a, nil
}

func (s *shelf) Progress(ratio float64, _ string) { s.progress = append(s.progress, ratio) }

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// put stores a picture and returns its URI.
func (s *shelf) put(t *testing.T, name string, at func(x, y int) uint8) string {
	t.Helper()
	img := image.NewGray(image.Rect(0, 0, 96, 64))
	for y := range 64 {
		for x := range 96 {
			img.SetGray(x, y, color.Gray{Y: at(x, y)})
		}
	}
	var buf bytes.Buffer
	if err := jpeg.Encode(&buf, img, &jpeg.Options{Quality: 95}); err != nil {
		t.Fatal(err)
	}
	s.bodies["artifact://"+name] = buf.Bytes()
	return "artifact://" + name
}

func stripes(x, y int) uint8 { return uint8(255 * (x / 4 % 2)) }
func rings(x, y int) uint8 {
	return uint8(127 + 120*math.Sin(math.Hypot(float64(x-20), float64(y-50))/3))
}
func soft(x, y int) uint8  { return uint8(60 + x) }
func black(x, y int) uint8 { return 0 }

// TestAFewFramesBecomeAManifest hands what each handler returns to the next, as
// the pipeline does.
func TestAFewFramesBecomeAManifest(t *testing.T) {
	t.Parallel()
	s := &shelf{bodies: map[string][]byte{}, kinds: map[string]string{}}
	segments := [][]frame{
		{{MS: 0, URI: s.put(t, "a", rings)}, {MS: 500, URI: s.put(t, "b", stripes)}},
		{{MS: 2000, URI: s.put(t, "c", black)}, {MS: 2500, URI: s.put(t, "d", soft)}, {MS: 3000, URI: s.put(t, "e", rings)}},
	}
	var measured []featuresOut
	for i, frames := range segments {
		out, err := measure(t.Context(), s, featuresIn{Segment: i, Frames: frames, ExtractedBy: "ffmpeg 9"})
		if err != nil {
			t.Fatal(err)
		}
		if out.Segment != i || out.Frames != len(frames) || s.kinds[out.URI] != "frame-features" {
			t.Errorf("features of segment %d = %+v, kind %q", i, out, s.kinds[out.URI])
		}
		measured = append(measured, out)
	}
	if fmt.Sprint(s.progress) != "[0.5 1 0.3333333333333333 0.6666666666666666 1]" {
		t.Errorf("progress = %v, want a step for each frame", s.progress)
	}

	limits := dataset.Thresholds{BlackMeanLuma: 20, BlackDarkShare: 0.95, MinSharpness: 40, DuplicateDistance: 3}
	quality, err := judge(t.Context(), s, qualityIn{Segments: measured, Thresholds: limits})
	if err != nil {
		t.Fatal(err)
	}
	want := dataset.Counts{Samples: 5, OK: 2, Duplicate: 1, Blurred: 1, Black: 1}
	if quality.Counts != want || quality.Thresholds != limits {
		t.Errorf("quality = %+v, want %+v and the thresholds", quality, want)
	}

	var in manifestIn
	err = json.Unmarshal([]byte(`{
		"input": {"uri": "file:///v.mp4", "sha256": "ab", "size_bytes": 9, "duration_seconds": 4, "format": "mov", "stamp": "x", "path": "/v.mp4",
			"video": {"codec": "h264", "width": 96, "height": 64, "frame_rate": "25/1"}, "audio": "aac", "processor": "ffmpeg 8"},
		"parameters": {"segment_seconds": 2, "fps": 2},
		"cut": {"mode": "copy", "processor": "ffmpeg 7", "segments": [
			{"index": 0, "start_ms": 0, "end_ms": 2000, "uri": "artifact://s0", "sha256": "00"},
			{"index": 1, "start_ms": 2000, "end_ms": 4000, "uri": "artifact://s1", "sha256": "11"}]}}`), &in)
	if err != nil {
		t.Fatal(err)
	}
	in.Segments, in.Quality = measured, quality
	job, err := drover.ParseJobID("job_01ARZ3NDEKTSV4RRFFQ69G5FAV")
	if err != nil {
		t.Fatal(err)
	}
	out, err := describe(t.Context(), s, drover.Lease{JobID: job, Pipeline: "dataset-ingestion", PipelineVersion: 3}, in)
	if err != nil {
		t.Fatal(err)
	}
	if out.Counts != want || out.Segments != 2 || out.SHA256 != digest(s.bodies[out.Manifest]) || s.kinds[out.Manifest] != "dataset-manifest" {
		t.Errorf("output = %+v of kind %q, want the counts and the manifest's own checksum", out, s.kinds[out.Manifest])
	}

	var m dataset.Manifest
	if err := json.Unmarshal(s.bodies[out.Manifest], &m); err != nil {
		t.Fatal(err)
	}
	if m.Kind != "dataset-manifest" || m.JobID != job.String() || m.Pipeline != (dataset.Pipeline{Name: "dataset-ingestion", Version: 3}) {
		t.Errorf("manifest names %q, %s, %+v", m.Kind, m.JobID, m.Pipeline)
	}
	if m.Input.URI != "file:///v.mp4" || m.Input.SHA256 != "ab" || m.Input.SizeBytes != 9 || m.Input.DurationSeconds != 4 || m.Parameters.FPS != 2 {
		t.Errorf("manifest's input = %+v, parameters %+v", m.Input, m.Parameters)
	}
	p := m.Processors
	if p.Validate != "ffmpeg 8" || p.Cut != "ffmpeg 7" || p.CutMode != "copy" || fmt.Sprint(p.Extract) != "[ffmpeg 9]" || fmt.Sprint(p.Features) != "["+processor+"]" {
		t.Errorf("processors = %+v", p)
	}
	verdicts := ""
	for i, sample := range m.Samples {
		f := [...]frame{segments[0][0], segments[0][1], segments[1][0], segments[1][1], segments[1][2]}[i]
		if sample.URI != f.URI || sample.SHA256 != digest(s.bodies[f.URI]) || sample.TimestampMS != f.MS || sample.Segment != i/2-i/4 {
			t.Errorf("sample %d = %+v, want frame %+v", i, sample, f)
		}
		verdicts += sample.Quality.Verdict + " "
		if first := i == 0 || i == 2; first != (sample.Features.Motion == nil) {
			t.Errorf("sample %d: motion = %v; want none for the first of a segment only", i, sample.Features.Motion)
		}
	}
	if verdicts != "ok ok black blurred duplicate " {
		t.Errorf("verdicts = %s", verdicts)
	}
	if m.Segments[0].Frames != 2 || m.Segments[1].Frames != 3 {
		t.Errorf("segments = %+v, want 2 and 3 frames", m.Segments)
	}
}

func TestBadInputIsNamed(t *testing.T) {
	t.Parallel()
	s := &shelf{bodies: map[string][]byte{"artifact://x": []byte("no picture")}, kinds: map[string]string{}}
	_, badFrame := measure(t.Context(), s, featuresIn{Segment: 4, Frames: []frame{{MS: 250, URI: "artifact://x"}}})
	_, badLimit := judge(t.Context(), s, qualityIn{Thresholds: dataset.Thresholds{MinSharpness: -1}})
	_, badReport := judge(t.Context(), s, qualityIn{Segments: []featuresOut{{Segment: 2, URI: "artifact://x"}}})
	for want, err := range map[string]error{
		"frame at 250 ms of segment 4 is no JPEG": badFrame,
		"min_sharpness -1":                        badLimit,
		"read features of segment 2":              badReport,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want %q", err, want)
		}
	}
}

func TestServerIsFoundLikeTheCommandDoes(t *testing.T) {
	state := t.TempDir()
	t.Setenv("DROVER_URL", "")
	if _, _, err := server(state); err == nil || !strings.Contains(err.Error(), "drover dev --state "+state) {
		t.Errorf("no server: error = %v, want what to start", err)
	}
	file := filepath.Join(state, "dev.json")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := server(state); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("damaged file: error = %v", err)
	}
	if err := os.WriteFile(file, []byte(`{"url":"http://127.0.0.1:1","token":"drover_x"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if url, token, err := server(state); err != nil || url != "http://127.0.0.1:1" || token != "drover_x" {
		t.Errorf("from dev.json: %q, %q, %v", url, token, err)
	}
	t.Setenv("DROVER_URL", "http://127.0.0.1:2")
	t.Setenv("DROVER_TOKEN", "drover_y")
	if url, token, err := server(state); err != nil || url != "http://127.0.0.1:2" || token != "drover_y" {
		t.Errorf("from the environment: %q, %q, %v", url, token, err)
	}
}
