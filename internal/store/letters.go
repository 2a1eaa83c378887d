package store

import (
	"regexp"
	"strconv"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store/driver"
)

// LetterState says what has become of a dead letter; it is stored, never renumber.
type LetterState int16

// The states of a dead letter.
const (
	LetterOpen     LetterState = 1
	LetterReplayed LetterState = 2
	LetterClosed   LetterState = 3
)

// LetterKey names a dead letter: a task in a generation.
type LetterKey struct {
	Task       drover.TaskID
	Generation int32
}

// LetterRow is a row of dead_letters.
type LetterRow struct {
	LetterKey
	Tenant         int32
	Job            drover.JobID
	Status         drover.Status
	Pipeline, Node string
	Index          int32
	Kind           string
	Queue          int32
	Fingerprint    string
	ErrorClass     drover.ErrorClass
	ErrorType      string
	Message        string
	Attempt        int32
	Losses         int32
	Session        int64
	At             instant

	State     LetterState
	StateAt   instant
	Actor     string
	Reason    string
	Operation drover.ID
}

// LetterPlace is where a list of dead letters stands: they are ordered by when
// they ended.
type LetterPlace struct {
	At instant
	LetterKey
}

// LastLetter comes after every dead letter.
var LastLetter = LetterPlace{At: 1<<63 - 1, LetterKey: LetterKey{Task: drover.TaskID(LastID), Generation: 1<<31 - 1}}

// LetterFilter selects dead letters of a tenant; what is empty does not matter.
type LetterFilter struct {
	Tenant       int32
	State        LetterState
	Since, Until instant // Until is not in it; zero is no end
	Kind         string
	Pipeline     string
	Queue        int32
	ErrorClass   drover.ErrorClass
	Status       drover.Status
	Fingerprint  string
	Job          drover.JobID
}

const letterCols = "d.task_id, d.generation, d.tenant, d.job_id, d.status, d.pipeline, d.node, d.idx, d.kind, d.queue, d.fingerprint, d.error_class, d.error_type, d.message," +
	" d.attempt, d.losses, d.session_id, d.at, d.state, d.state_at, d.actor, d.reason, d.operation"

// matching limits a statement to the dead letters of a filter, whose arguments
// are the first nine.
const matching = "d.tenant = $1 AND d.state = $2 AND d.at >= $3 AND d.at <= $4 AND ($5 = '' OR d.kind = $5) AND ($6 = '' OR d.pipeline = $6)" +
	" AND ($7 = 0 OR d.queue = $7) AND ($8 = '' OR d.error_class = $8) AND ($9 = 0 OR d.status = $9)"

// letterTexts are a statement in each of its ways to the rows: an index for each.
type letterTexts struct{ all, group, job *driver.Text }

// byLetters writes a statement. Its further arguments are @1, @2, …
func byLetters(name, head, tail string) letterTexts {
	text := func(name, by string, last int) *driver.Text {
		at := func(s string) string {
			return further.ReplaceAllStringFunc(s, func(p string) string {
				n, _ := strconv.Atoi(p[1:])
				return "$" + strconv.Itoa(last+n)
			})
		}
		return driver.New(name, "", at(head)+matching+by+at(tail))
	}
	return letterTexts{
		all:   text(name, "", 9),
		group: text(name+" of a group", " AND d.fingerprint = $10", 10),
		job:   text(name+" of a job", " AND d.job_id = $10 AND ($11 = '' OR d.fingerprint = $11)", 11),
	}
}

var further = regexp.MustCompile(`@\d+`)

func (l *letterTexts) stmt(f LetterFilter, more ...any) Stmt {
	until := int64(f.Until) - 1
	if f.Until == 0 {
		until = 1<<63 - 1
	}
	args := []any{f.Tenant, int16(f.State), int64(f.Since), until, f.Kind, f.Pipeline, f.Queue, string(f.ErrorClass), int32(f.Status)}
	text := l.all
	switch {
	case !f.Job.IsZero(): // the fewest, whatever else is asked for
		text, args = l.job, append(args, [16]byte(f.Job), f.Fingerprint)
	case f.Fingerprint != "":
		text, args = l.group, append(args, f.Fingerprint)
	}
	return Stmt{Text: text, Args: append(args, more...)}
}

