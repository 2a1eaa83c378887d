package dag

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drover-dev/drover"
)

// TaskCap is the most tasks a definition can have. A map counts once. JobTaskCap is the
// most a job of it can have, its maps expanded.
const (
	TaskCap    = 100_000
	JobTaskCap = 200_000
)

// What only some of the tasks of a definition can have: each condition and each schema
// takes a tenth of a millisecond to compile, and how a map with bounds stands is read and
// written by every settle that ends an element of its job.
const (
	condsCap   = 20_000
	schemasCap = 20_000
	boundedCap = 5000
	linesCap   = 5000 // combinations of queue, handler, circuit and what else is asked for
)

// ElementCap is the most elements a map can have, and DefaultElements the most one may
// have that does not say max_elements.
const (
	ElementCap      = 100_000
	DefaultElements = 10_000
)

// Pipeline is a definition as it was written.
type Pipeline struct {
	Name        string
	Description string

	onFailure OnFailure
	rescue    need
	finally   []need

	file       string
	root       *value // normalised: what Canonical writes
	input      *value // the schema of the input, or nil
	tasks      []task
	maxTasks   int // a job may have; 0 is what the installation allows
	maxTasksAt need
	preset
}

// preset is what `defaults` and a task can both say. Zero fields say nothing.
type preset struct {
	queue   string
	circuit string
	class   drover.Class
	timeout time.Duration
	closes  time.Duration // schedule_to_close
	beats   time.Duration // heartbeat
	retry   drover.Retry
	maxAt   *value // retry.backoff.max, for a complaint
	maxPath *path
	rules   map[string]need // where retry.on has its rules, for complaints
}

type task struct {
	preset
	name, kind, artifact string
	v                    *value // the mapping it was read from
	at                   *path
	needs                []need
	over                 need   // for_each: NAME
	each                 *value // for_each: a list, or an expression for one; of a range its end
	ranged               bool   // for_each is a range
	with                 *value
	output               *value // the schema of its output, or nil
	cache                bool
	version              string // of the handler, for its results' identity
	when                 Rule
	whenAt               need   // where it says so
	stand                *value // default
	cond                 need   // if, as it was written
	key                  need   // concurrency_key, as it was written
	batch                int    // elements of for_each in one task
	batchAt              need
	parallel, elements   int // max_parallel, max_elements
	share                Share
	parallelAt, shareAt  need
	elementsAt           need
	onFailure            string
	fallback             need
	backup               need
	compensate           need
	asks                 Asks
	effects              string // side_effects: "true", "false" or "idempotent"; "" if it does not say
	sub                  need   // pipeline
	close                need   // parent_close
}

// need is a task's name as it was written somewhere.
type need struct {
	name string
	v    *value
	at   *path
}

// Parse reads a definition, YAML or JSON, and checks everything about it. The
// error is a *drover.Error with a field for every problem, up to 50, in the
// order of the text. File is used in messages only.
func Parse(file string, src []byte) (*Pipeline, error) {
	if len(src) > TextCap {
		return nil, drover.Errorf(drover.CodePayloadTooLarge,
			"%s is %d bytes long; the limit is %d (16 MiB)", cmp.Or(clip(file, 200), "the pipeline"), len(src), TextCap)
	}
	if n := parts(src); n > partCap {
		return nil, drover.Errorf(drover.CodePayloadTooLarge,
			"%s has some %d keys and values; the limit is %d. Large data belongs into the job's input, or where its address can be passed on", cmp.Or(clip(file, 200), "the pipeline"), n, partCap)
	}
	p, ps, err := read(file, src)
	if err != nil {
		return nil, err
	}
	p.compile(ps)
	p.inputs(ps)
	if err := ps.err(file); err != nil {
		return nil, err
	}
	return p, nil
}

// Decode reads what Canonical wrote, which may be longer than TextCap. It does
// not check what Compile checks.
func Decode(canonical []byte) (*Pipeline, error) {
	p, ps, err := read("", canonical)
	if err != nil {
		return nil, err
	}
	if err := ps.err(""); err != nil {
		return nil, err
	}
	return p, nil
}

// read returns a pipeline with the problems of its text, or an error when there
// is nothing to go on with.
func read(file string, src []byte) (*Pipeline, *problems, error) {
	ps := &problems{}
	v := readText(file, src, ps)
	if v == nil || v.kind != object {
		if v != nil {
			ps.at(v, nil, "a definition is a mapping that begins with `pipeline: name`; this is %s", v.kind)
		}
		return nil, nil, ps.err(file)
	}
	r := reader{ps}
	p := &Pipeline{file: file, root: v}
	r.pipeline(p, v)
	if n := len(p.tasks); n > TaskCap {
		return nil, nil, drover.Errorf(drover.CodeTooManyTasks,
			"%s has %d tasks; the limit is %d. Tasks that differ only in their data are one task with for_each", cmp.Or(clip(file, 200), "the pipeline"), n, TaskCap)
	}
	return p, ps, nil
}

// Canonical returns the definition as JSON that is the same for the same
// meaning of its text: members sorted by name, no white space, numbers as they
// were written, durations in seconds, tasks as a list in their order.
func (p *Pipeline) Canonical() []byte { return p.root.appendJSON(nil) }

// Hash returns the SHA-256 of Canonical.
func (p *Pipeline) Hash() [32]byte { return sha256.Sum256(p.Canonical()) }

// reader reads a definition out of a value and puts what it reads into one form.
type reader struct{ *problems }

// mapping reports whether v is a mapping, and complains about keys it cannot have.
func (r reader) mapping(v *value, at *path, what string, g *group) bool {
	if v.kind != object {
		r.at(v, at, "%s is a mapping with the keys %s; this is %s", what, quoted(g.names()), v.kind)
		return false
	}
	for _, k := range v.keys {
		if !g.has(k.name) {
			hint := r.hint(k.name, slices.Values(g.names()))
			if hint == "" {
				hint = "; the keys are " + strings.Join(g.names(), ", ")
			}
			r.add(k.line, k.col, at.member(k.name), "%s has no key %q%s", what, clip(k.name, 60), hint)
		}
	}
	return true
}

