package main

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/client"
	"github.com/drover-dev/drover/internal/store/storetest"
	"github.com/drover-dev/drover/protocol"
)

// Three tenants, two GPU slots, one semaphore, one paused queue, one impossible
// request; and a person with nothing but the command line, who asks: why is this job
// waiting, who holds the GPU, when will mine start, what would two more workers change?
func TestTheCommandLineAnswersAtFullLoad(t *testing.T) {
	t.Parallel()
	for _, kind := range storetest.Drivers(t) {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := newFolder(t)
			url, o := storetest.Place(t, kind)
			f.env = append(f.env, "DROVER_DATABASE_URL="+url)
			if o.Schema != "" {
				f.env = append(f.env, "DROVER_DATABASE_SCHEMA="+o.Schema)
			}
			addr := freeAddress(t)
			f.must(0, "migrate", "up")
			who := map[string]*folder{}
			clients := map[string]*client.Client{}
			for _, tenant := range []string{"acme", "beta", "gamma", "system"} {
				secret := f.must(0, "token", "create", "--database-url", url, "--tenant", tenant, "--name", "admin", "--scope", "admin")
				as := *f
				as.env = append(slices.Clone(f.env), "DROVER_URL=http://"+addr, "DROVER_TOKEN="+secret)
				who[tenant] = &as
				c, err := client.New(client.Config{URL: "http://" + addr, Token: secret})
				if err != nil {
					t.Fatal(err)
				}
				clients[tenant] = c
			}
			f.start("server", "--http-addr", addr, "--artifacts", t.TempDir())
			eventually(t, "the server is not ready", func() bool { _, _, code := who["acme"].try("healthcheck"); return code == 0 })

			// One worker with two GPU slots, whose tasks take a known time.
			ctx := t.Context()
			gpu, err := clients["system"].OpenSession(ctx, drover.NewSession{Worker: "gpu-1", Queues: []string{"gpu"}, Slots: 2, Resources: map[string]int64{"gpu": 2}})
			if err != nil {
				t.Fatal(err)
			}
			number := int64(0)
			take := func(n int) (leases []drover.Lease) {
				for len(leases) < n {
					number++
					got, err := clients["system"].Acquire(ctx, drover.Acquire{Session: gpu.ID, Max: n - len(leases), Wait: drover.Duration(5 * time.Second), Number: number})
					if err != nil {
						t.Fatal(err)
					}
					leases = append(leases, got...)
				}
				return leases
			}
			submit := func(tenant string, j drover.NewJob) string {
				s, err := clients[tenant].Submit(ctx, j)
				if err != nil {
					t.Fatal(err)
				}
				return s.JobID.String()
			}
			infer := drover.NewJob{Kind: "infer", Queue: "gpu", Resources: map[string]int64{"gpu": 1}}
			for range 3 { // some that have run, so that something is known of them
				submit("acme", infer)
				l := take(1)[0]
				if _, err := clients["system"].Settle(ctx, protocol.SettleRequest{Session: gpu.ID, Outcomes: []drover.Outcome{{TaskID: l.TaskID, LeaseVersion: l.LeaseVersion, Status: drover.OutcomeSucceeded, Output: json.RawMessage("1")}}}); err != nil {
					t.Fatal(err)
				}
			}
			submit("acme", infer)
			submit("beta", infer)
			take(2) // the GPU is full, by two tenants
			mine := submit("acme", infer)
			submit("beta", infer)

			who["acme"].must(0, "limit", "set", "vendor-x", "--max", "1")
			vendor := drover.NewJob{Kind: "call", Queue: "cpu", Limits: map[string]int64{"vendor-x": 1}}
			holder, behind := submit("acme", vendor), submit("acme", vendor)
			if _, err := clients["system"].OpenSession(ctx, drover.NewSession{Worker: "cpu-1", Queues: []string{"cpu"}, Slots: 4}); err != nil {
				t.Fatal(err)
			}
			night := submit("gamma", drover.NewJob{Kind: "report", Queue: "nightly"})
			who["system"].must(0, "queue", "pause", "nightly", "--reason", "migration")

			// Why does my job wait, who holds the GPU, and when will it start?
			lines := func(tenant string, words ...string) (first, second, all string) {
				all = who[tenant].must(0, words...)
				l := strings.SplitN(all+"\n\n", "\n", 3)
				return l[0], l[1], all
			}
			is := func(what, text, pattern string) {
				t.Helper()
				if !regexp.MustCompile(pattern).MatchString(text) {
					t.Errorf("%s: %q does not match\n%s", what, pattern, text)
				}
			}
			eventually(t, "my job is not explained by who has the GPU", func() bool {
				first, _, _ := lines("acme", "explain", mine)
				return strings.Contains(first, "workers_full") || strings.Contains(first, "resources")
			})
			first, second, all := lines("acme", "explain", mine)
			is("why", first, `^WHY +`+mine+` \(PENDING\) has waited .* \((workers_full|resources)\): `)
			is("when", second, `^WHEN +.*It starts in about .*(\d+ ends in the last 15m|runs so far).*What helps: Start (more workers|a worker with more)`)
			is("who holds the GPU", all, `HELD BY +task_\w+ for .* on gpu-1`)
			is("and others do", all, `another tenant for `)
			if strings.Contains(all, "beta") {
				t.Errorf("it names another tenant:\n%s", all)
			}
			// The semaphore: who holds it, and who is next.
			first, _, all = lines("acme", "explain", behind)
			is("the semaphore", first, `\(lock_held\): Waiting for lock vendor-x, which is held; it is 1st of 1`)
			is("its holder", all, `HELD BY +`+get[drover.JobExplanation](who["acme"], "explain", holder).On.String())
			// The paused queue, and why.
			first, second, _ = lines("gamma", "explain", night)
			is("the paused queue", first, `\(queue_paused\): Queue nightly is paused \(migration\)`)
			is("what helps", second, `drover queue resume nightly`)
			// The impossible request is refused at the door, and never waits.
			impossible := infer
			impossible.Resources = map[string]int64{"gpu": 3}
			if _, err := clients["gamma"].Submit(ctx, impossible); drover.CodeOf(err) != drover.CodeExceedsLimit {
				t.Errorf("the impossible request: %v, want request-exceeds-limit", err)
			}
			// Who waits for what, of everybody; and what would two more workers change?
			is("waits", who["system"].must(0, "waits", "--group-by", "reason,tenant,queue"), `(?m)^queue_paused +gamma +nightly +1 `)
			is("waits", who["system"].must(0, "waits", "--group-by", "tenant"), `(?m)^ +acme +`)
			is("two more workers", who["acme"].must(0, "queue", "stats", "gpu"), `(?m)^gpu +2 +2 +1 +2 of 2 +\d .* 2 start at once instead of 0`)
			is("which would not help the semaphore", who["acme"].must(0, "queue", "stats", "cpu"), `more workers won't help: 1 waits? for lock_held vendor-x`)
			is("the workers", who["system"].must(0, "worker", "list", "--groups"), `(?m)^gpu +any +1 +0 +2 +2 +0 +100 %`)
		})
	}
}
