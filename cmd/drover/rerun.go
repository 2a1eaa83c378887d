package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
)

var rerunColumns = columns[drover.RerunTask]{
	name: func(t drover.RerunTask) string { return rerunLabel(t) },
	list: []column[drover.RerunTask]{
		{head: "TASK", text: func(_ *printer, t drover.RerunTask) string { return rerunLabel(t) }},
		{head: "WAS", text: func(_ *printer, t drover.RerunTask) string {
			if t.Was == 0 {
				return ""
			}
			return t.Was.String()
		}, paint: func(t drover.RerunTask) string { return colourOf(t.Was) }},
		{head: "DOES", text: func(_ *printer, t drover.RerunTask) string { return string(t.Does) }, paint: func(t drover.RerunTask) string { return colourOfRerun(t.Does) }},
		{head: "WHY", text: func(_ *printer, t drover.RerunTask) string { return t.Why }},
	},
}

// rerunLabel reads "extract", "extract[3]" or "extract[0-19]".
func rerunLabel(t drover.RerunTask) string {
	switch {
	case t.First != t.Last:
		return fmt.Sprintf("%s[%d-%d]", t.Task, t.First, t.Last)
	case t.Mapped && t.First >= 0:
		return fmt.Sprintf("%s[%d]", t.Task, t.First)
	}
	return t.Task
}

func colourOfRerun(d drover.RerunDoes) string {
	switch d {
	case drover.RerunRuns, drover.RerunExpands:
		return cyan
	case drover.RerunReused:
		return green
	case drover.RerunMayReuse:
		return yellow
	default:
		return grey
	}
}

// jobRerun runs a branch of a job again, or all of it.
func (a *app) jobRerun() *cobra.Command {
	var (
		input string
		dry   bool
		r     client.Rerun
	)
	cmd := &cobra.Command{
		Use:   "rerun JOB (--from TASK… | --failed | --whole)",
		Short: "Run a branch of a job again, or all of it",
		Long: `Run tasks of a job again, each as a new generation: those that --from names, those that --failed finds, or all
(--whole), and whatever stands below them; a map below expands again. A finished job is opened again as its next
run, and what its failure had cut off goes on. --dry-run says of every task what would become of it, and why.`,
		Example: `  drover job rerun @latest --failed
  drover job rerun @latest --from extract --dry-run
  drover job rerun job_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C --from 'infer[3]' --input @fixed.json --reason "wrong bucket"
  drover job rerun @latest --whole --fresh`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeJobs,
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) (err error) {
			ways := 0
			for _, set := range []bool{len(r.From) > 0, r.Failed, r.Whole} {
				if set {
					ways++
				}
			}
			if ways != 1 {
				return usagef("say what runs again by exactly one of --from, --failed and --whole")
			}
			id, err := jobID(ctx, c, words[0])
			if err != nil {
				return err
			}
			if r.Input, err = a.readInput("input", input); err != nil {
				return err
			}
			do := c.Rerun
			if dry {
				do = c.RerunPlan
			}
			out, err := do(ctx, id, r)
			if err != nil {
				return err
			}
			return a.reran(out)
		}),
	}
	cmd.Flags().StringArrayVar(&r.From, "from", nil, "a task, with whatever stands below it: its name, such as extract or extract[3], or its id; may be repeated")
	cmd.Flags().BoolVar(&r.Failed, "failed", false, "the tasks whose failure nothing has made good, and those that a cancel ended")
	cmd.Flags().BoolVar(&r.Whole, "whole", false, "all tasks")
	cmd.Flags().BoolVar(&r.Fresh, "fresh", false, "run tasks with a cache though their result is there")
	cmd.Flags().StringVar(&input, "input", "", "run the one task of --from with this input: JSON, @FILE, or - for standard input")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "say what would become of every task, and why, and do nothing")
	cmd.Flags().StringVar(&r.Reason, "reason", "", "why, for the record")
	cmd.Flags().StringVar(&r.RequestID, "request-id", "", "repeating the command with this id within 24 h does nothing more (default: one of its own)")
	return cmd
}

// reran prints what a rerun does.
func (a *app) reran(out drover.Rerun) error {
	p := a.printer()
	if done, err := p.whole(out); done || err != nil {
		return err
	}
	switch {
	case out.Repeated:
		a.note("drover: that was done before, in run %d of %s or an earlier one", out.Run, out.JobID)
		return nil
	case out.DryRun:
		a.note("drover: nothing was done; this would be run %d of %s", out.Run, out.JobID)
	default:
		a.note("drover: run %d of %s", out.Run, out.JobID)
	}
	return printTable(p, rerunColumns, out.Tasks)
}

var markStatuses = []string{drover.Succeeded.String(), drover.Failed.String(), drover.Skipped.String()}

// taskMark ends a task by hand.
func (a *app) taskMark() *cobra.Command {
	var (
		status, output, job string
		m                   client.Mark
	)
	cmd := &cobra.Command{
		Use:   "mark TASK --status STATUS --reason WHY",
		Short: "Say how a task has ended",
		Long: `Say how a task has ended: SUCCEEDED, with its output, FAILED or SKIPPED. Its job goes on as if it had ended so. What a
worker that has the task reports later is refused. A finished task gets a new generation, and a finished job is
opened again; what has run below stays as it is (drover job rerun --from runs that again).`,
		Example: `  drover task mark --job @latest judge --status SUCCEEDED --output '{"passed":true}' --reason "checked by hand"
  drover task mark task_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C --status SKIPPED --reason "this region is not needed"`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeTasks(false),
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) (err error) {
			if !slices.Contains(markStatuses, strings.ToUpper(status)) {
				return usagef("--status is %q; it must be SUCCEEDED, FAILED or SKIPPED", status)
			}
			if err := m.Status.UnmarshalText([]byte(strings.ToUpper(status))); err != nil {
				return err
			}
			if m.Reason == "" {
				return usagef("--reason is missing; say why, for the record")
			}
			id, err := taskID(ctx, c, words[0], job)
			if err != nil {
				return err
			}
			if m.Output, err = a.readInput("output", output); err != nil {
				return err
			}
			t, err := c.Mark(ctx, id, m)
			if err != nil {
				return err
			}
			return a.replayed(t)
		}),
	}
	cmd.Flags().StringVar(&status, "status", "", "SUCCEEDED, FAILED or SKIPPED")
	cmd.Flags().StringVar(&output, "output", "", "the output of a success: JSON, @FILE, or - for standard input")
	cmd.Flags().StringVar(&m.Reason, "reason", "", "why, for the record; it must be there")
	cmd.Flags().StringVar(&m.RequestID, "request-id", "", "repeating the command with this id within 24 h does nothing more (default: one of its own)")
	must(cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(completions(markStatuses), cobra.ShellCompDirectiveNoFileComp)))
	a.ofJobFlag(cmd, &job)
	return cmd
}
