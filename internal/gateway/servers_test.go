package gateway

import (
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/storetest"
)

// TestNewsOfJobsReachesOtherServers settles at one server what others wait for
// and watch at another that never looks by itself.
func TestNewsOfJobsReachesOtherServers(t *testing.T) {
	t.Parallel()
	for _, kind := range storetest.Drivers(t) {
		if kind != "postgres" {
			continue // a SQLite file belongs to one server
		}
		db := storetest.Open(t, kind)
		for _, jobs := range []int{1, 400} { // 400 are more than a message holds
			t.Run(fmt.Sprint(jobs), func(t *testing.T) { testNewsOfJobs(t, db, jobs) })
		}
	}
}

func testNewsOfJobs(t *testing.T, db *store.DB, n int) {
	blind := func(g *Gateway) { g.pollEvery = time.Hour }
	a, c := running(t, db, blind)
	b, _ := running(t, db, blind)
	listening(t, db, a, b)
	queue := fmt.Sprint("q", n)
	id := session(t, a, c, queue)
	out, err := a.SubmitMany(t.Context(), c, repeat(n, drover.NewJob{Kind: "k", Queue: queue}))
	if err != nil {
		t.Fatal(err)
	}
	leases, err := a.Acquire(t.Context(), c, drover.Acquire{Session: id, Max: n, Number: 1})
	if err != nil || len(leases) != n {
		t.Fatalf("%d leases, %v; want %d", len(leases), err, n)
	}
	last := out[n-1].JobID

	var wg sync.WaitGroup
	var settled time.Time
	began := make(chan struct{}, 2)
	late := func(what string) {
		if d := time.Since(settled); d > 5*time.Second {
			t.Errorf("%s came %s after the settle", what, d)
		} else {
			t.Logf("%s came %s after the settle", what, d)
		}
	}
	wg.Go(func() {
		began <- struct{}{}
		if j, err := b.WaitJob(t.Context(), c, last); err != nil || j.Status != drover.Succeeded {
			t.Errorf("the waiter gets %s, %v", j.Status, err)
		}
		late("the end of the wait")
	})
	feed, err := b.Follow(t.Context(), c, last, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer feed.Close()
	wg.Go(func() {
		began <- struct{}{}
		for {
			events, err := feed.Next(t.Context(), time.Minute)
			if err == io.EOF {
				break
			}
			if err != nil || len(events) == 0 {
				t.Errorf("the watcher gets %v, %v", events, err)
				return
			}
		}
		late("the end of the feed")
	})
	<-began
	<-began
	time.Sleep(100 * time.Millisecond) // both wait, most likely; the test holds if they do not
	var outcomes []drover.Outcome
	for _, l := range leases {
		outcomes = append(outcomes, drover.Outcome{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeSucceeded})
	}
	settled = time.Now()
	if _, _, err := a.Settle(t.Context(), engine.Settlement{Caller: c, Session: id, Outcomes: outcomes}); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
}

func repeat(n int, j drover.NewJob) []drover.NewJob {
	list := make([]drover.NewJob, n)
	for i := range list {
		list[i] = j
	}
	return list
}

// listening waits until both servers hear each other.
func listening(t *testing.T, db *store.DB, list ...*Gateway) {
	t.Helper()
	var waits []*waiter
	for i, g := range list {
		w := g.queues.join([]string{"hello"}, scope{tenant: int32(i)})
		defer g.queues.leave(w)
		waits = append(waits, w)
	}
	for _, w := range waits {
		for end := time.After(20 * time.Second); ; {
			if err := engine.New(db, engine.Options{}).Announce(t.Context(), engine.News{Queues: []string{"hello"}, From: "test"}); err != nil {
				t.Fatal(err)
			}
			select {
			case <-w.wake:
			case <-time.After(20 * time.Millisecond):
				continue
			case <-end:
				t.Fatal("a server does not hear")
			}
			break
		}
	}
}

// A server's own news comes back to it from the database; it has told of them
// already.
func TestOwnNewsOfJobsWakesNobodyAgain(t *testing.T) {
	t.Parallel()
	g := New(engine.New(store.New(nil, store.Options{}), engine.Options{}))
	id := drover.JobID(drover.MakeID(1, [10]byte{1}))
	news, leave := g.jobs.join(id)
	defer leave()
	for _, c := range []struct {
		n    engine.News
		want int
	}{
		{engine.News{Jobs: []drover.JobID{id}, From: g.name}, 0},
		{engine.News{ManyJobs: true, From: g.name}, 0},
		{engine.News{Jobs: []drover.JobID{drover.JobID(drover.MakeID(2, [10]byte{1}))}, From: "another"}, 0},
		{engine.News{Jobs: []drover.JobID{id}, From: "another"}, 1},
		{engine.News{ManyJobs: true, From: "another"}, 1},
		{engine.News{ManyJobs: true, From: "another"}, 0}, // a look of all costs; one at a time
	} {
		g.heard(c.n)
		if len(news) != c.want {
			t.Errorf("%+v: %d signs, want %d", c.n, len(news), c.want)
		}
		for len(news) > 0 {
			<-news
		}
	}
}
