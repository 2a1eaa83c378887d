package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// Replay opens a new generation of a finished task; the old record stays. With
// it come back the tasks that were cut off when the job failed, so that the job
// goes on from there, except those below another failed task, and maps over which
// such a one goes. A finished job is reopened as its next run. A dead letter that
// was closed stays so, unless the request says to reopen it.
func (e *Engine) Replay(ctx context.Context, c Caller, id drover.TaskID, r ReplayRequest) (drover.Task, error) {
	if err := checkRequest(&r.Request); err != nil {
		return drover.Task{}, err
	}
	if err := checkInput("input", r.Input); err != nil {
		return drover.Task{}, err
	}
	var x *changes
	err := e.reopening(ctx, func(tx store.Tx) error {
		x = e.changes(e.now())
		if _, err := ownTask(ctx, tx, c, id); err != nil {
			return err
		}
		if done, err := e.once(ctx, tx, c, r.Request, "replay", id.String(), x.now); err != nil || done {
			return err
		}
		one := &replaying{task: id, input: r.Input, reopen: r.Reopen}
		if err := e.replay(ctx, tx, x, c, r.Request, drover.ID{}, []*replaying{one}); err != nil {
			return err
		}
		if one.refused != nil {
			return one.refused
		}
		return x.save(ctx, tx)
	})
	if err != nil {
		return drover.Task{}, fmt.Errorf("replay task: %w", err)
	}
	e.after(ctx, x)
	t, err := e.Task(ctx, c, id)
	if drover.CodeOf(err) == drover.CodeNotFound {
		return e.expandedMap(ctx, c, id)
	}
	return t, err
}

// reopening runs a transaction that may reopen jobs: where another replay
// reopened one at the same moment, it runs again.
func (e *Engine) reopening(ctx context.Context, write func(store.Tx) error) error {
	err := e.db.Write(ctx, write)
	for try := 0; errors.Is(err, store.ErrUnique) && try < 3; try++ {
		err = e.db.Write(ctx, write)
	}
	return err
}

// checkInput validates what takes the place of an input.
func checkInput(field string, in json.RawMessage) error {
	if len(in) > MaxPayload {
		return drover.Errorf(drover.CodePayloadTooLarge, "%s has %d bytes; at most %d", field, len(in), MaxPayload)
	}
	if len(in) > 0 && !json.Valid(in) {
		return &drover.Error{Code: drover.CodeValidation, Detail: "the replay is not valid", Fields: []drover.FieldError{{Field: field, Message: "is not valid JSON"}}}
	}
	return nil
}

// expandedMap is a replayed map that has expanded at once, as its generation
// began: its elements stand for it now.
func (e *Engine) expandedMap(ctx context.Context, c Caller, id drover.TaskID) (out drover.Task, err error) {
	err = e.db.Read(ctx, func(tx store.Tx) error {
		row, err := ownTask(ctx, tx, c, id)
		if err != nil {
			return err
		}
		live := &lifecycle.Task{Status: drover.Pending, Class: row.Class, Generation: 2, Since: e.now()}
		list, err := e.showTasks(ctx, tx, []taskState{{TaskRow: row, live: live}})
		if err == nil {
			out = list[0]
		}
		return err
	})
	if err != nil {
		return drover.Task{}, fmt.Errorf("read task: %w", err)
	}
	return out, nil
}

// replaying is a task on its way to a new generation, or refused.
type replaying struct {
	task       drover.TaskID
	generation int32           // the one to be replayed; 0 is the last
	input      json.RawMessage // in place of the one it had
	patch      json.RawMessage // or a merge patch of that
	reopen     bool            // though its dead letter was closed

	row     store.TaskRow
	target  lifecycle.Task // as it ended
	refused *drover.Error
	later   bool // not looked at: the transaction is large enough
}

// tasksAtOnce bounds the tasks of the jobs that one transaction of replays looks
// at; a single job may have more.
const tasksAtOnce = 20_000

