package engine

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
)

// worker is a session of the stage and what a test does with it.
type worker struct {
	s   *stage
	t   *testing.T
	c   Caller
	id  drover.SessionID
	num int64
}

func (s *stage) worker(t *testing.T, c Caller, queues ...string) *worker {
	t.Helper()
	if len(queues) == 0 {
		queues = []string{"default", "cpu"}
	}
	session := must[drover.Session](t)(s.OpenSession(t.Context(), c, drover.NewSession{Worker: "w-" + c.TenantName, Queues: queues, Slots: 8}))
	return &worker{s: s, t: t, c: c, id: session.ID}
}

func (w *worker) acquire(n int) []drover.Lease {
	w.t.Helper()
	w.num++
	return must[[]drover.Lease](w.t)(w.s.Acquire(w.t.Context(), w.c, drover.Acquire{Session: w.id, Max: n, Number: w.num}))
}

func (w *worker) settle(o ...drover.Outcome) {
	w.t.Helper()
	r := w.s.Settle(w.t.Context(), []Settlement{{Caller: w.c, Session: w.id, Outcomes: o}})[0]
	if r.Err != nil {
		w.t.Fatal(r.Err)
	}
	for _, a := range r.Settled {
		if a.Err != nil {
			w.t.Fatal(a.Err)
		}
	}
}

func done(l drover.Lease, output string) drover.Outcome {
	return drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeSucceeded, Output: json.RawMessage(output)}
}

func broke(l drover.Lease, class drover.ErrorClass, message string) drover.Outcome {
	return drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeFailed, Error: &drover.Failure{Class: class, Message: message}}
}

func held(l drover.Lease) drover.Held {
	return drover.Held{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion}
}

func (s *stage) submit(t *testing.T, c Caller, jobs ...drover.NewJob) []drover.JobID {
	t.Helper()
	out := must[[]drover.Submitted](t)(s.Submit(t.Context(), c, jobs))
	ids := make([]drover.JobID, len(out))
	for i, o := range out {
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		ids[i] = o.JobID
	}
	return ids
}

func (s *stage) job(t *testing.T, id drover.JobID) drover.Job {
	t.Helper()
	return must[drover.Job](t)(s.Job(t.Context(), s.c, id))
}

func (s *stage) register(t *testing.T, src string) {
	t.Helper()
	must[drover.Pipeline](t)(s.RegisterPipeline(t.Context(), s.c, "p.yaml", []byte(src)))
}

func TestKindJobIsShownThroughItsLife(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		w := s.worker(t, s.c)
		id := s.submit(t, s.c, drover.NewJob{Kind: "mail", Queue: "cpu", Input: json.RawMessage(`{"to": "a"}`), Labels: map[string]string{"team": "x"},
			Class: drover.Urgent, Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})[0]
		j := s.job(t, id)
		if j.Status != drover.Pending || j.Tasks != (drover.Counts{Total: 1, Queued: 1}) || j.Run != 1 || j.Events != 1 || j.Kind != "mail" || j.Pipeline != "" ||
			j.Tenant != "acme" || j.Creator != "local" || j.Class != drover.Urgent || j.Labels["team"] != "x" || string(j.Input) != `{"to": "a"}` ||
			j.TraceID != "0af7651916cd43dd8448eb211c80319c" || !j.CreatedAt.Equal(s.now) || j.Progress == nil || j.Progress.Ratio != 0 {
			t.Fatalf("new: %+v", j)
		}
		l := w.acquire(1)[0]
		if err := s.SetProgress(t.Context(), s.c, held(l), drover.Progress{Ratio: 0.25, Message: "1 of 4"}); err != nil {
			t.Fatal(err)
		}
		if j = s.job(t, id); j.Status != drover.Running || j.Tasks != (drover.Counts{Total: 1, Running: 1}) || *j.Progress != (drover.Progress{Ratio: 0.25, Message: "1 of 4"}) {
			t.Fatalf("running: %+v %+v", j, j.Progress)
		}
		w.settle(broke(l, drover.ClassRetryable, "no route"))
		if j = s.job(t, id); j.Status != drover.Running || j.Tasks != (drover.Counts{Total: 1, RetryWait: 1}) || j.Events != 2 || j.Progress.Message != "" || j.Error != nil {
			t.Fatalf("waiting for its retry: %+v", j)
		}
		s.now = s.now.Add(time.Minute)
		must[int](t)(s.TimersOnce(t.Context()))
		w = s.worker(t, s.c) // the first one's lease has run out
		w.settle(done(w.acquire(1)[0], `{"sent":true}`))
		j = s.job(t, id)
		if j.Status != drover.Succeeded || j.Tasks != (drover.Counts{Total: 1, Succeeded: 1}) || string(j.Result) != `{"sent":true}` || !j.FinishedAt.Equal(s.now) || j.Progress.Ratio != 1 || j.Events != 4 {
			t.Fatalf("ended: %+v", j)
		}
		events := must[[]drover.Event](t)(s.Events(t.Context(), s.c, id, 1, 2))
		if len(events) != 2 || events[0].Seq != 2 || events[0].Type != drover.TaskRetryScheduled || events[1].Type != drover.TaskSucceeded || events[0].TaskID != l.TaskID {
			t.Errorf("events after 1 = %+v", events)
		}
	})
}

