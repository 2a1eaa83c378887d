package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/draw"
)

const forked = `pipeline: forked
tasks:
  collect: {run: exec, with: {command: [sleep, "900"]}}
  left: {run: x, needs: [collect]}
  right: {run: x, for_each: "${{ tasks.collect.output }}"}
  each: {run: x, for_each: right}
  join: {run: x, needs: [left, each], queue: gpu}
`

// forkedServer has run the pipeline twice.
func forkedServer(t *testing.T) string {
	t.Helper()
	p, err := dag.Parse("forked.yaml", []byte(forked))
	if err != nil {
		t.Fatal(err)
	}
	task := func(name string, index, seconds, handoff int) string {
		return fmt.Sprintf(`{"task_id":"task_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C","job_id":"job_00000000000000000000000001","name":%q,"index":%d,"mapped":%t,"kind":"x","queue":"default","class":"normal","status":"SUCCEEDED","created_at":"2026-01-31T11:00:00Z","queued_at":"2026-01-31T11:00:00Z","claimed_at":"2026-01-31T11:00:00.00%dZ","finished_at":"2026-01-31T11:00:%02d.00%dZ"}`,
			name, index, name == "right" || name == "each", handoff, seconds, handoff)
	}
	var tasks []string
	tasks = append(tasks, task("collect", 0, 10, 5), task("left", 0, 50, 5), task("join", 0, 1, 5))
	for i := range 20 {
		tasks = append(tasks, task("right", i, 0, 5), task("each", i, 3, 5))
	}
	page := `{"items":[` + strings.Join(tasks, ",") + `]}`
	job := func(n int) string {
		return fmt.Sprintf(`{"job_id":"job_0000000000000000000000000%d","status":"SUCCEEDED","class":"normal","created_at":"2026-01-31T11:00:00Z"}`, n)
	}
	return fakeServer(t, map[string]string{
		"GET /v1/pipelines/forked":                                                               fmt.Sprintf(`{"name":"forked","version":3,"hash":"","created_at":"2026-01-31T11:00:00Z","definition":%s}`, p.Canonical()),
		"GET /v1/jobs?limit=10&pipeline=forked&status=SUCCEEDED":                                 `{"items":[` + job(1) + "," + job(2) + `]}`,
		"GET /v1/jobs/job_00000000000000000000000001/tasks?limit=1000&status=SUCCEEDED":          page,
		"GET /v1/jobs/job_00000000000000000000000002/tasks?limit=1000&status=SUCCEEDED":          `{"items":[` + strings.Join(tasks[:10], ",") + `],"next_cursor":"c"}`,
		"GET /v1/jobs/job_00000000000000000000000002/tasks?cursor=c&limit=1000&status=SUCCEEDED": `{"items":[` + strings.Join(tasks[10:], ",") + `]}`,
	}).URL
}

func TestLintWarnsWithPlaceAndRemedy(t *testing.T) {
	s := newShell(t)
	write(t, "p.yaml", forked)
	_, errs, code := s.run("pipeline", "lint", "p.yaml")
	const want = "p.yaml:3:30: warning: tasks.collect.with: the task sleeps for 900s and holds a worker meanwhile (sleeping-task)\n  remedy: let the handler snooze"
	if code != 0 || !strings.HasPrefix(errs, want) {
		t.Errorf("code %d, %s", code, errs)
	}
	if _, errs, code = s.run("pipeline", "lint", "p.yaml", "--strict"); code != exitError || !strings.Contains(errs, "1 definition of 1 not clean") {
		t.Errorf("strict: code %d, %s", code, errs)
	}
	write(t, "bad.yaml", "pipeline: bad\ntasks:\n  a: {run: exec, needs: [b]}\n")
	out, _, code := s.run("pipeline", "lint", "p.yaml", "bad.yaml", "-o", "json")
	var list []complaint
	if err := json.Unmarshal([]byte(out), &list); err != nil || code != exitError || len(list) != 2 {
		t.Fatalf("code %d, %v\n%s", code, err, out)
	}
	if c := list[0]; c.Severity != isWarning || c.Rule != dag.RuleSleeping || c.File != "p.yaml" || c.Line != 3 || c.Remedy == "" {
		t.Errorf("first = %+v", c)
	}
	if c := list[1]; c.Severity != isError || c.Rule != "validation-failed" || c.Field != "tasks.a.needs[0]" || c.Line != 3 {
		t.Errorf("second = %+v", c)
	}
	write(t, "clean.yaml", "pipeline: p\ntasks:\n  a: {run: exec}\n")
	if out, _, code = s.run("pipeline", "lint", "clean.yaml", "-o", "json"); out != "[]\n" || code != 0 {
		t.Errorf("clean: code %d, %q", code, out)
	}
}

