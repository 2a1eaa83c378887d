package admit

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
)

// TestKeptSlotsAreThereForTheirClass: under a flood of batch, whatever anything takes and
// whenever it comes, a task of the class starts at once while its class uses less than
// what is kept, and beyond that before anything of batch; and batch has the rest.
func TestKeptSlotsAreThereForTheirClass(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		in := func(name string, lo, hi int) int { return rapid.IntRange(lo, hi).Draw(rt, name) }
		slots, ahead := in("slots", 1, 8), in("ahead", 1, 4)
		r := Reserve{Class: drover.Interactive, Percent: in("percent", 1, 90)}
		keep := r.Slots(slots)
		if keep >= slots || slots > 1 && keep < 1 || keep*100 < min(slots*r.Percent, (slots-1)*100) {
			rt.Fatalf("%d %% of %d slots are %d", r.Percent, slots, keep)
		}
		type runs struct {
			class drover.Class
			ends  lifecycle.Instant
		}
		var running []runs
		wait := 0 // of the class
		shares, now := NewShares(start), start
		for range in("steps", 1, 100) { // for less than ageing takes
			now = now.Add(100 * time.Millisecond)
			running = slices.DeleteFunc(running, func(x runs) bool { return x.ends <= now })
			wait += in("come", 0, 3) / 2
			count := map[drover.Class]int{}
			for _, x := range running {
				count[x.class]++
			}
			v := View{Now: now, Shares: shares, Workers: []Worker{{Queues: []int32{1}, Slots: slots, Busy: len(running)}},
				Queues: map[int32]Queue{1: {ID: 1, Ahead: ahead, Reserves: []Reserve{r}, Runs: count}}}
			flood := Line{Lane: 1, Class: drover.Batch, Needs: Needs{Queue: 1, Tenant: 1}}
			for i := range 20 {
				flood.Heads = append(flood.Heads, Head{Task: task(i), ReadyAt: start, DueAt: start})
			}
			v.Lines = []Line{flood}
			first := Line{Lane: 2, Class: drover.Interactive, Needs: Needs{Queue: 1, Tenant: 2}}
			for i := range wait {
				first.Heads = append(first.Heads, Head{Task: task(100 + i), ReadyAt: now, DueAt: now})
			}
			if wait > 0 {
				v.Lines = append(v.Lines, first)
			}
			got := map[drover.Class]int{}
			for _, a := range Decide(v).Admitted {
				c := v.Lines[a.Line].Class
				if got[c]++; len(running) == slots { // ahead of a free slot: nobody runs yet
					if c == drover.Batch && keep > 0 {
						rt.Fatalf("batch was admitted ahead of a free slot, which may be one of those that are kept")
					}
					got[c]--
					continue
				}
				running = append(running, runs{c, now.Add(time.Duration(in("takes", 1, 40)) * 100 * time.Millisecond)})
			}
			for c, n := range got {
				shares.Served(Party{1, 1}, c, n, now)
			}
			must := min(wait, max(keep-count[drover.Interactive], 0))
			if got[drover.Interactive] < must {
				rt.Fatalf("%d of the class wait and %d of %d kept slots are theirs to take; %d started", wait, must, keep, got[drover.Interactive])
			}
			if wait -= got[drover.Interactive]; wait > 0 && got[drover.Batch] > 0 {
				rt.Fatalf("%d of batch started while %d of the class waited", got[drover.Batch], wait)
			}
			batch, class := count[drover.Batch]+got[drover.Batch], count[drover.Interactive]+got[drover.Interactive]
			if free := slots - batch - class; free+min(class, keep) < keep || free > max(keep-class, 0) {
				rt.Fatalf("batch has %d of %d slots, the class %d, and %d are kept: %d are free", batch, slots, class, keep, free)
			}
		}
	})
}

// TestWhatIsKeptCountsTheClassesBefore: a share of a later class is not kept beside that of
// an earlier one, and is told with how much of it is used.
func TestWhatIsKeptCountsTheClassesBefore(t *testing.T) {
	t.Parallel()
	view := func(class drover.Class, runs map[drover.Class]int) View {
		busy := 0
		for _, n := range runs {
			busy += n
		}
		return View{Now: start, Workers: []Worker{{Queues: []int32{1}, Slots: 10, Busy: busy}},
			Queues: map[int32]Queue{1: {ID: 1, Name: "q", Ahead: 1, Runs: runs, Reserves: []Reserve{{drover.Interactive, 20}, {drover.Urgent, 50}}}},
			Lines:  []Line{{Lane: 1, Class: class, Needs: Needs{Queue: 1, Tenant: 1}, Heads: []Head{{Task: task(1), ReadyAt: start, DueAt: start}}}}}
	}
	for _, c := range []struct {
		class drover.Class
		runs  map[drover.Class]int
		kept  int64 // 0: it starts
		used  int64
		by    string
	}{
		{drover.Batch, map[drover.Class]int{drover.Batch: 4}, 0, 0, ""},
		{drover.Batch, map[drover.Class]int{drover.Batch: 5}, 5, 0, "urgent"},
		{drover.Normal, map[drover.Class]int{drover.Batch: 5, drover.Urgent: 1}, 5, 1, "urgent"},
		{drover.Batch, map[drover.Class]int{drover.Batch: 4, drover.Interactive: 1}, 0, 0, ""},
		{drover.Batch, map[drover.Class]int{drover.Batch: 4, drover.Urgent: 5}, 2, 0, "interactive"},
		{drover.Urgent, map[drover.Class]int{drover.Batch: 5}, 0, 0, ""},
		{drover.Urgent, map[drover.Class]int{drover.Batch: 5, drover.Urgent: 3}, 2, 0, "interactive"},
		{drover.Interactive, map[drover.Class]int{drover.Batch: 5, drover.Urgent: 4}, 0, 0, ""},
		{11, map[drover.Class]int{drover.Batch: 5, drover.Urgent: 3}, 2, 0, "interactive"},
	} {
		d := Decide(view(c.class, c.runs))
		if c.kept == 0 {
			if len(d.Admitted) != 1 {
				t.Errorf("%s beside %v waits for %+v", c.class, c.runs, d.Waiting)
			}
			continue
		}
		if len(d.Waiting) != 1 || len(d.Waiting[0].Blockers) != 1 {
			t.Fatalf("%s beside %v: %+v", c.class, c.runs, d)
		}
		if b := d.Waiting[0].Blockers[0]; b.Code != Priority || b.Subject.Kind != "reserve" || b.Subject.Name != c.by || b.Subject.Limit != c.kept || b.Subject.Used != c.used {
			t.Errorf("%s beside %v waits for %+v, want %d kept for %s of which %d are used", c.class, c.runs, b, c.kept, c.by, c.used)
		}
	}
}
