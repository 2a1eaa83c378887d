// Command map-reduce is an example: 10,000 small files are counted, each by a task
// of its own, and the counts added up. The pipeline is built in Go.
//
//	go run ./examples/map-reduce
//	go run ./examples/map-reduce -files 500
//
// A task for each small file shows what Drover takes. Where time matters, give
// each task several: "drover pipeline lint" says so when a task runs for less than
// five times of what it costs to hand it out.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/embedded"
	"github.com/drover-dev/drover/flow"
	"github.com/drover-dev/drover/worker"
)

func main() {
	files := flag.Int("files", 10_000, "how many files are made and counted, at most 10,000")
	flag.Parse()
	dir, err := os.MkdirTemp("", "drover-words")
	if err == nil {
		_, err = run(context.Background(), os.Stdout, dir, *files)
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if err != nil {
		log.Fatal(err)
	}
}

// definition is the pipeline: list the files, count each, add up.
func definition() ([]byte, error) {
	p := flow.New("map-reduce").
		Describe("The words of many small files are counted, a task for each file.").
		InputSchema(map[string]any{"type": "object", "required": []string{"folder"}, "properties": map[string]any{"folder": map[string]any{"type": "string"}}})
	list := p.Task("list", flow.Run("list"), flow.With(map[string]any{"folder": flow.Input("folder")}))
	count := p.Map("count", list.Output("files"), flow.Run("count"), flow.With(map[string]any{"folder": flow.Input("folder"), "file": flow.Item()}))
	flow.Chord(count, p.Task("total", flow.Run("total"))) // gets the list of all counts, in the order of the files
	return p.JSON()
}

// Counts are words and how often they stand there.
type Counts map[string]int

// run makes files in dir, has them counted and prints what came of it.
func run(ctx context.Context, out io.Writer, dir string, files int) (Counts, error) {
	folder := filepath.Join(dir, "texts")
	if err := write(folder, files); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	d, err := embedded.Open(ctx, embedded.Config{DatabaseURL: "sqlite:" + filepath.Join(dir, "drover.db")})
	if err != nil {
		return nil, err
	}
	w := worker.New(d, worker.Config{Slots: 200})
	worker.Handle(w, "list", list)
	worker.Handle(w, "count", count)
	worker.Handle(w, "total", total)
	var g errgroup.Group
	g.Go(func() error { return d.Run(ctx) }) // retries, timers, clean-up
	g.Go(func() error { return w.Run(ctx) })
	counts, err := submit(ctx, out, d, folder)
	stop()
	return counts, errors.Join(err, g.Wait(), d.Close())
}

func submit(ctx context.Context, out io.Writer, d *embedded.Drover, folder string) (Counts, error) {
	def, err := definition()
	if err != nil {
		return nil, err
	}
	p, err := d.Client().ApplyPipeline(ctx, "map-reduce.json", def)
	if err != nil {
		return nil, err
	}
	input, err := json.Marshal(map[string]string{"folder": folder})
	if err != nil {
		return nil, err
	}
	start := time.Now()
	s, err := d.Submit(ctx, drover.NewJob{Pipeline: p.Name, Input: input})
	if err != nil {
		return nil, err
	}
	job, err := d.WaitJob(ctx, s.JobID)
	if err != nil {
		return nil, err
	}
	if job.Status != drover.Succeeded {
		return nil, fmt.Errorf("job %s is %s", job.ID, job.Status)
	}
	var counts Counts
	if err := json.Unmarshal(job.Result, &counts); err != nil {
		return nil, err
	}
	took := time.Since(start)
	fmt.Fprintf(out, "%d tasks in %s\n", job.Tasks.Total, took.Round(time.Millisecond))
	words := slices.SortedFunc(maps.Keys(counts), func(a, b string) int { return counts[b] - counts[a] })
	for _, word := range words[:min(3, len(words))] {
		fmt.Fprintf(out, "  %-8s %d\n", word, counts[word])
	}
	return counts, nil
}

var vocabulary = strings.Fields("queue task lease worker fence event retry graph batch clock")

// write makes small files, the same ones whenever it is asked for as many.
func write(folder string, files int) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range files {
		var text strings.Builder
		for range 1 + rng.IntN(20) {
			text.WriteString(vocabulary[min(rng.IntN(10), rng.IntN(10))] + " ")
		}
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("%05d.txt", i)), []byte(text.String()), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func list(_ context.Context, _ *worker.Task, in struct{ Folder string }) (map[string][]string, error) {
	entries, err := os.ReadDir(in.Folder)
	if err != nil {
		return nil, err
	}
	files := make([]string, len(entries))
	for i, e := range entries {
		files[i] = e.Name()
	}
	return map[string][]string{"files": files}, nil
}

func count(_ context.Context, _ *worker.Task, in struct{ Folder, File string }) (Counts, error) {
	text, err := os.ReadFile(filepath.Join(in.Folder, in.File))
	if err != nil {
		return nil, err
	}
	c := Counts{}
	for word := range strings.FieldsSeq(string(text)) {
		c[word]++
	}
	return c, nil
}

func total(_ context.Context, _ *worker.Task, parts []Counts) (Counts, error) {
	sum := Counts{}
	for _, p := range parts {
		for word, n := range p {
			sum[word] += n
		}
	}
	return sum, nil
}
