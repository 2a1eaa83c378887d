package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/internal/dag"
)

// eventColumns show events; mapped says of a task's name whether it is a map's,
// whose index means something.
func eventColumns(mapped func(name string) bool) columns[drover.Event] {
	return columns[drover.Event]{
		name: func(e drover.Event) string { return strconv.FormatInt(e.Seq, 10) },
		list: []column[drover.Event]{
			{head: "AT", text: func(p *printer, e drover.Event) string { return eventTime(p, e.At) }},
			{head: "#", text: func(_ *printer, e drover.Event) string { return eventNumber(e) }},
			{head: "EVENT", text: func(_ *printer, e drover.Event) string { return string(e.Type) }, paint: func(e drover.Event) string { return colourOfEvent(e.Type) }},
			{head: "TASK", text: func(_ *printer, e drover.Event) string { return factsOf(e).label(mapped) }},
			{head: "DETAIL", text: func(_ *printer, e drover.Event) string { return factsOf(e).detail(e) }},
			{head: "TASK ID", wide: true, text: func(_ *printer, e drover.Event) string { return e.TaskID.String() }},
			{head: "WORKER", wide: true, text: func(_ *printer, e drover.Event) string { return factsOf(e).text("worker_id") }},
		},
	}
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
	case drover.TaskRetryScheduled, drover.TaskLeaseExpired, drover.TaskBackupAwaited:
		return yellow
	case drover.JobCancelled, drover.TaskCancelled, drover.TaskSkipped, drover.TaskBeaten:
		return grey
	default:
		return ""
	}
}

// eventFacts are an event's data, in its order.
type eventFacts struct {
	name  string // of the task
	index int
	keys  []string
	texts []string
}

func factsOf(e drover.Event) (f eventFacts) {
	d := json.NewDecoder(bytes.NewReader(e.Data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return f
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return f
		}
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return f
		}
		text := string(v)
		var s string
		if json.Unmarshal(v, &s) == nil {
			text = s
		}
		switch key {
		case "name":
			f.name = text
		case "index":
			f.index, _ = strconv.Atoi(text) // what is no number is no element
		default:
			f.keys, f.texts = append(f.keys, fmt.Sprint(key)), append(f.texts, text)
		}
	}
	return f
}

// label reads "extract[3]", or "decode" for a task that is not mapped.
func (f eventFacts) label(mapped func(name string) bool) string {
	if f.name != "" && f.index >= 0 && mapped(f.name) {
		return fmt.Sprintf("%s[%d]", f.name, f.index)
	}
	return f.name
}

// text returns the value of a key.
func (f eventFacts) text(key string) string {
	if i := slices.Index(f.keys, key); i >= 0 {
		return f.texts[i]
	}
	return ""
}

// untold are facts that a person reading along has no use for; -o json has them.
var untold = []string{"status", "outcome", "lease_version", "worker_id", "ready_at", "queued_at", "claimed_at"}

// detail tells the rest as "key=value" words, and how long the attempt ran.
func (f eventFacts) detail(e drover.Event) string {
	var words []string
	if began, err := time.Parse(time.RFC3339Nano, f.text("claimed_at")); err == nil && !e.At.Before(began) {
		words = append(words, "ran="+length(e.At.Sub(began)))
	}
	for i, key := range f.keys {
		text := f.texts[i]
		if slices.Contains(untold, key) || (key == "generation" || key == "attempt") && text == "1" {
			continue
		}
		if due, err := time.Parse(time.RFC3339Nano, text); err == nil && key == "due_at" {
			key, text = "again_in", length(max(0, due.Sub(e.At)))
		}
		if text == "" || strings.ContainsAny(text, " \n\t\"") {
			text = strconv.Quote(clip(text, 200))
		}
		words = append(words, key+"="+text)
	}
	return strings.Join(words, " ")
}

// eventLine returns what prints events one a line as they come.
func (a *app) eventLine(mapped func(name string) bool) func(drover.Event) error {
	p := a.printer()
	return func(e drover.Event) error {
		if slices.Contains([]string{"json", "jsonl", "yaml"}, p.format) {
			return p.line(e)
		}
		f := factsOf(e)
		line := fmt.Sprintf("%s  %4s  %s", eventTime(p, e.At), eventNumber(e), p.paint(colourOfEvent(e.Type), fmt.Sprintf("%-20s", e.Type)))
		for _, word := range []string{f.label(mapped), f.detail(e)} {
			if word != "" {
				line += "  " + clean(word, true)
			}
		}
		_, err := io.WriteString(p.w, strings.TrimRight(line, " ")+"\n")
		return err
	}
}

// everyName is for events of a job whose pipeline is not looked at.
func everyName(string) bool { return true }

// mappedIn returns which names of a job's tasks are those of maps.
func mappedIn(ctx context.Context, c *client.Client, j drover.Job) func(name string) bool {
	nodes := nodesOf(ctx, c, j)
	if nodes == nil {
		return everyName
	}
	return func(name string) bool {
		return slices.ContainsFunc(nodes, func(n dag.Node) bool { return n.Name == name && n.Mapped })
	}
}
