// Package embedded runs Drover inside your own Go program: the same engine as
// the server's, without a network hop. Submit jobs, also inside a PostgreSQL
// transaction of your own; run workers in the same process; use the whole API
// through Client. Other servers and workers may use the same database.
package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/internal/api"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/gateway"
	"github.com/drover-dev/drover/internal/scheduler"
	"github.com/drover-dev/drover/internal/store"
)

// Config says where Drover keeps its state and for whom it works.
type Config struct {
	// DatabaseURL is "sqlite:PATH" or "postgres://user:password@host/database".
	// A SQLite database belongs to one process at a time.
	DatabaseURL string
	// Schema is the PostgreSQL schema; default "drover".
	Schema string
	// MaxConns bounds the connections to PostgreSQL; default 16.
	MaxConns int
	// Logger gets what an operator could act on; default none.
	Logger *slog.Logger
	// Tenant owns the jobs submitted here; default "default".
	Tenant string
	// Artifacts is the folder that holds the bytes of artifacts; empty refuses uploads.
	Artifacts string
	// Actor is who submits, for the record; default "embedded".
	Actor string
	// NoMigrate leaves the schema as it is; Open fails if that is not the one it needs.
	NoMigrate bool
}

// Drover is the engine in this process. It implements protocol.Worker, so that
// worker.New(d, …) runs handlers here.
type Drover struct {
	db     *store.DB
	engine *engine.Engine
	gate   *gateway.Gateway
	loops  *scheduler.Scheduler
	caller engine.Caller
	client *client.Client
	local  *transport

	stop   context.CancelFunc
	parts  sync.WaitGroup
	closed sync.Once
	mu     sync.Mutex
	err    error // of mu: the first of a part
}

// Open connects to the database, brings its schema up to date and is ready for
// calls. Something must also run the loops that retry, expire and admit: Run,
// here or in another process, or a server.
func Open(ctx context.Context, cfg Config) (*Drover, error) {
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	db, err := store.Open(ctx, cfg.DatabaseURL, store.Options{Logger: log, Schema: cfg.Schema, MaxConns: cfg.MaxConns})
	if err != nil {
		return nil, fmt.Errorf("open drover: %w", err)
	}
	d, err := open(ctx, cfg, db, log)
	if err != nil {
		_ = db.Close() // the error that counts is the first
		return nil, fmt.Errorf("open drover: %w", err)
	}
	return d, nil
}

func open(ctx context.Context, cfg Config, db *store.DB, log *slog.Logger) (*Drover, error) {
	if cfg.NoMigrate {
		if err := db.CheckSchema(ctx); err != nil {
			return nil, err
		}
	} else if _, err := db.Migrate(ctx, store.MigrateOptions{}); err != nil {
		return nil, err
	}
	tenant := cmp.Or(cfg.Tenant, "default")
	// Who opens the database administers it.
	e := engine.New(db, engine.Options{Logger: log, Artifacts: cfg.Artifacts, Operator: tenant})
	caller, err := e.EnsureTenant(ctx, tenant)
	if err != nil {
		return nil, err
	}
	caller.Actor = cmp.Or(cfg.Actor, "embedded")
	d := &Drover{db: db, engine: e, gate: gateway.New(e), caller: caller, loops: scheduler.New(log, scheduler.Loops(e)...)}
	d.local = &transport{
		handler: api.New(api.Config{Engine: e, Gateway: d.gate, Logger: log, Ready: e.Ping, Version: "embedded"}),
		as:      func(ctx context.Context) context.Context { return api.As(ctx, caller) },
	}
	if d.client, err = client.New(client.Config{URL: "http://embedded.drover", HTTP: &http.Client{Transport: d.local}}); err != nil {
		return nil, err
	}
	// The gateway, and the clock that submits and leases read, live from Open to Close.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	d.stop = stop
	d.start(func() error { return d.gate.Run(background) })
	d.start(func() error {
		return scheduler.New(log, scheduler.Loop{Name: "clock", Step: e.ClockOnce, Every: clockEvery}).Run(background)
	})
	if err := d.gate.Started(ctx); err != nil {
		stop()
		d.parts.Wait()
		return nil, err
	}
	return d, nil
}

func (d *Drover) start(run func() error) {
	d.parts.Go(func() {
		if err := run(); err != nil {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.err = cmp.Or(d.err, err)
		}
	})
}

// Run runs the loops that retry what failed, admit what waits, take back the
// leases of silent workers and clean up, until ctx ends. Any number of processes
// may run them at once.
func (d *Drover) Run(ctx context.Context) error { return d.loops.Run(ctx) }

// Close ends Drover in this process: calls that wait are sent away, what was
// accepted is carried out. End Run and the workers first.
func (d *Drover) Close() error {
	var err error
	d.closed.Do(func() {
		d.stop()
		d.parts.Wait()
		d.local.wait()
		d.mu.Lock()
		defer d.mu.Unlock()
		err = errors.Join(d.err, d.db.Close())
	})
	return err
}

// Client returns a client of the whole API; its requests stay in this process.
func (d *Drover) Client() *client.Client { return d.client }

// Submit hands a job over. When it returns without an error the job is
// committed. Jobs submitted at the same time share a transaction.
func (d *Drover) Submit(ctx context.Context, j drover.NewJob) (drover.Submitted, error) {
	return d.gate.Submit(ctx, d.caller, j)
}

// SubmitMany hands over up to 10,000 jobs, which start in the order they have here. The
// answer has one item for each job; the Err of an item says why that job was refused, or
// with drover.ErrOverloaded that it could not be stored although others were. The error
// is for all of them: none is stored, unless the answer was lost.
func (d *Drover) SubmitMany(ctx context.Context, jobs []drover.NewJob) ([]drover.Submitted, error) {
	return d.gate.SubmitMany(ctx, d.caller, jobs)
}

// WaitJob returns the job once it is final.
func (d *Drover) WaitJob(ctx context.Context, id drover.JobID) (drover.Job, error) {
	return d.gate.WaitJob(ctx, d.caller, id)
}

// SubmitTx submits jobs inside a PostgreSQL transaction of yours, on the
// database of Config.DatabaseURL: your commit makes them visible, a rollback
// leaves nothing of them. An error says that a job was refused or could not be
// stored; roll back then.
func (d *Drover) SubmitTx(ctx context.Context, tx pgx.Tx, jobs ...drover.NewJob) ([]drover.Submitted, error) {
	queues, err := d.queuesOf(ctx, jobs)
	if err != nil {
		return nil, fmt.Errorf("submit in a transaction: %w", err)
	}
	var out []drover.Submitted
	err = d.db.Borrow(ctx, tx, queues, func(tx store.Tx) (err error) {
		out, err = d.engine.SubmitIn(ctx, d.caller, jobs, tx)
		return err
	})
	if err != nil {
		return nil, err
	}
	for i, s := range out {
		if s.Err != nil {
			return out, fmt.Errorf("submit job %d in a transaction: %w", i, s.Err)
		}
	}
	return out, nil
}
