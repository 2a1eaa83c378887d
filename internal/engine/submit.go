package engine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/builtin"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// Limits of what a client may send.
const (
	MaxBatch       = 10_000    // jobs in one Submit
	MaxPayload     = 256 << 10 // bytes of an input or output kept inline
	MaxTasks       = dag.JobTaskCap
	maxName        = 128
	maxLabels      = 32
	maxKey         = 255
	DefaultQueue   = "default"
	farFuture      = 10 * 365 * 24 * time.Hour
	maxAttemptsTop = 1000
	clockSlack     = 24 * time.Hour // between a client-made job id and the store's clock
)

var traceparent = regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// draft is a NewJob on its way to being one.
type draft struct {
	drover.NewJob
	at          int  // position in the request
	made        bool // the id was made here
	dry         bool // nothing is stored, no name either
	fingerprint []byte
	policy      []byte    // of a Kind job
	plan        *compiled // nil for a Kind job
	queue, lane int32     // of a Kind job
	trace       string
	// late refuses it as a new job, because of the time it comes at; a repeat of one
	// that was accepted in time gets that one.
	late *drover.Error
	// Of a job that a task runs: which, and what the event of its acceptance says.
	parent   drover.TaskID
	accepted []byte
}

// Submit stores jobs with their tasks and idempotency records in one
// transaction. Each is accepted or refused by itself; the error is for the
// request as a whole. A repeat of a key or id gives the first job.
//
// A key that another transaction is about to take is waited for a moment; then
// its job alone is refused with drover.ErrIdempotencyInUse.
func (e *Engine) Submit(ctx context.Context, c Caller, jobs []drover.NewJob) ([]drover.Submitted, error) {
	return e.SubmitPart(ctx, c, Part{Jobs: jobs, at: e.now()})
}

// Part is some jobs of a request, which are stored in one transaction.
type Part struct {
	Jobs []drover.NewJob

	at lifecycle.Instant
}

// SubmitPart is Submit of a part that Parts has made. Its jobs stand in line behind those
// of the parts before it, whichever is stored first.
func (e *Engine) SubmitPart(ctx context.Context, c Caller, p Part) ([]drover.Submitted, error) {
	out, drafts, err := e.drafts(ctx, c, p.Jobs, p.at)
	if err != nil || len(drafts) == 0 {
		return out, err
	}
	if err := e.submit(ctx, c, drafts, p.at, out); err != nil {
		return nil, fmt.Errorf("submit: %w", err)
	}
	return out, nil
}

// Jobs of a request that go into one transaction, when others can be stored beside it,
// and how many such transactions there are at most.
const (
	partOf    = 2000
	partsMost = 4
)

// Parts divides a request into what can be stored beside each other: mostly it is one
// part. Jobs that could be repeats of one another are stored one after the other.
func (e *Engine) Parts(jobs []drover.NewJob) []Part {
	now := e.now()
	whole := []Part{{Jobs: jobs, at: now}}
	n := min((len(jobs)+partOf-1)/partOf, partsMost)
	if n < 2 || len(jobs) > MaxBatch || !e.db.WritesAbreast() {
		return whole
	}
	ids, keys := make(map[drover.JobID]bool, len(jobs)), map[string]bool{}
	for i := range jobs {
		j := &jobs[i]
		if !j.ID.IsZero() && ids[j.ID] || j.IdempotencyKey != "" && keys[j.IdempotencyKey] {
			return whole
		}
		if ids[j.ID] = true; j.IdempotencyKey != "" {
			keys[j.IdempotencyKey] = true
		}
	}
	var parts []Part
	for some := range slices.Chunk(jobs, (len(jobs)+n-1)/n) {
		parts = append(parts, Part{Jobs: some, at: now + lifecycle.Instant(len(parts))})
	}
	return parts
}

// Unstored is the answer to each of the jobs of a request that could not be stored, when
// others were. The log has why.
func (e *Engine) Unstored(ctx context.Context, jobs int, err error) *drover.Error {
	e.log.ErrorContext(ctx, "jobs of a split request not stored", "count", jobs, "err", err)
	return drover.Errorf(drover.CodeOverloaded, "this job could not be stored now; send it again with the same key or job_id")
}

