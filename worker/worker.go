// Package worker runs tasks. A worker opens a session with the server, takes
// leases for as many tasks as it has free slots, runs a handler for each, renews
// all its leases with one call, and reports how the attempts ended.
//
//	w, err := worker.Connect("http://127.0.0.1:8420", token, worker.Config{Queues: []string{"mail"}})
//	worker.Handle(w, "mail", func(ctx context.Context, t *worker.Task, in Mail) (Sent, error) { … })
//	err = w.Run(ctx) // until ctx ends; then it drains
//
// A task may run more than once, as a lease can be lost while a handler works:
// pass Task.Key to outside systems. At most one attempt's success is recorded.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/protocol"
)

// Config says what a worker takes and how it stops. The zero value works.
type Config struct {
	// Queues to take tasks from; default "default".
	Queues []string
	// Slots is how many tasks run at a time; default the number of processors Go uses.
	Slots int
	// Name is what people know the worker by; default "<host>/<process id>".
	Name string
	// Labels are free pairs shown with the worker. A task may ask for some.
	Labels map[string]string
	// Resources are what it has for its tasks beside slots, such as {"gpu": 2}: whole
	// units under names of your own. It is given no more than that at a time.
	Resources map[string]int64
	// Version is that of your program, shown with the worker.
	Version string
	// Logger gets what an operator could act on, and at debug level what
	// handlers log; default none.
	Logger *slog.Logger
	// Grace is how long running handlers may go on when Run's context ends;
	// default 30 s. After it they are cancelled.
	Grace time.Duration
	// CancelGrace is how long a handler may take to return once its context has
	// ended; default 10 s. After it the task is reported without it, and its
	// slot stays taken until it returns.
	CancelGrace time.Duration
}

// flushFor is how long a draining worker goes on reporting outcomes to a server
// that does not answer.
const flushFor = 10 * time.Second

// Worker takes tasks and runs them. It runs once.
type Worker struct {
	conn protocol.Worker
	cfg  Config
	log  *slog.Logger

	acquireWake, settleWake, renewWake, idleWake chan struct{} // each holds one wake-up

	hands   chan *run     // attempts for goroutines that have run one before
	waiting atomic.Int32  // goroutines that do, for hands
	over    chan struct{} // closed when Run ends

	mu       sync.Mutex // everything below
	handlers map[string]Handler
	problems []error // of HandleFunc, told by Run
	started  bool
	draining bool
	session  *session             // the open one, or nil
	runs     map[drover.Held]*run // attempts whose outcome is not decided
	live     int                  // handlers that run and are not given up
	stuck    int                  // handlers that run and are given up
	asked    int                  // slots that acquires under way may fill
	queue    []report             // outcomes to report
	inFlight [senders][]report    // outcomes being reported
}

// New makes a worker that reaches the server through conn: a *client.Client, or
// what package embedded gives.
func New(conn protocol.Worker, cfg Config) *Worker {
	w := &Worker{
		conn: conn, cfg: cfg, log: cfg.Logger, handlers: map[string]Handler{}, runs: map[drover.Held]*run{},
		acquireWake: make(chan struct{}, 1), settleWake: make(chan struct{}, 1), renewWake: make(chan struct{}, 1), idleWake: make(chan struct{}, 1),
		hands: make(chan *run), over: make(chan struct{}),
	}
	c := &w.cfg
	if len(c.Queues) == 0 {
		c.Queues = []string{"default"}
	}
	c.Queues, c.Labels, c.Resources = slices.Clone(c.Queues), maps.Clone(c.Labels), maps.Clone(c.Resources)
	if c.Slots == 0 {
		c.Slots = runtime.GOMAXPROCS(0)
	}
	if c.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "worker"
		}
		c.Name = fmt.Sprintf("%s/%d", host, os.Getpid())
	}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	if c.Grace == 0 {
		c.Grace = 30 * time.Second
	}
	if c.CancelGrace == 0 {
		c.CancelGrace = 10 * time.Second
	}
	return w
}

// Connect makes a worker for the server at url, such as "http://127.0.0.1:8420".
func Connect(url, token string, cfg Config) (*Worker, error) {
	c, err := client.New(client.Config{URL: url, Token: token, UserAgent: "drover-worker"})
	if err != nil {
		return nil, err
	}
	return New(c, cfg), nil
}

// HandleFunc has tasks of a kind run by h. A kind has one handler: a second one,
// an empty kind or no handler is an error that Run returns.
func (w *Worker) HandleFunc(kind string, h Handler) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch _, twice := w.handlers[kind]; {
	case w.started:
		w.log.Error("handler came after the start and is not used", "kind", kind)
	case kind == "" || h == nil:
		w.problems = append(w.problems, fmt.Errorf("the handler of kind %q: neither may be empty", kind))
	case twice:
		w.problems = append(w.problems, fmt.Errorf("kind %q has two handlers", kind))
	default:
		w.handlers[kind] = h
	}
}

