package admit

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/drover-dev/drover"
)

// shared is a limit that handlers wait for and, behind one that is free, tasks too.
func shared(most, used int64, first bool, asked []int64, tasks int) View {
	v := View{Now: start, Queues: map[int32]Queue{0: {Ahead: 100}}, Workers: []Worker{{Queues: []int32{0}, Slots: 100}},
		Limits: []Limit{{ID: 1, Scope: Named, Max: most, Used: used, Asked: asked, First: first}}}
	l := Line{Class: drover.Normal, Needs: Needs{Tenant: 1}, Takes: []Take{{0, 1}}}
	for i := range tasks {
		l.Heads = append(l.Heads, Head{Task: task(i + 1), ReadyAt: start})
	}
	if tasks > 0 {
		v.Lines = []Line{l}
	}
	return v
}

func TestHandlersAndTasksGoFirstByTurns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name              string
		v                 View
		admitted, granted int
		first, told       bool
	}{
		{"nobody waits but handlers", shared(2, 1, false, []int64{1, 1}, 0), 0, 1, false, true},
		{"tasks first", shared(1, 0, false, []int64{1}, 2), 1, 0, true, true},
		{"handlers first", shared(1, 0, true, []int64{1}, 2), 0, 1, false, false},
		{"handlers first, and what they leave to tasks", shared(3, 0, true, []int64{1}, 3), 2, 1, false, false},
		{"tasks first, and what they leave to handlers", shared(3, 0, false, []int64{1, 1, 1}, 2), 2, 1, true, true},
		{"kept for one that asks for several", shared(3, 1, true, []int64{3}, 2), 0, 0, true, true},
		{"the turn of tasks beside one that asks for several", shared(3, 1, false, []int64{3}, 1), 1, 0, true, true},
		{"nothing is there", shared(1, 1, true, []int64{1}, 1), 0, 0, true, true},
		{"more is held than there is", shared(1, 3, false, []int64{1}, 1), 0, 0, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := Decide(c.v)
			first, told := d.First[0]
			if len(d.Admitted) != c.admitted || d.Granted[0] != c.granted || first != c.first || told != c.told {
				t.Errorf("%d admitted, %d granted, handlers first: %v (told: %v)", len(d.Admitted), d.Granted[0], first, told)
			}
		})
	}
}

// TestNeitherHandlersNorTasksStarve, whatever comes after them: of what comes free by one,
// each group has at least every other one while it waits, and no more is held than there is.
func TestNeitherHandlersNorTasksStarve(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		most := rapid.Int64Range(1, 4).Draw(rt, "max")
		used, first := most, false
		one := rapid.Int64Range(1, most).Draw(rt, "asks")
		handlers, tasks := 0, 0
		for range 40 {
			used -= min(used, rapid.Int64Range(0, 2).Draw(rt, "ends"))
			v := shared(most, used, first, []int64{one, one, one}, 10)
			d := Decide(v)
			used += int64(len(d.Admitted)) + one*int64(d.Granted[0])
			if used > most {
				rt.Fatalf("%d are held of %d", used, most)
			}
			handlers, tasks, first = handlers+d.Granted[0], tasks+len(d.Admitted), d.First[0]
			if used < most && one == 1 {
				rt.Fatalf("%d are held of %d while both wait", used, most)
			}
		}
		if handlers+tasks > 12 && (handlers == 0 || tasks == 0) {
			rt.Fatalf("%d handlers and %d tasks got something", handlers, tasks)
		}
	})
}
