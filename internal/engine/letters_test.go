package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/driver"
)

// broken submits n jobs of one task of a kind and lets each fail for good.
func (w *world) broken(n int, kind string, message func(i int) string) (ids []drover.TaskID) {
	w.t.Helper()
	w.submitMany(n, drover.NewJob{Kind: kind, Input: json.RawMessage(`{"n": 1, "keep": 1.0}`)})
	leases := w.acquire(n)
	if len(leases) != n {
		w.t.Fatalf("%d leases, want %d", len(leases), n)
	}
	for i, l := range leases {
		w.clock.add += time.Millisecond
		if s := w.settle(failed(l, drover.ClassPermanent, message(i))); s[0].Status != drover.Failed {
			w.t.Fatalf("settled %+v", s)
		}
		ids = append(ids, l.TaskID)
	}
	return ids
}

func same(message string) func(int) string { return func(int) string { return message } }

func (w *world) letters(q engine.LetterQuery) []drover.Letter {
	w.t.Helper()
	if q.Limit == 0 {
		q.Limit = 1000
	}
	list, err := w.Letters(w.t.Context(), w.c, q)
	if err != nil {
		w.t.Fatal(err)
	}
	return list
}

func (w *world) replayAll(r engine.BatchRequest) drover.BatchOperation {
	w.t.Helper()
	if r.Tasks == nil && r.Filter == nil {
		r.Filter = &engine.LetterQuery{}
	}
	o, err := w.ReplayLetters(w.t.Context(), w.c, r)
	if err != nil {
		w.t.Fatal(err)
	}
	return o
}

func (w *world) operation(id drover.OperationID) drover.BatchOperation {
	w.t.Helper()
	o, err := w.Operation(w.t.Context(), w.c, id)
	if err != nil {
		w.t.Fatal(err)
	}
	return o
}

func told(o drover.BatchOperation) string {
	return fmt.Sprintf("%s: %d of %d, %d refused, %d wait", o.State, o.Done, o.Total, o.Refused, o.Waiting)
}

func (w *world) is(o drover.BatchOperation, want string) {
	w.t.Helper()
	if got := told(o); got != want {
		w.t.Errorf("the operation is %q, want %q (%s) %+v", got, want, o.Why, o.Items)
	}
}

// TestEveryBadEndIsADeadLetterOnce goes through every way a task ends badly.
func TestEveryBadEndIsADeadLetterOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: line\ntasks:\n  a: {run: k, retry: {max_attempts: 1}}\n  b: {run: k, needs: [a]}\n")
		w.apply("pipeline: wide\ninput: {type: object}\ntasks:\n  m: {run: k, for_each: \"${{ input.list }}\"}\n  j: {run: k, needs: [m]}\n")
		want := map[string]int{}
		fail := func(j drover.NewJob, class drover.ErrorClass, letters ...string) {
			t.Helper()
			w.submit(j)
			w.settle(failed(w.one(), class, "no"))
			w.quieten()
			for _, l := range letters {
				want[l]++
			}
		}
		fail(drover.NewJob{Kind: "perm"}, drover.ClassPermanent, "perm FAILED permanent")
		fail(drover.NewJob{Kind: "used", Retry: &drover.Retry{MaxAttempts: 1}}, drover.ClassTimeout, "used DEAD_LETTER timeout")
		fail(drover.NewJob{Pipeline: "line"}, drover.ClassRetryable, "line.a DEAD_LETTER retryable")
		w.submit(drover.NewJob{Pipeline: "wide", Input: json.RawMessage(`{"list": 7}`)})
		w.quieten()
		want["wide.m FAILED expansion"]++
		// One that kills its workers.
		w.submit(drover.NewJob{Kind: "poison"})
		for range 3 * lifecycle.MaxLeaseLosses {
			w.quieten()
			w.acquire(10)
			w.pass(5 * time.Minute)
			w.step("reap", w.ReapOnce)
		}
		want["poison DEAD_LETTER lease_lost"]++
		// Some that expire: waiting, held, and running without a word.
		soon := w.Now().Add(20 * time.Second)
		w.submit(drover.NewJob{Kind: "late", ExpiresAt: soon})
		w.acquire(1)
		held := w.submit(drover.NewJob{Kind: "late", ExpiresAt: soon})
		if _, err := w.Pause(t.Context(), w.c, held, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		w.submit(drover.NewJob{Pipeline: "line", ExpiresAt: soon})
		w.pass(21 * time.Second)
		w.quieten()
		w.pass(2 * time.Minute)
		w.quieten()
		want["late FAILED expired"] += 2
		want["line.a FAILED expired"]++
		want["line.b FAILED expired"]++

		got := map[string]int{}
		for _, l := range w.letters(engine.LetterQuery{}) {
			name := l.Name
			if l.Pipeline != "" {
				name = l.Pipeline + "." + l.Name
			}
			got[fmt.Sprintf("%s %s %s", name, l.Status, l.Error.Class)]++
			if l.Kind == "" || l.Queue != "default" || l.State != drover.LetterOpen || l.Generation != 1 || len(l.Fingerprint) != 16 || l.FinishedAt.IsZero() || l.Error.Message == "" {
				t.Errorf("dead letter %+v", l)
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("dead letters:\n got %v\nwant %v", got, want)
		}
		checkInvariants(t, w)
	})
}

