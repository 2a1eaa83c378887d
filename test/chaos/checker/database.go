package main

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	_ "github.com/jackc/pgx/v5/stdlib" // the drivers
	_ "modernc.org/sqlite"
)

// The numbers of statuses in the database.
const (
	succeeded  = 8
	failed     = 9
	cancelled  = 10
	skipped    = 11
	deadLetter = 12
)

// database is what the database says.
type database struct {
	jobs  map[string]*job
	tasks map[string]*task
	keys  map[string][]string // idempotency key → jobs
}

type job struct {
	id       string
	pipeline int64
	tasks    []*task
	live     bool // it has a row of its own among the live ones
	finals   []jobFinal
	events   []event
}

type jobFinal struct{ run, status, total, succeeded, failed, cancelled, skipped int64 }

type event struct {
	seq  int64
	typ  string
	task string
}

type task struct {
	id       string
	job      *job
	node     int64
	index    int64
	live     []string // tables that hold it
	finals   []taskFinal
	attempts []attempt // by lease; first-try successes too
	elements bool      // a map whose elements stand for it
}

type taskFinal struct{ generation, status, attempt, losses, lease, claimed, finished int64 }

type attempt struct {
	lease, generation, n, claimed, ended int64
	outcome                              string
	status                               int64 // of the task after it
	expired                              bool  // ended because its job was to end by then
}

// rises says that the end of the attempt moved the fence once more: it was lost,
// given back, or ended by force.
func (a attempt) rises() bool {
	return a.outcome == "lease_lost" || a.outcome == "forced" || a.status == 2 || a.expired
}

// free says that the attempt was not used up.
func (a attempt) free() bool {
	return a.outcome == "snoozed" && a.status == 6 || a.outcome == "lease_lost" && a.status < succeeded || a.status == 2
}

// id is a uuid of PostgreSQL or the 16 bytes of SQLite, as 32 hexadecimal digits.
type id string

// Scan reads either.
func (p *id) Scan(v any) error {
	switch v := v.(type) {
	case string:
		*p = id(strings.ReplaceAll(v, "-", ""))
	case []byte:
		if len(v) == 16 {
			*p = id(hex.EncodeToString(v))
		} else {
			*p = id(strings.ReplaceAll(string(v), "-", ""))
		}
	default:
		return fmt.Errorf("an id as %T", v)
	}
	if len(*p) != 32 {
		return fmt.Errorf("%q is no id", string(*p))
	}
	return nil
}

// load reads the database. Nothing is written.
func load(ctx context.Context, url, schema string) (*database, error) {
	var db *sql.DB
	var err error
	if path, ok := strings.CutPrefix(url, "sqlite:"); ok {
		db, err = sql.Open("sqlite", "file:"+path+"?_pragma=query_only(ON)&_pragma=busy_timeout(10000)")
	} else {
		sep := "?"
		if strings.Contains(url, "?") {
			sep = "&"
		}
		db, err = sql.Open("pgx", url+sep+"search_path="+schema+"&default_transaction_read_only=on")
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close() }()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }() // it only reads
	d := &database{jobs: map[string]*job{}, tasks: map[string]*task{}, keys: map[string][]string{}}
	return d, d.read(ctx, tx)
}

