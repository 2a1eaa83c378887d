package admit

import (
	"fmt"
	"time"
)

// Intake says how much may wait; what is 0 is not asked for.
type Intake struct {
	Waiting   int64
	Age, Wait time.Duration
}

// Measure is how much waits. Wait is negative where nothing is known.
type Measure struct {
	Waiting   int64
	Age, Wait time.Duration
}

// Overloaded tells if a rule fires, and why. It begins when a bound is passed, and
// ceases when all measures are four fifths of theirs or less, so that it does not come
// and go with every task; what is not known keeps it as it is.
func Overloaded(r Intake, m Measure, firing bool) (bool, string) {
	unknown := r.Wait > 0 && m.Wait < 0
	switch {
	case r.Waiting > 0 && m.Waiting > r.Waiting:
		return true, fmt.Sprintf("%d tasks wait, more than %d", m.Waiting, r.Waiting)
	case r.Age > 0 && m.Age > r.Age:
		return true, fmt.Sprintf("the oldest has waited %s, longer than %s", m.Age.Round(time.Second), r.Age)
	case r.Wait > 0 && m.Wait > r.Wait:
		return true, fmt.Sprintf("one that comes now waits %s, longer than %s", m.Wait.Round(time.Second), r.Wait)
	case !firing:
		return false, ""
	case unknown && m.Waiting > 0:
		return true, "how long one waits is not known now"
	case r.Waiting > 0 && m.Waiting > r.Waiting/5*4+r.Waiting%5*4/5:
		return true, fmt.Sprintf("%d tasks wait, more than four fifths of %d", m.Waiting, r.Waiting)
	case r.Age > 0 && m.Age > r.Age/5*4:
		return true, fmt.Sprintf("the oldest has waited %s, longer than four fifths of %s", m.Age.Round(time.Second), r.Age)
	case r.Wait > 0 && m.Wait > r.Wait/5*4:
		return true, fmt.Sprintf("one that comes now waits %s, longer than four fifths of %s", m.Wait.Round(time.Second), r.Wait)
	}
	return false, "less waits again"
}
