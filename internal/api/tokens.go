package api

import (
	"net/http"
	"slices"
	"strings"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

func (a *API) listTokens(w http.ResponseWriter, r *request) error {
	tokens, err := a.engine.Tokens(r.Context(), r.caller)
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, protocol.Page[drover.Token]{Items: tokens})
}

// scopes are what a token can permit; "admin" permits all of it.
var scopes = []string{"jobs:read", "jobs:write", "workers:run", "pipelines:write", "limits:admin", "tokens:admin", "admin"}

func (a *API) createToken(w http.ResponseWriter, r *request) error {
	var in protocol.NewToken
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	// A token is made for the tenant of the one that makes it, unless that runs
	// the installation, and permits no more than that does.
	tenant := or(in.Tenant, r.caller.TenantName)
	if tenant != r.caller.TenantName && !(r.caller.System && r.caller.Has("admin")) {
		return drover.Errorf(drover.CodeForbidden, "a token can be made for the tenant %q only, which the caller's token belongs to", r.caller.TenantName)
	}
	if len(in.Scopes) == 0 {
		return invalidBody("scopes", "is empty; there are "+strings.Join(scopes, ", "))
	}
	for i, s := range in.Scopes {
		field := "scopes[" + itoa(i) + "]"
		if !slices.Contains(scopes, s) {
			return invalidBody(field, "is not a scope; there are "+strings.Join(scopes, ", "))
		}
		if !r.caller.Has(s) {
			return drover.Errorf(drover.CodeForbidden, "%s: the caller's token lacks the scope %s and cannot give it", field, s)
		}
	}
	t, err := a.engine.CreateToken(r.Context(), r.caller, drover.Token{Tenant: tenant, Name: in.Name, Scopes: in.Scopes, ExpiresAt: in.ExpiresAt})
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/tokens/"+t.ID.String())
	return a.reply(w, r, http.StatusCreated, t)
}

func (a *API) getRetention(w http.ResponseWriter, r *request) error {
	keep, err := a.engine.Retention(r.Context(), r.caller)
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, keep)
}

func (a *API) listTenants(w http.ResponseWriter, r *request) error {
	list, err := a.engine.Tenants(r.Context(), r.caller)
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, protocol.Page[drover.Tenant]{Items: list})
}

func (a *API) setTenant(w http.ResponseWriter, r *request) error {
	var in protocol.TenantRequest
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	t, err := a.engine.SetTenant(r.Context(), r.caller, r.PathValue("tenant"), func(t *drover.Tenant) {
		if in.Weight != nil {
			t.Weight = *in.Weight
		}
	})
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, t)
}

func (a *API) setRetention(w http.ResponseWriter, r *request) error {
	var in protocol.RetentionRequest
	if err := a.body(w, r, &in); err != nil {
		return err
	}
	keep, err := a.engine.SetRetention(r.Context(), r.caller, func(keep *drover.Retention) {
		for to, d := range map[*drover.Duration]*drover.Duration{&keep.Succeeded: in.Succeeded, &keep.Failed: in.Failed, &keep.Cancelled: in.Cancelled} {
			if d != nil {
				*to = *d
			}
		}
	})
	if err != nil {
		return err
	}
	return a.reply(w, r, http.StatusOK, keep)
}

func (a *API) revokeToken(w http.ResponseWriter, r *request) error {
	id, err := pathID(r, "token_id", drover.ParseTokenID)
	if err != nil {
		return err
	}
	if err := a.engine.RevokeToken(r.Context(), r.caller, id); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *API) whoAmI(w http.ResponseWriter, r *request) error {
	c := r.caller
	return a.reply(w, r, http.StatusOK, protocol.WhoAmI{Tenant: c.TenantName, Name: c.Actor, Scopes: append([]string{}, c.Scopes...), System: c.System})
}
