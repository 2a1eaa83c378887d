package api

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

const (
	// maxDepth bounds how deep JSON may nest; the outermost value has depth 1.
	maxDepth = 200
	// maxComplaints bounds how many faults of a request one answer lists.
	maxComplaints = 50
	// bodyTime bounds how long a body that is read whole may take to arrive.
	bodyTime = time.Minute
)

// readBody reads a whole body of the media types allowed.
func (a *API) readBody(w http.ResponseWriter, r *http.Request, limit int64, media ...string) ([]byte, error) {
	if r.ContentLength > limit {
		discard(w, r)
		return nil, tooLarge(limit)
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTime)) // a transport without deadlines has no slow peer
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err == nil {
		// The deadline would end a long answer: the server reads on, to notice a client that leaves.
		_ = rc.SetReadDeadline(time.Time{})
	}
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		discard(w, r)
		return nil, tooLarge(limit)
	case err != nil:
		return nil, errNotWhole()
	}
	if len(body) == 0 {
		return nil, nil
	}
	return body, checkMedia(r, media...)
}

// discard reads some of a body that is refused, so that a client that writes
// first and reads afterwards gets to see why.
func discard(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(5 * time.Second))
	_, _ = io.CopyN(io.Discard, r.Body, 16<<20)
}

func errNotWhole() error {
	return &drover.Error{Code: drover.CodeValidation, Detail: "the request body did not arrive whole", Fields: []drover.FieldError{{
		Field: "body", Message: "the connection ended or was too slow; send the request again",
	}}}
}

func tooLarge(limit int64) error {
	return &drover.Error{Code: drover.CodePayloadTooLarge, Detail: "the request body is too large", Fields: []drover.FieldError{{
		Field: "body", Message: fmt.Sprintf("at most %d bytes are taken here; put large data into an artifact or a store of your own and pass a reference", limit),
	}}}
}

// errMedia marks a request with a content type that is not taken.
type errMedia struct{ refusal error }

// Error returns the refusal.
func (e errMedia) Error() string { return e.refusal.Error() }

// Unwrap returns the refusal.
func (e errMedia) Unwrap() error { return e.refusal }

func checkMedia(r *http.Request, media ...string) error {
	given := r.Header.Get("Content-Type")
	m, params, err := mime.ParseMediaType(given)
	charset := strings.ToLower(params["charset"])
	if err == nil && slices.Contains(media, m) && (charset == "" || charset == "utf-8") {
		return nil
	}
	said := "there is none"
	if given != "" {
		said = strconv.Quote(clip(given, 80)) + " is not taken"
	}
	return errMedia{&drover.Error{Code: drover.CodeValidation, Detail: "the content type of the request is not taken here", Fields: []drover.FieldError{{
		Field: "Content-Type", Message: said + "; send " + strings.Join(media, " or ") + " in UTF-8",
	}}}}
}

// body reads a JSON body into to, strictly. An empty one is an error unless
// the route says that its body is optional.
func (a *API) body(w http.ResponseWriter, r *request, to any) error {
	b, err := a.readBody(w, r.Request, a.limitOf(r.route), protocol.MediaJSON)
	if err != nil {
		return err
	}
	if b == nil && r.route.body.optional {
		return nil
	}
	return decode(b, to, r.route.body.mild)
}

