package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// figure is one thing measured. Without a goal it is for information.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Goal  float64 `json:"goal,omitempty"` // the value must be below it
	Void  string  `json:"void,omitempty"` // why the value counts for nothing
	Note  string  `json:"note,omitempty"`
	Bound string  `json:"bound,omitempty"` // what it is bound by
}

func (f figure) value() string {
	if f.Void != "" {
		return "void: " + f.Void
	}
	return strings.TrimSpace(rounded(f.Value) + " " + f.Unit)
}

// rounded shows as many digits as say something.
func rounded(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func (f figure) goal() string {
	if f.Goal == 0 {
		return ""
	}
	return fmt.Sprintf("< %g %s", f.Goal, f.Unit)
}

func (f figure) met() string {
	switch {
	case f.Goal == 0:
		return ""
	case f.Void == "" && f.Value < f.Goal:
		return "met"
	}
	return "not met"
}

// report is what a run found, and where.
type report struct {
	Date      time.Time `json:"date"`
	Commit    string    `json:"commit"`
	CPU       string    `json:"cpu"`
	Cores     int       `json:"cores"`
	Go        string    `json:"go"`
	Postgres  string    `json:"postgresql"`
	Settings  string    `json:"postgresql_settings"`
	Sync      float64   `json:"fsync_ms"` // median, of a page appended
	Load      float64   `json:"load"`     // of one minute, before
	LoadAfter float64   `json:"load_after"`
	Seconds   float64   `json:"seconds"`
	Figures   []figure  `json:"figures"`
	// Workloads are those that were run, in order, and Runs all their runs.
	Workloads []string            `json:"workloads"`
	Runs      map[string][]result `json:"runs"`
}

func newReport(ctx context.Context, root, dir, postgres string) (report, error) {
	r := report{Date: time.Now().UTC().Truncate(time.Second), Cores: runtime.NumCPU(), Go: runtime.Version(), Load: load(), CPU: "unknown", Runs: map[string][]result{}}
	commit, err := exec.CommandContext(ctx, "git", "-C", root, "describe", "--tags", "--always", "--dirty").Output()
	if err == nil {
		r.Commit = strings.TrimSpace(string(commit))
	}
	text, err := os.ReadFile("/proc/cpuinfo")
	if err == nil {
		for line := range strings.Lines(string(text)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				r.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	if r.Sync, err = syncTime(dir); err != nil {
		return r, err
	}
	conn, err := pgx.Connect(ctx, postgres)
	if err != nil {
		return r, err
	}
	defer conn.Close(ctx)
	var all []string
	for _, name := range []string{"server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_sync_method", "shared_buffers", "max_wal_size", "checkpoint_timeout", "autovacuum_naptime"} {
		var value string
		if err := conn.QueryRow(ctx, "SELECT current_setting($1)", name).Scan(&value); err != nil {
			return r, err
		}
		if name == "server_version" {
			r.Postgres = value
			continue
		}
		all = append(all, name+" "+value)
	}
	r.Settings = strings.Join(all, ", ")
	return r, nil
}

// syncTime measures what the disk under dir takes to make 8 KiB last.
func syncTime(dir string) (float64, error) {
	f, err := os.CreateTemp(dir, "sync.")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var all []time.Duration
	for range 100 {
		if _, err := f.Write(make([]byte, 8<<10)); err != nil {
			return 0, err
		}
		began := time.Now()
		if err := f.Sync(); err != nil {
			return 0, err
		}
		all = append(all, time.Since(began))
	}
	slices.Sort(all)
	return milliseconds(quantile(all, 0.5)), nil
}

// load is the load average of the last minute, zero where it is not told.
func load() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	l, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0
	}
	return l
}

func (r *report) add(f figure) {
	r.Figures = append(r.Figures, f)
	fmt.Fprintf(os.Stderr, "  %s: %s %s %s\n", f.Name, f.value(), f.met(), f.Note)
}

// void names what counts for nothing.
func (r *report) void() error {
	var errs []error
	for _, f := range r.Figures {
		if f.Void != "" {
			errs = append(errs, fmt.Errorf("void: %s: %s", f.Name, f.Void))
		}
	}
	for _, w := range r.Workloads {
		for _, one := range r.Runs[w] {
			if one.Void != "" {
				errs = append(errs, fmt.Errorf("void: %s, %s, round %d: %s", w, one.title(), one.Round+1, one.Void))
			}
		}
	}
	return errors.Join(errs...)
}

func (r *report) machine() string {
	return fmt.Sprintf("%s, commit %s, %d cores of %s, %s; an fsync takes %.1f ms; load %.1f before the run, %.1f after; %.0f minutes. PostgreSQL %s on the same machine (%s); SQLite in WAL mode with synchronous FULL.",
		r.Date.Format("2006-01-02"), r.Commit, r.Cores, r.CPU, r.Go, r.Sync, r.Load, r.LoadAfter, r.Seconds/60, r.Postgres, r.Settings)
}

func (r *report) print(w io.Writer) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", r.machine())
	for _, t := range r.tables() {
		t.plain(&b)
	}
	fmt.Fprint(w, b.String())
}

func (r *report) writeJSON(path string) error {
	return os.WriteFile(path, encodeLines(struct {
		*report
		Targets []target `json:"targets"`
	}{r, r.reached()}), 0o644)
}

// encodeLines writes JSON for people.
func encodeLines(v any) []byte {
	out, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(err) // only of our own types
	}
	return append(out, '\n')
}

// writeDoc writes the tables into the document, between the marks of the target
// of make that was run.
func (r *report) writeDoc(path, target string) error {
	begin, end := fmt.Sprintf("<!-- written by make %s -->\n", target), fmt.Sprintf("<!-- end of make %s -->\n", target)
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(old), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return fmt.Errorf("%s: the marks are missing", path)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s\n%s\n\n", before, begin, r.machine())
	for _, t := range r.tables() {
		t.markdown(&b)
	}
	b.WriteString(end + after)
	return os.WriteFile(path, []byte(b.String()), 0o644)
}
