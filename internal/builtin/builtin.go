// Package builtin knows what tasks that need no worker of one's own take as
// input: exec, http and simulate. A definition is held to it when it is
// registered, and every task once more when it runs. It does no I/O.
package builtin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/drover-dev/drover"
)

// The kinds of task. Their names are taken: a worker of somebody's own cannot
// give them another meaning.
const (
	Exec     = "exec"
	HTTP     = "http"
	Simulate = "simulate"
)

// Kinds returns them in order.
func Kinds() []string { return slices.Sorted(maps.Keys(inputs)) }

// Unknown stands in an input for a value that an expression will give.
type Unknown struct{}

// UnknownText stands for a text that an expression will complete.
type UnknownText struct{}

// Problem is something wrong with an input.
type Problem struct {
	Path    []any    // where: names of members and indexes of elements
	Keys    []string // of a key that there is not, those that there are
	Message string
}

// String writes the problem with its place.
func (p Problem) String() string {
	var b strings.Builder
	for i, s := range p.Path {
		switch s := s.(type) {
		case int:
			fmt.Fprintf(&b, "[%d]", s)
		default:
			if i > 0 {
				b.WriteByte('.')
			}
			fmt.Fprint(&b, s)
		}
	}
	if len(p.Path) > 0 {
		b.WriteString(": ")
	}
	b.WriteString(p.Message)
	if len(p.Keys) > 0 {
		b.WriteString("; the keys are " + strings.Join(p.Keys, ", "))
	}
	return b.String()
}

// Field is a key of an input.
type Field struct {
	Name string
	Doc  string // what an editor tells of it
	Form string // JSON Schema of its value; expressions may stand for any part of it
	// Must says, where the key must be there, what to write.
	Must string

	check func(c *checker, v any)
}

// inputs are the keys of each kind's input: the check of a definition, the one
// before a task runs, and the schema for editors come from here.
var inputs = map[string][]Field{
	Exec: {
		{"command", "The program and its arguments, a list. They reach it as they are: no shell reads them.", `{"type":"array","minItems":1}`, "write for example command: [./step.sh, one, two]", (*checker).command},
		{"env", "Variables of the program's environment.", `{"type":"object","propertyNames":{"pattern":"^[A-Za-z_][A-Za-z0-9_]*$","not":{"pattern":"^DROVER_"}}}`, "", (*checker).env},
		{"files", "Artifacts that are fetched into the folder the program starts in: from a name to a URI.", `{"type":"object","additionalProperties":{"type":"string","pattern":"^artifact://|\\$\\{\\{"}}`, "", (*checker).files},
		{"stdin", "What the program reads from its standard input.", `true`, "", (*checker).text},
		{"exit_codes", "What an exit status means, where that is not the usual.", `{"type":"object","additionalProperties":false,"properties":{"permanent":` + exitCodes + `,"retryable":` + exitCodes + `}}`, "", (*checker).exitCodes},
	},
	HTTP: {
		{"method", "GET, or POST where there is a body, if nobody says.", `{"type":"string"}`, "", (*checker).method},
		{"url", "The address, http or https.", `{"type":"string","pattern":"^[Hh][Tt][Tt][Pp][Ss]?://|\\$\\{\\{"}`, "write for example url: https://example.org/hook", (*checker).url},
		{"headers", "Headers of the request.", `{"type":"object"}`, "", (*checker).headers},
		{"body", "Sent as text when it is a text, else as JSON.", `true`, "", func(*checker, any) {}},
		{"timeout", "How long the answer may take; 1m if nobody says.", duration, "", (*checker).duration},
		{"expect", "The statuses that mean success; all 2xx if nobody says.", `{"type":"array","items":{"anyOf":[{"type":"integer","minimum":100,"maximum":999},` + expression + `]}}`, "", func(c *checker, v any) { c.numbers(v, 100, 999) }},
	},
	Simulate: {
		{"compute", "How long the task computes on one processor.", duration, "", (*checker).duration},
		{"sleep", "How long it then sleeps.", duration, "", (*checker).duration},
	},
}

const (
	expression = `{"type":"string","pattern":"\\$\\{\\{"}`
	exitCodes  = `{"anyOf":[{"type":"array","items":{"anyOf":[{"type":"integer","minimum":1,"maximum":255},` + expression + `]}},` + expression + `]}`
	duration   = `{"type":"string"}`
)

// Fields returns the keys of a kind's input, none of a kind that is not built in.
func Fields(kind string) []Field { return inputs[kind] }

