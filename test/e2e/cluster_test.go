package e2e

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store/storetest"
)

const squares = `
pipeline: squares
tasks:
  square: {run: work, queue: work, for_each: "${{ input.of }}"}
  total: {run: sum, queue: work, with: "${{ tasks.square.output }}"}
`

// Two servers that start at the same moment on an empty database both come up.
// What is submitted to one is run through the other, and when one is killed all
// that it had accepted ends, each job once.
func TestTwoServersAreOne(t *testing.T) {
	t.Parallel()
	for _, driver := range storetest.Drivers(t) {
		if driver == "postgres" { // a SQLite file belongs to one server
			testTwoServers(t)
		}
	}
}

func testTwoServers(t *testing.T) {
	f := newFolder(t)
	database, o := storetest.Place(t, "postgres")
	f.env = append(f.env, "DROVER_DATABASE_URL="+database, "DROVER_DATABASE_SCHEMA="+o.Schema)
	serve := func() (string, *process) {
		addr := freeAddress(t)
		return "http://" + addr, f.start(nil, "drover", "server", "--auto-migrate", "--http-addr", addr, "--artifacts", f.file("artifacts"))
	}
	urlA, serverA := serve()
	urlB, serverB := serve()
	serverA.ready(urlA)
	serverB.ready(urlB)
	f.drover("migrate", "status")
	token := f.drover("token", "create", "--database-url", database, "--tenant", "acme", "--name", "test", "--scope", "admin")
	a, b := connect(t, urlA, token), connect(t, urlB, token)

	// Submitted to one, run through the other.
	w := f.worker("b", urlB, token, 2, time.Minute)
	if _, err := a.ApplyPipeline(t.Context(), "squares.yaml", []byte(squares)); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "the worker does not come", func() bool {
		list, err := a.Workers(t.Context())
		return err == nil && len(list) == 1
	})
	var jobs []drover.JobID
	began := time.Now()
	for n := range 5 {
		id := submit(t, a, drover.NewJob{Kind: "work", Queue: "work", Input: encode(t, work{N: n})})
		wait(t, a, id, 10*time.Second)
		jobs = append(jobs, id)
	}
	t.Logf("a job submitted to one server, run through the other and waited for: %v", time.Since(began)/5)

	// Both workers are full, with tasks of jobs that came through the first server.
	f.worker("a", urlA, token, 2, time.Minute)
	for n := range 4 {
		jobs = append(jobs, submit(t, a, drover.NewJob{Kind: "work", Queue: "work", Input: encode(t, work{N: n, Until: "go"})}))
	}
	eventually(t, 10*time.Second, "the workers do not begin", func() bool { begun, _ := f.notes(); return len(begun) == 9 })
	of := map[string][]work{"of": make([]work, 20)}
	for n := range of["of"] {
		of["of"][n].N = n
	}
	mapped := submit(t, a, drover.NewJob{Pipeline: "squares", Input: encode(t, of)})
	jobs = append(jobs, mapped)
	for n := range 40 {
		jobs = append(jobs, submit(t, a, drover.NewJob{Kind: "work", Queue: "work", Input: encode(t, work{N: n})}))
	}
	serverA.kill()
	f.write("go", "")

	// The second server and its worker carry on at once. Two tasks are with a
	// worker whose server is gone; its lease must run out.
	if j := wait(t, b, mapped, 20*time.Second); string(j.Result) != "2470" {
		t.Errorf("result = %s, want 2470, the sum of 0² to 19²", j.Result)
	}
	again := 0
	for _, id := range jobs {
		wait(t, b, id, 45*time.Second)
	}
	for _, task := range f.audit(b, jobs...) {
		attempts, err := b.Attempts(t.Context(), task.ID)
		if err != nil {
			t.Fatal(err)
		}
		if len(attempts) == 1 {
			continue
		}
		again++
		whole, err := b.Task(t.Context(), task.ID) // lists leave outputs out
		if err != nil || attempts[0].Outcome != "lease_lost" || !strings.Contains(string(whole.Output), `"b"`) {
			t.Errorf("%s ran as %s and gave %s, %v; want it lost by the first worker and done by the second", task.Name, outcomes(attempts), whole.Output, err)
		}
	}
	if again != 2 {
		t.Errorf("%d tasks ran a second time, want the two that the cut-off worker held", again)
	}
	w.signal(syscall.SIGTERM)
	if code := w.wait(); code != 0 {
		t.Errorf("the worker ended with %d, want 0", code)
	}
	serverB.signal(syscall.SIGTERM)
	if code := serverB.wait(); code != 0 {
		t.Errorf("the server ended with %d, want 0", code)
	}
}
