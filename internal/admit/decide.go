package admit

import (
	"bytes"
	"cmp"
	"container/heap"
	"slices"
	"strconv"
	"strings"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
)

// Decide says who of a view may run. It changes nothing of the view.
//
// The order of turns is: class, which rises while nothing of it is admitted; what
// the tenant has had of the queue by its weight; age. A line whose head is blocked
// blocks nobody behind it. A task takes all that it needs, or nothing.
func Decide(v View) Decision {
	d := decider{v: &v, limits: slices.Clone(v.Limits), pools: map[string]*pool{}, slack: map[string]*slack{}, counts: map[subjectKey]int{}, more: map[Party]int{}, served: map[rank]bool{}, oldest: map[rank]lifecycle.Instant{}}
	d.out.Arrivals, d.out.Granted, d.out.First = map[int]int64{}, map[int]int{}, map[int]bool{}
	d.placeClaims()
	d.handlersFirst()
	for i := range v.Lines {
		l := &v.Lines[i]
		t := &turn{line: i}
		for t.head < len(l.Heads) && v.Held[l.Heads[t.head].Job] {
			d.out.Held = append(d.out.Held, Admission{i, t.head})
			t.head++
		}
		if t.head < len(l.Heads) {
			k := rank{l.Queue, l.Class}
			if at, ok := d.oldest[k]; !ok || l.Heads[t.head].ReadyAt < at {
				d.oldest[k] = l.Heads[t.head].ReadyAt
			}
			d.turns = append(d.turns, t)
		}
	}
	for _, t := range d.turns {
		d.rank(t)
	}
	d.keep()
	heap.Init(&d.turns)
	for d.turns.Len() > 0 {
		t := d.turns[0]
		was := t.key
		if d.rank(t); was.less(t.key) { // others of its tenant or class were served since
			heap.Fix(&d.turns, 0)
			continue
		}
		why, worker := d.blockers(t)
		if len(why) > 0 {
			heap.Pop(&d.turns)
			d.wait(t, why)
			continue
		}
		d.admit(t, worker)
		if d.next(t) {
			heap.Fix(&d.turns, 0)
		} else {
			heap.Pop(&d.turns)
		}
	}
	d.handlersLast()
	return d.out
}

type decider struct {
	v      *View
	limits []Limit
	turns  turns
	pools  map[string]*pool  // workers by what is asked of them
	slack  map[string]*slack // of each queue and set of workers
	free   []*free           // of each worker
	counts map[subjectKey]int
	more   map[Party]int              // admitted here
	served map[rank]bool              // classes that were served here
	took   map[rank]int               // admitted here, of queues with reserves
	oldest map[rank]lifecycle.Instant // since when something of a class waits
	kept   map[int]kept               // of limits, for tasks that have waited for long, and for handlers
	passed map[int]bool               // limits of which tasks were given something here
	out    Decision
}

// handlers stands for those of Limit.Asked where something is kept for them.
var handlers = &turn{line: -1}

// handlersFirst gives handlers what they wait for where they go before the tasks, and
// keeps for the first of them what there is not enough of yet.
func (d *decider) handlersFirst() {
	for i := range d.limits {
		l := &d.limits[i]
		if !l.First || len(l.Asked) == 0 {
			continue
		}
		if d.grant(i); d.out.Granted[i] == 0 {
			d.keepFor(i, handlers, l.Asked[0])
			d.out.First[i] = true
		}
	}
}

// handlersLast gives handlers what tasks have left. Where tasks got something and
// handlers wait still, these go first the next time.
func (d *decider) handlersLast() {
	for i := range d.limits {
		l := &d.limits[i]
		if len(l.Asked) == 0 {
			continue
		}
		d.grant(i)
		if d.out.Granted[i] < len(l.Asked) && !l.First {
			d.out.First[i] = d.passed[i]
		}
	}
}

// grant gives those of Asked what they wait for, from the first on, as far as there is
// enough that is not kept for a task.
func (d *decider) grant(i int) {
	l := &d.limits[i]
	for n := d.out.Granted[i]; n < len(l.Asked) && l.Free(d.v.Now)-d.keptFrom(handlers, i) >= l.Asked[n]; n++ {
		l.take(l.Asked[n], d.v.Now)
		d.out.Granted[i] = n + 1
	}
}

