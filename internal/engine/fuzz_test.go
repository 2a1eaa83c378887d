package engine

import (
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/drover-dev/drover"
)

// FuzzArtifactName checks anything as the name of an artifact: one that is taken
// stays below the folder it is unpacked into, on any system.
func FuzzArtifactName(f *testing.F) {
	for _, s := range []string{"a", "a/b.txt", "../a", "/a", "a/../b", "a//b", ".", "", `..\\a`, "a\x00", "C:a", "\xff", "a/.", "…"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if checkArtifact(&drover.Artifact{Name: name}) != nil {
			return
		}
		if name == "" || !utf8.ValidString(name) || strings.ContainsAny(name, "\\\x00\n\r") || !filepath.IsLocal(name) || filepath.Clean(name) != name {
			t.Errorf("%q is taken", name)
		}
		const dir = "/base/dir"
		if got := filepath.Join(dir, name); !strings.HasPrefix(got, dir+"/") {
			t.Errorf("%q lands in %s", name, got)
		}
	})
}

// FuzzStoredText cuts and clears anything that is kept for people to read.
func FuzzStoredText(f *testing.F) {
	f.Add("a\x00b\xff", 20)
	f.Add(strings.Repeat("ä", 50), 33)
	f.Fuzz(func(t *testing.T, s string, n int) {
		n = min(max(n, 16), 10_000)
		got := cutAt(s, n)
		if len(got) > n || !utf8.ValidString(got) || strings.ContainsRune(got, 0) {
			t.Errorf("%q cut at %d is %q", s, n, got)
		}
		// What is stored of a failure is read again.
		b := encodeFailure(&drover.Failure{Class: drover.ClassRetryable, Message: s, Type: s, Stack: s})
		if x := decodeFailure(b); x == nil || x.Class != drover.ClassRetryable || !utf8.ValidString(x.Message) {
			t.Errorf("%q is stored as %s, which is read as %+v", s, b, x)
		}
		_ = decodeFailure([]byte(s))
		_ = termsOf([]byte(s))
	})
}
