package storetest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/driver"
	"github.com/drover-dev/drover/internal/store/storetest"
)

// TestFaultsStrikeAsTheySay: what must run again runs again, whole; what was
// refused has not happened; what lost its answer has.
func TestFaultsStrikeAsTheySay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind   storetest.Fault
		trip   int
		runs   int
		stored int
		err    error
	}{
		{storetest.Conflict, 0, 2, 1, nil},
		{storetest.Deadlock, 1, 2, 1, nil},
		{storetest.Deadlock, 9, 1, 1, nil}, // it makes fewer trips
		{storetest.LostAnswer, 0, 1, 1, driver.ErrUnknown},
		{storetest.Refused, 0, 0, 0, storetest.ErrRefused},
		{"", 0, 1, 1, nil},
	} {
		t.Run(string(c.kind), func(t *testing.T) {
			storetest.Each(t, func(t *testing.T, db *store.DB) {
				f := storetest.WithFaults(db.Driver, 1)
				db.Driver = f
				f.Arm(c.kind, c.trip)
				runs := 0
				err := db.Write(t.Context(), func(tx store.Tx) error {
					runs++
					if err := tx.Pipe(t.Context(), store.Ping()); err != nil {
						return err
					}
					_, err := store.QueueNumber(t.Context(), tx, "q", 1)
					return err
				})
				if !errors.Is(err, c.err) || c.err == nil && err != nil {
					t.Errorf("err = %v, want %v", err, c.err)
				}
				if runs != c.runs {
					t.Errorf("it ran %d times, want %d", runs, c.runs)
				}
				if n := len(queues(t, db)); n != c.stored {
					t.Errorf("%d queues are stored, want %d", n, c.stored)
				}
				if n := f.Counts()[c.kind]; c.kind != "" && (n == 0) != (c.trip == 9) {
					t.Errorf("counted %d times", n)
				}
			})
		})
	}
}

// TestABrokenTransactionIsNotCommitted, even if its function passes over the error.
func TestABrokenTransactionIsNotCommitted(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		f := storetest.WithFaults(db.Driver, 1)
		db.Driver = f
		f.Arm(storetest.Deadlock, 1)
		runs := 0
		err := db.Write(t.Context(), func(tx store.Tx) error {
			runs++
			_, err := store.QueueNumber(t.Context(), tx, "q", 1)
			_ = tx.Pipe(context.Background(), store.Ping())
			return err
		})
		if err != nil || runs != 2 || len(queues(t, db)) != 1 {
			t.Errorf("err = %v after %d runs, queues = %v", err, runs, queues(t, db))
		}
	})
}

func queues(t *testing.T, db *store.DB) (names map[int32]string) {
	t.Helper()
	err := db.Read(t.Context(), func(tx store.Tx) (err error) {
		names, err = store.QueueNames(t.Context(), tx)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