// Read reads an input for Check; nothing at all is an empty mapping.
func Read(in []byte) (any, error) {
	if len(bytes.TrimSpace(in)) == 0 {
		return map[string]any{}, nil
	}
	d := json.NewDecoder(bytes.NewReader(in))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("something follows the value")
	}
	return v, nil
}

// Check returns what is wrong with an input of a kind: nil, bool, json.Number,
// string, []any, map[string]any, or what stands for a value not known yet. Of
// kinds that are not built in it knows nothing.
func Check(kind string, in any) []Problem {
	fields, known := inputs[kind]
	if !known {
		return nil
	}
	c := &checker{}
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.Name
	}
	m, ok := c.mapping(in, "the input of "+kind, names)
	if !ok {
		return c.found
	}
	misspelt := len(c.found) > 0
	for _, f := range fields {
		switch v := m[f.Name]; {
		case v == nil && f.Must != "" && !misspelt:
			c.say("%s is missing; %s", f.Name, f.Must)
		case v != nil: // null is as good as nothing
			c.at(f.Name, func() { f.check(c, v) })
		}
	}
	return c.found
}

type checker struct {
	path  []any
	found []Problem
}

func (c *checker) say(format string, args ...any) {
	c.found = append(c.found, Problem{Path: slices.Clone(c.path), Message: fmt.Sprintf(format, args...)})
}

// at runs a check of what stands at a step below.
func (c *checker) at(step any, do func()) {
	c.path = append(c.path, step)
	do()
	c.path = c.path[:len(c.path)-1]
}

// is names what a value is.
func is(v any) string {
	switch v.(type) {
	case nil:
		return "empty"
	case bool:
		return "true or false"
	case json.Number:
		return "a number"
	case []any:
		return "a list"
	case map[string]any:
		return "a mapping"
	default:
		return "text"
	}
}

// mapping returns the members of a mapping; keys, when there are any, are the
// only ones it may have.
func (c *checker) mapping(v any, what string, keys []string) (map[string]any, bool) {
	m, ok := v.(map[string]any)
	if _, later := v.(Unknown); !ok && !later {
		hint := ""
		if keys != nil {
			hint = " with the keys " + strings.Join(keys, ", ")
		}
		c.say("%s is a mapping%s; this is %s", what, hint, is(v))
	}
	if keys != nil {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			if !slices.Contains(keys, name) {
				c.at(name, func() {
					c.say("%s has no key %q", what, clip(name))
					c.found[len(c.found)-1].Keys = keys
				})
			}
		}
	}
	return m, ok
}

// list returns the elements of a list.
func (c *checker) list(v any, of string) []any {
	l, ok := v.([]any)
	if _, later := v.(Unknown); !ok && !later {
		c.say("this must be a list of %s and is %s", of, is(v))
	}
	return l
}

// each checks the members of a mapping by name.
func (c *checker) each(m map[string]any, check func(name string, v any)) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		c.at(name, func() { check(name, m[name]) })
	}
}

// text checks what stands where a program or a header takes text: a text is
// itself, anything else its JSON.
func (c *checker) text(v any) {
	if v == nil {
		c.say("there must be a text here, and it is empty; for an empty one write \"\"")
	} else if hasNUL(v) {
		c.say("a text has a NUL in it")
	}
}

// hasNUL reports whether v is a text that has one: in the JSON of anything else it is escaped.
func hasNUL(v any) bool {
	s, ok := v.(string)
	return ok && strings.IndexByte(s, 0) >= 0
}

// word checks what must be text, and returns it where it is known.
func (c *checker) word(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case Unknown, UnknownText:
	default:
		c.say("this must be text and is %s", is(v))
	}
	return "", false
}

func (c *checker) command(v any) {
	l, ok := v.([]any)
	switch _, later := v.(Unknown); {
	case later:
		return
	case !ok:
		c.say(`this must be a list of the program and its arguments, such as ["./step.sh", "one"], as no shell reads it, and is %s; for a shell write ["sh", "-c", "…"]`, is(v))
		return
	case len(l) == 0 || l[0] == "":
		c.say("the command is empty; write for example command: [./step.sh, one, two]")
		return
	}
	for i, w := range l {
		c.at(i, func() { c.text(w) })
	}
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (c *checker) env(v any) {
	m, _ := c.mapping(v, "env", nil)
	c.each(m, func(name string, v any) {
		switch {
		case !envName.MatchString(name):
			c.say("%q is not the name of a variable; use letters, digits and _, beginning with no digit", clip(name))
		case strings.HasPrefix(name, "DROVER_"):
			c.say("%s is set by Drover; use another name", clip(name))
		}
		c.text(v)
	})
}

func (c *checker) files(v any) {
	m, _ := c.mapping(v, "files", nil)
	c.each(m, func(name string, v any) {
		if !fileName(name) {
			c.say("%q does not name a file inside the task's folder", clip(name))
		}
		if uri, known := c.word(v); known && !strings.HasPrefix(uri, "artifact://") {
			c.say("%q is not a URI of the form artifact://art_01J…", clip(uri))
		}
	})
}

// fileName reports whether a name with slashes leads to a file below.
func fileName(name string) bool {
	if !utf8.ValidString(name) {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." {
			return false
		}
	}
	return true
}

