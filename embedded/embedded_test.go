package embedded

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/internal/store/storetest"
	"github.com/drover-dev/drover/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// opened returns a Drover on a database of its own whose loops run.
func opened(t *testing.T, driver string) (*Drover, Config) {
	t.Helper()
	url, o := storetest.Place(t, driver)
	cfg := Config{DatabaseURL: url, Schema: o.Schema, MaxConns: o.MaxConns, Artifacts: t.TempDir()}
	d, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
		if err := d.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return d, cfg
}

func onEach(t *testing.T, f func(t *testing.T, d *Drover)) {
	t.Helper()
	for _, driver := range storetest.Drivers(t) {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			d, _ := opened(t, driver)
			f(t, d)
		})
	}
}

type in struct {
	N int `json:"n"`
}

type out struct {
	Twice int    `json:"twice"`
	File  string `json:"file"`
}

// startWorker runs a worker in this process until the test ends.
func startWorker(t *testing.T, d *Drover, entries *atomic.Int64) {
	t.Helper()
	w := worker.New(d, worker.Config{Slots: 4, Grace: 5 * time.Second})
	worker.Handle(w, "double", func(ctx context.Context, task *worker.Task, v in) (out, error) {
		if entries.Add(1); v.N < 0 {
			return out{}, worker.Permanent(errors.New("it is negative"))
		}
		task.Progress(0.5, "half")
		task.Log().InfoContext(ctx, "doubling", "n", v.N)
		a, err := task.SaveArtifact(ctx, "n.txt", strings.NewReader(strings.Repeat("x", v.N)))
		return out{2 * v.N, a.URI}, err
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("worker: %v", err)
		}
	})
}

func TestJobRunsWithoutANetwork(t *testing.T) {
	onEach(t, func(t *testing.T, d *Drover) {
		var entries atomic.Int64
		startWorker(t, d, &entries)
		s, err := d.Submit(t.Context(), drover.NewJob{Kind: "double", Input: []byte(`{"n":21}`)})
		if err != nil {
			t.Fatal(err)
		}
		job, err := d.WaitJob(t.Context(), s.JobID)
		if err != nil || job.Status != drover.Succeeded || !strings.HasPrefix(string(job.Result), `{"twice":42,`) || job.Creator != "embedded" {
			t.Fatalf("job = %+v, %v", job, err)
		}
		// The same by the client, whose requests stay here.
		c := d.Client()
		same, err := c.Job(t.Context(), s.JobID)
		if err != nil || string(same.Result) != string(job.Result) || same.Events != job.Events {
			t.Errorf("by the client: %+v, %v", same, err)
		}
		arts, err := c.Artifacts(t.Context(), client.ArtifactsFilter{Job: s.JobID})
		if err != nil || len(arts.Items) != 1 {
			t.Fatalf("artifacts = %+v, %v", arts, err)
		}
		for name, open := range map[string]func(context.Context, drover.ArtifactID) (io.ReadCloser, drover.Artifact, error){"client": c.OpenArtifact, "worker": d.OpenArtifact} {
			r, a, err := open(t.Context(), arts.Items[0].ID)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(r)
			if err := errors.Join(err, r.Close()); err != nil || len(text) != 21 || a.Name != "n.txt" {
				t.Errorf("%s: %d bytes of %+v, %v", name, len(text), a, err)
			}
		}
		if _, err := c.Job(t.Context(), drover.JobID{1}); !errors.Is(err, drover.ErrNotFound) {
			t.Errorf("err = %v, want not found", err)
		}
		if who, err := c.WhoAmI(t.Context()); err != nil || who.Tenant != "default" || who.Name != "embedded" {
			t.Errorf("who = %+v, %v", who, err)
		}
		bad, err := d.Submit(t.Context(), drover.NewJob{Kind: "double", Input: []byte(`{"n":-1}`)})
		if err != nil {
			t.Fatal(err)
		}
		if job, err := c.WaitJob(t.Context(), bad.JobID); err != nil || job.Status != drover.Failed || job.Error.Message != "it is negative" {
			t.Errorf("job = %+v, %v", job, err)
		}
		if n := entries.Load(); n != 2 {
			t.Errorf("the handler was entered %d times, want twice", n)
		}
	})
}

// Who holds the database sets what holds for every tenant in it.
func TestWhoOpensADatabaseAdministersIt(t *testing.T) {
	onEach(t, func(t *testing.T, d *Drover) {
		ctx, c := t.Context(), d.Client()
		if _, err := c.SetLimit(ctx, "all", drover.NewLimit{Scope: drover.ScopeGlobal, Max: 3}, client.LimitChange{}); err != nil {
			t.Error(err)
		}
		if _, err := d.Submit(ctx, drover.NewJob{Kind: "double"}); err != nil {
			t.Fatal(err)
		}
		if q, err := c.PauseQueue(ctx, "default", "repairs"); err != nil || !q.Paused {
			t.Errorf("queue = %+v, %v", q, err)
		}
	})
}

