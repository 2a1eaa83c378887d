package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/admit"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// Stages of a lane: what its tasks are to admission.
const (
	stageOpen     = 0 // tasks stand here that need no admission, or wait for one
	stageAdmitted = 1 // from their admission to the end of the attempt; they hold permits
	stageWaits    = 2 // tasks wait here that always need one
)

// needsOf reads what the tasks of a lane ask for beside a free slot.
func needsOf(text string) (a dag.Asks) {
	if text != "" {
		_ = json.Unmarshal([]byte(text), &a) // written by Encode
	}
	return a
}

// waitingIn is the lane in which tasks wait that have a selector and needs.
func waitingIn(k store.LaneKey, a dag.Asks) store.LaneKey {
	if k.Needs = a.Encode(); k.Needs != "" {
		k.Stage = stageWaits
	}
	return k
}

// laneKeyOf is the selector of the lane in which a node's tasks wait.
func laneKeyOf(p *compiled, n *dag.Node, queue int32) store.LaneKey {
	return waitingIn(store.LaneKey{Queue: queue, Tenant: p.Tenant, Kind: n.Kind, Circuit: n.Circuit}, n.Asks)
}

// admittedIn is the lane in which the tasks of a lane stand once they are admitted.
func admittedIn(k store.LaneKey) store.LaneKey {
	a := needsOf(k.Needs)
	a.Key, a.Limits = "", nil // of no use to a claim
	k.Stage, k.Needs = stageAdmitted, a.Encode()
	return k
}

// gate is what a process knows of what has to be admitted. It is replaced, never
// changed: claims compare its epoch with the database's in the trip in which they
// find out which lanes are stopped.
type gate struct {
	epoch      int64
	at         lifecycle.Instant // when it was read
	limits     []store.LimitRow
	intake     []store.IntakeRow
	queues     map[int32]store.QueueState
	pauses     bool                      // one of them is paused
	reserves   map[int32][]admit.Reserve // of queues
	tenants    map[int32]store.TenantShare
	known      sync.Map       // lane → whether it is shut
	particular map[int32]bool // queues in which not every worker runs every admitted task
}

// idle says that nothing has to be admitted but what asks for it itself.
func (g *gate) idle() bool {
	return g == nil || len(g.limits) == 0 && !g.pauses && len(g.reserves) == 0
}

// shuts tells if tasks of a lane must be admitted before they are claimed.
func (g *gate) shuts(k *store.LaneKey) bool {
	if k.Stage == stageWaits {
		return true
	}
	if g.idle() || k.Stage == stageAdmitted {
		return false
	}
	if g.queues[k.Queue].Paused || len(g.reserves[k.Queue]) > 0 {
		return true
	}
	for i := range g.limits {
		if l := &g.limits[i]; admit.Scope(l.Scope) < admit.PerKey && applies(l, k) {
			return true
		}
	}
	return false
}

// applies tells if a limit that is not asked for by name or key bounds the tasks of a
// lane; of one that is, if it may.
func applies(l *store.LimitRow, k *store.LaneKey) bool {
	return (l.Tenant == 0 || l.Tenant == k.Tenant) && (l.Queue == 0 || l.Queue == k.Queue) && (l.Kind == "" || l.Kind == k.Kind)
}

// take is what the tasks of a lane take of a limit.
type take struct {
	limit  *store.LimitRow
	key    string
	weight int64
}

// takes lists what the tasks of a lane take, in the order of the limits.
func (g *gate) takes(k *store.LaneKey) (list []take) {
	if g == nil {
		return nil
	}
	n := needsOf(k.Needs)
	for i := range g.limits {
		l := &g.limits[i]
		if !applies(l, k) {
			continue
		}
		switch admit.Scope(l.Scope) {
		case admit.PerKey:
			if n.Key != "" {
				list = append(list, take{l, n.Key, 1})
			}
		case admit.Named:
			if w := n.Limits[l.Name]; w > 0 {
				list = append(list, take{l, "", w})
			}
		default:
			list = append(list, take{l, "", 1})
		}
	}
	return list
}

