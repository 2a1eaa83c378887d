package flow

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/drover-dev/drover"
)

// The builders of this file are those of Celery's Canvas. What they build is a
// definition: registered, versioned and visible like any other, and a job of it
// goes on where it was after a crash.

// Part is a piece of a pipeline that other pieces are put together with: a Task,
// or what Chain, Group and Chord return.
type Part interface {
	first() []*Task // what starts with the part
	last() []*Task  // what the part is done with
}

func (t *Task) first() []*Task { return []*Task{t} }
func (t *Task) last() []*Task  { return []*Task{t} }

// Block is several tasks put together.
type Block struct {
	heads, tails []*Task
	choice       bool // only some of the tails run
}

func (b *Block) first() []*Task { return b.heads }
func (b *Block) last() []*Task  { return b.tails }

// Chain makes each part wait for the one before it.
func Chain(parts ...Part) *Block {
	b := &Block{}
	for _, p := range parts {
		for _, t := range p.first() {
			t.after(b.tails...)
			if _, has := t.keys["when"]; b.choice && !has {
				t.set("when", "none_failed_min_one_success")
			}
		}
		if len(b.heads) == 0 {
			b.heads = p.first()
		}
		if len(p.last()) > 0 { // an empty group is stepped over
			b.tails = p.last()
			block, ok := p.(*Block)
			b.choice = ok && block.choice
		}
	}
	return b
}

// Group is parts that run at the same time.
func Group(parts ...Part) *Block {
	b := &Block{}
	for _, p := range parts {
		b.heads, b.tails = add(b.heads, p.first()), add(b.tails, p.last())
	}
	return b
}

// Case is a branch of a Switch: the part that runs when the condition, in CEL as If
// has it, holds. A Case without a condition runs when no other does.
type Case struct {
	If   string
	Then Part
}

// Switch runs the part of the first case whose condition holds; the others are
// skipped. What follows it in a Chain runs when the branch that was taken has
// succeeded (when: none_failed_min_one_success), and not at all when none was taken.
func Switch(cases ...Case) *Block {
	b := &Block{choice: true}
	var before []string // conditions that must not hold
	for _, c := range cases {
		all := slices.Clone(before)
		if c.If != "" {
			all = append(all, "("+c.If+")")
			before = append(before, "!("+c.If+")")
		}
		for _, t := range c.Then.first() {
			own := all
			if had, ok := t.keys["if"].(string); ok {
				own = append(slices.Clone(all), "("+had+")")
			}
			if len(own) > 0 {
				t.set("if", strings.Join(own, " && "))
			}
		}
		b.heads, b.tails = add(b.heads, c.Then.first()), add(b.tails, c.Then.last())
	}
	return b
}

// add adds what is not in list already.
func add(list, more []*Task) []*Task {
	for _, t := range more {
		if !slices.Contains(list, t) {
			list = append(slices.Clip(list), t)
		}
	}
	return list
}

// Chord runs body when all of header is done, and gives it what header gave: the
// outputs in the order of its parts, of a map alone the outputs of its elements.
// A body that has an input of its own (With) keeps it and only waits.
func Chord(header Part, body *Task) *Block {
	outputs := header.last()
	if _, has := body.keys["with"]; !has {
		var input any
		if len(outputs) == 1 && outputs[0].isMap() {
			input = outputs[0].Output()
		} else {
			refs := make([]Ref, len(outputs))
			for i, t := range outputs {
				refs[i] = t.Output()
			}
			input = refs
		}
		body.setJSON("with", input)
	}
	return Chain(header, body)
}

func (t *Task) isMap() bool {
	_, ok := t.keys["for_each"]
	return ok
}

// Join makes task wait for all of parts and returns it.
func Join(task *Task, parts ...Part) *Task {
	for _, p := range parts {
		task.after(p.last()...)
	}
	return task
}

// Map adds a task that becomes one task for each element of list: a Ref to a
// list, a slice, or a *Task that is a map, over which it goes element by element.
// Without With the task's input is the element.
func (p *Pipeline) Map(name string, list any, options ...Option) *Task {
	how := ForEach(list)
	if other, ok := list.(*Task); ok {
		how = Over(other)
	}
	return p.Task(name, append([]Option{how}, options...)...)
}

// Chunks adds a map over the slice items in lists of n of them, the last one
// maybe shorter: fewer and larger tasks than Map makes. Without With the task's
// input is its list.
func (p *Pipeline) Chunks(name string, items any, n int, options ...Option) *Task {
	t := p.Task(name, options...)
	broken := func(format string, args ...any) *Task {
		t.set("for_each", json.RawMessage("[]"))
		t.broken = append(t.broken, drover.FieldError{Field: "for_each", Message: fmt.Sprintf(format, args...)})
		return t
	}
	if n < 1 {
		return broken("chunks of %d elements; at least 1", n)
	}
	src, err := json.Marshal(items)
	if err != nil {
		return broken("%s", err)
	}
	var list []json.RawMessage
	if err := json.Unmarshal(src, &list); err != nil {
		return broken("Chunks needs a slice, which is known when the pipeline is built, and has %T", items)
	}
	t.setJSON("for_each", slices.Collect(slices.Chunk(list, n)))
	return t
}
