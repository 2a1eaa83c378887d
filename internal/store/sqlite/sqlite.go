// Package sqlite is the SQLite driver of package store: pure Go, WAL, one writer.
package sqlite

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/drover-dev/drover/internal/store/driver"
)

// DB is a SQLite file with one connection that writes and a few that read.
type DB struct {
	pool, readers *sql.DB // the second is nil for a database in memory
	// One connection writes: SQLite has one writer, and waiting here beats
	// SQLITE_BUSY. A connection is in its channel while nobody uses it.
	write chan *conn
	read  chan *conn
}

// conn is a connection with its prepared statements. A transaction runs on the
// driver's connection itself: what database/sql does around each statement costs
// as much as the statement.
type conn struct {
	c    *sql.Conn
	st   map[*driver.Text]statement
	many map[*driver.Text]statement // those that insert atOnce rows
	// words are the statements that begin and end a transaction.
	words map[string]statement
}

// statement is a prepared statement of the driver.
type statement interface {
	sqldriver.StmtExecContext
	sqldriver.StmtQueryContext
}

// atOnce is how many rows of a large batch that only inserts go in one statement:
// to begin and end one costs as much as a row does.
const atOnce = 25

const readers = 4

// Open opens or creates the file at path. ":memory:" is a database of its own.
func Open(ctx context.Context, path string) (*DB, error) {
	if path == "" {
		return nil, errors.New("a SQLite database needs a path, as in sqlite:/var/lib/drover/drover.db")
	}
	name := "file:" + (&url.URL{Path: path}).EscapedPath()
	if path == ":memory:" {
		name = "file::memory:"
	}
	dsn := name + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)" +
		"&_pragma=foreign_keys(ON)&_pragma=cache_size(-32768)&_pragma=temp_store(MEMORY)&_pragma=wal_autocheckpoint(4000)"
	db := &DB{write: make(chan *conn, 1)}
	var err error
	if db.pool, err = connect(ctx, dsn, db.write); err == nil {
		if path == ":memory:" {
			db.read = db.write
			return db, nil
		}
		db.read = make(chan *conn, readers)
		db.readers, err = connect(ctx, dsn+"&_pragma=query_only(ON)", db.read)
	}
	if err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("open SQLite %s: %w", path, err)
	}
	return db, nil
}

// connect fills conns with connections.
func connect(ctx context.Context, dsn string, conns chan *conn) (*sql.DB, error) {
	pool, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, err
	}
	pool.SetMaxOpenConns(cap(conns))
	pool.SetMaxIdleConns(cap(conns))
	for range cap(conns) {
		c, err := pool.Conn(ctx)
		if err != nil {
			_ = pool.Close()
			return nil, err
		}
		conns <- &conn{c: c, st: map[*driver.Text]statement{}, many: map[*driver.Text]statement{}, words: map[string]statement{}}
	}
	return pool, nil
}

func take(ctx context.Context, from chan *conn) (*conn, error) {
	select {
	case c := <-from:
		return c, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for a connection: %w", ctx.Err())
	}
}

// prepared returns a statement, prepared once: of kept, by its key.
func prepared[K comparable](ctx context.Context, raw sqldriver.ConnPrepareContext, kept map[K]statement, key K, query func() string) (statement, error) {
	if st, ok := kept[key]; ok {
		return st, nil
	}
	p, err := raw.PrepareContext(ctx, query())
	if err != nil {
		return nil, err
	}
	st, ok := p.(statement)
	if !ok {
		return nil, fmt.Errorf("a prepared statement of type %T", p)
	}
	kept[key] = st
	return st, nil
}

// insertMany is an insert of atOnce rows.
func insertMany(t *driver.Text) string {
	table, columns := t.Inserts()
	row := "(" + strings.Repeat("?, ", len(columns)-1) + "?)"
	return "INSERT INTO " + table + " (" + strings.Join(columns, ", ") + ") VALUES " + strings.Repeat(row+", ", atOnce-1) + row
}

// Dialect is driver.SQLite.
func (db *DB) Dialect() driver.Dialect { return driver.SQLite }

// Close closes the file.
func (db *DB) Close() error {
	var errs []error
	for _, p := range []*sql.DB{db.pool, db.readers} {
		if p != nil {
			errs = append(errs, p.Close())
		}
	}
	return errors.Join(errs...)
}

// Write runs fn in the one writing transaction. Once it has begun, the caller's
// context does not cut it off: it is short, and a commit must not be torn.
func (db *DB) Write(ctx context.Context, fn func(driver.Tx) error) error {
	for try := 0; ; {
		err := db.tries(ctx, fn, &try)
		if !errors.As(err, new(*driver.Again)) || try > maxTries {
			return err
		}
		if err := driver.Prepare(ctx, err); err != nil {
			return err
		}
	}
}

