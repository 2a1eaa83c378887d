package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/test/chaos/journal"
)

// The pipelines of the load, and what the checker must know of them.
const fan = `
pipeline: fan
input: {type: object, properties: {n: {type: integer}}}
defaults: {queue: chaos, timeout: 60s, retry: {max_attempts: 8, backoff: {initial: 50ms, max: 400ms}}}
tasks:
  split: {run: split, with: {n: "${{ input.n }}"}}
  piece: {run: piece, for_each: "${{ tasks.split.output }}"}
  join: {run: join, with: "${{ tasks.piece.output }}"}
`

const diamond = `
pipeline: diamond
input: {type: object, properties: {of: {type: array}}}
defaults: {queue: chaos, timeout: 60s, retry: {max_attempts: 8, backoff: {initial: 50ms, max: 400ms}}}
tasks:
  top: {run: work, with: {n: 1, ms: 5}}
  left: {run: work, needs: [top], with: {n: 2, ms: 20}}
  right: {run: work, needs: [top], with: {n: 3}}
  each: {run: piece, for_each: "${{ input.of }}"}
  then: {run: piece, for_each: each, with: {n: "${{ tasks.each.output }}"}}
  bottom: {run: join, needs: [left, right], with: "${{ tasks.then.output }}"}
`

var graphs = []journal.Record{
	{Is: journal.Graph, Pipeline: "fan", Needs: map[string][]string{"split": {}, "piece": {"split"}, "join": {"piece"}}, Maps: []string{"piece"}},
	{Is: journal.Graph, Pipeline: "diamond", Needs: map[string][]string{"top": {}, "left": {"top"}, "right": {"top"}, "each": {}, "then": {"each[]"}, "bottom": {"left", "right", "then"}},
		Maps: []string{"each", "then"}},
}

// load is what the clients do.
type load struct {
	c    *cluster
	j    *journal.Writer
	via  []*client.Client // by server
	next atomic.Int64
	// unknown holds calls that have had no answer; they are asked again once all is well.
	mu      sync.Mutex
	unknown []func(context.Context) bool
	err     error // a journal that cannot be written
}

func newLoad(ctx context.Context, c *cluster) (*load, error) {
	j, err := journal.Open(c.journals() + "/client.jsonl")
	if err != nil {
		return nil, err
	}
	l := &load{c: c, j: j}
	for i := range c.servers {
		x, err := c.client(i)
		if err != nil {
			return nil, err
		}
		l.via = append(l.via, x)
	}
	for name, text := range map[string]string{"fan.yaml": fan, "diamond.yaml": diamond} {
		if _, err := l.via[0].ApplyPipeline(ctx, name, []byte(text)); err != nil {
			return nil, err
		}
	}
	return l, j.Write(graphs...)
}

// note writes to the journal; a failure ends the run.
func (l *load) note(list ...journal.Record) {
	if err := l.j.Write(list...); err != nil {
		l.mu.Lock()
		l.err = err
		l.mu.Unlock()
	}
}

func (l *load) any() *client.Client { return l.via[rand.IntN(len(l.via))] }

// call makes a call until it has a definite answer or ctx ends, each try noted
// under one operation. It reports whether it was answered with yes.
func (l *load) call(ctx context.Context, r journal.Record, do func(context.Context, *client.Client) (journal.Record, error)) bool {
	if r.Op == "" {
		r.Op = fmt.Sprintf("op-%d", l.next.Add(1))
	}
	for try := 0; try < 4 && ctx.Err() == nil; try++ {
		answered, yes := l.once(ctx, r, do)
		if answered {
			return yes
		}
		time.Sleep(time.Duration(50+rand.IntN(200)) * time.Millisecond)
	}
	l.mu.Lock()
	l.unknown = append(l.unknown, func(ctx context.Context) bool { answered, _ := l.once(ctx, r, do); return answered })
	l.mu.Unlock()
	return false
}

func (l *load) once(ctx context.Context, r journal.Record, do func(context.Context, *client.Client) (journal.Record, error)) (answered, yes bool) {
	r.Is = journal.Invoke
	l.note(r)
	// The end of the load does not cut a call off.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 8*time.Second)
	defer cancel()
	got, err := do(ctx, l.any())
	r.Job, r.Jobs, r.Status, r.Again = got.Job, got.Jobs, got.Status, got.Again
	r.Is = journal.OK
	if err != nil {
		r.Is = journal.Unknown
		if code := drover.CodeOf(err); code != "" && code != drover.CodeOverloaded && code != drover.CodeInternal {
			r.Is, r.Code = journal.Fail, string(code)
		}
		r.Note = err.Error()
	}
	l.note(r)
	return r.Is != journal.Unknown, r.Is == journal.OK
}

// settleUnknown asks again what had no answer; it is for quiet times.
func (l *load) settleUnknown(ctx context.Context) int {
	l.mu.Lock()
	list := l.unknown
	l.unknown = nil
	l.mu.Unlock()
	for _, again := range list {
		for !again(ctx) && ctx.Err() == nil {
			time.Sleep(100 * time.Millisecond)
		}
	}
	return len(list)
}

