package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/admit"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/explain"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// Bounds of what a limit can be.
const (
	minRate      = 1e-6
	maxRate      = 1e6
	maxHolders   = 100
	maxLimitRows = 10_000
	// burstFor is the time whose starts may come at once where no burst is set.
	burstFor = 250 * time.Millisecond
)

var scopeNames = map[string]admit.Scope{drover.ScopeGlobal: admit.Global, drover.ScopeTenant: admit.Tenant, drover.ScopeQueue: admit.InLine,
	drover.ScopeKind: admit.OfKind, drover.ScopeKey: admit.PerKey, drover.ScopeNamed: admit.Named}

func scopeName(s admit.Scope) string {
	for name, x := range scopeNames {
		if x == s {
			return name
		}
	}
	return ""
}

// Precondition is what a change of something that has versions expects: If-Match and
// If-None-Match of the API. The zero value expects nothing.
type Precondition struct {
	// Version is the version that it must have; 0 is any.
	Version int
	// New says that there must be none.
	New bool
}

func (p Precondition) check(what string, version int32) error {
	switch {
	case p.New && version > 0:
		return drover.Errorf(drover.CodePreconditionFailed, "there is a %s already, version %d", what, version)
	case p.Version > 0 && int32(p.Version) != version:
		if version == 0 {
			return drover.Errorf(drover.CodePreconditionFailed, "there is no %s", what)
		}
		return drover.Errorf(drover.CodePreconditionFailed, "the %s has version %d by now; look at it again", what, version)
	}
	return nil
}

// limitOf validates what a limit is to be and fills the defaults in.
func (e *Engine) limitOf(ctx context.Context, c Caller, name string, n drover.NewLimit, dry bool) (store.LimitRow, error) {
	var bad []drover.FieldError
	say := func(field, format string, args ...any) {
		bad = append(bad, drover.FieldError{Field: field, Message: fmt.Sprintf(format, args...)})
	}
	if !dag.ValidName(name) {
		say("name", "%q is no name for a limit: a lower-case letter, then up to 62 lower-case letters, digits, _ and -", cut(name))
	}
	n.Scope = cmp.Or(n.Scope, drover.ScopeNamed)
	scope, ok := scopeNames[n.Scope]
	if !ok {
		say("scope", "%q is not global, tenant, queue, kind, key or named", cut(n.Scope))
	}
	switch {
	case n.Max == 0 && n.Rate == 0:
		say("max", "must be at least 1; a limit that lets nothing start is a paused queue")
	case n.Max != 0 && n.Rate != 0:
		say("rate", "max and rate exclude each other; make two limits")
	case n.Rate == 0 && (n.Max < 1 || n.Max > dag.MaxPermits):
		say("max", "%d is outside 1 to %d", n.Max, dag.MaxPermits)
	case n.Max == 0 && (n.Rate < minRate || n.Rate > maxRate || math.IsNaN(n.Rate)):
		say("rate", "%v a second is outside 0.000001 to 1000000", n.Rate)
	}
	row := store.LimitRow{Tenant: c.Tenant, Name: name, Scope: int16(scope), Kind: n.Kind, Permits: n.Max, UpdatedAt: e.now(), Actor: c.Actor}
	if n.Rate != 0 && len(bad) == 0 {
		row.Period = int64(math.Ceil(float64(time.Second) / n.Rate))
		if row.Burst = n.Burst; n.Burst == 0 {
			row.Burst = max(1, int64(math.Ceil(n.Rate*burstFor.Seconds())))
		}
		if row.Burst < 1 || row.Burst > dag.MaxPermits || float64(row.Burst)*float64(row.Period) > float64(farFuture) {
			say("burst", "must be at least 1, and no more than comes in ten years")
		}
	} else if n.Burst != 0 {
		say("burst", "only of a rate")
	}
	if scope == admit.PerKey && n.Rate != 0 {
		say("rate", "a limit by key has a max")
	}
	if n.Queue != "" {
		checkName(say, "queue", n.Queue)
	} else if scope == admit.InLine {
		say("queue", "name the queue")
	}
	if n.Kind != "" {
		checkName(say, "kind", n.Kind)
	} else if scope == admit.OfKind {
		say("kind", "name the kind of task")
	}
	if (scope == admit.Global || scope == admit.Tenant) && (n.Queue != "" || n.Kind != "") {
		say("scope", "a limit of scope %s is for all its tasks; use queue or kind", n.Scope)
	}
	if n.Shared && scope != admit.Named && scope != admit.Global && scope != admit.InLine {
		say("shared", "only a named limit is shared by tenants")
	}
	if c.Tenant == 0 && (scope == admit.Tenant || scope == admit.OfKind || scope == admit.PerKey) {
		say("scope", "the tenant %s has no tasks to limit by %s; use scope global, queue or named, or a token of the tenant whose tasks they are", c.TenantName, n.Scope)
	}
	if len(n.Reason) > 1000 || !clean(n.Reason) {
		say("reason", "must have at most 1000 bytes of valid UTF-8 without control characters")
	}
	if len(bad) > 0 {
		return row, &drover.Error{Code: drover.CodeValidation, Detail: "the limit is not valid", Fields: bad}
	}
	if scope == admit.Global || scope == admit.InLine || n.Shared {
		row.Tenant = 0
	}
	if row.Tenant == 0 {
		if err := c.operates("a limit for all tenants"); err != nil {
			return row, err
		}
	}
	var err error
	if n.Queue != "" {
		row.Queue, err = e.findQueue(ctx, n.Queue, dry)
	}
	return row, err
}

