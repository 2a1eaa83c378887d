package engine

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
)

// maxRetryRules bounds the rules of a retry.
const maxRetryRules = 32

// policy is what a Kind job says about its one task; a pipeline's nodes have
// theirs in the plan.
type policy struct {
	Retry   *drover.Retry   `json:"retry,omitempty"`
	Timeout drover.Duration `json:"timeout,omitzero"`
	Closes  drover.Duration `json:"schedule_to_close,omitzero"`
	Beats   drover.Duration `json:"heartbeat,omitzero"`
}

func policyIn(n *drover.NewJob) policy {
	return policy{n.Retry, n.Timeout, n.ScheduleToClose, n.Heartbeat}
}

// checkRetry complains about a retry of a request.
func checkRetry(say func(field, format string, args ...any), r drover.Retry) {
	rule := func(at string, x drover.RetryRule) {
		if x.MaxAttempts < 0 || x.MaxAttempts > maxAttemptsTop {
			say(at+".max_attempts", "%d is outside 1 to %d", x.MaxAttempts, maxAttemptsTop)
		}
		if x.Factor != 0 && !(x.Factor >= 1 && x.Factor <= 1000) {
			say(at+".factor", "must be from 1 to 1000")
		}
		if x.Initial < 0 || x.Max < 0 || x.Initial.Std() > farFuture || x.Max.Std() > farFuture {
			say(at, "initial and max must be from 0 to ten years")
		}
	}
	rule("retry", drover.RetryRule{MaxAttempts: r.MaxAttempts, Initial: r.Initial, Factor: r.Factor, Max: r.Max})
	if len(r.On) > maxRetryRules {
		say("retry.on", "%d rules; at most %d", len(r.On), maxRetryRules)
		return
	}
	most := lifecycle.Filled(r).MaxAttempts
	for _, k := range slices.Sorted(maps.Keys(r.On)) {
		at := "retry.on." + cut(k)
		if bad := dag.RetryOn(k); bad != "" {
			say(at, "%s", bad)
			continue
		}
		rule(at, r.On[k])
		if n := r.On[k].MaxAttempts; n > most {
			say(at+".max_attempts", "%d is more than the retry's own, %d; a rule can only end a task sooner", n, most)
		}
	}
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

// terms are what a policy says, every field set.
type terms struct {
	retry   drover.Retry
	timeout time.Duration
	closes  time.Duration // schedule_to_close; 0 is no bound
	beats   time.Duration // heartbeat; 0 is none
	backed  bool          // it has a backup
}

// watched says that a task of these terms has a row in task_watches.
func (on *terms) watched() bool { return on.closes > 0 || on.beats > 0 }

// termsOf reads the policy column of tasks.
func termsOf(b []byte) terms {
	if len(b) == 0 {
		return defaultTerms
	}
	var p policy
	_ = json.Unmarshal(b, &p) // written by encode; a damaged one is the default
	return p.terms()
}

var defaultTerms = policy{}.terms()

func (p policy) terms() terms {
	var r drover.Retry
	if p.Retry != nil {
		r = *p.Retry
	}
	return terms{retry: lifecycle.Filled(r), timeout: cmp.Or(p.Timeout.Std(), lifecycle.DefaultTimeout), closes: p.Closes.Std(), beats: p.Beats.Std()}
}

// terms returns what a node's policy says.
func (p *compiled) terms(node int32) terms {
	n := &p.Nodes[node]
	return terms{retry: n.Retry, timeout: n.Timeout, closes: n.ScheduleToClose, beats: n.Heartbeat, backed: n.Backup >= 0}
}
