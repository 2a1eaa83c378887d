package main

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover/internal/api"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store"
)

type serverFlags struct {
	database              database
	addr, artifacts       string
	maxConns              int
	autoMigrate           bool
	tlsCert, tlsKey       string
	behindProxy, insecure bool
	drain, lease          time.Duration
}

func (a *app) serverCommand() *cobra.Command {
	var o serverFlags
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run a server: the API and the loops, against PostgreSQL or SQLite",
		Long: `Run a server: the API and the loops, against PostgreSQL or SQLite. Any number may run against one PostgreSQL.
Workers are processes of their own: "drover worker run", or programs of yours.

Every request needs a token; "drover token create --database-url" makes the first. Beyond this machine the
server listens only with TLS, or --behind-proxy, which says that something in front of it speaks TLS.
SIGTERM and Ctrl-C let requests finish, a second signal ends it at once.`,
		Example: `  drover server --database-url postgres://drover@db/drover --auto-migrate
  DROVER_DATABASE_URL_FILE=/run/secrets/db drover server --http-addr 0.0.0.0:8420 --behind-proxy
  drover server --database-url sqlite:/var/lib/drover/drover.db --http-addr :8443 --tls-cert cert.pem --tls-key key.pem`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.serve(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.addr, "http-addr", defaultAddr, "address to listen on")
	f.StringVar(&o.artifacts, "artifacts", "", "folder for artifacts, shared by all servers (default: artifacts beside a SQLite file; else uploads are refused)")
	f.IntVar(&o.maxConns, "database-max-conns", 16, "connections to PostgreSQL at most")
	f.BoolVar(&o.autoMigrate, "auto-migrate", false, "apply missing migrations at start")
	f.StringVar(&o.tlsCert, "tls-cert", "", "certificate chain, PEM")
	f.StringVar(&o.tlsKey, "tls-key", "", "its key, PEM")
	f.BoolVar(&o.behindProxy, "behind-proxy", false, "a proxy in front of it speaks TLS: listen beyond this machine without")
	f.BoolVar(&o.insecure, "insecure", false, "take requests without a token for an administrator's; on this machine only")
	f.DurationVar(&o.drain, "drain-timeout", 25*time.Second, "how long requests may go on after SIGTERM")
	f.DurationVar(&o.lease, "lease-for", 30*time.Second, "how long a worker may be silent before its tasks start elsewhere")
	o.database.flags(a, cmd)
	setting(cmd, true, "http-addr", "artifacts", "database-max-conns", "auto-migrate", "tls-cert", "tls-key", "behind-proxy", "insecure", "drain-timeout", "lease-for")
	a.logFlags(cmd, true)
	return cmd
}

// check refuses settings that contradict each other or leave a server open.
func (o serverFlags) check() error {
	local, err := loopback(o.addr)
	switch {
	case err != nil:
		return usagef("--http-addr: %v", err)
	case (o.tlsCert == "") != (o.tlsKey == ""):
		return usagef("--tls-cert and --tls-key go together")
	case o.insecure && (!local || o.behindProxy):
		return usagef("--insecure: only with an address of this machine, such as --http-addr 127.0.0.1:8420, and without --behind-proxy: anybody who reaches it is an administrator")
	case !local && o.tlsCert == "" && !o.behindProxy:
		return usagef("--http-addr %s: is reached from other machines, where tokens must not travel in the clear; give --tls-cert and --tls-key, or say --behind-proxy when a proxy in front speaks TLS", o.addr)
	case o.drain <= 0:
		return usagef("--drain-timeout %s: must be positive", o.drain)
	case o.lease < time.Second || o.lease > time.Hour:
		return usagef("--lease-for %s: must be 1s to 1h", o.lease)
	case o.maxConns < 4 || o.maxConns > 1000:
		return usagef("--database-max-conns %d: must be 4 to 1000", o.maxConns)
	}
	return nil
}

