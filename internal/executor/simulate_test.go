//go:build unix

package executor

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/worker"
)

func simulated(t *testing.T, ctx context.Context, in string) (time.Duration, error) {
	t.Helper()
	start := time.Now()
	_, err := simulate(ctx, &worker.Task{Lease: drover.Lease{Input: json.RawMessage(in)}})
	return time.Since(start), err
}

func TestSimulateTakesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if took, err := simulated(t, t.Context(), `{"sleep": "90m"}`); err != nil || took != 90*time.Minute {
			t.Errorf("took %s, %v", took, err)
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("enough"))
		defer cancel()
		if took, err := simulated(t, ctx, `{"sleep": "90m"}`); took != time.Minute || err == nil || err.Error() != "enough" {
			t.Errorf("a task that is stopped takes %s, %v", took, err)
		}
		for _, in := range []string{``, `{}`, `{"sleep": "0s"}`} {
			if took, err := simulated(t, t.Context(), in); err != nil || took != 0 {
				t.Errorf("%q takes %s, %v", in, took, err)
			}
		}
	})
	if took, err := simulated(t, t.Context(), `{"compute": "20ms"}`); err != nil || took < 20*time.Millisecond {
		t.Errorf("computing took %s, %v", took, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if _, err := simulated(t, ctx, `{"compute": "1h"}`); err == nil || err.Error() != "enough" {
		t.Errorf("computing goes on: %v", err)
	}
	for _, in := range []string{`{"sleep": 3}`, `{"slep": "3s"}`, `[]`, `{"sleep": "-1s"}`} {
		if _, err := simulated(t, t.Context(), in); err == nil {
			t.Errorf("%s is taken", in)
		}
	}
}
