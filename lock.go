package drover

import "time"

// NewLock asks for permits of a named limit for the handler of a running task.
type NewLock struct {
	// Number counts what the handlers of this attempt ask for, from 1. A repeat has the
	// number of the first and gets its answer.
	Number int32 `json:"number"`
	// Name is that of the limit.
	Name string `json:"name"`
	// Permits is how many; default 1.
	Permits int64 `json:"permits,omitempty"`
	// Exclusive says that it is a lock: the limit has one permit, and is made when there
	// is none of that name.
	Exclusive bool `json:"exclusive,omitempty"`
	// Wait is how long to wait for it in this call, at most 20 s. A call that ends
	// without it leaves the handler its place in line, for half a minute; ask again with
	// the same number. Zero does not wait: it is had at once, or not, and nobody stands in
	// line.
	Wait Duration `json:"wait,omitzero"`
}

// Lock is what the handler of a running task has of a limit, or waits for.
type Lock struct {
	Number  int32  `json:"number"`
	Name    string `json:"name"`
	Permits int64  `json:"permits"`
	// Granted says that the handler has it, until it gives it back or the attempt ends.
	Granted bool `json:"granted"`
	// Token is higher than that of whoever had permits of this limit before. What the
	// handler changes meanwhile takes the token along: who has seen a higher one refuses.
	Token int64 `json:"token,omitempty"`
	// Since is when it was granted, or since when it is waited for.
	Since time.Time `json:"since,omitzero"`
	// Position is the handler's place in line while it waits, from 1.
	Position int `json:"position,omitempty"`
}

// NewUnlock gives back what a NewLock of this number has brought, or withdraws it.
type NewUnlock struct {
	Number int32 `json:"number"`
}

// NewMeeting brings the handler of a running task to a barrier, where so many tasks of
// its job wait for each other.
type NewMeeting struct {
	// Number counts what the handlers of this attempt ask for, with those of NewLock.
	Number int32 `json:"number"`
	// Name is that of the barrier, in the job.
	Name string `json:"name"`
	// Parties is how many tasks meet.
	Parties int32 `json:"parties"`
	// Round is the how-manieth meeting at this barrier it is for the attempt, from 1. Who
	// comes to a round in which its generation has met goes on at once.
	Round int32 `json:"round"`
	// Wait is how long to wait in this call, at most 20 s. A call that ends before all
	// have come leaves the handler at the barrier for half a minute; ask again with the
	// same number.
	Wait Duration `json:"wait,omitzero"`
	// Leave says that the handler waits no longer.
	Leave bool `json:"leave,omitempty"`
}

// Meeting is how things stand at a barrier.
type Meeting struct {
	Number  int32  `json:"number"`
	Name    string `json:"name"`
	Round   int32  `json:"round"`
	Parties int32  `json:"parties"`
	// Arrived is how many have come.
	Arrived int32 `json:"arrived"`
	// Met says that all have come: the handler goes on.
	Met bool `json:"met"`
}
