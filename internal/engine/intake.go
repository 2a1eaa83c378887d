package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/admit"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/store"
)

const (
	// maxIntakeRules bounds the rules of intake of all tenants.
	maxIntakeRules = 1000
	// maxWaiting is how many tasks a rule can count.
	maxWaiting = 100_000
	// countedOf is up to how many tasks are counted for a rule that bounds no number.
	countedOf = 10_000
	// comeBack is what a refused client is told: rules are looked at more often.
	comeBack = 5 * time.Second
)

var actNames = map[string]store.IntakeAct{drover.IntakeThrottle: store.ActThrottle, drover.IntakeShed: store.ActShed, drover.IntakeDivert: store.ActDivert}

func actName(a store.IntakeAct) string {
	for name, x := range actNames {
		if x == a {
			return name
		}
	}
	return ""
}

// bounds are what a rule asks for.
func bounds(x *store.IntakeRow) admit.Intake {
	return admit.Intake{Waiting: x.Waiting, Age: time.Duration(x.Age), Wait: time.Duration(x.Wait)}
}

// intakeOf validates what a rule is to be.
func (e *Engine) intakeOf(ctx context.Context, c Caller, name string, n drover.NewIntakeRule, dry bool) (row store.IntakeRow, err error) {
	var bad []drover.FieldError
	say := func(field, format string, args ...any) {
		bad = append(bad, drover.FieldError{Field: field, Message: fmt.Sprintf(format, args...)})
	}
	if !dag.ValidName(name) {
		say("name", "%q is no name for a rule: a lower-case letter, then up to 62 lower-case letters, digits, _ and -", cut(name))
	}
	if n.Queue != "" {
		checkName(say, "queue", n.Queue)
	}
	if n.Kind != "" {
		checkName(say, "kind", n.Kind)
	}
	if n.MaxWaiting == 0 && n.MaxAge == 0 && n.MaxWait == 0 {
		say("max_waiting", "say from when on too much waits: max_waiting, max_age or max_wait")
	}
	if n.MaxWaiting < 0 || n.MaxWaiting > maxWaiting {
		say("max_waiting", "%d is outside 1 to %d", n.MaxWaiting, maxWaiting)
	}
	for _, d := range []struct {
		field string
		is    drover.Duration
	}{{"max_age", n.MaxAge}, {"max_wait", n.MaxWait}} {
		if d.is != 0 && (d.is.Std() < time.Second || d.is.Std() > farFuture) {
			say(d.field, "must be at least 1s and at most ten years")
		}
	}
	if n.MaxWait != 0 && n.Queue == "" {
		say("max_wait", "is by the forecast for a queue; name the queue")
	}
	act, ok := actNames[n.Then]
	if !ok {
		say("then", "%q is not throttle, shed or divert", cut(n.Then))
	}
	if n.Class != 0 && act != store.ActShed {
		say("class", "only of a rule that sheds")
	} else if n.Class < 0 || n.Class > 99 {
		say("class", "must be interactive, urgent, normal, batch or a number from 1 (first) to 99 (last)")
	}
	switch {
	case act != store.ActDivert && n.DivertTo != "":
		say("divert_to", "only of a rule that diverts")
	case act == store.ActDivert && n.DivertTo == "":
		say("divert_to", "name the queue that jobs go to")
	case act == store.ActDivert && n.Queue == "":
		say("queue", "name the queue that jobs are diverted from")
	case act == store.ActDivert && n.DivertTo == n.Queue:
		say("divert_to", "is the queue itself")
	case act == store.ActDivert:
		checkName(say, "divert_to", n.DivertTo)
	}
	if len(n.Reason) > 1000 || !clean(n.Reason) {
		say("reason", "must have at most 1000 bytes of valid UTF-8 without control characters")
	}
	if c.Tenant == 0 && !n.Shared {
		say("shared", "the tenant %s has no tasks of its own; make the rule shared, or use a token of the tenant whose tasks they are", c.TenantName)
	}
	if len(bad) > 0 {
		return row, &drover.Error{Code: drover.CodeValidation, Detail: "the rule is not valid", Fields: bad}
	}
	row = store.IntakeRow{Tenant: c.Tenant, Name: name, Kind: n.Kind, Waiting: n.MaxWaiting, Age: int64(n.MaxAge.Std()), Wait: int64(n.MaxWait.Std()), Act: act, UpdatedAt: e.now(), Actor: c.Actor}
	if act == store.ActShed {
		row.Class = cmp.Or(n.Class, drover.Batch)
	}
	if n.Shared {
		row.Tenant = 0
		if err := c.operates("a rule for all tenants"); err != nil {
			return row, err
		}
	}
	for _, q := range []struct {
		name string
		to   *int32
	}{{n.Queue, &row.Queue}, {n.DivertTo, &row.Divert}} {
		if q.name == "" {
			continue
		}
		if *q.to, err = e.findQueue(ctx, q.name, dry); err != nil {
			return row, err
		}
	}
	return row, nil
}

