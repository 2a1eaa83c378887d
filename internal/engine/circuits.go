package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/explain"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// throughCircuits takes up to n tasks through the circuits of a queue that are not
// closed, as far as those let any go, and leaves to c the lanes that are not
// stopped.
func (e *Engine) throughCircuits(ctx context.Context, tx store.Tx, turns *rotation, c *store.Claim, n int, stopped []store.StoppedLane) ([]store.Claimed, error) {
	serves := c.Lanes
	if serves == nil {
		if err := tx.Pipe(ctx, store.QueueLanes(c.Queue, &serves, map[int32]string{})); err != nil {
			return nil, err
		}
	}
	lanes := map[store.CircuitKey][]int32{}
	c.Lanes = slices.Clone(serves)
	for _, l := range stopped {
		if l.Queue == c.Queue && slices.Contains(serves, l.Lane) {
			lanes[l.CircuitKey] = append(lanes[l.CircuitKey], l.Lane)
			c.Lanes = slices.DeleteFunc(c.Lanes, func(id int32) bool { return id == l.Lane })
		}
	}
	var got []store.Claimed
	for _, l := range stopped {
		mine := lanes[l.CircuitKey]
		delete(lanes, l.CircuitKey) // once each
		if len(mine) == 0 || len(got) == n || lifecycle.CircuitGrant(l.Circuit, l.Lost, 0, c.Now) == 0 {
			continue
		}
		row, lost, ok, err := store.TryCircuit(ctx, tx, l.CircuitKey)
		if err != nil {
			return nil, err
		}
		grant := 0
		if ok {
			row.Circuit = lifecycle.CircuitAt(row.Circuit, c.Now)
			if grant = lifecycle.CircuitGrant(row.Circuit, lost, e.opts.Jitter(), c.Now); grant < 0 { // it has closed meanwhile
				grant = n
			}
		}
		if grant = min(grant, n-len(got)); grant == 0 {
			continue
		}
		x := *c
		x.Lanes = mine
		list, err := e.claimLanes(ctx, tx, turns, &x, grant)
		if err != nil {
			return nil, err
		}
		if len(list) == 0 {
			continue
		}
		got = append(got, list...)
		if row.State != lifecycle.CircuitClosed {
			row.Circuit = lifecycle.CircuitStarted(row.Circuit, len(list), list[0].ID, list[0].LeaseVersion)
			if err := tx.Pipe(ctx, store.SetCircuit(row)); err != nil {
				return nil, err
			}
		}
	}
	return got, nil
}

// noteCircuits tells circuits how attempts of theirs ended. A success touches a
// row only when there is something to reset, so that the settles of a circuit
// that is well do not wait for each other.
func (e *Engine) noteCircuits(ctx context.Context, tx store.Tx, x *changes, reports []*report) error {
	var keys, lock []store.CircuitKey
	of := map[*report]store.CircuitKey{}
	failed := map[store.CircuitKey]bool{}
	for _, r := range reports {
		lane, err := e.laneOf(ctx, tx, r.task.Lane)
		if err != nil {
			return err
		}
		counts := (r.Status == drover.OutcomeFailed || r.Status == outcomeCut) && r.Error != nil && lifecycle.Counts(r.Error.Class)
		if lane.Circuit == "" || !counts && r.Status != drover.OutcomeSucceeded {
			continue
		}
		k := store.CircuitKey{Tenant: lane.Tenant, Name: lane.Circuit}
		of[r] = k
		keys = append(keys, k)
		failed[k] = failed[k] || counts
	}
	if len(keys) == 0 {
		return nil
	}
	slices.SortFunc(keys, compareCircuits)
	keys = slices.Compact(keys)
	rows := map[store.CircuitKey]store.CircuitRow{}
	if err := tx.Pipe(ctx, store.ReadCircuits(keys, rows)); err != nil {
		return err
	}
	for _, k := range keys {
		if c := rows[k]; failed[k] || c.State != lifecycle.CircuitClosed || c.Failures > 0 {
			lock = append(lock, k)
		}
	}
	if len(lock) == 0 {
		return nil
	}
	clear(rows)
	if err := tx.Pipe(ctx, store.LockCircuits(lock, rows)); err != nil {
		return err
	}
	before := map[store.CircuitKey]store.CircuitRow{}
	for k, c := range rows {
		before[k] = c
	}
	for _, r := range reports {
		c, ok := rows[of[r]]
		if !ok {
			continue
		}
		if r.Status == drover.OutcomeSucceeded {
			c.Circuit = lifecycle.CircuitSucceeded(c.Circuit, r.task.ID, r.task.LeaseVersion, x.now)
		} else {
			f := lifecycle.Fault{Class: r.Error.Class, Type: r.Error.Type, After: r.RetryAfter.Std()}
			c.Circuit = lifecycle.CircuitFailed(c.Circuit, f, cutAt(r.Error.Message, 500), r.task.ID, r.task.LeaseVersion, x.now)
		}
		rows[c.CircuitKey] = c
	}
	var list []store.Stmt
	var queues []int32
	for _, k := range lock {
		c, ok := rows[k]
		if !ok || c == before[k] {
			continue
		}
		list = append(list, store.SetCircuit(c))
		if c.State != before[k].State {
			x.circuits = append(x.circuits, c)
			if c.State == lifecycle.CircuitRecovering {
				list = append(list, store.CircuitQueues(k, &queues))
			}
		}
	}
	if len(list) == 0 {
		return nil
	}
	err := tx.Pipe(ctx, list...)
	for _, q := range queues {
		x.queues[q] = true // those who wait look again
	}
	return err
}

