package sim

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/drover-dev/drover"
)

// node is a task of a shape, as the checks understand it: what it waits for is
// worked out here a second time, from the words of docs/pipelines.md.
type node struct {
	name string
	// needs are tasks that must have succeeded, every element of a map.
	needs []string
	// list names the task whose output the map goes over; "input" is the job's list.
	list string
	// along is the map this one goes over element by element.
	along string
	// parallel is how many elements may have started and not ended; 0 is any number.
	parallel int
	// with names a task whose output the input takes a field from.
	with string
	max  int // attempts; 0 is the default, 4
	// closes is its schedule_to_close, beats how long an attempt may be silent.
	closes, beats time.Duration
	// undoes names the task whose work this one undoes, when it is called.
	undoes string

	waits []int // the nodes it waits for whole, in order
}

func (n *node) mapped() bool { return n.list != "" || n.along != "" }

// shape is a pipeline.
type shape struct {
	name  string
	nodes []node
	at    map[string]int
}

// shapes are the pipelines of every world. The engine reads them as YAML; the
// checks read this table.
var shapes = []*shape{
	{name: "chain", nodes: []node{{name: "a", max: 3}, {name: "b", needs: []string{"a"}}, {name: "c", needs: []string{"b"}, max: 2}}},
	{name: "join", nodes: []node{{name: "a"}, {name: "b"}, {name: "c", max: 2}, {name: "d", needs: []string{"a", "b", "c"}}, {name: "e", needs: []string{"d", "a"}}}},
	{name: "fan", nodes: []node{{name: "list"}, {name: "each", list: "list"}, {name: "sum", needs: []string{"each"}}}},
	{name: "grow", nodes: []node{{name: "list"}, {name: "other"}, {name: "one", list: "list"}, {name: "two", along: "one", needs: []string{"other"}},
		{name: "three", along: "two"}, {name: "end", needs: []string{"three", "one"}}}},
	{name: "given", nodes: []node{{name: "m", list: "input"}, {name: "n", along: "m"}, {name: "b"}, {name: "z", needs: []string{"n", "b"}}}},
	{name: "nest", nodes: []node{{name: "list"}, {name: "m", list: "list"}, {name: "list2", needs: []string{"m"}}, {name: "n", list: "list2", needs: []string{"list"}}, {name: "z", needs: []string{"n"}}}},
	{name: "data", nodes: []node{{name: "a"}, {name: "b", with: "a"}, {name: "c", needs: []string{"a"}}, {name: "d", with: "b", needs: []string{"c"}}}},
	{name: "few", nodes: []node{{name: "list"}, {name: "each", list: "list", parallel: 2}, {name: "then", along: "each", parallel: 1}, {name: "sum", needs: []string{"then"}}}},
	{name: "timed", nodes: []node{{name: "a", beats: 1200 * time.Millisecond, max: 3}, {name: "b", needs: []string{"a"}, closes: 7 * time.Second}, {name: "c", needs: []string{"b"}, closes: 5 * time.Second, beats: time.Second}}},
	{name: "saga", nodes: []node{{name: "list"}, {name: "m", list: "list", max: 2}, {name: "b", needs: []string{"m"}}, {name: "c", needs: []string{"b"}, max: 1},
		{name: "undo-m", undoes: "m", max: 2}, {name: "undo-b", undoes: "b"}, {name: "undo-list", undoes: "list"}}},
}

func init() {
	for _, s := range shapes {
		s.at = map[string]int{}
		for i := range s.nodes {
			s.at[s.nodes[i].name] = i
		}
		for i := range s.nodes { // written in the order they run
			n := &s.nodes[i]
			seen := map[int]bool{}
			for _, p := range append(append([]string(nil), n.needs...), n.list, n.with) {
				j, ok := s.at[p]
				if !ok {
					continue
				}
				seen[j] = true
			}
			for j := range s.nodes {
				if seen[j] {
					n.waits = append(n.waits, j)
				}
			}
		}
	}
}

