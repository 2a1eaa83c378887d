package dag

import (
	"fmt"
	"strings"
	"testing"
)

// TestWhatATaskAsksForIsBounded: each amount, each name, and all of it together, as it
// is part of a key; the complaint has its place and what would be right.
func TestWhatATaskAsksForIsBounded(t *testing.T) {
	t.Parallel()
	const head = "pipeline: p\ntasks:\n  a: {run: x, "
	long := func(n, bytes int) string {
		var s []string
		for i := range n {
			s = append(s, fmt.Sprintf("zone-%02d: %s", i, strings.Repeat("x", bytes)))
		}
		return strings.Join(s, ", ")
	}
	for _, tc := range []struct{ src, want string }{
		{"limits: [vendor]}\n", "3:23 tasks.a.limits: this maps the name of a limit to how much of it, as in {vendor-model: 1}; it is a list"},
		{"resources: 1}\n", "3:26 tasks.a.resources: this maps the name of a resource to how much of it, as in {gpu: 1}; it is a number"},
		{"limits: {v: 0}}\n", "3:27 tasks.a.limits.v: this must be a whole number from 1 to 1000000000, and is 0"},
		{"limits: {v: 1000000001}}\n", "3:27 tasks.a.limits.v: this must be a whole number from 1 to 1000000000, and is 1000000001"},
		{"limits: {v: 1.5}}\n", "3:27 tasks.a.limits.v: this must be a whole number from 1 to 1000000000, and is 1.5"},
		{"resources: {gpu: 9007199254740993}}\n", "3:32 tasks.a.resources.gpu: this must be a whole number from 1 to 9007199254740992, and is 9007199254740993"},
		{"limits: {V: 1}}\n", `3:27 tasks.a.limits.V: "V" is not a name for a limit; use 1 to 63 lower-case letters`},
		{"worker_labels: {zone: \"a\\tb\"}}\n", `3:37 tasks.a.worker_labels.zone: "zone": a label has 1 to 63 bytes and its value at most 255`},
		{"worker_labels: {" + long(17, 1) + "}}\n", "3:30 tasks.a.worker_labels: 17 of them; at most 16"},
		{"limits: {v: 1}, worker_labels: {" + long(16, 100) + "}}\n", "3:46 tasks.a.worker_labels: limits, resources, worker_labels and the concurrency key take 1837 bytes together; at most 1500: use fewer names or shorter ones"},
	} {
		if _, got := complaints(t, "p.yaml", head+tc.src); len(got) != 1 || !strings.Contains(got[0], tc.want) {
			t.Errorf("%s\ngot  %q\nwant %q", tc.src, got, tc.want)
		}
	}
	compile(t, head+"limits: {v: 1000000000}, resources: {gpu: 9007199254740992}, worker_labels: {"+long(16, 72)+"}}\n")
}
