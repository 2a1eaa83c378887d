package engine_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store/driver"
)

// counting is a driver that counts the statements that are run, the trips, and the rows
// that are read.
type counting struct {
	driver.Driver
	statements, trips, rows atomic.Int64

	mu    sync.Mutex
	named map[string]int // statements by name; counted when it is not nil
	read  map[string]int // the rows that they gave
	asked int            // rows of lines of task_ready to count, at most
}

// listen counts by name from now on.
func (c *counting) listen() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.named, c.read, c.asked = map[string]int{}, map[string]int{}, 0
}

// gave counts a row by the name of its statement.
func (c *counting) gave(s driver.Stmt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.read != nil {
		c.read[s.Text.Name]++
	}
}

// note counts a statement by its name.
func (c *counting) note(s driver.Stmt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.named == nil {
		return
	}
	if c.named[s.Text.Name]++; s.Text.Name == "count of lines of task_ready" {
		for _, n := range s.Cols[3].([]int32) {
			c.asked += int(n)
		}
	}
}

func (c *counting) Write(ctx context.Context, fn func(driver.Tx) error) error {
	return c.Driver.Write(ctx, func(tx driver.Tx) error { return fn(countingTx{tx, c}) })
}

func (c *counting) Read(ctx context.Context, fn func(driver.Tx) error) error {
	return c.Driver.Read(ctx, func(tx driver.Tx) error { return fn(countingTx{tx, c}) })
}

type countingTx struct {
	driver.Tx
	c *counting
}

func (x countingTx) Pipe(ctx context.Context, list ...driver.Stmt) error {
	n := int64(0)
	list = slices.Clone(list)
	for i, s := range list {
		if s.Scan != nil {
			list[i].Scan = func(r driver.Row) error {
				x.c.rows.Add(1)
				x.c.gave(s)
				return s.Scan(r)
			}
		}
		if s.Text != nil && (len(s.Cols) == 0 || driver.Len(s.Cols) > 0) {
			n++
			x.c.note(s)
		}
	}
	if x.c.statements.Add(n); n > 0 {
		x.c.trips.Add(1)
	}
	return x.Tx.Pipe(ctx, list...)
}

// TestASettleTakesAConstantNumberOfStatements whatever the graph: for a batch, however
// many tasks end in it, are released, blocked, skipped one after the other by rules and
// conditions, or called.
func TestASettleTakesAConstantNumberOfStatements(t *testing.T) {
	list := func(n int) string { return strings.TrimSuffix(strings.Repeat("0, ", n), ", ") }
	shapes := map[string]func(n int) (src string, fails func(l drover.Lease) bool){
		"a fan-in": func(n int) (string, func(drover.Lease) bool) {
			return fmt.Sprintf("tasks:\n  m: {run: x, for_each: [%s]}\n  j: {run: x, needs: [m], when: quorum(%d)}\n  k: {run: x, needs: [m]}\n", list(n), n), nil
		},
		"elements with others behind them": func(n int) (string, func(drover.Lease) bool) {
			return fmt.Sprintf("tasks:\n  m: {run: x, for_each: [%s]}\n  o: {run: x, for_each: m}\n  p: {run: x, for_each: o}\n", list(n)), nil
		},
		"a chain that a failure blocks": func(n int) (string, func(drover.Lease) bool) {
			src := "tasks:\n  t0: {run: x}\n"
			for i := 1; i <= n; i++ {
				src += fmt.Sprintf("  t%d: {run: x, needs: [t%d]}\n", i, i-1)
			}
			return src, func(l drover.Lease) bool { return true }
		},
		"a chain of conditions": func(n int) (string, func(drover.Lease) bool) {
			src := "tasks:\n  t0: {run: x}\n"
			for i := 1; i <= n; i++ {
				src += fmt.Sprintf("  t%d: {run: x, when: none_failed, needs: [t%d], if: \"tasks.t0.output == 3 || tasks.t%d.outcome == 'failed'\", default: 0}\n", i, i-1, i-1)
			}
			return strings.Replace(src, "t0: {run: x}", "t0: {run: x, default: 0}", 1), nil
		},
		"fallbacks": func(n int) (string, func(drover.Lease) bool) {
			return fmt.Sprintf("tasks:\n  m: {run: x, for_each: [%s], fallback: f}\n  f: {run: x}\n  j: {run: x, needs: [m]}\n", list(n)), func(l drover.Lease) bool { return l.Name == "m" }
		},
		"what undoes a map": func(n int) (string, func(drover.Lease) bool) {
			return fmt.Sprintf("tasks:\n  m: {run: x, for_each: [%s], compensate: u}\n  z: {run: x}\n  u: {run: x}\n", list(n)), func(l drover.Lease) bool { return l.Name == "z" }
		},
		"elements that make room for others": func(n int) (string, func(drover.Lease) bool) {
			return fmt.Sprintf("tasks:\n  m: {run: x, for_each: [%s], max_parallel: %d}\n  o: {run: x, for_each: m, max_parallel: %[2]d}\n", list(3*n), n), nil
		},
		"elements of which some may fail": func(n int) (string, func(drover.Lease) bool) {
			return fmt.Sprintf("tasks:\n  m: {run: x, for_each: [%s], min_success: 10%%}\n  j: {run: x, needs: [m]}\n", list(n)), func(l drover.Lease) bool { return l.Index%2 == 1 }
		},
		"maps that expand": func(n int) (string, func(drover.Lease) bool) {
			src := "tasks:\n  t0: {run: x}\n"
			for i := 1; i <= n; i++ {
				src += fmt.Sprintf("  m%d: {run: x, needs: [t0], for_each: [1, 2]}\n  j%[1]d: {run: x, needs: [m%[1]d]}\n", i)
			}
			return src, nil
		},
	}
	each(t, func(t *testing.T, w *world) {
		c := &counting{Driver: w.db.Driver}
		w.db.Driver = c
		w.apply("pipeline: first\ntasks:\n  a: {run: x}\n  b: {run: x, needs: [a]}\n") // what a server reads once
		w.submit(drover.NewJob{Pipeline: "first"})
		w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })
		for name, shape := range shapes {
			var of []string
			for _, n := range []int{4, 80} {
				src, fails := shape(n)
				w.apply("pipeline: p\non_failure: continue\n" + src)
				id := w.submit(drover.NewJob{Pipeline: "p"})
				var out []drover.Outcome
				for _, l := range w.acquire(500) {
					if fails != nil && fails(l) {
						out = append(out, failed(l, drover.ClassPermanent, "no"))
					} else {
						out = append(out, ok(l, "1"))
					}
				}
				c.statements.Store(0)
				c.trips.Store(0)
				w.settle(out...)
				of = append(of, fmt.Sprintf("%d in %d trips", c.statements.Load(), c.trips.Load()))
				if c.statements.Load() > 40 || c.statements.Load() < 5 {
					t.Errorf("%s of %d: %d statements", name, n, c.statements.Load())
				}
				for range 200 { // whatever comes after it
					if len(w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") })) == 0 {
						break
					}
				}
				if !w.job(id).Status.Final() {
					t.Errorf("%s of %d: the job has not ended", name, n)
				}
			}
			if t.Logf("%s: %s", name, of); of[0] != of[1] {
				t.Errorf("%s: a batch of 4 takes %s statements, of 80 %s", name, of[0], of[1])
			}
		}
	})
}