// maxTries is how often a transaction is run again.
const maxTries = 10

// tries runs fn until it asks for no other try, or for something to be made first, which
// may have to write, too. try counts.
func (db *DB) tries(ctx context.Context, fn func(driver.Tx) error, try *int) error {
	c, err := take(ctx, db.write)
	if err != nil {
		return err
	}
	defer func() { db.write <- c }()
	for {
		err := c.raw(context.WithoutCancel(ctx), "BEGIN IMMEDIATE", fn)
		if *try++; !errors.Is(err, driver.ErrRetry) || *try > maxTries || errors.As(err, new(*driver.Again)) {
			return err
		}
	}
}

// Read runs fn in a read transaction.
func (db *DB) Read(ctx context.Context, fn func(driver.Tx) error) error {
	c, err := take(ctx, db.read)
	if err != nil {
		return err
	}
	defer func() { db.read <- c }()
	return c.raw(context.WithoutCancel(ctx), "BEGIN", fn)
}

// raw runs a transaction on the driver's connection. A panic passes through, and
// leaves the connection usable.
func (c *conn) raw(ctx context.Context, begin string, fn func(driver.Tx) error) (err error) {
	var panicked any
	rerr := c.c.Raw(func(dc any) error {
		defer func() { panicked = recover() }()
		err = transaction{c, dc.(sqldriver.ConnPrepareContext)}.run(ctx, begin, fn)
		return nil // it is not the connection's
	})
	if panicked != nil {
		panic(panicked)
	}
	if rerr != nil {
		return fmt.Errorf("reach the connection: %w", rerr)
	}
	return err
}

type transaction struct {
	c   *conn
	raw sqldriver.ConnPrepareContext
}

// plain runs a statement without arguments: a transaction begins and ends more
// often than anything else happens.
func (t transaction) plain(ctx context.Context, query string) error {
	st, err := prepared(ctx, t.raw, t.c.words, query, func() string { return query })
	if err == nil {
		_, err = st.ExecContext(ctx, nil)
	}
	return err
}

func (t transaction) run(ctx context.Context, begin string, fn func(driver.Tx) error) error {
	if err := t.plain(ctx, begin); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	open := true
	defer func() {
		if open { // also when fn panics: the connection must not stay in a transaction
			_ = t.plain(ctx, "ROLLBACK")
		}
	}()
	if err := fn(t); err != nil {
		return err
	}
	if err := t.plain(ctx, "COMMIT"); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	open = false
	return nil
}

// Pipe runs the statements in turn; a batch row by row, or some rows at once where
// it only inserts.
func (t transaction) Pipe(ctx context.Context, list ...driver.Stmt) error {
	for _, s := range list {
		if err := t.one(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s.Text.Name, classify(err))
		}
	}
	return nil
}

func (t transaction) one(ctx context.Context, s driver.Stmt) error {
	if s.Text == nil {
		return nil
	}
	var n int64
	defer func() {
		if s.Affected != nil {
			*s.Affected = n
		}
	}()
	k := s.Text.Batch()
	rows := 1
	if k > 0 {
		if rows = driver.Len(s.Cols); rows == 0 {
			return nil
		}
	}
	done := 0
	if table, _ := s.Text.Inserts(); table != "" && rows >= atOnce {
		st, err := prepared(ctx, t.raw, t.c.many, s.Text, func() string { return insertMany(s.Text) })
		if err != nil {
			return err
		}
		args := numbered(k * atOnce)
		for ; done+atOnce <= rows; done += atOnce {
			for c, col := range s.Cols {
				for r := range atOnce {
					args[r*k+c].Value = cell(col, done+r)
				}
			}
			m, err := step(ctx, st, args, nil)
			if err != nil {
				return err
			}
			n += m
		}
	}
	st, err := prepared(ctx, t.raw, t.c.st, s.Text, func() string { return s.Text.SQL(driver.SQLite) })
	if err != nil {
		return err
	}
	args := numbered(k + len(s.Args))
	for i, a := range s.Args {
		if args[k+i].Value, err = value(a); err != nil {
			return err
		}
	}
	for r := done; r < rows; r++ {
		for c, col := range s.Cols {
			args[c].Value = cell(col, r)
		}
		m, err := step(ctx, st, args, s.Scan)
		if err != nil {
			return err
		}
		n += m
	}
	return nil
}

func numbered(n int) []sqldriver.NamedValue {
	args := make([]sqldriver.NamedValue, n)
	for i := range args {
		args[i].Ordinal = i + 1
	}
	return args
}