// batch-error-mixup, odd-error, terminate-oversized: three tasks fail in one
// settlement, a report among them twice, with errors nobody can store as they are.
func TestEachDeadLetterShowsItsOwnError(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.submitMany(4, drover.NewJob{Kind: "k"})
		l := w.acquire(4)
		huge := strings.Repeat("x", 10<<20)
		out := []drover.Outcome{failed(l[0], drover.ClassPermanent, ""), failed(l[1], drover.ClassPermanent, "second\x00\xff"), failed(l[2], drover.ClassPermanent, huge), failed(l[3], drover.ClassPermanent, "fourth")}
		out = append(out, failed(l[1], drover.ClassPermanent, "again"), failed(l[0], drover.ClassPermanent, "again"))
		out[0], out[5] = out[5], out[0] // the duplicate comes first: it counts
		w.settle(out...)
		got := map[drover.TaskID]string{}
		for _, x := range w.letters(engine.LetterQuery{}) {
			got[x.TaskID] = x.Error.Message
		}
		for i, want := range []string{"again", "second��", "", "fourth"} {
			if m := got[l[i].TaskID]; m != want && i != 2 {
				t.Errorf("task %d says %q, want %q", i, m, want)
			}
		}
		if m := got[l[2].TaskID]; len(m) > 600 || !strings.HasSuffix(m, "[cut]") {
			t.Errorf("the huge message has %d bytes: %.30q", len(m), m)
		}
		whole, err := w.Letter(t.Context(), w.c, l[2].TaskID, 0)
		if err != nil || len(whole.Error.Message) < 8000 || len(whole.Error.Message) > 9000 || !strings.HasSuffix(whole.Error.Message, "[cut]") {
			t.Errorf("the whole of it has %d bytes, %v", len(whole.Error.Message), err)
		}
		// What is too long to be shown can be replayed and closed all the same.
		w.is(w.replayAll(engine.BatchRequest{Tasks: []drover.TaskID{l[2].TaskID}}), "done: 1 of 1, 0 refused, 0 wait")
		checkInvariants(t, w)
	})
}

func TestDeadLettersAreFilteredGroupedAndPaged(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		w.apply("pipeline: p\ntasks:\n  a: {run: mail, queue: gpu, retry: {max_attempts: 1}}\n")
		w.broken(7, "mail", func(i int) string { return fmt.Sprintf("host %d does not answer", i) })
		since := w.Now()
		w.broken(3, "mail", same("mailbox full"))
		until := w.Now()
		w.clock.add += time.Second
		w.broken(2, "print", same("host 5 does not answer"))
		job := w.submit(drover.NewJob{Pipeline: "p"})
		w.settle(failed(w.one(), drover.ClassRetryable, "host 5 does not answer"))
		for _, c := range []struct {
			what string
			q    engine.LetterQuery
			n    int
		}{
			{"all", engine.LetterQuery{}, 13}, {"kind", engine.LetterQuery{Kind: "mail"}, 11}, {"pipeline", engine.LetterQuery{Pipeline: "p"}, 1}, {"queue", engine.LetterQuery{Queue: "gpu"}, 1},
			{"no such queue", engine.LetterQuery{Queue: "nowhere"}, 0}, {"class", engine.LetterQuery{ErrorClass: drover.ClassPermanent}, 12}, {"status", engine.LetterQuery{Status: drover.DeadLetter}, 1},
			{"job", engine.LetterQuery{Job: job}, 1}, {"job and another kind", engine.LetterQuery{Job: job, Kind: "print"}, 0}, {"job and another group", engine.LetterQuery{Job: job, Fingerprint: "no"}, 0},
			{"since", engine.LetterQuery{Since: since}, 6}, {"until", engine.LetterQuery{Until: since}, 7}, {"between", engine.LetterQuery{Since: since, Until: until}, 3},
			{"replayed", engine.LetterQuery{State: drover.LetterReplayed}, 0}, {"any", engine.LetterQuery{State: "all"}, 13},
		} {
			list := w.letters(c.q)
			if len(list) != c.n {
				t.Errorf("%s: %d, want %d", c.what, len(list), c.n)
			}
			var paged []drover.Letter
			for q := c.q; ; {
				q.Limit = 2
				page := w.letters(q)
				paged = append(paged, page...)
				if len(page) < 2 {
					break
				}
				last := page[1]
				q.After = engine.LetterMark{At: last.FinishedAt, Task: last.TaskID, Generation: last.Generation}
			}
			if !slices.EqualFunc(list, paged, func(a, b drover.Letter) bool { return a.TaskID == b.TaskID }) || !slices.IsSortedFunc(list, func(a, b drover.Letter) int { return b.FinishedAt.Compare(a.FinishedAt) }) {
				t.Errorf("%s: pages differ from the list, or it is not sorted", c.what)
			}
		}
		groups, err := w.LetterGroups(ctx, w.c, engine.LetterQuery{}, engine.GroupMark{})
		var counts []string
		for _, g := range groups {
			counts = append(counts, fmt.Sprintf("%d %s %s", g.Count, strings.TrimPrefix(g.Pipeline+"."+g.Name, "."), lifecycle.Shape(g.Error.Message)))
			if n := len(w.letters(engine.LetterQuery{Fingerprint: g.Fingerprint})); n != g.Count {
				t.Errorf("group %s counts %d and lists %d", g.Fingerprint, g.Count, n)
			}
		}
		want := []string{"7 mail host # does not answer", "3 mail mailbox full", "2 print host # does not answer", "1 p.a host # does not answer"}
		if err != nil || !slices.Equal(counts, want) {
			t.Errorf("groups %q, %v", counts, err)
		}
		var paged []string
		for after := (engine.GroupMark{}); ; {
			page, err := w.LetterGroups(ctx, w.c, engine.LetterQuery{Limit: 1}, after)
			if err != nil {
				t.Fatal(err)
			}
			if len(page) == 0 {
				break
			}
			paged = append(paged, page[0].Fingerprint)
			after = engine.GroupMark{Count: page[0].Count, Fingerprint: page[0].Fingerprint}
		}
		if len(paged) != 4 || paged[0] != groups[0].Fingerprint || paged[3] != groups[3].Fingerprint {
			t.Errorf("pages of groups %q", paged)
		}
		for field, q := range map[string]engine.LetterQuery{"state": {State: "lost"}, "status": {Status: drover.Running}, "kind": {Kind: "a\x00"}} {
			_, err := w.Letters(ctx, w.c, q)
			var e *drover.Error
			if !errors.As(err, &e) || e.Code != drover.CodeValidation || e.Fields[0].Field != field {
				t.Errorf("a wrong %s: %v", field, err)
			}
		}
		other, err := w.EnsureTenant(ctx, "other")
		if err != nil {
			t.Fatal(err)
		}
		if list, err := w.Letters(ctx, other, engine.LetterQuery{State: "all"}); err != nil || len(list) != 0 {
			t.Errorf("another tenant sees %d, %v", len(list), err)
		}
		if groups, err := w.LetterGroups(ctx, other, engine.LetterQuery{}, engine.GroupMark{}); err != nil || len(groups) != 0 {
			t.Errorf("another tenant sees the groups %+v, %v", groups, err)
		}
		if _, err := w.Letter(ctx, other, w.letters(engine.LetterQuery{})[0].TaskID, 0); drover.CodeOf(err) != drover.CodeNotFound {
			t.Errorf("another tenant reads one: %v", err)
		}
	})
}

