package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/drover-dev/drover"
)

// The question at three in the morning: why does it not run, for how long still, and
// what can I do? Two lines answer it.
func TestExplainAnswersInTwoLines(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.dev("--no-http")
	job := f.must(0, "job", "submit", "--kind", "resize", "--queue", "gpu", "-o", "name")
	out := f.must(0, "explain", job)
	lines := strings.Split(out, "\n")
	if !regexp.MustCompile(`^WHY +` + job + ` \(PENDING\) has waited .* \(no_worker_for_kind\): no live worker serves queue "gpu"`).MatchString(lines[0]) {
		t.Errorf("the first line does not say why:\n%s", out)
	}
	if !regexp.MustCompile(`^WHEN +How long it still takes is not known\. What helps: Start a worker that serves queue gpu and has a handler for resize\.`).MatchString(lines[1]) {
		t.Errorf("the second line does not say what helps:\n%s", out)
	}
	x := get[drover.JobExplanation](f, "explain", job)
	if len(x.Blockers) != 1 || !x.Blockers[0].Primary || x.Blockers[0].Layer != drover.LayerExecution || x.On == nil || x.TotalsByReason["handoff"] == 0 {
		t.Fatalf("explanation %+v", x)
	}
	task := x.On.String()
	if out := f.must(0, "explain", task); !strings.Contains(out, "EXECUTOR   A worker of queue gpu that runs resize: 0 of 0 workers match") || !strings.Contains(out, "LOST") && !strings.Contains(out, "A worker that is silent for") {
		t.Errorf("of the task:\n%s", out)
	}
	if out := f.must(0, "explain", "resize", "--job", job); !strings.Contains(out, task) {
		t.Errorf("by name:\n%s", out)
	}
	if out := f.must(0, "waits", "--group-by", "reason,tenant,queue"); !regexp.MustCompile(`(?m)^no_worker_for_kind +dev +gpu +1 .* no_worker_for_kind resize$`).MatchString(out) {
		t.Errorf("waits:\n%s", out)
	}
	if out := f.must(0, "queue", "stats", "gpu"); !strings.Contains(out, "1 wait only for a worker, and no worker takes them") || !strings.Contains(out, "1 start at once instead of 0.") {
		t.Errorf("queue stats:\n%s", out)
	}
	f.must(3, "queue", "stats", "nowhere")
	f.must(2, "explain", "nonsense")
	f.must(2, "explain")
	f.must(1, "waits", "--group-by", "colour")
	if out := f.must(0, "worker", "list", "--groups"); !regexp.MustCompile(`(?m)^cpu,default.* 0 %$`).MatchString(out) {
		t.Errorf("groups:\n%s", out)
	}
	done := f.must(0, "job", "submit", "--kind", "exec", "--input", `{"command":["true"]}`, "--wait", "-o", "name")
	if out := f.must(0, "explain", done); !regexp.MustCompile(`^WHY +`+done+` \(SUCCEEDED\): SUCCEEDED at .* after it was accepted\.`).MatchString(out) || !regexp.MustCompile(`SPENT +.*run `).MatchString(out) {
		t.Errorf("of one that has ended:\n%s", out)
	}
}