var (
	letterInsertCols = "task_id uuid, generation int, tenant int, job_id uuid, status smallint, pipeline text, node text, idx int, kind text, queue int, fingerprint text, error_class text, error_type text, message text," +
		" attempt int, losses int, session_id bigint, at bigint, state smallint, state_at bigint, actor text, reason text, operation uuid"
	insertLetters = driver.New("insert dead letters", letterInsertCols,
		"INSERT INTO dead_letters (task_id, generation, tenant, job_id, status, pipeline, node, idx, kind, queue, fingerprint, error_class, error_type, message, attempt, losses, session_id, at, state, state_at, actor, reason, operation)"+
			" SELECT {task_id}, {generation}, {tenant}, {job_id}, {status}, {pipeline}, {node}, {idx}, {kind}, {queue}, {fingerprint}, {error_class}, {error_type}, {message}, {attempt}, {losses}, {session_id}, {at}, {state}, {state_at}, {actor}, {reason}, {operation} {from}"+
			" WHERE true ON CONFLICT DO NOTHING")

	listLetters = byLetters("dead letters", "SELECT "+letterCols+" FROM dead_letters d WHERE ",
		" AND (d.at, d.task_id, d.generation) < (@1, @2, @3) ORDER BY d.at DESC, d.task_id DESC, d.generation DESC LIMIT @4")
	countLetters = byLetters("count dead letters", "SELECT count(*) FROM (SELECT 1 FROM dead_letters d WHERE ", " LIMIT @1) q")
	groupLetters = byLetters("groups of dead letters", "SELECT d.fingerprint, count(*), min(d.at), max(d.at) FROM dead_letters d WHERE ",
		" GROUP BY d.fingerprint HAVING (count(*), d.fingerprint) < (@1, @2) ORDER BY count(*) DESC, d.fingerprint DESC LIMIT @3")
	snapLetters = byLetters("snapshot dead letters",
		"INSERT INTO batch_items (operation, n, task_id, generation, state, code, detail) SELECT @1, @2 + row_number() OVER (ORDER BY d.at, d.task_id, d.generation), d.task_id, d.generation, 0, '', '' FROM dead_letters d WHERE ",
		" ORDER BY d.at, d.task_id, d.generation LIMIT @3")
	oldLetters = byLetters("oldest dead letters", "SELECT "+letterCols+" FROM dead_letters d WHERE ", " ORDER BY d.at, d.task_id, d.generation LIMIT @1")

	newestOfGroups = driver.New("newest dead letters of groups", "fingerprint text",
		"SELECT "+letterCols+" FROM {rows} JOIN {pg:LATERAL} (SELECT x.* FROM dead_letters x WHERE x.tenant = $1 AND x.state = $2 AND x.fingerprint = {fingerprint} ORDER BY x.at DESC, x.task_id DESC, x.generation DESC LIMIT 1) d ON 1 = 1")
	lettersOfTasks = driver.New("dead letters of tasks", "id uuid", "SELECT "+letterCols+" FROM {rows} JOIN dead_letters d ON d.task_id = {id} ORDER BY d.task_id, d.generation")
	lockLetters    = driver.New("lock dead letters", "task_id uuid, generation int",
		"SELECT "+letterCols+" FROM {rows} JOIN dead_letters d ON d.task_id = {task_id} AND d.generation = {generation} {for no key update of d}")
	moveLetters = driver.New("change dead letters", "task_id uuid, generation int",
		"UPDATE dead_letters SET state = $1, state_at = $2, actor = $3, reason = $4, operation = $5 {from} WHERE task_id = {task_id} AND generation = {generation}")

	// Of the ends that have no row: a server of schema 1 makes none. The keys of
	// those looked at say where the look goes on.
	badEnds = driver.New("ends that may be dead letters", "",
		"SELECT f.tenant, f.status, f.task_id, f.generation, f.job_id, f.attempt, f.losses, f.session_id, f.finished_at, f.error,"+
			" CASE WHEN EXISTS (SELECT 1 FROM dead_letters d WHERE d.task_id = f.task_id AND d.generation = f.generation) OR NOT EXISTS (SELECT 1 FROM jobs j WHERE j.id = f.job_id) THEN 1 ELSE 0 END"+
			" FROM task_final f WHERE (f.tenant, f.status, f.task_id) > ($1, $2, $3) AND f.status IN (9, 12) ORDER BY f.tenant, f.status, f.task_id LIMIT $4")
	openLetters = driver.New("open dead letters of everybody", "",
		"SELECT d.task_id, d.generation FROM dead_letters d WHERE (d.task_id, d.generation) > ($1, $2) AND d.state <> 2 ORDER BY d.task_id, d.generation LIMIT $3")

	finalsOfTask = driver.New("generations of a task", "",
		"SELECT f.generation, f.status, f.attempt, f.losses, f.lease_version, f.session_id, f.ready_at, f.queued_at, f.claimed_at, f.finished_at, f.waits, f.error FROM task_final f WHERE f.task_id = $1 ORDER BY f.generation DESC LIMIT $2")
	inputGenerations = driver.New("edited inputs of a task", "", "SELECT i.generation FROM task_inputs i WHERE i.task_id = $1 ORDER BY i.generation DESC LIMIT $2")
)

