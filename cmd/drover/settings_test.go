package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestWhichServer(t *testing.T) {
	const contexts = `
current: lab
contexts:
  lab: {url: http://lab, token: drover_lab}
  prod: {url: https://prod, token: drover_prod}
  bare: {url: http://bare}
`
	for _, c := range []struct {
		name                string
		app                 app
		env                 map[string]string
		dev, contexts       bool
		url, token, urlFrom string
		err                 string
	}{
		{name: "nothing", err: "no server is known"},
		{name: "current context", contexts: true, url: "http://lab", token: "drover_lab", urlFrom: "context lab"},
		{name: "environment's token before the current context's", contexts: true, env: map[string]string{"DROVER_TOKEN": "drover_env"}, url: "http://lab", token: "drover_env"},
		{name: "dev before context", dev: true, contexts: true, url: "http://dev", token: "drover_dev", urlFrom: ".drover/dev.json"},
		{name: "environment's token does not go to a dev.json's server", dev: true, env: map[string]string{"DROVER_TOKEN": "drover_env"}, url: "http://dev", token: "drover_dev"},
		{name: "context of the environment before dev", dev: true, contexts: true, env: map[string]string{"DROVER_CONTEXT": "prod"}, url: "https://prod", token: "drover_prod"},
		{name: "environment before dev", dev: true, contexts: true, env: map[string]string{"DROVER_URL": "http://env", "DROVER_TOKEN": "drover_env"}, url: "http://env", token: "drover_env", urlFrom: "DROVER_URL"},
		{name: "environment without a token", dev: true, contexts: true, env: map[string]string{"DROVER_URL": "http://env"}, url: "http://env"},
		{name: "--context before environment", app: app{context: "prod"}, dev: true, contexts: true, env: map[string]string{"DROVER_URL": "http://env", "DROVER_TOKEN": "drover_env"}, url: "https://prod", token: "drover_prod"},
		{name: "--context without a token", app: app{context: "bare"}, contexts: true, env: map[string]string{"DROVER_TOKEN": "drover_env"}, url: "http://bare", token: "drover_env"},
		{name: "--context unknown", app: app{context: "x"}, contexts: true, err: `there is no context "x"`},
		{name: "--state", app: app{state: ".drover"}, dev: true, contexts: true, env: map[string]string{"DROVER_URL": "http://env", "DROVER_TOKEN": "drover_env"}, url: "http://dev", token: "drover_dev"},
		{name: "--state without a dev", app: app{state: "elsewhere"}, dev: true, err: `no "drover dev" has run there`},
		{name: "--url before all", app: app{url: "http://flag"}, dev: true, contexts: true, env: map[string]string{"DROVER_URL": "http://env"}, url: "http://flag", urlFrom: "--url"},
		{name: "--url with the environment's token", app: app{url: "http://flag"}, env: map[string]string{"DROVER_TOKEN": "drover_env"}, url: "http://flag", token: "drover_env"},
		{name: "--url of a dev", app: app{url: "http://dev/"}, dev: true, url: "http://dev/", token: "drover_dev"},
		{name: "--url of a context", app: app{url: "https://prod"}, contexts: true, url: "https://prod", token: "drover_prod"},
		{name: "--token before all", app: app{token: "drover_flag"}, dev: true, env: map[string]string{"DROVER_TOKEN": "drover_env"}, url: "http://dev", token: "drover_flag"},
		{name: "token from a file", env: map[string]string{"DROVER_URL": "http://env", "DROVER_TOKEN_FILE": "secret"}, url: "http://env", token: "drover_file"},
		{name: "token twice", env: map[string]string{"DROVER_URL": "http://env", "DROVER_TOKEN": "x", "DROVER_TOKEN_FILE": "secret"}, err: "both set"},
		{name: "token file missing", env: map[string]string{"DROVER_URL": "http://env", "DROVER_TOKEN_FILE": "none"}, err: "DROVER_TOKEN_FILE: open none"},
		{name: "no address", app: app{url: "ftp://x"}, err: "is not an address"},
		{name: "several servers", env: map[string]string{"DROVER_URL": "http://a:8420, https://b:8420"}, url: "http://a:8420, https://b:8420", urlFrom: "DROVER_URL"},
		{name: "several servers, one of them none", app: app{url: "http://a:8420,b:8420"}, err: `--url: "b:8420" is not an address`},
		{name: "a comma too many", app: app{url: "http://a:8420,"}, err: `--url: "" is not an address`},
	} {
		t.Run(c.name, func(t *testing.T) {
			home := t.TempDir()
			t.Chdir(t.TempDir())
			write(t, "secret", "drover_file\n")
			if c.dev {
				write(t, ".drover/dev.json", `{"url":"http://dev","token":"drover_dev"}`)
			}
			if c.contexts {
				write(t, filepath.Join(home, "drover/config.yaml"), contexts)
			}
			a := c.app
			a.err = io.Discard
			a.env = func(name string) string {
				if name == "XDG_CONFIG_HOME" {
					return home
				}
				return c.env[name]
			}
			got, err := a.target()
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("error = %v, want one with %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.url != c.url || got.token != c.token || c.urlFrom != "" && !strings.Contains(got.urlFrom, c.urlFrom) {
				t.Errorf("got %s with %q from %s, want %s with %q from %s", got.url, got.token, got.urlFrom, c.url, c.token, c.urlFrom)
			}
		})
	}
}

