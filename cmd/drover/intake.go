package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
)

func (a *app) intakeCommand() *cobra.Command {
	return a.noun("intake", "Say from when on too much waits, and what becomes of new jobs then", true,
		a.intakeList(), a.intakeShow(), a.intakeSet(), a.intakeDelete())
}

var intakeColumns = columns[drover.IntakeRule]{
	name: func(x drover.IntakeRule) string { return x.Name },
	list: []column[drover.IntakeRule]{
		{head: "RULE", text: func(_ *printer, x drover.IntakeRule) string { return x.Name }},
		{head: "OF", text: func(_ *printer, x drover.IntakeRule) string { return rulesOver(x) }},
		{head: "BOUND", text: func(_ *printer, x drover.IntakeRule) string { return boundText(x) }},
		{head: "NOW", text: func(_ *printer, x drover.IntakeRule) string { return measureText(x.Measured) }},
		{head: "THEN", text: func(_ *printer, x drover.IntakeRule) string { return thenText(x.Then, x.Class, x.DivertTo) }},
		{head: "FIRING", text: func(p *printer, x drover.IntakeRule) string {
			if !x.Firing {
				return ""
			}
			return "for " + p.age(x.Since)
		}, paint: func(drover.IntakeRule) string { return yellow }},
	},
	detail: func(p *printer, x drover.IntakeRule) []fact {
		facts := []fact{
			{name: "RULE", text: x.Name},
			{name: "OF", text: rulesOver(x)},
			{name: "BOUND", text: boundText(x)},
			{name: "NOW", text: measureText(x.Measured)},
			{name: "THEN", text: thenText(x.Then, x.Class, x.DivertTo)},
			{name: "VERSION", text: strconv.Itoa(x.Version)},
		}
		if x.Firing {
			since := ""
			if !x.Since.IsZero() {
				since = " since " + p.moment(x.Since)
			}
			facts = append(facts, fact{name: "FIRING", text: x.Why + since, paint: yellow})
		}
		for _, c := range x.Changes {
			by := ""
			if c.Actor != "" {
				by = " by " + c.Actor
			}
			facts = append(facts, fact{name: "CHANGE", text: strings.TrimSpace(fmt.Sprintf("%s %s%s %s", p.moment(c.At), c.Action, by, c.Reason))})
		}
		return facts
	},
}

func rulesOver(x drover.IntakeRule) string {
	s := "tasks"
	if x.Kind != "" {
		s += " of kind " + x.Kind
	}
	if x.Queue != "" {
		s += " in queue " + x.Queue
	}
	if x.Shared {
		return s + ", of every tenant"
	}
	return s
}

func boundText(x drover.IntakeRule) string {
	var words []string
	if x.MaxWaiting > 0 {
		words = append(words, counted(int(x.MaxWaiting), "waiting", "waiting"))
	}
	if x.MaxAge > 0 {
		words = append(words, "the oldest "+length(x.MaxAge.Std()))
	}
	if x.MaxWait > 0 {
		words = append(words, "a wait of "+length(x.MaxWait.Std()))
	}
	return strings.Join(words, ", ")
}

func measureText(m *drover.IntakeMeasure) string {
	if m == nil {
		return ""
	}
	s := counted(int(m.Waiting), "waiting", "waiting")
	if m.Age > 0 {
		s += ", the oldest " + length(m.Age.Std())
	}
	if m.Wait != nil {
		s += ", a wait of " + length(m.Wait.Std())
	}
	return s
}

func thenText(then string, class drover.Class, to string) string {
	switch then {
	case drover.IntakeShed:
		return "shed class " + class.String()
	case drover.IntakeDivert:
		return "divert to " + to
	}
	return then
}

func (a *app) intakeList() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the rules of intake, and how things stand",
		Example: "  drover intake list\n  drover intake list -o json",
		Args:    args(cobra.NoArgs),
		RunE: a.ask(func(ctx context.Context, c *client.Client, _ []string) error {
			list, err := c.IntakeRules(ctx)
			if err != nil {
				return err
			}
			return printList(a.printer(), intakeColumns, list)
		}),
	}
}

