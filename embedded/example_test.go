package embedded_test

import (
	"context"
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
