package store_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/driver"
	"github.com/drover-dev/drover/internal/store/storetest"
)

var (
	addQueue    = driver.New("test: add a queue", "", "INSERT INTO queues (id, name, created_at) VALUES ($1, $2, 1)")
	touchQueue  = driver.New("test: touch a queue", "", "UPDATE queues SET created_at = created_at + 1 WHERE id = $1")
	countQueues = "SELECT count(*) FROM queues"
)

func add(ctx context.Context, tx store.Tx, id int32, name string) error {
	return tx.Pipe(ctx, store.Stmt{Text: addQueue, Args: []any{id, name}})
}

// TestACommitIsNotCutOff: a context that ends while a transaction commits would
// give an error for what is stored.
func TestACommitIsNotCutOff(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		for i := range int32(20) {
			ctx, cancel := context.WithCancel(t.Context())
			err := db.Write(ctx, func(tx store.Tx) error {
				err := add(ctx, tx, i, string(rune('a'+i)))
				cancel()
				return err
			})
			if err != nil {
				t.Fatalf("commit %d: %v", i, err)
			}
		}
		if n := number(t, db, countQueues); n != 20 {
			t.Errorf("%d of 20 are stored", n)
		}
	})
}

func TestATransactionThatFailsLeavesNothingAndGivesItsConnectionBack(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		broken := errors.New("broken")
		for range 20 { // more than there are connections
			err := db.Write(t.Context(), func(tx store.Tx) error {
				if err := add(t.Context(), tx, 1, "a"); err != nil {
					return err
				}
				return broken
			})
			if !errors.Is(err, broken) {
				t.Fatalf("err = %v", err)
			}
			func() {
				defer func() {
					if recover() == nil {
						t.Error("a panic is not passed on")
					}
				}()
				_ = db.Write(t.Context(), func(tx store.Tx) error {
					_ = add(t.Context(), tx, 1, "a")
					panic("a bad row")
				})
			}()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := db.Write(ctx, func(tx store.Tx) error { return add(ctx, tx, 1, "a") }); err != nil {
			t.Fatalf("afterwards: %v", err)
		}
		if n := number(t, db, countQueues); n != 1 {
			t.Errorf("%d rows are stored, want 1", n)
		}
	})
}

func TestErrRetryRunsTheWholeAgain(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		tries := 0
		err := db.Write(t.Context(), func(tx store.Tx) error {
			if err := add(t.Context(), tx, 1, "a"); err != nil {
				return err // the row of the try before is still there
			}
			if tries++; tries < 4 {
				return store.ErrRetry
			}
			return nil
		})
		if err != nil || tries != 4 {
			t.Fatalf("%d tries, %v", tries, err)
		}
		tries = 0
		err = db.Write(t.Context(), func(store.Tx) error { tries++; return store.ErrRetry })
		if !errors.Is(err, store.ErrRetry) || tries < 5 || tries > 50 {
			t.Fatalf("for ever: %d tries, %v", tries, err)
		}
	})
}

func TestErrorsOfTheDatabaseAreNamed(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		ctx := t.Context()
		if err := db.Write(ctx, func(tx store.Tx) error { return add(ctx, tx, 1, "a") }); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "b"} { // the other unique column, and the key
			if err := db.Write(ctx, func(tx store.Tx) error { return add(ctx, tx, 2-int32(name[0]-'a'), name) }); !errors.Is(err, store.ErrUnique) {
				t.Errorf("a second %s: %v", name, err)
			}
		}
		if err := db.Read(ctx, func(tx store.Tx) error { return add(ctx, tx, 3, "c") }); err == nil {
			t.Error("a reading transaction writes")
		}
		if db.Dialect() == driver.SQLite {
			return // one writer: nobody holds a row against another
		}
		touch := func(tx store.Tx, id int32) error {
			return tx.Pipe(ctx, store.Stmt{Text: touchQueue, Args: []any{id}})
		}
		err := db.Write(ctx, func(tx store.Tx) error {
			if err := touch(tx, 1); err != nil {
				return err
			}
			began := time.Now()
			err := db.Write(ctx, func(tx store.Tx) error {
				if err := tx.Pipe(ctx, store.WaitShort()); err != nil {
					return err
				}
				return touch(tx, 1)
			})
			if !errors.Is(err, store.ErrLocked) || time.Since(began) > 5*time.Second {
				t.Errorf("a row that another holds: %v after %v", err, time.Since(began))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		// Two that wait for each other: one is run again, nobody sees it.
		if err := db.Write(ctx, func(tx store.Tx) error { return add(ctx, tx, 2, "b") }); err != nil {
			t.Fatal(err)
		}
		errs := make(chan error, 2)
		for i := range int32(2) {
			go func() {
				errs <- db.Write(ctx, func(tx store.Tx) error {
					if err := touch(tx, 1+i); err != nil {
						return err
					}
					time.Sleep(50 * time.Millisecond)
					return touch(tx, 2-i)
				})
			}()
		}
		for range 2 {
			if err := <-errs; err != nil {
				t.Errorf("a deadlock surfaces: %v", err)
			}
		}
		if n := number(t, db, "SELECT sum(created_at) FROM queues"); n != 7 {
			t.Errorf("the touches made %d, want 7", n)
		}
	})
}

var endSession = driver.New("test: end this session", "", "SELECT pg_terminate_backend(pg_backend_pid())")

var ownPid = driver.New("test: who am I", "", "SELECT pg_backend_pid()")

// TestWhatWasReadHoldsWhateverBecomesOfTheConnection: the session ends after the
// last statement of a reading transaction. There is no outcome to be unknown.
func TestWhatWasReadHoldsWhateverBecomesOfTheConnection(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		if db.Dialect() == driver.SQLite {
			return // it is no session that could end
		}
		var pid int32
		err := db.Read(t.Context(), func(tx store.Tx) error {
			if err := tx.Pipe(t.Context(), store.Stmt{Text: ownPid, Scan: func(r driver.Row) error { return r.Scan(&pid) }}); err != nil {
				return err
			}
			return db.Exec(t.Context(), fmt.Sprintf("SELECT pg_terminate_backend(%d, 5000)", pid))
		})
		if err != nil {
			t.Errorf("a read whose session ended after it: %v", err)
		}
	})
}

// TestADatabaseThatGoesAwayIsTriedAgain: sessions end under a transaction, as
// when the database restarts. Nothing was committed, so the caller need not know.
func TestADatabaseThatGoesAwayIsTriedAgain(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		tries := 0
		err := db.Write(t.Context(), func(tx store.Tx) error {
			tries++
			if err := add(t.Context(), tx, 1, "a"); err != nil {
				return err
			}
			if tries <= 3 && db.Dialect() == driver.PostgreSQL {
				return tx.Pipe(t.Context(), store.Stmt{Text: endSession, Scan: func(driver.Row) error { return nil }})
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if want := map[driver.Dialect]int{driver.PostgreSQL: 4, driver.SQLite: 1}[db.Dialect()]; tries != want {
			t.Errorf("%d tries, want %d", tries, want)
		}
		if n := number(t, db, countQueues); n != 1 {
			t.Errorf("%d rows of one", n)
		}
	})
}
