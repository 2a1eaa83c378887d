package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
)

func (a *app) explainCommand() *cobra.Command {
	var job string
	cmd := &cobra.Command{
		Use:   "explain (JOB | TASK)",
		Short: "Say why a job or a task does not run: behind whom, for how long, and what can be done",
		Long: `Say why a job or a task does not run. The first line says what it waits for, the second how long it still takes and
what helps; below are all reasons, who has what it waits for, and how its time was spent. Of a task that runs it says who
runs it, of one that has ended how its time was spent. docs/explain.md has the list of reasons.`,
		Example: `  drover explain @latest
  drover explain task_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C
  drover explain infer[3] --job @latest
  drover explain job_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C -o json`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeJobs,
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			if job != "" || strings.HasPrefix(words[0], "task_") {
				id, err := taskID(ctx, c, words[0], job)
				if err != nil {
					return err
				}
				x, err := c.Explain(ctx, id)
				if err != nil {
					return err
				}
				return printOne(a.printer(), explanationColumns, x)
			}
			id, err := jobID(ctx, c, words[0])
			if err != nil {
				return err
			}
			x, err := c.ExplainJob(ctx, id)
			if err != nil {
				return err
			}
			return a.printJobExplanation(x)
		}),
	}
	cmd.Flags().StringVar(&job, "job", "", "the job whose task is named")
	must(cmd.RegisterFlagCompletionFunc("job", a.completeJobs))
	a.clientFlags(cmd)
	return cmd
}

// explanationColumns show a task's explanation.
var explanationColumns = columns[drover.Explanation]{
	name: func(x drover.Explanation) string { return x.TaskID.String() },
	list: []column[drover.Explanation]{
		{head: "TASK", text: func(_ *printer, x drover.Explanation) string { return explainedName(x) }},
		{head: "STATUS", text: func(_ *printer, x drover.Explanation) string { return x.Status.String() }},
		{head: "WAITED", text: func(_ *printer, x drover.Explanation) string { return spent(x.Waited) }},
		{head: "REASON", text: func(_ *printer, x drover.Explanation) string { return reasonOf(x.Blockers) }, paint: func(drover.Explanation) string { return yellow }},
		{head: "STARTS IN", text: func(_ *printer, x drover.Explanation) string { return etaText(x.Start) }},
		{head: "WHY", text: func(_ *printer, x drover.Explanation) string { return x.Message }},
	},
	detail: explanationFacts,
}

// explainedName is a task's name with its element.
func explainedName(x drover.Explanation) string {
	if x.Mapped && x.Index >= 0 {
		return fmt.Sprintf("%s[%d]", x.Name, x.Index)
	}
	return x.Name
}

func spent(d drover.Duration) string {
	if d == 0 {
		return ""
	}
	return length(d.Std())
}

func reasonOf(list []drover.Blocker) string {
	if len(list) == 0 {
		return ""
	}
	return string(list[0].Code)
}

func etaText(e *drover.ETA) string {
	if e == nil {
		return ""
	}
	if e.P50 == e.P90 {
		return length(e.P50.Std())
	}
	return length(e.P50.Std()) + " to " + length(e.P90.Std())
}

// whyLine is the first line: what it waits for, and for how long it has.
func whyLine(what string, waited drover.Duration, code, message string) string {
	switch {
	case code != "" && waited > 0:
		return fmt.Sprintf("%s has waited %s (%s): %s", what, length(waited.Std()), code, message)
	case code != "":
		return fmt.Sprintf("%s waits (%s): %s", what, code, message)
	}
	return what + ": " + message
}