// noQueue stands in a dry run for a queue that is not there: nothing is in it.
const noQueue = math.MaxInt32

// findQueue returns the number of a queue, made when it does not exist; in a dry run
// noQueue then.
func (e *Engine) findQueue(ctx context.Context, name string, dry bool) (id int32, err error) {
	if !dry {
		return e.queue(ctx, name)
	}
	err = e.db.Read(ctx, func(tx store.Tx) (err error) { id, err = e.knownQueue(ctx, tx, name); return err })
	if id == 0 {
		id = noQueue
	}
	return id, err
}

// SetIntake makes a rule of intake or changes it. It is looked at within seconds. dry
// tells how things stand by it, and changes nothing.
func (e *Engine) SetIntake(ctx context.Context, c Caller, name string, n drover.NewIntakeRule, p Precondition, dry bool) (drover.IntakeRule, error) {
	row, err := e.intakeOf(ctx, c, name, n, dry)
	if err != nil {
		return drover.IntakeRule{}, err
	}
	x, err := e.changeIntake(ctx, c, row, p, dry, n.Reason, false)
	if dry && err == nil {
		x.Queue, x.DivertTo = n.Queue, n.DivertTo // which may not be there yet
	}
	return x, err
}

// DeleteIntake removes a rule of intake: what it refused is taken again.
func (e *Engine) DeleteIntake(ctx context.Context, c Caller, name, reason string, p Precondition, dry bool) (drover.IntakeRule, error) {
	return e.changeIntake(ctx, c, store.IntakeRow{Name: name, Tenant: c.Tenant, UpdatedAt: e.now(), Actor: c.Actor}, p, dry, reason, true)
}

// findIntake finds a rule by name: the tenant's own, or one for all.
func findIntake(rules []store.IntakeRow, tenant int32, name string) (found store.IntakeRow) {
	for _, r := range rules {
		if r.Name == name && (r.Tenant == tenant || r.Tenant == 0 && found.ID == 0) {
			found = r
		}
	}
	return found
}

func (e *Engine) changeIntake(ctx context.Context, c Caller, to store.IntakeRow, p Precondition, dry bool, reason string, remove bool) (out drover.IntakeRule, err error) {
	run := e.db.Write
	if dry {
		run = e.db.Read
	}
	err = run(ctx, func(tx store.Tx) error {
		now := e.now()
		if !dry { // of two changes one waits for the other
			if err := tx.Pipe(ctx, store.LockLeader(leadName)); err != nil {
				return err
			}
		}
		var rules []store.IntakeRow
		if err := tx.Pipe(ctx, store.ReadIntake(&rules)); err != nil {
			return err
		}
		was := findIntake(rules, c.Tenant, to.Name)
		if err := p.check("rule "+to.Name, was.Version); err != nil {
			return err
		}
		if was.ID == 0 && remove {
			return notFound("rule", to.Name)
		}
		if was.ID != 0 && was.Tenant == 0 {
			if err := c.operates("rule " + to.Name + " is for all tenants"); err != nil {
				return err
			}
		}
		if was.ID != 0 && !remove && (was.Tenant != to.Tenant || was.Queue != to.Queue || was.Kind != to.Kind) {
			return drover.Errorf(drover.CodeConflict, "rule %s is another one: its queue and kind stay, and for whom it is; delete it first, or take another name", to.Name)
		}
		if was.ID == 0 && len(rules) >= maxIntakeRules {
			return drover.Errorf(drover.CodeBudget, "there are %d rules; at most %d", len(rules), maxIntakeRules)
		}
		if remove {
			to = was
		}
		if dry {
			to.Firing, to.Version = was.Firing, was.Version
			all, err := e.measure(ctx, tx, []store.IntakeRow{to})
			if err != nil {
				return err
			}
			to.Firing, to.Why = admit.Overloaded(bounds(&to), all[0], was.Firing)
			to.FiredAt = 0
			out, err = e.showIntake(ctx, tx, to, &all[0])
			return err
		}
		name := "intake:" + to.Name
		change := store.LimitChange{Tenant: to.Tenant, Name: name, Action: "set", Actor: c.Actor, Reason: reason, At: now, Was: e.intakeText(ctx, tx, was), Becomes: e.intakeText(ctx, tx, to)}
		stmt := store.UpdateIntake(to)
		switch {
		case remove:
			change.Action, change.Becomes = "deleted", ""
			stmt = store.DeleteIntake(was)
		case was.ID == 0:
			stmt = store.InsertIntake(to)
		}
		if err := tx.Pipe(ctx, stmt, store.InsertLimitChange(change), store.LiftGate(now), store.ReadIntake(&rules)); err != nil || remove {
			return err
		}
		out, err = e.showIntake(ctx, tx, findIntake(rules, to.Tenant, to.Name), nil)
		return err
	})
	if err != nil {
		return drover.IntakeRule{}, fmt.Errorf("rule of intake %s: %w", cut(to.Name), err)
	}
	if !dry {
		e.gateChanged(ctx)
	}
	return out, nil
}

