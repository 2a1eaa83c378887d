package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store"
)

// unexpected says that nothing explains why an operation failed as a whole.
func (g *ghost) unexpected(c *call, err error) bool {
	if c.hit {
		return false
	}
	var refused *drover.Error
	if !errors.As(err, &refused) {
		return true
	}
	s := g.sessions[c.session]
	switch c.kind {
	case "acquire", "renew":
		return refused.Code != drover.CodeLeaseLost || s == nil || s.ended == 0 && s.expires > c.s.now().UnixMicro()
	case "beat", "stage":
		h := drover.Held{}
		if c.beat != nil {
			h = c.beat.held
		} else {
			h = c.stage.held
		}
		t := g.tasks[h.TaskID]
		held := t.row.place == running && t.row.lease == h.LeaseVersion
		return (refused.Code != drover.CodeLeaseLost || held) && (refused.Code != drover.CodeOverloaded || c.stage != nil)
	case "lock":
		h := c.lock.ask.Held
		t := g.tasks[h.TaskID]
		held := t.row.place == running && t.row.lease == h.LeaseVersion
		return refused.Code != drover.CodeDeadlock && refused.Code != drover.CodeInvalidTransition && (refused.Code != drover.CodeLeaseLost || held)
	case "delete":
		j := g.byID[c.job.job.id] // whose id it is by now
		return (refused.Code != drover.CodeInvalidTransition || j.ended) && (refused.Code != drover.CodeNotFound || !j.purged)
	case "cancel", "pause", "resume", "replay":
		if refused.Code == drover.CodeNotFound {
			return !c.job.job.purged
		}
		return refused.Code != drover.CodeInvalidTransition && refused.Code != drover.CodeIdempotencyReused
	}
	return true
}

// answered checks what an operation answers against what was committed.
func (g *ghost) answered(c *call, err error) {
	bad := func(invariant, format string, args ...any) { g.fail(c, invariant, format, args...) }
	g.w.stats.Checks++
	if err != nil {
		if c.kind == "renew" && drover.CodeOf(err) == drover.CodeLeaseLost {
			g.w.stats.LateRenewals++
		}
		// A delete has no name of its own: sent again, it is about whose id that is by then.
		same := c.job != nil && (c.job.what != "delete" || g.byID[c.job.job.id] == c.job.job)
		if same && c.job.id != "" && !c.hit && drover.CodeOf(err) == drover.CodeInvalidTransition && g.carried[g.request(c)] {
			bad("I11", "request %s was carried out, and its repeat is refused: %v", c.job.id, err)
		}
		return
	}
	switch {
	case c.kind == "renew":
		g.renewed(c, bad)
	case c.stage != nil:
		if a := g.arts[c.stage.got.ID]; a == nil || a.task.id != c.stage.held.TaskID || a.lease != c.stage.held.LeaseVersion {
			bad("I28", "the answer has artifact %s, which is not staged", c.stage.got.ID)
		}
	case c.lock != nil && c.lock.answer.Granted:
		g.w.stats.LocksAnswered++
		if c.lock.answer.Token == 0 {
			bad("I35", "a lock is granted without a token")
		}
	case c.submit != nil:
		g.submitted(c, bad)
	case c.job != nil:
		g.acted(c, bad)
	case c.settle != nil:
		g.settled(c, bad)
	}
	if c.acquire != nil {
		g.acquired(c, bad)
	}
}

func (g *ghost) renewed(c *call, bad func(string, string, ...any)) {
	s := g.sessions[c.session]
	if s == nil || s.ended != 0 {
		bad("I12", "renewed session %d, which has ended", c.session)
		return
	}
	for _, h := range c.renew.renewal.Held {
		t := g.tasks[h.TaskID]
		if lost, keeps := slices.Contains(c.renew.answer.Lost, h), c.renew.keeps[h]; lost == keeps {
			bad("I12", "%s lease %d is held %v; the renewal says that it is lost: %v", t, h.LeaseVersion, keeps, lost)
		}
		// One that this renewal itself has ended is lost, and not to be stopped.
		if told, stops := slices.Contains(c.renew.answer.Cancelled, h), c.renew.stops[h] && c.renew.keeps[h]; told != stops {
			bad("I18", "%s is to be cancelled: %v; its worker is told: %v", t, stops, told)
		}
	}
}