func (d *decider) keepFor(limit int, by *turn, weight int64) {
	if d.kept == nil {
		d.kept = map[int]kept{}
	}
	d.kept[limit] = kept{by, weight}
}

// subjectKey names what several lines wait for.
type subjectKey struct {
	code Code
	id   int32
	name string
}

// free is what a worker has left.
type free struct {
	slots int
	res   map[string]int64
	crowd
}

// slack is how many may be admitted for workers that have no free slot: about as many
// as they claim before the next decision.
type slack struct {
	left int
	crowd
}

// crowd is who was admitted here into the room of a worker.
type crowd struct {
	class drover.Class // the first
	party map[int32]bool
}

func (c *crowd) add(class drover.Class, tenant int32) {
	if len(c.party) == 0 {
		c.class, c.party = class, map[int32]bool{}
	}
	c.class, c.party[tenant] = min(c.class, class), true
}

// pool is the workers that can run what asks for the same.
type pool struct {
	workers                              []int // that have what is asked for, at least when nothing else runs
	serve, kinds, labels, fits, draining int
	lacks                                string // a resource that none has enough of
	lackHas, lackAsks                    int64
	asks                                 bool // for something of a worker
	slack                                *slack
}

// turn is a line's place in the order.
type turn struct {
	line, head int
	key        turnKey
}

type turnKey struct {
	class int64
	share float64
	ready lifecycle.Instant
	due   lifecycle.Instant
	task  drover.TaskID
}

func (a turnKey) less(b turnKey) bool { return a.compare(b) < 0 }

func (a turnKey) compare(b turnKey) int {
	return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.share, b.share), cmp.Compare(a.due, b.due), cmp.Compare(a.ready, b.ready), bytes.Compare(a.task[:], b.task[:]))
}

type turns []*turn

func (t turns) Len() int           { return len(t) }
func (t turns) Less(i, j int) bool { return t[i].key.less(t[j].key) }
func (t turns) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *turns) Push(x any)        { *t = append(*t, x.(*turn)) }
func (t *turns) Pop() any {
	old := *t
	x := old[len(old)-1]
	*t = old[:len(old)-1]
	return x
}

// keep reserves what tasks take that have waited for long because that is several
// units or limits, which others take one by one as they become free: no more of each
// than they take. The oldest is kept all that it takes or nothing, so that two never
// wait for each other. What a rate gives and nobody uses is lost, so of a rate
// something is kept only when nothing else that limits the task is full.
func (d *decider) keep() {
	var long []*turn
	for _, t := range d.turns {
		l := &d.v.Lines[t.line]
		if d.v.Now.Sub(l.Heads[t.head].ReadyAt) < Patience || d.v.Queues[l.Queue].Paused || l.Circuit != "" || len(d.pool(&l.Needs).workers) == 0 {
			continue
		}
		several, ever := len(l.Takes) > 1, true
		for _, k := range l.Takes {
			x := &d.limits[k.Limit]
			several = several || k.Weight > 1
			ever = ever && (x.Period > 0 && k.Weight <= x.Burst || x.Period == 0 && k.Weight <= x.Max)
		}
		if several && ever {
			long = append(long, t)
		}
	}
	slices.SortStableFunc(long, func(a, b *turn) int { return cmp.Or(cmp.Compare(a.key.ready, b.key.ready), a.key.compare(b.key)) })
	for _, t := range long {
		l := &d.v.Lines[t.line]
		if slices.ContainsFunc(l.Takes, func(k Take) bool { return d.kept[k.Limit].by != nil }) {
			continue
		}
		full := 0
		for _, k := range l.Takes {
			if d.limits[k.Limit].Free(d.v.Now) < k.Weight {
				full++
			}
		}
		for _, k := range l.Takes {
			x := &d.limits[k.Limit]
			if x.Period == 0 || full == 0 || full == 1 && x.Free(d.v.Now) < k.Weight {
				d.keepFor(k.Limit, t, k.Weight)
			}
		}
	}
}

// kept is what is kept of a limit, for the next task of a line.
type kept struct {
	by     *turn
	weight int64
}

// keptFrom is how much of a limit is kept for others than t.
func (d *decider) keptFrom(t *turn, limit int) int64 {
	if k := d.kept[limit]; k.by != t {
		return k.weight
	}
	return 0
}

