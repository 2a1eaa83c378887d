package engine_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/dag/dagtest"
	"github.com/drover-dev/drover/internal/engine"
)

var graphCases = flag.Int("graphs", 40, "how many random graphs TestRandomGraphsEndAsTheModelSays runs on each database")

// placeOf reads "t3-f1" and an index as the model has them: task 3, or 1000 more for
// each fallback.
func placeOf(name string) int {
	if of, undoes := strings.CutSuffix(name, "-c"); undoes {
		return placeOf(of) + dagtest.Undoes
	}
	if of, beside := strings.CutSuffix(name, "-b"); beside {
		return placeOf(of) + dagtest.Spares
	}
	head, level, _ := strings.Cut(strings.TrimPrefix(name, "t"), "-f")
	n, _ := strconv.Atoi(head) // names of the model
	l, _ := strconv.Atoi(level)
	return n + 1000*l
}

// modelled is what the model says of every task that has a row.
func modelled(g *dagtest.Graph, results []dagtest.Result) map[string]string {
	words := map[dagtest.End]string{"ok": "ok", "fail": "fail", "broke": "fail", "skip": "skip", "block": "skip"}
	out := map[string]string{}
	put := func(i, index int, mapped bool, e dagtest.End) {
		name := func(n string) string {
			if mapped {
				return fmt.Sprintf("%s[%d]", n, index)
			}
			return n
		}
		if e == "empty" {
			return
		}
		out[name(g.Nodes[i].Name)] = words[e]
		if end := g.Spared(i, index, e); end != "" {
			out[name(g.Nodes[i].Name+"-b")] = string(end)
		}
		if words[e] != "fail" || index < 0 {
			return
		}
		for level := 1; level <= g.Nodes[i].Backups; level++ {
			end := "ok"
			if g.Fails(i+1000*level, index) {
				end = "fail"
			}
			out[name(fmt.Sprintf("%s-f%d", g.Nodes[i].Name, level))] = end
			if end == "ok" {
				return
			}
		}
	}
	for i, r := range results {
		mapped := g.Root(i) >= 0
		switch {
		case r.One != "" && mapped:
			put(i, -1, true, r.One)
		case r.One != "":
			put(i, 0, false, r.One)
		}
		for k, e := range r.Elements {
			put(i, k, true, e)
		}
	}
	for _, u := range g.ToUndo() {
		name := g.Nodes[u.Node].Name + "-c"
		if g.Root(u.Node) >= 0 {
			name = fmt.Sprintf("%s[%d]", name, u.Index)
		}
		out[name] = map[bool]string{true: "fail", false: "ok"}[g.Fails(u.Node+dagtest.Undoes, u.Index)]
	}
	return out
}

// spoiltLeases counts the leases that spoilt has found something in.
var spoiltLeases atomic.Int64

// spoilt tells where a lease does not say by what its task is degraded.
func spoilt(g *dagtest.Graph, l drover.Lease) string {
	i := placeOf(l.Name) % 1000
	element := l.Index
	if g.Root(i) < 0 {
		element = dagtest.Unexpanded
	}
	want := g.Spoils(i, element)
	if !g.Patient(i) || len(want) > 20 {
		return ""
	}
	if len(want) > 0 {
		spoiltLeases.Add(1)
	}
	got := map[dagtest.Row]bool{}
	for _, d := range l.DegradedBy {
		got[dagtest.Row{Node: placeOf(d.Task), Index: d.Index}] = true
	}
	if !maps.Equal(got, want) {
		return fmt.Sprintf("%s[%d] is told that %v were made good above it, by the model %v", l.Name, l.Index, got, want)
	}
	return ""
}

// backwards tells where a job did not undo what it did in the reverse order of
// completion, but for elements of one map.
func backwards(w *world, id drover.JobID) string {
	w.t.Helper()
	type what struct {
		Name  string
		Index int
	}
	at := map[what]int64{}
	var before what
	for _, e := range w.gapless(id) {
		var x what
		if json.Unmarshal(e.Data, &x) != nil || !strings.HasPrefix(string(e.Type), "task.") || e.TaskID.IsZero() {
			continue
		}
		of, undoes := strings.CutSuffix(x.Name, "-c")
		if !undoes {
			at[x] = e.Seq
			continue
		}
		x.Name = of
		if before.Name != "" && before.Name != x.Name && at[before] < at[x] {
			return fmt.Sprintf("%v was undone before %v, which ended after it", before, x)
		}
		before = x
	}
	return ""
}

