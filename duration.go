package drover

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Duration is a length of time. As text it reads "1h30m", "90s" or "1.5s" and
// writes seconds, as the JSON mapping of protobuf does: "5400s".
type Duration time.Duration

// ParseDuration reads Go's form with the units h, m, s, ms. A negative length
// or one over ten years is refused.
func ParseDuration(s string) (Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration; write for example 90s, 10m or 1h30m", clip(s, 40))
	}
	if d < 0 {
		return 0, fmt.Errorf("duration %s is negative", clip(s, 40))
	}
	if d > 10*365*24*time.Hour {
		return 0, fmt.Errorf("duration %s is longer than ten years", clip(s, 40))
	}
	return Duration(d), nil
}

// Std returns d as a time.Duration.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String writes seconds, such as "5400s" or "1.5s".
func (d Duration) String() string {
	s := strconv.FormatFloat(time.Duration(d).Seconds(), 'f', 6, 64)
	s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	return s + "s"
}

// MarshalText writes seconds.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what ParseDuration reads; empty is zero.
func (d *Duration) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*d = 0
		return nil
	}
	v, err := ParseDuration(string(b))
	if err == nil {
		*d = v
	}
	return err
}