// permits is how many permits a task of a lane holds while it is admitted.
func (g *gate) permits(k *store.LaneKey) (n int64) {
	for _, t := range g.takes(k) {
		if t.limit.Period == 0 {
			n++
		}
	}
	return n
}

// readGate reads the gate as a transaction sees it.
func readGate(ctx context.Context, tx store.Tx, now lifecycle.Instant) (*gate, error) {
	g := &gate{at: now, queues: map[int32]store.QueueState{}, tenants: map[int32]store.TenantShare{}, particular: map[int32]bool{}}
	var epoch store.Gate
	var queues []store.QueueState
	var tenants []store.TenantShare
	var particular []int32
	// The epoch first: what changes meanwhile makes the next look read all again.
	if err := tx.Pipe(ctx, store.ReadGate(&epoch), store.ReadLimits(&g.limits), store.ReadIntake(&g.intake), store.QueueStates(&queues), store.TenantShares(&tenants), store.ParticularQueues(&particular)); err != nil {
		return nil, err
	}
	g.epoch = epoch.Epoch
	for _, q := range queues {
		if list := reservesOf(q.Reserves); len(list) > 0 {
			if g.reserves == nil {
				g.reserves = map[int32][]admit.Reserve{}
			}
			for _, r := range list {
				g.reserves[q.ID] = append(g.reserves[q.ID], admit.Reserve{Class: r.Class, Percent: r.Percent})
			}
		}
		if q.Paused || q.Draining {
			g.queues[q.ID] = q
			g.pauses = g.pauses || q.Paused
		}
	}
	for _, t := range tenants {
		g.tenants[t.ID] = t
	}
	for _, q := range particular {
		g.particular[q] = true
	}
	return g, nil
}

