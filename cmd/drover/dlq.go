package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/protocol"
)

func (a *app) dlqCommand() *cobra.Command {
	return a.noun("dlq", "Look at tasks that ended badly and wait for a person; replay or close them", true,
		a.dlqList(), a.dlqGroups(), a.dlqShow(), a.dlqReplay(), a.dlqClose(), a.dlqOperations(), a.dlqOperation(), a.dlqCancel())
}

var letterColumns = columns[drover.Letter]{
	name: func(l drover.Letter) string { return l.TaskID.String() },
	list: []column[drover.Letter]{
		{head: "TASK", text: func(_ *printer, l drover.Letter) string { return l.TaskID.String() }},
		{head: "NAME", text: func(_ *printer, l drover.Letter) string { return letterLabel(l) }},
		{head: "STATUS", text: func(_ *printer, l drover.Letter) string { return l.Status.String() }, paint: func(l drover.Letter) string { return colourOf(l.Status) }},
		{head: "ATTEMPTS", text: func(_ *printer, l drover.Letter) string { return strconv.Itoa(l.Attempt) }},
		{head: "ENDED", text: func(p *printer, l drover.Letter) string { return p.age(l.FinishedAt) }},
		{head: "FINGERPRINT", text: func(_ *printer, l drover.Letter) string { return l.Fingerprint }},
		{head: "ERROR", text: func(_ *printer, l drover.Letter) string { return failureText(l.Error) }},
		{head: "STATE", wide: true, text: func(_ *printer, l drover.Letter) string { return l.State }},
		{head: "KIND", wide: true, text: func(_ *printer, l drover.Letter) string { return l.Kind }},
		{head: "QUEUE", wide: true, text: func(_ *printer, l drover.Letter) string { return l.Queue }},
		{head: "GENERATION", wide: true, text: func(_ *printer, l drover.Letter) string { return strconv.Itoa(l.Generation) }},
		{head: "WORKER", wide: true, text: func(_ *printer, l drover.Letter) string { return l.Worker }},
		{head: "JOB", wide: true, text: func(_ *printer, l drover.Letter) string { return l.JobID.String() }},
	},
	detail: func(p *printer, l drover.Letter) []fact {
		facts := []fact{
			{name: "TASK", text: l.TaskID.String()},
			{name: "NAME", text: letterLabel(l)},
			{name: "STATUS", text: l.Status.String(), paint: colourOf(l.Status)},
			{name: "GENERATION", text: strconv.Itoa(l.Generation)},
			{name: "STATE", text: stateText(p, l)},
			{name: "JOB", text: l.JobID.String()},
			{name: "PIPELINE", text: l.Pipeline},
			{name: "KIND", text: l.Kind},
			{name: "QUEUE", text: l.Queue},
			{name: "FINGERPRINT", text: l.Fingerprint},
			{name: "ATTEMPTS", text: strconv.Itoa(l.Attempt)},
			{name: "WORKER", text: l.Worker},
			{name: "ENDED", text: p.moment(l.FinishedAt)},
			{name: "ERROR", text: failureText(l.Error), paint: red},
		}
		if l.Losses > 0 {
			facts = append(facts, fact{name: "LEASES LOST", text: strconv.Itoa(l.Losses)})
		}
		c := l.Context
		if c == nil {
			return facts
		}
		waits := map[string]string{}
		for code, d := range c.Waits {
			waits[code] = length(d.Std())
		}
		facts = append(facts, fact{name: "WAITED", text: pairs(waits)}, p.payload("INPUT", c.Input))
		if c.InputGeneration > 1 {
			facts = append(facts, fact{name: "INPUT SINCE", text: "generation " + strconv.Itoa(c.InputGeneration)})
		}
		for _, t := range c.Parents {
			facts = append(facts, fact{name: "INPUT FROM", text: fmt.Sprintf("%s %s, generation %d, %s", t.TaskID, indexed(t.Name, t.Index), t.Generation, t.Status)})
		}
		for _, t := range c.Attempts {
			facts = append(facts, fact{name: fmt.Sprintf("ATTEMPT %d.%d", t.Generation, t.Attempt), text: strings.TrimSpace(t.Outcome + " on " + cmp.Or(t.Worker, "a worker") + " " + failureText(t.Error))})
		}
		for _, g := range c.Lineage {
			s := g.Status.String()
			if g.NewInput {
				s += ", with another input"
			}
			if !g.ReplayedAt.IsZero() {
				s += ", replayed " + p.moment(g.ReplayedAt) + by(g.ReplayedBy, g.Reason)
			}
			facts = append(facts, fact{name: "GENERATION " + strconv.Itoa(g.Generation), text: s})
		}
		for _, line := range c.Logs {
			facts = append(facts, fact{name: "LOG", text: line.Text})
		}
		if l.Error != nil && p.format == "wide" {
			facts = append(facts, fact{name: "STACK", text: l.Error.Stack})
		}
		return facts
	},
}

