package api

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

// document is the OpenAPI description in the forms it is served in.
type document struct {
	json, yaml, html []byte
}

// headerNotes describes the headers of answers.
var headerNotes = map[string]string{
	"Location":                         "The path of what was made.",
	"RateLimit-Policy":                 "The rule that refused it, and how many tasks it lets wait: `\"backlog\";q=10000`.",
	"RateLimit":                        "What is left of that, and in how many seconds to ask again: `\"backlog\";r=0;t=5`.",
	"Retry-After":                      "Seconds until asking again may help.",
	"ETag":                             "Changes whenever the answer does.",
	"Link":                             "The next page, with rel=\"next\".",
	"Allow":                            "The methods possible here.",
	"WWW-Authenticate":                 "How to say who asks.",
	"Content-Disposition":              "Always attachment, with the file name.",
	protocol.HeaderIdempotencyReplayed: "true when an earlier request made the job.",
	protocol.HeaderPreferenceApplied:   "What of Prefer was done.",
	protocol.HeaderArtifactSHA256:      "SHA-256 of the whole content, in hexadecimal.",
}

const intro = `Drover drives asynchronous work to its end. A job is accepted when the answer comes, and then it is not lost.

- Say who asks with ` + "`Authorization: Bearer drover_…`" + `. The token decides the tenant; of other tenants' things nothing is shown, not even that they exist.
- Errors are ` + "`application/problem+json`" + ` (RFC 9457): branch on ` + "`code`" + `, show ` + "`errors`" + ` to people, give ` + "`trace_id`" + ` to whoever runs the server.
- Requests are read strictly: unknown or repeated members, wrong types and trailing data are refused, with the place. Unknown members of answers may appear at any time; pass over them.
- Lists come in pages: ask again with ` + "`cursor`" + ` set to ` + "`next_cursor`" + ` until there is none.
- Times are RFC 3339 in UTC; durations are written in seconds (` + "`90s`" + `) and read in any unit (` + "`1h30m`" + `).`

// describe builds the document from the table of routes.
func describe(routes []route, version string) document {
	text, err := json.MarshalIndent(outline(routes, version), "", "  ")
	if err != nil {
		panic(fmt.Sprintf("api: write the OpenAPI document: %v", err)) // it is made of strings and numbers
	}
	text = append(text, '\n')
	yaml, err := toYAML(text)
	if err != nil {
		panic(fmt.Sprintf("api: write the OpenAPI document as YAML: %v", err))
	}
	return document{json: text, yaml: yaml, html: page4people(routes)}
}

func outline(routes []route, version string) object {
	s := &schemas{byName: map[string]object{}, problems: map[string]object{}, requests: map[reflect.Type]bool{}, answers: map[reflect.Type]bool{}}
	for _, t := range routes {
		if t.body.of != nil {
			mark(s.requests, reflect.TypeOf(t.body.of))
		}
		for _, x := range t.answers {
			if x.of != nil {
				mark(s.answers, reflect.TypeOf(x.of))
			}
		}
	}
	s.of(reflect.TypeFor[protocol.Problem]())
	for _, t := range []reflect.Type{reflect.TypeFor[drover.JobID](), reflect.TypeFor[drover.TaskID](), reflect.TypeFor[drover.ArtifactID](), reflect.TypeFor[drover.SessionID](), reflect.TypeFor[drover.TokenID]()} {
		s.of(t)
	}
	var paths object
	for _, t := range routes {
		op := s.operation(t)
		i := slices.IndexFunc(paths, func(p pair) bool { return p.key == t.path })
		if i < 0 {
			paths = append(paths, pair{t.path, object{}})
			i = len(paths) - 1
		}
		item := append(paths[i].value.(object), pair{strings.ToLower(t.method), op})
		paths[i].value = item
	}
	var components object
	for _, name := range slices.Sorted(maps.Keys(s.byName)) {
		components = append(components, pair{name, s.byName[name]})
	}
	var problems object
	for _, name := range slices.Sorted(maps.Keys(s.problems)) {
		problems = append(problems, pair{name, s.problems[name]})
	}
	var tags []any
	for _, t := range tagNotes {
		tags = append(tags, object{{"name", t[0]}, {"description", t[1]}})
	}
	return object{
		{"openapi", "3.1.0"},
		{"info", object{
			{"title", "Drover"},
			{"description", intro},
			{"version", cmp.Or(version, "dev")},
			{"license", object{{"name", "Apache-2.0"}, {"identifier", "Apache-2.0"}}},
		}},
		{"servers", []any{object{{"url", "/"}}}},
		{"security", []any{object{{"token", []any{}}}}},
		{"tags", tags},
		{"paths", paths},
		{"components", object{
			{"securitySchemes", object{{"token", object{{"type", "http"}, {"scheme", "bearer"}, {"description", "An API token, `drover_…`. Scopes: " + strings.Join(scopes, ", ") + "; admin permits all."}}}}},
			{"schemas", components},
			{"examples", problems},
		}},
	}
}