// newIntakeOf is a rule as a person writes it.
func (e *Engine) newIntakeOf(ctx context.Context, tx store.Tx, x store.IntakeRow) (n drover.NewIntakeRule, err error) {
	n = drover.NewIntakeRule{Shared: x.Tenant == 0, Kind: x.Kind, MaxWaiting: x.Waiting, MaxAge: drover.Duration(x.Age), MaxWait: drover.Duration(x.Wait), Then: actName(x.Act), Class: x.Class}
	for _, q := range []struct {
		id int32
		to *string
	}{{x.Queue, &n.Queue}, {x.Divert, &n.DivertTo}} {
		if q.id == 0 || q.id == noQueue {
			continue
		}
		if *q.to, err = e.queueNameOf(ctx, tx, q.id); err != nil {
			return n, err
		}
	}
	return n, nil
}

// intakeText is a rule as its changes keep it; none is empty.
func (e *Engine) intakeText(ctx context.Context, tx store.Tx, x store.IntakeRow) string {
	if x.Act == 0 {
		return ""
	}
	n, err := e.newIntakeOf(ctx, tx, x)
	if err != nil {
		return ""
	}
	b, err := json.Marshal(n)
	if err != nil {
		return ""
	}
	return string(b)
}

func (e *Engine) showIntake(ctx context.Context, tx store.Tx, x store.IntakeRow, m *admit.Measure) (drover.IntakeRule, error) {
	n, err := e.newIntakeOf(ctx, tx, x)
	out := drover.IntakeRule{Name: x.Name, Shared: n.Shared, Queue: n.Queue, Kind: n.Kind, MaxWaiting: n.MaxWaiting, MaxAge: n.MaxAge, MaxWait: n.MaxWait, Then: n.Then, Class: n.Class, DivertTo: n.DivertTo,
		Firing: x.Firing, Version: int(x.Version), CreatedAt: x.CreatedAt.Time(), UpdatedAt: x.UpdatedAt.Time(), Actor: x.Actor}
	if x.Firing {
		out.Since, out.Why = x.FiredAt.Time(), x.Why
	}
	if m != nil {
		out.Measured = &drover.IntakeMeasure{Waiting: m.Waiting, Age: drover.Duration(m.Age)}
		if m.Wait >= 0 {
			d := drover.Duration(m.Wait)
			out.Measured.Wait = &d
		}
	}
	return out, err
}

