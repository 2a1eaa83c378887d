package store

import (
	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store/driver"
)

// BatchState says how far a batch operation is; it is stored, never renumber.
type BatchState int16

// The states of a batch operation.
const (
	BatchRunning       BatchState = 1
	BatchWaitingCanary BatchState = 2
	BatchDone          BatchState = 3
	BatchStopped       BatchState = 4
)

// BatchRow is a row of batch_operations.
type BatchRow struct {
	ID            drover.ID
	Tenant        int32
	Action        string
	State         BatchState
	Actor, Reason string
	RequestID     string
	Spec          []byte
	Why           string
	Total         int32
	Done, Refused int32
	Canary        int32
	DueAt         instant
	CreatedAt     instant
	EndedAt       instant
}

// ItemState says what has become of an item of a batch operation; it is stored.
type ItemState int16

// The states of an item.
const (
	ItemWaiting ItemState = 0
	ItemDone    ItemState = 1
	ItemRefused ItemState = 2
)

// ItemRow is a row of batch_items.
type ItemRow struct {
	N int32
	LetterKey
	State  ItemState
	Code   drover.Code
	Detail string
}

const batchCols = "o.id, o.tenant, o.action, o.state, o.actor, o.reason, o.request_id, o.spec, o.why, o.total, o.done, o.refused, o.canary, o.due_at, o.created_at, o.ended_at"

const itemCols = "i.n, i.task_id, i.generation, i.state, i.code, i.detail"

var (
	insertBatch = driver.New("insert batch operation", "",
		"INSERT INTO batch_operations (id, tenant, action, state, actor, reason, request_id, spec, why, total, done, refused, canary, due_at, created_at, ended_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)")
	updateBatch = driver.New("update batch operation", "",
		"UPDATE batch_operations SET state = $2, why = $3, total = $4, done = $5, refused = $6, canary = $7, due_at = $8, ended_at = $9 WHERE id = $1")
	readBatch   = driver.New("read batch operation", "", "SELECT "+batchCols+" FROM batch_operations o WHERE o.id = $1")
	lockBatch   = driver.New("lock batch operation", "", "SELECT "+batchCols+" FROM batch_operations o WHERE o.id = $1 {for no key update of o}")
	tryBatch    = driver.New("try to lock batch operation", "", "SELECT "+batchCols+" FROM batch_operations o WHERE o.id = $1 AND o.state IN (1, 2) {for no key update of o skip locked}")
	dueBatches  = driver.New("batch operations that are due", "", "SELECT o.id FROM batch_operations o WHERE o.due_at <= $1 AND o.state IN (1, 2) ORDER BY o.due_at, o.id LIMIT $2")
	listBatches = driver.New("batch operations, newest first", "", "SELECT "+batchCols+" FROM batch_operations o WHERE o.tenant = $1 AND o.id < $2 ORDER BY o.id DESC LIMIT $3")
	insertItems = driver.New("insert batch items", "operation uuid, n int, task_id uuid, generation int, state smallint, code text, detail text",
		"INSERT INTO batch_items (operation, n, task_id, generation, state, code, detail) SELECT {operation}, {n}, {task_id}, {generation}, {state}, {code}, {detail} {from}")
	updateItems = driver.New("update batch items", "operation uuid, n int, state smallint, code text, detail text",
		"UPDATE batch_items SET state = {state}, code = {code}, detail = {detail} {from} WHERE operation = {operation} AND batch_items.n = {n} AND batch_items.state < 1")
	waitingItems = driver.New("batch items that wait", "", "SELECT "+itemCols+" FROM batch_items i WHERE i.operation = $1 AND i.state = 0 ORDER BY i.n LIMIT $2")
	refusedItems = driver.New("batch items that were refused", "", "SELECT "+itemCols+" FROM batch_items i WHERE i.operation = $1 AND i.state = 2 AND i.n > $2 ORDER BY i.n LIMIT $3")
	listItems    = driver.New("batch items", "", "SELECT "+itemCols+" FROM batch_items i WHERE i.operation = $1 AND i.n > $2 ORDER BY i.n LIMIT $3")
	doneItems    = driver.New("batch items that are done", "", "SELECT "+itemCols+" FROM batch_items i WHERE i.operation = $1 AND i.state = 1 ORDER BY i.n LIMIT $2")

	oldBatches   = driver.New("batch operations that are over", "", "SELECT o.id FROM batch_operations o WHERE o.state IN (3, 4) AND o.ended_at < $1 ORDER BY o.ended_at LIMIT $2")
	deleteItems  = driver.New("delete batch items", "id uuid", "DELETE FROM batch_items {using} WHERE operation = {id}")
	deleteBatch  = driver.New("delete batch operations", "id uuid", "DELETE FROM batch_operations {using} WHERE id = {id} AND ended_at > 0")
	taskFinalsOf = driver.New("read ends of generations", "task_id uuid, generation int",
		"SELECT f.task_id, f.generation, f.status FROM {rows} JOIN task_final f ON f.task_id = {task_id} AND f.generation = {generation}")
)

