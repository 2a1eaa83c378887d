package worker

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

// TestALockIsAskedForUnderOneNumber however often, until it is there, refused or given up.
func TestALockIsAskedForUnderOneNumber(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(lease(1, "it", "null"))
		var asked []drover.NewLock
		p.onLock = func(n drover.NewLock) (drover.Lock, error) {
			asked = append(asked, n)
			switch {
			case n.Name == "ring":
				return drover.Lock{}, drover.Errorf(drover.CodeDeadlock, "a ring")
			case n.Name == "never":
				rest(n.Wait.Std())
				return drover.Lock{Position: 3}, nil
			case len(asked) == 1:
				return drover.Lock{}, errors.New("the connection broke")
			case len(asked) == 2:
				return drover.Lock{Position: 2}, nil
			}
			return drover.Lock{Granted: true, Token: 7}, nil
		}
		var meets []drover.NewMeeting
		p.onMeet = func(n drover.NewMeeting) (drover.Meeting, error) {
			meets = append(meets, n)
			return drover.Meeting{Parties: n.Parties, Arrived: 1, Met: n.Name == "met"}, nil
		}
		w := New(p, Config{Slots: 1})
		w.HandleFunc("it", func(ctx context.Context, task *Task) (any, error) {
			l, err := task.Lock(ctx, "a")
			if err != nil || l.Token != 7 {
				t.Errorf("lock = %+v, %v", l, err)
			}
			if err := l.Unlock(); err != nil {
				t.Error(err)
			}
			if _, err := task.Acquire(ctx, "ring", 2); !errors.Is(err, drover.ErrDeadlock) {
				t.Errorf("a ring: %v", err)
			}
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if _, err := task.Lock(short, "never"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("given up: %v", err)
			}
			if _, err := task.Acquire(ctx, "a", 0); err == nil {
				t.Error("nothing is asked for and had")
			}
			for range 2 {
				if err := task.Barrier(ctx, "met", 2); err != nil {
					t.Error(err)
				}
			}
			return nil, nil
		})
		r := run1(t, w)
		rest(10 * time.Second)
		p.outcome(t, 1)
		r.wait(t)
		for i, want := range []int32{1, 1, 1, 2, 3} {
			if n := asked[i]; n.Number != want || n.Wait <= 0 || n.Wait > protocol.MaxWait || n.Exclusive != (n.Name != "ring") {
				t.Errorf("request %d is %+v, want number %d", i, n, want)
			}
		}
		if want := []int32{1, 3}; !slices.Equal(p.unlocked, want) { // what was had, and what was given up
			t.Errorf("given back are %v, want %v", p.unlocked, want)
		}
		if len(meets) != 2 || meets[0].Round != 1 || meets[1].Round != 2 || meets[1].Number != meets[0].Number+1 {
			t.Errorf("meetings are %+v", meets)
		}
	})
}

// TestATaskMadeByHandLocksNothing, in a test of a handler.
func TestATaskMadeByHandLocksNothing(t *testing.T) {
	t.Parallel()
	task := &Task{}
	if _, err := task.Lock(t.Context(), "a"); err == nil {
		t.Error("it has a lock")
	}
	if err := task.Barrier(t.Context(), "a", 2); err == nil {
		t.Error("it has met others")
	}
}
