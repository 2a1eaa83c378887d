package dag

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/drover-dev/drover"
)

// Outcome is how a row ended, as the rows below it count it.
type Outcome uint8

// The outcomes. A row that succeeded degraded, was reused, or is a map without
// elements has succeeded; one that was kept from running by a failure above it
// has failed, though its own status is SKIPPED, so that a failure reaches every
// rule below; one that was cancelled has failed.
const (
	Succeeded Outcome = iota + 1
	Failed
	Skipped
	Blocked // it counts as Failed, and nothing declared for its own failure follows
	Gone    // it counts no more: its map expands again, or what called it runs again
)

// String names the outcome, as conditions see it.
func (o Outcome) String() string {
	return [...]string{"", "succeeded", "failed", "skipped", "failed", ""}[o]
}

// OutcomeOf is how a task that has ended counts; blocked says that a failure kept it
// from running.
func OutcomeOf(s drover.Status, blocked bool) Outcome {
	switch {
	case s == drover.Succeeded:
		return Succeeded
	case s == drover.Skipped && !blocked:
		return Skipped
	case s == drover.Failed || s == drover.DeadLetter:
		return Failed
	}
	return Blocked // or cancelled
}

// Tally counts the rows above a row: those that have not ended, and how the
// others did.
type Tally struct{ Unmet, Succeeded, Failed, Skipped int32 }

// count notes that n rows, not ended so far, have ended as o.
func (t *Tally) count(o Outcome, n int32) {
	t.Unmet -= n
	switch o {
	case Succeeded:
		t.Succeeded += n
	case Failed, Blocked:
		t.Failed += n
	case Skipped:
		t.Skipped += n
	}
}

// Verdict is what a rule makes of a tally.
type Verdict uint8

// The verdicts.
const (
	Wait  Verdict = iota
	Run           // the task may run
	Skip          // it ends SKIPPED, and the rows below count it as skipped
	Block         // it ends SKIPPED, because of a failure: the rows below count it as failed
)

// String names the verdict.
func (v Verdict) String() string { return [...]string{"waits", "runs", "skipped", "blocked"}[v] }

// Rule says when a task may run, by how the rows above it have ended: `when` in
// the definition.
type Rule struct {
	kind ruleKind
	n    int32 // of quorum
}

type ruleKind uint8

const (
	allSuccess ruleKind = iota // the zero value is the default
	allDone
	allFailed
	oneSuccess
	oneFailed
	oneDone
	noneFailed
	noneFailedMinOneSuccess
	noneSkipped
	allSkipped
	always
	quorum
)

// rules is everything about them in one place: verdicts, docs/joins.md and what
// the rest of the package asks come from it. A verdict does not depend on the
// order in which rows end: one that could be Skip or Block waits until it is known
// which.
var rules = []struct {
	name, doc string
	verdict   func(t Tally, n int32) Verdict
}{
	allSuccess: {"all_success", "all have succeeded; this is the default", func(t Tally, _ int32) Verdict {
		switch {
		case t.Failed > 0:
			return Block
		case t.Unmet > 0:
			return Wait
		case t.Skipped > 0:
			return Skip
		}
		return Run
	}},
	allDone: {"all_done", "all have ended, however", func(t Tally, _ int32) Verdict {
		return atEnd(t, Run)
	}},
	allFailed: {"all_failed", "all have failed", func(t Tally, _ int32) Verdict {
		if t.Succeeded+t.Skipped > 0 {
			return Skip
		}
		return atEnd(t, Run)
	}},
	oneSuccess: {"one_success", "one has succeeded; the others may be running", func(t Tally, _ int32) Verdict {
		return enough(t, 1)
	}},
	oneFailed: {"one_failed", "one has failed; the others may be running", func(t Tally, _ int32) Verdict {
		if t.Failed > 0 {
			return Run
		}
		return atEnd(t, Skip)
	}},
	oneDone: {"one_done", "one has succeeded or failed; the others may be running", func(t Tally, _ int32) Verdict {
		if t.Succeeded+t.Failed > 0 {
			return Run
		}
		return atEnd(t, Skip)
	}},
	noneFailed: {"none_failed", "all have ended and none has failed", func(t Tally, _ int32) Verdict {
		if t.Failed > 0 {
			return Block
		}
		return atEnd(t, Run)
	}},
	noneFailedMinOneSuccess: {"none_failed_min_one_success", "all have ended, none has failed, and one at least has succeeded", func(t Tally, _ int32) Verdict {
		switch {
		case t.Failed > 0:
			return Block
		case t.Succeeded == 0:
			return atEnd(t, Skip)
		}
		return atEnd(t, Run)
	}},
	noneSkipped: {"none_skipped", "all have ended and none was skipped", func(t Tally, _ int32) Verdict {
		if t.Skipped > 0 {
			return Skip
		}
		return atEnd(t, Run)
	}},
	allSkipped: {"all_skipped", "all were skipped", func(t Tally, _ int32) Verdict {
		if t.Succeeded+t.Failed > 0 {
			return Skip
		}
		return atEnd(t, Run)
	}},
	always: {"always", "at once: it waits for nobody", func(Tally, int32) Verdict { return Run }},
	quorum: {"quorum(n)", "n have succeeded; the others may be running", enough},
}