func (r *replaying) refuse(code drover.Code, format string, args ...any) {
	r.refused = drover.Errorf(code, format, args...)
}

// replay adds new generations of tasks to x, in a constant number of statements
// however many they are. One that cannot be replayed is refused, or put off,
// and does not keep the others back.
func (e *Engine) replay(ctx context.Context, tx store.Tx, x *changes, c Caller, r Request, op drover.ID, items []*replaying) error {
	jobs, heads, err := replayHeads(ctx, tx, c, items)
	if err != nil {
		return err
	}
	x.belongs(heads)
	// The jobs' rows are locked first here; but for dead letters nothing that others lock is taken after them.
	if err := e.lockJobs(ctx, tx, x, jobs); err != nil {
		return err
	}
	runs := make(map[drover.JobID]store.JobFinal, len(jobs))
	if err := tx.Pipe(ctx, store.LastRuns(jobs, runs)); err != nil {
		return err
	}
	of := map[drover.JobID][]*replaying{}
	for _, i := range items {
		if i.refused == nil {
			of[i.row.Job] = append(of[i.row.Job], i)
		}
	}
	var open []drover.JobID
	size := 0
	for _, id := range jobs {
		j, last := x.loaded[id], runs[id]
		total := last.Total
		if j != nil {
			total = j.Total
		}
		size += int(total)
		for _, i := range of[id] {
			switch {
			case j == nil && last.Run == 0:
				i.refuse(drover.CodeInvalidTransition, "task %s of job %s has not ended; only a finished task can be replayed", i.task, id)
			case j != nil && j.Cancelling != 0:
				i.refuse(drover.CodeInvalidTransition, "job %s is stopping (%s); replay when it has ended", id, causeText(j.Cancelling))
			case size > tasksAtOnce && len(open) > 0:
				i.later = true
			default:
				if n := len(open); n == 0 || open[n-1] != id {
					open = append(open, id)
				}
			}
		}
	}
	tasks, err := store.JobTasks(ctx, tx, open)
	if err != nil {
		return err
	}
	for _, of := range tasks {
		dropGone(of)
	}
	if err := replayTargets(ctx, tx, items, tasks); err != nil {
		return err
	}
	plans := map[drover.JobID]*compiled{}
	for _, id := range open {
		if p := heads[id].Pipeline; p != 0 {
			if plans[id], err = e.plan(ctx, tx, p); err != nil {
				return err
			}
		}
	}
	if err := e.replayInputs(ctx, tx, items); err != nil {
		return err
	}
	returns := map[drover.JobID]*returning{}
	var all []lifecycle.Task
	for _, id := range open {
		last := runs[id]
		b := bringBack(plans[id], tasks[id], of[id], last.Status == drover.Failed)
		if b == nil {
			continue
		}
		returns[id] = b
		all = append(all, b.tasks...)
	}
	lanes := make(map[drover.TaskID]int32, len(all))
	if err := tx.Pipe(ctx, store.TaskLanes(all, lanes)); err != nil {
		return err
	}
	var graphs []*graph
	live := map[drover.JobID]*store.JobLive{}
	for _, id := range open {
		b := returns[id]
		if b == nil {
			continue
		}
		j := x.loaded[id]
		if j == nil {
			last := runs[id]
			j = &store.JobLive{Job: id, Tenant: last.Tenant, Run: last.Run + 1, Events: last.Events, Total: last.Total,
				Succeeded: last.Succeeded, Failed: last.Failed, Cancelled: last.Cancelled, Skipped: last.Skipped}
			x.newJob(j)
			x.event(j, drover.JobReopened, drover.TaskID{}, actionData(c, r))
		}
		live[id] = j
		if plans[id] != nil {
			if j.Handled = b.handled; j.Phase != phaseUndo { // one that undoes what it did goes on with that
				j.Phase = b.phase
			}
		}
		j.Graph++                                    // a settle that has looked for its children looks again
		with := cameBack(plans[id], b.tasks, of[id]) // on the first event: they are no one item's
		for _, i := range of[id] {
			if i.refused != nil || i.later {
				continue
			}
			x.event(j, drover.TaskReplayed, i.task, replayData(c, r, op, i, with))
			with = nil
			if len(i.input) > 0 {
				x.inputs = append(x.inputs, store.InputRow{LetterKey: store.LetterKey{Task: i.task, Generation: i.target.Generation + 1}, Input: i.input})
			}
		}
		g := newGraph(plans[id], id, j.Total)
		g.trace = heads[id].Trace
		for m, x := range b.maps {
			g.putMap(m, x)
		}
		g.maps = nil // all of them are written anew
		if plans[id] == nil {
			g.kind = termsOf(of[id][0].row.Policy)
		}
		for _, t := range b.tasks {
			if t.Status == drover.Failed || t.Status == drover.DeadLetter { // of maps that expand together another may have failed, too
				x.replayed = append(x.replayed, store.LetterKey{Task: t.ID, Generation: t.Generation})
			}
			uncount(j, t.Status)
			j.Open++
			t.Lane = lanes[t.ID]
			again := lifecycle.Replayed(t, 0, x.now)
			if tally, ok := b.tallies[keyOf(&t)]; ok {
				again.Unmet, again.ParentsSucceeded, again.ParentsFailed, again.ParentsSkipped = tally.Unmet, tally.Succeeded, tally.Failed, tally.Skipped
			}
			g.add(again)
			if plans[id] != nil {
				g.reopened(b.countedAt(plans[id], t))
			}
		}
		for k, was := range b.whole {
			g.reopened(k, was)
		}
		graphs = append(graphs, g)
	}
	x.replay = store.LetterMove{To: store.LetterReplayed, At: x.now, Actor: c.Actor, Reason: r.Reason, Operation: op}
	slices.SortFunc(x.replayed, compareLetters)
	if err := resolve(ctx, tx, e, x.now, graphs, false, around{}); err != nil {
		return err
	}
	for _, g := range graphs {
		good := 0
		if g.plan != nil {
			good = int(g.plan.Forgiven(returns[g.job].maps))
		}
		live[g.job].Handled -= int32(good) // collect counts them
		g.collect(x, live[g.job])
	}
	return nil
}

