package dag

import (
	"strings"
	"testing"

	"github.com/drover-dev/drover"
)

// TestDormantTasksMustFit: what is called must be there, be called once, and wait for
// nothing.
func TestDormantTasksMustFit(t *testing.T) {
	t.Parallel()
	const head = "pipeline: p\n"
	for _, tc := range []struct{ src, want string }{
		{head + "tasks:\n  a: {run: x, fallback: bb}\n  b: {run: x}\n", `3:25 tasks.a.fallback: there is no task "bb"`},
		{head + "tasks:\n  a: {run: x, fallback: a}\n", `3:25 tasks.a.fallback: task "a" cannot stand in for itself`},
		{head + "tasks:\n  s: {run: x}\n  a: {run: x, fallback: b}\n  b: {run: x, fallback: a}\n", `4:25 tasks.a.fallback: these tasks stand in for each other: a → b → a`},
		{head + "tasks:\n  a: {run: x, fallback: c}\n  b: {run: x, fallback: c}\n  c: {run: x}\n", `4:25 tasks.b.fallback: task "c" is called already, as the fallback of "a"`},
		{head + "tasks:\n  a: {run: x, fallback: b}\n  b: {run: x}\n  c: {run: x, needs: [b]}\n", `5:23 tasks.c.needs[0]: task "b" runs only when it is called, as the fallback of "a"; nothing can wait for it`},
		{head + "tasks:\n  a: {run: x, fallback: b}\n  b: {run: x}\n  c: {run: x, with: \"${{ tasks.b.output }}\"}\n", `5:21 tasks.c.with: task "b" runs only when it is called`},
		{head + "tasks:\n  z: {run: x}\n  a: {run: x, fallback: b}\n  b: {run: x, needs: [z]}\n", `5:22 tasks.b.needs: task "b" runs when it is called, as the fallback of "a"; remove needs`},
		{head + "tasks:\n  a: {run: x, fallback: b}\n  b: {run: x, if: \"input.x\"}\n", `4:19 tasks.b.if: task "b" runs when it is called`},
		{head + "tasks:\n  a: {run: x, fallback: b}\n  b: {run: x, for_each: [1]}\n", `4:25 tasks.b.for_each: task "b" runs when it is called`},
		{head + "tasks:\n  z: {run: x}\n  a: {run: x, fallback: b}\n  b: {run: x, with: \"${{ tasks.z.output }}\"}\n", `5:21 tasks.b.with: task "b" stands in for "a" and sees what that sees; let "a" need "z" too`},
		{head + "tasks:\n  a: {run: x, on_failure: degrade}\n  b: {run: x, with: \"${{ tasks.a.output }}\"}\n", `4:21 tasks.b.with: task "a" may have failed when "b" runs (on_failure: degrade), and then there is no output; give "a" a default`},
		{head + "tasks:\n  a: {run: x, on_failure: degraded}\n", `3:27 tasks.a.on_failure: "degraded" is not a policy; did you mean "degrade"?`},
		{head + "finally: b\ntasks:\n  a: {run: x}\n  b: {run: x, with: \"${{ tasks.a.output }}\"}\n", `5:21 tasks.b.with: task "a" may not have succeeded when "b" runs, and then there is no output`},
		{head + "finally: [c]\ntasks:\n  a: {run: x}\n", `2:11 finally[0]: there is no task "c"`},
		{head + "rescue: b\nfinally: [b]\ntasks:\n  a: {run: x}\n  b: {run: x}\n", `3:11 finally[0]: task "b" is called already, as the rescue`},
		{head + "tasks:\n  a: {run: x, backup: bb}\n  b: {run: x}\n", `3:23 tasks.a.backup: there is no task "bb"`},
		{head + "tasks:\n  a: {run: x, backup: a}\n", `3:23 tasks.a.backup: task "a" cannot run beside itself`},
		{head + "tasks:\n  s: {run: x}\n  a: {run: x, backup: b}\n  b: {run: x, backup: a}\n", `5:23 tasks.b.backup: these tasks call each other: a → b → a; remove one`},
		{head + "tasks:\n  s: {run: x}\n  a: {run: x, backup: b}\n  b: {run: x, fallback: a}\n", `4:23 tasks.a.backup: these tasks call each other: b → a → b; remove one`},
		{head + "tasks:\n  a: {run: x, backup: b}\n  b: {run: x, fallback: c}\n  c: {run: x}\n", `4:25 tasks.b.fallback: task "b" runs when it is called, as the backup of "a"; remove fallback`},
		{head + "tasks:\n  a: {run: x, backup: b}\n  b: {run: x, output: {}}\n", `4:23 tasks.b.output: task "b" runs when it is called, as the backup of "a"; remove output`},
		{head + "tasks:\n  a: {run: x, backup: b}\n  b: {run: x}\n  c: {run: x, needs: [b]}\n", `5:23 tasks.c.needs[0]: task "b" runs only when it is called, as the backup of "a"; nothing can wait for it`},
		{head + "tasks:\n  a: {run: x, backup: b, fallback: b}\n  b: {run: x}\n", `3:23 tasks.a.backup: task "b" is called already, as the fallback of "a"`},
		{head + "tasks:\n  z: {run: x}\n  a: {run: x, backup: b}\n  b: {run: x, with: \"${{ tasks.z.output }}\"}\n", `5:21 tasks.b.with: task "b" runs beside "a" and sees what that sees; let "a" need "z" too`},
		{head + "tasks:\n  a: {pipeline: q, backup: b}\n  b: {run: x}\n", `3:28 tasks.a.backup: task "a" runs a pipeline, whose own tasks have backup; remove it`},
		{head + "finally: [a]\ntasks:\n  a: {run: x}\n", `definition: every task runs only when it is called`},
	} {
		code, got := complaints(t, "p.yaml", tc.src)
		if len(got) != 1 || !strings.Contains(got[0], tc.want) {
			t.Errorf("%s\ngot  %q\nwant %q", tc.src, got, tc.want)
		}
		if strings.Contains(tc.want, "each other") != (code == drover.CodeCycle) {
			t.Errorf("%s: %s", tc.src, code)
		}
	}
}