func indexed(name string, index int) string {
	if index == 0 {
		return name
	}
	return fmt.Sprintf("%s[%d]", name, index)
}

func letterLabel(l drover.Letter) string {
	s := indexed(l.Name, l.Index)
	if l.Pipeline != "" {
		s = l.Pipeline + "/" + s
	}
	return s
}

func by(actor, reason string) string {
	s := ""
	if actor != "" {
		s = " by " + actor
	}
	if reason != "" {
		s += ": " + reason
	}
	return s
}

func stateText(p *printer, l drover.Letter) string {
	if l.StateAt.IsZero() {
		return l.State
	}
	return l.State + " " + p.moment(l.StateAt) + by(l.Actor, l.Reason)
}

var groupColumns = columns[drover.LetterGroup]{
	name: func(g drover.LetterGroup) string { return g.Fingerprint },
	list: []column[drover.LetterGroup]{
		{head: "FINGERPRINT", text: func(_ *printer, g drover.LetterGroup) string { return g.Fingerprint }},
		{head: "COUNT", text: func(_ *printer, g drover.LetterGroup) string { return strconv.Itoa(g.Count) }},
		{head: "NAME", text: func(_ *printer, g drover.LetterGroup) string {
			return letterLabel(drover.Letter{Pipeline: g.Pipeline, Name: g.Name})
		}},
		{head: "FIRST", text: func(p *printer, g drover.LetterGroup) string { return p.age(g.FirstAt) }},
		{head: "LAST", text: func(p *printer, g drover.LetterGroup) string { return p.age(g.LastAt) }},
		{head: "NEWEST ERROR", text: func(_ *printer, g drover.LetterGroup) string { return failureText(g.Error) }},
		{head: "KIND", wide: true, text: func(_ *printer, g drover.LetterGroup) string { return g.Kind }},
		{head: "NEWEST", wide: true, text: func(_ *printer, g drover.LetterGroup) string { return g.TaskID.String() }},
	},
}

var operationColumns = columns[drover.BatchOperation]{
	name: func(o drover.BatchOperation) string { return o.ID.String() },
	list: []column[drover.BatchOperation]{
		{head: "OPERATION", text: func(_ *printer, o drover.BatchOperation) string { return o.ID.String() }},
		{head: "ACTION", text: func(_ *printer, o drover.BatchOperation) string { return o.Action }},
		{head: "STATE", text: func(_ *printer, o drover.BatchOperation) string { return o.State }, paint: func(o drover.BatchOperation) string { return colourOfOperation(o.State) }},
		{head: "DONE", text: func(_ *printer, o drover.BatchOperation) string { return fmt.Sprintf("%d/%d", o.Done, o.Total) }},
		{head: "REFUSED", text: func(_ *printer, o drover.BatchOperation) string { return strconv.Itoa(o.Refused) }},
		{head: "AGE", text: func(p *printer, o drover.BatchOperation) string { return p.age(o.CreatedAt) }},
		{head: "WHY", text: func(_ *printer, o drover.BatchOperation) string { return o.Why }},
		{head: "BY", wide: true, text: func(_ *printer, o drover.BatchOperation) string { return o.Actor }},
		{head: "REASON", wide: true, text: func(_ *printer, o drover.BatchOperation) string { return o.Reason }},
	},
}

func colourOfOperation(state string) string {
	switch state {
	case drover.BatchDone:
		return green
	case drover.BatchStopped:
		return red
	}
	return cyan
}

