package admit

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
)

const start = lifecycle.Instant(1_800_000_000_000_000)

func task(n int) drover.TaskID {
	return drover.TaskID{12: byte(n >> 24), 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)}
}

// drawView makes a view of everything that there can be.
func drawView(rt *rapid.T) View {
	in := func(name string, lo, hi int) int { return rapid.IntRange(lo, hi).Draw(rt, name) }
	v := View{Now: start, Queues: map[int32]Queue{}, Held: map[drover.JobID]bool{}, Most: in("most", 0, 12)}
	for q := range int32(in("queues", 1, 3)) {
		x := Queue{ID: q, Name: fmt.Sprintf("q%d", q), Paused: in("paused", 0, 5) == 0, Ahead: in("ahead", 0, 6)}
		if in("keeps", 0, 3) == 0 {
			x.Reserves = []Reserve{{drover.Interactive, in("percent", 1, 40)}, {drover.Normal, in("percent", 41, 90)}}
			x.Runs = map[drover.Class]int{drover.Interactive: in("runs", 0, 2), drover.Batch: in("runs", 0, 2)}
		}
		v.Queues[q] = x
	}
	for i := range in("limits", 0, 5) {
		l := Limit{ID: int32(i + 1), Name: fmt.Sprintf("l%d", i), Scope: Scope(in("scope", 1, 6)), Max: int64(in("max", 1, 6)), Used: int64(in("used", 0, 7))}
		if in("rate", 0, 3) == 0 {
			l = Limit{ID: l.ID, Name: l.Name, Scope: l.Scope, Period: time.Duration(in("period", 1, 1000)) * time.Millisecond, Burst: int64(in("burst", 1, 5)), Arrival: int64(start)*1000 + int64(in("arrival", -2000, 2000))*1e6}
			if in("asked", 0, 4) == 0 {
				l.Until = start + lifecycle.Instant(in("until", -1000, 1000))
			}
		}
		v.Limits = append(v.Limits, l)
	}
	for range in("workers", 0, 4) {
		w := Worker{Queues: []int32{int32(in("serves", 0, 2))}, Tenant: int32(in("of", 0, 2)), Slots: in("slots", 1, 6), Busy: in("busy", 0, 6), Draining: in("draining", 0, 4) == 0,
			Resources: map[string]int64{"gpu": int64(in("gpus", 0, 3))}, Taken: map[string]int64{"gpu": int64(in("taken", 0, 2))}, Labels: map[string]string{"zone": []string{"a", "b"}[in("zone", 0, 1)]}}
		if in("picky", 0, 2) == 0 {
			w.Kinds = []string{"k0"}
		}
		v.Workers = append(v.Workers, w)
	}
	n := 0
	needs := func() Needs {
		x := Needs{Queue: int32(in("queue", 0, len(v.Queues)-1)), Tenant: int32(in("tenant", 1, 2)), Kind: []string{"k0", "k1"}[in("kind", 0, 1)]}
		if in("asks", 0, 2) == 0 {
			x.Requests = map[string]int64{"gpu": int64(in("asked gpus", 1, 3))}
		}
		if in("selects", 0, 3) == 0 {
			x.Labels = map[string]string{"zone": "a"}
		}
		return x
	}
	for range in("claims", 0, 3) {
		v.Claims = append(v.Claims, Admitted{needs(), in("claimed", 1, 4)})
	}
	for i := range in("lines", 0, 6) {
		l := Line{Lane: int32(i + 1), Class: drover.Class(in("class", 1, 4) * 10), Needs: needs()}
		if in("circuit", 0, 6) == 0 {
			l.Circuit = "c"
		}
		for k := range v.Limits {
			if in("takes", 0, 1) == 0 {
				l.Takes = append(l.Takes, Take{k, int64(in("weight", 1, 3))})
			}
		}
		for range in("heads", 1, 5) {
			n++
			l.Heads = append(l.Heads, Head{Task: task(n), Job: drover.JobID{15: byte(in("job", 0, 3))}, DueAt: start - lifecycle.Instant(in("due", 0, 100_000_000)), ReadyAt: start - lifecycle.Instant(in("ready", 0, 100_000_000))})
		}
		slices.SortFunc(l.Heads, func(a, b Head) int { return int(a.DueAt - b.DueAt) })
		v.Lines = append(v.Lines, l)
	}
	for range in("holds", 0, 2) {
		v.Held[drover.JobID{15: byte(in("held", 0, 3))}] = true
	}
	return v
}

