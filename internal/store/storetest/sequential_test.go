package storetest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/storetest"
)

// side is the engine on one database.
type side struct {
	*engine.Engine
	kind     string
	db       *store.DB
	faults   *storetest.Faults
	c        engine.Caller
	jobs     []drover.JobID           // by the model's number
	tasks    map[string]drover.TaskID // by the model's name
	sessions []drover.SessionID
}

// play is a script that is being played on every database and in the model.
type play struct {
	*model
	sides  []*side
	number int64 // of acquires
	unique int
	steps  *atomic.Int64
	told   map[*job]string // what was last found to agree
}

// TestEveryDatabaseDoesWhatTheModelDoes plays random scripts on the engine, on
// each database, and in the model, and compares every answer and what can be
// seen after it. Transactions are made to run again, to be refused, and to lose
// the answer of their commit: what was asked for is then asked for once more.
func TestEveryDatabaseDoesWhatTheModelDoes(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var sides []*side
	for _, kind := range storetest.Drivers(t) {
		s := &side{kind: kind}
		s.db = storetest.Open(t, kind, func(o *store.Options) { o.Now = func() time.Time { return now } })
		s.faults = storetest.WithFaults(s.db.Driver, 1)
		s.db.Driver = s.faults
		sides = append(sides, s)
	}
	var steps, scripts atomic.Int64
	script := func(rt *rapid.T) {
		now = now.Add(time.Minute)
		p := &play{model: newModel(now), sides: sides, steps: &steps, told: map[*job]string{}}
		n := scripts.Add(1)
		for _, s := range sides {
			s.begin(rt, fmt.Sprintf("tenant-%d", n))
		}
		p.openSession(rt)
		pass := func(d time.Duration) {
			now = now.Add(d)
			p.now = now
		}
		often := func(f func(*rapid.T)) func(*rapid.T) {
			return func(rt *rapid.T) {
				pass(time.Duration(rapid.IntRange(0, 900).Draw(rt, "ms")) * time.Millisecond)
				f(rt)
				p.steps.Add(1)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"submit": often(p.doSubmit), "acquire": often(p.doAcquire), "acquire more": often(p.doAcquire),
			"settle": often(p.doSettle), "settle more": often(p.doSettle), "settle again": often(p.doSettle),
			"renew": often(p.doRenew), "close": often(p.doClose),
			"cancel": often(p.doHold("cancel")), "pause": often(p.doHold("pause")), "resume": often(p.doHold("resume")),
			"replay": often(p.doReplay),
			"reap":   often(p.doLoop("reap", (*engine.Engine).ReapOnce, p.reap)), "timers": often(p.doLoop("timers", (*engine.Engine).TimersOnce, p.timers)),
			"admit": often(p.doLoop("admit", (*engine.Engine).AdmitOnce, p.admit)), "sweep": often(p.doLoop("sweep", (*engine.Engine).SweepOnce, p.sweepAll)),
			"time passes": func(rt *rapid.T) { pass(time.Duration(rapid.IntRange(1, 40).Draw(rt, "s")) * time.Second) },
			"":            p.compare,
		})
		p.check(rt)
	}
	var faults []*storetest.Faults
	for _, s := range sides {
		faults = append(faults, s.faults)
	}
	for since := time.Now(); goOn(t, since, faults...); {
		rapid.Check(t, script)
	}
	figures.sequential(scripts.Load(), steps.Load(), sides)
	t.Logf("%d scripts, %d steps on %d databases", scripts.Load(), steps.Load(), len(sides))
}

func (s *side) begin(rt *rapid.T, tenant string) {
	ctx := context.Background()
	s.faults.Arm("", 0)
	s.Engine = engine.New(s.db, engine.Options{Jitter: func() float64 { return jitter }, LeaseFor: leaseFor, CancelGrace: cancelGrace})
	s.jobs, s.tasks, s.sessions = nil, map[string]drover.TaskID{}, nil
	var err error
	if s.c, err = s.EnsureTenant(ctx, tenant); err != nil {
		rt.Fatal(err)
	}
	for _, x := range shapes {
		if _, err := s.RegisterPipeline(ctx, s.c, "p.yaml", []byte(x.source)); err != nil {
			rt.Fatal(err)
		}
	}
}

