package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/drover-dev/drover"
)

// Causes with which the context of a handler ends; context.Cause tells them.
// The attempt's timeout is context.DeadlineExceeded.
var (
	// ErrLeaseLost says that the task is somebody else's by now, or will be in a
	// moment: stop, and change nothing outside any more. Nothing is reported.
	ErrLeaseLost = errors.New("the lease is lost")
	// ErrCancelled says that somebody cancelled the job: clean up and return.
	ErrCancelled = errors.New("the task is cancelled")
	// ErrShutdown says that the worker stops and its grace is over: return. An
	// error the handler returns then gives the task back without using up an attempt.
	ErrShutdown = errors.New("the worker shuts down")
)

// classed is an error that says what the engine shall do about it.
type classed struct {
	class drover.ErrorClass
	after time.Duration
	err   error
}

// Error returns the text of the error inside.
func (c *classed) Error() string {
	if c.err == nil {
		return fmt.Sprintf("not now; again in %s", c.after)
	}
	return c.err.Error()
}

// Unwrap returns the error inside.
func (c *classed) Unwrap() error { return c.err }

// Permanent says that trying again cannot help: the task ends as FAILED. It may
// be wrapped by other errors. Of nil it is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &classed{class: drover.ClassPermanent, err: err}
}

// Throttled says that the task failed because something outside asks for a
// pause: it is tried again after that, and uses up an attempt. Of nil it is nil.
func Throttled(err error, after time.Duration) error {
	if err == nil {
		return nil
	}
	return &classed{class: drover.ClassThrottled, after: max(after, 0), err: err}
}

// Snooze says that it is too early: the task runs again after d, and no attempt
// is used up.
func Snooze(d time.Duration) error {
	return &classed{class: drover.ClassSnoozed, after: max(d, 0)}
}

// TypedError gives an error a stable name, such as "exit_65" or "no_license", by
// which failures are counted and found. Permanent and Throttled may go around
// it. Of nil it is nil.
func TypedError(name string, err error) error {
	if err == nil {
		return nil
	}
	return &typed{name, err}
}

type typed struct {
	name string
	err  error
}

// Error returns the text of the error inside.
func (t *typed) Error() string { return t.err.Error() }

// Unwrap returns the error inside.
func (t *typed) Unwrap() error { return t.err }

// Bounds of what is told about a failure, in bytes.
const (
	maxMessage = 16 << 10
	maxStack   = 16 << 10
)

// outcomeOf turns a handler's error into what is reported. cause is why the
// handler's context ended, nil when it did not.
func outcomeOf(err, cause error, timeout time.Duration) drover.Outcome {
	f := &drover.Failure{Class: drover.ClassRetryable, Message: message(err)}
	o := drover.Outcome{Status: drover.OutcomeFailed, Error: f}
	var t *typed
	var refusal *drover.Error
	if errors.As(err, &t) {
		f.Type = cut(t.name, 255)
	} else if errors.As(err, &refusal) {
		f.Type = string(refusal.Code)
	}
	var c *classed
	switch {
	case errors.As(err, &c) && c.class == drover.ClassSnoozed:
		return drover.Outcome{Status: drover.OutcomeSnoozed, RetryAfter: drover.Duration(c.after)}
	case c != nil:
		f.Class = c.class
		o.RetryAfter = drover.Duration(c.after)
	case errors.Is(cause, context.DeadlineExceeded):
		f.Class = drover.ClassTimeout
		f.Message = fmt.Sprintf("took longer than %s: %s", timeout, f.Message)
	case errors.Is(cause, ErrShutdown):
		return drover.Outcome{Status: drover.OutcomeReleased}
	}
	return o
}

// message returns the text of err, cut and made valid. An Error method that
// panics gets a text of ours.
func message(err error) (s string) {
	defer func() {
		if p := recover(); p != nil {
			s = fmt.Sprintf("an error of type %T whose Error method panics", err)
		}
	}()
	return cut(err.Error(), maxMessage)
}

// cut makes s valid UTF-8 without NUL, of at most n bytes; what is longer ends
// with a mark that says how much is missing.
func cut(s string, n int) string {
	whole := len(s)
	if whole > n {
		s = s[:n]
		for i := 0; i < utf8.UTFMax && len(s) > 0; i++ { // do not halve a character
			if r, size := utf8.DecodeLastRuneInString(s); r != utf8.RuneError || size != 1 {
				break
			}
			s = s[:len(s)-1]
		}
	}
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\ufffd"), "\x00", "\ufffd")
	if whole > n {
		s += fmt.Sprintf("… (cut; %d bytes in all)", whole)
	}
	return s
}
