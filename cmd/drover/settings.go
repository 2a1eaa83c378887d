package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v4"
)

// serverConfig is the file of server settings that is read when it exists.
const serverConfig = "/etc/drover/drover.yaml"

// lookup returns an environment variable, or what is in the file that the
// variable with _FILE at its end names.
func (a *app) lookup(name string) (string, error) {
	value, file := a.env(name), a.env(name+"_FILE")
	if file == "" {
		return value, nil
	}
	if value != "" {
		return "", usagef("%s and %s_FILE are both set; keep one", name, name)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", usagef("%s_FILE: %v", name, err)
	}
	return strings.TrimRight(string(b), "\r\n"), nil
}

const (
	inEnv  = "drover_env"  // annotation of a flag that the environment may set
	inFile = "drover_file" // annotation of a flag that drover.yaml may set too
)

// setting lets the environment, and for a server's flag drover.yaml, set a flag
// that the command line did not.
func setting(cmd *cobra.Command, file bool, names ...string) {
	for _, name := range names {
		f := cmd.Flag(name)
		must(cmd.Flags().SetAnnotation(name, inEnv, []string{envOf(name)}))
		f.Usage += " (env " + envOf(name) + ")"
		if file {
			must(cmd.Flags().SetAnnotation(name, inFile, []string{keyOf(name)}))
		}
	}
}

func envOf(flag string) string { return "DROVER_" + strings.ToUpper(keyOf(flag)) }
func keyOf(flag string) string { return strings.ReplaceAll(flag, "-", "_") }

// bind runs before every command: it gives flags that the command line left
// alone their value from the environment, or from drover.yaml.
func (a *app) bind(cmd *cobra.Command, _ []string) error {
	if err := a.checkOutput(); err != nil {
		return err
	}
	var file map[string]string
	if cmd.Flags().Lookup("config") != nil {
		var err error
		if file, err = a.serverFile(cmd.Root()); err != nil {
			return err
		}
	}
	var problem error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		name := f.Annotations[inEnv]
		if f.Changed || len(name) == 0 || problem != nil {
			return
		}
		value, err := a.lookup(name[0])
		from := name[0]
		if key := f.Annotations[inFile]; err == nil && value == "" && len(key) > 0 {
			value = file[key[0]]
			from = "drover.yaml: " + key[0]
		}
		if err == nil && value != "" {
			if err = cmd.Flags().Set(f.Name, value); err != nil {
				err = usagef("%s: %v", from, err)
			}
		}
		problem = err
	})
	return problem
}

// configPath is where drover.yaml is looked for.
func (a *app) configPath() (string, error) {
	path := a.config
	if path == "" {
		var err error
		if path, err = a.lookup("DROVER_CONFIG"); err != nil {
			return "", err
		}
	}
	return cmp.Or(path, serverConfig), nil
}

// serverFile reads drover.yaml: flat keys, named as the flags are, with _ for -.
func (a *app) serverFile(root *cobra.Command) (map[string]string, error) {
	path, err := a.configPath()
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && path == serverConfig {
		return nil, nil
	}
	if err != nil {
		return nil, usagef("--config: %v", err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return nil, usagef("%s: %v", path, err)
	}
	known := fileKeys(root)
	out := map[string]string{}
	if len(doc.Content) == 0 {
		return out, nil
	}
	top := doc.Content[0]
	if top.Kind != yaml.MappingNode {
		return nil, usagef("%s: must be keys and values, such as http_addr: 127.0.0.1:8420", path)
	}
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		if !slices.Contains(known, key.Value) {
			return nil, usagef("%s:%d: there is no setting %q; the settings are %s", path, key.Line, key.Value, strings.Join(known, ", "))
		}
		switch value.Kind {
		case yaml.ScalarNode:
			out[key.Value] = value.Value
		case yaml.SequenceNode:
			var items []string
			for _, it := range value.Content {
				items = append(items, it.Value)
			}
			out[key.Value] = strings.Join(items, ",")
		default:
			return nil, usagef("%s:%d: %s must be a single value", path, value.Line, key.Value)
		}
	}
	return out, nil
}

// fileKeys lists what drover.yaml may hold: the union over all commands, as one
// file serves them all.
func fileKeys(root *cobra.Command) []string {
	var keys []string
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) { keys = append(keys, f.Annotations[inFile]...) })
		for _, c := range cmd.Commands() {
			walk(c)
		}
	}
	walk(root)
	slices.Sort(keys)
	return slices.Compact(keys)
}

// contexts is $XDG_CONFIG_HOME/drover/config.yaml: servers by name.
type contexts struct {
	Current  string            `yaml:"current,omitempty"`
	Contexts map[string]server `yaml:"contexts"`
}

type server struct {
	URL   string `yaml:"url"`
	Token string `yaml:"token,omitempty"`
}

func (a *app) contextsPath() string {
	dir := a.env("XDG_CONFIG_HOME")
	if dir == "" {
		dir = filepath.Join(a.env("HOME"), ".config")
	}
	return filepath.Join(dir, "drover", "config.yaml")
}