func TestLintKnowsHowLongTasksTook(t *testing.T) {
	s := newShell(t)
	s.env["DROVER_URL"] = forkedServer(t)
	_, errs, code := s.run("pipeline", "lint", "forked")
	if code != 0 || !strings.Contains(errs, "forked: warning: tasks.right.for_each: half of the tasks of this map run for less than 0s, and handing one out takes 5ms (granularity)") || strings.Contains(errs, "tasks.each") {
		t.Errorf("code %d, %s", code, errs)
	}
}

func TestPlanTellsWhatAPipelineCosts(t *testing.T) {
	s := newShell(t)
	s.env["DROVER_URL"] = forkedServer(t)
	out, errs, code := s.run("pipeline", "plan", "forked")
	const want = `PIPELINE      forked
TASKS         43, of 5 in the definition, on 4 levels
LONGEST WAY   1m1s: collect → left → join
WIDTH         21 tasks at one time, on level 1
WORK          2m1s; more than 21 workers at one time make no difference
DURATIONS     from the last 2 jobs for 5 tasks

LEVEL   TASK      ELEMENTS   RUN   START   SLACK   BLAST RADIUS
0       collect   1          10s   0s      none    4 (42 tasks)
1       left      1          50s   10s     none    1 (1 task)
1       right     20         0s    10s     47s     2 (21 tasks)
2       each      20         3s    10s     47s     1 (1 task)
3       join      1          1s    1m0s    none    -
`
	if out != want || code != 0 {
		t.Errorf("code %d, %s\n%s\nwant\n%s", code, errs, out, want)
	}
	write(t, "p.yaml", forked)
	s.env["DROVER_URL"] = "http://127.0.0.1:9" // a file needs no server
	out, errs, code = s.run("pipeline", "plan", "p.yaml", "--run", "2s", "--elements", "3", "-o", "json")
	var o outlook
	if err := json.Unmarshal([]byte(out), &o); err != nil || code != 0 {
		t.Fatalf("code %d, %v, %s", code, err, errs)
	}
	if o.Tasks != 9 || o.Length.String() != "8s" || strings.Join(o.Critical, " ") != "collect right each join" || o.Nodes[2].RunBasis != dag.BasisAssumed || o.Nodes[2].Elements != 3 {
		t.Errorf("outlook = %+v", o)
	}
	if _, _, code = s.run("pipeline", "plan", "p.yaml", "--run", "2"); code != exitUsage {
		t.Errorf("--run 2: code %d", code)
	}
}

func TestGraphDrawsAPipeline(t *testing.T) {
	s := newShell(t)
	write(t, "p.yaml", forked)
	out, _, code := s.run("pipeline", "graph", "p.yaml", "--as", "mermaid", "--critical")
	const want = `flowchart LR
  n0("collect<br/><small>exec</small>")
  n1("left<br/><small>x</small>")
  n2[["right<br/><small>x</small>"]]
  n3[["each<br/><small>x</small>"]]
  n4("join<br/><small>x · gpu</small>")
  n0 -.-> n1
  n0 ==> n2
  n2 ==>|"each"| n3
  n1 -.-> n4
  n3 -.-> n4
  classDef critical stroke:#c2410c,stroke-width:2px
  class n0,n2,n3,n4 critical
`
	if out != want || code != 0 {
		t.Errorf("code %d\n%s\nwant\n%s", code, out, want)
	}
	for _, as := range []string{"svg", "dot"} {
		if out, _, code = s.run("pipeline", "graph", "p.yaml", "--as", as); code != 0 || !strings.Contains(out, "collect") {
			t.Errorf("%s: code %d, %s", as, code, out)
		}
	}
	if _, _, code = s.run("pipeline", "graph", "p.yaml", "--as", "png"); code != exitUsage {
		t.Errorf("png: code %d", code)
	}
}

func TestGraphShowsWhatStandsInForAnother(t *testing.T) {
	s := newShell(t)
	write(t, "p.yaml", "pipeline: p\ntasks:\n  a: {run: x, fallback: b}\n  b: {run: y}\n")
	out, errs, code := s.run("pipeline", "graph", "p.yaml", "--as", "mermaid")
	if code != 0 || !strings.Contains(out, `n0 -.->|"fallback"| n1`) || !strings.Contains(out, "class n1 aside") {
		t.Errorf("code %d, %s\n%s", code, errs, out)
	}
	if out, _, code = s.run("pipeline", "graph", "p.yaml"); code != 0 || !strings.Contains(out, ">fallback<") {
		t.Errorf("code %d, %s", code, out)
	}
}