// word is what an error says to a client.
func word(err error) string {
	if err == nil {
		return "done"
	}
	if c := drover.CodeOf(err); c != "" {
		return string(c)
	}
	return err.Error()
}

// ask has the same done on every database, and wants the same answer. Where the
// answer was lost it is asked for again, and lost is true; holds that the caller
// could not follow up are followed up.
func (p *play) ask(rt *rapid.T, what string, do func(s *side) (string, error)) (first string, lost bool) {
	kind := rapid.SampledFrom([]storetest.Fault{"", "", "", "", "", "", "", storetest.Conflict, storetest.Deadlock, storetest.LostAnswer, storetest.Refused}).Draw(rt, "fault")
	trip := rapid.IntRange(0, 5).Draw(rt, "trip")
	if what == "acquire" && kind == storetest.Deadlock {
		// Whose lane's turn is next is a hint, which a claim that is rolled back moves
		// on, too; the databases do not make the same trips for a claim.
		kind = storetest.Conflict
	}
	var lostAt []bool
	for i, s := range p.sides {
		before := s.faults.Counts()[kind]
		s.faults.Arm(kind, trip)
		got, err := do(s)
		struck := s.faults.Counts()[kind] > before
		s.faults.Arm("", 0)
		switch {
		case !struck || kind == storetest.Conflict || kind == storetest.Deadlock:
		case kind == storetest.Refused:
			if !errors.Is(err, storetest.ErrRefused) {
				rt.Fatalf("%s: %s, refused: it was told %s, %v", s.kind, what, got, err)
			}
			p.compareSide(rt, s) // nothing has changed
			got, err = do(s)
		case kind == storetest.LostAnswer:
			if !engine.IsUnknown(err) {
				rt.Fatalf("%s: %s, answer lost: it was told %s, %v", s.kind, what, got, err)
			}
			if _, err := s.SweepOnce(context.Background()); err != nil {
				rt.Fatal(err)
			}
			got, err = do(s)
		}
		lostAt = append(lostAt, struck && kind == storetest.LostAnswer)
		if err != nil && drover.CodeOf(err) == "" {
			rt.Fatalf("%s: %s (fault %q): %v", s.kind, what, kind, err)
		}
		got += " " + word(err)
		if i == 0 {
			first = got
		}
		if got != first || lostAt[i] != lostAt[0] {
			rt.Fatalf("%s (fault %q):\n%s: %s\n%s: %s", what, kind, p.sides[0].kind, first, s.kind, got)
		}
	}
	return first, lostAt[0]
}

// agree compares an answer with the model's.
func agree(rt *rapid.T, what, got, want string) {
	if got != want {
		rt.Fatalf("%s:\nanswer: %s\nmodel:  %s", what, got, want)
	}
}

func (p *play) name(prefix string) string {
	p.unique++
	return fmt.Sprintf("%s %d", prefix, p.unique)
}

func (p *play) openSession(rt *rapid.T) {
	got, lost := p.ask(rt, "open a session", func(s *side) (string, error) {
		x, err := s.OpenSession(context.Background(), s.c, drover.NewSession{Worker: "w", Queues: []string{"default"}, Slots: 1000})
		if err == nil {
			s.sessions = append(s.sessions, x.ID)
		}
		return "", err
	})
	agree(rt, "open a session", got, " done")
	if lost {
		p.sweepAll()
	}
	p.sessions = append(p.sessions, &session{expires: p.model.now.Add(leaseFor)})
}

const (
	maxJobs     = 7 // of a script
	maxSessions = 4
)

