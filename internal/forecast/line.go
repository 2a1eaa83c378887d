package forecast

import (
	"math"
	"slices"
	"time"
)

// Busy is a slot that is in use.
type Busy struct {
	For time.Duration // it has been
	Of  *Service      // of those that it is one of
}

// Ahead are tasks that go first.
type Ahead struct {
	N  int
	Of *Service
}

// Line is what a task waits in: slots that are given back and taken again by those
// ahead of it.
type Line struct {
	Free int
	Busy []Busy
	// MoreBusy slots are in use besides, about which nothing more is said: they are
	// like those of Busy.
	MoreBusy int
	Ahead    []Ahead
}

// Wait is when a wait is over: half of such waits are by P50, nine of ten by P90.
type Wait struct {
	P50, P90 time.Duration
	// From is how many runs it is judged by.
	From int
}

const (
	trials   = 200 // of one forecast
	simulate = 300 // of those ahead; what the others take is drawn at once
	slotsMax = 256 // that are looked at one by one
)

// Confidence is low, medium or high.
func (w Wait) Confidence() string {
	switch {
	case w.From >= 100:
		return "high"
	case w.From >= 20:
		return "medium"
	}
	return "low"
}

// Plus adds something that follows it, independent of it.
func (w Wait) Plus(o Wait) Wait {
	p50 := min(w.P50+o.P50, Farthest)
	a, b := float64(w.P90-w.P50), float64(o.P90-o.P50)
	from := min(w.From, o.From)
	if w == (Wait{}) || o == (Wait{}) {
		from = max(w.From, o.From)
	}
	return Wait{P50: p50, P90: p50 + time.Duration(math.Hypot(a, b)), From: from}
}

// Farthest is as far as anything is forecast.
const Farthest = 100 * 365 * 24 * time.Hour

// Times is n runs of d one after the other, no longer than Farthest.
func Times(n int, d time.Duration) time.Duration {
	return time.Duration(min(float64(n)*float64(d), float64(Farthest)))
}

// Of is the forecast of a run, of which elapsed has passed.
func (s *Service) Of(elapsed time.Duration) (Wait, bool) {
	if s.N() == 0 {
		return Wait{}, false
	}
	return Wait{P50: s.Left(0.5, elapsed), P90: s.Left(0.9, elapsed), From: s.N()}, true
}

// dice is a small generator of its own, so that the same line has the same forecast.
type dice uint64

func (d *dice) draw() float64 {
	*d += 0x9e3779b97f4a7c15
	z := uint64(*d)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return float64((z^z>>31)>>11) / (1 << 53)
}

// Forecast says when the task has its slot. It plays the line a number of times:
// what is in use is given back at times drawn from those that ran as long already,
// and each of those ahead takes the next. It does not know who comes later and goes
// first.
func (l Line) Forecast() (Wait, bool) {
	ahead, known := 0, 0
	from := math.MaxInt
	for _, a := range l.Ahead {
		ahead += a.N
		if a.N > 0 && a.Of.N() > 0 {
			known += a.N
			from = min(from, a.Of.N())
		}
	}
	if ahead < l.Free {
		return Wait{From: keep}, true // it is its turn
	}
	busy := slices.DeleteFunc(slices.Clone(l.Busy), func(b Busy) bool { return b.Of.N() == 0 })
	for _, b := range busy {
		from = min(from, b.Of.N())
	}
	if len(busy) == 0 && l.Free == 0 || ahead > 0 && known == 0 && len(busy) == 0 {
		return Wait{}, false
	}
	// What is drawn from is made once.
	whole := map[*Service]*left{}
	of := func(s *Service) *left {
		if whole[s] == nil {
			whole[s] = s.left(0)
		}
		return whole[s]
	}
	var kinds []*left // of those ahead, or of what runs when nothing is known of them
	var parts []int   // how many of them, added up
	var means []time.Duration
	var variances []float64
	kind := func(s *Service, n int) {
		if n > 0 && s.N() > 0 {
			kinds, means, variances = append(kinds, of(s)), append(means, s.Mean()), append(variances, s.variance())
			if k := len(parts); k > 0 {
				n += parts[k-1]
			}
			parts = append(parts, n)
		}
	}
	for _, a := range l.Ahead {
		kind(a.Of, a.N)
	}
	if known == 0 {
		for _, b := range busy {
			kind(b.Of, 1)
		}
	}
	pick := func(d *dice) int {
		k, _ := slices.BinarySearch(parts, 1+int(d.draw()*float64(parts[len(parts)-1])))
		return k
	}
	leave := make([]*left, len(busy))
	for i, b := range busy {
		leave[i] = b.Of.left(b.For)
	}
	// More slots than are looked at: the line is taken as one for the part of them.
	slots := len(l.Busy) + l.MoreBusy + l.Free
	looked := min(slots, slotsMax)
	turns := ahead * looked / max(slots, 1)
	free := min(l.Free*looked/max(slots, 1), looked)
	if len(busy) == 0 {
		free = max(free, 1)
	}
	d := dice(uint64(ahead)<<20 ^ uint64(slots))
	ends := make([]float64, trials)
	q := make([]float64, 0, looked)
	for i := range ends {
		q = q[:0]
		for range free {
			q = append(q, 0)
		}
		for k := 0; len(q) < looked && len(busy) > 0; k++ {
			q = append(q, leave[k%len(leave)].draw(d.draw()))
		}
		slices.Sort(q) // a sorted list is a heap
		for range min(turns, simulate) {
			q[0] += kinds[pick(&d)].draw(d.draw())
			sink(q)
		}
		ends[i] = q[0]
		if more := turns - simulate; more > 0 {
			k := pick(&d)
			mean := float64(more) * means[k].Seconds() / float64(looked)
			sd := math.Sqrt(float64(more)*variances[k]) / float64(looked)
			normal := math.Sqrt(-2*math.Log(1-d.draw())) * math.Cos(2*math.Pi*d.draw())
			ends[i] += max(0, mean+sd*normal) * float64(time.Second)
		}
	}
	slices.Sort(ends)
	return Wait{P50: time.Duration(min(ends[trials/2], float64(Farthest))), P90: time.Duration(min(ends[trials*9/10], float64(Farthest))), From: from}, true
}

// sink restores the heap whose root has grown.
func sink(q []float64) {
	for i := 0; ; {
		k := 2*i + 1
		if k >= len(q) {
			return
		}
		if k+1 < len(q) && q[k+1] < q[k] {
			k++
		}
		if q[i] <= q[k] {
			return
		}
		q[i], q[k] = q[k], q[i]
		i = k
	}
}
