package lifecycle

import (
	"math"
	"time"

	"github.com/drover-dev/drover"
)

// CircuitState is where a circuit stands; numbered for storage, never renumber.
type CircuitState int16

// The states of a circuit.
const (
	CircuitClosed     CircuitState = 0 // tasks start
	CircuitOpen       CircuitState = 1 // none does
	CircuitProbing    CircuitState = 2 // one runs, and decides
	CircuitRecovering CircuitState = 3 // more and more start
)

var circuitNames = []string{drover.CircuitClosed, drover.CircuitOpen, drover.CircuitProbing, drover.CircuitRecovering}

// String returns the name of the API.
func (s CircuitState) String() string { return circuitNames[s] }

// Circuit is what is known of a circuit. Its functions take it as it is and
// return it as it becomes.
type Circuit struct {
	State    CircuitState
	Failures int32   // in a row that count
	FirstAt  Instant // of them
	Since    Instant // when it was closed no more
	// Until is when an open one lets a task try, zero never; when a recovering one
	// is closed.
	Until        Instant
	Openings     int32 // in a row
	Started      int32 // tasks let go while it recovers
	Probe        drover.TaskID
	ProbeVersion int32
	Reason       string
	Policy       drover.CircuitPolicy
}

// Defaults of a circuit's policy.
const (
	DefaultCircuitFailures = 5
	DefaultCircuitWindow   = time.Minute
	DefaultCircuitPause    = 10 * time.Second
	DefaultCircuitMaxPause = 5 * time.Minute
)

// FilledCircuit returns p with its zero fields set to the defaults.
func FilledCircuit(p drover.CircuitPolicy) drover.CircuitPolicy {
	if p.Failures == 0 {
		p.Failures = DefaultCircuitFailures
	}
	if p.Window == 0 {
		p.Window = drover.Duration(DefaultCircuitWindow)
	}
	if p.Pause == 0 {
		p.Pause = drover.Duration(DefaultCircuitPause)
	}
	if p.MaxPause == 0 {
		p.MaxPause = drover.Duration(max(DefaultCircuitMaxPause, p.Pause.Std()))
	}
	return p
}

// Counts reports whether a failure of a class speaks against what the circuit
// guards. A permanent one is the task's own, a panic the handler's.
func Counts(class drover.ErrorClass) bool {
	return class == drover.ClassRetryable || class == drover.ClassThrottled || class == drover.ClassTimeout
}

// CircuitAt returns c as it is at now: one that has recovered is closed.
func CircuitAt(c Circuit, now Instant) Circuit {
	if c.State == CircuitRecovering && c.Until <= now {
		return Circuit{Failures: c.Failures, FirstAt: c.FirstAt, Policy: c.Policy}
	}
	return c
}

// CircuitFailed returns c after an attempt failed: open after enough failures in
// a row, at once when one names a time, and again when it was the probe.
// Attempts that began before it opened do not count while it is not closed.
func CircuitFailed(c Circuit, f Fault, why string, task drover.TaskID, version int32, now Instant) Circuit {
	c = CircuitAt(c, now)
	if !Counts(f.Class) {
		return c
	}
	p := FilledCircuit(c.Policy)
	named := Instant(0)
	if f.Class == drover.ClassThrottled && f.After > 0 {
		named = now.Add(min(f.After, MaxDelay))
	}
	switch {
	case c.State == CircuitOpen:
		if c.Until > 0 {
			c.Until = max(c.Until, named)
		}
		return c
	case c.State == CircuitProbing && (task != c.Probe || version != c.ProbeVersion):
		return c
	case c.State != CircuitProbing:
		if c.Failures == 0 || now.Sub(c.FirstAt) > p.Window.Std() {
			c.Failures, c.FirstAt = 0, now
		}
		if c.Failures++; named == 0 && int(c.Failures) < p.Failures {
			return c
		}
	}
	c = c.opened(why, now)
	if c.Until = named; named == 0 {
		c.Until = now.Add(Ceiling(int(c.Openings), drover.Retry{Initial: p.Pause, Factor: 2, Max: p.MaxPause}))
	}
	return c
}

func (c Circuit) opened(why string, now Instant) Circuit {
	if c.State == CircuitClosed {
		c.Since = now
	}
	return Circuit{State: CircuitOpen, Since: c.Since, Openings: c.Openings + 1, Reason: why, Policy: c.Policy}
}

// CircuitSucceeded returns c after an attempt succeeded: the failures are no row
// any more, and the success of the probe lets it recover.
func CircuitSucceeded(c Circuit, task drover.TaskID, version int32, now Instant) Circuit {
	c = CircuitAt(c, now)
	switch {
	case c.State == CircuitClosed, c.State == CircuitRecovering:
		c.Failures, c.FirstAt = 0, 0
	case c.State == CircuitProbing && task == c.Probe && version == c.ProbeVersion:
		c = c.recovering(now)
	}
	return c
}

func (c Circuit) recovering(now Instant) Circuit {
	return Circuit{State: CircuitRecovering, Since: c.Since, Openings: c.Openings, Reason: c.Reason, Policy: c.Policy,
		Until: now.Add(FilledCircuit(c.Policy).Pause.Std())}
}

// CircuitGrant returns how many tasks may start now; −1 is as many as like. lost
// says that the probe does not run any more and nobody has heard how it ended.
// While the circuit recovers the number doubles with each tenth of the pause, and
// of what is free a part is drawn, so that those who wait do not come all at
// once. jitter is from [0, 1).
func CircuitGrant(c Circuit, lost bool, jitter float64, now Instant) int {
	switch c = CircuitAt(c, now); c.State {
	case CircuitOpen:
		if c.Until > 0 && c.Until <= now {
			return 1
		}
	case CircuitProbing:
		if lost {
			return 1
		}
	case CircuitRecovering:
		pause := FilledCircuit(c.Policy).Pause.Std()
		past := 1 - float64(c.Until.Sub(now))/float64(pause)
		free := int(math.Exp2(10*max(past, 0))) - int(c.Started)
		if free > 0 {
			return 1 + int(jitter*float64(free-1))
		}
	case CircuitClosed:
		return -1
	}
	return 0
}

// CircuitStarted returns c after n tasks were let go, the first of which is the probe
// of one that is open.
func CircuitStarted(c Circuit, n int, task drover.TaskID, version int32) Circuit {
	if c.State == CircuitRecovering {
		c.Started += int32(n)
		return c
	}
	c.State, c.Until, c.Probe, c.ProbeVersion = CircuitProbing, 0, task, version
	return c
}

// CircuitByHand returns c opened until somebody closes it, or closed: then it
// recovers, as after a success.
func CircuitByHand(c Circuit, open bool, why string, now Instant) Circuit {
	switch c = CircuitAt(c, now); {
	case open:
		c = c.opened(why, now)
		c.Openings = 1
	case c.State == CircuitClosed:
		c.Failures, c.FirstAt = 0, 0
	default:
		c = c.recovering(now)
	}
	return c
}
