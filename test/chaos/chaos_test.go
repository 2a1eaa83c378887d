package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/drover-dev/drover/internal/store/storetest"
)

// Built once: the server's program and the checker; and the root of the checkout.
var droverBin, checkerBin, repo string

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" { // this process is a worker that a test has started
		if err := workerMain(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) { // nobody has said otherwise
		must(f.Value.Set("4")) // they wait more than they work
	}
	os.Exit(around(m))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func around(m *testing.M) int {
	dir, err := os.MkdirTemp("", "drover-chaos-bin-")
	if err == nil {
		defer os.RemoveAll(dir)
		repo, err = filepath.Abs("../..")
	}
	if err == nil {
		droverBin, checkerBin, err = programs(context.Background(), repo, dir, false)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// place is a folder of a run; it stays, and is named, when the test fails.
func place(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "drover-chaos-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("journals and logs are in %s", dir)
		} else if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// A small chaos run on each database: nothing accepted is lost, nothing succeeds
// twice, late reports are refused. make chaos is the big one.
func TestNothingIsLostInASmallStorm(t *testing.T) {
	t.Parallel()
	for _, database := range storetest.Drivers(t) {
		t.Run(database, func(t *testing.T) {
			t.Parallel()
			p := gust(database)
			p.dir, p.bin, p.checker, p.tools = place(t), droverBin, checkerBin, filepath.Join(repo, "tools")
			if err := p.run(t.Context(), t.Logf); err != nil {
				t.Error(err)
			}
		})
	}
}

// all goes through every crash point in every way on each database. Otherwise they
// share the points.
var all = flag.Bool("chaos.all", false, "every crash point in every way")

// some goes through those points alone whose name it fits.
var some = flag.String("chaos.points", "", "with -chaos.all: crash points with a name that this regular expression fits")

// A server that breaks before or after any kind of commit, or between what it did
// and the answer, and is started again: all work ends, and nothing is done twice.
func TestServerThatBreaksAnywhereLosesNothing(t *testing.T) {
	t.Parallel()
	drivers := storetest.Drivers(t)
	for _, database := range drivers {
		t.Run(database, func(t *testing.T) {
			t.Parallel()
			p := gust(database)
			p.lease, p.workers, p.rude, p.pace = time.Second, 3, 0, 150*time.Millisecond
			p.dir, p.bin, p.checker, p.tools = place(t), droverBin, checkerBin, filepath.Join(repo, "tools")
			list := breakages(*all, func(i int) bool { return len(drivers) == 1 || (i%3 == 0) == (database == "postgres") })
			name, err := regexp.Compile(*some)
			if err != nil {
				t.Fatal(err)
			}
			list = slices.DeleteFunc(list, func(b breakage) bool { return !name.MatchString(b.Name) })
			if err := p.sweep(t.Context(), list, t.Logf); err != nil {
				t.Error(err)
			}
		})
	}
}