func TestServerSettingsPrecedence(t *testing.T) {
	for _, c := range []struct {
		name  string
		words []string
		env   map[string]string
		file  string
		want  string // http_addr as config print tells it, or an error
	}{
		{name: "default", want: "127.0.0.1:8420 default"},
		{name: "file", file: "http_addr: 127.0.0.1:1\n", want: "127.0.0.1:1 my.yaml"},
		{name: "environment before file", file: "http_addr: 127.0.0.1:1\n", env: map[string]string{"DROVER_HTTP_ADDR": "127.0.0.1:2"}, want: "127.0.0.1:2 DROVER_HTTP_ADDR"},
		{name: "file of the environment", env: map[string]string{"DROVER_HTTP_ADDR_FILE": "addr"}, want: "127.0.0.1:3 DROVER_HTTP_ADDR"},
		{name: "unknown key", file: "# settings\nhttp_adr: x\n", want: `my.yaml:2: there is no setting "http_adr"`},
		{name: "no mapping", file: "- x\n", want: "must be keys and values"},
		{name: "no single value", file: "http_addr: {a: b}\n", want: "must be a single value"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newShell(t)
			write(t, "addr", "127.0.0.1:3\n")
			for k, v := range c.env {
				s.env[k] = v
			}
			words := append([]string{"config", "print"}, c.words...)
			if c.file != "" {
				write(t, "my.yaml", c.file)
				words = append(words, "--config", "my.yaml")
			}
			out, errs, _ := s.run(words...)
			found := errs
			for line := range strings.SplitSeq(out, "\n") {
				if f := strings.Fields(line); len(f) > 2 && f[0] == "http_addr" {
					found = strings.Join(f[1:], " ")
				}
			}
			if !strings.Contains(found, c.want) {
				t.Errorf("got %q, want %q", found, c.want)
			}
		})
	}
}