var tagNotes = [][2]string{
	{"jobs", "Submit work, follow it, stop it."},
	{"tasks", "The parts of a job, and their attempts."},
	{"pipelines", "Definitions, versioned."},
	{"queues", "Where tasks wait."},
	{"limits", "How many tasks run at once, or start in a second."},
	{"intake", "From when on too much waits, and what becomes of new jobs then."},
	{"circuits", "What many tasks use: while one is open, none of its tasks starts."},
	{"workers", "The protocol of workers: open a session, acquire, renew, settle."},
	{"dead letters", "What ended badly and waits for a person."},
	{"artifacts", "What tasks made."},
	{"tokens", "Who may do what."},
	{"server", "Health, version, this document."},
}

var inBraces = regexp.MustCompile(`\{([a-z_]+)\}`)

func (s *schemas) operation(t route) object {
	op := object{{"operationId", t.id}, {"tags", []any{t.tag}}, {"summary", t.summary}}
	if about := t.note(); about != "" {
		op = append(op, pair{"description", about})
	}
	var params []any
	for _, m := range inBraces.FindAllStringSubmatch(t.path, -1) {
		params = append(params, object{{"name", m[1]}, {"in", inPath}, {"required", true}, {"schema", pathParams[m[1]]}})
	}
	for _, p := range t.params {
		schema := p.schema
		o := object{{"name", p.name}, {"in", p.in}, {"description", p.about}}
		if p.required {
			o = append(o, pair{"required", true})
		}
		if p.repeat {
			schema = object{{"type", "array"}, {"items", p.schema}}
			o = append(o, pair{"explode", true})
		}
		params = append(params, append(o, pair{"schema", schema}))
	}
	if params != nil {
		op = append(op, pair{"parameters", params})
	}
	switch b := t.body; {
	case b.of != nil:
		op = append(op, pair{"requestBody", object{
			{"required", !b.optional},
			{"content", object{{protocol.MediaJSON, content(s.of(reflect.TypeOf(b.of)), b.example)}}},
		}})
	case b.media != nil:
		var c object
		for _, m := range b.media {
			c = append(c, pair{m, content(stringSchema, b.example)})
		}
		op = append(op, pair{"requestBody", object{{"description", b.about}, {"required", true}, {"content", c}}})
	}
	op = append(op, pair{"responses", s.responses(t)})
	switch {
	case t.policy.public:
		op = append(op, pair{"security", []any{}})
	case t.policy.token:
		op = append(op, pair{"security", []any{object{{"token", []any{}}}}})
	default: // any one of the scopes
		var need []any
		for _, sc := range t.policy.scopes {
			need = append(need, object{{"token", []any{sc}}})
		}
		op = append(op, pair{"security", need})
	}
	return op
}

// note is what the document says beyond the summary.
func (t route) note() string {
	about := t.about
	switch {
	case t.policy.public:
		about += "\n\nNeeds no token."
	case t.policy.token:
		about += "\n\nNeeds any token."
	default:
		about += "\n\nNeeds the scope `" + strings.Join(t.policy.scopes, "` or `") + "`"
		if t.policy.operator {
			about += " and a token of the tenant `system`"
		}
		about += "."
	}
	return strings.TrimSpace(about)
}

func content(schema object, example any) object {
	o := object{{"schema", schema}}
	if example != nil {
		o = append(o, pair{"examples", object{{"example", object{{"value", example}}}}})
	}
	return o
}

