package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/protocol"
)

func (a *app) jobCommand() *cobra.Command {
	return a.noun("job", "Submit, follow and steer jobs", true,
		a.jobSubmit(), a.jobList(), a.jobGet(), a.jobWatch(), a.jobWait(), a.jobLogs(), a.jobEvents(),
		a.jobAction("cancel", "End a job as CANCELLED", "wrong bucket", (*client.Client).Cancel),
		a.jobAction("pause", "Keep a job from starting tasks; running ones go on", "model server is down", (*client.Client).Pause),
		a.jobAction("resume", "Undo pause", "model server is back", (*client.Client).Resume),
		a.jobRerun(), a.jobDelete(),
	)
}

var jobColumns = columns[drover.Job]{
	name: func(j drover.Job) string { return j.ID.String() },
	list: []column[drover.Job]{
		{head: "JOB", text: func(_ *printer, j drover.Job) string { return j.ID.String() }},
		{head: "STATUS", text: func(_ *printer, j drover.Job) string { return jobStatus(j) }, paint: func(j drover.Job) string { return colourOf(j.Status) }},
		{head: "WHAT", text: func(_ *printer, j drover.Job) string { return jobWhat(j) }},
		{head: "DONE", text: func(_ *printer, j drover.Job) string { return doneOf(j.Tasks) }},
		{head: "AGE", text: func(p *printer, j drover.Job) string { return p.age(j.CreatedAt) }},
		{head: "TOOK", text: func(p *printer, j drover.Job) string {
			if j.FinishedAt.IsZero() {
				return ""
			}
			return p.since(j.CreatedAt, j.FinishedAt)
		}},
		{head: "CLASS", wide: true, text: func(_ *printer, j drover.Job) string { return j.Class.String() }},
		{head: "CREATOR", wide: true, text: func(_ *printer, j drover.Job) string { return j.Creator }},
		{head: "LABELS", wide: true, text: func(_ *printer, j drover.Job) string { return pairs(j.Labels) }},
		{head: "TRACE", wide: true, text: func(_ *printer, j drover.Job) string { return j.TraceID }},
		{head: "DEGRADED BY", wide: true, text: func(_ *printer, j drover.Job) string { return degradedText(j.DegradedBy) }},
		{head: "ERROR", wide: true, text: func(_ *printer, j drover.Job) string { return failureText(j.Error) }},
	},
	detail: func(p *printer, j drover.Job) []fact {
		facts := []fact{
			{name: "JOB", text: j.ID.String()},
			{name: "STATUS", text: jobStatus(j), paint: colourOf(j.Status)},
			{name: "WHAT", text: jobWhat(j)},
			{name: "TASKS", text: countsText(j.Tasks)},
			{name: "ERROR", text: failureText(j.Error), paint: red},
			{name: "DEGRADED BY", text: degradedText(j.DegradedBy), paint: yellow},
			{name: "PARENT", text: parentText(j)},
			{name: "CHILDREN", text: childrenText(j.Children)},
			{name: "CREATED", text: p.moment(j.CreatedAt)},
			{name: "DUE", text: p.moment(j.DueAt)},
			{name: "EXPIRES", text: p.moment(j.ExpiresAt)},
			{name: "FINISHED", text: p.moment(j.FinishedAt)},
			{name: "CLASS", text: j.Class.String()},
			{name: "LABELS", text: pairs(j.Labels)},
			{name: "CREATOR", text: j.Creator},
			{name: "TRACE", text: j.TraceID},
		}
		if !j.FinishedAt.IsZero() {
			facts = append(facts, fact{name: "TOOK", text: length(j.FinishedAt.Sub(j.CreatedAt))})
		}
		if pr := j.Progress; pr != nil && !j.Status.Final() {
			facts = append(facts, fact{name: "PROGRESS", text: progressText(*pr)})
		}
		facts = append(facts, compensationFacts(j.Compensation, j.ID)...)
		if j.Run > 1 {
			facts = append(facts, fact{name: "RUN", text: strconv.Itoa(j.Run)})
		}
		return append(facts, p.payload("INPUT", j.Input), p.payload("RESULT", j.Result))
	},
}

