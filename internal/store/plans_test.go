package store_test

import (
	"bytes"
	"context"
	"crypto/md5" // the seeds' ids are its sums, as PostgreSQL makes them too
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/lifecycle"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/driver"
	"github.com/drover-dev/drover/internal/store/postgres"
	"github.com/drover-dev/drover/internal/store/storetest"
)

// small are tables that stay small, so that reading all of one is no harm.
var small = []string{"tenants", "tokens", "queues", "lanes", "circuits", "pipelines", "retention", "job_holds", "job_purges", "sessions", "limits", "permits", "intake_rules", "schema_migrations", "schema_compat"}

// admitter are statements of the one server that decides who runs: they count and mend
// all that runs, which is as much as there are slots.
var admitter = []string{"count running by session, lane and class", "stand a lane's running in another", "lock who stands in lanes", "least permits in lanes", "delete permits that nobody holds", "count permits that nobody holds"}

// wholly says of a statement that it is meant to read whole tables: those of an
// audit, which have settings of their own, and those of the admitter.
func wholly(name string) bool {
	return slices.Contains(admitter, name) || strings.HasPrefix(name, "invariant ") || strings.HasPrefix(name, "audit of ")
}

// TestNoStatementReadsAWholeTable: under the settings that every connection has,
// each statement finds what it wants by an index. The settings forbid a
// sequential scan where there is any other way, so that one in a plan says that
// there is none. Plans also hang on what PostgreSQL knows of the tables, so that
// they are looked at when the tables are empty and when they are full.
func TestNoStatementReadsAWholeTable(t *testing.T) {
	t.Parallel()
	if !slices.Contains(storetest.Drivers(t), "postgres") {
		t.Log("without PostgreSQL there is nothing to explain")
		return
	}
	db := storetest.Open(t, "postgres")
	explainAll(t, db, "empty tables")
	vacuum(t, db)
	explainAll(t, db, "tables that were empty when they were vacuumed last")
	seed(t, db)
	explainAll(t, db, "full tables")
}

// vacuum lets PostgreSQL know that the tables are empty, which it believes until it looks
// again: a plan that was made meanwhile is used when they have long been full.
func vacuum(t *testing.T, db *store.DB) {
	t.Helper()
	c, err := db.Driver.(*postgres.DB).Pool().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release()
	if _, err := c.Exec(t.Context(), "VACUUM ANALYZE "+strings.Join(store.Churn, ", ")); err != nil {
		t.Fatal(err)
	}
}

func explainAll(t *testing.T, db *store.DB, when string) {
	c, err := db.Driver.(*postgres.DB).Pool().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release()
	explained := 0
	for i, text := range statements {
		if strings.HasPrefix(text.Name, "test") || strings.HasPrefix(text.Name, "Test") || oneDatabase[text.Name] == driver.SQLite || strings.HasPrefix(text.SQL(driver.PostgreSQL), "INSERT INTO") && !strings.Contains(text.SQL(driver.PostgreSQL), "SELECT") {
			continue
		}
		name := fmt.Sprintf("plan_%d", i)
		d, err := c.Conn().Prepare(t.Context(), name, text.SQL(driver.PostgreSQL))
		if err != nil {
			t.Errorf("%s: %v", text.Name, err)
			continue
		}
		args := ""
		if n := len(d.ParamOIDs); n > 0 {
			args = "(" + strings.TrimSuffix(strings.Repeat("NULL, ", n), ", ") + ")"
		}
		var plan []byte
		if err := c.QueryRow(t.Context(), "EXPLAIN (FORMAT JSON) EXECUTE "+name+args).Scan(&plan); err != nil {
			if !strings.Contains(err.Error(), "cannot be explained") && !strings.Contains(err.Error(), "is not allowed") {
				t.Errorf("%s: %v", text.Name, err)
			}
			continue
		}
		explained++
		var tree any
		if err := json.Unmarshal(plan, &tree); err != nil {
			t.Fatal(err)
		}
		for _, table := range scanned(tree, false) {
			if !slices.Contains(small, table) && !wholly(text.Name) {
				t.Errorf("%s: %q reads all of %s:\n%s", when, text.Name, table, text.SQL(driver.PostgreSQL))
			}
		}
	}
	if explained < 50 {
		t.Errorf("%d statements were explained", explained)
	}
}

// scanned names the tables that a plan reads from end to end: by themselves, or
// along an index without a condition, unless a limit ends that.
func scanned(node any, limited bool) (tables []string) {
	switch n := node.(type) {
	case []any:
		for _, x := range n {
			tables = append(tables, scanned(x, limited)...)
		}
	case map[string]any:
		kind := fmt.Sprint(n["Node Type"])
		limited = limited || kind == "Limit"
		if _, ok := n["Index Cond"]; kind == "Seq Scan" || strings.HasPrefix(kind, "Index") && !ok && !limited {
			tables = append(tables, fmt.Sprint(n["Relation Name"]))
		}
		for _, x := range n {
			tables = append(tables, scanned(x, limited)...)
		}
	}
	return tables
}

