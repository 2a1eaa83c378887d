package reconcile

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag"
	"github.com/drover-dev/drover/internal/lifecycle"
)

// sound draws a live job of plain tasks as it stands when nothing is wrong.
func sound(rt *rapid.T) *Job {
	n := rapid.IntRange(2, 8).Draw(rt, "tasks")
	parents := make([][]int, n)
	src := "pipeline: drawn\ntasks:\n"
	for c := range n {
		for p := range c {
			if rapid.IntRange(0, 2).Draw(rt, "edge") == 0 {
				parents[c] = append(parents[c], p)
			}
		}
		src += fmt.Sprintf("  t%d: {run: x, needs: [", c)
		for _, p := range parents[c] {
			src += fmt.Sprintf("t%d,", p)
		}
		src += "]}\n"
	}
	p, err := dag.Parse("drawn.yaml", []byte(src))
	if err != nil {
		rt.Fatal(err)
	}
	plan, err := p.Compile()
	if err != nil {
		rt.Fatal(err)
	}
	j := &Job{Plan: plan, Live: &Counts{Total: int32(n)}}
	if rapid.Bool().Draw(rt, "paused") {
		j.Paused, j.PauseHold = true, true
	}
	succeeded := make([]bool, n)
	for i := range n {
		rec := lifecycle.Task{Node: int32(i), Queue: 1, Lane: 2, Class: drover.Normal, Status: drover.Pending, Generation: 1, Since: 1}
		rec.ID[15] = byte(i + 1)
		t := Task{Record: rec}
		row := rec
		for _, p := range parents[i] {
			if !succeeded[p] {
				row.Unmet++
			}
		}
		if row.Unmet == 0 {
			row.Status = rapid.SampledFrom([]drover.Status{drover.Queued, drover.Running, drover.RetryWait, drover.Succeeded, drover.Succeeded}).Draw(rt, "status")
			if j.Paused && row.Status == drover.Queued {
				row.Status, row.Lane = drover.Ready, lifecycle.HeldLane
			}
			if row.Status != drover.Queued && row.Status != drover.Ready {
				row.LeaseVersion, row.Attempt = 1, 1
			}
		}
		if row.Status == drover.Succeeded && (i < n-1 || j.Live.Open > 0) { // one stays open
			succeeded[i] = true
			t.Final = &row
			j.Live.Succeeded++
		} else {
			if row.Status == drover.Succeeded {
				row.Status = drover.Running
			}
			t.Rows = []Row{{Task: row}}
			j.Live.Open++
		}
		j.Tasks = append(j.Tasks, t)
	}
	return j
}

// mended is the job once its rows are what Check said, those with no parent to
// wait for having moved on.
func mended(j *Job, m Mend) *Job {
	out := *j
	out.Live, out.Tasks = &m.Counts, slices.Clone(j.Tasks)
	out.PauseHold, out.Cancel = out.Paused, out.Cancelling
	for i := range out.Tasks {
		t := &out.Tasks[i]
		var rows []Row
		for _, r := range t.Rows { // what runs goes on, but for what is dropped
			if r.Status == drover.Running && !slices.ContainsFunc(m.Drop, func(d lifecycle.Task) bool { return d.ID == r.ID && d.LeaseVersion == r.LeaseVersion }) {
				rows = append(rows, r)
			}
		}
		for _, r := range m.Rows {
			if r.ID != t.Record.ID {
				continue
			}
			if r.Status == drover.Pending && r.Unmet == 0 {
				r.Status = drover.Queued
				if out.Paused {
					r.Status, r.Lane = drover.Ready, lifecycle.HeldLane
				}
			}
			rows = append(rows, Row{Task: r})
		}
		t.Rows = rows
	}
	return &out
}

