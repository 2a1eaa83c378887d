package embedded

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/worker"
)

// serve runs a worker with handlers until the test ends.
func serve(t *testing.T, d *Drover, slots int, handlers map[string]worker.Handler) {
	t.Helper()
	w := worker.New(d, worker.Config{Slots: slots, Grace: 5 * time.Second})
	for kind, h := range handlers {
		w.HandleFunc(kind, h)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("worker: %v", err)
		}
	})
}

func runAll(t *testing.T, d *Drover, jobs ...drover.NewJob) {
	t.Helper()
	var ids []drover.JobID
	for _, j := range jobs {
		s, err := d.Submit(t.Context(), j)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, s.JobID)
	}
	for _, id := range ids {
		if j, err := d.WaitJob(t.Context(), id); err != nil || j.Status != drover.Succeeded {
			t.Fatalf("job = %+v, %v", j, err)
		}
	}
}

// inside counts who is where only so many may be.
type inside struct {
	mu        sync.Mutex
	now, most int
	tokens    []int64
}

func (c *inside) enter(token int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now++
	c.most = max(c.most, c.now)
	c.tokens = append(c.tokens, token)
}

func (c *inside) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now--
}

func TestHandlersTakeTurnsAtALockAndShareASemaphore(t *testing.T) {
	onEach(t, func(t *testing.T, d *Drover) {
		if _, err := d.Client().SetLimit(t.Context(), "vendor", drover.NewLimit{Max: 3}, client.LimitChange{}); err != nil {
			t.Fatal(err)
		}
		var lock, vendor inside
		serve(t, d, 8, map[string]worker.Handler{"both": func(ctx context.Context, task *worker.Task) (any, error) {
			for range 2 {
				l, err := task.Lock(ctx, "numbers")
				if err != nil {
					return nil, err
				}
				lock.enter(l.Token)
				lock.leave()
				if err := l.Unlock(); err != nil {
					return nil, err
				}
			}
			l, err := task.Acquire(ctx, "vendor", 1)
			if err != nil {
				return nil, err
			}
			vendor.enter(l.Token)
			time.Sleep(5 * time.Millisecond) // for others to come
			vendor.leave()
			return nil, nil // what it holds comes back with its end
		}})
		runAll(t, d, slices.Repeat([]drover.NewJob{{Kind: "both"}}, 12)...)
		if lock.most != 1 || len(lock.tokens) != 24 || !slices.IsSorted(lock.tokens) {
			t.Errorf("%d had the lock at once, %d times, with the tokens %v", lock.most, len(lock.tokens), lock.tokens)
		}
		if vendor.most > 3 || len(vendor.tokens) != 12 {
			t.Errorf("%d had a permit at once, %d times", vendor.most, len(vendor.tokens))
		}
		l, err := d.Client().Limit(t.Context(), "vendor")
		if err != nil || l.Used != 0 || len(l.Holders)+len(l.Waiters) != 0 {
			t.Errorf("in the end %+v, %v", l, err)
		}
	})
}

func TestHandlersMeetAtABarrierRoundByRound(t *testing.T) {
	onEach(t, func(t *testing.T, d *Drover) {
		if _, err := d.Client().ApplyPipeline(t.Context(), "p.yaml", []byte("pipeline: steps\ntasks: {part: {run: part, for_each: [1, 2, 3]}}\n")); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		done := map[int]int{} // by round: who has come
		serve(t, d, 3, map[string]worker.Handler{"part": func(ctx context.Context, task *worker.Task) (any, error) {
			for round := range 3 {
				mu.Lock()
				done[round]++
				mu.Unlock()
				if err := task.Barrier(ctx, "step", 3); err != nil {
					return nil, err
				}
				mu.Lock()
				n := done[round]
				mu.Unlock()
				if n != 3 {
					return nil, worker.Permanent(errors.New("it went on before the others had come"))
				}
			}
			return nil, nil
		}})
		runAll(t, d, drover.NewJob{Pipeline: "steps"})
	})
}

// TestAWaitEndsWithItsContext: a barrier that nobody else comes to, a lock that another
// has. What was waited for is withdrawn.
func TestAWaitEndsWithItsContext(t *testing.T) {
	onEach(t, func(t *testing.T, d *Drover) {
		if _, err := d.Client().ApplyPipeline(t.Context(), "p.yaml", []byte("pipeline: steps\ntasks: {alone: {run: alone}}\n")); err != nil {
			t.Fatal(err)
		}
		held, tried := make(chan struct{}), make(chan struct{})
		serve(t, d, 3, map[string]worker.Handler{
			"holds": func(ctx context.Context, task *worker.Task) (any, error) {
				if _, err := task.Lock(ctx, "a"); err != nil {
					return nil, err
				}
				close(held)
				<-tried
				return nil, nil
			},
			"alone": func(ctx context.Context, task *worker.Task) (any, error) {
				defer close(tried)
				<-held
				short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
				defer cancel()
				_, err := task.Lock(short, "a")
				if !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), "lock a: number 1 in line: ") {
					t.Errorf("lock: %v", err)
				}
				shorter, stop := context.WithTimeout(ctx, 200*time.Millisecond)
				defer stop()
				err = task.Barrier(shorter, "step", 2)
				if !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), "barrier step, round 1: 1 of 2 came: ") {
					t.Errorf("barrier: %v", err)
				}
				if err := task.Barrier(ctx, "step", 1); err != nil {
					t.Errorf("a barrier for one: %v", err)
				}
				if _, err = task.Lock(ctx, "No name"); drover.CodeOf(err) != drover.CodeValidation {
					t.Errorf("a name that is none: %v", err)
				}
				if l, err := d.Client().Limit(ctx, "a"); err != nil || len(l.Holders) != 1 || len(l.Waiters) != 0 {
					t.Errorf("the lock is %+v, %v; want nobody to wait", l, err)
				}
				return nil, nil
			},
		})
		runAll(t, d, drover.NewJob{Kind: "holds"}, drover.NewJob{Pipeline: "steps"})
	})
}