// seeds are rows by the thousand, as a busy installation has them: many tasks
// wait in the lanes of one queue, some run, more have ended. g counts the rows;
// what is not named is zero or empty.
var seeds = []struct {
	table string
	n     int
	cols  map[string]string
}{
	{"jobs", 4000, map[string]string{"id": "md5('job' || g)::uuid", "tenant": "1"}},
	{"job_live", 2000, map[string]string{"job_id": "md5('job' || g)::uuid", "tenant": "1", "total": "10", "open": "10"}},
	{"job_final", 2000, map[string]string{"job_id": "md5('job' || g + 2000)::uuid", "run": "1", "tenant": "1", "status": "8"}},
	{"tasks", 40_000, map[string]string{"id": "md5('task' || g)::uuid", "job_id": "md5('job' || g / 10)::uuid", "tenant": "1", "node": "1", "idx": "g", "queue": "1", "lane": "1 + g % 8"}},
	{"task_queued", 20_000, map[string]string{"task_id": "md5('task' || g)::uuid", "job_id": "md5('job' || g / 10)::uuid", "node": "1", "idx": "g", "queue": "1", "class": "2", "lane": "1 + g % 8", "due_at": "g"}},
	{"task_running", 2000, map[string]string{"task_id": "md5('task' || g + 20000)::uuid", "job_id": "md5('job' || (g + 20000) / 10)::uuid", "node": "1", "idx": "g", "queue": "1", "class": "2", "lane": "1 + g % 8", "lease_version": "1", "session_id": "1 + g % 100"}},
	{"task_pending", 5000, map[string]string{"task_id": "md5('pending' || g)::uuid", "job_id": "md5('job' || g / 10)::uuid", "node": "2", "idx": "g", "unmet": "1"}},
	{"task_ready", 5000, map[string]string{"task_id": "md5('ready' || g)::uuid", "job_id": "md5('job' || g / 10)::uuid", "queue": "1", "lane": "1 + g % 8", "due_at": "g"}},
	{"task_delayed", 5000, map[string]string{"task_id": "md5('delayed' || g)::uuid", "job_id": "md5('job' || g / 10)::uuid", "due_at": "g", "queue": "1", "lane": "1"}},
	{"task_final", 15_000, map[string]string{"task_id": "md5('task' || g + 25000)::uuid", "generation": "1", "job_id": "md5('job' || (g + 25000) / 10)::uuid", "tenant": "1", "status": "CASE WHEN g % 100 = 0 THEN 9 ELSE 8 END", "lease_version": "1"}},
	{"attempts", 2000, map[string]string{"task_id": "md5('task' || g + 25000)::uuid", "lease_version": "g", "job_id": "md5('job' || (g + 25000) / 10)::uuid"}},
	{"events", 40_000, map[string]string{"job_id": "md5('job' || g / 10)::uuid", "seq": "g % 10"}},
	{"sessions", 100, map[string]string{"id": "g", "expires_at": "4e15", "ended": "0"}},
	{"idempotency", 5000, map[string]string{"tenant": "1", "key": "'key' || g", "job_id": "md5('job' || g)::uuid"}},
	{"job_timers", 2000, map[string]string{"at": "g", "job_id": "md5('job' || g)::uuid"}},
	{"task_watches", 2000, map[string]string{"task_id": "md5('task' || g + 20000)::uuid", "job_id": "md5('job' || (g + 20000) / 10)::uuid", "look_at": "g"}},
	{"dead_letters", 2000, map[string]string{"task_id": "md5('task' || g + 25000)::uuid", "generation": "1", "tenant": "1", "job_id": "md5('job' || (g + 25000) / 10)::uuid", "state": "1", "at": "g"}},
	{"artifacts", 2000, map[string]string{"id": "md5('artifact' || g)::uuid", "tenant": "1", "job_id": "md5('job' || g)::uuid", "visible": "1"}},
	{"logs", 5000, map[string]string{"job_id": "md5('job' || g / 10)::uuid", "id": "md5('log' || g)::uuid", "task_id": "md5('task' || g)::uuid"}},
}

// empties are values by type for the columns that a seed does not name.
var empties = map[string]string{
	"uuid": "md5('nothing' || g)::uuid", "bytea": "''::bytea", "text": "''", "integer": "0", "bigint": "0", "smallint": "0", "double precision": "0", "real": "0",
}

