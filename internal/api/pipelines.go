package api

import (
	"math"
	"net/http"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/protocol"
)

// yamlMedia are the content types of a definition.
var yamlMedia = []string{protocol.MediaYAML, protocol.MediaJSON, "application/x-yaml", "text/yaml", "text/x-yaml"}

func (a *API) registerPipeline(w http.ResponseWriter, r *request) error {
	src, err := a.readBody(w, r.Request, engine.MaxSource, yamlMedia...)
	if err != nil {
		return err
	}
	p, err := a.engine.RegisterPipeline(r.Context(), r.caller, r.query.Get("file"), src)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/pipelines/"+p.Name+"?version="+itoa(p.Version))
	status := http.StatusOK
	if p.Created {
		status = http.StatusCreated
	}
	return a.reply(w, r, status, p)
}

func (a *API) listPipelines(w http.ResponseWriter, r *request) error { return a.pipelines(w, r, "") }

func (a *API) listPipelineVersions(w http.ResponseWriter, r *request) error {
	return a.pipelines(w, r, r.PathValue("pipeline"))
}

func (a *API) pipelines(w http.ResponseWriter, r *request, name string) error {
	p, err := a.page(r, -1)
	if err != nil {
		return err
	}
	items, err := a.engine.Pipelines(r.Context(), r.caller, name, string(p.after), p.limit+1)
	if err != nil {
		return err
	}
	if name != "" && p.after == nil && len(items) == 0 {
		return drover.Errorf(drover.CodeNotFound, "there is no pipeline %q", clip(name, 80))
	}
	return listed(a, w, r, p, items, func(x drover.Pipeline) []byte {
		if name != "" {
			return []byte(itoa(x.Version))
		}
		return []byte(x.Name)
	})
}

func (a *API) getPipeline(w http.ResponseWriter, r *request) error {
	version, err := r.whole("version", 0, 1, math.MaxInt32)
	if err != nil {
		return err
	}
	p, err := a.engine.Pipeline(r.Context(), r.caller, r.PathValue("pipeline"), int(version))
	if err != nil {
		return err
	}
	return a.replyTagged(w, r, p)
}
