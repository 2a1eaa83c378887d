// Package engine holds every change of state, a file each. An operation opens
// one transaction, loads and locks the rows concerned in one fixed order
// (ARCHITECTURE.md), lets pure functions decide, and stores what they decided.
// It starts no goroutines; loops and handlers call it.
package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

// Options of New; the zero value works.
type Options struct {
	Logger *slog.Logger // default: discards
	// Artifacts is the folder that holds the bytes of artifacts; empty refuses uploads.
	Artifacts string
	// LeaseFor is how long a session lives from each renewal; default 30 s, at
	// least 1 s. Workers renew every third of it.
	LeaseFor time.Duration
	// CancelGrace is how long a worker may clean up after a cancel; default 30 s.
	CancelGrace time.Duration
	// Jitter draws from [0, 1); default math/rand/v2. Simulation seeds it.
	Jitter func() float64
	// Operator is a tenant whose administrators are the installation's, as those of the
	// tenant system are: of a server that is one person's, of a program that holds the
	// database. Empty is none.
	Operator string
}

// Engine is the one way to change state.
type Engine struct {
	// OnQueued, when set, is told after commit which queues have new claimable tasks.
	OnQueued func(queues []string)
	// OnEvents, when set, is told after commit which jobs have new events.
	OnEvents func(jobs []drover.JobID)
	// OnGranted, when set, is told after commit that handlers have got what they waited
	// for; OnFreed, that permits were given back by tasks that ended.
	OnGranted, OnFreed func()

	db       *store.DB
	opts     Options
	log      *slog.Logger
	names    names
	plans    plans
	jobHeads heads
	lanes    cursors
	marks    claimMarks
	endowed  endowed
	filing   filing
	seen     observed
	counts   int                  // rows of a table up to which all that waits is counted
	gate     atomic.Pointer[gate] // nil: nothing was ever set
	admitter admitter
	lineLog  lineLog
	rooms    sync.Pool // of *room

	tokens tokenCache

	purge    purgeRound
	round    reconcileRound
	keysFrom atomic.Int64 // where the next round of CleanOnce looks for old idempotency keys
}

// New makes an engine on a migrated database.
func New(db *store.DB, o Options) *Engine {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.LeaseFor = cmp.Or(max(o.LeaseFor, 0), 30*time.Second)
	o.CancelGrace = cmp.Or(max(o.CancelGrace, 0), 30*time.Second)
	if o.Jitter == nil {
		o.Jitter = rand.Float64
	}
	e := &Engine{db: db, opts: o, log: o.Logger, counts: store.MaxCount}
	e.admitter.wake = make(chan struct{}, 1)
	e.rooms.New = func() any { return new(room) }
	return e
}

// IsAway reports whether err says that the database cannot be reached: nothing
// has changed, and it may be back soon.
func IsAway(err error) bool { return store.IsAway(err) }

// IsUnknown reports whether err leaves open if the operation was carried out: the
// answer to its commit was lost, or its time was over.
func IsUnknown(err error) bool {
	return store.IsUnknown(err) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// Now is the store's time.
func (e *Engine) Now() time.Time { return e.db.Now() }

func (e *Engine) now() lifecycle.Instant { return lifecycle.At(e.db.Now()) }

// Caller is who asks: a tenant and the token that proved it.
type Caller struct {
	// Tenant is the small number of the tenant; TenantName its name.
	Tenant     int32
	TenantName string
	// Actor is the token's name, for creators and audit rows.
	Actor  string
	Scopes []string
	// System marks a worker token that serves every tenant.
	System bool
	// Operator marks one of the tenant of Options.Operator.
	Operator bool
}

// Has reports whether the caller holds scope; "admin" holds all.
func (c Caller) Has(scope string) bool {
	for _, s := range c.Scopes {
		if s == scope || s == "admin" {
			return true
		}
	}
	return false
}

// Operates reports whether the caller may set what holds for every tenant. The admin of
// a tenant may not.
func (c Caller) Operates() bool { return (c.System || c.Operator) && c.Has("admin") }

// operates is the refusal of a caller who may not set what holds for every tenant.
func (c Caller) operates(what string) error {
	if c.Operates() {
		return nil
	}
	return drover.Errorf(drover.CodeForbidden, "%s: needs a token of the tenant %s with the scope admin; make one with `drover token create --tenant %s --name NAME --scope admin`", what, store.SystemTenant, store.SystemTenant)
}

// JobQuery selects jobs, newest first.
type JobQuery struct {
	Status         []drover.Status
	Pipeline, Kind string
	Labels         map[string]string
	CreatedAfter   time.Time
	CreatedBefore  time.Time
	// Degraded, when set, selects the jobs that are degraded, or those that are not.
	Degraded *bool
	// Top, when set, selects the jobs that no task of another job runs, or those that one
	// does.
	Top *bool
	// After is the last id of the previous page; zero starts.
	After drover.JobID
	// Limit is how many at most; 0 is 50.
	Limit int
}

// TaskQuery selects tasks of one job in the order of the graph.
type TaskQuery struct {
	Job    drover.JobID
	Status []drover.Status
	Name   string
	// After is the last task of the previous page; zero starts.
	After drover.TaskID
	Limit int
}

// Request carries what actions on jobs and tasks have in common.
type Request struct {
	// ID makes a repeat of the request give the first answer for 24 h; empty is none.
	ID string
	// Reason is free text for the record.
	Reason string
}

// ReplayRequest opens a new generation of a finished task.
type ReplayRequest struct {
	Request
	// Input replaces the task's input; empty keeps it.
	Input json.RawMessage
	// Reopen replays it though its dead letter was closed.
	Reopen bool
}

// LogQuery selects log lines of a job or a task, oldest first.
type LogQuery struct {
	Job     drover.JobID
	Task    drover.TaskID
	Attempt int
	// After is the cursor of the previous page; empty starts.
	After string
	Limit int
}

// ArtifactQuery selects artifacts, newest first.
type ArtifactQuery struct {
	Job   drover.JobID
	Task  drover.TaskID
	Kind  string
	After drover.ArtifactID
	Limit int
}

// Settlement is the outcomes one session reports, and the acquire that rides on them.
type Settlement struct {
	Caller   Caller
	Session  drover.SessionID
	Outcomes []drover.Outcome
	Acquire  *drover.Acquire
}

// SettleResult answers one Settlement. Err is set when the settlement was
// refused whole; otherwise there is one Settled for each Outcome, in order.
type SettleResult struct {
	Settled []drover.Settled
	Leases  []drover.Lease
	Err     error
}

// Blob is an open artifact: its bytes, seekable.
type Blob interface {
	io.ReadSeekCloser
}
