package engine

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
)

func (s *stage) tasks(t *testing.T, q TaskQuery) []drover.Task {
	t.Helper()
	return must[[]drover.Task](t)(s.Tasks(t.Context(), s.c, q))
}

func places(tasks []drover.Task) string {
	var list []string
	for _, t := range tasks {
		list = append(list, fmt.Sprintf("%s[%d] %s", t.Name, t.Index, t.Status))
	}
	return strings.Join(list, ", ")
}

func TestTasksAreListedInTheOrderOfTheGraph(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		s.register(t, fan)
		id := s.submit(t, s.c, drover.NewJob{Pipeline: "fan"})[0]
		if got := places(s.tasks(t, TaskQuery{Job: id})); got != "list[0] QUEUED, each[-1] PENDING, sum[0] PENDING" {
			t.Errorf("new: %s", got)
		}
		w := s.worker(t, s.c)
		w.settle(done(w.acquire(1)[0], `{"items":["a","b","c"]}`))
		l := w.acquire(1)
		list := s.tasks(t, TaskQuery{Job: id})
		if got := places(list); got != "list[0] SUCCEEDED, each[0] RUNNING, each[1] QUEUED, each[2] QUEUED, sum[0] PENDING" {
			t.Errorf("expanded: %s", got)
		}
		each, sum := list[1], list[4]
		if each.Kind != "each" || !each.Mapped || each.Worker != "w-acme" || each.LeaseExpiresAt.IsZero() || each.Queue != "default" || each.MaxAttempts != 4 || each.Attempt != 1 ||
			each.LeaseVersion != 1 || each.Generation != 1 || each.JobID != id || each.ID != l[0].TaskID {
			t.Errorf("running: %+v", each)
		}
		if sum.Unmet != 3 || sum.Mapped {
			t.Errorf("pending: %+v", sum)
		}
		if got := places(s.tasks(t, TaskQuery{Job: id, Name: "each"})); got != "each[0] RUNNING, each[1] QUEUED, each[2] QUEUED" {
			t.Errorf("by name: %s", got)
		}
		if got := places(s.tasks(t, TaskQuery{Job: id, Name: "each", After: each.ID, Limit: 1})); got != "each[1] QUEUED" {
			t.Errorf("by name after the first: %s", got)
		}
		if got := places(s.tasks(t, TaskQuery{Job: id, Name: "none"})); got != "" {
			t.Errorf("by a name there is not: %s", got)
		}
		other := s.submit(t, s.c, drover.NewJob{Kind: "solo"})[0]
		if _, err := s.Tasks(t.Context(), s.c, TaskQuery{Job: other, After: each.ID}); drover.CodeOf(err) != drover.CodeValidation {
			t.Errorf("after another job's task: err = %v", err)
		}
		if got := places(s.tasks(t, TaskQuery{Job: other, Name: "solo"})); got != "solo[0] QUEUED" {
			t.Errorf("solo: %s", got)
		}
		if got := places(s.tasks(t, TaskQuery{Job: other, Name: "x"})); got != "" {
			t.Errorf("solo by another name: %s", got)
		}
	})
}

// TestTaskListsAgreeWithSingleTasks holds filters and pages to what the whole
// list gives, while a job with replays goes its random way.
func TestTaskListsAgreeWithSingleTasks(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		rnd := rand.New(rand.NewPCG(1, 2))
		s.register(t, `pipeline: big
tasks:
  list: {run: list}
  each: {run: each, for_each: "${{ tasks.list.output.items }}", queue: cpu}
  next: {run: next, for_each: each, class: urgent}
  other: {run: other, for_each: "${{ tasks.list.output.none }}"}
  sum: {run: sum, needs: [next, other]}
`)
		id := s.submit(t, s.c, drover.NewJob{Pipeline: "big"})[0]
		w := s.worker(t, s.c)
		checks := 0
		check := func() {
			t.Helper()
			all := s.tasks(t, TaskQuery{Job: id, Limit: 1000})
			checks++
			for i, task := range all {
				if i%5 != checks%5 {
					continue
				}
				one := must[drover.Task](t)(s.Task(ctx, s.c, task.ID))
				one.Input, one.Output = nil, nil
				if !reflect.DeepEqual(one, task) {
					t.Fatalf("one:  %+v\nlist: %+v", one, task)
				}
			}
			counts := s.job(t, id).Tasks
			if counts.Total != len(all) {
				t.Fatalf("the job counts %d tasks, the list has %d", counts.Total, len(all))
			}
			for _, st := range [][]drover.Status{nil, {drover.Pending}, {drover.RetryWait, drover.DeadLetter, drover.Failed, drover.Running}, {drover.Ready, drover.Succeeded, drover.Queued},
				{drover.Skipped, drover.Cancelled, drover.Running, drover.Running}} {
				for _, name := range []string{"", "each"} {
					var want, got []drover.Task
					for _, task := range all {
						if (st == nil || slices.Contains(st, task.Status)) && (name == "" || name == task.Name) {
							want = append(want, task)
						}
					}
					q := TaskQuery{Job: id, Status: st, Name: name, Limit: 13}
					for {
						page := s.tasks(t, q)
						got = append(got, page...)
						if len(page) < q.Limit {
							break
						}
						q.After = page[len(page)-1].ID
					}
					if places(got) != places(want) {
						t.Fatalf("%v %q:\n got %s\nwant %s", st, name, places(got), places(want))
					}
				}
			}
		}
		check()
		w.settle(done(w.acquire(1)[0], `{"none":[],"items":[`+strings.Repeat("1,", 19)+`1]}`))
		check()
		for range 8 {
			s.now = s.now.Add(3 * time.Second)
			must[int](t)(s.TimersOnce(ctx))
			must[int](t)(s.AdmitOnce(ctx))
			for _, l := range w.acquire(6) {
				switch rnd.IntN(6) {
				case 0:
					w.settle(broke(l, drover.ClassRetryable, "later"))
				case 1:
					w.settle(drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeReleased})
				case 2: // goes on running
				default:
					w.settle(done(l, `1`))
				}
			}
			for _, task := range s.tasks(t, TaskQuery{Job: id, Status: []drover.Status{drover.Succeeded}, Name: "each", Limit: 30}) {
				if rnd.IntN(20) == 0 {
					if _, err := s.Replay(ctx, s.c, task.ID, ReplayRequest{}); err != nil && drover.CodeOf(err) != drover.CodeInvalidTransition {
						t.Fatal(err)
					}
				}
			}
			must[drover.Renewed](t)(s.Renew(ctx, w.c, w.id, drover.Renewal{}))
			check()
		}
		must[drover.Job](t)(s.Pause(ctx, s.c, id, Request{}))
		check()
		must[drover.Job](t)(s.Cancel(ctx, s.c, id, Request{}))
		check()
	})
}

