// Package flow builds a pipeline in Go: the same definition that a YAML file
// makes, checked by the same rules.
//
//	p := flow.New("thumbnails")
//	list := p.Task("list", flow.Run("exec"), flow.With(map[string]any{"command": []any{"./list.sh", flow.Input("folder")}}))
//	p.Task("shrink", flow.ForEach(list.Output("files")), flow.Run("shrink"), flow.Queue("cpu"))
//	definition, err := p.JSON()
//
// Hand the definition to client.ApplyPipeline to register it.
package flow

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
)

// Pipeline is a definition in the making. It is not safe for concurrent use.
type Pipeline struct {
	top   settings
	tasks []*Task
}

// settings are the keys of a mapping in the definition, with what could not be
// written as JSON.
type settings struct {
	keys   map[string]any
	broken []drover.FieldError
}

func (s *settings) set(key string, v any) {
	if s.keys == nil {
		s.keys = map[string]any{}
	}
	s.keys[key] = v
}

// setJSON sets key to v as JSON.
func (s *settings) setJSON(key string, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		s.broken = append(s.broken, drover.FieldError{Field: key, Message: err.Error()})
		b = []byte("[]")
	}
	s.set(key, json.RawMessage(b))
}

// New begins a pipeline: a lower-case letter, then up to 62 lower-case letters,
// digits, _ and -.
func New(name string) *Pipeline {
	p := &Pipeline{}
	p.top.set("pipeline", name)
	return p
}

// Describe sets what people read about the pipeline.
func (p *Pipeline) Describe(text string) *Pipeline {
	p.top.set("description", text)
	return p
}

// InputSchema sets the JSON Schema that a job's input must fit: anything that
// encoding/json writes as an object.
func (p *Pipeline) InputSchema(schema any) *Pipeline {
	p.top.setJSON("input", schema)
	return p
}

// Defaults sets what holds for tasks that do not say otherwise: Queue, Class,
// Timeout, ScheduleToClose, Heartbeat, Circuit and Retry.
func (p *Pipeline) Defaults(options ...Option) *Pipeline {
	var s settings
	s.apply(options)
	p.top.set("defaults", s.keys)
	return p
}

// OnFailure says what happens to the other tasks when one has failed for good:
// "fail_fast", "finish_running" or "continue".
func (p *Pipeline) OnFailure(policy string) *Pipeline {
	p.top.set("on_failure", policy)
	return p
}

// MaxTasks bounds how many tasks a job may have, its maps expanded: a map that would make
// it more fails.
func (p *Pipeline) MaxTasks(n int) *Pipeline {
	p.top.set("max_tasks", n)
	return p
}

// Rescue sets the task that runs when the others have ended and a failure was not
// made good.
func (p *Pipeline) Rescue(t *Task) *Pipeline {
	p.top.set("rescue", t.name)
	return p
}

// Finally sets the tasks that run at the end, whatever happened.
func (p *Pipeline) Finally(tasks ...*Task) *Pipeline {
	names := make([]string, len(tasks))
	for i, t := range tasks {
		names[i] = t.name
	}
	p.top.set("finally", names)
	return p
}

// Task adds a task. It needs at least Run.
func (p *Pipeline) Task(name string, options ...Option) *Task {
	t := &Task{name: name}
	t.apply(options)
	p.tasks = append(p.tasks, t)
	return t
}

