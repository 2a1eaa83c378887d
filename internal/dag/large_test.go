package dag

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
)

// layered writes a definition of layers of tasks, each of which needs some of the layer
// before.
func layered(layers, width, parents int) []byte {
	var b bytes.Buffer
	b.WriteString("pipeline: layered\ntasks:\n")
	for l := range layers {
		for i := range width {
			fmt.Fprintf(&b, "  l%d-t%d: {run: work", l, i)
			if l > 0 {
				needs := make([]string, parents)
				for p := range needs {
					needs[p] = fmt.Sprintf("l%d-t%d", l-1, (i+p*7919)%width)
				}
				fmt.Fprintf(&b, ", needs: [%s]", strings.Join(needs, ", "))
			}
			b.WriteString("}\n")
		}
	}
	return b.Bytes()
}

// many writes a definition of n tasks, as task writes each.
func many(n int, task func(i int) string) []byte {
	var b bytes.Buffer
	b.WriteString("pipeline: p\ntasks:\n")
	for i := range n {
		b.WriteString("  " + task(i) + "\n")
	}
	return b.Bytes()
}

// TestTheLargestDefinitions are read and compiled, whatever their shape, in a time that
// grows with their size. The bound is on the thread's own time, and so wide that only what
// is quadratic comes to it: a hundred thousand tasks squared are minutes.
func TestTheLargestDefinitions(t *testing.T) {
	const n = TaskCap
	shapes := []struct {
		name, fails string
		src         []byte
	}{
		{name: "layers", src: layered(10, n/10, 2)},
		{name: "a chain from its end", src: many(n, func(i int) string {
			if i == n-1 {
				return fmt.Sprintf("t%d: {run: x}", i)
			}
			return fmt.Sprintf("t%d: {run: x, needs: [t%d]}", i, i+1)
		})},
		{name: "maps", src: many(n/2, func(i int) string {
			return fmt.Sprintf("t%d: {run: x, for_each: [1, 2]}\n  j%[1]d: {run: x, needs: [t%[1]d]}", i)
		})},
		{name: "a chain of fallbacks", src: many(n, func(i int) string {
			if i == n-1 {
				return fmt.Sprintf("t%d: {run: x}", i)
			}
			return fmt.Sprintf("t%d: {run: x, fallback: t%d}", i, i+1)
		})},
		{name: "rings", fails: "these tasks wait for each other", src: many(n/2, func(i int) string {
			return fmt.Sprintf("t%d: {run: x, needs: [u%[1]d]}\n  u%[1]d: {run: x, needs: [t%[1]d]}", i)
		})},
		{name: "unknown names", fails: "there is no task", src: many(n, func(i int) string { return fmt.Sprintf("t%d: {run: x, needs: [u%d]}", i, i) })},
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, s := range shapes {
		start := busy()
		p, err := Parse("large.yaml", s.src)
		if s.fails != "" {
			if err == nil || !slices.ContainsFunc(fieldsOf(err), func(f drover.FieldError) bool { return strings.Contains(f.Message, s.fails) }) {
				t.Errorf("%s: %v", s.name, err)
			}
		} else if err != nil {
			t.Errorf("%s: %v", s.name, err)
			continue
		} else {
			plan, err := p.Compile()
			if err != nil {
				t.Fatal(err)
			}
			if len(plan.order) != n {
				t.Errorf("%s: %d tasks in order, want %d", s.name, len(plan.order), n)
			}
		}
		if d := busy() - start; d > 30*time.Second {
			t.Errorf("%s: took %s", s.name, d)
		} else {
			t.Logf("%s: %d bytes, %s", s.name, len(s.src), d)
		}
	}
}

func fieldsOf(err error) []drover.FieldError {
	if e, ok := err.(*drover.Error); ok {
		return e.Fields
	}
	return nil
}

// BenchmarkLargestDefinition reads and compiles 100,000 tasks in ten layers.
func BenchmarkLargestDefinition(b *testing.B) {
	src := layered(10, TaskCap/10, 2)
	b.SetBytes(int64(len(src)))
	b.ReportAllocs()
	for b.Loop() {
		p, err := Parse("large.yaml", src)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := p.Compile(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkForecastOfTheLargest says what hangs on each of 100,000 tasks.
func BenchmarkForecastOfTheLargest(b *testing.B) {
	p, err := Parse("large.yaml", layered(10, TaskCap/10, 2))
	if err != nil {
		b.Fatal(err)
	}
	plan, err := p.Compile()
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		plan.Forecast(nil, Assumed{})
	}
}

// TestWhatIsDearIsCounted: of what takes long to compile, or costs every settle, a
// definition can have less than tasks.
func TestWhatIsDearIsCounted(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		what, says string
		most       int
		task       func(i int) string
	}{
		{"conditions", "more than 20000 tasks have a condition", condsCap, func(i int) string { return fmt.Sprintf(`t%d: {run: x, if: "input.x"}`, i) }},
		{"outputs", "more than 20000 tasks declare their output", schemasCap, func(i int) string { return fmt.Sprintf(`t%d: {run: x, output: {}}`, i) }},
		{"maps with bounds", "more than 5000 maps have max_parallel", boundedCap, func(i int) string { return fmt.Sprintf(`t%d: {run: x, for_each: [1], max_parallel: 1}`, i) }},
		{"lines", "more than 5000 different combinations", linesCap, func(i int) string { return fmt.Sprintf(`t%d: {run: x%[1]d}`, i) }},
	} {
		code, got := complaints(t, "", string(many(x.most+1, x.task)))
		if code != drover.CodeValidation || len(got) != 1 || !strings.Contains(got[0], x.says) || !strings.HasPrefix(got[0], fmt.Sprintf("%d:", x.most+3)) {
			t.Errorf("%s: %s %q", x.what, code, got)
		}
	}
	src := string(many(1, func(int) string { return "t: {run: x, with: [" + strings.Repeat("a,", partCap) + "a]}" }))
	if code, _ := complaints(t, "", src); code != drover.CodePayloadTooLarge {
		t.Errorf("a definition of %d values: %s", partCap, code)
	}
}
