package dag

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/drover-dev/drover"
)

func TestCheckInputNamesTheFields(t *testing.T) {
	t.Parallel()
	plan := compile(t, `pipeline: p
input:
  type: object
  required: [object_uri, segment_seconds]
  additionalProperties: false
  properties:
    object_uri: {type: string, minLength: 1, pattern: "^s3://"}
    segment_seconds: {type: number, default: 2, exclusiveMinimum: 0}
    tags: {type: array, maxItems: 3, uniqueItems: true, items: {type: string}}
    mode: {enum: [fast, exact]}
    either: {anyOf: [{type: string}, {type: object, required: [x]}]}
    nested: {type: object, properties: {"a b": {type: integer}}}
tasks: {a: {run: x}}
`)
	for in, want := range map[string]string{
		`{"object_uri": "s3://x"}`:                           ``,
		`{"object_uri": "s3://x", "segment_seconds": 1e400}`: ``,
		`{"object_uri": "s3://x", "nested": {"a b": 1.0}}`:   ``,
		`{"object_uri": "s3://x", "either": {"x": null}}`:    ``,
		``:                  `input.object_uri: this is required and missing`,
		`{}`:                `input.object_uri: this is required and missing`,
		`null`:              `input: this must be an object and is null`,
		`[]`:                `input: this must be an object and is a list`,
		`{"object_uri": 3}`: `input.object_uri: this must be a string and is a number`,
		`{"object_uri": "s3://x", "object_url": 1}`:           `input.object_url: the schema has no such property; leave it out, or correct its name`,
		`{"object_uri": "http://x"}`:                          `input.object_uri: "http://x" does not match the pattern ^s3://`,
		`{"object_uri": "s3://x", "segment_seconds": null}`:   `input.segment_seconds: this must be a number and is null`,
		`{"object_uri": "s3://x", "segment_seconds": 0}`:      `input.segment_seconds: this is 0 and must be more than 0`,
		`{"object_uri": "s3://x", "tags": ["a", 1]}`:          `input.tags[1]: this must be a string and is a number`,
		`{"object_uri": "s3://x", "tags": ["a", "a"]}`:        `input.tags: items 0 and 1 of this list are equal; each may be there once`,
		`{"object_uri": "s3://x", "mode": "slow"}`:            `input.mode: this must be one of "fast", "exact" and is "slow"`,
		`{"object_uri": "s3://x", "either": 3}`:               `input.either: this fits none of the allowed forms: this must be a string and is a number; or this must be an object and is a number`,
		`{"object_uri": "s3://x", "nested": {"a b": 1.5}}`:    `input.nested["a b"]: this must be an integer and has a fraction`,
		`{"object_uri": 3, "tags": 1}`:                        `input.object_uri: this must be a string and is a number|input.tags: this must be a list and is a number`,
		`{"object_uri": "s3://x", "segment_seconds": 1e9999}`: `input.segment_seconds: the number is too long; at most 1000 characters and an exponent up to 1000`,
	} {
		err := plan.CheckInput(json.RawMessage(in))
		if want == "" {
			if err != nil {
				t.Errorf("%s: %v", in, err)
			}
			continue
		}
		var e *drover.Error
		if !errors.As(err, &e) || e.Code != drover.CodeSchemaMismatch {
			t.Errorf("%s: got %v, want a schema mismatch", in, err)
			continue
		}
		var got []string
		for _, f := range e.Fields {
			got = append(got, f.Field+": "+f.Message)
		}
		if strings.Join(got, "|") != want {
			t.Errorf("%s:\ngot  %s\nwant %s", in, strings.Join(got, "|"), want)
		}
	}
	if err := plan.CheckInput(json.RawMessage(`{`)); drover.CodeOf(err) != drover.CodeValidation {
		t.Errorf("broken JSON: %v", err)
	}
	if err := plan.CheckInput(json.RawMessage(`{} {}`)); drover.CodeOf(err) != drover.CodeValidation {
		t.Errorf("two values: %v", err)
	}
}

