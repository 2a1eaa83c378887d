package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/reconcile"
	"github.com/drover-dev/drover/internal/store"
)

// healthTime bounds what asks whether a server is well.
const healthTime = 5 * time.Second

// finding is one thing that doctor looked at.
type finding struct {
	Check string `json:"check"`
	// State is ok, warn or fail.
	State  string `json:"state"`
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"`
}

var findingColumns = columns[finding]{
	name: func(f finding) string { return f.Check },
	list: []column[finding]{
		{head: "STATE", text: func(_ *printer, f finding) string { return f.State }, paint: func(f finding) string {
			return map[string]string{"ok": green, "warn": yellow, "fail": red}[f.State]
		}},
		{head: "CHECK", text: func(_ *printer, f finding) string { return f.Check }},
		{head: "FOUND", text: func(_ *printer, f finding) string {
			if f.Remedy == "" {
				return f.Found
			}
			return f.Found + "; " + f.Remedy
		}},
	},
}

func (a *app) doctorCommand() *cobra.Command {
	var where database
	var mend bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what is wrong, and say what to do",
		Long: `Look at the server, the token, the clocks, the queues, the dead letters, the disk of the state folder and, with
--database-url, the schema and whether the rows of every job agree with its records. Each is a line: ok, warn or fail,
with what to do. Returns 1 when one fails.

With --mend (also --rebuild-queue) rows that do not agree are put right: the rows of tasks that wait or run are made
anew from the tasks, attempts and events on record. Servers do the same by themselves, job by job. Nothing that has
succeeded runs again; an attempt whose row was lost is not accepted any more and is made again. Permits of limits that
no task holds are given back.`,
		Example: `  drover doctor
  drover doctor --url https://drover.example.com -o json
  drover doctor --database-url postgres://drover@db/drover
  drover doctor --database-url sqlite:/var/lib/drover/drover.db --mend`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.curl {
				return usagef("--curl: doctor looks in many places; there is no one request that does the same")
			}
			if mend && where.url == "" {
				return usagef("--mend works at the database: name it with --database-url")
			}
			found := a.examine(cmd.Context(), where, mend)
			p := a.printer()
			if p.format == "table" {
				p.format = "wide" // nothing is cut
			}
			if err := printList(p, findingColumns, found); err != nil {
				return err
			}
			for _, f := range found {
				if f.State == "fail" {
					return &exit{code: exitError}
				}
			}
			return nil
		},
	}
	a.clientFlags(cmd)
	where.flags(a, cmd)
	f := cmd.Flags()
	f.BoolVar(&mend, "mend", false, "put right the rows that do not agree with the records")
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "rebuild-queue" {
			name = "mend"
		}
		return pflag.NormalizedName(name)
	})
	return cmd
}

// clockReader notes the Date header of an answer, and how far off it is.
type clockReader struct {
	http.RoundTripper
	offset atomic.Int64 // nanoseconds; the server's clock less ours
	seen   atomic.Bool
}

// RoundTrip asks, and compares the clocks at the middle of the round trip.
func (c *clockReader) RoundTrip(r *http.Request) (*http.Response, error) {
	before := time.Now()
	res, err := c.RoundTripper.RoundTrip(r)
	if err != nil {
		return res, err
	}
	if t, perr := http.ParseTime(res.Header.Get("Date")); perr == nil {
		middle := before.Add(time.Since(before) / 2)
		c.offset.Store(int64(t.Add(500 * time.Millisecond).Sub(middle))) // the header has whole seconds
		c.seen.Store(true)
	}
	return res, nil
}

// examine returns what it found, the most basic first. What cannot be looked at
// because of an earlier finding is left out.
func (a *app) examine(ctx context.Context, where database, mend bool) (found []finding) {
	add := func(check, state, remedy, format string, args ...any) {
		found = append(found, finding{check, state, fmt.Sprintf(format, args...), remedy})
	}
	a.examineDisk(add)
	if where.url != "" {
		examineDatabase(ctx, where, mend, add)
	}
	t, err := a.target()
	if err != nil {
		add("server", "fail", "", "%v", err)
		return found
	}
	up := false
	servers := addresses(t.url)
	for _, address := range servers {
		up = t.examineServer(ctx, address, add) || up
	}
	if !up {
		return found
	}
	c, err := client.New(client.Config{URL: t.url, Token: t.token, Timeout: healthTime, Tries: len(servers), UserAgent: "drover-cli/" + version})
	if err != nil {
		add("server", "fail", "", "%v", err)
		return found
	}
	defer c.Close()
	who, err := c.WhoAmI(ctx)
	if err != nil {
		add("token", "fail", remedy(err), "%v", err)
		return found
	}
	add("token", "ok", "", "%s of tenant %s, from %s: %s", who.Name, who.Tenant, t.tokenFrom, strings.Join(who.Scopes, ", "))
	queues, err := c.Queues(ctx)
	if err != nil {
		add("queues", "warn", remedy(err), "%v", err)
	} else {
		examineQueues(queues, add)
	}
	if dead, err := c.DeadLetters(ctx, client.LetterFilter{}, client.List{Limit: maxPage}); err == nil {
		examineDead(dead.Items, dead.NextCursor != "", add)
	}
	return found
}

