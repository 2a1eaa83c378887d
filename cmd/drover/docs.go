package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// docsCommand prints docs/cli.md.
func (a *app) docsCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "docs-cli",
		Short:   "Print docs/cli.md from the commands",
		Example: "  drover docs-cli > docs/cli.md",
		Hidden:  true,
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(a.out, cliDocs(cmd.Root()))
			return err
		},
	}
}

const cliIntro = `# The command line

This page is printed by ` + "`drover docs-cli`" + ` (` + "`make docs`" + `); change the commands, not the page.

## What holds for every command

**Which server.** In this order: ` + "`--url`, `--context` or `--state`" + `; then ` + "`DROVER_URL`" + ` (with ` + "`DROVER_TOKEN`" + `) or
` + "`DROVER_CONTEXT`" + `; then ` + "`./.drover/dev.json`" + `, which ` + "`drover dev`" + ` writes; then the current context of
` + "`$XDG_CONFIG_HOME/drover/config.yaml`" + `. A token that a file names goes only to the server that the file names.
Every variable can be given as a file: ` + "`DROVER_TOKEN_FILE=/run/secrets/token`" + `. ` + "`drover config print`" + ` shows what is in force, and why.

**Output.** Data goes to standard output, everything else to standard error. ` + "`-o table|wide|json|jsonl|yaml|name`" + `; an empty list is
` + "`[]`" + ` and status 0. Colour and redrawing only on a terminal, and not with ` + "`NO_COLOR`" + `. ` + "`--time-format relative|iso|raw`" + ` writes times
as ` + "`3m12s`" + `, in RFC 3339, or in Unix milliseconds; JSON and YAML always have RFC 3339. ` + "`--curl`" + ` prints the request as a curl
command instead of making it; where a command makes several, the first (after the one that looks ` + "`@latest`" + ` up, which is made).

**Names.** ` + "`@latest`" + ` stands for the newest job that no task of another runs, wherever a job is named. ` + "`@FILE`" + ` and ` + "`-`" + ` stand for a file and standard input wherever
JSON is given.

**Exit status.**

| status | meaning |
|---|---|
| 0 | done |
| 1 | an error that is none of the others, such as an input that does not fit the pipeline's schema, which only the server knows |
| 2 | the command was called wrongly: a flag, an argument or JSON that can be told wrong without a server |
| 3 | not found |
| 4 | no valid token, or one that does not permit this |
| 5 | a conflict: not possible in this state, or the idempotency key was used for another request |
| 6 | the job that was waited for ended FAILED |
| 7 | the job that was waited for was CANCELLED |
| 8 | the job has not ended (` + "`job wait --timeout 0`" + `) |
| 124 | the time given with --timeout is over |
| 130, 143 | ended by Ctrl-C, by SIGTERM |

An error is one line on standard error that names the place and, where there is one, the remedy; each further place in a request is a line below it.
`

// cliDocs returns docs/cli.md.
func cliDocs(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString(cliIntro)
	b.WriteString("\n## Commands\n\n| command | |\n|---|---|\n")
	var all []*cobra.Command
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, c := range cmd.Commands() {
			if !c.IsAvailableCommand() || c.Name() == "help" {
				continue
			}
			if !c.HasSubCommands() {
				all = append(all, c)
			}
			walk(c)
		}
	}
	walk(root)
	for _, c := range all {
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", c.CommandPath(), strings.ReplaceAll(c.CommandPath(), " ", "-"), c.Short)
	}
	for _, c := range all {
		fmt.Fprintf(&b, "\n### %s\n\n", c.CommandPath())
		text := c.Long
		if text == "" {
			text = c.Short + "."
		}
		fmt.Fprintf(&b, "%s\n\n```\n%s\n```\n", text, strings.TrimRight(unindent(c.Example), "\n"))
		fmt.Fprintf(&b, "\n`%s`\n", c.UseLine())
		var rows []string
		c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && f.Name != "help" && !shared[f.Name] {
				rows = append(rows, flagRow(f))
			}
		})
		if len(rows) > 0 {
			b.WriteString("\n| flag | |\n|---|---|\n" + strings.Join(rows, ""))
		}
	}
	b.WriteString("\n## Shared flags\n\nCommands that talk to a server or print data have:\n\n| flag | |\n|---|---|\n")
	job, _, err := root.Find([]string{"job", "list"})
	must(err)
	job.InheritedFlags().VisitAll(func(f *pflag.Flag) {
		b.WriteString(flagRow(f))
	})
	return b.String()
}

// shared are the flags that the last section describes once for all commands.
var shared = map[string]bool{
	"url": true, "token": true, "context": true, "state": true, "curl": true, "output": true, "no-headers": true, "time-format": true,
}

func flagRow(f *pflag.Flag) string {
	kind, usage := pflag.UnquoteUsage(f)
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	if kind != "" {
		name += " " + kind
	}
	if d := f.DefValue; d != "" && d != "false" && d != "0" && d != "[]" && !strings.Contains(usage, "(default") {
		usage += " (default `" + strings.Trim(d, "[]") + "`)"
	}
	return fmt.Sprintf("| `%s` | %s |\n", name, strings.NewReplacer("|", "\\|", "<", "&lt;").Replace(usage))
}

func unindent(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = strings.TrimPrefix(l, "  ")
	}
	return strings.Join(lines, "\n")
}
