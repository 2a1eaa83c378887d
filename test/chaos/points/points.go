// Package points breaks a server at a named point: before or after the commit of
// one kind of transaction, or after a request was carried out and before its
// answer. It wraps the two seams, the database driver and the HTTP handler, so
// that nothing of it is in the engine. A transaction's kind is told by the names
// of the statements that did something in it. The server's program has it only
// when it is built with -tags chaos.
package points

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/drover-dev/drover/internal/store/driver"
)

// Environment variables of a server that has points.
const (
	// ArmEnv arms a point from the start on: "name mode".
	ArmEnv = "DROVER_CHAOS_POINT"
	// FiredEnv names the file to which each point is written before it breaks.
	FiredEnv = "DROVER_CHAOS_FIRED"
	// NapEnv is how long mode Sleep sleeps.
	NapEnv = "DROVER_CHAOS_NAP"
)

// ArmPath arms a point of a running server: POST /chaos/arm?point=…&mode=…
const ArmPath = "/chaos/arm"

// How a server breaks.
const (
	Exit    = "exit"    // SIGKILL to itself
	Error   = "error"   // before a commit: the transaction fails and is rolled back
	Unknown = "unknown" // the caller is told that the answer of the commit was lost
	Sleep   = "sleep"   // it goes on after a nap that is longer than a lease
	Lost    = "lost"    // of an answer: the connection is cut instead
)

// Point is where a server may break.
type Point struct {
	Name string
	// of lists, for a transaction, statements of which each must have done
	// something; words in one string with | between them are alternatives.
	of []string
	// not lists statements of which none must have done anything.
	not []string
	// route, when set, is the end of "METHOD /path" of the request it belongs to.
	route string
	// idle transactions count too: those that found nothing to do.
	idle  bool
	after bool
	// script is a migration's; answer is no transaction but a request's answer.
	script, answer bool
	// Slow points are reached only now and then.
	Slow bool
}

// Modes are the ways to break at the point.
func (p Point) Modes() []string {
	switch {
	case p.answer:
		return []string{Exit, Lost}
	case p.script:
		return []string{Exit}
	case p.after:
		return []string{Exit, Unknown, Sleep}
	}
	return []string{Exit, Error, Unknown}
}

// claim is what a claim is called on the two databases.
const claim = "claim|claim of a tenant|insert running"

// All lists every point: before and after the commit of each kind of transaction,
// and the answer of each kind of request.
var All = func() (list []Point) {
	for _, p := range []Point{
		{Name: "submit", of: []string{"insert jobs"}},
		{Name: "submit with a key", of: []string{"insert jobs", "insert idempotency keys"}},
		{Name: "pipeline", of: []string{"insert pipeline"}},
		{Name: "claim", of: []string{claim}, not: []string{"take running"}},
		{Name: "settle", of: []string{"take running"}, not: strings.Split(claim, "|")},
		{Name: "settle and acquire", of: []string{"take running", claim}},
		{Name: "expand", of: []string{"take running", "insert tasks"}},
		{Name: "release children", of: []string{"take running", "lock pending"}},
		{Name: "retry", of: []string{"take running", "insert delayed"}},
		{Name: "end of a job", of: []string{"take running", "insert job_final"}},
		{Name: "renew", of: []string{"renew session"}},
		{Name: "open session", of: []string{"insert session"}},
		{Name: "close session", of: []string{"end session"}},
		{Name: "give back", of: []string{"take a session's running"}, route: "DELETE /v1/workers/"},
		{Name: "cancel", of: []string{"insert events"}, route: "/cancel"},
		{Name: "pause", of: []string{"insert events"}, route: "/pause"},
		{Name: "resume", of: []string{"insert events"}, route: "/resume"},
		{Name: "replay", of: []string{"insert events"}, route: "/replay"},
		{Name: "sweep", of: []string{"lock hold"}},
		{Name: "reap: end sessions", of: []string{"end expired sessions"}},
		{Name: "reap: take tasks", of: []string{"take a session's running"}, not: []string{"end session"}},
		{Name: "reap: clear sessions", of: []string{"mark session cleared"}},
		{Name: "timers", of: []string{"take due"}},
		{Name: "admit", of: []string{"take ready"}},
		{Name: "expire", of: []string{"take job timers"}},
		{Name: "stage artifact", of: []string{"stage artifact"}},
		{Name: "publish artifact", of: []string{"publish artifacts"}},
		{Name: "log", of: []string{"insert log lines"}},
		{Name: "progress", of: []string{"store progress"}},
		{Name: "clean", of: []string{"clean operations"}, idle: true, Slow: true},
		{Name: "migrate", script: true},
	} {
		before, after := p, p
		before.Name, after.Name, after.after = "before "+p.Name, "after "+p.Name, true
		list = append(list, before, after)
	}
	for _, route := range []string{"POST /v1/jobs", "POST /v1/jobs/batch", "POST /v1/leases/acquire", "POST /v1/leases/settle", "POST /v1/workers", "DELETE /v1/workers/…",
		"/renew", "/cancel", "/pause", "/resume", "/replay", "/logs", "/progress", "/artifacts"} {
		list = append(list, Point{Name: "answer to " + route, route: strings.TrimSuffix(route, "…"), answer: true})
	}
	return list
}()

