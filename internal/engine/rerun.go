package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// RerunRequest says what of a job runs again: exactly one of From, Failed and Whole.
type RerunRequest struct {
	Request
	// From are tasks, with what stands below them: a name, a name with an index
	// ("infer[3]") or an id. The name of a map is all of it.
	From []string
	// Failed are the tasks whose failure nothing has made good, and those that a cancel
	// ended.
	Failed bool
	Whole  bool
	// Fresh runs tasks with cache though their result is there.
	Fresh bool
	// Input takes the place of the input of the one task that From names.
	Input json.RawMessage
	// DryRun tells what would become of the tasks and does nothing.
	DryRun bool
}

// maxFrom bounds the tasks that one rerun names.
const maxFrom = 1000

func checkRerun(r *RerunRequest) error {
	if err := checkRequest(&r.Request); err != nil {
		return err
	}
	if err := checkInput("input", r.Input); err != nil {
		return err
	}
	bad := func(field, format string, args ...any) error {
		return &drover.Error{Code: drover.CodeValidation, Detail: "the rerun is not valid", Fields: []drover.FieldError{{Field: field, Message: fmt.Sprintf(format, args...)}}}
	}
	ways := 0
	for _, set := range []bool{len(r.From) > 0, r.Failed, r.Whole} {
		if set {
			ways++
		}
	}
	switch {
	case ways != 1:
		return bad("from", "say what runs again by exactly one of: from, a list of tasks; failed; whole")
	case len(r.From) > maxFrom:
		return bad("from", "has %d tasks; at most %d", len(r.From), maxFrom)
	case len(r.Input) > 0 && len(r.From) != 1:
		return bad("input", "is that of one task; name that one in from")
	}
	for i, f := range r.From {
		if len(f) > maxName+20 || !clean(f) || f == "" {
			return bad("from["+strconv.Itoa(i)+"]", "must be a task's id, its name, or name[index]")
		}
	}
	return nil
}

// Rerun runs a branch of a job again, or all of it: the tasks that are asked for, and
// whatever stands below them, each as a new generation; a map below expands again. A
// finished job is reopened as its next run. What the failure or cancel of the last run
// had cut off goes on, too. It refuses what has tasks in the way that have started.
func (e *Engine) Rerun(ctx context.Context, c Caller, id drover.JobID, r RerunRequest) (out drover.Rerun, err error) {
	if err := checkRerun(&r); err != nil {
		return out, err
	}
	var x *changes
	run := func(tx store.Tx) error {
		x = e.changes(e.now())
		out = drover.Rerun{JobID: id, DryRun: r.DryRun, Tasks: []drover.RerunTask{}}
		h, err := head(ctx, tx, c, id)
		if err != nil {
			return err
		}
		if !r.DryRun {
			if out.Repeated, err = e.once(ctx, tx, c, r.Request, "rerun", id.String(), x.now); err != nil || out.Repeated {
				return err
			}
		}
		a := &rerunning{e: e, tx: tx, x: x, job: id, head: h, c: c, r: r}
		if err := a.prepare(ctx); err != nil {
			return err
		}
		if out.Run, out.Tasks, err = a.preview(ctx); err != nil || r.DryRun {
			return err
		}
		if err := a.begin(ctx); err != nil {
			return err
		}
		return x.save(ctx, tx)
	}
	if r.DryRun {
		err = e.db.Read(ctx, run)
	} else if err = e.reopening(ctx, run); err == nil {
		e.after(ctx, x)
	}
	if err != nil {
		return drover.Rerun{}, fmt.Errorf("rerun job: %w", err)
	}
	if out.Repeated {
		j, err := e.Job(ctx, c, id)
		out.Run = j.Run
		return out, err
	}
	return out, nil
}