func TestPausedAndCancelledJobsSaySo(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ids := s.submit(t, s.c, drover.NewJob{Kind: "a"}, drover.NewJob{Kind: "b"})
		j := must[drover.Job](t)(s.Pause(t.Context(), s.c, ids[0], Request{}))
		if !j.Paused || j.Status != drover.Pending || j.Tasks != (drover.Counts{Total: 1, Ready: 1}) || j.Events != 2 {
			t.Errorf("paused: %+v", j)
		}
		w := s.worker(t, s.c)
		l := w.acquire(5)
		if len(l) != 1 {
			t.Fatalf("acquired %d, want the one that is not paused", len(l))
		}
		if j = must[drover.Job](t)(s.Cancel(t.Context(), s.c, ids[1], Request{})); !j.Cancelling || j.Status != drover.Running {
			t.Errorf("being cancelled: %+v", j)
		}
		w.settle(drover.Outcome{TaskID: l[0].TaskID, LeaseVersion: l[0].LeaseVersion, Status: drover.OutcomeCancelled})
		if j = s.job(t, ids[1]); j.Status != drover.Cancelled || j.Cancelling || j.Tasks != (drover.Counts{Total: 1, Cancelled: 1}) || j.Result != nil {
			t.Errorf("cancelled: %+v", j)
		}
	})
}

const fan = `pipeline: fan
tasks:
  list: {run: list}
  each: {run: each, for_each: "${{ tasks.list.output.items }}"}
  sum: {run: sum, needs: [each]}
`

func TestPipelineJobTellsItsProgressAndResult(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		s.register(t, fan)
		id := s.submit(t, s.c, drover.NewJob{Pipeline: "fan", Input: json.RawMessage(`{"n":5}`)})[0]
		j := s.job(t, id)
		if j.Status != drover.Pending || j.Tasks != (drover.Counts{Total: 3, Pending: 2, Queued: 1}) || j.Pipeline != "fan" || j.PipelineVersion != 1 || string(j.Input) != `{"n":5}` || len(j.TraceID) != 32 {
			t.Fatalf("new: %+v", j)
		}
		w := s.worker(t, s.c)
		l := w.acquire(1)
		if j = s.job(t, id); j.Progress.Message != "list" || j.Progress.Ratio != 0 {
			t.Errorf("at its first step: %+v", j.Progress)
		}
		w.settle(done(l[0], `{"items":[1,2,3,4,5]}`))
		l = w.acquire(3)
		s.now = s.now.Add(20 * time.Second)
		w.settle(done(l[0], `10`), done(l[1], `20`))
		j = s.job(t, id)
		if j.Status != drover.Running || j.Tasks != (drover.Counts{Total: 7, Pending: 1, Queued: 2, Running: 1, Succeeded: 3}) {
			t.Fatalf("in the middle: %+v", j)
		}
		if p := j.Progress; p.Message != "each: 2 of 5" || p.Ratio != 3.0/7 || p.ETA.Std().Round(time.Second) != 27*time.Second {
			t.Errorf("progress = %+v, want 3/7 and 4/3 of 20 s to go", p)
		}
		w.settle(done(l[2], `30`))
		for {
			l := w.acquire(9)
			if len(l) == 0 {
				break
			}
			for _, x := range l {
				w.settle(done(x, fmt.Sprintf(`{"of":%s}`, string(x.Input))))
			}
		}
		j = s.job(t, id)
		if j.Status != drover.Succeeded || j.Tasks != (drover.Counts{Total: 7, Succeeded: 7}) || string(j.Result) != `{"of":{"n":5}}` || j.Progress.Ratio != 1 || j.Progress.ETA != 0 {
			t.Errorf("ended: %+v, result %s", j, j.Result)
		}
		list := must[[]drover.Job](t)(s.Jobs(t.Context(), s.c, JobQuery{}))
		if len(list) != 1 || list[0].Result != nil || list[0].Input != nil || list[0].Tasks != j.Tasks {
			t.Errorf("listed: %+v", list)
		}
	})
}

