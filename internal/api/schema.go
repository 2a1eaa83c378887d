package api

import (
	"encoding"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/drover-dev/drover"
)

var (
	stringSchema = object{{"type", "string"}}
	timeSchema   = object{{"type", "string"}, {"format", "date-time"}}
)

// schemas collects the components of a document from Go types.
type schemas struct {
	byName   map[string]object
	problems map[string]object // examples, by code or status
	// requests are the types that requests are made of; unknown members are
	// refused in them and in no others.
	requests map[reflect.Type]bool
	answers  map[reflect.Type]bool
}

// words are types whose JSON is a string.
var words = map[reflect.Type]object{
	reflect.TypeFor[drover.JobID]():       idSchema("job_"),
	reflect.TypeFor[drover.TaskID]():      idSchema("task_"),
	reflect.TypeFor[drover.ArtifactID]():  idSchema("art_"),
	reflect.TypeFor[drover.OperationID](): idSchema("op_"),
	reflect.TypeFor[drover.TokenID]():     idSchema("tok_"),
	reflect.TypeFor[drover.SessionID]():   {{"type", "string"}, {"pattern", "^wrk_[1-9][0-9]*$"}, {"examples", []any{"wrk_42"}}},
	reflect.TypeFor[drover.Class]():       {{"type", "string"}, {"pattern", "^(interactive|urgent|normal|batch|[1-9][0-9]?)$"}, {"examples", []any{"normal", "15"}}},
	reflect.TypeFor[drover.Duration]():    {{"type", "string"}, {"pattern", `^([0-9]+(\.[0-9]+)?(h|m|s|ms|us|µs|ns))+$|^0$`}, {"examples", []any{"90s", "1h30m"}}},
	reflect.TypeFor[drover.Status]():      {{"type", "string"}, {"enum", statusNames()}},
	reflect.TypeFor[time.Time]():          timeSchema,
	reflect.TypeFor[drover.Code]():        enumSchema("Code"),
	reflect.TypeFor[drover.EventType]():   enumSchema("EventType"),
	reflect.TypeFor[drover.ErrorClass]():  enumSchema("ErrorClass"),
	reflect.TypeFor[drover.Reason]():      enumSchema("Reason"),
	reflect.TypeFor[drover.Layer]():       enumSchema("Layer"),
}

// narrower are members whose strings are of a closed list that their Go type does not tell.
var narrower = map[string]object{
	"Outcome.status":  {{"type", "string"}, {"enum", []any{drover.OutcomeSucceeded, drover.OutcomeFailed, drover.OutcomeSnoozed, drover.OutcomeReleased, drover.OutcomeCancelled}}},
	"Attempt.outcome": {{"type", "string"}, {"enum", []any{"succeeded", "failed", "timed_out", "snoozed", "released", "lease_lost", "cancelled", "forced", "running"}}},
	"Circuit.state":   {{"type", "string"}, {"enum", []any{drover.CircuitClosed, drover.CircuitOpen, drover.CircuitProbing, drover.CircuitRecovering}}},
	"Health.status":   {{"type", "string"}, {"enum", []any{"ok", "failing"}}},
	"NewToken.scopes": {{"type", "array"}, {"items", object{{"type", "string"}, {"enum", anys(scopes)}}}},
	"LogLine.level":   {{"type", "string"}, {"enum", []any{"debug", "info", "warn", "error", "stdout", "stderr"}}},
	"Progress.ratio":  {{"type", "number"}, {"minimum", 0}, {"maximum", 1}},
}

func enumSchema(name string) object { return object{{"type", "string"}, {"enum", enums[name]}} }

func idSchema(prefix string) object {
	return object{{"type", "string"}, {"pattern", "^" + prefix + "[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}$"}, {"examples", []any{prefix + exampleID(1).String()}}}
}

func statusNames() []any {
	var out []any
	for _, s := range drover.Statuses() {
		out = append(out, s.String())
	}
	return out
}

func anys[T any](in []T) []any {
	out := make([]any, len(in))
	for i, v := range in {
		out[i] = v
	}
	return out
}

// nameOf names a type as the document does: a page of jobs is a JobPage.
func nameOf(t reflect.Type) string {
	if strings.HasPrefix(t.Name(), "Page[") {
		f, _ := t.FieldByName("Items")
		return f.Type.Elem().Name() + "Page"
	}
	return t.Name()
}

// mark notes every type that t is made of.
func mark(in map[reflect.Type]bool, t reflect.Type) {
	switch {
	case in[t]:
		return
	case t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map:
		in[t] = true
		mark(in, t.Elem())
	case t.Kind() == reflect.Struct && words[t] == nil:
		in[t] = true
		for i := range t.NumField() {
			mark(in, t.Field(i).Type)
		}
	}
}

// of returns the schema of a type: a reference where it has a name.
func (s *schemas) of(t reflect.Type) object {
	if t == rawType {
		return object{{"description", "Any JSON, kept as it is."}}
	}
	if t.Kind() == reflect.Pointer {
		return s.of(t.Elem())
	}
	if w, ok := words[t]; ok {
		if t == reflect.TypeFor[time.Time]() {
			return w
		}
		name := t.Name()
		if s.byName[name] == nil {
			s.byName[name] = withText(w, descriptions[name])
		}
		return ref(name)
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		panic("api: no schema for " + t.String())
	}
	switch t.Kind() {
	case reflect.Struct:
		name := nameOf(t)
		if s.byName[name] == nil {
			s.byName[name] = object{} // a type may hold itself
			s.byName[name] = s.structure(t, name)
		}
		return ref(name)
	case reflect.Map:
		if t.Elem().Kind() == reflect.Interface {
			return object{{"type", "object"}}
		}
		return object{{"type", "object"}, {"additionalProperties", s.of(t.Elem())}}
	case reflect.Slice:
		return object{{"type", "array"}, {"items", s.of(t.Elem())}}
	case reflect.String:
		return stringSchema
	case reflect.Bool:
		return object{{"type", "boolean"}}
	case reflect.Int32:
		return object{{"type", "integer"}, {"format", "int32"}}
	case reflect.Int, reflect.Int64:
		return object{{"type", "integer"}, {"format", "int64"}}
	case reflect.Float64:
		return object{{"type", "number"}}
	}
	panic("api: no schema for " + t.String())
}

func ref(name string) object { return object{{"$ref", "#/components/schemas/" + name}} }

// withText sets the description; beside a reference that is allowed since 3.1.
func withText(o object, text string) object {
	if text == "" {
		return o
	}
	o = slices.DeleteFunc(slices.Clone(o), func(p pair) bool { return p.key == "description" })
	return append(o, pair{"description", text})
}

func (s *schemas) structure(t reflect.Type, name string) object {
	m := membersOf(t)
	properties := object{}
	var required []any
	for i, n := range m.names {
		full := t.Name() + "." + n
		schema, ok := narrower[full]
		if !ok {
			schema = s.of(t.Field(m.fields[i].at).Type)
		}
		if low, ok := least[full]; ok {
			schema = append(slices.Clone(schema), pair{"minimum", low})
		}
		properties = append(properties, pair{n, withText(schema, descriptions[full])})
		if m.fields[i].required {
			required = append(required, n)
		}
	}
	o := object{{"type", "object"}}
	if text := descriptions[name]; text != "" {
		o = append(o, pair{"description", text})
	}
	o = append(o, pair{"properties", properties})
	if required != nil {
		o = append(o, pair{"required", required})
	}
	if s.requests[t] && !s.answers[t] {
		o = append(o, pair{"additionalProperties", false})
	}
	return o
}
