package dag

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestLintFindsWhatPeopleRegret(t *testing.T) {
	t.Parallel()
	long := "[" + strings.Repeat("1, ", 1000) + "1]"
	for _, c := range []struct {
		task string // its keys
		m    Measure
		want string // rule at place, or nothing
	}{
		{`run: x`, Measure{}, ""},
		{`run: x, for_each: "${{ input.l }}"`, Measure{}, ""},
		{`run: x, for_each: "${{ input.l }}"`, Measure{Tasks: 100, Elements: 100, Run: 4 * time.Millisecond}, "granularity tasks.a.for_each"},
		{`run: x, for_each: "${{ input.l }}"`, Measure{Tasks: 100, Elements: 100, Run: 11 * time.Millisecond}, ""},
		{`run: x, for_each: "${{ input.l }}"`, Measure{Tasks: 100, Elements: 100, Run: 11 * time.Millisecond, Handoff: 3 * time.Millisecond}, "granularity tasks.a.for_each"},
		{`run: x, for_each: "${{ input.l }}"`, Measure{Tasks: 6000, Elements: 6000, Run: time.Second}, "granularity tasks.a.for_each"},
		{`run: x`, Measure{Tasks: 100, Run: time.Millisecond}, ""},
		{`run: x, for_each: ` + long, Measure{}, "granularity tasks.a.for_each"},
		{`run: x, for_each: []`, Measure{}, "unreachable tasks.a.for_each"},
		{`run: exec, with: {command: [sleep, "299"]}`, Measure{}, ""},
		{`run: exec, with: {command: [sleep, 300]}`, Measure{}, "sleeping-task tasks.a.with"},
		{`run: exec, with: {command: [/bin/sleep, 5m]}`, Measure{}, "sleeping-task tasks.a.with"},
		{`run: exec, with: {command: [sh, -c, "sleep 4m; ./x; sleep 2m"]}`, Measure{}, "sleeping-task tasks.a.with"},
		{`run: exec, with: {command: [sh, -c, "until ./ready; do sleep 5; done"]}`, Measure{}, "sleeping-task tasks.a.with"},
		{`run: exec, with: {command: [sh, -c, "echo oversleep 900"]}`, Measure{}, ""},
		{`run: exec, with: {command: [curl, -X, POST, "https://x.example/pay"]}`, Measure{}, "side-effect tasks.a.with"},
		{`run: exec, with: {command: [sh, -c, 'curl --data a=b https://x.example']}`, Measure{}, "side-effect tasks.a.with"},
		{`run: exec, with: {command: [sh, -c, 'curl -d a=b -H "Idempotency-Key: $DROVER_IDEMPOTENCY_KEY" https://x.example']}`, Measure{}, ""},
		{`run: exec, with: {command: [curl, "https://x.example"]}`, Measure{}, ""},
		{`run: exec, compensate: u, with: {command: [curl, -X, POST, "https://x.example/pay"]}}
  u: {run: x`, Measure{}, ""},
		{`run: pay, side_effects: true`, Measure{}, "side-effect tasks.a.side_effects"},
		{`run: pay, side_effects: false`, Measure{}, ""},
		{`run: pay, side_effects: idempotent`, Measure{}, ""},
		{`run: exec, side_effects: false, with: {command: [curl, --data, a=b, "https://x.example/ask"]}`, Measure{}, ""},
		{`run: pay, side_effects: true, compensate: u}
  u: {run: x`, Measure{}, ""},
		{`run: http, side_effects: true, with: {url: "https://x.example"}`, Measure{}, ""},
		{`run: exec, side_effects: true, with: {command: [curl, -X, POST, "https://x.example/pay"]}`, Measure{}, "side-effect tasks.a.side_effects"},
		{`run: exec, side_effects: true, with: {command: [sh, -c, "pay --key $DROVER_IDEMPOTENCY_KEY"]}`, Measure{}, ""},
		{`run: x, timeout: 2h, schedule_to_close: 1h`, Measure{}, "useless-bound tasks.a.timeout"},
		{`run: x, schedule_to_close: 10m`, Measure{}, ""},
		{`run: x, timeout: 1m, heartbeat: 2m`, Measure{}, "useless-bound tasks.a.heartbeat"},
	} {
		p, err := Parse("p.yaml", []byte("pipeline: p\ntasks:\n  a: {"+c.task+"}\n"))
		if err != nil {
			t.Fatal(err)
		}
		plan, err := p.Compile()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range p.Lint(plan, Measures{"a": c.m}) {
			got = append(got, f.Rule+" "+f.Field)
			if f.Line != 3 || f.Column == 0 || f.Message == "" || f.Remedy == "" {
				t.Errorf("%s: no place, message or remedy: %+v", c.task, f)
			}
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%.80s %+v: found %q, want %q", c.task, c.m, got, c.want)
		}
	}
}