func TestResultOfSeveralSinksIsByName(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		s.register(t, `pipeline: two
tasks:
  plain: {run: plain}
  silent: {run: silent}
  none: {run: each, for_each: "${{ input.none }}"}
  each: {run: each, for_each: "${{ input.items }}"}
`)
		id := s.submit(t, s.c, drover.NewJob{Pipeline: "two", Input: json.RawMessage(`{"items":["a","b"],"none":[]}`)})[0]
		w := s.worker(t, s.c)
		for _, l := range w.acquire(10) {
			out := string(l.Input)
			if l.Kind == "silent" {
				out = ""
			}
			w.settle(done(l, out))
		}
		if j := s.job(t, id); string(j.Result) != `{"plain":{"items":["a","b"],"none":[]},"silent":null,"none":[],"each":["a","b"]}` {
			t.Errorf("%s: result = %s", j.Status, j.Result)
		}
	})
}

func TestFailedJobNamesItsFirstFailure(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		s.register(t, fan)
		id := s.submit(t, s.c, drover.NewJob{Pipeline: "fan"})[0]
		w := s.worker(t, s.c)
		w.settle(done(w.acquire(1)[0], `{"items":[1,2,3]}`))
		l := w.acquire(2)
		w.settle(broke(l[0], drover.ClassPermanent, "it is broken"))
		j := s.job(t, id)
		if j.Status != drover.Running || !j.Cancelling || j.Error == nil || j.Error.Task != "each" || j.Error.Message != "it is broken" {
			t.Errorf("stopping: %+v %+v", j, j.Error)
		}
		s.now = s.now.Add(time.Second)
		w.settle(broke(l[1], drover.ClassPermanent, "so is this"))
		j = s.job(t, id)
		if j.Status != drover.Failed || j.Error == nil || j.Error.Message != "it is broken" || j.Error.Class != drover.ClassPermanent || j.Tasks.Failed == 0 || j.Tasks.Total != 5 {
			t.Errorf("failed: %+v %+v", j, j.Error)
		}
		// A replay opens it again; once it has gone well the old failure is history.
		must[drover.Task](t)(s.Replay(t.Context(), s.c, l[0].TaskID, ReplayRequest{}))
		if j = s.job(t, id); j.Status != drover.Running || j.Run != 2 || !j.FinishedAt.IsZero() {
			t.Errorf("reopened: %+v", j)
		}
		for {
			l := w.acquire(9)
			if len(l) == 0 {
				break
			}
			for _, x := range l {
				w.settle(done(x, `1`))
			}
		}
		if j = s.job(t, id); j.Status != drover.Succeeded || j.Error != nil || j.Run != 2 || j.Tasks.Succeeded != 5 {
			t.Errorf("after the replay: %+v %+v", j, j.Error)
		}
	})
}

func TestForeignAndUnknownThingsAreNotFound(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		id := s.submit(t, s.c, drover.NewJob{Kind: "a"})[0]
		task := must[[]drover.Task](t)(s.Tasks(t.Context(), s.c, TaskQuery{Job: id}))[0].ID
		beta, ctx := s.tenant(t, "beta"), t.Context()
		look := func(c Caller, job drover.JobID, task drover.TaskID) []error {
			_, _, logs := s.Logs(ctx, c, LogQuery{Task: task})
			_, _, jobLogs := s.Logs(ctx, c, LogQuery{Job: job})
			return []error{
				second(s.Job(ctx, c, job)), second(s.Tasks(ctx, c, TaskQuery{Job: job})), second(s.Task(ctx, c, task)), second(s.Attempts(ctx, c, task)),
				second(s.Events(ctx, c, job, 0, 10)), second(s.Artifacts(ctx, c, ArtifactQuery{Job: job})), second(s.Artifacts(ctx, c, ArtifactQuery{Task: task})),
				second(s.Letters(ctx, c, LetterQuery{Job: job})), logs, jobLogs,
			}
		}
		unknown := look(s.c, drover.JobID(s.db.NewID()), drover.TaskID(s.db.NewID()))
		foreign := look(beta, id, task)
		for i := range unknown {
			if drover.CodeOf(unknown[i]) != drover.CodeNotFound || drover.CodeOf(foreign[i]) != drover.CodeNotFound {
				t.Errorf("look %d: unknown = %v, foreign = %v: want not found", i, unknown[i], foreign[i])
			}
		}
		for i, err := range look(s.c, id, task) {
			if err != nil {
				t.Errorf("look %d of one's own: %v", i, err)
			}
		}
		if err := s.Ping(ctx); err != nil {
			t.Error(err)
		}
	})
}

