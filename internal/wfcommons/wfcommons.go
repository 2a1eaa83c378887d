// Package wfcommons reads scientific workflows in the WfFormat of the WfCommons
// project (https://wfcommons.org) and writes them as pipelines whose tasks take
// the recorded times. It does no I/O.
package wfcommons

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drover-dev/drover"
)

// Options say how a workflow becomes a pipeline.
type Options struct {
	Name    string        // of the pipeline; default is the workflow's, put into the form of a name
	Scale   float64       // what the recorded times are multiplied by
	Compute bool          // tasks compute, for as much of their time as was recorded, instead of only sleeping
	Unknown time.Duration // the time of tasks of which none is recorded, not scaled
	Queue   string        // that the tasks wait in; default is the pipeline's default
}

// Import is a workflow as a pipeline.
type Import struct {
	Definition []byte // YAML
	Name       string
	Tasks      int
	// Makespan is the recorded one, scaled; 0 when none is recorded.
	Makespan time.Duration
	// Lost says, a line each, what of the workflow the pipeline does not have.
	Lost []string
}

// The versions that are read. 1.6 is 1.5 with sums.
var versions = []string{"1.4", "1.5", "1.6"}

// instance is a file in WfFormat.
type instance struct {
	Name    string `json:"name"`
	About   string `json:"description"`
	Version string `json:"schemaVersion"`
	Flow    struct {
		// Until 1.4 everything is here.
		Tasks    []json.RawMessage `json:"tasks"`
		Makespan *float64          `json:"makespanInSeconds"`
		Machines []json.RawMessage `json:"machines"`
		// From 1.5 on.
		Spec *struct {
			Tasks []json.RawMessage `json:"tasks"`
			Files []struct {
				ID   string `json:"id"`
				Size int64  `json:"sizeInBytes"`
			} `json:"files"`
		} `json:"specification"`
		Execution *struct {
			Tasks    []json.RawMessage `json:"tasks"`
			Makespan *float64          `json:"makespanInSeconds"`
			Machines []json.RawMessage `json:"machines"`
		} `json:"execution"`
	} `json:"workflow"`
}

// spec is a task of 1.4, or of the specification.
type spec struct {
	Name     string   `json:"name"`
	ID       string   `json:"id"`
	Parents  []string `json:"parents"`
	Children []string `json:"children"`
	Inputs   []string `json:"inputFiles"`
	Outputs  []string `json:"outputFiles"`
	Files    []struct {
		Path string `json:"path"`
		Name string `json:"name"`
		Size int64  `json:"sizeInBytes"`
		Link string `json:"link"`
	} `json:"files"`
	measured
}

// measured is what was recorded of a task.
type measured struct {
	Runtime *float64 `json:"runtimeInSeconds"`
	CPU     *float64 `json:"avgCPU"`
}

// node is a task on its way.
type node struct {
	spec
	name  string // in the pipeline
	needs map[int]bool
}

// Convert reads a workflow and returns it as a pipeline. The error is a
// *drover.Error with every mistake of the file.
func Convert(src []byte, o Options) (Import, error) {
	var in instance
	if err := json.Unmarshal(src, &in); err != nil {
		return Import{}, drover.Errorf(drover.CodeValidation, "this is not WfFormat: %s", err)
	}
	if !slices.Contains(versions, in.Version) {
		return Import{}, drover.Errorf(drover.CodeValidation, "schemaVersion is %q; %s can be read. The WfFormat repository has a tool that brings older files up to date",
			in.Version, strings.Join(versions, ", "))
	}
	c := &converter{in: &in, o: o, lost: map[string]*loss{}, at: map[string]int{}}
	c.read()
	c.edges()
	if len(c.bad) > 0 {
		return Import{}, &drover.Error{Code: drover.CodeValidation, Detail: "the workflow cannot be imported", Fields: c.bad[:min(len(c.bad), 50)]}
	}
	c.names()
	out := Import{Tasks: len(c.nodes), Name: cmp.Or(o.Name, validName(cmp.Or(in.Name, "workflow")))}
	if m := c.makespan(); m != nil {
		out.Makespan = c.scaled(*m)
	}
	out.Definition = c.write(out.Name)
	out.Lost = c.losses()
	return out, nil
}