// TestADeadLetterIsShownWithWhatSurroundsIt follows one through two replays.
func TestADeadLetterIsShownWithWhatSurroundsIt(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		w.apply("pipeline: p\ntasks:\n  a: {run: k}\n  b: {run: k, retry: {max_attempts: 2, backoff: {initial: 1ms}}, with: {x: \"${{ tasks.a.output.x }}\"}}\n")
		w.submit(drover.NewJob{Pipeline: "p"})
		w.settle(ok(w.one(), `{"x": 1}`))
		var task drover.TaskID
		fail := func(say string) {
			t.Helper()
			w.clock.add += time.Second
			w.quieten()
			l := w.one()
			task = l.TaskID
			if _, err := w.AppendLogs(ctx, w.c, drover.Held{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion}, []drover.LogLine{{Text: say}}); err != nil {
				t.Fatal(err)
			}
			w.settle(failed(l, drover.ClassRetryable, say))
			w.clock.add += time.Second
		}
		fail("one")
		fail("two")
		w.replayAll(engine.BatchRequest{Tasks: []drover.TaskID{task}, Input: json.RawMessage(`{"x": 2}`), Request: engine.Request{Reason: "try two"}})
		fail("three")
		fail("four")
		o := w.replayAll(engine.BatchRequest{Tasks: []drover.TaskID{task}, Request: engine.Request{Reason: "try three"}})
		l, err := w.Letter(ctx, w.c, task, 0)
		if err != nil {
			t.Fatal(err)
		}
		c := l.Context
		if l.Generation != 2 || l.State != drover.LetterReplayed || l.Reason != "try three" || l.OperationID != o.ID || l.Attempt != 2 || l.Worker != "w" || l.Error.Message != "four" ||
			string(c.Input) != `{"x": 2}` || c.InputGeneration != 2 || len(c.Attempts) != 4 || c.Attempts[3].Error.Message != "four" || len(c.Logs) != 4 || c.Logs[3].Text != "four" || len(c.Waits) == 0 {
			t.Errorf("the second: %+v, context %+v", l, c)
		}
		if len(c.Parents) != 1 || c.Parents[0].Name != "a" || c.Parents[0].Status != drover.Succeeded || c.Parents[0].Generation != 1 {
			t.Errorf("parents %+v", c.Parents)
		}
		var line []string
		for _, g := range c.Lineage {
			line = append(line, fmt.Sprintf("%d %s %v %q", g.Generation, g.Status, g.NewInput, g.Reason))
		}
		if want := []string{`1 DEAD_LETTER false "try two"`, `2 DEAD_LETTER true "try three"`, `3 QUEUED false ""`}; !slices.Equal(line, want) {
			t.Errorf("lineage %q", line)
		}
		first, err := w.Letter(ctx, w.c, task, 1)
		if err != nil || first.Error.Message != "two" || string(first.Context.Input) != `{"x":1}` || first.Context.InputGeneration != 1 || len(first.Context.Logs) != 2 {
			t.Errorf("the first: %+v, %+v, %v", first, first.Context, err)
		}
		if next := w.one(); next.Generation != 3 || string(next.Input) != `{"x": 2}` || next.Attempt != 1 {
			t.Errorf("what runs again: %+v", next)
		}
		if _, err := w.Letter(ctx, w.c, c.Parents[0].TaskID, 0); drover.CodeOf(err) != drover.CodeNotFound {
			t.Errorf("of a task that succeeded: %v", err)
		}
		if _, err := w.Letter(ctx, w.c, task, 3); drover.CodeOf(err) != drover.CodeNotFound {
			t.Errorf("of a generation that runs: %v", err)
		}
		checkInvariants(t, w)
	})
}

// retry-conflict: each item that cannot be replayed says why, and the others are.
func TestManyAreReplayedAtOnceAndSomeRefused(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		ids := w.broken(6, "k", same("no"))
		if _, err := w.Replay(ctx, w.c, ids[0], engine.ReplayRequest{}); err != nil { // live again
			t.Fatal(err)
		}
		if _, err := w.CloseLetters(ctx, w.c, engine.BatchRequest{Tasks: ids[1:2], Request: engine.Request{Reason: "lost cause"}}); err != nil {
			t.Fatal(err)
		}
		w.apply("pipeline: p\ntasks:\n  a: {run: k}\n  b: {run: k}\n")
		job := w.submit(drover.NewJob{Pipeline: "p"})
		l := w.acquire(10)
		l = slices.DeleteFunc(l, func(l drover.Lease) bool { return l.JobID != job })
		w.settle(failed(l[0], drover.ClassPermanent, "no")) // the job is stopping: its other task still runs
		other, err := w.EnsureTenant(ctx, "other")
		if err != nil {
			t.Fatal(err)
		}
		foreign, err := w.ReplayLetters(ctx, other, engine.BatchRequest{Tasks: ids[2:3]})
		if err != nil || told(foreign) != "done: 0 of 1, 1 refused, 0 wait" || foreign.Items[0].Code != drover.CodeNotFound {
			t.Errorf("another tenant's: %+v, %v", foreign, err)
		}
		ghost := drover.TaskID(w.db.NewID())
		o := w.replayAll(engine.BatchRequest{Tasks: append(slices.Clone(ids), l[0].TaskID, ids[2], ghost), Request: engine.Request{Reason: "why not"}})
		w.is(o, "done: 4 of 8, 4 refused, 0 wait")
		for i, want := range []struct {
			code drover.Code
			text string
		}{{drover.CodeInvalidTransition, "generation 1 of task " + ids[0].String() + " was replayed already: its generation 2 is "}, {drover.CodeInvalidTransition, "was closed by local: lost cause"}, {}, {}, {}, {},
			{drover.CodeInvalidTransition, "job " + job.String() + " is stopping (one of its tasks failed)"}, {drover.CodeNotFound, ghost.String()}} {
			x := o.Items[i]
			if x.Code != want.code || !strings.Contains(x.Detail, want.text) || (x.State == drover.ItemDone) != (want.code == "") || x.State == drover.ItemDone && x.NextGeneration != 2 {
				t.Errorf("item %d: %+v, want %+v", i, x, want)
			}
		}
		w.settle(drover.Outcome{TaskID: l[1].TaskID, LeaseVersion: l[1].LeaseVersion, Status: drover.OutcomeCancelled})
		w.quieten()
		w.is(w.replayAll(engine.BatchRequest{}), "done: 1 of 1, 0 refused, 0 wait") // all that are open now
		w.finish(succeed)
		if left := w.letters(engine.LetterQuery{}); len(left) != 0 {
			t.Errorf("still open: %+v", left)
		}
		w.want(job, drover.Succeeded)
		checkInvariants(t, w)
		w.audit()
	})
}