// replayHeads finds the jobs of the items, sorted, and refuses what is not the caller's.
func replayHeads(ctx context.Context, tx store.Tx, c Caller, items []*replaying) ([]drover.JobID, map[drover.JobID]store.JobHead, error) {
	ids := make([]drover.TaskID, len(items))
	for k, i := range items {
		ids[k] = i.task
	}
	var rows []store.TaskRow
	if err := tx.Pipe(ctx, store.ReadTasks(ids, &rows)); err != nil {
		return nil, nil, err
	}
	at := make(map[drover.TaskID]store.TaskRow, len(rows))
	for _, r := range rows {
		at[r.ID] = r
	}
	seen := make(map[drover.TaskID]bool, len(items))
	var jobs []drover.JobID
	for _, i := range items {
		i.row = at[i.task]
		switch {
		case i.row.ID.IsZero() || i.row.Tenant != c.Tenant:
			i.refuse(drover.CodeNotFound, "there is no task %s", i.task)
		case seen[i.task]:
			i.refuse(drover.CodeInvalidTransition, "task %s is replayed already by this request", i.task)
		default:
			jobs = append(jobs, i.row.Job)
		}
		seen[i.task] = true
	}
	jobs = uniqueSorted(jobs)
	heads := make(map[drover.JobID]store.JobHead, len(jobs))
	var kept []drover.JobID
	if err := tx.Pipe(ctx, store.KeepJobs(jobs, &kept), store.ReadJobHeads(jobs, heads)); err != nil {
		return nil, nil, err
	}
	for _, i := range items {
		if _, ok := heads[i.row.Job]; !ok && i.refused == nil { // it has left
			i.refuse(drover.CodeNotFound, "there is no task %s", i.task)
		}
	}
	return slices.DeleteFunc(jobs, func(id drover.JobID) bool { _, ok := heads[id]; return !ok }), heads, nil
}

