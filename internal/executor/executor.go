// Package executor runs tasks for which nobody writes a worker: kind "exec"
// starts a program, kind "http" makes a request, kind "simulate" takes time. All
// are handlers on package worker, like any other.
package executor

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/drover-dev/drover/internal/builtin"
	"github.com/drover-dev/drover/worker"
)

// Options bound what tasks may do here. The zero value works.
type Options struct {
	// Workdir is the folder that a relative command such as "./steps/cut.sh" is
	// in; default the folder this process was started in.
	Workdir string
	// Temp is where each attempt gets its own folder; default the system's. What
	// a process that was killed left there is removed when the next one starts.
	Temp string
	// MaxOutput is how many bytes a result or the body of an answer may have; default 1 MiB.
	MaxOutput int64
	// MaxLog is how many bytes a program may write before the rest is not kept; default 10 MiB.
	MaxLog int64
	// KillAfter is how long a program may go on after SIGTERM; default 5 s. It
	// must be less than the worker's CancelGrace.
	KillAfter time.Duration
	// AllowPrivate lets http tasks reach private, loopback and other special
	// addresses, on any port.
	AllowPrivate bool
	// AllowPorts are the ports http tasks may reach; default 80 and 443.
	AllowPorts []int
}

func (o Options) filled() (Options, error) {
	if o.MaxOutput == 0 {
		o.MaxOutput = 1 << 20
	}
	if o.MaxLog == 0 {
		o.MaxLog = 10 << 20
	}
	if o.KillAfter == 0 {
		o.KillAfter = 5 * time.Second
	}
	if len(o.AllowPorts) == 0 {
		o.AllowPorts = []int{80, 443}
	}
	if o.MaxOutput < 0 || o.MaxLog < 0 || o.KillAfter < 0 {
		return o, errors.New("executor: MaxOutput, MaxLog and KillAfter must not be negative")
	}
	dir, err := filepath.Abs(o.Workdir)
	if err != nil {
		return o, fmt.Errorf("executor: find the working folder: %w", err)
	}
	o.Workdir = dir
	if o.Temp, err = filepath.Abs(cmp.Or(o.Temp, os.TempDir())); err != nil {
		return o, fmt.Errorf("executor: find the folder for temporary files: %w", err)
	}
	if info, err := os.Stat(dir); err != nil {
		return o, fmt.Errorf("executor: find the working folder: %w", err)
	} else if !info.IsDir() {
		return o, fmt.Errorf("executor: the working folder %s is not a folder", dir)
	}
	return o, nil
}

// Register has w run both kinds.
func Register(w *worker.Worker, o Options) error {
	return errors.Join(RegisterExec(w, o), RegisterHTTP(w, o))
}

// RegisterExec has w run programs.
func RegisterExec(w *worker.Worker, o Options) error {
	o, err := o.filled()
	if err != nil {
		return err
	}
	sweep(o.Temp)
	w.HandleFunc(builtin.Exec, newProgram(o).run)
	return nil
}

// RegisterHTTP has w make requests.
func RegisterHTTP(w *worker.Worker, o Options) error {
	o, err := o.filled()
	if err != nil {
		return err
	}
	w.HandleFunc(builtin.HTTP, newRequester(o).run)
	return nil
}

// bad is a permanent failure because of what the task says.
func bad(format string, args ...any) error {
	return worker.Permanent(worker.TypedError("bad_input", fmt.Errorf(format, args...)))
}

// decode reads a task's input, which must be as its kind takes it.
func decode(kind string, in json.RawMessage, v any) error {
	tree, err := builtin.Read(in)
	if err != nil {
		return bad("read the input of %s: %s", kind, strings.TrimPrefix(err.Error(), "json: "))
	}
	if wrong := builtin.Check(kind, tree); len(wrong) > 0 {
		return bad("%s: %s", kind, wrong[0])
	}
	if len(bytes.TrimSpace(in)) == 0 {
		return nil
	}
	if err := json.Unmarshal(in, v); err != nil {
		return bad("read the input of %s: %w", kind, err)
	}
	return nil
}

// text is a value in a place where programs and headers take text: a string is
// itself, anything else its JSON, so that 2 and "2" mean the same.
type text string

// UnmarshalJSON reads any JSON.
func (t *text) UnmarshalJSON(b []byte) error {
	if b[0] == '"' {
		return json.Unmarshal(b, (*string)(t))
	}
	var c bytes.Buffer
	if err := json.Compact(&c, b); err != nil {
		return err
	}
	*t = text(c.String())
	return nil
}
