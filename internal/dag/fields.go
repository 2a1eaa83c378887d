package dag

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/drover-dev/drover/internal/builtin"
)

// field is a key of a mapping in a definition: the reader takes it, and the
// schema for editors shows it.
type field struct {
	name string
	doc  string // what an editor tells of it
	form string // JSON Schema of its value, which may refer to another group or to forms
}

// group is a kind of mapping in a definition, with all the keys it can have.
type group struct {
	name     string // under $defs in the schema
	required []string
	fields   []field
}

// groups are all of them: the reader knows no key that is not here.
var groups []*group

func newGroup(name string, required []string, fields ...field) *group {
	g := &group{name, required, fields}
	groups = append(groups, g)
	return g
}

// names returns the keys in their order.
func (g *group) names() []string {
	out := make([]string, len(g.fields))
	for i, f := range g.fields {
		out[i] = f.name
	}
	return out
}

func (g *group) has(name string) bool {
	return slices.ContainsFunc(g.fields, func(f field) bool { return f.name == name })
}

// ref is the form of a value that is a mapping of a group, or one of the forms.
func ref(name string) string { return `{"$ref":"#/$defs/` + name + `"}` }

// forms are what values of several keys look like.
var forms = []field{
	{"name", "1 to 63 lower-case letters, digits, _ and -, beginning with a letter.", `{"type":"string","pattern":"^[a-z][a-z0-9_-]{0,62}$"}`},
	{"handler", "1 to 127 letters, digits, and any of _ . : / -, beginning with a letter.", `{"type":"string","pattern":"^[A-Za-z][A-Za-z0-9_.:/-]{0,126}$"}`},
	{"duration", "A time with its unit: 90s, 10m, 1h30m, 500ms.", `{"type":"string","pattern":"^\\+?([0-9]+(\\.[0-9]*)?|\\.[0-9]+)(h|m|s|ms|us|µs|μs|ns)(([0-9]+(\\.[0-9]*)?|\\.[0-9]+)(h|m|s|ms|us|µs|μs|ns))*$"}`},
	{"class", "A priority: interactive, urgent, normal, batch, or a number from 1 (first) to 99 (last).", `{"anyOf":[{"enum":["interactive","urgent","normal","batch"]},{"type":"integer","minimum":1,"maximum":99},{"type":"string","pattern":"^[1-9][0-9]?$"}]}`},
	{"attempts", "1 to 1000, the first attempt included; 1 means no retry.", `{"type":"integer","minimum":1,"maximum":1000}`},
	{"elements", "A number of elements of a map, 1 to 100000.", `{"type":"integer","minimum":1,"maximum":100000}`},
	{"text", "Text for people.", `{"type":"string"}`},
}

// preset are the keys that defaults and a task have in common.
var presetFields = []field{
	{"queue", "The queue that the task waits in; `default` if nobody says.", ref("name")},
	{"class", "The task's priority class; the job's if nobody says.", ref("class")},
	{"timeout", "How long one attempt may take; 1 hour if nobody says.", ref("duration")},
	{"schedule_to_close", "How long all attempts and the waits between them may take, from when the task can first run.", ref("duration")},
	{"heartbeat", "How long an attempt may be silent, from 1s; its handler must send heartbeats.", ref("duration")},
	{"circuit", "What the task uses and others too, such as payment-api: while that circuit is open none of its tasks starts.", ref("name")},
	{"retry", "How often and when a failed attempt is tried again.", ref("retry")},
}

