// Package admit decides who may run next, and why the others may not. It does
// no I/O.
package admit

import "github.com/drover-dev/drover"

// Candidate is a READY task as the admitter sees it.
type Candidate struct {
	Task drover.TaskID
	Job  drover.JobID
}

// View is what a decision is made from.
type View struct {
	// Waiting are READY tasks in the order of their turn.
	Waiting []Candidate
	// Held are the jobs whose tasks must not start.
	Held map[drover.JobID]bool
}

// Blocker is the reason a task was not admitted; a code of the API.
type Blocker string

// BlockerPaused says that the task's job is held.
const BlockerPaused Blocker = "job_paused"

// Decide returns a blocker for each task of the view, in order; the empty one
// admits it.
func Decide(v View) []Blocker {
	out := make([]Blocker, len(v.Waiting))
	for i, c := range v.Waiting {
		if v.Held[c.Job] {
			out[i] = BlockerPaused
		}
	}
	return out
}
