package api

import (
	"encoding/binary"
	"net/http"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/protocol"
)

// letterQuery reads the filters of dead letters.
func (r *request) letterQuery() (q engine.LetterQuery, err error) {
	q = engine.LetterQuery{State: r.query.Get("state"), Fingerprint: r.query.Get("fingerprint"), Kind: r.query.Get("kind"), Pipeline: r.query.Get("pipeline"), Queue: r.query.Get("queue"),
		ErrorClass: drover.ErrorClass(r.query.Get("error_class"))}
	if q.Job, err = queryID(r, "job_id", drover.ParseJobID); err != nil {
		return q, err
	}
	if q.Since, err = r.time("since"); err != nil {
		return q, err
	}
	if q.Until, err = r.time("until"); err != nil {
		return q, err
	}
	statuses, err := r.statuses()
	if err == nil && len(statuses) > 1 {
		err = invalidQuery("status", "must be one of DEAD_LETTER and FAILED; leave it out for both")
	}
	if err == nil && len(statuses) == 1 {
		q.Status = statuses[0]
	}
	return q, err
}

func (a *API) listLetters(w http.ResponseWriter, r *request) error {
	p, err := a.page(r, 8+16+4)
	if err != nil {
		return err
	}
	q, err := r.letterQuery()
	if err != nil {
		return err
	}
	if q.Limit = p.limit + 1; p.after != nil {
		q.After.At = time.UnixMicro(seqOf(p.after[:8])).UTC()
		copy(q.After.Task[:], p.after[8:])
		q.After.Generation = int(binary.BigEndian.Uint32(p.after[24:]) & 0x7fffffff)
	}
	letters, err := a.engine.Letters(r.Context(), r.caller, q)
	if err != nil {
		return err
	}
	return listed(a, w, r, p, letters, func(l drover.Letter) []byte {
		return binary.BigEndian.AppendUint32(append(seqBytes(l.FinishedAt.UnixMicro()), l.TaskID[:]...), uint32(l.Generation))
	})
}

func (a *API) groupLetters(w http.ResponseWriter, r *request) error {
	p, err := a.page(r, 8+16)
	if err != nil {
		return err
	}
	q, err := r.letterQuery()
	if err != nil {
		return err
	}
	var after engine.GroupMark
	if q.Limit = p.limit + 1; p.after != nil {
		after = engine.GroupMark{Count: int(seqOf(p.after[:8])), Fingerprint: string(p.after[8:])}
	}
	groups, err := a.engine.LetterGroups(r.Context(), r.caller, q, after)
	if err != nil {
		return err
	}
	return listed(a, w, r, p, groups, func(g drover.LetterGroup) []byte { return append(seqBytes(int64(g.Count)), g.Fingerprint...) })
}

func (a *API) getLetter(w http.ResponseWriter, r *request) error {
	id, err := r.taskID()
	if err != nil {
		return err
	}
	generation, err := r.whole("generation", 0, 1, 1<<30)
	if err != nil {
		return err
	}
	l, err := a.engine.Letter(r.Context(), r.caller, id, int(generation))
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, l)
}

func queryOf(f *protocol.LetterFilter) *engine.LetterQuery {
	if f == nil {
		return nil
	}
	return &engine.LetterQuery{State: f.State, Fingerprint: f.Fingerprint, Kind: f.Kind, Pipeline: f.Pipeline, Queue: f.Queue, ErrorClass: f.ErrorClass, Status: f.Status, Job: f.JobID,
		Since: f.Since.UTC(), Until: f.Until.UTC()}
}