// Every keyword of JSON Schema that refuses something says what is wrong and how
// it would be right, in words.
func TestMismatchesAreToldInWords(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ schema, in, want string }{
		{`{minLength: 1}`, `""`, `input.v: this has no characters; write at least 1`},
		{`{minLength: 3}`, `"é"`, `input.v: this has 1 character; write at least 3`},
		{`{maxLength: 2}`, `"abc"`, `input.v: this has 3 characters; at most 2 are allowed`},
		{`{pattern: "^a+$"}`, `"<b>"`, `input.v: "<b>" does not match the pattern ^a+$`},
		{`{minimum: 1}`, `0.50`, `input.v: this is 0.5 and must be 1 or more`},
		{`{maximum: 1e3}`, `12345678901234567890`, `input.v: this is 12345678901234567890 and must be 1000 or less`},
		{`{exclusiveMinimum: 0}`, `-1`, `input.v: this is -1 and must be more than 0`},
		{`{exclusiveMaximum: 0.1}`, `0.1`, `input.v: this is 0.1 and must be less than 0.1`},
		{`{multipleOf: 0.01}`, `0.015`, `input.v: this is 0.015 and must be a multiple of 0.01`},
		{`{minItems: 2}`, `[1]`, `input.v: this list has 1 item; give at least 2`},
		{`{maxItems: 0}`, `[1, 2]`, `input.v: this list has 2 items; at most 0 are allowed`},
		{`{prefixItems: [true], items: false}`, `[1, 2]`, `input.v[1]: nothing is allowed here; leave it out`},
		{`draft-07 {items: [true], additionalItems: false}`, `[1, 2, 3]`, `input.v: this list is too long; leave out the last 2 items`},
		{`{uniqueItems: true}`, `[1, 2, 1]`, `input.v: items 0 and 2 of this list are equal; each may be there once`},
		{`{contains: {type: string}}`, `[1]`, `input.v: no item of this list is what one of them must be: at [0] this must be a string and is a number`},
		{`{contains: {type: string}, minContains: 2}`, `["a", 1]`, `input.v: 1 item of this list is what at least 2 must be: at [1] this must be a string and is a number`},
		{`{contains: {type: string}, maxContains: 1}`, `["a", "b"]`, `input.v: 2 items of this list are what at most 1 may be`},
		{`{minProperties: 1}`, `{}`, `input.v: this object has no properties; give at least 1`},
		{`{maxProperties: 1}`, `{"a": 1, "b": 2}`, `input.v: this object has 2 properties; at most 1 are allowed`},
		{`{required: [a, "b c"]}`, `{}`, `input.v.a: this is required and missing|input.v["b c"]: this is required and missing`},
		{`{properties: {a: true}, additionalProperties: false}`, `{"b": 1}`, `input.v.b: the schema has no such property; leave it out, or correct its name`},
		{`{dependentRequired: {a: [b]}}`, `{"a": 1}`, `input.v.b: this is missing; it is required together with "a"`},
		{`draft-07 {dependencies: {a: [b]}}`, `{"a": 1}`, `input.v.b: this is missing; it is required together with "a"`},
		{`{propertyNames: {maxLength: 2}}`, `{"abc": 1}`, `input.v: no property here can be called "abc": this has 3 characters; at most 2 are allowed`},
		{`{const: 1}`, `2`, `input.v: this must be 1 and is 2`},
		{`{const: {a: [1]}}`, `"x"`, `input.v: this must be {"a":[1]} and is "x"`},
		{`{enum: [a, 1, null]}`, `"A"`, `input.v: this must be one of "a", 1, null and is "A"`},
		{`{enum: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]}`, `0`, `input.v: this must be one of 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, … (2 more) and is 0`},
		{`{type: [integer, "null"]}`, `true`, `input.v: this must be null or an integer and is a boolean`},
		{`{type: integer}`, `1.5`, `input.v: this must be an integer and has a fraction`},
		{`{type: boolean}`, `"true"`, `input.v: this must be true or false and is a string`},
		{`{not: {type: string}}`, `"x"`, `input.v: this is what the schema excludes (its "not")`},
		{`false`, `1`, `input.v: nothing is allowed here; leave it out`},
		{`{anyOf: [{required: [a]}, {properties: {b: {additionalProperties: false}}, required: [b]}]}`, `{"b": {"x": 1}}`, `input.v: this fits none of the allowed forms: this object needs the property "a"; or at b this object cannot have the property "x"`},
		{`{oneOf: [{type: integer}, {minimum: 2}]}`, `3`, `input.v: this fits forms 1 and 2 of the schema's oneOf; it must fit exactly one`},
		{`{oneOf: [{dependentRequired: {a: [b]}}, {type: string}]}`, `{"a": 1}`, `input.v: this fits none of the allowed forms: with "a" this object needs the property "b"; or this must be a string and is an object`},
		{`{maxLength: 1}`, `"` + strings.Repeat("x", 500) + `"`, `input.v: this has 500 characters; at most 1 are allowed`},
		{`{enum: [a]}`, `"` + strings.Repeat("x", 500) + `"`, `input.v: this must be "a" and is "` + strings.Repeat("x", 59) + `…`},
	} {
		dialect := ""
		if rest, old := strings.CutPrefix(c.schema, "draft-07 "); old {
			c.schema, dialect = rest, `"$schema": "http://json-schema.org/draft-07/schema#", `
		}
		plan := compile(t, "pipeline: p\ninput: {"+dialect+"properties: {v: "+c.schema+"}}\ntasks: {a: {run: x}}\n")
		var e *drover.Error
		if err := plan.CheckInput(json.RawMessage(`{"v": ` + c.in + `}`)); !errors.As(err, &e) || e.Code != drover.CodeSchemaMismatch {
			t.Errorf("%s with %s: got %v, want a schema mismatch", c.schema, c.in, err)
			continue
		}
		var got []string
		for _, f := range e.Fields {
			got = append(got, f.Field+": "+f.Message)
		}
		if strings.Join(got, "|") != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.schema, strings.Join(got, "|"), c.want)
		}
	}
}