// rerunning is a job some of whose tasks begin anew, within a transaction.
type rerunning struct {
	e    *Engine
	tx   store.Tx
	x    *changes
	job  drover.JobID
	head store.JobHead
	c    Caller
	r    RerunRequest
	mark *marking // of a finished task, in place of a rerun

	plan   *compiled
	live   *store.JobLive // locked; nil of a job that has ended
	last   store.JobFinal // its Run is 0 when none has ended
	tasks  map[drover.TaskID]lifecycle.Task
	at     map[dag.Key]lifecycle.Task // by place; without those that count no more
	wait   map[dag.Key]lifecycle.Task // PENDING rows, locked
	kind   string                     // of the one task of a job without a pipeline
	asked  []dag.Key
	branch *dag.Branch
	maps   map[dag.Key]store.TaskRow // of maps that expand again, their rows
	stands map[int32]dag.Map         // how the maps with bounds stand
}

// prepare locks what waits in the branch and the job, and decides.
func (a *rerunning) prepare(ctx context.Context) error {
	if a.head.Pipeline != 0 {
		var err error
		if a.plan, err = a.e.plan(ctx, a.tx, a.head.Pipeline); err != nil {
			return err
		}
	} else {
		var rows []store.TaskRow
		if err := a.tx.Pipe(ctx, store.PlacedRows([]store.Key{{Job: a.job}}, &rows)); err != nil {
			return err
		}
		if len(rows) > 0 {
			a.kind = rows[0].Kind
		}
	}
	var keep []drover.JobID
	dry := a.r.DryRun
	if !dry {
		if err := a.tx.Pipe(ctx, store.KeepJobs([]drover.JobID{a.job}, &keep)); err != nil {
			return err
		}
		if len(keep) == 0 {
			return notFound("job", a.job)
		}
	}
	// What waits is locked before the job: so the branch is found once before that, and,
	// as others may have been faster, once after.
	if err := a.look(ctx, dry); err != nil {
		return err
	}
	if dry {
		return a.check()
	}
	var keys []store.Key
	for _, k := range a.waiting() {
		keys = append(keys, store.Key{Job: a.job, Node: k.Node, Index: k.Index})
	}
	var rows []lifecycle.Task
	if err := a.tx.Pipe(ctx, store.LockPending(keys, &rows)); err != nil {
		return err
	}
	a.wait = map[dag.Key]lifecycle.Task{}
	for _, t := range rows {
		a.wait[keyOf(&t)] = t
	}
	if err := a.e.lockJobs(ctx, a.tx, a.x, []drover.JobID{a.job}); err != nil {
		return err
	}
	if err := a.look(ctx, true); err != nil {
		return err
	}
	if err := a.check(); err != nil {
		return err
	}
	for _, k := range a.waiting() {
		if _, ok := a.wait[k]; !ok {
			return store.ErrRetry // others were faster
		}
	}
	return nil
}

// word is what is being done.
func (a *rerunning) word() string {
	if a.mark != nil {
		return "mark"
	}
	return "rerun"
}

// waiting are the rows of the branch that wait, and those of maps that expand again.
func (a *rerunning) waiting() []dag.Key {
	out := slices.Clone(a.branch.Waiting)
	for _, k := range a.branch.Gone {
		if a.at[k].Status == drover.Pending {
			out = append(out, k)
		}
	}
	return out
}

