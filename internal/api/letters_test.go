package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

// deadLetters looks at the one dead letter there is, by every route.
func (w *world) deadLetters(job string, task drover.TaskID) {
	w.Helper()
	var list protocol.Page[drover.Letter]
	since := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	w.do("GET", "/v1/dead-letters?status=DEAD_LETTER&pipeline=two-steps&queue=default&error_class=retryable&since="+since+"&job_id="+strings.TrimPrefix(job, "/v1/jobs/"), w.admin, nil).is(200, &list)
	if len(list.Items) != 1 || list.Items[0].TaskID != task || list.Items[0].State != drover.LetterOpen || list.Items[0].Error.Message != "<b>� bad" {
		w.Fatalf("dead letters = %+v", list.Items)
	}
	var groups protocol.Page[drover.LetterGroup]
	w.do("GET", "/v1/dead-letters/groups?fingerprint="+list.Items[0].Fingerprint, w.admin, nil).is(200, &groups)
	if len(groups.Items) != 1 || groups.Items[0].Count != 1 || groups.Items[0].TaskID != task {
		w.Errorf("groups = %+v", groups.Items)
	}
	var one drover.Letter
	w.do("GET", "/v1/dead-letters/"+task.String()+"?generation=1", w.admin, nil).is(200, &one)
	if one.Context == nil || string(one.Context.Input) != `{"n":9007199254740993}` || len(one.Context.Parents) != 1 || one.Context.Parents[0].Name != "first" || len(one.Context.Attempts) != 1 || len(one.Context.Lineage) != 1 {
		w.Errorf("dead letter = %+v, %+v", one, one.Context)
	}
	w.do("GET", "/v1/dead-letters/"+task.String()+"?generation=2", w.admin, nil).refused(404, drover.CodeNotFound)
	var o drover.BatchOperation
	w.do("POST", "/v1/dead-letters/replay", w.admin, protocol.ReplayLettersRequest{Filter: &protocol.LetterFilter{}, DryRun: true, Patch: json.RawMessage(`{"n":1}`)}).is(200, &o)
	if o.State != drover.BatchDryRun || o.Total != 1 || !o.ID.IsZero() {
		w.Errorf("dry run = %+v", o)
	}
	// A slow operation is answered before it is done.
	o = drover.BatchOperation{}
	r := w.do("POST", "/v1/dead-letters/replay", w.admin, protocol.ReplayLettersRequest{TaskIDs: []drover.TaskID{task}, Canary: 1, Rate: 0.5}, "Idempotency-Key: slow").is(202, &o)
	path := "/v1/batch-operations/" + o.ID.String()
	if r.header.Get("Location") != path || r.header.Get("Retry-After") == "" || o.Waiting != 1 || o.RequestID != "slow" {
		w.Errorf("operation = %+v at %q", o, r.header.Get("Location"))
	}
	w.do("GET", path, w.admin, nil).is(200, &o)
	o = drover.BatchOperation{}
	w.do("POST", path+"/cancel", w.admin, protocol.ActionRequest{Reason: "not now"}).is(200, &o)
	if o.State != drover.BatchStopped || o.Why == "" {
		w.Errorf("cancelled = %+v", o)
	}
	w.do("POST", "/v1/dead-letters/replay", w.admin, protocol.ReplayLettersRequest{TaskIDs: []drover.TaskID{task}}, "Idempotency-Key: slow").refused(422, drover.CodeIdempotencyReused)
	// One that is there, and one that is not.
	ghost := drover.TaskID(exampleID(77))
	o = drover.BatchOperation{}
	r = w.do("POST", "/v1/dead-letters/close", w.admin, protocol.CloseLettersRequest{TaskIDs: []drover.TaskID{ghost, task}, Reason: "later"}).is(200, &o)
	if o.Done != 1 || o.Refused != 1 || o.Items[0].Code != drover.CodeNotFound || r.header.Get("Location") == "" {
		w.Errorf("closed = %s", r.body)
	}
	var items protocol.Page[drover.OperationItem]
	w.do("GET", "/v1/batch-operations/"+o.ID.String()+"/items?limit=1", w.admin, nil).is(200, &items)
	if len(items.Items) != 1 || items.NextCursor == "" {
		w.Errorf("items = %+v", items)
	}
	var next, refused protocol.Page[drover.OperationItem]
	w.do("GET", "/v1/batch-operations/"+o.ID.String()+"/items?limit=1&cursor="+items.NextCursor, w.admin, nil).is(200, &next)
	if len(next.Items) != 1 || next.Items[0].TaskID != task || next.NextCursor != "" {
		w.Errorf("second page of items = %+v", next)
	}
	w.do("GET", "/v1/batch-operations/"+o.ID.String()+"/items?state=refused", w.admin, nil).is(200, &refused)
	if len(refused.Items) != 1 || refused.Items[0].TaskID != ghost {
		w.Errorf("refused = %+v", refused)
	}
	var ops protocol.Page[drover.BatchOperation]
	w.do("GET", "/v1/batch-operations?limit=1", w.admin, nil).is(200, &ops)
	if len(ops.Items) != 1 || ops.Items[0].ID != o.ID || ops.NextCursor == "" {
		w.Errorf("operations = %+v", ops)
	}
	w.do("POST", "/v1/tasks/"+task.String()+"/replay", w.admin, protocol.ReplayRequest{}).refused(409, drover.CodeInvalidTransition)
	var dry drover.BatchOperation
	w.do("POST", "/v1/dead-letters/replay", w.admin, protocol.ReplayLettersRequest{Filter: &protocol.LetterFilter{}, Reopen: true, DryRun: true}).is(200, &dry)
	if dry.Waiting != 1 {
		w.Errorf("reopened dry = %+v", dry)
	}
	for _, bad := range []string{`{}`, `{"task_ids":[],"filter":null}`, `{"filter":{},"rate":-1}`, `{"filter":{"state":"lost"}}`, `{"filter":{"kin":"x"}}`, `{"filter":{},"input":1,"patch":{}}`} {
		w.do("POST", "/v1/dead-letters/replay", w.admin, bad).refused(400, drover.CodeValidation)
	}
	w.do("POST", "/v1/dead-letters/close", w.admin, `{"filter":{}}`).refused(400, drover.CodeValidation)
	w.do("GET", "/v1/dead-letters?state=lost", w.admin, nil).refused(400, drover.CodeValidation)
	w.do("GET", "/v1/dead-letters?status=RUNNING", w.admin, nil).refused(400, drover.CodeValidation)
	// The task is left as the story found it, but for the close.
	var closed protocol.Page[drover.Letter]
	w.do("GET", "/v1/dead-letters?state=closed", w.admin, nil).is(200, &closed)
	if len(closed.Items) != 1 || closed.Items[0].Reason != "later" {
		w.Errorf("closed = %+v", closed)
	}
}

