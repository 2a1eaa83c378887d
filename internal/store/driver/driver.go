// Package driver is what package store asks of a database: transactions that
// run a list of statements. The statements are written once, as Text; each
// database compiles them into its own words.
package driver

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Row is one row of a result.
type Row interface {
	Scan(dest ...any) error
}

// Stmt is one statement of a pipeline.
type Stmt struct {
	Text *Text
	// Args are the values of $1, $2, …
	Args []any
	// Cols are the columns of a batch, in the order Text declares them: slices
	// of equal length. A batch of no rows is not run.
	Cols []any
	// Scan is called for each row of the result; nil runs the statement for its effect.
	Scan func(Row) error
	// Affected, when set, receives the number of rows changed or returned.
	Affected *int64
}

// Tx is an open transaction.
type Tx interface {
	// Pipe runs the statements in order: in one round trip where the database
	// has one. It stops at the first error.
	Pipe(ctx context.Context, list ...Stmt) error
}

// Driver is one database.
type Driver interface {
	// Write runs fn in a transaction and commits it. A commit whose answer was
	// lost is ErrUnknown. fn may be run again after a serialization failure or
	// a deadlock, so it must have no other effects.
	Write(ctx context.Context, fn func(Tx) error) error
	// Read runs fn in a read-only transaction.
	Read(ctx context.Context, fn func(Tx) error) error
	// Exec runs a script of several statements outside the pipelined path, for migrations.
	Exec(ctx context.Context, script string) error
	// Locked runs fn while holding the database's migration lock.
	Locked(ctx context.Context, fn func(ctx context.Context) error) error
	// Clock reads the database's clock.
	Clock(ctx context.Context) (time.Time, error)
	// Notify tells every process that listens; Listen calls fn for each message
	// until ctx ends. A database without them does nothing.
	Notify(ctx context.Context, payload string) error
	Listen(ctx context.Context, fn func(payload string)) error
	// Vacuum frees the dead rows of the tables that churn.
	Vacuum(ctx context.Context, tables ...string) error
	// Dialect names the words of this database.
	Dialect() Dialect
	Close() error
}

// ErrUnknown says that a transaction may or may not have been committed.
var ErrUnknown = errors.New("the commit's answer was lost; the outcome is unknown")

// ErrRetry returned by the function of Write runs it again in a new transaction.
var ErrRetry = errors.New("the rows changed since they were read")

// Again returned by the function of Write runs it again in a new transaction, and
// First before that, once this one has been rolled back.
type Again struct {
	First func(ctx context.Context) error
}

// Error says what errors of this kind say.
func (a *Again) Error() string { return "something must be made first: " + ErrRetry.Error() }

// Unwrap is ErrRetry.
func (a *Again) Unwrap() error { return ErrRetry }

// Prepare runs First, if err asks for it.
func Prepare(ctx context.Context, err error) error {
	var a *Again
	if !errors.As(err, &a) {
		return nil
	}
	return a.First(ctx)
}

// ErrLocked says that a lock was not to be had in time.
var ErrLocked = errors.New("another transaction holds the row")

// ErrUnique says that a row with this key exists.
var ErrUnique = errors.New("a row with this key exists")

// Dialect is a kind of database.
type Dialect int

// The dialects.
const (
	PostgreSQL Dialect = iota
	SQLite
)

// Text is a statement written once. Its words in braces differ by database:
//
//	{from} {using} {rows}  the rows of a batch (nothing, or one row, on SQLite, where a batch runs row by row)
//	{name}                 the batch column of that name (never confused with a table's: i.c_name)
//	{for …}                a row lock (nothing on SQLite, which has one writer)
//	{pg:…} {lite:…}        words for one database only
//
// $1, $2, … are the single arguments.
type Text struct {
	Name  string
	table string
	cols  []column
	src   string
	once  [2]sync.Once
	sql   [2]string
}

type column struct{ name, typ string }

// New writes a statement. cols declares the columns of a batch, such as
// "id uuid, lv int"; empty is a statement that is no batch.
func New(name, cols, src string) *Text {
	t := &Text{Name: name, src: src}
	if cols != "" {
		for c := range strings.SplitSeq(cols, ",") {
			n, typ, ok := strings.Cut(strings.TrimSpace(c), " ")
			if !ok {
				panic(fmt.Sprintf("statement %s: column %q has no type", name, c))
			}
			t.cols = append(t.cols, column{n, typ})
		}
	}
	written.Lock()
	defer written.Unlock()
	written.texts = append(written.texts, t)
	return t
}

// Insert writes a statement that adds the rows of a batch to a table. cols
// declares the batch, named as the table's columns.
func Insert(name, table, cols string) *Text {
	var names, words []string
	for c := range strings.SplitSeq(cols, ",") {
		n, _, _ := strings.Cut(strings.TrimSpace(c), " ")
		names, words = append(names, n), append(words, "{"+n+"}")
	}
	t := New(name, cols, "INSERT INTO "+table+" ("+strings.Join(names, ", ")+") SELECT "+strings.Join(words, ", ")+" {from}")
	t.table = table
	return t
}