// text returns the text of v, or complains.
func (r reader) text(v *value, at *path) (string, bool) {
	if v.kind == text {
		return v.text, true
	}
	remedy := ""
	if v.kind == number || v.kind == boolean {
		remedy = "; put it in quotes"
	}
	r.at(v, at, "this must be text and is %s%s", v.kind, remedy)
	return "", false
}

var nameForm = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)

// ValidName reports whether s can name a pipeline, a task, a queue or an
// artifact's kind: a lower-case letter, then up to 62 lower-case letters,
// digits, _ and -.
func ValidName(s string) bool { return nameForm.MatchString(s) }

var kindForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.:/-]{0,126}$`)

// ValidKind reports whether s can name a handler: a letter, then up to 126
// letters, digits, and any of _ . : / and -.
func ValidKind(s string) bool { return kindForm.MatchString(s) }

const nameRule = "use 1 to 63 lower-case letters, digits, _ and -, beginning with a letter"

// name reads a name.
func (r reader) name(v *value, at *path, what string) string {
	s, ok := r.text(v, at)
	if ok && !ValidName(s) {
		r.at(v, at, "%q is not a name for %s; %s", clip(s, 80), what, nameRule)
	}
	return s
}

func (r reader) pipeline(p *Pipeline, v *value) {
	var top *path
	r.mapping(v, top, "a definition", topKeys)
	for i, k := range v.keys {
		v, at := v.items[i], top.member(k.name)
		switch k.name {
		case "pipeline":
			p.Name = r.name(v, at, "a pipeline")
		case "description":
			p.Description, _ = r.text(v, at)
		case "input":
			if v.kind != object {
				r.at(v, at, "this must be a JSON Schema, which is a mapping, and is %s; `input: {type: object}` takes any object", v.kind)
				continue
			}
			p.input = v
		case "defaults":
			if r.mapping(v, at, "defaults", defaultsKeys) {
				r.preset(&p.preset, v, at)
			}
		case "tasks":
			r.tasks(p, v, at)
		case "max_tasks":
			n, err := strconv.Atoi(v.text)
			if v.kind != number || err != nil || n < 1 || n > JobTaskCap {
				r.at(v, at, "max_tasks is a whole number from 1 to %d, how many tasks a job may have; this is %s", JobTaskCap, v.shown())
				continue
			}
			p.maxTasks, p.maxTasksAt = n, need{"", v, at}
			v.text = strconv.Itoa(n)
		case "rescue", "finally": // below
		case "on_failure":
			s, ok := r.text(v, at)
			if i := slices.Index(policyNames, s); i >= 0 {
				p.onFailure = OnFailure(i)
			} else if ok {
				r.at(v, at, "%q is not a policy%s; when a task fails for good, fail_fast stops the job, finish_running lets what runs end, continue goes on with what does not wait for it", clip(s, 40), r.hint(s, slices.Values(policyNames)))
			}
		}
	}
	for i, k := range v.keys {
		switch v, at := v.items[i], top.member(k.name); k.name {
		case "rescue":
			p.rescue = need{r.name(v, at, "a task"), v, at}
		case "finally":
			p.finally = r.needs(v, at)
		}
	}
	if v.get("pipeline") == nil {
		r.at(v, top.member("pipeline"), "the pipeline's name is missing; write `pipeline: name`")
	}
	if v.get("tasks") == nil {
		r.at(v, top.member("tasks"), "there are no tasks; write `tasks:` and under it at least one, as in `hello: {run: exec}`")
	}
}

// tasks reads the tasks and turns the mapping they are written as into a list,
// because the members of a JSON object have no order.
func (r reader) tasks(p *Pipeline, v *value, at *path) {
	switch v.kind {
	case object:
		p.tasks = make([]task, 0, len(v.keys))
		for i, k := range v.keys {
			t := v.items[i]
			at := at.member(k.name)
			if !ValidName(k.name) {
				r.add(k.line, k.col, at, "%q is not a name for a task; %s", clip(k.name, 80), nameRule)
			}
			p.tasks = append(p.tasks, r.task(k.name, t, at, taskKeys))
			if t.kind == object {
				t.keys = append(t.keys, key{"name", k.line, k.col})
				t.items = append(t.items, &value{kind: text, line: k.line, col: k.col, text: k.name})
			}
		}
		*v = value{kind: list, line: v.line, col: v.col, items: v.items}
	case list:
		p.tasks = make([]task, 0, len(v.items))
		lines := make(map[string]int, len(v.items))
		for i, t := range v.items {
			at := at.at(i)
			n := t.get("name")
			if t.kind == object && n == nil {
				r.at(t, at, "a task in a list needs the key name")
			}
			name := ""
			if n != nil {
				name = r.name(n, at.member("name"), "a task")
				if line, twice := lines[name]; twice {
					r.at(n, at.member("name"), "there is a task %q already, on line %d", clip(name, 80), line)
					continue
				}
				lines[name] = n.line
				if ValidName(name) {
					at = at.up.member(name)
				}
			}
			p.tasks = append(p.tasks, r.task(name, t, at, listedKeys))
		}
	default:
		r.at(v, at, "tasks is a mapping from a task's name to what it does; this is %s", v.kind)
		return
	}
	if len(v.items) == 0 {
		r.at(v, at, "there are no tasks; write at least one, as in `hello: {run: exec}`")
	}
}

func (r reader) task(name string, v *value, at *path, keys *group) task {
	t := task{name: name, v: v, at: at}
	if v.kind == null {
		r.at(v, at, "the task is empty; it needs at least `run`, as in `%s: {run: exec}`", clip(name, 80))
		return t
	}
	if !r.mapping(v, at, "a task", keys) {
		return t
	}
	r.preset(&t.preset, v, at)
	for i, k := range v.keys {
		v, at := v.items[i], at.member(k.name)
		switch k.name {
		case "run":
			if s, ok := r.text(v, at); ok {
				if !ValidKind(s) {
					r.at(v, at, "%q is not the name of a handler; use 1 to 127 letters, digits, and any of _ . : / -, beginning with a letter", clip(s, 80))
				}
				t.kind = s
			}
		case "needs":
			t.needs = r.needs(v, at)
		case "for_each":
			switch {
			case v.kind == text && ValidName(v.text):
				t.over = need{v.text, v, at}
			case v.kind == text && strings.Contains(v.text, "${{") || v.kind == list:
				t.each = v
			case v.kind == object:
				t.each, t.ranged = r.rangeEnd(v, at), true
			default:
				r.at(v, at, "for_each is a list, an expression for one (\"${{ tasks.NAME.output.LIST }}\"), a range ({range: 100}), or the name of a map to go over element by element")
				t.each = &value{kind: list, line: v.line, col: v.col} // a map all the same
			}
		case "with":
			if v.kind == null {
				r.at(v, at, "with is empty; remove it, or write what the task gets as input")
				continue
			}
			t.with = v
		case "output":
			if v.kind != object {
				r.at(v, at, "this must be a JSON Schema of the task's output, which is a mapping, and is %s; for example `output: {type: object}`", v.kind)
				continue
			}
			t.output = v
		case "limits":
			t.asks.Limits = r.amounts(v, at, "a limit", "vendor-model", MaxPermits)
		case "resources":
			t.asks.Resources = r.amounts(v, at, "a resource", "gpu", maxResource)
		case "worker_labels":
			t.asks.WorkerLabels = r.pairs(v, at)
		case "artifact":
			if !r.mapping(v, at, "artifact", artifactKeys) {
				continue
			}
			if k := v.get("kind"); k != nil {
				t.artifact = r.name(k, at.member("kind"), "an artifact's kind")
			} else {
				r.at(v, at, "artifact needs the key kind, as in `artifact: {kind: dataset-manifest}`")
			}
		case "cache":
			t.cache, t.version = r.cache(v, at)
		case "description":
			r.text(v, at)
		case "when":
			if s, ok := r.text(v, at); ok {
				rule, complaint := parseRule(s)
				if complaint != "" {
					r.at(v, at, "%s", complaint)
				}
				t.when, t.whenAt = rule, need{s, v, at}
				v.text = rule.String()
			}
		case "default":
			t.stand = v
		case "on_failure":
			s, ok := r.text(v, at)
			if ok && s != degrade && !slices.Contains(policyNames, s) {
				r.at(v, at, "%q is not a policy%s; a task's are those of the pipeline (fail_fast, finish_running, continue), and degrade, with which the tasks below go on as if it had succeeded", clip(s, 40), r.hint(s, slices.Values(append(slices.Clone(policyNames), degrade))))
			}
			t.onFailure = s
		case "batch_size":
			n, err := strconv.Atoi(v.text)
			if v.kind != number || err != nil || n < 1 || n > 100_000 {
				r.at(v, at, "batch_size is a whole number from 1 to 100000, how many elements one task gets; this is %s", v.shown())
				continue
			}
			t.batch, t.batchAt = n, need{"", v, at}
			v.text = strconv.Itoa(n)
		case "max_parallel":
			t.parallel, t.parallelAt = r.elements(v, at, "how many elements run at one time"), need{"", v, at}
		case "max_elements":
			t.elements, t.elementsAt = r.elements(v, at, "how long the list may be"), need{"", v, at}
		case "min_success":
			share, complaint := parseShare(v)
			if complaint != "" {
				r.at(v, at, "%s", complaint)
				continue
			}
			t.share, t.shareAt = share, need{"", v, at}
		case "fallback":
			t.fallback = need{r.name(v, at, "a task"), v, at}
		case "backup":
			t.backup = need{r.name(v, at, "a task"), v, at}
		case "pipeline":
			if s, ok := r.text(v, at); ok {
				t.sub = need{s, v, at}
			}
		case "parent_close":
			if s, ok := r.text(v, at); ok {
				t.close = need{s, v, at}
			}
		case "compensate":
			t.compensate = need{r.name(v, at, "a task"), v, at}
		case "side_effects":
			switch {
			case v.kind == boolean, v.kind == text && v.text == "idempotent":
				t.effects = v.text
			default:
				r.at(v, at, "side_effects is true, false, or idempotent when the task passes its idempotency key on; this is %s", v.shown())
			}
		case "if":
			if s, ok := r.text(v, at); ok {
				t.cond = need{s, v, at}
			}
		case "concurrency_key":
			if s, ok := r.text(v, at); ok {
				t.key = need{s, v, at}
			}
		}
	}
	r.asks(&t.asks, v, at)
	if t.close.v != nil && t.sub.v == nil {
		r.at(t.close.v, t.close.at, "parent_close is for a task that runs a pipeline; remove it, or name the pipeline")
	}
	if t.sub.v != nil {
		r.subPipeline(&t)
	} else if v.get("run") == nil && v.get("pipeline") == nil {
		r.at(v, at.member("run"), "the task does not say what to run; write `run: exec` or the name of a handler that a worker has")
	}
	return t
}

// elements reads a number of elements.
func (r reader) elements(v *value, at *path, what string) int {
	n, err := strconv.Atoi(v.text)
	if v.kind != number || err != nil || n < 1 || n > ElementCap {
		r.at(v, at, "this is a whole number from 1 to %d, %s, and not %s", ElementCap, what, v.shown())
		return 0
	}
	v.text = strconv.Itoa(n)
	return n
}

// rangeEnd reads `for_each: {range: N}`: the number of its elements, or an expression for it.
func (r reader) rangeEnd(v *value, at *path) *value {
	if n := v.get("range"); n != nil && r.mapping(v, at, "for_each", rangeKeys) {
		switch many, err := strconv.Atoi(n.text); {
		case n.kind == text && strings.Contains(n.text, "${{"):
			return n
		case n.kind == number && err == nil && many >= 0 && many <= RangeCap:
			n.text = strconv.Itoa(many)
			return n
		}
		r.at(n, at.member("range"), "a range is how many elements it has, a whole number from 0 to %d, or an expression for one; this is %s", RangeCap, n.shown())
	} else if n == nil {
		r.at(v, at, "for_each needs the key range where it is a mapping, as in `for_each: {range: 100}`; otherwise write a list, an expression for one, or the name of a map")
	}
	return &value{kind: number, text: "1", line: v.line, col: v.col} // a map all the same
}

// cache reads if results are used again, and the handler's version.
func (r reader) cache(v *value, at *path) (on bool, version string) {
	switch v.kind {
	case boolean:
		return v.text == "true", ""
	case object:
		if !r.mapping(v, at, "cache", cacheKeys) {
			return false, ""
		}
		n := v.get("version")
		if n == nil {
			r.at(v, at, "cache needs the key version, as in `cache: {version: \"2\"}`, or is just true")
			return false, ""
		}
		s, ok := r.text(n, at.member("version"))
		if ok && (s == "" || len(s) > 63) {
			r.at(n, at.member("version"), "a version has 1 to 63 bytes")
		}
		return true, s
	default:
		r.at(v, at, "cache is true, false, or a mapping with the handler's version; this is %s", v.shown())
		return false, ""
	}
}