// decode reads one JSON value into to. Beyond what encoding/json does it
// refuses unknown and repeated names, names in another case, missing members,
// what follows the value, nesting beyond maxDepth, invalid UTF-8, and U+0000 in
// strings that are not part of a payload; it says where each fault is; and it
// keeps payloads (json.RawMessage) byte for byte. When mild, U+0000 and broken
// surrogates in strings become U+FFFD instead: what a worker reports about a
// failure must not fail.
func decode(b []byte, to any, mild bool) (err error) {
	d := &decoder{src: b, mild: mild}
	defer func() {
		switch p := recover().(type) {
		case nil:
		case giveUp:
			err = d.refusal()
		default:
			panic(p)
		}
	}()
	if len(bytes.TrimSpace(b)) == 0 {
		d.stop("the body is empty; send a JSON value")
	}
	if !utf8.Valid(b) {
		for d.at < len(b) {
			c, n := utf8.DecodeRune(b[d.at:])
			if c == utf8.RuneError && n == 1 {
				break
			}
			d.at += n
		}
		d.stop("the byte 0x%02x is not part of UTF-8 text; send UTF-8", b[d.at])
	}
	d.space()
	d.value(reflect.ValueOf(to).Elem())
	d.space()
	if d.at < len(d.src) {
		d.path = d.path[:0]
		d.stop("something follows the JSON value; send one value")
	}
	if len(d.faults) > 0 {
		return d.refusal()
	}
	return nil
}

// checkJSON reports what decode would find wrong with a payload.
func checkJSON(b []byte) error {
	var raw json.RawMessage
	return decode(b, &raw, false)
}

type decoder struct {
	src    []byte
	at     int
	depth  int
	path   []byte // of the value being read, such as jobs[3].labels.team
	mild   bool
	faults []drover.FieldError
}

// giveUp is the panic that leaves a value that cannot be read on from.
type giveUp struct{}

func (d *decoder) refusal() error {
	return &drover.Error{Code: drover.CodeValidation, Detail: "the request body is not valid", Fields: d.faults}
}

// fault notes what is wrong with the value at the current path.
func (d *decoder) fault(format string, args ...any) {
	field := strings.TrimPrefix(string(d.path), ".")
	if field == "" {
		field = "body"
	}
	d.faults = append(d.faults, drover.FieldError{Field: clip(field, 200), Message: fmt.Sprintf(format, args...)})
	if len(d.faults) >= maxComplaints {
		panic(giveUp{})
	}
}

// stop notes a fault at the current byte and gives up.
func (d *decoder) stop(format string, args ...any) {
	n := len(d.faults)
	if n < maxComplaints-1 {
		d.fault(format, args...)
		before := d.src[:min(d.at, len(d.src))]
		d.faults[n].Line = 1 + bytes.Count(before, []byte{'\n'})
		d.faults[n].Column = 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	}
	panic(giveUp{})
}

func (d *decoder) space() {
	for d.at < len(d.src) {
		switch d.src[d.at] {
		case ' ', '\t', '\r', '\n':
			d.at++
		default:
			return
		}
	}
}

// peek returns the first byte of the next token.
func (d *decoder) peek() byte {
	d.space()
	if d.at >= len(d.src) {
		d.stop("the JSON text ends too early")
	}
	return d.src[d.at]
}

func (d *decoder) take(c byte, what string) {
	if d.peek() != c {
		d.stop("%s is not JSON here; expected %s", d.shown(), what)
	}
	d.at++
}

func (d *decoder) shown() string {
	c, _ := utf8.DecodeRune(d.src[d.at:])
	return strconv.QuoteRune(c)
}

func (d *decoder) word(w string) bool {
	if !bytes.HasPrefix(d.src[d.at:], []byte(w)) {
		return false
	}
	d.at += len(w)
	return true
}

// kind names the next value for people.
func (d *decoder) kind() string {
	switch c := d.peek(); {
	case c == '{':
		return "an object"
	case c == '[':
		return "a list"
	case c == '"':
		return "a string"
	case c == '-' || '0' <= c && c <= '9':
		return "a number"
	case c == 't' || c == 'f':
		return "a boolean"
	case c == 'n':
		return "null"
	default:
		d.stop("%s does not begin a JSON value", d.shown())
		return ""
	}
}

// skip reads any value and returns its bytes.
func (d *decoder) skip() []byte {
	kind := d.kind()
	start := d.at
	switch kind {
	case "an object":
		d.object(func(string) { d.skip() })
	case "a list":
		d.list(func(int) { d.skip() })
	case "a string":
		d.rawString()
	case "a number":
		d.number()
	default:
		if !d.word("true") && !d.word("false") && !d.word("null") {
			d.stop("this is not a JSON value; there are true, false and null")
		}
	}
	return d.src[start:d.at]
}

