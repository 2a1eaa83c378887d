// Command mutants plants known bugs in a copy of the tree, one at a time, and
// sees that the tests find each. A bug is a patch in this folder; its first
// lines say what must kill it:
//
//	killed-by: sim
//	killed-by: go PACKAGES TESTS        (with go test -run TESTS, on PostgreSQL too)
//	what: the bug, in a line
//
// A patch that does not apply any more is an error, and so is one whose tree
// does not build.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

type mutant struct {
	name, killer, what, path string
}

// figures are what a run leaves for docs/reliability.md.
type figures struct {
	Planted       int    `json:"planted"`
	Killed        int    `json:"killed"`
	MedianSeeds   int    `json:"median_seeds"`
	MostSeeds     int    `json:"most_seeds"`
	MedianSeconds string `json:"median_time"`
	Mutants       []line `json:"mutants"`
}

type line struct {
	Bug      string `json:"bug"`
	KilledBy string `json:"killed_by"`
	Effort   string `json:"effort"`
}

// outcome is what became of a mutant.
type outcome struct {
	killed bool
	seeds  int // until the simulation found it
	took   time.Duration
	how    string
	effort string
}

func main() {
	seeds := flag.Int("seeds", 2000, "how many seeds the simulation may take for each")
	only := flag.String("only", "", "only mutants whose name or killer matches this expression")
	list := flag.Bool("list", false, "list the mutants and what kills them")
	file := flag.String("figures", "", "write the figures to this file, as JSON")
	flag.Parse()
	if err := run(context.Background(), *seeds, *only, *file, *list); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, seeds int, only, file string, list bool) error {
	root, err := output(ctx, ".", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	root = strings.TrimSpace(root)
	all, err := read(filepath.Join(root, "test", "mutants"), only)
	if err != nil {
		return err
	}
	if list {
		for _, m := range all {
			fmt.Printf("%-28s %s\n%-28s killed by %s\n", m.name, m.what, "", m.killer)
		}
		return nil
	}
	dir, err := os.MkdirTemp("", "drover-mutants-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := copyTree(ctx, root, dir); err != nil {
		return fmt.Errorf("copy the tree: %w", err)
	}
	f := figures{Planted: len(all)}
	var found []int
	var times []time.Duration
	killed := 0
	var errs []error
	for _, m := range all {
		o, err := try(ctx, dir, m, seeds)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", m.name, err))
			fmt.Printf("%-28s ERROR %v\n", m.name, err)
			continue
		}
		if o.killed {
			killed++
			times = append(times, o.took)
			how, _, _ := strings.Cut(m.killer, " ")
			f.Mutants = append(f.Mutants, line{m.what, map[string]string{"sim": "the simulation", "go": "tests on PostgreSQL"}[how], o.effort})
			if o.seeds > 0 {
				found = append(found, o.seeds)
			}
		} else {
			errs = append(errs, fmt.Errorf("%s lives: %s", m.name, m.what))
		}
		fmt.Printf("%-28s %s\n", m.name, o.how)
	}
	fmt.Printf("mutants killed: %d/%d", killed, len(all))
	if len(found) > 0 {
		fmt.Printf("; by the simulation %d, median %d seeds, at most %d", len(found), median(found), slices.Max(found))
	}
	if len(times) > 0 {
		fmt.Printf("; median %v", median(times).Round(100*time.Millisecond))
	}
	fmt.Println()
	f.Killed = killed
	if len(found) > 0 {
		f.MedianSeeds, f.MostSeeds = median(found), slices.Max(found)
	}
	if len(times) > 0 {
		f.MedianSeconds = median(times).Round(100 * time.Millisecond).String()
	}
	if file != "" && len(errs) == 0 {
		errs = append(errs, save(file, &f))
	}
	return errors.Join(errs...)
}

func save(path string, f *figures) error {
	b, err := json.MarshalIndent(f, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err == nil {
		err = os.WriteFile(path, append(b, '\n'), 0o600)
	}
	return err
}

func median[T cmp.Ordered](list []T) T {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

// read reads the patches of a folder.
func read(dir, only string) (all []mutant, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.patch"))
	if err != nil {
		return nil, err
	}
	match, err := regexp.Compile(only)
	if err != nil {
		return nil, err
	}
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			return nil, err
		}
		m := mutant{name: strings.TrimSuffix(filepath.Base(p), ".patch"), path: p}
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, "killed-by: "); ok {
				m.killer = strings.TrimSpace(v)
			} else if v, ok := strings.CutPrefix(line, "what: "); ok {
				m.what = strings.TrimSpace(v)
			} else if strings.HasPrefix(line, "diff ") {
				break
			}
		}
		if m.killer == "" || m.what == "" {
			return nil, fmt.Errorf("%s does not say what it is and what kills it", p)
		}
		if match.MatchString(m.name) || only != "" && match.MatchString(m.killer) {
			all = append(all, m)
		}
	}
	if len(all) == 0 {
		return nil, errors.New("there are none")
	}
	return all, nil
}