func (e *Engine) submit(ctx context.Context, c Caller, drafts []*draft, now lifecycle.Instant, out []drover.Submitted) error {
	var x *changes
	write := func(tx store.Tx) error {
		x = e.changes(now)
		for _, d := range drafts {
			if d.made {
				d.ID, d.made = drover.JobID{}, false
			}
		}
		if slices.ContainsFunc(drafts, func(d *draft) bool { return d.IdempotencyKey != "" }) {
			if err := tx.Pipe(ctx, store.WaitShort()); err != nil {
				return err
			}
		}
		return e.accept(ctx, tx, c, drafts, x, out)
	}
	err := e.db.Write(ctx, write)
	for try := 0; errors.Is(err, store.ErrUnique) && try < 3; try++ { // another server took a job_id since it was looked for
		err = e.db.Write(ctx, write)
	}
	switch {
	case err == nil:
		e.after(ctx, x)
		x.done()
		return nil
	case !errors.Is(err, store.ErrLocked):
		return err
	case len(drafts) == 1:
		refused := drover.Errorf(drover.CodeIdempotencyInUse, "another request with this idempotency_key has not ended; ask again")
		refused.RetryAfter = time.Second
		out[drafts[0].at] = drover.Submitted{Err: refused}
		return nil
	}
	// A key is contended; nobody says which. Halves are tried until it stands
	// alone, so that the others are not held up by it.
	for half := range slices.Chunk(drafts, (len(drafts)+1)/2) {
		// What is stored is stored: a later failure is told of its own jobs alone.
		if err := e.submit(ctx, c, half, now, out); err != nil {
			refused := e.Unstored(ctx, len(half), err)
			for _, d := range half {
				out[d.at] = drover.Submitted{Err: refused}
			}
		}
	}
	return nil
}

// SubmitIn is Submit inside a transaction of the caller's, which decides if the
// jobs come to be. Nobody is told of them before the next poll.
func (e *Engine) SubmitIn(ctx context.Context, c Caller, jobs []drover.NewJob, tx store.Tx) ([]drover.Submitted, error) {
	now := e.now()
	out, drafts, err := e.drafts(ctx, c, jobs, now)
	if err != nil || len(drafts) == 0 {
		return out, err
	}
	x := e.changes(now)
	x.lent = true
	if err := e.accept(ctx, tx, c, drafts, x, out); err != nil {
		return nil, fmt.Errorf("submit: %w", err)
	}
	return out, nil
}

// drafts validates a request. Jobs that are refused have their answer in out.
func (e *Engine) drafts(ctx context.Context, c Caller, jobs []drover.NewJob, now lifecycle.Instant) (out []drover.Submitted, drafts []*draft, err error) {
	if len(jobs) > MaxBatch {
		return nil, nil, drover.Errorf(drover.CodeValidation, "%d jobs in one request; at most %d", len(jobs), MaxBatch)
	}
	out = make([]drover.Submitted, len(jobs))
	all := make([]draft, len(jobs))
	drafts = make([]*draft, 0, len(jobs))
	var of offer
	for i := range jobs {
		d := &all[i]
		d.NewJob, d.at = jobs[i], i
		err := e.check(ctx, c, d, &of, now)
		var refused *drover.Error
		switch {
		case err == nil:
			drafts = append(drafts, d)
		case errors.As(err, &refused):
			out[i].Err = refused
		default:
			return nil, nil, fmt.Errorf("submit: %w", err)
		}
	}
	return out, drafts, nil
}