func (w *Worker) begin(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	problems := slices.Clone(w.problems)
	if w.started {
		return errors.New("worker: has run before; make a new one")
	}
	w.started = true
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("worker: stopped before it started: %w", context.Cause(ctx))
	}
	if w.conn == nil {
		problems = append(problems, errors.New("there is no connection to a server"))
	}
	if w.cfg.Slots < 0 || w.cfg.Slots > protocol.MaxHeld {
		problems = append(problems, fmt.Errorf("Config.Slots is %d; it must be from 1 to %d", w.cfg.Slots, protocol.MaxHeld))
	}
	if w.cfg.Grace < 0 || w.cfg.CancelGrace < 0 {
		problems = append(problems, errors.New("Config.Grace and Config.CancelGrace must not be negative"))
	}
	if len(w.handlers) == 0 && len(problems) == 0 {
		problems = append(problems, errors.New("it has no handler; use worker.Handle"))
	}
	if len(problems) > 0 {
		return fmt.Errorf("worker: %w", errors.Join(problems...))
	}
	return nil
}

func (w *Worker) kinds() []string { return slices.Sorted(maps.Keys(w.handlers)) }

// Run takes tasks and runs them until ctx ends. Then it takes no more, lets the
// running ones finish within Config.Grace, cancels the rest with ErrShutdown,
// gives back what has not finished, and closes its session. It returns an error
// when it could not start or when handlers would not stop.
func (w *Worker) Run(ctx context.Context) error {
	if err := w.begin(ctx); err != nil {
		return err
	}
	live, stop := context.WithCancel(context.WithoutCancel(ctx)) // renewals and reports outlive ctx
	defer stop()
	defer close(w.over)
	taking, stopTaking := context.WithCancel(live)
	defer stopTaking()
	refused := make(chan error, 1)
	took := make(chan struct{})
	var loops sync.WaitGroup
	loops.Go(func() { w.keepSession(live, taking, refused) })
	loops.Go(func() { defer close(took); w.takeTasks(taking) })
	for sender := range senders {
		loops.Go(func() { w.reportOutcomes(live, sender) })
	}

	var err error
	select {
	case <-ctx.Done():
	case err = <-refused:
	}
	w.mu.Lock()
	w.draining = true
	running := w.live
	w.mu.Unlock()
	stopTaking()
	wake(w.renewWake)
	if running > 0 {
		w.log.Info("worker drains", "running", running, "grace", w.cfg.Grace)
	}
	w.drain(took)
	stop()
	loops.Wait()
	w.closeSession(context.WithoutCancel(ctx))
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil && w.stuck > 0 {
		err = fmt.Errorf("worker: %d handlers ignore that their context has ended, and still run", w.stuck)
	}
	return err
}

// drain returns when every handler has returned or is given up, and everything
// is reported or cannot be.
func (w *Worker) drain(took <-chan struct{}) {
	if !w.waitFor(w.cfg.Grace, func() bool { return w.live == 0 }) {
		w.mu.Lock()
		for _, r := range w.runs {
			r.cancel(ErrShutdown)
		}
		w.mu.Unlock()
		w.waitFor(w.cfg.CancelGrace+time.Minute, func() bool { return w.live == 0 }) // they are given up before that
	}
	select {
	case <-took:
	case <-time.After(5 * time.Second):
	}
	if !w.waitFor(flushFor, func() bool { return len(w.queue)+w.flying() == 0 }) {
		w.mu.Lock()
		n := len(w.queue) + w.flying()
		w.mu.Unlock()
		w.log.Error("outcomes are not reported; their tasks will run again", "outcomes", n)
	}
}

// waitFor waits until what holds, which it asks with the lock held; at most for d.
func (w *Worker) waitFor(d time.Duration, what func() bool) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		w.mu.Lock()
		ok := what()
		w.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-w.idleWake:
		case <-t.C:
			return false
		}
	}
}

// wake wakes the loop behind c, now or when it next looks.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// sleep waits for d, a wake-up (of a nil channel: none) or the end of ctx, which it reports.
func sleep(ctx context.Context, d time.Duration, c <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c:
	case <-ctx.Done():
		return false
	}
	return true
}

// pause draws the delay after the nth failure in a row, evenly between half of a
// ceiling that doubles and all of it. A refusal that names a time gets that.
func pause(n int, err error) time.Duration {
	const first, most = 100 * time.Millisecond, 5 * time.Second
	ceiling := most
	if n < 6 {
		ceiling = min(first<<n, most)
	}
	d := ceiling/2 + time.Duration(rand.Int64N(int64(ceiling/2)+1))
	var refusal *drover.Error
	if errors.As(err, &refusal) && refusal.RetryAfter > d {
		d = min(refusal.RetryAfter, time.Minute)
	}
	return d
}

// trouble logs the first failure of a row, then one every half minute, and its end.
type trouble struct {
	log  *slog.Logger
	what string
	n    int
	told time.Time
}

func (t *trouble) failed(err error) {
	if t.n++; t.n == 1 || time.Since(t.told) > 30*time.Second {
		t.told = time.Now()
		t.log.Warn("call failed; will try again", "call", t.what, "err", err, "failures", t.n)
	}
}

func (t *trouble) over() {
	if t.n > 0 {
		t.log.Info("call works again", "call", t.what, "failures", t.n)
	}
	t.n = 0
}

// unknownKind is the text for a task nobody here can run.
func (w *Worker) unknownKind(kind string) string {
	const some = 20
	kinds := w.kinds()
	more := ""
	if n := len(kinds) - some; n > 0 {
		kinds, more = kinds[:some], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("no handler for kind %q: worker %s has %s%s", cut(kind, 100), w.cfg.Name, strings.Join(kinds, ", "), more)
}