// readContexts returns the contexts; without a file there are none.
func (a *app) readContexts() (contexts, error) {
	path := a.contextsPath()
	c := contexts{Contexts: map[string]server{}}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	if st, err := os.Stat(path); err == nil && st.Mode().Perm()&0o077 != 0 {
		a.note("drover: %s holds tokens and can be read by others; run: chmod 600 %s", path, path)
	}
	if err := yaml.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	if c.Contexts == nil {
		c.Contexts = map[string]server{}
	}
	return c, nil
}

func (a *app) writeContexts(c contexts) error {
	b, err := yaml.Marshal(c)
	if err != nil {
		return err
	}
	path := a.contextsPath()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return writeFile(path, b)
}

// writeFile replaces a file as a whole, readable by its owner only.
func writeFile(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-*") // made 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // is gone already when all went well
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// devFile is <state>/dev.json: where "drover dev" answers, and its token.
type devFile struct {
	URL   string `json:"url"`
	Token string `json:"token"`
}

const (
	defaultState = ".drover"
	defaultAddr  = "127.0.0.1:8420"
)

func readDevFile(state string) (devFile, error) {
	var d devFile
	b, err := os.ReadFile(filepath.Join(state, devJSON))
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(b, &d); err != nil || d.URL == "" {
		return d, fmt.Errorf("%s is damaged; start \"drover dev\" again, which writes it anew", filepath.Join(state, devJSON))
	}
	return d, nil
}

// target is the server a command talks to, and who said so.
type target struct {
	url, token         string
	urlFrom, tokenFrom string
}

// devJSON is the file of a state folder that names its server.
const devJSON = "dev.json"

var errNoServer = errors.New(`no server is known; start one with "drover dev", or name one with --url, DROVER_URL or "drover context set"`)

// target finds the server: flags, then the environment, then ./.drover/dev.json,
// then the current context. A token goes to the server it belongs to: one from a
// file is used only with the address that stands beside it.
func (a *app) target() (target, error) {
	var t target
	set := func(u, uFrom, tok, tokFrom string) {
		t.url, t.urlFrom = u, uFrom
		if tok != "" {
			t.token, t.tokenFrom = tok, tokFrom
		}
	}
	envURL, err := a.lookup("DROVER_URL")
	if err != nil {
		return t, err
	}
	envToken, err := a.lookup("DROVER_TOKEN")
	if err != nil {
		return t, err
	}
	envContext, err := a.lookup("DROVER_CONTEXT")
	if err != nil {
		return t, err
	}
	known, err := a.readContexts()
	if err != nil {
		return t, err
	}
	byName := func(name, from string) error {
		c, ok := known.Contexts[name]
		if !ok {
			return usagef("%s: there is no context %q in %s; \"drover context list\" shows them", from, name, a.contextsPath())
		}
		set(c.URL, "context "+name, c.Token, "context "+name)
		return nil
	}
	fromDev := func(state string) error {
		d, err := readDevFile(state)
		if err == nil {
			file := filepath.Join(state, devJSON)
			set(d.URL, file, d.Token, file)
		}
		return err
	}
	own := false // the address comes from a file that anybody may have put in this folder
	switch {
	case a.url != "":
		set(a.url, "--url", envToken, "DROVER_TOKEN")
		if t.token == "" { // a known server's own token
			if d, err := readDevFile(a.stateOrDefault()); err == nil && sameServer(d.URL, a.url) {
				set(a.url, "--url", d.Token, filepath.Join(a.stateOrDefault(), devJSON))
			}
			for name, c := range known.Contexts {
				if t.token == "" && sameServer(c.URL, a.url) {
					set(a.url, "--url", c.Token, "context "+name)
				}
			}
		}
	case a.context != "":
		err = byName(a.context, "--context")
	case a.state != "":
		own = true
		if err = fromDev(a.state); errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("--state %s: no \"drover dev\" has run there: %w", a.state, err)
		}
	case envURL != "":
		set(envURL, "DROVER_URL", envToken, "DROVER_TOKEN")
	case envContext != "":
		err = byName(envContext, "DROVER_CONTEXT")
	default:
		own = true
		if err = fromDev(defaultState); errors.Is(err, fs.ErrNotExist) {
			own, err = false, nil
			if known.Current != "" {
				err = byName(known.Current, "current context")
			}
			if envToken != "" {
				t.token, t.tokenFrom = envToken, "DROVER_TOKEN"
			}
		}
	}
	if err != nil {
		return t, err
	}
	if t.token == "" && envToken != "" && !own {
		t.token, t.tokenFrom = envToken, "DROVER_TOKEN"
	}
	if a.token != "" {
		t.token, t.tokenFrom = a.token, "--token"
	}
	if t.url == "" {
		return t, errNoServer
	}
	for _, one := range addresses(t.url) {
		if !isAddress(one) {
			return t, usagef("%s: %q is not an address such as http://127.0.0.1:8420", t.urlFrom, one)
		}
	}
	return t, nil
}

// addresses are those of the servers that s names, separated by commas.
func addresses(s string) []string {
	list := strings.Split(s, ",")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return list
}

// isAddress reports whether s may be the address of one server.
func isAddress(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

func (a *app) stateOrDefault() string {
	if a.state != "" {
		return a.state
	}
	return defaultState
}

func sameServer(x, y string) bool {
	return strings.TrimRight(x, "/") == strings.TrimRight(y, "/")
}
