package lifecycle

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/drover-dev/drover"
)

func TestShapeLeavesOutWhatChanges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ message, want string }{
		{"", ""},
		{"disk full", "disk full"},
		{"  disk \n\t full ", "disk full"},
		{"segment 12 of 40 failed after 3.5s", "segment # of # failed after #s"},
		{"exit status 65", "exit status #"},
		{"got -3, want +4", "got #, want #"},
		{"loss is 1.5e-10", "loss is #"},
		{"1,234,567 rows", "# rows"},
		{"dial tcp 10.0.0.7:5432: connect: connection refused", "dial tcp #:#: connect: connection refused"},
		{"no such key: 8f14e45fceea167a5a36dedd4bea2543", "no such key: #"},
		{"no such key: 12345678", "no such key: #"},
		{"commit 9fceb02 is not there", "commit # is not there"},
		{"the facade is dead", "the facade is dead"},
		{"object 550e8400-e29b-41d4-a716-446655440000 is gone", "object # is gone"},
		{"task_01ARZ3NDEKTSV4RRFFQ69G5FAV of job_01ARZ3NDEKTSV4RRFFQ69G5FAW", "# of #"},
		{"panic at 0xc000123abc", "panic at #"},
		{"since 2026-01-31T15:04:05.123Z nothing came", "since <time> nothing came"},
		{"since 2026-01-31 15:04:05,123+01:00 nothing came", "since <time> nothing came"},
		{"at 15:04:05.1 and on 2026-01-31", "at <time> and on <time>"},
		{`open "a b.mp4": no such file`, "open <text>: no such file"},
		{`field "a\"b" is missing`, "field <text> is missing"},
		{"column `x` and 'y z' and that's all, isn't it", "column <text> and <text> and that's all, isn't it"},
		{"open /data/in/7.mp4: no such file or directory", "open <path>: no such file or directory"},
		{`open C:\data\in.mp4: denied`, `open <path>: denied`},
		{"and/or 5/7", "and/or #/#"},
		{"GET https://example.com/a?b=1: 502 Bad Gateway", "GET <path> # Bad Gateway"},
		{"worker-17 took sha256 of part3", "worker-# took sha# of part#"},
		{"读取第 12 段失败", "读取第 # 段失败"},
	} {
		if got := Shape(c.message); got != c.want {
			t.Errorf("shape of %q:\n got %q\nwant %q", c.message, got, c.want)
		}
	}
}

func TestFingerprintTellsPlacesAndFaultsApart(t *testing.T) {
	t.Parallel()
	base := Flaw{Pipeline: "ingest", Node: "extract", Class: drover.ClassRetryable, Type: "exit_1", Message: "segment 12 is broken"}
	is := Fingerprint(base)
	if !regexp.MustCompile(`^[0-9a-f]{16}$`).MatchString(is) {
		t.Errorf("fingerprint %q is not 16 hexadecimal digits", is)
	}
	same := base
	same.Message = "segment 7 is broken"
	if got := Fingerprint(same); got != is {
		t.Errorf("another number gives another fingerprint: %s, %s", got, is)
	}
	for what, f := range map[string]Flaw{
		"pipeline":    {"other", base.Node, base.Class, base.Type, base.Message},
		"no pipeline": {"", base.Node, base.Class, base.Type, base.Message},
		"node":        {base.Pipeline, "decode", base.Class, base.Type, base.Message},
		"class":       {base.Pipeline, base.Node, drover.ClassPermanent, base.Type, base.Message},
		"type":        {base.Pipeline, base.Node, base.Class, "exit_2", base.Message},
		"message":     {base.Pipeline, base.Node, base.Class, base.Type, "segment 12 is missing"},
		"borders":     {"ingestextract", "", base.Class, base.Type, base.Message},
	} {
		if Fingerprint(f) == is {
			t.Errorf("another %s gives the same fingerprint", what)
		}
	}
	// It is stored: a change of the rule splits the groups there are, and must be meant.
	if want := "66e20544dcb9e2cc"; is != want {
		t.Errorf("the fingerprint is %s, it was %s", is, want)
	}
}

// TestShapeHoldsWhateverTheMessage: a shape is valid, bounded and without digits,
// and does not depend on the numbers, ids and names in the message.
func TestShapeHoldsWhateverTheMessage(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		for range rapid.IntRange(0, 12).Draw(t, "parts") {
			b.WriteString(rapid.OneOf(
				rapid.String(),
				rapid.SampledFrom([]string{" ", ": ", "'", "\"", "`", "/", "\\", "<text>", "#", "-", "0x", "e", "2026-01-31", "12:00:00", "\x00", "\xff", "a/b/", "http://"}),
				rapid.StringMatching(`[0-9a-fA-F]{1,40}`),
			).Draw(t, "part"))
		}
		message := b.String()
		s := Shape(message)
		if !utf8.ValidString(s) || len(s) > maxShape || strings.ContainsAny(s, "0123456789\x00") {
			t.Fatalf("shape of %q is %q", message, s)
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) string {
			number := rapid.IntRange(-1e9, 1e9)
			return fmt.Sprintf("read %q at %s: part %d of %d is broken (object %x, %d bytes, after %s)",
				rapid.StringMatching(`[a-z0-9 ]{0,20}`).Draw(t, name), "/data/"+rapid.StringMatching(`[a-z0-9/.]{1,20}`).Draw(t, name), number.Draw(t, name), number.Draw(t, name),
				rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, name), number.Draw(t, name), rapid.StringMatching(`20[0-9]{2}-0[1-9]-1[0-9]T0[0-9]:00:00(\.[0-9]{1,6})?Z`).Draw(t, name))
		}
		a, b := draw("a"), draw("b")
		if x, y := Shape(a), Shape(b); x != y {
			t.Fatalf("the same fault has two shapes:\n%q of %q\n%q of %q", x, a, y, b)
		}
	})
}
