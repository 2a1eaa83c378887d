package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-dev/drover"
	"github.com/drover-dev/drover/internal/store"
	"github.com/drover-dev/drover/internal/store/driver"
	"github.com/drover-dev/drover/internal/store/storetest"
)

// open opens a database that may not be migrated.
func open(t *testing.T, url string, o store.Options) *store.DB {
	t.Helper()
	db, err := store.Open(t.Context(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func eachPlace(t *testing.T, f func(t *testing.T, url string, o store.Options)) {
	t.Helper()
	for _, d := range storetest.Drivers(t) {
		t.Run(d, func(t *testing.T) {
			url, o := storetest.Place(t, d)
			f(t, url, o)
		})
	}
}

// number runs a statement that gives one number.
func number(t *testing.T, db *store.DB, sql string) (n int64) {
	t.Helper()
	err := db.Read(t.Context(), func(tx store.Tx) error {
		return tx.Pipe(t.Context(), store.Stmt{Text: driver.New(sql, "", sql), Scan: func(r driver.Row) error { return r.Scan(&n) }})
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

const countTables = "{pg:SELECT count(*) FROM pg_catalog.pg_tables WHERE schemaname = current_schema()}{lite:SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'}"

func TestServersThatMigrateAtOnceTakeEachStepOnce(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, url string, o store.Options) {
		const servers = 4
		var dbs []*store.DB
		for range servers {
			dbs = append(dbs, open(t, url, o))
		}
		var wg sync.WaitGroup
		took := make([][]store.Migration, servers)
		errs := make([]error, servers)
		start := make(chan struct{})
		for i, db := range dbs {
			wg.Go(func() {
				<-start
				took[i], errs[i] = db.Migrate(t.Context(), store.MigrateOptions{})
			})
		}
		close(start)
		wg.Wait()
		for i, db := range dbs {
			if errs[i] != nil {
				t.Errorf("server %d: %v", i, errs[i])
			}
			if err := db.CheckSchema(t.Context()); err != nil {
				t.Errorf("server %d: %v", i, err)
			}
		}
		if n := number(t, dbs[0], "SELECT count(*) FROM schema_migrations"); n != int64(len(store.Known(driver.SQLite))) {
			t.Errorf("%d steps are recorded", n)
		}
		if again, err := dbs[0].Migrate(t.Context(), store.MigrateOptions{}); err != nil || len(again) != 0 {
			t.Errorf("once more: %v, %v", again, err)
		}
	})
}

func TestSchemaIsCheckedWithAdvice(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, url string, o store.Options) {
		db := open(t, url, o)
		says := func(err error, want ...string) {
			t.Helper()
			if err == nil {
				t.Fatalf("no error, want %q", want)
			}
			for _, w := range want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
		}
		says(db.CheckSchema(t.Context()), "lacks version 1", "drover migrate up")
		plan, err := db.Migrate(t.Context(), store.MigrateOptions{DryRun: true})
		if err != nil || len(plan) != len(store.Known(db.Dialect())) || plan[0].Version != 1 || plan[0].SQL == "" || !plan[0].AppliedAt.IsZero() {
			t.Errorf("a dry run: %d steps, %v", len(plan), err)
		}
		says(db.CheckSchema(t.Context()), "lacks version 1")
		if n := number(t, db, countTables); n != 0 {
			t.Errorf("a dry run made %d tables", n)
		}
		before := db.Now().Add(-time.Minute)
		done, err := db.Migrate(t.Context(), store.MigrateOptions{})
		if err != nil || len(done) != len(plan) || done[0].AppliedAt.Before(before) {
			t.Fatalf("migrate: %v, %v", done, err)
		}
		if err := db.CheckSchema(t.Context()); err != nil {
			t.Error(err)
		}
		// A schema of a newer program that runs with this one is used as it is.
		newest := store.Newest()
		err = db.Exec(t.Context(), fmt.Sprintf("INSERT INTO schema_migrations (version, name, applied_at) VALUES (9998, 'near', 1); INSERT INTO schema_compat (version, runs_with) VALUES (9998, %d)", newest))
		if err != nil {
			t.Fatal(err)
		}
		if err := db.CheckSchema(t.Context()); err != nil {
			t.Error(err)
		}
		if again, err := db.Migrate(t.Context(), store.MigrateOptions{}); err != nil || len(again) != 0 {
			t.Errorf("migrate: %v, %v", again, err)
		}
		for _, with := range []int{0, newest + 1} {
			if err := db.Exec(t.Context(), fmt.Sprintf("UPDATE schema_compat SET runs_with = %d WHERE version = 9998", with)); err != nil {
				t.Fatal(err)
			}
			says(db.CheckSchema(t.Context()), "version 9998", "near", "newer drover")
		}
		if err := db.Exec(t.Context(), "DELETE FROM schema_migrations WHERE version = 9998; DELETE FROM schema_compat WHERE version = 9998"); err != nil {
			t.Fatal(err)
		}
		// Any other is left alone.
		err = db.Exec(t.Context(), "INSERT INTO schema_migrations (version, name, applied_at) VALUES (9999, 'future', 1)")
		if err != nil {
			t.Fatal(err)
		}
		says(db.CheckSchema(t.Context()), "version 9999", "future", "newer drover")
		_, err = db.Migrate(t.Context(), store.MigrateOptions{})
		says(err, "version 9999", "newer drover")
		if drover.CodeOf(err) != drover.CodeConflict {
			t.Errorf("migrate to an older schema: %v", err)
		}
	})
}

// TestAMigrationThatIsCutOffLeavesNothing ends the caller's context at moments
// spread over the whole migration.
func TestAMigrationThatIsCutOffLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, d := range storetest.Drivers(t) {
		t.Run(d, func(t *testing.T) {
			cut := 0
			for us := 300; us < 300_000 && cut < 8; us *= 2 {
				url, o := storetest.Place(t, d)
				db := open(t, url, o)
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(us)*time.Microsecond)
				_, err := db.Migrate(ctx, store.MigrateOptions{})
				cancel()
				whole(t, db, fmt.Sprintf("cut off after %d µs", us))
				if err == nil {
					break
				}
				cut++
				// The same handle goes on.
				if _, err := db.Migrate(t.Context(), store.MigrateOptions{}); err != nil {
					t.Fatalf("after it was cut off at %d µs (%v): %v", us, err, err)
				}
				if err := db.CheckSchema(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if cut == 0 && d == "postgres" { // on SQLite what has begun goes on to its end
				t.Error("no migration was cut off")
			}
		})
	}
}

// whole wants a schema that is there, recorded, or not at all.
func whole(t *testing.T, db *store.DB, when string) {
	t.Helper()
	list, err := db.Migrations(t.Context())
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	applied := 0
	for _, m := range list {
		if !m.AppliedAt.IsZero() {
			applied++
		}
	}
	if n := number(t, db, countTables); (n > 1) != (applied > 0) {
		t.Errorf("%s: %d steps are recorded and there are %d tables", when, applied, n)
	}
}

const killed = "DROVER_TEST_MIGRATE"

// TestMigrateToBeKilled is the process that the next test kills.
func TestMigrateToBeKilled(t *testing.T) {
	place := os.Getenv(killed) //nolint:forbidigo // from the test that started this one
	if place == "" {
		return
	}
	url, schema, _ := strings.Cut(place, " ")
	db := open(t, url, store.Options{Schema: schema})
	fmt.Println("ready")
	if _, err := db.Migrate(t.Context(), store.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestAMigrationThatIsKilledLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, d := range storetest.Drivers(t) {
		t.Run(d, func(t *testing.T) {
			for _, ms := range []int{0, 2, 5, 10, 20, 40} {
				url, o := storetest.Place(t, d)
				cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMigrateToBeKilled$")
				cmd.Env = append(os.Environ(), killed+"="+url+" "+o.Schema)
				out, err := cmd.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				if _, err := out.Read(make([]byte, 6)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Duration(ms) * time.Millisecond) // somewhere in the migration
				_ = cmd.Process.Kill()
				var exit *exec.ExitError
				if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
					t.Fatal(err)
				}
				db := open(t, url, o)
				// PostgreSQL may still be at it for a moment: the next one waits for its lock.
				if _, err := db.Migrate(t.Context(), store.MigrateOptions{}); err != nil {
					t.Fatalf("after a kill at %d ms: %v", ms, err)
				}
				whole(t, db, fmt.Sprintf("killed at %d ms", ms))
				if err := db.CheckSchema(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestAMigrationLetsOthersThrough: somebody reads a table for long that a step
// must change. Those who come after the step for the same table are not held up
// behind it, and the step is taken when the reader has ended.
func TestAMigrationLetsOthersThrough(t *testing.T) {
	t.Parallel()
	storetest.Each(t, func(t *testing.T, db *store.DB) {
		if db.Dialect() == driver.SQLite { // one writer, and a reader keeps nobody from writing
			return
		}
		// The newest step is taken back, so that it is missing, and changes a table in use.
		change := "ALTER TABLE queues ADD COLUMN extra INT NOT NULL DEFAULT 0"
		reading, read := make(chan struct{}), make(chan struct{})
		done := make(chan error, 2)
		go func() {
			done <- db.Read(t.Context(), func(tx store.Tx) error {
				var n int64
				err := tx.Pipe(t.Context(), store.Stmt{Text: readQueues, Scan: func(r driver.Row) error { return r.Scan(&n) }})
				close(reading)
				<-read
				return err
			})
		}()
		<-reading
		go func() {
			done <- db.TakeStep(t.Context(), store.Migration{Version: 9000, Name: "test", SQL: change + ";"})
		}()
		longest := time.Duration(0)
		for i := range int32(40) {
			start := time.Now()
			if err := db.Write(t.Context(), func(tx store.Tx) error { return add(t.Context(), tx, 100+i, fmt.Sprint("queue ", i)) }); err != nil {
				t.Fatal(err)
			}
			longest = max(longest, time.Since(start))
			time.Sleep(50 * time.Millisecond)
		}
		if longest > 5*time.Second {
			t.Errorf("a writer waited %s behind the step", longest)
		}
		close(read)
		for range 2 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		if n := number(t, db, "SELECT count(*) FROM queues WHERE extra = 0"); n != 40 {
			t.Errorf("%d rows of 40 after the step", n)
		}
	})
}

var readQueues = driver.New("test: read queues", "", "SELECT count(*) FROM queues")
