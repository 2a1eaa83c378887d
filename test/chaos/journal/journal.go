// Package journal is how the parties of a chaos run write down what they do:
// clients, handlers, consumers and the nemesis. A record is one line of JSON,
// appended and synced before the writer goes on, so that what a killed process
// had written is there. It is all that the checker shares with the rest.
package journal

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// What a record tells. Each journal has its own.
const (
	// Of clients: a call is invoked, and then ended in one of three ways. A call
	// without an end is unknown.
	Invoke  = "invoke"
	OK      = "ok"
	Fail    = "fail"    // refused: nothing was done
	Unknown = "unknown" // no answer
	// Of handlers, around their effect.
	Begin = "begin"
	End   = "end"
	// Of a worker's transport: how the server answered for an outcome.
	Settle = "settle"
	// Of a consumer of a job's events.
	Seen = "seen"
	// Of the nemesis.
	Fault = "fault"
	// Of the harness: what the run is made of.
	Graph = "graph" // a pipeline's tasks and whom each needs
	Heal  = "heal"  // no faults from here on
	Quiet = "quiet" // the wait for the end of all work has ended
)

// Record is one line. Ids are 32 hexadecimal digits. Fields that a record does
// not need are empty.
type Record struct {
	Is   string `json:"is"`
	Mono int64  `json:"mono"` // nanoseconds of the machine's monotonic clock, the same for all processes
	Wall int64  `json:"wall"` // nanoseconds since the Unix epoch
	Pid  int    `json:"pid"`

	// A client's call: its number, what it is, what it is about.
	Op      string   `json:"op,omitempty"`      // the same for every try of one call
	Verb    string   `json:"verb,omitempty"`    // submit cancel pause resume replay
	Key     string   `json:"key,omitempty"`     // idempotency key
	Body    string   `json:"body,omitempty"`    // hash of the request's body
	Request string   `json:"request,omitempty"` // request id
	Code    string   `json:"code,omitempty"`    // of a refusal
	Job     string   `json:"job,omitempty"`
	Jobs    []string `json:"jobs,omitempty"` // of a batch
	Due     int64    `json:"due,omitempty"`  // wall clock
	Status  string   `json:"status,omitempty"`
	Again   bool     `json:"again,omitempty"` // the answer of an earlier call

	// A handler's run, and a settled outcome.
	Task       string `json:"task,omitempty"`
	Lease      int32  `json:"lease,omitempty"`
	Generation int    `json:"generation,omitempty"`
	Attempt    int    `json:"attempt,omitempty"`
	Most       int    `json:"most,omitempty"` // attempts at most
	Name       string `json:"name,omitempty"` // of the task in its pipeline
	Index      int    `json:"index,omitempty"`
	Outcome    string `json:"outcome,omitempty"`

	// An event a consumer saw.
	Seq  int64  `json:"seq,omitempty"`
	Type string `json:"type,omitempty"`

	// A fault.
	What string `json:"what,omitempty"` // kill pause cut reset hole slow swallow stop
	Whom string `json:"whom,omitempty"`
	Of   int    `json:"of,omitempty"`   // process id
	From int64  `json:"from,omitempty"` // monotonic
	To   int64  `json:"to,omitempty"`

	// A graph.
	Pipeline string              `json:"pipeline,omitempty"`
	Needs    map[string][]string `json:"needs,omitempty"`
	Maps     []string            `json:"maps,omitempty"` // which tasks are maps
	Elements map[string]int      `json:"elements,omitempty"`
	Note     string              `json:"note,omitempty"`
}

// Mono reads the monotonic clock that all processes of the machine share.
func Mono() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // it has no way to fail
	}
	return ts.Nano()
}

// Writer appends records to a file. It may be used from many goroutines.
type Writer struct {
	mu sync.Mutex
	f  *os.File
}

// Open opens a journal to append to.
func Open(path string) (*Writer, error) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &Writer{f: f}, nil
}

// Write appends records and returns once they are on the disk. The clocks and the
// process are filled in.
func (w *Writer) Write(list ...Record) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var b []byte
	for _, r := range list {
		r.Mono, r.Wall, r.Pid = Mono(), time.Now().UnixNano(), os.Getpid()
		line, err := json.Marshal(r)
		if err != nil {
			return err
		}
		b = append(append(b, line...), '\n')
	}
	if _, err := w.f.Write(b); err != nil {
		return err
	}
	return w.f.Sync()
}

// Close closes the file.
func (w *Writer) Close() error { return w.f.Close() }

// Read reads every journal (*.jsonl) of a folder, in the order of the clock. A
// last line without an end is of a process that was killed while it wrote, and
// is left out; any other damage is an error.
func Read(dir string) ([]Record, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("there is no journal in %s", dir)
	}
	var all []Record
	for _, path := range files {
		list, err := readFile(path)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		all = append(all, list...)
	}
	slices.SortStableFunc(all, func(a, b Record) int {
		switch {
		case a.Mono < b.Mono:
			return -1
		case a.Mono > b.Mono:
			return 1
		}
		return strings.Compare(a.Is, b.Is)
	})
	return all, nil
}

func readFile(path string) (list []Record, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	n := bytes.LastIndexByte(b, '\n')
	s := bufio.NewScanner(bytes.NewReader(b[:n+1]))
	s.Buffer(nil, 16<<20)
	for line := 1; s.Scan(); line++ {
		var r Record
		d := json.NewDecoder(bytes.NewReader(s.Bytes()))
		d.DisallowUnknownFields()
		if err := d.Decode(&r); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		if r.Is == "" || r.Mono == 0 {
			return nil, errors.New("a record without its kind or its time")
		}
		list = append(list, r)
	}
	return list, s.Err()
}