func TestTaskShowsInputOutputAndWaits(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		s.register(t, `pipeline: calc
tasks:
  list: {run: list}
  each: {run: each, for_each: "${{ tasks.list.output.items }}", with: {x: "${{ item }}", of: "${{ input.name }}"}}
  sum: {run: sum, with: {all: "${{ tasks.each.output }}"}}
`)
		id := s.submit(t, s.c, drover.NewJob{Pipeline: "calc", Input: json.RawMessage(`{"name":"n"}`)})[0]
		w := s.worker(t, s.c)
		began := s.now
		s.now = began.Add(2 * time.Second)
		l := w.acquire(1)[0]
		s.now = began.Add(5 * time.Second)
		w.settle(done(l, `{"items":[7,8]}`))
		list := s.tasks(t, TaskQuery{Job: id})
		get := func(i int) drover.Task { return must[drover.Task](t)(s.Task(ctx, s.c, list[i].ID)) }
		first := get(0)
		if string(first.Input) != `{"name":"n"}` || string(first.Output) != `{"items":[7,8]}` || !first.FinishedAt.Equal(s.now) || !first.ClaimedAt.Equal(began.Add(2*time.Second)) {
			t.Errorf("first: %+v", first)
		}
		if len(first.Waits) != 2 || first.Waits["handoff"].Std() != 2*time.Second || first.Waits["run"].Std() != 3*time.Second {
			t.Errorf("its waits: %v", first.Waits)
		}
		if x := get(2); string(x.Input) != `{"of":"n","x":8}` || x.Output != nil {
			t.Errorf("element: input %s output %s", x.Input, x.Output)
		}
		if x := get(3); x.Input != nil || x.Waits["dependency"].Std() != 5*time.Second || !x.DueAt.IsZero() {
			t.Errorf("pending: %+v", x)
		}
		for _, l := range w.acquire(2) {
			w.settle(done(l, fmt.Sprint(l.Index)))
		}
		if x := get(3); string(x.Input) != `{"all":[0,1]}` {
			t.Errorf("sum: input %s", x.Input)
		}
		// A replay with another input shows that one.
		must[drover.Task](t)(s.Replay(ctx, s.c, list[1].ID, ReplayRequest{Input: json.RawMessage(`"mine"`)}))
		if x := get(1); string(x.Input) != `"mine"` || x.Generation != 2 || x.Status != drover.Queued || x.Output != nil {
			t.Errorf("replayed: %+v %s", x, x.Input)
		}
		// A Kind job's, too; and a start in the future.
		solo := s.submit(t, s.c, drover.NewJob{Kind: "k", Input: json.RawMessage(`{"a": 1}`), DueAt: s.now.Add(time.Hour), Retry: &drover.Retry{MaxAttempts: 9}})[0]
		x := must[drover.Task](t)(s.Task(ctx, s.c, s.tasks(t, TaskQuery{Job: solo})[0].ID))
		if string(x.Input) != `{"a": 1}` || x.Status != drover.Pending || !x.DueAt.Equal(s.now.Add(time.Hour)) || x.MaxAttempts != 9 {
			t.Errorf("solo: %+v", x)
		}
	})
}

