package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
)

const (
	// maxResult bounds the result of a job as it is shown; a longer one is left
	// to be read from the tasks.
	maxResult = 4 << 20
	// showAtOnce jobs have their states read in one go. A search looks at
	// scanAtOnce jobs in one step, pageScan in one page, and listScan in one list
	// that is not asked for page by page.
	showAtOnce = 50
	scanAtOnce = 500
	pageScan   = 10_000
	listScan   = 20 * pageScan
	// idSlack is how far the time in a job's id may be off: a client makes it by
	// its own clock.
	idSlack = 24 * time.Hour
	// etaFrom is the least progress there is something to judge by.
	etaFrom = 0.05
)

// Ping reports whether the database answers.
func (e *Engine) Ping(ctx context.Context) error {
	if err := e.db.Read(ctx, func(tx store.Tx) error { return tx.Pipe(ctx, store.Ping()) }); err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	return nil
}

// Job returns a job with its input and, once it has succeeded, its result.
func (e *Engine) Job(ctx context.Context, c Caller, id drover.JobID) (drover.Job, error) {
	var out drover.Job
	err := e.db.Read(ctx, func(tx store.Tx) error {
		var rows []store.JobRow
		if err := tx.Pipe(ctx, store.ReadJobs([]drover.JobID{id}, &rows)); err != nil {
			return err
		}
		if len(rows) == 0 || rows[0].Tenant != c.Tenant {
			return notFound("job", id)
		}
		jobs, err := e.showJobs(ctx, tx, c, rows)
		if err != nil {
			return err
		}
		out = jobs[0]
		return e.fillJob(ctx, tx, rows[0], &out)
	})
	if err != nil {
		return drover.Job{}, fmt.Errorf("read job: %w", err)
	}
	return out, nil
}

// Ended reports whether the last run of a job has ended. Nobody is asked if he may
// know: the caller has seen the job.
func (e *Engine) Ended(ctx context.Context, id drover.JobID) (ended bool, err error) {
	err = e.db.Read(ctx, func(tx store.Tx) error { return tx.Pipe(ctx, store.JobEnded(id, &ended)) })
	if err != nil {
		return false, fmt.Errorf("read job: %w", err)
	}
	return ended, nil
}

// Jobs returns jobs, newest first, without inputs and results. It gives up after
// listScan jobs of which too few match; JobPage goes on from there.
func (e *Engine) Jobs(ctx context.Context, c Caller, q JobQuery) ([]drover.Job, error) {
	out := []drover.Job{}
	want := pageSize(q.Limit)
	for range listScan / pageScan {
		q.Limit = want - len(out)
		page, next, err := e.JobPage(ctx, c, q)
		if err != nil {
			return nil, err
		}
		out = append(out, page...)
		if next.IsZero() || len(out) >= want {
			break
		}
		q.After = next
	}
	return out, nil
}

// JobPage is Jobs with a bound on its work: it returns where the next page
// starts, zero at the end. A page may hold fewer jobs than asked for, even none,
// and not be the last.
func (e *Engine) JobPage(ctx context.Context, c Caller, q JobQuery) (items []drover.Job, next drover.JobID, err error) {
	return e.jobPage(ctx, c, q, pageScan)
}

// jobPage looks at bound jobs, or a few more.
func (e *Engine) jobPage(ctx context.Context, c Caller, q JobQuery, bound int) (items []drover.Job, next drover.JobID, err error) {
	err = e.db.Read(ctx, func(tx store.Tx) error {
		items, next = []drover.Job{}, drover.JobID{}
		s, ok, err := newSearch(ctx, tx, c, q)
		if err != nil || !ok {
			return err
		}
		want := pageSize(q.Limit)
		for seen := 0; seen < bound; {
			rows, n, err := s.step(ctx, tx)
			if err != nil {
				return err
			}
			seen += n
			for part := range slices.Chunk(rows, max(want-len(items), showAtOnce)) {
				jobs, err := e.showJobs(ctx, tx, c, part)
				if err != nil {
					return err
				}
				if err := e.showDegraded(ctx, tx, part, jobs, true); err != nil {
					return err
				}
				for _, j := range jobs {
					if len(q.Status) > 0 && !slices.Contains(q.Status, j.Status) || q.Degraded != nil && *q.Degraded != j.Degraded {
						continue
					}
					items = append(items, j)
					if len(items) == want {
						next = j.ID
						return nil
					}
				}
			}
			if s.done {
				return nil
			}
		}
		next = drover.JobID(s.span.Below)
		return nil
	})
	if err != nil {
		return nil, drover.JobID{}, fmt.Errorf("list jobs: %w", err)
	}
	return items, next, nil
}