// JSON returns the definition in its canonical form. The error is a
// *drover.Error with a field for everything that is wrong.
func (p *Pipeline) JSON() ([]byte, error) {
	doc := map[string]any{}
	for k, v := range p.top.keys {
		doc[k] = v
	}
	broken := slices.Clone(p.top.broken)
	tasks := make([]map[string]any, len(p.tasks))
	for i, t := range p.tasks {
		tasks[i] = map[string]any{"name": t.name}
		for k, v := range t.keys {
			tasks[i][k] = v
		}
		if len(t.needs) > 0 {
			tasks[i]["needs"] = t.needs
		}
		for _, b := range t.broken {
			b.Field = "tasks." + t.name + "." + b.Field
			broken = append(broken, b)
		}
	}
	doc["tasks"] = tasks
	src, err := json.Marshal(doc)
	if err != nil {
		return nil, drover.Errorf(drover.CodeValidation, "pipeline: %s", err)
	}
	name, _ := p.top.keys["pipeline"].(string)
	def, err := dag.Parse(name, src)
	var e *drover.Error
	switch {
	case err == nil && len(broken) == 0:
		return def.Canonical(), nil
	case err == nil:
		e = &drover.Error{Code: drover.CodeValidation}
	case !errors.As(err, &e) || len(e.Fields) == 0:
		return nil, err
	}
	for _, f := range e.Fields {
		if !slices.ContainsFunc(broken, func(b drover.FieldError) bool { return b.Field == f.Field }) {
			f.Line, f.Column = 0, 0 // there is no text whose lines would mean something
			broken = append(broken, f)
		}
	}
	e.Fields = broken
	e.Detail = fmt.Sprintf("pipeline %q is not valid", name)
	return nil, e
}

// Task is a task of a Pipeline.
type Task struct {
	settings
	name  string
	needs []string
}

// Output refers to the task's output or, with a path, to a member in it. Seen
// from outside, the output of a map is the list of its elements' outputs; a map
// that goes over it element by element sees its own element's.
func (t *Task) Output(path ...string) Ref { return Ref("tasks." + t.name + ".output").join(path) }

// after adds a dependency, once.
func (t *Task) after(parents ...*Task) {
	for _, p := range parents {
		if !slices.Contains(t.needs, p.name) {
			t.needs = append(t.needs, p.name)
		}
	}
}

// Option says something about a task.
type Option func(*Task)

// apply lets options set the keys of a task, or of the defaults.
func (t *Task) apply(options []Option) {
	for _, o := range options {
		o(t)
	}
}

func (s *settings) apply(options []Option) {
	t := Task{settings: *s}
	t.apply(options)
	if len(t.needs) > 0 { // refused by the check: defaults has no such key
		t.set("needs", t.needs)
	}
	*s = t.settings
}

// Run names the handler that runs the task, such as "exec" or a handler of your
// own worker.
func Run(kind string) Option { return func(t *Task) { t.set("run", kind) } }

// RunPipeline names the pipeline that the task runs as a job of its own, "name" or
// "name@2", in the place of a handler; its result is the task's output.
func RunPipeline(name string) Option { return func(t *Task) { t.set("pipeline", name) } }

// ParentClose says what becomes of the job that the task runs when its own is stopped:
// "cancel" or "abandon".
func ParentClose(policy string) Option { return func(t *Task) { t.set("parent_close", policy) } }

// With sets the task's input: anything that encoding/json can write, with Refs
// anywhere in it. A string may hold expressions too; see Literal.
func With(input any) Option { return func(t *Task) { t.setJSON("with", input) } }

// Needs makes the task wait for others.
func Needs(tasks ...*Task) Option { return func(t *Task) { t.after(tasks...) } }

// ForEach makes the task a map: one element for each element of list, which is
// a Ref to a list or a slice.
func ForEach(list any) Option { return func(t *Task) { t.setJSON("for_each", list) } }

// ForRange makes the task a map of n elements, each with its number from 0 as item; n is
// a whole number or a Ref to one.
func ForRange(n any) Option {
	return func(t *Task) { t.setJSON("for_each", map[string]any{"range": n}) }
}

// BatchSize hands out the list of ForEach in parts of n elements: the item is a list.
func BatchSize(n int) Option { return func(t *Task) { t.set("batch_size", n) } }

// MaxElements is how many elements the list of ForEach may have, up to 100,000; 10,000
// if nobody says.
func MaxElements(n int) Option { return func(t *Task) { t.set("max_elements", n) } }

