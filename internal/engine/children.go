package engine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/explain"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

const (
	// A task that waits for a job of its own is looked at again after a quarter of the time
	// that it has waited, but from childLook to lateLook, whether or not it was told that the
	// job has ended.
	childLook = 15 * time.Second
	lateLook  = 5 * time.Minute
	// lookAtOnce is how many such tasks one transaction looks at.
	lookAtOnce = 100
	// maxChildren bounds the jobs of tasks that a job is shown with.
	maxChildren = 100
)

// Types of failures of a task whose job did not end well.
const (
	typeChildFailed    = "child_failed"
	typeChildCancelled = "child_cancelled"
)

// checkCalls refuses a definition that runs pipelines which are not there, itself, or
// one in the other too deep.
func (e *Engine) checkCalls(ctx context.Context, c Caller, p *dag.Pipeline) error {
	calls := p.Calls()
	if len(calls) == 0 {
		return nil
	}
	var bad []drover.FieldError
	err := e.db.Read(ctx, func(tx store.Tx) error {
		bad = nil
		known := map[string]*dag.Pipeline{} // by NAME or NAME@VERSION
		find := func(sub string) (*dag.Pipeline, error) {
			if q, ok := known[sub]; ok {
				return q, nil
			}
			name, version := dag.SubOf(sub)
			var rows []store.PipelineVersion
			if err := tx.Pipe(ctx, store.OnePipeline(c.Tenant, name, version, &rows)); err != nil {
				return nil, err
			}
			var q *dag.Pipeline
			if len(rows) > 0 {
				var err error
				if q, err = dag.Decode(rows[0].Definition); err != nil {
					return nil, err
				}
			}
			known[sub] = q
			return q, nil
		}
		// Each is looked at once: how far down it goes, and the way to p if there is one.
		type below struct {
			way   []string // the longest, from the pipeline itself
			again []string // to one that is named as p is
		}
		done := map[string]*below{}
		var look func(sub string) (*below, error)
		look = func(sub string) (*below, error) {
			if b, ok := done[sub]; ok {
				return b, nil
			}
			b := &below{way: []string{sub}}
			done[sub] = b // of a ring that was registered from two sides at once
			if name, _ := dag.SubOf(sub); name == p.Name {
				b.again = b.way
				return b, nil
			}
			q, err := find(sub)
			if err != nil || q == nil { // said when that one was registered
				return b, err
			}
			for _, call := range q.Calls() {
				under, err := look(call.Sub)
				if err != nil {
					return nil, err
				}
				if b.again == nil && under.again != nil {
					b.again = append([]string{sub}, under.again...)
				}
				if len(under.way) >= len(b.way) {
					b.way = append([]string{sub}, under.way...)
				}
			}
			return b, nil
		}
		for _, call := range calls {
			q, err := find(call.Sub)
			if err != nil {
				return err
			}
			b, err := look(call.Sub)
			if err != nil {
				return err
			}
			wrong := ""
			switch {
			case b.again != nil:
				wrong = fmt.Sprintf("the pipeline would run itself: %s → %s; remove one of the steps", p.Name, strings.Join(b.again, " → "))
			case q == nil:
				wrong = fmt.Sprintf("there is no pipeline %s; register it first, with 'drover pipeline apply FILE'", call.Sub)
			case len(b.way) >= dag.MaxDepth:
				wrong = fmt.Sprintf("pipelines would run each other more than %d deep: %s → %s", dag.MaxDepth, p.Name, strings.Join(b.way[:dag.MaxDepth], " → "))
			}
			if wrong != "" {
				bad = append(bad, drover.FieldError{Field: call.Field, Message: wrong, Line: call.Line, Column: call.Column})
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("register pipeline %q: %w", p.Name, err)
	}
	if len(bad) > 0 {
		return &drover.Error{Code: drover.CodeValidation, Detail: fmt.Sprintf("pipeline %q is not valid", p.Name), Fields: bad}
	}
	return nil
}

// lookAgain is when a WAITING task is to be looked at again.
func lookAgain(t *lifecycle.Task, now lifecycle.Instant) lifecycle.Instant {
	return now.Add(min(max(now.Sub(t.Since)/4, childLook), lateLook))
}

// parked is a WAITING task with the job that it runs, if it has one.
type parked struct {
	lifecycle.Task
	row   store.TaskRow
	child *store.ChildRow
	job   drover.Job // of the child, once it has ended
	long  bool       // its result is too long for an output
	sub   *compiled  // what it is to run, before it has a job
	// backed says that it runs none: it waits for what its backup comes to.
	backed bool
}

// lookAtChildren makes the jobs of tasks that wait for one and have none yet, and ends
// those whose jobs have ended.
func (e *Engine) lookAtChildren(ctx context.Context, ids []drover.TaskID) (f following, _ error) {
	var errs []error
	for chunk := range slices.Chunk(ids, lookAtOnce) {
		list, err := e.readParked(ctx, chunk)
		if err != nil {
			return f, fmt.Errorf("look at the jobs of tasks: %w", err)
		}
		byTenant := map[int32][]*parked{}
		var over []*parked
		for _, p := range list {
			switch {
			case p.backed:
				f.races = append(f.races, store.Key{Job: p.Job, Node: p.Node, Index: p.Index})
			case p.child == nil:
				byTenant[p.row.Tenant] = append(byTenant[p.row.Tenant], p)
			case p.child.Child.IsZero() || p.job.Status.Final():
				over = append(over, p)
			}
		}
		for _, tenant := range slices.Sorted(maps.Keys(byTenant)) {
			more, err := e.makeChildren(ctx, byTenant[tenant])
			if f.add(more); err != nil {
				errs = append(errs, fmt.Errorf("make the jobs of tasks: %w", err))
			}
		}
		if len(over) > 0 {
			more, err := e.joinChildren(ctx, over)
			if f.add(more); err != nil {
				errs = append(errs, fmt.Errorf("end tasks whose jobs have ended: %w", err))
			}
		}
	}
	return f, errors.Join(errs...)
}

// readParked reads those of the tasks that are WAITING.
func (e *Engine) readParked(ctx context.Context, ids []drover.TaskID) (list []*parked, err error) {
	err = e.db.Read(ctx, func(tx store.Tx) error {
		list = nil
		var rows []store.TaskRow
		if err := tx.Pipe(ctx, store.ReadTasks(ids, &rows)); err != nil {
			return err
		}
		keys := make([]store.Key, len(rows))
		at := map[drover.TaskID]store.TaskRow{}
		for i, r := range rows {
			keys[i], at[r.ID] = store.Key{Job: r.Job, Node: r.Node, Index: r.Index}, r
		}
		var waiting []lifecycle.Task
		if err := tx.Pipe(ctx, store.ReadWaiting(keys, &waiting)); err != nil {
			return err
		}
		children, err := readChildrenOf(ctx, tx, waiting)
		if err != nil {
			return err
		}
		var jobs []drover.JobID
		type ofTenant struct {
			tenant int32
			sub    string
		}
		subs := map[ofTenant]*compiled{}
		for _, t := range waiting {
			p := &parked{Task: t, row: at[t.ID]}
			if c, ok := children[store.Generation{Task: t.ID, N: t.Generation}]; ok {
				p.child = &c
				jobs = append(jobs, c.Child)
			} else {
				plan, err := e.plan(ctx, tx, p.row.Pipeline)
				if err != nil {
					return err
				}
				if p.backed = plan.Nodes[t.Node].Backup >= 0; p.backed {
					list = append(list, p)
					continue
				}
				k := ofTenant{p.row.Tenant, plan.Nodes[t.Node].Sub}
				sub, known := subs[k]
				if !known {
					name, version := dag.SubOf(k.sub)
					if sub, err = e.newest(ctx, tx, k.tenant, name, version); err != nil {
						return err
					}
					subs[k] = sub
				}
				p.sub = sub
			}
			list = append(list, p)
		}
		return e.readEnds(ctx, tx, jobs, list)
	})
	if err != nil {
		return nil, err
	}
	for _, p := range list {
		if p.sub != nil {
			if _, err := e.settleIn(ctx, p.sub, false); err != nil {
				return nil, err
			}
		}
	}
	return list, nil
}

func readChildrenOf(ctx context.Context, tx store.Tx, tasks []lifecycle.Task) (map[store.Generation]store.ChildRow, error) {
	of := make([]store.Generation, len(tasks))
	for i, t := range tasks {
		of[i] = store.Generation{Task: t.ID, N: t.Generation}
	}
	children := map[store.Generation]store.ChildRow{}
	return children, tx.Pipe(ctx, store.ReadChildren(of, children))
}

// readEnds reads how the jobs of parked tasks stand, with the results of those that
// have succeeded.
func (e *Engine) readEnds(ctx context.Context, tx store.Tx, jobs []drover.JobID, list []*parked) error {
	if len(jobs) == 0 {
		return nil
	}
	var rows []store.JobRow
	if err := tx.Pipe(ctx, store.ReadJobs(jobs, &rows)); err != nil {
		return err
	}
	shown, err := e.showJobs(ctx, tx, Caller{}, rows)
	if err != nil {
		return err
	}
	at := map[drover.JobID]int{}
	for i, r := range rows {
		at[r.ID] = i
	}
	for _, p := range list {
		if p.child == nil {
			continue
		}
		i, ok := at[p.child.Child]
		if !ok {
			p.job.Status = drover.Cancelled // it was deleted, or there is none
			continue
		}
		if p.job = shown[i]; p.job.Status == drover.Succeeded {
			whole, err := e.fillResult(ctx, tx, rows[i], &p.job)
			if err != nil {
				return err
			}
			p.long = !whole || len(p.job.Result) > MaxPayload
		}
	}
	return nil
}

// makeChildren makes the jobs that tasks of one tenant run. The row in job_children,
// which is made with the job, is there once for each generation of a task.
func (e *Engine) makeChildren(ctx context.Context, list []*parked) (following, error) {
	slices.SortFunc(list, func(a, b *parked) int {
		return cmp.Or(compareIDs(a.Job, b.Job), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Index, b.Index))
	})
	var x *changes
	err := e.db.Write(ctx, func(tx store.Tx) error {
		x = e.changes(e.now())
		want := make([]lifecycle.Task, len(list))
		of := map[drover.TaskID]*parked{}
		var jobs []drover.JobID
		for i, p := range list {
			want[i], of[p.ID] = p.Task, p
			jobs = append(jobs, p.Job)
		}
		jobs = uniqueSorted(jobs)
		var got []lifecycle.Task
		if err := tx.Pipe(ctx, store.TakeWaiting(want, &got)); err != nil {
			return err
		}
		if err := e.lockJobs(ctx, tx, x, jobs); err != nil {
			return err
		}
		there, err := readChildrenOf(ctx, tx, got)
		if err != nil {
			return err
		}
		var heads, made []store.JobRow
		var ids []drover.JobID // of the jobs that there may be
		for _, t := range got {
			if _, has := there[store.Generation{Task: t.ID, N: t.Generation}]; !has {
				ids = append(ids, childID(&t))
			}
		}
		above := map[drover.JobID]store.ChildRow{}
		if err := tx.Pipe(ctx, store.ReadJobs(jobs, &heads), store.ReadParents(jobs, above), store.ReadJobs(uniqueSorted(ids), &made)); err != nil {
			return err
		}
		lost := map[drover.JobID]bool{} // there are, and the row that tells of them is not
		for _, r := range made {
			lost[r.ID] = true
		}
		head := map[drover.JobID]store.JobRow{}
		for _, h := range heads {
			head[h.ID] = h
		}
		var ask []store.Claimed
		for _, t := range got {
			r := of[t.ID].row
			ask = append(ask, store.Claimed{Task: t, Tenant: r.Tenant, Pipeline: r.Pipeline, Kind: r.Kind, Input: r.Input, Trace: r.Trace})
		}
		inputs, refused, err := e.inputsOf(ctx, tx, ask)
		if err != nil {
			return err
		}
		var first firsts
		for i, t := range got {
			j := x.loaded[t.Job]
			switch _, has := there[store.Generation{Task: t.ID, N: t.Generation}]; {
			case j == nil:
				return store.ErrRetry
			case !has && lost[childID(&t)]:
				plan, err := e.plan(ctx, tx, of[t.ID].row.Pipeline)
				if err != nil {
					return err
				}
				x.children = append(x.children, store.ChildRow{Task: t.ID, Generation: t.Generation, Job: t.Job, Child: childID(&t), Abandon: plan.Nodes[t.Node].Abandon, Want: wantOf(j), Depth: above[t.Job].Depth + 1, Error: []byte{}})
				e.log.WarnContext(ctx, "a job that a task runs was found again; the row that told of it was lost", "task", t.ID.String(), "job", childID(&t).String())
				x.asked, t.DueAt = x.asked+1, x.now
				x.look = append(x.look, t.ID)
			case has, j.Paused, j.Cancelling != 0: // somebody was faster; or its own job is held
				t.DueAt = lookAgain(&t, x.now)
			case len(x.tasks) >= rowsAtOnce: // that is much for one transaction
				t.DueAt = x.now
				x.look = append(x.look, t.ID)
			default:
				lives, err := e.makeChild(ctx, tx, x, j, of[t.ID], &ask[i], head[t.Job], above[t.Job].Depth+1, inputs[t.ID], refused[t.ID])
				if err := first.put(err); err != nil {
					return err
				}
				if t.DueAt = lookAgain(&t, x.now); !lives {
					t.DueAt = x.now
					x.look = append(x.look, t.ID)
				}
			}
			x.place(t)
		}
		if err := first.asked(); err != nil {
			return err
		}
		if err := x.findUses(ctx, tx, list[0].row.Tenant); err != nil {
			return err
		}
		return x.save(ctx, tx)
	})
	if err != nil {
		return following{}, err
	}
	e.told(ctx, x)
	return x.follows(), nil
}

// childID is the id of the job that a WAITING task runs in its generation. It is the same
// whenever it is asked for, so that a job is found whose row in job_children was lost.
func childID(t *lifecycle.Task) drover.JobID {
	h := sha256.New()
	h.Write(t.ID[:])
	h.Write(binary.BigEndian.AppendUint32(nil, uint32(t.Generation)))
	return drover.JobID(drover.MakeID(t.Since.Time().UnixMilli(), [10]byte(h.Sum(nil))))
}

// wantOf is what a job asks of the jobs that its tasks run.
func wantOf(j *store.JobLive) store.Want {
	switch {
	case j.Cancelling != 0 && j.Cancelling != store.CauseFinish:
		return store.WantCancel
	case j.Paused:
		return store.WantPause
	}
	return store.WantNothing
}

// makeChild adds the job that a task runs to x, or why there is none. It reports whether
// there is one that lives.
func (e *Engine) makeChild(ctx context.Context, tx store.Tx, x *changes, j *store.JobLive, p *parked, of *store.Claimed, head store.JobRow, depth int32, input json.RawMessage, refused *drover.Error) (lives bool, err error) {
	plan, err := e.plan(ctx, tx, of.Pipeline)
	if err != nil {
		return false, err
	}
	n := &plan.Nodes[of.Node]
	row := store.ChildRow{Task: of.ID, Generation: of.Generation, Job: of.Job, Abandon: n.Abandon, Depth: depth, Error: []byte{}}
	var bad *drover.Error
	switch {
	case refused != nil:
		bad = refused
	case p.sub == nil:
		bad = drover.Errorf(drover.CodeNotFound, "there is no pipeline %s any more", n.Sub)
	case depth >= dag.MaxDepth:
		bad = drover.Errorf(drover.CodeValidation, "pipelines run each other more than %d deep here; one of them was registered since", dag.MaxDepth)
	case len(input) > MaxPayload:
		bad = drover.Errorf(drover.CodePayloadTooLarge, "the input of the job of task %q has %d bytes; at most %d", n.Name, len(input), MaxPayload)
	default:
		if err := p.sub.CheckInput(input); err != nil && !errors.As(err, &bad) {
			return false, err
		}
	}
	if bad != nil {
		text := bad.Error()
		for _, f := range bad.Fields {
			text += "; " + f.Field + ": " + f.Message
		}
		row.Error = encodeFailure(&drover.Failure{Class: drover.ClassInput, Message: fmt.Sprintf("pipeline %s was not run: %s", n.Sub, text)})
		x.children = append(x.children, row)
		return false, nil
	}
	data, err := json.Marshal(struct {
		ParentJob  drover.JobID  `json:"parent_job_id"`
		ParentTask drover.TaskID `json:"parent_task_id"`
	}{of.Job, of.ID})
	if err != nil {
		return false, err
	}
	row.Child = childID(&of.Task)
	d := &draft{NewJob: drover.NewJob{ID: row.Child, Pipeline: n.Sub, Input: input, Class: of.Class}, plan: p.sub, trace: attemptTrace(of), parent: of.ID, accepted: data}
	if err := e.start(ctx, tx, Caller{Tenant: of.Tenant, Actor: head.Creator}, d, x); err != nil {
		return false, err
	}
	x.children = append(x.children, row)
	started, err := json.Marshal(struct {
		Name       string       `json:"name"`
		Index      int32        `json:"index"`
		Generation int32        `json:"generation"`
		Child      drover.JobID `json:"child_job_id"`
	}{n.Name, of.Index, of.Generation, row.Child})
	if err != nil {
		return false, err
	}
	x.event(j, drover.TaskChildStarted, of.ID, started)
	return x.fresh[len(x.fresh)-1].Open > 0, nil
}

// joinChildren ends tasks whose jobs have ended.
func (e *Engine) joinChildren(ctx context.Context, over []*parked) (following, error) {
	var x *changes
	err := e.db.Write(ctx, func(tx store.Tx) error {
		x = e.changes(e.now())
		keys := make([]store.Key, len(over))
		for i, p := range over {
			keys[i] = store.Key{Job: p.Job, Node: p.Node, Index: p.Index}
		}
		var now []lifecycle.Task
		if err := tx.Pipe(ctx, store.ReadWaiting(keys, &now)); err != nil {
			return err
		}
		waits := map[drover.TaskID]lifecycle.Task{}
		for _, t := range now {
			waits[t.ID] = t
		}
		var reports []*report
		for _, p := range over {
			if t, ok := waits[p.ID]; ok && t.Generation == p.Generation {
				reports = append(reports, &report{task: t, Outcome: childOutcome(p)})
			}
		}
		if len(reports) == 0 {
			return nil
		}
		sortReports(reports)
		return e.decide(ctx, tx, x, reports)
	})
	if err != nil {
		return following{}, err
	}
	e.told(ctx, x)
	return x.follows(), nil
}

// childOutcome is how a task ends by the end of its job.
func childOutcome(p *parked) drover.Outcome {
	o := drover.Outcome{TaskID: p.ID, Status: drover.OutcomeFailed}
	fail := func(class drover.ErrorClass, typ, format string, args ...any) {
		o.Error = &drover.Failure{Class: class, Type: typ, Message: fmt.Sprintf(format, args...)}
	}
	j := &p.job
	what := fmt.Sprintf("job %s (%s@%d)", p.child.Child, j.Pipeline, j.PipelineVersion)
	switch {
	case len(p.child.Error) > 0:
		o.Error = decodeFailure(p.child.Error)
	case j.ID.IsZero():
		fail(drover.ClassPermanent, typeChildCancelled, "job %s was deleted before its end was seen", p.child.Child)
	case j.Status == drover.Succeeded && p.long:
		fail(drover.ClassPermanent, typeChildFailed, "the result of %s has more than %d bytes: leave large results in artifacts and give their URIs", what, MaxPayload)
	case j.Status == drover.Succeeded:
		o.Status, o.Output = drover.OutcomeSucceeded, j.Result
	case j.Status == drover.Cancelled:
		fail(drover.ClassPermanent, typeChildCancelled, "%s was cancelled", what)
	default:
		class, text := drover.ClassPermanent, "FAILED"
		if f := j.Error; f != nil {
			class, text = f.Class, fmt.Sprintf("FAILED: task %s: %s", f.Task, f.Message)
		}
		fail(class, typeChildFailed, "%s %s", what, text)
	}
	return o
}

// ChildrenOnce passes on to the jobs of tasks what their parents ask of them: a cancel,
// a pause, a resume.
func (e *Engine) ChildrenOnce(ctx context.Context) (int, error) {
	n, f, err := e.passOnce(ctx, lookAtOnce)
	e.goOn(ctx, f, lookAtOnce)
	return n, err
}

// passOnce passes on to up to most jobs what their parents ask of them.
func (e *Engine) passOnce(ctx context.Context, most int) (_ int, f following, _ error) {
	var rows []store.ChildRow
	if err := e.db.Read(ctx, func(tx store.Tx) error { rows = nil; return tx.Pipe(ctx, store.Wanted(most, &rows)) }); err != nil {
		return 0, f, fmt.Errorf("pass on to children: %w", err)
	}
	var errs []error
	for _, c := range rows {
		more, err := e.passOn(ctx, c)
		if f.add(more); err != nil {
			errs = append(errs, fmt.Errorf("pass on to job %s: %w", c.Child, err))
		}
	}
	return len(rows), f, errors.Join(errs...)
}

// errOvertaken ends a transaction that passes on what was passed on before, or is not
// asked any more.
var errOvertaken = errors.New("something else is asked now")

// passOn asks a job of what its parent asks. That is looked at under the lock of the
// job's row: else a pause that comes late would follow the resume.
func (e *Engine) passOn(ctx context.Context, c store.ChildRow) (following, error) {
	by := Request{Reason: "its parent, job " + c.Job.String()}
	var x *changes
	err := e.db.Write(ctx, func(tx store.Tx) error {
		x = e.changes(e.now())
		heads := map[drover.JobID]store.JobHead{}
		if err := tx.Pipe(ctx, store.ReadJobHeads([]drover.JobID{c.Child}, heads)); err != nil {
			return err
		}
		next := store.WantNothing
		if c.Want == store.WantCancel {
			next = store.WasStopped
		}
		h, ok := heads[c.Child]
		var noted int64
		if !ok {
			return tx.Pipe(ctx, store.PassedOn(c, next, &noted))
		}
		j, _, err := e.ownRow(ctx, tx, x, c.Child, h.Tenant)
		if err != nil {
			return err
		}
		if err := tx.Pipe(ctx, store.PassedOn(c, next, &noted)); err != nil {
			return err
		}
		if noted == 0 {
			return errOvertaken
		}
		if j != nil {
			switch c.Want {
			case store.WantCancel:
				if j.Cancelling == 0 || j.Cancelling == store.CauseFinish {
					err = cancelRow(ctx, tx, x, j, Caller{}, by)
				}
			case store.WantPause:
				if j.Cancelling == 0 {
					err = pauseRow(ctx, tx, x, j, Caller{}, by)
				}
			case store.WantResume:
				err = resumeRow(ctx, tx, x, j, Caller{}, by)
			case store.WantNothing, store.WasStopped: // nothing is asked
			}
			if err != nil {
				return err
			}
		}
		return x.save(ctx, tx)
	})
	if errors.Is(err, errOvertaken) {
		return following{}, nil
	}
	if err != nil {
		return following{}, err
	}
	e.told(ctx, x)
	return x.follows(), nil
}

// showChildren names the jobs that tasks run, and says that a task waits for its.
func showChildren(ctx context.Context, tx store.Tx, states []taskState, shown []drover.Task) error {
	var of []store.Generation
	for i := range shown {
		if t := &shown[i]; t.Kind == dag.SubKind && t.Generation > 0 {
			of = append(of, store.Generation{Task: t.ID, N: int32(t.Generation)})
		}
	}
	if len(of) == 0 {
		return nil
	}
	children := map[store.Generation]store.ChildRow{}
	if err := tx.Pipe(ctx, store.ReadChildren(of, children)); err != nil {
		return err
	}
	for i := range shown {
		t := &shown[i]
		t.ChildJobID = children[store.Generation{Task: t.ID, N: int32(t.Generation)}].Child
		if t.Status == drover.Waiting {
			b := explain.ChildJob(t.ChildJobID)
			b.Since = states[i].live.Since.Time()
			t.Blockers = append(t.Blockers, b)
		}
	}
	return nil
}

// showParents names the tasks that run jobs, and theirs.
func showParents(ctx context.Context, tx store.Tx, rows []store.JobRow, jobs []drover.Job) error {
	var ids []drover.TaskID
	for _, r := range rows {
		if !r.Parent.IsZero() {
			ids = append(ids, r.Parent)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	var tasks []store.TaskRow
	if err := tx.Pipe(ctx, store.ReadTasks(ids, &tasks)); err != nil {
		return err
	}
	of := map[drover.TaskID]drover.JobID{}
	for _, t := range tasks {
		of[t.ID] = t.Job
	}
	for i, r := range rows {
		jobs[i].ParentTaskID, jobs[i].ParentJobID = r.Parent, of[r.Parent]
	}
	return nil
}

// fillChildren names the jobs that the tasks of a job run.
func (e *Engine) fillChildren(ctx context.Context, tx store.Tx, r store.JobRow, j *drover.Job) error {
	plan, err := e.plan(ctx, tx, r.Pipeline)
	if err != nil || !plan.Calls() {
		return err
	}
	var rows []store.ChildRow
	if err := tx.Pipe(ctx, store.ChildrenOf(r.ID, maxChildren, &rows)); err != nil {
		return err
	}
	for _, c := range rows {
		j.Children = append(j.Children, drover.Child{JobID: c.Child, TaskID: c.Task, Generation: int(c.Generation)})
	}
	return nil
}
