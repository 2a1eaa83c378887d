package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"
)

// floor is what bench/floor.json holds: how fast Drover was beside River, in the
// queue workload in process, and how much of that must be left.
type floor struct {
	Jobs   int     `json:"jobs"`
	Rounds int     `json:"rounds"`
	Ratio  float64 `json:"ratio"` // of tasks/s, the median of the rounds
	Share  float64 `json:"share"` // of the ratio; a run under it counts against Drover
}

// check runs the small benchmark of continuous integration. It fails when two
// runs in a row fall under the floor: one may have met a busy moment.
func (b *bench) check(record bool) error {
	path := filepath.Join(b.root, "bench", "floor.json")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var f floor
	if err := json.Unmarshal(text, &f); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if record {
		if f.Ratio, err = b.beside(f); err != nil {
			return err
		}
		fmt.Printf("Drover is %.2f times as fast as River: recorded\n", f.Ratio)
		f.Ratio = math.Round(f.Ratio*100) / 100
		return os.WriteFile(path, encodeLines(f), 0o644)
	}
	least := f.Ratio * f.Share
	for try := range 2 {
		ratio, err := b.beside(f)
		if err != nil {
			return err
		}
		fmt.Printf("Drover is %.2f times as fast as River; recorded %.2f, the floor is %.2f\n", ratio, f.Ratio, least)
		if ratio >= least {
			return nil
		}
		if try == 1 {
			return fmt.Errorf("slower than it was: %.2f times as fast as River, twice under the floor of %.2f", ratio, least)
		}
	}
	return nil
}

// beside is how fast Drover is beside River, in a small queue.
func (b *bench) beside(f floor) (float64, error) {
	b.report.Runs, b.report.Workloads = map[string][]result{}, nil
	b.nRounds = f.Rounds
	began := time.Now()
	if err := b.rounds("queue", forEach(spec{N: f.Jobs}, []string{"drover", "river"}, nil)...); err != nil {
		return 0, err
	}
	fmt.Fprintf(os.Stderr, "  %.0f s\n", time.Since(began).Seconds())
	if err := b.report.void(); err != nil {
		return 0, err
	}
	t := targets[0]
	t.fill(&b.report)
	return t.Median, nil
}
