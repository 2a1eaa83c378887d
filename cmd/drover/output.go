package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

var (
	formats     = []string{"table", "wide", "json", "jsonl", "yaml", "name"}
	timeFormats = []string{"relative", "iso", "raw"}
)

// columns say how things of one kind are printed.
type columns[T any] struct {
	// name is the word that -o name prints, one a line.
	name func(T) string
	list []column[T]
	// detail lists what "get" shows of one thing; nil shows it as a table of one line.
	detail func(*printer, T) []fact
}

type column[T any] struct {
	head string
	wide bool // only with -o wide
	text func(*printer, T) string
	// paint, where set, picks the colour of the text.
	paint func(T) string
}

// fact is one line of a thing's details.
type fact struct {
	name, text string
	paint      string
}

// printer writes things to stdout in the format asked for.
type printer struct {
	w       io.Writer
	format  string
	times   string
	headers bool
	colour  bool
	clip    int // columns that a cell of a table may take
	now     time.Time
}

func (a *app) printer() *printer {
	p := &printer{
		w: a.out, format: a.output, times: a.times, headers: !a.noHeaders, now: a.now(), colour: a.coloured(), clip: 200,
	}
	if a.terminal {
		p.clip = 64
	}
	return p
}

// coloured says whether escape sequences may go to stdout.
func (a *app) coloured() bool {
	return a.terminal && a.env("NO_COLOR") == "" && a.env("TERM") != "dumb"
}

// printList writes a list. An empty one is "[]" in JSON and YAML, and only the
// line of headers in a table.
func printList[T any](p *printer, c columns[T], items []T) error {
	switch p.format {
	case "json", "yaml":
		if items == nil {
			items = []T{}
		}
		return p.document(items)
	case "jsonl":
		for _, it := range items {
			if err := p.line(it); err != nil {
				return err
			}
		}
		return nil
	case "name":
		for _, it := range items {
			if _, err := fmt.Fprintln(p.w, clean(c.name(it), true)); err != nil {
				return err
			}
		}
		return nil
	}
	return printTable(p, c, items)
}

// printOne writes one thing.
func printOne[T any](p *printer, c columns[T], item T) error {
	switch p.format {
	case "json", "yaml":
		return p.document(item)
	case "jsonl", "name":
		return printList(p, c, []T{item})
	}
	if c.detail == nil {
		return printTable(p, c, []T{item})
	}
	return p.facts(c.detail(p, item))
}

// whole writes a thing that has no columns in the formats that programs read, and
// reports whether it did: how people get to see it is the caller's.
func (p *printer) whole(v any) (done bool, err error) {
	switch p.format {
	case "json", "yaml":
		return true, p.document(v)
	case "jsonl":
		return true, p.line(v)
	}
	return false, nil
}

func printTable[T any](p *printer, c columns[T], items []T) error {
	var shown []column[T]
	for _, col := range c.list {
		if !col.wide || p.format == "wide" {
			shown = append(shown, col)
		}
	}
	rows := make([][]string, 0, len(items)+1)
	if p.headers {
		row := make([]string, len(shown))
		for i, col := range shown {
			row[i] = col.head
		}
		rows = append(rows, row)
	}
	for _, it := range items {
		row := make([]string, len(shown))
		for i, col := range shown {
			row[i] = clean(col.text(p, it), true)
			if p.format != "wide" {
				row[i] = clip(row[i], p.clip)
			}
		}
		rows = append(rows, row)
	}
	widths := make([]int, len(shown))
	for _, row := range rows {
		for i, s := range row {
			widths[i] = max(widths[i], cells(s))
		}
	}
	var b strings.Builder
	for r, row := range rows {
		var line strings.Builder
		for i, s := range row {
			pad := strings.Repeat(" ", widths[i]-cells(s)+3)
			first := r - len(rows) + len(items) // the item's number; negative for the headers
			if first >= 0 && shown[i].paint != nil {
				s = p.paint(shown[i].paint(items[first]), s)
			}
			line.WriteString(s + pad)
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	_, err := io.WriteString(p.w, b.String())
	return err
}

// facts writes "name  text" lines, leaving out those without a text.
func (p *printer) facts(facts []fact) error {
	width := 0
	for _, f := range facts {
		if f.text != "" {
			width = max(width, cells(f.name))
		}
	}
	var b strings.Builder
	for _, f := range facts {
		if f.text == "" {
			continue
		}
		text := strings.ReplaceAll(clean(f.text, false), "\n", "\n"+strings.Repeat(" ", width+3))
		b.WriteString(f.name + strings.Repeat(" ", width-cells(f.name)+3) + p.paint(f.paint, text) + "\n")
	}
	_, err := io.WriteString(p.w, b.String())
	return err
}

// document writes v as indented JSON or as YAML.
func (p *printer) document(v any) error {
	doc, err := encode(v)
	if err != nil {
		return err
	}
	if p.format == "yaml" {
		doc, err = toYAML(doc)
		if err != nil {
			return err
		}
		_, err = p.w.Write(doc)
		return err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, doc, "", "  "); err != nil {
		return err
	}
	b.WriteByte('\n')
	_, err = p.w.Write(b.Bytes())
	return err
}

// line writes v as one line of JSON.
func (p *printer) line(v any) error {
	doc, err := encode(v)
	if err != nil {
		return err
	}
	_, err = p.w.Write(append(doc, '\n'))
	return err
}

// encode returns v as compact JSON in which payloads stay as they were written.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// toYAML turns JSON into YAML: same order of members, same digits of numbers.
func toYAML(doc []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	n, err := yamlNode(d)
	if err != nil {
		return nil, err
	}
	return yaml.Marshal(n)
}

func yamlNode(d *json.Decoder) (*yaml.Node, error) {
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	scalar := func(tag, value string) *yaml.Node {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}
	}
	switch t := t.(type) {
	case json.Delim:
		n := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		if t == '{' {
			n = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		}
		for d.More() {
			c, err := yamlNode(d)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, c)
			if t == '{' {
				if c, err = yamlNode(d); err != nil {
					return nil, err
				}
				n.Content = append(n.Content, c)
			}
		}
		_, err := d.Token()
		return n, err
	case json.Number:
		if strings.ContainsAny(t.String(), ".eE") {
			return scalar("!!float", t.String()), nil
		}
		return scalar("!!int", t.String()), nil
	case bool:
		return scalar("!!bool", strconv.FormatBool(t)), nil
	case string:
		n := scalar("!!str", t)
		switch strings.ToLower(t) {
		case "y", "n", "yes", "no", "on", "off": // readers of YAML 1.1 take these for booleans
			n.Style = yaml.DoubleQuotedStyle
		}
		return n, nil
	}
	return scalar("!!null", "null"), nil
}