// TestARequestIdReplaysOnce: the same request again is the same operation, and
// another under its id is refused.
func TestARequestIdReplaysOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ids := w.broken(3, "k", same("no"))
		r := engine.BatchRequest{Filter: &engine.LetterQuery{Kind: "k"}, Request: engine.Request{ID: "r", Reason: "x"}}
		first := w.replayAll(r)
		w.is(first, "done: 3 of 3, 0 refused, 0 wait")
		for _, l := range w.all() {
			w.settle(failed(l, drover.ClassPermanent, "no"))
		}
		if again := w.replayAll(r); again.ID != first.ID || told(again) != told(first) {
			t.Errorf("the repeat: %+v, want %+v", again, first)
		}
		for _, id := range ids {
			if x := must(w.Task(t.Context(), w.c, id)); x.Generation != 2 {
				t.Errorf("task %s is in generation %d", id, x.Generation)
			}
		}
		for what, change := range map[string]func(*engine.BatchRequest){
			"another filter": func(r *engine.BatchRequest) { r.Filter = &engine.LetterQuery{} }, "another reason": func(r *engine.BatchRequest) { r.Reason = "y" },
			"an input": func(r *engine.BatchRequest) { r.Input = json.RawMessage("1") }, "named ones": func(r *engine.BatchRequest) { r.Filter, r.Tasks = nil, ids },
		} {
			x := r
			change(&x)
			if _, err := w.ReplayLetters(t.Context(), w.c, x); drover.CodeOf(err) != drover.CodeIdempotencyReused {
				t.Errorf("%s: %v", what, err)
			}
		}
		if _, err := w.CloseLetters(t.Context(), w.c, engine.BatchRequest{Filter: r.Filter, Request: r.Request}); drover.CodeOf(err) != drover.CodeIdempotencyReused {
			t.Errorf("a close: %v", err)
		}
		if _, err := w.Cancel(t.Context(), w.c, w.letters(engine.LetterQuery{})[0].JobID, engine.Request{ID: "r"}); drover.CodeOf(err) != drover.CodeIdempotencyReused {
			t.Errorf("a cancel: %v", err)
		}
		checkInvariants(t, w)
	})
}

func TestAClosedDeadLetterStaysUntilItIsReopened(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		ids := w.broken(3, "k", same("no"))
		_, err := w.CloseLetters(ctx, w.c, engine.BatchRequest{Tasks: ids, Request: engine.Request{Reason: "  "}})
		if drover.CodeOf(err) != drover.CodeValidation {
			t.Errorf("without a reason: %v", err)
		}
		r := engine.BatchRequest{Filter: &engine.LetterQuery{Kind: "k"}, Request: engine.Request{Reason: "customer gone"}, DryRun: true}
		dry, err := w.CloseLetters(ctx, w.c, r)
		if err != nil || told(dry) != "dry_run: 0 of 3, 0 refused, 3 wait" || len(w.letters(engine.LetterQuery{})) != 3 {
			t.Errorf("a dry run: %+v, %v", dry, err)
		}
		r.DryRun = false
		o, err := w.CloseLetters(ctx, w.c, r)
		if err != nil || told(o) != "done: 3 of 3, 0 refused, 0 wait" {
			t.Fatalf("closed: %+v, %v", o, err)
		}
		closed := w.letters(engine.LetterQuery{State: drover.LetterClosed})
		if len(w.letters(engine.LetterQuery{})) != 0 || len(closed) != 3 || closed[0].Reason != "customer gone" || closed[0].OperationID != o.ID || closed[0].StateAt.IsZero() {
			t.Errorf("closed: %+v", closed)
		}
		again, err := w.CloseLetters(ctx, w.c, engine.BatchRequest{Tasks: ids[:1], Request: engine.Request{Reason: "x"}})
		if err != nil || again.Refused != 1 || !strings.Contains(again.Items[0].Detail, "closed already") {
			t.Errorf("closed again: %+v, %v", again, err)
		}
		w.is(w.replayAll(engine.BatchRequest{}), "done: 0 of 0, 0 refused, 0 wait")
		if _, err := w.Replay(ctx, w.c, ids[0], engine.ReplayRequest{}); drover.CodeOf(err) != drover.CodeInvalidTransition || !strings.Contains(err.Error(), "customer gone") {
			t.Errorf("a replay of its task: %v", err)
		}
		if x, err := w.Replay(ctx, w.c, ids[0], engine.ReplayRequest{Reopen: true}); err != nil || x.Generation != 2 {
			t.Errorf("reopened: %+v, %v", x, err)
		}
		w.is(w.replayAll(engine.BatchRequest{Reopen: true}), "done: 2 of 2, 0 refused, 0 wait")
		again, err = w.CloseLetters(ctx, w.c, engine.BatchRequest{Tasks: ids[:1], Request: engine.Request{Reason: "x"}})
		if err != nil || again.Refused != 1 || !strings.Contains(again.Items[0].Detail, "was replayed already") {
			t.Errorf("closed once it runs: %+v, %v", again, err)
		}
		checkInvariants(t, w)
	})
}

