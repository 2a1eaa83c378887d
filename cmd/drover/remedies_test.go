package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/explain"
)

// TestEveryRemedyIsACommand that this program takes as it is printed, whatever the names
// in it are; and every remedy that the code knows is among them.
func TestEveryRemedyIsACommand(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var list []drover.Blocker
	for _, name := range []string{"gpu", "night shift", "o'clock", "-v", "$(x)"} {
		p := explain.Place{Position: 1, Of: 2}
		list = append(list, explain.Dependency(nil, &explain.Parent{Name: name, Task: drover.TaskID{1}}), explain.ChildJob(drover.JobID{1}), explain.JobPaused(drover.JobID{1}, "ann", "", now), explain.QueuePaused(name), explain.Reserved(name, "urgent", 2, 1, p),
			explain.Circuit("api", drover.CircuitOpen, "no answer", drover.TaskID{}, now, now))
		for _, l := range []drover.Limit{
			{Name: "x", Scope: drover.ScopeNamed, Max: 5, Used: 5}, {Name: "x", Scope: drover.ScopeNamed, Shared: true, Rate: 1e6, Burst: 5}, {Name: "x", Scope: drover.ScopeNamed, Rate: 1e-6, Burst: 1},
			{Name: "x", Scope: drover.ScopeGlobal, Shared: true, Max: 5}, {Name: "x", Scope: drover.ScopeTenant, Max: 5}, {Name: "x", Scope: drover.ScopeQueue, Queue: name, Shared: true, Max: 5},
			{Name: "x", Scope: drover.ScopeKind, Kind: name, Queue: name, Max: 5}, {Name: "x", Scope: drover.ScopeKey, Max: 5},
		} {
			list = append(list, explain.Limit(drover.BlockerSemaphore, l, "", 3, now, p))
		}
	}
	tried := map[string]bool{}
	for _, b := range list {
		for _, r := range b.Remedies {
			if r.Command == "" {
				continue
			}
			tried[r.Action] = true
			words, err := split(strings.ReplaceAll(r.Command, `'\''`, `'"'"'`)) // as split reads it
			if err != nil || words[0] != "drover" {
				t.Errorf("%s: %v", r.Command, err)
				continue
			}
			cmd, rest, err := (&app{env: func(string) string { return "" }}).root().Find(words[1:])
			if err == nil {
				err = cmd.ParseFlags(rest)
			}
			if err == nil {
				err = cmd.ValidateRequiredFlags()
			}
			if err == nil {
				err = cmd.ValidateArgs(cmd.Flags().Args())
			}
			if err != nil || !cmd.Runnable() {
				t.Errorf("%s: %v", r.Command, err)
			}
		}
	}
	found := 0
	files, err := filepath.Glob("../../internal/*/*.go")
	if err != nil || len(files) < 100 {
		t.Fatal(len(files), err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			for _, lit := range remedies(n) {
				action, command := actionOf(lit)
				if action == "" {
					t.Errorf("%s: a remedy whose action is not written in its literal", path)
				}
				if found++; command && !tried[action] {
					t.Errorf("%s: the command of %s is not tried", path, action)
				}
			}
			return true
		})
	}
	if found < 10 {
		t.Errorf("%d remedies are found", found)
	}
}

// isRemedy tells if a type is drover.Remedy.
func isRemedy(t ast.Expr) bool {
	s, ok := t.(*ast.SelectorExpr)
	return ok && s.Sel.Name == "Remedy"
}

// remedies are the literals of remedies that a node begins: itself, or the elements of
// a list of them, which need not name their type.
func remedies(n ast.Node) (list []*ast.CompositeLit) {
	lit, ok := n.(*ast.CompositeLit)
	if !ok {
		return nil
	}
	if isRemedy(lit.Type) {
		return []*ast.CompositeLit{lit}
	}
	if of, ok := lit.Type.(*ast.ArrayType); ok && isRemedy(of.Elt) {
		for _, e := range lit.Elts {
			if one, ok := e.(*ast.CompositeLit); ok && one.Type == nil {
				list = append(list, one)
			}
		}
	}
	return list
}

// actionOf is the action that a remedy's literal has as a literal, if it does, and if it
// has a command.
func actionOf(lit *ast.CompositeLit) (action string, command bool) {
	for _, e := range lit.Elts {
		kv, ok := e.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		key, ok := kv.Key.(*ast.Ident)
		if v, is := kv.Value.(*ast.BasicLit); ok && is && key.Name == "Action" {
			action = strings.Trim(v.Value, `"`)
		}
		command = command || ok && key.Name == "Command"
	}
	return action, command
}
