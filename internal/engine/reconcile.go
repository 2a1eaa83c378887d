package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/reconcile"
	"github.com/drover-dev/drover/internal/store"
)

// reconcileLook is how many jobs one step looks at.
const reconcileLook = 1000

// reconcileRound is how far this process's walk over all jobs has come.
type reconcileRound struct {
	mu    sync.Mutex
	after drover.JobID
}

// Divergence is what was found wrong with a job, and whether it has been mended.
type Divergence struct {
	Job      drover.JobID        `json:"job_id"`
	Findings []reconcile.Finding `json:"findings"`
	Mended   bool                `json:"mended"`
}

// ReconcilePermits counts the permits that no task holds which is admitted or runs, and
// with mend gives them back. The server that decides who may run does so by itself.
func (e *Engine) ReconcilePermits(ctx context.Context, mend bool) (n int64, err error) {
	if !mend {
		err = e.db.Read(ctx, func(tx store.Tx) error { return tx.Pipe(ctx, store.CountLostPermits(&n)) })
	} else {
		err = e.db.Write(ctx, func(tx store.Tx) error {
			n = 0
			return tx.Pipe(ctx, store.LockLeader(leadName), store.LostPermits(&n)) // no decision is under way meanwhile
		})
	}
	if err != nil {
		return 0, fmt.Errorf("look at permits: %w", err)
	}
	return n, nil
}

// ReconcileOnce looks at the next jobs in the order of their ids, all of them in
// turn, and mends those whose live rows are not what their records say. It
// returns how many it mended.
func (e *Engine) ReconcileOnce(ctx context.Context) (int, error) {
	e.round.mu.Lock()
	after := e.round.after
	e.round.mu.Unlock()
	list, next, err := e.ReconcileFrom(ctx, after, true)
	e.round.mu.Lock()
	e.round.after = next
	e.round.mu.Unlock()
	return len(list), err
}

// ReconcileFrom looks at up to 1,000 jobs after one and returns those that are
// wrong, and the last one it looked at; zero when none is left. With mend it
// mends them. An error about one job does not keep it from the others.
func (e *Engine) ReconcileFrom(ctx context.Context, after drover.JobID, mend bool) (list []Divergence, next drover.JobID, err error) {
	var rows []store.JobSummary
	if err := e.db.Read(ctx, func(tx store.Tx) error { return tx.Pipe(ctx, store.Summaries(after, reconcileLook, &rows)) }); err != nil {
		return nil, after, fmt.Errorf("reconcile: %w", err)
	}
	if len(rows) == reconcileLook {
		next = rows[len(rows)-1].Job
	}
	var errs []error
	for i := range rows {
		if !rows[i].Suspect() {
			continue
		}
		d, err := e.reconcileJob(ctx, rows[i].Job, mend)
		if err != nil {
			errs = append(errs, fmt.Errorf("reconcile job %s: %w", rows[i].Job, err))
		}
		if len(d.Findings) > 0 {
			list = append(list, d)
		}
	}
	return list, next, errors.Join(errs...)
}

// errSound ends a transaction that found nothing to mend.
var errSound = errors.New("nothing is wrong")

func (e *Engine) reconcileJob(ctx context.Context, id drover.JobID, mend bool) (Divergence, error) {
	d := Divergence{Job: id}
	// First without a lock: a suspicion is mostly no more than that.
	err := e.db.Read(ctx, func(tx store.Tx) error {
		_, m, err := e.compare(ctx, tx, id, false)
		d.Findings = m.Findings
		return err
	})
	if err != nil || len(d.Findings) == 0 || !mend {
		return d, err
	}
	var x *changes
	err = e.db.Write(ctx, func(tx store.Tx) error {
		x = e.changes(e.now())
		k, m, err := e.compare(ctx, tx, id, true)
		if err != nil {
			return err
		}
		if d.Findings = m.Findings; len(m.Findings) == 0 {
			return errSound
		}
		return e.mend(ctx, tx, x, k, m)
	})
	if errors.Is(err, errSound) {
		return Divergence{Job: id}, nil
	}
	if err != nil {
		return d, err
	}
	d.Mended = true
	for _, f := range d.Findings {
		e.log.WarnContext(ctx, "a job's rows did not agree with its records; mended", "job_id", id.String(), "task_id", f.Task.String(), "finding", string(f.Code), "what", f.Text)
	}
	e.after(ctx, x)
	return d, e.lookAtLines(ctx, id)
}