func (p *play) doSubmit(rt *rapid.T) {
	n := rapid.IntRange(1, 3).Draw(rt, "jobs")
	if len(p.model.jobs)+n > maxJobs {
		rt.SkipNow()
	}
	var list []newJob
	var request []drover.NewJob
	for range n {
		x := newJob{class: rapid.SampledFrom([]drover.Class{drover.Normal, drover.Urgent}).Draw(rt, "class")}
		if k := rapid.IntRange(0, 3).Draw(rt, "shape"); k < 2 {
			x.shape = shapes[k]
		} else {
			x.shape = single([]string{"k", "l"}[k-2], rapid.IntRange(1, 3).Draw(rt, "tries"))
		}
		if rapid.IntRange(0, 4).Draw(rt, "later") == 0 {
			x.due = p.model.now.Add(3 * time.Second)
		}
		if rapid.IntRange(0, 2).Draw(rt, "keyed") == 0 {
			x.key = fmt.Sprint("key ", rapid.IntRange(0, 2).Draw(rt, "key"))
		} else {
			x.key = p.name("unique")
		}
		list = append(list, x)
		r := drover.NewJob{Pipeline: x.shape.name, Class: x.class, DueAt: x.due, IdempotencyKey: x.key}
		if x.shape.name == "" {
			r.Kind, r.Retry = x.shape.nodes[0].kind, &drover.Retry{MaxAttempts: x.shape.tries}
		}
		request = append(request, r)
	}
	ids := map[*side][]drover.JobID{}
	got, lost := p.ask(rt, "submit", func(s *side) (string, error) {
		out, err := s.Submit(context.Background(), s.c, request)
		var b strings.Builder
		ids[s] = nil
		for _, o := range out {
			if o.Err != nil {
				fmt.Fprintf(&b, "%s;", o.Err.Code)
			} else {
				fmt.Fprintf(&b, "old %t;", o.Replayed)
			}
			ids[s] = append(ids[s], o.JobID)
		}
		return b.String(), err
	})
	var want strings.Builder
	seen := map[*job]bool{}
	for i, a := range p.submit(list) {
		if a.err != "" {
			fmt.Fprintf(&want, "%s;", a.err)
			continue
		}
		fmt.Fprintf(&want, "old %t;", a.old || lost)
		for _, s := range p.sides {
			if !a.old && !seen[a.job] {
				for len(s.jobs) <= a.job.number {
					s.jobs = append(s.jobs, drover.JobID{})
				}
				s.jobs[a.job.number] = ids[s][i]
			} else if s.jobs[a.job.number] != ids[s][i] {
				rt.Fatalf("%s: the key of job %s gives job %s", s.kind, s.jobs[a.job.number], ids[s][i])
			}
		}
		seen[a.job] = true
	}
	if lost { // the answer that was lost may have been that of a write before the jobs'
		p.sweepAll()
		got = strings.ReplaceAll(got, "old false", "old true")
	}
	agree(rt, "submit", got, want.String()+" done")
}

// known finds the model's task, which must exist.
func (p *play) known(rt *rapid.T, s *side, job drover.JobID, name string, index int) *task {
	n := slices.Index(s.jobs, job)
	if n < 0 {
		rt.Fatalf("%s: a task of job %s, which is not of this tenant", s.kind, job)
	}
	x := p.model.jobs[n].row(name, index)
	if x == nil {
		rt.Fatalf("%s: job %d has no task %s[%d]", s.kind, n, name, index)
	}
	return x
}

func (p *play) anySession(rt *rapid.T) int {
	return rapid.IntRange(0, len(p.sessions)-1).Draw(rt, "session")
}