// look reads how all tasks stand and finds the branch. sure says that the job's row is
// known.
func (a *rerunning) look(ctx context.Context, sure bool) error {
	runs := map[drover.JobID]store.JobFinal{}
	var live []store.JobLive
	if a.r.DryRun {
		var counts []store.LiveCount
		var finals []store.JobFinal
		if err := a.tx.Pipe(ctx, store.JobStates([]drover.JobID{a.job}, &live, &finals, &counts)...); err != nil {
			return err
		}
		if len(live) > 0 {
			a.live = &live[0]
		}
	} else {
		a.live = a.x.loaded[a.job]
	}
	tasks, err := store.JobTasks(ctx, a.tx, []drover.JobID{a.job})
	if err != nil {
		return err
	}
	if err := a.tx.Pipe(ctx, store.LastRuns([]drover.JobID{a.job}, runs)); err != nil {
		return err
	}
	a.tasks, a.last = tasks[a.job], runs[a.job]
	a.at = make(map[dag.Key]lifecycle.Task, len(a.tasks))
	list := make([]dag.Past, 0, len(a.tasks))
	stopped := false
	for _, id := range inOrder(a.tasks) {
		t := a.tasks[id]
		p := past(&t, !t.Status.Final())
		if list = append(list, p); p.As != dag.Gone {
			a.at[p.Key] = t
			stopped = stopped || t.Status == drover.Cancelled || a.plan != nil && (t.Status == drover.Failed || t.Status == drover.DeadLetter) && a.plan.Stops(p.Key)
		}
	}
	slices.SortFunc(list, func(x, y dag.Past) int { return cmp.Or(cmp.Compare(x.Node, y.Node), cmp.Compare(x.Index, y.Index)) })
	if sure && a.live == nil && a.last.Run == 0 {
		return drover.Errorf(drover.CodeInvalidTransition, "job %s has not ended, and no task of it has: there is nothing to %s", a.job, a.word())
	}
	if a.live != nil && a.live.Cancelling != 0 {
		return drover.Errorf(drover.CodeInvalidTransition, "job %s is stopping (%s); %s when it has ended", a.job, causeText(a.live.Cancelling), a.word())
	}
	on := alone
	if a.plan != nil {
		on = a.plan.Plan
	}
	a.stands = on.Maps(list)
	if a.asked, err = a.find(list); err != nil {
		return err
	}
	failed := a.last.Status == drover.Failed || a.r.Failed
	a.branch = on.Branch(list, a.asked, dag.Reaching{Down: a.mark == nil, Cut: stopped && failed, Only: a.mark != nil && a.mark.stops(a.plan)})
	return nil
}

// find returns the rows that are asked for.
func (a *rerunning) find(past []dag.Past) (out []dag.Key, err error) {
	switch {
	case a.mark != nil:
		return []dag.Key{a.mark.key}, a.stillThere()
	case a.r.Whole:
		for _, p := range past {
			if p.As != dag.Gone && (a.plan == nil || len(a.plan.Nodes[p.Node].Parents) == 0 && !a.plan.Nodes[p.Node].Dormant) {
				out = append(out, p.Key)
			}
		}
	case a.r.Failed:
		for _, p := range past {
			if t := a.at[p.Key]; t.Status == drover.Cancelled || (t.Status == drover.Failed || t.Status == drover.DeadLetter) && !a.madeGood(p.Key) {
				out = append(out, a.first(p.Key))
			}
		}
		if len(out) == 0 {
			return nil, drover.Errorf(drover.CodeInvalidTransition, "no task of job %s has failed that nothing has made good; name tasks to run again in from", a.job)
		}
	default:
		for i, word := range a.r.From {
			keys, err := a.named(past, word)
			if err != nil {
				return nil, &drover.Error{Code: drover.CodeValidation, Detail: "the rerun is not valid", Fields: []drover.FieldError{{Field: "from[" + strconv.Itoa(i) + "]", Message: err.Error()}}}
			}
			out = append(out, keys...)
		}
	}
	slices.SortFunc(out, func(x, y dag.Key) int { return cmp.Or(cmp.Compare(x.Node, y.Node), cmp.Compare(x.Index, y.Index)) })
	return slices.Compact(out), nil
}

// first is the row in whose place another was called, or the row itself.
func (a *rerunning) first(k dag.Key) dag.Key {
	if a.plan != nil {
		k.Node, _ = a.plan.Stands(k.Node)
	}
	return k
}

// madeGood reports whether the failure of a row was made good.
func (a *rerunning) madeGood(k dag.Key) bool {
	if a.plan == nil {
		return false
	}
	if a.plan.Rescue >= 0 && a.at[dag.Key{Node: a.plan.Rescue}].Status == drover.Succeeded {
		return true
	}
	if a.plan.Nodes[k.Node].Backs >= 0 {
		return true // it is up to the task that it is the backup of
	}
	if m, ok := a.plan.Bounds(k); ok && !a.plan.Nodes[m].MinSuccess.IsZero() && a.stands[m].Outcome(a.plan.Nodes[m].MinSuccess) == dag.Succeeded {
		return true
	}
	for node := k.Node; ; {
		t, there := a.at[dag.Key{Node: node, Index: k.Index}]
		n := &a.plan.Nodes[node]
		switch {
		case !there:
			return false
		case t.Status == drover.Succeeded, n.Degrades && (n.Fallback < 0 || k.Index == dag.Unexpanded) && outcomeOf(t.Status, t.How) == dag.Failed:
			return true
		case n.Fallback < 0:
			return false
		}
		node = n.Fallback
	}
}