// TestJobListsAgreeWithSingleJobs holds every filter to what reading all jobs
// one by one gives, page by page.
func TestJobListsAgreeWithSingleJobs(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		s.register(t, fan)
		s.register(t, strings.Replace(fan, "run: sum", "run: total", 1))
		s.register(t, "pipeline: other\ntasks:\n  a: {run: x}\n")
		beta := s.tenant(t, "beta")
		foreign := s.submit(t, beta, drover.NewJob{Kind: "x"}, drover.NewJob{Kind: "x"})
		var all []drover.JobID
		for i := range 60 {
			s.now = s.now.Add(time.Second)
			n := drover.NewJob{Kind: []string{"x", "y"}[i%2], Labels: map[string]string{"n": fmt.Sprint(i % 5)}}
			switch i % 6 {
			case 0:
				n = drover.NewJob{Pipeline: "fan", Labels: n.Labels}
			case 1:
				n = drover.NewJob{Pipeline: "other"}
			case 2:
				n.DueAt = s.now.Add(time.Hour)
			}
			all = append(all, s.submit(t, s.c, n)...)
			if i%30 == 7 {
				foreign = append(foreign, s.submit(t, beta, drover.NewJob{Kind: "x"})...)
			}
		}
		// A third goes well, some fail, some are left in the middle, some are opened again.
		w := s.worker(t, s.c)
		var replay []drover.TaskID
		for i := range 50 {
			l := w.acquire(1)
			if len(l) == 0 {
				break
			}
			switch i % 5 {
			case 0, 1, 2:
				w.settle(done(l[0], `{"items":[1,2]}`))
			case 3:
				w.settle(broke(l[0], drover.ClassPermanent, "no"))
				if i%2 == 0 {
					replay = append(replay, l[0].TaskID)
				}
			}
		}
		for i, id := range replay {
			must[drover.Task](t)(s.Replay(ctx, s.c, id, ReplayRequest{}))
			if i%2 == 0 {
				continue
			}
			for _, l := range w.acquire(3) {
				w.settle(broke(l, drover.ClassPermanent, "again"))
			}
		}
		for i, id := range all {
			if i%11 == 2 {
				if _, err := s.Cancel(ctx, s.c, id, Request{}); err != nil && drover.CodeOf(err) != drover.CodeInvalidTransition {
					t.Fatal(err)
				}
			}
		}
		slices.SortFunc(all, func(a, b drover.JobID) int { return compareIDs(b, a) })
		jobs := make([]drover.Job, len(all))
		seen := map[drover.Status]int{}
		for i, id := range all {
			jobs[i] = s.job(t, id)
			seen[jobs[i].Status]++
		}
		for _, st := range []drover.Status{drover.Pending, drover.Running, drover.Succeeded, drover.Failed, drover.Cancelled} {
			if seen[st] < 2 {
				t.Fatalf("the stage has too few jobs that are %s: %v", st, seen)
			}
		}
		mid := jobs[30].CreatedAt
		statuses := [][]drover.Status{
			nil, {drover.Pending}, {drover.Running}, {drover.Succeeded}, {drover.Failed}, {drover.Cancelled}, {drover.Running, drover.Pending}, {drover.Succeeded, drover.Running},
			{drover.Cancelled, drover.Failed, drover.Succeeded}, {drover.Failed, drover.Failed, drover.Cancelled, drover.Pending}, {drover.Queued}, drover.Statuses(),
		}
		for _, st := range statuses {
			for k, q := range []JobQuery{
				{}, {Kind: "x"}, {Pipeline: "fan"}, {Pipeline: "none"}, {Labels: map[string]string{"n": "2"}}, {Labels: map[string]string{"n": "2", "m": "1"}},
				{CreatedAfter: mid}, {CreatedBefore: mid}, {CreatedAfter: mid.Add(-10 * time.Second), CreatedBefore: mid, Kind: "y"}, {Pipeline: "\x00"},
			} {
				q.Status, q.Limit = st, 7
				var want, got []string
				for _, j := range jobs {
					if (len(st) == 0 || slices.Contains(st, j.Status)) && (q.Kind == "" || j.Kind == q.Kind) && (q.Pipeline == "" || j.Pipeline == q.Pipeline) &&
						(q.CreatedAfter.IsZero() || j.CreatedAt.After(q.CreatedAfter)) && (q.CreatedBefore.IsZero() || j.CreatedAt.Before(q.CreatedBefore)) {
						has := true
						for key, v := range q.Labels {
							has = has && j.Labels[key] == v
						}
						if has {
							want = append(want, shown(j))
						}
					}
				}
				for {
					page := must[[]drover.Job](t)(s.Jobs(ctx, s.c, q))
					for _, j := range page {
						got = append(got, shown(j))
						q.After = j.ID
					}
					if len(page) < q.Limit {
						break
					}
				}
				if !slices.Equal(got, want) {
					t.Fatalf("query %d with status %v:\n got %d %v\nwant %d %v", k, st, len(got), got, len(want), want)
				}
			}
		}
		if got := must[[]drover.Job](t)(s.Jobs(ctx, beta, JobQuery{Status: []drover.Status{drover.Pending}})); len(got) != len(foreign) {
			t.Errorf("the other tenant sees %d jobs, want its own %d", len(got), len(foreign))
		}
	})
}

