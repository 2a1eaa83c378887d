package dag

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/drover-dev/drover"
)

// TestRingsAreRefusedAndNothingElse draws graphs with and without rings. One
// without is accepted; of one with, a ring that is there is shown.
func TestRingsAreRefusedAndNothingElse(t *testing.T) {
	t.Parallel()
	refused, accepted := 0, 0
	shown := regexp.MustCompile(`t\d+( (->|→) t\d+)+`)
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(rt, "tasks")
		needs := make([][]bool, n) // needs[c][p]: c waits for p
		var src strings.Builder
		src.WriteString("pipeline: p\ntasks:\n")
		sparse := rapid.IntRange(2, 10).Draw(rt, "sparse")
		for c := range n {
			needs[c] = make([]bool, n)
			var list []string
			for p := range n {
				if p != c && rapid.IntRange(0, sparse).Draw(rt, "edge") == 0 {
					needs[c][p] = true
					list = append(list, fmt.Sprint("t", p))
				}
			}
			fmt.Fprintf(&src, "  t%d: {run: k, needs: [%s]}\n", c, strings.Join(list, ", "))
		}
		reach := make([][]bool, n) // by any way
		for c := range n {
			reach[c] = slices.Clone(needs[c])
		}
		for m := range n {
			for c := range n {
				for p := range n {
					reach[c][p] = reach[c][p] || reach[c][m] && reach[m][p]
				}
			}
		}
		ring := false
		for c := range n {
			ring = ring || reach[c][c]
		}
		_, err := Parse("p.yaml", []byte(src.String()))
		if !ring {
			accepted++
			if err != nil {
				rt.Fatalf("%v\n%s", err, src.String())
			}
			return
		}
		refused++
		var e *drover.Error
		if !errors.As(err, &e) || e.Code != drover.CodeCycle || len(e.Fields) == 0 {
			rt.Fatalf("a ring is told as %v\n%s", err, src.String())
		}
		for _, f := range e.Fields {
			text := shown.FindString(f.Message)
			var names []int
			for _, name := range strings.Fields(strings.NewReplacer("->", " ", "→", " ").Replace(text)) {
				var k int
				if _, err := fmt.Sscanf(name, "t%d", &k); err != nil {
					rt.Fatal(err)
				}
				names = append(names, k)
			}
			if len(names) < 3 || names[0] != names[len(names)-1] {
				rt.Fatalf("%q shows no ring\n%s", f.Message, src.String())
			}
			along, against := true, true
			for i := 1; i < len(names); i++ {
				along = along && needs[names[i-1]][names[i]]
				against = against && needs[names[i]][names[i-1]]
			}
			if !along && !against {
				rt.Fatalf("%q is no ring of\n%s", f.Message, src.String())
			}
		}
	})
	if refused == 0 || accepted == 0 {
		t.Errorf("%d refused, %d accepted: the test tests one side only", refused, accepted)
	}
}
