package dag

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// TestBoundsOfMapsAreChecked at registration, with place and remedy.
func TestBoundsOfMapsAreChecked(t *testing.T) {
	t.Parallel()
	for src, want := range map[string]string{
		"  m: {run: x, for_each: [1], max_parallel: 0}\n":                                                           "3:44 tasks.m.max_parallel: this is a whole number from 1 to 100000, how many elements run at one time, and not 0",
		"  m: {run: x, for_each: [1], max_parallel: 1.5}\n":                                                         "3:44 tasks.m.max_parallel: this is a whole number from 1 to 100000, how many elements run at one time, and not 1.5",
		"  m: {run: x, max_parallel: 3}\n":                                                                          `3:29 tasks.m.max_parallel: max_parallel bounds how many elements of a map run at one time, and task "m" is none; remove it, or add for_each`,
		"  m: {run: x, for_each: [1], max_elements: 100001}\n":                                                      "3:44 tasks.m.max_elements: this is a whole number from 1 to 100000, how long the list may be, and not 100001",
		"  m: {run: x, for_each: [1]}\n  n: {run: x, for_each: m, max_elements: 3}\n":                               `4:42 tasks.n.max_elements: task "n" has as many elements as the map that it goes over; say max_elements there`,
		"  m: {run: x, min_success: 3}\n":                                                                           `3:28 tasks.m.min_success: min_success says how many elements of a map must succeed, and task "m" is none`,
		"  m: {run: x, for_each: [1], min_success: most}\n":                                                         `3:43 tasks.m.min_success: min_success is how many elements must succeed: a whole number from 1, or a part of them such as 95%; this is "most"`,
		"  m: {run: x, for_each: [1], min_success: 0}\n":                                                            "3:43 tasks.m.min_success: min_success is how many elements must succeed: a whole number from 1, or a part of them such as 95%; this is 0",
		"  m: {run: x, for_each: [1], min_success: 0%}\n":                                                           "3:43 tasks.m.min_success: 0% lets every element fail; for that write on_failure: degrade",
		"  m: {run: x, for_each: [1], min_success: 101%}\n":                                                         "3:43 tasks.m.min_success: min_success is",
		"  m: {run: x, for_each: [1], min_success: 12.345%}\n":                                                      "3:43 tasks.m.min_success: min_success is",
		"  m: {run: x, for_each: [1], min_success: 2, on_failure: degrade}\n":                                       `3:43 tasks.m.min_success: with on_failure: degrade any element of task "m" may fail, so that min_success has nothing to say; remove one of the two`,
		"  m: {run: x, for_each: [1], min_success: 50%}\n  n: {run: x, for_each: m}\n":                              `4:25 tasks.n.for_each: some elements of "m" may fail (min_success: 50%), and those of "n" do not run then; say how many of them must succeed, as in ` + "`min_success: 50%`",
		"  m: {run: x, for_each: [1], min_success: 2, default: 0}\n  n: {run: x, for_each: m, when: one_success}\n": `4:25 tasks.n.for_each: some elements of "m" may fail`,
		"  m: {run: x, for_each: [1], min_success: 2, default: 0}\n  n: {run: x, for_each: m, when: all_done}\n":    "",
		"  m: {run: x, for_each: [1], min_success: 2}\n  n: {run: x, for_each: m, min_success: 1%}\n":               "",
	} {
		_, got := complaints(t, "p.yaml", "pipeline: p\ntasks:\n"+src)
		if want == "" && len(got) > 0 || want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], want)) {
			t.Errorf("%s: %q, want %s", src, got, want)
		}
	}
}

// TestAShareIsOfThoseThatWereNotSkipped: what it asks for, when it is certain that it is
// missed, and how the map counts.
func TestAShareIsOfThoseThatWereNotSkipped(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		share                     string
		size, ok, failed, skipped int32
		want                      Outcome
		hopeless                  bool
	}{
		{"95%", 100, 95, 5, 0, Succeeded, false},
		{"95%", 100, 94, 5, 0, 0, false},
		{"95%", 100, 0, 6, 0, 0, true},
		{"95%", 100, 94, 6, 0, Failed, true},
		{"95%", 3, 2, 1, 0, Failed, true},
		{"50%", 3, 2, 1, 0, Succeeded, false},
		{"50%", 3, 1, 1, 1, Succeeded, false},
		{"0.01%", 3, 0, 2, 0, 0, false},
		{"33.34%", 3, 1, 2, 0, Failed, true},
		{"33.33%", 3, 1, 2, 0, Succeeded, false},
		{"2", 5, 2, 3, 0, Succeeded, false},
		{"2", 5, 1, 4, 0, Failed, true},
		{"9", 3, 3, 0, 0, Succeeded, false},
		{"9", 3, 0, 1, 0, 0, true},
		{"2", 4, 1, 0, 3, Succeeded, false},
		{"2", 2, 0, 0, 2, Skipped, false},
		{"100%", 1, 0, 0, 0, 0, false},
	} {
		v := &value{kind: text, text: c.share}
		if !strings.HasSuffix(c.share, "%") {
			v.kind = number
		}
		s, bad := parseShare(v)
		if bad != "" || s.String() != c.share {
			t.Fatalf("%s is read as %s: %s", c.share, s, bad)
		}
		m := Map{Size: c.size, Ended: c.ok + c.failed + c.skipped, Succeeded: c.ok, Skipped: c.skipped}
		if got := m.Outcome(s); got != c.want || m.Hopeless(s) != c.hopeless {
			t.Errorf("%s of %+v: %s, hopeless %v; want %s, %v", s, m, got, m.Hopeless(s), c.want, c.hopeless)
		}
	}
}

// TestAListKeepsThePlacesOfElementsThatFailed where some may: null, or the default.
func TestAListKeepsThePlacesOfElementsThatFailed(t *testing.T) {
	t.Parallel()
	for keys, want := range map[string]string{"": "[0,2]", ", min_success: 1": "[0,null,2]", ", min_success: 1, default: {}": "[0,{},2]"} {
		plan := compile(t, "pipeline: p\ntasks:\n  m: {run: x, for_each: [0, 0, 0]"+keys+"}\n  j: {run: x, with: \"${{ tasks.m.output }}\"}\n")
		got, err := plan.Render(1, Scope{Len: func(int32) int { return 3 }, Output: func(k Key) (json.RawMessage, bool) {
			return []byte{byte('0' + k.Index)}, slices.Contains([]int32{0, 2}, k.Index)
		}})
		if err != nil || string(got) != want {
			t.Errorf("%s: %s, %v, want %s", keys, got, err, want)
		}
	}
}
