package main

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTenThousandFilesAreCounted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var out strings.Builder
	got, err := run(t.Context(), &out, dir, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	want := Counts{}
	files, err := filepath.Glob(filepath.Join(dir, "texts", "*.txt"))
	if err != nil || len(files) != 10_000 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for word := range strings.FieldsSeq(string(text)) {
			want[word]++
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
	if !strings.HasPrefix(out.String(), "10002 tasks in ") || !strings.Contains(out.String(), "\n  queue ") {
		t.Errorf("the example says:\n%s", out.String())
	}
	t.Log(out.String())
}

func TestNoFilesAreNoWords(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if got, err := run(t.Context(), &out, t.TempDir(), 0); err != nil || len(got) != 0 {
		t.Errorf("counted %v, %v", got, err)
	}
}
