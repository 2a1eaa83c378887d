package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/builtin"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/draw"
	"github.com/drover-dev/drover/internal/executor"
)

// outlook is what plan prints.
type outlook struct {
	Pipeline string          `json:"pipeline"`
	Jobs     int             `json:"jobs"` // that the history is of
	Tasks    int             `json:"tasks"`
	Levels   [][]string      `json:"levels"`
	Critical []string        `json:"critical_path"`
	Length   drover.Duration `json:"length"`
	Work     drover.Duration `json:"work"`
	Width    int             `json:"width"`
	Widest   int             `json:"widest_level"`
	Nodes    []outlookNode   `json:"nodes"`
}

type outlookNode struct {
	Name          string          `json:"name"`
	Level         int             `json:"level"`
	Elements      int             `json:"elements"`
	ElementsBasis string          `json:"elements_basis"`
	Run           drover.Duration `json:"run"`
	RunBasis      string          `json:"run_basis"`
	Start         drover.Duration `json:"start"`
	Slack         drover.Duration `json:"slack"`
	Critical      bool            `json:"critical"`
	Standby       bool            `json:"standby,omitempty"` // it runs only when it is called
	Blast         int             `json:"blast_radius"`
	BlastTasks    int             `json:"blast_radius_tasks"`
}

var outlookColumns = columns[outlookNode]{
	name: func(n outlookNode) string { return n.Name },
	list: []column[outlookNode]{
		{head: "LEVEL", text: func(_ *printer, n outlookNode) string { return strconv.Itoa(n.Level) }},
		{head: "TASK", text: func(_ *printer, n outlookNode) string { return n.Name }},
		{head: "ELEMENTS", text: func(_ *printer, n outlookNode) string { return guess(strconv.Itoa(n.Elements), n.ElementsBasis) }},
		{head: "RUN", text: func(_ *printer, n outlookNode) string { return guess(span(n.Run.Std()), n.RunBasis) }},
		{head: "START", text: func(_ *printer, n outlookNode) string {
			if n.Standby {
				return "standby"
			}
			return span(n.Start.Std())
		}},
		{head: "SLACK", text: func(_ *printer, n outlookNode) string {
			switch {
			case n.Critical:
				return "none"
			case n.Standby:
				return "-"
			}
			return span(n.Slack.Std())
		}},
		{head: "BLAST RADIUS", text: func(_ *printer, n outlookNode) string {
			if n.Blast == 0 {
				return "-"
			}
			return fmt.Sprintf("%d (%s)", n.Blast, counted(n.BlastTasks, "task", "tasks"))
		}},
	},
}

// guess marks a figure that is only assumed.
func guess(s, basis string) string {
	if basis == dag.BasisAssumed {
		return s + "?"
	}
	return s
}

// span writes a time with what matters of it.
func span(d time.Duration) string {
	switch {
	case d >= time.Hour:
		return d.Round(time.Minute).String()
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	default:
		return d.Round(time.Millisecond).String()
	}
}

func (a *app) pipelinePlan() *cobra.Command {
	var (
		asked    bool
		jobs     int
		run      string
		elements int
	)
	cmd := &cobra.Command{
		Use:   "plan FILE|NAME[@VERSION]",
		Short: "Show levels, critical path, width and blast radius",
		Long: `Show what a pipeline costs before it runs: the level of each task, how long the longest way takes and which it is (the
critical path), how many tasks run at one time, and how many tasks cannot start when a task fails for good (its blast
radius). How long tasks take and how many elements maps have is known from the last jobs of the pipeline, if it is named
as registered, or with --history; a list in the definition tells its elements. What nobody knows is assumed and has a
question mark. The times of simulate tasks are declared. The figures are for enough workers.`,
		Example: `  drover pipeline plan pipeline.yaml
  drover pipeline plan dataset-ingestion --jobs 50
  drover pipeline plan pipeline.yaml --run 2m --elements 400 -o json`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completePipelines,
		RunE: func(cmd *cobra.Command, words []string) error {
			if a.curl {
				return usagef("--curl: plan needs no server for a file, and makes several requests for a pipeline")
			}
			assumed, err := drover.ParseDuration(run)
			if err != nil {
				return usagef("--run: %v", err)
			}
			if elements < 0 {
				return usagef("--elements %d: must be 0 or more", elements)
			}
			d, f, n, err := a.forecast(cmd.Context(), words[0], asked, jobs, dag.Assumed{Run: assumed.Std(), Elements: elements})
			if err != nil {
				return err
			}
			return a.printOutlook(outlookOf(d, f, n))
		},
	}
	historyFlags(cmd, &asked, &jobs)
	cmd.Flags().StringVar(&run, "run", "1m", "how long a task runs of which nothing is known")
	cmd.Flags().IntVar(&elements, "elements", 10, "how many elements a map has of which nothing is known")
	return cmd
}