// degradedText reads `infer: fallback infer-small, weather: on_failure: degrade`.
func degradedText(list []drover.Degradation) string {
	words := make([]string, 0, len(list))
	for _, d := range list {
		if w := d.Task + ": " + d.Reason; !slices.Contains(words, w) { // of a map once
			words = append(words, w)
		}
	}
	return strings.Join(words, ", ")
}

// parentText names the job whose task runs this one.
func parentText(j drover.Job) string {
	if j.ParentTaskID.IsZero() {
		return ""
	}
	if j.ParentJobID.IsZero() {
		return "a job that has been deleted (" + j.ParentTaskID.String() + ")"
	}
	return j.ParentJobID.String() + " (" + j.ParentTaskID.String() + ")"
}

func childrenText(list []drover.Child) string {
	words := make([]string, len(list))
	for i, c := range list {
		words[i] = c.JobID.String()
	}
	return strings.Join(words, ", ")
}

// compensationsShown is how many of what failed to undo something are shown one by one.
const compensationsShown = 10

// compensationFacts tell how a job's work is undone, and what to do where it could not be:
// of a map in one word.
func compensationFacts(c *drover.Compensation, job drover.JobID) []fact {
	if c == nil {
		return nil
	}
	var names []string
	counts, many := map[string]map[drover.Status]int{}, map[string]int{}
	for _, t := range c.Tasks {
		name := t.Task + " by " + t.By
		if many[name]++; many[name] == 1 {
			names, counts[name] = append(names, name), map[drover.Status]int{}
		}
		counts[name][t.Status]++
	}
	var failed []fact
	for _, t := range c.Tasks[:min(c.Failed, compensationsShown)] {
		of := t.Task
		if many[t.Task+" by "+t.By] > 1 || t.Index > 0 {
			of += fmt.Sprintf("[%d]", t.Index)
		}
		failed = append(failed, fact{name: "COMPENSATION FAILED", text: fmt.Sprintf("%s of %s: %s; replay it: drover task replay %s", t.By, of, failureText(t.Error), t.TaskID), paint: red})
	}
	if n := c.Failed - len(failed); n > 0 {
		failed = append(failed, fact{name: "COMPENSATION FAILED", text: fmt.Sprintf("%d more: drover dlq list --job %s", n, job), paint: red})
	}
	words := make([]string, 0, len(names)+1)
	for _, name := range names {
		var of []string
		for _, s := range slices.Backward(slices.Sorted(maps.Keys(counts[name]))) { // what has failed comes first
			if many[name] > 1 {
				of = append(of, fmt.Sprintf("%d %s", counts[name][s], s))
			} else {
				of = append(of, s.String())
			}
		}
		words = append(words, fmt.Sprintf("%s (%s)", name, strings.Join(of, ", ")))
	}
	if n := c.Total - len(c.Tasks); n > 0 {
		words = append(words, fmt.Sprintf("and %d more", n))
	}
	return append([]fact{{name: "UNDONE", text: strings.Join(words, ", ")}}, failed...)
}

// payload shows JSON of a thing: clipped, unless -o wide asks for the whole.
func (p *printer) payload(name string, v []byte) fact {
	s := string(v)
	if p.format != "wide" {
		s = clip(s, 200)
	}
	return fact{name: name, text: s}
}

func jobWhat(j drover.Job) string {
	if j.Pipeline != "" {
		return j.Pipeline + "@" + strconv.Itoa(j.PipelineVersion)
	}
	return j.Kind
}

func jobStatus(j drover.Job) string {
	s := j.Status.String()
	if j.Paused && !j.Status.Final() {
		s += " (paused)"
	}
	if j.Cancelling && !j.Status.Final() {
		s += " (cancelling)"
	}
	if j.Degraded {
		s += " (degraded)"
	}
	return s
}

// doneOf reads "8/20".
func doneOf(c drover.Counts) string {
	return fmt.Sprintf("%d/%d", c.Succeeded+c.Failed+c.Cancelled+c.Skipped, c.Total)
}