func (p *play) doAcquire(rt *rapid.T) {
	s := len(p.sessions) - 1
	if rapid.IntRange(0, 3).Draw(rt, "older session") == 0 {
		s = p.anySession(rt)
	}
	if !p.alive(s) && len(p.sessions) < maxSessions {
		p.openSession(rt)
		s = len(p.sessions) - 1
	}
	most := rapid.IntRange(1, 5).Draw(rt, "max")
	number := p.number + 1
	var took []*task
	var lostSide []*side
	got, lost := p.ask(rt, "acquire", func(d *side) (string, error) {
		if slices.Contains(lostSide, d) { // the leases that were lost are found, and given back, below
			return "", nil
		}
		before := d.faults.Counts()[storetest.LostAnswer]
		leases, err := d.Acquire(context.Background(), d.c, drover.Acquire{Session: d.sessions[s], Max: most, Number: number})
		if d.faults.Counts()[storetest.LostAnswer] > before {
			lostSide = append(lostSide, d)
		}
		var lines []string
		took = nil
		for _, l := range leases {
			x := p.known(rt, d, l.JobID, l.Name, l.Index)
			took = append(took, x)
			d.tasks[x.String()] = l.TaskID
			lines = append(lines, fmt.Sprintf("%s generation %d attempt %d of %d lease_version %d", x, l.Generation, l.Attempt, l.MaxAttempts, l.LeaseVersion))
		}
		slices.Sort(lines)
		return strings.Join(lines, "; "), err
	})
	p.number++
	if lost {
		for i, d := range p.sides {
			var here []*task
			for _, j := range p.model.jobs {
				list, err := d.Tasks(context.Background(), d.c, engine.TaskQuery{Job: d.jobs[j.number], Limit: 1000})
				if err != nil {
					rt.Fatal(err)
				}
				for _, x := range list {
					if m := p.known(rt, d, x.JobID, x.Name, x.Index); x.Status == drover.Running && m.status != drover.Running {
						here = append(here, m)
						d.tasks[m.String()] = x.ID
					}
				}
			}
			if i > 0 && !slices.Equal(here, took) {
				rt.Fatalf("%s took %v, %s took %v", p.sides[0].kind, took, d.kind, here)
			}
			took = here
		}
		if !p.alive(s) && len(took) > 0 {
			rt.Fatalf("%v were taken by a session that has run out", took)
		}
	}
	if !p.alive(s) {
		if !lost { // refused, so nothing was committed
			agree(rt, "acquire with a session that has run out", got, " "+string(drover.CodeLeaseLost))
		}
		return
	}
	held := p.held(s)
	if err := p.claim(s, most, number, took); err != nil {
		rt.Fatalf("acquire: %v", err)
	}
	if !lost {
		var lines []string
		for _, x := range took {
			lines = append(lines, fmt.Sprintf("%s generation %d attempt %d of %d lease_version %d", x, x.generation, x.attempt, x.job.shape.tries, x.version))
		}
		slices.Sort(lines)
		agree(rt, "acquire", got, strings.Join(lines, "; ")+" done")
		return
	}
	p.sweepAll()
	p.renew(rt, s, held) // the worker holds what it held: what it never got comes back
}

func (p *play) doRenew(rt *rapid.T) {
	s := p.anySession(rt)
	var held []*task
	for _, x := range p.held(s) {
		if rapid.IntRange(0, 4).Draw(rt, "forgotten") > 0 {
			held = append(held, x)
		}
	}
	p.renew(rt, s, held)
}

func (p *play) renew(rt *rapid.T, s int, held []*task) {
	versions := map[*task]int32{}
	for _, x := range held {
		versions[x] = x.version
	}
	got, lost := p.ask(rt, "renew", func(d *side) (string, error) {
		r := drover.Renewal{Acquired: p.number}
		for _, x := range held {
			r.Held = append(r.Held, drover.Held{TaskID: d.tasks[x.String()], LeaseVersion: versions[x]})
		}
		out, err := d.Renew(context.Background(), d.c, d.sessions[s], r)
		var lines []string
		for _, x := range held {
			h := drover.Held{TaskID: d.tasks[x.String()], LeaseVersion: versions[x]}
			if slices.Contains(out.Cancelled, h) {
				lines = append(lines, x.String()+" cancelled")
			}
			if slices.Contains(out.Lost, h) {
				lines = append(lines, x.String()+" lost")
			}
		}
		return fmt.Sprintf("%d %v", len(out.Cancelled)+len(out.Lost), lines), err
	})
	if !p.alive(s) {
		agree(rt, "renew a session that has run out", got, "0 [] "+string(drover.CodeLeaseLost))
		return
	}
	p.sessions[s].expires = p.model.now.Add(leaseFor)
	var lines []string
	for _, x := range held {
		switch {
		case x.status != drover.Running || x.version != versions[x]:
			lines = append(lines, x.String()+" lost")
		case x.job.stop != running:
			lines = append(lines, x.String()+" cancelled")
		}
	}
	p.release(s, slices.DeleteFunc(p.held(s), func(x *task) bool { return slices.Contains(held, x) }))
	if lost {
		p.sweepAll()
	}
	agree(rt, "renew", got, fmt.Sprintf("%d %v done", len(lines), lines))
}

func (p *play) doClose(rt *rapid.T) {
	if len(p.sessions) == maxSessions {
		rt.SkipNow()
	}
	s := p.anySession(rt)
	got, lost := p.ask(rt, "close a session", func(d *side) (string, error) {
		return "", d.CloseSession(context.Background(), d.c, d.sessions[s])
	})
	if !p.sessions[s].ended {
		p.closeSession(s)
	}
	if lost {
		p.sweepAll()
	}
	agree(rt, "close a session", got, " done")
	p.openSession(rt)
}