func TestDiffShowsTasksFieldsAndDependencies(t *testing.T) {
	s := newShell(t)
	s.env["DROVER_URL"] = forkedServer(t)
	write(t, "p.yaml", strings.NewReplacer(`"900"`, `"5"`, "  left: {run: x, needs: [collect]}\n", "  aside: {run: x}\n", "[left, each]", "[each]").Replace(forked))
	out, errs, code := s.run("pipeline", "diff", "forked", "p.yaml", "--exit-code")
	const want = `+ task aside
- task left
~ task collect
    with.command: ["sleep","900"] → ["sleep","5"]
~ task join
    needs: ["left","each"] → ["each"]
- collect → left (control)
- left → join (control)
`
	if out != want || code != exitError || errs != "" {
		t.Errorf("code %d, %s\n%s\nwant\n%s", code, errs, out, want)
	}
	out, _, code = s.run("pipeline", "diff", "p.yaml", "p.yaml", "--exit-code")
	if out != "no difference\n" || code != 0 {
		t.Errorf("code %d, %s", code, out)
	}
}

func TestSchemaIsPrinted(t *testing.T) {
	s := newShell(t)
	if out, _, code := s.run("pipeline", "schema"); code != 0 || out != string(dag.EditorSchema()) {
		t.Errorf("code %d, %.80s", code, out)
	}
}

// The picture in docs/pipelines.md is the example as it is.
func TestDocsHaveThePictureOfTheExample(t *testing.T) {
	src, err := os.ReadFile("../../examples/dataset-ingestion/pipeline.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p, err := dag.Parse("pipeline.yaml", src)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := p.Compile()
	if err != nil {
		t.Fatal(err)
	}
	const path = "../../docs/dataset-ingestion.svg"
	got := draw.SVG(sketch(plan))
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is not the example; run: make docs", path)
	}
}

// A workflow that was recorded elsewhere runs here, in its order.
func TestImportedWorkflowsRun(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.dev()
	file, err := filepath.Abs("../../internal/wfcommons/testdata/montage-1.5.json")
	if err != nil {
		t.Fatal(err)
	}
	out, errs, code := f.try("pipeline", "import", "wfcommons", file, "--scale", "0.01", "--compute")
	if code != 0 || !strings.Contains(errs, "montage-small: 16 tasks, ") || !strings.Contains(errs, "not carried over: files: 20 with 20480 bytes") {
		t.Fatalf("code %d, %s", code, errs)
	}
	if err := os.WriteFile(filepath.Join(f.path, "m.yaml"), []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	f.must(0, "pipeline", "apply", "m.yaml")
	f.must(0, "job", "submit", "--pipeline", "montage-small", "--wait")
	var tasks []struct {
		Name       string    `json:"name"`
		Status     string    `json:"status"`
		ClaimedAt  time.Time `json:"claimed_at"`
		FinishedAt time.Time `json:"finished_at"`
	}
	if err := json.Unmarshal([]byte(f.must(0, "task", "list", "@latest", "-o", "json")), &tasks); err != nil {
		t.Fatal(err)
	}
	at := map[string]int{}
	for i, x := range tasks {
		at[x.Name] = i
		if x.Status != "SUCCEEDED" {
			t.Errorf("%s is %s", x.Name, x.Status)
		}
	}
	if len(tasks) != 16 {
		t.Fatalf("%d tasks, want 16", len(tasks))
	}
	if project, mosaic := tasks[at["mproject_id0000004"]], tasks[at["madd_id0000015"]]; mosaic.ClaimedAt.Before(project.FinishedAt) || project.FinishedAt.Sub(project.ClaimedAt) < 150*time.Millisecond {
		t.Errorf("project = %+v, mosaic = %+v", project, mosaic)
	}
	// What it took is what plan goes by now.
	if plan := f.must(0, "pipeline", "plan", "montage-small"); !strings.Contains(plan, "DURATIONS     from the last 1 job for 16 tasks") {
		t.Errorf("plan:\n%s", plan)
	}
	f.must(exitUsage, "pipeline", "import", "argo", file)
	f.must(exitUsage, "pipeline", "import", "wfcommons", file, "--scale", "0")
	f.must(exitError, "pipeline", "import", "wfcommons", "m.yaml")
}