// accept decides which drafts are new and stores those. Within a request it
// answers as if the jobs had come one after the other.
func (e *Engine) accept(ctx context.Context, tx store.Tx, c Caller, drafts []*draft, x *changes, out []drover.Submitted) error {
	ids, keys := map[drover.JobID]store.KnownJob{}, map[string]store.KnownJob{}
	leaving := map[drover.JobID]bool{}
	var named []drover.JobID
	for _, d := range drafts {
		if !d.ID.IsZero() {
			named = append(named, d.ID)
		}
	}
	if len(named) > 0 {
		named = uniqueSorted(named)
		// In this order: a job that leaves between the two is seen by one of them.
		if err := tx.Pipe(ctx, store.SelectJobs(named, ids), store.SelectLeaving(named, leaving)); err != nil {
			return err
		}
	}
	var lateKeys []string
	for _, d := range drafts {
		if d.late != nil && d.IdempotencyKey != "" {
			lateKeys = append(lateKeys, d.IdempotencyKey)
		}
	}
	if len(lateKeys) > 0 {
		if err := tx.Pipe(ctx, store.SelectIdempotency(c.Tenant, lateKeys, keys)); err != nil {
			return err
		}
	}
	fresh := make([]*draft, 0, len(drafts))
	unnamed := len(named) == 0 && !slices.ContainsFunc(drafts, func(d *draft) bool { return d.IdempotencyKey != "" })
	isNew := func(d *draft) {
		fresh = append(fresh, d)
		if unnamed { // none can be another's repeat
			return
		}
		k := store.KnownJob{Tenant: c.Tenant, Job: d.ID, Fingerprint: d.fingerprint}
		ids[d.ID] = k
		if d.IdempotencyKey != "" {
			keys[d.IdempotencyKey] = k
		}
	}
	// A draft that stands behind one whose id or key it has waits for the next
	// round: only then is it known if the other became a job.
	for round := drafts; len(round) > 0; {
		var later []*draft
		byKey, open := map[string]*draft{}, map[drover.JobID]bool{}
		var keyed []store.IdemRow
		for _, d := range round {
			if d.ID.IsZero() {
				d.ID, d.made = drover.JobID(e.db.NewID()), true
			}
			if k, ok := ids[d.ID]; ok {
				out[d.at] = repeat(c, d, k)
				continue
			}
			if k, ok := keys[d.IdempotencyKey]; ok && d.IdempotencyKey != "" {
				out[d.at] = repeat(c, d, k)
				continue
			}
			if leaving[d.ID] {
				out[d.at] = drover.Submitted{Err: beingDeleted(d.ID)}
				continue
			}
			first := byKey[d.IdempotencyKey] == nil && !open[d.ID]
			if first && d.late != nil {
				out[d.at] = drover.Submitted{Err: d.late}
				continue
			}
			if first && d.IdempotencyKey == "" {
				isNew(d)
				continue
			}
			open[d.ID] = true
			if d.IdempotencyKey != "" && byKey[d.IdempotencyKey] == nil {
				byKey[d.IdempotencyKey] = d
			}
			if !first {
				later = append(later, d)
			} else {
				keyed = append(keyed, store.IdemRow{Tenant: c.Tenant, Key: d.IdempotencyKey, Job: d.ID, Fingerprint: d.fingerprint, At: x.now})
			}
		}
		if len(keyed) > 0 {
			slices.SortFunc(keyed, func(a, b store.IdemRow) int { return strings.Compare(a.Key, b.Key) })
			free := map[string]bool{}
			if err := tx.Pipe(ctx, store.InsertIdempotency(keyed, free)); err != nil {
				return err
			}
			var lost []string
			for _, k := range keyed {
				if free[k.Key] {
					isNew(byKey[k.Key])
				} else {
					lost = append(lost, k.Key)
				}
			}
			if len(lost) > 0 {
				if err := tx.Pipe(ctx, store.SelectIdempotency(c.Tenant, lost, keys)); err != nil {
					return err
				}
			}
			for _, k := range lost {
				kn, ok := keys[k]
				if !ok {
					return store.ErrRetry // its transaction was rolled back, or the key was cleaned
				}
				out[byKey[k].at] = repeat(c, byKey[k], kn)
			}
		}
		// Those that wait may have keys that are known, whatever becomes of the one
		// before them: without this each of them would take a round of its own.
		if err := knownKeys(ctx, tx, c, later, keys); err != nil {
			return err
		}
		round = later
	}
	slices.SortFunc(fresh, func(a, b *draft) int { return a.at - b.at }) // keys were taken in an order of their own
	x.expect(len(fresh))
	var first firsts
	for _, d := range fresh {
		if err := first.put(e.start(ctx, tx, c, d, x)); err != nil {
			return err
		}
		out[d.at] = drover.Submitted{JobID: d.ID, Status: drover.Pending}
	}
	if err := first.asked(); err != nil {
		return err
	}
	if err := x.findUses(ctx, tx, c.Tenant); err != nil {
		return err
	}
	return x.save(ctx, tx)
}

func beingDeleted(id drover.JobID) *drover.Error {
	return drover.Errorf(drover.CodeConflict, "job_id %s was that of a job which is being deleted; make another", id)
}