func countsText(c drover.Counts) string {
	words := []string{strconv.Itoa(c.Total) + " in all"}
	for _, n := range []struct {
		count int
		name  string
	}{
		{c.Pending, "pending"}, {c.Ready, "ready"}, {c.Queued, "queued"}, {c.Running, "running"}, {c.RetryWait, "waiting for a retry"},
		{c.Waiting, "waiting"}, {c.Succeeded, "succeeded"}, {c.Failed, "failed"}, {c.Cancelled, "cancelled"}, {c.Skipped, "skipped"},
	} {
		if n.count > 0 {
			words = append(words, fmt.Sprintf("%d %s", n.count, n.name))
		}
	}
	return strings.Join(words, ", ")
}

func progressText(p drover.Progress) string {
	s := fmt.Sprintf("%d %%", int(p.Ratio*100))
	if p.Message != "" {
		s += ", " + p.Message
	}
	if p.ETA > 0 {
		s += ", about " + length(p.ETA.Std()) + " left"
	}
	return s
}

// failureText reads `task validate: not a video (permanent, exit_65)`.
func failureText(f *drover.Failure) string {
	if f == nil {
		return ""
	}
	s := f.Message
	if f.Task != "" {
		s = "task " + f.Task + ": " + s
	}
	kind := string(f.Class)
	if f.Type != "" {
		kind += ", " + f.Type
	}
	return s + " (" + kind + ")"
}

func pairs[V string | int64](m map[string]V) string {
	words := make([]string, 0, len(m))
	for k, v := range m {
		words = append(words, fmt.Sprintf("%s=%v", k, v))
	}
	slices.Sort(words)
	return strings.Join(words, ",")
}

func colourOf(s drover.Status) string {
	switch s {
	case drover.Succeeded:
		return green
	case drover.Failed, drover.DeadLetter:
		return red
	case drover.Running:
		return cyan
	case drover.RetryWait, drover.Waiting:
		return yellow
	case drover.Cancelled, drover.Skipped:
		return grey
	case drover.Pending, drover.Ready, drover.DispatchPending, drover.Queued:
	}
	return ""
}