func (g *ghost) submitted(c *call, bad func(string, string, ...any)) {
	s := c.submit
	if len(s.out) != len(s.drafts) {
		bad("I28", "%d answers for %d jobs", len(s.out), len(s.drafts))
		return
	}
	for i, o := range s.out {
		d, n := s.drafts[i], &s.jobs[i]
		known := g.byID[n.ID]
		if n.ID.IsZero() {
			known = nil
		}
		if known == nil && d.key != "" {
			known = g.keys[gkey{s.tenant, d.key}]
		}
		same := known != nil && known.body == bodyOf(n)
		switch code := drover.CodeOf(errOf(o)); {
		case code == drover.CodeValidation: // its times are over
			wall := drover.ID(n.ID).UnixMilli()*1000 - c.from.UnixMicro()
			if (n.ExpiresAt.IsZero() || n.ExpiresAt.After(c.s.now())) && (n.ID.IsZero() || max(wall, -wall) < 23*3600e6) {
				bad("I28", "%s is refused: %v", d, o.Err)
			}
			if same && !(known.purged && d.key == "") { // of a job that has left only its key is known
				bad("I27", "%s was accepted before and is refused for its time: %v", d, o.Err)
			}
		case code == drover.CodeIdempotencyReused:
			g.w.stats.KeyConflicts++
			if known == nil || same {
				bad("I27", "%s is refused as another body: %v", d, o.Err)
			}
		case code == drover.CodeOverloaded && c.hit:
		case code == drover.CodeConflict && known != nil && known.purged: // an id is free again once all its job had is gone
		case o.Err != nil:
			bad("I28", "%s is refused: %v", d, o.Err)
		default:
			j := g.byID[o.JobID]
			if j == nil {
				bad("I28", "%s is accepted as %s, which does not exist", d, o.JobID)
				return
			}
			if j.tag != d.tag || j.tenant != s.tenant || j.body != bodyOf(n) {
				bad("I27", "%s is answered with %s of tenant %d", d, j, j.tenant)
			}
			if d.key != "" && g.keys[gkey{s.tenant, d.key}] != j && n.ID.IsZero() {
				bad("I27", "%s is answered with another job than its key's", d)
			}
			if o.Deleted && (!j.purged || !o.Replayed) {
				bad("I27", "%s is answered with %s as deleted, which it is not", d, j)
			}
			if o.Replayed {
				g.w.stats.KeyRepeats++
				if d.key == "" && n.ID.IsZero() {
					bad("I27", "%s has no key and is called a repeat", d)
				}
			}
		}
	}
}

func errOf(s drover.Submitted) error {
	if s.Err == nil {
		return nil
	}
	return s.Err
}

// request names an action by its request id.
func (g *ghost) request(c *call) string {
	return fmt.Sprintf("%d %s %s %s %v", c.job.job.tenant, c.job.id, c.job.what, c.job.job.id, taskOf(c.job.task))
}

func taskOf(t *gtask) drover.TaskID {
	if t == nil {
		return drover.TaskID{}
	}
	return t.id
}

func (g *ghost) acted(c *call, bad func(string, string, ...any)) {
	j := c.job.job
	again := c.job.id != "" && g.carried[g.request(c)]
	if c.job.id != "" {
		g.carried[g.request(c)] = true
	}
	if again {
		g.w.stats.Repeats++
		return // whatever came after it
	}
	switch c.job.what {
	case "cancel":
		if j.cause == 0 && !j.ended && len(j.undoers) == 0 {
			bad("I18", "%s is cancelled by the answer, and not in truth", j)
		}
	case "delete":
		if !j.purged {
			bad("I54", "%s is deleted by the answer, and not in truth", j)
		}
	case "pause":
		if !j.paused && !j.ended && c.tx == 1 {
			bad("I18", "%s is paused by the answer, and not in truth", j)
		}
	case "resume":
		if j.paused && c.tx == 1 {
			bad("I18", "%s is resumed by the answer, and not in truth", j)
		}
	}
}