func (c *checker) exitCodes(v any) {
	m, _ := c.mapping(v, "exit_codes", []string{"permanent", "retryable"})
	seen := map[int]string{}
	for _, name := range []string{"permanent", "retryable"} {
		if m[name] == nil {
			continue
		}
		c.at(name, func() {
			for _, code := range c.numbers(m[name], 1, 255) {
				if was := seen[code]; was != "" && was != name {
					c.say("%d is both permanent and retryable", code)
				}
				seen[code] = name
			}
		})
	}
}

// numbers checks a list of whole numbers and returns those that are known.
func (c *checker) numbers(v any, least, most int) (known []int) {
	for i, n := range c.list(v, "whole numbers") {
		c.at(i, func() {
			if _, later := n.(Unknown); later {
				return
			}
			digits, ok := n.(json.Number)
			if !ok {
				c.say("this must be a whole number and is %s", is(n))
				return
			}
			k, err := strconv.Atoi(digits.String())
			if err != nil || k < least || k > most {
				c.say("%s is not a whole number from %d to %d", clip(digits.String()), least, most)
				return
			}
			known = append(known, k)
		})
	}
	return known
}

func (c *checker) duration(v any) {
	if n, ok := v.(json.Number); ok {
		c.say("%s has no unit; write for example 90s, 10m or 1h30m", clip(n.String()))
		return
	}
	if s, known := c.word(v); known && s != "" {
		if _, err := drover.ParseDuration(s); err != nil {
			c.say("%s", err)
		}
	}
}

func (c *checker) method(v any) {
	switch s, known := c.word(v); {
	case !known || s == "":
	case !token(s):
		c.say("%q is not a method; write for example GET or POST", clip(s))
	case strings.EqualFold(s, "CONNECT") || strings.EqualFold(s, "TRACE"):
		c.say("method %s is not for tasks", strings.ToUpper(s))
	}
}

func (c *checker) url(v any) {
	s, known := c.word(v)
	if !known {
		return
	}
	u, err := url.Parse(s)
	if err != nil || s == "" {
		c.say("this is not an address; write for example https://example.org/hook")
	} else if err := CheckURL(u); err != nil {
		c.say("%s", err)
	}
}

// CheckURL says why an address is not one for http tasks.
func CheckURL(u *url.URL) error {
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("%q is not an http or https address", Place(u))
	case u.Hostname() == "":
		return fmt.Errorf("%q has no host", Place(u))
	case u.User != nil:
		return fmt.Errorf("%q has a user in it; use headers", Place(u))
	}
	return nil
}

// Place is an address without what may be secret in it.
func Place(u *url.URL) string {
	bare := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, Opaque: u.Opaque}
	return bare.String()
}

// HeaderCheckpoint carries a checkpoint: in an answer what the next attempt's
// request shall have, in a request what the attempt before was answered.
const HeaderCheckpoint = "Drover-Checkpoint"

// Headers that belong to the connection, not to the task.
var ownHeaders = []string{HeaderCheckpoint, "Connection", "Content-Length", "Expect", "Keep-Alive", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

func (c *checker) headers(v any) {
	m, _ := c.mapping(v, "headers", nil)
	c.each(m, func(name string, v any) {
		s, _ := v.(string)
		own := slices.IndexFunc(ownHeaders, func(h string) bool { return strings.EqualFold(h, name) })
		switch {
		case !token(name) || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
			c.say("%q or its value has a character that no header has", clip(name))
		case own >= 0:
			c.say("%s is set by Drover; remove it", ownHeaders[own])
		case v == nil:
			c.text(v)
		}
	})
}

// token reports whether s can be the name of a header or a method (RFC 9110).
func token(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	})
}

// clip shortens what was written for a complaint.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
