package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"image/jpeg"
	"io"
	"runtime"
	"slices"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/examples/dataset-ingestion/dataset"
	"github.com/drover-dev/drover/examples/dataset-ingestion/features"
	"github.com/drover-dev/drover/worker"
)

// attempt is what the handlers use of a task: its artifacts, and a way to say
// how far they are. *worker.Task has it; tests bring their own.
type attempt interface {
	OpenArtifact(ctx context.Context, uri string) (io.ReadCloser, error)
	SaveArtifact(ctx context.Context, name string, r io.Reader, opts ...worker.ArtifactOption) (drover.Artifact, error)
	Progress(ratio float64, message string)
}

// processor names this program in the manifest.
var processor = fmt.Sprintf("%s (dataset worker, %s)", features.Version, runtime.Version())

// featuresIn is the input of a "features" task: the output of its extract task.
type featuresIn struct {
	Segment     int     `json:"segment"`
	Frames      []frame `json:"frames"`
	ExtractedBy string  `json:"extracted_by"`
}

type frame struct {
	MS  int64  `json:"ms"`
	URI string `json:"uri"`
}

// featuresOut points at the measurements, which are too many for an output.
type featuresOut struct {
	Segment int    `json:"segment"`
	Frames  int    `json:"frames"`
	URI     string `json:"uri"`
}

// segmentFeatures is the artifact that featuresOut points at.
type segmentFeatures struct {
	Segment     int              `json:"segment"`
	ExtractedBy string           `json:"extracted_by"`
	MeasuredBy  string           `json:"measured_by"`
	Samples     []dataset.Sample `json:"samples"`
}

// measure is the handler of "features": it measures every frame of one segment.
func measure(ctx context.Context, t attempt, in featuresIn) (featuresOut, error) {
	out := segmentFeatures{Segment: in.Segment, ExtractedBy: in.ExtractedBy, MeasuredBy: processor, Samples: make([]dataset.Sample, 0, len(in.Frames))}
	var before *features.Luma
	for i, f := range in.Frames {
		body, err := read(ctx, t, f.URI)
		if err != nil {
			return featuresOut{}, err
		}
		img, err := jpeg.Decode(bytes.NewReader(body))
		if err != nil {
			return featuresOut{}, worker.Permanent(fmt.Errorf("frame at %d ms of segment %d is no JPEG: %w", f.MS, in.Segment, err))
		}
		sum := sha256.Sum256(body)
		s := dataset.Sample{
			ID: dataset.SampleID(in.Segment, f.MS), URI: f.URI, SHA256: hex.EncodeToString(sum[:]), SizeBytes: int64(len(body)),
			Segment: in.Segment, TimestampMS: f.MS,
		}
		s.Features, before = features.Measure(img, before)
		out.Samples = append(out.Samples, s)
		t.Progress(float64(i+1)/float64(len(in.Frames)), fmt.Sprintf("%d of %d frames", i+1, len(in.Frames)))
	}
	a, err := save(ctx, t, fmt.Sprintf("features_%05d.json", in.Segment), "frame-features", out)
	return featuresOut{Segment: in.Segment, Frames: len(out.Samples), URI: a.URI}, err
}

// qualityIn is the input of "quality": all segments' measurements.
type qualityIn struct {
	Segments   []featuresOut      `json:"segments"`
	Thresholds dataset.Thresholds `json:"thresholds"`
}

type qualityOut struct {
	dataset.Counts
	Thresholds dataset.Thresholds `json:"thresholds"`
	// URI is the artifact with the verdict on each sample.
	URI       string `json:"uri"`
	Processor string `json:"processor"`
}

// judge is the handler of "quality": it finds black, blurred and repeated frames.
func judge(ctx context.Context, t attempt, in qualityIn) (qualityOut, error) {
	if err := in.Thresholds.Check(); err != nil {
		return qualityOut{}, worker.Permanent(err)
	}
	samples, _, err := load(ctx, t, in.Segments)
	if err != nil {
		return qualityOut{}, err
	}
	verdicts, counts := dataset.Judge(samples, in.Thresholds)
	a, err := save(ctx, t, "quality.json", "quality-report", verdicts)
	return qualityOut{Counts: counts, Thresholds: in.Thresholds, URI: a.URI, Processor: processor}, err
}

