package executor

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestShelterIsThereWhileSomebodyIsInIt(t *testing.T) {
	t.Parallel()
	s := shelter{temp: t.TempDir()}
	first, leaveFirst, err := s.enter()
	if err != nil {
		t.Fatal(err)
	}
	second, leaveSecond, err := s.enter()
	if err != nil || second != first {
		t.Fatalf("the second is in %s, %v; want %s", second, err, first)
	}
	leaveFirst()
	if _, err := os.Stat(first); err != nil {
		t.Errorf("after the first has left: %v", err)
	}
	leaveSecond()
	if left, err := os.ReadDir(s.temp); err != nil || len(left) > 0 {
		t.Errorf("after the last has left: %v, %v", left, err)
	}
	third, leave, err := s.enter()
	if err != nil || third == first {
		t.Errorf("the next is in %s, %v; want a new folder", third, err)
	}
	leave()
}

func TestSweepTakesOnlyWhatNobodyHolds(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	live := shelter{temp: temp}
	held, leave, err := live.enter()
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	// As processes leave them that were killed: with the lock file, without it when a
	// sweep was cut off, with a folder that cannot be read.
	for _, name := range []string{"drover-run-1/task-1/work/deep", "drover-run-2/task-1", "drover-run-3/task-1/work", ".drover-run-4", ".drover-run-5", ".drover-run-6", "other/task-1"} {
		if err := os.MkdirAll(filepath.Join(temp, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"drover-run-1/lock", "drover-run-1/task-1/work/file", "drover-run-3/lock", ".drover-run-6/lock"} { // 4 and 6 were cut off while they were made
		if err := os.WriteFile(filepath.Join(temp, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(temp, "drover-run-3/task-1"), 0); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".drover-run-4", ".drover-run-6"} { // 5 is being made right now
		if err := os.Chtimes(filepath.Join(temp, name), time.Time{}, time.Now().Add(-2*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	elsewhere := t.TempDir()
	if err := os.Symlink(elsewhere, filepath.Join(temp, "drover-run-link")); err != nil {
		t.Fatal(err)
	}
	sweep(temp)
	left, err := os.ReadDir(temp)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range left {
		names = append(names, d.Name())
	}
	want := []string{".drover-run-5", filepath.Base(held), "drover-run-link", "other"}
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Errorf("left %q, want %q", names, want)
	}
	if _, err := os.Stat(elsewhere); err != nil {
		t.Errorf("the sweep followed a link: %v", err)
	}
	sweep(filepath.Join(temp, "no such folder"))
}