// replayTargets finds how the items ended, locks their dead letters, and refuses
// what has not ended, was replayed, or was closed.
func replayTargets(ctx context.Context, tx store.Tx, items []*replaying, tasks map[drover.JobID]map[drover.TaskID]lifecycle.Task) error {
	var keys []store.LetterKey
	for _, i := range items {
		if i.refused != nil || i.later {
			continue
		}
		t, ok := tasks[i.row.Job][i.task]
		switch {
		case !ok:
			i.refuse(drover.CodeInvalidTransition, "task %s of job %s has not ended, is a map whose elements stand for it, or counts no more since a rerun; only a finished task can be replayed", i.task, i.row.Job)
		case i.generation != 0 && t.Generation > i.generation:
			i.refuse(drover.CodeInvalidTransition, "generation %d of task %s was replayed already: its generation %d is %s in job %s", i.generation, i.task, t.Generation, t.Status, i.row.Job)
		case !t.Status.Final():
			i.refuse(drover.CodeInvalidTransition, "task %s of job %s is %s; only a finished task can be replayed", i.task, i.row.Job, t.Status)
		default:
			i.target = t
			keys = append(keys, store.LetterKey{Task: i.task, Generation: t.Generation})
		}
	}
	slices.SortFunc(keys, compareLetters)
	letters := make(map[store.LetterKey]store.LetterRow, len(keys))
	if err := tx.Pipe(ctx, store.LockLetters(keys, letters)); err != nil {
		return err
	}
	for _, i := range items {
		if l, ok := letters[store.LetterKey{Task: i.task, Generation: i.target.Generation}]; ok && i.refused == nil && l.State == store.LetterClosed && !i.reopen {
			i.refuse(drover.CodeInvalidTransition, "the dead letter of task %s was closed by %s: %s; say reopen to replay it all the same", i.task, somebody(l.Actor), l.Reason)
		}
	}
	return nil
}

func somebody(actor string) string {
	if actor == "" {
		return "somebody"
	}
	return actor
}

func compareLetters(a, b store.LetterKey) int {
	return cmp.Or(compareIDs(a.Task, b.Task), cmp.Compare(a.Generation, b.Generation))
}

// replayInputs checks the new inputs, and makes those that a patch gives.
func (e *Engine) replayInputs(ctx context.Context, tx store.Tx, items []*replaying) error {
	var of []store.Claimed
	for _, i := range items {
		switch {
		case i.refused != nil || i.later || len(i.input) == 0 && len(i.patch) == 0:
		case i.target.Index == dag.Unexpanded:
			i.refuse(drover.CodeInvalidTransition, "task %s is a map that did not expand; it has no input to replace", i.task)
		case len(i.patch) > 0:
			of = append(of, store.Claimed{Task: i.target, Pipeline: i.row.Pipeline})
		}
	}
	var was map[drover.TaskID]json.RawMessage
	var bad map[drover.TaskID]*drover.Error
	if len(of) > 0 {
		var err error
		if was, bad, err = e.inputsOf(ctx, tx, of); err != nil {
			return err
		}
	}
	for _, i := range items {
		if i.refused != nil || i.later || len(i.input) == 0 && len(i.patch) == 0 {
			continue
		}
		if len(i.patch) > 0 {
			if e := bad[i.task]; e != nil {
				i.refuse(e.Code, "the input of task %s cannot be patched: %s", i.task, e.Detail)
				continue
			}
			var err error
			if i.input, err = mergePatch(was[i.task], i.patch); err != nil {
				return err
			}
		}
		if len(i.input) > MaxPayload {
			i.refuse(drover.CodePayloadTooLarge, "the input of task %s has %d bytes once it is patched; at most %d", i.task, len(i.input), MaxPayload)
		} else if wrong := checkBuiltin(i.row.Kind, i.input); len(wrong) > 0 {
			i.refuse(drover.CodeValidation, "the new input of task %s is not one for %s: %s: %s", i.task, i.row.Kind, wrong[0].Field, wrong[0].Message)
		}
	}
	return nil
}

