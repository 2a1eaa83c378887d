package drover

import "time"

// Scopes of a limit: to whom it applies.
const (
	ScopeGlobal = "global" // every task of every tenant
	ScopeTenant = "tenant" // every task of the tenant
	ScopeQueue  = "queue"  // the tasks of a queue, of every tenant
	ScopeKind   = "kind"   // the tenant's tasks of a kind
	ScopeKey    = "key"    // the tenant's tasks that have a concurrency_key; each key is counted by itself
	ScopeNamed  = "named"  // the tasks that ask for it by name: a semaphore, and with a max of 1 a lock
)

// NewLimit says what a limit is to be. Exactly one of Max and Rate is set.
type NewLimit struct {
	// Scope is to whom it applies; default named. It cannot change, nor can Queue and Kind.
	Scope string `json:"scope,omitempty"`
	// Shared makes a named limit one for all tenants. Limits of the scopes global and
	// queue always are.
	Shared bool `json:"shared,omitempty"`
	// Queue narrows it to a queue, Kind to a kind of task.
	Queue string `json:"queue,omitempty"`
	Kind  string `json:"kind,omitempty"`
	// Max is how many permits are held at once, at least 1. A task holds those it takes
	// from its admission to the end of the attempt.
	Max int64 `json:"max,omitempty"`
	// Rate is how many start in a second, from 0.000001 to 1000000. Burst is how many
	// may start at once; default what comes in a quarter of a second, at least 1.
	Rate  float64 `json:"rate,omitempty"`
	Burst int64   `json:"burst,omitempty"`
	// Reason is kept with the change.
	Reason string `json:"reason,omitempty"`
}

// Limit bounds how many tasks run at once, or how many start in a second.
type Limit struct {
	Name   string  `json:"name"`
	Scope  string  `json:"scope"`
	Shared bool    `json:"shared,omitempty"`
	Queue  string  `json:"queue,omitempty"`
	Kind   string  `json:"kind,omitempty"`
	Max    int64   `json:"max,omitempty"`
	Rate   float64 `json:"rate,omitempty"`
	Burst  int64   `json:"burst,omitempty"`
	// Used is how many permits are held, of every key together; of a rate, how much of
	// the burst is used up.
	Used int64 `json:"used"`
	// Keys is how many concurrency keys hold permits.
	Keys int `json:"keys,omitempty"`
	// Until is until when nothing starts, because a task was told to come back then.
	Until     time.Time `json:"until,omitzero"`
	Version   int       `json:"version"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	// Actor changed it last.
	Actor string `json:"actor,omitempty"`
	// Holders are the tasks that hold permits, the longest first; lists leave them out.
	Holders []PermitHolder `json:"holders,omitempty"`
	// Waiters are the running tasks whose handlers wait for permits, the next first;
	// Weight is what they ask for. Lists leave them out.
	Waiters []PermitHolder `json:"waiters,omitempty"`
	// Lock says that a handler named it and nobody has set it: it has one permit, and
	// goes when nobody holds it or waits for it.
	Lock bool `json:"lock,omitempty"`
	// Changes are who changed it, the last first; lists leave them out.
	Changes []LimitChange `json:"changes,omitempty"`
	// Preview says what a dry run would change.
	Preview *LimitPreview `json:"preview,omitempty"`
}

// PermitHolder is a task that holds permits of a limit.
type PermitHolder struct {
	TaskID TaskID `json:"task_id"`
	JobID  JobID  `json:"job_id"`
	Tenant string `json:"tenant,omitempty"`
	// Key is the task's concurrency key, where the limit counts by it.
	Key    string    `json:"key,omitempty"`
	Weight int64     `json:"weight"`
	Since  time.Time `json:"since"`
	// Token is the fencing token of what its handler took while it ran.
	Token int64 `json:"token,omitempty"`
}

// LimitChange is a record of who changed what.
type LimitChange struct {
	At     time.Time `json:"at"`
	Action string    `json:"action"` // set, deleted
	Actor  string    `json:"actor"`
	Reason string    `json:"reason,omitempty"`
	Was    *NewLimit `json:"was,omitempty"`
	Is     *NewLimit `json:"is,omitempty"`
}

// LimitPreview is what a change of a limit would do at once.
type LimitPreview struct {
	// Applies is how many tasks that are admitted or run it would apply to.
	Applies int64 `json:"applies"`
	// Over is by how many permits they are above it: they go on, and nothing starts
	// until they are below.
	Over int64 `json:"over,omitempty"`
	// Starts is how many waiting tasks would start at once that do not without the
	// change; Waits how many would wait that would start without it. Both look at the
	// first of every line.
	Starts int `json:"starts"`
	Waits  int `json:"waits"`
	// Never is how many waiting tasks ask for more than it would have: they would wait
	// until it has more.
	Never int `json:"never,omitempty"`
}
