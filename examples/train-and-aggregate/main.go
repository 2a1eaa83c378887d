// Command train-and-aggregate is an example: collect, preprocess, make features,
// train several models at once, aggregate. Everything runs in this one process.
//
//	go run ./examples/train-and-aggregate
package main

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/embedded"
	"github.com/drover-dev/drover/worker"
)

//go:embed pipeline.yaml
var pipeline []byte

func main() {
	dir, err := os.MkdirTemp("", "drover-train")
	if err == nil {
		err = run(context.Background(), os.Stdout, dir, json.RawMessage(`{}`))
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if err != nil {
		log.Fatal(err)
	}
}

// run puts one job through the pipeline, with its state in dir, and prints what
// came of it.
func run(ctx context.Context, out io.Writer, dir string, input json.RawMessage) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	d, err := embedded.Open(ctx, embedded.Config{DatabaseURL: "sqlite:" + filepath.Join(dir, "drover.db"), Artifacts: filepath.Join(dir, "artifacts")})
	if err != nil {
		return err
	}
	w := worker.New(d, worker.Config{Slots: 4})
	worker.Handle(w, "collect", collect)
	worker.Handle(w, "preprocess", preprocess)
	worker.Handle(w, "features", features)
	worker.Handle(w, "train", train)
	worker.Handle(w, "aggregate", aggregate)
	var g errgroup.Group
	g.Go(func() error { return d.Run(ctx) }) // retries, timers, clean-up
	g.Go(func() error { return w.Run(ctx) })
	err = submit(ctx, out, d, input)
	stop()
	return errors.Join(err, g.Wait(), d.Close())
}

func submit(ctx context.Context, out io.Writer, d *embedded.Drover, input json.RawMessage) error {
	p, err := d.Client().ApplyPipeline(ctx, "pipeline.yaml", pipeline)
	if err != nil {
		return err
	}
	s, err := d.Submit(ctx, drover.NewJob{Pipeline: p.Name, Input: input})
	if err != nil {
		return err
	}
	job, err := d.WaitJob(ctx, s.JobID)
	if err != nil {
		return err
	}
	if job.Status != drover.Succeeded {
		return fmt.Errorf("job %s is %s", job.ID, job.Status)
	}
	var r Report
	if err := json.Unmarshal(job.Result, &r); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d models trained, %d unusable rows left out\n", len(r.Models), r.Dropped)
	for _, m := range r.Models {
		fmt.Fprintf(out, "  penalty %-6g error %.4f\n", m.Penalty, m.Error)
	}
	_, err = fmt.Fprintf(out, "best: penalty %g, kept as %s\n", r.Best.Penalty, r.URI)
	return err
}

// Table is rows of columns; the last column is what is to be told.
type Table struct {
	Rows    [][]float64 `json:"rows"`
	Holdout int         `json:"holdout,omitempty"` // of the rows, the last ones: not trained on
}

// Stored is a table as an artifact.
type Stored struct {
	Table   string `json:"table"` // its URI
	Rows    int    `json:"rows"`
	Columns int    `json:"columns"`
	Dropped int    `json:"dropped"`
}

func save(ctx context.Context, t *worker.Task, name string, table Table) (Stored, error) {
	b, err := json.Marshal(table)
	if err != nil {
		return Stored{}, worker.Permanent(err)
	}
	a, err := t.SaveArtifact(ctx, name, bytes.NewReader(b), worker.WithMediaType("application/json"))
	if err != nil {
		return Stored{}, err
	}
	s := Stored{Table: a.URI, Rows: len(table.Rows)}
	if s.Rows > 0 {
		s.Columns = len(table.Rows[0]) - 1
	}
	return s, nil
}

