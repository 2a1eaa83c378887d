package api

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"go.yaml.in/yaml/v4"

	"github.com/drover-dev/drover"
)

var breakIt = flag.Bool("break", false, "with -update: accept a change that breaks clients")

const golden = "testdata/openapi.json"

// TestDocsOpenAPIBreaksNoClient compares the document with the one committed. An
// update of that refuses what takes something away from clients.
func TestDocsOpenAPIBreaksNoClient(t *testing.T) {
	t.Parallel()
	now := describe(table(), "").json
	before, err := os.ReadFile(golden)
	if os.IsNotExist(err) && *update {
		before = now
	} else if err != nil {
		t.Fatal(err)
	}
	broken := breaks(parsed(t, before), parsed(t, now))
	for _, b := range broken {
		t.Errorf("breaks clients: %s", b)
	}
	switch {
	case *update && (len(broken) == 0 || *breakIt):
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, now, 0o644); err != nil {
			t.Fatal(err)
		}
	case !bytes.Equal(before, now):
		t.Errorf("%s is not the document of the routes now; run go test ./internal/api -run TestDocs -update and read the change", golden)
	}
}

func parsed(t *testing.T, text []byte) map[string]any {
	t.Helper()
	var doc map[string]any
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

// at follows keys through objects.
func at(v any, keys ...string) any {
	for _, k := range keys {
		m, _ := v.(map[string]any)
		v = m[k]
	}
	return v
}

func asMap(v any) map[string]any { m, _ := v.(map[string]any); return m }
func asList(v any) []any         { l, _ := v.([]any); return l }

// breaks lists what a client of before may miss or not satisfy in after.
func breaks(before, after map[string]any) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for path, item := range asMap(before["paths"]) {
		for method, op := range asMap(item) {
			now := at(after, "paths", path, method)
			where := strings.ToUpper(method) + " " + path
			if now == nil {
				say("%s is gone", where)
				continue
			}
			if at(op, "operationId") != at(now, "operationId") {
				say("%s has another operationId", where)
			}
			had := map[string]bool{}
			for _, p := range asList(at(op, "parameters")) {
				had[fmt.Sprint(at(p, "in"), " ", at(p, "name"))] = true
			}
			has := map[string]bool{}
			for _, p := range asList(at(now, "parameters")) {
				key := fmt.Sprint(at(p, "in"), " ", at(p, "name"))
				has[key] = true
				if at(p, "required") == true && !had[key] {
					say("%s needs the new parameter %s", where, key)
				}
			}
			for key := range had {
				if !has[key] {
					say("%s lost the parameter %s", where, key)
				}
			}
			for status, r := range asMap(at(op, "responses")) {
				if status[0] == '2' && at(now, "responses", status) == nil {
					say("%s does not answer %s any more", where, status)
				}
				for media := range asMap(at(r, "content")) {
					if at(now, "responses", status) != nil && at(now, "responses", status, "content", media) == nil {
						say("%s %s does not answer in %s any more", where, status, media)
					}
				}
			}
			for media := range asMap(at(op, "requestBody", "content")) {
				if at(now, "requestBody", "content", media) == nil {
					say("%s does not take %s any more", where, media)
				}
			}
		}
	}
	for name, schema := range asMap(at(before, "components", "schemas")) {
		now := at(after, "components", "schemas", name)
		if now == nil {
			say("schema %s is gone", name)
			continue
		}
		breaksSchema(name, schema, now, say)
	}
	slices.Sort(out)
	return out
}

