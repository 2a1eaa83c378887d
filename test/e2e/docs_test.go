package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
)

// block is a fenced piece of a document.
type block struct {
	place, lang, text string
}

var fence = regexp.MustCompile("^( *)```(.*)$")

// blocks returns the fenced blocks of a document, which is named from the root.
func blocks(t *testing.T, file string) (list []block) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(repo, file))
	if err != nil {
		t.Fatal(err)
	}
	var in *block
	var indent string
	n := 0
	for line := range strings.Lines(string(b)) {
		n++
		m := fence.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		switch {
		case m != nil && in == nil:
			in, indent = &block{place: fmt.Sprintf("%s:%d", file, n), lang: m[2]}, m[1]
		case m != nil:
			list = append(list, *in)
			in = nil
		case in != nil:
			in.text += strings.TrimPrefix(line, indent)
		}
	}
	if in != nil {
		t.Fatalf("%s: the block is not closed", in.place)
	}
	return list
}

// of returns the blocks in a language.
func of(list []block, lang string) (some []block) {
	for _, b := range list {
		if b.lang == lang {
			some = append(some, b)
		}
	}
	return some
}

// documents are those that people read, but docs/cli.md and docs/states.md,
// which are printed from code.
func documents(t *testing.T) (files []string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(repo, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range found {
		if name := filepath.Base(path); name != "cli.md" && name != "states.md" {
			files = append(files, "docs/"+name)
		}
	}
	return append(files, "README.md", "README.zh-CN.md", "CONTRIBUTING.md")
}

// module makes the folder a Go module that uses this checkout, with nothing
// to download.
func (f *folder) module() {
	f.t.Helper()
	mod, err := os.ReadFile(filepath.Join(repo, "go.mod"))
	if err != nil {
		f.t.Fatal(err)
	}
	sum, err := os.ReadFile(filepath.Join(repo, "go.sum"))
	if err != nil {
		f.t.Fatal(err)
	}
	text := strings.Replace(string(mod), "module github.com/drover-dev/drover\n", "module docs\n", 1)
	f.write("go.mod", text+"\nrequire github.com/drover-dev/drover v0.0.0\n\nreplace github.com/drover-dev/drover => "+repo+"\n")
	f.write("go.sum", string(sum))
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOROOT"} {
		out, err := exec.CommandContext(f.t.Context(), "go", "env", name).Output()
		if err != nil {
			f.t.Fatal(err)
		}
		f.env = append(f.env, name+"="+strings.TrimSpace(string(out)))
	}
	f.env = append(f.env, "GOPROXY=off", "GOFLAGS=-mod=mod", "GOWORK=off", "CGO_ENABLED=0")
}

// sh runs lines of a document, as somebody would who pastes them.
func (f *folder) sh(place, lines string) string {
	f.t.Helper()
	out, errs, code := f.run("sh", "-ec", lines)
	if code != 0 {
		f.t.Fatalf("%s: status %d\n%s\n%s%s", place, code, lines, out, errs)
	}
	return out
}

// What the README tells a newcomer to paste is pasted, in its order.
func TestReadmeIsFollowed(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"README.md", "README.zh-CN.md"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			testReadme(t, file)
		})
	}
}

var (
	heredoc    = regexp.MustCompile(`(?ms)<<'([A-Z]+)'$.*?^([A-Z]+)$`)
	background = regexp.MustCompile(`(?m)^.*(bin/drover dev|go run \./[a-z/-]+)$`) // runs until it is stopped
)

