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
	"line waits": clean("clean what lines waited for", "line_waits", "lane, class, since", "since < $1 AND EXISTS (SELECT 1 FROM line_waits n WHERE n.lane = line_waits.lane AND n.class = line_waits.class AND n.since > line_waits.since AND n.since < $1)"),
	"statistics": clean("clean statistics of kinds", "kind_stats", "queue, tenant, kind", "at < $1"),
	"operations": clean("clean operations", "operations", "tenant, request_id", "created_at < $1"),
	"artifacts":  clean("clean staged artifacts", "artifacts", "id", "visible = 0 AND created_at < $1 AND NOT EXISTS (SELECT 1 FROM task_running r WHERE r.task_id = artifacts.task_id AND r.lease_version = artifacts.lease_version)"),
	"stops":      clean("clean stops", "task_stops", "task_id", "at < $1 AND NOT EXISTS (SELECT 1 FROM task_running r WHERE r.task_id = task_stops.task_id)"),
	"progress":   clean("clean progress", "task_progress", "task_id", "at < $1 AND NOT EXISTS (SELECT 1 FROM task_running r WHERE r.task_id = task_progress.task_id)"),
}

// Clean deletes up to n rows of what is kept for a time only: "operations", "statistics" (of kinds that nobody has run since), "line waits" (that were over by then), "artifacts" (staged ones), "progress" or "stops", older than before.
func Clean(what string, before instant, n int, deleted *int64) Stmt {
	return Stmt{Text: cleanTexts[what], Args: []any{int64(before), int64(n)}, Affected: deleted}
}

var (
	oldKeys = driver.New("look for old idempotency keys", "",
		"SELECT i.tenant, i.key, i.created_at, CASE WHEN EXISTS (SELECT 1 FROM jobs j WHERE j.id = i.job_id) THEN 1 ELSE 0 END FROM idempotency i WHERE i.created_at >= $1 AND i.created_at < $2 ORDER BY i.created_at LIMIT $3")
	dropKeys = driver.New("clean idempotency keys", "tenant int, key text", "DELETE FROM idempotency {using} WHERE tenant = {tenant} AND key = {key}")
)

// OldKey is an idempotency key that may have outlived its job.
type OldKey struct {
	Tenant int32
	Key    string
	At     instant
	Job    bool // its job is there still
}

// OldKeys reads up to n keys made from one instant on and before another, the
// oldest first.
func OldKeys(from, before instant, n int, rows *[]OldKey) Stmt {
	return Stmt{Text: oldKeys, Args: []any{int64(from), int64(before), int64(n)}, Scan: into(rows, func(r driver.Row) (k OldKey, err error) {
		var job int64
		err = r.Scan(&k.Tenant, &k.Key, (*int64)(&k.At), &job)
		k.Job = job == 1
		return k, err
	})}
}

// DropKeys deletes idempotency keys.
func DropKeys(rows []OldKey, dropped *int64) Stmt {
	return Stmt{Text: dropKeys, Cols: []any{col(rows, func(k *OldKey) int32 { return k.Tenant }), col(rows, func(k *OldKey) string { return k.Key })}, Affected: dropped}
}