func (a *app) jobSubmit() *cobra.Command {
	var (
		j                                       drover.NewJob
		id, input, class, due, expires, timeout string
		closes, beats                           string
		labels, limits, resources, workers      []string
		attempts                                int
		wait, watch, dry                        bool
	)
	cmd := &cobra.Command{
		Use:   "submit (--pipeline NAME | --kind KIND)",
		Short: "Submit a job",
		Long: `Submit a job: a run of a pipeline, or a single task of a kind that some worker handles.
When the command returns with 0 the job is committed. --wait and --watch stay until it has ended and
return 6 when it FAILED and 7 when it was CANCELLED.`,
		Example: `  drover job submit --kind exec --input '{"command":["echo","hello"]}' --watch
  drover job submit --pipeline dataset-ingestion --input '{"object_uri":"/data/clip.mp4"}' --label team=vision
  drover job submit --pipeline dataset-ingestion@3 --input @input.json --idempotency-key clip-17 --wait
  drover job submit --pipeline dataset-ingestion --input @input.json --dry-run
  generate | drover job submit --kind mail --queue mail --input - --due-at 30m -o name`,
		Args: args(cobra.NoArgs),
	}
	f := cmd.Flags()
	f.StringVar(&j.Pipeline, "pipeline", "", "pipeline to run: NAME for its newest version, or NAME@3")
	f.StringVar(&j.Kind, "kind", "", "handler to run, as a job of one task")
	f.StringVar(&j.Queue, "queue", "", "queue of a --kind job (default \"default\")")
	f.StringVar(&input, "input", "", "the job's input: JSON, @FILE, or - for standard input")
	f.StringArrayVar(&labels, "label", nil, "key=value to find the job by; repeat it for more")
	f.StringVar(&class, "class", "", "priority: interactive, urgent, normal, batch, or 1 (first) to 99 (last)")
	f.StringVar(&j.IdempotencyKey, "idempotency-key", "", "repeating the command with this key gives the first job again")
	f.StringVar(&id, "job-id", "", "id of your own making, job_…")
	f.StringVar(&due, "due-at", "", "earliest start: a time, or a length from now such as 30m")
	f.StringVar(&expires, "expires-at", "", "end of what has not finished by then: a time, or a length from now")
	f.IntVar(&attempts, "max-attempts", 0, "attempts of a --kind job's task (default 4)")
	f.StringVar(&closes, "schedule-to-close", "", "longest time for all attempts of a --kind job's task (default: no bound)")
	f.StringVar(&beats, "heartbeat", "", "longest silence of an attempt of a --kind job's task (default: no heartbeats)")
	f.StringVar(&j.Circuit, "circuit", "", "what a --kind job's task uses: it waits while that circuit is open")
	f.StringSliceVar(&limits, "limit", nil, "named limits that a --kind job's task takes, such as gpu-license=1")
	f.StringVar(&j.ConcurrencyKey, "concurrency-key", "", "what groups a --kind job's task with others, for limits that count by key")
	f.StringSliceVar(&resources, "resource", nil, "what a --kind job's task takes of its worker beside a slot, such as gpu=1")
	f.StringArrayVar(&workers, "worker-label", nil, "key=value that the worker of a --kind job must have; repeat it for more")
	f.StringVar(&timeout, "task-timeout", "", "longest attempt of a --kind job's task (default 1h)")
	f.BoolVar(&wait, "wait", false, "return when the job has ended")
	f.BoolVar(&watch, "watch", false, "show its progress until it has ended")
	f.BoolVar(&dry, "dry-run", false, "check all that a submit checks, and do nothing")
	must(cmd.RegisterFlagCompletionFunc("pipeline", a.completePipelines))
	must(cmd.RegisterFlagCompletionFunc("queue", a.completeQueues))
	must(cmd.RegisterFlagCompletionFunc("class", cobra.FixedCompletions(completions([]string{"interactive", "urgent", "normal", "batch"}), cobra.ShellCompDirectiveNoFileComp)))
	cmd.RunE = a.ask(func(ctx context.Context, c *client.Client, _ []string) error {
		if (j.Pipeline == "") == (j.Kind == "") {
			return usagef("say what to run: either --pipeline NAME or --kind KIND")
		}
		if wait && watch {
			return usagef("--wait and --watch: choose one")
		}
		if dry && (wait || watch) {
			return usagef("--dry-run: there is no job to wait for")
		}
		if j.Pipeline != "" && (j.Queue != "" || attempts != 0 || timeout != "" || closes != "" || beats != "" || j.Circuit != "" || len(limits)+len(resources)+len(workers) > 0 || j.ConcurrencyKey != "") {
			return usagef("--queue, --max-attempts, --task-timeout, --schedule-to-close, --heartbeat, --circuit, --limit, --concurrency-key, --resource and --worker-label are for --kind jobs; a pipeline declares its own")
		}
		var err error
		for _, s := range slices.Concat([]string{j.Pipeline, j.Kind, j.Queue, j.IdempotencyKey, j.ConcurrencyKey}, labels, workers) {
			if !utf8.ValidString(s) {
				return usagef("%q is not UTF-8", s)
			}
		}
		if j.Input, err = a.readInput("input", input); err != nil {
			return err
		}
		if j.Labels, err = parsePairs("label", labels); err != nil {
			return err
		}
		if j.WorkerLabels, err = parsePairs("worker-label", workers); err != nil {
			return err
		}
		if j.Limits, err = parseAmounts("limit", limits); err != nil {
			return err
		}
		if j.Resources, err = parseAmounts("resource", resources); err != nil {
			return err
		}
		if class != "" {
			if j.Class, err = parsed(drover.ParseClass(class)); err != nil {
				return err
			}
		}
		if id != "" {
			if j.ID, err = parsed(drover.ParseJobID(id)); err != nil {
				return err
			}
		}
		if j.DueAt, err = a.parseTime("due-at", due, true); err != nil {
			return err
		}
		if j.ExpiresAt, err = a.parseTime("expires-at", expires, true); err != nil {
			return err
		}
		if attempts != 0 {
			j.Retry = &drover.Retry{MaxAttempts: attempts}
		}
		for text, to := range map[*string]*drover.Duration{&timeout: &j.Timeout, &closes: &j.ScheduleToClose, &beats: &j.Heartbeat} {
			if *text == "" {
				continue
			}
			if *to, err = parsed(drover.ParseDuration(*text)); err != nil {
				return err
			}
		}
		if a.curl { // without the id that the client would make: running the line twice makes two jobs
			body, err := encode(j)
			if err != nil {
				return err
			}
			a.curlBody = string(body)
		}
		if dry {
			job, repeated, err := c.SubmitPlan(ctx, j)
			if err != nil {
				return err
			}
			if repeated {
				a.note("drover: %s was made by an earlier request with this key; a submit would do nothing", job.ID)
			} else {
				a.note("drover: nothing was submitted; this is the job as it would begin")
			}
			return printOne(a.printer(), jobColumns, job)
		}
		s, err := c.Submit(ctx, j)
		if err != nil {
			return err
		}
		if s.Deleted {
			a.note("drover: %s was made by an earlier request with this key, has ended and has been deleted since: it does not run again; another key makes another job", s.JobID)
			if watch || wait {
				return exitf(exitNotFound, "%s has been deleted: how it ended is not known any more", s.JobID)
			}
			return printOne(a.printer(), submittedColumns, s)
		}
		if s.Replayed {
			a.note("drover: %s was made by an earlier request with this key", s.JobID)
		}
		switch {
		case watch:
			return a.watchJob(ctx, c, s.JobID)
		case wait:
			stop := a.sayWhatBlocks(ctx, c, s.JobID)
			job, err := c.WaitJob(ctx, s.JobID)
			stop()
			if err != nil {
				return err
			}
			if err := printOne(a.printer(), jobColumns, job); err != nil {
				return err
			}
			return a.ended(job)
		}
		return printOne(a.printer(), submittedColumns, s)
	})
	return cmd
}

