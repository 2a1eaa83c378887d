package main

import (
	"context"
	"database/sql"
	"strings"

	"github.com/jackc/pgx/v5"
)

// droverTables reads Drover's tables beside it, so that what is counted does not
// come from what is measured.
type droverTables struct {
	postgres *pgx.Conn
	sqlite   *sql.DB
}

const droverCounts = `SELECT
  (SELECT count(*) FROM task_pending) + (SELECT count(*) FROM task_ready) + (SELECT count(*) FROM task_queued) +
  (SELECT count(*) FROM task_running) + (SELECT count(*) FROM task_delayed),
  (SELECT count(*) FROM task_final WHERE status = 8)`

func openTables(ctx context.Context, database string) (t *droverTables, err error) {
	t = &droverTables{}
	if path, ok := strings.CutPrefix(database, "sqlite:"); ok {
		t.sqlite, err = sql.Open("sqlite", "file:"+path+"?_pragma=query_only(ON)&_pragma=busy_timeout(10000)") // the driver is Drover's
		return t, err
	}
	cfg, err := pgx.ParseConfig(database)
	if err != nil {
		return nil, err
	}
	cfg.RuntimeParams["search_path"] = "drover"
	t.postgres, err = pgx.ConnectConfig(ctx, cfg)
	return t, err
}

func (t *droverTables) count(ctx context.Context) (c counts, err error) {
	if t.sqlite != nil {
		err = t.sqlite.QueryRowContext(ctx, droverCounts).Scan(&c.Waiting, &c.Finished)
		return c, err
	}
	err = t.postgres.QueryRow(ctx, droverCounts).Scan(&c.Waiting, &c.Finished)
	return c, err
}

func (t *droverTables) close() error {
	if t.sqlite != nil {
		return t.sqlite.Close()
	}
	return t.postgres.Close(context.Background())
}

// ofOthers counts the finished tasks of all tenants but one.
func (t *droverTables) ofOthers(ctx context.Context, tenant string) (n int, err error) {
	err = t.postgres.QueryRow(ctx, "SELECT count(*) FROM task_final WHERE tenant <> (SELECT id FROM tenants WHERE name = $1)", tenant).Scan(&n)
	return n, err
}
