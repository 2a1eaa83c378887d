package main

import (
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func (a *app) contextCommand() *cobra.Command {
	cmd := a.noun("context", "Name servers, and choose the one that commands talk to", false, a.contextUse(), a.contextList(), a.contextSet(), a.contextDelete())
	a.outputFlags(cmd)
	return cmd
}

// contextRow is a context as it is listed: without its token.
type contextRow struct {
	Name    string `json:"name"`
	URL     string `json:"url"`
	Current bool   `json:"current"`
	Token   string `json:"token"` // "set" or "none"
}

var contextColumns = columns[contextRow]{
	name: func(c contextRow) string { return c.Name },
	list: []column[contextRow]{
		{head: "CONTEXT", text: func(_ *printer, c contextRow) string { return c.Name }},
		{head: "URL", text: func(_ *printer, c contextRow) string { return c.URL }},
		{head: "TOKEN", text: func(_ *printer, c contextRow) string { return c.Token }},
		{head: "CURRENT", text: func(_ *printer, c contextRow) string {
			if c.Current {
				return "*"
			}
			return ""
		}},
	},
}

func (a *app) contextList() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List contexts",
		Example: "  drover context list",
		Args:    args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			known, err := a.readContexts()
			if err != nil {
				return err
			}
			var rows []contextRow
			for name, c := range known.Contexts {
				row := contextRow{Name: name, URL: c.URL, Current: name == known.Current, Token: "none"}
				if c.Token != "" {
					row.Token = "set"
				}
				rows = append(rows, row)
			}
			slices.SortFunc(rows, func(x, y contextRow) int { return strings.Compare(x.Name, y.Name) })
			return printList(a.printer(), contextColumns, rows)
		},
	}
}

func (a *app) contextUse() *cobra.Command {
	return &cobra.Command{
		Use:               "use NAME",
		Short:             "Make a context the one that commands use",
		Example:           "  drover context use prod",
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeContexts,
		RunE: func(_ *cobra.Command, words []string) error {
			known, err := a.readContexts()
			if err != nil {
				return err
			}
			if _, ok := known.Contexts[words[0]]; !ok {
				return exitf(exitNotFound, "there is no context %q; \"drover context list\" shows them, \"drover context set\" makes one", words[0])
			}
			known.Current = words[0]
			return a.writeContexts(known)
		},
	}
}

func (a *app) contextSet() *cobra.Command {
	var address, tokenFile string
	cmd := &cobra.Command{
		Use:   "set NAME --url URL",
		Short: "Make or change a context",
		Long: `Make or change a context. The token is read from a file, or from standard input, so that it stands in no
shell history. The file of contexts is readable by its owner only. The first context becomes the current one.`,
		Example: `  drover context set prod --url https://drover.example.com --token-file -
  drover context set lab --url http://127.0.0.1:8430 --token-file .drover/token`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeContexts,
		RunE: func(_ *cobra.Command, words []string) error {
			name := words[0]
			if name == "" || strings.ContainsAny(name, " \t\n") {
				return usagef("%q is not a name for a context", name)
			}
			known, err := a.readContexts()
			if err != nil {
				return err
			}
			c := known.Contexts[name]
			if address != "" {
				for _, one := range addresses(address) {
					if !isAddress(one) || strings.Contains(one, "@") {
						return usagef("--url %s: must be an address such as https://drover.example.com", one)
					}
				}
				if c.URL != "" && !sameServer(c.URL, address) {
					c.Token = "" // it belongs to the other server
				}
				c.URL = strings.TrimRight(address, "/")
			}
			if c.URL == "" {
				return usagef("--url is needed for a new context")
			}
			if tokenFile != "" {
				b, err := a.readFile(tokenFile)
				if err != nil {
					return usagef("--token-file: %v", err)
				}
				c.Token = strings.TrimSpace(string(b))
			}
			known.Contexts[name] = c
			if known.Current == "" {
				known.Current = name
			}
			return a.writeContexts(known)
		},
	}
	cmd.Flags().StringVar(&address, "url", "", "the server's address, or several of one database, separated by commas")
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "file that holds the token; - is standard input")
	return cmd
}

