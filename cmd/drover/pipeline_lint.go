package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/internal/dag"
)

// definition is a pipeline that a command looks at: of a file, or registered.
type definition struct {
	word string // as it was named
	file string // or empty
	name string // of the registered pipeline whose runs are its history
	p    *dag.Pipeline
	plan *dag.Plan
}

// historyJobs is how many jobs of a pipeline tell how long its tasks take, and
// historyTasks how many tasks of each are looked at.
const (
	historyJobs  = 10
	historyTasks = 5000
)

// isFile reports whether a word names a file: a pipeline's name has neither a dot
// nor a slash.
func isFile(word string) bool {
	name, _, err := pipelineName(word)
	return word == "-" || err != nil || !dag.ValidName(name)
}

// definition reads a definition out of a file or from the server. What is wrong
// with a file is a *drover.Error with its fields.
func (a *app) definition(ctx context.Context, word string) (definition, error) {
	d := definition{word: word}
	if isFile(word) {
		src, err := a.readFile(word)
		if err != nil {
			return d, err
		}
		d.file = word
		if d.p, err = dag.Parse(word, src); err != nil {
			return d, err
		}
		d.name = d.p.Name
		d.plan, err = d.p.Compile()
		return d, err
	}
	name, version, err := pipelineName(word)
	if err != nil {
		return d, err
	}
	c, err := a.connect()
	if err != nil {
		return d, err
	}
	defer c.Close()
	r, err := c.Pipeline(ctx, name, version)
	if err != nil {
		return d, err
	}
	d.name = name
	if d.p, err = dag.Decode(r.Definition); err == nil {
		d.plan, err = d.p.Compile()
	}
	return d, err
}

// measures asks the server how long the tasks of a pipeline took in its last jobs
// that ended well, and how many those jobs are.
func measures(ctx context.Context, c *client.Client, name string, jobs int) (dag.Measures, int, error) {
	page, err := c.Jobs(ctx, client.JobsFilter{Pipeline: name, Status: []drover.Status{drover.Succeeded}, List: client.List{Limit: jobs}})
	if err != nil {
		return nil, 0, err
	}
	var samples []dag.Sample
	for i, j := range page.Items {
		f := client.TasksFilter{Status: []drover.Status{drover.Succeeded}, List: client.List{Limit: 1000}}
		for n := 0; n < historyTasks; {
			tasks, err := c.Tasks(ctx, j.ID, f)
			if err != nil {
				return nil, 0, err
			}
			for _, t := range tasks.Items {
				if t.ClaimedAt.IsZero() {
					continue // nobody ran it
				}
				samples = append(samples, dag.Sample{Job: i, Name: t.Name, Mapped: t.Mapped, Run: t.FinishedAt.Sub(t.ClaimedAt), Handoff: t.ClaimedAt.Sub(t.QueuedAt)})
			}
			n += len(tasks.Items)
			if f.Cursor = tasks.NextCursor; f.Cursor == "" {
				break
			}
		}
	}
	return dag.MeasuresOf(samples), len(page.Items), nil
}

// history asks for measures when there is a server to ask: of a registered
// pipeline always, of a file when the flag says so.
func (a *app) history(ctx context.Context, d definition, asked bool, jobs int) (dag.Measures, int, error) {
	if d.file != "" && !asked || jobs == 0 {
		return nil, 0, nil
	}
	c, err := a.connect()
	if err != nil {
		return nil, 0, err
	}
	defer c.Close()
	return measures(ctx, c, d.name, jobs)
}

// historyFlags are what commands that use history have.
func historyFlags(cmd *cobra.Command, asked *bool, jobs *int) {
	cmd.Flags().BoolVar(asked, "history", false, "of a FILE too, ask the server how long the tasks of the pipeline of that name took")
	cmd.Flags().IntVar(jobs, "jobs", historyJobs, "how many of the last jobs that ended well are the history; 0 for none")
}

// complaint is one line of what lint says.
type complaint struct {
	File     string `json:"file"`
	Severity string `json:"severity"` // error, warning
	Rule     string `json:"rule"`
	Field    string `json:"field"`
	Line     int    `json:"line,omitempty"`
	Column   int    `json:"column,omitempty"`
	Message  string `json:"message"`
	Remedy   string `json:"remedy,omitempty"`
}

var complaintColumns = columns[complaint]{
	name: func(c complaint) string { return c.File },
	list: []column[complaint]{
		{head: "PLACE", text: func(_ *printer, c complaint) string { return c.place() }},
		{head: "SEVERITY", text: func(_ *printer, c complaint) string { return c.Severity }},
		{head: "RULE", text: func(_ *printer, c complaint) string { return c.Rule }},
		{head: "FIELD", text: func(_ *printer, c complaint) string { return c.Field }},
		{head: "MESSAGE", text: func(_ *printer, c complaint) string { return c.Message }},
		{head: "REMEDY", wide: true, text: func(_ *printer, c complaint) string { return c.Remedy }},
	},
}