// needs reads one name or a list of names, and makes it a list.
func (r reader) needs(v *value, at *path) []need {
	if v.kind == text {
		one := *v
		*v = value{kind: list, line: v.line, col: v.col, items: []*value{&one}}
	}
	if v.kind != list {
		r.at(v, at, "needs is a list of tasks, as in `needs: [decode]`; this is %s", v.kind)
		return nil
	}
	var out []need
	seen := map[string]bool{}
	for i, e := range v.items {
		s, ok := r.text(e, at.at(i))
		switch {
		case !ok:
		case seen[s]:
			r.at(e, at.at(i), "%q is listed twice; once is enough", clip(s, 80))
		default:
			seen[s] = true
			out = append(out, need{s, e, at.at(i)})
		}
	}
	return out
}

// preset reads what defaults and tasks have in common.
func (r reader) preset(s *preset, v *value, at *path) {
	for i, k := range v.keys {
		v, at := v.items[i], at.member(k.name)
		switch k.name {
		case "queue":
			s.queue = r.name(v, at, "a queue")
		case "circuit":
			s.circuit = r.name(v, at, "a circuit")
		case "class":
			s.class = r.class(v, at)
		case "timeout":
			s.timeout = r.duration(v, at).Std()
		case "schedule_to_close":
			s.closes = r.duration(v, at).Std()
		case "heartbeat":
			if s.beats = r.duration(v, at).Std(); s.beats > 0 && s.beats < time.Second {
				r.at(v, at, "%s is too short for heartbeats; the least is 1s", drover.Duration(s.beats))
			}
		case "retry":
			r.retry(s, v, at)
		}
	}
}

