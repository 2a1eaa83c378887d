package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// Limits of batch operations.
const (
	// MaxNamed bounds the tasks that a request names.
	MaxNamed = 1000
	// MaxLetters bounds the dead letters of one operation.
	MaxLetters = 200_000
	// MaxRate is the highest rate a second.
	MaxRate = 10_000

	itemsAtOnce   = 200 // of one transaction
	itemsShown    = 100 // in an operation
	itemsInline   = 100 // an operation of no more is carried out by its request
	batchesAtOnce = 20  // of one step
	canaryLook    = 500 * time.Millisecond
	longestBurst  = time.Second         // of a rate, after a pause
	keepBatches   = 30 * 24 * time.Hour // after their end
	maxItemDetail = 500
)

// BatchRequest says which dead letters to replay or close, and how.
type BatchRequest struct {
	Request
	// Tasks names them; otherwise Filter selects them.
	Tasks  []drover.TaskID
	Filter *LetterQuery
	// DryRun tells what would be done and does nothing.
	DryRun bool
	// Rate is how many a second at most; 0 is no limit.
	Rate float64
	// Canary is how many are replayed first; the others only when these succeed.
	Canary int
	// Input takes the place of each input; or Patch, a JSON merge patch (RFC 7396), is applied to it.
	Input, Patch json.RawMessage
	// Reopen replays also those that were closed.
	Reopen bool
}

// batchSpec is the stored part of a request.
type batchSpec struct {
	Tasks  []drover.TaskID `json:"tasks,omitempty"`
	Filter *LetterQuery    `json:"filter,omitempty"`
	Rate   float64         `json:"rate,omitempty"`
	Canary int             `json:"canary,omitempty"`
	Input  []byte          `json:"input,omitempty"` // not as JSON, which would be written anew
	Patch  []byte          `json:"patch,omitempty"`
	Reopen bool            `json:"reopen,omitempty"`
}

func (r *BatchRequest) check(action string) error {
	if err := checkRequest(&r.Request); err != nil {
		return err
	}
	e := &drover.Error{Code: drover.CodeValidation, Detail: "the request is not valid"}
	bad := func(field, format string, args ...any) {
		e.Fields = append(e.Fields, drover.FieldError{Field: field, Message: fmt.Sprintf(format, args...)})
	}
	switch {
	case len(r.Tasks) == 0 && r.Filter == nil:
		bad("task_ids", "say which dead letters: task_ids, or a filter (an empty one selects all)")
	case len(r.Tasks) > 0 && r.Filter != nil:
		bad("task_ids", "is not together with filter; send one of them")
	case len(r.Tasks) > MaxNamed:
		bad("task_ids", "has %d tasks; at most %d are taken, so send several requests or a filter", len(r.Tasks), MaxNamed)
	}
	if !(r.Rate >= 0 && r.Rate <= MaxRate) { // NaN is neither
		bad("rate", "must be from 0 to %d a second", MaxRate)
	}
	if r.Canary < 0 || r.Canary > MaxLetters {
		bad("canary", "must be from 0 to %d", MaxLetters)
	}
	if len(r.Input) > 0 && len(r.Patch) > 0 {
		bad("input", "is not together with patch; send one of them")
	}
	if action == drover.ActionClose && strings.TrimSpace(r.Reason) == "" {
		bad("reason", "is required: say why they stay as they are")
	}
	if f := r.Filter; f != nil && f.State != "" && (f.State != drover.LetterClosed || !r.Reopen) {
		bad("filter.state", "is not for a %s: it takes those that are open, and with reopen those that were closed", action)
	}
	if e.Fields != nil {
		return e
	}
	if err := checkInput("input", r.Input); err != nil {
		return err
	}
	return checkInput("patch", r.Patch)
}

// ReplayLetters replays dead letters, each as a new generation of its task. A
// few are replayed before it returns; many, or those with a rate or canaries, by
// BatchesOnce. A repeat of the request id returns the same operation.
func (e *Engine) ReplayLetters(ctx context.Context, c Caller, r BatchRequest) (drover.BatchOperation, error) {
	return e.batch(ctx, c, drover.ActionReplay, r)
}

