package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

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
	os.Exit(around(m))
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
