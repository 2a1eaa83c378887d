package sim

import (
	"context"
	"maps"
	"strings"
)

// smaller finds faults and actions of a seed that can be left out while it still
// breaks the same invariant (delta debugging: A. Zeller and R. Hildebrandt,
// "Simplifying and Isolating Failure-Inducing Input", IEEE TSE, 2002).
func smaller(ctx context.Context, db *database, seed uint64) (Options, error) {
	o := Options{Trace: true, WithoutFaults: map[int]bool{}, WithoutActions: map[int]bool{}}
	first, err := run(ctx, db, seed, Options{})
	if err != nil || first.Violation == nil {
		return o, err
	}
	p := newPlan(seed)
	fails := func(faults, actions map[int]bool) (bool, error) {
		r, err := run(ctx, db, seed, Options{WithoutFaults: faults, WithoutActions: actions})
		return err == nil && r.Violation != nil && r.Violation.Invariant == first.Violation.Invariant, err
	}
	if o.WithoutFaults, err = shrink(len(p.faults), func(out map[int]bool) (bool, error) { return fails(out, nil) }); err != nil {
		return o, err
	}
	o.WithoutActions, err = shrink(len(p.actions), func(out map[int]bool) (bool, error) { return fails(o.WithoutFaults, out) })
	return o, err
}

// shrink leaves out as many of n things as it can, in ever smaller pieces.
func shrink(n int, fails func(out map[int]bool) (bool, error)) (map[int]bool, error) {
	out := map[int]bool{}
	for size := (n + 1) / 2; size > 0; size /= 2 {
		for at := 0; at < n; at += size {
			try := maps.Clone(out)
			for i := at; i < min(at+size, n); i++ {
				try[i] = true
			}
			if len(try) == len(out) {
				continue
			}
			ok, err := fails(try)
			if err != nil {
				return nil, err
			}
			if ok {
				out = try
			}
		}
	}
	return out, nil
}

// Kept reads the seeds of a file: one a line, and what it found.
func Kept(text string) (list []string) {
	for line := range strings.Lines(text) {
		if seed, _, _ := strings.Cut(strings.TrimSpace(line), " "); seed != "" && seed[0] != '#' {
			list = append(list, seed)
		}
	}
	return list
}