// InsertLetters files dead letters; those that are there stay as they are.
func InsertLetters(rows []LetterRow) Stmt {
	type r = LetterRow
	return Stmt{Text: insertLetters, Cols: []any{
		col(rows, func(x *r) [16]byte { return [16]byte(x.Task) }), col(rows, func(x *r) int32 { return x.Generation }), col(rows, func(x *r) int32 { return x.Tenant }),
		col(rows, func(x *r) [16]byte { return [16]byte(x.Job) }), col(rows, func(x *r) int16 { return int16(x.Status) }), col(rows, func(x *r) string { return x.Pipeline }),
		col(rows, func(x *r) string { return x.Node }), col(rows, func(x *r) int32 { return x.Index }), col(rows, func(x *r) string { return x.Kind }),
		col(rows, func(x *r) int32 { return x.Queue }), col(rows, func(x *r) string { return x.Fingerprint }), col(rows, func(x *r) string { return string(x.ErrorClass) }),
		col(rows, func(x *r) string { return x.ErrorType }), col(rows, func(x *r) string { return x.Message }), col(rows, func(x *r) int32 { return x.Attempt }),
		col(rows, func(x *r) int32 { return x.Losses }), col(rows, func(x *r) int64 { return x.Session }), col(rows, func(x *r) int64 { return int64(x.At) }),
		col(rows, func(x *r) int16 { return int16(x.State) }), col(rows, func(x *r) int64 { return int64(x.StateAt) }), col(rows, func(x *r) string { return x.Actor }),
		col(rows, func(x *r) string { return x.Reason }), col(rows, func(x *r) [16]byte { return [16]byte(x.Operation) }),
	}}
}

func scanLetter(r driver.Row) (d LetterRow, err error) {
	var status, state int16
	err = r.Scan((*[16]byte)(&d.Task), &d.Generation, &d.Tenant, (*[16]byte)(&d.Job), &status, &d.Pipeline, &d.Node, &d.Index, &d.Kind, &d.Queue, &d.Fingerprint, (*string)(&d.ErrorClass), &d.ErrorType, &d.Message,
		&d.Attempt, &d.Losses, &d.Session, (*int64)(&d.At), &state, (*int64)(&d.StateAt), &d.Actor, &d.Reason, (*[16]byte)(&d.Operation))
	d.Status, d.State = drover.Status(status), LetterState(state)
	return d, err
}

// Letters reads dead letters of one state before a place, newest first.
func Letters(f LetterFilter, before LetterPlace, n int, rows *[]LetterRow) Stmt {
	s := listLetters.stmt(f, int64(before.At), [16]byte(before.Task), before.Generation, int64(n))
	s.Scan = into(rows, scanLetter)
	return s
}

// OldestLetters reads dead letters of one state, oldest first.
func OldestLetters(f LetterFilter, n int, rows *[]LetterRow) Stmt {
	s := oldLetters.stmt(f, int64(n))
	s.Scan = into(rows, scanLetter)
	return s
}

// CountLetters counts dead letters up to most.
func CountLetters(f LetterFilter, most int, n *int64) Stmt {
	s := countLetters.stmt(f, int64(most))
	s.Scan = func(r driver.Row) error { return r.Scan(n) }
	return s
}

// LetterGroup is what dead letters of one fingerprint have in common.
type LetterGroup struct {
	Fingerprint string
	Count       int64
	First, Last instant
}

// LetterGroups reads groups of dead letters of one state, the largest first,
// that come after a group.
func LetterGroups(f LetterFilter, after LetterGroup, n int, rows *[]LetterGroup) Stmt {
	s := groupLetters.stmt(f, after.Count, after.Fingerprint, int64(n))
	s.Scan = into(rows, func(r driver.Row) (g LetterGroup, err error) {
		err = r.Scan(&g.Fingerprint, &g.Count, (*int64)(&g.First), (*int64)(&g.Last))
		return g, err
	})
	return s
}