func TestAttemptsOfAllKindsAreListed(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		id := s.submit(t, s.c, drover.NewJob{Kind: "k", Retry: &drover.Retry{MaxAttempts: 2}})[0]
		w := s.worker(t, s.c)
		next := func() drover.Lease {
			t.Helper()
			s.now = s.now.Add(5 * time.Second)
			must[int](t)(s.TimersOnce(ctx))
			must[int](t)(s.AdmitOnce(ctx))
			return w.acquire(1)[0]
		}
		l := next()
		w.settle(broke(l, drover.ClassRetryable, "one"))
		if _, err := s.Attempts(ctx, s.tenant(t, "beta"), l.TaskID); drover.CodeOf(err) != drover.CodeNotFound {
			t.Errorf("another tenant: err = %v", err)
		}
		w.settle(broke(next(), drover.ClassRetryable, "two"))
		must[drover.Task](t)(s.Replay(ctx, s.c, l.TaskID, ReplayRequest{}))
		w.settle(done(next(), `1`))
		must[drover.Task](t)(s.Replay(ctx, s.c, l.TaskID, ReplayRequest{}))
		next()
		var got []string
		for _, a := range must[[]drover.Attempt](t)(s.Attempts(ctx, s.c, l.TaskID)) {
			why := ""
			if a.Error != nil {
				why = " " + a.Error.Message
			}
			got = append(got, fmt.Sprintf("%d.%d v%d %s %s%s", a.Generation, a.Attempt, a.LeaseVersion, a.Outcome, a.Worker, why))
			if a.ClaimedAt.IsZero() || a.QueuedAt.IsZero() || a.EndedAt.IsZero() != (a.Outcome == "running") {
				t.Errorf("times of %+v", a)
			}
		}
		want := []string{"1.1 v1 failed w-acme one", "1.2 v2 failed w-acme two", "2.1 v3 succeeded w-acme", "3.1 v4 running w-acme"}
		if !slices.Equal(got, want) {
			t.Errorf("attempts:\n got %s\nwant %s", strings.Join(got, "; "), strings.Join(want, "; "))
		}
		if j := s.job(t, id); j.Status != drover.Running || j.Run != 3 {
			t.Errorf("job: %+v", j)
		}
	})
}

func TestDeadLettersAreListedNewestFirst(t *testing.T) {
	onEach(t, func(t *testing.T, s *stage) {
		ctx := t.Context()
		w := s.worker(t, s.c)
		var want []drover.TaskID
		fail := func(class drover.ErrorClass) drover.TaskID {
			id := s.submit(t, s.c, drover.NewJob{Kind: "k", Retry: &drover.Retry{MaxAttempts: 1}})[0]
			l := w.acquire(1)[0]
			w.settle(broke(l, class, "no"))
			if l.JobID != id {
				t.Fatal("another job's task")
			}
			return l.TaskID
		}
		for i := range 12 {
			want = append(want, fail([]drover.ErrorClass{drover.ClassRetryable, drover.ClassPermanent}[i%2]))
		}
		// One that was replayed, one that failed twice.
		must[drover.Task](t)(s.Replay(ctx, s.c, want[3], ReplayRequest{}))
		again := w.acquire(1)[0]
		must[drover.Task](t)(s.Replay(ctx, s.c, want[5], ReplayRequest{}))
		w.settle(broke(w.acquire(1)[0], drover.ClassPermanent, "again"))
		want = slices.Delete(want, 3, 4)
		slices.Reverse(want)
		read := func(q LetterQuery) (ids []drover.TaskID) {
			t.Helper()
			for {
				page := must[[]drover.Letter](t)(s.Letters(ctx, s.c, q))
				for _, x := range page {
					if x.Error == nil || x.Worker != "w-acme" {
						t.Errorf("dead letter: %+v", x)
					}
					ids = append(ids, x.TaskID)
					q.After = LetterMark{At: x.FinishedAt, Task: x.TaskID, Generation: x.Generation}
				}
				if len(page) < q.Limit {
					return ids
				}
			}
		}
		if got := read(LetterQuery{Limit: 4}); !slices.Equal(got, want) {
			t.Errorf("dead letters:\n got %v\nwant %v", got, want)
		}
		if got := read(LetterQuery{Limit: 2, Status: drover.DeadLetter}); len(got) != 6 {
			t.Errorf("%d used up their attempts, want 6", len(got))
		}
		job := must[drover.Task](t)(s.Task(ctx, s.c, want[0])).JobID
		if got := read(LetterQuery{Limit: 2, Job: job}); len(got) != 1 || got[0] != want[0] {
			t.Errorf("of one job: %v", got)
		}
		w.settle(done(again, `1`))
		if got := read(LetterQuery{Limit: 50}); !slices.Equal(got, want) {
			t.Errorf("after the replay went well: %v", got)
		}
		if got := must[[]drover.Letter](t)(s.Letters(ctx, s.tenant(t, "beta"), LetterQuery{})); len(got) != 0 {
			t.Errorf("another tenant sees %d", len(got))
		}
	})
}
