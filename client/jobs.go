package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/protocol"
)

// Submit hands a job over. When it returns without an error the job is
// committed. A job without an id and an idempotency key gets an id here, so that
// repeating the request over a failing connection makes one job.
func (c *Client) Submit(ctx context.Context, j drover.NewJob) (drover.Submitted, error) {
	named(&j)
	r, err := post[protocol.SubmitResponse](ctx, c, call{path: "/v1/jobs", repeat: true}, j)
	if err != nil {
		return drover.Submitted{}, err
	}
	return drover.Submitted{JobID: r.JobID, Status: r.Status, Replayed: r.Replayed, Deleted: r.Deleted}, nil
}

// SubmitPlan tells what Submit would do, and does nothing: it refuses what that would
// refuse. repeated says that the job is that of an earlier request with the same key or
// id, as it stands now; another is as it would begin.
func (c *Client) SubmitPlan(ctx context.Context, j drover.NewJob) (job drover.Job, repeated bool, err error) {
	body, err := encode(j)
	if err != nil {
		return job, false, err
	}
	h, err := c.do(ctx, call{method: http.MethodPost, path: "/v1/jobs?dry_run=true", repeat: true, body: body, media: protocol.MediaJSON}, &job)
	return job, err == nil && h.header.Get(protocol.HeaderIdempotencyReplayed) == "true", err
}

// SubmitMany hands over up to 10,000 jobs, which start in the order they have here. The
// answer has one item for each job; the Err of an item says why that job was refused, or
// with drover.ErrOverloaded that it could not be stored although others were. The error
// is for all of them: none is stored, unless the answer was lost.
func (c *Client) SubmitMany(ctx context.Context, jobs []drover.NewJob) ([]drover.Submitted, error) {
	if len(jobs) == 0 {
		return nil, nil
	}
	if len(jobs) > protocol.MaxJobs {
		return nil, drover.Errorf(drover.CodeValidation, "%d jobs are more than the %d of one batch; send several", len(jobs), protocol.MaxJobs)
	}
	mine := make([]drover.NewJob, len(jobs))
	for i, j := range jobs {
		named(&j)
		mine[i] = j
	}
	r, err := post[protocol.BatchResponse](ctx, c, call{path: "/v1/jobs/batch", repeat: true, wait: 30 * time.Second}, protocol.BatchRequest{Jobs: mine})
	if err != nil {
		return nil, err
	}
	if len(r.Items) != len(jobs) {
		return nil, fmt.Errorf("submit %d jobs: the server answered for %d", len(jobs), len(r.Items))
	}
	out := make([]drover.Submitted, len(jobs))
	for i, it := range r.Items {
		out[i] = drover.Submitted{JobID: it.JobID, Status: it.Status, Replayed: it.Replayed, Deleted: it.Deleted, Err: it.Error.ToError()}
	}
	return out, nil
}

func named(j *drover.NewJob) {
	if j.ID.IsZero() && j.IdempotencyKey == "" {
		j.ID = drover.JobID(newID())
	}
}

// Job returns a job.
func (c *Client) Job(ctx context.Context, id drover.JobID) (drover.Job, error) {
	return get[drover.Job](ctx, c, jobPath(id), nil)
}

// DeleteJob deletes a finished job with all it had.
func (c *Client) DeleteJob(ctx context.Context, id drover.JobID) error {
	_, err := c.do(ctx, call{method: http.MethodDelete, path: jobPath(id), repeat: true}, nil)
	return err
}

func jobPath(id drover.JobID) string   { return "/v1/jobs/" + id.String() }
func taskPath(id drover.TaskID) string { return "/v1/tasks/" + id.String() }

// List bounds and continues a list.
type List struct {
	// Limit is how many items a page has at most; zero is the server's default.
	Limit int
	// Cursor is the NextCursor of the page before.
	Cursor string
}

func (l List) query() url.Values {
	q := url.Values{}
	if l.Limit > 0 {
		q.Set("limit", strconv.Itoa(l.Limit))
	}
	set(q, "cursor", l.Cursor)
	return q
}

func set(q url.Values, name, value string) {
	if value != "" {
		q.Set(name, value)
	}
}

func setStatus(q url.Values, of []drover.Status) {
	names := make([]string, len(of))
	for i, s := range of {
		names[i] = s.String()
	}
	set(q, "status", strings.Join(names, ","))
}

// JobsFilter chooses jobs; the zero value is all of them.
type JobsFilter struct {
	Status        []drover.Status
	Pipeline      string
	Kind          string
	Labels        map[string]string
	CreatedAfter  time.Time
	CreatedBefore time.Time
	// Degraded, when set, chooses the jobs that are degraded, or those that are not.
	Degraded *bool
	// Top, when set, chooses the jobs that no task of another job runs, or those that one
	// does.
	Top *bool
	List
}

