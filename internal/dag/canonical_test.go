package dag

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/drover-dev/drover"
)

const ingestion = `
pipeline: dataset-ingestion
description: "Video in, samples out."
input: {type: object, required: [object_uri], properties: {object_uri: {type: string}, segment_seconds: {type: number, default: 2}}}
defaults: {queue: cpu, timeout: 10m, retry: {max_attempts: 4, backoff: {initial: 1s, factor: 2.0, max: 1m, jitter: full}}}
tasks:
  decode:   {run: exec, with: {command: [./steps/decode.sh, "${{ input.object_uri }}"]}}
  extract:  {needs: decode, for_each: "${{ tasks.decode.output.segments }}", run: exec}
  infer:    {needs: [extract], for_each: extract, queue: gpu, class: 20, run: exec}
  manifest: {needs: [infer], artifact: {kind: dataset-manifest}, run: exec}
on_failure: fail_fast
`

func TestCanonicalForm(t *testing.T) {
	t.Parallel()
	p, err := Parse("", []byte(ingestion))
	if err != nil {
		t.Fatal(err)
	}
	if p.Name != "dataset-ingestion" || p.Description != "Video in, samples out." {
		t.Errorf("name %q, description %q", p.Name, p.Description)
	}
	want := `{"defaults":{"queue":"cpu","retry":{"backoff":{"factor":2,"initial":"1s","jitter":"full","max":"60s"},"max_attempts":4},"timeout":"600s"},` +
		`"description":"Video in, samples out.",` +
		`"input":{"properties":{"object_uri":{"type":"string"},"segment_seconds":{"default":2,"type":"number"}},"required":["object_uri"],"type":"object"},` +
		`"on_failure":"fail_fast","pipeline":"dataset-ingestion","tasks":[` +
		`{"name":"decode","run":"exec","with":{"command":["./steps/decode.sh","${{ input.object_uri }}"]}},` +
		`{"for_each":"${{ tasks.decode.output.segments }}","name":"extract","needs":["decode"],"run":"exec"},` +
		`{"class":"urgent","for_each":"extract","name":"infer","needs":["extract"],"queue":"gpu","run":"exec"},` +
		`{"artifact":{"kind":"dataset-manifest"},"name":"manifest","needs":["infer"],"run":"exec"}]}`
	if got := string(p.Canonical()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	// A changed hash gives every stored pipeline a new version at its next registration.
	hash := p.Hash()
	if got := hex.EncodeToString(hash[:]); got != "9ae212e1a6d93aae8ab5bc30842095ea4aa197f3239a85cc490a6ac1afc7f12c" {
		t.Errorf("hash = %s", got)
	}
}

func TestHashIgnoresHowAMeaningIsWritten(t *testing.T) {
	t.Parallel()
	hash := func(src string) [32]byte {
		p, err := Parse("", []byte(src))
		if err != nil {
			t.Fatalf("%v\n%s", err, src)
		}
		return p.Hash()
	}
	base := "pipeline: p\ntasks:\n  a: {run: x, timeout: 90s}\n  b: {run: x, needs: [a], with: {k: 1, l: [no]}}\n"
	for name, src := range map[string]string{
		"comments, order of keys, other duration": "# hi\ntasks:\n  a: {timeout: 1m30s, run: x}\n  b:\n    with:\n      l: ['no']\n      k: 1\n    needs: a\n    run: x\npipeline: p\n",
		"JSON":      `{"pipeline":"p","tasks":{"a":{"run":"x","timeout":"90s"},"b":{"run":"x","needs":["a"],"with":{"k":1,"l":["no"]}}}}`,
		"JSON list": `{"pipeline":"p","tasks":[{"name":"a","run":"x","timeout":"90s"},{"name":"b","run":"\u0078","needs":["a"],"with":{"k":1,"l":["no"]}}]}`,
		"CRLF, BOM": "\ufeff" + strings.ReplaceAll(base, "\n", "\r\n"),
	} {
		if hash(src) != hash(base) {
			t.Errorf("%s: the hash differs", name)
		}
	}
	for name, src := range map[string]string{
		"other number":   strings.Replace(base, "k: 1", "k: 1.0", 1),
		"other order":    "pipeline: p\ntasks:\n  b: {run: x, needs: [a], with: {k: 1, l: [no]}}\n  a: {run: x, timeout: 90s}\n",
		"other duration": strings.Replace(base, "90s", "91s", 1),
		"a default said": base + "on_failure: fail_fast\n",
	} {
		if hash(src) == hash(base) {
			t.Errorf("%s: the hash is the same", name)
		}
	}
}

func TestDecodeRefusesWhatIsNoDefinition(t *testing.T) {
	t.Parallel()
	for _, src := range []string{``, `null`, `{}`, `{"pipeline":"p"}`} {
		if _, err := Decode([]byte(src)); !errors.Is(err, drover.ErrInvalid) {
			t.Errorf("%q: %v", src, err)
		}
	}
	// What only Compile checks is left to it.
	p, err := Decode([]byte(`{"pipeline":"p","tasks":[{"name":"a","run":"x","needs":["b"]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Compile(); !errors.Is(err, drover.ErrInvalid) {
		t.Errorf("compile: %v", err)
	}
}

func TestDecodeReadsACanonicalFormLongerThanItsText(t *testing.T) {
	t.Parallel()
	src := head + "  a: {run: x, with: [{" + strings.Repeat("k},{", 200_000) + "k}]}\n"
	p, err := Parse("", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	c := p.Canonical()
	if len(c) < 2*len(src) {
		t.Fatalf("the canonical form has only %d bytes", len(c))
	}
	q, err := Decode(c)
	if err != nil || !bytes.Equal(q.Canonical(), c) {
		t.Errorf("decode: %v", err)
	}
}

// Parse never panics and never takes long; what it accepts keeps its meaning
// through its canonical form.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		ingestion, diamond, video, "", "a: &a [*a]", `{"pipeline":"p","tasks":{"a":{"run":"x"}}}`,
		head + "  a: {run: x, with: '$${{ ${{ input[\"x\"] }}'}\n", head + "  a: {run: x, for_each: [1, 1e400, no, ~]}\n  b: {run: x, for_each: a}\n",
		"pipeline: p\ninput: {$ref: '#', allOf: [{type: [string]}], pattern: '('}\ntasks: [{name: a, run: x}]\n",
		"pipeline: p\ntasks: {a: {run: x, retry: {max_attempts: 1, backoff: {factor: 1}}, class: 7, timeout: 1h}}\n",
		"? [a]\n: b\n", "- - -\n", "!!binary x", "%YAML 1.1\n---\na", "a: |\n  x\n b", "\"\\ud800\"", "<<: {a: 1}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		p, err := Parse("fuzz", src)
		if err != nil {
			var e *drover.Error
			if !errors.As(err, &e) || len(e.Fields) > problemCap {
				t.Fatalf("error is %T with %d fields", err, len(e.Fields))
			}
			for _, fe := range e.Fields {
				if fe.Line < 1 || fe.Column < 1 || fe.Field == "" || fe.Message == "" {
					t.Fatalf("a problem without a place: %+v", fe)
				}
			}
			return
		}
		c := p.Canonical()
		if !json.Valid(c) {
			t.Fatalf("no JSON: %s", c)
		}
		q, err := Decode(c)
		if err != nil {
			t.Fatalf("decode: %v\n%s", err, c)
		}
		if !bytes.Equal(q.Canonical(), c) {
			t.Fatalf("canonical of canonical differs:\n%s\n%s", c, q.Canonical())
		}
		if r, err := Parse("", c); err != nil || !bytes.Equal(r.Canonical(), c) {
			t.Fatalf("parse of canonical: %v", err)
		}
		plan, err := q.Compile()
		if err != nil {
			t.Fatalf("compile: %v", err)
		}
		input := json.RawMessage(`{"a":[1,{"b":"c"}]}`)
		_ = plan.CheckInput(input)
		s := Scope{Input: input, Item: input, Output: func(Key) (json.RawMessage, bool) { return input, true }, Len: func(int32) int { return 2 }}
		for i, n := range plan.Nodes {
			out, err := plan.Render(int32(i), s)
			if err == nil && !json.Valid(out) {
				t.Fatalf("input of %s is no JSON: %s", n.Name, out)
			}
			if n.Mapped && n.Over < 0 {
				_, _ = plan.Elements(int32(i), s)
				plan.Family(int32(i))
			}
			plan.Children(Key{int32(i), 0})
			plan.Descendants(int32(i))
		}
		plan.Levels()
	})
}