// patience is how long "submit --wait" is silent about a job that nobody runs.
const patience = 3 * time.Second

// sayWhatBlocks tells once, after a moment, why a job that is waited for does not
// go on, if that is so; stop ends it.
func (a *app) sayWhatBlocks(ctx context.Context, c *client.Client, id drover.JobID) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTimer(patience)
		defer t.Stop()
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		page, err := c.Tasks(ctx, id, client.TasksFilter{Status: []drover.Status{drover.Ready, drover.Queued}, List: client.List{Limit: 1}})
		if err != nil || len(page.Items) == 0 || len(page.Items[0].Blockers) == 0 {
			return // nothing to tell; the wait itself says what is wrong with the server
		}
		a.note("drover: %s waits: %s", id, clean(blockersText(page.Items[0].Blockers), true))
	}()
	return func() {
		cancel()
		<-done
	}
}

var submittedColumns = columns[drover.Submitted]{
	name: func(s drover.Submitted) string { return s.JobID.String() },
	list: []column[drover.Submitted]{
		{head: "JOB", text: func(_ *printer, s drover.Submitted) string { return s.JobID.String() }},
		{head: "STATUS", text: func(_ *printer, s drover.Submitted) string { return s.Status.String() }, paint: func(s drover.Submitted) string { return colourOf(s.Status) }},
	},
}

// ended is the exit of a command that waited for a job.
func (a *app) ended(j drover.Job) error {
	switch j.Status {
	case drover.Failed:
		return exitf(exitFailed, "%s FAILED: %s", j.ID, failureText(j.Error))
	case drover.Cancelled:
		return exitf(exitCancelled, "%s was CANCELLED", j.ID)
	case drover.Succeeded:
		return nil
	default:
		return exitf(exitPending, "%s is %s", j.ID, jobStatus(j))
	}
}

// jobStatuses are those that a job can have.
var jobStatuses = []string{"PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"}