func (r reader) class(v *value, at *path) drover.Class {
	if v.kind == number {
		v.kind = text
	}
	if v.kind != text {
		r.at(v, at, "a class is interactive, urgent, normal, batch or a number from 1 (first) to 99 (last); this is %s", v.kind)
		return 0
	}
	c, err := drover.ParseClass(v.text)
	if err != nil {
		r.at(v, at, "%s", err)
		return 0
	}
	v.text = c.String()
	return c
}

func (r reader) duration(v *value, at *path) drover.Duration {
	if v.kind == number {
		r.at(v, at, "%s has no unit; write for example 90s, 10m or 1h30m", clip(v.text, 40))
		return 0
	}
	s, ok := r.text(v, at)
	if !ok {
		return 0
	}
	d, err := drover.ParseDuration(s)
	switch {
	case err != nil:
		r.at(v, at, "%s", err)
		return 0
	case d < drover.Duration(time.Millisecond):
		r.at(v, at, "%s is too short; the least is 1ms", clip(s, 40))
		return 0
	}
	v.text = d.String()
	return d
}

// retryCap is how many rules a retry can have.
const retryCap = 32

func (r reader) retry(s *preset, v *value, at *path) {
	if !r.mapping(v, at, "retry", retryKeys) {
		return
	}
	own, max := r.rule(v, at)
	s.retry = drover.Retry{MaxAttempts: own.MaxAttempts, Initial: own.Initial, Factor: own.Factor, Max: own.Max}
	if max.v != nil {
		s.maxAt, s.maxPath = max.v, max.at
	}
	on, at := v.get("on"), at.member("on")
	switch {
	case on == nil:
		return
	case on.kind != object:
		r.at(on, at, "on is a mapping from a class or an error's type to what differs, as in `on: {timeout: {max_attempts: 1}}`; this is %s", on.kind)
		return
	case len(on.keys) > retryCap:
		r.at(on, at, "on has %d rules; at most %d", len(on.keys), retryCap)
		return
	}
	s.retry.On, s.rules = map[string]drover.RetryRule{}, map[string]need{}
	for i, k := range on.keys {
		v, at := on.items[i], at.member(k.name)
		if bad := RetryOn(k.name); bad != "" {
			r.add(k.line, k.col, at, "%q: %s", clip(k.name, 60), bad)
			continue
		}
		if !r.mapping(v, at, "a rule", ruleKeys) {
			continue
		}
		s.retry.On[k.name], _ = r.rule(v, at)
		s.rules[k.name] = need{k.name, v, at}
	}
}

// rule reads what a retry and its rules have in common, and where it says max.
func (r reader) rule(v *value, at *path) (out drover.RetryRule, longest need) {
	if m, at := v.get("max_attempts"), at.member("max_attempts"); m != nil {
		n, err := strconv.Atoi(m.text)
		if m.kind != number || err != nil || n < 1 || n > 1000 {
			r.at(m, at, "max_attempts is a whole number from 1 (no retry) to 1000; this is %s", m.shown())
		} else {
			out.MaxAttempts = n
			m.text = strconv.Itoa(n)
		}
	}
	b, at := v.get("backoff"), at.member("backoff")
	if b == nil || !r.mapping(b, at, "backoff", backoffKeys) {
		return out, longest
	}
	for i, k := range b.keys {
		v, at := b.items[i], at.member(k.name)
		switch k.name {
		case "initial":
			out.Initial = r.duration(v, at)
		case "max":
			out.Max = r.duration(v, at)
			longest = need{"", v, at}
		case "factor":
			f, err := strconv.ParseFloat(v.text, 64)
			if v.kind != number || err != nil || f < 1 || f > 1000 {
				r.at(v, at, "factor is a number from 1 (no growth) to 1000; this is %s", v.shown())
				continue
			}
			out.Factor = f
			v.text = strconv.FormatFloat(f, 'f', -1, 64)
		case "jitter":
			if t, ok := r.text(v, at); ok && t != "full" {
				r.at(v, at, "%q is no kind of jitter; the only one is full: a delay is drawn evenly from zero to its ceiling", clip(t, 40))
			}
		}
	}
	return out, longest
}

