package drover

import "time"

// Retention is how long a tenant's finished jobs are kept, by how they ended.
// Then a job leaves with everything it had: tasks, attempts, events, logs and
// artifacts. Zero keeps such jobs for ever.
type Retention struct {
	Succeeded Duration `json:"succeeded"`
	Failed    Duration `json:"failed"`
	Cancelled Duration `json:"cancelled"`
}

// DefaultRetention is that of a tenant which has set none.
var DefaultRetention = Retention{Succeeded: Duration(7 * 24 * time.Hour), Failed: Duration(30 * 24 * time.Hour), Cancelled: Duration(30 * 24 * time.Hour)}

// Of returns how long jobs that ended with s are kept; zero is for ever.
func (r Retention) Of(s Status) Duration {
	switch s {
	case Succeeded:
		return r.Succeeded
	case Cancelled:
		return r.Cancelled
	default: // Failed; jobs end in no other way
		return r.Failed
	}
}