var words = []struct {
	status string
	class  drover.ErrorClass
	after  time.Duration
}{
	{status: drover.OutcomeSucceeded}, {status: drover.OutcomeSucceeded}, {status: drover.OutcomeSucceeded}, {status: drover.OutcomeSucceeded},
	{drover.OutcomeFailed, drover.ClassRetryable, 0}, {drover.OutcomeFailed, drover.ClassPermanent, 0}, {drover.OutcomeFailed, drover.ClassThrottled, 2 * time.Second},
	{drover.OutcomeSnoozed, "", time.Second}, {status: drover.OutcomeReleased}, {status: drover.OutcomeCancelled},
}

func (p *play) doSettle(rt *rapid.T) {
	s := p.anySession(rt)
	// What the session holds, what others hold, and what has ended long ago.
	var candidates []*task
	for _, j := range p.model.jobs {
		for _, x := range j.tasks {
			if x.version > 0 {
				candidates = append(candidates, x)
				if x.status == drover.Running && x.session == s {
					candidates = append(candidates, slices.Repeat([]*task{x}, 6)...)
				}
			}
		}
	}
	if len(candidates) == 0 {
		rt.SkipNow()
	}
	var list []outcome
	for range rapid.IntRange(1, 4).Draw(rt, "outcomes") {
		x := rapid.SampledFrom(candidates).Draw(rt, "task")
		w := rapid.SampledFrom(words).Draw(rt, "outcome")
		o := outcome{task: x, version: x.version, status: w.status, class: w.class, after: w.after}
		if len(x.ends) > 0 && rapid.IntRange(0, 4).Draw(rt, "earlier") == 0 {
			e := rapid.SampledFrom(x.ends).Draw(rt, "end")
			o.version = e.version
			if rapid.Bool().Draw(rt, "the same word") && slices.ContainsFunc(words, func(w struct {
				status string
				class  drover.ErrorClass
				after  time.Duration
			}) bool {
				return w.status == e.outcome
			}) {
				o.status = e.outcome
			}
		}
		if x.name == "list" {
			o.list = rapid.IntRange(0, 3).Draw(rt, "elements")
		}
		list = append(list, o)
	}
	got, lost := p.ask(rt, "settle", func(d *side) (string, error) {
		var out []drover.Outcome
		for _, o := range list {
			w := drover.Outcome{TaskID: d.tasks[o.task.String()], LeaseVersion: o.version, Status: o.status, RetryAfter: drover.Duration(o.after)}
			switch {
			case o.status == drover.OutcomeSucceeded && o.task.name == "list":
				w.Output = json.RawMessage("[" + strings.Join(slices.Repeat([]string{"1"}, o.list), ",") + "]")
			case o.status == drover.OutcomeFailed:
				w.Error = &drover.Failure{Class: o.class, Message: "no"}
			}
			out = append(out, w)
		}
		r := d.Settle(context.Background(), []engine.Settlement{{Caller: d.c, Session: d.sessions[s], Outcomes: out}})[0]
		var b strings.Builder
		for _, x := range r.Settled {
			if x.Err != nil {
				fmt.Fprintf(&b, "%s;", x.Err.Code)
			} else {
				fmt.Fprintf(&b, "%s;", x.Status)
			}
		}
		return b.String(), r.Err
	})
	var want strings.Builder
	for _, a := range p.settle(s, list) {
		if a.lost {
			fmt.Fprintf(&want, "%s;", drover.CodeLeaseLost)
		} else {
			fmt.Fprintf(&want, "%s;", a.status)
		}
	}
	if lost {
		p.sweepAll()
	}
	var what strings.Builder
	for _, o := range list {
		fmt.Fprintf(&what, "%s lease_version %d as %s %s; ", o.task, o.version, o.status, o.class)
	}
	agree(rt, fmt.Sprintf("settle by session %d: %s", s, what.String()), got, want.String()+" done")
}

func (p *play) anyJob(rt *rapid.T) *job {
	if len(p.model.jobs) == 0 {
		rt.SkipNow()
	}
	return rapid.SampledFrom(p.model.jobs).Draw(rt, "job")
}

