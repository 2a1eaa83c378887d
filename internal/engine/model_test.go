package engine_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
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
	head, level, _ := strings.Cut(strings.TrimPrefix(name, "t"), "-f")
	n, _ := strconv.Atoi(head) // names of the model
	l, _ := strconv.Atoi(level)
	return n + 1000*l
}

// modelled is what the model says of every task that has a row.
func modelled(g *dagtest.Graph) map[string]string {
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
	for i, r := range g.Results() {
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

// TestRandomGraphsEndAsTheModelSays: the engine comes to what the model says, whatever
// the order and the batches in which tasks end. Then tasks that failed are replayed at
// random and end well: nothing waits for ever, and the audit finds nothing.
func TestRandomGraphsEndAsTheModelSays(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for seed := range uint64(*graphCases) {
			r := rand.New(rand.NewPCG(seed, 11))
			g := dagtest.Draw(r)
			w.apply(g.YAML())
			id := w.submit(drover.NewJob{Pipeline: "drawn", Input: json.RawMessage(dagtest.Input)})
			again := map[drover.TaskID]bool{}
			most := map[string]int{}
			for _, n := range g.Nodes {
				if n.Parallel > 0 {
					most[n.Name] = n.Parallel
				}
			}
			run := func() {
				var held []drover.Lease
				for {
					held = append(held, w.acquire(1+r.IntN(6))...)
					running := map[string]int{}
					for _, l := range held {
						if running[l.Name]++; most[l.Name] > 0 && running[l.Name] > most[l.Name] {
							t.Fatalf("seed %d: %d of %s run, at most %d may\n%s", seed, running[l.Name], l.Name, most[l.Name], g.YAML())
						}
					}
					if len(held) == 0 {
						break
					}
					r.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
					n := 1 + r.IntN(len(held))
					var out []drover.Outcome
					for _, l := range held[:n] {
						if diff := spoilt(g, l); diff != "" && len(again) == 0 {
							t.Fatalf("seed %d: %s\n%s", seed, diff, g.YAML())
						}
						if g.Fails(placeOf(l.Name), l.Index) && !again[l.TaskID] {
							out = append(out, failed(l, drover.ClassPermanent, "no"))
						} else {
							out = append(out, ok(l, "0"))
						}
					}
					held = held[n:]
					for _, s := range w.settle(out...) {
						if s.Err != nil {
							t.Fatalf("seed %d: %v\n%s", seed, s.Err, g.YAML())
						}
					}
				}
			}
			run()
			got := map[string]string{}
			for _, s := range strings.Fields(w.told(id)) {
				name, end, _ := strings.Cut(s, ":")
				got[name] = end
			}
			if want := modelled(g); !maps.Equal(got, want) {
				t.Fatalf("seed %d:\n%v\nby the model\n%v\n%s", seed, got, want, g.YAML())
			}
			if diff := backwards(w, id); diff != "" {
				t.Fatalf("seed %d: %s\n%s", seed, diff, g.YAML())
			}
			j := w.job(id)
			if status := map[bool]drover.Status{true: drover.Failed, false: drover.Succeeded}[g.Broken()]; j.Status != status {
				t.Fatalf("seed %d: the job is %s, by the model %s\n%s", seed, j.Status, status, g.YAML())
			}
			for range 3 {
				list, err := w.Tasks(t.Context(), w.c, engine.TaskQuery{Job: id, Limit: 1000})
				if err != nil {
					t.Fatal(err)
				}
				for _, x := range list {
					if x.Status == drover.Failed && r.IntN(2) == 0 {
						again[x.ID] = true
						if _, err := w.Replay(t.Context(), w.c, x.ID, engine.ReplayRequest{}); err != nil && drover.CodeOf(err) != drover.CodeInvalidTransition {
							t.Fatalf("seed %d: replay %s[%d]: %v\n%s", seed, x.Name, x.Index, err, g.YAML())
						}
					}
				}
				run()
				if j := w.job(id); !j.Status.Final() {
					t.Fatalf("seed %d: after replays the job is %s: %s\n%s", seed, j.Status, w.told(id), g.YAML())
				}
				w.gapless(id)
			}
		}
		w.audit()
		if spoiltLeases.Load() == 0 {
			t.Error("no task was degraded by what is above it")
		}
	})
}