// forecast works out what a definition costs, and from how many jobs that is known.
func (a *app) forecast(ctx context.Context, word string, asked bool, jobs int, assumed dag.Assumed) (definition, dag.Forecast, int, error) {
	d, err := a.definition(ctx, word)
	if err != nil {
		return d, dag.Forecast{}, 0, err
	}
	m, n, err := a.history(ctx, d, asked, jobs)
	if err != nil {
		return d, dag.Forecast{}, 0, err
	}
	if assumed.Declared, err = simulated(d.p); err != nil {
		return d, dag.Forecast{}, 0, err
	}
	return d, d.plan.Forecast(m, assumed), n, nil
}

// simulated returns the times of the tasks that only take time.
func simulated(p *dag.Pipeline) (map[string]time.Duration, error) {
	tasks, err := withs(p)
	if err != nil {
		return nil, err
	}
	out := map[string]time.Duration{}
	for _, t := range tasks {
		if t.Run != builtin.Simulate {
			continue
		}
		if s, err := executor.ParseSimulated(t.With); err == nil { // else expressions give it
			out[t.Name] = s.Time()
		}
	}
	return out, nil
}

func outlookOf(d definition, f dag.Forecast, jobs int) outlook {
	o := outlook{Pipeline: d.plan.Name, Jobs: jobs, Tasks: f.Tasks, Length: drover.Duration(f.Length), Work: drover.Duration(f.Work), Width: f.Width, Widest: f.WidestLevel}
	for _, level := range f.Levels {
		var names []string
		for _, n := range level {
			names = append(names, d.plan.Nodes[n].Name)
		}
		o.Levels = append(o.Levels, names)
	}
	for _, n := range f.Critical {
		o.Critical = append(o.Critical, d.plan.Nodes[n].Name)
	}
	for _, level := range f.Levels {
		for _, n := range level {
			x := f.Nodes[n]
			o.Nodes = append(o.Nodes, outlookNode{d.plan.Nodes[n].Name, x.Level, x.Elements, x.ElementsBasis, drover.Duration(x.Run), x.RunBasis,
				drover.Duration(x.Start), drover.Duration(x.Slack), x.Critical, x.Standby, x.Blast, x.BlastTasks})
		}
	}
	return o
}

func (a *app) printOutlook(o outlook) error {
	p := a.printer()
	if done, err := p.whole(o); done {
		return err
	}
	if p.format == "name" {
		return printList(p, outlookColumns, o.Nodes)
	}
	from := map[string]int{}
	for _, n := range o.Nodes {
		from[n.RunBasis]++
	}
	var bases []string
	for _, b := range []struct{ basis, text string }{
		{dag.BasisHistory, "from the last " + counted(o.Jobs, "job", "jobs")}, {dag.BasisDeclared, "declared"}, {dag.BasisAssumed, "assumed"},
	} {
		if n := from[b.basis]; n > 0 {
			bases = append(bases, fmt.Sprintf("%s for %s", b.text, counted(n, "task", "tasks")))
		}
	}
	most := "-"
	if o.Length > 0 {
		most = fmt.Sprintf("%s; more than %s at one time make no difference", span(o.Work.Std()), counted(o.Width, "worker", "workers"))
	}
	err := p.facts([]fact{
		{name: "PIPELINE", text: o.Pipeline},
		{name: "TASKS", text: fmt.Sprintf("%d, of %d in the definition, on %s", o.Tasks, len(o.Nodes), counted(len(o.Levels), "level", "levels"))},
		{name: "LONGEST WAY", text: span(o.Length.Std()) + ": " + strings.Join(o.Critical, " → ")},
		{name: "WIDTH", text: fmt.Sprintf("%s at one time, on level %d", counted(o.Width, "task", "tasks"), o.Widest)},
		{name: "WORK", text: most},
		{name: "DURATIONS", text: strings.Join(bases, ", ")},
	})
	if err == nil {
		_, err = fmt.Fprintln(a.out)
	}
	if err != nil {
		return err
	}
	return printTable(p, outlookColumns, o.Nodes)
}