// SetLimit makes a limit or changes how much it has. dry tells what would change, and
// changes nothing.
func (e *Engine) SetLimit(ctx context.Context, c Caller, name string, n drover.NewLimit, p Precondition, dry bool) (drover.Limit, error) {
	row, err := e.limitOf(ctx, c, name, n, dry)
	if err != nil {
		return drover.Limit{}, err
	}
	l, err := e.changeLimit(ctx, c, row, p, dry, n.Reason, false)
	if dry && err == nil {
		l.Queue = n.Queue // which may not be there yet
	}
	return l, err
}

// DeleteLimit removes a limit: nothing is bounded by it any more. A task that asks for
// a named one that is gone runs as if it did not, and is refused at submission.
func (e *Engine) DeleteLimit(ctx context.Context, c Caller, name, reason string, p Precondition, dry bool) (drover.Limit, error) {
	return e.changeLimit(ctx, c, store.LimitRow{Name: name, Tenant: c.Tenant, UpdatedAt: e.now(), Actor: c.Actor}, p, dry, reason, true)
}

// findLimit finds a limit by name: the tenant's own, or one for all.
func findLimit(limits []store.LimitRow, tenant int32, name string) (found store.LimitRow) {
	for _, l := range limits {
		if l.Name == name && (l.Tenant == tenant || l.Tenant == 0 && found.ID == 0) {
			found = l
		}
	}
	return found
}

func (e *Engine) changeLimit(ctx context.Context, c Caller, to store.LimitRow, p Precondition, dry bool, reason string, remove bool) (drover.Limit, error) {
	var out drover.Limit
	run := e.db.Write
	if dry {
		run = e.db.Read
	}
	err := run(ctx, func(tx store.Tx) error {
		now := e.now()
		if !dry { // no decision is under way meanwhile
			if err := tx.Pipe(ctx, store.LockLeader(leadName)); err != nil {
				return err
			}
		}
		g, err := readGate(ctx, tx, now)
		if err != nil {
			return err
		}
		was := findLimit(g.limits, c.Tenant, to.Name)
		if err := p.check("limit "+to.Name, was.Version); err != nil {
			return err
		}
		if was.ID == 0 && remove {
			return notFound("limit", to.Name)
		}
		if was.ID != 0 && was.Tenant == 0 {
			if err := c.operates("limit " + to.Name + " is for all tenants"); err != nil {
				return err
			}
		}
		if was.ID != 0 && !remove && (was.Scope != to.Scope || was.Tenant != to.Tenant || was.Queue != to.Queue || was.Kind != to.Kind || (was.Period == 0) != (to.Period == 0)) {
			return drover.Errorf(drover.CodeConflict, "limit %s is another one: its scope, queue and kind stay, and if it is a rate; delete it first, or take another name", to.Name)
		}
		if was.ID == 0 && len(g.limits) >= maxLimitRows {
			return drover.Errorf(drover.CodeBudget, "there are %d limits; at most %d", len(g.limits), maxLimitRows)
		}
		if was.ID != 0 && remove {
			if err := unasked(ctx, tx, was); err != nil {
				return err
			}
		}
		after := *g.with(was, to, remove)
		out, err = e.showLimit(ctx, tx, to, nil)
		if err != nil {
			return err
		}
		if dry {
			if out.Preview, err = e.previewLimit(ctx, tx, g, &after, was, to, remove, now); err != nil {
				return err
			}
			out.Version = int(was.Version)
			return nil
		}
		change := store.LimitChange{Tenant: to.Tenant, Name: to.Name, Action: "set", Actor: c.Actor, Reason: reason, At: now, Was: e.limitText(ctx, tx, was), Becomes: e.limitText(ctx, tx, to)}
		var list []store.Stmt
		switch {
		case remove:
			change.Tenant, change.Action, change.Becomes = was.Tenant, "deleted", ""
			list = store.DeleteLimit(was)
		case was.ID == 0:
			made, err := adopt(ctx, tx, to)
			if err != nil {
				return err
			}
			if !made {
				list = []store.Stmt{store.InsertLimit(to)}
			}
		default:
			list = []store.Stmt{store.UpdateLimit(to)}
		}
		if err := tx.Pipe(ctx, append(list, store.InsertLimitChange(change), store.LiftGate(now))...); err != nil {
			return err
		}
		if remove {
			return nil
		}
		var rows []store.LimitRow
		if err := tx.Pipe(ctx, store.LockLimit(to.Tenant, to.Name, &rows)); err != nil || len(rows) == 0 {
			return cmp.Or(err, store.ErrRetry)
		}
		out, err = e.showLimit(ctx, tx, rows[0], nil)
		return err
	})
	if errors.Is(err, store.ErrUnique) {
		err = drover.Errorf(drover.CodeConflict, "limit %s was made in this moment by somebody else", to.Name)
	}
	if err != nil {
		return drover.Limit{}, fmt.Errorf("limit %s: %w", cut(to.Name), err)
	}
	if !dry {
		e.gateChanged(ctx)
		if e.OnGranted != nil { // there may be enough now for a handler that waits
			e.OnGranted()
		}
	}
	return out, nil
}

