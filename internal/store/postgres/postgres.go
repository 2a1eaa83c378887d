// Package postgres is the PostgreSQL driver of package store: pgx, pipelined.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drover-dev/drover/internal/store/driver"
)

// DB is a pool of connections whose plans are pinned.
type DB struct {
	pool *pgxpool.Pool
	log  *slog.Logger
}

// Open connects to url. schema is the search path of every connection; it need
// not exist yet. maxConns 0 is 16.
func Open(ctx context.Context, url, schema string, maxConns int32, log *slog.Logger) (*DB, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("read the database URL: %w", redact(err))
	}
	if maxConns == 0 {
		maxConns = 16
	}
	cfg.MaxConns = maxConns
	cfg.ConnConfig.ConnectTimeout = 5 * time.Second
	cfg.ConnConfig.DialFunc = (&net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}).DialContext
	p := cfg.ConnConfig.RuntimeParams
	p["application_name"] = "drover"
	p["search_path"] = pgx.Identifier{schema}.Sanitize()
	p["timezone"] = "UTC"
	// The statistics of tables that churn lie; the plans are pinned instead. A
	// sort or scan forced under these settings is priced so high that it would
	// start the JIT compiler each time, hence jit = off.
	for _, k := range []string{"enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "jit"} {
		p[k] = "off"
	}
	p["plan_cache_mode"] = "force_generic_plan"
	p["default_transaction_isolation"] = "read committed"
	p["statement_timeout"] = "60s"
	p["idle_in_transaction_session_timeout"] = "60s"
	p["lock_timeout"] = "20s"
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", redact(err))
	}
	return &DB{pool: pool, log: log}, nil
}

// redact drops what a parse error repeats of the URL, which may hold a password.
func redact(err error) error {
	var pe *pgconn.ParseConfigError
	if errors.As(err, &pe) {
		return errors.New("it is not a PostgreSQL URL of the form postgres://user:password@host:5432/database")
	}
	return err
}

// Dialect is driver.PostgreSQL.
func (db *DB) Dialect() driver.Dialect { return driver.PostgreSQL }

// Close closes every connection.
func (db *DB) Close() error { db.pool.Close(); return nil }

const (
	maxTries = 10
	// patience is how long a transaction tries to reach a database that is away
	// before its caller is told.
	patience = 10 * time.Second
	// callLimit bounds a transaction whose caller sets no limit: a connection that
	// is half open gives no error.
	callLimit = 20 * time.Second
)

// Write runs fn in a READ COMMITTED transaction.
func (db *DB) Write(ctx context.Context, fn func(driver.Tx) error) error {
	return again(ctx, func(ctx context.Context) error { return db.once(ctx, pgx.TxOptions{}, fn) }, func() bool { return true })
}

// Read runs fn, once, in a read-only snapshot.
func (db *DB) Read(ctx context.Context, fn func(driver.Tx) error) error {
	ran := false
	return again(ctx, func(ctx context.Context) error {
		return db.once(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx driver.Tx) error { ran = true; return fn(tx) })
	}, func() bool { return !ran })
}

// again runs a transaction until it ends in a way that another try cannot mend:
// rows that were on the move get maxTries, a database that is away gets patience.
// may is asked whether another try is allowed.
func again(ctx context.Context, run func(context.Context) error, may func() bool) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callLimit)
		defer cancel()
	}
	start := time.Now()
	for try := 1; ; try++ {
		err := run(ctx)
		wait := time.Duration(rand.Int64N(int64(2*time.Millisecond) << min(try, 6)))
		switch {
		case err == nil || !may():
			return err
		case Away(err) && time.Since(start) < patience:
			wait += 20 * time.Millisecond
		case try >= maxTries || !retryable(err):
			return err
		}
		if err := driver.Prepare(ctx, err); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

func (db *DB) once(ctx context.Context, opts pgx.TxOptions, fn func(driver.Tx) error) error {
	c, err := db.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer c.Release() // a connection that is not idle is closed instead of going back
	tx := &transaction{on: c.Conn(), begin: "begin"}
	readOnly := opts.AccessMode == pgx.ReadOnly
	if readOnly {
		tx.begin = "begin isolation level repeatable read read only"
	}
	open := true
	defer func() {
		if open && tx.begin == "" { // also when fn panics: the connection must go back to the pool
			rollback(ctx, c.Conn())
		}
	}()
	if err := fn(tx); err != nil || readOnly {
		return err // what was read holds, whatever becomes of the connection: there is nothing to commit
	}
	open = false
	if tx.begin != "" {
		return nil // nothing was asked
	}
	// The commit must not be cut off by the caller: a context that ends during
	// it gives an error although the transaction may be committed.
	cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	tag, err := c.Exec(cctx, "commit")
	if err == nil && tag.String() == "ROLLBACK" {
		err = pgx.ErrTxCommitRollback
	}
	if err != nil {
		if refused(err) {
			return fmt.Errorf("commit: %w", err)
		}
		return fmt.Errorf("commit: %w: %w", driver.ErrUnknown, err)
	}
	return nil
}

func rollback(ctx context.Context, c *pgx.Conn) {
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if _, err := c.Exec(rctx, "rollback"); err != nil {
		_ = c.Close(rctx) // which rolls back too
	}
}

// refused reports whether a failed COMMIT is known to have changed nothing. A
// session that was ended while it committed (FATAL 57P01 and its like) may have
// committed before.
func refused(err error) bool {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return pe.Severity == "ERROR"
	}
	return errors.Is(err, pgx.ErrTxCommitRollback)
}

