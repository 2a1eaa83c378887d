package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// Audited is an invariant and how it stands.
type Audited struct {
	// ID and Name are those of the list of invariants.
	ID   string `json:"id"`
	Name string `json:"name"`
	// Means says in a sentence what holds.
	Means string `json:"means"`
	// Violations counts the places where it does not.
	Violations int64 `json:"violations"`
	// Examples are the first of them.
	Examples []Violation `json:"examples,omitempty"`
}

// Violation is a place where an invariant does not hold.
type Violation struct {
	JobID  drover.JobID  `json:"job_id"`
	TaskID drover.TaskID `json:"task_id,omitzero"` // where one task is meant
	Says   string        `json:"says"`
}

// auditLimit bounds an audit whose caller sets no limit.
const auditLimit = 6 * time.Hour

// Audit checks every invariant in one snapshot of the database, which may be
// busy meanwhile, and reports each of them. It looks at the jobs made since; the
// zero time is all of them.
func (e *Engine) Audit(ctx context.Context, since time.Time) (out []Audited, err error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, auditLimit)
		defer cancel()
	}
	var from drover.JobID
	if !since.IsZero() {
		from = drover.JobID(drover.MakeID(since.UnixMilli(), [10]byte{}))
	}
	err = e.db.Read(ctx, func(tx store.Tx) (err error) {
		out, err = e.audit(ctx, tx, from)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	return out, nil
}

func (e *Engine) audit(ctx context.Context, tx store.Tx, from drover.JobID) ([]Audited, error) {
	if err := tx.Pipe(ctx, store.AuditPlans()); err != nil {
		return nil, err
	}
	var out []Audited
	for _, inv := range store.Invariants() {
		if err := ctx.Err(); err != nil { // SQLite does not look at it by itself
			return nil, err
		}
		a := Audited{ID: inv.ID, Name: inv.Name, Means: inv.Means}
		var examples []store.Broken
		if err := tx.Pipe(ctx, inv.Find(from, &a.Violations, &examples)); err != nil {
			return nil, fmt.Errorf("%s %s: %w", inv.ID, inv.Name, err)
		}
		for _, b := range examples {
			a.Examples = append(a.Examples, Violation{b.Job, b.Task, fmt.Sprintf("%s: %d, must be %d", b.Says, b.Found, b.Want)})
		}
		out = append(out, a)
	}
	for _, check := range []func(context.Context, store.Tx, drover.JobID) (Audited, error){e.auditBounds, e.auditGraphs, e.auditUndone, e.auditWaits, e.auditPermits} {
		a, err := check(ctx, tx, from)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", a.ID, a.Name, err)
		}
		out = append(out, a)
	}
	slices.SortStableFunc(out, func(a, b Audited) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

// found notes a place.
func (a *Audited) found(job drover.JobID, task drover.TaskID, format string, args ...any) {
	if a.Violations++; len(a.Examples) < store.AuditExamples {
		a.Examples = append(a.Examples, Violation{job, task, fmt.Sprintf(format, args...)})
	}
}

// auditBounds checks what a task's policy says of its attempts.
func (e *Engine) auditBounds(ctx context.Context, tx store.Tx, from drover.JobID) (Audited, error) {
	a := Audited{ID: "I07", Name: "bound", Means: "A generation has no more attempts than its retry allows."}
	var list []store.Tried
	if err := tx.Pipe(ctx, store.AuditTries(from, func(t store.Tried) { list = append(list, t) })); err != nil {
		return a, err
	}
	for _, t := range list {
		most := termsOf(t.Policy).retry.MaxAttempts
		if t.Pipeline != 0 {
			p, err := e.plan(ctx, tx, t.Pipeline)
			if err != nil {
				return a, err
			}
			most = p.terms(t.Node).retry.MaxAttempts
		}
		if int(t.Attempts) > most { // a rule of the retry only ends it sooner
			a.found(t.Job, t.Task, "attempts: %d, of at most %d", t.Attempts, most)
		}
	}
	return a, nil
}

// auditGraphs checks what the tasks of live jobs wait for.
func (e *Engine) auditGraphs(ctx context.Context, tx store.Tx, from drover.JobID) (Audited, error) {
	a := Audited{ID: "I14", Name: "graph", Means: "A task counts how its parents stand, waits as long as its rule says, and starts only when that and its map's max_parallel let it: none starts early, none is stuck; a map counts how its elements stand."}
	var numbers []int32
	if err := tx.Pipe(ctx, store.AuditPipelines(from, &numbers)); err != nil {
		return a, err
	}
	plans := map[int32]*compiled{}
	for _, id := range numbers {
		var err error
		if plans[id], err = e.plan(ctx, tx, id); err != nil {
			return a, err
		}
	}
	counted := map[drover.JobID]map[int32]dag.Map{}
	if err := tx.Pipe(ctx, store.AuditMaps(from, func(m store.MapRow) {
		if counted[m.Job] == nil {
			counted[m.Job] = map[int32]dag.Map{}
		}
		counted[m.Job][m.Node] = m.Map
	})); err != nil {
		return a, err
	}
	var job []store.Placed
	end := func() {
		if len(job) > 0 {
			auditGraph(&a, plans[job[0].Pipeline], job, counted[job[0].Job])
		}
		job = job[:0]
	}
	err := tx.Pipe(ctx, store.AuditPlaces(from, func(p store.Placed) {
		if len(job) > 0 && job[0].Job != p.Job {
			end()
		}
		job = append(job, p)
	}))
	end()
	return a, err
}

// auditGraph checks one job.
func auditGraph(a *Audited, plan *compiled, tasks []store.Placed, counted map[int32]dag.Map) {
	if plan == nil {
		return // of a job whose row is gone, which is told elsewhere
	}
	past := make([]dag.Past, len(tasks))
	replayed := false
	for i, t := range tasks {
		past[i] = dag.Past{Key: dag.Key{Node: t.Node, Index: t.Index}, Live: t.Live, InLine: t.InLine}
		past[i].Started = t.Live && !t.InLine && t.Status != drover.Pending
		if !t.Live && t.Status != 0 { // otherwise its elements stand for it
			past[i].As = outcomeOf(t.Status, t.How)
		}
		replayed = replayed || t.Generation > 1 && (t.Live || t.How == lifecycle.HowMarked)
	}
	tallies, maps := plan.Recount(past), plan.Maps(past)
	for _, m := range plan.Bounded() {
		name, most, is, has := plan.Nodes[m].Name, plan.Nodes[m].MaxParallel, maps[m], counted[m]
		switch {
		case tasks[0].Phase != 0: // they have all ended
		case is != has:
			a.found(tasks[0].Job, drover.TaskID{}, "map %q counts %+v of its elements; they are %+v", name, has, is)
		case is.Waiting > 0 && is.Running < most:
			a.found(tasks[0].Job, drover.TaskID{}, "%d elements of map %q wait for a place, and %d of at most %d run", is.Waiting, name, is.Running, most)
		}
	}
	for i, t := range tasks {
		k := past[i].Key
		is, has := tallies[k], dag.Tally{Unmet: t.Unmet, Succeeded: t.Succeeded, Failed: t.Failed, Skipped: t.Skipped}
		switch {
		case !t.Live:
		case t.Status == drover.Pending && is.Unmet != has.Unmet:
			a.found(t.Job, t.Task, "%s[%d] waits for %d parents; %d have not ended", plan.Nodes[t.Node].Name, t.Index, has.Unmet, is.Unmet)
		case t.Status == drover.Pending && !plan.SameTally(t.Node, is, has):
			a.found(t.Job, t.Task, "%s[%d] counts %+v of its parents; they are %+v", plan.Nodes[t.Node].Name, t.Index, has, is)
		case t.Status == drover.Pending && !plan.Waits(k, is):
			a.found(t.Job, t.Task, "%s[%d] is PENDING and waits for nothing", plan.Nodes[t.Node].Name, t.Index)
		case t.Status != drover.Pending && plan.Nodes[t.Node].When.Verdict(is) != dag.Run && !replayed: // a parent may run anew, or be said to have ended otherwise, beside what it let start
			a.found(t.Job, t.Task, "%s[%d] is %s and its parents do not let it run: %d have not ended, %d have failed, %d were skipped", plan.Nodes[t.Node].Name, t.Index, t.Status, is.Unmet, is.Failed, is.Skipped)
		}
	}
}

// auditUndone checks that jobs which have undone what they did have left nothing out.
// Of one with a rescue or tasks that run finally it is not known, while nothing was
// undone, if it ended badly before those.
func (e *Engine) auditUndone(ctx context.Context, tx store.Tx, from drover.JobID) (Audited, error) {
	a := Audited{ID: "undone", Name: "compensation", Means: "A job that has failed or was cancelled has called what undoes each of its tasks that succeeded."}
	plans := map[drover.JobID]*compiled{}
	var jobs []store.EndedJob
	if err := tx.Pipe(ctx, store.AuditEnded(from, &jobs)); err != nil {
		return a, err
	}
	for ended := range slices.Chunk(jobs, 1000) {
		var nodes, undoers []store.Undoable
		for _, j := range ended {
			p, err := e.plan(ctx, tx, j.Pipeline)
			if err != nil {
				return a, err
			}
			for i, n := range p.Nodes {
				if n.Compensation >= 0 {
					plans[j.Job] = p
					nodes = append(nodes, store.Undoable{Job: j.Job, Node: int32(i), By: n.Compensation})
					undoers = append(undoers, store.Undoable{Job: j.Job, Node: n.Compensation})
				}
			}
		}
		undone := map[drover.JobID]bool{}
		var left []store.Undone
		if err := tx.Pipe(ctx, store.ReadUndoable(nodes, func(u store.Undone) { left = append(left, u) }), store.ReadUndoing(undoers, undone)); err != nil {
			return a, err
		}
		for _, u := range left {
			if p := plans[u.Job]; undone[u.Job] || p.Rescue < 0 && len(p.Finally) == 0 {
				a.found(u.Job, u.Task, "%s[%d] succeeded, and nothing was called to undo it", p.Nodes[u.Node].Name, u.Index)
			}
		}
	}
	return a, nil
}

// auditWaits checks that nothing of a task's time is lost or counted twice.
func (e *Engine) auditWaits(ctx context.Context, tx store.Tx, from drover.JobID) (Audited, error) {
	a := Audited{ID: "waits", Name: "accounting", Means: "Waits and runs of a generation add up to the time from its beginning to its end, to the microsecond."}
	type generation struct {
		task drover.TaskID
		n    int32
	}
	var off []store.Waited
	fits := map[generation]bool{} // a later one may have begun at any of several replays
	err := tx.Pipe(ctx, store.AuditWaits(from, func(w store.Waited) {
		if sum, age := accounted(w); sum != age {
			off = append(off, w)
		} else if w.Generation > 1 {
			fits[generation{w.Task, w.Generation}] = true
		}
	}))
	for _, w := range off {
		if g := (generation{w.Task, w.Generation}); !fits[g] {
			fits[g] = true // told once
			sum, age := accounted(w)
			a.found(w.Job, w.Task, "generation %d: waits and runs are %s, its age is %s", w.Generation, sum, age)
		}
	}
	return a, err
}

func accounted(w store.Waited) (sum, age time.Duration) {
	for _, us := range lifecycle.DecodeWaits(w.Waits) {
		sum += time.Duration(us) * time.Microsecond
	}
	return sum, w.Finished.Sub(w.Began)
}
