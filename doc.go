// Package drover holds the words of Drover: jobs, tasks, their states, events,
// ids and error kinds. It does no I/O and imports nothing but the standard
// library; every other package speaks in these terms.
//
// A Job is one piece of work that somebody cares about. It is made of one or
// more Tasks; a Task is the smallest unit handed to a worker. A worker holds a
// Task under a Lease whose LeaseVersion fences every write it makes.
package drover