// after is the view as it is once a decision was carried out.
func after(v View, d Decision) View {
	v.Limits = slices.Clone(v.Limits)
	v.Claims = slices.Clip(v.Claims)
	gone := map[drover.TaskID]bool{}
	queues := maps.Clone(v.Queues)
	for id, q := range queues {
		q.Runs = maps.Clone(q.Runs)
		queues[id] = q
	}
	v.Queues = queues
	for _, a := range d.Admitted {
		l := &v.Lines[a.Line]
		if r := queues[l.Queue].Runs; r != nil {
			r[l.Class]++
		}
		gone[l.Heads[a.Head].Task] = true
		for _, k := range l.Takes {
			v.Limits[k.Limit].take(k.Weight, v.Now)
		}
		v.Claims = append(v.Claims, Admitted{l.Needs, 1})
	}
	lines := slices.Clone(v.Lines)
	for i := range lines {
		lines[i].Heads = slices.DeleteFunc(slices.Clone(lines[i].Heads), func(h Head) bool { return gone[h.Task] || v.Held[h.Job] })
	}
	v.Lines = lines
	return v
}

// TestNobodyIsForgottenAndNoLimitIsPassed: every head is admitted, held or has a
// verdict, once; what is held of a limit never grows past it, nor a rate past its burst.
func TestNobodyIsForgottenAndNoLimitIsPassed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		v := drawView(rt)
		d := Decide(v)
		seen := map[drover.TaskID]int{}
		used := make([]int64, len(v.Limits))
		for _, a := range d.Admitted {
			l := &v.Lines[a.Line]
			seen[l.Heads[a.Head].Task]++
			if v.Held[l.Heads[a.Head].Job] || v.Queues[l.Queue].Paused || l.Circuit != "" {
				rt.Errorf("line %d was admitted from though its job, queue or circuit stops it", a.Line)
			}
			for _, k := range l.Takes {
				used[k.Limit] += k.Weight
			}
		}
		if v.Most > 0 && len(d.Admitted) > v.Most {
			rt.Errorf("%d admitted of at most %d", len(d.Admitted), v.Most)
		}
		for i, n := range used {
			if free := v.Limits[i].Free(v.Now); n > max(free, 0) {
				rt.Errorf("limit %d had %d free; %d were taken", i, free, n)
			}
			if l := v.Limits[i]; l.Period > 0 && n > 0 {
				if l.take(n, v.Now); d.Arrivals[i] != l.Arrival {
					rt.Errorf("limit %d is used up to %d, told %d", i, l.Arrival, d.Arrivals[i])
				}
			}
		}
		for _, a := range d.Held {
			h := v.Lines[a.Line].Heads[a.Head]
			if seen[h.Task]++; !v.Held[h.Job] {
				rt.Errorf("a task of a job that is not held is")
			}
		}
		for _, w := range d.Waiting {
			if len(w.Blockers) == 0 {
				rt.Errorf("line %d waits for nothing", w.Line)
			}
			for _, h := range v.Lines[w.Line].Heads[w.First:] {
				if seen[h.Task]++; v.Held[h.Job] {
					seen[h.Task]-- // behind the first that waits nobody looks
					seen[h.Task] = 1
				}
			}
		}
		for _, l := range v.Lines {
			for _, h := range l.Heads {
				if seen[h.Task] != 1 {
					rt.Errorf("a task has %d answers", seen[h.Task])
				}
			}
		}
	})
}

