package admit

import (
	"slices"

	"github.com/drover-dev/drover"
)

// Reserve is a share of a queue's slots that is kept for a class and those before it.
type Reserve struct {
	Class   drover.Class
	Percent int
}

// Slots is how many of so many slots are kept: a part of one is one, and one is left
// for everybody in any case.
func (r Reserve) Slots(of int) int {
	return max(min((of*r.Percent+99)/100, of-1), 0)
}

// reserved tells if slots of the line's queue are kept from it, and if so many that it
// must not take one now, had it one: behind, lack.
func (d *decider) reserved(l *Line) (why Subject, behind, lack bool) {
	q := d.v.Queues[l.Queue]
	if len(q.Reserves) == 0 || q.Reserves[0].Class >= l.Class {
		return Subject{}, false, false
	}
	slots, free := 0, 0
	for i := range d.v.Workers {
		if w := &d.v.Workers[i]; !w.Draining && slices.Contains(w.Queues, l.Queue) {
			slots += w.Slots
			free += max(d.left(i).slots, 0)
		}
	}
	most := 0
	for _, r := range q.Reserves {
		if r.Class >= l.Class {
			break
		}
		used := 0
		for class, n := range q.Runs {
			if class <= r.Class {
				used += n
			}
		}
		for k, n := range d.took {
			if k.queue == l.Queue && k.class <= r.Class {
				used += n
			}
		}
		keep := r.Slots(slots)
		behind = behind || keep > 0
		if lacks := keep - used; lacks > most && max(free, 1)-1 < lacks {
			most = lacks
			why, lack = Subject{Kind: "reserve", Name: r.Class.String(), ID: q.ID, Limit: int64(keep), Used: int64(used), Kept: true}, true
		}
	}
	return why, behind, lack
}