// inputsOf is what generations of tasks were given, or why it cannot be told.
func (e *Engine) inputsOf(ctx context.Context, tx store.Tx, of []store.Claimed) (map[drover.TaskID]json.RawMessage, map[drover.TaskID]*drover.Error, error) {
	out, bad := map[drover.TaskID]json.RawMessage{}, map[drover.TaskID]*drover.Error{}
	for chunk := range slices.Chunk(of, fillAtOnce) {
		ids := make([]drover.TaskID, len(chunk))
		for i := range chunk {
			ids[i] = chunk[i].ID
		}
		stored, edited, scopes := map[drover.TaskID][]byte{}, map[drover.TaskID][]byte{}, map[drover.JobID]*scope{}
		if err := tx.Pipe(ctx, store.TaskInputs(ids, stored)); err != nil {
			return nil, nil, err
		}
		if err := e.fill(ctx, tx, chunk, scopes, edited); err != nil {
			return nil, nil, err
		}
		for i := range chunk {
			x := &chunk[i]
			in, err := json.RawMessage(edited[x.ID]), error(nil)
			switch {
			case in != nil:
			case x.Pipeline == 0:
				in = stored[x.ID]
			default:
				in, err = scopes[x.Job].render(&x.Task, stored[x.ID])
			}
			if refused := (*drover.Error)(nil); errors.As(err, &refused) {
				bad[x.ID] = refused
			} else if err != nil {
				return nil, nil, err
			}
			out[x.ID] = in
		}
	}
	return out, bad, nil
}

// returning are the tasks of a job that come back, and how their parents stand.
type returning struct {
	tasks   []lifecycle.Task
	tallies map[dag.Key]dag.Tally
	handled int32                      // failures that stay made good
	phase   int16                      // of the job's end
	maps    map[int32]dag.Map          // how those with bounds stand then
	whole   map[dag.Key]dag.Outcome    // maps with min_success that had ended, and have not then
	ended   map[dag.Key]lifecycle.Task // what has ended and does not come back
}

// countedAt returns the row whose end those below a task have counted, and as what:
// its own, or that of the last which was called in its place.
func (b *returning) countedAt(plan *compiled, t lifecycle.Task) (dag.Key, dag.Outcome) {
	as := outcomeOf(t.Status, t.How)
	for as == dag.Failed && plan.Nodes[t.Node].Fallback >= 0 {
		next, ok := b.ended[dag.Key{Node: plan.Nodes[t.Node].Fallback, Index: t.Index}]
		if !ok {
			break
		}
		t, as = next, outcomeOf(next.Status, next.How)
	}
	return keyOf(&t), as
}

// bringBack decides what of a job comes back with the items, and refuses those
// that cannot be replayed as things stand. It returns nil when none can.
func bringBack(plan *compiled, tasks map[drover.TaskID]lifecycle.Task, items []*replaying, failed bool) *returning {
	var rest []*replaying
	for _, i := range items {
		if i.refused != nil || i.later {
			continue
		}
		rest = append(rest, i)
	}
	if len(rest) == 0 {
		return nil
	}
	over := compensated(plan, tasks)
	if over {
		rest = slices.DeleteFunc(rest, func(i *replaying) bool {
			if plan.Nodes[i.target.Node].Undoes < 0 && !plan.Closes(i.target.Node) {
				i.refuse(drover.CodeInvalidTransition, "job %s has undone what its tasks did; submit it again. Only what undoes them, the rescue and what runs finally can be replayed", i.row.Job)
			}
			return i.refused != nil
		})
		if len(rest) == 0 {
			return nil
		}
	}
	try := func(items []*replaying) (*returning, *drover.Error) {
		targets := make([]lifecycle.Task, len(items))
		for k, i := range items {
			targets[k] = i.target
		}
		targets = together(plan, tasks, targets)
		b := &returning{tasks: targets}
		if plan != nil && !over {
			b.tasks = revived(plan, tasks, b.tasks, failed)
		}
		slices.SortFunc(b.tasks, func(x, y lifecycle.Task) int { return compareIDs(x.ID, y.ID) })
		return b, b.recount(plan, tasks, targets)
	}
	b, refused := try(rest)
	if refused == nil {
		return b
	}
	// Not all of them: one after the other, as long as that brings one more back.
	b = nil
	var in []*replaying
	for more := true; more; {
		more = false
		for k := 0; k < len(rest); k++ {
			i := rest[k]
			with, refused := try(append(slices.Clone(in), i))
			if i.refused = refused; refused == nil {
				b, in, more = with, append(in, i), true
				rest = slices.Delete(rest, k, k+1)
				k--
			}
		}
	}
	return b
}