func (a *app) jobList() *cobra.Command {
	var (
		statuses, labels []string
		since, until     string
		limit            int
		degraded, top    bool
		q                client.JobsFilter
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List jobs, newest first",
		Example: `  drover job list
  drover job list --status FAILED,RUNNING --since 24h
  drover job list --pipeline dataset-ingestion --label team=vision -o wide
  drover job list --degraded --since 24h -o wide
  drover job list --limit 0 -o jsonl`,
		Args: args(cobra.NoArgs),
		RunE: a.ask(func(ctx context.Context, c *client.Client, _ []string) (err error) {
			for _, s := range statuses {
				if !slices.Contains(jobStatuses, strings.ToUpper(strings.TrimSpace(s))) {
					return usagef("--status: a job is never %q; it is %s", s, strings.Join(jobStatuses, ", "))
				}
			}
			if q.Status, err = parseStatuses(statuses); err != nil {
				return err
			}
			if q.Labels, err = parsePairs("label", labels); err != nil {
				return err
			}
			if q.CreatedAfter, err = a.parseTime("since", since, false); err != nil {
				return err
			}
			if q.CreatedBefore, err = a.parseTime("until", until, false); err != nil {
				return err
			}
			if degraded {
				q.Degraded = &degraded
			}
			if top {
				q.Top = &top
			}
			return list(a, jobColumns, limit, func(l client.List) (protocol.Page[drover.Job], error) {
				q.List = l
				return c.Jobs(ctx, q)
			})
		}),
	}
	f := cmd.Flags()
	f.StringSliceVar(&statuses, "status", nil, "only these, separated by commas")
	f.StringVar(&q.Pipeline, "pipeline", "", "only jobs of this pipeline")
	f.StringVar(&q.Kind, "kind", "", "only jobs of this kind")
	f.StringArrayVarP(&labels, "label", "l", nil, "only jobs with this key=value; repeat it for more")
	f.BoolVar(&degraded, "degraded", false, "only jobs with failures that were made good; -o wide says which and by what")
	f.BoolVar(&top, "top", false, "only jobs that no task of another job runs")
	f.StringVar(&since, "since", "", "only jobs made since then: a time, or a length back from now such as 24h")
	f.StringVar(&until, "until", "", "only jobs made before then")
	limitFlag(cmd, &limit)
	must(cmd.RegisterFlagCompletionFunc("pipeline", a.completePipelines))
	must(cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(completions(jobStatuses), cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func (a *app) jobGet() *cobra.Command {
	return &cobra.Command{
		Use:   "get JOB",
		Short: "Show a job",
		Example: `  drover job get job_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C
  drover job get @latest -o json`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeJobs,
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			id, err := jobID(ctx, c, words[0])
			if err != nil {
				return err
			}
			j, err := c.Job(ctx, id)
			if err != nil {
				return err
			}
			p := a.printer()
			shown := jobColumns
			if p.format == "table" || p.format == "wide" {
				more, err := jobTrouble(ctx, c, j)
				if err != nil {
					return err
				}
				shown.detail = func(p *printer, j drover.Job) []fact { return append(jobColumns.detail(p, j), more...) }
			}
			return printOne(p, shown, j)
		}),
	}
}

// troubleTold bounds the tasks of which "job get" says what is wrong.
const troubleTold = 5

// jobTrouble names the tasks that made a job fail, with the command that runs the
// first again, or those that keep it waiting.
func jobTrouble(ctx context.Context, c *client.Client, j drover.Job) (facts []fact, err error) {
	sought := []drover.Status{drover.Failed, drover.DeadLetter}
	switch {
	case j.Status == drover.Failed:
	case !j.Status.Final() && j.Tasks.Queued+j.Tasks.Ready+j.Tasks.RetryWait > 0:
		sought = []drover.Status{drover.Queued, drover.Ready, drover.RetryWait}
	default:
		return nil, nil
	}
	page, err := c.Tasks(ctx, j.ID, client.TasksFilter{Status: sought, List: client.List{Limit: troubleTold}})
	if err != nil {
		return nil, err
	}
	for _, t := range page.Items {
		switch {
		case j.Status == drover.Failed:
			facts = append(facts, fact{name: "FAILED TASK", text: fmt.Sprintf("%s  %s: %s", taskLabel(t), t.ID, taskTrouble(t)), paint: red})
		case taskTrouble(t) != "":
			facts = append(facts, fact{name: "WAITING TASK", text: fmt.Sprintf("%s  %s: %s", taskLabel(t), t.ID, taskTrouble(t)), paint: yellow})
		}
	}
	if j.Status == drover.Failed && len(page.Items) > 0 {
		facts = append(facts, fact{name: "TO REPLAY", text: "drover task replay " + page.Items[0].ID.String()})
	}
	return facts, nil
}

func (a *app) jobWatch() *cobra.Command {
	return &cobra.Command{
		Use:   "watch JOB",
		Short: "Show a job's progress until it has ended",
		Long: `Show a job's progress until it has ended. On a terminal the progress of every task is redrawn in place;
elsewhere each event is one line (with -o jsonl, one line of JSON). Returns 6 when the job FAILED, 7 when
it was CANCELLED. Ctrl-C ends the watching, not the job.`,
		Example: `  drover job watch job_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C
  drover job watch @latest
  drover job watch @latest -o jsonl`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeJobs,
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			id, err := jobID(ctx, c, words[0])
			if err != nil {
				return err
			}
			return a.watchJob(ctx, c, id)
		}),
	}
}