// copyTree copies what git knows of, as it is in the working folder.
func copyTree(ctx context.Context, root, dir string) error {
	files, err := output(ctx, root, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(strings.TrimRight(files, "\x00"), "\x00") {
		b, err := os.ReadFile(filepath.Join(root, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted and not committed
		}
		if err == nil {
			err = os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// try plants a mutant, runs what must kill it, and takes it out again.
func try(ctx context.Context, dir string, m mutant, seeds int) (o outcome, err error) {
	if out, err := output(ctx, dir, "git", "apply", m.path); err != nil {
		return o, fmt.Errorf("does not apply: %w: %s", err, out)
	}
	defer func() {
		if out, rerr := output(ctx, dir, "git", "apply", "--reverse", m.path); rerr != nil {
			err = errors.Join(err, fmt.Errorf("cannot be taken out: %w: %s", rerr, out))
		}
	}()
	began := time.Now()
	how, rest, _ := strings.Cut(m.killer, " ")
	switch how {
	case "sim":
		o, err = simulate(ctx, dir, seeds)
	case "go":
		o, err = test(ctx, dir, rest)
	default:
		err = fmt.Errorf("nothing is called %q", how)
	}
	o.took = time.Since(began)
	return o, err
}

var nth = regexp.MustCompile(`seed (0x[0-9a-f]+), the (\d+)th: (.*)`)

func simulate(ctx context.Context, dir string, seeds int) (o outcome, err error) {
	began := time.Now()
	out, err := output(ctx, dir, "go", "test", "./test/sim", "-run", "TestSeeds", "-count=1", "-timeout=60m", "-hunt", "-seeds="+strconv.Itoa(seeds))
	found := nth.FindStringSubmatch(out)
	switch {
	case err == nil:
		o.how = fmt.Sprintf("LIVES after %d seeds, %v", seeds, time.Since(began).Round(time.Second))
		return o, nil
	case found == nil:
		return o, fmt.Errorf("%w: %s", err, tail(out))
	}
	o.killed = true
	o.seeds, err = strconv.Atoi(found[2])
	o.how = fmt.Sprintf("killed by seed %s, the %dth: %.110s", found[1], o.seeds, found[3])
	o.effort = fmt.Sprintf("%d seeds", o.seeds)
	return o, err
}

var failed = regexp.MustCompile(`--- FAIL: (\S+)`)

func test(ctx context.Context, dir, rest string) (o outcome, err error) {
	packages, pattern, ok := strings.Cut(rest, " ")
	if !ok {
		return o, fmt.Errorf("%q names no test", rest)
	}
	if os.Getenv("DROVER_TEST_POSTGRES") == "" {
		return o, errors.New("DROVER_TEST_POSTGRES is not set; make mutants sets it")
	}
	began := time.Now()
	for range 5 { // a race may need a second try
		out, err := output(ctx, dir, "go", "test", packages, "-run", pattern, "-count=1", "-timeout=5m")
		if err == nil {
			continue
		}
		f := failed.FindStringSubmatch(out)
		if f == nil && !strings.Contains(out, "panic: ") || strings.Contains(out, "[build failed]") {
			return o, fmt.Errorf("%w: %s", err, tail(out))
		}
		o.killed = true
		o.effort = time.Since(began).Round(100 * time.Millisecond).String()
		o.how = fmt.Sprintf("killed by %s in %v", strings.Join(f[min(1, len(f)):], ""), time.Since(began).Round(100*time.Millisecond))
		return o, nil
	}
	o.how = fmt.Sprintf("LIVES, %v", time.Since(began).Round(time.Second))
	return o, nil
}

func tail(s string) string {
	if len(s) > 2000 {
		s = "… " + s[len(s)-2000:]
	}
	return s
}

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	var b bytes.Buffer
	c := exec.CommandContext(ctx, name, args...)
	c.Dir, c.Stdout, c.Stderr = dir, &b, &b
	err := c.Run()
	return b.String(), err
}