func breaksSchema(where string, before, after any, say func(string, ...any)) {
	for _, k := range []string{"type", "$ref", "pattern"} {
		if at(before, k) != nil && at(before, k) != at(after, k) {
			say("%s has another %s", where, k)
		}
	}
	for _, v := range asList(at(before, "enum")) {
		if !slices.Contains(asList(at(after, "enum")), v) {
			say("%s lost the value %v", where, v)
		}
	}
	closed := at(after, "additionalProperties") == false // a type of requests only
	for _, v := range asList(at(after, "required")) {
		if closed && !slices.Contains(asList(at(before, "required")), v) {
			say("%s needs the member %v now", where, v)
		}
	}
	for _, v := range asList(at(before, "required")) {
		if !closed && !slices.Contains(asList(at(after, "required")), v) {
			say("%s does not always have the member %v any more", where, v)
		}
	}
	for name, p := range asMap(at(before, "properties")) {
		now := at(after, "properties", name)
		if now == nil {
			say("%s lost the member %s", where, name)
			continue
		}
		breaksSchema(where+"."+name, p, now, say)
	}
	if items := at(before, "items"); items != nil {
		breaksSchema(where+"[]", items, at(after, "items"), say)
	}
}

func TestBreakingChangesAreFound(t *testing.T) {
	t.Parallel()
	text := describe(table(), "").json
	for _, c := range []struct {
		change func(doc map[string]any)
		want   string
	}{
		{func(d map[string]any) { delete(asMap(d["paths"]), "/v1/jobs") }, "GET /v1/jobs is gone"},
		{func(d map[string]any) {
			delete(asMap(at(d, "components", "schemas", "Job", "properties")), "labels")
		}, "Job lost the member labels"},
		{func(d map[string]any) {
			s := asMap(at(d, "components", "schemas", "Status"))
			s["enum"] = asList(s["enum"])[1:]
		}, "Status lost the value PENDING"},
		{func(d map[string]any) {
			s := asMap(at(d, "components", "schemas", "NewJob"))
			s["required"] = []any{"input"}
		}, "NewJob needs the member input now"},
		{func(d map[string]any) {
			op := asMap(at(d, "paths", "/v1/jobs", "get"))
			op["parameters"] = asList(op["parameters"])[1:]
		}, "GET /v1/jobs lost the parameter query status"},
		{func(d map[string]any) { delete(asMap(at(d, "paths", "/v1/jobs", "post", "responses")), "202") }, "POST /v1/jobs does not answer 202 any more"},
	} {
		after := parsed(t, text)
		c.change(after)
		if got := breaks(parsed(t, text), after); !slices.Contains(got, c.want) {
			t.Errorf("breaks = %v, want %q among them", got, c.want)
		}
	}
	if got := breaks(parsed(t, text), parsed(t, text)); got != nil {
		t.Errorf("no change breaks %v", got)
	}
}

func TestOpenAPIDocumentIsValid(t *testing.T) {
	t.Parallel()
	d := describe(table(), "")
	doc, err := openapi3.NewLoader().LoadFromData(d.json)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Error(err)
	}
	var fromYAML any
	if err := yaml.Unmarshal(d.yaml, &fromYAML); err != nil {
		t.Fatal(err)
	}
	var fromJSON any
	if err := json.Unmarshal(d.json, &fromJSON); err != nil {
		t.Fatal(err)
	}
	a, _ := json.Marshal(fromYAML)
	b, _ := json.Marshal(fromJSON)
	if !bytes.Equal(a, b) {
		t.Error("the YAML says something else than the JSON")
	}
}

func TestOpenAPIDescribesEveryOperationWhole(t *testing.T) {
	t.Parallel()
	doc := parsed(t, describe(table(), "").json)
	ids := map[string]bool{}
	n := 0
	for path, item := range asMap(doc["paths"]) {
		for method, op := range asMap(item) {
			n++
			where := strings.ToUpper(method) + " " + path
			id, _ := at(op, "operationId").(string)
			if id == "" || ids[id] {
				t.Errorf("%s: operationId %q is missing or not unique", where, id)
			}
			ids[id] = true
			for _, k := range []string{"summary", "description"} {
				if s, _ := at(op, k).(string); s == "" {
					t.Errorf("%s has no %s", where, k)
				}
			}
			if at(op, "security") == nil {
				t.Errorf("%s does not say who may call it", where)
			}
			public := len(asList(at(op, "security"))) == 0
			examples, codes := 0, 0
			for status, r := range asMap(at(op, "responses")) {
				for _, c := range asMap(at(r, "content")) {
					examples += len(asMap(at(c, "examples")))
				}
				if status >= "4" && status != "default" {
					codes += len(asList(at(r, "x-problem-codes")))
				}
			}
			if !public && (codes < 5 || examples == 0) {
				t.Errorf("%s has %d problem codes and %d examples", where, codes, examples)
			}
			if b := at(op, "requestBody"); b != nil {
				for media, c := range asMap(at(b, "content")) {
					if len(asMap(at(c, "examples"))) == 0 {
						t.Errorf("%s: no example of the body in %s", where, media)
					}
				}
			}
		}
	}
	if n != len(table()) {
		t.Errorf("the document has %d operations, the table %d", n, len(table()))
	}
}