func (a *app) jobWait() *cobra.Command {
	var (
		condition string
		timeout   time.Duration
	)
	cmd := &cobra.Command{
		Use:   "wait JOB",
		Short: "Wait until a job has a status",
		Long: `Wait until a job has a status. Returns 0 when it has; 6 when the job FAILED and 7 when it was CANCELLED instead;
124 after --timeout. --timeout 0 asks once and returns 8 when the job has not ended.`,
		Example: `  drover job wait job_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C
  drover job wait @latest --for=status=SUCCEEDED --timeout 10m
  drover job wait @latest --for=ended
  drover job wait @latest --timeout 0 && echo done`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeJobs,
	}
	cmd.Flags().StringVar(&condition, "for", "status=SUCCEEDED", "status=SUCCEEDED, status=FAILED, status=CANCELLED, status=RUNNING, or ended (any of the first three)")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "give up after so long; 0 asks once (default: never)")
	cmd.Flag("timeout").DefValue = ""
	cmd.RunE = a.ask(func(ctx context.Context, c *client.Client, words []string) error {
		until, err := parseCondition(condition)
		if err != nil {
			return err
		}
		if timeout < 0 {
			return usagef("--timeout %s: must not be negative", timeout)
		}
		id, err := jobID(ctx, c, words[0])
		if err != nil {
			return err
		}
		if a.curl {
			_, err := c.WaitJob(ctx, id)
			return err
		}
		j, err := c.Job(ctx, id) // fails at once where WaitJob would be patient: no server, no such job
		if err == nil && !until.reached(j) && !j.Status.Final() {
			if cmd.Flags().Changed("timeout") {
				if timeout == 0 {
					return exitf(exitPending, "%s is %s", id, jobStatus(j))
				}
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, timeout)
				defer cancel()
			}
			j, err = until.wait(ctx, c, id)
		}
		if err != nil {
			if errors.Is(err, context.DeadlineExceeded) {
				return exitf(exitTimeout, "%s has not come to %s within %s", id, condition, timeout)
			}
			return err
		}
		if err := printOne(a.printer(), jobColumns, j); err != nil {
			return err
		}
		if until.reached(j) {
			return nil
		}
		if err := a.ended(j); err != nil {
			return err
		}
		return exitf(exitError, "%s is %s and does not come to %s", id, j.Status, condition)
	})
	return cmd
}

// waitFor is a condition of job wait; the zero status is any end.
type waitFor struct{ status drover.Status }

func parseCondition(s string) (waitFor, error) {
	if s == "ended" {
		return waitFor{}, nil
	}
	name, ok := strings.CutPrefix(s, "status=")
	status, err := drover.ParseStatus(strings.ToUpper(name))
	if !ok || err != nil || !slices.Contains([]drover.Status{drover.Succeeded, drover.Failed, drover.Cancelled, drover.Running}, status) {
		return waitFor{}, usagef("--for %s: must be status=SUCCEEDED, status=FAILED, status=CANCELLED, status=RUNNING or ended", s)
	}
	return waitFor{status}, nil
}

// reached reports whether j meets the condition. A job that has succeeded has
// been running.
func (w waitFor) reached(j drover.Job) bool {
	return w.status == 0 && j.Status.Final() || w.status == j.Status || w.status == drover.Running && j.Status == drover.Succeeded
}

func (w waitFor) wait(ctx context.Context, c *client.Client, id drover.JobID) (drover.Job, error) {
	if w.status != drover.Running {
		return c.WaitJob(ctx, id)
	}
	for {
		j, err := c.Job(ctx, id)
		if err != nil || w.reached(j) || j.Status.Final() {
			return j, err
		}
		select {
		case <-ctx.Done():
			return j, ctx.Err()
		case <-time.After(300 * time.Millisecond):
		}
	}
}

