// Package arch holds the architecture: who may import whom, and what the pure
// packages and the engine must not touch.
package arch

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/drover-dev/drover"

// arrows names, for each package of ours, which others it may import. The words
// ("") may be imported by all.
var arrows = map[string][]string{
	"":                         {},
	"protocol":                 {},
	"client":                   {"protocol"},
	"worker":                   {"protocol", "client"},
	"flow":                     {"internal/dag"},
	"embedded":                 {"client", "worker", "protocol", "internal/api", "internal/engine", "internal/gateway", "internal/scheduler", "internal/store"},
	"internal/lifecycle":       {},
	"internal/builtin":         {},
	"internal/dag":             {"internal/builtin"},
	"internal/draw":            {},
	"internal/wfcommons":       {},
	"internal/dag/dagtest":     {},
	"internal/admit":           {"internal/lifecycle"},
	"internal/rings":           {},
	"internal/explain":         {},
	"internal/forecast":        {},
	"internal/reconcile":       {"internal/lifecycle", "internal/dag"},
	"internal/store/driver":    {},
	"internal/store/postgres":  {"internal/store/driver"},
	"internal/store/sqlite":    {"internal/store/driver"},
	"internal/store":           {"internal/lifecycle", "internal/dag", "internal/reconcile", "internal/store/driver", "internal/store/postgres", "internal/store/sqlite"},
	"internal/store/storetest": {"internal/store", "internal/store/driver"},
	"internal/engine":          {"internal/lifecycle", "internal/builtin", "internal/dag", "internal/admit", "internal/explain", "internal/forecast", "internal/reconcile", "internal/rings", "internal/store", "internal/store/driver"},
	"internal/gateway":         {"internal/engine", "protocol"},
	"internal/scheduler":       {"internal/engine"},
	"internal/api":             {"internal/engine", "internal/gateway", "protocol"},
	"internal/executor":        {"worker", "protocol", "internal/builtin"},
	"cmd/drover":               {"*"},
}

// free are trees that may import anything.
var free = []string{"examples/", "test/", "bench/", "tools/", "cmd/", "internal/arch"}

type pkg struct {
	ImportPath  string
	Imports     []string
	TestImports []string
	GoFiles     []string
	Dir         string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,TestImports,GoFiles,Dir", module+"/...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var list []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
		var p pkg
		if err := d.Decode(&p); err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	if len(list) < 15 {
		t.Fatalf("go list names %d packages of ours; something is wrong", len(list))
	}
	return list
}

func short(path string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, module), "/")
}

func ours(path string) bool { return path == module || strings.HasPrefix(path, module+"/") }

func TestArrowsBetweenPackages(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		name := short(p.ImportPath)
		allowed, known := arrows[name]
		if !known && !slices.ContainsFunc(free, func(f string) bool { return strings.HasPrefix(name, f) }) {
			t.Errorf("package %s is not in the table of arrows; say what it may import", name)
			continue
		}
		if !known || slices.Contains(allowed, "*") {
			continue
		}
		for _, i := range p.Imports {
			if ours(i) && short(i) != "" && !slices.Contains(allowed, short(i)) {
				t.Errorf("%s imports %s, which the architecture does not allow", name, short(i))
			}
		}
	}
}

// pure packages decide; they must give the same answer to the same question.
var pure = []string{"", "internal/lifecycle", "internal/builtin", "internal/dag", "internal/draw", "internal/wfcommons", "internal/admit", "internal/explain", "internal/forecast", "internal/reconcile", "internal/rings"}

func TestPurePackagesDoNoIO(t *testing.T) {
	t.Parallel()
	banned := []string{"context", "database/sql", "log", "log/slog", "net", "net/http", "os", "os/exec", "math/rand", "math/rand/v2", "crypto/rand", "io/fs", "syscall"}
	for _, p := range packages(t) {
		if !slices.Contains(pure, short(p.ImportPath)) {
			continue
		}
		for _, i := range p.Imports {
			if slices.Contains(banned, i) {
				t.Errorf("pure package %q imports %s", short(p.ImportPath), i)
			}
		}
	}
}

// rules say what a file may not do.
type rules struct {
	core    bool // no goroutine, select, clock, or randomness nobody seeded
	env     bool // may read the environment
	testing bool // may import testing
	chance  bool // may name math/rand, as a default that is passed in
}

func rulesOf(name string) rules {
	unbound := slices.ContainsFunc(free, func(f string) bool { return strings.HasPrefix(name, f) })
	return rules{
		core:    slices.Contains(pure, name) || name == "internal/engine",
		env:     unbound || name == "internal/store/storetest" || name == "internal/executor", // the last for PATH, so that programs find what this process finds
		testing: unbound || name == "internal/store/storetest",
		chance:  name == "internal/engine",
	}
}