// manifestIn is the input of "manifest": what every step before it found.
type manifestIn struct {
	Input      dataset.Input      `json:"input"`
	Parameters dataset.Parameters `json:"parameters"`
	Cut        struct {
		Mode      string            `json:"mode"`
		Processor string            `json:"processor"`
		Segments  []dataset.Segment `json:"segments"`
	} `json:"cut"`
	Segments []featuresOut `json:"segments"`
	Quality  qualityOut    `json:"quality"`
}

type manifestOut struct {
	Manifest string `json:"manifest"` // the artifact's URI
	SHA256   string `json:"sha256"`
	Segments int    `json:"segments"`
	dataset.Counts
}

// describe is the handler of "manifest": it writes down every sample, where it
// comes from and what made it.
func describe(ctx context.Context, t attempt, l drover.Lease, in manifestIn) (manifestOut, error) {
	samples, by, err := load(ctx, t, in.Segments)
	if err != nil {
		return manifestOut{}, err
	}
	t.Progress(0.5, fmt.Sprintf("%d samples", len(samples)))
	body, err := read(ctx, t, in.Quality.URI)
	if err != nil {
		return manifestOut{}, err
	}
	var verdicts map[string]dataset.Verdict
	if err := json.Unmarshal(body, &verdicts); err != nil {
		return manifestOut{}, worker.Permanent(fmt.Errorf("read quality report: %w", err))
	}
	m := dataset.Manifest{
		JobID:      l.JobID.String(),
		Pipeline:   dataset.Pipeline{Name: l.Pipeline, Version: l.PipelineVersion},
		Input:      in.Input,
		Parameters: in.Parameters,
		Processors: dataset.Processors{
			Validate: in.Input.Processor, Cut: in.Cut.Processor, CutMode: in.Cut.Mode,
			Extract: by.extract, Features: by.features, Quality: in.Quality.Processor, Manifest: processor,
		},
		Thresholds: in.Quality.Thresholds,
		Counts:     in.Quality.Counts,
		Segments:   in.Cut.Segments,
		Samples:    samples,
	}
	m.Input.Processor = ""
	if err := m.Finish(verdicts); err != nil {
		return manifestOut{}, worker.Permanent(err)
	}
	a, err := save(ctx, t, "manifest.json", dataset.Kind, m)
	return manifestOut{Manifest: a.URI, SHA256: a.SHA256, Segments: len(m.Segments), Counts: m.Counts}, err
}

// processors are the versions that took part in extracting and measuring.
type processors struct{ extract, features []string }

// load reads the measurements of all segments.
func load(ctx context.Context, t attempt, segments []featuresOut) ([]dataset.Sample, processors, error) {
	var samples []dataset.Sample
	var by processors
	for _, s := range segments {
		body, err := read(ctx, t, s.URI)
		if err != nil {
			return nil, by, err
		}
		var f segmentFeatures
		if err := json.Unmarshal(body, &f); err != nil {
			return nil, by, worker.Permanent(fmt.Errorf("read features of segment %d: %w", s.Segment, err))
		}
		samples = append(samples, f.Samples...)
		by.extract = append(by.extract, f.ExtractedBy)
		by.features = append(by.features, f.MeasuredBy)
	}
	slices.Sort(by.extract)
	slices.Sort(by.features)
	by.extract, by.features = slices.Compact(by.extract), slices.Compact(by.features)
	return samples, by, nil
}

func read(ctx context.Context, t attempt, uri string) ([]byte, error) {
	r, err := t.OpenArtifact(ctx, uri)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	body, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", uri, err)
	}
	return body, nil
}

func save(ctx context.Context, t attempt, name, kind string, v any) (drover.Artifact, error) {
	body, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return drover.Artifact{}, err
	}
	return t.SaveArtifact(ctx, name, bytes.NewReader(append(body, '\n')), worker.WithKind(kind), worker.WithMediaType("application/json"))
}
