package engine

import (
	"context"
	"fmt"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store"
)

// auditPermits checks who holds permits: every task that stands in a lane of stage 1,
// those that its lane takes, and nobody else.
func (e *Engine) auditPermits(ctx context.Context, tx store.Tx, from drover.JobID) (Audited, error) {
	a := Audited{ID: "I33", Name: "permits", Means: "A task that is admitted or runs holds the permits that it takes, and nobody else holds any."}
	g, err := readGate(ctx, tx, e.now())
	if err != nil {
		return a, err
	}
	type held struct {
		task  drover.TaskID
		limit int32
	}
	holds := map[held]store.AuditPermit{}
	var asked []store.AuditPermit
	var standing []store.AuditStanding
	if err := tx.Pipe(ctx, store.AuditStandings(from, &standing), store.AuditPermits(from, func(p store.AuditPermit) {
		if p.Number > 0 {
			asked = append(asked, p)
			return
		}
		holds[held{p.Task, p.Limit}] = p
	})); err != nil {
		return a, err
	}
	stands := map[drover.TaskID]bool{}
	for _, s := range standing {
		stands[s.Task] = true
	}
	for _, p := range asked {
		switch what := fmt.Sprintf("its handler's request %d for %d of limit number %d", p.Number, p.Wants, p.Limit); {
		case !p.Runs:
			a.found(p.Job, p.Task, "%s is there, and the task does not run", what)
		case !stands[p.Task]:
			a.found(p.Job, p.Task, "%s is there, and would not be given back where it stands", what)
		case p.Limit > 0 && (p.Wants < 1 || p.Weight != 0 && p.Weight != p.Wants || (p.Weight > 0) != (p.Token > 0)):
			a.found(p.Job, p.Task, "%s has %d with the token %d", what, p.Weight, p.Token)
		}
	}
	var ids []int32
	for _, s := range standing {
		ids = append(ids, s.Home)
	}
	if err := e.learn(ctx, tx, ids); err != nil {
		return a, err
	}
	var memo lane1
	for _, s := range standing {
		k, ok := e.keyOfLane(&memo, s.Home)
		if !ok {
			a.found(s.Job, s.Task, "its lane %d is not there", s.Home)
			continue
		}
		for _, t := range g.takes(k) {
			if t.limit.Period > 0 {
				continue
			}
			p, ok := holds[held{s.Task, t.limit.ID}]
			delete(holds, held{s.Task, t.limit.ID})
			if !ok && t.limit.Written {
				a.found(s.Job, s.Task, "holds no permit of limit %s, and takes %d", t.limit.Name, t.weight)
			} else if ok && (p.Weight != t.weight || p.Key != t.key) {
				a.found(s.Job, s.Task, "holds %d of limit %s under key %q, and takes %d under %q", p.Weight, t.limit.Name, p.Key, t.weight, t.key)
			}
		}
	}
	for _, p := range holds {
		a.found(p.Job, p.Task, "holds %d of limit number %d, and takes nothing of it where it stands", p.Weight, p.Limit)
	}
	return a, nil
}
