package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/engine"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/driver"
	"github.com/drover-dev/drover/internal/store/storetest"
)

// running returns a gateway of a new engine on db, and a caller.
func running(t *testing.T, db *store.DB, change ...func(*Gateway)) (*Gateway, engine.Caller) {
	t.Helper()
	e := engine.New(db, engine.Options{})
	g := New(e)
	for _, f := range change {
		f(g)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	if err := g.Started(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	c, err := e.EnsureTenant(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	return g, c
}

func session(t *testing.T, g *Gateway, c engine.Caller, queues ...string) drover.SessionID {
	t.Helper()
	s, err := g.OpenSession(t.Context(), c, drover.NewSession{Worker: "w", Queues: queues, Slots: 1})
	if err != nil {
		t.Fatal(err)
	}
	return s.ID
}

// acquired counts what a number of waiting acquires got.
func acquired(t *testing.T, g *Gateway, c engine.Caller, workers int, wait time.Duration) (got func() int) {
	t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	n := 0
	for range workers {
		id := session(t, g, c, "q")
		wg.Go(func() {
			leases, err := g.Acquire(t.Context(), c, drover.Acquire{Session: id, Max: 1, Number: 1, Wait: drover.Duration(wait)})
			if err != nil {
				t.Errorf("acquire: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			n += len(leases)
		})
	}
	return func() int { wg.Wait(); return n }
}

// TestPollingAloneSuffices takes the hooks away: no sign ever comes.
func TestPollingAloneSuffices(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		g, c := running(t, db)
		g.engine.OnQueued, g.engine.OnEvents = nil, nil
		got := acquired(t, g, c, 3, 20*time.Second)
		time.Sleep(20 * time.Millisecond) // all wait, most likely; the test holds if they do not
		start := time.Now()
		var last drover.JobID
		for range 3 {
			s, err := g.Submit(t.Context(), c, drover.NewJob{Kind: "k", Queue: "q"})
			if err != nil {
				t.Fatal(err)
			}
			last = s.JobID
		}
		if n := got(); n != 3 {
			t.Errorf("%d leases, want 3", n)
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("three tasks were found after %s", d)
		}
		// One who waits for the job sees its end without a sign, too.
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			time.Sleep(20 * time.Millisecond)
			if _, err := g.engine.Cancel(t.Context(), c, last, engine.Request{}); err != nil {
				t.Errorf("cancel: %v", err)
			}
		})
		feed, err := g.Follow(t.Context(), c, last, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer feed.Close()
		events, err := feed.Next(t.Context(), 10*time.Second)
		if err != nil || len(events) == 0 || events[0].Seq != 2 {
			t.Errorf("events = %+v, %v", events, err)
		}
	})
}

// looks counts the claims that are tried.
type looks struct {
	driver.Driver
	n atomic.Int64
}

func (l *looks) Write(ctx context.Context, fn func(driver.Tx) error) error {
	return l.Driver.Write(ctx, func(tx driver.Tx) error { return fn(look{tx, l}) })
}

type look struct {
	driver.Tx
	of *looks
}

func (l look) Pipe(ctx context.Context, list ...driver.Stmt) error {
	for _, s := range list {
		if s.Text != nil && s.Text.Name == "share sessions" && driver.Len(s.Cols) > 0 {
			l.of.n.Add(1)
		}
	}
	return l.Tx.Pipe(ctx, list...)
}

// TestAPollDoesNotLookWhereNothingWasJustFound: a settle has claimed all there was.
// Only a sign of work makes the poll look. There is no look without a sign in
// this test: what is missed is missed.
func TestAPollDoesNotLookWhereNothingWasJustFound(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		l := &looks{Driver: db.Driver}
		db.Driver = l
		g, c := running(t, db, func(g *Gateway) { g.pollEvery = time.Hour })
		id := session(t, g, c, "q")
		number := int64(0)
		find := func(wait time.Duration) []drover.Lease {
			t.Helper()
			number++
			leases, err := g.Acquire(t.Context(), c, drover.Acquire{Session: id, Max: 5, Number: number, Wait: drover.Duration(wait)})
			if err != nil {
				t.Fatal(err)
			}
			return leases
		}
		ride := func() int {
			t.Helper()
			number++
			_, leases, err := g.Settle(t.Context(), engine.Settlement{Caller: c, Session: id, Acquire: &drover.Acquire{Session: id, Max: 1, Number: number}})
			if err != nil {
				t.Fatal(err)
			}
			return len(leases)
		}
		submit := func() {
			t.Helper()
			if _, err := g.Submit(t.Context(), c, drover.NewJob{Kind: "k", Queue: "q"}); err != nil {
				t.Fatal(err)
			}
		}
		if ride() != 0 {
			t.Fatal("leases without jobs")
		}
		before := l.n.Load()
		if len(find(50*time.Millisecond)) != 0 || l.n.Load() != before {
			t.Errorf("%d looks where there was nothing a moment ago", l.n.Load()-before)
		}
		// What comes between the settle and the poll, or during the poll, is found.
		submit()
		if n := len(find(20 * time.Second)); n != 1 {
			t.Errorf("%d leases of a job that came before the poll", n)
		}
		if ride() != 0 {
			t.Fatal("leases without jobs")
		}
		var later sync.WaitGroup
		later.Go(func() { time.Sleep(20 * time.Millisecond); submit() })
		if n := len(find(20 * time.Second)); n != 1 {
			t.Errorf("%d leases of a job that came during the poll", n)
		}
		later.Wait()
		// A settle that got all it asked for may have left some.
		submit()
		submit()
		if ride() != 1 || len(find(20*time.Second)) != 1 {
			t.Error("what a settle left is not found")
		}
	})
}