// adopt makes a limit of a lock of that name which handlers have made and hold or wait
// for, if there is one: they hold of the limit then.
func adopt(ctx context.Context, tx store.Tx, to store.LimitRow) (bool, error) {
	var rows []store.LimitRow
	if err := tx.Pipe(ctx, store.LimitsNamed([]int32{to.Tenant}, []string{to.Name}, &rows)); err != nil {
		return false, err
	}
	at := slices.IndexFunc(rows, func(l store.LimitRow) bool { return l.Auto && l.Tenant == to.Tenant })
	if at < 0 {
		return false, nil
	}
	if admit.Scope(to.Scope) != admit.Named || to.Period > 0 || to.Queue != 0 || to.Kind != "" {
		return false, drover.Errorf(drover.CodeConflict, "limit %s is a lock that handlers hold or wait for; take another name, or a named limit with a max", to.Name)
	}
	var n int64
	if err := tx.Pipe(ctx, store.AdoptLock(to, &n)); err != nil {
		return false, err
	}
	return n > 0, nil
}

// unasked refuses to delete what handlers hold or wait for: somebody else could take
// a lock of that name while they go on as if it was theirs.
func unasked(ctx context.Context, tx store.Tx, l store.LimitRow) error {
	var rows []store.Asked
	if err := tx.Pipe(ctx, store.AskedIn(&rows)); err != nil {
		return err
	}
	n := 0
	for _, r := range rows {
		if r.Limit == l.ID {
			n++
		}
	}
	if n > 0 {
		return drover.Errorf(drover.CodeConflict, "limit %s: %s; delete it when they have ended, or cancel them (\"drover limit show %s\" names them)", l.Name, explain.Count(n, "running handler holds or waits for some of it", "running handlers hold or wait for some of it"), l.Name)
	}
	return nil
}

// gateChanged makes this server know at once what it has just changed. Where that
// fails the next claim or look does.
func (e *Engine) gateChanged(ctx context.Context) {
	if _, err := e.GateOnce(ctx); err != nil {
		e.log.WarnContext(ctx, "limits not read; will try again", "err", err)
	}
	e.WakeAdmitter()
}

// with is the gate as a change would make it.
func (g *gate) with(was, to store.LimitRow, remove bool) *gate {
	out := &gate{epoch: g.epoch, at: g.at, intake: g.intake, queues: g.queues, pauses: g.pauses, reserves: g.reserves, tenants: g.tenants, particular: g.particular}
	for _, l := range g.limits {
		switch {
		case l.ID != was.ID || was.ID == 0:
			out.limits = append(out.limits, l)
		case !remove:
			l.Permits, l.Period, l.Burst = to.Permits, to.Period, to.Burst
			out.limits = append(out.limits, l)
		}
	}
	if was.ID == 0 && !remove {
		to.ID = math.MaxInt32
		out.limits = append(out.limits, to)
	}
	return out
}

