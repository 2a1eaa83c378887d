package forecast

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
)

// plant is a queue with slots on a driven clock: tasks come, wait their turn and run.
type plant struct {
	now   float64 // seconds
	dice  dice
	slots []float64 // when each slot is free; busy since in began
	began []float64
	seen  *Service
	ends  []end // to come, by time
}

type end struct{ at, ran float64 }

var epoch = time.Unix(1_767_225_600, 0)

func at(sec float64) time.Time { return epoch.Add(time.Duration(sec * float64(time.Second))) }

// runs are ways to draw how long a task runs, all of one second in the mean.
var runs = map[string]func(*dice) float64{
	"even":        func(d *dice) float64 { return 2 * d.draw() },
	"exponential": func(d *dice) float64 { return -math.Log(1 - d.draw()) },
	"two kinds": func(d *dice) float64 { // most are short, one of ten is long
		if d.draw() < 0.1 {
			return 5.5
		}
		return 0.5
	},
}

// TestForecastsAreCalibrated: in a steady load half of the waits end before their
// p50, and nine of ten before their p90. Every wait is forecast when it begins, from
// nothing but what had ended by then.
func TestForecastsAreCalibrated(t *testing.T) {
	t.Parallel()
	for name, run := range runs {
		for _, slots := range []int{1, 4, 16} {
			t.Run(fmt.Sprintf("%s, %d slots", name, slots), func(t *testing.T) {
				t.Parallel()
				p := &plant{dice: dice(slots), slots: make([]float64, slots), began: make([]float64, slots), seen: &Service{}}
				before50, before90, n := 0, 0, 0
				for task := range 5000 {
					// A part of what slots give back comes: lines come and go.
					p.now += -math.Log(1-p.dice.draw()) / float64(slots) / 0.85
					for len(p.ends) > 0 && p.ends[0].at <= p.now {
						p.seen.Add(time.Duration(p.ends[0].ran*float64(time.Second)), at(p.ends[0].at))
						p.ends = p.ends[1:]
					}
					l := Line{}
					waiting := 0
					for _, e := range p.ends {
						if e.at-e.ran > p.now {
							waiting++
						} else {
							l.Busy = append(l.Busy, Busy{For: time.Duration((p.now - (e.at - e.ran)) * float64(time.Second)), Of: p.seen})
						}
					}
					l.Free = slots - len(l.Busy)
					l.Ahead = []Ahead{{N: waiting, Of: p.seen}}
					// It takes the slot that is free first, after those ahead of it.
					k := 0
					for i := range p.slots {
						if p.slots[i] < p.slots[k] {
							k = i
						}
					}
					start, ran := max(p.slots[k], p.now), run(&p.dice)
					p.slots[k], p.began[k] = start+ran, start
					e := end{start + ran, ran}
					i, _ := slices.BinarySearchFunc(p.ends, e, func(a, b end) int { return int(math.Copysign(1, a.at-b.at)) })
					p.ends = slices.Insert(p.ends, i, e)
					w, ok := l.Forecast()
					if task < 500 || start == p.now {
						continue // it warms up; or there was no wait
					}
					if !ok {
						t.Fatalf("task %d: no forecast, after %d ends", task, p.seen.N())
					}
					n++
					wait := time.Duration((start - p.now) * float64(time.Second))
					if wait <= w.P50 {
						before50++
					}
					if wait <= w.P90 {
						before90++
					}
				}
				half, most := float64(before50)/float64(n), float64(before90)/float64(n)
				t.Logf("%d waits: %.1f %% before p50, %.1f %% before p90", n, 100*half, 100*most)
				if n < 700 {
					t.Fatalf("only %d waits", n)
				}
				if half < 0.40 || half > 0.60 {
					t.Errorf("%.1f %% of waits end before p50, want 50 ± 10 %%", 100*half)
				}
				if most < 0.85 || most > 0.95 {
					t.Errorf("%.1f %% of waits end before p90, want 90 ± 5 %%", 100*most)
				}
			})
		}
	}
}

