package dag

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
		`null`:              `input: this must be object and is null`,
		`[]`:                `input: this must be object and is array`,
		`{"object_uri": 3}`: `input.object_uri: this must be string and is number`,
		`{"object_uri": "s3://x", "object_url": 1}`:           `input.object_url: the schema has no such property`,
		`{"object_uri": "http://x"}`:                          `input.object_uri: 'http://x' does not match pattern '^s3://'`,
		`{"object_uri": "s3://x", "segment_seconds": null}`:   `input.segment_seconds: this must be number and is null`,
		`{"object_uri": "s3://x", "segment_seconds": 0}`:      `input.segment_seconds: exclusiveMinimum: got 0, want 0`,
		`{"object_uri": "s3://x", "tags": ["a", 1]}`:          `input.tags[1]: this must be string and is number`,
		`{"object_uri": "s3://x", "tags": ["a", "a"]}`:        `input.tags: items at 0 and 1 are equal`,
		`{"object_uri": "s3://x", "mode": "slow"}`:            `input.mode: value must be one of 'fast', 'exact'`,
		`{"object_uri": "s3://x", "either": 3}`:               `input.either: this fits none of the allowed forms: this must be string and is number; or this must be object and is number`,
		`{"object_uri": "s3://x", "nested": {"a b": 1.5}}`:    `input.nested["a b"]: this must be integer and is number`,
		`{"object_uri": 3, "tags": 1}`:                        `input.object_uri: this must be string and is number|input.tags: this must be array and is number`,
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

func TestCheckInputIsBounded(t *testing.T) {
	t.Parallel()
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
		start := time.Now()
		err := plan.CheckInput(json.RawMessage(in))
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("%s: took %s", name, d)
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
