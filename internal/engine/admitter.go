package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/admit"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

const (
	leadName = "admitter"
	// leadFor is how long a leader leads without saying so again.
	leadFor = 3 * time.Second
	// linesAtOnce and headsAtOnce bound what one decision looks at.
	linesAtOnce = 512
	headsAtOnce = 1000
	// queuedMost bounds how many of a queued line are counted.
	queuedMost = 10_000
	// upkeepFor is how long after a change strays are looked for: servers that have not
	// heard of it and transactions that began before it are done by then.
	upkeepFor = time.Minute
	// lostEvery is how often permits are looked for that nobody holds.
	lostEvery = 30 * time.Second
	// aheadFor is for how long a queue's workers have tasks at hand beyond their free slots.
	aheadFor = 100 * time.Millisecond
	maxAhead = 5000
)

// admitter is what the process remembers that decides who may run.
type admitter struct {
	wake   chan struct{} // has room for one
	waking sync.Mutex    // held by who fills it
	lined  atomic.Bool   // there are lines for which something must be decided

	mu     sync.Mutex // held for a whole step
	holder string
	term   int64 // 0: it does not lead
	shares *admit.Shares
	after  store.Line // where the next look at the lines begins
	pace   map[int32]*pace
	first  map[int32]bool    // limits of which handlers get something before tasks the next time
	wanted map[int32]bool    // limits that tasks wait for, as far as this round of looks has come
	lost   lifecycle.Instant // when permits were looked for that nobody holds
	upkeep lifecycle.Instant // until when strays are looked for
	epoch  int64             // for which that is known
}

// pace is how fast a queue's admitted tasks are claimed.
type pace struct {
	at       lifecycle.Instant
	queued   int
	admitted int
	rate     float64 // a second
}

// WakeAdmitter lets a loop that waits on AdmitterWake go on at once.
func (e *Engine) WakeAdmitter() {
	a := &e.admitter
	a.waking.Lock()
	defer a.waking.Unlock()
	if len(a.wake) == 0 { // nobody else fills it meanwhile
		a.wake <- struct{}{}
	}
}

// AdmitterWake receives when there may be something to admit.
func (e *Engine) AdmitterWake() <-chan struct{} { return e.admitter.wake }

// wakes tells if what was saved lets somebody be admitted.
func (x *changes) wakes() bool {
	if len(x.freed) > 0 {
		return true
	}
	return slices.ContainsFunc(x.live, func(t lifecycle.Task) bool { return t.Status == drover.Ready && t.Lane != lifecycle.HeldLane })
}