// search goes down the ids of jobs that may match a query.
type search struct {
	q         JobQuery
	tenant    int32
	pipelines []int32 // numbers of the versions of q.Pipeline
	span      store.Span
	done      bool
}

func newSearch(ctx context.Context, tx store.Tx, c Caller, q JobQuery) (s *search, ok bool, err error) {
	s = &search{q: q, tenant: c.Tenant, span: store.Span{Below: store.LastID, N: scanAtOnce}}
	if q.Pipeline != "" {
		if !clean(q.Pipeline) {
			return s, false, nil
		}
		if err := tx.Pipe(ctx, store.PipelineIDs(c.Tenant, q.Pipeline, &s.pipelines)); err != nil || len(s.pipelines) == 0 {
			return s, false, err
		}
	}
	if !q.CreatedBefore.IsZero() {
		s.span.Below = firstID(q.CreatedBefore.Add(idSlack))
	}
	if !q.CreatedAfter.IsZero() {
		s.span.From = firstID(q.CreatedAfter.Add(-idSlack))
	}
	if !q.After.IsZero() && bytes.Compare(q.After[:], s.span.Below[:]) < 0 {
		s.span.Below = drover.ID(q.After)
	}
	if q.Pipeline == "" && q.Kind == "" && len(q.Labels) == 0 && q.Degraded == nil && q.Top == nil {
		s.span.N = max(pageSize(q.Limit), showAtOnce) // most of them match
	}
	return s, bytes.Compare(s.span.From[:], s.span.Below[:]) < 0, nil
}

// firstID comes before every id made at t or later.
func firstID(t time.Time) drover.ID {
	return drover.MakeID(min(max(t.UnixMilli(), 0), 1<<48-1), [10]byte{})
}

// step returns the next jobs that match all of the query but the status, and
// how many it looked at.
func (s *search) step(ctx context.Context, tx store.Tx) (rows []store.JobRow, seen int, err error) {
	degraded := s.q.Degraded != nil && *s.q.Degraded
	if len(s.q.Status) == 0 && !degraded {
		if err := tx.Pipe(ctx, store.TenantJobs(s.tenant, s.span, &rows)); err != nil {
			return nil, 0, err
		}
		seen = len(rows)
		if s.done = seen < s.span.N; !s.done {
			s.span.Below = drover.ID(rows[seen-1].ID)
		}
		return slices.DeleteFunc(rows, func(r store.JobRow) bool { return !s.matches(&r) }), seen, nil
	}
	lists, stmts := store.JobsWith(s.tenant, s.q.Status, s.span)
	if degraded { // there are few
		lists, stmts = store.DegradedJobs(s.tenant, s.span)
	}
	if err := tx.Pipe(ctx, stmts...); err != nil {
		return nil, 0, err
	}
	// A list that is full says nothing of the ids below its last one.
	var floor drover.JobID
	var ids []drover.JobID
	s.done = true
	for _, l := range lists {
		ids = append(ids, l.IDs...)
		seen += l.Seen
		if l.Full {
			s.done = false
			if bytes.Compare(l.Last[:], floor[:]) > 0 {
				floor = l.Last
			}
		}
	}
	slices.SortFunc(ids, func(a, b drover.JobID) int { return compareIDs(b, a) })
	ids = slices.Compact(ids)
	ids = slices.DeleteFunc(ids, func(id drover.JobID) bool { return bytes.Compare(id[:], floor[:]) < 0 })
	if !s.done {
		s.span.Below = drover.ID(floor)
	}
	if err := tx.Pipe(ctx, store.ReadJobs(ids, &rows)); err != nil {
		return nil, 0, err
	}
	rows = slices.DeleteFunc(rows, func(r store.JobRow) bool { return r.Tenant != s.tenant || !s.matches(&r) })
	slices.SortFunc(rows, func(a, b store.JobRow) int { return compareIDs(b.ID, a.ID) })
	return rows, seen, nil
}