func (g *ghost) settled(c *call, bad func(string, string, ...any)) {
	for i, o := range c.settle.outcomes {
		a := c.settle.result.Settled[i]
		t := g.tasks[o.TaskID]
		end := g.ends[gend{o.TaskID, o.LeaseVersion, c.session}]
		code := drover.Code("")
		if a.Err != nil {
			code = a.Err.Code
		}
		valid := o.Error == nil || o.Error.Class != "nonsense"
		switch {
		case !valid:
			if code != drover.CodeValidation {
				bad("I09", "an outcome of class nonsense is answered %q", code)
			}
		case end == nil: // it never had the lease, or holds it still
			if code != drover.CodeLeaseLost {
				bad("I03", "%s lease %d, which session %d does not hold, is answered %s %q", t, o.LeaseVersion, c.session, a.Status, code)
			}
			if t.row.place == running && t.row.lease == o.LeaseVersion && t.row.session == c.session {
				bad("I03", "the outcome of %s lease %d is refused, and it is held", t, o.LeaseVersion)
			}
			g.w.stats.Stale++
		case end.call != c && t.job.purged && code == drover.CodeLeaseLost: // nothing tells any more of a job that has left
			g.w.stats.Stale++
		case end.call == c || end.said == o.Status:
			if end.call != c {
				g.w.stats.Repeats++
			}
			if a.Err != nil || a.Status != end.status {
				bad("I11", "%s lease %d, reported %s: it became %s, the answer is %s %q", t, o.LeaseVersion, o.Status, end.status, a.Status, code)
			}
		case a.Err == nil && a.Status == end.status && (end.stored == o.Status || end.stored == drover.OutcomeCancelled && o.Status != drover.OutcomeSucceeded && o.Status != drover.OutcomeFailed):
			// given back without its word, which would have been the same
		default:
			if code != drover.CodeLeaseLost {
				bad("I03", "%s lease %d ended by %q; the late %s is answered %s %q", t, o.LeaseVersion, end.stored, o.Status, a.Status, code)
			}
			g.w.stats.Stale++
		}
	}
}

func (g *ghost) acquired(c *call, bad func(string, string, ...any)) {
	if len(c.acquire.leases) > c.acquire.a.Max {
		bad("I05", "%d leases, at most %d were asked for", len(c.acquire.leases), c.acquire.a.Max)
	}
	for _, l := range c.acquire.leases {
		t := g.tasks[l.TaskID]
		i := slices.IndexFunc(c.granted, func(x grant) bool { return x.grantKey == grantKey{l.TaskID, l.LeaseVersion} })
		if t == nil || i < 0 {
			bad("I05", "the answer has a lease of %s that was not granted", t.nameOf())
			continue
		}
		x := c.granted[i]
		if c.back[x.grantKey] {
			bad("I05", "the answer has a lease of %s that was given back", t)
		}
		if int32(l.Attempt) != x.attempt || int32(l.Generation) != x.generation || l.MaxAttempts != g.max(t) || l.Index != t.idx || l.JobID != t.job.id {
			bad("I07", "%s is handed out as attempt %d of %d, generation %d, index %d", t, l.Attempt, l.MaxAttempts, l.Generation, l.Index)
		}
		if string(l.Checkpoint) != x.checkpoint {
			bad("I12", "%s lease %d is handed the checkpoint %q, want %q", t, l.LeaseVersion, l.Checkpoint, x.checkpoint)
		}
		if x.checkpoint != "" {
			g.w.stats.Checkpoints++
		}
		want := ""
		for gen := x.generation; gen > 1 && want == ""; gen-- {
			want = string(t.edits[gen])
		}
		if want == "" && t.job.shape == nil {
			want = fmt.Sprintf(`{"tag":%d}`, t.job.tag)
		}
		if want != "" && string(l.Input) != want {
			bad("I53", "%s has the input %s, want %s", t, l.Input, want)
		}
	}
	for _, x := range c.granted {
		if g.ends[gend{x.task, x.version, c.session}] != nil {
			continue // it stood still between the two, and another ended what it was to give back
		}
		if !c.back[x.grantKey] && !slices.ContainsFunc(c.acquire.leases, func(l drover.Lease) bool { return grantKey{l.TaskID, l.LeaseVersion} == x.grantKey }) && !c.hit {
			bad("I05", "%s was granted and is neither in the answer nor given back", g.tasks[x.task])
		}
	}
}

