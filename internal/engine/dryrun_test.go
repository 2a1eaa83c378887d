package engine_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/drover-dev/drover"
)

// TestADryRunRefusesWhatASubmitRefuses, tells what one would make, and leaves nothing
// behind, not even the name of a queue.
func TestADryRunRefusesWhatASubmitRefuses(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		w.apply("pipeline: p\ninput: {type: object, required: [n]}\ntasks: {a: {run: x, queue: far, fallback: spare}, b: {run: x, needs: [a]}, spare: {run: x, queue: spare}}\n")
		w.limit("license", drover.NewLimit{Max: 1})
		first := w.submit(drover.NewJob{Kind: "k", IdempotencyKey: "known", Input: json.RawMessage("1")})
		j, repeated, err := w.Preview(ctx, w.c, drover.NewJob{Pipeline: "p", Input: json.RawMessage(`{"n":1}`), Labels: map[string]string{"team": "a"}, IdempotencyKey: "new"})
		if err != nil || repeated || j.Pipeline != "p" || j.PipelineVersion != 1 || j.Tasks != (drover.Counts{Total: 2, Pending: 2}) || j.Class != drover.Normal || j.Labels["team"] != "a" {
			t.Errorf("a pipeline: %+v %v %v", j, repeated, err)
		}
		if n := w.count("SELECT count(*) FROM queues WHERE name IN ('far', 'spare')"); n != 0 {
			t.Error("queues of a pipeline have been made")
		}
		for what, n := range map[string]drover.NewJob{
			"nothing to run":         {},
			"a pipeline not there":   {Pipeline: "q"},
			"a version not there":    {Pipeline: "p@2", Input: json.RawMessage(`{"n":1}`)},
			"an input that is wrong": {Pipeline: "p", Input: json.RawMessage(`{}`)},
			"too much of a limit":    {Kind: "k", Queue: "new", Limits: map[string]int64{"license": 2}},
			"no such limit":          {Kind: "k", Queue: "new", Limits: map[string]int64{"none": 1}},
			"a key used otherwise":   {Kind: "k", IdempotencyKey: "known", Input: json.RawMessage("2")},
			"an id used otherwise":   {Kind: "other", ID: first},
			"a time that has passed": {Kind: "k", ExpiresAt: w.Now().Add(-time.Second)},
			"what exec does not run": {Kind: "exec", Input: json.RawMessage(`{}`)},
		} {
			_, repeated, err := w.Preview(ctx, w.c, n)
			out, serr := w.Submit(ctx, w.c, []drover.NewJob{n})
			if serr == nil {
				serr = out[0].Err
			}
			if err == nil || repeated || serr == nil || err.Error() != serr.Error() {
				t.Errorf("%s: %v, and a submit says %v", what, err, serr)
			}
		}
		known, repeated, err := w.Preview(ctx, w.c, drover.NewJob{Kind: "k", IdempotencyKey: "known", Input: json.RawMessage("1")})
		if err != nil || !repeated || known.ID != first {
			t.Errorf("a repeat: %+v %v %v", known, repeated, err)
		}
		if j, _, err = w.Preview(ctx, w.c, drover.NewJob{Kind: "k", Queue: "never", IdempotencyKey: "new"}); err != nil || j.Kind != "k" || j.Tasks.Total != 1 {
			t.Errorf("a kind: %+v %v", j, err)
		}
		if n := w.count("SELECT count(*) FROM queues WHERE name = 'never'"); n != 0 {
			t.Error("a queue has been made")
		}
		if n := w.count("SELECT count(*) FROM idempotency"); n != 1 || len(w.jobs()) != 1 {
			t.Errorf("%d keys and %d jobs are there", n, len(w.jobs()))
		}
	})
}