// Colours, as the parameters of an SGR sequence.
const (
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
	grey   = "90"
)

func (p *printer) paint(colour, s string) string {
	if !p.colour || colour == "" || s == "" {
		return s
	}
	return "\x1b[" + colour + "m" + s + "\x1b[0m"
}

// age tells how long ago t was, or t itself, as --time-format wants it.
func (p *printer) age(t time.Time) string {
	switch {
	case t.IsZero():
		return ""
	case p.times == "iso":
		return t.UTC().Format(time.RFC3339)
	case p.times == "raw":
		return strconv.FormatInt(t.UnixMilli(), 10)
	}
	if d := p.now.Sub(t); d >= 0 {
		return length(d)
	}
	return "in " + length(t.Sub(p.now))
}

// since tells the time from one moment to another, or to now where the other is zero.
func (p *printer) since(from, to time.Time) string {
	if from.IsZero() {
		return ""
	}
	if to.IsZero() {
		to = p.now
	}
	return length(max(0, to.Sub(from)))
}

// moment tells when something was, with its age.
func (p *printer) moment(t time.Time) string {
	if t.IsZero() || p.times != "relative" {
		return p.age(t)
	}
	s := t.UTC().Format(time.RFC3339)
	if d := p.now.Sub(t); d >= 0 {
		return s + " (" + length(d) + " ago)"
	}
	return s + " (" + p.age(t) + ")"
}

// length writes a duration as people say it: 120ms, 45s, 3m12s, 2h05m, 3d4h.
func length(d time.Duration) string {
	switch {
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + "ms"
	case d < 10*time.Second:
		return strings.TrimSuffix(strconv.FormatFloat(d.Truncate(100*time.Millisecond).Seconds(), 'f', 1, 64), ".0") + "s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}

// bytesOf writes a size as people say it.
func bytesOf(n int64) string {
	const unit = 1024
	if n < unit {
		return strconv.FormatInt(n, 10) + " B"
	}
	f, i := float64(n)/unit, 0
	for ; f >= unit && i < 4; i++ {
		f /= unit
	}
	return fmt.Sprintf("%.1f %ciB", f, "KMGTP"[i])
}

// clean takes control characters out of text that a job or worker wrote, so that
// it cannot steer the terminal; with oneLine, line breaks too.
func clean(s string, oneLine bool) string {
	bad := func(r rune) bool {
		return r == utf8.RuneError || unicode.IsControl(r) && (oneLine || r != '\n') && r != '\t' ||
			r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 // marks that turn the direction of writing
	}
	if oneLine {
		s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), " ")
		s = strings.ReplaceAll(s, "\t", " ")
	}
	if strings.IndexFunc(s, bad) < 0 {
		return s
	}
	return strings.Map(func(r rune) rune {
		if bad(r) {
			return '·'
		}
		return r
	}, s)
}

// cells is how many columns of a terminal s takes: two for the wide characters
// of East Asia, none for combining marks.
func cells(s string) int {
	n := 0
	for _, r := range s {
		switch {
		case unicode.Is(unicode.Mn, r) || r == 0x200d:
		case r >= 0x1100 && (r <= 0x115f || r >= 0x2e80 && r <= 0xa4cf || r >= 0xac00 && r <= 0xd7a3 || r >= 0xf900 && r <= 0xfaff ||
			r >= 0xfe30 && r <= 0xfe6f || r >= 0xff00 && r <= 0xff60 || r >= 0xffe0 && r <= 0xffe6 || r >= 0x1f300 && r <= 0x1faff || r >= 0x20000 && r <= 0x3fffd):
			n += 2
		default:
			n++
		}
	}
	return n
}

// clip shortens s to width columns, with an ellipsis where it cut.
func clip(s string, width int) string {
	if cells(s) <= width {
		return s
	}
	n := 0
	for i, r := range s {
		if n += cells(string(r)); n > width-1 {
			return s[:i] + "…"
		}
	}
	return s
}