// TestCheckInputIsBounded counts the memory that a check asks for: it grows with
// the input, and with nothing that somebody writes into it. It is not parallel, so
// that nobody else's is counted.
func TestCheckInputIsBounded(t *testing.T) { //nolint:paralleltest // counts the whole process's allocations
	const perByte = 1000 // of the input
	plan := compile(t, `pipeline: p
input: {type: object, additionalProperties: {type: array, uniqueItems: true, items: {type: number, multipleOf: 0.01}}, properties: {tree: {$ref: "#/$defs/node"}}, $defs: {node: {type: object, properties: {l: {$ref: "#/$defs/node"}, r: {$ref: "#/$defs/node"}}}}}
tasks: {a: {run: x}}
`)
	list := "[" + strings.TrimSuffix(strings.Repeat("1,", 200_000), ",") + "]"
	deep := strings.Repeat(`{"l":`, 5000) + "{}" + strings.Repeat("}", 5000)
	for name, in := range map[string]string{
		"equal items": `{"x": ` + list + `}`,
		"wrong items": `{"x": ` + strings.ReplaceAll(list, "1", `""`) + `}`,
		"long number": `{"x": [` + strings.Repeat("9", 900_000) + `]}`,
		"exponents":   `{"x": [1e999999999]}`,
		"deep":        `{"tree": ` + deep + `}`,
		"too deep":    strings.Repeat("[", 200_000),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := plan.CheckInput(json.RawMessage(in))
		runtime.ReadMemStats(&after)
		if asked := after.TotalAlloc - before.TotalAlloc; asked > perByte*uint64(max(len(in), 10_000)) {
			t.Errorf("%s: %d bytes of input asked for %d bytes of memory", name, len(in), asked)
		}
		if (err == nil) != (name == "deep") {
			t.Errorf("%s: error = %v", name, err)
		}
		var e *drover.Error
		if errors.As(err, &e) && len(e.Fields) > problemCap {
			t.Errorf("%s: %d fields", name, len(e.Fields))
		}
	}
}

func TestASchemaThatOnlyRefersToItselfIsHarmless(t *testing.T) {
	t.Parallel()
	plan := compile(t, "pipeline: p\ninput: {$ref: '#'}\ntasks: {a: {run: x}}\n")
	if err := plan.CheckInput(json.RawMessage(`{}`)); drover.CodeOf(err) != drover.CodeSchemaMismatch {
		t.Errorf("got %v, want a schema mismatch", err)
	}
}

