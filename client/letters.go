package client

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

// LetterFilter selects dead letters; what is empty does not matter.
type LetterFilter = protocol.LetterFilter

// DeadLetters returns a page of dead letters, newest first. Of the state "all"
// it returns those that were replayed and closed, too.
func (c *Client) DeadLetters(ctx context.Context, f LetterFilter, l List) (protocol.Page[drover.Letter], error) {
	return get[protocol.Page[drover.Letter]](ctx, c, "/v1/dead-letters", letterQuery(f, l))
}

// DeadLetterGroups returns a page of kinds of failures, the most frequent first.
func (c *Client) DeadLetterGroups(ctx context.Context, f LetterFilter, l List) (protocol.Page[drover.LetterGroup], error) {
	return get[protocol.Page[drover.LetterGroup]](ctx, c, "/v1/dead-letters/groups", letterQuery(f, l))
}

func letterQuery(f LetterFilter, l List) url.Values {
	q := l.query()
	set(q, "state", f.State)
	set(q, "fingerprint", f.Fingerprint)
	set(q, "kind", f.Kind)
	set(q, "pipeline", f.Pipeline)
	set(q, "queue", f.Queue)
	set(q, "error_class", string(f.ErrorClass))
	if f.Status != 0 {
		set(q, "status", f.Status.String())
	}
	set(q, "job_id", f.JobID.String())
	for name, t := range map[string]time.Time{"since": f.Since, "until": f.Until} {
		if !t.IsZero() {
			q.Set(name, t.UTC().Format(time.RFC3339Nano))
		}
	}
	return q
}

// DeadLetter returns the dead letter of a task with what surrounds it: that of a
// generation, or of the last one that ended badly when generation is 0.
func (c *Client) DeadLetter(ctx context.Context, id drover.TaskID, generation int) (drover.Letter, error) {
	q := url.Values{}
	if generation > 0 {
		q.Set("generation", strconv.Itoa(generation))
	}
	return get[drover.Letter](ctx, c, "/v1/dead-letters/"+id.String(), q)
}

// ReplayLetters says which dead letters to replay, and how.
type ReplayLetters = protocol.ReplayLettersRequest

// CloseLetters says which dead letters to close, and why.
type CloseLetters = protocol.CloseLettersRequest

// ReplayDeadLetters replays dead letters. The operation it returns may still go
// on: WaitOperation waits for its end.
func (c *Client) ReplayDeadLetters(ctx context.Context, r ReplayLetters) (drover.BatchOperation, error) {
	if r.RequestID == "" && !r.DryRun {
		r.RequestID = newID().String()
	}
	return post[drover.BatchOperation](ctx, c, call{path: "/v1/dead-letters/replay", repeat: true}, r)
}

// CloseDeadLetters closes dead letters: they stay as they are. The operation it
// returns may still go on.
func (c *Client) CloseDeadLetters(ctx context.Context, r CloseLetters) (drover.BatchOperation, error) {
	if r.RequestID == "" && !r.DryRun {
		r.RequestID = newID().String()
	}
	return post[drover.BatchOperation](ctx, c, call{path: "/v1/dead-letters/close", repeat: true}, r)
}

func operationPath(id drover.OperationID) string { return "/v1/batch-operations/" + id.String() }

// Operation returns a batch operation.
func (c *Client) Operation(ctx context.Context, id drover.OperationID) (drover.BatchOperation, error) {
	return get[drover.BatchOperation](ctx, c, operationPath(id), nil)
}

// Operations returns a page of batch operations, newest first.
func (c *Client) Operations(ctx context.Context, l List) (protocol.Page[drover.BatchOperation], error) {
	return get[protocol.Page[drover.BatchOperation]](ctx, c, "/v1/batch-operations", l.query())
}

// OperationItems returns a page of the items of an operation: all of them, or
// only those that were refused.
func (c *Client) OperationItems(ctx context.Context, id drover.OperationID, refused bool, l List) (protocol.Page[drover.OperationItem], error) {
	q := l.query()
	if refused {
		q.Set("state", drover.ItemRefused)
	}
	return get[protocol.Page[drover.OperationItem]](ctx, c, operationPath(id)+"/items", q)
}

// CancelOperation stops a batch operation; what it has done stays done.
func (c *Client) CancelOperation(ctx context.Context, id drover.OperationID, a Action) (drover.BatchOperation, error) {
	if a.RequestID == "" {
		a.RequestID = newID().String()
	}
	return post[drover.BatchOperation](ctx, c, call{path: operationPath(id) + "/cancel", repeat: true}, a)
}

// operationLook is the pause between two looks at an operation.
const operationLook = 500 * time.Millisecond

// WaitOperation waits for the end of an operation and tells each state it sees
// to see, unless that is nil.
func (c *Client) WaitOperation(ctx context.Context, id drover.OperationID, see func(drover.BatchOperation)) (drover.BatchOperation, error) {
	for {
		o, err := c.Operation(ctx, id)
		if err != nil {
			return o, err
		}
		if see != nil {
			see(o)
		}
		if o.Ended() {
			return o, nil
		}
		if err := sleep(ctx, operationLook); err != nil {
			return o, err
		}
	}
}
