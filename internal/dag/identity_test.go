package dag

import (
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"

	"github.com/drover-dev/drover"
)

func TestNormalIsTheSameForTheSameValue(t *testing.T) {
	t.Parallel()
	for want, all := range map[string][]string{
		`{"a":1,"b":[true,null,"x"]}`: {`{"b": [true, null, "x"], "a": 1}`, `{"a":1.0,"b":[true,null,"\u0078"]}`, `{"a":2,"a":1e0,"b":[true,null,"x"]}`},
		`2e1`:                         {`20`, `2e1`, `20.0`, `0.2E+2`, `2000e-2`},
		`-125e-2`:                     {`-1.25`, `-1.250`, `-125e-2`},
		`0`:                           {`0`, `-0`, `0.000`, `0e7`},
		`9007199254740993`:            {`9007199254740993`, `9007199254740993.0`},
		`1e400`:                       {`1e400`, `10e399`, `1E+400`},
		`"é\n/"`:                      {`"é\n/"`, `"\u00e9\u000a\/"`},
		`null`:                        {`null`, ` `, ``},
	} {
		for _, v := range all {
			got, err := Normal(json.RawMessage(v), nil)
			if err != nil || string(got) != want {
				t.Errorf("%s became %s, %v; want %s", v, got, err, want)
			}
		}
	}
	if _, err := Normal(json.RawMessage(`{"a"`), nil); err == nil {
		t.Error("broken JSON is taken")
	}
}

func TestIdentityDependsOnEverythingAndNothingElse(t *testing.T) {
	t.Parallel()
	one, two := drover.ArtifactID(drover.MakeID(1, [10]byte{1})), drover.ArtifactID(drover.MakeID(2, [10]byte{2}))
	content := map[drover.ArtifactID]string{one: strings.Repeat("a", 64), two: strings.Repeat("a", 64)}
	base := Making{Pipeline: "p", Task: "t", Kind: "k", Version: "1", Output: "table", Parameters: json.RawMessage(`{"from": "` + drover.URIOf(one) + `", "n": 2}`)}
	identity := func(m Making) string {
		sum, err := m.Identity(content)
		if err != nil {
			t.Fatal(err)
		}
		return hex.EncodeToString(sum[:])
	}
	// A changed identity makes every stored result unfindable.
	const want = "5947bd4b"
	if got := identity(base); !strings.HasPrefix(got, want) {
		t.Errorf("identity = %s, want %s…", got, want)
	}
	same := base
	same.Parameters = json.RawMessage(`{"n":2.0,"from":"` + drover.URIOf(two) + `"}`)
	if identity(same) != identity(base) {
		t.Error("other bytes of the same meaning, or another upload of the same bytes, make another identity")
	}
	seen := map[string]string{identity(base): "base"}
	for what, change := range map[string]func(*Making){
		"pipeline": func(m *Making) { m.Pipeline = "q" }, "task": func(m *Making) { m.Task = "u" }, "kind": func(m *Making) { m.Kind = "l" },
		"version": func(m *Making) { m.Version = "2" }, "output": func(m *Making) { m.Output = "list" }, "run": func(m *Making) { m.Run = "task.2" },
		"parameters": func(m *Making) { m.Parameters = json.RawMessage(`{"n": 3}`) }, "swapped": func(m *Making) { m.Pipeline, m.Task = "t", "p" },
		"unknown": func(m *Making) {
			m.Parameters = json.RawMessage(`{"from": "` + drover.URIOf(drover.ArtifactID{9}) + `", "n": 2}`)
		},
		"text": func(m *Making) {
			m.Parameters = json.RawMessage(`{"from": "sha256:` + strings.Repeat("a", 64) + `", "n": 2}`)
		},
	} {
		m := base
		change(&m)
		got := identity(m)
		if other, twice := seen[got]; twice {
			t.Errorf("%s and %s have one identity", what, other)
		}
		seen[got] = what
	}
}

func TestArtifactsInAValue(t *testing.T) {
	t.Parallel()
	one, two := drover.ArtifactID(drover.MakeID(1, [10]byte{1})), drover.ArtifactID(drover.MakeID(2, [10]byte{2}))
	v := `{"a": ["` + drover.URIOf(two) + `"], "b": "see ` + drover.URIOf(one) + ` and ` + drover.URIOf(two) + `", "c": "artifact://art_short"}`
	if got := ArtifactsIn(json.RawMessage(v)); len(got) != 2 || got[0] != two || got[1] != one {
		t.Errorf("artifacts = %v", got)
	}
}

func TestCacheIsRead(t *testing.T) {
	t.Parallel()
	plan := planOf(t, `{pipeline: p, tasks: {a: {run: x, cache: true}, b: {run: x, cache: {version: "2"}}, c: {run: x, cache: false}, d: {run: x}}}`)
	for i, want := range []string{"true ", "true 2", "false ", "false "} {
		if got := strings.TrimSpace(map[bool]string{true: "true ", false: "false "}[plan.Nodes[i].Cache] + plan.Nodes[i].Version); got != strings.TrimSpace(want) {
			t.Errorf("%s = %q, want %q", plan.Nodes[i].Name, got, want)
		}
	}
	if !plan.Caches() || planOf(t, `{pipeline: p, tasks: {c: {run: x, cache: false}}}`).Caches() {
		t.Error("Caches is wrong")
	}
	for _, c := range []string{`yes`, `1`, `{}`, `{version: 2}`, `{version: ""}`, `{versoin: "1"}`} {
		if _, err := Parse("", []byte(`{pipeline: p, tasks: {a: {run: x, cache: `+c+`}}}`)); err == nil {
			t.Errorf("cache: %s is taken", c)
		}
	}
}