// compensated reports whether what tasks of a job did has been undone, or is being.
func compensated(plan *compiled, tasks map[drover.TaskID]lifecycle.Task) bool {
	if plan == nil || !plan.Undoes() {
		return false
	}
	for _, t := range tasks {
		if plan.Nodes[t.Node].Undoes >= 0 {
			return true
		}
	}
	return false
}

// cameBackWith are tasks that a replay opened a new generation of beside the one
// it was asked for: elements of a node from First to Last, by their indexes.
type cameBackWith struct {
	Task       string `json:"task"`
	First      int32  `json:"first"`
	Last       int32  `json:"last"`
	Generation int32  `json:"generation"`
}

// cameBack tells which of the tasks that come back have no event of their own, so
// that the job's records say of every generation how it began.
func cameBack(plan *compiled, tasks []lifecycle.Task, items []*replaying) (list []cameBackWith) {
	if plan == nil {
		return nil
	}
	own := map[drover.TaskID]bool{}
	for _, i := range items {
		own[i.task] = i.refused == nil && !i.later
	}
	sorted := slices.DeleteFunc(slices.Clone(tasks), func(t lifecycle.Task) bool { return own[t.ID] })
	slices.SortFunc(sorted, func(a, b lifecycle.Task) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Index, b.Index))
	})
	for _, t := range sorted {
		list = extend(list, plan.Nodes[t.Node].Name, t.Index, t.Generation+1)
	}
	return list
}

// extend adds a row to a list of such, which is in order.
func extend(list []cameBackWith, name string, index, generation int32) []cameBackWith {
	if n := len(list); n > 0 && list[n-1].Task == name && list[n-1].Generation == generation && list[n-1].Last == index-1 {
		list[n-1].Last = index
		return list
	}
	return append(list, cameBackWith{name, index, index, generation})
}

func replayData(c Caller, r Request, op drover.ID, i *replaying, with []cameBackWith) []byte {
	b, err := json.Marshal(struct {
		Actor      string             `json:"actor,omitempty"`
		Reason     string             `json:"reason,omitempty"`
		Was        drover.Status      `json:"was"`
		Generation int32              `json:"generation"`
		NewInput   bool               `json:"new_input,omitempty"`
		Operation  drover.OperationID `json:"operation_id,omitzero"`
		With       []cameBackWith     `json:"with,omitempty"`
	}{c.Actor, r.Reason, i.target.Status, i.target.Generation + 1, len(i.input) > 0, drover.OperationID(op), with})
	if err != nil {
		return nil
	}
	return b
}

func uncount(j *store.JobLive, s drover.Status) {
	switch s {
	case drover.Succeeded:
		j.Succeeded--
	case drover.Failed, drover.DeadLetter:
		j.Failed--
	case drover.Cancelled:
		j.Cancelled--
	case drover.Skipped:
		j.Skipped--
	default: // one that is not final counts as open
	}
}

