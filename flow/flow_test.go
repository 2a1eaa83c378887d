package flow_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/flow"
	"github.com/drover-dev/drover/internal/dag"
)

const written = `
pipeline: dataset-ingestion
description: Video in, samples out.
input:
  type: object
  required: [object_uri]
  properties:
    object_uri: {type: string}
    segment_seconds: {type: number, default: 2}
defaults: {queue: cpu, timeout: 10m, retry: {max_attempts: 4, backoff: {initial: 1s, factor: 2, max: 1m}}}
tasks:
  decode:
    run: exec
    with: {command: [./steps/decode.sh, "${{ input.object_uri }}", "${{ input.segment_seconds }}s"]}
  extract:
    run: cut
    for_each: ${{ tasks.decode.output.segments }}
    with: {segment: "${{ item.uri }}", number: "${{ index }}", dollars: "$${{ x }}"}
  infer: {run: vendor.infer, for_each: extract, queue: gpu, class: urgent, output: {type: object}, cache: {version: "7"}, timeout: 90s, retry: {max_attempts: 2}}
  quality: {run: exec, needs: [infer], with: "${{ tasks.infer.output }}"}
  manifest:
    run: list
    cache: true
    description: Writes the list.
    needs: [quality, decode]
    artifact: {kind: dataset-manifest}
    with: {first: '${{ tasks.infer.output[0]["mean score"] }}'}
`

func TestFlowEqualsYAML(t *testing.T) {
	t.Parallel()
	p := flow.New("dataset-ingestion").
		Describe("Video in, samples out.").
		InputSchema(map[string]any{
			"type":     "object",
			"required": []string{"object_uri"},
			"properties": map[string]any{
				"object_uri":      map[string]any{"type": "string"},
				"segment_seconds": map[string]any{"type": "number", "default": 2},
			},
		}).
		Defaults(flow.Queue("cpu"), flow.Timeout(10*time.Minute), flow.Retry(dag.DefaultRetry))
	decode := p.Task("decode", flow.Run("exec"), flow.With(map[string]any{
		"command": []any{"./steps/decode.sh", flow.Input("object_uri"), flow.Input("segment_seconds").String() + "s"},
	}))
	extract := p.Task("extract", flow.Run("cut"), flow.ForEach(decode.Output("segments")), flow.With(struct {
		Segment flow.Ref `json:"segment"`
		Number  flow.Ref `json:"number"`
		Dollars string   `json:"dollars"`
	}{flow.Item("uri"), flow.Index(), flow.Literal("${{ x }}")}))
	infer := p.Task("infer", flow.Run("vendor.infer"), flow.Over(extract), flow.Queue("gpu"), flow.Class(drover.Urgent),
		flow.Timeout(90*time.Second), flow.Retry(drover.Retry{MaxAttempts: 2}),
		flow.OutputSchema(map[string]any{"type": "object"}), flow.Cache("7"))
	quality := p.Task("quality", flow.Run("exec"), flow.Needs(infer), flow.With(infer.Output()))
	manifest := p.Task("manifest", flow.Run("list"), flow.Artifact("dataset-manifest"), flow.Cache(""), flow.Describe("Writes the list."),
		flow.With(map[string]any{"first": infer.Output().At(0).Field("mean score")}))
	flow.Join(manifest, quality, decode, quality)
	got, err := p.JSON()
	if err != nil {
		t.Fatal(err)
	}
	want, err := dag.Parse("", []byte(written))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want.Canonical()) {
		t.Errorf("got  %s\nwant %s", got, want.Canonical())
	}
}

func TestChainWaitsInOrder(t *testing.T) {
	t.Parallel()
	p := flow.New("p")
	a, b, c := p.Task("a", flow.Run("x")), p.Task("b", flow.Run("x")), p.Task("c", flow.Run("x"))
	flow.Chain(a, b, c)
	flow.Chain(a, b) // again: nothing happens
	got, err := p.JSON()
	want := `{"pipeline":"p","tasks":[{"name":"a","run":"x"},{"name":"b","needs":["a"],"run":"x"},{"name":"c","needs":["b"],"run":"x"}]}`
	if err != nil || string(got) != want {
		t.Errorf("got  %s, %v\nwant %s", got, err, want)
	}
}

