package dag

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/drover-dev/drover/internal/builtin"
)

// inputs complains about what is given to tasks of the built-in kinds and they do
// not take. It is asked of what is being registered: a definition that was
// registered before goes on, and its tasks say it when they run.
func (p *Pipeline) inputs(ps *problems) {
	for i := range p.tasks {
		t := &p.tasks[i]
		if t.with == nil {
			continue // the input comes from the job or the map
		}
		for _, wrong := range builtin.Check(t.kind, known(t.with)) {
			ps.input(t.with, t.at.member("with"), wrong)
		}
	}
}

// input adds a problem of an input where it stands: that of a key which there is
// not at the key itself.
func (ps *problems) input(v *value, at *path, wrong builtin.Problem) {
	line, col := v.line, v.col
	for _, step := range wrong.Path {
		switch step := step.(type) {
		case int:
			at, v = at.at(step), v.items[step]
			line, col = v.line, v.col
		case string:
			i := slices.IndexFunc(v.keys, func(k key) bool { return k.name == step })
			line, col = v.keys[i].line, v.keys[i].col
			at, v = at.member(step), v.items[i]
			if wrong.Keys == nil && v.kind != null { // of nothing the key is the place
				line, col = v.line, v.col
			}
		}
	}
	hint := ""
	if wrong.Keys != nil {
		if hint = ps.hint(wrong.Path[len(wrong.Path)-1].(string), slices.Values(wrong.Keys)); hint == "" {
			hint = "; the keys are " + strings.Join(wrong.Keys, ", ")
		}
	}
	ps.add(line, col, at, "%s%s", wrong.Message, hint)
}

// known is v as far as it is known while its expressions have no values.
func known(v *value) any {
	switch v.kind {
	case null:
		return nil
	case boolean:
		return v.text == "true"
	case number:
		return json.Number(v.text)
	case text:
		return knownText(v.text)
	case list:
		out := make([]any, len(v.items))
		for i, e := range v.items {
			out[i] = known(e)
		}
		return out
	case object:
		out := make(map[string]any, len(v.keys))
		for i, k := range v.keys {
			out[k.name] = known(v.items[i])
		}
		return out
	default: // complained about already
		return builtin.Unknown{}
	}
}

// knownText is a text without expressions, or what stands for one with some.
func knownText(s string) any {
	var b strings.Builder
	for rest := s; ; {
		i := strings.Index(rest, "${{")
		switch {
		case i < 0:
			b.WriteString(rest)
			return b.String()
		case i > 0 && rest[i-1] == '$': // $${{ is a literal ${{
			b.WriteString(rest[:i-1] + "${{")
			rest = rest[i+3:]
		case i == 0 && rest == s && exprEnd(s[3:]) == len(s)-5:
			return builtin.Unknown{} // whatever the expression gives
		default:
			return builtin.UnknownText{}
		}
	}
}
