package sim

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// What a seed must have to count.
const (
	leastOperations = 200
	leastKinds      = 3
	enoughSeeds     = 200 // of which every counter must be above zero
)

// Campaign is many seeds run on several processors.
type Campaign struct {
	Base    uint64 // the first seed is Seed(Base, 0)
	Seeds   int
	Workers int
	// Most is how many failures are looked for before it stops; 0 is one.
	Most int
	// Until, when set, ends it early.
	Until time.Time
}

// Seed is the ith seed of a base.
func Seed(base uint64, i int) uint64 { return mix(base, uint64(i)) }

// Failure is a seed that failed.
type Failure struct {
	Seed uint64
	// Nth is how many seeds had been run.
	Nth  int
	What string
}

// Figures are what a campaign found.
type Figures struct {
	Stats
	Base       uint64  `json:"base"`
	Replayed   int     `json:"seeds_replayed"` // and found equal
	Violations int     `json:"violations"`
	Seconds    float64 `json:"seconds"`
	PerMinute  float64 `json:"seeds_per_minute"`
	Fewest     int     `json:"fewest_operations"`
	FewestKind int     `json:"fewest_kinds_of_fault"`
}

// Run runs the seeds. One in a hundred is run twice and must leave the same
// trace.
func (c *Campaign) Run(ctx context.Context) (Figures, []Failure, error) {
	var (
		mu       sync.Mutex
		failures []Failure
		errs     []error
		next     atomic.Int64
		ran      atomic.Int64
		stop     atomic.Bool
		wg       sync.WaitGroup
		f        = Figures{Stats: newStats(), Base: c.Base, Fewest: 1 << 30, FewestKind: int(kinds)}
		began    = time.Now()
	)
	// The rows are SQLite's, outside of Go's heap, which is so small that it would
	// be collected all the time.
	defer debug.SetGCPercent(debug.SetGCPercent(800))
	for range max(c.Workers, 1) {
		wg.Go(func() {
			err := func() error {
				db, err := openDatabase(ctx)
				if err != nil {
					return err
				}
				defer db.close()
				for !stop.Load() && ctx.Err() == nil && (c.Until.IsZero() || time.Now().Before(c.Until)) {
					i := int(next.Add(1)) - 1
					if i >= c.Seeds {
						return nil
					}
					r, what, err := c.one(ctx, db, i)
					if err != nil {
						return err
					}
					n := int(ran.Add(1))
					mu.Lock()
					f.Add(&r.Stats)
					f.Fewest, f.FewestKind = min(f.Fewest, r.Stats.Operations), min(f.FewestKind, len(r.Stats.Faults))
					if i%100 == 0 {
						f.Replayed++
					}
					if what != "" {
						f.Violations++
						failures = append(failures, Failure{r.Seed, n, what})
						stop.Store(len(failures) >= max(c.Most, 1))
					}
					mu.Unlock()
				}
				return nil
			}()
			if err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	f.Seconds = time.Since(began).Seconds()
	f.PerMinute = float64(f.Stats.Seeds) / f.Seconds * 60
	if len(errs) > 0 {
		return f, nil, errs[0]
	}
	slices.SortFunc(failures, func(a, b Failure) int { return a.Nth - b.Nth })
	return f, failures, ctx.Err()
}

// one runs the ith seed and says what is wrong with it.
func (c *Campaign) one(ctx context.Context, db *database, i int) (*Result, string, error) {
	seed := Seed(c.Base, i)
	r, err := run(ctx, db, seed, Options{})
	if err != nil {
		return nil, "", err
	}
	what := r.wrong()
	if i%100 == 0 && what == "" {
		again, err := run(ctx, db, seed, Options{})
		if err != nil {
			return nil, "", err
		}
		if again.Hash != r.Hash {
			what = fmt.Sprintf("DETERMINISM: two runs left the traces %s and %s", r.Hash, again.Hash)
		}
	}
	return r, what, nil
}

// wrong says why a result does not count, or is a failure.
func (r *Result) wrong() string {
	switch {
	case r.Violation != nil:
		return r.Violation.Error()
	case r.Stats.Operations < leastOperations:
		return fmt.Sprintf("SIZE: %d operations; a world has at least %d", r.Stats.Operations, leastOperations)
	case len(r.Stats.Faults) < leastKinds:
		return fmt.Sprintf("SIZE: %d kinds of fault struck; at least %d must", len(r.Stats.Faults), leastKinds)
	}
	return ""
}

// String tells the figures to a person.
func (f *Figures) String() string {
	return fmt.Sprintf("%s\nfewest in a seed: %d operations, %d kinds of fault; %d seeds replayed to the same trace; %.0f seeds/min; %d violations",
		f.Stats.String(), f.Fewest, f.FewestKind, f.Replayed, f.PerMinute, f.Violations)
}

// Explain runs a seed that failed with as few faults and actions as still fail
// the same way, and tells the trace and how to see it again.
func Explain(ctx context.Context, seed uint64) (string, error) {
	db, err := openDatabase(ctx)
	if err != nil {
		return "", err
	}
	defer db.close()
	o, err := smaller(ctx, db, seed)
	if err != nil {
		return "", err
	}
	r, err := run(ctx, db, seed, o)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "seed %#x, made smaller: %d of its faults and %d of its actions are enough\n", seed, len(r.Faults), len(r.Actions))
	for _, s := range slices.Concat(r.Faults, r.Actions) {
		b.WriteString("  " + s + "\n")
	}
	const most = 150
	if n := len(r.Trace); n > most {
		fmt.Fprintf(&b, "… %d lines before\n", n-most)
		r.Trace = r.Trace[n-most:]
	}
	b.WriteString(strings.Join(r.Trace, "\n"))
	fmt.Fprintf(&b, "\n%v\n\nto see all of it:   go test ./test/sim -run Seeds -v -seed=%#x\nto keep the seed:   echo '%#x  what it found' >> test/sim/regress.txt\n", r.wrong(), seed, seed)
	return b.String(), nil
}