func compareCircuits(a, b store.CircuitKey) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), strings.Compare(a.Name, b.Name))
}

// logCircuit tells an operator.
func (e *Engine) logCircuit(ctx context.Context, c store.CircuitRow) {
	switch c.State {
	case lifecycle.CircuitOpen:
		e.log.WarnContext(ctx, "circuit opened", "circuit", c.Name, "tenant", c.Tenant, "reason", c.Reason, "next_probe_at", c.Until.Time())
	case lifecycle.CircuitRecovering, lifecycle.CircuitClosed:
		e.log.InfoContext(ctx, "circuit recovers", "circuit", c.Name, "tenant", c.Tenant)
	case lifecycle.CircuitProbing:
	}
}

// circuitsOf reads the circuits that queued tasks may wait for.
func (e *Engine) circuitsOf(ctx context.Context, tx store.Tx, list []taskState) (map[store.CircuitKey]store.CircuitRow, error) {
	var keys []store.CircuitKey
	for i := range list {
		if list[i].status() != drover.Queued {
			continue
		}
		lane, err := e.laneOf(ctx, tx, list[i].Lane)
		if err != nil {
			return nil, err
		}
		if lane.Circuit != "" {
			keys = append(keys, store.CircuitKey{Tenant: lane.Tenant, Name: lane.Circuit})
		}
	}
	slices.SortFunc(keys, compareCircuits)
	rows := map[store.CircuitKey]store.CircuitRow{}
	return rows, tx.Pipe(ctx, store.ReadCircuits(slices.Compact(keys), rows))
}

// circuitBlockers is why a queued task of a circuit does not start.
func circuitBlockers(c store.CircuitRow, now lifecycle.Instant) []drover.Blocker {
	c.Circuit = lifecycle.CircuitAt(c.Circuit, now)
	if c.State == lifecycle.CircuitClosed {
		return nil
	}
	return []drover.Blocker{explain.Circuit(c.Name, c.State.String(), c.Reason, c.Probe, c.Since.Time(), c.Until.Time())}
}

func (e *Engine) showCircuit(c store.CircuitRow) drover.Circuit {
	c.Circuit = lifecycle.CircuitAt(c.Circuit, e.now())
	v := drover.Circuit{Name: c.Name, State: c.State.String(), Since: c.Since.Time(), Failures: int(c.Failures), Openings: int(c.Openings), Reason: c.Reason, Probe: c.Probe,
		Policy: lifecycle.FilledCircuit(c.Policy)}
	if c.State == lifecycle.CircuitOpen {
		v.NextProbeAt, v.ByHand = c.Until.Time(), c.Until == 0
	}
	return v
}

// Circuits lists the tenant's circuits by name, after the one named.
func (e *Engine) Circuits(ctx context.Context, c Caller, after string, limit int) ([]drover.Circuit, error) {
	var rows []store.CircuitRow
	if err := e.db.Read(ctx, func(tx store.Tx) error {
		rows = nil
		return tx.Pipe(ctx, store.Circuits(c.Tenant, clearText(after), pageSize(limit), &rows))
	}); err != nil {
		return nil, fmt.Errorf("list circuits: %w", err)
	}
	out := make([]drover.Circuit, len(rows))
	for i, r := range rows {
		out[i] = e.showCircuit(r)
	}
	return out, nil
}

