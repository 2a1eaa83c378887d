package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/internal/executor"
	"github.com/drover-dev/drover/protocol"
	"github.com/drover-dev/drover/worker"
)

func (a *app) workerCommand() *cobra.Command {
	return a.noun("worker", "Run a worker for the built-in kinds of task, and list workers", true, a.workerRun(), a.workerList())
}

type workerFlags struct {
	exec, http, simulate, private bool

	queues, labels, resources []string

	slots         int
	workdir, name string
	grace         time.Duration
}

func (a *app) workerRun() *cobra.Command {
	var o workerFlags
	cmd := &cobra.Command{
		Use:   "run (--exec | --http | --simulate)",
		Short: "Run a worker for tasks of the kinds exec, http and simulate",
		Long: `Run a worker for tasks of the kinds exec (a command), http (a request) and simulate (which only takes time). The exec
worker runs whatever commands a job names, as the user that starts it: give it a user, and a token with the scope
workers:run, of its own.
SIGTERM and Ctrl-C let running tasks finish within --drain-timeout and hand the rest back, without using up an
attempt; a second signal ends it at once.`,
		Example: `  drover worker run --exec --queue cpu --slots 4 --workdir /srv/steps
  drover worker run --exec --queue gpu --resource gpu=2,mem_mb=64000 --label zone=eu
  DROVER_URL=https://drover.example.com DROVER_TOKEN_FILE=/etc/drover/worker.token drover worker run --exec --http`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.work(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.BoolVar(&o.exec, "exec", false, "run commands")
	f.BoolVar(&o.http, "http", false, "make HTTP requests")
	f.BoolVar(&o.simulate, "simulate", false, "sleep and compute, for tests and plans")
	f.BoolVar(&o.private, "http-allow-private", false, "let http tasks reach private and loopback addresses, on any port")
	f.StringSliceVar(&o.queues, "queue", []string{"default"}, "queues to serve, separated by commas")
	f.IntVar(&o.slots, "slots", 0, "tasks to run at a time (default: the number of processors)")
	f.StringVar(&o.workdir, "workdir", ".", "where exec finds commands such as ./step.sh")
	f.StringVar(&o.name, "name", "", "what people know it by (default: host/process)")
	f.StringArrayVar(&o.labels, "label", nil, "key=value shown with it, which tasks may ask for; repeat it for more")
	f.StringSliceVar(&o.resources, "resource", nil, "what it has for its tasks beside slots, such as gpu=2,mem_mb=64000")
	f.DurationVar(&o.grace, "drain-timeout", 30*time.Second, "how long running tasks may go on after SIGTERM")
	setting(cmd, false, "drain-timeout")
	a.logFlags(cmd, false)
	must(cmd.RegisterFlagCompletionFunc("queue", a.completeQueues))
	return cmd
}

// check refuses a worker that could do nothing.
func (o workerFlags) check() error {
	switch {
	case !o.exec && !o.http && !o.simulate:
		return usagef("say what it may run: --exec, --http, --simulate, or several of them")
	case o.private && !o.http:
		return usagef("--http-allow-private goes with --http")
	case o.slots < 0:
		return usagef("--slots %d: must be positive", o.slots)
	case o.grace <= 0:
		return usagef("--drain-timeout %s: must be positive", o.grace)
	}
	if st, err := os.Stat(o.workdir); o.exec && (err != nil || !st.IsDir()) {
		return usagef("--workdir %s: is not a folder", o.workdir)
	}
	_, err := parsePairs("label", o.labels)
	if err == nil {
		_, err = parseAmounts("resource", o.resources)
	}
	return err
}

// newWorker makes a worker of the built-in executors.
func newWorker(conn protocol.Worker, o workerFlags, log *slog.Logger) (*worker.Worker, error) {
	labels, err := parsePairs("label", o.labels)
	if err != nil {
		return nil, err
	}
	resources, err := parseAmounts("resource", o.resources)
	if err != nil {
		return nil, err
	}
	w := worker.New(conn, worker.Config{
		Queues: o.queues, Slots: o.slots, Name: o.name, Labels: labels, Resources: resources, Version: "drover " + version, Logger: log, Grace: o.grace,
	})
	opts := executor.Options{Workdir: o.workdir, AllowPrivate: o.private}
	if o.exec {
		if err := executor.RegisterExec(w, opts); err != nil {
			return nil, err
		}
	}
	if o.http {
		if err := executor.RegisterHTTP(w, opts); err != nil {
			return nil, err
		}
	}
	if o.simulate {
		executor.RegisterSimulate(w)
	}
	return w, nil
}

func (a *app) work(ctx context.Context, o workerFlags) error {
	if err := o.check(); err != nil {
		return err
	}
	log, err := a.logger()
	if err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.WhoAmI(ctx); err != nil { // a wrong address or token is said at once
		return err
	}
	w, err := newWorker(c, o, log)
	if err != nil {
		return err
	}
	log.InfoContext(ctx, "worker started", "url", c.URL(), "queues", strings.Join(o.queues, ","), "exec", o.exec, "http", o.http, "simulate", o.simulate)
	a.notify("READY=1")
	stopping := context.AfterFunc(ctx, func() { a.notify("STOPPING=1") })
	defer stopping()
	if err := w.Run(ctx); err != nil {
		return err
	}
	log.InfoContext(ctx, "worker stopped")
	return nil
}

// devWorkers returns the workers inside "drover dev".
func (a *app) devWorkers(o devFlags, s *service, token string, log *slog.Logger) ([]func(context.Context) error, error) {
	if o.noExec && o.noHTTP {
		return nil, nil
	}
	conn, err := client.New(client.Config{URL: s.url(), Token: token, UserAgent: "drover-dev/" + version})
	if err != nil {
		return nil, err
	}
	w, err := newWorker(conn, workerFlags{
		exec: !o.noExec, http: !o.noHTTP, simulate: true, private: true, // whoever may run commands here reaches these addresses anyway
		queues: o.queues, slots: o.slots, resources: o.resources, labels: o.labels, workdir: o.workdir, name: fmt.Sprintf("dev/%d", os.Getpid()), grace: o.drain,
	}, log)
	if err != nil {
		return nil, err
	}
	return []func(context.Context) error{w.Run}, nil
}

var workerColumns = columns[drover.Session]{
	name: func(s drover.Session) string { return s.ID.String() },
	list: []column[drover.Session]{
		{head: "WORKER", text: func(_ *printer, s drover.Session) string { return s.ID.String() }},
		{head: "NAME", text: func(_ *printer, s drover.Session) string { return s.Worker }},
		{head: "QUEUES", text: func(_ *printer, s drover.Session) string { return strings.Join(s.Queues, ",") }},
		{head: "RUNNING", text: func(_ *printer, s drover.Session) string { return fmt.Sprintf("%d/%d", s.Running, s.Slots) }},
		{head: "AGE", text: func(p *printer, s drover.Session) string { return p.age(s.StartedAt) }},
		{head: "STATE", text: workerState, paint: func(s drover.Session) string {
			if s.Draining {
				return yellow
			}
			return ""
		}},
		{head: "KINDS", wide: true, text: func(_ *printer, s drover.Session) string { return strings.Join(s.Kinds, ",") }},
		{head: "LABELS", wide: true, text: func(_ *printer, s drover.Session) string { return pairs(s.Labels) }},
		{head: "RESOURCES", wide: true, text: func(_ *printer, s drover.Session) string { return pairs(s.Resources) }},
		{head: "VERSION", wide: true, text: func(_ *printer, s drover.Session) string { return s.Version }},
	},
}

func workerState(p *printer, s drover.Session) string {
	switch {
	case s.ExpiresAt.Before(p.now):
		return "silent"
	case s.Draining:
		return "draining"
	case s.Running >= s.Slots:
		return "busy"
	}
	return "free " + strconv.Itoa(s.Slots-s.Running)
}

func (a *app) workerList() *cobra.Command {
	var groups bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List workers",
		Example: `  drover worker list
  drover worker list -o wide
  drover worker list --groups`,
		Args: args(cobra.NoArgs),
		RunE: a.ask(func(ctx context.Context, c *client.Client, _ []string) error {
			if groups {
				got, err := c.Capacity(ctx)
				if err != nil {
					return err
				}
				return printList(a.printer(), workerGroupColumns, got.Groups)
			}
			sessions, err := c.Workers(ctx)
			if err != nil {
				return err
			}
			return printList(a.printer(), workerColumns, sessions)
		}),
	}
	cmd.Flags().BoolVar(&groups, "groups", false, "those that are alike together, with slots used and free")
	return cmd
}
