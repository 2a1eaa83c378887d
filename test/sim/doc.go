// Package sim is a deterministic simulation of Drover: the real engine on the
// real SQLite store, in memory, in one thread, with a clock that jumps. A seed is
// a world of servers, workers and clients, of what they do, and of the faults
// that strike them; the same seed is the same world, row by row.
//
// Faults strike where the outside is: at a server's connection to the database
// (link), between a worker or client and a server (send), and at the processes
// themselves. The engine is called by its steps alone. Every transaction's rows
// are read from SQLite as they change (database) and held against rules that the
// ghost knows by itself.
//
// Jobs are deleted and outlive their time, tasks have a schedule_to_close, beat
// and keep checkpoints, and artifacts are uploaded, like everything else that a
// world does.
//
// plan.go draws a world, world.go runs it, ghost.go and answers.go check it,
// campaign.go runs many, smaller.go makes a failure small.
package sim
