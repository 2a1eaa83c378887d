package dag

import (
	"slices"
	"strings"
	"testing"
)

// TestCompensationsMustFit: what undoes a task is there, undoes that one alone, and has
// no more to say than what it runs.
func TestCompensationsMustFit(t *testing.T) {
	t.Parallel()
	const head = "pipeline: p\n"
	for _, tc := range []struct{ src, want string }{
		{head + "tasks:\n  a: {run: x, compensate: bb}\n  b: {run: x}\n", `3:27 tasks.a.compensate: there is no task "bb"`},
		{head + "tasks:\n  a: {run: x, compensate: a}\n", `3:27 tasks.a.compensate: task "a" cannot undo itself; name another task`},
		{head + "tasks:\n  a: {run: x, compensate: c}\n  b: {run: x, compensate: c}\n  c: {run: x}\n", `4:27 tasks.b.compensate: task "c" is called already, as the compensation of "a"`},
		{head + "tasks:\n  a: {run: x, compensate: c}\n  b: {run: x, needs: [c]}\n  c: {run: x}\n", `4:23 tasks.b.needs[0]: task "c" runs only when it is called, as the compensation of "a"; nothing can wait for it`},
		{head + "tasks:\n  a: {run: x, compensate: c}\n  c: {run: x, needs: [a]}\n", `4:22 tasks.c.needs: task "c" runs when it is called, as the compensation of "a"; remove needs`},
		{head + "tasks:\n  a: {run: x, compensate: c}\n  c: {run: x, fallback: d}\n  d: {run: x}\n", `4:25 tasks.c.fallback: task "c" runs when it is called, as the compensation of "a"; remove fallback`},
		{head + "tasks:\n  a: {run: x, compensate: c}\n  c: {run: x, on_failure: degrade}\n", `4:27 tasks.c.on_failure: task "c" runs when it is called`},
		{head + "tasks:\n  a: {run: x, compensate: c}\n  c: {run: x, compensate: d}\n  d: {run: x}\n", `4:27 tasks.c.compensate: task "c" runs when it is called`},
		{head + "tasks:\n  a: {run: x, compensate: c}\n  c: {run: x, cache: true}\n", `4:22 tasks.c.cache: task "c" runs when it is called`},
		{head + "tasks:\n  a: {run: x, cache: true, compensate: c}\n  c: {run: x}\n", `3:40 tasks.a.compensate: the result of task "a" is used again (cache)`},
		{head + "finally: f\ntasks:\n  a: {run: x}\n  f: {run: x, compensate: c}\n  c: {run: x}\n", `5:27 tasks.f.compensate: task "f" runs at the end of the job, and what it does is not undone`},
		{head + "tasks:\n  z: {run: x}\n  a: {run: x, compensate: c}\n  c: {run: x, with: \"${{ tasks.z.output }}\"}\n", `5:21 tasks.c.with: task "c" undoes "a" and sees its output and what that sees; let "a" need "z" too`},
		{head + "tasks:\n  a: {run: x, side_effects: some}\n", `3:29 tasks.a.side_effects: side_effects is true, false, or idempotent`},
	} {
		if _, got := complaints(t, "p.yaml", tc.src); len(got) != 1 || !strings.Contains(got[0], tc.want) {
			t.Errorf("%s\ngot  %q\nwant %q", tc.src, got, tc.want)
		}
	}
}

// TestACompensationSeesWhatItUndoes: the input and the output of its task, of a map the
// element's, and what that task sees, whether the task was called itself or not.
func TestACompensationSeesWhatItUndoes(t *testing.T) {
	t.Parallel()
	plan := compile(t, `pipeline: p
tasks:
  list: {run: x}
  m: {run: x, for_each: "${{ tasks.list.output }}", with: {of: "${{ item }}"}, compensate: undo-m, fallback: f}
  f: {run: x, compensate: undo-f}
  one: {run: x, with: {n: "${{ tasks.list.output[0] }}"}, compensate: undo-one}
  undo-m: {run: x, with: {of: "${{ item }}", was: "${{ tasks.m.output.id }}", all: "${{ tasks.list.output }}"}}
  undo-f: {run: x}
  undo-one: {run: x}
`)
	if !plan.Undoes() || plan.Nodes[1].Compensation != 4 || plan.Nodes[4].Undoes != 1 || !plan.Nodes[4].Mapped || !plan.Nodes[5].Mapped || plan.Nodes[6].Mapped {
		t.Errorf("%+v", plan.Nodes)
	}
	if rows := plan.Start(); len(rows) != 3 {
		t.Errorf("a job begins with %v", rows)
	}
	if plan.Stops(Key{4, 0}) || plan.Handled(Key{4, 0}, Failed) != 0 {
		t.Error("a compensation that fails stops the job, or is made good")
	}
	s := scope(plan, "", map[string]string{"list[0]": `["a","b"]`, "m[1]": `{"id":7}`})
	s.Item, s.Index = []byte(`"b"`), 1
	for node, want := range map[int32]string{4: `{"all":["a","b"],"of":"b","was":7}`, 5: `{"of":"b"}`} {
		if in, err := plan.Render(node, s); err != nil || string(in) != want {
			t.Errorf("%s is given %s, %v; want %s", plan.Nodes[node].Name, in, err, want)
		}
	}
	if in, err := plan.Render(6, s); err != nil || string(in) != `{"n":"a"}` || !plan.Lent(6) || plan.Lent(4) {
		t.Errorf("undo-one is given %s, %v", in, err)
	}
}

// TestUndoGoesBackwards: what succeeded last is undone first, by itself; elements of one
// map that ended one after the other together.
func TestUndoGoesBackwards(t *testing.T) {
	t.Parallel()
	plan := compile(t, `pipeline: p
tasks:
  a: {run: x, compensate: undo-a}
  m: {run: x, for_each: [1, 2, 3], compensate: undo-m}
  undo-a: {run: x}
  undo-m: {run: x}
`)
	left := []Done{{Key{1, 0}, 4}, {Key{0, 0}, 5}, {Key{1, 2}, 6}, {Key{1, 1}, 7}}
	var got [][]Key
	for len(left) > 0 {
		next := plan.Undo(left)
		got = append(got, next)
		left = slices.DeleteFunc(left, func(d Done) bool { return slices.Contains(next, Key{plan.Nodes[d.Node].Compensation, d.Index}) })
	}
	want := [][]Key{{{3, 1}, {3, 2}}, {{2, 0}}, {{3, 0}}}
	if !slices.EqualFunc(got, want, slices.Equal[[]Key]) {
		t.Errorf("undone: %v, want %v", got, want)
	}
	many := make([]Done, UndoAtOnce+1)
	for i := range many {
		many[i] = Done{Key{1, int32(i)}, int64(i)}
	}
	if n := len(plan.Undo(many)); n != UndoAtOnce {
		t.Errorf("%d are undone at once", n)
	}
}
