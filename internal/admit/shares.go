package admit

import (
	"maps"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
)

// AgeStep is how long a class waits in a queue for each number by which it goes
// before others: a class of number c of which something may run goes first when
// nothing of it was admitted for c times as long.
const AgeStep = 2 * time.Second

// Patience is how long a task that asks for several units of something waits before
// what becomes free of it is kept for it.
const Patience = 30 * time.Second

// quantum is what a task counts for as long as it runs, beside the time it has had: those
// who have just begun are not nothing. How long it will run is not known.
const quantum = float64(time.Second / time.Microsecond)

// Party is a tenant in a queue: shares are counted by queue, as slots are.
type Party struct{ Queue, Tenant int32 }

// rank is a class in a queue.
type rank struct {
	queue int32
	class drover.Class
}

// Shares remembers what tenants have had, in slot-seconds by queue, and when each
// class was served last. Whoever decides keeps it from decision to decision; it is
// lost with the process and nobody is wronged for long.
type Shares struct {
	at     lifecycle.Instant
	have   map[Party]*share
	served map[rank]lifecycle.Instant
}

type share struct {
	weight  float64
	service float64 // slot-microseconds it has had, and what it did not ask for
	inUse   int
	waits   bool
}

// NewShares begins at now, with nobody ahead of anybody.
func NewShares(now lifecycle.Instant) *Shares {
	return &Shares{at: now, have: map[Party]*share{}, served: map[rank]lifecycle.Instant{}}
}

// Advance adds what was used since the last time. inUse counts the slots that each
// tenant has in each queue, waits who waits for more; weight is each tenant's share
// relative to others, 1 where it is not in the map. A tenant that neither has nor
// wants anything is owed nothing for that time.
func (s *Shares) Advance(now lifecycle.Instant, inUse map[Party]int, waits map[Party]bool, weight map[int32]float64) {
	span := float64(max(now-s.at, 0))
	s.at = max(now, s.at)
	for p, x := range s.have {
		x.service += float64(x.inUse) * span
		if x.inUse == 0 && !x.waits && inUse[p] == 0 && !waits[p] {
			delete(s.have, p) // when it comes back it begins where the others are
		}
	}
	floor := map[int32]float64{} // of each queue, the least that a tenant which waits has had
	for p, x := range s.have {
		v := x.service / x.weight
		if least, ok := floor[p.Queue]; !ok || v < least {
			floor[p.Queue] = v
		}
	}
	begin := func(p Party) {
		if s.have[p] == nil {
			w := weightOf(weight, p.Tenant)
			s.have[p] = &share{weight: w, service: floor[p.Queue] * w}
		}
	}
	for p := range inUse {
		begin(p)
	}
	for p := range waits {
		begin(p)
	}
	for p, x := range s.have {
		w := weightOf(weight, p.Tenant)
		if w != x.weight { // what it had is what its new weight makes of it
			x.service *= w / x.weight
			x.weight = w
		}
		x.inUse, x.waits = inUse[p], waits[p]
	}
}

func weightOf(weight map[int32]float64, tenant int32) float64 {
	if w := weight[tenant]; w > 0 {
		return w
	}
	return 1
}

// Served tells that a task of a tenant and class was admitted: its slots count from
// now on.
func (s *Shares) Served(p Party, class drover.Class, slots int, now lifecycle.Instant) {
	if x := s.have[p]; x != nil {
		x.inUse += slots
	}
	s.served[rank{p.Queue, class}] = now
	if len(s.served) > 10_000 {
		maps.DeleteFunc(s.served, func(_ rank, at lifecycle.Instant) bool { return now.Sub(at) > 100*AgeStep })
	}
}

// of is what a tenant has had of a queue by its weight, with so many more slots.
func (s *Shares) of(p Party, more int) float64 {
	if s == nil {
		return float64(more)
	}
	x := s.have[p]
	if x == nil {
		return float64(more) * quantum
	}
	return (x.service + float64(x.inUse+more)*quantum) / x.weight
}

func (s *Shares) lastServed(queue int32, class drover.Class) lifecycle.Instant {
	if s == nil {
		return 0
	}
	return s.served[rank{queue, class}]
}
