package drover

import "time"

// What a rule of intake does while it fires.
const (
	IntakeThrottle = "throttle" // new jobs are refused for the time being
	IntakeShed     = "shed"     // new jobs of a class, and of those behind it, are refused
	IntakeDivert   = "divert"   // new jobs of one task go to another queue
)

// NewIntakeRule says from when on too much waits, and what becomes of new jobs then. It
// counts tasks that could run and wait: READY and QUEUED. At least one of MaxWaiting,
// MaxAge and MaxWait is set; the rule fires when any of them is passed, and stops when
// all are four fifths of it or less.
type NewIntakeRule struct {
	// Shared makes it one for all tenants; otherwise it is about the tenant's own tasks.
	Shared bool `json:"shared,omitempty"`
	// Queue narrows it to a queue, Kind to a kind of task.
	Queue string `json:"queue,omitempty"`
	Kind  string `json:"kind,omitempty"`
	// MaxWaiting is how many tasks may wait, from 1 to 100000.
	MaxWaiting int64 `json:"max_waiting,omitempty"`
	// MaxAge is how long the oldest of them may have waited, from one second.
	MaxAge Duration `json:"max_age,omitempty"`
	// MaxWait is how long one that comes now may wait, by the forecast for its queue,
	// from one second; only with Queue.
	MaxWait Duration `json:"max_wait,omitempty"`
	// Then is throttle, shed or divert.
	Then string `json:"then"`
	// Class is the first that is shed; default batch.
	Class Class `json:"class,omitzero"`
	// DivertTo is the queue that jobs go to.
	DivertTo string `json:"divert_to,omitempty"`
	// Reason is kept with the change.
	Reason string `json:"reason,omitempty"`
}

// IntakeRule bounds what is taken in.
type IntakeRule struct {
	Name       string   `json:"name"`
	Shared     bool     `json:"shared,omitempty"`
	Queue      string   `json:"queue,omitempty"`
	Kind       string   `json:"kind,omitempty"`
	MaxWaiting int64    `json:"max_waiting,omitempty"`
	MaxAge     Duration `json:"max_age,omitempty"`
	MaxWait    Duration `json:"max_wait,omitempty"`
	Then       string   `json:"then"`
	Class      Class    `json:"class,omitzero"`
	DivertTo   string   `json:"divert_to,omitempty"`
	// Firing says that it holds now, Since since when, Why by what measure.
	Firing bool      `json:"firing"`
	Since  time.Time `json:"since,omitzero"`
	Why    string    `json:"why,omitempty"`
	// Measured is how things stand now.
	Measured  *IntakeMeasure `json:"measured,omitempty"`
	Version   int            `json:"version"`
	CreatedAt time.Time      `json:"created_at"`
	UpdatedAt time.Time      `json:"updated_at"`
	// Actor changed it last.
	Actor string `json:"actor,omitempty"`
	// Changes are who changed it, and when it began and ceased to fire, the last first;
	// lists leave them out.
	Changes []IntakeChange `json:"changes,omitempty"`
}

// IntakeMeasure is how much waits.
type IntakeMeasure struct {
	// Waiting is how many, counted up to a little more than the rule's max_waiting, or than
	// 10,000 where that is less.
	Waiting int64    `json:"waiting"`
	Age     Duration `json:"age,omitzero"` // of the oldest
	// Wait is the forecast for the queue; none where nothing is known.
	Wait *Duration `json:"wait,omitempty"`
}

// IntakeChange is a record of who changed a rule, or of when it began and ceased to fire.
type IntakeChange struct {
	At     time.Time      `json:"at"`
	Action string         `json:"action"` // set, deleted, fired, cleared
	Actor  string         `json:"actor,omitempty"`
	Reason string         `json:"reason,omitempty"`
	Was    *NewIntakeRule `json:"was,omitempty"`
	Is     *NewIntakeRule `json:"is,omitempty"`
}