// TestOneSignWakesAsManyAsThereIsWorkFor submits to a crowd that waits. Those for
// whom there is nothing go on waiting.
func TestOneSignWakesAsManyAsThereIsWorkFor(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		g, c := running(t, db)
		const crowd, work = 20, 12
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		back := make(chan int, crowd) // the leases of each that has come back
		for range crowd {
			id := session(t, g, c, "q")
			go func() {
				leases, _ := g.Acquire(ctx, c, drover.Acquire{Session: id, Max: 1, Number: 1, Wait: drover.Duration(25 * time.Second)})
				back <- len(leases)
			}()
		}
		time.Sleep(50 * time.Millisecond) // all wait, most likely; the test holds if they do not
		jobs := make([]drover.NewJob, work)
		for i := range jobs {
			jobs[i] = drover.NewJob{Kind: "k", Queue: "q"}
		}
		if _, err := g.SubmitMany(t.Context(), c, jobs); err != nil {
			t.Fatal(err)
		}
		for range work {
			if n := <-back; n != 1 {
				t.Errorf("one came back with %d leases before its time", n)
			}
		}
		cancel()
		for range crowd - work {
			if n := <-back; n != 0 {
				t.Error("there were more leases than jobs")
			}
		}
	})
}

func TestSubmitsOfOneMomentShareTransactions(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		g, c := running(t, db)
		var wg sync.WaitGroup
		var mu sync.Mutex
		ids := map[drover.JobID]bool{}
		for i := range 200 {
			wg.Go(func() {
				j := drover.NewJob{Kind: "k", IdempotencyKey: fmt.Sprint("key ", i/2)} // each key twice
				if i%10 == 9 {
					j = drover.NewJob{Kind: "k", Pipeline: "p"}
				}
				s, err := g.Submit(t.Context(), c, j)
				if j.Pipeline != "" {
					if !errors.Is(err, drover.ErrInvalid) {
						t.Errorf("a bad job among good ones: %v", err)
					}
					return
				}
				if err != nil {
					t.Errorf("submit %d: %v", i, err)
				}
				mu.Lock()
				defer mu.Unlock()
				ids[s.JobID] = true
			})
		}
		wg.Wait()
		if len(ids) != 100 {
			t.Errorf("%d jobs, want 100", len(ids))
		}
	})
}

func TestSettlesOfManyAreAnsweredEach(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		g, c := running(t, db)
		const n = 40
		jobs := make([]drover.NewJob, 2*n) // some settles take another one
		for i := range jobs {
			jobs[i] = drover.NewJob{Kind: "k", Queue: "q"}
		}
		if _, err := g.SubmitMany(t.Context(), c, jobs); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range n {
			id := session(t, g, c, "q")
			leases, err := g.Acquire(t.Context(), c, drover.Acquire{Session: id, Max: 1, Number: 1})
			if err != nil || len(leases) != 1 {
				t.Fatalf("leases = %+v, %v", leases, err)
			}
			wg.Go(func() {
				s := engine.Settlement{Caller: c, Session: id, Outcomes: []drover.Outcome{{TaskID: leases[0].TaskID, LeaseVersion: leases[0].LeaseVersion, Status: drover.OutcomeSucceeded}}}
				switch i % 4 {
				case 1:
					s.Session = 1 << 40 // nobody's
				case 2:
					s.Outcomes[0].LeaseVersion += 5
				case 3:
					s.Acquire = &drover.Acquire{Session: id, Max: 1, Number: 2, Wait: drover.Duration(time.Hour)}
				}
				settled, _, err := g.Settle(t.Context(), s)
				switch i % 4 {
				case 1:
					if drover.CodeOf(err) == "" {
						t.Errorf("a session that is not there: %+v, %v", settled, err)
					}
				case 2:
					if err != nil || settled[0].Err == nil || settled[0].Err.Code != drover.CodeLeaseLost {
						t.Errorf("a stale outcome: %+v, %v", settled, err)
					}
				default:
					if err != nil || settled[0].Status != drover.Succeeded {
						t.Errorf("a good outcome: %+v, %v", settled, err)
					}
				}
			})
		}
		wg.Wait()
	})
}