// Jobs returns a page of jobs, newest first.
func (c *Client) Jobs(ctx context.Context, f JobsFilter) (protocol.Page[drover.Job], error) {
	q := f.query()
	setStatus(q, f.Status)
	set(q, "pipeline", f.Pipeline)
	set(q, "kind", f.Kind)
	for k, v := range f.Labels {
		q.Add("label", k+":"+v)
	}
	if !f.CreatedAfter.IsZero() {
		q.Set("created_after", f.CreatedAfter.UTC().Format(time.RFC3339Nano))
	}
	if !f.CreatedBefore.IsZero() {
		q.Set("created_before", f.CreatedBefore.UTC().Format(time.RFC3339Nano))
	}
	if f.Degraded != nil {
		q.Set("degraded", strconv.FormatBool(*f.Degraded))
	}
	if f.Top != nil {
		q.Set("top", strconv.FormatBool(*f.Top))
	}
	return get[protocol.Page[drover.Job]](ctx, c, "/v1/jobs", q)
}

// Action is why something is done to a job, and the request's own name. Without
// a RequestID the client makes one, so that repeats are harmless.
type Action = protocol.ActionRequest

// Cancel asks for a job to end as CANCELLED.
func (c *Client) Cancel(ctx context.Context, id drover.JobID, a Action) (drover.Job, error) {
	return c.act(ctx, id, "cancel", a)
}

// Pause keeps a job from starting tasks. Running ones go on.
func (c *Client) Pause(ctx context.Context, id drover.JobID, a Action) (drover.Job, error) {
	return c.act(ctx, id, "pause", a)
}

// Resume undoes Pause.
func (c *Client) Resume(ctx context.Context, id drover.JobID, a Action) (drover.Job, error) {
	return c.act(ctx, id, "resume", a)
}

func (c *Client) act(ctx context.Context, id drover.JobID, verb string, a Action) (drover.Job, error) {
	if a.RequestID == "" {
		a.RequestID = newID().String()
	}
	return post[drover.Job](ctx, c, call{path: jobPath(id) + "/" + verb, repeat: true}, a)
}

// WaitJob returns the job once it is final. It waits through lost connections
// and restarts of the server, for as long as ctx allows.
func (c *Client) WaitJob(ctx context.Context, id drover.JobID) (drover.Job, error) {
	const wait = 20 * time.Second
	k := call{method: http.MethodGet, path: jobPath(id), repeat: true, wait: wait, header: http.Header{protocol.HeaderPrefer: {fmt.Sprintf("wait=%d", int(wait.Seconds()))}}}
	for failed := 0; ; {
		var j drover.Job
		began := time.Now()
		a, err := c.do(ctx, k, &j)
		switch {
		case err == nil && j.Status.Final():
			return j, nil
		case err == nil:
			failed = 0
			if a.header.Get(protocol.HeaderPreferenceApplied) == "" || time.Since(began) < time.Second {
				err = sleep(ctx, 250*time.Millisecond+c.backoff.delay(1)) // a server that does not wait
			}
		case ctx.Err() == nil && transient(err):
			err = sleep(ctx, c.backoff.delay(failed))
			failed++
		}
		if err != nil {
			return j, fmt.Errorf("wait for %s: %w", id, err)
		}
	}
}

// transient reports whether the same question may get an answer later.
func transient(err error) bool {
	if errors.As(err, new(*answerError)) {
		return false
	}
	switch drover.CodeOf(err) {
	case "", drover.CodeOverloaded, drover.CodeInternal:
		return true
	}
	return false
}

// TasksFilter chooses tasks of a job; the zero value is all of them.
type TasksFilter struct {
	Status []drover.Status
	Name   string
	List
}

// Tasks returns a page of a job's tasks, in the order of the pipeline and, of a
// map, of its elements.
func (c *Client) Tasks(ctx context.Context, id drover.JobID, f TasksFilter) (protocol.Page[drover.Task], error) {
	q := f.query()
	setStatus(q, f.Status)
	set(q, "name", f.Name)
	return get[protocol.Page[drover.Task]](ctx, c, jobPath(id)+"/tasks", q)
}

// Task returns a task.
func (c *Client) Task(ctx context.Context, id drover.TaskID) (drover.Task, error) {
	return get[drover.Task](ctx, c, taskPath(id), nil)
}

