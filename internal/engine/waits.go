package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/explain"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// WaitsBy are the words that waits can be grouped by.
var WaitsBy = []string{"reason", "tenant", "queue"}

// Waits says who waits for what: how many, for how long, and what most of them wait
// for. Callers see their own tenant; those of the installation see all.
func (e *Engine) Waits(ctx context.Context, c Caller, by []string) (out []drover.WaitGroup, err error) {
	for _, w := range by {
		if !slices.Contains(WaitsBy, w) {
			return nil, &drover.Error{Code: drover.CodeValidation, Detail: "the grouping is not valid",
				Fields: []drover.FieldError{{Field: "group_by", Message: fmt.Sprintf("%q is not one of %s", cut(w), strings.Join(WaitsBy, ", "))}}}
		}
	}
	if len(by) == 0 {
		by = []string{"reason"}
	}
	err = e.db.Read(ctx, func(tx store.Tx) error {
		x := e.explainer(tx, c)
		lines, err := x.lines(ctx)
		if err != nil {
			return err
		}
		out, err = x.grouped(ctx, lines, by)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list waits: %w", err)
	}
	return out, nil
}

// waitLine is a line with why its tasks wait.
type waitLine struct {
	store.WaitLine
	tenant  int32
	blocker drover.Blocker // the primary one
}

// lines reads every line that the caller may see, and why it waits.
func (x *explainer) lines(ctx context.Context) (out []waitLine, err error) {
	var rows []store.WaitLine
	if err := store.WaitLines(ctx, x.tx, x.e.counts, &rows); err != nil {
		return nil, err
	}
	var d *decided
	if slices.ContainsFunc(rows, func(r store.WaitLine) bool { return r.Kind == store.WaitsReady }) {
		if d, err = x.decideAll(ctx); err != nil {
			return nil, err
		}
	}
	for _, r := range rows {
		l := waitLine{WaitLine: r, tenant: r.Tenant}
		var lane store.LaneKey
		if r.Kind != store.WaitsHeld && r.Kind != store.WaitsInLine {
			if lane, err = x.e.laneOf(ctx, x.tx, r.Lane); err != nil {
				return nil, err
			}
			l.tenant = lane.Tenant
		}
		if l.tenant != x.c.Tenant && !x.c.System {
			continue
		}
		if l.blocker, err = x.lineBlocker(ctx, d, &l.WaitLine, lane); err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}

// lineBlocker is why the tasks of a line wait.
func (x *explainer) lineBlocker(ctx context.Context, d *decided, r *store.WaitLine, lane store.LaneKey) (b drover.Blocker, err error) {
	queue, err := x.e.queueNameOf(ctx, x.tx, r.Queue)
	if err != nil {
		return b, err
	}
	switch r.Kind {
	case store.WaitsForParents:
		return drover.Blocker{Code: drover.BlockerDependency, Subject: drover.Subject{Kind: "task"}}, nil
	case store.WaitsForTime:
		return drover.Blocker{Code: drover.BlockerSchedule, Subject: drover.Subject{Kind: "time"}}, nil
	case store.WaitsForRetry:
		return drover.Blocker{Code: drover.BlockerRetry, Subject: drover.Subject{Kind: "time"}}, nil
	case store.WaitsForChild:
		return explain.ChildJob(drover.JobID{}), nil
	case store.WaitsHeld:
		return drover.Blocker{Code: drover.BlockerJobPaused, Subject: drover.Subject{Kind: "job"}}, nil
	case store.WaitsInLine:
		return drover.Blocker{Code: drover.BlockerMapParallel, Subject: drover.Subject{Kind: "map"}}, nil
	case store.WaitsReady, store.WaitsQueued:
	}
	if d != nil && r.Kind == store.WaitsReady {
		v := d.verdicts[store.LineKey{Lane: r.Lane, Class: r.Class}]
		if v == nil && d.unseen(r) { // what one like it waits for
			v, r.More = d.alike(lane), true
		}
		if v != nil {
			first := v.Blockers[0]
			b := drover.Blocker{Code: drover.Reason(first.Code), Subject: drover.Subject{Kind: first.Subject.Kind, Name: first.Subject.Name, Limit: first.Subject.Limit, Used: first.Subject.Used}}
			if b.Code.Layer() == drover.LayerExecution && b.Subject.Name == "" {
				b.Subject = drover.Subject{Kind: "queue", Name: queue}
			}
			return b, nil
		}
	}
	circuit, err := x.circuit(ctx, lane)
	if err != nil {
		return b, err
	}
	if circuit != nil {
		return *circuit, nil
	}
	staff, err := x.crew(ctx, crewKey{queue: queue, tenant: lane.Tenant, kind: lane.Kind, needs: lane.Needs})
	if err != nil {
		return b, err
	}
	if b := staff.unfit(); b != nil {
		return *b, nil
	}
	if staff.free > 0 {
		return explain.Handoff(queue), nil
	}
	return explain.WorkersFull(queue, staff.slots, staff.used, explain.Place{Of: int(r.N)}), nil
}

// grouped adds lines up.
func (x *explainer) grouped(ctx context.Context, lines []waitLine, by []string) ([]drover.WaitGroup, error) {
	type key struct{ reason, tenant, queue string }
	type group struct {
		drover.WaitGroup
		n       map[drover.Reason]int64
		subject map[drover.Reason]*waitLine // the line of most
		total   int64
		oldest  lifecycle.Instant
	}
	groups := map[key]*group{}
	for i := range lines {
		l := &lines[i]
		var k key
		for _, w := range by {
			var err error
			switch w {
			case "reason":
				k.reason = string(l.blocker.Code)
			case "tenant":
				k.tenant, err = x.e.tenantNameOf(ctx, x.tx, l.tenant)
			case "queue":
				k.queue, err = x.e.queueNameOf(ctx, x.tx, l.Queue)
			}
			if err != nil {
				return nil, err
			}
		}
		g := groups[k]
		if g == nil {
			g = &group{n: map[drover.Reason]int64{}, subject: map[drover.Reason]*waitLine{}}
			g.Reason, g.Tenant, g.Queue = drover.Reason(k.reason), k.tenant, k.queue
			if g.Reason != "" {
				g.Layer = g.Reason.Layer()
			}
			groups[k] = g
		}
		code := l.blocker.Code
		g.n[code] += l.N
		g.total += l.N
		g.Approximate = g.Approximate || l.More
		if s := g.subject[code]; s == nil || l.N > s.N {
			g.subject[code] = l
		}
		if g.oldest == 0 || l.Since > 0 && l.Since < g.oldest {
			g.oldest = l.Since
		}
	}
	out := make([]drover.WaitGroup, 0, len(groups))
	for _, g := range groups {
		g.Top = most(g.n)
		g.Waiting = int(g.total)
		g.OldestSince, g.OldestAge = g.oldest.Time(), explain.Span(x.now.Sub(g.oldest))
		top := g.subject[g.Top]
		g.Subject = top.blocker.Subject
		g.Subject.Position, g.Subject.Queued, g.Subject.MoreAhead = 0, 0, false
		what := string(g.Top)
		if g.Subject.Name != "" {
			what += " " + g.Subject.Name
		}
		g.Message = fmt.Sprintf("%s, the oldest for %s; %s wait for %s.", explain.Count(g.Waiting, "task waits", "tasks wait"), explain.Long(g.OldestAge.Std()), explain.Thousands(int(g.n[g.Top])), what)
		if g.Approximate {
			g.Message = fmt.Sprintf("At least %s, the oldest of those looked at for %s; most wait for %s.", explain.Count(g.Waiting, "task waits", "tasks wait"), explain.Long(g.OldestAge.Std()), what)
		}
		out = append(out, g.WaitGroup)
	}
	slices.SortFunc(out, func(a, b drover.WaitGroup) int {
		return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Queue, b.Queue))
	})
	return out, nil
}

// most is the reason that counts most.
func most(n map[drover.Reason]int64) (top drover.Reason) {
	for code := range n {
		if top == "" || n[code] > n[top] || n[code] == n[top] && code < top {
			top = code
		}
	}
	return top
}