// examineServer looks at one server, and reports whether it answers.
func (t target) examineServer(ctx context.Context, address string, add adder) bool {
	clock := &clockReader{RoundTripper: http.DefaultTransport}
	c, err := client.New(client.Config{URL: address, Token: t.token, HTTP: &http.Client{Transport: clock}, Timeout: healthTime, Tries: 1, UserAgent: "drover-cli/" + version})
	if err != nil {
		add("server", "fail", "", "%v", err)
		return false
	}
	defer c.Close()

	before := time.Now()
	v, err := c.Version(ctx)
	if err != nil {
		add("server", "fail", remedy(err), "%s (from %s): %v", address, t.urlFrom, err)
		return false
	}
	add("server", "ok", "", "%s (from %s) answers in %s", address, t.urlFrom, length(time.Since(before)))
	switch {
	case v.Version != version:
		add("version", "warn", "use the same version on both sides", "this drover is %s, the server %s", version, v.Version)
	default:
		add("version", "ok", "", "%s, on %s", v.Version, v.Database)
	}
	if err := c.Healthy(ctx); err != nil {
		add("ready", "fail", "its log says why; \"drover migrate status\" shows the schema", "%v", err)
	} else {
		add("ready", "ok", "", "the server and its database are well")
	}
	if offset := time.Duration(clock.offset.Load()); clock.seen.Load() {
		switch {
		case offset.Abs() > 5*time.Second:
			add("clock", "warn", "let NTP set both; leases are kept by the server's clock, times shown here are by this one", "the server's clock is %s %s", length(offset.Abs()), aheadOrBehind(offset))
		default:
			add("clock", "ok", "", "within %s of the server's", length(max(offset.Abs(), time.Second)))
		}
	}
	return true
}

type adder func(check, state, remedy, format string, args ...any)

func aheadOrBehind(d time.Duration) string {
	if d > 0 {
		return "ahead"
	}
	return "behind"
}

// oldWait is from when a waiting task is worth a warning.
const oldWait = 10 * time.Minute

func examineQueues(queues []drover.Queue, add adder) {
	worst := len(queues)
	for _, q := range queues {
		waiting := q.Ready + q.Queued
		switch {
		case waiting > 0 && q.Workers == 0:
			add("queue "+q.Name, "warn", startWorker(q), "%s and no worker serves it", counted(waiting, "task waits", "tasks wait"))
		case len(q.NoWorkerFor) > 0:
			add("queue "+q.Name, "warn", startWorker(q), "tasks of kind %s wait and none of its %s has a handler for that", strings.Join(q.NoWorkerFor, ", "), counted(q.Workers, "worker", "workers"))
		case waiting > 0 && q.OldestAge.Std() > oldWait:
			add("queue "+q.Name, "warn", "more slots or more workers would help", "the oldest of %s has waited %s for %s", counted(waiting, "task", "tasks"), length(q.OldestAge.Std()), counted(q.Slots, "slot", "slots"))
		default:
			worst--
		}
	}
	if worst == 0 {
		add("queues", "ok", "", "%d, none with work that nobody does", len(queues))
	}
}

// startWorker is the command that serves a queue's waiting kinds; those that are
// not built in need a program.
func startWorker(q drover.Queue) string {
	var flags, own []string
	for _, kind := range q.NoWorkerFor {
		switch kind {
		case "exec", "http":
			flags = append(flags, "--"+kind)
		default:
			own = append(own, strconv.Quote(kind))
		}
	}
	if len(flags) == 0 && len(own) == 0 {
		return "start a worker that serves it"
	}
	var words []string
	if len(flags) > 0 {
		words = append(words, "start one that does: drover worker run "+strings.Join(flags, " ")+" --queue "+quote(q.Name))
	}
	if len(own) > 0 {
		words = append(words, "start a program of yours that handles "+strings.Join(own, ", ")+" and serves this queue (docs/workers.md)")
	}
	return strings.Join(words, "; ")
}

// counted reads "1 task" or "2 tasks".
func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