// NewestOfGroups reads the newest dead letter of each group.
func NewestOfGroups(tenant int32, state LetterState, fingerprints []string, rows *[]LetterRow) Stmt {
	return Stmt{Text: newestOfGroups, Args: []any{tenant, int16(state)}, Cols: []any{fingerprints}, Scan: into(rows, scanLetter)}
}

// LettersOfTasks reads all dead letters of tasks, by task and generation.
func LettersOfTasks(ids []drover.TaskID, rows *[]LetterRow) Stmt {
	return Stmt{Text: lettersOfTasks, Cols: taskIDs(ids), Scan: into(rows, scanLetter)}
}

func letterKeys(keys []LetterKey) []any {
	return []any{col(keys, func(k *LetterKey) [16]byte { return [16]byte(k.Task) }), col(keys, func(k *LetterKey) int32 { return k.Generation })}
}

// LockLetters locks and reads dead letters; keys must be sorted.
func LockLetters(keys []LetterKey, rows map[LetterKey]LetterRow) Stmt {
	return Stmt{Text: lockLetters, Cols: letterKeys(keys), Scan: func(r driver.Row) error {
		d, err := scanLetter(r)
		rows[d.LetterKey] = d
		return err
	}}
}

// LetterMove is a change of the state of dead letters, and who made it.
type LetterMove struct {
	To            LetterState
	At            instant
	Actor, Reason string
	Operation     drover.ID
}

// MoveLetters changes dead letters that are locked.
func MoveLetters(m LetterMove, keys []LetterKey) Stmt {
	return Stmt{Text: moveLetters, Args: []any{int16(m.To), int64(m.At), m.Actor, m.Reason, [16]byte(m.Operation)}, Cols: letterKeys(keys)}
}

// BadEnd is a generation that ended FAILED or as DEAD_LETTER.
type BadEnd struct {
	FinalRow
	Filed bool // it has its dead letter, or its job is gone
}

// BadEnds reads ends after one, in the order of tenant, status and task.
func BadEnds(after BadEnd, n int, rows *[]BadEnd) Stmt {
	t := &after.Task
	return Stmt{Text: badEnds, Args: []any{after.Tenant, int16(t.Status), [16]byte(t.ID), int64(n)}, Scan: into(rows, func(r driver.Row) (b BadEnd, err error) {
		var status int16
		var filed int64
		t := &b.Task
		err = r.Scan(&b.Tenant, &status, (*[16]byte)(&t.ID), &t.Generation, (*[16]byte)(&t.Job), &t.Attempt, &t.Losses, &t.Session, (*int64)(&b.At), &b.Error, &filed)
		t.Status, b.Filed = drover.Status(status), filed != 0
		return b, err
	})}
}

// OpenLetters reads keys of dead letters that were not replayed, in order.
func OpenLetters(after LetterKey, n int, keys *[]LetterKey) Stmt {
	return Stmt{Text: openLetters, Args: []any{[16]byte(after.Task), after.Generation, int64(n)}, Scan: into(keys, func(r driver.Row) (k LetterKey, err error) {
		err = r.Scan((*[16]byte)(&k.Task), &k.Generation)
		return k, err
	})}
}

// FinalsOfTask reads how the last n generations of a task ended, the newest
// first, without outputs.
func FinalsOfTask(id drover.TaskID, n int, rows *[]FinalRow) Stmt {
	return Stmt{Text: finalsOfTask, Args: []any{[16]byte(id), int64(n)}, Scan: into(rows, func(r driver.Row) (f FinalRow, err error) {
		var status int16
		var waits []byte
		t := &f.Task
		err = r.Scan(&t.Generation, &status, &t.Attempt, &t.Losses, &t.LeaseVersion, &t.Session, (*int64)(&t.ReadyAt), (*int64)(&t.QueuedAt), (*int64)(&t.ClaimedAt), (*int64)(&f.At), &waits, &f.Error)
		t.ID, t.Status, t.Waits = id, drover.Status(status), lifecycle.DecodeWaits(waits)
		return f, err
	})}
}

// InputGenerations reads the generations from which on a task has another input,
// the newest first.
func InputGenerations(id drover.TaskID, n int, generations *[]int32) Stmt {
	return Stmt{Text: inputGenerations, Args: []any{[16]byte(id), int64(n)}, Scan: into(generations, func(r driver.Row) (g int32, err error) {
		err = r.Scan(&g)
		return g, err
	})}
}
