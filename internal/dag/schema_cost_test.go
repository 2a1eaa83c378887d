package dag

import (
	"fmt"
	"testing"
)

// TestSchemasThatExplodeAreRefused: a check must not take time that is
// exponential in the depth of the input. Recursion as such is fine.
func TestSchemasThatExplodeAreRefused(t *testing.T) {
	t.Parallel()
	const self = `{$ref: "#/$defs/n"}`
	for _, c := range []struct {
		name, n string
		bad     bool
	}{
		{"plain", `{type: object, properties: {x: {type: string}}}`, false},
		{"list", `{type: object, properties: {next: ` + self + `}}`, false},
		{"tree", `{type: object, properties: {left: ` + self + `, right: ` + self + `}, additionalProperties: ` + self + `}`, false},
		{"any JSON", `{anyOf: [{type: string}, {type: array, items: ` + self + `}, {type: object, additionalProperties: ` + self + `}]}`, false},
		{"two branches", `{anyOf: [{properties: {x: ` + self + `}}, {properties: {x: ` + self + `}}]}`, true},
		{"all of it twice", `{allOf: [{properties: {x: ` + self + `}}], properties: {x: ` + self + `}}`, true},
		{"patterns", `{patternProperties: {"^a": ` + self + `, "a$": ` + self + `}}`, true},
		{"elements", `{items: ` + self + `, contains: ` + self + `}`, true},
		{"by a detour", `{oneOf: [{$ref: "#/$defs/m"}, {$ref: "#/$defs/m"}]}`, true},
	} {
		src := fmt.Sprintf("pipeline: p\ninput: {$ref: \"#/$defs/n\", $defs: {n: %s, m: {properties: {x: {$ref: \"#/$defs/n\"}}}}}\ntasks: {a: {run: a}}\n", c.n)
		_, err := Parse("p.yaml", []byte(src))
		if (err != nil) != c.bad {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