func step(ctx context.Context, st statement, args []sqldriver.NamedValue, scan func(driver.Row) error) (int64, error) {
	if scan == nil {
		res, err := st.ExecContext(ctx, args)
		if err != nil {
			return 0, err
		}
		return res.RowsAffected()
	}
	rows, err := st.QueryContext(ctx, args)
	if err != nil {
		return 0, err
	}
	defer func() { _ = rows.Close() }()
	r := row{values: make([]sqldriver.Value, len(rows.Columns()))}
	var n int64
	for {
		switch err := rows.Next(r.values); {
		case errors.Is(err, io.EOF):
			return n, nil
		case err != nil:
			return n, err
		}
		n++
		if err := scan(r); err != nil {
			return n, err
		}
	}
}

// row is one row of a result.
type row struct{ values []sqldriver.Value }

// Scan copies the columns to where dest points, of the types that the schema has.
func (r row) Scan(dest ...any) error {
	if len(dest) != len(r.values) {
		return fmt.Errorf("%d columns are wanted of %d", len(dest), len(r.values))
	}
	for i, d := range dest {
		if !assign(d, r.values[i]) {
			return fmt.Errorf("column %d: a %T does not go into a %T", i, r.values[i], d)
		}
	}
	return nil
}

func assign(d any, v sqldriver.Value) bool {
	if d, ok := d.(*any); ok { // whatever it is
		*d = v
		return true
	}
	switch v := v.(type) {
	case int64:
		switch d := d.(type) {
		case *int64:
			*d = v
		case *int32:
			*d = int32(v)
			return int64(*d) == v
		case *int16:
			*d = int16(v)
			return int64(*d) == v
		case *int:
			*d = int(v)
		case *bool:
			*d = v != 0
		case *float64:
			*d = float64(v)
		case *string:
			*d = strconv.FormatInt(v, 10)
		default:
			return false
		}
	case float64:
		d, ok := d.(*float64)
		if ok {
			*d = v
		}
		return ok
	case string:
		switch d := d.(type) {
		case *string:
			*d = v
		case *[]byte:
			*d = []byte(v)
		default:
			return false
		}
	case []byte:
		switch d := d.(type) {
		case *[]byte:
			*d = v
		case *[16]byte:
			return copy(d[:], v) == 16 && len(v) == 16
		case *string:
			*d = string(v)
		default:
			return false
		}
	case nil:
		d, ok := d.(*[]byte)
		if ok {
			*d = nil
		}
		return ok
	default:
		return false
	}
	return true
}

// value is a single argument as the driver takes it.
func value(a any) (sqldriver.Value, error) {
	switch v := a.(type) {
	case [16]byte:
		return v[:], nil
	case int16:
		return int64(v), nil
	case int32:
		return int64(v), nil
	case int:
		return int64(v), nil
	case []byte:
		if v == nil {
			return []byte{}, nil
		}
	}
	return sqldriver.DefaultParameterConverter.ConvertValue(a)
}

func cell(col any, i int) any {
	switch c := col.(type) {
	case []int16:
		return int64(c[i])
	case []int32:
		return int64(c[i])
	case []int64:
		return c[i]
	case []string:
		return c[i]
	case [][]byte:
		if c[i] == nil {
			return []byte{}
		}
		return c[i]
	case [][16]byte:
		return c[i][:]
	case []bool:
		return c[i]
	}
	panic(fmt.Sprintf("a batch column of type %T", col))
}

func classify(err error) error {
	var e *sqlite.Error
	if errors.As(err, &e) {
		switch e.Code() {
		case lib.SQLITE_CONSTRAINT_PRIMARYKEY, lib.SQLITE_CONSTRAINT_UNIQUE, lib.SQLITE_CONSTRAINT_ROWID:
			return fmt.Errorf("%w: %w", driver.ErrUnique, err)
		}
	}
	return err
}

// Exec runs a script. Like a transaction, the caller's context does not cut it
// off once it has begun: half a script would leave the connection inside one.
func (db *DB) Exec(ctx context.Context, script string) error {
	c, err := take(ctx, db.write)
	if err != nil {
		return err
	}
	defer func() { db.write <- c }()
	_, err = c.c.ExecContext(context.WithoutCancel(ctx), script)
	return err
}

// Locked runs fn; the caller's script takes SQLite's own write lock.
func (db *DB) Locked(ctx context.Context, fn func(ctx context.Context) error) error { return fn(ctx) }

// Clock reads the machine's clock.
func (db *DB) Clock(context.Context) (time.Time, error) { return time.Now(), nil }

// Notify does nothing: a SQLite database has one server process.
func (db *DB) Notify(context.Context, string) error { return nil }

// Listen waits for ctx to end.
func (db *DB) Listen(ctx context.Context, _ func(string)) error { <-ctx.Done(); return nil }

// Vacuum moves what the write-ahead log holds into the file.
func (db *DB) Vacuum(ctx context.Context, _ ...string) error {
	return db.Exec(ctx, "PRAGMA wal_checkpoint(PASSIVE)")
}