// named returns the rows that a word of the request names.
func (a *rerunning) named(past []dag.Past, word string) (out []dag.Key, err error) {
	if id, err := drover.ParseTaskID(word); err == nil {
		t, ok := a.tasks[id]
		if !ok || t.Status.Final() && t.How == lifecycle.HowGone {
			return nil, fmt.Errorf("job %s has no task %s that could run again; a map that has expanded is named by its name", a.job, id)
		}
		return []dag.Key{keyOf(&t)}, nil
	}
	name, index := word, int32(dag.Every)
	if open := strings.LastIndexByte(word, '['); open > 0 && strings.HasSuffix(word, "]") {
		if n, err := strconv.ParseInt(word[open+1:len(word)-1], 10, 32); err == nil && n >= 0 {
			name, index = word[:open], int32(n)
		}
	}
	node := int32(-1)
	if a.plan == nil {
		node = 0
		if name != a.kind {
			node = -1
		}
	} else {
		node = int32(slices.IndexFunc(a.plan.Nodes, func(n dag.Node) bool { return n.Name == name }))
	}
	if node < 0 {
		return nil, fmt.Errorf("job %s has no task %q; \"drover task list\" shows what there is", a.job, cut(name))
	}
	for _, p := range past {
		if p.Node == node && p.As != dag.Gone && (index == dag.Every || p.Index == index) {
			out = append(out, p.Key)
		}
	}
	if len(out) == 0 {
		switch {
		case a.plan != nil && a.plan.Nodes[node].Dormant:
			return nil, fmt.Errorf("task %q runs only when it is called, and was not; name the task it is called for", name)
		case index == dag.Every:
			return nil, fmt.Errorf("the map %q has no elements; name the task that its list comes from", name)
		}
		return nil, fmt.Errorf("task %q has no element %d", name, index)
	}
	return out, nil
}

// name reads "infer[3]".
func (a *rerunning) name(k dag.Key) string {
	switch {
	case a.plan == nil:
		return "its task"
	case a.plan.Nodes[k.Node].Mapped && k.Index >= 0:
		return fmt.Sprintf("task %q[%d]", a.plan.Nodes[k.Node].Name, k.Index)
	}
	return fmt.Sprintf("task %q", a.plan.Nodes[k.Node].Name)
}

// namesShown is how many tasks a refusal names.
const namesShown = 5

