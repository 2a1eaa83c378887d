package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// app is what every command gets from outside, and the values of the flags that
// many commands share. This is the one place that reads the environment.
type app struct {
	in          io.Reader
	out, err    io.Writer
	env         func(string) string
	now         func() time.Time
	terminal    bool              // out is a terminal
	errTerminal bool              // err is one
	size        func() (w, h int) // of the terminal
	signals     chan os.Signal    // SIGINT and SIGTERM; nil in tests that send none

	url, token, context, state string
	curl                       bool
	curlBody                   string // what --curl prints for the body, when the body itself will not do
	output, times              string
	noHeaders                  bool
	config                     string
	logLevel, logFormat        string
	printed                    bool // --curl has printed the request
}

func newApp() *app {
	fd := int(os.Stdout.Fd())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	return &app{
		in: os.Stdin, out: os.Stdout, err: os.Stderr, env: os.Getenv, now: time.Now, signals: signals,
		terminal: term.IsTerminal(fd), errTerminal: term.IsTerminal(int(os.Stderr.Fd())),
		size: func() (int, int) {
			w, h, err := term.GetSize(fd)
			if err != nil || w <= 0 || h <= 0 {
				return 80, 24
			}
			return w, h
		},
	}
}

// run runs one command line and returns its exit code.
func (a *app) run(args []string) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	root := a.root()
	root.SetArgs(args)
	if a.signals != nil {
		done := make(chan struct{})
		defer close(done)
		go a.watchSignals(cancel, done)
	}
	err := root.ExecuteContext(ctx)
	if a.printed {
		return exitOK
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		err = context.Cause(ctx) // the signal
	}
	return a.report(err)
}

// watchSignals cancels the command on the first signal and ends the process on
// the second.
func (a *app) watchSignals(cancel context.CancelCauseFunc, done <-chan struct{}) {
	for n := 0; ; n++ {
		select {
		case <-done:
			return
		case s := <-a.signals:
			code := exitInterrupted
			if s == syscall.SIGTERM {
				code = exitTerminated
			}
			if n > 0 {
				fmt.Fprintln(a.err, "drover: second signal: stopping at once")
				os.Exit(code)
			}
			cancel(&exit{code: code})
		}
	}
}

const helpTemplate = `{{with (or .Long .Short)}}{{. | trimTrailingWhitespaces}}

{{end}}{{if .HasExample}}Examples:
{{.Example | trimTrailingWhitespaces}}

{{end}}{{if or .Runnable .HasSubCommands}}{{.UsageString}}{{end}}`

const usageTemplate = `Usage:{{if .HasAvailableSubCommands}}
  {{.CommandPath}} [command]{{else}}
  {{.UseLine}}{{end}}{{if .HasAvailableSubCommands}}

Commands:{{range .Commands}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding }} {{.Short}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableInheritedFlags}}

Shared flags:
{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}
`

// root builds the command tree.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "drover",
		Short: "Drive asynchronous work to its end",
		Long: `Drover runs jobs: single tasks, and pipelines of tasks that depend on each other.
One process and a file are enough ("drover dev"); PostgreSQL and many servers are the same program.`,
		Example: `  drover dev                                                # server, workers and database in one process
  drover job submit --kind exec --input '{"command":["echo","hello"]}' --watch
  drover job list`,
		Args:              onlyCommands,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Version:           version,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: a.bind,
	}
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetHelpTemplate(helpTemplate)
	root.SetUsageTemplate(usageTemplate)
	root.SetVersionTemplate("drover {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%v; see %q", err, cmd.CommandPath()+" --help")
	})
	root.AddCommand(
		a.devCommand(), a.serverCommand(), a.workerCommand(), a.migrateCommand(),
		a.pipelineCommand(), a.jobCommand(), a.taskCommand(), a.queueCommand(), a.intakeCommand(), a.limitCommand(), a.circuitCommand(), a.explainCommand(), a.waitsCommand(), a.dlqCommand(), a.artifactCommand(),
		a.tokenCommand(), a.tenantCommand(), a.retentionCommand(), a.contextCommand(), a.configCommand(),
		a.auditCommand(), a.doctorCommand(), a.healthcheckCommand(), a.versionCommand(), a.docsCommand(),
	)
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	describeCompletion(root)
	return root
}

