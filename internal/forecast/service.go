// Package forecast tells how long something will still take, by how long such
// things took. It does no I/O.
package forecast

import (
	"encoding/binary"
	"math"
	"time"
)

// A Service is how long the tasks of a lane ran of late, and how many ended in
// each of the last minutes. It has one size however many it has seen.
type Service struct {
	runs [buckets]uint32 // by the logarithm of the time
	n    uint32          // of runs
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

// edge is the lower end of a bucket.
func edge(b int) float64 {
	if b <= 0 {
		return 0
	}
	return float64(least) * math.Exp2(float64(b-1)/perDoubling)
}

// Add counts an attempt that ran for a time and ended at one.
func (s *Service) Add(run time.Duration, at time.Time) {
	s.runs[bucketOf(run)]++
	s.n++
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
		s.n = 0
		for b, n := range s.runs {
			s.runs[b] = n / 2
			s.n += n / 2
		}
	}
}

// Merge adds what another one has seen.
func (s *Service) Merge(o *Service) {
	for b, n := range o.runs {
		s.runs[b] += n
	}
	s.n += o.n
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
	sum := 0.0
	for b, n := range s.runs {
		sum += float64(n) * (edge(b) + edge(b+1)) / 2
	}
	return time.Duration(sum / float64(s.n))
}

// Quantile is the time that the part p of the runs was over by.
func (s *Service) Quantile(p float64) time.Duration { return s.Left(p, 0) }

// Left is by when the part p is over of those that have run for elapsed. When none
// ran as long, it takes the time to be as long again.
func (s *Service) Left(p float64, elapsed time.Duration) time.Duration {
	if s.N() == 0 {
		return 0
	}
	over := 0.0 // how many ran longer
	from := bucketOf(elapsed)
	part := 1.0 // of the bucket that elapsed is in
	if w := edge(from+1) - edge(from); elapsed > 0 && from < buckets-1 {
		part = max(0, min(1, (edge(from+1)-float64(elapsed))/w))
	}
	over = part * float64(s.runs[from])
	for b := from + 1; b < buckets; b++ {
		over += float64(s.runs[b])
	}
	if over < 0.5 {
		// An exponential whose mean is what has passed: the longer it has taken, the
		// longer it may still.
		return time.Duration(-math.Log(1-min(p, 0.999)) * float64(elapsed))
	}
	want := p * over
	for b := from; b < buckets; b++ {
		n, lo := float64(s.runs[b]), edge(b)
		if b == from {
			n, lo = part*n, max(lo, float64(elapsed))
		}
		if n > 0 && want <= n {
			return time.Duration(lo + (edge(b+1)-lo)*want/n - float64(elapsed))
		}
		want -= n
	}
	return time.Duration(edge(buckets) - float64(elapsed))
}

// variance of the time of a run, in seconds squared.
func (s *Service) variance() float64 {
	if s.N() == 0 {
		return 0
	}
	mean, sum := s.Mean().Seconds(), 0.0
	for b, n := range s.runs {
		d := (edge(b)+edge(b+1))/2/float64(time.Second) - mean
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
			return &Service{}
		}
	}
}