func TestMeasuresAreMedians(t *testing.T) {
	t.Parallel()
	var list []Sample
	for job := range 3 {
		for i := range 10 + job {
			list = append(list, Sample{Job: job, Name: "m", Mapped: true, Run: time.Duration(i) * time.Second, Handoff: time.Duration(i) * time.Millisecond})
		}
		list = append(list, Sample{Job: job, Name: "one", Run: time.Duration(1+job) * time.Minute})
	}
	m := MeasuresOf(list)
	if got := m["m"]; got.Tasks != 33 || got.Elements != 11 || got.Run != 5*time.Second || got.Handoff != 2*time.Millisecond {
		t.Errorf("m = %+v", got)
	}
	if got := m["one"]; got.Tasks != 3 || got.Elements != 0 || got.Run != 2*time.Minute {
		t.Errorf("one = %+v", got)
	}
	if b, err := json.Marshal(m["one"]); err != nil || string(b) != `{"tasks":3,"run":"120s","handoff":"0s"}` {
		t.Errorf("JSON = %s, %v", b, err)
	}
}

func TestDiffTellsWhatChanged(t *testing.T) {
	t.Parallel()
	parse := func(src string) *Pipeline {
		p, err := Parse("p.yaml", []byte(src))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	a := parse(`
pipeline: p
defaults: {timeout: 10m, queue: cpu}
tasks:
  cut: {run: exec, with: {command: [./cut.sh], env: {A: "1", B: "2"}}}
  old: {run: x, needs: [cut]}
  join: {run: x, needs: [cut, old]}
  last: {run: x}
`)
	b := parse(`
pipeline: p
description: new
defaults: {timeout: 600s, queue: gpu}
tasks:
  last: {run: x}
  cut: {run: exec, with: {command: [./cut.sh, -v], env: {A: "1", B: "3"}}, queue: io}
  new: {run: x, needs: [cut]}
  join: {run: x, needs: [new], with: "${{ tasks.cut.output }}"}
`)
	d, err := Diff(a, b)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"fields":[{"field":"defaults.queue","before":"cpu","after":"gpu"},{"field":"description","after":"new"}],` +
		`"added":["new"],"removed":["old"],"changed":[` +
		`{"task":"cut","fields":[{"field":"queue","after":"io"},{"field":"with.command","before":["./cut.sh"],"after":["./cut.sh","-v"]},{"field":"with.env.B","before":"2","after":"3"}]},` +
		`{"task":"join","fields":[{"field":"needs","before":["cut","old"],"after":["new"]},{"field":"with","after":"${{ tasks.cut.output }}"}]}],` +
		`"edges_added":[{"from":"cut","to":"new","kind":"control"},{"from":"cut","to":"join","kind":"data"},{"from":"new","to":"join","kind":"control"}],` +
		`"edges_removed":[{"from":"cut","to":"old","kind":"control"},{"from":"cut","to":"join","kind":"control"},{"from":"old","to":"join","kind":"control"}],` +
		`"reordered":true}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if d.Empty() {
		t.Error("the difference is empty")
	}
	if d, err = Diff(a, a); err != nil || !d.Empty() {
		t.Errorf("a definition differs from itself: %+v, %v", d, err)
	}
	back, err := Diff(b, parse(string(b.Canonical())))
	if err != nil || !back.Empty() {
		t.Errorf("the canonical form differs: %+v, %v", back, err)
	}
}