// rank finds a line's place in the order. It only ever falls back within a decision.
func (d *decider) rank(t *turn) {
	l := &d.v.Lines[t.line]
	h := &l.Heads[t.head]
	// A class rises as a whole, so that within it shares alone decide.
	since := max(d.v.Shares.lastServed(l.Queue, l.Class), d.oldest[rank{l.Queue, l.Class}])
	if d.served[rank{l.Queue, l.Class}] {
		since = d.v.Now
	}
	rise := max(d.v.Now.Sub(since), 0) / AgeStep
	t.key = turnKey{class: max(int64(l.Class)-int64(rise), 0), share: d.v.Shares.of(Party{l.Queue, l.Tenant}, d.more[Party{l.Queue, l.Tenant}]), ready: h.ReadyAt, due: h.DueAt, task: h.Task}
}

// next moves t to the line's next head that may run.
func (d *decider) next(t *turn) bool {
	l := &d.v.Lines[t.line]
	for t.head++; t.head < len(l.Heads); t.head++ {
		if !d.v.Held[l.Heads[t.head].Job] {
			d.rank(t)
			return true
		}
		d.out.Held = append(d.out.Held, Admission{t.line, t.head})
	}
	return false
}

// blockers are all reasons why t's head does not run now, the primary one first.
// Where there are none, it also names the worker that has room; −1 is one of a pool
// that will have some.
func (d *decider) blockers(t *turn) ([]Blocker, int) {
	l := &d.v.Lines[t.line]
	var why []Blocker
	q := d.v.Queues[l.Queue]
	if q.Paused {
		why = append(why, Blocker{QueuePaused, Subject{Kind: "queue", Name: q.Name, ID: q.ID}})
	}
	if l.Circuit != "" {
		why = append(why, Blocker{CircuitOpen, Subject{Kind: "circuit", Name: l.Circuit, Until: l.CircuitUntil}})
	}
	p := d.pool(&l.Needs)
	workers := Subject{Kind: "worker", Name: q.Name, Workers: p.serve, Kinds: p.kinds, Labels: p.labels, Fits: p.fits, Draining: p.draining}
	switch {
	case p.serve > 0 && p.kinds > 0 && p.labels > 0 && p.fits > 0 && len(p.workers) == 0:
		why = append(why, Blocker{Draining, workers})
	case p.kinds == 0:
		workers.Name = l.Kind
		why = append(why, Blocker{NoWorker, workers})
	case p.labels == 0:
		why = append(why, Blocker{NoLabels, workers})
	case p.fits == 0:
		workers.Name, workers.Limit, workers.Asks = p.lacks, p.lackHas, p.lackAsks
		why = append(why, Blocker{LackOfResources, workers})
	}
	nobody := len(p.workers) == 0
	limits := len(why)
	for _, k := range l.Takes {
		x := &d.limits[k.Limit]
		free := x.Free(d.v.Now)
		if free-d.keptFrom(t, k.Limit) >= k.Weight {
			continue
		}
		s := Subject{Kind: "limit", Name: x.Name, Key: x.Key, ID: x.ID, Scope: x.Scope, Limit: x.Max, Used: x.Used, Asks: k.Weight, Kept: free >= k.Weight}
		if x.Period > 0 {
			s.Limit, s.Used, s.Until = x.Burst, x.Burst-max(free, 0), x.When(k.Weight, d.v.Now)
		}
		why = append(why, Blocker{x.code(), s})
	}
	slices.SortStableFunc(why[limits:], func(a, b Blocker) int { return cmp.Compare(order[a.Code], order[b.Code]) })
	worker := -1
	if !nobody {
		worker = d.fit(p, &l.Needs)
	}
	kept, behind, lack := d.reserved(l)
	if lack {
		why = append(why, Blocker{Priority, kept})
	}
	switch {
	case nobody || worker >= 0:
	case p.asks:
		workers.Name = ""
		why = append(why, Blocker{LackOfResources, workers})
	case p.slack.left <= 0 || behind && !lack: // ahead of a free slot it might take one that is kept
		if full := d.full(p, l, workers); !lack || full.Code != Priority {
			why = append(why, full)
		}
	}
	if len(why) == 0 && d.v.Most > 0 && len(d.out.Admitted) >= d.v.Most {
		why = append(why, Blocker{Handoff, Subject{}})
	}
	return why, worker
}