// TestBlockersAreTrue: deciding again at once admits nobody whose verdict did not say
// that the next decision would; without all its blockers the first of a line runs, and
// with any one of them left it does not.
func TestBlockersAreTrue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		v := drawView(rt)
		v.Most = 0
		d := Decide(v)
		next := after(v, d)
		if again := Decide(next); len(again.Admitted) > 0 {
			rt.Fatalf("%d more were admitted of the same view: it left somebody idle", len(again.Admitted))
		}
		for _, w := range d.Waiting {
			if len(v.Lines[w.Line].Heads[w.First:]) == 0 {
				rt.Fatalf("a verdict of nobody")
			}
			told := after(v, Decision{Admitted: d.Admitted[:w.After]})
			for _, b := range w.Blockers {
				if b.Code != WorkersFull && b.Code != Priority && b.Code != FairShare || b.Subject.Kind == "reserve" {
					continue
				}
				if i := idle(&told, &v.Lines[w.Line].Needs); i >= 0 {
					rt.Fatalf("line %d waits for %v though worker %d has more slots free than all who were admitted and could take them", w.Line, b, i)
				}
			}
			for leave := -1; leave < len(w.Blockers); leave++ {
				mended := mend(after(v, Decision{Admitted: d.Admitted[:w.After]}), w, leave)
				got := len(Decide(mended).Admitted) > 0
				if leave < 0 && !got {
					rt.Fatalf("without %v line %d does not run: %v", w.Blockers, w.Line, Decide(mended).Waiting)
				}
				// A limit that is kept for somebody else is free once that line is not in the view.
				if leave >= 0 && got && w.Blockers[leave].Code != Priority && w.Blockers[leave].Code != FairShare && !w.Blockers[leave].Subject.Kept {
					rt.Fatalf("with %v line %d runs", w.Blockers[leave], w.Line)
				}
			}
		}
	})
}

// idle finds a worker for needs that has room for them whoever of those that were
// admitted before runs there; −1 is none.
func idle(v *View, n *Needs) int {
	for i := range v.Workers {
		w := &v.Workers[i]
		if w.Draining || !n.Serves(w) {
			continue
		}
		slots, fits := w.Slots-w.Busy-1, true
		for name, asks := range n.Requests {
			fits = fits && asks <= w.Resources[name]-w.Taken[name]
		}
		for k := range v.Claims {
			if c := &v.Claims[k]; c.Serves(w) {
				slots -= c.Count
				for name := range n.Requests {
					fits = fits && c.Requests[name] == 0
				}
			}
		}
		if fits && slots >= 0 {
			return i
		}
	}
	return -1
}

// mend takes the blockers of a verdict away, all but one, and leaves the line alone in the view.
func mend(v View, w Verdict, leave int) View {
	v.Lines = slices.Clone(v.Lines[w.Line : w.Line+1])
	v.Limits = slices.Clone(v.Limits)
	v.Workers = slices.Clone(v.Workers)
	l := &v.Lines[0]
	q := v.Queues[l.Queue]
	more := Worker{Queues: []int32{l.Queue}, Tenant: l.Tenant, Kinds: []string{l.Kind}, Slots: 1000, Labels: l.Labels, Resources: map[string]int64{"gpu": 1000}}
	for i, b := range w.Blockers {
		if i == leave {
			continue
		}
		switch b.Code {
		case QueuePaused:
			q.Paused = false
		case CircuitOpen:
			l.Circuit = ""
		case NoWorker, NoLabels, Draining, LackOfResources:
			v.Workers = append(v.Workers, more)
		case WorkersFull, Priority, FairShare:
			if b.Subject.Kind == "reserve" {
				q.Reserves = nil
				continue
			}
			v.Workers = append(v.Workers, more)
		default:
			for k := range v.Limits {
				if v.Limits[k].ID == b.Subject.ID {
					v.Limits[k] = Limit{ID: b.Subject.ID, Scope: v.Limits[k].Scope, Max: 1000}
				}
			}
		}
	}
	v.Queues = map[int32]Queue{l.Queue: q}
	return v
}

// world runs decisions over time: every tenant is backlogged and its tasks take as
// long as they take.
type world struct {
	now    lifecycle.Instant
	slots  int
	shares *Shares
	takes  map[int32]time.Duration
	weight map[int32]float64
	ends   []struct {
		at     lifecycle.Instant
		tenant int32
	}
	had map[int32]float64
}