// object reads an object and calls member before each value.
func (d *decoder) object(member func(name string)) {
	d.enter()
	d.at++
	mark := len(d.path)
	var few [8]string
	names, many := few[:0], map[string]struct{}(nil)
	for first := true; ; first = false {
		if c := d.peek(); c == '}' && first {
			d.at++
			break
		}
		if d.peek() != '"' {
			d.stop("%s is not JSON here; expected a name in double quotes", d.shown())
		}
		name := d.text(d.rawString(), true)
		d.path = append(append(d.path, '.'), clip(name, 80)...)
		if len(d.path) > 4096 {
			d.path = append(d.path[:mark], ".…"...)
		}
		repeated := false
		if many != nil {
			_, repeated = many[name]
			many[name] = struct{}{}
		} else {
			repeated = slices.Contains(names, name)
			if names = append(names, name); len(names) > 32 {
				many = map[string]struct{}{}
				for _, n := range names {
					many[n] = struct{}{}
				}
			}
		}
		if repeated {
			d.fault("is there twice; keep one")
		}
		d.take(':', "a colon")
		member(name)
		d.path = d.path[:mark]
		if d.peek() == '}' {
			d.at++
			break
		}
		d.take(',', "a comma or the end of the object")
	}
	d.depth--
}

// list reads a list and calls element before each value.
func (d *decoder) list(element func(i int)) {
	d.enter()
	d.at++
	mark := len(d.path)
	for i := 0; ; i++ {
		if c := d.peek(); c == ']' && i == 0 {
			d.at++
			break
		}
		d.path = append(d.path, '[')
		d.path = append(strconv.AppendInt(d.path, int64(i), 10), ']')
		element(i)
		d.path = d.path[:mark]
		if d.peek() == ']' {
			d.at++
			break
		}
		d.take(',', "a comma or the end of the list")
	}
	d.depth--
}

func (d *decoder) enter() {
	if d.depth++; d.depth > maxDepth {
		d.stop("nests deeper than %d levels; flatten it", maxDepth)
	}
}

// rawString reads a string and returns what is between its quotes.
func (d *decoder) rawString() []byte {
	d.at++
	start := d.at
	for d.at < len(d.src) {
		switch c := d.src[d.at]; {
		case c == '"':
			d.at++
			return d.src[start : d.at-1]
		case c < 0x20:
			d.stop("a string has the control character U+%04X in it; write it as \\u%04x", c, c)
		case c == '\\':
			d.at++
			if d.at >= len(d.src) {
				break
			}
			switch d.src[d.at] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				if _, ok := hex4(d.src[d.at+1:]); !ok {
					d.stop("\\u is not followed by four hexadecimal digits")
				}
				d.at += 4
			default:
				d.stop("\\%c is not an escape of JSON", d.src[d.at])
			}
		}
		d.at++
	}
	d.stop("a string has no end")
	return nil
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(string(b[:4]), 16, 16)
	return rune(n), err == nil
}

// text unescapes a string. Member names pass as they are; of values it refuses
// or mends what no text can hold.
func (d *decoder) text(raw []byte, name bool) string {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw)
	}
	out := make([]byte, 0, len(raw))
	broken := false
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			out = append(out, raw[i])
			continue
		}
		i++
		switch raw[i] {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			c, _ := hex4(raw[i+1:])
			i += 4
			if utf16.IsSurrogate(c) {
				low := rune(0)
				if i+6 < len(raw) && raw[i+1] == '\\' && raw[i+2] == 'u' {
					low, _ = hex4(raw[i+3:])
				}
				if c = utf16.DecodeRune(c, low); c == utf8.RuneError {
					broken = true
				} else {
					i += 6
				}
			}
			if c == 0 && !name {
				if !d.mild {
					d.fault("has the character U+0000 in it, which no text here can hold; leave it out")
				}
				c = utf8.RuneError
			}
			out = utf8.AppendRune(out, c)
		default:
			out = append(out, raw[i])
		}
	}
	if broken && !d.mild && !name {
		d.fault("has half of a surrogate pair in it, which is no character; leave it out")
	}
	return string(out)
}