// The checked input and the expressions agree about a member written twice.
func TestTheLastOfEqualMembersCounts(t *testing.T) {
	t.Parallel()
	plan := compile(t, "pipeline: p\ninput: {properties: {n: {maximum: 5}}}\ntasks: {a: {run: x, with: '${{ input.n }}'}}\n")
	in := json.RawMessage(`{"n": 9, "n": 1}`)
	if err := plan.CheckInput(in); err != nil {
		t.Fatal(err)
	}
	if out, err := plan.Render(0, Scope{Input: in}); err != nil || string(out) != "1" {
		t.Errorf("got %s, %v", out, err)
	}
}

// A schema that could be loaded from a file is not.
func TestNoOtherDocumentIsRead(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "schema.json")
	if err := os.WriteFile(file, []byte(`{"type": "string"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, got := complaints(t, "", "pipeline: p\ninput: {properties: {a: {$ref: 'file://"+filepath.ToSlash(file)+"'}}}\ntasks: {a: {run: x}}\n")
	if len(got) != 1 || !strings.Contains(got[0], "is another document") {
		t.Errorf("got %q, want a refusal", got)
	}
}

func TestExpressionsIntoDeclaredOutputsAreChecked(t *testing.T) {
	t.Parallel()
	const head = `
pipeline: p
tasks:
  one: {run: x, output: {type: object, properties: {score: {type: number}, deep: {type: object, properties: {a: {}}}}}}
  many: {run: x, for_each: [1, 2], output: {type: object, properties: {score: {type: number}}}}
  open: {run: x, output: {type: object, additionalProperties: true, properties: {score: {}}}}
`
	for with, want := range map[string]string{
		`{run: x, with: "${{ tasks.one.output.score }}"}`:              "",
		`{run: x, with: "${{ tasks.one.output.deep.a.b.c }}"}`:         "",
		`{run: x, with: "${{ tasks.one.output.scor }}"}`:               `tasks.t.with: ${{ tasks.one.output.scor }}: the schema of tasks.one.output has no property "scor"; did you mean "score"?`,
		`{run: x, with: "${{ tasks.one.output.deep.b }}"}`:             `tasks.t.with: ${{ tasks.one.output.deep.b }}: the schema of tasks.one.output.deep has no property "b"; declare it, or set additionalProperties: true`,
		`{run: x, for_each: "${{ tasks.one.output.list }}"}`:           `tasks.t.for_each: ${{ tasks.one.output.list }}: the schema of tasks.one.output has no property "list"; declare it, or set additionalProperties: true`,
		`{run: x, with: "${{ tasks.many.output[0].score }}"}`:          "",
		`{run: x, with: "${{ tasks.many.output[0].sore }}"}`:           `tasks.t.with: ${{ tasks.many.output[0].sore }}: the schema of tasks.many.output[0] has no property "sore"; did you mean "score"?`,
		`{run: x, with: "${{ tasks.many.output }}"}`:                   "",
		`{run: x, for_each: many, with: "${{ item.score }}"}`:          "",
		`{run: x, for_each: many, with: "${{ item.x }}"}`:              `tasks.t.with: ${{ item.x }}: the schema of item has no property "x"; declare it, or set additionalProperties: true`,
		`{run: x, for_each: many, with: "${{ tasks.many.output.x }}"}`: `tasks.t.with: ${{ tasks.many.output.x }}: the schema of tasks.many.output has no property "x"; declare it, or set additionalProperties: true`,
		`{run: x, with: "${{ tasks.open.output.anything }}"}`:          "",
		`{run: x, output: {type: objekt}}`:                             `tasks.t.output.type: `,
		`{run: x, output: object}`:                                     `tasks.t.output: this must be a JSON Schema`,
	} {
		_, err := Parse("", []byte(head+"  t: "+with+"\n"))
		var e *drover.Error
		errors.As(err, &e)
		got := ""
		if e != nil {
			got = e.Fields[0].Field + ": " + e.Fields[0].Message
		}
		if want == "" && got != "" || want != "" && !strings.HasPrefix(got, want) {
			t.Errorf("%s\ngot  %s\nwant %s", with, got, want)
		}
	}
}