// whenLine is the second: how long it still takes, and what helps.
func whenLine(start, end *drover.ETA, list []drover.Blocker) string {
	var said []string
	if start != nil {
		if start.P50 == 0 && start.P90 == 0 {
			said = append(said, "It starts at once.")
		} else {
			said = append(said, fmt.Sprintf("It starts in about %s, most likely within %s (%s; confidence %s).", length(start.P50.Std()), length(start.P90.Std()), start.Basis, start.Confidence))
		}
	} else if end != nil {
		said = append(said, fmt.Sprintf("It ends in about %s, most likely within %s (%s; confidence %s).", length(end.P50.Std()), length(end.P90.Std()), end.Basis, end.Confidence))
	} else if len(list) > 0 {
		said = append(said, "How long it still takes is not known.")
	}
	if len(list) > 0 && len(list[0].Remedies) > 0 {
		r := list[0].Remedies[0]
		help := "What helps: " + r.Message
		if r.Command != "" {
			help += " " + r.Command
		}
		if r.Requires != "" {
			help += " (needs " + r.Requires + ")"
		}
		said = append(said, help)
	}
	return strings.Join(said, " ")
}

func explanationFacts(p *printer, x drover.Explanation) []fact {
	facts := []fact{
		{name: "WHY", text: whyLine(explainedName(x)+" ("+x.Status.String()+")", x.Waited, reasonOf(x.Blockers), x.Message), paint: yellowIf(len(x.Blockers) > 0)},
		{name: "WHEN", text: whenLine(x.Start, x.End, x.Blockers)},
		{name: "TASK", text: x.TaskID.String()},
		{name: "JOB", text: x.JobID.String()},
	}
	if x.Deadline != nil {
		facts = append(facts, fact{name: "DEADLINE", text: x.Deadline.Message, paint: redIf(x.Deadline.WillMiss)})
	}
	facts = append(facts, blockerFacts(x.Blockers)...)
	facts = append(facts, fact{name: "EXECUTOR", text: x.Executor.Message}, fact{name: "LAST ERROR", text: failureText(x.LastError)})
	if x.Next.Failure != "" {
		facts = append(facts, fact{name: "NEXT", text: strings.Join(slices.DeleteFunc([]string{x.Next.Failure, x.Next.Timeout, x.Next.LostWorker, x.Next.Repeat}, func(s string) bool { return s == "" }), "\n")})
	}
	var lines []string
	for _, s := range x.History {
		line := fmt.Sprintf("%s   %-9s %s", p.moment(s.From), length(s.Duration.Std()), s.Code)
		if s.Worker != "" {
			line += " on " + s.Worker
		}
		if s.Outcome != "" {
			line += " (" + s.Outcome + ")"
		}
		lines = append(lines, line)
	}
	return append(facts, fact{name: "HISTORY", text: strings.Join(lines, "\n")}, fact{name: "SPENT", text: totalsText(x.TotalsByReason)})
}

// blockerFacts lists all reasons, with who has what is waited for and what helps.
func blockerFacts(list []drover.Blocker) (facts []fact) {
	for i, b := range list {
		name := "REASON"
		if i > 0 {
			name = "ALSO"
		}
		text := fmt.Sprintf("%s (%s, %s layer", b.Message, b.Code, b.Layer)
		if b.Waited > 0 {
			text += ", for " + length(b.Waited.Std())
		}
		facts = append(facts, fact{name: name, text: text + ")", paint: yellow})
		var lines []string
		for _, h := range b.Holders {
			who := h.Tenant
			if !h.TaskID.IsZero() {
				who = h.TaskID.String()
			}
			line := fmt.Sprintf("%s for %s", who, length(h.HeldFor.Std()))
			if h.Worker != "" {
				line += " on " + h.Worker
			}
			if h.ExpectedReleaseIn != nil {
				line += ", about " + length(h.ExpectedReleaseIn.Std()) + " more"
			}
			lines = append(lines, line)
		}
		if b.MoreHolders > 0 {
			lines = append(lines, fmt.Sprintf("and %d more", b.MoreHolders))
		}
		facts = append(facts, fact{name: "HELD BY", text: strings.Join(lines, "\n")})
		lines = nil
		for _, r := range b.Remedies {
			line := r.Message
			if r.Requires != "" {
				line += " (needs " + r.Requires + ")"
			}
			if r.Command != "" {
				line += " " + r.Command
			}
			lines = append(lines, line)
		}
		facts = append(facts, fact{name: "HELPS", text: strings.Join(lines, "\n")})
	}
	return facts
}

func yellowIf(on bool) string {
	if on {
		return yellow
	}
	return ""
}

func redIf(on bool) string {
	if on {
		return red
	}
	return ""
}