func TestWatchFollowsInProcess(t *testing.T) {
	onEach(t, func(t *testing.T, d *Drover) {
		s, err := d.Submit(t.Context(), drover.NewJob{Kind: "double", Input: []byte(`{"n":1}`)})
		if err != nil {
			t.Fatal(err)
		}
		var entries atomic.Int64
		var once sync.Once
		var seen []int64
		err = d.Client().Watch(t.Context(), s.JobID, 0, func(e drover.Event) error {
			once.Do(func() { startWorker(t, d, &entries) }) // the stream is open before there is anything to see
			seen = append(seen, e.Seq)
			return nil
		})
		if err != nil || len(seen) < 3 {
			t.Errorf("events %v, %v", seen, err)
		}
		for i, n := range seen {
			if n != int64(i+1) {
				t.Errorf("events %v have gaps", seen)
			}
		}
		stop := errors.New("enough")
		if err := d.Client().Watch(t.Context(), s.JobID, 0, func(drover.Event) error { return stop }); !errors.Is(err, stop) {
			t.Errorf("err = %v", err)
		}
	})
}

func TestSubmitTx(t *testing.T) {
	t.Parallel()
	for _, driver := range storetest.Drivers(t) {
		if driver != "postgres" {
			continue
		}
		d, cfg := opened(t, driver)
		ctx := t.Context()
		conn, err := pgx.Connect(ctx, cfg.DatabaseURL)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		if _, err := conn.Exec(ctx, "CREATE TEMP TABLE orders (id int)"); err != nil {
			t.Fatal(err)
		}
		var entries atomic.Int64
		startWorker(t, d, &entries)
		if _, err := d.Client().ApplyPipeline(ctx, "p.yaml", []byte("pipeline: pair\ntasks:\n  a: {run: double, with: {n: 1}, concurrency_key: string(1)}\n  b: {run: double, needs: [a], with: {n: 2}}\n")); err != nil {
			t.Fatal(err)
		}
		jobs := []drover.NewJob{{Kind: "double", Input: []byte(`{"n":1}`)}, {Pipeline: "pair", IdempotencyKey: "once"}}

		// Rolled back: nothing is left.
		tx, err := conn.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(ctx, "INSERT INTO orders VALUES (1)"); err != nil {
			t.Fatal(err)
		}
		gone, err := d.SubmitTx(ctx, tx, jobs...)
		if err != nil || len(gone) != 2 {
			t.Fatalf("submitted %+v, %v", gone, err)
		}
		for _, s := range gone {
			if _, err := d.Client().Job(ctx, s.JobID); !errors.Is(err, drover.ErrNotFound) {
				t.Errorf("a job is there before the commit: %v", err)
			}
		}
		if err := tx.Rollback(ctx); err != nil {
			t.Fatal(err)
		}

		// Committed: they run, and so does what stands beside them.
		if tx, err = conn.Begin(ctx); err != nil {
			t.Fatal(err)
		}
		got, err := d.SubmitTx(ctx, tx, jobs...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(ctx, "INSERT INTO orders VALUES (2)"); err != nil { // the search path is the caller's again
			t.Fatal(err)
		}
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		for _, s := range got {
			if job, err := d.WaitJob(ctx, s.JobID); err != nil || job.Status != drover.Succeeded {
				t.Errorf("job = %+v, %v", job, err)
			}
		}
		var n int
		if err := conn.QueryRow(ctx, "SELECT count(*) FROM orders").Scan(&n); err != nil || n != 1 {
			t.Errorf("%d orders, %v", n, err)
		}
		for _, s := range gone {
			if _, err := d.Client().Job(ctx, s.JobID); !errors.Is(err, drover.ErrNotFound) {
				t.Errorf("a job of the rolled-back transaction is there: %v", err)
			}
		}
		if entries.Load() != 3 {
			t.Errorf("handlers entered %d times, want 3", entries.Load())
		}

		// Refused: an error, so that nobody commits by mistake.
		if tx, err = conn.Begin(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := d.SubmitTx(ctx, tx, drover.NewJob{Pipeline: "nowhere"}); !errors.Is(err, drover.ErrNotFound) {
			t.Errorf("err = %v, want not found", err)
		}
		if err := tx.Rollback(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSubmitTxNeedsPostgreSQL(t *testing.T) {
	t.Parallel()
	d, _ := opened(t, "sqlite")
	if _, err := d.SubmitTx(t.Context(), nil, drover.NewJob{Kind: "a"}); err == nil || !strings.Contains(err.Error(), "PostgreSQL") {
		t.Errorf("err = %v", err)
	}
}

func TestStateOutlivesTheProcess(t *testing.T) {
	for _, driver := range storetest.Drivers(t) {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			url, o := storetest.Place(t, driver)
			cfg := Config{DatabaseURL: url, Schema: o.Schema, MaxConns: 4}
			if _, err := Open(t.Context(), Config{DatabaseURL: url, Schema: o.Schema, NoMigrate: true}); err == nil {
				t.Fatal("an empty database was opened without migrating it")
			}
			first, err := Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			s, err := first.Submit(t.Context(), drover.NewJob{Kind: "a"})
			if err != nil {
				t.Fatal(err)
			}
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			if err := first.Close(); err != nil {
				t.Errorf("closed twice: %v", err)
			}
			cfg.NoMigrate = true
			second, err := Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer second.Close()
			if job, err := second.Client().Job(t.Context(), s.JobID); err != nil || job.Status != drover.Pending {
				t.Errorf("job = %+v, %v", job, err)
			}
		})
	}
}

func TestCloseSendsWaitersAway(t *testing.T) {
	t.Parallel()
	url, _ := storetest.Place(t, "sqlite")
	d, err := Open(t.Context(), Config{DatabaseURL: url})
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.OpenSession(t.Context(), drover.NewSession{Worker: "w", Queues: []string{"q"}, Slots: 1})
	if err != nil {
		t.Fatal(err)
	}
	job, err := d.Submit(t.Context(), drover.NewJob{Kind: "a"})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if got, err := d.Acquire(t.Context(), drover.Acquire{Session: s.ID, Max: 1, Number: 1, Wait: drover.Duration(20 * time.Second)}); len(got) != 0 || err != nil && !errors.Is(err, drover.ErrOverloaded) {
			t.Errorf("acquire: %+v, %v", got, err)
		}
	})
	wg.Go(func() {
		if _, err := d.WaitJob(t.Context(), job.JobID); !errors.Is(err, drover.ErrOverloaded) {
			t.Errorf("wait: %v", err)
		}
	})
	time.Sleep(50 * time.Millisecond) // both wait, most likely; the test holds if they do not
	start := time.Now()
	if err := d.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	wg.Wait()
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("closing took %s", d)
	}
	if _, err := d.Submit(t.Context(), drover.NewJob{Kind: "a"}); !errors.Is(err, drover.ErrOverloaded) {
		t.Errorf("after Close: %v", err)
	}
}

