package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"slices"
	"strings"

	"github.com/drover-dev/drover/protocol"
)

// docsStyle is the whole style of the page; its hash stands in docsPolicy, so
// that the page can load and run nothing else.
const docsStyle = `
:root{color-scheme:light dark;--line:#8884;--soft:#8881;--key:#06c}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{margin:0}h2{margin:2.5rem 0 .5rem;border-bottom:1px solid var(--line)}
details{border:1px solid var(--line);border-radius:6px;margin:.4rem 0}
summary{padding:.4rem .7rem;cursor:pointer}details[open]>summary{border-bottom:1px solid var(--line)}
details>div{padding:.2rem .9rem .7rem}
code,pre{font:13px/1.45 ui-monospace,monospace}pre{background:var(--soft);padding:.6rem;border-radius:6px;overflow-x:auto}
.m{display:inline-block;min-width:4.5em;font-weight:600;color:var(--key)}.s{opacity:.75;margin-left:.6em}
table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;padding:.2rem .8rem .2rem 0;border-bottom:1px solid var(--line)}
p{white-space:pre-line}
@media (prefers-color-scheme:dark){:root{--key:#6cf}}
`

// docsPolicy is the page's content security policy.
var docsPolicy = func() string {
	sum := sha256.Sum256([]byte(docsStyle))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
}()

var docsPage = template.Must(template.New("docs").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Drover API</title><style>{{.Style}}</style></head><body>
<h1>Drover API</h1>
<p>{{.Intro}}</p>
<p>For programs: <a href="/openapi.json">/openapi.json</a>, <a href="/openapi.yaml">/openapi.yaml</a>.</p>
{{range .Groups}}<h2 id="{{.Name}}">{{.Name}}</h2><p>{{.Note}}</p>
{{range .Routes}}<details id="{{.ID}}"><summary><span class="m">{{.Method}}</span><code>{{.Path}}</code><span class="s">{{.Summary}}</span></summary><div>
<p>{{.Note}}</p>
{{if .Params}}<table><tr><th>parameter</th><th>in</th><th></th></tr>{{range .Params}}<tr><td><code>{{.Name}}</code></td><td>{{.In}}</td><td>{{.About}}</td></tr>{{end}}</table>{{end}}
{{if .Curl}}<pre>{{.Curl}}</pre>{{end}}
<table><tr><th>answer</th><th></th></tr>{{range .Answers}}<tr><td>{{.Status}}</td><td>{{.About}}{{if .Example}}<pre>{{.Example}}</pre>{{end}}</td></tr>{{end}}</table>
</div></details>
{{end}}{{end}}</body></html>
`))

type docsRoute struct {
	ID, Method, Path, Summary, Note, Curl string
	Params                                []docsParam
	Answers                               []docsAnswer
}

type docsParam struct {
	Name, About string
	In          place
}

type docsAnswer struct{ Status, About, Example string }

// page4people writes the table of routes as a page of HTML.
func page4people(routes []route) []byte {
	type group struct {
		Name, Note string
		Routes     []docsRoute
	}
	var groups []group
	for _, t := range tagNotes {
		groups = append(groups, group{Name: t[0], Note: t[1]})
	}
	for _, t := range routes {
		i := slices.IndexFunc(groups, func(g group) bool { return g.Name == t.tag })
		groups[i].Routes = append(groups[i].Routes, t.forPeople())
	}
	var b bytes.Buffer
	err := docsPage.Execute(&b, map[string]any{
		"Style": template.CSS(docsStyle), "Intro": strings.ReplaceAll(intro, "`", ""), "Groups": groups,
	})
	if err != nil {
		panic(fmt.Sprintf("api: write the page of the API: %v", err))
	}
	return b.Bytes()
}

func (t route) forPeople() docsRoute {
	out := docsRoute{ID: t.id, Method: t.method, Path: t.path, Summary: t.summary, Note: strings.ReplaceAll(t.note(), "`", "")}
	for _, m := range inBraces.FindAllStringSubmatch(t.path, -1) {
		out.Params = append(out.Params, docsParam{Name: m[1], In: inPath})
	}
	for _, p := range t.params {
		out.Params = append(out.Params, docsParam{Name: p.name, In: p.in, About: strings.ReplaceAll(p.about, "`", "")})
	}
	out.Curl = t.curl()
	for _, a := range t.answers {
		out.Answers = append(out.Answers, docsAnswer{Status: itoa(a.status), About: strings.ReplaceAll(a.about, "`", ""), Example: indented(a.example)})
	}
	for _, c := range t.problems() {
		p := exampleProblem(c)
		out.Answers = append(out.Answers, docsAnswer{Status: itoa(p.Status), About: string(c) + ": " + p.Title + "."})
	}
	return out
}

// curl is the request as one types it.
func (t route) curl() string {
	s := "curl"
	if t.method != "GET" {
		s += " -X " + t.method
	}
	if !t.policy.public {
		s += ` -H "Authorization: Bearer $DROVER_TOKEN"`
	}
	url := t.path
	for _, id := range [][2]string{{"{job_id}", exampleJobID.String()}, {"{task_id}", exampleTaskID.String()}, {"{artifact_id}", exampleArtifactID.String()},
		{"{token_id}", exampleTokenID.String()}, {"{worker_id}", "wrk_42"}, {"{pipeline}", "thumbnails"}, {"{queue}", "cpu"}, {"{circuit}", "payment-api"}} {
		url = strings.ReplaceAll(url, id[0], id[1])
	}
	switch {
	case t.body.of != nil:
		s += " \\\n  -H 'Content-Type: application/json' -d '" + compacted(t.body.example) + "' \\\n "
	case t.body.media != nil && t.body.media[0] == protocol.MediaYAML:
		s += " \\\n  -H 'Content-Type: application/yaml' --data-binary @pipeline.yaml \\\n "
	case t.body.media != nil:
		s += " \\\n  -H 'Content-Type: application/json' --data-binary @manifest.json \\\n "
		url += "?name=manifest.json&lease_version=7"
	}
	return s + " 'http://127.0.0.1:8420" + url + "'"
}

func indented(v any) string {
	if v == nil {
		return ""
	}
	if s, ok := v.(string); ok {
		return s
	}
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("api: write an example: %v", err))
	}
	return string(b)
}

func compacted(v any) string {
	b, err := asJSON(v)
	if err != nil {
		panic(fmt.Sprintf("api: write an example: %v", err))
	}
	return string(b)
}
