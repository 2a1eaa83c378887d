package dag

import (
	"bytes"
	"encoding/json"
	"iter"
)

// The functions here step through JSON that was checked when it came in. They
// copy nothing and never look at a number's value. Of text that is no JSON they
// may make anything, but they end and do not panic.

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// skipString returns the offset after the string that begins at b[i].
func skipString[T ~string | ~[]byte](b T, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}

// skipValue returns the offset after the value that begins at b[i].
func skipValue(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			i = skipString(b, i)
			if depth == 0 {
				return i
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
			if depth == 0 {
				return i + 1
			}
			if depth < 0 { // the end of what the value stands in
				return i
			}
		case ',', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return i
			}
		}
		i++
	}
	return len(b)
}

// trim returns v without the white space around it; nothing becomes null.
func trim(v json.RawMessage) json.RawMessage {
	v = bytes.TrimSpace(v)
	if len(v) == 0 {
		return json.RawMessage("null")
	}
	return v
}

// elements yields the elements of the list v in order.
func elements(v json.RawMessage) iter.Seq[json.RawMessage] {
	return func(yield func(json.RawMessage) bool) {
		i := skipSpace(v, 0)
		if i >= len(v) || v[i] != '[' {
			return
		}
		for i = skipSpace(v, i+1); i < len(v) && v[i] != ']'; i = skipSpace(v, i) {
			end := skipValue(v, i)
			if end > i && !yield(v[i:end:end]) {
				return
			}
			i = skipSpace(v, end)
			if i >= len(v) || v[i] != ',' {
				return
			}
			i++
		}
	}
}

// membersOf yields the names, as they are quoted, and values of the object v.
func membersOf(v json.RawMessage) iter.Seq2[[]byte, json.RawMessage] {
	return func(yield func([]byte, json.RawMessage) bool) {
		i := skipSpace(v, 0)
		if i >= len(v) || v[i] != '{' {
			return
		}
		for i = skipSpace(v, i+1); i < len(v) && v[i] == '"'; i = skipSpace(v, i) {
			end := skipString(v, i)
			name := v[i:end:end]
			i = skipSpace(v, end)
			if i >= len(v) || v[i] != ':' {
				return
			}
			i = skipSpace(v, i+1)
			end = skipValue(v, i)
			if !yield(name, v[i:end:end]) {
				return
			}
			i = skipSpace(v, end)
			if i >= len(v) || v[i] != ',' {
				return
			}
			i++
		}
	}
}

// member returns the value of v's member called name. Of a name written twice
// the last counts, as it does where the input is checked against its schema.
func member(v json.RawMessage, name string) (found json.RawMessage, ok bool) {
	for n, val := range membersOf(v) {
		if is(n, name) {
			found, ok = val, true
		}
	}
	return found, ok
}

// is reports whether the JSON string quoted reads name.
func is(quoted []byte, name string) bool {
	if len(quoted) < 2 {
		return false
	}
	if inner := quoted[1 : len(quoted)-1]; bytes.IndexByte(inner, '\\') < 0 {
		return string(inner) == name
	}
	return unquote(quoted) == name
}

// unquote decodes a JSON string.
func unquote(quoted []byte) string {
	var s string
	if json.Unmarshal(quoted, &s) != nil {
		return ""
	}
	return s
}

// kindOf tells what v is by its first byte.
func kindOf(v json.RawMessage) kind {
	switch i := skipSpace(v, 0); {
	case i >= len(v) || v[i] == 'n':
		return null
	case v[i] == '"':
		return text
	case v[i] == '[':
		return list
	case v[i] == '{':
		return object
	case v[i] == 't' || v[i] == 'f':
		return boolean
	default:
		return number
	}
}