// Named finds a point.
func Named(name string) (Point, bool) {
	i := slices.IndexFunc(All, func(p Point) bool { return p.Name == name })
	if i < 0 {
		return Point{}, false
	}
	return All[i], true
}

// Breaker holds the one point at which a server will break next.
type Breaker struct {
	file string
	nap  time.Duration

	mu    sync.Mutex
	armed *Point
	mode  string
}

// New makes a breaker as the environment says.
func New(env func(string) string) (*Breaker, error) {
	b := &Breaker{file: env(FiredEnv)}
	if nap := env(NapEnv); nap != "" {
		var err error
		if b.nap, err = time.ParseDuration(nap); err != nil {
			return nil, err
		}
	}
	if s := env(ArmEnv); s != "" {
		i := strings.LastIndexByte(s, ' ')
		if i < 0 || !b.Arm(s[:i], s[i+1:]) {
			return nil, fmt.Errorf("%s: there is no point and mode %q", ArmEnv, s)
		}
	}
	return b, nil
}

// Arm says where the server breaks next. It reports whether there is such a point.
func (b *Breaker) Arm(name, mode string) bool {
	p, ok := Named(name)
	if !ok || !slices.Contains(p.Modes(), mode) {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.armed, b.mode = &p, mode
	return true
}

// take disarms and returns the mode if is holds for the armed point. What fires
// is on the disk before anything breaks.
func (b *Breaker) take(is func(*Point) bool) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.armed == nil || !is(b.armed) {
		return ""
	}
	f, err := os.OpenFile(b.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintf(f, "%s %s\n", b.armed.Name, b.mode)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		panic(err)
	}
	b.armed = nil
	if b.mode == Exit {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // there is no return
		select {}
	}
	return b.mode
}

// errBroken is what a transaction fails with.
var errBroken = errors.New("broken on purpose")

func unknown() error { return fmt.Errorf("commit: %w: %w", driver.ErrUnknown, errBroken) }

// Driver wraps a database.
func (b *Breaker) Driver(d driver.Driver) driver.Driver { return &broken{d, b} }

type broken struct {
	driver.Driver
	b *Breaker
}

// Unwrap returns the database itself.
func (d *broken) Unwrap() driver.Driver { return d.Driver }

// Write runs a transaction and breaks before or after its commit.
func (d *broken) Write(ctx context.Context, fn func(driver.Tx) error) error {
	var did map[string]bool
	of := func(after bool) func(*Point) bool {
		return func(p *Point) bool { return !p.answer && !p.script && p.after == after && p.matches(did, routeOf(ctx)) }
	}
	err := d.Driver.Write(ctx, func(tx driver.Tx) error {
		did = map[string]bool{}
		if err := fn(watched{tx, did}); err != nil {
			return err
		}
		switch d.b.take(of(false)) {
		case Error:
			return errBroken
		case Unknown:
			return unknown()
		}
		return nil
	})
	if err != nil {
		return err
	}
	switch d.b.take(of(true)) {
	case Unknown:
		return unknown()
	case Sleep:
		time.Sleep(d.b.nap)
	}
	return nil
}