// drawn is a job of the model.
type drawn struct {
	w       *world
	g       *dagtest.Graph
	r       *rand.Rand
	seed    uint64
	id      drover.JobID
	results []dagtest.Result
	again   map[drover.TaskID]bool // end well, whatever the model says
	between func()                 // now and then while it runs
	mix     map[string]int
}

// run has what runs end until nothing does, in random order and batches.
func (d *drawn) run() {
	var held []drover.Lease
	for {
		d.w.number++
		got, err := d.w.Acquire(d.w.t.Context(), d.w.c, drover.Acquire{Session: d.w.session, Max: 1 + d.r.IntN(6), Number: d.w.number})
		if err != nil {
			d.w.t.Fatalf("seed %d: %v\n%s\n%s", d.seed, err, d.history(), d.g.YAML())
		}
		held = append(held, got...)
		d.few(held)
		if len(held) == 0 {
			break
		}
		if d.between != nil && d.r.IntN(3) == 0 {
			d.between()
		}
		d.r.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
		n := 1 + d.r.IntN(len(held))
		var out []drover.Outcome
		for _, l := range held[:n] {
			if diff := spoilt(d.g, l); diff != "" && d.results == nil && len(d.g.Marked) == 0 {
				d.w.t.Fatalf("seed %d: %s\n%s", d.seed, diff, d.g.YAML())
			}
			if d.g.Fails(placeOf(l.Name), l.Index) && !d.again[l.TaskID] {
				out = append(out, failed(l, drover.ClassPermanent, "no"))
			} else {
				out = append(out, ok(l, "0"))
			}
		}
		held = held[n:]
		r := d.w.Settle(d.w.t.Context(), []engine.Settlement{{Caller: d.w.c, Session: d.w.session, Outcomes: out}})
		if r[0].Err != nil {
			d.w.t.Fatalf("seed %d: %v: %v\n%s\n%s", d.seed, r[0].Err, out, d.history(), d.g.YAML())
		}
		for _, s := range r[0].Settled {
			if s.Err != nil && (d.between == nil || drover.CodeOf(s.Err) != drover.CodeLeaseLost) { // it was marked meanwhile
				d.w.t.Fatalf("seed %d: %v\n%s", d.seed, s.Err, d.g.YAML())
			}
		}
	}
}

// few holds leases to max_parallel. A mark may have ended one.
func (d *drawn) few(held []drover.Lease) {
	running := map[string]int{}
	for _, l := range held {
		i := placeOf(l.Name)
		if running[l.Name]++; i < 1000 && d.g.Nodes[i].Parallel > 0 && running[l.Name] > d.g.Nodes[i].Parallel {
			d.w.t.Fatalf("seed %d: %d of %s run, at most %d may\n%s", d.seed, running[l.Name], l.Name, d.g.Nodes[i].Parallel, d.g.YAML())
		}
	}
}

// history is what has happened to the job, for a failure.
func (d *drawn) history() string {
	events, err := d.w.Events(d.w.t.Context(), d.w.c, d.id, 0, 1000)
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintf(&b, "%d %s %s %s\n", e.Seq, e.Type, e.TaskID, e.Data)
	}
	return b.String()
}

func (d *drawn) tasks() []drover.Task {
	list, err := d.w.Tasks(d.w.t.Context(), d.w.c, engine.TaskQuery{Job: d.id, Limit: 1000})
	if err != nil {
		d.w.t.Fatal(err)
	}
	return slices.DeleteFunc(list, func(x drover.Task) bool { return x.Gone })
}

