package main

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover/internal/dag"
)

var update = flag.Bool("update", false, "write docs/cli.md and docs/pipeline.schema.json anew from the code")

func TestDocsOfTheCommandLine(t *testing.T) {
	const path = "../../docs/cli.md"
	got := cliDocs((&app{env: func(string) string { return "" }}).root())
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is not what the commands say; run: make docs", path)
	}
}

func TestDocsHaveTheSchemaOfDefinitions(t *testing.T) {
	const path = "../../docs/pipeline.schema.json"
	if *update {
		if err := os.WriteFile(path, dag.EditorSchema(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(dag.EditorSchema()) != string(want) {
		t.Errorf("%s is not what the reader knows; run: make docs", path)
	}
}

func TestEveryCommandExplainsItself(t *testing.T) {
	t.Parallel()
	root := (&app{env: func(string) string { return "" }}).root()
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		for _, c := range c.Commands() {
			if c.Name() == "help" {
				continue
			}
			if c.Short == "" || strings.HasSuffix(c.Short, ".") {
				t.Errorf("%s: Short = %q, want a phrase without a full stop", c.CommandPath(), c.Short)
			}
			if !c.HasSubCommands() && c.Example == "" {
				t.Errorf("%s has no example", c.CommandPath())
			}
			for line := range strings.SplitSeq(c.Example, "\n") {
				if line != "" && !strings.HasPrefix(line, "  ") {
					t.Errorf("%s: example %q is not indented by two", c.CommandPath(), line)
				}
			}
			walk(c)
		}
	}
	walk(root)
}

// What the help shows must be a command line that the commands take.
func TestExamplesParse(t *testing.T) {
	t.Parallel()
	root := (&app{env: func(string) string { return "" }}).root()
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		for _, c := range c.Commands() {
			for line := range strings.SplitSeq(c.Example, "\n") {
				i := strings.Index(line, "drover "+strings.TrimPrefix(c.CommandPath(), "drover "))
				if i < 0 || c.HasSubCommands() || strings.Contains(line, "source <(") {
					continue
				}
				words, err := split(line[i:])
				if err != nil {
					t.Errorf("%s: %v", line, err)
					continue
				}
				cmd, rest, err := (&app{env: func(string) string { return "" }}).root().Find(words[1:])
				if err == nil {
					err = cmd.ParseFlags(rest)
				}
				if err == nil {
					err = cmd.ValidateArgs(cmd.Flags().Args())
				}
				if err != nil {
					t.Errorf("example %q: %v", strings.TrimSpace(line), err)
				}
			}
			walk(c)
		}
	}
	walk(root)
}

// split cuts a line as a shell does, up to a pipe, a redirection or a comment.
func split(line string) (words []string, err error) {
	var word strings.Builder
	in, quoted := false, rune(0)
	flush := func() {
		if in {
			words = append(words, word.String())
		}
		word.Reset()
		in = false
	}
	for _, r := range line {
		switch {
		case quoted != 0 && r == quoted:
			quoted = 0
		case quoted != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quoted, in = r, true
		case r == ' ':
			flush()
		case !in && strings.ContainsRune("|>#&", r):
			return words, nil
		default:
			word.WriteRune(r)
			in = true
		}
	}
	flush()
	if quoted != 0 {
		return nil, fmt.Errorf("unbalanced %c", quoted)
	}
	return words, nil
}

func TestCurlPrintsTheRequestAndSendsNothing(t *testing.T) {
	s := newShell(t)
	s.env["DROVER_URL"] = "http://127.0.0.1:9" // nobody answers there
	s.env["DROVER_TOKEN"] = "drover_secret"
	write(t, "p.yaml", "pipeline: p\n")
	const job, task = "job_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C", "task_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C"
	const auth = `-H "Authorization: Bearer $DROVER_TOKEN"`
	for words, want := range map[string]string{
		"job list --status FAILED":                      `curl -sS ` + auth + ` 'http://127.0.0.1:9/v1/jobs?limit=50&status=FAILED'`,
		"job get " + job:                                `curl -sS ` + auth + ` http://127.0.0.1:9/v1/jobs/` + job,
		"job watch " + job:                              `curl -sS -N ` + auth + ` -H 'Accept: text/event-stream' http://127.0.0.1:9/v1/jobs/` + job + `/events`,
		"job wait " + job:                               `curl -sS ` + auth + ` -H 'Prefer: wait=20' http://127.0.0.1:9/v1/jobs/` + job,
		"job submit --kind x":                           `curl -sS ` + auth + ` -H 'Content-Type: application/json' --data-binary '{"kind":"x"}' http://127.0.0.1:9/v1/jobs`,
		"job submit --kind x --wait":                    `curl -sS ` + auth + ` -H 'Content-Type: application/json' --data-binary '{"kind":"x"}' http://127.0.0.1:9/v1/jobs`,
		"pipeline apply p.yaml":                         `curl -sS ` + auth + ` -H 'Content-Type: application/yaml' --data-binary @p.yaml 'http://127.0.0.1:9/v1/pipelines?file=p.yaml'`,
		"task attempts " + task:                         `curl -sS ` + auth + ` http://127.0.0.1:9/v1/tasks/` + task + `/attempts`,
		"queue list":                                    `curl -sS ` + auth + ` http://127.0.0.1:9/v1/queues`,
		"dlq list":                                      `curl -sS ` + auth + ` 'http://127.0.0.1:9/v1/dead-letters?limit=50'`,
		"token revoke tok_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C":   `curl -sS -X DELETE ` + auth + ` http://127.0.0.1:9/v1/tokens/tok_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C`,
		"artifact trace art_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C": `curl -sS ` + auth + ` http://127.0.0.1:9/v1/artifacts/art_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C/trace`,
		"version --server":                              `curl -sS ` + auth + ` http://127.0.0.1:9/version`,
	} {
		out, errs, code := s.run(append(strings.Fields(words), "--curl")...)
		if out != want+"\n" || errs != "" || code != 0 {
			t.Errorf("drover %s --curl: code %d, stderr %q\n%s\nwant\n%s", words, code, errs, out, want)
		}
	}
}

func TestCurlQuotesForAShell(t *testing.T) {
	t.Parallel()
	r, err := http.NewRequest(http.MethodPost, "http://h/x?a=b&c=d", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := curlCommand(r, "$T", `{"a":"it's $HOME"}`), `curl -sS --data-binary '{"a":"it'\''s $HOME"}' 'http://h/x?a=b&c=d'`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestListFollowsPages(t *testing.T) {
	s := newShell(t)
	page := func(ids []string, next string) string {
		var items []string
		for _, id := range ids {
			items = append(items, fmt.Sprintf(`{"job_id":"job_0000000000000000000000000%s","status":"RUNNING","kind":"x","class":"normal","created_at":"2026-01-31T11:59:00Z"}`, id))
		}
		return fmt.Sprintf(`{"items":[%s],"next_cursor":%q}`, strings.Join(items, ","), next)
	}
	srv := fakeServer(t, map[string]string{
		"GET /v1/jobs?limit=1000":           page([]string{"1", "2"}, "c1"),
		"GET /v1/jobs?cursor=c1&limit=1000": page([]string{"3"}, ""),
		"GET /v1/jobs?limit=3":              page([]string{"1", "2"}, "c1"),
		"GET /v1/jobs?cursor=c1&limit=1":    page([]string{"3"}, "c2"),
		"GET /v1/jobs?limit=50":             page(nil, ""),
	})
	out, errs, code := s.run("job", "list", "--url", srv.URL, "--limit", "0", "-o", "name")
	if want := "job_00000000000000000000000001\njob_00000000000000000000000002\njob_00000000000000000000000003\n"; out != want || errs != "" || code != 0 {
		t.Errorf("all: code %d, %q, %q", code, out, errs)
	}
	out, errs, _ = s.run("job", "list", "--url", srv.URL, "--limit", "3", "-o", "name")
	if strings.Count(out, "\n") != 3 || !strings.Contains(errs, "--limit 0 shows all") {
		t.Errorf("first three: %q, %q", out, errs)
	}
	if out, _, code = s.run("job", "list", "--url", srv.URL, "-o", "json"); out != "[]\n" || code != 0 {
		t.Errorf("an empty list: code %d, %q, want [] and 0", code, out)
	}
	if out, _, _ = s.run("job", "list", "--url", srv.URL); out != "JOB   STATUS   WHAT   DONE   AGE   TOOK\n" {
		t.Errorf("an empty table: %q", out)
	}
}

func TestLintNamesEveryPlace(t *testing.T) {
	s := newShell(t)
	write(t, "good.yaml", "pipeline: good\ntasks:\n  a: {run: exec}\n")
	write(t, "bad.yaml", "pipeline: bad\ntasks:\n  a: {run: exec, needs: [b]}\n  c: {rn: exec}\n")
	if _, errs, code := s.run("pipeline", "lint", "good.yaml"); code != 0 || errs != "good.yaml: ok\n" {
		t.Errorf("good: code %d, %q", code, errs)
	}
	_, errs, code := s.run("pipeline", "lint", "good.yaml", "bad.yaml")
	if code != 1 || strings.Count(errs, "bad.yaml:") < 2 || !strings.Contains(errs, "bad.yaml:4:") || !strings.Contains(errs, "1 definition of 2 not valid") {
		t.Errorf("bad: code %d\n%s", code, errs)
	}
}

func TestCompletionOffersIds(t *testing.T) {
	s := newShell(t)
	srv := fakeServer(t, map[string]string{
		"GET /v1/jobs?limit=50":        `{"items":[{"job_id":"job_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C","status":"RUNNING","kind":"mail","class":"normal","created_at":"2026-01-31T11:59:00Z"}]}`,
		"GET /v1/pipelines?limit=1000": `{"items":[{"name":"ingest","version":3,"hash":"","created_at":"2026-01-31T11:59:00Z"}]}`,
		"GET /v1/queues":               `{"items":[{"name":"gpu","ready":0,"queued":0,"running":0,"delayed":0,"oldest_age":"0s","workers":0,"slots":0}]}`,
	})
	s.env["DROVER_URL"] = srv.URL
	for words, want := range map[string]string{
		"job get":               "job_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C\tRUNNING, mail, 1m00s old",
		"job submit --pipeline": "ingest\tnewest version: ingest@3",
		"queue get":             "gpu",
		"job list -o":           "jsonl",
		"token create --scope":  "workers:run",
	} {
		out, _, code := s.run(append(append([]string{cobra.ShellCompRequestCmd}, strings.Fields(words)...), "")...)
		if code != 0 || !strings.Contains("\n"+out, "\n"+want+"\n") {
			t.Errorf("completion of %q: code %d\n%s\nwant %q", words, code, out, want)
		}
	}
	s.env["DROVER_URL"] = "http://127.0.0.1:9"
	if out, _, code := s.run(cobra.ShellCompRequestCmd, "job", "get", ""); code != 0 || !strings.HasPrefix(out, ":") {
		t.Errorf("without a server: code %d, %q, want nothing offered", code, out)
	}
}

func TestVersion(t *testing.T) {
	s := newShell(t)
	out, _, code := s.run("version", "-o", "json")
	if code != 0 || !strings.Contains(out, `"version": "dev"`) || strings.Contains(out, "server") {
		t.Errorf("code %d\n%s", code, out)
	}
}

func TestHealthcheckFindsItsOwnServer(t *testing.T) {
	s := newShell(t)
	srv := fakeServer(t, map[string]string{"GET /readyz": `"ok"`})
	s.env["DROVER_HTTP_ADDR"] = strings.Replace(srv.Listener.Addr().String(), "127.0.0.1", "0.0.0.0", 1)
	if _, errs, code := s.run("healthcheck"); code != 0 {
		t.Errorf("code %d, %s", code, errs)
	}
	srv.Close()
	if _, errs, code := s.run("healthcheck"); code != 1 || !strings.Contains(errs, "is not ready") {
		t.Errorf("of a server that is gone: code %d, %q", code, errs)
	}
}
