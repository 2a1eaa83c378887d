package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/embedded"
	"github.com/drover-dev/drover/worker"
)

func Example() {
	dir, err := os.MkdirTemp("", "drover")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx, stop := context.WithCancel(context.Background())
	d, err := embedded.Open(ctx, embedded.Config{DatabaseURL: "sqlite:" + filepath.Join(dir, "drover.db")})
	if err != nil {
		log.Fatal(err)
	}
	w := worker.New(d, worker.Config{Slots: 2})
	worker.Handle(w, "greet", func(_ context.Context, _ *worker.Task, name string) (string, error) {
		return "Hello, " + name, nil
	})
	var g errgroup.Group
	g.Go(func() error { return d.Run(ctx) }) // retries, timers, clean-up
	g.Go(func() error { return w.Run(ctx) })

	s, err := d.Submit(ctx, drover.NewJob{Kind: "greet", Input: []byte(`"Ada"`)})
	if err != nil {
		log.Fatal(err)
	}
	job, err := d.WaitJob(ctx, s.JobID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(job.Status, string(job.Result))

	stop()
	if err := g.Wait(); err != nil {
		log.Fatal(err)
	}
	if err := d.Close(); err != nil {
		log.Fatal(err)
	}
	// Output: SUCCEEDED "Hello, Ada"
}

// A handler does alone what two must not do at once. What it writes to keeps the
// highest token that it has seen, and refuses a lower one: of a handler that has lost
// its lease and does not know.
func Example_lock() {
	dir, err := os.MkdirTemp("", "drover")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx, stop := context.WithCancel(context.Background())
	d, err := embedded.Open(ctx, embedded.Config{DatabaseURL: "sqlite:" + filepath.Join(dir, "drover.db")})
	if err != nil {
		log.Fatal(err)
	}
	var ledger struct {
		last  int
		token int64
	}
	w := worker.New(d, worker.Config{Slots: 4})
	w.HandleFunc("book", func(ctx context.Context, t *worker.Task) (any, error) {
		l, err := t.Lock(ctx, "ledger")
		if err != nil {
			return nil, err
		}
		if l.Token < ledger.token {
			return nil, errors.New("another one has the lock by now")
		}
		ledger.token = l.Token
		ledger.last++
		return ledger.last, l.Unlock()
	})
	var g errgroup.Group
	g.Go(func() error { return d.Run(ctx) })
	g.Go(func() error { return w.Run(ctx) })

	for range 4 {
		s, err := d.Submit(ctx, drover.NewJob{Kind: "book"})
		if err != nil {
			log.Fatal(err)
		}
		if _, err := d.WaitJob(ctx, s.JobID); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(ledger.last)

	stop()
	if err := g.Wait(); err != nil {
		log.Fatal(err)
	}
	if err := d.Close(); err != nil {
		log.Fatal(err)
	}
	// Output: 4
}