func (p *play) doHold(verb string) func(*rapid.T) {
	return func(rt *rapid.T) {
		j := p.anyJob(rt)
		r := engine.Request{ID: p.name("request")}
		got, lost := p.ask(rt, verb, func(d *side) (string, error) {
			f := map[string]func(context.Context, engine.Caller, drover.JobID, engine.Request) (drover.Job, error){"cancel": d.Cancel, "pause": d.Pause, "resume": d.Resume}[verb]
			out, err := f(context.Background(), d.c, d.jobs[j.number], r)
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("%s paused %t", out.Status, out.Paused), nil
		})
		allowed := p.hold(j, verb)
		if lost {
			p.sweepAll()
		}
		want := " " + string(drover.CodeInvalidTransition)
		if allowed {
			want = fmt.Sprintf("%s paused %t done", j.status(), j.paused)
		}
		agree(rt, fmt.Sprintf("%s job %d", verb, j.number), got, want)
	}
}

func (p *play) doReplay(rt *rapid.T) {
	j := p.anyJob(rt)
	if len(j.tasks) == 0 {
		rt.SkipNow()
	}
	x := rapid.SampledFrom(j.tasks).Draw(rt, "task")
	r := engine.ReplayRequest{Request: engine.Request{ID: p.name("request")}}
	generation := x.generation
	got, lost := p.ask(rt, "replay", func(d *side) (string, error) {
		out, err := d.Replay(context.Background(), d.c, p.taskID(rt, d, x), r)
		if err != nil {
			return "", err
		}
		return fmt.Sprint("generation ", out.Generation), nil
	})
	allowed := p.replay(x)
	if lost {
		p.sweepAll()
	}
	want := " " + string(drover.CodeInvalidTransition)
	if allowed {
		want = fmt.Sprintf("generation %d done", generation+1)
	}
	agree(rt, "replay "+x.String(), got, want)
}

// taskID finds the id of a task that may never have been claimed.
func (p *play) taskID(rt *rapid.T, d *side, x *task) drover.TaskID {
	if id, ok := d.tasks[x.String()]; ok {
		return id
	}
	list, err := d.Tasks(context.Background(), d.c, engine.TaskQuery{Job: d.jobs[x.job.number], Name: x.name, Limit: 1000})
	if err != nil {
		rt.Fatal(err)
	}
	for _, t := range list {
		if t.Index == x.index {
			d.tasks[x.String()] = t.ID
			return t.ID
		}
	}
	rt.Fatalf("%s: %s is not listed", d.kind, x)
	return drover.TaskID{}
}

func (p *play) doLoop(name string, step func(*engine.Engine, context.Context) (int, error), model func()) func(*rapid.T) {
	return func(rt *rapid.T) {
		got, lost := p.ask(rt, name, func(d *side) (string, error) {
			_, err := step(d.Engine, context.Background())
			return "", err
		})
		model()
		if lost {
			p.sweepAll()
		}
		agree(rt, name, got, " done")
	}
}

// show is what the model says of a job, in the words of sideShow.
func (p *play) show(j *job) (summary, detail string) {
	counts := map[drover.Status]int{}
	for _, t := range j.tasks {
		s := t.status
		if s == drover.DeadLetter {
			s = drover.Failed
		}
		counts[s]++
	}
	n := 0
	for _, k := range j.events {
		n += k
	}
	summary = fmt.Sprintf("job %d %s run %d paused %t cancelling %t tasks %d %s events %d", j.number, j.status(), j.run, j.paused, j.stop != running, len(j.tasks), showCounts(counts), n)
	var lines []string
	for _, t := range j.tasks {
		due := ""
		if t.status == drover.RetryWait || t.timed {
			due = fmt.Sprint(" due ", t.due.UnixMilli())
		}
		lines = append(lines, fmt.Sprintf("%s[%d] %s generation %d attempt %d lease_version %d%s", t.name, t.index, t.status, t.generation, t.attempt, t.version, due))
	}
	return summary, showDetail(lines, j.events)
}

func showCounts(c map[drover.Status]int) string {
	var b strings.Builder
	for _, s := range slices.Sorted(maps.Keys(c)) {
		if c[s] > 0 {
			fmt.Fprintf(&b, "%s:%d ", s, c[s])
		}
	}
	return b.String()
}

