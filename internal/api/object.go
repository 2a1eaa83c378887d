package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// object is a JSON object whose members keep their order.
type object []pair

type pair struct {
	key   string
	value any
}

// MarshalJSON writes the members in order.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, p := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		k, err := asJSON(p.key)
		if err != nil {
			return nil, err
		}
		v, err := asJSON(p.value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.key, err)
		}
		b.Write(k)
		b.WriteByte(':')
		b.Write(v)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

func asJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSpace(b.Bytes()), err
}

// ordered decodes JSON into objects, []any and literals as they are written.
func ordered(d *json.Decoder) (any, error) {
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t {
	case json.Delim('{'):
		o := object{}
		for d.More() {
			k, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := ordered(d)
			if err != nil {
				return nil, err
			}
			o = append(o, pair{k.(string), v})
		}
		_, err := d.Token()
		return o, err
	case json.Delim('['):
		l := []any{}
		for d.More() {
			v, err := ordered(d)
			if err != nil {
				return nil, err
			}
			l = append(l, v)
		}
		_, err := d.Token()
		return l, err
	}
	return t, nil
}

// toYAML writes JSON as YAML in blocks. Strings stay in double quotes, which
// are YAML as well.
func toYAML(text []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	v, err := ordered(d)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = blocks(&b, v, 0)
	return b.Bytes(), err
}

// blocks writes v, which stands behind a key or a dash, and the end of its line.
func blocks(b *bytes.Buffer, v any, depth int) error {
	indent := strings.Repeat("  ", depth)
	switch v := v.(type) {
	case object:
		if len(v) == 0 {
			b.WriteString(" {}\n")
			return nil
		}
		if depth > 0 {
			b.WriteByte('\n')
		}
		for _, p := range v {
			k, err := asJSON(p.key)
			if err != nil {
				return err
			}
			fmt.Fprintf(b, "%s%s:", indent, k)
			if err := blocks(b, p.value, depth+1); err != nil {
				return err
			}
		}
	case []any:
		if len(v) == 0 {
			b.WriteString(" []\n")
			return nil
		}
		b.WriteByte('\n')
		for _, e := range v {
			b.WriteString(indent + "-")
			if err := blocks(b, e, depth+1); err != nil {
				return err
			}
		}
	default:
		s, err := asJSON(v)
		if err != nil {
			return err
		}
		fmt.Fprintf(b, " %s\n", s)
	}
	return nil
}