func hash(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain values
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

func raw(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain values
	}
	return b
}

// submit hands a job over under a key, and again, by another server, when the
// answer is lost.
func (l *load) submit(ctx context.Context, n drover.NewJob, elements map[string]int) (id drover.JobID, ok bool) {
	n.IdempotencyKey = fmt.Sprintf("key-%d-%d", l.next.Add(1), rand.Int64())
	return l.submitAs(ctx, n, elements)
}

func (l *load) submitAs(ctx context.Context, n drover.NewJob, elements map[string]int) (id drover.JobID, ok bool) {
	r := journal.Record{Verb: "submit", Key: n.IdempotencyKey, Body: hash(n), Pipeline: n.Pipeline, Elements: elements}
	if !n.DueAt.IsZero() {
		r.Due = n.DueAt.UnixNano()
	}
	ok = l.call(ctx, r, func(ctx context.Context, c *client.Client) (journal.Record, error) {
		s, err := c.Submit(ctx, n)
		if err != nil {
			return journal.Record{}, err
		}
		id = s.JobID
		return journal.Record{Job: hexOf(s.JobID), Again: s.Replayed}, nil
	})
	return id, ok
}

func (l *load) act(ctx context.Context, verb string, id drover.JobID) bool {
	r := journal.Record{Verb: verb, Job: hexOf(id), Request: fmt.Sprintf("%s-%d", verb, l.next.Add(1))}
	return l.call(ctx, r, func(ctx context.Context, c *client.Client) (journal.Record, error) {
		a := client.Action{RequestID: r.Request, Reason: "chaos"}
		do := map[string]func(context.Context, drover.JobID, client.Action) (drover.Job, error){"cancel": c.Cancel, "pause": c.Pause, "resume": c.Resume}[verb]
		j, err := do(ctx, id, a)
		if err != nil {
			return journal.Record{Job: r.Job}, err
		}
		status := j.Status.String()
		if j.Cancelling {
			status = "CANCELLING"
		}
		return journal.Record{Job: r.Job, Status: status}, nil
	})
}

func work(e effort) drover.NewJob {
	return drover.NewJob{Kind: "work", Queue: "chaos", Input: raw(e),
		Retry: &drover.Retry{MaxAttempts: 6, Initial: drover.Duration(50 * time.Millisecond), Max: drover.Duration(400 * time.Millisecond)}}
}

// run makes calls until ctx ends: each kind once, and then as chance has it.
func (l *load) run(ctx context.Context, pace time.Duration) {
	var side sync.WaitGroup
	defer side.Wait()
	watched := make(chan struct{}, 4)
	watch := func(id drover.JobID) {
		select {
		case watched <- struct{}{}:
			side.Go(func() { l.watch(ctx, id); <-watched })
		default:
		}
	}
	kinds := []struct {
		weight int
		do     func()
	}{
		{35, func() {
			l.submit(ctx, work(effort{N: rand.IntN(1000), Ms: rand.IntN(400), Fail: max(0, rand.IntN(6)-4), Deaf: rand.IntN(10) == 0, Save: rand.IntN(12) == 0}), nil)
		}},
		{8, func() {
			n := work(effort{N: 1})
			n.DueAt = time.Now().Add(time.Duration(200+rand.IntN(2500)) * time.Millisecond).Truncate(time.Microsecond)
			l.submit(ctx, n, nil)
		}},
		{10, func() { l.batch(ctx) }},
		{15, func() {
			if id, ok := l.pipeline(ctx, 1+rand.IntN(11)); ok {
				watch(id)
			}
		}},
		{2, func() { l.pipeline(ctx, 0) }},
		{8, func() { l.cancel(ctx) }},
		{4, func() {
			if id, ok := l.pipeline(ctx, 8); ok {
				l.act(ctx, "cancel", id)
			}
		}},
		{6, func() { side.Go(func() { l.pause(ctx) }) }},
		{6, func() { side.Go(func() { l.poison(ctx) }) }},
		{3, func() { l.conflict(ctx) }},
		{3, func() { l.burst(ctx) }},
	}
	total := 0
	for _, k := range kinds {
		k.do()
		total += k.weight
	}
	for ctx.Err() == nil {
		n := rand.IntN(total)
		for _, k := range kinds {
			if n -= k.weight; n < 0 {
				k.do()
				break
			}
		}
		sleep(ctx, pace/2+time.Duration(rand.Int64N(int64(pace))))
	}
}

// cancel stops a job that runs, or one that waits for its time.
func (l *load) cancel(ctx context.Context) {
	n := work(effort{N: 1, Ms: 200 + rand.IntN(1500)})
	if rand.IntN(2) == 0 {
		n.DueAt = time.Now().Add(20 * time.Second).Truncate(time.Microsecond)
	}
	if id, ok := l.submit(ctx, n, nil); ok {
		sleep(ctx, time.Duration(rand.IntN(400))*time.Millisecond)
		l.act(ctx, "cancel", id)
	}
}

