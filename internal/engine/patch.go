package engine

import (
	"bytes"
	"encoding/json"
)

// mergePatch applies a JSON merge patch (RFC 7396) to a document. What the patch
// does not touch is kept byte for byte; members keep their order, new ones come
// last. An empty document is null.
func mergePatch(doc, patch json.RawMessage) (json.RawMessage, error) {
	patch = bytes.TrimSpace(patch)
	if len(patch) == 0 || patch[0] != '{' {
		return patch, nil
	}
	changes, err := members(patch)
	if err != nil {
		return nil, err
	}
	var list []member
	if doc = bytes.TrimSpace(doc); len(doc) > 0 && doc[0] == '{' {
		if list, err = members(doc); err != nil {
			return nil, err
		}
	}
	at := make(map[string]int, len(list))
	for i, m := range list {
		at[m.name] = i
	}
	for _, c := range changes {
		i, known := at[c.name]
		if string(c.value) == "null" {
			if known {
				list[i].value = nil
			}
			continue
		}
		if !known {
			i = len(list)
			at[c.name] = i
			list = append(list, member{name: c.name})
		}
		if list[i].value, err = mergePatch(list[i].value, c.value); err != nil {
			return nil, err
		}
	}
	out := []byte{'{'}
	for _, m := range list {
		if m.value == nil {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		name, err := json.Marshal(m.name)
		if err != nil {
			return nil, err
		}
		out = append(append(append(out, name...), ':'), m.value...)
	}
	return append(out, '}'), nil
}

type member struct {
	name  string
	value json.RawMessage
}

// members reads an object; of a name that is there twice the last value counts.
func members(object []byte) (list []member, err error) {
	d := json.NewDecoder(bytes.NewReader(object))
	if _, err = d.Token(); err != nil {
		return nil, err
	}
	at := map[string]int{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		name, _ := t.(string) // a name is one
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return nil, err
		}
		if i, twice := at[name]; twice {
			list[i].value = v
			continue
		}
		at[name] = len(list)
		list = append(list, member{name, v})
	}
	return list, nil
}