// check refuses what cannot be done.
func (a *rerunning) check() error {
	b := a.branch
	if compensated(a.plan, a.tasks) && !b.AtEnd {
		return drover.Errorf(drover.CodeInvalidTransition, "job %s has undone what its tasks did; submit it again. Only what undoes them and what runs finally can run again or be marked", a.job)
	}
	again := map[dag.Key]bool{}
	for _, k := range b.Again {
		again[k] = true
	}
	refuse := func(format string, args ...any) error {
		return drover.Errorf(drover.CodeInvalidTransition, format, args...)
	}
	if len(b.Bounded) > 0 {
		return bounded(a.plan, b.Bounded[0], a.word())
	}
	if len(b.Busy) > 0 {
		var words []string
		for _, k := range b.Busy[:min(len(b.Busy), namesShown)] {
			if a.at[k].Status == drover.Pending {
				words = append(words, a.name(k)+" waits for its start time")
				continue
			}
			words = append(words, fmt.Sprintf("%s is %s", a.name(k), a.at[k].Status))
		}
		if n := len(b.Busy) - namesShown; n > 0 {
			words = append(words, fmt.Sprintf("and %d more", n))
		}
		return refuse("in the way: %s; %s when it has ended, or cancel the job first", strings.Join(words, ", "), a.word())
	}
	if a.plan != nil {
		if m := a.plan.Fails(b.Maps); m >= 0 {
			n := &a.plan.Nodes[m]
			return refuse("of the elements of map %q too many failed for min_success: %s, and the job would stop at that again; replay those elements first, or submit the job again", n.Name, n.MinSuccess)
		}
	}
	if len(b.Parted) > 0 {
		k := b.Parted[0]
		return refuse("%s did not expand with %q, the map it goes over, and cannot alone; rerun from %q", a.name(k), a.plan.Nodes[a.plan.Nodes[k.Node].Over].Name, a.plan.Nodes[a.plan.Family(k.Node)[0]].Name)
	}
	for _, k := range a.asked {
		if a.at[k].Status == drover.Pending {
			if a.r.Whole {
				continue
			}
			return refuse("%s is PENDING: it has not run yet, and does when its turn comes", a.name(k))
		}
		if a.plan != nil && a.plan.Nodes[k.Node].Backs >= 0 {
			return refuse("%s ran as the backup of task %q; %s that", a.name(k), a.plan.Nodes[a.plan.Nodes[k.Node].Backs].Name, a.word())
		}
		if a.plan != nil && again[k] {
			if q := a.plan.Nodes[k.Node].Primary; q >= 0 {
				if p, ok := a.at[dag.Key{Node: q, Index: k.Index}]; !ok || outcomeOf(p.Status, p.How) != dag.Failed || !p.Status.Final() {
					return refuse("%s ran in the place of task %q, which has not failed since; %s that", a.name(k), a.plan.Nodes[q].Name, a.word())
				}
			}
		}
		if a.mark != nil || a.plan == nil || a.r.Whole || !again[k] || !a.plan.Nodes[k.Node].When.Hopeless(b.Tallies[k]) {
			continue
		}
		gone := map[dag.Key]bool{}
		for _, key := range b.Gone {
			gone[key] = true
		}
		for _, q := range a.plan.Nodes[k.Node].Parents {
			for key, t := range a.at {
				if key.Node == q && t.Status.Final() && t.Status != drover.Succeeded && !again[key] && !gone[key] {
					return refuse("%s would not run: it waits for %s, which is %s; rerun from %q", a.name(k), a.name(key), t.Status, a.plan.Nodes[q].Name)
				}
			}
		}
		return refuse("%s would be skipped again: when: %s", a.name(k), a.plan.Nodes[k.Node].When)
	}
	if len(a.r.Input) > 0 {
		if len(a.asked) != 1 || a.asked[0].Index == dag.Unexpanded || !again[a.asked[0]] {
			return refuse("input is that of one task; %q is a map, so name one element of it", a.r.From[0])
		}
		kind := a.kind
		if a.plan != nil {
			kind = a.plan.Nodes[a.asked[0].Node].Kind
		}
		if wrong := checkBuiltin(kind, a.r.Input); len(wrong) > 0 {
			return &drover.Error{Code: drover.CodeValidation, Detail: "the new input is not one for " + kind, Fields: wrong}
		}
	}
	return nil
}

// bounded refuses to touch the elements of a map with bounds.
func bounded(plan *compiled, m int32, word string) error {
	return drover.Errorf(drover.CodeInvalidTransition, "map %q has max_parallel or min_success, and a %s cannot reach the tasks of such a map; replay its tasks that failed, or submit the job again", plan.Nodes[m].Name, word)
}

