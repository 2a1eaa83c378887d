// Package forecast tells how long something will still take, by how long such
// things took. It does no I/O.
package forecast

import (
	"encoding/binary"
	"math"
	"slices"
	"time"
)

// A Service is how long the tasks of a lane ran of late, and how many ended in
// each of the last minutes. It has one size however many it has seen.
type Service struct {
	runs [buckets]uint32 // by the logarithm of the time
	n    uint32          // of runs
	sum  uint64          // of their times, in microseconds: buckets are too wide to add up
	ends [Minutes]uint32 // a ring, by minute
	last int64           // the newest minute of ends, since the Unix epoch
}

const (
	// Minutes is for how long ends are counted.
	Minutes = 15
	// perDoubling buckets a doubling of the time: one is 9 % wide.
	perDoubling = 8
	buckets     = 31*perDoubling + 1 // from 1 ms on to 24 days
	least       = time.Millisecond
	longest     = 31 * 24 * time.Hour // that is believed
	// keep bounds how much is remembered: what is more is halved, so that the last
	// few hundred runs count most.
	keep = 1000
)

func bucketOf(d time.Duration) int {
	if d < least {
		return 0
	}
	return min(1+int(perDoubling*math.Log2(float64(d)/float64(least))), buckets-1)
}

// edges are the lower ends of the buckets, and the upper end of the last.
var edges = func() (e [buckets + 1]float64) {
	for b := 1; b <= buckets; b++ {
		e[b] = float64(least) * math.Exp2(float64(b-1)/perDoubling)
	}
	return e
}()

func edge(b int) float64 { return edges[b] }

// Add counts an attempt that ran for a time and ended at one.
func (s *Service) Add(run time.Duration, at time.Time) {
	s.runs[bucketOf(run)]++
	s.n++
	s.sum += uint64(min(max(run, time.Microsecond), longest).Microseconds())
	s.Ended(at)
	s.fade()
}

// Ended counts an attempt that ended without having run to its end: it says that
// a slot was given back, not how long the work takes.
func (s *Service) Ended(at time.Time) {
	m := at.Unix() / 60
	s.turn(m)
	if s.last-m < Minutes {
		s.ends[m%Minutes]++
	}
}

// turn makes room for a newer minute.
func (s *Service) turn(m int64) {
	if m <= s.last {
		return
	}
	for k := max(s.last+1, m-Minutes+1); k <= m; k++ {
		s.ends[k%Minutes] = 0
	}
	s.last = m
}

func (s *Service) fade() {
	for s.n > keep {
		was := s.n
		s.n = 0
		for b, n := range s.runs {
			s.runs[b] = n / 2
			s.n += n / 2
		}
		s.sum = max(uint64(s.n), uint64(float64(s.sum)/float64(was)*float64(s.n)))
	}
}

// Merge adds what another one has seen.
func (s *Service) Merge(o *Service) {
	for b, n := range o.runs {
		s.runs[b] += n
	}
	s.n, s.sum = s.n+o.n, s.sum+o.sum
	s.turn(o.last)
	for m := o.last; m > o.last-Minutes && m > 0; m-- {
		if s.last-m < Minutes {
			s.ends[m%Minutes] += o.ends[m%Minutes]
		}
	}
	s.fade()
}

// N is how many runs it remembers.
func (s *Service) N() int {
	if s == nil {
		return 0
	}
	return int(s.n)
}

// Ends is how many ended in the last minutes up to now.
func (s *Service) Ends(now time.Time) (n int) {
	if s == nil {
		return 0
	}
	for m := now.Unix() / 60; m > now.Unix()/60-Minutes && m > 0; m-- {
		if m <= s.last && s.last-m < Minutes {
			n += int(s.ends[m%Minutes])
		}
	}
	return n
}

// Mean is the mean time of a run; 0 when none is known.
func (s *Service) Mean() time.Duration {
	if s.N() == 0 {
		return 0
	}
	return time.Duration(s.sum/uint64(s.n)) * time.Microsecond
}

// Quantile is the time that the part p of the runs was over by.
func (s *Service) Quantile(p float64) time.Duration { return s.Left(p, 0) }

// Left is by when the part p is over of those that have run for elapsed. When none
// ran as long, it takes the time to be as long again.
func (s *Service) Left(p float64, elapsed time.Duration) time.Duration {
	if s.N() == 0 {
		return 0
	}
	return time.Duration(s.left(elapsed).draw(p))
}

