package sim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/drover-dev/drover"
)

// Kind is a kind of fault.
type Kind int

// The kinds of fault. A seed draws some of them.
const (
	WorkerCrash   Kind = iota // a worker process dies and another takes its place
	WorkerPause               // a worker stands still for up to three lease lengths and wakes as a zombie
	ServerCrash               // a server dies between two transactions of an operation
	ServerStall               // others run on between two transactions of an operation
	TwoLeaders                // two servers run the loops
	RequestLost               // a request never arrives
	AnswerLost                // a request is carried out and its answer is lost
	Duplicate                 // a request arrives twice
	Delay                     // a request arrives late
	ErrorBefore               // a transaction fails and leaves nothing
	UnknownCommit             // a transaction is committed and its answer is lost
	Serialization             // a transaction is rolled back for a conflict, once or several times
	ClockStep                 // a server's clock is off, or steps
	WallStep                  // a client's clock is off by up to a day
	LostWakeUp                // nobody is told of new work
	Poison                    // a task kills whoever runs it
	kinds
)

var kindNames = [kinds]string{"worker-crash", "worker-pause", "server-crash", "server-stall", "two-leaders", "request-lost", "answer-lost", "duplicate", "delay",
	"error-before", "unknown-commit", "serialization", "clock-step", "wall-step", "lost-wake-up", "poison"}

// String returns the fault's name.
func (k Kind) String() string { return kindNames[k] }

// fault is one fault that a plan holds ready. It strikes what its target does
// next, from its time on.
type fault struct {
	kind   Kind
	at     time.Duration
	target int // which worker, server or client, as the kind says
	for_   time.Duration
	n      int // how often, or at which transaction
}

func (f *fault) String() string {
	return fmt.Sprintf("%-14s at %7.2fs target %d for %v n %d", f.kind, f.at.Seconds(), f.target, f.for_.Round(time.Millisecond), f.n)
}

// action is what a client does.
type action struct {
	at     time.Duration
	what   string // submit cancel pause resume replay delete
	client int
	drafts []*draft // of a submit
	tag    int      // of the job the others are about
	pick   uint64   // which task a replay takes
	id     string   // request id, or none
	input  bool     // a replay edits the input
}

func (a *action) String() string {
	if a.what != "submit" {
		return fmt.Sprintf("%-8s at %7.2fs client %d job %d id %q", a.what, a.at.Seconds(), a.client, a.tag, a.id)
	}
	s := fmt.Sprintf("%-8s at %7.2fs client %d", a.what, a.at.Seconds(), a.client)
	for _, d := range a.drafts {
		s += " " + d.String()
	}
	return s
}

// draft is a job that a client submits.
type draft struct {
	tag     int // of its body: two drafts with one tag ask for the same job
	tenant  int
	shape   *shape // nil for a job of one task
	kind    string
	queue   string
	class   drover.Class
	retry   *drover.Retry
	due     time.Duration // after it is sent, by the client's clock
	expires time.Duration
	key     string
	named   bool          // the client makes the job's id
	list    int           // elements of the input's list
	limited bool          // the one task takes of a limit
	timeout time.Duration // of an attempt of the one task
	closes  time.Duration // schedule_to_close of the one task
	beats   time.Duration // how long an attempt of it may be silent
}

func (d *draft) String() string {
	s := fmt.Sprintf("[job %d tenant %d", d.tag, d.tenant)
	if d.shape != nil {
		s += " " + d.shape.name
	} else {
		s += " kind " + d.kind + "@" + d.queue
	}
	if d.key != "" {
		s += " key " + d.key
	}
	if d.named {
		s += " named"
	}
	if d.due > 0 {
		s += fmt.Sprintf(" due %v", d.due.Round(time.Millisecond))
	}
	if d.expires > 0 {
		s += fmt.Sprintf(" expires %v", d.expires.Round(time.Millisecond))
	}
	return s + "]"
}

// plan is a world before it begins: everything that a seed decides.
type plan struct {
	seed             uint64
	lease, grace     time.Duration
	servers, workers int
	clients          int
	chaos            time.Duration // until the faults end
	purges           bool          // at its end, jobs that have outlived their time leave
	kinds            []Kind
	actions          []action
	faults           []fault
}

// newPlan draws the world of a seed.
func newPlan(seed uint64) *plan {
	s := newSource(seed, 1)
	p := &plan{seed: seed, lease: s.between(4*time.Second, 8*time.Second), grace: s.between(2*time.Second, 7*time.Second),
		servers: 1 + s.IntN(3), workers: 2 + s.IntN(4), clients: 2 + s.IntN(2)}
	p.chaos = p.lease * time.Duration(4+s.IntN(3))
	all := make([]Kind, kinds)
	for i := range all {
		all[i] = Kind(i)
	}
	if p.servers == 1 {
		all = slices.DeleteFunc(all, func(k Kind) bool { return k == TwoLeaders || k == ServerStall })
	}
	s.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	p.purges = s.often(0.25)
	p.kinds = slices.Clone(all[:5+s.IntN(5)])
	slices.Sort(p.kinds)
	p.drawActions(newSource(seed, 2))
	p.drawFaults(newSource(seed, 3))
	return p
}

