package store

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-dev/drover/internal/store/driver"
)

// far is a database whose clock is an hour ahead and whose answers take a while,
// on the way there and back.
type far struct {
	driver.Driver
	connect     time.Duration // of the next reading
	there, back time.Duration
}

func (f *far) Clock(context.Context) (time.Time, error) {
	time.Sleep(f.connect + f.there)
	f.connect = 0
	t := time.Now().Add(time.Hour)
	time.Sleep(f.back)
	return t, nil
}

// The first reading of a program is as slow as the connection is to make. Were it
// taken for the truth, a server on a slow network would begin ahead of the database.
func TestConnectingDoesNotSetTheClockAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &DB{Driver: &far{connect: 3 * time.Second, there: time.Millisecond, back: time.Millisecond}}
		if err := db.SyncClock(t.Context()); err != nil {
			t.Fatal(err)
		}
		if d := db.Now().Sub(time.Now().Add(time.Hour).Truncate(time.Microsecond)); d > time.Millisecond || d < -time.Millisecond {
			t.Errorf("the clock is off by %v", d)
		}
	})
}

// A process that was stopped, or cut off, while it read the database's clock knows
// little of it. Were it taken for the truth, leases would run out and tasks start
// seconds too early.
func TestSlowReadingOfTheClockDoesNotReplaceABetterOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &far{there: 2 * time.Millisecond, back: 4 * time.Millisecond}
		db := &DB{Driver: f}
		off := func() time.Duration { return db.Now().Sub(time.Now().Add(time.Hour).Truncate(time.Microsecond)) }
		for _, c := range []struct {
			there, back time.Duration
			most        time.Duration
		}{
			{2 * time.Millisecond, 4 * time.Millisecond, time.Millisecond},
			{8 * time.Second, 0, time.Millisecond}, // it would be 4 s ahead
			{0, 8 * time.Second, time.Millisecond},
			{0, 9 * time.Millisecond, 5 * time.Millisecond}, // good enough after so long
			{0, 0, 0},
		} {
			f.there, f.back = c.there, c.back
			if err := db.SyncClock(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
			if d := off(); d > c.most || d < -c.most {
				t.Errorf("after a reading that took %v there and %v back the clock is off by %v, want at most %v", c.there, c.back, d, c.most)
			}
		}
		// A network that stays slow is believed in the end.
		f.there, f.back = 100*time.Millisecond, 100*time.Millisecond
		for range 100 {
			if err := db.SyncClock(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
		}
		if db.clock.off != 100*time.Millisecond {
			t.Errorf("after minutes of slow readings the clock is off by at most %v, want one of them taken: 100ms", db.clock.off)
		}
	})
}
