package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// rounds does some runs, each in a process and, unless it names one, on a
// database of its own, round after round. The order turns and is reversed in
// every other round, so that none is always the first or after the same one.
// Name is what they stand under in the report, and their workload unless they
// name one.
func (b *bench) rounds(name string, specs ...spec) error {
	specs = slices.DeleteFunc(specs, func(s spec) bool { return len(b.systems) > 0 && !slices.Contains(b.systems, s.System) })
	for round := range cmp.Or(b.nRounds, usualRounds[name], 1) {
		for _, s := range inOrder(specs, round) {
			s.Workload = cmp.Or(s.Workload, name)
			r, err := b.one(s)
			if err != nil {
				return err
			}
			r.Round = round
			if b.report.Runs[name] == nil {
				b.report.Workloads = append(b.report.Workloads, name)
			}
			b.report.Runs[name] = append(b.report.Runs[name], r)
			fmt.Fprintf(os.Stderr, "  %s, round %d, %s: %s\n", name, round+1, r.title(), r)
		}
	}
	return nil
}

// usualRounds are how many rounds a workload has, if not one.
var usualRounds = map[string]int{
	"queue": 5, "single": 5, "latency": 3, "latency under load": 3,
	"fan": 3, "chain": 3, "layers": 3, "backlog": 5, "tenants": 3,
	"queue, long": 3, "single, long": 3, "latency, long": 3, "fan, long": 3, "pressure": 2,
}

// forEach makes a spec for each of some systems; adjust may change one.
func forEach(s spec, names []string, adjust func(*spec)) []spec {
	var specs []spec
	for _, name := range names {
		one := s
		one.System = name
		if adjust != nil {
			adjust(&one)
		}
		specs = append(specs, one)
	}
	return specs
}

// inOrder is the order of a round.
func inOrder(specs []spec, round int) []spec {
	turn := 0
	if len(specs) > 0 {
		turn = round / 2 % len(specs)
	}
	out := slices.Concat(specs[turn:], specs[:turn])
	if round%2 == 1 {
		slices.Reverse(out)
	}
	return out
}

// one does one run, on an empty database if it names none.
func (b *bench) one(s spec) (r result, err error) {
	if s.Postgres != "" {
		return b.on(s.Postgres, s)
	}
	database, err := b.pg.database(b.ctx)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, b.pg.drop(b.ctx, database)) }()
	return b.on(database, s)
}

// on does one run on a database.
func (b *bench) on(database string, s spec) (r result, err error) {
	s.Postgres, s.Bin = database, filepath.Join(b.root, "bin")
	if s.Dir, err = os.MkdirTemp(b.dir, "run."); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.Dir)) }()
	s.Slots, s.Conns = cmp.Or(b.slots, s.Slots), cmp.Or(b.conns, s.Conns)
	if b.n > 0 && s.Shape == (shape{}) {
		s.N = b.n
	}
	if s.System == "drover" || s.System == "drover-sqlite" {
		s.Profile = b.profile
	}
	if err := b.pg.settle(b.ctx); err != nil {
		return r, err
	}
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	cmd := exec.CommandContext(b.ctx, self, "-run", string(encode(s)))
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := cmd.Run(); err != nil {
		return r, fmt.Errorf("%s on %s: %w", s.Workload, s.System, err)
	}
	return r, json.Unmarshal(out.Bytes(), &r)
}

// title names what was run.
func (r result) title() string {
	if r.Variant == "" {
		return systems[r.System].title
	}
	return systems[r.System].title + ", " + r.Variant
}

// String shows what a run found, for the log.
func (r result) String() string {
	if r.Void != "" {
		return "void: " + r.Void
	}
	var all []string
	for name, v := range r.Values {
		all = append(all, fmt.Sprintf("%s %s", rounded(v), name))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
