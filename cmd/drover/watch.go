package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/protocol"
)

// watchJob shows a job until it has ended: redrawn on a terminal, otherwise a
// line for each event.
func (a *app) watchJob(ctx context.Context, c *client.Client, id drover.JobID) error {
	if a.curl {
		return c.Watch(ctx, id, 0, a.eventLine(everyName))
	}
	j, err := c.Job(ctx, id)
	if err != nil {
		return err
	}
	// In JSON, and away from a terminal, events are the output.
	if !a.terminal || a.env("TERM") == "dumb" || a.output != "table" && a.output != "wide" {
		err = c.Watch(ctx, id, 0, a.eventLine(mappedIn(ctx, c, j)))
	} else {
		err = a.watchLive(ctx, c, j)
	}
	if err != nil {
		if e := (*exit)(nil); errors.As(context.Cause(ctx), &e) && e.code == exitInterrupted { // a person's Ctrl-C
			a.note("drover: %s goes on; \"drover job watch %s\" shows it again, \"drover job cancel %s\" ends it", id, id, id)
		}
		return err
	}
	if j, err = c.Job(ctx, id); err != nil {
		return err
	}
	return a.ended(j)
}

// watchLive redraws the progress of a job's tasks until it has ended.
func (a *app) watchLive(ctx context.Context, c *client.Client, j drover.Job) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	v := newWatchView(j, nodesOf(ctx, c, j))
	v.unicode = a.unicode()

	events := make(chan drover.Event, 256)
	ended := make(chan error, 1)
	go func() {
		ended <- c.Watch(ctx, j.ID, 0, func(e drover.Event) error {
			select {
			case events <- e:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()

	drawn := 0 // lines on the screen that the next drawing replaces
	draw := func(final bool) error {
		p := a.printer()
		w, h := a.size()
		lines := v.render(p, w-1, cmp.Or(max(h-2, 3), 3))
		if final {
			lines = v.render(p, w-1, math.MaxInt)
		}
		var b strings.Builder
		if drawn > 0 {
			fmt.Fprintf(&b, "\x1b[%dA", drawn)
		}
		b.WriteString("\x1b[J" + strings.Join(lines, "\n") + "\n")
		drawn = len(lines)
		_, err := io.WriteString(a.out, b.String())
		return err
	}
	// What is not an event, such as who is running and how far, is asked for.
	refresh := time.NewTicker(time.Second)
	defer refresh.Stop()
	redraw := time.NewTicker(100 * time.Millisecond)
	defer redraw.Stop()
	looked := time.Time{}
	look := func() {
		looked = time.Now()
		if job, err := c.Job(ctx, j.ID); err == nil {
			v.job, v.behind = job, false
		}
		if v.stale || v.job.Tasks.Total != v.counted {
			if tasks, _, err := collect(mostCounted, func(l client.List) (protocol.Page[drover.Task], error) {
				return c.Tasks(ctx, j.ID, client.TasksFilter{List: l})
			}); err == nil {
				v.sync(tasks)
			}
		}
		if v.job.Tasks.Running == 0 {
			v.running = nil
		} else if p, err := c.Tasks(ctx, j.ID, client.TasksFilter{Status: []drover.Status{drover.Running}, List: client.List{Limit: 200}}); err == nil {
			v.running = p.Items
		}
	}
	look()
	dirty := true
	for {
		select {
		case e := <-events:
			v.apply(e)
			dirty = true
		case err := <-ended:
			for len(events) > 0 {
				v.apply(<-events)
			}
			if err == nil {
				v.behind = true
				for try := 0; v.behind && try < 5; try++ { // the last word is how it ended
					look()
				}
				v.running = nil
			}
			return errors.Join(err, draw(true))
		case <-refresh.C:
			look()
			dirty = true
		case <-redraw.C:
			if v.behind && time.Since(looked) > lookPause { // what the foot tells goes with the lines above it
				look()
				dirty = true
			}
			if dirty {
				if err := draw(false); err != nil {
					return err
				}
				dirty = false
			}
		}
	}
}

// lookPause is how soon after a look at the job an event may cause the next.
const lookPause = 250 * time.Millisecond

// mostCounted bounds how many tasks are read to know how large the maps are.
const mostCounted = 50_000

// unicode says whether the terminal shows more than ASCII.
func (a *app) unicode() bool {
	locale := cmp.Or(a.env("LC_ALL"), a.env("LC_CTYPE"), a.env("LANG"))
	return strings.Contains(strings.ToUpper(strings.ReplaceAll(locale, "-", "")), "UTF8")
}

// nodesOf returns the nodes of a job in the order in which its pipeline was
// written. A definition that this program cannot read gives none: the events
// name the nodes as they come.
func nodesOf(ctx context.Context, c *client.Client, j drover.Job) []dag.Node {
	if j.Pipeline == "" {
		return []dag.Node{{Name: j.Kind, Over: -1}}
	}
	d, err := c.Pipeline(ctx, j.Pipeline, j.PipelineVersion)
	if err != nil {
		return nil
	}
	p, err := dag.Parse(j.Pipeline, []byte(d.Source))
	if err != nil {
		p, err = dag.Decode(d.Definition)
	}
	if err != nil {
		return nil
	}
	plan, err := p.Compile()
	if err != nil {
		return nil
	}
	return plan.Nodes
}

// watchView is what is known of a job while it is watched.
type watchView struct {
	job     drover.Job
	running []drover.Task // at most the first 200
	nodes   []*watchNode
	byName  map[string]*watchNode
	unicode bool

	counted int  // tasks of the job when they were last read
	stale   bool // they must be read again: some run anew
	behind  bool // events have told what job does not say yet
}

type watchNode struct {
	name   string
	mapped bool
	total  int                   // -1 for a map that has not expanded
	ended  map[int]drover.Status // by index
	retry  int                   // attempts that failed and are tried again
}

func newWatchView(j drover.Job, nodes []dag.Node) *watchView {
	v := &watchView{job: j, byName: map[string]*watchNode{}}
	for _, n := range nodes {
		w := v.node(n.Name)
		if w.mapped = n.Mapped; n.Mapped {
			w.total = -1
		}
	}
	return v
}

func (v *watchView) node(name string) *watchNode {
	n := v.byName[name]
	if n == nil {
		n = &watchNode{name: name, total: 1, ended: map[int]drover.Status{}}
		v.byName[name] = n
		v.nodes = append(v.nodes, n)
	}
	return n
}

// sync takes in all tasks of the job: how many each node has, and which have ended.
func (v *watchView) sync(tasks []drover.Task) {
	v.counted, v.stale = len(tasks), false
	for _, n := range v.nodes {
		n.total, n.ended = 0, map[int]drover.Status{}
	}
	for _, t := range tasks {
		n := v.node(t.Name)
		n.mapped = t.Mapped
		switch {
		case t.Index < 0:
			n.total = -1
		case n.total >= 0:
			n.total++
		}
		if t.Status.Final() {
			n.ended[t.Index] = t.Status
		}
	}
}

// apply takes an event in.
func (v *watchView) apply(e drover.Event) {
	if e.Type == drover.TaskReplayed || e.Type == drover.JobReopened {
		v.stale = true
	}
	if e.Seq > v.job.Events {
		v.behind = true
	}
	f := factsOf(e)
	if f.name == "" {
		return
	}
	n := v.node(f.name)
	switch e.Type {
	case drover.TaskSucceeded:
		n.ended[f.index] = drover.Succeeded
	case drover.TaskFailed:
		n.ended[f.index] = drover.Failed
	case drover.TaskDeadLettered:
		n.ended[f.index] = drover.DeadLetter
	case drover.TaskCancelled:
		n.ended[f.index] = drover.Cancelled
	case drover.TaskSkipped:
		n.ended[f.index] = drover.Skipped
	case drover.TaskRetryScheduled:
		n.retry++
	case drover.TaskExpanded:
		if count, err := strconv.Atoi(f.text("count")); err == nil {
			n.total, n.mapped = count, true
			delete(n.ended, -1) // of a generation in which it could not expand
		}
	default: // says nothing about who has ended
	}
}

// render draws the view in at most height lines of width columns.
func (v *watchView) render(p *printer, width, height int) []string {
	j := v.job
	head := fmt.Sprintf("%s  %s  %s  %s", j.ID, jobWhat(j), p.paint(colourOf(j.Status), jobStatus(j)), p.since(j.CreatedAt, j.FinishedAt))
	lines := []string{head}
	nameWidth := 0
	for _, n := range v.nodes {
		nameWidth = max(nameWidth, min(cells(n.name), 32))
	}
	shown := v.nodes
	if room := height - 3; len(shown) > room { // those that move come first
		shown = slices.Clone(v.nodes)
		slices.SortStableFunc(shown, func(a, b *watchNode) int { return v.rank(a) - v.rank(b) })
		shown = shown[:max(room, 1)]
	}
	for _, n := range shown {
		lines = append(lines, v.nodeLine(p, n, nameWidth, width))
	}
	if rest := len(v.nodes) - len(shown); rest > 0 {
		lines = append(lines, "… and "+counted(rest, "more node", "more nodes"))
	}
	if foot := v.foot(p); foot != "" {
		lines = append(lines, foot)
	}
	return lines
}

// foot is the last line: the outcome, or how far the job is.
func (v *watchView) foot(p *printer) string {
	j := v.job
	switch {
	case j.Status.Final():
		return fmt.Sprintf("%s tasks, %s", doneOf(j.Tasks), p.paint(colourOf(j.Status), j.Status.String()))
	case j.Progress != nil:
		return clean(progressText(*j.Progress), true)
	}
	return ""
}

// rank orders nodes for a small screen: running, failed, begun, waiting, done.
func (v *watchView) rank(n *watchNode) int {
	ended, bad := n.counts()
	switch {
	case v.runningOf(n) > 0:
		return 0
	case bad > 0:
		return 1
	case ended > 0 && ended < n.total:
		return 2
	case ended == 0:
		return 3
	}
	return 4
}

// counts returns how many rows have ended, and how many of them badly.
func (n *watchNode) counts() (ended, bad int) {
	for _, s := range n.ended {
		ended++
		if s == drover.Failed || s == drover.DeadLetter {
			bad++
		}
	}
	return ended, bad
}

func (v *watchView) runningOf(n *watchNode) int {
	count := 0
	for _, t := range v.running {
		if t.Name == n.name {
			count++
		}
	}
	return count
}

func (v *watchView) nodeLine(p *printer, n *watchNode, nameWidth, width int) string {
	ended, bad := n.counts()
	name := clip(n.name, nameWidth)
	line := name + strings.Repeat(" ", nameWidth-cells(name)+2)
	running := v.runningOf(n)
	mark, colour := v.mark(n, ended, bad, running)
	line += p.paint(colour, mark) + "  "
	if n.mapped {
		ratio := 0.0
		count := fmt.Sprintf("%d/?", ended)
		if n.total >= 0 {
			count = fmt.Sprintf("%d/%d", ended, n.total)
			ratio = 1
			if n.total > 0 {
				ratio = float64(ended) / float64(n.total)
			}
		}
		line += v.bar(ratio, 20) + fmt.Sprintf("  %9s", count)
	} else if t := v.runningTask(n); t != nil && t.Progress != nil {
		line += v.bar(t.Progress.Ratio, 20) + fmt.Sprintf("  %8d%%", int(t.Progress.Ratio*100))
	}
	var words []string
	if running > 0 && n.mapped {
		words = append(words, fmt.Sprintf("%d running", running))
	}
	if bad > 0 {
		words = append(words, p.paint(red, fmt.Sprintf("%d failed", bad)))
	}
	if n.retry > 0 && ended < max(n.total, 1) {
		words = append(words, p.paint(yellow, fmt.Sprintf("%d retried", n.retry)))
	}
	if t := v.runningTask(n); t != nil && t.Progress != nil && t.Progress.Message != "" {
		words = append(words, clean(t.Progress.Message, true))
	}
	if len(words) > 0 {
		line += "  " + strings.Join(words, ", ")
	}
	return fit(strings.TrimRight(line, " "), width)
}

func (v *watchView) runningTask(n *watchNode) *drover.Task {
	for i := range v.running {
		if v.running[i].Name == n.name {
			return &v.running[i]
		}
	}
	return nil
}

// mark says in one character where a node is.
func (v *watchView) mark(n *watchNode, ended, bad, running int) (string, string) {
	done, bads, runs, idle := "✓", "✗", "▶", "·"
	if !v.unicode {
		done, bads, runs, idle = "+", "x", ">", "."
	}
	switch {
	case bad > 0:
		return bads, red
	case n.total >= 0 && ended >= n.total:
		for _, s := range n.ended {
			if s != drover.Succeeded {
				return "-", grey // skipped or cancelled
			}
		}
		return done, green
	case running > 0 || ended > 0:
		return runs, cyan
	}
	return idle, grey
}

func (v *watchView) bar(ratio float64, width int) string {
	full, empty := "█", "░"
	if !v.unicode {
		full, empty = "#", "-"
	}
	n := int(min(max(ratio, 0), 1) * float64(width))
	return strings.Repeat(full, n) + strings.Repeat(empty, width-n)
}

// fit cuts a line to width columns; escape sequences take none.
func fit(s string, width int) string {
	n, escape := 0, false
	for i, r := range s {
		switch {
		case r == 0x1b:
			escape = true
		case escape:
			escape = r != 'm'
		default:
			if n += cells(string(r)); n > width {
				return s[:i] + "\x1b[0m"
			}
		}
	}
	return s
}
