// Command reliability writes docs/reliability.md from the figures that make sim,
// make mutants, make chaos and make conformance left in build/. Nothing in the
// document is typed by hand but what Drover promises and where that ends.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

func main() {
	build := flag.String("build", "build", "folder of the figures")
	out := flag.String("out", "docs/reliability.md", "file to write")
	flag.Parse()
	if err := run(*build, *out); err != nil {
		fmt.Fprintf(os.Stderr, "reliability: %v\n", err)
		os.Exit(1)
	}
}

// runs are the figures, by the make target that made them.
var runs = []struct{ file, target, title, about string }{
	{"sim", "sim", "Simulation", "The real engine on SQLite in memory, in one thread, with a clock and chance of its own: a seed is a whole world of servers, workers and clients, " +
		"with crashes, pauses, skewed clocks, lost answers and repeats. What must hold is checked at every step against a record of its own. The same seed gives the same world."},
	{"mutants", "mutants", "Planted bugs", "Faults planted in a copy of the program, one at a time. Each must be found by what is named for it."},
	{"chaos", "chaos", "Processes killed", "Real servers, workers and PostgreSQL, killed, stopped and cut off. A checker that shares no code with Drover reads the journals of clients and handlers, then the database."},
	{"lease", "chaos-lease", "A killed worker", "With default settings: a worker that holds tasks is killed; how long until others run them."},
	{"conformance", "conformance", "Conformance", "The same operations on SQLite, on PostgreSQL and on a model; histories of many clients at once, checked for an order that explains them."},
}

func run(build, out string) error {
	var b strings.Builder
	b.WriteString(head)
	fmt.Fprintf(&b, "Measured on %s with %d cores, %s/%s, %s.\n", time.Now().UTC().Format("2006-01-02"), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
	for _, r := range runs {
		src, err := os.ReadFile(filepath.Join(build, r.file+".json"))
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("there are no figures of make %s; run it first", r.target)
		} else if err != nil {
			return err
		}
		var figures map[string]any
		dec := json.NewDecoder(strings.NewReader(string(src)))
		dec.UseNumber()
		if err := dec.Decode(&figures); err != nil {
			return fmt.Errorf("%s.json: %w", r.file, err)
		}
		fmt.Fprintf(&b, "\n### %s\n\n%s Again: `make %s`.\n\n", r.title, r.about, r.target)
		write(&b, figures)
	}
	b.WriteString(faultHead)
	kind := ""
	for _, f := range faults {
		if f.kind != kind {
			kind = f.kind
			fmt.Fprintf(&b, "\n| %s | what is right | shown by |\n|---|---|---|\n", kind)
		}
		shown := "does not apply: " + f.why
		if len(f.tests) > 0 {
			var names []string
			for _, t := range f.tests {
				_, fn, _ := strings.Cut(t, " ")
				names = append(names, "`"+fn+"`")
			}
			shown = strings.Join(names, ", ")
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", f.name, f.text, shown)
	}
	return os.WriteFile(out, []byte(b.String()), 0o644)
}

// write puts figures into tables: first those that stand alone, then each list.
func write(b *strings.Builder, figures map[string]any) {
	var lists []string
	b.WriteString("| figure | |\n|---|---|\n")
	for _, k := range slices.Sorted(maps.Keys(figures)) {
		switch v := figures[k].(type) {
		case []any:
			if len(v) > 0 {
				lists = append(lists, k)
			}
		case map[string]any:
			var parts []string
			for _, name := range slices.Sorted(maps.Keys(v)) {
				parts = append(parts, fmt.Sprintf("%s %s", words(name), number(v[name])))
			}
			if len(parts) > 0 {
				fmt.Fprintf(b, "| %s | %s |\n", words(k), strings.Join(parts, ", "))
			}
		default:
			fmt.Fprintf(b, "| %s | %s |\n", words(k), number(v))
		}
	}
	for _, k := range lists {
		rows := figures[k].([]any)
		first, ok := rows[0].(map[string]any)
		if !ok {
			continue
		}
		cols := slices.Sorted(maps.Keys(first))
		fmt.Fprintf(b, "\n| %s |\n|%s\n", strings.Join(each(cols, words), " | "), strings.Repeat("---|", len(cols)))
		for _, r := range rows {
			row, _ := r.(map[string]any)
			cells := each(cols, func(c string) string { return number(row[c]) })
			fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
		}
	}
}

func each(list []string, f func(string) string) (out []string) {
	for _, s := range list {
		out = append(out, f(s))
	}
	return out
}

func words(key string) string { return strings.ReplaceAll(key, "_", " ") }

// number writes a figure as people read it.
func number(v any) string {
	if v == nil {
		return ""
	}
	s := strings.ReplaceAll(fmt.Sprint(v), "|", "\\|")
	if n, ok := v.(json.Number); ok {
		whole, rest, dot := strings.Cut(s, ".")
		for i := len(whole) - 3; i > 0 && whole[i-1] != '-'; i -= 3 {
			whole = whole[:i] + "," + whole[i:]
		}
		if s = whole; dot {
			s += "." + rest[:min(len(rest), 2)]
		}
		_ = n
	}
	return s
}

const head = `# Reliability

<!-- Written by test/reliability from the figures of a run: make reliability. -->

What Drover promises, where the promise ends, and what was measured.

- **Nothing accepted is lost.** A ` + "`202`" + ` is sent after the job, its tasks and its idempotency key are committed.
- **Execution is at least once; at most one success is recorded** for a task and generation. A worker whose lease was lost is refused when it reports.
- **Effects outside are as good as once where the handler passes the task's idempotency key on**, and the system it calls honours it.
- **It heals alone.** A dead worker's tasks start elsewhere within one lease (30 s by default) and a second. Rows that disagree with the records are mended.

Where that ends:

- A handler may still be running after its lease ran out: its process was stopped or cut off and has not noticed. For that time two may run. Its result is refused,
  and its artifacts do not count; what it does outside is what the idempotency key is for.
- A request whose answer was lost is *unknown*, not failed. Repeating it with the same key or id gives the first answer.
- A cancel that comes together with a success: one of the two wins, and the answer says which.
- Drover is as durable as its database. With PostgreSQL's ` + "`fsync`" + ` or ` + "`synchronous_commit`" + ` off, a crash of the database's machine loses what it acknowledged last.
  SQLite syncs each commit.
- A restore from a backup brings back the state of that time: what was accepted since is gone, and leases of that time are refused or run out.

## Figures

`

const faultHead = `
## Faults of other systems

Each line is a fault that users of another system reported, and the test that shows it is not one of ours.
`