// MaxParallel is how many elements of a map run at one time.
func MaxParallel(n int) Option { return func(t *Task) { t.set("max_parallel", n) } }

// MinSuccess is how many elements of a map must succeed for the map to have: a number
// such as "3", or a part such as "95%".
func MinSuccess(share string) Option {
	return func(t *Task) {
		if n, err := strconv.Atoi(share); err == nil {
			t.set("min_success", n)
			return
		}
		t.set("min_success", share)
	}
}

// Over makes the task a map that goes over another map element by element:
// element i starts when that one's element i is done.
func Over(other *Task) Option { return func(t *Task) { t.set("for_each", other.name) } }

// When says by how the tasks it waits for have ended whether the task runs:
// "all_done", "one_failed", "quorum(2)" and so on.
func When(rule string) Option { return func(t *Task) { t.set("when", rule) } }

// If is a condition in CEL, such as "tasks.quality.output.passed"; the task is
// skipped where it is false.
func If(condition string) Option { return func(t *Task) { t.set("if", condition) } }

// Fallback names the task that runs in the place of this one when it has failed for
// good. It must not wait for anything.
func Fallback(other *Task) Option { return func(t *Task) { t.set("fallback", other.name) } }

// Backup names the task that runs beside this one once an attempt of this one has failed:
// whichever gives a result first, it is this one's. It must not wait for anything.
func Backup(other *Task) Option { return func(t *Task) { t.set("backup", other.name) } }

// Compensate names the task that undoes what this one did, when this one has succeeded
// and the job fails or is cancelled. It must not wait for anything.
func Compensate(other *Task) Option { return func(t *Task) { t.set("compensate", other.name) } }

// SideEffects says that the task changes something outside; idempotent, that it passes
// its idempotency key on, so that a repeat changes nothing.
func SideEffects(idempotent bool) Option {
	return func(t *Task) {
		if idempotent {
			t.set("side_effects", "idempotent")
			return
		}
		t.set("side_effects", true)
	}
}

// NoSideEffects says that the task changes nothing outside, whatever its command line
// looks like to lint.
func NoSideEffects() Option { return func(t *Task) { t.set("side_effects", false) } }

// IfFails says what happens when the task fails for good, if not what the pipeline
// says: "fail_fast", "finish_running", "continue", or "degrade".
func IfFails(policy string) Option { return func(t *Task) { t.set("on_failure", policy) } }

// Default is the output that stands in where the task has none, because it was
// skipped or has failed: anything that encoding/json can write.
func Default(output any) Option { return func(t *Task) { t.setJSON("default", output) } }

// Queue names the queue the task waits in.
func Queue(name string) Option { return func(t *Task) { t.set("queue", name) } }

// Class sets the task's priority class, whatever the job's is.
func Class(c drover.Class) Option { return func(t *Task) { t.set("class", c.String()) } }

// Timeout bounds each attempt.
func Timeout(d time.Duration) Option {
	return func(t *Task) { t.set("timeout", drover.Duration(d).String()) }
}

// ScheduleToClose bounds all attempts and waits of the task, from when it is
// first able to run.
func ScheduleToClose(d time.Duration) Option {
	return func(t *Task) { t.set("schedule_to_close", drover.Duration(d).String()) }
}

// Heartbeat ends an attempt that is silent for so long: its handler must send
// heartbeats.
func Heartbeat(d time.Duration) Option {
	return func(t *Task) { t.set("heartbeat", drover.Duration(d).String()) }
}

// Circuit names what the task uses and others too: while that circuit is open
// none of its tasks starts.
func Circuit(name string) Option { return func(t *Task) { t.set("circuit", name) } }