func TestADryRunSaysWhatWouldBeDoneAndDoesNothing(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: k}\n  b: {run: k, needs: [a]}\n")
		job := w.submit(drover.NewJob{Pipeline: "p"})
		w.settle(failed(w.one(), drover.ClassPermanent, "no"))
		w.quieten()
		ids := w.broken(130, "k", same("no"))
		if _, err := w.Replay(t.Context(), w.c, ids[0], engine.ReplayRequest{}); err != nil {
			t.Fatal(err)
		}
		before := w.statuses()
		o := w.replayAll(engine.BatchRequest{DryRun: true, Canary: 5, Rate: 2, Request: engine.Request{ID: "r"}})
		if told(o) != "dry_run: 0 of 130, 0 refused, 130 wait" || !o.ID.IsZero() || len(o.Items) != 100 || o.Items[0].State != drover.ItemWaiting || !o.Ended() {
			t.Errorf("dry run: %+v", o)
		}
		w.is(w.replayAll(engine.BatchRequest{DryRun: true, Tasks: ids[:2], Patch: json.RawMessage(`{"n":2}`)}), "dry_run: 0 of 2, 1 refused, 1 wait")
		if after := w.statuses(); !maps.Equal(before, after) {
			t.Errorf("tasks were %v and are %v", before, after)
		}
		if list, err := w.Operations(t.Context(), w.c, drover.OperationID{}, 10); err != nil || len(list) != 0 {
			t.Errorf("operations %+v, %v", list, err)
		}
		w.want(job, drover.Failed)
		checkInvariants(t, w)
	})
}

// TestARateIsKept: an operation with a rate goes on in its own time, also after
// a pause of the server.
func TestARateIsKept(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.broken(60, "k", same("no"))
		o := w.replayAll(engine.BatchRequest{Rate: 10})
		w.is(o, "running: 0 of 60, 0 refused, 60 wait")
		begin := o.CreatedAt
		for o.Done < 20 {
			w.step("batches", w.BatchesOnce)
			o = w.operation(o.ID)
			if most := 1 + int(10*w.Now().Sub(begin).Seconds()); o.Done > most {
				t.Fatalf("%d done after %s", o.Done, w.Now().Sub(begin))
			}
			w.clock.add += 50 * time.Millisecond
		}
		if took := w.Now().Sub(begin); took > 4*time.Second {
			t.Errorf("20 took %s", took)
		}
		w.clock.add += time.Hour // nobody was there
		back := w.Now()
		for range 5 {
			w.step("batches", w.BatchesOnce)
		}
		if got := w.operation(o.ID).Done - o.Done; got < 10 || got > 1+10+int(10*w.Now().Sub(back).Seconds()) {
			t.Errorf("%d done at once after an hour, want a second's", got)
		}
		slow := w.replayAll(engine.BatchRequest{Rate: 0.5})
		w.step("batches", w.BatchesOnce)
		w.clock.add += 1500 * time.Millisecond
		w.step("batches", w.BatchesOnce)
		if n, most := w.operation(slow.ID), 1+int(w.Now().Sub(slow.CreatedAt).Seconds()/2); n.Done+n.Refused < 1 || n.Done+n.Refused > most {
			t.Errorf("at half a one a second: %s, want at most %d", told(n), most)
		}
		checkInvariants(t, w)
	})
}

func TestCanariesGoFirst(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		ids := w.broken(20, "k", same("no"))
		if _, err := w.Replay(ctx, w.c, ids[1], engine.ReplayRequest{}); err != nil {
			t.Fatal(err)
		}
		w.one()
		look := func(o drover.BatchOperation) drover.BatchOperation {
			t.Helper()
			w.clock.add += time.Second
			for range 4 {
				w.step("batches", w.BatchesOnce)
			}
			return w.operation(o.ID)
		}
		// A refused one is no canary.
		o := look(w.replayAll(engine.BatchRequest{Tasks: ids, Canary: 5}))
		w.is(o, "waiting_canary: 5 of 20, 1 refused, 14 wait")
		l := w.all()
		if len(l) != 5 {
			t.Fatalf("%d canaries", len(l))
		}
		for _, x := range l[:4] {
			w.settle(succeed(x))
		}
		w.is(look(o), "waiting_canary: 5 of 20, 1 refused, 14 wait")
		w.settle(failed(l[4], drover.ClassRetryable, "again")) // it waits, and then succeeds
		w.is(look(o), "waiting_canary: 5 of 20, 1 refused, 14 wait")
		w.pass(time.Minute)
		w.quieten()
		w.finish(succeed)
		look(o)
		w.is(look(o), "done: 19 of 20, 1 refused, 0 wait")
		for _, x := range w.all() {
			w.settle(failed(x, drover.ClassPermanent, "once more"))
		}
		// One that fails stops it.
		o = look(w.replayAll(engine.BatchRequest{Canary: 3}))
		for i, x := range w.all() {
			if i == 1 {
				w.settle(failed(x, drover.ClassPermanent, "still"))
			} else {
				w.settle(succeed(x))
			}
		}
		o = look(o)
		w.is(o, "stopped: 3 of 14, 0 refused, 11 wait")
		if !strings.Contains(o.Why, "ended FAILED in generation 3") || !o.Ended() || o.EndedAt.IsZero() {
			t.Errorf("why: %q, %+v", o.Why, o)
		}
		w.is(look(o), "stopped: 3 of 14, 0 refused, 11 wait")
		// As many canaries as there are, or more: nobody waits for them.
		w.is(look(w.replayAll(engine.BatchRequest{Canary: 12})), "done: 12 of 12, 0 refused, 0 wait")
		checkInvariants(t, w)
	})
}

