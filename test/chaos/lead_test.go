package main

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/internal/store/storetest"
	"github.com/drover-dev/drover/test/chaos/journal"
)

var decides = regexp.MustCompile(`this server decides who may run.* term=([0-9]+)`)

// leader is the server that has said last that it decides, and its term.
func (c *cluster) leader(t *testing.T) (who *server, term int) {
	t.Helper()
	for _, s := range c.servers {
		log, err := os.ReadFile(filepath.Join(c.dir, s.name+".log"))
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(log) {
			if m := decides.FindSubmatch(line); m != nil {
				if n, err := strconv.Atoi(string(m[1])); err == nil && n > term {
					who, term = s, n
				}
			}
		}
	}
	return who, term
}

// together is how many handlers ran at one time at most.
func together(list []journal.Record) (most int) {
	list = slices.DeleteFunc(slices.Clone(list), func(r journal.Record) bool { return r.Is != journal.Begin && r.Is != journal.End })
	slices.SortFunc(list, func(a, b journal.Record) int { return cmp.Compare(a.Mono, b.Mono) })
	n := 0
	for _, r := range list {
		if r.Is == journal.Begin {
			n++
		} else {
			n--
		}
		most = max(most, n)
	}
	return most
}

// The server that decides who may run is killed, or stands still: another decides
// within five seconds. What waits for a limit starts again, never more of it at one time
// than the limit has, also when the one that stood still goes on; and nothing is held when
// all is quiet.
func TestAStandbyDecidesWithinFiveSeconds(t *testing.T) {
	if !slices.Contains(storetest.Drivers(t), "postgres") {
		return // a SQLite file belongs to one server
	}
	t.Parallel()
	for name, harm := range map[string]func(*process){"killed": (*process).kill, "stopped": func(p *process) { p.signal(syscall.SIGSTOP) }} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := started(t, "postgres", 2, 10*time.Second)
			x := c.patient(t)
			if _, err := x.SetLimit(t.Context(), "two", drover.NewLimit{Max: 2}, client.LimitChange{}); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				c.worker(t, 4)
			}
			db, err := pgx.Connect(t.Context(), c.database)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close(context.Background()) })
			list := make([]drover.NewJob, 150)
			for i := range list {
				list[i] = work(effort{N: i, Ms: 50})
				list[i].Limits = map[string]int64{"two": 1}
			}
			got, err := x.SubmitMany(t.Context(), list)
			if err != nil {
				t.Fatal(err)
			}
			until(t, 30*time.Second, "they do not begin", func() bool { return len(c.begun(t, "")) >= 10 })
			who, term := c.leader(t)
			if who == nil {
				t.Fatal("no server says that it decides")
			}
			began := time.Now()
			harm(who.p)
			var now int
			until(t, 30*time.Second, "nobody else decides", func() bool {
				if err := db.QueryRow(t.Context(), "SELECT term FROM "+c.schema+".leaders WHERE name = 'admitter'").Scan(&now); err != nil {
					t.Fatal(err)
				}
				return now > term
			})
			took := time.Since(began)
			at := journal.Mono()
			t.Logf("another decides after %v", took.Round(time.Millisecond))
			if took > 5*time.Second {
				t.Errorf("another decides after %v; it must within 5 s", took)
			}
			until(t, time.Minute, "nothing begins", func() bool {
				return slices.ContainsFunc(c.begun(t, ""), func(r journal.Record) bool { return r.Mono > at })
			})
			t.Logf("the next task begins after %v", time.Since(began).Round(time.Millisecond))
			who.p.signal(syscall.SIGCONT)
			if err := who.startIfDown(); err != nil {
				t.Fatal(err)
			}
			var jobs []drover.JobID
			for _, s := range got {
				jobs = append(jobs, s.JobID)
			}
			succeeded(t, x, 2*time.Minute, jobs...)
			if n := together(c.records(t)); n > 2 {
				t.Errorf("%d ran at one time; the limit is 2", n)
			}
			until(t, 30*time.Second, "permits are held of a limit of which nobody runs", func() bool {
				l, err := x.Limit(t.Context(), "two")
				return err == nil && l.Used == 0
			})
		})
	}
}