func (w *world) step(d time.Duration) {
	busy := map[Party]int{}
	for _, e := range w.ends {
		w.had[e.tenant] += float64(min(w.now.Add(d), e.at) - w.now)
	}
	w.now = w.now.Add(d)
	w.ends = slices.DeleteFunc(w.ends, func(e struct {
		at     lifecycle.Instant
		tenant int32
	}) bool {
		if e.at <= w.now {
			return true
		}
		busy[Party{1, e.tenant}]++
		return false
	})
	waits := map[Party]bool{}
	v := View{Now: w.now, Queues: map[int32]Queue{1: {ID: 1}}, Shares: w.shares, Workers: []Worker{{Queues: []int32{1}, Slots: w.slots, Busy: len(w.ends)}}}
	for tenant := range w.takes {
		waits[Party{1, tenant}] = true
	}
	for _, tenant := range slices.Sorted(func(yield func(int32) bool) {
		for k := range w.takes {
			if !yield(k) {
				return
			}
		}
	}) {
		l := Line{Lane: tenant, Class: drover.Normal, Needs: Needs{Queue: 1, Tenant: tenant}}
		for i := range w.slots {
			l.Heads = append(l.Heads, Head{Task: task(i), ReadyAt: start, DueAt: start})
		}
		v.Lines = append(v.Lines, l)
	}
	w.shares.Advance(w.now, busy, waits, w.weight)
	for _, a := range Decide(v).Admitted {
		tenant := v.Lines[a.Line].Tenant
		w.ends = append(w.ends, struct {
			at     lifecycle.Instant
			tenant int32
		}{w.now.Add(w.takes[tenant]), tenant})
		w.shares.Served(Party{1, tenant}, drover.Normal, 1, w.now)
	}
}

// TestTenantsGetTheirShares: of slot-seconds, within 5 %, with equal and unequal
// durations, weights and slots.
func TestTenantsGetTheirShares(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		slots  int
		takes  map[int32]time.Duration
		weight map[int32]float64
	}{
		{"equal", 10, map[int32]time.Duration{1: time.Second, 2: time.Second, 3: time.Second}, nil},
		{"weights", 10, map[int32]time.Duration{1: time.Second, 2: time.Second, 3: time.Second}, map[int32]float64{2: 3}},
		{"durations", 10, map[int32]time.Duration{1: 200 * time.Millisecond, 2: 2 * time.Second, 3: 20 * time.Second}, nil},
		{"one slot", 1, map[int32]time.Duration{1: 200 * time.Millisecond, 2: 3 * time.Second}, nil},
		{"all", 4, map[int32]time.Duration{1: 500 * time.Millisecond, 2: 5 * time.Second, 3: 9 * time.Second, 4: time.Second}, map[int32]float64{1: 2, 3: 4}},
	} {
		w := &world{now: start, slots: c.slots, shares: NewShares(start), takes: c.takes, weight: c.weight, had: map[int32]float64{}}
		for range 15_000 {
			w.step(100 * time.Millisecond)
		}
		var all, weights float64
		for tenant := range c.takes {
			all += w.had[tenant]
			weights += weightOf(c.weight, tenant)
		}
		for tenant := range c.takes {
			if want := weightOf(c.weight, tenant) / weights; math.Abs(w.had[tenant]/all-want) > 0.05*want {
				t.Errorf("%s: tenant %d had %.3f of the slot-seconds, want %.3f", c.name, tenant, w.had[tenant]/all, want)
			}
		}
		if busy := all / (float64(c.slots) * float64(w.now-start)); busy < 0.9 {
			t.Errorf("%s: slots were in use for %.2f of the time though everybody waited", c.name, busy)
		}
	}
}

// TestComesBackWithoutCredit: who was away is not owed the time, and has its share
// from then on.
func TestComesBackWithoutCredit(t *testing.T) {
	t.Parallel()
	w := &world{now: start, slots: 1, shares: NewShares(start), takes: map[int32]time.Duration{1: time.Second}, had: map[int32]float64{}}
	for range 1000 {
		w.step(time.Second)
	}
	w.takes[2], w.had[1] = time.Second, 0
	for range 100 {
		w.step(time.Second)
	}
	if a, b := w.had[1]/1e6, w.had[2]/1e6; a < 45 || b < 45 {
		t.Errorf("of 100 s the one that was there had %.0f and the one that came %.0f", a, b)
	}
}

