package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store"
)

type devFlags struct {
	state, addr, workdir   string
	noExec, noHTTP, behind bool
	slots                  int
	drain                  time.Duration

	queues, labels, resources []string
}

func (a *app) devCommand() *cobra.Command {
	var o devFlags
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run everything in one process: server, workers, database",
		Long: `Run everything in one process, with its state in one folder: a SQLite database, artifacts, the API, the loops,
and workers for tasks of the kinds exec, http and simulate. It makes a tenant and a token at its first start; commands in
the folder above the state find them by themselves.

The exec worker runs whatever commands a job names, as you. --no-exec leaves it out.
SIGTERM and Ctrl-C let running tasks finish, a second signal ends it at once. Whatever was running is run again
at the next start.`,
		Example: `  drover dev
  drover dev --state /tmp/try --addr 127.0.0.1:8430
  drover dev --workdir examples/dataset-ingestion --slots 4`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.dev(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.state, "state", defaultState, "folder for everything it keeps")
	f.StringVar(&o.addr, "addr", defaultAddr, "address to listen on; port 0 takes a free one")
	f.StringVar(&o.workdir, "workdir", ".", "where exec finds commands such as ./step.sh")
	f.StringSliceVar(&o.queues, "queue", []string{"default", "cpu"}, "queues its workers serve")
	f.StringArrayVar(&o.labels, "label", nil, "key=value of its workers, which tasks may ask for; repeat it for more")
	f.StringSliceVar(&o.resources, "resource", nil, "what its workers have for tasks beside slots, such as gpu=2,mem_mb=64000")
	f.IntVar(&o.slots, "slots", 0, "tasks its workers run at a time (default: the number of processors)")
	f.BoolVar(&o.noExec, "no-exec", false, "run no commands")
	f.BoolVar(&o.noHTTP, "no-http", false, "make no HTTP requests for tasks")
	f.BoolVar(&o.behind, "behind-proxy", false, "listen beyond this machine: a proxy in front of it speaks TLS, or only a container's network reaches it")
	f.DurationVar(&o.drain, "drain-timeout", 10*time.Second, "how long running tasks may go on after SIGTERM")
	setting(cmd, false, "state", "addr", "drain-timeout")
	a.logFlags(cmd, false)
	return cmd
}

func (o devFlags) check() error {
	local, err := loopback(o.addr)
	switch {
	case err != nil:
		return usagef("--addr: %v", err)
	case !local && !o.behind:
		return usagef("--addr %s: is reached from other machines, whose holders of the token could run commands here; choose 127.0.0.1, or say --behind-proxy", o.addr)
	case o.drain <= 0:
		return usagef("--drain-timeout %s: must be positive", o.drain)
	case o.slots < 0:
		return usagef("--slots %d: must be positive", o.slots)
	}
	_, err = parsePairs("label", o.labels)
	if err == nil {
		_, err = parseAmounts("resource", o.resources)
	}
	return err
}

func (a *app) dev(ctx context.Context, o devFlags) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	log, err := a.logger()
	if err != nil {
		return err
	}
	spareCollector()
	if err := makeFolder(o.state); err != nil {
		return err
	}
	release, err := lockState(o.state)
	if err != nil {
		return err
	}
	defer release()
	artifacts := filepath.Join(o.state, "artifacts")
	if err := makeFolder(artifacts); err != nil {
		return err
	}
	file := filepath.Join(o.state, "drover.db")
	releaseFile, err := lockDatabase(file)
	if err != nil {
		return err
	}
	defer releaseFile()
	db, err := database{url: "sqlite:" + file}.open(ctx, store.Options{Logger: log})
	if err != nil {
		return err
	}
	defer closing(db, &err)
	if _, err := db.Migrate(ctx, store.MigrateOptions{}); err != nil {
		return err
	}
	s, err := newService(ctx, serviceConfig{log: log, db: db, artifacts: artifacts, addr: o.addr, addrFlag: "addr", drain: o.drain, operator: devTenant})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.front.close()) }()
	// What a predecessor ran inside its own process ended with it.
	if n, err := s.engine.EndInProcessSessions(ctx); err != nil {
		return err
	} else if n > 0 {
		log.InfoContext(ctx, "sessions of a former process ended", "sessions", n)
	}
	token, err := devToken(ctx, s.engine, o.state)
	if err != nil {
		return err
	}
	if err := writeDevFiles(o.state, devFile{URL: s.url(), Token: token}); err != nil {
		return err
	}
	workers, err := a.devWorkers(o, s, token, log)
	if err != nil {
		return err
	}
	stopping := context.AfterFunc(ctx, func() {
		a.notify("STOPPING=1")
		a.note("drover: stopping: running tasks have %s; again to stop at once", length(o.drain))
	})
	defer stopping()
	ready := func() {
		a.greet(o.state, s.url())
		a.notify("READY=1")
	}
	return s.run(ctx, ready, workers...)
}

// devTenant is the tenant of "drover dev".
const devTenant = "dev"

// devToken returns the token of the state folder, made anew where the one that
// is written there does not hold.
func devToken(ctx context.Context, e *engine.Engine, state string) (string, error) {
	c, err := e.EnsureTenant(ctx, devTenant)
	if err != nil {
		return "", err
	}
	d, err := readDevFile(state)
	if err == nil && d.Token != "" {
		if _, err := e.Authenticate(ctx, d.Token); err == nil {
			return d.Token, nil
		}
	} else if err != nil && errors.Is(err, fs.ErrPermission) {
		return "", err
	}
	t, err := e.CreateToken(ctx, c, drover.Token{Tenant: devTenant, Name: "dev", Scopes: []string{"admin"}})
	return t.Secret, err
}

// writeDevFiles writes where this process answers and its token, for commands
// (dev.json) and for curl (token). Only their owner reads them.
func writeDevFiles(state string, d devFile) error {
	b, err := encode(d)
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(state, "token"), []byte(d.Token+"\n")); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(state, "dev.json"), append(b, '\n')); err != nil {
		return err
	}
	ignore := filepath.Join(state, ".gitignore")
	if _, err := os.Stat(ignore); errors.Is(err, fs.ErrNotExist) {
		return os.WriteFile(ignore, []byte("*\n"), 0o600) // the token is nobody else's
	}
	return nil
}

// greet prints the three lines that a person needs.
func (a *app) greet(state, url string) {
	fmt.Fprintf(a.out, "Drover %s is ready at %s; its state is in %s\n", version, url, state)
	fmt.Fprintf(a.out, "Try:   curl -sS %s/v1/jobs -H \"Authorization: Bearer $(cat %s)\" -H 'Content-Type: application/json' -d '{\"kind\":\"exec\",\"input\":{\"command\":[\"echo\",\"hello\"]}}'\n",
		url, quote(filepath.Join(state, "token")))
	fmt.Fprintf(a.out, "Stop:  Ctrl-C, or kill %d\n", os.Getpid())
}
