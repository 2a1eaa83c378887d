package main

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
)

func (a *app) circuitCommand() *cobra.Command {
	return a.noun("circuit", "Look at circuits, which stop the tasks of what does not work, and open and close them", true,
		a.circuitList(), a.circuitShow(), a.circuitSet(), a.circuitOpen(), a.circuitClose())
}

var circuitColumns = columns[drover.Circuit]{
	name: func(c drover.Circuit) string { return c.Name },
	list: []column[drover.Circuit]{
		{head: "CIRCUIT", text: func(_ *printer, c drover.Circuit) string { return c.Name }},
		{head: "STATE", text: func(_ *printer, c drover.Circuit) string { return c.State }, paint: colourOfCircuit},
		{head: "SINCE", text: func(p *printer, c drover.Circuit) string { return p.age(c.Since) }},
		{head: "NEXT PROBE", text: func(p *printer, c drover.Circuit) string { return nextProbe(p, c) }},
		{head: "FAILURES", text: func(_ *printer, c drover.Circuit) string { return strconv.Itoa(c.Failures) }},
		{head: "REASON", text: func(_ *printer, c drover.Circuit) string { return c.Reason }},
	},
	detail: func(p *printer, c drover.Circuit) []fact {
		facts := []fact{
			{name: "CIRCUIT", text: c.Name},
			{name: "STATE", text: c.State, paint: colourOfCircuit(c)},
			{name: "SINCE", text: p.moment(c.Since)},
			{name: "NEXT PROBE", text: nextProbe(p, c)},
			{name: "REASON", text: c.Reason},
			{name: "FAILURES", text: strconv.Itoa(c.Failures) + " of " + strconv.Itoa(c.Policy.Failures) + " within " + length(c.Policy.Window.Std())},
			{name: "OPENINGS", text: strconv.Itoa(c.Openings)},
			{name: "PAUSE", text: length(c.Policy.Pause.Std()) + " to " + length(c.Policy.MaxPause.Std())},
		}
		if !c.Probe.IsZero() {
			facts = append(facts, fact{name: "PROBE", text: c.Probe.String()})
		}
		return facts
	},
}

func nextProbe(p *printer, c drover.Circuit) string {
	if c.ByHand {
		return "when it is closed by hand"
	}
	return p.moment(c.NextProbeAt)
}

func colourOfCircuit(c drover.Circuit) string {
	switch c.State {
	case drover.CircuitOpen:
		return red
	case drover.CircuitProbing, drover.CircuitRecovering:
		return yellow
	}
	return green
}

func (a *app) circuitList() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List circuits",
		Example: "  drover circuit list\n  drover circuit list -o json",
		Args:    args(cobra.NoArgs),
		RunE: a.ask(func(ctx context.Context, c *client.Client, _ []string) error {
			list, err := c.Circuits(ctx)
			if err != nil {
				return err
			}
			return printList(a.printer(), circuitColumns, list)
		}),
	}
}

// onCircuit is a command that names one circuit.
func (a *app) onCircuit(use, short, example string, do func(ctx context.Context, c *client.Client, name string) (drover.Circuit, error)) *cobra.Command {
	return &cobra.Command{
		Use:     use + " CIRCUIT",
		Short:   short,
		Example: example,
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			got, err := do(ctx, c, words[0])
			if err != nil {
				return err
			}
			return printOne(a.printer(), circuitColumns, got)
		}),
	}
}

func (a *app) circuitShow() *cobra.Command {
	return a.onCircuit("show", "Show a circuit", "  drover circuit show payment-api",
		func(ctx context.Context, c *client.Client, name string) (drover.Circuit, error) {
			return c.Circuit(ctx, name)
		})
}

func (a *app) circuitSet() *cobra.Command {
	var failures int
	var window, pause, longest string
	cmd := a.onCircuit("set", "Set when a circuit opens and how long it pauses; what is not named is the default",
		"  drover circuit set payment-api --failures 10 --window 30s --pause 1m --max-pause 15m",
		func(ctx context.Context, c *client.Client, name string) (drover.Circuit, error) {
			p := drover.CircuitPolicy{Failures: failures}
			for text, to := range map[*string]*drover.Duration{&window: &p.Window, &pause: &p.Pause, &longest: &p.MaxPause} {
				if *text == "" {
					continue
				}
				var err error
				if *to, err = parsed(drover.ParseDuration(*text)); err != nil {
					return drover.Circuit{}, err
				}
			}
			return c.SetCircuit(ctx, name, p)
		})
	f := cmd.Flags()
	f.IntVar(&failures, "failures", 0, "failures in a row that open it (default 5)")
	f.StringVar(&window, "window", "", "time within which they come (default 1m)")
	f.StringVar(&pause, "pause", "", "time until one task tries (default 10s); it doubles with each opening in a row")
	f.StringVar(&longest, "max-pause", "", "the longest pause (default 5m)")
	return cmd
}

func (a *app) circuitOpen() *cobra.Command {
	var reason string
	cmd := a.onCircuit("open", "Let no task of a circuit start until it is closed", "  drover circuit open payment-api --reason maintenance",
		func(ctx context.Context, c *client.Client, name string) (drover.Circuit, error) {
			return c.OpenCircuit(ctx, name, reason)
		})
	cmd.Flags().StringVar(&reason, "reason", "", "why, for those who wait")
	return cmd
}

func (a *app) circuitClose() *cobra.Command {
	return a.onCircuit("close", "Let the tasks of a circuit go, little by little", "  drover circuit close payment-api",
		func(ctx context.Context, c *client.Client, name string) (drover.Circuit, error) {
			return c.CloseCircuit(ctx, name)
		})
}
