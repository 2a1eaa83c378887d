package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/protocol"
)

func (a *app) taskCommand() *cobra.Command {
	return a.noun("task", "Look at the tasks of jobs, replay them, and mark them", true,
		a.taskList(), a.taskGet(), a.taskAttempts(), a.taskLogs(), a.taskReplay(), a.taskMark())
}

var taskColumns = columns[drover.Task]{
	name: func(t drover.Task) string { return t.ID.String() },
	list: []column[drover.Task]{
		{head: "TASK", text: func(_ *printer, t drover.Task) string { return t.ID.String() }},
		{head: "NAME", text: func(_ *printer, t drover.Task) string { return taskLabel(t) }},
		{head: "STATUS", text: func(_ *printer, t drover.Task) string { return t.Status.String() }, paint: func(t drover.Task) string { return colourOf(t.Status) }},
		{head: "ATTEMPT", text: func(_ *printer, t drover.Task) string { return attemptText(t, "/") }},
		{head: "QUEUE", text: func(_ *printer, t drover.Task) string { return t.Queue }},
		{head: "RAN", text: func(p *printer, t drover.Task) string { return ranFor(p, t) }},
		{head: "AGE", text: func(p *printer, t drover.Task) string { return p.age(t.CreatedAt) }},
		{head: "ERROR", text: func(_ *printer, t drover.Task) string { return taskTrouble(t) }},
		{head: "KIND", wide: true, text: func(_ *printer, t drover.Task) string { return t.Kind }},
		{head: "GENERATION", wide: true, text: func(_ *printer, t drover.Task) string { return strconv.Itoa(t.Generation) }},
		{head: "WORKER", wide: true, text: func(_ *printer, t drover.Task) string { return t.Worker }},
		{head: "JOB", wide: true, text: func(_ *printer, t drover.Task) string { return t.JobID.String() }},
	},
	detail: func(p *printer, t drover.Task) []fact {
		facts := []fact{
			{name: "TASK", text: t.ID.String()},
			{name: "NAME", text: taskLabel(t)},
			{name: "STATUS", text: t.Status.String(), paint: colourOf(t.Status)},
			{name: "JOB", text: t.JobID.String()},
			{name: "KIND", text: t.Kind},
			{name: "QUEUE", text: t.Queue},
			{name: "CLASS", text: t.Class.String()},
			{name: "CIRCUIT", text: t.Circuit},
			{name: "ATTEMPT", text: attemptText(t, " of ")},
			{name: "WORKER", text: t.Worker},
			{name: "RUNS JOB", text: childText(t.ChildJobID)},
			{name: "CANCEL", text: cancelText(p, t.Cancellation)},
			{name: "ERROR", text: failureText(t.Error), paint: red},
			{name: "LAST ERROR", text: failureText(t.LastError), paint: yellow},
			{name: "CREATED", text: p.moment(t.CreatedAt)},
			{name: "DUE", text: p.moment(t.DueAt)},
			{name: "CLOSES", text: p.moment(t.ClosesAt)},
			{name: "HEARTBEAT", text: p.moment(t.HeartbeatAt)},
			{name: "CLAIMED", text: p.moment(t.ClaimedAt)},
			{name: "FINISHED", text: p.moment(t.FinishedAt)},
			{name: "RAN", text: ranFor(p, t)},
		}
		if t.Generation > 1 {
			facts = append(facts, fact{name: "GENERATION", text: strconv.Itoa(t.Generation)})
		}
		if t.Unmet > 0 {
			facts = append(facts, fact{name: "WAITS FOR", text: counted(t.Unmet, "task", "tasks") + " before it"})
		}
		for _, b := range t.Blockers {
			facts = append(facts, fact{name: "BLOCKED BY", text: b.Message + " (" + string(b.Code) + ", for " + p.age(b.Since) + ")", paint: yellow})
		}
		if t.Progress != nil {
			facts = append(facts, fact{name: "PROGRESS", text: progressText(*t.Progress)})
		}
		waits := map[string]string{}
		for code, d := range t.Waits {
			waits[code] = length(d.Std())
		}
		facts = append(facts, fact{name: "WAITED", text: pairs(waits)}, p.payload("INPUT", t.Input), p.payload("CHECKPOINT", t.Checkpoint), p.payload("OUTPUT", t.Output))
		if t.Error != nil && p.format == "wide" {
			facts = append(facts, fact{name: "STACK", text: t.Error.Stack})
		}
		return facts
	},
}

// childText is empty for a task that runs no job.
func childText(id drover.JobID) string {
	if id.IsZero() {
		return ""
	}
	return id.String()
}

// attemptText is empty for a task that no worker runs.
func attemptText(t drover.Task, of string) string {
	if t.MaxAttempts == 0 {
		return ""
	}
	return fmt.Sprintf("%d%s%d", t.Attempt, of, t.MaxAttempts)
}

// taskTrouble is why a task failed, failed the last time, or does not start.
func taskTrouble(t drover.Task) string {
	return cmp.Or(failureText(cmp.Or(t.Error, t.LastError)), blockersText(t.Blockers))
}