// compare holds the job to the model.
func (d *drawn) compare(after string) {
	d.w.t.Helper()
	got := map[string]string{}
	for _, s := range strings.Fields(d.w.told(d.id)) {
		name, end, _ := strings.Cut(s, ":")
		got[name] = end
	}
	for name := range got { // what was called before and was not called since is as it was
		if strings.Contains(name, "-f") && d.mix != nil && modelled(d.g, d.results)[name] == "" {
			d.w.t.Errorf("seed %d: after %s: %s was called", d.seed, after, name)
		}
	}
	if want := modelled(d.g, d.results); !maps.Equal(got, want) {
		d.w.t.Fatalf("seed %d: after %s:\n%v\nby the model\n%v\n%s\n%s", d.seed, after, got, want, d.g.YAML(), d.history())
	}
	j := d.w.job(d.id)
	if status := map[bool]drover.Status{true: drover.Failed, false: drover.Succeeded}[d.g.Unhandled(d.results)]; j.Status != status {
		d.w.t.Fatalf("seed %d: after %s the job is %s, by the model %s\n%s", d.seed, after, j.Status, status, d.g.YAML())
	}
	d.w.gapless(d.id)
}

// mark says of tasks that have not started how they end.
func (d *drawn) mark() {
	d.g.Marked = map[dagtest.Row]dagtest.End{}
	for _, x := range d.tasks() {
		i := placeOf(x.Name)
		if i >= 1000 || x.Mapped || x.Status.Final() || d.r.IntN(5) > 0 {
			continue
		}
		end := []dagtest.End{"ok", "fail", "skip"}[d.r.IntN(3)]
		status := map[dagtest.End]drover.Status{"ok": drover.Succeeded, "fail": drover.Failed, "skip": drover.Skipped}[end]
		if _, err := d.w.Mark(d.w.t.Context(), d.w.c, x.ID, engine.MarkRequest{Request: engine.Request{Reason: "drawn"}, Status: status}); err != nil {
			if t, _ := d.w.Task(d.w.t.Context(), d.w.c, x.ID); t.Status.Final() {
				continue // an earlier mark ended it
			}
			d.w.t.Fatalf("seed %d: mark %s: %v\n%s", d.seed, x.Name, err, d.g.YAML())
		}
		d.g.Marked[dagtest.Row{Node: i}] = end
		d.mix["marks "+string(end)]++
	}
}

// rerun runs tasks again, drawn at random, as the model says.
func (d *drawn) rerun() {
	if d.g.Undoes() {
		return // a job that has undone what it did does not run again
	}
	t := d.w.t
	rows := map[dagtest.Row]bool{}
	var from []string
	for _, x := range d.tasks() {
		if i := placeOf(x.Name); i < 1000 && d.r.IntN(5) == 0 {
			rows[dagtest.Row{Node: i, Index: x.Index}] = true
			from = append(from, x.ID.String())
		}
	}
	if len(from) == 0 {
		return
	}
	a := d.g.Rerun(d.results, rows)
	req := engine.RerunRequest{From: from, Request: engine.Request{Reason: "drawn"}}
	plan := req
	plan.DryRun = true
	preview, err := d.w.Rerun(t.Context(), d.w.c, d.id, plan)
	if err == nil {
		_, err = d.w.Rerun(t.Context(), d.w.c, d.id, req)
	}
	switch {
	case drover.CodeOf(err) == drover.CodeInvalidTransition: // it would be skipped again, say
		d.mix["reruns refused"]++
		if a.Bounded(d.g) {
			d.mix["reruns refused for maps with bounds"]++
		}
		return
	case err != nil:
		t.Fatalf("seed %d: rerun %v: %v\n%s", d.seed, rows, err, d.g.YAML())
	case a.Bounded(d.g):
		t.Fatalf("seed %d: rerun %v: it reaches a map with bounds, and nobody says so\n%s", d.seed, rows, d.g.YAML())
	case a.Parted:
		t.Fatalf("seed %d: rerun %v: a map would have to expand alone, and nobody says so\n%s", d.seed, rows, d.g.YAML())
	}
	if stays := map[dagtest.Row]bool{}; true {
		for _, p := range preview.Tasks {
			for k := p.First; k <= p.Last && p.Does == drover.RerunStays && placeOf(p.Task) < 1000; k++ {
				stays[dagtest.Row{Node: placeOf(p.Task), Index: k}] = true
			}
		}
		for row := range a.Rows {
			if stays[row] {
				t.Fatalf("seed %d: rerun %v: by the preview %v stays\n%s", d.seed, rows, row, d.g.YAML())
			}
		}
	}
	for row := range d.g.Marked {
		if a.Has(row.Node, row.Index) {
			delete(d.g.Marked, row)
		}
	}
	d.g.Fails = a.FailsAfter(d.g.Fails, dagtest.DrawFails(d.r))
	d.results = d.g.After(d.results, a)
	d.run()
	d.compare(fmt.Sprintf("a rerun of %v", rows))
	d.mix["reruns"]++
	d.mix["rows that began anew"] += len(a.Rows)
}

