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

// Bounds of what a task asks for.
const (
	maxAsks  = 16   // limits, resources or labels of one task
	maxNeeds = 1500 // bytes of all of it; it is part of a key
)

// checkAmounts validates names with whole numbers.
func checkAmounts(say func(string, string, ...any), field string, m map[string]int64, most int64) {
	if len(m) > maxAsks {
		say(field, "%d of them; at most %d", len(m), maxAsks)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if !dag.ValidName(name) {
			say(field, "%q is no name: a lower-case letter, then up to 62 lower-case letters, digits, _ and -", cut(name))
		}
		if n := m[name]; n < 1 || n > most {
			say(field+"."+cut(name), "%d is outside 1 to %d", n, most)
		}
	}
}

// checkNeeds validates what a Kind job's task asks for.
func checkNeeds(say func(string, string, ...any), n *drover.NewJob) {
	checkAmounts(say, "limits", n.Limits, maxPermits)
	checkAmounts(say, "resources", n.Resources, 1<<53)
	if k := n.ConcurrencyKey; len(k) > maxKey || !clean(k) {
		say("concurrency_key", "must have at most %d bytes of valid UTF-8 without control characters", maxKey)
	}
	if len(n.WorkerLabels) > maxAsks {
		say("worker_labels", "%d of them; at most %d", len(n.WorkerLabels), maxAsks)
	}
	for _, k := range sortedKeys(n.WorkerLabels) {
		if v := n.WorkerLabels[k]; k == "" || len(k) > 63 || !clean(k) || len(v) > 255 || !clean(v) {
			say("worker_labels", "key %q must have 1 to 63 bytes and its value at most 255, of valid UTF-8 without control characters", cut(k))
		}
	}
	if len((needs{Key: n.ConcurrencyKey, Limits: n.Limits, Labels: n.WorkerLabels, Requests: n.Resources}).encode()) > maxNeeds {
		say("limits", "with resources, labels and key they take more than %d bytes; use fewer or shorter ones", maxNeeds)
	}
}

// checkLimits refuses what could never start: what asks for a limit that is not
// there, for more than it has, or for more than any of the workers there are could
// give. A repeat of a job that was accepted in time is not refused: late says why it is.
func (e *Engine) checkLimits(ctx context.Context, k store.LaneKey, n needs, late *drover.Error) (*drover.Error, error) {
	if late != nil || len(n.Limits)+len(n.Requests) == 0 {
		return late, nil
	}
	var g *gate
	var sessions []store.SessionRow
	queue := ""
	err := e.db.Read(ctx, func(tx store.Tx) (err error) {
		if g, err = readGate(ctx, tx, e.now()); err != nil {
			return err
		}
		if queue, err = e.queueNameOf(ctx, tx, k.Queue); err != nil || len(n.Requests) == 0 {
			return err
		}
		sessions = nil
		return tx.Pipe(ctx, store.LiveSessions(&sessions))
	})
	if err != nil {
		return nil, fmt.Errorf("find limits: %w", err)
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