// The groups, each named after its place in a definition.
var (
	topKeys = newGroup("definition", []string{"pipeline", "tasks"},
		field{"pipeline", "The pipeline's name.", ref("name")},
		field{"description", "Text for people.", ref("text")},
		field{"input", "A JSON Schema for the job's input; without it any input is accepted.",
			`{"type":"object","if":{"required":["$schema"]},"else":{"$ref":"https://json-schema.org/draft/2020-12/schema"}}`},
		field{"defaults", "What holds for tasks that do not say otherwise.", ref("defaults")},
		field{"tasks", "From each task's name to the task; in JSON also a list of tasks, each with its name.",
			`{"anyOf":[{"type":"object","minProperties":1,"propertyNames":{"pattern":"^[a-z][a-z0-9_-]{0,62}$"},"additionalProperties":{"$ref":"#/$defs/task"}},{"type":"array","minItems":1,"items":{"$ref":"#/$defs/listed_task"}}]}`},
		field{"rescue", "A task that runs when the others have ended and a failure was not made good; if it succeeds, the job does, degraded.", ref("name")},
		field{"finally", "Tasks that run at the end, whatever happened.", `{"anyOf":[{"$ref":"#/$defs/name"},{"type":"array","items":{"$ref":"#/$defs/name"},"uniqueItems":true}]}`},
		field{"on_failure", "What happens to the other tasks when one fails for good.", `{"enum":["fail_fast","finish_running","continue"]}`},
		field{"max_tasks", "How many tasks a job may have, its maps expanded, up to 200000; a map that would make it more fails.", `{"type":"integer","minimum":1,"maximum":200000}`},
	)
	defaultsKeys = newGroup("defaults", nil, presetFields...)
	taskFields   = slices.Concat([]field{
		{"run", "The handler: exec, http, simulate, or one that a worker of yours has.", ref("handler")},
		{"pipeline", "In place of run: a pipeline that the task runs as a job of its own, NAME or NAME@VERSION; its result is the task's output.", `{"type":"string","pattern":"^[a-z][a-z0-9_-]{0,62}(@[1-9][0-9]{0,8})?$"}`},
		{"parent_close", "What becomes of the job that the task runs when its own is stopped: cancel, if nobody says, or abandon.", `{"enum":["cancel","abandon"]}`},
		{"needs", "Tasks that must end well first.", `{"anyOf":[{"$ref":"#/$defs/name"},{"type":"array","items":{"$ref":"#/$defs/name"},"uniqueItems":true}]}`},
		{"for_each", "Makes the task a map: a list, an expression for one (\"${{ tasks.NAME.output.LIST }}\"), a range ({range: 100}), or the name of a map to go over element by element.",
			`{"anyOf":[{"type":"array"},{"$ref":"#/$defs/range"},{"$ref":"#/$defs/name"},{"type":"string","pattern":"\\$\\{\\{"}]}`},
		{"batch_size", "How many elements of the list one task of a map gets, as a list: ${{ item }}.", `{"type":"integer","minimum":1,"maximum":100000}`},
		{"max_elements", "How many elements the list of a map may have, up to 100000; 10000 if nobody says.", ref("elements")},
		{"max_parallel", "How many elements of a map run at one time; the others wait for one of them to end.", ref("elements")},
		{"min_success", "How many elements of a map must succeed for the map to have succeeded: a number, or a part such as 95%; all if nobody says.", `{"anyOf":[{"$ref":"#/$defs/elements"},{"type":"string","pattern":"^[0-9]{1,3}(\\.[0-9]{1,2})?%$"}]}`},
		{"with", "The task's input: any value, with ${{ expressions }} in it; without it, the item of a map, otherwise the job's input.", `{"not":{"type":"null"}}`},
		{"output", "A JSON Schema of what the task gives; an output that does not fit fails the task for good.",
			`{"type":"object","if":{"required":["$schema"]},"else":{"$ref":"https://json-schema.org/draft/2020-12/schema"}}`},
		{"if", "A condition in CEL over input, tasks.NAME.output, tasks.NAME.outcome, item and index; the task is skipped where it is false.", `{"type":"string","maxLength":4096}`},
		{"when", "By how the tasks it waits for have ended, whether it runs; all_success if nobody says.",
			`{"type":"string","pattern":"^(all_success|all_done|all_failed|one_success|one_failed|one_done|none_failed|none_failed_min_one_success|none_skipped|all_skipped|always|quorum\\( *[1-9][0-9]{0,6} *\\))$"}`},
		{"on_failure", "What happens to the other tasks when this one fails for good, if not what the pipeline says; degrade: the tasks below go on as if it had succeeded, and the job is degraded.",
			`{"enum":["fail_fast","finish_running","continue","degrade"]}`},
		{"fallback", "A task that runs in the place of this one when it has failed for good.", ref("name")},
		{"backup", "A task that runs beside this one once an attempt of it has failed: whichever gives a result first, it is this one's.", ref("name")},
		{"compensate", "A task that undoes what this one did: it runs when this one has succeeded and the job fails or is cancelled.", ref("name")},
		{"side_effects", "Whether the task changes something outside: true, idempotent when it passes its idempotency key on, so that a repeat changes nothing, or false; if nobody says, lint goes by the command line.", `{"enum":[true,false,"idempotent"]}`},
		{"default", "The output that stands in where the task has none, because it was skipped or has failed.", `true`},
	}, presetFields, []field{
		{"limits", "The named limits that the task takes, and how much of each: it starts when all of them have it.", `{"type":"object","maxProperties":16,"propertyNames":{"$ref":"#/$defs/name"},"additionalProperties":{"type":"integer","minimum":1,"maximum":1000000000}}`},
		{"concurrency_key", "An expression in CEL over input, tasks.NAME.output, tasks.NAME.outcome, item and index that gives the task's concurrency key, by which limits of scope key count: a text, a whole number, or true or false; an empty text is none.", `{"type":"string","minLength":1,"maxLength":4096}`},
		{"resources", "What the task takes of its worker beside a slot, such as {gpu: 1}.", `{"type":"object","maxProperties":16,"propertyNames":{"$ref":"#/$defs/name"},"additionalProperties":{"type":"integer","minimum":1,"maximum":9007199254740992}}`},
		{"worker_labels", "The labels that the task's worker must have.", `{"type":"object","maxProperties":16,"additionalProperties":{"type":"string"}}`},
		{"artifact", "The artifact that the task makes.", ref("artifact")},
		{"cache", "A result of the same identity stands in for running the task: true, or a mapping with the handler's version.", `{"anyOf":[{"type":"boolean"},{"$ref":"#/$defs/cache"}]}`},
		{"description", "Text for people.", ref("text")},
	})
	taskKeys    = newGroup("task", nil, taskFields...)
	listedKeys  = newGroup("listed_task", []string{"name"}, append([]field{{"name", "The task's name.", ref("name")}}, taskFields...)...)
	retryKeys   = newGroup("retry", nil, append(slices.Clip(ruleFields), field{"on", "What differs for failures of one kind: from a class (retryable, throttled, timeout, panic) or an error's type (exit_75, http_503) to a rule.", `{"type":"object","maxProperties":32,"additionalProperties":{"$ref":"#/$defs/rule"}}`})...)
	ruleKeys    = newGroup("rule", nil, ruleFields...)
	backoffKeys = newGroup("backoff", nil,
		field{"initial", "The ceiling of the first delay; 1s if nobody says.", ref("duration")},
		field{"factor", "What the ceiling grows by after each attempt; 2 if nobody says.", `{"type":"number","minimum":1,"maximum":1000}`},
		field{"max", "The highest ceiling; 1m if nobody says, or initial if that is longer.", ref("duration")},
		field{"jitter", "A delay is drawn evenly from zero to its ceiling.", `{"enum":["full"]}`},
	)
	cacheKeys = newGroup("cache", []string{"version"},
		field{"version", "Of the handler: raise it when results would be others.", `{"type":"string","minLength":1,"maxLength":63}`},
	)
	rangeKeys = newGroup("range", []string{"range"},
		field{"range", "How many elements the map has, each with its number from 0 as item: a whole number, or an expression for one.", `{"anyOf":[{"type":"integer","minimum":0,"maximum":1000000},{"type":"string","pattern":"\\$\\{\\{"}]}`},
	)
	artifactKeys = newGroup("artifact", []string{"kind"},
		field{"kind", "What it is for, such as dataset-manifest.", ref("name")},
	)
)