// together returns the targets and, of maps that have not expanded, those that go
// over them element by element: they expand at one moment.
func together(plan *compiled, tasks map[drover.TaskID]lifecycle.Task, targets []lifecycle.Task) []lifecycle.Task {
	back := slices.Clone(targets)
	again := make(map[drover.TaskID]bool, len(targets))
	for _, t := range targets {
		again[t.ID] = true
	}
	for _, target := range targets {
		if plan == nil || target.Index != dag.Unexpanded || plan.Nodes[target.Node].Over >= 0 {
			continue
		}
		family := plan.Family(target.Node)
		for _, id := range inOrder(tasks) {
			if t := tasks[id]; !again[t.ID] && t.Status.Final() && t.Index == dag.Unexpanded && slices.Contains(family, t.Node) {
				again[t.ID] = true
				back = append(back, t)
			}
		}
	}
	return back
}

// revived returns the tasks that come back and those that were skipped or cut off
// because of them: below them, or, when the job has failed, anywhere. It
// leaves out what another failed task keeps from running that is not replayed, and
// maps over which such a one goes. In a job that was reopened before, those are cut
// off still that stood below another failed task until now.
func revived(plan *compiled, tasks map[drover.TaskID]lifecycle.Task, back []lifecycle.Task, failed bool) []lifecycle.Task {
	again, below := map[drover.TaskID]bool{}, map[int32]bool{}
	nodes := make([]int32, len(back))
	for i, t := range back {
		again[t.ID], nodes[i] = true, t.Node
	}
	for _, d := range plan.DescendantsOf(nodes) {
		below[d] = true
	}
	blocked := map[int32]bool{}
	block := func(nodes []int32) {
		for _, d := range nodes {
			blocked[d] = true
		}
	}
	then := make([]dag.Past, 0, len(tasks))
	var failures []dag.Key
	for _, t := range tasks {
		then = append(then, past(&t, again[t.ID] || !t.Status.Final()))
		if !again[t.ID] && (t.Status == drover.Failed || t.Status == drover.DeadLetter) {
			failures = append(failures, keyOf(&t))
		}
	}
	block(plan.BlockedBy(failures))
	for m, x := range plan.Maps(then) { // too many of its elements stay behind
		if s := plan.Nodes[m].MinSuccess; !s.IsZero() && x.Hopeless(s) {
			block(plan.Blocked(dag.Key{Node: m, Index: dag.Unexpanded}))
		}
	}
	for n := -1; n != len(blocked); { // one map that stays behind may keep another
		n = len(blocked)
		for _, t := range tasks {
			if t.Index != dag.Unexpanded || plan.Nodes[t.Node].Over >= 0 || blocked[t.Node] {
				continue
			}
			if slices.ContainsFunc(plan.Family(t.Node), func(m int32) bool { return blocked[m] }) {
				blocked[t.Node] = true
				block(plan.Blocked(dag.Key{Node: t.Node, Index: dag.Unexpanded}))
			}
		}
	}
	for _, id := range inOrder(tasks) {
		t := tasks[id]
		if !again[id] && !blocked[t.Node] && (t.Status == drover.Skipped && (failed || below[t.Node]) || t.Status == drover.Cancelled && failed) {
			back = append(back, t)
		}
	}
	return back
}

// inOrder returns the ids of tasks, oldest first: of several reasons to refuse a
// replay, the same one is told whenever it is asked.
func inOrder(tasks map[drover.TaskID]lifecycle.Task) []drover.TaskID {
	return slices.SortedFunc(maps.Keys(tasks), compareIDs)
}