// Explain says of a task why it does not run, or who runs it, or how its time was spent.
func (c *Client) Explain(ctx context.Context, id drover.TaskID) (drover.Explanation, error) {
	return get[drover.Explanation](ctx, c, taskPath(id)+"/explain", nil)
}

// ExplainJob says of a job what it waits for.
func (c *Client) ExplainJob(ctx context.Context, id drover.JobID) (drover.JobExplanation, error) {
	return get[drover.JobExplanation](ctx, c, jobPath(id)+"/explain", nil)
}

// Attempts returns every attempt of a task, of all generations.
func (c *Client) Attempts(ctx context.Context, id drover.TaskID) ([]drover.Attempt, error) {
	return all[drover.Attempt](ctx, c, taskPath(id)+"/attempts", url.Values{})
}

// Replay is how a finished task is run again: with which input, and why.
type Replay = protocol.ReplayRequest

// Replay opens a new generation of a finished task.
func (c *Client) Replay(ctx context.Context, id drover.TaskID, r Replay) (drover.Task, error) {
	if r.RequestID == "" {
		r.RequestID = newID().String()
	}
	return post[drover.Task](ctx, c, call{path: taskPath(id) + "/replay", repeat: true}, r)
}

// Rerun says what of a job runs again, and why.
type Rerun = protocol.RerunRequest

// Rerun runs a branch of a job again, or all of it, as new generations of its tasks.
func (c *Client) Rerun(ctx context.Context, id drover.JobID, r Rerun) (drover.Rerun, error) {
	if r.RequestID == "" {
		r.RequestID = newID().String()
	}
	return post[drover.Rerun](ctx, c, call{path: jobPath(id) + "/rerun", repeat: true}, r)
}

// RerunPlan tells what Rerun would do, and does nothing.
func (c *Client) RerunPlan(ctx context.Context, id drover.JobID, r Rerun) (drover.Rerun, error) {
	return post[drover.Rerun](ctx, c, call{path: jobPath(id) + "/rerun?dry_run=true", repeat: true}, r)
}

// Mark is how somebody says that a task has ended, and why.
type Mark = protocol.MarkRequest

// Mark ends a task as somebody says it has ended: a live one as it stands, a finished one
// as a new generation.
func (c *Client) Mark(ctx context.Context, id drover.TaskID, m Mark) (drover.Task, error) {
	if m.RequestID == "" {
		m.RequestID = newID().String()
	}
	return post[drover.Task](ctx, c, call{path: taskPath(id) + "/mark", repeat: true}, m)
}

// Events returns events of a job numbered above after, at most limit (zero: the
// server's default). Watch follows them.
func (c *Client) Events(ctx context.Context, id drover.JobID, after int64, limit int) (protocol.Page[drover.Event], error) {
	q := List{Limit: limit}.query()
	if after > 0 {
		q.Set("after", strconv.FormatInt(after, 10))
	}
	return get[protocol.Page[drover.Event]](ctx, c, jobPath(id)+"/events", q)
}

// LogsFilter says whose lines: of a job, or of a task and there of one attempt.
type LogsFilter struct {
	Job     drover.JobID
	Task    drover.TaskID
	Attempt int // zero is every attempt
	List
}

// Logs returns a page of what handlers logged, oldest first.
func (c *Client) Logs(ctx context.Context, f LogsFilter) (protocol.Page[drover.LogLine], error) {
	q := f.query()
	if f.Attempt > 0 {
		q.Set("attempt", strconv.Itoa(f.Attempt))
	}
	path := taskPath(f.Task) + "/logs"
	if f.Task.IsZero() {
		path = jobPath(f.Job) + "/logs"
	}
	return get[protocol.Page[drover.LogLine]](ctx, c, path, q)
}

// all follows the pages of a list to its end.
func all[T any](ctx context.Context, c *Client, path string, q url.Values) ([]T, error) {
	items := []T{}
	for {
		p, err := get[protocol.Page[T]](ctx, c, path, q)
		if err != nil {
			return nil, err
		}
		items = append(items, p.Items...)
		if p.NextCursor == "" || p.NextCursor == q.Get("cursor") {
			return items, nil
		}
		q.Set("cursor", p.NextCursor)
	}
}

// compact returns v as JSON on one line in ASCII, as a header can carry it.
func compact(v json.RawMessage) (string, error) {
	if !json.Valid(v) {
		return "", drover.Errorf(drover.CodeValidation, "the metadata is not JSON")
	}
	var b strings.Builder
	for _, r := range string(v) {
		switch {
		case r == '\n' || r == '\r' || r == '\t': // only between tokens; inside strings JSON escapes them
			b.WriteByte(' ')
		case r < 0x7f:
			b.WriteRune(r)
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String(), nil
}
