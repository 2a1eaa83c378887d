package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/storetest"
)

// TestLargeInsertsStoreWhatSmallOnesDo: PostgreSQL gets many rows by COPY, few by
// a statement; what is stored is the same.
func TestLargeInsertsStoreWhatSmallOnesDo(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		const n = 300
		rows := func(job byte) (list []store.EventRow) {
			for i := range n {
				e := store.EventRow{Job: drover.JobID{job}, Seq: int64(i + 1), Type: drover.EventType(fmt.Sprintf("väl%d'\\\t", i)), At: math.MaxInt64 - 1, Task: drover.TaskID{0xff, byte(i)}, Data: []byte{0, 0xff, byte(i), '\n'}}
				switch i % 3 {
				case 1:
					e.Type, e.At, e.Data = "", math.MinInt64, nil
				case 2:
					e.At, e.Data = -1, bytes.Repeat([]byte{byte(i)}, 3_000)
				}
				list = append(list, e)
			}
			return list
		}
		var many, few []store.EventRow
		var affected int64
		large := store.InsertEvents(rows(1))
		large.Affected = &affected
		err := db.Write(t.Context(), func(tx store.Tx) error {
			if err := tx.Pipe(t.Context(), large); err != nil {
				return err
			}
			for _, e := range rows(2) {
				if err := tx.Pipe(t.Context(), store.InsertEvents([]store.EventRow{e})); err != nil {
					return err
				}
			}
			return tx.Pipe(t.Context(), store.Events(drover.JobID{1}, 0, 2*n, &many), store.Events(drover.JobID{2}, 0, 2*n, &few))
		})
		if err != nil || len(many) != n || len(few) != n || affected != n {
			t.Fatalf("%d and %d of %d stored, %d affected, %v", len(many), len(few), n, affected, err)
		}
		for i, want := range rows(1) {
			a, b := many[i], few[i]
			b.Job = a.Job
			want.Data = append([]byte{}, want.Data...)
			if fmt.Sprint(a) != fmt.Sprint(b) || fmt.Sprint(a) != fmt.Sprint(want) {
				t.Fatalf("event %d: %.200s, one by one %.200s", i, fmt.Sprint(a), fmt.Sprint(b))
			}
		}

		// What is refused is refused in the same words, and nothing of it is left.
		err = db.Write(t.Context(), func(tx store.Tx) error {
			twice := rows(3)
			twice[n-1].Seq = 1
			return tx.Pipe(t.Context(), store.InsertEvents(twice))
		})
		if !errors.Is(err, store.ErrUnique) {
			t.Errorf("a key that is there twice: %v", err)
		}
		var none []store.EventRow
		if err := db.Read(t.Context(), func(tx store.Tx) error { return tx.Pipe(t.Context(), store.Events(drover.JobID{3}, 0, 2*n, &none)) }); err != nil || len(none) > 0 {
			t.Errorf("%d rows are left, %v", len(none), err)
		}
	})
}