// lookAtLines starts elements of a job that wait for a place though there is one. Where
// it does not come to that, the next round finds the same again.
func (e *Engine) lookAtLines(ctx context.Context, id drover.JobID) error {
	_, err := e.moveOnce(ctx, "start what is in line", func(ctx context.Context, tx store.Tx, x *changes) (int, error) {
		heads := map[drover.JobID]store.JobHead{}
		if err := tx.Pipe(ctx, store.ReadJobHeads([]drover.JobID{id}, heads)); err != nil || heads[id].Pipeline == 0 {
			return 0, err
		}
		plan, err := e.plan(ctx, tx, heads[id].Pipeline)
		if err != nil || len(plan.Bounded()) == 0 {
			return 0, err
		}
		var live []store.JobLive
		list := []*graph{newGraph(plan, id, 0)}
		if err := tx.Pipe(ctx, store.LockJobLive([]drover.JobID{id}, &live), readMaps(list)); err != nil || len(live) == 0 {
			return 0, err
		}
		x.loaded[id] = &live[0]
		err = x.collect(ctx, tx, list)
		return len(x.live), err
	})
	return err
}

// kept is a job with its records.
type kept struct {
	*store.Records
	row  store.JobRow
	plan *compiled
}

// compare loads a job's records and compares them. With take its rows are locked,
// and those that are not running removed.
func (e *Engine) compare(ctx context.Context, tx store.Tx, id drover.JobID, take bool) (*kept, reconcile.Mend, error) {
	k := &kept{}
	var err error
	if k.Records, err = store.JobRecords(ctx, tx, id, take); err != nil {
		return nil, reconcile.Mend{}, err
	}
	var rows []store.JobRow
	if err := tx.Pipe(ctx, store.ReadJobs([]drover.JobID{id}, &rows)); err != nil || len(rows) == 0 {
		return k, reconcile.Mend{}, err // it has left meanwhile
	}
	k.row = rows[0]
	j := reconcile.Job{}
	if k.row.Pipeline != 0 {
		if k.plan, err = e.plan(ctx, tx, k.row.Pipeline); err != nil {
			return nil, reconcile.Mend{}, err
		}
		j.Plan = k.plan.Plan
	}
	if l := k.Live; l != nil {
		j.Live = &reconcile.Counts{Total: l.Total, Open: l.Open, Succeeded: l.Succeeded, Failed: l.Failed, Cancelled: l.Cancelled, Skipped: l.Skipped, Handled: l.Handled}
		j.Paused, j.Cancelling = l.Paused, l.Cancelling != 0
		j.Counted = l.Cancelling == 0 && l.Phase == 0
	}
	j.Maps = make(map[int32]dag.Map, len(k.Maps))
	for _, m := range k.Maps {
		j.Maps[m.Node] = m.Map
	}
	for _, h := range k.Holds {
		switch h.Kind {
		case store.HoldPause:
			j.PauseHold = true
		case store.HoldResume:
			j.ResumeHold = true
		case store.HoldCancel:
			j.Cancel = true
		}
	}
	type place struct {
		name  string
		index int32
	}
	at, byPlace := map[drover.TaskID]*reconcile.Task{}, map[place]*reconcile.Task{}
	j.Tasks = make([]reconcile.Task, len(k.Tasks))
	for i, t := range k.Tasks {
		t.DueAt = k.row.DueAt
		j.Tasks[i] = reconcile.Task{Record: t, Tries: k.Tries[t.ID]}
		if f, ok := k.Finals[t.ID]; ok {
			j.Tasks[i].Final = &f
		}
		at[t.ID] = &j.Tasks[i]
		if k.plan != nil {
			byPlace[place{k.plan.Nodes[t.Node].Name, t.Index}] = &j.Tasks[i]
		}
	}
	runs := int32(1)
	for _, ev := range k.Events {
		if ev.Type == drover.JobReopened {
			runs++
		}
		t := at[ev.Task]
		var data struct {
			Generation int32          `json:"generation"`
			With       []cameBackWith `json:"with"`
		}
		if json.Unmarshal(ev.Data, &data) != nil {
			continue
		}
		open := func(t *reconcile.Task, generation int32) {
			if generation > t.Replayed {
				t.Replayed, t.At = generation, ev.At
				t.Expanded = false // a map expands again
			}
		}
		if t != nil {
			if open(t, data.Generation); ev.Type == drover.TaskExpanded {
				t.Expanded = true
			}
		}
		switch ev.Type {
		case drover.TaskReplayed, drover.JobRerun, drover.TaskMarked, drover.TaskExpanded:
		default:
			continue
		}
		for _, w := range data.With {
			for i := w.First; i <= w.Last; i++ {
				if o := byPlace[place{w.Task, i}]; o != nil {
					open(o, w.Generation)
				}
			}
		}
	}
	j.Ended = k.Live == nil && k.Last.Run >= runs
	if err := e.learn(ctx, tx, slices.DeleteFunc(lanesOf(k.Rows), func(id int32) bool { return id == lifecycle.HeldLane })); err != nil {
		return nil, reconcile.Mend{}, err
	}
	var memo lane1
	for i, list := range [][]lifecycle.Task{k.Rows, k.Delayed} {
		for _, r := range list {
			if t := at[r.ID]; t != nil {
				if lane, ok := e.keyOfLane(&memo, r.Lane); ok && lane.Stage == stageAdmitted {
					r.Lane = t.Record.Lane // it waited there, and is where those stand who were admitted
				}
				t.Rows = append(t.Rows, reconcile.Row{Task: r, Delayed: i == 1})
			}
		}
	}
	return k, reconcile.Check(j), nil
}