func (a *app) contextDelete() *cobra.Command {
	return &cobra.Command{
		Use:               "delete NAME",
		Short:             "Forget a context",
		Example:           "  drover context delete lab",
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeContexts,
		RunE: func(_ *cobra.Command, words []string) error {
			known, err := a.readContexts()
			if err != nil {
				return err
			}
			if _, ok := known.Contexts[words[0]]; !ok {
				return exitf(exitNotFound, "there is no context %q; \"drover context list\" shows them", words[0])
			}
			delete(known.Contexts, words[0])
			if known.Current == words[0] {
				known.Current = ""
			}
			return a.writeContexts(known)
		},
	}
}

// configRow is one setting in force, and where it comes from.
type configRow struct {
	Setting string `json:"setting"`
	Value   string `json:"value"`
	From    string `json:"from"`
}

var configColumns = columns[configRow]{
	name: func(c configRow) string { return c.Setting },
	list: []column[configRow]{
		{head: "SETTING", text: func(_ *printer, c configRow) string { return c.Setting }},
		{head: "VALUE", text: func(_ *printer, c configRow) string { return c.Value }},
		{head: "FROM", text: func(_ *printer, c configRow) string { return c.From }},
	},
}

func (a *app) configCommand() *cobra.Command {
	show := &cobra.Command{
		Use:   "print",
		Short: "Show which server commands talk to, and a server's settings, with their sources",
		Long:  "Show which server commands talk to, and the settings that a server would start with, each with its source. Secrets are left out.",
		Example: `  drover config print
  drover config print --config ./drover.yaml -o json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			from := "default"
			if a.env("XDG_CONFIG_HOME") != "" {
				from = "XDG_CONFIG_HOME"
			}
			rows := []configRow{{"contexts", a.contextsPath(), from}}
			if t, err := a.target(); err != nil {
				rows = append(rows, configRow{"url", "", err.Error()})
			} else {
				rows = append(rows, configRow{"url", redacted(t.url), t.urlFrom}, configRow{"token", hidden(t.token), t.tokenFrom})
			}
			settings, err := a.serverSettings(cmd.Root())
			if err != nil {
				return err
			}
			return printList(a.printer(), configColumns, append(rows, settings...))
		},
	}
	show.Flags().StringVar(&a.config, "config", "", "file of server settings (default "+serverConfig+", env DROVER_CONFIG)")
	cmd := a.noun("config", "Show the settings in force", true, show)
	return cmd
}

// serverSettings lists what "drover server" would start with.
func (a *app) serverSettings(root *cobra.Command) ([]configRow, error) {
	file, err := a.serverFile(root)
	if err != nil {
		return nil, err
	}
	path, err := a.configPath()
	if err != nil {
		return nil, err
	}
	server, _, err := root.Find([]string{"server"})
	if err != nil {
		return nil, err
	}
	var rows []configRow
	server.Flags().VisitAll(func(f *pflag.Flag) {
		env, key := f.Annotations[inEnv], f.Annotations[inFile]
		if len(env) == 0 {
			return
		}
		row := configRow{keyOf(f.Name), f.DefValue, "default"}
		v, lerr := a.lookup(env[0])
		if lerr != nil {
			err = lerr
		}
		if v != "" {
			row.Value, row.From = v, env[0]
		} else if len(key) > 0 && file[key[0]] != "" {
			row.Value, row.From = file[key[0]], path
		}
		if f.Name == "database-url" {
			row.Value = redacted(row.Value)
		}
		rows = append(rows, row)
	})
	return rows, err
}

// redacted returns a URL without its password.
func redacted(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "(not a URL)"
	}
	q := u.Query()
	for name := range q {
		if strings.Contains(strings.ToLower(name), "password") {
			q.Set(name, "xxxxx")
			u.RawQuery = q.Encode()
		}
	}
	return u.Redacted()
}

func hidden(secret string) string {
	if secret == "" {
		return "none"
	}
	return "set, not shown"
}