func (s *schemas) responses(t route) object {
	var out object
	byStatus := map[int]int{} // where a status stands in out
	for _, a := range t.answers {
		key := strconv.Itoa(a.status)
		var c object
		switch {
		case a.of != nil:
			c = object{{protocol.MediaJSON, content(s.of(reflect.TypeOf(a.of)), a.example)}}
		case a.media == "*/*": // bytes
			c = object{{a.media, object{}}}
		case a.media != "":
			c = object{{a.media, content(stringSchema, a.example)}}
		}
		if i, ok := byStatus[a.status]; ok {
			out[i].value = joined(out[i].value.(object), object{{"description", a.about}, {"content", c}})
			continue
		}
		r := object{{"description", a.about}}
		if h := headers(a.headers); h != nil {
			r = append(r, pair{"headers", h})
		}
		if c != nil {
			r = append(r, pair{"content", c})
		}
		byStatus[a.status] = len(out)
		out = append(out, pair{key, r})
	}
	codes := problemsAt(t.problems())
	if t.reads() {
		codes[http.StatusUnsupportedMediaType] = []drover.Code{drover.CodeValidation}
	}
	if t.id == "getArtifactContent" {
		codes[http.StatusRequestedRangeNotSatisfiable] = []drover.Code{drover.CodeValidation}
	}
	for _, status := range slices.Sorted(maps.Keys(codes)) {
		r := s.refusal(status, codes[status])
		if i, ok := byStatus[status]; ok {
			out[i].value = joined(out[i].value.(object), r)
			continue
		}
		out = append(out, pair{strconv.Itoa(status), r})
	}
	return append(out, pair{"default", object{
		{"description", "Any other refusal."},
		{"content", object{{protocol.MediaProblem, object{{"schema", ref("Problem")}}}}},
	}})
}

// joined is the response of one status that comes in several media types.
func joined(a, b object) object {
	for _, p := range b {
		i := slices.IndexFunc(a, func(q pair) bool { return q.key == p.key })
		switch {
		case i < 0:
			a = append(a, p)
		case p.key == "description":
			a[i].value = a[i].value.(string) + " " + p.value.(string)
		case p.key == "content":
			a[i].value = append(a[i].value.(object), p.value.(object)...)
		}
	}
	return a
}

// reads reports whether the route takes a body of a certain type.
func (t route) reads() bool { return t.body.of != nil || t.body.media != nil }

// problems are the codes a route can answer with.
func (t route) problems() []drover.Code {
	if t.policy.public {
		return t.codes
	}
	return append(slices.Clone(anywhere), t.codes...)
}

func (s *schemas) refusal(status int, codes []drover.Code) object {
	var names []string
	var examples object
	for _, c := range codes {
		names = append(names, "`"+string(c)+"`")
		name := string(c)
		if status != protocol.StatusOf(c) {
			name = strconv.Itoa(status)
		}
		if s.problems[name] == nil {
			p := exampleProblem(c)
			p.Status, p.Title = status, cmp.Or(statusTitles[status], p.Title)
			s.problems[name] = object{{"value", p}}
		}
		examples = append(examples, pair{name, object{{"$ref", "#/components/examples/" + name}}})
	}
	text := cmp.Or(statusNotes[status], exampleProblem(codes[0]).Title+".") + " Code: " + strings.Join(names, ", ") + "."
	r := object{{"description", text}}
	switch status {
	case http.StatusUnauthorized:
		r = append(r, pair{"headers", headers([]string{"WWW-Authenticate"})})
	case http.StatusTooManyRequests:
		r = append(r, pair{"headers", headers([]string{"Retry-After", "RateLimit-Policy", "RateLimit"})})
	case http.StatusServiceUnavailable, http.StatusConflict:
		r = append(r, pair{"headers", headers([]string{"Retry-After"})})
	}
	return append(r,
		pair{"content", object{{protocol.MediaProblem, object{{"schema", ref("Problem")}, {"examples", examples}}}}},
		pair{"x-problem-codes", anys(codes)})
}

func headers(names []string) object {
	var out object
	for _, n := range names {
		out = append(out, pair{n, object{{"description", headerNotes[n]}, {"schema", stringSchema}}})
	}
	return out
}

// serveDocument answers with one form of the document.
func (a *API) serveDocument(w http.ResponseWriter, r *request, media string, text []byte) error {
	sum := sha256.Sum256(text)
	tag := `"` + hex.EncodeToString(sum[:12]) + `"`
	h := w.Header()
	h.Set("ETag", tag)
	h.Set("Cache-Control", "no-cache")
	if matches(r.Header.Values("If-None-Match"), tag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	h.Set("Content-Type", media)
	h.Set("Content-Length", strconv.Itoa(len(text)))
	if r.Method != http.MethodHead {
		_, _ = bytes.NewReader(text).WriteTo(w) // a client that left gets nothing
	}
	return nil
}

func (a *API) openapiJSON(w http.ResponseWriter, r *request) error {
	return a.serveDocument(w, r, protocol.MediaJSON, a.spec().json)
}

func (a *API) openapiYAML(w http.ResponseWriter, r *request) error {
	return a.serveDocument(w, r, protocol.MediaYAML, a.spec().yaml)
}

func (a *API) docs(w http.ResponseWriter, r *request) error {
	w.Header().Set("Content-Security-Policy", docsPolicy)
	return a.serveDocument(w, r, "text/html; charset=utf-8", a.spec().html)
}
