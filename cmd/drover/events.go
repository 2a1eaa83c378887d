package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drover-dev/drover"
)

var eventColumns = columns[drover.Event]{
	name: func(e drover.Event) string { return strconv.FormatInt(e.Seq, 10) },
	list: []column[drover.Event]{
		{head: "AT", text: func(p *printer, e drover.Event) string { return eventTime(p, e.At) }},
		{head: "#", text: func(_ *printer, e drover.Event) string { return eventNumber(e) }},
		{head: "EVENT", text: func(_ *printer, e drover.Event) string { return string(e.Type) }, paint: func(e drover.Event) string { return colourOfEvent(e.Type) }},
		{head: "TASK", text: func(_ *printer, e drover.Event) string { return factsOf(e).label() }},
		{head: "DETAIL", text: func(_ *printer, e drover.Event) string { return factsOf(e).rest }},
	},
}

// eventTime is the time of day; the full time where another format is asked for.
func eventTime(p *printer, t time.Time) string {
	if p.times != "relative" {
		return p.age(t)
	}
	return t.Local().Format("15:04:05.000")
}

func eventNumber(e drover.Event) string {
	if e.Seq == 0 {
		return "" // live news has no number
	}
	return strconv.FormatInt(e.Seq, 10)
}

func colourOfEvent(t drover.EventType) string {
	switch t {
	case drover.JobSucceeded, drover.TaskSucceeded:
		return green
	case drover.JobFailed, drover.TaskFailed, drover.TaskDeadLettered:
		return red
	case drover.TaskRetryScheduled, drover.TaskLeaseExpired:
		return yellow
	case drover.JobCancelled, drover.TaskCancelled, drover.TaskSkipped:
		return grey
	}
	return ""
}

// eventFacts are an event's data for people: the task it is about, and the rest
// as "key=value" words.
type eventFacts struct {
	name  string
	index int
	// mapped says that index means something.
	mapped bool
	// elements is how many rows a map grew; -1 when the event does not say.
	elements int
	rest     string
}

func (f eventFacts) label() string {
	if f.mapped {
		return fmt.Sprintf("%s[%d]", f.name, f.index)
	}
	return f.name
}

func factsOf(e drover.Event) eventFacts {
	f := eventFacts{elements: -1}
	d := json.NewDecoder(bytes.NewReader(e.Data))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return f
	}
	var words []string
	for d.More() {
		key, err := d.Token()
		if err != nil {
			break
		}
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			break
		}
		text := string(v)
		var s string
		if json.Unmarshal(v, &s) == nil {
			text = s
		}
		switch key {
		case "name":
			f.name = text
			continue
		case "index":
			f.index, err = strconv.Atoi(text)
			f.mapped = err == nil && f.index >= 0
			continue
		case "elements":
			f.elements, _ = strconv.Atoi(text)
		}
		if strings.ContainsAny(text, " \n\t") {
			text = strconv.Quote(clip(text, 200))
		}
		words = append(words, fmt.Sprintf("%v=%s", key, text))
	}
	f.rest = strings.Join(words, " ")
	return f
}

// eventLine returns what prints events one a line as they come.
func (a *app) eventLine() func(drover.Event) error {
	p := a.printer()
	return func(e drover.Event) error {
		if slices.Contains([]string{"json", "jsonl", "yaml"}, p.format) {
			return p.line(e)
		}
		f := factsOf(e)
		line := fmt.Sprintf("%s  %4s  %s", eventTime(p, e.At), eventNumber(e), p.paint(colourOfEvent(e.Type), fmt.Sprintf("%-20s", e.Type)))
		for _, word := range []string{f.label(), f.rest} {
			if word != "" {
				line += "  " + clean(word, true)
			}
		}
		_, err := io.WriteString(p.w, strings.TrimRight(line, " ")+"\n")
		return err
	}
}
