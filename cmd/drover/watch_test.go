package main

import (
	"encoding/json"
	"fmt"
	"slices"
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

// tasksOf returns n tasks of a node, of which the first few have ended so.
func tasksOf(name string, mapped bool, n int, ended ...drover.Status) (out []drover.Task) {
	for i := range n {
		t := drover.Task{Name: name, Mapped: mapped, Index: i, Status: drover.Pending}
		if i < len(ended) {
			t.Status = ended[i]
		}
		out = append(out, t)
	}
	return out
}

func TestWatchDrawsEveryNode(t *testing.T) {
	t.Parallel()
	v := watched()
	v.apply(event(drover.TaskSucceeded, `{"name":"decode","index":0}`))
	v.sync(slices.Concat(tasksOf("decode", false, 1, drover.Succeeded), tasksOf("extract", true, 20, drover.Succeeded, drover.Succeeded),
		tasksOf("features", true, 20), tasksOf("manifest", false, 1)))
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
40 %, features: 8 of 20, about 6m00s left`
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

func TestWatchReadsTasksAgainAfterAReplay(t *testing.T) {
	t.Parallel()
	v := watched()
	v.apply(event(drover.TaskDeadLettered, `{"name":"decode","index":0}`))
	if _, bad := v.byName["decode"].counts(); bad != 1 {
		t.Errorf("%d failed, want 1", bad)
	}
	v.apply(event(drover.TaskReplayed, `{"actor":"ci"}`))
	if !v.stale {
		t.Fatal("the tasks are not read again")
	}
	v.sync(tasksOf("decode", false, 1))
	if ended, bad := v.byName["decode"].counts(); ended != 0 || bad != 0 || v.stale {
		t.Errorf("after the replay %d ended, %d failed, want none", ended, bad)
	}
}

func TestWatchLearnsNodesFromTasks(t *testing.T) {
	t.Parallel()
	v := newWatchView(drover.Job{}, nil)
	v.apply(event(drover.TaskSucceeded, `{"name":"a","index":0}`))
	v.apply(event(drover.JobAccepted, `{"actor":"ci"}`))
	v.sync(slices.Concat(tasksOf("a", false, 1, drover.Succeeded), []drover.Task{{Name: "m", Mapped: true, Index: -1}}))
	if len(v.nodes) != 2 || v.nodes[1].total != -1 || !v.nodes[1].mapped {
		t.Errorf("nodes = %+v %+v", v.nodes[0], v.nodes[1])
	}
	v.sync(slices.Concat(tasksOf("a", false, 1, drover.Succeeded), tasksOf("m", true, 3)))
	if v.nodes[1].total != 3 || v.counted != 4 {
		t.Errorf("after the map grew: %+v", v.nodes[1])
	}
}

func TestWatchShowsAMapThatHasJustExpanded(t *testing.T) {
	t.Parallel()
	v := watched()
	v.apply(event(drover.TaskExpanded, `{"name":"extract","index":-1,"count":20}`))
	v.apply(event(drover.TaskSucceeded, `{"name":"extract","index":4}`))
	v.apply(event(drover.TaskExpanded, `{"name":"features","index":-1,"count":0}`))
	got := strings.Join(v.render(&printer{now: testTime}, 120, 24), "\n")
	for _, want := range []string{"extract   ▶  █░░░░░░░░░░░░░░░░░░░       1/20", "features  ✓  ████████████████████        0/0"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in:\n%s", want, got)
		}
	}
}

func TestEventsAreToldToPeople(t *testing.T) {
	t.Parallel()
	mapped := func(name string) bool { return name == "m" }
	for data, want := range map[string]string{
		``:                                      "",
		`[]`:                                    "",
		`{"actor":"ci"}`:                        "| actor=ci",
		`{"name":"a","index":0,"generation":1}`: "a",
		`{"status":"SUCCEEDED","name":"m","index":3,"generation":1,"attempt":2,"lease_version":7,"worker_id":"wrk_1","outcome":"succeeded","claimed_at":"2026-01-31T11:59:58.500Z"}`: "m[3] | ran=1.5s attempt=2",
		`{"name":"m","index":0,"attempt":1,"due_at":"2026-01-31T12:00:04.000Z","message":"too slow"}`:                                                                                `m[0] | again_in=4s message="too slow"`,
		`{"name":"m","index":-1,"reason":""}`: `m | reason=""`,
		`{"name":"m","index":-1,"count":20}`:  `m | count=20`,
	} {
		e := drover.Event{At: testTime, Data: json.RawMessage(data)}
		f := factsOf(e)
		got := f.label(mapped)
		if d := f.detail(e); d != "" {
			got = strings.TrimLeft(got+" | "+d, " ")
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", data, got, want)
		}
	}
}

// TestAnEventThatTheFootDoesNotTellIsLookedUp: lines and foot speak of one moment.
func TestAnEventThatTheFootDoesNotTellIsLookedUp(t *testing.T) {
	t.Parallel()
	v := newWatchView(drover.Job{Events: 4}, nil)
	v.apply(drover.Event{Seq: 4, Type: drover.TaskSucceeded, Data: []byte(`{"name":"a"}`)})
	if v.behind {
		t.Error("the job is looked at for an event that it tells already")
	}
	v.apply(drover.Event{Seq: 5, Type: drover.JobSucceeded})
	if !v.behind {
		t.Error("nobody looks at a job whose end has been told")
	}
}

// TestCountsAreWords, one and many.
func TestCountsAreWords(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"replayed 1 of 1 dead letter":  progressOf(drover.BatchOperation{Action: drover.ActionReplay, State: drover.BatchDone, Done: 1, Total: 1}),
		"would close 2 dead letters":   progressOf(drover.BatchOperation{Action: drover.ActionClose, State: drover.BatchDryRun, Waiting: 2}),
		"would replay 1 dead letter":   progressOf(drover.BatchOperation{Action: drover.ActionReplay, State: drover.BatchDryRun, Waiting: 1}),
		"replayed 1 of 2 dead letters": progressOf(drover.BatchOperation{Action: drover.ActionReplay, State: drover.BatchDone, Done: 1, Total: 2}),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
