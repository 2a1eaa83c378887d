package drover

import "fmt"

// Status is where a task or a job is in its life. The zero value is no status.
// Jobs use PENDING, RUNNING, SUCCEEDED, FAILED and CANCELLED only. The numbers
// are stored; never renumber them.
type Status uint8

// The statuses of a task. docs/states.md has the transitions.
const (
	Pending         Status = 1  // dependencies are not met yet, or the start time is in the future
	Ready           Status = 2  // may run; waits for admission
	DispatchPending Status = 3  // admitted; the broker has not confirmed the message
	Queued          Status = 4  // claimable
	Running         Status = 5  // leased to a worker
	RetryWait       Status = 6  // waits for its next attempt
	Waiting         Status = 7  // parked: holds no worker and no slot
	Succeeded       Status = 8  // final
	Failed          Status = 9  // final: permanent error
	Cancelled       Status = 10 // final
	Skipped         Status = 11 // final: never ran, by policy
	DeadLetter      Status = 12 // final: attempts used up
)

var statusNames = [...]string{
	Pending: "PENDING", Ready: "READY", DispatchPending: "DISPATCH_PENDING", Queued: "QUEUED", Running: "RUNNING",
	RetryWait: "RETRY_WAIT", Waiting: "WAITING", Succeeded: "SUCCEEDED", Failed: "FAILED", Cancelled: "CANCELLED",
	Skipped: "SKIPPED", DeadLetter: "DEAD_LETTER",
}

// Statuses returns every status, in the order of a task's life.
func Statuses() []Status {
	out := make([]Status, 0, len(statusNames)-1)
	for s := Pending; int(s) < len(statusNames); s++ {
		out = append(out, s)
	}
	return out
}

// Final reports whether no event but an explicit replay changes s any more.
func (s Status) Final() bool { return s >= Succeeded && s <= DeadLetter }

// String returns the name on the wire, such as "RETRY_WAIT".
func (s Status) String() string {
	if int(s) < len(statusNames) && statusNames[s] != "" {
		return statusNames[s]
	}
	return fmt.Sprintf("STATUS_%d", uint8(s))
}

// ParseStatus reads the name on the wire, in upper case.
func ParseStatus(name string) (Status, error) {
	for s, n := range statusNames {
		if n != "" && n == name {
			return Status(s), nil
		}
	}
	return 0, fmt.Errorf("%q is not a status; the statuses are PENDING, READY, DISPATCH_PENDING, QUEUED, RUNNING, RETRY_WAIT, WAITING, SUCCEEDED, FAILED, CANCELLED, SKIPPED, DEAD_LETTER", clip(name, 40))
}

// MarshalText writes the name; the zero status is empty.
func (s Status) MarshalText() ([]byte, error) {
	if s == 0 {
		return nil, nil
	}
	return []byte(s.String()), nil
}

// UnmarshalText reads a name; empty is the zero status.
func (s *Status) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*s = 0
		return nil
	}
	v, err := ParseStatus(string(b))
	if err == nil {
		*s = v
	}
	return err
}
