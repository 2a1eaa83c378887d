package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-dev/drover"
)

// echo is a batcher of numbers that answers each with its double after 10 ms
// and writes down its batches. A negative number is refused.
type echo struct {
	*batcher[int, int, int]
	mu      sync.Mutex
	batches [][]int
	down    bool
}

var errPoison = errors.New("poison")

func newEcho(max, room int, key func(int) int) *echo {
	e := &echo{}
	e.batcher = newBatcher(max, room, 1, time.Second, key, func(int) int { return 1 }, func(n int) bool { return n != 1 }, func(ctx context.Context, in []int) ([]int, error) {
		e.mu.Lock()
		e.batches = append(e.batches, in)
		e.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
		out := make([]int, len(in))
		for i, n := range in {
			switch {
			case n == -100:
				panic("one hundred below")
			case n == -200, e.down:
				return nil, errPoison
			case n < 0:
				return nil, drover.Errorf(drover.CodeValidation, "%d is negative", n)
			}
			out[i] = 2 * n
		}
		return out, ctx.Err()
	})
	return e
}

func one(int) int { return 0 }

// run starts the batcher and returns what stops it and waits for its end.
func (e *echo) run(t *testing.T, workers int) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	e.Open()
	go func() { defer close(ended); e.Run(ctx, workers) }()
	synctest.Wait()
	return func() { cancel(); <-ended }
}

func TestBatchTakesWhatArrivedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEcho(3, 100, one)
		defer e.run(t, 1)()
		var wg sync.WaitGroup
		for n := range 8 {
			wg.Go(func() {
				time.Sleep(time.Duration(n)) // one after the other
				if got, err := e.Do(t.Context(), n); got != 2*n || err != nil {
					t.Errorf("Do(%d) = %d, %v", n, got, err)
				}
			})
		}
		wg.Wait()
		if want := [][]int{{0}, {1, 2, 3}, {4, 5, 6}, {7}}; !slices.EqualFunc(e.batches, want, slices.Equal) {
			t.Errorf("batches = %v, want %v", e.batches, want)
		}
	})
}

func TestRefusedCallRefusesNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEcho(100, 100, one)
		defer e.run(t, 1)()
		var wg sync.WaitGroup
		for n := range 20 {
			in := n
			if n == 7 || n == 13 {
				in = -n
			}
			wg.Go(func() {
				got, err := e.Do(t.Context(), in)
				if in < 0 && !errors.Is(err, drover.ErrInvalid) {
					t.Errorf("Do(%d) = %v, want a refusal", in, err)
				}
				if in >= 0 && (got != 2*in || err != nil) {
					t.Errorf("Do(%d) = %d, %v", in, got, err)
				}
			})
		}
		wg.Wait()
	})
}

func TestPanicFailsItsBatchOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEcho(100, 100, one)
		defer e.run(t, 1)()
		if _, err := e.Do(t.Context(), -100); err == nil {
			t.Error("a batch that panicked answered without an error")
		}
		if got, err := e.Do(t.Context(), 4); got != 8 || err != nil {
			t.Errorf("after a panic: Do(4) = %d, %v", got, err)
		}
	})
}

func TestPoisonFailsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEcho(100, 100, one)
		defer e.run(t, 1)()
		go e.Do(t.Context(), 0) // gathers the others behind it
		synctest.Wait()
		var wg sync.WaitGroup
		for _, n := range []int{2, 3, -200, 4, 1} {
			wg.Go(func() {
				got, err := e.Do(t.Context(), n)
				switch { // 1 may not be repeated, so nobody knows what became of it
				case (n == -200 || n == 1) && !errors.Is(err, errPoison):
					t.Errorf("Do(%d) = %v, want the failure", n, err)
				case n > 1 && (got != 2*n || err != nil):
					t.Errorf("Do(%d) = %d, %v", n, got, err)
				}
			})
		}
		wg.Wait()
	})
}

func TestFailureOfEverythingIsNotTriedForEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEcho(100, 100, one)
		e.down = true
		defer e.run(t, 1)()
		go e.Do(t.Context(), 0)
		synctest.Wait()
		var wg sync.WaitGroup
		for n := range 50 {
			wg.Go(func() {
				if _, err := e.Do(t.Context(), n+2); !errors.Is(err, errPoison) {
					t.Errorf("Do(%d) = %v, want the failure", n+2, err)
				}
			})
		}
		wg.Wait()
		if len(e.batches) > 6 {
			t.Errorf("%d tries of a store that is down, want few", len(e.batches))
		}
	})
}

func TestCallerThatLeavesDoesNotEndTheBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEcho(100, 100, one)
		defer e.run(t, 1)()
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("client left")
		var wg sync.WaitGroup
		wg.Go(func() { // in the batch under way
			if _, err := e.Do(ctx, 1); !errors.Is(err, gone) {
				t.Errorf("err = %v, want the cause of the end", err)
			}
		})
		synctest.Wait()
		wg.Go(func() { // still in line
			if _, err := e.Do(ctx, 2); !errors.Is(err, gone) {
				t.Errorf("err = %v, want the cause of the end", err)
			}
		})
		wg.Go(func() {
			if got, err := e.Do(t.Context(), 3); got != 6 || err != nil {
				t.Errorf("Do(3) = %d, %v", got, err)
			}
		})
		synctest.Wait()
		cancel(gone)
		wg.Wait()
		if want := [][]int{{1}, {3}}; !slices.EqualFunc(e.batches, want, slices.Equal) {
			t.Errorf("batches = %v, want %v: the one in line is withdrawn, the one taken goes on", e.batches, want)
		}
		if got, err := e.Do(t.Context(), 4); got != 8 || err != nil { // a withdrawn line works again
			t.Errorf("Do(4) = %d, %v", got, err)
		}
	})
}

func TestWithdrawnLineIsCalledOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEcho(100, 100, func(n int) int { return n % 2 })
		defer e.run(t, 1)()
		go e.Do(t.Context(), 1) // keeps the only worker busy
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		go e.Do(ctx, 2)
		synctest.Wait()
		cancel()
		synctest.Wait()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if got, err := e.Do(t.Context(), 4); got != 8 || err != nil {
					t.Errorf("Do(4) = %d, %v", got, err)
				}
			})
		}
		wg.Wait()
		e.mu.Lock()
		defer e.mu.Unlock()
		if len(e.batches) != 2 {
			t.Errorf("batches = %v, want two", e.batches)
		}
	})
}

func TestKeysDoNotShareAndDoNotBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEcho(100, 100, func(n int) int { return n % 2 })
		defer e.run(t, 2)()
		start := time.Now()
		var wg sync.WaitGroup
		for n := range 6 {
			wg.Go(func() { e.Do(t.Context(), n) })
		}
		wg.Wait()
		for _, b := range e.batches {
			for _, n := range b {
				if n%2 != b[0]%2 {
					t.Errorf("batch %v mixes keys", b)
				}
			}
		}
		if took := time.Since(start); took > 20*time.Millisecond {
			t.Errorf("two lines took %s, want them beside each other", took)
		}
	})
}

// TestSomeBatchesOfAKeyGoAbreast, and no more than that.
func TestSomeBatchesOfAKeyGoAbreast(t *testing.T) {
	for abreast, want := range map[int]time.Duration{1: 60 * time.Millisecond, 2: 30 * time.Millisecond, 3: 20 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			e := newEcho(1, 100, one)
			e.abreast = abreast
			defer e.run(t, 3)()
			start := time.Now()
			var wg sync.WaitGroup
			for n := range 6 {
				wg.Go(func() {
					if got, err := e.Do(t.Context(), 10+n); got != 2*(10+n) || err != nil {
						t.Errorf("%d: %d, %v", n, got, err)
					}
				})
			}
			wg.Wait()
			if took := time.Since(start); took != want {
				t.Errorf("six batches, %d abreast, took %s; want %s", abreast, took, want)
			}
			synctest.Wait() // the last caller is answered before its worker drops the line
			if len(e.lines) > 0 {
				t.Errorf("%d lines are kept", len(e.lines))
			}
		})
	}
}

func TestWeightBoundsABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEcho(10, 100, one)
		e.weigh = func(n int) int { return n }
		defer e.run(t, 1)()
		go e.Do(t.Context(), 1)
		synctest.Wait()
		var wg sync.WaitGroup
		for i, n := range []int{4, 5, 3, 50, 1} {
			wg.Go(func() {
				time.Sleep(time.Duration(i))
				e.Do(t.Context(), n)
			})
		}
		wg.Wait()
		if want := [][]int{{1}, {4, 5}, {3}, {50}, {1}}; !slices.EqualFunc(e.batches, want, slices.Equal) {
			t.Errorf("batches = %v, want %v", e.batches, want)
		}
	})
}

func TestBatcherRefusesBeforeAfterAndWhenFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEcho(1, 2, one)
		refused := func(when string) {
			t.Helper()
			if _, err := e.Do(t.Context(), 1); !errors.Is(err, drover.ErrOverloaded) {
				t.Errorf("%s: err = %v, want overloaded", when, err)
			}
		}
		refused("before Run")
		stop := e.run(t, 1)
		for range 3 {
			go e.Do(t.Context(), 1) // one under way, two in line
			synctest.Wait()
		}
		refused("with a full line")
		stop()
		refused("after Run")
		if len(e.batches) != 3 {
			t.Errorf("%d batches, want 3: what was accepted is carried out", len(e.batches))
		}
	})
}

func TestContentionIsWaitedForAndBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries, start := 0, time.Now()
		got, err := uncontended(t.Context(), func() (string, bool, error) {
			tries++
			return fmt.Sprint("try ", tries), tries < 4, nil
		})
		if got != "try 4" || err != nil || time.Since(start) > time.Second {
			t.Errorf("after %s: %q, %v", time.Since(start), got, err)
		}
		start = time.Now()
		_, err = uncontended(t.Context(), func() (int, bool, error) { return 0, true, nil })
		if d := time.Since(start); err != nil || d != contendedFor {
			t.Errorf("gave up after %s with %v, want %s and the last answer", d, err, contendedFor)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := uncontended(ctx, func() (int, bool, error) { return 0, true, nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("err = %v, want the caller's deadline", err)
		}
	})
}