// begin opens the new generations.
func (a *rerunning) begin(ctx context.Context) error {
	x, b := a.x, a.branch
	x.belongs(map[drover.JobID]store.JobHead{a.job: a.head})
	j := a.live
	if j == nil {
		last := a.last
		j = &store.JobLive{Job: a.job, Tenant: last.Tenant, Run: last.Run + 1, Events: last.Events, Total: last.Total,
			Succeeded: last.Succeeded, Failed: last.Failed, Cancelled: last.Cancelled, Skipped: last.Skipped}
		x.newJob(j)
		x.event(j, drover.JobReopened, drover.TaskID{}, actionData(a.c, a.r.Request))
	}
	if a.plan != nil {
		switch j.Handled = b.Handled; {
		case !b.AtEnd:
			j.Phase = 0
		case j.Phase != phaseUndo: // one that undoes what it did goes on with that
			j.Phase = phaseFinally
		}
	}
	j.Graph++
	if err := a.findMaps(ctx); err != nil {
		return err
	}
	generations, err := a.mapGenerations(ctx)
	if err != nil {
		return err
	}
	g := newGraph(a.plan, a.job, j.Total)
	g.trace = a.head.Trace
	for m, x := range b.Maps {
		g.putMap(m, x)
	}
	g.maps = nil // all of them are written anew
	if a.plan == nil {
		var policies = map[drover.TaskID][]byte{}
		ids := slices.Collect(maps.Keys(a.tasks))
		if err := a.tx.Pipe(ctx, store.ReadPolicies(ids, policies)); err != nil {
			return err
		}
		g.kind = termsOf(policies[ids[0]])
	}
	var ended []lifecycle.Task
	for _, k := range b.Again {
		if t, there := a.at[k]; there {
			ended = append(ended, t)
		}
	}
	lanes := make(map[drover.TaskID]int32, len(ended))
	if err := a.tx.Pipe(ctx, store.TaskLanes(ended, lanes)); err != nil {
		return err
	}
	var with, gone []cameBackWith
	var finals []store.FinalRow // of what is gone; it may be made or called again at once
	asked := map[dag.Key]bool{}
	for _, k := range a.asked {
		asked[k] = true
	}
	for _, k := range b.Again {
		t, there := a.at[k]
		var again lifecycle.Task
		if there {
			a.leaves(j, t)
			t.Lane = lanes[t.ID]
			again = lifecycle.Replayed(t, 0, x.now)
		} else {
			row := a.maps[k]
			j.Total++
			again = lifecycle.Task{ID: row.ID, Job: a.job, Node: k.Node, Index: k.Index, Queue: row.Queue, Lane: row.Lane, Class: row.Class,
				Status: drover.Pending, Generation: max(1, generations[row.ID]) + 1, Since: x.now}
		}
		j.Open++
		tally := b.Tallies[k]
		again.Unmet, again.ParentsSucceeded, again.ParentsFailed, again.ParentsSkipped = tally.Unmet, tally.Succeeded, tally.Failed, tally.Skipped
		if a.plan != nil {
			with = extend(with, a.plan.Nodes[k.Node].Name, k.Index, again.Generation)
			if n := &a.plan.Nodes[k.Node]; (n.Cache || k.Index == dag.Unexpanded && a.plan.caches) && !a.r.Fresh && (!asked[k] || a.r.Whole) {
				g.mayReuse(generationOf(&again))
				x.reusable = append(x.reusable, generationOf(&again))
			}
		}
		if asked[k] && len(a.r.Input) > 0 {
			x.inputs = append(x.inputs, store.InputRow{LetterKey: store.LetterKey{Task: again.ID, Generation: again.Generation}, Input: a.r.Input})
		}
		if a.mark != nil && k == a.mark.key {
			a.mark.again = again
			continue
		}
		g.add(again)
	}
	for _, k := range b.Gone {
		t := a.at[k]
		if !t.Status.Final() {
			t = a.wait[k]
			x.met = append(x.met, t)
			j.Open--
		} else {
			a.leaves(j, t)
		}
		j.Skipped++
		t = lifecycle.Gone(t, x.now)
		finals = append(finals, store.FinalRow{Task: t, Tenant: j.Tenant, At: t.Since})
		gone = extend(gone, a.plan.Nodes[k.Node].Name, k.Index, t.Generation)
	}
	for part := range slices.Chunk(finals, rowsAtOnce) {
		if err := a.tx.Pipe(ctx, store.InsertFinal(part)...); err != nil {
			return err
		}
	}
	for _, k := range b.Waiting {
		t, tally := a.wait[k], b.Tallies[k]
		s := g.board.Put(k, tally, t, true)
		s.Changed = !a.plan.SameTally(k.Node, tally, tallyOf(&t))
	}
	x.touched[a.job] = true
	if a.mark == nil {
		x.event(j, drover.JobRerun, drover.TaskID{}, a.data(with, gone))
	} else {
		a.mark.end(a, j, g, with, gone)
	}
	x.replay = store.LetterMove{To: store.LetterReplayed, At: x.now, Actor: a.c.Actor, Reason: a.r.Reason}
	slices.SortFunc(x.replayed, compareLetters)
	if err := resolve(ctx, a.tx, a.e, x.now, []*graph{g}, false, around{}); err != nil {
		return err
	}
	if a.plan != nil {
		j.Handled -= a.plan.Forgiven(b.Maps) // collect counts them
	}
	g.collect(x, j)
	return nil
}

