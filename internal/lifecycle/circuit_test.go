package lifecycle

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drover-dev/drover"
)

var oneTask = drover.TaskID{1}

func TestACircuitOpensAndRecovers(t *testing.T) {
	t.Parallel()
	p := drover.CircuitPolicy{Failures: 3, Window: drover.Duration(time.Minute), Pause: drover.Duration(10 * time.Second), MaxPause: drover.Duration(30 * time.Second)}
	now := Instant(1_000_000)
	fail := func(c Circuit, class drover.ErrorClass) Circuit {
		return CircuitFailed(c, Fault{Class: class}, "no answer", oneTask, 1, now)
	}
	want := func(c Circuit, s CircuitState, grant int, what string) {
		t.Helper()
		if got := CircuitGrant(c, false, 0.5, now); c.State != s || got != grant {
			t.Fatalf("%s: %s, lets %d go; want %s and %d", what, c.State, got, s, grant)
		}
	}
	c := Circuit{Policy: p}
	for _, class := range []drover.ErrorClass{drover.ClassPermanent, drover.ClassPanic, drover.ClassInput} {
		for range 10 {
			c = fail(c, class)
		}
	}
	c = fail(fail(c, drover.ClassRetryable), drover.ClassTimeout)
	want(c, CircuitClosed, -1, "two failures that count")
	c = fail(CircuitSucceeded(c, oneTask, 1, now), drover.ClassRetryable)
	want(c, CircuitClosed, -1, "a success between")
	now = now.Add(2 * time.Minute)
	c = fail(fail(c, drover.ClassRetryable), drover.ClassRetryable)
	want(c, CircuitClosed, -1, "the first is out of the window")
	c = fail(c, drover.ClassThrottled)
	want(c, CircuitOpen, 0, "three in a row")
	if c.Until != now.Add(10*time.Second) || c.Since != now || c.Reason != "no answer" {
		t.Fatalf("opened: %+v", c)
	}
	opened := now
	c = CircuitSucceeded(fail(c, drover.ClassRetryable), oneTask, 9, now)
	want(c, CircuitOpen, 0, "an attempt that began before ends well")
	for _, pause := range []time.Duration{10, 20, 30, 30} {
		now = now.Add(pause*time.Second - 1000)
		want(c, CircuitOpen, 0, "just before the pause is over")
		now = now.Add(time.Microsecond * 1)
		want(c, CircuitOpen, 1, "after the pause")
		c = CircuitStarted(c, 1, oneTask, 7)
		want(c, CircuitProbing, 0, "while the probe runs")
		if CircuitGrant(c, true, 0.5, now) != 1 {
			t.Fatal("a lost probe is not replaced")
		}
		if other := fail(c, drover.ClassRetryable); other.State != CircuitProbing { // under another lease_version
			t.Fatal("an attempt that is not the probe decides")
		}
		c = CircuitFailed(c, Fault{Class: drover.ClassRetryable}, "still no answer", oneTask, 7, now)
		if c.Since != opened {
			t.Fatalf("not closed since %d, want %d", c.Since, opened)
		}
	}
	now = c.Until
	c = CircuitSucceeded(CircuitStarted(c, 1, oneTask, 8), oneTask, 8, now)
	want(c, CircuitRecovering, 1, "the probe succeeded")
	c = CircuitStarted(c, 1, oneTask, 9)
	want(c, CircuitRecovering, 0, "one was let go")
	now = now.Add(5 * time.Second)
	want(c, CircuitRecovering, 16, "half the way, half of 31 is drawn")
	again := fail(fail(fail(c, drover.ClassRetryable), drover.ClassRetryable), drover.ClassRetryable)
	if again.State != CircuitOpen || again.Until != now.Add(30*time.Second) {
		t.Fatalf("failures while it recovers: %+v", again)
	}
	now = now.Add(5 * time.Second)
	want(CircuitAt(c, now), CircuitClosed, -1, "recovered")

	named := CircuitFailed(Circuit{Policy: p}, Fault{Class: drover.ClassThrottled, After: time.Hour}, "429", oneTask, 1, now)
	want(named, CircuitOpen, 0, "an answer that names a time")
	if named.Until != now.Add(time.Hour) {
		t.Fatalf("opened for %v", named.Until.Sub(now))
	}
	hand := CircuitByHand(Circuit{Policy: p}, true, "maintenance", now)
	now = now.Add(24 * time.Hour)
	want(hand, CircuitOpen, 0, "opened by hand")
	want(CircuitByHand(hand, false, "", now), CircuitRecovering, 1, "closed by hand")
}

// TestACircuitNeverLetsTwoProbesGo: whatever ends in whatever order, an open
// circuit has at most one probe, every pause is positive and at most the longest, and while it
// recovers no more start than the ramp has room for.
func TestACircuitNeverLetsTwoProbesGo(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		c := Circuit{Policy: drover.CircuitPolicy{Failures: rapid.IntRange(1, 4).Draw(rt, "failures")}}
		now := Instant(1)
		version := int32(0)
		running := map[int32]bool{}
		probe := int32(0)
		for range rapid.IntRange(1, 80).Draw(rt, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, 2e10).Draw(rt, "time")))
			if rapid.Bool().Draw(rt, "claims") {
				c = CircuitAt(c, now)
				n := CircuitGrant(c, probe != 0 && !running[probe], rapid.Float64Range(0, 0.999).Draw(rt, "jitter"), now)
				if n < -1 || n > 1024 || n > 1 && c.State != CircuitRecovering {
					rt.Fatalf("%+v lets %d go", c, n)
				}
				if n == 0 {
					continue
				}
				if c.State == CircuitProbing && running[probe] {
					rt.Fatal("a second probe")
				}
				version++
				running[version] = true
				if c.State != CircuitClosed {
					if c.State != CircuitRecovering {
						probe = version
					}
					c = CircuitStarted(c, 1, oneTask, version)
				}
				continue
			}
			for v := range running {
				delete(running, v)
				before := c
				switch rapid.IntRange(0, 3).Draw(rt, "ends") {
				case 0:
					c = CircuitSucceeded(c, oneTask, v, now)
					if before.State == CircuitProbing && (c.State == CircuitRecovering) != (v == probe) {
						rt.Fatalf("the success of %d, the probe is %d: %+v", v, probe, c)
					}
				case 1:
					c = CircuitFailed(c, Fault{Class: drover.ClassRetryable}, "no", oneTask, v, now)
				case 2:
					c = CircuitFailed(c, Fault{Class: drover.ClassThrottled, After: time.Duration(rapid.Int64().Draw(rt, "after"))}, "no", oneTask, v, now)
				}
				if c.State == CircuitOpen && (c.Until < now && before.State != CircuitOpen || c.Until > now.Add(MaxDelay)) {
					rt.Fatalf("open until %d at %d: %+v", c.Until, now, c)
				}
				break
			}
		}
	})
}