// pipeline submits one of the pipelines, with maps over n elements.
func (l *load) pipeline(ctx context.Context, n int) (drover.JobID, bool) {
	if rand.IntN(2) == 0 {
		return l.submit(ctx, drover.NewJob{Pipeline: "fan", Input: raw(map[string]int{"n": n})}, map[string]int{"piece": n})
	}
	of := make([]effort, n)
	for i := range of {
		of[i] = effort{N: i, Ms: rand.IntN(150)}
	}
	return l.submit(ctx, drover.NewJob{Pipeline: "diamond", Input: raw(map[string]any{"of": of})}, map[string]int{"each": n, "then": n})
}

// batch hands over several jobs at once.
func (l *load) batch(ctx context.Context) {
	jobs := make([]drover.NewJob, 2+rand.IntN(25))
	for i := range jobs {
		jobs[i] = work(effort{N: i, Ms: rand.IntN(150)})
		jobs[i].IdempotencyKey = fmt.Sprintf("batch-%d-%d", l.next.Add(1), rand.Int64())
	}
	l.call(ctx, journal.Record{Verb: "batch", Key: jobs[0].IdempotencyKey, Body: hash(jobs)}, func(ctx context.Context, c *client.Client) (journal.Record, error) {
		list, err := c.SubmitMany(ctx, jobs)
		if err != nil {
			return journal.Record{}, err
		}
		var r journal.Record
		for _, s := range list {
			if s.Err != nil {
				return r, s.Err
			}
			r.Jobs = append(r.Jobs, hexOf(s.JobID))
			r.Again = r.Again || s.Replayed
		}
		return r, nil
	})
}

// pause holds a job for a while.
func (l *load) pause(ctx context.Context) {
	id, ok := l.pipeline(ctx, 6)
	if !ok {
		return
	}
	time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond)
	if l.act(ctx, "pause", id) {
		time.Sleep(time.Duration(200+rand.IntN(1000)) * time.Millisecond)
	}
	l.act(ctx, "resume", id)
}

// poison makes a dead letter and replays it with an input that works, twice under
// one request id.
func (l *load) poison(ctx context.Context) {
	n := work(effort{N: 1, Poison: true})
	n.Kind = "poison" // of which a rude worker knows nothing
	n.Retry = &drover.Retry{MaxAttempts: 1 + rand.IntN(2), Initial: drover.Duration(20 * time.Millisecond)}
	id, ok := l.submit(ctx, n, nil)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second) // also when the storm is over
	defer cancel()
	j, err := l.any().WaitJob(ctx, id)
	if err != nil || j.Status != drover.Failed {
		return
	}
	page, err := l.any().Tasks(ctx, id, client.TasksFilter{})
	if err != nil || len(page.Items) != 1 {
		return
	}
	task := page.Items[0].ID
	r := journal.Record{Verb: "replay", Job: hexOf(id), Task: hexOf(task), Request: fmt.Sprintf("replay-%d", l.next.Add(1))}
	for range 2 {
		l.call(ctx, r, func(ctx context.Context, c *client.Client) (journal.Record, error) {
			_, err := c.Replay(ctx, task, client.Replay{Input: raw(effort{N: 2}), RequestID: r.Request})
			return journal.Record{Job: r.Job}, err
		})
	}
}

// conflict asks for another job under a key that is taken.
func (l *load) conflict(ctx context.Context) {
	n := work(effort{N: 1})
	n.IdempotencyKey = fmt.Sprintf("taken-%d-%d", l.next.Add(1), rand.Int64())
	if _, ok := l.submitAs(ctx, n, nil); ok {
		n.Input = raw(effort{N: 2})
		l.submitAs(ctx, n, nil)
	}
}

// burst asks for the same job many times at once.
func (l *load) burst(ctx context.Context) {
	n := work(effort{N: 7})
	n.IdempotencyKey = fmt.Sprintf("burst-%d-%d", l.next.Add(1), rand.Int64())
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() { l.submitAs(ctx, n, nil) })
	}
	all.Wait()
}

// errEnough ends a watch.
var errEnough = errors.New("enough")

// watch follows a job's events and notes each.
func (l *load) watch(ctx context.Context, id drover.JobID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 60*time.Second)
	defer cancel()
	op := fmt.Sprintf("watch-%d", l.next.Add(1))
	_ = l.any().Watch(ctx, id, 0, func(e drover.Event) error { // what was seen counts, however it ends
		if e.Seq > 0 {
			l.note(journal.Record{Is: journal.Seen, Op: op, Job: hexOf(id), Seq: e.Seq, Type: string(e.Type)})
		}
		if ctx.Err() != nil {
			return errEnough
		}
		return nil
	})
}
