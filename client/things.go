package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

// ApplyPipeline registers a definition, YAML or JSON. The answer says in Created
// whether it is a new version; an equal definition gives the version there is.
// File is the name that messages about the text carry; it may be empty.
func (c *Client) ApplyPipeline(ctx context.Context, file string, src []byte) (drover.Pipeline, error) {
	q := url.Values{}
	set(q, "file", file)
	k := call{method: http.MethodPost, path: "/v1/pipelines", query: q, body: src, media: protocol.MediaYAML, repeat: true}
	if k.body == nil {
		k.body = []byte{}
	}
	if strings.HasSuffix(strings.ToLower(file), ".json") {
		k.media = protocol.MediaJSON
	}
	var p drover.Pipeline
	a, err := c.do(ctx, k, &p)
	if err == nil && a.status == http.StatusCreated {
		p.Created = true
	}
	return p, err
}

// Pipeline returns a version of a pipeline with its definition; version 0 is the newest.
func (c *Client) Pipeline(ctx context.Context, name string, version int) (drover.Pipeline, error) {
	q := url.Values{}
	if version > 0 {
		q.Set("version", strconv.Itoa(version))
	}
	return get[drover.Pipeline](ctx, c, "/v1/pipelines/"+url.PathEscape(name), q)
}

// Pipelines returns a page of pipelines, each in its newest version.
func (c *Client) Pipelines(ctx context.Context, l List) (protocol.Page[drover.Pipeline], error) {
	return get[protocol.Page[drover.Pipeline]](ctx, c, "/v1/pipelines", l.query())
}

// PipelineVersions returns every version of a pipeline.
func (c *Client) PipelineVersions(ctx context.Context, name string) ([]drover.Pipeline, error) {
	return all[drover.Pipeline](ctx, c, "/v1/pipelines/"+url.PathEscape(name)+"/versions", url.Values{})
}

// Queues returns every queue.
func (c *Client) Queues(ctx context.Context) ([]drover.Queue, error) {
	return all[drover.Queue](ctx, c, "/v1/queues", url.Values{})
}

// Queue returns a queue.
func (c *Client) Queue(ctx context.Context, name string) (drover.Queue, error) {
	return get[drover.Queue](ctx, c, "/v1/queues/"+url.PathEscape(name), nil)
}

// Waits says who waits for what, grouped by reason, tenant and queue, or some of
// them; by reason when none is named.
func (c *Client) Waits(ctx context.Context, groupBy ...string) ([]drover.WaitGroup, error) {
	q := url.Values{}
	if len(groupBy) > 0 {
		q.Set("group_by", strings.Join(groupBy, ","))
	}
	return all[drover.WaitGroup](ctx, c, "/v1/waits", q)
}

// Capacity says which workers there are, and how many each queue wants.
func (c *Client) Capacity(ctx context.Context) (drover.Capacity, error) {
	return get[drover.Capacity](ctx, c, "/v1/capacity", nil)
}

// Circuits returns the tenant's circuits.
func (c *Client) Circuits(ctx context.Context) ([]drover.Circuit, error) {
	return all[drover.Circuit](ctx, c, "/v1/circuits", url.Values{})
}

func circuitPath(name string) string { return "/v1/circuits/" + url.PathEscape(name) }

// Circuit returns a circuit.
func (c *Client) Circuit(ctx context.Context, name string) (drover.Circuit, error) {
	return get[drover.Circuit](ctx, c, circuitPath(name), nil)
}

// SetCircuit sets the policy of a circuit; fields that are zero are the defaults.
func (c *Client) SetCircuit(ctx context.Context, name string, p drover.CircuitPolicy) (drover.Circuit, error) {
	var out drover.Circuit
	body, err := encode(p)
	if err != nil {
		return out, err
	}
	_, err = c.do(ctx, call{method: http.MethodPut, path: circuitPath(name), body: body, media: protocol.MediaJSON, repeat: true}, &out)
	return out, err
}

// OpenCircuit lets no task of a circuit start until CloseCircuit.
func (c *Client) OpenCircuit(ctx context.Context, name, reason string) (drover.Circuit, error) {
	return post[drover.Circuit](ctx, c, call{path: circuitPath(name) + "/open", repeat: true}, protocol.CircuitRequest{Reason: reason})
}

// CloseCircuit lets the tasks of a circuit go, little by little.
func (c *Client) CloseCircuit(ctx context.Context, name string) (drover.Circuit, error) {
	var out drover.Circuit
	_, err := c.do(ctx, call{method: http.MethodPost, path: circuitPath(name) + "/close", repeat: true}, &out)
	return out, err
}

// Workers returns the open worker sessions.
func (c *Client) Workers(ctx context.Context) ([]drover.Session, error) {
	return all[drover.Session](ctx, c, "/v1/workers", url.Values{})
}

