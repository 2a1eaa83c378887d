package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryFaultHasATestThatExists: a name in the table is a test in the tree.
func TestEveryFaultHasATestThatExists(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, f := range faults {
		if seen[f.name] {
			t.Errorf("%s is there twice", f.name)
		}
		seen[f.name] = true
		if (len(f.tests) == 0) == (f.why == "") {
			t.Errorf("%s: name its tests, or say why it does not apply", f.name)
		}
		for _, name := range f.tests {
			pkg, fn, _ := strings.Cut(name, " ")
			files, err := filepath.Glob(filepath.Join("..", "..", pkg, "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			found := false
			for _, file := range files {
				src, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				found = found || strings.Contains(string(src), "\nfunc "+fn+"(t *testing.T)")
			}
			if !found {
				t.Errorf("%s: there is no %s in %s", f.name, fn, pkg)
			}
		}
	}
}