func (a *app) serve(ctx context.Context, o serverFlags) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	log, err := a.logger()
	if err != nil {
		return err
	}
	cfg := serviceConfig{log: log, artifacts: o.artifacts, addr: o.addr, addrFlag: "http-addr", drain: o.drain, lease: o.lease}
	if o.tlsCert != "" {
		pair, err := tls.LoadX509KeyPair(o.tlsCert, o.tlsKey)
		if err != nil {
			return usagef("--tls-cert, --tls-key: %v", err)
		}
		cfg.tls = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	if path, ok := o.database.file(); ok {
		release, err := lockDatabase(path)
		if err != nil {
			return err
		}
		defer release()
	}
	spareCollector()
	// Whoever watches over the process hears from it while it waits for its database.
	if cfg.front, err = listen(ctx, cfg); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cfg.front.close()) }()
	var db *store.DB
	if err := patiently(ctx, log, func() (err error) {
		db, err = o.database.open(ctx, store.Options{Logger: log, MaxConns: o.maxConns})
		return err
	}); err != nil {
		return err
	}
	defer closing(db, &err)
	if err := a.breakable(db, &cfg); err != nil {
		return err
	}
	if path, ok := o.database.file(); ok && cfg.artifacts == "" {
		cfg.artifacts = filepath.Join(filepath.Dir(path), "artifacts")
	}
	if cfg.artifacts != "" {
		if err := makeFolder(cfg.artifacts); err != nil {
			return err
		}
	} else {
		log.WarnContext(ctx, "artifacts are refused", "remedy", "give --artifacts a folder that all servers share")
	}
	if o.autoMigrate {
		var done []store.Migration
		if err := patiently(ctx, log, func() (err error) {
			done, err = db.Migrate(ctx, store.MigrateOptions{})
			return err
		}); err != nil {
			return err
		}
		if len(done) > 0 {
			log.InfoContext(ctx, "schema migrated", "version", done[len(done)-1].Version)
		}
	}
	if err := patiently(ctx, log, func() error { return db.CheckSchema(ctx) }); err != nil {
		return &exit{code: exitConflict, err: err}
	}
	cfg.db = db
	if o.insecure {
		if cfg.wrap, err = openDoor(ctx, db); err != nil {
			return err
		}
		log.WarnContext(ctx, "requests without a token are an administrator's", "flag", "--insecure")
	}
	s, err := newService(ctx, cfg)
	if err != nil {
		return err
	}
	stopping := context.AfterFunc(ctx, func() { a.notify("STOPPING=1") })
	defer stopping()
	ready := func() {
		log.InfoContext(ctx, "server ready", "url", s.url(), "database", redacted(o.database.url), "version", version)
		a.notify("READY=1")
	}
	if err := s.run(ctx, ready); err != nil {
		return err
	}
	log.InfoContext(ctx, "server stopped")
	return nil
}

// patiently does a step of the start, again and again while the database is away:
// a server that is started before its database, or while that restarts, waits for
// it rather than end and be started in a circle.
func patiently(ctx context.Context, log *slog.Logger, step func() error) error {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := step()
		if err == nil || !store.IsAway(err) && !store.IsUnknown(err) || ctx.Err() != nil { // each step may be repeated
			return err
		}
		log.WarnContext(ctx, "the database is away; waiting for it", "err", err, "pause", pause)
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C:
		}
	}
}

// openDoor makes requests without a token those of an administrator of the
// tenant "default". One that names another host is refused, as a page in a
// browser of this machine could send it (DNS rebinding).
func openDoor(ctx context.Context, db *store.DB) (func(http.Handler) http.Handler, error) {
	c, err := engine.New(db, engine.Options{}).EnsureTenant(ctx, defaultTenant)
	if err != nil {
		return nil, err
	}
	c.Actor, c.Scopes = "insecure", []string{"admin"}
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") == "" {
				host := r.Host
				if name, _, err := net.SplitHostPort(host); err == nil {
					host = name
				}
				if ip := net.ParseIP(strings.Trim(host, "[]")); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
					http.Error(w, "without a token, ask for localhost or 127.0.0.1", http.StatusMisdirectedRequest)
					return
				}
				r = r.WithContext(api.As(r.Context(), c))
			}
			h.ServeHTTP(w, r)
		})
	}, nil
}