func retryable(err error) bool {
	if errors.Is(err, driver.ErrRetry) {
		return true
	}
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		switch pe.Code {
		case "40001", "40P01":
			return true
		}
	}
	return false
}

// Away reports whether err says that the database cannot be reached, or went away
// before the COMMIT was sent: nothing has changed, and it may be back soon.
func Away(err error) bool {
	if errors.Is(err, driver.ErrUnknown) || errors.Is(err, context.Canceled) {
		return false
	}
	if errors.Is(err, context.DeadlineExceeded) { // the caller's time is over, or nobody answers who connects
		return errors.As(err, new(*pgconn.ConnectError))
	}
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		switch pe.Code {
		case "57P01", "57P02", "57P03", "53300": // shut down, crashed, starting, no connection left
			return true
		case "57P05", "25P03", "25P04": // the session was ended for being idle or slow, and what it did rolled back
			return true
		case "25006": // it takes no writes: a standby, until it is promoted or another is
			return true
		case "55000": // it takes no connections; as an error of a statement it is another thing
			return pe.Severity == "FATAL"
		}
		return strings.HasPrefix(pe.Code, "08")
	}
	var ne net.Error
	return errors.As(err, &ne) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, pgconn.ErrConnClosed) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

// Wrap makes a driver.Tx of an open pgx transaction, the user's own included.
func Wrap(tx pgx.Tx) driver.Tx { return &transaction{on: tx.Conn()} }

// transaction runs statements on a connection. begin, which goes with the first
// of them, is empty once it is open.
type transaction struct {
	on    *pgx.Conn
	begin string
}

// Pipe sends all statements in one flush, but for large inserts, which go by
// COPY in their place.
func (t *transaction) Pipe(ctx context.Context, list ...driver.Stmt) error {
	b := &pgx.Batch{}
	var kept []driver.Stmt
	for _, s := range list {
		switch {
		case s.Text == nil || s.Text.Batch() > 0 && driver.Len(s.Cols) == 0:
			if s.Affected != nil {
				*s.Affected = 0
			}
		case copies(s):
			if err := t.flush(ctx, b, kept); err != nil {
				return err
			}
			b, kept = &pgx.Batch{}, kept[:0]
			if err := t.open(ctx); err != nil {
				return err
			}
			if err := copyIn(ctx, t.on, s); err != nil {
				return fmt.Errorf("%s: %w", s.Text.Name, classify(err))
			}
		default:
			if t.begin != "" && len(kept) == 0 {
				b.Queue(t.begin)
			}
			args := make([]any, 0, len(s.Cols)+len(s.Args))
			for _, c := range s.Cols {
				args = append(args, array(c))
			}
			for _, a := range s.Args {
				args = append(args, array(a))
			}
			b.Queue(s.Text.SQL(driver.PostgreSQL), args...)
			kept = append(kept, s)
		}
	}
	return t.flush(ctx, b, kept)
}

// open begins the transaction where nothing else can carry that.
func (t *transaction) open(ctx context.Context) error {
	if t.begin == "" {
		return nil
	}
	_, err := t.on.Exec(ctx, t.begin)
	t.begin = ""
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	return nil
}

// flush sends the statements that have been queued and reads their results.
func (t *transaction) flush(ctx context.Context, b *pgx.Batch, list []driver.Stmt) error {
	if len(list) == 0 {
		return nil
	}
	br := t.on.SendBatch(ctx, b)
	if t.begin != "" {
		t.begin = ""
		if _, err := br.Exec(); err != nil {
			_ = br.Close() // the first error is the one to tell
			return fmt.Errorf("begin: %w", err)
		}
	}
	for _, s := range list {
		if err := read(br, s); err != nil {
			_ = br.Close() // the first error is the one to tell
			return fmt.Errorf("%s: %w", s.Text.Name, classify(err))
		}
	}
	return br.Close()
}