func (c complaint) place() string {
	if c.Line > 0 {
		return fmt.Sprintf("%s:%d:%d", c.File, c.Line, c.Column)
	}
	return c.File
}

const (
	isError   = "error"
	isWarning = "warning"
)

func (a *app) pipelineLint() *cobra.Command {
	var (
		asked, strict bool
		jobs          int
	)
	cmd := &cobra.Command{
		Use:   "lint FILE|NAME[@VERSION]…",
		Short: "Check definitions, and warn of what people regret",
		Long: `Check definitions in YAML or JSON; - is standard input. Every mistake is one line: file, line, column, place. A file
needs no server. What is allowed and mostly a mistake is a warning with its remedy: tasks too small to be worth handing
out, or too many of them; tasks that can never run; tasks that sleep and hold a worker; changes outside that a second
attempt makes twice; bounds that never take effect. How long tasks take is known from the last jobs of the pipeline,
if it is named as registered, or with --history.

The exit status is 1 when a definition has an error, with --strict also when it has a warning. Warnings alone are 0.`,
		Example: `  drover pipeline lint pipeline.yaml
  drover pipeline lint pipelines/*.yaml --strict -o json
  drover pipeline lint dataset-ingestion`,
		Args:              args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completePipelines,
		RunE: func(cmd *cobra.Command, words []string) error {
			if a.curl {
				return usagef("--curl: lint needs no server for a file, and makes several requests for a pipeline")
			}
			list := []complaint{}
			bad := 0
			for _, word := range words {
				found, err := a.lint(cmd.Context(), word, asked, jobs)
				if err != nil {
					return err
				}
				list = append(list, found...)
				wrong := false
				for _, c := range found {
					wrong = wrong || strict || c.Severity == isError
				}
				if wrong {
					bad++
				}
				if a.output == "table" || a.output == "" {
					a.tell(word, found)
				}
			}
			if a.output != "table" && a.output != "" {
				if err := printList(a.printer(), complaintColumns, list); err != nil {
					return err
				}
			}
			if bad > 0 {
				what := "not valid"
				if strict {
					what = "not clean"
				}
				return exitf(exitError, "%s of %d %s", counted(bad, "definition", "definitions"), len(words), what)
			}
			return nil
		},
	}
	historyFlags(cmd, &asked, &jobs)
	cmd.Flags().BoolVar(&strict, "strict", false, "a warning is as bad as an error")
	return cmd
}

// tell writes what lint found for people.
func (a *app) tell(word string, found []complaint) {
	if len(found) == 0 {
		a.note("%s: ok", word)
	}
	for _, c := range found {
		switch {
		case c.Severity == isWarning:
			a.note("%s: warning: %s: %s (%s)\n  remedy: %s", c.place(), clean(c.Field, true), clean(c.Message, true), c.Rule, clean(c.Remedy, true))
		case c.Field == "":
			a.note("%s: %s", c.place(), clean(c.Message, true))
		default:
			a.note("%s: %s: %s", c.place(), clean(c.Field, true), clean(c.Message, true))
		}
	}
}

// lint returns what is wrong with one definition, or what may be.
func (a *app) lint(ctx context.Context, word string, asked bool, jobs int) ([]complaint, error) {
	d, err := a.definition(ctx, word)
	e, refused := asRefusal(err)
	switch {
	case refused && d.file == "":
		return nil, err // the server's answer
	case refused && len(e.Fields) == 0:
		return []complaint{{File: word, Severity: isError, Rule: string(e.Code), Message: err.Error()}}, nil
	case refused:
		var out []complaint
		for _, f := range e.Fields {
			out = append(out, complaint{File: word, Severity: isError, Rule: string(cmp.Or(e.Code, drover.CodeValidation)), Field: f.Field, Line: f.Line, Column: f.Column, Message: f.Message})
		}
		return out, nil
	case err != nil:
		return nil, err
	}
	m, _, err := a.history(ctx, d, asked, jobs)
	if err != nil {
		return nil, err
	}
	var out []complaint
	for _, f := range d.p.Lint(d.plan, m) {
		c := complaint{File: word, Severity: isWarning, Rule: f.Rule, Field: f.Field, Line: f.Line, Column: f.Column, Message: f.Message, Remedy: f.Remedy}
		if d.file == "" { // there is no text whose lines would mean something
			c.Line, c.Column = 0, 0
		}
		out = append(out, c)
	}
	return out, nil
}