// GateOnce looks if what has to be admitted was changed by another server.
func (e *Engine) GateOnce(ctx context.Context) (int, error) {
	var now store.Gate
	err := e.db.Read(ctx, func(tx store.Tx) error {
		if err := tx.Pipe(ctx, store.ReadGate(&now)); err != nil {
			return err
		}
		_, err := e.gateAt(ctx, tx, now.Epoch)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("read limits: %w", err)
	}
	return 0, nil
}

// gateAt returns the gate of an epoch, read anew when this process has another one.
func (e *Engine) gateAt(ctx context.Context, tx store.Tx, epoch int64) (*gate, error) {
	if g := e.gate.Load(); g != nil && g.epoch == epoch || g == nil && epoch == 0 {
		return g, nil
	}
	g, err := readGate(ctx, tx, e.now())
	if err != nil {
		return nil, err
	}
	if old := e.gate.Load(); old == nil || old.epoch <= g.epoch {
		e.gate.Store(g)
	}
	return g, nil
}

// lane1 remembers the lane that was looked up last: rows of one lane come together.
type lane1 struct {
	id  int32
	key store.LaneKey
	ok  bool
}

// keyOfLane returns the selector of a lane that this process knows.
func (e *Engine) keyOfLane(l *lane1, id int32) (*store.LaneKey, bool) {
	if l.id != id || !l.ok {
		k, ok := e.names.laneKey.Load(id)
		if l.id, l.ok = id, ok; ok {
			l.key = k.(store.LaneKey)
		}
	}
	return &l.key, l.ok
}

// learnLanes reads the selectors of lanes that this process has not met.
func (e *Engine) learnLanes(ctx context.Context, tx store.Tx, ids []int32) error {
	slices.Sort(ids)
	keys := map[int32]store.LaneKey{}
	if err := tx.Pipe(ctx, store.LaneKeys(slices.Compact(ids), keys)); err != nil {
		return err
	}
	for id, k := range keys {
		e.names.laneKey.Store(id, k)
	}
	return nil
}

// pass makes what is about to be saved agree with what has to be admitted: tasks that
// leave a lane of stage 1 give their permits back and stand in the lane they waited in;
// those that would be claimable without an admission they need wait for it. It costs a
// look into memory for each row where there is neither.
func (x *changes) pass(ctx context.Context, tx store.Tx) error {
	if x.admitting {
		return nil
	}
	e := x.e
	g := e.gate.Load()
	var strange []int32
	var memo lane1
	for i := range x.live {
		if id := x.live[i].Lane; id != lifecycle.HeldLane {
			if _, ok := e.keyOfLane(&memo, id); !ok {
				strange = append(strange, id)
			}
		}
	}
	for i := range x.finals {
		if id := x.finals[i].Task.Lane; id != lifecycle.HeldLane {
			if _, ok := e.keyOfLane(&memo, id); !ok {
				strange = append(strange, id)
			}
		}
	}
	if len(strange) > 0 {
		if err := e.learnLanes(ctx, tx, strange); err != nil {
			return err
		}
	}
	var home []lifecycle.Task
	for i := range x.live {
		t := &x.live[i]
		if t.Lane == lifecycle.HeldLane {
			x.freed = append(x.freed, t.ID) // it may have been admitted before it was held
			continue
		}
		if k, ok := e.keyOfLane(&memo, t.Lane); ok && k.Stage == stageAdmitted {
			x.freed = append(x.freed, t.ID)
			home = append(home, *t)
		}
	}
	for i := range x.finals {
		t := &x.finals[i].Task
		if k, ok := e.keyOfLane(&memo, t.Lane); ok && k.Stage == stageAdmitted {
			x.freed = append(x.freed, t.ID)
			if x.slow[t.ID] > 0 {
				home = append(home, *t)
			}
		}
	}
	if len(home) > 0 {
		lanes := map[drover.TaskID]int32{}
		if err := tx.Pipe(ctx, store.TaskLanes(home, lanes)); err != nil {
			return err
		}
		if err := e.learnLanes(ctx, tx, slices.Collect(maps.Values(lanes))); err != nil {
			return err
		}
		for id, lane := range lanes {
			if until := x.slow[id]; until > 0 {
				if k, ok := e.keyOfLane(&memo, lane); ok {
					x.slowDown(g.takes(k), until)
				}
			}
		}
		for i := range x.live {
			if lane, ok := lanes[x.live[i].ID]; ok && x.live[i].Lane != lifecycle.HeldLane {
				x.live[i].Lane = lane
			}
		}
	}
	for i := range x.live {
		t := &x.live[i]
		if t.Status != drover.Queued {
			continue
		}
		if k, ok := e.keyOfLane(&memo, t.Lane); ok && g.shuts(k) {
			*t = lifecycle.Unadmitted(*t)
		}
	}
	slices.SortFunc(x.freed, compareIDs)
	x.freed = slices.Compact(x.freed)
	return nil
}

// throttled notes that a task was told to come back after a time. What it says holds
// for all who take of the same rates.
func (x *changes) throttled(id drover.TaskID, after time.Duration) {
	if x.slow == nil {
		x.slow = map[drover.TaskID]lifecycle.Instant{}
	}
	x.slow[id] = x.now.Add(min(after, lifecycle.MaxDelay))
}

func (x *changes) slowDown(list []take, until lifecycle.Instant) {
	for _, t := range list {
		if t.limit.Period > 0 {
			if x.slowed == nil {
				x.slowed = map[int32]int64{}
			}
			x.slowed[t.limit.ID] = max(x.slowed[t.limit.ID], int64(until))
		}
	}
}

// waitRates stores what slowDown noted.
func (x *changes) waitRates() store.Stmt {
	ids := slices.Sorted(maps.Keys(x.slowed))
	var until []int64
	for _, id := range ids {
		until = append(until, x.slowed[id])
	}
	return store.WaitRates(ids, until)
}