// TestClassesRise: while urgent work never ends, a class of number c is served at
// least every c steps, and the more urgent one first all the same.
func TestClassesRise(t *testing.T) {
	t.Parallel()
	shares := NewShares(start)
	now, last, most := start, start, time.Duration(0)
	served := 0
	for range 2000 {
		now = now.Add(100 * time.Millisecond)
		v := View{Now: now, Queues: map[int32]Queue{1: {ID: 1, Ahead: 1}}, Shares: shares, Workers: []Worker{{Queues: []int32{1}, Slots: 1, Busy: 1}}, Lines: []Line{
			{Lane: 1, Class: drover.Interactive, Needs: Needs{Queue: 1, Tenant: 1}, Heads: []Head{{Task: task(1), ReadyAt: now, DueAt: now}}},
			{Lane: 2, Class: drover.Batch, Needs: Needs{Queue: 1, Tenant: 2}, Heads: []Head{{Task: task(2), ReadyAt: start, DueAt: start}}},
		}}
		d := Decide(v)
		if len(d.Admitted) != 1 {
			t.Fatalf("%d admitted into room for one", len(d.Admitted))
		}
		c := v.Lines[d.Admitted[0].Line].Class
		if shares.Served(Party{1, 1}, c, 1, now); c == drover.Batch {
			served++
			most = max(most, now.Sub(last))
			last = now
		} else if b := d.Waiting[0].Blockers[0]; b.Code != Priority || b.Subject.Name != "interactive" {
			t.Fatalf("batch waits for %v, want the class before it", b)
		}
	}
	if bound := time.Duration(drover.Batch) * AgeStep; served < 2 || most > bound || served > 10 {
		t.Errorf("batch was served %d times in 200 s, with %s between; the bound is %s", served, most, bound)
	}
}

// TestRateIsKept: in any window no more start than its rate and one burst, for slow
// and for fast rates, and the rate is reached.
func TestRateIsKept(t *testing.T) {
	t.Parallel()
	for _, period := range []time.Duration{time.Microsecond, 3333 * time.Nanosecond, 10 * time.Millisecond, 7 * time.Second, 1e15} {
		for _, burst := range []int64{1, 3, 100} {
			l := Limit{Period: period, Burst: burst}
			var at []int64
			now := start
			for range 400 {
				now += max(lifecycle.Instant(period.Microseconds()*37/100), 1)
				n := min(max(l.Free(now), 0), 200)
				l.take(n, now)
				for range n {
					at = append(at, int64(now)*1000)
				}
			}
			for i := range at {
				for _, j := range []int{i + 1, i + 10, i + 150, len(at) - 1} {
					if j > i && j < len(at) {
						if most := (at[j]-at[i])/int64(period) + burst; int64(j-i) > most {
							t.Fatalf("period %s burst %d: %d started in %d ns", period, burst, j-i+1, at[j]-at[i])
						}
					}
				}
			}
			span := (int64(now) - int64(start)) * 1000
			if least := min(span/int64(period), 200*400) * 8 / 10; int64(len(at)) < least {
				t.Errorf("period %s burst %d: %d started, at least %d may", period, burst, len(at), least)
			}
		}
	}
}

// TestLargeRequestIsNotStarved: what asks for most of a limit gets it though small
// tasks keep coming, once it has waited for long.
func TestLargeRequestIsNotStarved(t *testing.T) {
	t.Parallel()
	limit := Limit{ID: 1, Name: "gpu", Scope: Named, Max: 10}
	now := start
	var ends []lifecycle.Instant
	for i := range 2000 {
		now = now.Add(100 * time.Millisecond)
		ends = slices.DeleteFunc(ends, func(at lifecycle.Instant) bool { return at <= now })
		limit.Used = int64(len(ends))
		v := View{Now: now, Limits: []Limit{limit}, Queues: map[int32]Queue{1: {ID: 1, Ahead: 100}}, Workers: []Worker{{Queues: []int32{1}, Slots: 100}}, Lines: []Line{
			{Lane: 1, Class: drover.Normal, Needs: Needs{Queue: 1, Tenant: 1}, Takes: []Take{{0, 1}}, Heads: make([]Head, 10)},
			{Lane: 2, Class: drover.Normal, Needs: Needs{Queue: 1, Tenant: 1}, Takes: []Take{{0, 5}}, Heads: []Head{{Task: task(2), ReadyAt: start, DueAt: start}}},
		}}
		for h := range 10 {
			v.Lines[0].Heads[h] = Head{Task: task(100 + h), ReadyAt: now, DueAt: now - 1<<40} // before it in line
		}
		for _, a := range Decide(v).Admitted {
			if a.Line == 1 {
				if waited := now.Sub(start); waited < Patience || waited > Patience+5*time.Second {
					t.Errorf("it waited %s; the bound is %s and a task", waited, Patience)
				}
				return
			}
			ends = append(ends, now.Add(time.Duration(300+(i*7+a.Head*131)%3000)*time.Millisecond))
		}
	}
	t.Error("it never ran")
}

