package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
)

var watchedNodes = []dag.Node{
	{Name: "decode", Over: -1}, {Name: "extract", Mapped: true, Over: -1}, {Name: "features", Mapped: true, Over: 1}, {Name: "manifest", Over: -1},
}

func watched() *watchView {
	v := newWatchView(drover.Job{
		ID: drover.JobID(drover.MakeID(1, [10]byte{1})), Status: drover.Running, Pipeline: "ingest", PipelineVersion: 3, CreatedAt: testTime.Add(-12 * time.Second),
		Tasks: drover.Counts{Total: 42, Succeeded: 9}, Progress: &drover.Progress{Ratio: 0.4, Message: "features: 8 of 20", ETA: drover.Duration(6 * time.Minute)},
	}, watchedNodes)
	v.unicode = true
	return v
}

func event(typ drover.EventType, data string, args ...any) drover.Event {
	return drover.Event{Type: typ, At: testTime, Data: json.RawMessage(fmt.Sprintf(data, args...))}
}

func TestWatchDrawsEveryNode(t *testing.T) {
	t.Parallel()
	v := watched()
	v.apply(event(drover.TaskSucceeded, `{"name":"decode","index":0}`))
	v.apply(event(drover.TaskExpanded, `{"name":"extract","elements":20}`))
	for i := range 8 {
		v.apply(event(drover.TaskSucceeded, `{"name":"extract","index":%d}`, i))
	}
	v.apply(event(drover.TaskRetryScheduled, `{"name":"extract","index":9}`))
	v.apply(event(drover.TaskFailed, `{"name":"features","index":0}`))
	v.running = []drover.Task{
		{Name: "extract", Index: 8, Mapped: true, Progress: &drover.Progress{Ratio: 0.5, Message: "frame 10"}}, {Name: "extract", Index: 9, Mapped: true},
	}
	p := &printer{now: testTime}
	got := strings.Join(v.render(p, 120, 24), "\n")
	want := `job_00000000010400000000000000  ingest@3  RUNNING  12s
decode    ✓
extract   ▶  ████████░░░░░░░░░░░░       8/20  2 running, 1 retried, frame 10
features  ✗  █░░░░░░░░░░░░░░░░░░░       1/20  1 failed
manifest  ·
9/42 tasks, 40 %, features: 8 of 20, about 6m00s left`
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	v.unicode = false
	if got := strings.Join(v.render(p, 120, 24), "\n"); !strings.Contains(got, "extract   >  ########------------") || !strings.Contains(got, "decode    +") {
		t.Errorf("in ASCII:\n%s", got)
	}
}

func TestWatchFitsTheTerminal(t *testing.T) {
	t.Parallel()
	v := watched()
	v.running = []drover.Task{{Name: "manifest", Progress: &drover.Progress{Ratio: 0.25, Message: strings.Repeat("long ", 40)}}}
	p := &printer{now: testTime, colour: true}
	lines := v.render(p, 60, 5)
	if len(lines) > 5 {
		t.Errorf("%d lines, want at most 5:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	if !strings.Contains(lines[1], "manifest") || !strings.Contains(strings.Join(lines, "\n"), "and 2 more nodes") {
		t.Errorf("what runs is not first:\n%s", strings.Join(lines, "\n"))
	}
	for _, l := range lines[1:] {
		if n := cells(unpainted(l)); n > 60 {
			t.Errorf("line of %d columns, want at most 60: %q", n, l)
		}
	}
}

func unpainted(s string) string {
	for {
		i := strings.IndexByte(s, 0x1b)
		if i < 0 {
			return s
		}
		s = s[:i] + s[i+strings.IndexByte(s[i:], 'm')+1:]
	}
}

func TestWatchTakesReplaysBack(t *testing.T) {
	t.Parallel()
	v := watched()
	v.apply(event(drover.TaskDeadLettered, `{"name":"decode","index":0}`))
	if _, bad := v.byName["decode"].counts(); bad != 1 {
		t.Errorf("%d failed, want 1", bad)
	}
	v.apply(event(drover.TaskReplayed, `{"name":"decode","index":0}`))
	if ended, bad := v.byName["decode"].counts(); ended != 0 || bad != 0 {
		t.Errorf("after the replay %d ended, %d failed, want none", ended, bad)
	}
}

func TestWatchLearnsNodesFromEvents(t *testing.T) {
	t.Parallel()
	v := newWatchView(drover.Job{}, nil)
	v.apply(event(drover.TaskSucceeded, `{"name":"a","index":0}`))
	v.apply(event(drover.TaskExpanded, `{"name":"m","elements":3}`))
	v.apply(event(drover.TaskSucceeded, `{"name":"m","index":2}`))
	v.apply(event(drover.JobAccepted, `{"actor":"ci"}`))
	if len(v.nodes) != 2 || v.nodes[1].total != 3 || !v.nodes[1].mapped {
		t.Errorf("nodes = %+v", v.nodes)
	}
}

func TestEventFacts(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]eventFacts{
		``:               {elements: -1},
		`[]`:             {elements: -1},
		`{"actor":"ci"}`: {elements: -1, rest: "actor=ci"},
		`{"name":"a"}`:   {name: "a", elements: -1},
		`{"name":"m","index":3,"attempt":2,"reason":"too slow"}`: {name: "m", index: 3, mapped: true, elements: -1, rest: `attempt=2 reason="too slow"`},
		`{"name":"m","elements":20}`:                             {name: "m", elements: 20, rest: "elements=20"},
	} {
		if got := factsOf(drover.Event{Data: json.RawMessage(data)}); got != want {
			t.Errorf("facts of %s = %+v, want %+v", data, got, want)
		}
	}
}
