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
	"internal/dag":             {},
	"internal/admit":           {},
	"internal/store/driver":    {},
	"internal/store/postgres":  {"internal/store/driver"},
	"internal/store/sqlite":    {"internal/store/driver"},
	"internal/store":           {"internal/lifecycle", "internal/store/driver", "internal/store/postgres", "internal/store/sqlite"},
	"internal/store/storetest": {"internal/store"},
	"internal/engine":          {"internal/lifecycle", "internal/dag", "internal/admit", "internal/store", "internal/store/driver"},
	"internal/gateway":         {"internal/engine", "protocol"},
	"internal/scheduler":       {"internal/engine"},
	"internal/api":             {"internal/engine", "internal/gateway", "protocol"},
	"internal/executor":        {"worker", "protocol"},
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
var pure = []string{"", "internal/lifecycle", "internal/dag", "internal/admit"}

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

// TestNoClocksOrGoroutinesInTheCore looks for calls of the clock in pure packages
// and for goroutines, selects and the environment there and in the engine: the
// engine's steps are whole and run in one thread, with the store's time.
func TestNoClocksOrGoroutinesInTheCore(t *testing.T) {
	t.Parallel()
	clock := []string{"Now", "Since", "Until", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker", "Sleep"}
	core := append(slices.Clone(pure), "internal/engine")
	for _, p := range packages(t) {
		name := short(p.ImportPath)
		inCore := slices.Contains(core, name)
		mayReadEnv := strings.HasPrefix(name, "cmd/") || slices.ContainsFunc(free, func(f string) bool { return strings.HasPrefix(name, f) }) ||
			name == "internal/store/storetest" ||
			name == "internal/executor" // PATH, so that programs find what this process finds
		for _, file := range p.GoFiles {
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, file), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					if inCore {
						t.Errorf("%s: a goroutine in %q", fset.Position(n.Pos()), name)
					}
				case *ast.SelectStmt:
					if inCore {
						t.Errorf("%s: a select in %q", fset.Position(n.Pos()), name)
					}
				case *ast.SelectorExpr:
					x, ok := n.X.(*ast.Ident)
					if !ok {
						return true
					}
					if inCore && x.Name == "time" && slices.Contains(clock, n.Sel.Name) {
						t.Errorf("%s: time.%s in %q; the store's clock is passed in", fset.Position(n.Pos()), n.Sel.Name, name)
					}
					if !mayReadEnv && x.Name == "os" && (n.Sel.Name == "Getenv" || n.Sel.Name == "LookupEnv" || n.Sel.Name == "Environ") {
						t.Errorf("%s: os.%s in %q; the environment is read in cmd/drover", fset.Position(n.Pos()), n.Sel.Name, name)
					}
				}
				return true
			})
		}
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
		if d.IsDir() && (rel == "internal/store" || rel == "internal/arch" || rel == "test" || rel == "bench" || rel == ".git" || rel == ".drover") {
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
