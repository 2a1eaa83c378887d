package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/drover-dev/drover/internal/store/driver"
)

// Fault is a way in which a writing transaction goes wrong.
type Fault string

// The faults.
const (
	// Conflict is a serialization failure (40001) when everything is done and the
	// COMMIT is due: the transaction is rolled back and must run again, whole.
	Conflict Fault = "conflict"
	// Deadlock is a deadlock (40P01) at one of the trips to the database: the same.
	Deadlock Fault = "deadlock"
	// LostAnswer is a commit whose answer is lost: the caller sees driver.ErrUnknown.
	LostAnswer Fault = "lost_answer"
	// Refused is an error before anything has happened.
	Refused Fault = "refused"
)

// AllFaults lists the faults.
func AllFaults() []Fault { return []Fault{Conflict, Deadlock, LostAnswer, Refused} }

// ErrRefused is what a refused transaction returns.
var ErrRefused = errors.New("the connection was refused, for the test")

var errAnswer = errors.New("the answer was lost, for the test")

// Faults is a driver whose writing transactions go wrong: those that Arm says,
// and a part of all others, as SetRates says. It is seeded, and counts what it did.
type Faults struct {
	driver.Driver

	mu     sync.Mutex
	rates  map[Fault]float64
	rnd    *rand.Rand
	armed  Fault
	trip   int
	counts map[Fault]int64
}

// WithFaults wraps d. Nothing goes wrong yet.
func WithFaults(d driver.Driver, seed uint64) *Faults {
	return &Faults{Driver: d, rnd: rand.New(rand.NewPCG(seed, 40001)), counts: map[Fault]int64{}} //nolint:gosec // seeded on purpose
}

// Arm makes the next writing transaction go wrong; "" disarms. trip is where a
// deadlock strikes: 0 is the first trip to the database.
func (f *Faults) Arm(kind Fault, trip int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed, f.trip = kind, trip
}

// SetRates sets the chance of each fault in a transaction, from 0 to 1; nil is none.
func (f *Faults) SetRates(rates map[Fault]float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rates = maps.Clone(rates)
}

// Counts returns how often each fault took place.
func (f *Faults) Counts() map[Fault]int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.counts)
}

func (f *Faults) next() (kind Fault, trip int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if kind, trip = f.armed, f.trip; kind != "" {
		f.armed = ""
		return kind, trip
	}
	p := f.rnd.Float64()
	for _, k := range AllFaults() {
		if p -= f.rates[k]; p < 0 {
			return k, f.rnd.IntN(4)
		}
	}
	return "", 0
}

func (f *Faults) count(kind Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts[kind]++
}

// Write runs fn in a transaction that may go wrong. What must run again is
// rolled back and run again by the database's own driver.
func (f *Faults) Write(ctx context.Context, fn func(driver.Tx) error) error {
	kind, trip := f.next()
	if kind == Refused {
		f.count(kind)
		return fmt.Errorf("begin: %w", ErrRefused)
	}
	struck := false
	err := f.Driver.Write(ctx, func(tx driver.Tx) error {
		if struck || kind != Conflict && kind != Deadlock {
			return fn(tx)
		}
		strike := func() error {
			struck = true
			f.count(kind)
			return f.again(kind)
		}
		if kind == Deadlock {
			u := &unlucky{Tx: tx, trip: trip, strike: strike}
			if err := fn(u); err != nil {
				return err
			}
			return u.failed // a transaction that broke is not committed, whoever passed over the error
		}
		if err := fn(tx); err != nil {
			return err
		}
		return strike()
	})
	if err == nil && kind == LostAnswer {
		f.count(kind)
		return fmt.Errorf("commit: %w: %w", driver.ErrUnknown, errAnswer)
	}
	return err
}

// again is the error after which this database's driver runs a transaction again.
func (f *Faults) again(kind Fault) error {
	if f.Dialect() == driver.SQLite { // it has one writer, and no such failures of its own
		return fmt.Errorf("%s, for the test: %w", kind, driver.ErrRetry)
	}
	code := "40001"
	if kind == Deadlock {
		code = "40P01"
	}
	return &pgconn.PgError{Severity: "ERROR", Code: code, Message: string(kind) + ", for the test"}
}

// unlucky is a transaction that fails at a trip to the database, and from then on.
type unlucky struct {
	driver.Tx
	trip   int
	strike func() error
	failed error
}

func (u *unlucky) Pipe(ctx context.Context, list ...driver.Stmt) error {
	if u.failed == nil && u.trip > 0 {
		u.trip--
		return u.Tx.Pipe(ctx, list...)
	}
	if u.failed == nil {
		u.failed = u.strike()
	}
	return u.failed
}
