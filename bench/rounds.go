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

// rounds runs a workload on some systems, each in a process and on a database
// of its own, round after round; the order turns and is reversed in every other
// round, so that no system is always the first or after the same one.
func (b *bench) rounds(s spec, names []string, each func(system string, s *spec)) error {
	names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return len(b.systems) > 0 && !slices.Contains(b.systems, n) })
	for round := range b.times(s.Workload) {
		for _, name := range inOrder(names, round) {
			one := s
			one.System = name
			if each != nil {
				each(name, &one)
			}
			r, err := b.one(one)
			if err != nil {
				return err
			}
			r.Round = round
			b.report.Runs[s.Workload] = append(b.report.Runs[s.Workload], r)
			fmt.Fprintf(os.Stderr, "  round %d, %s: %s\n", round+1, titles[name], r)
		}
	}
	return nil
}

// inOrder is the order of a round.
func inOrder(names []string, round int) []string {
	turn := 0
	if len(names) > 0 {
		turn = round / 2 % len(names)
	}
	out := slices.Concat(names[turn:], names[:turn])
	if round%2 == 1 {
		slices.Reverse(out)
	}
	return out
}

// one does one run on an empty database.
func (b *bench) one(s spec) (r result, err error) {
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
	if b.n > 0 {
		s.N = b.n
	}
	if strings.HasPrefix(s.System, "drover") {
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

// times is how many rounds a workload has.
func (b *bench) times(workload string) int {
	return cmp.Or(b.nRounds, usualRounds[workload])
}

var usualRounds = map[string]int{"queue": 5, "fan": 3, "chain": 3, "layers": 3}

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