var itemColumns = columns[drover.OperationItem]{
	name: func(i drover.OperationItem) string { return i.TaskID.String() },
	list: []column[drover.OperationItem]{
		{head: "TASK", text: func(_ *printer, i drover.OperationItem) string { return i.TaskID.String() }},
		{head: "STATE", text: func(_ *printer, i drover.OperationItem) string { return i.State }, paint: func(i drover.OperationItem) string {
			return map[string]string{drover.ItemDone: green, drover.ItemRefused: red}[i.State]
		}},
		{head: "GENERATION", text: func(_ *printer, i drover.OperationItem) string {
			if i.NextGeneration == 0 {
				return strconv.Itoa(i.Generation)
			}
			return fmt.Sprintf("%d, now %d", i.Generation, i.NextGeneration)
		}},
		{head: "WHY", text: func(_ *printer, i drover.OperationItem) string { return i.Detail }},
	},
}

// letters are the flags that select dead letters.
type letters struct {
	f            client.LetterFilter
	class        string
	status, job  string
	since, until string
}

func (d *letters) flags(cmd *cobra.Command, a *app) {
	cmd.Flags().StringVar(&d.f.Fingerprint, "fingerprint", "", `only of this group; "drover dlq groups" lists them`)
	cmd.Flags().StringVar(&d.f.Kind, "kind", "", "only of this kind of task")
	cmd.Flags().StringVar(&d.f.Pipeline, "pipeline", "", "only of this pipeline")
	cmd.Flags().StringVar(&d.f.Queue, "queue", "", "only of this queue")
	cmd.Flags().StringVar(&d.class, "class", "", "only with an error of this class, such as timeout or permanent")
	cmd.Flags().StringVar(&d.status, "status", "", "only DEAD_LETTER (attempts used up) or FAILED (permanent error)")
	cmd.Flags().StringVar(&d.job, "job", "", "only of this job")
	cmd.Flags().StringVar(&d.since, "since", "", "only what ended since then: a time, a day, or a length such as 90m ago")
	cmd.Flags().StringVar(&d.until, "until", "", "only what ended before then")
	must(cmd.RegisterFlagCompletionFunc("job", a.completeJobs))
}

// filter reads the flags.
func (d *letters) filter(ctx context.Context, a *app, c *client.Client) (f client.LetterFilter, err error) {
	f = d.f
	f.ErrorClass = drover.ErrorClass(d.class)
	if d.status != "" {
		statuses, err := parseStatuses([]string{d.status})
		if err != nil {
			return f, err
		}
		f.Status = statuses[0]
	}
	if f.Since, err = a.parseTime("since", d.since, false); err != nil {
		return f, err
	}
	if f.Until, err = a.parseTime("until", d.until, false); err != nil {
		return f, err
	}
	if d.job != "" {
		f.JobID, err = jobID(ctx, c, d.job)
	}
	return f, err
}

// any reports whether a flag selects anything.
func (d *letters) any() bool { return *d != letters{} }

const stateHelp = "open, replayed or closed"

func (a *app) dlqList() *cobra.Command {
	var (
		which letters
		limit int
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, newest first",
		Long:  "List dead letters, newest first: tasks that ended DEAD_LETTER, as their attempts are used up, or FAILED, by a permanent error, and were not replayed or closed.",
		Example: `  drover dlq list
  drover dlq list --kind features --since 1h -o wide
  drover dlq list --state closed
  drover dlq list --job @latest -o name`,
		Args: args(cobra.NoArgs),
		RunE: a.ask(func(ctx context.Context, c *client.Client, _ []string) error {
			f, err := which.filter(ctx, a, c)
			if err != nil {
				return err
			}
			return list(a, letterColumns, limit, func(l client.List) (protocol.Page[drover.Letter], error) {
				return c.DeadLetters(ctx, f, l)
			})
		}),
	}
	which.flags(cmd, a)
	cmd.Flags().StringVar(&which.f.State, "state", "", stateHelp+", or all (default open)")
	limitFlag(cmd, &limit)
	return cmd
}

func (a *app) dlqGroups() *cobra.Command {
	var (
		which letters
		limit int
	)
	cmd := &cobra.Command{
		Use:   "groups",
		Short: "List kinds of failures, the most frequent first",
		Long: `List kinds of failures, the most frequent first. Dead letters of one fingerprint ended in the same place, with the same class and
type of error, and with messages that differ at most in numbers, ids, times, paths and quoted text.`,
		Example: `  drover dlq groups
  drover dlq groups --since 24h -o json`,
		Args: args(cobra.NoArgs),
		RunE: a.ask(func(ctx context.Context, c *client.Client, _ []string) error {
			f, err := which.filter(ctx, a, c)
			if err != nil {
				return err
			}
			return list(a, groupColumns, limit, func(l client.List) (protocol.Page[drover.LetterGroup], error) {
				return c.DeadLetterGroups(ctx, f, l)
			})
		}),
	}
	which.flags(cmd, a)
	cmd.Flags().StringVar(&which.f.State, "state", "", stateHelp+" (default open)")
	limitFlag(cmd, &limit)
	return cmd
}