// totalsText reads "handoff 3s, run 12s", the longest first.
func totalsText(totals map[string]drover.Duration) string {
	codes := slices.SortedFunc(maps.Keys(totals), func(a, b string) int { return cmp.Or(cmp.Compare(totals[b], totals[a]), cmp.Compare(a, b)) })
	words := make([]string, len(codes))
	for i, code := range codes {
		words[i] = code + " " + length(totals[code].Std())
	}
	return strings.Join(words, ", ")
}

// printJobExplanation shows what a job waits for, then its tasks.
func (a *app) printJobExplanation(x drover.JobExplanation) error {
	p := a.printer()
	if done, err := p.whole(x); done {
		return err
	}
	if p.format == "name" {
		_, err := fmt.Fprintln(p.w, x.JobID)
		return err
	}
	var start *drover.ETA
	if x.On != nil {
		for i := range x.Tasks {
			if x.Tasks[i].TaskID == *x.On {
				start = x.Tasks[i].Start
			}
		}
	}
	facts := []fact{
		{name: "WHY", text: whyLine(x.JobID.String()+" ("+x.Status.String()+")", x.Waited, reasonOf(x.Blockers), x.Message), paint: yellowIf(len(x.Blockers) > 0)},
		{name: "WHEN", text: whenLine(start, x.End, x.Blockers)},
	}
	if x.End != nil && start != nil {
		facts = append(facts, fact{name: "ENDS IN", text: fmt.Sprintf("about %s, most likely within %s (%s; confidence %s)", length(x.End.P50.Std()), length(x.End.P90.Std()), x.End.Basis, x.End.Confidence)})
	}
	if x.Deadline != nil {
		facts = append(facts, fact{name: "DEADLINE", text: x.Deadline.Message, paint: redIf(x.Deadline.WillMiss)})
	}
	if x.On != nil {
		facts = append(facts, fact{name: "TASK", text: x.On.String()})
	}
	facts = append(facts, blockerFacts(x.Blockers)...)
	if err := p.facts(append(facts, fact{name: "SPENT", text: totalsText(x.TotalsByReason)})); err != nil {
		return err
	}
	if len(x.Tasks) < 2 && x.MoreTasks == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(p.w); err != nil {
		return err
	}
	if err := printTable(p, explanationColumns, x.Tasks); err != nil {
		return err
	}
	if x.MoreTasks > 0 {
		a.note("drover: %s more have not ended; \"drover task list %s\" shows them", strconv.Itoa(x.MoreTasks), x.JobID)
	}
	return nil
}

// atLeast writes a number, which is more than that where not all was counted.
func atLeast(n int, more bool) string {
	if more {
		return strconv.Itoa(n) + "+"
	}
	return strconv.Itoa(n)
}

var waitColumns = columns[drover.WaitGroup]{
	name: func(g drover.WaitGroup) string {
		return strings.Join(slices.DeleteFunc([]string{string(g.Reason), g.Tenant, g.Queue}, func(s string) bool { return s == "" }), " ")
	},
	list: []column[drover.WaitGroup]{
		{head: "REASON", text: func(_ *printer, g drover.WaitGroup) string { return string(g.Reason) }},
		{head: "TENANT", text: func(_ *printer, g drover.WaitGroup) string { return g.Tenant }},
		{head: "QUEUE", text: func(_ *printer, g drover.WaitGroup) string { return g.Queue }},
		{head: "WAITING", text: func(_ *printer, g drover.WaitGroup) string {
			return atLeast(g.Waiting, g.Approximate)
		}},
		{head: "OLDEST", text: func(_ *printer, g drover.WaitGroup) string { return spent(g.OldestAge) }},
		{head: "TOP BLOCKER", text: func(_ *printer, g drover.WaitGroup) string {
			return strings.TrimSpace(string(g.Top) + " " + g.Subject.Name)
		}, paint: func(drover.WaitGroup) string { return yellow }},
	},
}

