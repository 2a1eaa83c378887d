package engine

import (
	"errors"
	"fmt"
	"strings"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store"
)

// typeOutputSchema is the type of the failure of a task whose output is not what
// its definition says.
const typeOutputSchema = "output_schema"

// checkOutputs makes a permanent failure of every success whose output does not
// fit the schema that the definition has for it. Where none is declared it does
// nothing.
func checkOutputs(plans map[drover.JobID]*compiled, reports []*report) {
	for _, r := range reports {
		p := plans[r.task.Job]
		if r.Status != drover.OutcomeSucceeded || p == nil || !p.HasOutputSchema(r.task.Node) {
			continue
		}
		err := p.CheckOutput(r.task.Node, r.Output)
		if err == nil {
			continue
		}
		r.Status, r.Output = drover.OutcomeFailed, nil
		r.Error = &drover.Failure{Class: drover.ClassPermanent, Type: typeOutputSchema, Message: unfitText(err)}
	}
}

// unfitOutput reports whether an attempt that said it had succeeded failed because
// of its output.
func unfitOutput(end store.End) bool {
	if end.Outcome != drover.OutcomeFailed {
		return false
	}
	f := decodeFailure(end.Error)
	return f != nil && f.Type == typeOutputSchema
}

// unfitShown is how many places of an output are named.
const unfitShown = 10

// unfitText tells what is wrong with an output, and where.
func unfitText(err error) string {
	var e *drover.Error
	if !errors.As(err, &e) || len(e.Fields) == 0 {
		return err.Error()
	}
	var b strings.Builder
	b.WriteString(e.Detail)
	for i, f := range e.Fields {
		if i == unfitShown {
			fmt.Fprintf(&b, "; and %d more", len(e.Fields)-unfitShown)
			break
		}
		b.WriteString(map[bool]string{true: ": ", false: "; "}[i == 0] + f.Field + ": " + f.Message)
	}
	return b.String()
}
