package dag

import (
	"fmt"
	"strings"
	"testing"
)

// TestARangeIsAListOfNumbers: of so many as the definition says, or an expression.
func TestARangeIsAListOfNumbers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ task, input, want string }{
		{`for_each: {range: 3}`, `{}`, `[0 1 2]`},
		{`for_each: {range: 0}`, `{}`, `[]`},
		{`for_each: {range: "${{ input.n }}"}`, `{"n": 2}`, `[0 1]`},
		{`for_each: {range: "${{ input.n }}"}`, `{"n": 2.0}`, `[0 1]`},
		{`for_each: {range: "${{ input.n }}"}, batch_size: 2`, `{"n": 5}`, `[[0,1] [2,3] [4]]`},
		{`for_each: {range: 1}, batch_size: 10`, `{}`, `[[0]]`},
		{`for_each: {range: "${{ input.n }}"}`, `{"n": -1}`, `the range of task "a" needs a whole number from 0; ${{ input.n }} is -1`},
		{`for_each: {range: "${{ input.n }}"}`, `{"n": 1.5}`, `the range of task "a" needs a whole number from 0; ${{ input.n }} is 1.5`},
		{`for_each: {range: "${{ input.n }}"}`, `{"n": "7"}`, `the range of task "a" needs a whole number from 0; ${{ input.n }} is "7"`},
		{`for_each: {range: "${{ input.n }}"}`, `{"n": [1]}`, `the range of task "a" needs a whole number from 0; ${{ input.n }} is [1]`},
		{`for_each: {range: "${{ input.n }}"}`, `{"n": 1e300}`, `the range of task "a" needs a whole number from 0; ${{ input.n }} is 1e300`},
		{`for_each: {range: "${{ input.n }}"}`, `{"n": 1000001}`, `the range of task "a" goes to 1000001; at most 1000000`},
	} {
		plan := compile(t, "pipeline: p\ntasks:\n  a: {run: x, "+c.task+"}\n")
		items, err := plan.Elements(0, scope(plan, c.input, nil))
		got := fmt.Sprintf("%s", items)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s of %s: got %s, want %s", c.task, c.input, got, c.want)
		}
	}
	plan := compile(t, "pipeline: p\ntasks:\n  a: {run: x, for_each: {range: 1000000}, batch_size: 100}\n")
	items, err := plan.Elements(0, scope(plan, `{}`, nil))
	if err != nil || len(items) != 10_000 || !strings.HasSuffix(string(items[9_999]), ",999998,999999]") {
		t.Errorf("%d items, %v", len(items), err)
	}
}

// TestRangesThatCannotBe are refused with their place.
func TestRangesThatCannotBe(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ task, want string }{
		{`for_each: {range: -1}`, `3:33 tasks.a.for_each.range: a range is how many elements it has, a whole number from 0 to 1000000, or an expression for one; this is -1`},
		{`for_each: {range: 1000001}`, `3:33 tasks.a.for_each.range: a range is how many elements it has`},
		{`for_each: {range: ten}`, `3:33 tasks.a.for_each.range: a range is how many elements it has`},
		{`for_each: {rnge: 1}`, `3:25 tasks.a.for_each: for_each needs the key range where it is a mapping`},
		{`for_each: {range: 1, step: 2}`, `3:36 tasks.a.for_each.step: for_each has no key "step"; the keys are range`},
		{`for_each: {range: 20000}`, `3:33 tasks.a.for_each.range: the range gives 20000 elements, and the map may have 10000: raise max_elements, which may be up to 100000, or give each task several with batch_size`},
		{`for_each: {range: 200000}, max_elements: 100000`, `the range gives 200000 elements, and the map may have 100000: give each task several with batch_size`},
		{`for_each: {range: "${{ index }}"}`, `tasks.a.for_each.range: ${{ index }} has no meaning in for_each`},
	} {
		if _, got := complaints(t, "p.yaml", "pipeline: p\ntasks:\n  a: {run: x, "+c.task+"}\n"); len(got) != 1 || !strings.Contains(got[0], c.want) {
			t.Errorf("%s\ngot  %q\nwant %q", c.task, got, c.want)
		}
	}
	for _, task := range []string{`for_each: {range: 20000}, max_elements: 20000`, `for_each: {range: 20000}, batch_size: 2`} {
		if _, got := complaints(t, "p.yaml", "pipeline: p\ntasks:\n  a: {run: x, "+task+"}\n"); len(got) != 0 {
			t.Errorf("%s: %q", task, got)
		}
	}
}