// number reads a number and returns its text.
func (d *decoder) number() string {
	start := d.at
	digits := func() bool {
		from := d.at
		for d.at < len(d.src) && '0' <= d.src[d.at] && d.src[d.at] <= '9' {
			d.at++
		}
		return d.at > from
	}
	ok := true
	d.word("-")
	if !d.word("0") {
		ok = digits()
	}
	if ok && d.word(".") {
		ok = digits()
	}
	if ok && (d.word("e") || d.word("E")) {
		_ = d.word("+") || d.word("-")
		ok = digits()
	}
	if !ok || d.at < len(d.src) && !strings.ContainsRune(" \t\r\n,]}", rune(d.src[d.at])) {
		d.stop("%s… is not a number of JSON", clip(string(d.src[start:min(len(d.src), d.at+1)]), 40))
	}
	return string(d.src[start:d.at])
}

var (
	rawType  = reflect.TypeFor[json.RawMessage]()
	timeType = reflect.TypeFor[time.Time]()
)

// value reads the next value into v. Where the kind is wrong it notes that and
// reads on behind the value.
func (d *decoder) value(v reflect.Value) {
	t := v.Type()
	if t == rawType {
		v.SetBytes(bytes.Clone(d.skip()))
		return
	}
	kind := d.kind()
	if kind == "null" {
		d.skip() // as if it were not there
		return
	}
	if t.Kind() == reflect.Pointer {
		v.Set(reflect.New(t.Elem()))
		d.value(v.Elem())
		return
	}
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if kind != "a string" {
			d.wrong("a string", kind)
			return
		}
		s := d.text(d.rawString(), false)
		if err := u.UnmarshalText([]byte(s)); err != nil {
			if t == timeType {
				err = fmt.Errorf("%q is not a time; write it as RFC 3339 does, for example 2026-01-31T15:04:05Z", clip(s, 40))
			}
			d.fault("%v", err)
		}
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		if kind != "an object" {
			d.wrong("an object", kind)
			return
		}
		d.structure(v)
	case reflect.Map:
		if kind != "an object" {
			d.wrong("an object", kind)
			return
		}
		m := reflect.MakeMap(t)
		d.object(func(name string) {
			if strings.ContainsRune(name, 0) {
				d.fault("its name has the character U+0000 in it; leave it out")
			}
			e := reflect.New(t.Elem()).Elem()
			if d.peek() == 'n' {
				d.wrong("a string", "null")
				return
			}
			d.value(e)
			m.SetMapIndex(reflect.ValueOf(name), e)
		})
		v.Set(m)
	case reflect.Slice:
		if kind != "a list" {
			d.wrong("a list", kind)
			return
		}
		s := reflect.MakeSlice(t, 0, 0)
		d.list(func(i int) {
			if d.peek() == 'n' && t.Elem() != rawType {
				d.wrong("a value", "null")
				return
			}
			s = reflect.Append(s, reflect.Zero(t.Elem()))
			d.value(s.Index(s.Len() - 1))
		})
		v.Set(s)
	case reflect.String:
		if kind != "a string" {
			d.wrong("a string", kind)
			return
		}
		v.SetString(d.text(d.rawString(), false))
	case reflect.Bool:
		if kind != "a boolean" {
			d.wrong("true or false", kind)
			return
		}
		v.SetBool(string(d.skip()) == "true")
	case reflect.Int, reflect.Int32, reflect.Int64:
		if kind != "a number" {
			d.wrong("a whole number", kind)
			return
		}
		s := d.number()
		n, err := strconv.ParseInt(s, 10, t.Bits())
		if err != nil {
			d.fault("%s is not a whole number from %d to %d", clip(s, 40), int64(math.MinInt64)>>(64-t.Bits()), int64(math.MaxInt64)>>(64-t.Bits()))
			return
		}
		v.SetInt(n)
	case reflect.Float64:
		if kind != "a number" {
			d.wrong("a number", kind)
			return
		}
		s := d.number()
		f, err := strconv.ParseFloat(s, 64)
		if err != nil {
			d.fault("%s is out of range", clip(s, 40))
			return
		}
		v.SetFloat(f)
	default:
		panic("api: no way to read a " + t.String())
	}
}

