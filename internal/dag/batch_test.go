package dag

import (
	"fmt"
	"strings"
	"testing"
)

// TestListsAreHandedOutInBatches, in order, the last with what is left.
func TestListsAreHandedOutInBatches(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{1: "[1]|[ 2 ]|[3]", 2: "[1,2]|[3]", 3: "[1,2,3]", 9: "[1,2,3]"} {
		plan := compile(t, fmt.Sprintf("pipeline: p\ntasks:\n  m: {run: x, for_each: \"${{ input.list }}\", batch_size: %d}\n", n))
		for in, want := range map[string]string{`{"list": [1, 2 , 3]}`: strings.ReplaceAll(want, " ", ""), `{"list": []}`: ""} {
			items, err := plan.Elements(0, Scope{Input: []byte(in)})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, i := range items {
				got = append(got, string(i))
			}
			if s := strings.Join(got, "|"); s != want {
				t.Errorf("by %d: %s, want %s", n, s, want)
			}
		}
	}
	for src, want := range map[string]string{
		"  m: {run: x, for_each: [1], batch_size: 0}\n":                             "3:42 tasks.m.batch_size: batch_size is a whole number from 1 to 100000",
		"  m: {run: x, for_each: [1], batch_size: many}\n":                          "3:42 tasks.m.batch_size: batch_size is a whole number from 1 to 100000",
		"  m: {run: x, batch_size: 3}\n":                                            `3:27 tasks.m.batch_size: batch_size parts a list that the task goes over, and task "m" goes over none`,
		"  m: {run: x, for_each: [1]}\n  n: {run: x, for_each: m, batch_size: 3}\n": `4:40 tasks.n.batch_size: batch_size parts a list`,
	} {
		if _, got := complaints(t, "p.yaml", "pipeline: p\ntasks:\n"+src); len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%s: %q, want %s", src, got, want)
		}
	}
}