// knownKeys reads which keys of drafts are taken.
func knownKeys(ctx context.Context, tx store.Tx, c Caller, drafts []*draft, keys map[string]store.KnownJob) error {
	ask := map[string]bool{}
	for _, d := range drafts {
		if _, ok := keys[d.IdempotencyKey]; !ok && d.IdempotencyKey != "" {
			ask[d.IdempotencyKey] = true
		}
	}
	if len(ask) == 0 {
		return nil
	}
	return tx.Pipe(ctx, store.SelectIdempotency(c.Tenant, slices.Sorted(maps.Keys(ask)), keys))
}

// repeat answers a request whose key or id is known.
func repeat(c Caller, d *draft, k store.KnownJob) drover.Submitted {
	switch {
	case k.Tenant != c.Tenant:
		return drover.Submitted{Err: drover.Errorf(drover.CodeConflict, "job_id %s cannot be used; make another", d.ID)}
	case !bytes.Equal(k.Fingerprint, d.fingerprint):
		what := "idempotency_key"
		if d.IdempotencyKey == "" {
			what = "job_id"
		}
		return drover.Submitted{Err: drover.Errorf(drover.CodeIdempotencyReused, "this %s was used for another request (job %s); send the same body again, or use a new one", what, k.Job)}
	}
	return drover.Submitted{JobID: k.Job, Status: drover.Pending, Replayed: true, Deleted: k.Gone}
}

// start adds the rows of a new job to x.
func (e *Engine) start(ctx context.Context, tx store.Tx, c Caller, d *draft, x *changes) error {
	due := lifecycle.At(d.DueAt)
	row := store.JobRow{ID: d.ID, Tenant: c.Tenant, Kind: d.Kind, Class: d.Class, Creator: c.Actor, Trace: d.trace, DueAt: due,
		ExpiresAt: lifecycle.At(d.ExpiresAt), CreatedAt: x.now, Fingerprint: d.fingerprint}
	if len(d.Labels) > 0 {
		b, err := json.Marshal(d.Labels) // sorted keys
		if err != nil {
			return err
		}
		row.Labels = b
	}
	if row.ExpiresAt > 0 {
		x.timers = append(x.timers, row)
	}
	x.useArtifacts(d.ID, d.Input)
	if d.plan == nil {
		t := lifecycle.Task{ID: drover.TaskID(e.db.NewID()), Job: d.ID, Queue: d.queue, Lane: d.lane, Class: d.Class, Status: drover.Pending, Generation: 1, DueAt: due, Since: x.now}
		t = lifecycle.Met(t, lifecycle.Hold{}, x.now)
		t.Events = 1
		x.jobs = append(x.jobs, row)
		x.tasks = append(x.tasks, store.TaskRow{ID: t.ID, Job: d.ID, Tenant: c.Tenant, Queue: d.queue, Lane: d.lane, Class: d.Class, Kind: d.Kind,
			Input: d.Input, Policy: d.policy, Trace: d.trace, CreatedAt: x.now})
		x.place(t)
		x.watch(t, d.ScheduleToClose.Std())
		x.events = append(x.events, store.EventRow{Job: d.ID, Seq: 1, Type: drover.JobAccepted, At: x.now, Data: d.accepted})
		return nil
	}
	row.Pipeline, row.Input, row.Parent = d.plan.ID, d.Input, d.parent
	if d.parent.IsZero() {
		x.jobs = append(x.jobs, row)
	} else {
		x.kids = append(x.kids, row)
	}
	live := &store.JobLive{Job: d.ID, Tenant: c.Tenant, Run: 1}
	x.newJob(live)
	x.event(live, drover.JobAccepted, drover.TaskID{}, d.accepted)
	g := newGraph(d.plan, d.ID, int32(len(d.plan.Nodes)))
	g.input, g.have, g.trace, g.lent = row.Input, true, d.trace, x.lent
	first := len(x.tasks)
	for _, r := range d.plan.Start() {
		n := &d.plan.Nodes[r.Node]
		at := d.plan.at[r.Node]
		t := lifecycle.Task{ID: drover.TaskID(e.db.NewID()), Job: d.ID, Node: r.Node, Index: r.Index, Queue: at.queue, Lane: at.lane,
			Class: pickClass(n.Class, d.Class), Status: drover.Pending, Generation: 1, Unmet: r.Unmet, DueAt: due, Since: x.now}
		live.Total++
		live.Open++
		x.tasks = append(x.tasks, g.record(t, nil))
		g.add(t)
	}
	if err := resolve(ctx, tx, e, x.now, []*graph{g}, true, around{}); err != nil {
		return err
	}
	g.rehomed(x.tasks[first:])
	g.collect(x, live)
	return nil
}

