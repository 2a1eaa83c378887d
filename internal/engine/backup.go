package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// A backup is called in the transaction in which the first attempt of its task fails, and
// is a task by itself from then on. Nothing but the row of the task decides which result
// is that of the task: it has one end, fenced as any. What follows from the end of one of
// the two for the other is done after the commit, and in any case when the task has failed
// for good: it is WAITING then, and looked at as one that runs a pipeline.

// outcomeBackedUp is an attempt whose task ended with the result of its backup, or a
// backup's whose task has ended.
const outcomeBackedUp = "beaten"

// race is how one of a task and its backup ends because of the other.
type race struct {
	after   func(t lifecycle.Task, now lifecycle.Instant) lifecycle.Task
	output  []byte
	reason  string
	failure *drover.Failure
}

// callsBackup reports whether a report calls the backup of its task: its first attempt
// has failed, or it was lost for good before one could.
func callsBackup(r *report, after *lifecycle.Task) bool {
	if r.mark != nil || r.task.Status != drover.Running || r.task.Attempt != 1 || after.Status.Final() {
		return false
	}
	return r.Status == drover.OutcomeFailed || r.Status == outcomeCut || after.Status == drover.Waiting
}

// raceOf names the task that has a backup when it, or that, ends as t; none where the
// backup has not been called.
func raceOf(plan *compiled, t *lifecycle.Task, was *lifecycle.Task) []store.Key {
	n := &plan.Nodes[t.Node]
	switch {
	case n.Backs >= 0 && t.How != lifecycle.HowGone && t.Status != drover.Cancelled:
		return []store.Key{{Job: t.Job, Node: n.Backs, Index: t.Index}}
	case n.Backup < 0 || t.Attempt == 0 || t.How == lifecycle.HowBacked || t.Status == drover.Succeeded && was != nil && was.Attempt == 1:
		return nil
	}
	return []store.Key{{Job: t.Job, Node: t.Node, Index: t.Index}}
}

// lookAtRaces ends, of tasks and their backups, those that the end of the other ends.
func (e *Engine) lookAtRaces(ctx context.Context, tasks []store.Key) (f following, _ error) {
	var errs []error
	for _, k := range tasks {
		more, err := e.lookAtRace(ctx, k)
		if f.add(more); err != nil {
			errs = append(errs, fmt.Errorf("look at a task and its backup: %w", err))
		}
	}
	return f, errors.Join(errs...)
}

func (e *Engine) lookAtRace(ctx context.Context, k store.Key) (following, error) {
	var m *marking
	if err := e.db.Read(ctx, func(tx store.Tx) (err error) {
		m, _, err = e.race(ctx, tx, k)
		return err
	}); err != nil || m == nil {
		return following{}, err
	}
	var x *changes
	err := e.db.Write(ctx, func(tx store.Tx) error {
		x = e.changes(e.now())
		m, row, err := e.race(ctx, tx, k)
		if err != nil || m == nil {
			return err
		}
		t, err := liveRow(ctx, tx, row)
		if err != nil || t == nil {
			return err
		}
		how := &report{task: *t, mark: m, Outcome: drover.Outcome{TaskID: row.ID, Status: outcomeBackedUp, Output: m.race.output}}
		if err := e.decide(ctx, tx, x, []*report{how}); err != nil || how.task.Status != drover.Waiting {
			return err
		}
		return tx.Pipe(ctx, store.StopChild(row.ID, how.task.Generation, &x.asked))
	})
	switch {
	case errors.Is(err, errOvertaken): // its job stops
		return following{}, nil
	case err != nil:
		return following{}, err
	}
	e.told(ctx, x)
	return x.follows(), nil
}

// race tells which of a task and its backup ends now because of the other, and how; nil
// when neither does.
func (e *Engine) race(ctx context.Context, tx store.Tx, k store.Key) (*marking, store.TaskRow, error) {
	var rows []store.TaskRow
	if err := tx.Pipe(ctx, store.PlacedRows([]store.Key{k}, &rows)); err != nil || len(rows) == 0 {
		return nil, store.TaskRow{}, err
	}
	plan, err := e.plan(ctx, tx, rows[0].Pipeline)
	if err != nil {
		return nil, store.TaskRow{}, err
	}
	b := k
	if b.Node = plan.Nodes[k.Node].Backup; b.Node < 0 {
		return nil, store.TaskRow{}, nil
	}
	if err := tx.Pipe(ctx, store.PlacedRows([]store.Key{b}, &rows)); err != nil {
		return nil, store.TaskRow{}, err
	}
	now, err := states(ctx, tx, rows)
	if err != nil {
		return nil, store.TaskRow{}, err
	}
	own, beside := &now[0], &taskState{}
	if len(now) > 1 {
		beside = &now[1]
	}
	name := plan.Nodes[b.Node].Name
	switch {
	case own.live == nil && beside.live != nil && own.final != nil:
		return &marking{status: drover.Skipped, key: dag.Key{Node: b.Node, Index: b.Index}, lane: beside.Lane, race: &race{after: lifecycle.Beaten,
			reason: fmt.Sprintf("task %s, beside which it ran, has ended: %s", plan.Nodes[k.Node].Name, own.final.Task.Status)}}, beside.TaskRow, nil
	case own.live == nil || beside.live != nil || !failedOnce(own.live):
		return nil, store.TaskRow{}, nil
	}
	m := &marking{key: dag.Key{Node: k.Node, Index: k.Index}, lane: own.Lane}
	if f := beside.final; f != nil && f.Task.Status == drover.Succeeded {
		var outputs []store.Output
		if err := tx.Pipe(ctx, store.ElementOutputs([]store.Element{{Job: b.Job, Node: b.Node, Index: b.Index}}, &outputs)); err != nil {
			return nil, store.TaskRow{}, err
		}
		m.status, m.race = drover.Succeeded, &race{after: lifecycle.BackedUp, reason: fmt.Sprintf("the result of its backup %s, task %s", name, beside.ID)}
		for _, o := range outputs {
			if o.Generation == f.Task.Generation {
				m.race.output = o.Data
			}
		}
		return m, own.TaskRow, nil
	}
	if own.live.Status != drover.Waiting {
		return nil, store.TaskRow{}, nil // it goes on by itself
	}
	var list [][]byte
	if err := tx.Pipe(ctx, store.LastFailures(own.ID, own.live.Generation, 1, &list)); err != nil {
		return nil, store.TaskRow{}, err
	}
	failure := &drover.Failure{Class: drover.ClassRetryable, Message: "its attempts failed, and its backup " + name + " too"}
	if len(list) > 0 {
		failure = decodeFailure(list[0])
	}
	permanent := failure.Class == drover.ClassPermanent || failure.Class == drover.ClassInput
	m.status = drover.DeadLetter
	if permanent {
		m.status = drover.Failed
	}
	m.race = &race{failure: failure, after: func(t lifecycle.Task, now lifecycle.Instant) lifecycle.Task {
		return lifecycle.GivenUp(t, permanent, now)
	}}
	return m, own.TaskRow, nil
}

// failedOnce reports whether an attempt of a live task has failed in its generation, so
// that its backup was called in it.
func failedOnce(t *lifecycle.Task) bool {
	return t.Attempt > 1 || t.Attempt == 1 && t.Status != drover.Running
}