// CloseLetters closes dead letters: they stay as they are, and leave the list of
// open ones.
func (e *Engine) CloseLetters(ctx context.Context, c Caller, r BatchRequest) (drover.BatchOperation, error) {
	r.Rate, r.Canary, r.Input, r.Patch, r.Reopen = 0, 0, nil, nil, false
	return e.batch(ctx, c, drover.ActionClose, r)
}

func (e *Engine) batch(ctx context.Context, c Caller, action string, r BatchRequest) (drover.BatchOperation, error) {
	if err := r.check(action); err != nil {
		return drover.BatchOperation{}, err
	}
	spec := batchSpec{Tasks: r.Tasks, Filter: r.Filter, Rate: r.Rate, Canary: r.Canary, Input: r.Input, Patch: r.Patch, Reopen: r.Reopen}
	b := store.BatchRow{Tenant: c.Tenant, Action: action, State: store.BatchRunning, Actor: c.Actor, Reason: r.Reason, RequestID: r.ID, Canary: int32(r.Canary)}
	var err error
	if b.Spec, err = json.Marshal(spec); err != nil {
		return drover.BatchOperation{}, fmt.Errorf("store the operation: %w", err)
	}
	if r.DryRun {
		out, err := e.dryRun(ctx, c, b, r)
		if err != nil {
			return out, fmt.Errorf("%s dead letters: %w", action, err)
		}
		return out, nil
	}
	id := drover.ID{}
	err = e.db.Write(ctx, func(tx store.Tx) error {
		b := b
		b.ID = e.db.NewID()
		b.CreatedAt = e.now()
		b.DueAt = b.CreatedAt
		first, err := e.firstBatch(ctx, tx, c, &b)
		if id = b.ID; err != nil || !first {
			return err
		}
		items, err := e.named(ctx, tx, c, r.Tasks)
		if err != nil {
			return err
		}
		if err := tx.Pipe(ctx, store.InsertItems(b.ID, items)); err != nil {
			return err
		}
		b.Total = int32(len(items))
		for _, i := range items {
			if i.State == store.ItemRefused {
				b.Refused++
			}
		}
		if r.Filter != nil {
			if err := e.snapshot(ctx, tx, c, &b, r); err != nil {
				return err
			}
		}
		if b.Refused == b.Total {
			b.State, b.EndedAt = store.BatchDone, b.CreatedAt
		}
		return tx.Pipe(ctx, store.InsertBatch(b))
	})
	if err != nil {
		return drover.BatchOperation{}, fmt.Errorf("%s dead letters: %w", action, err)
	}
	return e.carryOut(ctx, c, drover.OperationID(id))
}

// carryOut does an operation of few items at once, and returns how far it is.
func (e *Engine) carryOut(ctx context.Context, c Caller, id drover.OperationID) (drover.BatchOperation, error) {
	for range itemsInline {
		out, err := e.Operation(ctx, c, id)
		if err != nil || out.Ended() || out.Total > itemsInline || out.Rate > 0 || out.Canary > 0 {
			return out, err
		}
		n, err := e.batchStep(ctx, drover.ID(id), itemsAtOnce)
		if err == nil && n == 0 { // another goes on with it
			return e.Operation(ctx, c, id)
		}
		if err != nil { // it is stored: BatchesOnce goes on with it
			e.log.WarnContext(ctx, "operation not carried out at once; will go on", "operation_id", id.String(), "err", err)
			return e.Operation(ctx, c, id)
		}
	}
	return e.Operation(ctx, c, id)
}

// firstBatch records the request id of b. Where it was used before for the same,
// b gets the operation of then, and first is false.
func (e *Engine) firstBatch(ctx context.Context, tx store.Tx, c Caller, b *store.BatchRow) (first bool, err error) {
	if b.RequestID == "" {
		return true, nil
	}
	sum := sha256.Sum256(append([]byte(b.Reason+"\x00"), b.Spec...))
	is := " " + hex.EncodeToString(sum[:])
	action := "dead letters: " + b.Action
	was, on, err := store.Operation(ctx, tx, c.Tenant, b.RequestID, action, drover.OperationID(b.ID).String()+is, b.CreatedAt)
	if err != nil || was == "" {
		return err == nil, err
	}
	text, same := strings.CutSuffix(on, is)
	if was != action || !same {
		return false, drover.Errorf(drover.CodeIdempotencyReused, "request_id %q was used for another request; use a new one", b.RequestID)
	}
	id, err := drover.ParseOperationID(text)
	b.ID = drover.ID(id)
	return false, err
}

