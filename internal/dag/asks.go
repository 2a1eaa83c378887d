package dag

import (
	"strconv"
	"unicode"
	"unicode/utf8"
)

// What a task asks for beside a free slot.
const (
	maxAsks  = 16      // of each sort
	mostAsks = 1 << 53 // of one
)

// Asks are what a task takes of limits and asks of its worker.
type Asks struct {
	// Limits are the named limits that it takes, and how much of each.
	Limits map[string]int64
	// Resources are what it takes of its worker beside a slot.
	Resources map[string]int64
	// WorkerLabels are those that its worker must have.
	WorkerLabels map[string]string
}

// Empty says that it asks for nothing.
func (a *Asks) Empty() bool { return len(a.Limits)+len(a.Resources)+len(a.WorkerLabels) == 0 }

// amounts reads a mapping of names to whole numbers from 1 on.
func (r reader) amounts(v *value, at *path, what string) map[string]int64 {
	if v.kind != object {
		r.at(v, at, "this maps the name of %s to how much of it, as in {%s: 1}; it is %s", what, exampleOf(what), v.kind)
		return nil
	}
	if len(v.keys) > maxAsks {
		r.at(v, at, "%d of them; at most %d", len(v.keys), maxAsks)
	}
	m := map[string]int64{}
	for i, k := range v.keys {
		item, at := v.items[i], at.member(k.name)
		if !ValidName(k.name) {
			r.at(item, at, "%q is not a name for %s; %s", clip(k.name, 80), what, nameRule)
		}
		n, err := strconv.ParseInt(item.text, 10, 64)
		if item.kind != number || err != nil || n < 1 || n > mostAsks {
			r.at(item, at, "this must be a whole number from 1 on")
			continue
		}
		m[k.name] = n
	}
	return m
}

func exampleOf(what string) string {
	if what == "a limit" {
		return "vendor-model"
	}
	return "gpu"
}

// pairs reads a mapping of short texts to short texts.
func (r reader) pairs(v *value, at *path) map[string]string {
	if v.kind != object {
		r.at(v, at, "this maps labels to values, as in {zone: eu}; it is %s", v.kind)
		return nil
	}
	if len(v.keys) > maxAsks {
		r.at(v, at, "%d of them; at most %d", len(v.keys), maxAsks)
	}
	m := map[string]string{}
	for i, k := range v.keys {
		item, at := v.items[i], at.member(k.name)
		s, ok := r.text(item, at)
		if ok && (k.name == "" || len(k.name) > 63 || len(s) > 255 || !plain(k.name) || !plain(s)) {
			r.at(item, at, "a label has 1 to 63 bytes and its value at most 255, of valid UTF-8 without control characters")
		}
		m[k.name] = s
	}
	return m
}

func plain(s string) bool {
	for _, c := range s {
		if unicode.IsControl(c) {
			return false
		}
	}
	return utf8.ValidString(s)
}