// mend writes what a job's rows should be. From then on the job has a row of its
// own, if it lives.
func (e *Engine) mend(ctx context.Context, tx store.Tx, x *changes, k *kept, m reconcile.Mend) error {
	var drop []store.Lease
	for _, t := range m.Drop {
		drop = append(drop, store.Lease{Task: t.ID, Version: t.LeaseVersion, Session: t.Session})
	}
	slices.SortFunc(drop, func(a, b store.Lease) int { return compareIDs(a.Task, b.Task) })
	var gone []lifecycle.Task
	if err := tx.Pipe(ctx, store.TakeRunning(drop, &gone)); err != nil {
		return err
	}
	j := k.Live
	if j == nil {
		j = &store.JobLive{Job: k.row.ID, Tenant: k.row.Tenant, Run: k.Last.Run + 1}
		x.newJob(j)
		var solo []lifecycle.Task
		if err := tx.Pipe(ctx, store.Disown(k.row.ID, &solo)...); err != nil { // its running row, if that stood for it
			return err
		}
	} else {
		x.loaded[j.Job] = j
	}
	x.belongs(map[drover.JobID]store.JobHead{j.Job: {Parent: k.row.Parent}})
	j.Events, j.Graph = k.Newest, j.Graph+1
	j.Total, j.Open, j.Succeeded, j.Failed, j.Cancelled, j.Skipped = m.Total, m.Open, m.Succeeded, m.Failed, m.Cancelled, m.Skipped
	j.Handled = m.Handled
	if k.Live == nil && k.plan != nil {
		j.Phase = phaseOf(k.plan, slices.Concat(k.Rows, k.Delayed, m.Rows))
	}
	for _, h := range k.Holds {
		switch {
		case h.Kind == store.HoldPause:
			j.Paused = true
		case h.Kind == store.HoldCancel && j.Cancelling == 0:
			j.Cancelling = h.Cause
		}
	}
	x.touched[j.Job] = true
	data, err := json.Marshal(struct {
		Findings []reconcile.Finding `json:"findings"`
		Count    int                 `json:"count"`
	}{m.Findings[:min(len(m.Findings), 20)], len(m.Findings)})
	if err != nil {
		return err
	}
	x.event(j, drover.JobReconciled, drover.TaskID{}, data)
	if j.Paused {
		x.holds = append(x.holds, store.Hold{Job: j.Job, Kind: store.HoldPause, Cause: store.CauseUser, At: x.now, Reason: "reconciled"})
	}
	if j.Cancelling != 0 {
		x.holds = append(x.holds, store.Hold{Job: j.Job, Kind: store.HoldCancel, Cause: j.Cancelling, At: x.now, Reason: "reconciled"})
		x.sweep = append(x.sweep, j.Job)
	} else if j.Failed > 0 && j.Open > 0 && j.Phase == 0 && k.plan != nil {
		for _, t := range k.Finals {
			if how := (ending{}); t.Status == drover.Failed || t.Status == drover.DeadLetter {
				if how.at(k.plan, t.Node, t.Index, ""); !how.goesOn {
					x.failed[j.Job] = failing{how.name, store.CauseFailFast}
				}
			}
		}
	}
	g := newGraph(k.plan, j.Job, j.Total)
	g.trace = k.row.Trace
	for n, s := range m.Maps {
		g.putMap(n, s)
	}
	g.maps = nil // all of them are written anew
	for _, t := range m.Rows {
		x.freed = append(x.freed, t.ID) // it is admitted anew
		t.Events = 0
		switch {
		case t.Status == drover.Pending:
			g.add(t)
		case t.Status == drover.Ready && t.Lane != lifecycle.HeldLane:
			x.place(lifecycle.Admitted(t, t.Lane, x.now))
		default:
			x.place(t)
		}
	}
	if err := resolve(ctx, tx, e, x.now, []*graph{g}, false, around{}); err != nil {
		return err
	}
	if g.plan != nil {
		j.Handled -= g.plan.Forgiven(m.Maps) // collect counts them
	}
	g.collect(x, j)
	return x.save(ctx, tx)
}
