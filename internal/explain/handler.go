package explain

import (
	"fmt"

	"github.com/drover-dev/drover"
)

// Handler makes of the wait of a task for a limit that of a running one's handler. A lock
// that a handler made by its name is no limit that could be raised.
func Handler(b drover.Blocker, made bool) drover.Blocker {
	b.Message = "Its handler is waiting" + b.Message[len("Waiting"):]
	if made {
		b.Remedies = b.Remedies[1:]
	}
	return b
}

// Barrier is the wait of a running task's handler for others at a barrier.
func Barrier(name string, round, there, parties int) drover.Blocker {
	return drover.Blocker{Code: drover.BlockerBarrier, Subject: drover.Subject{Kind: "barrier", Name: name, Limit: int64(parties), Used: int64(there)},
		Message:  fmt.Sprintf("Its handler is waiting at barrier %s, round %d: %d of %d have come.", name, round, there, parties),
		Remedies: []drover.Remedy{{Action: "add_workers", Message: fmt.Sprintf("See that the others can run beside it: %d slots are needed at once.", parties)}}}
}
