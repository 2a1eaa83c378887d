package dag

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/drover-dev/drover"
)

// Defaults of a task that says nothing itself.
const (
	DefaultQueue   = "default"
	DefaultTimeout = time.Hour
)

// DefaultRetry is what holds for every field of a retry that nobody set.
var DefaultRetry = drover.Retry{
	MaxAttempts: 4,
	Initial:     drover.Duration(time.Second),
	Factor:      2,
	Max:         drover.Duration(time.Minute),
}

// Plan is a compiled pipeline. It is immutable and safe for concurrent use.
type Plan struct {
	// Name is the pipeline's name; of a Kind job, its kind.
	Name string
	// Nodes are in the order of the definition; a Key's Node is an index here.
	Nodes []Node
	// Edges are the dependencies that the definition names, by child and then by
	// parent; Parents of the nodes may have more of them, for the order through
	// empty maps.
	Edges []Edge

	// OnFailure is what becomes of the rest when a task has failed for good.
	OnFailure OnFailure
	// MaxTasks is how many tasks a job may have, its maps expanded; 0 is as many as any.
	MaxTasks int
	// Rescue is the task that runs when the others have ended and a failure was not
	// made good, or -1; Finally are those that run at the end, whatever happened.
	Rescue  int32
	Finally []int32

	order     []int32    // a topological order
	families  [][]int32  // per map over a list: what expands with it
	stands    []int32    // per node: the task that it stands in for; nil while they are being found
	before    []int32    // per node: how many failures come before it then
	calm      []bool     // per node: no row below ends or expands by a success of it
	taken     []bool     // per node: a task below can run on its failure
	hears     []bool     // per node: a task above it may be skipped
	skippable []bool     // per node: it may be skipped itself
	closes    []bool     // per node: it runs when the others have ended
	bounded   []int32    // maps with max_parallel or min_success
	heirs     [][]int32  // per node with min_success: the maps that go over it and have one too
	undoes    bool       // a task has a compensation
	calls     bool       // a task runs a pipeline
	spoils    [][]Ref    // per node: failures above it that may have been made good; nil if no task's can be
	lent      []bool     // per node: it undoes or backs another and is given what that was given
	with      []template // per node; nil where the task has no `with`
	each      []template // per node; nil where the task is no map over a list
	schema    *schema    // nil when the pipeline declares no input

	gives []*schema // per node; nil where the task declares no output

	conds []*condition // per node; nil where nothing but the rule decides
	keys  []*condition // per node: its concurrency key; nil where it has none

	inputRefs, eachRefs, condRefs, keyRefs [][]Ref // per node: what Render, Elements, If and ConcurrencyKey need
}

// Node is one task of the definition.
type Node struct {
	Name string
	// Kind is the handler's name, `run` in the definition.
	Kind  string
	Queue string
	// Class is zero when the definition says nothing: the job's class holds.
	Class drover.Class
	// Mapped says that the node becomes one row per element.
	Mapped bool
	// Over is the map this node goes over element by element, or -1.
	Over    int32
	Timeout time.Duration
	// ScheduleToClose bounds all attempts and waits, Heartbeat the silence of one; 0 is no bound.
	ScheduleToClose, Heartbeat time.Duration
	// Retry has every field set.
	Retry drover.Retry
	// Circuit guards what the task uses; may be empty.
	Circuit string
	// Asks are what it takes of limits and asks of its worker.
	Asks Asks
	// Artifact is the kind declared for what the task makes; may be empty.
	Artifact string
	// When is the rule by which the rows above let this one run.
	When Rule
	// OnFailure is what becomes of the rest of the job when this task has failed for
	// good, unless it Degrades: then the tasks below go on as if it had succeeded, and
	// the job is degraded.
	OnFailure OnFailure
	Degrades  bool
	// Batch is how many elements of its list one task of a map gets, as a list; 0 is one,
	// by itself.
	Batch int
	// MaxParallel is how many elements of a map may run at one time; 0 is all.
	MaxParallel int32
	// MinSuccess is how many elements of a map must succeed.
	MinSuccess Share
	// MaxElements is how long the list of a map may be.
	MaxElements int
	// Fallback is the task that runs in the place of this one when it has failed for
	// good, Primary the one that this is called for; or -1. A task is Dormant when its
	// rows are made only once it is called.
	Fallback, Primary int32
	Dormant           bool
	// Backup is the task that runs beside this one once its first attempt has failed, Backs
	// the one that this is called for so; or -1. Whichever gives a result first, it is that
	// of the task; nothing waits for its backup.
	Backup, Backs int32
	// Compensation is the task that undoes this one when the job ends badly after this
	// has succeeded, Undoes the one that this is called to undo; or -1.
	Compensation, Undoes int32
	// Sub is the pipeline that the task runs as a job of its own, NAME or NAME@VERSION;
	// empty for a task that a worker runs. Abandon says that the job goes on when the
	// task's own is stopped.
	Sub     string
	Abandon bool
	// Cache says that a result of the same identity stands in for running the task.
	Cache bool
	// Version is that of the handler, for the identity; may be empty.
	Version string
	// Default is the output that stands in where the task has none; nil is nothing.
	Default json.RawMessage
	// Parents and ChildrenNodes are the nodes before and after this one, each
	// once and in ascending order.
	Parents, ChildrenNodes []int32

	// root is the map whose length decides how many rows this map has: itself,
	// or the first of the element-wise chain. -1 for a plain node. The maps
	// with one root are a family: between them element i waits for element i.
	root int32
	// listed is the number of elements of a for_each that is a list or a range, where
	// the definition has it; or -1.
	listed int
	// ranged says that for_each is a range.
	ranged bool
}