// named makes items of tasks: of each the dead letter of its last generation
// that ended badly.
func (e *Engine) named(ctx context.Context, tx store.Tx, c Caller, ids []drover.TaskID) ([]store.ItemRow, error) {
	var letters []store.LetterRow
	if err := tx.Pipe(ctx, store.LettersOfTasks(ids, &letters)); err != nil {
		return nil, err
	}
	last := make(map[drover.TaskID]int32, len(letters))
	for _, l := range letters {
		if l.Tenant == c.Tenant {
			last[l.Task] = max(last[l.Task], l.Generation)
		}
	}
	seen := make(map[drover.TaskID]bool, len(ids))
	var items []store.ItemRow
	for _, id := range ids {
		if seen[id] {
			continue
		}
		seen[id] = true
		i := store.ItemRow{N: int32(len(items) + 1), LetterKey: store.LetterKey{Task: id, Generation: last[id]}}
		if i.Generation == 0 {
			i.State, i.Code, i.Detail = store.ItemRefused, drover.CodeNotFound, fmt.Sprintf("there is no dead letter of task %s", id)
		}
		items = append(items, i)
	}
	return items, nil
}

// selected makes the filters of a request: those that are open, and where it
// says so those that were closed.
func (e *Engine) selected(ctx context.Context, tx store.Tx, c Caller, r BatchRequest) ([]store.LetterFilter, error) {
	q := *r.Filter
	list, err := e.filters(ctx, tx, c, q)
	if err != nil || !r.Reopen || q.State != "" {
		return list, err
	}
	q.State = drover.LetterClosed
	closed, err := e.filters(ctx, tx, c, q)
	return append(list, closed...), err
}

func tooMany() error {
	return &drover.Error{Code: drover.CodeValidation, Detail: "the request is not valid",
		Fields: []drover.FieldError{{Field: "filter", Message: fmt.Sprintf("selects more than %d dead letters; narrow it, for example with since and until", MaxLetters)}}}
}

func (e *Engine) snapshot(ctx context.Context, tx store.Tx, c Caller, b *store.BatchRow, r BatchRequest) error {
	filters, err := e.selected(ctx, tx, c, r)
	if err != nil {
		return err
	}
	for _, f := range filters {
		var n int64
		if err := tx.Pipe(ctx, store.SnapshotLetters(f, b.ID, b.Total, MaxLetters+1-b.Total, &n)); err != nil {
			return err
		}
		if b.Total += int32(n); b.Total > MaxLetters {
			return tooMany()
		}
	}
	return nil
}

// errDry undoes a dry run.
var errDry = errors.New("a dry run")

// dryRun carries the beginning of an operation out, looks what became of it,
// and undoes it.
func (e *Engine) dryRun(ctx context.Context, c Caller, b store.BatchRow, r BatchRequest) (out drover.BatchOperation, err error) {
	err = e.reopening(ctx, func(tx store.Tx) error {
		x := e.changes(e.now())
		b := b
		items, err := e.named(ctx, tx, c, r.Tasks)
		if err != nil {
			return err
		}
		b.Total = int32(len(items))
		items = items[:min(len(items), itemsShown)]
		if r.Filter != nil {
			filters, err := e.selected(ctx, tx, c, r)
			if err != nil {
				return err
			}
			for _, f := range filters {
				var n int64
				var rows []store.LetterRow
				if err := tx.Pipe(ctx, store.CountLetters(f, MaxLetters+1, &n), store.OldestLetters(f, itemsShown-len(items), &rows)); err != nil {
					return err
				}
				if b.Total += int32(n); b.Total > MaxLetters {
					return tooMany()
				}
				for _, l := range rows {
					items = append(items, store.ItemRow{N: int32(len(items) + 1), LetterKey: l.LetterKey})
				}
			}
		}
		if err := e.doItems(ctx, tx, x, &b, items); err != nil {
			return err
		}
		out = showBatch(&b)
		out.State, out.Waiting = drover.BatchDryRun, int(b.Total)
		for _, i := range items {
			if i.State == store.ItemRefused {
				out.Refused++
				out.Waiting--
			}
			i := showItem(&b, &i)
			if i.State == drover.ItemDone {
				i.State, i.NextGeneration = drover.ItemWaiting, 0
			}
			out.Items = append(out.Items, i)
		}
		return errDry
	})
	if errors.Is(err, errDry) {
		err = nil
	}
	return out, err
}

