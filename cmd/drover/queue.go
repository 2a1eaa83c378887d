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

func (a *app) queueCommand() *cobra.Command {
	return a.noun("queue", "Look at queues: what waits, what runs, who works", true, a.queueList(), a.queueGet(), a.queueStats(),
		a.queueState("pause", "Let nothing of a queue start; what runs goes on", (*client.Client).PauseQueue),
		a.queueState("resume", "Let tasks of a paused queue start, and a draining one take jobs again", (*client.Client).ResumeQueue),
		a.queueState("drain", "Let a queue take no new jobs; what is in it runs", (*client.Client).DrainQueue),
		a.queueReserve())
}

var queueColumns = columns[drover.Queue]{
	name: func(q drover.Queue) string { return q.Name },
	list: []column[drover.Queue]{
		{head: "QUEUE", text: func(_ *printer, q drover.Queue) string { return q.Name }},
		{head: "STATE", text: func(_ *printer, q drover.Queue) string { return stateOf(q) }, paint: func(q drover.Queue) string {
			if q.Paused || q.Draining {
				return yellow
			}
			return ""
		}},
		{head: "READY", text: func(_ *printer, q drover.Queue) string { return countOf(q, q.Ready) }},
		{head: "QUEUED", text: func(_ *printer, q drover.Queue) string { return countOf(q, q.Queued) }},
		{head: "RUNNING", text: func(_ *printer, q drover.Queue) string { return countOf(q, q.Running) }},
		{head: "DELAYED", text: func(_ *printer, q drover.Queue) string { return countOf(q, q.Delayed) }},
		{head: "OLDEST", text: func(_ *printer, q drover.Queue) string {
			if q.OldestAge == 0 {
				return ""
			}
			return length(q.OldestAge.Std())
		}},
		{head: "WORKERS", text: func(_ *printer, q drover.Queue) string { return strconv.Itoa(q.Workers) }, paint: func(q drover.Queue) string {
			if q.Workers == 0 && q.Ready+q.Queued > 0 {
				return red
			}
			return ""
		}},
		{head: "SLOTS", text: func(_ *printer, q drover.Queue) string { return strconv.Itoa(q.Slots) }},
		{head: "KEPT", wide: true, text: func(_ *printer, q drover.Queue) string {
			var kept []string
			for _, r := range q.Reserves {
				kept = append(kept, fmt.Sprintf("%s=%d%%", r.Class, r.Percent))
			}
			return strings.Join(kept, " ")
		}},
		{head: "REASON", wide: true, text: func(_ *printer, q drover.Queue) string { return q.Reason }},
		{head: "NO WORKER FOR", text: func(_ *printer, q drover.Queue) string { return strings.Join(q.NoWorkerFor, ",") }, paint: func(drover.Queue) string { return red }},
	},
}

func stateOf(q drover.Queue) string {
	switch {
	case q.Paused:
		return "paused"
	case q.Draining:
		return "draining"
	}
	return ""
}

// countOf marks a count that stopped at its cap.
func countOf(q drover.Queue, n int) string {
	if q.Approximate && n >= 100_000 {
		return fmt.Sprintf("%d+", n)
	}
	return strconv.Itoa(n)
}

func (a *app) queueList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List queues",
		Example: `  drover queue list
  drover queue list -o json`,
		Args: args(cobra.NoArgs),
		RunE: a.ask(func(ctx context.Context, c *client.Client, _ []string) error {
			queues, err := c.Queues(ctx)
			if err != nil {
				return err
			}
			return printList(a.printer(), queueColumns, queues)
		}),
	}
}

func (a *app) queueGet() *cobra.Command {
	return &cobra.Command{
		Use:               "get QUEUE",
		Short:             "Show a queue",
		Example:           "  drover queue get default\n  drover queue get gpu -o json",
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeQueues,
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			q, err := c.Queue(ctx, words[0])
			if err != nil {
				return err
			}
			return printOne(a.printer(), queueColumns, q)
		}),
	}
}

// queueState is a command that changes the state of a queue.
func (a *app) queueState(verb, short string, do func(c *client.Client, ctx context.Context, name, reason string) (drover.Queue, error)) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:               verb + " QUEUE",
		Short:             short,
		Example:           "  drover queue " + verb + " gpu --reason repairs",
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeQueues,
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			q, err := do(c, ctx, words[0], reason)
			if err != nil {
				return err
			}
			return printOne(a.printer(), queueColumns, q)
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why; kept with the change")
	return cmd
}

func (a *app) queueReserve() *cobra.Command {
	var reason string
	var none bool
	cmd := &cobra.Command{
		Use:   "reserve QUEUE [CLASS=PERCENT]...",
		Short: "Keep a share of a queue's slots for a class and those before it",
		Long:  "The shares take the place of those before. One for a later class counts those of the classes before it.",
		Example: `  drover queue reserve gpu interactive=25%
  drover queue reserve gpu interactive=20% urgent=50% --reason "demo week"
  drover queue reserve gpu --none`,
		Args:              args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completeQueues,
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			list := []drover.Reserve{}
			for _, w := range words[1:] {
				name, share, ok := strings.Cut(w, "=")
				class, err := drover.ParseClass(name)
				percent, bad := strconv.Atoi(strings.TrimSuffix(share, "%"))
				switch {
				case !ok || bad != nil:
					return usagef("%q is no share of a class; write it as interactive=25%%", w)
				case err != nil:
					return usagef("%s", err)
				}
				list = append(list, drover.Reserve{Class: class, Percent: percent})
			}
			if none != (len(list) == 0) {
				return usagef("say what is kept for which class, as in interactive=25%%, or --none")
			}
			q, err := c.ReserveQueue(ctx, words[0], list, reason)
			if err != nil {
				return err
			}
			return printOne(a.printer(), queueColumns, q)
		}),
	}
	cmd.Flags().BoolVar(&none, "none", false, "keep nothing")
	cmd.Flags().StringVar(&reason, "reason", "", "why; kept with the change")
	return cmd
}
