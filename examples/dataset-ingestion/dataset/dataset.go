// Package dataset judges samples and describes a dataset in a manifest. It does
// no I/O.
package dataset

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/drover-dev/drover/examples/dataset-ingestion/features"
)

// Sample is one frame and what was measured on it.
type Sample struct {
	// ID is the segment and the time, "00003-000006500": in the order of the video.
	ID        string `json:"id"`
	URI       string `json:"uri"`
	SHA256    string `json:"sha256"`
	SizeBytes int64  `json:"size_bytes"`
	Segment   int    `json:"segment"`
	// TimestampMS is the frame's own time in the source.
	TimestampMS int64             `json:"timestamp_ms"`
	Features    features.Features `json:"features"`
	// Quality is the verdict; absent before there is one.
	Quality *Verdict `json:"quality,omitempty"`
}

// SampleID makes the ID of the frame of a segment at a time.
func SampleID(segment int, timestampMS int64) string {
	return fmt.Sprintf("%05d-%09d", segment, timestampMS)
}

// Thresholds say what is black, blurred or seen before.
type Thresholds struct {
	// A frame is black when its mean luma is at most BlackMeanLuma and the dark
	// end holds at least BlackDarkShare of it.
	BlackMeanLuma  float64 `json:"black_mean_luma"`
	BlackDarkShare float64 `json:"black_dark_share"`
	// It is blurred when its sharpness is under MinSharpness.
	MinSharpness float64 `json:"min_sharpness"`
	// It is a duplicate when its hash differs in at most DuplicateDistance bits
	// from that of an earlier frame which is ok.
	DuplicateDistance int `json:"duplicate_distance"`
}

// Check says which threshold makes no sense.
func (t Thresholds) Check() error {
	switch {
	case t.BlackMeanLuma < 0 || t.BlackMeanLuma > 255:
		return fmt.Errorf("black_mean_luma %g: must be from 0 to 255", t.BlackMeanLuma)
	case t.BlackDarkShare < 0 || t.BlackDarkShare > 1:
		return fmt.Errorf("black_dark_share %g: must be from 0 to 1", t.BlackDarkShare)
	case t.MinSharpness < 0:
		return fmt.Errorf("min_sharpness %g: must not be negative", t.MinSharpness)
	case t.DuplicateDistance < -1 || t.DuplicateDistance > 64:
		return fmt.Errorf("duplicate_distance %d: must be from -1 (no duplicates) to 64", t.DuplicateDistance)
	}
	return nil
}

// The verdicts. A frame gets the first that fits, in this order: what is black
// is not also called blurred, and two black frames are not called duplicates.
const (
	Black     = "black"
	Blurred   = "blurred"
	Duplicate = "duplicate"
	OK        = "ok"
)

// Verdict is what the quality check says of one sample, with the number that
// decided and the limit it was held against.
type Verdict struct {
	Verdict string `json:"verdict"`
	// Measure names the number: mean_luma, sharpness or hash_distance. None for
	// an ok sample that is the first.
	Measure string  `json:"measure,omitempty"`
	Value   float64 `json:"value"`
	Limit   float64 `json:"limit"`
	// Nearest is the earlier ok sample with the most similar hash: of a
	// duplicate, the one it repeats.
	Nearest string `json:"nearest,omitempty"`
}

// Counts adds up verdicts.
type Counts struct {
	Samples   int `json:"samples"`
	OK        int `json:"ok"`
	Duplicate int `json:"duplicate"`
	Blurred   int `json:"blurred"`
	Black     int `json:"black"`
}

// Judge gives a verdict on every sample, by ID, and counts them. It puts the
// samples in the order of the video, so that the first of two equal frames stays.
func Judge(samples []Sample, t Thresholds) (map[string]Verdict, Counts) {
	SortSamples(samples)
	verdicts := make(map[string]Verdict, len(samples))
	counts := Counts{Samples: len(samples)}
	var kept []*Sample
	for i := range samples {
		s := &samples[i]
		v := judge(s, kept, t)
		switch v.Verdict {
		case Black:
			counts.Black++
		case Blurred:
			counts.Blurred++
		case Duplicate:
			counts.Duplicate++
		default:
			counts.OK++
			kept = append(kept, s)
		}
		verdicts[s.ID] = v
	}
	return verdicts, counts
}

func judge(s *Sample, kept []*Sample, t Thresholds) Verdict {
	f := s.Features
	if f.Exposure.MeanLuma <= t.BlackMeanLuma && f.Exposure.ClippedDark >= t.BlackDarkShare {
		return Verdict{Verdict: Black, Measure: "mean_luma", Value: f.Exposure.MeanLuma, Limit: t.BlackMeanLuma}
	}
	if f.Sharpness < t.MinSharpness {
		return Verdict{Verdict: Blurred, Measure: "sharpness", Value: f.Sharpness, Limit: t.MinSharpness}
	}
	v := Verdict{Verdict: OK}
	nearest := 65
	for _, k := range kept {
		if d := f.Hash.Distance(k.Features.Hash); d < nearest {
			nearest = d
			v.Measure, v.Value, v.Limit, v.Nearest = "hash_distance", float64(d), float64(t.DuplicateDistance), k.ID
		}
	}
	if nearest <= t.DuplicateDistance {
		v.Verdict = Duplicate
	}
	return v
}

// SortSamples puts samples in the order of the video.
func SortSamples(samples []Sample) {
	slices.SortFunc(samples, func(a, b Sample) int { return cmp.Compare(a.ID, b.ID) })
}