// BatchesOnce goes on with the operations that are due. It returns how many
// items it has done or refused.
func (e *Engine) BatchesOnce(ctx context.Context) (int, error) {
	var ids []drover.ID
	if err := e.db.Read(ctx, func(tx store.Tx) error {
		ids = nil
		return tx.Pipe(ctx, store.DueBatches(e.now(), batchesAtOnce, &ids))
	}); err != nil {
		return 0, fmt.Errorf("find operations: %w", err)
	}
	total := 0
	var errs []error
	for _, id := range ids {
		n, err := e.batchStep(ctx, id, itemsAtOnce)
		total += n
		errs = append(errs, err)
	}
	return total, errors.Join(errs...)
}

// batchStep does the next items of an operation, at most so many, in one
// transaction with the record of it: whoever holds the operation's row does
// them, and nobody a second time. Where that fails they are done one by one, and
// what fails by itself is refused.
func (e *Engine) batchStep(ctx context.Context, id drover.ID, most int) (int, error) {
	n, err := e.batchTry(ctx, id, most, nil)
	if err == nil || ctx.Err() != nil || passing(err) {
		return n, wrapBatch(id, err)
	}
	if most > 1 {
		done := 0
		for range most {
			n, err := e.batchStep(ctx, id, 1)
			done += n
			if err != nil || n == 0 {
				return done, err
			}
		}
		return done, nil
	}
	e.log.ErrorContext(ctx, "dead letter refused: its replay failed", "operation_id", drover.OperationID(id).String(), "err", err)
	n, err = e.batchTry(ctx, id, 1, drover.Errorf(drover.CodeInternal, "it failed in the server, whose log says how"))
	return n, wrapBatch(id, err)
}

func wrapBatch(id drover.ID, err error) error {
	if err != nil {
		return fmt.Errorf("go on with operation %s: %w", drover.OperationID(id), err)
	}
	return nil
}

