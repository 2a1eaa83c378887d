package dag

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"
)

// TextCap is the longest definition, in bytes: some 160 for each of TaskCap tasks.
const TextCap = 16 << 20

// partCap is how many values, keys and names a definition can have, as far as its commas,
// colons, brackets, quotes and lines tell: each takes a few hundred bytes while it is read.
const partCap = 2_000_000

// parts counts what can begin a value, or another token.
func parts(src []byte) (n int) {
	quotes := 0
	for _, c := range src {
		switch c {
		case ',', ':', '[', '{', '\n', '?', '&', '*', '!':
			n++
		case '"', '\'':
			quotes++
		}
	}
	return n + quotes/2 + bytes.Count(src, []byte("- "))
}

// readText turns the text of a definition into a value. It returns nil when
// there is nothing to go on with; then ps says why.
func readText(file string, src []byte, ps *problems) *value {
	src = bytes.TrimPrefix(src, []byte("\ufeff"))
	if i := firstBad(src); i >= 0 {
		p := place{line: 1, col: 1}
		p.move(src, i)
		what := "a byte that is not UTF-8 (0x%02x); save the file as UTF-8"
		if src[i] == 0 {
			what = "a NUL byte (0x%02x); remove it"
		}
		ps.add(p.line, p.col, nil, "the text contains "+what, src[i])
		return nil
	}
	trimmed := bytes.TrimSpace(src)
	if strings.HasSuffix(file, ".json") || len(trimmed) > 0 && trimmed[0] == '{' && json.Valid(trimmed) {
		return readJSON(src, ps)
	}
	return readYAML(src, ps)
}

