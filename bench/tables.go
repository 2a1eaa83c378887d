package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// table is one of a report: text for the terminal, Markdown for the document.
type table struct {
	title string
	note  string
	head  []string
	rows  [][]string
}

// tables are all that a report shows.
func (r *report) tables() []table {
	var all []table
	if ts := r.reached(); len(ts) > 0 {
		t := table{title: "At least, aim, reached", head: []string{"workload", "at least", "aim", "reached", "", "what bounds it"}}
		for _, one := range ts {
			t.rows = append(t.rows, []string{one.Name, one.bound(one.AtLeast), one.bound(one.Aim), one.reached(), one.met(), one.Bound})
		}
		all = append(all, t)
	}
	for _, s := range sections {
		if t := r.section(s); len(t.rows) > 0 {
			all = append(all, t)
		}
	}
	if len(r.Figures) > 0 {
		t := table{title: "Drover by itself", head: []string{"figure", "value", "goal", "", "what bounds it"}}
		for _, f := range r.Figures {
			value := f.value()
			if f.Note != "" {
				value += " (" + f.Note + ")"
			}
			t.rows = append(t.rows, []string{f.Name, value, f.goal(), f.met(), f.Bound})
		}
		all = append(all, t)
	}
	return all
}

// section is the table of one workload: a row for each of what was run.
type section struct {
	workload string
	title    string
	values   []string
}

var sections = []section{
	{"queue", "Queue: 100,000 jobs of one task (DBOS: 10,000), submitted in bulk, then worked to the end", []string{"tasks/s", "submitted/s", "worked/s"}},
	{"queue", "What a task of that costs", []string{"client CPU µs/task", "database CPU µs/task", "WAL bytes/task", "commits/task", "stored bytes/task", "dead rows/task"}},
	{"single", "Single submits: 10,000 (DBOS: 2,500), one after the other from each of 50 clients", []string{"jobs/s", "p50 ms", "p99 ms"}},
	{"latency", "Submit to handler, 100 a second", []string{"p50 ms", "p99 ms"}},
	{"latency under load", "Submit to handler, 100 a second, beside a load of 70 % of what the system can take and work at the same time", []string{"p50 ms", "p99 ms", "load/s"}},
	{"fan", "1→1,000→1", []string{"tasks/s", "ms/job"}},
	{"fan, long", "1→1,000→1, with Temporal", []string{"tasks/s", "ms/job"}},
	{"chain", "Chain of 1,000", []string{"tasks/s", "ms/job"}},
	{"layers", "100,000 tasks in 10 layers", []string{"tasks/s", "ms/job"}},
	{"backlog", "Queue: 100,000 jobs submitted and as many worked, the oldest first", []string{"tasks/s"}},
	{"tenants", "Wait of the 5,000 jobs of 100 tenants that submit 50 each at once", []string{"p50 ms", "p99 ms"}},
	{"queue, long", "Queue, with Asynq", []string{"tasks/s", "submitted/s", "worked/s"}},
	{"single, long", "Single submits, with Asynq", []string{"jobs/s", "p50 ms", "p99 ms"}},
	{"latency, long", "Submit to handler, 100 a second, with Asynq", []string{"p50 ms", "p99 ms"}},
	{"pressure", "Queue that never runs dry, 5 minutes", []string{"tasks/s", "tasks/s in the first 10 s", "tasks/s at the end"}},
	{"overload", "5 minutes at 1.5 times what the system did in the queue, and the recovery", []string{"tasks/s under it", "submitted/s under it", "waiting at its end", "s until all was worked", "tasks/s afterwards"}},
	{"memory", "Resident memory, MB", []string{"server MB idle", "worker MB idle", "server MB with 10,000 running tasks", "worker MB with 10,000 running tasks", "server MB with 1,000 waiting workers"}},
}

func (r *report) section(s section) table {
	t := table{title: s.title, head: append([]string{""}, s.values...)}
	latencies := slices.ContainsFunc(r.Runs[s.workload], func(one result) bool { return len(one.Late) > 0 })
	if latencies {
		t.head = append(t.head, "p99.9 ms of all rounds")
	}
	var titles []string
	byTitle := map[string][]result{}
	for _, one := range r.Runs[s.workload] {
		if byTitle[one.title()] == nil {
			titles = append(titles, one.title())
		}
		byTitle[one.title()] = append(byTitle[one.title()], one)
	}
	rounds := 0
	for _, title := range titles {
		runs := byTitle[title]
		rounds = max(rounds, len(runs))
		row, some := []string{title}, false
		for _, name := range s.values {
			text, ok := spread(runs, name)
			row, some = append(row, text), some || ok
		}
		if latencies {
			var late []float64
			for _, one := range runs {
				late = append(late, one.Late...)
			}
			row = append(row, rounded(quantile(late, 0.999)))
		}
		if i := slices.IndexFunc(runs, func(one result) bool { return one.Void != "" }); i >= 0 {
			row, some = []string{title, "void: " + runs[i].Void}, true
		}
		if some {
			t.rows = append(t.rows, row)
		}
	}
	if rounds > 1 {
		t.note = fmt.Sprintf("Median of %d rounds, and the smallest and the largest.", rounds)
	}
	return t
}

// spread is the median of a value over the runs, and its range.
func spread(runs []result, name string) (string, bool) {
	var all []float64
	for _, one := range runs {
		if v, ok := one.Values[name]; ok {
			all = append(all, v)
		}
	}
	switch len(all) {
	case 0:
		return "", false
	case 1:
		return rounded(all[0]), true
	}
	return fmt.Sprintf("%s (%s–%s)", rounded(median(all)), rounded(slices.Min(all)), rounded(slices.Max(all))), true
}

// markdown writes a table for the document.
func (t table) markdown(b *strings.Builder) {
	fmt.Fprintf(b, "### %s\n\n", t.title)
	if t.note != "" {
		fmt.Fprintf(b, "%s\n\n", t.note)
	}
	fmt.Fprintf(b, "| %s |\n|%s\n", strings.Join(t.head, " | "), strings.Repeat("---|", len(t.head)))
	for _, row := range t.rows {
		fmt.Fprintf(b, "| %s%s |\n", strings.Join(row, " | "), strings.Repeat(" |", len(t.head)-len(row)))
	}
	b.WriteString("\n")
}

// plain writes a table for the terminal: the last column, where it says what
// bounds a figure, is for the document.
func (t table) plain(b *strings.Builder) {
	columns := len(t.head)
	if t.head[columns-1] == "what bounds it" {
		columns--
	}
	widths := make([]int, columns)
	lines := append([][]string{t.head}, t.rows...)
	for _, row := range lines {
		for i, cell := range row[:min(columns, len(row))] {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	fmt.Fprintf(b, "%s\n", strings.TrimSpace(t.title+". "+t.note))
	for _, row := range lines {
		var line strings.Builder
		for i, cell := range row[:min(columns, len(row))] {
			fmt.Fprintf(&line, "  %s%s", cell, strings.Repeat(" ", widths[i]-len([]rune(cell))))
		}
		fmt.Fprintln(b, strings.TrimRight(line.String(), " "))
	}
	b.WriteString("\n")
}

// median of some values; zero of none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.SortedFunc(slices.Values(values), cmp.Compare)
	k := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[k]
	}
	return (sorted[k-1] + sorted[k]) / 2
}
