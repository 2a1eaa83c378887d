// Package storetest gives tests a migrated database of each kind.
package storetest

import (
	"context"
	crand "crypto/rand"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drover-dev/drover/internal/store"
)

// Env names the environment variable that holds the URL of a PostgreSQL for
// tests. Without it tests run on SQLite alone; where CI is "true" it must be set.
const Env = "DROVER_TEST_POSTGRES"

// Drivers returns the databases tests run on: "sqlite", and "postgres" where
// Env names one.
func Drivers(t testing.TB) []string {
	t.Helper()
	switch {
	case getenv(Env) != "":
		return []string{"sqlite", "postgres"}
	case getenv("CI") == "true":
		t.Fatalf("%s is not set: in CI every test runs on PostgreSQL too", Env)
	}
	return []string{"sqlite"}
}

func getenv(name string) string {
	return os.Getenv(name) //nolint:forbidigo // this package is for tests, which are told by the environment where to run
}

// Each runs f as a subtest on each database, empty and migrated.
func Each(t *testing.T, f func(t *testing.T, db *store.DB), opts ...func(*store.Options)) {
	t.Helper()
	for _, d := range Drivers(t) {
		t.Run(d, func(t *testing.T) { f(t, Open(t, d, opts...)) })
	}
}

// Open returns an empty, migrated database of the kind, "sqlite" or "postgres",
// that is gone when the test ends: a file of its own, or a schema of its own.
func Open(t testing.TB, driver string, opts ...func(*store.Options)) *store.DB {
	t.Helper()
	url, o := Place(t, driver)
	for _, f := range opts {
		f(&o)
	}
	db, err := store.Open(t.Context(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if _, err := db.Migrate(t.Context(), store.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	return db
}

// Place returns where a database of the kind may be made, for tests that open
// it themselves or more than once. Nothing is there yet.
func Place(t testing.TB, driver string) (url string, o store.Options) {
	t.Helper()
	switch driver {
	case "sqlite":
		return "sqlite:" + filepath.Join(t.TempDir(), "drover.db"), o
	case "postgres":
		url = getenv(Env)
		if url == "" {
			t.Fatalf("%s is not set", Env)
		}
		var b [6]byte
		_, _ = crand.Read(b[:]) // it never fails; it ends the program instead
		o.Schema, o.MaxConns = "drover_"+hex.EncodeToString(b[:]), 8
		t.Cleanup(func() { drop(t, url, o.Schema) })
		return url, o
	}
	t.Fatalf("there is no database of the kind %q", driver)
	return "", o
}

func drop(t testing.TB, url, schema string) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second) // the test's own context has ended
	defer cancel()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Errorf("connect to drop schema %s: %v", schema, err)
		return
	}
	defer func() { _ = c.Close(ctx) }()
	if _, err := c.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{schema}.Sanitize()+" CASCADE"); err != nil {
		t.Errorf("drop schema %s: %v", schema, err)
	}
}