// previewLimit decides what waits without a change and with it, and compares.
func (e *Engine) previewLimit(ctx context.Context, tx store.Tx, before, after *gate, was, to store.LimitRow, remove bool, now lifecycle.Instant) (*drover.LimitPreview, error) {
	p := &drover.LimitPreview{}
	id := cmp.Or(was.ID, math.MaxInt32)
	used := map[string]int64{} // of it, by key
	var starts [2]map[drover.TaskID]bool
	for i, g := range []*gate{before, after} {
		w, err := e.readWaiting(ctx, tx, now, store.Line{}, g)
		if err != nil {
			return nil, err
		}
		if i == 1 && was.ID == 0 { // what is admitted or runs has no permits of it yet
			if err := e.wouldHold(ctx, tx, w, after.limits[len(after.limits)-1], used); err != nil {
				return nil, err
			}
			for k := range w.Limits {
				if l := &w.Limits[k]; l.ID == id {
					l.Used = used[l.Key]
				}
			}
		}
		starts[i] = map[drover.TaskID]bool{}
		for _, t := range w.open {
			starts[i][t.ID] = !w.Held[t.Job]
		}
		for _, ad := range admit.Decide(w.View).Admitted {
			starts[i][w.heads[ad.Line][ad.Head].ID] = true
		}
		if i == 0 && was.ID != 0 {
			for _, l := range w.usage {
				if l.Limit == was.ID {
					used[l.Key] += l.Weight
				}
			}
		}
		if i == 1 && !remove {
			for k := range w.Lines {
				for _, t := range w.Lines[k].Takes {
					if l := &w.Limits[t.Limit]; l.ID == id && (l.Period == 0 && t.Weight > l.Max || l.Period > 0 && t.Weight > l.Burst) {
						p.Never += len(w.Lines[k].Heads)
					}
				}
			}
		}
	}
	for _, n := range used {
		p.Applies += n
		if !remove && to.Period == 0 {
			p.Over += max(n-to.Permits, 0)
		}
	}
	for id, yes := range starts[1] {
		if yes && !starts[0][id] {
			p.Starts++
		}
	}
	for id, yes := range starts[0] {
		if yes && !starts[1][id] {
			p.Waits++
		}
	}
	return p, nil
}

// wouldHold counts, by key, what a new limit would apply to of what is admitted or
// runs. What a task asks for is known of the lane in which it waited.
func (e *Engine) wouldHold(ctx context.Context, tx store.Tx, w *waiting, l store.LimitRow, used map[string]int64) error {
	var memo lane1
	var lines []store.Line
	var lanes []int32
	for _, x := range w.queued {
		if k, ok := e.keyOfLane(&memo, x.Lane); ok && k.Stage == stageAdmitted {
			lines = append(lines, x)
		}
	}
	for _, x := range w.loads {
		lanes = append(lanes, x.Lane)
	}
	slices.Sort(lanes)
	var homes []store.LeastPermits
	if err := tx.Pipe(ctx, store.LeastPermitsIn(lines, slices.Compact(lanes), &homes)...); err != nil {
		return err
	}
	var ids []int32
	for _, h := range homes {
		ids = append(ids, h.Home)
	}
	if err := e.learn(ctx, tx, ids); err != nil {
		return err
	}
	g := &gate{limits: []store.LimitRow{l}}
	for _, h := range homes {
		if k, ok := e.keyOfLane(&memo, h.Home); ok {
			for _, t := range g.takes(k) {
				used[t.key] += t.weight * h.Count
			}
		}
	}
	return nil
}

// limitText is a limit as its changes keep it; none is empty.
func (e *Engine) limitText(ctx context.Context, tx store.Tx, l store.LimitRow) string {
	if l.Scope == 0 {
		return ""
	}
	queue, _ := e.queueNameOf(ctx, tx, l.Queue) // of 0 there is none
	b, err := json.Marshal(drover.NewLimit{Scope: scopeName(admit.Scope(l.Scope)), Shared: l.Tenant == 0, Queue: queue, Kind: l.Kind, Max: l.Permits, Rate: rateOf(l), Burst: l.Burst})
	if err != nil {
		return ""
	}
	return string(b)
}

// rateOf is how many a second a limit lets start, rounded to what a person wrote.
func rateOf(l store.LimitRow) float64 {
	if l.Period == 0 {
		return 0
	}
	r := float64(time.Second) / float64(l.Period)
	scale := math.Pow(10, 4-math.Floor(math.Log10(r)))
	return math.Round(r*scale) / scale
}