// Circuit returns a circuit.
func (e *Engine) Circuit(ctx context.Context, c Caller, name string) (drover.Circuit, error) {
	return e.changeCircuit(ctx, c, name, false, nil)
}

// SetCircuit sets the policy of a circuit, which is made if there is none.
func (e *Engine) SetCircuit(ctx context.Context, c Caller, name string, p drover.CircuitPolicy) (drover.Circuit, error) {
	var bad []drover.FieldError
	say := func(field, message string) {
		bad = append(bad, drover.FieldError{Field: field, Message: message})
	}
	if !dag.ValidName(name) {
		say("name", "a lower-case letter, then up to 62 lower-case letters, digits, _ and -")
	}
	if p.Failures < 0 || p.Failures > 1000 {
		say("failures", "must be from 1 to 1000")
	}
	for _, f := range []struct {
		name string
		d    drover.Duration
	}{{"window", p.Window}, {"pause", p.Pause}, {"max_pause", p.MaxPause}} {
		if f.d != 0 && (f.d.Std() < 100e6 || f.d.Std() > lifecycle.MaxDelay) {
			say(f.name, "must be from 100ms to 30 days")
		}
	}
	if p.MaxPause != 0 && p.MaxPause < lifecycle.FilledCircuit(p).Pause {
		say("max_pause", "is shorter than pause")
	}
	if len(bad) > 0 {
		return drover.Circuit{}, &drover.Error{Code: drover.CodeValidation, Detail: "the circuit's policy is not valid", Fields: bad}
	}
	return e.changeCircuit(ctx, c, name, true, func(r *store.CircuitRow) { r.Policy = p })
}

// OpenCircuit stops a circuit's tasks until somebody closes it; CloseCircuit lets
// them go, little by little.
func (e *Engine) OpenCircuit(ctx context.Context, c Caller, name, reason string) (drover.Circuit, error) {
	reason = cmp.Or(cutAt(reason, 500), "no reason given")
	return e.changeCircuit(ctx, c, name, false, func(r *store.CircuitRow) { r.Circuit = lifecycle.CircuitByHand(r.Circuit, true, reason, e.now()) })
}

// CloseCircuit lets the tasks of a circuit go, little by little.
func (e *Engine) CloseCircuit(ctx context.Context, c Caller, name string) (drover.Circuit, error) {
	return e.changeCircuit(ctx, c, name, false, func(r *store.CircuitRow) { r.Circuit = lifecycle.CircuitByHand(r.Circuit, false, "", e.now()) })
}

// changeCircuit reads a circuit, changes it if change says how, and returns it.
func (e *Engine) changeCircuit(ctx context.Context, c Caller, name string, makeIt bool, change func(*store.CircuitRow)) (drover.Circuit, error) {
	k := store.CircuitKey{Tenant: c.Tenant, Name: name}
	var row store.CircuitRow
	var x *changes
	run := e.db.Write
	if change == nil {
		run = e.db.Read
	}
	err := run(ctx, func(tx store.Tx) error {
		x = e.changes(e.now())
		if !dag.ValidName(name) {
			return notFound("circuit", cut(name))
		}
		if makeIt {
			if err := tx.Pipe(ctx, store.MakeCircuit(k)); err != nil {
				return err
			}
		}
		rows := map[store.CircuitKey]store.CircuitRow{}
		read := store.ReadCircuits
		if change != nil {
			read = store.LockCircuits
		}
		if err := tx.Pipe(ctx, read([]store.CircuitKey{k}, rows)); err != nil {
			return err
		}
		var ok bool
		if row, ok = rows[k]; !ok {
			return notFound("circuit", name)
		}
		if change == nil {
			return nil
		}
		was := row.State
		change(&row)
		var queues []int32
		if err := tx.Pipe(ctx, store.SetCircuit(row), store.CircuitQueues(k, &queues)); err != nil {
			return err
		}
		if row.State != was {
			x.circuits = append(x.circuits, row)
		}
		if row.State != lifecycle.CircuitOpen {
			for _, q := range queues {
				x.queues[q] = true
			}
		}
		return nil
	})
	if err != nil {
		return drover.Circuit{}, fmt.Errorf("circuit %s: %w", cut(name), err)
	}
	e.after(ctx, x)
	return e.showCircuit(row), nil
}
