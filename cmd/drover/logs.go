package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
)

// logLine is a log line as JSON prints it.
type logLine struct {
	Task string `json:"task"`
	drover.LogLine
}

// logs prints what handlers wrote. With follow it goes on until ended says so;
// task, when set, keeps only tasks of that name.
func (a *app) logs(ctx context.Context, c *client.Client, f client.LogsFilter, task string, stamps, follow bool, ended func() (bool, error)) error {
	p := a.printer()
	names := map[drover.TaskID]string{} // of tasks seen; "name" or "name[3]"
	nodes := map[drover.TaskID]string{}
	var kept []logLine
	print := func(l logLine) error {
		switch p.format {
		case "json", "yaml":
			kept = append(kept, l)
			return nil
		case "jsonl":
			return p.line(l)
		}
		text := l.Text
		if a.terminal {
			text = clean(text, false)
		}
		line := p.paint(cyan, fmt.Sprintf("%s#%d", clean(l.Task, true), l.Attempt))
		if stamps {
			line = eventTime(p, l.At) + "  " + line
		}
		switch l.Level {
		case "stdout", "info":
		case "stderr", "error", "warn":
			line += "  " + p.paint(yellow, l.Level)
		default:
			line += "  " + l.Level
		}
		if len(l.Attrs) > 0 && string(l.Attrs) != "{}" {
			text += "  " + clean(string(l.Attrs), true)
		}
		_, err := io.WriteString(p.w, line+"  "+text+"\n")
		return err
	}
	f.Limit = maxPage
	seen := 0 // lines of the page at the cursor that were printed before
	for last := !follow; ; {
		page, err := c.Logs(ctx, f)
		if err != nil {
			return err
		}
		fresh := page.Items[min(seen, len(page.Items)):]
		seen = len(page.Items)
		for _, l := range fresh {
			if l.TaskID.IsZero() {
				l.TaskID = f.Task
			}
			if _, ok := names[l.TaskID]; !ok {
				t, err := c.Task(ctx, l.TaskID)
				if err != nil {
					return err
				}
				names[l.TaskID], nodes[l.TaskID] = taskLabel(t), t.Name
			}
			if task != "" && nodes[l.TaskID] != task && names[l.TaskID] != task {
				continue
			}
			if err := print(logLine{names[l.TaskID], l}); err != nil {
				return err
			}
		}
		if page.NextCursor != "" && len(page.Items) > 0 {
			f.Cursor, seen = page.NextCursor, 0
			continue
		}
		if last {
			break
		}
		// One more look after the end: lines are sent up to a second later.
		if last, err = ended(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
	if p.format == "json" || p.format == "yaml" {
		if kept == nil {
			kept = []logLine{}
		}
		return p.document(kept)
	}
	return nil
}

// taskLabel reads "extract[3]", or "decode" for a task that is not mapped.
func taskLabel(t drover.Task) string {
	if t.Mapped && t.Index >= 0 {
		return fmt.Sprintf("%s[%d]", t.Name, t.Index)
	}
	if t.Mapped {
		return t.Name + "[…]"
	}
	return t.Name
}