// shown writes a scalar in a complaint, and names the kind of anything else.
func (v *value) shown() string {
	switch v.kind {
	case text:
		return strconv.Quote(clip(v.text, 40))
	case number, boolean:
		return clip(v.text, 40)
	default:
		return v.kind.String()
	}
}

// or returns s with what it leaves open taken from d.
func (s preset) or(d preset) preset {
	s.queue = cmp.Or(s.queue, d.queue)
	s.circuit = cmp.Or(s.circuit, d.circuit)
	s.class = cmp.Or(s.class, d.class)
	s.timeout = cmp.Or(s.timeout, d.timeout)
	s.closes = cmp.Or(s.closes, d.closes)
	s.beats = cmp.Or(s.beats, d.beats)
	s.retry.MaxAttempts = cmp.Or(s.retry.MaxAttempts, d.retry.MaxAttempts)
	s.retry.Initial = cmp.Or(s.retry.Initial, d.retry.Initial)
	s.retry.Factor = cmp.Or(s.retry.Factor, d.retry.Factor)
	if s.retry.Max == 0 {
		s.retry.Max, s.maxAt, s.maxPath = d.retry.Max, d.maxAt, d.maxPath
	}
	if len(d.retry.On) > 0 {
		on, rules := maps.Clone(d.retry.On), maps.Clone(d.rules)
		maps.Copy(on, s.retry.On)
		maps.Copy(rules, s.rules)
		s.retry.On, s.rules = on, rules
	}
	return s
}

// Compile checks the definition and builds its plan.
func (p *Pipeline) Compile() (*Plan, error) {
	ps := &problems{}
	plan := p.compile(ps)
	if err := ps.err(p.file); err != nil {
		return nil, err
	}
	return plan, nil
}

// compile builds the plan; it is of use only when ps has no problems.
func (p *Pipeline) compile(ps *problems) *Plan {
	n := len(p.tasks)
	c := &compiler{
		problems: ps,
		p:        p,
		plan: &Plan{
			Name:      p.Name,
			OnFailure: p.onFailure,
			MaxTasks:  p.maxTasks,
			Nodes:     make([]Node, n),
			with:      make([]template, n),
			each:      make([]template, n),
			gives:     make([]*schema, n),
			inputRefs: make([][]Ref, n),
			eachRefs:  make([][]Ref, n),
			condRefs:  make([][]Ref, n),
			conds:     make([]*condition, n),
			keyRefs:   make([][]Ref, n),
			keys:      make([]*condition, n),
		},
		dormant: make([]string, n),
		index:   make(map[string]int32, n),
		edges:   make([][]edge, n),
		told:    map[*value]bool{},
	}
	if !c.caps() {
		return nil
	}
	c.plan.schema = c.schema(p.input, (*path)(nil).member("input"))
	for i, t := range p.tasks {
		c.index[t.name] = int32(i)
	}
	for i := range p.tasks {
		c.node(int32(i))
	}
	c.dormants()
	c.roots()
	c.shapes()
	for i, t := range p.tasks {
		if t.output != nil {
			c.plan.gives[i] = c.schema(t.output, t.at.member("output"))
		}
	}
	for i := range p.tasks { // what a backup gives is the other's output
		if q := c.plan.Nodes[i].Backs; q >= 0 && p.tasks[i].output == nil {
			c.plan.gives[i] = c.plan.gives[q]
		}
	}
	for i := range p.tasks {
		c.expressions(int32(i))
	}
	c.standIns()
	for i := range p.tasks {
		c.bound(int32(i))
	}
	c.leftBehind()
	c.budget()
	c.rings()
	c.rulesFit()
	if len(ps.list) > 0 {
		return nil
	}
	c.wire()
	c.plan.bounds()
	c.plan.foresee()
	c.plan.spoil()
	return c.plan
}

// budget looks if a job has more tasks than it may have before any map expands.
func (c *compiler) budget() {
	n := 0
	for i := range c.plan.Nodes {
		if c.dormant[i] == "" {
			n++
		}
	}
	if most := c.p.maxTasks; most > 0 && n > most {
		c.at(c.p.maxTasksAt.v, c.p.maxTasksAt.at, "a job begins with %d tasks, and max_tasks allows %d; raise it", n, most)
	}
}

// caps complains where too many tasks have what is dear, and reports whether none do.
func (c *compiler) caps() bool {
	conds, schemas, bounded, lines := 0, 0, 0, map[string]bool{}
	before := len(c.list)
	over := func(n *int, limit int, t *task, v *value, format string) {
		if *n++; *n == limit+1 {
			c.at(v, t.at, format, limit)
		}
	}
	for i := range c.p.tasks {
		t := &c.p.tasks[i]
		if t.cond.v != nil {
			over(&conds, condsCap, t, t.v, "more than %d tasks have a condition (if) or a concurrency key; let several stand behind one task that has the condition")
		}
		if t.key.v != nil {
			over(&conds, condsCap, t, t.v, "more than %d tasks have a condition (if) or a concurrency key; let several stand behind one task that has the condition")
		}
		if t.output != nil {
			over(&schemas, schemasCap, t, t.v, "more than %d tasks declare their output")
		}
		if t.parallel > 0 || !t.share.IsZero() {
			over(&bounded, boundedCap, t, t.v, "more than %d maps have max_parallel or min_success")
		}
		s := t.preset.or(c.p.preset)
		if line := s.queue + "\x00" + t.kind + "\x00" + s.circuit + "\x00" + t.asks.Encode(); !lines[line] && len(lines) <= linesCap {
			if lines[line] = true; len(lines) == linesCap+1 {
				c.at(t.v, t.at, "the tasks have more than %d different combinations of queue, run, circuit, limits, resources and worker_labels; a handler can go by its input", linesCap)
			}
		}
	}
	return len(c.list) == before
}

type compiler struct {
	*problems
	p     *Pipeline
	plan  *Plan
	index map[string]int32
	edges [][]edge // of each node, to its parents, as they were written

	dormant []string // of each node that runs only when it is called: by what
	uses    []use    // outputs that dormant tasks use

	shortMax *value          // the retry.backoff.max complained about last; many tasks may share it
	told     map[*value]bool // rules of a retry that were complained about; many tasks may share them
}