func open(ctx context.Context, t *worker.Task, uri string) (table Table, err error) {
	r, err := t.OpenArtifact(ctx, uri)
	if err != nil {
		return table, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return table, json.NewDecoder(r).Decode(&table)
}

// unusable stands in a raw table where a measurement is missing.
const unusable = -999

// collect makes the raw table: three measurements and a result that is a square of
// one of them and a little noise. The same task always makes the same table.
func collect(ctx context.Context, t *worker.Task, in struct{ Rows int }) (Stored, error) {
	rng := rand.New(rand.NewPCG(1, 2))
	table := Table{Rows: make([][]float64, in.Rows)}
	for i := range table.Rows {
		a, b, c := rng.NormFloat64()*30+100, rng.NormFloat64(), rng.Float64()*5
		row := []float64{a, b, c, 0.05*a + 2*b*b - 3*c + rng.NormFloat64()*0.3}
		if rng.IntN(20) == 0 {
			row[rng.IntN(3)] = unusable
		}
		table.Rows[i] = row
	}
	return save(ctx, t, "raw.json", table)
}

func preprocess(ctx context.Context, t *worker.Task, in Stored) (Stored, error) {
	table, err := open(ctx, t, in.Table)
	if err != nil {
		return Stored{}, err
	}
	all := len(table.Rows)
	table.Rows = slices.DeleteFunc(table.Rows, func(row []float64) bool { return slices.Contains(row, unusable) })
	s, err := save(ctx, t, "clean.json", table)
	s.Dropped = all - len(table.Rows)
	return s, err
}

// features brings the columns to mean 0 and deviation 1, adds their squares and a
// constant, and keeps a fifth of the rows aside.
func features(ctx context.Context, t *worker.Task, in Stored) (Stored, error) {
	table, err := open(ctx, t, in.Table)
	if err != nil {
		return Stored{}, err
	}
	n := len(table.Rows[0]) - 1
	mean, dev := make([]float64, n), make([]float64, n)
	for _, row := range table.Rows {
		for k := range n {
			mean[k] += row[k] / float64(len(table.Rows))
		}
	}
	for _, row := range table.Rows {
		for k := range n {
			dev[k] += (row[k] - mean[k]) * (row[k] - mean[k]) / float64(len(table.Rows))
		}
	}
	out := Table{Holdout: len(table.Rows) / 5}
	for _, row := range table.Rows {
		x := []float64{1}
		for k := range n {
			z := (row[k] - mean[k]) / math.Sqrt(max(dev[k], 1e-12))
			x = append(x, z, z*z)
		}
		out.Rows = append(out.Rows, append(x, row[n]))
	}
	return save(ctx, t, "features.json", out)
}

// Model is what train makes.
type Model struct {
	Penalty float64   `json:"penalty"`
	Error   float64   `json:"error"` // mean, squared, on the rows kept aside
	Weights []float64 `json:"weights"`
}

// train fits a ridge regression.
func train(ctx context.Context, t *worker.Task, in struct {
	Table   string
	Penalty float64
}) (Model, error) {
	table, err := open(ctx, t, in.Table)
	if err != nil {
		return Model{}, err
	}
	split := len(table.Rows) - table.Holdout
	m := Model{Penalty: in.Penalty, Weights: ridge(table.Rows[:split], in.Penalty)}
	for _, row := range table.Rows[split:] {
		told, n := 0.0, len(row)-1
		for k := range n {
			told += m.Weights[k] * row[k]
		}
		m.Error += (told - row[n]) * (told - row[n]) / float64(table.Holdout)
	}
	return m, nil
}

// ridge solves (XᵀX + penalty·I) w = Xᵀy by elimination.
func ridge(rows [][]float64, penalty float64) []float64 {
	n := len(rows[0]) - 1
	a := make([][]float64, n)
	for i := range a {
		a[i] = make([]float64, n+1)
		a[i][i] = penalty + 1e-9
	}
	for _, row := range rows {
		for i := range n {
			for k := range n {
				a[i][k] += row[i] * row[k]
			}
			a[i][n] += row[i] * row[n]
		}
	}
	for i := range n { // the matrix is positive: no pivot is zero
		for r := range n {
			if r == i {
				continue
			}
			f := a[r][i] / a[i][i]
			for k := i; k <= n; k++ {
				a[r][k] -= f * a[i][k]
			}
		}
	}
	w := make([]float64, n)
	for i := range w {
		w[i] = a[i][n] / a[i][i]
	}
	return w
}

// Report is the job's result.
type Report struct {
	Best    Model   `json:"best"`
	Models  []Model `json:"models"` // best first
	Dropped int     `json:"dropped"`
	URI     string  `json:"uri"` // of the best model
}

func aggregate(ctx context.Context, t *worker.Task, in struct {
	Models  []Model
	Dropped int
}) (Report, error) {
	slices.SortStableFunc(in.Models, func(a, b Model) int { return cmp.Compare(a.Error, b.Error) })
	b, err := json.Marshal(in.Models[0])
	if err != nil {
		return Report{}, worker.Permanent(err)
	}
	a, err := t.SaveArtifact(ctx, "model.json", bytes.NewReader(b), worker.WithMediaType("application/json"))
	if err != nil {
		return Report{}, err
	}
	return Report{Best: in.Models[0], Models: in.Models, Dropped: in.Dropped, URI: a.URI}, nil
}