func (a *app) pipelineGraph() *cobra.Command {
	var (
		asked    bool
		jobs     int
		as       string
		critical bool
	)
	forms := []string{"svg", "dot", "mermaid"}
	cmd := &cobra.Command{
		Use:   "graph FILE|NAME[@VERSION]",
		Short: "Draw a pipeline as SVG, DOT or Mermaid",
		Long: `Draw a pipeline: boxes are tasks, piles are maps. A solid arrow carries data (the task uses the output), a dashed one
only order. With --critical the longest way stands out, by the history of the pipeline if it is named as registered,
or with --history. An SVG suits light and dark pages and needs nothing else.`,
		Example: `  drover pipeline graph pipeline.yaml > pipeline.svg
  drover pipeline graph pipeline.yaml --as mermaid
  drover pipeline graph dataset-ingestion@3 --as dot --critical | dot -Tpng > pipeline.png`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completePipelines,
		RunE: func(cmd *cobra.Command, words []string) error {
			if a.curl {
				return usagef("--curl: graph needs no server for a file, and makes several requests for a pipeline")
			}
			if !slices.Contains(forms, as) {
				return usagef("--as %q: must be %s", as, strings.Join(forms, ", "))
			}
			if !critical {
				jobs = 0
			}
			d, f, _, err := a.forecast(cmd.Context(), words[0], asked, jobs, dag.Assumed{Run: time.Minute, Elements: 1})
			if err != nil {
				return err
			}
			g := sketch(d.plan)
			if critical {
				markCritical(&g, &f)
			}
			picture := map[string]func(draw.Graph) string{"svg": draw.SVG, "dot": draw.DOT, "mermaid": draw.Mermaid}[as](g)
			_, err = io.WriteString(a.out, picture)
			return err
		},
	}
	historyFlags(cmd, &asked, &jobs)
	cmd.Flags().StringVar(&as, "as", "svg", "svg, dot or mermaid")
	cmd.Flags().BoolVar(&critical, "critical", false, "let the longest way stand out")
	must(cmd.RegisterFlagCompletionFunc("as", cobra.FixedCompletions(forms, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// sketch is the graph of a plan to be drawn.
func sketch(p *dag.Plan) draw.Graph {
	g := draw.Graph{Title: "pipeline " + p.Name}
	for _, n := range p.Nodes {
		note := n.Kind
		if n.Sub != "" {
			note = "pipeline " + n.Sub
		}
		if n.Queue != dag.DefaultQueue {
			note += " · " + n.Queue
		}
		g.Nodes = append(g.Nodes, draw.Node{Title: n.Name, Note: note, Stack: n.Mapped, Aside: n.Dormant})
	}
	for i, n := range p.Nodes {
		if n.Backup >= 0 {
			g.Edges = append(g.Edges, draw.Edge{From: i, To: int(n.Backup), Dashed: true, Label: "backup"})
		}
		if n.Fallback >= 0 {
			g.Edges = append(g.Edges, draw.Edge{From: i, To: int(n.Fallback), Dashed: true, Label: "fallback"})
		}
		if n.Compensation >= 0 {
			g.Edges = append(g.Edges, draw.Edge{From: i, To: int(n.Compensation), Dashed: true, Label: "undo"})
		}
	}
	for _, e := range p.Edges {
		x := draw.Edge{From: int(e.Parent), To: int(e.Child), Dashed: !e.Data}
		if e.Same {
			x.Label = "each"
		}
		g.Edges = append(g.Edges, x)
	}
	return g
}

// markCritical lets the critical path stand out.
func markCritical(g *draw.Graph, f *dag.Forecast) {
	for i, n := range f.Critical {
		g.Nodes[n].Mark = true
		for k := range g.Edges {
			if i > 0 && g.Edges[k].From == int(f.Critical[i-1]) && g.Edges[k].To == int(n) {
				g.Edges[k].Mark = true
			}
		}
	}
}

func (a *app) pipelineDiff() *cobra.Command {
	var code bool
	cmd := &cobra.Command{
		Use:   "diff BEFORE AFTER",
		Short: "Compare two definitions: tasks, fields, dependencies",
		Long: `Compare two definitions, each a FILE or a registered NAME[@VERSION]: tasks added, removed and changed, field by field,
and the dependencies that came and went. The way they are written makes no difference. A job keeps the version it
started with, whatever is registered later.`,
		Example: `  drover pipeline diff dataset-ingestion@2 dataset-ingestion@3
  drover pipeline diff dataset-ingestion pipeline.yaml
  drover pipeline diff old.yaml new.yaml --exit-code -o json`,
		Args:              args(cobra.ExactArgs(2)),
		ValidArgsFunction: a.completePipelines,
		RunE: func(cmd *cobra.Command, words []string) error {
			if a.curl {
				return usagef("--curl: diff needs no server for files, and makes two requests for pipelines")
			}
			var ds [2]definition
			for i, w := range words {
				var err error
				if ds[i], err = a.definition(cmd.Context(), w); err != nil {
					return err
				}
			}
			diff, err := dag.Diff(ds[0].p, ds[1].p)
			if err != nil {
				return err
			}
			if err := a.printDiff(diff); err != nil {
				return err
			}
			if code && !diff.Empty() {
				return &exit{code: exitError}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&code, "exit-code", false, "exit with status 1 when they differ")
	return cmd
}

func (a *app) printDiff(d dag.Difference) error {
	p := a.printer()
	if done, err := p.whole(d); done {
		return err
	}
	if p.format == "name" {
		for _, list := range [][]string{d.Added, d.Removed} {
			for _, n := range list {
				if _, err := fmt.Fprintln(p.w, n); err != nil {
					return err
				}
			}
		}
		for _, t := range d.Changed {
			if _, err := fmt.Fprintln(p.w, t.Task); err != nil {
				return err
			}
		}
		return nil
	}
	var b strings.Builder
	line := func(paint, format string, args ...any) {
		b.WriteString(p.paint(paint, clean(fmt.Sprintf(format, args...), true)) + "\n")
	}
	fields := func(list []dag.FieldChange) {
		for _, f := range list {
			line("", "    %s: %s → %s", f.Field, shownValue(f.Before), shownValue(f.After))
		}
	}
	if len(d.Fields) > 0 {
		line("", "~ pipeline")
		fields(d.Fields)
	}
	for _, n := range d.Added {
		line(green, "+ task %s", n)
	}
	for _, n := range d.Removed {
		line(red, "- task %s", n)
	}
	for _, t := range d.Changed {
		line("", "~ task %s", t.Task)
		fields(t.Fields)
	}
	for _, e := range d.EdgesAdded {
		line(green, "+ %s → %s (%s)", e.From, e.To, e.Kind)
	}
	for _, e := range d.EdgesRemoved {
		line(red, "- %s → %s (%s)", e.From, e.To, e.Kind)
	}
	if d.Reordered {
		line("", "~ the order of the tasks")
	}
	if d.Empty() {
		line("", "no difference")
	}
	_, err := io.WriteString(p.w, b.String())
	return err
}

// shownValue writes a field's value; one that is not there is a dash.
func shownValue(v json.RawMessage) string {
	if v == nil {
		return "-"
	}
	return clip(string(v), 120)
}
