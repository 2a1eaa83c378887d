package main

import (
	"context"
	"errors"
	"slices"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/protocol"
)

func (a *app) dlqCommand() *cobra.Command {
	return a.noun("dlq", "Look at tasks that ended badly and wait for a person, and replay them", true,
		a.dlqList(), a.taskGet("show", "Show a dead letter", "dlq"), a.dlqReplay())
}

// deadLetters selects dead letters, on this side: the server has no filter for them.
type deadLetters struct {
	kind, job string
	status    []string
}

func (d *deadLetters) flags(cmd *cobra.Command, a *app) {
	cmd.Flags().StringVar(&d.kind, "kind", "", "only of this kind of task")
	cmd.Flags().StringVar(&d.job, "job", "", "only of this job")
	cmd.Flags().StringSliceVar(&d.status, "status", nil, "only DEAD_LETTER (attempts used up) or FAILED (permanent error)")
	must(cmd.RegisterFlagCompletionFunc("job", a.completeJobs))
}

// fetch returns up to limit of them; zero is all.
func (d *deadLetters) fetch(ctx context.Context, c *client.Client, limit int) (found []drover.Task, more bool, err error) {
	var job drover.JobID
	if d.job != "" {
		if job, err = jobID(ctx, c, d.job); err != nil {
			return nil, false, err
		}
	}
	statuses, err := parseStatuses(d.status)
	if err != nil {
		return nil, false, err
	}
	page := func(cursor string) (protocol.Page[drover.Task], error) {
		return c.DeadLetters(ctx, client.List{Limit: maxPage, Cursor: cursor})
	}
	for t, err := range client.Items(page) {
		if err != nil {
			return nil, false, err
		}
		if d.kind != "" && t.Kind != d.kind || !job.IsZero() && t.JobID != job || len(statuses) > 0 && !slices.Contains(statuses, t.Status) {
			continue
		}
		if limit > 0 && len(found) == limit {
			return found, true, nil
		}
		found = append(found, t)
	}
	return found, false, nil
}

func (a *app) dlqList() *cobra.Command {
	var (
		which deadLetters
		limit int
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, newest first",
		Long:  "List dead letters, newest first: tasks that ended DEAD_LETTER, as their attempts are used up, or FAILED, by a permanent error, and were not replayed.",
		Example: `  drover dlq list
  drover dlq list --kind features -o wide
  drover dlq list --job @latest -o name`,
		Args: args(cobra.NoArgs),
		RunE: a.ask(func(ctx context.Context, c *client.Client, _ []string) error {
			if limit < 0 {
				return usagef("--limit %d: must not be negative", limit)
			}
			found, more, err := which.fetch(ctx, c, limit)
			if err != nil {
				return err
			}
			if err := printList(a.printer(), taskColumns, found); err != nil {
				return err
			}
			if more {
				a.note("drover: there are more than these %d; --limit 0 shows all", len(found))
			}
			return nil
		}),
	}
	which.flags(cmd, a)
	limitFlag(cmd, &limit)
	return cmd
}

func (a *app) dlqReplay() *cobra.Command {
	var (
		which       deadLetters
		input       string
		r           client.Replay
		all, dryRun bool
	)
	cmd := &cobra.Command{
		Use:   "replay (TASK… | --all)",
		Short: "Run dead letters again, as new generations",
		Long: `Run dead letters again, as new generations with all their attempts; their jobs are reopened. With --all every
dead letter that --kind, --job and --status select; --dry-run lists them and does nothing. One that cannot be replayed
does not keep the others back; the command then returns 1.`,
		Example: `  drover dlq replay task_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C
  drover dlq replay task_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C --input @fixed.json
  drover dlq replay --all --kind features --dry-run
  drover dlq replay --all --job @latest --reason "model server is back"`,
		ValidArgsFunction: a.completeTasks(true),
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) (err error) {
			switch {
			case all == (len(words) > 0):
				return usagef("say which: drover dlq replay TASK, or drover dlq replay --all")
			case !all && (which.kind != "" || which.job != "" || len(which.status) > 0 || dryRun):
				return usagef("--kind, --job, --status and --dry-run go with --all")
			case len(words) != 1 && (input != "" || r.RequestID != ""):
				return usagef("--input and --request-id are for a single task")
			}
			if r.Input, err = a.readInput("input", input); err != nil {
				return err
			}
			var todo []drover.TaskID
			if all {
				found, _, err := which.fetch(ctx, c, 0)
				if err != nil {
					return err
				}
				if dryRun {
					a.note("drover: would replay %d dead letters", len(found))
					return printList(a.printer(), taskColumns, found)
				}
				for _, t := range found {
					todo = append(todo, t.ID)
				}
			}
			for _, w := range words {
				id, err := parsed(drover.ParseTaskID(w))
				if err != nil {
					return err
				}
				todo = append(todo, id)
			}
			var done []drover.Task
			var failed int
			for _, id := range todo {
				t, err := c.Replay(ctx, id, r)
				if err != nil {
					if len(todo) == 1 || ctx.Err() != nil {
						return err
					}
					failed++
					a.note("drover: %s: %s", id, clean(err.Error(), true))
					continue
				}
				done = append(done, t)
			}
			if all {
				if err := printList(a.printer(), taskColumns, done); err != nil {
					return err
				}
			} else if err := a.replayed(done...); err != nil {
				return err
			}
			if failed > 0 {
				return &exit{code: exitError, err: errors.New("not all could be replayed")}
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "every dead letter, or those that --kind, --job and --status select")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "list what --all would replay, and do nothing")
	which.flags(cmd, a)
	replayFlags(cmd, &input, &r)
	return cmd
}
