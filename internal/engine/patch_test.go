package engine

import "testing"

// TestMergePatch is the table of RFC 7396, appendix A, and what it leaves open.
func TestMergePatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ doc, patch, want string }{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`["a","b"]`, `["c","d"]`, `["c","d"]`},
		{`{"a":"b"}`, `["c"]`, `["c"]`},
		{`{"a":"foo"}`, `null`, `null`},
		{`{"a":"foo"}`, `"bar"`, `"bar"`},
		{`{"e":null}`, `{"a":1}`, `{"e":null,"a":1}`},
		{`[1,2]`, `{"a":"b","c":null}`, `{"a":"b"}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
		{``, `{"a":1}`, `{"a":1}`},
		{`{"n":1.0, "big": 9007199254740993, "s": "<&>"}`, `{"x":1e400}`, `{"n":1.0,"big":9007199254740993,"s":"<&>","x":1e400}`},
		{`{"z":1,"a":{"k": [1, 2]}}`, `{"z":2}`, `{"z":2,"a":{"k": [1, 2]}}`},
		{`{"a":1,"a":2}`, `{"b":1}`, `{"a":2,"b":1}`},
		{`{"a":1}`, `{"a":null,"a":3}`, `{"a":3}`},
	} {
		got, err := mergePatch([]byte(c.doc), []byte(c.patch))
		if err != nil || string(got) != c.want {
			t.Errorf("%s patched by %s: %s, %v; want %s", c.doc, c.patch, got, err, c.want)
		}
	}
}