// Tokens returns the tenant's tokens, without their secrets.
func (c *Client) Tokens(ctx context.Context) ([]drover.Token, error) {
	return all[drover.Token](ctx, c, "/v1/tokens", url.Values{})
}

// CreateToken makes a token. Its secret is in this answer and nowhere else.
func (c *Client) CreateToken(ctx context.Context, t protocol.NewToken) (drover.Token, error) {
	return post[drover.Token](ctx, c, call{path: "/v1/tokens"}, t)
}

// RevokeToken ends a token.
func (c *Client) RevokeToken(ctx context.Context, id drover.TokenID) error {
	_, err := c.do(ctx, call{method: http.MethodDelete, path: "/v1/tokens/" + id.String(), repeat: true}, nil)
	return err
}

// Tenants returns every tenant; it needs a token of the installation.
func (c *Client) Tenants(ctx context.Context) ([]drover.Tenant, error) {
	p, err := get[protocol.Page[drover.Tenant]](ctx, c, "/v1/tenants", nil)
	return p.Items, err
}

// SetTenant changes what is set of a tenant, and returns what holds; it needs a token
// of the installation.
func (c *Client) SetTenant(ctx context.Context, name string, t protocol.TenantRequest) (drover.Tenant, error) {
	var out drover.Tenant
	body, err := encode(t)
	if err != nil {
		return out, err
	}
	_, err = c.do(ctx, call{method: http.MethodPatch, path: "/v1/tenants/" + url.PathEscape(name), body: body, media: protocol.MediaJSON, repeat: true}, &out)
	return out, err
}

// Retention returns how long the tenant's finished jobs are kept.
func (c *Client) Retention(ctx context.Context) (drover.Retention, error) {
	return get[drover.Retention](ctx, c, "/v1/retention", nil)
}

// SetRetention changes how long the tenant's finished jobs are kept, and returns
// what holds then. Fields that are nil stay as they are.
func (c *Client) SetRetention(ctx context.Context, r protocol.RetentionRequest) (drover.Retention, error) {
	var out drover.Retention
	body, err := encode(r)
	if err != nil {
		return out, err
	}
	_, err = c.do(ctx, call{method: http.MethodPatch, path: "/v1/retention", body: body, media: protocol.MediaJSON, repeat: true}, &out)
	return out, err
}

// WhoAmI returns whom the client's token speaks for.
func (c *Client) WhoAmI(ctx context.Context) (protocol.WhoAmI, error) {
	return get[protocol.WhoAmI](ctx, c, "/v1/whoami", nil)
}

// Version returns what the server runs.
func (c *Client) Version(ctx context.Context) (protocol.Version, error) {
	return get[protocol.Version](ctx, c, "/version", nil)
}

// Healthy returns nil when the server is ready, and otherwise why it is not. It
// asks once.
func (c *Client) Healthy(ctx context.Context) error {
	_, err := c.once(ctx, call{method: http.MethodGet, path: "/readyz"}, nil)
	return err
}

// Items goes through every item of a list, asking for page after page:
//
//	for job, err := range client.Items(func(cursor string) (protocol.Page[drover.Job], error) {
//		return c.Jobs(ctx, client.JobsFilter{List: client.List{Cursor: cursor}})
//	}) { … }
//
// After an error it ends.
func Items[T any](page func(cursor string) (protocol.Page[T], error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var cursor string
		for {
			p, err := page(cursor)
			if err != nil {
				var zero T
				yield(zero, err)
				return
			}
			for _, it := range p.Items {
				if !yield(it, nil) {
					return
				}
			}
			if p.NextCursor == "" || p.NextCursor == cursor {
				return
			}
			cursor = p.NextCursor
		}
	}
}

// Limits returns the limits that apply to the tenant, by name.
func (c *Client) Limits(ctx context.Context) ([]drover.Limit, error) {
	return all[drover.Limit](ctx, c, "/v1/limits", url.Values{})
}

func limitPath(name string) string { return "/v1/limits/" + url.PathEscape(name) }

// Limit returns a limit, with who holds it and who changed it.
func (c *Client) Limit(ctx context.Context, name string) (drover.Limit, error) {
	return get[drover.Limit](ctx, c, limitPath(name), nil)
}

// LimitChange is how a limit or a rule of intake is changed. The zero value changes it
// whatever it was.
type LimitChange struct {
	// Version is the version that it must have; 0 is any.
	Version int
	// New says that there must be none yet.
	New bool
	// DryRun tells what would change, in Limit.Preview or by how a rule would stand, and
	// changes nothing.
	DryRun bool
	// Reason is kept with a deletion; otherwise it is in what is set.
	Reason string
}