// Intake returns the rules of intake that apply to the caller's tenant, by name, with
// how things stand.
func (e *Engine) Intake(ctx context.Context, c Caller) (out []drover.IntakeRule, err error) {
	err = e.db.Read(ctx, func(tx store.Tx) error {
		out = []drover.IntakeRule{}
		var rules []store.IntakeRow
		if err := tx.Pipe(ctx, store.ReadIntake(&rules)); err != nil {
			return err
		}
		rules = slices.DeleteFunc(rules, func(x store.IntakeRow) bool { return x.Tenant != 0 && x.Tenant != c.Tenant })
		all, err := e.measure(ctx, tx, rules)
		if err != nil {
			return err
		}
		for i, x := range rules {
			shown, err := e.showIntake(ctx, tx, x, &all[i])
			if err != nil {
				return err
			}
			out = append(out, shown)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list rules of intake: %w", err)
	}
	slices.SortStableFunc(out, func(a, b drover.IntakeRule) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// IntakeRule returns a rule of intake with its changes.
func (e *Engine) IntakeRule(ctx context.Context, c Caller, name string) (out drover.IntakeRule, err error) {
	err = e.db.Read(ctx, func(tx store.Tx) error {
		var rules []store.IntakeRow
		if err := tx.Pipe(ctx, store.ReadIntake(&rules)); err != nil {
			return err
		}
		x := findIntake(rules, c.Tenant, name)
		if x.ID == 0 {
			return notFound("rule", cut(name))
		}
		all, err := e.measure(ctx, tx, []store.IntakeRow{x})
		if err != nil {
			return err
		}
		if out, err = e.showIntake(ctx, tx, x, &all[0]); err != nil {
			return err
		}
		var changes []store.LimitChange
		if err := tx.Pipe(ctx, store.LimitChanges(x.Tenant, "intake:"+name, 20, &changes)); err != nil {
			return err
		}
		for _, ch := range changes {
			out.Changes = append(out.Changes, drover.IntakeChange{At: ch.At.Time(), Action: ch.Action, Actor: ch.Actor, Reason: ch.Reason, Was: newIntake(ch.Was), Is: newIntake(ch.Becomes)})
		}
		return nil
	})
	if err != nil {
		return drover.IntakeRule{}, fmt.Errorf("rule of intake %s: %w", cut(name), err)
	}
	return out, nil
}

func newIntake(text string) *drover.NewIntakeRule {
	var n drover.NewIntakeRule
	if text == "" || json.Unmarshal([]byte(text), &n) != nil {
		return nil
	}
	return &n
}

// measure counts what waits, for each rule.
func (e *Engine) measure(ctx context.Context, tx store.Tx, rules []store.IntakeRow) ([]admit.Measure, error) {
	out := make([]admit.Measure, len(rules))
	if len(rules) == 0 {
		return out, nil
	}
	var queues []int32
	for _, x := range rules {
		if queues = append(queues, x.Queue); x.Queue == 0 {
			queues = nil // all of them
			break
		}
	}
	ready, queued, err := store.StandingLines(ctx, tx, slices.Compact(slices.Sorted(slices.Values(queues))))
	if err != nil {
		return nil, err
	}
	now := e.now()
	for i := range rules {
		x := &rules[i]
		covered := func(all []store.Line) (out []store.Line, err error) {
			for _, l := range all {
				lane, err := e.laneOf(ctx, tx, l.Lane)
				if err != nil {
					return nil, err
				}
				if covers(x, &lane) {
					out = append(out, l)
				}
			}
			return out, nil
		}
		r, err := covered(ready)
		if err != nil {
			return nil, err
		}
		q, err := covered(queued)
		if err != nil {
			return nil, err
		}
		n, since, err := store.CountStanding(ctx, tx, r, q, max(x.Waiting, countedOf))
		if err != nil {
			return nil, err
		}
		if out[i] = (admit.Measure{Waiting: n, Wait: -1}); n > 0 {
			out[i].Age = max(now.Sub(since), 0)
		}
	}
	if !slices.ContainsFunc(rules, func(x store.IntakeRow) bool { return x.Wait > 0 }) {
		return out, nil
	}
	x := e.explainer(tx, Caller{System: true})
	if err := x.workers(ctx); err != nil {
		return nil, err
	}
	hints, err := x.hints(ctx)
	if err != nil {
		return nil, err
	}
	for i := range rules {
		name := ""
		if rules[i].Queue != 0 {
			if name, err = e.queueNameOf(ctx, tx, rules[i].Queue); err != nil {
				return nil, err
			}
		}
		for _, h := range hints {
			if h.Queue == name && h.DrainsIn != nil {
				out[i].Wait = h.DrainsIn.Std()
			}
		}
	}
	return out, nil
}

// IntakeOnce looks which rules of intake fire, and which do no longer. Where a server
// decides who may run, that one alone looks.
func (e *Engine) IntakeOnce(ctx context.Context) (int, error) {
	e.admitter.mu.Lock()
	mine := e.admitter.holder
	e.admitter.mu.Unlock()
	var rules, changed []store.IntakeRow
	err := e.db.Read(ctx, func(tx store.Tx) error {
		rules, changed = nil, nil
		var l store.Leader
		if err := tx.Pipe(ctx, store.ReadIntake(&rules), store.ReadLeader(leadName, &l)); err != nil {
			return err
		}
		if l.ExpiresAt > e.now() && l.Holder != mine {
			return nil
		}
		all, err := e.measure(ctx, tx, rules)
		if err != nil {
			return err
		}
		for i, x := range rules {
			if fires, why := admit.Overloaded(bounds(&x), all[i], x.Firing); fires != x.Firing {
				x.Firing, x.Why, x.FiredAt = fires, why, e.now()
				changed = append(changed, x)
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("look at intake: %w", err)
	}
	if len(changed) == 0 {
		return 0, nil
	}
	var told []store.IntakeRow
	err = e.db.Write(ctx, func(tx store.Tx) error {
		told = nil
		for _, x := range changed {
			var n int64
			if err := tx.Pipe(ctx, store.FireIntake(x, &n)); err != nil {
				return err
			}
			if n == 0 {
				continue // another server was faster, or somebody has changed the rule
			}
			action := "fired"
			if !x.Firing {
				action = "cleared"
			}
			if err := tx.Pipe(ctx, store.InsertLimitChange(store.LimitChange{Tenant: x.Tenant, Name: "intake:" + x.Name, Action: action, Reason: x.Why, At: x.FiredAt})); err != nil {
				return err
			}
			told = append(told, x)
		}
		if len(told) == 0 {
			return nil
		}
		return tx.Pipe(ctx, store.LiftGate(e.now()))
	})
	if err != nil {
		return 0, fmt.Errorf("look at intake: %w", err)
	}
	for _, x := range told {
		e.log.WarnContext(ctx, "rule of intake", "rule", x.Name, "firing", x.Firing, "then", actName(x.Act), "why", x.Why)
	}
	if len(told) > 0 {
		e.gateChanged(ctx)
	}
	return len(told), nil
}

// covers tells if a rule is about the tasks of a lane.
func covers(x *store.IntakeRow, k *store.LaneKey) bool {
	return (x.Tenant == 0 || x.Tenant == k.Tenant) && (x.Queue == 0 || x.Queue == k.Queue) && (x.Kind == "" || x.Kind == k.Kind)
}

// takesIn applies the rules that fire to a new task: it is refused, or to go to another
// queue.
func (g *gate) takesIn(k *store.LaneKey, class drover.Class) (refused *drover.Error, divert *store.IntakeRow) {
	if g == nil {
		return nil, nil
	}
	for i := range g.intake {
		x := &g.intake[i]
		if !x.Firing || !covers(x, k) || x.Act == store.ActShed && class < x.Class {
			continue
		}
		if x.Act == store.ActDivert {
			divert = cmp.Or(divert, x)
			continue
		}
		code, text := drover.CodeRateLimited, "rule %s: too much waits (%s), and new jobs are refused until less does"
		if x.Queue == 0 {
			code = drover.CodeQuota
		}
		if x.Act == store.ActShed {
			text = "rule %s: too much waits (%s), and new jobs of class " + x.Class.String() + " and behind it are refused until less does"
		}
		refused = drover.Errorf(code, text, x.Name, x.Why)
		refused.RetryAfter, refused.Policy, refused.Quota = comeBack, x.Name, x.Waiting
		return refused, nil
	}
	return nil, divert
}

// intake applies the rules that fire to a draft of one task.
func (e *Engine) intake(ctx context.Context, c Caller, d *draft) error {
	g := e.gate.Load()
	if g == nil || len(g.intake) == 0 || d.late != nil {
		return nil
	}
	k := store.LaneKey{Queue: d.queue, Tenant: c.Tenant, Kind: d.Kind}
	refused, divert := g.takesIn(&k, d.Class)
	if d.late = refused; refused != nil || divert == nil {
		return nil
	}
	from := d.Queue
	d.queue = divert.Divert
	err := e.db.Read(ctx, func(tx store.Tx) (err error) { d.Queue, err = e.queueNameOf(ctx, tx, d.queue); return err })
	if err != nil {
		return err
	}
	k.Queue = d.queue
	if d.late = g.takesJobs(d.queue); d.late == nil {
		d.late, _ = g.takesIn(&k, d.Class) // from there nothing is diverted again
	}
	d.accepted, err = json.Marshal(struct {
		From string `json:"diverted_from"`
		Rule string `json:"rule"`
		Why  string `json:"why"`
	}{from, divert.Name, divert.Why})
	return err
}

// intakeOfPlan applies the rules that fire to a job of a pipeline: it is refused when
// one of its tasks would be. What is diverted is single tasks only.
func (g *gate) intakeOfPlan(p *compiled, at []place, class drover.Class) *drover.Error {
	if g == nil || len(g.intake) == 0 {
		return nil
	}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Sub != "" {
			continue // its own tasks are not known before it runs
		}
		k := laneKeyOf(p, n, at[i].queue)
		if refused, _ := g.takesIn(&k, pickClass(n.Class, class)); refused != nil {
			return refused
		}
	}
	return nil
}