// passing reports whether err says nothing about the items.
func passing(err error) bool {
	return store.IsUnknown(err) || errors.Is(err, store.ErrRetry) || errors.Is(err, store.ErrLocked) || errors.Is(err, store.ErrUnique) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// batchTry is one transaction of an operation. refuse, when set, is what its
// next item is refused with.
func (e *Engine) batchTry(ctx context.Context, id drover.ID, most int, refuse *drover.Error) (n int, err error) {
	var x *changes
	err = e.reopening(ctx, func(tx store.Tx) error {
		x, n = e.changes(e.now()), 0
		var rows []store.BatchRow
		if err := tx.Pipe(ctx, store.TryBatch(id, &rows)); err != nil || len(rows) == 0 || rows[0].DueAt > x.now {
			return err
		}
		b := &rows[0]
		var spec batchSpec
		if err := json.Unmarshal(b.Spec, &spec); err != nil {
			return err
		}
		if b.State == store.BatchWaitingCanary {
			if err := e.canaries(ctx, tx, x, b); err != nil {
				return err
			}
			return tx.Pipe(ctx, store.UpdateBatch(*b))
		}
		want := min(most, itemsAtOnce)
		if b.Canary > 0 {
			want = min(want, int(b.Canary-b.Done))
		}
		if spec.Rate > 0 {
			want = min(want, allowed(spec.Rate, b.DueAt, x.now))
		}
		var items []store.ItemRow
		if err := tx.Pipe(ctx, store.WaitingItems(id, want, &items)); err != nil {
			return err
		}
		if refuse != nil {
			for i := range items {
				items[i].State, items[i].Code, items[i].Detail = store.ItemRefused, refuse.Code, refuse.Detail
			}
		} else if err := e.doItems(ctx, tx, x, b, items); err != nil {
			return err
		}
		items = slices.DeleteFunc(items, func(i store.ItemRow) bool { return i.State == store.ItemWaiting })
		var noted int64
		if err := tx.Pipe(ctx, store.UpdateItems(id, items, &noted)); err != nil {
			return err
		}
		if n = len(items); noted != int64(n) {
			return store.ErrRetry
		}
		done := 0
		for _, i := range items {
			if i.State == store.ItemDone {
				done++
			}
		}
		b.Done += int32(done)
		b.Refused += int32(n - done)
		switch {
		case b.Done+b.Refused >= b.Total || n == 0 && want > 0:
			b.State, b.EndedAt = store.BatchDone, x.now
		case b.Canary > 0 && b.Done >= b.Canary:
			b.State, b.DueAt = store.BatchWaitingCanary, x.now.Add(canaryLook)
		case spec.Rate > 0:
			b.DueAt = max(b.DueAt, x.now.Add(-longestBurst)).Add(time.Duration(float64(n) / spec.Rate * float64(time.Second)))
		}
		return tx.Pipe(ctx, store.UpdateBatch(*b))
	})
	if err != nil {
		return 0, err
	}
	e.after(ctx, x)
	return n, nil
}

// allowed is how many items a rate allows now, of an operation that is due since.
func allowed(rate float64, due, now lifecycle.Instant) int {
	since := min(now.Sub(due), longestBurst)
	return 1 + int(math.Min(since.Seconds()*rate, MaxRate))
}

// doItems replays or closes items that wait and notes what became of each. Those
// that are put off still wait.
func (e *Engine) doItems(ctx context.Context, tx store.Tx, x *changes, b *store.BatchRow, items []store.ItemRow) error {
	if b.Action == drover.ActionClose {
		return closeItems(ctx, tx, x, b, items)
	}
	var spec batchSpec
	if err := json.Unmarshal(b.Spec, &spec); err != nil {
		return err
	}
	var list []*replaying
	var of []*store.ItemRow
	for k := range items {
		if i := &items[k]; i.State == store.ItemWaiting {
			list = append(list, &replaying{task: i.Task, generation: i.Generation, input: spec.Input, patch: spec.Patch, reopen: spec.Reopen})
			of = append(of, i)
		}
	}
	c := Caller{Tenant: b.Tenant, Actor: b.Actor}
	if err := e.replay(ctx, tx, x, c, Request{Reason: b.Reason}, b.ID, list); err != nil {
		return err
	}
	for k, r := range list {
		switch i := of[k]; {
		case r.refused != nil:
			i.State, i.Code, i.Detail = store.ItemRefused, r.refused.Code, cutAt(r.refused.Detail, maxItemDetail)
		case !r.later:
			i.State = store.ItemDone
		}
	}
	return x.save(ctx, tx)
}

// closeItems closes those dead letters that are open.
func closeItems(ctx context.Context, tx store.Tx, x *changes, b *store.BatchRow, items []store.ItemRow) error {
	var keys []store.LetterKey
	for _, i := range items {
		if i.State == store.ItemWaiting {
			keys = append(keys, i.LetterKey)
		}
	}
	slices.SortFunc(keys, compareLetters)
	letters := make(map[store.LetterKey]store.LetterRow, len(keys))
	if err := tx.Pipe(ctx, store.LockLetters(keys, letters)); err != nil {
		return err
	}
	keys = keys[:0]
	for k := range items {
		i := &items[k]
		if i.State != store.ItemWaiting {
			continue
		}
		l, ok := letters[i.LetterKey]
		i.State, i.Code = store.ItemRefused, drover.CodeInvalidTransition
		switch {
		case !ok || l.Tenant != b.Tenant:
			i.Code, i.Detail = drover.CodeNotFound, fmt.Sprintf("there is no dead letter of task %s in generation %d", i.Task, i.Generation)
		case l.State == store.LetterReplayed:
			i.Detail = fmt.Sprintf("generation %d of task %s of job %s was replayed already", i.Generation, i.Task, l.Job)
		case l.State == store.LetterClosed:
			i.Detail = cutAt(fmt.Sprintf("the dead letter of task %s was closed already by %s: %s", i.Task, somebody(l.Actor), l.Reason), maxItemDetail)
		default:
			i.State, i.Code = store.ItemDone, ""
			keys = append(keys, i.LetterKey)
		}
	}
	slices.SortFunc(keys, compareLetters)
	return tx.Pipe(ctx, store.MoveLetters(store.LetterMove{To: store.LetterClosed, At: x.now, Actor: b.Actor, Reason: b.Reason, Operation: b.ID}, keys))
}

// canaries looks how the first items of an operation have ended: all well, and
// the others follow; one of them badly, and it stops.
func (e *Engine) canaries(ctx context.Context, tx store.Tx, x *changes, b *store.BatchRow) error {
	var items []store.ItemRow
	if err := tx.Pipe(ctx, store.DoneItems(b.ID, int(b.Done), &items)); err != nil {
		return err
	}
	ids := make([]drover.TaskID, len(items))
	keys := make([]store.LetterKey, len(items))
	for k, i := range items {
		ids[k], keys[k] = i.Task, store.LetterKey{Task: i.Task, Generation: i.Generation + 1}
	}
	ends := make(map[store.LetterKey]drover.Status, len(items))
	var rows []store.TaskRow
	if err := tx.Pipe(ctx, store.EndsOfGenerations(keys, ends), store.ReadTasks(ids, &rows)); err != nil {
		return err
	}
	list, err := states(ctx, tx, rows)
	if err != nil {
		return err
	}
	live := make(map[drover.TaskID]bool, len(list))
	for _, s := range list {
		live[s.ID] = s.live != nil
	}
	waits := false
	for _, k := range keys {
		switch s, ended := ends[k]; {
		case ended && s != drover.Succeeded:
			b.State, b.EndedAt = store.BatchStopped, x.now
			b.Why = fmt.Sprintf("canary task %s ended %s in generation %d; the others were not replayed", k.Task, s, k.Generation)
			return nil
		case !ended && live[k.Task]:
			waits = true // one that neither ended nor lives is a map: its elements stand for it
		}
	}
	b.DueAt = x.now
	if waits {
		b.DueAt = x.now.Add(canaryLook)
		return nil
	}
	b.State, b.Canary = store.BatchRunning, 0
	return nil
}

// Operation returns a batch operation with its first items: all of them where
// they are few, otherwise those that were refused.
func (e *Engine) Operation(ctx context.Context, c Caller, id drover.OperationID) (out drover.BatchOperation, err error) {
	err = e.db.Read(ctx, func(tx store.Tx) error {
		b, err := oneBatch(ctx, tx, c, id)
		if err != nil {
			return err
		}
		var items []store.ItemRow
		if err := tx.Pipe(ctx, store.Items(b.ID, b.Total > itemsShown, 0, itemsShown, &items)); err != nil {
			return err
		}
		out = showBatch(&b)
		for _, i := range items {
			out.Items = append(out.Items, showItem(&b, &i))
		}
		return nil
	})
	if err != nil {
		return drover.BatchOperation{}, fmt.Errorf("read operation: %w", err)
	}
	return out, nil
}

func oneBatch(ctx context.Context, tx store.Tx, c Caller, id drover.OperationID) (store.BatchRow, error) {
	var rows []store.BatchRow
	if err := tx.Pipe(ctx, store.ReadBatch(drover.ID(id), &rows)); err != nil {
		return store.BatchRow{}, err
	}
	if len(rows) == 0 || rows[0].Tenant != c.Tenant {
		return store.BatchRow{}, notFound("operation", id)
	}
	return rows[0], nil
}

// Operations returns batch operations before one, newest first, without items.
func (e *Engine) Operations(ctx context.Context, c Caller, before drover.OperationID, limit int) (out []drover.BatchOperation, err error) {
	err = e.db.Read(ctx, func(tx store.Tx) error {
		if before.IsZero() {
			before = drover.OperationID(store.LastID)
		}
		var rows []store.BatchRow
		if err := tx.Pipe(ctx, store.Batches(c.Tenant, drover.ID(before), pageSize(limit), &rows)); err != nil {
			return err
		}
		out = make([]drover.BatchOperation, len(rows))
		for i := range rows {
			out[i] = showBatch(&rows[i])
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list operations: %w", err)
	}
	return out, nil
}

// OperationItems returns items of an operation after the one numbered after, in
// order: all, or only those that were refused.
func (e *Engine) OperationItems(ctx context.Context, c Caller, id drover.OperationID, refused bool, after, limit int) (out []drover.OperationItem, err error) {
	err = e.db.Read(ctx, func(tx store.Tx) error {
		b, err := oneBatch(ctx, tx, c, id)
		if err != nil {
			return err
		}
		var items []store.ItemRow
		if err := tx.Pipe(ctx, store.Items(b.ID, refused, int32(after), pageSize(limit), &items)); err != nil {
			return err
		}
		out = make([]drover.OperationItem, len(items))
		for k := range items {
			out[k] = showItem(&b, &items[k])
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list items: %w", err)
	}
	return out, nil
}

// CancelOperation stops a batch operation. What it has done stays done.
// Cancelling one that has ended changes nothing.
func (e *Engine) CancelOperation(ctx context.Context, c Caller, id drover.OperationID, r Request) (drover.BatchOperation, error) {
	if err := checkRequest(&r); err != nil {
		return drover.BatchOperation{}, err
	}
	err := e.db.Write(ctx, func(tx store.Tx) error {
		if _, err := oneBatch(ctx, tx, c, id); err != nil {
			return err
		}
		if done, err := e.once(ctx, tx, c, r, "cancel", id.String(), e.now()); err != nil || done {
			return err
		}
		var rows []store.BatchRow
		if err := tx.Pipe(ctx, store.LockBatch(drover.ID(id), &rows)); err != nil || len(rows) == 0 || rows[0].EndedAt != 0 {
			return err
		}
		b := rows[0]
		b.State, b.EndedAt, b.Why = store.BatchStopped, e.now(), "cancelled by "+somebody(c.Actor)
		if r.Reason != "" {
			b.Why += ": " + r.Reason
		}
		return tx.Pipe(ctx, store.UpdateBatch(b))
	})
	if err != nil {
		return drover.BatchOperation{}, fmt.Errorf("cancel operation: %w", err)
	}
	return e.Operation(ctx, c, id)
}

// forgetBatches deletes operations that ended long ago.
func (e *Engine) forgetBatches(ctx context.Context) error {
	return e.db.Write(ctx, func(tx store.Tx) error {
		var ids []drover.ID
		if err := tx.Pipe(ctx, store.OldBatches(e.now().Add(-keepBatches), batchesAtOnce, &ids)); err != nil {
			return err
		}
		return tx.Pipe(ctx, store.DeleteBatches(ids)...)
	})
}

var batchStates = map[store.BatchState]string{store.BatchRunning: drover.BatchRunning, store.BatchWaitingCanary: drover.BatchWaitingCanary, store.BatchDone: drover.BatchDone, store.BatchStopped: drover.BatchStopped}

var itemStates = map[store.ItemState]string{store.ItemWaiting: drover.ItemWaiting, store.ItemDone: drover.ItemDone, store.ItemRefused: drover.ItemRefused}

func showBatch(b *store.BatchRow) drover.BatchOperation {
	var spec batchSpec
	_ = json.Unmarshal(b.Spec, &spec) // what cannot be read is shown as empty
	return drover.BatchOperation{ID: drover.OperationID(b.ID), Action: b.Action, State: batchStates[b.State], Why: b.Why, Actor: b.Actor, Reason: b.Reason, RequestID: b.RequestID,
		Total: int(b.Total), Done: int(b.Done), Refused: int(b.Refused), Waiting: int(b.Total - b.Done - b.Refused), Rate: spec.Rate, Canary: spec.Canary,
		CreatedAt: b.CreatedAt.Time(), EndedAt: b.EndedAt.Time()}
}

func showItem(b *store.BatchRow, i *store.ItemRow) drover.OperationItem {
	out := drover.OperationItem{Number: int(i.N), TaskID: i.Task, Generation: int(i.Generation), State: itemStates[i.State], Code: i.Code, Detail: i.Detail}
	if i.State == store.ItemDone && b.Action == drover.ActionReplay {
		out.NextGeneration = int(i.Generation) + 1
	}
	return out
}