// firstBad returns the offset of the first NUL or invalid UTF-8, or -1.
func firstBad(src []byte) int {
	for i := 0; i < len(src); {
		if c := src[i]; c < utf8.RuneSelf {
			if c == 0 {
				return i
			}
			i++
			continue
		}
		r, n := utf8.DecodeRune(src[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}

// place is a moving position in a text; line and column count from 1, columns
// in characters.
type place struct{ off, line, col int }

func (p *place) move(src []byte, to int) {
	for p.off < to {
		switch c := src[p.off]; {
		case c == '\n':
			p.line++
			p.col = 1
		case c&0xC0 != 0x80:
			p.col++
		}
		p.off++
	}
}

const (
	tooDeep  = "this nests deeper than 64 levels; flatten it"
	nulInStr = "the text contains a NUL character; remove it"
)

// readYAML reads one document of YAML.
func readYAML(src []byte, ps *problems) *value {
	l, err := yaml.NewLoader(bytes.NewReader(src), yaml.WithPlugin(loaderlimits.New(
		// Block and flow nesting count apart, and a list in a mapping counts twice.
		loaderlimits.DepthValue(3*depthCap), loaderlimits.AliasValue(0))))
	if err != nil {
		ps.add(1, 1, nil, "%s", err)
		return nil
	}
	var doc, second yaml.Node
	switch err := l.Load(&doc); {
	case errors.Is(err, io.EOF):
		ps.add(1, 1, nil, "the definition is empty; it begins with `pipeline: name`")
		return nil
	case err != nil:
		yamlError(err, src, ps)
		return nil
	}
	switch err := l.Load(&second); {
	case err == nil:
		ps.add(second.Line, second.Column, nil, "a second document begins here; write each pipeline in a file of its own")
		return nil
	case !errors.Is(err, io.EOF):
		yamlError(err, src, ps)
		return nil
	}
	n := &doc
	if n.Kind == yaml.DocumentNode {
		if len(n.Content) != 1 {
			ps.add(1, 1, nil, "the definition is empty; it begins with `pipeline: name`")
			return nil
		}
		n = n.Content[0]
	}
	return fromYAML(n, nil, 0, ps)
}

// lineOf returns a line, counted from 1; none is empty.
func lineOf(src []byte, n int) string {
	for line := range strings.Lines(string(src)) {
		if n--; n == 0 {
			return line
		}
	}
	return ""
}

// bareExpression reports whether a line has an expression outside quotes.
func bareExpression(line string) bool {
	var quote rune
	for i, r := range line {
		switch {
		case quote != 0:
			if r == quote {
				quote = 0
			}
		case r == '"' || r == '\'':
			quote = r
		case strings.HasPrefix(line[i:], "${{"):
			return true
		}
	}
	return false
}

func yamlError(err error, src []byte, ps *problems) {
	line, col, msg := 1, 1, err.Error()
	var le *yaml.LoadError
	if errors.As(err, &le) {
		msg = le.Message
		if le.ContextMsg != "" {
			msg = le.ContextMsg + ": " + msg
		}
		switch {
		case le.Mark.Line > 0:
			line, col = le.Mark.Line, le.Mark.Column
		case le.ContextMark.Line > 0:
			line, col = le.ContextMark.Line, le.ContextMark.Column
		}
		switch {
		case strings.Contains(le.Message, "max depth"):
			ps.add(line, max(col, 1), nil, tooDeep)
			return
		case bareExpression(lineOf(src, line)):
			ps.add(line, max(col, 1), nil, "this is not YAML: put expressions in quotes, as in \"${{ input.x }}\"")
			return
		case strings.Contains(le.Message, "cannot start any token"):
			msg += "; YAML indents with spaces, and a text that begins with a special character needs quotes"
		}
	}
	ps.add(line, max(col, 1), nil, "this is not YAML: %s", clip(msg, 300))
}

// The numbers of YAML that JSON cannot write, or reads otherwise.
var oddNumber = regexp.MustCompile(`^[-+]?(0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?|\.[0-9][0-9_]*([eE][-+]?[0-9]+)?|\.(inf|Inf|INF))$|^\.(nan|NaN|NAN)$`)

func fromYAML(n *yaml.Node, at *path, depth int, ps *problems) *value {
	v := &value{line: n.Line, col: n.Column}
	switch {
	case n.Kind == yaml.AliasNode:
		ps.refuse(v, at, "aliases (*%s) are not allowed: a definition says everything where it is used; write the value out", clip(n.Value, 40))
		return v
	case n.Anchor != "":
		ps.at(v, at, "anchors (&%s) are not allowed: a definition says everything where it is used; remove it", clip(n.Anchor, 40))
	case n.Style&yaml.TaggedStyle != 0:
		ps.at(v, at, "tags (%s) are not allowed; to make text of something else, put it in quotes", clip(n.Tag, 40))
	}
	switch n.Kind {
	case yaml.ScalarNode:
		v.text = n.Value
		v.kind = text
		if n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0 {
			v.kind = plainKind(n.Value)
			switch {
			case v.kind == boolean:
				v.text = strings.ToLower(v.text)
			case v.kind == text && oddNumber.MatchString(v.text):
				ps.refuse(v, at, "%s can be read as a number or as text; write a number as JSON does (10, -2.5, 1e3), or put text in quotes", clip(v.text, 40))
			}
		}
		if strings.Contains(v.text, "\x00") {
			ps.refuse(v, at, nulInStr)
		}
	case yaml.SequenceNode:
		v.kind = list
		if depth >= depthCap {
			ps.refuse(v, at, tooDeep)
			return v
		}
		v.items = make([]*value, 0, len(n.Content))
		for i, c := range n.Content {
			v.items = append(v.items, fromYAML(c, at.at(i), depth+1, ps))
		}
	case yaml.MappingNode:
		v.kind = object
		if depth >= depthCap {
			ps.refuse(v, at, tooDeep)
			return v
		}
		m := newMembers(v, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			k, c := n.Content[i], n.Content[i+1]
			switch {
			case k.Kind != yaml.ScalarNode:
				ps.add(k.Line, k.Column, at, "a key must be text")
				continue
			case k.Anchor != "" || k.Style&yaml.TaggedStyle != 0:
				ps.add(k.Line, k.Column, at.member(k.Value), "anchors and tags are not allowed; remove it")
			case k.Value == "<<" && k.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) == 0:
				ps.add(k.Line, k.Column, at, "merge keys (<<) are not allowed: a definition says everything where it is used; write the keys out")
				continue
			}
			m.add(key{k.Value, k.Line, k.Column}, fromYAML(c, at.member(k.Value), depth+1, ps), at, ps)
		}
	default:
		ps.refuse(v, at, "this cannot be read; write text, a number, a list or a mapping")
	}
	return v
}

// plainKind resolves a scalar without quotes by the core schema of YAML 1.2,
// where yes, no, on and off are text, and a number is what JSON calls one.
func plainKind(s string) kind {
	switch s {
	case "", "~", "null", "Null", "NULL":
		return null
	case "true", "True", "TRUE", "false", "False", "FALSE":
		return boolean
	}
	if (s[0] == '-' || '0' <= s[0] && s[0] <= '9') && json.Valid([]byte(s)) {
		return number
	}
	return text
}

// members fills an object and refuses a key written twice.
type members struct {
	v    *value
	seen map[string]int // name → line
}

func newMembers(v *value, n int) members {
	v.keys, v.items = make([]key, 0, n), make([]*value, 0, n)
	return members{v, make(map[string]int, n)}
}

func (m members) add(k key, c *value, at *path, ps *problems) {
	if strings.Contains(k.name, "\x00") {
		ps.add(k.line, k.col, at, nulInStr)
		return
	}
	if line, twice := m.seen[k.name]; twice {
		ps.add(k.line, k.col, at.member(k.name), "the key is written twice, first on line %d; keep one", line)
		return
	}
	m.seen[k.name] = k.line
	m.v.keys = append(m.v.keys, k)
	m.v.items = append(m.v.items, c)
}

// readJSON reads JSON.
func readJSON(src []byte, ps *problems) *value {
	r := &jsonReader{src: src, dec: json.NewDecoder(bytes.NewReader(src)), at: place{line: 1, col: 1}, ps: ps}
	r.dec.UseNumber()
	var whole json.RawMessage
	err := json.Unmarshal(src, &whole) // for the offset of an error, which a Decoder does not tell
	var v *value
	if err == nil {
		v, err = r.value(nil, 0)
	}
	var se *json.SyntaxError
	switch {
	case len(bytes.TrimSpace(src)) == 0:
		ps.add(1, 1, nil, `the definition is empty; it begins with {"pipeline": "name"`)
		return nil
	case errors.Is(err, errDeep):
		ps.add(r.at.line, r.at.col, nil, tooDeep)
		return nil
	case errors.As(err, &se):
		r.at.move(src, min(len(src), max(0, int(se.Offset)-1)))
		ps.add(r.at.line, r.at.col, nil, "this is not JSON: %s", clip(err.Error(), 200))
		return nil
	case err != nil:
		ps.add(r.at.line, r.at.col, nil, "this is not JSON: %s", clip(err.Error(), 200))
		return nil
	}
	return v
}

var errDeep = errors.New(tooDeep)

type jsonReader struct {
	src []byte
	dec *json.Decoder
	at  place // where the last token begins
	ps  *problems
}

// token returns the next token and moves r.at to its beginning.
func (r *jsonReader) token() (json.Token, error) {
	from := int(r.dec.InputOffset())
	t, err := r.dec.Token()
	if err != nil {
		return nil, err
	}
	for from < len(r.src) && strings.IndexByte(" \t\r\n,:", r.src[from]) >= 0 {
		from++
	}
	r.at.move(r.src, from)
	return t, nil
}

func (r *jsonReader) value(at *path, depth int) (*value, error) {
	t, err := r.token()
	if err != nil {
		return nil, err
	}
	return r.rest(t, at, depth)
}

// rest reads the value that begins with token t.
func (r *jsonReader) rest(t json.Token, at *path, depth int) (*value, error) {
	v := &value{line: r.at.line, col: r.at.col}
	switch t := t.(type) {
	case nil:
		v.kind = null
	case bool:
		v.kind, v.text = boolean, map[bool]string{true: "true", false: "false"}[t]
	case json.Number:
		v.kind, v.text = number, string(t)
	case string:
		v.kind, v.text = text, t
		if complaint := r.broken(t); complaint != "" {
			r.ps.refuse(v, at, "%s", complaint)
		}
	case json.Delim:
		if depth >= depthCap {
			return nil, errDeep
		}
		if t == '[' {
			v.kind = list
			for {
				t, err := r.token()
				if err != nil {
					return nil, err
				}
				if t == json.Delim(']') {
					return v, nil
				}
				e, err := r.rest(t, at.at(len(v.items)), depth+1)
				if err != nil {
					return nil, err
				}
				v.items = append(v.items, e)
			}
		}
		v.kind = object
		m := newMembers(v, 0)
		for {
			t, err := r.token()
			if err != nil {
				return nil, err
			}
			name, ok := t.(string)
			if !ok { // the closing brace
				return v, nil
			}
			k := key{name, r.at.line, r.at.col}
			if complaint := r.broken(name); complaint != "" && complaint != nulInStr { // add complains about that one
				r.ps.add(k.line, k.col, at, "%s", complaint)
			}
			e, err := r.value(at.member(name), depth+1)
			if err != nil {
				return nil, err
			}
			m.add(k, e, at, r.ps)
		}
	}
	return v, nil
}

// broken says what is wrong with the string s, the last token: what the decoder
// replaced, or no store can keep.
func (r *jsonReader) broken(s string) string {
	if strings.Contains(s, "\x00") {
		return nulInStr
	}
	if strings.ContainsRune(s, utf8.RuneError) {
		raw := string(r.src[r.at.off:r.dec.InputOffset()])
		if !strings.ContainsRune(raw, utf8.RuneError) && !strings.Contains(strings.ToLower(raw), `\ufffd`) {
			return `the text contains half of a surrogate pair (\ud800 to \udfff); write both halves or the character itself`
		}
	}
	return ""
}
