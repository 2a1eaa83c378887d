// Package sqlite is the SQLite driver of package store: pure Go, WAL, one writer.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/drover-dev/drover/internal/store/driver"
)

// DB is a SQLite file with one connection that writes and a few that read.
type DB struct {
	// One connection: SQLite has one writer, and waiting here beats SQLITE_BUSY.
	write   *sql.DB
	read    *sql.DB
	turn    chan struct{} // held by the writer; waiting for it respects the context
	writeSt *statements
	readSt  *statements
	now     func() time.Time
}

// Open opens or creates the file at path. ":memory:" is a database of its own.
func Open(ctx context.Context, path string) (*DB, error) {
	if path == "" {
		return nil, errors.New("a SQLite database needs a path, as in sqlite:/var/lib/drover/drover.db")
	}
	name, shared := "file:"+(&url.URL{Path: path}).EscapedPath(), ""
	readers := 4
	if path == ":memory:" {
		name, readers = "file::memory:", 0
	}
	dsn := func(extra string) string {
		return name + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)" +
			"&_pragma=foreign_keys(ON)&_pragma=cache_size(-32768)&_pragma=temp_store(MEMORY)&_pragma=wal_autocheckpoint(4000)" + extra + shared
	}
	db := &DB{turn: make(chan struct{}, 1), now: time.Now}
	var err error
	if db.write, err = sql.Open("sqlite", dsn("&_txlock=immediate")); err != nil {
		return nil, fmt.Errorf("open SQLite %s: %w", path, err)
	}
	db.write.SetMaxOpenConns(1)
	db.write.SetConnMaxLifetime(0)
	db.write.SetMaxIdleConns(1)
	db.writeSt = &statements{db: db.write}
	if err := db.write.PingContext(ctx); err != nil {
		_ = db.write.Close()
		return nil, fmt.Errorf("open SQLite %s: %w", path, err)
	}
	db.read, db.readSt = db.write, db.writeSt
	if readers > 0 {
		if db.read, err = sql.Open("sqlite", dsn("&_pragma=query_only(ON)")); err != nil {
			_ = db.write.Close()
			return nil, fmt.Errorf("open SQLite %s: %w", path, err)
		}
		db.read.SetMaxOpenConns(readers)
		db.read.SetMaxIdleConns(readers)
		db.readSt = &statements{db: db.read}
	}
	return db, nil
}

// statements keeps one prepared statement for each text.
type statements struct {
	db *sql.DB
	m  sync.Map // *driver.Text → *sql.Stmt
}

func (s *statements) get(ctx context.Context, t *driver.Text) (*sql.Stmt, error) {
	if st, ok := s.m.Load(t); ok {
		return st.(*sql.Stmt), nil
	}
	st, err := s.db.PrepareContext(ctx, t.SQL(driver.SQLite))
	if err != nil {
		return nil, err
	}
	if old, loaded := s.m.LoadOrStore(t, st); loaded {
		_ = st.Close()
		return old.(*sql.Stmt), nil
	}
	return st, nil
}

// Dialect is driver.SQLite.
func (db *DB) Dialect() driver.Dialect { return driver.SQLite }

// Close closes the file.
func (db *DB) Close() error {
	err := db.write.Close()
	if db.read != db.write {
		err = errors.Join(err, db.read.Close())
	}
	return err
}

func (db *DB) lock(ctx context.Context) error {
	select {
	case db.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the writer's turn: %w", ctx.Err())
	}
}

// Write runs fn in the one writing transaction.
func (db *DB) Write(ctx context.Context, fn func(driver.Tx) error) error {
	if err := db.lock(ctx); err != nil {
		return err
	}
	defer func() { <-db.turn }()
	// The caller's context is not given to the transaction: database/sql would
	// roll it back from another goroutine, also during the commit.
	wctx := context.WithoutCancel(ctx)
	for try := 0; ; try++ {
		err := run(wctx, db.write, db.writeSt, nil, fn)
		if !errors.Is(err, driver.ErrRetry) || try == 10 {
			return err
		}
	}
}

// Read runs fn in a read transaction.
func (db *DB) Read(ctx context.Context, fn func(driver.Tx) error) error {
	if db.read == db.write { // in memory: the one connection serves both
		return db.Write(ctx, fn)
	}
	return run(ctx, db.read, db.readSt, &sql.TxOptions{ReadOnly: true}, fn)
}

func run(ctx context.Context, db *sql.DB, st *statements, opts *sql.TxOptions, fn func(driver.Tx) error) error {
	tx, err := db.BeginTx(ctx, opts)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if err := fn(transaction{tx, st}); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

type transaction struct {
	tx *sql.Tx
	st *statements
}

// Pipe runs the statements in turn; a batch row by row.
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
	prepared, err := t.st.get(ctx, s.Text)
	if err != nil {
		return err
	}
	st := t.tx.StmtContext(ctx, prepared)
	defer func() { _ = st.Close() }()
	args := make([]any, k+len(s.Args))
	for i, a := range s.Args {
		args[k+i] = value(a)
	}
	for r := range rows {
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

// Exec runs a script.
func (db *DB) Exec(ctx context.Context, script string) error {
	if err := db.lock(ctx); err != nil {
		return err
	}
	defer func() { <-db.turn }()
	_, err := db.write.ExecContext(ctx, script)
	return err
}

// Locked runs fn; the caller's script takes SQLite's own write lock.
func (db *DB) Locked(ctx context.Context, fn func(ctx context.Context) error) error { return fn(ctx) }

// Clock reads the machine's clock.
func (db *DB) Clock(context.Context) (time.Time, error) { return db.now(), nil }

// Notify does nothing: a SQLite database has one server process.
func (db *DB) Notify(context.Context, string) error { return nil }

// Listen waits for ctx to end.
func (db *DB) Listen(ctx context.Context, _ func(string)) error { <-ctx.Done(); return nil }

// Vacuum moves what the write-ahead log holds into the file.
func (db *DB) Vacuum(ctx context.Context, _ ...string) error {
	_, err := db.write.ExecContext(ctx, "PRAGMA wal_checkpoint(PASSIVE)")
	return err
}