// InsertBatch stores a new batch operation.
func InsertBatch(b BatchRow) Stmt {
	return Stmt{Text: insertBatch, Args: []any{[16]byte(b.ID), b.Tenant, b.Action, int16(b.State), b.Actor, b.Reason, b.RequestID, some(b.Spec), b.Why, b.Total, b.Done, b.Refused, b.Canary,
		int64(b.DueAt), int64(b.CreatedAt), int64(b.EndedAt)}}
}

// UpdateBatch stores how far an operation is that is locked.
func UpdateBatch(b BatchRow) Stmt {
	return Stmt{Text: updateBatch, Args: []any{[16]byte(b.ID), int16(b.State), b.Why, b.Total, b.Done, b.Refused, b.Canary, int64(b.DueAt), int64(b.EndedAt)}}
}

func scanBatch(r driver.Row) (b BatchRow, err error) {
	var state int16
	err = r.Scan((*[16]byte)(&b.ID), &b.Tenant, &b.Action, &state, &b.Actor, &b.Reason, &b.RequestID, &b.Spec, &b.Why, &b.Total, &b.Done, &b.Refused, &b.Canary,
		(*int64)(&b.DueAt), (*int64)(&b.CreatedAt), (*int64)(&b.EndedAt))
	b.State = BatchState(state)
	return b, err
}

// ReadBatch reads a batch operation.
func ReadBatch(id drover.ID, rows *[]BatchRow) Stmt {
	return Stmt{Text: readBatch, Args: []any{[16]byte(id)}, Scan: into(rows, scanBatch)}
}

// LockBatch locks and reads a batch operation.
func LockBatch(id drover.ID, rows *[]BatchRow) Stmt {
	return Stmt{Text: lockBatch, Args: []any{[16]byte(id)}, Scan: into(rows, scanBatch)}
}

// TryBatch is LockBatch for one that goes on, and gives no row while another
// holds it.
func TryBatch(id drover.ID, rows *[]BatchRow) Stmt {
	return Stmt{Text: tryBatch, Args: []any{[16]byte(id)}, Scan: into(rows, scanBatch)}
}

// DueBatches names operations that go on now.
func DueBatches(now instant, n int, ids *[]drover.ID) Stmt {
	return Stmt{Text: dueBatches, Args: []any{int64(now), int64(n)}, Scan: into(ids, scanID)}
}

func scanID(r driver.Row) (id drover.ID, err error) {
	err = r.Scan((*[16]byte)(&id))
	return id, err
}

// Batches reads operations of a tenant before one, newest first.
func Batches(tenant int32, before drover.ID, n int, rows *[]BatchRow) Stmt {
	return Stmt{Text: listBatches, Args: []any{tenant, [16]byte(before), int64(n)}, Scan: into(rows, scanBatch)}
}

