// Package store holds the SQL and the schema. The statements are written once;
// a dialect supplies the few words that differ between PostgreSQL and SQLite.
// No rule about jobs and tasks is in it: it stores what the engine decided.
package store

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store/driver"
	"github.com/drover-dev/drover/internal/store/postgres"
	"github.com/drover-dev/drover/internal/store/sqlite"
)

// Tx is an open transaction.
type Tx = driver.Tx

// Stmt is one statement of a pipeline.
type Stmt = driver.Stmt

// Errors of a transaction.
var (
	ErrUnknown = driver.ErrUnknown
	ErrRetry   = driver.ErrRetry
	ErrUnique  = driver.ErrUnique
	ErrLocked  = driver.ErrLocked
)

// Again is the error that has something made before the transaction runs again.
type Again = driver.Again

// Options of Open; the zero value works.
type Options struct {
	Logger *slog.Logger // default: discards
	// Schema is the PostgreSQL schema; default "drover".
	Schema string
	// MaxConns bounds the PostgreSQL pool; default 16.
	MaxConns int
	// Now replaces the clock, for simulation; default the database's.
	Now func() time.Time
	// Random replaces where ids take their random part from, for simulation;
	// default crypto/rand.
	Random io.Reader
}

// DB is an open database.
type DB struct {
	driver.Driver
	Schema string
	log    *slog.Logger
	now    func() time.Time
	clock  clock
	ids    ids
}

// New makes a DB of a driver that is open. Several may share one driver, as
// servers share a database. Without o.Now, SyncClock comes before anything else.
func New(d driver.Driver, o Options) *DB {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Schema == "" {
		o.Schema = "drover"
	}
	if o.Random == nil {
		o.Random = crand.Reader
	}
	return &DB{Driver: d, Schema: o.Schema, log: o.Logger, now: o.Now, ids: ids{random: o.Random}}
}

// Open connects to url: "sqlite:PATH", "sqlite::memory:" or
// "postgres://user:password@host/database". It does not migrate.
func Open(ctx context.Context, url string, o Options) (*DB, error) {
	db := New(nil, o)
	var err error
	switch {
	case strings.HasPrefix(url, "sqlite:"):
		db.Driver, err = sqlite.Open(ctx, strings.TrimPrefix(strings.TrimPrefix(url, "sqlite:"), "//"))
	case strings.HasPrefix(url, "postgres://"), strings.HasPrefix(url, "postgresql://"):
		db.Driver, err = postgres.Open(ctx, url, db.Schema, int32(min(max(o.MaxConns, 0), 1000)), db.log)
	default:
		err = fmt.Errorf("database URL %q: want sqlite:PATH or postgres://user:password@host/database", hidePassword(url))
	}
	if err != nil {
		return nil, err
	}
	if err := db.SyncClock(ctx); err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("reach the database: %w", err)
	}
	return db, nil
}

// LeavesDeadRows reports whether rows that were deleted stand in the way of those
// who come after until they are vacuumed.
func (db *DB) LeavesDeadRows() bool { return db.Dialect() == driver.PostgreSQL }

// WritesAbreast reports whether write transactions can run beside each other.
func (db *DB) WritesAbreast() bool { return db.Dialect() == driver.PostgreSQL }

func hidePassword(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "(not a URL)"
	}
	return u.Redacted()
}

// clock carries the database's time forward by this process's monotonic clock.
type clock struct {
	mu   sync.Mutex
	base time.Time     // of the database
	at   time.Time     // local, with its monotonic reading, when base was read
	off  time.Duration // by how much base may be wrong
	last atomic.Int64
}

// drift is by how much two clocks may move apart, in parts of the time that passes.
const drift = 2000

// A reading of the database's clock that took longer than twice tight is taken
// again, up to so many times; the quickest counts.
const (
	tight    = 2 * time.Millisecond
	readings = 3
)

// SyncClock reads the database's clock; call it every few seconds. A reading is
// off by up to half the time it took, the first one of a program by what it took
// to connect: a slow one does not replace a better one.
func (db *DB) SyncClock(ctx context.Context) error {
	if db.now != nil {
		return nil
	}
	var best clock
	for n := 0; n < readings && (n == 0 || best.off > tight); n++ {
		before := time.Now()
		t, err := db.Clock(ctx)
		if err != nil {
			return err
		}
		half := time.Since(before) / 2
		if n == 0 || half < best.off {
			// The middle of the round trip; on SQLite t is the machine's own clock.
			best.base, best.at, best.off = t.Round(0).UTC(), before.Add(half), half
		}
	}
	db.clock.mu.Lock()
	defer db.clock.mu.Unlock()
	if c := &db.clock; c.base.IsZero() || best.off <= c.off+best.at.Sub(c.at)/drift+tight/2 {
		c.base, c.at, c.off = best.base, best.at, best.off
	}
	return nil
}

// Now is the one clock of the product: the database's, to the microsecond. It
// costs no round trip and does not step back within a process.
func (db *DB) Now() time.Time {
	if db.now != nil {
		return db.now().UTC().Truncate(time.Microsecond)
	}
	db.clock.mu.Lock()
	us := db.clock.base.Add(time.Since(db.clock.at)).UnixMicro()
	db.clock.mu.Unlock()
	for {
		last := db.clock.last.Load()
		if us <= last {
			us = last
			break
		}
		if db.clock.last.CompareAndSwap(last, us) {
			break
		}
	}
	return time.UnixMicro(us).UTC()
}

// ids makes ULIDs that ascend within a process and a millisecond.
type ids struct {
	random io.Reader
	mu     sync.Mutex
	ms     int64
	hi     uint16
	lo     uint64
}

// NewID returns a new id of the present millisecond.
func (db *DB) NewID() drover.ID {
	ms := db.Now().UnixMilli()
	g := &db.ids
	g.mu.Lock()
	defer g.mu.Unlock()
	if ms <= g.ms && g.lo != ^uint64(0) {
		ms = g.ms
		g.lo++
	} else {
		g.ms = max(ms, g.ms+1)
		ms = g.ms
		var b [10]byte
		_, _ = io.ReadFull(g.random, b[:]) // crypto/rand never fails; it ends the program instead
		g.hi = binary.BigEndian.Uint16(b[:2])
		g.lo = binary.BigEndian.Uint64(b[2:]) >> 1 // room to count up
	}
	var e [10]byte
	binary.BigEndian.PutUint16(e[:2], g.hi)
	binary.BigEndian.PutUint64(e[2:], g.lo)
	return drover.MakeID(ms, e)
}

// IsUnknown reports whether err leaves open if a commit took place.
func IsUnknown(err error) bool { return errors.Is(err, driver.ErrUnknown) }

// IsAway reports whether err says that the database cannot be reached: nothing has
// changed, and it may be back soon.
func IsAway(err error) bool { return postgres.Away(err) }