// Exec runs a script and breaks before or after it.
func (d *broken) Exec(ctx context.Context, script string) error {
	d.b.take(func(p *Point) bool { return p.script && !p.after })
	err := d.Driver.Exec(ctx, script)
	if err == nil {
		d.b.take(func(p *Point) bool { return p.script && p.after })
	}
	return err
}

// matches reports whether a transaction in which these statements did something
// is the point's.
func (p *Point) matches(did map[string]bool, route string) bool {
	if !strings.Contains(route, p.route) {
		return false
	}
	has := func(names string) bool {
		return slices.ContainsFunc(strings.Split(names, "|"), func(n string) bool {
			something, ran := did[n]
			return something || ran && p.idle
		})
	}
	return !slices.ContainsFunc(p.of, func(n string) bool { return !has(n) }) && !slices.ContainsFunc(p.not, has)
}

// watched notes which statements did something.
type watched struct {
	driver.Tx
	did map[string]bool
}

// Pipe runs the statements.
func (w watched) Pipe(ctx context.Context, list ...driver.Stmt) error {
	list = slices.Clone(list)
	counts := make([]int64, len(list))
	for i := range list {
		if s := &list[i]; s.Affected == nil {
			s.Affected = &counts[i]
		}
	}
	err := w.Tx.Pipe(ctx, list...)
	for _, s := range list {
		if err == nil && s.Text != nil && (s.Text.Batch() == 0 || driver.Len(s.Cols) > 0) {
			w.did[s.Text.Name] = w.did[s.Text.Name] || *s.Affected > 0
		}
	}
	return err
}

type routeKey struct{}

func routeOf(ctx context.Context) string {
	s, _ := ctx.Value(routeKey{}).(string)
	return s
}

// Handler wraps the API.
func (b *Breaker) Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == ArmPath {
			if !b.Arm(r.FormValue("point"), r.FormValue("mode")) {
				http.Error(w, "there is no such point and mode", http.StatusNotFound)
			}
			return
		}
		route := r.Method + " " + r.URL.Path
		r = r.WithContext(context.WithValue(r.Context(), routeKey{}, route))
		is := func(p *Point) bool { return p.answer && p.answers(route) }
		b.mu.Lock()
		armed := b.armed != nil && is(b.armed)
		b.mu.Unlock()
		if !armed {
			h.ServeHTTP(w, r)
			return
		}
		h.ServeHTTP(&unsent{header: http.Header{}}, r)
		if b.take(is) != "" {
			panic(http.ErrAbortHandler)
		}
		panic(http.ErrAbortHandler) // another request broke meanwhile; this answer is lost too
	})
}

// answers reports whether a request is the point's.
func (p *Point) answers(route string) bool {
	switch {
	case strings.HasPrefix(p.route, "POST "):
		return route == p.route
	case strings.HasPrefix(p.route, "DELETE "):
		return strings.HasPrefix(route, p.route)
	}
	return strings.HasPrefix(route, "POST ") && strings.HasSuffix(route, p.route)
}

// unsent swallows an answer.
type unsent struct{ header http.Header }

// Header returns headers that nobody sees.
func (u *unsent) Header() http.Header { return u.header }

// WriteHeader does nothing.
func (u *unsent) WriteHeader(int) {}

// Write does nothing.
func (u *unsent) Write(b []byte) (int, error) { return len(b), nil }

// Fired reads which points have fired, each as "name mode".
func Fired(path string) ([]string, error) {
	b, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n"), nil
}

// Quoted is a list of names, for messages.
func Quoted(names []string) string {
	for i := range names {
		names[i] = strconv.Quote(names[i])
	}
	return strings.Join(names, ", ")
}
