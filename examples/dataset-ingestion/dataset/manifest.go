package dataset

import "fmt"

// Kind is the artifact kind of a manifest, and Schema the version of its form.
const (
	Kind   = "dataset-manifest"
	Schema = 1
)

// Manifest describes a dataset: where every sample comes from, what was done to
// it and by what, and what is known about it.
type Manifest struct {
	Kind       string     `json:"kind"`
	Schema     int        `json:"schema"`
	JobID      string     `json:"job_id"`
	Pipeline   Pipeline   `json:"pipeline"`
	Input      Input      `json:"input"`
	Parameters Parameters `json:"parameters"`
	// Processors names what did each step, with its version.
	Processors Processors `json:"processors"`
	Thresholds Thresholds `json:"thresholds"`
	Counts     Counts     `json:"counts"`
	Segments   []Segment  `json:"segments"`
	Samples    []Sample   `json:"samples"`
}

// Pipeline names the definition that made the dataset.
type Pipeline struct {
	Name    string `json:"name"`
	Version int    `json:"version"`
}

// Input is the video as the validation found it.
type Input struct {
	URI             string  `json:"uri"`
	SHA256          string  `json:"sha256"`
	SizeBytes       int64   `json:"size_bytes"`
	DurationSeconds float64 `json:"duration_seconds"`
	Format          string  `json:"format"`
	Video           Video   `json:"video"`
	Audio           *string `json:"audio"`
	// Processor is what validated it; the manifest has it under processors.
	Processor string `json:"processor,omitempty"`
}

// Video describes the picture stream of an input.
type Video struct {
	Codec     string `json:"codec"`
	Width     int    `json:"width"`
	Height    int    `json:"height"`
	FrameRate string `json:"frame_rate"`
}

// Parameters are those of the job.
type Parameters struct {
	SegmentSeconds float64 `json:"segment_seconds"`
	FPS            float64 `json:"fps"`
}

// Processors names what did each step, such as "ffmpeg 5.1.9" or "features/1 (dataset-worker …)".
type Processors struct {
	Validate string `json:"validate"`
	Cut      string `json:"cut"`
	// CutMode is "copy" (the source's own coding) or "encode" (coded again).
	CutMode string `json:"cut_mode"`
	// Extract and Features have one entry for each version that took part.
	Extract  []string `json:"extract"`
	Features []string `json:"features"`
	Quality  string   `json:"quality"`
	Manifest string   `json:"manifest"`
}

// Segment is one piece of the video.
type Segment struct {
	Index   int    `json:"index"`
	StartMS int64  `json:"start_ms"`
	EndMS   int64  `json:"end_ms"`
	URI     string `json:"uri"`
	SHA256  string `json:"sha256"`
	// Frames is the number of samples taken from it.
	Frames int `json:"frames"`
}

// Finish puts the verdicts on the samples, counts frames, and says what does not
// fit together: a manifest that Finish takes is complete.
func (m *Manifest) Finish(verdicts map[string]Verdict) error {
	m.Kind, m.Schema = Kind, Schema
	SortSamples(m.Samples)
	segments := make(map[int]*Segment, len(m.Segments))
	for i := range m.Segments {
		m.Segments[i].Frames = 0
		segments[m.Segments[i].Index] = &m.Segments[i]
	}
	for i := range m.Samples {
		s := &m.Samples[i]
		if i > 0 && m.Samples[i-1].ID == s.ID {
			return fmt.Errorf("sample %s is there twice", s.ID)
		}
		v, ok := verdicts[s.ID]
		if !ok {
			return fmt.Errorf("sample %s has no quality verdict", s.ID)
		}
		segment := segments[s.Segment]
		if segment == nil {
			return fmt.Errorf("sample %s is of segment %d, which was never cut", s.ID, s.Segment)
		}
		segment.Frames++
		s.Quality = &v
	}
	if len(verdicts) != len(m.Samples) {
		return fmt.Errorf("%d quality verdicts for %d samples", len(verdicts), len(m.Samples))
	}
	for _, s := range m.Segments {
		if s.Frames == 0 {
			return fmt.Errorf("segment %d has no samples", s.Index)
		}
	}
	return nil
}
