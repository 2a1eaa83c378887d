package api

import (
	"net/http"
	"strings"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

func (a *API) explainTask(w http.ResponseWriter, r *request) error {
	id, err := r.taskID()
	if err != nil {
		return err
	}
	x, err := a.engine.Explain(r.Context(), r.caller, id)
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, x)
}

func (a *API) explainJob(w http.ResponseWriter, r *request) error {
	id, err := r.jobID()
	if err != nil {
		return err
	}
	x, err := a.engine.ExplainJob(r.Context(), r.caller, id)
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, x)
}

func (a *API) listWaits(w http.ResponseWriter, r *request) error {
	var by []string
	for _, list := range r.query["group_by"] {
		for word := range strings.SplitSeq(list, ",") {
			by = append(by, strings.TrimSpace(word))
		}
	}
	items, err := a.engine.Waits(r.Context(), r.caller, by)
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, protocol.Page[drover.WaitGroup]{Items: items})
}

func (a *API) getCapacity(w http.ResponseWriter, r *request) error {
	c, err := a.engine.Capacity(r.Context(), r.caller)
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, c)
}