func testReadme(t *testing.T, file string) {
	f := newFolder(t)
	f.module()
	if err := os.Symlink(bin, f.file("bin")); err != nil {
		t.Fatal(err)
	}
	addr := freeAddress(t)
	var started *process // what the reader has in another terminal, besides the server
	var c *client.Client
	for _, b := range of(blocks(t, file), "sh") {
		lines := strings.ReplaceAll(b.text, "127.0.0.1:8420", addr)
		if strings.Contains(lines, "make test") {
			continue // the first screen: the demo and this very test
		}
		lines = regexp.MustCompile(`(?m)^make build$`).ReplaceAllString(lines, "") // it is built
		run := background.FindString(heredoc.ReplaceAllString(lines, ""))
		if run != "" {
			lines = strings.Replace(lines, run, "", 1)
		}
		if strings.Contains(lines, "sh mine/worker.sh") {
			started.interrupt() // "stop the Go worker first"
			started.wait()
		}
		f.sh(b.place, lines)
		switch {
		case run == "":
		case run == "bin/drover dev":
			f.dev(addr)
			c = f.connect()
		default:
			started = f.start(nil, "sh", "-c", "exec "+strings.Replace(run, "DROVER_TOKEN=", "env DROVER_TOKEN=", 1))
			eventually(t, time.Minute, b.place+": the worker does not come", func() bool {
				list, err := c.Workers(t.Context())
				return err == nil && slices.ContainsFunc(list, func(s drover.Session) bool { return slices.Contains(s.Queues, "words") })
			})
		}
	}
	if c == nil || started == nil {
		t.Fatal("it starts no server or no worker")
	}
	page, err := c.Jobs(t.Context(), client.JobsFilter{})
	if err != nil {
		t.Fatal(err)
	}
	var results []string
	for _, j := range page.Items {
		whole, err := c.Job(t.Context(), j.ID)
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, whole.Status.String()+" "+string(whole.Result))
	}
	if want := []string{`SUCCEEDED "HELLO FROM CURL"`, `SUCCEEDED "HELLO"`, `SUCCEEDED {"cards":["Hello, Ada!","Hello, Grace!"]}`}; !slices.Equal(results, want) {
		t.Errorf("the jobs ended as %q, want %q", results, want)
	}
	f.untouched(file)
}

// untouched reports what a reader who works in a clone has left where git or
// "go vet ./..." would come upon it.
func (f *folder) untouched(file string) {
	f.t.Helper()
	ignore, err := os.ReadFile(filepath.Join(repo, ".gitignore"))
	if err != nil {
		f.t.Fatal(err)
	}
	f.write(".gitignore", string(ignore))
	f.sh(file, "git init -q . && rm bin && git add .gitignore go.mod go.sum")
	if left := f.sh(file, "git status --porcelain | grep -v '^A' || true"); left != "" {
		f.t.Errorf("%s leaves files that git does not ignore:\n%s", file, left)
	}
	if left := f.sh(file, "go list ./... 2>/dev/null"); left != "" {
		f.t.Errorf("%s leaves packages that ./... finds:\n%s", file, left)
	}
}

// Every Go block compiles: a program as it stands, a piece inside a function
// that has what its text speaks of.
func TestGoInDocumentsCompiles(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.module()
	n := 0
	for _, file := range documents(t) {
		for _, b := range of(blocks(t, file), "go") {
			n++
			text := b.text
			if !strings.HasPrefix(text, "package ") {
				text = program(t, b)
			}
			dir := fmt.Sprintf("block%d", n)
			if err := os.Mkdir(f.file(dir), 0o700); err != nil {
				t.Fatal(err)
			}
			f.write(filepath.Join(dir, "main.go"), "//line "+b.place+"\n"+text)
		}
	}
	if n < 4 {
		t.Errorf("%d blocks found; are they marked as go?", n)
	}
	if out, errs, code := f.run("go", "vet", "./..."); code != 0 {
		t.Errorf("go vet:\n%s%s", out, errs)
	}
}

// packages that pieces of documents use.
var packages = []string{
	"context", "encoding/json", "time", "golang.org/x/sync/errgroup", "github.com/jackc/pgx/v5/pgxpool",
	"github.com/drover-dev/drover", "github.com/drover-dev/drover/client", "github.com/drover-dev/drover/embedded",
	"github.com/drover-dev/drover/flow", "github.com/drover-dev/drover/worker",
}

