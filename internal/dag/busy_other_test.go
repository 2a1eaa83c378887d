//go:build !linux

package dag

import "time"

var began = time.Now()

// busy is how much time has passed: the thread's own is not known here.
func busy() time.Duration { return time.Since(began) }