// left is how long those that have run for a time still take, to draw from.
type left struct {
	elapsed float64
	scale   float64
	from    int       // the first bucket
	lo      float64   // where that begins
	sum     []float64 // of the runs up to the end of each bucket from there
}

func (s *Service) left(elapsed time.Duration) *left {
	l := &left{scale: s.scale()}
	elapsed = time.Duration(float64(elapsed) / l.scale) // in the time of the buckets
	l.elapsed, l.from = float64(elapsed), bucketOf(elapsed)
	l.lo = max(edge(l.from), l.elapsed)
	total := 0.0
	for b := l.from; b < buckets; b++ {
		n := float64(s.runs[b])
		if w := edge(b+1) - edge(b); b == l.from && elapsed > 0 && b < buckets-1 {
			n *= max(0, min(1, (edge(b+1)-l.elapsed)/w))
		}
		total += n
		l.sum = append(l.sum, total)
	}
	if total < 0.5 {
		l.sum = nil // none ran as long
	}
	return l
}

// draw is by when the part p of them is over, in nanoseconds.
func (l *left) draw(p float64) float64 {
	if l.sum == nil {
		// An exponential whose mean is what has passed: the longer it has taken, the
		// longer it may still.
		return -math.Log(1-min(p, 0.999)) * l.elapsed * l.scale
	}
	want := p * l.sum[len(l.sum)-1]
	k, _ := slices.BinarySearch(l.sum, want)
	for k < len(l.sum)-1 && l.sum[k] == 0 {
		k++
	}
	before, lo := 0.0, l.lo
	if k > 0 {
		before, lo = l.sum[k-1], edge(l.from+k)
	}
	part := 1.0
	if n := l.sum[k] - before; n > 0 {
		part = (want - before) / n
	}
	return (lo + (edge(l.from+k+1)-lo)*part - l.elapsed) * l.scale
}

// scale makes what is drawn from the buckets as long in the mean as the runs were: in
// a long line a few per cent would add up.
func (s *Service) scale() float64 {
	sum := 0.0
	for b, n := range s.runs {
		sum += float64(n) * (edge(b) + edge(b+1)) / 2
	}
	return float64(s.sum) * float64(time.Microsecond) / sum
}

// variance of the time of a run, in seconds squared.
func (s *Service) variance() float64 {
	if s.N() == 0 {
		return 0
	}
	mean, sum := s.Mean().Seconds(), 0.0
	for b, n := range s.runs {
		d := (edge(b)+edge(b+1))/2*s.scale()/float64(time.Second) - mean
		sum += float64(n) * d * d
	}
	return sum / float64(s.n)
}

// Encode packs it: what is zero takes no room.
func (s *Service) Encode() []byte {
	b := binary.AppendUvarint(nil, uint64(max(s.last, 0)))
	for _, n := range s.ends {
		b = binary.AppendUvarint(b, uint64(n))
	}
	b = binary.AppendUvarint(b, s.sum)
	gap := uint64(0)
	for _, n := range s.runs {
		if n == 0 {
			gap++
			continue
		}
		b = binary.AppendUvarint(binary.AppendUvarint(b, gap), uint64(n))
		gap = 0
	}
	return b
}

// Decode unpacks what Encode packed; of what is broken it takes what comes before.
func Decode(b []byte) *Service {
	s := &Service{}
	next := func() (uint64, bool) {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return 0, false
		}
		b = b[n:]
		return v, true
	}
	last, ok := next()
	if !ok || last > math.MaxInt32 { // minutes: until the year 6053
		return s
	}
	s.last = int64(last)
	for i := range s.ends {
		n, ok := next()
		if !ok || n > math.MaxUint32 {
			return s
		}
		s.ends[i] = uint32(n)
	}
	sum, ok := next()
	if !ok || sum > math.MaxUint64/2 {
		return s
	}
	defer func() { // what no run could have is not believed
		if s.n == 0 {
			s.sum = 0
		} else {
			s.sum = min(max(sum, uint64(s.n)), uint64(s.n)*uint64(longest.Microseconds()))
		}
	}()
	for at := uint64(0); ; at++ {
		gap, ok := next()
		if !ok || gap >= buckets {
			return s
		}
		n, ok := next()
		if at += gap; !ok || at >= buckets || n > keep {
			return s
		}
		s.runs[at] = uint32(n)
		s.n += uint32(n)
		if s.n > 2*keep {
			s.runs, s.n = [buckets]uint32{}, 0
			return s
		}
	}
}