// program makes a piece of Go a program: with imports, with the names that the
// text around it introduces, and with every variable used.
func program(t *testing.T, b block) string {
	t.Helper()
	const known = `
var (
	ctx   context.Context
	pool  *pgxpool.Pool
	d     *embedded.Drover
	id    string
	input json.RawMessage
)
`
	body := "func piece() error {\n" + b.text + "\nUSED\nreturn nil\n}\n\nfunc main() { _ = piece() }\n"
	parsed, err := parser.ParseFile(token.NewFileSet(), "", "package main\n"+strings.Replace(body, "USED", "", 1), 0)
	if err != nil {
		t.Fatalf("%s: %v", b.place, err)
	}
	var used strings.Builder
	for _, statement := range parsed.Decls[0].(*ast.FuncDecl).Body.List {
		if a, ok := statement.(*ast.AssignStmt); ok && a.Tok == token.DEFINE {
			for _, name := range a.Lhs {
				if name := name.(*ast.Ident).Name; name != "_" {
					fmt.Fprintf(&used, "_ = %s\n", name)
				}
			}
		}
	}
	if strings.HasSuffix(strings.TrimSpace(b.text), "return tx.Commit(ctx)") { // the piece ends its function
		body = strings.Replace(body, "\nUSED\nreturn nil\n", "\n", 1)
	}
	body = strings.Replace(body, "USED", used.String(), 1)
	if parsed, err = parser.ParseFile(token.NewFileSet(), "", "package main\n"+known+body, 0); err != nil {
		t.Fatalf("%s: %v", b.place, err)
	}
	of := map[string]bool{} // names before a dot
	ast.Inspect(parsed, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if name, ok := s.X.(*ast.Ident); ok {
				of[name.Name] = true
			}
		}
		return true
	})
	var imports strings.Builder
	for _, path := range packages {
		if of[path[strings.LastIndex(path, "/")+1:]] {
			fmt.Fprintf(&imports, "import %q\n", path)
		}
	}
	return "package main\n" + imports.String() + known + body
}

// Every YAML block outside docs/pipelines.md, which internal/dag holds to its
// word, is a pipeline, or the tasks of one.
func TestYAMLInDocumentsIsAPipeline(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	outside := regexp.MustCompile(`tasks\.([a-z_-]+)\.output`)
	n := 0
	for _, file := range documents(t) {
		for _, b := range of(blocks(t, file), "yaml") {
			if file == "docs/pipelines.md" {
				continue
			}
			n++
			text := b.text
			if strings.HasPrefix(text, "tasks:") {
				text = "pipeline: piece\n" + text
				for _, m := range outside.FindAllStringSubmatch(b.text, -1) { // tasks that the piece leaves out
					if !strings.Contains(text, "\n  "+m[1]+":") {
						text += "  " + m[1] + ": {run: exec}\n"
					}
				}
			}
			f.write("pipeline.yaml", text)
			if out, errs, code := f.run("drover", "pipeline", "lint", "pipeline.yaml"); code != 0 {
				t.Errorf("%s: %s%s", b.place, out, errs)
			}
		}
	}
	if n < 2 {
		t.Errorf("%d blocks found; are they marked as yaml?", n)
	}
}

// docs/pipelines.md begins with three commands and the file they are about.
func TestFirstCommandsOfPipelines(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	list := blocks(t, "docs/pipelines.md")
	f.write("pipeline.yaml", of(list, "yaml")[0].text)
	f.dev("127.0.0.1:0", "--no-exec", "--no-http")
	first := of(list, "sh")[0]
	if out := f.sh(first.place, first.text); !strings.Contains(out, "job_") {
		t.Errorf("%s prints no job:\n%s", first.place, out)
	}
}

