package dag

import (
	"crypto/sha256"
	"encoding/json"

	"github.com/drover-dev/drover"
)

type template struct{}
type schema struct{}

// Pipeline is a definition as written.
type Pipeline struct {
	Name        string
	Description string
	canonical   []byte
}

// Parse reads a definition in YAML or JSON and reports every problem at once.
func Parse(file string, src []byte) (*Pipeline, error) {
	return nil, drover.Errorf(drover.CodeInternal, "not built")
}

// Decode reads what Canonical wrote.
func Decode(canonical []byte) (*Pipeline, error) { return Parse("", canonical) }

// Canonical returns the definition as canonical JSON.
func (p *Pipeline) Canonical() []byte { return p.canonical }

// Hash returns the SHA-256 of Canonical.
func (p *Pipeline) Hash() [32]byte { return sha256.Sum256(p.canonical) }

// Compile validates the definition and builds its plan.
func (p *Pipeline) Compile() (*Plan, error) { return nil, nil }

// Elements evaluates for_each of a map over a list.
func (p *Plan) Elements(node int32, s Scope) ([]json.RawMessage, error) { return nil, nil }

// Render returns the task's input.
func (p *Plan) Render(node int32, s Scope) (json.RawMessage, error) {
	if p.Nodes[node].Mapped {
		return s.Item, nil
	}
	return s.Input, nil
}

// InputRefs returns the outputs Render needs.
func (p *Plan) InputRefs(node int32) []Ref { return nil }

// ForEachRefs returns the outputs Elements needs.
func (p *Plan) ForEachRefs(node int32) []Ref { return nil }

// CheckInput checks a job's input against the pipeline's schema.
func (p *Plan) CheckInput(input json.RawMessage) error { return nil }
