// Package dag turns a pipeline's definition into a plan and answers the
// engine's questions about it: which rows a job begins with, what becomes
// ready when a row ends, what a map grows into, and what input a task gets.
// It does no I/O, reads no clock and draws no random numbers.
package dag