func examineDead(dead []drover.Letter, more bool, add adder) {
	if len(dead) == 0 {
		add("dead letters", "ok", "", "none")
		return
	}
	count := fmt.Sprint(len(dead))
	if more {
		count += " or more"
	}
	add("dead letters", "warn", "\"drover dlq groups\" and \"drover dlq list\" show them, \"drover dlq replay\" runs them again", "%s; the newest is %s", count, letterLabel(dead[0]))
}

func examineDatabase(ctx context.Context, where database, mend bool, add adder) {
	db, err := where.open(ctx, store.Options{})
	if err != nil {
		add("database", "fail", "", "%v", err)
		return
	}
	defer func() { _ = db.Close() }() // it was only read
	if err := db.CheckSchema(ctx); err != nil {
		add("schema", "fail", "", "%v", err)
		return
	}
	add("schema", "ok", "", "%s has the version this drover needs", redacted(where.url))
	e := engine.New(db, engine.Options{})
	examineRecords(ctx, e, mend, add)
	examinePermits(ctx, e, mend, add)
}

// examinePermits looks for permits of limits that nobody holds.
func examinePermits(ctx context.Context, e *engine.Engine, mend bool, add adder) {
	n, err := e.ReconcilePermits(ctx, mend)
	lost := counted(int(n), "permit is held by no task", "permits are held by no task")
	switch {
	case err != nil:
		add("permits", "fail", "", "%v", err)
	case n == 0:
		add("permits", "ok", "", "every permit of a limit is held by a task that is admitted or runs")
	case mend:
		add("permits", "warn", "", "mended: %s", lost)
	default:
		add("permits", "fail", "\"drover doctor --mend\" gives them back; a server does so by itself within a minute", "%s", lost)
	}
}

// examineRecords compares the rows of every job with its records.
func examineRecords(ctx context.Context, e *engine.Engine, mend bool, add adder) {
	const told = 10
	jobs, open := 0, 0
	counts := map[reconcile.Code]int{}
	for after := (drover.JobID{}); ; {
		list, next, err := e.ReconcileFrom(ctx, after, mend)
		for _, d := range list {
			if jobs++; !d.Mended {
				open++
			}
			for _, f := range d.Findings {
				counts[f.Code]++
			}
			if jobs > told {
				continue
			}
			state, remedy := "fail", "\"drover doctor --mend\" puts it right; a server does so by itself"
			if d.Mended {
				state, remedy = "warn", ""
			}
			text := fmt.Sprintf("%s (%s)", d.Findings[0].Text, d.Findings[0].Code)
			if n := len(d.Findings); n > 1 {
				text += fmt.Sprintf(" and %d more", n-1)
			}
			if d.Mended {
				text = "mended: " + text
			}
			add("job "+d.Job.String(), state, remedy, "%s", text)
		}
		if err != nil {
			add("records", "fail", "", "%v", err)
			return
		}
		if after = next; after.IsZero() {
			break
		}
	}
	var words []string
	for _, c := range reconcile.Codes {
		if counts[c] > 0 {
			words = append(words, fmt.Sprintf("%d %s", counts[c], c))
		}
	}
	switch {
	case jobs == 0:
		add("records", "ok", "", "the rows of every job agree with its records")
	case open > 0:
		add("records", "fail", "\"drover doctor --mend\" puts them right", "%s: %s", counted(open, "job does not agree with its records", "jobs do not agree with their records"), strings.Join(words, ", "))
	default:
		add("records", "warn", "", "%s: %s", counted(jobs, "job did not agree with its records and is mended", "jobs did not agree with their records and are mended"), strings.Join(words, ", "))
	}
}

// Free space of the state folder below which doctor warns and fails.
const (
	lowDisk  = 1 << 30
	fullDisk = 64 << 20
)

func (a *app) examineDisk(add adder) {
	state := a.stateOrDefault()
	var s syscall.Statfs_t
	switch err := syscall.Statfs(state, &s); {
	case errors.Is(err, fs.ErrNotExist):
		return // no drover dev has run here
	case err != nil:
		add("disk", "warn", "", "%s: %v", state, err)
		return
	}
	free := int64(s.Bavail) * int64(s.Bsize) //nolint:unconvert // the types differ between systems
	path, err := filepath.Abs(state)
	if err != nil {
		path = state
	}
	switch {
	case free < fullDisk:
		add("disk", "fail", "make room; the database stops when it is full", "%s has %s free", path, bytesOf(free))
	case free < lowDisk:
		add("disk", "warn", "make room", "%s has %s free", path, bytesOf(free))
	default:
		add("disk", "ok", "", "%s has %s free", path, bytesOf(free))
	}
}