func TestFeedEndsBehindTheFinalEvent(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		g, c := running(t, db)
		s, err := g.Submit(t.Context(), c, drover.NewJob{Kind: "k", Queue: "q"})
		if err != nil {
			t.Fatal(err)
		}
		feed, err := g.Follow(t.Context(), c, s.JobID, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer feed.Close()
		first, err := feed.Next(t.Context(), time.Second)
		if err != nil || len(first) != 1 || first[0].Type != drover.JobAccepted {
			t.Fatalf("first = %+v, %v", first, err)
		}
		if none, err := feed.Next(t.Context(), 10*time.Millisecond); err != nil || len(none) != 0 {
			t.Errorf("with nothing new: %+v, %v", none, err)
		}
		id := session(t, g, c, "q")
		l, err := g.Acquire(t.Context(), c, drover.Acquire{Session: id, Max: 1, Number: 1})
		if err != nil || len(l) != 1 {
			t.Fatalf("leases = %+v, %v", l, err)
		}
		if _, _, err := g.Settle(t.Context(), engine.Settlement{Caller: c, Session: id, Outcomes: []drover.Outcome{{TaskID: l[0].TaskID, LeaseVersion: l[0].LeaseVersion, Status: drover.OutcomeSucceeded}}}); err != nil {
			t.Fatal(err)
		}
		last := first[0].Seq
		for {
			events, err := feed.Next(t.Context(), 5*time.Second)
			if err == io.EOF {
				break
			}
			if err != nil || len(events) == 0 {
				t.Fatalf("events = %+v, %v", events, err)
			}
			last = events[len(events)-1].Seq
		}
		again, err := g.Follow(t.Context(), c, s.JobID, last)
		if err != nil || !again.Ended() {
			t.Errorf("after the last event: %v", err)
		} else {
			again.Close()
		}
		if _, err := g.Follow(t.Context(), c, s.JobID, last+1); !errors.Is(err, drover.ErrInvalid) {
			t.Errorf("after an event there is not: %v", err)
		}
		if _, err := g.Follow(t.Context(), engine.Caller{Tenant: c.Tenant + 1}, s.JobID, 0); !errors.Is(err, drover.ErrNotFound) {
			t.Errorf("of another tenant: %v", err)
		}
		if j, err := g.WaitJob(t.Context(), c, s.JobID); err != nil || j.Status != drover.Succeeded {
			t.Errorf("job = %+v, %v", j, err)
		}
	})
}

// TestSignReachesTheWorkerThatHasTheKind lets one with another kind wait longer.
func TestSignReachesTheWorkerThatHasTheKind(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		g, c := running(t, db)
		var wg sync.WaitGroup
		wait := func(kind string, want int) {
			s, err := g.OpenSession(t.Context(), c, drover.NewSession{Worker: "w", Queues: []string{"q"}, Slots: 1, Kinds: []string{kind}})
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			wg.Go(func() {
				got, err := g.Acquire(t.Context(), c, drover.Acquire{Session: s.ID, Max: 1, Number: 1, Wait: drover.Duration(2 * time.Second)})
				if err != nil || len(got) != want {
					t.Errorf("worker with %s: %+v, %v", kind, got, err)
				}
				if d := time.Since(start); want == 1 && d > time.Second {
					t.Errorf("the worker with %s was woken after %s", kind, d)
				}
			})
		}
		for range 5 {
			wait("other", 0)
		}
		wait("k", 1)
		time.Sleep(50 * time.Millisecond) // all wait, most likely; the test holds if they do not
		if _, err := g.Submit(t.Context(), c, drover.NewJob{Kind: "k", Queue: "q"}); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
	})
}

