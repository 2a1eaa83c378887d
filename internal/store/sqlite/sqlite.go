// Package sqlite is the SQLite driver of package store: pure Go, WAL, one writer.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
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

// conn is a connection with its prepared statements.
type conn struct {
	c    *sql.Conn
	st   map[*driver.Text]*sql.Stmt
	many map[*driver.Text]*sql.Stmt // those that insert atOnce rows
	// words are the statements that begin and end a transaction.
	words map[string]*sql.Stmt
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
		conns <- &conn{c: c, st: map[*driver.Text]*sql.Stmt{}, many: map[*driver.Text]*sql.Stmt{}, words: map[string]*sql.Stmt{}}
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

func (c *conn) prepared(ctx context.Context, t *driver.Text) (*sql.Stmt, error) {
	if st, ok := c.st[t]; ok {
		return st, nil
	}
	st, err := c.c.PrepareContext(ctx, t.SQL(driver.SQLite))
	if err == nil {
		c.st[t] = st
	}
	return st, err
}

// preparedMany prepares an insert of atOnce rows.
func (c *conn) preparedMany(ctx context.Context, t *driver.Text) (*sql.Stmt, error) {
	if st, ok := c.many[t]; ok {
		return st, nil
	}
	table, columns := t.Inserts()
	row := "(" + strings.Repeat("?, ", len(columns)-1) + "?)"
	st, err := c.c.PrepareContext(ctx, "INSERT INTO "+table+" ("+strings.Join(columns, ", ")+") VALUES "+strings.Repeat(row+", ", atOnce-1)+row)
	if err == nil {
		c.many[t] = st
	}
	return st, err
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
	c, err := take(ctx, db.write)
	if err != nil {
		return err
	}
	defer func() { db.write <- c }()
	for try := 0; ; try++ {
		err := c.run(context.WithoutCancel(ctx), "BEGIN IMMEDIATE", fn)
		if !errors.Is(err, driver.ErrRetry) || try == 10 {
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
	return c.run(context.WithoutCancel(ctx), "BEGIN", fn)
}

// plain runs a statement without arguments, prepared once: a transaction begins
// and ends more often than anything else happens.
func (c *conn) plain(ctx context.Context, query string) error {
	st, ok := c.words[query]
	if !ok {
		var err error
		if st, err = c.c.PrepareContext(ctx, query); err != nil {
			return err
		}
		c.words[query] = st
	}
	_, err := st.ExecContext(ctx)
	return err
}

func (c *conn) run(ctx context.Context, begin string, fn func(driver.Tx) error) error {
	if err := c.plain(ctx, begin); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	open := true
	defer func() {
		if open { // also when fn panics: the connection must not stay in a transaction
			_ = c.plain(ctx, "ROLLBACK")
		}
	}()
	if err := fn(transaction{c}); err != nil {
		return err
	}
	if err := c.plain(ctx, "COMMIT"); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	open = false
	return nil
}

type transaction struct{ c *conn }

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
		st, err := t.c.preparedMany(ctx, s.Text)
		if err != nil {
			return err
		}
		args := make([]any, k*atOnce)
		for ; done+atOnce <= rows; done += atOnce {
			for c, col := range s.Cols {
				for r := range atOnce {
					args[r*k+c] = cell(col, done+r)
				}
			}
			m, err := step(ctx, st, args, nil)
			if err != nil {
				return err
			}
			n += m
		}
	}
	st, err := t.c.prepared(ctx, s.Text)
	if err != nil {
		return err
	}
	args := make([]any, k+len(s.Args))
	for i, a := range s.Args {
		args[k+i] = value(a)
	}
	for r := done; r < rows; r++ {
		for c, col := range s.Cols {
			args[c] = cell(col, r)
		}
		m, err := step(ctx, st, args, s.Scan)
		if err != nil {
			return err
		}
		n += m
	}
	return nil
}

func step(ctx context.Context, st *sql.Stmt, args []any, scan func(driver.Row) error) (int64, error) {
	if scan == nil {
		res, err := st.ExecContext(ctx, args...)
		if err != nil {
			return 0, err
		}
		return res.RowsAffected()
	}
	rows, err := st.QueryContext(ctx, args...)
	if err != nil {
		return 0, err
	}
	defer func() { _ = rows.Close() }()
	var n int64
	for rows.Next() {
		n++
		if err := scan(row{rows}); err != nil {
			return n, err
		}
	}
	return n, rows.Err()
}

// row scans 16-byte ids, which database/sql does not know.
type row struct{ rows *sql.Rows }

func (r row) Scan(dest ...any) error {
	for i, d := range dest {
		if p, ok := d.(*[16]byte); ok {
			dest[i] = (*id)(p)
		}
	}
	return r.rows.Scan(dest...)
}

type id [16]byte

// Scan reads a BLOB of 16 bytes.
func (p *id) Scan(v any) error {
	b, ok := v.([]byte)
	if !ok || len(b) != 16 {
		return fmt.Errorf("an id of 16 bytes is wanted, not %T", v)
	}
	copy(p[:], b)
	return nil
}

func value(a any) any {
	switch v := a.(type) {
	case [16]byte:
		return v[:]
	case int16:
		return int64(v)
	case int32:
		return int64(v)
	case int:
		return int64(v)
	case []byte:
		if v == nil {
			return []byte{}
		}
	}
	return a
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
