package engine

import (
	"context"
	"errors"
	"slices"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store"
)

// A task of a pipeline has its concurrency key from an expression, which is evaluated
// in the transaction that lets it run: in the one of its submission, or of the end it
// waited for. The key makes the lane that it waits in another one. Where the task's own
// row is not made in that transaction too, task_lanes has the lane.

// keyed is a row that may run, and the lane that its concurrency key gives it.
type keyed struct {
	*graph
	seat *seat
	lane store.LaneKey
}

// concurrencyKey finds the lane of a row by its key. false says that the row is broken.
func (a *question) concurrencyKey(item []byte) (keyed, bool) {
	n := &a.plan.Nodes[a.seat.Node]
	key, err := a.plan.ConcurrencyKey(a.seat.Node, a.view(a.itemOr(item), a.seat.Index))
	if err != nil {
		a.broke(a.seat, drover.ClassInput, "%s", err.Error())
		return keyed{}, false
	}
	a.board.Holds(a.seat, true)
	own := *n
	own.Asks.Key = key
	return keyed{a.graph, a.seat, laneKeyOf(a.plan, &own, a.seat.Task.Queue)}, true
}

// inKeyLanes gives rows the lanes of their keys. A lane that is not there is made before
// the transaction, which runs again then.
func (e *Engine) inKeyLanes(ctx context.Context, tx store.Tx, list []keyed) error {
	found := map[store.LaneKey]int32{}
	var ask []store.LaneKey
	lent := false
	for _, k := range list {
		if _, ok := found[k.lane]; ok {
			continue
		}
		id, ok := e.names.laneID.Load(k.lane)
		if ok {
			found[k.lane] = id.(int32)
			continue
		}
		ask, found[k.lane], lent = append(ask, k.lane), 0, lent || k.lent
	}
	if len(ask) > 0 {
		if err := tx.Pipe(ctx, store.FindLanes(ask, found)); err != nil {
			return err
		}
		ask = slices.DeleteFunc(ask, func(k store.LaneKey) bool { return found[k] != 0 })
	}
	if len(ask) > 0 {
		err := e.makeLanes(ctx, ask, found, lent)
		if err != nil {
			return err
		}
	}
	for _, k := range list {
		id := found[k.lane]
		if k.seat.Task.Lane == id {
			continue
		}
		k.seat.Task.Lane = id
		if k.homes == nil {
			k.homes = map[drover.TaskID]store.HomeRow{}
		}
		k.homes[k.seat.Task.ID] = store.HomeRow{Generation: generationOf(&k.seat.Task), Lane: id}
	}
	return nil
}

// makeLanes makes lanes outside the transaction: now, where that cannot begin again.
func (e *Engine) makeLanes(ctx context.Context, keys []store.LaneKey, found map[store.LaneKey]int32, now bool) error {
	if !now {
		return &store.Again{First: func(ctx context.Context) error { return e.makeLanes(ctx, keys, found, true) }}
	}
	for _, k := range keys {
		id, err := e.lane(ctx, k)
		if err != nil {
			return err
		}
		found[k] = id
	}
	return nil
}

// rehomed writes the lanes of keys into the rows of new tasks.
func (g *graph) rehomed(rows []store.TaskRow) []store.TaskRow {
	if len(g.homes) == 0 {
		return rows
	}
	for i := range rows {
		if h, ok := g.homes[rows[i].ID]; ok {
			rows[i].Lane = h.Lane
			delete(g.homes, rows[i].ID)
		}
	}
	return rows
}

// newHomes are the lanes of keys of tasks that were there before, in their order.
func (g *graph) newHomes() []store.HomeRow {
	var rows []store.HomeRow
	for _, h := range g.homes {
		rows = append(rows, h)
	}
	slices.SortFunc(rows, func(a, b store.HomeRow) int { return compareIDs(a.Task, b.Task) })
	return rows
}

// firsts gathers what is to be made before a transaction runs again, from all of its
// parts: each alone would have it run once more.
type firsts []*store.Again

// put keeps what err asks for; any other error is for the caller.
func (f *firsts) put(err error) error {
	var a *store.Again
	if !errors.As(err, &a) {
		return err
	}
	*f = append(*f, a)
	return nil
}

// asked is the error that asks for all of it, if there is something.
func (f firsts) asked() error {
	if len(f) == 0 {
		return nil
	}
	return &store.Again{First: func(ctx context.Context) error {
		for _, a := range f {
			if err := a.First(ctx); err != nil {
				return err
			}
		}
		return nil
	}}
}
