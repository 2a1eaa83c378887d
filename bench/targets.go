package main

import (
	"fmt"
	"slices"
)

// target is a line of the table "at least, aim, reached".
type target struct {
	Name    string  `json:"name"`
	Unit    string  `json:"unit"`
	AtLeast float64 `json:"at_least"`
	Aim     float64 `json:"aim"`
	Most    bool    `json:"most,omitempty"` // the value must not exceed AtLeast and Aim
	Bound   string  `json:"bound"`          // what the figure is bound by
	// Values has one value a round, of a ratio that of the two runs of the round.
	Values []float64 `json:"values"`
	Median float64   `json:"median"`
	// Quartile is the worse one: a quarter of the rounds were no better.
	Quartile float64 `json:"quartile"`
	Void     string  `json:"void,omitempty"`

	of, against who // against nobody is a plain value
}

// who is what was run: a workload, a value of it, a system and its variant.
type who struct{ workload, value, system, variant string }

// targets are the lines of both benches; those are shown whose runs there are.
var targets = []target{
	{Name: "queue, submit and work, in process / River", Unit: "×", AtLeast: 1.2, Aim: 2,
		of: who{"queue", "tasks/s", "drover", ""}, against: who{"queue", "tasks/s", "river", ""},
		Bound: "the processors, which client and PostgreSQL share"},
	{Name: "queue, submit and work, worker process over HTTP / River in process", Unit: "×", AtLeast: 0.9, Aim: 1.5,
		of: who{"queue", "tasks/s", "drover-http", ""}, against: who{"queue", "tasks/s", "river", ""},
		Bound: "the processors, shared by client, server, worker and PostgreSQL"},
	{Name: "single submits, 50 clients, in process / River", Unit: "×", AtLeast: 2, Aim: 4,
		of: who{"single", "jobs/s", "drover", ""}, against: who{"single", "jobs/s", "river", ""},
		Bound: "commits that are synced to disk, each shared by the submits that came during the one before"},
	{Name: "submit to handler at 100/s, in process, p50", Unit: "ms", AtLeast: 5, Aim: 2, Most: true,
		of: who{"latency", "p50 ms", "drover", ""}, Bound: "two commits that are synced to disk, one after the other: submit and claim"},
	{Name: "submit to handler at 100/s, in process, p99", Unit: "ms", AtLeast: 20, Aim: 8, Most: true,
		of: who{"latency", "p99 ms", "drover", ""}, Bound: "waiting for a processor or for the disk"},
	{Name: "submit to handler at 100/s, worker process over HTTP, p50", Unit: "ms", AtLeast: 5, Aim: 2, Most: true,
		of: who{"latency", "p50 ms", "drover-http", ""}, Bound: "two commits that are synced to disk, and two ways over HTTP"},
	{Name: "submit to handler at 100/s, worker process over HTTP, p99", Unit: "ms", AtLeast: 20, Aim: 8, Most: true,
		of: who{"latency", "p99 ms", "drover-http", ""}, Bound: "waiting for a processor or for the disk"},
	{Name: "1→1,000→1, tasks/s / DBOS", Unit: "×", AtLeast: 8, Aim: 20,
		of: who{"fan", "tasks/s", "drover", ""}, against: who{"fan", "tasks/s", "dbos", ""},
		Bound: "the processors, and the commits of the first and the last task"},
	{Name: "1→1,000→1, tasks/s / Temporal on PostgreSQL", Unit: "×", AtLeast: 50, Aim: 100,
		of: who{"fan, long", "tasks/s", "drover", ""}, against: who{"fan, long", "tasks/s", "temporal", ""},
		Bound: "the processors, and the commits of the first and the last task"},
	{Name: "job of 100,000 tasks in 10 layers", Unit: "tasks/s", AtLeast: 10_000, Aim: 25_000,
		of: who{"layers", "tasks/s", "drover", ""}, Bound: "the processors"},
	{Name: "queue with 500,000 waiting and 1,000,000 finished / empty", Unit: "×", AtLeast: 0.9, Aim: 1,
		of: who{"backlog", "tasks/s", "drover", crowded}, against: who{"backlog", "tasks/s", "drover", empty},
		Bound: "deeper indexes, and pages that have to be read"},
	{Name: "queue while a transaction is held idle / without", Unit: "×", AtLeast: 0.75, Aim: 0.9,
		of: who{"pressure", "tasks/s", "drover", idleTx}, against: who{"pressure", "tasks/s", "drover", nothing},
		Bound: "dead rows that cannot be removed while a snapshot may still see them"},
	{Name: "p99 wait of 100 small tenants beside one with 500,000 waiting / alone", Unit: "×", AtLeast: 3, Aim: 1.5, Most: true,
		of: who{"tenants", "p99 ms", "drover-http", beside}, against: who{"tenants", "p99 ms", "drover-http", alone},
		Bound: "the share that the large tenant gets too"},
	{Name: "queue, SQLite (FULL), one process", Unit: "tasks/s", AtLeast: 10_000, Aim: 25_000,
		of: who{"queue", "tasks/s", "drover-sqlite", ""}, Bound: "the one writer, whose work a second processor cannot share"},
}

// reached fills the targets in from what was run.
func (r *report) reached() []target {
	var out []target
	for _, t := range targets {
		t.fill(r)
		if len(t.Values) > 0 || t.Void != "" {
			out = append(out, t)
		}
	}
	return out
}

// fill takes the target's values from the runs.
func (t *target) fill(r *report) {
	ours, void := r.values(t.of)
	theirs, other := r.values(t.against)
	t.Void = void + other
	for _, one := range r.Runs[t.of.workload] { // in the order of the rounds
		v, ok := ours[one.Round]
		delete(ours, one.Round)
		base := theirs[one.Round]
		if t.against == (who{}) {
			base = 1
		}
		if ok && base > 0 {
			t.Values = append(t.Values, v/base)
		}
	}
	t.Median, t.Quartile = median(t.Values), quantile(t.Values, 0.25)
	if t.Most {
		t.Quartile = quantile(t.Values, 0.75)
	}
}

// values are those of each round, and why they count for nothing.
func (r *report) values(w who) (byRound map[int]float64, void string) {
	byRound = map[int]float64{}
	for _, one := range r.Runs[w.workload] {
		if one.System != w.system || one.Variant != w.variant {
			continue
		}
		if one.Void != "" {
			void = one.Void
		}
		byRound[one.Round] = one.Values[w.value]
	}
	return byRound, void
}

// text shows a value in the target's unit.
func (t target) text(v float64) string {
	if t.Unit == "×" {
		return fmt.Sprintf("%.2f ×", v)
	}
	return rounded(v) + " " + t.Unit
}

func (t target) bound(v float64) string {
	if t.Most {
		return fmt.Sprintf("≤ %g %s", v, t.Unit)
	}
	return fmt.Sprintf("%g %s", v, t.Unit)
}

func (t target) reached() string {
	if t.Void != "" {
		return "void: " + t.Void
	}
	side := "lower"
	if t.Most {
		side = "upper"
	}
	return fmt.Sprintf("%s (%s quartile of %d: %s; %s to %s)", t.text(t.Median), side, len(t.Values), t.text(t.Quartile), t.text(slices.Min(t.Values)), t.text(slices.Max(t.Values)))
}

// met compares the worse quartile with what is asked for.
func (t target) met() string {
	holds := func(v, limit float64) bool { return t.Most && v <= limit || !t.Most && v >= limit }
	switch {
	case t.Void != "" || !holds(t.Quartile, t.AtLeast):
		return "not met"
	case holds(t.Median, t.Aim):
		return "aim"
	}
	return "met"
}