// seed fills the tables and has PostgreSQL count what is in them.
func seed(t *testing.T, db *store.DB) {
	t.Helper()
	c, err := db.Driver.(*postgres.DB).Pool().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release()
	for _, s := range seeds {
		rows, err := c.Query(t.Context(), "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = $1", s.table)
		if err != nil {
			t.Fatal(err)
		}
		type column struct{ Name, Type string }
		columns, err := pgx.CollectRows(rows, pgx.RowToStructByPos[column])
		if err != nil || len(columns) == 0 {
			t.Fatalf("%s has %d columns, %v", s.table, len(columns), err)
		}
		var names, values []string
		for _, col := range columns {
			value, ok := s.cols[col.Name]
			if !ok {
				value, ok = empties[col.Type]
			}
			if !ok {
				t.Fatalf("nothing is known to put into %s.%s of type %s", s.table, col.Name, col.Type)
			}
			names, values = append(names, col.Name), append(values, value)
		}
		text := fmt.Sprintf("INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM generate_series(1, %d) g", s.table, strings.Join(names, ", "), strings.Join(values, ", "), s.n)
		if _, err := c.Exec(t.Context(), text); err != nil {
			t.Fatalf("%s: %v", s.table, err)
		}
		if _, err := c.Exec(t.Context(), "ANALYZE "+s.table); err != nil {
			t.Fatal(err)
		}
	}
}

var readRows = driver.New("test: rows read", "", "{pg:SELECT relname::text, (seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_xact_user_tables WHERE schemaname = current_schema()}{lite:SELECT '', 0}")

// rowsRead tells how many rows of each table the connection has read lately, in
// this transaction too.
func rowsRead(ctx context.Context, tx store.Tx) (map[string]int64, error) {
	all := map[string]int64{}
	err := tx.Pipe(ctx, store.Stmt{Text: readRows, Scan: func(r driver.Row) error {
		var table string
		var n int64
		err := r.Scan(&table, &n)
		all[table] = n
		return err
	}})
	return all, err
}

// TestHotStatementsReadOnlyTheirRows: what moves 50 tasks reads some fifty rows of
// each table, whatever else is in it.
func TestHotStatementsReadOnlyTheirRows(t *testing.T) {
	t.Parallel()
	if !slices.Contains(storetest.Drivers(t), "postgres") {
		t.Log("without PostgreSQL there is nothing to count")
		return
	}
	const n = 50
	db := storetest.Open(t, "postgres")
	seed(t, db)
	var moved []lifecycle.Task
	run := func(s ...store.Stmt) func(context.Context, store.Tx) (int, error) {
		return func(ctx context.Context, tx store.Tx) (int, error) {
			moved = nil
			err := tx.Pipe(ctx, s...)
			return len(moved), err
		}
	}
	claim := func(lanes []int32, cursor int32) func(context.Context, store.Tx) (int, error) {
		return func(ctx context.Context, tx store.Tx) (int, error) {
			list, err := store.ClaimTasks(ctx, tx, driver.PostgreSQL, store.Claim{Queue: 1, Max: n, Session: 1, Acquire: 1, AfterClass: -1, Cursor: cursor, Lanes: lanes})
			return len(list), err
		}
	}
	var leases []store.Lease
	var jobs []drover.JobID
	var keys []store.Key
	for g := 1; g <= n; g++ {
		id := md5.Sum(fmt.Append(nil, "task", 20_000+g*20))
		leases = append(leases, store.Lease{Task: drover.TaskID(id), Version: 1, Session: int64(1 + g*20%100)})
		jobs = append(jobs, drover.JobID(md5.Sum(fmt.Append(nil, "job", g))))
		keys = append(keys, store.Key{Job: jobs[g-1], Node: 2, Index: int32(10 * g)})
	}
	slices.SortFunc(leases, func(a, b store.Lease) int { return bytes.Compare(a.Task[:], b.Task[:]) })
	heads := map[drover.JobID]store.JobHead{}
	for name, do := range map[string]func(context.Context, store.Tx) (int, error){
		"claim":             claim(nil, 3),
		"claim of a tenant": claim([]int32{2, 4}, 3),
		"take running":      run(store.TakeRunning(leases, &moved)),
		"take a session's":  run(store.TakeSession(7, 20, &moved)),
		"lock pending":      run(store.LockPending(keys, &moved)),
		"take due":          run(store.TakeDue(1000, n, &moved)),
		"take ready":        run(store.TakeReady(n, &moved)),
		"read job heads": func(ctx context.Context, tx store.Tx) (int, error) {
			err := tx.Pipe(ctx, store.ReadJobHeads(jobs, heads))
			return len(heads), err
		},
	} {
		err := db.Write(t.Context(), func(tx store.Tx) error {
			before, err := rowsRead(t.Context(), tx)
			if err != nil {
				return err
			}
			got, err := do(t.Context(), tx)
			if err != nil {
				return err
			}
			if want := map[bool]int{true: 20, false: n}[name == "take a session's"]; got != want {
				t.Errorf("%s: %d rows, want %d", name, got, want)
			}
			after, err := rowsRead(t.Context(), tx)
			for table, rows := range after {
				if rows -= before[table]; rows > 4*n {
					t.Errorf("%s reads %d rows of %s", name, rows, table)
				}
			}
			return errors.Join(err, errUndo)
		})
		if !errors.Is(err, errUndo) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