// edge is a dependency with the place that asked for it.
type edge struct {
	parent int32
	v      *value
	at     *path
}

// need resolves a task's name and records the dependency.
func (c *compiler) need(child int32, nd need) (int32, bool) {
	parent, ok := c.index[nd.name]
	switch {
	case !ok:
		c.at(nd.v, nd.at, "there is no task %q%s", clip(nd.name, 80), c.hint(nd.name, maps.Keys(c.index)))
		return 0, false
	case parent == child:
		c.at(nd.v, nd.at, "task %q waits for itself; remove this", nd.name)
		return 0, false
	case c.plan.Nodes[child].Undoes == parent:
		return parent, true // it has succeeded
	case c.dormant[parent] != "":
		c.at(nd.v, nd.at, "task %q runs only when it is called, as %s; nothing can wait for it", nd.name, c.dormant[parent])
		return 0, false
	case c.dormant[child] != "":
		c.uses = append(c.uses, use{child, edge{parent, nd.v, nd.at}})
		return parent, true
	}
	c.edges[child] = append(c.edges[child], edge{parent, nd.v, nd.at})
	return parent, true
}

func (c *compiler) node(i int32) {
	t := &c.p.tasks[i]
	s := t.preset.or(c.p.preset)
	if t.sub.v != nil { // what the others' attempts have is nothing to one that has none
		s = preset{class: s.class}
	}
	if s.retry.Max > 0 && s.retry.Max < cmp.Or(s.retry.Initial, DefaultRetry.Initial) && s.maxAt != c.shortMax {
		c.shortMax = s.maxAt
		c.at(s.maxAt, s.maxPath, "max %s is shorter than initial %s (task %q); max is the longest delay",
			s.retry.Max, cmp.Or(s.retry.Initial, DefaultRetry.Initial), t.name)
	}
	retry := fillRetry(s.retry)
	c.rules(t.name, retry, s.rules)
	c.plan.Nodes[i] = Node{
		Name:    t.name,
		Kind:    t.kind,
		Queue:   cmp.Or(s.queue, DefaultQueue),
		Class:   s.class,
		Mapped:  t.each != nil || t.over.name != "",
		Over:    -1,
		Timeout: cmp.Or(s.timeout, DefaultTimeout),

		ScheduleToClose: s.closes,
		Heartbeat:       s.beats,
		Circuit:         s.circuit,
		Asks:            t.asks,

		Retry:    retry,
		Artifact: t.artifact,
		Cache:    t.cache,
		Version:  t.version,
		When:     t.when,
		Fallback: -1,
		Primary:  -1,
		Backup:   -1,
		Backs:    -1,
		root:     -1,
		listed:   -1,

		Compensation: -1,
		Undoes:       -1,

		OnFailure: c.p.onFailure,
		Degrades:  t.onFailure == degrade,

		MaxParallel: int32(t.parallel),
		MinSuccess:  t.share,
		MaxElements: cmp.Or(t.elements, DefaultElements),
		Sub:         t.sub.name,
		Abandon:     t.close.name == "abandon",
	}
	c.plan.calls = c.plan.calls || t.sub.v != nil
	if c.plan.Nodes[i].Batch = t.batch; t.batch > 0 && t.each == nil {
		c.at(t.batchAt.v, t.batchAt.at, "batch_size parts a list that the task goes over, and task %q goes over none; remove it", t.name)
	}
	if k := slices.Index(policyNames, t.onFailure); k >= 0 {
		c.plan.Nodes[i].OnFailure = OnFailure(k)
	}
	if c.plan.Nodes[i].ranged = t.ranged; t.each != nil && t.each.kind != text {
		many, size := len(t.each.items), max(t.batch, 1)
		if t.ranged {
			many, _ = strconv.Atoi(t.each.text) // it has been checked
		}
		n := &c.plan.Nodes[i]
		n.listed = (many + size - 1) / size
		if t.ranged && n.listed > n.MaxElements {
			c.at(t.each, t.at.member("for_each").member("range"), "the range gives %d elements, and the map may have %d: %s", n.listed, n.MaxElements, FewerElements(n.listed, n.MaxElements))
		}
	}
	if t.stand != nil {
		c.plan.Nodes[i].Default = t.stand.appendJSON(nil)
	}
}

// FewerElements says what to do about a map of n elements that may have most.
func FewerElements(n, most int) string {
	if n > ElementCap || most == ElementCap {
		return "give each task several with batch_size"
	}
	return fmt.Sprintf("raise max_elements, which may be up to %d, or give each task several with batch_size", ElementCap)
}

// rules complains about rules that do not fit the retry they change.
func (c *compiler) rules(task string, p drover.Retry, rules map[string]need) {
	for _, k := range slices.Sorted(maps.Keys(rules)) {
		nd, rule := rules[k], p.On[k]
		if c.told[nd.v] {
			continue
		}
		before := len(c.list)
		if rule.MaxAttempts > p.MaxAttempts {
			c.at(nd.v, nd.at, "max_attempts %d is more than the retry's own, %d (task %q); a rule can only end a task sooner", rule.MaxAttempts, p.MaxAttempts, task)
		}
		if f := p.For("", k); f.Max < f.Initial {
			c.at(nd.v, nd.at, "max %s is shorter than initial %s (task %q); max is the longest delay", f.Max, f.Initial, task)
		}
		c.told[nd.v] = len(c.list) > before
	}
}

// roots finds for every map the one whose length it shares.
func (c *compiler) roots() {
	nodes := c.plan.Nodes
	for i := range nodes {
		t := &c.p.tasks[i]
		switch {
		case t.each != nil:
			nodes[i].root = int32(i)
		case t.over.name != "":
			parent, ok := c.need(int32(i), t.over)
			switch {
			case !ok:
			case nodes[parent].Mapped:
				nodes[i].Over = parent
				c.mayMiss(int32(i), parent, t.over.v, t.over.at)
			default:
				c.at(t.over.v, t.over.at, "task %[1]q is not a map, so there is nothing to go over element by element; to map over a list in its output, write for_each: \"${{ tasks.%[1]s.output.LIST }}\"", t.over.name)
			}
		}
	}
	found := make([]bool, len(nodes))
	var way []int32
	for i := range nodes {
		m := int32(i)
		for ; nodes[m].Over >= 0 && !found[m]; m = nodes[m].Over {
			found[m] = true
			way = append(way, m)
		}
		root := nodes[m].root // -1 within a ring or on a broken map; complained about elsewhere
		for _, k := range way {
			nodes[k].root = root
		}
		way = way[:0]
	}
}