type converter struct {
	in    *instance
	o     Options
	nodes []node
	at    map[string]int // by id, and in 1.4 by name
	lost  map[string]*loss
	notes []string
	bad   []drover.FieldError
	file  map[string]int64 // sizes
}

// loss is a property that is not carried over.
type loss struct {
	tasks int
	most  float64
}

func (c *converter) say(field, format string, args ...any) {
	c.bad = append(c.bad, drover.FieldError{Field: field, Message: fmt.Sprintf(format, args...)})
}

func (c *converter) makespan() *float64 {
	if e := c.in.Flow.Execution; e != nil {
		return e.Makespan
	}
	return c.in.Flow.Makespan
}

// read collects the tasks with what was recorded of them.
func (c *converter) read() {
	list, place := c.in.Flow.Tasks, "workflow.tasks"
	if s := c.in.Flow.Spec; s != nil {
		list, place = s.Tasks, "workflow.specification.tasks"
	}
	if len(list) == 0 {
		c.say(place, "there are no tasks")
	}
	known := []string{"name", "id", "parents", "children", "inputFiles", "outputFiles", "files", "runtimeInSeconds", "avgCPU"}
	for i, raw := range list {
		at := fmt.Sprintf("%s[%d]", place, i)
		var s spec
		if err := json.Unmarshal(raw, &s); err != nil {
			c.say(at, "cannot be read: %s", err)
			continue
		}
		c.lose(raw, known)
		for _, key := range []string{s.ID, s.Name} {
			if key == "" || key == s.Name && key != s.ID && c.in.Version != "1.4" { // names repeat from 1.5 on
				continue
			}
			if other, twice := c.at[key]; twice && other != len(c.nodes) {
				c.say(at, "%q names another task too", key)
			}
			c.at[key] = len(c.nodes)
		}
		if s.ID == "" && (s.Name == "" || c.in.Version != "1.4") {
			c.say(at+".id", "this is required and missing")
		}
		c.nodes = append(c.nodes, node{spec: s, needs: map[int]bool{}})
	}
	if e := c.in.Flow.Execution; e != nil {
		for i, raw := range e.Tasks {
			at := fmt.Sprintf("workflow.execution.tasks[%d]", i)
			var x struct {
				ID string `json:"id"`
				measured
			}
			if err := json.Unmarshal(raw, &x); err != nil {
				c.say(at, "cannot be read: %s", err)
				continue
			}
			n, ok := c.at[x.ID]
			if !ok {
				c.say(at+".id", "there is no task %q in the specification", x.ID)
				continue
			}
			c.lose(raw, []string{"id", "runtimeInSeconds", "avgCPU"})
			c.nodes[n].measured = x.measured
		}
	}
	for _, n := range c.nodes {
		if n.Runtime != nil && !(*n.Runtime >= 0 && *n.Runtime <= 1e9) {
			c.say("runtimeInSeconds", "task %q ran for %g s; from 0 to 1e9 can be imported", cmp.Or(n.ID, n.Name), *n.Runtime)
		}
	}
}

// lose counts the properties of a task that nobody reads.
func (c *converter) lose(raw json.RawMessage, known []string) {
	var all map[string]json.RawMessage
	if json.Unmarshal(raw, &all) != nil {
		return
	}
	for k, v := range all {
		if slices.Contains(known, k) || string(v) == "null" || string(v) == "[]" || string(v) == `""` {
			continue
		}
		l := c.lost[k]
		if l == nil {
			l = &loss{}
			c.lost[k] = l
		}
		l.tasks++
		if f, err := strconv.ParseFloat(string(v), 64); err == nil {
			l.most = max(l.most, f)
		}
	}
}

