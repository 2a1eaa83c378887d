package engine

import (
	"context"
	"maps"
	"math"
	"slices"

	"github.com/drover-dev/drover/internal/admit"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/store"
)

// throughGate leaves to c the lanes of its queue in which nobody stands without an
// admission that he needs, and takes what asks something particular of the worker, as
// far as the session has it. Where nothing is limited it changes nothing and asks nothing.
func (e *Engine) throughGate(ctx context.Context, tx store.Tx, a *ask, c *store.Claim, n int) ([]store.Claimed, error) {
	g, err := e.gateAt(ctx, tx, a.epoch)
	if err != nil {
		return nil, err
	}
	if g == nil || g.idle() && !g.particular[c.Queue] {
		return nil, nil
	}
	if g.queues[c.Queue].Paused {
		c.Lanes = []int32{}
		return nil, nil
	}
	particular := a.particular
	if c.Lanes == nil {
		particular, c.Lanes = map[int32]string{}, []int32{}
		if err := tx.Pipe(ctx, store.QueueLanes(c.Queue, &c.Lanes, particular)); err != nil {
			return nil, err
		}
	}
	if err := e.learn(ctx, tx, append(slices.Clone(c.Lanes), slices.Collect(maps.Keys(particular))...)); err != nil {
		return nil, err
	}
	var memo lane1
	c.Lanes = slices.DeleteFunc(slices.Clone(c.Lanes), func(id int32) bool {
		k, ok := e.keyOfLane(&memo, id)
		return !ok || g.shut(id, k)
	})
	return e.claimParticular(ctx, tx, a, c, particular, n)
}

// shut is shuts, remembered for each lane.
func (g *gate) shut(id int32, k *store.LaneKey) bool {
	if is, ok := g.known.Load(id); ok {
		return is.(bool)
	}
	is := g.shuts(k)
	g.known.Store(id, is)
	return is
}

// learn reads the selectors of those of the lanes that this process has not met.
func (e *Engine) learn(ctx context.Context, tx store.Tx, ids []int32) error {
	var memo lane1
	strange := slices.DeleteFunc(ids, func(id int32) bool { _, ok := e.keyOfLane(&memo, id); return ok })
	if len(strange) == 0 {
		return nil
	}
	return e.learnLanes(ctx, tx, strange)
}

// claimParticular takes from lanes whose tasks ask for labels or resources, each as far
// as the session has what its tasks ask for beside what it runs.
func (e *Engine) claimParticular(ctx context.Context, tx store.Tx, a *ask, c *store.Claim, lanes map[int32]string, n int) ([]store.Claimed, error) {
	var mine []int32
	s := &a.session
	w := admit.Worker{Queues: []int32{c.Queue}, Tenant: s.Tenant, Kinds: s.Kinds, Labels: s.Labels, Resources: s.Resources, Slots: int(s.Slots)}
	of := map[int32]dag.Asks{}
	for _, id := range slices.Sorted(maps.Keys(lanes)) {
		var memo lane1
		k, ok := e.keyOfLane(&memo, id)
		if !ok || k.Queue != c.Queue {
			continue
		}
		of[id] = needsOf(k.Needs)
		ask := askOf(k)
		if ask.Serves(&w) {
			mine = append(mine, id)
		}
	}
	if len(mine) == 0 {
		return nil, nil
	}
	left := maps.Clone(s.Resources)
	if len(left) > 0 {
		runs := map[int32]int64{}
		if err := tx.Pipe(ctx, store.SessionLanes(s.ID, runs)); err != nil {
			return nil, err
		}
		if err := e.learn(ctx, tx, slices.Collect(maps.Keys(runs))); err != nil {
			return nil, err
		}
		for id, count := range runs {
			var memo lane1
			if k, ok := e.keyOfLane(&memo, id); ok {
				for name, asks := range needsOf(k.Needs).Resources {
					left[name] -= asks * count
				}
			}
		}
	}
	// Those after the lane of the last claim come first, so that all have their turn.
	slices.SortFunc(mine, func(x, y int32) int {
		turn := func(id int32) int64 {
			if id > c.Cursor {
				return int64(id)
			}
			return int64(id) + math.MaxInt32
		}
		return int(turn(x) - turn(y))
	})
	var got []store.Claimed
	for _, id := range mine {
		fits := int64(n - len(got))
		for name, asks := range of[id].Resources {
			if asks > 0 {
				fits = min(fits, left[name]/asks)
			}
		}
		if fits <= 0 {
			continue
		}
		x := *c
		x.Lanes = []int32{id}
		stopped := slices.ContainsFunc(a.stopped, func(l store.StoppedLane) bool { return l.Lane == id })
		var list []store.Claimed
		var err error
		if stopped {
			list, err = e.throughCircuits(ctx, tx, a.turns, &x, int(fits), a.stopped)
		} else {
			list, err = e.claimLanes(ctx, tx, a.turns, &x, int(fits))
		}
		if err != nil {
			return nil, err
		}
		for name, asks := range of[id].Resources {
			left[name] -= asks * int64(len(list))
		}
		if got = join(got, list); len(got) == n {
			break
		}
	}
	return got, nil
}

// askOf is what the tasks of a lane ask of a worker.
func askOf(k *store.LaneKey) admit.Needs {
	n := needsOf(k.Needs)
	return admit.Needs{Queue: k.Queue, Tenant: k.Tenant, Kind: k.Kind, Labels: n.WorkerLabels, Requests: n.Resources}
}
