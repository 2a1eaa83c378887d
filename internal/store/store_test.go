package store

import (
	"context"
	"testing"
)

func TestMigrateInMemory(t *testing.T) {
	ctx := context.Background()
	db, err := Open(ctx, "sqlite::memory:", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Migrate(ctx, MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := db.CheckSchema(ctx); err != nil {
		t.Fatal(err)
	}
}