func (x LimitChange) call(method, path string) call {
	k := call{method: method, path: path, query: url.Values{}, header: http.Header{}, repeat: x.Version == 0 && !x.New}
	if x.DryRun {
		k.query.Set("dry_run", "true")
	}
	if x.Reason != "" {
		k.query.Set("reason", x.Reason)
	}
	if x.Version > 0 {
		k.header.Set("If-Match", `"`+strconv.Itoa(x.Version)+`"`)
	}
	if x.New {
		k.header.Set("If-None-Match", "*")
	}
	return k
}

// SetLimit makes a limit or changes how much it has.
func (c *Client) SetLimit(ctx context.Context, name string, n drover.NewLimit, x LimitChange) (drover.Limit, error) {
	var out drover.Limit
	body, err := encode(n)
	if err != nil {
		return out, err
	}
	x.Reason = ""
	k := x.call(http.MethodPut, limitPath(name))
	k.body, k.media = body, protocol.MediaJSON
	_, err = c.do(ctx, k, &out)
	return out, err
}

// DeleteLimit removes a limit: nothing is bounded by it any more. Of a dry run the
// limit is what it is.
func (c *Client) DeleteLimit(ctx context.Context, name string, x LimitChange) (drover.Limit, error) {
	var out drover.Limit
	if !x.DryRun {
		_, err := c.do(ctx, x.call(http.MethodDelete, limitPath(name)), nil)
		return out, err
	}
	_, err := c.do(ctx, x.call(http.MethodDelete, limitPath(name)), &out)
	return out, err
}

// IntakeRules returns the rules of intake that apply to the tenant, by name, with how
// things stand.
func (c *Client) IntakeRules(ctx context.Context) ([]drover.IntakeRule, error) {
	return all[drover.IntakeRule](ctx, c, "/v1/intake", url.Values{})
}

func intakePath(name string) string { return "/v1/intake/" + url.PathEscape(name) }

// IntakeRule returns a rule of intake, with its changes.
func (c *Client) IntakeRule(ctx context.Context, name string) (drover.IntakeRule, error) {
	return get[drover.IntakeRule](ctx, c, intakePath(name), nil)
}

// SetIntakeRule makes a rule of intake or changes it.
func (c *Client) SetIntakeRule(ctx context.Context, name string, n drover.NewIntakeRule, x LimitChange) (drover.IntakeRule, error) {
	var out drover.IntakeRule
	body, err := encode(n)
	if err != nil {
		return out, err
	}
	x.Reason = ""
	k := x.call(http.MethodPut, intakePath(name))
	k.body, k.media = body, protocol.MediaJSON
	_, err = c.do(ctx, k, &out)
	return out, err
}

// DeleteIntakeRule removes a rule of intake. Of a dry run the rule is what it is.
func (c *Client) DeleteIntakeRule(ctx context.Context, name string, x LimitChange) (drover.IntakeRule, error) {
	var out drover.IntakeRule
	if !x.DryRun {
		_, err := c.do(ctx, x.call(http.MethodDelete, intakePath(name)), nil)
		return out, err
	}
	_, err := c.do(ctx, x.call(http.MethodDelete, intakePath(name)), &out)
	return out, err
}

// PauseQueue lets nothing of a queue start; what runs goes on.
func (c *Client) PauseQueue(ctx context.Context, name, reason string) (drover.Queue, error) {
	return c.queueAction(ctx, name, "pause", reason)
}

// ResumeQueue lets tasks of a paused queue start, and a draining one take jobs again.
func (c *Client) ResumeQueue(ctx context.Context, name, reason string) (drover.Queue, error) {
	return c.queueAction(ctx, name, "resume", reason)
}

// DrainQueue lets a queue take no new jobs; what is in it runs.
func (c *Client) DrainQueue(ctx context.Context, name, reason string) (drover.Queue, error) {
	return c.queueAction(ctx, name, "drain", reason)
}

// ReserveQueue keeps shares of a queue's slots for classes, in place of what was kept;
// an empty list keeps nothing.
func (c *Client) ReserveQueue(ctx context.Context, name string, list []drover.Reserve, reason string) (drover.Queue, error) {
	if list == nil {
		list = []drover.Reserve{} // none: it must be said
	}
	return post[drover.Queue](ctx, c, call{path: "/v1/queues/" + url.PathEscape(name) + "/reserve", repeat: true}, protocol.ReserveRequest{Reserves: list, Reason: reason})
}

func (c *Client) queueAction(ctx context.Context, name, verb, reason string) (drover.Queue, error) {
	return post[drover.Queue](ctx, c, call{path: "/v1/queues/" + url.PathEscape(name) + "/" + verb, repeat: true}, protocol.QueueRequest{Reason: reason})
}
