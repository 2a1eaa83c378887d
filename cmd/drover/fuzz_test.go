package main

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzSettings reads anything as drover.yaml: settings it knows, or a complaint
// that names the file.
func FuzzSettings(f *testing.F) {
	for _, s := range []string{"", "http_addr: 127.0.0.1:8420\n", "queues: [a, b]\n", "nonsense: 1\n", "- a\n", "http_addr: {a: b}\n", "a: &a [*a]\n", "\t", "http_addr: !!binary x\n", "? [a]\n: b\n"} {
		f.Add([]byte(s))
	}
	path := filepath.Join(f.TempDir(), "drover.yaml")
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		a := &app{config: path, env: func(string) string { return "" }}
		root := a.root()
		got, err := a.serverFile(root)
		if err != nil {
			if err.Error() == "" {
				t.Error("a complaint without words")
			}
			return
		}
		known := map[string]bool{}
		for _, k := range fileKeys(root) {
			known[k] = true
		}
		for k := range got {
			if !known[k] {
				t.Errorf("%q sets %q", b, k)
			}
		}
	})
}