// leaves takes a task that has ended out of the counts of its job, and out of the dead
// letters.
func (a *rerunning) leaves(j *store.JobLive, t lifecycle.Task) {
	uncount(j, t.Status)
	if t.Status == drover.Failed || t.Status == drover.DeadLetter {
		a.x.replayed = append(a.x.replayed, store.LetterKey{Task: t.ID, Generation: t.Generation})
	}
}

// findMaps reads the rows of maps that expand again.
func (a *rerunning) findMaps(ctx context.Context) error {
	var keys []store.Key
	for _, k := range a.branch.Again {
		if _, there := a.at[k]; !there {
			keys = append(keys, store.Key{Job: a.job, Node: k.Node, Index: k.Index})
		}
	}
	a.maps = map[dag.Key]store.TaskRow{}
	if len(keys) == 0 {
		return nil
	}
	var rows []store.TaskRow
	if err := a.tx.Pipe(ctx, store.PlacedRows(keys, &rows)); err != nil {
		return err
	}
	for _, r := range rows {
		a.maps[dag.Key{Node: r.Node, Index: r.Index}] = r
	}
	if len(a.maps) != len(keys) {
		return errors.New("a map has no row")
	}
	return nil
}

// mapGenerations reads which generations maps have had that expand again: of one that
// has expanded nothing but events tells.
func (a *rerunning) mapGenerations(ctx context.Context) (map[drover.TaskID]int32, error) {
	out := map[drover.TaskID]int32{}
	if len(a.maps) == 0 {
		return out, nil
	}
	names := map[string]drover.TaskID{}
	for k, r := range a.maps {
		names[a.plan.Nodes[k.Node].Name] = r.ID
	}
	var events []store.EventRow
	if err := a.tx.Pipe(ctx, store.Reopenings(a.job, &events)); err != nil {
		return nil, err
	}
	for _, ev := range events {
		var data struct {
			Generation int32          `json:"generation"`
			With       []cameBackWith `json:"with"`
		}
		if err := json.Unmarshal(ev.Data, &data); err != nil {
			return nil, fmt.Errorf("read event %d: %w", ev.Seq, err)
		}
		out[ev.Task] = max(out[ev.Task], data.Generation)
		for _, w := range data.With {
			if id, ok := names[w.Task]; ok && w.First == dag.Unexpanded {
				out[id] = max(out[id], w.Generation)
			}
		}
	}
	return out, nil
}

// data is what the event of a rerun says.
func (a *rerunning) data(with, gone []cameBackWith) []byte {
	b, err := json.Marshal(struct {
		Actor    string         `json:"actor,omitempty"`
		Reason   string         `json:"reason,omitempty"`
		From     []string       `json:"from,omitempty"`
		Failed   bool           `json:"failed,omitempty"`
		Whole    bool           `json:"whole,omitempty"`
		Fresh    bool           `json:"fresh,omitempty"`
		NewInput bool           `json:"new_input,omitempty"`
		With     []cameBackWith `json:"with,omitempty"`
		Gone     []cameBackWith `json:"gone,omitempty"`
	}{a.c.Actor, cutAt(a.r.Reason, 1000), a.r.From, a.r.Failed, a.r.Whole, a.r.Fresh, len(a.r.Input) > 0, with, gone})
	if err != nil {
		return nil
	}
	return b
}
