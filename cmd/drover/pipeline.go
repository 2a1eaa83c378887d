package main

import (
	"context"
	"encoding/json"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/protocol"
)

func (a *app) pipelineCommand() *cobra.Command {
	return a.noun("pipeline", "Register pipelines and look at them", true,
		a.pipelineApply(), a.pipelineList(), a.pipelineGet(), a.pipelineLint(), a.pipelinePlan(), a.pipelineGraph(), a.pipelineDiff(), a.pipelineSchema(), a.pipelineImport())
}

var pipelineColumns = columns[drover.Pipeline]{
	name: func(d drover.Pipeline) string { return pipelineRef(d) },
	list: []column[drover.Pipeline]{
		{head: "PIPELINE", text: func(_ *printer, d drover.Pipeline) string { return d.Name }},
		{head: "VERSION", text: func(_ *printer, d drover.Pipeline) string { return strconv.Itoa(d.Version) }},
		{head: "AGE", text: func(p *printer, d drover.Pipeline) string { return p.age(d.CreatedAt) }},
		{head: "CREATOR", text: func(_ *printer, d drover.Pipeline) string { return d.Creator }},
		{head: "HASH", wide: true, text: func(_ *printer, d drover.Pipeline) string { return d.Hash }},
	},
	detail: func(p *printer, d drover.Pipeline) []fact {
		source := d.Source
		if source == "" {
			source = string(d.Definition)
		}
		return []fact{
			{name: "PIPELINE", text: pipelineRef(d)},
			{name: "CREATED", text: p.moment(d.CreatedAt)},
			{name: "CREATOR", text: d.Creator},
			{name: "HASH", text: d.Hash},
			{name: "SOURCE", text: strings.TrimRight(source, "\n")},
		}
	},
}

func pipelineRef(d drover.Pipeline) string { return d.Name + "@" + strconv.Itoa(d.Version) }

func (a *app) pipelineApply() *cobra.Command {
	return &cobra.Command{
		Use:   "apply FILE…",
		Short: "Register definitions, as new versions where they changed",
		Long: `Register definitions in YAML or JSON; - is standard input. A definition that is equal to a registered version
gives that version. Running jobs keep the version they started with.`,
		Example: `  drover pipeline apply pipeline.yaml
  drover pipeline apply pipelines/*.yaml -o name
  generate-pipeline | drover pipeline apply -`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			var done []drover.Pipeline
			for _, file := range words {
				src, err := a.readFile(file)
				if err != nil {
					return err
				}
				a.curlBody = "@" + file
				d, err := c.ApplyPipeline(ctx, file, src)
				if err != nil {
					return inFileNamed(file, err)
				}
				what := "unchanged"
				if d.Created {
					what = "new"
				}
				a.note("drover: %s: %s, %s", file, pipelineRef(d), what)
				done = append(done, d)
			}
			return printList(a.printer(), pipelineColumns, done)
		}),
	}
}

// inFileNamed puts the file before a refusal's detail.
func inFileNamed(file string, err error) error {
	e, ok := asRefusal(err)
	if !ok || strings.Contains(e.Detail, file) {
		return err
	}
	named := *e
	named.Detail = file + ": " + e.Detail
	return &named
}

func (a *app) pipelineList() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "list [NAME]",
		Short: "List pipelines in their newest version, or every version of one",
		Example: `  drover pipeline list
  drover pipeline list dataset-ingestion -o wide`,
		Args:              args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: a.completePipelines,
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			if len(words) == 1 {
				versions, err := c.PipelineVersions(ctx, words[0])
				if err != nil {
					return err
				}
				return printList(a.printer(), pipelineColumns, versions)
			}
			return list(a, pipelineColumns, limit, func(l client.List) (protocol.Page[drover.Pipeline], error) { return c.Pipelines(ctx, l) })
		}),
	}
	limitFlag(cmd, &limit)
	return cmd
}

// pipelineName reads NAME or NAME@VERSION; without a version it is 0, the newest.
func pipelineName(word string) (name string, version int, err error) {
	name, number, versioned := strings.Cut(word, "@")
	if versioned {
		if version, err = strconv.Atoi(number); err != nil || version < 1 {
			return "", 0, usagef("%q is not a pipeline such as dataset-ingestion or dataset-ingestion@3", word)
		}
	}
	return name, version, nil
}

func (a *app) pipelineGet() *cobra.Command {
	var source bool
	cmd := &cobra.Command{
		Use:   "get NAME[@VERSION]",
		Short: "Show a pipeline",
		Example: `  drover pipeline get dataset-ingestion
  drover pipeline get dataset-ingestion@3 -o json
  drover pipeline get dataset-ingestion --source > pipeline.yaml`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completePipelines,
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			name, version, err := pipelineName(words[0])
			if err != nil {
				return err
			}
			d, err := c.Pipeline(ctx, name, version)
			if err != nil {
				return err
			}
			if source {
				_, err := io.WriteString(a.out, d.Source)
				return err
			}
			return printOne(a.printer(), pipelineColumns, d)
		}),
	}
	cmd.Flags().BoolVar(&source, "source", false, "print the text that was registered, and nothing else")
	return cmd
}

func (a *app) pipelineSchema() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of definitions, for editors",
		Long: `Print the JSON Schema (draft 2020-12) of definitions: what an editor completes, explains and underlines. It has every
key that this version knows. What only the whole definition shows, such as a ring or an unknown task, is found by lint.`,
		Example: `  drover pipeline schema > pipeline.schema.json`,
		Args:    args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			if a.curl {
				return usagef("--curl: schema asks no server")
			}
			_, err := a.out.Write(dag.EditorSchema())
			return err
		},
	}
}

// taskWith is what a definition says of one task's run and input.
type taskWith struct {
	Name string          `json:"name"`
	Run  string          `json:"run"`
	With json.RawMessage `json:"with"`
}

func withs(p *dag.Pipeline) ([]taskWith, error) {
	var doc struct {
		Tasks []taskWith `json:"tasks"`
	}
	err := json.Unmarshal(p.Canonical(), &doc)
	return doc.Tasks, err
}