// expressions compiles for_each and with of a node.
func (c *compiler) expressions(i int32) {
	t := &c.p.tasks[i]
	if t.each != nil {
		var refs refSet
		at := t.at.member("for_each")
		if t.ranged {
			at = at.member("range")
		}
		c.plan.each[i] = compileTemplate(t.each, at, c.problems, func(e *expr, v *value, at *path) {
			c.expression(i, e, v, at, false, &refs)
		})
		c.plan.eachRefs[i] = refs.sorted()
	}
	var refs refSet
	if t.with != nil {
		c.plan.with[i] = compileTemplate(t.with, t.at.member("with"), c.problems, func(e *expr, v *value, at *path) {
			c.expression(i, e, v, at, true, &refs)
		})
	} else if over := c.plan.Nodes[i].Over; over >= 0 {
		c.plan.refer(&refs, over, true)
	}
	c.plan.inputRefs[i] = refs.sorted()
	if t.cond.v != nil {
		c.plan.conds[i], c.plan.condRefs[i] = c.condition(i, t.cond)
	}
	if t.key.v != nil {
		c.plan.keys[i], c.plan.keyRefs[i] = c.concurrencyKey(i, t.key)
	}
}

// expression checks e and resolves it. Element says whether it is evaluated for
// one element, so that item and index mean something.
func (c *compiler) expression(i int32, e *expr, v *value, at *path, element bool, refs *refSet) {
	node := &c.plan.Nodes[i]
	switch e.root {
	case rootInput:
		c.inputRef(e, v, at)
	case rootItem, rootIndex:
		switch {
		case !element:
			c.at(v, at, "${{ %s }} has no meaning in for_each, which is evaluated once; use it in with", e)
		case !node.Mapped:
			c.at(v, at, "${{ %s }} has no meaning here: task %q has no for_each", e, node.Name)
		case e.root == rootItem && node.Over >= 0:
			c.plan.refer(refs, node.Over, true)
			c.declared(c.p.tasks[node.Over].output, 0, e, v, at)
		}
	case rootOutput:
		parent, ok := c.need(i, need{e.task, v, at})
		if !ok {
			return
		}
		e.node = parent
		same := c.plan.family(i, parent)
		broken := node.Mapped && node.root < 0 // which family it is in is unknown
		if c.plan.Nodes[parent].Mapped && !same && !broken && len(e.steps) > 0 && e.steps[0].isName {
			c.at(v, at, "task %q is a map, so its output is a list; write %s[0].%s for one element's, or use the whole list", e.task, e.upTo(0), e.steps[0].name)
		}
		if !c.plan.Nodes[parent].Mapped || same { // of a list, what is not there is left out
			c.mayMiss(i, parent, v, at)
		}
		c.plan.refer(refs, parent, same)
		from := 0
		if c.plan.Nodes[parent].Mapped && !same { // the first step is the element
			if from = 1; len(e.steps) == 0 || e.steps[0].isName {
				return
			}
		}
		c.declared(c.p.tasks[parent].output, from, e, v, at)
	}
}

// mayMiss complains about the use of an output that may not be there when its
// user runs: the rule of that lets it run though the other has not succeeded.
func (c *compiler) mayMiss(i, parent int32, v *value, at *path) {
	n, p := &c.plan.Nodes[i], &c.plan.Nodes[parent]
	if n.Undoes == parent {
		return
	}
	first := c.plan.CalledFor(i)
	sure := c.plan.Nodes[first].When.sureOf() && !c.plan.closes[first]
	switch {
	case p.Default != nil || sure && !p.Degrades:
		return
	case sure:
		c.at(v, at, "task %[1]q may have failed when %[2]q runs (on_failure: degrade), and then there is no output; give %[1]q a default, as in `default: null`", p.Name, n.Name)
		return
	case c.plan.closes[first]:
		c.at(v, at, "task %[1]q may not have succeeded when %[2]q runs, and then there is no output; give %[1]q a default, as in `default: null`", p.Name, n.Name)
		return
	}
	c.at(v, at, "task %[1]q may not have succeeded when %[2]q runs (when: %[3]s), and then there is no output; give %[1]q a default, as in `default: null`", p.Name, n.Name, n.When)
}

// rulesFit complains about rules that have nothing to look at.
func (c *compiler) rulesFit() {
	for i := range c.p.tasks {
		t := &c.p.tasks[i]
		if t.whenAt.v == nil || t.whenAt.v.kind != text {
			continue
		}
		parents, maps := map[int32]bool{}, false
		for _, e := range c.edges[i] {
			parents[e.parent] = true
			maps = maps || c.plan.Nodes[e.parent].Mapped
		}
		switch {
		case len(parents) == 0:
			c.at(t.whenAt.v, t.whenAt.at, "task %q waits for nothing, so that `when` has nothing to look at; remove it, or add needs", t.name)
		case t.when.kind == quorum && !maps && int(t.when.n) > len(parents):
			c.at(t.whenAt.v, t.whenAt.at, "task %q waits for %d tasks; of those, %d can never succeed", t.name, len(parents), t.when.n)
		}
	}
}

type refSet map[Ref]bool

func (s *refSet) add(r Ref) {
	if *s == nil {
		*s = refSet{}
	}
	(*s)[r] = true
}

func (s refSet) sorted() []Ref {
	return slices.SortedFunc(maps.Keys(s), func(a, b Ref) int { return cmp.Compare(a.Node, b.Node) })
}

// ringShown is how many tasks of a ring are shown.
const ringShown = 40