func showDetail(lines []string, events map[drover.EventType]int) string {
	slices.Sort(lines)
	for _, t := range slices.Sorted(maps.Keys(events)) {
		lines = append(lines, fmt.Sprintf("%d × %s", events[t], t))
	}
	return strings.Join(lines, "\n")
}

func (s *side) summaries(rt *rapid.T) map[int]string {
	list, err := s.Jobs(context.Background(), s.c, engine.JobQuery{Limit: 500})
	if err != nil {
		rt.Fatal(err)
	}
	out := map[int]string{}
	for _, j := range list {
		n, c := slices.Index(s.jobs, j.ID), j.Tasks
		counts := map[drover.Status]int{drover.Pending: c.Pending, drover.Ready: c.Ready, drover.Queued: c.Queued, drover.Running: c.Running, drover.RetryWait: c.RetryWait,
			drover.Waiting: c.Waiting, drover.Succeeded: c.Succeeded, drover.Failed: c.Failed, drover.Cancelled: c.Cancelled, drover.Skipped: c.Skipped}
		out[n] = fmt.Sprintf("job %d %s run %d paused %t cancelling %t tasks %d %s events %d", n, j.Status, j.Run, j.Paused, j.Cancelling, c.Total, showCounts(counts), j.Events)
	}
	return out
}

func (s *side) detail(rt *rapid.T, j *job) string {
	ctx := context.Background()
	list, err := s.Tasks(ctx, s.c, engine.TaskQuery{Job: s.jobs[j.number], Limit: 1000})
	if err != nil {
		rt.Fatal(err)
	}
	var lines []string
	for _, t := range list {
		due := ""
		if t.Status == drover.RetryWait || t.Status == drover.Pending && t.Unmet == 0 && !t.DueAt.IsZero() {
			due = fmt.Sprint(" due ", t.DueAt.UnixMilli())
		}
		lines = append(lines, fmt.Sprintf("%s[%d] %s generation %d attempt %d lease_version %d%s", t.Name, t.Index, t.Status, t.Generation, t.Attempt, t.LeaseVersion, due))
	}
	events := map[drover.EventType]int{}
	list2, err := s.Events(ctx, s.c, s.jobs[j.number], 0, 1000)
	if err != nil {
		rt.Fatal(err)
	}
	for i, e := range list2 {
		if e.Seq != int64(i+1) {
			rt.Fatalf("%s: event %d of job %d has number %d", s.kind, i+1, j.number, e.Seq)
		}
		events[e.Type]++
	}
	return showDetail(lines, events)
}

// compare wants each database to show what the model does: of every job how it
// stands, of those that have changed each task and the events.
func (p *play) compare(rt *rapid.T) {
	for _, s := range p.sides {
		p.compareSide(rt, s)
	}
	for _, j := range p.model.jobs {
		_, p.told[j] = p.show(j)
	}
}

func (p *play) compareSide(rt *rapid.T, s *side) {
	got := s.summaries(rt)
	if len(got) != len(p.model.jobs) {
		rt.Fatalf("%s has %d jobs, the model %d: %v", s.kind, len(got), len(p.model.jobs), got)
	}
	for _, j := range p.model.jobs {
		summary, detail := p.show(j)
		if got[j.number] != summary || detail != p.told[j] {
			if d := s.detail(rt, j); d != detail || got[j.number] != summary {
				rt.Fatalf("%s:\n%s\n%s\n\nmodel:\n%s\n%s", s.kind, got[j.number], d, summary, detail)
			}
		}
	}
}

// check compares everything, and has the reconciler look for rows that do not
// agree with the records.
func (p *play) check(rt *rapid.T) {
	clear(p.told)
	p.compare(rt)
	for _, s := range p.sides {
		if len(s.jobs) == 0 {
			continue
		}
		var before drover.JobID
		first := slices.MinFunc(s.jobs, func(a, b drover.JobID) int { return slices.Compare(a[:], b[:]) })
		before = first
		before[15]-- // any id just before it
		list, _, err := s.ReconcileFrom(context.Background(), before, false)
		if err != nil {
			rt.Fatal(err)
		}
		for _, d := range list {
			rt.Errorf("%s: job %s does not agree with its records: %+v", s.kind, d.Job, d.Findings)
		}
	}
}
