package lifecycle

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/drover-dev/drover"
)

// Flaw is what went wrong with a task, as far as it tells one kind of fault from
// another.
type Flaw struct {
	// Pipeline and Node are where; of a Kind job Pipeline is empty and Node its kind.
	Pipeline, Node string
	Class          drover.ErrorClass
	Type           string
	Message        string
}

// Fingerprint names the kind of a fault: 16 hexadecimal digits, the beginning of
// a SHA-256. Faults at the same place, of the same class and type, whose messages
// differ only in what Shape leaves out have the same one.
func Fingerprint(f Flaw) string {
	h := sha256.New()
	for _, s := range []string{"1", f.Pipeline, f.Node, string(f.Class), f.Type, Shape(f.Message)} {
		h.Write([]byte(strings.ReplaceAll(s, "\x00", "")))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// Bounds of a message's shape: what lies behind them tells nothing apart.
const (
	maxShapeOf = 1000
	maxShape   = 300
)

// shaping is what a message's shape leaves out, in this order.
var shaping = []struct {
	find *regexp.Regexp
	by   string
	long int // only what is at least so long
}{
	{regexp.MustCompile("\"(?:[^\"\\\\\n]|\\\\.){0,300}\""), "<text>", 0},
	{regexp.MustCompile("`[^`\n]{0,300}`"), "<text>", 0},
	{regexp.MustCompile(`(^|[^\pL\pN])'[^'\n]{0,300}'`), "$1<text>", 0},
	{regexp.MustCompile(`(?i)\b[a-z][a-z0-9+.-]*://[^\s"'<>)\]]+`), "<path>", 0},
	{regexp.MustCompile(`(^|[\s(=:,\[])(?:~|\.{1,2}|[A-Za-z]:)?[/\\][^\s"'<>:,;)\]]+`), "$1<path>", 0},
	{regexp.MustCompile(`(?i)\b\d{4}-\d\d-\d\d(?:[t ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?z|[+-]\d\d:?\d\d)?)?\b`), "<time>", 0},
	{regexp.MustCompile(`\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b`), "<time>", 0},
	{regexp.MustCompile(`(^|[\s(=:,\[])[+-](\d)`), "$1$2", 0},
	{regexp.MustCompile(`(?i)\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`), "#", 0},
	{regexp.MustCompile(`(?i)\b(?:[a-z]+_)?[0-7][0-9a-hjkmnp-tv-z]{25}\b`), "#", 0},
	{regexp.MustCompile(`(?i)\b0x[0-9a-f]+\b`), "#", 0},
	{regexp.MustCompile(`(?i)\b[0-9a-f]{16,}\b`), "#", 0},
	{regexp.MustCompile(`(?i)\b[0-9a-f]*[0-9][0-9a-f]*\b`), "#", 7}, // an id, if it is long enough
	{regexp.MustCompile(`\d+(?:[.,_]\d+)*(?:[eE][+-]?\d+)?`), "#", 0},
}

// Shape returns a message without what changes from one failure to the next:
// quoted text, paths and addresses, times, ids and numbers.
func Shape(message string) string {
	s := message
	if len(s) > maxShapeOf {
		s = s[:maxShapeOf]
	}
	s = strings.Join(strings.Fields(strings.ReplaceAll(strings.ToValidUTF8(s, ""), "\x00", "")), " ")
	for _, r := range shaping {
		if r.long == 0 {
			s = r.find.ReplaceAllString(s, r.by)
			continue
		}
		s = r.find.ReplaceAllStringFunc(s, func(w string) string {
			if len(w) < r.long {
				return w
			}
			return r.by
		})
	}
	if s = strings.TrimSpace(s); len(s) > maxShape {
		s = strings.TrimSpace(strings.ToValidUTF8(s[:maxShape], ""))
	}
	return s
}