func TestEveryProblemIsListed(t *testing.T) {
	t.Parallel()
	other := flow.New("q").Task("other", flow.Run("x"))
	p := flow.New("P").
		InputSchema(map[string]any{"type": "objekt"}).
		Defaults(flow.Run("x"), flow.Needs(other), flow.Timeout(-time.Second))
	a := p.Task("a", flow.With(math.NaN()))
	p.Task("b", flow.Run("x"), flow.Needs(other), flow.Over(a), flow.Retry(drover.Retry{MaxAttempts: -1, Factor: 0.5}))
	p.Task("b", flow.Run("x"), flow.With(flow.Item()), flow.ForEach(3))
	_, err := p.JSON()
	if !errors.Is(err, drover.ErrInvalid) {
		t.Fatalf("error = %v", err)
	}
	var e *drover.Error
	errors.As(err, &e)
	for _, want := range []string{
		"pipeline: ", "input.type: ", "defaults.run: ", "defaults.needs: ", "defaults.timeout: duration -1s is negative",
		"tasks.a.with: json: unsupported value: NaN", "tasks.a.run: ", "tasks.b.needs[0]: there is no task \"other\"",
		"tasks.b.for_each: task \"a\" is not a map", "tasks.b.retry.max_attempts: ", "tasks.b.retry.backoff.factor: ",
		"tasks[2].name: there is a task \"b\" already",
	} {
		found := 0
		for _, f := range e.Fields {
			if f.Line != 0 || f.Column != 0 {
				t.Fatalf("%s has a line", f.Field)
			}
			if strings.HasPrefix(f.Field+": "+f.Message, want) {
				found++
			}
		}
		if found != 1 {
			t.Errorf("%q is listed %d times in %+v", want, found, e.Fields)
		}
	}
}

func TestRingsAreFound(t *testing.T) {
	t.Parallel()
	p := flow.New("p")
	a, b := p.Task("a", flow.Run("x")), p.Task("b", flow.Run("x"))
	flow.Chain(a, b, a)
	_, err := p.JSON()
	if drover.CodeOf(err) != drover.CodeCycle || !strings.Contains(err.Error(), "a → b → a") {
		t.Errorf("error = %v", err)
	}
}

func TestLiteralIsNeverAnExpression(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"${{ x }}", "$${{", "a $$${{ b ${{", "$", ""} {
		p := flow.New("p")
		p.Task("a", flow.Run("x"), flow.With([]string{flow.Literal(s)}))
		def, err := p.JSON()
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := dag.Decode(def)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := parsed.Compile()
		if err != nil {
			t.Fatal(err)
		}
		if out, err := plan.Render(0, dag.Scope{}); err != nil || string(out) != `["`+s+`"]` {
			t.Errorf("%q became %s, %v", s, out, err)
		}
	}
}

// build returns what a pipeline's tasks are, without its name.
func build(t *testing.T, p *flow.Pipeline) string {
	t.Helper()
	def, err := p.JSON()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(strings.TrimPrefix(string(def), `{"pipeline":"p","tasks":`), "}")
}

