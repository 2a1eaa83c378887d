package dag

import (
	"slices"
	"strconv"
	"strings"
)

// kind is what a value is.
type kind uint8

const (
	null kind = iota
	boolean
	number
	text
	list
	object
	refused // complained about already; nothing more is said about it
)

// String names the kind in a complaint.
func (k kind) String() string {
	return [...]string{"empty", "true or false", "a number", "text", "a list", "a mapping", "refused"}[k]
}

// value is one value of a definition with its place in the text. Numbers keep
// the digits they were written with.
type value struct {
	kind      kind
	line, col int
	text      string   // of a scalar: the text, the number, true or false
	keys      []key    // of an object, in the order written; items are their values
	items     []*value // of a list or an object
}

type key struct {
	name      string
	line, col int
}

// get returns the member called name, or nil.
func (v *value) get(name string) *value {
	for i := range v.keys {
		if v.keys[i].name == name {
			return v.items[i]
		}
	}
	return nil
}

// depthCap bounds how deep lists and mappings may nest.
const depthCap = 64

// path is where a value stands in its definition. It is written out only for a
// complaint.
type path struct {
	up    *path
	name  string
	index int // of a list; name is empty
}

func (p *path) member(name string) *path { return &path{up: p, name: name} }
func (p *path) at(i int) *path           { return &path{up: p, index: i} }

func (p *path) String() string {
	if p == nil {
		return ""
	}
	s := p.up.String()
	switch {
	case p.name == "":
		return s + "[" + strconv.Itoa(p.index) + "]"
	case !plainName(p.name):
		return s + "[" + strconv.Quote(clip(p.name, 60)) + "]"
	case s == "":
		return p.name
	default:
		return s + "." + p.name
	}
}

// plainName reports whether s can follow a dot: letters, digits, _ and -,
// beginning with a letter or _.
func plainName(s string) bool {
	for i := range len(s) {
		if !nameByte(s[i], i == 0) {
			return false
		}
	}
	return s != ""
}

func nameByte(c byte, first bool) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' || !first && ('0' <= c && c <= '9' || c == '-')
}

// appendJSON writes v as canonical JSON: no white space, members sorted by the
// bytes of their names, numbers as they were written, strings escaped as little
// as RFC 8785 does.
func (v *value) appendJSON(b []byte) []byte {
	switch v.kind {
	case null:
		return append(b, "null"...)
	case boolean, number:
		return append(b, v.text...)
	case text:
		return appendString(b, v.text)
	case list:
		b = append(b, '[')
		for i, e := range v.items {
			if i > 0 {
				b = append(b, ',')
			}
			b = e.appendJSON(b)
		}
		return append(b, ']')
	default:
		b = append(b, '{')
		for n, i := range v.sorted() {
			if n > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, v.keys[i].name), ':')
			b = v.items[i].appendJSON(b)
		}
		return append(b, '}')
	}
}

// sorted returns the indexes of v's members in the order of their names.
func (v *value) sorted() []int {
	idx := make([]int, len(v.keys))
	for i := range idx {
		idx[i] = i
	}
	slices.SortFunc(idx, func(a, b int) int { return strings.Compare(v.keys[a].name, v.keys[b].name) })
	return idx
}

// appendString writes s as a JSON string.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	b = appendEscaped(b, s)
	return append(b, '"')
}

// appendEscaped writes s as the inside of a JSON string.
func appendEscaped[T ~string | ~[]byte](b []byte, s T) []byte {
	const hex = "0123456789abcdef"
	from := 0
	for i := range len(s) {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\b':
			b = append(b, '\\', 'b')
		case '\t':
			b = append(b, '\\', 't')
		case '\n':
			b = append(b, '\\', 'n')
		case '\f':
			b = append(b, '\\', 'f')
		case '\r':
			b = append(b, '\\', 'r')
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(b, s[from:]...)
}

// clip shortens s to at most n bytes for a complaint, at a rune's edge.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n] + "…"
}
