package dag

import (
	"strings"
	"testing"
	"time"
)

// TestLintKnowsRulesAndBounds of maps: with place and remedy.
func TestLintKnowsRulesAndBounds(t *testing.T) {
	t.Parallel()
	for src, want := range map[string]string{
		"  a: {run: x}\n  b: {run: x, needs: [a], when: all_skipped}\n":                                                  "unreachable tasks.b.when: the task runs once all above it were skipped, and \"a\" never is",
		"  a: {run: x, if: input.x}\n  b: {run: x, needs: [a], when: all_skipped}\n":                                     "",
		"  a: {run: x, if: input.x}\n  b: {run: x, if: \"!input.x\"}\n  c: {run: x, needs: [a, b]}\n":                    "unhandled-outcome tasks.c: the task runs only if no condition (if) above it is false: it is skipped with any of a, b",
		"  a: {run: x, if: input.x}\n  b: {run: x, if: \"!input.x\"}\n  c: {run: x, needs: [a, b], when: none_failed}\n": "",
		"  a: {run: x, backup: b, side_effects: idempotent}\n  b: {run: x}\n":                                            "",
		"  a: {run: x, backup: b, side_effects: true, compensate: c}\n  b: {run: x}\n  c: {run: x}\n":                    "side-effect tasks.a.backup: task \"a\" changes something outside, and runs beside \"b\": both may have changed it, and only the task's own compensation is called",
		"  m: {run: x, for_each: [1, 2], max_parallel: 2}\n":                                                             "useless-bound tasks.m.max_parallel: max_parallel 2 is never reached: the map has 2 elements",
		"  m: {run: x, for_each: [1, 2], max_parallel: 1, min_success: 50%}\n":                                           "",
		"  m: {run: x, for_each: [1, 2], min_success: 90%}\n":                                                            "useless-bound tasks.m.min_success: min_success 90% of 2 elements is all of them",
	} {
		p, err := Parse("", []byte("pipeline: p\ntasks:\n"+src))
		if err != nil {
			t.Fatal(err)
		}
		plan, err := p.Compile()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range p.Lint(plan, nil) {
			got = append(got, f.Rule+" "+f.Field+": "+f.Message)
		}
		if s := strings.Join(got, "; "); s != want {
			t.Errorf("%s: %s, want %s", src, s, want)
		}
	}
}

// TestAForecastKnowsBoundsAndWhatIsOnStandby: few at a time take longer and less room; a
// fallback is no work; what a rule lets run is not in the blast radius.
func TestAForecastKnowsBoundsAndWhatIsOnStandby(t *testing.T) {
	t.Parallel()
	plan := compile(t, `pipeline: p
finally: [last]
tasks:
  a: {run: x}
  m: {run: x, for_each: [1, 2, 3, 4, 5], max_parallel: 2, needs: [a], fallback: f}
  f: {run: x}
  b: {run: x, needs: [m]}
  c: {run: x, needs: [m, b], when: all_done}
  d: {run: x, needs: [a], on_failure: degrade}
  e: {run: x, needs: [d]}
  last: {run: x}
`)
	f := plan.Forecast(nil, Assumed{Run: time.Minute, Elements: 10})
	at := map[string]NodeForecast{}
	for i, n := range plan.Nodes {
		at[n.Name] = f.Nodes[i]
	}
	if f.Tasks != 10 || f.Work != 10*time.Minute || f.Length != 6*time.Minute || f.Width != 3 {
		t.Errorf("%d tasks, %s of work, %s long, %d wide", f.Tasks, f.Work, f.Length, f.Width)
	}
	if at["m"].Time != 3*time.Minute || !at["f"].Standby || !at["last"].Standby || at["b"].Standby {
		t.Errorf("%+v", at)
	}
	if at["a"].Blast != 4 || at["m"].Blast != 1 || at["d"].Blast != 0 || at["b"].Blast != 0 {
		t.Errorf("blast of a %d, m %d, d %d, b %d", at["a"].Blast, at["m"].Blast, at["d"].Blast, at["b"].Blast)
	}
}
