package dag

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

func editorSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(EditorSchema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(SchemaURL, doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(SchemaURL)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// asWritten returns a definition as an editor's schema sees it: nothing is put
// into one form yet.
func asWritten(t *testing.T, file, src string) any {
	t.Helper()
	ps := &problems{}
	v := readText(file, []byte(src), ps)
	if v == nil || len(ps.list) > 0 {
		t.Fatalf("%s cannot be read: %+v", file, ps.list)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(v.appendJSON(nil)))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestEveryValidDefinitionFitsThePublishedSchema(t *testing.T) {
	t.Parallel()
	s := editorSchema(t)
	texts := map[string]string{}
	reference, err := os.ReadFile("../../docs/pipelines.md")
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range regexp.MustCompile("(?ms)^```(yaml|json)\n(.*?)^```$").FindAllStringSubmatch(string(reference), -1) {
		texts["docs/pipelines.md#"+strconv.Itoa(i)+"."+b[1]] = b[2]
	}
	examples, err := filepath.Glob("../../examples/*/*.yaml")
	if err != nil || len(examples) == 0 {
		t.Fatalf("no examples found: %v", err)
	}
	for _, file := range examples {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts[file] = string(src)
	}
	valid := 0
	for file, src := range texts {
		p, err := Parse(file, []byte(src))
		if err != nil {
			if !strings.Contains(file, "docs/") {
				t.Errorf("%s: %v", file, err)
			}
			continue // the reference shows mistakes too
		}
		valid++
		if err := s.Validate(asWritten(t, file, src)); err != nil {
			t.Errorf("%s does not fit the schema: %v\n%s", file, err, src)
		}
		if err := s.Validate(asWritten(t, "canonical.json", string(p.Canonical()))); err != nil {
			t.Errorf("the canonical form of %s does not fit the schema: %v", file, err)
		}
	}
	if valid < 8 {
		t.Errorf("only %d valid definitions found", valid)
	}
}

func TestThePublishedSchemaRefusesMistakes(t *testing.T) {
	t.Parallel()
	s := editorSchema(t)
	for _, src := range []string{
		`{pipeline: p}`,
		`{pipeline: P, tasks: {a: {run: x}}}`,
		`{pipeline: p, tasks: {a: {}}}`,
		`{pipeline: p, tasks: {A: {run: x}}}`,
		`{pipeline: p, tasks: {a: {run: x, need: [b]}}}`,
		`{pipeline: p, tasks: {a: {run: x, timeout: 600}}}`,
		`{pipeline: p, tasks: {a: {run: x, timeout: -5s}}}`,
		`{pipeline: p, tasks: {a: {run: x, for_each: 3}}}`,
		`{pipeline: p, tasks: {a: {run: x, for_each: {range: -1}}}}`,
		`{pipeline: p, tasks: {a: {run: x, for_each: {range: ten}}}}`,
		`{pipeline: p, tasks: {a: {run: x, for_each: {to: 3}}}}`,
		`{pipeline: p, tasks: {a: {run: x, retry: {max_attempts: 0}}}}`,
		`{pipeline: p, tasks: {a: {run: x, retry: {on: {timeout: {attempts: 1}}}}}}`,
		`{pipeline: p, tasks: [{run: x}]}`,
		`{pipeline: p, tasks: {a: {run: exec, with: {comand: [x]}}}}`,
		`{pipeline: p, tasks: {a: {run: exec, with: {env: {}}}}}`,
		`{pipeline: p, tasks: [{name: a, run: exec, with: {command: ls}}]}`,
		`{pipeline: p, tasks: {a: {run: http, with: {url: x}}}}`,
		`{pipeline: p, tasks: {a: {run: simulate, with: {sleep: 3}}}}`,
		`{pipeline: p, input: {type: objekt}, tasks: {a: {run: x}}}`,
	} {
		if _, err := Parse("", []byte(src)); err == nil {
			t.Errorf("the reader takes %s", src)
		}
		if err := s.Validate(asWritten(t, "p.yaml", src)); err == nil {
			t.Errorf("the schema takes %s", src)
		}
	}
}

// The reader looks its keys up by their names: each of those names is a key of
// a group, and each key of a group is looked up.
func TestTheTableOfFieldsIsWhatTheReaderReads(t *testing.T) {
	t.Parallel()
	read := map[string]bool{}
	file, err := parser.ParseFile(token.NewFileSet(), "pipeline.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	literal := func(e ast.Expr) {
		if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
			s, _ := strconv.Unquote(l.Value)
			read[s] = true
		}
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv == nil {
			continue
		}
		if id, ok := f.Recv.List[0].Type.(*ast.Ident); !ok || id.Name != "reader" {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SwitchStmt:
				if sel, ok := n.Tag.(*ast.SelectorExpr); !ok || sel.Sel.Name != "name" {
					return true
				}
				for _, c := range n.Body.List {
					for _, e := range c.(*ast.CaseClause).List {
						literal(e)
					}
				}
			case *ast.CallExpr:
				if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "get" {
					literal(n.Args[0])
				}
			}
			return true
		})
	}
	var known []string
	for _, g := range groups {
		known = append(known, g.names()...)
		for _, f := range g.fields {
			if !read[f.name] {
				t.Errorf("%s.%s is in the table and nobody reads it", g.name, f.name)
			}
			if f.doc == "" || !strings.HasSuffix(f.doc, ".") {
				t.Errorf("%s.%s: an editor shows %q; write a sentence", g.name, f.name, f.doc)
			}
		}
	}
	if len(read) < 20 {
		t.Fatalf("only %d keys found in the reader", len(read))
	}
	for name := range read {
		if !slices.Contains(known, name) {
			t.Errorf("the reader knows the key %q, and no group has it", name)
		}
	}
	var doc struct {
		Defs map[string]struct {
			Properties map[string]json.RawMessage `json:"properties"`
		} `json:"$defs"`
	}
	if err := json.Unmarshal(EditorSchema(), &doc); err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		for _, f := range g.fields {
			if doc.Defs[g.name].Properties[f.name] == nil {
				t.Errorf("the schema has no %s.%s", g.name, f.name)
			}
		}
	}
}