func pickClass(node, job drover.Class) drover.Class {
	if node != 0 {
		return node
	}
	return job
}

// check validates a draft and fills its defaults. A refusal is a *drover.Error;
// anything else is a fault.
func (e *Engine) check(ctx context.Context, c Caller, d *draft, of *offer, now lifecycle.Instant) error {
	var bad []drover.FieldError
	say := func(field, format string, args ...any) {
		bad = append(bad, drover.FieldError{Field: field, Message: fmt.Sprintf(format, args...)})
	}
	switch {
	case d.Pipeline == "" && d.Kind == "":
		say("pipeline", "name a pipeline, or the kind of a single task")
	case d.Pipeline != "" && d.Kind != "":
		say("kind", "pipeline and kind exclude each other; name one")
	}
	if d.Kind != "" {
		checkName(say, "kind", d.Kind)
		if d.Queue == "" {
			d.Queue = DefaultQueue
		}
		checkName(say, "queue", d.Queue)
		if d.Retry != nil {
			checkRetry(say, *d.Retry)
		}
		if d.Timeout < 0 || d.Timeout.Std() > farFuture {
			say("timeout", "must be positive and at most ten years")
		}
		if d.ScheduleToClose < 0 || d.ScheduleToClose.Std() > farFuture {
			say("schedule_to_close", "must be positive and at most ten years")
		}
		if d.Heartbeat != 0 && (d.Heartbeat.Std() < time.Second || d.Heartbeat.Std() > farFuture) {
			say("heartbeat", "must be at least 1s and at most ten years")
		}
		checkNeeds(say, &d.NewJob)
		if d.Circuit != "" && !dag.ValidName(d.Circuit) {
			say("circuit", "%q is no name for a circuit: a lower-case letter, then up to 62 lower-case letters, digits, _ and -", cut(d.Circuit))
		}
	} else {
		for _, f := range []struct {
			name string
			set  bool
		}{{"queue", d.Queue != ""}, {"retry", d.Retry != nil}, {"timeout", d.Timeout != 0}, {"schedule_to_close", d.ScheduleToClose != 0}, {"heartbeat", d.Heartbeat != 0}, {"circuit", d.Circuit != ""}, {"limits", len(d.Limits) > 0}, {"concurrency_key", d.ConcurrencyKey != ""}, {"resources", len(d.Resources) > 0}, {"worker_labels", len(d.WorkerLabels) > 0}} {
			if f.set {
				say(f.name, "only for a kind; a pipeline declares its own")
			}
		}
	}
	if d.Class == 0 {
		d.Class = drover.Normal
	}
	if d.Class < 1 || d.Class > 99 {
		say("class", "must be interactive, urgent, normal, batch or a number from 1 (first) to 99 (last)")
	}
	if len(d.Labels) > maxLabels {
		say("labels", "%d labels; at most %d", len(d.Labels), maxLabels)
	}
	for _, k := range sortedKeys(d.Labels) {
		if k == "" || len(k) > 63 || !clean(k) {
			say("labels", "key %q must have 1 to 63 bytes of valid UTF-8 without control characters", cut(k))
		}
		if v := d.Labels[k]; len(v) > 255 || !clean(v) {
			say("labels."+cut(k), "must have at most 255 bytes of valid UTF-8 without control characters")
		}
	}
	if k := d.IdempotencyKey; k != "" && (len(k) > maxKey || !clean(k) || strings.TrimSpace(k) == "") {
		say("idempotency_key", "must have 1 to %d bytes of valid UTF-8 without control characters, not only blanks", maxKey)
	}
	if !d.DueAt.IsZero() && lifecycle.At(d.DueAt) > now.Add(farFuture) {
		say("due_at", "is more than ten years away")
	}
	var late []drover.FieldError
	if !d.ExpiresAt.IsZero() && lifecycle.At(d.ExpiresAt) <= now {
		late = append(late, drover.FieldError{Field: "expires_at", Message: "has passed"})
	}
	if !d.ExpiresAt.IsZero() && !d.DueAt.IsZero() && !d.ExpiresAt.After(d.DueAt) {
		say("expires_at", "must be after due_at")
	}
	if at := drover.ID(d.ID).UnixMilli() * 1000; !d.ID.IsZero() && (at > int64(now.Add(clockSlack)) || at < int64(now.Add(-clockSlack))) {
		late = append(late, drover.FieldError{Field: "job_id", Message: "its time is more than a day from now; make it with the present time"})
	}
	if d.trace = d.Traceparent; d.trace != "" && !traceparent.MatchString(d.trace) {
		say("traceparent", "must be a W3C traceparent such as 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	}
	if len(bad) > 0 {
		return &drover.Error{Code: drover.CodeValidation, Detail: "the job is not valid", Fields: append(bad, late...)}
	}
	if len(late) > 0 {
		d.late = &drover.Error{Code: drover.CodeValidation, Detail: "the job is not valid", Fields: late}
	}
	if len(d.Input) > MaxPayload {
		return drover.Errorf(drover.CodePayloadTooLarge, "input has %d bytes; at most %d: store it elsewhere and pass its address", len(d.Input), MaxPayload)
	}
	if len(d.Input) > 0 && !json.Valid(d.Input) {
		return &drover.Error{Code: drover.CodeValidation, Detail: "the job is not valid", Fields: []drover.FieldError{{Field: "input", Message: "is not valid JSON"}}}
	}
	if bad := checkBuiltin(d.Kind, d.Input); len(bad) > 0 {
		return &drover.Error{Code: drover.CodeValidation, Detail: "the job is not valid", Fields: bad}
	}
	d.policy = policyIn(&d.NewJob).encode()
	d.fingerprint = fingerprint(&d.NewJob, d.policy)
	if d.Kind != "" {
		var err error
		if d.queue, err = e.findQueue(ctx, d.Queue, d.dry); err != nil { // a new one has nothing that could refuse the job
			return err
		}
		if d.late == nil {
			d.late = e.gate.Load().takesJobs(d.queue)
		}
		if err := e.intake(ctx, c, d); err != nil {
			return err
		}
		n := asksOf(&d.NewJob)
		k := waitingIn(store.LaneKey{Queue: d.queue, Tenant: c.Tenant, Kind: d.Kind, Circuit: d.Circuit}, n)
		if d.late, err = e.checkLimits(ctx, of, k, n, d.late); err != nil || d.dry {
			return err
		}
		d.lane, err = e.lane(ctx, k)
		return err
	}
	return e.checkPipeline(ctx, c, d, of)
}

// checkBuiltin says what is wrong with the input of a task that needs no worker
// of one's own; of other kinds, and of none, it knows nothing. The input is JSON.
func checkBuiltin(kind string, input json.RawMessage) (bad []drover.FieldError) {
	if len(builtin.Fields(kind)) == 0 {
		return nil
	}
	tree, err := builtin.Read(input)
	if err != nil { // twice the same key in it
		return []drover.FieldError{{Field: "input", Message: err.Error()}}
	}
	for _, p := range builtin.Check(kind, tree) {
		at := builtin.Problem{Path: append([]any{"input"}, p.Path...)}
		bad = append(bad, drover.FieldError{Field: strings.TrimSuffix(at.String(), ": "), Message: builtin.Problem{Keys: p.Keys, Message: p.Message}.String()})
	}
	return bad
}

func (e *Engine) checkPipeline(ctx context.Context, c Caller, d *draft, of *offer) error {
	name, v, pinned := strings.Cut(d.Pipeline, "@")
	version := 0
	if pinned {
		var err error
		if version, err = strconv.Atoi(v); err != nil || version < 1 || version > 1<<30 {
			return &drover.Error{Code: drover.CodeValidation, Detail: "the job is not valid",
				Fields: []drover.FieldError{{Field: "pipeline", Message: fmt.Sprintf("version %q must be a number from 1, as in %s@3", cut(v), cut(name))}}}
		}
	}
	var newest int32
	err := e.db.Read(ctx, func(tx store.Tx) (err error) {
		if !clean(name) {
			return nil
		}
		if d.plan, err = e.newest(ctx, tx, c.Tenant, name, int32(version)); err == nil && d.plan == nil && pinned {
			newest, err = store.PipelineNumber(ctx, tx, c.Tenant, name, 0)
		}
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("find pipeline %q: %w", cut(name), err)
	case d.plan == nil && newest > 0:
		return drover.Errorf(drover.CodeNotFound, "pipeline %q has no version %d", name, version)
	case d.plan == nil:
		return drover.Errorf(drover.CodeNotFound, "there is no pipeline %q; register it with 'drover pipeline apply FILE'", cut(name))
	}
	at, err := e.settleIn(ctx, d.plan, d.dry)
	if err != nil {
		return err
	}
	for i := range d.plan.Nodes {
		n := &d.plan.Nodes[i]
		if d.late != nil || n.Asks.Empty() {
			continue
		}
		if d.late, err = e.checkLimits(ctx, of, laneKeyOf(d.plan, n, at[i].queue), n.Asks, d.late); err != nil {
			return err
		}
		if d.late != nil {
			d.late.Detail = fmt.Sprintf("task %q: %s", n.Name, d.late.Detail)
		}
	}
	for _, at := range at {
		if g := e.gate.Load(); d.late == nil && g != nil {
			d.late = g.takesJobs(at.queue)
		}
	}
	if d.late == nil {
		d.late = e.gate.Load().intakeOfPlan(d.plan, at, d.Class)
	}
	if err := d.plan.CheckInput(d.Input); err != nil {
		return err
	}
	return nil
}

// place is where a node's tasks wait.
type place struct{ queue, lane int32 }

// settleIn finds the queue and lane of each node of a plan, once. In a dry run nothing
// is made, and lanes are of no use.
func (e *Engine) settleIn(ctx context.Context, p *compiled, dry bool) ([]place, error) {
	p.placing.Lock()
	defer p.placing.Unlock()
	if p.at != nil {
		return p.at, nil
	}
	at := make([]place, len(p.Nodes))
	for i := range p.Nodes {
		n := &p.Nodes[i]
		q, err := e.findQueue(ctx, n.Queue, dry)
		if err != nil {
			return nil, err
		}
		if at[i].queue = q; dry {
			continue
		}
		if at[i].lane, err = e.lane(ctx, laneKeyOf(p, n, q)); err != nil {
			return nil, err
		}
	}
	if !dry {
		p.at = at
	}
	return at, nil
}

var compacts = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// fingerprint is the same for two requests that ask for the same job. The input
// counts without its insignificant white space.
func fingerprint(n *drover.NewJob, policy []byte) []byte {
	b := make([]byte, 0, 256)
	part := func(s string) {
		b = append(strconv.AppendInt(b, int64(len(s)), 10), ':')
		b = append(append(b, s...), ',')
	}
	part(n.Pipeline)
	part(n.Kind)
	part(n.Queue)
	in := compacts.Get().(*bytes.Buffer)
	if in.Reset(); len(n.Input) > 0 {
		_ = json.Compact(in, n.Input) // checked before
	}
	b = append(strconv.AppendInt(b, int64(in.Len()), 10), ':')
	b = append(append(b, in.Bytes()...), ',')
	compacts.Put(in)
	for _, k := range sortedKeys(n.Labels) {
		part(k)
		part(n.Labels[k])
	}
	part(n.Class.String())
	part(strconv.FormatInt(int64(lifecycle.At(n.DueAt)), 10))
	part(strconv.FormatInt(int64(lifecycle.At(n.ExpiresAt)), 10))
	part(string(policy))
	if n.Circuit != "" { // a request without one is what it always was
		part(n.Circuit)
	}
	asks := asksOf(n)
	if more := asks.Encode(); more != "" {
		part("needs")
		part(more)
	}
	sum := sha256.Sum256(b)
	return sum[:16]
}

func sortedKeys(m map[string]string) []string {
	if len(m) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(m))
}

func checkName(say func(string, string, ...any), field, s string) {
	if s == "" || len(s) > maxName || !clean(s) || strings.TrimSpace(s) != s {
		say(field, "%q must have 1 to %d bytes of valid UTF-8 without control characters or outer blanks", cut(s), maxName)
	}
}

// clean reports whether s is valid UTF-8 without control characters.
func clean(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7F })
}

// cut shortens what a client sent for an error message.
func cut(s string) string {
	s = strings.ToValidUTF8(s, "�")
	if len(s) > 60 {
		s = strings.ToValidUTF8(s[:60], "") + "…"
	}
	return s
}

// traceID returns the W3C trace id of a job: the client's, or the job's id.
func traceID(id drover.JobID, traceparent string) string {
	return string(appendTraceID(nil, id, traceparent))
}

func appendTraceID(b []byte, id drover.JobID, traceparent string) []byte {
	if traceparent != "" { // checked before, or empty
		if parts := strings.Split(traceparent, "-"); len(parts) == 4 && len(parts[1]) == 32 {
			return append(b, parts[1]...)
		}
	}
	return hex.AppendEncode(b, id[:])
}