// TestOpenAPIExamplesAreRead holds the examples of requests to the strict decoder.
func TestOpenAPIExamplesAreRead(t *testing.T) {
	t.Parallel()
	for _, r := range table() {
		if r.body.of == nil {
			continue
		}
		b, err := json.Marshal(r.body.example)
		if err != nil {
			t.Fatal(err)
		}
		into := reflect.New(reflect.TypeOf(r.body.of))
		if err := decode(b, into.Interface(), r.body.mild); err != nil {
			t.Errorf("%s: the example %s is refused: %v", r.id, b, err)
		}
		if got := into.Elem().Interface(); !reflect.DeepEqual(got, r.body.example) {
			t.Errorf("%s: the example is read as %+v, want %+v", r.id, got, r.body.example)
		}
	}
}

func TestEveryProblemHasAnExample(t *testing.T) {
	t.Parallel()
	for _, r := range table() {
		for _, c := range r.problems() {
			if exampleProblems[c] == nil {
				t.Errorf("%s: no example of %s", r.id, c)
			}
		}
	}
	for _, c := range []drover.Code{drover.CodeValidation} { // what every refusal of a body is
		if e := exampleProblem(c); e.Status != 400 {
			t.Errorf("status of %s = %d", c, e.Status)
		}
	}
}

func TestRouteWithoutPolicyIsRefused(t *testing.T) {
	t.Parallel()
	routes := append(table(), route{method: "GET", path: "/v1/secret", id: "leak", handle: (*API).whoAmI})
	if _, err := build(Config{}, routes); err == nil {
		t.Error("a route without a policy was taken")
	}
	public := map[string]bool{"/livez": true, "/readyz": true, "/healthz": true, "/version": true, "/openapi.json": true, "/openapi.yaml": true, "/docs": true}
	for _, r := range table() {
		if r.policy.public != public[r.path] {
			t.Errorf("%s %s: public = %v", r.method, r.path, r.policy.public)
		}
		for _, s := range r.policy.scopes {
			if !slices.Contains(scopes, s) {
				t.Errorf("%s needs the scope %q, which there is not", r.id, s)
			}
		}
	}
}

// TestDocsListEveryRoute holds the table in docs/api.md to the one in routes.go.
func TestDocsListEveryRoute(t *testing.T) {
	t.Parallel()
	const file, from, to = "../../docs/api.md", "<!-- routes -->\n", "<!-- /routes -->\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, found := strings.Cut(string(text), from)
	_, tail, closed := strings.Cut(rest, to)
	if !found || !closed {
		t.Fatalf("%s has no place for the routes", file)
	}
	var b strings.Builder
	b.WriteString("| route | does | scope |\n|---|---|---|\n")
	for _, r := range table() {
		scope := "`" + strings.Join(r.policy.scopes, "` or `") + "`"
		switch {
		case r.policy.public:
			scope = "public"
		case r.policy.token:
			scope = "any token"
		case r.policy.operator:
			scope += " of the tenant `system`"
		}
		fmt.Fprintf(&b, "| `%s %s` | %s | %s |\n", r.method, r.path, r.summary, scope)
	}
	want := head + from + b.String() + to + tail
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("%s does not list the routes there are; run go test ./internal/api -run TestDocs -update", file)
	}
}
