package api

import (
	"net/http"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

func (a *API) listIntake(w http.ResponseWriter, r *request) error {
	list, err := a.engine.Intake(r.Context(), r.caller)
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, protocol.Page[drover.IntakeRule]{Items: list})
}

func (a *API) getIntake(w http.ResponseWriter, r *request) error {
	x, err := a.engine.IntakeRule(r.Context(), r.caller, r.PathValue("rule"))
	return a.versioned(w, r, x.Version, x, err)
}

func (a *API) setIntake(w http.ResponseWriter, r *request) error {
	var in drover.NewIntakeRule
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	p, dry, err := r.change()
	if err != nil {
		return err
	}
	x, err := a.engine.SetIntake(r.Context(), r.caller, r.PathValue("rule"), in, p, dry)
	return a.versioned(w, r, x.Version, x, err)
}

func (a *API) deleteIntake(w http.ResponseWriter, r *request) error {
	p, dry, err := r.change()
	if err != nil {
		return err
	}
	x, err := a.engine.DeleteIntake(r.Context(), r.caller, r.PathValue("rule"), r.query.Get("reason"), p, dry)
	return a.removed(w, r, dry, x, err)
}
