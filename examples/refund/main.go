// Command refund is an example: goods come back and the money goes back, and when a
// later step cannot be done, what was done is undone, the last first. Everything runs
// in this one process.
//
//	go run ./examples/refund
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/embedded"
	"github.com/drover-dev/drover/worker"
)

//go:embed pipeline.yaml
var pipeline []byte

// refunds are what the example puts through: the second customer cannot be reached.
var refunds = []json.RawMessage{
	json.RawMessage(`{"order": "A-1", "item": "kettle", "amount": 40}`),
	json.RawMessage(`{"order": "A-2", "item": "lamp", "amount": 25}`),
}

func main() {
	dir, err := os.MkdirTemp("", "drover-refund")
	if err == nil {
		err = run(context.Background(), os.Stdout, dir)
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if err != nil {
		log.Fatal(err)
	}
}

// run puts the refunds through the pipeline, with its state in dir, and prints what
// came of them.
func run(ctx context.Context, out io.Writer, dir string) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	d, err := embedded.Open(ctx, embedded.Config{DatabaseURL: "sqlite:" + filepath.Join(dir, "drover.db"), Artifacts: filepath.Join(dir, "artifacts")})
	if err != nil {
		return err
	}
	s := newShop()
	w := worker.New(d, worker.Config{Slots: 2})
	s.handle(w)
	var g errgroup.Group
	g.Go(func() error { return d.Run(ctx) }) // retries, timers, clean-up
	g.Go(func() error { return w.Run(ctx) })
	err = refundAll(ctx, out, d, s)
	stop()
	return errors.Join(err, g.Wait(), d.Close())
}

func refundAll(ctx context.Context, out io.Writer, d *embedded.Drover, s *shop) error {
	p, err := d.Client().ApplyPipeline(ctx, "pipeline.yaml", pipeline)
	if err != nil {
		return err
	}
	for _, input := range refunds {
		sub, err := d.Submit(ctx, drover.NewJob{Pipeline: p.Name, Input: input})
		if err != nil {
			return err
		}
		job, err := d.WaitJob(ctx, sub.JobID)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s %s: %s\n", input, job.Status, strings.Join(s.told(), ", "))
		if c := job.Compensation; c != nil {
			for _, t := range c.Tasks {
				fmt.Fprintf(out, "  %s undone by %s: %s\n", t.Task, t.By, t.Status)
			}
		}
	}
	_, err = fmt.Fprintf(out, "for sale: %d kettle, %d lamp; paid back: %d\n", s.stock["kettle"], s.stock["lamp"], s.paid)
	return err
}