// Edge is a dependency between two nodes.
type Edge struct {
	Parent, Child int32
	// Data says that the child uses the parent's output; otherwise it only waits.
	Data bool
	// Same says that element i waits for element i: both are maps of one family.
	Same bool
}

// OnFailure is what becomes of a job's other tasks when one has failed for good.
type OnFailure uint8

// The policies.
const (
	FailFast      OnFailure = iota // nothing starts any more, and what runs is stopped
	FinishRunning                  // nothing starts any more
	Continue                       // what does not wait for it goes on
)

var policyNames = []string{"fail_fast", "finish_running", "continue"}

// String names the policy as a definition does.
func (f OnFailure) String() string { return policyNames[f] }

// Caches reports whether a task of the plan uses results again.
func (p *Plan) Caches() bool {
	for i := range p.Nodes {
		if p.Nodes[i].Cache {
			return true
		}
	}
	return false
}

// UsesInput reports whether what a task of node gets depends on the job's input.
func (p *Plan) UsesInput(node int32) bool {
	if p.with[node] == nil && !p.Nodes[node].Mapped {
		return true // the job's input is its own
	}
	for _, t := range []template{p.with[node], p.each[node]} {
		for _, pc := range t {
			if pc.e != nil && pc.e.root == rootInput {
				return true
			}
		}
	}
	return false
}

// Making is what the result of a task of node depends on, with this input. Run
// tells a deliberate repetition from the others.
func (p *Plan) Making(node int32, input json.RawMessage, run string) Making {
	n := &p.Nodes[node]
	return Making{Pipeline: p.Name, Task: n.Name, Kind: n.Kind, Version: n.Version, Output: cmp.Or(n.Artifact, "output"), Parameters: input, Run: run}
}

// ends tells how a row of node may end without running when a row above ends as o.
func (p *Plan) ends(node int32, o Outcome) []Outcome {
	if o == Succeeded && !p.hears[node] && !p.Nodes[node].When.skips() {
		return nil
	}
	return p.Nodes[node].When.ends(o)
}

// Hears reports whether a task above this one may be skipped, by its definition.
func (p *Plan) Hears(node int32) bool { return p.hears[node] }

// Closes reports whether a task runs when the others have ended: the rescue, and what
// runs finally.
func (p *Plan) Closes(node int32) bool { return p.closes[node] }

// Stops reports whether a job stops when a row has failed for good: the policy of its
// task says so, no task below can run on that failure, and it is no element of which
// some may fail.
func (p *Plan) Stops(k Key) bool {
	if _, ok := p.tolerant(k); ok {
		return false
	}
	return p.stops(k.Node)
}

// stops is Stops of a whole task.
func (p *Plan) stops(node int32) bool {
	n := &p.Nodes[node]
	first, _ := p.Stands(node)
	return n.OnFailure != Continue && !n.Degrades && n.Fallback < 0 && !p.taken[first] && !p.closes[node] && n.Undoes < 0 && n.Backs < 0
}

// Key names a row of a job: a node and an element. Index is 0 for plain nodes.
type Key struct{ Node, Index int32 }

// Indexes that are no element.
const (
	Unexpanded int32 = -1 // the one row of a map that has not expanded
	Every      int32 = -2 // all rows of a map, expanded or not
)