// showLimit is what the API shows of a limit.
func (e *Engine) showLimit(ctx context.Context, tx store.Tx, l store.LimitRow, usage []store.Usage) (drover.Limit, error) {
	out := drover.Limit{Name: l.Name, Scope: scopeName(admit.Scope(l.Scope)), Lock: l.Auto, Shared: l.Tenant == 0, Kind: l.Kind, Max: l.Permits, Rate: rateOf(l), Burst: l.Burst,
		Version: int(l.Version), CreatedAt: l.CreatedAt.Time(), UpdatedAt: l.UpdatedAt.Time(), Actor: l.Actor}
	now := e.now()
	if l.Until > now {
		out.Until = l.Until.Time()
	}
	if l.Period > 0 {
		a := admit.Limit{Period: time.Duration(l.Period), Burst: l.Burst, Arrival: l.Arrival}
		out.Used = l.Burst - max(a.Free(now), 0)
	}
	for _, u := range usage {
		if u.Limit == l.ID {
			out.Used += u.Weight
			if u.Key != "" {
				out.Keys++
			}
		}
	}
	var err error
	if l.Queue != 0 {
		out.Queue, err = e.queueNameOf(ctx, tx, l.Queue)
	}
	return out, err
}

// Limits returns the limits that apply to the caller's tenant, by name.
func (e *Engine) Limits(ctx context.Context, c Caller) ([]drover.Limit, error) {
	out := []drover.Limit{}
	err := e.db.Read(ctx, func(tx store.Tx) error {
		var rows []store.LimitRow
		var usage []store.Usage
		out = out[:0]
		if err := tx.Pipe(ctx, store.ReadLimits(&rows), store.PermitUsage(&usage)); err != nil {
			return err
		}
		for _, l := range rows {
			if l.Tenant != 0 && l.Tenant != c.Tenant {
				continue
			}
			shown, err := e.showLimit(ctx, tx, l, usage)
			if err != nil {
				return err
			}
			out = append(out, shown)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list limits: %w", err)
	}
	slices.SortStableFunc(out, func(a, b drover.Limit) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// Limit returns a limit with who holds it and who changed it.
func (e *Engine) Limit(ctx context.Context, c Caller, name string) (drover.Limit, error) {
	var out drover.Limit
	err := e.db.Read(ctx, func(tx store.Tx) error {
		var rows []store.LimitRow
		var usage []store.Usage
		if err := tx.Pipe(ctx, store.ReadLimits(&rows), store.PermitUsage(&usage)); err != nil {
			return err
		}
		var locks []store.LimitRow
		if err := tx.Pipe(ctx, store.LimitsNamed([]int32{c.Tenant}, []string{name}, &locks)); err != nil {
			return err
		}
		l := findLimit(append(locks, rows...), c.Tenant, name)
		if l.ID == 0 {
			return notFound("limit", cut(name))
		}
		var err error
		if out, err = e.showLimit(ctx, tx, l, usage); err != nil {
			return err
		}
		var holders, waiters []store.PermitHolder
		var changes []store.LimitChange
		if err := tx.Pipe(ctx, store.Holders(l.ID, maxHolders, &holders), store.Waiters(l.ID, maxHolders, &waiters), store.LimitChanges(l.Tenant, name, 20, &changes)); err != nil {
			return err
		}
		if out.Holders, err = e.showHolders(ctx, tx, c, holders); err != nil {
			return err
		}
		if out.Waiters, err = e.showHolders(ctx, tx, c, waiters); err != nil {
			return err
		}
		for _, x := range changes {
			out.Changes = append(out.Changes, drover.LimitChange{At: x.At.Time(), Action: x.Action, Actor: x.Actor, Reason: x.Reason, Was: newLimitOf(x.Was), Is: newLimitOf(x.Becomes)})
		}
		return nil
	})
	if err != nil {
		return drover.Limit{}, fmt.Errorf("limit %s: %w", cut(name), err)
	}
	return out, nil
}

// showHolders shows who holds permits, or waits for some. Of other tenants it is to be
// seen that they do; who they are is not theirs to know who ask.
func (e *Engine) showHolders(ctx context.Context, tx store.Tx, c Caller, list []store.PermitHolder) (out []drover.PermitHolder, err error) {
	for _, h := range list {
		shown := drover.PermitHolder{Weight: h.Weight, Since: h.At.Time()}
		if h.Tenant == c.Tenant || c.System {
			shown.TaskID, shown.JobID, shown.Key, shown.Token = h.Task, h.Job, h.Key, h.Token
			if shown.Tenant, err = e.tenantNameOf(ctx, tx, h.Tenant); err != nil {
				return nil, err
			}
		}
		out = append(out, shown)
	}
	return out, nil
}

func newLimitOf(text string) *drover.NewLimit {
	var n drover.NewLimit
	if text == "" || json.Unmarshal([]byte(text), &n) != nil {
		return nil
	}
	return &n
}