// TestDormantTasksAreNoRowsToBeginWith, and a fallback is of the family of its task.
func TestDormantTasksAreNoRowsToBeginWith(t *testing.T) {
	t.Parallel()
	plan := compile(t, `pipeline: p
rescue: r
finally: [f]
tasks:
  m: {run: x, for_each: [1, 2], with: {i: "${{ item }}"}, fallback: b}
  n: {run: x, for_each: m}
  b: {run: y}
  r: {run: x}
  f: {run: x}
`)
	if rows := plan.Start(); len(rows) != 2 {
		t.Errorf("start = %v", rows)
	}
	if sinks := plan.Sinks(); len(sinks) != 1 || sinks[0] != 1 {
		t.Errorf("sinks = %v", sinks)
	}
	rows, as, called := plan.Below(Key{2, 1}, Succeeded)
	if len(rows) != 1 || rows[0] != (Key{1, 1}) || as != Succeeded || called {
		t.Errorf("below what stands in for m[1]: %v %v %v", rows, as, called)
	}
	if _, _, called = plan.Below(Key{0, 1}, Failed); !called {
		t.Error("a failure calls no fallback")
	}
	if _, _, called = plan.Below(Key{0, 1}, Blocked); called {
		t.Error("a task that did not run calls its fallback")
	}
	s := scope(plan, "", nil)
	s.Item, s.Index = []byte(`7`), 1
	if in, err := plan.Render(2, s); err != nil || string(in) != `{"i":7}` {
		t.Errorf("a fallback is given %s, %v", in, err)
	}
	if plan.Stops(Key{0, 0}) || !plan.Stops(Key{2, 0}) || plan.Stops(Key{4, 0}) || plan.Handled(Key{2, 0}, Succeeded) != 1 {
		t.Errorf("stops: %v %v %v, handled %d", plan.Stops(Key{0, 0}), plan.Stops(Key{2, 0}), plan.Stops(Key{4, 0}), plan.Handled(Key{2, 0}, Succeeded))
	}
}
