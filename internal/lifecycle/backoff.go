package lifecycle

import (
	"math"
	"time"

	"github.com/drover-dev/drover"
)

// Defaults of a retry policy.
const (
	DefaultMaxAttempts = 4
	DefaultInitial     = time.Second
	DefaultFactor      = 2.0
	DefaultMax         = time.Minute
	// DefaultTimeout bounds an attempt that declares no timeout.
	DefaultTimeout = time.Hour
	// MaxDelay caps any delay a handler asks for.
	MaxDelay = 30 * 24 * time.Hour
)

// Filled returns p with its zero fields set to the defaults.
func Filled(p drover.Retry) drover.Retry {
	if p.MaxAttempts == 0 {
		p.MaxAttempts = DefaultMaxAttempts
	}
	if p.Initial == 0 {
		p.Initial = drover.Duration(DefaultInitial)
	}
	if p.Factor == 0 {
		p.Factor = DefaultFactor
	}
	if p.Max == 0 {
		p.Max = drover.Duration(max(DefaultMax, p.Initial.Std()))
	}
	return p
}

// Ceiling returns the longest delay after the given attempt (from 1): initial ×
// factor^(attempt−1), at most max. It never overflows, falls or turns negative.
func Ceiling(attempt int, p drover.Retry) time.Duration {
	p = Filled(p)
	c := float64(p.Initial) * math.Pow(max(p.Factor, 1), float64(max(attempt, 1)-1))
	if math.IsNaN(c) || c >= float64(p.Max) { // +Inf too; what is below fits a Duration
		return p.Max.Std()
	}
	return time.Duration(c)
}

// Backoff draws a delay evenly from zero to the ceiling ("full jitter": M.
// Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015);
// jitter is from [0, 1).
func Backoff(attempt int, p drover.Retry, jitter float64) time.Duration {
	return time.Duration(float64(Ceiling(attempt, p)) * jitter)
}