// edges takes the dependencies from parents and children, and for a task that
// names no parents, from the files that it reads.
func (c *converter) edges() {
	find := func(i int, what, ref string) int {
		n, ok := c.at[ref]
		switch {
		case !ok:
			c.say(cmp.Or(c.nodes[i].ID, c.nodes[i].Name)+"."+what, "there is no task %q", ref)
			return -1
		case n == i:
			c.say(cmp.Or(c.nodes[i].ID, c.nodes[i].Name)+"."+what, "the task names itself")
			return -1
		}
		return n
	}
	producer := map[string]int{}
	c.file = map[string]int64{}
	for i := range c.nodes {
		n := &c.nodes[i]
		for _, f := range n.Files { // of 1.4
			name := f.Path + f.Name
			c.file[name] = f.Size
			if strings.EqualFold(f.Link, "input") {
				n.Inputs = append(n.Inputs, name)
			} else {
				n.Outputs = append(n.Outputs, name)
			}
		}
		for _, f := range n.Outputs {
			producer[f] = i
		}
		for _, p := range n.Parents {
			if k := find(i, "parents", p); k >= 0 {
				n.needs[k] = true
			}
		}
		for _, ch := range n.Children {
			if k := find(i, "children", ch); k >= 0 {
				c.nodes[k].needs[i] = true
			}
		}
	}
	if s := c.in.Flow.Spec; s != nil {
		for _, f := range s.Files {
			c.file[f.ID] = f.Size
		}
	}
	byFiles := 0
	for i := range c.nodes {
		n := &c.nodes[i]
		if len(n.needs) > 0 {
			continue
		}
		for _, f := range n.Inputs {
			if p, ok := producer[f]; ok && p != i {
				n.needs[p] = true
			}
		}
		if len(n.needs) > 0 {
			byFiles++
		}
	}
	if byFiles > 0 {
		c.notes = append(c.notes, fmt.Sprintf("%s no parents and got those that write the files they read", have(byFiles)))
	}
}

var notInNames = regexp.MustCompile(`[^a-z0-9_-]+`)

// validName puts a text into the form of a name.
func validName(s string) string {
	s = strings.Trim(notInNames.ReplaceAllString(strings.ToLower(s), "-"), "-_")
	if s == "" || s[0] < 'a' || s[0] > 'z' {
		s = "w-" + s
	}
	return strings.TrimRight(s[:min(len(s), 63)], "-")
}

// names gives each task a name of its own.
func (c *converter) names() {
	used := map[string]bool{}
	for i := range c.nodes {
		n := &c.nodes[i]
		id := cmp.Or(n.ID, n.Name)
		if n.Name != "" && !strings.Contains(id, n.Name) {
			id = n.Name + "_" + id
		}
		name := validName(id)
		for k := 2; used[name]; k++ {
			end := "-" + strconv.Itoa(k)
			base := validName(id)
			name = base[:min(len(base), 63-len(end))] + end
		}
		used[name] = true
		n.name = name
	}
}

func (c *converter) scaled(seconds float64) time.Duration {
	return time.Duration(seconds * c.o.Scale * float64(time.Second)).Round(time.Microsecond)
}

