package drover

import "time"

// Circuit guards something that many tasks use, such as a vendor's API: while it
// is open none of its tasks starts. Tasks name it; it belongs to a tenant.
type Circuit struct {
	Name string `json:"name"`
	// State is closed (tasks start), open (none does), probing (one runs, and
	// decides) or recovering (more and more start).
	State string `json:"state"`
	// Since is when it was closed no more.
	Since time.Time `json:"since,omitzero"`
	// NextProbeAt is when an open circuit lets one task try; zero with ByHand.
	NextProbeAt time.Time `json:"next_probe_at,omitzero"`
	// ByHand says that it was opened by hand, and stays so until it is closed by hand.
	ByHand bool `json:"by_hand,omitempty"`
	// Failures in a row, while it is closed or recovering.
	Failures int `json:"failures"`
	// Openings in a row; each makes the pause longer.
	Openings int `json:"openings"`
	// Reason is the failure that opened it, or what a person said.
	Reason string `json:"reason,omitempty"`
	// Probe is the task that decides.
	Probe  TaskID        `json:"probe,omitzero"`
	Policy CircuitPolicy `json:"policy"`
}

// CircuitPolicy says when a circuit opens and how long it pauses. Fields that are
// zero are the defaults.
type CircuitPolicy struct {
	// Failures in a row that open it, 1 to 1000; default 5. Failures of the classes
	// retryable, throttled and timeout count. A throttled one that names a time
	// opens it at once, for that time.
	Failures int `json:"failures,omitempty"`
	// Window is the time within which they must come; default 1 min.
	Window Duration `json:"window,omitzero"`
	// Pause is the time before one task tries; default 10 s. It doubles with each
	// opening in a row up to MaxPause, default 5 min. After a success tasks are let
	// go over the length of Pause, ever more of them.
	Pause    Duration `json:"pause,omitzero"`
	MaxPause Duration `json:"max_pause,omitzero"`
}

// States of a circuit.
const (
	CircuitClosed     = "closed"
	CircuitOpen       = "open"
	CircuitProbing    = "probing"
	CircuitRecovering = "recovering"
)
