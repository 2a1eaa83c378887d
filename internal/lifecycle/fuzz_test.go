package lifecycle

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drover-dev/drover"
)

// FuzzWaits decodes anything as the time a task has spent: what it knows of it
// survives being written down again.
func FuzzWaits(f *testing.F) {
	w := Waits{WaitDependency: 1, Run: 1 << 40}
	f.Add(w.Encode())
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{255, 0, 0, 0, 0, 0, 0, 0, 1, 7, 255, 255, 255, 255, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		w := DecodeWaits(b)
		if again := DecodeWaits(w.Encode()); again != w {
			t.Errorf("%x: %v became %v", b, w, again)
		}
		for code := range w.Map() {
			if code == "" || code == "unknown" {
				t.Errorf("%x: a reason without a name: %v", b, w)
			}
		}
	})
}

// TestEveryAttemptHasItsDelay: whatever attempt of a million it is and however
// steep the growth, the ceiling does not fall, and the delay is between zero and it.
func TestEveryAttemptHasItsDelay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, everyDelay)
}

// FuzzEveryDelay is the same property for the coverage-guided fuzzer.
func FuzzEveryDelay(f *testing.F) { f.Fuzz(rapid.MakeFuzz(everyDelay)) }

func everyDelay(rt *rapid.T) {
	p := Filled(anyRetry.Draw(rt, "retry"))
	n := rapid.IntRange(1, 1_000_000).Draw(rt, "attempt")
	step := rapid.IntRange(0, 1_000_000-n).Draw(rt, "later by")
	c, later := Ceiling(n, p), Ceiling(n+step, p)
	if c <= 0 || c > later || later > p.Max.Std() {
		rt.Fatalf("%+v: the ceiling of attempt %d is %v, of %d %v", p, n, c, n+step, later)
	}
	if n == 1 && c != min(p.Initial.Std(), p.Max.Std()) {
		rt.Fatalf("%+v: the first ceiling is %v", p, c)
	}
	if d := Backoff(n, p, rapid.Float64Range(0, 0.9999999).Draw(rt, "jitter")); d < 0 || d > c {
		rt.Fatalf("%+v: a delay of %v under %v", p, d, c)
	}
}

// anyRetry is a retry as a request may have it.
var anyRetry = rapid.Custom(func(rt *rapid.T) drover.Retry {
	long := rapid.Int64Range(0, int64(10*365*24*time.Hour))
	return drover.Retry{
		MaxAttempts: rapid.IntRange(0, 1000).Draw(rt, "max_attempts"),
		Initial:     drover.Duration(long.Draw(rt, "initial")),
		Factor:      rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(1, 1000)).Draw(rt, "factor"),
		Max:         drover.Duration(long.Draw(rt, "max")),
	}
})
