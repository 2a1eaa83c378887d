package dag

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/drover-dev/drover"
)

// Making is everything that a result depends on, as far as Drover can know.
type Making struct {
	Pipeline, Task string
	Kind           string // the handler's
	Version        string // of the handler, as the definition says; may be empty
	Output         string // the kind of what is made
	// Parameters are the task's input, filled in. The artifacts that it names count
	// by what is in them, see Content.
	Parameters json.RawMessage
	// Run tells a deliberate repetition from the others; may be empty.
	Run string
}

// identityForm is raised when identities come to be made otherwise: those made
// before are not found then.
const identityForm = 1

// Identity returns what is the same for two tasks that must give the same: the
// SHA-256 of the canonical JSON of everything in m. content gives the SHA-256 of
// an artifact, in hexadecimal digits; one that it does not know stays a URI.
func (m Making) Identity(content map[drover.ArtifactID]string) ([32]byte, error) {
	var inputs []string
	params, err := Normal(m.Parameters, func(s string) string {
		return artifactURI.ReplaceAllStringFunc(s, func(uri string) string {
			id, err := drover.ParseArtifactID(strings.TrimPrefix(uri, artifactScheme))
			sum, ok := content[id]
			if err != nil || !ok {
				return uri
			}
			inputs = append(inputs, sum)
			return "sha256:" + sum
		})
	})
	if err != nil {
		return [32]byte{}, fmt.Errorf("identity of task %q: %w", m.Task, err)
	}
	slices.Sort(inputs)
	inputs = slices.Compact(inputs)
	b := fmt.Appendf(nil, `{"form":%d,"input_version":[`, identityForm)
	for i, sum := range inputs {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, sum)
	}
	b = append(b, `],"output_kind":`...)
	b = appendString(b, m.Output)
	b = append(append(b, `,"parameters":`...), params...)
	for _, f := range [][2]string{{"pipeline", m.Pipeline}, {"run", m.Kind}, {"run_id", m.Run}, {"task", m.Task}, {"version", m.Version}} {
		b = append(b, ',')
		b = append(appendString(b, f[0]), ':')
		b = appendString(b, f[1])
	}
	return sha256.Sum256(append(b, '}')), nil
}

const artifactScheme = "artifact://"

var artifactURI = regexp.MustCompile(artifactScheme + `art_[0-9A-HJKMNP-TV-Z]{26}`)

// ArtifactsIn returns the artifacts whose URIs stand in a value, each once, in the
// order of the text.
func ArtifactsIn(v json.RawMessage) []drover.ArtifactID {
	if !bytes.Contains(v, []byte(artifactScheme)) {
		return nil
	}
	var out []drover.ArtifactID
	for _, uri := range artifactURI.FindAll(v, -1) {
		id, err := drover.ParseArtifactID(string(uri[len(artifactScheme):]))
		if err == nil && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// Normal returns v as the one JSON that stands for its value: members sorted by the
// bytes of their names, of a name written twice the last, no white space, strings
// escaped as little as can be, numbers as their digits without zeros at either end
// and an exponent. text, which may be nil, replaces strings that are values.
func Normal(v json.RawMessage, text func(string) string) (json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(orNull(v)))
	d.UseNumber()
	var doc any
	if err := d.Decode(&doc); err != nil {
		return nil, err
	}
	return appendNormal(nil, doc, text), nil
}

func orNull(v json.RawMessage) json.RawMessage {
	if len(bytes.TrimSpace(v)) == 0 {
		return json.RawMessage("null")
	}
	return v
}

func appendNormal(b []byte, v any, text func(string) string) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...)
	case bool:
		return fmt.Append(b, v)
	case json.Number:
		return append(b, normalNumber(string(v))...)
	case string:
		if text != nil {
			v = text(v)
		}
		return appendString(b, v)
	case []any:
		b = append(b, '[')
		for i, e := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendNormal(b, e, text)
		}
		return append(b, ']')
	default:
		m := v.(map[string]any) // what else UnmarshalJSON makes
		names := make([]string, 0, len(m))
		for n := range m {
			names = append(names, n)
		}
		slices.Sort(names)
		b = append(b, '{')
		for i, n := range names {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, n), ':')
			b = appendNormal(b, m[n], text)
		}
		return append(b, '}')
	}
}

// normalNumber writes a number of JSON so that equal values are equal texts: 20,
// 20.0 and 2e1 are all 2e1, and 0, -0 and 0e5 are 0. Its value is never computed,
// so that no digit is lost.
func normalNumber(s string) string {
	sign := ""
	if s[0] == '-' {
		sign, s = "-", s[1:]
	}
	mantissa, exp, _ := strings.Cut(strings.ToLower(s), "e")
	whole, part, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+part, "0")
	shift := -len(part)
	trimmed := strings.TrimRight(digits, "0")
	shift += len(digits) - len(trimmed)
	if trimmed == "" {
		return "0"
	}
	total, ok := addDecimal(exp, shift)
	switch {
	case !ok: // an exponent of thousands of digits: it stays as it was written
		return sign + trimmed + "e" + exp
	case total == "0":
		return sign + trimmed
	default:
		return sign + trimmed + "e" + total
	}
}

// addDecimal adds a small number to a decimal one.
func addDecimal(exp string, by int) (string, bool) {
	var n int64
	if exp != "" {
		if _, err := fmt.Sscanf(exp, "%d", &n); err != nil || n > 1<<40 || n < -(1<<40) {
			return "", false
		}
	}
	return fmt.Sprint(n + int64(by)), true
}