// TestNoMoreIsKeptThanIsNeeded: what has waited for long keeps of a limit what it takes,
// and of a rate only what it could use.
func TestNoMoreIsKeptThanIsNeeded(t *testing.T) {
	t.Parallel()
	sem := Limit{ID: 1, Name: "gpu", Scope: Named, Max: 10}
	rate := Limit{ID: 2, Name: "api", Scope: Named, Period: time.Second, Burst: 5}
	slow := Limit{ID: 3, Name: "slow", Scope: Named, Period: time.Minute, Burst: 1, Arrival: int64(start)*1000 + int64(time.Hour)}
	for _, c := range []struct {
		what  string
		lock  int64 // in use
		limit Limit
		takes []Take // of the one that has waited, of the lock, the limit and the slow rate
		want  int    // how many others start
	}{
		{"a semaphore, and the lock is held", 1, sem, []Take{{0, 1}, {1, 3}}, 7},
		{"more than there is left", 1, Limit{ID: 1, Name: "gpu", Scope: Named, Max: 10, Used: 8}, []Take{{0, 1}, {1, 3}}, 0},
		{"a rate, and the lock is held", 1, rate, []Take{{0, 1}, {1, 2}}, 5},
		{"two rates, of which one is used up", 0, rate, []Take{{1, 1}, {2, 1}}, 5},
		{"more of a rate than ever comes at once", 0, rate, []Take{{1, 6}}, 5},
		{"a rate that is all it lacks", 0, Limit{ID: 2, Name: "api", Scope: Named, Period: time.Second, Burst: 5, Arrival: int64(start)*1000 + int64(3*time.Second)}, []Take{{0, 1}, {1, 4}}, 0},
	} {
		v := View{Now: start, Limits: []Limit{{ID: 9, Name: "lock", Scope: Named, Max: 1, Used: c.lock}, c.limit, slow},
			Queues: map[int32]Queue{1: {ID: 1, Ahead: 100}}, Workers: []Worker{{Queues: []int32{1}, Slots: 100}}, Lines: []Line{
				{Lane: 1, Class: drover.Normal, Needs: Needs{Queue: 1, Tenant: 1}, Takes: []Take{{1, 1}}},
				{Lane: 2, Class: drover.Normal, Needs: Needs{Queue: 1, Tenant: 1}, Takes: c.takes, Heads: []Head{{Task: task(2), ReadyAt: start.Add(-Patience), DueAt: start}}},
			}}
		for h := range 20 {
			v.Lines[0].Heads = append(v.Lines[0].Heads, Head{Task: task(100 + h), ReadyAt: start, DueAt: start - 1<<40})
		}
		n := 0
		for _, a := range Decide(v).Admitted {
			if a.Line == 1 {
				t.Errorf("%s: it started", c.what)
			}
			n++
		}
		if n != c.want {
			t.Errorf("%s: %d others start, want %d", c.what, n, c.want)
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	for _, lines := range []int{10, 512} {
		b.Run(fmt.Sprintf("%d lines, 1000 limits", lines), func(b *testing.B) {
			v := View{Now: start, Queues: map[int32]Queue{}, Shares: NewShares(start), Most: 1000}
			for q := range int32(10) {
				v.Queues[q] = Queue{ID: q, Ahead: 100}
			}
			for i := range 1000 {
				v.Limits = append(v.Limits, Limit{ID: int32(i), Scope: Named, Max: 10, Used: int64(i % 11)})
			}
			for i := range 200 {
				v.Workers = append(v.Workers, Worker{Queues: []int32{int32(i % 10)}, Slots: 10, Busy: 5, Resources: map[string]int64{"gpu": 4}})
			}
			for i := range lines {
				l := Line{Lane: int32(i), Class: drover.Normal, Needs: Needs{Queue: int32(i % 10), Tenant: int32(i % 50), Kind: "k"}, Takes: []Take{{i % 1000, 1}, {(i * 7) % 1000, 1}}}
				for h := range 1000 / lines {
					l.Heads = append(l.Heads, Head{Task: task(i*1000 + h), ReadyAt: start, DueAt: start + lifecycle.Instant(h)})
				}
				v.Lines = append(v.Lines, l)
			}
			for b.Loop() {
				Decide(v)
			}
		})
	}
}