// AdmitOnce takes READY tasks on. Where nothing is limited any server does, for all
// of them. Otherwise the one that leads decides; the lead is a row that its
// transaction locks, so that nobody admits beside it, whatever he believes.
func (e *Engine) AdmitOnce(ctx context.Context) (int, error) {
	a := &e.admitter
	a.mu.Lock()
	defer a.mu.Unlock()
	var l store.Leader
	var now store.Gate
	var g *gate
	ready, permits, asked := false, false, false
	err := e.db.Read(ctx, func(tx store.Tx) (err error) {
		if err := tx.Pipe(ctx, store.ReadLeader(leadName, &l), store.ReadGate(&now), store.AnyReady(&ready, &permits, &asked)); err != nil {
			return err
		}
		g, err = e.gateAt(ctx, tx, now.Epoch)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("admit: %w", err)
	}
	at := e.now()
	if now.Epoch != a.epoch {
		a.epoch, a.upkeep = now.Epoch, max(now.ChangedAt, at).Add(upkeepFor)
	}
	strays := g != nil && at < a.upkeep
	if a.holder == "" {
		a.holder = e.db.NewID().String()
	}
	if g.idle() && !strays && !a.lined.Load() {
		mended := 0
		if permits && (l.Holder == a.holder || l.ExpiresAt <= at) { // of limits that are gone
			if mended, err = e.upkeep(ctx, g, at); err != nil {
				return 0, fmt.Errorf("admit: %w", err)
			}
		}
		if !ready {
			return mended, nil
		}
		n, err := e.admitOpen(ctx)
		if !errors.Is(err, errLined) {
			return mended + n, err
		}
		a.lined.Store(true)
	}
	if l.Holder != a.holder && l.ExpiresAt > at {
		a.term = 0
		return 0, nil
	}
	if l.Holder == a.holder && a.term == l.Term && !ready && !strays && !asked && at < l.ExpiresAt.Add(-leadFor/2) && at < a.lost.Add(lostEvery) {
		return 0, nil
	}
	mended, err := e.upkeep(ctx, g, at)
	if err != nil {
		return 0, fmt.Errorf("admit: %w", err)
	}
	n, err := e.admitPass(ctx)
	if err != nil {
		return mended, fmt.Errorf("admit: %w", err)
	}
	return mended + n, nil
}

// errLined says that not everybody who is READY may go.
var errLined = errors.New("some must be admitted")

// admitOpen takes READY tasks on where nothing is limited.
func (e *Engine) admitOpen(ctx context.Context) (int, error) {
	return e.moveOnce(ctx, "admit", func(ctx context.Context, tx store.Tx, x *changes) (int, error) {
		var rows []lifecycle.Task
		if err := tx.Pipe(ctx, store.TakeReady(takeAtOnce, &rows)); err != nil || len(rows) == 0 {
			return 0, err
		}
		if err := e.learn(ctx, tx, lanesOf(rows)); err != nil {
			return 0, err
		}
		if err := readLineWaits(ctx, tx, pointers(rows)); err != nil {
			return 0, err
		}
		held, err := heldJobs(ctx, tx, rows)
		if err != nil {
			return 0, err
		}
		g := e.gate.Load()
		var memo lane1
		for _, t := range rows {
			if k, ok := e.keyOfLane(&memo, t.Lane); ok && (k.Stage != stageOpen || g.shuts(k)) {
				return 0, errLined
			}
			if !held[t.Job] {
				x.place(lifecycle.Admitted(t, t.Lane, x.now))
				continue
			}
			x.place(heldBack(t, x.now))
		}
		return len(rows), nil
	})
}

func lanesOf(rows []lifecycle.Task) (ids []int32) {
	for i := range rows {
		ids = append(ids, rows[i].Lane)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// heldBack stands a READY task of a held job where nobody looks.
func heldBack(t lifecycle.Task, now lifecycle.Instant) lifecycle.Task {
	t.Waits, t.Since, t.Lane = t.TotalAt(now), max(t.Since, now), lifecycle.HeldLane
	return t
}

// lead begins a transaction of the one that leads. false says that somebody else does.
func (e *Engine) lead(ctx context.Context, tx store.Tx, now lifecycle.Instant) (bool, error) {
	a := &e.admitter
	term, err := store.Lead(ctx, tx, leadName, a.holder, now, now.Add(leadFor))
	if err != nil {
		return false, err
	}
	if term != a.term && term != 0 {
		a.shares, a.pace, a.after = admit.NewShares(now), map[int32]*pace{}, store.Line{}
		a.first, a.wanted = map[int32]bool{}, map[int32]bool{}
		a.upkeep, a.lost = max(a.upkeep, now.Add(upkeepFor)), 0
		e.log.InfoContext(ctx, "this server decides who may run", "term", term)
	}
	a.term = term
	return term != 0, nil
}

// standing is what stands where, as one transaction sees it.
type standing struct {
	gate   *gate
	queued []store.Line
	loads  []store.Load
}

// readStanding reads it; of lanes that need no admission it counts up to open of a line.
func (e *Engine) readStanding(ctx context.Context, tx store.Tx, as *gate, open int) (s standing, err error) {
	var now store.Gate
	if err := tx.Pipe(ctx, store.ReadGate(&now), store.RunningLoads(&s.loads)); err != nil {
		return s, err
	}
	if s.gate = as; as == nil {
		if s.gate, err = e.gateAt(ctx, tx, now.Epoch); err != nil {
			return s, err
		}
	}
	if s.gate == nil {
		s.gate = &gate{}
	}
	if err := store.QueuedLines(ctx, tx, e.db.Dialect(), queuedMost, open, &s.queued); err != nil {
		return s, err
	}
	var ids []int32
	for _, l := range s.queued {
		ids = append(ids, l.Lane)
	}
	for _, l := range s.loads {
		ids = append(ids, l.Lane)
	}
	return s, e.learn(ctx, tx, slices.DeleteFunc(ids, func(id int32) bool { return id == lifecycle.HeldLane }))
}

// upkeep mends what a change of what has to be admitted left behind: who became
// claimable without an admission waits for one, who runs without one gets the permits
// it would have, what was admitted and nobody may or can run waits again, and permits
// that nobody holds go.
func (e *Engine) upkeep(ctx context.Context, g *gate, now lifecycle.Instant) (int, error) {
	a := &e.admitter
	unwritten := g != nil && len(g.unwritten()) > 0
	lost := now >= a.lost.Add(lostEvery)
	if now >= a.upkeep && !unwritten && !lost {
		return 0, nil
	}
	var x *changes
	n := 0
	var gone int64
	err := e.db.Write(ctx, func(tx store.Tx) error {
		x, n, gone = e.changes(e.now()), 0, 0
		if leads, err := e.lead(ctx, tx, x.now); err != nil || !leads {
			return err
		}
		s, err := e.readStanding(ctx, tx, nil, 0)
		if err != nil {
			return err
		}
		if n, err = e.mendStrays(ctx, tx, x, &s, lost); err != nil {
			return err
		}
		if lost {
			if err := tx.Pipe(ctx, store.LostPermits(&gone)); err != nil {
				return err
			}
		}
		if err := x.save(ctx, tx); err != nil {
			return err
		}
		if lost {
			if err := tx.Pipe(ctx, store.DeleteLocks()); err != nil {
				return err
			}
		}
		written := s.gate.unwritten()
		if len(written) == 0 {
			return nil
		}
		if err := tx.Pipe(ctx, store.LimitsWritten(written)); err != nil {
			return err
		}
		x.gate, err = readGate(ctx, tx, x.now) // what this process knows says otherwise
		return err
	})
	if err != nil {
		return 0, err
	}
	if a.term != 0 && lost && n < takeAtOnce { // else there is more of it
		a.lost = now
	}
	if gone > 0 {
		e.log.WarnContext(ctx, "permits that no task held were given back", "count", gone)
	}
	e.tell(x)
	return n + int(gone), nil
}

// mendStrays moves and writes what upkeep says, and with all the permits that were lost. It returns how many tasks it moved.
func (e *Engine) mendStrays(ctx context.Context, tx store.Tx, x *changes, s *standing, all bool) (int, error) {
	g, n := s.gate, 0
	var memo lane1
	served, err := e.served(ctx, tx, x.now, all)
	if err != nil {
		return 0, err
	}
	// Who is QUEUED and must not be, or holds permits and nobody can run him.
	for _, l := range s.queued {
		k, ok := e.keyOfLane(&memo, l.Lane)
		if !ok || !(k.Stage == stageOpen && g.shuts(k) || k.Stage == stageAdmitted && (g.queues[k.Queue].Paused || !served(k))) {
			continue
		}
		var rows []lifecycle.Task
		if err := tx.Pipe(ctx, store.TakeLaneQueued(l, takeAtOnce, &rows)); err != nil {
			return 0, err
		}
		for _, t := range rows {
			x.place(lifecycle.Returned(t, x.now))
		}
		n += len(rows)
	}
	// Who runs without permits.
	var add []store.Permit
	permit := func(task drover.TaskID, list []take) {
		for _, t := range list {
			if t.limit.Period > 0 {
				continue
			}
			add = append(add, store.Permit{Task: task, Limit: t.limit.ID, Key: t.key, Weight: t.weight, At: x.now})
		}
	}
	adopted := map[int32]bool{}
	for _, l := range s.loads {
		k, ok := e.keyOfLane(&memo, l.Lane)
		if !ok || k.Stage != stageOpen || !g.shuts(k) || adopted[l.Lane] {
			continue
		}
		adopted[l.Lane] = true
		to, err := store.LaneNumber(ctx, tx, admittedIn(*k))
		if err != nil {
			return 0, err
		}
		var rows []lifecycle.Task
		if err := tx.Pipe(ctx, store.AdoptLane(l.Lane, to, &rows)); err != nil {
			return 0, err
		}
		for _, t := range rows {
			permit(t.ID, g.takes(k))
		}
	}
	// Who has none of a limit that came after him, or has lost one.
	rows, err := e.lockLacking(ctx, tx, s, all)
	if err != nil {
		return 0, err
	}
	for _, r := range rows {
		if k, ok := e.keyOfLane(&memo, r.Home); ok {
			permit(r.Task, slices.DeleteFunc(g.takes(k), func(t take) bool { return t.limit.Written && !all }))
		}
	}
	slices.SortFunc(add, func(p, q store.Permit) int { return cmp.Or(compareIDs(p.Task, q.Task), cmp.Compare(p.Limit, q.Limit)) })
	return n + len(adopted), tx.Pipe(ctx, store.AddPermits(add))
}

// unwritten are the limits of which those who were admitted before have no permits yet.
func (g *gate) unwritten() (ids []int32) {
	for i := range g.limits {
		if !g.limits[i].Written {
			ids = append(ids, g.limits[i].ID)
		}
	}
	return ids
}

// lockLacking locks and reads who stands in lanes of stage 1 and may lack permits: all
// of them, where a limit has come, and with all those of the lanes in which somebody
// has fewer than he takes.
func (e *Engine) lockLacking(ctx context.Context, tx store.Tx, s *standing, all bool) ([]store.Standing, error) {
	g, fresh := s.gate, len(s.gate.unwritten()) > 0
	if !fresh && (!all || len(g.limits) == 0) {
		return nil, nil
	}
	var memo lane1
	var queued []store.Line
	var lanes []int32
	for _, l := range s.queued {
		if k, ok := e.keyOfLane(&memo, l.Lane); ok && k.Stage == stageAdmitted {
			queued = append(queued, l)
		}
	}
	for _, l := range s.loads {
		if k, ok := e.keyOfLane(&memo, l.Lane); ok && k.Stage == stageAdmitted {
			lanes = append(lanes, l.Lane)
		}
	}
	slices.Sort(lanes)
	lanes = slices.Compact(lanes)
	if !fresh {
		var least []store.LeastPermits
		if err := tx.Pipe(ctx, store.LeastPermitsIn(queued, lanes, &least)...); err != nil {
			return nil, err
		}
		var homes []int32
		for _, l := range least {
			homes = append(homes, l.Home)
		}
		if err := e.learn(ctx, tx, homes); err != nil {
			return nil, err
		}
		short := map[store.Line]bool{}
		for _, l := range least {
			if k, ok := e.keyOfLane(&memo, l.Home); ok && l.Permits < g.permits(k) {
				short[store.Line{Queue: l.Queue, Class: l.Class, Lane: l.Lane}] = true
			}
		}
		queued = slices.DeleteFunc(queued, func(l store.Line) bool { return !short[store.Line{Queue: l.Queue, Class: l.Class, Lane: l.Lane}] })
		lanes = slices.DeleteFunc(lanes, func(id int32) bool { return !short[store.Line{Lane: id}] })
	}
	var rows []store.Standing
	if err := tx.Pipe(ctx, store.LockStanding(queued, lanes, &rows)...); err != nil {
		return nil, err
	}
	var homes []int32
	for _, r := range rows {
		homes = append(homes, r.Home)
	}
	return rows, e.learn(ctx, tx, homes)
}

// served tells if a worker is there that may run tasks of a lane; not looking, that one is.
func (e *Engine) served(ctx context.Context, tx store.Tx, now lifecycle.Instant, look bool) (func(*store.LaneKey) bool, error) {
	if !look {
		return func(*store.LaneKey) bool { return true }, nil
	}
	var sessions []store.SessionRow
	if err := tx.Pipe(ctx, store.LiveSessions(&sessions)); err != nil {
		return nil, err
	}
	var workers []admit.Worker
	for _, s := range sessions {
		if s.ExpiresAt <= now || s.Draining {
			continue
		}
		w, err := e.workerOf(ctx, tx, s)
		if err != nil {
			return nil, err
		}
		workers = append(workers, w)
	}
	return func(k *store.LaneKey) bool {
		ask := askOf(k)
		return slices.ContainsFunc(workers, func(w admit.Worker) bool { return ask.Serves(&w) })
	}, nil
}

// workerOf is a session as a worker that runs nothing.
func (e *Engine) workerOf(ctx context.Context, tx store.Tx, s store.SessionRow) (admit.Worker, error) {
	w := admit.Worker{Name: s.Worker, Tenant: s.Tenant, Kinds: s.Kinds, Labels: s.Labels, Resources: s.Resources, Slots: int(s.Slots), Draining: s.Draining}
	for _, name := range s.Queues {
		id, err := e.knownQueue(ctx, tx, name)
		if err != nil {
			return w, err
		}
		w.Queues = append(w.Queues, id)
	}
	return w, nil
}

// waiting is what the store knows of a moment, as a view, with what carries out a
// decision about it.
type waiting struct {
	admit.View
	standing
	usage  []store.Usage
	asked  []store.Asked      // what handlers hold and wait for of limits that somebody has set
	heads  [][]lifecycle.Task // of each line of the view
	takes  [][]take           // of each line
	to     []int32            // the lane in which a line's tasks stand once they are admitted
	keys   []store.LaneKey    // of each line
	open   []lifecycle.Task   // READY tasks that need no admission
	new    []store.LaneKey    // lanes that must be made before a line can be decided
	next   store.Line         // where the next look begins
	limits []store.LimitRow   // that are in force, when something is limited
	slots  map[admit.Party]int
	waits  map[admit.Party]bool
	// admitted counts, by queue, who is admitted and not yet claimed.
	admitted map[int32]int
}

// readWaiting reads a view, as what is in force would have it, or as another gate. It
// locks nothing: whoever explains reads it too.
func (e *Engine) readWaiting(ctx context.Context, tx store.Tx, now lifecycle.Instant, after store.Line, as *gate) (*waiting, error) {
	return e.readView(ctx, tx, now, after, as, queuedMost)
}

// readView is readWaiting for who needs no counts of what stands in open lanes, or not
// of all of it.
func (e *Engine) readView(ctx context.Context, tx store.Tx, now lifecycle.Instant, after store.Line, as *gate, open int) (*waiting, error) {
	s, err := e.readStanding(ctx, tx, as, open)
	if err != nil {
		return nil, err
	}
	g := s.gate
	w := &waiting{standing: s, slots: map[admit.Party]int{}, waits: map[admit.Party]bool{}, admitted: map[int32]int{}}
	w.Now, w.Queues, w.Held, w.Most = now, map[int32]admit.Queue{}, map[drover.JobID]bool{}, headsAtOnce
	var sessions []store.SessionRow
	var stopped []store.StoppedLane
	var epoch int64
	if err := tx.Pipe(ctx, store.PermitUsage(&w.usage), store.AskedIn(&w.asked), store.LiveSessions(&sessions), store.StoppedLanes(now, &stopped, &epoch)); err != nil {
		return nil, err
	}
	var rows []lifecycle.Task
	lines, err := store.ReadyHeads(ctx, tx, e.db.Dialect(), after, linesAtOnce, headsAtOnce, &rows)
	if err != nil {
		return nil, err
	}
	if lines == linesAtOnce {
		last := &rows[len(rows)-1]
		w.next = store.Line{Queue: last.Queue, Class: last.Class, Lane: last.Lane}
	}
	if err := e.learn(ctx, tx, lanesOf(rows)); err != nil {
		return nil, err
	}
	var jobs []drover.JobID
	for i := range rows {
		jobs = append(jobs, rows[i].Job)
	}
	if err := tx.Pipe(ctx, store.HeldAmong(uniqueSorted(jobs), w.Held)); err != nil {
		return nil, err
	}
	used := map[usageKey]int64{}
	for _, u := range w.usage {
		used[usageKey{u.Limit, u.Key}] = u.Weight
	}
	at := map[usageKey]int{}
	circuits := map[int32]store.StoppedLane{} // of all stages
	for _, l := range stopped {
		if lifecycle.CircuitGrant(l.Circuit, l.Lost, 0, now) == 0 {
			circuits[l.Lane] = l
		}
	}
	var memo lane1
	for i := 0; i < len(rows); {
		k := i + 1
		for k < len(rows) && rows[k].Queue == rows[i].Queue && rows[k].Class == rows[i].Class && rows[k].Lane == rows[i].Lane {
			k++
		}
		list := rows[i:k]
		i = k
		key, ok := e.keyOfLane(&memo, list[0].Lane)
		if !ok {
			continue // of a hand in the database
		}
		if key.Stage == stageOpen && !g.shuts(key) {
			w.open = append(w.open, list...)
			continue
		}
		to, ok := e.names.laneID.Load(admittedIn(*key))
		if as != nil && !ok {
			to, ok = int32(0), true // nobody is moved there
		}
		if !ok {
			w.new = append(w.new, admittedIn(*key))
			continue
		}
		l := admit.Line{Lane: list[0].Lane, Class: list[0].Class, Needs: askOf(key)}
		if c, ok := circuits[l.Lane]; ok {
			l.Circuit, l.CircuitUntil = c.Name, c.Until
		}
		takes := g.takes(key)
		for _, t := range takes {
			u := usageKey{t.limit.ID, t.key}
			if _, ok := at[u]; !ok {
				at[u] = len(w.Limits)
				w.Limits = append(w.Limits, admit.Limit{ID: t.limit.ID, Name: t.limit.Name, Key: t.key, Scope: admit.Scope(t.limit.Scope), Max: t.limit.Permits, Used: used[u],
					Period: time.Duration(t.limit.Period), Burst: t.limit.Burst, Arrival: t.limit.Arrival, Until: t.limit.Until})
			}
			l.Takes = append(l.Takes, admit.Take{Limit: at[u], Weight: t.weight})
		}
		for _, t := range list {
			l.Heads = append(l.Heads, admit.Head{Task: t.ID, Job: t.Job, ReadyAt: t.ReadyAt, DueAt: t.DueAt})
		}
		w.waits[admit.Party{Queue: key.Queue, Tenant: key.Tenant}] = true
		w.Lines, w.heads, w.takes, w.to, w.keys = append(w.Lines, l), append(w.heads, list), append(w.takes, takes), append(w.to, to.(int32)), append(w.keys, *key)
	}
	// Rates and what a downstream asked for change without the epoch.
	if len(w.Limits)+len(w.asked) > 0 {
		var fresh []store.LimitRow
		if err := tx.Pipe(ctx, store.ReadLimits(&fresh)); err != nil {
			return nil, err
		}
		by := map[int32]*store.LimitRow{}
		for i := range fresh {
			by[fresh[i].ID] = &fresh[i]
		}
		for i := range w.Limits {
			if l := by[w.Limits[i].ID]; l != nil {
				w.Limits[i].Arrival, w.Limits[i].Until = l.Arrival, l.Until
			}
		}
		w.limits = fresh
	}
	for i := range w.Limits {
		for _, r := range w.inTurn(w.Limits[i].ID) {
			w.Limits[i].Asked = append(w.Limits[i].Asked, r.Wants)
		}
	}
	return w, e.readWorkers(ctx, tx, w, &s, sessions, circuits)
}

type usageKey struct {
	limit int32
	key   string
}

// readWorkers fills in who could run what waits, and what they have at hand.
func (e *Engine) readWorkers(ctx context.Context, tx store.Tx, w *waiting, s *standing, sessions []store.SessionRow, circuits map[int32]store.StoppedLane) error {
	var memo lane1
	busy, taken := map[int64]int{}, map[int64]map[string]int64{}
	for _, l := range s.loads {
		busy[l.Session] += int(l.Count)
		k, ok := e.keyOfLane(&memo, l.Lane)
		if !ok {
			continue
		}
		w.slots[admit.Party{Queue: k.Queue, Tenant: k.Tenant}] += int(l.Count)
		if k.Needs == "" {
			continue
		}
		for name, asks := range needsOf(k.Needs).Resources {
			if taken[l.Session] == nil {
				taken[l.Session] = map[string]int64{}
			}
			taken[l.Session][name] += asks * l.Count
		}
	}
	for _, x := range sessions {
		if x.ExpiresAt <= w.Now {
			continue
		}
		worker, err := e.workerOf(ctx, tx, x)
		if err != nil {
			return err
		}
		worker.Busy, worker.Taken = busy[x.ID], taken[x.ID]
		w.Workers = append(w.Workers, worker)
	}
	for _, l := range s.queued {
		k, ok := e.keyOfLane(&memo, l.Lane)
		if !ok || k.Stage != stageAdmitted {
			continue
		}
		w.admitted[l.Queue] += int(l.Count)
		w.slots[admit.Party{Queue: k.Queue, Tenant: k.Tenant}] += int(l.Count)
		if _, stopped := circuits[l.Lane]; !stopped { // which nobody claims now
			w.Claims = append(w.Claims, admit.Admitted{Needs: askOf(k), Count: int(l.Count)})
		}
	}
	for i := range w.Lines {
		id := w.Lines[i].Queue
		if _, ok := w.Queues[id]; ok {
			continue
		}
		q := admit.Queue{ID: id, Paused: s.gate.queues[id].Paused, Ahead: 1}
		var err error
		if q.Name, err = e.queueNameOf(ctx, tx, id); err != nil {
			return err
		}
		if q.Reserves = s.gate.reserves[id]; len(q.Reserves) > 0 {
			q.Runs = map[drover.Class]int{}
		}
		w.Queues[id] = q
	}
	for _, l := range s.loads {
		if runs := w.Queues[l.Queue].Runs; runs != nil {
			runs[l.Class] += int(l.Count)
		}
	}
	for _, l := range s.queued {
		k, ok := e.keyOfLane(&memo, l.Lane)
		if runs := w.Queues[l.Queue].Runs; ok && k.Stage == stageAdmitted && runs != nil {
			runs[l.Class] += int(l.Count)
		}
	}
	return nil
}

// weights are the shares of the tenants that have one.
func (g *gate) weights() map[int32]float64 {
	m := map[int32]float64{}
	for id, t := range g.tenants {
		m[id] = t.Weight
	}
	return m
}

// admitPass decides once and carries it out. It returns how many tasks it moved.
func (e *Engine) admitPass(ctx context.Context) (int, error) {
	a := &e.admitter
	var x *changes
	var w *waiting
	var d admit.Decision
	var lines []store.LineWait
	var h *handled
	n := 0
	err := e.db.Write(ctx, func(tx store.Tx) (err error) {
		x, w, n, h = e.changes(e.now()), nil, 0, nil
		if leads, err := e.lead(ctx, tx, x.now); err != nil || !leads {
			return err
		}
		if w, err = e.readView(ctx, tx, x.now, a.after, nil, 0); err != nil {
			return err
		}
		a.shares.Advance(x.now, w.slots, w.waits, w.gate.weights())
		w.Shares = a.shares
		for id, q := range w.Queues {
			q.Ahead = a.ahead(id, w.admitted[id], x.now)
			w.Queues[id] = q
		}
		for i := range w.Limits {
			w.Limits[i].First = a.first[w.Limits[i].ID]
		}
		d = admit.Decide(w.View)
		keys := make([]store.LineKey, len(w.Lines))
		for i := range w.Lines {
			keys[i] = store.LineKey{Lane: w.Lines[i].Lane, Class: w.Lines[i].Class}
		}
		if err := e.lineLog.know(ctx, tx, a.term, keys); err != nil {
			return err
		}
		if lines = e.lineLog.changed(&w.View, &d, a.after == (store.Line{}) && w.next == (store.Line{})); len(lines) > 0 {
			if err := tx.Pipe(ctx, store.AddLineWaits(lines)); err != nil {
				return err
			}
		}
		if n, err = e.grant(ctx, tx, x, w, &d); err != nil {
			return err
		}
		if h, err = e.grantAsked(ctx, tx, w, &d); err != nil || n == 0 {
			return err
		}
		return x.save(ctx, tx)
	})
	if err != nil || w == nil {
		return 0, err
	}
	e.toldAsked(w, &d, h)
	e.lineLog.keep(lines)
	for _, ad := range d.Admitted {
		l := &w.Lines[ad.Line]
		a.shares.Served(admit.Party{Queue: l.Queue, Tenant: l.Tenant}, l.Class, 1, x.now)
		a.pace[l.Queue].admitted++
	}
	if a.after == (store.Line{}) && w.next == (store.Line{}) && len(w.Lines)+len(w.new) == 0 { // until somebody comes who must be admitted
		a.lined.Store(false)
	}
	a.after = w.next
	e.tell(x)
	for _, k := range w.new {
		if _, err := e.lane(ctx, k); err != nil {
			return n, err
		}
		n++
	}
	if n == 0 && w.next != (store.Line{}) {
		n++ // the lines that follow are looked at, too, before a pause
	}
	return n, nil
}

// ahead is how many tasks a queue's workers may have at hand beyond their free slots,
// those of them that run the same.
func (a *admitter) ahead(queue int32, queued int, now lifecycle.Instant) int {
	p := a.pace[queue]
	if p == nil {
		p = &pace{at: now, queued: queued}
		a.pace[queue] = p
	}
	if span := now.Sub(p.at).Seconds(); span > 0 {
		claimed := float64(max(p.queued+p.admitted-queued, 0))
		p.rate += (claimed/span - p.rate) * min(1, span/0.5)
		p.at, p.queued, p.admitted = now, queued, 0
	}
	return 1 + min(int(p.rate*aheadFor.Seconds()), maxAhead)
}

// grant moves those who were admitted, with their permits, those who need no
// admission, and those whose job is held.
func (e *Engine) grant(ctx context.Context, tx store.Tx, x *changes, w *waiting, d *admit.Decision) (int, error) {
	type fate struct {
		line int
		held bool
	}
	fates := map[drover.TaskID]fate{}
	var take []lifecycle.Task
	for _, ad := range d.Admitted {
		t := w.heads[ad.Line][ad.Head]
		fates[t.ID] = fate{line: ad.Line}
		take = append(take, t)
	}
	for _, ad := range d.Held {
		t := w.heads[ad.Line][ad.Head]
		fates[t.ID] = fate{line: ad.Line, held: true}
		take = append(take, t)
	}
	for _, t := range w.open {
		fates[t.ID] = fate{line: -1, held: w.Held[t.Job]}
		take = append(take, t)
	}
	if len(take) == 0 {
		return 0, nil
	}
	slices.SortFunc(take, func(s, t lifecycle.Task) int {
		return cmp.Or(cmp.Compare(s.Queue, t.Queue), cmp.Compare(s.Class, t.Class), cmp.Compare(s.Lane, t.Lane), cmp.Compare(s.DueAt, t.DueAt), compareIDs(s.ID, t.ID))
	})
	var rows []lifecycle.Task
	if err := tx.Pipe(ctx, store.TakeReadies(take, &rows)); err != nil || len(rows) == 0 {
		return 0, err
	}
	e.lineLog.tell(rows)
	held, err := heldJobs(ctx, tx, rows) // a job may have been held since
	if err != nil {
		return 0, err
	}
	x.admitting = true
	for _, t := range rows {
		f := fates[t.ID]
		switch {
		case f.held || held[t.Job]:
			x.place(heldBack(t, x.now))
		case f.line < 0:
			x.place(lifecycle.Admitted(t, t.Lane, x.now))
		default:
			x.place(lifecycle.Admitted(t, w.to[f.line], x.now))
			for _, k := range w.takes[f.line] {
				if k.limit.Period == 0 {
					x.permits = append(x.permits, store.Permit{Task: t.ID, Limit: k.limit.ID, Key: k.key, Weight: k.weight, At: x.now})
				}
			}
		}
	}
	slices.SortFunc(x.permits, func(p, q store.Permit) int { return cmp.Or(compareIDs(p.Task, q.Task), cmp.Compare(p.Limit, q.Limit)) })
	var ids []int32
	var arrivals []int64
	for _, i := range slices.Sorted(maps.Keys(d.Arrivals)) {
		ids, arrivals = append(ids, w.Limits[i].ID), append(arrivals, d.Arrivals[i])
	}
	return len(rows), tx.Pipe(ctx, store.UseRates(ids, arrivals))
}
