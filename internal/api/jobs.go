package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"regexp"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/protocol"
)

func (a *API) submitJob(w http.ResponseWriter, r *request) error {
	var j drover.NewJob
	if err := a.body(w, r, &j); err != nil {
		return err
	}
	var err error
	if j.IdempotencyKey, err = requestKey(r, "idempotency_key", j.IdempotencyKey); err != nil {
		return err
	}
	if j.Traceparent == "" {
		j.Traceparent = parentOf(r.Header.Get("Traceparent"))
	}
	dry, err := r.flag("dry_run")
	if err != nil {
		return err
	}
	if dry != nil && *dry {
		job, repeated, err := a.engine.Preview(r.Context(), r.caller, j)
		if err != nil {
			return err
		}
		if repeated {
			w.Header().Set(protocol.HeaderIdempotencyReplayed, "true")
		}
		return a.reply(w, r, http.StatusOK, job)
	}
	s, err := a.gate.Submit(r.Context(), r.caller, j)
	if err != nil {
		return err
	}
	h := w.Header()
	links := protocol.LinksOf(s.JobID)
	if !s.Deleted {
		h.Set("Location", links.Self)
	}
	if s.Replayed {
		h.Set(protocol.HeaderIdempotencyReplayed, "true")
	}
	if s.Deleted { // there is nothing to wait for
		return a.reply(w, r, http.StatusAccepted, protocol.SubmitResponse{JobID: s.JobID, Status: s.Status, Replayed: true, Deleted: true, Links: links})
	}
	p := r.prefer()
	if p.waits && !p.async {
		// Whatever happens to the waiting, the job is there: that is the answer.
		job, err := a.waitJob(w, r, p, s.JobID)
		if err == nil && job.Status.Final() {
			return a.reply(w, r, http.StatusOK, job)
		}
		if err == nil {
			s.Status = job.Status
		}
	} else if p.async {
		h.Set(protocol.HeaderPreferenceApplied, "respond-async")
	}
	h.Set("Retry-After", "1")
	return a.reply(w, r, http.StatusAccepted, protocol.SubmitResponse{JobID: s.JobID, Status: s.Status, Replayed: s.Replayed, Links: links})
}

func (a *API) submitBatch(w http.ResponseWriter, r *request) error {
	if r.Header.Get(protocol.HeaderIdempotencyKey) != "" {
		return &drover.Error{Code: drover.CodeValidation, Detail: "a batch has no idempotency key of its own", Fields: []drover.FieldError{{
			Field: protocol.HeaderIdempotencyKey, Message: "leave it out and give each job its idempotency_key or its job_id",
		}}}
	}
	var in protocol.BatchRequest
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	if err := bounded("jobs", len(in.Jobs), 1, protocol.MaxJobs); err != nil {
		return err
	}
	out, err := a.gate.SubmitMany(r.Context(), r.caller, in.Jobs)
	if err != nil {
		return err
	}
	items := make([]protocol.BatchItem, len(out))
	for i, s := range out {
		items[i] = protocol.BatchItem{JobID: s.JobID, Status: s.Status, Replayed: s.Replayed, Deleted: s.Deleted, Error: problemOf(r, s.Err)}
	}
	return a.reply(w, r, http.StatusOK, protocol.BatchResponse{Items: items})
}

// problemOf tells the refusal of one item of many.
func problemOf(r *request, e *drover.Error) *protocol.Problem {
	if e == nil {
		return nil
	}
	p := protocol.FromError(e)
	p.TraceID = traceOf(r.Context())
	return p
}

// bounded refuses a list of the body that is too short or too long.
func bounded(field string, n, least, most int) error {
	switch {
	case n < least:
		return &drover.Error{Code: drover.CodeValidation, Detail: "the request body is not valid", Fields: []drover.FieldError{{Field: field, Message: "is empty; there must be at least one"}}}
	case n > most:
		return &drover.Error{Code: drover.CodeValidation, Detail: "the request body is not valid", Fields: []drover.FieldError{{Field: field, Message: "has " + itoa(n) + " items; at most " + itoa(most) + " are taken, so send several requests"}}}
	}
	return nil
}

// versioned is a pipeline's name with its version, as older clients write it.
var versioned = regexp.MustCompile(`^(.+)-v([0-9]{1,9})$`)