// TestTransport holds the transport to what net/http's does.
func TestTransport(t *testing.T) {
	t.Parallel()
	block := make(chan struct{})
	tr := &transport{as: func(ctx context.Context) context.Context { return ctx }, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/echo":
			w.Header().Set("X-Query", r.URL.RawQuery+r.Header.Get("Authorization"))
			w.WriteHeader(http.StatusCreated)
			w.Header().Set("X-Late", "1")
			_, _ = io.Copy(w, r.Body) // the client reads it
		case "/cut":
			_, _ = w.Write([]byte("half")) // the client reads it
			panic(http.ErrAbortHandler)
		case "/abort":
			panic(http.ErrAbortHandler)
		case "/stream":
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			close(block)
		case "/hang":
			<-r.Context().Done()
		}
	})}
	c := &http.Client{Transport: tr}
	do := func(ctx context.Context, method, path, body string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, method, "http://x"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer drover_x")
		return c.Do(req)
	}
	res, err := do(t.Context(), "POST", "/echo?a=b", "hello")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(res.Body)
	if err != nil || string(text) != "hello" || res.StatusCode != 201 || res.Header.Get("X-Query") != "a=b" || res.Header.Get("X-Late") != "" {
		t.Errorf("answered %d %q with %v, %v", res.StatusCode, text, res.Header, err)
	}
	res.Body.Close()
	if res, err = do(t.Context(), "HEAD", "/echo", ""); err != nil || res.StatusCode != 201 {
		t.Errorf("HEAD: %v, %v", res, err)
	}
	res.Body.Close()
	if res, err = do(t.Context(), "GET", "/cut", ""); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(res.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a cut-off answer reads %q, %v", text, err)
	}
	res.Body.Close()
	if res, err = do(t.Context(), "GET", "/abort", ""); err != nil || res.StatusCode != 500 {
		t.Errorf("an aborted answer: %v, %v", res, err)
	}
	res.Body.Close()
	if res, err = do(t.Context(), "GET", "/stream", ""); err != nil || res.StatusCode != 200 {
		t.Fatalf("a stream: %v, %v", res, err)
	}
	res.Body.Close() // ends the handler
	<-block
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err = do(ctx, "GET", "/hang", ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v, want the deadline", err)
	}
	tr.wait()
}