func (a *app) waitsCommand() *cobra.Command {
	var by []string
	cmd := &cobra.Command{
		Use:   "waits",
		Short: "Say who waits for what: how many, for how long, and what most of them wait for",
		Example: `  drover waits
  drover waits --group-by tenant
  drover waits --group-by reason,tenant,queue -o json`,
		Args: args(cobra.NoArgs),
		RunE: a.ask(func(ctx context.Context, c *client.Client, _ []string) error {
			groups, err := c.Waits(ctx, by...)
			if err != nil {
				return err
			}
			return printList(a.printer(), waitColumns, groups)
		}),
	}
	cmd.Flags().StringSliceVar(&by, "group-by", []string{"reason", "queue"}, "reason, tenant, queue, or several of them")
	a.clientFlags(cmd)
	return cmd
}

var hintColumns = columns[drover.QueueHint]{
	name: func(h drover.QueueHint) string { return h.Queue },
	list: []column[drover.QueueHint]{
		{head: "QUEUE", text: func(_ *printer, h drover.QueueHint) string { return h.Queue }},
		{head: "WAITING", text: func(_ *printer, h drover.QueueHint) string { return atLeast(h.Waiting, h.Approximate) }},
		{head: "STARTABLE", text: func(_ *printer, h drover.QueueHint) string { return atLeast(h.Startable, h.Approximate) }},
		{head: "WORKERS", text: func(_ *printer, h drover.QueueHint) string { return strconv.Itoa(h.Workers) }},
		{head: "USED", text: func(_ *printer, h drover.QueueHint) string { return fmt.Sprintf("%d of %d", h.Used, h.Slots) }},
		{head: "DESIRED", text: func(_ *printer, h drover.QueueHint) string { return strconv.Itoa(h.Desired) }, paint: func(h drover.QueueHint) string { return yellowIf(h.Desired > h.Workers) }},
		{head: "REASON", text: func(_ *printer, h drover.QueueHint) string { return h.Reason }},
		{head: "TWO MORE WORKERS", text: func(_ *printer, h drover.QueueHint) string { return h.TwoMoreWorkers }},
	},
}

func (a *app) queueStats() *cobra.Command {
	return &cobra.Command{
		Use:               "stats [QUEUE]",
		Short:             "Say how many workers each queue wants, why, and what two more would change",
		Example:           "  drover queue stats\n  drover queue stats gpu -o json",
		Args:              args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: a.completeQueues,
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			got, err := c.Capacity(ctx)
			if err != nil {
				return err
			}
			p := a.printer()
			p.clip = 200 // the reasons are what it is for
			if len(words) == 0 {
				return printList(p, hintColumns, got.Queues)
			}
			for _, h := range got.Queues {
				if h.Queue == words[0] {
					return printOne(p, hintColumns, h)
				}
			}
			return exitf(exitNotFound, "there is no queue %s", words[0])
		}),
	}
}

var workerGroupColumns = columns[drover.WorkerGroup]{
	name: func(g drover.WorkerGroup) string { return strings.Join(g.Queues, ",") },
	list: []column[drover.WorkerGroup]{
		{head: "QUEUES", text: func(_ *printer, g drover.WorkerGroup) string { return strings.Join(g.Queues, ",") }},
		{head: "KINDS", text: func(_ *printer, g drover.WorkerGroup) string { return cmp.Or(strings.Join(g.Kinds, ","), "any") }},
		{head: "LABELS", text: func(_ *printer, g drover.WorkerGroup) string { return pairs(g.Labels) }},
		{head: "WORKERS", text: func(_ *printer, g drover.WorkerGroup) string { return strconv.Itoa(g.Workers) }},
		{head: "DRAINING", text: func(_ *printer, g drover.WorkerGroup) string { return strconv.Itoa(g.Draining) }},
		{head: "SLOTS", text: func(_ *printer, g drover.WorkerGroup) string { return strconv.Itoa(g.Slots) }},
		{head: "USED", text: func(_ *printer, g drover.WorkerGroup) string { return strconv.Itoa(g.Used) }},
		{head: "FREE", text: func(_ *printer, g drover.WorkerGroup) string { return strconv.Itoa(g.Free) }},
		{head: "UTILISATION", text: func(_ *printer, g drover.WorkerGroup) string { return fmt.Sprintf("%.0f %%", 100*g.Utilisation) }},
	},
}