// harms are single faults of a sound job, and what each must be called. One that
// does not apply returns false.
var harms = map[string]struct {
	do   func(rt *rapid.T, j *Job, t *Task) bool
	want []Code
}{
	"a row is removed": {func(_ *rapid.T, _ *Job, t *Task) bool {
		had := len(t.Rows) > 0
		t.Rows = nil
		return had
	}, []Code{TaskNowhere}},
	"a row is there twice": {func(rt *rapid.T, _ *Job, t *Task) bool {
		if len(t.Rows) == 0 {
			return false
		}
		r := t.Rows[0]
		r.Status = rapid.SampledFrom([]drover.Status{drover.Queued, drover.RetryWait, drover.Running}).Draw(rt, "second")
		r.LeaseVersion += rapid.Int32Range(0, 2).Draw(rt, "fence")
		if r.Status == drover.Running && t.Rows[0].Status == drover.Running {
			r.LeaseVersion = t.Rows[0].LeaseVersion + 1
		}
		t.Rows = append(t.Rows, r)
		return true
	}, []Code{TaskTwice}},
	"a task that has ended stands in line": {func(rt *rapid.T, _ *Job, t *Task) bool {
		if t.Final == nil {
			return false
		}
		r := *t.Final
		r.Status = rapid.SampledFrom([]drover.Status{drover.Queued, drover.Running}).Draw(rt, "as")
		t.Rows = append(t.Rows, Row{Task: r})
		return true
	}, []Code{TaskAlive}},
	"a counter of parents is wrong": {func(rt *rapid.T, _ *Job, t *Task) bool {
		if len(t.Rows) == 0 || t.Rows[0].Status != drover.Pending {
			return false
		}
		t.Rows[0].Unmet += rapid.SampledFrom([]int32{-1, 1, 3}).Draw(rt, "by")
		return true
	}, []Code{Miscounted}},
	"a lane is wrong": {func(_ *rapid.T, _ *Job, t *Task) bool {
		if len(t.Rows) == 0 || t.Rows[0].Status != drover.Queued {
			return false
		}
		t.Rows[0].Lane = 77
		return true
	}, []Code{NobodyLooks}},
	"a counter of the job is wrong": {func(rt *rapid.T, j *Job, _ *Task) bool {
		c := *j.Live
		*rapid.SampledFrom([]*int32{&c.Total, &c.Open, &c.Succeeded, &c.Failed, &c.Cancelled, &c.Skipped}).Draw(rt, "counter") += 1
		j.Live = &c
		return true
	}, []Code{JobCounts}},
	"the job's row is gone":    {func(_ *rapid.T, j *Job, _ *Task) bool { j.Live = nil; return !j.Paused }, []Code{JobUnrecorded}},
	"the pause's hold is gone": {func(_ *rapid.T, j *Job, _ *Task) bool { was := j.PauseHold; j.PauseHold = false; return was }, []Code{HoldLost}},
	"a pause nobody flagged":   {func(_ *rapid.T, j *Job, _ *Task) bool { was := j.PauseHold; j.PauseHold = true; return !was }, []Code{HoldLost}},
}

// TestASoundJobHasNoFindingsAndAHarmedOneIsMended: nothing is found in a sound
// job; one fault is found by its name; and the job that is mended is sound.
func TestASoundJobHasNoFindingsAndAHarmedOneIsMended(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) { harm(rt, seen) })
	for name := range harms {
		if seen[name] == 0 {
			t.Errorf("%s: it never was so", name)
		}
	}
}

// FuzzHarm is the same property for the coverage-guided fuzzer.
func FuzzHarm(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(func(rt *rapid.T) { harm(rt, map[string]int{}) }))
}

func harm(rt *rapid.T, seen map[string]int) {
	j := sound(rt)
	if m := Check(*j); len(m.Findings) > 0 {
		rt.Fatalf("a sound job: %+v\n%+v", m.Findings, j.Tasks)
	}
	names := make([]string, 0, len(harms))
	for name := range harms {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for at := range j.Tasks {
			one := *j
			one.Tasks = slices.Clone(j.Tasks)
			one.Tasks[at].Rows = slices.Clone(one.Tasks[at].Rows)
			if harms[name].do(rt, &one, &one.Tasks[at]) {
				seen[name]++
				harmed(rt, name, j, &one)
			}
		}
	}
}

// harmed wants the harm to be found by its name, and the mended job to be sound.
func harmed(rt *rapid.T, name string, before, j *Job) {
	h := harms[name]
	m := Check(*j)
	for _, code := range h.want {
		if !slices.ContainsFunc(m.Findings, func(f Finding) bool { return f.Code == code }) {
			rt.Fatalf("%s: found %+v, want %s", name, m.Findings, code)
		}
	}
	again := mended(j, m)
	if left := Check(*again); len(left.Findings) > 0 {
		rt.Fatalf("%s: found %+v; mended, there still is %+v\n%s", name, m.Findings, left.Findings, fmt.Sprintf("%+v", again.Tasks))
	}
	for i := range again.Tasks {
		if was, is := before.Tasks[i].Rows, again.Tasks[i].Rows; len(was) > 0 && (len(is) == 0 || is[0].LeaseVersion < was[0].LeaseVersion) {
			rt.Fatalf("%s: the row of task %d was %+v and is %+v: its fence falls", name, i, was, is)
		}
	}
}