// yaml is the shape as a definition.
func (s *shape) yaml() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "pipeline: %s\ndefaults: {retry: {backoff: {initial: 300ms, factor: 3, max: 4s}}}\ntasks:\n", s.name)
	for i := range s.nodes {
		n := &s.nodes[i]
		fmt.Fprintf(&b, "  %s:\n    run: %s\n    queue: %s\n", n.name, kindOf(i), queueOf(i))
		if len(n.needs) > 0 {
			fmt.Fprintf(&b, "    needs: [%s]\n", strings.Join(n.needs, ", "))
		}
		switch {
		case n.list == "input":
			b.WriteString("    for_each: \"${{ input.list }}\"\n")
		case n.list != "":
			fmt.Fprintf(&b, "    for_each: \"${{ tasks.%s.output.list }}\"\n", n.list)
		case n.along != "":
			fmt.Fprintf(&b, "    for_each: %s\n", n.along)
		}
		if n.parallel > 0 {
			fmt.Fprintf(&b, "    max_parallel: %d\n", n.parallel)
		}
		if n.with != "" {
			fmt.Fprintf(&b, "    with: {v: \"${{ tasks.%s.output.v }}\"}\n", n.with)
		}
		for _, u := range s.nodes {
			if u.undoes == n.name {
				fmt.Fprintf(&b, "    compensate: %s\n", u.name)
			}
		}
		if n.closes > 0 {
			fmt.Fprintf(&b, "    schedule_to_close: %s\n", n.closes)
		}
		if n.beats > 0 {
			fmt.Fprintf(&b, "    heartbeat: %s\n", n.beats)
		}
		if n.max > 0 {
			fmt.Fprintf(&b, "    retry: {max_attempts: %d}\n", n.max)
		}
	}
	return []byte(b.String())
}

// The policy of every shape.
var shapeRetry = drover.Retry{Initial: drover.Duration(300 * time.Millisecond), Factor: 3, Max: drover.Duration(4 * time.Second)}

var queues = []string{"cpu", "gpu"}

func queueOf(i int) string { return queues[i%2] }
func kindOf(i int) string  { return []string{"x", "y", "z"}[i%3] }

// head returns the map at the head of a chain of element-wise maps.
func (s *shape) head(i int) int {
	for s.nodes[i].along != "" {
		i = s.at[s.nodes[i].along]
	}
	return i
}

// output is what the handler of a task returns: always the same, so that the
// checks know how long each list is.
func output(seed uint64, tag int, name string, index int) json.RawMessage {
	h := mix(seed, uint64(tag), uint64(len(name)), uint64(name[0]), uint64(name[len(name)-1]), uint64(index))
	if !strings.HasPrefix(name, "list") { // what undoes one neither
		if h%23 == 0 {
			return json.RawMessage(`{"w":1}`) // what takes v from it finds nothing
		}
		return json.RawMessage(fmt.Sprintf(`{"v":%d}`, h%1000))
	}
	if name == "list" && broken(seed, tag) {
		return json.RawMessage(`{"list":7}`)
	}
	return listOf(elements(seed, tag, name))
}

// elements is how many elements a task's list has.
func elements(seed uint64, tag int, name string) int {
	return []int{3, 2, 1, 4, 0, 2, 3}[mix(seed, uint64(tag), uint64(name[len(name)-1]), 77)%7]
}

func listOf(n int) json.RawMessage {
	list := make([]int, n)
	for i := range list {
		list[i] = i * 10
	}
	b, _ := json.Marshal(struct { // numbers always encode
		List []int `json:"list"`
		V    int   `json:"v"`
	}{list, n})
	return b
}

// broken says that the list is none: the map over it cannot expand.
func broken(seed uint64, tag int) bool { return mix(seed, uint64(tag), 99)%29 == 0 }
