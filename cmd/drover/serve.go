package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drover-dev/drover/internal/api"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/gateway"
	"github.com/drover-dev/drover/internal/scheduler"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/driver"
)

// service is a server in this process: database, engine, loops and API.
type service struct {
	log     *slog.Logger
	db      *store.DB
	engine  *engine.Engine
	gateway *gateway.Gateway
	loops   *scheduler.Scheduler
	front   *front
	api     http.Handler
	drain   time.Duration
}

// front is where a server listens. It answers from the first moment on: until it
// opens, that the process lives and is not ready.
type front struct {
	ln    net.Listener
	http  *http.Server
	tls   bool
	now   atomic.Pointer[http.Handler]
	ended chan struct{}
	err   error // once it has ended
}

// spareCollector has Go collect garbage a quarter as often as it would: a server's
// heap is small, and it would be collected many times a second. $GOGC says otherwise.
func spareCollector() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
}

// listen begins to answer.
func listen(ctx context.Context, cfg serviceConfig) (*front, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", cfg.addr)
	if err != nil {
		return nil, listenError(cfg.addrFlag, cfg.addr, err)
	}
	f := &front{ln: ln, tls: cfg.tls != nil, ended: make(chan struct{})}
	f.open(api.Starting(api.Config{Logger: cfg.log}))
	f.http = api.Server(cfg.addr, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*f.now.Load()).ServeHTTP(w, r) }))
	f.http.ErrorLog = slog.NewLogLogger(cfg.log.Handler(), slog.LevelDebug)
	f.http.TLSConfig = cfg.tls
	go func() {
		defer close(f.ended)
		if f.tls {
			f.err = f.http.ServeTLS(ln, "", "") // the certificate is in TLSConfig; this sets HTTP/2 up
		} else {
			f.err = f.http.Serve(ln)
		}
		if errors.Is(f.err, http.ErrServerClosed) {
			f.err = nil
		}
	}()
	return f, nil
}

// open lets h answer from now on.
func (f *front) open(h http.Handler) { f.now.Store(&h) }

// wait returns when nobody listens any more, and why.
func (f *front) wait() error {
	<-f.ended
	return f.err
}

// close ends it at once.
func (f *front) close() error { return errors.Join(f.http.Close(), f.wait()) }

// serviceConfig says what a service is made of.
type serviceConfig struct {
	log       *slog.Logger
	db        *store.DB
	artifacts string // folder; empty refuses uploads
	addr      string
	addrFlag  string // the flag that sets addr, for messages
	tls       *tls.Config
	drain     time.Duration
	lease     time.Duration // how long a worker may be silent; zero is the engine's default
	front     *front        // where it listens already; nil listens at addr
	operator  string        // tenant whose administrators are the installation's; empty is none
	// wrap, when set, goes around the API.
	wrap func(http.Handler) http.Handler
}

// newService makes a service; run lets it answer.
func newService(ctx context.Context, cfg serviceConfig) (*service, error) {
	f := cfg.front
	if f == nil {
		var err error
		if f, err = listen(ctx, cfg); err != nil {
			return nil, err
		}
	}
	e := engine.New(cfg.db, engine.Options{Logger: cfg.log, Artifacts: cfg.artifacts, LeaseFor: cfg.lease, Operator: cfg.operator})
	s := &service{log: cfg.log, db: cfg.db, engine: e, gateway: gateway.New(e), front: f, drain: cfg.drain}
	s.loops = scheduler.New(cfg.log, scheduler.Loops(e)...)
	b := build()
	s.api = api.New(api.Config{
		Engine: e, Gateway: s.gateway, Logger: cfg.log, Version: b.Version, Commit: b.Commit, Database: databaseOf(cfg.db), Ready: e.Ping,
	})
	if cfg.wrap != nil {
		s.api = cfg.wrap(s.api)
	}
	return s, nil
}

// databaseOf names the kind of a database.
func databaseOf(db *store.DB) string {
	if db.Dialect() == driver.SQLite {
		return "sqlite"
	}
	return "postgres"
}

// url is where the service answers.
func (s *service) url() string {
	scheme := "http"
	if s.front.tls {
		scheme = "https"
	}
	addr := s.front.ln.Addr().(*net.TCPAddr)
	if addr.IP.IsUnspecified() {
		return fmt.Sprintf("%s://localhost:%d", scheme, addr.Port)
	}
	return scheme + "://" + addr.String()
}

// errStopped ends the parts of a service that others wait for.
var errStopped = errors.New("stopped")

// run serves until ctx ends. Then the workers in this process drain, and after
// them the API: what was accepted is carried out, those that wait are sent away.
// Ready is called once requests are answered. Each worker runs until its context
// ends and returns when it has drained.
func (s *service) run(ctx context.Context, ready func(), workers ...func(context.Context) error) error {
	// The core outlives the workers, which report through it.
	core, stopCore := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopCore(nil)
	var inner errgroup.Group
	part := func(name string, run func() error) {
		inner.Go(func() error {
			err := run()
			if err == nil && core.Err() == nil {
				err = errors.New("ended by itself")
			}
			if err != nil {
				err = fmt.Errorf("%s: %w", name, err)
			}
			stopCore(err)
			return err
		})
	}
	part("gateway", func() error { return s.gateway.Run(core) })
	part("loops", func() error { return s.loops.Run(core) })
	if err := s.gateway.Started(core); err != nil { // a part has failed
		return errors.Join(inner.Wait(), s.front.close())
	}
	s.front.open(s.api)
	part("API", s.front.wait)
	part("API", func() error {
		<-core.Done()
		stop, cancel := context.WithTimeout(context.WithoutCancel(core), s.drain)
		defer cancel()
		if err := s.front.http.Shutdown(stop); err != nil {
			s.log.WarnContext(core, "requests cut off", "after", s.drain)
			return s.front.http.Close()
		}
		return nil
	})

	ready()
	outer, ctx := errgroup.WithContext(ctx)
	for _, w := range workers {
		outer.Go(func() error {
			if err := w(ctx); err != nil {
				return err
			}
			if ctx.Err() == nil {
				return errors.New("a worker ended by itself")
			}
			return nil
		})
	}
	outer.Go(func() error { // a part of the core that fails ends the workers too
		select {
		case <-ctx.Done():
			return nil
		case <-core.Done():
			return context.Cause(core)
		}
	})
	err := outer.Wait()
	stopCore(errStopped)
	return errors.Join(err, inner.Wait())
}

// listenError says why nothing can listen at addr.
func listenError(flag, addr string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("--%s %s: the port is in use by another program; stop it, or choose another port", flag, addr)
	}
	return fmt.Errorf("--%s %s: %w", flag, addr, err)
}

// loopback reports whether only this machine reaches addr.
func loopback(addr string) (bool, error) {
	host, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return false, fmt.Errorf("%q is not an address such as 127.0.0.1:8420", addr)
	}
	if host == "localhost" {
		return true, nil
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback(), nil
}

// notify tells systemd what the service does ("READY=1", "STOPPING=1"), where
// systemd has started it.
func (a *app) notify(state string) {
	path := a.env("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	if strings.HasPrefix(path, "@") { // an abstract socket
		path = "\x00" + path[1:]
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		a.note("drover: systemd cannot be told %s: %v", state, err)
		return
	}
	_, err = conn.Write([]byte(state))
	if err = errors.Join(err, conn.Close()); err != nil {
		a.note("drover: systemd cannot be told %s: %v", state, err)
	}
}

// makeFolder makes a folder for the service's own files.
func makeFolder(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("make the folder %s: %w", path, err)
	}
	return nil
}
