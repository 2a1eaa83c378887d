package dag

import (
	"regexp"
	"strconv"
	"strings"
)

// SubKind is the kind of tasks that run a pipeline: no handler can be called so.
const SubKind = "@pipeline"

// MaxDepth is how deep pipelines may run each other: a job, the job of one of its
// tasks, and so on.
const MaxDepth = 8

var subForm = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}(@[1-9][0-9]{0,8})?$`)

// subPipeline checks what a task says that runs a pipeline: what its own tasks have,
// it has not.
func (r reader) subPipeline(t *task) {
	t.kind = SubKind
	if !subForm.MatchString(t.sub.name) {
		r.at(t.sub.v, t.sub.at, "%q is not a pipeline; write its name, or name@version, as in refund@2", clip(t.sub.name, 80))
	}
	for _, k := range []string{"run", "queue", "timeout", "schedule_to_close", "heartbeat", "circuit", "retry", "limits", "concurrency_key", "resources", "worker_labels", "artifact", "cache", "side_effects", "backup"} {
		if v := t.v.get(k); v != nil {
			r.at(v, t.at.member(k), "task %q runs a pipeline, whose own tasks have %s; remove it", t.name, k)
		}
	}
	if c := t.close; c.v != nil && c.name != "cancel" && c.name != "abandon" {
		r.at(c.v, c.at, "%q is not what parent_close can be: cancel stops the job that the task runs when its own is stopped, abandon lets it go on", clip(c.name, 40))
	}
}

// Calls reports whether a task of the plan runs a pipeline.
func (p *Plan) Calls() bool { return p.calls }

// SubOf parts what a task runs into a pipeline's name and version; 0 is the newest.
func SubOf(sub string) (name string, version int32) {
	name, v, _ := strings.Cut(sub, "@")
	n, _ := strconv.Atoi(v) // checked when it was registered
	return name, int32(n)
}

// Call is a task that runs a pipeline, and where its definition says so.
type Call struct {
	Task, Sub    string
	Field        string
	Line, Column int
}

// Calls are the tasks that run pipelines.
func (p *Pipeline) Calls() (out []Call) {
	for i := range p.tasks {
		if s := p.tasks[i].sub; s.v != nil {
			out = append(out, Call{p.tasks[i].name, s.name, s.at.String(), s.v.line, s.v.col})
		}
	}
	return out
}
