package store

import (
	"github.com/drover-dev/drover/internal/store/driver"
)

// Churn names the tables whose rows come and go.
var Churn = []string{"task_queued", "task_running", "task_pending", "task_ready", "task_delayed", "job_live"}

func clean(name, table, key, where string) *driver.Text {
	return driver.New(name, "", "DELETE FROM "+table+" WHERE {pg:ctid = ANY(ARRAY(SELECT ctid FROM "+table+" WHERE "+where+" LIMIT $2))}{lite:("+key+") IN (SELECT "+key+" FROM "+table+" WHERE "+where+" LIMIT $2)}")
}

var cleanTexts = map[string]*driver.Text{
	"idempotency": clean("clean idempotency keys", "idempotency", "tenant, key", "created_at < $1 AND NOT EXISTS (SELECT 1 FROM job_live l WHERE l.job_id = idempotency.job_id)"),
	"operations":  clean("clean operations", "operations", "tenant, request_id", "created_at < $1"),
	"artifacts":   clean("clean staged artifacts", "artifacts", "id", "visible = 0 AND created_at < $1 AND NOT EXISTS (SELECT 1 FROM task_running r WHERE r.task_id = artifacts.task_id AND r.lease_version = artifacts.lease_version)"),
	"progress":    clean("clean progress", "task_progress", "task_id", "at < $1 AND NOT EXISTS (SELECT 1 FROM task_running r WHERE r.task_id = task_progress.task_id)"),
}

// Clean deletes up to n rows of what is kept for a time only: "idempotency",
// "operations", "artifacts" (staged ones) or "progress", older than before.
func Clean(what string, before instant, n int, deleted *int64) Stmt {
	return Stmt{Text: cleanTexts[what], Args: []any{int64(before), int64(n)}, Affected: deleted}
}