func (a *API) submitProcessingJob(w http.ResponseWriter, r *request) error {
	var in protocol.ProcessingRequest
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	e := &drover.Error{Code: drover.CodeValidation, Detail: "the request body is not valid"}
	if in.ObjectID == "" {
		e.Fields = append(e.Fields, drover.FieldError{Field: "object_id", Message: "is empty; name the object to process"})
	}
	if in.Pipeline == "" {
		e.Fields = append(e.Fields, drover.FieldError{Field: "pipeline", Message: "is empty; name a pipeline"})
	}
	if e.Fields != nil {
		return e
	}
	key, err := requestKey(r, "idempotency_key", in.IdempotencyKey)
	if err != nil {
		return err
	}
	var input bytes.Buffer
	enc := json.NewEncoder(&input)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(map[string]string{"object_id": in.ObjectID}); err != nil {
		return err
	}
	j := drover.NewJob{Pipeline: in.Pipeline, Input: bytes.TrimSpace(input.Bytes()), IdempotencyKey: key, Traceparent: parentOf(r.Header.Get("Traceparent"))}
	if m := versioned.FindStringSubmatch(in.Pipeline); m != nil {
		j.Pipeline = m[1] + "@" + m[2]
	}
	s, err := a.gate.Submit(r.Context(), r.caller, j)
	if drover.CodeOf(err) == drover.CodeNotFound && j.Pipeline != in.Pipeline { // "-v3" may be part of the name
		j.Pipeline = in.Pipeline
		s, err = a.gate.Submit(r.Context(), r.caller, j)
	}
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Location", protocol.LinksOf(s.JobID).Self)
	h.Set("Retry-After", "1")
	if s.Replayed {
		h.Set(protocol.HeaderIdempotencyReplayed, "true")
	}
	return a.reply(w, r, http.StatusAccepted, protocol.ProcessingResponse{JobID: s.JobID, Status: s.Status})
}

func (a *API) listJobs(w http.ResponseWriter, r *request) error {
	p, err := a.page(r, len(drover.ID{}))
	if err != nil {
		return err
	}
	q := engine.JobQuery{Pipeline: r.query.Get("pipeline"), Kind: r.query.Get("kind"), After: drover.JobID(p.idOf()), Limit: p.limit}
	if q.Status, err = r.statuses(); err != nil {
		return err
	}
	if q.Labels, err = r.labels(); err != nil {
		return err
	}
	if q.CreatedAfter, err = r.time("created_after"); err != nil {
		return err
	}
	if q.CreatedBefore, err = r.time("created_before"); err != nil {
		return err
	}
	if q.Degraded, err = r.flag("degraded"); err != nil {
		return err
	}
	if q.Top, err = r.flag("top"); err != nil {
		return err
	}
	jobs, next, err := a.engine.JobPage(r.Context(), r.caller, q)
	if err != nil {
		return err
	}
	out := protocol.Page[drover.Job]{Items: jobs}
	if !next.IsZero() {
		out.NextCursor = makeCursor(r.cursorOp(), r.query, next[:], time.Now())
	}
	return a.replyPage(w, r, out.NextCursor, out)
}

func (a *API) getJob(w http.ResponseWriter, r *request) error {
	id, err := r.jobID()
	if err != nil {
		return err
	}
	var job drover.Job
	if p := r.prefer(); p.waits && !p.async {
		job, err = a.waitJob(w, r, p, id)
	} else {
		job, err = a.engine.Job(r.Context(), r.caller, id)
	}
	if err != nil {
		return err
	}
	if !job.Status.Final() {
		w.Header().Set("Retry-After", "1")
	}
	return a.replyTagged(w, r, job)
}

// action serves cancel, pause and resume.
func action(do func(*engine.Engine) func(*request, drover.JobID, engine.Request) (drover.Job, error)) func(*API, http.ResponseWriter, *request) error {
	return func(a *API, w http.ResponseWriter, r *request) error {
		id, err := r.jobID()
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
		job, err := do(a.engine)(r, id, engine.Request{ID: in.RequestID, Reason: in.Reason})
		if err != nil {
			return err
		}
		return a.reply(w, r, http.StatusOK, job)
	}
}

var (
	cancelJob = action(func(e *engine.Engine) func(*request, drover.JobID, engine.Request) (drover.Job, error) {
		return func(r *request, id drover.JobID, q engine.Request) (drover.Job, error) {
			return e.Cancel(r.Context(), r.caller, id, q)
		}
	})
	pauseJob = action(func(e *engine.Engine) func(*request, drover.JobID, engine.Request) (drover.Job, error) {
		return func(r *request, id drover.JobID, q engine.Request) (drover.Job, error) {
			return e.Pause(r.Context(), r.caller, id, q)
		}
	})
	resumeJob = action(func(e *engine.Engine) func(*request, drover.JobID, engine.Request) (drover.Job, error) {
		return func(r *request, id drover.JobID, q engine.Request) (drover.Job, error) {
			return e.Resume(r.Context(), r.caller, id, q)
		}
	})
)

func (a *API) listTasks(w http.ResponseWriter, r *request) error {
	id, err := r.jobID()
	if err != nil {
		return err
	}
	p, err := a.page(r, len(drover.ID{}))
	if err != nil {
		return err
	}
	q := engine.TaskQuery{Job: id, Name: r.query.Get("name"), After: drover.TaskID(p.idOf()), Limit: p.limit + 1}
	if q.Status, err = r.statuses(); err != nil {
		return err
	}
	tasks, err := a.engine.Tasks(r.Context(), r.caller, q)
	if err != nil {
		return err
	}
	return listed(a, w, r, p, tasks, func(t drover.Task) []byte { return t.ID[:] })
}

