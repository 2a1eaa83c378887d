package main

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/drover-dev/drover"
)

// TestPipelinesRunPipelines: what a task's job is and does can be seen from both sides;
// a server that is killed meanwhile goes on with the jobs that there are.
func TestPipelinesRunPipelines(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	dev := f.dev()
	write(t, filepath.Join(f.path, "invoice.yaml"), "pipeline: invoice\ninput: {type: object, required: [customer]}\ntasks:\n"+
		"  make: {run: exec, with: {command: [sh, -c, 'until [ -e \"$1/go\" ]; do sleep 0.05; done; echo \"{\\\"customer\\\":\\\"$2\\\"}\" > \"$DROVER_OUTPUT\"', sh, "+f.path+", \"${{ input.customer }}\"]}}\n")
	write(t, filepath.Join(f.path, "monthly.yaml"), "pipeline: monthly\ntasks:\n  bill: {pipeline: invoice, for_each: [a, b], with: {customer: \"${{ item }}\"}}\n"+
		"  sum: {pipeline: invoice, with: {customer: \"${{ tasks.bill.output[1].customer }}\"}}\n")
	if _, told, code := f.try("pipeline", "apply", "monthly.yaml"); code != exitError || !strings.Contains(told, "line 3:20: tasks.bill.pipeline: there is no pipeline invoice; register it first") {
		t.Errorf("a pipeline that is not there: %d %s", code, told)
	}
	f.must(0, "pipeline", "apply", "invoice.yaml")
	f.must(0, "pipeline", "apply", "monthly.yaml")
	job := f.must(0, "job", "submit", "--pipeline", "monthly", "-o", "name")
	var children []drover.Child
	eventually(t, "two jobs of its tasks", func() bool {
		children = get[drover.Job](f, "job", "get", job).Children
		return len(children) == 2
	})
	if top := f.must(0, "job", "list", "--top", "-o", "name"); top != job {
		t.Errorf("jobs that no task runs: %s", top)
	}
	if j := get[drover.Job](f, "job", "get", "@latest"); j.ID.String() != job {
		t.Errorf("the latest is %s", j.ID)
	}
	child := children[1].JobID.String()
	if told := f.must(0, "job", "get", child, "-o", "table"); !strings.Contains(told, "PARENT") || !strings.Contains(told, job) {
		t.Errorf("a child: %s", told)
	}
	if told := f.must(0, "explain", children[1].TaskID.String(), "-o", "table"); !strings.Contains(told, "drover explain "+child) || !strings.Contains(told, "No worker: it runs a pipeline") {
		t.Errorf("the task is explained so: %s", told)
	}
	if told := f.must(0, "waits", "-o", "table"); !strings.Contains(told, "child_job") {
		t.Errorf("waits: %s", told)
	}
	dev.signal(syscall.SIGKILL)
	dev.wait(t)
	f.dev()
	write(t, filepath.Join(f.path, "go"), "")
	f.must(0, "job", "wait", job, "--timeout", "60s")
	j := get[drover.Job](f, "job", "get", job)
	if len(j.Children) != 3 || j.Children[0] != children[0] || strings.Join(strings.Fields(string(j.Result)), "") != `{"customer":"b"}` {
		t.Errorf("the job: %+v, result %s", j.Children, j.Result)
	}
	f.must(0, "audit", "--database-url", "sqlite:"+filepath.Join(f.path, ".drover", "drover.db"))
}
