package forecast

import (
	"fmt"
	"time"
)

// Target is the time within which what waits only for a worker is to have started.
const Target = time.Minute

// Load is what a queue has to do, and with what.
type Load struct {
	// Startable tasks wait for nothing but a worker like those that there are. Blocked
	// ones wait for something else, and Unfit ones for a worker of another sort: Why and
	// UnfitWhy say for what.
	Startable, Blocked, Unfit int
	Why, UnfitWhy             string
	// Workers of the queue that take tasks, their slots, and how many are in use.
	Workers, Slots, Used int
	// Free are the slots of those of them that could run something of what is startable.
	Free int
	// Mean is how long a task takes; 0 is not known.
	Mean time.Duration
}

// Hint says how many workers a queue wants.
type Hint struct {
	Desired int
	Reason  string
	// Drains is when what is startable now has started: as it is, and with two more
	// workers; negative when that is not known.
	Drains, DrainsPlus2 time.Duration
	TwoMore             string
}

// Hint works out how many workers a queue should have: those for what runs, and those
// that start within Target what waits only for a worker, but no more than there are
// tasks for.
func (l Load) Hint() (h Hint) {
	each := 1
	if l.Workers > 0 {
		each = max(1, l.Slots/l.Workers)
	}
	free := l.Free
	h.Drains, h.DrainsPlus2 = l.drains(l.Slots, free), l.drains(l.Slots+2*each, free+2*each)
	running := ceil(l.Used, each)
	useless := "more workers won't help: " + l.Why
	other := fmt.Sprintf("%d wait for a worker of another sort: %s", l.Unfit, l.UnfitWhy)
	switch {
	case l.Startable == 0 && l.Unfit > 0:
		h.Desired, h.Reason, h.TwoMore = max(running, min(l.Workers, 1)), other, "Nothing: "+other+"."
		if l.Blocked > 0 {
			h.Reason += fmt.Sprintf("; for %d others %s", l.Blocked, useless)
		}
		return h
	case l.Startable == 0 && l.Blocked > 0:
		h.Desired, h.Reason = max(running, min(l.Workers, 1)), useless
		h.TwoMore = "Nothing: " + useless + "."
		return h
	case l.Startable == 0 && l.Workers == 0:
		h.Reason, h.TwoMore = "nothing waits", "Nothing: nothing waits."
		return h
	case l.Startable == 0:
		h.Desired = max(running, 1)
		h.Reason = fmt.Sprintf("nothing waits for a worker; %d of %d slots are in use", l.Used, l.Slots)
		h.TwoMore = "Nothing: nothing waits for a worker."
		return h
	}
	taken := max(l.Slots-l.Free, l.Used) // slots that are not there for them
	want := taken + l.Startable          // no more than this have something to do
	if l.Mean > 0 {
		want = taken + min(l.Startable, max(1, int((Times(l.Startable, l.Mean)+Target-1)/Target)))
	} else if l.Slots > 0 {
		want = min(want, max(l.Slots+each, taken+1))
	} else {
		want = 1
	}
	h.Desired = max(ceil(want, each), min(l.Workers, running))
	if free >= l.Startable {
		h.Desired = max(ceil(taken+l.Startable, each), 1)
		h.Desired = min(h.Desired, max(l.Workers, 1))
	}
	h.Reason = fmt.Sprintf("%d wait only for a worker", l.Startable)
	switch {
	case l.Workers == 0:
		h.Reason += ", and no worker takes them"
	case free >= l.Startable:
		h.Reason += fmt.Sprintf(", and %d slots are free for them", free)
	case l.Mean > 0:
		h.Reason += fmt.Sprintf("; with %d workers they have started within %s", h.Desired, short(Target))
	default:
		h.Reason += "; how long they take is not known yet"
	}
	if l.Blocked > 0 {
		h.Reason += fmt.Sprintf("; for %d others %s", l.Blocked, useless)
	}
	if l.Unfit > 0 {
		h.Reason += "; " + other
	}
	now, then := min(l.Startable, free), min(l.Startable, free+2*each)
	switch {
	case free >= l.Startable:
		h.TwoMore = "Nothing: there is a free slot for each that waits."
	case h.Drains < 0:
		h.TwoMore = fmt.Sprintf("%d start at once instead of %d.", then, now)
		if h.DrainsPlus2 > 0 {
			h.TwoMore = fmt.Sprintf("%d start at once instead of %d; all have started in %s.", then, now, short(h.DrainsPlus2))
		}
	default:
		h.TwoMore = fmt.Sprintf("%d start at once instead of %d; all have started in %s instead of %s.", then, now, short(h.DrainsPlus2), short(h.Drains))
	}
	return h
}

// drains is when the last of those startable has started.
func (l Load) drains(slots, free int) time.Duration {
	if l.Startable <= free {
		return 0
	}
	if slots == 0 || l.Mean == 0 {
		return -1
	}
	return Times(l.Startable-free, l.Mean) / time.Duration(slots)
}

func ceil(n, by int) int { return (n + by - 1) / by }

func short(d time.Duration) string {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