// full is why a line that could run on workers of a pool does not, as they have no slot left.
func (d *decider) full(p *pool, l *Line, workers Subject) Blocker {
	all := crowd{}
	add := func(c *crowd) {
		for tenant := range c.party {
			all.add(c.class, tenant)
		}
	}
	add(&p.slack.crowd)
	for _, i := range p.workers {
		add(&d.left(i).crowd)
	}
	q := d.v.Queues[l.Queue]
	workers.Name = q.Name
	switch {
	case len(all.party) == 0: // there was none from the beginning
		return Blocker{WorkersFull, workers}
	case all.class < l.Class:
		return Blocker{Priority, Subject{Kind: "class", Name: all.class.String()}}
	case len(all.party) > 1 || !all.party[l.Tenant]:
		return Blocker{FairShare, Subject{Kind: "queue", Name: q.Name, ID: q.ID}}
	}
	return Blocker{WorkersFull, workers}
}

var order = map[Code]int{GlobalLimit: 1, TenantQuota: 2, QueueLimit: 3, KindLimit: 4, ConcurrencyKey: 5, SemaphoreFull: 6, LockHeld: 6, RateLimited: 7}

// wait notes why a line waits, and how many wait for the same before it.
func (d *decider) wait(t *turn, why []Blocker) {
	n := len(d.v.Lines[t.line].Heads) - t.head
	for i := range why {
		k := subjectKey{why[i].Code, why[i].Subject.ID, why[i].Subject.Name + "\x00" + why[i].Subject.Key}
		why[i].Subject.Position = d.counts[k] + 1
		d.counts[k] += n
	}
	d.out.Waiting = append(d.out.Waiting, Verdict{Line: t.line, First: t.head, After: len(d.out.Admitted), Blockers: why})
}

// admit lets t's head run, on a worker that has room or in a pool that will have.
func (d *decider) admit(t *turn, worker int) {
	l := &d.v.Lines[t.line]
	for _, k := range l.Takes {
		x := &d.limits[k.Limit]
		if d.kept[k.Limit].by == t { // it was for this head
			delete(d.kept, k.Limit)
		}
		x.take(k.Weight, d.v.Now)
		if len(x.Asked) > 0 {
			if d.passed == nil {
				d.passed = map[int]bool{}
			}
			d.passed[k.Limit] = true
		}
		if x.Period > 0 {
			d.out.Arrivals[k.Limit] = x.Arrival
		}
	}
	if worker >= 0 {
		d.occupy(worker, &l.Needs, 1)
		d.left(worker).add(l.Class, l.Tenant)
	} else {
		k := d.pool(&l.Needs).slack
		k.left--
		k.add(l.Class, l.Tenant)
	}
	d.more[Party{l.Queue, l.Tenant}]++
	d.served[rank{l.Queue, l.Class}] = true
	if len(d.v.Queues[l.Queue].Reserves) > 0 {
		if d.took == nil {
			d.took = map[rank]int{}
		}
		d.took[rank{l.Queue, l.Class}]++
	}
	d.out.Admitted = append(d.out.Admitted, Admission{t.line, t.head})
}

// pool finds the workers that can run what has these needs.
func (d *decider) pool(n *Needs) *pool {
	key := n.key()
	p := d.pools[key]
	if p != nil {
		return p
	}
	p = &pool{asks: len(n.Requests) > 0}
	d.pools[key] = p
	least := map[string]int64{} // the most that a worker has of each resource
	for i := range d.v.Workers {
		w := &d.v.Workers[i]
		if !slices.Contains(w.Queues, n.Queue) || w.Tenant != 0 && w.Tenant != n.Tenant {
			continue
		}
		p.serve++
		if w.Draining {
			p.draining++
		}
		if len(w.Kinds) > 0 && !slices.Contains(w.Kinds, n.Kind) {
			continue
		}
		p.kinds++
		if !n.matches(w.Labels) {
			continue
		}
		p.labels++
		for name, asks := range n.Requests {
			if asks > w.Resources[name] {
				least[name] = max(least[name], w.Resources[name])
			}
		}
		if !n.fits(w) {
			continue
		}
		p.fits++
		if !w.Draining {
			p.workers = append(p.workers, i)
		}
	}
	for name, has := range least {
		if p.lacks == "" || name < p.lacks {
			p.lacks, p.lackHas, p.lackAsks = name, has, n.Requests[name]
		}
	}
	who := strconv.AppendInt(nil, int64(n.Queue), 10)
	for _, i := range p.workers {
		who = strconv.AppendInt(append(who, ' '), int64(i), 10)
	}
	if p.slack = d.slack[string(who)]; p.slack == nil {
		p.slack = &slack{left: d.v.Queues[n.Queue].Ahead}
		d.slack[string(who)] = p.slack
	}
	return p
}