var written struct {
	sync.Mutex
	texts []*Text
}

// Written returns every statement that New has made, so that all of them can be
// tried on a database: a wrong word in one shows only when it runs.
func Written() []*Text {
	written.Lock()
	defer written.Unlock()
	return slices.Clone(written.texts)
}

// Batch reports how many columns a batch has; 0 is no batch.
func (t *Text) Batch() int { return len(t.cols) }

// Inserts returns the table and columns of a statement that Insert has written;
// the table of any other is empty.
func (t *Text) Inserts() (table string, columns []string) {
	if t.table == "" {
		return "", nil
	}
	for _, c := range t.cols {
		columns = append(columns, c.name)
	}
	return t.table, columns
}

var (
	word  = regexp.MustCompile(`\{(pg:|lite:|for )?([^{}]*)\}`)
	param = regexp.MustCompile(`\$(\d+)`)
	// sought is a condition by which a batch's row finds a table's, joined one by which a
	// row of the table before finds one of the next.
	sought = regexp.MustCompile(`\b(ON|WHERE|AND) ((?:\w+\.)?\w+) = (\{\w+\})`)
	joined = regexp.MustCompile(`\b(JOIN \w+ \w+ ON \w+\.\w+) = (\w+\.\w+)`)
)

// SQL returns the statement in the words of d. On PostgreSQL the batch columns
// are the parameters $1…$k and the single arguments follow; on SQLite likewise
// with +?1…+?k.
func (t *Text) SQL(d Dialect) string {
	t.once[d].Do(func() { t.sql[d] = t.compile(d) })
	return t.sql[d]
}

func (t *Text) compile(d Dialect) string {
	index := map[string]int{}
	var arrays, names []string
	for i, c := range t.cols {
		index[c.name] = i + 1
		arrays = append(arrays, fmt.Sprintf("$%d::%s[]", i+1, c.typ))
		names = append(names, "c_"+c.name)
	}
	rows := ""
	if len(t.cols) > 0 {
		rows = "unnest(" + strings.Join(arrays, ",") + ") AS i(" + strings.Join(names, ",") + ")"
	}
	src := param.ReplaceAllStringFunc(t.src, func(p string) string {
		n, _ := strconv.Atoi(p[1:])
		if d == SQLite {
			return value(n + len(t.cols))
		}
		return fmt.Sprintf("$%d", n+len(t.cols))
	})
	if d == PostgreSQL && len(t.cols) > 0 {
		// A table that was empty when it was vacuumed is empty to the planner until it
		// looks again. Of an equality it would make the join the other way round then: all
		// of the table, each row beside the whole batch, and the plan is kept. This form
		// means the same, and serves to look up by an index only.
		src = sought.ReplaceAllString(src, "$1 $2 = ANY (ARRAY[$3])")
		src = joined.ReplaceAllString(src, "$1 = ANY (ARRAY[$2])")
	}
	return word.ReplaceAllStringFunc(src, func(w string) string {
		m := word.FindStringSubmatch(w)
		kind, body := m[1], m[2]
		switch {
		case kind == "pg:":
			return pick(d == PostgreSQL, body, "")
		case kind == "lite:":
			return pick(d == SQLite, body, "")
		case kind == "for ":
			return pick(d == PostgreSQL, "FOR "+strings.ToUpper(body), "")
		case body == "rows":
			return pick(d == PostgreSQL, rows, "(SELECT 1) AS i")
		case body == "from":
			return pick(d == PostgreSQL, "FROM "+rows, "")
		case body == "using":
			return pick(d == PostgreSQL, "USING "+rows, "")
		case index[body] > 0:
			return pick(d == PostgreSQL, "i.c_"+body, value(index[body]))
		}
		panic(fmt.Sprintf("statement %s: unknown word %s", t.Name, w))
	})
}

// value is a parameter on SQLite. Its planner looks at the value of a bare ?1
// that is compared with a column, and plans the statement anew whenever another
// is bound; the sign, which means nothing, hides it.
func value(n int) string { return fmt.Sprintf("+?%d", n) }

func pick(cond bool, a, b string) string {
	if cond {
		return a
	}
	return b
}

// Len returns the number of rows of a batch.
func Len(cols []any) int {
	if len(cols) == 0 {
		return 0
	}
	switch c := cols[0].(type) {
	case []int16:
		return len(c)
	case []int32:
		return len(c)
	case []int64:
		return len(c)
	case []string:
		return len(c)
	case [][]byte:
		return len(c)
	case [][16]byte:
		return len(c)
	case []bool:
		return len(c)
	}
	panic(fmt.Sprintf("a batch column of type %T", cols[0]))
}