// recount tells how the parents of the tasks that come back stand. It refuses when a
// target would not run: a parent of it has failed, say, and does not come back.
func (b *returning) recount(plan *compiled, tasks map[drover.TaskID]lifecycle.Task, targets []lifecycle.Task) *drover.Error {
	if plan == nil {
		return nil
	}
	again := map[drover.TaskID]bool{}
	b.ended, b.phase = map[dag.Key]lifecycle.Task{}, phaseFinally
	for _, t := range b.tasks {
		again[t.ID] = true
		if !plan.Closes(t.Node) && plan.Nodes[t.Node].Undoes < 0 {
			b.phase = 0 // what runs at the end runs again
		}
	}
	was, is := make([]dag.Past, 0, len(tasks)), make([]dag.Past, 0, len(tasks))
	for _, id := range inOrder(tasks) {
		t := tasks[id]
		p := past(&t, again[id] || !t.Status.Final())
		if !p.Live {
			b.ended[p.Key] = t
		}
		is, was = append(is, p), append(was, past(&t, !t.Status.Final()))
	}
	b.handled = plan.HandledAll(is)
	b.tallies = plan.Recount(append(is, emptyMaps(plan, is)...))
	b.maps, b.whole = plan.Maps(is), map[dag.Key]dag.Outcome{}
	for m, x := range plan.Maps(was) {
		s := plan.Nodes[m].MinSuccess
		if o := x.Outcome(s); !s.IsZero() && o != 0 && b.maps[m].Outcome(s) == 0 {
			b.whole[dag.Key{Node: m, Index: dag.Unexpanded}] = o
		}
	}
	for _, t := range targets {
		if q := plan.Nodes[t.Node].Backs; q >= 0 {
			return drover.Errorf(drover.CodeInvalidTransition, "task %q runs as the backup of task %q; replay that", plan.Nodes[t.Node].Name, plan.Nodes[q].Name)
		}
		for _, id := range inOrder(tasks) {
			if p := tasks[id]; p.Node == plan.Nodes[t.Node].Backup && p.Index == t.Index && !p.Status.Final() {
				return drover.Errorf(drover.CodeInvalidTransition, "task %q, the backup of task %q, still runs; replay when it has ended", plan.Nodes[p.Node].Name, plan.Nodes[t.Node].Name)
			}
			if p := tasks[id]; p.Node == plan.Nodes[t.Node].Fallback && p.Index == t.Index && !p.Status.Final() {
				return drover.Errorf(drover.CodeInvalidTransition, "task %q is running in the place of task %q; replay when it has ended", plan.Nodes[p.Node].Name, plan.Nodes[t.Node].Name)
			}
		}
		if q := plan.Nodes[t.Node].Primary; q >= 0 {
			if p, ok := b.ended[dag.Key{Node: q, Index: t.Index}]; !ok || outcomeOf(p.Status, p.How) != dag.Failed {
				return drover.Errorf(drover.CodeInvalidTransition, "task %q runs in the place of task %q, which has not failed, or runs again; replay that", plan.Nodes[t.Node].Name, plan.Nodes[q].Name)
			}
		}
		if !plan.Nodes[t.Node].When.Hopeless(b.tallies[keyOf(&t)]) {
			continue
		}
		for _, id := range inOrder(tasks) {
			p := tasks[id]
			if again[id] || !p.Status.Final() || p.Status == drover.Succeeded || !slices.Contains(plan.Nodes[t.Node].Parents, p.Node) {
				continue
			}
			return drover.Errorf(drover.CodeInvalidTransition, "task %q waits for task %q, which is %s; replay %s first",
				plan.Nodes[t.Node].Name, plan.Nodes[p.Node].Name, p.Status, p.ID)
		}
		return drover.Errorf(drover.CodeInvalidTransition, "task %q would be skipped again: when: %s", plan.Nodes[t.Node].Name, plan.Nodes[t.Node].When)
	}
	return nil
}

// emptyMaps are the maps that have expanded into nothing: of them no row is left.
func emptyMaps(plan *compiled, past []dag.Past) []dag.Past {
	there := make([]bool, len(plan.Nodes))
	for _, p := range past {
		there[p.Node] = true
	}
	var out []dag.Past
	for i, ok := range there {
		if !ok && plan.Nodes[i].Mapped {
			out = append(out, dag.Past{Key: dag.Key{Node: int32(i), Index: dag.Unexpanded}})
		}
	}
	return out
}