// each runs a query; scan is called for each row, with dest already filled.
func each(ctx context.Context, tx *sql.Tx, query string, dest []any, row func()) error {
	rows, err := tx.QueryContext(ctx, query)
	if err != nil {
		return fmt.Errorf("%s: %w", query, err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := rows.Scan(dest...); err != nil {
			return fmt.Errorf("%s: %w", query, err)
		}
		row()
	}
	return rows.Err()
}

func (d *database) read(ctx context.Context, tx *sql.Tx) error {
	var problems []string
	miss := func(what string, of id) {
		problems = append(problems, fmt.Sprintf("%s of %s, which does not exist", what, of))
	}
	var of, other id
	var j job
	err := each(ctx, tx, "SELECT id, pipeline FROM jobs", []any{&of, &j.pipeline}, func() { d.jobs[string(of)] = &job{id: string(of), pipeline: j.pipeline} })
	var t task
	err = errors.Join(err, each(ctx, tx, "SELECT id, job_id, node, idx FROM tasks ORDER BY job_id, node, idx", []any{&of, &other, &t.node, &t.index}, func() {
		in := d.jobs[string(other)]
		if in == nil {
			miss("a task", other)
			return
		}
		x := &task{id: string(of), job: in, node: t.node, index: t.index}
		d.tasks[x.id] = x
		in.tasks = append(in.tasks, x)
	}))
	for _, table := range []string{"task_pending", "task_ready", "task_queued", "task_running", "task_delayed"} {
		err = errors.Join(err, each(ctx, tx, "SELECT task_id FROM "+table, []any{&of}, func() {
			if x := d.tasks[string(of)]; x != nil {
				x.live = append(x.live, table)
			} else {
				miss("a row of "+table, of)
			}
		}))
	}
	var f taskFinal
	err = errors.Join(err, each(ctx, tx, "SELECT task_id, generation, status, attempt, losses, lease_version, claimed_at, finished_at FROM task_final ORDER BY task_id, generation",
		[]any{&of, &f.generation, &f.status, &f.attempt, &f.losses, &f.lease, &f.claimed, &f.finished}, func() {
			if x := d.tasks[string(of)]; x != nil {
				x.finals = append(x.finals, f)
			} else {
				miss("an end", of)
			}
		}))
	var a attempt
	var failure []byte
	err = errors.Join(err, each(ctx, tx, "SELECT task_id, lease_version, generation, n, claimed_at, ended_at, outcome, status, error FROM attempts ORDER BY task_id, lease_version",
		[]any{&of, &a.lease, &a.generation, &a.n, &a.claimed, &a.ended, &a.outcome, &a.status, &failure}, func() {
			a.expired = strings.Contains(string(failure), `"class":"expired"`)
			if x := d.tasks[string(of)]; x != nil {
				x.attempts = append(x.attempts, a)
			} else {
				miss("an attempt", of)
			}
		}))
	var e event
	err = errors.Join(err, each(ctx, tx, "SELECT job_id, seq, type, task_id FROM events ORDER BY job_id, seq", []any{&of, &e.seq, &e.typ, &other}, func() {
		if in := d.jobs[string(of)]; in != nil {
			e.task = string(other)
			in.events = append(in.events, e)
		} else {
			miss("an event", of)
		}
	}))
	err = errors.Join(err, each(ctx, tx, "SELECT job_id FROM job_live", []any{&of}, func() {
		if in := d.jobs[string(of)]; in != nil {
			in.live = true
		} else {
			miss("a row of job_live", of)
		}
	}))
	var jf jobFinal
	err = errors.Join(err, each(ctx, tx, "SELECT job_id, run, status, total, succeeded, failed, cancelled, skipped FROM job_final ORDER BY job_id, run",
		[]any{&of, &jf.run, &jf.status, &jf.total, &jf.succeeded, &jf.failed, &jf.cancelled, &jf.skipped}, func() {
			if in := d.jobs[string(of)]; in != nil {
				in.finals = append(in.finals, jf)
			} else {
				miss("an end", of)
			}
		}))
	var key string
	err = errors.Join(err, each(ctx, tx, "SELECT key, job_id FROM idempotency", []any{&key, &of}, func() { d.keys[key] = append(d.keys[key], string(of)) }))
	if err == nil && len(problems) > 0 {
		err = errors.New(strings.Join(problems, "; "))
	}
	d.complete()
	return err
}

// complete adds what has no row of its own: first-try successes among the
// attempts, and which maps their elements stand for.
func (d *database) complete() {
	for _, t := range d.tasks {
		for _, f := range t.finals {
			if f.status != succeeded || t.at(f.lease) != nil {
				continue
			}
			t.attempts = append(t.attempts, attempt{lease: f.lease, generation: f.generation, n: f.attempt, claimed: f.claimed, ended: f.finished, outcome: "succeeded", status: succeeded})
		}
		sortAttempts(t.attempts)
		if t.index == -1 {
			for _, o := range t.job.tasks {
				t.elements = t.elements || o.node == t.node && o.index >= 0
			}
			t.elements = t.elements || len(t.live) == 0 && len(t.finals) == 0 // over nothing
		}
	}
}

// at returns the attempt under a lease.
func (t *task) at(lease int64) *attempt {
	for i := range t.attempts {
		if t.attempts[i].lease == lease {
			return &t.attempts[i]
		}
	}
	return nil
}