func (a *API) listEvents(w http.ResponseWriter, r *request) error {
	id, err := r.jobID()
	if err != nil {
		return err
	}
	after, err := r.whole("after", 0, 0, 1<<53)
	if err != nil {
		return err
	}
	if wantsStream(r) {
		return a.streamEvents(w, r, id, after)
	}
	p, err := a.page(r, 8)
	if err != nil {
		return err
	}
	if p.after != nil {
		after = seqOf(p.after)
	}
	events, err := a.engine.Events(r.Context(), r.caller, id, after, p.limit+1)
	if err != nil {
		return err
	}
	return listed(a, w, r, p, events, func(e drover.Event) []byte { return seqBytes(e.Seq) })
}

func (a *API) listJobLogs(w http.ResponseWriter, r *request) error {
	id, err := r.jobID()
	if err != nil {
		return err
	}
	return a.listLogs(w, r, engine.LogQuery{Job: id})
}

func (a *API) listLogs(w http.ResponseWriter, r *request, q engine.LogQuery) error {
	p, err := a.page(r, -1)
	if err != nil {
		return err
	}
	attempt, err := r.whole("attempt", 0, 1, 1<<30)
	if err != nil {
		return err
	}
	q.Attempt, q.After, q.Limit = int(attempt), string(p.after), p.limit
	lines, next, err := a.engine.Logs(r.Context(), r.caller, q)
	if err != nil {
		return err
	}
	out := protocol.Page[drover.LogLine]{Items: lines}
	if next != "" {
		out.NextCursor = makeCursor(r.cursorOp(), r.query, []byte(next), time.Now())
	}
	return a.replyPage(w, r, out.NextCursor, out)
}

func (a *API) listJobArtifacts(w http.ResponseWriter, r *request) error {
	id, err := r.jobID()
	if err != nil {
		return err
	}
	return a.artifacts(w, r, engine.ArtifactQuery{Job: id, Kind: r.query.Get("kind")})
}

func (a *API) getTask(w http.ResponseWriter, r *request) error {
	id, err := r.taskID()
	if err != nil {
		return err
	}
	task, err := a.engine.Task(r.Context(), r.caller, id)
	if err != nil {
		return err
	}
	return a.replyTagged(w, r, task)
}

func (a *API) deleteJob(w http.ResponseWriter, r *request) error {
	id, err := r.jobID()
	if err != nil {
		return err
	}
	if err := a.engine.DeleteJob(r.Context(), r.caller, id); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *API) listAttempts(w http.ResponseWriter, r *request) error {
	id, err := r.taskID()
	if err != nil {
		return err
	}
	attempts, err := a.engine.Attempts(r.Context(), r.caller, id)
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, protocol.Page[drover.Attempt]{Items: attempts})
}

func (a *API) listTaskLogs(w http.ResponseWriter, r *request) error {
	id, err := r.taskID()
	if err != nil {
		return err
	}
	return a.listLogs(w, r, engine.LogQuery{Task: id})
}

func (a *API) replayTask(w http.ResponseWriter, r *request) error {
	id, err := r.taskID()
	if err != nil {
		return err
	}
	var in protocol.ReplayRequest
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	if in.RequestID, err = requestKey(r, "request_id", in.RequestID); err != nil {
		return err
	}
	task, err := a.engine.Replay(r.Context(), r.caller, id, engine.ReplayRequest{
		Request: engine.Request{ID: in.RequestID, Reason: in.Reason}, Input: in.Input, Reopen: in.Reopen,
	})
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, task)
}

func (a *API) rerunJob(w http.ResponseWriter, r *request) error {
	id, err := r.jobID()
	if err != nil {
		return err
	}
	dry, err := r.flag("dry_run")
	if err != nil {
		return err
	}
	var in protocol.RerunRequest
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	if in.RequestID, err = requestKey(r, "request_id", in.RequestID); err != nil {
		return err
	}
	out, err := a.engine.Rerun(r.Context(), r.caller, id, engine.RerunRequest{
		Request: engine.Request{ID: in.RequestID, Reason: in.Reason}, From: in.From, Failed: in.Failed, Whole: in.Whole, Fresh: in.Fresh, Input: in.Input, DryRun: dry != nil && *dry,
	})
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, out)
}

func (a *API) markTask(w http.ResponseWriter, r *request) error {
	id, err := r.taskID()
	if err != nil {
		return err
	}
	var in protocol.MarkRequest
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	if in.RequestID, err = requestKey(r, "request_id", in.RequestID); err != nil {
		return err
	}
	task, err := a.engine.Mark(r.Context(), r.caller, id, engine.MarkRequest{
		Request: engine.Request{ID: in.RequestID, Reason: in.Reason}, Status: in.Status, Output: in.Output,
	})
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, task)
}

func (a *API) listQueues(w http.ResponseWriter, r *request) error {
	queues, err := a.engine.Queues(r.Context(), r.caller)
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, protocol.Page[drover.Queue]{Items: queues})
}

func (a *API) getQueue(w http.ResponseWriter, r *request) error {
	q, err := a.engine.Queue(r.Context(), r.caller, r.PathValue("queue"))
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, q)
}
