package dag

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"unicode"
	"unicode/utf8"
)

// Bounds of what a task asks for beside a free slot.
const (
	MaxPermits  = 1_000_000_000 // of one limit
	maxResource = 1 << 53       // of one
	maxAsks     = 16            // of each sort
	maxAskBytes = 1500          // of all of it as it is stored, where it is part of a key
)

// Asks are what a task takes of limits and asks of its worker.
type Asks struct {
	// Key is its concurrency key; of a task of a pipeline it is known once it may run.
	Key string `json:"key,omitempty"`
	// Limits are the named limits that it takes, and how much of each.
	Limits map[string]int64 `json:"limits,omitempty"`
	// WorkerLabels are those that its worker must have.
	WorkerLabels map[string]string `json:"labels,omitempty"`
	// Resources are what it takes of its worker beside a slot.
	Resources map[string]int64 `json:"requests,omitempty"`
}

// Empty says that it asks for nothing.
func (a *Asks) Empty() bool {
	return a.Key == "" && len(a.Limits)+len(a.Resources)+len(a.WorkerLabels) == 0
}

// Encode writes them as they are stored: canonical JSON, and nothing is empty.
func (a *Asks) Encode() string {
	if a.Empty() {
		return ""
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if enc.Encode(a) != nil { // strings and numbers; keys come sorted
		return ""
	}
	return string(bytes.TrimRight(b.Bytes(), "\n"))
}

// wholeNumber is what an amount must be.
const wholeNumber = "this must be a whole number from 1 to %d"

// Check says what is wrong with them, but for the key by itself: of which of limits,
// resources and worker_labels, and of which name in it, if it is about one.
func (a *Asks) Check(say func(key, name, problem string)) {
	few := func(key string, n int) bool {
		if n > maxAsks {
			say(key, "", fmt.Sprintf("%d of them; at most %d", n, maxAsks))
		}
		return n <= maxAsks
	}
	amounts := func(key, what string, m map[string]int64, most int64) bool {
		if !few(key, len(m)) {
			return false
		}
		for _, name := range slices.Sorted(maps.Keys(m)) {
			if !ValidName(name) {
				say(key, name, fmt.Sprintf("%q is not a name for %s; %s", clip(name, 80), what, nameRule))
			}
			if n := m[name]; n < 1 || n > most {
				say(key, name, fmt.Sprintf(wholeNumber+", and is %d", most, n))
			}
		}
		return true
	}
	fits := amounts("limits", "a limit", a.Limits, MaxPermits)
	fits = amounts("resources", "a resource", a.Resources, maxResource) && fits
	fits = few("worker_labels", len(a.WorkerLabels)) && fits
	if !fits {
		return
	}
	for _, k := range slices.Sorted(maps.Keys(a.WorkerLabels)) {
		if s := a.WorkerLabels[k]; k == "" || len(k) > 63 || len(s) > 255 || !plain(k) || !plain(s) {
			say("worker_labels", k, fmt.Sprintf("%q: a label has 1 to 63 bytes and its value at most 255, of valid UTF-8 without control characters", clip(k, 80)))
		}
	}
	if n := len(a.Encode()); n > maxAskBytes {
		longest, most := "", 0
		for key, part := range map[string]Asks{"limits": {Limits: a.Limits}, "resources": {Resources: a.Resources}, "worker_labels": {WorkerLabels: a.WorkerLabels}} {
			if k := len(part.Encode()); k > most || k == most && key < longest {
				longest, most = key, k
			}
		}
		say(longest, "", fmt.Sprintf("limits, resources, worker_labels and the concurrency key take %d bytes together; at most %d: use fewer names or shorter ones", n, maxAskBytes))
	}
}

// amounts reads a mapping of names to whole numbers.
func (r reader) amounts(v *value, at *path, what, example string, most int64) map[string]int64 {
	if v.kind != object {
		r.at(v, at, "this maps the name of %s to how much of it, as in {%s: 1}; it is %s", what, example, v.kind)
		return nil
	}
	m := map[string]int64{}
	for i, k := range v.keys {
		item := v.items[i]
		n, err := strconv.ParseInt(item.text, 10, 64)
		if item.kind != number || err != nil {
			r.at(item, at.member(k.name), wholeNumber+", and is %s", most, item.shown())
			n = 1 // that much is said
		}
		m[k.name] = n
	}
	return m
}

// pairs reads a mapping of short texts to short texts.
func (r reader) pairs(v *value, at *path) map[string]string {
	if v.kind != object {
		r.at(v, at, "this maps labels to values, as in {zone: eu}; it is %s", v.kind)
		return nil
	}
	m := map[string]string{}
	for i, k := range v.keys {
		m[k.name], _ = r.text(v.items[i], at.member(k.name))
	}
	return m
}

// asks checks what a task asks for, where it says so.
func (r reader) asks(a *Asks, v *value, at *path) {
	a.Check(func(key, name, problem string) {
		v, at := v.get(key), at.member(key)
		if name != "" {
			v, at = v.get(name), at.member(name)
		}
		r.at(v, at, "%s", problem)
	})
}

func plain(s string) bool {
	for _, c := range s {
		if unicode.IsControl(c) {
			return false
		}
	}
	return utf8.ValidString(s)
}
