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
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/drover-dev/drover/worker"
)

// The kinds of task.
const (
	KindExec = "exec"
	KindHTTP = "http"
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
	w.HandleFunc(KindExec, newProgram(o).run)
	return nil
}

// RegisterHTTP has w make requests.
func RegisterHTTP(w *worker.Worker, o Options) error {
	o, err := o.filled()
	if err != nil {
		return err
	}
	w.HandleFunc(KindHTTP, newRequester(o).run)
	return nil
}

// bad is a permanent failure because of what the task says.
func bad(format string, args ...any) error {
	return worker.Permanent(worker.TypedError("bad_input", fmt.Errorf(format, args...)))
}

// decode reads a task's input strictly: a member nobody knows is a mistake.
func decode(kind string, in json.RawMessage, v any) error {
	if len(bytes.TrimSpace(in)) == 0 {
		in = json.RawMessage("{}")
	}
	d := json.NewDecoder(bytes.NewReader(in))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return bad("read the input of %s: %s", kind, inWords(err))
	}
	if _, err := d.Token(); err != io.EOF {
		return bad("read the input of %s: something follows the value", kind)
	}
	return nil
}

// inWords says what JSON does not fit, and what would, without the words of Go.
func inWords(err error) string {
	var e *json.UnmarshalTypeError
	if !errors.As(err, &e) {
		return strings.TrimPrefix(err.Error(), "json: ")
	}
	want := "a text"
	switch e.Type.Kind() {
	case reflect.Map, reflect.Struct:
		want = "an object"
	case reflect.Slice:
		want = "a list"
	case reflect.Int:
		want = "a whole number"
	}
	field := e.Field
	if field == "" {
		field = "it"
	}
	is := map[string]string{"array": "list", "string": "text", "bool": "true or false"}
	return fmt.Sprintf("%s: there must be %s where %s is", field, want, cmp.Or(is[e.Value], e.Value))
}

// CheckWith says what is wrong with the "with" of a pipeline's task of a built-in
// kind, as far as that can be told before its expressions have values. Of other
// kinds nothing is known.
func CheckWith(kind string, with json.RawMessage) error {
	var members []string
	switch kind {
	case KindExec:
		members = []string{"command", "env", "files", "stdin", "exit_codes"}
	case KindHTTP:
		members = []string{"method", "url", "headers", "body", "timeout", "expect"}
	case KindSimulate:
		members = []string{"compute", "sleep"}
	default:
		return nil
	}
	const opens = "${{"
	if !bytes.Contains(with, []byte(opens)) {
		if kind == KindSimulate {
			_, err := ParseSimulated(with)
			return err
		}
		if kind == KindHTTP {
			return decode(kind, with, &httpInput{})
		}
		var in execInput
		if err := decode(kind, with, &in); err != nil {
			return err
		}
		return in.check()
	}
	var given map[string]json.RawMessage
	if json.Unmarshal(with, &given) != nil {
		return nil // an expression gives all of it
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !slices.Contains(members, name) {
			return bad("%s has no key %q; its keys are %s", kind, name, strings.Join(members, ", "))
		}
		if bytes.Contains(given[name], []byte(opens)) && (name != "command" || bytes.HasPrefix(given[name], []byte(`"`+opens))) {
			delete(given, name)
		}
	}
	if command, ok := given["command"]; ok && kind == KindExec {
		return decode(kind, json.RawMessage(`{"command":`+string(command)+`}`), &execInput{})
	}
	return nil
}

// text is a value in a place where programs and headers take text: a string is
// itself, anything else its JSON, so that 2 and "2" mean the same.
type text string

// UnmarshalJSON reads any JSON but null.
func (t *text) UnmarshalJSON(b []byte) error {
	var s string
	switch {
	case string(b) == "null":
		return errors.New("null stands where a text should be")
	case b[0] == '"':
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
	default:
		var c bytes.Buffer
		if err := json.Compact(&c, b); err != nil {
			return err
		}
		s = c.String()
	}
	if strings.IndexByte(s, 0) >= 0 {
		return errors.New("a text has a NUL in it")
	}
	*t = text(s)
	return nil
}