// ruleFields are the keys that a retry and its rules have in common.
var ruleFields = []field{
	{"max_attempts", "1 to 1000, the first attempt included; 1 means no retry. 4 if nobody says.", ref("attempts")},
	{"backoff", "How long to wait before the next attempt.", ref("backoff")},
}

// SchemaURL names the published schema of definitions.
const SchemaURL = "https://raw.githubusercontent.com/drover-dev/drover/main/docs/pipeline.schema.json"

// EditorSchema returns the JSON Schema (draft 2020-12) of a definition, made of
// the keys that the reader knows: what editors complete and underline. What only
// the whole definition shows, such as a ring, is beyond it.
func EditorSchema() []byte {
	var b bytes.Buffer
	quote := func(s string) {
		q, _ := json.Marshal(s) // text always encodes
		b.Write(bytes.ReplaceAll(bytes.ReplaceAll(bytes.ReplaceAll(q, []byte(`\u003c`), []byte("<")), []byte(`\u003e`), []byte(">")), []byte(`\u0026`), []byte("&")))
	}
	b.WriteString(`{"$schema":"https://json-schema.org/draft/2020-12/schema","$id":"` + SchemaURL + `","title":"Drover pipeline","$ref":"#/$defs/definition","$defs":{`)
	for i, g := range groups {
		if i > 0 {
			b.WriteByte(',')
		}
		quote(g.name)
		b.WriteString(`:{"type":"object"`)
		if len(g.required) > 0 {
			b.WriteString(`,"required":[`)
			for i, r := range g.required {
				if i > 0 {
					b.WriteByte(',')
				}
				quote(r)
			}
			b.WriteByte(']')
		}
		b.WriteString(`,"additionalProperties":false,"properties":{`)
		for i, f := range g.fields {
			if i > 0 {
				b.WriteByte(',')
			}
			quote(f.name)
			b.WriteByte(':')
			f.write(&b, quote)
		}
		b.WriteByte('}')
		if g == taskKeys || g == listedKeys {
			writeInputs(&b)
		}
		b.WriteByte('}')
	}
	for _, kind := range builtin.Kinds() {
		b.WriteByte(',')
		quote(kind + "_input")
		b.WriteString(`:{"type":"object","additionalProperties":false,"properties":{`)
		must := []string{}
		for i, f := range builtin.Fields(kind) {
			if i > 0 {
				b.WriteByte(',')
			}
			if f.Must != "" {
				must = append(must, `"`+f.Name+`"`)
			}
			quote(f.Name)
			b.WriteByte(':')
			form := f.Form
			if form != "true" {
				form = `{"anyOf":[` + form + `,` + expressionForm + `]}`
			}
			field{f.Name, f.Doc, form}.write(&b, quote)
		}
		b.WriteString(`},"required":[` + strings.Join(must, ",") + `]}`)
	}
	for _, f := range forms {
		b.WriteByte(',')
		quote(f.name)
		b.WriteByte(':')
		f.write(&b, quote)
	}
	b.WriteString(`}}`)
	var out bytes.Buffer
	if err := json.Indent(&out, b.Bytes(), "", "  "); err != nil {
		panic("dag: a form of the table of fields is not JSON: " + err.Error())
	}
	out.WriteByte('\n')
	return out.Bytes()
}

// expressionForm is what a value may be in place of any other.
const expressionForm = `{"type":"string","pattern":"\\$\\{\\{"}`

// writeInputs adds what `with` must be for the kinds that are built in.
func writeInputs(b *bytes.Buffer) {
	b.WriteString(`,"oneOf":[{"required":["run"]},{"required":["pipeline"]}],"allOf":[`)
	for i, kind := range builtin.Kinds() {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`{"if":{"required":["run"],"properties":{"run":{"const":"` + kind + `"}}},"then":{"properties":{"with":{"anyOf":[` + ref(kind+"_input") + `,` + expressionForm + `]}}}}`)
	}
	b.WriteByte(']')
}

// write adds the schema of a field's value with its description.
func (f field) write(b *bytes.Buffer, quote func(string)) {
	b.WriteString(`{"description":`)
	quote(f.doc)
	if f.form == "true" { // any value
		b.WriteByte('}')
		return
	}
	b.WriteByte(',')
	b.WriteString(f.form[1:])
}