// shown is what a list and a single look must agree in.
func shown(j drover.Job) string {
	why := ""
	if j.Error != nil {
		why = j.Error.Message
	}
	return fmt.Sprintf("%s %s %s@%d %s run %d %+v ratio %.3f events %d %s", j.ID, j.Status, j.Pipeline, j.PipelineVersion, j.Kind, j.Run, j.Tasks, j.Progress.Ratio, j.Events, why)
}

// A time that a job was shown with is good as a bound: "after" leaves that job
// out, and so does "before", although the store knows its microseconds.
func TestTheTimeOfAJobIsABoundForOthers(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		s.now = s.now.Truncate(time.Millisecond).Add(456 * time.Microsecond)
		first := s.job(t, s.submit(t, s.c, drover.NewJob{Kind: "first"})[0])
		s.now = s.now.Add(time.Millisecond)
		second := s.job(t, s.submit(t, s.c, drover.NewJob{Kind: "second"})[0])
		if want := s.now.Truncate(time.Millisecond); !second.CreatedAt.Equal(want) {
			t.Errorf("created_at = %s, want %s", second.CreatedAt, want)
		}
		for _, c := range []struct {
			q    JobQuery
			want string
		}{
			{JobQuery{CreatedAfter: first.CreatedAt}, "second"}, {JobQuery{CreatedBefore: second.CreatedAt}, "first"},
			{JobQuery{CreatedAfter: second.CreatedAt}, ""}, {JobQuery{CreatedBefore: first.CreatedAt}, ""},
			{JobQuery{CreatedAfter: first.CreatedAt.Add(-time.Millisecond), CreatedBefore: second.CreatedAt.Add(time.Millisecond)}, "second first"},
		} {
			var got []string
			for _, j := range must[[]drover.Job](t)(s.Jobs(t.Context(), s.c, c.q)) {
				got = append(got, j.Kind)
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%+v: got %q, want %q", c.q, got, c.want)
			}
		}
	})
}

// TestSearchesAreBounded lets a search with a rare match end early, and go on.
func TestSearchesAreBounded(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		rare := s.submit(t, s.c, drover.NewJob{Kind: "rare"})[0]
		batch := make([]drover.NewJob, 1500)
		for i := range batch {
			batch[i] = drover.NewJob{Kind: "x"}
		}
		s.submit(t, s.c, batch...)
		for _, q := range []JobQuery{{Kind: "rare"}, {Kind: "rare", Status: []drover.Status{drover.Pending}}} {
			page, next, err := s.jobPage(t.Context(), s.c, q, 1000)
			if err != nil || len(page) != 0 || next.IsZero() {
				t.Fatalf("first page = %d jobs, next %s, err %v: want none, and a place to go on", len(page), next, err)
			}
			q.After = next
			page, next, err = s.jobPage(t.Context(), s.c, q, 1000)
			if err != nil || len(page) != 1 || page[0].ID != rare || !next.IsZero() {
				t.Fatalf("second page = %d jobs, next %s, err %v", len(page), next, err)
			}
			q.After = drover.JobID{}
			if list := must[[]drover.Job](t)(s.Jobs(t.Context(), s.c, q)); len(list) != 1 {
				t.Errorf("list = %d jobs, want 1", len(list))
			}
		}
	})
}
