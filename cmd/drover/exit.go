package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"github.com/drover-dev/drover"
)

// The exit codes. docs/cli.md has the table.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitAuth        = 4
	exitConflict    = 5
	exitFailed      = 6 // the job waited for ended FAILED
	exitCancelled   = 7 // the job waited for ended CANCELLED
	exitPending     = 8 // the job asked about has not ended
	exitTimeout     = 124
	exitInterrupted = 130
	exitTerminated  = 143
)

// exit ends the command with a code of its own; without err nothing is printed.
type exit struct {
	code int
	err  error
}

func (e *exit) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

// usagef is a mistake in how the command was called.
func usagef(format string, args ...any) error {
	return &exit{code: exitUsage, err: fmt.Errorf(format, args...)}
}

// exitf ends with a code and a message.
func exitf(code int, format string, args ...any) error {
	return &exit{code: code, err: fmt.Errorf(format, args...)}
}

// exitCode maps an error to the code of the process.
func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	var e *exit
	if errors.As(err, &e) {
		return e.code
	}
	switch drover.CodeOf(err) {
	case drover.CodeNotFound:
		return exitNotFound
	case drover.CodeUnauthenticated, drover.CodeForbidden:
		return exitAuth
	case drover.CodeConflict, drover.CodeInvalidTransition, drover.CodeLeaseLost, drover.CodeDeadlock, drover.CodeIdempotencyInUse, drover.CodeIdempotencyReused,
		drover.CodePreconditionFailed, drover.CodePreconditionMissing:
		return exitConflict
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return exitTimeout
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	}
	// What cobra itself finds has no type: an unknown command, a missing flag.
	for _, prefix := range []string{"unknown command", "required flag", "if any flags in the group", "at least one of the flags"} {
		if strings.HasPrefix(err.Error(), prefix) {
			return exitUsage
		}
	}
	return exitError
}

// remedy says what to do about an error, where that is known.
func remedy(err error) string {
	switch drover.CodeOf(err) {
	case drover.CodeUnauthenticated:
		return "give a valid token with --token, DROVER_TOKEN, DROVER_TOKEN_FILE or a context; that of a \"drover dev\" is in the file token of its state folder (.drover)"
	case drover.CodeForbidden:
		return `"drover token list" shows the scopes; make a token that has this one with "drover token create --scope"`
	case drover.CodeOverloaded:
		return "try again in a moment"
	}
	var away *awayError
	if errors.As(err, &away) {
		return "is it running, and is --database-url (DROVER_DATABASE_URL) right?"
	}
	var dial *net.OpError
	if errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &dial) && dial.Op == "dial" {
		return `start a server with "drover dev", or name another with --url, DROVER_URL or a context`
	}
	return ""
}

// report prints err as one line, and one more for each further place it names,
// and returns the exit code.
func (a *app) report(err error) int {
	code := exitCode(err)
	if err == nil || (code >= exitInterrupted && drover.CodeOf(err) == "") {
		return code
	}
	var quiet *exit
	if errors.As(err, &quiet) && quiet.err == nil {
		return code
	}
	text := err.Error()
	refused, ok := asRefusal(err)
	if ok && len(refused.Fields) > 0 {
		text = refused.Detail
		if text == "" {
			text = string(refused.Code)
		}
	}
	if ok && refused.Code == drover.CodeUnauthenticated && strings.HasPrefix(refused.Detail, "send the header") {
		text = "the server wants a token" // how HTTP sends it is not the reader's business
	}
	if r := remedy(err); r != "" && code != exitUsage {
		text += "; " + r
	}
	a.note("drover: %s", clean(text, true))
	if ok {
		for _, f := range refused.Fields {
			a.note("  %s: %s", clean(place(f), true), clean(f.Message, true))
		}
	}
	return code
}

// place tells where in a request or file a mistake is.
func place(f drover.FieldError) string {
	switch {
	case f.Line > 0 && f.Column > 0:
		return fmt.Sprintf("line %d:%d: %s", f.Line, f.Column, f.Field)
	case f.Line > 0:
		return fmt.Sprintf("line %d: %s", f.Line, f.Field)
	}
	return f.Field
}

// asRefusal returns the refusal in err's chain.
func asRefusal(err error) (*drover.Error, bool) {
	var e *drover.Error
	return e, errors.As(err, &e)
}
