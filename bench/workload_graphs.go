package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// graphRun runs one job of many tasks N times, one after the other, after one
// that is not measured.
func graphRun(ctx context.Context, r *run) error {
	g, ok := r.system.(grapher)
	if !ok {
		return errors.New("it has no graphs")
	}
	if err := errors.Join(r.work(ctx), g.prepare(ctx, r.Shape)); err != nil {
		return err
	}
	var took []time.Duration
	for n := range r.N + 1 {
		began := time.Now()
		if err := g.graph(ctx, r.Shape); err != nil {
			r.void = err.Error()
			return nil
		}
		if n > 0 {
			took = append(took, time.Since(began))
		}
	}
	want := (r.N + 1) * r.Shape.tasks()
	done, err := g.steps(ctx)
	if err != nil {
		return err
	}
	if entries := int(r.entered().n.Load()); done != want || entries != want {
		r.void = fmt.Sprintf("%d tasks, %d entries, %d finished", want, entries, done)
	}
	p50 := quantile(took, 0.5)
	r.values["ms/job"] = milliseconds(p50)
	r.values["tasks/s"] = float64(r.Shape.tasks()) / p50.Seconds()
	return nil
}

// graphs: jobs of many tasks, of three shapes.
func (b *bench) graphs() error {
	for _, w := range []struct {
		spec
		systems []string
	}{
		{spec{N: 10, Shape: shape{Name: "fan", Width: 1000, Depth: 1}}, []string{"drover", "dbos", "drover-http"}},
		{spec{N: 1, Shape: shape{Name: "chain", Width: 1, Depth: 1000}}, []string{"drover", "dbos", "drover-http"}},
		{spec{N: 1, Shape: shape{Name: "layers", Width: 10_000, Depth: 10}}, []string{"drover", "drover-http"}},
	} {
		if err := b.rounds(w.Shape.Name, forEach(w.spec, w.systems, nil)...); err != nil {
			return err
		}
	}
	return nil
}