func (a *app) dlqShow() *cobra.Command {
	var generation int
	cmd := &cobra.Command{
		Use:   "show TASK",
		Short: "Show a dead letter with what surrounds it",
		Long:  "Show a dead letter: its error, every attempt, input and where that came from, the last lines of its log, what it waited for, and the generations of the task with who replayed them.",
		Example: `  drover dlq show task_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C
  drover dlq show task_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C --generation 1 -o json`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeTasks(true),
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			id, err := parsed(drover.ParseTaskID(words[0]))
			if err != nil {
				return err
			}
			if generation < 0 {
				return usagef("--generation %d: must not be negative", generation)
			}
			l, err := c.DeadLetter(ctx, id, generation)
			if err != nil {
				return err
			}
			return printOne(a.printer(), letterColumns, l)
		}),
	}
	cmd.Flags().IntVar(&generation, "generation", 0, "which generation of the task (default: the last that ended badly)")
	return cmd
}

// selection is what a replay and a close have in common: tasks, or a filter.
type selection struct {
	letters
	all, dryRun, noWait bool
	requestID, reason   string
}

func (s *selection) flags(cmd *cobra.Command, a *app, verb string) {
	s.letters.flags(cmd, a)
	cmd.Flags().BoolVar(&s.all, "all", false, "every open dead letter, or those that the flags select")
	cmd.Flags().BoolVar(&s.dryRun, "dry-run", false, "tell what would be "+verb+", and do nothing")
	cmd.Flags().BoolVar(&s.noWait, "no-wait", false, "do not wait for the end of an operation that goes on by itself")
	cmd.Flags().StringVar(&s.reason, "reason", "", "why, for the record")
	cmd.Flags().StringVar(&s.requestID, "request-id", "", "repeating the command with this id within 24 h gives the first answer (default: one of its own)")
}

// read returns the tasks that are named, or the filter.
func (s *selection) read(ctx context.Context, a *app, c *client.Client, verb string, words []string) (ids []drover.TaskID, f *client.LetterFilter, err error) {
	if len(words) == 0 && !s.all && !s.any() {
		return nil, nil, usagef("say which: drover dlq %s TASK, drover dlq %s --fingerprint GROUP, or drover dlq %s --all", verb, verb, verb)
	}
	if len(words) > 0 && (s.all || s.any()) {
		return nil, nil, usagef("either TASK or --all and flags that select")
	}
	for _, w := range words {
		id, err := parsed(drover.ParseTaskID(w))
		if err != nil {
			return nil, nil, err
		}
		ids = append(ids, id)
	}
	if len(words) == 0 {
		filter, err := s.filter(ctx, a, c)
		return nil, &filter, err
	}
	return ids, nil, nil
}

