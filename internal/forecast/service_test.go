package forecast

import (
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestQuantilesAreThoseOfTheRuns, to the width of a bucket.
func TestQuantilesAreThoseOfTheRuns(t *testing.T) {
	t.Parallel()
	s := &Service{}
	for i := 1; i <= 100; i++ {
		s.Add(time.Duration(i)*time.Second, epoch)
	}
	near := func(got, want time.Duration) bool { return got > want*9/10 && got < want*11/10 }
	for _, c := range []struct {
		p             float64
		elapsed, want time.Duration
	}{{0.5, 0, 50 * time.Second}, {0.9, 0, 90 * time.Second}, {0.5, 60 * time.Second, 20 * time.Second}, {0.9, 80 * time.Second, 18 * time.Second}} {
		got := s.Left(c.p, c.elapsed)
		if c.elapsed > 0 && (got-c.want).Abs() < 5*time.Second || near(got, c.want) {
			continue
		}
		t.Errorf("%v of those that have run %s are over in %s, want %s", c.p, c.elapsed, got, c.want)
	}
	if got := s.Left(0.5, time.Hour); got < 30*time.Minute || got > time.Hour {
		t.Errorf("one that has run longer than any takes %s more, want about as long again", got)
	}
	if m := s.Mean(); !near(m, 50*time.Second) {
		t.Errorf("the mean is %s", m)
	}
}

// TestWhatIsNewCountsMore: it forgets, and does not grow.
func TestWhatIsNewCountsMore(t *testing.T) {
	t.Parallel()
	s := &Service{}
	for range 5000 {
		s.Add(time.Second, epoch)
	}
	for range 2000 {
		s.Add(time.Minute, epoch)
	}
	if got := s.Quantile(0.5); s.N() > keep || got < 50*time.Second {
		t.Errorf("after 2,000 long runs the half of %d is %s", s.N(), got)
	}
}

// TestEndsAreCountedByTheMinute up to the last 15, whatever their order.
func TestEndsAreCountedByTheMinute(t *testing.T) {
	t.Parallel()
	s, o := &Service{}, &Service{}
	for m := range 20 {
		s.Add(time.Second, epoch.Add(time.Duration(m)*time.Minute))
		o.Ended(epoch.Add(time.Duration(19-m) * time.Minute))
	}
	now := epoch.Add(19 * time.Minute)
	if a, b := s.Ends(now), o.Ends(now); a != Minutes || b != Minutes {
		t.Errorf("%d and %d ends, want %d", a, b, Minutes)
	}
	if n := s.Ends(now.Add(10 * time.Minute)); n != 5 {
		t.Errorf("10 minutes later there are %d ends, want 5", n)
	}
	if s.Merge(o); s.Ends(now) != 2*Minutes || o.N() != 0 {
		t.Errorf("together %d ends; those without a run count %d", s.Ends(now), o.N())
	}
}

// TestAServiceSurvivesItsEncoding.
func TestAServiceSurvivesItsEncoding(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		s := &Service{}
		for range rapid.IntRange(0, 50).Draw(rt, "runs") {
			at := epoch.Add(time.Duration(rapid.IntRange(0, 3600).Draw(rt, "at")) * time.Second)
			if d := time.Duration(rapid.Int64Range(0, 30*24*3600*1000).Draw(rt, "ms")) * time.Millisecond; d%2 == 0 {
				s.Add(d, at)
			} else {
				s.Ended(at)
			}
		}
		if got := Decode(s.Encode()); !reflect.DeepEqual(got, s) {
			rt.Fatalf("%+v became %+v", s, got)
		}
	})
}

// FuzzDecode: whatever stands in the database, what comes of it can be used.
func FuzzDecode(f *testing.F) {
	s := &Service{}
	s.Add(time.Second, epoch)
	f.Add(s.Encode())
	f.Add([]byte{})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		s := Decode(b)
		if s.N() > 2*keep {
			t.Fatalf("it remembers %d runs", s.N())
		}
		s.Merge(Decode(b))
		s.Add(time.Second, epoch)
		if s.N() > keep || s.Quantile(0.9) < s.Quantile(0.1) || s.Ends(epoch) < 0 {
			t.Fatalf("%d runs, %s to %s", s.N(), s.Quantile(0.1), s.Quantile(0.9))
		}
	})
}