func (d *decoder) wrong(want, kind string) {
	d.fault("expected %s, got %s", want, kind)
	d.skip()
}

func (d *decoder) structure(v reflect.Value) {
	m := membersOf(v.Type())
	seen := make([]bool, len(m.names))
	d.object(func(name string) {
		i, ok := m.index[name]
		if !ok {
			if near := nearest(name, m.names); near != "" {
				d.fault("is not known here; did you mean %q?", near)
			} else {
				d.fault("is not known here; known are %s", strings.Join(m.names, ", "))
			}
			d.skip()
			return
		}
		seen[i] = d.peek() != 'n' || m.fields[i].raw
		f := v.Field(m.fields[i].at)
		d.value(f)
		if low, ok := least[v.Type().Name()+"."+name]; ok && seen[i] && (f.CanInt() && float64(f.Int()) < low || f.CanFloat() && f.Float() < low) {
			d.fault("must be at least %v; leave it out for the default", low)
		}
	})
	mark := len(d.path)
	for i, f := range m.fields {
		if f.required && !seen[i] {
			d.path = append(append(d.path, '.'), m.names[i]...)
			d.fault("is required")
			d.path = d.path[:mark]
		}
	}
}

// members are what a struct has in JSON.
type members struct {
	names  []string
	index  map[string]int
	fields []member
}

type member struct {
	at       int // the field's number in the struct
	required bool
	raw      bool
}

// optional are members that JSON always has where Drover writes it, and that a
// request may leave out.
var optional = map[string]bool{
	"ProcessingRequest.idempotency_key": true, // the header may have it
	"Renewal.held":                      true,
	"Renewal.acquired":                  true,
	"Acquire.number":                    true,
	"LogLine.at":                        true,
	"LogLine.level":                     true,
	"Failure.class":                     true,
}

// least are numbers that mean a default where they are left out, and nothing
// good where they are written.
var least = map[string]float64{
	"Retry.max_attempts":     1,
	"Retry.factor":           1,
	"RetryRule.max_attempts": 1,
	"RetryRule.factor":       1,
	"CircuitPolicy.failures": 1,
}

var memberCache sync.Map // of reflect.Type to *members

func membersOf(t reflect.Type) *members {
	if m, ok := memberCache.Load(t); ok {
		return m.(*members)
	}
	m := &members{index: map[string]int{}}
	for i := range t.NumField() {
		name, opts, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name == "-" || !t.Field(i).IsExported() {
			continue
		}
		if name == "" {
			panic("api: " + t.String() + "." + t.Field(i).Name + " has no name in JSON")
		}
		m.index[name] = len(m.names)
		m.names = append(m.names, name)
		m.fields = append(m.fields, member{
			at:       i,
			required: !strings.Contains(opts, "omit") && !optional[t.Name()+"."+name],
			raw:      t.Field(i).Type == rawType,
		})
	}
	memberCache.Store(t, m)
	return m
}

// nearest returns the known name that a misspelt one means, or "".
func nearest(name string, known []string) string {
	best, least := "", 3
	low := strings.ToLower(strings.ReplaceAll(name, "-", "_"))
	for _, k := range known {
		if d := distance(low, strings.ToLower(k), least); d < least && d*2 < len(k) {
			best, least = k, d
		}
	}
	return best
}

// distance counts the edits between two short words; from limit on it stops counting.
func distance(a, b string, limit int) int {
	if max(len(a), len(b)) > 64 || max(len(a)-len(b), len(b)-len(a)) >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
