// Command bench measures Drover as its users meet it: the drover binary started
// as a process, over HTTP, with workers in processes of their own; and package
// embedded, where all is one process. It prints a table, writes bench/out.json
// and the table of docs/performance.md. It is run by "make bench", which gives it
// a PostgreSQL that syncs to disk.
//
// A figure whose workload did not end whole is void, whatever the clock says.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// bench is all that is measured at a time.
type bench struct {
	house
	root   string // of the repository
	pg     postgres
	report report
	choice
	capacities map[string]float64 // jobs a second of each system, as measured
}

// choice is what the command line changes.
type choice struct {
	only    []string      // parts
	systems []string      // to compare; none is all
	long    bool          // the long parts instead of the others
	n       int           // jobs of a run; 0 is the workload's own number
	nRounds int           // 0 is the workload's own number
	slots   int           // handlers at a time; 0 is each system's best
	conns   int           // to PostgreSQL; 0 is each system's best
	length  time.Duration // of the long workloads; 0 is their own
	profile string        // file for the processor profile of Drover's runs
}

// part is one thing that can be measured.
type part struct {
	name string
	long bool
	run  func(*bench) error
}

// parts are all of them, in order.
var parts = []part{
	{"start", false, (*bench).start},
	{"idle", false, (*bench).idle},
	{"submit", false, (*bench).submit},
	{"tasks", false, (*bench).tasks},
	{"demo", false, (*bench).demo},
	{"queue", false, (*bench).queue},
	{"single", false, (*bench).single},
	{"latency", false, (*bench).latency},
	{"graphs", false, (*bench).graphs},
	{"backlog", false, (*bench).backlog},
	{"tenants", false, (*bench).tenants},
	{"peers", true, (*bench).peers},
	{"memory", true, (*bench).memory},
	{"pressure", true, (*bench).pressure},
	{"overload", true, (*bench).overload},
}

func main() {
	var c choice
	root := flag.String("root", ".", "`folder` of the repository")
	only := flag.String("only", "", "`parts` to measure, separated by commas; then docs/performance.md stays as it is")
	chosen := flag.String("systems", "", "`systems` to compare, separated by commas: "+strings.Join(slices.Sorted(maps.Keys(systems)), " "))
	flag.BoolVar(&c.long, "long", false, "measure the long workloads instead of the others")
	flag.IntVar(&c.n, "n", 0, "jobs of each run, instead of the workload's own number")
	flag.IntVar(&c.nRounds, "rounds", 0, "rounds, instead of the workload's own number")
	flag.IntVar(&c.slots, "slots", 0, "handlers at a time, instead of each system's best")
	flag.IntVar(&c.conns, "conns", 0, "connections to PostgreSQL, instead of each system's best")
	flag.DurationVar(&c.length, "for", 0, "how long each long workload lasts, instead of its own time")
	flag.StringVar(&c.profile, "cpuprofile", "", "`file` for the processor profile of the process that runs Drover; the last run's stays")
	check := flag.Bool("check", false, "only run the small benchmark of continuous integration, and fail under the floor of bench/floor.json")
	record := flag.Bool("record", false, "run that benchmark and record the ratio in bench/floor.json")
	work := flag.Bool("worker", false, "be the worker process; the bench starts it")
	one := flag.String("run", "", "be the process of one run; the bench starts it")
	flag.Parse()
	c.only, c.systems = listed(*only), listed(*chosen)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	run := func() error { return withBench(ctx, *root, c, (*bench).measure) }
	switch {
	case *check || *record:
		run = func() error { return withBench(ctx, *root, c, func(b *bench) error { return b.check(*record) }) }
	case *work:
		run = func() error { return workerMain(ctx) }
	case *one != "":
		run = func() error { return runMain(ctx, *one) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// listed splits a list of names.
func listed(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// withBench prepares what is needed and throws it away after do.
func withBench(ctx context.Context, root string, c choice, do func(*bench) error) (err error) {
	if root, err = filepath.Abs(root); err != nil {
		return err
	}
	if c.profile != "" {
		if c.profile, err = filepath.Abs(c.profile); err != nil {
			return err
		}
	}
	for _, name := range c.only {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			return fmt.Errorf("there is no part %q", name)
		}
	}
	for _, name := range c.systems {
		if systems[name].open == nil {
			return fmt.Errorf("there is no system %q", name)
		}
	}
	b := &bench{root: root, house: house{ctx: ctx, drover: filepath.Join(root, "bin", "drover")}, pg: postgres{url: os.Getenv("DROVER_TEST_POSTGRES")}, choice: c, capacities: map[string]float64{}}
	if b.pg.url == "" {
		return errors.New("DROVER_TEST_POSTGRES names no PostgreSQL; make bench starts one")
	}
	if b.dir, err = os.MkdirTemp("", "drover-bench."); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	return do(b)
}

// measure measures the parts that are chosen, and reports.
func (b *bench) measure() (err error) {
	if b.report, err = newReport(b.ctx, b.root, b.dir, b.pg.url); err != nil {
		return err
	}
	if l := b.report.Load; l > 1 {
		fmt.Fprintf(os.Stderr, "bench: this machine is busy (load %.1f); the figures will say less about Drover\n", l)
	}
	began := time.Now()
	for _, p := range parts {
		if b.only == nil && p.long != b.long || b.only != nil && !slices.Contains(b.only, p.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "bench: %s, %.0f s in\n", p.name, time.Since(began).Seconds())
		if err := p.run(b); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	b.report.Seconds = time.Since(began).Seconds()
	b.report.LoadAfter = load()
	b.report.print(os.Stdout)
	if err := b.report.writeJSON(filepath.Join(b.root, "bench", "out.json")); err != nil {
		return err
	}
	if b.only == nil {
		target := "bench"
		if b.long {
			target = "bench-long"
		}
		if err := b.report.writeDoc(filepath.Join(b.root, "docs", "performance.md"), target); err != nil {
			return err
		}
	}
	return b.report.void()
}

// demo times "make demo" in a copy of what is committed, so that no state of
// this checkout is touched.
func (b *bench) demo() error {
	dir := filepath.Join(b.dir, "demo")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	archive := exec.CommandContext(b.ctx, "sh", "-c", `git -C "$1" archive HEAD | tar -x -C "$2"`, "sh", b.root, dir)
	if out, err := archive.CombinedOutput(); err != nil {
		return fmt.Errorf("copy the repository: %w: %s", err, out)
	}
	addr, err := freeAddress()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(b.ctx, "make", "demo")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "ADDR="+addr, "VIDEO=", "FRESH=", "MAKEFLAGS=", "MAKELEVEL=")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	began := time.Now()
	out, err := cmd.CombinedOutput()
	took := time.Since(began)
	f := figure{
		Name: "`make demo`, warm module cache, clip of 22 s (made in that time)", Value: took.Seconds(), Unit: "s", Goal: 60,
		Bound: "building two programs and making the clip, then ffmpeg on all cores",
	}
	if err != nil {
		f.Void = "it failed"
		fmt.Fprintf(os.Stderr, "%s\nbench: make demo: %v\n", out, err)
	}
	b.report.add(f)
	return nil
}
