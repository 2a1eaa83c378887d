package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
)

// client submits jobs and acts on them. It repeats a request that got no answer,
// as it was, until it is answered.
type client struct {
	w    *world
	n    int
	wall time.Duration // its clock is off by this
	open int           // requests that are not answered
}

func (c *client) ask(what string, run func(s *server) any, done func(any)) {
	c.w.send(request{from: c.w.plan.workers + c.n, what: fmt.Sprintf("%s of client %d", what, c.n), timeout: 2 * time.Second, run: run, done: done})
}

// begin carries out an action of the plan.
func (c *client) begin(a *action) {
	if a.what == "submit" {
		c.submit(a)
		return
	}
	job := c.w.ghost.known[a.tag]
	if job == nil {
		return // what it is about was never accepted
	}
	switch {
	case a.what == "replay":
		c.replay(a, job)
	case a.what == "cancel" && a.pick%2 == 0:
		c.cancelBetween(a, job, 100)
	default:
		c.act(a.what, job, a.id)
	}
}

// cancelBetween cancels a job while a task of it is between two attempts, if one is
// within so many looks; those moments are short, and seldom met by chance.
func (c *client) cancelBetween(a *action, job *gjob, looks int) {
	if job.purged || !betweenAttempts(job) && looks > 0 && job.cause == 0 {
		if !job.purged {
			c.w.after(100*time.Millisecond, func() { c.cancelBetween(a, job, looks-1) })
		}
		return
	}
	c.act(a.what, job, a.id)
}

func betweenAttempts(j *gjob) bool {
	return slices.ContainsFunc(j.tasks, func(t *gtask) bool { return t.row.place == delayed && t.row.attempt > 0 })
}

type submitCall struct {
	tenant int
	drafts []*draft
	jobs   []drover.NewJob
	out    []drover.Submitted
	err    error
}

func (c *client) submit(a *action) {
	by := map[int]*submitCall{}
	var order []int
	for _, d := range a.drafts { // a request is of one tenant
		s := by[d.tenant]
		if s == nil {
			s = &submitCall{tenant: d.tenant}
			by[d.tenant] = s
			order = append(order, d.tenant)
		}
		s.drafts = append(s.drafts, d)
		s.jobs = append(s.jobs, c.job(d))
	}
	for _, t := range order {
		c.open++
		c.send(by[t], 0)
	}
}

// job is the body that a draft becomes when it is sent first.
func (c *client) job(d *draft) drover.NewJob {
	wall := c.w.now().Add(c.wall)
	j := drover.NewJob{Kind: d.kind, Queue: d.queue, Class: d.class, Retry: d.retry, Timeout: drover.Duration(d.timeout), ScheduleToClose: drover.Duration(d.closes), Heartbeat: drover.Duration(d.beats), IdempotencyKey: d.key, Input: json.RawMessage(fmt.Sprintf(`{"tag":%d}`, d.tag))}
	if d.limited {
		j.Limits = map[string]int64{limitName: 1}
	}
	if d.shape != nil {
		j.Pipeline = d.shape.name
		list := make([]int, d.list)
		b, _ := json.Marshal(list) // numbers always encode
		j.Input = json.RawMessage(fmt.Sprintf(`{"tag":%d,"list":%s}`, d.tag, b))
	}
	if d.due > 0 {
		j.DueAt = wall.Add(d.due).Truncate(time.Microsecond)
	}
	if d.expires > 0 {
		j.ExpiresAt = c.w.now().Add(d.expires).Truncate(time.Microsecond)
		if j.DueAt.After(j.ExpiresAt.Add(-time.Second)) {
			j.DueAt = time.Time{}
		}
	}
	if d.named {
		var e [10]byte
		_, _ = newSource(c.w.plan.seed, 300, uint64(d.tag), uint64(d.tenant)).Read(e[:])
		j.ID = drover.JobID(drover.MakeID(wall.UnixMilli(), e))
	}
	return j
}

func (c *client) send(req *submitCall, try int) {
	c.ask("submit", func(s *server) any {
		r := *req
		r.out = nil
		k := &call{kind: "submit", s: s, who: fmt.Sprintf("client %d", c.n), caller: c.w.db.callers[req.tenant], submit: &r}
		c.w.do(k, func(ctx context.Context) error {
			r.out, r.err = s.e.Submit(ctx, k.caller, slices.Clone(r.jobs))
			return r.err
		})
		return &r
	}, func(a any) {
		r, ok := a.(*submitCall)
		if !ok || r.err != nil {
			again := try < 12
			for _, j := range req.jobs { // without a key or a name, a repeat would be another job
				again = again && (j.IdempotencyKey != "" || !j.ID.IsZero() || c.w.rand.often(0.8))
			}
			if again {
				c.w.after(c.w.rand.between(100*time.Millisecond, 2*time.Second), func() { c.send(req, try+1) })
				return
			}
			c.open--
			return
		}
		c.open--
		for i, o := range r.out {
			if o.Err == nil {
				c.w.ghost.accepted(r.drafts[i], o.JobID)
			}
		}
	})
}

// jobCall is an action on a job or a task.
type jobCall struct {
	what  string
	job   *gjob
	task  *gtask
	id    string
	input json.RawMessage
	err   error
}

func (c *client) act(what string, job *gjob, id string) {
	c.open++
	c.again(&jobCall{what: what, job: job, id: id}, 0)
}

func (c *client) replay(a *action, job *gjob) {
	var list []*gtask
	for _, t := range job.tasks {
		if len(t.finals) > 0 || a.pick%11 == 0 {
			list = append(list, t)
		}
	}
	if len(list) == 0 {
		return
	}
	r := &jobCall{what: "replay", job: job, task: list[a.pick%uint64(len(list))], id: a.id}
	if a.input && r.task.idx >= 0 {
		r.input = json.RawMessage(fmt.Sprintf(`{"edited":%d}`, a.pick%1000))
	}
	c.open++
	c.again(r, 0)
}

func (c *client) again(req *jobCall, try int) {
	c.ask(req.what, func(s *server) any {
		r := *req
		k := &call{kind: r.what, s: s, who: fmt.Sprintf("client %d", c.n), caller: c.w.db.callers[r.job.tenant], job: &r}
		c.w.do(k, func(ctx context.Context) error {
			q := engine.Request{ID: r.id}
			switch r.what {
			case "cancel":
				_, r.err = s.e.Cancel(ctx, k.caller, r.job.id, q)
			case "pause":
				_, r.err = s.e.Pause(ctx, k.caller, r.job.id, q)
			case "delete":
				r.err = s.e.DeleteJob(ctx, k.caller, r.job.id)
			case "resume":
				_, r.err = s.e.Resume(ctx, k.caller, r.job.id, q)
			case "replay":
				_, r.err = s.e.Replay(ctx, k.caller, r.task.id, engine.ReplayRequest{Request: q, Input: r.input})
			}
			return r.err
		})
		return &r
	}, func(a any) {
		r, ok := a.(*jobCall)
		if (!ok || r.err != nil && drover.CodeOf(r.err) == "") && try < 12 && (req.id != "" || req.what != "replay") {
			c.w.after(c.w.rand.between(100*time.Millisecond, 2*time.Second), func() { c.again(req, try+1) })
			return
		}
		c.open--
	})
}

// resumeAll lets every paused job go on: nothing is to be left at the end.
func (w *world) resumeAll() {
	for _, j := range w.ghost.jobs {
		if j.paused {
			w.clients[0].act("resume", j, "")
		}
	}
	w.after(10*time.Second, w.resumeAll)
}