// noun makes a command that only holds others; client says that they talk to a server.
func (a *app) noun(use, short string, client bool, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: onlyCommands, RunE: needsCommand}
	cmd.AddCommand(commands...)
	if client {
		a.clientFlags(cmd)
	}
	return cmd
}

// needsCommand is run by a command that only holds others.
func needsCommand(cmd *cobra.Command, _ []string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && c.Name() != "help" {
			names = append(names, c.Name())
		}
	}
	return usagef("%s needs a command: %s", cmd.CommandPath(), strings.Join(names, ", "))
}

// onlyCommands refuses a word that is none of a command's own commands.
func onlyCommands(cmd *cobra.Command, words []string) error {
	if len(words) == 0 {
		return nil
	}
	hint := fmt.Sprintf("%q lists them", cmd.CommandPath()+" --help")
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && edits(words[0], c.Name()) <= max(1, len(words[0])/3) {
			hint = fmt.Sprintf("did you mean %q?", c.Name())
		}
	}
	return usagef("there is no command %q; %s", cmd.CommandPath()+" "+words[0], hint)
}

// edits counts the letters to change, add or drop between two words.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		left := row[0]
		row[0] = i + 1
		for j := range len(b) {
			diagonal := left
			left = row[j+1]
			if a[i] != b[j] {
				diagonal = 1 + min(diagonal, left, row[j])
			}
			row[j+1] = diagonal
		}
	}
	return row[len(b)]
}

// args makes usage errors of what check finds.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, words []string) error {
		if err := check(cmd, words); err != nil {
			return usagef("%v; usage: %s", err, cmd.UseLine())
		}
		return nil
	}
}

// clientFlags gives a command, and those below it, the flags of everything that
// asks a server and prints what it said.
func (a *app) clientFlags(cmd *cobra.Command) {
	f := cmd.PersistentFlags()
	f.StringVar(&a.url, "url", "", "server, such as http://127.0.0.1:8420, or several, separated by commas (env DROVER_URL)")
	f.StringVar(&a.token, "token", "", "API token; better given as DROVER_TOKEN or DROVER_TOKEN_FILE")
	f.StringVar(&a.context, "context", "", `named server of "drover context" (env DROVER_CONTEXT)`)
	f.StringVar(&a.state, "state", "", "state folder of a \"drover dev\", whose dev.json names its server (default .drover)")
	f.BoolVar(&a.curl, "curl", false, "print the curl command that does the same, and do nothing")
	a.outputFlags(cmd)
	must(cmd.RegisterFlagCompletionFunc("context", a.completeContexts))
}

// outputFlags gives a command, and those below it, the flags of printed data.
func (a *app) outputFlags(cmd *cobra.Command) {
	f := cmd.PersistentFlags()
	f.StringVarP(&a.output, "output", "o", "table", strings.Join(formats, "|"))
	f.BoolVar(&a.noHeaders, "no-headers", false, "leave out the line of column names")
	f.StringVar(&a.times, "time-format", "relative", strings.Join(timeFormats, "|")+": 3m12s, RFC 3339, or Unix milliseconds")
	must(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(completions(formats), cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("time-format", cobra.FixedCompletions(completions(timeFormats), cobra.ShellCompDirectiveNoFileComp)))
}

// checkOutput refuses formats there are not.
func (a *app) checkOutput() error {
	if a.output != "" && !slices.Contains(formats, a.output) {
		return usagef("--output %s: must be one of %s", a.output, strings.Join(formats, ", "))
	}
	if a.times != "" && !slices.Contains(timeFormats, a.times) {
		return usagef("--time-format %s: must be one of %s", a.times, strings.Join(timeFormats, ", "))
	}
	return nil
}

func completions(words []string) []cobra.Completion { return words }

// must panics on an error that only a mistake in this program makes.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// note tells the person at the terminal something that is not data.
func (a *app) note(format string, args ...any) { fmt.Fprintf(a.err, format+"\n", args...) }