// atEnd is the verdict v once every row has ended.
func atEnd(t Tally, v Verdict) Verdict {
	if t.Unmet > 0 {
		return Wait
	}
	return v
}

// enough runs once n have succeeded. That too few can is not known before the end:
// a map that has not expanded may have any number of elements.
func enough(t Tally, n int32) Verdict {
	switch {
	case t.Succeeded >= n:
		return Run
	case t.Failed > 0:
		return atEnd(t, Block)
	}
	return atEnd(t, Skip)
}

// Verdict decides by what is known so far. A verdict other than Wait never
// changes, whatever the rows that have not ended do.
func (r Rule) Verdict(t Tally) Verdict {
	return rules[r.kind].verdict(t, r.n)
}

// Hopeless reports whether a row of this rule cannot run, however the rows end that
// are still open.
func (r Rule) Hopeless(t Tally) bool {
	for _, rest := range []Outcome{Succeeded, Failed, Skipped} {
		end := t
		end.count(rest, t.Unmet)
		if v := r.Verdict(end); v != Skip && v != Block {
			return false
		}
	}
	return true
}

// String writes the rule as a definition does.
func (r Rule) String() string {
	if r.kind == quorum {
		return fmt.Sprintf("quorum(%d)", r.n)
	}
	return rules[r.kind].name
}

// CountsSuccess reports whether the rule asks how many rows have succeeded. Of
// the others only the rest is counted, so that the row of a task with the default
// rule changes by one number.
func (r Rule) CountsSuccess() bool {
	switch r.kind {
	case allFailed, oneSuccess, oneDone, noneFailedMinOneSuccess, allSkipped, quorum:
		return true
	default:
		return false
	}
}

// ends tells how a row with this rule may end without running when a row above
// it ends as o.
func (r Rule) ends(o Outcome) []Outcome {
	switch r.kind {
	case allSuccess:
		return [...][]Outcome{Succeeded: {Skipped}, Failed: {Blocked}, Skipped: {Skipped}, Blocked: {Blocked}}[o]
	case noneFailed:
		return [...][]Outcome{Succeeded: nil, Failed: {Blocked}, Skipped: nil, Blocked: {Blocked}}[o]
	case allDone, always:
		return nil
	case noneSkipped:
		return [...][]Outcome{Succeeded: nil, Failed: nil, Skipped: {Skipped}, Blocked: nil}[o]
	default: // seldom: a little too much is no harm
		return []Outcome{Skipped, Blocked}
	}
}

// skips reports whether a task with this rule can be skipped though no task above it
// was.
func (r Rule) skips() bool {
	switch r.kind {
	case allSuccess, allDone, noneFailed, noneFailedMinOneSuccess, noneSkipped, always:
		return false
	default:
		return true
	}
}

// takesFailure reports whether a task with this rule can run after a row above it
// has failed.
func (r Rule) takesFailure() bool {
	switch r.kind {
	case allDone, allFailed, oneSuccess, oneFailed, oneDone, noneSkipped, quorum:
		return true
	default: // always does not look
		return false
	}
}

// blocks reports whether a failure above can keep a task with this rule from running.
func (r Rule) blocks() bool {
	switch r.kind {
	case allSuccess, noneFailed, noneFailedMinOneSuccess, oneSuccess, quorum:
		return true
	default:
		return false
	}
}

// sureOf reports whether every row above has succeeded when the rule lets a task run.
func (r Rule) sureOf() bool { return r.kind == allSuccess }

// RuleNames are the names of all rules.
func RuleNames() []string {
	names := make([]string, len(rules))
	for i := range rules {
		names[i] = rules[i].name
	}
	return names
}

// parseRule reads a rule, or says what is wrong with it.
func parseRule(s string) (Rule, string) {
	if inner, ok := strings.CutPrefix(s, "quorum("); ok && strings.HasSuffix(inner, ")") {
		n, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(inner, ")")))
		if err != nil || n < 1 || n > 1_000_000 {
			return Rule{}, fmt.Sprintf("%q: quorum takes how many must succeed, a whole number from 1, as in quorum(2)", clip(s, 40))
		}
		return Rule{quorum, int32(n)}, ""
	}
	names := RuleNames()
	if i := slices.Index(names, s); i >= 0 && ruleKind(i) != quorum {
		return Rule{kind: ruleKind(i)}, ""
	}
	ps := problems{}
	return Rule{}, fmt.Sprintf("%q is not a rule%s; the rules are %s", clip(s, 40), ps.hint(s, slices.Values(names)), strings.Join(names, ", "))
}