// key is the same for needs that are met by the same workers.
func (n *Needs) key() string {
	b := make([]byte, 0, 64)
	b = strconv.AppendInt(b, int64(n.Queue), 10)
	b = strconv.AppendInt(append(b, ' '), int64(n.Tenant), 10)
	b = append(append(b, ' '), n.Kind...)
	if len(n.Labels)+len(n.Requests) > 0 {
		var parts []string
		for k, v := range n.Labels {
			parts = append(parts, "l"+k+"="+v)
		}
		for k, v := range n.Requests {
			parts = append(parts, "r"+k+"="+strconv.FormatInt(v, 10))
		}
		slices.Sort(parts)
		b = append(append(b, 0), strings.Join(parts, "\x00")...)
	}
	return string(b)
}

func (n *Needs) matches(labels map[string]string) bool {
	for k, v := range n.Labels {
		if has, ok := labels[k]; !ok || has != v {
			return false
		}
	}
	return true
}

// fits tells if a worker that runs nothing else could run it.
func (n *Needs) fits(w *Worker) bool {
	for name, asks := range n.Requests {
		if asks > w.Resources[name] {
			return false
		}
	}
	return w.Slots > 0
}

// Serves tells if w may run what has these needs, were it free.
func (n *Needs) Serves(w *Worker) bool {
	return slices.Contains(w.Queues, n.Queue) && (w.Tenant == 0 || w.Tenant == n.Tenant) && (len(w.Kinds) == 0 || slices.Contains(w.Kinds, n.Kind)) && n.matches(w.Labels) && n.fits(w)
}

// left is what worker i has left.
func (d *decider) left(i int) *free {
	if d.free == nil {
		d.free = make([]*free, len(d.v.Workers))
	}
	if d.free[i] == nil {
		w := &d.v.Workers[i]
		f := &free{slots: w.Slots - w.Busy, res: map[string]int64{}}
		for name, n := range w.Resources {
			f.res[name] = n - w.Taken[name]
		}
		d.free[i] = f
	}
	return d.free[i]
}

// fit finds a worker with room for what has these needs: the one with the least
// left, so that large requests find one too. −1 is none.
func (d *decider) fit(p *pool, n *Needs) int {
	best, least := -1, int64(0)
	for _, i := range p.workers {
		f := d.left(i)
		if f.slots < 1 {
			continue
		}
		ok, left := true, int64(f.slots)
		for name, asks := range n.Requests {
			if f.res[name] < asks {
				ok = false
				break
			}
			left += f.res[name] - asks
		}
		if ok && (best < 0 || left < least) {
			best, least = i, left
		}
	}
	return best
}

func (d *decider) occupy(i int, n *Needs, tasks int) {
	f := d.left(i)
	f.slots -= tasks
	for name, asks := range n.Requests {
		f.res[name] -= asks * int64(tasks)
	}
}

// placeClaims gives what was admitted and is not claimed the room it will take.
func (d *decider) placeClaims() {
	for i := range d.v.Claims {
		c := &d.v.Claims[i]
		p := d.pool(&c.Needs)
		for left := c.Count; left > 0; {
			k := d.fit(p, &c.Needs)
			if k < 0 {
				if !p.asks { // of what waits for more than a slot nothing was admitted ahead
					p.slack.left -= left
				}
				break
			}
			f := d.left(k) // it is the one with the least left until it has no room
			n := min(left, f.slots)
			for name, asks := range c.Requests {
				if asks > 0 {
					n = min(n, int(f.res[name]/asks))
				}
			}
			d.occupy(k, &c.Needs, n)
			left -= n
		}
	}
}