// TestWhatAlwaysTakesTheSameIsForecastSo: a long line of such tasks too, though the
// statistic keeps times to a few per cent only.
func TestWhatAlwaysTakesTheSameIsForecastSo(t *testing.T) {
	t.Parallel()
	for _, run := range []time.Duration{3 * time.Millisecond, 700 * time.Millisecond, time.Second, 47 * time.Minute} {
		s := &Service{}
		for range 3 * keep {
			s.Add(run, epoch)
		}
		w, ok := Line{Busy: []Busy{{0, s}, {run / 2, s}}, Ahead: []Ahead{{200, s}}}.Forecast()
		if want := 100*run + run/2; !ok || (w.P50-want).Abs() > want/50 || (w.P90-want).Abs() > want/50 {
			t.Errorf("200 ahead of 2 slots, each %s: %+v, want %s", run, w, want)
		}
	}
}

// TestTheSameLineHasTheSameForecast: nothing in a forecast is left to chance.
func TestTheSameLineHasTheSameForecast(t *testing.T) {
	t.Parallel()
	s := &Service{}
	for i := range 50 {
		s.Add(time.Duration(i)*time.Second, epoch)
	}
	l := Line{Busy: []Busy{{3 * time.Second, s}, {time.Second, s}}, Ahead: []Ahead{{7, s}}}
	first, ok := l.Forecast()
	for range 10 {
		if again, _ := l.Forecast(); !ok || again != first || first.P50 == 0 || first.P90 <= first.P50 {
			t.Fatalf("forecasts %+v and %+v", first, again)
		}
	}
}

// TestALineOfWhichNothingIsKnownHasNoForecast, and one whose turn it is starts at once.
func TestALineOfWhichNothingIsKnownHasNoForecast(t *testing.T) {
	t.Parallel()
	for _, l := range []Line{{}, {Busy: []Busy{{time.Second, nil}}}, {Busy: []Busy{{time.Second, &Service{}}}, Ahead: []Ahead{{3, nil}}}, {Free: 1, Ahead: []Ahead{{3, nil}}}} {
		if w, ok := l.Forecast(); ok {
			t.Errorf("%+v has the forecast %+v", l, w)
		}
	}
	if w, ok := (Line{Free: 2, Ahead: []Ahead{{1, nil}}}).Forecast(); !ok || w.P90 != 0 {
		t.Errorf("with a slot left: %+v, %t", w, ok)
	}
}

// TestALongLineIsForecastInTime: how long it is makes no difference to how long the
// forecast takes, and the mean of what is ahead decides.
func TestALongLineIsForecastInTime(t *testing.T) {
	t.Parallel()
	s := &Service{}
	for i := range 400 {
		s.Add(time.Duration(500+i*10/4)*time.Millisecond, epoch) // 1 s in the mean
	}
	for _, slots := range []int{1, 10, 1000} {
		l := Line{Ahead: []Ahead{{100_000, s}}, MoreBusy: max(0, slots-256)}
		for range min(slots, 256) {
			l.Busy = append(l.Busy, Busy{0, s})
		}
		w, ok := l.Forecast()
		want := 100_000 * s.Mean() / time.Duration(slots)
		if !ok || w.P50 < want*95/100 || w.P50 > want*105/100+2*time.Second || w.P90 < w.P50 {
			t.Errorf("%d slots: %+v, want about %s", slots, w, want)
		}
	}
}

// TestAForecastOfAgesIsNoTimeBeforeNow: it ends at the farthest that is told.
func TestAForecastOfAgesIsNoTimeBeforeNow(t *testing.T) {
	t.Parallel()
	s := &Service{}
	s.Add(30*24*time.Hour, time.Unix(1_700_000_000, 0))
	w, ok := Line{Busy: []Busy{{Of: s}}, Ahead: []Ahead{{N: 10_000, Of: s}}}.Forecast()
	if !ok || w.P50 != Farthest || w.P90 != Farthest {
		t.Errorf("%+v, %t", w, ok)
	}
}