// A flag beats the environment, and the environment beats the file, in what a
// command does, too.
func TestFlagsBeatTheEnvironment(t *testing.T) {
	s := newShell(t)
	s.env["DROVER_DATABASE_URL"] = "sqlite:env.db"
	write(t, "my.yaml", "database_url: sqlite:file.db\nauto_migrate: true\n")
	for _, c := range []struct{ made, words string }{
		{"flag.db", "migrate up --config my.yaml --database-url sqlite:flag.db"},
		{"env.db", "migrate up --config my.yaml"},
	} {
		if _, errs, code := s.run(strings.Fields(c.words)...); code != 0 {
			t.Fatalf("%s: %s", c.words, errs)
		}
		if _, err := os.Stat(c.made); err != nil {
			t.Errorf("%s: did not make %s", c.words, c.made)
		}
	}
	delete(s.env, "DROVER_DATABASE_URL")
	if _, errs, code := s.run("migrate", "up", "--config", "my.yaml"); code != 0 {
		t.Fatal(errs)
	}
	if _, err := os.Stat("file.db"); err != nil {
		t.Error("the file's database was not made")
	}
	s.env["DROVER_AUTO_MIGRATE"] = "perhaps"
	if _, errs, code := s.run("server", "--database-url", "sqlite:x.db"); code != exitUsage || !strings.Contains(errs, "DROVER_AUTO_MIGRATE") {
		t.Errorf("a bad variable: code %d, %q; want 2 and its name", code, errs)
	}
}

func TestContextsAreKeptPrivate(t *testing.T) {
	s := newShell(t)
	s.stdin = "drover_secret\n"
	for _, words := range [][]string{
		{"context", "set", "prod", "--url", "https://prod.example.com/", "--token-file", "-"},
		{"context", "set", "lab", "--url", "http://127.0.0.1:1"},
		{"context", "use", "lab"},
	} {
		if out, errs, code := s.run(words...); code != 0 || out+errs != "" {
			t.Fatalf("%v: code %d, %s%s", words, code, out, errs)
		}
	}
	path := filepath.Join(s.env["HOME"], ".config/drover/config.yaml")
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode of the contexts = %v, %v; want 0600", st.Mode(), err)
	}
	out, _, _ := s.run("context", "list")
	if want := "CONTEXT   URL                        TOKEN   CURRENT\nlab       http://127.0.0.1:1         none    *\nprod      https://prod.example.com   set\n"; out != want {
		t.Errorf("list:\n%s\nwant:\n%s", out, want)
	}
	if out, _, _ := s.run("context", "list", "-o", "json"); strings.Contains(out, "secret") {
		t.Errorf("the list has a secret in it:\n%s", out)
	}
	if out, _, _ := s.run("config", "print", "--context", "prod"); strings.Contains(out, "secret") || !strings.Contains(out, "set, not shown") {
		t.Errorf("config print:\n%s", out)
	}
	// Another address takes the token away: it belongs to the first server.
	s.run("context", "set", "prod", "--url", "https://other.example.com")
	if b, err := os.ReadFile(path); err != nil || strings.Contains(string(b), "secret") {
		t.Errorf("the token went along to another server: %v\n%s", err, b)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, errs, _ := s.run("context", "list"); !strings.Contains(errs, "chmod 600") {
		t.Errorf("no warning about a file that others can read: %q", errs)
	}
	if _, _, code := s.run("context", "use", "nowhere"); code != exitNotFound {
		t.Errorf("use of an unknown context: code %d, want 3", code)
	}
	if _, _, code := s.run("context", "delete", "prod"); code != 0 {
		t.Errorf("delete: code %d", code)
	}
}

func TestSecretsAreRedacted(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"postgres://u:secret@h/d":              "postgres://u:xxxxx@h/d",
		"postgres://h/d?user=u&password=hush":  "postgres://h/d?password=xxxxx&user=u",
		"postgres://u@h/d?sslpassword=hush":    "postgres://u@h/d?sslpassword=xxxxx",
		"sqlite:/var/lib/drover/drover.db":     "sqlite:/var/lib/drover/drover.db",
		"http://[::1":                          "(not a URL)",
		"postgres://u:se%zzcret@h/d?password=": "(not a URL)",
	} {
		if got := redacted(in); got != want {
			t.Errorf("redacted(%q) = %q, want %q", in, got, want)
		}
	}
}