// Row is a row with the number of parent rows it still waits for.
type Row struct {
	Key
	Unmet int32
}

// Single returns the plan of a Kind job: one node, named after its kind. Zero
// fields get the defaults.
func Single(kind, queue string, timeout time.Duration, r drover.Retry) *Plan {
	return &Plan{
		Name: kind,
		Nodes: []Node{{
			Name:    kind,
			Kind:    kind,
			Queue:   cmp.Or(queue, DefaultQueue),
			Over:    -1,
			Timeout: cmp.Or(timeout, DefaultTimeout),
			Retry:   fillRetry(r),
			root:    -1,

			Fallback: -1,
			Primary:  -1,
			Backup:   -1,
			Backs:    -1,

			Compensation: -1,
			Undoes:       -1,
		}},
		order:    []int32{0},
		families: [][]int32{nil},
		stands:   []int32{0},
		before:   []int32{0},

		calm:  []bool{true},
		taken: []bool{false},
		hears: []bool{false},

		closes: []bool{false},
		lent:   []bool{false},
		Rescue: -1,
		with:   make([]template, 1),
		each:   make([]template, 1),

		gives:     make([]*schema, 1),
		inputRefs: make([][]Ref, 1),
		eachRefs:  make([][]Ref, 1),
		condRefs:  make([][]Ref, 1),
		conds:     make([]*condition, 1),
		keyRefs:   make([][]Ref, 1),
		keys:      make([]*condition, 1),
	}
}

// fillRetry sets what r leaves open. A first delay over the default cap raises
// the cap: nobody who writes `initial: 5m` means 1 minute.
func fillRetry(r drover.Retry) drover.Retry {
	r.MaxAttempts = cmp.Or(r.MaxAttempts, DefaultRetry.MaxAttempts)
	r.Initial = cmp.Or(r.Initial, DefaultRetry.Initial)
	r.Factor = cmp.Or(r.Factor, DefaultRetry.Factor)
	r.Max = cmp.Or(r.Max, max(DefaultRetry.Max, r.Initial))
	return r
}

// retryClasses are the classes of failures that are tried again.
var retryClasses = []string{string(drover.ClassRetryable), string(drover.ClassThrottled), string(drover.ClassTimeout), string(drover.ClassPanic)}

// RetryOn returns what is wrong with a key of drover.Retry.On, or "".
func RetryOn(key string) string {
	if slices.Contains(retryClasses, key) {
		return ""
	}
	const classes = "the classes are retryable, throttled, timeout and panic; anything else is an error's type, such as exit_75"
	switch drover.ErrorClass(key) {
	case drover.ClassPermanent, drover.ClassInput, drover.ClassExpand, drover.ClassExpired:
		return fmt.Sprintf("a failure that is %s is never tried again; %s", key, classes)
	case drover.ClassSnoozed, drover.ClassLeaseLost:
		return fmt.Sprintf("%s uses up no attempt and has no rule; %s", key, classes)
	default: // a type, or a mistake
	}
	for _, c := range retryClasses {
		if distance(key, c, 3) < 3 {
			return fmt.Sprintf("did you mean %q? %s", c, classes)
		}
	}
	if !ValidKind(key) {
		return "use 1 to 127 letters, digits, and any of _ . : / -, beginning with a letter; " + classes
	}
	return ""
}

// family reports whether a and b are maps with one root.
func (p *Plan) family(a, b int32) bool {
	return p.Nodes[a].root >= 0 && p.Nodes[a].root == p.Nodes[b].root
}

// first returns the key of the rows of node before anything has expanded.
func (p *Plan) first(node int32) Key {
	if p.Nodes[node].Mapped {
		return Key{node, Unexpanded}
	}
	return Key{node, 0}
}

// all returns the key that stands for every row of node.
func (p *Plan) all(node int32) Key {
	if p.Nodes[node].Mapped {
		return Key{node, Every}
	}
	return Key{node, 0}
}

// Start returns the rows a new job begins with, dormant tasks left out, in the order of the nodes:
// plain nodes with index 0, maps Unexpanded. Unmet is the number of parents, an
// unexpanded map counting as one.
func (p *Plan) Start() []Row {
	rows := make([]Row, 0, len(p.Nodes))
	for i := range p.Nodes {
		if !p.Nodes[i].Dormant {
			rows = append(rows, Row{p.first(int32(i)), int32(len(p.Nodes[i].Parents))})
		}
	}
	return rows
}