// replayedLetter is the dead letter after its replay.
func (w *world) replayedLetter(task drover.TaskID) {
	w.Helper()
	var one drover.Letter
	w.do("GET", "/v1/dead-letters/"+task.String(), w.admin, nil).is(200, &one)
	if one.State != drover.LetterReplayed || one.Generation != 1 || len(one.Context.Lineage) != 2 || one.Context.Lineage[0].Reason != "again" || !one.Context.Lineage[1].NewInput {
		w.Errorf("replayed dead letter = %+v, %+v", one, one.Context)
	}
}

// TestPagesOfDeadLettersGoThroughAllOnce pages through letters and groups.
func TestPagesOfDeadLettersGoThroughAllOnce(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.T
		s := w.worker(w.admin)
		var jobs protocol.BatchRequest
		for range 7 {
			jobs.Jobs = append(jobs.Jobs, drover.NewJob{Kind: "k"})
		}
		w.do("POST", "/v1/jobs/batch", w.admin, jobs).is(200)
		for i, l := range w.acquire(w.admin, s, 7, 1, 5*time.Second) {
			w.settle(w.admin, s, drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeFailed,
				Error: &drover.Failure{Class: drover.ClassPermanent, Message: strings.Repeat("x", i%4+1)}})
		}
		pages := func(path string, key func(json.RawMessage) string) map[string]bool {
			seen := map[string]bool{}
			for n := 0; path != ""; n++ {
				var p protocol.Page[json.RawMessage]
				r := w.do("GET", path, w.admin, nil).is(200, &p)
				for _, it := range p.Items {
					if k := key(it); seen[k] {
						t.Errorf("%s comes twice", k)
					} else {
						seen[k] = true
					}
				}
				if n > 20 {
					t.Fatal("the pages do not end")
				}
				path, _, _ = strings.Cut(strings.TrimPrefix(r.header.Get("Link"), "<"), ">")
			}
			return seen
		}
		member := func(name string) func(json.RawMessage) string {
			return func(b json.RawMessage) string {
				var m map[string]any
				if err := json.Unmarshal(b, &m); err != nil {
					t.Fatal(err)
				}
				return fmt.Sprint(m[name])
			}
		}
		if n := len(pages("/v1/dead-letters?limit=2", member("task_id"))); n != 7 {
			t.Errorf("%d dead letters in pages, want 7", n)
		}
		if n := len(pages("/v1/dead-letters/groups?limit=1", member("fingerprint"))); n != 4 {
			t.Errorf("%d groups in pages, want 4", n)
		}
	})
}
