package admit

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestARuleFiresFromItsBoundOnAndUntilLessWaits.
func TestARuleFiresFromItsBoundOnAndUntilLessWaits(t *testing.T) {
	t.Parallel()
	all := Intake{Waiting: 10, Age: 10 * time.Minute, Wait: time.Hour}
	for _, tc := range []struct {
		name   string
		rule   Intake
		m      Measure
		firing bool
		want   bool
	}{
		{"little", all, Measure{10, 10 * time.Minute, time.Hour}, false, false},
		{"many", all, Measure{11, 0, 0}, false, true},
		{"old", all, Measure{1, 10*time.Minute + 1, 0}, false, true},
		{"slow", all, Measure{1, 0, time.Hour + 1}, false, true},
		{"still many", all, Measure{9, 0, 0}, true, true},
		{"fewer", all, Measure{8, 8 * time.Minute, 48 * time.Minute}, true, false},
		{"still old", all, Measure{1, 8*time.Minute + 1, 0}, true, true},
		{"still slow", all, Measure{1, 0, 48*time.Minute + 1}, true, true},
		{"a forecast that is gone", all, Measure{1, 0, -1}, true, true},
		{"nothing waits", all, Measure{0, 0, -1}, true, false},
		{"a forecast that was never there", all, Measure{1, 0, -1}, false, false},
		{"not asked for", Intake{Waiting: 5}, Measure{1, time.Hour, 10 * time.Hour}, true, false},
		{"a bound of one", Intake{Waiting: 1}, Measure{1, 0, 0}, true, true},
		{"nothing, of one", Intake{Waiting: 1}, Measure{0, 0, 0}, true, false},
	} {
		if got, why := Overloaded(tc.rule, tc.m, tc.firing); got != tc.want || why == "" && (got || tc.firing) {
			t.Errorf("%s: %v %q", tc.name, got, why)
		}
	}
}

// TestMoreLoadNeverClearsARule: what fires under a load fires under a greater one, and
// what fires without having fired before fires also when it had.
func TestMoreLoadNeverClearsARule(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		bound := func(name string) int64 { return rapid.Int64Range(0, 1000).Draw(t, name) }
		r := Intake{bound("waiting"), time.Duration(bound("age")), time.Duration(bound("wait"))}
		m := Measure{bound("m"), time.Duration(bound("a")), time.Duration(bound("w"))}
		more := Measure{m.Waiting + bound("m+"), m.Age + time.Duration(bound("a+")), m.Wait + time.Duration(bound("w+"))}
		firing := rapid.Bool().Draw(t, "firing")
		now, _ := Overloaded(r, m, firing)
		then, _ := Overloaded(r, more, firing)
		still, _ := Overloaded(r, m, true)
		if now && (!then || !still) {
			t.Fatalf("%+v fires at %+v, at %+v %v, while it fires %v", r, m, more, then, still)
		}
	})
}
