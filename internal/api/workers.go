package api

import (
	"io"
	"net/http"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/gateway"
	"github.com/drover-dev/drover/protocol"
)

func (a *API) openWorker(w http.ResponseWriter, r *request) error {
	var in drover.NewSession
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	s, err := a.gate.OpenSession(r.Context(), r.caller, in)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/workers/"+s.ID.String())
	return a.reply(w, r, http.StatusCreated, s)
}

func (a *API) listWorkers(w http.ResponseWriter, r *request) error {
	sessions, err := a.engine.Sessions(r.Context(), r.caller)
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, protocol.Page[drover.Session]{Items: sessions})
}

func (r *request) workerID() (drover.SessionID, error) {
	return pathID(r, "worker_id", drover.ParseSessionID)
}

func (a *API) closeWorker(w http.ResponseWriter, r *request) error {
	id, err := r.workerID()
	if err != nil {
		return err
	}
	if err := a.gate.CloseSession(r.Context(), r.caller, id); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *API) renewWorker(w http.ResponseWriter, r *request) error {
	id, err := r.workerID()
	if err != nil {
		return err
	}
	var in drover.Renewal
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	if err := bounded("held", len(in.Held), 0, protocol.MaxHeld); err != nil {
		return err
	}
	out, err := a.engine.Renew(r.Context(), r.caller, id, in)
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, out)
}

func (a *API) acquireLeases(w http.ResponseWriter, r *request) error {
	var in drover.Acquire
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	if in.Wait > protocol.MaxWait {
		return invalidBody("wait", "is longer than "+protocol.MaxWait.String()+"; ask again when nothing came")
	}
	extend(w, in.Wait.Std()+answerTime)
	leases, err := a.gate.Acquire(r.Context(), r.caller, in)
	if err != nil {
		return err
	}
	if leases == nil {
		leases = []drover.Lease{}
	}
	return a.reply(w, r, http.StatusOK, protocol.AcquireResponse{Leases: leases})
}

func invalidBody(field, message string) error {
	return &drover.Error{Code: drover.CodeValidation, Detail: "the request body is not valid", Fields: []drover.FieldError{{Field: field, Message: message}}}
}

func (a *API) settleLeases(w http.ResponseWriter, r *request) error {
	var in protocol.SettleRequest
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	if err := bounded("outcomes", len(in.Outcomes), 0, protocol.MaxOutcomes); err != nil {
		return err
	}
	settled, leases, err := a.gate.Settle(r.Context(), engine.Settlement{
		Caller: r.caller, Session: in.Session, Outcomes: in.Outcomes, Acquire: in.Acquire,
	})
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, gateway.Answer(settled, leases, traceOf(r.Context())))
}

func (a *API) setProgress(w http.ResponseWriter, r *request) error {
	id, err := r.taskID()
	if err != nil {
		return err
	}
	var in protocol.ProgressRequest
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	err = a.engine.SetProgress(r.Context(), r.caller, drover.Held{TaskID: id, LeaseVersion: in.LeaseVersion},
		drover.Progress{Ratio: in.Ratio, Message: in.Message, ETA: in.ETA})
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *API) heartbeat(w http.ResponseWriter, r *request) error {
	id, err := r.taskID()
	if err != nil {
		return err
	}
	var in protocol.HeartbeatRequest
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	if err := a.engine.Heartbeat(r.Context(), r.caller, drover.Held{TaskID: id, LeaseVersion: in.LeaseVersion}, in.Details); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *API) lock(w http.ResponseWriter, r *request) error {
	id, err := r.taskID()
	if err != nil {
		return err
	}
	var in protocol.LockRequest
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	extend(w, min(in.Wait, protocol.MaxWait).Std()+answerTime)
	out, err := a.gate.Lock(r.Context(), r.caller, drover.Held{TaskID: id, LeaseVersion: in.LeaseVersion},
		drover.NewLock{Number: in.Number, Name: in.Name, Permits: in.Permits, Exclusive: in.Exclusive, Wait: in.Wait})
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, out)
}

func (a *API) unlock(w http.ResponseWriter, r *request) error {
	id, err := r.taskID()
	if err != nil {
		return err
	}
	var in protocol.UnlockRequest
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	if err := a.gate.Unlock(r.Context(), r.caller, drover.Held{TaskID: id, LeaseVersion: in.LeaseVersion}, drover.NewUnlock{Number: in.Number}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *API) meet(w http.ResponseWriter, r *request) error {
	id, err := r.taskID()
	if err != nil {
		return err
	}
	var in protocol.MeetingRequest
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	extend(w, min(in.Wait, protocol.MaxWait).Std()+answerTime)
	out, err := a.gate.Meet(r.Context(), r.caller, drover.Held{TaskID: id, LeaseVersion: in.LeaseVersion},
		drover.NewMeeting{Number: in.Number, Name: in.Name, Parties: in.Parties, Round: in.Round, Wait: in.Wait, Leave: in.Leave})
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, out)
}

func (a *API) appendLogs(w http.ResponseWriter, r *request) error {
	id, err := r.taskID()
	if err != nil {
		return err
	}
	var in protocol.LogsRequest
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	if err := bounded("lines", len(in.Lines), 0, protocol.MaxLogLines); err != nil {
		return err
	}
	now := a.engine.Now()
	for i := range in.Lines {
		l := &in.Lines[i]
		if l.At.IsZero() {
			l.At = now
		}
		if l.Level == "" {
			l.Level = "info"
		}
	}
	n, err := a.engine.AppendLogs(r.Context(), r.caller, drover.Held{TaskID: id, LeaseVersion: in.LeaseVersion}, in.Lines)
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, protocol.LogsResponse{Accepted: n})
}

// slowly gives each read of an upload a deadline of its own, and keeps the
// error that ended it.
type slowly struct {
	rc   *http.ResponseController
	body io.Reader
	err  error
}

// Read reads within answerTime.
func (s *slowly) Read(b []byte) (int, error) {
	now := time.Now()
	_ = s.rc.SetReadDeadline(now.Add(answerTime)) // a transport without deadlines has no slow peer
	_ = s.rc.SetWriteDeadline(now.Add(2 * answerTime))
	n, err := s.body.Read(b)
	if err != nil {
		_ = s.rc.SetReadDeadline(time.Time{})
		if err != io.EOF {
			s.err = err
		}
	}
	return n, err
}