func TestAnOperationIsCancelled(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		w.broken(10, "k", same("no"))
		o := w.replayAll(engine.BatchRequest{Canary: 2})
		w.step("batches", w.BatchesOnce)
		other, err := w.EnsureTenant(ctx, "other")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.CancelOperation(ctx, other, o.ID, engine.Request{}); drover.CodeOf(err) != drover.CodeNotFound {
			t.Errorf("by another tenant: %v", err)
		}
		for range 2 {
			got, err := w.CancelOperation(ctx, w.c, o.ID, engine.Request{ID: "c", Reason: "wrong ones"})
			if err != nil || told(got) != "stopped: 2 of 10, 0 refused, 8 wait" || got.Why != "cancelled by local: wrong ones" {
				t.Errorf("cancelled: %+v, %v", got, err)
			}
		}
		w.finish(succeed)
		w.clock.add += time.Minute
		if n := w.step("batches", w.BatchesOnce); n != 0 || len(w.letters(engine.LetterQuery{})) != 8 {
			t.Errorf("%d done after the cancel", n)
		}
		done := w.replayAll(engine.BatchRequest{})
		if got, err := w.CancelOperation(ctx, w.c, done.ID, engine.Request{}); err != nil || got.State != drover.BatchDone || got.Why != "" {
			t.Errorf("cancelled after its end: %+v, %v", got, err)
		}
		list, err := w.Operations(ctx, w.c, drover.OperationID{}, 1)
		if err != nil || len(list) != 1 || list[0].ID != done.ID {
			t.Errorf("operations: %+v, %v", list, err)
		}
		if list, err = w.Operations(ctx, w.c, list[0].ID, 5); err != nil || len(list) != 1 || list[0].ID != o.ID {
			t.Errorf("operations before it: %+v, %v", list, err)
		}
		items, err := w.OperationItems(ctx, w.c, o.ID, false, 3, 4)
		if err != nil || len(items) != 4 || items[0].Number != 4 || items[0].State != drover.ItemWaiting {
			t.Errorf("items: %+v, %v", items, err)
		}
		// Long after their end they are forgotten.
		w.clock.add += 31 * 24 * time.Hour
		for range 10 {
			w.step("file", w.FileOnce)
		}
		if list, err = w.Operations(ctx, w.c, drover.OperationID{}, 10); err != nil || len(list) != 0 {
			t.Errorf("after a month: %+v, %v", list, err)
		}
	})
}

// TestTwoServersReplayEachOnce: servers that go on with one operation at once,
// while people replay and close by hand, replay none twice and leave none out.
func TestTwoServersReplayEachOnce(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		n := w.scaled(600, 150)
		w.apply("pipeline: p\ninput: {type: object}\ntasks:\n  m: {run: k, for_each: \"${{ input.list }}\"}\n  j: {run: k, needs: [m]}\n")
		list, err := json.Marshal(map[string]any{"list": make([]int, 20)})
		if err != nil {
			t.Fatal(err)
		}
		ids := w.broken(n, "k", same("no"))
		for range 3 {
			w.submit(drover.NewJob{Pipeline: "p", Input: list})
			var out []drover.Outcome
			for _, l := range w.all() {
				out = append(out, failed(l, drover.ClassPermanent, "no"))
			}
			w.settle(out...)
			w.quieten()
		}
		open := len(w.letters(engine.LetterQuery{}))
		o := w.replayAll(engine.BatchRequest{Canary: 0, Request: engine.Request{ID: "all"}})
		if o.Total != open || o.Ended() {
			t.Fatalf("%s of %d", told(o), open)
		}
		servers := []*engine.Engine{w.server(), w.server(), w.server()}
		var byHand [2]int
		err = together(5, func(i int) error {
			ctx := context.Background()
			switch i {
			case 3, 4: // by hand, the same ones twice
				for k := 0; k < n; k += 7 {
					_, err := servers[i-3].Replay(ctx, w.c, ids[n-1-k], engine.ReplayRequest{})
					if err == nil {
						byHand[i-3]++
					} else if drover.CodeOf(err) != drover.CodeInvalidTransition {
						return err
					}
				}
				return nil
			}
			for {
				if _, err := servers[i].BatchesOnce(ctx); err != nil {
					return err
				}
				x, err := servers[i].Operation(ctx, w.c, o.ID)
				if err != nil || x.Ended() {
					return err
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		x := w.operation(o.ID)
		if x.State != drover.BatchDone || x.Done+x.Refused != open || x.Refused != byHand[0]+byHand[1] {
			t.Errorf("%s; by hand %v", told(x), byHand)
		}
		for _, id := range ids {
			if got := must(w.Task(t.Context(), w.c, id)); got.Generation != 2 {
				t.Fatalf("task %s is in generation %d", id, got.Generation)
			}
		}
		checkInvariants(t, w)
		w.finish(succeed)
		if left := w.letters(engine.LetterQuery{}); len(left) != 0 {
			t.Errorf("%d are still open", len(left))
		}
		checkInvariants(t, w)
	})
}

// TestAReplayThatBreaksOffGoesOn breaks an operation off at every trip to the
// database, and loses the answer of every commit.
func TestAReplayThatBreaksOffGoesOn(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		if raceDetector && w.db.Dialect() == driver.SQLite {
			return // slow, and the same without
		}
		ctx := t.Context()
		c := &crash{Driver: w.db.Driver}
		w.db.Driver = c
		w.apply("pipeline: p\ntasks:\n  a: {run: k}\n  b: {run: k, needs: [a]}\n")
		for _, lose := range []bool{false, true} {
			for at := 1; ; at++ {
				ids := w.broken(3, "k", same("no"))
				w.submit(drover.NewJob{Pipeline: "p"})
				l := w.one()
				w.settle(failed(l, drover.ClassPermanent, "no"))
				w.quieten()
				ids = append(ids, l.TaskID)
				r := engine.BatchRequest{Tasks: ids, Request: engine.Request{ID: fmt.Sprint("try ", lose, at)}, Patch: json.RawMessage(`{"n": 3}`)}
				c.at, c.lose, c.fired = at, lose, false
				_, err := w.ReplayLetters(ctx, w.c, r)
				fired := c.fired
				c.at = 0
				if err != nil && !fired {
					t.Fatal(err)
				}
				w.step("batches", w.BatchesOnce)
				o, err := w.ReplayLetters(ctx, w.c, r)
				if err != nil || told(o) != "done: 4 of 4, 0 refused, 0 wait" {
					t.Fatalf("broken off at %d (%v): %s, %v, %+v", at, lose, told(o), err, o.Items)
				}
				for _, id := range ids {
					if x := must(w.Task(ctx, w.c, id)); x.Generation != 2 {
						t.Fatalf("broken off at %d: task %s is in generation %d", at, id, x.Generation)
					}
				}
				if !fired {
					break
				}
				w.finish(succeed)
			}
			w.finish(succeed)
		}
		checkInvariants(t, w)
	})
}

