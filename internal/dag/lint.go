package dag

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drover-dev/drover"
)

// Finding is something in a valid definition that somebody may regret.
type Finding struct {
	Rule    string `json:"rule"`
	Field   string `json:"field"` // its place, such as tasks.cut.for_each
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Message string `json:"message"`
	Remedy  string `json:"remedy"`
}

// The rules of Lint.
const (
	RuleGranularity = "granularity"       // tasks too small, or too many
	RuleUnreachable = "unreachable"       // a task that can never run
	RuleSleeping    = "sleeping-task"     // a task that waits and holds a worker meanwhile
	RuleSideEffect  = "side-effect"       // a repeat does it twice
	RuleNoUse       = "useless-bound"     // a bound that never takes effect
	RuleUnhandled   = "unhandled-outcome" // an outcome above a task that keeps it from running
)

const (
	overheads   = 5    // a task should run for so many times of what it costs to hand it out
	manyListed  = 1000 // elements of a list written into a definition
	longSleep   = 5 * time.Minute
	leastHanded = 2 * time.Millisecond // what handing a task out costs at least
)

// Lint looks for what is allowed and mostly a mistake. Measures may be nil.
func (p *Pipeline) Lint(plan *Plan, m Measures) []Finding {
	l := linter{p: p, plan: plan}
	for i := range p.tasks {
		l.granularity(i, m[p.tasks[i].name])
		l.unreachable(i)
		l.command(i)
		l.effects(i)
		l.beside(i)
		l.bounds(i)
		l.elements(i)
		l.branches(i)
	}
	slices.SortStableFunc(l.out, func(a, b Finding) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	return l.out
}

type linter struct {
	p    *Pipeline
	plan *Plan
	out  []Finding
}

// say adds a finding at a key of a task, or at the task where it has no such key.
func (l *linter) say(i int, rule, key, remedy, format string, args ...any) {
	t := &l.p.tasks[i]
	v, at := t.v, t.at
	if m := t.v.get(key); m != nil {
		v, at = m, t.at.member(key)
	}
	l.out = append(l.out, Finding{Rule: rule, Field: at.String(), Line: v.line, Column: v.col, Message: fmt.Sprintf(format, args...), Remedy: remedy})
}

func (l *linter) granularity(i int, m Measure) {
	n := &l.plan.Nodes[i]
	if !n.Mapped {
		return
	}
	handed := max(m.Handoff, leastHanded)
	switch {
	case m.Tasks >= 20 && m.Elements >= 10 && m.Run < overheads*handed:
		l.say(i, RuleGranularity, "for_each",
			fmt.Sprintf("give each task some %d elements, so that it runs for a tenth of a second or more", max(2, int(100*time.Millisecond/max(m.Run, time.Millisecond)))),
			"half of the tasks of this map run for less than %s, and handing one out takes %s", shortly(m.Run), shortly(handed))
	case n.listed > manyListed && !n.ranged:
		l.say(i, RuleGranularity, "for_each", "read the list from the input or from a task's output, and give each task several elements",
			"the list has %d elements written into the definition, each a task of its own", n.listed)
	case m.Elements > n.MaxElements/2:
		remedy := "give each task several elements"
		if n.MaxElements < ElementCap {
			remedy += ", or raise max_elements"
		}
		l.say(i, RuleGranularity, "for_each", remedy, "the map has had %d elements; at most %d are allowed", m.Elements, n.MaxElements)
	}
}

func (l *linter) unreachable(i int) {
	n := &l.plan.Nodes[i]
	if n.root >= 0 && l.plan.Nodes[n.root].listed == 0 {
		l.say(i, RuleUnreachable, "for_each", "remove the task, or read the list from the input",
			"the map %q has no elements, so this never runs", l.plan.Nodes[n.root].Name)
	}
	if n.When.kind != allSkipped {
		return
	}
	for _, q := range n.Parents {
		if !l.plan.skippable[q] {
			l.say(i, RuleUnreachable, "when", "give that task a condition (if), or this one another rule",
				"the task runs once all above it were skipped, and %q never is", l.plan.Nodes[q].Name)
			return
		}
	}
}

// branches looks for joins of several tasks that are skipped with the first of them.
func (l *linter) branches(i int) {
	n := &l.plan.Nodes[i]
	if n.When.kind != allSuccess || len(n.Parents) < 2 {
		return
	}
	var conditional []string
	for _, q := range n.Parents {
		if l.p.tasks[q].cond.v != nil && !l.plan.Nodes[q].Mapped {
			conditional = append(conditional, l.plan.Nodes[q].Name)
		}
	}
	if len(conditional) > 1 {
		l.say(i, RuleUnhandled, "when", "write when: none_failed, or none_failed_min_one_success, if one of them is enough",
			"the task runs only if no condition (if) above it is false: it is skipped with any of %s", strings.Join(conditional, ", "))
	}
}

// elements looks for bounds of maps that take no effect.
func (l *linter) elements(i int) {
	n := &l.plan.Nodes[i]
	if n.root < 0 || l.plan.Nodes[n.root].listed < 0 {
		return
	}
	size := l.plan.Nodes[n.root].listed
	if n.MaxParallel > 0 && int(n.MaxParallel) >= size {
		l.say(i, RuleNoUse, "max_parallel", "make it smaller, or leave it out", "max_parallel %d is never reached: the map has %d elements", n.MaxParallel, size)
	}
	if s := n.MinSuccess; !s.IsZero() && int(s.of(int32(size))) >= size {
		l.say(i, RuleNoUse, "min_success", "ask for fewer, or leave it out", "min_success %s of %d elements is all of them", s, size)
	}
}

var (
	sleepCall = regexp.MustCompile(`(?:^|[\s;&|(])sleep\s+([0-9]+(?:\.[0-9]+)?)([smhd]?)(?:$|[\s;&|)])`)
	pollLoop  = regexp.MustCompile(`(?s)\b(?:while|until)\b.*\bdo\b.*\bsleep\b`)
	callsOut  = regexp.MustCompile(`\bcurl\b.*(?:-X\s*|--request[ =])(?:POST|PUT|PATCH|DELETE)\b|\bcurl\b.*\s(?:-d|--data(?:-raw|-binary|-urlencode)?|--json|-F|--form)\b|\bwget\b.*--post-(?:data|file)`)
)

// command looks at what a program that exec runs does, as far as its command line
// tells.
func (l *linter) command(i int) {
	t := &l.p.tasks[i]
	if t.kind != "exec" || t.with == nil || t.with.kind != object {
		return
	}
	c := t.with.get("command")
	if c == nil || c.kind != list {
		return
	}
	var words []string
	for _, w := range c.items {
		words = append(words, w.text)
	}
	line := strings.Join(words, " ")
	if d := slept(words, line); d >= longSleep {
		l.say(i, RuleSleeping, "with", "let the handler snooze, which gives the worker back, or submit what comes after with due_at",
			"the task sleeps for %s and holds a worker meanwhile", drover.Duration(d))
	} else if pollLoop.MatchString(line) {
		l.say(i, RuleSleeping, "with", "look once and, when it is too early, snooze: the worker is free until then",
			"the task asks again and again and holds a worker meanwhile")
	}
	if callsOut.MatchString(line) && !passesKey(line) && t.compensate.v == nil && t.effects == "" {
		l.say(i, RuleSideEffect, "with", `pass the key on: -H "Idempotency-Key: $DROVER_IDEMPOTENCY_KEY", or use run: http, which does`,
			"the task changes something outside, and a second attempt changes it again")
	}
}

// passesKey reports whether a command line passes the task's idempotency key on.
func passesKey(line string) bool {
	return strings.Contains(line, "IDEMPOTENCY_KEY") || strings.Contains(strings.ToLower(line), "idempotency-key")
}

// effects looks at a task that says it changes something outside: it must pass its
// idempotency key on, or something must undo it.
func (l *linter) effects(i int) {
	t := &l.p.tasks[i]
	if t.effects != "true" || t.compensate.v != nil || t.kind == "http" {
		return
	}
	if t.kind == "exec" && t.with != nil && passesKey(string(t.with.appendJSON(nil))) {
		return
	}
	l.say(i, RuleSideEffect, "side_effects", "say side_effects: idempotent when the handler passes the task's idempotency key on, or name a task that undoes it (compensate)",
		"the task changes something outside: a second attempt changes it again, and nothing undoes it")
}

// beside looks at a task that runs beside its backup: both may do what they do.
func (l *linter) beside(i int) {
	b := l.plan.Nodes[i].Backup
	if b < 0 {
		return
	}
	for _, k := range []int32{int32(i), b} {
		if t := &l.p.tasks[k]; t.effects == "true" && t.kind != "http" {
			l.say(i, RuleSideEffect, "backup", "say side_effects: idempotent where what both do comes to the same, or use fallback, which waits until the task has failed for good",
				"task %q changes something outside, and runs beside %q: both may have changed it, and only the task's own compensation is called", t.name, l.plan.Nodes[int32(i)+b-k].Name)
			return
		}
	}
}

// slept returns how long a command line sleeps.
func slept(words []string, line string) time.Duration {
	if len(words) > 1 && (words[0] == "sleep" || strings.HasSuffix(words[0], "/sleep")) {
		line = "sleep " + strings.Join(words[1:], " ")
	}
	var total time.Duration
	for _, m := range sleepCall.FindAllStringSubmatch(line, -1) {
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil || n > 1e6 {
			continue
		}
		unit := map[string]time.Duration{"": time.Second, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}[m[2]]
		total += time.Duration(n * float64(unit))
	}
	return total
}

// bounds looks for times that are never reached.
func (l *linter) bounds(i int) {
	n, t := &l.plan.Nodes[i], &l.p.tasks[i]
	own := t.preset.or(l.p.preset)
	if n.ScheduleToClose > 0 && own.timeout >= n.ScheduleToClose {
		l.say(i, RuleNoUse, "timeout", "make timeout shorter than schedule_to_close, or leave it out",
			"timeout %s is never reached: schedule_to_close ends the task after %s", drover.Duration(own.timeout), drover.Duration(n.ScheduleToClose))
	}
	if n.Heartbeat > 0 && n.Heartbeat >= n.Timeout {
		l.say(i, RuleNoUse, "heartbeat", "make heartbeat shorter than timeout, or leave it out",
			"heartbeat %s is never missed: timeout ends the attempt after %s", drover.Duration(n.Heartbeat), drover.Duration(n.Timeout))
	}
}

// shortly writes a short time.
func shortly(d time.Duration) string { return d.Round(100 * time.Microsecond).String() }

// Sample is one task of a job that has run.
type Sample struct {
	Job          int // which job, by any number
	Name         string
	Mapped       bool
	Run, Handoff time.Duration
}

// MeasuresOf sums samples up by the name of the task.
func MeasuresOf(samples []Sample) Measures {
	runs, handed := map[string][]time.Duration{}, map[string][]time.Duration{}
	elements := map[string]map[int]int{}
	for _, s := range samples {
		runs[s.Name] = append(runs[s.Name], s.Run)
		handed[s.Name] = append(handed[s.Name], s.Handoff)
		if s.Mapped {
			if elements[s.Name] == nil {
				elements[s.Name] = map[int]int{}
			}
			elements[s.Name][s.Job]++
		}
	}
	out := Measures{}
	for name, list := range runs {
		m := Measure{Tasks: len(list), Run: quantile(list, 2)}
		// Most of the wait for a worker is for want of one; what it costs to hand a task
		// out shows where nobody had to wait.
		m.Handoff = quantile(handed[name], 4)
		var counts []int
		for _, n := range elements[name] {
			counts = append(counts, n)
		}
		if len(counts) > 0 {
			m.Elements = quantile(counts, 2)
		}
		out[name] = m
	}
	return out
}

// quantile returns the value below which one nth of the list is: 2 is the median.
func quantile[T int | time.Duration](list []T, n int) T {
	slices.Sort(list)
	return list[(len(list)-1)/n]
}

// MarshalJSON writes the times in seconds, as everywhere.
func (m Measure) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Tasks    int             `json:"tasks"`
		Run      drover.Duration `json:"run"`
		Handoff  drover.Duration `json:"handoff"`
		Elements int             `json:"elements,omitempty"`
	}{m.Tasks, drover.Duration(m.Run), drover.Duration(m.Handoff), m.Elements})
}