// rings complains about every set of tasks that wait for each other.
func (c *compiler) rings() {
	in := make([]int32, len(c.edges)) // the knot that each is of, from 1
	for i, group := range c.knots() {
		for _, n := range group {
			in[n] = int32(i) + 1
		}
		ring := c.ring(group[0], in)
		var b strings.Builder
		for k, n := range ring {
			if k == ringShown && len(ring) > ringShown {
				fmt.Fprintf(&b, "… (%d more) → ", len(ring)-ringShown)
				break
			}
			b.WriteString(clip(c.p.tasks[n].name, 63) + " → ")
		}
		first, last := ring[0], ring[len(ring)-1]
		b.WriteString(c.p.tasks[first].name)
		e := c.edges[first][slices.IndexFunc(c.edges[first], func(e edge) bool { return e.parent == last })]
		c.ringed = true
		c.at(e.v, e.at, "these tasks wait for each other: %s; remove one of the dependencies", &b)
	}
}

// knots returns the strongly connected sets of more than one node (Tarjan), each
// ascending, in the order of their first nodes.
func (c *compiler) knots() [][]int32 {
	n := len(c.edges)
	order := make([]int, n) // 0: not visited
	low := make([]int, n)
	on := make([]bool, n)
	var stack []int32
	var out [][]int32
	count := 0
	var visit func(v int32) // at most TaskCap deep
	visit = func(v int32) {
		count++
		order[v], low[v] = count, count
		stack = append(stack, v)
		on[v] = true
		for _, e := range c.edges[v] {
			switch w := e.parent; {
			case order[w] == 0:
				visit(w)
				low[v] = min(low[v], low[w])
			case on[w]:
				low[v] = min(low[v], order[w])
			}
		}
		if low[v] != order[v] {
			return
		}
		at := len(stack) - 1
		for stack[at] != v {
			at--
		}
		group := slices.Clone(stack[at:])
		for _, w := range group {
			on[w] = false
		}
		stack = stack[:at]
		if len(group) > 1 {
			slices.Sort(group)
			out = append(out, group)
		}
	}
	for v := range n {
		if order[v] == 0 {
			visit(int32(v))
		}
	}
	slices.SortFunc(out, func(a, b []int32) int { return cmp.Compare(a[0], b[0]) })
	return out
}

// ring returns a shortest ring through a node, in the order in which the tasks would
// run. in tells which knot each node is of.
func (c *compiler) ring(start int32, in []int32) []int32 {
	child := map[int32]int32{} // the way back towards start
	todo := []int32{start}
	for {
		v := todo[0]
		todo = todo[1:]
		for _, e := range c.edges[v] {
			if e.parent == start {
				ring := []int32{start}
				for w := v; w != start; w = child[w] {
					ring = append(ring, w)
				}
				return ring
			}
			if _, seen := child[e.parent]; !seen && in[e.parent] == in[start] {
				child[e.parent] = v
				todo = append(todo, e.parent)
			}
		}
	}
}

// wire sets parents, children and the order of the nodes.
func (c *compiler) wire() {
	nodes := c.plan.Nodes
	children := make([][]int32, len(nodes))
	unmet := make([]int, len(nodes))
	for i := range nodes {
		ps := make([]int32, 0, len(c.edges[i]))
		for _, e := range c.edges[i] {
			ps = append(ps, e.parent)
		}
		slices.Sort(ps)
		nodes[i].Parents = slices.Compact(ps)
		unmet[i] = len(nodes[i].Parents)
		for _, q := range nodes[i].Parents {
			children[q] = append(children[q], int32(i))
		}
	}
	c.named()
	order := make([]int32, 0, len(nodes))
	for i := range nodes {
		if unmet[i] == 0 {
			order = append(order, int32(i))
		}
	}
	for done := 0; done < len(order); done++ {
		for _, ch := range children[order[done]] {
			if unmet[ch]--; unmet[ch] == 0 {
				order = append(order, ch)
			}
		}
	}
	c.plan.order = order
	c.plan.families = make([][]int32, len(nodes))
	for _, m := range order {
		if root := nodes[m].root; root >= 0 && !nodes[m].Dormant {
			c.plan.families[root] = append(c.plan.families[root], m)
		}
	}
	for i := range nodes {
		for _, q := range nodes[i].Parents {
			nodes[q].ChildrenNodes = append(nodes[q].ChildrenNodes, int32(i))
		}
	}
}

// named sets the edges that the definition names.
func (c *compiler) named() {
	for i := range c.plan.Nodes {
		data := map[int32]bool{}
		for _, refs := range [][]Ref{c.plan.inputRefs[i], c.plan.eachRefs[i]} {
			for _, r := range refs {
				data[r.Node] = true
			}
		}
		for _, q := range c.plan.Nodes[i].Parents {
			c.plan.Edges = append(c.plan.Edges, Edge{q, int32(i), data[q], c.plan.family(int32(i), q)})
		}
	}
}

// foresee notes what the engine asks for at every end.
func (p *Plan) foresee() {
	p.calm, p.taken, p.hears = make([]bool, len(p.Nodes)), make([]bool, len(p.Nodes)), make([]bool, len(p.Nodes))
	skipped := make([]bool, len(p.Nodes))
	p.skippable = skipped
	for _, i := range p.order {
		n := &p.Nodes[i]
		for _, q := range n.Parents {
			p.hears[i] = p.hears[i] || skipped[q]
		}
		skipped[i] = n.When.skips() || p.hears[i] || p.Conditional(Key{i, 0}) || p.Conditional(Key{i, Unexpanded}) || n.Over >= 0 && n.When.kind != allSuccess
	}
	for k := len(p.order) - 1; k >= 0; k-- {
		i := p.order[k]
		p.calm[i] = p.Nodes[i].MinSuccess.IsZero() // the map as a whole may end with it
		for _, c := range p.Nodes[i].ChildrenNodes {
			n := &p.Nodes[c]
			if len(p.ends(c, Succeeded)) > 0 || n.Cache || n.Mapped && !p.family(i, c) || p.Conditional(Key{c, 0}) || p.Conditional(Key{c, Unexpanded}) || p.keys[c] != nil {
				p.calm[i] = false
			}
			// A failure that blocks the task below reaches the tasks below that.
			if n.When.takesFailure() || n.When.kind != always && p.taken[c] {
				p.taken[i] = true
			}
		}
	}
	for i := range p.Nodes {
		if first, _ := p.Stands(int32(i)); first != int32(i) {
			p.calm[i] = p.calm[first]
		}
	}
}