// TestOneThatCannotBeReplayedDoesNotHoldTheOthersUp: what fails in the server
// itself is refused, after the others.
func TestOneThatCannotBeReplayedDoesNotHoldTheOthersUp(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: k}\n")
		ids := w.broken(2, "k", same("no"))
		w.submit(drover.NewJob{Pipeline: "p"})
		l := w.one()
		w.settle(failed(l, drover.ClassPermanent, "no"))
		w.clock.add += time.Second
		ids = append(ids, w.broken(2, "k", same("no"))...)
		w.exec("UPDATE pipelines SET definition = $1", []byte("{"))
		w.Engine = w.server() // that has not read it yet
		o := w.replayAll(engine.BatchRequest{})
		w.is(o, "done: 4 of 5, 1 refused, 0 wait")
		if x := o.Items[2]; x.TaskID != l.TaskID || x.Code != drover.CodeInternal || strings.Contains(x.Detail, "JSON") {
			t.Errorf("the broken one: %+v", x)
		}
		for _, id := range ids {
			if x := must(w.Task(t.Context(), w.c, id)); x.Generation != 2 {
				t.Errorf("task %s is in generation %d", id, x.Generation)
			}
		}
	})
}

// TestFailuresOfOneJobComeBackOneByOne: what two failures cut off comes back
// with the second of them, in one request or in two.
func TestFailuresOfOneJobComeBackOneByOne(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ntasks:\n  a: {run: k}\n  b: {run: k}\n  c: {run: k}\n  ab: {run: k, needs: [a, b]}\n  end: {run: k, needs: [ab, c]}\n")
		for _, together := range []bool{false, true} {
			job := w.submit(drover.NewJob{Pipeline: "p"})
			l := w.acquire(2)
			w.settle(failed(l[0], drover.ClassPermanent, "no"), failed(l[1], drover.ClassPermanent, "no"))
			w.quieten()
			if got, want := w.places(job), []string{"a[0] FAILED 1", "b[0] FAILED 1", "c[0] SKIPPED 1", "ab[0] SKIPPED 1", "end[0] SKIPPED 1"}; !slices.Equal(got, want) {
				t.Fatalf("failed: %v", got)
			}
			if together {
				w.is(w.replayAll(engine.BatchRequest{}), "done: 2 of 2, 0 refused, 0 wait")
			} else {
				w.is(w.replayAll(engine.BatchRequest{Tasks: []drover.TaskID{l[0].TaskID}}), "done: 1 of 1, 0 refused, 0 wait")
				w.is(w.replayAll(engine.BatchRequest{Tasks: []drover.TaskID{l[1].TaskID}}), "done: 1 of 1, 0 refused, 0 wait")
			}
			checkInvariants(t, w)
			w.finish(succeed)
			w.want(job, drover.Succeeded)
			if got, want := w.places(job), []string{"a[0] SUCCEEDED 2", "b[0] SUCCEEDED 2", "c[0] SUCCEEDED 2", "ab[0] SUCCEEDED 2", "end[0] SUCCEEDED 2"}; !slices.Equal(got, want) {
				t.Errorf("together %v: %v", together, got)
			}
		}
		checkInvariants(t, w)
	})
}

func TestInputsAreReplacedOrPatched(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ninput: {type: object}\ntasks:\n  m: {run: k, for_each: \"${{ input.list }}\", with: {i: \"${{ item }}\"}}\n")
		ids := w.broken(2, "k", same("no"))
		w.submit(drover.NewJob{Pipeline: "p", Input: json.RawMessage(`{"list": [1, 2]}`)})
		l := w.acquire(2)
		w.settle(failed(l[0], drover.ClassPermanent, "no"), failed(l[1], drover.ClassPermanent, "no"))
		ids = append(ids, l[0].TaskID, l[1].TaskID)
		w.submit(drover.NewJob{Pipeline: "p", Input: json.RawMessage(`{"list": 3}`)})
		w.quieten()
		o := w.replayAll(engine.BatchRequest{Patch: json.RawMessage(`{"n": null, "i": {"x": 12345678901234567890}}`)})
		w.is(o, "done: 4 of 5, 1 refused, 0 wait")
		if x := o.Items[4]; x.Code != drover.CodeInvalidTransition || !strings.Contains(x.Detail, "map that did not expand") {
			t.Errorf("the map: %+v", x)
		}
		want := []string{`{"keep":1.0,"i":{"x":12345678901234567890}}`, `{"keep":1.0,"i":{"x":12345678901234567890}}`, `{"i":{"x":12345678901234567890}}`, `{"i":{"x":12345678901234567890}}`}
		var got []string
		var out []drover.Outcome
		for _, l := range w.all() {
			got = append(got, string(l.Input))
			out = append(out, failed(l, drover.ClassPermanent, "no"))
		}
		w.settle(out...)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("patched:\n got %q\nwant %q", got, want)
		}
		w.quieten()
		out = nil
		w.is(w.replayAll(engine.BatchRequest{Tasks: ids, Patch: json.RawMessage(`{"again": true}`)}), "done: 4 of 4, 0 refused, 0 wait") // what was patched before is patched again
		for _, l := range w.all() {
			if !strings.Contains(string(l.Input), `"again":true`) || !strings.Contains(string(l.Input), "12345678901234567890") {
				t.Errorf("patched twice: %s", l.Input)
			}
			out = append(out, failed(l, drover.ClassPermanent, "no"))
		}
		w.settle(out...)
		w.quieten()
		w.is(w.replayAll(engine.BatchRequest{Tasks: ids, Input: json.RawMessage(`"new"`)}), "done: 4 of 4, 0 refused, 0 wait")
		for _, l := range w.all() {
			if string(l.Input) != `"new"` {
				t.Errorf("replaced: %s", l.Input)
			}
		}
		for field, r := range map[string]engine.BatchRequest{
			"input": {Tasks: ids, Input: json.RawMessage("1"), Patch: json.RawMessage("{}")}, "patch": {Tasks: ids, Patch: json.RawMessage("{")}, "task_ids": {}, "rate": {Tasks: ids, Rate: -1}, "canary": {Tasks: ids, Canary: -1},
			"filter.state": {Filter: &engine.LetterQuery{State: drover.LetterReplayed}},
		} {
			_, err := w.ReplayLetters(t.Context(), w.c, r)
			var e *drover.Error
			if !errors.As(err, &e) || e.Code != drover.CodeValidation || e.Fields[0].Field != field {
				t.Errorf("a wrong %s: %v", field, err)
			}
		}
		checkInvariants(t, w)
	})
}

