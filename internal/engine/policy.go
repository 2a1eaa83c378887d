package engine

import (
	"encoding/json"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
)

// policy is what a Kind job says about its one task; a pipeline's nodes have
// theirs in the plan.
type policy struct {
	Retry   *drover.Retry   `json:"retry,omitempty"`
	Timeout drover.Duration `json:"timeout,omitzero"`
}

// encode returns nil for the default policy.
func (p policy) encode() []byte {
	if p == (policy{}) {
		return nil
	}
	b, err := json.Marshal(p)
	if err != nil {
		panic(err) // plain fields
	}
	return b
}

// policyOf reads the policy column of tasks.
func policyOf(b []byte) (drover.Retry, time.Duration) {
	var p policy
	if len(b) > 0 {
		_ = json.Unmarshal(b, &p) // written by encode; a damaged one is the default
	}
	var r drover.Retry
	if p.Retry != nil {
		r = *p.Retry
	}
	timeout := p.Timeout.Std()
	if timeout == 0 {
		timeout = lifecycle.DefaultTimeout
	}
	return lifecycle.Filled(r), timeout
}
