package main

import (
	"math"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/wfcommons"
)

func (a *app) pipelineImport() *cobra.Command {
	var (
		o       wfcommons.Options
		unknown string
	)
	cmd := &cobra.Command{
		Use:   "import wfcommons FILE",
		Short: "Make a pipeline of a recorded scientific workflow",
		Long: `Make a pipeline of a workflow that was recorded elsewhere: wfcommons is the WfFormat of the WfCommons project, of which
the versions 1.4, 1.5 and 1.6 are read. Its tasks become tasks of the kind simulate, which sleep for the recorded times
(with --compute they compute for as much of it as was recorded), multiplied by --scale: for tests, and for plans. The
definition goes to standard output; what of the workflow it does not have is said on standard error. The workers of
"drover dev" run it, and those of "drover worker run --simulate".`,
		Example: `  drover pipeline import wfcommons montage.json > montage.yaml
  drover pipeline import wfcommons montage.json --scale 0.01 | drover pipeline apply -
  drover pipeline import wfcommons montage.json | drover pipeline plan -`,
		Args:      args(cobra.ExactArgs(2)),
		ValidArgs: []string{"wfcommons"},
		RunE: func(_ *cobra.Command, words []string) error {
			if a.curl {
				return usagef("--curl: import asks no server")
			}
			if words[0] != "wfcommons" {
				return usagef("%q cannot be imported; it must be wfcommons", words[0])
			}
			if !(o.Scale > 0) || math.IsInf(o.Scale, 0) {
				return usagef("--scale %g: must be more than 0", o.Scale)
			}
			if o.Name != "" && !dag.ValidName(o.Name) {
				return usagef("--name %q: use 1 to 63 lower-case letters, digits, _ and -, beginning with a letter", o.Name)
			}
			d, err := drover.ParseDuration(unknown)
			if err != nil {
				return usagef("--unknown: %v", err)
			}
			o.Unknown = d.Std()
			src, err := a.readFile(words[1])
			if err != nil {
				return err
			}
			got, err := wfcommons.Convert(src, o)
			if err != nil {
				return inFileNamed(words[1], err)
			}
			p, err := dag.Parse(got.Name+".yaml", got.Definition)
			if err != nil {
				return err
			}
			plan, err := p.Compile()
			if err != nil {
				return err
			}
			declared, err := simulated(p)
			if err != nil {
				return err
			}
			if _, err := a.out.Write(got.Definition); err != nil {
				return err
			}
			f := plan.Forecast(nil, dag.Assumed{Declared: declared})
			recorded := "no makespan was recorded"
			if got.Makespan > 0 {
				recorded = "the recorded makespan, scaled, is " + span(got.Makespan)
			}
			a.note("drover: %s: %s, %s of work, at least %s; %s", got.Name, counted(got.Tasks, "task", "tasks"), span(f.Work), span(f.Length), recorded)
			for _, l := range got.Lost {
				a.note("drover: not carried over: %s", clean(l, true))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&o.Name, "name", "", "the pipeline's name (default: the workflow's)")
	cmd.Flags().Float64Var(&o.Scale, "scale", 1, "what the recorded times are multiplied by")
	cmd.Flags().BoolVar(&o.Compute, "compute", false, "compute instead of only sleeping")
	cmd.Flags().StringVar(&o.Queue, "queue", "", "the queue that the tasks wait in")
	cmd.Flags().StringVar(&unknown, "unknown", "1s", "the time of tasks of which none is recorded; it is not scaled")
	return cmd
}
