package drover

import (
	"fmt"
	"strconv"
)

// Class is a priority class: claims take the lowest number first. It is written
// as one of four names or as a number from 1 (first) to 99 (last). The zero value
// means "not said"; the engine reads it as Normal.
type Class int16

// The named classes.
const (
	Interactive Class = 10 // somebody watches a screen
	Urgent      Class = 20
	Normal      Class = 30 // the default
	Batch       Class = 40 // whenever there is room
)

var classNames = map[Class]string{Interactive: "interactive", Urgent: "urgent", Normal: "normal", Batch: "batch"}

// ParseClass reads a name or a number from 1 to 99, without a sign or leading zeros.
func ParseClass(s string) (Class, error) {
	for c, n := range classNames {
		if n == s {
			return c, nil
		}
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 99 || strconv.Itoa(n) != s {
		return 0, fmt.Errorf("%q is not a class; write interactive, urgent, normal, batch or a number from 1 (first) to 99 (last)", clip(s, 40))
	}
	return Class(n), nil
}

// String returns the name, or the number where there is none.
func (c Class) String() string {
	if n, ok := classNames[c]; ok {
		return n
	}
	return strconv.Itoa(int(c))
}

// MarshalText writes the name or the number; the zero class is empty.
func (c Class) MarshalText() ([]byte, error) {
	if c == 0 {
		return nil, nil
	}
	return []byte(c.String()), nil
}

// UnmarshalText reads a name or a number; empty is the zero class.
func (c *Class) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*c = 0
		return nil
	}
	v, err := ParseClass(string(b))
	if err == nil {
		*c = v
	}
	return err
}
