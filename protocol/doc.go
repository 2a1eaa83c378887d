// Package protocol holds the messages between Drover and its clients and
// workers, and the interface a worker speaks to the server through. The words
// (Job, Task, Lease, Outcome …) are package drover's; here are the envelopes
// around them, the problem answer, and the names of headers.
//
// testdata has one JSON file for each message; every SDK must read each of them
// and write it back equal.
package protocol