// TestUndoingATaskReadsNoMoreInALongJob: what is undone before and after it is not read
// again with every task, whether tasks are undone one by one or elements of a map together.
func TestUndoingATaskReadsNoMoreInALongJob(t *testing.T) {
	shapes := map[string]func(n int) string{
		"a chain": func(n int) string {
			var b strings.Builder
			for i := range n {
				fmt.Fprintf(&b, "  t%d: {run: x, compensate: u%[1]d}\n  u%[1]d: {run: x}\n", i)
			}
			return b.String()
		},
		"two maps in turn": func(n int) string {
			list := strings.TrimSuffix(strings.Repeat("0, ", n/2), ", ")
			return fmt.Sprintf("  a: {run: x, for_each: [%s], compensate: ua}\n  b: {run: x, for_each: a, class: interactive, compensate: ub}\n  ua: {run: x}\n  ub: {run: x}\n", list)
		},
	}
	each(t, func(t *testing.T, w *world) {
		c := &counting{Driver: w.db.Driver}
		w.db.Driver = c
		for name, shape := range shapes {
			var of []int64
			for _, n := range []int{40, 120} {
				w.apply("pipeline: p\ntasks:\n" + shape(n) + "  z: {run: x}\n")
				id := w.submit(drover.NewJob{Pipeline: "p"})
				var z drover.Lease
				for done := 0; done < n || z.Name == ""; {
					for _, l := range w.acquire(1) {
						if l.Name == "z" {
							z = l
							continue
						}
						done++
						w.settle(ok(l, "1"))
					}
				}
				c.rows.Store(0)
				w.settle(failed(z, drover.ClassPermanent, "no"))
				undone := 0
				for !w.job(id).Status.Final() {
					undone += len(w.work(func(l drover.Lease) drover.Outcome { return ok(l, "1") }))
				}
				if undone != n {
					t.Fatalf("%s of %d: %d were undone", name, n, undone)
				}
				of = append(of, c.rows.Load()/int64(n))
				w.audit()
			}
			if t.Logf("%s: %d rows for each task", name, of); of[1] > of[0]*3/2 {
				t.Errorf("%s: to undo one of 40 tasks %d rows are read, one of 120 %d", name, of[0], of[1])
			}
		}
	})
}
