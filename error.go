package drover

import (
	"errors"
	"fmt"
	"time"
)

// Code says what kind of refusal an Error is. It is the "code" member of a
// problem+json answer; the list is closed.
type Code string

// The problem codes.
const (
	CodeValidation          Code = "validation-failed"       // 400: the request is malformed; Fields says where
	CodeUnauthenticated     Code = "unauthenticated"         // 401
	CodeForbidden           Code = "forbidden"               // 403
	CodeNotFound            Code = "not-found"               // 404
	CodeConflict            Code = "version-conflict"        // 409: changed since it was read
	CodeInvalidTransition   Code = "invalid-transition"      // 409: not allowed in this state
	CodeDraining            Code = "queue-draining"          // 409: the queue takes no new jobs until it is resumed
	CodeLeaseLost           Code = "lease-lost"              // 409: the lease_version has moved on
	CodeDeadlock            Code = "deadlock"                // 409: waiting for it would never end; Fields holds the ring
	CodeIdempotencyInUse    Code = "idempotency-key-in-use"  // 409: the first request with this key has not ended
	CodeIdempotencyReused   Code = "idempotency-key-reused"  // 422: same key, other body
	CodeIdempotencyMissing  Code = "idempotency-key-missing" // 400
	CodePayloadTooLarge     Code = "payload-too-large"       // 413
	CodeSchemaMismatch      Code = "schema-mismatch"         // 422: the input does not match the pipeline's schema
	CodeCycle               Code = "cycle-detected"          // 422: Fields holds the ring
	CodeTooManyTasks        Code = "too-many-tasks"          // 422
	CodeExpression          Code = "expression-failed"       // 422
	CodeExceedsLimit        Code = "request-exceeds-limit"   // 422: more than the limit has, or than any worker could give
	CodeQuota               Code = "quota-exceeded"          // 429: the tenant has too much waiting; RetryAfter says when to ask again
	CodeBudget              Code = "budget-exceeded"         // 422: more of something than may be made, such as limits
	CodeRateLimited         Code = "rate-limited"            // 429: the queue takes no more now; RetryAfter says when to ask again
	CodePreconditionFailed  Code = "precondition-failed"     // 412
	CodePreconditionMissing Code = "precondition-required"   // 428
	CodeCursorExpired       Code = "cursor-expired"          // 400
	CodeOverloaded          Code = "overloaded"              // 503
	CodeInternal            Code = "internal"                // 500: a fault of the server; see its log
)

// FieldError names one place in a request and what is wrong there.
type FieldError struct {
	// Field is a path such as "input.object_uri" or "tasks.extract.needs[0]".
	Field string `json:"field"`
	// Line and Column are 1-based positions in a definition file; 0 when there is none.
	Line   int `json:"line,omitempty"`
	Column int `json:"column,omitempty"`
	// Message says what is wrong and what would be right.
	Message string `json:"message"`
}

// Error is a refusal with a reason a caller can act on. Test its kind with
// errors.Is and one of the sentinels below.
type Error struct {
	Code   Code
	Detail string
	Fields []FieldError
	// RetryAfter, when positive, says when asking again may help.
	RetryAfter time.Duration
	// Policy is the rule that refused it, Quota how much that lets wait; 0 where it does
	// not count.
	Policy string
	Quota  int64
}

// Sentinels, one for each code that callers branch on.
var (
	ErrNotFound          = &Error{Code: CodeNotFound}
	ErrInvalid           = &Error{Code: CodeValidation}
	ErrConflict          = &Error{Code: CodeConflict}
	ErrNotAllowed        = &Error{Code: CodeInvalidTransition}
	ErrDraining          = &Error{Code: CodeDraining}
	ErrLeaseLost         = &Error{Code: CodeLeaseLost}
	ErrDeadlock          = &Error{Code: CodeDeadlock}
	ErrIdempotencyReused = &Error{Code: CodeIdempotencyReused}
	ErrIdempotencyInUse  = &Error{Code: CodeIdempotencyInUse}
	ErrUnauthenticated   = &Error{Code: CodeUnauthenticated}
	ErrForbidden         = &Error{Code: CodeForbidden}
	ErrTooLarge          = &Error{Code: CodePayloadTooLarge}
	ErrOverloaded        = &Error{Code: CodeOverloaded}
	ErrExceedsLimit      = &Error{Code: CodeExceedsLimit}
	ErrQuota             = &Error{Code: CodeQuota}
	ErrBudget            = &Error{Code: CodeBudget}
	ErrRateLimited       = &Error{Code: CodeRateLimited}
	ErrPrecondition      = &Error{Code: CodePreconditionFailed}
)

// Errorf makes an Error with a formatted detail.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Detail: fmt.Sprintf(format, args...)}
}

// Error returns the detail, or the code when there is none, followed by the
// first field's complaint.
func (e *Error) Error() string {
	s := e.Detail
	if s == "" {
		s = string(e.Code)
	}
	if len(e.Fields) == 0 {
		return s
	}
	f := e.Fields[0]
	at := f.Field
	if f.Line > 0 {
		at = fmt.Sprintf("line %d: %s", f.Line, f.Field)
	}
	s = fmt.Sprintf("%s: %s: %s", s, at, f.Message)
	if n := len(e.Fields) - 1; n > 0 {
		s += fmt.Sprintf(" (and %d more)", n)
	}
	return s
}

// Is reports whether target is an Error of the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && e != nil && t.Code == e.Code && t.Detail == "" && len(t.Fields) == 0
}

// CodeOf returns the code of the first Error in err's chain, or "".
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) && e != nil {
		return e.Code
	}
	return ""
}
