package rings_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/rings"
)

func task(n int) drover.TaskID { return drover.TaskID{15: byte(n)} }

// state is who holds what and who waits, in one line of text each:
// "1 of 1: a | b c2" is a limit 1 of one permit that a holds and b and, for two, c wait for.
func state(t *testing.T, text string) (map[int32]*rings.Line, []rings.Hold) {
	t.Helper()
	lines := map[int32]*rings.Line{}
	var held []rings.Hold
	for row := range strings.Lines(text) {
		var limit int32
		var most int64
		head, rest, _ := strings.Cut(row, ":")
		if _, err := fmt.Sscanf(head, "%d of %d", &limit, &most); err != nil {
			t.Fatalf("%q: %v", row, err)
		}
		has, waits, _ := strings.Cut(rest, "|")
		l := &rings.Line{Max: most}
		for _, f := range strings.Fields(has) {
			w := weight(f)
			l.Used += w.Weight
			held = append(held, rings.Hold{Task: w.Task, Limit: limit, Weight: w.Weight})
		}
		for _, f := range strings.Fields(waits) {
			l.Waits = append(l.Waits, weight(f))
		}
		lines[limit] = l
	}
	return lines, held
}

func weight(f string) rings.Wait {
	w := rings.Wait{Task: task(int(f[0])), Weight: 1}
	if len(f) > 1 {
		w.Weight = int64(f[1] - '0')
	}
	return w
}

func TestARingIsFoundAndNamed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, state, who, want string }{
		{"nobody waits for nobody", "1 of 1: a | b", "b", ""},
		{"two hold what the other wants", "1 of 1: a | b\n2 of 1: b | a", "a", "a2 b1"},
		{"three in a ring", "1 of 1: a | c\n2 of 1: b | a\n3 of 1: c | b", "c", "c1 a2 b3"},
		{"it waits for itself", "1 of 1: a | a", "a", "a1"},
		{"more of what it holds than is left", "1 of 5: a3 | a3", "a", "a1"},
		{"more of what it holds, and enough is left", "1 of 5: a3 | a2", "a", ""},
		{"another holder ends", "1 of 2: a x | b\n2 of 1: b | a", "a", ""},
		{"all holders wait for it", "1 of 2: a c | b\n2 of 1: b | a c", "c", "c2 b1"},
		{"behind one that never gets its turn", "1 of 3: d2 | e2 f\n2 of 1: f | d", "f", "f1 d2"},
		{"behind one that waits for it elsewhere", "1 of 1: x | e f\n2 of 1: f | e", "f", "f1- e2"},
		{"behind one that gets its turn", "1 of 3: x2 | e2 f\n2 of 1: f | d", "f", ""},
		{"two requests at once, one in a ring", "1 of 1: a | b\n2 of 1: b | a\n3 of 1: x | a", "a", "a2 b1"},
		{"who ends gives way to a chain", "1 of 1: x | a\n2 of 1: a | b\n3 of 1: b | c", "c", ""},
		{"behind a ring of others", "1 of 1: a | b\n2 of 1: b | a\n3 of 1: a | c", "c", "c3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			lines, held := state(t, c.state)
			var got []string
			for _, s := range rings.Find(task(int(c.who[0])), lines, held) {
				ahead := ""
				if s.Ahead {
					ahead = "-"
				}
				got = append(got, fmt.Sprintf("%c%d%s", s.Task[15], s.Limit, ahead))
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("ring = %q, want %q", strings.Join(got, " "), c.want)
			}
		})
	}
}

func TestWhoWaitsGetsItInTurn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		state string
		want  int
	}{{"1 of 1: a | b", 0}, {"1 of 1: | b c", 1}, {"1 of 5: a | b2 c2 d", 2}, {"1 of 5: a2 | b4 c", 0}, {"1 of 1: a2 | b", 0}, {"1 of 2: |", 0}} {
		lines, _ := state(t, c.state)
		if n := lines[1].Grants(); n != c.want {
			t.Errorf("%q: %d get it, want %d", c.state, n, c.want)
		}
		if free := lines[1].Free(1); free != (len(lines[1].Waits) == 0 && lines[1].Used < lines[1].Max) {
			t.Errorf("%q: free = %v", c.state, free)
		}
	}
}