func (p *plan) drawFaults(s source) {
	for _, k := range p.kinds {
		n := 2 + s.IntN(5)
		switch k {
		case RequestLost, AnswerLost, Duplicate, Delay, ErrorBefore, UnknownCommit, Serialization, ServerStall:
			n = 4 + s.IntN(10)
		case TwoLeaders, ServerCrash, LostWakeUp, ClockStep:
			n = 1 + s.IntN(4)
		case WallStep, Poison:
			n = 1
		}
		for range n {
			f := fault{kind: k, at: time.Duration(s.Int64N(int64(p.chaos))), n: 1 + s.IntN(3)}
			switch k {
			case WorkerCrash:
				f.target, f.for_ = s.IntN(p.workers), s.between(0, p.lease)
			case WorkerPause:
				f.target, f.for_ = s.IntN(p.workers), s.between(p.lease/4, 3*p.lease)
			case ServerCrash:
				f.target, f.for_ = s.IntN(p.servers), s.between(100*time.Millisecond, p.lease)
			case ServerStall:
				f.target, f.n = s.IntN(p.servers), 1+s.IntN(25)
			case TwoLeaders:
				f.target, f.for_ = s.IntN(p.servers), s.between(p.lease/2, 2*p.lease)
			case RequestLost, AnswerLost, Duplicate:
				f.target, f.for_ = s.IntN(p.workers+p.clients), s.between(0, p.lease)
			case Delay:
				f.target, f.for_ = s.IntN(p.workers+p.clients), s.between(p.lease/10, 2*p.lease)
			case ErrorBefore, UnknownCommit, Serialization:
				f.target = s.IntN(p.servers)
			case ClockStep:
				f.target, f.for_ = s.IntN(p.servers), s.between(0, 6*time.Second)-3*time.Second
			case WallStep:
				f.at, f.target, f.for_ = 0, s.IntN(p.clients), s.between(0, 40*time.Hour)-20*time.Hour
			case LostWakeUp:
				f.for_ = s.between(p.lease/2, 3*p.lease)
			case Poison:
				f.at, f.target = 0, 1+s.IntN(20)
			}
			p.faults = append(p.faults, f)
		}
	}
	slices.SortStableFunc(p.faults, func(a, b fault) int { return cmp.Compare(a.at, b.at) })
}

func (p *plan) drawActions(s source) {
	n := 12 + s.IntN(6)
	var tags []*draft
	for i := range n {
		a := action{at: time.Duration(s.Int64N(int64(p.chaos) * 8 / 10)), what: "submit", client: s.IntN(p.clients), pick: s.Uint64()}
		if i < 3 {
			a.at /= 4 // the world does not begin empty
		}
		if s.often(0.6) {
			a.id = fmt.Sprintf("r%d", i)
		}
		if s.often(0.1) && i > 4 {
			a.id = fmt.Sprintf("r%d", s.IntN(i)) // of another request
		}
		if i >= 4 && s.often(0.45) {
			d := tags[s.IntN(len(tags))]
			a.tag, a.what, a.input = d.tag, pick(s, "cancel", "cancel", "pause", "pause", "resume", "replay", "replay", "replay", "delete", "delete"), s.often(0.3)
			if a.what == "delete" { // it has ended by then, mostly
				a.at += p.chaos / 5
			}
			p.actions = append(p.actions, a)
			continue
		}
		for range pick(s, 1, 1, 1, 2, 3) {
			d := p.drawDraft(s, len(tags)+1)
			if len(tags) > 0 && s.often(0.15) { // again: the same body under the same key, or another body, or another tenant
				old := *tags[s.IntN(len(tags))]
				switch {
				case s.often(0.6):
					d = old
				case s.often(0.5):
					d.key, d.tenant = old.key, old.tenant
				default:
					d.key, d.tenant = old.key, 1-old.tenant
				}
				d.named = false
			}
			a.drafts = append(a.drafts, &d)
			tags = append(tags, &d)
		}
		p.actions = append(p.actions, a)
	}
	slices.SortStableFunc(p.actions, func(a, b action) int { return cmp.Compare(a.at, b.at) })
}

func (p *plan) drawDraft(s source, tag int) draft {
	d := draft{tag: tag, tenant: pick(s, 0, 0, 0, 1), class: pick(s, 0, 0, drover.Interactive, drover.Urgent, drover.Batch, drover.Class(55))}
	if s.often(0.5) {
		d.key = fmt.Sprintf("k%d", tag)
	}
	d.named = s.often(0.25)
	if s.often(0.2) {
		d.due = s.between(0, 3*p.lease)
		if s.often(0.1) {
			d.due = s.between(time.Hour, 12*time.Hour)
		}
	}
	if s.often(0.08) {
		d.expires = d.due + s.between(p.lease/2, 3*p.lease)
	}
	if s.often(0.55) {
		d.shape = pick(s, shapes...)
		d.list = s.IntN(5)
		return d
	}
	i := s.IntN(6)
	d.kind, d.queue = kindOf(i), queueOf(i)
	d.limited = newSource(p.seed, 4, uint64(tag)).often(0.4) // of its own: the other draws are as they were
	if s.often(0.3) {
		d.timeout = s.between(500*time.Millisecond, 2*time.Second)
	}
	if s.often(0.2) {
		d.closes = s.between(time.Second, 3*p.lease).Truncate(time.Millisecond)
	}
	if s.often(0.3) {
		d.beats = s.between(time.Second, 3*time.Second).Truncate(time.Millisecond)
	}
	if s.often(0.5) {
		d.retry = &drover.Retry{MaxAttempts: 1 + s.IntN(4), Initial: drover.Duration(s.between(100*time.Millisecond, 2*time.Second)), Factor: pick(s, 0, 1, 2.5), Max: drover.Duration(s.between(2*time.Second, 8*time.Second))}
	}
	return d
}