func (a *app) dlqReplay() *cobra.Command {
	var (
		which        selection
		input, patch string
		r            client.ReplayLetters
	)
	cmd := &cobra.Command{
		Use:   "replay (TASK… | --all | FLAGS)",
		Short: "Run dead letters again, as new generations",
		Long: `Run dead letters again, as new generations with all their attempts; their jobs are reopened. Those that are named, or every
one that --fingerprint, --kind, --job and the like select; --all alone is every open one. --dry-run tells what would be done.

With --canary 5 the first five are run, and the others only when all of these have succeeded; otherwise the operation stops and
the command returns 6. With --rate 10 ten a second are started. Such an operation, and one of many dead letters, goes on in the
server, also when this command or the server is killed; the command waits for it, unless --no-wait says otherwise.

One that cannot be replayed is refused with its reason and does not keep the others back; the command then returns 1, or 5 when
nothing was replayed.`,
		Example: `  drover dlq replay task_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C
  drover dlq replay task_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C --input @fixed.json
  drover dlq replay --fingerprint 0f54f6d3a98eb1d4 --dry-run
  drover dlq replay --fingerprint 0f54f6d3a98eb1d4 --canary 5 --rate 10 --reason "model server is back"
  drover dlq replay --all --job @latest --patch '{"retries": null, "mode": "slow"}'`,
		ValidArgsFunction: a.completeTasks(true),
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) (err error) {
			switch {
			case r.Canary < 0:
				return usagef("--canary %d: must not be negative", r.Canary)
			case r.Rate < 0:
				return usagef("--rate %g: must not be negative", r.Rate)
			case input != "" && patch != "":
				return usagef("either --input or --patch")
			}
			if r.TaskIDs, r.Filter, err = which.read(ctx, a, c, "replay", words); err != nil {
				return err
			}
			if r.Input, err = a.readInput("input", input); err != nil {
				return err
			}
			if r.Patch, err = a.readInput("patch", patch); err != nil {
				return err
			}
			r.DryRun, r.Reason, r.RequestID = which.dryRun, which.reason, which.requestID
			o, err := c.ReplayDeadLetters(ctx, r)
			if err != nil {
				return err
			}
			return a.operated(ctx, c, o, which.noWait)
		}),
	}
	which.flags(cmd, a, "replayed")
	cmd.Flags().Float64Var(&r.Rate, "rate", 0, "start at most so many a second (default: no limit)")
	cmd.Flags().IntVar(&r.Canary, "canary", 0, "run so many first, and the others only when these succeed")
	cmd.Flags().StringVar(&input, "input", "", "run them with this input: JSON, @FILE, or - for standard input")
	cmd.Flags().StringVar(&patch, "patch", "", "change their inputs by this JSON merge patch (RFC 7396): JSON, @FILE, or -")
	cmd.Flags().BoolVar(&r.Reopen, "reopen", false, "also those that were closed")
	return cmd
}

func (a *app) dlqClose() *cobra.Command {
	var which selection
	cmd := &cobra.Command{
		Use:   "close (TASK… | --all | FLAGS)",
		Short: "Close dead letters: they stay as they are and leave the list",
		Long:  "Close dead letters, with a reason. They leave the list of open ones, are found with --state closed, and are replayed only with --reopen.",
		Example: `  drover dlq close task_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C --reason "the customer has withdrawn it"
  drover dlq close --fingerprint 0f54f6d3a98eb1d4 --reason "known, fixed in 1.4"`,
		ValidArgsFunction: a.completeTasks(true),
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) (err error) {
			if strings.TrimSpace(which.reason) == "" {
				return usagef("--reason is required: say why they stay as they are")
			}
			r := client.CloseLetters{DryRun: which.dryRun, Reason: which.reason, RequestID: which.requestID}
			if r.TaskIDs, r.Filter, err = which.read(ctx, a, c, "close", words); err != nil {
				return err
			}
			o, err := c.CloseDeadLetters(ctx, r)
			if err != nil {
				return err
			}
			return a.operated(ctx, c, o, which.noWait)
		}),
	}
	which.flags(cmd, a, "closed")
	return cmd
}

func (a *app) dlqOperations() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:     "operations",
		Short:   "List replays and closes of many dead letters, newest first",
		Example: "  drover dlq operations",
		Args:    args(cobra.NoArgs),
		RunE: a.ask(func(ctx context.Context, c *client.Client, _ []string) error {
			return list(a, operationColumns, limit, func(l client.List) (protocol.Page[drover.BatchOperation], error) { return c.Operations(ctx, l) })
		}),
	}
	limitFlag(cmd, &limit)
	return cmd
}

func (a *app) dlqOperation() *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   "operation OPERATION",
		Short: "Show how far a replay or close of many dead letters is",
		Example: `  drover dlq operation op_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C
  drover dlq operation op_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C --wait`,
		Args: args(cobra.ExactArgs(1)),
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			id, err := parsed(drover.ParseOperationID(words[0]))
			if err != nil {
				return err
			}
			o, err := c.Operation(ctx, id)
			if err != nil {
				return err
			}
			if wait {
				return a.operated(ctx, c, o, false)
			}
			return printOne(a.printer(), operationColumns, o)
		}),
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait for its end, and end as it does")
	return cmd
}

