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
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// bench is one run.
type bench struct {
	ctx      context.Context
	root     string // of the repository
	drover   string // the binary
	dir      string // for everything the run keeps
	postgres string // URL of the server, whatever its database
	report   report
}

// parts are what can be measured, in order.
var parts = []struct {
	name string
	run  func(*bench) error
}{
	{"start", (*bench).start},
	{"idle", (*bench).idle},
	{"submit", (*bench).submit},
	{"jobs", (*bench).jobs},
	{"inside", (*bench).inside},
	{"tasks", (*bench).tasks},
	{"singles", (*bench).singles},
	{"demo", (*bench).demo},
}

func main() {
	root := flag.String("root", ".", "`folder` of the repository")
	only := flag.String("only", "", "parts to measure, separated by commas; then docs/performance.md stays as it is")
	work := flag.Bool("worker", false, "be the worker process; the bench starts it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	run := func() error { return measure(ctx, *root, *only) }
	if *work {
		run = func() error { return workerProcess(ctx) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func measure(ctx context.Context, root, only string) (err error) {
	root, err = filepath.Abs(root)
	if err != nil {
		return err
	}
	var chosen []string
	if only != "" {
		chosen = strings.Split(only, ",")
	}
	b := &bench{ctx: ctx, root: root, drover: filepath.Join(root, "bin", "drover"), postgres: os.Getenv("DROVER_TEST_POSTGRES")}
	if b.postgres == "" {
		return errors.New("DROVER_TEST_POSTGRES names no PostgreSQL; make bench starts one")
	}
	if b.dir, err = os.MkdirTemp("", "drover-bench."); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if b.report, err = newReport(ctx, root, b.dir, b.postgres); err != nil {
		return err
	}
	if l := b.report.Load; l > 1 {
		fmt.Fprintf(os.Stderr, "bench: this machine is busy (load %.1f); the figures will say less about Drover\n", l)
	}
	began := time.Now()
	for _, p := range parts {
		if chosen != nil && !slices.Contains(chosen, p.name) {
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
	if err := b.report.writeJSON(filepath.Join(root, "bench", "out.json")); err != nil {
		return err
	}
	if chosen == nil {
		if err := b.report.writeDoc(filepath.Join(root, "docs", "performance.md")); err != nil {
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
