package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/admit"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/store"
)

// checkAsks validates what is asked for.
func checkAsks(say func(string, string, ...any), a *dag.Asks) {
	a.Check(func(key, name, problem string) {
		if dag.ValidName(name) {
			key += "." + name
		}
		say(key, "%s", problem)
	})
}

// asksOf is what the task of a Kind job asks for.
func asksOf(n *drover.NewJob) dag.Asks {
	return dag.Asks{Key: n.ConcurrencyKey, Limits: n.Limits, WorkerLabels: n.WorkerLabels, Resources: n.Resources}
}

// checkNeeds validates what a Kind job's task asks for.
func checkNeeds(say func(string, string, ...any), n *drover.NewJob) {
	if k := n.ConcurrencyKey; len(k) > dag.MaxKey || !clean(k) {
		say("concurrency_key", "must have at most %d bytes of valid UTF-8 without control characters", dag.MaxKey)
	}
	if a := asksOf(n); !a.Empty() {
		checkAsks(say, &a)
	}
}

// checkLimits refuses what could never start: what asks for a limit that is not
// there, for more than it has, or for more than any of the workers there are could
// give. A repeat of a job that was accepted in time is not refused: late says why it is.
func (e *Engine) checkLimits(ctx context.Context, of *offer, k store.LaneKey, n dag.Asks, late *drover.Error) (*drover.Error, error) {
	if late != nil || len(n.Limits)+len(n.Resources) == 0 {
		return late, nil
	}
	if err := e.readOffer(ctx, of, len(n.Resources) > 0); err != nil {
		return nil, err
	}
	g, sessions, queue := of.gate, of.sessions, ""
	if name, ok := e.names.queueName.Load(k.Queue); ok { // the job's own, which was found before
		queue = name.(string)
	}
	for _, name := range slices.Sorted(maps.Keys(n.Limits)) {
		found := false
		for i := range g.limits {
			l := &g.limits[i]
			if l.Name != name || admit.Scope(l.Scope) != admit.Named || !applies(l, &k) {
				continue
			}
			found = true
			most := l.Permits
			if l.Period > 0 {
				most = l.Burst
			}
			if n.Limits[name] > most {
				return drover.Errorf(drover.CodeExceedsLimit, "the task asks for %d of limit %s, which has %d: it would wait for ever", n.Limits[name], name, most), nil
			}
		}
		if !found {
			return &drover.Error{Code: drover.CodeValidation, Detail: "the job is not valid", Fields: []drover.FieldError{{Field: "limits." + name,
				Message: "there is no such named limit; make it with 'drover limit set " + name + " --max N'"}}}, nil
		}
	}
	asks, serve, fits := askOf(&k), 0, 0
	now := e.now()
	for i := range sessions {
		s := &sessions[i]
		if s.ExpiresAt <= now || !takes(s, queue, k.Tenant, k.Kind) {
			continue
		}
		serve++
		w := admit.Worker{Queues: []int32{k.Queue}, Resources: s.Resources, Slots: int(s.Slots)}
		if (&admit.Needs{Queue: k.Queue, Requests: asks.Requests}).Serves(&w) {
			fits++
		}
	}
	if serve > 0 && fits == 0 {
		return drover.Errorf(drover.CodeExceedsLimit, "none of the %d workers of queue %q that run tasks of kind %q has as much as the task asks for: %s", serve, queue, k.Kind, amounts(asks.Requests)), nil
	}
	return nil, nil
}

// offer is which limits and workers there are, read once for the jobs of a request.
type offer struct {
	gate     *gate // nil: not read yet
	sessions []store.SessionRow
	workers  bool // sessions are read
}

func (e *Engine) readOffer(ctx context.Context, of *offer, workers bool) error {
	if of.gate != nil && (of.workers || !workers) {
		return nil
	}
	err := e.db.Read(ctx, func(tx store.Tx) error {
		var now store.Gate
		of.sessions = nil
		list := []store.Stmt{store.ReadGate(&now)}
		if workers {
			list = append(list, store.LiveSessions(&of.sessions))
		}
		if err := tx.Pipe(ctx, list...); err != nil {
			return err
		}
		g, err := e.gateAt(ctx, tx, now.Epoch)
		if of.gate = g; g == nil {
			of.gate = &gate{}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("find limits: %w", err)
	}
	of.workers = of.workers || workers
	return nil
}

func amounts(m map[string]int64) string {
	s := ""
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if s != "" {
			s += ", "
		}
		s += fmt.Sprintf("%s %d", name, m[name])
	}
	return s
}
