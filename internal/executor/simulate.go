package executor

import (
	"context"
	"encoding/json"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/builtin"
	"github.com/drover-dev/drover/worker"
)

// Simulated is what a simulate task does: first it computes on one processor,
// then it sleeps. It takes time and does nothing else: for tests, for planning,
// for workflows that were recorded elsewhere.
type Simulated struct {
	Compute drover.Duration `json:"compute"`
	Sleep   drover.Duration `json:"sleep"`
}

// Time is how long the task takes.
func (s Simulated) Time() time.Duration { return s.Compute.Std() + s.Sleep.Std() }

// ParseSimulated reads the input of a simulate task.
func ParseSimulated(in json.RawMessage) (s Simulated, err error) {
	err = decode(builtin.Simulate, in, &s)
	return s, err
}

// RegisterSimulate has w run tasks that only take time.
func RegisterSimulate(w *worker.Worker) { w.HandleFunc(builtin.Simulate, simulate) }

func simulate(ctx context.Context, t *worker.Task) (any, error) {
	s, err := ParseSimulated(t.Input)
	if err != nil {
		return nil, err
	}
	for end, n := time.Now().Add(s.Compute.Std()), uint64(1); time.Now().Before(end); {
		for range 20_000 { // some tens of microseconds
			n = n*6364136223846793005 + 1442695040888963407
		}
		if ctx.Err() != nil || n == 0 { // it is never 0: nobody may leave the loop out
			return nil, context.Cause(ctx)
		}
	}
	wait := time.NewTimer(s.Sleep.Std())
	defer wait.Stop()
	select {
	case <-wait.C:
		return s, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
