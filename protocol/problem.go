package protocol

import (
	"context"
	"errors"
	"net/http"

	"github.com/drover-dev/drover"
)

// Problem is the answer to a refused request, as RFC 9457 defines it, with
// members of our own: code and what follows it.
type Problem struct {
	Type     string              `json:"type"`
	Title    string              `json:"title"`
	Status   int                 `json:"status"`
	Detail   string              `json:"detail,omitempty"`
	Instance string              `json:"instance,omitempty"`
	Code     drover.Code         `json:"code"`
	Errors   []drover.FieldError `json:"errors,omitempty"`
	TraceID  string              `json:"trace_id,omitempty"`
	// Retryable says that the same request may succeed later.
	Retryable bool `json:"retryable"`
	// RetryAfter says when; the Retry-After header has it in whole seconds.
	RetryAfter drover.Duration `json:"retry_after,omitzero"`
	// Policy is the rule of intake that refused it, Quota how many tasks that lets wait;
	// none where it does not count. The headers RateLimit-Policy and RateLimit say the same.
	Policy string `json:"policy,omitempty"`
	Quota  int64  `json:"quota,omitempty"`
}

type codeFacts struct {
	status    int
	title     string
	retryable bool
}

var codes = map[drover.Code]codeFacts{
	drover.CodeValidation:          {http.StatusBadRequest, "The request is not valid", false},
	drover.CodeIdempotencyMissing:  {http.StatusBadRequest, "An idempotency key is required", false},
	drover.CodeCursorExpired:       {http.StatusBadRequest, "The cursor has expired", false},
	drover.CodeUnauthenticated:     {http.StatusUnauthorized, "A valid token is required", false},
	drover.CodeForbidden:           {http.StatusForbidden, "The token does not permit this", false},
	drover.CodeNotFound:            {http.StatusNotFound, "There is no such thing", false},
	drover.CodeConflict:            {http.StatusConflict, "It has changed since it was read", true},
	drover.CodeInvalidTransition:   {http.StatusConflict, "Not allowed in this state", false},
	drover.CodeDraining:            {http.StatusConflict, "The queue takes no new jobs", false},
	drover.CodeLeaseLost:           {http.StatusConflict, "The lease is lost", false},
	drover.CodeDeadlock:            {http.StatusConflict, "It would wait for ever", false},
	drover.CodeIdempotencyInUse:    {http.StatusConflict, "The first request with this key has not ended", true},
	drover.CodePreconditionFailed:  {http.StatusPreconditionFailed, "The precondition does not hold", false},
	drover.CodePayloadTooLarge:     {http.StatusRequestEntityTooLarge, "The payload is too large", false},
	drover.CodeIdempotencyReused:   {http.StatusUnprocessableEntity, "The idempotency key was used for another request", false},
	drover.CodeSchemaMismatch:      {http.StatusUnprocessableEntity, "The input does not match the schema", false},
	drover.CodeCycle:               {http.StatusUnprocessableEntity, "The tasks wait for each other in a ring", false},
	drover.CodeTooManyTasks:        {http.StatusUnprocessableEntity, "There are too many tasks", false},
	drover.CodeExceedsLimit:        {http.StatusUnprocessableEntity, "It asks for more than there is", false},
	drover.CodeBudget:              {http.StatusUnprocessableEntity, "It is more than the budget allows", false},
	drover.CodeQuota:               {http.StatusTooManyRequests, "The tenant has too much waiting", true},
	drover.CodeRateLimited:         {http.StatusTooManyRequests, "The queue takes no more now", true},
	drover.CodeExpression:          {http.StatusUnprocessableEntity, "An expression has no value", false},
	drover.CodePreconditionMissing: {http.StatusPreconditionRequired, "A precondition is required", false},
	drover.CodeInternal:            {http.StatusInternalServerError, "A fault of the server", true},
	drover.CodeOverloaded:          {http.StatusServiceUnavailable, "The server is overloaded", true},
}

// StatusOf returns the HTTP status of a code; 500 for one it does not know.
func StatusOf(code drover.Code) int {
	if f, ok := codes[code]; ok {
		return f.status
	}
	return http.StatusInternalServerError
}

// TypeOf returns the problem type of a code.
func TypeOf(code drover.Code) string { return "urn:drover:problem:" + string(code) }

// CodeOfStatus returns the code that fits an HTTP status best, for answers that
// carry none because a proxy made them.
func CodeOfStatus(status int) drover.Code {
	switch status {
	case http.StatusUnauthorized, http.StatusProxyAuthRequired:
		return drover.CodeUnauthenticated
	case http.StatusForbidden:
		return drover.CodeForbidden
	case http.StatusNotFound, http.StatusGone:
		return drover.CodeNotFound
	case http.StatusConflict:
		return drover.CodeConflict
	case http.StatusPreconditionFailed:
		return drover.CodePreconditionFailed
	case http.StatusPreconditionRequired:
		return drover.CodePreconditionMissing
	case http.StatusRequestEntityTooLarge:
		return drover.CodePayloadTooLarge
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return drover.CodeOverloaded
	}
	if status >= 400 && status < 500 {
		return drover.CodeValidation
	}
	return drover.CodeInternal
}

// fault is what is told of an error that only the server's log tells of.
const fault = "a fault of the server; its log has more under the trace id"

// FromError makes the problem that tells err. An error without a *drover.Error
// in its chain becomes "internal" without its text, which may hold what the
// caller must not see: log it beside the trace id. A context that ended becomes
// "overloaded".
func FromError(err error) *Problem {
	var e *drover.Error
	if !errors.As(err, &e) {
		e = &drover.Error{Code: drover.CodeInternal, Detail: fault}
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			e = &drover.Error{Code: drover.CodeOverloaded, Detail: "the server did not finish in time; ask again"}
		}
	}
	f, ok := codes[e.Code]
	if !ok {
		f = codes[drover.CodeInternal]
	}
	return &Problem{
		Type: TypeOf(e.Code), Title: f.title, Status: f.status, Detail: e.Detail, Code: e.Code, Errors: e.Fields,
		Retryable: f.retryable, RetryAfter: drover.Duration(e.RetryAfter), Policy: e.Policy, Quota: e.Quota,
	}
}

// ToError returns the refusal the problem tells, so that errors.Is(err,
// drover.ErrNotFound) works on both sides of the wire. Of a nil problem it is nil.
func (p *Problem) ToError() *drover.Error {
	if p == nil {
		return nil
	}
	e := &drover.Error{Code: p.Code, Detail: p.Detail, Fields: p.Errors, RetryAfter: p.RetryAfter.Std(), Policy: p.Policy, Quota: p.Quota}
	if e.Code == "" {
		e.Code = CodeOfStatus(p.Status)
	}
	switch {
	case e.Detail == "":
		e.Detail = p.Title
	case e.Detail == fault && p.TraceID != "": // or nobody knows what to look for
		e.Detail += " " + p.TraceID
	}
	return e
}