// matches tests what the row alone tells.
func (s *search) matches(r *store.JobRow) bool {
	at := r.CreatedAt.Time() // as it is told: created_after that time leaves out the job that has it
	switch q := &s.q; {
	case q.Kind != "" && r.Kind != q.Kind,
		q.Top != nil && *q.Top != r.Parent.IsZero(),
		q.Pipeline != "" && !slices.Contains(s.pipelines, r.Pipeline),
		!q.CreatedAfter.IsZero() && !at.After(q.CreatedAfter),
		!q.CreatedBefore.IsZero() && !at.Before(q.CreatedBefore):
		return false
	}
	if len(s.q.Labels) == 0 {
		return true
	}
	labels := labelsOf(r.Labels)
	for k, v := range s.q.Labels {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

func labelsOf(b []byte) map[string]string {
	if len(b) == 0 {
		return nil
	}
	var m map[string]string
	_ = json.Unmarshal(b, &m) // written by Submit
	return m
}

// jobState is what tells how a job stands.
type jobState struct {
	live   *store.JobLive  // of a job with a row of its own
	final  *store.JobFinal // of its last finished run
	counts drover.Counts   // of live tasks
	n      int64           // live tasks
	// What the rows tell, read only where the rest does not say.
	lease  int32 // above 0: one of them was claimed once
	events int32 // of a job its task's row stands for
}

// claimed reports whether a task of the job was claimed once.
func (s *jobState) claimed() bool {
	return s.lease > 0 || s.final != nil || s.counts.Running > 0 || s.counts.RetryWait > 0 || (s.live != nil && s.live.Open < s.live.Total)
}

// status is the last finished run's, unless the job is live again.
func (s *jobState) status() drover.Status {
	switch {
	case s.live == nil && s.n == 0 && s.final != nil:
		return s.final.Status
	case s.claimed():
		return drover.Running
	}
	return drover.Pending
}

// showJobs makes the views of rows, in their order, in a constant number of statements.
func (e *Engine) showJobs(ctx context.Context, tx store.Tx, c Caller, rows []store.JobRow) ([]drover.Job, error) {
	if len(rows) == 0 {
		return nil, nil
	}
	ids := make([]drover.JobID, len(rows))
	states := make(map[drover.JobID]*jobState, len(rows))
	for i, r := range rows {
		ids[i] = r.ID
		states[r.ID] = &jobState{}
	}
	var live []store.JobLive
	var final []store.JobFinal
	var counts []store.LiveCount
	if err := tx.Pipe(ctx, store.JobStates(ids, &live, &final, &counts)...); err != nil {
		return nil, err
	}
	for i := range live {
		states[live[i].Job].live = &live[i]
	}
	for i := range final {
		states[final[i].Job].final = &final[i]
	}
	for _, n := range counts {
		states[n.Job].add(n)
	}
	var unmarked []drover.JobID
	for _, id := range ids {
		if s := states[id]; s.n > 0 && (s.live == nil || !s.claimed()) {
			unmarked = append(unmarked, id)
		}
	}
	var marks []store.LiveMark
	if err := tx.Pipe(ctx, store.LiveMarks(unmarked, &marks)); err != nil {
		return nil, err
	}
	for _, m := range marks {
		s := states[m.Job]
		s.lease, s.events = max(s.lease, m.Lease), max(s.events, m.Events)
	}
	out := make([]drover.Job, len(rows))
	var failed, solo []drover.JobID
	for i, r := range rows {
		if err := e.showJob(ctx, tx, c, r, states[r.ID], &out[i]); err != nil {
			return nil, err
		}
		if out[i].Tasks.Failed > 0 {
			failed = append(failed, r.ID)
		}
		if r.Pipeline == 0 && out[i].Tasks.Running > 0 {
			solo = append(solo, r.ID)
		}
	}
	var failures []store.FirstFailure
	progress := map[drover.JobID]drover.Progress{}
	if err := tx.Pipe(ctx, store.FirstFailures(failed, &failures), store.SoloProgress(solo, progress)); err != nil {
		return nil, err
	}
	why := map[drover.JobID]*drover.Failure{}
	for _, f := range failures {
		d := decodeFailure(f.Error)
		if d == nil {
			continue
		}
		d.Task = f.Kind
		if f.Pipeline != 0 {
			p, err := e.plan(ctx, tx, f.Pipeline)
			if err != nil {
				return nil, err
			}
			d.Task = p.Nodes[f.Node].Name
		}
		why[f.Job] = d
	}
	if err := showParents(ctx, tx, rows, out); err != nil {
		return nil, err
	}
	for i := range out {
		out[i].Error = why[out[i].ID]
		if p, ok := progress[out[i].ID]; ok {
			out[i].Progress = &p
		}
	}
	return out, nil
}

func (s *jobState) add(n store.LiveCount) {
	k := int(n.N)
	switch n.Status {
	case drover.Pending:
		s.counts.Pending += k
	case drover.Ready:
		s.counts.Ready += k
	case drover.Queued, drover.DispatchPending:
		s.counts.Queued += k
	case drover.Running:
		s.counts.Running += k
	case drover.RetryWait:
		s.counts.RetryWait += k
	case drover.Waiting:
		s.counts.Waiting += k
	default: // no live table holds it
	}
	s.n += n.N
}

func (e *Engine) showJob(ctx context.Context, tx store.Tx, c Caller, r store.JobRow, s *jobState, j *drover.Job) error {
	*j = drover.Job{ID: r.ID, Tenant: c.TenantName, Status: s.status(), Kind: r.Kind, Creator: r.Creator, Labels: labelsOf(r.Labels), Class: r.Class,
		Run: 1, Tasks: s.counts, TraceID: traceID(r.ID, r.Trace), CreatedAt: r.CreatedAt.Time(), DueAt: r.DueAt.Time(), ExpiresAt: r.ExpiresAt.Time()}
	if r.Pipeline != 0 {
		p, err := e.plan(ctx, tx, r.Pipeline)
		if err != nil {
			return err
		}
		j.Pipeline, j.PipelineVersion = p.Name, int(p.Version)
	}
	n := &j.Tasks
	switch {
	case s.live != nil:
		l := s.live
		j.Run, j.Events, j.Paused, j.Cancelling = int(l.Run), l.Events, l.Paused, l.Cancelling != 0
		n.Total, n.Succeeded, n.Failed, n.Cancelled, n.Skipped = int(l.Total), int(l.Succeeded), int(l.Failed), int(l.Cancelled), int(l.Skipped)
		j.Degraded = l.Handled > 0
	case j.Status.Final():
		f := s.final
		j.Run, j.Events, j.FinishedAt = int(f.Run), f.Events, f.FinishedAt.Time()
		n.Total, n.Succeeded, n.Failed, n.Cancelled, n.Skipped = int(f.Total), int(f.Succeeded), int(f.Failed), int(f.Cancelled), int(f.Skipped)
		j.Degraded = f.Handled > 0
	default:
		j.Events, n.Total = int64(s.events), 1
	}
	if n.Total > 0 {
		ended := n.Succeeded + n.Failed + n.Cancelled + n.Skipped
		j.Progress = &drover.Progress{Ratio: min(float64(ended)/float64(n.Total), 1)}
	}
	return nil
}

// fillJob adds what is shown of a single job only.
func (e *Engine) fillJob(ctx context.Context, tx store.Tx, r store.JobRow, j *drover.Job) error {
	var solo []byte
	of := map[drover.JobID][]byte{}
	read := store.JobInputs([]drover.JobID{r.ID}, of)
	if r.Pipeline == 0 {
		read = store.SoloInput(r.ID, &solo)
	}
	if err := tx.Pipe(ctx, read); err != nil {
		return err
	}
	j.Input = append(solo, of[r.ID]...)
	if r.Pipeline != 0 {
		one := []drover.Job{*j}
		if err := e.showDegraded(ctx, tx, []store.JobRow{r}, one, false); err != nil {
			return err
		}
		j.DegradedBy = one[0].DegradedBy
		if err := e.fillCompensation(ctx, tx, r, j); err != nil {
			return err
		}
		if err := e.fillChildren(ctx, tx, r, j); err != nil {
			return err
		}
	}
	switch {
	case j.Status == drover.Succeeded:
		_, err := e.fillResult(ctx, tx, r, j)
		return err
	case j.Status == drover.Running && r.Pipeline != 0:
		return e.fillProgress(ctx, tx, r, j)
	}
	return nil
}

// fillResult sets the result: the output of the one task nobody waits for, a
// list where that is mapped; of several such tasks an object of theirs by name. One
// that is too long is left out: whole says that it was not.
func (e *Engine) fillResult(ctx context.Context, tx store.Tx, r store.JobRow, j *drover.Job) (whole bool, err error) {
	nodes, plan := []int32{0}, (*compiled)(nil)
	if r.Pipeline != 0 {
		if plan, err = e.plan(ctx, tx, r.Pipeline); err != nil {
			return false, err
		}
		nodes = plan.Sinks()
	}
	var sizes []int64
	if err := tx.Pipe(ctx, store.ResultSizes(r.ID, nodes, &sizes)); err != nil {
		return false, err
	}
	var size int64
	for _, n := range sizes {
		size += n
	}
	if size > maxResult {
		return false, nil
	}
	var list []store.Result
	if err := tx.Pipe(ctx, store.Results(r.ID, nodes, &list)); err != nil {
		return false, err
	}
	byNode := map[int32][]json.RawMessage{}
	for _, x := range list {
		out := json.RawMessage(x.Output)
		if len(out) == 0 {
			out = json.RawMessage("null")
		}
		byNode[x.Node] = append(byNode[x.Node], out)
	}
	one := func(node int32) json.RawMessage {
		outs := byNode[node]
		switch {
		case plan != nil && plan.Nodes[node].Mapped:
			return joinList(outs)
		case len(outs) == 0:
			return json.RawMessage("null")
		}
		return outs[0]
	}
	if len(nodes) == 1 {
		if mapped := plan != nil && plan.Nodes[nodes[0]].Mapped; mapped || (len(list) > 0 && len(list[0].Output) > 0) {
			j.Result = one(nodes[0])
		}
		return true, nil
	}
	var b bytes.Buffer
	b.WriteByte('{')
	for i, node := range nodes {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(plan.Nodes[node].Name)
		if err != nil {
			return false, err
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(one(node))
	}
	b.WriteByte('}')
	j.Result = b.Bytes()
	return true, nil
}

func joinList(items []json.RawMessage) json.RawMessage {
	b := []byte{'['}
	for i, x := range items {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, x...)
	}
	return append(b, ']')
}

// fillProgress says which step a running pipeline is at and how long it may take.
func (e *Engine) fillProgress(ctx context.Context, tx store.Tx, r store.JobRow, j *drover.Job) error {
	plan, err := e.plan(ctx, tx, r.Pipeline)
	if err != nil || j.Progress == nil {
		return err
	}
	var roots []int32
	for i := range plan.Nodes {
		if len(plan.Nodes[i].Parents) == 0 && len(roots) < 10 {
			roots = append(roots, int32(i))
		}
	}
	nodes := map[int32]*store.NodeCount{}
	var claims []int64
	if err := tx.Pipe(ctx, append(store.NodeCounts(r.ID, nodes), store.FirstClaims(r.ID, roots, &claims))...); err != nil {
		return err
	}
	j.Progress.Message = progressMessage(plan, nodes)
	if ratio := j.Progress.Ratio; ratio > etaFrom && len(claims) > 0 && j.Run == 1 && !j.Paused && !j.Cancelling {
		began := lifecycle.Instant(slices.Min(claims))
		rest := time.Duration(float64(max(e.now().Sub(began), 0)) * (1 - ratio) / ratio)
		j.Progress.ETA = drover.Duration(rest.Round(100 * time.Millisecond))
	}
	return nil
}

// progressMessage reads like "extract: 8 of 20": the first step in progress.
func progressMessage(plan *compiled, nodes map[int32]*store.NodeCount) string {
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		n := nodes[node]
		ended := n.Total - n.Live
		switch {
		case n.Live == 0 || (n.Running == 0 && ended == 0):
		case plan.Nodes[node].Mapped:
			return fmt.Sprintf("%s: %d of %d", plan.Nodes[node].Name, ended, n.Total)
		case n.Running > 0:
			return plan.Nodes[node].Name
		}
	}
	return ""
}
