package api

import (
	"net/http"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

func (a *API) listCircuits(w http.ResponseWriter, r *request) error {
	all := []drover.Circuit{}
	for after := ""; ; {
		page, err := a.engine.Circuits(r.Context(), r.caller, after, 1000)
		if err != nil {
			return err
		}
		if all = append(all, page...); len(page) < 1000 {
			return a.reply(w, r, http.StatusOK, protocol.Page[drover.Circuit]{Items: all})
		}
		after = page[len(page)-1].Name
	}
}

func (a *API) getCircuit(w http.ResponseWriter, r *request) error {
	return a.circuit(w, r)(a.engine.Circuit(r.Context(), r.caller, r.PathValue("circuit")))
}

func (a *API) setCircuit(w http.ResponseWriter, r *request) error {
	var in drover.CircuitPolicy
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	return a.circuit(w, r)(a.engine.SetCircuit(r.Context(), r.caller, r.PathValue("circuit"), in))
}

func (a *API) openCircuit(w http.ResponseWriter, r *request) error {
	var in protocol.CircuitRequest
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	return a.circuit(w, r)(a.engine.OpenCircuit(r.Context(), r.caller, r.PathValue("circuit"), in.Reason))
}

func (a *API) closeCircuit(w http.ResponseWriter, r *request) error {
	return a.circuit(w, r)(a.engine.CloseCircuit(r.Context(), r.caller, r.PathValue("circuit")))
}

// circuit answers with a circuit.
func (a *API) circuit(w http.ResponseWriter, r *request) func(drover.Circuit, error) error {
	return func(c drover.Circuit, err error) error {
		if err != nil {
			return err
		}
		return a.reply(w, r, http.StatusOK, c)
	}
}