// blockersText reads `no live worker of queue "cpu" runs tasks of kind "resize" (no_worker_for_kind)`.
func blockersText(list []drover.Blocker) string {
	words := make([]string, len(list))
	for i, b := range list {
		words[i] = b.Message + " (" + string(b.Code) + ")"
	}
	return strings.Join(words, "; ")
}

// ranFor is how long the newest attempt ran; empty for one that never did.
func ranFor(p *printer, t drover.Task) string {
	if t.ClaimedAt.IsZero() || t.FinishedAt.IsZero() && t.Status != drover.Running {
		return ""
	}
	return p.since(t.ClaimedAt, t.FinishedAt)
}

func (a *app) taskList() *cobra.Command {
	var (
		job      string
		statuses []string
		limit    int
		f        client.TasksFilter
	)
	cmd := &cobra.Command{
		Use:   "list [JOB]",
		Short: "List the tasks of a job, in the order of its pipeline",
		Example: `  drover task list job_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C
  drover task list @latest --status FAILED,DEAD_LETTER
  drover task list --job @latest --name extract -o wide`,
		Args:              args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: a.completeJobs,
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) (err error) {
			if len(words) == 1 {
				if job != "" {
					return usagef("the job is given twice: %s and --job %s", words[0], job)
				}
				job = words[0]
			}
			if job == "" {
				return usagef("say whose tasks: drover task list JOB")
			}
			if f.Status, err = parseStatuses(statuses); err != nil {
				return err
			}
			id, err := jobID(ctx, c, job)
			if err != nil {
				return err
			}
			return list(a, taskColumns, limit, func(l client.List) (protocol.Page[drover.Task], error) {
				f.List = l
				return c.Tasks(ctx, id, f)
			})
		}),
	}
	cmd.Flags().StringVar(&job, "job", "", "the job, in place of the argument")
	cmd.Flags().StringVar(&f.Name, "name", "", "only tasks of this name")
	cmd.Flags().StringSliceVar(&statuses, "status", nil, "only these, separated by commas")
	limitFlag(cmd, &limit)
	names := make([]string, 0, len(drover.Statuses()))
	for _, s := range drover.Statuses() {
		names = append(names, s.String())
	}
	must(cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(completions(names), cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("job", a.completeJobs))
	return cmd
}

func (a *app) taskGet() *cobra.Command {
	var job string
	cmd := &cobra.Command{
		Use:   "get TASK",
		Short: "Show a task",
		Example: `  drover task get task_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C
  drover task get task_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C -o json`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeTasks(false),
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			id, err := taskID(ctx, c, words[0], job)
			if err != nil {
				return err
			}
			t, err := c.Task(ctx, id)
			if err != nil {
				return err
			}
			return printOne(a.printer(), taskColumns, t)
		}),
	}
	a.ofJobFlag(cmd, &job)
	return cmd
}

// ofJobFlag lets a command name a task as its job does.
func (a *app) ofJobFlag(cmd *cobra.Command, job *string) {
	cmd.Flags().StringVar(job, "job", "", "the task's job: then TASK may be its name there, such as greet or greet[0]")
	must(cmd.RegisterFlagCompletionFunc("job", a.completeJobs))
}

// taskID reads a task's id, or finds the task that a job has by that name.
func taskID(ctx context.Context, c *client.Client, word, job string) (drover.TaskID, error) {
	if job == "" || strings.HasPrefix(word, "task_") {
		return parsed(drover.ParseTaskID(word))
	}
	of, err := jobID(ctx, c, job)
	if err != nil {
		return drover.TaskID{}, err
	}
	name, _, _ := strings.Cut(word, "[")
	tasks, _, err := collect(0, func(l client.List) (protocol.Page[drover.Task], error) {
		return c.Tasks(context.WithValue(ctx, lookup{}, true), of, client.TasksFilter{Name: name, List: l})
	})
	if err != nil {
		return drover.TaskID{}, err
	}
	for _, t := range tasks {
		if taskLabel(t) == word {
			return t.ID, nil
		}
	}
	if len(tasks) > 0 && name == word {
		return drover.TaskID{}, usagef("%s has %d tasks %s: say which, such as %s", of, len(tasks), name, taskLabel(tasks[0]))
	}
	return drover.TaskID{}, exitf(exitNotFound, "%s has no task %s; \"drover task list %s\" shows them", of, word, of)
}