// Children returns the rows whose Unmet falls by one when k succeeds. Between
// maps of one family that is the row with the same index, otherwise every row
// of the child. Below an element of a map with min_success only the family is:
// the others wait for the map as a whole, which stands under the key Unexpanded.
func (p *Plan) Children(k Key) []Key {
	next := p.Nodes[k.Node].ChildrenNodes
	if len(next) == 0 {
		return nil
	}
	_, tolerant := p.tolerant(k)
	keys := make([]Key, 0, len(next))
	for _, c := range next {
		if p.family(k.Node, c) {
			keys = append(keys, Key{c, k.Index})
		} else if !tolerant { // otherwise they wait for the map as a whole
			keys = append(keys, p.all(c))
		}
	}
	return keys
}

// Ref names an output that an expression needs.
type Ref struct {
	Node int32
	// Same says that only the element with the same index is needed; otherwise
	// the node's output, or of a map the ordered list of all its outputs.
	Same bool
}

// Scope is what expressions see.
type Scope struct {
	// Input is the job's input.
	Input json.RawMessage
	// Output returns the output of a row that has succeeded.
	Output func(Key) (json.RawMessage, bool)
	// Outcome returns how a row has ended; zero while it has not. Only conditions ask.
	Outcome func(Key) Outcome
	// Len returns the number of rows of an expanded map.
	Len func(node int32) int
	// Item and Index are the element of a mapped row. Of a map that goes over
	// another one, Item may be nil: the parent element's output is taken.
	Item  json.RawMessage
	Index int32
}

// Sinks returns the nodes nobody waits for: their outputs are the job's result.
func (p *Plan) Sinks() []int32 {
	var out []int32
	for i := range p.Nodes {
		if len(p.Nodes[i].ChildrenNodes) == 0 && !p.Nodes[i].Dormant {
			out = append(out, int32(i))
		}
	}
	return out
}

// Descendants returns every node that waits for node, directly or not, in
// ascending order.
func (p *Plan) Descendants(node int32) []int32 {
	return p.reached([]int32{node}, func(int32) bool { return true })
}

// DescendantsOf returns every node that waits for one of several, directly or not, in
// ascending order.
func (p *Plan) DescendantsOf(nodes []int32) []int32 {
	return p.reached(nodes, func(int32) bool { return true })
}

// Blocked returns every node that a failure of a row keeps from running, in ascending
// order, if nothing else is known. An element of which some may fail keeps nothing
// outside its family from it.
func (p *Plan) Blocked(k Key) []int32 {
	return p.BlockedBy([]Key{k})
}

// BlockedBy is Blocked of several rows that have failed.
func (p *Plan) BlockedBy(keys []Key) []int32 {
	var plain []int32
	var out []int32
	asked := map[int32]bool{}
	for _, k := range keys {
		switch m, some := p.tolerant(k); {
		case some && asked[k.Node]:
		case some:
			asked[k.Node] = true
			out = append(out, p.reached([]int32{k.Node}, func(c int32) bool { return p.blocks(c) && p.family(m, c) })...)
		default:
			plain = append(plain, k.Node)
		}
	}
	out = append(out, p.reached(plain, p.blocks)...)
	slices.Sort(out)
	return slices.Compact(out)
}

// blocks reports whether a failure above can keep a node from running.
func (p *Plan) blocks(c int32) bool {
	r := p.Nodes[c].When
	return !r.takesFailure() && r.kind != always
}

// reached returns the nodes below some, in ascending order, along those that pass.
func (p *Plan) reached(nodes []int32, pass func(int32) bool) []int32 {
	if len(nodes) == 0 {
		return nil
	}
	seen := make([]bool, len(p.Nodes))
	todo := slices.Clone(nodes)
	var out []int32
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, c := range p.Nodes[n].ChildrenNodes {
			if !seen[c] && pass(c) {
				seen[c] = true
				todo = append(todo, c)
				out = append(out, c)
			}
		}
	}
	slices.Sort(out)
	return out
}

// Levels groups the nodes by the length of the longest way to them: a level can
// start when the one before it is done.
func (p *Plan) Levels() [][]int32 {
	level := make([]int, len(p.Nodes))
	var out [][]int32
	for _, n := range p.order {
		for _, q := range p.Nodes[n].Parents {
			level[n] = max(level[n], level[q]+1)
		}
		if level[n] == len(out) {
			out = append(out, nil)
		}
		out[level[n]] = append(out[level[n]], n)
	}
	for _, l := range out {
		slices.Sort(l)
	}
	return out
}