// write makes the definition.
func (c *converter) write(name string) []byte {
	var b bytes.Buffer
	how := "sleep"
	if c.o.Compute {
		how = "compute"
	}
	fmt.Fprintf(&b, "# A scientific workflow in WfFormat %s, imported: its tasks %s for the recorded times, times %s.\n", c.in.Version, how, strconv.FormatFloat(c.o.Scale, 'g', -1, 64))
	fmt.Fprintf(&b, "pipeline: %s\n", name)
	if about := strings.TrimSpace(cmp.Or(c.in.About, c.in.Name)); about != "" {
		q, _ := json.Marshal(about) // text always encodes
		fmt.Fprintf(&b, "description: %s\n", q)
	}
	if c.o.Queue != "" {
		fmt.Fprintf(&b, "defaults: {queue: %s}\n", c.o.Queue)
	}
	b.WriteString("tasks:\n")
	unknown := 0
	for _, n := range c.nodes {
		took := c.o.Unknown
		if n.Runtime != nil {
			took = c.scaled(*n.Runtime)
		} else {
			unknown++
		}
		fmt.Fprintf(&b, "  %s: {run: simulate, with: {%s}", n.name, c.with(n, took))
		if took > 40*time.Minute { // the default is an hour
			fmt.Fprintf(&b, ", timeout: %s", drover.Duration(2*took))
		}
		if len(n.needs) > 0 {
			var needs []string
			for _, k := range slices.Sorted(maps.Keys(n.needs)) {
				needs = append(needs, c.nodes[k].name)
			}
			fmt.Fprintf(&b, ", needs: [%s]", strings.Join(needs, ", "))
		}
		b.WriteString("}\n")
	}
	if unknown > 0 {
		c.notes = append(c.notes, fmt.Sprintf("%s no runtimeInSeconds and %s for %s", have(unknown), how, drover.Duration(c.o.Unknown)))
	}
	return b.Bytes()
}

// with is what a task does in its time.
func (c *converter) with(n node, took time.Duration) string {
	if !c.o.Compute {
		return "sleep: " + drover.Duration(took).String()
	}
	busy := took
	if n.CPU != nil && *n.CPU >= 0 && *n.CPU < 100 {
		busy = time.Duration(float64(took) * *n.CPU / 100).Round(time.Microsecond)
	}
	if busy == took {
		return "compute: " + drover.Duration(busy).String()
	}
	return "compute: " + drover.Duration(busy).String() + ", sleep: " + drover.Duration(took-busy).String()
}

// meaning tells why a property is not carried over.
var meaning = map[string]string{
	"command": "no program is run", "coreCount": "a task takes one slot of a worker", "cores": "a task takes one slot of a worker",
	"memoryInBytes": "no memory is taken", "readBytes": "nothing is read", "writtenBytes": "nothing is written",
	"energyInKWh": "energy is not measured", "energy": "energy is not measured", "avgPowerInW": "power is not measured", "avgPower": "power is not measured",
	"priority": "all tasks have the job's class", "machine": "any worker of the queue runs them", "machines": "any worker of the queue runs them",
	"executedAt": "a task starts when its parents have ended", "category": "there are no categories", "type": "all tasks compute",
}

// losses lists what is not carried over.
func (c *converter) losses() []string {
	out := c.notes
	if n := len(c.file); n > 0 {
		var size int64
		for _, s := range c.file {
			size += s
		}
		out = append(out, fmt.Sprintf("files: %d with %d bytes: tasks move no data", n, size))
	}
	for _, k := range slices.Sorted(maps.Keys(c.lost)) {
		l := c.lost[k]
		most := ""
		if l.most > 0 {
			most = ", up to " + strconv.FormatFloat(l.most, 'f', -1, 64)
		}
		why := cmp.Or(meaning[k], "WfFormat does not know it either")
		out = append(out, fmt.Sprintf("%s of %s%s: %s", k, counted(l.tasks), most, why))
	}
	cpu := 0
	for _, n := range c.nodes {
		if n.CPU != nil && (!c.o.Compute || *n.CPU >= 100) {
			cpu++
		}
	}
	if cpu > 0 {
		why := "tasks only sleep"
		if c.o.Compute {
			why = "a task computes on one processor"
		}
		out = append(out, fmt.Sprintf("avgCPU of %s: %s", counted(cpu), why))
	}
	machines := len(c.in.Flow.Machines)
	if e := c.in.Flow.Execution; e != nil {
		machines = len(e.Machines)
	}
	if machines > 0 {
		out = append(out, fmt.Sprintf("machines: %d: any worker of the queue runs a task", machines))
	}
	return out
}

func counted(n int) string {
	if n == 1 {
		return "1 task"
	}
	return strconv.Itoa(n) + " tasks"
}

func have(n int) string {
	if n == 1 {
		return "1 task has"
	}
	return strconv.Itoa(n) + " tasks have"
}
