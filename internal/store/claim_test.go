package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/driver"
	"github.com/drover-dev/drover/internal/store/storetest"
)

const now = lifecycle.Instant(1_800_000_000_000_000)

// queued makes n queued tasks of one job each.
func queued(db *store.DB, n int, change func(i int, t *lifecycle.Task)) []lifecycle.Task {
	list := make([]lifecycle.Task, n)
	for i := range list {
		t := lifecycle.Task{ID: drover.TaskID(db.NewID()), Job: drover.JobID(db.NewID()), Queue: 1, Lane: 1, Class: drover.Normal, Status: drover.Queued, Generation: 1,
			DueAt: now - 100 + lifecycle.Instant(i), ReadyAt: now - 50, QueuedAt: now - 40}
		change(i, &t)
		t.Since = t.QueuedAt
		list[i] = t
	}
	return list
}

// put stores tasks with the immutable rows that belong to them.
func put(t *testing.T, db *store.DB, tasks []lifecycle.Task) {
	t.Helper()
	err := db.Write(t.Context(), func(tx store.Tx) error {
		for c := range slices.Chunk(tasks, 5000) {
			var rows []store.TaskRow
			for _, x := range c {
				rows = append(rows, store.TaskRow{ID: x.ID, Job: x.Job, Tenant: x.Lane * 10, Node: x.Node, Index: x.Index, Pipeline: 3, Queue: x.Queue, Lane: x.Lane, Class: x.Class,
					Kind: fmt.Sprintf("kind %d", x.Lane), Input: x.ID[:], Policy: []byte("p"), Trace: "t"})
			}
			if err := tx.Pipe(t.Context(), append(store.InsertLive(c), store.InsertTasks(rows))...); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// claim claims in a transaction of its own.
func claim(t *testing.T, db *store.DB, c store.Claim) (list []store.Claimed) {
	t.Helper()
	if c.Queue == 0 {
		c.Queue = 1
	}
	if c.Now == 0 {
		c.Now = now
	}
	err := db.Write(t.Context(), func(tx store.Tx) (err error) {
		list, err = store.ClaimTasks(t.Context(), tx, db.Dialect(), c)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestTheClaimIsLifecycleClaimed holds the one transition made in SQL to the
// function that says what it is, field by field.
func TestTheClaimIsLifecycleClaimed(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		rnd := rand.New(rand.NewPCG(1, 2))
		tasks := queued(db, 150, func(_ int, x *lifecycle.Task) {
			x.Node, x.Index, x.Lane, x.Class = rnd.Int32N(4), rnd.Int32N(9), 1+rnd.Int32N(3), []drover.Class{drover.Urgent, drover.Normal}[rnd.IntN(2)]
			x.Generation, x.Attempt, x.Losses, x.LeaseVersion, x.Events = 1+rnd.Int32N(5), rnd.Int32N(7), rnd.Int32N(5), rnd.Int32N(90), rnd.Int32N(40)-20
			x.DueAt, x.ReadyAt = now-lifecycle.Instant(rnd.Int64N(1e9)), now-lifecycle.Instant(rnd.Int64N(1e9))
			x.QueuedAt = now + 1000 - lifecycle.Instant(rnd.Int64N(1e6)) // some a little after the claim's own time
			for r := range x.Waits {
				if r > 0 && rnd.IntN(2) == 0 {
					x.Waits[r] = rnd.Int64N(1e12)
				}
			}
		})
		put(t, db, tasks)
		want := map[drover.TaskID]lifecycle.Task{}
		for _, x := range tasks {
			want[x.ID] = lifecycle.Claimed(x, 77, 5, now)
		}
		got := map[drover.TaskID]bool{}
		for range 40 {
			for _, c := range claim(t, db, store.Claim{Max: 9, Session: 77, Acquire: 5, AfterClass: -1}) {
				w := want[c.ID]
				if got[c.ID] {
					t.Fatalf("task %s is claimed twice", c.ID)
				}
				got[c.ID] = true
				if c.Tenant != w.Lane*10 || c.Pipeline != 3 || c.Kind != fmt.Sprintf("kind %d", w.Lane) || string(c.Input) != string(w.ID[:]) || string(c.Policy) != "p" || c.Trace != "t" {
					t.Errorf("task %s comes with %+v", c.ID, c)
				}
				c.Waits = w.Waits // folded when the row is read again
				if !reflect.DeepEqual(c.Task, w) {
					t.Errorf("claimed:\n got %+v\nwant %+v", c.Task, w)
				}
			}
		}
		if len(got) != len(tasks) {
			t.Fatalf("%d of %d tasks are claimed", len(got), len(tasks))
		}
		var rows []lifecycle.Task
		err := db.Write(t.Context(), func(tx store.Tx) error {
			rows = nil
			return tx.Pipe(t.Context(), store.TakeSession(77, 1000, &rows))
		})
		if err != nil || len(rows) != len(tasks) {
			t.Fatalf("%d rows run, %v", len(rows), err)
		}
		for _, r := range rows {
			if w := want[r.ID]; !reflect.DeepEqual(r, w) {
				t.Errorf("stored:\n got %+v\nwant %+v", r, w)
			}
		}
	})
}

func TestHigherClassesAreClaimedFirst(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		classes := []drover.Class{drover.Batch, drover.Normal, drover.Urgent, drover.Interactive, 7}
		put(t, db, queued(db, 50, func(i int, x *lifecycle.Task) { x.Class, x.Lane = classes[i%5], int32(1+i%3) }))
		var order []drover.Class
		for {
			list := claim(t, db, store.Claim{Max: 4, Session: 1, AfterClass: -1})
			if len(list) == 0 {
				break
			}
			for _, c := range list {
				if c.Class != list[0].Class {
					t.Fatalf("classes %d and %d in one claim", list[0].Class, c.Class)
				}
				order = append(order, c.Class)
			}
		}
		if len(order) != 50 || !slices.IsSorted(order) {
			t.Fatalf("order of classes: %v", order)
		}
		put(t, db, queued(db, 10, func(i int, x *lifecycle.Task) { x.Class = classes[i%5] }))
		var left []int16
		if list := claim(t, db, store.Claim{Max: 4, Session: 1, AfterClass: -1, Classes: &left}); len(list) == 0 || len(list) >= 4 || len(left) != 4 || !slices.IsSorted(left) || slices.Contains(left, int16(list[0].Class)) {
			t.Fatalf("claimed %d, classes left %v", len(list), left)
		}
		if list := claim(t, db, store.Claim{Max: 4, Session: 1, AfterClass: int16(drover.Urgent)}); len(list) != 2 || list[0].Class <= drover.Urgent {
			t.Fatalf("after urgent: %+v", list)
		}
	})
}

// TestALongLaneDoesNotKeepOthersWaiting: lanes are tenants and kinds. One has
// 10,000 tasks in front, all older; every claim serves the others too.
func TestALongLaneDoesNotKeepOthersWaiting(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		long := 10_000
		if db.Dialect() == driver.SQLite {
			long = 2000 // a batch goes row by row there, and the rows are no further off
		}
		put(t, db, queued(db, long, func(_ int, x *lifecycle.Task) { x.Lane = 2 }))
		put(t, db, queued(db, 40, func(i int, x *lifecycle.Task) { x.Lane, x.DueAt = int32(1+2*(i%2)), now+lifecycle.Instant(i) }))
		lanes := func(list []store.Claimed) map[int32]int {
			m := map[int32]int{}
			for _, c := range list {
				m[c.Lane]++
			}
			return m
		}
		for round := range 3 {
			if l := lanes(claim(t, db, store.Claim{Max: 12, Session: 1, AfterClass: -1, Cursor: int32(round)})); l[1] != 4 || l[2] != 4 || l[3] != 4 {
				t.Fatalf("a claim of 12 from three lanes: %v", l)
			}
		}
		// One at a time, the lane of the last claim is the cursor of the next.
		var order []int32
		for cursor := int32(0); len(order) < 9; {
			list := claim(t, db, store.Claim{Max: 1, Session: 1, AfterClass: -1, Cursor: cursor})
			if len(list) != 1 {
				t.Fatalf("a claim of one gives %d", len(list))
			}
			cursor = list[0].Lane
			order = append(order, cursor)
		}
		if want := []int32{1, 2, 3, 1, 2, 3, 1, 2, 3}; !slices.Equal(order, want) {
			t.Fatalf("lanes in turn: %v, want %v", order, want)
		}
		// A worker of some lanes gets those only.
		if l := lanes(claim(t, db, store.Claim{Max: 10, Session: 1, AfterClass: -1, Lanes: []int32{3, 1}})); len(l) != 2 || l[2] != 0 {
			t.Fatalf("of lanes 1 and 3: %v", l)
		}
		if list := claim(t, db, store.Claim{Max: 10, Session: 1, AfterClass: -1, Lanes: []int32{9}}); len(list) != 0 {
			t.Fatalf("of a lane without tasks: %v", list)
		}
		if list := claim(t, db, store.Claim{Max: 10, Session: 1, AfterClass: -1, Queue: 2}); len(list) != 0 {
			t.Fatalf("of an empty queue: %v", list)
		}
		// Within a lane the oldest come first.
		list := claim(t, db, store.Claim{Max: 100, Session: 1, AfterClass: -1, Lanes: []int32{2}})
		slices.SortFunc(list, func(a, b store.Claimed) int { return int(a.DueAt - b.DueAt) })
		if len(list) != 100 || list[99].DueAt-list[0].DueAt != 99 {
			t.Fatalf("%d of lane 2, due %d to %d", len(list), list[0].DueAt, list[99].DueAt)
		}
	})
}

// TestEveryLaneIsServedInTwoClaims: there are more lanes than one claim looks at.
func TestEveryLaneIsServedInTwoClaims(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		put(t, db, queued(db, 300, func(i int, x *lifecycle.Task) { x.Lane = int32(1 + i%100) }))
		seen := map[int32]bool{}
		cursor := int32(0)
		for range 2 {
			for _, c := range claim(t, db, store.Claim{Max: 64, Session: 1, AfterClass: -1, Cursor: cursor}) {
				seen[c.Lane] = true
				cursor = max(cursor, c.Lane)
			}
		}
		if len(seen) != 100 {
			t.Fatalf("%d of 100 lanes are served", len(seen))
		}
	})
}