// meddle marks a task or runs one again, whatever becomes of that.
func (d *drawn) meddle() {
	list := d.tasks()
	x := list[d.r.IntN(len(list))]
	var err error
	what := "mark"
	if d.r.IntN(2) == 0 {
		what = "rerun"
		_, err = d.w.Rerun(d.w.t.Context(), d.w.c, d.id, engine.RerunRequest{From: []string{x.ID.String()}})
	} else {
		_, err = d.w.Mark(d.w.t.Context(), d.w.c, x.ID, engine.MarkRequest{Request: engine.Request{Reason: "drawn"}, Status: []drover.Status{drover.Succeeded, drover.Failed, drover.Skipped}[d.r.IntN(3)]})
	}
	switch {
	case err == nil:
		d.mix[what+" on the way"]++
	case drover.CodeOf(err) == drover.CodeInvalidTransition:
		d.mix[what+" on the way refused"]++
	default:
		d.w.t.Fatalf("seed %d: %s %s[%d]: %v\n%s", d.seed, what, x.Name, x.Index, err, d.g.YAML())
	}
}

// TestRandomGraphsEndAsTheModelSays: the engine comes to what the model says, whatever
// the order and the batches in which tasks end, when tasks are marked before they run,
// and when branches run again. Then tasks that failed are replayed, and any are marked
// and run again, at random moments: nothing waits for ever, and the audit finds nothing.
func TestRandomGraphsEndAsTheModelSays(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		mix := map[string]int{}
		for seed := range uint64(*graphCases) {
			r := rand.New(rand.NewPCG(seed, 11))
			g := dagtest.Draw(r)
			w.apply(g.YAML())
			w.open() // the one before may have run out
			d := &drawn{w: w, g: g, r: r, seed: seed, id: w.submit(drover.NewJob{Pipeline: "drawn", Input: json.RawMessage(dagtest.Input)}), again: map[drover.TaskID]bool{}, mix: mix}
			if r.IntN(2) == 0 && !w.job(d.id).Status.Final() {
				d.mark()
			}
			d.run()
			d.results = g.Results()
			d.compare("its first run")
			if diff := backwards(w, d.id); diff != "" {
				t.Fatalf("seed %d: %s\n%s", seed, diff, g.YAML())
			}
			for range 2 {
				d.rerun()
			}
			for range 3 {
				for _, x := range d.tasks() {
					if x.Status == drover.Failed && r.IntN(2) == 0 {
						d.again[x.ID] = true
						if _, err := w.Replay(t.Context(), w.c, x.ID, engine.ReplayRequest{}); err != nil && drover.CodeOf(err) != drover.CodeInvalidTransition {
							t.Fatalf("seed %d: replay %s[%d]: %v\n%s", seed, x.Name, x.Index, err, g.YAML())
						}
					}
				}
				d.meddle()
				d.between = d.meddle
				d.run()
				d.between = nil
				if j := w.job(d.id); !j.Status.Final() {
					t.Fatalf("seed %d: after replays the job is %s: %s\n%s", seed, j.Status, w.told(d.id), g.YAML())
				}
				w.gapless(d.id)
			}
			if seed%10 == 9 {
				w.audit()
			}
		}
		w.audit()
		if spoiltLeases.Load() == 0 {
			t.Error("no task was degraded by what is above it")
		}
		if list := w.diverging(false); len(list) > 0 {
			t.Errorf("rows and records differ: %+v", list)
		}
		for _, what := range slices.Sorted(maps.Keys(mix)) {
			t.Logf("%-40s %d", what, mix[what])
		}
		for _, what := range []string{"reruns", "marks ok", "marks fail", "marks skip", "mark on the way", "rerun on the way"} {
			if mix[what] == 0 {
				t.Errorf("there were no %s", what)
			}
		}
	})
}