// docs/api.md begins with a request; docs/workers.md has a worker in shell that
// is a program of its own.
func TestShellWorkerRunsTheRequestOfTheAPI(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"curl", "jq"} {
		if _, err := exec.LookPath(name); err != nil {
			if name == "jq" { // neither make nor the README asks for it
				t.Logf("the worker in shell is not tried: %v", err)
				return
			}
			t.Fatal(err)
		}
	}
	f := newFolder(t)
	addr := freeAddress(t)
	f.dev(addr, "--no-exec", "--no-http")
	c := f.connect()

	request := of(blocks(t, "docs/api.md"), "sh")[0]
	lines, rest, ok := strings.Cut(strings.ReplaceAll(request.text, "127.0.0.1:8420", addr), "\n")
	if !ok || !strings.HasPrefix(lines, "export DROVER_TOKEN=drover_…") {
		t.Fatalf("%s does not begin with the token", request.place)
	}
	var made struct {
		Job drover.JobID `json:"job_id"`
	}
	if out := f.sh(request.place, "DROVER_TOKEN=$(cat .drover/token)\n"+rest); json.Unmarshal([]byte(out), &made) != nil || made.Job.IsZero() {
		t.Fatalf("%s: %s", request.place, out)
	}
	again := f.sh(request.place, "DROVER_TOKEN=$(cat .drover/token)\n"+rest)
	if !strings.Contains(again, made.Job.String()) {
		t.Errorf("%s: the second time it makes another job than %s: %s", request.place, made.Job, again)
	}

	script := of(blocks(t, "docs/workers.md"), "sh")[0]
	f.write("worker.sh", strings.ReplaceAll(script.text, "127.0.0.1:8420", addr))
	w := f.start(nil, "sh", "worker.sh")
	for _, word := range []string{`"a"`, `"\"b\", ${c} \\ 世界"`} {
		id := submit(t, c, drover.NewJob{Kind: "shout", Queue: "words", Input: json.RawMessage(word)})
		j := wait(t, c, id, 10*time.Second)
		var in, out string
		if err := errors.Join(json.Unmarshal([]byte(word), &in), json.Unmarshal(j.Result, &out)); err != nil || out != asciiUpper(in) {
			t.Errorf("%s: %s became %s, %v", script.place, word, j.Result, err)
		}
	}
	w.interrupt()
	if code := w.wait(); code != 0 {
		t.Errorf("%s: ended with %d, want 0", script.place, code)
	}
	if list, err := c.Workers(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%s: left its session behind: %v, %v", script.place, list, err)
	}
}

func asciiUpper(s string) string {
	return strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' {
			return r - 'a' + 'A'
		}
		return r
	}, s)
}

// Of every other block at least the form is right: shell parses and gives the
// drover command words and flags that it knows, JSON is JSON. A language that
// nobody decided on is refused here, so that it is decided.
func TestBlocksOfDocumentsHaveTheirForm(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	// A drover that only looks at its words.
	shims := t.TempDir()
	// The help of a noun alone lists its commands: then the verb is none of them.
	shim := fmt.Sprintf(`#!/bin/sh
help=$(%q "$@" --help) && case $help in *"
Commands:"*) false ;; esac || echo "drover $*" >>%q
`, filepath.Join(bin, "drover"), f.file("refused"))
	if err := os.WriteFile(filepath.Join(shims, "drover"), []byte(shim), 0o700); err != nil {
		t.Fatal(err)
	}
	f.env[0] = "PATH=" + shims + string(os.PathListSeparator) + f.env[0][len("PATH="):]
	command := regexp.MustCompile(`^(?:\S*/)?drover ([^|>#&]*)`)
	n := 0
	for _, file := range documents(t) {
		for _, b := range blocks(t, file) {
			switch b.lang {
			case "sh":
				if out, errs, code := f.run("sh", "-nc", b.text); code != 0 {
					t.Errorf("%s: %s%s", b.place, out, errs)
				}
				for line := range strings.Lines(heredoc.ReplaceAllString(b.text, "")) {
					if m := command.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
						n++
						f.sh(b.place, "drover "+m[1])
						if refused := f.read("refused"); refused != "" {
							t.Errorf("%s: not a command: %s", b.place, refused)
							f.write("refused", "")
						}
					}
				}
			case "json":
				if d := json.NewDecoder(strings.NewReader(b.text)); d.Decode(&json.RawMessage{}) != nil || d.More() {
					t.Errorf("%s: not JSON", b.place)
				}
			case "go", "yaml": // above
			case "console", "text", "ini", "":
			default:
				t.Errorf("%s: nothing is known of the language %q", b.place, b.lang)
			}
		}
	}
	if n < 15 {
		t.Errorf("%d drover commands found", n)
	}
}