// TestStoppingServerTellsTheOthersWhatItDidLast: the signs of its last moment are
// not lost with it.
func TestStoppingServerTellsTheOthersWhatItDidLast(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		if db.Dialect() == driver.SQLite {
			return // there are no others
		}
		other := engine.New(db, engine.Options{})
		heard := make(chan string, 100)
		hearing, deaf := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer deaf()
		wg.Go(func() {
			if err := other.Hear(hearing, func(n engine.News) {
				for _, q := range n.Queues {
					heard <- q
				}
			}); err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("hear: %v", err)
			}
		})
		wait := func(name string, tell func()) {
			t.Helper()
			for end := time.After(20 * time.Second); ; {
				tell()
				select {
				case q := <-heard:
					if q == name {
						return
					}
				case <-time.After(50 * time.Millisecond):
				case <-end:
					t.Fatalf("nobody hears of queue %s", name)
				}
			}
		}
		g := New(engine.New(db, engine.Options{}))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- g.Run(ctx) }()
		if err := g.Started(t.Context()); err != nil {
			t.Fatal(err)
		}
		wait("first", func() { g.queued([]string{"first"}) })
		stop()
		g.queued([]string{"last"}) // a batch that was accepted before ends now
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		wait("last", func() {})
	})
}

// TestWhoWaitsForAJobIsToldThatItIsGone: it ended and was deleted between two looks,
// on another server, of which no sign came.
func TestWhoWaitsForAJobIsToldThatItIsGone(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		g, c := running(t, db, func(g *Gateway) { g.pollEvery = 300 * time.Millisecond })
		other := engine.New(db, engine.Options{})
		out, err := other.Submit(t.Context(), c, []drover.NewJob{{Kind: "k"}})
		if err != nil || out[0].Err != nil {
			t.Fatal(err, out)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		told := make(chan error, 1)
		start := time.Now()
		go func() {
			_, err := g.WaitJob(ctx, c, out[0].JobID)
			told <- err
		}()
		time.Sleep(100 * time.Millisecond)
		if _, err := other.Cancel(t.Context(), c, out[0].JobID, engine.Request{}); err != nil {
			t.Fatal(err)
		}
		if err := other.DeleteJob(t.Context(), c, out[0].JobID); err != nil {
			t.Fatal(err)
		}
		for n := 1; n > 0; {
			if n, err = other.PurgeOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-told; !errors.Is(err, drover.ErrNotFound) || time.Since(start) > 10*time.Second {
			t.Errorf("told %v after %s", err, time.Since(start))
		}
	})
}

// refusing is a database that fails a write.
type refusing struct {
	driver.Driver
	writes, failed atomic.Int32 // how many there were; which fails
}

func (d *refusing) Write(ctx context.Context, fn func(driver.Tx) error) error {
	if d.writes.Add(1) == d.failed.Load() {
		return errors.New("the disk is full")
	}
	return d.Driver.Write(ctx, fn)
}

// TestManyJobsOfARequest are stored beside each other where that can be, and where some
// could not be stored the answer says which; they are sent again.
func TestManyJobsOfARequest(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		d := &refusing{Driver: db.Driver}
		db.Driver = d
		g, c := running(t, db)
		const n = 4500
		jobs := make([]drover.NewJob, n)
		for i := range jobs {
			jobs[i] = drover.NewJob{Kind: "a", ID: drover.JobID(db.NewID()), IdempotencyKey: fmt.Sprint("k", i)}
		}
		submit := func() (missing []int, replayed int) {
			t.Helper()
			out, err := g.SubmitMany(t.Context(), c, jobs)
			if err != nil {
				t.Fatal(err)
			}
			for i, s := range out {
				switch {
				case drover.CodeOf(s.Err) == drover.CodeOverloaded:
					missing = append(missing, i)
				case s.Err != nil || s.JobID != jobs[i].ID:
					t.Fatalf("job %d: %+v", i, s)
				case s.Replayed:
					replayed++
				}
			}
			return missing, replayed
		}
		if _, err := g.Submit(t.Context(), c, drover.NewJob{Kind: "a"}); err != nil { // which makes queue and lane
			t.Fatal(err)
		}
		d.writes.Store(0)
		lost := 0
		if db.WritesAbreast() {
			d.failed.Store(2)
			lost = n / 3
		}
		missing, _ := submit()
		if len(missing) != lost || lost > 0 && (missing[0]%lost != 0 || missing[lost-1] != missing[0]+lost-1) {
			t.Errorf("%d jobs are not stored, want %d in a row", len(missing), lost)
		}
		d.failed.Store(0)
		if more, replayed := submit(); len(more) > 0 || replayed != n-lost {
			t.Errorf("the second time %d jobs are not stored and %d are repeats", len(more), replayed)
		}
		d.failed.Store(d.writes.Load() + 1)
		if !db.WritesAbreast() {
			if _, err := g.SubmitMany(t.Context(), c, jobs); err == nil {
				t.Error("nothing was stored, and there is no error")
			}
		}
	})
}
