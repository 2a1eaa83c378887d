package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/pprof"
	"time"
)

// spec says what one run measures. A run is a process of its own, so that none
// finds the heap or the goroutines of another.
type spec struct {
	System   string
	Workload string
	settings
	N       int           // jobs, or repeats
	Rate    float64       // jobs per second beside what is measured
	For     time.Duration // how long, where the workload has a length
	Shape   shape         // of graphs
	Profile string        // file for a processor profile, or empty
}

// result is what a run found.
type result struct {
	Round  int                `json:"round"`
	System string             `json:"system"`
	Values map[string]float64 `json:"values"`
	Void   string             `json:"void,omitempty"` // why the values count for nothing
}

// run is one run, in its process.
type run struct {
	spec
	system
	values map[string]float64
	void   string
}

// workloads are what a run can do.
var workloads = map[string]func(context.Context, *run) error{
	"queue":  queueRun,
	"fan":    graphRun,
	"chain":  graphRun,
	"layers": graphRun,
}

// runMain is a run's process: it reads the spec from its argument and writes the
// result to its standard output.
func runMain(ctx context.Context, text string) (err error) {
	r := &run{values: map[string]float64{}}
	if err := json.Unmarshal([]byte(text), &r.spec); err != nil {
		return err
	}
	open, ok := systems[r.System]
	if !ok {
		return fmt.Errorf("there is no system %q", r.System)
	}
	do, ok := workloads[r.Workload]
	if !ok {
		return fmt.Errorf("there is no workload %q", r.Workload)
	}
	if r.system, err = open(ctx, r.settings); err != nil {
		return fmt.Errorf("open %s: %w", r.System, err)
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if r.Profile != "" {
		f, err := os.Create(r.Profile)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer func() { pprof.StopCPUProfile(); err = errors.Join(err, f.Close()) }()
	}
	if err := do(ctx, r); err != nil {
		return fmt.Errorf("%s: %s: %w", r.System, r.Workload, err)
	}
	return json.NewEncoder(os.Stdout).Encode(result{System: r.System, Values: r.values, Void: r.void})
}