func (a *app) jobEvents() *cobra.Command {
	var (
		follow bool
		after  int64
	)
	cmd := &cobra.Command{
		Use:   "events JOB",
		Short: "Show what happened to a job, event by event",
		Example: `  drover job events @latest
  drover job events @latest --follow -o jsonl
  drover job events job_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C --after 12`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeJobs,
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			id, err := jobID(ctx, c, words[0])
			if err != nil {
				return err
			}
			mapped := everyName
			if !a.curl {
				j, err := c.Job(ctx, id) // says at once where Watch would be patient: no server
				if err != nil {
					return err
				}
				mapped = mappedIn(ctx, c, j)
			}
			if follow {
				return c.Watch(ctx, id, after, a.eventLine(mapped))
			}
			var events []drover.Event
			for at := after; ; {
				p, err := c.Events(ctx, id, at, maxPage)
				if err != nil {
					return err
				}
				events = append(events, p.Items...)
				if len(p.Items) == 0 || p.NextCursor == "" && len(p.Items) < maxPage {
					break
				}
				at = p.Items[len(p.Items)-1].Seq
			}
			return printList(a.printer(), eventColumns(mapped), events)
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the job has ended")
	cmd.Flags().Int64Var(&after, "after", 0, "start after the event of this number")
	return cmd
}

func (a *app) jobLogs() *cobra.Command {
	var (
		follow, stamps bool
		task           string
	)
	cmd := &cobra.Command{
		Use:   "logs JOB",
		Short: "Show what a job's tasks wrote",
		Example: `  drover job logs @latest
  drover job logs @latest --follow
  drover job logs @latest --task extract -o jsonl`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeJobs,
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			id, err := jobID(ctx, c, words[0])
			if err != nil {
				return err
			}
			ended := func() (bool, error) {
				j, err := c.Job(ctx, id)
				return j.Status.Final(), err
			}
			return a.logs(ctx, c, client.LogsFilter{Job: id}, task, stamps, follow, ended)
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the job has ended")
	cmd.Flags().BoolVar(&stamps, "timestamps", false, "put the time before each line")
	cmd.Flags().StringVar(&task, "task", "", "only tasks of this name")
	return cmd
}

func (a *app) jobAction(verb, short, reason string, do func(*client.Client, context.Context, drover.JobID, client.Action) (drover.Job, error)) *cobra.Command {
	var act client.Action
	cmd := &cobra.Command{
		Use:   verb + " JOB",
		Short: short,
		Example: fmt.Sprintf(`  drover job %s job_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C
  drover job %s @latest --reason "%s"`, verb, verb, reason),
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeJobs,
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			id, err := jobID(ctx, c, words[0])
			if err != nil {
				return err
			}
			j, err := do(c, ctx, id, act)
			if err != nil {
				return err
			}
			p := a.printer()
			if p.format == "table" || p.format == "wide" {
				return printTable(p, jobColumns, []drover.Job{j})
			}
			return printOne(p, jobColumns, j)
		}),
	}
	cmd.Flags().StringVar(&act.Reason, "reason", "", "why, for the record")
	cmd.Flags().StringVar(&act.RequestID, "request-id", "", "repeating the command with this id within 24 h gives the first answer (default: one of its own)")
	return cmd
}

func (a *app) jobDelete() *cobra.Command {
	return &cobra.Command{
		Use:   "delete JOB…",
		Short: "Delete finished jobs with all they had",
		Long: `Delete finished jobs, with their tasks, attempts, events, logs and artifacts. Finished jobs leave by themselves
after a time: see drover retention.`,
		Example:           "  drover job delete job_01J9ZK2M7Q8R4T6V0X2Y4Z6A8C",
		Args:              args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completeJobs,
		RunE: a.ask(func(ctx context.Context, c *client.Client, words []string) error {
			for _, w := range words {
				id, err := jobID(ctx, c, w)
				if err != nil {
					return err
				}
				if err := c.DeleteJob(ctx, id); err != nil {
					return err
				}
				a.note("drover: %s is deleted", id)
			}
			return nil
		}),
	}
}