func (a *app) dlqCancel() *cobra.Command {
	var r client.Action
	cmd := &cobra.Command{
		Use:     "cancel OPERATION",
		Short:   "Stop a replay or close of many dead letters",
		Long:    "Stop a replay or close of many dead letters. What it has done stays done.",
		Example: `  drover dlq cancel op_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C --reason "wrong ones"`,
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			id, err := parsed(drover.ParseOperationID(words[0]))
			if err != nil {
				return err
			}
			o, err := c.CancelOperation(ctx, id, r)
			if err != nil {
				return err
			}
			return printOne(a.printer(), operationColumns, o)
		}),
	}
	cmd.Flags().StringVar(&r.Reason, "reason", "", "why, for the record")
	cmd.Flags().StringVar(&r.RequestID, "request-id", "", "repeating the command with this id within 24 h gives the first answer (default: one of its own)")
	return cmd
}

// operated waits for the end of an operation, prints what became of its items,
// and ends the command as the operation did.
func (a *app) operated(ctx context.Context, c *client.Client, o drover.BatchOperation, noWait bool) error {
	if !o.Ended() && noWait {
		a.note("drover: %s goes on in the server; \"drover dlq operation %s --wait\" waits for it", progressOf(o), o.ID)
		return printOne(a.printer(), operationColumns, o)
	}
	if !o.Ended() {
		var err error
		if o, err = c.WaitOperation(ctx, o.ID, a.operationProgress()); err != nil {
			if ctx.Err() != nil {
				a.note("drover: operation %s goes on in the server; \"drover dlq cancel %s\" stops it", o.ID, o.ID)
			}
			return err
		}
	}
	p := a.printer()
	items := o.Items
	if p.format == "name" {
		items = nil
		if o.State == drover.BatchDryRun {
			items = o.Items
		}
		page := func(cursor string) (protocol.Page[drover.OperationItem], error) {
			return c.OperationItems(ctx, o.ID, false, client.List{Limit: maxPage, Cursor: cursor})
		}
		if !o.ID.IsZero() {
			for i, err := range client.Items(page) {
				if err != nil {
					return err
				}
				items = append(items, i)
			}
		}
		var taken []drover.OperationItem
		for _, i := range items {
			if i.State != drover.ItemRefused && (i.State == drover.ItemDone || o.State == drover.BatchDryRun) {
				taken = append(taken, i)
			}
		}
		items = taken
	}
	var err error
	switch p.format {
	case "json", "yaml", "jsonl":
		err = printOne(p, operationColumns, o)
	default:
		err = printList(p, itemColumns, items)
	}
	if err != nil {
		return err
	}
	a.note("drover: %s", progressOf(o))
	return endOf(o)
}

// operationProgress tells how far an operation is, when that has changed, and
// not too often.
func (a *app) operationProgress() func(drover.BatchOperation) {
	var last string
	var at time.Time
	return func(o drover.BatchOperation) {
		s := progressOf(o)
		if o.Ended() || s == last || a.now().Sub(at) < time.Second {
			return
		}
		last, at = s, a.now()
		a.note("drover: %s", s)
	}
}

func progressOf(o drover.BatchOperation) string {
	if o.State == drover.BatchDryRun {
		s := fmt.Sprintf("would %s %s", o.Action, counted(o.Waiting, "dead letter", "dead letters"))
		if o.Refused > 0 {
			s += fmt.Sprintf("; %d would be refused", o.Refused)
		}
		return s
	}
	s := fmt.Sprintf("%s %d of %s", map[string]string{drover.ActionReplay: "replayed", drover.ActionClose: "closed"}[o.Action], o.Done, counted(o.Total, "dead letter", "dead letters"))
	if o.Refused > 0 {
		s += fmt.Sprintf(", %d refused", o.Refused)
	}
	if o.State == drover.BatchWaitingCanary {
		s += "; waiting for the first ones to succeed"
	}
	return s
}

// endOf is how the command ends: as the operation did.
func endOf(o drover.BatchOperation) error {
	switch {
	case o.State == drover.BatchStopped && strings.HasPrefix(o.Why, "cancelled"):
		return exitf(exitCancelled, "the operation was %s", o.Why)
	case o.State == drover.BatchStopped:
		return exitf(exitFailed, "the operation stopped: %s", o.Why)
	case o.Refused == 0 || o.State == drover.BatchDryRun && o.Waiting > 0:
		return nil
	case len(o.Items) == 1 && o.Total == 1: // what was asked for: as an answer of its own
		return drover.Errorf(o.Items[0].Code, "%s", o.Items[0].Detail)
	case o.Done == 0:
		return exitf(exitConflict, "every one of them was refused")
	}
	return &exit{code: exitError, err: errors.New("some of them were refused")}
}