// Retry says how often and when the task is tried again. Fields that are zero
// are left to the defaults.
func Retry(r drover.Retry) Option {
	return func(t *Task) {
		retry := ruleKeys(drover.RetryRule{MaxAttempts: r.MaxAttempts, Initial: r.Initial, Factor: r.Factor, Max: r.Max})
		if len(r.On) > 0 {
			on := map[string]any{}
			for k, rule := range r.On {
				on[k] = ruleKeys(rule)
			}
			retry["on"] = on
		}
		t.setJSON("retry", retry)
	}
}

// ruleKeys are the keys of a retry, or of a rule in it, that are set.
func ruleKeys(r drover.RetryRule) map[string]any {
	keys, backoff := map[string]any{}, map[string]any{}
	if r.MaxAttempts != 0 {
		keys["max_attempts"] = r.MaxAttempts
	}
	if r.Initial != 0 {
		backoff["initial"] = r.Initial
	}
	if r.Factor != 0 {
		backoff["factor"] = r.Factor
	}
	if r.Max != 0 {
		backoff["max"] = r.Max
	}
	if len(backoff) > 0 {
		keys["backoff"] = backoff
	}
	return keys
}

// Limits are the named limits that the task takes, and how much of each; it starts when
// it has all of them.
func Limits(of map[string]int64) Option { return func(t *Task) { t.set("limits", of) } }

// ConcurrencyKey is an expression in CEL that gives the task's concurrency key, by which
// limits of scope key count: ConcurrencyKey("input.customer").
func ConcurrencyKey(expr string) Option { return func(t *Task) { t.set("concurrency_key", expr) } }

// Resources are what the task takes of its worker beside a slot, such as 1 of "gpu".
func Resources(of map[string]int64) Option { return func(t *Task) { t.set("resources", of) } }

// WorkerLabels are the labels that the task's worker must have.
func WorkerLabels(labels map[string]string) Option {
	return func(t *Task) { t.set("worker_labels", labels) }
}

// Artifact declares the kind of artifact that the task makes.
func Artifact(kind string) Option {
	return func(t *Task) { t.set("artifact", map[string]string{"kind": kind}) }
}

// OutputSchema sets the JSON Schema that the task's output must fit, of a map each
// element's: anything that encoding/json writes as an object.
func OutputSchema(schema any) Option { return func(t *Task) { t.setJSON("output", schema) } }

// Cache lets a result of the same identity stand in for running the task. Version
// is that of the handler, to be raised when its results become others; it may be empty.
func Cache(version string) Option {
	return func(t *Task) {
		if version == "" {
			t.set("cache", true)
			return
		}
		t.set("cache", map[string]string{"version": version})
	}
}

// Describe sets what people read about the task.
func Describe(text string) Option { return func(t *Task) { t.set("description", text) } }

// Ref is an expression that is filled in when the task is handed to a worker.
// Alone it keeps the type of the value it refers to; within a text it becomes
// part of the text: fmt.Sprintf("s3://bucket/%s", ref).
type Ref string

// Input refers to the job's input or, with a path, to a member in it.
func Input(path ...string) Ref { return Ref("input").join(path) }

// Item refers to the element of a map.
func Item(path ...string) Ref { return Ref("item").join(path) }

// Index refers to the element's number in a map, from 0.
func Index() Ref { return "index" }

// Field refers to a member of what r refers to.
func (r Ref) Field(name string) Ref { return r + Ref(dag.Step(name)) }

// At refers to an element of the list that r refers to, from 0.
func (r Ref) At(i int) Ref { return r + Ref("["+strconv.Itoa(i)+"]") }

func (r Ref) join(path []string) Ref {
	for _, name := range path {
		r = r.Field(name)
	}
	return r
}

// String writes the expression as it stands in a definition: ${{ … }}.
func (r Ref) String() string { return "${{ " + string(r) + " }}" }

// MarshalText writes the expression as it stands in a definition.
func (r Ref) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Literal returns text in which nothing is taken for an expression.
func Literal(text string) string { return strings.ReplaceAll(text, "${{", "$${{") }