func TestPartsNest(t *testing.T) {
	t.Parallel()
	p := flow.New("p")
	task := func(name string) *flow.Task { return p.Task(name, flow.Run("x")) }
	a, b, c, d, e, f := task("a"), task("b"), task("c"), task("d"), task("e"), task("f")
	flow.Chain(a, flow.Group(flow.Chain(b, c), d), flow.Group(), flow.Group(e, f, e))
	want := `[{"name":"a","run":"x"},{"name":"b","needs":["a"],"run":"x"},{"name":"c","needs":["b"],"run":"x"},{"name":"d","needs":["a"],"run":"x"},` +
		`{"name":"e","needs":["c","d"],"run":"x"},{"name":"f","needs":["c","d"],"run":"x"}]`
	if got := build(t, p); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestChordGivesItsBodyTheOutputs(t *testing.T) {
	t.Parallel()
	p := flow.New("p")
	a, b := p.Task("a", flow.Run("x")), p.Task("b", flow.Run("x"))
	m := p.Map("m", []int{1, 2}, flow.Run("x"))
	each := p.Map("each", m, flow.Run("y"))
	flow.Chord(flow.Group(a, b), p.Task("both", flow.Run("x")))
	flow.Chord(each, p.Task("all", flow.Run("x")))
	flow.Chord(flow.Group(a), p.Task("own", flow.Run("x"), flow.With(1)))
	want := `[{"name":"a","run":"x"},{"name":"b","run":"x"},{"for_each":[1,2],"name":"m","run":"x"},{"for_each":"m","name":"each","run":"y"},` +
		`{"name":"both","needs":["a","b"],"run":"x","with":["${{ tasks.a.output }}","${{ tasks.b.output }}"]},` +
		`{"name":"all","needs":["each"],"run":"x","with":"${{ tasks.each.output }}"},` +
		`{"name":"own","needs":["a"],"run":"x","with":1}]`
	if got := build(t, p); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestChunksAreLists(t *testing.T) {
	t.Parallel()
	p := flow.New("p")
	p.Chunks("c", []int{1, 2, 3, 4, 5}, 2, flow.Run("x"))
	if got, want := build(t, p), `[{"for_each":[[1,2],[3,4],[5]],"name":"c","run":"x"}]`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for _, c := range []struct {
		items any
		n     int
		says  string
	}{
		{[]int{1}, 0, "chunks of 0 elements; at least 1"},
		{flow.Input("list"), 2, "Chunks needs a slice"},
		{[]float64{math.NaN()}, 2, "unsupported value"},
	} {
		p := flow.New("p")
		p.Chunks("c", c.items, c.n, flow.Run("x"))
		if _, err := p.JSON(); !errors.Is(err, drover.ErrInvalid) {
			t.Errorf("%+v: error = %v", c, err)
		} else if e := new(*drover.Error); !errors.As(err, e) || (*e).Fields[0].Field != "tasks.c.for_each" || !strings.Contains((*e).Fields[0].Message, c.says) {
			t.Errorf("%+v: %+v", c, *e)
		}
	}
}

func TestSwitchTakesTheFirstCaseThatHolds(t *testing.T) {
	t.Parallel()
	p := flow.New("p")
	a := p.Task("a", flow.Run("x"))
	b := p.Task("b", flow.Run("x"), flow.If("input.on"))
	c, d := p.Task("c", flow.Run("x")), p.Task("d", flow.Run("x"))
	own := p.Task("own", flow.Run("x"), flow.When("all_done"))
	flow.Chain(flow.Switch(flow.Case{If: "input.n == 1.0", Then: a}, flow.Case{If: "input.n == 2.0", Then: flow.Chain(b, c)}, flow.Case{Then: d}), own)
	want := `[{"if":"(input.n == 1.0)","name":"a","run":"x"},{"if":"!(input.n == 1.0) && (input.n == 2.0) && (input.on)","name":"b","run":"x"},{"name":"c","needs":["b"],"run":"x"},` +
		`{"if":"!(input.n == 1.0) && !(input.n == 2.0)","name":"d","run":"x"},{"name":"own","needs":["a","c","d"],"run":"x","when":"all_done"}]`
	if got := build(t, p); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestTasksAskForLimitsAndWorkers as a definition does.
func TestTasksAskForLimitsAndWorkers(t *testing.T) {
	t.Parallel()
	p := flow.New("p").MaxTasks(100)
	p.Task("a", flow.Run("x"), flow.Limits(map[string]int64{"vendor-model": 2}), flow.Resources(map[string]int64{"gpu": 1}), flow.WorkerLabels(map[string]string{"zone": "eu"}), flow.ConcurrencyKey("input.customer"), flow.NoSideEffects())
	got, err := p.JSON()
	if err != nil {
		t.Fatal(err)
	}
	def, err := dag.Parse("p.yaml", []byte("pipeline: p\nmax_tasks: 100\ntasks:\n  a: {run: x, limits: {vendor-model: 2}, resources: {gpu: 1}, worker_labels: {zone: eu}, concurrency_key: input.customer, side_effects: false}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(def.Canonical()) {
		t.Errorf("got %s, want %s", got, def.Canonical())
	}
	p = flow.New("p")
	p.Task("a", flow.Run("x"), flow.Limits(map[string]int64{"vendor-model": 0}))
	var e *drover.Error
	if _, err := p.JSON(); !errors.As(err, &e) || e.Fields[0].Field != "tasks.a.limits.vendor-model" {
		t.Errorf("a limit of which nothing is taken: %v", err)
	}
}

func TestAMapOverARange(t *testing.T) {
	t.Parallel()
	p := flow.New("p")
	p.Task("a", flow.Run("x"), flow.ForRange(3))
	p.Task("b", flow.Run("x"), flow.ForRange(flow.Input("n")))
	if got, want := build(t, p), `[{"for_each":{"range":3},"name":"a","run":"x"},{"for_each":{"range":"${{ input.n }}"},"name":"b","run":"x"}]`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