var (
	clockWords = []string{"Now", "Since", "Until", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker", "Sleep"}
	envWords   = []string{"Getenv", "LookupEnv", "Environ", "ExpandEnv", "Setenv", "Unsetenv"}
)

// offences lists what a file does against the rules.
func offences(fset *token.FileSet, f *ast.File, r rules) (list []string) {
	say := func(n ast.Node, what string) { list = append(list, fset.Position(n.Pos()).String()+": "+what) }
	names := map[string]string{} // of imports in this file → path
	for _, i := range f.Imports {
		path := strings.Trim(i.Path.Value, `"`)
		name := strings.TrimSuffix(path, "/v2")
		name = name[strings.LastIndex(name, "/")+1:]
		if i.Name != nil {
			name = i.Name.Name
		}
		names[name] = path
		if path == "testing" && !r.testing {
			say(i, "testing in a program")
		}
		if name == "." {
			say(i, "an import without a name")
		}
	}
	called := map[ast.Expr]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			if r.core {
				say(n, "a goroutine; loops and handlers have them")
			}
		case *ast.SelectStmt:
			if r.core {
				say(n, "a select; loops and handlers have them")
			}
		case *ast.CallExpr:
			called[n.Fun] = true
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			if !ok {
				return true
			}
			switch path, word := names[x.Name], n.Sel.Name; {
			case r.core && path == "time" && slices.Contains(clockWords, word):
				say(n, "time."+word+"; the store's time is passed in")
			case r.core && strings.HasPrefix(path, "math/rand") && (called[n] || !r.chance):
				say(n, "rand."+word+"; chance is passed in")
			case r.core && path == "sync" && word == "WaitGroup":
				say(n, "a WaitGroup; loops and handlers have goroutines")
			case !r.env && path == "os" && slices.Contains(envWords, word):
				say(n, "os."+word+"; the environment is read in cmd/drover")
			}
		}
		return true
	})
	return list
}

// TestNoClocksOrGoroutinesInTheCore looks for the clock, chance, goroutines and
// selects in the pure packages and the engine: the engine's steps are whole and
// run in one thread, with the store's time. It looks everywhere for the
// environment and for package testing.
func TestNoClocksOrGoroutinesInTheCore(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		for _, file := range p.GoFiles {
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, file), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range offences(fset, f, rulesOf(short(p.ImportPath))) {
				t.Error(o)
			}
		}
	}
}

func TestOffencesAreSeen(t *testing.T) {
	t.Parallel()
	const head = "package p\nimport (\n\tclock \"time\"\n\t\"os\"\n\t\"math/rand/v2\"\n)\n"
	for src, want := range map[string]string{
		"func f() { go f() }":                         "goroutine",
		"func f() { select {} }":                      "select",
		"func f() any { return clock.Now() }":         "time.Now",
		"var f = clock.Now":                           "time.Now",
		"func f() any { return rand.IntN(3) }":        "rand.IntN",
		"var f = rand.Float64":                        "rand.Float64",
		"func f() any { return os.Getenv(\"HOME\") }": "os.Getenv",
		"var t = clock.Second":                        "",
	} {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, "p.go", head+src, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(offences(fset, f, rulesOf("internal/lifecycle")), "\n")
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: offences %q, want %q", src, got, want)
		}
		if got := offences(fset, f, rulesOf("cmd/drover")); len(got) > 0 {
			t.Errorf("%s: in cmd/drover: %v", src, got)
		}
	}
	f, err := parser.ParseFile(token.NewFileSet(), "p.go", "package p\nimport \"testing\"\nvar t testing.TB", parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	if got := offences(token.NewFileSet(), f, rulesOf("internal/api")); len(got) != 1 {
		t.Errorf("package testing in a program: %v", got)
	}
	if rulesOf("internal/gateway").core || !rulesOf("internal/engine").core || rulesOf("internal/api").env || !rulesOf("cmd/drover").env {
		t.Error("the rules are mixed up")
	}
}

// TestNoSQLOutsideTheStore finds statements that grew elsewhere.
func TestNoSQLOutsideTheStore(t *testing.T) {
	t.Parallel()
	verbs := []string{"SELECT ", "INSERT INTO ", "UPDATE ", "DELETE FROM "}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel("../..", path)
		if d.IsDir() && (rel == "internal/store" || rel == "internal/arch" || rel == "test" || rel == "bench" || rel == ".git" || rel == ".drover" || rel == "mine") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				for _, v := range verbs {
					if strings.HasPrefix(strings.TrimLeft(l.Value, "`\""), v) && strings.ContainsAny(l.Value, "=*(,") {
						t.Errorf("%s: SQL outside internal/store: %.60s", fset.Position(l.Pos()), l.Value)
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
