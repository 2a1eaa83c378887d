package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// peers: the short workloads again, with those peers that need more than a
// PostgreSQL.
func (b *bench) peers() error {
	quick := []string{"drover", "asynq", "asynq-durable", "drover-http"}
	all := quick
	if b.hasTemporal() {
		all = append([]string{"temporal"}, quick...)
	} else {
		fmt.Fprintln(os.Stderr, "  there is no bin/temporal/server: without Temporal")
	}
	fewer := func(s *spec) { // of those that do some hundred a second
		switch s.System {
		case "asynq-durable":
			s.N /= 4
		case "temporal":
			s.N /= 100
		}
	}
	if err := b.rounds("queue, long", forEach(spec{Workload: "queue", N: 100_000}, all, fewer)...); err != nil {
		return err
	}
	if err := b.rounds("single, long", forEach(spec{Workload: "single", N: 20_000}, all, fewer)...); err != nil {
		return err
	}
	// 100 workflows a second are more than Temporal does on two processors.
	if err := b.rounds("latency, long", forEach(spec{Workload: "latency", For: 15 * time.Second}, quick, nil)...); err != nil {
		return err
	}
	if !b.hasTemporal() {
		return nil
	}
	fan := spec{Workload: "fan", N: 3, Shape: shape{Name: "fan", Width: 1000, Depth: 1}}
	return b.rounds("fan, long", forEach(fan, []string{"drover", "temporal"}, nil)...)
}

// hasTemporal says whether Temporal's server has been built.
func (b *bench) hasTemporal() bool {
	_, err := os.Stat(filepath.Join(b.root, "bin", "temporal", "server"))
	return err == nil
}