var attemptColumns = columns[drover.Attempt]{
	name: func(t drover.Attempt) string { return fmt.Sprintf("%s.%d.%d", t.TaskID, t.Generation, t.Attempt) },
	list: []column[drover.Attempt]{
		{head: "GENERATION", text: func(_ *printer, t drover.Attempt) string { return strconv.Itoa(t.Generation) }},
		{head: "ATTEMPT", text: func(_ *printer, t drover.Attempt) string { return strconv.Itoa(t.Attempt) }},
		{head: "OUTCOME", text: func(_ *printer, t drover.Attempt) string { return t.Outcome }, paint: func(t drover.Attempt) string { return colourOfOutcome(t.Outcome) }},
		{head: "WAITED", text: func(p *printer, t drover.Attempt) string {
			if t.ReadyAt.IsZero() {
				return ""
			}
			return p.since(t.ReadyAt, t.ClaimedAt)
		}},
		{head: "RAN", text: func(p *printer, t drover.Attempt) string { return p.since(t.ClaimedAt, t.EndedAt) }},
		{head: "STARTED", text: func(p *printer, t drover.Attempt) string { return agoOf(p, t.ClaimedAt) }},
		{head: "WORKER", text: func(_ *printer, t drover.Attempt) string { return t.Worker }},
		{head: "ERROR", text: func(_ *printer, t drover.Attempt) string { return failureText(t.Error) }},
		{head: "LEASE", wide: true, text: func(_ *printer, t drover.Attempt) string { return strconv.Itoa(int(t.LeaseVersion)) }},
	},
}

// agoOf tells a moment so that it does not read as a length.
func agoOf(p *printer, t time.Time) string {
	s := p.age(t)
	if p.times == "relative" && s != "" && !strings.HasPrefix(s, "in ") {
		s += " ago"
	}
	return s
}

func colourOfOutcome(s string) string {
	switch s {
	case "succeeded":
		return green
	case "failed", "timed_out":
		return red
	case "running":
		return cyan
	case "lease_lost":
		return yellow
	}
	return grey
}

func (a *app) taskAttempts() *cobra.Command {
	var job string
	cmd := &cobra.Command{
		Use:   "attempts TASK",
		Short: "List every attempt of a task, of all generations",
		Example: `  drover task attempts task_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C
  drover task attempts task_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C -o json`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeTasks(false),
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			id, err := taskID(ctx, c, words[0], job)
			if err != nil {
				return err
			}
			attempts, err := c.Attempts(ctx, id)
			if err != nil {
				return err
			}
			return printList(a.printer(), attemptColumns, attempts)
		}),
	}
	a.ofJobFlag(cmd, &job)
	return cmd
}

func (a *app) taskLogs() *cobra.Command {
	var (
		follow, stamps bool
		attempt        int
		job            string
	)
	cmd := &cobra.Command{
		Use:   "logs TASK",
		Short: "Show what a task wrote",
		Example: `  drover task logs task_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C
  drover task logs task_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C --attempt 2 --timestamps
  drover task logs task_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C --follow`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeTasks(false),
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			id, err := taskID(ctx, c, words[0], job)
			if err != nil {
				return err
			}
			ended := func() (bool, error) {
				t, err := c.Task(ctx, id)
				return t.Status.Final(), err
			}
			return a.logs(ctx, c, client.LogsFilter{Task: id, Attempt: attempt}, "", stamps, follow, ended)
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the task has ended")
	cmd.Flags().BoolVar(&stamps, "timestamps", false, "put the time before each line")
	cmd.Flags().IntVar(&attempt, "attempt", 0, "only this attempt")
	a.ofJobFlag(cmd, &job)
	return cmd
}

// taskReplay runs a finished task again, also one that succeeded.
func (a *app) taskReplay() *cobra.Command {
	var (
		input, job string
		r          client.Replay
	)
	cmd := &cobra.Command{
		Use:   "replay TASK",
		Short: "Run a finished task again, as a new generation",
		Long: `Run a finished task again, as a new generation with all its attempts. Its job is reopened when it had ended.
Tasks after it run when it succeeds.`,
		Example: `  drover task replay task_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C
  drover task replay --job @latest 'greet[0]'
  drover task replay task_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C --input @fixed.json --reason "wrong bucket"`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeTasks(false),
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) (err error) {
			id, err := taskID(ctx, c, words[0], job)
			if err != nil {
				return err
			}
			if r.Input, err = a.readInput("input", input); err != nil {
				return err
			}
			t, err := c.Replay(ctx, id, r)
			if err != nil {
				return err
			}
			return a.replayed(t)
		}),
	}
	cmd.Flags().StringVar(&input, "input", "", "run it with this input: JSON, @FILE, or - for standard input")
	cmd.Flags().StringVar(&r.Reason, "reason", "", "why, for the record")
	cmd.Flags().StringVar(&r.RequestID, "request-id", "", "repeating the command with this id within 24 h gives the first answer (default: one of its own)")
	cmd.Flags().BoolVar(&r.Reopen, "reopen", false, "though its dead letter was closed")
	a.ofJobFlag(cmd, &job)
	return cmd
}

// replayed prints a task that runs again, as a list.
func (a *app) replayed(t drover.Task) error {
	p := a.printer()
	if p.format != "table" && p.format != "wide" {
		return printOne(p, taskColumns, t)
	}
	return printTable(p, taskColumns, []drover.Task{t})
}

// cancelText tells how far the cancel of a running task has come.
func cancelText(p *printer, c *drover.Cancellation) string {
	switch {
	case c == nil:
		return ""
	case c.AcknowledgedAt.IsZero():
		return "requested " + p.moment(c.RequestedAt) + "; its worker has not been told yet"
	}
	return "requested " + p.moment(c.RequestedAt) + ", acknowledged " + p.moment(c.AcknowledgedAt) + "; its handler cleans up"
}
