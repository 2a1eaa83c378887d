package dataset_test

import (
	"strings"
	"testing"

	"github.com/drover-dev/drover/examples/dataset-ingestion/dataset"
	"github.com/drover-dev/drover/examples/dataset-ingestion/features"
)

var limits = dataset.Thresholds{BlackMeanLuma: 20, BlackDarkShare: 0.95, MinSharpness: 40, DuplicateDistance: 3}

func sample(segment int, ms int64, f features.Features) dataset.Sample {
	return dataset.Sample{ID: dataset.SampleID(segment, ms), Segment: segment, TimestampMS: ms, Features: f}
}

func fine(hash features.Hash) features.Features {
	return features.Features{Hash: hash, Sharpness: 500, Exposure: features.Exposure{MeanLuma: 120}}
}

func TestJudgeGivesTheFirstVerdictThatFits(t *testing.T) {
	t.Parallel()
	const base = features.Hash(0xff00ff00ff00ff00)
	dark := features.Features{Exposure: features.Exposure{MeanLuma: 16, ClippedDark: 1}}
	for _, c := range []struct {
		name string
		f    features.Features
		want dataset.Verdict
	}{
		{"black", dark, dataset.Verdict{Verdict: dataset.Black, Measure: "mean_luma", Value: 16, Limit: 20}},
		{"a night scene is not black", features.Features{Hash: 1, Sharpness: 90, Exposure: features.Exposure{MeanLuma: 16, ClippedDark: 0.9}},
			dataset.Verdict{Verdict: dataset.OK, Measure: "hash_distance", Value: 33, Limit: 3, Nearest: "00000-000000000"}},
		{"blurred", features.Features{Sharpness: 39.9, Exposure: features.Exposure{MeanLuma: 100}},
			dataset.Verdict{Verdict: dataset.Blurred, Measure: "sharpness", Value: 39.9, Limit: 40}},
		{"just sharp enough, but seen before", features.Features{Hash: base, Sharpness: 40, Exposure: features.Exposure{MeanLuma: 100}},
			dataset.Verdict{Verdict: dataset.Duplicate, Measure: "hash_distance", Value: 0, Limit: 3, Nearest: "00000-000000000"}},
		{"three bits off is a duplicate", fine(base ^ 0b111), dataset.Verdict{Verdict: dataset.Duplicate, Measure: "hash_distance", Value: 3, Limit: 3, Nearest: "00000-000000000"}},
		{"four bits off is not", fine(base ^ 0b1111), dataset.Verdict{Verdict: dataset.OK, Measure: "hash_distance", Value: 4, Limit: 3, Nearest: "00000-000000000"}},
	} {
		samples := []dataset.Sample{sample(0, 0, fine(base)), sample(1, 2000, c.f)}
		verdicts, _ := dataset.Judge(samples, limits)
		if got := verdicts["00001-000002000"]; got != c.want {
			t.Errorf("%s: verdict = %+v, want %+v", c.name, got, c.want)
		}
		if got := verdicts["00000-000000000"]; got != (dataset.Verdict{Verdict: dataset.OK}) {
			t.Errorf("%s: the first sample = %+v, want ok and nothing measured", c.name, got)
		}
	}
}

func TestJudgeKeepsTheFirstOfEqualFramesInVideoOrder(t *testing.T) {
	t.Parallel()
	black := features.Features{Exposure: features.Exposure{ClippedDark: 1}}
	samples := []dataset.Sample{ // segments end in any order
		sample(2, 4000, fine(7)), sample(2, 4500, fine(7<<40)), sample(0, 500, fine(7)), sample(1, 2000, black), sample(0, 0, black),
	}
	verdicts, counts := dataset.Judge(samples, limits)
	if want := (dataset.Counts{Samples: 5, OK: 2, Duplicate: 1, Black: 2}); counts != want {
		t.Errorf("counts = %+v, want %+v", counts, want)
	}
	if v := verdicts["00000-000000500"]; v.Verdict != dataset.OK {
		t.Errorf("the earlier frame is %q, want ok", v.Verdict)
	}
	if v := verdicts["00002-000004000"]; v.Verdict != dataset.Duplicate || v.Nearest != "00000-000000500" {
		t.Errorf("the later frame is %+v, want a duplicate of the earlier", v)
	}
}

func TestThresholdsAreChecked(t *testing.T) {
	t.Parallel()
	if err := limits.Check(); err != nil {
		t.Errorf("good thresholds: %v", err)
	}
	for name, bad := range map[string]dataset.Thresholds{
		"black_mean_luma":    {BlackMeanLuma: 256},
		"black_dark_share":   {BlackDarkShare: 1.1},
		"min_sharpness":      {MinSharpness: -1},
		"duplicate_distance": {DuplicateDistance: 65},
	} {
		if err := bad.Check(); err == nil || !strings.HasPrefix(err.Error(), name+" ") {
			t.Errorf("%+v: error = %v, want one that names %s", bad, err, name)
		}
	}
}

func TestFinishCompletesAManifest(t *testing.T) {
	t.Parallel()
	m := dataset.Manifest{
		Segments: []dataset.Segment{{Index: 0}, {Index: 1}},
		Samples:  []dataset.Sample{sample(1, 2000, fine(1)), sample(0, 0, fine(2)), sample(0, 500, fine(3))},
	}
	verdicts, _ := dataset.Judge(m.Samples, limits)
	if err := m.Finish(verdicts); err != nil {
		t.Fatal(err)
	}
	if m.Kind != "dataset-manifest" || m.Samples[0].ID != "00000-000000000" || m.Samples[2].Quality == nil {
		t.Errorf("manifest = %+v, want its kind, the samples in order, each with a verdict", m)
	}
	if m.Segments[0].Frames != 2 || m.Segments[1].Frames != 1 {
		t.Errorf("frames = %d and %d, want 2 and 1", m.Segments[0].Frames, m.Segments[1].Frames)
	}
}

func TestFinishRefusesWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	ok := dataset.Verdict{Verdict: dataset.OK}
	for _, c := range []struct {
		name     string
		samples  []dataset.Sample
		verdicts map[string]dataset.Verdict
		want     string
	}{
		{"no verdict", []dataset.Sample{sample(0, 0, fine(1))}, nil, "no quality verdict"},
		{"a verdict too many", []dataset.Sample{sample(0, 0, fine(1))}, map[string]dataset.Verdict{"00000-000000000": ok, "x": ok}, "2 quality verdicts for 1 samples"},
		{"unknown segment", []dataset.Sample{sample(9, 0, fine(1))}, map[string]dataset.Verdict{"00009-000000000": ok}, "never cut"},
		{"twice", []dataset.Sample{sample(0, 0, fine(1)), sample(0, 0, fine(1))}, map[string]dataset.Verdict{"00000-000000000": ok}, "twice"},
		{"empty segment", nil, nil, "segment 0 has no samples"},
	} {
		m := dataset.Manifest{Segments: []dataset.Segment{{Index: 0}}, Samples: c.samples}
		if err := m.Finish(c.verdicts); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error = %v, want %q in it", c.name, err, c.want)
		}
	}
}
