package admit

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/drover-dev/drover"
)

// TestEveryTaskIsAdmittedOrToldWhy: as many answers as tasks, in their order; a
// task of a held job is told so, every other one may go.
func TestEveryTaskIsAdmittedOrToldWhy(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		v := View{Held: map[drover.JobID]bool{}}
		for range rapid.IntRange(0, 20).Draw(rt, "tasks") {
			v.Waiting = append(v.Waiting, Candidate{Job: drover.JobID{15: byte(rapid.IntRange(0, 4).Draw(rt, "job"))}})
		}
		for range rapid.IntRange(0, 3).Draw(rt, "holds") {
			v.Held[drover.JobID{15: byte(rapid.IntRange(0, 4).Draw(rt, "held"))}] = rapid.Bool().Draw(rt, "still")
		}
		out := Decide(v)
		if len(out) != len(v.Waiting) {
			rt.Fatalf("%d answers for %d tasks", len(out), len(v.Waiting))
		}
		for i, why := range out {
			if want := v.Held[v.Waiting[i].Job]; want != (why == BlockerPaused) || !want && why != "" {
				rt.Errorf("task %d of a job that is held %t: %q", i, want, why)
			}
		}
	})
}