// SnapshotLetters makes items of the dead letters of a filter, oldest first,
// numbered after the number from, and counts them.
func SnapshotLetters(f LetterFilter, operation drover.ID, from, most int32, n *int64) Stmt {
	s := snapLetters.stmt(f, [16]byte(operation), from, int64(most))
	s.Affected = n
	return s
}

// InsertItems stores items of an operation.
func InsertItems(operation drover.ID, rows []ItemRow) Stmt {
	type r = ItemRow
	return Stmt{Text: insertItems, Cols: []any{col(rows, func(*r) [16]byte { return [16]byte(operation) }), col(rows, func(x *r) int32 { return x.N }), col(rows, func(x *r) [16]byte { return [16]byte(x.Task) }),
		col(rows, func(x *r) int32 { return x.Generation }), col(rows, func(x *r) int16 { return int16(x.State) }), col(rows, func(x *r) string { return string(x.Code) }), col(rows, func(x *r) string { return x.Detail })}}
}

// UpdateItems stores what became of items that waited, and counts them.
func UpdateItems(operation drover.ID, rows []ItemRow, n *int64) Stmt {
	type r = ItemRow
	return Stmt{Text: updateItems, Affected: n, Cols: []any{col(rows, func(*r) [16]byte { return [16]byte(operation) }), col(rows, func(x *r) int32 { return x.N }),
		col(rows, func(x *r) int16 { return int16(x.State) }), col(rows, func(x *r) string { return string(x.Code) }), col(rows, func(x *r) string { return x.Detail })}}
}

func scanItem(r driver.Row) (i ItemRow, err error) {
	var state int16
	err = r.Scan(&i.N, (*[16]byte)(&i.Task), &i.Generation, &state, (*string)(&i.Code), &i.Detail)
	i.State = ItemState(state)
	return i, err
}

// WaitingItems reads the first items of an operation that wait.
func WaitingItems(operation drover.ID, n int, rows *[]ItemRow) Stmt {
	return Stmt{Text: waitingItems, Args: []any{[16]byte(operation), int64(n)}, Scan: into(rows, scanItem)}
}

// DoneItems reads the first items of an operation that are done.
func DoneItems(operation drover.ID, n int, rows *[]ItemRow) Stmt {
	return Stmt{Text: doneItems, Args: []any{[16]byte(operation), int64(n)}, Scan: into(rows, scanItem)}
}

// Items reads items of an operation after the one numbered after, all or only
// those that were refused.
func Items(operation drover.ID, refused bool, after int32, n int, rows *[]ItemRow) Stmt {
	s := Stmt{Text: listItems, Args: []any{[16]byte(operation), after, int64(n)}, Scan: into(rows, scanItem)}
	if refused {
		s.Text = refusedItems
	}
	return s
}

// EndsOfGenerations reads the statuses in which generations ended.
func EndsOfGenerations(keys []LetterKey, ends map[LetterKey]drover.Status) Stmt {
	return Stmt{Text: taskFinalsOf, Cols: letterKeys(keys), Scan: func(r driver.Row) error {
		var k LetterKey
		var status int16
		err := r.Scan((*[16]byte)(&k.Task), &k.Generation, &status)
		ends[k] = drover.Status(status)
		return err
	}}
}

// OldBatches names operations that ended before a time.
func OldBatches(before instant, n int, ids *[]drover.ID) Stmt {
	return Stmt{Text: oldBatches, Args: []any{int64(before), int64(n)}, Scan: into(ids, scanID)}
}

// DeleteBatches removes operations that are over, with their items.
func DeleteBatches(ids []drover.ID) []Stmt {
	c := []any{col(ids, func(id *drover.ID) [16]byte { return [16]byte(*id) })}
	return []Stmt{{Text: deleteItems, Cols: c}, {Text: deleteBatch, Cols: c}}
}
