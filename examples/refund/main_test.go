package main

import (
	"strings"
	"testing"

	"github.com/drover-dev/drover/internal/dag"
)

func TestARefundThatCannotBeDoneIsUndone(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := run(t.Context(), &out, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	const want = `{"order": "A-1", "item": "kettle", "amount": 40} SUCCEEDED: restocked, paid, notified, reported
{"order": "A-2", "item": "lamp", "amount": 25} FAILED: restocked, paid, taken back, unstocked, reported
  pay-back undone by take-back: SUCCEEDED
  restock undone by unstock: SUCCEEDED
for sale: 1 kettle, 0 lamp; paid back: 40
`
	if got := out.String(); got != want {
		t.Errorf("the example says:\n%s\nwant:\n%s", got, want)
	}
}

func TestNothingOfThePipelineIsRegretted(t *testing.T) {
	t.Parallel()
	p, err := dag.Parse("pipeline.yaml", pipeline)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := p.Compile()
	if err != nil {
		t.Fatal(err)
	}
	if found := p.Lint(plan, nil); len(found) > 0 {
		t.Errorf("lint: %+v", found)
	}
}