func (a *API) replayLetters(w http.ResponseWriter, r *request) error {
	var in protocol.ReplayLettersRequest
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	var err error
	if in.RequestID, err = requestKey(r, "request_id", in.RequestID); err != nil {
		return err
	}
	out, err := a.engine.ReplayLetters(r.Context(), r.caller, engine.BatchRequest{
		Request: engine.Request{ID: in.RequestID, Reason: in.Reason}, Tasks: in.TaskIDs, Filter: queryOf(in.Filter), DryRun: in.DryRun, Rate: in.Rate, Canary: in.Canary,
		Input: in.Input, Patch: in.Patch, Reopen: in.Reopen,
	})
	if err != nil {
		return err
	}
	return a.operated(w, r, out)
}

func (a *API) closeLetters(w http.ResponseWriter, r *request) error {
	var in protocol.CloseLettersRequest
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	var err error
	if in.RequestID, err = requestKey(r, "request_id", in.RequestID); err != nil {
		return err
	}
	out, err := a.engine.CloseLetters(r.Context(), r.caller, engine.BatchRequest{
		Request: engine.Request{ID: in.RequestID, Reason: in.Reason}, Tasks: in.TaskIDs, Filter: queryOf(in.Filter), DryRun: in.DryRun,
	})
	if err != nil {
		return err
	}
	return a.operated(w, r, out)
}

// operated answers with an operation: 202 while it goes on.
func (a *API) operated(w http.ResponseWriter, r *request, o drover.BatchOperation) error {
	if !o.ID.IsZero() {
		w.Header().Set("Location", "/v1/batch-operations/"+o.ID.String())
	}
	if !o.Ended() {
		w.Header().Set("Retry-After", "1")
		return a.reply(w, r, http.StatusAccepted, o)
	}
	return a.reply(w, r, http.StatusOK, o)
}

func (a *API) showOperation(w http.ResponseWriter, r *request, o drover.BatchOperation) error {
	if !o.Ended() {
		w.Header().Set("Retry-After", "1")
	}
	return a.reply(w, r, http.StatusOK, o)
}

// operationID reads the {operation_id} of the path.
func (r *request) operationID() (drover.OperationID, error) {
	return pathID(r, "operation_id", drover.ParseOperationID)
}

func (a *API) listOperations(w http.ResponseWriter, r *request) error {
	p, err := a.page(r, len(drover.ID{}))
	if err != nil {
		return err
	}
	list, err := a.engine.Operations(r.Context(), r.caller, drover.OperationID(p.idOf()), p.limit+1)
	if err != nil {
		return err
	}
	return listed(a, w, r, p, list, func(o drover.BatchOperation) []byte { return o.ID[:] })
}

func (a *API) getOperation(w http.ResponseWriter, r *request) error {
	id, err := r.operationID()
	if err != nil {
		return err
	}
	o, err := a.engine.Operation(r.Context(), r.caller, id)
	if err != nil {
		return err
	}
	return a.showOperation(w, r, o)
}

func (a *API) listOperationItems(w http.ResponseWriter, r *request) error {
	id, err := r.operationID()
	if err != nil {
		return err
	}
	p, err := a.page(r, 8)
	if err != nil {
		return err
	}
	state := r.query.Get("state")
	if state != "" && state != drover.ItemRefused {
		return invalidQuery("state", "must be refused; leave it out for all")
	}
	after := min(seqOf(p.after), 1<<31-1)
	items, err := a.engine.OperationItems(r.Context(), r.caller, id, state != "", int(after), p.limit+1)
	if err != nil {
		return err
	}
	return listed(a, w, r, p, items, func(i drover.OperationItem) []byte { return seqBytes(int64(i.Number)) })
}

func (a *API) cancelOperation(w http.ResponseWriter, r *request) error {
	id, err := r.operationID()
	if err != nil {
		return err
	}
	var in protocol.ActionRequest
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	if in.RequestID, err = requestKey(r, "request_id", in.RequestID); err != nil {
		return err
	}
	o, err := a.engine.CancelOperation(r.Context(), r.caller, id, engine.Request{ID: in.RequestID, Reason: in.Reason})
	if err != nil {
		return err
	}
	return a.showOperation(w, r, o)
}