func (a *app) intakeShow() *cobra.Command {
	return &cobra.Command{
		Use:     "show RULE",
		Short:   "Show a rule of intake, who changed it, and when it fired",
		Example: "  drover intake show gpu-backlog",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			x, err := c.IntakeRule(ctx, words[0])
			if err != nil {
				return err
			}
			return printOne(a.printer(), intakeColumns, x)
		}),
	}
}

func (a *app) intakeSet() *cobra.Command {
	var n drover.NewIntakeRule
	var x client.LimitChange
	var age, wait, class string
	cmd := &cobra.Command{
		Use:   "set RULE --then (throttle | shed | divert)",
		Short: "Make a rule of intake, or change it",
		Example: `  drover intake set gpu-backlog --queue gpu --max-waiting 10000 --then throttle
  drover intake set gpu-busy --queue gpu --max-wait 30m --then shed --class batch
  drover intake set encode-late --queue encode --max-age 10m --then divert --divert-to encode-spare
  drover intake set everything --shared --max-waiting 100000 --then throttle --dry-run`,
		Args: args(cobra.ExactArgs(1)),
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			for flag, p := range map[string]struct {
				text string
				to   *drover.Duration
			}{"max-age": {age, &n.MaxAge}, "max-wait": {wait, &n.MaxWait}} {
				if p.text == "" {
					continue
				}
				d, err := drover.ParseDuration(p.text)
				if err != nil {
					return usagef("--%s: %v", flag, err)
				}
				*p.to = d
			}
			if class != "" {
				var err error
				if n.Class, err = parsed(drover.ParseClass(class)); err != nil {
					return err
				}
			}
			r, err := c.SetIntakeRule(ctx, words[0], n, x)
			if err != nil {
				return err
			}
			return printOne(a.printer(), intakeColumns, r)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&n.Queue, "queue", "", "only tasks of this queue")
	f.StringVar(&n.Kind, "kind", "", "only tasks of this kind")
	f.BoolVar(&n.Shared, "shared", false, "of all tenants together; otherwise of the tenant's own tasks")
	f.Int64Var(&n.MaxWaiting, "max-waiting", 0, "how many tasks may wait, up to 100000")
	f.StringVar(&age, "max-age", "", "how long the oldest may have waited, such as 10m")
	f.StringVar(&wait, "max-wait", "", "how long one that comes now may wait, by the forecast for the queue")
	f.StringVar(&n.Then, "then", "", "what becomes of new jobs: throttle refuses them, shed those of a class, divert sends them to another queue")
	f.StringVar(&class, "class", "", "the first class that is shed (default batch)")
	f.StringVar(&n.DivertTo, "divert-to", "", "queue that jobs are diverted to")
	f.BoolVar(&x.New, "new", false, "only if there is none yet")
	limitChangeFlags(cmd, &x, &n.Reason)
	must(cmd.RegisterFlagCompletionFunc("queue", a.completeQueues))
	must(cmd.RegisterFlagCompletionFunc("divert-to", a.completeQueues))
	must(cmd.RegisterFlagCompletionFunc("then", cobra.FixedCompletions(completions([]string{drover.IntakeThrottle, drover.IntakeShed, drover.IntakeDivert}), cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func (a *app) intakeDelete() *cobra.Command {
	var x client.LimitChange
	cmd := &cobra.Command{
		Use:     "delete RULE",
		Short:   "Remove a rule of intake; what it refused is taken again",
		Example: "  drover intake delete gpu-backlog",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			r, err := c.DeleteIntakeRule(ctx, words[0], x)
			if err != nil || !x.DryRun {
				return err
			}
			return printOne(a.printer(), intakeColumns, r)
		}),
	}
	limitChangeFlags(cmd, &x, &x.Reason)
	return cmd
}