func read(br pgx.BatchResults, s driver.Stmt) error {
	if s.Scan == nil {
		tag, err := br.Exec()
		if s.Affected != nil {
			*s.Affected = tag.RowsAffected()
		}
		return err
	}
	rows, err := br.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	var n int64
	for rows.Next() {
		n++
		if err := s.Scan(rows); err != nil {
			return err
		}
	}
	if s.Affected != nil {
		*s.Affected = n
	}
	return rows.Err()
}

func classify(err error) error {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		switch pe.Code {
		case "23505":
			return fmt.Errorf("%w: %w", driver.ErrUnique, err)
		case "55P03":
			return fmt.Errorf("%w: %w", driver.ErrLocked, err)
		}
	}
	return err
}

// array gives pgx the array forms it does not know by itself.
func array(col any) any {
	if ids, ok := col.([][16]byte); ok {
		return uuids(ids)
	}
	return col
}

type uuids [][16]byte

func (u uuids) Dimensions() []pgtype.ArrayDimension {
	return []pgtype.ArrayDimension{{Length: int32(len(u)), LowerBound: 1}}
}
func (u uuids) Index(i int) any { return u[i] }
func (u uuids) IndexType() any  { return [16]byte{} }

// Exec runs a script outside a transaction, on a connection of its own.
func (db *DB) Exec(ctx context.Context, script string) error {
	c, err := db.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release()
	if _, err = c.Conn().PgConn().Exec(ctx, script).ReadAll(); err != nil {
		if c.Conn().PgConn().TxStatus() != 'I' { // a script that began a transaction and did not end it
			_, _ = c.Conn().PgConn().Exec(context.WithoutCancel(ctx), "ROLLBACK").ReadAll()
		}
		return classify(err)
	}
	return nil
}

// migrationLock is the key of the advisory lock two migrating servers meet at.
const migrationLock = 0x64726f766572 // "drover"

// Locked holds an advisory lock while fn runs.
func (db *DB) Locked(ctx context.Context, fn func(ctx context.Context) error) error {
	c, err := db.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer c.Release()
	for { // polled, so that waiting is not cut off by statement_timeout
		var got bool
		if err := c.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", int64(migrationLock)).Scan(&got); err != nil {
			return fmt.Errorf("take the migration lock: %w", err)
		}
		if got {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for another server's migration: %w", ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
	defer func() {
		uctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if _, err := c.Exec(uctx, "SELECT pg_advisory_unlock($1)", int64(migrationLock)); err != nil {
			db.log.WarnContext(uctx, "migration lock not given back; closing the connection does it", "err", err)
			_ = c.Conn().Close(uctx)
		}
	}()
	return fn(ctx)
}

// Clock reads clock_timestamp().
func (db *DB) Clock(ctx context.Context) (time.Time, error) {
	var t time.Time
	err := db.pool.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&t)
	return t, err
}

// Channel is the name of the NOTIFY channel; a message is a queue's name.
const Channel = "drover"

// Notify sends payload to every process that listens.
func (db *DB) Notify(ctx context.Context, payload string) error {
	_, err := db.pool.Exec(ctx, "SELECT pg_notify($1, $2)", Channel, payload)
	return err
}

// Listen holds a connection of its own, outside the pool, and reconnects.
func (db *DB) Listen(ctx context.Context, fn func(payload string)) error {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := db.listenOnce(ctx, fn, func() { wait = 100 * time.Millisecond })
		if ctx.Err() != nil {
			return nil
		}
		db.log.WarnContext(ctx, "listening stopped; polling goes on, connecting again", "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

func (db *DB) listenOnce(ctx context.Context, fn func(string), up func()) error {
	c, err := pgx.ConnectConfig(ctx, db.pool.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer func() {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = c.Close(cctx)
	}()
	if _, err := c.Exec(ctx, "LISTEN "+Channel); err != nil {
		return err
	}
	up()
	for {
		// A half-open connection gives no error: ask it something now and then.
		wctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		n, err := c.WaitForNotification(wctx)
		cancel()
		switch {
		case err == nil:
			fn(n.Payload)
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, context.DeadlineExceeded):
			pctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			err := c.Ping(pctx)
			cancel()
			if err != nil {
				return fmt.Errorf("no message for 30 s and no answer: %w", err)
			}
		default:
			return err
		}
	}
}

// Vacuum frees dead rows; it keeps the tables' length, since cutting it takes an exclusive lock.
func (db *DB) Vacuum(ctx context.Context, tables ...string) error {
	for _, t := range tables {
		if _, err := db.pool.Exec(ctx, "VACUUM (TRUNCATE OFF, SKIP_LOCKED ON) "+pgx.Identifier{t}.Sanitize()); err != nil {
			return err
		}
	}
	return nil
}

// Pool returns the pool, for tests.
func (db *DB) Pool() *pgxpool.Pool { return db.pool }
