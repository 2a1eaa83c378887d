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
	Variant  string // of the workload, where it has some
	Workload string
	settings
	N        int           // jobs, or repeats
	Finished int           // jobs that have ended before
	Rate     float64       // jobs per second
	Share    float64       // of what the system can do
	For      time.Duration // how long, where the workload has a length
	Shape    shape         // of graphs
	Profile  string        // file for a processor profile, or empty
}

// result is what a run found.
type result struct {
	Round   int                `json:"round"`
	System  string             `json:"system"`
	Variant string             `json:"variant,omitempty"`
	Values  map[string]float64 `json:"values"`
	Void    string             `json:"void,omitempty"` // why the values count for nothing
	Late    []float64          `json:"late,omitempty"` // each latency in ms, to pool those of all rounds; not kept in the report
}

// run is one run, in its process.
type run struct {
	spec
	system
	working bool
	before  counts // what the database held at the start
	values  map[string]float64
	void    string
	late    []float64
	reached time.Time // when the handler had been entered often enough
}

// drained works what is left, if nothing does yet, waits for the end of the
// submitted jobs and audits.
func (r *run) drained(ctx context.Context, submitted int) (err error) {
	if !r.working {
		if err := r.work(ctx); err != nil {
			return err
		}
	}
	if _, err := ended(ctx, r, r.before.Finished+submitted, 5*time.Minute); err != nil {
		r.void = err.Error()
		return nil
	}
	return r.audit(ctx, submitted)
}

// audit compares what was submitted with what the handler and the database saw.
func (r *run) audit(ctx context.Context, submitted int) error {
	c, err := r.count(ctx)
	if err != nil {
		return err
	}
	n := int(r.entered().n.Load())
	if c.Finished-r.before.Finished != n || c.Waiting+c.Finished-r.before.Waiting-r.before.Finished != submitted {
		r.void = fmt.Sprintf("%d submitted, %d entries, %d finished and %d waiting after %v before", submitted, n, c.Finished, c.Waiting, r.before)
	}
	return nil
}

// work starts the workers.
func (r *run) work(ctx context.Context) error {
	r.working = true
	return r.system.work(ctx)
}

// rest stops them.
func (r *run) rest(ctx context.Context) error {
	r.working = false
	return r.system.rest(ctx)
}

// workloads are what a run can do.
var workloads = map[string]func(context.Context, *run) error{
	"queue":              queueRun,
	"fan":                graphRun,
	"chain":              graphRun,
	"layers":             graphRun,
	"single":             singleRun,
	"latency":            latencyRun,
	"latency under load": latencyRun,
	"seed":               seedRun,
	"backlog":            steadyRun,
	"tenants":            tenantsRun,
	"pressure":           pressureRun,
	"overload":           overloadRun,
	"memory":             memoryRun,
}

// runMain is a run's process: it reads the spec from its argument and writes the
// result to its standard output.
func runMain(ctx context.Context, text string) (err error) {
	r := &run{values: map[string]float64{}}
	if err := json.Unmarshal([]byte(text), &r.spec); err != nil {
		return err
	}
	k, ok := systems[r.System]
	if !ok {
		return fmt.Errorf("there is no system %q", r.System)
	}
	do, ok := workloads[r.Workload]
	if !ok {
		return fmt.Errorf("there is no workload %q", r.Workload)
	}
	if r.system, err = k.open(ctx, r.settings); err != nil {
		return fmt.Errorf("open %s: %w", r.System, err)
	}
	defer func() {
		if err = errors.Join(err, r.close()); err != nil {
			fmt.Fprint(os.Stderr, logsIn(r.Dir))
		}
	}()
	if r.before, err = r.count(ctx); err != nil {
		return err
	}
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
	return json.NewEncoder(os.Stdout).Encode(result{System: r.System, Variant: r.Variant, Values: r.values, Void: r.void, Late: r.late})
}