func TestHeldJobsAreSteppedOver(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		tasks := queued(db, 400, func(int, *lifecycle.Task) {})
		put(t, db, tasks)
		var holds []store.Hold
		for i, kind := range []store.HoldKind{store.HoldPause, store.HoldCancel, store.HoldResume} {
			for k := range 130 {
				holds = append(holds, store.Hold{Job: tasks[i*130+k].Job, Kind: kind, Cause: store.CauseUser, At: now})
			}
		}
		if err := db.Write(t.Context(), func(tx store.Tx) error { return tx.Pipe(t.Context(), store.InsertHolds(holds)) }); err != nil {
			t.Fatal(err)
		}
		free := map[drover.TaskID]bool{} // those resumed, and those never held
		for _, x := range tasks[260:] {
			free[x.ID] = true
		}
		n := 0
		for {
			list := claim(t, db, store.Claim{Max: 1 + n%17, Session: 1, AfterClass: -1})
			if len(list) == 0 {
				break
			}
			for _, c := range list {
				if n++; !free[c.ID] {
					t.Fatalf("task %s of a held job is claimed", c.ID)
				}
			}
		}
		if n != len(free) {
			t.Fatalf("%d of %d tasks behind held ones are claimed", n, len(free))
		}
	})
}

// TestAClaimDoesNotWaitForAnother: rows that another claim has taken, and not
// committed, are stepped over.
func TestAClaimDoesNotWaitForAnother(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		if db.Dialect() == driver.SQLite {
			return // one writer
		}
		put(t, db, queued(db, 20, func(i int, x *lifecycle.Task) { x.Lane = int32(1 + i%2) }))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var first, second []store.Claimed
		err := db.Write(ctx, func(tx store.Tx) (err error) {
			if first, err = store.ClaimTasks(ctx, tx, db.Dialect(), store.Claim{Queue: 1, Max: 8, Session: 1, AfterClass: -1, Now: now}); err != nil {
				return err
			}
			return db.Write(ctx, func(tx store.Tx) (err error) {
				second, err = store.ClaimTasks(ctx, tx, db.Dialect(), store.Claim{Queue: 1, Max: 8, Session: 2, AfterClass: -1, Now: now})
				return err
			})
		})
		if err != nil || len(first) != 8 || len(second) != 8 {
			t.Fatalf("claims of %d and %d, %v", len(first), len(second), err)
		}
		for _, a := range first {
			for _, b := range second {
				if a.ID == b.ID {
					t.Fatalf("task %s is claimed twice", a.ID)
				}
			}
		}
	})
}
