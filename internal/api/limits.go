package api

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/protocol"
)

func (a *API) listLimits(w http.ResponseWriter, r *request) error {
	list, err := a.engine.Limits(r.Context(), r.caller)
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, protocol.Page[drover.Limit]{Items: list})
}

func (a *API) getLimit(w http.ResponseWriter, r *request) error {
	l, err := a.engine.Limit(r.Context(), r.caller, r.PathValue("limit"))
	return a.versioned(w, r, l.Version, l, err)
}

func (a *API) setLimit(w http.ResponseWriter, r *request) error {
	var in drover.NewLimit
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	p, dry, err := r.change()
	if err != nil {
		return err
	}
	l, err := a.engine.SetLimit(r.Context(), r.caller, r.PathValue("limit"), in, p, dry)
	return a.versioned(w, r, l.Version, l, err)
}

func (a *API) deleteLimit(w http.ResponseWriter, r *request) error {
	p, dry, err := r.change()
	if err != nil {
		return err
	}
	l, err := a.engine.DeleteLimit(r.Context(), r.caller, r.PathValue("limit"), r.query.Get("reason"), p, dry)
	return a.removed(w, r, dry, l, err)
}

// versioned answers with what has versions; that is its ETag.
func (a *API) versioned(w http.ResponseWriter, r *request, version int, v any, err error) error {
	if err != nil {
		return err
	}
	w.Header().Set("ETag", `"`+strconv.Itoa(version)+`"`)
	return a.reply(w, r, http.StatusOK, v)
}

// removed answers to the removal of v; of a dry run with what it is.
func (a *API) removed(w http.ResponseWriter, r *request, dry bool, v any, err error) error {
	switch {
	case err != nil:
		return err
	case dry:
		return a.reply(w, r, http.StatusOK, v)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// change reads what a change expects, and if it is only to be tried.
func (r *request) change() (p engine.Precondition, dry bool, err error) {
	if only, err := r.flag("dry_run"); err != nil {
		return p, false, err
	} else if only != nil {
		dry = *only
	}
	if v := r.Header.Get("If-None-Match"); v != "" {
		if v != "*" {
			return p, false, invalidQuery("If-None-Match", "must be * here: there must be none yet")
		}
		p.New = true
	}
	if v := r.Header.Get("If-Match"); v != "" && v != "*" {
		if p.Version, err = strconv.Atoi(strings.Trim(v, `"`)); err != nil || p.Version < 1 {
			return p, false, drover.Errorf(drover.CodePreconditionFailed, "If-Match %s is no ETag of this thing", strconv.Quote(clip(v, 40)))
		}
	}
	return p, dry, nil
}

func pauseQueue(e *engine.Engine) queueAction  { return e.PauseQueue }
func resumeQueue(e *engine.Engine) queueAction { return e.ResumeQueue }
func drainQueue(e *engine.Engine) queueAction  { return e.DrainQueue }

// reserveQueue serves POST /v1/queues/{queue}/reserve.
func (a *API) reserveQueue(w http.ResponseWriter, r *request) error {
	var in protocol.ReserveRequest
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	q, err := a.engine.ReserveQueue(r.Context(), r.caller, r.PathValue("queue"), in.Reserves, engine.Request{Reason: in.Reason})
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, q)
}

// queueAction is what the routes of a queue's state call.
type queueAction func(ctx context.Context, c engine.Caller, name string, r engine.Request) (drover.Queue, error)

// onQueue serves a route that changes the state of a queue.
func onQueue(of func(*engine.Engine) queueAction) func(*API, http.ResponseWriter, *request) error {
	return func(a *API, w http.ResponseWriter, r *request) error {
		var in protocol.QueueRequest
		if err := a.body(w, r, &in); err != nil {
			return err
		}
		q, err := of(a.engine)(r.Context(), r.caller, r.PathValue("queue"), engine.Request{Reason: in.Reason})
		if err != nil {
			return err
		}
		return a.reply(w, r, http.StatusOK, q)
	}
}