// naive plays it out: whoever waits for nothing ends and gives back what it has, and
// those first in line get what then fits, until nothing moves. It tells who is left.
func naive(lines map[int32]*rings.Line, held []rings.Hold, tasks []drover.TaskID) map[drover.TaskID]bool {
	has := slices.Clone(held)
	waits := map[int32][]rings.Wait{}
	for limit, l := range lines {
		waits[limit] = slices.Clone(l.Waits)
	}
	ended := map[drover.TaskID]bool{}
	for moved := true; moved; {
		moved = false
		for limit, l := range lines {
			used := int64(0)
			for _, h := range has {
				if h.Limit == limit {
					used += h.Weight
				}
			}
			if w := waits[limit]; len(w) > 0 && used+w[0].Weight <= l.Max {
				has = append(has, rings.Hold{Task: w[0].Task, Limit: limit, Weight: w[0].Weight})
				waits[limit] = w[1:]
				moved = true
			}
		}
		for _, id := range tasks {
			busy := ended[id]
			for _, list := range waits {
				busy = busy || slices.ContainsFunc(list, func(w rings.Wait) bool { return w.Task == id })
			}
			if !busy {
				ended[id], moved = true, true
				has = slices.DeleteFunc(has, func(h rings.Hold) bool { return h.Task == id })
			}
		}
	}
	left := map[drover.TaskID]bool{}
	for _, id := range tasks {
		if !ended[id] {
			left[id] = true
		}
	}
	return left
}

// TestARingIsOneExactlyWhenNobodyInItEverEnds, against who plays it out.
func TestARingIsOneExactlyWhenNobodyInItEverEnds(t *testing.T) {
	t.Parallel()
	rings1 := 0
	rapid.Check(t, func(r *rapid.T) {
		lines, held := map[int32]*rings.Line{}, []rings.Hold(nil)
		var tasks []drover.TaskID
		for i := range 6 {
			tasks = append(tasks, task('a'+i))
		}
		for limit := int32(1); limit <= 4; limit++ {
			l := &rings.Line{Max: rapid.Int64Range(1, 3).Draw(r, "max")}
			for _, id := range tasks {
				if w := rapid.Int64Range(1, 2).Draw(r, "holds"); l.Used+w <= l.Max && rapid.Bool().Draw(r, "has") {
					l.Used += w
					held = append(held, rings.Hold{Task: id, Limit: limit, Weight: w})
				}
			}
			lines[limit] = l
		}
		// Requests come one after the other; those that would close a ring are refused.
		for range 12 {
			id, limit := rapid.SampledFrom(tasks).Draw(r, "task"), rapid.Int32Range(1, 4).Draw(r, "limit")
			l := lines[limit]
			w := rapid.Int64Range(1, l.Max).Draw(r, "asks")
			if l.Free(w) {
				l.Used += w
				held = append(held, rings.Hold{Task: id, Limit: limit, Weight: w})
				continue
			}
			l.Waits = append(l.Waits, rings.Wait{Task: id, Weight: w})
			left := naive(lines, held, tasks)
			ring := rings.Find(id, lines, held)
			if (len(ring) > 0) != left[id] {
				r.Fatalf("ring = %v, and played out %v are left", ring, left)
			}
			if !left[id] {
				if len(left) > 0 {
					r.Fatalf("no ring is found at %v, and %v are left", id, left)
				}
				continue
			}
			rings1++
			if ring[0].Task != id {
				r.Fatalf("the ring begins with %v, not with %v", ring[0].Task, id)
			}
			for i, s := range ring {
				next := ring[(i+1)%len(ring)].Task
				at := slices.IndexFunc(lines[s.Limit].Waits, func(w rings.Wait) bool { return w.Task == s.Task })
				holds := slices.ContainsFunc(held, func(h rings.Hold) bool { return h.Task == next && h.Limit == s.Limit })
				ahead := false
				for k, w := range lines[s.Limit].Waits {
					last := k
					for m := k + 1; m < len(lines[s.Limit].Waits); m++ {
						if lines[s.Limit].Waits[m].Task == s.Task {
							last = m
						}
					}
					ahead = ahead || w.Task == next && last > k
				}
				if at < 0 || s.Ahead && !ahead || !s.Ahead && !holds || !left[s.Task] {
					r.Fatalf("step %d of %v is none", i, ring)
				}
			}
			l.Waits = l.Waits[:len(l.Waits)-1]
		}
	})
	if rings1 == 0 {
		t.Error("no ring was ever closed")
	}
}