// enters checks that no other worker which believes in its lease runs the task.
func (g *ghost) enters(k *worker, r *attempt, t *gtask) {
	g.w.stats.Checks++
	if g.w.struck[ClockStep] || k.until.Before(g.w.clock) {
		return // the servers' clocks differ by more than a worker's margin; or k has just woken, and is about to notice
	}
	if end := g.ends[gend{t.id, r.lease.LeaseVersion, int64(r.session)}]; end != nil && end.apart {
		return // it missed its heartbeat while k stood still with the answer; k hears of it when it renews
	}
	for _, o := range g.w.workers {
		if o.rude || !o.alive || o.paused.After(g.w.clock) {
			continue
		}
		for _, x := range o.runs {
			if d := x.lease.Timeout.Std(); d > 0 && g.w.clock.Sub(x.begun) > d {
				continue // its timeout has stopped the handler, whether or not the worker knows that the server did the same
			}
			if end := g.ends[gend{t.id, x.lease.LeaseVersion, int64(x.session)}]; end != nil && end.apart {
				continue // it missed its heartbeat; its worker hears of it when it renews
			}
			if x != r && x.lease.TaskID == t.id && x.lease.Generation == r.lease.Generation && !x.over && x.session == o.session {
				g.w.violate("I40", "worker %d is given %s lease %d while worker %d runs it under lease %d and its session %d lives on by its clock", k.n, t, r.lease.LeaseVersion, o.n, x.lease.LeaseVersion, o.session)
			}
		}
	}
}

// accepted notes that a client was told of a job.
func (g *ghost) accepted(d *draft, id drover.JobID) {
	j := g.byID[id]
	if j == nil {
		g.w.violate("I28", "job %s was accepted and does not exist", id)
		return
	}
	g.known[d.tag] = j
}

// finish checks the world at its end, and what SQL can check.
func (w *world) finish(ctx context.Context) {
	w.tracef("END")
	for _, j := range w.ghost.jobs {
		if !j.ended || !j.status.Final() {
			w.violate("I01", "%s has not ended", j)
		}
		w.tracef("%s is %s after %d events", j, j.status, j.events)
	}
	for _, j := range w.ghost.known {
		if !j.ended {
			w.violate("I01", "%s was accepted and has not ended", j)
		}
	}
	for _, a := range w.ghost.arts {
		if !a.visible {
			w.stats.Dropped++
		}
	}
	if w.plan.purges && w.stop == nil {
		w.outlive()
	}
	w.explain(10)
	// The product's own audit, past every fault.
	list, err := engine.New(store.New(w.db.drv, store.Options{Now: func() time.Time { return w.clock }}), engine.Options{}).Audit(ctx, time.Time{})
	if err != nil {
		w.violate("AUDIT", "%v", err)
	}
	for _, a := range list {
		if a.Violations > 0 {
			w.violate(a.ID, "%s: %d violations of %q, such as %+v", a.Name, a.Violations, a.Means, a.Examples[0])
		}
	}
}

// outlive lets two days pass after a tenant has said how long its finished jobs
// are kept: those that have outlived that must have left, and no others.
func (w *world) outlive() {
	s := w.servers[0]
	keep := drover.Retention{Succeeded: drover.Duration(time.Hour), Failed: drover.Duration(2 * time.Hour)} // and cancelled ones for ever
	w.do(&call{kind: "retention", s: s}, func(ctx context.Context) error {
		_, err := s.e.SetRetention(ctx, w.db.callers[0], func(r *drover.Retention) { *r = keep })
		return err
	})
	w.clock = w.clock.Add(48 * time.Hour)
	for n := 1; n > 0 && w.stop == nil; {
		w.do(&call{kind: "purge", s: s}, func(ctx context.Context) (err error) { n, err = s.e.PurgeOnce(ctx); return err })
	}
	for _, j := range w.ghost.jobs {
		if outlived := j.tenant == 0 && j.status != drover.Cancelled; outlived && !j.purged {
			w.violate("I54", "%s of tenant %d, %s, has outlived its time and is there", j, j.tenant, j.status)
		} else if !outlived && j.purged && !w.ghost.deleted[j] {
			w.violate("I54", "%s of tenant %d, %s, has left before its time", j, j.tenant, j.status)
		}
	}
}
