package worker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"sync"
	"unicode/utf8"
)

// encode writes a handler's result as JSON. What JSON cannot say, such as NaN, a
// cycle or a string that is not UTF-8, is an error and is never bent to fit.
func encode(v any) (json.RawMessage, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case json.RawMessage:
		return valid(v)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("the result of type %T cannot be written as JSON: %w", v, err)
	}
	out := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	// The encoder puts \ufffd where a string is not UTF-8. Only then is it worth looking.
	if bytes.Contains(out, []byte(`\ufffd`)) && !utf8Inside(reflect.ValueOf(v), 0) {
		return nil, fmt.Errorf("the result of type %T cannot be written as JSON: a string in it is not UTF-8; use []byte for bytes", v)
	}
	return out, nil
}

func valid(v json.RawMessage) (json.RawMessage, error) {
	if len(v) == 0 {
		return nil, nil
	}
	if !utf8.Valid(v) {
		return nil, errors.New("the result is not JSON: it is not UTF-8")
	}
	if !json.Valid(v) {
		return nil, errors.New("the result is not JSON")
	}
	return v, nil
}

// utf8Inside reports whether every string in v is UTF-8.
func utf8Inside(v reflect.Value, depth int) bool {
	if depth > 1000 {
		return true
	}
	switch v.Kind() {
	case reflect.String:
		return utf8.ValidString(v.String())
	case reflect.Pointer, reflect.Interface:
		return v.IsNil() || utf8Inside(v.Elem(), depth+1)
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return true
		}
		for i := range v.Len() {
			if !utf8Inside(v.Index(i), depth+1) {
				return false
			}
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			if !utf8Inside(it.Key(), depth+1) || !utf8Inside(it.Value(), depth+1) {
				return false
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); (f.IsExported() || f.Anonymous) && f.Tag.Get("json") != "-" && !utf8Inside(v.Field(i), depth+1) {
				return false
			}
		}
	}
	return true
}

// decode reads JSON into v. Numbers that land in an any stay as they are written
// (json.Number). No JSON at all leaves v as it is.
func decode(in json.RawMessage, v any) error {
	if len(bytes.TrimSpace(in)) == 0 {
		return nil
	}
	if t := reflect.TypeOf(v); t != nil && !anyIn(t) {
		return json.Unmarshal(in, v)
	}
	d := json.NewDecoder(bytes.NewReader(in))
	d.UseNumber()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("something follows the value")
	}
	return nil
}

// anys says of types that were asked for if a number could land in an any of theirs.
var anys sync.Map // of bool by reflect.Type

func anyIn(t reflect.Type) bool {
	if known, ok := anys.Load(t); ok {
		return known.(bool)
	}
	found := lookForAny(t, map[reflect.Type]bool{})
	anys.Store(t, found)
	return found
}

func lookForAny(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		return true
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return lookForAny(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if lookForAny(t.Field(i).Type, seen) {
				return true
			}
		}
	}
	return false
}
