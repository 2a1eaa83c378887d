package storetest_test

import (
	"testing"

	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/storetest"
)

func TestEachGivesAnEmptyMigratedDatabase(t *testing.T) {
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		if err := db.CheckSchema(t.Context()); err != nil {
			t.Fatal(err)
		}
		err := db.Read(t.Context(), func(tx store.Tx) error {
			names, err := store.QueueNames(t.Context(), tx)
			if len(names) != 0 {
				t.Errorf("queues = %v, want none", names)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}
