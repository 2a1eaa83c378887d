package main

import (
	"context"
	"strings"
	"testing"
	"time"
)

// fake is a system whose database says what it is told to.
type fake struct {
	entries
	counts
}

func (f *fake) submitMany(context.Context, int) error   { return nil }
func (f *fake) submit(context.Context, time.Time) error { return nil }
func (f *fake) work(context.Context) error              { return nil }
func (f *fake) rest(context.Context) error              { return nil }
func (f *fake) entered() *entries                       { return &f.entries }
func (f *fake) count(context.Context) (counts, error)   { return f.counts, nil }
func (f *fake) cpu() (time.Duration, error)             { return 0, nil }
func (f *fake) close() error                            { return nil }

func TestOnlyAWholeRunCounts(t *testing.T) {
	for name, c := range map[string]struct {
		entries int64
		after   counts
		void    bool
	}{
		"all ended once":         {100, counts{Waiting: 7, Finished: 1100}, false},
		"one ran twice":          {101, counts{Waiting: 7, Finished: 1100}, true},
		"one is lost":            {100, counts{Waiting: 6, Finished: 1100}, true},
		"one is there twice":     {100, counts{Waiting: 8, Finished: 1100}, true},
		"one ended without work": {99, counts{Waiting: 7, Finished: 1100}, true},
	} {
		f := &fake{counts: c.after}
		f.n.Store(c.entries)
		r := &run{system: f, before: counts{Waiting: 7, Finished: 1000}}
		if err := r.audit(t.Context(), 100); err != nil || (r.void != "") != c.void {
			t.Errorf("%s: void = %q, %v", name, r.void, err)
		}
	}
}

func TestRatiosAreThoseOfARound(t *testing.T) {
	r := &report{Runs: map[string][]result{"w": {
		{Round: 0, System: "a", Values: map[string]float64{"v": 10}},
		{Round: 0, System: "b", Values: map[string]float64{"v": 5}},
		{Round: 1, System: "b", Values: map[string]float64{"v": 20}},
		{Round: 1, System: "a", Values: map[string]float64{"v": 20}},
		{Round: 2, System: "a", Values: map[string]float64{"v": 9}}, // b is not there
		{Round: 3, System: "a", Values: map[string]float64{"v": 6}},
		{Round: 3, System: "b", Values: map[string]float64{"v": 2}},
	}}}
	x := target{Unit: "×", AtLeast: 2, Aim: 3, of: who{"w", "v", "a", ""}, against: who{"w", "v", "b", ""}}
	x.fill(r)
	if len(x.Values) != 3 || x.Values[0] != 2 || x.Values[1] != 1 || x.Values[2] != 3 || x.Median != 2 || x.Quartile != 1 {
		t.Errorf("ratios %v, median %g, quartile %g", x.Values, x.Median, x.Quartile)
	}
	if x.met() != "not met" { // by its median it would be
		t.Errorf("a lower quartile of 1 is %q of at least 2", x.met())
	}
	x.AtLeast = 1
	if x.met() != "met" {
		t.Errorf("a lower quartile of 1 is %q of at least 1", x.met())
	}
	x.Aim = 2
	if x.met() != "aim" {
		t.Errorf("a median of 2 is %q with an aim of 2", x.met())
	}
	r.Runs["w"][1].Void = "broken"
	x.Values = nil
	x.fill(r)
	if x.met() != "not met" || !strings.Contains(x.reached(), "broken") {
		t.Errorf("a void run gives %q, %q", x.met(), x.reached())
	}
}

func TestEverySystemIsFirstAndLast(t *testing.T) {
	specs := forEach(spec{}, []string{"a", "b", "c"}, nil)
	first, last := map[string]bool{}, map[string]bool{}
	for round := range 6 {
		order := inOrder(specs, round)
		first[order[0].System], last[order[2].System] = true, true
		if len(order) != 3 {
			t.Fatalf("round %d has %d runs", round, len(order))
		}
	}
	if len(first) != 3 || len(last) != 3 {
		t.Errorf("first were %v, last %v", first, last)
	}
}

func TestQuantiles(t *testing.T) {
	if v := quantile([]float64{5, 1, 4, 2, 3}, 0.25); v != 2 {
		t.Errorf("lower quartile = %g", v)
	}
	if v := median([]float64{4, 1, 3, 2}); v != 2.5 {
		t.Errorf("median = %g", v)
	}
	if v := quantile([]float64{}, 0.5); v != 0 {
		t.Errorf("of nothing: %g", v)
	}
}

// TestShapesCountTheirTasks: what a run expects is what the pipeline has.
func TestShapesCountTheirTasks(t *testing.T) {
	for text, want := range map[shape]int{{"fan", 1000, 1}: 1002, {"chain", 1, 1000}: 1000, {"layers", 10_000, 10}: 100_000} {
		if n := text.tasks(); n != want {
			t.Errorf("%s has %d tasks, want %d", text.Name, n, want)
		}
	}
	p := pipeline(shape{"fan", 3, 2})
	for _, line := range []string{"layer0: {run: noop, queue: bench, needs: [first], for_each: ", "layer1: {run: noop, queue: bench, for_each: layer0}", "last: {run: noop, queue: bench, needs: [layer1]}"} {
		if !strings.Contains(p, line) {
			t.Errorf("no %q in:\n%s", line, p)
		}
	}
}