// TestDeadLettersOfOlderServersAreFiled: a server of the schema before made and
// replayed dead letters without a word about it.
func TestDeadLettersOfOlderServersAreFiled(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.apply("pipeline: p\ninput: {type: object}\ntasks:\n  a: {run: x, retry: {max_attempts: 1}}\n  m: {run: x, for_each: \"${{ tasks.a.output }}\"}\n")
		ids := w.broken(5, "k", same("no"))
		w.submit(drover.NewJob{Pipeline: "p", Input: json.RawMessage(`{}`)})
		w.settle(ok(w.one(), `7`))
		w.quieten()
		want := w.letters(engine.LetterQuery{State: "all"})
		w.exec("DELETE FROM dead_letters")
		look := func() {
			t.Helper()
			w.pass(11 * time.Minute)
			for range 10 {
				w.step("file", w.FileOnce)
			}
		}
		look()
		got := w.letters(engine.LetterQuery{State: "all"})
		for i := range want {
			if len(got) != len(want) || fmt.Sprintf("%+v", *got[i].Error) != fmt.Sprintf("%+v", *want[i].Error) || got[i].Fingerprint != want[i].Fingerprint || got[i].Name != want[i].Name ||
				got[i].Queue != want[i].Queue || !got[i].FinishedAt.Equal(want[i].FinishedAt) || got[i].Worker != want[i].Worker {
				t.Fatalf("filed:\n got %+v\nwant %+v", got, want)
			}
		}
		w.is(w.replayAll(engine.BatchRequest{Tasks: ids[:2]}), "done: 2 of 2, 0 refused, 0 wait")
		w.settle(failed(w.acquire(1)[0], drover.ClassPermanent, "again"))
		w.exec("UPDATE dead_letters SET state = 1, state_at = 0")
		w.exec("DELETE FROM dead_letters WHERE generation = 2")
		look()
		if n := len(w.letters(engine.LetterQuery{State: drover.LetterReplayed})); n != 2 {
			t.Errorf("%d are replayed, want 2", n)
		}
		if n := len(w.letters(engine.LetterQuery{})); n != len(want)-1 {
			t.Errorf("%d are open, want %d", n, len(want)-1)
		}
		checkInvariants(t, w)
	})
}

// poison-no-keep: one that killed its workers and was closed never comes back.
func TestAClosedPoisonTaskStaysAway(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.submit(drover.NewJob{Kind: "poison"})
		run := func() {
			t.Helper()
			for range 3 * lifecycle.MaxLeaseLosses {
				w.quieten()
				w.acquire(10)
				w.pass(5 * time.Minute)
				w.step("reap", w.ReapOnce)
			}
		}
		run()
		l := w.letters(engine.LetterQuery{})
		if len(l) != 1 || l[0].Losses != lifecycle.MaxLeaseLosses+1 {
			t.Fatalf("dead letters %+v", l)
		}
		if _, err := w.CloseLetters(t.Context(), w.c, engine.BatchRequest{Tasks: []drover.TaskID{l[0].TaskID}, Request: engine.Request{Reason: "it kills workers"}}); err != nil {
			t.Fatal(err)
		}
		entered := w.entered[l[0].TaskID]
		run()
		w.clock.add += 11 * time.Minute
		for range 10 {
			w.step("file", w.FileOnce)
			w.step("batches", w.BatchesOnce)
		}
		if len(w.letters(engine.LetterQuery{})) != 0 || w.entered[l[0].TaskID] != entered {
			t.Errorf("it came back: %+v, entered %d times", w.letters(engine.LetterQuery{}), w.entered[l[0].TaskID])
		}
		checkInvariants(t, w)
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestDeadLettersAreLookedThroughNoMoreThanNeeded: while servers can run that do
// not file theirs, again and again; after that until a look has found nothing.
func TestDeadLettersAreLookedThroughNoMoreThanNeeded(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		c := &counted{Driver: w.db.Driver}
		w.db.Driver = c
		looks := func() int {
			t.Helper()
			w.clock.add += 11 * time.Minute
			c.names = map[string]int{}
			for range 10 {
				w.step("file", w.FileOnce)
			}
			return c.names["ends that may be dead letters"] + c.names["open dead letters of everybody"]
		}
		w.submit(drover.NewJob{Kind: "k"})
		w.settle(failed(w.one(), drover.ClassPermanent, "no"))
		w.exec("DELETE FROM schema_migrations WHERE version > 2") // version 2 runs with servers of version 1
		for range 3 {
			if looks() == 0 {
				t.Error("nobody looks, and a server of version 1 may have made one")
			}
		}
		// The last of such servers has ended one more on its way out.
		w.exec("DELETE FROM dead_letters")
		for v := 3; v <= store.Newest(); v++ {
			w.exec(fmt.Sprintf("INSERT INTO schema_migrations (version, name, applied_at) VALUES (%d, 'later', 1)", v))
		}
		for range 3 {
			looks()
		}
		if n := len(w.letters(engine.LetterQuery{})); n != 1 {
			t.Errorf("%d dead letters, want 1", n)
		}
		if n := looks(); n != 0 {
			t.Errorf("%d looks, and every server files its own", n)
		}
	})
}

// TestPagesOfDeadLettersMissNone: those of one settle ended at the same microsecond,
// which is told to the millisecond; a page that ends among them goes on with the rest.
func TestPagesOfDeadLettersMissNone(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		const n = 11
		for range 3 { // at three moments, not all of a whole millisecond
			w.submitMany(n, drover.NewJob{Kind: "a"})
			var out []drover.Outcome
			for _, l := range w.acquire(n) {
				out = append(out, failed(l, drover.ClassPermanent, "no"))
			}
			w.settle(out...)
			w.clock.add += 7 * time.Microsecond
		}
		seen := map[drover.TaskID]bool{}
		for q := (engine.LetterQuery{Limit: 2}); ; {
			page, err := w.Letters(t.Context(), w.c, q)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range page {
				if seen[l.TaskID] {
					t.Errorf("%s is on two pages", l.TaskID)
				}
				seen[l.TaskID] = true
				q.After = engine.LetterMark{At: l.FinishedAt, Task: l.TaskID, Generation: l.Generation}
			}
			if len(page) < 2 {
				break
			}
		}
		if len(seen) != 3*n {
			t.Errorf("the pages have %d of %d", len(seen), 3*n)
		}
	})
}
